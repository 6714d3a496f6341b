//! The arguments of `guard worktree`.

use clap::Subcommand;

pub(in crate::cli) const WORKTREE_EXAMPLES: &str = "\
Examples:
  guard worktree list
  cd \"$(guard worktree path task/add-a-toggle)\"
  guard worktree diff 0197f0a0 --stat
  guard worktree merge-preview task/add-a-toggle
  guard worktree clean 0197f0a0            # removes worktree and branch; their commits stay under refs/guard/

RUN is a run's id, a unique beginning or end of an id, the run's branch or name, or `@` for the newest run with a worktree.
Exit codes: 0 success, 1 merge conflicts, or receiving or removing failed, 2 bad usage.";

#[derive(Debug, Subcommand)]
pub(crate) enum Worktree {
    /// List the worktrees of runs and their state
    #[command(
        after_help = "Examples:\n  guard worktree list\n  guard worktree list --all --json | jq '.[].branch'"
    )]
    List {
        /// Include worktrees that have been removed
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the path of a run's worktree
    #[command(after_help = "Example:\n  cd \"$(guard worktree path task/add-a-toggle)\"")]
    Path {
        /// The run or its branch
        run: String,
    },
    /// Show what a run committed
    #[command(
        after_help = "Examples:\n  guard worktree diff 0197f0a0\n  guard worktree diff task/add-a-toggle --stat"
    )]
    Diff {
        /// The run or its branch
        run: String,
        /// Print only the changed files and the number of changed lines
        #[arg(long)]
        stat: bool,
    },
    /// Show what merging a run's branch would change and whether it conflicts, without merging
    #[command(
        after_help = "Examples:\n  guard worktree merge-preview task/add-a-toggle\n  guard worktree merge-preview 0197f0a0 --into release --json\n\nExit codes: 0 no conflicts, 1 conflicts, 2 bad usage."
    )]
    MergePreview {
        /// The run or its branch
        run: String,
        /// The branch to merge into [default: the branch checked out in the main worktree]
        #[arg(long, value_name = "BRANCH")]
        into: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove worktrees and branches; commits and uncommitted work stay under refs/guard/
    #[command(
        after_help = "Examples:\n  guard worktree clean                     # removes this repository's worktrees without new work, also of interrupted runs\n  guard worktree clean --dry-run           # shows what that would remove\n  guard worktree clean task/add-a-toggle\n  guard worktree clean --all               # including work, which stays under refs/guard/, and finished tasks\n  guard worktree clean --all-repositories"
    )]
    Clean {
        /// Runs or their branches [default: those of this repository without new work]
        runs: Vec<String>,
        /// Remove every worktree of this repository that is not in use, including those with new work, and those of
        /// finished tasks
        #[arg(long, conflicts_with = "runs")]
        all: bool,
        /// Remove worktrees of all repositories, not only of the repository of the current directory
        #[arg(long, conflicts_with = "runs")]
        all_repositories: bool,
        /// Only show what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Receive a run's commits into the repository, after an earlier attempt failed or was interrupted
    #[command(
        after_help = "Examples:\n  guard worktree receive 0197f0a0\n  guard worktree receive 0197f0a0 --max-mib 2048 --json"
    )]
    Receive {
        /// The run or its branch
        run: String,
        /// Accept at most N MiB of packed objects
        #[arg(long, value_name = "N")]
        max_mib: Option<u64>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
