//! Checks the layout of a repository: every part must be in its usual place and have the expected file type.

use std::ffi::OsStr;
use std::fs::FileType;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::{inside, same, shown_path};
use crate::workspace::git::config::Settings;
use crate::workspace::git::gitfile::read_small;
use crate::workspace::git::repository::Repository;
use crate::workspace::run::hooks;

/// The directories of a git directory that git or guard reads or writes, and the depth to check. Nothing
/// reads deeper entries.
const PARTS: &[(&str, usize)] = &[
    ("", 0),
    ("hooks", DEEPEST),
    ("info", 1),
    ("lfs", 3),
    ("logs", DEEPEST),
    ("objects", 2),
    ("refs", DEEPEST),
    ("reftable", 0),
    ("worktrees", DEEPEST),
];
/// Ref names are not deeper than this.
const DEEPEST: usize = 64;
/// Maximum number of entries; an honest repository has fewer.
const MOST_ENTRIES: usize = 2_000_000;
/// Maximum number of doubts to collect per kind.
const MOST_FOUND: usize = 20;

/// The working tree and its git directory must name each other, as `git init`, `git worktree add` and
/// submodules create them. An agent that plants a pointer to a foreign repository can write only one of the
/// two sides.
pub(crate) fn pointer(repository: &Repository, settings: &Settings, doubts: &mut Vec<String>) {
    let Repository { git_dir, common_dir, toplevel, .. } = repository;
    let is_one_of = || git_dir.parent().is_some_and(|parent| same(parent, &common_dir.join("worktrees")));
    if repository.is_linked() && !is_one_of() {
        doubts.push(format!(
            "{} takes {} for its repository, and is no worktree of it",
            shown_path(git_dir),
            shown_path(common_dir)
        ));
        return;
    }
    let Some(top) = toplevel else { return };
    let dot_git = top.join(".git");
    let is_plain = dot_git.symlink_metadata().is_ok_and(|data| data.is_dir()) && same(&dot_git, git_dir);
    let leads_there = || line(&dot_git, b"gitdir: ", top).is_some_and(|target| same(&target, git_dir));
    let leads_back = || {
        if repository.is_linked() {
            line(&git_dir.join("gitdir"), b"", git_dir).is_some_and(|back| same(&back, &dot_git))
        } else {
            // As submodules do.
            let named = settings.in_repository("core.worktree");
            named.is_some_and(|path| same(&git_dir.join(OsStr::from_bytes(path)), top))
        }
    };
    let leads = is_plain || leads_there() && leads_back();
    if !leads {
        doubts.push(format!(
            "{} and {} do not lead to each other",
            shown_path(&dot_git),
            shown_path(git_dir)
        ));
    }
}

/// The path named by a one-line file, relative to `from`.
fn line(file: &Path, prefix: &[u8], from: &Path) -> Option<PathBuf> {
    let text = read_small(file, 8192).ok()?;
    Some(from.join(OsStr::from_bytes(text.strip_prefix(prefix)?.trim_ascii_end())))
}

/// Finds parts that lie elsewhere (objects and refs of another repository, files that would be copied), and
/// FIFOs, which block every reader.
pub(crate) fn parts(repository: &Repository, doubts: &mut Vec<String>) {
    let mut left = MOST_ENTRIES;
    for (name, depth) in PARTS {
        let folder = repository.common_dir.join(name);
        Look { repository, doubts, left: &mut left }.walk(&folder, *depth);
    }
    let alternates = repository.common_dir.join("objects/info/alternates");
    match read_small(&alternates, 1 << 20) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(_) => doubts.push(format!("{} cannot be read", shown_path(&alternates))),
        Ok(text) => {
            let mut lines = text.split(|byte| *byte == b'\n');
            if let Some(line) = lines.find(|line| !line.is_empty() && !line.starts_with(b"#")) {
                doubts.push(format!("its objects are borrowed from {}", super::shown(line)));
            }
        }
    }
}

/// Guard copies the hooks directory and follows its symbolic links. Links in the user's own directory outside
/// the repository are fine.
pub(crate) fn hooks(repository: &Repository, settings: &Settings, doubts: &mut Vec<String>) {
    let Some(folder) = hooks::source(repository, settings) else { return };
    if inside(&folder, repository) && !same(&folder, &repository.common_dir.join("hooks")) {
        let mut left = hooks::MOST_FILES;
        Look { repository, doubts, left: &mut left }.walk(&folder, DEEPEST);
    }
}

struct Look<'a> {
    repository: &'a Repository,
    doubts: &'a mut Vec<String>,
    left: &'a mut usize,
}

impl Look<'_> {
    fn walk(&mut self, top: &Path, deepest: usize) {
        let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_dir());
        let mut folders = if is_folder(top) { vec![(top.to_path_buf(), 0)] } else { Vec::new() };
        while let Some((folder, depth)) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                if *self.left == 0 || self.doubts.len() >= MOST_FOUND {
                    return;
                }
                *self.left -= 1;
                if *self.left == 0 {
                    self.doubts.push(format!("{} has more entries than guard looks at", shown_path(top)));
                }
                let Ok(kind) = entry.file_type() else { continue };
                // Repositories of a worktree's submodules; no call of guard's enters them.
                let is_modules = depth == 1 && entry.file_name() == "modules" && top.ends_with("worktrees");
                if kind.is_dir() && is_modules {
                    continue;
                } else if kind.is_dir() {
                    if depth < deepest {
                        folders.push((entry.path(), depth + 1));
                    } else if depth >= DEEPEST {
                        self.doubts.push(format!("{} is too deep", shown_path(&entry.path())));
                    }
                } else {
                    self.doubts.extend(self.doubt(&entry.path(), kind));
                }
            }
        }
    }

    fn doubt(&self, path: &Path, kind: FileType) -> Option<String> {
        let holds_up = |kind: FileType| kind.is_fifo() || kind.is_char_device() || kind.is_block_device();
        if kind.is_symlink() {
            let target = match path.metadata() {
                Ok(data) => data.file_type(),
                // A dangling link is no hook. Anywhere else, git would create the file that it names.
                Err(_) if path.parent().is_some_and(|folder| folder.ends_with("hooks")) => return None,
                Err(_) => return Some(format!("{} is a link that leads nowhere", shown_path(path))),
            };
            if !inside(path, self.repository) {
                return Some(format!("{} is a link that leads elsewhere", shown_path(path)));
            }
            return holds_up(target).then(|| format!("{} is no file", shown_path(path)));
        }
        holds_up(kind).then(|| format!("{} is no file", shown_path(path)))
    }
}
