//! Reads and writes a task's documents: those that agents write, and those that all tasks share (backlog, lessons,
//! notes).
//!
//! Agents can create anything in the worktree, so this module follows no symbolic links and limits how much it reads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::workflow::model::Document;
use crate::sys::copy_tree::{Entry, open_entry};

/// The maximum size of a document, in bytes.
const LARGEST: u64 = 4 << 20;
/// Maximum number of entries that `is_plain_directory` visits.
const MOST_VISITED: usize = 20_000;

/// Reads the regular file at `path` below `directory`; `None` if it does not exist. Fails if the file is larger than
/// `LARGEST`, or if a part of the path is a symbolic link, because an agent may have pointed the link anywhere.
pub(crate) fn read(directory: &Path, path: &str) -> io::Result<Option<String>> {
    let found = File::open(directory).and_then(|top| open_entry(top.as_fd(), Path::new(path)));
    let found = match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let mut bytes = Vec::new();
    if let Entry::Opened(file) = found
        && file.metadata()?.is_file()
    {
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= LARGEST {
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    let at = directory.join(path);
    let problem = format!("{} is not a regular file of at most {LARGEST} bytes", at.display());
    Err(io::Error::other(problem))
}

/// Writes a file at `path` below `directory` and creates missing parents. Fails if a part of the path is a symbolic
/// link.
pub(crate) fn write(directory: &Path, path: &str, text: &str) -> io::Result<()> {
    check_parents(directory, path, true)?;
    let place = directory.join(path);
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(flags)
        .open(&place)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// Removes the file at `path` below `directory`; a missing file is not an error. If the file is a symbolic link,
/// removes only the link. Fails if a parent on the path is a symbolic link.
pub(crate) fn remove(directory: &Path, path: &str) -> io::Result<()> {
    if !check_parents(directory, path, false)? {
        return Ok(());
    }
    match fs::remove_file(directory.join(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// True if `path` is a regular file that is reached without symbolic links and has no second hard link, so that writing
/// to it changes only this file.
pub(crate) fn is_plain(directory: &Path, path: &str) -> bool {
    let is_there = check_parents(directory, path, false).unwrap_or(false);
    let is_plain = |found: fs::Metadata| found.is_file() && found.nlink() == 1;
    is_there && directory.join(path).symlink_metadata().is_ok_and(is_plain)
}

/// True if `path` is a directory that is reached without symbolic links, contains only directories and regular files
/// with one hard link, at most `MOST_VISITED` of them, and contains no git repository.
pub(crate) fn is_plain_directory(directory: &Path, path: &str) -> bool {
    let is_there = check_parents(directory, &format!("{path}/."), false).unwrap_or(false);
    is_there && contains_only_plain(&directory.join(path), &mut 0)
}

/// True if a directory contains only directories and regular files with one hard link, and no git repository. `seen`
/// counts the visited entries, of which there may be at most `MOST_VISITED`.
fn contains_only_plain(directory: &Path, seen: &mut usize) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    for entry in entries {
        *seen += 1;
        let found = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)));
        let Ok((path, found)) = found else { return false };
        // git ignores the contents of a nested repository, so guard could not detect changes there.
        let is_repository = path.file_name().is_some_and(|name| name.eq_ignore_ascii_case(".git"));
        let is_plain =
            (found.is_file() && found.nlink() == 1) || (found.is_dir() && contains_only_plain(&path, seen));
        if is_repository || !is_plain || *seen > MOST_VISITED {
            return false;
        }
    }
    true
}

/// Makes it possible to write a file at `path`. Moves the first obstacle on the path to the directory `aside`: a
/// parent that is not a directory, or anything at `path` itself that is not a regular file with one hard link.
pub(crate) fn clear(directory: &Path, path: &str, aside: &Path) -> io::Result<()> {
    let mut at = directory.to_path_buf();
    let parts: Vec<&str> = path.split('/').collect();
    for (index, part) in parts.iter().enumerate() {
        at.push(part);
        let Ok(found) = at.symlink_metadata() else { return Ok(()) };
        let is_last = index + 1 == parts.len();
        // Writing to a file with a second hard link would also change the file under its other name.
        let is_plain = if is_last { found.is_file() && found.nlink() == 1 } else { found.is_dir() };
        if is_plain {
            continue;
        }
        fs::create_dir_all(aside)?;
        fs::rename(&at, aside.join(uuid::Uuid::now_v7().to_string()))?;
        return Ok(());
    }
    Ok(())
}

/// Checks that all parents of a path are directories; a symbolic link or a file among them is an error. With
/// `creates`, creates missing directories; otherwise returns false if one is missing.
fn check_parents(directory: &Path, path: &str, creates: bool) -> io::Result<bool> {
    let mut at = directory.to_path_buf();
    let Some((way, _)) = path.rsplit_once('/') else { return Ok(true) };
    for part in way.split('/') {
        at.push(part);
        match at.symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(io::Error::other(format!("{} is not a directory", at.display()))),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if creates => fs::create_dir(&at)?,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Describes what a document lacks, worded as the end of a sentence for the agent ("is empty"); `None` if the document
/// is complete.
pub(crate) fn missing(document: &Document, text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("is empty".to_string());
    }
    let headings: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with('#') || line.starts_with("**"))
        .map(|line| line.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase())
        .collect();
    let has = |words: &Vec<String>| {
        words.iter().any(|word| headings.iter().any(|heading| heading.contains(&word.to_lowercase())))
    };
    let absent: Vec<&str> = document
        .sections
        .iter()
        .filter(|words| !has(words))
        .filter_map(|words| words.first().map(String::as_str))
        .collect();
    if !absent.is_empty() {
        return Some(format!("has no heading for: {}", absent.join(", ")));
    }
    if document.checklist { unticked(text) } else { None }
}

/// Describes what is wrong with a checklist: an item is not ticked, or there is no ticked item. `None` if there are
/// items and all are ticked.
fn unticked(text: &str) -> Option<String> {
    let items: Vec<&str> = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches(['-', '*', '+', ' ']))
        .filter(|line| line.starts_with('['))
        .collect();
    let has_mark = |item: &&&str, mark: &str| item.strip_prefix(mark).is_some();
    if let Some(open) = items.iter().find(|item| has_mark(item, "[ ]") || has_mark(item, "[]")) {
        return Some(format!("has an item that is not ticked: {open}"));
    }
    let is_ticked = |item: &&str| item.starts_with("[x]") || item.starts_with("[X]");
    (!items.iter().any(is_ticked)).then(|| "has no ticked item (`- [x] …`)".to_string())
}

/// Appends new items to the text of a list file. If the text is empty, begins it with the heading `title`. Skips items
/// that the list already has, whatever their case and spacing. Returns `None` if no item is new.
pub(crate) fn append_items(text: &str, title: &str, items: &[String]) -> Option<String> {
    let plain = |line: &str| -> String {
        line.trim_start_matches(['-', '*', ' '])
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .to_lowercase()
    };
    let mut known: Vec<String> = text.lines().map(plain).collect();
    let mut out = if text.trim().is_empty() { format!("# {title}\n\n") } else { text.to_string() };
    if !out.ends_with('\n') {
        out.push('\n');
    }
    let mut is_new = false;
    for item in items {
        let key = plain(item);
        if key.is_empty() || known.contains(&key) {
            continue;
        }
        out.push_str(&format!("- {item}\n"));
        known.push(key);
        is_new = true;
    }
    is_new.then_some(out)
}

/// Estimates the number of tokens in a text: a quarter of a token for each ASCII character, one and a half for any
/// other character.
pub(crate) fn tokens(text: &str) -> u64 {
    let (plain, other) =
        text.chars().fold(
            (0u64, 0u64),
            |(plain, other), c| {
                if c.is_ascii() { (plain + 1, other) } else { (plain, other + 1) }
            },
        );
    plain / 4 + other * 3 / 2
}

/// Selects from `memory`, a text with one lesson per line, the lessons that have the most words in common with a
/// request. Among lessons with equally many common words, prefers the newer ones. Skips lessons that would make the
/// total exceed `budget` tokens, and returns the others in the order of `memory`.
pub(crate) fn select_lessons(memory: &str, request: &str, budget: u64) -> String {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|word| word.len() > 3)
            .map(str::to_lowercase)
            .collect()
    };
    let asked = words(request);
    let lessons: Vec<&str> = memory.lines().filter(|line| line.starts_with("- ")).collect();
    let mut ranked: Vec<(usize, usize, &str)> = lessons
        .iter()
        .enumerate()
        .map(|(age, lesson)| (words(lesson).iter().filter(|word| asked.contains(word)).count(), age, *lesson))
        .collect();
    ranked.sort_by_key(|(common, age, _)| std::cmp::Reverse((*common, *age)));
    let (mut left, mut kept) = (budget, Vec::new());
    for (_, age, lesson) in ranked {
        let cost = tokens(lesson) + 1;
        if cost <= left {
            left -= cost;
            kept.push((age, lesson));
        }
    }
    kept.sort_unstable();
    kept.into_iter().map(|(_, lesson)| lesson).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_headings() {
        let document = Document {
            sections: vec![vec!["Test Scenarios".into(), "Tests".into()], vec!["Logic".into()]],
            ..Document::default()
        };
        assert_eq!(missing(&document, "# Plan\n## 2. Detailed logic\n### Tests:\n"), None);
        assert_eq!(
            missing(&document, "## Logic\nTests are in the text.").as_deref(),
            Some("has no heading for: Test Scenarios")
        );
        assert_eq!(missing(&document, " \n").as_deref(), Some("is empty"));
    }

    #[test]
    fn every_item_of_a_checklist_is_ticked() {
        let document = Document { checklist: true, ..Document::default() };
        assert_eq!(missing(&document, "# Report\n- [x] code\n  * [X] tests, see [1]\n[1]: link\n"), None);
        for (text, wanted) in [
            ("# Report\n- [x] code\n- [ ] tests\n", "not ticked: [ ] tests"),
            ("All is done.\n", "no ticked item"),
            ("[link](x)\n", "no ticked item"),
        ] {
            assert!(missing(&document, text).is_some_and(|lacks| lacks.contains(wanted)), "{text}");
        }
    }

    #[test]
    fn items_are_added_once() {
        let one = append_items("", "Backlog", &["An idea".into(), "an  IDEA".into()]).unwrap_or_default();
        assert_eq!(one, "# Backlog\n\n- An idea\n");
        assert_eq!(append_items(&one, "Backlog", &["An idea".into()]), None);
        assert_eq!(
            append_items(&one, "Backlog", &["Other".into()]).as_deref(),
            Some("# Backlog\n\n- An idea\n- Other\n")
        );
    }

    #[test]
    fn lessons_within_a_budget() {
        let memory = "# Lessons\n- The parser needs a lexer first\n- Tests of colours want a terminal\n- Unrelated words here\n";
        assert_eq!(select_lessons(memory, "change the parser", 9), "- The parser needs a lexer first");
        assert_eq!(select_lessons(memory, "", 10_000).lines().count(), 3);
        assert_eq!(select_lessons("", "x", 100), "");
        assert_eq!(tokens("abcd"), 1);
        assert_eq!(tokens("你好"), 3);
    }

    #[test]
    fn links_lead_nowhere() {
        let directory = std::env::temp_dir().join(format!("guard-papers-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let _ = fs::create_dir_all(directory.join("real"));
        let _ = std::os::unix::fs::symlink("/etc", directory.join("docs"));
        let _ = std::os::unix::fs::symlink("/etc/hostname", directory.join("real/link"));
        assert!(read(&directory, "docs/hostname").is_err());
        assert!(read(&directory, "real/link").is_err());
        assert!(write(&directory, "docs/x", "x").is_err());
        assert!(write(&directory, "real/link", "x").is_err());
        assert!(matches!(read(&directory, "none/x"), Ok(None)));
        assert!(remove(&directory, "docs/hostname").is_err() && Path::new("/etc/hostname").exists());
        assert!(remove(&directory, "none/x").is_ok());
        assert!(
            clear(&directory, "docs/x", &directory.join("aside")).is_ok()
                && write(&directory, "docs/x", "x").is_ok()
        );
        assert!(
            clear(&directory, "real/link", &directory.join("aside")).is_ok()
                && write(&directory, "real/link", "x").is_ok()
        );
        assert!(write(&directory, "a/b/c.md", "x").is_ok());
        assert_eq!(read(&directory, "a/b/c.md").ok().flatten().as_deref(), Some("x"));
        let _ = fs::remove_dir_all(&directory);
    }
}
