//! Parses the JSON export of llvm-cov, which `llvm-cov export` and `cargo llvm-cov --json` write.
//!
//! The export lists segments: positions in a file at which a new hit count begins to apply. This module computes the
//! count of a line from the segments by the same rules as llvm-cov (`LineCoverageStats` in LLVM), so that the results
//! match llvm-cov's other outputs.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use super::builder::{CoverageBuilder, Damage, SourceFile};

const EXPORT_TYPE: &str = "llvm.coverage.json.export";

#[derive(Deserialize)]
struct ExportType {
    #[serde(rename = "type")]
    name: Option<String>,
}

#[derive(Deserialize)]
struct Export {
    data: Vec<ExportData>,
}

#[derive(Deserialize)]
struct ExportData {
    files: Vec<ExportFile>,
}

#[derive(Deserialize)]
struct ExportFile {
    filename: String,
    segments: Option<Vec<Segment>>,
}

/// A position at which a new hit count begins to apply, without the column.
#[derive(Debug, Clone, Copy)]
struct Segment {
    count: u64,
    line: u32,
    /// False if no hit count applies from here on, for example in a comment or in code that the preprocessor removed.
    has_count: bool,
    is_region_entry: bool,
    /// True if a gap begins here: the space between two statements. The hit count of a gap applies only to lines
    /// without other code.
    is_gap: bool,
}

impl<'de> Deserialize<'de> for Segment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(SegmentVisitor)
    }
}

struct SegmentVisitor;

impl<'de> Visitor<'de> for SegmentVisitor {
    type Value = Segment;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a segment: [line, column, count, has_count, is_region_entry, is_gap]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Segment, A::Error> {
        let too_short = |length| Error::invalid_length(length, &self);
        let line = values.next_element()?.ok_or_else(|| too_short(0))?;
        let IgnoredAny = values.next_element()?.ok_or_else(|| too_short(1))?;
        let count = values.next_element()?.ok_or_else(|| too_short(2))?;
        let has_count = values.next_element()?.ok_or_else(|| too_short(3))?;
        let is_region_entry = values.next_element()?.ok_or_else(|| too_short(4))?;
        // Exports of LLVM 10 and older do not have this field.
        let is_gap = values.next_element()?.unwrap_or(false);
        Ok(Segment { count, line, has_count, is_region_entry, is_gap })
    }
}

impl Segment {
    fn starts_code(&self) -> bool {
        self.has_count && self.is_region_entry && !self.is_gap
    }
}

/// Returns true if the text is a JSON object with the type of llvm-cov's export. Fails if the text is not JSON at
/// all.
pub(super) fn is_llvm_cov(text: &str) -> Result<bool, Damage> {
    match serde_json::from_str::<ExportType>(text) {
        Ok(found) => Ok(found.name.as_deref() == Some(EXPORT_TYPE)),
        Err(error) if error.is_data() => Ok(false),
        Err(error) => Err(Damage::in_json(&error)),
    }
}

/// Parses an export, and adds its lines to the builder.
pub(super) fn read(text: &str, builder: &mut CoverageBuilder) -> Result<(), Damage> {
    let export: Export = serde_json::from_str(text).map_err(|error| Damage::in_json(&error))?;
    for file in export.data.into_iter().flat_map(|data| data.files) {
        let segments = file
            .segments
            .ok_or_else(|| format!("`{}` has no segments; export without `--summary-only`", file.filename))?;
        let lines = builder.source_file(&file.filename)?;
        record_lines(&segments, lines).map_err(|problem| format!("in `{}`: {problem}", file.filename))?;
    }
    Ok(())
}

fn record_lines(segments: &[Segment], mut file: SourceFile<'_>) -> Result<(), String> {
    let mut before: Option<Segment> = None;
    for on_line in segments.chunk_by(|a, b| a.line == b.line) {
        let (Some(first), Some(last)) = (on_line.first(), on_line.last()) else { continue };
        if let Some(before) = before {
            if first.line < before.line {
                return Err(format!(
                    "the segments are not in order: one of line {} follows one of line {}",
                    first.line, before.line
                ));
            }
            if before.has_count {
                for line in (before.line..first.line).skip(1) {
                    file.record(line, before.count)?;
                }
            }
        }
        if let Some(hits) = line_hits(on_line, before) {
            file.record(first.line, hits)?;
        }
        before = Some(*last);
    }
    Ok(())
}

/// Returns the hit count of a line, given its segments and the last segment before it; `None` if the line has no
/// code.
fn line_hits(on_line: &[Segment], before: Option<Segment>) -> Option<u64> {
    let starts_skipped = on_line.first().is_some_and(|first| !first.has_count && first.is_region_entry);
    let continues = !starts_skipped && before.is_some_and(|before| before.has_count);
    if !continues && !on_line.iter().any(|segment| segment.has_count && segment.is_region_entry) {
        return None;
    }
    let started = on_line.iter().filter(|segment| segment.starts_code()).map(|segment| segment.count);
    Some(started.chain(before.map(|before| before.count)).max().unwrap_or(0))
}
