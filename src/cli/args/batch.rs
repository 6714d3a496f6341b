//! The arguments of `guard batch`, `guard worker` and `guard serve`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::args::durations::parse_seconds;

pub(in crate::cli) const BATCH_EXAMPLES: &str = "\
Examples:
  guard batch submit tasks.json                      # prints the response with all tasks pending, and returns at once
  guard batch poll RESPONSE_ID --wait 30             # returns as soon as the batch has ended, at the latest after 30 s
  guard batch poll RESPONSE_ID --task task_123
  guard batch results RESPONSE_ID --jsonl
  guard batch watch RESPONSE_ID
  guard batch retry-failed RESPONSE_ID

tasks.json is a JSON array of objects with `task_id`, `type` and `parameters`; one object per line works too.
`guard batch types` lists the types. If no worker is running, `submit` starts one in the background, which ends when
nothing is left to do.";

pub(in crate::cli) const WORKER_EXAMPLES: &str = "\
Examples:
  guard worker                                       # works on the tasks of this user until Ctrl-C
  guard worker --concurrency 8 --per-repository 4
  guard worker --store postgres://guard@db/guard     # one of several workers that share a database
  guard worker --until-idle                          # ends when nothing is left to do";

pub(in crate::cli) const SERVE_EXAMPLES: &str = "\
Examples:
  guard serve --root ~/work                          # on 127.0.0.1:8732; tasks may work below ~/work
  guard serve --root ~/work --socket ~/.guard.sock   # for programs of this user only, without a token
  curl -H \"Authorization: Bearer $(cat ~/.local/state/guard/serve-token)\" -H 'Content-Type: application/json' \\
    --data-binary @tasks.json http://127.0.0.1:8732/v1/batches

GET /v1/openapi.json describes all requests. SIGTERM and Ctrl-C stop the server: it gives its tasks back to the queue and
ends. A second signal ends it at once.";

/// The maximum number of running tasks of all workers in one repository, unless an option says otherwise.
pub(in crate::cli) const PER_REPOSITORY: u16 = 8;
/// The maximum number of running tasks of all workers together, unless an option says otherwise.
pub(in crate::cli) const GLOBAL: u16 = 256;

/// Which queue a command uses.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreOption {
    /// The database of the queue, postgres://… [default: GUARD_STORE, `[batch] store` of config.toml, or a file in the
    /// state directory]
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) store: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Batch {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    #[command(subcommand)]
    pub(crate) action: BatchAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BatchAction {
    /// Queue the tasks of a JSON file, and print the response
    Submit {
        /// A file with a JSON array of tasks, or `-` for standard input
        file: PathBuf,
        /// The directory of tasks that do not set `directory`; guard resolves relative directories of tasks against it
        /// [default: the current directory]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// A key of your choice; if the same tasks were submitted with this key before, queue nothing and print the
        /// response of that batch; if other tasks were submitted with it, fail
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Do not start a worker in the background
        #[arg(long)]
        no_worker: bool,
    },
    /// Print the response of a batch: the status and the results so far
    Poll {
        /// The `response_id` of the submission
        response_id: String,
        /// Wait at most this long for the batch, or the task, to end
        #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
        wait: Option<u64>,
        /// Print only the result of this task
        #[arg(long, value_name = "ID")]
        task: Option<String>,
        /// Print only the status and the counts, without results
        #[arg(long, conflicts_with = "task")]
        summary: bool,
        /// Print at most N results; for the next ones, give `next_after` of the response as --after
        #[arg(long, value_name = "N", conflicts_with_all = ["task", "summary"])]
        limit: Option<usize>,
        /// Print only results after this position in the batch: `next_after` of the previous response
        #[arg(long, value_name = "POSITION", requires = "limit", default_value_t = -1, allow_negative_numbers = true)]
        after: i64,
    },
    /// Print the results of a batch
    Results {
        /// The `response_id` of the submission
        response_id: String,
        /// Print one JSON object per line instead of a table
        #[arg(long, conflicts_with = "json")]
        jsonl: bool,
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show the progress of a batch until it ends
    Watch {
        /// The `response_id` of the submission
        response_id: String,
    },
    /// Cancel the tasks of a batch that have not ended
    Cancel {
        /// The `response_id` of the submission
        response_id: String,
        /// Cancel only this task; the tasks that depend on it fail
        #[arg(long, value_name = "ID")]
        task: Option<String>,
    },
    /// Queue the failed tasks of a batch again
    RetryFailed {
        /// The `response_id` of the submission
        response_id: String,
        /// Do not start a worker in the background
        #[arg(long)]
        no_worker: bool,
    },
    /// List batches, the newest first
    List {
        /// Show the newest N batches
        #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 20)]
        number: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the task types and their parameters
    Types {
        /// Print JSON, with the JSON schemas of each type's parameters and output
        #[arg(long)]
        json: bool,
    },
    /// Delete batches that ended long ago, with their results
    Clean {
        /// Delete batches that ended longer ago than this
        #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "30d")]
        older_than: u64,
    },
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// The number of tasks to work on at once [default: the number of CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: Option<u16>,
    /// The maximum number of running tasks of all workers in one repository
    #[arg(long, value_name = "N", default_value_t = PER_REPOSITORY, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) per_repository: u16,
    /// The maximum number of running tasks of all workers together
    #[arg(long, value_name = "N", default_value_t = GLOBAL, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) global: u16,
    /// End when nothing is left to do
    #[arg(long)]
    pub(crate) until_idle: bool,
    /// End at once if another worker with this option is running
    #[arg(long, hide = true)]
    pub(crate) local: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// The loopback address to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8732")]
    pub(crate) listen: String,
    /// Listen on a unix socket (mode 600) instead; clients run as the same user and need no token
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "token_file"])]
    pub(crate) socket: Option<PathBuf>,
    /// The file with the bearer token that clients must send, mode 600 [default: serve-token in guard's state directory,
    /// created if missing]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A directory that tasks may work in, with everything below it; repeatable [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Accept only tasks of this type; repeatable [default: all types]
    #[arg(long = "type", value_name = "NAME")]
    pub(crate) types: Vec<String>,
    /// Only serve requests; separate `guard worker` processes work on the tasks
    #[arg(long)]
    pub(crate) no_worker: bool,
    /// The number of tasks to work on at once [default: the number of CPUs]
    #[arg(long, value_name = "N", conflicts_with = "no_worker", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: Option<u16>,
}
