//! What can be typed. Nothing past this module sees it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::exec_args::EXEC_EXAMPLES;
pub(crate) use super::exec_args::Exec;
use super::logging::LogOptions;
use super::task_args::{TASK_EXAMPLES, Task, WORKFLOW_EXAMPLES, Workflow};

/// Run AI coding agents without trusting them: every command judged by a TOML policy.
#[derive(Debug, Parser)]
#[command(name = "guard", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what a policy would do to a command, and why
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// List, show, check and compare policies
    #[command(subcommand)]
    Policy(Policy),
    /// Run a command in the sandbox: every program it starts judged, everything recorded, one result
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Ask an agent: a prompt or a request in JSON, one result in JSON
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Exec),
    /// Offer agents as tools of the Model Context Protocol, over standard input and output or HTTP
    #[command(after_help = MCP_EXAMPLES)]
    Mcp(Mcp),
    /// Turn a sentence into a reviewed branch: plan, review, develop, audit, integrate
    #[command(after_help = TASK_EXAMPLES, args_conflicts_with_subcommands = true)]
    Task(Task),
    /// List, show, check and draw the workflows that tasks follow
    #[command(subcommand, after_help = WORKFLOW_EXAMPLES)]
    Workflow(Workflow),
    /// See it work: a scripted agent in a scratch repository, with no key and no network
    Demo {
        /// Namespaces of the run's own, instead of what the policy says
        #[arg(long, value_enum)]
        namespaces: Option<NamespaceChoice>,
    },
    /// The scripted agent of the demo
    #[command(hide = true, name = "demo-agent")]
    DemoAgent {
        /// The scene
        arguments: Vec<String>,
    },
    /// Say what this machine gives, what each policy needs, and how to get what is missing
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what happened in a run
    #[command(after_help = LOG_EXAMPLES)]
    Log(Log),
    /// Show what a run printed, as it looked and as fast as it came
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Replay),
    /// Check that a transcript is what was written
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Verify),
    /// List runs, and delete old ones
    #[command(after_help = RUNS_EXAMPLES, args_conflicts_with_subcommands = true)]
    Runs(Runs),
    /// The branches and worktrees that runs left: list, look, merge, receive, clean
    #[command(subcommand, after_help = WORKTREE_EXAMPLES)]
    Worktree(Worktree),
}

const MCP_EXAMPLES: &str = "\
Examples:
  guard mcp --root ~/work                              # started by a client; agents may work below ~/work
  claude mcp add guard -- guard mcp --root ~/work
  guard mcp --root ~/work --http 127.0.0.1:8731        # for several clients, and for those that come back
  claude mcp add --transport http guard http://127.0.0.1:8731/mcp \\
    --header \"Authorization: Bearer $(cat ~/.local/state/guard/mcp-token)\"

Tools: gemini (ask the agent), guard_check (ask a policy), guard_report (how a call or run stands, and its result), guard_cancel (end
a call). Over standard input and output everything ends with the client. Over HTTP a call goes on when its client stops waiting or
disconnects; it ends when it is done, when the client cancels it (notifications/cancelled, guard_cancel), or with the server.
With --http the first line of the output is JSON: `url`, `token_file`, `pid`. SIGTERM and Ctrl-C end the server and all calls.";

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// A directory below which agents may work [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Serve over HTTP on a loopback address instead; without an address on a free port of 127.0.0.1
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:0")]
    pub(crate) http: Option<String>,
    /// The file with the token that HTTP clients must show, mode 600 [default: one in guard's state directory, made if needed]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    /// Calls of agents at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) max_calls: u8,
}

const WORKTREE_EXAMPLES: &str = "\
Examples:
  guard worktree list
  cd \"$(guard worktree path task/add-a-toggle)\"
  guard worktree diff 0197f0a0 --stat
  guard worktree merge-preview task/add-a-toggle
  guard worktree clean 0197f0a0            # worktree and branch go; what was in them stays under refs/guard/

RUN is a run's id, a unique beginning or end of one, or the branch.
Exit codes: 0 done, 1 conflicts, or nothing could be received or removed, 2 bad usage.";

#[derive(Debug, Subcommand)]
pub(crate) enum Worktree {
    /// List the worktrees of runs and how they stand
    #[command(
        after_help = "Examples:\n  guard worktree list\n  guard worktree list --all --json | jq '.[].branch'"
    )]
    List {
        /// Those that have been removed as well
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print where a run's worktree is
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
        /// Only the files and how much changed in them
        #[arg(long)]
        stat: bool,
    },
    /// Say what merging a run's branch would do, without doing it
    #[command(
        after_help = "Examples:\n  guard worktree merge-preview task/add-a-toggle\n  guard worktree merge-preview 0197f0a0 --into release --json\n\nExit codes: 0 it merges, 1 there are conflicts, 2 bad usage."
    )]
    MergePreview {
        /// The run or its branch
        run: String,
        /// The branch to merge into [default: what is checked out in the main worktree]
        #[arg(long, value_name = "BRANCH")]
        into: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove worktrees and branches; commits and uncommitted work stay under refs/guard/
    #[command(
        after_help = "Examples:\n  guard worktree clean                     # those with nothing new, and what was interrupted\n  guard worktree clean task/add-a-toggle\n  guard worktree clean --all"
    )]
    Clean {
        /// Runs or their branches [default: those with nothing new]
        runs: Vec<String>,
        /// All that are not in use
        #[arg(long, conflicts_with = "runs")]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Receive a run's commits again, where that failed or was interrupted
    #[command(
        after_help = "Examples:\n  guard worktree receive 0197f0a0\n  guard worktree receive 0197f0a0 --max-mib 2048 --json"
    )]
    Receive {
        /// The run or its branch
        run: String,
        /// Receive up to so many MiB of packed objects
        #[arg(long, value_name = "N")]
        max_mib: Option<u64>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

const RUN_EXAMPLES: &str = "\
Examples:
  guard run -- cargo test
  guard run --policy strict -- gemini -p 'add a dark mode toggle'
  guard run --name dark-mode -- gemini -p 'add a dark mode toggle'   # in a repository: branch task/dark-mode
  guard run --json --timeout 60 -- ./agent.sh | jq .denials
  guard run --preset node -- npm ci                   # and the registry this user's npm fetches from
  guard run --listen 3000 -- npm run dev              # a server at http://127.0.0.1:3000/ while it runs
  guard run --dry-run -- npm test                     # every path, variable and limit; nothing runs

Exit codes: the command's own (128 and the signal's number when one ended it); 124 a time limit or a budget, 125 guard itself
failed or the sandbox cannot be had, 126 the command was refused, 127 it was not found.";

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The policy: a name (see `guard policy list`) or a path
    #[arg(long, short, default_value = "strict")]
    pub(crate) policy: String,
    /// The directory the command works in, and may write [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// In a repository: what the task's branch and worktree are named after [default: the run's id]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// In a repository: the commit the branch begins at [default: HEAD]
    #[arg(long, value_name = "REV")]
    pub(crate) base: Option<String>,
    /// In a repository: work in the linked worktree the directory lies in, on its branch
    #[arg(long, conflicts_with_all = ["name", "base"])]
    pub(crate) here: bool,
    /// In a repository: go on on this branch, in the linked worktree that has it (see --worktree); with --name a new one is
    /// made where there is no such branch
    #[arg(long, value_name = "BRANCH", requires = "worktree", conflicts_with_all = ["base", "here"])]
    pub(crate) branch: Option<String>,
    /// With --branch: where that worktree must be
    #[arg(long, value_name = "DIR", requires = "branch")]
    pub(crate) worktree: Option<PathBuf>,
    /// In a repository: work in the directory itself, whose repository can only be read; no worktree, no branch, no commits
    #[arg(long, conflicts_with_all = ["name", "base", "here", "branch", "auto", "keep", "discard"])]
    pub(crate) in_place: bool,
    /// In a repository: its own configuration is mine. Without this guard refuses one that names programs (filters), other
    /// repositories or files outside: an agent could have planted it
    #[arg(long)]
    pub(crate) trust_repository: bool,
    /// Run although git repositories where the command may write cannot be protected from it (no namespaces, too many files
    /// to search): changes of them are reported at the end only
    #[arg(long)]
    pub(crate) allow_unprotected_repositories: bool,
    /// In a repository: leave the dependencies of your checkout (node_modules, virtual environments, vendor, target) out
    #[arg(long)]
    pub(crate) no_deps: bool,
    /// In a repository: the worktree begins with your uncommitted changes and untracked files
    #[arg(long, conflicts_with_all = ["base", "here", "branch", "in_place"])]
    pub(crate) with_changes: bool,
    /// In a repository: another untracked path of your checkout that the command can read, as a link
    #[arg(long, value_name = "PATH")]
    pub(crate) link: Vec<String>,
    /// In a repository: an untracked path of your checkout that the command gets a copy of
    #[arg(long, value_name = "PATH")]
    pub(crate) copy: Vec<String>,
    /// Remove worktree and branch when there is nothing new in them, and keep them otherwise (the default)
    #[arg(long, conflicts_with_all = ["keep", "discard"])]
    pub(crate) auto: bool,
    /// Keep worktree and branch, also when there is nothing new in them
    #[arg(long, conflicts_with = "discard")]
    pub(crate) keep: bool,
    /// Remove worktree and branch at the end; what was in them stays under refs/guard/
    #[arg(long)]
    pub(crate) discard: bool,
    /// Print one JSON object at the end instead of the command's output
    #[arg(long)]
    pub(crate) json: bool,
    /// Print every event as a JSON line, and the result as the last one
    #[arg(long)]
    pub(crate) stream_json: bool,
    /// Show what would be run and with which rights, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// No summary at the end
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Namespaces of the run's own, instead of what the policy says
    #[arg(long, value_enum)]
    pub(crate) namespaces: Option<NamespaceChoice>,
    /// Another file or directory that may be read
    #[arg(long, value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,
    /// Another file or directory that may be written
    #[arg(long, value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,
    /// Another host that may be reached: `example.org`, `*.example.org:443`, `GET example.org/path`
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_host: Vec<String>,
    /// A port that a server of the command may listen on, on loopback only; more than one when given again. Every program of
    /// this machine can connect to it
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) listen: Vec<u16>,
    /// A network preset (see `guard policy presets`): rust, node, python, debian, github-readonly, …
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) preset: Vec<String>,
    /// Do not begin without the keys that the presets' APIs need (a known agent never does)
    #[arg(long)]
    pub(crate) require_keys: bool,
    /// End it when a model was asked for so many tokens, questions and answers together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// End it when a model was asked so often
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_requests: Option<u64>,
    /// End it when a model cost so much, by the prices in config.toml
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) max_cost: Option<f64>,
    /// A variable for the command; NAME alone hands on the caller's value
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// End it after so many seconds without output, a new program or work (a fiftieth of one CPU's time); 0 is never
    /// [default: the policy's, never when standard input is a terminal]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// End it after so many seconds in all; 0 is never [default: the policy's, never when standard input is a terminal]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_duration: Option<u64>,
    /// A directory whose content the private home begins with; of several a later one's files replace an earlier one's
    #[arg(long, value_name = "DIR")]
    pub(crate) home_from: Vec<PathBuf>,
    /// A file of the private home, and what is in it: {NAME-port} is the port of the gateway NAME, {directory} the working
    /// tree, escaped as inside a string in double quotes
    #[arg(long, value_name = "PATH=TEXT", hide = true)]
    pub(crate) home_file: Vec<String>,
    /// The agent whose login is copied into the private home
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) agent_login: Option<String>,
    /// A directory that gets what is kept of the private home (see --home-keep)
    #[arg(long, value_name = "DIR", requires = "home_keep")]
    pub(crate) home_to: Option<PathBuf>,
    /// A file or directory of the private home that is kept
    #[arg(long, value_name = "PATH", requires = "home_to")]
    pub(crate) home_keep: Vec<PathBuf>,
    /// The agent that COMMAND is, or `none` [default: by the program's name]. An agent gets its settings, its API's gateway
    /// and its conversations of this repository in the private home, and its answer becomes the result
    #[arg(long, value_name = "NAME|none")]
    pub(crate) agent: Option<String>,
    /// Do not look for toolchains in the home directory
    #[arg(long)]
    pub(crate) no_toolchains: bool,
    /// Leave the shims for git and the shells out
    #[arg(long)]
    pub(crate) no_shims: bool,
    /// Do not look at programs a second time when they have started: a racing thread can then fool the judgement
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Whether a run gets namespaces of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NamespaceChoice {
    Auto,
    Require,
    Off,
}

impl From<NamespaceChoice> for crate::policy::Namespaces {
    fn from(choice: NamespaceChoice) -> Self {
        match choice {
            NamespaceChoice::Auto => Self::Auto,
            NamespaceChoice::Require => Self::Require,
            NamespaceChoice::Off => Self::Off,
        }
    }
}

const CHECK_EXAMPLES: &str = "\
Examples:
  guard check -- git checkout main
  guard check --policy standard --json -- git commit --amend
  guard check --shell 'make && git push'
  guard check --connect example.org:443
  printf 'ls\\ngit reset --hard\\n' | guard check --stdin

Exit codes: 0 allowed, 1 denied, 3 a person would be asked, 2 bad usage or policy.";

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The policy: a name (see `guard policy list`) or a path
    #[arg(long, short, default_value = "strict")]
    pub(crate) policy: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The directory the command would run in [default: the current one]
    #[arg(long, value_name = "DIR", visible_alias = "dir")]
    pub(crate) cwd: Option<PathBuf>,
    /// The working tree the task owns [default: the repository the directory lies in, or the directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) worktree: Option<PathBuf>,
    /// A repository of the run's own that is not the task's: other rules hold there
    #[arg(long, value_name = "DIR")]
    pub(crate) other_repository: Vec<PathBuf>,
    /// A variable of the environment it would run with (none by default)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<OsString>,
    /// git configuration that would be in force, such as alias.co=checkout
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) git_config: Vec<OsString>,
    /// The file that the program's name leads to, if it is not what the name says
    #[arg(long, value_name = "FILE")]
    pub(crate) resolved: Option<PathBuf>,
    /// A host and port instead of a command: would a connection be let through?
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["stdin", "command", "shell"])]
    pub(crate) connect: Option<String>,
    /// Shell text instead of a command
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["stdin", "command"])]
    pub(crate) shell: Option<OsString>,
    /// Read commands from standard input, a line each: shell text, or {"argv": […]} / {"shell": "…"}; answer in JSON lines
    #[arg(long, conflicts_with = "command")]
    pub(crate) stdin: bool,
    /// The command and its arguments; put `--` before it when it begins with a dash
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present_any = ["shell", "stdin", "connect"])]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// List the policies that can be used by name
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a policy as it is written, or as it works with everything it extends
    #[command(
        after_help = "Examples:\n  guard policy show strict > my.toml\n  guard policy show auditor --effective"
    )]
    Show {
        /// A name or a path
        policy: String,
        /// Merge what it extends, and list its rules with their places
        #[arg(long)]
        effective: bool,
        /// Print JSON (of the effective policy)
        #[arg(long)]
        json: bool,
    },
    /// Check policies: syntax, names, merging, examples; every problem with its place
    #[command(
        after_help = "Examples:\n  guard policy lint team.toml\n  guard policy lint --json strict standard\n\nExit codes: 0 nothing wrong, 1 errors found, 2 bad usage."
    )]
    Lint {
        /// Names or paths
        #[arg(required = true)]
        policies: Vec<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the network presets: which hosts and gateways they open, and why
    #[command(after_help = "Example:\n  guard policy presets\n  guard run --preset rust,node -- make")]
    Presets {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say what one policy does differently from another
    #[command(
        after_help = "Example:\n  guard policy diff strict standard\n\nExit codes: 0 they agree, 1 they differ, 2 bad usage or policy."
    )]
    Diff {
        /// A name or a path
        a: String,
        /// A name or a path
        b: String,
    },
    /// Print the JSON Schema of policy files, for editors and CI
    Schema,
    /// Run lists of commands through policies, and compare with a committed snapshot
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(Audit),
}

const AUDIT_EXAMPLES: &str = "\
Examples:
  guard policy audit --policy strict fixtures/commands/*.txt
  guard policy audit --policy team.toml --snapshot team.audit commands.txt            # fails when an answer changed
  guard policy audit --policy team.toml --snapshot team.audit --update commands.txt   # accept the change
  guard policy audit --format sarif commands.txt > audit.sarif

A list has one command a line, `LABEL<TAB>COMMAND`; the label (allow, ask, deny) is optional.
Exit codes: 0 all as expected, 1 a label or the snapshot is contradicted, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// A policy to run; may be given several times
    #[arg(long, short, default_value = "strict")]
    pub(crate) policy: Vec<String>,
    /// The committed table to compare with
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Write the snapshot instead of comparing
    #[arg(long, requires = "snapshot")]
    pub(crate) update: bool,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Lists of commands
    #[arg(required = true)]
    pub(crate) corpora: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
    Junit,
    Sarif,
}

const LOG_EXAMPLES: &str = "\
Examples:
  guard log                        # the newest run
  guard log 0197f0a0 --denied      # what was refused; the beginning or end of an id is enough
  guard log --follow               # goes on until the run ends
  guard log --json | jq .event_type

RUN is an id, a unique beginning or end of one, or a path with a slash in it.";

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// The run [default: the newest]
    pub(crate) run: Option<String>,
    /// Wait for more until the run ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only what was refused
    #[arg(long)]
    pub(crate) denied: bool,
    /// Only what went to the network, or was not let there
    #[arg(long)]
    pub(crate) network: bool,
    /// Print the lines of the transcript as they are
    #[arg(long)]
    pub(crate) json: bool,
    /// Print control characters as they are: colours, but whatever else the agent sent too
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  guard replay 0197f0a0
  guard replay 0197f0a0 --speed 4 --max-pause 2
  guard replay 0197f0a0 --speed max > output.txt

On a terminal, sequences that could do more than draw (clipboard, answers, mouse) are left out; --raw lets them through.";

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The run: an id, a unique beginning or end of one, or a path with a slash in it
    pub(crate) run: String,
    /// How many times faster; `max` or 0 for at once
    #[arg(long, default_value = "1", value_name = "N")]
    pub(crate) speed: String,
    /// No pause longer than this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_pause: Option<f64>,
    /// Write every byte as it was, also on a terminal
    #[arg(long)]
    pub(crate) raw: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  guard verify 0197f0a0
  guard verify 0197f0a0 --head HASH     # the hash that was printed when the run ended

The chain shows changes inside a transcript. Actor can write the file can also write all of it anew: only --head shows that.
Exit codes: 0 intact and finished, 1 broken, 3 intact but the run's end is missing, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The run: an id, a unique beginning or end of one, or a path with a slash in it
    pub(crate) run: String,
    /// The hash that the last line must have
    #[arg(long, value_name = "HASH")]
    pub(crate) head: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const RUNS_EXAMPLES: &str = "\
Examples:
  guard runs
  guard runs --json
  guard runs prune                              # those older than 30 days
  guard runs prune --keep 20 --dry-run

A run that has not finished is never deleted.";

#[derive(Debug, Args)]
pub(crate) struct Runs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) action: Option<RunsAction>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsAction {
    /// Delete finished runs, transcripts and all
    Prune {
        /// Those that ended longer ago: 45m, 12h, 30d, 8w [default: 30d, unless --keep is given]
        #[arg(long, value_name = "TIME")]
        older_than: Option<String>,
        /// But never the newest so many
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        /// Only say what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
