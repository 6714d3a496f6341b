//! The shims that the agent finds on its PATH as `git`, `sh`, `bash` and so on. A shim tells the agent why the
//! supervisor denied a command.
//!
//! guard's binary contains the shim program (`shims/main.rs`), so that guard is a single file. The first run that needs
//! the shim program writes it to guard's state directory. It is a separate program because it starts with every git and
//! shell command of the agent, and guard itself would take twice as long to start (1.26 ms instead of 0.59 ms, where
//! `git --version` takes 1.2 ms; medians of 500): the loader would have to relocate all of guard.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use serde::Serialize;

use crate::sys::fs::{Durability, replace_file};

/// The shim program, compiled by `build.rs`.
pub const SHIM_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard-shim"));

/// The hash of the shim program, which distinguishes this shim program from that of other versions of guard.
const VERSION: &str = env!("GUARD_SHIM_HASH");

/// The names of the programs that shims replace.
const NAMES: [&str; 5] = ["git", "sh", "bash", "dash", "zsh"];

const FILE_NAME: &str = "guard-shim";

/// The directory with the shim program, and with links to it that have the names of the replaced programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shims {
    /// The directory of the shims. guard creates it once for all runs that use this version of guard and the same
    /// names.
    pub directory: PathBuf,
    pub names: Vec<String>,
}

impl Shims {
    /// Plans shims for those of the [`NAMES`] that exist on this PATH.
    pub(crate) fn plan(runs: &Path, path: &OsStr) -> Self {
        let is_installed =
            |name: &str| std::env::split_paths(path).any(|directory| directory.join(name).is_file());
        let names: Vec<String> =
            NAMES.into_iter().filter(|name| is_installed(name)).map(str::to_string).collect();
        let directory = shims_directory(runs).join(format!("{VERSION}-{}", names.join("-")));
        Self { directory, names }
    }

    /// Returns the path of the shim program, to which the links point.
    pub(crate) fn program(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    /// Creates the shims that do not exist yet. Fails only if it cannot create their directory. If it cannot write a
    /// shim, for example because the disk is full, it removes all shims. The run can then still start, because the
    /// agent finds the real programs in later directories of its PATH.
    pub(crate) fn make(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).recursive(true).create(&self.directory)?;
        if self.fill().is_err() {
            for name in self.names.iter().map(String::as_str).chain([FILE_NAME]) {
                let _ = std::fs::remove_file(self.directory.join(name));
            }
        }
        Ok(())
    }

    /// Returns true if the shim program exists. After [`Shims::make`], this means that it could create all shims.
    pub(crate) fn exist(&self) -> bool {
        self.program().is_file()
    }

    /// Writes the shim program and the links. Must work while other runs create or use the same files.
    fn fill(&self) -> io::Result<()> {
        let program = self.program();
        // Comparing the length is enough, because the directory's name contains a hash of the program. Reading the
        // whole file would take one fifteenth of the time that a launch takes.
        let is_complete = |data: std::fs::Metadata| data.is_file() && data.len() == SHIM_PROGRAM.len() as u64;
        if !program.symlink_metadata().is_ok_and(is_complete) {
            replace_file(&program, SHIM_PROGRAM, 0o700, Durability::Synced)?;
        }
        for name in &self.names {
            let link = self.directory.join(name);
            if std::fs::read_link(&link).is_ok_and(|target| target == Path::new(FILE_NAME)) {
                continue;
            }
            let _ = std::fs::remove_file(&link);
            match symlink(FILE_NAME, &link) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        Ok(())
    }
}

fn shims_directory(runs: &Path) -> PathBuf {
    runs.with_file_name("shims")
}

/// Returns why guard cannot use shims for runs in the directory `runs`; `None` if it can, or if guard cannot find out.
pub fn why_no_shims(runs: &Path) -> Option<String> {
    let directory = shims_directory(runs);
    // The directory may not exist yet: examine its nearest existing ancestor.
    let found = directory.ancestors().find_map(|part| statvfs(part).ok())?;
    let is_noexec = found.flags().contains(FsFlags::ST_NOEXEC);
    is_noexec.then(|| format!("{} is on a file system that is mounted noexec", directory.display()))
}
