//! What a test of the network gives a run, and what it can find afterwards.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::http_server::Authority;
use crate::support::{RunOutcome, TestEnvironment};

/// What every client looks at to find the authorities it believes.
const AUTHORITY_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
    "npm_config_cafile",
];

/// Options of `guard run`.
#[derive(Debug, Default, Clone)]
pub(crate) struct Options(Vec<String>);

impl Options {
    /// A policy on top of `strict` with these hosts; every name below `.test` of these leads to this machine.
    pub(crate) fn hosts(environment: &TestEnvironment, allow: &[&str], names: &[&str]) -> Self {
        Self::policy(environment, allow, names, "")
    }

    /// The same with more sections.
    pub(crate) fn policy(environment: &TestEnvironment, allow: &[&str], names: &[&str], more: &str) -> Self {
        let pins: Vec<String> = names.iter().map(|name| format!("{name:?} = \"127.0.0.1\"")).collect();
        let text = format!(
            "version = 1\nname = \"network-test\"\nextends = \"strict\"\n\n[network]\noverride = true\nallow = {allow:?}\n\
             resolve = {{ {} }}\n\n{more}",
            pins.join(", ")
        );
        let path = environment.temporary_directory().join("policy.toml");
        std::fs::write(&path, text).unwrap();
        Self::default().and(&["--policy", path.to_str().unwrap()])
    }

    pub(crate) fn and(mut self, words: &[&str]) -> Self {
        self.0.extend(words.iter().map(|word| (*word).to_string()));
        self
    }

    /// Every client inside believes this authority.
    pub(crate) fn believing(self, environment: &TestEnvironment, authority: &Authority) -> Self {
        let path = environment.temporary_directory().join("authority.pem");
        std::fs::write(&path, authority.pem()).unwrap();
        let mut options = self.and(&["--read", path.to_str().unwrap()]);
        for name in AUTHORITY_VARIABLES {
            options = options.and(&["--env", &format!("{name}={}", path.display())]);
        }
        options
    }

    /// With the probes of the tests to be read.
    pub(crate) fn probing(self) -> Self {
        self.and(&["--read", probe("").to_str().unwrap()])
    }

    pub(crate) fn words(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// A script of `fixtures/probes`.
pub(crate) fn probe(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/probes").join(name)
}

/// The events of one kind that a run's transcript has.
pub(crate) fn events(outcome: &RunOutcome, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(outcome.transcript()).unwrap_or_default();
    let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|event| event["event_type"] == kind).collect()
}

/// The row of a host in a run's result; `null` when it was never asked for.
pub(crate) fn row(outcome: &RunOutcome, host: &str) -> Value {
    let rows = outcome.result["network"].as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["host"] == host).unwrap_or_default()
}
