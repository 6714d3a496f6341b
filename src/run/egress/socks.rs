//! SOCKS5 for tools that support no other proxy: CONNECT with a name or an address, without authentication.
//!
//! ```text
//!   → 05 n methods…          ← 05 00
//!   → 05 01 00 kind host port ← 05 code 00 01 0.0.0.0:0
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::judge::policy::{Host, HostError, unmap_ipv4};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// The destination that a client requested: the parsed host, the host as text, and the port.
pub(super) type Destination = (Result<Host, HostError>, String, u16);

/// SOCKS reply codes that guard sends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Code {
    Granted = 0,
    Failed = 1,
    NotAllowed = 2,
    Unreachable = 4,
    NoSuchCommand = 7,
}

/// Sends the reply to a SOCKS request: `code`, and 0.0.0.0:0 as the bound address.
pub(super) async fn send_reply(stream: &mut TcpStream, code: Code) -> std::io::Result<()> {
    stream.write_all(&[5, code as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

/// Performs the SOCKS handshake and reads the request. Returns `None` if the handshake fails or takes too long; if
/// SOCKS has an error code for the problem, the client has received it. If the host name is invalid, returns a
/// destination that contains the error, and the caller must send the reply.
pub(super) async fn handshake(stream: &mut TcpStream) -> Option<Destination> {
    timeout(HANDSHAKE_TIMEOUT, exchange(stream)).await.ok()?.ok().flatten()
}

async fn exchange(stream: &mut TcpStream) -> std::io::Result<Option<Destination>> {
    let [version, methods] = [stream.read_u8().await?, stream.read_u8().await?];
    let mut offered = vec![0; usize::from(methods)];
    stream.read_exact(&mut offered).await?;
    if version != 5 || !offered.contains(&0) {
        stream.write_all(&[5, 0xff]).await?;
        return Ok(None);
    }
    stream.write_all(&[5, 0]).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, command, _, kind] = head;
    let (host, text) = match kind {
        1 => {
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await?;
            let address = Ipv4Addr::from(bytes);
            (Ok(Host::Address(address.into())), address.to_string())
        }
        4 => {
            let mut bytes = [0; 16];
            stream.read_exact(&mut bytes).await?;
            let address = Ipv6Addr::from(bytes);
            (Ok(Host::Address(unmap_ipv4(address.into()))), address.to_string())
        }
        3 => {
            let length = stream.read_u8().await?;
            let mut bytes = vec![0; usize::from(length)];
            stream.read_exact(&mut bytes).await?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            (Host::parse(&text), text)
        }
        _ => {
            send_reply(stream, Code::Failed).await?;
            return Ok(None);
        }
    };
    let port = stream.read_u16().await?;
    if version != 5 || command != 1 {
        send_reply(stream, Code::NoSuchCommand).await?;
        return Ok(None);
    }
    Ok(Some((host, text, port)))
}
