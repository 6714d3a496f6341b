//! Finds the programs that guard itself starts outside every sandbox: `git`, `gh`, package managers, and commands
//! that print keys.
//!
//! The search uses the caller's PATH but skips every directory that an agent or another user could have written:
//! - empty and relative entries, whose meaning depends on the current directory;
//! - directories that do not exist;
//! - directories below the working directory of a run, or below the current directory;
//! - directories that an agent may have written, or whose path leads through such a directory, as
//!   [`AgentPaths`](super::agent_paths::AgentPaths) says: `node_modules/.bin`, `.venv/bin`, `.direnv`;
//! - directories that another user can change: the directory or one above it belongs to neither root nor the caller,
//!   or is writable by all users (unless sticky) or by a group other than root's and the caller's private one.
//!
//! The program's file, and every symlink on the way to it, must pass the same checks. The processes that guard starts get the
//! remaining directories as their PATH, because git and other programs start programs by name too.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::agent_paths::{AgentPaths, state_directory};

/// Directories that guard searches after those in PATH.
const USUAL: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];
/// The maximum number of skipped directories that an error message lists.
const MOST_NAMED: usize = 5;

/// Directories in which agents work, in addition to the current directory. guard never starts a program below them.
static AGENT_DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes all later searches skip programs below this directory, because an agent works there.
pub fn distrust(directory: &Path) {
    if let (Ok(real), Ok(mut all)) = (directory.canonicalize(), AGENT_DIRECTORIES.lock()) {
        all.push(real);
    }
}

/// A directory or file that the search skipped, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The skipped entry of PATH, or the skipped file.
    pub path: PathBuf,
    pub reason: String,
}

/// The search found the program in no trusted directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("guard found no `{name}` in PATH that it can trust{}", describe_skipped(skipped))]
pub struct ProgramNotFound {
    pub name: String,
    /// Directories and files that guard does not trust, although the program exists there.
    pub skipped: Vec<Skipped>,
}

fn describe_skipped(skipped: &[Skipped]) -> String {
    if skipped.is_empty() {
        return String::new();
    }
    let named: Vec<String> = skipped
        .iter()
        .take(MOST_NAMED)
        .map(|one| format!("{} ({})", one.path.display(), one.reason))
        .collect();
    let more = skipped.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; guard skipped {}{more}", named.join(", "))
}

/// A search for programs in a PATH, with the information that decides which entries guard trusts.
#[derive(Debug, Clone)]
pub struct ProgramSearch {
    directories: Vec<PathBuf>,
    /// The places in which agents may have written; an error message if guard cannot read their record.
    agent_paths: Result<AgentPaths, String>,
    current_runs: Vec<PathBuf>,
    user: u32,
}

impl ProgramSearch {
    /// Returns a search in the PATH of this process. The home directory is HOME.
    pub fn from_environment() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::new(&path, std::env::var_os("HOME").as_deref().map(Path::new))
    }

    /// Returns a search in the given PATH; `home` is the user's home directory.
    pub fn new(path: &OsStr, home: Option<&Path>) -> Self {
        let mut current_runs: Vec<PathBuf> =
            AGENT_DIRECTORIES.lock().map(|all| all.clone()).unwrap_or_default();
        current_runs.extend(std::env::current_dir().and_then(|current| current.canonicalize()));
        let home = home.filter(|home| home.is_absolute()).and_then(|home| home.canonicalize().ok());
        // If the current directory is `/` or `/usr`, for example, the search must still find the system's programs.
        current_runs.retain(|directory| {
            !Path::new("/usr/bin").starts_with(directory)
                && !home.as_ref().is_some_and(|home| home.starts_with(directory))
        });
        let agent_paths = AgentPaths::read(home.as_deref(), state_directory().as_deref());
        Self {
            directories: std::env::split_paths(path).collect(),
            agent_paths: agent_paths
                .map_err(|error| format!("guard cannot read where agents have worked: {error}")),
            current_runs,
            user: nix::unistd::geteuid().as_raw(),
        }
    }

    /// Finds a program in a trusted directory and returns its absolute path. Searches PATH first, and then the usual
    /// directories of the system.
    pub fn find(&self, name: &str) -> Result<PathBuf, ProgramNotFound> {
        self.find_if(name, |_| true)
    }

    /// Finds a program in a trusted directory, as [`Self::find`] does. Skips files that `is_wanted` rejects.
    pub fn find_if(&self, name: &str, is_wanted: impl Fn(&Path) -> bool) -> Result<PathBuf, ProgramNotFound> {
        let mut skipped = Vec::new();
        for directory in self.search_directories() {
            let file = directory.join(name);
            let skip = |reason| Skipped { path: directory.clone(), reason };
            match self.check_directory(&directory) {
                Err(reason) if reason == MISSING => {}
                // Report a skipped directory only if the program exists there.
                Err(reason) if directory.is_relative() || file.symlink_metadata().is_ok() => {
                    skipped.push(skip(reason));
                }
                Err(_) => {}
                Ok(()) if !is_program(&file) || !is_wanted(&file) => {}
                Ok(()) => match self.check_file(&file) {
                    Ok(()) => return Ok(file),
                    Err(reason) => skipped.push(Skipped { path: file, reason }),
                },
            }
        }
        Err(ProgramNotFound { name: name.to_string(), skipped })
    }

    /// Returns the trusted entries of PATH or, if there are none, the usual directories of the system. guard sets them
    /// as the PATH of programs that it starts.
    pub fn path(&self) -> OsString {
        let is_used = |directory: &&PathBuf| self.check_directory(directory).is_ok();
        let left: Vec<&PathBuf> = self.directories.iter().filter(is_used).collect();
        match std::env::join_paths(left) {
            Ok(path) if !path.is_empty() => path,
            _ => USUAL.join(":").into(),
        }
    }

    /// Returns the entries of PATH that guard does not search, with the reasons. Leaves out absolute entries that do
    /// not exist.
    pub fn untrusted(&self) -> Vec<Skipped> {
        let skipped = self.directories.iter().filter_map(|directory| {
            let reason = self.check_directory(directory).err().filter(|reason| reason != MISSING)?;
            Some(Skipped { path: directory.clone(), reason })
        });
        skipped.collect()
    }

    fn search_directories(&self) -> impl Iterator<Item = PathBuf> {
        self.directories.iter().cloned().chain(USUAL.map(PathBuf::from))
    }

    fn check_directory(&self, directory: &Path) -> Result<(), String> {
        if !directory.is_absolute() {
            return Err("a relative path".to_string());
        }
        let real = directory.canonicalize().map_err(|_| MISSING.to_string())?;
        if !real.is_dir() {
            return Err(MISSING.to_string());
        }
        self.check(directory, &real)
    }

    fn check_file(&self, file: &Path) -> Result<(), String> {
        let real = file.canonicalize().map_err(|_| MISSING.to_string())?;
        self.check(file, &real)
    }

    fn check(&self, named: &Path, real: &Path) -> Result<(), String> {
        if let Some(directory) = self.current_runs.iter().find(|one| real.starts_with(one)) {
            return Err(format!("inside {}, where agents work", directory.display()));
        }
        real.ancestors().try_for_each(|level| self.check_owner(level))?;
        // Check every symlink on the path too, because another user or an agent could have created it.
        named.ancestors().try_for_each(|level| self.check_owner(level))?;
        let place = self.agent_paths.as_ref().map_err(String::clone)?.first_place(named);
        match place.map_err(|error| format!("{}: {error}", named.display()))? {
            Some(place) => Err(format!("inside {place}")),
            None => Ok(()),
        }
    }

    /// Checks a program that the user named by its path: it must be absolute, and pass the checks of a program in PATH.
    /// Fails with the reason.
    pub fn check_path(&self, program: &Path) -> Result<(), String> {
        if program.is_absolute() { self.check_file(program) } else { Err("a relative path".to_string()) }
    }

    fn check_owner(&self, path: &Path) -> Result<(), String> {
        let found = path.symlink_metadata().map_err(|error| format!("{}: {error}", path.display()))?;
        let place = path.display();
        if found.uid() != 0 && found.uid() != self.user {
            return Err(format!("{place} belongs to another user"));
        }
        let mode = found.mode();
        // The mode of a symlink has no meaning. In a sticky directory, users cannot replace files of other users.
        if found.is_symlink() || found.is_dir() && mode & 0o1000 != 0 {
            return Ok(());
        }
        if mode & 0o002 != 0 {
            return Err(format!("all users can write to {place}"));
        }
        // By convention a user's private group has the user's id.
        let is_private = found.gid() == 0 || found.gid() == self.user;
        if mode & 0o020 != 0 && !is_private {
            return Err(format!("group {} can write to {place}", found.gid()));
        }
        Ok(())
    }
}

/// The reason for skipping a directory that does not exist. Error messages leave such directories out.
const MISSING: &str = "does not exist";

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Place(PathBuf);

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Place {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("guard-programs-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            std::fs::create_dir_all(&root).unwrap();
            Self(root.canonicalize().unwrap())
        }

        fn program(&self, directory: &str) -> PathBuf {
            let directory = self.0.join(directory);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("tool"), "").unwrap();
            set_mode(&directory.join("tool"), 0o755);
            directory
        }

        fn find(&self, directories: &[&Path]) -> Result<PathBuf, String> {
            let path = std::env::join_paths(directories).unwrap();
            let found = ProgramSearch::new(&path, Some(&self.0.join("home"))).find("tool");
            found.map_err(|error| error.to_string())
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_of_agents_and_others_are_passed_over() {
        let place = Place::new("skip");
        let good = place.program("good");
        let modules = place.program("project/node_modules/.bin");
        std::fs::create_dir(place.0.join("project/.git")).unwrap();
        let submodule = place.program("sub/bin");
        std::fs::write(place.0.join("sub/.git"), "gitdir: x").unwrap();
        let open = place.program("open/below");
        set_mode(&place.0.join("open"), 0o777);
        let shared = place.program("shared");
        std::os::unix::fs::chown(&shared, None, Some(nix::unistd::getegid().as_raw())).unwrap();
        set_mode(&shared, 0o777);
        let linked = place.0.join("linked");
        symlink(&modules, &linked).unwrap();
        let inner = place.0.join("inner");
        std::fs::create_dir(&inner).unwrap();
        symlink(modules.join("tool"), inner.join("tool")).unwrap();
        let writable = place.program("writable");
        set_mode(&writable.join("tool"), 0o757);
        let bad = [
            (Path::new("relative"), "a relative path"),
            (Path::new(""), "a relative path"),
            (&modules, "inside the git working tree"),
            (&submodule, "inside the git working tree"),
            (&linked, "inside the git working tree"),
            (&inner, "inside the git working tree"),
            (&open, "all users can write to"),
            (&shared, "all users can write to"),
            (&writable, "all users can write to"),
        ];
        for (directory, reason) in bad {
            assert_eq!(place.find(&[directory, &good]), Ok(good.join("tool")), "{}", directory.display());
            let error = place.find(&[directory]).unwrap_err();
            assert!(error.contains(reason), "{}: {error}", directory.display());
        }
        assert_eq!(place.find(&[&place.0.join("gone"), &good]), Ok(good.join("tool")));
        let path = std::env::join_paths([&modules, &open, &good]).unwrap();
        let children = ProgramSearch::new(&path, None).path();
        let children: Vec<PathBuf> = std::env::split_paths(&children).collect();
        assert!(children.contains(&good) && !children.contains(&modules) && !children.contains(&open));
    }

    #[test]
    fn dotfiles_and_installed_tools_are_used() {
        let place = Place::new("home");
        std::fs::create_dir_all(place.0.join("home/.git")).unwrap();
        std::fs::create_dir_all(place.0.join("home/.nvm/.git")).unwrap();
        std::fs::create_dir_all(place.0.join("home/project/.git")).unwrap();
        for directory in ["home/.local/bin", "home/bin", "home/.nvm/versions/node/bin"] {
            let directory = place.program(directory);
            assert_eq!(place.find(&[&directory]), Ok(directory.join("tool")));
        }
        let project = place.program("home/project/.venv/bin");
        assert!(place.find(&[&project]).unwrap_err().contains("inside the git working tree"));
    }

    #[test]
    fn other_peoples_programs_are_passed_over() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let place = Place::new("others");
        let theirs = place.program("theirs");
        std::os::unix::fs::chown(&theirs, Some(64_019), None).unwrap();
        assert!(place.find(&[&theirs]).unwrap_err().contains("belongs to another user"));
        let group = place.program("group");
        std::os::unix::fs::chown(&group, None, Some(64_019)).unwrap();
        set_mode(&group, 0o775);
        assert!(place.find(&[&group]).unwrap_err().contains("group 64019 can write to"));
    }
}
