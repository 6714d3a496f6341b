//! What `{system}` stands for: the parts of the machine every program needs to read, and the devices it may use.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::sandbox::{Grant, Rights};

/// Folders of programs and libraries.
const PROGRAMS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/run/current-system",
    "/gnu/store",
];

/// What programs read about the machine.
const FACTS: &[&str] = &[
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/var/lib/dpkg",
    "/var/lib/ca-certificates",
];

/// Devices that are nobody's in particular.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// What `{system}` grants; `as_root` leaves out what only root may read.
pub(super) fn grants(as_root: bool) -> Vec<Grant> {
    let mut grants = Vec::new();
    let mut add = |path: &str, rights: Rights| {
        if Path::new(path).exists() {
            grants.push(Grant { path: PathBuf::from(path), rights, why: "system".to_string() });
        }
    };
    // Where `/bin` and the like are links into `/usr` they come with it.
    let is_in_usr = |path: &str| {
        let to = std::fs::read_link(path).map(|to| Path::new("/").join(to));
        to.is_ok_and(|to| to.starts_with("/usr") && !to.components().any(|part| part == Component::ParentDir))
    };
    PROGRAMS.iter().filter(|path| !is_in_usr(path)).for_each(|path| add(path, Rights::ReadExecute));
    FACTS.iter().for_each(|path| add(path, Rights::Read));
    if as_root {
        // Root without capabilities still owns root's files: keys and password hashes must not come along with /etc.
        let mut public = Vec::new();
        publicly_readable(Path::new("/etc"), 4, &mut public);
        grants.extend(public.into_iter().map(|path| Grant {
            path,
            rights: Rights::ReadExecute,
            why: "system, readable by everybody".to_string(),
        }));
    } else {
        add("/etc", Rights::ReadExecute);
    }
    grants
}

/// The devices every run gets.
pub(super) fn devices() -> Vec<Grant> {
    let present = DEVICES.iter().map(PathBuf::from).filter(|path| path.exists());
    present.map(|path| Grant { path, rights: Rights::Device, why: "device".to_string() }).collect()
}

/// The largest trees below a folder in which others may read everything. Whether there is anything they may not.
fn publicly_readable(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let mut inside = Vec::new();
    let mut all = true;
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else {
            all = false;
            continue;
        };
        if metadata.is_symlink() {
            // Judged by where it leads.
            continue;
        }
        if metadata.mode() & 0o004 == 0 {
            all = false;
        } else if metadata.is_dir() {
            let mut below = Vec::new();
            if depth > 0 && metadata.mode() & 0o001 != 0 && publicly_readable(&path, depth - 1, &mut below) {
                inside.push(path);
            } else {
                all = false;
                inside.extend(below);
            }
        } else {
            inside.push(path);
        }
    }
    if all {
        found.push(folder.to_path_buf());
    } else {
        found.extend(inside);
    }
    all
}
