//! `guard diff`: shows all changes on the branch of a run, committed or not, as one diff.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde_json::json;

use crate::cli::args::take_over::Diff;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::quantities::{count, listed};
use crate::cli::{Failure, note};
use crate::git::{Record, Repository, ReviewStart, WholeWork, WorkReader};
use crate::run::transcript::{Run, RunState};
use crate::session::worktree_lookup::{find_or_newest, target_commit};
use crate::text::terminal_text;

/// The maximum number of commits that the JSON output lists.
const MOST_COMMITS: usize = 1_000;

pub(in crate::cli) fn run(args: &Diff, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, record) = find_or_newest(args.run.as_deref())?;
    let paths = pathspecs(&args.paths, &record)?;
    let reader = WorkReader::open(&folder)?;
    let target = target_commit(&record)?;
    let start = if args.since_run { ReviewStart::Run } else { ReviewStart::Fork(target.as_deref()) };
    let work = reader.read(start)?;
    if args.json {
        print_as_json(args, &record, &reader, &work, &paths, out)?;
        return Ok(Exit::Success);
    }
    let text = reader.diff(&work, args.stat, &paths)?;
    writeln!(out, "{}", terminal_text::escape(&headline(&record, &work)))?;
    if io::stdout().is_terminal() {
        write_for_terminal(&text, crate::cli::stdout_colour() && !args.stat, out)?;
    } else {
        out.write_all(&text)?;
    }
    out.flush()?;
    if Run::read(&folder).state == RunState::Running {
        note(
            "guard: note: the run is still in progress; until it ends, the diff shows its commits as uncommitted changes",
        );
    }
    if !work.nested.is_empty() {
        note(&format!("guard: note: the diff leaves out nested git repositories: {}", listed(&work.nested)));
    }
    if !work.too_large.is_empty() {
        note(&format!(
            "guard: note: the diff leaves out the largest uncommitted files, which are together above 1 GiB: {}",
            listed(&work.too_large)
        ));
    }
    if !work.hidden.is_empty() {
        note(&format!(
            "guard: note: the diff contains files that ignore files of the run hide from `git status`: {}",
            listed(&work.hidden)
        ));
    }
    if !work.unreadable.is_empty() {
        note(&format!(
            "guard: note: the diff may lack files in these directories, which git cannot read completely: {}",
            listed(&work.unreadable)
        ));
    }
    Ok(Exit::Success)
}

/// Returns a line that says how many commits and uncommitted paths the diff shows.
fn headline(record: &Record, work: &WholeWork) -> String {
    let branch = record.branch.trim_start_matches("refs/heads/");
    let commits = count(work.commits, "commit");
    match work.uncommitted.len() {
        0 => format!("{branch}: {commits}, no uncommitted changes"),
        paths => format!("{branch}: {commits}, {} not committed", count(paths, "path")),
    }
}

/// Converts paths, which are relative to the current directory as in git, to paths relative to the top of the
/// worktree. If the current directory is not in the run's repository, the paths are relative to the top already.
fn pathspecs(paths: &[OsString], record: &Record) -> Result<Vec<OsString>, Failure> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let current = std::env::current_dir().unwrap_or_default();
    let top = Repository::find(&current)?
        .filter(|repository| repository.common_dir == record.common_dir)
        .and_then(|repository| repository.toplevel);
    let below = top.as_deref().and_then(|top| current.strip_prefix(top).ok()).unwrap_or(Path::new(""));
    paths.iter().map(|path| pathspec(path, below, top.as_deref())).collect()
}

fn pathspec(path: &OsStr, below: &Path, top: Option<&Path>) -> Result<OsString, Failure> {
    // Leave a pathspec with "magic", such as `:(glob)**/*.rs`, to git.
    if path.as_bytes().starts_with(b":") {
        return Ok(path.to_os_string());
    }
    let path = Path::new(path);
    let path =
        top.and_then(|top| path.strip_prefix(top).ok()).map_or_else(|| below.join(path), Path::to_path_buf);
    let mut plain = PathBuf::new();
    for component in path.components() {
        let is_inside = match component {
            Component::Normal(name) => {
                plain.push(name);
                true
            }
            Component::CurDir => true,
            Component::ParentDir => plain.pop(),
            Component::RootDir | Component::Prefix(_) => false,
        };
        if !is_inside {
            return Err(Failure::usage(
                format!("{} is outside of the repository", terminal_text::escape(&path.to_string_lossy())),
                "give paths relative to the current directory",
            ));
        }
    }
    Ok(if plain.as_os_str().is_empty() { OsString::from(".") } else { plain.into_os_string() })
}

/// Prints a diff, and escapes everything in it that could control the terminal.
fn write_for_terminal(text: &[u8], colour: bool, out: &mut dyn Write) -> io::Result<()> {
    let text = String::from_utf8_lossy(text);
    let mut is_in_hunk = false;
    for line in text.strip_suffix('\n').unwrap_or(&text).split('\n') {
        is_in_hunk = (is_in_hunk || line.starts_with("@@ ")) && !line.starts_with("diff ");
        let sequence = match line.bytes().next() {
            _ if !colour => "",
            Some(b'@') => "\x1b[36m",
            _ if !is_in_hunk => "\x1b[1m",
            Some(b'+') => "\x1b[32m",
            Some(b'-') => "\x1b[31m",
            _ => "",
        };
        let reset = if sequence.is_empty() { "" } else { "\x1b[m" };
        writeln!(out, "{sequence}{}{reset}", terminal_text::escape(line))?;
    }
    Ok(())
}

fn print_as_json(
    args: &Diff,
    record: &Record,
    reader: &WorkReader,
    work: &WholeWork,
    paths: &[OsString],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let commits = reader.commits(work, MOST_COMMITS)?;
    let commits: Vec<_> =
        commits.iter().map(|(id, subject)| json!({ "id": id, "subject": subject })).collect();
    let files = reader.changed_files(work, paths)?;
    let files: Vec<_> = files
        .iter()
        .map(|file| {
            let (added, deleted) = file.lines.unzip();
            json!({ "path": text(&file.path), "added": added, "deleted": deleted })
        })
        .collect();
    let mut value = json!({
        "run_id": record.run_id, "branch": record.branch.trim_start_matches("refs/heads/"),
        "base": work.base, "tip": work.tip, "commits": commits, "files": files,
        "uncommitted": work.uncommitted.iter().map(text).collect::<Vec<_>>(),
        "nested_repositories": work.nested.iter().map(text).collect::<Vec<_>>(),
        "too_large": work.too_large.iter().map(text).collect::<Vec<_>>(),
        "hidden": work.hidden.iter().map(text).collect::<Vec<_>>(),
        "unreadable": work.unreadable.iter().map(text).collect::<Vec<_>>(),
    });
    if !args.stat {
        value["patch"] = String::from_utf8_lossy(&reader.diff(work, false, paths)?).into();
    }
    print_json(&value, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_guards_and_control_characters_are_not() {
        let text = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-- old\n+++ \x1b[2Jnew\r\n";
        let mut out = Vec::new();
        write_for_terminal(text, true, &mut out).expect("a vector takes everything");
        let out = String::from_utf8(out).expect("text stays text");
        assert!(out.contains("\x1b[1m+++ b/x\x1b[m\n"), "{out:?}");
        assert!(out.contains("\x1b[31m-- old\x1b[m\n"), "{out:?}");
        assert!(out.contains("\x1b[32m+++ \\u{1b}[2Jnew\\r\x1b[m\n"), "{out:?}");
        let mut out = Vec::new();
        write_for_terminal(text, false, &mut out).expect("a vector takes everything");
        assert!(!out.contains(&0x1b));
    }

    #[test]
    fn paths_are_relative_to_the_current_directory() {
        let spec = |path: &str, below: &str| {
            pathspec(OsStr::new(path), Path::new(below), Some(Path::new("/r"))).ok()
        };
        assert_eq!(spec("a", ""), Some("a".into()));
        assert_eq!(spec("-a", "src"), Some("src/-a".into()));
        assert_eq!(spec("../a/./b", "src"), Some("a/b".into()));
        assert_eq!(spec(".", ""), Some(".".into()));
        assert_eq!(spec("/r/x", "src"), Some("x".into()));
        assert_eq!(spec(":(glob)*.rs", "src"), Some(":(glob)*.rs".into()));
        assert_eq!(spec("../..", "src"), None);
        assert_eq!(spec("/etc", "src"), None);
    }
}
