//! The arguments of `guard run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::args::durations::parse_seconds;
use crate::git::KeepPolicy;
use crate::judge::policy::Budget;
use crate::run::settings::{HomeSettings, RunSettings, WorktreeSettings, receive};
use crate::session::Failure;

pub(in crate::cli) const RUN_EXAMPLES: &str = "\
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

/// `guard run` takes the settings of the run from its options, or from another guard process.
#[derive(Debug, Clone, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    options: RunOptions,
    #[command(flatten)]
    output: RunOutput,
    /// Take the settings of the run from this inherited descriptor of a sealed memory file, and print every event
    #[arg(long, value_name = "N", hide = true, exclusive = true)]
    request_fd: Option<i32>,
}

/// How `guard run` reports.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct RunOutput {
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
}

/// What the run does.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    /// The policy: a name (see `guard policy list`) or a path [default: the project's, yours, or strict]
    #[arg(long, short)]
    policy: Option<String>,
    /// The directory the command works in and may write to [default: the current directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// In a repository: the name for the run's branch and worktree [default: the run's id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Which agent COMMAND is, or `none` [default: detected from the program's name]. guard puts the agent's settings and its
    /// conversations about this repository into the private home, opens the gateway to its API, and reports the agent's
    /// answer as the result
    #[arg(long, value_name = "NAME|none")]
    agent: Option<String>,
    /// Allow the command to read this file or directory too; repeatable
    #[arg(long, help_heading = "Access", value_name = "PATH")]
    read: Vec<PathBuf>,
    /// Allow the command to write this file or directory too; repeatable
    #[arg(long, help_heading = "Access", value_name = "PATH")]
    write: Vec<PathBuf>,
    /// A command that this run may use although the policy denies it: `'git rebase'`. guard lifts only the rules that
    /// deny exactly this command, and only for it
    #[arg(long, help_heading = "Access", value_name = "COMMAND")]
    allow: Vec<String>,
    /// Allow connections to this host too: `example.org`, `*.example.org:443`, `GET example.org/path`; repeatable
    #[arg(long, help_heading = "Access", value_name = "HOST")]
    allow_host: Vec<String>,
    /// Allow the command to listen on this port, on loopback only; repeatable. Every program on this machine can connect to
    /// it
    #[arg(long, help_heading = "Access", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    listen: Vec<u16>,
    /// Allow the hosts and gateways of a network preset (see `guard policy presets`): rust, node, python, debian, …
    #[arg(long, help_heading = "Access", value_name = "NAME", value_delimiter = ',')]
    preset: Vec<String>,
    /// Set an environment variable for the command; NAME alone passes the current value; repeatable
    #[arg(long, help_heading = "Access", value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// With --name: if the branch of that name exists, continue on it, in the linked worktree that has it checked out
    #[arg(long = "continue", help_heading = "Git", requires = "name", conflicts_with_all = ["base", "branch", "with_changes"])]
    continues: bool,
    /// In a repository: the commit to start the branch at [default: HEAD]
    #[arg(long, help_heading = "Git", value_name = "REV")]
    base: Option<String>,
    /// In a repository: work in the linked worktree that contains the directory, on the branch checked out there
    #[arg(long, help_heading = "Git", conflicts_with_all = ["name", "base"])]
    here: bool,
    /// In a repository: continue on this existing branch, in the linked worktree that has it checked out (see --worktree).
    /// With --name, guard creates a new branch and worktree if this branch does not exist
    #[arg(long, help_heading = "Git", value_name = "BRANCH", requires = "worktree", conflicts_with_all = ["base", "here"])]
    branch: Option<String>,
    /// With --branch: the path of the worktree that has the branch checked out
    #[arg(long, help_heading = "Git", value_name = "DIR", requires = "branch")]
    worktree: Option<PathBuf>,
    /// In a repository: work in the directory itself, with its repository read-only; no worktree, no branch, no commits
    #[arg(long, help_heading = "Git", conflicts_with_all = ["name", "base", "here", "branch", "auto", "keep", "discard"])]
    in_place: bool,
    /// In a repository: trust its git configuration. Without this option, guard refuses a configuration that names programs
    /// (filters), other repositories or files outside, because an earlier agent may have written it
    #[arg(long, help_heading = "Git")]
    trust_repository: bool,
    /// Run even if guard cannot protect the git repositories in directories that the command may write to (no namespaces, or
    /// too many files to search). guard then only reports changes to them at the end
    #[arg(long, help_heading = "Git")]
    allow_unprotected_repositories: bool,
    /// In a repository: do not bring the dependencies of your checkout (node_modules, virtual environments, vendor, target)
    /// into the worktree
    #[arg(long, help_heading = "Git")]
    no_deps: bool,
    /// In a repository: start the worktree with your uncommitted changes and untracked files
    #[arg(long, help_heading = "Git", conflicts_with_all = ["base", "here", "branch", "in_place"])]
    with_changes: bool,
    /// In a repository: link this untracked path of your checkout into the worktree, read-only; repeatable
    #[arg(long, help_heading = "Git", value_name = "PATH")]
    link: Vec<String>,
    /// In a repository: copy this untracked path of your checkout into the worktree; repeatable
    #[arg(long, help_heading = "Git", value_name = "PATH")]
    copy: Vec<String>,
    /// Remove the worktree and branch if the run left nothing new in them, and keep them otherwise (the default)
    #[arg(long, help_heading = "Git", conflicts_with_all = ["keep", "discard"])]
    auto: bool,
    /// Keep the worktree and branch even if the run left nothing new in them
    #[arg(long, help_heading = "Git", conflicts_with = "discard")]
    keep: bool,
    /// Remove the worktree and branch at the end; guard saves commits and uncommitted work under refs/guard/
    #[arg(long, help_heading = "Git")]
    discard: bool,
    /// Stop the run after this time without output, without a new program and with less than 2 % CPU use: seconds, or
    /// 90s, 5m, 2h, 1d; 0 means never [default: the project's, your or the policy's value; never if standard input is a
    /// terminal]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    timeout: Option<u64>,
    /// Stop the run after this time in total: seconds, or 90s, 5m, 2h, 1d; 0 means never [default: the project's, your
    /// or the policy's value; never if standard input is a terminal]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    max_duration: Option<u64>,
    /// Stop the run after the models have used N tokens, input and output together
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tokens: Option<u64>,
    /// Stop the run after N requests to models
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_requests: Option<u64>,
    /// Stop the run when the models have cost this much, at the [prices] in your config.toml
    #[arg(long, help_heading = "Limits", value_name = "AMOUNT")]
    max_cost: Option<f64>,
    /// Refuse to start if an API key that a preset needs is missing; guard always does this for known agents
    #[arg(long, help_heading = "Agents and the private home")]
    require_keys: bool,
    /// Copy the content of this directory into the private home before the run; repeatable, later directories replace files
    /// of earlier ones
    #[arg(long, help_heading = "Agents and the private home", value_name = "DIR")]
    home_from: Vec<PathBuf>,
    /// Copy the paths of --home-keep from the private home to this directory after the run
    #[arg(long, help_heading = "Agents and the private home", value_name = "DIR", requires = "home_keep")]
    home_to: Option<PathBuf>,
    /// A file or directory of the private home to copy to --home-to, without executable bits; `*` stands for any part of a
    /// name in a pattern for files; repeatable
    #[arg(long, help_heading = "Agents and the private home", value_name = "PATH", requires = "home_to")]
    home_keep: Vec<PathBuf>,
    /// Only programs that inherit the command's standard input and output can use them; for a command that speaks a
    /// protocol there, such as an MCP or ACP server. The command itself cannot open /dev/stdin and /dev/stdout then. guard
    /// always does this for known agents
    #[arg(long, help_heading = "Sandbox")]
    seal_stdio: bool,
    /// Whether the run gets private namespaces [default: as the policy says]
    #[arg(long, help_heading = "Sandbox", value_enum)]
    namespaces: Option<NamespaceChoice>,
    /// Do not search the home directory for toolchains
    #[arg(long, help_heading = "Sandbox")]
    no_toolchains: bool,
    /// Do not put shims for git and the shells on PATH
    #[arg(long, help_heading = "Sandbox")]
    no_shims: bool,
    /// Do not check programs a second time after they have started. A thread that changes its arguments during the first
    /// check can then evade the policy
    #[arg(long, help_heading = "Sandbox")]
    no_verify: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

impl Run {
    /// Returns how to report. Another guard process reads every event.
    pub(in crate::cli) fn output(&self) -> RunOutput {
        RunOutput { stream_json: self.output.stream_json || self.request_fd.is_some(), ..self.output }
    }

    /// Returns the settings of the run, without the defaults of the user and the project.
    pub(in crate::cli) fn settings(self) -> Result<RunSettings, Failure> {
        match self.request_fd {
            None => self.options.try_into(),
            Some(descriptor) => receive(descriptor).map_err(|error| {
                let hint = "--request-fd is for guard itself; give the options and the command instead";
                Failure::usage(error.to_string(), hint)
            }),
        }
    }
}

impl TryFrom<RunOptions> for RunSettings {
    type Error = Failure;

    fn try_from(options: RunOptions) -> Result<Self, Failure> {
        let disposal = [
            (options.auto, KeepPolicy::Auto),
            (options.keep, KeepPolicy::Keep),
            (options.discard, KeepPolicy::Discard),
        ];
        Ok(Self {
            command: options.command,
            dir: options.dir,
            policy: options.policy,
            agent: options.agent,
            allow: options.allow,
            read: options.read,
            write: options.write,
            hosts: options.allow_host,
            listen: options.listen,
            presets: options.preset,
            environment: options.env.into_iter().map(variable).collect(),
            worktree: WorktreeSettings {
                in_place: options.in_place,
                here: options.here,
                name: options.name,
                continues: options.continues,
                branch: options.branch,
                path: options.worktree,
                base: options.base,
                trust_repository: options.trust_repository,
                no_deps: options.no_deps,
                with_changes: options.with_changes,
                link: options.link,
                copy: options.copy,
                disposal: disposal.into_iter().find(|(is_given, _)| *is_given).map(|(_, policy)| policy),
            },
            idle_seconds: options.timeout,
            total_seconds: options.max_duration,
            budget: Budget {
                max_tokens: options.max_tokens,
                max_requests: options.max_requests,
                max_cost_micros: options.max_cost.map(micros).transpose()?,
            },
            home: HomeSettings {
                from: options.home_from,
                to: options.home_to,
                keep: options.home_keep,
                ..HomeSettings::default()
            },
            require_keys: options.require_keys,
            seal_stdio: options.seal_stdio,
            namespaces: options.namespaces.map(Into::into),
            no_toolchains: options.no_toolchains,
            no_shims: options.no_shims,
            no_verify: options.no_verify,
            allow_unprotected_repositories: options.allow_unprotected_repositories,
        })
    }
}

/// Splits the value of `--env`, which is `NAME=VALUE` or `NAME`.
fn variable(pair: OsString) -> (OsString, Option<OsString>) {
    let bytes = pair.as_bytes();
    let Some(at) = bytes.iter().position(|&byte| byte == b'=').filter(|&at| at > 0) else {
        return (pair, None);
    };
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_os_string();
    (text(&bytes[..at]), Some(text(&bytes[at + 1..])))
}

/// Converts the amount of money of `--max-cost` to millionths. Fails unless the amount is above 0 and at most
/// 1,000,000.
fn micros(amount: f64) -> Result<u64, Failure> {
    if amount > 0.0 && amount <= 1e6 {
        return Ok(((amount * 1e6).round() as u64).max(1));
    }
    Err(Failure::usage(
        format!("--max-cost {amount}: the amount must be above 0 and at most 1000000"),
        "give an amount such as --max-cost 2.50",
    ))
}

/// Whether a run gets private namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NamespaceChoice {
    Auto,
    Require,
    Off,
}

impl From<NamespaceChoice> for crate::judge::policy::Namespaces {
    fn from(choice: NamespaceChoice) -> Self {
        match choice {
            NamespaceChoice::Auto => Self::Auto,
            NamespaceChoice::Require => Self::Require,
            NamespaceChoice::Off => Self::Off,
        }
    }
}
