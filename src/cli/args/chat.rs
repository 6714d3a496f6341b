//! The arguments of `guard chat` and `guard history`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::args::durations::parse_seconds;
use crate::cli::args::exec::SandboxChoice;

pub(crate) const CHAT_EXAMPLES: &str = "\
Examples:
  guard chat                                                  # interactive; /help lists the slash commands
  guard chat --session @                                      # continues the conversation used last
  guard chat --once 'add a dark mode toggle'                  # starts a conversation, and prints its id on standard error
  guard chat --once 'now add a test for it' --session @       # continues the conversation used last, in the same worktree
  guard chat --once - --session 4f3a9c21 < message.md         # the end of an id is enough; `-` reads standard input
  guard chat --once 'review the parser' --agent claude --sandbox read-only
  guard chat --once 'hello' --json | jq -r .SESSION_ID
  guard chat --once 'hello' --agent generic -- ./my-agent     # any command that reads the prompt and prints the answer

One conversation has one worktree and one branch, which all turns share. Each turn is an ordinary run: `guard log`, `guard why` and
`guard diff` show it. `guard history` lists, shows, searches, exports, forks, clears and deletes conversations.

By default the agent's own session carries the conversation if its CLI has sessions; otherwise guard puts a compact history into
every prompt, of at most 16,000 estimated tokens, and summarises older messages in the background. guard keeps the history in both
cases, and begins a new session with it if the agent's own session is lost.

Exit codes: 0 the agent answered, 1 the agent failed, 2 bad usage or a conversation that does not exist or is in use, 124 a time
limit was reached, 125 guard itself failed, 127 the agent is not installed, 141 the reader of standard output went away.";

pub(crate) const HISTORY_EXAMPLES: &str = "\
Examples:
  guard history list                        # the conversations, the one used last first
  guard history show @                      # the turns of the one used last; the last 4 or more characters of an id are enough
  guard history search 'dark mode'
  guard history diff 4f3a9c21               # what the next prompt leaves out, and the summary that stands for it
  guard history export @ --format markdown > conversation.md
  guard history fork @ --at 3               # a new conversation with the first three turns
  guard history undo @                      # undoes the last turn and its changes to files
  guard history clear @                     # the agent forgets what was said; worktree and stored turns stay
  guard history delete 4f3a9c21             # deletes the stored turns; runs, worktree and branch stay";

/// Talk to an agent in turns.
#[derive(Debug, Args)]
pub(crate) struct Chat {
    /// Send this message, print the answer, and exit; `-` reads the message from standard input
    #[arg(long, value_name = "MESSAGE")]
    pub(crate) once: Option<String>,
    /// Continue this conversation: its id, the end of its id, or @ for the one used last [default: start a new one]
    #[arg(long, short, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// The model for this turn and all later ones [default: the conversation's model, or the agent's default model]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) new: NewConversationOptions,
    /// The policy [default: that of `guard run` in the directory; `readonly` with --sandbox read-only]
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Stop the agent after this time without output, without a new program and without CPU use: seconds, or 90s, 5m, 2h
    /// [default: 2m]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// Stop the agent after this time in total: seconds, or 90s, 5m, 2h [default: 30m]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) max_duration: Option<u64>,
    /// How many times guard retries after a temporary failure [default: 1]
    #[arg(long, help_heading = "Limits", value_name = "N")]
    pub(crate) max_retries: Option<u32>,
    /// Print the result as one JSON object
    #[arg(long, help_heading = "Result", requires = "once", conflicts_with = "stream_json")]
    pub(crate) json: bool,
    /// Print every event as a line of JSON, with the result as the last line
    #[arg(long, help_heading = "Result", requires = "once")]
    pub(crate) stream_json: bool,
}

/// The options that the user can set only for a new conversation. guard stores them with the conversation.
#[derive(Debug, Args)]
#[group(id = "new_conversation", multiple = true, conflicts_with = "session")]
pub(crate) struct NewConversationOptions {
    /// The agent: gemini, claude, codex, agy, or generic for any command that reads a prompt [default: gemini]
    #[arg(long, help_heading = "New conversation", value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// How the agent learns the earlier turns of the conversation
    #[arg(long, help_heading = "New conversation", value_enum, value_name = "MODE")]
    pub(crate) mode: Option<ModeChoice>,
    /// What the agent may change [default: workspace-write]
    #[arg(long, help_heading = "New conversation", value_enum)]
    pub(crate) sandbox: Option<SandboxChoice>,
    /// The title of the conversation [default: the beginning of the first message]
    #[arg(long, help_heading = "New conversation", value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// The directory to work in [default: the current directory]
    #[arg(long, help_heading = "New conversation", value_name = "DIR")]
    pub(crate) cd: Option<PathBuf>,
    /// The agent's program, if it is not on PATH; for generic, the command that reads each prompt from standard input
    #[arg(help_heading = "New conversation", value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<String>,
}

/// How the agent learns the earlier turns of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeChoice {
    /// From its own session if its CLI has sessions, otherwise from guard's history in the prompt [default]
    Auto,
    /// From its own session
    Native,
    /// From guard's history, which is part of every prompt
    OwnHistory,
}

impl From<ModeChoice> for crate::agents::conversation::Mode {
    fn from(mode: ModeChoice) -> Self {
        match mode {
            ModeChoice::Auto => Self::Auto,
            ModeChoice::Native => Self::Native,
            ModeChoice::OwnHistory => Self::OwnHistory,
        }
    }
}

/// Commands for stored conversations.
#[derive(Debug, Subcommand)]
pub(crate) enum History {
    /// List the conversations, the one used last first
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the turns of a conversation
    Show {
        #[command(flatten)]
        which: Which,
        /// Show turns that were cleared or undone as well
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Find a text in all messages and answers, ignoring upper and lower case
    Search {
        /// The text to find
        text: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which messages the next prompt leaves out, and the summary that replaces them
    Diff {
        #[command(flatten)]
        which: Which,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a conversation as a document
    Export {
        #[command(flatten)]
        which: Which,
        /// The format of the document
        #[arg(long, value_enum, default_value = "markdown")]
        format: ExportFormat,
    },
    /// Start a new conversation with the turns of another one
    Fork {
        #[command(flatten)]
        which: Which,
        /// The number of the last turn to copy [default: copy all turns]
        #[arg(long, value_name = "TURN")]
        at: Option<usize>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Summarise the older messages of a conversation now
    Compact {
        /// The conversation: its id, the end of its id, or @ for the one used last
        #[arg(value_name = "ID")]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Undo the last turn, and restore the files to their state before it
    Undo {
        /// The conversation: its id, the end of its id, or @ for the one used last
        #[arg(value_name = "ID")]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make the agent forget the earlier turns; the worktree and the stored turns stay
    Clear {
        /// The conversation: its id, the end of its id, or @ for the one used last
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Delete the stored turns of a conversation, and the agent's own sessions for it; its runs, worktree and branch
    /// stay
    Delete {
        /// The conversations: their ids, the ends of their ids, or @ for the one used last
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The conversation: its id, the end of its id, or @ for the one used last
    #[arg(value_name = "ID", default_value = "@")]
    pub(crate) id: String,
}

/// The format of an exported conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    Markdown,
    Json,
}

impl From<ExportFormat> for crate::agents::conversation::Format {
    fn from(format: ExportFormat) -> Self {
        match format {
            ExportFormat::Markdown => Self::Markdown,
            ExportFormat::Json => Self::Json,
        }
    }
}
