//! Reads coverage reports, and determines which lines of which source files the tests execute.
//!
//! ```text
//!   find ── reports below a directory ──► lcov, cobertura, llvm_cov, tarpaulin ──► builder ──► Coverage ──► render
//! ```
//!
//! guard detects the format of a report by its content, not by its name. It merges several reports: a line gets the
//! largest of its hit counts. An agent may have written the reports, so guard reads only regular files below the
//! directory, follows no symbolic links, and limits the number, the size and the content of the reports. If guard does
//! not understand a part of a report, it fails rather than count a line as covered.
#![forbid(unsafe_code)]

mod builder;
mod cobertura;
mod find;
mod lcov;
mod llvm_cov;
mod render;
mod source_path;
mod tarpaulin;

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use builder::{CoverageBuilder, Damage, Limits, Lines};
use find::ReportDirectory;

use crate::sys::fs::OpenError;
use crate::text::string_enum::string_enum;
use crate::text::terminal_text;

/// The maximum length of a parser's message that an error shows, in bytes. The message may quote the report.
const LONGEST_PROBLEM: usize = 300;

string_enum! {
    /// Which source files an output lists, selected by file name extension.
    pub enum Scope {
        /// Every source file in the reports.
        All = "all",
        /// C and C++ files, with the extensions `c`, `cc`, `cpp`, `cxx`, `h`, `hh`, `hpp`, `hxx`, `ipp`.
        Cpp = "cpp",
        /// Rust files, with the extension `rs`.
        Rust = "rust",
    }
}

string_enum! {
    pub enum Format {
        /// A MiniZinc data file (`.dzn`) with parallel arrays: entry *i* of each array describes file *i*.
        MinizincDzn = "minizinc_dzn",
        /// One JSON object: the totals, and the files with their uncovered lines as ranges.
        Json = "json",
        /// A table for people, with the totals in its last line.
        TextSummary = "text_summary",
    }
}

impl Scope {
    fn contains(self, path: &str) -> bool {
        let extensions: &[&str] = match self {
            Self::All => return true,
            Self::Cpp => &["c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "ipp"],
            Self::Rust => &["rs"],
        };
        let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|found| extensions.iter().any(|one| found.eq_ignore_ascii_case(one)))
    }
}

/// The hit counts of the lines of each source file, from one report or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// Maps the path of a source file to its lines. The path is relative to the directory for which guard read the
    /// reports, if the file is below that directory.
    files: BTreeMap<String, Lines>,
}

impl Coverage {
    /// Formats the coverage of the files in a scope, sorted by path. Fails if no file is in the scope.
    pub fn render(&self, scope: Scope, format: Format) -> Result<String, CoverageError> {
        let files: Vec<_> = self.files.iter().filter(|(path, _)| scope.contains(path)).collect();
        if files.is_empty() {
            return Err(CoverageError::EmptyScope { scope });
        }
        Ok(render::render(&files, scope, format))
    }

    /// Returns the uncovered lines of a source file as ranges in ascending order; `None` if no report lists the file.
    /// `path` is relative to the directory of [`read_coverage`], or absolute if the file is outside that directory.
    pub fn uncovered_ranges(&self, path: &str) -> Option<Vec<RangeInclusive<u32>>> {
        Some(self.files.get(&source_path::clean(path))?.uncovered_ranges())
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoverageError {
    /// No file in the directories that guard searches is a coverage report in a known format.
    #[error(
        "no coverage report found in {}{}; looked in {} for {}; make one with `cargo llvm-cov --lcov --output-path \
         lcov.info`, `cargo tarpaulin --out Json` or `gcovr --cobertura coverage.xml`, or set the \
         parameter `report` to the path of the report",
        shown(.directory), unrecognised_clause(.unrecognised), find::places(), find::NAMES.join(", ")
    )]
    NoReport {
        /// The directory below which guard searched for reports.
        directory: PathBuf,
        /// Files with a usual name whose content is in no known format, relative to the directory.
        unrecognised: Vec<PathBuf>,
    },
    /// A directory cannot be opened or listed.
    #[error("cannot search {} for coverage reports: {source}; set the parameter `report` to the path of the report", shown(.directory))]
    Search { directory: PathBuf, source: io::Error },
    /// The directories that guard searches contain more reports or directory entries than guard inspects.
    #[error("the search for coverage reports in {} found more than {most} {what}; set the parameter `report` to the path of the report", shown(.directory))]
    TooMany {
        /// The directory below which guard searched for reports.
        directory: PathBuf,
        /// What the directory has too many of: reports or directory entries.
        what: &'static str,
        most: usize,
    },
    /// The report that the caller named is not below the directory.
    #[error(
        "the coverage report {} is not below {}; set the parameter `report` to a file in that directory, without `..`",
        shown(.report), shown(.directory)
    )]
    OutsideDirectory {
        /// The path of the report, as the caller named it.
        report: PathBuf,
        /// The directory below which the report must be.
        directory: PathBuf,
    },
    /// The path of the report contains a symbolic link, which could lead out of the directory.
    #[error(
        "the path of the coverage report {} contains the symbolic link {}; set the parameter `report` to the path of the file itself",
        shown(.report), shown(.link)
    )]
    SymbolicLink {
        /// The path of the report, relative to the directory.
        report: PathBuf,
        /// The first symbolic link in the path of the report.
        link: PathBuf,
    },
    /// The report cannot be opened or read, is not a regular file, or is too large.
    #[error("cannot read the coverage report {}: {source}", shown(.report))]
    Unreadable {
        /// The path of the report, relative to the directory.
        report: PathBuf,
        source: OpenError,
    },
    /// The content of the report that the caller named is in no known format.
    #[error(
        "{} is not a coverage report in a known format; guard reads lcov, Cobertura XML, the JSON export of llvm-cov \
         and the JSON report of tarpaulin",
        shown(.report)
    )]
    UnknownFormat {
        /// The path of the report, relative to the directory.
        report: PathBuf,
    },
    /// A part of the report is invalid, unknown, or beyond a limit.
    #[error("cannot use the coverage report {}: {problem}; generate it again, or set the parameter `report` to another report", position(.report, *.line))]
    Damaged {
        /// The path of the report, relative to the directory.
        report: PathBuf,
        /// The line of the report, counted from 1, if it is known.
        line: Option<usize>,
        problem: String,
    },
    /// The reports list no source file in the scope.
    #[error("the coverage reports list no source files in the scope `{scope}`; {}", scope_advice(*.scope))]
    EmptyScope { scope: Scope },
}

fn shown(path: &Path) -> String {
    terminal_text::replace(&path.to_string_lossy())
}

fn position(report: &Path, line: Option<usize>) -> String {
    line.map_or_else(|| shown(report), |line| format!("{}:{line}", shown(report)))
}

fn unrecognised_clause(unrecognised: &[PathBuf]) -> String {
    match unrecognised {
        [] => String::new(),
        files => {
            let files: Vec<String> = files.iter().map(|file| shown(file)).collect();
            format!(" (in no known format: {})", files.join(", "))
        }
    }
}

fn scope_advice(scope: Scope) -> &'static str {
    match scope {
        Scope::All => "run the tests with coverage and generate a new report",
        Scope::Cpp | Scope::Rust => {
            "use the scope `all`, or generate a report that covers files in this scope"
        }
    }
}

/// Reads `report`; if it is `None`, merges all reports that a search in `directory` and in some usual subdirectories
/// finds. The path of `report` is absolute or relative to `directory`, and must be below it. A search skips files in
/// unknown formats, but fails if no file is left or if any report is damaged.
pub fn read_coverage(directory: &Path, report: Option<&Path>) -> Result<Coverage, CoverageError> {
    let reports = ReportDirectory::open(directory)?;
    let mut builder = CoverageBuilder::new(directory, Limits::STANDARD);
    if let Some(report) = report {
        let report = reports.relative_path(report)?;
        let bytes = reports.read(&report)?;
        return match read_report(&report, &bytes, &mut builder)? {
            true => Ok(builder.finish()),
            false => Err(CoverageError::UnknownFormat { report }),
        };
    }
    let mut unrecognised = Vec::new();
    let found = reports.search()?;
    for report in &found {
        let bytes = reports.read(report)?;
        if !read_report(report, &bytes, &mut builder)? {
            unrecognised.push(report.clone());
        }
    }
    if unrecognised.len() == found.len() {
        return Err(CoverageError::NoReport { directory: directory.to_path_buf(), unrecognised });
    }
    Ok(builder.finish())
}

/// Parses a report in any known format, and adds its lines to the builder. Returns false if the format is unknown.
fn read_report(report: &Path, bytes: &[u8], builder: &mut CoverageBuilder) -> Result<bool, CoverageError> {
    parse_report(bytes, builder).map_err(|damage| CoverageError::Damaged {
        report: report.to_path_buf(),
        line: damage.line,
        problem: terminal_text::replace(&terminal_text::shorten(&damage.problem, LONGEST_PROBLEM)),
    })
}

fn parse_report(bytes: &[u8], builder: &mut CoverageBuilder) -> Result<bool, Damage> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Damage::at_offset(bytes, error.valid_up_to(), "the text is not valid UTF-8".to_string())
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if lcov::is_lcov(text) {
        lcov::read(text, builder)?;
    } else if text.trim_start().starts_with('<') && cobertura::is_cobertura(text)? {
        cobertura::read(text, builder)?;
    } else if text.trim_start().starts_with('{') && llvm_cov::is_llvm_cov(text)? {
        llvm_cov::read(text, builder)?;
    } else if text.trim_start().starts_with('{') && tarpaulin::is_tarpaulin(text) {
        tarpaulin::read(text, builder)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
