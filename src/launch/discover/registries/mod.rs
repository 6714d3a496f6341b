//! Finds the hosts from which the user's package tools fetch.
//!
//! So a policy can allow "what cargo needs" without naming hosts: mirrors and proxies differ between users, and the
//! tools know them. This module reads the tools' settings. It asks a tool without settings for its default: by running
//! it, or by a fake proxy that records the host the tool requests.
//!
//! It takes a home and an environment, and returns entries for `[network] allow` and notes. It must never read settings
//! of the working directory, which an agent may have written. A file that cannot be read gives a note, never an error.
//! Addresses may hold passwords, so notes name files and never quote them.
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

/// The longest settings file that is read, in bytes.
const LONGEST: u64 = 1024 * 1024;

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
    /// The tool with this name, if guard knows it.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Cargo, Self::Npm, Self::Pip, Self::Apt].into_iter().find(|tool| tool.name() == name)
    }

    /// The tool's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Npm => "npm",
            Self::Pip => "pip",
            Self::Apt => "apt",
        }
    }
}

/// Where a tool fetches packages from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Entries for `[network] allow`, such as `host:443`: without duplicates, in the order they were found.
    pub entries: Vec<String>,
    /// Notes for users: what could not be found out, and what to write instead.
    pub notes: Vec<String>,
}

/// Finds the hosts of a tool. May run the tool to ask for its defaults; the answer is kept in the user's cache.
pub fn of(tool: Tool, home: Option<&Path>, environment: &[(OsString, OsString)]) -> Registries {
    let folder = std::env::current_dir().ok();
    of_system(tool, home, environment, Path::new("/etc"), folder.as_deref())
}

/// The same with another directory for the machine's settings, and another working directory.
pub fn of_system(
    tool: Tool,
    home: Option<&Path>,
    environment: &[(OsString, OsString)],
    etc: &Path,
    folder: Option<&Path>,
) -> Registries {
    let home = home.filter(|home| home.is_absolute());
    let tree = folder.and_then(|folder| tree(folder, home));
    let mut search = Search { tool, home, environment, etc, tree, found: Registries::default() };
    match tool {
        Tool::Cargo => cargo::search(&mut search),
        Tool::Npm => npm::search(&mut search),
        Tool::Pip => pip::search(&mut search),
        Tool::Apt => apt::search(&mut search),
    }
    if search.found.entries.is_empty() {
        let (name, hint) = (tool.name(), "[network] allow = [\"HOST:443\"]");
        search.note(&format!("no host is known that {name} fetches from; write it into the policy: {hint}"));
    }
    search.found
}

/// The real path of a directory's working tree, unless that contains the user's home.
fn tree(folder: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let tree = folder.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&folder);
    let home = home.and_then(|home| home.canonicalize().ok());
    let holds_home = |tree: &Path| home.as_ref().is_some_and(|home| home.starts_with(tree));
    [tree, &folder].into_iter().find(|tree| !holds_home(tree)).map(Path::to_path_buf)
}

/// A search for one tool's hosts.
struct Search<'a> {
    tool: Tool,
    home: Option<&'a Path>,
    environment: &'a [(OsString, OsString)],
    etc: &'a Path,
    /// The agents' working tree: nothing in it is read or executed.
    tree: Option<PathBuf>,
    found: Registries,
}

impl Search<'_> {
    /// The value of a variable, unless it is empty.
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let named = self.environment.iter().rev().find(|(key, _)| key == name);
        named.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// The value of a variable that holds an absolute path.
    fn folder(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// An XDG base directory: the variable's value, or the default below the home.
    fn base(&self, variable: &str, usual: &str) -> Option<PathBuf> {
        self.folder(variable).or_else(|| Some(self.home?.join(usual)))
    }

    /// Whether an agent may have written this path.
    fn is_agents(&self, path: &Path) -> bool {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        self.tree.as_ref().is_some_and(|tree| real.starts_with(tree))
    }

    /// The text of a settings file. `None` if it does not exist; with a note if it cannot be read.
    fn text(&mut self, path: &Path) -> Option<String> {
        if self.is_agents(path) {
            if path.exists() {
                self.note(&format!("{} is not read: agents may write to it", path.display()));
            }
            return None;
        }
        let read = || {
            // Opening a pipe would block.
            if !std::fs::metadata(path)?.is_file() {
                return Err(std::io::Error::other("not a file"));
            }
            let mut text = String::new();
            std::fs::File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
            if text.len() as u64 > LONGEST { Err(std::io::Error::other("too long")) } else { Ok(text) }
        };
        match read() {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.note(&format!("{} is not read: {error}", path.display()));
                None
            }
        }
    }

    /// Adds the host of an address and returns it. `from` names the source of the address.
    fn address(&mut self, address: &str, from: &str) -> Option<url::Host> {
        match url::host(address) {
            url::Place::Host(host) => {
                self.entry(host.entry());
                Some(host)
            }
            url::Place::Here => None,
            url::Place::Unknown => {
                self.note(&format!("{from} holds an address that is not understood"));
                None
            }
        }
    }

    fn entry(&mut self, entry: String) {
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
