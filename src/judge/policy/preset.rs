//! Network presets and gateways: the types for the files in `policies/network` and `policies/gateways`.
//!
//! A preset lists hosts and gateways that a policy can enable together. A gateway file says which requests to one API
//! guard forwards, and how guard adds the API key.

use serde::Deserialize;

/// A network preset, which a policy names in `[network] presets`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    pub description: String,
    /// Hosts that the preset makes reachable through the proxy.
    #[serde(default)]
    pub allow: Vec<PresetHost>,
    /// Tools of the user, such as a package manager, whose own configuration names further hosts to allow.
    #[serde(default)]
    pub tool: Vec<PresetName>,
    /// Gateways that the preset makes available to the run.
    #[serde(default)]
    pub gateway: Vec<PresetName>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetHost {
    /// The entry, in the syntax of `[network] allow`.
    pub entry: String,
    pub reason: String,
}

/// A reference to a tool or gateway in a preset.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetName {
    pub name: String,
    pub reason: String,
}

/// A gateway to one API: which requests guard forwards, what it adds to them outside the sandbox, and how it refuses
/// the others.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    pub description: String,
    /// The base URL of the API.
    pub upstream: String,
    /// Environment variables in which the user may set another base URL. For the agent, guard sets them to the
    /// gateway's address.
    #[serde(default)]
    pub upstream_variables: Vec<String>,
    /// Environment variables in which the user may set the API key. For the agent, guard sets the first of them to a
    /// placeholder.
    #[serde(default)]
    pub key_variables: Vec<String>,
    /// The name of the request header that carries the key.
    pub key_header: Option<String>,
    /// The text before the key in the value of `key_header`, such as `Bearer `.
    #[serde(default)]
    pub key_prefix: String,
    /// The names of the headers of the agent's request that guard forwards.
    pub headers: Vec<String>,
    /// The names of the query parameters of the agent's request that guard forwards.
    #[serde(default)]
    pub query_keys: Vec<String>,
    /// Content that a request body must not contain.
    #[serde(default)]
    pub forbid: Vec<Forbid>,
    /// Which tools a request may offer to the model.
    pub tools: Option<ToolRules>,
    /// URL prefixes that git replaces with the gateway's address (`insteadOf`).
    #[serde(default)]
    pub git_instead_of: Vec<String>,
    pub call: Vec<Call>,
    #[serde(default)]
    pub usage: UsagePlaces,
    #[serde(default)]
    pub model: ModelPlace,
    pub refusal: Refusals,
}

/// A group of requests that a gateway forwards.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The HTTP methods, such as `POST`.
    pub methods: Vec<String>,
    /// The path patterns; `*` matches any text without a slash.
    pub paths: Vec<String>,
    /// The complete query that a request must have; `None` if the gateway requires no particular query.
    pub query: Option<String>,
    /// Whether the request uses tokens and counts against the budget.
    #[serde(default)]
    pub counts: bool,
    pub reason: String,
}

/// Keys that the JSON body of a request must not contain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forbid {
    /// The keys that the JSON must not contain, at any depth.
    pub keys: Vec<String>,
    /// Whether a key is forbidden only if its value is a URL, such as `https://…`.
    #[serde(default)]
    pub only_addresses: bool,
    pub reason: String,
}

/// The tools that a request may offer to the model. The API's servers run some tools themselves, and such a tool
/// could fetch URLs that the agent chose. guard therefore refuses every kind of tool that is not known to be
/// harmless.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRules {
    /// The key of the request body that contains the tools.
    pub key: String,
    /// Keys of lists in the request body whose items can also contain tools. An item contains its tools under `key`.
    #[serde(default)]
    pub item_lists: Vec<String>,
    /// The JSON key in a tool whose value is the tool's kind. If absent, every key of the tool counts as a kind.
    pub kind_key: Option<String>,
    /// Whether guard forwards tools without a kind, which the agent itself runs.
    #[serde(default)]
    pub without_kind: bool,
    /// The kinds of tools that a request may contain; a trailing `*` matches any text.
    pub allow: Vec<String>,
    /// The reason that guard gives when it refuses a tool of another kind.
    pub reason: String,
}

impl ToolRules {
    pub fn allows(&self, kind: &str) -> bool {
        self.allow.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => known == kind,
        })
    }
}

/// Where a response reports the number of tokens used. Each entry is a path of JSON keys separated by dots; `|`
/// separates alternatives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsagePlaces {
    /// Where the number of input tokens is, including cached ones.
    #[serde(default)]
    pub input: Vec<String>,
    /// Where the number of output tokens is.
    #[serde(default)]
    pub output: Vec<String>,
    /// Where the number of cached input tokens is. Cached tokens cost less.
    #[serde(default)]
    pub cached: Vec<String>,
    /// Where a response lists the web pages that the API itself searched. If a path leads to a list, guard inspects
    /// each of its items.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// Where a request names the model that it uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlace {
    /// The text in the URL path after which the model's name begins. The name ends before the last colon.
    pub path_after: Option<String>,
    /// The key of the request body that contains the model's name.
    pub body_key: Option<String>,
}

/// The responses with which a gateway refuses requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusals {
    /// The content type of the response bodies.
    pub content_type: String,
    /// The response when the budget is exhausted.
    pub exhausted: Answer,
    pub forbidden: Answer,
    /// The response when the API cannot be reached.
    pub unavailable: Answer,
}

/// One response with which a gateway refuses requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub status: u16,
    /// The body: `{message}` is the reason as a JSON string, `{text}` the unquoted reason.
    pub body: String,
}

/// The name of every preset and the text of its file.
pub const PRESETS: [(&str, &str); 9] = [
    ("none", include_str!("../../../policies/network/none.toml")),
    ("gemini", include_str!("../../../policies/network/gemini.toml")),
    ("openai", include_str!("../../../policies/network/openai.toml")),
    ("anthropic", include_str!("../../../policies/network/anthropic.toml")),
    ("rust", include_str!("../../../policies/network/rust.toml")),
    ("node", include_str!("../../../policies/network/node.toml")),
    ("python", include_str!("../../../policies/network/python.toml")),
    ("debian", include_str!("../../../policies/network/debian.toml")),
    ("github-readonly", include_str!("../../../policies/network/github-readonly.toml")),
];

pub(super) const PRESET_NAMES: [&str; 9] = {
    let mut names = [""; 9];
    let mut index = 0;
    while index < names.len() {
        names[index] = PRESETS[index].0;
        index += 1;
    }
    names
};

/// The name of every gateway and the text of its file.
pub const GATEWAYS: [(&str, &str); 4] = [
    ("gemini", include_str!("../../../policies/gateways/gemini.toml")),
    ("openai", include_str!("../../../policies/gateways/openai.toml")),
    ("anthropic", include_str!("../../../policies/gateways/anthropic.toml")),
    ("github", include_str!("../../../policies/gateways/github.toml")),
];

/// The usual environment variables for the API keys of all gateways. `guard run` removes them from its own environment
/// before it starts a program, so that no program inherits a key.
pub const KEY_VARIABLES: [&str; 5] =
    ["GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY", "ANTHROPIC_API_KEY"];

/// Returns the usual key variables of a gateway, without parsing the gateway's file, which contains the same list.
/// `None` if no gateway has this name.
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

pub fn preset(name: &str) -> Option<Preset> {
    read(&PRESETS, name)
}

pub fn gateway(name: &str) -> Option<Gateway> {
    read(&GATEWAYS, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::policy::HostEntry;

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
