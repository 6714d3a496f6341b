//! Collects the lines and hit counts that the parsers find, within limits.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use super::Coverage;
use super::source_path::SourceRoot;

/// The maximum length of a source file's path, in bytes.
pub(super) const MAX_PATH_BYTES: usize = 4096;

/// The limits on the combined content of all reports of one directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The maximum number of different source files.
    pub(super) files: usize,
    /// The maximum number of different lines of one source file.
    pub(super) lines_per_file: usize,
    /// The maximum number of line records; a line counts as often as the reports list it. This limits time as well as
    /// memory, because a few bytes of an llvm-cov export can stand for a million lines.
    pub(super) records: usize,
}

impl Limits {
    pub(super) const STANDARD: Self = Self { files: 100_000, lines_per_file: 1_000_000, records: 10_000_000 };
}

/// What is wrong with a report, and in which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    /// The line of the report, counted from 1, if it is known.
    pub(super) line: Option<usize>,
    pub(super) problem: String,
}

impl Damage {
    pub(super) fn at_line(line: usize, problem: String) -> Self {
        Self { line: Some(line), problem }
    }

    /// Returns the damage at a byte offset of the report. The function counts all lines before the offset, so parsers
    /// should call it only once, when they stop.
    pub(super) fn at_offset(report: &[u8], offset: usize, problem: String) -> Self {
        let before = &report[..offset.min(report.len())];
        Self::at_line(1 + memchr::memchr_iter(b'\n', before).count(), problem)
    }

    /// Returns the damage that serde found in a JSON report. serde's message ends with the position, so this function
    /// removes the position from the text and stores the line in `line`.
    pub(super) fn in_json(error: &serde_json::Error) -> Self {
        let message = error.to_string();
        let problem = message.rfind(" at line ").map_or(message.as_str(), |end| &message[..end]).to_string();
        Self { line: (error.line() > 0).then(|| error.line()), problem }
    }
}

impl From<String> for Damage {
    fn from(problem: String) -> Self {
        Self { line: None, problem }
    }
}

/// The hit counts of the lines of one source file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lines(BTreeMap<u32, u64>);

impl Lines {
    pub(super) fn total(&self) -> usize {
        self.0.len()
    }

    pub(super) fn covered(&self) -> usize {
        self.0.values().filter(|&&hits| hits > 0).count()
    }

    pub(super) fn uncovered(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter(|&(_, &hits)| hits == 0).map(|(&line, _)| line)
    }

    pub(super) fn uncovered_ranges(&self) -> Vec<RangeInclusive<u32>> {
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for line in self.uncovered() {
            match ranges.last_mut() {
                Some(last) if last.end().checked_add(1) == Some(line) => *last = *last.start()..=line,
                _ => ranges.push(line..=line),
            }
        }
        ranges
    }
}

/// Collects the lines of one or more reports.
pub(super) struct CoverageBuilder {
    root: SourceRoot,
    files: BTreeMap<String, Lines>,
    records: usize,
    limits: Limits,
}

impl CoverageBuilder {
    /// Returns an empty builder. The builder makes the paths of source files below `directory` relative to `directory`.
    pub(super) fn new(directory: &Path, limits: Limits) -> Self {
        Self { root: SourceRoot::new(directory), files: BTreeMap::new(), records: 0, limits }
    }

    pub(super) fn finish(self) -> Coverage {
        Coverage { files: self.files }
    }

    /// Returns true if the path, as a report gives it, leads to an existing file below the directory.
    pub(super) fn has_source(&self, path: &str) -> bool {
        path.len() <= MAX_PATH_BYTES && self.root.has_file(path)
    }

    /// Returns a recorder for the lines of a source file. If a report has already listed this file, the recorder adds
    /// to the lines of the file. Fails if the path is empty, too long or a directory, or if there are too many files.
    pub(super) fn source_file(&mut self, path: &str) -> Result<SourceFile<'_>, String> {
        if path.is_empty() {
            return Err("the path of a source file is empty".to_string());
        }
        if path.len() > MAX_PATH_BYTES {
            return Err(format!("the path of a source file has more than {MAX_PATH_BYTES} bytes"));
        }
        let relative = self.root.relative(path);
        if relative.is_empty() {
            return Err(format!("the path `{path}` is a directory, not a source file"));
        }
        if self.files.len() >= self.limits.files && !self.files.contains_key(&relative) {
            return Err(format!("the reports list more than {} source files", self.limits.files));
        }
        let lines = &mut self.files.entry(relative).or_default().0;
        Ok(SourceFile { lines, records: &mut self.records, limits: self.limits })
    }
}

/// Records the lines of one source file.
pub(super) struct SourceFile<'a> {
    lines: &'a mut BTreeMap<u32, u64>,
    records: &'a mut usize,
    limits: Limits,
}

impl SourceFile<'_> {
    /// Records how often a line was executed. If the line already has a count, the larger count applies. Fails if the
    /// line number is 0 or a limit is exceeded.
    pub(super) fn record(&mut self, line: u32, hits: u64) -> Result<(), String> {
        if line == 0 {
            return Err("a source line has the number 0; the first line is line 1".to_string());
        }
        if *self.records >= self.limits.records {
            return Err(format!("the reports list more than {} lines", self.limits.records));
        }
        *self.records += 1;
        let largest = self.lines.entry(line).or_insert(hits);
        *largest = hits.max(*largest);
        if self.lines.len() > self.limits.lines_per_file {
            return Err(format!("a source file has more than {} lines", self.limits.lines_per_file));
        }
        Ok(())
    }
}

pub(super) fn parse_line(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a line number"))
}

/// Parses a hit count. lcov writes large counts as floating-point numbers, such as `1.8e+19`. The function rounds
/// fractions up, and returns `u64::MAX` for counts beyond 64 bits.
pub(super) fn parse_hits(text: &str) -> Result<u64, String> {
    if let Ok(hits) = text.parse() {
        return Ok(hits);
    }
    match text.parse::<f64>() {
        // Round up, so that no count above zero becomes zero.
        Ok(hits) if text.starts_with(|first: char| first.is_ascii_digit()) => Ok(hits.ceil() as u64),
        _ => Err(format!("`{text}` is not a hit count")),
    }
}
