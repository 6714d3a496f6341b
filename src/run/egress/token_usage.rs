//! Reads token usage from an API's response while guard forwards the response to the run.
//!
//! A [`Scanner`] only observes a response: it never changes, delays or refuses anything. Responses are event streams
//! (`data:` lines with JSON) or JSON. Documents without usage keys are not parsed; in the others only the configured
//! paths are read. Memory is bounded: data that exceeds the limit is not counted, and [`Scanner::finish`] says so.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Maximum number of sources (addresses of pages that the API searched) that a scanner stores. `LONGEST_SOURCE` limits
/// the bytes of each.
const MOST_SOURCES: usize = 100;
const LONGEST_SOURCE: usize = 2048;

/// Size limit of one event, or of a whole body that is not an event stream.
const LIMIT: usize = 16 * 1024 * 1024;

pub use crate::judge::policy::UsagePlaces as Places;

/// The token usage that an API reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens, including those read from the cache.
    pub input: u64,
    pub output: u64,
    /// Input tokens read from the cache, which cost less.
    pub cached: u64,
}

/// Scans one response for token usage, and for the addresses of the pages that the API searched.
#[derive(Debug)]
pub struct Scanner {
    counts: Counts,
    is_event_stream: bool,
    /// In an event stream, the incomplete last line; otherwise the whole body so far.
    line: Vec<u8>,
    /// The data of the last event, which is not complete yet.
    event: Vec<u8>,
    /// Whether the current line or body exceeded the size limit. The scanner skips the rest of it.
    is_line_lost: bool,
    is_event_lost: bool,
    /// Whether the last byte was a carriage return. A line feed after it then belongs to the same line end.
    after_return: bool,
    is_first_line: bool,
}

impl Scanner {
    /// Creates a scanner for one response. The response's `content-type` decides `is_event_stream`.
    pub fn new(places: &Places, is_event_stream: bool) -> Self {
        Self {
            counts: Counts::new(places),
            is_event_stream,
            line: Vec::new(),
            event: Vec::new(),
            is_line_lost: false,
            is_event_lost: false,
            after_return: false,
            is_first_line: true,
        }
    }

    /// Scans the next bytes of the body, which may be split anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        if !self.is_event_stream {
            self.append(bytes);
            return;
        }
        let mut rest = bytes;
        if self.after_return && !rest.is_empty() {
            self.after_return = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n' || byte == b'\r') {
            // Read a line in place if it is complete in this chunk.
            if self.line.is_empty() && !self.is_line_lost && end <= LIMIT {
                self.line(&rest[..end]);
            } else {
                self.append(&rest[..end]);
                self.end_line();
            }
            let is_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.after_return = is_return && rest.is_empty();
            if is_return {
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
        }
        self.append(rest);
    }

    pub fn held(&self) -> usize {
        self.line.len() + self.event.len()
    }

    /// Frees the scanner's memory and skips the current event, or the whole body if it is not an event stream.
    /// [`Scanner::finish`] will then report an incomplete result.
    pub fn give_up(&mut self) {
        self.line = Vec::new();
        self.event = Vec::new();
        (self.is_line_lost, self.is_event_lost) = (true, true);
        self.counts.is_complete = false;
    }

    /// Returns the usage found so far. Zero for a body that is not an event stream, because such a body is parsed only
    /// at its end.
    pub fn tokens(&self) -> Tokens {
        self.counts.tokens()
    }

    /// Returns the usage found, and whether the whole response could be read. If not, the numbers are too low
    /// or missing.
    pub fn finish(self) -> (Tokens, bool) {
        let (tokens, is_complete, _) = self.finish_with_sources();
        (tokens, is_complete)
    }

    /// Ends the scan. Returns the usage found, whether the whole response could be read, and the addresses of the first
    /// `MOST_SOURCES` pages that the API searched.
    pub fn finish_with_sources(mut self) -> (Tokens, bool, Vec<String>) {
        if self.is_event_stream {
            // Some servers close the connection without ending the last event.
            self.end_line();
            self.end_event();
        } else {
            self.counts.read(&self.line);
        }
        (self.counts.tokens(), self.counts.is_complete, self.counts.found.sources)
    }

    /// Appends bytes to `self.line`. If the line would exceed the size limit, discards it, and ignores its other bytes.
    fn append(&mut self, bytes: &[u8]) {
        if self.is_line_lost {
            return;
        }
        if bytes.len() > LIMIT - self.line.len() {
            self.is_line_lost = true;
            self.counts.is_complete = false;
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_line_lost) {
            // A line was too long and was skipped, so the event is not what the server sent.
            self.is_event_lost = true;
            self.is_first_line = false;
        } else {
            self.line(&line);
            line.clear();
            self.line = line;
        }
    }

    /// Handles one line of an event stream, without its line end.
    fn line(&mut self, line: &[u8]) {
        let is_first = std::mem::take(&mut self.is_first_line);
        let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| is_first).unwrap_or(line);
        if line.is_empty() {
            self.end_event();
            return;
        }
        let Some(data) = line.strip_prefix(b"data") else {
            // Other fields are ignored. Bytes that are not UTF-8 mean that this is no event stream; it may be
            // compressed.
            self.counts.is_complete &= std::str::from_utf8(line).is_ok();
            return;
        };
        let Some(data) = data.strip_prefix(b":") else { return };
        let data = data.strip_prefix(b" ").unwrap_or(data);
        if self.is_event_lost || data.len() >= LIMIT - self.event.len() {
            self.is_event_lost = true;
            self.counts.is_complete = false;
            self.event = Vec::new();
        } else {
            self.event.extend_from_slice(data);
            self.event.push(b'\n');
        }
    }

    fn end_event(&mut self) {
        if !std::mem::take(&mut self.is_event_lost) {
            self.counts.read(&self.event);
        }
        self.event.clear();
    }
}

/// The largest value seen for every configured usage entry. APIs report the same count repeatedly while it grows.
#[derive(Debug)]
struct Counts {
    paths: Node,
    /// The last key of every configured path, in quotes. A document without any of these keys contains nothing to read.
    keys: Vec<String>,
    found: Found,
    /// The index in `largest` at which the entries for output tokens begin; `cached` is the index for cached
    /// input tokens.
    output: usize,
    cached: usize,
    is_complete: bool,
}

/// What a scanner has found: the largest count of every usage entry, and the addresses of pages that the API searched.
#[derive(Debug)]
struct Found {
    largest: Vec<u64>,
    sources: Vec<String>,
}

impl Found {
    fn add_source(&mut self, source: &str) {
        let is_room = self.sources.len() < MOST_SOURCES && source.len() <= LONGEST_SOURCE;
        if is_room && !self.sources.iter().any(|known| known == source) {
            self.sources.push(source.to_string());
        }
    }
}

impl Counts {
    fn new(places: &Places) -> Self {
        let (mut paths, mut keys) = (Node::default(), Vec::new());
        let entries = places.input.iter().chain(&places.output).chain(&places.cached);
        for (entry, alternatives) in entries.enumerate() {
            for path in alternatives.split('|').map(str::trim) {
                let node = path.split('.').fold(&mut paths, |node, key| node.child(key));
                node.entries.push(entry);
                let key = format!("\"{}\"", path.rsplit('.').next().unwrap_or(path));
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        for path in &places.sources {
            let mut node = &mut paths;
            for key in path.split('.') {
                node = node.child(key);
                node.has_lists = true;
            }
            node.is_source = true;
            keys.push(format!("\"{}\"", path.rsplit('.').next().unwrap_or(path)));
        }
        let output = places.input.len();
        let cached = output + places.output.len();
        let largest = vec![0; cached + places.cached.len()];
        let found = Found { largest, sources: Vec::new() };
        Self { paths, keys, found, output, cached, is_complete: true }
    }

    fn tokens(&self) -> Tokens {
        let sum = |entries: &[u64]| entries.iter().fold(0, |sum: u64, &count| sum.saturating_add(count));
        Tokens {
            input: sum(&self.found.largest[..self.output]),
            output: sum(&self.found.largest[self.output..self.cached]),
            cached: sum(&self.found.largest[self.cached..]),
        }
    }

    /// Parses consecutive JSON documents, up to the first that is not valid. Skips all of them if none of the
    /// configured keys occurs in the bytes.
    fn read(&mut self, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            self.is_complete = false;
            return;
        };
        if !self.keys.iter().any(|key| text.contains(key.as_str())) {
            return;
        }
        let mut documents = serde_json::Deserializer::from_str(text);
        // If a document is invalid, keep the values that were read before the error.
        while documents.end().is_err() {
            let walk = Walk { node: &self.paths, reads_lists: true, found: &mut self.found };
            if walk.deserialize(&mut documents).is_err() {
                self.is_complete = false;
                return;
            }
        }
    }
}

/// The configured paths to token counts and sources, as a tree of JSON keys.
#[derive(Debug, Default)]
struct Node {
    children: Vec<(String, Node)>,
    /// Indices of the usage entries whose path ends at this node.
    entries: Vec<usize>,
    /// Whether the path to a source (the address of a page that the API searched) leads through this node. Lists at
    /// this node are then searched item by item.
    has_lists: bool,
    /// Whether a text at this node is a source: the address of a page that the API searched.
    is_source: bool,
}

impl Node {
    fn child(&mut self, key: &str) -> &mut Self {
        let at = self.children.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
            self.children.push((key.to_string(), Self::default()));
            self.children.len() - 1
        });
        &mut self.children[at].1
    }
}

/// Walks a JSON document along the paths of a [`Node`] and skips everything else. Recurses no deeper than twice the
/// length of the longest path.
struct Walk<'a> {
    node: &'a Node,
    /// Whether a list is read item by item. A list inside another list never is.
    reads_lists: bool,
    found: &'a mut Found,
}

impl Walk<'_> {
    fn count(self, count: u64) {
        for &entry in &self.node.entries {
            let largest = &mut self.found.largest[entry];
            *largest = count.max(*largest);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(child) = map.next_key_seed(Key(self.node))? {
            match child {
                Some(node) => {
                    map.next_value_seed(Walk { node, reads_lists: node.has_lists, found: &mut *self.found })?;
                }
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }

    /// Reads a list item by item if `reads_lists` is set: a response may be a list of documents, and lists at deeper
    /// levels may contain sources. Skips all other lists.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.reads_lists {
            let node = self.node;
            let mut walk =
                || list.next_element_seed(Walk { node, reads_lists: false, found: &mut *self.found });
            while walk()?.is_some() {}
        } else {
            while list.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(())
    }

    fn visit_u64<E>(self, count: u64) -> Result<(), E> {
        self.count(count);
        Ok(())
    }

    /// Reads a source, or a count in quotes: the JSON form of protocol buffers encodes large integers as strings.
    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if self.node.is_source {
            self.found.add_source(text);
        }
        if let Ok(count) = text.parse() {
            self.count(count);
        }
        Ok(())
    }

    // Negative and fractional numbers are not token counts.
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Reads a key of a JSON object and returns the child node of that name, if there is one.
struct Key<'a>(&'a Node);

impl<'de, 'a> DeserializeSeed<'de> for Key<'a> {
    type Value = Option<&'a Node>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Key<'a> {
    type Value = Option<&'a Node>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.children.iter().find(|(name, _)| name == key).map(|(_, node)| node))
    }
}
