//! Shows the progress of research: bars on a terminal, one line per event elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{logging, note};
use crate::research::{
    AgentUpdate, EVENT_DECOMPOSITION_COMPLETE, EVENT_DECOMPOSITION_STARTED, EVENT_FINAL_RESULT,
    EVENT_RESEARCH_NOTE, EVENT_SYNTHESIS_STARTED,
};
use crate::terminal_text;

/// The most characters of a sub-query or an error that are shown.
const LONGEST: usize = 60;
/// The time between two frames of a spinner.
const FRAME: Duration = Duration::from_millis(100);
const SPINNER: &str = "⣾⣽⣻⢿⡿⣟⣯⣷ ";

/// Where progress is shown.
pub(super) enum StreamDisplay {
    /// On a terminal: one bar for the run and one for each sub-query.
    Live(LiveDisplay),
    /// Line by line.
    Plain(Lines),
    /// Nowhere: a program reads the output.
    Silent,
}

impl StreamDisplay {
    /// Shows what an update says. Unknown updates are not shown.
    pub(super) fn show(&mut self, update: &AgentUpdate) {
        match self {
            Self::Live(display) => display.show(update),
            Self::Plain(lines) => lines.of(update).iter().for_each(|line| note(line)),
            Self::Silent => {}
        }
    }

    /// Removes what is not finished from the terminal.
    pub(super) fn end(&mut self) {
        if let Self::Live(display) = self {
            let bars = display.bars.values().chain([&display.main]);
            bars.filter(|bar| !bar.is_finished()).for_each(ProgressBar::finish_and_clear);
            // The cursor stays at the end of the last bar.
            note("");
        }
    }
}

/// Turns updates into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    queries: BTreeMap<usize, String>,
    total: usize,
    has_begun: bool,
}

fn short(text: &str) -> String {
    let line = terminal_text::one_line(text);
    if line.chars().count() <= LONGEST {
        return line;
    }
    let cut: String = line.chars().take(LONGEST - 3).collect();
    format!("{}...", cut.trim_end())
}

impl Lines {
    /// `[2/5] text of the sub-query`
    fn title(&self, id: usize) -> String {
        let query = self.queries.get(&id).map(String::as_str).unwrap_or_default();
        format!("[{}/{}] {query}", id + 1, self.total.max(id + 1))
    }

    /// Remembers the sub-queries.
    fn remember(&mut self, update: &AgentUpdate) {
        if let Some(queries) = update.as_decomposition_complete() {
            self.total = queries.len();
        } else if let Some(round) = update.as_round_planned() {
            self.total = self.total.max(round.first_id + round.sub_queries.len());
        } else if let Some(started) = update.as_sub_query_started() {
            self.queries.insert(started.id, short(&started.query));
        }
    }

    /// How a sub-query ended, if the update says so.
    fn ending(&self, update: &AgentUpdate) -> Option<(usize, String)> {
        if let Some(done) = update.as_sub_query_completed() {
            let title = self.title(done.id);
            return Some((done.id, format!("{title} ✓ Complete ({} tokens)", done.tokens_used)));
        }
        let failed = update.as_sub_query_failed()?;
        Some((failed.id, format!("{} ✗ Failed: {}", self.title(failed.id), short(&failed.error))))
    }

    /// The line about the run as a whole, if the update is about that.
    fn about_run(&mut self, update: &AgentUpdate) -> Option<String> {
        match update.event_type.as_str() {
            EVENT_DECOMPOSITION_STARTED => Some("[•] Decomposing query...".to_string()),
            EVENT_DECOMPOSITION_COMPLETE => Some(format!("[✓] {}", terminal_text::one_line(&update.message))),
            EVENT_SYNTHESIS_STARTED => Some("[•] Synthesizing results...".to_string()),
            EVENT_FINAL_RESULT => Some("[✓] Synthesis complete".to_string()),
            EVENT_RESEARCH_NOTE => Some(format!("[!] {}", terminal_text::one_line(&update.message))),
            _ => {
                update.as_round_planned().map(|_| format!("[•] {}", terminal_text::one_line(&update.message)))
            }
        }
    }

    /// The lines that an update prints where there is no terminal.
    pub(super) fn of(&mut self, update: &AgentUpdate) -> Vec<String> {
        self.remember(update);
        let mut lines = Vec::new();
        if update.as_sub_query_started().is_some() && !std::mem::replace(&mut self.has_begun, true) {
            lines.push("Executing parallel research:".to_string());
        }
        lines.extend(self.ending(update).map(|(_, line)| format!("  {line}")));
        if let Some(done) = update.as_sub_query_completed().filter(|_| logging::is_verbose()) {
            lines.extend(done.result.lines().map(|line| format!("    {}", terminal_text::escape(line))));
        }
        lines.extend(self.about_run(update));
        lines
    }
}

/// The bars on a terminal.
pub(super) struct LiveDisplay {
    multi: MultiProgress,
    main: ProgressBar,
    bars: BTreeMap<usize, ProgressBar>,
    lines: Lines,
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    style.tick_chars(SPINNER)
}

impl LiveDisplay {
    pub(super) fn start() -> Self {
        let multi = MultiProgress::new();
        let main = multi.add(ProgressBar::new_spinner());
        main.set_style(style("[{spinner}] {msg}"));
        main.enable_steady_tick(FRAME);
        Self { multi, main, bars: BTreeMap::new(), lines: Lines::default() }
    }

    fn println(&self, line: &str) {
        // Without a terminal there is nothing to show it on.
        let _ = self.multi.println(line);
    }

    fn show(&mut self, update: &AgentUpdate) {
        self.lines.remember(update);
        if let Some(started) = update.as_sub_query_started() {
            return self.add_bar(started.id);
        }
        if let Some((id, line)) = self.lines.ending(update) {
            if let Some(bar) = self.bars.get(&id) {
                bar.set_style(style("  {msg}"));
                bar.finish_with_message(line);
            }
            return;
        }
        match (update.event_type.as_str(), self.lines.about_run(update)) {
            (EVENT_DECOMPOSITION_STARTED, _) => self.main.set_message("Decomposing..."),
            (EVENT_SYNTHESIS_STARTED, _) => self.main.set_message("Synthesizing results..."),
            (EVENT_DECOMPOSITION_COMPLETE, Some(line)) => {
                self.println(&line);
                self.println("Executing parallel research:");
                self.main.set_message("Researching...");
            }
            (EVENT_FINAL_RESULT, Some(line)) => {
                self.main.set_style(style("{msg}"));
                self.main.finish_with_message(line);
            }
            (_, Some(line)) => self.println(&line),
            (_, None) => {}
        }
    }

    /// Adds the bar of a sub-query. The bar of the run stays below it.
    fn add_bar(&mut self, id: usize) {
        let bar = self.multi.insert_before(&self.main, ProgressBar::new_spinner());
        bar.set_style(style("  {msg} {spinner} (in progress)"));
        bar.set_message(self.lines.title(id));
        bar.enable_steady_tick(FRAME);
        self.bars.insert(id, bar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::research::FinalResult;

    #[test]
    fn lines_are_as_documented() {
        let mut lines = Lines::default();
        let updates = [
            AgentUpdate::decomposition_started(),
            AgentUpdate::decomposition_complete(vec!["Quantum hardware".into(), "Error\ncorrection".into()]),
            AgentUpdate::research_note("left out 1 sub-query"),
            AgentUpdate::sub_query_started(0, "Quantum hardware"),
            AgentUpdate::sub_query_started(1, "Error\ncorrection"),
            AgentUpdate::sub_query_completed(1, "r", 234),
            AgentUpdate::sub_query_failed(0, "timeout"),
            AgentUpdate::synthesis_started(),
            AgentUpdate::new("future_event", "x", serde_json::json!({})),
            AgentUpdate::final_result(&FinalResult::default()),
        ];
        let shown: Vec<String> = updates.iter().flat_map(|update| lines.of(update)).collect();
        assert_eq!(
            shown,
            [
                "[•] Decomposing query...",
                "[✓] Decomposed into 2 sub-queries",
                "[!] left out 1 sub-query",
                "Executing parallel research:",
                "  [2/2] Error correction ✓ Complete (234 tokens)",
                "  [1/2] Quantum hardware ✗ Failed: timeout",
                "[•] Synthesizing results...",
                "[✓] Synthesis complete",
            ]
        );
    }

    #[test]
    fn long_queries_are_cut() {
        let shown = short(&"word ".repeat(30));
        assert!(shown.chars().count() <= LONGEST && shown.ends_with("wo..."), "{shown}");
        assert_eq!(short("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
