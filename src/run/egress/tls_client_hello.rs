//! Reads the server name from the first bytes of a TLS connection.
//!
//! A tunnel is opened for one host. The TLS client must name the same host, because a server with many names could
//! otherwise serve a different one of them. The parser is strict and reads only the ClientHello: everything that two
//! parsers could read differently is [`Hello::Malformed`]. Nothing is decrypted, and only the name is kept.

/// Size limit of a ClientHello without headers. Real ClientHellos have about 0.5 KiB, or 2 KiB with post-quantum keys.
const MAX_MESSAGE: usize = 16 * 1024;
/// Limit on the TLS records of a ClientHello. Real clients use one or two.
const MAX_RECORDS: usize = 64;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// Given this many bytes, [`read`] never returns [`Hello::Incomplete`].
pub const LIMIT: usize = MESSAGE_HEADER + MAX_MESSAGE + MAX_RECORDS * RECORD_HEADER;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
/// TLS extensions that contain an encrypted inner ClientHello: ECH and its draft version.
const ENCRYPTED: [usize; 2] = [0xfe0d, 0xffce];
const HOST_NAME: u8 = 0;

/// What the first bytes of a client contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// The start of a valid ClientHello; more bytes are needed.
    Incomplete,
    /// The bytes are not TLS.
    NotTls,
    /// A ClientHello that no honest client sends, or that servers could read in different ways.
    Malformed,
    /// The real server name is encrypted (ECH), so the readable one may be anything. A client that only pretends to use
    /// ECH (GREASE) looks the same.
    Hidden,
    /// A ClientHello without a server name: the client connects by address.
    Nameless,
    /// The server name, in lower case and without a trailing dot. The name may look like an IPv4 address, because
    /// some clients wrongly send addresses. The caller must compare the name with the allowed host, and must not
    /// resolve it.
    Named(String),
}

/// Reads the first bytes of a client. Every incomplete prefix of a valid ClientHello is [`Hello::Incomplete`]; bytes
/// after the ClientHello are ignored.
pub fn read(bytes: &[u8]) -> Hello {
    // Content type and major version identify TLS as soon as they have arrived.
    if bytes.first().is_some_and(|&kind| kind != HANDSHAKE) || bytes.get(1).is_some_and(|&major| major != 3) {
        return Hello::NotTls;
    }
    let length = match message(bytes) {
        Ok(Some(length)) => length,
        Ok(None) => return Hello::Incomplete,
        Err(MalformedHello) => return Hello::Malformed,
    };
    let mut body = Body { rest: bytes, record: 0, left: MESSAGE_HEADER + length };
    body.skip(MESSAGE_HEADER).and_then(|()| client_hello(&mut body)).unwrap_or(Hello::Malformed)
}

/// The ClientHello is malformed. The connection is refused, so no details are needed.
struct MalformedHello;

/// Walks the TLS records and returns the length of the ClientHello without its message header; `None` if the
/// ClientHello is not complete yet.
fn message(bytes: &[u8]) -> Result<Option<usize>, MalformedHello> {
    let mut header = [0; MESSAGE_HEADER];
    let mut total = 0;
    let mut rest = bytes;
    for _ in 0..MAX_RECORDS {
        let Some((&[kind, major, minor, high, low], after)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if kind != HANDSHAKE || major != 3 || minor > 4 || length == 0 || length > MAX_MESSAGE {
            return Err(MalformedHello);
        }
        let there = &after[..length.min(after.len())];
        for (place, &byte) in header.iter_mut().skip(total).zip(there) {
            *place = byte;
        }
        let seen = total + there.len();
        if seen > 0 && header[0] != CLIENT_HELLO {
            return Err(MalformedHello);
        }
        if seen >= MESSAGE_HEADER {
            let wanted = usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
            // A second message in the same record: servers disagree on whether they read it.
            if wanted > MAX_MESSAGE || total + length > MESSAGE_HEADER + wanted {
                return Err(MalformedHello);
            }
            if seen == MESSAGE_HEADER + wanted {
                return Ok(Some(wanted));
            }
        }
        if there.len() < length {
            return Ok(None);
        }
        total += length;
        rest = &after[length..];
    }
    Err(MalformedHello)
}

/// Reads the bytes of a ClientHello that is spread over several TLS records, which [`message`] has validated.
struct Body<'a> {
    rest: &'a [u8],
    /// Bytes left in the current TLS record.
    record: usize,
    /// Bytes left in the ClientHello.
    left: usize,
}

impl Body<'_> {
    fn skip(&mut self, mut count: usize) -> Result<(), MalformedHello> {
        self.left = self.left.checked_sub(count).ok_or(MalformedHello)?;
        while count > 0 {
            self.open()?;
            let now = count.min(self.record);
            self.rest = self.rest.get(now..).ok_or(MalformedHello)?;
            self.record -= now;
            count -= now;
        }
        Ok(())
    }

    /// Moves to the next TLS record if the current one is used up.
    fn open(&mut self) -> Result<(), MalformedHello> {
        if self.record == 0 {
            let (&[_, _, _, high, low], rest) = self.rest.split_first_chunk().ok_or(MalformedHello)?;
            (self.record, self.rest) = (usize::from(u16::from_be_bytes([high, low])), rest);
        }
        if self.record == 0 { Err(MalformedHello) } else { Ok(()) }
    }

    fn byte(&mut self) -> Result<u8, MalformedHello> {
        self.open()?;
        let byte = *self.rest.first().ok_or(MalformedHello)?;
        self.skip(1)?;
        Ok(byte)
    }

    fn read_u16(&mut self) -> Result<usize, MalformedHello> {
        Ok(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }
}

/// Parses a complete ClientHello. Returns its server name, or that it has none ([`Hello::Nameless`]) or encrypts it
/// ([`Hello::Hidden`]).
fn client_hello(body: &mut Body<'_>) -> Result<Hello, MalformedHello> {
    const RANDOM: usize = 32;
    if body.byte()? != 3 {
        return Err(MalformedHello);
    }
    body.skip(1 + RANDOM)?;
    let session = usize::from(body.byte()?);
    body.skip(session)?;
    let ciphers = body.read_u16()?;
    body.skip(ciphers)?;
    let compressions = usize::from(body.byte()?);
    body.skip(compressions)?;
    if session > 32 || ciphers == 0 || ciphers % 2 != 0 || compressions == 0 {
        return Err(MalformedHello);
    }
    if body.left == 0 {
        return Ok(Hello::Nameless);
    }
    if body.read_u16()? != body.left {
        return Err(MalformedHello);
    }
    let mut kinds = [0_u64; 1024];
    let (mut name, mut is_hidden) = (None, false);
    while body.left > 0 {
        let kind = body.read_u16()?;
        let (word, bit) = (&mut kinds[kind / 64 % 1024], 1 << (kind % 64));
        if *word & bit != 0 {
            return Err(MalformedHello);
        }
        *word |= bit;
        let length = body.read_u16()?;
        is_hidden |= ENCRYPTED.contains(&kind);
        if kind == SERVER_NAME {
            name = Some(server_name(body, length)?);
        } else {
            body.skip(length)?;
        }
    }
    Ok(if is_hidden { Hello::Hidden } else { name.map_or(Hello::Nameless, Hello::Named) })
}

/// Reads the `server_name` extension, which must be a list of exactly one host name. `extension` is the length of the
/// extension in bytes.
fn server_name(body: &mut Body<'_>, extension: usize) -> Result<String, MalformedHello> {
    let list = body.read_u16()?;
    let kind = body.byte()?;
    let length = body.read_u16()?;
    // With a trailing dot a name has at most 254 bytes.
    if extension != length + 5 || list != length + 3 || kind != HOST_NAME || length > 254 {
        return Err(MalformedHello);
    }
    let mut name = String::with_capacity(length);
    for _ in 0..length {
        match body.byte()? {
            byte @ (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.') => {
                name.push(char::from(byte.to_ascii_lowercase()));
            }
            _ => return Err(MalformedHello),
        }
    }
    if name.ends_with('.') {
        name.pop();
    }
    let is_label = |label: &str| (1..=63).contains(&label.len());
    if name.len() <= 253 && name.split('.').all(is_label) { Ok(name) } else { Err(MalformedHello) }
}
