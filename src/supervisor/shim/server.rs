//! The server on the control socket, where shims ask why an exec was denied.
//!
//! Any process inside the sandbox can connect and send anything. An answer of `Go` grants nothing, because
//! every exec is judged when it happens. A forged question only yields an answer; a malformed one closes the
//! connection.

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::protocol;
use super::protocol::Question;
use crate::command::Context;
use crate::policy::Policy;
use crate::supervisor::{Repositories, answer};
use crate::transcript::{EventType, Recorder};

/// Time limit for reading one question.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions answered at once; further ones wait in the accept queue.
const MOST_AT_ONCE: usize = 64;
/// Idle threads to keep.
const SPARE: usize = 2;
/// Questions larger than this are read one at a time.
const LARGE: usize = 64 << 10;

/// Inputs for answering questions.
pub struct ShimService {
    /// The policy to judge by.
    pub policy: Arc<Policy>,
    /// Shared context of every command.
    pub context: Context,
    /// Distinguishes the task's repository from others.
    pub repositories: Arc<Repositories>,
    /// Records malformed questions. Denials are recorded at the exec, not here.
    pub recorder: Recorder,
}

/// State shared by the server's threads.
struct ShimServer {
    listener: UnixListener,
    answering: ShimService,
    large: Mutex<()>,
    threads: AtomicUsize,
    waiting: AtomicUsize,
}

/// Starts the server, which runs until the process exits.
pub fn serve(listener: UnixListener, answering: ShimService) -> io::Result<()> {
    let (threads, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
    attend(&Arc::new(ShimServer { listener, answering, large: Mutex::new(()), threads, waiting }))
}

/// Starts a thread that accepts and answers questions in a loop. The thread that accepts as the last idle one starts
/// another first, so that a question waits neither for another answer nor for a thread to start.
fn attend(desk: &Arc<ShimServer>) -> io::Result<()> {
    desk.threads.fetch_add(1, Ordering::AcqRel);
    let own = desk.clone();
    let work = move || {
        loop {
            own.waiting.fetch_add(1, Ordering::AcqRel);
            let accepted = own.listener.accept();
            let was_last = own.waiting.fetch_sub(1, Ordering::AcqRel) == 1;
            let Ok((stream, _)) = accepted else {
                // Out of descriptors: retry shortly.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if was_last && own.threads.load(Ordering::Acquire) < MOST_AT_ONCE {
                // If this fails, the next question waits until this one is answered.
                let _ = attend(&own);
            }
            let _ = converse(&own, stream);
            if own.waiting.load(Ordering::Acquire) >= SPARE {
                own.threads.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    };
    let made = std::thread::Builder::new().name("shim".to_string()).stack_size(2 << 20).spawn(work);
    if made.is_err() {
        desk.threads.fetch_sub(1, Ordering::AcqRel);
    }
    made.map(drop)
}

/// Binds a unix socket at a path of any length, through a descriptor of its directory.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd;
    let bad = || io::Error::from(io::ErrorKind::InvalidInput);
    let folder = std::fs::File::open(path.parent().ok_or_else(bad)?)?;
    let name = path.file_name().ok_or_else(bad)?;
    UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
}

/// A reader with a deadline, however slowly the bytes arrive.
struct Punctual<'s> {
    stream: &'s UnixStream,
    until: Instant,
}

impl Read for Punctual<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        (&mut &*self.stream).read(into)
    }
}

fn converse(answering: &ShimServer, mut stream: UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut input = Punctual { stream: &stream, until: Instant::now() + PATIENCE };
    // Large questions are read one at a time, so that many of them need no more memory than one.
    let mut alone: Option<MutexGuard<'_, ()>> = None;
    let question = protocol::read_head(&mut input).and_then(|length| {
        if length > LARGE {
            alone = Some(answering.large.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Question::read_body(&mut input, length)
    });
    let question = match question {
        Ok(question) => question,
        Err(error) => {
            let data = serde_json::json!({ "problem": error.to_string() });
            answering.answering.recorder.record(
                EventType::ControlGarbage,
                "something that is no question came to the control socket",
                &data,
            );
            return Err(error);
        }
    };
    let ShimService { policy, context, repositories, .. } = &answering.answering;
    let answer = answer(policy, context, Some(repositories.as_ref()), &question);
    answer.write(&mut stream)
}
