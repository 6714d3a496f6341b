//! Plans a run's network access from the policy, presets and the user's configuration: rules, gateways and variables.
//! When the run is about to begin, opens the listeners for the proxy and the gateways.
//!
//! The agent must never get a key. It gets a placeholder, and the gateway adds the key outside the sandbox.

use std::ffi::OsString;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use serde::Serialize;

use super::discover::registries;
use super::discover::registries::Tool;
use super::plan::api_keys::{KeySource, Keys, Secrets};
use super::plan::{LaunchError, LaunchPlan, RunRequest};
use crate::decide::NetworkRules;
use crate::egress::{self, Bounds, CompanyProxy, Door, GatewayPlan, OpenedListeners, PeerRegistry, Upstream};
use crate::outcome::HostTraffic;
use crate::policy::{self, Budget, Config, HostEntry, Limits, Policy};
use crate::sys::secret::Secret;
use crate::transcript::Recorder;

/// What the agent gets instead of a key.
pub(crate) const PLACEHOLDER: &str = "guard-keeps-the-key";
/// A script that makes `fetch` of older Node versions use the proxy, and its path in the private home.
pub(crate) const FETCH: (&str, &str) = (include_str!("../../shims/fetch.cjs"), ".guard/fetch.cjs");
/// Stands for the proxy's port until the listener is open.
const PROXY_PORT: &str = "{proxy-port}";

/// A run's access to the network.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NetworkPlan {
    /// Hosts that may be reached through the proxy.
    pub allow: Vec<AllowedHost>,
    /// Hosts that may not be reached, whatever allows them.
    pub deny: Vec<String>,
    /// Fixed addresses for host names.
    pub resolve: Vec<(String, IpAddr)>,
    /// APIs that the run reaches through a gateway.
    pub gateways: Vec<PlannedGateway>,
    /// The run may connect to its own servers on loopback.
    pub loopback: bool,
    /// Loopback ports that the run's own servers may listen on, also without `loopback`.
    pub listen: Vec<u16>,
    /// The budget for model requests.
    pub budget: Budget,
    #[serde(skip)]
    pub(crate) rules: Arc<NetworkRules>,
    #[serde(skip)]
    company: CompanyProxy,
    #[serde(skip)]
    bounds: Bounds,
    #[serde(skip)]
    prices: Config,
}

/// An allowed host, with the source of the permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowedHost {
    /// The host as an entry of a policy.
    pub entry: String,
    /// The policy, preset or option that allows it.
    pub why: String,
}

/// An API behind a gateway.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedGateway {
    /// The gateway's name.
    pub name: String,
    /// The address of the API.
    pub upstream: String,
    /// Where the key comes from.
    pub key: Option<String>,
    #[serde(skip)]
    spec: policy::Gateway,
    #[serde(skip)]
    source: Option<KeySource>,
    #[serde(skip)]
    to: Upstream,
}

impl PlannedGateway {
    /// The address by which the run reaches the gateway.
    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port_mark())
    }

    fn port_mark(&self) -> String {
        format!("{{{}-port}}", self.name)
    }
}

fn variable<'r>(request: &'r RunRequest, name: &str) -> Option<&'r str> {
    let found = request.environment.iter().find(|(known, _)| known == name);
    found.and_then(|(_, value)| value.to_str()).filter(|value| !value.is_empty())
}

/// The hosts of a preset.
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
        let found = registries::of(known, home, environment);
        hosts.extend(found.entries.into_iter().map(|entry| AllowedHost { entry, why: why(&tool.reason) }));
        notes.extend(found.notes);
    }
    hosts
}

/// The hosts that a policy lets runs of this user reach, and notes for the user.
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

/// Plans the network access of a request.
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
            LaunchError::Input(format!("there is no network preset `{name}`; there are {}", known.join(", ")))
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
    let company = CompanyProxy::from_environment(|name| variable(request, name).map(str::to_string));
    let company = match company {
        Ok(company) => company,
        Err(error) if rules.is_empty() && gateways.is_empty() => {
            notes.push(error.to_string());
            CompanyProxy::default()
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
        company,
        bounds: bounds(&request.policy.limits),
        prices: request.config.clone(),
    })
}

/// The ports of the policy and of the command line, without duplicates.
fn listen(network: &policy::Network, asked: &[u16]) -> Vec<u16> {
    let mut ports: Vec<u16> = network.listen.iter().chain(asked).copied().collect();
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

/// The gateway with this name, if there is a key for it.
fn gateway(
    request: &RunRequest,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Option<PlannedGateway>, LaunchError> {
    let unknown = || LaunchError::Input(format!("there is no gateway `{name}`"));
    let variables = policy::key_variables(name).ok_or_else(unknown)?;
    let config = request.config.gateway.get(name).cloned().unwrap_or_default();
    let mut source = None;
    if !variables.is_empty() {
        let home = |path: &Path| match (path.strip_prefix("~"), &request.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_path_buf(),
        };
        let own = config.key_variable.as_deref();
        let usual = own.into_iter().chain(variables.iter().copied().filter(|_| own.is_none()));
        let set = |name: &&str| request.key_variables.iter().any(|known| known == name);
        source = match (config.key_command, config.key_file) {
            (Some(words), _) => Some(KeySource::Command(words)),
            (None, Some(path)) => Some(KeySource::File(home(&path))),
            (None, None) => usual.clone().find(set).map(|name| KeySource::Variable(name.to_string())),
        };
        if source.is_none() {
            let names: Vec<String> = usual.map(|name| format!("${name}")).collect();
            notes.push(format!("no gateway to {name}: there is no key in {}", names.join(" or ")));
            return Ok(None);
        }
    }
    let spec = policy::gateway(name).ok_or_else(unknown)?;
    let user =
        spec.upstream_variables.iter().find_map(|name| variable(request, name).map(|value| (name, value)));
    let to = match (user, &config.upstream) {
        (Some((name, value)), _) => {
            Upstream::parse(value).map_err(|error| LaunchError::Input(format!("{name}: {error}")))
        }
        (None, Some(value)) => {
            Upstream::parse(value).map_err(|error| LaunchError::Input(format!("config.toml: {error}")))
        }
        (None, None) => {
            Upstream::parse(&spec.upstream).map_err(|error| LaunchError::Input(error.to_string()))
        }
    }?;
    let key = source.as_ref().map(ToString::to_string);
    Ok(Some(PlannedGateway { name: name.to_string(), upstream: to.to_string(), key, spec, source, to }))
}

impl NetworkPlan {
    /// Whether any host may be reached. If not, the proxy still exists and refuses everything.
    pub fn reaches_hosts(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The environment variables that point programs at the proxy and the gateways.
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
        // Makes the C library resolve names over TCP, where guard answers, and without the machine's search domains.
        variables.push(("RES_OPTIONS".into(), "use-vc ndots:0".into()));
        variables.push(("LOCALDOMAIN".into(), ".".into()));
        // Checks for updates would only be denied, and every result would list the denial.
        variables.push(("npm_config_update_notifier".into(), "false".into()));
        variables.push(("PIP_DISABLE_PIP_VERSION_CHECK".into(), "1".into()));
        if self.reaches_hosts() {
            // Older Node versions do not know the proxy variables at all. In quotes, Node takes a backslash as an
            // escape.
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

    /// Files in the private home that point programs at the gateways: (path, content).
    pub(crate) fn home_files(&self) -> Vec<(&'static str, String)> {
        let replaced = |gateway: &PlannedGateway| {
            let prefixes = gateway.spec.git_instead_of.iter();
            let lines: String = prefixes.map(|prefix| format!("\tinsteadOf = {prefix}\n")).collect();
            if lines.is_empty() { lines } else { format!("[url \"{}/\"]\n{lines}", gateway.address()) }
        };
        let git: String = self.gateways.iter().map(replaced).collect();
        if git.is_empty() { Vec::new() } else { vec![(".config/git/config", git)] }
    }

    /// Fetches the keys of the gateways from their sources.
    pub fn keys(&self, mut keys: Keys) -> Result<Secrets, LaunchError> {
        let mut fetch = |gateway: &PlannedGateway| {
            gateway.source.as_ref().map(|source| keys.fetch(&gateway.name, source)).transpose()
        };
        let gateways = self.gateways.iter().map(&mut fetch).collect::<Result<_, _>>()?;
        Ok(Secrets { gateways, others: keys.rest() })
    }
}

/// The open listeners of a run, which no thread serves yet.
pub(crate) struct Network {
    pub(crate) doors: Arc<PeerRegistry>,
    opened: Vec<OpenedListeners>,
    /// Keys that no gateway uses.
    others: Vec<Secret>,
}

impl Network {
    /// The keys, so that the transcript can redact them. Called only when init exists, because init is forked with a
    /// copy of this process's memory.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = Vec<u8>> {
        let of_gateways = self.opened.iter().filter_map(|opened| match &opened.door {
            Door::Gateway(plan) => plan.key.as_ref(),
            Door::Proxy => None,
        });
        of_gateways.chain(&self.others).map(|key| key.expose().to_vec())
    }

    /// What the proxy's thread needs.
    pub(crate) fn setting(
        &mut self,
        plan: &NetworkPlan,
        recorder: Recorder,
        activity: Arc<AtomicU64>,
        exhausted: Arc<AtomicBool>,
    ) -> egress::ProxyConfig {
        egress::ProxyConfig {
            opened: std::mem::take(&mut self.opened),
            doors: self.doors.clone(),
            rules: plan.rules.clone(),
            proxy: plan.company.clone(),
            bounds: plan.bounds,
            budget: egress::Budget::new(plan.budget, plan.prices.clone()),
            recorder,
            activity,
            exhausted,
        }
    }

    /// Adds the connections that the supervisor refused.
    pub(crate) fn add_refused(&self, rows: &mut Vec<HostTraffic>) {
        for (host, port, refused) in self.doors.refused() {
            match rows.iter_mut().find(|row| row.host == host && row.port == port) {
                Some(row) => row.refused += refused,
                None => rows.push(HostTraffic { host, port, refused, ..HostTraffic::default() }),
            }
        }
        rows.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
    }
}

/// Opens the listeners, and writes their ports into the run's environment and files.
pub(crate) fn open(plan: &mut LaunchPlan, secrets: Secrets) -> std::io::Result<Network> {
    let LaunchPlan { network: plan, environment, home_files, .. } = plan;
    let mut opened = Vec::new();
    let mut ports = Vec::new();
    let mut door = |door: Door, mark: &str| -> std::io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        for (_, value) in environment.iter_mut() {
            if let Some(text) = value.to_str().filter(|text| text.contains(mark)) {
                *value = text.replace(mark, &port.to_string()).into();
            }
        }
        for (_, text) in home_files.iter_mut() {
            *text = text.replace(mark, &port.to_string());
        }
        ports.push(port);
        opened.push(OpenedListeners { door, listener });
        Ok(())
    };
    door(Door::Proxy, PROXY_PORT)?;
    for (gateway, key) in plan.gateways.iter().zip(secrets.gateways) {
        let behind = GatewayPlan {
            name: gateway.name.clone(),
            upstream: gateway.to.clone(),
            spec: gateway.spec.clone(),
            key,
        };
        door(Door::Gateway(Box::new(behind)), &gateway.port_mark())?;
    }
    Ok(Network { doors: Arc::new(PeerRegistry::new(ports)), opened, others: secrets.others })
}
