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

/// The URL path of the MCP endpoint.
pub(super) const PATH: &str = "/mcp";

/// Checks whether HTTP requests may use this server.
pub(super) struct Authenticator {
    token: Token,
    /// The accepted values of the Host header, such as `127.0.0.1:8731`.
    names: Vec<String>,
}

/// The HTTP status and message with which a request is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: &'static str,
}

impl Refusal {
    fn new(status: StatusCode, message: &'static str) -> Self {
        Self { status, message }
    }
}

impl Authenticator {
    pub(super) fn new(address: SocketAddr, token: Token) -> Self {
        let mut names = vec![address.to_string(), format!("localhost:{}", address.port())];
        if address.port() == 80 {
            names.extend([address.to_string().replace(":80", ""), "localhost".to_string()]);
        }
        Self { token, names }
    }

    /// Checks a request before any byte of its body is read.
    pub(super) fn authenticate(&self, request: &Parts) -> Result<(), Refusal> {
        self.check_host(&request.headers, &request.uri)?;
        self.check_origin(&request.headers)?;
        self.check_token(&request.headers)?;
        // A token in a query would end up in logs and histories. It is not accepted, and nothing else belongs
        // in the query.
        if request.uri.path() != PATH || request.uri.query().is_some() {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "nothing is served at this path; the MCP endpoint is /mcp",
            ));
        }
        Ok(())
    }

    fn is_this_server(&self, name: &str) -> bool {
        self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
        let host = only(headers, &HOST).and_then(|host| std::str::from_utf8(host).ok());
        let is_meant = host.is_some_and(|host| self.is_this_server(host));
        let is_targeted = uri.authority().is_none_or(|authority| self.is_this_server(authority.as_str()));
        if is_meant && is_targeted {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::FORBIDDEN, "the Host header does not name this server"))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if !headers.contains_key(ORIGIN) {
            return Ok(());
        }
        let origin = only(headers, &ORIGIN).and_then(|origin| std::str::from_utf8(origin).ok());
        let name = origin.and_then(|origin| origin.strip_prefix("http://"));
        if name.is_some_and(|name| self.is_this_server(name)) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "requests from web pages (with an Origin header) are not accepted",
        ))
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let header = only(headers, &AUTHORIZATION).unwrap_or_default();
        let (scheme, token) = header.split_at_checked(7).unwrap_or_default();
        if scheme.eq_ignore_ascii_case(b"bearer ") && self.token.matches(token) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`",
        ))
    }
}

/// The value of a header; `None` if the header is missing or present more than once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    all.next().is_none().then(|| first.as_bytes())
}
