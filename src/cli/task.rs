//! The repository a run is asked for in → the worktree it works in.

use std::path::{Path, PathBuf};

use super::args;
use super::{Failure, note};
use crate::launch::{Task, is_shared_place, may_be_in_repository};
use crate::policy::Policy;
use crate::workspace::{Disposal, Limits, Repository, Request, WorkspaceError};

/// What a run works on: a worktree of its own in a repository, or the folder itself.
pub(super) struct Opened {
    pub(super) task: Option<Task>,
    /// The folder to work in.
    pub(super) folder: PathBuf,
}

/// Makes the worktree of a run, if its folder lies in a repository.
pub(super) fn open(
    arguments: &args::Run,
    policy: &Policy,
    folder: &Path,
    run_id: &str,
    runs: &Path,
) -> Result<Opened, Failure> {
    let in_place = Opened { task: None, folder: folder.to_path_buf() };
    if arguments.in_place || !may_be_in_repository(folder) {
        return if is_asked_for(arguments) { Err(no_repository(folder)) } else { Ok(in_place) };
    }
    let Some(repository) = Repository::find(folder).map_err(|error| failure(&error))? else {
        return if is_asked_for(arguments) { Err(no_repository(folder)) } else { Ok(in_place) };
    };
    if let Some(top) =
        repository.toplevel.as_ref().filter(|top| is_shared_place(super::run::home().as_deref(), top))
    {
        note(&format!(
            "guard: {} is a repository, but far more than one project: working in the folder itself",
            top.display()
        ));
        return Ok(in_place);
    }
    let disposal = match (arguments.keep, arguments.discard) {
        (true, _) => Disposal::Keep,
        (_, true) => Disposal::Discard,
        _ => Disposal::Auto,
    };
    let request = Request {
        run_id: run_id.to_string(),
        run_folder: runs.join(run_id),
        name: arguments.name.clone(),
        base: arguments.base.clone(),
        here: arguments.here,
        prefix: policy.git.branch_prefix.clone(),
        fallback_root: runs.with_file_name("worktrees"),
        trailers: policy.git.trailers.clone(),
        sign: policy.git.sign,
        ..Request::default()
    };
    let task =
        Task::open(&repository, &request, disposal, Limits::default()).map_err(|error| failure(&error))?;
    if task.leaves_changes_behind() {
        note(
            "guard: your uncommitted changes are not in the task's worktree; commit them first if it needs them",
        );
    }
    let worktree = task.checkout().worktree;
    let below = repository.toplevel.as_ref().and_then(|top| folder.strip_prefix(top).ok());
    let same = below.map(|below| worktree.join(below)).filter(|same| same.is_dir());
    if same.is_none() && below.is_some_and(|below| below.components().next().is_some()) {
        note("guard: the folder is not part of the commit the task begins at; working in the top folder");
    }
    Ok(Opened { folder: same.unwrap_or(worktree), task: Some(task) })
}

/// Options that only mean something in a repository.
fn is_asked_for(arguments: &args::Run) -> bool {
    arguments.name.is_some()
        || arguments.base.is_some()
        || arguments.here
        || arguments.keep
        || arguments.discard
}

fn no_repository(folder: &Path) -> Failure {
    Failure::usage(
        format!("{} lies in no git repository", folder.display()),
        "leave --name, --base, --here, --keep and --discard out, or go into a repository",
    )
}

fn failure(error: &WorkspaceError) -> Failure {
    let hint =
        error.hint().unwrap_or("`--in-place` works in the folder itself, with its repository read-only");
    Failure::usage(error.to_string(), hint)
}
