//! Handles changes of file metadata (mode, owner, times, extended attributes), which Landlock does not cover.
//!
//! If the run has no mount namespace, the filter sends all of these calls to the supervisor. Otherwise it sends only
//! calls that set the set-group-ID bit, which the run may set on directories but not on files. The supervisor opens the
//! object once with `O_PATH`, checks where it is, and makes the change through that descriptor with the agent's rights.
//! If the agent swaps the path meanwhile, that has no effect.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::call_context::{CallContext, SandboxDenial};
use super::exec::process_memory::ProcessMemory;
use super::process_info::cwd_of;
use super::sockets::open_below;
use crate::run::transcript::EventType;
use crate::sys::seccomp::{Notification, Reply};
use crate::sys::{fs, process};

const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 64 << 10;

const OUTSIDE: SandboxDenial<'_> = SandboxDenial {
    rule: "sandbox.metadata",
    reason: "The path is outside the directories that the run may write to.",
    instead: "Change files in the working tree or in $TMPDIR only.",
    allow_with: None,
};
const SET_ID: SandboxDenial<'_> = SandboxDenial {
    rule: "sandbox.set-id",
    reason: "A set-user-ID or set-group-ID file would give the rights of its owner or group to every user who runs it.",
    instead: "Leave these two bits out of the mode.",
    allow_with: None,
};

const SET_ID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;

/// The file system object that a call refers to.
struct Object {
    /// The descriptor from which a relative path starts or, if there is no path, the descriptor of the object itself.
    /// `None` for calls without such an argument.
    descriptor: Option<i32>,
    /// The address of the path in the caller's memory; `None` for calls that name the object by a descriptor.
    path: Option<u64>,
    follow: bool,
    /// Whether an empty path refers to the object behind the descriptor.
    may_be_empty: bool,
}

impl Object {
    fn path(path: u64, follow: bool) -> Self {
        Self { descriptor: None, path: Some(path), follow, may_be_empty: false }
    }

    fn descriptor(number: u64) -> Self {
        Self { descriptor: Some(number as i32), path: None, follow: true, may_be_empty: true }
    }

    fn at(directory: u64, path: u64, flags: u64) -> Self {
        let flags = flags as i32;
        Self {
            descriptor: Some(directory as i32),
            path: Some(path),
            follow: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
            may_be_empty: flags & libc::AT_EMPTY_PATH != 0,
        }
    }
}

/// The change of metadata that the caller requests.
enum Change {
    Mode(u32),
    Owner(u32, u32),
    Times(Option<[(i64, i64); 2]>),
    SetAttribute { name: CString, value: Vec<u8>, flags: i32 },
    RemoveAttribute(CString),
}

pub(crate) struct MetadataHandler {
    /// Paths outside the worktree that the run may read but not write, among them the git object directories of the
    /// user's repository.
    objects: Vec<PathBuf>,
}

impl MetadataHandler {
    pub(crate) fn new(objects: Vec<PathBuf>) -> Self {
        Self { objects }
    }

    /// Handles a call that changes metadata: performs it for the caller if the run may change the object, and otherwise
    /// denies it. `call` is the name of the system call.
    pub(crate) fn change_metadata(
        &self,
        context: &mut CallContext,
        notification: &Notification,
        call: &'static str,
    ) -> Reply {
        let memory = context.memory_of(notification.tid);
        let made = read_change(memory, notification, call).and_then(|(object, change)| {
            let fd = open_object(context, notification, &object)?;
            if context.is_waiting(notification) {
                Ok((fd, change))
            } else {
                Err(io::Error::from_raw_os_error(libc::ESRCH))
            }
        });
        let (fd, change) = match made {
            Ok(made) => made,
            Err(error) => return Reply::Error(error.raw_os_error().unwrap_or(libc::EPERM)),
        };
        if !context.identities().is_in_writable_mount(notification.tid, fd.as_fd())
            && !has_no_path(fd.as_fd())
        {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
            // git updates the times of objects that it need not write again, and ignores failures. So do not record
            // this as a denial.
            let is_touch = call == "utime" || call == "utimensat" || call == "utimes";
            if is_touch && self.objects.iter().any(|directory| path.starts_with(directory)) {
                return Reply::Error(libc::EROFS);
            }
            let what = format!("{call} of {}", path.display());
            context.deny_and_explain(EventType::DenyMetadata, notification, OUTSIDE.rule, &what, &OUTSIDE);
            return Reply::Error(libc::EPERM);
        }
        if let Change::Mode(mode) = change
            && mode & SET_ID_BITS != 0
            && !(mode & SET_ID_BITS == libc::S_ISGID && is_directory(fd.as_fd()))
        {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
            let what = format!("{call} of {} to {:04o}", path.display(), mode & 0o7777);
            context.deny_and_explain(EventType::DenyMetadata, notification, SET_ID.rule, &what, &SET_ID);
            return Reply::Error(libc::EPERM);
        }
        match apply(fd.as_fd(), change) {
            Ok(()) => Reply::Value(0),
            Err(error) => Reply::Error(error.raw_os_error().unwrap_or(libc::EPERM)),
        }
    }
}

/// Returns true if an object is a pipe, socket or memfd, which has no path. The caller has it open, so the caller may
/// change it.
fn has_no_path(fd: BorrowedFd<'_>) -> bool {
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) else { return false };
    let text = path.to_string_lossy();
    text.starts_with("/memfd:") || !text.starts_with('/')
}

fn read_change(
    memory: &mut ProcessMemory,
    notification: &Notification,
    call: &str,
) -> io::Result<(Object, Change)> {
    let [a, b, c, d, e, f] = notification.arguments;
    Ok(match call {
        "chmod" => (Object::path(a, true), Change::Mode(b as u32)),
        "fchmod" => (Object::descriptor(a), Change::Mode(b as u32)),
        "fchmodat" => (Object::at(a, b, 0), Change::Mode(c as u32)),
        "fchmodat2" => (Object::at(a, b, d), Change::Mode(c as u32)),
        "chown" => (Object::path(a, true), Change::Owner(b as u32, c as u32)),
        "lchown" => (Object::path(a, false), Change::Owner(b as u32, c as u32)),
        "fchown" => (Object::descriptor(a), Change::Owner(b as u32, c as u32)),
        "fchownat" => (Object::at(a, b, e), Change::Owner(c as u32, d as u32)),
        "utime" => (Object::path(a, true), Change::Times(seconds(memory, b)?)),
        "utimes" => (Object::path(a, true), Change::Times(microseconds(memory, b)?)),
        "futimesat" if b == 0 => (Object::descriptor(a), Change::Times(microseconds(memory, c)?)),
        "futimesat" => (Object::at(a, b, 0), Change::Times(microseconds(memory, c)?)),
        "utimensat" if b == 0 => (Object::descriptor(a), Change::Times(nanoseconds(memory, c)?)),
        "utimensat" => (Object::at(a, b, d), Change::Times(nanoseconds(memory, c)?)),
        "setxattr" => (Object::path(a, true), set_attribute(memory, b, c, d, e)?),
        "lsetxattr" => (Object::path(a, false), set_attribute(memory, b, c, d, e)?),
        "fsetxattr" => (Object::descriptor(a), set_attribute(memory, b, c, d, e)?),
        "removexattr" => (Object::path(a, true), Change::RemoveAttribute(attribute_name(memory, b)?)),
        "lremovexattr" => (Object::path(a, false), Change::RemoveAttribute(attribute_name(memory, b)?)),
        "fremovexattr" => (Object::descriptor(a), Change::RemoveAttribute(attribute_name(memory, b)?)),
        "setxattrat" => {
            let [value, size, flags] = xattr_args(memory, e, f)?;
            (Object::at(a, b, c), set_attribute(memory, d, value, size, flags)?)
        }
        "removexattrat" => (Object::at(a, b, c), Change::RemoveAttribute(attribute_name(memory, d)?)),
        _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    })
}

fn open_object(
    context: &mut CallContext,
    notification: &Notification,
    object: &Object,
) -> io::Result<OwnedFd> {
    let tid = notification.tid;
    let path = match object.path {
        Some(address) => context.memory_of(tid).string(address, LONGEST_PATH)?,
        None => Vec::new(),
    };
    let number = object.descriptor.filter(|&number| number != libc::AT_FDCWD || path.is_empty());
    if path.is_empty() {
        return match number {
            Some(number) if object.may_be_empty && number != libc::AT_FDCWD => {
                process::descriptor_of(context.thread_pidfd(notification)?.as_fd(), number)
            }
            Some(_) if object.may_be_empty => {
                let directory = cwd_of(tid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
                context.identities().open(tid, Path::new("/"), directory.as_os_str().as_encoded_bytes(), true)
            }
            _ => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        };
    }
    if let Some(number) = number
        && path.first() != Some(&b'/')
    {
        let directory = process::descriptor_of(context.thread_pidfd(notification)?.as_fd(), number)?;
        return open_below(directory.as_fd(), &path, object.follow);
    }
    let directory = cwd_of(tid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    context.identities().open(tid, &directory, &path, object.follow)
}

fn attribute_name(memory: &mut ProcessMemory, address: u64) -> io::Result<CString> {
    Ok(CString::new(memory.string(address, LONGEST_NAME)?)?)
}

/// Reads the `struct xattr_args { u64 value; u32 size; u32 flags; }` of `setxattrat`: value, size and flags. Like the
/// kernel, accepts a longer structure of a later version if its additional fields are zero.
fn xattr_args(memory: &mut ProcessMemory, address: u64, length: u64) -> io::Result<[u64; 3]> {
    const KNOWN: u64 = 16;
    const LONGEST: u64 = 4096;
    if length < KNOWN {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if length > LONGEST {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let raw = memory.bytes(address, length as usize)?;
    if raw[KNOWN as usize..].iter().any(|&byte| byte != 0) {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let number = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let value = u64::from(number(0)) | u64::from(number(4)) << 32;
    Ok([value, u64::from(number(8)), u64::from(number(12))])
}

fn set_attribute(
    memory: &mut ProcessMemory,
    name: u64,
    value: u64,
    size: u64,
    flags: u64,
) -> io::Result<Change> {
    if size as usize > LONGEST_VALUE {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let name = attribute_name(memory, name)?;
    Ok(Change::SetAttribute { name, value: memory.bytes(value, size as usize)?, flags: flags as i32 })
}

fn time_pairs(memory: &mut ProcessMemory, address: u64, scale: i64) -> io::Result<Option<[(i64, i64); 2]>> {
    if address == 0 {
        return Ok(None);
    }
    let raw = memory.bytes(address, 32)?;
    let number = |index: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&raw[index * 8..index * 8 + 8]);
        i64::from_ne_bytes(bytes)
    };
    let bad = || io::Error::from_raw_os_error(libc::EINVAL);
    let scaled = |value: i64| if scale == 1 { Some(value) } else { value.checked_mul(scale) };
    let pair = |index: usize| Some((number(index), scaled(number(index + 1))?));
    Ok(Some([pair(0).ok_or_else(bad)?, pair(2).ok_or_else(bad)?]))
}

fn nanoseconds(memory: &mut ProcessMemory, address: u64) -> io::Result<Option<[(i64, i64); 2]>> {
    time_pairs(memory, address, 1)
}

fn microseconds(memory: &mut ProcessMemory, address: u64) -> io::Result<Option<[(i64, i64); 2]>> {
    time_pairs(memory, address, 1000)
}

fn seconds(memory: &mut ProcessMemory, address: u64) -> io::Result<Option<[(i64, i64); 2]>> {
    if address == 0 {
        return Ok(None);
    }
    let raw = memory.bytes(address, 16)?;
    let mut bytes = [[0u8; 8]; 2];
    bytes[0].copy_from_slice(&raw[..8]);
    bytes[1].copy_from_slice(&raw[8..]);
    Ok(Some(bytes.map(|bytes| (i64::from_ne_bytes(bytes), 0))))
}

fn is_directory(fd: BorrowedFd<'_>) -> bool {
    nix::sys::stat::fstat(fd).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

fn apply(fd: BorrowedFd<'_>, change: Change) -> io::Result<()> {
    let through = || CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(io::Error::from);
    match change {
        Change::Mode(mode) => fs::chmod(fd, mode & 0o7777),
        Change::Owner(uid, gid) => fs::chown(fd, uid, gid),
        Change::Times(times) => fs::set_times(fd, times),
        Change::SetAttribute { name, value, flags } => fs::set_xattr(&through()?, &name, &value, flags),
        Change::RemoveAttribute(name) => fs::remove_xattr(&through()?, &name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_xattr_args_is_checked_as_the_kernel_does() {
        let mut raw = vec![0u8; 8192];
        raw[..16].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        raw[40] = 1;
        let mut memory = ProcessMemory::default();
        memory.attach(std::process::id() as i32);
        let mut read = |length| {
            let args = xattr_args(&mut memory, raw.as_ptr() as u64, length);
            args.map_err(|error| error.raw_os_error().unwrap_or(0))
        };
        let known = Ok([1 | 2 << 32, 3, 4]);
        for (length, expected) in [
            (0, Err(libc::EINVAL)),
            (15, Err(libc::EINVAL)),
            (16, known),
            (40, known),
            (41, Err(libc::E2BIG)),
            (4096, Err(libc::E2BIG)),
            (4097, Err(libc::E2BIG)),
            (u64::MAX, Err(libc::E2BIG)),
        ] {
            assert_eq!(read(length), expected, "{length}");
        }
    }
}
