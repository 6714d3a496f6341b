//! Copies the user's git hooks to a directory where the agent can execute them, but cannot change them.
//!
//! A hook may call files in its own directory by relative path, so guard copies the whole directory. The agent can
//! still change the scripts in the worktree that a hook calls (`npm run lint`, `scripts/check`).

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::checkout_files::{CheckoutFiles, Opened, untracked};
use super::quarantine::resolve_setting_path;
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::repository::Repository;
use crate::sys::copy_tree;
use crate::sys::copy_tree::Entry;

/// Maximum number of files in a hooks directory. A directory with more is probably not a hooks directory, but a whole
/// project or a home directory.
const MAX_FILES: usize = 2_000;
/// Maximum total size of the files in a hooks directory, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum depth of directories in a hooks directory.
const MAX_DEPTH: usize = 64;

/// Copies the user's hooks to a directory below `to`, unless `skip` is true, and adds a hook that writes the
/// trailers. Returns the directory that guard must set as `core.hooksPath`.
pub(crate) fn install(
    repository: &Repository,
    settings: &Settings,
    skip: bool,
    trailers: &[String],
    to: &Path,
    files: &mut CheckoutFiles,
) -> io::Result<PathBuf> {
    fs::DirBuilder::new().mode(0o755).recursive(true).create(to)?;
    let named = hooks_dir(repository, settings);
    let is_huskys = named.file_name() == Some("_".as_ref());
    let source = if skip { None } else { open_source(&named, files)? };
    let place = to.join(if is_huskys && source.is_some() { "hooks/_" } else { "hooks" });
    if let Some(source) = source {
        let own = (!source.is_linked).then(|| source.real.clone());
        let mut copy = HookCopy { files, own, within: Vec::new(), spent: Spent::default() };
        copy.directory(&source.file, &source.real, &to.join("hooks"), source.is_linked)?;
    }
    fs::DirBuilder::new().mode(0o755).recursive(true).create(&place)?;
    if !trailers.is_empty() {
        add_trailers(&place, trailers)?;
    }
    Ok(place)
}

/// Opens the directory that guard must copy so that the hooks in `named` work: `named` itself or, for husky, its
/// parent, because the hooks in husky's `_` directory call scripts in the parent. Returns `None` if there is no such
/// directory, or if guard leaves it out.
fn open_source(named: &Path, files: &mut CheckoutFiles) -> io::Result<Option<Opened>> {
    let is_huskys = named.file_name() == Some("_".as_ref());
    let tree = named.parent().filter(|_| is_huskys).unwrap_or(named);
    if !named.is_dir() {
        return Ok(None);
    }
    let Some(source) = files.open("your git hooks", tree)? else { return Ok(None) };
    if !source.file.metadata()?.is_dir() {
        return Ok(None);
    }
    // Such a directory contains untracked files and git directories, which the run must not get.
    if files.contains_repository(&source.real) && !files.is_trusted() {
        let why = format!("the hooks directory {} contains the repository", source.real.display());
        files.note("your git hooks", &why);
        return Ok(None);
    }
    Ok(Some(source))
}

/// Returns the directory that contains the user's hooks. It need not exist.
pub(crate) fn hooks_dir(repository: &Repository, settings: &Settings) -> PathBuf {
    match settings.get("core.hookspath").filter(|path| !path.is_empty()) {
        None => repository.common_dir.join("hooks"),
        Some(path) => resolve_setting_path(repository, path),
    }
}

/// The maximum number of entries of a hooks directory in which guard looks for links.
const MAX_LINKED_HOOKS: usize = 500;

/// Returns the files and directories in the user's checkout that git runs as hooks, relative to its top: the hooks
/// directory, and what it or its entries lead to by symbolic links.
pub(crate) fn hooks_in_checkout(repository: &Repository, settings: &Settings) -> Vec<PathBuf> {
    let Some(top) = &repository.toplevel else { return Vec::new() };
    let directory = hooks_dir(repository, settings);
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten().take(MAX_LINKED_HOOKS);
    let links = entries.map(|entry| entry.path()).filter(|path| path.is_symlink());
    let real = links.chain([directory.clone()]).filter_map(|path| path.canonicalize().ok());
    let real_top = top.canonicalize().unwrap_or_else(|_| top.clone());
    let named = directory.strip_prefix(top).ok().map(|path| path.components().collect());
    let mut paths: Vec<PathBuf> =
        real.filter_map(|path| Some(path.strip_prefix(&real_top).ok()?.to_path_buf())).chain(named).collect();
    paths.retain(|path| !path.as_os_str().is_empty() && !path.starts_with(".git"));
    paths.sort();
    paths.dedup();
    paths
}

/// How much of a hooks directory guard has copied.
#[derive(Default)]
struct Spent {
    files: usize,
    bytes: u64,
}

/// Copies a hooks directory, and fails if it exceeds a limit. Replaces symbolic links by their targets, because a hook
/// may be a link. Leaves out links that an agent may have written, and that lead to files that the run must not get.
/// Skips dangling links, FIFOs, and files with the extension `sample`.
struct HookCopy<'f> {
    files: &'f mut CheckoutFiles,
    /// The hooks directory, unless a link of an agent leads to it.
    own: Option<PathBuf>,
    /// The directories that are being copied: the hooks directory and those on the way to the current file.
    within: Vec<PathBuf>,
    spent: Spent,
}

impl HookCopy<'_> {
    /// Copies an open directory, whose real path is `at`. `is_linked` is true if a link that an agent may have written
    /// leads to it.
    fn directory(&mut self, from: &File, at: &Path, to: &Path, is_linked: bool) -> io::Result<()> {
        self.spend(at, 0)?;
        self.within.push(at.to_path_buf());
        fs::DirBuilder::new().mode(0o755).recursive(true).create(to)?;
        for name in copy_tree::names(from)? {
            let (path, to) = (at.join(&name), to.join(&name));
            if path.extension().is_some_and(|ending| ending == "sample") {
                continue;
            }
            match copy_tree::open_entry(from.as_fd(), Path::new(&name))? {
                Entry::Opened(file) => self.opened(&Opened { file, real: path, is_linked }, &to)?,
                Entry::Link(_) => {
                    let found = match self.files.open(&hook(&name), &path) {
                        Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                        found => found?,
                    };
                    let Some(found) = found else { continue };
                    // A directory that contains the link would be copied again and again.
                    if !self.within.iter().any(|within| within.starts_with(&found.real)) {
                        self.opened(&Opened { is_linked: is_linked || found.is_linked, ..found }, &to)?;
                    }
                }
                Entry::Special => {}
            }
        }
        self.within.pop();
        Ok(())
    }

    fn opened(&mut self, from: &Opened, to: &Path) -> io::Result<()> {
        // A file in the hooks directory itself is a hook, or belongs to one.
        let is_own = || self.own.as_ref().is_some_and(|own| from.real.starts_with(own));
        if from.is_linked && !is_own() && !self.files.may_be_linked(&from.real) {
            let name = to.file_name().unwrap_or_default();
            self.files.note(&hook(name), &untracked(&from.real));
            return Ok(());
        }
        let data = from.file.metadata()?;
        if data.is_dir() {
            return self.directory(&from.file, &from.real, to, from.is_linked);
        }
        self.spend(&from.real, data.len())?;
        let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        io::copy(&mut (&from.file).take(MAX_BYTES), &mut copy)?;
        copy.set_permissions(Permissions::from_mode(data.mode() & 0o777))
    }

    fn spend(&mut self, at: &Path, bytes: u64) -> io::Result<()> {
        self.spent.files += 1;
        self.spent.bytes = self.spent.bytes.saturating_add(bytes);
        let is_small = self.spent.files <= MAX_FILES && self.spent.bytes <= MAX_BYTES;
        if is_small && self.within.len() <= MAX_DEPTH {
            return Ok(());
        }
        let problem = format!(
            "the hooks directory that contains {} has more than {MAX_FILES} files, {} MiB or {MAX_DEPTH} levels; check core.hooksPath, or \
             set `hooks = false` in the section [git] of a policy",
            at.display(),
            MAX_BYTES >> 20
        );
        Err(io::Error::other(problem))
    }
}

/// Names a hook in a note.
fn hook(name: &OsStr) -> String {
    format!("the git hook {}", name.to_string_lossy())
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
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(hook)?;
    io::Write::write_all(&mut file, script.as_bytes())
}
