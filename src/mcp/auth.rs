//! Authenticates HTTP requests: the Host header must name this server, there must be no web Origin, and the
//! token must match.
//!
//! The checks run in this order, so that a web page that rebinds its own name to loopback learns nothing
//! about tokens.

use std::net::SocketAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{StatusCode, Uri};

use super::token::Token;

/// The path of the MCP endpoint.
pub(super) const PATH: &str = "/mcp";

/// The authentication checks of this server.
pub(super) struct Door {
    token: Token,
    /// The accepted Host values, such as `127.0.0.1:8731`.
    names: Vec<String>,
}

/// The response to a rejected request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) words: &'static str,
}

impl Refusal {
    fn new(status: StatusCode, words: &'static str) -> Self {
        Self { status, words }
    }
}

impl Door {
    pub(super) fn new(address: SocketAddr, token: Token) -> Self {
        let mut names = vec![address.to_string(), format!("localhost:{}", address.port())];
        if address.port() == 80 {
            names.extend([address.to_string().replace(":80", ""), "localhost".to_string()]);
        }
        Self { token, names }
    }

    /// Checks a request before any byte of its body is read.
    pub(super) fn judge(&self, request: &Parts) -> Result<(), Refusal> {
        self.check_host(&request.headers, &request.uri)?;
        self.check_origin(&request.headers)?;
        self.check_token(&request.headers)?;
        // A token in a query would end up in logs and histories. It is not accepted, and nothing else belongs
        // in the query.
        if request.uri.path() != PATH || request.uri.query().is_some() {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "there is nothing here; the protocol is spoken at /mcp",
            ));
        }
        Ok(())
    }

    fn is_own(&self, name: &str) -> bool {
        self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
        let host = only(headers, &HOST).and_then(|host| std::str::from_utf8(host).ok());
        let is_meant = host.is_some_and(|host| self.is_own(host));
        let is_targeted = uri.authority().is_none_or(|authority| self.is_own(authority.as_str()));
        if is_meant && is_targeted {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::FORBIDDEN, "the Host of the request is not this server"))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if !headers.contains_key(ORIGIN) {
            return Ok(());
        }
        let origin = only(headers, &ORIGIN).and_then(|origin| std::str::from_utf8(origin).ok());
        if origin.and_then(|origin| origin.strip_prefix("http://")).is_some_and(|name| self.is_own(name)) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "the request comes from a web page (Origin), and none is let in",
        ))
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let said = only(headers, &AUTHORIZATION).unwrap_or_default();
        let (scheme, word) = said.split_at_checked(7).unwrap_or_default();
        if scheme.eq_ignore_ascii_case(b"bearer ") && self.token.is(word) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong: `Authorization: Bearer TOKEN`",
        ))
    }
}

/// The value of a header that must be present exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    all.next().is_none().then(|| first.as_bytes())
}
