//! Finds the worktrees that runs have left, by the names that users type.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::git;
use crate::git::{Entry, Head, Repository, State};
use crate::session::Failure;
use crate::session::run_reference::{Candidate, pick, store};

pub(crate) fn entries() -> Result<Vec<Entry>, Failure> {
    Ok(git::list(store()?.folder())?)
}

/// Returns the repository that contains the current directory. Fails if there is none.
pub(crate) fn here() -> Result<Repository, Failure> {
    let current = std::env::current_dir().unwrap_or_default();
    Repository::find(&current)?.ok_or_else(|| {
        Failure::usage(
            format!("{} is not in a git repository", current.display()),
            "change to the repository of the run",
        )
    })
}

/// Returns the commit that is checked out in the current directory, if `guard apply` could bring the work of the run
/// there; `None` outside the run's repository, and in a working tree of the run's branch.
pub(crate) fn target_commit(record: &git::Record) -> Result<Option<String>, Failure> {
    let current = std::env::current_dir().unwrap_or_default();
    let found = Repository::find(&current)?.filter(|repository| {
        let is_own = matches!(&repository.head, Head::Branch(name, _) if *name == record.branch)
            || repository.toplevel.as_deref() == Some(&record.worktree);
        repository.common_dir == record.common_dir && repository.toplevel.is_some() && !is_own
    });
    Ok(found.and_then(|repository| repository.head.commit().map(str::to_string)))
}

/// Finds the workspace of the run that the user named. Without a name, and for `@`, finds the newest workspace that has
/// a worktree in the repository of the current directory.
pub(crate) fn find_or_newest(name: Option<&str>) -> Result<(PathBuf, git::Record), Failure> {
    match name.filter(|name| *name != "@") {
        Some(name) => find(name),
        None => git::newest(store()?.folder(), &here()?.common_dir)?.ok_or_else(|| {
            Failure::usage(
                "no run has a worktree in this repository",
                "`guard worktree list` lists the worktrees of runs; `guard restore --list` lists saved work",
            )
        }),
    }
}

/// Finds the workspace of a run, by the run's id, the beginning or end of the id, its branch, its name, `@` or `@N`.
pub(crate) fn find(name: &str) -> Result<(PathBuf, git::Record), Failure> {
    let mut known: Vec<(PathBuf, git::Record)> =
        entries()?.into_iter().filter_map(|entry| Some((entry.run_folder, entry.record.ok()?))).collect();
    let candidate = |(_, record): &(PathBuf, git::Record)| {
        // Do not find a removed worktree by its branch: by now the branch may belong to another run or to the user.
        let branch = (record.state != State::Removed).then(|| short_branch(record).to_string());
        Candidate {
            id: record.run_id.clone(),
            branch,
            repository: Some(git::main_directory(&record.common_dir).to_path_buf()),
            started: time_of(&record.run_id),
        }
    };
    let candidates: Vec<Candidate> = known.iter().map(candidate).collect();
    // `@` means the newest run that still has a worktree. In a repository, only its runs count, so that nobody sees or
    // applies the work of another repository by mistake.
    let current = std::env::current_dir().unwrap_or_default();
    let here = match name.strip_prefix('@') {
        Some(_) => Repository::find(&current)?.map(|repository| repository.common_dir),
        None => None,
    };
    let is_here = |index: usize| here.as_ref().is_none_or(|here| known[index].1.common_dir == *here);
    let open: Vec<usize> =
        (0..known.len()).filter(|&index| candidates[index].branch.is_some() && is_here(index)).collect();
    let found = match name.strip_prefix('@') {
        Some(_) => {
            let candidates: Vec<Candidate> = open.iter().map(|&index| candidates[index].clone()).collect();
            pick(name, &candidates).map(|found| open[found])
        }
        None => pick(name, &candidates),
    };
    found.map(|found| known.swap_remove(found)).map_err(|failure| match failure {
        Failure::Usage { message, .. } => {
            Failure::usage(message, "`guard worktree list --all` lists the runs with worktrees")
        }
        other => other,
    })
}

pub(crate) fn short_branch(record: &git::Record) -> &str {
    record.branch.trim_start_matches("refs/heads/")
}

/// Returns the start time that a run's id contains; `None` if the id contains no time, because guard did not create it.
fn time_of(id: &str) -> Option<Timestamp> {
    let (seconds, nanoseconds) = uuid::Uuid::try_parse(id).ok()?.get_timestamp()?.to_unix();
    Timestamp::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?).ok()
}
