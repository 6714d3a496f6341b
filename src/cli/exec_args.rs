//! What can be typed after `guard exec`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(crate) const EXEC_EXAMPLES: &str = "\
Examples:
  guard exec 'add a dark mode toggle' --cd ~/app          # for people; works on a branch of its own
  guard exec 'which tests are missing?' --sandbox read-only | jq -r .result
  echo '{\"prompt\": \"add a dark mode toggle\", \"cd\": \"/work/app\"}' | guard exec
  guard exec --request request.json --stream-json         # events as they come, the result last
  guard exec --cd /work/app -- make test                  # any command
  guard exec --template > prompt.md                       # the parts of a good prompt; fill it in: guard exec \"$(cat prompt.md)\"

A request in JSON has `prompt` (or `command`) and `cd`, and may have `agent`, `sandbox` (read-only, workspace-write), `model`,
`SESSION_ID`, `timeout`, `max_duration`, `max_retries`, `max_tokens` and more: schemas/exec-request.schema.json. Options make the
same request. The result is the agent's: `success`, `SESSION_ID`, `result`, or `error`, `error_kind`, `error_detail`.

Engineering context (a contract, principles) is the caller's to put into the prompt: nothing is looked up. Nobody can be asked while the
agent works: it takes the smallest, safest option, and marks each Assumption.

Exit codes: 0 it succeeded, 1 it failed, 2 the request cannot be run, 124 a time limit or a budget, 125 guard itself failed,
127 the agent is not installed, 141 nobody reads the result.";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The file with the request in JSON [default: standard input, where no PROMPT is given]
    #[arg(long, value_name = "FILE")]
    pub(crate) request: Option<PathBuf>,
    /// Print every event as a JSON line, and the result as the last one
    #[arg(long)]
    pub(crate) stream_json: bool,
    /// Print the result as one JSON object (the default)
    #[arg(long, conflicts_with = "stream_json")]
    pub(crate) json: bool,
    /// Print a template for a good prompt, and ask nothing: en or zh
    #[arg(long, value_name = "LANGUAGE", value_enum, num_args = 0..=1, default_missing_value = "en",
        conflicts_with_all = ["request", "asked", "stream_json"])]
    pub(crate) template: Option<TemplateLanguage>,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// The language of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TemplateLanguage {
    En,
    Zh,
}

impl From<TemplateLanguage> for crate::agent::Language {
    fn from(language: TemplateLanguage) -> Self {
        match language {
            TemplateLanguage::En => Self::English,
            TemplateLanguage::Zh => Self::Chinese,
        }
    }
}

/// A request by options. What is not given is as in a request in JSON.
#[derive(Debug, Args)]
#[group(id = "asked", multiple = true, conflicts_with = "request")]
pub(crate) struct Asked {
    /// What the agent is asked
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,
    /// The directory to work in [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) cd: Option<PathBuf>,
    /// gemini, claude, codex, agy, or generic for a command that is just run [default: gemini]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// How much it may change [default: workspace-write]
    #[arg(long, value_enum)]
    pub(crate) sandbox: Option<SandboxChoice>,
    /// A policy instead of the one that --sandbox means
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// The model [default: the agent's]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Go on with this conversation: the SESSION_ID of a result
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// End it after so many seconds without output, a new program or work [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// End it after so many seconds in all [default: 1800]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_duration: Option<u64>,
    /// How often a failure that may pass is tried again [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) max_retries: Option<u32>,
    /// End it when a model was asked for so many tokens, questions and answers together
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,
    /// End it when a model was asked so often
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<u64>,
    /// In a repository: work in the directory itself instead of a worktree; nothing can be committed then
    #[arg(long, conflicts_with = "here")]
    pub(crate) in_place: bool,
    /// In a repository: work in the linked worktree the directory lies in, on its branch
    #[arg(long)]
    pub(crate) here: bool,
    /// The agent may ask, as far as it can without anybody there; otherwise it asks nobody. The sandbox holds either way
    #[arg(long)]
    pub(crate) no_yolo: bool,
    /// All that the agent said and did, in the result
    #[arg(long)]
    pub(crate) all_messages: bool,
    /// What it used, in the result
    #[arg(long)]
    pub(crate) metrics: bool,
    /// A command instead of a PROMPT; with --agent the agent's program, where it is not on the path
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<String>,
}

/// How much an agent may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxChoice {
    ReadOnly,
    WorkspaceWrite,
}

impl From<SandboxChoice> for crate::agent_exec::Sandbox {
    fn from(choice: SandboxChoice) -> Self {
        match choice {
            SandboxChoice::ReadOnly => Self::ReadOnly,
            SandboxChoice::WorkspaceWrite => Self::WorkspaceWrite,
        }
    }
}

impl Asked {
    /// Whether anything is asked for; otherwise the request is read.
    pub(crate) fn is_given(&self) -> bool {
        self.prompt.is_some() || !self.command.is_empty()
    }

    /// An option that means nothing without that.
    pub(crate) fn stray_option(&self) -> Option<&'static str> {
        let options = [
            ("--cd", self.cd.is_some()),
            ("--agent", self.agent.is_some()),
            ("--sandbox", self.sandbox.is_some()),
            ("--policy", self.policy.is_some()),
            ("--model", self.model.is_some()),
            ("--session", self.session.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--max-duration", self.max_duration.is_some()),
            ("--max-retries", self.max_retries.is_some()),
            ("--max-tokens", self.max_tokens.is_some()),
            ("--max-requests", self.max_requests.is_some()),
            ("--in-place", self.in_place),
            ("--here", self.here),
            ("--no-yolo", self.no_yolo),
            ("--all-messages", self.all_messages),
            ("--metrics", self.metrics),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}
