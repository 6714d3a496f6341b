//! The arguments of `guard exec`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::args::durations::parse_seconds;

pub(crate) const EXEC_EXAMPLES: &str = "\
Examples:
  guard exec 'add a dark mode toggle' --cd ~/app          # works on a new branch, in a separate worktree
  guard exec 'which tests are missing?' --sandbox read-only | jq -r .result
  echo '{\"prompt\": \"add a dark mode toggle\", \"cd\": \"/work/app\"}' | guard exec
  guard exec --request request.json --stream-json         # prints events as they happen, and the result last
  guard exec --cd /work/app -- make test                  # runs any command
  guard exec --template > prompt.md                       # a prompt template to fill in: guard exec \"$(cat prompt.md)\"

A JSON request has `prompt` (or `command`) and `cd`, and may have `agent`, `sandbox` (read-only, workspace-write), `model`,
`SESSION_ID`, `timeout`, `max_duration`, `max_retries`, `max_tokens` and more: schemas/exec-request.schema.json. The options build the
same request. The result has `success`, `SESSION_ID` and `result`, or `error`, `error_kind` and `error_detail`.

Put all engineering context (contracts, principles) into the prompt: guard adds none. The agent cannot ask questions while it works: it
takes the smallest, safest option, and marks its assumptions.

Exit codes: 0 success, 1 the agent failed, 2 invalid request, 124 a time limit or budget was reached, 125 guard itself failed,
127 the agent is not installed, 141 the reader of standard output went away.";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) options: RequestOptions,
    /// Read a JSON request from this file [default: standard input, if no PROMPT is given]
    #[arg(long, help_heading = "Other requests", value_name = "FILE")]
    pub(crate) request: Option<PathBuf>,
    /// Print every event as a line of JSON, with the result as the last line
    #[arg(long, help_heading = "Result")]
    pub(crate) stream_json: bool,
    /// Print the result as one JSON object; the default unless standard output is a terminal, which gets the answer's text
    #[arg(long, help_heading = "Result", conflicts_with = "stream_json")]
    pub(crate) json: bool,
    /// Print a template for a good prompt, in English (en) or Chinese (zh), and run nothing
    #[arg(long, help_heading = "Other requests", value_name = "LANGUAGE", value_enum, num_args = 0..=1, default_missing_value = "en",
        conflicts_with_all = ["request", "request_options", "stream_json"])]
    pub(crate) template: Option<TemplateLanguage>,
}

/// The natural language of the prompt template: English or Chinese.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TemplateLanguage {
    En,
    Zh,
}

impl From<TemplateLanguage> for crate::agents::adapter::Language {
    fn from(language: TemplateLanguage) -> Self {
        match language {
            TemplateLanguage::En => Self::English,
            TemplateLanguage::Zh => Self::Chinese,
        }
    }
}

/// A request given by options. An option that is missing has the same default as in a JSON request.
#[derive(Debug, Args)]
#[group(id = "request_options", multiple = true, conflicts_with = "request")]
pub(crate) struct RequestOptions {
    /// The prompt for the agent
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,
    /// The directory to work in [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cd: Option<PathBuf>,
    /// The agent: gemini, claude, codex, agy, or generic to run a plain command [default: gemini]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// What the agent may change [default: workspace-write]
    #[arg(long, value_enum)]
    pub(crate) sandbox: Option<SandboxChoice>,
    /// The policy, instead of the one that --sandbox selects
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// The model [default: the agent's default model]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Continue this conversation: the SESSION_ID of an earlier result
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Stop the agent after this time without output, without a new program and without CPU use: seconds, or 90s, 5m, 2h
    /// [default: 5m]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// Stop the agent after this time in total: seconds, or 90s, 5m, 2h [default: 30m]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) max_duration: Option<u64>,
    /// How many times guard retries after a temporary failure [default: 1]
    #[arg(long, help_heading = "Limits", value_name = "N")]
    pub(crate) max_retries: Option<u32>,
    /// Stop the agent after the models have used N tokens, input and output together
    #[arg(long, help_heading = "Limits", value_name = "N")]
    pub(crate) max_tokens: Option<u64>,
    /// Stop the agent after N requests to models
    #[arg(long, help_heading = "Limits", value_name = "N")]
    pub(crate) max_requests: Option<u64>,
    /// In a repository: work in the directory itself instead of a worktree; the agent cannot commit then
    #[arg(long, help_heading = "Git", conflicts_with = "here")]
    pub(crate) in_place: bool,
    /// In a repository: work in the linked worktree that contains the directory, on the branch checked out there
    #[arg(long, help_heading = "Git")]
    pub(crate) here: bool,
    /// Keep the agent's own permission prompts, as far as it supports them without a terminal. By default guard turns them
    /// off. The sandbox is the same either way
    #[arg(long)]
    pub(crate) no_yolo: bool,
    /// Include everything the agent said and did in the result
    #[arg(long, help_heading = "Result")]
    pub(crate) all_messages: bool,
    /// Include the agent's resource use in the result
    #[arg(long, help_heading = "Result")]
    pub(crate) metrics: bool,
    /// A command instead of a PROMPT; with --agent, the path of the agent's program if it is not on PATH
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<String>,
}

/// How much an agent may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxChoice {
    ReadOnly,
    WorkspaceWrite,
}

impl From<SandboxChoice> for crate::agents::exec::Sandbox {
    fn from(choice: SandboxChoice) -> Self {
        match choice {
            SandboxChoice::ReadOnly => Self::ReadOnly,
            SandboxChoice::WorkspaceWrite => Self::WorkspaceWrite,
        }
    }
}

impl RequestOptions {
    /// Returns true if the options contain a request. Otherwise guard reads one from a file or standard input.
    pub(crate) fn has_request(&self) -> bool {
        self.prompt.is_some() || !self.command.is_empty()
    }

    /// Returns the name of the first given option that has no effect without a prompt or command; `None` if no such
    /// option is given.
    pub(crate) fn first_unused(&self) -> Option<&'static str> {
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
