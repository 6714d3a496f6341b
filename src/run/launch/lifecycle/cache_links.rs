//! Gives the user's package caches to a run without overlay mounts, as directories of symbolic links. In a run without
//! a mount namespace, guard creates the links of a cache only when a program starts that may use the cache: a cache has
//! thousands of entries, and most runs use none.
//!
//! At that time the agent is running and can change its private home directory at will. So guard creates the links in
//! a directory that the run cannot reach, and renames that directory into place through descriptors that it opened
//! before the agent started. This module must never follow a path that the run can change.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::run::launch::discover::toolchains::Layer;
use crate::run::launch::plan::launch_plan::LaunchPlan;
use crate::run::launch::plan::linked_caches::LinkedCache;

/// The maximum number of links that guard makes to the entries of one directory. More links would take too long, so the
/// run does not see the other entries.
const MAX_LINKS: usize = 20_000;

/// Makes links in the run's worktree to the dependencies in the user's checkout, for a run without overlays. The
/// agent must not run yet.
pub(crate) fn link_dependencies(plan: &LaunchPlan) -> io::Result<()> {
    for (at, from) in plan.checkout.iter().flat_map(|checkout| &checkout.dependencies) {
        // An earlier attempt to start the run may have created an empty mount point here.
        let _ = std::fs::remove_dir(at);
        symlink(from, at)?;
    }
    Ok(())
}

/// A cache for which guard has not made the links yet.
struct PendingCache {
    cache: LinkedCache,
    /// The open directory in the private home directory in which guard will create the cache as `name`.
    parent: File,
    name: OsString,
}

/// The caches for which guard makes links when a program of the run first uses them.
pub(crate) struct Links {
    caches: Mutex<Vec<PendingCache>>,
    /// The directory in which guard creates the links. The run cannot reach it, but it is on the same file system as
    /// the private home directory, so that guard can rename entries from one to the other.
    staging: PathBuf,
    over: AtomicBool,
}

impl Links {
    /// Creates and opens the parent directories of the caches that guard will create. The agent must not run yet.
    pub(crate) fn open(plan: &LaunchPlan) -> io::Result<Self> {
        let mut caches = Vec::new();
        for cache in &plan.linked_caches {
            let (Some(parent), Some(name)) = (cache.at.parent(), cache.at.file_name()) else { continue };
            create_dir_all(parent)?;
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let parent = OpenOptions::new().read(true).custom_flags(flags).open(parent)?;
            caches.push(PendingCache { cache: cache.clone(), parent, name: name.to_os_string() });
        }
        let staging = staging_directory(plan);
        Ok(Self { caches: Mutex::new(caches), staging, over: AtomicBool::new(false) })
    }

    /// Returns the names of the toolchains that have caches for which guard has not made the links yet.
    pub(crate) fn toolchains(&self) -> Vec<&'static str> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<&str> = caches.iter().map(|pending| pending.cache.toolchain).collect();
        names.dedup();
        names
    }

    /// Makes the links for the caches of a toolchain, unless guard has done so before. If that fails, the run does not
    /// see the user's entries of the cache.
    pub(crate) fn make(&self, toolchain: &str) {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = caches.extract_if(.., |pending| pending.cache.toolchain == toolchain);
        for (index, PendingCache { cache, parent, name }) in wanted.enumerate() {
            let made = self.staging.join(format!("{toolchain}-{index}"));
            if link_tree(&cache.from, &made, cache.real_levels(), &self.over).is_ok() {
                // If the run has already created a file or directory of this name, the rename fails, and guard leaves
                // that entry alone.
                let _ = nix::fcntl::renameat(nix::fcntl::AT_FDCWD, &made, &parent, name.as_os_str());
            }
        }
    }

    /// Stops the creation of links. After this returns, guard creates no more caches.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Returns the directory in which guard creates the links. The run cannot reach this directory.
pub(crate) fn staging_directory(plan: &LaunchPlan) -> PathBuf {
    plan.run_folder.join("links")
}

/// Makes the links for all caches now, for a run with a mount namespace but without overlays. The agent must not run
/// yet.
pub(crate) fn link_all(plan: &LaunchPlan) -> io::Result<()> {
    let over = AtomicBool::new(false);
    let link = |cache: &LinkedCache| link_tree(&cache.from, &cache.at, cache.real_levels(), &over);
    plan.linked_caches.iter().try_for_each(link)
}

impl LinkedCache {
    /// Returns how many levels of directories must be real directories, so that the run can add entries to them.
    fn real_levels(&self) -> usize {
        match &self.unpacked_from {
            Some(archives) if is_unpacked(archives, &self.from).unwrap_or(false) => 0,
            _ => self.depth,
        }
    }
}

/// Returns true if every `.crate` archive in the directories below `archives` is completely unpacked into the directory
/// of the same name below `unpacked`.
fn is_unpacked(archives: &Path, unpacked: &Path) -> io::Result<bool> {
    for registry in std::fs::read_dir(archives)? {
        let registry = registry?;
        for archive in std::fs::read_dir(registry.path())? {
            let name = archive?.file_name();
            let (Some(name), true) = (Path::new(&name).file_stem(), name.as_bytes().ends_with(b".crate"))
            else {
                continue;
            };
            // cargo writes this file when it has unpacked an archive completely.
            let done = unpacked.join(registry.file_name()).join(name).join(".cargo-ok");
            if !done.symlink_metadata().is_ok_and(|done| done.is_file()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Creates real directories down to the depth `depth`, and in them symbolic links to the user's entries. Leaves out
/// lock files, and all entries of a directory after the first [`MAX_LINKS`]. Fails when `over` becomes true.
fn link_tree(from: &Path, at: &Path, depth: usize, over: &AtomicBool) -> io::Result<()> {
    create_dir_all(at)?;
    for entry in std::fs::read_dir(from)?.take(MAX_LINKS).flatten() {
        if over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        // Programs open lock files for writing, which would fail through a link to the user's file.
        if Layer::is_omitted(&entry.file_name()) {
            continue;
        }
        let to = at.join(entry.file_name());
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            link_tree(&entry.path(), &to, depth - 1, over)?;
        } else {
            symlink(entry.path(), to)?;
        }
    }
    Ok(())
}
