//! Decides whether a run may reach a host and port under a policy, without any I/O.
//!
//! guard judges twice: first the name, before resolving it, and then the address of the actual connection. The second
//! check prevents a public name from leading into a private network.

use std::net::IpAddr;

use crate::policy::{Host, HostAccess, HostEntry, Network, special_class};

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
}

impl NetworkRefusal {
    /// Creates a refusal by the rule with this id.
    pub fn new(rule: &'static str, reason: impl Into<String>, instead: impl Into<String>) -> Self {
        Self { rule, reason: reason.into(), instead: instead.into() }
    }

    /// Returns the refusal as one line of text for the agent. `what` describes the refused access.
    pub fn line(&self, what: &str) -> String {
        let instead =
            if self.instead.is_empty() { String::new() } else { format!(" Instead: {}", self.instead) };
        format!(
            "guard: Permission denied: {what} (rule {}): {}{instead} Do not retry.",
            self.rule, self.reason
        )
    }
}

/// Returns the option of `guard run` that would let a run reach a host that `rule` refuses. Port 0 means that the run
/// only looked up the name. Returns `None` if `host` is not a valid host, if no option lifts the rule, or if `host` is
/// a name and only an option with its address would lift the rule.
pub fn host_option(rule: &str, host: &str, port: u16) -> Option<String> {
    // The agent chooses this text. A text that is not a host must not become part of an option that a person types.
    let is_address = match Host::parse(host) {
        Ok(Host::Address(_)) => true,
        Ok(Host::Name(_)) => false,
        Err(_) => return None,
    };
    let is_for_host = match rule {
        "network.default" | "network.request" | "network.tunnel" => true,
        "network.private" | "sandbox.network" => is_address,
        _ => false,
    };
    let bracketed = if is_address && host.contains(':') { format!("[{host}]") } else { host.to_string() };
    match (is_for_host, port) {
        (false, _) => None,
        (true, 0) => Some(format!("--allow-host {bracketed}")),
        // SSH is not TLS, so the entry must be `raw`.
        (true, SSH) => Some(format!("--allow-host 'raw {bracketed}:{port}'")),
        (true, _) => Some(format!("--allow-host {bracketed}:{port}")),
    }
}

const SSH: u16 = 22;

const INSTEAD: &str = "Work with what is on this machine, or say in your answer which host you need and why.";

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

    /// Returns the host entries that allow access.
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
                INSTEAD,
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
                INSTEAD,
            ),
            (None, _) => NetworkRefusal::new(
                "network.default",
                "The policy does not allow this host and port.",
                INSTEAD,
            ),
        })
    }

    /// Judges a DNS lookup: allows it if an entry of `allow` matches the host on any port. Does not consult `deny`,
    /// because guard judges the connection later.
    pub fn judge_name(&self, host: &Host) -> Result<(), NetworkRefusal> {
        if self.allow.iter().any(|allowed| allowed.entry.names_host(host)) {
            return Ok(());
        }
        Err(NetworkRefusal::new("network.default", "The policy does not allow this host.", INSTEAD))
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
        let target = Host::Address(crate::policy::unmap_ipv4(address));
        if let Some(entry) = self.deny.iter().find(|entry| entry.names(&target, port)) {
            let reason = format!("{host} resolves to {address}, and the policy denies `{entry}`.");
            return Err(NetworkRefusal::new("network.deny", reason, INSTEAD));
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
        Err(NetworkRefusal::new("network.private", reason, INSTEAD))
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
        let option = |host: &str, port| host_option("network.default", host, port);
        assert_eq!(option("a.example", 443).as_deref(), Some("--allow-host a.example:443"));
        assert_eq!(option("a.example", 22).as_deref(), Some("--allow-host 'raw a.example:22'"));
        assert_eq!(option("::1", 80).as_deref(), Some("--allow-host [::1]:80"));
        for hostile in ["x --write /", "x'; rm -rf ~ #", "$(id)", "", "a b"] {
            assert_eq!(option(hostile, 443), None, "{hostile}");
        }
        assert_eq!(host_option("network.deny", "a.example", 443), None);
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
    }
}
