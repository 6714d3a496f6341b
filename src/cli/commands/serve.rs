//! `guard serve`: serves batches and conversations over HTTP, and works on the tasks of batches.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::cli::args::batch::{GLOBAL, PER_REPOSITORY, ServeArgs};
use crate::cli::commands::batch::{QueuePlace, load_types};
use crate::cli::commands::loopback::{Loopback, roots};
use crate::cli::commands::worker::{concurrency, task_context};
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, note};
use crate::run::launch;
use crate::servers::http::{Listener, Socket, Stop};
use crate::servers::serve::{ConversationService, ServeConfig, serve};
use crate::sys::process::exit_now;
use crate::work::batch::{StopFlag, TaskTypes, Worker, WorkerLock, WorkerOptions};

/// The exit code of guard after a second signal.
pub(in crate::cli) const INTERRUPTED: i32 = 130;

pub(in crate::cli) fn run(args: &ServeArgs, _: &mut dyn Write) -> Result<Exit, Failure> {
    let roots = roots(&args.root)?;
    let types = load_types()?;
    let accepted_types = accepted_types(args, &types)?;
    let place = Arc::new(QueuePlace::find(&args.store)?);
    // Open the queue once now, so that a queue that cannot be used is an error at the start and not at the first
    // request.
    drop(place.open()?);
    let listener = listen(args, &place)?;
    let (stop, worker_stop) = (Stop::default(), StopFlag::default());
    // While this process holds the lock, no submission on this machine starts another worker.
    let lock = if args.no_worker { None } else { place.lock_worker()? };
    stop_on_signals(&stop, &worker_stop, lock)?;
    let worker = if args.no_worker { None } else { Some(start_worker(args, &place, &stop, &worker_stop)?) };
    let conversations = Some(ConversationService {
        conversations: crate::cli::commands::conversation_store::conversations()?,
        executor: crate::cli::commands::executor::executor()?,
    });
    let work = crate::cli::commands::control::work_stores(place)?;
    let open_queue = work.open_queue.clone();
    let config = ServeConfig { open_queue, types, accepted_types, roots, conversations, work };
    let served = serve(config, listener, &stop);
    worker_stop.set();
    if worker.is_some_and(|worker| worker.join().is_err()) {
        return Err(Failure::usage(
            "the worker of the server ended unexpectedly",
            "start the server again; the tasks are still in the queue",
        ));
    }
    served?;
    Ok(Exit::Success)
}

/// Returns the names of the task types given with `--type`; `None` means all types. Fails if there is no type of a
/// given name.
fn accepted_types(args: &ServeArgs, types: &TaskTypes) -> Result<Option<BTreeSet<String>>, Failure> {
    for name in &args.types {
        types.get(name).map_err(|failure| {
            Failure::usage(format!("--type: {}", failure.message), "`guard batch types` describes the types")
        })?;
    }
    Ok((!args.types.is_empty()).then(|| args.types.iter().cloned().collect()))
}

/// Listens on the address or the socket of the options, and prints to standard error where the server listens.
fn listen(args: &ServeArgs, place: &QueuePlace) -> Result<Listener, Failure> {
    if let Some(path) = &args.socket {
        let socket = Socket::on(path)
            .map_err(|problem| Failure::usage(format!("--socket: {problem}"), "choose another path"))?;
        note(&format!("guard: the server listens on {}; Ctrl-C stops it", path.display()));
        return Ok(Listener::Socket(socket));
    }
    let own_file = place.directory.with_file_name("serve-token");
    let Loopback { listening, token, token_file } =
        Loopback::listen("--listen", &args.listen, args.token_file.as_deref(), own_file)?;
    note(&format!(
        "guard: the server listens on {}; the token is in {}; Ctrl-C stops it",
        listening.url(""),
        token_file.display()
    ));
    Ok(Listener::Loopback(listening, token))
}

/// Starts a worker in a thread. When the worker ends, even by a panic, the server stops.
fn start_worker(
    args: &ServeArgs,
    place: &QueuePlace,
    stop: &Stop,
    worker_stop: &StopFlag,
) -> Result<JoinHandle<()>, Failure> {
    let options = WorkerOptions {
        concurrency: concurrency(args.concurrency),
        global: usize::from(GLOBAL),
        per_repository: usize::from(PER_REPOSITORY),
        idle_exit: None,
    };
    let mut worker = Worker::new(place.open()?, task_context()?, options);
    let (stop, worker_stop) = (StopOnDrop(stop.clone()), worker_stop.clone());
    let work = move || {
        worker.work(&worker_stop);
        drop(stop);
    };
    Ok(std::thread::Builder::new().name("worker".to_string()).spawn(work)?)
}

/// Stops the server when this value is dropped, even by a panic.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Stops the server and the worker at the first signal, and releases the worker's lock. Exits with code 130 at the
/// second signal.
fn stop_on_signals(stop: &Stop, worker_stop: &StopFlag, lock: Option<WorkerLock>) -> io::Result<()> {
    let (stop, worker_stop) = (stop.clone(), worker_stop.clone());
    let is_second = AtomicBool::new(false);
    launch::on_signals(move || {
        if is_second.swap(true, Ordering::Relaxed) {
            exit_now(INTERRUPTED);
        }
        stop.set();
        worker_stop.set();
        // From now on the worker claims no tasks, so a submission must start another one.
        lock.iter().for_each(WorkerLock::release);
    })
}
