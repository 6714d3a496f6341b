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

use crate::policy::{Host, HostError, plain};

/// Time limit of the handshake.
const GREETING: Duration = Duration::from_secs(30);

/// The requested destination: the parsed host, its text and the port.
pub(super) type Asked = (Result<Host, HostError>, String, u16);

/// SOCKS reply codes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Code {
    Granted = 0,
    Failed = 1,
    NotAllowed = 2,
    Unreachable = 4,
    NoSuchCommand = 7,
}

/// Sends a reply.
pub(super) async fn answer(stream: &mut TcpStream, code: Code) -> std::io::Result<()> {
    stream.write_all(&[5, code as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

/// Performs the handshake and reads the request. `None` if it is not valid; an error reply was sent where possible.
pub(super) async fn greet(stream: &mut TcpStream) -> Option<Asked> {
    timeout(GREETING, talk(stream)).await.ok()?.ok().flatten()
}

async fn talk(stream: &mut TcpStream) -> std::io::Result<Option<Asked>> {
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
            (Ok(Host::Address(plain(address.into()))), address.to_string())
        }
        3 => {
            let length = stream.read_u8().await?;
            let mut bytes = vec![0; usize::from(length)];
            stream.read_exact(&mut bytes).await?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            (Host::parse(&text), text)
        }
        _ => {
            answer(stream, Code::Failed).await?;
            return Ok(None);
        }
    };
    let port = stream.read_u16().await?;
    if version != 5 || command != 1 {
        answer(stream, Code::NoSuchCommand).await?;
        return Ok(None);
    }
    Ok(Some((host, text, port)))
}
