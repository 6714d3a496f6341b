//! Options that the network tests give to a run, and ways to read its result.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::http_server::Authority;
use crate::support::{RunOutcome, TestEnvironment};

/// The variables by which clients find their trusted certificate authorities.
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
    /// Returns options for a policy that extends `strict` and allows these hosts. `names` are host names that resolve
    /// to this machine.
    pub(crate) fn hosts(environment: &TestEnvironment, allow: &[&str], names: &[&str]) -> Self {
        Self::policy(environment, allow, names, "")
    }

    /// Returns options for a policy that extends `strict`, allows these hosts, and contains the sections `more`.
    /// `names` are host names that resolve to this machine.
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

    /// Adds the options that make every client in the run trust this certificate authority.
    pub(crate) fn believing(self, environment: &TestEnvironment, authority: &Authority) -> Self {
        let path = environment.temporary_directory().join("authority.pem");
        std::fs::write(&path, authority.pem()).unwrap();
        let mut options = self.and(&["--read", path.to_str().unwrap()]);
        for name in AUTHORITY_VARIABLES {
            options = options.and(&["--env", &format!("{name}={}", path.display())]);
        }
        options
    }

    /// Adds the option that lets the run read the probes (the scripts in `fixtures/probes`).
    pub(crate) fn probing(self) -> Self {
        self.and(&["--read", probe("").to_str().unwrap()])
    }

    pub(crate) fn words(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// Returns the path of a script in `fixtures/probes`.
pub(crate) fn probe(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/probes").join(name)
}

/// Returns the events of one type in a run's transcript.
pub(crate) fn events(outcome: &RunOutcome, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(outcome.transcript()).unwrap_or_default();
    let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|event| event["event_type"] == kind).collect()
}

/// Returns the row of a host in a run's result; `null` if the run never requested the host.
pub(crate) fn row(outcome: &RunOutcome, host: &str) -> Value {
    let rows = outcome.result["network"].as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["host"] == host).unwrap_or_default()
}
