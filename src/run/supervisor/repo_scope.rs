//! Finds out which repository a git command would use: the run's repository, which is the one that the run works on, or
//! another one, which the agent created in a writable directory.
//!
//! The rules for the run's repository do not apply to repositories that the agent creates itself. So if those rules
//! deny a command, this module finds the command's repository as git would, compares the directory of its refs with
//! that of the run's repository, and judges the command again with the result. A repository that this module does not
//! understand counts as the run's repository. The result only selects the rules; Landlock and seccomp apply in every
//! repository.
//!
//! Known limit: the agent can change the files of the repositories that it created. guard never caches a verdict that
//! depends on them, and judges again at the exec stop (`exec/verify.rs`), but git searches for its repository a moment
//! later. Another process of the agent that swaps files in that moment, or a Landlock domain under which git cannot
//! read a nested repository, can still lead git to the run's repository. The agent gains nothing by that, because it
//! can write refs there without git: guard receives only one branch, which must descend from the base, and the exec is
//! in the transcript.

use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use crate::judge::command::{Analysis, Context, Request};
use crate::judge::decide::{Verdict, judge};
use crate::judge::policy::{Action, Policy};
use crate::sys::fs::{Walk, open_in};

/// Searches for repositories as git does, in the file system that the run can access.
pub struct Repositories {
    /// The root directory of the run, set when the run makes its first exec.
    root: OnceLock<OwnedFd>,
    has_mount_namespace: bool,
    /// The run's worktree or, if it has none, its working directory.
    worktree: PathBuf,
    /// The git directory of the repository that the run works on; `None` if there is none.
    git_directory: Option<PathBuf>,
    writable: Vec<PathBuf>,
}

/// The maximum number of repositories for which guard searches for one command.
const MAX_REPOSITORIES: usize = 16;
/// The maximum size of a `.git` file, `commondir` or `HEAD`, in bytes. guard treats a longer file as invalid.
const MAX_POINTER_FILE: u64 = 8192;
/// The maximum number of entries below `refs` that guard checks. A repository with more entries counts as the run's
/// repository.
const MAX_REFS: usize = 4096;

/// A verdict, and the facts on which it is based.
pub struct Judged {
    pub verdict: Verdict,
    pub analysis: Analysis,
    /// True if the verdict depends on the current state of a repository. guard must not cache such a verdict.
    pub depends_on_repository: bool,
}

impl Repositories {
    pub fn new(
        has_mount_namespace: bool,
        worktree: PathBuf,
        git_directory: Option<PathBuf>,
        writable: Vec<PathBuf>,
    ) -> Self {
        Self { root: OnceLock::new(), has_mount_namespace, worktree, git_directory, writable }
    }

    /// Makes all searches use the root directory of this thread. All threads of a run have the same root, so only the
    /// first call has an effect.
    pub(crate) fn set_root_from(&self, tid: i32) {
        if self.root.get().is_some() {
            return;
        }
        let place = if self.has_mount_namespace { format!("/proc/{tid}/root") } else { "/".to_string() };
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // Without a root this search finds no repository, and guard judges every command as if it used the run's
        // repository.
        if let Ok(root) = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(place) {
            let _ = self.root.set(root.into());
        }
    }

    /// Judges a command. If a git command uses a repository other than the one that the run works on, the policy's
    /// rules for other repositories apply. If the policy denies git commands in other repositories by default, does not
    /// search for the repository.
    pub fn judge(&self, policy: &Policy, request: &Request, context: &Context) -> Judged {
        let (mut verdict, mut analysis) = judge(policy, request, context);
        let mut depends_on_repository = false;
        if policy.git_other_action.action == Action::Deny {
            return Judged { verdict, analysis, depends_on_repository };
        }
        let mut extended = context.clone();
        for _ in 0..MAX_REPOSITORIES {
            if verdict.action() == Action::Allow
                || !self.add_repository_facts(&mut extended, &verdict, &analysis)
            {
                break;
            }
            depends_on_repository = true;
            (verdict, analysis) = judge(policy, request, &extended);
        }
        Judged { verdict, analysis, depends_on_repository }
    }

    /// Adds to the context what guard finds out about the repository of the denied git command: that it is not the
    /// run's repository or, if guard does not know the command's directory yet, that guard will judge the command again
    /// when a process executes it. Returns true if the context has changed, so that the caller must judge the command
    /// again.
    fn add_repository_facts(&self, context: &mut Context, verdict: &Verdict, analysis: &Analysis) -> bool {
        let intent = verdict.intent.and_then(|index| analysis.intents.get(index));
        let Some(git) = intent.and_then(|intent| intent.git.as_ref()) else { return false };
        let Some(place) = &git.place else {
            // guard does not know the directory yet. When a process executes the command, guard judges it again with
            // the actual directory.
            return !std::mem::replace(&mut context.judged_again, true);
        };
        // Compare the path in the form in which the command contains it: another spelling may lead to a different
        // directory.
        if context.other_repositories.contains(place) {
            return false;
        }
        let Some(path) = &git.unresolved_place else { return false };
        let path = Path::new(OsStr::from_bytes(path));
        // A script may create the directory before it runs this command. guard judges the command again at its exec.
        let will_be_created =
            intent.is_some_and(|intent| intent.parent.is_some()) && self.will_be_created(path);
        let is_other = will_be_created || self.is_other(path, git.names_git_dir, git.makes_repository);
        if is_other {
            context.other_repositories.push(place.clone());
        }
        is_other
    }

    /// Returns true if a path is in a directory that the run may write to, and does not exist yet.
    fn will_be_created(&self, place: &Path) -> bool {
        let is_missing = self.open(place, true).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        is_missing && self.resolve(place).is_some_and(|real| self.is_in_writable_directory(&real))
    }

    /// Returns true if git, started for this path, would use or create a repository other than the one that the run
    /// works on. `names_git_dir` is true if the path is that of a git directory, and `makes` if the command creates a
    /// repository.
    fn is_other(&self, place: &Path, names_git_dir: bool, makes: bool) -> bool {
        let Some(real) = self.resolve(place) else { return false };
        let is_in_git_directory = self.git_directory.as_ref().is_some_and(|tasks| real.starts_with(tasks));
        if !self.is_in_writable_directory(&real) || is_in_git_directory {
            return false;
        }
        match (names_git_dir, makes) {
            (true, _) => match self.kind(&real) {
                Ok(Kind::Directory) => self.is_other_git_dir(&real),
                Ok(Kind::File) => self.points_to_other_repository(&real),
                Ok(Kind::Other) => false,
                Err(error) => makes && error.kind() == io::ErrorKind::NotFound,
            },
            // `git init` on an existing repository reinitialises it, wherever its parts lie.
            (false, true) => real != self.worktree && self.repository_at(&real).unwrap_or(true),
            (false, false) => self.discovers_other(&real),
        }
    }

    /// Returns true if git, searching upwards from a directory, finds no repository, or one other than the repository
    /// that the run works on.
    fn discovers_other(&self, from: &Path) -> bool {
        for level in from.ancestors() {
            if level == self.worktree {
                return false;
            }
            // This is a repository of the user that contains the run's directories: the agent did not create it
            // and cannot write to it.
            let dot_git = level.join(".git");
            if !self.is_in_writable_directory(level) && matches!(self.kind(&dot_git), Ok(Kind::Directory)) {
                return self.is_unrelated(&dot_git);
            }
            if let Some(is_other) = self.repository_at(level) {
                return is_other;
            }
        }
        // There is no repository. GIT_CEILING_DIRECTORIES, file system boundaries and safe.bareRepository can end git's
        // search before git has searched all directories that this function has searched, but git then fails with an
        // error.
        true
    }

    /// Returns true if guard is certain that the repository at this directory (a working tree or a bare repository) is
    /// not the one that the run works on. Returns false if it is that one, or if guard is not certain, because the
    /// repository is incomplete, contains symlinks, or is not in writable directories. Returns `None` if there is
    /// neither a `.git` nor a `HEAD`. Git skips an incomplete `.git`, but only an attacker has reason to create one.
    fn repository_at(&self, level: &Path) -> Option<bool> {
        let is_missing = |found: &io::Result<Kind>| {
            found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let dot_git = level.join(".git");
        match self.kind(&dot_git) {
            Ok(Kind::Directory) => Some(self.is_other_git_dir(&dot_git)),
            Ok(Kind::File) => Some(self.points_to_other_repository(&dot_git)),
            found if !is_missing(&found) => Some(false),
            // Git treats no directory without `HEAD` as a repository.
            _ if is_missing(&self.kind(&level.join("HEAD"))) => None,
            _ => Some(self.is_other_git_dir(level)),
        }
    }

    /// Returns true if a directory is a complete git directory that lies entirely in directories that the run may write
    /// to, and shares nothing with the git directory of the run's repository. The conditions for completeness are those
    /// of git (`is_git_directory`), but symlinks are not accepted.
    fn is_other_git_dir(&self, git_dir: &Path) -> bool {
        let common_dir = match self.read_small(&git_dir.join("commondir")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => git_dir.to_path_buf(),
            Err(_) => return false,
            Ok(text) => {
                let target = text.trim_ascii_end();
                // Git strips line ends only. A path that ends with other white space is suspicious.
                if target.is_empty() || target.contains(&0) || strip_newlines(&text) != target {
                    return false;
                }
                let Some(real) = self.resolve(&git_dir.join(OsStr::from_bytes(target))) else { return false };
                // Git never creates a `commondir` that leads to another `commondir`.
                let leads_on = self.kind(&real.join("commondir"));
                if !leads_on.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                    return false;
                }
                real
            }
        };
        let is_searchable = |path: &Path| {
            self.open(path, false).is_ok_and(|fd| {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let flags = (nix::unistd::AccessFlags::X_OK, nix::fcntl::AtFlags::AT_EACCESS);
                nix::unistd::faccessat(nix::fcntl::AT_FDCWD, path.as_str(), flags.0, flags.1).is_ok()
            })
        };
        let is_directory =
            |path: &Path| matches!(self.kind(path), Ok(Kind::Directory)) && is_searchable(path);
        let has_head = self.read_small(&git_dir.join("HEAD")).is_ok_and(|text| is_head(&text));
        has_head
            && [git_dir, &common_dir].iter().all(|path| {
                self.is_in_writable_directory(path) && self.is_unrelated(path) && self.has_no_links(path)
            })
            && is_directory(&common_dir.join("objects"))
            && is_directory(&common_dir.join("refs"))
    }

    /// Returns true if a directory is neither the git directory of the run's repository, nor inside it, nor one of its
    /// ancestors.
    fn is_unrelated(&self, path: &Path) -> bool {
        let Some(tasks) = &self.git_directory else { return true };
        let identity = |path: &Path| {
            let found = nix::sys::stat::fstat(self.open(path, true).ok()?).ok()?;
            Some((found.st_dev, found.st_ino))
        };
        // Compare by identity too: a mount can show one directory at two paths.
        let is_same = identity(tasks).is_some_and(|tasks| identity(path) == Some(tasks));
        !path.starts_with(tasks) && !tasks.starts_with(path) && !is_same
    }

    /// Returns true if the parts of a git directory that git writes to are regular files and directories, and not
    /// symlinks. Returns false if there are more than [`MAX_REFS`] entries below `refs`, or if guard cannot list them.
    fn has_no_links(&self, git_dir: &Path) -> bool {
        let parts =
            ["HEAD", "config", "config.worktree", "index", "logs", "objects", "packed-refs", "reftable"];
        if parts.iter().any(|part| matches!(self.kind(&git_dir.join(part)), Ok(Kind::Other))) {
            return false;
        }
        let mut left = MAX_REFS;
        let mut directories = vec![git_dir.join("refs")];
        while let Some(directory) = directories.pop() {
            let fd = match self.open(&directory, false) {
                Ok(fd) => fd,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => return false,
            };
            // A symlink opened with `O_PATH` cannot be listed.
            let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd())) else {
                return false;
            };
            for entry in entries {
                let Some(entry) = entry.ok().filter(|_| left > 0) else { return false };
                left -= 1;
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(directory.join(entry.file_name())),
                    Ok(kind) if kind.is_file() => {}
                    _ => return false,
                }
            }
        }
        true
    }

    fn is_in_writable_directory(&self, path: &Path) -> bool {
        self.writable.iter().any(|root| path.starts_with(root))
    }

    /// Resolves a path as the run sees it. The part of the path that does not exist yet stays as written. `None` if
    /// guard cannot open the existing part, or if the missing part contains `..`.
    fn resolve(&self, place: &Path) -> Option<PathBuf> {
        for level in place.ancestors() {
            match self.open(level, true) {
                Ok(fd) => {
                    let found = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
                    let rest = place.strip_prefix(level).ok()?;
                    // guard cannot resolve `..` below a directory that does not exist.
                    if rest.components().any(|part| !matches!(part, Component::Normal(_))) {
                        return None;
                    }
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
        let walk = if self.has_mount_namespace { Walk::InRoot } else { Walk::NoMagic };
        open_in(root.as_fd(), &CString::new(path.as_os_str().as_bytes())?, walk, follow)
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let fd = self.open(path, false)?;
        let found = nix::sys::stat::fstat(&fd)?;
        Ok(match found.st_mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            _ => Kind::Other,
        })
    }

    /// Reads a regular file of at most [`MAX_POINTER_FILE`] bytes, with the agent's access rights. Fails for any other
    /// file.
    fn read_small(&self, file: &Path) -> io::Result<Vec<u8>> {
        let fd = self.open(file, false)?;
        if nix::sys::stat::fstat(&fd)?.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let mut text = Vec::new();
        opened.take(MAX_POINTER_FILE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_POINTER_FILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
    }

    /// Returns true if a `.git` file points to the git directory of a repository other than the one that the run works
    /// on.
    fn points_to_other_repository(&self, file: &Path) -> bool {
        let Ok(text) = self.read_small(file) else { return false };
        // Exactly one space: a second one is part of the path.
        let Some(target) = strip_newlines(&text).strip_prefix(b"gitdir: ") else { return false };
        if target.is_empty() || target.contains(&0) {
            return false;
        }
        let Some(directory) = file.parent() else { return false };
        let target = self.resolve(&directory.join(OsStr::from_bytes(target)));
        target.is_some_and(|target| self.is_other_git_dir(&target))
    }
}

/// Strips line ends from the end of a text, and nothing else. git does the same with the paths in its files.
fn strip_newlines(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
    &text[..end.map_or(0, |end| end + 1)]
}

/// Returns true if git accepts a text as the content of `HEAD`: a branch or an object id.
fn is_head(text: &[u8]) -> bool {
    let end = text.iter().rposition(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    let text = &text[..end.map_or(0, |end| end + 1)];
    match text.strip_prefix(b"ref:") {
        // Git reads 255 bytes when it checks for a repository.
        Some(name) => {
            // git does not skip a form feed, which `trim_ascii_start` does.
            let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            let start = name.iter().position(|byte| !is_blank(byte)).unwrap_or(name.len());
            text.len() < 256 && name[start..].starts_with(b"refs/")
        }
        None => matches!(text.len(), 40 | 64) && text.iter().all(u8::is_ascii_hexdigit),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Other,
}

#[cfg(test)]
mod tests {
    use super::is_head;

    #[test]
    fn a_head_is_what_git_accepts() {
        for text in ["ref: refs/heads/main\n", "ref:refs/heads/main", "ref: \t\n refs/heads/main \r\n"] {
            assert!(is_head(text.as_bytes()), "{text:?}");
        }
        // git does not take a form feed for white space.
        for text in ["ref:\u{c}refs/heads/main\n", "ref: main\n", "main\n", ""] {
            assert!(!is_head(text.as_bytes()), "{text:?}");
        }
        assert!(is_head("1".repeat(40).as_bytes()));
    }
}
