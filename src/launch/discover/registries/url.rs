//! Reads the host and port of an address in a settings file. It must never return a name that a policy would take for a
//! pattern.

/// Where an address leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host(Host),
    /// A path on this machine.
    Here,
    Unknown,
}

/// A host with its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// In lower case; an IPv6 address in brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Host {
    /// The host as an entry of a policy.
    pub(crate) fn entry(&self) -> String {
        format!("{}:{}", self.name, self.port)
    }

    /// Parses a host name, with an optional port. The default port is that of HTTPS.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match host(&format!("https://{name}")) {
            Place::Host(host) => Some(host),
            Place::Here | Place::Unknown => None,
        }
    }
}

/// Reads the host of an address such as `sparse+https://user:password@host:port/path`.
pub(crate) fn host(address: &str) -> Place {
    let address = address.trim();
    let Some((scheme, rest)) = address.split_once(':') else {
        // Tools accept paths as well.
        return if address.starts_with(['/', '.', '~']) { Place::Here } else { Place::Unknown };
    };
    // In `sparse+https`, `mirror+http` and `git+ssh` the last part is the protocol.
    let port = match scheme.to_ascii_lowercase().rsplit('+').next().unwrap_or_default() {
        "https" => 443,
        "http" => 80,
        "ssh" => 22,
        "file" | "cdrom" | "copy" => return Place::Here,
        _ => return Place::Unknown,
    };
    let Some(rest) = rest.strip_prefix("//") else { return Place::Unknown };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // Some parsers treat a backslash as a slash, so the host would be ambiguous.
    if authority.contains('\\') {
        return Place::Unknown;
    }
    let place = authority.rsplit('@').next().unwrap_or_default();
    let (name, number) = match place.rfind(']') {
        Some(end) => (&place[..=end], place[end + 1..].strip_prefix(':')),
        None => place.split_once(':').map_or((place, None), |(name, number)| (name, Some(number))),
    };
    let port = match number.filter(|number| !number.is_empty()).map(str::parse) {
        None => port,
        Some(Ok(number)) if number > 0 => number,
        Some(_) => return Place::Unknown,
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    if is_name(&name) || is_bracketed(&name) { Place::Host(Host { name, port }) } else { Place::Unknown }
}

/// Accepts letters, digits, hyphens and underscores only: nothing that a policy would take for a pattern.
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
    use super::{Host, Place, host};

    fn at(name: &str, port: u16) -> Place {
        Place::Host(Host { name: name.to_string(), port })
    }

    #[test]
    fn addresses() {
        assert_eq!(host("https://Packages.Example/simple"), at("packages.example", 443));
        assert_eq!(host(" sparse+https://u:p%40@a.example:8443/i/ "), at("a.example", 8443));
        assert_eq!(host("http://a.example?x=https://b.example"), at("a.example", 80));
        assert_eq!(host("https://a.example#@b.example"), at("a.example", 443));
        assert_eq!(host("ssh://git@a.example/index.git"), at("a.example", 22));
        assert_eq!(host("https://[::1]:8080/"), at("[::1]", 8080));
        assert_eq!(host("https://a.example:/"), at("a.example", 443));
        for here in ["file:///srv/mirror", "/opt/wheels", "./wheels", "cdrom:[x]/"] {
            assert_eq!(host(here), Place::Here, "{here}");
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
            assert_eq!(host(bad), Place::Unknown, "{bad}");
        }
    }
}
