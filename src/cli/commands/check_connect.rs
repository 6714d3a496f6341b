//! `guard check --connect HOST:PORT`, and `guard policy presets`. Neither command resolves a name or opens a
//! connection.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::{Failure, stdout_colour};
use crate::judge::policy;
use crate::judge::policy::{Host, HostAccess, Policy};

/// The output of `guard check --connect --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct ConnectJson<'a> {
    /// Whether the policy allows the connection: `allow` or `deny`.
    decision: &'a str,
    /// The host in normalized form: lower case, without a final dot.
    host: String,
    /// The TCP port.
    port: u16,
    /// The host entry that allows the connection, or the id of the rule that denies it.
    rule: String,
    /// Why the connection is allowed or denied.
    reason: String,
    /// What to do instead of connecting; empty if there is no advice.
    instead: String,
    /// The options of `guard run` that would allow the connection; absent if the connection is allowed, or if no option
    /// can allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_with: Option<String>,
    /// Whether the connection may carry a protocol other than TLS; false if the connection is denied.
    raw: bool,
    /// The name of the policy by which guard judged the connection.
    policy: &'a str,
}

/// Prints whether a policy allows a connection to `target`, which is HOST or HOST:PORT; the default port is 443. Judges
/// a host name without resolving it. `option` is the option with which the user gave the target, for error messages.
pub(in crate::cli) fn run(
    option: &str,
    target: &str,
    policy: &Policy,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let (host, port) = Host::parse_with_port(target, Some(443)).map_err(|error| {
        Failure::usage(format!("{option} {target}: {error}"), "give HOST:PORT, such as example.org:443")
    })?;
    let environment: Vec<_> = std::env::vars_os().collect();
    let (rules, notes) = crate::run::launch::network_rules(
        policy,
        crate::session::user_directories::home().as_deref(),
        &environment,
    );
    let judged = rules
        .judge(&host, port, HostAccess::Tunnel)
        .and_then(|allowed| rules.judge_known_address(&host, port).map(|()| allowed));
    let is_allowed = judged.is_ok();
    let answer = match judged {
        Ok(allowed) => ConnectJson {
            decision: "allow",
            rule: allowed.entry.to_string(),
            reason: allowed.why.clone(),
            instead: String::new(),
            allow_with: None,
            raw: allowed.entry.is_raw(),
            host: host.to_string(),
            port,
            policy: &policy.name,
        },
        Err(refusal) => ConnectJson {
            decision: "deny",
            rule: refusal.rule.to_string(),
            allow_with: refusal.option(&host.to_string(), port),
            reason: refusal.reason,
            instead: refusal.instead,
            raw: false,
            host: host.to_string(),
            port,
            policy: &policy.name,
        },
    };
    if json {
        crate::cli::output::json::to_writer_pretty(&mut *out, &answer).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let (word, colour) = if is_allowed { ("allowed", "32") } else { ("denied", "31") };
        let word = if stdout_colour() { format!("\x1b[1;{colour}m{word}\x1b[0m") } else { word.to_string() };
        writeln!(out, "{word}: connect to {}:{port}", answer.host)?;
        writeln!(out, "  rule:    {} (policy {})", answer.rule, policy.name)?;
        writeln!(out, "  reason:  {}", answer.reason)?;
        if !answer.instead.is_empty() {
            writeln!(out, "  instead: {}", answer.instead)?;
        }
        if let Some(option) = &answer.allow_with {
            writeln!(out, "  allow:   guard run {option}")?;
        }
        for note in notes {
            writeln!(out, "  note:    {note}")?;
        }
    }
    Ok(if is_allowed { Exit::Success } else { Exit::Problem })
}

/// Prints the network presets, with what they allow and why.
pub(in crate::cli) fn presets(json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let all = policy::PRESETS.iter().filter_map(|(name, _)| Some((*name, policy::preset(name)?)));
    if json {
        let list: Vec<_> = all
            .map(|(name, preset)| {
                let named = |items: &[policy::PresetName]| -> Vec<_> {
                    items.iter().map(|item| json!({ "name": item.name, "reason": item.reason })).collect()
                };
                let hosts: Vec<_> =
                    preset.allow.iter().map(|host| json!({ "entry": host.entry, "reason": host.reason })).collect();
                json!({
                    "name": name, "description": preset.description, "allow": hosts, "tools": named(&preset.tool),
                    "gateways": named(&preset.gateway),
                })
            })
            .collect();
        print_json(&json!(list), out)?;
        return Ok(Exit::Success);
    }
    for (name, preset) in all {
        writeln!(out, "{name:<16} {}", preset.description)?;
        for host in &preset.allow {
            writeln!(out, "{:<16}   host {}: {}", "", host.entry, host.reason)?;
        }
        for tool in &preset.tool {
            writeln!(out, "{:<16}   the hosts in your {} settings: {}", "", tool.name, tool.reason)?;
        }
        for gateway in &preset.gateway {
            writeln!(out, "{:<16}   gateway {}: {}", "", gateway.name, gateway.reason)?;
        }
    }
    Ok(Exit::Success)
}
