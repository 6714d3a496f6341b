//! Parses host entries of policies and host names requested by programs.
//!
//! An entry is `[raw | METHODS ]host[:ports][/path]`: `example.org`, `*.example.org:443`, `10.0.0.0/8:8000-8100`,
//! `GET,HEAD mirror.example.org:80/debian/`, `raw git.example.org:22`. guard converts a requested host to a name or
//! an address in one canonical form. It rejects text that different programs could interpret differently.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ip_classes::{special_class, unmap_ipv4};

/// The maximum length of a DNS name, in bytes.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A host in its canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name in lower case without a trailing dot.
    Name(String),
    /// An address. An IPv4-mapped IPv6 address is converted to IPv4.
    Address(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    #[error("a host must have between 1 and {LONGEST_NAME} characters")]
    Length,
    #[error("a host must not have a user name (`user@`) before it")]
    UserInfo,
    /// The address has a zone: `fe80::1%eth0`.
    #[error("an address must not have a zone (`%`)")]
    Zone,
    #[error("write a name with non-ASCII characters in its `xn--…` form")]
    International,
    /// A numeric form such as `2130706433`, `0177.0.0.1` or `0x7f.1`, which programs interpret differently.
    #[error("write an IPv4 address as four decimal numbers without leading zeros")]
    Ambiguous,
    /// The port is not valid (`host:0`, `host:http`), or it is missing and there is no default.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// Any other invalid character or form.
    #[error("a host must be an address, or a name of letters, digits, `-`, `_` and dots")]
    Spelling,
}

/// The error for text that is not a valid entry of `allow` or `deny`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostEntryError {
    #[error("the entry is empty; name a host")]
    Empty,
    #[error(
        "unexpected `{0}` before the host; only `raw` or HTTP methods such as `GET,HEAD` may precede a host"
    )]
    Word(String),
    #[error(transparent)]
    Host(#[from] HostError),
    /// A network prefix length such as `/24` follows a name, or is too large for the address.
    #[error("a prefix length must follow an address and fit its size, as in `10.0.0.0/8`")]
    NetOfName,
    /// The network prefix length is larger than 255. `NetOfName` reports a smaller one that does not fit the address.
    #[error("the prefix length is larger than 255; write a network as `10.0.0.0/8`")]
    Net,
    #[error("a `raw` entry cannot have methods or a path, because guard does not inspect the connection")]
    RawWithRequestLimits,
    #[error("a `raw` entry must name a port, as in `raw host:22`")]
    RawWithoutPort,
    #[error("expected a host, not a URL; write `example.org:443`")]
    Url,
    #[error("the closing `]` of the IPv6 address is missing")]
    Bracket,
    /// The path is relative or ambiguous, so that a server could resolve it elsewhere.
    #[error(
        "the path must begin with `/`, and must not contain `//`, `\\`, a segment `.` or `..`, or the escapes `%2e`, `%2f`, `%5c` or `%25`"
    )]
    Path,
    #[error("invalid ports `{0}`; write `443`, `80,443`, `8000-8100` or `*`")]
    Ports(String),
}

impl Host {
    /// Parses a host and converts it to its canonical form.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() || text.len() > LONGEST_NAME + 1 {
            return Err(HostError::Length);
        }
        if text.contains('@') {
            return Err(HostError::UserInfo);
        }
        if text.contains('%') {
            return Err(HostError::Zone);
        }
        if !text.is_ascii() {
            return Err(HostError::International);
        }
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(text) = bracketed.or_else(|| text.contains(':').then_some(text)) {
            let address: Ipv6Addr = text.parse().map_err(|_| HostError::Spelling)?;
            return Ok(Self::Address(unmap_ipv4(IpAddr::V6(address))));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !label.is_empty() && label.len() <= LONGEST_LABEL && label.bytes().all(fits)
        };
        if !name.split('.').all(is_label) {
            return Err(HostError::Spelling);
        }
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        // Resolvers would interpret a name whose last label is a number as a numeric address.
        let last = name.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
            return Err(HostError::Ambiguous);
        }
        Ok(Self::Name(name))
    }

    /// Parses `host:port` or `[address]:port`. `port` is the default if the text has none. Fails if there is no default
    /// either.
    pub fn parse_with_port(text: &str, port: Option<u16>) -> Result<(Self, u16), HostError> {
        // Check for `@` first: the user part may look like a host with a port.
        if text.contains('@') {
            return Err(HostError::UserInfo);
        }
        let (host, after) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, rest)) => (address, rest.strip_prefix(':').or(rest.is_empty().then_some(""))),
            None => match text.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => (text, Some("")),
                Some((host, port)) => (host, Some(port)),
                None => (text, Some("")),
            },
        };
        let is_address = text.starts_with('[');
        let host = Self::parse(host)?;
        if is_address && !matches!(host, Self::Address(_)) {
            return Err(HostError::Spelling);
        }
        let port = match after.ok_or(HostError::Spelling)? {
            "" => port,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            _ => None,
        };
        Ok((host, port.filter(|port| *port > 0).ok_or(HostError::Port)?))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Which hosts an entry of `allow` or `deny` matches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Any,
    Name(String),
    /// Every subdomain of this name.
    Below(String),
    /// A network: an address and its prefix length.
    Net(IpAddr, u8),
}

impl Hosts {
    fn parse(text: &str) -> Result<Self, HostError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(suffix) = text.strip_prefix("*.") {
            return match Host::parse(suffix)? {
                Host::Name(name) => Ok(Self::Below(name)),
                Host::Address(_) => Err(HostError::Spelling),
            };
        }
        match Host::parse(text)? {
            Host::Name(name) => Ok(Self::Name(name)),
            Host::Address(address) => Ok(Self::Net(address, bits(address))),
        }
    }

    fn include(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(known), Host::Name(name)) => known == name,
            (Self::Below(suffix), Host::Name(name)) => {
                name.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (Self::Net(net, length), Host::Address(address)) => in_net(*address, *net, *length),
            _ => false,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Name(name)) => self.include(&Host::Name(name.clone())),
            (Self::Below(wide), Self::Below(narrow)) => {
                wide == narrow || self.include(&Host::Name(narrow.clone()))
            }
            (Self::Net(_, wide), Self::Net(net, narrow)) => {
                wide <= narrow && self.include(&Host::Address(*net))
            }
            _ => false,
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn in_net(address: IpAddr, net: IpAddr, length: u8) -> bool {
    let (address, net, width) = match (address, net) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let shift = width - u32::from(length.min(width as u8));
    shift >= 128 || address >> shift == net >> shift
}

/// Access to a host, classified by how much of the traffic guard can inspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAccess<'a> {
    /// A connection whose content guard cannot inspect, such as TLS.
    Tunnel,
    /// A plain-text HTTP request.
    Request {
        method: &'a str,
        /// The path with its leading slash and without the query.
        path: &'a str,
    },
}

/// One parsed entry of `allow` or `deny`: hosts, ports, and limits on HTTP requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    text: String,
    hosts: Hosts,
    /// The ranges of ports that the entry matches, including both ends.
    ports: Vec<(u16, u16)>,
    methods: Vec<String>,
    path: Option<String>,
    /// Whether a tunnel that this entry allows may carry a protocol other than TLS.
    raw: bool,
}

impl fmt::Display for HostEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl HostEntry {
    /// Parses an entry of `allow` or `deny`. An entry without ports is for ports 80 and 443, or only for port 80 if it
    /// has methods or a path.
    pub fn parse(text: &str) -> Result<Self, HostEntryError> {
        let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
        let place = words.pop().ok_or(HostEntryError::Empty)?;
        let (mut methods, mut raw) = (Vec::new(), false);
        for word in words {
            if word == "raw" {
                raw = true;
            } else if word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b',') {
                methods.extend(word.split(',').filter(|name| !name.is_empty()).map(str::to_string));
            } else {
                return Err(HostEntryError::Word(word.to_string()));
            }
        }
        let (host, ports, path) = split(place)?;
        let (hosts, length) = match host {
            Place::Host(text) => (Hosts::parse(text)?, None),
            Place::Net(text, length) => (Hosts::parse(text)?, Some(length)),
        };
        let hosts = match (hosts, length) {
            (Hosts::Net(address, widest), Some(length)) if length <= widest => Hosts::Net(address, length),
            (hosts, None) => hosts,
            _ => return Err(HostEntryError::NetOfName),
        };
        let limits_requests = !methods.is_empty() || path.is_some();
        if raw && limits_requests {
            return Err(HostEntryError::RawWithRequestLimits);
        }
        let ports = match ports {
            Some(ports) => ports,
            None if raw => return Err(HostEntryError::RawWithoutPort),
            None if limits_requests => vec![(80, 80)],
            None => vec![(80, 80), (443, 443)],
        };
        Ok(Self { text: text.to_string(), hosts, ports, methods, path, raw })
    }

    /// Returns true if the entry matches this host and port, for any kind of access.
    pub fn names(&self, host: &Host, port: u16) -> bool {
        self.ports.iter().any(|(from, to)| (*from..=*to).contains(&port)) && self.hosts.include(host)
    }

    /// Returns true if the entry matches this host on any port.
    pub fn names_host(&self, host: &Host) -> bool {
        self.hosts.include(host)
    }

    /// Returns true if the entry is for this special-purpose address or for a network of such addresses, and for this
    /// port. An entry for a wide, mostly public network that also contains the address does not count.
    pub fn names_special(&self, address: IpAddr, port: u16) -> bool {
        let Hosts::Net(net, length) = &self.hosts else { return false };
        *length >= 8 && special_class(*net).is_some() && self.names(&Host::Address(unmap_ipv4(address)), port)
    }

    pub fn matches(&self, host: &Host, port: u16, access: HostAccess<'_>) -> bool {
        self.names(host, port)
            && match access {
                // guard cannot enforce methods and paths on a connection whose content it cannot inspect.
                HostAccess::Tunnel => self.methods.is_empty() && self.path.is_none(),
                HostAccess::Request { method, path } => {
                    (self.methods.is_empty() || self.methods.iter().any(|known| known == method))
                        && self.path.as_deref().is_none_or(|prefix| is_below(path, prefix))
                }
            }
    }

    /// Returns true if the entry, in a list of denied hosts, denies this access: unlike for an allowed host, a path that
    /// servers could resolve to a denied one is denied too, and a tunnel could carry any request.
    pub fn denies(&self, host: &Host, port: u16, access: HostAccess<'_>) -> bool {
        self.names(host, port)
            && match access {
                HostAccess::Tunnel => true,
                HostAccess::Request { method, path } => {
                    (self.methods.is_empty()
                        || self.methods.iter().any(|known| known.eq_ignore_ascii_case(method)))
                        && self.path.as_deref().is_none_or(|prefix| {
                            let plain = without_parameters(&percent_decoded(path)).to_ascii_lowercase();
                            is_ambiguous(path)
                                || is_ambiguous(&plain)
                                || is_below(&plain, &prefix.to_ascii_lowercase())
                        })
                }
            }
    }

    pub fn limits_methods(&self) -> bool {
        !self.methods.is_empty()
    }

    /// Returns true if a tunnel that this entry allows may carry any protocol.
    pub fn is_raw(&self) -> bool {
        self.raw
    }

    /// Returns true if this entry allows everything that the entry `other` allows.
    pub fn covers(&self, other: &Self) -> bool {
        let in_one =
            |(from, to): &(u16, u16)| self.ports.iter().any(|(least, most)| least <= from && to <= most);
        let methods = self.methods.is_empty()
            || !other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method));
        let path = match (&self.path, &other.path) {
            (None, _) => true,
            (Some(wide), Some(narrow)) => is_below(narrow, wide),
            (Some(_), None) => false,
        };
        self.hosts.covers(&other.hosts)
            && other.ports.iter().all(in_one)
            && methods
            && path
            && (self.raw || !other.raw)
    }
}

/// Returns true if a path equals a prefix or is below it. Always false for a path with dot segments, `//`, backslashes
/// or ambiguous percent-escapes, because servers resolve them differently.
fn is_below(path: &str, prefix: &str) -> bool {
    !is_ambiguous(path)
        && path.starts_with(prefix)
        && (prefix.ends_with('/') || matches!(path.as_bytes().get(prefix.len()), None | Some(b'/')))
}

/// Returns true if servers resolve the path differently. Some servers ignore what follows a `;` in a segment.
fn is_ambiguous(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let is_dots = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
    path.split(['/', '\\']).any(is_dots)
        || ["%2e", "%2f", "%5c", "%25", "//", "\\"].iter().any(|part| lower.contains(part))
}

/// Removes from every segment of a path the parameters that follow a `;`, as some servers do.
fn without_parameters(path: &str) -> String {
    let segments: Vec<&str> =
        path.split('/').map(|part| part.split(';').next().unwrap_or_default()).collect();
    segments.join("/")
}

/// Decodes the percent-escapes in a path once. Replaces bytes that are not UTF-8.
fn percent_decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

enum Place<'t> {
    Host(&'t str),
    Net(&'t str, u8),
}

type Parts<'t> = (Place<'t>, Option<Vec<(u16, u16)>>, Option<String>);

/// Splits an entry of the form `host[/net][:ports][/path]` into its parts. The host may be an IPv6 address in brackets.
fn split(text: &str) -> Result<Parts<'_>, HostEntryError> {
    if text.contains("://") {
        return Err(HostEntryError::Url);
    }
    let (host, mut rest) = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or(HostEntryError::Bracket)?,
        None => text.split_at(text.find([':', '/']).unwrap_or(text.len())),
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut place = Place::Host(host);
    if let Some(after) = rest.strip_prefix('/')
        && Host::parse(host).is_ok_and(|host| matches!(host, Host::Address(_)))
    {
        let count = digits(after);
        let ends = matches!(after.as_bytes().get(count), None | Some(b':' | b'/'));
        if count > 0 && ends {
            let length = after[..count].parse().map_err(|_| HostEntryError::Net)?;
            place = Place::Net(host, length);
            rest = &after[count..];
        }
    }
    let mut ports = None;
    if let Some(after) = rest.strip_prefix(':') {
        let end = after.find('/').unwrap_or(after.len());
        ports = Some(port_ranges(&after[..end])?);
        rest = &after[end..];
    }
    let path = (!rest.is_empty()).then(|| rest.to_string());
    if path.as_deref().is_some_and(|path| !path.starts_with('/') || !is_below(path, "/")) {
        return Err(HostEntryError::Path);
    }
    Ok((place, ports, path))
}

fn port_ranges(text: &str) -> Result<Vec<(u16, u16)>, HostEntryError> {
    let bad = || HostEntryError::Ports(text.to_string());
    if text == "*" {
        return Ok(vec![(1, u16::MAX)]);
    }
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad);
    let range = |part: &str| -> Result<(u16, u16), HostEntryError> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let range = (port(from)?, port(to)?);
        if range.0 <= range.1 { Ok(range) } else { Err(bad()) }
    };
    text.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn entry(text: &str) -> HostEntry {
        HostEntry::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn one_spelling() {
        assert_eq!(host("Example.ORG."), Host::Name("example.org".into()));
        assert_eq!(host("[::ffff:127.0.0.1]"), Host::Address(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(host("::1"), host("[0:0:0:0:0:0:0:1]"));
        for (text, error) in [
            ("", HostError::Length),
            ("user@example.org", HostError::UserInfo),
            ("fe80::1%eth0", HostError::Zone),
            ("bücher.example", HostError::International),
            ("2130706433", HostError::Ambiguous),
            ("0177.0.0.1", HostError::Ambiguous),
            ("127.1", HostError::Ambiguous),
            ("0x7f.0.0.1", HostError::Ambiguous),
            ("0x7f000001", HostError::Ambiguous),
            ("127.0.0.1.", HostError::Spelling),
            ("a..b", HostError::Spelling),
            (".", HostError::Spelling),
            ("a b", HostError::Spelling),
            ("example.org\r\nx", HostError::Spelling),
            ("[example.org]", HostError::Spelling),
        ] {
            let got = Host::parse(text);
            let is_plain = text == "127.0.0.1." && got == Ok(Host::Address(IpAddr::from([127, 0, 0, 1])));
            assert!(got == Err(error.clone()) || is_plain, "{text}: {got:?}, not {error:?}");
        }
        assert_eq!(Host::parse(&"a".repeat(64)), Err(HostError::Spelling));
    }

    #[test]
    fn ports_of_targets() {
        assert_eq!(Host::parse_with_port("a.b:8", None), Ok((host("a.b"), 8)));
        assert_eq!(Host::parse_with_port("[::1]:8", None), Ok((host("::1"), 8)));
        assert_eq!(Host::parse_with_port("::1", Some(80)), Ok((host("::1"), 80)));
        assert_eq!(Host::parse_with_port("a.b", Some(80)), Ok((host("a.b"), 80)));
        for text in [
            "a.b",
            "a.b:0",
            "a.b:65536",
            "a.b:+80",
            "a.b: 80",
            "a.b:80x",
            "[::1]x",
            "[::1",
            "[a.b]:80",
            ":80",
            "u@a.b:80",
        ] {
            assert!(Host::parse_with_port(text, None).is_err(), "{text}");
        }
        for text in ["u@a.b:80", "u:word@a.b", "a.b:80@c.d:80"] {
            assert_eq!(Host::parse_with_port(text, Some(1)), Err(HostError::UserInfo), "{text}");
        }
    }

    #[test]
    fn entries() {
        let tunnel = |text: &str, to: &str, port| entry(text).matches(&host(to), port, HostAccess::Tunnel);
        assert!(tunnel("example.org", "EXAMPLE.org.", 443) && tunnel("example.org", "example.org", 80));
        assert!(
            !tunnel("example.org", "example.org", 8080) && !tunnel("example.org", "www.example.org", 443)
        );
        assert!(
            !tunnel("example.org", "notexample.org", 443)
                && !tunnel("example.org", "example.org.evil.net", 443)
        );
        assert!(
            tunnel("*.example.org:443", "a.b.example.org", 443)
                && !tunnel("*.example.org", "example.org", 443)
        );
        assert!(!tunnel("*.example.org", "evilexample.org", 443));
        assert!(tunnel("10.0.0.0/8:8000-8100", "10.200.3.4", 8050) && !tunnel("10.0.0.0/8", "11.0.0.1", 443));
        assert!(tunnel("[fd00::]/8:*", "fd12::1", 9) && !tunnel("10.0.0.0/8", "a.example", 443));
        assert!(tunnel("0.0.0.0/0", "8.8.8.8", 443) && !tunnel("0.0.0.0/0", "[2a00::1]", 443));
        assert!(!tunnel("GET example.org", "example.org", 80) && !tunnel("example.org/a", "example.org", 80));
        assert!(entry("raw git.example.org:22").is_raw());

        let get = |text: &str, path: &str| {
            entry(text).matches(&host("m.example"), 80, HostAccess::Request { method: "GET", path })
        };
        assert!(
            get("GET,HEAD m.example/debian/", "/debian/x") && !get("POST m.example/debian/", "/debian/x")
        );
        assert!(!get("m.example/debian", "/debianx") && get("m.example/debian", "/debian"));
        for path in [
            "/debian/../x",
            "/debian/%2e%2e/x",
            "/debian//x",
            "/debian/%252e",
            "/debian/..\\x",
            "/debian/%2Fx",
        ] {
            assert!(!get("m.example/debian/", path), "{path}");
        }
    }

    #[test]
    fn entries_that_mean_nothing() {
        for text in [
            "",
            " ",
            "https://example.org",
            "example.org:",
            "example.org:0",
            "example.org:80-",
            "example.org:90-80",
            "10.0.0.0/33",
            "example.org/../x",
            "get example.org",
            "raw example.org",
            "raw GET example.org:22",
            "*.10.0.0.1",
            "a*.example.org",
            "[::1",
            "2130706433",
            "exämple.org",
            "*.",
            "user@example.org",
        ] {
            assert!(HostEntry::parse(text).is_err(), "{text} -> {:?}", HostEntry::parse(text));
        }
    }

    #[test]
    fn covering() {
        let covers = |wide: &str, narrow: &str| entry(wide).covers(&entry(narrow));
        for (wide, narrow) in [
            ("*", "example.org"),
            ("*:*", "raw example.org:22"),
            ("*.org", "*.example.org:443"),
            ("10.0.0.0/8", "10.1.0.0/16:80"),
            ("example.org", "example.org:443"),
            ("example.org:80", "GET example.org/a"),
            ("GET,PUT e.org", "GET e.org/x"),
            ("e.org/a", "e.org/a/b"),
        ] {
            assert_eq!(covers(wide, narrow), wide != "*:*", "{wide} covers {narrow}");
            assert!(!covers(narrow, wide), "{narrow} covers {wide}");
        }
        assert!(!covers("e.org/a", "e.org/ab") && !covers("GET e.org", "e.org:80"));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,40}", other in "[a-zA-Z0-9.*:/,\\[\\]%@-]{0,30}") {
            for text in [&text, &other] {
                let _ = Host::parse_with_port(text, Some(1));
                let _ = HostEntry::parse(text);
                if let Ok(host) = Host::parse(text) {
                    // Parsing the canonical form must return the same host.
                    assert_eq!(Host::parse(&host.to_string()), Ok(host));
                }
            }
        }

        #[test]
        fn what_is_covered_is_allowed(wide in "(\\*|\\*\\.b|a\\.b|\\*\\.a\\.b)(:(80|443|80-443|\\*))?(/x/?|/x/y)?", narrow in "(\\*|\\*\\.b|a\\.b|c\\.a\\.b)(:(80|443|100-200))?(/x|/x/y)?") {
            let (wide, narrow) = (entry(&wide), entry(&narrow));
            if wide.covers(&narrow) {
                for name in ["a.b", "c.b", "c.a.b", "b", "z"] {
                    for port in [80, 150, 443, 8080] {
                        for access in [HostAccess::Tunnel, HostAccess::Request { method: "GET", path: "/x" }, HostAccess::Request { method: "PUT", path: "/x/y" }, HostAccess::Request { method: "PUT", path: "/z" }] {
                            assert!(!narrow.matches(&host(name), port, access) || wide.matches(&host(name), port, access), "{wide} {narrow} {name}:{port} {access:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_denied_path_is_denied_in_every_spelling() {
        let path = entry("intranet.example/admin");
        let denies = |entry: &HostEntry, method: &str, path: &str| {
            entry.denies(&host("intranet.example"), 80, HostAccess::Request { method, path })
        };
        for text in [
            "/admin",
            "/admin/x",
            "//admin/x",
            "/./admin/x",
            "/a/../admin/x",
            "/%61dmin/x",
            "/%2e/admin/x",
            "/a/..;/admin",
            "/admin;x=1",
            "/admin;/x",
            "/;/admin",
            "/admin%3bx",
            "/ADMIN/x",
        ] {
            assert!(denies(&path, "GET", text), "{text}");
        }
        for text in ["/", "/public", "/public;admin", "/administration"] {
            assert!(!denies(&path, "GET", text), "{text}");
        }
        let method = entry("DELETE intranet.example");
        assert!(denies(&method, "DELETE", "/x") && denies(&method, "delete", "/x"));
        assert!(!denies(&method, "GET", "/x"));
        let tunnel = |entry: &HostEntry| entry.denies(&host("intranet.example"), 80, HostAccess::Tunnel);
        assert!(tunnel(&path) && tunnel(&method));
    }
}
