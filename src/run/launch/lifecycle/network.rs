//! Opens the listeners of a run's proxy and gateways before the run starts.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::run::egress;
use crate::run::egress::{BoundListener, GatewayPlan, ListenerKind, PeerRegistry};
use crate::run::launch::plan::api_keys::Secrets;
use crate::run::launch::plan::launch_plan::LaunchPlan;
use crate::run::launch::plan::network::{NetworkPlan, PROXY_PORT};
use crate::run::outcome::HostTraffic;
use crate::run::transcript::Recorder;
use crate::sys::secret::Secret;

/// The open listeners of a run's proxy and gateways. The proxy's thread accepts their connections once it has
/// started.
pub(crate) struct Network {
    pub(crate) peer_registry: Arc<PeerRegistry>,
    listeners: Vec<BoundListener>,
    /// Secrets that no gateway uses, such as the caller's other API keys.
    others: Vec<Secret>,
}

impl Network {
    /// Returns all API keys and other secrets, so that the transcript can redact them. guard must call this before
    /// [`Network::proxy_config`], which takes the listeners with their keys. guard must call it only after it has
    /// forked init, because init would otherwise get a copy of the keys.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = Vec<u8>> {
        let of_gateways = self.listeners.iter().filter_map(|listener| match &listener.kind {
            ListenerKind::Gateway(plan) => plan.key.as_ref(),
            ListenerKind::Proxy => None,
        });
        of_gateways.chain(&self.others).map(|key| key.expose().to_vec())
    }

    /// Returns the settings for the proxy's thread, and moves the listeners into them. So guard must call this only
    /// once.
    pub(crate) fn proxy_config(
        &mut self,
        plan: &NetworkPlan,
        recorder: Recorder,
        activity: Arc<AtomicU64>,
        exhausted: Arc<AtomicBool>,
    ) -> egress::ProxyConfig {
        egress::ProxyConfig {
            listeners: std::mem::take(&mut self.listeners),
            peer_registry: self.peer_registry.clone(),
            rules: plan.rules.clone(),
            proxy: plan.upstream_proxy.clone(),
            bounds: plan.bounds,
            budget: egress::Budget::new(plan.budget, plan.prices.clone()),
            recorder,
            activity,
            exhausted,
        }
    }

    /// Adds the connections that the supervisor denied to the traffic report. Adds a row for each host and port that
    /// has none yet, and sorts the rows.
    pub(crate) fn add_refused(&self, rows: &mut Vec<HostTraffic>) {
        for (host, port, refused) in self.peer_registry.refused() {
            match rows.iter_mut().find(|row| row.host == host && row.port == port) {
                Some(row) => row.refused += refused,
                None => rows.push(HostTraffic { host, port, refused, ..HostTraffic::default() }),
            }
        }
        rows.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
    }
}

/// Opens the listeners of the proxy and the gateways, and replaces the placeholders for their ports in the plan's
/// environment and files. `secrets.gateways` must have the same order as the plan's gateways.
pub(crate) fn open(plan: &mut LaunchPlan, secrets: Secrets) -> std::io::Result<Network> {
    let LaunchPlan { network: plan, environment, home_files, .. } = plan;
    let mut listeners = Vec::new();
    let mut ports = Vec::new();
    let mut open_listener = |kind: ListenerKind, placeholder: &str| -> std::io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        for (_, value) in environment.iter_mut() {
            if let Some(text) = value.to_str().filter(|text| text.contains(placeholder)) {
                *value = text.replace(placeholder, &port.to_string()).into();
            }
        }
        for (_, text) in home_files.iter_mut() {
            *text = text.replace(placeholder, &port.to_string());
        }
        ports.push(port);
        listeners.push(BoundListener { kind, listener });
        Ok(())
    };
    open_listener(ListenerKind::Proxy, PROXY_PORT)?;
    for (gateway, key) in plan.gateways.iter().zip(secrets.gateways) {
        let gateway_plan = GatewayPlan {
            name: gateway.name.clone(),
            upstream: gateway.to.clone(),
            spec: gateway.spec.clone(),
            key,
        };
        open_listener(ListenerKind::Gateway(Box::new(gateway_plan)), &gateway.port_placeholder())?;
    }
    Ok(Network { peer_registry: Arc::new(PeerRegistry::new(ports)), listeners, others: secrets.others })
}
