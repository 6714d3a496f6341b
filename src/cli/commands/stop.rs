//! `guard stop`: ends runs. Sends SIGTERM to the guard process of each run, and waits until the runs have ended, at
//! most for the time of `--wait`. Sends the signal only to a process that holds the lock on the run's transcript.

use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::cli::args::runs::Stop;
use crate::cli::commands::runs::{outcome, state_text};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::{Failure, note};
use crate::run::transcript::{Run, RunState};
use crate::session::run_reference::store;
use crate::session::run_reference::{find, short_ids};
use crate::text::terminal_text;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(in crate::cli) fn run(args: &Stop, out: &mut dyn Write) -> Result<Exit, Failure> {
    let store = store()?;
    let runs: Vec<Run> = if args.all {
        store.running()?
    } else {
        let mut runs: Vec<Run> = Vec::new();
        for name in &args.runs {
            let run = find(Some(name))?;
            if !runs.iter().any(|known| known.id == run.id) {
                runs.push(run);
            }
        }
        runs
    };
    if runs.is_empty() && !args.json {
        writeln!(out, "no runs are running")?;
    }
    let ids = store.ids()?;
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let short = short_ids(&ids);
    // Ask all runs to end before waiting for the first one, so that they end at the same time.
    let problems: Vec<Option<String>> = runs.iter().map(|run| ask_to_end(run, args.now)).collect();
    let deadline = Instant::now().checked_add(Duration::from_secs(args.wait));
    let mut exit = Exit::Success;
    let mut results = Vec::new();
    for (run, problem) in runs.iter().zip(problems) {
        let was_running = run.state == RunState::Running;
        let problem = problem.or_else(|| await_end(run, deadline).err());
        let now = Run::at(&run.transcript);
        if problem.is_some() {
            exit = Exit::Problem;
        }
        let transcript = run.transcript.to_string_lossy();
        let name = match short.get(run.id.as_str()) {
            Some(short) => short,
            // The user gave a path from which no id follows, such as `../x`.
            None if run.id.is_empty() => transcript.as_ref(),
            None => &run.id,
        };
        let name = terminal_text::escape(name).into_owned();
        let branch = run.branch().map(|branch| format!(" ({})", terminal_text::escape(branch)));
        let name = format!("{name}{}", branch.unwrap_or_default());
        match (&problem, args.json) {
            (_, true) => results.push(json!({
                "run_id": run.id, "was_running": was_running, "outcome": outcome(&now), "exit_code": now.exit_code(),
                "problem": problem,
            })),
            (Some(problem), false) => note(&format!("guard: {name}: {problem}")),
            (None, false) if was_running => writeln!(out, "{name}: ended, {}", ending(&now))?,
            (None, false) => writeln!(out, "{name}: had already ended, {}", ending(&now))?,
        }
    }
    if args.json {
        print_json(&serde_json::Value::Array(results), out)?;
    }
    Ok(exit)
}

/// Sends SIGTERM to the run's guard process to end the run; with `now`, twice, which ends the run at once. Returns the
/// reason if guard cannot do that; `None` if it sent the signal, or if the run has ended already.
fn ask_to_end(run: &Run, now: bool) -> Option<String> {
    match run.state {
        RunState::Finished | RunState::Unfinished => return None,
        RunState::Unreadable => {
            let problem = run.problem.as_deref().unwrap_or("its transcript cannot be read");
            return Some(format!("guard cannot tell whether the run is still running: {problem}"));
        }
        RunState::Running => {}
    }
    let Some(pid) = run.supervisor_pid() else {
        // The run may have ended in the meantime.
        return run.is_running().then(|| {
            "the run's guard process is not visible here; stop the run where it was started, such as in its container"
                .to_string()
        });
    };
    // After the first signal, the command has some time to end. The second signal ends it at once.
    for _ in 0..if now { 2 } else { 1 } {
        match kill(Pid::from_raw(pid), Signal::SIGTERM) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => return Some(format!("cannot signal the run's guard process {pid}: {error}")),
        }
        if now {
            // Wait, because the kernel would merge two pending signals of the same kind.
            std::thread::sleep(POLL_INTERVAL * 5);
        }
    }
    None
}

fn await_end(run: &Run, deadline: Option<Instant>) -> Result<(), String> {
    while run.is_running() {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(
                "the run is still running; `guard stop --now` ends it at once, and --wait TIME waits longer"
                    .to_string(),
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Describes how a run ended, for a message to the user.
fn ending(run: &Run) -> String {
    let commits = run.last.as_ref().and_then(|event| event.data.get("commits")?.as_array());
    let commits = match commits.map_or(0, Vec::len) {
        0 => String::new(),
        1 => ", 1 commit received".to_string(),
        count => format!(", {count} commits received"),
    };
    format!("{}{commits}", state_text(run))
}
