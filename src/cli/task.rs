//! The repository a run is asked for in → the worktree it works in.

use std::path::{Path, PathBuf};

use super::args;
use super::exit::Exit;
use super::note;
use crate::launch::{Checkout, Task, check_links, is_shared_place, may_be_in_repository};
use crate::policy::Policy;
use crate::workspace::{Disposal, Limits, Repository, Request, Workspace, WorkspaceError};

/// The kind of failure when the worktree to go on in is not there, or not what it was.
const LOST: &str = "worktree_lost";

/// What a run works on: a worktree of its own in a repository, or the folder itself.
pub(super) struct Opened {
    pub(super) task: Option<Task>,
    /// The folder to work in.
    pub(super) folder: PathBuf,
}

/// Where a run is asked for.
pub(super) struct Asked<'a> {
    pub(super) arguments: &'a args::Run,
    pub(super) policy: &'a Policy,
    pub(super) folder: &'a Path,
    pub(super) run_id: &'a str,
    pub(super) runs: &'a Path,
}

impl Asked<'_> {
    /// Makes the worktree of the run, if its folder lies in a repository.
    pub(super) fn open(&self) -> Result<Opened, Problem> {
        let Some(repository) = self.repository()? else {
            return Ok(Opened { task: None, folder: self.folder.to_path_buf() });
        };
        let disposal = match (self.arguments.keep, self.arguments.discard) {
            (true, _) => Disposal::Keep,
            (_, true) => Disposal::Discard,
            _ => Disposal::Auto,
        };
        let limits = Limits::new(self.policy);
        let (place, here) = self.place(&repository)?;
        let task = Task::open(&place, &Request { here, ..self.request() }, disposal, limits)?;
        if task.leaves_changes_behind() {
            note(
                "guard: your uncommitted changes are not in the task's worktree; commit them first if it needs them",
            );
        }
        let worktree = task.checkout().worktree;
        let same = self.same_folder(&repository, &worktree);
        if !same.is_dir() {
            note("guard: the folder is not part of the commit the task begins at; working in the top folder");
        }
        let folder = if same.is_dir() { same } else { worktree };
        Ok(Opened { folder, task: Some(task) })
    }

    /// What that would be, to be shown. Nothing is made.
    pub(super) fn planned(&self) -> Result<Option<(Checkout, PathBuf)>, Problem> {
        let Some(repository) = self.repository()? else { return Ok(None) };
        let (place, here) = self.place(&repository)?;
        let request = Request { here, ..self.request() };
        let planned = Workspace::planned(&place, &request)?;
        let (branch, base, worktree) = planned;
        let folder = self.same_folder(&repository, &worktree);
        let checkout = Checkout {
            branch: branch.strip_prefix("refs/heads/").unwrap_or(&branch).to_string(),
            base,
            worktree,
            git_folder: request.run_folder.join("git"),
            pointer: request.run_folder.join("gitfile"),
            readable: vec![repository.common_dir.join("objects")],
            hooks: request.run_folder.join("hooks"),
            common_dir: repository.common_dir.clone(),
        };
        Ok(Some((checkout, folder)))
    }

    /// The repository, where a worktree of it is to be made.
    fn repository(&self) -> Result<Option<Repository>, Problem> {
        let found = if self.arguments.in_place || !may_be_in_repository(self.folder) {
            None
        } else {
            Repository::find(self.folder)?
        };
        let Some(repository) = found else {
            return if self.is_about_a_repository() { Err(self.no_repository()) } else { Ok(None) };
        };
        let home = super::run::home();
        if let Some(top) = repository.toplevel.as_ref().filter(|top| is_shared_place(home.as_deref(), top)) {
            note(&format!(
                "guard: {} is a repository, but far more than one project: working in the folder itself",
                top.display()
            ));
            return Ok(None);
        }
        Ok(Some(Repository { trusted: self.arguments.trust_repository, ..repository }))
    }

    /// Where the run works: in a new worktree of the repository, or (and then it is true) in one that is there.
    fn place(&self, repository: &Repository) -> Result<(Repository, bool), Problem> {
        let args::Run { branch: Some(branch), worktree: Some(worktree), name, .. } = self.arguments else {
            return Ok((repository.clone(), self.arguments.here));
        };
        if name.is_some() && !repository.has_branch(branch)? {
            return Ok((repository.clone(), false));
        }
        let place = repository.at_branch(branch, worktree)?;
        // An earlier run could write everything below.
        let folder = self.same_folder(repository, worktree);
        check_links(&folder)
            .map_err(|error| WorkspaceError::Lost(format!("the worktree of {branch}: {error}")))?;
        Ok((place, true))
    }

    fn request(&self) -> Request {
        Request {
            run_id: self.run_id.to_string(),
            run_folder: self.runs.join(self.run_id),
            name: self.arguments.name.clone(),
            base: self.arguments.base.clone(),
            fallback_root: self.runs.with_file_name("worktrees"),
            ..Request::new(self.policy)
        }
    }

    /// The folder of the worktree that is the one the run was asked for in.
    fn same_folder(&self, repository: &Repository, worktree: &Path) -> PathBuf {
        let real = std::fs::canonicalize(self.folder).unwrap_or_else(|_| self.folder.to_path_buf());
        let below = repository.toplevel.as_ref().and_then(|top| real.strip_prefix(top).ok());
        match below {
            Some(below) if below.components().next().is_some() => worktree.join(below),
            _ => worktree.to_path_buf(),
        }
    }

    /// Options that only mean something in a repository.
    fn is_about_a_repository(&self) -> bool {
        let args::Run { name, base, here, branch, auto, keep, discard, .. } = self.arguments;
        name.is_some() || base.is_some() || branch.is_some() || *here || *auto || *keep || *discard
    }

    fn no_repository(&self) -> Problem {
        Problem {
            kind: if self.arguments.branch.is_some() { LOST } else { "invalid_input" },
            message: format!("{} lies in no git repository", self.folder.display()),
            hint: "leave --name, --base, --here, --branch, --auto, --keep and --discard out, or go into a repository"
                .to_string(),
            exit: Exit::OwnFailure,
        }
    }
}

/// Why a run gets no worktree, and what to do.
pub(super) struct Problem {
    /// The kind of failure.
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) hint: String,
    pub(super) exit: Exit,
}

impl From<WorkspaceError> for Problem {
    fn from(error: WorkspaceError) -> Self {
        let usual = "`--in-place` works in the folder itself, with its repository read-only";
        let kind = match error {
            WorkspaceError::Lost(_) => LOST,
            WorkspaceError::Busy(_) => "worktree_busy",
            WorkspaceError::Interrupted(_) => "cancelled",
            _ => "invalid_input",
        };
        let exit = match error {
            // As a run that is ended by it.
            WorkspaceError::Interrupted(signal) => Exit::Code(128 + signal as u8),
            _ => Exit::OwnFailure,
        };
        Self { kind, message: error.to_string(), hint: error.hint().unwrap_or(usual).to_string(), exit }
    }
}
