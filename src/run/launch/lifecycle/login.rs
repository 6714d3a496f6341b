//! Gives a copy of the user's login to an agent that has no API key. guard copies the user's credential file into the
//! private home directory. After the run it copies back the tokens that the agent's CLI has refreshed.
//!
//! The agent can read the copy, and can write anything into it. So guard copies back only the values that a refresh
//! replaces, only with their old types, and only if the user's file has not changed since guard copied it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::sys::fs::{Durability, Links, OpenError, read_regular_file, replace_file};

const MAX_FILE_BYTES: u64 = 256 << 10;
/// The maximum length of a token that guard copies back, in bytes: the transcript cannot redact longer tokens.
const MAX_TOKEN_BYTES: usize = crate::sys::secret::LARGEST;

/// A credential file of the user, and the copy that a run gets of it.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
pub struct CopiedLogin {
    /// The user's credential file, with symbolic links resolved.
    pub source: PathBuf,
    /// The path of the copy, relative to the private home directory.
    pub at: PathBuf,
    /// The JSON keys of the values that a refresh replaces. Dots separate nested keys.
    pub refreshed: Vec<String>,
    #[serde(skip)]
    content: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("cannot read {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    /// The credential file is not a regular file of at most 256 KiB that contains a JSON object.
    #[error("{} is not a credential file (a JSON object of at most 256 KiB)", .0.display())]
    NotCredentials(PathBuf),
}

impl CopiedLogin {
    /// Reads the user's credential file. `at` is the path of the file relative to `home`.
    pub fn read(home: &Path, at: &Path, refreshed: &[String]) -> Result<Self, LoginError> {
        let file = home.join(at);
        let source = match fs::canonicalize(&file) {
            Ok(source) => source,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LoginError::Missing(file)),
            Err(error) => return Err(LoginError::Unreadable { file, error }),
        };
        let content =
            read_small(&source).map_err(|error| LoginError::Unreadable { file: file.clone(), error })?;
        match content.filter(|content| parse(content).is_some()) {
            Some(content) => {
                Ok(Self { source, at: at.to_path_buf(), refreshed: refreshed.to_vec(), content })
            }
            None => Err(LoginError::NotCredentials(file)),
        }
    }

    /// Returns the tokens in the credential file, which must not appear in any record: the texts of at least 16 bytes
    /// among the values that a refresh replaces.
    pub fn tokens(&self) -> Vec<String> {
        let Some(content) = parse(&self.content) else { return Vec::new() };
        let values = self.refreshed.iter().filter_map(|key| content.pointer(&pointer(key))?.as_str());
        values.filter(|token| token.len() >= 16).map(str::to_string).collect()
    }

    /// Writes the copy of the credential file into the private home directory `home`.
    pub(crate) fn copy_into(&self, home: &Path) -> io::Result<()> {
        write_private(&home.join(&self.at), &self.content)
    }

    /// Copies refreshed values from a private home directory back into the user's credential file. Returns true if
    /// there were any. Fails if the user's file has changed since guard copied it.
    pub(crate) fn copy_back(&self, home: &Path) -> io::Result<bool> {
        let Some(refreshed) = read_in_home(home, &self.at)?.and_then(|bytes| parse(&bytes)) else {
            return Ok(false);
        };
        let Some(mut content) = parse(&self.content) else { return Ok(false) };
        let mut changed = false;
        for key in &self.refreshed {
            let (new, old) = (refreshed.pointer(&pointer(key)), content.pointer_mut(&pointer(key)));
            let (Some(new), Some(old)) = (new, old) else {
                continue;
            };
            if new != old && is_token_like(new, old) {
                *old = new.clone();
                changed = true;
            }
        }
        if !changed {
            return Ok(false);
        }
        if read_small(&self.source)?.as_deref() != Some(&self.content) {
            let problem = format!("{} changed during the run", self.source.display());
            return Err(io::Error::other(problem));
        }
        let mut text = serde_json::to_vec_pretty(&content)?;
        text.push(b'\n');
        write_private(&self.source, &text)?;
        Ok(true)
    }
}

impl fmt::Debug for CopiedLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedLogin")
            .field("source", &self.source)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// Returns true if both values are numbers, or if both are texts and the new one could be a token: not empty, at most
/// [`MAX_TOKEN_BYTES`] long, and only of visible ASCII characters.
fn is_token_like(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::String(new), Value::String(_)) => {
            !new.is_empty() && new.len() <= MAX_TOKEN_BYTES && new.bytes().all(|byte| byte.is_ascii_graphic())
        }
        (Value::Number(_), Value::Number(_)) => true,
        _ => false,
    }
}

/// Converts a key with dots, such as `a.b`, into a JSON pointer, such as `/a/b`.
fn pointer(key: &str) -> String {
    format!("/{}", key.replace('.', "/"))
}

fn parse(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok().filter(Value::is_object)
}

/// Returns the content of a file; `None` if the file is not regular or is too large. Fails if the last component of
/// the path is a symbolic link.
fn read_small(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match read_regular_file(path, MAX_FILE_BYTES, Links::Refuse) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(OpenError::Io(error)) => Err(error),
        Err(OpenError::NotRegular | OpenError::TooLarge { .. }) => Ok(None),
    }
}

/// Returns the content of a file in the private home directory. Returns `None` if the file does not exist, is not
/// regular or is too large, or if a component of its path is a symbolic link, which the agent may have created.
fn read_in_home(home: &Path, at: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut directory = home.to_path_buf();
    for part in at.parent().into_iter().flat_map(Path::components) {
        directory.push(part);
        if !directory.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            return Ok(None);
        }
    }
    match read_small(&home.join(at)) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP)) => Ok(None),
        read => read,
    }
}

/// Atomically replaces a file with one that only its owner can read.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    replace_file(path, content, 0o600, Durability::Synced)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Homes {
        root: PathBuf,
        login: CopiedLogin,
    }

    const AT: &str = ".agent/credentials.json";
    const CREDENTIALS: &str =
        r#"{"oauth":{"access":"old-access-token-0","refresh":"old-refresh-token","expires":1,"plan":"pro"}}"#;

    impl Homes {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("guard-login-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let user = root.join("user");
            fs::create_dir_all(user.join(".agent")).unwrap_or_else(|error| panic!("{error}"));
            fs::create_dir_all(root.join("private")).unwrap_or_else(|error| panic!("{error}"));
            fs::write(user.join(AT), CREDENTIALS).unwrap_or_else(|error| panic!("{error}"));
            let refreshed = ["oauth.access", "oauth.refresh", "oauth.expires"].map(String::from);
            let login =
                CopiedLogin::read(&user, Path::new(AT), &refreshed).unwrap_or_else(|error| panic!("{error}"));
            login.copy_into(&root.join("private")).unwrap_or_else(|error| panic!("{error}"));
            Self { root, login }
        }

        fn agent_writes(&self, text: &str) {
            fs::write(self.root.join("private").join(AT), text).unwrap_or_else(|error| panic!("{error}"));
        }

        fn copy_back(&self) -> io::Result<bool> {
            self.login.copy_back(&self.root.join("private"))
        }

        fn users_file(&self) -> String {
            fs::read_to_string(self.root.join("user").join(AT)).unwrap_or_else(|error| panic!("{error}"))
        }
    }

    impl Drop for Homes {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn only_refreshed_tokens_are_copied_back() {
        let homes = Homes::new("refreshed");
        assert!(!homes.copy_back().unwrap_or_else(|error| panic!("{error}")), "nothing was refreshed");
        homes.agent_writes(
            r#"{"oauth":{"access":"new-access-token-1","refresh":5,"expires":2,"plan":"none"},"apiKeyHelper":"evil"}"#,
        );
        assert!(homes.copy_back().unwrap_or_else(|error| panic!("{error}")));
        let own: Value = serde_json::from_str(&homes.users_file()).unwrap_or_default();
        let expected = r#"{"oauth":{"access":"new-access-token-1","refresh":"old-refresh-token","expires":2,"plan":"pro"}}"#;
        assert_eq!(own, serde_json::from_str::<Value>(expected).unwrap_or_default());
    }

    #[test]
    fn only_credential_files_are_copied_back() {
        let homes = Homes::new("strange");
        let private = homes.root.join("private").join(AT);
        for text in ["", "[]", "{}", "no json", r#"{"oauth":{"access":"with space and\nline"}}"#] {
            homes.agent_writes(text);
            assert!(!homes.copy_back().unwrap_or_else(|error| panic!("{text}: {error}")), "{text}");
        }
        homes.agent_writes(&format!(r#"{{"oauth":{{"access":"{}"}}}}"#, "x".repeat(300 << 10)));
        assert!(!homes.copy_back().unwrap_or(true));
        // The agent replaces its copy by a link to another file of the user.
        let other = homes.root.join("user/other.json");
        fs::write(&other, r#"{"oauth":{"access":"another-secret-000"}}"#)
            .unwrap_or_else(|error| panic!("{error}"));
        fs::remove_file(&private).unwrap_or_else(|error| panic!("{error}"));
        std::os::unix::fs::symlink(&other, &private).unwrap_or_else(|error| panic!("{error}"));
        assert!(!homes.copy_back().unwrap_or_else(|error| panic!("{error}")));
        assert_eq!(homes.users_file(), CREDENTIALS);
    }

    #[test]
    fn a_file_that_has_changed_during_the_run_stays() {
        let homes = Homes::new("meanwhile");
        homes.agent_writes(&CREDENTIALS.replace("old-access-token-0", "new-access-token-1"));
        let users = CREDENTIALS.replace("old-access-token-0", "the-users-own-token");
        fs::write(homes.root.join("user").join(AT), &users).unwrap_or_else(|error| panic!("{error}"));
        assert!(homes.copy_back().is_err());
        assert_eq!(homes.users_file(), users);
    }

    #[test]
    fn errors_name_a_file_that_is_missing_or_not_json() {
        let root = std::env::temp_dir().join(format!("guard-login-none-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap_or_else(|error| panic!("{error}"));
        let read =
            |at: &str| CopiedLogin::read(&root, Path::new(at), &[]).err().map(|error| error.to_string());
        assert!(read("missing.json").is_some_and(|text| text.ends_with("missing.json does not exist")));
        fs::write(root.join("text"), "text").unwrap_or_else(|error| panic!("{error}"));
        assert!(read("text").is_some_and(|text| text.contains("not a credential file")));
        let _ = fs::remove_dir_all(&root);
    }
}
