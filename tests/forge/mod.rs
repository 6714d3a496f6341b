//! Tests the forge module with an imitation of GitHub's API on loopback and real repositories.

mod branch_protection;
mod pull_requests;
mod push;
mod remotes;
mod secrets;

use std::time::Duration;

use guard::work::forge::{Kind, Remote, Token};

use crate::support::http_server::Server;

/// The user's token. guard may send it only in one header of a request.
pub(crate) const SECRET: &str = "ghp_0123456789abcdefSECRETabcdef0123456789";

/// Returns a lookup function for these variables.
pub(crate) fn environment(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
    let pairs: Vec<(String, String)> =
        pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    move |name| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// Returns the remote `acme/widget` on a GitHub whose API has this address.
pub(crate) fn remote_at(api: &str) -> Remote {
    let url = "https://github.com/acme/widget.git";
    let variables = environment(&[("GITHUB_API_URL", api), ("GITHUB_SERVER_URL", "https://github.com")]);
    let mut remote = Remote::parse("origin", url, url, variables).unwrap();
    if let Kind::GitHub(github) = &mut remote.kind {
        github.timeout = Duration::from_secs(10);
    }
    remote
}

pub(crate) fn remote(server: &Server) -> Remote {
    remote_at(&server.url(""))
}

pub(crate) fn impatient(server: &Server) -> Remote {
    let mut remote = remote(server);
    if let Kind::GitHub(github) = &mut remote.kind {
        github.timeout = Duration::from_millis(300);
    }
    remote
}

pub(crate) fn token(remote: &Remote) -> Token {
    Token::with(remote, environment(&[("GH_TOKEN", SECRET)])).unwrap().unwrap()
}

/// Fails if the debug text of a value contains the token.
pub(crate) fn is_silent(told: &dyn std::fmt::Debug) {
    let text = format!("{told:?}");
    assert!(!text.contains(SECRET) && !text.contains("SECRET"), "the token is told: {text}");
}
