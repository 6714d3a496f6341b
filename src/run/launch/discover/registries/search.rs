//! The search for the hosts of one tool: where its settings may be, and what guard has found in them.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::url;
use crate::sys::agent_paths::AgentPaths;

const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A tool that fetches packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Cargo,
    /// npm for Node, and the tools that share its settings.
    Npm,
    /// pip for Python, and the tools that share its settings.
    Pip,
    Apt,
}

impl Tool {
    pub fn named(name: &str) -> Option<Self> {
        [Self::Cargo, Self::Npm, Self::Pip, Self::Apt].into_iter().find(|tool| tool.name() == name)
    }

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

/// The state of the search for the hosts of one tool.
pub(super) struct Search<'a> {
    pub(super) tool: Tool,
    pub(super) home: Option<&'a Path>,
    pub(super) environment: &'a [(OsString, OsString)],
    pub(super) etc: &'a Path,
    /// The worktree in which agents work; `None` if there is none. guard reads no settings and executes no program in
    /// it.
    pub(super) worktree: Option<PathBuf>,
    /// The places in which agents may have worked earlier; `None` if guard cannot read their record.
    pub(super) agent_paths: Option<AgentPaths>,
    pub(super) found: Registries,
}

impl Search<'_> {
    /// Returns the value of an environment variable, unless it is empty.
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        let named = self.environment.iter().rev().find(|(key, _)| key == name);
        named.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Returns the value of an environment variable, if it is an absolute path.
    pub(super) fn directory(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Returns the directory in an environment variable or, if the variable does not contain an absolute path, the
    /// default directory below the home directory. `None` if the home directory is not known either.
    pub(super) fn base(&self, variable: &str, default: &str) -> Option<PathBuf> {
        self.directory(variable).or_else(|| Some(self.home?.join(default)))
    }

    /// Returns true if an agent may have written this path, or a link on the way to it.
    pub(super) fn is_agent_writable(&self, path: &Path) -> bool {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let Some(agent_paths) = &self.agent_paths else { return true };
        let leads_through_place = || match agent_paths.first_place(path) {
            Ok(place) => place.is_some(),
            // The path does not exist.
            Err(_) => agent_paths.place_of(&real).is_some(),
        };
        self.worktree.as_ref().is_some_and(|worktree| real.starts_with(worktree)) || leads_through_place()
    }

    /// Returns the text of a settings file; `None` if the file does not exist. If an agent may have written the file,
    /// or guard cannot read it, adds a note and returns `None`.
    pub(super) fn text(&mut self, path: &Path) -> Option<String> {
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
    pub(super) fn add_url(&mut self, address: &str, from: &str) -> Option<url::Host> {
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

    pub(super) fn add_entry(&mut self, entry: String) {
        if !self.found.entries.contains(&entry) {
            self.found.entries.push(entry);
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        let note = format!("{}: {text}", self.tool.name());
        if !self.found.notes.contains(&note) {
            self.found.notes.push(note);
        }
    }
}
