//! Finds and reads coverage reports below a directory.
//!
//! An agent may change the directory at the same time. This module opens every directory on the path to a report
//! relative to its parent and follows no symbolic links, so that no renamed directory or new link leads outside.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use super::CoverageError;
use crate::sys::fs::{Links, OpenError, read_regular_file};

const MAX_REPORT_BYTES: u64 = 64 << 20;
/// The maximum number of directory entries that a search inspects.
const MAX_ENTRIES: usize = 100_000;
const MAX_REPORTS: usize = 32;

/// The usual file names of coverage reports. `*` matches any prefix.
pub(super) const NAMES: [&str; 8] = [
    "lcov.info",
    "coverage.info",
    "*.lcov",
    "cobertura.xml",
    "coverage.xml",
    "llvm-cov.json",
    "coverage.json",
    "tarpaulin-report.json",
];

/// The directories to search, and how many levels of subdirectories to search in each.
const PLACES: [(&str, usize); 7] = [
    (".", 0),
    ("target", 0),
    ("target/llvm-cov", 2),
    ("target/tarpaulin", 2),
    ("target/coverage", 2),
    ("build", 3),
    ("coverage", 2),
];

const DIRECTORY_FLAGS: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Returns the names of the searched directories, for error messages.
pub(super) fn places() -> String {
    PLACES.map(|(place, _)| place).join(", ")
}

fn is_report_name(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    NAMES.iter().any(|usual| match usual.strip_prefix('*') {
        Some(ending) => name.ends_with(ending),
        None => name == *usual,
    })
}

/// The directory below which reports must be. It stays open, so that a rename cannot redirect later reads.
pub(super) struct ReportDirectory {
    path: PathBuf,
    fd: OwnedFd,
}

impl ReportDirectory {
    pub(super) fn open(directory: &Path) -> Result<Self, CoverageError> {
        let fd = open(directory, DIRECTORY_FLAGS, Mode::empty()).map_err(|errno| CoverageError::Search {
            directory: directory.to_path_buf(),
            source: errno.into(),
        })?;
        Ok(Self { path: directory.to_path_buf(), fd })
    }

    /// Returns the path of a report relative to the directory. Fails if the report is not below the directory, or if
    /// its path contains `..`.
    pub(super) fn relative_path(&self, report: &Path) -> Result<PathBuf, CoverageError> {
        let bases = || std::path::absolute(&self.path).into_iter().chain(self.path.canonicalize());
        let below = match report.is_absolute() {
            true => bases().find_map(|base| report.strip_prefix(base).ok().map(Path::to_path_buf)),
            false => Some(report.to_path_buf()),
        };
        let mut relative = PathBuf::new();
        for component in below.iter().flat_map(|path| path.components()) {
            match component {
                Component::Normal(name) => relative.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(self.outside(report));
                }
            }
        }
        if relative.as_os_str().is_empty() { Err(self.outside(report)) } else { Ok(relative) }
    }

    fn outside(&self, report: &Path) -> CoverageError {
        CoverageError::OutsideDirectory { report: report.to_path_buf(), directory: self.path.clone() }
    }

    /// Reads a report. `report` is relative to the directory and contains no `..`.
    pub(super) fn read(&self, report: &Path) -> Result<Vec<u8>, CoverageError> {
        self.read_without_links(report).map_err(|source| match self.first_link(report) {
            Some(link) => CoverageError::SymbolicLink { report: report.to_path_buf(), link },
            None => CoverageError::Unreadable { report: report.to_path_buf(), source },
        })
    }

    fn read_without_links(&self, report: &Path) -> Result<Vec<u8>, OpenError> {
        let parent = self.open_below(report.parent().unwrap_or(Path::new(""))).map_err(io::Error::from)?;
        let file = Path::new("/proc/self/fd")
            .join(parent.as_raw_fd().to_string())
            .join(report.file_name().unwrap_or_default());
        read_regular_file(&file, MAX_REPORT_BYTES, Links::Refuse)
    }

    /// Returns the first symbolic link in the path of a report, relative to the directory; `None` if there is no link.
    fn first_link(&self, report: &Path) -> Option<PathBuf> {
        let mut prefixes: Vec<&Path> = report.ancestors().collect();
        prefixes.reverse();
        let is_link = |prefix: &&Path| !prefix.as_os_str().is_empty() && self.path.join(prefix).is_symlink();
        prefixes.into_iter().find(is_link).map(Path::to_path_buf)
    }

    fn open_below(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut fd = openat(&self.fd, ".", DIRECTORY_FLAGS, Mode::empty())?;
        for component in path.components() {
            fd = openat(&fd, component.as_os_str(), DIRECTORY_FLAGS | OFlag::O_NOFOLLOW, Mode::empty())?;
        }
        Ok(fd)
    }

    /// Returns the paths of files with usual names in the directories of `PLACES`, relative to the directory and in a
    /// fixed order.
    pub(super) fn search(&self) -> Result<Vec<PathBuf>, CoverageError> {
        let mut search = Search { root: self, entries: 0, found: Vec::new() };
        for (place, depth) in PLACES {
            let place = if place == "." { Path::new("") } else { Path::new(place) };
            search.visit(place, depth, self.open_below(place))?;
        }
        Ok(search.found)
    }
}

struct Search<'a> {
    root: &'a ReportDirectory,
    /// The number of directory entries that the search has inspected.
    entries: usize,
    found: Vec<PathBuf>,
}

impl Search<'_> {
    /// Adds the files with usual report names in a directory and, for `depth` levels, in its subdirectories. Skips a
    /// directory that does not exist or is a symbolic link.
    fn visit(
        &mut self,
        path: &Path,
        depth: usize,
        opened: Result<OwnedFd, Errno>,
    ) -> Result<(), CoverageError> {
        let fd = match opened {
            Ok(fd) => fd,
            // The path does not exist, or leads to a file or a symbolic link.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
            Err(errno) => return Err(self.failed(path, errno)),
        };
        let mut entries = self.list(path, &fd)?;
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in entries {
            let entry = path.join(&name);
            // Some file systems do not report the type of a directory entry.
            if matches!(kind, Some(Type::File) | None) && is_report_name(&name) {
                if self.found.len() == MAX_REPORTS {
                    return Err(self.too_many("reports", MAX_REPORTS));
                }
                self.found.push(entry);
            } else if matches!(kind, Some(Type::Directory) | None) && depth > 0 {
                let subdirectory =
                    openat(&fd, name.as_os_str(), DIRECTORY_FLAGS | OFlag::O_NOFOLLOW, Mode::empty());
                self.visit(&entry, depth - 1, subdirectory)?;
            }
        }
        Ok(())
    }

    fn list(&mut self, path: &Path, fd: &OwnedFd) -> Result<Vec<(OsString, Option<Type>)>, CoverageError> {
        let copy = openat(fd, ".", DIRECTORY_FLAGS, Mode::empty()).and_then(Dir::from_fd);
        let mut entries = Vec::new();
        for entry in copy.map_err(|errno| self.failed(path, errno))?.iter() {
            let entry = entry.map_err(|errno| self.failed(path, errno))?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(self.too_many("directory entries", MAX_ENTRIES));
            }
            entries.push((name, entry.file_type()));
        }
        Ok(entries)
    }

    fn failed(&self, path: &Path, errno: Errno) -> CoverageError {
        CoverageError::Search { directory: self.root.path.join(path), source: errno.into() }
    }

    fn too_many(&self, what: &'static str, most: usize) -> CoverageError {
        CoverageError::TooMany { directory: self.root.path.clone(), what, most }
    }
}
