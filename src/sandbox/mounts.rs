//! Sets up the mount namespace of a run.
//!
//! The code runs in the init of the new namespaces, before any process of the agent exists. It first clones the trees
//! that stay writable (or visible below a hidden directory), then makes everything read-only at once, then attaches
//! the clones. Everything not listed in the plan stays read-only, metadata included.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use serde::Serialize;

use super::SandboxError;
use crate::sys::mount as sys;

/// A cache directory of the user with a writable overlay on top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// The user's directory; never written.
    pub lower: PathBuf,
    /// Receives the run's changes.
    pub upper: PathBuf,
    /// The overlay's work directory.
    pub work: PathBuf,
    /// Where the run sees the merged directory.
    pub at: PathBuf,
}

/// Everything to mount for a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MountPlan {
    /// Trees that stay writable.
    pub writable: Vec<PathBuf>,
    /// Trees that stay visible, read-only, although a directory above them is hidden.
    pub visible: Vec<PathBuf>,
    /// Directories that appear empty except for the trees above.
    pub hidden: Vec<PathBuf>,
    /// (directory of the run, path where it appears): `/tmp` and the like.
    pub private: Vec<(PathBuf, PathBuf)>,
    /// Paths that get a tmpfs of the run's own: `/dev/shm`.
    pub memory: Vec<PathBuf>,
    /// Caches with a writable overlay.
    pub layers: Vec<Layer>,
    /// (file, path of the file it replaces), read-only.
    pub pointers: Vec<(PathBuf, PathBuf)>,
}

impl MountPlan {
    /// The paths at which the run has its own directory or tmpfs.
    pub fn own(&self) -> impl Iterator<Item = &PathBuf> {
        self.private.iter().map(|(_, at)| at).chain(&self.memory)
    }
}

fn at<T>(step: impl Into<String>, result: io::Result<T>) -> Result<T, SandboxError> {
    result.map_err(|source| SandboxError::Namespaces { step: step.into(), source })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The file systems that every run needs, made in a process with its own mount namespace.
pub struct Unshared {
    proc: OwnedFd,
    terminals: OwnedFd,
    memory: Option<OwnedFd>,
}

/// Prepares this process's mount namespace. The process must be alone in new mount and PID namespaces; in a new user
/// namespace, `user` gives the ids to map. [`enter`] applies the plan later.
pub fn part(user: Option<(u32, u32)>) -> Result<Unshared, SandboxError> {
    if let Some((uid, gid)) = user {
        map_user(uid, gid)?;
    }
    // First of all: no mount made here may propagate to the host. Mounts made on the host until `enter` still
    // propagate here.
    let one_way = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    at("cut off from other mounts", change_mount(Path::new("/"), one_way))?;
    let plain = sys::NO_SUID | sys::NO_DEVICES | sys::NO_EXEC | sys::READ_ONLY;
    let terminals = [(c"ptmxmode", c"0666"), (c"mode", c"620")];
    Ok(Unshared {
        proc: at("make /proc", sys::make(c"proc", &[], plain))?,
        terminals: at("make /dev/pts", sys::make(c"devpts", &terminals, sys::NO_SUID | sys::NO_EXEC))?,
        memory: Some(at("make /dev/shm", make_memory(OWN))?),
    })
}

/// tmpfs options for files of the run.
const OWN: &[(&CStr, &CStr)] = &[(c"mode", c"0700")];
/// tmpfs options for hidden directories, which hold nothing but mount points.
const EMPTY: &[(&CStr, &CStr)] = &[(c"size", c"1m"), (c"mode", c"0755")];

fn make_memory(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    sys::make(c"tmpfs", options, sys::NO_SUID | sys::NO_DEVICES)
}

/// Attaches a tree over an existing path.
fn put(tree: &OwnedFd, place: &Path) -> io::Result<()> {
    c_path(place).and_then(|path| sys::attach(tree.as_fd(), &path))
}

/// Applies the plan.
pub fn enter(mut apart: Unshared, view: &MountPlan) -> Result<(), SandboxError> {
    for layer in &view.layers {
        put_layer(layer)?;
    }
    let mut trees = copies(view)?;
    at("make everything read-only", sys::restrict_tree(c"/", sys::READ_ONLY | sys::NO_SUID))?;
    at("mount /proc", put(&apart.proc, Path::new("/proc")))?;
    at("mount /dev/pts", put(&apart.terminals, Path::new("/dev/pts")))?;
    for folder in &view.hidden {
        let hide = make_memory(EMPTY).and_then(|memory| put(&memory, folder));
        at(format!("hide {}", folder.display()), hide)?;
    }
    for folder in &view.memory {
        let renew = apart.memory.take().map_or_else(|| make_memory(OWN), Ok);
        at(format!("renew {}", folder.display()), renew.and_then(|memory| put(&memory, folder)))?;
    }
    // Outer paths first, so that inner trees end up on top of them.
    trees.sort_by_key(|(_, place)| place.components().count());
    for (tree, place) in &trees {
        let step = format!("put {} in place", place.display());
        at(&*step, make_place(place, tree))?;
        at(step, put(tree, place))?;
    }
    for hidden in &view.hidden {
        let flags = MsFlags::MS_REMOUNT
            | MsFlags::MS_BIND
            | MsFlags::MS_RDONLY
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV;
        at(format!("seal {}", hidden.display()), change_mount(hidden, flags))?;
    }
    // The working directory still refers to the old mounts.
    at("enter /", std::env::set_current_dir("/"))
}

fn change_mount(target: &Path, flags: MsFlags) -> io::Result<()> {
    let none = None::<&str>;
    mount(none, target, none, flags, none).map_err(io::Error::from)
}

fn map_user(uid: u32, gid: u32) -> Result<(), SandboxError> {
    at("map the group", std::fs::write("/proc/self/setgroups", "deny"))?;
    at("map the user", std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1\n")))?;
    at("map the group", std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1\n")))
}

/// Mounts an overlay of a cache and the run's own layer. Fails if the kernel or the file system does not support it.
fn put_layer(layer: &Layer) -> Result<(), SandboxError> {
    let option = |name: &str, path: &Path| -> io::Result<Vec<u8>> {
        let bytes = path.as_os_str().as_bytes();
        // These bytes separate options and layers. Caches in such directories are rare, so paths are not escaped.
        if bytes.iter().any(|byte| matches!(byte, b',' | b':' | b'\\')) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok([name.as_bytes(), b"=", bytes].concat())
    };
    let failed = |source: io::Error| SandboxError::Overlay { lower: layer.lower.clone(), source };
    let options = || -> io::Result<Vec<u8>> {
        let parts = [
            option("lowerdir", &layer.lower)?,
            option("upperdir", &layer.upper)?,
            option("workdir", &layer.work)?,
            b"userxattr".to_vec(),
            // The layer is deleted with the run. Without `volatile`, unmounting it would sync all dirty pages of the
            // file system.
            b"volatile".to_vec(),
        ];
        Ok(parts.join(&b','))
    };
    let options = options().map_err(failed)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let data = OsStr::from_bytes(&options);
    mount(Some("guard"), &layer.at, Some("overlay"), flags, Some(data)).map_err(|error| failed(error.into()))
}

fn copies(view: &MountPlan) -> Result<Vec<(OwnedFd, PathBuf)>, SandboxError> {
    let copy = |from: &Path| {
        at(format!("copy {}", from.display()), c_path(from).and_then(|path| sys::clone_tree(&path)))
    };
    let mut trees = Vec::new();
    for path in &view.writable {
        let tree = copy(path)?;
        at("restrict a copy", sys::restrict_copy(tree.as_fd(), sys::NO_SUID | sys::NO_DEVICES))?;
        trees.push((tree, path.clone()));
    }
    for path in &view.visible {
        let tree = copy(path)?;
        at(
            "restrict a copy",
            sys::restrict_copy(tree.as_fd(), sys::READ_ONLY | sys::NO_SUID | sys::NO_DEVICES),
        )?;
        trees.push((tree, path.clone()));
    }
    for (file, place) in &view.pointers {
        let tree = copy(file)?;
        at(
            "restrict a copy",
            sys::restrict_copy(tree.as_fd(), sys::READ_ONLY | sys::NO_SUID | sys::NO_DEVICES),
        )?;
        trees.push((tree, place.clone()));
    }
    for (source, place) in &view.private {
        let tree = copy(source)?;
        at("restrict a copy", sys::restrict_copy(tree.as_fd(), sys::NO_SUID | sys::NO_DEVICES))?;
        trees.push((tree, place.clone()));
    }
    Ok(trees)
}

/// Creates the mount point of a tree if it is missing, which is possible in the run's own directories.
fn make_place(place: &Path, tree: &OwnedFd) -> io::Result<()> {
    if place.symlink_metadata().is_ok() {
        return Ok(());
    }
    if let Some(parent) = place.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let is_folder = nix::sys::stat::fstat(tree)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    if is_folder { std::fs::create_dir(place) } else { std::fs::File::create(place).map(drop) }
}
