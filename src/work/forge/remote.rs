//! Parses the URL of a git remote: finds out which service hosts the repository, and the URL of the service's API.
//!
//! The URL of the API comes from the user's environment or is that of GitHub itself. It never comes from the
//! repository.

use std::fmt;
use std::time::Duration;

use super::ForgeError;
use crate::git::Repository;
use crate::judge::policy::Host;
use crate::run::egress::{Upstream, UpstreamProxy};

/// GitHub's host, and the URL of its API.
const GITHUB: (&str, &str) = ("github.com", "https://api.github.com");
/// Other names of GitHub's host. `ssh.github.com` serves ssh on the HTTPS port, for networks with a firewall.
const ALSO_GITHUB: [&str; 2] = ["www.github.com", "ssh.github.com"];
/// Maximum duration of one API request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of an owner's or a repository's name.
const LONGEST: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// git's name for the remote, for example `origin`.
    pub name: String,
    /// The remote's URL without credentials, for messages to the user.
    pub shown: String,
    /// The remote's host; `None` for a local path, if git needs a remote helper, or if guard cannot parse the URL.
    pub host: Option<String>,
    pub kind: Kind,
}

/// The service that hosts a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// GitHub, or a GitHub Enterprise server that the user's environment names.
    GitHub(Box<GitHub>),
    /// Any other remote: a local directory, or another service.
    Other,
}

/// A repository on GitHub or on a GitHub Enterprise server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitHub {
    pub owner: String,
    pub repo: String,
    /// The owner of the repository to which guard pushes branches. It differs from `owner` if the remote has a
    /// separate push URL on the same host, for example of a fork.
    pub pushes_to: String,
    pub api: Upstream,
    pub proxy: UpstreamProxy,
    /// Maximum duration of one API request.
    pub timeout: Duration,
}

impl Remote {
    /// Reads the remote with the name `name`; `None` if the repository has no such remote. The environment variables
    /// `GITHUB_API_URL` and `GITHUB_SERVER_URL` may name a GitHub Enterprise server, as in GitHub Actions.
    pub fn of(repository: &Repository, name: &str) -> Result<Option<Self>, ForgeError> {
        Self::with(repository, name, |variable| std::env::var(variable).ok())
    }

    /// Reads the remote with the name `name`; `None` if the repository has no such remote. `variable` returns the
    /// value of an environment variable, which may name a GitHub Enterprise server (see [`Remote::of`]).
    pub fn with(
        repository: &Repository,
        name: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ForgeError> {
        let Some(urls) = repository.remote(name)? else { return Ok(None) };
        Self::parse(name, &urls.fetch, &urls.push, variable).map(Some)
    }

    /// Parses a remote from its fetch URL and its push URL. `variable` returns the value of an environment variable
    /// (see [`Remote::of`]). Fails if a variable with the URL of the API or of a proxy is invalid.
    pub fn parse(
        name: &str,
        fetch: &str,
        push: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ForgeError> {
        let address = Address::parse(fetch);
        let host = address.host().map(str::to_string);
        let mut kind = Kind::Other;
        if let Address::Host { host, path, .. } = &address
            && let Some(api) = api(host, &variable)?
            && let Some((owner, repo)) = owner_and_repo(path)
        {
            let proxy = UpstreamProxy::from_environment(&variable).map_err(|error| {
                ForgeError::refused(error.to_string(), "set the proxy to an `http://` URL, or unset it")
            })?;
            let pushes_to = match Address::parse(push) {
                Address::Host { host: other, path, .. } if other == *host => owner_and_repo(&path),
                _ => None,
            };
            let pushes_to = pushes_to.map_or_else(|| owner.clone(), |(owner, _)| owner);
            kind = Kind::GitHub(Box::new(GitHub { owner, repo, pushes_to, api, proxy, timeout: TIMEOUT }));
        }
        Ok(Self { name: name.to_string(), shown: address.to_string(), host, kind })
    }

    pub fn github(&self) -> Option<&GitHub> {
        match &self.kind {
            Kind::GitHub(github) => Some(github),
            Kind::Other => None,
        }
    }
}

/// Returns the URL of the API for a host; `None` unless the host is github.com or a GitHub Enterprise server that the
/// user's environment names. If guard accepted other hosts, a repository's configuration could make it send the token
/// to any server.
fn api(host: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<Option<Upstream>, ForgeError> {
    let filled = |name: &str| variable(name).filter(|text| !text.is_empty());
    if let Some(text) = filled("GITHUB_API_URL") {
        let api = named_api(&text)?;
        let at = api.host.to_string();
        let web = filled("GITHUB_SERVER_URL").map(|text| Address::parse(&text));
        let is_web = web.as_ref().and_then(Address::host).is_some_and(|name| name == host);
        if is_web || at == host || at.strip_prefix("api.").is_some_and(|rest| rest == host) {
            return Ok(Some(api));
        }
    }
    Ok(if host == GITHUB.0 { Upstream::parse(GITHUB.1).ok() } else { None })
}

fn named_api(text: &str) -> Result<Upstream, ForgeError> {
    let hint = "set GITHUB_API_URL to a URL such as `https://HOST/api/v3`, or unset it to use github.com";
    // The error of `Upstream::parse` would repeat the text, which may contain a password.
    if text.contains('@') {
        return Err(ForgeError::refused("GITHUB_API_URL contains a user name", hint));
    }
    Upstream::parse(text).map_err(|error| ForgeError::refused(format!("GITHUB_API_URL: {error}"), hint))
}

/// Splits a path of the form `owner/repo` or `owner/repo.git` into owner and repository; `None` for any other path.
fn owner_and_repo(path: &str) -> Option<(String, String)> {
    let (owner, repo) = path.trim_matches('/').split_once('/')?;
    let repo = repo.strip_suffix(".git").unwrap_or(repo);
    let is_name = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=LONGEST).contains(&name.len()) && name.bytes().all(fits) && name != "." && name != ".."
    };
    (is_name(owner) && is_name(repo)).then(|| (owner.to_string(), repo.to_string()))
}

/// A remote's URL, parsed as git parses it.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    Host {
        scheme: &'static str,
        host: String,
        port: Option<u16>,
        path: String,
    },
    /// A path on this machine.
    Local(String),
    /// A URL that needs a remote helper, or that guard cannot parse. The text for messages contains at most the scheme
    /// of the URL, so it cannot contain credentials.
    Unknown(String),
}

impl Address {
    fn parse(text: &str) -> Self {
        let is_plain = |c: char| !c.is_control() && c != '\\';
        if !text.chars().all(is_plain) {
            return Self::Unknown("an address with control characters".to_string());
        }
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let word = text.split(|c| !is_scheme(c)).next().unwrap_or_default();
        if let Some(rest) = text[word.len()..].strip_prefix("://") {
            return Self::url(word, rest).unwrap_or_else(|| Self::Unknown(format!("{word}://…")));
        }
        if !word.is_empty() && text[word.len()..].starts_with("::") {
            return Self::Unknown(format!("{word}::…"));
        }
        // In `host:path` (scp syntax) the colon comes before any slash.
        match text.find([':', '/', '[']) {
            Some(at) if !text[at..].starts_with('/') => {
                Self::scp(text).unwrap_or_else(|| Self::Unknown("…".to_string()))
            }
            _ => Self::Local(text.to_string()),
        }
    }

    fn url(scheme: &str, rest: &str) -> Option<Self> {
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "https" => "https",
            "http" => "http",
            "ssh" | "git+ssh" | "ssh+git" => "ssh",
            "git" => "git",
            "file" => return Some(Self::Local(format!("file://{rest}"))),
            _ => return None,
        };
        let (place, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let place = place.rsplit('@').next()?;
        let (host, port) = Host::parse_with_port(place, Some(u16::MAX)).ok()?;
        Self::at(scheme, &host, Some(port).filter(|_| place.ends_with(&format!(":{port}"))), path)
    }

    /// Parses an address in the form of scp: `git@host:path`, `[git@host:22]:path`, `git@[::1]:path`. Returns `None` if
    /// guard cannot parse the host, or if the path may contain a credential.
    fn scp(text: &str) -> Option<Self> {
        let end = match (text.find('['), text.find("]:")) {
            (Some(begin), Some(end)) if begin < text.find(':')? => end + 1,
            _ => text.find(':')?,
        };
        let (place, path) = (&text[..end], &text[end + 1..]);
        let place = place.rsplit('@').next()?;
        let inner = place.strip_prefix('[').unwrap_or(place);
        let inner = inner.strip_suffix(']').unwrap_or(inner);
        // Brackets contain an IPv6 address, or a host with a port.
        let host =
            Host::parse(inner).or_else(|_| Host::parse_with_port(inner, Some(22)).map(|found| found.0));
        Self::at("ssh", &host.ok()?, None, &format!("/{}", path.trim_start_matches('/')))
    }

    fn at(scheme: &'static str, host: &Host, port: Option<u16>, path: &str) -> Option<Self> {
        let mut host = host.to_string();
        if ALSO_GITHUB.contains(&host.as_str()) {
            host = GITHUB.0.to_string();
        }
        // A query may contain a credential. An `@` in the path may be the end of credentials that contain a slash.
        let is_fine = !path.contains(['?', '#', '@']);
        is_fine.then(|| Self::Host { scheme, host, port, path: path.to_string() })
    }

    fn host(&self) -> Option<&str> {
        match self {
            Self::Host { host, .. } => Some(host),
            Self::Local(_) | Self::Unknown(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { scheme, host, port, path } => {
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                write!(f, "{scheme}://{host}{port}{path}")
            }
            Self::Local(text) | Self::Unknown(text) => f.write_str(text),
        }
    }
}
