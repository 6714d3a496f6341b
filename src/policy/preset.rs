//! Named parts of a policy's network, and the gateways they open: the files in `policies/network` and `policies/gateways`.

use serde::Deserialize;

/// What a policy may name in `[network] presets`, as data with reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// What it is for.
    pub description: String,
    /// Hosts that are reached through the proxy.
    #[serde(default)]
    pub allow: Vec<PresetHost>,
    /// Tools of the user's whose configuration says which hosts.
    #[serde(default)]
    pub tool: Vec<PresetName>,
    /// Gateways that are opened.
    #[serde(default)]
    pub gateway: Vec<PresetName>,
}

/// An entry of a preset.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetHost {
    /// As in `[network] allow`.
    pub entry: String,
    /// Why.
    pub reason: String,
}

/// A name in a preset.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetName {
    /// Of a tool or a gateway.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A door to one API: what is let through, what is added outside, how it says no.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// What it is.
    pub description: String,
    /// Where the API is.
    pub upstream: String,
    /// Variables of the user's that say it is elsewhere; the agent gets the gateway's address in them.
    #[serde(default)]
    pub upstream_variables: Vec<String>,
    /// Variables of the user's that may hold the key; the agent gets a placeholder in the first.
    #[serde(default)]
    pub key_variables: Vec<String>,
    /// The header that carries the key.
    pub key_header: Option<String>,
    /// What stands before the key in that header.
    #[serde(default)]
    pub key_prefix: String,
    /// Headers of the agent's that are handed on.
    pub headers: Vec<String>,
    /// Parts of the query that are handed on.
    #[serde(default)]
    pub query_keys: Vec<String>,
    /// What a body must not contain.
    #[serde(default)]
    pub forbid: Vec<Forbid>,
    /// Which tools a request may give the model.
    pub tools: Option<ToolRules>,
    /// Beginnings of addresses that git replaces with the gateway's.
    #[serde(default)]
    pub git_instead_of: Vec<String>,
    /// What is let through.
    pub call: Vec<Call>,
    /// Where answers say what was used.
    #[serde(default)]
    pub usage: UsagePlaces,
    /// Where a request names its model.
    #[serde(default)]
    pub model: ModelPlace,
    /// How it says no.
    pub refusal: Refusals,
}

/// Requests that are let through a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// `POST`.
    pub methods: Vec<String>,
    /// `*` is any text without a slash.
    pub paths: Vec<String>,
    /// The whole query, where it matters.
    pub query: Option<String>,
    /// It uses tokens.
    #[serde(default)]
    pub counts: bool,
    /// Why it is let through.
    pub reason: String,
}

/// Something that a request's JSON must not contain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forbid {
    /// Under any of these keys, wherever they stand.
    pub keys: Vec<String>,
    /// Only where the value is the address of something else: `https://…`.
    #[serde(default)]
    pub only_addresses: bool,
    /// Why.
    pub reason: String,
}

/// The tools that a request may give the model. The API itself runs some of them, and could be made to fetch addresses of
/// the agent's choice, so every kind that is not known to be harmless is refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRules {
    /// The key of the body that holds them.
    pub key: String,
    /// Lists of the body whose items can hold some too, under the same key.
    #[serde(default)]
    pub item_lists: Vec<String>,
    /// The key of a tool that says its kind. Without it every key of a tool is a kind.
    pub kind_key: Option<String>,
    /// A tool that does not say its kind is one of the agent's own.
    #[serde(default)]
    pub without_kind: bool,
    /// Kinds that pass; `*` at the end is any text.
    pub allow: Vec<String>,
    /// Why others do not.
    pub reason: String,
}

impl ToolRules {
    /// Whether tools of a kind pass.
    pub fn allows(&self, kind: &str) -> bool {
        self.allow.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => known == kind,
        })
    }
}

/// Where an answer says how many tokens it took: paths of keys with dots between, alternatives with `|` between.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsagePlaces {
    /// Of the question; cached ones too.
    #[serde(default)]
    pub input: Vec<String>,
    /// Of the answer.
    #[serde(default)]
    pub output: Vec<String>,
    /// Of the question, and cheaper.
    #[serde(default)]
    pub cached: Vec<String>,
}

/// Where a request names its model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlace {
    /// Behind this in the path, up to the last colon.
    pub path_after: Option<String>,
    /// Under this key of the body.
    pub body_key: Option<String>,
}

/// How an API says no.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusals {
    /// Of the bodies.
    pub content_type: String,
    /// A budget is used up.
    pub exhausted: Answer,
    /// Not that request.
    pub forbidden: Answer,
    /// The API cannot be reached.
    pub unavailable: Answer,
}

/// One way to say no.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body: `{message}` is the reason as a JSON string, `{text}` as it is.
    pub body: String,
}

/// Name and text of every preset.
pub const PRESETS: [(&str, &str); 9] = [
    ("none", include_str!("../../policies/network/none.toml")),
    ("gemini", include_str!("../../policies/network/gemini.toml")),
    ("openai", include_str!("../../policies/network/openai.toml")),
    ("anthropic", include_str!("../../policies/network/anthropic.toml")),
    ("rust", include_str!("../../policies/network/rust.toml")),
    ("node", include_str!("../../policies/network/node.toml")),
    ("python", include_str!("../../policies/network/python.toml")),
    ("debian", include_str!("../../policies/network/debian.toml")),
    ("github-readonly", include_str!("../../policies/network/github-readonly.toml")),
];

/// The presets' names.
pub(super) const PRESET_NAMES: [&str; 9] = {
    let mut names = [""; 9];
    let mut index = 0;
    while index < names.len() {
        names[index] = PRESETS[index].0;
        index += 1;
    }
    names
};

/// Name and text of every gateway.
pub const GATEWAYS: [(&str, &str); 4] = [
    ("gemini", include_str!("../../policies/gateways/gemini.toml")),
    ("openai", include_str!("../../policies/gateways/openai.toml")),
    ("anthropic", include_str!("../../policies/gateways/anthropic.toml")),
    ("github", include_str!("../../policies/gateways/github.toml")),
];

/// Variables that hold the keys of all of them: taken out of the environment before anything else happens.
pub const KEY_VARIABLES: [&str; 5] =
    ["GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY", "ANTHROPIC_API_KEY"];

/// Where the key of a gateway usually is, as its file says: a gateway without one need not be read. `None` for a name that
/// no gateway has.
pub fn key_variables(gateway: &str) -> Option<&'static [&'static str]> {
    match gateway {
        "gemini" => Some(&["GEMINI_API_KEY", "GOOGLE_API_KEY"]),
        "openai" => Some(&["OPENAI_API_KEY", "CODEX_API_KEY"]),
        "anthropic" => Some(&["ANTHROPIC_API_KEY"]),
        "github" => Some(&[]),
        _ => None,
    }
}

fn read<T: for<'de> Deserialize<'de>>(files: &[(&str, &str)], name: &str) -> Option<T> {
    let (_, text) = files.iter().find(|(known, _)| *known == name)?;
    toml::from_str(text).ok()
}

/// The preset of this name.
pub fn preset(name: &str) -> Option<Preset> {
    read(&PRESETS, name)
}

/// The gateway of this name.
pub fn gateway(name: &str) -> Option<Gateway> {
    read(&GATEWAYS, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::HostEntry;

    #[test]
    fn every_file_can_be_read_and_means_something() {
        for (name, text) in GATEWAYS {
            let gateway: Gateway = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!gateway.call.is_empty() && gateway.upstream.starts_with("https://"), "{name}");
            assert!(gateway.key_variables.is_empty() == gateway.key_header.is_none(), "{name}");
            assert!(
                gateway.key_variables.iter().all(|name| KEY_VARIABLES.contains(&name.as_str())),
                "{name}"
            );
            assert_eq!(
                key_variables(name),
                Some(&*gateway.key_variables.iter().map(String::as_str).collect::<Vec<_>>())
            );
            for answer in
                [&gateway.refusal.exhausted, &gateway.refusal.forbidden, &gateway.refusal.unavailable]
            {
                let body = answer.body.replace("{message}", "\"x\"");
                let is_json = serde_json::from_str::<serde_json::Value>(&body).is_ok();
                assert_eq!(is_json, gateway.refusal.content_type.contains("json"), "{name}: {body}");
            }
        }
        for (name, text) in PRESETS {
            let preset: Preset = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            for host in &preset.allow {
                assert!(
                    HostEntry::parse(&host.entry).is_ok() && !host.reason.is_empty(),
                    "{name}: {}",
                    host.entry
                );
            }
            for opened in &preset.gateway {
                assert!(
                    gateway(&opened.name).is_some() && !opened.reason.is_empty(),
                    "{name}: {}",
                    opened.name
                );
            }
        }
    }
}
