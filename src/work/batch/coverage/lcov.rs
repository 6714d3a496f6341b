//! Parses lcov tracefiles, the text format of `geninfo`, `lcov`, `grcov` and `cargo llvm-cov --lcov`.
//!
//! A tracefile has one section per source file, from `SF:` to `end_of_record`. This module uses only the records
//! `DA:LINE,HITS`.

use super::builder::{CoverageBuilder, Damage, SourceFile, parse_hits, parse_line};

/// The names of records about functions, branches, conditions, versions and totals. They contain no hit counts of
/// lines.
const IGNORED: [&str; 17] = [
    "TN", "VER", "FN", "FNDA", "FNL", "FNA", "FNF", "FNH", "BA", "BRDA", "BRF", "BRH", "MCDC", "MCF", "MCH",
    "LF", "LH",
];

/// Returns true if a text begins with one of the two records with which tracefiles begin, `TN:` and `SF:`.
pub(super) fn is_lcov(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !is_blank(line));
    first.is_some_and(|line| line.starts_with("TN:") || line.starts_with("SF:"))
}

fn is_blank(line: &str) -> bool {
    line.is_empty() || line.starts_with('#')
}

/// Parses a tracefile, and adds its lines to the builder.
pub(super) fn read(text: &str, builder: &mut CoverageBuilder) -> Result<(), Damage> {
    let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !is_blank(line));
    while let Some((number, line)) = lines.next() {
        match line.split_once(':') {
            Some(("SF", path)) => {
                let file = builder.source_file(path).map_err(|problem| Damage::at_line(number, problem))?;
                read_section(number, &mut lines, file)?;
            }
            Some(("TN", _)) => {}
            _ => return Err(Damage::at_line(number, format!("`{line}` is not in a section (`SF:`)"))),
        }
    }
    Ok(())
}

/// Parses the rest of the section that begins at line `start` of the report.
fn read_section<'a>(
    start: usize,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
    mut file: SourceFile<'_>,
) -> Result<(), Damage> {
    for (number, line) in lines {
        if line == "end_of_record" {
            return Ok(());
        }
        let read = match line.split_once(':') {
            Some(("DA", record)) => read_line(record, &mut file),
            Some((name, _)) if IGNORED.contains(&name) => Ok(()),
            _ => Err(format!("`{line}` is not a record of an lcov tracefile")),
        };
        read.map_err(|problem| Damage::at_line(number, problem))?;
    }
    Err(Damage::at_line(start, "the section that begins here has no `end_of_record`".to_string()))
}

/// Parses `LINE,HITS` or `LINE,HITS,CHECKSUM`.
fn read_line(record: &str, file: &mut SourceFile<'_>) -> Result<(), String> {
    let (line, rest) = record.split_once(',').ok_or_else(|| format!("`DA:{record}` has no hit count"))?;
    let hits = rest.split_once(',').map_or(rest, |(hits, _checksum)| hits);
    file.record(parse_line(line)?, parse_hits(hits)?)
}
