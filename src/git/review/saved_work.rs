//! Lists the work that guard saved under `refs/guard/` before it removed a worktree, restores such work as a branch,
//! and removes old work.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::git::WorkspaceError;
use crate::git::plumbing::command::{Git, Trust};
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::repository::Repository;
use crate::git::review::apply::{for_review, not_inspected};
use crate::git::review::findings::{Danger, Inspection, inspect_difference};
use crate::git::review::review_base::fork_point;
use crate::git::task_branch::line;
use crate::git::workspace::run_record::Record;

/// Maximum number of saved refs to list.
const MAX_REFS: usize = 20_000;
/// Maximum number of list entries for which guard counts the commits, because each needs one more git process.
const MAX_COUNTED: usize = 100;

/// A ref under `refs/guard/`, where guard saves work before it removes a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedRef {
    /// The full name of the ref.
    pub name: String,
    /// The id of the commit to which the ref points.
    pub commit: String,
    /// The first line of the commit's message.
    pub subject: String,
}

/// The work of one run or task that guard saved under `refs/guard/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedWork {
    /// The name of the directory below `refs/guard/` that contains the refs: the id of the run, or `task-ID`.
    pub name: String,
    /// The name that the run's branch had, without `refs/heads/`; `None` if the run's record no longer exists.
    pub branch: Option<String>,
    /// An estimate of when guard saved the work: the latest of the start of the run, the dates of the saved commits,
    /// and the last change of the run's record. Never in the future.
    pub saved_at: SystemTime,
    /// The number of commits on the run's branch since the run began; `None` if the run's record or the ref `tip` is
    /// missing, if git failed to count them, or if this is not one of the newest 100 entries.
    pub commits: Option<usize>,
    /// The ref that points to the last commit of the run's branch; `None` if guard saved no commits of the branch.
    pub tip: Option<SavedRef>,
    /// The ref that points to a commit with the run's uncommitted work; `None` if guard saved none.
    pub work: Option<SavedRef>,
    /// All other refs: `head`, which points to the commit of a detached `HEAD` in the worktree, and refs to the saved
    /// working trees of a task.
    pub others: Vec<SavedRef>,
}

impl SavedWork {
    pub fn refs(&self) -> impl Iterator<Item = &SavedRef> {
        self.tip.iter().chain(&self.work).chain(&self.others)
    }

    /// Returns the ref with the most work: `work`, because its commit is on top of the branch, or else `tip`, or else
    /// the last of `others`. `None` if there is no ref at all.
    fn main(&self) -> Option<&SavedRef> {
        self.work.as_ref().or(self.tip.as_ref()).or(self.others.last())
    }
}

/// Builds a git call on the refs and commits of a repository. git obeys nothing that an agent wrote.
fn git(repository: &Repository, verb: &str) -> Result<Git, WorkspaceError> {
    let common_dir = &repository.common_dir;
    let git = Git::new(Trust::Neutral, verb)?.git_dir(common_dir).current_dir(common_dir);
    Ok(git.env("GIT_COMMITTER_NAME", "guard").env("GIT_COMMITTER_EMAIL", "guard@localhost"))
}

/// Lists the work that guard saved in a repository, the newest first. Reads at most 20,000 refs. `runs` is the
/// directory that contains the directories of all runs.
pub fn saved_work(repository: &Repository, runs: &Path) -> Result<Vec<SavedWork>, WorkspaceError> {
    let format = "--format=%(refname)%00%(objectname)%00%(committerdate:unix)%00%(contents:subject)%00";
    let count = format!("--count={MAX_REFS}");
    let output = git(repository, "for-each-ref")?.args([format, &count, "refs/guard/"]).run()?;
    let fields: Vec<String> =
        output.split(|byte| *byte == 0).map(|field| String::from_utf8_lossy(field).into_owned()).collect();
    let now = SystemTime::now();
    let mut found: BTreeMap<String, SavedWork> = BTreeMap::new();
    for entry in fields.chunks_exact(4) {
        let [name, commit, date, subject] = entry else { continue };
        let name = name.trim_start_matches('\n');
        let Some((dir, last)) =
            name.strip_prefix("refs/guard/").map(|rest| rest.rsplit_once('/').unwrap_or((rest, "")))
        else {
            continue;
        };
        // Skip the temporary ref of a receive that is in progress or was interrupted.
        if last == "incoming" {
            continue;
        }
        let saved = SavedRef { name: name.to_string(), commit: commit.clone(), subject: subject.clone() };
        let date = Duration::from_secs(date.parse().unwrap_or(0));
        let date = SystemTime::UNIX_EPOCH.checked_add(date).unwrap_or(now).min(now);
        let work = found.entry(dir.to_string()).or_insert_with(|| SavedWork {
            name: dir.to_string(),
            branch: None,
            saved_at: began_at(dir).unwrap_or(SystemTime::UNIX_EPOCH).min(now),
            commits: None,
            tip: None,
            work: None,
            others: Vec::new(),
        });
        work.saved_at = work.saved_at.max(date);
        match last {
            "tip" => work.tip = Some(saved),
            "work" => work.work = Some(saved),
            _ => work.others.push(saved),
        }
    }
    let mut all: Vec<SavedWork> = found.into_values().collect();
    let records: BTreeMap<String, Record> = all
        .iter_mut()
        .filter_map(|work| Some((work.name.clone(), add_record(repository, runs, work)?)))
        .collect();
    all.sort_by(|a, b| (b.saved_at, &b.name).cmp(&(a.saved_at, &a.name)));
    for work in all.iter_mut().take(MAX_COUNTED) {
        let (Some(tip), Some(record)) = (&work.tip, records.get(&work.name)) else { continue };
        let range = format!("{}..{}", record.base, tip.commit);
        let count = git(repository, "rev-list")?.args(["--count", &range, "--"]).output()?;
        work.commits = line(&count.output).parse().ok().filter(|_| count.status.success());
    }
    Ok(all)
}

/// Returns when a run began, according to its id; `None` if `name` is not the id of a run.
pub(crate) fn began_at(name: &str) -> Option<SystemTime> {
    let id = uuid::Uuid::parse_str(name).ok()?;
    let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// Adds the branch and the date from the run's record to `work`, and returns the record; `None` if guard cannot read
/// the record, or if it belongs to another repository.
fn add_record(repository: &Repository, runs: &Path, work: &mut SavedWork) -> Option<Record> {
    let folder = runs.join(&work.name);
    let record = Record::read(&folder).ok().filter(|record| record.common_dir == repository.common_dir)?;
    work.branch = Some(record.branch.strip_prefix("refs/heads/").unwrap_or(&record.branch).to_string());
    // guard last wrote the record when it removed the worktree.
    let written = Record::written_at(&folder).unwrap_or(work.saved_at);
    work.saved_at = work.saved_at.max(written.min(SystemTime::now()));
    Some(record)
}

/// Returns the saved ref with the full name `name`, or without `name` the ref with the most work. Fails if there is no such
/// ref.
pub fn chosen_ref<'w>(work: &'w SavedWork, name: Option<&str>) -> Result<&'w SavedRef, WorkspaceError> {
    let chosen = match name {
        Some(name) => work.refs().find(|saved| saved.name == name),
        None => work.main(),
    };
    chosen.ok_or_else(|| {
        WorkspaceError::refused(
            format!("guard has saved no work as {:?}", name.unwrap_or(&work.name)),
            "`guard restore --list` shows what is saved",
        )
    })
}

/// Finds the dangers in everything that a saved ref has and the commit that the user has checked out does not.
pub fn saved_dangers(repository: &Repository, saved: &SavedRef) -> Result<Vec<Danger>, WorkspaceError> {
    let settings = Settings::parse(&Settings::list_call(repository)?.run()?);
    let base = match repository.head.commit() {
        Some(head) => Some(fork_point(&|verb| git(repository, verb), head, &saved.commit)?),
        None => None,
    };
    let place = repository.toplevel.as_ref().unwrap_or(&repository.common_dir);
    let usual = Inspection::new(&repository.common_dir, place, base.as_deref(), Some(&saved.commit));
    let inspection =
        Inspection { objects: repository.object_dirs(), ..for_review(usual, repository, &settings) };
    inspect_difference(&inspection).map_err(|error| not_inspected(&error))
}

/// Creates the branch `branch` at a saved ref, and keeps the ref. Fails if the branch already exists or has an invalid
/// name.
pub fn restore(repository: &Repository, saved: &SavedRef, branch: &str) -> Result<(), WorkspaceError> {
    let full = format!("refs/heads/{branch}");
    let is_name = git(repository, "check-ref-format")?.arg(&full).output()?.status.success();
    if !is_name || branch.starts_with('-') {
        return Err(WorkspaceError::refused(
            format!("{branch:?} is not a valid branch name"),
            "choose another name: --branch NAME",
        ));
    }
    let zero = "0".repeat(saved.commit.len());
    let made = git(repository, "update-ref")?.args(["--create-reflog", "-m", "guard restore", &full]);
    match made.args([&saved.commit, &zero]).run() {
        Err(_) if repository.commit(&full)?.is_some() => Err(WorkspaceError::NameTaken {
            what: format!("the branch {branch}"),
            hint: "choose another name: --branch NAME",
        }),
        made => Ok(made.map(drop)?),
    }
}

/// Removes all refs of saved work. Fails and removes none of them if one no longer points to the commit to which it
/// pointed when guard listed it.
pub fn remove_saved(repository: &Repository, work: &SavedWork) -> Result<(), WorkspaceError> {
    let commands: String =
        work.refs().map(|saved| format!("delete {} {}\n", saved.name, saved.commit)).collect();
    Ok(git(repository, "update-ref")?.arg("--stdin").input(commands.into_bytes()).run().map(drop)?)
}
