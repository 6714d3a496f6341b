//! The jail for guard's own git processes that read what an agent wrote: no network, no access to other processes,
//! nothing to write except named directories, few readable paths, and limits on CPU time and memory.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::resource::Resource;

use crate::sandbox::{self, Grant, Rights, SandboxError};
use crate::sys::pre_exec;
use crate::sys::pre_exec::Confinement;

/// Programs and their libraries; nothing of the user's.
const SYSTEM: &[&str] = &["/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store"];
/// Single files that the C library and git need.
const FILES: &[&str] =
    &["/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/dev/zero", "/dev/urandom"];

/// The restrictions of a jailed process.
pub(crate) struct Jail {
    confinement: Confinement,
}

/// The resource limits of a jail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// CPU time, in seconds.
    pub(crate) cpu_seconds: u64,
    /// Memory, in bytes.
    pub(crate) memory: u64,
    /// Maximum size of a file that it writes.
    pub(crate) file: u64,
}

impl Jail {
    /// A jail that may read and write these trees. With `alone`, it may not start processes.
    pub(crate) fn new(
        git: &Path,
        read: &[&Path],
        write: &[&Path],
        alone: bool,
        bounds: Bounds,
    ) -> Result<Self, SandboxError> {
        let grant = |path: &Path, rights| Grant { path: path.to_path_buf(), rights, why: String::new() };
        let mut grants: Vec<Grant> =
            SYSTEM.iter().map(|path| grant(Path::new(path), Rights::ReadExecute)).collect();
        grants.extend(git.canonicalize().ok().iter().map(|file| grant(file, Rights::ReadExecute)));
        grants.extend(FILES.iter().map(|path| grant(Path::new(path), Rights::Read)));
        grants.push(grant(Path::new("/dev/null"), Rights::Device));
        grants.extend(read.iter().map(|path| grant(path, Rights::Read)));
        grants.extend(write.iter().map(|path| grant(path, Rights::Write)));
        let limits = vec![
            (Resource::RLIMIT_CPU, bounds.cpu_seconds),
            (Resource::RLIMIT_DATA, bounds.memory),
            (Resource::RLIMIT_FSIZE, bounds.file),
            (Resource::RLIMIT_CORE, 0),
        ];
        let confinement = Confinement {
            ruleset: sandbox::prepare(&grants)?,
            filter: filter(alone)?,
            limits,
            dies_with_parent: alone,
        };
        Ok(Self { confinement })
    }

    pub(crate) fn confine(self, command: &mut Command) {
        pre_exec::confine(command, self.confinement);
    }
}

/// Compiled once: parsing the list of system calls takes longer than everything else here.
fn filter(alone: bool) -> Result<Vec<libc::sock_filter>, SandboxError> {
    static MADE: [OnceLock<Vec<libc::sock_filter>>; 2] = [const { OnceLock::new() }; 2];
    let place = &MADE[usize::from(alone)];
    if let Some(made) = place.get() {
        return Ok(made.clone());
    }
    let made = sandbox::offline(alone)?;
    Ok(place.get_or_init(|| made).clone())
}
