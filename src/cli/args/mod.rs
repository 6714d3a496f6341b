//! The command line of `guard` as clap types. Other modules of `cli` convert them to requests; no module outside
//! `cli` uses them.

pub(in crate::cli) mod batch;
pub(in crate::cli) mod chat;
pub(in crate::cli) mod control;
pub(in crate::cli) mod durations;
pub(in crate::cli) mod exec;
pub(in crate::cli) mod log;
pub(in crate::cli) mod policy;
pub(in crate::cli) mod research;
pub(in crate::cli) mod run;
pub(in crate::cli) mod runs;
pub(in crate::cli) mod shell;
pub(in crate::cli) mod take_over;
pub(in crate::cli) mod task;
pub(in crate::cli) mod worktree;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::args::batch::{
    BATCH_EXAMPLES, Batch, SERVE_EXAMPLES, ServeArgs, StoreOption, WORKER_EXAMPLES, WorkerArgs,
};
use crate::cli::args::chat::{CHAT_EXAMPLES, Chat, HISTORY_EXAMPLES, History};
use crate::cli::args::control::{CONTROL_EXAMPLES, Control};
use crate::cli::args::exec::EXEC_EXAMPLES;
pub(crate) use crate::cli::args::exec::Exec;
use crate::cli::args::log::{LOG_EXAMPLES, REPLAY_EXAMPLES, VERIFY_EXAMPLES};
pub(crate) use crate::cli::args::log::{Log, Replay, Verify};
use crate::cli::args::policy::{
    ALLOW_EXAMPLES, CHECK_EXAMPLES, CONFIG_EXAMPLES, INIT_EXAMPLES, LEARN_EXAMPLES, WHY_EXAMPLES,
};
pub(crate) use crate::cli::args::policy::{
    Allow, Audit, Check, ConfigAction, Format, Init, Learn, LearnNetwork, Policy, Why,
};
use crate::cli::args::research::{RESEARCH_EXAMPLES, Research};
use crate::cli::args::run::RUN_EXAMPLES;
pub(crate) use crate::cli::args::run::{NamespaceChoice, Run, RunOutput};
use crate::cli::args::runs::{
    ATTACH_EXAMPLES, Attach, PS_EXAMPLES, Ps, RUNS_EXAMPLES, Runs, STOP_EXAMPLES, Stop,
};
use crate::cli::args::shell::{
    COMPLETIONS_EXAMPLES, Complete, Completions, HELP_EXAMPLES, Help, MAN_EXAMPLES, Man,
};
use crate::cli::args::take_over::{
    APPLY_EXAMPLES, Apply, DIFF_EXAMPLES, Diff, RESTORE_EXAMPLES, Restore, UNDO_EXAMPLES, Undo,
};
use crate::cli::args::task::{TASK_EXAMPLES, Task, WORKFLOW_EXAMPLES, Workflow};
use crate::cli::args::worktree::WORKTREE_EXAMPLES;
pub(crate) use crate::cli::args::worktree::Worktree;
use crate::cli::output::colour::ColourOptions;
use crate::cli::output::logging::LogOptions;

/// Run AI coding agents without trusting them: a TOML policy judges every command they start.
#[derive(Debug, Parser)]
#[command(
    name = "guard",
    version,
    propagate_version = true,
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub(crate) struct CommandLine<C: Subcommand> {
    #[command(flatten)]
    pub(crate) log: LogOptions,
    #[command(flatten)]
    pub(crate) colour: ColourOptions,
    #[command(subcommand)]
    pub(crate) command: C,
}

pub(crate) type Cli = CommandLine<Command>;

/// The options of `guard` itself, without any command.
#[derive(Debug, Subcommand)]
enum NoCommand {}

/// Parses a command line that begins with the name of a command. clap builds the types of all commands anew at every
/// start, which takes a fifth of the CPU time of `guard check`; this builds those of one command. Returns `None` for
/// lines that begin with anything else, and for those with an error or a request for help: only the whole command line
/// can answer them.
pub(crate) fn parse_one_command(args: &[OsString]) -> Option<Cli> {
    let command = one_command(args.get(1)?.to_str()?)?;
    let guard = <CommandLine<NoCommand> as CommandFactory>::command().subcommand(command);
    Cli::from_arg_matches_mut(&mut guard.try_get_matches_from(args).ok()?).ok()
}

type AddArguments = fn(clap::Command) -> clap::Command;

/// What adds the arguments of each command to its `clap::Command`. Left out are the commands that have no type of their own
/// in [`Command`].
const ARGUMENTS: &[(&str, AddArguments)] = &[
    ("check", arguments::<Check>),
    ("policy", actions::<Policy>),
    ("run", arguments::<Run>),
    ("exec", arguments::<Exec>),
    ("chat", arguments::<Chat>),
    ("history", actions::<History>),
    ("mcp", arguments::<Mcp>),
    ("task", arguments::<Task>),
    ("research", arguments::<Research>),
    ("batch", arguments::<Batch>),
    ("worker", arguments::<WorkerArgs>),
    ("serve", arguments::<ServeArgs>),
    ("control", arguments::<Control>),
    ("workflow", actions::<Workflow>),
    ("log", arguments::<Log>),
    ("why", arguments::<Why>),
    ("allow", arguments::<Allow>),
    ("learn", arguments::<Learn>),
    ("init", arguments::<Init>),
    ("config", actions::<ConfigAction>),
    ("replay", arguments::<Replay>),
    ("verify", arguments::<Verify>),
    ("runs", arguments::<Runs>),
    ("diff", arguments::<Diff>),
    ("apply", arguments::<Apply>),
    ("restore", arguments::<Restore>),
    ("undo", arguments::<Undo>),
    ("ps", arguments::<Ps>),
    ("stop", arguments::<Stop>),
    ("attach", arguments::<Attach>),
    ("worktree", actions::<Worktree>),
    ("completions", arguments::<Completions>),
    ("man", arguments::<Man>),
    ("help", arguments::<Help>),
    ("__complete", arguments::<Complete>),
];

fn arguments<A: Args>(command: clap::Command) -> clap::Command {
    A::augment_args(command)
}

fn actions<S: Subcommand>(command: clap::Command) -> clap::Command {
    S::augment_subcommands(command.subcommand_required(true).arg_required_else_help(true))
}

/// Builds the command with this name.
fn one_command(name: &str) -> Option<clap::Command> {
    let (name, add) = ARGUMENTS.iter().find(|(known, _)| *known == name)?;
    Some(add(clap::Command::new(*name)))
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
    /// Talk to an agent in turns, which share one worktree
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(Chat),
    /// List, show, search, export, fork, undo, clear and delete conversations
    #[command(subcommand, after_help = HISTORY_EXAMPLES)]
    History(History),
    /// Serve agents as Model Context Protocol tools, over standard input and output or HTTP
    #[command(after_help = MCP_EXAMPLES)]
    Mcp(Mcp),
    /// Turn a sentence into a reviewed branch: plan, review, develop, audit, integrate
    #[command(after_help = TASK_EXAMPLES)]
    Task(Task),
    /// Research a question: split it, ask agents in parallel, and answer with checked sources
    #[command(after_help = RESEARCH_EXAMPLES)]
    Research(Research),
    /// Queue the tasks of a JSON file, and poll for their results
    #[command(after_help = BATCH_EXAMPLES)]
    Batch(Batch),
    /// Work on the tasks of batches, alone or as one of several workers that share a queue
    #[command(after_help = WORKER_EXAMPLES)]
    Worker(WorkerArgs),
    /// Serve batches and conversations over HTTP to programs on this machine, and work on the tasks of batches
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Cancel, pause, resume or adjust a task, batch, conversation or research run in progress
    #[command(after_help = CONTROL_EXAMPLES)]
    Control(Control),
    /// List, show, check and draw the workflows that tasks follow
    #[command(subcommand, after_help = WORKFLOW_EXAMPLES)]
    Workflow(Workflow),
    /// Watch guard stop a scripted agent in a scratch repository; needs no API key and no network
    Demo {
        /// Whether the run gets private namespaces [default: as the policy says]
        #[arg(long, value_enum)]
        namespaces: Option<NamespaceChoice>,
    },
    /// Act as the scripted agent of `guard demo`
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
    /// Allow an action that guard refused, by adding a rule to your policy or the project's
    #[command(after_help = ALLOW_EXAMPLES)]
    Allow(Allow),
    /// Write the smallest policy that allows what a command does
    #[command(after_help = LEARN_EXAMPLES)]
    Learn(Learn),
    /// Set up a repository: detect its languages and agents, and write its .guard/config.toml
    #[command(after_help = INIT_EXAMPLES)]
    Init(Init),
    /// Show the defaults of runs in this directory and where they come from; confirm what a project asks for
    #[command(subcommand, after_help = CONFIG_EXAMPLES)]
    Config(ConfigAction),
    /// Play back what a run printed, with its original timing
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Replay),
    /// Check that the transcript of a run was not changed
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Verify),
    /// List runs, and delete old ones
    #[command(after_help = RUNS_EXAMPLES)]
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
    /// Undo what a run changed in your directory, where it worked without a worktree
    #[command(after_help = UNDO_EXAMPLES)]
    Undo(Undo),
    /// List the runs that are running
    #[command(after_help = PS_EXAMPLES)]
    Ps(Ps),
    /// End runs, as Ctrl-C would
    #[command(after_help = STOP_EXAMPLES)]
    Stop(Stop),
    /// Follow the output of a run until it ends, and exit with its exit code
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// List, show, receive and remove the branches and worktrees that runs left, and preview merges
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
guard_cancel (stop a call), guard_batch_submit, guard_batch_poll and guard_batch_cancel (queue tasks; see `guard batch`), guard_control
(send a command; see `guard control`).

Over standard input and output, all calls end when the client exits. Over HTTP, a call continues when its client stops waiting or
disconnects; it ends when it is done, when the client cancels it (notifications/cancelled, guard_cancel), or when the server stops.
Batches outlive both. With --http the first line of the output is JSON: `url`, `token_file`, `pid`. SIGTERM and Ctrl-C stop the server and all calls.";

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// A directory that agents may work in, with everything below it; repeatable [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Serve over HTTP on this loopback address instead of standard input and output [default without a value: a free
    /// port of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:0")]
    pub(crate) http: Option<String>,
    /// The file with the bearer token that HTTP clients must send, mode 600 [default: mcp-token in guard's state directory,
    /// created if missing]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// The maximum number of agent calls at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) max_calls: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Returns everything about a command that decides how clap parses its arguments. The texts of its help do not.
    fn grammar(command: clap::Command) -> String {
        let no_text = clap::builder::Resettable::<clap::builder::StyledStr>::Reset;
        let command = command.about(no_text.clone()).long_about(no_text.clone()).after_help(no_text);
        format!("{:#?}", command.hide(false).display_order(0))
    }

    #[test]
    fn one_command_has_the_same_arguments_as_in_the_whole_command_line() {
        for whole in Cli::command().get_subcommands() {
            let name = whole.get_name();
            if ["demo", "demo-agent", "doctor"].contains(&name) {
                continue;
            }
            let one = one_command(name).unwrap_or_else(|| panic!("add `{name}` to ARGUMENTS"));
            let (one, whole) = (grammar(one), grammar(whole.clone()));
            let differing = one.lines().zip(whole.lines()).find(|(one, whole)| one != whole);
            assert!(one == whole, "{name} differs: {differing:?}");
            for option in ["--help", "--version", "--no-such-option"] {
                let words = ["guard", name, option].map(OsString::from);
                assert!(parse_one_command(&words).is_none(), "{name} {option} needs the whole command line");
            }
        }
    }

    #[test]
    fn one_command_is_parsed_as_by_the_whole_command_line() {
        let lines = [
            "guard check -- git push origin main",
            "guard check --policy strict --json -v 'git status'",
            "guard run -- cargo test",
            "guard run -vv --log-file log --color never --policy strict --timeout 5m -- gemini -p 'do it'",
            "guard run --in-place --read ../x --allow-host a.test:443 -q -- sh -c true",
            "guard exec --agent codex 'what is this'",
            "guard exec",
            "guard log",
            "guard task list",
            "guard policy show strict -v",
            "guard help --color never run",
        ];
        let words = |line: &str| -> Vec<OsString> {
            shell_words::split(line).unwrap_or_default().into_iter().map(Into::into).collect()
        };
        for line in lines {
            let words = words(line);
            let one = parse_one_command(&words);
            let whole = Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(format!("{one:?}"), format!("{:?}", Some(whole)), "{line}");
        }
        for line in [
            "guard",
            "guard --version",
            "guard run --help",
            "guard run --wrong",
            "guard run --version",
            "guard -v run -- true",
            "guard policy wrong",
            "guard runs --all prune",
            "guard policy",
            "guard rum",
        ] {
            assert!(parse_one_command(&words(line)).is_none(), "{line}");
        }
    }
}
