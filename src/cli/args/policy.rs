//! The arguments of the commands about policies and defaults: `why`, `allow`, `learn`, `check`, `policy`, `init`, `config`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(in crate::cli) const WHY_EXAMPLES: &str = "\
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
    /// Explain only the event with this number [default: explain every refusal]
    #[arg(value_name = "EVENT", requires = "run")]
    pub(crate) event: Option<u64>,
    /// A file or directory: may a run here read it?
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "command"])]
    pub(crate) path: Option<PathBuf>,
    /// With --path: may a run here write it?
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

pub(in crate::cli) const LEARN_EXAMPLES: &str = "\
Examples:
  guard learn -- cargo build                        # writes learned.toml
  guard learn --network allow --out ci.toml -- npm test
  guard learn --from @ --from 0197f0a0              # from runs that you have made already
  guard run --policy ./learned.toml -- cargo build

The command runs in the sandbox, as in any run: in its own worktree, with its own git repository, and unable to change your other files.
Only the policy's rules about commands do not apply. By default guard refuses and records every host; with --network allow the command
can reach all of them.
Exit codes: those of the command.";

#[derive(Debug, Args)]
pub(crate) struct Learn {
    /// Also learn from this run, or only from it when no command is given; repeatable
    #[arg(long, value_name = "RUN", required_unless_present = "command")]
    pub(crate) from: Vec<String>,
    /// The policy that the new policy extends [default: the project's, yours, or strict]
    #[arg(long, short)]
    pub(crate) policy: Option<String>,
    /// Whether the command may connect to hosts while guard learns
    #[arg(long, value_enum, default_value_t = LearnNetwork::Refuse)]
    pub(crate) network: LearnNetwork,
    /// A network preset for the run from which guard learns; repeatable
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) preset: Vec<String>,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "learned.toml")]
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
    /// guard refuses and records every host.
    Refuse,
    /// guard allows and records every host.
    Allow,
}

pub(in crate::cli) const INIT_EXAMPLES: &str = "\
Examples:
  guard init                # writes .guard/config.toml; never overwrites one
  guard init --dry-run      # prints it only";

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Print the configuration, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

pub(in crate::cli) const CONFIG_EXAMPLES: &str = "\
Examples:
  guard config show --origin
  guard config trust        # confirm what this project's files in .guard ask for; again only after they change";

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
    /// Confirm what the project's configuration asks for beyond what you allow, or a changed policy file
    #[command(after_help = "Examples:\n  guard config trust\n  guard config trust --policy ./policy.toml")]
    Trust {
        /// Confirm this policy file, which has changed since a run could write it
        #[arg(long, value_name = "FILE")]
        policy: Option<String>,
    },
}

pub(in crate::cli) const ALLOW_EXAMPLES: &str = "\
Examples:
  guard allow @                     # the only action that guard refused in the newest run
  guard allow @ 17 --project        # for everybody who works on this repository
  guard allow 0197f0a0 17 --user    # for all your runs with the same policy
  guard allow @ 17 --dry-run        # show the change only

guard shows the change before it writes it, and asks on a terminal. --project writes .guard/policy.toml in this repository; it
takes effect when it is committed. --user writes a policy of the same name below ~/.config/guard/policies, which extends the
one that the run used. If the run used a file elsewhere, such as the project's policy, --user uses the policy that this file extends.
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

pub(in crate::cli) const CHECK_EXAMPLES: &str = "\
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
    /// The working tree of the run [default: the repository that contains the directory, or the directory itself]
    #[arg(long, value_name = "DIR")]
    pub(crate) worktree: Option<PathBuf>,
    /// A repository that the run itself created, such as a clone. The rules that protect the run's own repository do not
    /// apply there; repeatable
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
        /// The policy to compare with: its name or path
        a: String,
        /// The policy whose differences are shown: its name or path
        b: String,
    },
    /// Print the JSON Schema of policy files, for editors and CI
    Schema,
    /// Judge lists of commands by policies, and compare the decisions with a committed snapshot
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(Audit),
}

pub(in crate::cli) const AUDIT_EXAMPLES: &str = "\
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
