//! The snapshot of the directory in which a run works: takes it before the run, and records afterwards what the run
//! changed.

use std::path::{Path, PathBuf};

use super::git_session::danger_finding;
use crate::git::review::findings::inspect_changed_files;
use crate::git::{Changed, DirectorySnapshot, NotCovered, SnapshotKind, SnapshotRequest, WorkspaceError};
use crate::run::launch::plan::launch_plan::{LaunchPlan, SnapshotPlan};
use crate::run::outcome::{Change, ChangeKind, Finding, MOST_CHANGES, SnapshotReport};

/// The maximum number of paths that a note lists.
const MAX_NAMED: usize = 3;

/// The snapshot of a run. Empty if the plan has none.
#[derive(Debug, Default)]
pub(crate) struct RunSnapshot {
    snapshot: Option<DirectorySnapshot>,
    /// True if the run's processes may have started. Then guard keeps the snapshot, whatever happens.
    pub(crate) is_in_use: bool,
    /// What the result says about the snapshot; `None` if the plan has none.
    pub(crate) report: Option<SnapshotReport>,
}

impl Drop for RunSnapshot {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot.take().filter(|_| !self.is_in_use) {
            snapshot.discard();
        }
    }
}

/// The files that a run changed, as the result lists them.
pub(crate) struct ComparedFiles {
    pub(crate) files: Vec<Change>,
    /// What a person should review in all changed files, also in those that `files` does not list.
    pub(crate) findings: Vec<Finding>,
    /// True if guard could list all files before and after the run.
    pub(crate) is_complete: bool,
    /// True if the run changed more files than `files` lists.
    pub(crate) is_cut: bool,
}

impl RunSnapshot {
    /// Takes the snapshot of the plan. Fails only if a signal interrupts guard: a full disk, for example, must not keep
    /// the user from working.
    pub(crate) fn take(plan: &LaunchPlan, runs: &Path) -> Result<Self, WorkspaceError> {
        let Some(wanted) = &plan.snapshot else { return Ok(Self::default()) };
        let command: Vec<String> = plan.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let request = SnapshotRequest {
            directory: &wanted.directory,
            runs,
            id: &plan.run_id,
            kind: SnapshotKind::Run,
            command: &command,
            max_bytes: wanted.max_bytes,
            max_ignored_bytes: wanted.max_ignored_bytes,
            trusts_objects: wanted.trusts_objects,
        };
        match DirectorySnapshot::take(&request) {
            Ok(snapshot) => {
                let report = report(&snapshot, wanted);
                Ok(Self { snapshot: Some(snapshot), is_in_use: false, report: Some(report) })
            }
            Err(error @ WorkspaceError::Interrupted(_)) => Err(error),
            Err(error) => {
                let note = format!(
                    "guard could not take a snapshot of the directory, so `guard undo` cannot undo what this run changes: {error}"
                );
                let report = SnapshotReport { notes: vec![note], ..SnapshotReport::default() };
                Ok(Self { snapshot: None, is_in_use: false, report: Some(report) })
            }
        }
    }

    /// Records what the run changed in its directory. Returns the changed files, or `None` without a snapshot; and what
    /// the result says about the snapshot.
    pub(crate) fn finish(mut self, directory: &Path) -> (Option<ComparedFiles>, Option<SnapshotReport>) {
        let mut report = self.report.take();
        let Some(changes) = self.snapshot.take().map(DirectorySnapshot::finish) else {
            return (None, report);
        };
        let mut findings = findings(directory, &changes.files);
        findings.extend(changes.lost_repositories.iter().map(|path| lost_repository(path)));
        if let (Some(problem), Some(report)) = (changes.problem, &mut report) {
            report.notes.push(format!(
                "guard could not record the state of the directory after the run, so `guard undo` only brings back \
                 deleted files by itself: {problem}"
            ));
        }
        let is_cut = changes.files.len() > MOST_CHANGES;
        let change = |(path, change): (PathBuf, Changed)| Change {
            path: path.to_string_lossy().into_owned(),
            change: match change {
                Changed::Created => ChangeKind::Created,
                Changed::Modified => ChangeKind::Modified,
                Changed::Deleted => ChangeKind::Deleted,
            },
        };
        let files = changes.files.into_iter().take(MOST_CHANGES).map(change).collect();
        (Some(ComparedFiles { files, findings, is_complete: changes.is_complete, is_cut }), report)
    }
}

/// Returns what a person should review in the files that a run changed in a directory.
fn findings(directory: &Path, files: &[(PathBuf, Changed)]) -> Vec<Finding> {
    let git = directory.join(".git");
    let files = files.iter().map(|(path, change)| (path.as_path(), *change));
    let dangers = inspect_changed_files(directory, git.is_dir().then_some(&*git), files);
    dangers.into_iter().map(danger_finding).collect()
}

fn lost_repository(path: &Path) -> Finding {
    let message = format!(
        "the run deleted, moved or replaced {}, and `guard undo` cannot bring it back",
        path.display()
    );
    let instead =
        "copy the `.git` from a backup, or clone the repository again and move the `.git` of the clone there";
    Finding { instead: Some(instead.to_string()), ..Finding::new("repository.lost", message, Some(path)) }
}

/// Returns what a person should review in the files that a run changed in a directory, as its result lists them.
pub(crate) fn findings_of_changes(directory: &Path, changes: &[Change]) -> Vec<Finding> {
    let changed = |change: &Change| {
        let kind = match change.change {
            ChangeKind::Created => Changed::Created,
            ChangeKind::Modified => Changed::Modified,
            ChangeKind::Deleted => Changed::Deleted,
        };
        (PathBuf::from(&change.path), kind)
    };
    findings(directory, &changes.iter().map(changed).collect::<Vec<_>>())
}

/// Adds the deleted files of an incomplete comparison to the changes that the times of the files show. Returns the list,
/// and true if it is complete.
pub(crate) fn with_deleted(
    found: (Vec<Change>, bool),
    compared: Option<ComparedFiles>,
) -> (Vec<Change>, bool) {
    let Some(compared) = compared else { return found };
    let (found, _) = found;
    let deleted = compared.files.into_iter().filter(|one| one.change == ChangeKind::Deleted);
    let mut all: Vec<Change> = found.into_iter().chain(deleted).collect();
    all.sort();
    all.dedup_by(|a, b| a.path == b.path);
    all.truncate(MOST_CHANGES);
    (all, false)
}

fn report(snapshot: &DirectorySnapshot, wanted: &SnapshotPlan) -> SnapshotReport {
    let mut notes = Vec::new();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let mut add = |left_out: &NotCovered, what: &str, why: String| {
        if left_out.files > 0 {
            let named: Vec<String> =
                left_out.examples.iter().take(MAX_NAMED).map(ToString::to_string).collect();
            let more = match left_out.files - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let noun = if left_out.files == 1 { "file" } else { "files" };
            notes.push(format!(
                "`guard undo` cannot bring back {} {what}{noun} ({} MiB; {}{more}): {why}",
                left_out.files,
                mib(left_out.bytes),
                named.join(", ")
            ));
        }
    };
    let limit = |key: &str, bytes: u64| {
        format!(
            "a snapshot copies at most {} MiB of such files; {key} in [state] of config.toml changes this",
            mib(bytes)
        )
    };
    add(snapshot.too_large(), "", limit("snapshot_mib", wanted.max_bytes));
    add(snapshot.too_large_ignored(), "ignored ", limit("snapshot_ignored_mib", wanted.max_ignored_bytes));
    add(snapshot.unreadable(), "", "guard cannot read them".to_string());
    if let Some(why) = snapshot.unseen() {
        notes.push(format!(
            "`guard undo` can undo changes in only a part of {}: {why}",
            wanted.directory.display()
        ));
    }
    let left_out = [snapshot.too_large(), snapshot.too_large_ignored(), snapshot.unreadable()];
    SnapshotReport {
        taken: true,
        files: snapshot.files(),
        copied_bytes: snapshot.copied_bytes(),
        not_covered: left_out.iter().map(|one| one.files).sum(),
        notes,
    }
}
