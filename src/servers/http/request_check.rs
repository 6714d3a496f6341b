//! Checks the head of an HTTP request: the Host header must name this server, an Origin header, if there is one, must
//! also name this server, and the token must match.
//!
//! The checks run in this order, so that a web page that points its own host name at a loopback address (DNS
//! rebinding) learns nothing about the token.

use std::net::SocketAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{StatusCode, Uri};

use super::token::Token;

/// Checks whether the server may answer an HTTP request that arrives on loopback.
pub(crate) struct RequestCheck {
    token: Token,
    /// The accepted values of the Host header, such as `127.0.0.1:8731`.
    names: Vec<String>,
}

/// The HTTP status and the message with which the server refuses a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: &'static str,
}

impl Refusal {
    fn new(status: StatusCode, message: &'static str) -> Self {
        Self { status, message }
    }
}

impl RequestCheck {
    pub(crate) fn new(address: SocketAddr, token: Token) -> Self {
        let mut names = vec![address.to_string(), format!("localhost:{}", address.port())];
        if address.port() == 80 {
            names.extend([address.to_string().replace(":80", ""), "localhost".to_string()]);
        }
        Self { token, names }
    }

    /// Checks that a request is meant for this server and does not come from a web page.
    pub(crate) fn check_source(&self, request: &Parts) -> Result<(), Refusal> {
        self.check_host(&request.headers, &request.uri)?;
        self.check_origin(&request.headers)
    }

    /// Checks that a request carries the token in a header. A token in the URL's query is ignored, because URLs end
    /// up in logs and browser histories.
    pub(crate) fn check_token(&self, request: &Parts) -> Result<(), Refusal> {
        let header = only(&request.headers, &AUTHORIZATION).unwrap_or_default();
        let (scheme, token) = header.split_at_checked(7).unwrap_or_default();
        if scheme.eq_ignore_ascii_case(b"bearer ") && self.token.matches(token) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`",
        ))
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
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "the Host header does not name this server; send the address that the server listens on",
        ))
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
        Err(from_web_page())
    }
}

/// Returns the refusal for a request that a web page sent.
pub(super) fn from_web_page() -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "requests from web pages (with an Origin header) are not accepted")
}

/// Returns the value of a header; `None` if the header is missing or occurs more than once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    all.next().is_none().then(|| first.as_bytes())
}
