//! `guard attach`: prints the output of a run, from its beginning until the run ends, and exits with the run's exit
//! code. It only reads the transcript, so it cannot disturb the run.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::cli::args::runs::Attach;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::terminal_filter::Screen;
use crate::cli::{Failure, note};
use crate::run::outcome::RunResult;
use crate::run::transcript::{Event, EventType, Run, Step};
use crate::session::run_reference::find;
use crate::session::run_reference::{open_transcript, unreadable};
use crate::sys::signals;
use crate::text::terminal_text;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(in crate::cli) fn run(args: &Attach, out: &mut dyn Write) -> Result<Exit, Failure> {
    let run = find(Some(&args.run))?;
    let mut screen = io::stdout().is_terminal().then(Screen::default);
    let exit = follow(&run, &mut screen, out);
    if screen.is_some() {
        out.write_all(Screen::RESTORE)?;
    }
    exit
}

fn follow(run: &Run, screen: &mut Option<Screen>, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut reader = open_transcript(run)?;
    // Block the signals, so that Ctrl-C only detaches. Otherwise Ctrl-C could end guard in the middle of an escape
    // sequence.
    let end_signals = signals::end_signals();
    end_signals.thread_block().map_err(io::Error::from)?;
    // True once the guard process of the run has ended. The loop then reads once more, because the process may have
    // written a line before it ended.
    let mut is_gone = false;
    loop {
        match reader.step().map_err(|error| unreadable(run, &error))? {
            Step::Event(event) if event.event_type == EventType::RunFinished => {
                out.flush()?;
                return Ok(exit_of(&event));
            }
            Step::Event(event) => {
                print(&event, screen, out)?;
                if signals::pending_end_signal().is_none() {
                    continue;
                }
            }
            Step::Bad(_) => continue,
            Step::End { .. } if is_gone => {
                out.flush()?;
                note(&format!(
                    "guard: the guard process of the run {} was killed or crashed before the run ended",
                    run.id
                ));
                return Ok(Exit::OwnFailure);
            }
            Step::End { .. } => {
                out.flush()?;
                is_gone = !run.is_running();
            }
        }
        let wait = if is_gone { Duration::ZERO } else { POLL_INTERVAL };
        if signals::wait_for(&end_signals, Some(wait)).is_some() {
            out.flush()?;
            let id = terminal_text::escape(&run.id);
            note(&format!("\nguard: detached; the run continues (guard attach {id}, guard stop {id})"));
            return Ok(Exit::Code(128 + nix::sys::signal::Signal::SIGINT as u8));
        }
    }
}

fn print(event: &Event, screen: &mut Option<Screen>, out: &mut dyn Write) -> io::Result<()> {
    if event.event_type == EventType::TranscriptCut {
        note(&format!("guard: note: {}", terminal_text::escape(&event.message)));
    }
    let Some((_, bytes)) = event.output() else { return Ok(()) };
    match screen {
        Some(screen) => out.write_all(&screen.drawn(&bytes)),
        None => out.write_all(&bytes),
    }
}

/// Returns the exit code that `guard run` had, according to the event that contains the run's result. Returns
/// `Exit::OwnFailure` if guard cannot parse the result.
fn exit_of(event: &Event) -> Exit {
    match serde_json::from_value::<RunResult>(event.data.clone()) {
        Ok(result) => crate::cli::output::run_report::exit_of(&result),
        Err(_) => Exit::OwnFailure,
    }
}
