//! Plans a run's network access from the policy, presets and the user's configuration: which hosts the agent may
//! reach, which APIs it reaches through a gateway, and which environment variables tell programs to use the proxy and
//! the gateways.
//!
//! The agent must never get an API key. It gets a placeholder, and the gateway adds the key outside the sandbox.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::api_keys::{KeySource, Keys, Secrets};
use super::error::LaunchError;
use super::request::RunRequest;
use crate::judge::decide::NetworkRules;
use crate::judge::policy;
use crate::judge::policy::{Budget, Config, HostEntry, Limits, Policy};
use crate::run::egress::{Bounds, Upstream, UpstreamProxy};
use crate::run::launch::discover::registries;
use crate::run::launch::discover::registries::Tool;

/// The text that the agent gets instead of an API key.
pub(crate) const PLACEHOLDER: &str = "guard-keeps-the-key";
/// A script that makes `fetch` in older Node versions use the proxy: (content, path in the run's private home
/// directory).
pub(crate) const FETCH: (&str, &str) = (include_str!("../../../../shims/fetch.cjs"), ".guard/fetch.cjs");
/// The placeholder for the proxy's port in planned variables. guard replaces it when the proxy's listener is open.
pub(crate) const PROXY_PORT: &str = "{proxy-port}";

#[derive(Debug, Clone, Default, Serialize)]
pub struct NetworkPlan {
    /// Hosts that the agent may reach through the proxy.
    pub allow: Vec<AllowedHost>,
    /// Hosts that the agent may not reach, even if `allow` lists them.
    pub deny: Vec<String>,
    /// Host names with fixed addresses, which guard uses instead of DNS.
    pub resolve: Vec<(String, IpAddr)>,
    pub gateways: Vec<PlannedGateway>,
    /// True if the agent may connect to servers on loopback that the run itself has started.
    pub loopback: bool,
    /// Loopback ports on which the run's servers may listen, even without `loopback`.
    pub listen: Vec<u16>,
    pub budget: Budget,
    #[serde(skip)]
    pub(crate) rules: Arc<NetworkRules>,
    #[serde(skip)]
    pub(crate) upstream_proxy: UpstreamProxy,
    #[serde(skip)]
    pub(crate) bounds: Bounds,
    #[serde(skip)]
    pub(crate) prices: Config,
}

/// A host that the agent may reach, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowedHost {
    /// The host, as an entry of `[network] allow`.
    pub entry: String,
    /// The policy, preset or option that allows this host.
    pub why: String,
}

/// A gateway to an API: forwards the agent's requests to the API and adds the API key.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedGateway {
    /// The gateway's name, as in the policy and in the user's configuration.
    pub name: String,
    /// The URL of the API to which the gateway forwards requests.
    pub upstream: String,
    /// A description of the source of the API key; `None` if the API needs no key.
    pub key: Option<String>,
    #[serde(skip)]
    pub(crate) spec: policy::Gateway,
    #[serde(skip)]
    source: Option<KeySource>,
    #[serde(skip)]
    pub(crate) to: Upstream,
}

impl PlannedGateway {
    /// Returns the URL of the gateway, with a placeholder in place of the port.
    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port_placeholder())
    }

    pub(crate) fn port_placeholder(&self) -> String {
        format!("{{{}-port}}", self.name)
    }
}

fn variable<'r>(request: &'r RunRequest, name: &str) -> Option<&'r str> {
    let found = request.environment.iter().find(|(known, _)| known == name);
    found.and_then(|(_, value)| value.to_str()).filter(|value| !value.is_empty())
}

/// Returns the hosts of a network preset: the hosts that the preset lists, and those from which its tools fetch
/// packages. Adds the notes of the search for package hosts to `notes`, and ignores tools that guard does not know.
fn preset_hosts(
    name: &str,
    preset: &policy::Preset,
    home: Option<&Path>,
    environment: &[(OsString, OsString)],
    notes: &mut Vec<String>,
) -> Vec<AllowedHost> {
    let why = |reason: &str| format!("preset {name}: {reason}");
    let named =
        preset.allow.iter().map(|host| AllowedHost { entry: host.entry.clone(), why: why(&host.reason) });
    let mut hosts: Vec<AllowedHost> = named.collect();
    for tool in &preset.tool {
        let Some(known) = Tool::named(&tool.name) else { continue };
        let found = registries::find_registries(known, home, environment);
        hosts.extend(found.entries.into_iter().map(|entry| AllowedHost { entry, why: why(&tool.reason) }));
        notes.extend(found.notes);
    }
    hosts
}

/// Returns the rules that say which hosts a run with this policy may reach, and notes for the user. The rules contain
/// the hosts of the policy and of its network presets. A preset includes the hosts from which the user's tools fetch
/// packages, which guard finds with `home` and `environment`. Ignores unknown presets.
pub fn network_rules(
    policy: &Policy,
    home: Option<&Path>,
    environment: &[(OsString, OsString)],
) -> (NetworkRules, Vec<String>) {
    let mut notes = Vec::new();
    let presets = policy.network.presets.iter().filter_map(|name| Some((name, policy::preset(name)?)));
    let hosts: Vec<AllowedHost> = presets
        .flat_map(|(name, preset)| preset_hosts(name, &preset, home, environment, &mut notes))
        .collect();
    let rules = NetworkRules::new(&policy.network, hosts.into_iter().map(|host| (host.entry, host.why)));
    (rules, notes)
}

/// Plans the network access of the run that `request` describes, and adds notes for the user to `notes`. Fails if an
/// option, a preset, the URL of an API or the user's own proxy variable is not valid.
pub(crate) fn plan(request: &RunRequest, notes: &mut Vec<String>) -> Result<NetworkPlan, LaunchError> {
    let network = &request.policy.network;
    let options = &request.options;
    let mut hosts: Vec<AllowedHost> = Vec::new();
    let mut gateways: Vec<PlannedGateway> = Vec::new();
    for entry in &options.hosts {
        HostEntry::parse(entry)
            .map_err(|problem| LaunchError::Input(format!("--allow-host {entry}: {problem}")))?;
        hosts.push(AllowedHost { entry: entry.clone(), why: "--allow-host".to_string() });
    }
    for name in network.presets.iter().chain(&options.presets) {
        let preset = policy::preset(name).ok_or_else(|| {
            let known: Vec<&str> = policy::PRESETS.iter().map(|(name, _)| *name).collect();
            LaunchError::Input(format!(
                "unknown network preset `{name}`; known presets are {}",
                known.join(", ")
            ))
        })?;
        hosts.extend(preset_hosts(name, &preset, request.home.as_deref(), &request.environment, notes));
        for wanted in &preset.gateway {
            if gateways.iter().all(|known| known.name != wanted.name) {
                gateways.extend(gateway(request, &wanted.name, notes)?);
            }
        }
    }
    let given = hosts.iter().map(|host| (host.entry.clone(), host.why.clone()));
    let rules = NetworkRules::new(network, given);
    let own =
        network.allow.iter().map(|entry| AllowedHost { entry: entry.clone(), why: "policy".to_string() });
    let upstream_proxy = UpstreamProxy::from_environment(|name| variable(request, name).map(str::to_string));
    let upstream_proxy = match upstream_proxy {
        Ok(proxy) => proxy,
        Err(error) if rules.is_empty() && gateways.is_empty() => {
            notes.push(error.to_string());
            UpstreamProxy::default()
        }
        Err(error) => return Err(LaunchError::Input(error.to_string())),
    };
    Ok(NetworkPlan {
        allow: own.chain(hosts).collect(),
        deny: network.deny.clone(),
        resolve: network.resolve.clone(),
        gateways,
        loopback: network.loopback,
        listen: listen(network, &options.listen),
        budget: options.budget.tightened(request.policy.budget),
        rules: Arc::new(rules),
        upstream_proxy,
        bounds: bounds(&request.policy.limits),
        prices: request.config.clone(),
    })
}

/// Returns the loopback ports on which the run's servers may listen: those of the policy and of the command line,
/// without duplicates.
fn listen(network: &policy::Network, requested: &[u16]) -> Vec<u16> {
    let mut ports: Vec<u16> = network.listen.iter().chain(requested).copied().collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn bounds(limits: &Limits) -> Bounds {
    let number = |key: &str| limits.get(key).and_then(|value| u64::try_from(value).ok());
    Bounds {
        connections: number("connections").and_then(|count| usize::try_from(count).ok()),
        upload: number("upload_mib").map(|mib| mib << 20),
        download: number("download_mib").map(|mib| mib << 20),
        bytes_per_second: number("network_kib_per_second").map(|kib| kib << 10),
    }
}

/// Plans the gateway with this name. If the gateway needs an API key and the user has configured none, adds a note and
/// returns `None`.
fn gateway(
    request: &RunRequest,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Option<PlannedGateway>, LaunchError> {
    let unknown = || LaunchError::Input(format!("unknown gateway `{name}`"));
    let variables = policy::key_variables(name).ok_or_else(unknown)?;
    let config = request.config.gateway.get(name).cloned().unwrap_or_default();
    let mut source = None;
    if !variables.is_empty() {
        let home = |path: &Path| match (path.strip_prefix("~"), &request.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_path_buf(),
        };
        let own = config.key_variable.as_deref();
        let names = own.into_iter().chain(variables.iter().copied().filter(|_| own.is_none()));
        let set = |name: &&str| request.key_variables.iter().any(|known| known == name);
        source = match (config.key_command, config.key_file) {
            (Some(argv), _) => Some(KeySource::Command(argv)),
            (None, Some(path)) => Some(KeySource::File(home(&path))),
            (None, None) => names.clone().find(set).map(|name| KeySource::Variable(name.to_string())),
        };
        if source.is_none() {
            let names: Vec<String> = names.map(|name| format!("${name}")).collect();
            let names = names.join(" or ");
            notes.push(format!("the run has no gateway to {name}: there is no API key in {names}"));
            return Ok(None);
        }
    }
    let spec = policy::gateway(name).ok_or_else(unknown)?;
    let user =
        spec.upstream_variables.iter().find_map(|name| variable(request, name).map(|value| (name, value)));
    let to = match (user, &config.upstream) {
        (Some((name, value)), _) => {
            Upstream::parse(value).map_err(|error| LaunchError::Input(format!("variable {name}: {error}")))
        }
        (None, Some(value)) => {
            let place = format!("`upstream` of [gateway.{name}] in config.toml");
            Upstream::parse(value).map_err(|error| LaunchError::Input(format!("{place}: {error}")))
        }
        (None, None) => {
            Upstream::parse(&spec.upstream).map_err(|error| LaunchError::Input(error.to_string()))
        }
    }?;
    let key = source.as_ref().map(ToString::to_string);
    Ok(Some(PlannedGateway { name: name.to_string(), upstream: to.to_string(), key, spec, source, to }))
}

impl NetworkPlan {
    /// Returns true if the agent may reach at least one host. If it may reach none, guard still runs a proxy, which
    /// refuses every request.
    pub fn reaches_hosts(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Returns the environment variables that make programs use the proxy, guard's DNS server and the gateways, and
    /// that disable checks for updates. The URLs contain placeholders for the ports, which [`open`] replaces.
    pub(crate) fn variables(&self, home: &Path) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<(OsString, OsString)> = Vec::new();
        let address = format!("http://127.0.0.1:{PROXY_PORT}");
        for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            variables.push((name.into(), address.clone().into()));
        }
        for name in ["no_proxy", "NO_PROXY"] {
            variables.push((name.into(), "127.0.0.1,localhost,::1".into()));
        }
        // Newer Node versions read the proxy variables only if this is set.
        variables.push(("NODE_USE_ENV_PROXY".into(), "1".into()));
        // Make the C library send DNS queries over TCP, because guard's DNS server answers only those. Make it ignore
        // the machine's search domains.
        variables.push(("RES_OPTIONS".into(), "use-vc ndots:0".into()));
        variables.push(("LOCALDOMAIN".into(), ".".into()));
        // Disable checks for updates: guard would deny them, and every result would list the denials.
        variables.push(("npm_config_update_notifier".into(), "false".into()));
        variables.push(("PIP_DISABLE_PIP_VERSION_CHECK".into(), "1".into()));
        if self.reaches_hosts() {
            // Older Node versions ignore the proxy variables. Escape backslashes, because Node treats a backslash
            // inside quotes as an escape character.
            if let Some(script) = home.join(FETCH.1).to_str() {
                let script = script.replace('\\', "\\\\").replace('"', "\\\"");
                variables.push(("NODE_OPTIONS".into(), format!("--require=\"{script}\"").into()));
            }
        }
        for gateway in &self.gateways {
            for name in &gateway.spec.upstream_variables {
                variables.push((name.into(), gateway.address().into()));
            }
            if let Some(name) = gateway.spec.key_variables.first() {
                variables.push((name.into(), PLACEHOLDER.into()));
            }
        }
        variables
    }

    /// Returns the files that make programs use the gateways: (path relative to the private home directory, content).
    /// Currently this is at most one file, a git configuration with `insteadOf` rules.
    pub(crate) fn home_files(&self) -> Vec<(&'static str, String)> {
        let replaced = |gateway: &PlannedGateway| {
            let prefixes = gateway.spec.git_instead_of.iter();
            let lines: String = prefixes.map(|prefix| format!("\tinsteadOf = {prefix}\n")).collect();
            if lines.is_empty() { lines } else { format!("[url \"{}/\"]\n{lines}", gateway.address()) }
        };
        let git: String = self.gateways.iter().map(replaced).collect();
        if git.is_empty() { Vec::new() } else { vec![(".config/git/config", git)] }
    }

    /// Fetches the API keys of the gateways from their sources. Keys that no gateway uses become the result's `others`.
    pub fn keys(&self, mut keys: Keys) -> Result<Secrets, LaunchError> {
        let mut fetch = |gateway: &PlannedGateway| {
            gateway.source.as_ref().map(|source| keys.fetch(&gateway.name, source)).transpose()
        };
        let gateways = self.gateways.iter().map(&mut fetch).collect::<Result<_, _>>()?;
        Ok(Secrets { gateways, others: keys.into_unused() })
    }
}
