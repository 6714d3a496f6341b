//! The user's package caches for a run without a mount namespace: directories of symbolic links, created when a program
//! starts that may use them. A cache has thousands of entries, and most runs use none.
//!
//! The run has begun by then and may change its home at will. So the links are created in a directory that the run
//! cannot reach, and then renamed into place through descriptors that were opened before it began. This module must
//! never follow a path that the run can change.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::launch::discover::toolchains::{Growth, Layer, Toolchain};
use crate::launch::plan::LaunchPlan;
use crate::launch::plan::git_paths::Checkout;
use crate::sandbox;

/// The most entries of one directory that are linked. Linking more would take too long, so the run does not see the
/// rest.
const MOST_LINKS: usize = 20_000;

/// A cache of the user that the run gets as a directory of symbolic links.
#[derive(Debug, Clone, Serialize)]
pub struct LinkedCache {
    /// The toolchain it belongs to.
    pub toolchain: &'static str,
    /// The user's cache.
    pub from: PathBuf,
    /// Its path in the run's home.
    pub at: PathBuf,
    /// Levels of directories below it that are real directories instead of links.
    pub depth: usize,
    /// A directory of archives. If all of them are already unpacked in `from`, `depth` is ignored and taken as 0.
    pub unpacked_from: Option<PathBuf>,
}

/// The caches of toolchains: as overlays for a run with mounts, and as links for one without.
pub(crate) fn caches(
    toolchains: &[Toolchain],
    run_folder: &Path,
    home: &Path,
    fetches: bool,
) -> (Vec<sandbox::Layer>, Vec<LinkedCache>) {
    let mut layers = Vec::new();
    let mut linked = Vec::new();
    let of = |toolchain: &'static str| move |layer| (toolchain, layer);
    let all = toolchains.iter().flat_map(|toolchain| toolchain.layers.iter().map(of(toolchain.name)));
    for (index, (toolchain, layer)) in all.enumerate() {
        let at = home.join(&layer.upper);
        let own = run_folder.join("layers").join(index.to_string());
        let (depth, unpacked_from) = match &layer.growth {
            Growth::None if !fetches => (0, None),
            Growth::Unpacking(archives) if !fetches => (layer.depth, Some(archives.clone())),
            _ => (layer.depth, None),
        };
        linked.push(LinkedCache {
            toolchain,
            from: layer.lower.clone(),
            at: at.clone(),
            depth,
            unpacked_from,
        });
        layers.push(sandbox::Layer {
            lower: layer.lower.clone(),
            upper: own.join("upper"),
            work: own.join("work"),
            at,
        });
    }
    (layers, linked)
}

/// The dependencies in the user's checkout, as overlays for a run with mounts.
pub(crate) fn dependencies(checkout: Option<&Checkout>, run_folder: &Path) -> Vec<sandbox::Layer> {
    let all = checkout.iter().flat_map(|checkout| &checkout.dependencies).enumerate();
    let layer = |(index, (at, from)): (usize, &(PathBuf, PathBuf))| {
        let own = run_folder.join("layers").join(format!("dependency-{index}"));
        sandbox::Layer {
            lower: from.clone(),
            upper: own.join("upper"),
            work: own.join("work"),
            at: at.clone(),
        }
    };
    all.map(layer).collect()
}

/// The same as links, for a run without mounts or overlays. The run must not have begun.
pub(crate) fn link_dependencies(plan: &LaunchPlan) -> io::Result<()> {
    for (at, from) in plan.checkout.iter().flat_map(|checkout| &checkout.dependencies) {
        // The empty mount point of the overlay.
        let _ = std::fs::remove_dir(at);
        symlink(from, at)?;
    }
    Ok(())
}

/// One cache that is not linked yet.
struct Cache {
    what: LinkedCache,
    /// The directory of the private home that it will lie in, and its name there.
    folder: File,
    name: OsString,
}

/// The caches of a run.
pub(crate) struct Links {
    caches: Mutex<Vec<Cache>>,
    /// A directory out of the run's reach, on the same file system.
    aside: PathBuf,
    over: AtomicBool,
}

impl Links {
    /// Creates the directories that the caches will lie in. The run must not have begun.
    pub(crate) fn open(plan: &LaunchPlan) -> io::Result<Self> {
        let mut caches = Vec::new();
        for what in &plan.linked_caches {
            let (Some(folder), Some(name)) = (what.at.parent(), what.at.file_name()) else { continue };
            create_dir_all(folder)?;
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
            caches.push(Cache { what: what.clone(), folder, name: name.to_os_string() });
        }
        Ok(Self { caches: Mutex::new(caches), aside: aside(plan), over: AtomicBool::new(false) })
    }

    /// The toolchains that have caches.
    pub(crate) fn toolchains(&self) -> Vec<&'static str> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<&str> = caches.iter().map(|cache| cache.what.toolchain).collect();
        names.dedup();
        names
    }

    /// Creates the caches of a toolchain, once. If that fails, the run sees an empty cache.
    pub(crate) fn make(&self, toolchain: &str) {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, cache) in caches.extract_if(.., |cache| cache.what.toolchain == toolchain).enumerate() {
            let made = self.aside.join(format!("{toolchain}-{index}"));
            if link_tree(&cache.what.from, &made, cache.what.real_levels(), &self.over).is_ok() {
                // If the run has created a directory of this name, the rename fails and the run keeps its own.
                let _ =
                    nix::fcntl::renameat(nix::fcntl::AT_FDCWD, &made, &cache.folder, cache.name.as_os_str());
            }
        }
    }

    /// Stops the creation of caches. None is created after this returns.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The directory in which links are created.
pub(crate) fn aside(plan: &LaunchPlan) -> PathBuf {
    plan.run_folder.join("links")
}

/// Creates all caches at once, for a run with mounts but without overlays. The run must not have begun.
pub(crate) fn make_all(plan: &LaunchPlan) -> io::Result<()> {
    let over = AtomicBool::new(false);
    let link = |cache: &LinkedCache| link_tree(&cache.from, &cache.at, cache.real_levels(), &over);
    plan.linked_caches.iter().try_for_each(link)
}

impl LinkedCache {
    /// How many levels of directories must be real ones.
    fn real_levels(&self) -> usize {
        match &self.unpacked_from {
            Some(archives) if is_unpacked(archives, &self.from).unwrap_or(false) => 0,
            _ => self.depth,
        }
    }
}

/// Whether every archive below `archives` is completely unpacked, in the directory of the same name below `unpacked`.
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

/// Creates real directories down to `depth`, and symbolic links to the user's entries below. Stops when `over` is set.
fn link_tree(from: &Path, at: &Path, depth: usize, over: &AtomicBool) -> io::Result<()> {
    create_dir_all(at)?;
    for entry in std::fs::read_dir(from)?.take(MOST_LINKS).flatten() {
        if over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        // Programs open locks and indexes for writing, which would fail through a link to the user's file.
        if Layer::leaves_out(&entry.file_name()) {
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
