//! Gets API keys from three sources: from guard's environment, from a file, or from the output of a command. guard
//! removes the keys from its environment before it starts any process.
//!
//! guard stores a key in a memory page that no child process inherits ([`Secret`]). The agent must only ever get a
//! placeholder.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::error::LaunchError;
use crate::judge::policy::{Config, KEY_VARIABLES};
use crate::sys::agent_paths::{AgentPaths, ForeignLink};
use crate::sys::fs::{Links, OpenError, open_regular_file};
use crate::sys::programs::{ProgramNotFound, ProgramSearch};
use crate::sys::secret::{LARGEST, Secret, SecretError, take_variable};

/// How long a command may take to print a key. Some commands have to ask the user for a password.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A variable of the caller's environment.
    Variable(String),
    /// A file that contains only the key.
    File(PathBuf),
    /// A command that prints the key: the program and its arguments.
    Command(Vec<String>),
}

impl std::fmt::Display for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "${name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Command(argv) => {
                write!(f, "the output of {}", argv.first().map(String::as_str).unwrap_or_default())
            }
        }
    }
}

/// The API keys that guard has removed from its environment.
#[derive(Debug, Default)]
pub struct Keys {
    /// The removed variables: (name, key).
    variables: Vec<(String, Secret)>,
}

/// The API keys of a run and other secrets, all of which the transcript redacts.
#[derive(Debug, Default)]
pub struct Secrets {
    /// The API key of each gateway, in the order of the gateways in the plan; `None` for a gateway without a key.
    pub gateways: Vec<Option<Secret>>,
    /// Secrets that no gateway of the run uses.
    pub others: Vec<Secret>,
}

impl Secrets {
    /// Adds texts to `others`, so that the transcript redacts them. Skips a text that is empty, too long, or contains
    /// white space or non-ASCII characters.
    #[must_use]
    pub fn and_others(mut self, texts: &[String]) -> Self {
        self.others.extend(texts.iter().filter_map(|text| Secret::one_word(text.clone().into_bytes()).ok()));
        self
    }
}

impl Keys {
    /// Returns the keys of the removed variables that [`Keys::fetch`] has not returned, because no gateway of the run
    /// uses them.
    pub(crate) fn into_unused(self) -> Vec<Secret> {
        self.variables.into_iter().map(|(_, secret)| secret).collect()
    }

    /// Moves the API keys out of this process's environment: the variables that guard knows, and those that the user's
    /// configuration names as `key_variable`. guard must call this while it has only one thread.
    pub fn take(config: &Config) -> Self {
        let own = config.gateway.values().filter_map(|gateway| gateway.key_variable.as_deref());
        let mut keys = Self::default();
        for name in KEY_VARIABLES.into_iter().chain(own) {
            if let Ok(Some(secret)) = take_variable(name) {
                keys.variables.push((name.to_string(), secret));
            }
        }
        keys
    }

    /// Returns the names of the removed variables whose value was not empty.
    pub fn names(&self) -> Vec<String> {
        let filled = self.variables.iter().filter(|(_, secret)| !secret.expose().is_empty());
        filled.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the removed variables that are not in `used`, with their values. A policy may pass these variables to
    /// the agent.
    pub fn others(&self, used: &[&str]) -> Vec<(OsString, OsString)> {
        let others = self.variables.iter().filter(|(name, _)| !used.contains(&name.as_str()));
        others.map(|(name, secret)| (name.into(), OsString::from_vec(secret.expose().to_vec()))).collect()
    }

    /// Reads the API key of a gateway from its source. Fails if the source has no valid key, or if an earlier call has
    /// already returned the key of the same variable.
    pub fn fetch(&mut self, gateway: &str, source: &KeySource) -> Result<Secret, LaunchError> {
        let failed = |problem: KeyError| {
            LaunchError::Input(format!(
                "cannot get the API key of the gateway {gateway} from {source}: {problem}"
            ))
        };
        match source {
            KeySource::Variable(name) => {
                let at = self.variables.iter().position(|(known, _)| known == name);
                at.map(|at| self.variables.swap_remove(at).1).ok_or_else(|| failed(KeyError::NotSet))
            }
            KeySource::File(path) => from_file(path).map_err(failed),
            KeySource::Command(argv) => from_command(argv).map_err(failed),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum KeyError {
    #[error("the variable is not set, or another gateway already uses its key")]
    NotSet,
    #[error("expected a regular file of at most {LARGEST} bytes")]
    NotSmallFile,
    #[error("the file belongs to another user")]
    ForeignOwner,
    #[error("other users may read the file (mode {0:o}); run `chmod 600` on it")]
    OpenMode(u32),
    #[error("{0}; name the real path")]
    ForeignLink(ForeignLink),
    #[error("`key_command` is empty")]
    EmptyCommand,
    #[error("guard does not start {0}: {1}; name an absolute path that no agent could have written")]
    UntrustedProgram(PathBuf, String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Program(#[from] ProgramNotFound),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

fn from_file(path: &Path) -> Result<Secret, KeyError> {
    let places = AgentPaths::from_environment()?;
    let path = places.resolve(path)?.own().map_err(KeyError::ForeignLink)?;
    let file = open_regular_file(&path, LARGEST as u64, Links::Refuse).map_err(|error| match error {
        OpenError::Io(error) => KeyError::Io(error),
        OpenError::NotRegular | OpenError::TooLarge { .. } => KeyError::NotSmallFile,
    })?;
    let data = file.metadata()?;
    let own = nix::unistd::geteuid().as_raw();
    if data.uid() != own && data.uid() != 0 {
        return Err(KeyError::ForeignOwner);
    }
    if data.mode() & 0o077 != 0 {
        return Err(KeyError::OpenMode(data.mode() & 0o777));
    }
    let mut bytes = Vec::with_capacity(LARGEST + 1);
    file.take(LARGEST as u64).read_to_end(&mut bytes)?;
    Ok(Secret::one_word(bytes)?)
}

fn from_command(argv: &[String]) -> Result<Secret, KeyError> {
    let (program, rest) = argv.split_first().ok_or(KeyError::EmptyCommand)?;
    let search = ProgramSearch::from_environment();
    // A name with a slash is a path, so guard does not search PATH for it.
    let program = if program.contains('/') {
        let path = PathBuf::from(program);
        search.check_path(&path).map_err(|reason| KeyError::UntrustedProgram(path.clone(), reason))?;
        path
    } else {
        search.find(program)?
    };
    let mut command = Command::new(program);
    command.args(rest).env("PATH", search.path()).stdin(Stdio::inherit()).stderr(Stdio::inherit());
    Ok(Secret::printed_by(&mut command, COMMAND_TIMEOUT)?)
}
