//! Decides whether a run may reach a host and port under a policy, without any I/O.
//!
//! guard judges twice: first the name, before resolving it, and then the address of the actual connection. The second
//! check prevents a public name from leading into a private network.

use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;

use super::verdict::refusal_line;

use crate::judge::policy::{Host, HostAccess, HostEntry, Network, special_class, unmap_ipv4};

/// A host entry that allows access, and the source of the entry.
#[derive(Debug, Clone)]
pub struct Allowed {
    /// The entry: the hosts and ports, or the HTTP requests, that it allows.
    pub entry: HostEntry,
    /// The source of the entry: `policy`, or the preset and its reason.
    pub why: String,
}

/// All host rules of a policy, including its presets.
#[derive(Debug, Clone, Default)]
pub struct NetworkRules {
    allow: Vec<Allowed>,
    deny: Vec<HostEntry>,
    pins: Vec<(String, IpAddr)>,
}

/// Why a run may not reach a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkRefusal {
    /// The id of the rule that refuses the host.
    pub rule: &'static str,
    /// The reason for the refusal, which guard shows to the agent.
    pub reason: String,
    /// What the agent should do instead.
    pub instead: String,
    /// The special-purpose addresses of the host that the policy does not name. A rule for the name of the host does not
    /// allow them.
    pub addresses: Vec<IpAddr>,
}

/// The data of an event about a refused connection, request or lookup.
#[derive(Debug, Serialize)]
pub struct NetworkRefusalData<'a> {
    pid: i32,
    what: &'a str,
    host: &'a str,
    port: u16,
    rule: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    instead: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_with: Option<String>,
}

impl NetworkRefusal {
    pub fn new(rule: &'static str, reason: impl Into<String>, instead: impl Into<String>) -> Self {
        Self { rule, reason: reason.into(), instead: instead.into(), addresses: Vec::new() }
    }

    /// Returns the data of an event about this refusal. `what` describes what the thread `pid` tried. Port 0 means that
    /// it only looked up the name.
    pub fn event_data<'a>(
        &'a self,
        pid: i32,
        what: &'a str,
        host: &'a str,
        port: u16,
    ) -> NetworkRefusalData<'a> {
        let Self { rule, reason, instead, .. } = self;
        NetworkRefusalData {
            pid,
            what,
            host,
            port,
            rule,
            reason,
            instead,
            allow_with: self.option(host, port),
        }
    }

    /// Returns the options of `guard run` that let a run reach the host that this refusal is about. Port 0 means that the
    /// run only looked up the name. Returns `None` if `host` is not a valid host, or if no option lifts the rule.
    pub fn option(&self, host: &str, port: u16) -> Option<String> {
        // The agent chooses this text. A text that is not a host must not become part of an option that a person types.
        let host = Host::parse(host).ok()?;
        match self.rule {
            "network.default" | "network.request" | "network.tunnel" => {}
            "network.private" if !self.addresses.is_empty() => {}
            _ => return None,
        }
        let mut hosts = vec![host];
        if let Host::Name(name) = &hosts[0] {
            let local = is_local_name(name).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let local = local.filter(|_| self.addresses.is_empty());
            hosts.extend(self.addresses.iter().copied().chain(local).map(Host::Address));
        }
        let options: Vec<String> = hosts.iter().map(|host| host_option(host, port)).collect();
        Some(options.join(" "))
    }

    /// Returns the refusal as one line of text for the agent. `what` describes the refused access.
    pub fn line(&self, what: &str) -> String {
        refusal_line(what, self.rule, &self.reason, &self.instead)
    }
}

/// Returns the option of `guard run` that allows a host on a port; on the default ports, if the port is 0.
fn host_option(host: &Host, port: u16) -> String {
    match port {
        0 => format!("--allow-host {host}"),
        port if RAW_PORTS.contains(&port) => format!("--allow-host 'raw {host}:{port}'"),
        port => format!("--allow-host {host}:{port}"),
    }
}

/// The ports of services that speak neither TLS nor HTTP first, so that an entry for them must be `raw`: FTP, SSH, SMTP,
/// MySQL, PostgreSQL, AMQP, Redis, git, memcached and MongoDB.
const RAW_PORTS: [u16; 11] = [21, 22, 25, 587, 3306, 5432, 5672, 6379, 9418, 11211, 27017];

/// Returns true if a name stands for this machine: `localhost`, or a name that ends with `.localhost`.
fn is_local_name(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// What an agent should do instead of connecting to a host.
pub const INSTEAD_OF_HOST: &str =
    "Work with what is on this machine, or say in your answer which host you need and why.";

impl NetworkRules {
    /// Creates the rules from a policy's network section and the entries of its presets, given as (entry, reason).
    /// Leaves out entries that are not valid.
    pub fn new(network: &Network, presets: impl IntoIterator<Item = (String, String)>) -> Self {
        let parse = |text: &String| HostEntry::parse(text).ok();
        let own = network.allow.iter().map(|text| (text.clone(), "policy".to_string()));
        let allow = own
            .chain(presets)
            .filter_map(|(text, why)| Some(Allowed { entry: HostEntry::parse(&text).ok()?, why }));
        Self {
            allow: allow.collect(),
            deny: network.deny.iter().filter_map(parse).collect(),
            pins: network.resolve.clone(),
        }
    }

    /// Returns true if the policy allows no host at all.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty()
    }

    pub fn allowed(&self) -> &[Allowed] {
        &self.allow
    }

    /// Returns the host entries that deny access; they override the allowed ones.
    pub fn denied(&self) -> &[HostEntry] {
        &self.deny
    }

    /// Returns true if an entry, allowed or denied, limits the HTTP methods of requests to this host and port.
    pub fn limits_methods(&self, host: &Host, port: u16) -> bool {
        let entries = self.allow.iter().map(|allowed| &allowed.entry).chain(&self.deny);
        entries.into_iter().any(|entry| entry.limits_methods() && entry.names(host, port))
    }

    /// Judges an access to a host and port, and returns the entry that allows it. Returns a `raw` entry if one allows
    /// the access.
    pub fn judge(&self, host: &Host, port: u16, access: HostAccess<'_>) -> Result<&Allowed, NetworkRefusal> {
        // Through a tunnel a program could make the denied requests unseen. So if an entry denies only some requests
        // to a host, deny every tunnel to it.
        if let Some(entry) = self.deny.iter().find(|entry| entry.denies(host, port, access)) {
            return Err(NetworkRefusal::new(
                "network.deny",
                format!("The entry `{entry}` in the policy's list of denied hosts applies."),
                INSTEAD_OF_HOST,
            ));
        }
        // Prefer a `raw` entry: it does not restrict the protocol, so guard need not inspect the first bytes.
        let matching = || self.allow.iter().filter(|allowed| allowed.entry.matches(host, port, access));
        if let Some(allowed) = matching().find(|allowed| allowed.entry.is_raw()).or_else(|| matching().next())
        {
            return Ok(allowed);
        }
        let is_named = |allowed: &&Allowed| allowed.entry.names(host, port);
        Err(match (self.allow.iter().find(is_named), access) {
            (Some(allowed), HostAccess::Tunnel) => NetworkRefusal::new(
                "network.tunnel",
                format!(
                    "The policy allows only some requests to this host, such as `{}`, and guard cannot check the requests inside a tunnel.",
                    allowed.entry
                ),
                "Use plain http for this host.",
            ),
            (Some(allowed), HostAccess::Request { .. }) => NetworkRefusal::new(
                "network.request",
                format!(
                    "The policy allows requests such as `{}` to this host, but not this request.",
                    allowed.entry
                ),
                INSTEAD_OF_HOST,
            ),
            (None, _) => NetworkRefusal::new(
                "network.default",
                "The policy does not allow this host and port.",
                INSTEAD_OF_HOST,
            ),
        })
    }

    /// Judges a DNS lookup: allows it if an entry of `allow` matches the host on any port. Does not consult `deny`,
    /// because guard judges the connection later.
    pub fn judge_name(&self, host: &Host) -> Result<(), NetworkRefusal> {
        if self.allow.iter().any(|allowed| allowed.entry.names_host(host)) {
            return Ok(());
        }
        Err(NetworkRefusal::new("network.default", "The policy does not allow this host.", INSTEAD_OF_HOST))
    }

    /// Judges a direct connection by a program that does not use the proxy. If the policy allows only some requests
    /// to the host, allows the connection; guard judges each request later.
    pub fn judge_connect(&self, host: &Host, port: u16) -> Result<(), NetworkRefusal> {
        match self.judge(host, port, HostAccess::Tunnel) {
            Err(refusal) if refusal.rule != "network.tunnel" => return Err(refusal),
            Ok(_) | Err(_) => {}
        }
        match host {
            Host::Address(address) => self.judge_address(host, *address, port),
            Host::Name(_) => Ok(()),
        }
    }

    /// Judges the address of a connection to `host`: an address to which the name resolved, or the host itself. Refuses
    /// a denied address, and a special-purpose address that the policy neither names nor assigns to the host.
    pub fn judge_address(&self, host: &Host, address: IpAddr, port: u16) -> Result<(), NetworkRefusal> {
        let target = Host::Address(unmap_ipv4(address));
        if let Some(entry) = self.deny.iter().find(|entry| entry.names(&target, port)) {
            let reason = format!("{host} resolves to {address}, and the policy denies `{entry}`.");
            return Err(NetworkRefusal::new("network.deny", reason, INSTEAD_OF_HOST));
        }
        let Some(kind) = special_class(address) else { return Ok(()) };
        let is_pinned = matches!(host, Host::Name(name) if self.pinned(name) == Some(address));
        let is_named = self.allow.iter().any(|allowed| allowed.entry.names_special(address, port));
        if is_pinned || is_named {
            return Ok(());
        }
        let reason = match host {
            Host::Address(_) => {
                format!("{host} is a special address ({kind}), and the policy does not allow that address.")
            }
            Host::Name(_) => {
                format!(
                    "{host} resolves to {address}, a special address ({kind}), and the policy does not allow that \
                     address."
                )
            }
        };
        let refusal = NetworkRefusal::new("network.private", reason, INSTEAD_OF_HOST);
        Err(NetworkRefusal { addresses: vec![unmap_ipv4(address)], ..refusal })
    }

    /// Judges the address of a host as far as it is known without a lookup: the host is an address, a name of this
    /// machine, or a name to which the policy assigns an address. Allows all other hosts; guard judges their addresses
    /// when it connects.
    pub fn judge_known_address(&self, host: &Host, port: u16) -> Result<(), NetworkRefusal> {
        let address = match host {
            Host::Address(address) => Some(*address),
            Host::Name(name) => {
                self.pinned(name).or_else(|| is_local_name(name).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)))
            }
        };
        address.map_or(Ok(()), |address| self.judge_address(host, address, port))
    }

    /// Returns the fixed address that the policy assigns to a name; `None` if it assigns none.
    pub fn pinned(&self, name: &str) -> Option<IpAddr> {
        self.pins.iter().find(|(known, _)| known == name).map(|(_, address)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], deny: &[&str], pins: &[(&str, &str)]) -> NetworkRules {
        let texts = |items: &[&str]| items.iter().map(|item| (*item).to_string()).collect();
        let pin = |(name, address): &(&str, &str)| {
            ((*name).to_string(), address.parse().unwrap_or(IpAddr::from([0; 4])))
        };
        let network = Network {
            allow: texts(allow),
            deny: texts(deny),
            resolve: pins.iter().map(pin).collect(),
            ..Network::default()
        };
        NetworkRules::new(&network, [("preset.example:443".to_string(), "preset x".to_string())])
    }

    #[test]
    fn an_option_names_only_hosts() {
        let refusal = |rule| NetworkRefusal::new(rule, "", "");
        let option = |host: &str, port| refusal("network.default").option(host, port);
        assert_eq!(option("a.example", 443).as_deref(), Some("--allow-host a.example:443"));
        assert_eq!(option("a.example", 22).as_deref(), Some("--allow-host 'raw a.example:22'"));
        assert_eq!(option("a.example", 0).as_deref(), Some("--allow-host a.example"));
        for loopback in ["::1", "[::1]"] {
            assert_eq!(option(loopback, 80).as_deref(), Some("--allow-host [::1]:80"));
        }
        for hostile in ["x --write /", "x'; rm -rf ~ #", "$(id)", "", "a b"] {
            assert_eq!(option(hostile, 443), None, "{hostile}");
        }
        assert_eq!(refusal("network.deny").option("a.example", 443), None);
        assert_eq!(refusal("network.private").option("127.0.0.1", 443), None);
    }

    /// The options of a refusal, added to the rules, must allow the connection.
    #[test]
    fn the_options_of_a_refusal_lift_it() {
        let known = [("a.example", "10.0.0.9"), ("b.example", "::1"), ("c.example", "8.8.8.8")];
        let judge = |rules: &NetworkRules, host: &Host, address: IpAddr| {
            rules.judge(host, 443, HostAccess::Tunnel)?;
            rules.judge_known_address(host, 443)?;
            rules.judge_address(host, address, 443)
        };
        for allow in [&[][..], &["*"], &["a.example", "b.example"], &["GET a.example:443", "10.0.0.8:443"]] {
            for text in [
                "a.example",
                "b.example",
                "c.example",
                "localhost",
                "x.localhost",
                "10.0.0.9",
                "::1",
                "0.0.0.0",
            ] {
                let host = host(text);
                let address = known.iter().find(|(name, _)| *name == text).map_or("127.0.0.1", |(_, ip)| ip);
                let address = match &host {
                    Host::Address(address) => *address,
                    Host::Name(_) => address.parse().unwrap_or_else(|_| panic!("{address}")),
                };
                let mut allow: Vec<String> = allow.iter().map(|entry| (*entry).to_string()).collect();
                let current = |allow: &[String]| {
                    let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
                    rules(&allow, &[], &[])
                };
                // The address is judged after the name, so a first refusal may be followed by a second one.
                for _ in 0..2 {
                    let Err(refusal) = judge(&current(&allow), &host, address) else { break };
                    let options = refusal.option(&host.to_string(), 443);
                    let options = options.unwrap_or_else(|| panic!("{text}: {refusal:?} has no option"));
                    allow.extend(
                        options.split(' ').filter(|word| *word != "--allow-host").map(str::to_string),
                    );
                }
                assert_eq!(judge(&current(&allow), &host, address), Ok(()), "{text}: {allow:?}");
            }
        }
    }

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap_or(Host::Name(String::new()))
    }

    fn rule_of(result: Result<&Allowed, NetworkRefusal>) -> String {
        match result {
            Ok(allowed) => allowed.entry.to_string(),
            Err(refusal) => refusal.rule.to_string(),
        }
    }

    #[test]
    fn denial_beats_permission() {
        let rules =
            rules(&["*.example.org", "GET m.example"], &["bad.example.org:*", "POST x.example.org/a"], &[]);
        let judge = |name: &str, port, access| rule_of(rules.judge(&host(name), port, access));
        assert_eq!(judge("a.example.org", 443, HostAccess::Tunnel), "*.example.org");
        assert_eq!(judge("bad.example.org", 443, HostAccess::Tunnel), "network.deny");
        assert_eq!(judge("x.example.org", 80, HostAccess::Tunnel), "network.deny");
        assert_eq!(
            judge("x.example.org", 80, HostAccess::Request { method: "POST", path: "/a" }),
            "network.deny"
        );
        assert_eq!(
            judge("x.example.org", 80, HostAccess::Request { method: "GET", path: "/a" }),
            "*.example.org"
        );
        assert_eq!(judge("m.example", 80, HostAccess::Tunnel), "network.tunnel");
        assert_eq!(
            judge("m.example", 80, HostAccess::Request { method: "PUT", path: "/" }),
            "network.request"
        );
        assert_eq!(judge("preset.example", 443, HostAccess::Tunnel), "preset.example:443");
        assert_eq!(judge("example.org", 443, HostAccess::Tunnel), "network.default");
    }

    #[test]
    fn what_knows_no_proxy_is_judged_by_name_and_port() {
        let rules = rules(
            &["a.example", "GET m.example/x", "raw 10.1.0.0/16:22", "*.below.example"],
            &["x.below.example:443"],
            &[],
        );
        let name = |text: &str| rules.judge_name(&host(text)).map_err(|refusal| refusal.rule);
        assert_eq!(name("a.example"), Ok(()));
        assert_eq!(name("m.example"), Ok(()));
        assert_eq!(name("b.below.example"), Ok(()));
        assert_eq!(name("b.example"), Err("network.default"));
        let connect =
            |text: &str, port| rules.judge_connect(&host(text), port).map_err(|refusal| refusal.rule);
        assert_eq!(connect("a.example", 443), Ok(()));
        assert_eq!(connect("a.example", 22), Err("network.default"));
        assert_eq!(connect("m.example", 80), Ok(()));
        assert_eq!(connect("x.below.example", 443), Err("network.deny"));
        assert_eq!(connect("10.1.2.3", 22), Ok(()));
        assert_eq!(connect("10.1.2.3", 80), Err("network.default"));
        assert_eq!(connect("127.0.0.1", 22), Err("network.default"));
    }

    #[test]
    fn private_addresses_are_named_or_refused() {
        let rules =
            rules(&["*", "10.1.0.0/16:443", "0.0.0.0/0"], &["10.1.9.0/24"], &[("pin.example", "10.9.9.9")]);
        let ok = |name: &str, address: &str, port| {
            let address = address.parse().unwrap_or(IpAddr::from([0; 4]));
            rules.judge_address(&host(name), address, port).map_err(|refusal| refusal.rule)
        };
        assert_eq!(ok("a.example", "8.8.8.8", 443), Ok(()));
        assert_eq!(ok("a.example", "127.0.0.1", 443), Err("network.private"));
        assert_eq!(ok("a.example", "169.254.169.254", 80), Err("network.private"));
        assert_eq!(ok("a.example", "::ffff:10.2.0.1", 443), Err("network.private"));
        assert_eq!(ok("a.example", "10.1.0.1", 443), Ok(()));
        assert_eq!(ok("a.example", "10.1.0.1", 22), Err("network.private"));
        assert_eq!(ok("a.example", "10.1.9.1", 443), Err("network.deny"));
        assert_eq!(ok("pin.example", "10.9.9.9", 443), Ok(()));
        assert_eq!(ok("a.example", "10.9.9.9", 443), Err("network.private"));
        assert_eq!(ok("127.0.0.1", "127.0.0.1", 80), Err("network.private"));
        let known = |name: &str| rules.judge_known_address(&host(name), 443).map_err(|refusal| refusal.rule);
        assert_eq!(known("localhost"), Err("network.private"));
        assert_eq!(known("x.localhost"), Err("network.private"));
        assert_eq!(known("pin.example"), Ok(()));
        assert_eq!(known("a.example"), Ok(()));
        assert_eq!(known("10.1.0.1"), Ok(()));
    }
}
