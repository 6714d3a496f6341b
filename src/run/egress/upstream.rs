//! The address of an API, `https://host[:port][/prefix]`, and connections to it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::dial::UpstreamProxy;
use crate::judge::policy::Host;

const TLS_TIMEOUT: Duration = Duration::from_secs(15);

/// The base URL of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Whether to use TLS (`https://`), which requires a valid certificate.
    pub is_tls: bool,
    pub host: Host,
    pub port: u16,
    /// Prefix of every request path: empty, or a path such as `/v1`.
    pub prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid API URL: {problem}")]
pub struct UpstreamError {
    text: String,
    problem: String,
}

impl Upstream {
    /// Parses a base URL. Fails for plain HTTP to another machine, because requests contain a key.
    pub fn parse(text: &str) -> Result<Self, UpstreamError> {
        let bad = |problem: &str| UpstreamError { text: text.to_string(), problem: problem.to_string() };
        let (is_tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(bad("it must begin with `https://`")),
        };
        let (place, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = Host::parse_with_port(place, Some(if is_tls { 443 } else { 80 }))
            .map_err(|error| bad(&error.to_string()))?;
        let prefix = prefix.trim_end_matches('/');
        let is_path = |byte: u8| byte.is_ascii_graphic() && !b"?#%\\\"<>".contains(&byte);
        if !prefix.bytes().all(is_path) || prefix.split('/').any(|part| part == "..") {
            return Err(bad(
                "its path must not contain `..`, spaces, quotes, escapes, a query or a fragment",
            ));
        }
        let is_local = match &host {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name == "localhost",
        };
        if !is_tls && !is_local {
            return Err(bad("without TLS, others on the network could read the key; use `https://`"));
        }
        Ok(Self { is_tls, host, port, prefix: prefix.to_string() })
    }

    /// Returns the value of the `Host` header: `host`, or `host:port` if the port is not the scheme's default.
    pub(super) fn authority(&self) -> String {
        let usual = if self.is_tls { 443 } else { 80 };
        if self.port == usual { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }

    fn server_name(&self) -> io::Result<ServerName<'static>> {
        match &self.host {
            Host::Address(address) => Ok(ServerName::IpAddress(IpAddr::into(*address))),
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(io::Error::other),
        }
    }

    /// Connects to the API, through the upstream proxy if one applies. The message of an error names the API.
    pub(super) async fn connect(
        &self,
        proxy: &UpstreamProxy,
        tls_config: Option<&Arc<ClientConfig>>,
    ) -> Result<Connection, String> {
        let failed = |problem: &dyn fmt::Display| format!("{self} cannot be reached: {problem}");
        let stream = proxy.connect_unjudged(&self.host, self.port).await.map_err(|error| failed(&error))?;
        match timeout(TLS_TIMEOUT, self.start_tls(stream, tls_config)).await {
            Ok(result) => result.map_err(|error| failed(&error)),
            Err(_) => Err(failed(&"the TLS handshake timed out")),
        }
    }

    /// Performs the TLS handshake if the API's URL requires TLS; fails in that case if `tls_config` is `None`.
    async fn start_tls(
        &self,
        stream: TcpStream,
        tls_config: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Connection> {
        let Some(tls_config) = tls_config.filter(|_| self.is_tls) else {
            return if self.is_tls {
                Err(io::Error::other(
                    "this machine has no trusted TLS certificates; install the package ca-certificates",
                ))
            } else {
                Ok(Connection::Plain(stream))
            };
        };
        let connector = TlsConnector::from(tls_config.clone());
        Ok(Connection::Tls(Box::new(connector.connect(self.server_name()?, stream).await?)))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority(), self.prefix)
    }
}

/// Returns a TLS configuration with the certificates that this machine trusts, or those in the file that the
/// environment variable `SSL_CERT_FILE` names. Fails if there is no usable certificate.
pub(super) fn load_tls_config() -> io::Result<Arc<ClientConfig>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(io::Error::other(format!(
            "this machine has no trusted TLS certificates{why}; install the package ca-certificates"
        )));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A connection to an API, with or without TLS.
#[derive(Debug)]
pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_apis() {
        let upstream =
            Upstream::parse("https://api.example.org/v1/").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((upstream.to_string().as_str(), upstream.port), ("https://api.example.org/v1", 443));
        assert!(Upstream::parse("http://127.0.0.1:8080").is_ok_and(|upstream| !upstream.is_tls));
        assert!(Upstream::parse("https://[2a00::1]:8443/x").is_ok());
        for bad in [
            "api.example.org",
            "http://api.example.org",
            "https://user:pass@api.example.org",
            "https://",
            "https://a/../b",
            "https://a/b?x=1",
            "ftp://a",
            "https://a/%2e%2e",
            "http://127.1:80",
        ] {
            assert!(Upstream::parse(bad).is_err(), "{bad}");
        }
    }
}
