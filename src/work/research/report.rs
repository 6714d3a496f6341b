//! Collects the updates of a run into a report: a block of text at the end of the output, Markdown, or one JSON
//! object.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;

use super::sources::Source;
use super::update::{AgentUpdate, EVENT_RESEARCH_NOTE, FinalResult, ResearchNote, ResultMetadata};

/// The width of the horizontal lines around the answer, in characters.
const WIDTH: usize = 60;

/// The state of a sub-query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SubQueryState {
    /// The sub-query has not ended.
    Running,
    /// The sub-query has an answer.
    Completed {
        /// The answer to the sub-query.
        result: String,
        /// The number of tokens that the sub-query used; 0 if the API reported none.
        tokens_used: u32,
    },
    /// The sub-query failed.
    Failed {
        /// Why the sub-query failed.
        error: String,
    },
}

/// A sub-query and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SubQuery {
    /// The id of the sub-query, from 0.
    pub id: usize,
    /// The text of the sub-query.
    pub query: String,
    /// The state of the sub-query.
    #[serde(flatten)]
    pub state: SubQueryState,
}

/// The state of a research run, built from the updates received so far. An update that is applied twice counts once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Report {
    /// The id of the run, for `guard research --resume`.
    pub research_id: String,
    /// The user's query.
    pub query: String,
    /// The final answer; empty until the run has ended with an answer.
    pub answer: String,
    /// The number of tokens that the run used, its duration, and how many sub-queries succeeded.
    pub metadata: ResultMetadata,
    /// The sources that the answer cites, in the order of their numbers.
    pub sources: Vec<Source>,
    /// Warnings about the answer: citations that guard removed because no sub-query retrieved the page, sub-queries
    /// without an answer or a source, and answers that were cut or contain instructions to the model.
    pub unconfirmed: Vec<String>,
    /// The sub-queries, in the order of their ids.
    pub sub_queries: Vec<SubQuery>,
    /// Notes for the user about the course of the run.
    pub notes: Vec<String>,
    #[serde(skip)]
    is_complete: bool,
}

impl Report {
    /// Creates the report of a run that has just started.
    pub fn new(research_id: impl Into<String>, query: impl Into<String>) -> Self {
        Self { research_id: research_id.into(), query: query.into(), ..Self::default() }
    }

    /// Returns whether the report contains the final result.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Adds the content of an update to the report. Ignores updates of other event types, updates with malformed data,
    /// and results of sub-queries that have not started.
    pub fn observe(&mut self, update: &AgentUpdate) {
        if let Some(started) = update.as_sub_query_started() {
            if !self.sub_queries.iter().any(|known| known.id == started.id) {
                let state = SubQueryState::Running;
                self.sub_queries.push(SubQuery { id: started.id, query: started.query, state });
            }
        } else if let Some(done) = update.as_sub_query_completed() {
            let (result, tokens_used) = (done.result, done.tokens_used);
            self.set(done.id, SubQueryState::Completed { result, tokens_used });
        } else if let Some(failed) = update.as_sub_query_failed() {
            self.set(failed.id, SubQueryState::Failed { error: failed.error });
        } else if let Some(result) = update.as_final_result() {
            let FinalResult { answer, metadata, sources, unconfirmed } = result;
            (self.answer, self.metadata) = (answer, metadata);
            (self.sources, self.unconfirmed) = (sources, unconfirmed);
            self.is_complete = true;
        } else if let Ok(ResearchNote { note }) = update.typed(EVENT_RESEARCH_NOTE)
            && !self.notes.contains(&note)
        {
            self.notes.push(note);
        }
    }

    fn set(&mut self, id: usize, state: SubQueryState) {
        if let Some(known) = self.sub_queries.iter_mut().find(|known| known.id == id) {
            known.state = state;
        }
    }

    /// Returns the list of the sources and the list of the warnings, each below a title that `heading` formats. Leaves
    /// out an empty list.
    fn appendix(&self, heading: impl Fn(&str) -> String) -> String {
        let mut text = String::new();
        if !self.sources.is_empty() {
            let _ = write!(text, "\n{}\n", heading("Sources"));
            for source in &self.sources {
                let _ = writeln!(text, "[{}] {} ({})", source.number, source.url, source.evidence.explain());
            }
        }
        if !self.unconfirmed.is_empty() {
            let _ = write!(text, "\n{}\n", heading("Not confirmed"));
            for one in &self.unconfirmed {
                let _ = writeln!(text, "- {}", crate::text::terminal_text::one_line(one));
            }
        }
        text
    }

    /// Returns the text at the end of the output: the answer with its sources and warnings, and the statistics of the
    /// run. Escapes characters that could control the terminal.
    pub fn final_block(&self) -> String {
        let (double, single) = ("═".repeat(WIDTH), "─".repeat(WIDTH));
        let answer: String = self.answer.lines().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{}", crate::text::terminal_text::escape(line));
            text
        });
        let appendix = self.appendix(|title| format!("{title}:"));
        let appendix: String = appendix.lines().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{}", crate::text::terminal_text::escape(line));
            text
        });
        format!("{double}\nANSWER:\n{answer}{appendix}{single}\n{}\n{double}\n", self.stats())
    }

    /// Returns one line with the number of successful sub-queries, the tokens, and the duration.
    pub fn stats(&self) -> String {
        let ResultMetadata { total_tokens, duration_ms, sub_queries_succeeded, sub_queries_failed } =
            self.metadata;
        format!(
            "Stats: {sub_queries_succeeded}/{} sub-queries succeeded | {} total tokens | {}s",
            sub_queries_succeeded + sub_queries_failed,
            thousands(total_tokens),
            tenths(duration_ms),
        )
    }

    pub fn markdown(&self) -> String {
        let query = crate::text::terminal_text::one_line(&self.query);
        let mut text = format!("# {query}\n\n{}\n", self.answer.trim_end());
        text.push_str("\n## Sub-queries\n\n");
        for sub_query in &self.sub_queries {
            let outcome = match &sub_query.state {
                SubQueryState::Running => "no answer".to_string(),
                SubQueryState::Completed { tokens_used, .. } => format!("{} tokens", thousands(*tokens_used)),
                SubQueryState::Failed { error } => {
                    format!("failed: {}", crate::text::terminal_text::one_line(error))
                }
            };
            let _ = writeln!(text, "{}. {} ({outcome})", sub_query.id + 1, sub_query.query);
        }
        if !self.notes.is_empty() {
            text.push_str("\n## Notes\n\n");
            for note in &self.notes {
                let _ = writeln!(text, "- {}", crate::text::terminal_text::one_line(note));
            }
        }
        let _ = write!(text, "\n{}\n", self.stats());
        text.push_str(&self.appendix(|title| format!("## {title}\n")));
        text
    }
}

/// Formats a number with commas between groups of three digits.
fn thousands(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats milliseconds as seconds with one decimal, rounded.
fn tenths(milliseconds: u64) -> String {
    let tenths = milliseconds.saturating_add(50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        for (number, expected) in
            [(0, "0"), (7, "7"), (999, "999"), (1000, "1,000"), (1247, "1,247"), (1_234_567, "1,234,567")]
        {
            assert_eq!(thousands(number), expected);
        }
        for (milliseconds, expected) in
            [(0, "0.0"), (49, "0.0"), (50, "0.1"), (23_400, "23.4"), (59_970, "60.0")]
        {
            assert_eq!(tenths(milliseconds), expected);
        }
    }

    fn report() -> Report {
        let mut report = Report::new("id", "What is new?");
        let metadata = ResultMetadata {
            total_tokens: 1247,
            duration_ms: 23_400,
            sub_queries_succeeded: 4,
            sub_queries_failed: 1,
        };
        let mut updates = vec![AgentUpdate::decomposition_started()];
        updates.extend((0..5).map(|id| AgentUpdate::sub_query_started(id, format!("q{id}"))));
        updates.extend((0..4).map(|id| AgentUpdate::sub_query_completed(id, "r", 234)));
        updates.push(AgentUpdate::sub_query_failed(4, "timeout"));
        updates.push(AgentUpdate::research_note("merged one"));
        updates.push(AgentUpdate::new("future_event", "", serde_json::json!({})));
        updates.push(AgentUpdate::final_result(&FinalResult::new("It is.\n\u{1b}[31mRed", metadata)));
        // Observing the same event twice must change nothing.
        for update in updates.iter().chain(&updates[..5]).chain(&updates[6..]) {
            report.observe(update);
        }
        report
    }

    #[test]
    fn the_final_block_has_its_exact_shape() {
        let rule = |c: &str| c.repeat(60);
        let expected = format!(
            "{}\nANSWER:\nIt is.\n\\u{{1b}}[31mRed\n{}\nStats: 4/5 sub-queries succeeded | 1,247 total tokens | 23.4s\n{}\n",
            rule("═"),
            rule("─"),
            rule("═"),
        );
        let report = report();
        assert_eq!(report.final_block(), expected);
        assert_eq!((report.sub_queries.len(), report.notes.len()), (5, 1));
        assert!(report.is_complete());
    }

    #[test]
    fn the_report_ends_with_sources_and_doubts() {
        let mut report = report();
        report.sources = vec![Source::example()];
        report.unconfirmed = vec!["removed a citation".into()];
        let text = report.markdown();
        for expected in [
            "# What is new?\n\nIt is.",
            "## Sources\n\n[1] https://a.org/x (request seen by guard's proxy)\n",
            "## Not confirmed\n\n- removed a citation\n",
            "5. q4 (failed: timeout)\n",
            "1. q0 (234 tokens)\n",
            "- merged one\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
        }
        assert!(text.ends_with("- removed a citation\n"), "{text}");
    }
}
