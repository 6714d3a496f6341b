//! The shims that the agent finds on its PATH as `git`, `sh`, `bash` and so on. They tell it why a command was denied.
//!
//! The shim program (`shims/main.rs`) is embedded in guard's binary, and the first run that needs it writes it to the
//! state directory. So a single copy of guard is complete. It is a separate program because the agent starts it with
//! every command: guard itself under that name would take twice as long (1.26 ms instead of 0.59 ms, where `git
//! --version` takes 1.2 ms; medians of 500), because the loader has to relocate all of it.

use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use serde::Serialize;

/// The shim program, compiled by `build.rs`.
pub const SHIM_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard-shim"));

/// Tells this shim from those of other versions of guard.
const VERSION: &str = env!("GUARD_SHIM_HASH");

/// The programs that a shim stands in for.
const NAMES: [&str; 5] = ["git", "sh", "bash", "dash", "zsh"];

const FILE_NAME: &str = "guard-shim";

/// A directory with the shim program, and links to it with the names of other programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shims {
    /// The directory. All runs of this version with the same names share it, so it is created once.
    pub directory: PathBuf,
    /// The names of the programs it stands in for.
    pub names: Vec<String>,
}

impl Shims {
    /// Plans shims for the programs on this PATH. A shim for a shell that is not installed would only confuse.
    pub(crate) fn plan(runs: &Path, path: &OsStr) -> Self {
        let is_there =
            |name: &str| std::env::split_paths(path).any(|directory| directory.join(name).is_file());
        let names: Vec<String> =
            NAMES.into_iter().filter(|name| is_there(name)).map(str::to_string).collect();
        let directory = shims_directory(runs).join(format!("{VERSION}-{}", names.join("-")));
        Self { directory, names }
    }

    /// The file that the links point at.
    pub(crate) fn program(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    /// Creates what is missing. If the disk is full, the directory stays empty and commands are found further down the
    /// PATH. That is no reason to refuse a run.
    pub(crate) fn make(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).recursive(true).create(&self.directory)?;
        if self.fill().is_err() {
            for name in self.names.iter().map(String::as_str).chain([FILE_NAME]) {
                let _ = std::fs::remove_file(self.directory.join(name));
            }
        }
        Ok(())
    }

    /// Whether the shims could be created.
    pub(crate) fn are_there(&self) -> bool {
        self.program().is_file()
    }

    /// Creates the files. Other runs may do so at the same time, or use the existing ones.
    fn fill(&self) -> io::Result<()> {
        let program = self.program();
        // A crash of the machine can leave a file with wrong contents.
        if !std::fs::read(&program).is_ok_and(|found| found == SHIM_PROGRAM) {
            let new = self.directory.join(format!("new-{}", std::process::id()));
            if let Err(error) = write_program(&new).and_then(|()| std::fs::rename(&new, &program)) {
                let _ = std::fs::remove_file(&new);
                return Err(error);
            }
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

fn write_program(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(path)?;
    file.write_all(SHIM_PROGRAM)
}

fn shims_directory(runs: &Path) -> PathBuf {
    runs.with_file_name("shims")
}

/// Why runs kept in this directory have no shims; `None` if they have.
pub fn why_no_shims(runs: &Path) -> Option<String> {
    let directory = shims_directory(runs);
    // The directory may not exist yet.
    let found = directory.ancestors().find_map(|part| statvfs(part).ok())?;
    let is_noexec = found.flags().contains(FsFlags::ST_NOEXEC);
    is_noexec.then(|| format!("no program can be started from {}: it is mounted noexec", directory.display()))
}
