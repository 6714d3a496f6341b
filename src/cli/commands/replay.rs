//! `guard replay`: prints the output of a recorded run, at its original pace or at the pace that the options set. On a
//! terminal, prints only text and drawing sequences, unless the user gave `--raw`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::cli::args::Replay;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::terminal_filter::Screen;
use crate::cli::{Failure, note};
use crate::run::transcript::{EventType, Step};
use crate::session::run_reference::{find, open_transcript, unreadable};

pub(in crate::cli) fn run(args: &Replay, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut pace = pace(args)?;
    let run = find(Some(&args.run))?;
    let mut reader = open_transcript(&run)?;
    let mut screen = (io::stdout().is_terminal() && !args.raw).then(Screen::default);
    loop {
        let event = match reader.step().map_err(|error| unreadable(&run, &error))? {
            Step::Event(event) => event,
            Step::Bad(_) => continue,
            Step::End { .. } => break,
        };
        if event.event_type == EventType::TranscriptCut {
            note(&format!("guard: note: {}", crate::text::terminal_text::escape(&event.message)));
        }
        let Some((_, bytes)) = event.output() else { continue };
        if let Some(pause) = pace.pause(event.time()) {
            out.flush()?;
            std::thread::sleep(pause);
        }
        match &mut screen {
            Some(screen) => out.write_all(&screen.drawn(&bytes))?,
            None => out.write_all(&bytes)?,
        }
    }
    if screen.is_some() {
        out.write_all(Screen::RESTORE)?;
    }
    Ok(Exit::Success)
}

fn pace(args: &Replay) -> Result<Pace, Failure> {
    let speed = match args.speed.as_str() {
        "max" => Some(0.0),
        number => number.parse::<f64>().ok().filter(|speed| speed.is_finite() && *speed >= 0.0),
    };
    let Some(speed) = speed else {
        return Err(Failure::usage(
            format!("--speed {:?} is not a valid speed", args.speed),
            "give a number such as 4 or 0.5, or `max`",
        ));
    };
    let longest = args.max_pause.unwrap_or(Duration::MAX);
    Ok(Pace { speed, longest, due: Duration::ZERO, began: Instant::now(), last: None })
}

/// Converts the times of recorded output to pauses. Measures from the start of the replay when each piece of output is
/// due, so that delays caused by writing do not add up.
struct Pace {
    /// The factor by which the replay is faster than the recording; zero means without pauses.
    speed: f64,
    longest: Duration,
    /// The time at which to print the next piece of output, relative to the start of the replay.
    due: Duration,
    began: Instant,
    last: Option<Timestamp>,
}

impl Pace {
    fn pause(&mut self, time: Option<Timestamp>) -> Option<Duration> {
        let time = time?;
        let since = self.last.map_or(0.0, |last| time.duration_since(last).as_secs_f64());
        self.last = Some(time);
        if self.speed == 0.0 {
            return None;
        }
        // If the clock was set back, there is no pause; a time that cannot be represented means the longest pause.
        let wait = Duration::try_from_secs_f64((since / self.speed).max(0.0)).unwrap_or(Duration::MAX);
        self.due = self.due.saturating_add(wait.min(self.longest));
        self.due.checked_sub(self.began.elapsed()).filter(|pause| !pause.is_zero())
    }
}
