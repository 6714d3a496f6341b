//! Receives exactly one branch from a run's quarantine repository, as a server accepts a push from an untrusted
//! client.
//!
//! guard itself reads the branch's commit id, without git ([`refs`]). Jailed git processes transfer the objects
//! (`push.rs`). guard moves the branch in the user's repository only if nobody else has moved it since guard last
//! did, and only to a descendant of the run's base commit. If guard refuses the commits, it does not move the branch.
//! After any error guard keeps the quarantine.
pub(crate) mod lfs;
pub(crate) mod push;
pub(crate) mod tree_size;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::WorkspaceError;
use crate::git::plumbing::command::{Git, Trust};
use crate::git::plumbing::gitfile::read_following_links;
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::refs;
use crate::git::plumbing::refs::RefError;
use crate::git::plumbing::stderr_messages::GitMessage;
use crate::git::workspace::create::Workspace;
use crate::git::workspace::run_record::{Record, State};
use push::Report;
use tree_size::TreeSizeError;

/// The limits on the size and time of receiving a branch.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size of the pack of new objects, in bytes. Also the maximum total size of the received LFS objects.
    pub bytes: u64,
    /// Timeout for each git process of the transfer.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 512 << 20, time: Duration::from_secs(300) }
    }
}

impl Limits {
    /// Returns the default limits with the maximum pack size of the policy.
    pub fn new(policy: &crate::judge::policy::Policy) -> Self {
        let mib = u64::try_from(policy.git.receive_mib).unwrap_or(1);
        Self { bytes: mib.saturating_mul(1 << 20), ..Self::default() }
    }
}

/// A commit of the agent that guard received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub id: String,
    /// The author as the commit names it, in the form `NAME <EMAIL>`.
    pub author: String,
    /// The first line of the commit's message, without control characters.
    pub subject: String,
}

/// A ref of the quarantine repository (the run's private git directory), other than the run's branch, that changed
/// during the run. guard reports such a ref but does not receive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherRef {
    /// The full name of the ref.
    pub name: String,
    /// The object id that the ref contains now; `None` if the ref was deleted or does not contain an id.
    pub id: Option<String>,
    /// True if the agent created the ref; false if the agent moved or deleted it.
    pub is_new: bool,
}

/// The commits that guard received from a run's quarantine repository (its private git directory), and the other refs
/// that changed there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The commit of the branch in the user's repository before guard received the branch.
    pub old: String,
    /// The commit of the branch in the user's repository now.
    pub new: String,
    /// The received commits, oldest first. If there are more than 1,000, the list has only the newest of them.
    pub commits: Vec<Commit>,
    /// The number of received commits, including those that `commits` does not list.
    pub commit_count: usize,
    /// Refs of the quarantine repository, other than the run's branch, that changed during the run; at most 1,000.
    pub other_refs: Vec<OtherRef>,
    /// The number of changed refs that `other_refs` does not list.
    pub other_refs_left_out: usize,
}

/// Why guard did not receive a branch from a run's quarantine repository (its private git directory). guard then
/// keeps that repository.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// guard cannot read the refs of the quarantine repository, or the branch's ref does not contain a commit id.
    #[error("cannot receive the branch {branch}: {source}")]
    Ref { branch: String, source: RefError },
    #[error(
        "the new commit {new} does not descend from {base}, the commit that the run started from: \
         the agent changed or dropped commits from before the run"
    )]
    NotDescending {
        /// The commit of the branch in the quarantine repository.
        new: String,
        base: String,
    },
    #[error("the branch points to the object {0}, which is not a commit")]
    NotACommit(String),
    /// The user or another process moved or deleted the branch in the user's repository during the run.
    #[error(
        "the branch {branch} changed in the repository during the run: expected {expected}, found {}",
        commit_or_deleted(.found)
    )]
    Moved {
        /// The name of the run's branch without `refs/heads/`.
        branch: String,
        /// The commit of the branch when guard last moved it.
        expected: String,
        /// The commit of the branch now; empty if the branch was deleted.
        found: String,
    },
    #[error("the branch {branch} is also checked out in {}", worktree.display())]
    CheckedOut {
        /// The name of the run's branch without `refs/heads/`.
        branch: String,
        worktree: PathBuf,
    },
    #[error("the new commits are larger than the limit of {} MiB", limit >> 20)]
    TooLarge {
        /// The maximum size of the pack, in bytes.
        limit: u64,
    },
    /// There are more commits, or commits with more paths, than git can handle in reasonable memory and time.
    #[error("cannot receive the commits: {0}")]
    Trees(TreeSizeError),
    /// Receiving the branch took longer than this timeout.
    #[error("receiving the branch took longer than {} s", .0.as_secs())]
    TooSlow(Duration),
    /// git cannot read the objects in the quarantine repository; the text is its message.
    #[error("cannot read the git objects in the run's private repository: {0}")]
    Unreadable(String),
    /// The receiving git rejected the objects because they are malformed or incomplete; the text is its message.
    #[error("git rejected the received objects: {0}")]
    BadObjects(String),
    /// The workspace has nothing to receive; the text says why.
    #[error("nothing to receive: {0}")]
    NotOpen(&'static str),
    /// The cause is not in the commits: a git call, a file operation or the sandbox failed.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

fn commit_or_deleted(found: &str) -> &str {
    if found.is_empty() { "no branch of that name" } else { found }
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
    /// True if a later `guard worktree receive RUN` may succeed with the same quarantine repository (the run's
    /// private git directory).
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::TooSlow(_) | Self::CheckedOut { .. } | Self::Workspace(_)
        )
    }
}

/// Maximum number of received commits to list.
const MAX_COMMITS: usize = 1_000;

impl Workspace {
    /// Receives the run's branch into the user's repository. The agent must have ended. After success the branch in
    /// the user's repository is at the agent's commit. If guard refuses the commits, it has not moved the branch. If
    /// a later step fails, such as copying LFS objects, the branch has already moved, and a repeated call completes
    /// the operation.
    pub fn receive(&mut self, limits: &Limits) -> Result<Received, ReceiveError> {
        let _span =
            tracing::info_span!("receive", run = %self.record.run_id, branch = %self.record.branch).entered();
        match self.record.state {
            State::Open | State::Receiving | State::Received | State::Kept => {}
            State::Opening => {
                return Err(ReceiveError::NotOpen("guard did not finish creating the workspace"));
            }
            State::Removing | State::Removed => {
                return Err(ReceiveError::NotOpen("guard has removed the worktree, or began to"));
            }
        }
        let git = self.quarantine();
        if git.symlink_metadata().is_err() {
            let why = "guard has already received the commits, and removed the run's private repository";
            return Err(ReceiveError::NotOpen(why));
        }
        let failed = |source| ReceiveError::Ref { branch: self.branch().to_string(), source };
        let format = &self.record.object_format;
        let new = refs::read_ref(&git, &self.refs_before(), &self.record.branch, format).map_err(failed)?;
        let others =
            refs::changed_refs(&git, &self.refs_before(), &self.record.branch, format).map_err(failed)?;
        let other_refs_left_out = others.left_out;
        let other_refs = others
            .listed
            .into_iter()
            .map(|one| OtherRef { name: one.name, id: one.now, is_new: !one.existed_before })
            .collect();
        let old = self.record.tip.clone();
        let mut received = Received {
            old: old.clone(),
            new: new.clone(),
            commits: Vec::new(),
            commit_count: 0,
            other_refs,
            other_refs_left_out,
        };
        if new == old {
            return Ok(received);
        }
        self.check_not_checked_out_elsewhere()?;
        self.set_state(State::Receiving)?;
        crate::git::plumbing::command::retry_during_worktree_changes(|| self.transfer(&old, &new, limits))?;
        // Copy the LFS objects before guard updates the record: if guard is interrupted, the next receive copies them
        // again.
        super::at(
            "copy git-lfs objects to",
            &self.record.common_dir,
            lfs::receive(&git, &self.record.common_dir, limits.bytes),
        )?;
        self.record.tip.clone_from(&new);
        self.set_state(State::Received)?;
        received.commits = self.list_commits(&old, &new)?;
        received.commit_count = match received.commits.len() {
            MAX_COMMITS => self.count_commits(&old, &new)?,
            count => count,
        };
        Ok(received)
    }

    pub(crate) fn set_state(&mut self, state: State) -> Result<(), WorkspaceError> {
        self.record.state = state;
        self.record.write(&self.run_folder)
    }

    /// Builds a git call on the user's repository that reads only the repository's own configuration. git creates
    /// commits with guard as author and committer.
    pub(crate) fn real_git(&self, verb: &str) -> Result<Git, GitError> {
        let common_dir = &self.record.common_dir;
        let git = Git::new(Trust::Neutral, verb)?.git_dir(common_dir).current_dir(common_dir);
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
            // The agent amended commits that guard received earlier. guard allows that as long as the branch descends
            // from the run's base commit.
            Report::NotForward => self.receive_rewritten(old, new, limits),
            Report::Refused(reason) => {
                let found = self.real_tip()?.unwrap_or_default();
                if found == new {
                    // An earlier receive moved the branch, but was interrupted before it returned.
                    return Ok(());
                }
                if found != old {
                    return Err(ReceiveError::Moved {
                        branch: self.branch().to_string(),
                        expected: old.to_string(),
                        found,
                    });
                }
                Err(refusal_error(&reason, new))
            }
        }
    }

    pub(crate) fn not_descending(&self, new: &str) -> ReceiveError {
        ReceiveError::NotDescending { new: new.to_string(), base: self.record.base.clone() }
    }

    /// Returns the commit of the run's branch in the user's repository; `None` if the branch does not exist there.
    pub(crate) fn real_tip(&self) -> Result<Option<String>, GitError> {
        let Record { common_dir, branch, object_format, .. } = &self.record;
        if self.record.ref_format == "files" {
            match refs::read_ref(common_dir, &self.refs_before(), branch, object_format) {
                Ok(tip) => return Ok(Some(tip)),
                Err(RefError::Missing) => return Ok(None),
                // The user's repository may have a form that only git reads, such as links in place of files.
                Err(_) => {}
            }
        }
        let answer = self
            .real_git("rev-parse")?
            .args(["--verify", "--quiet", "--end-of-options", &self.record.branch])
            .output()?;
        let text = String::from_utf8_lossy(&answer.output).trim_end().to_string();
        Ok((answer.status.success() && !text.is_empty()).then_some(text))
    }

    /// Receives a branch on which the agent rewrote commits that guard had received earlier. guard receives the new
    /// commit into a temporary ref of its own. Then it moves the branch to that commit if the commit still descends
    /// from the run's base commit.
    fn receive_rewritten(&self, old: &str, new: &str, limits: &Limits) -> Result<(), ReceiveError> {
        let incoming = format!("{}/incoming", self.saved_refs_prefix());
        let zero = "0".repeat(new.len());
        // An interrupted receive may have left this temporary ref.
        self.real_git("update-ref")?.args(["-d", &incoming]).run()?;
        match self.push(&incoming, &zero, new, limits)? {
            Report::Done => {}
            Report::NotForward => return Err(self.not_descending(new)),
            Report::Refused(reason) => return Err(refusal_error(&reason, new)),
        }
        let ancestor =
            self.real_git("merge-base")?.args(["--is-ancestor", &self.record.base, new]).output()?;
        let branch = &self.record.branch;
        let commands = if ancestor.status.success() {
            format!("update {branch} {new} {old}\ndelete {incoming} {new}\n")
        } else {
            format!("delete {incoming} {new}\n")
        };
        let moved = self.real_git("update-ref")?.arg("--stdin").input(commands.into_bytes()).output()?;
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

    fn count_commits(&self, old: &str, new: &str) -> Result<usize, GitError> {
        let base = &self.record.base;
        let output = self.real_git("rev-list")?.args(["--count", new, "--not", old, base]).run()?;
        // git prints one number.
        Ok(String::from_utf8_lossy(&output).trim().parse().unwrap_or(MAX_COMMITS))
    }

    fn list_commits(&self, old: &str, new: &str) -> Result<Vec<Commit>, GitError> {
        let output = self
            .real_git("rev-list")?
            .args([
                "--no-commit-header",
                "--format=%H%x00%<(200,trunc)%an%x00%<(200,trunc)%ae%x00%<(400,trunc)%s",
                "--topo-order",
            ])
            .arg(format!("--max-count={MAX_COMMITS}"))
            .args([new, "--not", old, &self.record.base])
            .run()?;
        let text = String::from_utf8_lossy(&output);
        let plain = |text: &str| -> String {
            text.chars().filter(|c| !crate::text::terminal_text::is_unsafe(*c)).collect()
        };
        let commit = |line: &str| {
            // git pads short fields with blanks.
            let mut parts = line.splitn(4, '\0').map(|part| plain(part.trim_end()));
            let (id, name, address) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Commit { id, author: format!("{name} <{address}>"), subject: parts.next()? })
        };
        let mut commits: Vec<Commit> = text.lines().filter_map(commit).collect();
        commits.reverse();
        Ok(commits)
    }

    /// Fails if the branch is checked out in another worktree: if guard moved the branch, all files in that worktree
    /// would appear changed.
    fn check_not_checked_out_elsewhere(&self) -> Result<(), ReceiveError> {
        let record = &self.record;
        let heads = if record.ref_format == "files" {
            self.checked_out_branches()
        } else {
            self.checked_out_branches_by_git()?
        };
        let other = heads.into_iter().find(|(dir, branch)| {
            let same = || dir.canonicalize().ok() == record.worktree.canonicalize().ok();
            branch.as_slice() == record.branch.as_bytes() && *dir != record.worktree && !same()
        });
        match other {
            None => Ok(()),
            Some((worktree, _)) => {
                Err(ReceiveError::CheckedOut { branch: self.branch().to_string(), worktree })
            }
        }
    }

    /// Returns every worktree that has a branch checked out, as (path, full name of the branch). Reads the files `HEAD`
    /// and `gitdir` directly, without git.
    fn checked_out_branches(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let common = &self.record.common_dir;
        let branch = |dir: &Path| -> Option<Vec<u8>> {
            let text = read_following_links(&dir.join("HEAD"), 8192).ok()?;
            Some(text.strip_prefix(b"ref: ")?.trim_ascii_end().to_vec())
        };
        let worktrees = std::fs::read_dir(common.join("worktrees")).into_iter().flatten().flatten();
        let linked = worktrees.filter_map(|entry| {
            let file = read_following_links(&entry.path().join("gitdir"), 8192).ok()?;
            let file = entry.path().join(OsStr::from_bytes(file.trim_ascii_end()));
            Some((file.parent()?.to_path_buf(), branch(&entry.path())?))
        });
        let main = common.parent().and_then(|parent| Some((parent.to_path_buf(), branch(common)?)));
        linked.chain(main).collect()
    }

    /// Returns every worktree that has a branch checked out, as (path, full name of the branch), from
    /// `git worktree list`. Needed for repositories that store their refs in a reftable: their files `HEAD` do not
    /// name the branch.
    fn checked_out_branches_by_git(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, GitError> {
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

fn refusal_error(reason: &str, new: &str) -> ReceiveError {
    if GitMessage::NotACommit.is_in(reason) {
        return ReceiveError::NotACommit(new.to_string());
    }
    ReceiveError::BadObjects(reason.to_string())
}
