//! Opens the worktree for `guard run`, from the directory and the options that the user gave. With `--in-place`,
//! outside a repository, or in a repository that is a home or system directory, the run gets no worktree.

use std::path::{Path, PathBuf};

use crate::git;
use crate::git::{
    KeepPolicy, Limits, Record, Repository, Request, State, Workspace, WorkspaceError, foreign_link,
    is_path_inside,
};
use crate::judge::policy::Policy;
use crate::run::launch::{Checkout, GitSession, check_links, is_shared_directory, may_be_in_repository};
use crate::run::outcome::ErrorKind;
use crate::run::settings::WorktreeSettings;
use crate::session::user_directories;
use crate::text::terminal_text;

/// The maximum number of paths that a message lists in one line.
const MOST_LISTED: usize = 6;

/// Joins paths into one line of text. Lists at most `MOST_LISTED` of them.
fn listed(paths: &[&Path]) -> String {
    let shown = paths.iter().take(MOST_LISTED).map(|path| terminal_text::replace(&path.to_string_lossy()));
    let mut line = shown.collect::<Vec<_>>().join(", ");
    if paths.len() > MOST_LISTED {
        line.push_str(&format!(" and {} more", paths.len() - MOST_LISTED));
    }
    line
}

/// Returns the name of a branch without `refs/heads/`.
fn short_branch(branch: &str) -> String {
    branch.strip_prefix("refs/heads/").unwrap_or(branch).to_string()
}

/// What a run works on: a separate worktree of a repository, or the directory itself.
pub(crate) struct OpenedWorkspace {
    pub(crate) git_session: Option<GitSession>,
    /// The working directory of the run.
    pub(crate) folder: PathBuf,
}

/// The directory and the options of a run, which determine its worktree.
pub(crate) struct WorkspaceRequest<'a> {
    pub(crate) settings: &'a WorktreeSettings,
    pub(crate) policy: &'a Policy,
    pub(crate) folder: &'a Path,
    pub(crate) run_id: &'a str,
    pub(crate) runs: &'a Path,
    /// Shows a note to the user.
    pub(crate) note: &'a dyn Fn(&str),
}

impl WorkspaceRequest<'_> {
    /// Creates the run's worktree, or opens the existing one that the options name. Notes what the run
    /// gets and does not get. With `--in-place`, outside a repository, and in a home or system directory, the run works
    /// in the requested directory.
    pub(crate) fn open(&self) -> Result<OpenedWorkspace, WorkspaceProblem> {
        let Some(repository) = self.repository()? else {
            return Ok(OpenedWorkspace { git_session: None, folder: self.folder.to_path_buf() });
        };
        let disposal = self.settings.disposal.unwrap_or_default();
        let limits = Limits::new(self.policy);
        self.check_named_paths(&repository)?;
        let killed = self.killed_run(&repository)?;
        let (place, here) = match (self.place(&repository), &killed) {
            // A killed run without namespaces leaves a `.git` file that names its private repository. Give its worktree
            // back, and try again.
            (Err(problem), Some((folder, _))) if problem.kind == ErrorKind::WorktreeLost => {
                Workspace::load(folder)?.dispose(KeepPolicy::Keep)?;
                self.place(&repository)?
            }
            (place, _) => place?,
        };
        if let Some((folder, record)) = &killed {
            self.note_unreceived(folder, record);
        }
        if here {
            self.note_ignored_options();
        }
        // In the worktree of the branch itself, the commit that is checked out says nothing about what is reviewed.
        let is_own = here && repository.head == place.head;
        let target = repository.head.commit().filter(|_| !is_own).map(str::to_string);
        let request = Request { here, target, ..self.request() };
        let git_session = GitSession::open(&place, &request, disposal, limits)?;
        if git_session.leaves_changes_behind() {
            (self.note)(
                "guard: the run's worktree does not have your uncommitted changes; --with-changes includes them",
            );
        }
        self.note_ignored(&git_session);
        let Checkout { worktree, notes, .. } = git_session.checkout();
        for left_out in notes {
            (self.note)(&format!("guard: {left_out}"));
        }
        let same = self.same_folder(&repository, &worktree);
        if !same.is_dir() {
            (self.note)(&format!(
                "guard: the run's worktree has no directory {}; the run works in its top directory",
                terminal_text::replace(&same.to_string_lossy())
            ));
        }
        let folder = if same.is_dir() { same } else { worktree };
        Ok(OpenedWorkspace { folder, git_session: Some(git_session) })
    }

    /// Returns the worktree that `open` would create or use, and the run's working directory in it, for display.
    /// Returns `None` if the run gets no worktree. Creates nothing.
    pub(crate) fn planned(&self) -> Result<Option<(Checkout, PathBuf)>, WorkspaceProblem> {
        let Some(repository) = self.repository()? else { return Ok(None) };
        let (place, here) = self.place(&repository)?;
        let request = Request { here, ..self.request() };
        let planned = Workspace::planned(&place, &request)?;
        let (branch, base, worktree) = planned;
        let folder = self.same_folder(&repository, &worktree);
        let checkout = Checkout {
            branch: short_branch(&branch),
            base,
            worktree,
            git_folder: request.run_folder.join("git"),
            pointer: request.run_folder.join("gitfile"),
            readable: vec![repository.common_dir.join("objects")],
            dependencies: Vec::new(),
            hooks: request.run_folder.join("hooks"),
            common_dir: repository.common_dir.clone(),
            leaves_changes_behind: false,
            notes: Vec::new(),
        };
        Ok(Some((checkout, folder)))
    }

    /// Returns the repository in which to create a worktree; `None` if the run gets no worktree. Fails outside a
    /// repository if the user gave options that only make sense in one.
    fn repository(&self) -> Result<Option<Repository>, WorkspaceProblem> {
        let found = if self.settings.in_place || !may_be_in_repository(self.folder) {
            None
        } else {
            Repository::find(self.folder)?
        };
        let Some(repository) = found else {
            return if self.is_about_a_repository() { Err(self.no_repository()) } else { Ok(None) };
        };
        let home = user_directories::home();
        if let Some(top) =
            repository.toplevel.as_ref().filter(|top| is_shared_directory(home.as_deref(), top))
        {
            (self.note)(&format!(
                "guard: the repository {} is a home or system directory, so the run works without a worktree",
                top.display()
            ));
            return Ok(None);
        }
        Ok(Some(Repository { trusted: self.settings.trust_repository, ..repository }))
    }

    /// Returns the worktree or repository from which the run starts. The flag is true if the run works in it, and
    /// false if guard creates a new worktree.
    fn place(&self, repository: &Repository) -> Result<(Repository, bool), WorkspaceProblem> {
        let WorktreeSettings { path, name, here, .. } = self.settings;
        let Some(branch) = self.given_branch(repository)? else {
            return Ok((repository.clone(), *here));
        };
        if name.is_some() && !repository.has_branch(&branch)? {
            return Ok((repository.clone(), false));
        }
        let place = repository.at_branch(&branch, path.as_deref())?;
        // An earlier run could write everything below this worktree, so it may have replaced a directory on the way to
        // the working directory by a symbolic link.
        let top = place.toplevel.clone().unwrap_or_default();
        let folder = self.same_folder(repository, &top);
        check_links(&folder)
            .map_err(|error| WorkspaceError::Lost(format!("the worktree of {branch}: {error}")))?;
        Ok((place, true))
    }

    /// Returns the branch that the run is to continue if it exists, without `refs/heads/`: the branch of `--branch`, or
    /// with `--continue` the branch for `--name`. Returns `None` if the options name no branch to continue.
    fn given_branch(&self, repository: &Repository) -> Result<Option<String>, WorkspaceProblem> {
        let WorktreeSettings { branch, continues, .. } = self.settings;
        if !continues {
            return Ok(branch.clone());
        }
        Ok(Some(short_branch(&Workspace::branch_name(repository, &self.request())?)))
    }

    /// Returns the directory and the record of the last run on the branch that this run continues, if that run was
    /// killed.
    fn killed_run(&self, repository: &Repository) -> Result<Option<(PathBuf, Record)>, WorkspaceProblem> {
        let Some(branch) = self.given_branch(repository)? else { return Ok(None) };
        let full_name = format!("refs/heads/{branch}");
        let last = git::newest_on_branch(self.runs, &repository.common_dir, &full_name)?;
        let was_killed = |state: State| matches!(state, State::Open | State::Receiving | State::Received);
        Ok(last.filter(|(_, record)| was_killed(record.state)))
    }

    /// Notes that a killed run has commits that guard has not received, and how to receive them. guard does not
    /// receive them by itself: they would be in no result, and nobody would review them.
    fn note_unreceived(&self, folder: &Path, record: &Record) {
        if git::has_unreceived_commits(folder, record) {
            let (run, branch) = (&record.run_id, short_branch(&record.branch));
            (self.note)(&format!(
                "guard: the earlier run {run} on {branch} was killed. guard has not received its commits, and this run starts without them. To get them, use `guard worktree receive {run}` before anything else, including this run, adds commits to {branch}"
            ));
        }
    }

    fn request(&self) -> Request {
        Request {
            run_id: self.run_id.to_string(),
            run_folder: self.runs.join(self.run_id),
            name: self.settings.name.clone(),
            base: self.settings.base.clone(),
            fallback_root: self.runs.with_file_name("worktrees"),
            copy: self.policy.worktree.copy.iter().chain(&self.settings.copy).cloned().collect(),
            link_readonly: self
                .policy
                .worktree
                .link_readonly
                .iter()
                .chain(&self.settings.link)
                .cloned()
                .collect(),
            with_dependencies: !self.settings.no_deps,
            with_changes: self.settings.with_changes,
            ..Request::new(self.policy)
        }
    }

    /// Checks that guard can copy or link the paths of `--copy` and `--link` into the worktree.
    fn check_named_paths(&self, repository: &Repository) -> Result<(), WorkspaceProblem> {
        let named = [("--copy", &self.settings.copy), ("--link", &self.settings.link)];
        for (option, path) in
            named.iter().flat_map(|(option, paths)| paths.iter().map(move |path| (option, path)))
        {
            let relative = "give a path relative to the top directory of the repository, such as --copy .env";
            let exists = || repository.toplevel.as_ref().is_some_and(|top| top.join(path).exists());
            let (problem, hint) = if !is_path_inside(Path::new(path)) {
                ("the path is not inside the repository".to_string(), relative)
            } else if !exists() {
                ("the path does not exist in your checkout".to_string(), relative)
            } else if let Some(link) = foreign_link(repository, Path::new(path))? {
                let replace =
                    "replace the link by what it leads to, or give --trust-repository if the link is yours";
                (terminal_text::replace(&link.to_string()), replace)
            } else {
                continue;
            };
            return Err(WorkspaceProblem {
                kind: ErrorKind::InvalidInput,
                message: format!("{option} {path}: {problem}"),
                hint: hint.to_string(),
                signal: None,
            });
        }
        Ok(())
    }

    /// Notes which of the user's options have no effect, because the worktree exists already.
    fn note_ignored_options(&self) {
        let WorktreeSettings { copy, link, disposal, .. } = self.settings;
        let is_discarded = *disposal == Some(KeepPolicy::Discard);
        for (option, is_given) in
            [("--copy", !copy.is_empty()), ("--link", !link.is_empty()), ("--discard", is_discarded)]
        {
            if is_given {
                (self.note)(&format!("guard: {option} has no effect, because the worktree exists already"));
            }
        }
    }

    /// Notes which dependencies of the user's checkout the run gets, how many uncommitted changes it gets, and which
    /// files that git ignores it does not get.
    fn note_ignored(&self, git_session: &GitSession) {
        let checkout = git_session.checkout();
        let top = &checkout.worktree;
        let carried = checkout.dependencies.iter().map(|(at, _)| at.strip_prefix(top).unwrap_or(at));
        let carried: Vec<&Path> = carried.collect();
        if !carried.is_empty() {
            (self.note)(&format!(
                "guard: the run gets the dependencies of your checkout: {} (--no-deps omits them)",
                listed(&carried)
            ));
        }
        match git_session.carried_changes() {
            0 => {}
            1 => (self.note)("guard: the run gets your uncommitted changes: 1 path"),
            count => (self.note)(&format!("guard: the run gets your uncommitted changes: {count} paths")),
        }
        let left_behind: Vec<&Path> = git_session.left_behind().iter().map(PathBuf::as_path).collect();
        if !left_behind.is_empty() {
            (self.note)(&format!(
                "guard: the run does not get files that git ignores: {} (--copy PATH or --link PATH includes them)",
                listed(&left_behind)
            ));
        }
    }

    /// Returns the directory in the worktree that corresponds to the working directory of the request, or the top of
    /// the worktree if there is none. The directory may not exist.
    fn same_folder(&self, repository: &Repository, worktree: &Path) -> PathBuf {
        let real = std::fs::canonicalize(self.folder).unwrap_or_else(|_| self.folder.to_path_buf());
        let below = repository.toplevel.as_ref().and_then(|top| real.strip_prefix(top).ok());
        match below {
            Some(below) if below.components().next().is_some() => worktree.join(below),
            _ => worktree.to_path_buf(),
        }
    }

    /// Returns true if the user gave options that only make sense in a repository.
    fn is_about_a_repository(&self) -> bool {
        let WorktreeSettings { name, base, here, branch, disposal, copy, link, .. } = self.settings;
        let names_paths = !copy.is_empty() || !link.is_empty();
        name.is_some() || base.is_some() || branch.is_some() || *here || disposal.is_some() || names_paths
    }

    fn no_repository(&self) -> WorkspaceProblem {
        WorkspaceProblem {
            kind: if self.settings.branch.is_some() { ErrorKind::WorktreeLost } else { ErrorKind::InvalidInput },
            message: format!("{} is not in a git repository", self.folder.display()),
            hint: "change to a repository, or omit --name, --base, --here, --branch, --auto, --keep, --discard, --copy and --link"
                .to_string(),
            signal: None,
        }
    }
}

/// Why guard cannot create or open a run's worktree, and what the user can do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct WorkspaceProblem {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) hint: String,
    /// The signal that interrupted guard, if one did.
    pub(crate) signal: Option<i32>,
}

impl From<WorkspaceError> for WorkspaceProblem {
    fn from(error: WorkspaceError) -> Self {
        let usual =
            "with `--in-place` the run works in the directory itself, and its repository is read-only";
        let kind = match error {
            WorkspaceError::Lost(_) => ErrorKind::WorktreeLost,
            WorkspaceError::Busy(_) => ErrorKind::WorktreeBusy,
            WorkspaceError::Interrupted(_) => ErrorKind::Cancelled,
            _ => ErrorKind::InvalidInput,
        };
        let signal = match error {
            WorkspaceError::Interrupted(signal) => Some(signal as i32),
            _ => None,
        };
        Self { kind, message: error.to_string(), hint: error.hint().unwrap_or(usual).to_string(), signal }
    }
}
