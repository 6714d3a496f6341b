//! Checks the layout of a repository: every part must be at its usual path and have the expected file type.

use std::ffi::OsStr;
use std::fs::FileType;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::paths::{is_inside_repository, is_same_file, printable, printable_path};
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::gitfile::read_small;
use crate::git::plumbing::repository::Repository;

/// The directories in a git directory that git or guard reads or writes, each with the depth to which guard checks
/// it. Neither git nor guard reads deeper entries.
const PARTS: &[(&str, usize)] = &[
    ("", 0),
    ("hooks", MAX_DEPTH),
    ("info", 1),
    ("lfs", 3),
    ("logs", MAX_DEPTH),
    ("objects", 2),
    ("refs", MAX_DEPTH),
    ("reftable", 0),
    ("worktrees", MAX_DEPTH),
];
/// Maximum depth of directories to check. Real ref names are not deeper.
const MAX_DEPTH: usize = 64;
/// Maximum number of directory entries to check. Real repositories have fewer.
const MAX_ENTRIES: usize = 2_000_000;
/// The number of doubts (reasons to distrust the repository) after which guard stops checking the types of files.
const MAX_DOUBTS: usize = 20;

/// Checks that the working tree and its git directory point to each other, as they do after `git init`, after `git
/// worktree add`, and in submodules. An agent can write a `.git` file that points to another repository, but it
/// cannot make that repository point to the agent's working tree.
pub(crate) fn check_pointer(repository: &Repository, settings: &Settings, doubts: &mut Vec<String>) {
    let Repository { git_dir, common_dir, toplevel, .. } = repository;
    let is_one_of =
        || git_dir.parent().is_some_and(|parent| is_same_file(parent, &common_dir.join("worktrees")));
    if repository.is_linked() && !is_one_of() {
        doubts.push(format!(
            "{} names the repository {}, but is not a worktree of that repository",
            printable_path(git_dir),
            printable_path(common_dir)
        ));
        return;
    }
    let Some(top) = toplevel else { return };
    let dot_git = top.join(".git");
    let is_plain =
        dot_git.symlink_metadata().is_ok_and(|data| data.is_dir()) && is_same_file(&dot_git, git_dir);
    let leads_there =
        || read_path_line(&dot_git, b"gitdir: ", top).is_some_and(|target| is_same_file(&target, git_dir));
    let leads_back = || {
        if repository.is_linked() {
            let back = read_path_line(&git_dir.join("gitdir"), b"", git_dir);
            back.is_some_and(|back| is_same_file(&back, &dot_git))
        } else {
            // The git directory of a submodule names its working tree in the setting `core.worktree`.
            let named = settings.repository_value("core.worktree");
            named.is_some_and(|path| is_same_file(&git_dir.join(OsStr::from_bytes(path)), top))
        }
    };
    let leads = is_plain || leads_there() && leads_back();
    if !leads {
        doubts.push(format!(
            "{} and {} do not point to each other",
            printable_path(&dot_git),
            printable_path(git_dir)
        ));
    }
}

/// Reads a path from a file with one line. Removes `prefix` from the line. A relative path starts at the directory
/// `from`. Returns `None` if guard cannot read the file, or if the line does not begin with `prefix`.
fn read_path_line(file: &Path, prefix: &[u8], from: &Path) -> Option<PathBuf> {
    let text = read_small(file, 8192).ok()?;
    Some(from.join(OsStr::from_bytes(text.strip_prefix(prefix)?.trim_ascii_end())))
}

/// Checks the types of the repository's files. Symbolic links and alternates may lead to objects, refs or files
/// outside the repository, and a FIFO blocks every process that reads it.
pub(crate) fn check_parts(repository: &Repository, doubts: &mut Vec<String>) {
    let mut left = MAX_ENTRIES;
    for (name, depth) in PARTS {
        let dir = repository.common_dir.join(name);
        LayoutWalk { repository, doubts, left: &mut left }.walk(&dir, *depth);
    }
    let alternates = repository.common_dir.join("objects/info/alternates");
    match read_small(&alternates, 1 << 20) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(_) => doubts.push(format!("guard cannot read {}", printable_path(&alternates))),
        Ok(text) => {
            let mut lines = text.split(|byte| *byte == b'\n');
            if let Some(line) = lines.find(|line| !line.is_empty() && !line.starts_with(b"#")) {
                doubts.push(format!("the repository borrows objects from {}", printable(line)));
            }
        }
    }
}

struct LayoutWalk<'a> {
    repository: &'a Repository,
    doubts: &'a mut Vec<String>,
    left: &'a mut usize,
}

impl LayoutWalk<'_> {
    fn walk(&mut self, top: &Path, deepest: usize) {
        let is_dir = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_dir());
        let mut dirs = if is_dir(top) { vec![(top.to_path_buf(), 0)] } else { Vec::new() };
        while let Some((dir, depth)) = dirs.pop() {
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(_) => {
                    self.doubts.push(format!("guard cannot list {}", printable_path(&dir)));
                    continue;
                }
            };
            for entry in entries {
                if *self.left == 0 || self.doubts.len() >= MAX_DOUBTS {
                    return;
                }
                *self.left -= 1;
                if *self.left == 0 {
                    self.doubts.push(format!("{} has more entries than guard checks", printable_path(top)));
                }
                let Ok((entry, kind)) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))
                else {
                    self.doubts.push(format!("guard cannot list all of {}", printable_path(&dir)));
                    continue;
                };
                // Skip the submodule repositories of a worktree: none of guard's git calls reads them.
                let is_modules = depth == 1 && entry.file_name() == "modules" && top.ends_with("worktrees");
                if kind.is_dir() && is_modules {
                    continue;
                } else if kind.is_dir() {
                    if depth < deepest {
                        dirs.push((entry.path(), depth + 1));
                    } else if depth >= MAX_DEPTH {
                        self.doubts.push(format!("{} is nested too deeply", printable_path(&entry.path())));
                    }
                } else {
                    self.doubts.extend(self.doubt(&entry.path(), kind));
                }
            }
        }
    }

    fn doubt(&self, path: &Path, kind: FileType) -> Option<String> {
        let blocks_reader =
            |kind: FileType| kind.is_fifo() || kind.is_char_device() || kind.is_block_device();
        if kind.is_symlink() {
            let target = match path.metadata() {
                Ok(data) => data.file_type(),
                // A dangling link in `hooks` has no effect. Elsewhere git would create the link's target.
                Err(_) if path.parent().is_some_and(|dir| dir.ends_with("hooks")) => return None,
                Err(_) => {
                    return Some(format!("{} is a symbolic link to a missing file", printable_path(path)));
                }
            };
            if !is_inside_repository(path, self.repository) {
                let path = printable_path(path);
                return Some(format!("{path} is a symbolic link to a file outside the repository"));
            }
            return blocks_reader(target).then(|| format!("{} is not a regular file", printable_path(path)));
        }
        blocks_reader(kind).then(|| format!("{} is not a regular file", printable_path(path)))
    }
}
