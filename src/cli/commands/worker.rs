//! `guard worker`: works on the tasks of batches until a signal stops it or, with `--until-idle`, until no tasks are
//! left.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::cli::args::batch::WorkerArgs;
use crate::cli::commands::batch::{QueuePlace, load_types};
use crate::cli::commands::executor;
use crate::cli::commands::serve::INTERRUPTED;
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, note};
use crate::run::launch;
use crate::run::transcript::runs_dir;
use crate::sys::process::exit_now;
use crate::work::batch::{StopFlag, TaskContext, Worker, WorkerEnd, WorkerLock, WorkerOptions};

/// How long a worker with `--until-idle` must have had no task before it exits.
const IDLE_TIME: Duration = Duration::from_secs(2);

pub(in crate::cli) fn run(args: &WorkerArgs, _: &mut dyn Write) -> Result<Exit, Failure> {
    let place = QueuePlace::find(&args.store)?;
    // A worker that the user started also takes the lock, so that a submission starts no second worker.
    let lock = place.lock_worker()?;
    if args.local && lock.is_none() {
        return Ok(Exit::Success);
    }
    let options = WorkerOptions {
        concurrency: concurrency(args.concurrency),
        global: usize::from(args.global),
        per_repository: usize::from(args.per_repository),
        idle_exit: args.until_idle.then_some(IDLE_TIME),
    };
    let context = task_context()?;
    let stop = StopFlag::default();
    let (flag, of_handler) = (stop.clone(), lock.clone());
    let has_terminal = !args.local && io::stderr().is_terminal();
    launch::on_signals(move || {
        if flag.is_set() {
            exit_now(INTERRUPTED);
        }
        if has_terminal {
            note(
                "guard: the worker ends its tasks and gives them back to the queue; Ctrl-C again ends it at once",
            );
        }
        flag.set();
        // From now on this worker claims no tasks, so a submission must start another one.
        of_handler.iter().for_each(WorkerLock::release);
    })?;
    if !args.local {
        note(&format!(
            "guard: tasks that the worker runs at once: at most {}; Ctrl-C stops the worker",
            options.concurrency
        ));
    }
    let mut worker = Worker::new(place.open()?, context, options);
    loop {
        let end = worker.work(&stop);
        // Release the lock before checking the queue again. A process that submits tasks queues them first and checks
        // the lock afterwards, so either it finds the lock free and starts a worker, or this worker finds its tasks.
        let Some(lock) = &lock else { break };
        lock.release();
        if end == WorkerEnd::Stopped || !place.open()?.has_open_tasks()? || !lock.take_again()? {
            break;
        }
    }
    Ok(Exit::Success)
}

/// Returns the number of tasks that a worker works on at once: the option, or the number of CPUs, or 1 if guard cannot
/// determine that number.
pub(in crate::cli) fn concurrency(option: Option<u16>) -> usize {
    option.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}

/// Returns what a worker of this user needs: the executor, the task types and the directory of runs.
pub(in crate::cli) fn task_context() -> Result<TaskContext, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(TaskContext { executor: executor::executor()?, types: load_types()?, runs })
}
