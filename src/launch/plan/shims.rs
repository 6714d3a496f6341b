//! The shims: what an agent finds on its PATH as `git`, `sh`, `bash`, …, so that it reads why a command is refused.
//!
//! The program (`shims/main.rs`) is part of guard's own binary, and is written to the state directory by the first run that
//! needs it; so a lone copy of guard has its shims. It is a program of its own because an agent starts it with every
//! command: started by that name, guard itself would take twice as long (1.26 ms instead of 0.59 ms, where `git --version`
//! takes 1.2 ms; medians of 500), since the loader has to relocate all of it.

use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use serde::Serialize;

/// The shim, as `build.rs` has compiled it.
pub const SHIM_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard-shim"));

/// Tells this shim from those of other versions of guard.
const VERSION: &str = env!("GUARD_SHIM_HASH");

/// The programs that a shim stands in for.
const NAMES: [&str; 5] = ["git", "sh", "bash", "dash", "zsh"];

const FILE_NAME: &str = "guard-shim";

/// A directory that holds the shim, and links to it by the names of programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shims {
    /// The same for all runs of this version with these names: it is made once.
    pub directory: PathBuf,
    /// The programs it stands in for.
    pub names: Vec<String>,
}

impl Shims {
    /// Shims for those programs that this PATH has: one for a shell that is not there would only confuse.
    pub(crate) fn plan(runs: &Path, path: &OsStr) -> Self {
        let is_there =
            |name: &str| std::env::split_paths(path).any(|directory| directory.join(name).is_file());
        let names: Vec<String> =
            NAMES.into_iter().filter(|name| is_there(name)).map(str::to_string).collect();
        let directory = shims_directory(runs).join(format!("{VERSION}-{}", names.join("-")));
        Self { directory, names }
    }

    /// The file that the links lead to.
    pub(crate) fn program(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    /// Makes what is missing. Where the disk has no room for them, the directory stays empty, and what is behind it on the
    /// PATH is found: that is no reason to refuse a run.
    pub(crate) fn make(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).recursive(true).create(&self.directory)?;
        if self.fill().is_err() {
            for name in self.names.iter().map(String::as_str).chain([FILE_NAME]) {
                let _ = std::fs::remove_file(self.directory.join(name));
            }
        }
        Ok(())
    }

    /// Whether they could be made.
    pub(crate) fn are_there(&self) -> bool {
        self.program().is_file()
    }

    /// Other runs may do the same at the same time, and others may be using what is there.
    fn fill(&self) -> io::Result<()> {
        let program = self.program();
        // A crash of the machine can leave a file with other contents, or none.
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

/// Why runs that are kept in this directory have no shims; `None` when they have.
pub fn why_no_shims(runs: &Path) -> Option<String> {
    let directory = shims_directory(runs);
    // It may have to be made first.
    let found = directory.ancestors().find_map(|part| statvfs(part).ok())?;
    let is_noexec = found.flags().contains(FsFlags::ST_NOEXEC);
    is_noexec.then(|| format!("no program can be started from {}: it is mounted noexec", directory.display()))
}
