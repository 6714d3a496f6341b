//! Shows the progress of research: as progress bars on a terminal; elsewhere, and with `-v`, as lines of text.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::agents::adapter::json_objects;
use crate::cli::note;
use crate::cli::output::line_width::{columns, cut, terminal_width};
use crate::cli::output::logging;
use crate::text::terminal_text;
use crate::work::research::{
    AgentUpdate, EVENT_DECOMPOSITION_COMPLETE, EVENT_DECOMPOSITION_STARTED, EVENT_FINAL_RESULT,
    EVENT_RESEARCH_NOTE, EVENT_SYNTHESIS_STARTED,
};

/// The maximum number of characters that the display shows of a sub-query or an error.
const LONGEST: usize = 60;
/// The time between two frames of a spinner.
const FRAME: Duration = Duration::from_millis(100);
const SPINNER: &str = "⣾⣽⣻⢿⡿⣟⣯⣷ ";

/// How guard shows the progress of research.
pub(in crate::cli) enum StreamDisplay {
    /// guard draws progress bars on a terminal: one for the whole research and one for each sub-query.
    Live(LiveDisplay),
    Plain(Lines),
    /// guard shows no progress, because a program reads the output.
    Silent,
}

impl StreamDisplay {
    /// Shows an update of the research agent. Ignores updates of unknown types.
    pub(in crate::cli) fn show(&mut self, update: &AgentUpdate) {
        match self {
            Self::Live(display) => display.show(update),
            Self::Plain(lines) => lines.of(update).iter().for_each(|line| note(line)),
            Self::Silent => {}
        }
    }

    /// Ends the display. If it draws bars and the research has no result, removes the bars of unfinished sub-queries.
    pub(in crate::cli) fn end(&mut self) {
        if let Self::Live(display) = self {
            display.end();
        }
    }
}

/// Converts updates of the research agent to lines of text.
#[derive(Debug, Default)]
pub(in crate::cli) struct Lines {
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

/// Returns the error message in an API's JSON document, if an error quotes such a document. The message is more
/// useful than the beginning of the document.
fn quoted_message(error: &str) -> Option<String> {
    let message = |object: &serde_json::Map<String, serde_json::Value>| {
        object.get("error")?.get("message")?.as_str().map(str::to_string)
    };
    let message = json_objects(error).iter().find_map(|(_, object)| message(object))?;
    // The message may quote the JSON document of another API.
    Some(quoted_message(&message).unwrap_or(message))
}

/// Joins a title and the text after it, shortened so that both fit into a line of `width` columns.
fn fit(title: &str, rest: &str, width: usize) -> String {
    let rest = cut(rest, width.saturating_sub(columns(title)).max(width / 2));
    format!("{}{rest}", cut(title, width.saturating_sub(columns(&rest))))
}

impl Lines {
    /// Returns the number and the text of a sub-query, such as `[2/5] text of the sub-query`.
    fn title(&self, id: usize) -> String {
        let query = self.queries.get(&id).map(String::as_str).unwrap_or_default();
        format!("[{}/{}] {query}", id + 1, self.total.max(id + 1))
    }

    /// Stores the sub-queries that an update contains, for later titles.
    fn remember(&mut self, update: &AgentUpdate) {
        if let Some(queries) = update.as_decomposition_complete() {
            self.total = queries.len();
        } else if let Some(round) = update.as_round_planned() {
            self.total = self.total.max(round.first_id + round.sub_queries.len());
        } else if let Some(started) = update.as_sub_query_started() {
            self.queries.insert(started.id, short(&started.query));
        }
    }

    /// If an update says that a sub-query has ended, returns the id of the sub-query and a text that says how it ended.
    /// Otherwise returns `None`.
    fn ending(update: &AgentUpdate) -> Option<(usize, String)> {
        if let Some(done) = update.as_sub_query_completed() {
            return Some((done.id, format!(" ✓ Complete ({} tokens)", done.tokens_used)));
        }
        let failed = update.as_sub_query_failed()?;
        let error = quoted_message(&failed.error).unwrap_or(failed.error);
        Some((failed.id, format!(" ✗ Failed: {}", short(&error))))
    }

    /// Returns the line for an update about the research as a whole; `None` for updates about a sub-query and for
    /// updates of unknown types.
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

    /// Returns the lines to print for an update if guard draws no progress bars.
    pub(in crate::cli) fn of(&mut self, update: &AgentUpdate) -> Vec<String> {
        self.remember(update);
        let mut lines = Vec::new();
        if update.as_sub_query_started().is_some() && !std::mem::replace(&mut self.has_begun, true) {
            lines.push("Executing parallel research:".to_string());
        }
        lines.extend(Self::ending(update).map(|(id, rest)| format!("  {}{rest}", self.title(id))));
        if let Some(done) = update.as_sub_query_completed().filter(|_| logging::is_verbose()) {
            lines.extend(done.result.lines().map(|line| format!("    {}", terminal_text::escape(line))));
        }
        lines.extend(self.about_run(update));
        lines
    }
}

/// Keeps the terminal from echoing Ctrl-C as `^C` until this value is dropped. The cursor is in the last column, so
/// the two characters would wrap, and the bars would be redrawn one line lower. Does nothing if guard is a background
/// job.
struct HiddenControlKeys {
    before: Option<Termios>,
}

impl HiddenControlKeys {
    fn start() -> Self {
        let terminal = io::stderr();
        // The kernel would stop a background job that changes the terminal's settings.
        let is_in_foreground = crate::sys::terminal::is_in_foreground(terminal.as_fd());
        let before = is_in_foreground.then(|| tcgetattr(&terminal).ok()).flatten();
        if let Some(mut hidden) = before.clone() {
            hidden.local_flags &= !LocalFlags::ECHOCTL;
            let _ = tcsetattr(&terminal, SetArg::TCSANOW, &hidden);
        }
        Self { before }
    }
}

impl Drop for HiddenControlKeys {
    fn drop(&mut self) {
        let terminal = io::stderr();
        // The user may have moved the job to the background meanwhile.
        if let Some(before) = &self.before
            && crate::sys::terminal::is_in_foreground(terminal.as_fd())
        {
            let _ = tcsetattr(&terminal, SetArg::TCSANOW, before);
        }
    }
}

/// The progress bars on a terminal.
pub(in crate::cli) struct LiveDisplay {
    _keys: HiddenControlKeys,
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
    pub(in crate::cli) fn start() -> Self {
        let multi = MultiProgress::new();
        let main = multi.add(ProgressBar::new_spinner());
        main.set_style(style("[{spinner}] {msg}"));
        main.enable_steady_tick(FRAME);
        let _keys = HiddenControlKeys::start();
        Self { _keys, multi, main, bars: BTreeMap::new(), lines: Lines::default() }
    }

    fn println(&self, line: &str) {
        // Ignore errors: if the terminal is gone, there is nowhere to print the line.
        let _ = self.multi.println(line);
    }

    fn show(&mut self, update: &AgentUpdate) {
        self.lines.remember(update);
        if let Some(started) = update.as_sub_query_started() {
            return self.add_bar(started.id);
        }
        if let Some((id, rest)) = Lines::ending(update) {
            if let Some(bar) = self.bars.get(&id) {
                bar.set_style(style("  {msg}"));
                bar.finish_with_message(fit(&self.lines.title(id), &rest, bar_width()));
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

    /// Adds the bar of a sub-query, above the bar of the whole research.
    fn add_bar(&mut self, id: usize) {
        let bar = self.multi.insert_before(&self.main, ProgressBar::new_spinner());
        bar.set_style(style("  {msg} {spinner} (in progress)"));
        bar.set_message(cut(&self.lines.title(id), bar_width().saturating_sub(columns(" ⣾ (in progress)"))));
        bar.enable_steady_tick(FRAME);
        self.bars.insert(id, bar);
    }

    /// Stops drawing. If the research has no result, only the finished bars stay on the terminal.
    fn end(&self) {
        let all = || self.bars.values().chain([&self.main]);
        if all().all(ProgressBar::is_finished) {
            // Move the cursor from the end of the last bar to a new line.
            return note("");
        }
        all().for_each(ProgressBar::disable_steady_tick);
        let _ = self.multi.clear();
        self.multi.set_draw_target(ProgressDrawTarget::hidden());
        for bar in self.bars.values().filter(|bar| bar.is_finished()) {
            note(&format!("  {}", bar.message()));
        }
    }
}

/// Returns the number of columns for the bar of a sub-query, after its indentation.
fn bar_width() -> usize {
    terminal_width().saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::research::FinalResult;

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
    fn a_bar_fits_into_its_line() {
        let (title, long) = ("[1/5] What is known?", "x".repeat(60));
        assert_eq!(fit(title, " ✓ Complete (7 tokens)", 60), format!("{title} ✓ Complete (7 tokens)"));
        assert_eq!(
            fit(&long, " ✓ Complete (7 tokens)", 60),
            format!("{}… ✓ Complete (7 tokens)", "x".repeat(34))
        );
        let failed = fit(&long, &format!(" ✗ Failed: {long}"), 60);
        assert!(columns(&failed) < 60 && failed.contains("xxx… ✗ Failed: xxx"), "{failed}");
        for width in 0..150 {
            assert!(columns(&fit(title, &long, width)) < width.max(5), "{width}");
        }
    }

    #[test]
    fn an_error_that_quotes_an_api_shows_what_it_said() {
        let quoted =
            r#"gemini exited with code 144: [API Error: {"error":{"code":400,"message":"no such model"}}]"#;
        let nested = r#"x {"error":{"message":"{\"error\":{\"message\":\"quota\"}}"}}"#;
        for (error, expected) in [(quoted, "no such model"), (nested, "quota"), ("{} plain", "{} plain")] {
            let (_, line) = Lines::ending(&AgentUpdate::sub_query_failed(0, error)).unwrap_or_default();
            assert_eq!(line, format!(" ✗ Failed: {expected}"));
        }
    }

    #[test]
    fn long_queries_are_cut() {
        let shown = short(&"word ".repeat(30));
        assert!(shown.chars().count() <= LONGEST && shown.ends_with("wo..."), "{shown}");
        assert_eq!(short("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
