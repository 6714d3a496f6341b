//! Sets up the mount namespace of a run.
//!
//! The code runs in the init process of the new namespaces, before any process of the agent exists. It first clones
//! the directory trees that stay writable (or visible below a hidden directory), then makes everything read-only at
//! once, then attaches the clones. Every path that the plan does not list stays read-only, including its metadata.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use serde::Serialize;

use super::SandboxError;
use crate::sys::copy_tree::open_directory;
use crate::sys::fs::{Walk, c_path, open_in};
use crate::sys::mount as sys;

/// A directory of the user, such as a package cache, that the run sees through a writable overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// The user's directory, which is the overlay's lower layer. The run never changes it.
    pub lower: PathBuf,
    /// The directory that receives the run's changes (the overlay's upper layer).
    pub upper: PathBuf,
    /// The work directory that the kernel needs for an overlay.
    pub work: PathBuf,
    /// The path at which the run sees the merged directory.
    pub at: PathBuf,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MountPlan {
    /// Directories and files that the run can still write, with everything below them.
    pub writable: Vec<PathBuf>,
    /// Directories and files that the run can read but not write: those below a directory in `hidden` or `private`, and
    /// git repositories below a directory in `writable`.
    pub visible: Vec<PathBuf>,
    /// Directories that the run sees as empty, except for the paths in `writable` and `visible`.
    pub hidden: Vec<PathBuf>,
    /// Private directories of the run that replace a path such as `/tmp`: (private directory, path at which the run
    /// sees it).
    pub private: Vec<(PathBuf, PathBuf)>,
    /// Paths such as `/dev/shm` where the run gets a private tmpfs.
    pub memory: Vec<PathBuf>,
    pub layers: Vec<Layer>,
    /// Files that guard mounts read-only over other files: (new file, path of the replaced file).
    pub pointers: Vec<(PathBuf, PathBuf)>,
}

impl MountPlan {
    /// Returns the paths at which the run has a private directory or tmpfs.
    pub fn own(&self) -> impl Iterator<Item = &PathBuf> {
        self.private.iter().map(|(_, at)| at).chain(&self.memory)
    }
}

fn in_step<T>(step: impl Into<String>, result: io::Result<T>) -> Result<T, SandboxError> {
    result.map_err(|source| SandboxError::Namespaces { step: step.into(), source })
}

/// The file systems that every run needs and that are not attached to a path yet. [`prepare_mounts`] creates them.
pub struct PreparedMounts {
    proc: OwnedFd,
    terminals: OwnedFd,
    memory: Option<OwnedFd>,
}

/// Prepares the mount namespace of this process. The process must be the only one in new mount and PID namespaces. If
/// it is also in a new user namespace, `user` is the user and group id to map. [`apply_mount_plan`] then makes the
/// mounts.
pub fn prepare_mounts(user: Option<(u32, u32)>) -> Result<PreparedMounts, SandboxError> {
    if let Some((uid, gid)) = user {
        map_user(uid, gid)?;
    }
    // Do this first, so that no mount in this namespace propagates to the host. Mounts that the host makes before
    // `apply_mount_plan` still propagate into this namespace.
    let one_way = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    in_step("stop mount propagation to the host", change_mount(Path::new("/"), one_way))?;
    let plain = sys::NO_SUID | sys::NO_DEVICES | sys::NO_EXEC | sys::READ_ONLY;
    let terminals = [(c"ptmxmode", c"0666"), (c"mode", c"620")];
    Ok(PreparedMounts {
        proc: in_step("create the file system for /proc", sys::make(c"proc", &[], plain))?,
        terminals: in_step(
            "create the file system for /dev/pts",
            sys::make(c"devpts", &terminals, sys::NO_SUID | sys::NO_EXEC),
        )?,
        memory: Some(in_step("create the tmpfs for /dev/shm", make_tmpfs(OWN))?),
    })
}

/// The tmpfs options for directories in which the run stores files.
const OWN: &[(&CStr, &CStr)] = &[(c"mode", c"0700")];
/// The tmpfs options for hidden directories, which contain only mount points.
const EMPTY: &[(&CStr, &CStr)] = &[(c"size", c"1m"), (c"mode", c"0755")];

fn make_tmpfs(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    sys::make(c"tmpfs", options, sys::NO_SUID | sys::NO_DEVICES)
}

/// Mounts a detached tree over an existing path.
fn attach(tree: &OwnedFd, place: &Path) -> io::Result<()> {
    c_path(place).and_then(|path| sys::attach(tree.as_fd(), &path))
}

/// Mounts everything in the plan, and makes the rest of the file system read-only.
pub fn apply_mount_plan(mut prepared: PreparedMounts, plan: &MountPlan) -> Result<(), SandboxError> {
    for layer in &plan.layers {
        mount_overlay(layer)?;
    }
    let mut trees = clone_trees(plan)?;
    in_step("make everything read-only", sys::restrict_tree(c"/", sys::READ_ONLY | sys::NO_SUID))?;
    in_step("mount /proc", attach(&prepared.proc, Path::new("/proc")))?;
    in_step("mount /dev/pts", attach(&prepared.terminals, Path::new("/dev/pts")))?;
    for directory in &plan.hidden {
        let hide = make_tmpfs(EMPTY).and_then(|memory| attach(&memory, directory));
        in_step(format!("hide {}", directory.display()), hide)?;
    }
    for directory in &plan.memory {
        let tmpfs = prepared.memory.take().map_or_else(|| make_tmpfs(OWN), Ok);
        let mounted = tmpfs.and_then(|memory| attach(&memory, directory));
        in_step(format!("mount a private tmpfs at {}", directory.display()), mounted)?;
    }
    // Attach outer paths first, so that inner trees end up on top of them.
    trees.sort_by_key(|(_, place)| place.components().count());
    for (tree, place) in &trees {
        let step = format!("mount {}", place.display());
        in_step(&*step, create_mount_point(place, tree))?;
        in_step(step, attach(tree, place))?;
    }
    for hidden in &plan.hidden {
        let flags = MsFlags::MS_REMOUNT
            | MsFlags::MS_BIND
            | MsFlags::MS_RDONLY
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV;
        let step = format!("make the hidden directory {} read-only", hidden.display());
        in_step(step, change_mount(hidden, flags))?;
    }
    // The working directory still refers to the old mounts, so change to the root of the new ones.
    in_step("change the working directory to /", std::env::set_current_dir("/"))
}

fn change_mount(target: &Path, flags: MsFlags) -> io::Result<()> {
    let none = None::<&str>;
    mount(none, target, none, flags, none).map_err(io::Error::from)
}

fn map_user(uid: u32, gid: u32) -> Result<(), SandboxError> {
    in_step("disable setgroups", std::fs::write("/proc/self/setgroups", "deny"))?;
    in_step("map the user id", std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1\n")))?;
    in_step("map the group id", std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1\n")))
}

/// Mounts a writable overlay whose lower layer is a directory of the user. Fails if the kernel or the file system does
/// not support overlays, or if a path contains a comma, colon or backslash. Also fails if there is a symbolic link in the
/// path of the lower layer: another process has put it there since guard planned the run.
fn mount_overlay(layer: &Layer) -> Result<(), SandboxError> {
    let option = |name: &str, path: &Path| -> io::Result<Vec<u8>> {
        let bytes = path.as_os_str().as_bytes();
        // These bytes separate options and layers in mount options. guard does not escape them, because such paths
        // are rare.
        if bytes.iter().any(|byte| matches!(byte, b',' | b':' | b'\\')) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok([name.as_bytes(), b"=", bytes].concat())
    };
    let failed = |source: io::Error| SandboxError::Overlay { lower: layer.lower.clone(), source };
    let lower = open_directory(&layer.lower).map_err(failed)?;
    let options = || -> io::Result<Vec<u8>> {
        let parts = [
            option("lowerdir", &Path::new("/proc/self/fd").join(lower.as_raw_fd().to_string()))?,
            option("upperdir", &layer.upper)?,
            option("workdir", &layer.work)?,
            b"userxattr".to_vec(),
            // guard deletes the layer after the run. Without `volatile`, unmounting the overlay would sync all dirty
            // pages of the file system.
            b"volatile".to_vec(),
        ];
        Ok(parts.join(&b','))
    };
    let options = options().map_err(failed)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let data = OsStr::from_bytes(&options);
    mount(Some("guard"), &layer.at, Some("overlay"), flags, Some(data)).map_err(|error| failed(error.into()))
}

fn clone_trees(plan: &MountPlan) -> Result<Vec<(OwnedFd, PathBuf)>, SandboxError> {
    let root = in_step("open /", File::open("/"))?;
    let clone_at = |from: &Path| c_path(from).and_then(|path| sys::clone_tree(&path));
    // The plan has resolved all symbolic links in the paths of grants. A link that another process has put there
    // meanwhile is an error.
    let clone_granted = |from: &Path| {
        let opened = open_in(root.as_fd(), &c_path(from)?, Walk::NoLinks, true)?;
        sys::clone_tree_of(opened.as_fd())
    };
    let named = |from: &Path, cloned| in_step(format!("clone the mounts at {}", from.display()), cloned);
    let copy = |from: &Path| named(from, clone_at(from));
    let copy_granted = |from: &Path| named(from, clone_granted(from));
    let mut trees = Vec::new();
    for path in &plan.writable {
        let tree = copy_granted(path)?;
        in_step("restrict cloned mounts", sys::restrict_copy(tree.as_fd(), sys::NO_SUID | sys::NO_DEVICES))?;
        trees.push((tree, path.clone()));
    }
    for path in &plan.visible {
        let tree = copy_granted(path)?;
        in_step(
            "restrict cloned mounts",
            sys::restrict_copy(tree.as_fd(), sys::READ_ONLY | sys::NO_SUID | sys::NO_DEVICES),
        )?;
        trees.push((tree, path.clone()));
    }
    for (file, place) in &plan.pointers {
        let tree = copy(file)?;
        in_step(
            "restrict cloned mounts",
            sys::restrict_copy(tree.as_fd(), sys::READ_ONLY | sys::NO_SUID | sys::NO_DEVICES),
        )?;
        trees.push((tree, place.clone()));
    }
    for (source, place) in &plan.private {
        let tree = copy(source)?;
        in_step("restrict cloned mounts", sys::restrict_copy(tree.as_fd(), sys::NO_SUID | sys::NO_DEVICES))?;
        trees.push((tree, place.clone()));
    }
    Ok(trees)
}

/// Creates the mount point of a tree if it is missing. This works only in directories that the run can write to, and in
/// hidden directories, which are still writable at this point.
fn create_mount_point(place: &Path, tree: &OwnedFd) -> io::Result<()> {
    if place.symlink_metadata().is_ok() {
        return Ok(());
    }
    if let Some(parent) = place.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let is_directory = nix::sys::stat::fstat(tree)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    if is_directory { std::fs::create_dir(place) } else { File::create(place).map(drop) }
}
