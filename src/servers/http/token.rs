//! The token that authenticates HTTP clients, stored in a file that only its owner can read.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::sys::fs::{Links, OpenError, open_regular_file};

/// The minimum length of a token, in characters. Shorter tokens could be guessed.
const SHORTEST: usize = 32;
/// The maximum number of bytes that guard reads from a token file.
const LONGEST: u64 = 4096;

/// The token that clients must present. guard stores only its digest, so that memory dumps do not contain the token
/// and the comparison takes constant time.
#[derive(Debug, Clone)]
pub struct Token([u8; 32]);

#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TokenError {
    pub path: PathBuf,
    pub problem: TokenProblem,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenProblem {
    #[error("cannot read the token file: {0}")]
    Unreadable(io::Error),
    #[error("cannot create the token file: {0}")]
    NotCreated(io::Error),
    /// The path of the token file leads to a directory, a pipe or a device.
    #[error("the token file is not a regular file")]
    NoFile,
    /// Another user owns the token file.
    #[error(
        "the token file belongs to another user; guard uses only a file that belongs to the user it runs as"
    )]
    ForeignOwner,
    /// The mode of the token file lets other users read or write it.
    #[error("other users can access the token file (mode {:03o}); create a new token in a file with mode 600", .0)]
    OpenMode(u32),
    /// The token is too short, contains white space, or has characters that are not printable ASCII.
    #[error("the token must be one word of at least {SHORTEST} printable ASCII characters")]
    Spelling,
}

impl Token {
    /// Reads a token from a file. Fails if other users own the file or can access it, or if it contains no valid token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let bad = |problem: TokenProblem| TokenError { path: path.to_path_buf(), problem };
        let cannot = |error: io::Error| bad(TokenProblem::Unreadable(error));
        let open = open_regular_file(path, u64::MAX, Links::Follow);
        let file = open.map_err(|error| match error {
            OpenError::Io(error) => cannot(error),
            OpenError::NotRegular | OpenError::TooLarge { .. } => bad(TokenProblem::NoFile),
        })?;
        let found = file.metadata().map_err(cannot)?;
        if found.uid() != nix::unistd::geteuid().as_raw() {
            return Err(bad(TokenProblem::ForeignOwner));
        }
        if found.mode() & 0o077 != 0 {
            return Err(bad(TokenProblem::OpenMode(found.mode() & 0o777)));
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
        let word = text.trim();
        if word.len() < SHORTEST || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad(TokenProblem::Spelling));
        }
        Ok(Self(Sha256::digest(word).into()))
    }

    /// Reads the token from a file. If the file is missing, first creates it, with a new token, and its directory.
    pub fn read_or_create(path: &Path) -> Result<Self, TokenError> {
        if !path.exists() {
            let not_created =
                |error| TokenError { path: path.to_path_buf(), problem: TokenProblem::NotCreated(error) };
            create(path).map_err(not_created)?;
        }
        Self::read(path)
    }

    /// Returns true if a client presented the server's token. The comparison takes constant time.
    pub(crate) fn matches(&self, candidate: &[u8]) -> bool {
        let candidate: [u8; 32] = Sha256::digest(candidate).into();
        let differences = self.0.iter().zip(candidate).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(differences) == 0
    }
}

/// Writes a new token to a file atomically. If several processes create the file at the same time, the first one wins,
/// and all of them use its token.
fn create(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let temporary = directory.join(format!("token-{}", uuid::Uuid::new_v4()));
    let word = format!("{}{}\n", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let created = file.write_all(word.as_bytes()).and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary)?;
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_its_owners() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("guard-token-{}", uuid::Uuid::now_v7()));
        let path = directory.join("state/token");
        let token = Token::read_or_create(&path).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(path.metadata()?.mode() & 0o777, 0o600);
        assert_eq!(directory.join("state").metadata()?.mode() & 0o777, 0o700);
        let word = fs::read_to_string(&path)?;
        assert!(word.trim().len() == 64 && token.matches(word.trim().as_bytes()));
        assert!(!token.matches(b"") && !token.matches(word.as_bytes()));
        assert!(!token.matches(&word.as_bytes()[..63]));
        let again = Token::read_or_create(&path).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(again.matches(word.trim().as_bytes()));
        let problem = |text: &str, mode: u32| {
            fs::write(&path, text)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))?;
            Ok::<_, io::Error>(Token::read(&path).err().map(|error| error.to_string()).unwrap_or_default())
        };
        assert!(problem(&word, 0o640)?.contains("other users can access"));
        assert!(problem(&word, 0o604)?.contains("other users can access"));
        assert!(problem("short", 0o600)?.contains("32"));
        assert!(problem(&"two words ".repeat(9), 0o600)?.contains("one word"));
        assert!(problem("", 0o600)?.contains("one word"));
        assert!(Token::read(&directory).is_err_and(|error| matches!(error.problem, TokenProblem::NoFile)));
        assert!(Token::read(&directory.join("none")).is_err());
        fs::remove_dir_all(&directory)
    }
}
