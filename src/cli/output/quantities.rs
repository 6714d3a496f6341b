//! Texts for numbers of things and for lists of paths.

use std::path::PathBuf;

use crate::text::terminal_text;

/// Formats a number with its noun: `1 commit`, `2 commits`.
pub(in crate::cli) fn count(number: usize, singular: &str) -> String {
    if number == 1 { format!("1 {singular}") } else { format!("{number} {singular}s") }
}

/// Lists the first ten paths, and says how many more there are.
pub(in crate::cli) fn listed(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths
        .iter()
        .take(10)
        .map(|path| terminal_text::escape(&path.to_string_lossy()).into_owned())
        .collect();
    let more = if paths.len() > 10 { format!(" and {} more", paths.len() - 10) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
