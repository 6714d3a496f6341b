//! Finds the user's token for GitHub: in the environment, or in the output of `gh auth token`.
//!
//! guard stores the token in memory that child processes do not inherit. Its `Debug` output contains only the source
//! of the token, and guard removes the token from every text that it shows.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::ForgeError;
use super::remote::Remote;
use crate::sys::programs::ProgramSearch;
use crate::sys::secret::Secret;

/// Environment variables that may contain the token, in order of precedence.
const VARIABLES: [&str; 2] = ["GH_TOKEN", "GITHUB_TOKEN"];
/// Maximum duration of `gh auth token`, which may have to unlock a keyring.
const PATIENCE: Duration = Duration::from_secs(20);

/// A GitHub token, and the variable or command from which it came.
pub struct Token {
    secret: Secret,
    source: &'static str,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.source)
    }
}

impl Token {
    /// Finds the user's token for a remote: `GH_TOKEN`, `GITHUB_TOKEN`, or the output of `gh auth token`.
    /// `None` if the remote is not on GitHub, or there is no token. Fails if a variable contains an invalid token.
    pub fn find(remote: &Remote) -> Result<Option<Self>, ForgeError> {
        Self::with(remote, |variable| std::env::var(variable).ok())
    }

    /// Finds the user's token for a remote: `GH_TOKEN`, `GITHUB_TOKEN`, or the output of `gh auth token`. `variable`
    /// returns the value of an environment variable. `None` if the remote is not on GitHub, or there is no token. Fails
    /// if a variable contains an invalid token.
    pub fn with(
        remote: &Remote,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ForgeError> {
        let (Some(_), Some(host)) = (remote.github(), &remote.host) else { return Ok(None) };
        for source in VARIABLES {
            if let Some(text) = variable(source).filter(|text| !text.is_empty()) {
                let secret = Secret::one_word(text.into_bytes()).map_err(|problem| {
                    ForgeError::refused(
                        format!("{source} does not contain a valid token: {problem}"),
                        "set this variable to a valid token, or unset it",
                    )
                })?;
                return Ok(Some(Self { secret, source }));
            }
        }
        let Some(path) = variable("PATH") else { return Ok(None) };
        let home = variable("HOME");
        let search = ProgramSearch::new(path.as_ref(), home.as_deref().map(Path::new));
        let Ok(gh) = search.find("gh") else { return Ok(None) };
        let mut command = Command::new(gh);
        command.args(["auth", "token", "--hostname", host]).current_dir("/").env("PATH", search.path());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        // A failure of `gh` is not an error: a user who is not logged in simply has no token.
        let printed = Secret::printed_by(&mut command, PATIENCE).ok();
        Ok(printed.map(|secret| Self { secret, source: "gh auth token" }))
    }

    /// Returns the variable or command from which the token came, as text for the user.
    pub fn source(&self) -> &str {
        self.source
    }

    /// Returns the value of the `Authorization` header for requests with this token.
    pub(super) fn header(&self) -> Vec<u8> {
        [b"Bearer ", self.secret.expose()].concat()
    }

    /// Removes the token from a text that the service sent, because the service may repeat parts of the request.
    pub(super) fn redact(&self, text: &str) -> String {
        // A token is one ASCII word, so it is always valid UTF-8.
        let secret = std::str::from_utf8(self.secret.expose()).unwrap_or_default();
        if secret.is_empty() { text.to_string() } else { text.replace(secret, "…") }
    }
}
