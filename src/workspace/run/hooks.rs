//! Copies the user's git hooks to a directory where the agent can execute them, but cannot change them.
//!
//! A hook may call files in its own directory by relative path, so guard copies the whole directory. The agent can
//! still change the scripts in the worktree that a hook calls (`npm run lint`, `scripts/check`).

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::quarantine::resolve_setting_path;
use crate::workspace::git::config::Settings;
use crate::workspace::git::repository::Repository;

/// Maximum number of files in a hooks directory. A directory with more is probably not a hooks directory, but a whole
/// project or a home directory.
pub(crate) const MAX_FILES: usize = 2_000;
/// Maximum total size of the files in a hooks directory, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Copies the user's hooks to a directory below `to`, unless `skip` is true, and adds a hook that writes the
/// trailers. Returns the directory that guard must set as `core.hooksPath`.
pub(crate) fn install(
    repository: &Repository,
    settings: &Settings,
    skip: bool,
    trailers: &[String],
    to: &Path,
) -> io::Result<PathBuf> {
    fs::DirBuilder::new().mode(0o755).recursive(true).create(to)?;
    let from = hooks_dir(repository, settings).filter(|_| !skip);
    if let Some(from) = &from {
        copy(tree_to_copy(from), &to.join("hooks"), &mut Budget::default())?;
    }
    let is_nested = from.is_some_and(|from| tree_to_copy(&from) != from);
    let place = to.join(if is_nested { "hooks/_" } else { "hooks" });
    fs::DirBuilder::new().mode(0o755).recursive(true).create(&place)?;
    if !trailers.is_empty() {
        add_trailers(&place, trailers)?;
    }
    Ok(place)
}

/// Returns the directory tree that guard must copy to get the user's hooks; `None` if the user has none.
pub(crate) fn source(repository: &Repository, settings: &Settings) -> Option<PathBuf> {
    hooks_dir(repository, settings).map(|dir| tree_to_copy(&dir).to_path_buf())
}

/// Returns the directory that guard must copy so that the hooks in `dir` work: `dir` itself or, for husky, its
/// parent, because the hooks in husky's `_` directory call scripts in the parent.
fn tree_to_copy(dir: &Path) -> &Path {
    let is_huskys = dir.file_name() == Some("_".as_ref());
    dir.parent().filter(|_| is_huskys).unwrap_or(dir)
}

/// Returns the directory that contains the user's hooks; `None` if it does not exist.
pub(crate) fn hooks_dir(repository: &Repository, settings: &Settings) -> Option<PathBuf> {
    let named = match settings.get("core.hookspath").filter(|path| !path.is_empty()) {
        None => repository.common_dir.join("hooks"),
        Some(path) => resolve_setting_path(repository, path),
    };
    named.is_dir().then_some(named)
}

#[derive(Default)]
struct Budget {
    files: usize,
    bytes: u64,
}

/// Copies a directory tree, and fails if the tree exceeds a limit; `budget` counts what was copied. Replaces symbolic
/// links by their targets, because a hook may be a link. Skips dangling links and files with the extension `sample`.
fn copy(from: &Path, to: &Path, budget: &mut Budget) -> io::Result<()> {
    let data = fs::metadata(from)?;
    budget.files += 1;
    budget.bytes += if data.is_file() { data.len() } else { 0 };
    if budget.files > MAX_FILES || budget.bytes > MAX_BYTES {
        let problem = format!(
            "the hooks directory that contains {} has more than {MAX_FILES} files or {} MiB; check core.hooksPath, or \
             set `hooks = false` in the section [git] of a policy",
            from.display(),
            MAX_BYTES >> 20
        );
        return Err(io::Error::other(problem));
    }
    if data.is_dir() {
        fs::DirBuilder::new().mode(0o755).recursive(true).create(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let is_sample = entry.path().extension().is_some_and(|ending| ending == "sample");
            // A dangling symbolic link is not a hook.
            if !is_sample && fs::metadata(entry.path()).is_ok() {
                copy(&entry.path(), &to.join(entry.file_name()), budget)?;
            }
        }
        return Ok(());
    }
    if data.is_file() { fs::copy(from, to).map(drop) } else { Ok(()) }
}

/// Installs a `prepare-commit-msg` hook that adds the trailers, and then calls the user's own `prepare-commit-msg`
/// hook.
fn add_trailers(place: &Path, trailers: &[String]) -> io::Result<()> {
    let hook = place.join("prepare-commit-msg");
    let users = place.join("prepare-commit-msg.users");
    if hook.exists() {
        fs::rename(&hook, &users)?;
    }
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut script = String::from("#!/bin/sh\n# Written by guard: the policy asks for these trailers.\n");
    script.push_str("git interpret-trailers --in-place --if-exists addIfDifferent");
    for trailer in trailers {
        script.push_str(&format!(" --trailer {}", quoted(trailer)));
    }
    script.push_str(" \"$1\" || exit 1\n");
    script.push_str("users=\"$(dirname \"$0\")/prepare-commit-msg.users\"\n");
    script.push_str("if [ -x \"$users\" ]; then exec \"$users\" \"$@\"; fi\n");
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(hook)?;
    io::Write::write_all(&mut file, script.as_bytes())
}
