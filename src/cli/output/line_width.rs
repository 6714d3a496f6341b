//! Shortens lines to the width of the terminal. Displays redraw these lines in place, so they must not wrap.

use std::io;
use std::os::fd::AsFd;

const DEFAULT_WIDTH: usize = 80;

/// Returns the width of the terminal on standard error, in columns: at least 10, and 80 if the terminal reports none.
pub(in crate::cli) fn terminal_width() -> usize {
    let reported = crate::sys::terminal::columns(io::stderr().as_fd()).filter(|columns| *columns > 0);
    reported.unwrap_or(DEFAULT_WIDTH).max(10)
}

/// Returns an upper bound for the number of columns that a text takes: one for each ASCII character, two for any other.
pub(in crate::cli) fn columns(text: &str) -> usize {
    text.chars().map(width).sum()
}

fn width(one: char) -> usize {
    if one.is_ascii() { 1 } else { 2 }
}

/// Returns the line unchanged if it needs fewer than `most` columns. Otherwise shortens it to fewer than `most`
/// columns, with `…` at its end. For `most` below 3, returns only `…`.
pub(in crate::cli) fn cut(line: &str, most: usize) -> String {
    if columns(line) < most {
        return line.to_string();
    }
    let mut used = 2;
    let mut short: String = line
        .chars()
        .take_while(|one| {
            used += width(*one);
            used < most
        })
        .collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_before_the_last_column() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("0123456789", 10), "0123456…");
        assert_eq!(cut("漢字漢字漢字", 10), "漢字漢…");
    }
}
