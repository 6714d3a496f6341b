//! Checks the links between the documents, the table of contents, and the names of tests that documents cite.

use std::collections::BTreeSet;
use std::path::Path;

use super::{name, pages, read, readme_and_pages, root};

/// Returns the text without its fenced code blocks.
fn prose(text: &str) -> String {
    let mut inside = false;
    let kept = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns the targets of all links `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let starts = text.split("](").skip(1);
    starts.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_string()).collect()
}

/// Returns the anchors of the headings, spelled as GitHub and mdBook do.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    headings.map(slug).collect()
}

#[test]
fn relative_links_lead_to_existing_files_and_headings() {
    let mut files = readme_and_pages();
    files.extend(
        ["SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md"].map(|file| root().join(file)),
    );
    let mut broken = Vec::new();
    for file in files {
        let text = prose(&read(&file));
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { file.clone() } else { file.parent().unwrap().join(path) };
            let is_there =
                target.exists() && (anchor.is_empty() || anchors(&prose(&read(&target))).contains(anchor));
            if !is_there || path.starts_with('/') {
                broken.push(format!("{}: {link}", name(&file)));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let summary = root().join("docs/SUMMARY.md");
    let listed: BTreeSet<String> = links(&read(&summary)).into_iter().collect();
    let there: BTreeSet<String> = pages()
        .iter()
        .filter(|page| **page != summary)
        .map(|page| page.strip_prefix(root().join("docs")).unwrap().display().to_string())
        .collect();
    assert_eq!(listed, there, "docs/SUMMARY.md and the files of docs/ differ");
}

#[test]
fn readme_is_at_most_150_lines() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines <= 150, "README.md has {lines} lines; 150 are the limit");
}

/// Returns true if this test or test module exists: `launch::limits`,
/// `launch::hostile_agents::garbage_on_the_control_socket_changes_no_decision`.
pub(super) fn is_a_test(path: &str) -> bool {
    let parts: Vec<&str> = path.split("::").collect();
    let directory = root().join("tests").join(parts[0]);
    let file = |name: &str| directory.join(format!("{name}.rs"));
    match parts[..] {
        [_] => directory.is_dir(),
        [_, module] if file(module).exists() => true,
        [_, test] => defines(&directory.join("mod.rs"), test),
        [_, module, test] => defines(&file(module), test),
        _ => false,
    }
}

fn defines(file: &Path, test: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {test}(")))
}

#[test]
fn security_tables_cite_existing_tests() {
    for (page, least) in [("docs/security/boundary.md", 50), ("docs/security/between-runs.md", 20)] {
        let text = read(&root().join(page));
        let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
        let mut cited = 0;
        for row in rows.filter(|row| row.contains("::")) {
            let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
            for test in cell.split('`').skip(1).step_by(2).filter(|word| word.contains("::")) {
                let unit_test = cell.contains("unit tests");
                assert!(unit_test || is_a_test(test), "{page} cites `{test}`: {row}");
                cited += 1;
            }
        }
        assert!(cited >= least, "{page}: only {cited} tests are cited");
    }
}

#[test]
fn everything_that_outlives_a_run_cites_a_test() {
    let text = read(&root().join("docs/security/between-runs.md"));
    let rows = text.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 5, "{row}");
        assert!(cells[4].contains("::"), "no test: {row}");
    }
}
