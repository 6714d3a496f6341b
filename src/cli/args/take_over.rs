//! The arguments of `guard diff`, `guard apply`, `guard restore` and `guard undo`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

pub(in crate::cli) const DIFF_EXAMPLES: &str = "\
Examples:
  guard diff                       # the newest run with a worktree in this repository
  guard diff task/dark-mode --stat
  guard diff 0197f0a0 -- src docs
  guard diff > work.patch          # can be applied with `git apply`
  guard diff @ --since-run         # only what the last of several runs on a branch has done

RUN is a run's id, a unique beginning or end of an id, the run's branch, or @ for the newest run here.
The diff shows what `guard apply` would bring to the branch you are on, however many runs have worked on the run's branch.
Files that git ignores are not part of it, unless only an ignore file of the run makes git ignore them.
Exit codes: 0 success, 2 bad usage, or there is no such run.";

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The run or its branch [default: the newest run with a worktree in this repository]
    pub(crate) run: Option<String>,
    /// Leave out what was on the branch before this run, such as the work of earlier runs
    #[arg(long)]
    pub(crate) since_run: bool,
    /// Print only the changed files and the number of changed lines
    #[arg(long)]
    pub(crate) stat: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show only changes to these files and directories
    #[arg(last = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
}

pub(in crate::cli) const APPLY_EXAMPLES: &str = "\
Examples:
  guard apply                      # the newest run here: commits what is uncommitted, merges, removes the worktree
  guard apply task/dark-mode --dry-run
  guard apply @ --squash -m 'Add a dark mode'
  guard apply @ --uncommitted --keep
  guard apply @ --commit-only      # before you merge the run's branch yourself

RUN is a run's id, a unique beginning or end of an id, the run's branch, or @ for the newest run here.
guard changes nothing if the run is still running, if the merge would conflict, or if you have changes at the same paths. It runs no git
hooks, because hooks may run what the agent wrote. What it removes stays under refs/guard/ (`guard restore`).
Exit codes: 0 applied, or nothing to apply, 1 a conflict, your own changes to the same files, or not confirmed, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// The run or its branch [default: the newest run with a worktree in this repository]
    pub(crate) run: Option<String>,
    /// Merge the run's commits: a fast-forward if possible, otherwise a merge commit (the default)
    #[arg(long, conflicts_with_all = ["squash", "uncommitted"])]
    pub(crate) merge: bool,
    /// Make one commit of all the work
    #[arg(long, conflicts_with = "uncommitted")]
    pub(crate) squash: bool,
    /// Change only your working tree and index; commit nothing
    #[arg(long)]
    pub(crate) uncommitted: bool,
    /// Commit what the run left uncommitted to the run's branch, and apply nothing
    #[arg(long, conflicts_with_all = ["merge", "squash", "uncommitted", "dry_run"])]
    pub(crate) commit_only: bool,
    /// The message of the commit that guard creates for squashed work, for changes that the run left uncommitted, or
    /// for a merge
    #[arg(long, short, value_name = "MESSAGE", conflicts_with = "uncommitted")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) message: Option<String>,
    /// Show what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Keep the run's worktree and branch
    #[arg(long)]
    pub(crate) keep: bool,
    /// Do not ask about findings that a person should look at
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Trust the git configuration of the repository, as with `guard run --trust-repository`
    #[arg(long)]
    pub(crate) trust_repository: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(in crate::cli) const RESTORE_EXAMPLES: &str = "\
Examples:
  guard restore                    # lists what is saved in this repository
  guard restore 0197f0a0           # creates the branch restored/NAME
  guard restore refs/guard/0197f0a0-1c2d-7e3f-8a4b-5c6d7e8f9a0b/tip --branch second-try
  guard restore --expire 30d --dry-run

Before guard removes a worktree or a branch, it saves commits and uncommitted work under refs/guard/ of the repository. They stay there
until --expire removes them. For a run that worked in your directory itself (--in-place, --here, or outside a repository), see `guard undo`.
Exit codes: 0 success, 1 not confirmed, 2 bad usage, or nothing is saved under this name.";

pub(in crate::cli) const UNDO_EXAMPLES: &str = "\
Examples:
  guard undo                       # the last run here: shows what would change, and asks
  guard undo --dry-run
  guard undo @ src notes.txt       # only these files and directories
  guard undo --deleted --yes       # only brings back what the run deleted; does not ask
  guard undo --list
  guard undo --expire 7d           # deletes older snapshots

RUN is a run's id, a unique beginning or end of an id, @ for the last run in this directory, or @N for an earlier one.
guard takes a snapshot of your directory before a run that works in it itself: with --in-place or --here, and outside a repository. Undo
leaves alone what you changed since the run, and says so (--force includes it). It takes a snapshot first, so an undo can be undone. For a
run with a worktree of its own, use `guard diff`, `guard worktree` and `guard restore`.
Exit codes: 0 done, or nothing to do, 1 something was left alone or failed, or nobody confirmed, 2 bad usage, or there is no snapshot.";

#[derive(Debug, Args)]
pub(crate) struct Undo {
    /// The run [default: the last run in this directory]
    pub(crate) run: Option<String>,
    /// Only these files and directories
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Only bring back what the run deleted
    #[arg(long)]
    pub(crate) deleted: bool,
    /// Also overwrite or remove what changed since the run
    #[arg(long)]
    pub(crate) force: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// The directory in which the run worked [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// List the snapshots of this directory
    #[arg(long, conflicts_with_all = ["run", "paths", "deleted", "force", "dry_run", "yes"])]
    pub(crate) list: bool,
    /// Delete the snapshots of all directories that are older than this: 12h, 30d, 8w
    #[arg(long, value_name = "TIME", conflicts_with_all = ["run", "paths", "deleted", "force", "yes", "list", "dir"])]
    pub(crate) expire: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The run: its id, a unique beginning or end of it, or its branch; or a ref under refs/guard/ [default: list all]
    #[arg(value_name = "RUN|REF")]
    pub(crate) name: Option<String>,
    /// List the work that is saved under refs/guard/, and restore nothing
    #[arg(long, conflicts_with_all = ["name", "branch"])]
    pub(crate) list: bool,
    /// The branch to create [default: restored/ and the name of the run]
    #[arg(long, value_name = "NAME", requires = "name")]
    pub(crate) branch: Option<String>,
    /// Remove saved work that is older than this: 12h, 30d, 8w
    #[arg(long, value_name = "TIME", conflicts_with_all = ["name", "list"])]
    pub(crate) expire: Option<String>,
    /// With --expire: only show what would be removed
    #[arg(long, requires = "expire")]
    pub(crate) dry_run: bool,
    /// Do not ask about findings that a person should look at
    #[arg(long, short, requires = "name")]
    pub(crate) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
