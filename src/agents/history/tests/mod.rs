//! Tests of whole conversations. Tests of one part alone are in the source file of that part.

mod compaction;
mod failures;
mod hostile;
mod limits;
mod prompts;
mod properties;
mod scenarios;

use super::*;

/// Returns a text that begins with `name` and has exactly this many estimated tokens.
fn text_of(name: &str, tokens: usize) -> String {
    let text = format!("{name} {}", "lorem ipsum ".repeat(tokens / 3 + 1));
    text[..tokens * 4].to_string()
}

/// Returns a conversation of exchanges with these numbers of tokens: the question has an eighth, the answer the
/// rest.
fn exchanges(tokens: &[usize]) -> GeminiHistoryManager {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    for (index, tokens) in tokens.iter().enumerate() {
        history.add_user(text_of(&format!("question {}", index + 1), tokens / 8));
        history.add_assistant(text_of(&format!("answer {}", index + 1), tokens - tokens / 8));
    }
    history
}

/// Returns the plan for a compaction; fails if none is due.
fn plan(history: &mut GeminiHistoryManager) -> CompactionPlan {
    history
        .maybe_compress()
        .unwrap_or_else(|| panic!("no compaction of {}", history.estimated_total_tokens()))
}

/// Applies a summary and returns it; fails if the history does not accept it.
fn accept(history: &mut GeminiHistoryManager, plan: &CompactionPlan, text: &str) -> Summary {
    match history.apply_summary(plan, Ok(text.to_string())) {
        Applied::Accepted(summary) => summary,
        other => panic!("{other:?}"),
    }
}

/// Returns the sections of a prompt as (title, body).
fn sections(prompt: &str) -> Vec<(String, String)> {
    let parts = prompt.split("\n\n## ").skip(1);
    parts
        .filter_map(|part| part.split_once('\n'))
        .map(|(title, body)| (title.to_string(), body.to_string()))
        .collect()
}
