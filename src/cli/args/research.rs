//! The arguments of `guard research`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::args::durations::parse_seconds;
use crate::work::research::{LlmConfig, RequestLimits, ResearchConfig, default_model};

pub(crate) const RESEARCH_EXAMPLES: &str = "\
Examples:
  guard research 'What are the pros and cons of Rust?'
  guard research 'Compare async runtimes' --max-queries 7 --timeout 45
  guard research 'Your query' --verbose
  guard research 'How does tokio schedule tasks?' --allow-host docs.rs --allow-host tokio.rs -o report.md
  guard research --list                                   # the stored research runs and their ids
  guard research --resume 01a1b2c3d4e5                    # continues after a crash, Ctrl-C or a used-up budget

guard asks the model for sub-queries, and runs one agent for each, in parallel and in separate read-only sandboxes. The agents reach the
model's API, and the hosts of --allow-host. The answer uses the sub-queries that succeeded; the research fails only if all of them fail.
guard removes citations of sources that no sub-query retrieved, and reports them.

Exit codes: 0 answer, 1 no answer, 2 bad usage, 124 a time limit or budget was reached, 125 guard itself failed, 127 the agent is not
installed, 130 interrupted.";

#[derive(Debug, Args)]
pub(crate) struct Research {
    /// The question
    #[arg(value_name = "QUERY", required_unless_present_any = ["resume", "list"])]
    pub(crate) query: Option<String>,
    /// The largest number of sub-queries of one round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "resume")]
    pub(crate) max_queries: u8,
    /// The largest number of rounds; every round after the first asks what is still missing
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5), conflicts_with = "resume")]
    pub(crate) depth: u8,
    /// The model [default: gemini-3-flash-preview for gemini, else the default of the agent]
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    pub(crate) model: Option<String>,
    /// The agent: gemini, claude, codex or agy [default: gemini]
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    pub(crate) agent: Option<String>,
    /// A directory that the agents can read [default: an empty one]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(crate) cd: Option<PathBuf>,
    /// A host that the agents may connect to, HOST or HOST:PORT; repeatable
    #[arg(long, value_name = "HOST", help_heading = "Network", conflicts_with_all = ["policy", "resume"])]
    pub(crate) allow_host: Vec<String>,
    /// The policy of the agents' runs [default: readonly]
    #[arg(long, value_name = "NAME", help_heading = "Network", conflicts_with = "resume")]
    pub(crate) policy: Option<String>,
    /// Stop a request to an agent after this time: seconds, or 90s, 5m [default: 5m]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_timeout)]
    pub(crate) timeout: Option<u64>,
    /// How many times guard retries a request after a temporary failure [default: 1]
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub(crate) max_retries: Option<u32>,
    /// Stop after all requests together have used N tokens, input and output
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Start no further request after all requests together have cost X, by the prices in config.toml
    #[arg(long, help_heading = "Limits", value_name = "X", value_parser = parse_cost)]
    pub(crate) max_cost: Option<f64>,
    /// Print every event as a line of JSON; the last one has the answer
    #[arg(long, help_heading = "Result")]
    pub(crate) stream_json: bool,
    /// Print the result as one JSON object
    #[arg(long, help_heading = "Result", conflicts_with = "stream_json")]
    pub(crate) json: bool,
    /// Also write the answer with sources and sub-queries to this Markdown file
    #[arg(long, short, help_heading = "Result", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Continue an interrupted research run, without repeating the sub-queries that have an answer
    #[arg(long, value_name = "ID", conflicts_with = "query")]
    pub(crate) resume: Option<String>,
    /// List the research runs that guard has stored, the newest first
    #[arg(long, conflicts_with_all = ["query", "resume", "stream_json", "output"])]
    pub(crate) list: bool,
}

/// The longest time that a request may take, in seconds: a week.
const LONGEST_TIMEOUT: u64 = 604_800;

fn parse_timeout(text: &str) -> Result<u64, String> {
    let is_possible = |seconds: &u64| (1..=LONGEST_TIMEOUT).contains(seconds);
    let seconds = Some(parse_seconds(text)?).filter(is_possible);
    seconds.ok_or_else(|| "expected a time from 1s to 7d".to_string())
}

fn parse_cost(text: &str) -> Result<f64, String> {
    let cost = text.parse::<f64>().ok().filter(|cost| cost.is_finite() && *cost > 0.0);
    cost.ok_or_else(|| "expected an amount such as 0.50".to_string())
}

impl Research {
    /// Returns the settings of the research: those that options set, and defaults for the others.
    pub(crate) fn research_config(&self) -> ResearchConfig {
        ResearchConfig {
            max_queries: usize::from(self.max_queries),
            depth: usize::from(self.depth),
            ..ResearchConfig::default()
        }
    }

    /// Returns the limits for requests to the model that the options set.
    pub(crate) fn limits(&self) -> RequestLimits {
        RequestLimits {
            timeout_s: self.timeout,
            max_retries: self.max_retries,
            max_tokens: self.max_tokens,
            max_cost: self.max_cost,
        }
    }

    /// Returns the model that a new research run uses: the model that `--model` names. Without that option, returns
    /// `configured`, the model in the user's configuration, unless `--agent` is given; otherwise the default for the
    /// agent. The name is empty if the agent chooses its own default.
    pub(crate) fn model(&self, configured: Option<&str>) -> String {
        let configured = configured.filter(|_| self.agent.is_none());
        let default = configured.unwrap_or_else(|| default_model(self.agent.as_deref()));
        self.model.clone().unwrap_or_else(|| default.to_string())
    }
}

/// Returns the settings of the requests to a model, with defaults for the timeout and the retries that `limits` leaves
/// out.
pub(crate) fn llm_config(model: &str, limits: RequestLimits) -> LlmConfig {
    let defaults = LlmConfig::default();
    LlmConfig {
        model: model.to_string(),
        timeout: limits.timeout_s.map_or(defaults.timeout, Duration::from_secs),
        max_retries: limits.max_retries.unwrap_or(defaults.max_retries),
        max_tokens: limits.max_tokens,
        max_cost: limits.max_cost,
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        research: Research,
    }

    fn parse(line: &str) -> Result<Research, String> {
        let words = shell_words::split(line).unwrap_or_default();
        Line::try_parse_from(words).map(|line| line.research).map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_settings() {
        let research = parse("x 'Compare async runtimes' --max-queries 7 --timeout 45 --max-tokens 9000");
        let research = research.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(research.research_config().max_queries, 7);
        let llm = llm_config(&research.model(None), research.limits());
        assert_eq!((llm.timeout.as_secs(), llm.max_tokens), (45, Some(9000)));
        assert_eq!(llm.model, "gemini-3-flash-preview");
        let model = |line: &str, configured| parse(line).map(|research| research.model(configured));
        assert_eq!(model("x q --agent gemini", None), Ok(llm.model.clone()));
        assert_eq!(model("x q --agent claude", None), Ok(String::new()));
        assert_eq!(model("x q", Some("configured")), Ok("configured".to_string()));
        assert_eq!(model("x q --model given", Some("configured")), Ok("given".to_string()));
        assert_eq!(model("x q --agent gemini", Some("configured")), Ok(llm.model));
        for wrong in [
            "x",
            "x q --max-queries 0",
            "x q --max-queries 65",
            "x q --depth 6",
            "x q --json --stream-json",
            "x q --resume 0123456",
            "x --resume 0123456 --model m",
            "x q --max-cost -1",
            "x q --timeout 0",
            "x q --timeout 8d",
            "x q --policy p --allow-host a.org",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let resumed = parse("x --resume 0123456 --max-tokens 5").unwrap_or_else(|error| panic!("{error}"));
        let before = RequestLimits { max_tokens: Some(9), max_cost: Some(0.5), ..RequestLimits::default() };
        let limits = resumed.limits().or(before);
        assert_eq!((limits.max_tokens, limits.max_cost), (Some(5), Some(0.5)));
    }
}
