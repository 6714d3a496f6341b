//! The protocol between a shim and the supervisor, over a unix stream socket:
//!
//! ```text
//!   shim (inside, under the name git, sh, bash …)                 supervisor (outside)
//!     │  exec of the real program was denied: connect to the socket    │
//!     ├── frame: Question { argv, directory, environment } ──────────────►│ judge
//!     │◄── frame: Answer::Deny(message)  or  Answer::Allow ───────────────┤
//!     │  print the message, or the error of the exec; exit 126         │
//! ```
//!
//! A frame is `"GRD" version(1) length(4, little endian) body`. In a body, numbers are 4 bytes little endian and
//! strings are a length followed by their bytes, so arguments that are not UTF-8 survive. Both sides reject unknown
//! values; a malformed frame closes its connection and has no other effect. This file must use only `std`, because
//! `build.rs` also compiles it into the shim.

use std::io::{self, Read, Write};

/// The version of the protocol, incremented whenever the meaning of a frame changes.
pub const VERSION: u8 = 1;
/// The maximum size of a frame's body. The kernel limits argv and environment to about this size.
pub const LARGEST_BODY: usize = 8 << 20;
/// The environment variable that contains the name of the control socket.
pub const SOCKET_VARIABLE: &str = "GUARD_CONTROL";

/// The value of [`SOCKET_VARIABLE`]. No file has this path. The supervisor recognises the name in a connect call and
/// connects the shim to the real socket, whose path may be longer than a socket address allows.
pub const CONTROL_NAME: &str = "/run/guard/control";

/// The maximum number of items of a list in a frame. If the stack limit is unusually large, the kernel can pass more
/// arguments or variables to a program; the supervisor then refuses the frame.
const MOST_ITEMS: usize = 1 << 18;

const MAGIC: &[u8; 3] = b"GRD";

/// A shim's question: why was this command denied?
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// The argv of the shim: the command that was denied.
    pub argv: Vec<Vec<u8>>,
    /// The shim's current directory, absolute.
    pub directory: Vec<u8>,
    /// The environment variables that affect the verdict ([`is_relevant`]).
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Allow,
    /// The command is denied; the message says why and what to do instead.
    Deny(String),
}

/// Returns true if an environment variable can affect a verdict, because it changes what programs do.
pub fn is_relevant(name: &[u8]) -> bool {
    name.starts_with(b"GIT_")
        || name.starts_with(b"LD_")
        || matches!(name, b"EDITOR" | b"VISUAL" | b"PAGER" | b"SSH_ASKPASS" | b"BASH_ENV" | b"ENV" | b"SHELL")
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed frame: {what}"))
}

impl Question {
    /// Writes the question as one frame.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        put_list(&mut body, self.argv.iter().map(Vec::as_slice));
        put(&mut body, &self.directory);
        put_list(
            &mut body,
            self.environment.iter().flat_map(|(name, value)| [name.as_slice(), value.as_slice()]),
        );
        write_frame(out, &body)
    }

    /// Reads the question from one frame. Fails if the frame is malformed.
    pub fn read(input: &mut impl Read) -> io::Result<Self> {
        let length = read_head(input)?;
        Self::read_body(input, length)
    }

    /// Reads the body of a question's frame, which has `length` bytes, after [`read_head`] has read the header.
    pub fn read_body(input: &mut impl Read, length: usize) -> io::Result<Self> {
        let body = read_rest(input, length)?;
        let mut body = body.as_slice();
        let argv = take_list(&mut body)?;
        let directory = take(&mut body)?.to_vec();
        let flat = take_list(&mut body)?;
        if !body.is_empty() || flat.len() % 2 != 0 {
            return Err(malformed("trailing bytes, or a variable without a value"));
        }
        let environment = flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Ok(Self { argv, directory, environment })
    }
}

impl Answer {
    /// Writes the answer as one frame.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Allow => write_frame(out, b"\x00"),
            Self::Deny(message) => write_frame(out, &[b"\x01".as_slice(), message.as_bytes()].concat()),
        }
    }

    /// Reads the answer from one frame. Fails if the frame is malformed.
    pub fn read(input: &mut impl Read) -> io::Result<Self> {
        let body = read_frame(input)?;
        match body.split_first() {
            Some((0, [])) => Ok(Self::Allow),
            Some((1, message)) => Ok(Self::Deny(String::from_utf8_lossy(message).into_owned())),
            _ => Err(malformed("unknown kind of answer")),
        }
    }
}

fn write_frame(out: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).ok().filter(|&length| length as usize <= LARGEST_BODY);
    let length = length.ok_or_else(|| malformed("the body is too large"))?;
    let mut frame = Vec::with_capacity(body.len() + 8);
    frame.extend_from_slice(MAGIC);
    frame.push(VERSION);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(body);
    out.write_all(&frame)?;
    out.flush()
}

fn read_frame(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = read_head(input)?;
    read_rest(input, length)
}

/// Reads the header of a frame and returns the length of its body. Fails if the header is malformed, has another
/// protocol version or announces a body that is too large.
pub fn read_head(input: &mut impl Read) -> io::Result<usize> {
    let mut head = [0u8; 8];
    input.read_exact(&mut head)?;
    if head[..3] != *MAGIC {
        return Err(malformed("wrong magic bytes"));
    }
    if head[3] != VERSION {
        return Err(malformed("unsupported protocol version"));
    }
    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if length > LARGEST_BODY {
        return Err(malformed("the body is too large"));
    }
    Ok(length)
}

fn read_rest(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    // Allocate for the bytes that arrive, not for the length the header claims.
    let mut body = Vec::new();
    input.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

fn put(body: &mut Vec<u8>, bytes: &[u8]) {
    // `write_frame` rejects a string that is longer than a frame.
    body.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    body.extend_from_slice(bytes);
}

fn put_list<'a>(body: &mut Vec<u8>, items: impl Iterator<Item = &'a [u8]> + Clone) {
    body.extend_from_slice(&u32::try_from(items.clone().count()).unwrap_or(u32::MAX).to_le_bytes());
    items.for_each(|item| put(body, item));
}

fn take_number(body: &mut &[u8]) -> io::Result<usize> {
    let (number, rest) = body.split_first_chunk::<4>().ok_or_else(|| malformed("the body is too short"))?;
    *body = rest;
    Ok(u32::from_le_bytes(*number) as usize)
}

fn take<'b>(body: &mut &'b [u8]) -> io::Result<&'b [u8]> {
    let length = take_number(body)?;
    if length > body.len() {
        return Err(malformed("a string is longer than the body"));
    }
    let (bytes, rest) = body.split_at(length);
    *body = rest;
    Ok(bytes)
}

fn take_list(body: &mut &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let count = take_number(body)?;
    // Every item has at least a length field, so the body bounds the count. `MOST_ITEMS` bounds it too, because an
    // item needs more memory here than on the wire.
    if count > body.len() / 4 || count > MOST_ITEMS {
        return Err(malformed("a list has too many items"));
    }
    (0..count).map(|_| take(body).map(<[u8]>::to_vec)).collect()
}
