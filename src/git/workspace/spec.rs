//! Chooses the branch, the base commit and the directory of a new workspace, and checks that guard can use them.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::run_record::{Record, State};
use super::slug;
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::repository::{Head, Repository};
use crate::git::plumbing::stderr_messages::GitMessage;
use crate::git::receive::Limits;
use crate::git::{WorkspaceError, at};
use crate::judge::policy::Policy;

/// What kind of workspace to create, and where.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub run_id: String,
    /// The directory for the run's files. guard creates it if it is missing.
    pub run_folder: PathBuf,
    /// The task's name, from which guard derives the names of the branch and the worktree; `None` to use the run's
    /// id.
    pub name: Option<String>,
    /// The commit that the run starts from; `None` for the user's `HEAD`.
    pub base: Option<String>,
    /// The commit that the user has checked out where they started the run, if that is not the run's own branch. The
    /// findings of the run are about what the branch adds to it. `None` for the `HEAD` of the main working tree.
    pub target: Option<String>,
    /// True to work in the user's linked worktree, from which guard found the repository, and on its branch
    /// (`--here`).
    pub here: bool,
    /// The prefix of the names of task branches, for example `task/`.
    pub prefix: String,
    /// The directory for worktrees, relative to the main working tree; `None` for `../.worktrees`.
    pub root: Option<PathBuf>,
    /// The directory for worktrees if the default directory is not writable.
    pub fallback_root: PathBuf,
    /// Untracked paths that guard copies from the user's worktree into that of the run, relative to the worktree's
    /// top.
    pub copy: Vec<String>,
    /// Untracked paths in the user's worktree, relative to its top, to which guard makes links in the run's worktree.
    /// The run may only read them.
    pub link_readonly: Vec<String>,
    /// True to give the run the user's installed dependencies, such as `node_modules` and `.venv`, which git ignores.
    pub with_dependencies: bool,
    /// True to copy the user's uncommitted changes into the run's worktree.
    pub with_changes: bool,
    /// The committer's name and email for the run's commits; `None` for the user's.
    pub identity: Option<(String, String)>,
    /// Trailer lines that guard adds to every commit message of the run.
    pub trailers: Vec<String>,
    /// True to sign the run's commits.
    pub sign: bool,
    /// True to give the run none of the user's hooks.
    pub skip_hooks: bool,
    /// The maximum size of the objects that guard takes from the run, in bytes, when it receives commits and when it
    /// commits what the run left uncommitted; `None` for the default.
    pub receive_bytes: Option<u64>,
}

impl Request {
    /// Returns a request with the settings of the policy. The caller must fill in `run_id`, `run_folder` and
    /// `fallback_root`.
    pub fn new(policy: &Policy) -> Self {
        Self {
            prefix: policy.git.branch_prefix.clone(),
            root: policy.worktree.root.as_ref().map(PathBuf::from),
            copy: policy.worktree.copy.clone(),
            link_readonly: policy.worktree.link_readonly.clone(),
            identity: policy.git.identity.clone(),
            trailers: policy.git.trailers.clone(),
            sign: policy.git.sign,
            skip_hooks: !policy.git.hooks,
            receive_bytes: Some(Limits::new(policy).bytes),
            ..Self::default()
        }
    }
}

/// The resolved and checked names and paths of a workspace that guard has not created yet.
pub(super) struct WorkspaceSpec {
    pub(super) branch: String,
    pub(super) base: String,
    pub(super) worktree: PathBuf,
    pub(super) admin_dir: PathBuf,
    pub(super) here: bool,
}

impl WorkspaceSpec {
    pub(super) fn new(repository: &Repository, request: &Request) -> Result<Self, WorkspaceError> {
        if request.here {
            return Self::here(repository, request);
        }
        let base = resolve_base(repository, request)?;
        let (branch, dir) = derive_names(repository, request)?;
        let worktree = create_root(repository, request)?.join(dir);
        if worktree.symlink_metadata().is_ok() {
            return Err(WorkspaceError::NameTaken {
                what: worktree.display().to_string(),
                hint: "choose another --name, or remove that worktree with `guard worktree clean`",
            });
        }
        Ok(Self { branch, base, worktree, admin_dir: PathBuf::new(), here: false })
    }

    pub(super) fn here(repository: &Repository, request: &Request) -> Result<Self, WorkspaceError> {
        let refuse = |problem: &str, hint: &str| Err(WorkspaceError::refused(problem, hint));
        let Some(worktree) = repository.toplevel.clone() else {
            return refuse(
                "--here needs a linked worktree, and the current directory is not in a working tree",
                "change into a linked worktree, or leave --here out",
            );
        };
        if !repository.is_linked() {
            return refuse(
                "--here needs a linked worktree, and this is the main worktree of the repository",
                "leave --here out, or create a linked worktree: git worktree add ../task -b task/name",
            );
        }
        if request.base.is_some() {
            return refuse(
                "--base cannot be combined with --here, which starts from the commit of the worktree",
                "leave out --base or --here",
            );
        }
        let (branch, base) = match repository.head.clone() {
            Head::Branch(branch, base) => (branch, base),
            Head::Unborn(_) => {
                return refuse("the branch of the worktree has no commit yet", "commit something first");
            }
            Head::Detached(_) => {
                return refuse(
                    "the worktree has no branch checked out",
                    "switch to a branch first: git switch -c task/name",
                );
            }
        };
        if let Some(operation) = repository.operation_in_progress() {
            return refuse(
                &format!("{operation} is in progress in this worktree"),
                "finish or abort that operation first",
            );
        }
        let admin_dir = repository.git_dir.clone();
        Ok(Self { branch, base, worktree, admin_dir, here: true })
    }

    pub(super) fn record(self, repository: &Repository, request: &Request) -> Record {
        Record {
            version: Record::version(),
            run_id: request.run_id.clone(),
            state: State::Opening,
            common_dir: repository.common_dir.clone(),
            object_format: repository.object_format.clone(),
            ref_format: repository.ref_format.clone(),
            objects: repository.object_dirs(),
            branch: self.branch,
            tip: self.base.clone(),
            base: self.base,
            worktree: self.worktree,
            admin_dir: self.admin_dir,
            here: self.here,
            excludes: PathBuf::new(),
            brought: Vec::new(),
            submodules: Vec::new(),
            target: request.target.clone(),
            receive_bytes: request.receive_bytes,
        }
    }
}

/// Derives the names of the branch and of the worktree's directory from the task's name, or else from the run's id.
pub(crate) fn derive_names(
    repository: &Repository,
    request: &Request,
) -> Result<(String, OsString), WorkspaceError> {
    let name = request.name.as_deref().unwrap_or(&request.run_id);
    let slug = slug::slug(name).ok_or_else(|| {
        WorkspaceError::refused(
            format!("the name {name:?} has no letters or digits, so no branch can be named after it"),
            "choose another --name",
        )
    })?;
    let branch = format!("refs/heads/{}{slug}", request.prefix);
    let dir = [repository.name().as_slice(), b"-", slug.as_bytes()].concat();
    Ok((branch, OsString::from_vec(dir)))
}

/// Turns git's error about missing objects of a partial clone into an error with a hint. guard lets git fetch
/// missing objects only in a trusted repository.
pub(crate) fn missing_objects(error: GitError, repository: &Repository) -> WorkspaceError {
    let said = error.to_string();
    if repository.trusted || !GitMessage::MissingPromisedObjects.is_in(&said) {
        return error.into();
    }
    WorkspaceError::refused(
        format!(
            "this partial clone lacks files of the commit, and guard does not fetch them for an untrusted \
             repository: {said}"
        ),
        "fetch the files (`git checkout` the commit once), or give --trust-repository",
    )
}

pub(crate) fn branch_taken(branch: &str) -> WorkspaceError {
    WorkspaceError::NameTaken {
        what: format!("the branch {}", branch.strip_prefix("refs/heads/").unwrap_or(branch)),
        hint: "choose another --name, or work in the worktree of that branch with --here",
    }
}

pub(crate) fn resolve_base(repository: &Repository, request: &Request) -> Result<String, WorkspaceError> {
    if let Some(name) = &request.base {
        return repository.commit(name)?.ok_or_else(|| {
            WorkspaceError::refused(
                format!("--base {name:?} is not a commit of this repository"),
                "`git log --all` shows the commits",
            )
        });
    }
    repository.head.commit().map(str::to_string).ok_or_else(|| {
        WorkspaceError::refused(
            "the repository has no commit to start from",
            "create a first commit (git commit --allow-empty -m start), or give --base",
        )
    })
}

/// Chooses the directory for new worktrees, and creates it if it is missing: the root in the request, or else
/// `.worktrees` beside the repository if that directory is safe to use, or else the request's fallback.
pub(crate) fn create_root(repository: &Repository, request: &Request) -> Result<PathBuf, WorkspaceError> {
    let place = repository.place();
    if let Some(root) = &request.root {
        let root = place.join(root);
        at("create", &root, fs::create_dir_all(&root))?;
        return at("resolve", &root, root.canonicalize());
    }
    if let Some(parent) = place.parent() {
        let root = parent.join(".worktrees");
        if is_usable_root(&root) {
            return Ok(root);
        }
    }
    let root = &request.fallback_root;
    let made = DirBuilder::new().mode(0o700).recursive(true).create(root);
    at("create", root, made)?;
    at("resolve", root, root.canonicalize())
}

/// Returns the directory that [`create_root`] would choose. Creates nothing.
pub(super) fn planned_root(repository: &Repository, request: &Request) -> PathBuf {
    let place = repository.place();
    let usual = place.parent().map(|parent| parent.join(".worktrees"));
    let root = match (&request.root, usual) {
        (Some(root), _) => place.join(root),
        (None, Some(root)) if is_own_root(&root) || may_create(&root) => return root,
        (None, _) => request.fallback_root.clone(),
    };
    root.canonicalize().unwrap_or(root)
}

/// True if guard can use the directory for worktrees, as [`is_own_root`] says. Creates the directory if it is missing.
fn is_usable_root(root: &Path) -> bool {
    if DirBuilder::new().mode(0o755).create(root).is_ok() {
        // Hide the worktrees from `git status` in a repository that contains this directory.
        let _ = fs::write(root.join(".gitignore"), "*\n");
    }
    is_own_root(root)
}

/// True if the path is a directory and not a symbolic link, belongs to this user, is writable for this process, and is
/// not world-writable. Its group may be allowed to write, as is usual with a umask of 002.
fn is_own_root(root: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let is_own = |data: fs::Metadata| data.is_dir() && data.uid() == own && data.mode() & 0o002 == 0;
    root.symlink_metadata().is_ok_and(is_own) && is_writable(root)
}

/// True if nothing is at the path, and this process may create a directory there.
fn may_create(root: &Path) -> bool {
    let is_missing = root.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    is_missing && root.parent().is_some_and(is_writable)
}

fn is_writable(dir: &Path) -> bool {
    nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK).is_ok()
}
