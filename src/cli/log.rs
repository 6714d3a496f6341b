//! `guard log`: prints the events of a run, as lines for users or as the recorded JSON.

use std::io::{self, Write};
use std::time::Duration;

use jiff::Timestamp;

use super::args::Log;
use super::exit_code::Exit;
use super::{Failure, note};
use crate::terminal_text;
use crate::transcript::{Event, EventType, FindError, Reader, Run, RunState, Step, Store, Stream};

/// How often a growing transcript is checked.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn run(args: &Log, out: &mut dyn Write) -> Result<Exit, Failure> {
    let run = find(args.run.as_deref())?;
    let mut reader = open(&run)?;
    let mut printer = Printer { args, began: run.started() };
    let mut number = 0u64;
    // Set when the supervisor is gone, and acted on only after one more read: it may have written a line in between.
    let mut gone = false;
    loop {
        let step = reader.step().map_err(|error| unreadable(&run, &error))?;
        match step {
            Step::Event(event) => {
                number += 1;
                printer.print(&event, reader.line(), out)?;
                if args.follow && event.event_type == EventType::RunFinished {
                    return Ok(Exit::Success);
                }
            }
            Step::Bad(why) => {
                number += 1;
                note(&format!("guard: note: line {number} of {}: {why}; `guard verify` says more", run.id));
            }
            Step::End { .. } if !args.follow => {
                out.flush()?;
                say_how_it_stands(&run);
                return Ok(Exit::Success);
            }
            Step::End { .. } if gone => {
                note(&format!("guard: note: {} was cut: its supervisor is gone and wrote no end", run.id));
                return Ok(Exit::Success);
            }
            Step::End { .. } => {
                out.flush()?;
                gone = !run.is_running();
                if !gone {
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
}

fn say_how_it_stands(run: &Run) {
    match run.state {
        RunState::Running => {
            note(&format!("guard: note: {} is still running; --follow waits for more", run.id))
        }
        RunState::Unfinished => note(&format!("guard: note: {} was cut: its end was never written", run.id)),
        RunState::Finished | RunState::Unreadable => {}
    }
}

/// Opens the store of the user's runs.
pub(super) fn store() -> Result<Store, Failure> {
    Store::open().map_err(|error| {
        Failure::usage(error.to_string(), "set HOME, or XDG_STATE_HOME to where runs are kept")
    })
}

/// Finds the run that the user named.
pub(super) fn find(name: Option<&str>) -> Result<Run, Failure> {
    store()?.find(name).map_err(|error| {
        let hint = match &error {
            FindError::Folder { .. } => "its owner and mode should let you read it",
            FindError::Empty(_) => "`guard run` makes the first",
            FindError::Unknown(_) => "`guard runs` lists them; a path must contain a slash",
            FindError::Ambiguous { .. } => "give more of the id",
        };
        Failure::usage(error.to_string(), hint)
    })
}

/// Opens the run's transcript.
pub(super) fn open(run: &Run) -> Result<Reader, Failure> {
    Reader::open(&run.transcript).map_err(|error| unreadable(run, &error))
}

pub(super) fn unreadable(run: &Run, error: &io::Error) -> Failure {
    Failure::usage(
        format!("cannot read {}: {error}", run.transcript.display()),
        "`guard runs` lists what can be read",
    )
}

/// Whether an event is about the network.
fn is_network(event_type: &str) -> bool {
    let known = event_type.parse();
    matches!(
        known,
        Ok(EventType::Connect
            | EventType::Bind
            | EventType::DenyConnect
            | EventType::DenyBind
            | EventType::DenyNetwork)
    ) || event_type.starts_with("network.")
        || event_type.starts_with("gateway.")
}

struct Printer<'a> {
    args: &'a Log,
    began: Option<Timestamp>,
}

impl Printer<'_> {
    fn print(&mut self, event: &Event, line: &[u8], out: &mut dyn Write) -> io::Result<()> {
        if self.args.denied && !event.is_denial() || self.args.network && !is_network(&event.event_type) {
            return Ok(());
        }
        if self.args.json {
            out.write_all(line)?;
            return out.write_all(b"\n");
        }
        let offset = self.offset(event);
        let Some((stream, bytes)) = event.output() else {
            return writeln!(
                out,
                "{offset}  {:<16} {}",
                self.shown(&event.event_type),
                self.shown(&event.message)
            );
        };
        let name = match stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
            Stream::Terminal => "tty",
        };
        let text = String::from_utf8_lossy(&bytes);
        for line in text.lines() {
            writeln!(out, "{offset}  {name:<16} {}", self.shown(line))?;
        }
        Ok(())
    }

    /// Seconds since the run began.
    fn offset(&mut self, event: &Event) -> String {
        let Some(time) = event.time() else { return format!("{:>10}", "?") };
        let began = *self.began.get_or_insert(time);
        format!("{:>+10.3}", time.duration_since(began).as_secs_f64())
    }

    fn shown<'t>(&self, text: &'t str) -> std::borrow::Cow<'t, str> {
        if self.args.raw { text.into() } else { terminal_text::escape(text) }
    }
}
