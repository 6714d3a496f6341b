//! Converts grants into a Landlock ruleset and applies it.
//!
//! The input is a list of paths with rights. The output is a ruleset; one function also restricts this process by it.
//! The ruleset denies everything that the list does not grant and that this kernel's Landlock version can restrict:
//! other files, TCP, and signals and abstract sockets to processes outside the run.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use serde::Serialize;

use super::SandboxError;
use crate::sys::fs::{Walk, c_path, open_in, resolve_existing};

/// What a run may do at and below a granted path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// Read files and list directories.
    Read,
    ReadExecute,
    /// Read and write.
    Write,
    /// Read, write, and execute programs.
    WriteExecute,
    /// Read, write and control a device.
    Device,
}

impl Rights {
    pub const ALL: [Self; 5] = [Self::Read, Self::ReadExecute, Self::Write, Self::WriteExecute, Self::Device];

    /// Returns true if these rights allow changing files. False for [`Rights::Device`].
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteExecute)
    }

    /// Returns true if these rights include `other`, and allow more than `other`.
    pub(crate) fn exceeds(self, other: Self) -> bool {
        match self {
            Self::Read => false,
            Self::ReadExecute | Self::Write => other == Self::Read,
            Self::WriteExecute => matches!(other, Self::Read | Self::ReadExecute | Self::Write),
            Self::Device => false,
        }
    }

    /// Returns the letters by which `--dry-run` shows these rights.
    pub fn letters(self) -> &'static str {
        match self {
            Self::Read => "r--",
            Self::ReadExecute => "r-x",
            Self::Write => "rw-",
            Self::WriteExecute => "rwx",
            Self::Device => "dev",
        }
    }
}

/// A path that the run may use, and what it may do there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// The granted file or directory. A grant for a directory includes everything below it.
    pub path: PathBuf,
    pub rights: Rights,
    /// Why the run has this grant, as shown to the user.
    pub why: String,
}

/// Returns the Landlock ABI version of this kernel; 0 if Landlock is missing or disabled.
pub fn landlock_version() -> i32 {
    crate::sys::landlock_version()
}

/// Restricts this process and its descendants to a ruleset from [`prepare_ruleset`]. The process must have only one
/// thread, and must have set `no_new_privs`.
pub fn restrict(ruleset: &OwnedFd) -> Result<(), SandboxError> {
    const LOG_SAME_EXEC_OFF: u32 = 1;
    const LOG_NEW_EXEC_ON: u32 = 2;
    const LOG_SUBDOMAINS_OFF: u32 = 4;
    // The host's audit log should contain denials of the agent's actions, but not the canary's attempts or denials by
    // nested Landlock domains.
    let quiet = LOG_SAME_EXEC_OFF | LOG_NEW_EXEC_ON | LOG_SUBDOMAINS_OFF;
    let flags = if ABI::from(landlock_version()) >= ABI::V7 { quiet } else { 0 };
    crate::sys::landlock_restrict(ruleset.as_fd(), flags)
        .map_err(|error| SandboxError::Landlock(error.to_string()))
}

/// Builds a Landlock ruleset from grants, which this or another process can apply later. Skips a grant whose path
/// cannot be opened, or contains a symbolic link. If this kernel's Landlock version can, the ruleset also denies TCP, and signals and connections
/// through abstract sockets to processes that the ruleset does not restrict.
pub fn prepare_ruleset(grants: &[Grant]) -> Result<OwnedFd, SandboxError> {
    let created: Option<OwnedFd> = ruleset(grants)?.into();
    created.ok_or_else(|| SandboxError::Landlock("this kernel does not support Landlock".to_string()))
}

fn ruleset(grants: &[Grant]) -> Result<RulesetCreated, SandboxError> {
    let abi = ABI::from(landlock_version());
    let failed = |error: &dyn std::fmt::Display| SandboxError::Landlock(error.to_string());
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(|error| failed(&error))?;
    if !AccessNet::from_all(abi).is_empty() {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi)).map_err(|error| failed(&error))?;
    }
    if !Scope::from_all(abi).is_empty() {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(|error| failed(&error))?;
    }
    let mut created = ruleset.create().map_err(|error| failed(&error))?;
    // Skip a grant if another one for the same path includes it: each grant needs several system calls at launch.
    // Compare bytes, because comparing the components of paths took a twentieth of a launch with many grants.
    let is_needless = |grant: &&Grant| {
        let includes = |other: &Grant| other.rights.exceeds(grant.rights);
        grants.iter().any(|other| includes(other) && other.path.as_os_str() == grant.path.as_os_str())
    };
    let root = File::open("/").map_err(|error| failed(&error))?;
    for grant in grants.iter().filter(|grant| !is_needless(grant)) {
        let Ok(path) = open_granted(&root, grant) else { continue };
        let wanted = access(grant.rights, abi);
        let is_directory =
            nix::sys::stat::fstat(&path).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFDIR);
        let wanted = if is_directory { wanted } else { wanted & AccessFs::from_file(abi) };
        let rule = PathBeneath::new(path, wanted);
        created = created
            .add_rule(rule)
            .map_err(|error| SandboxError::Landlock(format!("{}: {error}", grant.path.display())))?;
    }
    Ok(created)
}

/// Replaces each path that contains symbolic links or `..` by its real path, because [`prepare_ruleset`] does not follow
/// links. Leaves the paths of devices alone. Call this when the paths are decided: afterwards, another process cannot
/// change what they lead to.
pub(crate) fn resolve_links(grants: &mut [Grant]) {
    let Ok(root) = File::open("/") else { return };
    for grant in grants.iter_mut().filter(|grant| grant.rights != Rights::Device) {
        let Ok(path) = c_path(&grant.path) else { continue };
        let has_link = || {
            let opened = open_in(root.as_fd(), &path, Walk::NoLinks, true);
            opened.is_err_and(|error| error.raw_os_error() == Some(libc::ELOOP))
        };
        if grant.path.components().any(|part| part == Component::ParentDir) || has_link() {
            grant.path = resolve_existing(&grant.path);
        }
    }
}

/// Opens a granted path. [`resolve_links`] has resolved all symbolic links, so a link in the path is
/// one that another process has put there meanwhile. The paths of devices are constants, and may be links of the system.
fn open_granted(root: &File, grant: &Grant) -> io::Result<OwnedFd> {
    let walk = if grant.rights == Rights::Device { Walk::NoMagic } else { Walk::NoLinks };
    open_in(root.as_fd(), &c_path(&grant.path)?, walk, true)
}

/// Denies signals from this process and its descendants to all other processes. Restricts nothing else. Fails if this
/// kernel's Landlock version cannot restrict signals (before Linux 6.12).
pub fn restrict_signals() -> Result<(), SandboxError> {
    let failed = |error: &dyn std::fmt::Display| SandboxError::Landlock(error.to_string());
    // Every Landlock domain denies renames and links between directories (EXDEV) unless it grants `Refer`, even if
    // the ruleset does not handle `Refer`. So grant it everywhere.
    let everywhere = PathFd::new("/").map_err(|error| failed(&error))?;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .map_err(|error| failed(&error))?;
    ruleset
        .create()
        .and_then(|created| created.add_rule(PathBeneath::new(everywhere, AccessFs::Refer)))
        .and_then(|created| created.restrict_self())
        .map(drop)
        .map_err(|error| failed(&error))
}

fn access(rights: Rights, abi: ABI) -> landlock::BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let all = AccessFs::from_all(abi);
    let wanted = match rights {
        Rights::Read => read,
        Rights::ReadExecute => read | AccessFs::Execute,
        // Exclude device files: creating them needs a capability that no process inside the sandbox has.
        Rights::Write => {
            all & !(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev)
        }
        Rights::WriteExecute => all & !(AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev),
        Rights::Device => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
    };
    wanted & all
}
