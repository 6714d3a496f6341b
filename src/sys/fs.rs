//! Opens files with restricted path resolution, and changes metadata through descriptors.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{check, check_int};

/// How [`open_in`] resolves a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// Resolve the path normally, but fail at magic links (`/proc/self/fd/3`), whose meaning depends on the process.
    NoMagic,
    /// Treat the directory as the root: absolute paths and symlinks start there, and `..` cannot leave it. Fail at
    /// magic links.
    InRoot,
    /// Fail with `ELOOP` at every symbolic link, also in the last component if links there are followed.
    NoLinks,
    /// Fail at every symbolic link, and at every path that would leave the directory.
    Beneath,
}

/// What to do with a symbolic link in the last component of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    /// Fail with `ELOOP` if the last component is a link.
    Refuse,
}

/// Why [`open_regular_file`] failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path leads to a directory, pipe, socket or device, which could block or never end.
    #[error("the path is not a regular file")]
    NotRegular,
    #[error("the file has {size} bytes, and the limit is {most}")]
    TooLarge {
        /// The size of the file in bytes.
        size: u64,
        /// The largest size that the caller accepts, in bytes.
        most: u64,
    },
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Io(error) => error,
            OpenError::NotRegular | OpenError::TooLarge { .. } => {
                Self::new(io::ErrorKind::InvalidData, error.to_string())
            }
        }
    }
}

/// Opens a regular file of at most `most` bytes for reading. Does not block on a named pipe. The file may grow
/// afterwards, so the caller must limit its reads too.
pub fn open_regular_file(path: &Path, most: u64, links: Links) -> Result<File, OpenError> {
    let nofollow = match links {
        Links::Follow => 0,
        Links::Refuse => libc::O_NOFOLLOW,
    };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC | nofollow;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(OpenError::NotRegular);
    }
    if found.len() > most {
        return Err(OpenError::TooLarge { size: found.len(), most });
    }
    Ok(file)
}

/// Reads a regular file of at most `most` bytes. Fails for a larger file, and for anything but a regular file.
pub fn read_regular_file(path: &Path, most: u64, links: Links) -> Result<Vec<u8>, OpenError> {
    let mut bytes = Vec::new();
    open_regular_file(path, most, links)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        size if size > most => Err(OpenError::TooLarge { size, most }),
        _ => Ok(bytes),
    }
}

/// What a power failure right after [`replace_file`] may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The old file or the complete new one.
    Synced,
    /// Possibly an empty file.
    Unsynced,
}

/// Replaces a file atomically: a reader gets either the complete old content or the complete new content. Creates the
/// file if it does not exist. If the path is a symbolic link, replaces the link. The umask restricts `mode`.
///
/// An agent may be able to create links in the directory. So the temporary file beside `path` has a random name and is
/// created with `O_EXCL`, which follows no link. If the process is killed, the temporary file may stay.
pub fn replace_file(path: &Path, content: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
    name.push(format!(".{}.new", uuid::Uuid::new_v4().simple()));
    let new = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let written = file.write_all(content).and_then(|()| match durability {
        Durability::Synced => file.sync_data(),
        Durability::Unsynced => Ok(()),
    });
    written.and_then(|()| std::fs::rename(&new, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

/// Converts a path for a system call. Fails if it contains a NUL byte.
pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Returns the path with symbolic links resolved. If the path does not exist yet, resolves only its longest existing
/// ancestor.
pub fn resolve_existing(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(mut real), Ok(below)) = (above.canonicalize(), path.strip_prefix(above)) {
            real.extend(below);
            return real;
        }
    }
    path.to_path_buf()
}

/// Opens a path relative to a directory with `O_PATH`, which gives a descriptor without access to the content. `follow`
/// says whether a symbolic link in the last component is followed; otherwise the link itself is opened.
pub fn open_in(directory: BorrowedFd<'_>, path: &CStr, walk: Walk, follow: bool) -> io::Result<OwnedFd> {
    let nofollow = if follow { 0 } else { libc::O_NOFOLLOW };
    open_with_flags(directory, path, libc::O_PATH | libc::O_CLOEXEC | nofollow, walk)
}

/// Opens a path with the given flags, relative to a directory. A file that this creates has the mode 0644, which the
/// umask restricts.
pub fn open_with_flags(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    walk: Walk,
) -> io::Result<OwnedFd> {
    // SAFETY: the structure has only plain integers, so all-zero is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    // The kernel refuses a mode if the flags create nothing.
    how.mode = if flags & libc::O_CREAT == 0 { 0 } else { 0o644 };
    how.resolve = match walk {
        Walk::NoMagic => libc::RESOLVE_NO_MAGICLINKS,
        Walk::InRoot => libc::RESOLVE_IN_ROOT,
        Walk::NoLinks => libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS,
        Walk::Beneath => libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS,
    };
    let mut tries = 0;
    let fd = loop {
        // SAFETY: the path is null-terminated and the size is that of the structure.
        let opened = check(unsafe {
            libc::syscall(
                libc::SYS_openat2,
                directory.as_raw_fd(),
                path.as_ptr(),
                &raw const how,
                size_of::<libc::open_how>(),
            )
        });
        match opened {
            // `openat2` fails with EAGAIN if another process renamed or mounted anything while the kernel resolved a
            // `..`.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < MAX_TRIES => tries += 1,
            opened => break opened?,
        }
    };
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Limit on retries, so that a process that renames files in a loop cannot block the caller forever.
const MAX_TRIES: usize = 1000;

const EMPTY: &CStr = c"";

/// Changes the mode of the file that a descriptor refers to (an `O_PATH` descriptor is enough).
pub fn chmod(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // SAFETY: the path is empty, and the other arguments are plain integers.
    let changed = check(unsafe {
        libc::syscall(libc::SYS_fchmodat2, fd.as_raw_fd(), EMPTY.as_ptr(), mode, libc::AT_EMPTY_PATH)
    });
    match changed {
        // Linux before 6.6 has no `fchmodat2`.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        }
        changed => changed.map(drop),
    }
}

pub fn chown(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: the path is empty, and the other arguments are plain integers.
    check_int(unsafe { libc::fchownat(fd.as_raw_fd(), EMPTY.as_ptr(), uid, gid, libc::AT_EMPTY_PATH) })
        .map(drop)
}

/// Changes the access and modification times of the file that a descriptor refers to, each given as (seconds,
/// nanoseconds). `None` sets both to the current time.
pub fn set_times(fd: BorrowedFd<'_>, times: Option<[(i64, i64); 2]>) -> io::Result<()> {
    let times = times.map(|times| times.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec }));
    let pointer = times.as_ref().map_or(std::ptr::null(), |times| times.as_ptr());
    // SAFETY: null, or two timespecs that live through the call.
    check_int(unsafe { libc::utimensat(fd.as_raw_fd(), EMPTY.as_ptr(), pointer, libc::AT_EMPTY_PATH) })
        .map(drop)
}

/// Sets an extended attribute of the file at a path. Follows symbolic links.
pub fn set_xattr(path: &CStr, name: &CStr, value: &[u8], flags: i32) -> io::Result<()> {
    // SAFETY: null-terminated strings, and a buffer with its length.
    check_int(unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
    })
    .map(drop)
}

/// Removes an extended attribute of the file at a path. Follows symbolic links.
pub fn remove_xattr(path: &CStr, name: &CStr) -> io::Result<()> {
    // SAFETY: both strings are null-terminated.
    check_int(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// Makes `to`, an empty file, share the content of `from`. Fails on file systems that cannot share content between
/// files, and if the files are on different file systems.
pub fn share_content(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `FICLONE` takes a descriptor, not a pointer.
    check_int(unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE, from.as_raw_fd()) }).map(drop)
}

/// What [`rename_in`] does if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Fail with `EEXIST`.
    Keep,
    /// Give it the old name.
    Exchange,
    /// Replace it.
    Replace,
}

/// Renames an entry of a directory. Follows no symbolic link.
pub fn rename_in(directory: BorrowedFd<'_>, from: &CStr, to: &CStr, existing: Existing) -> io::Result<()> {
    let flags = match existing {
        Existing::Keep => libc::RENAME_NOREPLACE,
        Existing::Exchange => libc::RENAME_EXCHANGE,
        Existing::Replace => 0,
    };
    let fd = directory.as_raw_fd();
    // SAFETY: both strings are null-terminated, and the other arguments are plain integers.
    check(unsafe { libc::syscall(libc::SYS_renameat2, fd, from.as_ptr(), fd, to.as_ptr(), flags) }).map(drop)
}

/// Adds an inotify watch for a path and returns the watch's descriptor.
pub fn add_watch(inotify: BorrowedFd<'_>, path: &CStr, mask: u32) -> io::Result<i32> {
    // SAFETY: the path is null-terminated, and the other arguments are plain integers.
    check_int(unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), mask) })
}

/// Returns the id of the mount that contains the file of a descriptor. Linux before 6.8 reuses the id of a removed
/// mount, so callers must compare an id only with those of mounts that still exist.
pub fn mount_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    // If the kernel supports unique mount ids, it reports the unique id.
    const EITHER_ID: u32 = STATX_MNT_ID_UNIQUE | libc::STATX_MNT_ID;
    // SAFETY: the structure has only plain integers, so all-zero is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path, and a structure that the kernel fills in.
    check_int(unsafe {
        libc::statx(fd.as_raw_fd(), EMPTY.as_ptr(), libc::AT_EMPTY_PATH, EITHER_ID, &raw mut found)
    })?;
    if found.stx_mask & EITHER_ID == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Links, OpenError, Walk, open_in, read_regular_file};

    /// In a run with a mount namespace, the supervisor opens the paths of programs with `Walk::InRoot`. If such a path
    /// contains `..`, `openat2` fails when any process renames a file meanwhile, as builds do all the time. `open_in`
    /// must not fail then.
    #[test]
    fn renames_elsewhere_do_not_fail_an_open() {
        let directory = std::env::temp_dir().join(format!("guard-renames-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("a"), "").expect("a file");
        let is_over = AtomicBool::new(false);
        let root = std::fs::File::open("/").expect("the root");
        let failed: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::fs::rename(directory.join("a"), directory.join("b")).expect("there");
                    std::fs::rename(directory.join("b"), directory.join("a")).expect("back");
                }
            });
            let open = || open_in(root.as_fd(), c"/usr/../usr/../usr/../usr/bin", Walk::InRoot, true);
            let failed = (0..50_000).filter_map(|_| open().err()).collect();
            is_over.store(true, Ordering::Relaxed);
            failed
        });
        std::fs::remove_dir_all(&directory).expect("gone");
        assert!(failed.is_empty(), "{} of 50,000: {:?}", failed.len(), failed.first());
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let directory = std::env::temp_dir().join(format!("guard-regular-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (file, link, pipe) = (directory.join("file"), directory.join("link"), directory.join("pipe"));
        std::fs::write(&file, "four").expect("a file");
        std::os::unix::fs::symlink("file", &link).expect("a link");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let read = |path, most| read_regular_file(path, most, Links::Refuse);
        assert_eq!(read(&file, 4).expect("it is small enough"), b"four");
        assert!(matches!(read(&file, 3), Err(OpenError::TooLarge { size: 4, most: 3 })));
        assert!(matches!(read(&pipe, 4), Err(OpenError::NotRegular)));
        assert!(matches!(read(&directory, 4), Err(OpenError::NotRegular)));
        let refused = read(&link, 4);
        assert!(matches!(refused, Err(OpenError::Io(error)) if error.raw_os_error() == Some(libc::ELOOP)));
        assert_eq!(read_regular_file(&link, 4, Links::Follow).expect("it leads to a file"), b"four");
        std::fs::remove_dir_all(&directory).expect("gone");
    }
}
