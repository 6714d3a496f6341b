//! Tells a process on its standard error why guard refused its connection.
//!
//! Many clients, such as curl and git, show only the status of the proxy's response, not its text. So guard also writes
//! the text to the standard error of the process that made the request, once for each process and host.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::sys::process;
use crate::sys::process_stderr::{FileId, ProcessStderr};

/// The maximum number of pairs of a process and a host that guard remembers. When it is reached, guard forgets all of
/// them.
const MOST_TOLD: usize = 4096;

/// The processes that guard has told about a refusal.
#[derive(Debug, Default)]
pub struct RefusalNotices {
    /// The standard error of the run's program, if guard takes the program's error messages from there.
    agent_stderr: OnceLock<FileId>,
    told: Mutex<HashSet<(i32, String)>>,
}

impl RefusalNotices {
    /// Makes guard write no notices to this file: the standard error of an agent whose error messages guard interprets.
    /// Programs that the agent starts with another standard error still get notices.
    pub fn set_agent_stderr(&self, file: FileId) {
        let _ = self.agent_stderr.set(file);
    }

    pub fn agent_stderr(&self) -> Option<FileId> {
        self.agent_stderr.get().copied()
    }

    /// Returns the standard error of a thread, to which guard should write why it refused `subject`, such as a host.
    /// `None` if guard has told the thread's process already, or must not write there.
    pub fn stderr_for(&self, tid: i32, thread: BorrowedFd<'_>, subject: &str) -> Option<ProcessStderr> {
        let process = process::process_of(tid).ok()?;
        // The duplicate shows that the thread still exists, so that the id above is that of its process.
        let stderr = ProcessStderr::of(thread).filter(|stderr| Some(stderr.file()) != self.agent_stderr())?;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        told.insert((process, subject.to_string())).then_some(stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_told_once_about_each_host_and_the_memory_is_bounded() {
        let mut child = Command::new("sleep").arg("60").stderr(Stdio::piped()).spawn().expect("sleep starts");
        let tid = child.id() as i32;
        let thread = process::thread_fd(tid).expect("the child exists").into_fd();
        let notices = RefusalNotices::default();
        let tells = |host: &str| notices.stderr_for(tid, thread.as_fd(), host);
        let first = tells("a.example").expect("it is told once");
        assert!(tells("a.example").is_none());
        for number in 0..2 * MOST_TOLD {
            assert!(tells(&format!("{number}.example")).is_some());
        }
        assert!(notices.told.lock().expect("not poisoned").len() <= MOST_TOLD);
        notices.set_agent_stderr(first.file());
        assert!(notices.stderr_for(tid, thread.as_fd(), "b.example").is_none());
        let _ = child.kill();
        let _ = child.wait();
        assert!(notices.stderr_for(tid, thread.as_fd(), "c.example").is_none(), "the process is gone");
    }
}
