//! The arguments of `guard runs`, `ps`, `stop` and `attach`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::judge::policy::TimeLimit;

fn parse_seconds(text: &str) -> Result<u64, String> {
    let parsed = TimeLimit::parse(text).map(|time| time.0);
    parsed.ok_or_else(|| "expected seconds, or a time such as 90s or 5m".to_string())
}

pub(in crate::cli) const RUNS_EXAMPLES: &str = "\
Examples:
  guard runs
  guard runs --repo --failed -n 5               # the last five failures in this repository
  guard runs --json | jq -r '.[].run_id'
  guard runs prune                              # deletes runs older than 30 days
  guard runs prune --keep 20 --dry-run

Every command that takes a RUN accepts its id, a unique beginning or end of the id (as the first column shows it), its branch
(task/x), its name (x), `@` for the newest run, `@2` for the one before it, or a path.
guard never deletes a run that has not finished. `[state] keep` and `keep_mib` in config.toml delete old runs automatically.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Runs {
    /// Only runs in the repository of this directory [default without a value: the current directory]
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".")]
    pub(crate) repo: Option<PathBuf>,
    /// Only runs that failed, reached a limit, or were cut off because guard was killed or crashed
    #[arg(long)]
    pub(crate) failed: bool,
    /// Only runs that are running
    #[arg(long, conflicts_with = "failed")]
    pub(crate) running: bool,
    /// Show the newest N runs; 0 means all [default: 20 on a terminal, otherwise all]
    #[arg(short = 'n', long = "number", value_name = "N")]
    pub(crate) number: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) action: Option<RunsAction>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsAction {
    /// Delete finished runs, including their transcripts
    Prune {
        /// Delete runs that ended longer ago than this: 45m, 12h, 30d, 8w [default: 30d, unless --keep is given]
        #[arg(long, value_name = "TIME")]
        older_than: Option<String>,
        /// Never delete the newest N finished runs
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        /// Only show what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
}

pub(in crate::cli) const PS_EXAMPLES: &str = "\
Examples:
  guard ps
  guard ps --json | jq -r '.[].run_id'";

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(in crate::cli) const STOP_EXAMPLES: &str = "\
Examples:
  guard stop @                     # the newest run
  guard stop task/dark-mode 7c21f0aa
  guard stop --all

The command gets SIGTERM and has five seconds to exit. guard then receives its commits, as at the end of any run.
Exit codes: 0 all have ended, 1 a run is still running or cannot be stopped, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The runs: ids, unique beginnings or ends of ids, branches, names, or `@` for the newest
    #[arg(value_name = "RUN", required_unless_present = "all")]
    pub(crate) runs: Vec<String>,
    /// Stop every run that is running
    #[arg(long, conflicts_with = "runs")]
    pub(crate) all: bool,
    /// End the commands at once, instead of giving them five seconds to exit
    #[arg(long)]
    pub(crate) now: bool,
    /// Wait at most this long for the runs to end: seconds, or a time such as 5m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_seconds)]
    pub(crate) wait: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(in crate::cli) const ATTACH_EXAMPLES: &str = "\
Examples:
  guard run --detach -- make test
  guard attach @                   # its output so far, then new output until it ends

Ctrl-C detaches and does not stop the run; `guard stop` does. On a terminal, guard removes escape sequences that do more than draw.
Exit codes: that of the run, as from `guard run`; 125 if the run's guard process was killed, 130 if you detached, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The run: an id, a unique beginning or end of one, a branch, a name, or `@` for the newest
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}
