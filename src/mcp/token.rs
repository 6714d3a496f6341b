//! The token that authenticates HTTP clients, stored in a file that only its owner can read.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Shorter tokens could be guessed.
const SHORTEST: usize = 32;
/// A larger file is not a token.
const LONGEST: u64 = 4096;

/// A token. Only its digest is stored, so that memory dumps do not contain it and comparison takes constant
/// time.
#[derive(Debug, Clone)]
pub struct Token([u8; 32]);

/// The error for an unusable token file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TokenError {
    /// The path of the file.
    pub path: PathBuf,
    /// What is wrong with the file.
    pub problem: TokenProblem,
}

/// What is wrong with a token file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenProblem {
    /// The file cannot be read.
    #[error("the token cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file cannot be written.
    #[error("the token cannot be made: {0}")]
    NotMade(io::Error),
    /// The path is a directory, a pipe or a device.
    #[error("a token is a file")]
    NoFile,
    /// Another user owns the file.
    #[error("the token belongs to somebody else")]
    ForeignOwner,
    /// The file's mode lets other users read or write it.
    #[error("others can read the token (mode {:03o}); make another, with mode 600", .0)]
    OpenMode(u32),
    /// The content could be guessed or is not a single word.
    #[error("a token is one word of {SHORTEST} or more plain characters")]
    Spelling,
}

impl Token {
    /// Reads a token from a file that only the current user can read.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let bad = |problem: TokenProblem| TokenError { path: path.to_path_buf(), problem };
        let cannot = |error: io::Error| bad(TokenProblem::Unreadable(error));
        // Do not block if the path is a pipe.
        let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = open.map_err(cannot)?;
        let found = file.metadata().map_err(cannot)?;
        if !found.is_file() {
            return Err(bad(TokenProblem::NoFile));
        }
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

    /// Reads the token from a file and creates the file if it is missing.
    pub fn read_or_make(path: &Path) -> Result<Self, TokenError> {
        if !path.exists() {
            let not_made =
                |error| TokenError { path: path.to_path_buf(), problem: TokenProblem::NotMade(error) };
            make(path).map_err(not_made)?;
        }
        Self::read(path)
    }

    /// Compares a token from a client in constant time.
    pub(super) fn is(&self, said: &[u8]) -> bool {
        let said: [u8; 32] = Sha256::digest(said).into();
        let differences = self.0.iter().zip(said).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(differences) == 0
    }
}

/// Writes a new token atomically. If several processes do so, the first one wins.
fn make(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let making = folder.join(format!("token-{}", uuid::Uuid::new_v4()));
    let word = format!("{}{}\n", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&making)?;
    let made = file.write_all(word.as_bytes()).and_then(|()| fs::hard_link(&making, path));
    fs::remove_file(&making)?;
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_its_owners() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("guard-token-{}", uuid::Uuid::now_v7()));
        let path = folder.join("state/token");
        let token = Token::read_or_make(&path).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(path.metadata()?.mode() & 0o777, 0o600);
        assert_eq!(folder.join("state").metadata()?.mode() & 0o777, 0o700);
        let word = fs::read_to_string(&path)?;
        assert!(word.trim().len() == 64 && token.is(word.trim().as_bytes()));
        assert!(!token.is(b"") && !token.is(word.as_bytes()) && !token.is(&word.as_bytes()[..63]));
        let again = Token::read_or_make(&path).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(again.is(word.trim().as_bytes()));
        let problem = |text: &str, mode: u32| {
            fs::write(&path, text)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))?;
            Ok::<_, io::Error>(Token::read(&path).err().map(|error| error.to_string()).unwrap_or_default())
        };
        assert!(problem(&word, 0o640)?.contains("others can read"));
        assert!(problem(&word, 0o604)?.contains("others can read"));
        assert!(problem("short", 0o600)?.contains("32"));
        assert!(problem(&"two words ".repeat(9), 0o600)?.contains("one word"));
        assert!(problem("", 0o600)?.contains("one word"));
        assert!(Token::read(&folder).is_err_and(|error| matches!(error.problem, TokenProblem::NoFile)));
        assert!(Token::read(&folder.join("none")).is_err());
        fs::remove_dir_all(&folder)
    }
}
