//! The run's own view of the file system, where namespaces can be had.
//!
//! Runs in init of the new namespaces, before anything of the agent does. Copies of the trees that stay
//! writable (or visible below what is hidden) are taken first; then everything is made read-only at once; then the
//! copies are put in their places. What is left out stays read-only, metadata included.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use serde::Serialize;

use super::SandboxError;
use crate::sys::mount as sys;

/// A cache of the user's with a writable layer on top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// The user's directory, never written.
    pub lower: PathBuf,
    /// Where changes go.
    pub upper: PathBuf,
    /// The kernel's own work directory beside it.
    pub work: PathBuf,
    /// Where the run sees both as one.
    pub at: PathBuf,
}

/// What the run sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MountPlan {
    /// Trees that stay writable.
    pub writable: Vec<PathBuf>,
    /// Trees that stay visible, read-only, though something above them is hidden.
    pub visible: Vec<PathBuf>,
    /// Directories that are empty but for the trees above.
    pub hidden: Vec<PathBuf>,
    /// (a directory of the run, the usual path it appears at): `/tmp` and the like.
    pub private: Vec<(PathBuf, PathBuf)>,
    /// The same in memory: `/dev/shm`.
    pub memory: Vec<PathBuf>,
    /// Caches with a writable layer.
    pub layers: Vec<Layer>,
    /// (a file, the file it takes the place of), read-only.
    pub pointers: Vec<(PathBuf, PathBuf)>,
}

impl MountPlan {
    /// The usual paths at which the run has something of its own.
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

/// A process whose mounts are nobody else's, with those it will need whatever it is to see.
pub struct Unshared {
    proc: OwnedFd,
    terminals: OwnedFd,
    memory: Option<OwnedFd>,
}

/// Takes this process out of everybody's sight; it must be alone in new mount and PID namespaces, and in a user namespace
/// that is to have these maps (user, group), if one was made. What a view is made of comes with [`enter`].
pub fn part(user: Option<(u32, u32)>) -> Result<Unshared, SandboxError> {
    if let Some((uid, gid)) = user {
        map_user(uid, gid)?;
    }
    // Before anything else: nothing done here may be seen outside. What is mounted there until the view is set up still comes.
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

/// Options of a file system in memory: for files of the run's own.
const OWN: &[(&CStr, &CStr)] = &[(c"mode", c"0700")];
/// For directories that lead to what lies in them, and hold nothing.
const EMPTY: &[(&CStr, &CStr)] = &[(c"size", c"1m"), (c"mode", c"0755")];

fn make_memory(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    sys::make(c"tmpfs", options, sys::NO_SUID | sys::NO_DEVICES)
}

/// Puts a tree over a path, which must be there.
fn put(tree: &OwnedFd, place: &Path) -> io::Result<()> {
    c_path(place).and_then(|path| sys::attach(tree.as_fd(), &path))
}

/// Sets the view up.
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
    // Outer places first: inner ones are put on top of them.
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
    // The working directory was looked up before the mounts changed.
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

/// A cache and the run's own layer as one directory. Fails where the kernel or the file system cannot.
fn put_layer(layer: &Layer) -> Result<(), SandboxError> {
    let option = |name: &str, path: &Path| -> io::Result<Vec<u8>> {
        let bytes = path.as_os_str().as_bytes();
        // These separate options and layers; a cache in such a directory is not worth an escape syntax.
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
            // The layer goes with the run. Without this its unmounting writes out everything that waits for the disk,
            // whoever wrote it.
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

/// The file or directory a tree is put on, made where it lies in a directory of the run's own.
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
