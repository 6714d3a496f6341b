//! Connects to a host that the policy allows.
//!
//! Input is a host and a port. If the machine has an upstream proxy for this host, the dialer connects through that
//! proxy, which resolves the name itself. Otherwise the dialer resolves the name, judges each address, and connects to
//! exactly the address that it judged.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::judge::decide::{NetworkRefusal, NetworkRules};
use crate::judge::policy::Host;
use crate::run::transcript::base64;

/// Time limit for a DNS lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// If a name has several addresses, guard tries to connect to at most this many of them.
const MOST_ADDRESSES: usize = 8;
/// Size limit of an upstream proxy's CONNECT response.
const MAX_CONNECT_RESPONSE: usize = 8 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("{}", .0.reason)]
    Refused(NetworkRefusal),
    #[error("cannot resolve {host}: {problem}")]
    Lookup { host: String, problem: String },
    #[error("{host}:{port} cannot be reached: {problem}")]
    Unreachable { host: String, port: u16, problem: String },
    #[error("{0} did not respond in time")]
    TimedOut(String),
    #[error("the upstream proxy {proxy} opened no tunnel: {response}")]
    Proxy { proxy: String, response: String },
}

/// The upstream proxy through which this machine reaches the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamProxy {
    https: Option<ProxyAddress>,
    http: Option<ProxyAddress>,
    /// Names, name suffixes and networks that are reached without the proxy (`no_proxy`).
    direct: Vec<String>,
}

/// The address and credentials of one upstream proxy.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ProxyAddress {
    pub(super) host: Host,
    pub(super) port: u16,
    /// The value of the `Proxy-Authorization` header. It is a credential of the user and must not reach the agent.
    pub(super) authorization: Option<String>,
}

impl std::fmt::Debug for ProxyAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// An environment variable such as `https_proxy` has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {variable} does not name a usable proxy: {problem}")]
pub struct ProxyError {
    pub variable: String,
    pub problem: String,
}

impl UpstreamProxy {
    /// Reads `https_proxy`, `http_proxy` and `no_proxy`, in lower or upper case. `all_proxy` applies to a scheme whose
    /// own variable is unset or empty. Fails if a variable does not contain the address of an HTTP proxy.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        let find = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| Some((name.to_string(), lookup(name).filter(|text| !text.is_empty())?)))
        };
        let place = |found: Option<(String, String)>| -> Result<Option<ProxyAddress>, ProxyError> {
            let Some((variable, text)) = found else { return Ok(None) };
            ProxyAddress::parse(&text).map(Some).map_err(|problem| ProxyError { variable, problem })
        };
        let all = ["all_proxy", "ALL_PROXY"];
        let https = place(find(&["https_proxy", "HTTPS_PROXY"]).or_else(|| find(&all)))?;
        // In upper case the variable could come from a request's `Proxy` header (CGI), so lower case wins.
        let http = place(find(&["http_proxy", "HTTP_PROXY"]).or_else(|| find(&all)))?;
        let direct = find(&["no_proxy", "NO_PROXY"]).map(|(_, text)| text).unwrap_or_default();
        let direct = direct.split([',', ' ']).map(|item| item.trim().to_ascii_lowercase());
        Ok(Self { https, http, direct: direct.filter(|item| !item.is_empty()).collect() })
    }

    /// Returns true if an upstream proxy is configured for any scheme.
    pub fn is_some(&self) -> bool {
        self.https.is_some() || self.http.is_some()
    }

    /// Returns the upstream proxy to use for a host; `None` if none is configured, if the host is this machine, or if
    /// `no_proxy` contains the host.
    fn proxy_for_host(&self, host: &Host, is_tunnel: bool) -> Option<&ProxyAddress> {
        let place = if is_tunnel { self.https.as_ref() } else { self.http.as_ref() }?;
        let text = host.to_string();
        let is_local = match host {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        };
        let is_direct = |item: &String| {
            let item = item.strip_prefix("*.").or(item.strip_prefix('.')).unwrap_or(item);
            item == "*"
                || text == item
                || text.strip_suffix(item).is_some_and(|rest| rest.ends_with('.'))
                || crate::judge::policy::HostEntry::parse(&format!("{item}:*"))
                    .is_ok_and(|entry| entry.names(host, 1))
        };
        (!is_local && !self.direct.iter().any(is_direct)).then_some(place)
    }
}

impl ProxyAddress {
    fn parse(text: &str) -> Result<Self, String> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(format!("`{scheme}://` proxies are not supported, only `http://`"));
            }
            None => text,
        };
        let rest = rest.trim_end_matches('/');
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let (host, port) = Host::parse_with_port(place, Some(80)).map_err(|error| error.to_string())?;
        let authorization = user.map(|user| format!("Basic {}", base64(&percent_decode(user))));
        Ok(Self { host, port, authorization })
    }
}

/// Decodes percent-encoding: `%41` → `A`. Copies an invalid escape sequence unchanged.
fn percent_decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut at, mut plain) = (0, Vec::with_capacity(bytes.len()));
    while let Some(&byte) = bytes.get(at) {
        let escaped = text
            .get(at + 1..at + 3)
            .filter(|_| byte == b'%')
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        plain.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    plain
}

/// An open connection to a host or to the upstream proxy.
pub(super) struct Dialled {
    pub(super) stream: TcpStream,
    /// Bytes that the server sent so early that they arrived together with the proxy's response to CONNECT.
    pub(super) early: Vec<u8>,
    /// `Some` if the connection leads to an upstream proxy, which expects absolute URLs in requests. The inner value is
    /// the `Proxy-Authorization` header, if the proxy needs one.
    pub(super) proxy_authorization: Option<Option<String>>,
}

impl Dialled {
    fn direct(stream: TcpStream) -> Self {
        Self { stream, early: Vec::new(), proxy_authorization: None }
    }
}

/// Opens the connections that the network rules allow.
pub(super) struct Dialer {
    pub(super) rules: std::sync::Arc<NetworkRules>,
    pub(super) proxy: UpstreamProxy,
    /// Ports of this run's own listeners. The dialer never connects to them, so that no connection leads back to guard.
    pub(super) listener_ports: Vec<u16>,
}

impl Dialer {
    /// Opens a connection for a tunnel, through which the run sends bytes that guard does not change. If guard connects
    /// directly, fails unless the rules allow the address.
    pub(super) async fn tunnel(&self, host: &Host, port: u16) -> Result<Dialled, DialError> {
        match self.proxy_for(host, true) {
            Some(place) => connect_through(place, host, port).await,
            None => Ok(Dialled::direct(self.direct(host, port).await?)),
        }
    }

    /// Opens a connection for a plain HTTP request: to the host, or to the upstream proxy that forwards the request. If
    /// guard connects directly, fails unless the rules allow the address.
    pub(super) async fn request(&self, host: &Host, port: u16) -> Result<Dialled, DialError> {
        let Some(place) = self.proxy_for(host, false) else {
            return Ok(Dialled::direct(self.direct(host, port).await?));
        };
        let stream = connect_unjudged(&place.host, place.port).await?;
        Ok(Dialled { stream, early: Vec::new(), proxy_authorization: Some(place.authorization.clone()) })
    }

    /// Returns the upstream proxy to use for a host; `None` if guard connects directly. guard connects directly to
    /// special-purpose addresses, and to names to which the policy assigns an address: it must judge the address
    /// itself, and an upstream proxy resolves names on its own.
    fn proxy_for(&self, host: &Host, is_tunnel: bool) -> Option<&ProxyAddress> {
        match host {
            Host::Name(name) if self.rules.pinned(name).is_some() => None,
            Host::Address(address) if crate::judge::policy::special_class(*address).is_some() => None,
            _ => self.proxy.proxy_for_host(host, is_tunnel),
        }
    }

    async fn direct(&self, host: &Host, port: u16) -> Result<TcpStream, DialError> {
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => match self.rules.pinned(name) {
                Some(address) => vec![address],
                None => lookup(name).await?,
            },
        };
        self.connect_first_allowed(host, addresses, port).await
    }

    /// Connects to the first address that the rules allow and that accepts the connection. Tries at most
    /// `MOST_ADDRESSES`. Connects by address and does not resolve the name again, so DNS rebinding has no effect.
    async fn connect_first_allowed(
        &self,
        host: &Host,
        addresses: Vec<IpAddr>,
        port: u16,
    ) -> Result<TcpStream, DialError> {
        let mut problem: Option<DialError> = None;
        let mut special = Vec::new();
        for address in addresses.into_iter().take(MOST_ADDRESSES) {
            if let Err(mut refusal) = self.judge(host, address, port) {
                // The refusal names every address that the policy would have to allow.
                special.append(&mut refusal.addresses);
                refusal.addresses.clone_from(&special);
                problem = Some(DialError::Refused(refusal));
                continue;
            }
            match connect(SocketAddr::new(address, port), host).await {
                Ok(stream) => return Ok(stream),
                Err(error) => problem = Some(error),
            }
        }
        Err(problem.unwrap_or_else(|| DialError::Lookup {
            host: host.to_string(),
            problem: "the name has no address".to_string(),
        }))
    }

    fn judge(&self, host: &Host, address: IpAddr, port: u16) -> Result<(), NetworkRefusal> {
        if address.is_loopback() && self.listener_ports.contains(&port) {
            let reason = "This address belongs to a listener of guard itself.";
            return Err(NetworkRefusal::new("network.private", reason, ""));
        }
        self.rules.judge_address(host, address, port)
    }
}

/// Resolves a name to its addresses with the machine's resolver, first as an absolute name.
pub(super) async fn lookup(name: &str) -> Result<Vec<IpAddr>, DialError> {
    let failed = |problem: String| DialError::Lookup { host: name.to_string(), problem };
    // The trailing dot keeps the machine's search list from changing the name.
    let asked = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((format!("{name}."), 0))).await;
    let found = match asked {
        Err(_) => return Err(failed("no response in time".to_string())),
        Ok(Ok(found)) => found,
        // Try again without the trailing dot, because names in `/etc/hosts` have none.
        Ok(Err(_)) => match timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((name, 0))).await {
            Ok(Ok(found)) => return Ok(found.map(|address| address.ip()).collect()),
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed("no response in time".to_string())),
        },
    };
    Ok(found.map(|address| address.ip()).collect())
}

async fn connect(address: SocketAddr, host: &Host) -> Result<TcpStream, DialError> {
    let problem = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            return Ok(stream);
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no response in time".to_string(),
    };
    Err(DialError::Unreachable { host: host.to_string(), port: address.port(), problem })
}

/// Connects to a host that the user configured (a proxy or an API). The network rules do not apply to such hosts.
pub(super) async fn connect_unjudged(host: &Host, port: u16) -> Result<TcpStream, DialError> {
    let addresses = match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => lookup(name).await?,
    };
    let mut problem =
        DialError::Lookup { host: host.to_string(), problem: "the name has no address".to_string() };
    for address in addresses.into_iter().take(MOST_ADDRESSES) {
        match connect(SocketAddr::new(address, port), host).await {
            Ok(stream) => return Ok(stream),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

impl UpstreamProxy {
    /// Connects to an API that the user configured, through the upstream proxy if one applies. No network rules are
    /// checked.
    pub(super) async fn connect_unjudged(&self, host: &Host, port: u16) -> Result<TcpStream, DialError> {
        match self.proxy_for_host(host, true) {
            Some(place) => connect_through(place, host, port).await.map(|dialled| dialled.stream),
            None => connect_unjudged(host, port).await,
        }
    }
}

/// Opens a tunnel through the upstream proxy with CONNECT. Fails if the proxy does not answer with the status 200.
async fn connect_through(place: &ProxyAddress, host: &Host, port: u16) -> Result<Dialled, DialError> {
    let mut stream = connect_unjudged(&place.host, place.port).await?;
    let name = format!("{place:?}");
    let refused = |response: String| DialError::Proxy { proxy: name.clone(), response };
    let authorization = place
        .authorization
        .as_ref()
        .map(|value| format!("Proxy-Authorization: {value}\r\n"))
        .unwrap_or_default();
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}\r\n");
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::with_capacity(512);
        loop {
            if let Some(end) = answer.windows(4).position(|part| part == b"\r\n\r\n") {
                let early = answer.split_off(end + 4);
                return Ok((answer, early));
            }
            if answer.len() > MAX_CONNECT_RESPONSE || stream.read_buf(&mut answer).await? == 0 {
                return Err(io::Error::other("it did not send a complete HTTP response"));
            }
        }
    };
    let (answer, early) = match timeout(CONNECT_TIMEOUT, exchange).await {
        Ok(Ok(parts)) => parts,
        Ok(Err(error)) => return Err(refused(error.to_string())),
        Err(_) => return Err(DialError::TimedOut(name)),
    };
    let line =
        String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    if line.split(' ').nth(1) != Some("200") {
        return Err(refused(
            line.chars().filter(|c| !crate::text::terminal_text::is_unsafe(*c)).take(120).collect(),
        ));
    }
    Ok(Dialled { stream, early, proxy_authorization: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(pairs: &[(&str, &str)]) -> Result<UpstreamProxy, ProxyError> {
        UpstreamProxy::from_environment(|name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
        })
    }

    fn dialer(allow: &[&str], listener_ports: Vec<u16>) -> Dialer {
        let network = crate::judge::policy::Network {
            allow: allow.iter().map(|entry| (*entry).to_string()).collect(),
            ..crate::judge::policy::Network::default()
        };
        Dialer {
            rules: NetworkRules::new(&network, []).into(),
            proxy: UpstreamProxy::default(),
            listener_ports,
        }
    }

    /// DNS rebinding needs two lookups: one gives a public address, which is judged, the next gives a local address,
    /// which is connected to. The dialer makes only one lookup, judges each of its addresses, and connects to an
    /// address that it judged.
    #[test]
    fn the_address_that_is_judged_is_connected_to() -> io::Result<()> {
        let (here, second) = ([127, 0, 0, 1], [127, 0, 0, 2]);
        let server = std::net::TcpListener::bind(("0.0.0.0", 0))?;
        server.set_nonblocking(true)?;
        let port = server.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let host = Host::Name("rebound.example".to_string());
        let dial = |dialer: &Dialer, addresses: &[[u8; 4]]| {
            let addresses = addresses.iter().map(|address| IpAddr::from(*address)).collect();
            runtime.block_on(dialer.connect_first_allowed(&host, addresses, port))
        };
        let everybody = dialer(&["*:*"], Vec::new());
        for addresses in [&[here][..], &[second, here], &[[169, 254, 169, 254]], &[[0, 0, 0, 0]]] {
            let refused = dial(&everybody, addresses);
            assert!(
                matches!(&refused, Err(DialError::Refused(refusal)) if refusal.rule == "network.private"),
                "{refused:?}"
            );
        }
        assert!(server.accept().is_err(), "a connection was made");
        // Of two addresses the allowed one is used, although the other comes first.
        let one = dialer(&["*:*", "127.0.0.2:*"], Vec::new());
        let stream = dial(&one, &[here, second]).map_err(io::Error::other)?;
        assert_eq!(stream.peer_addr()?, SocketAddr::from((second, port)));
        let (_, from) = server.accept()?;
        assert_eq!(from, stream.local_addr()?);
        assert!(server.accept().is_err(), "a second connection was made");
        // The run's own listeners are never allowed, whatever the rules say.
        let own = dialer(&["127.0.0.0/8:*"], vec![port]);
        assert!(matches!(dial(&own, &[here, second]), Err(DialError::Refused(_))));
        assert!(server.accept().is_err(), "a listener was reached");
        Ok(())
    }

    #[test]
    fn a_name_of_this_machine_is_refused_by_its_address() -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let host = Host::Name("localhost".to_string());
        let refused = runtime.block_on(dialer(&["localhost:*"], Vec::new()).tunnel(&host, 9));
        assert!(
            matches!(refused, Err(DialError::Refused(refusal)) if refusal.rule == "network.private"),
            "localhost was dialled"
        );
        Ok(())
    }

    #[test]
    fn the_usual_variables() {
        let found = proxy(&[
            ("HTTPS_PROXY", "http://us%65r:p%40ss@proxy.corp:3128/"),
            ("no_proxy", ".corp, 10.0.0.0/8 plain.example"),
        ])
        .unwrap_or_else(|error| panic!("{error}"));
        let over = |host: &str| {
            let host = Host::parse(host).unwrap_or(Host::Name(String::new()));
            found.proxy_for_host(&host, true).is_some()
        };
        assert!(over("example.org") && over("corp.example") && over("11.0.0.1"));
        for direct in
            ["git.corp", "corp", "10.1.2.3", "plain.example", "a.plain.example", "localhost", "127.0.0.1"]
        {
            assert!(!over(direct), "{direct}");
        }
        let place = found.https.as_ref();
        assert_eq!(place.and_then(|place| place.authorization.as_deref()), Some("Basic dXNlcjpwQHNz"));
        assert!(!format!("{found:?}").contains("dXNl"));
        assert!(found.http.is_none() && found.is_some());
        assert!(
            proxy(&[("all_proxy", "socks5://x:1")]).is_err_and(|error| error.to_string().contains("socks5"))
        );
        assert_eq!(proxy(&[("https_proxy", "")]), Ok(UpstreamProxy::default()));
    }
}
