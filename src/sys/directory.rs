//! Reads and writes files below a directory in which another process may create links at any time, such as a checkout
//! in which an agent has worked. No function here follows a symbolic link below the directory.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::agent_paths::AgentPaths;
use super::fs::{Durability, OpenError, Walk, open_with_flags};

/// An open directory, and the path to name in messages.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// What identifies one state of a file: it changes when another file takes its place and when its content changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity([i64; 7]);

impl Identity {
    fn of(found: &FileStat) -> Self {
        let wide = |number: u64| number.cast_signed();
        Self([
            wide(found.st_dev),
            wide(found.st_ino),
            i64::from(found.st_mode),
            found.st_size,
            found.st_mtime.wrapping_mul(1_000_000_000).wrapping_add(found.st_mtime_nsec),
            found.st_ctime,
            found.st_ctime_nsec,
        ])
    }
}

/// The error for a path on which something is not what guard may use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// A part of the path is a symbolic link.
    #[error("{} is a symbolic link", .0.display())]
    Link(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DirectoryError {
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

const OPEN: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

impl Directory {
    /// Opens a directory that the user named. Follows links in its path.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: opened(path)?.into(), path: path.to_path_buf() })
    }

    /// Opens a directory that the user named, to write into it. Fails if a link that an agent may have written leads there
    /// from another place.
    pub fn open_named(path: &Path) -> io::Result<Self> {
        let (fd, resolved) = AgentPaths::from_environment()?.open(&std::path::absolute(path)?, OPEN)?;
        let path = resolved.own().map_err(|link| io::Error::other(link.to_string()))?;
        Ok(Self { fd, path })
    }

    /// Opens the directory `levels` above the current directory, of which `path` is the name for messages. No link can
    /// redirect this, because `..` of a directory is never a link.
    pub fn above_current(levels: usize, path: &Path) -> io::Result<Self> {
        let current = opened(Path::new("."))?;
        let up = CString::new(
            ["."].into_iter().chain(std::iter::repeat_n("..", levels)).collect::<Vec<_>>().join("/"),
        )?;
        Ok(Self { fd: open_with_flags(current.as_fd(), &up, OPEN, Walk::NoLinks)?, path: path.to_path_buf() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path of a file in this directory that leads there even if another process moves or replaces the
    /// directory, as long as this value exists.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(name)
    }

    /// Opens a directory below this one; with `creates`, creates missing directories with the mode 0755. Fails if a
    /// part of the path is a link.
    pub fn below(&self, path: &Path, creates: bool) -> Result<Self, DirectoryError> {
        let mut fd = self.fd.try_clone()?;
        let mut reached = self.path.clone();
        for part in path.components() {
            let name = match part {
                Component::CurDir => continue,
                Component::Normal(name) => c_name(name)?,
                _ => return Err(io::Error::from(io::ErrorKind::InvalidInput).into()),
            };
            if creates {
                match mkdirat(fd.as_fd(), name.as_c_str(), Mode::from_bits_truncate(0o755)) {
                    Err(error) if error != Errno::EEXIST => return Err(io::Error::from(error).into()),
                    _ => {}
                }
            }
            reached.push(part);
            fd = open_with_flags(fd.as_fd(), &name, OPEN, Walk::NoLinks).map_err(|error| {
                // With O_DIRECTORY the kernel reports a link as ENOTDIR or ELOOP.
                if is_link(&fd, &name) { DirectoryError::Link(reached.clone()) } else { error.into() }
            })?;
        }
        Ok(Self { fd, path: reached })
    }

    /// Returns the identity of a file in this directory; `None` if there is none. Does not follow a link.
    pub fn identity(&self, name: &OsStr) -> io::Result<Option<Identity>> {
        match fstatat(self.fd.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(Identity::of(&found))),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if the path by which this directory was opened still leads to it.
    pub fn is_at_its_path(&self) -> bool {
        let identity = |fd: &OwnedFd| fstat(fd.as_fd()).map(|found| (found.st_dev, found.st_ino)).ok();
        Self::open(&self.path).is_ok_and(|found| identity(&found.fd) == identity(&self.fd))
    }

    /// Reads a regular file of at most `most` bytes in this directory. Fails if it is a link.
    pub fn read(&self, name: &OsStr, most: u64) -> Result<Vec<u8>, OpenError> {
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let file: File =
            open_with_flags(self.fd.as_fd(), c_name(name)?.as_c_str(), flags, Walk::NoLinks)?.into();
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(OpenError::NotRegular);
        }
        let mut bytes = Vec::new();
        if found.size() <= most {
            file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        }
        match (bytes.len() as u64).max(found.size()) {
            size if size > most => Err(OpenError::TooLarge { size, most }),
            _ => Ok(bytes),
        }
    }

    /// Creates a file in this directory, with the mode 0644 that the umask restricts. Fails if anything has this name,
    /// also a link that leads nowhere. Removes the file again if guard cannot write all of it.
    pub fn create(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
        let name = c_name(name)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let mut file: File = open_with_flags(self.fd.as_fd(), &name, flags, Walk::NoLinks)?.into();
        file.write_all(content).and_then(|()| file.sync_data()).inspect_err(|_| {
            let _ = unlinkat(self.fd.as_fd(), name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        })
    }

    /// Replaces a file in this directory atomically, or creates it, as [`Self::create`] does. If the name is a link, replaces the link.
    pub fn replace(&self, name: &OsStr, content: &[u8], durability: Durability) -> io::Result<()> {
        let mut new = name.to_os_string();
        new.push(format!(".{}.new", uuid::Uuid::new_v4().simple()));
        self.create(&new, content)?;
        let renamed = nix::fcntl::renameat(self.fd.as_fd(), new.as_os_str(), self.fd.as_fd(), name);
        if renamed.is_err() {
            let _ = unlinkat(self.fd.as_fd(), new.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        renamed?;
        match durability {
            Durability::Synced => Ok(nix::unistd::fsync(&self.fd)?),
            Durability::Unsynced => Ok(()),
        }
    }
}

fn opened(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

fn c_name(name: &OsStr) -> io::Result<CString> {
    let is_name = !name.is_empty() && name != "." && name != ".." && !name.as_bytes().contains(&b'/');
    if !is_name {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(CString::new(name.as_bytes())?)
}

fn is_link(directory: &OwnedFd, name: &CString) -> bool {
    let found = fstatat(directory.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFLNK)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_below_a_directory_are_never_followed() -> Result<(), Box<dyn std::error::Error>> {
        let place = std::env::temp_dir().join(format!("guard-directory-{}", uuid::Uuid::now_v7()));
        fs::create_dir_all(place.join("top/real"))?;
        fs::create_dir(place.join("elsewhere"))?;
        fs::write(place.join("elsewhere/file"), "users")?;
        symlink("../elsewhere", place.join("top/link"))?;
        symlink(place.join("elsewhere/file"), place.join("top/real/link"))?;
        symlink("nowhere", place.join("top/real/dangling"))?;
        let top = Directory::open(&place.join("top"))?;
        for path in ["link", "link/inner", "real/../link", "/etc", ".."] {
            assert!(top.below(Path::new(path), true).is_err(), "{path}");
        }
        let named = top.below(Path::new("./link/inner"), true).expect_err("a link");
        assert_eq!(named.to_string(), format!("{} is a symbolic link", place.join("top/link").display()));
        assert!(top.below(Path::new("missing"), false).is_err_and(|error| error.is_missing()));
        let real = top.below(Path::new("real"), false)?;
        assert!(real.is_at_its_path());
        for name in ["link", "dangling"] {
            let name = OsStr::new(name);
            assert!(real.read(name, 100).is_err() && real.create(name, b"x").is_err());
            real.replace(name, b"new", Durability::Unsynced)?;
            assert_eq!(real.read(name, 100)?, b"new");
        }
        assert_eq!(fs::read_to_string(place.join("elsewhere/file"))?, "users");
        assert!(!place.join("top/real/nowhere").exists());
        assert_eq!(fs::metadata(place.join("top/real/link"))?.permissions().mode() & 0o022, 0);
        for bad in ["", ".", "..", "a/b"] {
            assert!(real.create(OsStr::new(bad), b"x").is_err(), "{bad:?}");
        }
        let before = real.identity(OsStr::new("link"))?;
        fs::write(place.join("top/real/link"), "another")?;
        assert_ne!(real.identity(OsStr::new("link"))?, before);
        fs::rename(place.join("top/real"), place.join("top/moved"))?;
        assert!(!real.is_at_its_path());
        symlink("../elsewhere", place.join("top/real"))?;
        assert!(!real.is_at_its_path());
        fs::remove_dir_all(&place)?;
        Ok(())
    }
}
