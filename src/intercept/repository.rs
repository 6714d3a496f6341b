//! Which repository git would work in: the task's, or one that somebody made inside the run's own places.
//!
//! A judgement needs to know only where the task's rules deny something; so nothing is looked at before that. What is
//! found decides which rules hold, nothing else: the kernel's layers hold in every repository.

use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::command::{Analysis, Context, Request};
use crate::decide::{Verdict, judge};
use crate::policy::{Action, Policy};
use crate::sys::fs::{Walk, open_in};

/// Looks for repositories as git would, in the world that a run sees.
pub struct Repositories {
    /// The root of what the run sees, once one of its programs is about to start.
    root: OnceLock<OwnedFd>,
    has_view: bool,
    /// The task's working tree.
    worktree: PathBuf,
    /// The task's git folder, where it has one of its own.
    git_folder: Option<PathBuf>,
    /// Where the run may write.
    writable: Vec<PathBuf>,
}

/// Repositories of one command that are looked up; more are not worth the time.
const MOST: usize = 16;
/// A `.git` file that is longer is none.
const LONGEST_POINTER: u64 = 8192;

impl Repositories {
    /// The repositories a run can see.
    pub fn new(
        has_view: bool,
        worktree: PathBuf,
        git_folder: Option<PathBuf>,
        writable: Vec<PathBuf>,
    ) -> Self {
        Self { root: OnceLock::new(), has_view, worktree, git_folder, writable }
    }

    /// Looks through the eyes of a thread of the run from now on: all have the same root.
    pub(super) fn meet(&self, tid: i32) {
        if self.root.get().is_some() {
            return;
        }
        let place = if self.has_view { format!("/proc/{tid}/root") } else { "/".to_string() };
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // Without it nothing is found, and every repository is judged as the task's.
        if let Ok(root) = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(place) {
            let _ = self.root.set(root.into());
        }
    }

    /// Judges a command, where git in other repositories is subject to their own rules.
    pub fn judge(&self, policy: &Policy, request: &Request, context: &Context) -> (Verdict, Analysis) {
        let (mut verdict, mut analysis) = judge(policy, request, context);
        if policy.git_other_action.action == Action::Deny {
            return (verdict, analysis);
        }
        let mut wider = context.clone();
        for _ in 0..MOST {
            if verdict.action() == Action::Allow || !self.widen(&mut wider, &verdict, &analysis) {
                break;
            }
            (verdict, analysis) = judge(policy, request, &wider);
        }
        (verdict, analysis)
    }

    /// Adds to the context what is known about the repository that what was refused would have worked in: false when
    /// that changes nothing.
    fn widen(&self, context: &mut Context, verdict: &Verdict, analysis: &Analysis) -> bool {
        let intent = verdict.intent.and_then(|index| analysis.intents.get(index));
        let Some(git) = intent.and_then(|intent| intent.git.as_ref()) else { return false };
        let Some(place) = &git.place else {
            // Every command of a run is judged when it starts, in the folder it then has.
            return !std::mem::replace(&mut context.judged_again, true);
        };
        // By the name the command has for it: another name may lead somewhere else.
        let is_new = !context.other_repositories.contains(place);
        let path = Path::new(OsStr::from_bytes(place));
        // A folder that a script makes before it comes to this command: the command is judged again when it does.
        let is_to_come = intent.is_some_and(|intent| intent.parent.is_some()) && self.is_to_come(path);
        if is_new && (is_to_come || self.is_other(path, git.makes_repository)) {
            context.other_repositories.push(place.clone());
            return true;
        }
        false
    }

    /// Whether a place inside the run's own does not exist yet.
    fn is_to_come(&self, place: &Path) -> bool {
        let is_missing = self.open(place, true).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        is_missing && self.real(place).is_some_and(|real| self.is_own(&real))
    }

    /// Whether git at a place works in, or makes, a repository that is not the task's.
    fn is_other(&self, place: &Path, makes: bool) -> bool {
        let Some(real) = self.real(place) else { return false };
        if self.git_folder.as_ref().is_some_and(|folder| real.starts_with(folder)) {
            return false;
        }
        if makes && real != self.worktree && self.is_own(&real) {
            return true;
        }
        for level in real.ancestors() {
            if level == self.worktree || !self.is_own(level) {
                return false;
            }
            let dot_git = level.join(".git");
            match self.kind(&dot_git) {
                Some(Kind::Folder) => return true,
                Some(Kind::File) => return self.is_pointer_elsewhere(&dot_git),
                // git would follow it to who knows where.
                Some(Kind::Else) => return false,
                None => {}
            }
            let is_bare = [("HEAD", Kind::File), ("objects", Kind::Folder), ("refs", Kind::Folder)]
                .iter()
                .all(|(name, kind)| self.kind(&level.join(name)) == Some(*kind));
            if is_bare || self.writable.iter().any(|root| root == level) {
                // A place of the run's own without any repository: whatever git makes there is new.
                return true;
            }
        }
        false
    }

    fn is_own(&self, path: &Path) -> bool {
        self.writable.iter().any(|root| path.starts_with(root))
    }

    /// Where a path really leads; the part that does not exist yet as it is written.
    fn real(&self, place: &Path) -> Option<PathBuf> {
        for level in place.ancestors() {
            match self.open(level, true) {
                Ok(fd) => {
                    let found = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
                    let rest = place.strip_prefix(level).ok()?;
                    return Some(if rest.as_os_str().is_empty() { found } else { found.join(rest) });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn open(&self, path: &Path, follow: bool) -> io::Result<OwnedFd> {
        let root = self.root.get().ok_or(io::ErrorKind::NotConnected)?;
        let walk = if self.has_view { Walk::InRoot } else { Walk::NoMagic };
        open_in(root.as_fd(), &CString::new(path.as_os_str().as_bytes())?, walk, follow)
    }

    fn kind(&self, path: &Path) -> Option<Kind> {
        let fd = self.open(path, false).ok()?;
        let found = nix::sys::stat::fstat(&fd).ok()?;
        Some(match found.st_mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Folder,
            _ => Kind::Else,
        })
    }

    /// Whether a `.git` file leads to a git folder that is not the task's.
    fn is_pointer_elsewhere(&self, file: &Path) -> bool {
        let read = || -> io::Result<Vec<u8>> {
            let fd = self.open(file, false)?;
            // It was a plain file a moment ago; should it be a pipe by now, nobody waits for it.
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
            let mut text = Vec::new();
            opened.take(LONGEST_POINTER).read_to_end(&mut text)?;
            Ok(text)
        };
        let Ok(text) = read() else { return false };
        let Some(target) = text.strip_prefix(b"gitdir:").map(|rest| rest.trim_ascii()) else { return false };
        let Some(folder) = file.parent() else { return false };
        let target = self.real(&folder.join(OsStr::from_bytes(target)));
        target.is_some_and(|target| {
            self.is_own(&target) && self.git_folder.as_ref().is_none_or(|folder| !target.starts_with(folder))
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
    Else,
}
