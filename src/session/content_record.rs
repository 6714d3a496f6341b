//! Which content of a thing (a policy file, the settings of a project) guard has used last, or the user has confirmed
//! last. Each thing has a file with the hash of that content in guard's state directory, which no run can write.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::session::Failure;
use crate::sys::agent_paths::state_directory;
use crate::sys::fs::{Durability, Links, read_regular_file, replace_file};

/// The size of a hash in hexadecimal digits.
const HASH_BYTES: u64 = 64;

/// Returns the SHA-256 hash of bytes in hexadecimal digits.
pub(crate) fn hash(bytes: &[u8]) -> String {
    crate::text::hex::encode(Sha256::digest(bytes))
}

/// The record of the last content of one thing.
pub(crate) struct ContentRecord(PathBuf);

impl ContentRecord {
    /// Returns the record of the thing at the path `thing`. `directory` is the directory for all things of its kind.
    pub(crate) fn of(directory: &str, thing: &Path) -> Result<Self, Failure> {
        let state = state_directory().ok_or_else(|| {
            Failure::usage(
                "guard cannot find its state directory",
                "set XDG_STATE_HOME or HOME to an absolute path",
            )
        })?;
        Ok(Self(state.join(directory).join(hash(thing.as_os_str().as_encoded_bytes()))))
    }

    /// Returns the hash of the last content; `None` if there is none.
    pub(crate) fn known(&self) -> Result<Option<String>, Failure> {
        match read_regular_file(&self.0, HASH_BYTES, Links::Refuse).map_err(io::Error::from) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", &error)),
        }
    }

    /// Makes the content with this hash the last one.
    pub(crate) fn remember(&self, hash: &str) -> Result<(), Failure> {
        let directory = self.0.parent().unwrap_or(Path::new("/"));
        let made = DirBuilder::new().mode(0o700).recursive(true).create(directory);
        let written = made.and_then(|()| replace_file(&self.0, hash.as_bytes(), 0o600, Durability::Unsynced));
        written.map_err(|error| self.failed("write", &error))
    }

    /// Makes guard know no content.
    pub(crate) fn forget(&self) -> Result<(), Failure> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("remove", &error)),
            _ => Ok(()),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        Failure::usage(
            format!("cannot {what} {}: {error}", self.0.display()),
            "check the owner and mode of the file and of its directory",
        )
    }
}
