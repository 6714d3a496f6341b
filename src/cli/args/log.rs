//! The arguments of `guard log`, `replay` and `verify`.

use std::time::Duration;

use clap::Args;

use crate::cli::args::durations::parse_pause;

pub(in crate::cli) const LOG_EXAMPLES: &str = "\
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
    /// Print the recorded JSON lines: unchanged for programs; on a terminal with escapes in place of characters that could
    /// control it
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not escape control characters. This shows colours, but also lets the agent's other escape sequences reach the
    /// terminal
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

pub(in crate::cli) const REPLAY_EXAMPLES: &str = "\
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

pub(in crate::cli) const VERIFY_EXAMPLES: &str = "\
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
