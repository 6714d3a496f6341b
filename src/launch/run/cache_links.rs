//! The user's package caches for a run without mounts of its own: directories of symbolic links, made when a program starts that
//! may use them. A cache has thousands of entries, and most runs look at none.
//!
//! The run is at work by then, and may do with its home what it likes. So the links are made in a directory it cannot reach,
//! and moved as a whole, by descriptors that were opened before it began: whatever lies at a path now is not followed.

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

/// More entries are not worth the time; the rest of such a cache is not seen.
const MOST_LINKS: usize = 20_000;

/// A cache of the user that shows through as a directory of symbolic links.
#[derive(Debug, Clone, Serialize)]
pub struct LinkedCache {
    /// The toolchain it belongs to.
    pub toolchain: &'static str,
    /// The user's.
    pub from: PathBuf,
    /// The run's own.
    pub at: PathBuf,
    /// Levels of directories below it that are the run's own, too.
    pub depth: usize,
    /// None of them need to be when everything in this directory is unpacked already.
    pub unpacked_from: Option<PathBuf>,
}

/// The caches of toolchains: as layers for a run with mounts, as links for one without.
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

/// The dependencies of the user's checkout, as layers for a run with mounts.
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

/// The same as links, for a run without mounts, or without layers. The run must not have begun.
pub(crate) fn link_dependencies(plan: &LaunchPlan) -> io::Result<()> {
    for (at, from) in plan.checkout.iter().flat_map(|checkout| &checkout.dependencies) {
        // Where a layer was to be mounted.
        let _ = std::fs::remove_dir(at);
        symlink(from, at)?;
    }
    Ok(())
}

/// One cache that can be made.
struct Cache {
    what: LinkedCache,
    /// The directory of the private home it will lie in, and its name there.
    folder: File,
    name: OsString,
}

/// The caches of a run.
pub(crate) struct Links {
    caches: Mutex<Vec<Cache>>,
    /// Out of the run's reach, on the same file system.
    aside: PathBuf,
    over: AtomicBool,
}

impl Links {
    /// Makes the directories that the caches will lie in. The run must not have begun.
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

    /// The toolchains that have any.
    pub(crate) fn toolchains(&self) -> Vec<&'static str> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<&str> = caches.iter().map(|cache| cache.what.toolchain).collect();
        names.dedup();
        names
    }

    /// Makes those of a toolchain, once. What cannot be made is a cache that is empty.
    pub(crate) fn make(&self, toolchain: &str) {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, cache) in caches.extract_if(.., |cache| cache.what.toolchain == toolchain).enumerate() {
            let made = self.aside.join(format!("{toolchain}-{index}"));
            if link_tree(&cache.what.from, &made, cache.what.real_levels(), &self.over).is_ok() {
                // A run that has made a directory of this name keeps its own.
                let _ =
                    nix::fcntl::renameat(nix::fcntl::AT_FDCWD, &made, &cache.folder, cache.name.as_os_str());
            }
        }
    }

    /// Nothing is made any more when this comes back.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Where links are made.
pub(crate) fn aside(plan: &LaunchPlan) -> PathBuf {
    plan.run_folder.join("links")
}

/// All of them at once, for a run that has mounts but none for its caches, and has not begun.
pub(crate) fn make_all(plan: &LaunchPlan) -> io::Result<()> {
    let over = AtomicBool::new(false);
    let link = |cache: &LinkedCache| link_tree(&cache.from, &cache.at, cache.real_levels(), &over);
    plan.linked_caches.iter().try_for_each(link)
}

impl LinkedCache {
    /// How many levels of directories the run has to have as its own.
    fn real_levels(&self) -> usize {
        match &self.unpacked_from {
            Some(archives) if is_unpacked(archives, &self.from).unwrap_or(false) => 0,
            _ => self.depth,
        }
    }
}

/// Whether every archive in the directories of the one is unpacked, and wholly, in the directories of the same names of the other.
fn is_unpacked(archives: &Path, unpacked: &Path) -> io::Result<bool> {
    for registry in std::fs::read_dir(archives)? {
        let registry = registry?;
        for archive in std::fs::read_dir(registry.path())? {
            let name = archive?.file_name();
            let (Some(name), true) = (Path::new(&name).file_stem(), name.as_bytes().ends_with(b".crate"))
            else {
                continue;
            };
            // What cargo writes when it is done.
            let done = unpacked.join(registry.file_name()).join(name).join(".cargo-ok");
            if !done.symlink_metadata().is_ok_and(|done| done.is_file()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Real directories down to a depth, and symbolic links to the user's from there. Breaks off when it is over.
fn link_tree(from: &Path, at: &Path, depth: usize, over: &AtomicBool) -> io::Result<()> {
    create_dir_all(at)?;
    for entry in std::fs::read_dir(from)?.take(MOST_LINKS).flatten() {
        if over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        // A lock or an index that programs open for writing: a link to the user's would only fail.
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
