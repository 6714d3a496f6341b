//! Parses `tarpaulin-report.json`, which `cargo tarpaulin --out Json` writes.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

use super::builder::{CoverageBuilder, Damage, MAX_PATH_BYTES};

/// The part of a report that distinguishes it from other JSON files with an array `files`.
#[derive(Deserialize)]
struct ReportShape {
    #[serde(rename = "files")]
    _files: Vec<FileShape>,
}

#[derive(Deserialize)]
struct FileShape {
    #[serde(rename = "path")]
    _path: IgnoredAny,
    #[serde(rename = "traces")]
    _traces: IgnoredAny,
}

#[derive(Deserialize)]
struct Report {
    files: Vec<ReportFile>,
}

#[derive(Deserialize)]
struct ReportFile {
    path: JoinedPath,
    traces: Vec<Trace>,
}

#[derive(Deserialize)]
struct Trace {
    line: u32,
    stats: Stats,
}

#[derive(Deserialize)]
enum Stats {
    Line(u64),
    Branch(Outcomes),
    Condition(Vec<Outcomes>),
}

/// Which outcomes of a condition, true or false, the tests reached.
#[derive(Deserialize)]
struct Outcomes {
    been_true: bool,
    been_false: bool,
}

impl Outcomes {
    fn was_reached(&self) -> bool {
        self.been_true || self.been_false
    }
}

impl Stats {
    fn hits(&self) -> u64 {
        match self {
            Self::Line(hits) => *hits,
            Self::Branch(outcomes) => u64::from(outcomes.was_reached()),
            Self::Condition(all) => u64::from(all.iter().any(Outcomes::was_reached)),
        }
    }
}

/// A path that the report stores as an array of components: `["/", "home", "user", "lib.rs"]`.
struct JoinedPath(String);

impl<'de> Deserialize<'de> for JoinedPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PathVisitor)
    }
}

struct PathVisitor;

impl<'de> Visitor<'de> for PathVisitor {
    type Value = JoinedPath;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of path components")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut components: A) -> Result<JoinedPath, A::Error> {
        let mut path = String::new();
        while let Some(component) = components.next_element::<String>()? {
            if !path.is_empty() && !path.ends_with('/') {
                path.push('/');
            }
            path.push_str(&component);
            if path.len() > MAX_PATH_BYTES {
                return Err(Error::custom(format_args!("the path has more than {MAX_PATH_BYTES} bytes")));
            }
        }
        Ok(JoinedPath(path))
    }
}

/// Returns true if the text is a JSON object with the fields of tarpaulin's report.
pub(super) fn is_tarpaulin(text: &str) -> bool {
    serde_json::from_str::<ReportShape>(text).is_ok()
}

/// Parses a report, and adds its lines to the builder.
pub(super) fn read(text: &str, builder: &mut CoverageBuilder) -> Result<(), Damage> {
    let report: Report = serde_json::from_str(text).map_err(|error| Damage::in_json(&error))?;
    for file in report.files {
        let mut lines = builder.source_file(&file.path.0)?;
        for trace in file.traces {
            lines
                .record(trace.line, trace.stats.hits())
                .map_err(|problem| format!("in `{}`: {problem}", file.path.0))?;
        }
    }
    Ok(())
}
