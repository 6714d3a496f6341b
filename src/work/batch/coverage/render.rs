//! Formats coverage as MiniZinc data, as JSON, and as a table for people.
//!
//! The paths come from reports, which an agent may have written, so each format escapes or replaces characters that a
//! terminal or a parser would misinterpret.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::builder::Lines;
use super::{Format, Scope};
use crate::text::terminal_text;

/// The maximum number of ranges of uncovered lines that the table shows for one file.
const MOST_RANGES_SHOWN: usize = 8;

/// Formats the coverage of files, which the caller has sorted by path. The text ends with a newline in every format.
pub(super) fn render(files: &[(&String, &Lines)], scope: Scope, format: Format) -> String {
    match format {
        Format::MinizincDzn => minizinc_data(files),
        Format::Json => json(files, scope),
        Format::TextSummary => text_summary(files),
    }
}

/// The number of lines with a hit count, and of covered lines, in one file or in all files.
#[derive(Debug, Clone, Copy, Default)]
struct LineCounts {
    total: usize,
    covered: usize,
}

impl LineCounts {
    fn of(lines: &Lines) -> Self {
        Self { total: lines.total(), covered: lines.covered() }
    }

    fn sum(files: &[(&String, &Lines)]) -> Self {
        files.iter().map(|(_, lines)| Self::of(lines)).fold(Self::default(), |sum, one| Self {
            total: sum.total + one.total,
            covered: sum.covered + one.covered,
        })
    }

    /// Returns the proportion of covered lines in hundredths of a percent, rounded down, so that 10,000 means that
    /// every line is covered. Without any lines, the result is also 10,000.
    fn hundredths(self) -> usize {
        (self.covered * 10_000).checked_div(self.total).unwrap_or(10_000)
    }

    fn percent_number(self) -> f64 {
        self.hundredths() as f64 / 100.0
    }

    /// Returns the percentage of covered lines with two decimals, such as `66.66`.
    fn percent_text(self) -> String {
        format!("{}.{:02}", self.hundredths() / 100, self.hundredths() % 100)
    }
}

fn minizinc_data(files: &[(&String, &Lines)]) -> String {
    let counts: Vec<LineCounts> = files.iter().map(|(_, lines)| LineCounts::of(lines)).collect();
    let sum = LineCounts::sum(files);
    let mut out = String::new();
    let mut assign = |name: &str, values: Vec<String>| {
        let _ = writeln!(out, "{name} = [{}];", values.join(", "));
    };
    assign("files", files.iter().map(|(path, _)| minizinc_string(path)).collect());
    assign("lines_total", counts.iter().map(|one| one.total.to_string()).collect());
    assign("lines_covered", counts.iter().map(|one| one.covered.to_string()).collect());
    assign("coverage_percent", counts.iter().map(|one| one.percent_text()).collect());
    assign("uncovered", files.iter().map(|(_, lines)| minizinc_set(lines)).collect());
    let _ = writeln!(out, "total_lines = {};\ncovered_lines = {};", sum.total, sum.covered);
    out
}

/// Returns a MiniZinc string literal. MiniZinc has escapes only for quotes, backslashes, newlines and tabs, so U+FFFD
/// replaces all other characters that could change what a terminal shows.
fn minizinc_string(text: &str) -> String {
    let mut out = String::from('"');
    for one in text.chars() {
        match one {
            '"' | '\\' => out.extend(['\\', one]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            one if terminal_text::is_unsafe(one) => out.push('\u{fffd}'),
            one => out.push(one),
        }
    }
    out.push('"');
    out
}

fn minizinc_set(lines: &Lines) -> String {
    let numbers: Vec<String> = lines.uncovered().map(|line| line.to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}

#[derive(Serialize)]
struct JsonReport<'a> {
    scope: Scope,
    totals: JsonTotals,
    files: Vec<JsonFile<'a>>,
}

#[derive(Serialize)]
struct JsonTotals {
    files: usize,
    lines_total: usize,
    lines_covered: usize,
    percent: f64,
}

#[derive(Serialize)]
struct JsonFile<'a> {
    path: &'a str,
    lines_total: usize,
    lines_covered: usize,
    percent: f64,
    uncovered: Vec<String>,
}

impl<'a> JsonFile<'a> {
    fn new(path: &'a str, lines: &Lines) -> Self {
        let counts = LineCounts::of(lines);
        Self {
            path,
            lines_total: counts.total,
            lines_covered: counts.covered,
            percent: counts.percent_number(),
            uncovered: lines.uncovered_ranges().iter().map(range_text).collect(),
        }
    }
}

fn json(files: &[(&String, &Lines)], scope: Scope) -> String {
    let sum = LineCounts::sum(files);
    let totals = JsonTotals {
        files: files.len(),
        lines_total: sum.total,
        lines_covered: sum.covered,
        percent: sum.percent_number(),
    };
    let files = files.iter().map(|(path, lines)| JsonFile::new(path, lines)).collect();
    let text = serde_json::to_string(&JsonReport { scope, totals, files }).unwrap_or_default();
    escape_unsafe(&text) + "\n"
}

/// Escapes characters that JSON permits but that a terminal does not show literally. In JSON text they occur only in
/// strings.
fn escape_unsafe(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 1);
    for one in json.chars() {
        if terminal_text::is_unsafe(one) {
            for unit in one.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(one);
        }
    }
    out
}

fn range_text(range: &RangeInclusive<u32>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}-{}", range.start(), range.end())
    }
}

fn text_summary(files: &[(&String, &Lines)]) -> String {
    let mut out = String::from("   lines   covered   percent  file\n");
    let mut row = |counts: LineCounts, text: &str| {
        let percent = counts.percent_text();
        let _ = writeln!(out, "{:>8}  {:>8}  {percent:>7}%  {text}", counts.total, counts.covered);
    };
    for (path, lines) in files {
        row(LineCounts::of(lines), &(terminal_text::replace(path) + &uncovered_clause(lines)));
    }
    let noun = if files.len() == 1 { "file" } else { "files" };
    row(LineCounts::sum(files), &format!("total of {} {noun}", files.len()));
    out
}

fn uncovered_clause(lines: &Lines) -> String {
    let ranges = lines.uncovered_ranges();
    if ranges.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = ranges.iter().take(MOST_RANGES_SHOWN).map(range_text).collect();
    let more = match ranges.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("  (not covered: {}{more})", shown.join(", "))
}
