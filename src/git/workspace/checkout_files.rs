//! Opens the files of the user that guard copies or links into a run: hooks, git's ignore files, untracked files,
//! submodules.
//!
//! An earlier run may have written symbolic links in the user's checkout, and links in a branch that the user merged. So
//! guard leaves out a file if such a link leads to it from outside the place that contains the link (see
//! [`AgentPaths`]), and adds a note that names the link. If the user trusts the repository, guard follows all links.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::extra_files::{has_plain_parents, is_inside};
use crate::git::plumbing::repository::Repository;
use crate::git::{WorkspaceError, at};
use crate::sys::agent_paths::{AgentPaths, ForeignLink};
use crate::sys::copy_tree::{Entry, open_entry, reopen};
use crate::text::terminal_text;

/// The maximum number of notes. An agent can create any number of links.
const MAX_NOTES: usize = 20;

/// An opened file or directory of the user.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// The path without symbolic links.
    pub(crate) real: PathBuf,
    /// True if a link that an agent may have written leads to the file.
    pub(crate) is_linked: bool,
}

/// Opens files of the user for one run.
#[derive(Debug)]
pub(crate) struct CheckoutFiles {
    paths: AgentPaths,
    is_trusted: bool,
    /// The directories with the user's working tree: the one in which the run starts, and the main working tree.
    trees: Vec<PathBuf>,
    git_dirs: Vec<PathBuf>,
    /// The run's worktree.
    worktree: PathBuf,
    notes: Vec<String>,
}

impl CheckoutFiles {
    /// Fails if guard cannot read its record of the directories in which agents wrote.
    pub(crate) fn new(repository: &Repository, worktree: &Path) -> Result<Self, WorkspaceError> {
        let state = crate::sys::agent_paths::state_directory().unwrap_or_default();
        let mut paths = at("read the record of directories in", &state, AgentPaths::from_environment())?;
        let mut trees = Vec::new();
        for tree in repository.toplevel.iter().chain([&repository.place()]) {
            // The branches of runs end in the user's working tree, even if no run could write there.
            paths.add(tree);
            trees.extend(tree.canonicalize().ok());
        }
        let git_dirs = [&repository.git_dir, &repository.common_dir];
        let git_dirs = git_dirs.into_iter().filter_map(|directory| directory.canonicalize().ok()).collect();
        let (is_trusted, worktree) = (repository.trusted, worktree.to_path_buf());
        Ok(Self { paths, is_trusted, trees, git_dirs, worktree, notes: Vec::new() })
    }

    /// Opens a regular file or a directory for reading. Returns `None` if there is none, or if guard leaves it out; then
    /// adds a note. `what` names the file in the note. Fails with `InvalidData` for a FIFO, a socket or a device.
    pub(crate) fn open(&mut self, what: &str, path: &Path) -> io::Result<Option<Opened>> {
        let found = self.paths.open(path, libc::O_PATH);
        let (found, resolved) = match found {
            Err(error) if is_missing(&error) => return Ok(None),
            found => found?,
        };
        if let Some(link) = resolved.foreign.as_ref().filter(|_| !self.is_trusted) {
            self.leave_out(what, link);
            return Ok(None);
        }
        match reopen(found)? {
            Entry::Opened(file) => {
                Ok(Some(Opened { file, real: resolved.real, is_linked: resolved.has_agent_link }))
            }
            Entry::Link(_) | Entry::Special => {
                let problem = format!("{} is not a regular file or directory", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, problem))
            }
        }
    }

    /// Opens a file as [`Self::open`] does, but leaves it out as well if a link that an agent may have written leads to
    /// a file of the user's checkout that is not in the run's worktree: such a file is untracked, and may be secret.
    pub(crate) fn open_tracked(&mut self, what: &str, path: &Path) -> io::Result<Option<Opened>> {
        let Some(opened) = self.open(what, path)? else { return Ok(None) };
        if opened.is_linked && opened.file.metadata()?.is_file() && !self.may_be_linked(&opened.real) {
            self.note(what, &untracked(&opened.real));
            return Ok(None);
        }
        Ok(Some(opened))
    }

    /// Returns true if guard may copy a file of the user to which a link of an agent leads: the file is not in the
    /// user's checkout, or the run's worktree has it anyway.
    pub(crate) fn may_be_linked(&self, real: &Path) -> bool {
        self.is_trusted || !self.is_untracked(real)
    }

    /// Returns the real path of a file that a jailed git reads in later calls, or `/dev/null` if there is no such file,
    /// or if guard leaves it out.
    pub(crate) fn usable(&self, path: &Path) -> PathBuf {
        let resolved = self.paths.resolve(path).ok();
        let real =
            resolved.and_then(|found| if self.is_trusted { Some(found.real) } else { found.own().ok() });
        real.unwrap_or_else(|| PathBuf::from("/dev/null"))
    }

    /// Returns true if a path is in the user's checkout, and the run's worktree does not have a file at the same path.
    fn is_untracked(&self, real: &Path) -> bool {
        let below = self.trees.iter().find_map(|tree| real.strip_prefix(tree).ok());
        below.is_some_and(|below| !is_inside(below) || !self.is_in_worktree(below))
    }

    fn is_in_worktree(&self, below: &Path) -> bool {
        let place = self.worktree.join(below);
        has_plain_parents(&self.worktree, below)
            && place.symlink_metadata().is_ok_and(|data| data.is_file() || data.is_dir())
    }

    /// Returns true if the user trusts the repository, so that guard follows all links.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Returns true if a directory is or contains a working tree or a git directory of the repository.
    pub(crate) fn contains_repository(&self, real: &Path) -> bool {
        self.trees.iter().chain(&self.git_dirs).any(|part| part.starts_with(real))
    }

    /// Adds a note that the run does not get `what`, because of a link.
    pub(crate) fn leave_out(&mut self, what: &str, link: &ForeignLink) {
        self.note(what, &format!("{link}"));
    }

    /// Adds a note that the run does not get `what`, and why.
    pub(crate) fn note(&mut self, what: &str, why: &str) {
        let note = terminal_text::replace(&format!("the run does not get {what}: {why}"));
        if self.notes.len() < MAX_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the notes for the user, in the order in which they were added.
    pub(crate) fn into_notes(self) -> Vec<String> {
        self.notes
    }
}

/// Opens the directory `path` of the checkout `top` for reading, if there is no symbolic link on the way.
pub(crate) fn open_plain_directory(top: &File, path: &Path) -> io::Result<File> {
    match open_entry(top.as_fd(), path)? {
        Entry::Opened(file) if file.metadata()?.is_dir() => Ok(file),
        Entry::Link(_) => Err(io::Error::from_raw_os_error(libc::ELOOP)),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Returns the link because of which guard does not copy or link the path `path` of the user's checkout into a run;
/// `None` if there is no such link, or if the user trusts the repository.
pub fn foreign_link(repository: &Repository, path: &Path) -> Result<Option<ForeignLink>, WorkspaceError> {
    let Some(top) = repository.toplevel.as_ref().filter(|_| !repository.trusted) else { return Ok(None) };
    let named = top.join(path);
    let files = CheckoutFiles::new(repository, top)?;
    at("resolve", &named, files.paths.resolve(&named)).map(|resolved| resolved.foreign)
}

/// Says why [`CheckoutFiles::open_tracked`] leaves out a file.
pub(crate) fn untracked(real: &Path) -> String {
    format!("a symbolic link leads to {}, which is not in the run's worktree", real.display())
}

/// Returns true if a path leads to no file: something is missing, or links lead to each other.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(libc::ELOOP)
}
