//! `guard log`: prints the events of a run, as lines for users or as the recorded JSON.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use jiff::Timestamp;

use crate::cli::args::Log;
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, note};
use crate::run::transcript::{Event, EventType, Run, RunState, Step, Stream};
use crate::session::run_reference::{find, open_transcript, unreadable};
use crate::text::terminal_text;

/// How often `--follow` checks the transcript for new events.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(in crate::cli) fn run(args: &Log, out: &mut dyn Write) -> Result<Exit, Failure> {
    let run = find(args.run.as_deref())?;
    let mut reader = open_transcript(&run)?;
    let is_escaped = io::stdout().is_terminal();
    let mut printer = Printer { args, is_escaped, began: run.started() };
    let mut number = 0u64;
    // True once the guard process of the run has ended. The loop then reads once more, because the process may have
    // written a line before it ended.
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
                note(&format!(
                    "guard: note: guard skipped line {number} of {}: {why}; `guard verify` shows details",
                    run.id
                ));
            }
            Step::End { .. } if !args.follow => {
                out.flush()?;
                note_unfinished(&run);
                return Ok(Exit::Success);
            }
            Step::End { .. } if gone => {
                note(&format!(
                    "guard: note: the transcript of {} is incomplete: guard was killed or crashed before the run ended",
                    run.id
                ));
                return Ok(Exit::Success);
            }
            Step::End { .. } => {
                out.flush()?;
                gone = !run.is_running();
                if !gone {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
    }
}

fn note_unfinished(run: &Run) {
    match run.state {
        RunState::Running => {
            note(&format!("guard: note: the run {} is still running; --follow waits for new events", run.id))
        }
        RunState::Unfinished => note(&format!(
            "guard: note: the transcript of {} is incomplete: guard was killed or crashed before the run ended",
            run.id
        )),
        RunState::Finished | RunState::Unreadable => {}
    }
}

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
    /// True if JSON must be safe to show on a terminal. Programs get the recorded bytes, whose hashes they can check.
    is_escaped: bool,
    began: Option<Timestamp>,
}

impl Printer<'_> {
    fn print(&mut self, event: &Event, line: &[u8], out: &mut dyn Write) -> io::Result<()> {
        if self.args.denied && !event.is_denial() || self.args.network && !is_network(&event.event_type) {
            return Ok(());
        }
        if self.args.json {
            if self.is_escaped {
                crate::cli::output::json::write_stored(&mut *out, line)?;
            } else {
                out.write_all(line)?;
            }
            return out.write_all(b"\n");
        }
        let offset = self.offset(event);
        let Some((stream, bytes)) = event.output() else {
            writeln!(out, "{offset}  {:<16} {}", self.shown(&event.event_type), self.shown(&event.message))?;
            let options = event.data.get("allow_with").and_then(serde_json::Value::as_str);
            if let Some(options) = options.filter(|_| self.args.denied) {
                let (seq, id) = (event.seq, &event.run_id);
                writeln!(
                    out,
                    "{:>10}  to allow event {seq}: guard run {} (always: guard allow {} {seq})",
                    "",
                    self.shown(options),
                    self.shown(id)
                )?;
            }
            return Ok(());
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

    /// Returns the time of an event, in seconds since the run began or, if guard does not know that, since the first
    /// event it printed. Returns `?` for an event without a time.
    fn offset(&mut self, event: &Event) -> String {
        let Some(time) = event.time() else { return format!("{:>10}", "?") };
        let began = *self.began.get_or_insert(time);
        format!("{:>+10.3}", time.duration_since(began).as_secs_f64())
    }

    fn shown<'t>(&self, text: &'t str) -> std::borrow::Cow<'t, str> {
        if self.args.raw { text.into() } else { terminal_text::escape(text) }
    }
}
