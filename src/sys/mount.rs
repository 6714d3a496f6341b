//! Creates and attaches detached mounts. guard clones or creates a tree of mounts, makes everything else read-only,
//! and then attaches the tree.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const AT_RECURSIVE: libc::c_int = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

pub const READ_ONLY: u64 = 1;
/// Mount attribute: the kernel ignores set-user-ID bits.
pub const NO_SUID: u64 = 2;
/// Mount attribute: no process can use device files.
pub const NO_DEVICES: u64 = 4;
/// Mount attribute: no process can execute programs.
pub const NO_EXEC: u64 = 8;

/// Creates a new file system of the type `kind`, such as tmpfs, as a detached mount.
pub fn make(kind: &CStr, options: &[(&CStr, &CStr)], attributes: u64) -> io::Result<OwnedFd> {
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: the texts are null-terminated and live through the calls, or null where the call needs none. The kernel
    // has just created the descriptors, and nothing else owns them.
    unsafe {
        let context = check(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC))?;
        let context = OwnedFd::from_raw_fd(context as i32);
        let configure = |what: libc::c_uint, key: *const libc::c_char, value: *const libc::c_char| {
            check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), what, key, value, 0)).map(drop)
        };
        for (name, value) in [(c"source", c"guard")].iter().chain(options) {
            configure(FSCONFIG_SET_STRING, name.as_ptr(), value.as_ptr())?;
        }
        configure(FSCONFIG_CMD_CREATE, none, none)?;
        let mount = libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes);
        Ok(OwnedFd::from_raw_fd(check(mount)? as i32))
    }
}

/// Clones the mounts at and below a path into a detached tree.
pub fn clone_tree(path: &CStr) -> io::Result<OwnedFd> {
    open_tree(libc::AT_FDCWD, path, 0)
}

/// Clones the mounts at and below the file or directory of a descriptor into a detached tree.
pub fn clone_tree_of(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_tree(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH as libc::c_uint)
}

fn open_tree(directory: libc::c_int, path: &CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    let flags = flags | OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint | AT_RECURSIVE as libc::c_uint;
    // SAFETY: the path is null-terminated.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn attach(tree: BorrowedFd<'_>, at: &CStr) -> io::Result<()> {
    // SAFETY: both paths are null-terminated.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
    .map(drop)
}

#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_attributes(
    directory: i32,
    path: &CStr,
    flags: libc::c_int,
    attributes: &Attributes,
) -> io::Result<()> {
    // SAFETY: a null-terminated path, and a structure with its size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    })
    .map(drop)
}

/// Adds attributes to every mount at and below a path, and makes these mounts private (no propagation).
pub fn restrict_tree(path: &CStr, attributes: u64) -> io::Result<()> {
    let wanted = Attributes { set: attributes, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 };
    set_attributes(libc::AT_FDCWD, path, AT_RECURSIVE, &wanted)
}

/// Adds attributes to every mount of a detached tree, and makes these mounts private (no propagation).
pub fn restrict_copy(tree: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let wanted = Attributes { set: attributes, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 };
    set_attributes(tree.as_raw_fd(), c"", AT_RECURSIVE | libc::AT_EMPTY_PATH, &wanted)
}
