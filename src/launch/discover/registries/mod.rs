//! Finds the hosts from which the user's package tools fetch packages.
//!
//! With these hosts, a policy can allow a tool such as cargo to fetch packages without naming hosts: users have
//! different mirrors, and the tools know them. This module reads the tools' settings. If a tool has none, guard runs
//! the tool to learn its default: either the tool prints the default, or guard acts as the tool's proxy and reads the
//! host that the tool requests.
//!
//! The module takes a home directory and an environment, and returns entries for `[network] allow`, and notes for the
//! user. It must never read settings in the working directory, which an agent may have written. If it cannot read a
//! file, it adds a note, and never fails. URLs in settings may contain passwords, so notes name the file and never
//! quote a URL.
#![forbid(unsafe_code)]

mod apt;
mod cargo;
mod ini;
mod npm;
mod pip;
mod query_tool;
mod url;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The largest settings file that guard reads, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A tool that fetches packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Cargo, for Rust.
    Cargo,
    /// npm for Node, and the tools that share its settings.
    Npm,
    /// pip for Python, and the tools that share its settings.
    Pip,
    /// apt, on Debian and its derivatives.
    Apt,
}

impl Tool {
    /// Returns the tool with this name, if guard knows it.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Cargo, Self::Npm, Self::Pip, Self::Apt].into_iter().find(|tool| tool.name() == name)
    }

    /// Returns the tool's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Npm => "npm",
            Self::Pip => "pip",
            Self::Apt => "apt",
        }
    }
}

/// The hosts from which a tool fetches packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Entries for `[network] allow`, such as `host:443`, without duplicates.
    pub entries: Vec<String>,
    /// Notes for users: what guard could not read or find out, and what to write into the policy instead.
    pub notes: Vec<String>,
}

/// Finds the hosts from which a tool fetches packages. May run the tool to learn its default host, which guard then
/// saves in the user's cache directory.
pub fn find_registries(tool: Tool, home: Option<&Path>, environment: &[(OsString, OsString)]) -> Registries {
    let directory = std::env::current_dir().ok();
    find_registries_with(tool, home, environment, Path::new("/etc"), directory.as_deref())
}

/// Finds the hosts from which a tool fetches packages, as [`find_registries`] does. This variant is for tests: it reads
/// `etc` in place of `/etc`, and takes `directory` for the working directory.
pub fn find_registries_with(
    tool: Tool,
    home: Option<&Path>,
    environment: &[(OsString, OsString)],
    etc: &Path,
    directory: Option<&Path>,
) -> Registries {
    let home = home.filter(|home| home.is_absolute());
    let worktree = directory.and_then(|directory| worktree_of(directory, home));
    let mut search = Search { tool, home, environment, etc, worktree, found: Registries::default() };
    match tool {
        Tool::Cargo => cargo::search(&mut search),
        Tool::Npm => npm::search(&mut search),
        Tool::Pip => pip::search(&mut search),
        Tool::Apt => apt::search(&mut search),
    }
    if search.found.entries.is_empty() {
        let (name, hint) = (tool.name(), "[network] allow = [\"HOST:443\"]");
        search.note(&format!(
            "guard cannot find out from which host {name} fetches packages; write the host into the policy: {hint}"
        ));
    }
    search.found
}

/// Returns the real path of the git worktree that contains `directory`. If there is no worktree, or if it contains the
/// user's home directory, returns the real path of `directory` itself. `None` if that contains the home directory as
/// well, or does not exist.
fn worktree_of(directory: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    let tree = directory.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&directory);
    let home = home.and_then(|home| home.canonicalize().ok());
    let contains_home = |tree: &Path| home.as_ref().is_some_and(|home| home.starts_with(tree));
    [tree, &directory].into_iter().find(|tree| !contains_home(tree)).map(Path::to_path_buf)
}

/// The state of the search for the hosts of one tool.
struct Search<'a> {
    tool: Tool,
    home: Option<&'a Path>,
    environment: &'a [(OsString, OsString)],
    etc: &'a Path,
    /// The worktree in which agents work; `None` if there is none. guard reads no settings and executes no program in
    /// it.
    worktree: Option<PathBuf>,
    found: Registries,
}

impl Search<'_> {
    /// Returns the value of an environment variable, unless it is empty.
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let named = self.environment.iter().rev().find(|(key, _)| key == name);
        named.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Returns the value of an environment variable, if it is an absolute path.
    fn directory(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Returns the directory in an environment variable or, if the variable does not contain an absolute path, the
    /// default directory below the home directory. `None` if the home directory is not known either.
    fn base(&self, variable: &str, default: &str) -> Option<PathBuf> {
        self.directory(variable).or_else(|| Some(self.home?.join(default)))
    }

    /// Returns true if an agent may have written this path, because the path is in the worktree.
    fn is_agent_writable(&self, path: &Path) -> bool {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        self.worktree.as_ref().is_some_and(|worktree| real.starts_with(worktree))
    }

    /// Returns the text of a settings file; `None` if the file does not exist. If an agent may have written the file,
    /// or guard cannot read it, adds a note and returns `None`.
    fn text(&mut self, path: &Path) -> Option<String> {
        if self.is_agent_writable(path) {
            if path.exists() {
                self.note(&format!("guard does not read {}: an agent may have written it", path.display()));
            }
            return None;
        }
        let read = || {
            // Check the file type first, because opening a named pipe would block.
            if !std::fs::metadata(path)?.is_file() {
                return Err(std::io::Error::other("the path is not a regular file"));
            }
            let mut text = String::new();
            std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
            let is_too_long = text.len() as u64 > MAX_FILE_BYTES;
            if is_too_long { Err(std::io::Error::other("the file is too large")) } else { Ok(text) }
        };
        match read() {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.note(&format!("guard does not read {}: {error}", path.display()));
                None
            }
        }
    }

    /// Adds the host of a URL and returns it. Returns `None` for a path on this machine. If guard cannot parse the URL,
    /// adds a note and returns `None`. `from` is the name of the file or variable that contains the URL, for use in the
    /// note.
    fn add_url(&mut self, address: &str, from: &str) -> Option<url::Host> {
        match url::parse(address) {
            url::Target::Host(host) => {
                self.add_entry(host.entry());
                Some(host)
            }
            url::Target::Local => None,
            url::Target::Invalid => {
                self.note(&format!(
                    "{from} has a URL that guard cannot parse; allow the URL's host in the policy"
                ));
                None
            }
        }
    }

    fn add_entry(&mut self, entry: String) {
        if !self.found.entries.contains(&entry) {
            self.found.entries.push(entry);
        }
    }

    fn note(&mut self, text: &str) {
        let note = format!("{}: {text}", self.tool.name());
        if !self.found.notes.contains(&note) {
            self.found.notes.push(note);
        }
    }
}
