//! Writes the reason for a denied exec to standard error, where the program or the person that started it looks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::request::ExecRequest;
use crate::run::supervisor::process_info::{has_not_executed, parent_of};
use crate::sys::process;
use crate::sys::process_stderr::{FileId, ProcessStderr};

/// The maximum number of directories in which guard takes a denied exec for part of one search.
const MOST_DIRECTORIES: usize = 64;

/// Programs whose child, when it cannot execute a command, prints an error itself.
const SHELLS: [&str; 11] =
    ["sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish", "csh", "tcsh"];

/// Remembers the last denied program search. A program tries an exec in each directory of PATH, but guard should record
/// and explain only one denial.
#[derive(Debug)]
pub(crate) struct DenialNotices {
    last: Option<Search>,
    init_pid: i32,
    /// The standard error of the run's program, if guard takes the program's error messages from there.
    agent_stderr: Option<FileId>,
}

/// The execs of one command that one thread has tried.
#[derive(Debug)]
struct Search {
    tid: i32,
    /// A hash of the arguments, which may take megabytes.
    arguments: u64,
    line: String,
    paths: Vec<Vec<u8>>,
}

impl Search {
    /// Returns true if an exec of this thread continues the search: the same command in a directory that the thread has
    /// not tried yet.
    fn is_continued(&self, tid: i32, exec_request: &ExecRequest, line: &str) -> bool {
        fn name(path: &[u8]) -> Option<&[u8]> {
            path.rsplit(|byte| *byte == b'/').next()
        }
        let path = &exec_request.path;
        self.tid == tid
            && self.line == line
            && self.arguments == hash_of(&exec_request.argv)
            && self.paths.len() < MOST_DIRECTORIES
            && !self.paths.contains(path)
            && self.paths.first().is_some_and(|first| name(first) == name(path))
    }
}

impl DenialNotices {
    pub(crate) fn new(init_pid: i32, agent_stderr: Option<FileId>) -> Self {
        Self { last: None, init_pid, agent_stderr }
    }

    /// Stores a denial as the last one. Returns true if it continues the search of the previous denial.
    pub(crate) fn continues_search(&mut self, tid: i32, exec_request: &ExecRequest, line: &str) -> bool {
        let last = self.last.as_mut().filter(|search| search.is_continued(tid, exec_request, line));
        if let Some(search) = last {
            search.paths.push(exec_request.path.clone());
            return true;
        }
        self.last = Some(Search {
            tid,
            arguments: hash_of(&exec_request.argv),
            line: line.to_string(),
            paths: vec![exec_request.path.clone()],
        });
        false
    }

    /// Writes the reason for a denial to the standard error of the denied thread.
    ///
    /// Many programs start others with a pipe as their standard error, and close the pipe unread if the exec fails. They
    /// show only the name of the error. So if the thread is a child that has not executed a program yet, guard also
    /// writes to the standard error of its parent, unless that is the same file.
    pub(crate) fn write(&self, tid: i32, line: &str, thread: BorrowedFd<'_>, is_waiting: impl Fn() -> bool) {
        let own = ProcessStderr::of(thread);
        let own_file = own.as_ref().map(ProcessStderr::file);
        let of_parent = self.stderr_of_parent(tid, is_waiting);
        if let Some(stderr) = own {
            stderr.write(line);
        }
        let is_other = |stderr: &ProcessStderr| {
            own_file != Some(stderr.file()) && self.agent_stderr != Some(stderr.file())
        };
        if let Some(stderr) = of_parent.filter(is_other) {
            stderr.write(line);
        }
    }

    /// Returns the standard error of the process that started a child in order to execute a program. `None` if the
    /// thread is no such child, if its parent is a shell, whose child prints the error itself, or if its parent is
    /// outside the run. `is_waiting` returns true while the thread is blocked.
    fn stderr_of_parent(&self, tid: i32, is_waiting: impl Fn() -> bool) -> Option<ProcessStderr> {
        if !has_not_executed(tid) || is_shell(tid) {
            return None;
        }
        let parent = parent_of(tid).filter(|&parent| parent > 1 && parent != self.init_pid)?;
        let thread = process::thread_fd(parent).ok()?.into_fd();
        // While the child is blocked and has this parent, the id above is that of its parent.
        if parent_of(tid) != Some(parent) || !is_waiting() {
            return None;
        }
        ProcessStderr::of(thread.as_fd())
    }
}

fn hash_of(arguments: &[Vec<u8>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    arguments.hash(&mut hasher);
    hasher.finish()
}

fn is_shell(tid: i32) -> bool {
    let program = std::fs::read_link(format!("/proc/{tid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default();
    SHELLS.iter().any(|shell| Path::new(shell) == Path::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_search_is_one_denial() {
        let request = |path: &str, argv: &[&str]| ExecRequest {
            path: path.as_bytes().to_vec(),
            argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
            environment: Vec::new(),
            cwd: "/".into(),
            chain: Vec::new(),
            loaded: Vec::new(),
        };
        let mut notices = DenialNotices::new(1, None);
        let mut continues = |tid: i32, path: &str, argv: &[&str]| {
            notices.continues_search(tid, &request(path, argv), "denied")
        };
        let push = ["git", "push"];
        assert!(!continues(7, "/usr/local/bin/git", &push));
        assert!(continues(7, "/usr/bin/git", &push));
        assert!(continues(7, "/bin/git", &push));
        for (tid, path, argv) in [
            (7, "/usr/bin/git", &push[..]),
            (8, "/bin/git", &push),
            (8, "/usr/bin/git", &["git", "fetch"]),
            (8, "/bin/hg", &["git", "fetch"]),
        ] {
            assert!(!continues(tid, path, argv), "{tid} {path} {argv:?}");
        }
        assert!(!continues(9, "/0/git", &push));
        let repeated = (1..1000).filter(|number| !continues(9, &format!("/{number}/git"), &push)).count();
        assert_eq!(repeated, 999 / MOST_DIRECTORIES, "the memory of a search is bounded");
    }
}
