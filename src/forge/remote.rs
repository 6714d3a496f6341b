//! The address of a git remote → which service it is on, and where that service's API is.

use std::fmt;
use std::time::Duration;

use super::ForgeError;
use crate::egress::{CompanyProxy, Upstream};
use crate::policy::Host;
use crate::workspace::Repository;

/// GitHub's own host, and where its API is.
const GITHUB: (&str, &str) = ("github.com", "https://api.github.com");
/// Other names that lead to the same: the second is for ssh through firewalls.
const ALSO_GITHUB: [&str; 2] = ["www.github.com", "ssh.github.com"];
/// How long an API may take for one answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest name of an owner or a repository.
const LONGEST: usize = 100;

/// A remote of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// git's name for it: `origin`.
    pub name: String,
    /// Where it is, for people: without credentials.
    pub shown: String,
    /// The host it is on; none on this machine, or where git needs a helper to get there.
    pub host: Option<String>,
    /// Which service.
    pub kind: Kind,
}

/// What a remote is hosted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// GitHub, or a GitHub Enterprise that the user's environment names.
    GitHub(Box<GitHub>),
    /// Anything else: a directory, another service.
    Other,
}

/// A repository on GitHub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitHub {
    /// Whose repository.
    pub owner: String,
    /// Its name.
    pub repo: String,
    /// Whose repository is pushed to: a fork's owner, where the remote has an address of its own for that.
    pub pushes_to: String,
    /// Where the API is.
    pub api: Upstream,
    /// The way there.
    pub proxy: CompanyProxy,
    /// How long one answer may take.
    pub patience: Duration,
}

impl Remote {
    /// A remote of a repository, by its name; none of that name is none. `GITHUB_API_URL` and `GITHUB_SERVER_URL` name a
    /// GitHub Enterprise, as in its own workflows.
    pub fn of(repository: &Repository, name: &str) -> Result<Option<Self>, ForgeError> {
        Self::with(repository, name, |variable| std::env::var(variable).ok())
    }

    /// The same with an environment of one's own.
    pub fn with(
        repository: &Repository,
        name: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ForgeError> {
        let Some(urls) = repository.remote(name)? else { return Ok(None) };
        Self::understand(name, &urls.fetch, &urls.push, variable).map(Some)
    }

    /// A remote by its addresses: where is fetched from, and where is pushed to.
    pub fn understand(
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
            let proxy = CompanyProxy::from_environment(&variable).map_err(|error| {
                ForgeError::refused(error.to_string(), "name a proxy that begins with `http://`, or none")
            })?;
            let pushes_to = match Address::parse(push) {
                Address::Host { host: other, path, .. } if other == *host => owner_and_repo(&path),
                _ => None,
            };
            let pushes_to = pushes_to.map_or_else(|| owner.clone(), |(owner, _)| owner);
            kind = Kind::GitHub(Box::new(GitHub { owner, repo, pushes_to, api, proxy, patience: PATIENCE }));
        }
        Ok(Self { name: name.to_string(), shown: address.to_string(), host, kind })
    }

    /// It, if it is on GitHub.
    pub fn github(&self) -> Option<&GitHub> {
        match &self.kind {
            Kind::GitHub(github) => Some(github),
            Kind::Other => None,
        }
    }
}

/// The API that serves a host, if that is a GitHub. Only the environment names one: a token must not follow what a
/// repository says.
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
    let hint = "give it like `https://HOST/api/v3`, or unset it for github.com";
    // Its own error repeats the text.
    if text.contains('@') {
        return Err(ForgeError::refused("GITHUB_API_URL has a user name in it", hint));
    }
    Upstream::parse(text).map_err(|error| ForgeError::refused(format!("GITHUB_API_URL: {error}"), hint))
}

/// `owner/repo`, with and without `.git`, as a service names them.
fn owner_and_repo(path: &str) -> Option<(String, String)> {
    let (owner, repo) = path.trim_matches('/').split_once('/')?;
    let repo = repo.strip_suffix(".git").unwrap_or(repo);
    let is_name = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=LONGEST).contains(&name.len()) && name.bytes().all(fits) && name != "." && name != ".."
    };
    (is_name(owner) && is_name(repo)).then(|| (owner.to_string(), repo.to_string()))
}

/// Where an address leads, as git reads it.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    Host {
        scheme: &'static str,
        host: String,
        port: Option<u16>,
        path: String,
    },
    /// A path of this machine.
    Here(String),
    /// Through a helper, or not to be understood: only how it begins.
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
        // `host:path` is one only where no slash comes before the colon.
        match text.find([':', '/', '[']) {
            Some(at) if !text[at..].starts_with('/') => {
                Self::scp(text).unwrap_or_else(|| Self::Unknown("…".to_string()))
            }
            _ => Self::Here(text.to_string()),
        }
    }

    fn url(scheme: &str, rest: &str) -> Option<Self> {
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "https" => "https",
            "http" => "http",
            "ssh" | "git+ssh" | "ssh+git" => "ssh",
            "git" => "git",
            "file" => return Some(Self::Here(format!("file://{rest}"))),
            _ => return None,
        };
        let (place, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let place = place.rsplit('@').next()?;
        let (host, port) = Host::parse_with_port(place, Some(u16::MAX)).ok()?;
        Self::at(scheme, &host, Some(port).filter(|_| place.ends_with(&format!(":{port}"))), path)
    }

    /// `git@host:path`, `[git@host:22]:path`, `git@[::1]:path`.
    fn scp(text: &str) -> Option<Self> {
        let end = match (text.find('['), text.find("]:")) {
            (Some(begin), Some(end)) if begin < text.find(':')? => end + 1,
            _ => text.find(':')?,
        };
        let (place, path) = (&text[..end], &text[end + 1..]);
        let place = place.rsplit('@').next()?;
        let inner = place.strip_prefix('[').unwrap_or(place);
        let inner = inner.strip_suffix(']').unwrap_or(inner);
        // In brackets there is an address, or a host with a port.
        let host =
            Host::parse(inner).or_else(|_| Host::parse_with_port(inner, Some(22)).map(|found| found.0));
        Self::at("ssh", &host.ok()?, None, &format!("/{}", path.trim_start_matches('/')))
    }

    fn at(scheme: &'static str, host: &Host, port: Option<u16>, path: &str) -> Option<Self> {
        let mut host = host.to_string();
        if ALSO_GITHUB.contains(&host.as_str()) {
            host = GITHUB.0.to_string();
        }
        // What follows a question mark may be a credential too, and an `@` may belong to one that was cut.
        let is_fine = !path.contains(['?', '#', '@']);
        is_fine.then(|| Self::Host { scheme, host, port, path: path.to_string() })
    }

    fn host(&self) -> Option<&str> {
        match self {
            Self::Host { host, .. } => Some(host),
            Self::Here(_) | Self::Unknown(_) => None,
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
            Self::Here(text) | Self::Unknown(text) => f.write_str(text),
        }
    }
}
