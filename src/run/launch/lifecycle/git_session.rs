//! Manages git for a run: creates a worktree with its branch and private git directory. After the run, copies the
//! agent's commits into the user's repository, gives the worktree back to the user, and reports other changes. This
//! module must never change refs, files or settings of the user's repository other than those of this worktree and
//! branch.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;

use crate::git::review::findings;
use crate::git::review::findings::{Danger, Inspected, Inspection};
use crate::git::snapshot::{Actor, Difference, ExpectedChanges, Fingerprint, Name};
use crate::git::{Changed, merged};
use crate::git::{DisposeReport, KeepPolicy, Limits, ReceiveError, Received, Repository, Request};
use crate::git::{Workspace, WorkspaceError};
use crate::run::launch::plan::checkout::Checkout;
use crate::run::outcome::{Change, ChangeKind, Commit, ErrorKind, Finding, MOST_CHANGES, OtherRef, Worktree};
use crate::run::transcript::{EventType, Recorder};
use crate::sys::agent_paths::{AgentPaths, state_directory};

/// Files in a worktree's git directory that guard itself writes when it gives the worktree back to the user, that is,
/// when it makes the worktree's `.git` file point to the user's repository again.
const WRITTEN_BY_GUARD: [&str; 4] = ["index", "logs/HEAD", "locked", "HEAD"];
/// The maximum number of findings of one kind that the run's result lists.
const MAX_FINDINGS: usize = 100;

/// A worktree with its branch and private git directory, which guard created for one run. Dropping the session before
/// the run has started removes the worktree and the branch, unless they contain new work.
pub struct GitSession {
    workspace: Workspace,
    /// True after a call of `end`, which gives the worktree back to the user (its `.git` file points to the user's
    /// repository again), so that `drop` does not do that again.
    is_ending: bool,
    /// The state of the user's repository before the run. `None` if guard could not read it.
    before: Option<Fingerprint>,
    /// Whether guard keeps the worktree after the run.
    disposal: KeepPolicy,
    limits: Limits,
}

/// The parts of a run's result that concern git.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub(crate) commits: Vec<Commit>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) worktree: Option<Worktree>,
    /// The files that the run changed, and true if the list is complete; `None` if guard could not list them.
    pub(crate) files: Option<(Vec<Change>, bool)>,
    /// The reason if the run failed because of git, whatever the command's exit code: (kind, message).
    pub(crate) failure: Option<(ErrorKind, String)>,
}

/// Writes the user's checkout into guard's record of places where agents work, so that guard trusts nothing there, even
/// if it is in a hidden directory of the home directory (`~/.dotfiles`) or its `.git` is removed.
fn record_checkouts(repository: &Repository) -> Result<(), WorkspaceError> {
    let Some(state) = state_directory() else { return Ok(()) };
    let place = repository.place();
    let checkouts = repository.toplevel.iter().chain([&place]).map(PathBuf::as_path);
    let recorded = AgentPaths::from_environment()
        .and_then(|known| AgentPaths::record_checkouts(&state, &known, checkouts));
    recorded.map_err(|source| WorkspaceError::Io {
        what: "write the record of directories of runs in",
        path: state,
        source,
    })
}

impl GitSession {
    /// Creates the worktree for a run, with its branch and its private git directory.
    pub fn open(
        repository: &Repository,
        request: &Request,
        disposal: KeepPolicy,
        limits: Limits,
    ) -> Result<Self, WorkspaceError> {
        let workspace = Workspace::open(repository, request)?;
        // Take the fingerprint after creating the worktree, so that the worktree does not count as a change. If guard
        // cannot read the repository, the agent cannot change it either; a finding then says that guard made no
        // comparison.
        let before = Fingerprint::take(&repository.common_dir).ok();
        let session = Self { workspace, is_ending: false, before, disposal, limits };
        record_checkouts(repository)?;
        Ok(session)
    }

    pub fn checkout(&self) -> Checkout {
        let record = self.workspace.record();
        let hooks = self.workspace.run_folder().join("hooks");
        Checkout {
            branch: self.workspace.branch().to_string(),
            base: record.base.clone(),
            worktree: record.worktree.clone(),
            git_folder: self.workspace.quarantine(),
            pointer: self.workspace.gitfile(),
            readable: self.workspace.readable().into_iter().filter(|path| *path != hooks).collect(),
            dependencies: self.workspace.layers(),
            hooks,
            common_dir: record.common_dir.clone(),
            leaves_changes_behind: self.leaves_changes_behind(),
            notes: self.workspace.notes().to_vec(),
        }
    }

    /// Returns the number of paths whose uncommitted changes guard copied from the user's worktree into the run's.
    pub fn carried_changes(&self) -> usize {
        self.workspace.carried_changes()
    }

    /// Returns the paths in the user's worktree that git ignores, and that guard did not copy into the run's
    /// worktree.
    pub fn left_behind(&self) -> &[PathBuf] {
        self.workspace.left_behind()
    }

    /// Returns the passwords and tokens in the user's git configuration, which the transcript must redact.
    pub(crate) fn credentials(&self) -> Vec<Vec<u8>> {
        self.workspace.credentials().to_vec()
    }

    /// Returns true if the user has uncommitted changes that guard did not copy into the run's worktree.
    pub fn leaves_changes_behind(&self) -> bool {
        self.workspace.has_uncommitted_changes()
    }

    /// Makes the worktree's `.git` file point to the private git directory until the run has ended. Needed in a run
    /// without a mount namespace.
    pub(crate) fn point_at_quarantine(&self) -> Result<(), WorkspaceError> {
        self.workspace.point_at_quarantine()
    }

    /// Copies the agent's commits into the user's repository, inspects the files that the agent left, and makes the
    /// worktree's `.git` file point to the user's repository again. The agent must have ended. If a step fails, adds a
    /// finding or sets the `failure` of the result.
    pub(crate) fn end(mut self, recorder: &Recorder, since: SystemTime) -> Ending {
        self.is_ending = true;
        let mut ending = Ending::default();
        let received = self.workspace.receive(&self.limits);
        match &received {
            Ok(received) => {
                ending.commits = received.commits.iter().map(commit).collect();
                let data = json!({
                    "branch": self.workspace.branch(), "old": received.old, "new": received.new,
                    "commits": received.commit_count,
                });
                let count = received.commit_count;
                let plural = if count == 1 { "" } else { "s" };
                let message = format!("{count} commit{plural} on {}", self.workspace.branch());
                recorder.record(EventType::GitReceived, &message, &data);
            }
            Err(error) => {
                let message = format!("receiving the run's commits into your repository failed: {error}");
                let data = json!({ "branch": self.workspace.branch(), "retryable": error.is_retryable() });
                recorder.record(EventType::GitRefused, &message, &data);
                if let ReceiveError::Trees(_) = error {
                    let advice = format!(
                        "do not fetch from the run's private repository; `guard worktree clean {}` removes it with the worktree",
                        self.workspace.record().run_id
                    );
                    ending.findings.push(Finding {
                        instead: Some(advice),
                        ..Finding::new("danger.tree", message.clone(), None)
                    });
                }
                ending.failure = Some((ErrorKind::ReceiveRefused, message));
            }
        }
        let inspected = self.find_dangers(&mut ending);
        // Keep the worktree if guard could not copy its commits, so that the user can inspect it.
        let disposal = if received.is_ok() { self.disposal } else { KeepPolicy::Keep };
        let settled = match self.workspace.dispose(disposal) {
            Ok(settled) => {
                ending.files = inspected.map(|inspected| self.files(inspected, &settled, since));
                settled
            }
            Err(error) => {
                let message = format!(
                    "guard cannot connect the worktree to your repository again: {error}; `guard worktree clean` in the repository tries again, and removes worktrees without new work"
                );
                ending.findings.push(Finding::new("worktree.unsettled", message.clone(), None));
                ending.failure.get_or_insert((ErrorKind::Internal, message));
                DisposeReport { kept: true, ..DisposeReport::default() }
            }
        };
        for (place, now) in settled.moved.iter().take(MAX_FINDINGS) {
            let message =
                format!("guard moved {}, which git cannot save, to {}", place.display(), now.display());
            ending.findings.push(Finding::new("worktree.foreign", message, Some(place)));
        }
        if let Some(left_out) = settled.moved.len().checked_sub(MAX_FINDINGS).filter(|count| *count > 0) {
            let message = format!(
                "git cannot save further files or directories, so guard moved them out of the worktree as well: {left_out} (only the first {MAX_FINDINGS} are listed)"
            );
            ending.findings.push(Finding::new("worktree.foreign", message, None));
        }
        self.compare(&settled, &mut ending);
        for finding in &ending.findings {
            recorder.record(EventType::Finding, &finding.message, finding);
        }
        ending.worktree = Some(self.worktree(&settled, &received));
        ending
    }

    fn worktree(&self, settled: &DisposeReport, received: &Result<Received, ReceiveError>) -> Worktree {
        let record = self.workspace.record();
        Worktree {
            path: record.worktree.to_string_lossy().into_owned(),
            branch: self.workspace.branch().to_string(),
            base: record.base.clone(),
            tip: record.tip.clone(),
            kept: settled.kept,
            uncommitted: settled.uncommitted.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            other_refs: received.iter().flat_map(|received| &received.other_refs).map(other_ref).collect(),
            other_refs_left_out: received.as_ref().map_or(0, |received| received.other_refs_left_out),
            saved: settled.saved.clone(),
            unreceived: settled.unreceived,
        }
    }

    /// Returns the files that the run changed, committed or not, and true if the list is complete.
    fn files(&self, inspected: Inspected, settled: &DisposeReport, since: SystemTime) -> (Vec<Change>, bool) {
        let committed = inspected.changed.into_iter().map(|(path, change)| (path.path(), change));
        let own = |(path, change): &&(PathBuf, Changed)| self.workspace.may_be_since(path, *change, since);
        let all = merged(committed, settled.changes.iter().filter(own).cloned());
        let is_all = inspected.is_all && settled.all_changes && all.len() <= MOST_CHANGES;
        let change = |(path, change): (PathBuf, Changed)| Change {
            path: path.to_string_lossy().into_owned(),
            change: match change {
                Changed::Created => ChangeKind::Created,
                Changed::Modified => ChangeKind::Modified,
                Changed::Deleted => ChangeKind::Deleted,
            },
        };
        (all.into_iter().take(MOST_CHANGES).map(change).collect(), is_all)
    }

    /// Inspects the commits and the worktree for files that git or other tools would execute, and adds findings: those
    /// about the whole branch, because the user reviews and applies the work of all its runs together. If the
    /// inspection fails, adds a finding about that and returns `None`.
    fn find_dangers(&self, ending: &mut Ending) -> Option<Inspected> {
        let record = self.workspace.record();
        // If git cannot compare the branch with the user's, inspect at least the work of this run.
        let base = self.workspace.review_base().unwrap_or(record.base.clone());
        let inspection = Inspection {
            objects: record.objects.clone(),
            ..Inspection::new(&record.common_dir, &record.worktree, Some(&base), Some(&record.tip))
        };
        let began = (base != record.base).then_some(record.base.as_str());
        match findings::inspect_with_changes(&inspection, began) {
            Ok(mut inspected) => {
                let found = std::mem::take(&mut inspected.dangers);
                ending.findings.extend(found.into_iter().map(danger_finding));
                Some(inspected)
            }
            Err(error) => {
                let message = format!("guard could not inspect the worktree for dangerous files: {error}");
                ending.findings.push(Finding::new("danger.unknown", message, None));
                None
            }
        }
    }

    /// Compares the user's repository with its state before the run, and adds a finding for each change, up to
    /// [`MAX_FINDINGS`]. The sandbox prevents changes by the agent; if there is one all the same, the run has failed.
    /// The user and other programs can change the repository, and guard does not undo their changes. What ordinary git
    /// commands of the user change is no finding.
    fn compare(&self, settled: &DisposeReport, ending: &mut Ending) {
        let compared = self.before.as_ref().map(|before| (before, before.retake()));
        let Some((before, Ok(after))) = compared else {
            let message = "guard could not compare the repository with its state before the run".to_string();
            ending.findings.push(Finding::new("repository.unknown", message, None));
            return;
        };
        let record = self.workspace.record();
        let worktree = record.admin_dir.file_name().map(|name| Name::from(name.as_encoded_bytes()));
        let ours = ExpectedChanges {
            run: record.run_id.clone(),
            branch: Some(Name::from(record.branch.as_bytes())),
            tip: settled.kept.then(|| record.tip.clone()),
            worktree,
            wrote: WRITTEN_BY_GUARD.iter().map(Name::from).collect::<BTreeSet<_>>(),
            grants: self.workspace.writable(),
        };
        let mut found: Vec<Difference> = before.compare(&after, &ours);
        // The user seldom moves the run's own branch during the run, and should then look at what they review.
        let is_noise = |one: &Difference| one.is_ordinary() && Some(&one.name) != ours.branch.as_ref();
        found.retain(|one| one.by != Actor::Guard && !is_noise(one));
        // Many changes by others must not hide one by the agent.
        found.sort_by_key(|one| one.by != Actor::Agent);
        for difference in found.iter().take(MAX_FINDINGS) {
            let kind = if difference.by == Actor::Agent { "repository.broken" } else { "repository.changed" };
            ending.findings.push(Finding::new(kind, difference.to_string(), None));
            if difference.by == Actor::Agent {
                let message = format!("the repository has changed outside the run's branch: {difference}");
                ending.failure = Some((ErrorKind::BoundaryBroken, message));
            }
        }
        if let Some(more) = found.len().checked_sub(MAX_FINDINGS).filter(|more| *more > 0) {
            let message = format!("further changes to the repository, not listed: {more}");
            ending.findings.push(Finding::new("repository.changed", message, None));
        }
        if after.is_incomplete() && !before.is_incomplete() {
            let message =
                "the repository has become too large to compare it completely with its state before the run";
            ending.findings.push(Finding::new("repository.unknown", message.to_string(), None));
        }
    }
}

impl Drop for GitSession {
    fn drop(&mut self) {
        // After a panic, the agent may still be running in the worktree.
        if !self.is_ending && !std::thread::panicking() {
            // If this fails, the user can still run `guard worktree clean`.
            let _ = self.workspace.dispose(KeepPolicy::Auto);
            self.workspace.forget();
        }
    }
}

pub fn danger_finding(danger: Danger) -> Finding {
    let kind = format!("danger.{}", danger.kind.name());
    let message = danger.to_string();
    Finding { instead: Some(danger.instead), ..Finding::new(&kind, message, Some(&danger.path.path())) }
}

fn commit(commit: &crate::git::Commit) -> Commit {
    Commit { id: commit.id.clone(), author: commit.author.clone(), subject: commit.subject.clone() }
}

fn other_ref(other: &crate::git::OtherRef) -> OtherRef {
    OtherRef { name: other.name.clone(), id: other.id.clone() }
}
