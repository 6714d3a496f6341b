//! The git side of a run: opens a worktree with its branch and private git directory, and at the end receives the
//! agent's commits, gives the worktree back, and reports what else has changed. It must never change refs, files or
//! settings of the user's repository other than those of this worktree and branch.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;

use crate::launch::plan::git_paths::Checkout;
use crate::outcome::{Change, ChangeKind, Commit, ErrorKind, Finding, MOST_CHANGES, OtherRef, Worktree};
use crate::transcript::{EventType, Recorder};
use crate::workspace::findings;
use crate::workspace::findings::{Inspected, Inspection};
use crate::workspace::snapshot::{Actor, Difference, ExpectedChanges, Fingerprint, Name};
use crate::workspace::{Changed, merged};
use crate::workspace::{DisposeReport, KeepPolicy, Limits, ReceiveError, Received, Repository, Request};
use crate::workspace::{Workspace, WorkspaceError};

/// Files in a worktree's git directory that guard itself writes when it gives the worktree back.
const WRITTEN_BY_GUARD: [&str; 4] = ["index", "logs/HEAD", "locked", "HEAD"];
/// How many findings of one kind are listed.
const MOST_OF_A_KIND: usize = 100;

/// A worktree with its branch and private git directory, created for one run. Dropping it before the run took place
/// gives the worktree back.
pub struct GitSession {
    workspace: Workspace,
    /// The run took place, so `end` and not `drop` gives the worktree back.
    is_ending: bool,
    before: Option<Fingerprint>,
    disposal: KeepPolicy,
    limits: Limits,
}

/// The git side of a run's result.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub(crate) commits: Vec<Commit>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) worktree: Option<Worktree>,
    /// Changed files, and whether the list is complete. `None` if git could not list them.
    pub(crate) files: Option<(Vec<Change>, bool)>,
    /// Why the run failed, whatever its command returned: (kind, message).
    pub(crate) failure: Option<(ErrorKind, String)>,
}

impl GitSession {
    /// Creates everything that a run in this repository needs.
    pub fn open(
        repository: &Repository,
        request: &Request,
        disposal: KeepPolicy,
        limits: Limits,
    ) -> Result<Self, WorkspaceError> {
        let workspace = Workspace::open(repository, request)?;
        // Taken after the worktree was created, so that it does not count as a change. If guard cannot read the
        // repository, the agent cannot change it either; the result then says that the comparison is missing.
        let before = Fingerprint::take(&repository.common_dir).ok();
        Ok(Self { workspace, is_ending: false, before, disposal, limits })
    }

    /// The part of the session that the plan needs.
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
        }
    }

    /// How many paths with uncommitted changes of the user were copied into the worktree.
    pub fn carried_changes(&self) -> usize {
        self.workspace.carried_changes()
    }

    /// Paths that git ignores in the user's worktree. The run does not get them.
    pub fn left_behind(&self) -> &[PathBuf] {
        self.workspace.left_behind()
    }

    /// Passwords and tokens from the user's git configuration, which must not be recorded.
    pub(crate) fn credentials(&self) -> Vec<Vec<u8>> {
        self.workspace.credentials().to_vec()
    }

    /// Whether the user has uncommitted changes that the agent does not get.
    pub fn leaves_changes_behind(&self) -> bool {
        self.workspace.has_uncommitted_changes()
    }

    /// For a run without mounts: makes the worktree's `.git` file point at the private git directory during the run.
    pub(crate) fn point_at_quarantine(&self) -> Result<(), WorkspaceError> {
        self.workspace.point_at_quarantine()
    }

    /// Called after the agent has ended: receives its commits, inspects what it left, and gives the worktree back.
    pub(crate) fn end(mut self, recorder: &Recorder, since: SystemTime) -> Ending {
        self.is_ending = true;
        let mut ending = Ending::default();
        let received = self.workspace.receive(&self.limits);
        match &received {
            Ok(received) => {
                ending.commits = received.commits.iter().map(commit).collect();
                let data = json!({
                    "branch": self.workspace.branch(), "old": received.old, "new": received.new,
                    "commits": received.commits.len(),
                });
                let count = received.commits.len();
                let plural = if count == 1 { "" } else { "s" };
                let message = format!("{count} commit{plural} on {}", self.workspace.branch());
                recorder.record(EventType::GitReceived, &message, &data);
            }
            Err(error) => {
                let message = format!("the commits of the run were not received: {error}");
                let data = json!({ "branch": self.workspace.branch(), "retryable": error.is_retryable() });
                recorder.record(EventType::GitRefused, &message, &data);
                if let ReceiveError::Trees(_) = error {
                    let advice = "`guard worktree clean` removes the worktree; do not fetch from its private repository";
                    ending.findings.push(Finding {
                        instead: Some(advice.to_string()),
                        ..Finding::new("danger.tree", message.clone(), None)
                    });
                }
                ending.failure = Some((ErrorKind::ReceiveRefused, message));
            }
        }
        let inspected = self.look_for_dangers(&mut ending);
        // Keep the worktree if its commits were not received, so that the user can inspect it.
        let disposal = if received.is_ok() { self.disposal } else { KeepPolicy::Keep };
        let settled = match self.workspace.settle(disposal) {
            Ok(settled) => {
                ending.files = inspected.map(|inspected| self.files(inspected, &settled, since));
                settled
            }
            Err(error) => {
                let message = format!("the worktree could not be given back: {error}");
                ending.findings.push(Finding::new("worktree.unsettled", message.clone(), None));
                ending.failure.get_or_insert((ErrorKind::Internal, message));
                DisposeReport { kept: true, ..DisposeReport::default() }
            }
        };
        if let Some(left_out) = settled.moved.len().checked_sub(MOST_OF_A_KIND).filter(|count| *count > 0) {
            let message = format!("{left_out} more things that were not the repository's were moved away");
            ending.findings.push(Finding::new("worktree.foreign", message, None));
        }
        for (place, now) in settled.moved.iter().take(MOST_OF_A_KIND) {
            let message = format!("{} was not the repository's: moved to {}", place.display(), now.display());
            ending.findings.push(Finding::new("worktree.foreign", message, Some(place)));
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

    /// The files changed by the commits and by the rest of the working tree together.
    fn files(&self, inspected: Inspected, settled: &DisposeReport, since: SystemTime) -> (Vec<Change>, bool) {
        let committed = inspected.changed.into_iter().map(|(path, change)| (path.path(), change));
        let own = |(path, change): &&(PathBuf, Changed)| self.workspace.is_since(path, *change, since);
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

    fn look_for_dangers(&self, ending: &mut Ending) -> Option<Inspected> {
        let record = self.workspace.record();
        let inspection = Inspection {
            objects: record.objects.clone(),
            ..Inspection::new(&record.common_dir, &record.worktree, Some(&record.base), Some(&record.tip))
        };
        match findings::look(&inspection) {
            Ok(mut inspected) => {
                let found = std::mem::take(&mut inspected.dangers);
                ending.findings.extend(found.into_iter().map(|danger| {
                    let kind = format!("danger.{}", danger.kind.name());
                    let message = format!("{}: {} {}", danger.path, danger.what, danger.why);
                    Finding {
                        instead: Some(danger.instead),
                        ..Finding::new(&kind, message, Some(&danger.path.path()))
                    }
                }));
                Some(inspected)
            }
            Err(error) => {
                let message = format!("the worktree could not be looked through: {error}");
                ending.findings.push(Finding::new("danger.unknown", message, None));
                None
            }
        }
    }

    /// Compares the repository with its state before the run. The agent cannot have changed it. Others can, and guard
    /// leaves their changes alone.
    fn compare(&self, settled: &DisposeReport, ending: &mut Ending) {
        let compared = self.before.as_ref().map(|before| (before, before.again()));
        let Some((before, Ok(after))) = compared else {
            let message = "the repository could not be compared with what it was".to_string();
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
        let found: Vec<Difference> = before.compare(&after, &ours);
        for difference in found.iter().filter(|one| one.by != Actor::Guard).take(MOST_OF_A_KIND) {
            let kind = if difference.by == Actor::Agent { "repository.broken" } else { "repository.changed" };
            ending.findings.push(Finding::new(kind, difference.to_string(), None));
            if difference.by == Actor::Agent {
                let message = format!("something changed that only the agent can have changed: {difference}");
                ending.failure = Some((ErrorKind::BoundaryBroken, message));
            }
        }
    }
}

impl Drop for GitSession {
    fn drop(&mut self) {
        // After a panic the agent may still be running there.
        if !self.is_ending && !std::thread::panicking() {
            // If this fails, `guard worktree clean` can do it later.
            let _ = self.workspace.settle(KeepPolicy::Auto);
        }
    }
}

fn commit(commit: &crate::workspace::Commit) -> Commit {
    Commit { id: commit.id.clone(), author: commit.author.clone(), subject: commit.subject.clone() }
}

fn other_ref(other: &crate::workspace::OtherRef) -> OtherRef {
    OtherRef { name: other.name.clone(), id: other.id.clone() }
}
