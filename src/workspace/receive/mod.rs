//! Receiving: exactly one branch, as a server receives a push from a stranger.
//!
//! The branch's value is read as a plain file ([`refs`]), its objects are pushed by jailed programs (`push.rs`), and the
//! real branch moves only from where guard left it to something that descends from the run's base.
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

/// How much is received.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of packed objects.
    pub bytes: u64,
    /// Time for all of it.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 512 << 20, time: Duration::from_secs(300) }
    }
}

impl Limits {
    /// What a policy says.
    pub fn new(policy: &crate::policy::Policy) -> Self {
        let mib = u64::try_from(policy.git.receive_mib).unwrap_or(1);
        Self { bytes: mib.saturating_mul(1 << 20), ..Self::default() }
    }
}

/// A commit of the agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its name.
    pub id: String,
    /// Who it says made it.
    pub author: String,
    /// The first line of its message, without control characters.
    pub subject: String,
}

/// A ref of the quarantine that is not as it was when the run began: told, not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherRef {
    /// Its name.
    pub name: String,
    /// The object it names now; none when it is gone or is no plain ref.
    pub id: Option<String>,
    /// The agent made it; otherwise it was moved or deleted.
    pub is_new: bool,
}

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Where the branch was.
    pub old: String,
    /// Where it is.
    pub new: String,
    /// The commits between, the oldest first; of very many only the newest.
    pub commits: Vec<Commit>,
    /// Other refs that are not as they were; of very many only the first.
    pub other_refs: Vec<OtherRef>,
    /// How many more refs are not as they were.
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
        /// Why.
        source: RefError,
    },
    /// The branch does not begin where the run began.
    #[error("{new} does not descend from {base}: commits from before the run were changed or dropped")]
    NotDescending {
        /// What the agent's branch is.
        new: String,
        /// Where the run began.
        base: String,
    },
    /// The branch names something that is no commit.
    #[error("{0} is no commit")]
    NotACommit(String),
    /// Somebody else has moved the real branch.
    #[error("the branch {branch} was moved by somebody else, from {expected} to {found}")]
    Moved {
        /// The branch.
        branch: String,
        /// Where guard left it.
        expected: String,
        /// Where it is; empty when it is gone.
        found: String,
    },
    /// Somebody has the branch checked out in another worktree as well.
    #[error("the branch {branch} is checked out in {} as well", worktree.display())]
    CheckedOut {
        /// The branch.
        branch: String,
        /// Where else.
        worktree: PathBuf,
    },
    /// More than may be received.
    #[error("the commits are larger than {} MiB", limit >> 20)]
    TooLarge {
        /// The bound, in bytes.
        limit: u64,
    },
    /// The commits' trees are larger than git can handle.
    #[error("the commits cannot be received: {0}")]
    Trees(TreeSizeError),
    /// Longer than it may take.
    #[error("receiving took longer than {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The objects in the quarantine cannot be read.
    #[error("the objects in the quarantine cannot be read: {0}")]
    Unreadable(String),
    /// The objects are not what a repository takes.
    #[error("the objects were refused: {0}")]
    BadObjects(String),
    /// The workspace is not one to receive from.
    #[error("there is nothing to receive from: the workspace is {0}")]
    NotOpen(&'static str),
    /// Something of this machine.
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
    /// Trying again can help without anything changing in the quarantine: `guard worktree receive RUN`.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::TooSlow(_) | Self::CheckedOut { .. } | Self::Workspace(_)
        )
    }
}

/// The most commits that are told one by one.
const MOST_COMMITS: usize = 1_000;

impl Workspace {
    /// Receives the task's branch. The agent must not be running; afterwards the branch is where the agent left it, or an
    /// error says why not and everything is as it was.
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
        // Before the record says so: what is interrupted here is done again.
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

    /// A call in the real repository with no configuration but its own.
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
            // Own commits of an earlier step were amended: what counts is the base.
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

    /// Where the real branch is.
    pub(crate) fn real_tip(&self) -> Result<Option<String>, GitError> {
        let answer = self
            .real_git("rev-parse")?
            .args(["--verify", "--quiet", "--end-of-options", &self.record.branch])
            .answer()?;
        let text = String::from_utf8_lossy(&answer.output).trim_end().to_string();
        Ok((answer.status.success() && !text.is_empty()).then_some(text))
    }

    /// Receives into a ref of guard's own, and moves the branch there if it still descends from the base.
    fn replace(&self, old: &str, new: &str, limits: &Limits) -> Result<(), ReceiveError> {
        let incoming = format!("{}/incoming", self.kept_under());
        let zero = "0".repeat(new.len());
        // What an interrupted receive left there is in nobody's way.
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
            // git fills shorter ones up with blanks.
            let mut parts = line.splitn(4, '\0').map(|part| plain(part.trim_end()));
            let (id, name, address) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Commit { id, author: format!("{name} <{address}>"), subject: parts.next()? })
        };
        let mut commits: Vec<Commit> = text.lines().filter_map(commit).collect();
        commits.reverse();
        Ok(commits)
    }

    /// The branch is checked out nowhere but in this worktree: moving it would put another one out of step.
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

    /// (worktree, branch) of every worktree, from the files that say so.
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

    /// The same by asking git, for formats that are not plain files.
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
