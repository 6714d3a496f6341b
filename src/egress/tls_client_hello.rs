//! The first bytes of a connection → the name a TLS client asks for.
//!
//! A tunnel is opened for one host; what the client then asks for inside must be the same one, or a server that serves many
//! names would give another. Only the ClientHello is read, strictly: what two readers could understand differently is
//! [`Hello::Malformed`]. Nothing is decrypted, nothing is kept but the name.

/// The longest ClientHello that is read, without headers. Real ones have half a kilobyte, with post-quantum keys two.
const MESSAGE: usize = 16 * 1024;
/// In how many records it may come; more is not a client but an attempt to be read byte by byte.
const RECORDS: usize = 64;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// The most bytes that can be needed for an answer: with as many, [`read`] never says [`Hello::Incomplete`].
pub const LIMIT: usize = MESSAGE_HEADER + MESSAGE + RECORDS * RECORD_HEADER;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
/// Extensions with a second hello inside that only the server can read: ECH, and the draft before it.
const ENCRYPTED: [usize; 2] = [0xfe0d, 0xffce];
const HOST_NAME: u8 = 0;

/// What the first bytes of a connection say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// All well so far, but more bytes are needed.
    Incomplete,
    /// Something else than TLS: to be judged by other means, or refused.
    NotTls,
    /// TLS that no honest client sends, or that servers could read differently.
    Malformed,
    /// The name that counts is encrypted, and any other may stand where it can be read. A client that only pretends to
    /// have something to hide cannot be told from one that does.
    Hidden,
    /// A ClientHello without a name: the client goes by address.
    Nameless,
    /// The `server_name`, in lower case and without a trailing dot. It may look like an IPv4 address, because some clients
    /// wrongly send those; compare it with what was allowed, do not resolve it.
    Named(String),
}

/// Reads the beginning of what a client sent. Of a valid hello every prefix is [`Hello::Incomplete`]; what follows it is not
/// looked at.
pub fn read(bytes: &[u8]) -> Hello {
    // Content type and major version tell TLS from everything else, as soon as they are there.
    if bytes.first().is_some_and(|&kind| kind != HANDSHAKE) || bytes.get(1).is_some_and(|&major| major != 3) {
        return Hello::NotTls;
    }
    let length = match message(bytes) {
        Ok(Some(length)) => length,
        Ok(None) => return Hello::Incomplete,
        Err(Bad) => return Hello::Malformed,
    };
    let mut body = Body { rest: bytes, record: 0, left: MESSAGE_HEADER + length };
    body.skip(MESSAGE_HEADER).and_then(|()| client_hello(&mut body)).unwrap_or(Hello::Malformed)
}

/// Why a hello is not read. There is nothing more to say: it is refused.
struct Bad;

/// Walks over the records: the length of the ClientHello, once all of it is there.
fn message(bytes: &[u8]) -> Result<Option<usize>, Bad> {
    let mut header = [0; MESSAGE_HEADER];
    let mut total = 0;
    let mut rest = bytes;
    for _ in 0..RECORDS {
        let Some((&[kind, major, minor, high, low], after)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if kind != HANDSHAKE || major != 3 || minor > 4 || length == 0 || length > MESSAGE {
            return Err(Bad);
        }
        let there = &after[..length.min(after.len())];
        for (place, &byte) in header.iter_mut().skip(total).zip(there) {
            *place = byte;
        }
        let seen = total + there.len();
        if seen > 0 && header[0] != CLIENT_HELLO {
            return Err(Bad);
        }
        if seen >= MESSAGE_HEADER {
            let wanted = usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
            // A second message in the same record is one that a server may or may not see.
            if wanted > MESSAGE || total + length > MESSAGE_HEADER + wanted {
                return Err(Bad);
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
    Err(Bad)
}

/// The bytes of a message, across the records that [`message`] has found to be right.
struct Body<'a> {
    rest: &'a [u8],
    /// What is left of the record.
    record: usize,
    /// What is left of the message.
    left: usize,
}

impl Body<'_> {
    fn skip(&mut self, mut count: usize) -> Result<(), Bad> {
        self.left = self.left.checked_sub(count).ok_or(Bad)?;
        while count > 0 {
            self.open()?;
            let now = count.min(self.record);
            self.rest = self.rest.get(now..).ok_or(Bad)?;
            self.record -= now;
            count -= now;
        }
        Ok(())
    }

    /// Goes on to the next record when this one is read.
    fn open(&mut self) -> Result<(), Bad> {
        if self.record == 0 {
            let (&[_, _, _, high, low], rest) = self.rest.split_first_chunk().ok_or(Bad)?;
            (self.record, self.rest) = (usize::from(u16::from_be_bytes([high, low])), rest);
        }
        if self.record == 0 { Err(Bad) } else { Ok(()) }
    }

    fn byte(&mut self) -> Result<u8, Bad> {
        self.open()?;
        let byte = *self.rest.first().ok_or(Bad)?;
        self.skip(1)?;
        Ok(byte)
    }

    fn short(&mut self) -> Result<usize, Bad> {
        Ok(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }
}

/// Whom a ClientHello asks for.
fn client_hello(body: &mut Body<'_>) -> Result<Hello, Bad> {
    const RANDOM: usize = 32;
    if body.byte()? != 3 {
        return Err(Bad);
    }
    body.skip(1 + RANDOM)?;
    let session = usize::from(body.byte()?);
    body.skip(session)?;
    let ciphers = body.short()?;
    body.skip(ciphers)?;
    let compressions = usize::from(body.byte()?);
    body.skip(compressions)?;
    if session > 32 || ciphers == 0 || ciphers % 2 != 0 || compressions == 0 {
        return Err(Bad);
    }
    if body.left == 0 {
        return Ok(Hello::Nameless);
    }
    if body.short()? != body.left {
        return Err(Bad);
    }
    let mut kinds = [0_u64; 1024];
    let (mut name, mut is_hidden) = (None, false);
    while body.left > 0 {
        let kind = body.short()?;
        let (word, bit) = (&mut kinds[kind / 64 % 1024], 1 << (kind % 64));
        if *word & bit != 0 {
            return Err(Bad);
        }
        *word |= bit;
        let length = body.short()?;
        is_hidden |= ENCRYPTED.contains(&kind);
        if kind == SERVER_NAME {
            name = Some(server_name(body, length)?);
        } else {
            body.skip(length)?;
        }
    }
    Ok(if is_hidden { Hello::Hidden } else { name.map_or(Hello::Nameless, Hello::Named) })
}

/// A list of exactly one host name that fills the extension.
fn server_name(body: &mut Body<'_>, extension: usize) -> Result<String, Bad> {
    let list = body.short()?;
    let kind = body.byte()?;
    let length = body.short()?;
    // With a trailing dot a name has at most 254 bytes.
    if extension != length + 5 || list != length + 3 || kind != HOST_NAME || length > 254 {
        return Err(Bad);
    }
    let mut name = String::with_capacity(length);
    for _ in 0..length {
        match body.byte()? {
            byte @ (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.') => {
                name.push(char::from(byte.to_ascii_lowercase()));
            }
            _ => return Err(Bad),
        }
    }
    if name.ends_with('.') {
        name.pop();
    }
    let is_label = |label: &str| (1..=63).contains(&label.len());
    if name.len() <= 253 && name.split('.').all(is_label) { Ok(name) } else { Err(Bad) }
}
