//! The user's package caches for a run without mounts of its own: folders of symbolic links, made when a program starts that
//! may use them. A cache has thousands of entries, and most runs look at none.
//!
//! The run is at work by then, and may do with its home what it likes. So the links are made in a folder it cannot reach,
//! and moved as a whole, by descriptors that were opened before it began: whatever lies at a path now is not followed.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::plan::LaunchPlan;
use super::toolchain::Layer;

/// More entries are not worth the time; the rest of such a cache is not seen.
const MOST_LINKS: usize = 20_000;

/// One cache that can be made.
struct Cache {
    /// The user's.
    from: PathBuf,
    /// The folder of the private home it will lie in, and its name there.
    folder: File,
    name: OsString,
    /// Real levels.
    depth: usize,
}

/// The caches of a run.
pub(super) struct Links {
    caches: Mutex<Vec<Cache>>,
    /// Out of the run's reach, on the same file system.
    aside: PathBuf,
    over: AtomicBool,
}

impl Links {
    /// Makes the folders that the caches will lie in. The run must not have begun.
    pub(super) fn open(plan: &LaunchPlan) -> io::Result<Self> {
        let mut caches = Vec::new();
        for (from, at, depth) in &plan.linked_caches {
            let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else { continue };
            create_dir_all(folder)?;
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
            caches.push(Cache { from: from.clone(), folder, name: name.to_os_string(), depth: *depth });
        }
        Ok(Self { caches: Mutex::new(caches), aside: aside(plan), over: AtomicBool::new(false) })
    }

    /// Makes them all, once. What cannot be made is a cache that is empty.
    pub(super) fn make(&self) {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, cache) in std::mem::take(&mut *caches).into_iter().enumerate() {
            let made = self.aside.join(index.to_string());
            if link_tree(&cache.from, &made, cache.depth, &self.over).is_ok() {
                // A run that has made a folder of this name keeps its own.
                let _ =
                    nix::fcntl::renameat(nix::fcntl::AT_FDCWD, &made, &cache.folder, cache.name.as_os_str());
            }
        }
    }

    /// Nothing is made any more when this comes back.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Where links are made.
pub(super) fn aside(plan: &LaunchPlan) -> PathBuf {
    plan.run_folder.join("links")
}

/// All of them at once, for a run that has mounts but none for its caches, and has not begun.
pub(super) fn make_all(plan: &LaunchPlan) -> io::Result<()> {
    let over = AtomicBool::new(false);
    plan.linked_caches.iter().try_for_each(|(from, at, depth)| link_tree(from, at, *depth, &over))
}

/// Real folders down to a depth, and symbolic links to the user's from there. Breaks off when it is over.
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
