//! Receives exactly one branch, as a server receives a push from a stranger.
//!
//! Guard reads the branch's value as a plain file ([`refs`]), and jailed git processes transfer its objects
//! (`push.rs`). The real branch moves only from where guard left it, and only to a descendant of the run's
//! base. On any error, nothing moves and the quarantine is kept.
pub(crate) mod lfs;
pub(crate) mod push;
pub(crate) mod tree_size;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::WorkspaceError;
use super::git::command::{Git, GitError, Trust};
use super::git::gitfile::read_linked;
use super::git::refs;
use super::git::refs::RefError;
use super::git::stderr_messages::GitMessage;
use super::run::create::Workspace;
use super::run::run_record::State;
use push::Report;
use tree_size::TreeSizeError;

/// The limits of a receive.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size of the packed objects, in bytes.
    pub bytes: u64,
    /// Timeout of the whole receive.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 512 << 20, time: Duration::from_secs(300) }
    }
}

impl Limits {
    /// The limits that a policy sets.
    pub fn new(policy: &crate::policy::Policy) -> Self {
        let mib = u64::try_from(policy.git.receive_mib).unwrap_or(1);
        Self { bytes: mib.saturating_mul(1 << 20), ..Self::default() }
    }
}

/// A commit that the agent made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The commit's id.
    pub id: String,
    /// The author that the commit names.
    pub author: String,
    /// The first line of the message, without control characters.
    pub subject: String,
}

/// A ref of the quarantine that changed during the run. It is reported, not received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherRef {
    /// The ref's name.
    pub name: String,
    /// The object that it names now; `None` if it was deleted or is no plain ref.
    pub id: Option<String>,
    /// The agent created it; otherwise the agent moved or deleted it.
    pub is_new: bool,
}

/// The result of a receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The branch's commit before.
    pub old: String,
    /// The branch's commit now.
    pub new: String,
    /// The commits in between, oldest first; only the newest if there are very many.
    pub commits: Vec<Commit>,
    /// Other refs that changed; only the first if there are very many.
    pub other_refs: Vec<OtherRef>,
    /// The number of changed refs that are not listed.
    pub other_refs_left_out: usize,
}

/// Why nothing was received. The quarantine is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The branch in the quarantine is no plain ref.
    #[error("the branch {branch} cannot be received: {source}")]
    Ref {
        /// The branch.
        branch: String,
        /// What is wrong with the ref.
        source: RefError,
    },
    /// The branch does not descend from the run's base.
    #[error("{new} does not descend from {base}: commits from before the run were changed or dropped")]
    NotDescending {
        /// The commit of the agent's branch.
        new: String,
        /// The commit that the run started from.
        base: String,
    },
    /// The branch names an object that is no commit.
    #[error("{0} is no commit")]
    NotACommit(String),
    /// Somebody else moved the real branch.
    #[error("the branch {branch} was moved by somebody else, from {expected} to {found}")]
    Moved {
        /// The branch.
        branch: String,
        /// The commit at which guard left it.
        expected: String,
        /// Its commit now; empty if the branch was deleted.
        found: String,
    },
    /// The branch is also checked out in another worktree.
    #[error("the branch {branch} is checked out in {} as well", worktree.display())]
    CheckedOut {
        /// The branch.
        branch: String,
        /// The other worktree.
        worktree: PathBuf,
    },
    /// The objects exceed the size limit.
    #[error("the commits are larger than {} MiB", limit >> 20)]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The commits' trees are larger than git can handle.
    #[error("the commits cannot be received: {0}")]
    Trees(TreeSizeError),
    /// The receive exceeded its timeout.
    #[error("receiving took longer than {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The objects in the quarantine cannot be read.
    #[error("the objects in the quarantine cannot be read: {0}")]
    Unreadable(String),
    /// The real repository's checks rejected the objects.
    #[error("the objects were refused: {0}")]
    BadObjects(String),
    /// The workspace is in a state that does not allow a receive.
    #[error("there is nothing to receive from: the workspace is {0}")]
    NotOpen(&'static str),
    /// An error of this machine: git, a file, or the jail.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

impl From<GitError> for ReceiveError {
    fn from(error: GitError) -> Self {
        match error {
            GitError::TimedOut { limit, .. } => Self::TooSlow(limit),
            other => Self::Workspace(other.into()),
        }
    }
}

impl From<TreeSizeError> for ReceiveError {
    fn from(error: TreeSizeError) -> Self {
        match error {
            TreeSizeError::Git(error) => error.into(),
            TreeSizeError::Unreadable(problem) => Self::Unreadable(problem),
            other => Self::Trees(other),
        }
    }
}

impl ReceiveError {
    /// True if `guard worktree receive RUN` may succeed later without a change in the quarantine.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::TooSlow(_) | Self::CheckedOut { .. } | Self::Workspace(_)
        )
    }
}

/// Maximum number of commits to list.
const MOST_COMMITS: usize = 1_000;

impl Workspace {
    /// Receives the task's branch. The agent must have ended. On success the real branch is at the agent's
    /// commit; on an error nothing has changed.
    pub fn receive(&mut self, limits: &Limits) -> Result<Received, ReceiveError> {
        let _span =
            tracing::info_span!("receive", run = %self.record.run_id, branch = %self.record.branch).entered();
        match self.record.state {
            State::Open | State::Receiving | State::Received | State::Kept => {}
            state => return Err(ReceiveError::NotOpen(state.name())),
        }
        let git = self.quarantine();
        if git.symlink_metadata().is_err() {
            return Err(ReceiveError::NotOpen("received already, and its quarantine gone"));
        }
        let failed = |source| ReceiveError::Ref { branch: self.branch().to_string(), source };
        let format = &self.record.object_format;
        let new = refs::read(&git, &self.refs_before(), &self.record.branch, format).map_err(failed)?;
        let others = refs::changed(&git, &self.refs_before(), &self.record.branch, format).map_err(failed)?;
        let other_refs_left_out = others.left_out;
        let other_refs = others
            .listed
            .into_iter()
            .map(|one| OtherRef { name: one.name, id: one.now, is_new: !one.was_there })
            .collect();
        let old = self.record.tip.clone();
        let mut received = Received {
            old: old.clone(),
            new: new.clone(),
            commits: Vec::new(),
            other_refs,
            other_refs_left_out,
        };
        if new == old {
            return Ok(received);
        }
        self.is_only_here()?;
        self.set_state(State::Receiving)?;
        super::git::command::again_when_interfered(|| self.transfer(&old, &new, limits))?;
        // Before the record is updated: if this is interrupted, it runs again.
        super::at(
            "receive large objects to",
            &self.record.common_dir,
            lfs::receive(&git, &self.record.common_dir, limits.bytes),
        )?;
        self.record.tip.clone_from(&new);
        self.set_state(State::Received)?;
        received.commits = self.commits(&old, &new)?;
        Ok(received)
    }

    pub(crate) fn set_state(&mut self, state: State) -> Result<(), WorkspaceError> {
        self.record.state = state;
        self.record.write(&self.run_folder)
    }

    /// A git call on the real repository with no configuration but the repository's own.
    pub(crate) fn real_git(&self, verb: &str) -> Result<Git, GitError> {
        let git =
            Git::new(Trust::Neutral, verb)?.dir(&self.record.common_dir).within(&self.record.common_dir);
        Ok(git
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_COMMITTER_NAME", "guard")
            .env("GIT_COMMITTER_EMAIL", "guard@localhost")
            .env("GIT_AUTHOR_NAME", "guard")
            .env("GIT_AUTHOR_EMAIL", "guard@localhost"))
    }

    fn transfer(&self, old: &str, new: &str, limits: &Limits) -> Result<(), ReceiveError> {
        let branch = self.record.branch.clone();
        match self.push(&branch, old, new, limits)? {
            Report::Done => Ok(()),
            Report::NotForward if *old == self.record.base => Err(self.not_descending(new)),
            // The agent amended commits of an earlier step. That is allowed, as long as the branch descends
            // from the base.
            Report::NotForward => self.replace(old, new, limits),
            Report::Refused(reason) => {
                let found = self.real_tip()?.unwrap_or_default();
                if found == new {
                    // An earlier receive was interrupted after its last step.
                    return Ok(());
                }
                if found != old {
                    return Err(ReceiveError::Moved {
                        branch: self.branch().to_string(),
                        expected: old.to_string(),
                        found,
                    });
                }
                Err(refusal(&reason, new))
            }
        }
    }

    pub(crate) fn not_descending(&self, new: &str) -> ReceiveError {
        ReceiveError::NotDescending { new: new.to_string(), base: self.record.base.clone() }
    }

    /// The commit of the real branch.
    pub(crate) fn real_tip(&self) -> Result<Option<String>, GitError> {
        let answer = self
            .real_git("rev-parse")?
            .args(["--verify", "--quiet", "--end-of-options", &self.record.branch])
            .answer()?;
        let text = String::from_utf8_lossy(&answer.output).trim_end().to_string();
        Ok((answer.status.success() && !text.is_empty()).then_some(text))
    }

    /// Receives into a ref of guard's own, then moves the branch there if it still descends from the base.
    fn replace(&self, old: &str, new: &str, limits: &Limits) -> Result<(), ReceiveError> {
        let incoming = format!("{}/incoming", self.kept_under());
        let zero = "0".repeat(new.len());
        // Left by an interrupted receive; no longer needed.
        self.real_git("update-ref")?.args(["-d", &incoming]).run()?;
        match self.push(&incoming, &zero, new, limits)? {
            Report::Done => {}
            Report::NotForward => return Err(self.not_descending(new)),
            Report::Refused(reason) => return Err(refusal(&reason, new)),
        }
        let ancestor =
            self.real_git("merge-base")?.args(["--is-ancestor", &self.record.base, new]).answer()?;
        let branch = &self.record.branch;
        let commands = if ancestor.status.success() {
            format!("update {branch} {new} {old}\ndelete {incoming} {new}\n")
        } else {
            format!("delete {incoming} {new}\n")
        };
        let moved = self.real_git("update-ref")?.arg("--stdin").input(commands.into_bytes()).answer()?;
        if !ancestor.status.success() {
            return Err(self.not_descending(new));
        }
        if !moved.status.success() {
            let found = self.real_tip()?.unwrap_or_default();
            let (branch, expected) = (self.branch().to_string(), old.to_string());
            return Err(ReceiveError::Moved { branch, expected, found });
        }
        Ok(())
    }

    fn commits(&self, old: &str, new: &str) -> Result<Vec<Commit>, GitError> {
        let output = self
            .real_git("rev-list")?
            .args([
                "--no-commit-header",
                "--format=%H%x00%<(200,trunc)%an%x00%<(200,trunc)%ae%x00%<(400,trunc)%s",
                "--topo-order",
            ])
            .arg(format!("--max-count={MOST_COMMITS}"))
            .args([new, "--not", old, &self.record.base])
            .run()?;
        let text = String::from_utf8_lossy(&output);
        let plain = |text: &str| -> String {
            text.chars().filter(|c| !crate::terminal_text::is_unsafe(*c)).collect()
        };
        let commit = |line: &str| {
            // git pads shorter fields with blanks.
            let mut parts = line.splitn(4, '\0').map(|part| plain(part.trim_end()));
            let (id, name, address) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Commit { id, author: format!("{name} <{address}>"), subject: parts.next()? })
        };
        let mut commits: Vec<Commit> = text.lines().filter_map(commit).collect();
        commits.reverse();
        Ok(commits)
    }

    /// Fails if another worktree has the branch checked out: moving it would put that worktree out of step.
    fn is_only_here(&self) -> Result<(), ReceiveError> {
        let record = &self.record;
        let heads = if record.ref_format == "files" { self.heads() } else { self.heads_by_git()? };
        let other = heads.into_iter().find(|(folder, branch)| {
            let same = || folder.canonicalize().ok() == record.worktree.canonicalize().ok();
            branch.as_slice() == record.branch.as_bytes() && *folder != record.worktree && !same()
        });
        match other {
            None => Ok(()),
            Some((worktree, _)) => {
                Err(ReceiveError::CheckedOut { branch: self.branch().to_string(), worktree })
            }
        }
    }

    /// (worktree, branch) of every worktree, read from files.
    fn heads(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let common = &self.record.common_dir;
        let branch = |folder: &Path| -> Option<Vec<u8>> {
            let text = read_linked(&folder.join("HEAD"), 8192).ok()?;
            Some(text.strip_prefix(b"ref: ")?.trim_ascii_end().to_vec())
        };
        let worktrees = std::fs::read_dir(common.join("worktrees")).into_iter().flatten().flatten();
        let linked = worktrees.filter_map(|entry| {
            let file = read_linked(&entry.path().join("gitdir"), 8192).ok()?;
            let file = entry.path().join(OsStr::from_bytes(file.trim_ascii_end()));
            Some((file.parent()?.to_path_buf(), branch(&entry.path())?))
        });
        let main = common.parent().and_then(|parent| Some((parent.to_path_buf(), branch(common)?)));
        linked.chain(main).collect()
    }

    /// Like `heads`, but asks git, for ref formats that are not plain files.
    fn heads_by_git(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, GitError> {
        let output = self.real_git("worktree")?.args(["list", "--porcelain", "-z"]).run()?;
        let (mut heads, mut current) = (Vec::new(), PathBuf::new());
        for line in output.split(|byte| *byte == 0) {
            if let Some(path) = line.strip_prefix(b"worktree ") {
                current = PathBuf::from(OsStr::from_bytes(path));
            } else if let Some(branch) = line.strip_prefix(b"branch ") {
                heads.push((current.clone(), branch.to_vec()));
            }
        }
        Ok(heads)
    }
}

fn refusal(reason: &str, new: &str) -> ReceiveError {
    if GitMessage::NotACommit.is_in(reason) {
        return ReceiveError::NotACommit(new.to_string());
    }
    ReceiveError::BadObjects(reason.to_string())
}
