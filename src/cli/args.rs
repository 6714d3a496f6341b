//! The command line of `guard` as clap types. Other modules of `cli` turn them into requests; no module outside `cli`
//! sees them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::colour::ColourOptions;
use super::durations::{parse_pause, parse_seconds};
use super::exec_args::EXEC_EXAMPLES;
pub(crate) use super::exec_args::Exec;
use super::logging::LogOptions;
use super::runs_args::{ATTACH_EXAMPLES, Attach, PS_EXAMPLES, Ps, RUNS_EXAMPLES, Runs, STOP_EXAMPLES, Stop};
use super::shell_args::{
    COMPLETIONS_EXAMPLES, Complete, Completions, HELP_EXAMPLES, Help, MAN_EXAMPLES, Man,
};
use super::take_over_args::{APPLY_EXAMPLES, Apply, DIFF_EXAMPLES, Diff, RESTORE_EXAMPLES, Restore};
use super::task_args::{TASK_EXAMPLES, Task, WORKFLOW_EXAMPLES, Workflow};

/// Run AI coding agents without trusting them: a TOML policy judges every command they start.
#[derive(Debug, Parser)]
#[command(
    name = "guard",
    version,
    propagate_version = true,
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogOptions,
    #[command(flatten)]
    pub(crate) colour: ColourOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show whether a policy allows a command, and why
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// List, show, check and compare policies
    #[command(subcommand)]
    Policy(Policy),
    /// Run a command in the sandbox: judge every program it starts, record everything, report one result
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Give an agent a prompt or a JSON request, and get its answer: text on a terminal, else one JSON object
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Exec),
    /// Serve agents as Model Context Protocol tools, over standard input and output or HTTP
    #[command(after_help = MCP_EXAMPLES)]
    Mcp(Mcp),
    /// Turn a sentence into a reviewed branch: plan, review, develop, audit, integrate
    #[command(after_help = TASK_EXAMPLES, args_conflicts_with_subcommands = true)]
    Task(Task),
    /// List, show, check and draw the workflows that tasks follow
    #[command(subcommand, after_help = WORKFLOW_EXAMPLES)]
    Workflow(Workflow),
    /// Watch guard stop a scripted agent in a scratch repository; needs no API key and no network
    Demo {
        /// Whether the run gets private namespaces, instead of what the policy says
        #[arg(long, value_enum)]
        namespaces: Option<NamespaceChoice>,
    },
    /// The scripted agent of the demo
    #[command(hide = true, name = "demo-agent")]
    DemoAgent {
        /// The demo's scratch directory, the port of its server, and the PID of the supervisor
        arguments: Vec<String>,
    },
    /// Show which sandbox features this machine has, which ones each policy needs, and how to get missing ones
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what happened in a run
    #[command(after_help = LOG_EXAMPLES)]
    Log(Log),
    /// Explain a decision: the rule and where it is, the layer that enforces it, and what would allow it
    #[command(after_help = WHY_EXAMPLES)]
    Why(Why),
    /// Allow what a run was refused, by a rule in your policy or the project's
    #[command(after_help = ALLOW_EXAMPLES)]
    Allow(Allow),
    /// Write the smallest policy that allows what a command does
    #[command(after_help = LEARN_EXAMPLES)]
    Learn(Learn),
    /// Set up a repository: detect its languages and agents, and write its .guard/config.toml
    #[command(after_help = INIT_EXAMPLES)]
    Init(Init),
    /// Show the defaults of runs here and where they come from; confirm what a project asks for
    #[command(subcommand, after_help = CONFIG_EXAMPLES)]
    Config(ConfigAction),
    /// Play back what a run printed, with its original timing
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Replay),
    /// Check that the transcript of a run was not changed
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Verify),
    /// List runs, and delete old ones
    #[command(after_help = RUNS_EXAMPLES, args_conflicts_with_subcommands = true)]
    Runs(Runs),
    /// Show the work of a run, committed or not, as one diff
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(Diff),
    /// Bring the work of a run into your branch, and remove its worktree
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(Apply),
    /// List and bring back what guard saved before it removed worktrees
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(Restore),
    /// List the runs that are running
    #[command(after_help = PS_EXAMPLES)]
    Ps(Ps),
    /// End runs, as Ctrl-C would
    #[command(after_help = STOP_EXAMPLES)]
    Stop(Stop),
    /// Follow the output of a run until it ends, and exit with its exit code
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// List, show, merge, receive and remove the branches and worktrees that runs left
    #[command(subcommand, after_help = WORKTREE_EXAMPLES)]
    Worktree(Worktree),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Print the manual page of guard, or write the pages of all commands
    #[command(after_help = MAN_EXAMPLES)]
    Man(Man),
    /// Explain a command or a topic: policies, network, keys, agents, git, exit-codes
    #[command(after_help = HELP_EXAMPLES)]
    Help(Help),
    /// Print the values that completion scripts offer
    #[command(name = "__complete", hide = true)]
    Complete(Complete),
}

const MCP_EXAMPLES: &str = "\
Examples:
  guard mcp --root ~/work                              # started by a client; agents may work below ~/work
  claude mcp add guard -- guard mcp --root ~/work
  guard mcp --root ~/work --http 127.0.0.1:8731        # for several clients, and for clients that reconnect
  claude mcp add --transport http guard http://127.0.0.1:8731/mcp \\
    --header \"Authorization: Bearer $(cat ~/.local/state/guard/mcp-token)\"

Tools: gemini (prompt the agent), guard_check (check a command against a policy), guard_report (state and result of a call or run),
guard_cancel (stop a call). Over standard input and output, all calls end when the client exits. Over HTTP, a call continues when its
client stops waiting or disconnects; it ends when it is done, when the client cancels it (notifications/cancelled, guard_cancel), or
when the server stops. With --http the first line of the output is JSON: `url`, `token_file`, `pid`. SIGTERM and Ctrl-C stop the server
and all calls.";

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// A directory that agents may work in, with everything below it; repeatable [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Serve over HTTP on this loopback address instead [default without a value: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:0")]
    pub(crate) http: Option<String>,
    /// The file with the bearer token that HTTP clients must send, mode 600 [default: mcp-token in guard's state directory,
    /// created if missing]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    /// The maximum number of agent calls at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) max_calls: u8,
}

const WORKTREE_EXAMPLES: &str = "\
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
        after_help = "Examples:\n  guard worktree clean                     # of this repository: worktrees without new work, and interrupted runs\n  guard worktree clean --dry-run           # shows what that would remove\n  guard worktree clean task/add-a-toggle\n  guard worktree clean --all               # including work, which stays under refs/guard/, and finished tasks\n  guard worktree clean --all-repositories"
    )]
    Clean {
        /// Runs or their branches [default: those of this repository without new work]
        runs: Vec<String>,
        /// Every worktree of this repository that is not in use, including those with new work, and those of finished tasks
        #[arg(long, conflicts_with = "runs")]
        all: bool,
        /// Of all repositories, not only that of the current directory
        #[arg(long, conflicts_with = "runs")]
        all_repositories: bool,
        /// Only show what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Retry receiving a run's commits into the repository, after it failed or was interrupted
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

const RUN_EXAMPLES: &str = "\
Examples:
  guard run -- cargo test
  guard run --policy strict -- gemini -p 'add a dark mode toggle'
  guard run --name dark-mode -- gemini -p 'add a dark mode toggle'   # in a repository: branch task/dark-mode
  guard run --json --timeout 5m -- ./agent.sh | jq .denials
  guard run --preset node -- npm ci                   # opens the registry that your npm is configured for
  guard run --listen 3000 -- npm run dev              # a server at http://127.0.0.1:3000/ while it runs
  guard run --detach -- make test                     # in the background; see `guard ps`, `guard attach`, `guard stop`
  guard run --dry-run -- npm test                     # shows every path, variable and limit; runs nothing

Exit codes: the exit code of the command (128 plus the signal number if a signal ended it); 124 a time limit or budget was reached,
125 guard itself failed or the sandbox is unavailable, 126 the policy denies the command, 127 the command was not found.";

#[derive(Debug, Clone, Args)]
pub(crate) struct Run {
    /// The policy: a name (see `guard policy list`) or a path [default: the project's, yours, or strict]
    #[arg(long, short)]
    pub(crate) policy: Option<String>,
    /// The directory the command works in and may write to [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// In a repository: the name for the run's branch and worktree [default: the run's id]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Which agent COMMAND is, or `none` [default: detected from the program's name]. guard puts the agent's settings and its
    /// conversations about this repository into the private home, opens the gateway to its API, and reports the agent's
    /// answer as the result
    #[arg(long, value_name = "NAME|none")]
    pub(crate) agent: Option<String>,
    /// Show what guard would run and which access it would get, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object at the end instead of the command's output
    #[arg(long)]
    pub(crate) json: bool,
    /// Print every event as a line of JSON, with the result as the last line
    #[arg(long)]
    pub(crate) stream_json: bool,
    /// Print no summary at the end
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Run in the background: print the run's id when the command has started. `guard attach` follows its output, `guard stop`
    /// ends it
    #[arg(long, conflicts_with_all = ["stream_json", "dry_run"])]
    pub(crate) detach: bool,
    /// Allow the command to read this file or directory too; repeatable
    #[arg(long, help_heading = "Access", value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,
    /// Allow the command to write this file or directory too; repeatable
    #[arg(long, help_heading = "Access", value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,
    /// A command that this run may use although the policy denies it: `'git rebase'`. Only the rules that deny exactly this
    /// command are lifted, and only for it
    #[arg(long, help_heading = "Access", value_name = "COMMAND")]
    pub(crate) allow: Vec<String>,
    /// Allow connections to this host too: `example.org`, `*.example.org:443`, `GET example.org/path`; repeatable
    #[arg(long, help_heading = "Access", value_name = "HOST")]
    pub(crate) allow_host: Vec<String>,
    /// Allow the command to listen on this port, on loopback only; repeatable. Every program on this machine can connect to
    /// it
    #[arg(long, help_heading = "Access", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) listen: Vec<u16>,
    /// Allow the hosts and gateways of a network preset (see `guard policy presets`): rust, node, python, debian, …
    #[arg(long, help_heading = "Access", value_name = "NAME", value_delimiter = ',')]
    pub(crate) preset: Vec<String>,
    /// Set an environment variable for the command; NAME alone passes the current value; repeatable
    #[arg(long, help_heading = "Access", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// In a repository: the commit to start the branch at [default: HEAD]
    #[arg(long, help_heading = "Git", value_name = "REV")]
    pub(crate) base: Option<String>,
    /// In a repository: work in the linked worktree that contains the directory, on the branch checked out there
    #[arg(long, help_heading = "Git", conflicts_with_all = ["name", "base"])]
    pub(crate) here: bool,
    /// In a repository: continue on this existing branch, in the linked worktree that has it checked out (see --worktree).
    /// With --name, guard creates a new branch and worktree if this branch does not exist
    #[arg(long, help_heading = "Git", value_name = "BRANCH", requires = "worktree", conflicts_with_all = ["base", "here"])]
    pub(crate) branch: Option<String>,
    /// With --branch: the path of the worktree that has the branch checked out
    #[arg(long, help_heading = "Git", value_name = "DIR", requires = "branch")]
    pub(crate) worktree: Option<PathBuf>,
    /// In a repository: work in the directory itself, with its repository read-only; no worktree, no branch, no commits
    #[arg(long, help_heading = "Git", conflicts_with_all = ["name", "base", "here", "branch", "auto", "keep", "discard"])]
    pub(crate) in_place: bool,
    /// In a repository: trust its git configuration. Without this option, guard refuses a configuration that names programs
    /// (filters), other repositories or files outside, because an earlier agent may have written it
    #[arg(long, help_heading = "Git")]
    pub(crate) trust_repository: bool,
    /// Run even if guard cannot protect the git repositories in directories that the command may write to (no namespaces, or
    /// too many files to search). guard then only reports changes to them at the end
    #[arg(long, help_heading = "Git")]
    pub(crate) allow_unprotected_repositories: bool,
    /// In a repository: do not bring the dependencies of your checkout (node_modules, virtual environments, vendor, target)
    /// into the worktree
    #[arg(long, help_heading = "Git")]
    pub(crate) no_deps: bool,
    /// In a repository: start the worktree with your uncommitted changes and untracked files
    #[arg(long, help_heading = "Git", conflicts_with_all = ["base", "here", "branch", "in_place"])]
    pub(crate) with_changes: bool,
    /// In a repository: link this untracked path of your checkout into the worktree, read-only; repeatable
    #[arg(long, help_heading = "Git", value_name = "PATH")]
    pub(crate) link: Vec<String>,
    /// In a repository: copy this untracked path of your checkout into the worktree; repeatable
    #[arg(long, help_heading = "Git", value_name = "PATH")]
    pub(crate) copy: Vec<String>,
    /// Remove the worktree and branch if the run left nothing new in them, and keep them otherwise (the default)
    #[arg(long, help_heading = "Git", conflicts_with_all = ["keep", "discard"])]
    pub(crate) auto: bool,
    /// Keep the worktree and branch even if the run left nothing new in them
    #[arg(long, help_heading = "Git", conflicts_with = "discard")]
    pub(crate) keep: bool,
    /// Remove the worktree and branch at the end; guard saves commits and uncommitted work under refs/guard/
    #[arg(long, help_heading = "Git")]
    pub(crate) discard: bool,
    /// Stop the run after this time without output, without a new program and with less than 2 % CPU use: seconds, or 90s,
    /// 5m, 2h, 1d; 0 means never [default: the policy's value; never if standard input is a terminal]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// Stop the run after this time in total: seconds, or 90s, 5m, 2h, 1d; 0 means never [default: the policy's value; never
    /// if standard input is a terminal]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) max_duration: Option<u64>,
    /// Stop the run after the models have used N tokens, input and output together
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Stop the run after N requests to models
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_requests: Option<u64>,
    /// Stop the run when the models have cost this much, by the prices in config.toml
    #[arg(long, help_heading = "Limits", value_name = "AMOUNT")]
    pub(crate) max_cost: Option<f64>,
    /// Refuse to start if an API key that a preset needs is missing; guard always does this for known agents
    #[arg(long, help_heading = "Agents and the private home")]
    pub(crate) require_keys: bool,
    /// Copy the content of this directory into the private home before the run; repeatable, later directories replace files
    /// of earlier ones
    #[arg(long, help_heading = "Agents and the private home", value_name = "DIR")]
    pub(crate) home_from: Vec<PathBuf>,
    /// Copy the paths of --home-keep from the private home to this directory after the run
    #[arg(long, help_heading = "Agents and the private home", value_name = "DIR", requires = "home_keep")]
    pub(crate) home_to: Option<PathBuf>,
    /// A file or directory of the private home to copy to --home-to; repeatable
    #[arg(long, help_heading = "Agents and the private home", value_name = "PATH", requires = "home_to")]
    pub(crate) home_keep: Vec<PathBuf>,
    /// Create this file with this text in the private home. In the text, {NAME-port} is the port of the gateway NAME, and
    /// {directory} is the working tree, escaped for a string in double quotes
    #[arg(long, help_heading = "Agents and the private home", value_name = "PATH=TEXT", hide = true)]
    pub(crate) home_file: Vec<String>,
    /// Copy the login of this agent into the private home
    #[arg(long, help_heading = "Agents and the private home", value_name = "NAME", hide = true)]
    pub(crate) agent_login: Option<String>,
    /// Whether the run gets private namespaces, instead of what the policy says
    #[arg(long, help_heading = "Sandbox", value_enum)]
    pub(crate) namespaces: Option<NamespaceChoice>,
    /// Do not search the home directory for toolchains
    #[arg(long, help_heading = "Sandbox")]
    pub(crate) no_toolchains: bool,
    /// Do not put shims for git and the shells on PATH
    #[arg(long, help_heading = "Sandbox")]
    pub(crate) no_shims: bool,
    /// Do not check programs a second time after they have started. A thread that changes its arguments during the first
    /// check can then evade the policy
    #[arg(long, help_heading = "Sandbox")]
    pub(crate) no_verify: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Whether a run gets private namespaces.
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

const WHY_EXAMPLES: &str = "\
Examples:
  guard why                                    # every refusal of the newest run
  guard why 0197f0a0 17                        # one event; `guard log --denied` shows the numbers
  guard why -- git rebase main
  guard why --path ~/.ssh/config
  guard why --path /srv/data --write
  guard why --host registry.example:443

Exit codes: 0 allowed or explained, 1 denied, 3 a person would be asked, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Why {
    /// The run: an id, a unique beginning or end of one, a branch, a name, or `@` for the newest [default: the newest]
    #[arg(value_name = "RUN", conflicts_with_all = ["path", "host", "command"])]
    pub(crate) run: Option<String>,
    /// The number of the event [default: every refusal]
    #[arg(value_name = "EVENT", requires = "run")]
    pub(crate) event: Option<u64>,
    /// A file or directory: may a run here read it?
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "command"])]
    pub(crate) path: Option<PathBuf>,
    /// With --path: may it write there?
    #[arg(long, requires = "path")]
    pub(crate) write: bool,
    /// A host, with or without a port: may a run reach it?
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "command")]
    pub(crate) host: Option<String>,
    /// The policy, for --path, --host and a command: a name or a path [default: the project's, yours, or strict]
    #[arg(long, short)]
    pub(crate) policy: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// A command and its arguments: may a run start it?
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
}

const LEARN_EXAMPLES: &str = "\
Examples:
  guard learn -- cargo build                        # writes learned.toml
  guard learn --network allow --out ci.toml -- npm test
  guard learn --from @ --from 0197f0a0              # from runs that you have made already
  guard run --policy ./learned.toml -- cargo build

The command runs in the sandbox as always: its own worktree, no files outside, an own git repository. Only the rules about
commands do not apply. By default every host is refused and recorded; --network allow lets it reach them.
Exit codes: those of the command.";

#[derive(Debug, Args)]
pub(crate) struct Learn {
    /// Also learn from this run, or only from it when no command is given; repeatable
    #[arg(long, value_name = "RUN", required_unless_present = "command")]
    pub(crate) from: Vec<String>,
    /// The policy that the learned one extends [default: the project's, yours, or strict]
    #[arg(long, short)]
    pub(crate) policy: Option<String>,
    /// What happens to connections while learning
    #[arg(long, value_enum, default_value_t = LearnNetwork::Refuse)]
    pub(crate) network: LearnNetwork,
    /// A network preset for the run that is watched; repeatable
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) preset: Vec<String>,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value_os_t = super::learn::default_out())]
    pub(crate) out: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub(crate) force: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// What happens to connections while guard learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LearnNetwork {
    /// Every host is refused and recorded.
    Refuse,
    /// Every host can be reached, and is recorded.
    Allow,
}

const INIT_EXAMPLES: &str = "\
Examples:
  guard init                # writes .guard/config.toml; never overwrites one
  guard init --dry-run      # prints it only";

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Print the configuration, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  guard config show --origin
  guard config trust        # confirm what this project's .guard/config.toml asks for, once for its content";

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Show the defaults of runs in the current directory
    #[command(
        after_help = "Examples:\n  guard config show --origin\n  guard config show --json | jq -r .policy.value"
    )]
    Show {
        /// Also show where each value comes from
        #[arg(long)]
        origin: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Confirm what the project's configuration asks for beyond what you allow
    #[command(after_help = "Example:\n  guard config trust")]
    Trust,
}

const ALLOW_EXAMPLES: &str = "\
Examples:
  guard allow @                     # the only thing the newest run was refused
  guard allow @ 17 --project        # for everybody who works on this repository
  guard allow 0197f0a0 17 --user    # for all your runs with the same policy
  guard allow @ 17 --dry-run        # show the change only

guard shows the change before it writes it, and asks on a terminal. --project writes .guard/policy.toml in this repository; it
takes effect when it is committed. --user writes a policy of the same name below ~/.config/guard/policies, which extends the
one that the run used.
Exit codes: 0 written, 1 not confirmed, or nothing can allow it, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Allow {
    /// The run: an id, a unique beginning or end of one, a branch, a name, or `@` for the newest
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The number of the refusal; `guard why RUN` lists them [default: the only one]
    #[arg(value_name = "EVENT")]
    pub(crate) event: Option<u64>,
    /// Write to the project's policy, .guard/policy.toml [default in a repository]
    #[arg(long, conflicts_with = "user")]
    pub(crate) project: bool,
    /// Write to your own policy, below ~/.config/guard/policies [default elsewhere]
    #[arg(long)]
    pub(crate) user: bool,
    /// Show the change, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Write without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  guard check -- git checkout main
  guard check --policy standard --json -- git commit --amend
  guard check --shell 'make && git push'
  guard check --connect example.org:443
  printf 'ls\\ngit reset --hard\\n' | guard check --stdin

Exit codes: 0 allowed, 1 denied, 3 the policy would ask the user, 2 bad usage or an invalid policy.";

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The policy: a name (see `guard policy list`) or a path [default: the project's, yours, or strict]
    #[arg(long, short)]
    pub(crate) policy: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The directory the command would run in [default: the current directory]
    #[arg(long, value_name = "DIR", visible_alias = "dir")]
    pub(crate) cwd: Option<PathBuf>,
    /// The working tree of the task [default: the repository that contains the directory, or the directory itself]
    #[arg(long, value_name = "DIR")]
    pub(crate) worktree: Option<PathBuf>,
    /// A repository that the run itself created, such as a clone. The rules that protect the task's repository do not apply
    /// there; repeatable
    #[arg(long, value_name = "DIR")]
    pub(crate) other_repository: Vec<PathBuf>,
    /// An environment variable the command would have; repeatable [default: none]
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<OsString>,
    /// A git configuration value that would apply, such as alias.co=checkout; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) git_config: Vec<OsString>,
    /// The file that would be executed, if it is not the program that the command names
    #[arg(long, value_name = "FILE")]
    pub(crate) resolved: Option<PathBuf>,
    /// Check a connection to this host and port instead of a command
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["stdin", "command", "shell"])]
    pub(crate) connect: Option<String>,
    /// Check this shell text instead of a command
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["stdin", "command"])]
    pub(crate) shell: Option<OsString>,
    /// Read one command per line from standard input, as shell text, {"argv": […]} or {"shell": "…"}, and print one line of
    /// JSON for each
    #[arg(long, conflicts_with = "command")]
    pub(crate) stdin: bool,
    /// The command and its arguments; put `--` before a command that begins with a dash
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
    /// Print the text of a policy, or the policy that results from everything it extends
    #[command(
        after_help = "Examples:\n  guard policy show strict > my.toml\n  guard policy show auditor --effective"
    )]
    Show {
        /// A name or a path
        policy: String,
        /// Merge the policies it extends, and list every rule with its file and line
        #[arg(long)]
        effective: bool,
        /// Print the merged policy as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check policies for errors in syntax, names, merging and examples, and show where each error is
    #[command(
        after_help = "Examples:\n  guard policy lint team.toml\n  guard policy lint --json strict standard\n\nExit codes: 0 no errors, 1 errors found, 2 bad usage."
    )]
    Lint {
        /// Names or paths
        #[arg(required = true)]
        policies: Vec<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the network presets: which hosts and gateways they allow, and why
    #[command(after_help = "Example:\n  guard policy presets\n  guard run --preset rust,node -- make")]
    Presets {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what one policy does differently from another
    #[command(
        after_help = "Example:\n  guard policy diff strict standard\n\nExit codes: 0 no difference, 1 the policies differ, 2 bad usage or an invalid policy."
    )]
    Diff {
        /// A name or a path
        a: String,
        /// A name or a path
        b: String,
    },
    /// Print the JSON Schema of policy files, for editors and CI
    Schema,
    /// Judge lists of commands by policies, and compare the decisions with a committed snapshot
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(Audit),
}

const AUDIT_EXAMPLES: &str = "\
Examples:
  guard policy audit --policy strict fixtures/commands/*.txt
  guard policy audit --policy team.toml --snapshot team.audit commands.txt            # fails if a decision changed
  guard policy audit --policy team.toml --snapshot team.audit --update commands.txt   # accept the change
  guard policy audit --format sarif commands.txt > audit.sarif

A list has one command per line, `LABEL<TAB>COMMAND`; the label (allow, ask, deny) is the expected decision and is optional.
Exit codes: 0 all decisions as expected, 1 a decision differs from its label or the snapshot, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// A policy to judge by; repeatable
    #[arg(long, short, default_value = "strict")]
    pub(crate) policy: Vec<String>,
    /// The snapshot file to compare the decisions with
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Write the snapshot instead of comparing
    #[arg(long, requires = "snapshot")]
    pub(crate) update: bool,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Files with lists of commands
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
  guard log 0197f0a0 --denied      # only denials; the beginning or end of an id is enough
  guard log --follow               # waits for new events until the run ends
  guard log --json | jq .event_type

RUN is a run's id, a unique beginning or end of an id, the run's branch (task/x) or name (x), `@` for the newest run, `@2` for the
one before it, or a path that contains a slash.";

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// The run [default: the newest]
    pub(crate) run: Option<String>,
    /// Wait for new events until the run ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Show only denials
    #[arg(long)]
    pub(crate) denied: bool,
    /// Show only events about the network, allowed or denied
    #[arg(long)]
    pub(crate) network: bool,
    /// Print the recorded JSON lines unchanged
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not escape control characters. This shows colours, but also lets the agent's other escape sequences reach the
    /// terminal
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  guard replay 0197f0a0
  guard replay 0197f0a0 --speed 4 --max-pause 2
  guard replay 0197f0a0 --speed max > output.txt

On a terminal, guard removes escape sequences that do more than draw (set the clipboard, make the terminal send replies, capture the
mouse); --raw keeps them.";

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The run: an id, a unique beginning or end of one, a branch, a name, `@` for the newest, or a path
    pub(crate) run: String,
    /// Play N times as fast as recorded; `max` or 0 plays without pauses
    #[arg(long, default_value = "1", value_name = "N")]
    pub(crate) speed: String,
    /// Shorten longer pauses to this time: seconds such as 2 or 0.5, or 90s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_pause)]
    pub(crate) max_pause: Option<Duration>,
    /// Print every recorded byte unchanged, even on a terminal
    #[arg(long)]
    pub(crate) raw: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  guard verify 0197f0a0
  guard verify 0197f0a0 --head HASH     # the hash that guard printed when the run ended

The hash chain reveals changes inside a transcript. A process that can write the file can also replace the whole transcript; only
--head reveals that.
Exit codes: 0 intact and finished, 1 changed or not the expected head, 3 intact but the end of the run is missing, 2 bad usage.";

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The run: an id, a unique beginning or end of one, a branch, a name, `@` for the newest, or a path
    pub(crate) run: String,
    /// The hash that the last line of the transcript must have
    #[arg(long, value_name = "HASH")]
    pub(crate) head: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
