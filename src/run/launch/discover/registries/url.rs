//! Parses the host and port of a URL in a settings file. This module must never return a name that a policy would
//! interpret as a pattern.

/// What a URL in a settings file refers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Host(Host),
    /// A file or directory on this machine.
    Local,
    /// The text is not a URL, or is one that guard does not understand.
    Invalid,
}

/// A host from which a tool fetches packages, with its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// The host's name in lower case, or its IP address. An IPv6 address is in brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Host {
    /// Returns the host as an entry of `[network] allow`.
    pub(crate) fn entry(&self) -> String {
        format!("{}:{}", self.name, self.port)
    }

    /// Parses a host name with an optional port. The default port is 443. `None` if the text is not a valid host.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match parse(&format!("https://{name}")) {
            Target::Host(host) => Some(host),
            Target::Local | Target::Invalid => None,
        }
    }
}

/// Parses a URL such as `sparse+https://user:password@host:port/path`, or a path. Without a port in the URL, the port
/// is the default of the protocol.
pub(crate) fn parse(address: &str) -> Target {
    let address = address.trim();
    let Some((scheme, rest)) = address.split_once(':') else {
        // Package tools accept paths in place of URLs.
        return if address.starts_with(['/', '.', '~']) { Target::Local } else { Target::Invalid };
    };
    // In `sparse+https`, `mirror+http` and `git+ssh` the last part is the protocol.
    let port = match scheme.to_ascii_lowercase().rsplit('+').next().unwrap_or_default() {
        "https" => 443,
        "http" => 80,
        "ssh" => 22,
        "file" | "cdrom" | "copy" => return Target::Local,
        _ => return Target::Invalid,
    };
    let Some(rest) = rest.strip_prefix("//") else { return Target::Invalid };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // Some tools treat a backslash as a slash, so the host would be ambiguous.
    if authority.contains('\\') {
        return Target::Invalid;
    }
    let host = authority.rsplit('@').next().unwrap_or_default();
    let (name, number) = match host.rfind(']') {
        Some(end) => (&host[..=end], host[end + 1..].strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(name, number)| (name, Some(number))),
    };
    let port = match number.filter(|number| !number.is_empty()).map(str::parse) {
        None => port,
        Some(Ok(number)) if number > 0 => number,
        Some(_) => return Target::Invalid,
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    if is_name(&name) || is_bracketed(&name) { Target::Host(Host { name, port }) } else { Target::Invalid }
}

/// Returns true if a text is a host name of labels with 1 to 63 letters, digits, hyphens and underscores, and so
/// contains nothing that a policy would interpret as a pattern.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_bracketed(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::{Host, Target, parse};

    fn at(name: &str, port: u16) -> Target {
        Target::Host(Host { name: name.to_string(), port })
    }

    #[test]
    fn addresses() {
        assert_eq!(parse("https://Packages.Example/simple"), at("packages.example", 443));
        assert_eq!(parse(" sparse+https://u:p%40@a.example:8443/i/ "), at("a.example", 8443));
        assert_eq!(parse("http://a.example?x=https://b.example"), at("a.example", 80));
        assert_eq!(parse("https://a.example#@b.example"), at("a.example", 443));
        assert_eq!(parse("ssh://git@a.example/index.git"), at("a.example", 22));
        assert_eq!(parse("https://[::1]:8080/"), at("[::1]", 8080));
        assert_eq!(parse("https://a.example:/"), at("a.example", 443));
        for here in ["file:///srv/mirror", "/opt/wheels", "./wheels", "cdrom:[x]/"] {
            assert_eq!(parse(here), Target::Local, "{here}");
        }
        for bad in [
            "",
            "https://",
            "https:a.example",
            "https://*.example",
            "https://a..b",
            "https://a b/",
            "https://a:0/",
            "https://a:99999",
            "gopher://a",
            "https://[::1",
            "https://[x]/",
            "https://a.example\\@b",
        ] {
            assert_eq!(parse(bad), Target::Invalid, "{bad}");
        }
    }
}
