//! The value of the placeholder `{system}` in policies: the paths that every program needs to read. Also lists the
//! devices that every run may use. If guard runs as root, `{system}` must not include files that only root may read.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sandbox::{Grant, Rights};

/// Directories of the system that contain programs and libraries.
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

/// Paths from which programs read properties of the machine.
const MACHINE_INFO: &[&str] = &[
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/var/lib/dpkg",
    "/var/lib/ca-certificates",
];

/// Devices that every run may use, because they contain no data.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Directories in which administrators put files, including keys and passwords. The rest of `/usr` comes from the
/// package manager and is public.
const LOCAL: &[&str] = &["/etc", "/usr/local", "/opt"];

/// Returns the grants for `{system}`. With `as_root`, leaves out files below [`LOCAL`] that not every user may read:
/// the agent could read them even without capabilities, because it has root's user id. In that case also leaves out
/// directories that guard could not examine because it reached a limit, and adds a note about them.
pub(crate) fn grants(as_root: bool, notes: &mut Vec<String>) -> Vec<Grant> {
    let mut grants = Vec::new();
    let mut add = |path: &Path, rights: Rights| {
        if path.exists() {
            grants.push(Grant { path: path.to_path_buf(), rights, why: "system".to_string() });
        }
    };
    // If directories such as `/bin` are links into `/usr`, the grant for `/usr` covers them.
    let is_in_usr = |path: &str| {
        let to = std::fs::read_link(path).map(|to| Path::new("/").join(to));
        to.is_ok_and(|to| to.starts_with("/usr") && !to.components().any(|part| part == Component::ParentDir))
    };
    let mut search = Search::new();
    if as_root {
        LOCAL.iter().for_each(|path| _ = search.directory(Path::new(path), 0));
        notes.extend(search.note());
    }
    let is_public =
        |path: &str| !Path::new(path).exists() || search.found.iter().any(|found| found == Path::new(path));
    for path in PROGRAMS.iter().filter(|path| !is_in_usr(path)) {
        match (as_root, *path) {
            (true, "/opt") => {}
            // A grant for all of `/usr` would include files in `/usr/local` that only root may read.
            (true, "/usr") if !is_public("/usr/local") => {
                entries_without_local("/usr").iter().for_each(|path| add(path, Rights::ReadExecute));
            }
            _ => add(Path::new(path), Rights::ReadExecute),
        }
    }
    MACHINE_INFO.iter().for_each(|path| add(Path::new(path), Rights::Read));
    if as_root {
        grants.extend(search.found.into_iter().map(|path| Grant {
            path,
            rights: Rights::ReadExecute,
            why: "system, readable by all users".to_string(),
        }));
    } else {
        add(Path::new("/etc"), Rights::ReadExecute);
    }
    grants
}

/// Returns true if this directory is inside one of the [`PROGRAMS`] directories, and every user may list and enter it.
/// Checks only the mode of the directory itself, not of its parents.
pub(crate) fn is_granted(directory: &Path) -> bool {
    let is_public = || directory.metadata().is_ok_and(|found| found.mode() & 0o005 == 0o005);
    PROGRAMS.iter().any(|programs| directory.starts_with(programs)) && is_public()
}

/// Returns the entries of a directory that are not in [`LOCAL`]. Skips symbolic links: a program can use a link only
/// if it may use the target.
fn entries_without_local(directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| !path.is_symlink());
    paths.filter(|path| !LOCAL.iter().any(|local| path == Path::new(local))).collect()
}

pub(crate) fn devices() -> Vec<Grant> {
    let present = DEVICES.iter().map(PathBuf::from).filter(|path| path.exists());
    present.map(|path| Grant { path, rights: Rights::Device, why: "device".to_string() }).collect()
}

/// The maximum number of files and directories that guard examines for one run. Each takes a few microseconds.
const MAX_ENTRIES: usize = 100_000;
/// How long guard may take to examine the directories: some file systems are slow. Usually guard needs milliseconds.
/// The limit is much longer, because guard needed more than half a second with fifty runs on two cores, and a run that
/// cannot read `/usr/local` is of no use.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const MAX_DEPTH: usize = 48;

/// A search for directories in which all users may read everything, and for single files that all users may read.
struct Search {
    found: Vec<PathBuf>,
    /// Directories that guard did not examine, because it had reached a limit.
    unexamined: Vec<PathBuf>,
    entries_left: usize,
    deadline: Instant,
}

impl Search {
    fn new() -> Self {
        let deadline = Instant::now() + TIME_LIMIT;
        Self { found: Vec::new(), unexamined: Vec::new(), entries_left: MAX_ENTRIES, deadline }
    }

    /// Examines a directory. If all users may read everything in it, adds only the directory itself to `found` and
    /// returns true. Otherwise adds the files and directories in it that all users may read. If it reaches a limit,
    /// adds the directory to `unexamined` and returns false.
    fn directory(&mut self, directory: &Path, depth: usize) -> bool {
        if depth > MAX_DEPTH || self.entries_left == 0 || Instant::now() >= self.deadline {
            self.unexamined.push(directory.to_path_buf());
            return false;
        }
        let Ok(entries) = std::fs::read_dir(directory) else { return false };
        let before = self.found.len();
        let mut all = true;
        for entry in entries.flatten() {
            // Skip links: whether the agent may read the target of a link depends on the target.
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                continue;
            }
            let Some(left) = self.entries_left.checked_sub(1) else {
                self.unexamined.push(directory.to_path_buf());
                all = false;
                break;
            };
            self.entries_left = left;
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else {
                all = false;
                continue;
            };
            if metadata.is_symlink() {
                continue;
            }
            if metadata.mode() & 0o004 == 0 {
                all = false;
            } else if metadata.is_dir() {
                // The recursive call adds the readable files that it finds.
                all &= metadata.mode() & 0o001 != 0 && self.directory(&path, depth + 1);
            } else {
                self.found.push(path);
            }
        }
        if all {
            self.found.truncate(before);
            self.found.push(directory.to_path_buf());
        }
        all
    }

    /// Returns a note that names the first directory that guard did not examine and counts the others; `None` if guard
    /// examined all.
    fn note(&self) -> Option<String> {
        let first = self.unexamined.first()?.display();
        let others = match self.unexamined.len() {
            1 => String::new(),
            2 => " and 1 more directory".to_string(),
            more => format!(" and {} more directories", more - 1),
        };
        Some(format!(
            "the run cannot read {first}{others}: guard reached its limit of files, depth or time while it searched \
             there for files that only root may read; `--read {first}` grants all files in {first}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Tree(PathBuf);

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Tree {
        fn path(&self) -> &Path {
            &self.0
        }
    }

    fn tree(name: &str) -> Tree {
        let root = std::env::temp_dir().join(format!("guard-system-{}-{name}", std::process::id()));
        let root = Tree(root);
        for directory in ["public/a/b", "mixed/inner", "closed"] {
            std::fs::create_dir_all(root.path().join(directory)).expect("the test's own directory");
        }
        for file in
            ["public/a/b/one", "public/two", "mixed/three", "mixed/secret", "mixed/inner/four", "closed/five"]
        {
            std::fs::write(root.path().join(file), "").expect("the test's own directory");
        }
        for (path, mode) in [("mixed/secret", 0o600), ("closed", 0o700)] {
            std::fs::set_permissions(root.path().join(path), std::fs::Permissions::from_mode(mode))
                .expect("the test's own directory");
        }
        std::os::unix::fs::symlink("/etc/shadow", root.path().join("public/link"))
            .expect("the test's own directory");
        root
    }

    fn found(search: &Search, root: &Path) -> Vec<String> {
        let relative =
            |path: &PathBuf| path.strip_prefix(root).expect("the test's own directory").display().to_string();
        let mut found: Vec<String> = search.found.iter().map(relative).collect();
        found.sort();
        found
    }

    #[test]
    fn finds_only_what_all_users_may_read() {
        let root = tree("public");
        let mut search = Search::new();
        assert!(!search.directory(root.path(), 0));
        assert_eq!(found(&search, root.path()), ["mixed/inner", "mixed/three", "public"]);
        assert_eq!(search.note(), None);
    }

    #[test]
    fn unexamined_directories_are_not_granted_but_noted() {
        let root = tree("bounded");
        for most in 0..12 {
            let mut search = Search { entries_left: most, ..Search::new() };
            search.directory(root.path(), 0);
            let found = found(&search, root.path());
            assert!(
                !found
                    .iter()
                    .any(|path| path.starts_with("closed") || path.contains("secret") || path == "mixed")
            );
            assert!(
                search.note().is_some() || found == ["mixed/inner", "mixed/three", "public"],
                "{most}: {found:?}"
            );
        }
        let mut late = Search { deadline: Instant::now(), ..Search::new() };
        assert!(!late.directory(root.path(), 0));
        assert!(late.found.is_empty() && late.note().is_some());
    }
}
