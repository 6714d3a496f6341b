//! What the servers `guard serve` and `guard mcp` have in common: the directories that clients may name, the loopback
//! address, and the token that clients must send.

use std::path::{Path, PathBuf};

use crate::cli::Failure;
use crate::servers::http::{Listening, Token};
use crate::work::roots::Roots;

/// Returns the directories that clients may name: those of `--root`, or the current directory.
pub(in crate::cli) fn roots(given: &[PathBuf]) -> Result<Roots, Failure> {
    let roots = if given.is_empty() { vec![std::env::current_dir()?] } else { given.to_vec() };
    Roots::new(&roots)
        .map_err(|problem| Failure::usage(format!("--root: {problem}"), "name a directory that exists"))
}

/// A loopback address on which a server listens, and the token that its clients must send.
pub(in crate::cli) struct Loopback {
    pub(in crate::cli) listening: Listening,
    pub(in crate::cli) token: Token,
    pub(in crate::cli) token_file: PathBuf,
}

impl Loopback {
    /// Reads the token from the file that the user gave, or from `own_file`, which guard creates if it does not
    /// exist. Then listens on `address`. `option` is the name of the option with the address, for error messages.
    pub(in crate::cli) fn listen(
        option: &str,
        address: &str,
        given_file: Option<&Path>,
        own_file: PathBuf,
    ) -> Result<Self, Failure> {
        let (token, token_file) = match given_file {
            Some(path) => (Token::read(path), path.to_path_buf()),
            None => (Token::read_or_create(&own_file), own_file),
        };
        let token = token.map_err(|problem| {
            Failure::usage(
                problem.to_string(),
                "create a token with (umask 077; head -c 32 /dev/urandom | base64 > FILE), and give --token-file FILE",
            )
        })?;
        let listening = Listening::on(address).map_err(|problem| {
            Failure::usage(
                format!("{option}: {problem}"),
                "use 127.0.0.1:PORT or [::1]:PORT; connect from other machines through ssh -L",
            )
        })?;
        Ok(Self { listening, token, token_file })
    }
}
