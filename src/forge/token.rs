//! The user's token for a hosting service: from the environment, or from the service's own program.
//!
//! It is held in a page that no child process sees, has no text form, and is cut out of whatever is told.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::ForgeError;
use super::remote::Remote;
use crate::sys::programs::ProgramSearch;
use crate::sys::secret::Secret;

/// Where a token may be, the first before the second.
const VARIABLES: [&str; 2] = ["GH_TOKEN", "GITHUB_TOKEN"];
/// How long `gh` may take: it may have to unlock a keyring.
const PATIENCE: Duration = Duration::from_secs(20);

/// A token.
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
    /// The user's token for a remote: `GH_TOKEN`, `GITHUB_TOKEN`, or what `gh auth token` prints. None for a remote that is
    /// not on GitHub.
    pub fn find(remote: &Remote) -> Result<Option<Self>, ForgeError> {
        Self::with(remote, |variable| std::env::var(variable).ok())
    }

    /// The same with an environment of one's own.
    pub fn with(
        remote: &Remote,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ForgeError> {
        let (Some(_), Some(host)) = (remote.github(), &remote.host) else { return Ok(None) };
        for source in VARIABLES {
            if let Some(text) = variable(source).filter(|text| !text.is_empty()) {
                let secret = Secret::one_word(text.into_bytes()).map_err(|problem| {
                    ForgeError::refused(
                        format!("{source} is no token: {problem}"),
                        "set it anew, or unset it",
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
        // Who is not logged in has no token, as who has no `gh`.
        let printed = Secret::printed_by(&mut command, PATIENCE).ok();
        Ok(printed.map(|secret| Self { secret, source: "gh auth token" }))
    }

    /// Where it is from, to be told.
    pub fn source(&self) -> &str {
        self.source
    }

    /// The value of the header that carries it.
    pub(super) fn header(&self) -> Vec<u8> {
        [b"Bearer ", self.secret.expose()].concat()
    }

    /// A text without it: the other side may repeat what it was sent.
    pub(super) fn cut_from(&self, text: &str) -> String {
        // A secret is one word of ASCII.
        let secret = std::str::from_utf8(self.secret.expose()).unwrap_or_default();
        if secret.is_empty() { text.to_string() } else { text.replace(secret, "…") }
    }
}
