//! The jail: a strict sandbox for guard's own git processes that read files of an agent. A jailed process has no
//! network, no access to other processes, few readable paths, and can write only to the given directories. Its CPU
//! time, memory and file sizes are limited.

use std::path::Path;
use std::process::Command;

use nix::sys::resource::Resource;

use crate::sandbox;
use crate::sandbox::{Grant, Rights, SandboxError};
use crate::sys::pre_exec;
use crate::sys::pre_exec::Confinement;

/// System directories that contain programs and libraries, but no user data. A jailed process may read them.
const SYSTEM_DIRS: &[&str] = &["/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store"];
/// Single files that a jailed process may read, because the C library and git need them.
const SYSTEM_FILES: &[&str] =
    &["/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/dev/zero", "/dev/urandom"];

/// The restrictions of a jailed git process.
pub(crate) struct Jail {
    confinement: Confinement,
}

/// The resource limits of a jailed git process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) cpu_seconds: u64,
    /// Maximum memory (`RLIMIT_DATA`), in bytes.
    pub(crate) memory: u64,
    /// Maximum size of each file that the process writes, in bytes.
    pub(crate) file: u64,
}

impl Jail {
    /// Builds a jail for the git program at the path `git`, with access to the directory trees `read` and `write`.
    /// With `no_children`, the jailed process may not start other processes, and the kernel kills it when the
    /// guard thread that started it ends.
    pub(crate) fn new(
        git: &Path,
        read: &[&Path],
        write: &[&Path],
        no_children: bool,
        bounds: Bounds,
    ) -> Result<Self, SandboxError> {
        let grant = |path: &Path, rights| Grant { path: path.to_path_buf(), rights, why: String::new() };
        let mut grants: Vec<Grant> =
            SYSTEM_DIRS.iter().map(|path| grant(Path::new(path), Rights::ReadExecute)).collect();
        grants.extend(git.canonicalize().ok().iter().map(|file| grant(file, Rights::ReadExecute)));
        grants.extend(SYSTEM_FILES.iter().map(|path| grant(Path::new(path), Rights::Read)));
        grants.push(grant(Path::new("/dev/null"), Rights::Device));
        grants.extend(read.iter().map(|path| grant(path, Rights::Read)));
        grants.extend(write.iter().map(|path| grant(path, Rights::Write)));
        sandbox::resolve_links(&mut grants);
        let limits = vec![
            (Resource::RLIMIT_CPU, bounds.cpu_seconds),
            (Resource::RLIMIT_DATA, bounds.memory),
            (Resource::RLIMIT_FSIZE, bounds.file),
            (Resource::RLIMIT_CORE, 0),
        ];
        let confinement = Confinement {
            ruleset: sandbox::prepare_ruleset(&grants)?,
            filter: sandbox::helper_filter(no_children)?,
            limits,
            dies_with_parent: no_children,
        };
        Ok(Self { confinement })
    }

    /// Makes the process that `command` starts enter the jail before it executes the program.
    pub(crate) fn confine(self, command: &mut Command) {
        pre_exec::confine(command, self.confinement);
    }
}
