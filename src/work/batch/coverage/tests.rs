use std::fs;
use std::os::unix::fs::symlink;

use super::builder::MAX_PATH_BYTES;
use super::*;

/// A tracefile as gcovr writes it, without the checksums of some lines.
const LCOV: &str = "\
TN:GCOVR_report
SF:/home/user/project/src/calc.cpp
VER:350d6dcf10777a57230fbc0afe381fad
FN:4,sign(int)
FNDA:3,sign(int)
FN:11,unused(int)
FNDA:0,unused(int)
FNF:2
FNH:1
BRDA:5,0,0,-
BRDA:5,0,1,3
BRF:2
BRH:1
DA:4,3,6632b901eaf5c7ad64f2a81e2d991a8b
DA:5,3,95473ef99b727be68fb46d13e8c542ff
DA:6,0,fee8c7b214afa9ec99fe076561b2025c
DA:8,18446744073709551616
DA:11,0
DA:12,0
DA:13,0
LH:3
LF:7
end_of_record
# A comment, as lcov 2 writes it.
SF:/home/user/project/./src/calc.h
FNF:1
FNH:1
DA:2,3
DA:3,1.5e+3
LH:2
LF:2
end_of_record
";

/// A Cobertura report as gcovr writes it.
const COBERTURA: &str = r#"<?xml version='1.0' encoding='utf-8'?>
<!DOCTYPE coverage SYSTEM 'https://cobertura.example/coverage-04.dtd'>
<coverage line-rate="0.69" branch-rate="0.83" lines-covered="9" lines-valid="13" complexity="0.0" version="gcovr 8.7">
  <sources>
    <source>/home/user/R&amp;D/&#x70;roject</source>
  </sources>
  <packages>
    <package name="src" line-rate="0.69" branch-rate="0.83" complexity="0.0">
      <classes>
        <class name="calc_cpp" filename="src/calc.cpp" line-rate="0.63" branch-rate="0.83" complexity="0.0">
          <methods>
            <method name="sign" signature="(int)" line-rate="0.75" branch-rate="0.75" complexity="0.0">
              <lines>
                <line number="4" hits="3" branch="false"/>
              </lines>
            </method>
          </methods>
          <lines>
            <line number="4" hits="3" branch="false"/>
            <line number="5" hits="3" branch="true" condition-coverage="50% (1/2)">
              <conditions>
                <condition number="0" type="jump" coverage="50%"/>
              </conditions>
            </line>
            <line number="6" hits="0" branch="false"/>
          </lines>
        </class>
        <class name="quoted" filename="src/a&quot;b&lt;c.h" line-rate="1.0">
          <methods/>
          <lines><line number="2" hits="3"/></lines>
        </class>
      </classes>
    </package>
  </packages>
</coverage>
"#;

/// A report in the format of `cargo llvm-cov --json`, for this source with one call, `classify(5)`:
///
/// ```text
///  2 fn classify(number: i32) -> &'static str {
///  3     if number < 0 {
///  4         return "negative";
///  5     }
///  6     match number {
///  7         1..=9 => {
///  8             // a comment
///  9
/// 10             "small"
/// 11         }
/// 12         _ => "large",
/// 13     }
/// 14 }
/// 16 fn never_called(x: u32) -> u32 {
/// 17     let y = x
/// 18         + 1;
/// 19     y * 2
/// 20 }
/// ```
const LLVM_COV: &str = r#"{"data":[{"files":[{"branches":[],"expansions":[],
"filename":"/home/user/project/src/lib.rs","mcdc_records":[],
"segments":[[2,1,1,true,true,false],[2,41,0,false,false,false],[3,8,1,true,true,false],[3,18,0,false,false,false],
[4,16,0,true,true,false],[4,26,0,false,false,false],[5,5,1,true,true,false],[5,6,0,false,false,false],
[6,11,1,true,true,false],[6,17,0,false,false,false],[7,9,1,true,true,false],[7,14,0,false,false,false],
[10,13,1,true,true,false],[10,20,0,false,false,false],[12,14,0,true,true,false],[12,21,0,false,false,false],
[14,1,1,true,true,false],[14,2,0,false,false,false],[16,1,0,true,true,false],[16,31,0,false,false,false],
[17,9,0,true,true,false],[17,10,0,false,false,false],[17,13,0,true,true,false],[18,12,0,false,false,false],
[19,5,0,true,true,false],[19,10,0,false,false,false],[20,1,0,true,true,false],[20,2,0,false,false,false]],
"summary":{"lines":{"count":14,"covered":7,"percent":50}}}],
"functions":[{"branches":[],"count":0,"filenames":["/home/user/project/src/lib.rs"],"name":"never_called",
"regions":[[16,1,16,31,0,0,0,0]]}],"totals":{"lines":{"count":14,"covered":7,"percent":50}}}],
"type":"llvm.coverage.json.export","version":"3.1.0","cargo_llvm_cov":{"version":"0.6.16"}}"#;

const TARPAULIN: &str = r#"{"files":[
{"path":["/","home","user","project","src","lib.rs"],"content":"fn f() {\n}\n","traces":[
{"line":1,"address":[4096,4112],"length":1,"stats":{"Line":2},"fn_name":"f"},
{"line":2,"address":[],"length":0,"stats":{"Line":0},"fn_name":null},
{"line":5,"address":[],"length":0,"stats":{"Branch":{"been_true":true,"been_false":false}},"fn_name":null},
{"line":6,"address":[],"length":0,"stats":{"Condition":[{"been_true":false,"been_false":false}]},"fn_name":null}],
"covered":2,"coverable":4},
{"path":["src","empty.rs"],"content":"","traces":[],"covered":0,"coverable":0}],
"coverage":50.0,"covered":2,"coverable":4}"#;

/// Limits that are small enough for tests to exceed them.
const LIMITS: Limits = Limits { files: 20, lines_per_file: 50, records: 120 };

/// Merges the given texts as if they were the reports in `directory`.
fn merged(directory: &str, reports: &[&str]) -> Coverage {
    let mut builder = CoverageBuilder::new(Path::new(directory), LIMITS);
    for report in reports {
        assert_eq!(parse_report(report.as_bytes(), &mut builder), Ok(true), "{report}");
    }
    builder.finish()
}

fn project(reports: &[&str]) -> Coverage {
    merged("/home/user/project", reports)
}

fn damage(report: impl AsRef<[u8]>) -> Damage {
    let mut builder = CoverageBuilder::new(Path::new("/home/user/project"), LIMITS);
    parse_report(report.as_ref(), &mut builder).expect_err("it is damaged")
}

/// Returns for each file the path, the number of lines, the number of covered lines, and the uncovered ranges.
fn facts(coverage: &Coverage) -> Vec<(&str, usize, usize, Vec<RangeInclusive<u32>>)> {
    let files = coverage.files.iter();
    files
        .map(|(path, lines)| (path.as_str(), lines.total(), lines.covered(), lines.uncovered_ranges()))
        .collect()
}

#[test]
fn lcov() {
    let coverage = project(&[LCOV]);
    assert_eq!(
        facts(&coverage),
        [("src/calc.cpp", 7, 3, vec![6..=6, 11..=13]), ("src/calc.h", 2, 2, vec![])]
    );
    assert_eq!(project(&[&LCOV.replace('\n', "\r\n")]), coverage);
    assert_eq!(project(&[&format!("\u{feff}\n{LCOV}")]), coverage);
}

#[test]
fn cobertura() {
    let coverage = merged("/home/user/R&D/project", &[COBERTURA]);
    assert_eq!(facts(&coverage), [("src/a\"b<c.h", 1, 1, vec![]), ("src/calc.cpp", 3, 2, vec![6..=6])]);
    let empty = project(&[r#"<coverage line-rate="1"/>"#]);
    assert_eq!(facts(&empty), []);
}

#[test]
fn cobertura_files_are_looked_up_in_the_sources() {
    let root = env!("CARGO_MANIFEST_DIR");
    let report = |sources: &str, file: &str| {
        format!(
            "<coverage line-rate='1'><sources>{sources}</sources><class filename='{file}'>\
             <line number='1' hits='1'/></class></coverage>"
        )
    };
    for (sources, file, expected) in [
        (format!("<source>{root}/tests</source><source>{root}/src</source>"), "lib.rs", "src/lib.rs"),
        ("<source>tests</source><source> src </source>".to_string(), "main.rs", "tests/main.rs"),
        ("<source>/app</source>".to_string(), "src/lib.rs", "src/lib.rs"),
        ("<source>/app</source>".to_string(), "src/gone.rs", "/app/src/gone.rs"),
        ("<source/>".to_string(), "src/gone.rs", "src/gone.rs"),
        (format!("<source>{root}</source>"), "/usr/include/stdio.h", "/usr/include/stdio.h"),
    ] {
        assert_eq!(facts(&merged(root, &[&report(&sources, file)])), [(expected, 1, 1, vec![])], "{sources}");
    }
}

#[test]
fn llvm_cov() {
    assert_eq!(facts(&project(&[LLVM_COV])), [("src/lib.rs", 14, 7, vec![4..=4, 12..=12, 16..=20])]);
}

#[test]
fn llvm_cov_segments_become_lines_as_in_llvm() {
    let hits = |segments: &str| {
        let report = format!(
            r#"{{"type":"llvm.coverage.json.export","data":[{{"files":[{{"filename":"a.c","segments":{segments}}}]}}]}}"#
        );
        let coverage = project(&[&report]);
        let lines = &coverage.files["a.c"];
        let uncovered: Vec<u32> = lines.uncovered().collect();
        (lines.total(), uncovered)
    };
    // A region covers the lines up to its end. Exports of LLVM 10 have segments with five values.
    assert_eq!(hits("[[2,1,0,true,true],[5,2,0,false,false]]"), (4, vec![2, 3, 4, 5]));
    // A line with two regions is covered if one of the regions is.
    assert_eq!(
        hits("[[2,1,0,true,true,false],[2,9,4,true,true,false],[2,12,0,false,false,false]]"),
        (1, vec![])
    );
    // The hit count that applies before the line also counts.
    assert_eq!(
        hits("[[1,1,7,true,true,false],[2,1,0,true,true,false],[2,5,0,false,false,false]]"),
        (2, vec![])
    );
    // A skipped region, such as code between `#if 0` and `#endif`, has no lines of code, and neither has the line of
    // its end.
    assert_eq!(
        hits(
            "[[1,1,7,true,true,false],[2,1,0,false,true,false],[4,1,7,true,false,false],[5,2,0,false,false,false]]"
        ),
        (2, vec![])
    );
    // A line that has only a gap region is a line of code, with the hit count that applies before the gap.
    assert_eq!(hits("[[3,1,5,true,true,true],[3,9,0,false,false,false]]"), (1, vec![3]));
    assert_eq!(hits("[]"), (0, vec![]));
}

#[test]
fn tarpaulin() {
    let coverage = project(&[TARPAULIN]);
    assert_eq!(facts(&coverage), [("src/empty.rs", 0, 0, vec![]), ("src/lib.rs", 4, 2, vec![2..=2, 6..=6])]);
}

#[test]
fn merged_reports_keep_the_larger_count_of_each_line() {
    let one = "SF:src/lib.rs\nDA:1,0\nDA:2,5\nDA:3,0\nend_of_record\n";
    let other = "SF:src/lib.rs\nDA:1,2\nDA:2,0\nDA:4,0\nend_of_record\nSF:src/b.rs\nDA:9,0\nend_of_record\n";
    let both = project(&[one, other]);
    assert_eq!(facts(&both), [("src/b.rs", 1, 0, vec![9..=9]), ("src/lib.rs", 4, 2, vec![3..=4])]);
    assert_eq!(project(&[other, one]), both);
    assert_eq!(project(&[LLVM_COV, TARPAULIN, LCOV]), project(&[LCOV, TARPAULIN, LLVM_COV]));
}

#[test]
fn uncovered_ranges_are_found_by_any_spelling_of_the_path() {
    let coverage = project(&[LCOV]);
    assert_eq!(coverage.uncovered_ranges("src/calc.cpp"), Some(vec![6..=6, 11..=13]));
    assert_eq!(coverage.uncovered_ranges("./src/x/../calc.h"), Some(vec![]));
    assert_eq!(coverage.uncovered_ranges("calc.cpp"), None);
    let last = project(&["SF:a\nDA:4294967294,0\nDA:4294967295,0\nend_of_record\n"]);
    assert_eq!(last.uncovered_ranges("a"), Some(vec![u32::MAX - 1..=u32::MAX]));
}

#[test]
fn scopes_select_files_by_their_extension() {
    let paths = [
        "a.c", "a.CC", "a.cpp", "a.cxx", "a.h", "a.hh", "a.hpp", "a.hxx", "a.ipp", "b.rs", "c.py", "cpp",
        "rs",
    ];
    let report: String = paths.iter().map(|path| format!("SF:{path}\nDA:1,1\nend_of_record\n")).collect();
    let coverage = project(&[&report]);
    let count = |scope: &str| {
        let scope = scope.parse().expect("a scope");
        let json = coverage.render(scope, Format::Json).expect("files");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["scope"], scope.as_str());
        json["totals"]["files"].as_u64().expect("a number")
    };
    assert_eq!((count("all"), count("cpp"), count("rust")), (13, 9, 1));
    assert!("c++".parse::<Scope>().is_err());

    let none = project(&[TARPAULIN]).render(Scope::Cpp, Format::Json).expect_err("no C++");
    assert_eq!(
        none.to_string(),
        "the coverage reports list no source files in the scope `cpp`; use the scope `all`, or generate a \
         report that covers files in this scope"
    );
    let none = project(&["TN:\n"]).render(Scope::All, Format::Json).expect_err("no files");
    assert!(none.to_string().ends_with("run the tests with coverage and generate a new report"), "{none}");
}

/// Returns the coverage of files with unusual paths and percentages, such as control characters in a name, or a file
/// without lines.
fn odd_files() -> Coverage {
    let file = |path: &str, lines: &str| format!("SF:{path}\n{lines}end_of_record\n");
    let many: String = (1..=10).map(|number| format!("DA:{},0\n", 2 * number)).collect();
    project(&[
        &file("src/a.cpp", "DA:1,1\nDA:3,0\nDA:4,0\nDA:7,0\nDA:8,2\nDA:9,2\n"),
        &file("src/empty.rs", ""),
        &file("src/third.rs", "DA:1,1\nDA:2,1\nDA:3,0\n"),
        &file("we\"ird\\(1)\u{9b}\u{202e}é.rs", &many),
        r#"{"files":[{"path":["tab\tline\nend\r.rs"],"traces":[{"line":1,"stats":{"Line":1}}]}]}"#,
    ])
}

#[test]
fn minizinc_data() {
    assert_eq!(
        odd_files().render(Scope::All, Format::MinizincDzn).expect("files"),
        "files = [\"src/a.cpp\", \"src/empty.rs\", \"src/third.rs\", \"tab\\tline\\nend\u{fffd}.rs\", \
         \"we\\\"ird\\\\(1)\u{fffd}\u{fffd}é.rs\"];\n\
         lines_total = [6, 0, 3, 1, 10];\n\
         lines_covered = [3, 0, 2, 1, 0];\n\
         coverage_percent = [50.00, 100.00, 66.66, 100.00, 0.00];\n\
         uncovered = [{3,4,7}, {}, {3}, {}, {2,4,6,8,10,12,14,16,18,20}];\n\
         total_lines = 20;\n\
         covered_lines = 6;\n"
    );
}

#[test]
fn json() {
    let text = odd_files().render(Scope::All, Format::Json).expect("files");
    assert_eq!(
        text,
        concat!(
            r#"{"scope":"all","totals":{"files":5,"lines_total":20,"lines_covered":6,"percent":30.0},"files":["#,
            r#"{"path":"src/a.cpp","lines_total":6,"lines_covered":3,"percent":50.0,"uncovered":["3-4","7"]},"#,
            r#"{"path":"src/empty.rs","lines_total":0,"lines_covered":0,"percent":100.0,"uncovered":[]},"#,
            r#"{"path":"src/third.rs","lines_total":3,"lines_covered":2,"percent":66.66,"uncovered":["3"]},"#,
            r#"{"path":"tab\tline\nend\r.rs","lines_total":1,"lines_covered":1,"percent":100.0,"uncovered":[]},"#,
            r#"{"path":"we\"ird\\(1)\u009b\u202eé.rs","lines_total":10,"lines_covered":0,"percent":0.0,"#,
            r#""uncovered":["2","4","6","8","10","12","14","16","18","20"]}]}"#,
            "\n"
        )
    );
    let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(parsed["files"][4]["path"], "we\"ird\\(1)\u{9b}\u{202e}é.rs");
}

#[test]
fn text_summary() {
    assert_eq!(
        odd_files().render(Scope::All, Format::TextSummary).expect("files"),
        "   lines   covered   percent  file\n       \
         6         3    50.00%  src/a.cpp  (not covered: 3-4, 7)\n       \
         0         0   100.00%  src/empty.rs\n       \
         3         2    66.66%  src/third.rs  (not covered: 3)\n       \
         1         1   100.00%  tab\u{fffd}line\u{fffd}end\u{fffd}.rs\n      \
         10         0     0.00%  we\"ird\\(1)\u{fffd}\u{fffd}é.rs  (not covered: 2, 4, 6, 8, 10, 12, 14, 16 and 2 more)\n      \
         20         6    30.00%  total of 5 files\n"
    );
    let summary = odd_files().render(Scope::Cpp, Format::TextSummary).expect("files");
    assert!(summary.ends_with("       6         3    50.00%  total of 1 file\n"), "{summary}");
}

#[test]
fn damaged_reports_name_the_line_and_the_problem() {
    for (report, line, problem) in [
        ("SF:a.c\nDA:1,1\n", Some(1), "the section that begins here has no `end_of_record`"),
        ("TN:\nDA:1,1\n", Some(2), "`DA:1,1` is not in a section (`SF:`)"),
        ("SF:a.c\nDA:1\nend_of_record\n", Some(2), "`DA:1` has no hit count"),
        ("SF:a.c\nDA:x,1\nend_of_record\n", Some(2), "`x` is not a line number"),
        (
            "SF:a.c\nDA:0,1\nend_of_record\n",
            Some(2),
            "a source line has the number 0; the first line is line 1",
        ),
        ("SF:a.c\nDA:4294967296,1\nend_of_record\n", Some(2), "`4294967296` is not a line number"),
        ("SF:a.c\n\nDA:1,-1\nend_of_record\n", Some(3), "`-1` is not a hit count"),
        ("SF:a.c\nDA:1,inf\nend_of_record\n", Some(2), "`inf` is not a hit count"),
        ("SF:a.c\nXY:1\nend_of_record\n", Some(2), "`XY:1` is not a record of an lcov tracefile"),
        ("SF:a.c\nSF:b.c\nend_of_record\n", Some(2), "`SF:b.c` is not a record of an lcov tracefile"),
        ("SF:\nend_of_record\n", Some(1), "the path of a source file is empty"),
        ("SF:src/..\nend_of_record\n", Some(1), "the path `src/..` is a directory, not a source file"),
        (
            "<coverage line-rate='1'>\n<class>\n</class></coverage>",
            Some(2),
            "a `class` element has no attribute `filename`",
        ),
        ("<coverage line-rate='1'>\n<class filename='a'>", Some(2), "the report ends inside an element"),
        (
            "<coverage line-rate='1'>\n</packages>",
            Some(2),
            "ill-formed document: expected `</coverage>`, but `</packages>` was found",
        ),
        (
            "<coverage line-rate='1'><class filename='a'>\n<line number='1' hits='?'/></class></coverage>",
            Some(2),
            "`?` is not a hit count",
        ),
        (
            "<coverage line-rate='1'><class filename='a'><class filename='b'/></class></coverage>",
            Some(1),
            "a `class` element is inside another one",
        ),
        (
            "<!DOCTYPE a [<!ENTITY b 'c'>]>\n<coverage line-rate='1'><sources><source>&b;</source></sources></coverage>",
            Some(2),
            "the entity `&b;` is unknown",
        ),
        ("{\"type\":\n\"llvm", Some(2), "EOF while parsing a string"),
        ("{\"type\":\"llvm.coverage.json.export\"}", Some(1), "missing field `data`"),
        (
            r#"{"type":"llvm.coverage.json.export","data":[{"files":[{"filename":"a.c"}]}]}"#,
            None,
            "`a.c` has no segments; export without `--summary-only`",
        ),
        (
            r#"{"type":"llvm.coverage.json.export","data":[{"files":[{"filename":"a.c","segments":[[1,1,0]]}]}]}"#,
            Some(1),
            "invalid length 3, expected a segment: [line, column, count, has_count, is_region_entry, is_gap]",
        ),
        (
            r#"{"type":"llvm.coverage.json.export","data":[{"files":[{"filename":"a.c","segments":[[2,1,0,true,true,false],[1,1,0,true,true,false]]}]}]}"#,
            None,
            "in `a.c`: the segments are not in order: one of line 1 follows one of line 2",
        ),
        (
            r#"{"files":[{"path":["a.rs"],"traces":[{"line":0,"stats":{"Line":1}}]}]}"#,
            None,
            "in `a.rs`: a source line has the number 0; the first line is line 1",
        ),
        (
            r#"{"files":[{"path":["a.rs"],"traces":[{"line":1,"stats":{"Word":1}}]}]}"#,
            Some(1),
            "unknown variant `Word`, expected one of `Line`, `Branch`, `Condition`",
        ),
    ] {
        assert_eq!(damage(report), Damage { line, problem: problem.to_string() }, "{report}");
    }
    let bad_bytes = damage(b"SF:a.c\nDA:1,1\nSF:\xff\n");
    assert_eq!(bad_bytes, Damage::at_line(3, "the text is not valid UTF-8".to_string()));
}

#[test]
fn other_formats_are_not_recognised() {
    for text in [
        "",
        "\n# only a comment\n",
        "mode: set\nexample.go:1.2,3.4 1 1\n",
        "<coverage generated=\"1\" clover=\"3.2.0\"><project/></coverage>",
        "<html></html>",
        "{}",
        "{\"type\":5}",
        "{\"files\":{\"a.py\":{}}}",
        "{\"gcovr/format_version\":\"0.15\",\"files\":[{\"file\":\"a.c\",\"lines\":[]}]}",
        "[1]",
    ] {
        let mut builder = CoverageBuilder::new(Path::new("/nonexistent"), LIMITS);
        assert_eq!(parse_report(text.as_bytes(), &mut builder), Ok(false), "{text}");
    }
}

#[test]
fn every_size_is_limited() {
    let longest = "a".repeat(MAX_PATH_BYTES);
    project(&[&format!("SF:{longest}\nend_of_record\n")]);
    let too_long = format!("the path of a source file has more than {MAX_PATH_BYTES} bytes");
    assert_eq!(damage(format!("SF:{longest}a\nend_of_record\n")), Damage::at_line(1, too_long));
    let components = format!(r#"{{"files":[{{"path":["a","{longest}"],"traces":[]}}]}}"#);
    assert_eq!(damage(components).problem, format!("the path has more than {MAX_PATH_BYTES} bytes"));
    let source = format!("<coverage line-rate='1'><source>{longest}a</source></coverage>");
    assert_eq!(damage(source).problem, format!("a `source` element has more than {MAX_PATH_BYTES} bytes"));

    let files: String = (0..=LIMITS.files).map(|number| format!("SF:{number}\nend_of_record\n")).collect();
    let too_many = format!("the reports list more than {} source files", LIMITS.files);
    assert_eq!(damage(files), Damage::at_line(2 * LIMITS.files + 1, too_many));

    let spanning = |last: usize, copies: usize| {
        let file = format!(
            r#"{{"filename":"a.c","segments":[[1,1,0,true,true,false],[{last},1,0,false,false,false]]}}"#
        );
        let files = vec![file; copies].join(",");
        format!(r#"{{"type":"llvm.coverage.json.export","data":[{{"files":[{files}]}}]}}"#)
    };
    assert_eq!(project(&[&spanning(LIMITS.lines_per_file, 1)]).files["a.c"].total(), LIMITS.lines_per_file);
    let too_many = format!("in `a.c`: a source file has more than {} lines", LIMITS.lines_per_file);
    assert_eq!(damage(spanning(4_000_000_000, 1)).problem, too_many);
    let too_many = format!("in `a.c`: the reports list more than {} lines", LIMITS.records);
    assert_eq!(damage(spanning(LIMITS.lines_per_file, 3)).problem, too_many);

    let nested = format!("<coverage line-rate='1'>{}", "<a>".repeat(100_000));
    assert_eq!(damage(nested).problem, "elements are nested more than 64 levels deep");
    let nested = format!(r#"{{"type":"x","files":{}"#, "[".repeat(100_000));
    assert_eq!(damage(nested).line, Some(1));
    let sources = "<source>.</source>".repeat(65);
    let sources = format!("<coverage line-rate='1'>{sources}</coverage>");
    assert_eq!(damage(sources).problem, "there are more than 64 `source` elements");
}

/// A temporary directory, which is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("guard-coverage-{}", uuid::Uuid::now_v7()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn paths(&self) -> Vec<String> {
        read_coverage(&self.0, None).expect("reports").files.into_keys().collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns an lcov report with one line of the source file `path`.
fn line_of(path: &str) -> String {
    format!("SF:{path}\nDA:1,1\nend_of_record\n")
}

#[test]
fn reports_are_found_in_the_usual_places() {
    let scratch = Scratch::new();
    for (place, source) in [
        ("lcov.info", "root.rs"),
        ("unit.lcov", "suffix.rs"),
        ("target/lcov.info", "target.rs"),
        ("target/llvm-cov/x/coverage.info", "llvm_cov.rs"),
        ("target/tarpaulin/lcov.info", "tarpaulin.rs"),
        ("target/coverage/lcov.info", "coverage.rs"),
        ("build/a/b/c/coverage.info", "build.c"),
        ("coverage/lcov.info", "coverage.c"),
        // The search must not read any of these files.
        ("src/lcov.info", "elsewhere"),
        ("target/debug/lcov.info", "elsewhere"),
        ("build/a/b/c/d/lcov.info", "elsewhere"),
        ("lcov.info.txt", "elsewhere"),
    ] {
        scratch.write(place, &line_of(source));
    }
    scratch.write("coverage.json", "{\"meta\":{},\"files\":{\"a.py\":{}}}");
    scratch.write("build/coverage.xml/file", "a directory with the name of a report");
    assert_eq!(
        scratch.paths(),
        [
            "build.c",
            "coverage.c",
            "coverage.rs",
            "llvm_cov.rs",
            "root.rs",
            "suffix.rs",
            "target.rs",
            "tarpaulin.rs"
        ]
    );
}

#[test]
fn a_search_follows_no_links() {
    let (scratch, outside) = (Scratch::new(), Scratch::new());
    scratch.write("lcov.info", &line_of("root.rs"));
    outside.write("lcov.info", &line_of("outside.rs"));
    symlink(&outside.0, scratch.0.join("build")).expect("a link");
    symlink(&outside.0, scratch.0.join("target")).expect("a link");
    symlink(outside.0.join("lcov.info"), scratch.0.join("coverage.info")).expect("a link");
    fs::create_dir(scratch.0.join("coverage")).expect("a directory");
    symlink(&outside.0, scratch.0.join("coverage/more")).expect("a link");
    nix::unistd::mkfifo(&scratch.0.join("pipe.lcov"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert_eq!(scratch.paths(), ["root.rs"]);
}

#[test]
fn a_directory_without_reports_is_an_error_that_says_what_to_do() {
    let scratch = Scratch::new();
    scratch.write("coverage.json", "{}");
    let error = read_coverage(&scratch.0, None).expect_err("no report");
    assert_eq!(
        error.to_string().replace(&scratch.0.display().to_string(), "DIR"),
        "no coverage report found in DIR (in no known format: coverage.json); looked in ., target, target/llvm-cov, \
         target/tarpaulin, target/coverage, build, coverage for lcov.info, coverage.info, *.lcov, cobertura.xml, \
         coverage.xml, llvm-cov.json, coverage.json, tarpaulin-report.json; make one with `cargo llvm-cov --lcov \
         --output-path lcov.info`, `cargo tarpaulin --out Json` or `gcovr --cobertura coverage.xml`, or set the \
         parameter `report` to the path of the report"
    );
    let error = read_coverage(&scratch.0.join("gone"), None).expect_err("no directory");
    assert!(matches!(error, CoverageError::Search { .. }), "{error}");
}

#[test]
fn too_many_reports_are_an_error() {
    let scratch = Scratch::new();
    for number in 0..33 {
        scratch.write(&format!("build/{number}.lcov"), &line_of("a.c"));
    }
    let error = read_coverage(&scratch.0, None).expect_err("too many");
    assert!(
        error
            .to_string()
            .ends_with("found more than 32 reports; set the parameter `report` to the path of the report"),
        "{error}"
    );
}

#[test]
fn a_damaged_report_is_named() {
    let scratch = Scratch::new();
    scratch.write("lcov.info", &line_of("a.c"));
    scratch.write("build/bad\u{1b}[2J.lcov", "SF:a\nDA:1,\u{1b}]0;x\u{7}\nend_of_record\n");
    let error = read_coverage(&scratch.0, None).expect_err("damaged");
    assert_eq!(
        error.to_string(),
        "cannot use the coverage report build/bad\u{fffd}[2J.lcov:2: `\u{fffd}]0;x\u{fffd}` is not a hit count; generate \
         it again, or set the parameter `report` to another report"
    );
}

#[test]
fn a_named_report_must_be_below_the_directory() {
    let (scratch, outside) = (Scratch::new(), Scratch::new());
    scratch.write("reports/any name", &line_of("a.rs"));
    scratch.write("notes.txt", "hello");
    outside.write("lcov.info", &line_of("outside.rs"));
    symlink(&outside.0, scratch.0.join("linked")).expect("a link");
    symlink("any name", scratch.0.join("reports/link")).expect("a link");
    nix::unistd::mkfifo(&scratch.0.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    fs::File::create(scratch.0.join("large")).and_then(|file| file.set_len((64 << 20) + 1)).expect("a file");

    let read = |report: &Path| read_coverage(&scratch.0, Some(report));
    for report in ["reports/any name", "./reports//any name"] {
        assert_eq!(read(Path::new(report)).expect(report).uncovered_ranges("a.rs"), Some(vec![]));
    }
    read(&scratch.0.join("reports/any name")).expect("an absolute path");
    let real = scratch.0.canonicalize().expect("a path");
    read(&real.join("reports/any name")).expect("an absolute path without links");

    let absolute = outside.0.join("lcov.info");
    for report in
        [Path::new("reports/../notes.txt"), Path::new(".."), Path::new("."), Path::new(""), &absolute]
    {
        let refused = read(report).expect_err("it is outside");
        assert!(matches!(refused, CoverageError::OutsideDirectory { .. }), "{refused}");
    }
    for (report, link) in [("linked/lcov.info", "linked"), ("reports/link", "reports/link")] {
        let refused = read(Path::new(report)).expect_err("it is a link");
        let text = format!(
            "the path of the coverage report {report} contains the symbolic link {link}; set the parameter `report` \
             to the path of the file itself"
        );
        assert_eq!(refused.to_string(), text);
    }
    for (report, problem) in [
        ("pipe", "the path is not a regular file"),
        ("reports", "the path is not a regular file"),
        ("large", "the file has 67108865 bytes, and the limit is 67108864"),
        ("gone/lcov.info", "No such file or directory (os error 2)"),
        ("notes.txt/lcov.info", "Not a directory (os error 20)"),
    ] {
        let refused = read(Path::new(report)).expect_err("it cannot be read");
        assert_eq!(refused.to_string(), format!("cannot read the coverage report {report}: {problem}"));
    }
    let refused = read(Path::new("notes.txt")).expect_err("it is no report");
    assert!(matches!(refused, CoverageError::UnknownFormat { .. }), "{refused}");
}

/// Parses bytes as a report, and renders the result in every format. Must not panic.
fn read_and_render(bytes: &[u8]) {
    let mut builder = CoverageBuilder::new(Path::new("/home/user/project"), LIMITS);
    if parse_report(bytes, &mut builder) != Ok(true) {
        return;
    }
    let coverage = builder.finish();
    for &scope in Scope::ALL {
        for &format in Format::ALL {
            let Ok(text) = coverage.render(scope, format) else { continue };
            assert!(!text.chars().any(|one| one != '\n' && terminal_text::is_unsafe(one)), "{text:?}");
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_answered(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400),
        text in "[\\n -~é<>&;,:]{0,200}",
    ) {
        read_and_render(&bytes);
        for start in ["SF:", "TN:\n", "<coverage line-rate='1'>", "{\"type\":\"llvm.coverage.json.export\",", "{\"files\":["] {
            read_and_render(&[start.as_bytes(), &bytes].concat());
            read_and_render(format!("{start}{text}").as_bytes());
        }
    }

    #[test]
    fn changed_reports_are_answered(
        which in 0_usize..4,
        changes in proptest::collection::vec((proptest::num::usize::ANY, 0_usize..6, proptest::num::u8::ANY), 1..8),
    ) {
        let mut bytes = [LCOV, COBERTURA, LLVM_COV, TARPAULIN][which].as_bytes().to_vec();
        for (at, removed, added) in changes {
            let at = at % (bytes.len() + 1);
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, [added]);
        }
        read_and_render(&bytes);
    }
}
