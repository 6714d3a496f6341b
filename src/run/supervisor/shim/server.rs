//! The server on the control socket, where shims ask why an exec was denied.
//!
//! Any process inside the sandbox can connect and send anything. An answer of `Allow` grants nothing, because the
//! supervisor judges every exec when it happens. A forged question gets an answer and has no other effect. If a
//! question is malformed, the server records that and closes the connection.

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::protocol;
use super::protocol::Question;
use crate::judge::command::Context;
use crate::judge::policy::Policy;
use crate::run::supervisor::{Repositories, answer};
use crate::run::transcript::{EventType, Recorder};

/// The maximum time for reading one question, and for one write of its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of worker threads; further connections wait in the accept queue.
const MAX_WORKERS: usize = 64;
/// A worker exits if this many other workers are already idle.
const SPARE_WORKERS: usize = 2;
/// The size in bytes above which a question is large. The server reads only one large question at a time, to limit its
/// memory use.
const LARGE_QUESTION: usize = 64 << 10;

/// What the server needs in order to answer questions.
pub struct ShimService {
    pub policy: Arc<Policy>,
    /// Facts about the run that the server needs to judge a command, such as the working tree and the home directory.
    pub context: Context,
    /// Finds out whether a git command uses the repository that the run works on, or a different one.
    pub repositories: Arc<Repositories>,
    /// Records malformed questions. The server does not record denials, because the supervisor has recorded them at the
    /// exec.
    pub recorder: Recorder,
}

/// State that the worker threads share.
struct ShimServer {
    listener: UnixListener,
    service: ShimService,
    large_question_lock: Mutex<()>,
    threads: AtomicUsize,
    waiting: AtomicUsize,
}

/// Starts the server with one worker thread. The server runs until the process exits.
pub fn serve(listener: UnixListener, service: ShimService) -> io::Result<()> {
    let (threads, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let large_question_lock = Mutex::new(());
    start_worker(&Arc::new(ShimServer { listener, service, large_question_lock, threads, waiting }))
}

/// Starts a worker thread, which accepts connections and answers questions in a loop. When the last idle worker accepts
/// a connection, it starts a new worker before it answers, so that the next question need not wait.
fn start_worker(server: &Arc<ShimServer>) -> io::Result<()> {
    server.threads.fetch_add(1, Ordering::AcqRel);
    let worker_server = server.clone();
    let work = move || {
        loop {
            worker_server.waiting.fetch_add(1, Ordering::AcqRel);
            let accepted = worker_server.listener.accept();
            let was_last = worker_server.waiting.fetch_sub(1, Ordering::AcqRel) == 1;
            let Ok((stream, _)) = accepted else {
                // guard probably has no free descriptor: retry shortly.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if was_last && worker_server.threads.load(Ordering::Acquire) < MAX_WORKERS {
                // If the new worker cannot start, the next question waits until this worker has answered its question.
                let _ = start_worker(&worker_server);
            }
            let _ = answer_question(&worker_server, stream);
            if worker_server.waiting.load(Ordering::Acquire) >= SPARE_WORKERS {
                worker_server.threads.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("shim".to_string()).stack_size(2 << 20).spawn(work);
    if spawned.is_err() {
        server.threads.fetch_sub(1, Ordering::AcqRel);
    }
    spawned.map(drop)
}

/// Binds a unix socket at a path. The path may be longer than a socket address allows, because guard binds the socket
/// through a descriptor of its directory.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd;
    let bad = || io::Error::from(io::ErrorKind::InvalidInput);
    let directory = std::fs::File::open(path.parent().ok_or_else(bad)?)?;
    let name = path.file_name().ok_or_else(bad)?;
    UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

/// Reads from a stream with one deadline for all reads together.
struct DeadlineReader<'s> {
    stream: &'s UnixStream,
    deadline: Instant,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        (&mut &*self.stream).read(into)
    }
}

fn answer_question(server: &ShimServer, mut stream: UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut input = DeadlineReader { stream: &stream, deadline: Instant::now() + TIMEOUT };
    // Read large questions one at a time, so that many of them need no more memory than one.
    let mut large_question_guard: Option<MutexGuard<'_, ()>> = None;
    let question = protocol::read_head(&mut input).and_then(|length| {
        if length > LARGE_QUESTION {
            large_question_guard =
                Some(server.large_question_lock.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Question::read_body(&mut input, length)
    });
    let question = match question {
        Ok(question) => question,
        Err(error) => {
            let data = serde_json::json!({ "problem": error.to_string() });
            server.service.recorder.record(
                EventType::ControlGarbage,
                "a process of the run sent a malformed message to the shims' control socket",
                &data,
            );
            return Err(error);
        }
    };
    let ShimService { policy, context, repositories, .. } = &server.service;
    let answer = answer(policy, context, Some(repositories.as_ref()), &question);
    answer.write(&mut stream)
}
