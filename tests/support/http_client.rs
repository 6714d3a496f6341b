//! A handwritten HTTP/1 client for loopback and Unix sockets. Tests use it to send wrong headers, disconnect early, or
//! read slowly, which ordinary client libraries prevent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// The time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(90);

/// The address of a server.
#[derive(Debug, Clone)]
pub(crate) enum HttpAddress {
    /// A loopback address, as `127.0.0.1:PORT`.
    Loopback(String),
    Socket(PathBuf),
}

pub(crate) trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

/// A client that sends the same headers with every request.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    pub(crate) address: HttpAddress,
    pub(crate) headers: Vec<(String, String)>,
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    /// The status code; 0 if there was no answer.
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
    /// True if the body is as long as its head or its last chunk says.
    pub(crate) is_whole: bool,
}

impl HttpClient {
    pub(crate) fn new(address: HttpAddress) -> Self {
        let host = match &address {
            HttpAddress::Loopback(address) => address.clone(),
            HttpAddress::Socket(_) => "localhost".to_string(),
        };
        Self { address, headers: vec![("Host".to_string(), host)] }
    }

    /// Returns the same client with this header, which replaces an earlier one of the same name.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.without(name);
        client.headers.push((name.to_string(), value.to_string()));
        client
    }

    pub(crate) fn without(&self, name: &str) -> Self {
        let mut client = self.clone();
        client.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        client
    }

    pub(crate) fn connect(&self) -> Box<dyn Connection> {
        match &self.address {
            HttpAddress::Loopback(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                Box::new(stream)
            }
            HttpAddress::Socket(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                Box::new(stream)
            }
        }
    }

    /// Sends a request and returns the connection.
    pub(crate) fn send(&self, method: &str, target: &str, body: &[u8]) -> Box<dyn Connection> {
        let mut stream = self.connect();
        let mut text = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
        if !body.is_empty() {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        // The server may refuse the request and close the connection before the client has sent the body.
        let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(body));
        stream
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn request(&self, method: &str, target: &str, body: &[u8]) -> HttpAnswer {
        HttpAnswer::read(self.send(method, target, body))
    }

    pub(crate) fn get(&self, target: &str) -> HttpAnswer {
        self.request("GET", target, b"")
    }

    pub(crate) fn post(&self, target: &str, body: &Value) -> HttpAnswer {
        self.with("Content-Type", "application/json").request("POST", target, body.to_string().as_bytes())
    }

    /// Sends a request, and returns a reader for the server-sent events.
    pub(crate) fn events(&self, target: &str) -> EventReader {
        let mut reader = BufReader::new(self.send("GET", target, b""));
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        EventReader { reader }
    }
}

impl HttpAnswer {
    pub(crate) fn read(mut stream: Box<dyn Connection>) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        let rest = bytes.get(end + 4..).unwrap_or_default();
        let mut answer = Self { status, head, body: rest.to_vec(), is_whole: true };
        if answer.header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            (answer.body, answer.is_whole) = unchunk(rest);
        } else if let Some(length) = answer.header("content-length") {
            answer.is_whole = length == rest.len().to_string();
        }
        answer
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut found = self.head.lines().filter_map(|line| line.split_once(": "));
        found.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_string())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body, which must be JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.head, self.text()))
    }

    /// Returns the lines of the body, each of which must be JSON.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        assert!(self.is_whole, "{}", self.head);
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Joins the chunks of a body. Returns the body, and whether its last chunk was there.
fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else { return (body, false) };
        let size = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { return (body, false) };
        if size == 0 {
            return (body, true);
        }
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else { return (body, false) };
        body.extend(chunk);
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    Message { id: String, event: String, data: Value },
    Comment(String),
}

/// Reads server-sent events as they come.
pub(crate) struct EventReader {
    reader: BufReader<Box<dyn Connection>>,
}

impl EventReader {
    /// Returns the next event, or `None` at the end of the stream. The server sends each event as one chunk, so the
    /// lines with the chunk sizes are between the events.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let (mut id, mut event) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_string();
            } else if let Some(value) = line.strip_prefix("event: ") {
                event = value.to_string();
            } else if let Some(value) = line.strip_prefix("data: ") {
                return Some(Event::Message { id, event, data: serde_json::from_str(value).unwrap() });
            } else if let Some(value) = line.strip_prefix(": ") {
                return Some(Event::Comment(value.to_string()));
            }
        }
    }

    /// Returns the next message, and skips comments before it.
    pub(crate) fn message(&mut self) -> Option<(String, String, Value)> {
        loop {
            match self.next()? {
                Event::Message { id, event, data } => return Some((id, event, data)),
                Event::Comment(_) => {}
            }
        }
    }
}
