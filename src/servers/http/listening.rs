//! Opens TCP listeners on loopback addresses, and refuses every other address.

use std::io;
use std::net::SocketAddr;

/// A TCP listener on a loopback address, and the address that it is bound to.
#[derive(Debug)]
pub struct Listening {
    pub(crate) listener: std::net::TcpListener,
    pub(crate) address: SocketAddr,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The given text is not an address with a port.
    #[error("{0} is not an address with a port, such as 127.0.0.1:8731")]
    NoAddress(String),
    #[error("{0} is not a loopback address; guard listens only on loopback, out of reach of other machines")]
    NotLoopback(String),
    /// The operating system refused to bind the address or to listen on it.
    #[error("cannot listen on {address}: {source}")]
    Io { address: String, source: io::Error },
}

impl Listening {
    /// Listens on a loopback address such as `127.0.0.1:8731`, `[::1]:0` or `localhost:8731`. Fails for other
    /// addresses.
    pub fn on(address: &str) -> Result<Self, ListenError> {
        let numbers = address.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let wanted: SocketAddr = numbers
            .as_deref()
            .unwrap_or(address)
            .parse()
            .map_err(|_| ListenError::NoAddress(address.to_string()))?;
        if !wanted.ip().is_loopback() {
            return Err(ListenError::NotLoopback(address.to_string()));
        }
        let cannot = |source: io::Error| ListenError::Io { address: address.to_string(), source };
        let listener = std::net::TcpListener::bind(wanted).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
