//! Creates the workspace of a run: its worktree, branch and quarantine repository. If a step fails, guard removes
//! everything that it has created.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checkout_files::CheckoutFiles;
use super::ignored_files;
use super::ignored_files::Ignored;
use super::quarantine;
use super::quarantine::{Committer, QuarantineSpec};
use super::run_record::{Lock, Record, State};
use super::spec::{
    Request, WorkspaceSpec, branch_taken, derive_names, missing_objects, planned_root, resolve_base,
};
use super::{extra_files, hooks, user_changes};
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::gitfile;
use crate::git::plumbing::repository::Repository;
use crate::git::{WorkspaceError, at, trust};
use crate::sys::signals;

/// The worktree, the branch and the quarantine repository (private git directory) of a run, locked by this process.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) run_folder: PathBuf,
    pub(crate) record: Record,
    /// True if the user has uncommitted changes that guard did not copy into the run's worktree.
    uncommitted: bool,
    /// The number of paths whose uncommitted changes guard copied from the user's worktree into the run's.
    carried_changes: usize,
    /// Ignored files and directories and submodules of the user's worktree that the run did not get.
    left_behind: Vec<PathBuf>,
    /// Texts for the user about files that guard left out of the run because of symbolic links.
    notes: Vec<String>,
    /// Passwords and tokens in the user's git settings, which guard redacts from everything it records.
    credentials: Vec<Vec<u8>>,
    _lock: Lock,
    /// The lock that prevents other runs from using the worktree; `None` while the worktree does not exist.
    _worktree_lock: Option<Lock>,
}

impl Workspace {
    /// Creates the workspace of a run. If that fails, removes everything that it has created. Fails if the user must
    /// first trust the repository, if a name is taken, or if another run uses the worktree.
    pub fn open(repository: &Repository, request: &Request) -> Result<Self, WorkspaceError> {
        let settings = trusted_settings(repository)?;
        let wanted = WorkspaceSpec::new(repository, request)?;
        let worktree_lock =
            if wanted.here { Lock::of_worktree(&wanted.admin_dir, &wanted.worktree)? } else { None };
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&request.run_folder);
        at("create", &request.run_folder, made)?;
        let lock = Lock::take(&request.run_folder)?;
        if Record::exists(&request.run_folder) {
            let problem = format!("the run {} already has a workspace", request.run_id);
            return Err(WorkspaceError::refused(problem, "`guard worktree list` shows the workspace"));
        }
        let record = wanted.record(repository, request);
        record.write(&request.run_folder)?;
        let mut workspace = Self {
            run_folder: request.run_folder.clone(),
            record,
            uncommitted: false,
            carried_changes: 0,
            left_behind: Vec::new(),
            notes: Vec::new(),
            credentials: settings.credentials(),
            _lock: lock,
            _worktree_lock: worktree_lock,
        };
        match workspace.create(repository, &settings, request) {
            Ok(()) => Ok(workspace),
            Err(error) => {
                // After Ctrl-C git received the signal as well, and git's error is only a consequence: report the
                // signal instead.
                let interrupted = check_interrupted();
                let _ = workspace.undo();
                workspace.forget();
                interrupted.and(Err(error))
            }
        }
    }

    fn create(
        &mut self,
        repository: &Repository,
        settings: &Settings,
        request: &Request,
    ) -> Result<(), WorkspaceError> {
        if let Some(top) = repository.toplevel.as_ref().filter(|_| !self.record.here) {
            check_fifos(top)?;
        }
        // Start these git queries now, so that they run while guard writes files.
        let refs = quarantine::refs_call(repository)?.start()?;
        let changes = self.start_status(repository)?;
        let checkout = self.dependency_source(repository);
        let listing = checkout.as_deref().map(|top| ignored_files::start_listing(repository, top));
        let listing = listing.transpose()?;
        let refs = std::thread::spawn(move || refs.expect_success());
        if !self.record.here {
            self.add_worktree(repository)?;
            self._worktree_lock = Lock::of_worktree(&self.record.admin_dir, &self.record.worktree)?;
        }
        self.record.write(&self.run_folder)?;
        let refs = refs.join().unwrap_or_else(|_| Ok(Vec::new()))?;
        self.uncommitted = changes.is_some_and(crate::git::plumbing::command::Running::has_output);
        let mut files = CheckoutFiles::new(repository, &self.record.worktree)?;
        let excludes = quarantine::user_git_file(repository, settings, "core.excludesfile", "ignore");
        self.record.excludes = files.usable(&excludes);
        let hooks = self.run_folder.join("hooks");
        let skip = request.skip_hooks;
        let brought = hooks::install(repository, settings, skip, &request.trailers, &hooks, &mut files);
        let hooks = at("copy hooks to", &hooks, brought)?;
        let identity = request.identity.as_ref().map(|(name, email)| (name.as_str(), email.as_str()));
        let parts = QuarantineSpec {
            repository,
            settings,
            refs: &refs,
            branch: &self.record.branch,
            tip: &self.record.base,
            admin_dir: &self.record.admin_dir,
            objects: &self.record.objects,
            hooks: &hooks,
            committer: Committer { identity, sign: request.sign },
        };
        let git = self.quarantine();
        at("create", &git, quarantine::create(&git, &self.refs_before(), &parts, &mut files))?;
        let gitfile = self.gitfile();
        at("write", &gitfile, fs::write(&gitfile, gitfile::content(&git)))?;
        if let Some(from) = repository.toplevel.as_ref().filter(|_| !self.record.here) {
            let (copy, link) = (&request.copy, &request.link_readonly);
            let brought = extra_files::install(from, &self.record.worktree, copy, link, &mut files);
            self.record.brought = at("copy files to", &self.record.worktree, brought)?;
        }
        if let Some(top) = repository.toplevel.as_ref().filter(|_| request.with_changes && !self.record.here)
        {
            let carried =
                user_changes::apply(repository, top, &self.record.worktree, &self.record.admin_dir)?;
            self.carried_changes = carried;
            self.uncommitted = false;
        }
        if let (Some(top), Some(listing)) = (&checkout, listing) {
            let ignored = ignored_files::finish_listing(listing, top, &mut files);
            self.select_dependencies(top, ignored, request.with_dependencies)?;
            if request.with_dependencies && !self.record.here {
                let worktree = &self.record.worktree;
                let left_behind = ignored_files::copy_submodules(repository, top, worktree, &mut files)?;
                self.left_behind.extend(left_behind);
            }
        }
        self.notes = files.into_notes();
        self.exclude_links()?;
        self.record.submodules = if self.record.here { self.submodule_pointers()? } else { Vec::new() };
        check_interrupted()?;
        self.record.state = State::Open;
        self.record.write(&self.run_folder)
    }

    /// Returns the user's worktree whose installed dependencies guard gives to the run: the worktree in which the
    /// user started the run, or the main worktree for a run with `--here`. `None` if there is no such worktree.
    fn dependency_source(&self, repository: &Repository) -> Option<PathBuf> {
        if !self.record.here {
            return repository.toplevel.clone();
        }
        let is_usual = repository.common_dir.file_name() == Some(OsStr::new(".git"));
        let main = repository.common_dir.parent().filter(|_| is_usual)?;
        (main != self.record.worktree).then(|| main.to_path_buf())
    }

    /// Records which ignored directories of the user's worktree guard gives to the run as dependencies (none, unless
    /// `is_wanted`), and which ignored files and directories the run does not get.
    fn select_dependencies(
        &mut self,
        top: &Path,
        mut ignored: Ignored,
        is_wanted: bool,
    ) -> Result<(), WorkspaceError> {
        let is_brought = |path: &PathBuf| self.record.brought.iter().any(|one| one.path == *path);
        ignored.dependencies.retain(|path| !is_brought(path));
        ignored.others.retain(|path| !is_brought(path));
        if !self.record.here {
            self.left_behind = ignored.others;
        }
        if is_wanted {
            let layers = extra_files::select_layers(top, &self.record.worktree, &ignored.dependencies);
            self.record.brought.extend(at("read the dependencies in", top, layers)?);
        } else if !self.record.here {
            self.left_behind.extend(ignored.dependencies);
        }
        Ok(())
    }

    /// Adds the links that guard made in the worktree to the quarantine repository's ignore file, so that the agent
    /// does not commit them. The user's own rules do not suffice: a rule such as `node_modules/` matches only
    /// directories, not links.
    fn exclude_links(&self) -> Result<(), WorkspaceError> {
        let links = self.record.brought.iter().filter(|one| one.is_link);
        let lines: Vec<u8> = links.flat_map(|one| extra_files::ignore_line(&one.path)).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let exclude = self.quarantine().join("info/exclude");
        let append = || {
            fs::create_dir_all(self.quarantine().join("info"))?;
            let before = fs::read(&exclude).unwrap_or_default();
            let newline: &[u8] = if before.is_empty() || before.ends_with(b"\n") { b"" } else { b"\n" };
            fs::write(&exclude, [&before, newline, &lines].concat())
        };
        at("write", &exclude, append())
    }

    /// Starts `git status` in the user's worktree, to find out whether tracked files have uncommitted changes.
    /// Returns `None` for a run with `--here`, which works on these changes itself, and if there is no worktree.
    fn start_status(
        &self,
        repository: &Repository,
    ) -> Result<Option<crate::git::plumbing::command::Running>, WorkspaceError> {
        let Some(top) = repository.toplevel.as_ref().filter(|_| !self.record.here) else { return Ok(None) };
        let call = repository.git("status")?.worktree(top).timeout(STATUS_TIMEOUT);
        Ok(Some(call.args(["--porcelain", "-z", "-uno", "--ignore-submodules=all"]).start()?))
    }

    fn add_worktree(&mut self, repository: &Repository) -> Result<(), WorkspaceError> {
        self.add_branch(repository)?;
        let reason = self.run_marker();
        let record = &mut self.record;
        let branch = record.branch.strip_prefix("refs/heads/").unwrap_or(&record.branch);
        crate::git::plumbing::command::retry_during_worktree_changes(|| {
            let git =
                repository.git("worktree")?.args(["add", "--quiet", "--lock", "--reason", &reason, "--"]);
            git.arg(&record.worktree).arg(branch).interruptible().run()
        })
        .map_err(|error| missing_objects(error, repository))?;
        // No agent has run yet, so only git has written this file.
        let file = record.worktree.join(".git");
        let text = at("read", &file, gitfile::read_small(&file, 8192))?;
        let target =
            text.strip_prefix(b"gitdir: ").and_then(|text| text.strip_suffix(b"\n")).unwrap_or_default();
        record.admin_dir = record.worktree.join(OsStr::from_bytes(target));
        let relative = !record.admin_dir.starts_with(&record.common_dir);
        if relative {
            record.admin_dir = at("resolve", &file, record.admin_dir.canonicalize())?;
        }
        Ok(())
    }

    /// Returns the full name of the branch that [`Self::open`] would create.
    pub fn branch_name(repository: &Repository, request: &Request) -> Result<String, WorkspaceError> {
        derive_names(repository, request).map(|(branch, _)| branch)
    }

    /// Returns the branch, the base commit and the worktree path that [`Self::open`] would choose. Creates nothing, and
    /// does not check whether the names are free.
    pub fn planned(
        repository: &Repository,
        request: &Request,
    ) -> Result<(String, String, PathBuf), WorkspaceError> {
        trusted_settings(repository)?;
        if request.here {
            let here = WorkspaceSpec::here(repository, request)?;
            return Ok((here.branch, here.base, here.worktree));
        }
        let base = resolve_base(repository, request)?;
        let (branch, dir) = derive_names(repository, request)?;
        Ok((branch, base, planned_root(repository, request).join(dir)))
    }

    /// Creates the run's branch atomically, so that two runs cannot take the same name. Writes the run's id to the
    /// branch's reflog, so that guard never removes a branch of another run when it undoes an interrupted creation.
    fn add_branch(&self, repository: &Repository) -> Result<(), WorkspaceError> {
        let Record { branch, base, .. } = &self.record;
        let command = format!("create {branch} {base}\n");
        let made = repository
            .git("update-ref")?
            .args(["--create-reflog", "-m", &self.run_marker(), "--stdin"])
            .input(command.into_bytes())
            .run();
        match made {
            Err(_) if repository.commit(branch)?.is_some() => Err(branch_taken(branch)),
            made => Ok(made.map(drop)?),
        }
    }

    /// Returns the text that identifies this run in reflogs and worktree locks of the user's repository.
    pub(crate) fn run_marker(&self) -> String {
        format!("guard run {}", self.record.run_id)
    }

    /// Loads an existing workspace from a run's directory, and locks it, so that a guard process other than the one
    /// that created the workspace can receive the branch or remove the worktree. If an operation may have been
    /// interrupted, removes the lock files that it left behind. Fails if another guard process uses the workspace.
    pub fn load(run_folder: &Path) -> Result<Self, WorkspaceError> {
        // Read the record first, so that guard creates no lock file in a directory without a record.
        Record::read(run_folder)?;
        let lock = Lock::take(run_folder)?;
        let record = Record::read(run_folder)?;
        // A workspace may have no worktree yet if its creation was interrupted.
        let has_worktree = !record.admin_dir.as_os_str().is_empty();
        let worktree_lock =
            if has_worktree { Lock::of_worktree(&record.admin_dir, &record.worktree)? } else { None };
        let workspace = Self {
            run_folder: run_folder.to_path_buf(),
            record,
            uncommitted: false,
            carried_changes: 0,
            left_behind: Vec::new(),
            notes: Vec::new(),
            credentials: Vec::new(),
            _lock: lock,
            _worktree_lock: worktree_lock,
        };
        if !matches!(workspace.record.state, State::Kept | State::Removed) {
            workspace.remove_stale_locks();
        }
        Ok(workspace)
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the directory in which the agent works.
    pub fn worktree(&self) -> &Path {
        &self.record.worktree
    }

    /// Returns the name of the run's branch without `refs/heads/`.
    pub fn branch(&self) -> &str {
        self.record.branch.strip_prefix("refs/heads/").unwrap_or(&self.record.branch)
    }

    /// Returns the path of the quarantine repository, the private git directory of the run.
    pub fn quarantine(&self) -> PathBuf {
        self.run_folder.join("git")
    }

    /// Returns the path of a file that points to the quarantine repository (`gitdir: …`). In a run with a mount
    /// namespace, guard mounts this file over the worktree's `.git`.
    pub fn gitfile(&self) -> PathBuf {
        self.run_folder.join("gitfile")
    }

    /// Returns the path of the copy of the quarantine repository's `packed-refs` that guard made before the run. The
    /// agent cannot write this copy.
    pub(crate) fn refs_before(&self) -> PathBuf {
        self.run_folder.join("refs-before")
    }

    /// Returns the passwords and tokens in the user's git settings; none after [`Self::load`]. The caller must redact
    /// them from everything that guard records.
    pub fn credentials(&self) -> &[Vec<u8>] {
        &self.credentials
    }

    /// True if the user's worktree has uncommitted changes that guard did not copy into the run's worktree. Always
    /// false after [`Self::load`].
    pub fn has_uncommitted_changes(&self) -> bool {
        self.uncommitted
    }

    /// Returns the paths that the agent must be able to write: the worktree and the quarantine repository (the run's
    /// private git directory).
    pub fn writable(&self) -> Vec<PathBuf> {
        vec![self.record.worktree.clone(), self.quarantine()]
    }

    /// Returns the paths that the agent must be able to read and execute, besides the writable ones: object
    /// directories, hooks, the `.git` file, and the targets of links.
    pub fn readable(&self) -> Vec<PathBuf> {
        let mut paths = self.record.objects.clone();
        paths.push(self.run_folder.join("hooks"));
        paths.push(self.gitfile());
        let links = self.record.brought.iter().filter(|one| one.is_link && !one.is_layer);
        paths.extend(links.map(|one| one.from.clone()));
        paths
    }

    /// Returns the dependencies that the run gets as overlay mounts: (path in the worktree, path of the user's
    /// directory).
    pub fn layers(&self) -> Vec<(PathBuf, PathBuf)> {
        let layers = self.record.brought.iter().filter(|one| one.is_layer);
        layers.map(|one| (self.record.worktree.join(&one.path), one.from.clone())).collect()
    }

    /// Returns the number of paths whose uncommitted changes guard copied from the user's worktree into the run's; 0
    /// after [`Self::load`].
    pub fn carried_changes(&self) -> usize {
        self.carried_changes
    }

    /// Returns the ignored files and directories and the submodules of the user's worktree that the run did not get.
    /// Returns none for a run with `--here`, and after [`Self::load`].
    pub fn left_behind(&self) -> &[PathBuf] {
        &self.left_behind
    }

    /// Returns texts for the user about files that guard left out of the run because of symbolic links. Returns none
    /// after [`Self::load`].
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Makes the worktree's `.git` file point to the quarantine repository (the run's private git directory). Needed
    /// in runs without a mount namespace.
    pub fn point_at_quarantine(&self) -> Result<(), WorkspaceError> {
        let pointed = gitfile::point_at(&self.record.worktree, &self.quarantine(), &self.run_folder);
        at("write the .git file of", &self.record.worktree, pointed).map(drop)
    }

    /// Makes the worktree's `.git` file point to the worktree's git directory in the user's repository. If the agent
    /// replaced the file, moves the replacement to the run's directory and returns its new path; otherwise returns
    /// `None`. Does nothing if the worktree no longer exists. The agent must have ended.
    pub fn point_at_repository(&self) -> Result<Option<PathBuf>, WorkspaceError> {
        let record = &self.record;
        let is_dir = record.worktree.symlink_metadata().is_ok_and(|data| data.is_dir());
        if !is_dir {
            return Ok(None);
        }
        let pointed = gitfile::point_at(&record.worktree, &record.admin_dir, &self.run_folder);
        at("write the .git file of", &record.worktree, pointed)
    }
}

/// Fails if there is a FIFO in place of a file at the top of the user's worktree that git reads: every git call there would
/// wait for a writer until its timeout.
fn check_fifos(top: &Path) -> Result<(), WorkspaceError> {
    let is_fifo = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.file_type().is_fifo());
    let mut files = [".gitattributes", ".gitignore", ".gitmodules"].into_iter().map(|name| top.join(name));
    match files.find(is_fifo) {
        None => Ok(()),
        Some(file) => Err(WorkspaceError::refused(
            format!("{} is a FIFO, for which git would wait", file.display()),
            "an earlier run may have created it; remove it, or bring back the file that was there",
        )),
    }
}

/// Fails if a termination signal is pending, so that guard stops creating the workspace.
fn check_interrupted() -> Result<(), WorkspaceError> {
    signals::pending_end_signal().map_or(Ok(()), |signal| Err(WorkspaceError::Interrupted(signal)))
}

/// Timeout for `git status` in the user's worktree. git would block forever on a FIFO that an earlier agent left
/// among the files. The timeout may be short, because guard only reports the result.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the settings of a repository. Fails if the user must first trust these settings or the repository's layout.
/// Fails if the repository's settings or files could run programs or reveal other files, unless the user trusts the
/// repository.
pub fn check_trust(repository: &Repository) -> Result<(), WorkspaceError> {
    trusted_settings(repository).map(drop)
}

pub(crate) fn trusted_settings(repository: &Repository) -> Result<Settings, WorkspaceError> {
    let settings = Settings::parse(&Settings::list_call(repository)?.run()?);
    trust::check(repository, &settings)?;
    Ok(settings)
}
