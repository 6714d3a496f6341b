//! Searches a directory's `AGENT_MEMORY.md`, in which agents take notes, and the past runs in this directory for
//! keywords.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::path::Path;

use super::model::{TaskFailure, TaskKind};
use crate::run::transcript::Store;
use crate::sys::directory::Directory;
use crate::sys::fs::OpenError;

/// The file in which agents write down what they learnt about a project.
const MEMORY_FILE: &str = "AGENT_MEMORY.md";
/// The maximum size of the memory file, in bytes.
const LARGEST_FILE: u64 = 16 << 20;
/// The maximum size of a summary, in bytes. guard leaves out entries that do not fit.
const LARGEST_SUMMARY: usize = 256 << 10;
/// The maximum number of past runs that guard searches, beginning with the newest.
const MOST_SEARCHED: usize = 500;
/// The maximum number of past runs in a summary.
const MOST_NAMED: usize = 20;

/// Returns the entries of the memory file that mention at least one keyword, and a list of the past runs that do;
/// without keywords, all of them. If there are none, the returned text says so. `[cut]` marks entries that are left out
/// because the summary would become too large.
pub(super) fn summarise(directory: &Path, runs: &Path, keywords: &[String]) -> Result<String, TaskFailure> {
    let keywords: Vec<String> = keywords.iter().map(|word| word.to_lowercase()).collect();
    let mentions = |text: &str| {
        let text = text.to_lowercase();
        keywords.is_empty() || keywords.iter().any(|word| text.contains(word))
    };
    let mut summary = String::new();
    for entry in entries(&read_memory(directory)?).into_iter().filter(|entry| mentions(entry)) {
        append_entry(&mut summary, entry);
    }
    let past = past_runs(directory, runs, &mentions);
    if !past.is_empty() {
        append_entry(&mut summary, &format!("## Past runs\n{past}"));
    }
    if summary.is_empty() {
        summary = if keywords.is_empty() {
            format!("{MEMORY_FILE} has no entries, and there are no past runs\n")
        } else {
            format!(
                "no entry of {MEMORY_FILE} and no past run mentions any of these keywords: {}\n",
                keywords.join(", ")
            )
        };
    }
    Ok(summary)
}

fn append_entry(summary: &mut String, entry: &str) {
    if summary.len() + entry.len() <= LARGEST_SUMMARY {
        let _ = writeln!(summary, "{}\n", entry.trim_end());
    } else if !summary.ends_with("[cut]\n") {
        summary.push_str("[cut]\n");
    }
}

/// Returns the text of the memory file; an empty text if there is no such file. Fails if the file is not a regular file, is
/// larger than `LARGEST_FILE`, or is reached through a link.
fn read_memory(directory: &Path) -> Result<String, TaskFailure> {
    let path = directory.join(MEMORY_FILE);
    let bad = |problem: &dyn std::fmt::Display| {
        TaskFailure::permanent(TaskKind::MissingInput, format!("cannot read {}: {problem}", path.display()))
    };
    // The path had no links when the task was submitted. An agent may have put one there since, also in the place of the
    // memory file or of a directory above it.
    let below = directory.strip_prefix("/").map_err(|error| bad(&error))?;
    let root = Directory::open(Path::new("/")).map_err(|error| bad(&error))?;
    let directory = root.below(below, false).map_err(|error| bad(&error))?;
    match directory.read(OsStr::new(MEMORY_FILE), LARGEST_FILE) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(OpenError::Io(error)) if error.raw_os_error() == Some(libc::ELOOP) => {
            Err(bad(&"the file is a symbolic link"))
        }
        Err(error) => Err(bad(&error)),
    }
}

/// Splits a Markdown text into entries at its headings; the text before the first heading is also an entry. In a text
/// without headings, each paragraph is an entry.
fn entries(text: &str) -> Vec<&str> {
    let is_heading = |line: &str| line.starts_with('#');
    if !text.lines().any(is_heading) {
        return text.split("\n\n").filter(|part| !part.trim().is_empty()).collect();
    }
    let mut starts: Vec<usize> = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if is_heading(line) {
            starts.push(at);
        }
        at += line.len();
    }
    if starts.first() != Some(&0) {
        starts.insert(0, 0);
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &text[*start..end])
        .filter(|part| !part.trim().is_empty())
        .collect()
}

/// Returns one line for each past run whose command or answer mentions a keyword, newest first and at most `MOST_NAMED`
/// lines. Only runs whose repository (or else directory) is `directory` or below it count, and those in the repository that
/// contains `directory`: a client of a server may name only directories below its roots, so runs elsewhere must not show.
/// The result is empty if the runs cannot be listed.
fn past_runs(directory: &Path, runs: &Path, mentions: &dyn Fn(&str) -> bool) -> String {
    let store = Store::new(runs.to_path_buf());
    let Ok(newest) = store.newest_first() else { return String::new() };
    let repository = directory.ancestors().find(|above| above.join(".git").exists());
    let mut lines = String::new();
    let mut named = 0;
    for run in newest.take(MOST_SEARCHED) {
        let place = run.repository().or_else(|| run.directory());
        if !place.is_some_and(|place| place.starts_with(directory) || Some(place) == repository) {
            continue;
        }
        let command = run.command().join(" ");
        let answer = run
            .last
            .as_ref()
            .and_then(|event| event.data.get("result"))
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        if !mentions(&command) && !mentions(answer) {
            continue;
        }
        let first_line: String = answer.lines().next().unwrap_or_default().chars().take(200).collect();
        let command: String = command.chars().take(200).collect();
        let started = run.started().map(|time| time.to_string()).unwrap_or_default();
        let _ = writeln!(lines, "- {started} `{command}`: {first_line}");
        named += 1;
        if named == MOST_NAMED {
            break;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_is_split_at_its_headings() {
        assert_eq!(entries("intro\n# A\none\n## B\ntwo\n"), ["intro\n", "# A\none\n", "## B\ntwo\n"]);
        assert_eq!(entries("first\n\nsecond\n"), ["first", "second\n"]);
        assert!(entries("\n\n").is_empty());
    }

    #[test]
    fn keywords_select_entries_in_any_case() -> io::Result<()> {
        let scratch = std::env::temp_dir().canonicalize()?;
        let directory = scratch.join(format!("guard-memory-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir_all(&directory)?;
        std::fs::write(
            directory.join(MEMORY_FILE),
            "# Loop\nThe ooda loop.\n# Rust\nOxidation begins.\n# Other\nx\n",
        )?;
        let find = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
            summarise(&directory, &directory.join("runs"), &words).map_err(|failure| failure.message)
        };
        let both = find(&["OODA", "oxidation"]).unwrap_or_default();
        assert!(
            both.contains("ooda loop") && both.contains("Oxidation") && !both.contains("Other"),
            "{both}"
        );
        assert!(find(&["nothing like it"]).is_ok_and(|text| text.contains("no entry")));
        std::fs::remove_file(directory.join(MEMORY_FILE))?;
        std::os::unix::fs::symlink("/etc/passwd", directory.join(MEMORY_FILE))?;
        assert!(find(&["root"]).is_err());
        // A link that takes the place of a directory after the submission must not lead elsewhere.
        let elsewhere = directory.with_extension("elsewhere");
        std::fs::create_dir(&elsewhere)?;
        std::fs::write(elsewhere.join(MEMORY_FILE), "the user's own notes")?;
        std::fs::remove_dir_all(&directory)?;
        std::os::unix::fs::symlink(&elsewhere, &directory)?;
        assert!(find(&[]).is_err_and(|problem| problem.contains("is a symbolic link")));
        std::fs::remove_dir_all(&elsewhere)?;
        std::fs::remove_file(&directory)?;
        std::fs::create_dir(&directory)?;
        std::fs::remove_dir_all(&directory)
    }
}
