//! Finds the files that a run hid from git: those that the ignore rules in the run's worktree ignore, but not the rules
//! of the commit from which the review of the run starts.
//!
//! The agent can write every `.gitignore` in the worktree, also one that ignores itself. Therefore these files do not
//! decide what counts as new work: the commit does, together with the user's own rules outside the worktree.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::git::dispose::uncommitted::{changed_since, unreadable_dirs};
use crate::git::plumbing::cat_file::for_each_blob;
use crate::git::plumbing::command::Git;
use crate::git::review::findings::GENERATED_DIRS;
use crate::git::review::saved_work::began_at;
use crate::git::review::whole_work::split_paths;
use crate::git::workspace::extra_files;
use crate::git::workspace::extra_files::ExtraFile;
use crate::git::workspace::run_record::Record;
use crate::git::{WorkspaceError, at};

/// Timeout for git to list files: git blocks forever if an ignore file is a FIFO.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a list of paths from git, in bytes.
const MAX_LIST_BYTES: usize = 256 << 20;
/// Maximum size of all ignore files of a commit together, in bytes.
const MAX_RULES_BYTES: usize = 64 << 20;
const IGNORE_FILE: &[u8] = b".gitignore";

#[derive(Debug, Default)]
pub(crate) struct HiddenFiles {
    /// The paths of the files, without those in directories that tools generate, such as `node_modules`. A nested
    /// repository has a slash at its end.
    pub(crate) files: Vec<PathBuf>,
    /// Top-level directories that git cannot read completely.
    pub(crate) unreadable: Vec<PathBuf>,
}

impl HiddenFiles {
    /// Finds the files that the run with the directory `run_folder` hid from git, or earlier runs in the same worktree.
    /// `git` builds calls on the worktree with its index, which can read the directory `scratch`. `base` returns the commit
    /// whose ignore rules decide; guard needs it only if git ignores anything in the worktree.
    pub(crate) fn find(
        record: &Record,
        run_folder: &Path,
        scratch: &Path,
        git: impl Fn(&str) -> Result<Git, WorkspaceError>,
        base: impl FnOnce() -> String,
    ) -> Result<Self, WorkspaceError> {
        let list =
            || Ok::<_, WorkspaceError>(git("ls-files")?.timeout(LIST_TIMEOUT).max_output(MAX_LIST_BYTES));
        // git does not look into directories that it ignores.
        let shape = ["--others", "--ignored", "--exclude-standard", "--directory", "-z"];
        let output = list()?.args(shape).run()?;
        let own = own_files(record);
        let is_own = |path: &Path| own.iter().any(|own| path.starts_with(own));
        let ignored: HashSet<PathBuf> = split_paths(&output).filter(|path| !is_own(path)).collect();
        if ignored.is_empty() {
            return Ok(Self::default());
        }
        let rules = scratch.join("base-ignore-rules");
        at("write", &rules, fs::write(&rules, rules_of_commit(&git, &base())?))?;
        let mut call = list()?.args(["--others", "-z"]);
        // In the order of their precedence: git obeys the last rule that matches.
        for file in [&record.excludes, &record.common_dir.join("info/exclude"), &rules] {
            if file.is_file() {
                let mut option = OsString::from("--exclude-from=");
                option.push(file);
                call = call.arg(option);
            }
        }
        let listed = call.output()?;
        if !listed.status.success() {
            let (verb, code) = ("ls-files".to_string(), listed.code());
            return Err(crate::git::GitError::Failed { verb, code, message: listed.message }.into());
        }
        let is_ignored = |path: &Path| path.ancestors().any(|above| ignored.contains(above));
        let mut files: Vec<PathBuf> = split_paths(&listed.output)
            .filter(|path| is_ignored(path) && !is_own(path) && !is_generated(path))
            .collect();
        if record.here && !files.is_empty() {
            let began = first_run_in(&record.worktree, run_folder);
            files.retain(|path| changed_since(&record.worktree.join(path), began));
        }
        Ok(Self { files, unreadable: unreadable_dirs(&listed.message) })
    }
}

/// Returns the links that guard made in the worktree, and the copies of the user's files that have not changed since.
fn own_files(record: &Record) -> Vec<&Path> {
    let is_own = |one: &&ExtraFile| one.is_link || extra_files::is_unchanged_copy(&record.worktree, one);
    record.brought.iter().filter(is_own).map(|one| one.path.as_path()).collect()
}

/// Returns when the first run in a worktree began. The user may have made the worktree, and files in it before that.
fn first_run_in(worktree: &Path, run_folder: &Path) -> SystemTime {
    let runs = run_folder.parent().and_then(|runs| crate::git::list(runs).ok()).unwrap_or_default();
    let records = runs.into_iter().filter_map(|entry| entry.record.ok());
    let began = records.filter(|record| record.worktree == worktree).map(|record| began_at(&record.run_id));
    // Without the time, all files may be those of a run.
    began.map(|began| began.unwrap_or(SystemTime::UNIX_EPOCH)).min().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// True if the file is in a directory in which a tool generates files. Some of these tools write an ignore file there that
/// ignores the whole directory.
fn is_generated(path: &Path) -> bool {
    let mut above = path.ancestors().skip(1);
    above.any(|dir| {
        let is_known = dir.file_name().is_some_and(|name| GENERATED_DIRS.contains(&name.as_bytes()));
        // husky writes its hooks to this directory when the dependencies are installed.
        is_known || dir.ends_with(".husky/_")
    })
}

/// Returns the rules of all ignore files in a commit as one ignore file for the top of the worktree. `git` builds calls on
/// the worktree.
fn rules_of_commit(
    git: &impl Fn(&str) -> Result<Git, WorkspaceError>,
    commit: &str,
) -> Result<Vec<u8>, WorkspaceError> {
    let tree = git("ls-tree")?.args(["-r", "-z", "--full-tree", "--end-of-options", commit]);
    let listed = tree.max_output(MAX_LIST_BYTES).run()?;
    let mut files: Vec<(&[u8], String)> = listed.split(|byte| *byte == 0).filter_map(ignore_file).collect();
    // git prefers the rules of a directory to those of the directories above it.
    files.sort_by_key(|(directory, _)| directory.len());
    let ids: String = files.iter().map(|(_, id)| format!("{id}\n")).collect();
    let mut contents: HashMap<String, Vec<u8>> = HashMap::new();
    if !files.is_empty() {
        let call = git("cat-file")?.args(["--batch", "--buffer"]).input(ids.into_bytes());
        let output = call.max_output(MAX_RULES_BYTES).run()?;
        for_each_blob(&output, |id, content| drop(contents.insert(id.to_string(), content.to_vec())));
    }
    let mut rules = Vec::new();
    for (directory, id) in &files {
        let text = contents.get(id).map(Vec::as_slice).unwrap_or_default();
        rules.extend(rules_at_top(directory, text));
    }
    Ok(rules)
}

/// Parses an entry of `git ls-tree -r -z`. Returns the directory and the object id of an ignore file; `None` for other
/// files. git does not follow a symbolic link in place of an ignore file.
fn ignore_file(entry: &[u8]) -> Option<(&[u8], String)> {
    let tab = entry.iter().position(|byte| *byte == b'\t')?;
    let (facts, path) = (&entry[..tab], &entry[tab + 1..]);
    let directory = path.strip_suffix(IGNORE_FILE)?;
    let directory = if directory.is_empty() { directory } else { directory.strip_suffix(b"/")? };
    let facts = std::str::from_utf8(facts).ok()?;
    let [mode, "blob", id] = facts.split(' ').collect::<Vec<_>>()[..] else { return None };
    mode.starts_with("100").then(|| (directory, id.to_string()))
}

/// Returns the rules of the ignore file in `directory`, in a form that means the same in an ignore file at the top of the
/// worktree. No form exists for a directory whose name contains a newline; without its rules, more files count as work.
pub(crate) fn rules_at_top(directory: &[u8], text: &[u8]) -> Vec<u8> {
    let mut rules = Vec::new();
    if directory.contains(&b'\n') {
        return rules;
    }
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // git ignores spaces at the end, and an escaped one does not matter here.
        let (negation, pattern) = line.strip_prefix(b"!").map_or((&b""[..], line), |rest| (b"!", rest));
        let end = pattern.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
        let trimmed = &pattern[..end];
        if line.starts_with(b"#") || matches!(trimmed, b"" | b"/") {
            continue;
        }
        rules.extend_from_slice(negation);
        if !directory.is_empty() {
            let is_anchored = trimmed[..trimmed.len() - 1].contains(&b'/');
            rules.push(b'/');
            for byte in directory {
                if matches!(byte, b'\\' | b'*' | b'?' | b'[') {
                    rules.push(b'\\');
                }
                rules.push(*byte);
            }
            rules.extend_from_slice(if is_anchored { b"/" } else { b"/**/" });
            rules.extend_from_slice(pattern.strip_prefix(b"/").unwrap_or(pattern));
        } else {
            rules.extend_from_slice(pattern);
        }
        rules.push(b'\n');
    }
    rules
}

/// Adds paths that git ignores to a call of `git add`.
pub(crate) fn add_hidden(git: Git, paths: &[PathBuf]) -> Git {
    let git = git.args(["--force", "--pathspec-from-file=-", "--pathspec-file-nul"]);
    git.env("GIT_LITERAL_PATHSPECS", "1").input(zero_separated(paths))
}

/// Returns paths in the form that git reads with the option `-z`.
pub(crate) fn zero_separated(paths: &[PathBuf]) -> Vec<u8> {
    paths.iter().flat_map(|path| path.as_os_str().as_bytes().iter().copied().chain([0])).collect()
}
