//! The socket on which shims ask why something was refused.
//!
//! Whoever is inside can connect here and say anything. An answer of *go* gives no right: what is started is judged when it
//! starts. So a forged question costs its asker an answer, and a malformed one its connection.

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

/// A question that takes longer to be asked than this is none.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions at once; more wait in the kernel.
const MOST_AT_ONCE: usize = 64;
/// Threads that stay when there is nothing to answer.
const SPARE: usize = 2;
/// Larger questions are read one at a time.
const LARGE: usize = 64 << 10;

/// What the answers are made from.
pub struct ShimService {
    /// The policy.
    pub policy: Arc<Policy>,
    /// What surrounds every command.
    pub context: Context,
    /// Tells the task's repository from others.
    pub repositories: Arc<Repositories>,
    /// Where it is written down that something else than questions came. What is refused is written down where it starts.
    pub recorder: Recorder,
}

/// The answers, the queue of large questions, and who is there to answer.
struct ShimServer {
    listener: UnixListener,
    answering: ShimService,
    large: Mutex<()>,
    threads: AtomicUsize,
    waiting: AtomicUsize,
}

/// Begins to answer. Ends with the process.
pub fn serve(listener: UnixListener, answering: ShimService) -> io::Result<()> {
    let (threads, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
    attend(&Arc::new(ShimServer { listener, answering, large: Mutex::new(()), threads, waiting }))
}

/// Another thread that waits for a question, answers it, and waits again. Who has one to answer sees to it that somebody
/// else waits: a question never waits for another's answer, nor for a thread to be made.
fn attend(desk: &Arc<ShimServer>) -> io::Result<()> {
    desk.threads.fetch_add(1, Ordering::AcqRel);
    let own = desk.clone();
    let work = move || {
        loop {
            own.waiting.fetch_add(1, Ordering::AcqRel);
            let accepted = own.listener.accept();
            let was_last = own.waiting.fetch_sub(1, Ordering::AcqRel) == 1;
            let Ok((stream, _)) = accepted else {
                // Out of descriptors: a moment later there may be some.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if was_last && own.threads.load(Ordering::Acquire) < MOST_AT_ONCE {
                // Without another thread the next question waits for this one.
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

/// A new socket at a path of any length.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd;
    let bad = || io::Error::from(io::ErrorKind::InvalidInput);
    let folder = std::fs::File::open(path.parent().ok_or_else(bad)?)?;
    let name = path.file_name().ok_or_else(bad)?;
    UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
}

/// A reader that is done at a certain time, however slowly the bytes come.
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
    // Large questions wait for each other, so that many of them cost no more memory than one.
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
