//! Parses any bytes as a coverage report. The parser must return an error, or outputs that agree with each other and
//! are safe to print.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use guard::work::batch::coverage::{Format, Scope, read_coverage};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = PathBuf::from(format!("/dev/shm/guard-fuzz-coverage-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory in memory");
    path
});

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(DIRECTORY.join("report"), bytes).expect("a file in memory");
    let Ok(coverage) = read_coverage(&DIRECTORY, Some(Path::new("report"))) else { return };
    for &scope in Scope::ALL {
        let Ok(json) = coverage.render(scope, Format::Json) else { continue };
        let json: Value = serde_json::from_str(&json).expect("it is JSON");
        let files = json["files"].as_array().expect("the files");
        for file in files {
            let path = file["path"].as_str().expect("a path");
            let ranges = coverage.uncovered_ranges(path).expect("the file is known");
            assert!(ranges.is_sorted_by(|a, b| a.end() < b.start()));
            let uncovered: u64 = ranges.iter().map(|range| u64::from(range.end() - range.start()) + 1).sum();
            let covered = file["lines_covered"].as_u64().expect("a number");
            assert_eq!(file["lines_total"].as_u64(), Some(covered + uncovered));
        }
        let data = coverage.render(scope, Format::MinizincDzn).expect("the scope has files");
        assert_eq!(data.lines().count(), 7);
        let summary = coverage.render(scope, Format::TextSummary).expect("the scope has files");
        assert_eq!(summary.lines().count(), files.len() + 2);
        assert!(!summary.chars().any(|one| one != '\n' && one.is_control()));
    }
});
