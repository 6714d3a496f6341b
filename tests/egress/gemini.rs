// slow
//! Runs the real Gemini CLI without guard, to prove that it works with the scripted API.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http_server::{Authority, Request};
use crate::support::scripted_api::{Api, Part, Turn};
use crate::support::{Scratch, collect_outcome, skip};

/// The CLI that `scripts/setup` installs.
pub(crate) struct Gemini {
    program: PathBuf,
}

impl Gemini {
    /// Returns the installed CLI; otherwise skips the test.
    pub(crate) fn installed() -> Option<Self> {
        let program = Self::folder().join("node_modules/.bin/gemini");
        if !program.exists() {
            skip("the Gemini CLI", "it is not installed; scripts/setup installs it");
            return None;
        }
        Some(Self { program })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the directory of the package and its dependencies. A run needs read access to it.
    pub(crate) fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/gemini")
    }

    /// Returns settings with which the CLI asks no questions and connects only to the API.
    pub(crate) fn settings() -> Value {
        json!({
            "security": {
                "auth": {"selectedType": "gemini-api-key"},
                "environmentVariableRedaction": {"enabled": true},
            },
            "privacy": {"usageStatisticsEnabled": false},
            "telemetry": {"enabled": false},
            "hooksConfig": {"enabled": false},
            "mcp": {"allowed": ["none"]},
            "skills": {"enabled": false},
            "advanced": {"ignoreLocalEnv": true},
            "general": {
                "enableAutoUpdate": false,
                "enableAutoUpdateNotification": false,
                "maxAttempts": 1,
                "sessionRetention": {"enabled": false},
            },
        })
    }

    /// Writes the settings into a home directory.
    pub(crate) fn furnish(home: &Path) {
        std::fs::create_dir_all(home.join(".gemini")).unwrap();
        std::fs::write(home.join(".gemini/settings.json"), Self::settings().to_string()).unwrap();
    }

    /// Returns the variables for the CLI, without the address and the key of the API.
    pub(crate) fn environment() -> [(&'static str, &'static str); 4] {
        [
            ("TERM", "xterm-256color"),
            // The CLI must not start a sandbox of its own, because it is in one, and must not restart itself.
            ("SANDBOX", "guard"),
            ("GEMINI_SANDBOX", "false"),
            ("GEMINI_CLI_NO_RELAUNCH", "true"),
        ]
    }

    /// Returns the arguments for one prompt, with permission for every tool.
    pub(crate) fn arguments(prompt: &str) -> Vec<String> {
        let prompt = format!("--prompt={prompt}");
        let words = [
            &prompt,
            "--skip-trust",
            "--approval-mode",
            "yolo",
            "-o",
            "stream-json",
            "-m",
            "gemini-2.5-flash",
        ];
        words.map(str::to_string).to_vec()
    }

    /// Runs the CLI with one prompt without guard. The API is at `url`.
    fn bare(&self, directories: &GeminiDirectories, url: &str, prompt: &str) -> Session {
        let mut command = Command::new(self.program());
        command
            .args(Self::arguments(prompt))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin")))
            .env("HOME", directories.home())
            .env("TMPDIR", directories.0.0.join("tmp"))
            .env("LANG", "C.UTF-8")
            .envs(Self::environment())
            .env("GOOGLE_GEMINI_BASE_URL", url)
            .env("GEMINI_API_KEY", "dummy")
            .env("NO_PROXY", "127.0.0.1")
            .current_dir(directories.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if directories.authorities().exists() {
            command.env("NODE_EXTRA_CA_CERTS", directories.authorities());
        }
        let outcome = collect_outcome(command.spawn().unwrap(), b"", Instant::now());
        Session::new(outcome.code, &outcome.output, outcome.error, outcome.took)
    }
}

/// The output of a CLI session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) code: i32,
    /// The lines of the output that are JSON.
    pub(crate) events: Vec<Value>,
    pub(crate) error: String,
    pub(crate) took: Duration,
}

impl Session {
    pub(crate) fn new(code: i32, output: &[u8], error: String, took: Duration) -> Self {
        let lines = output.split(|&byte| byte == b'\n');
        let events = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        Self { code, events, error, took }
    }

    /// Returns the text of the model's answers.
    pub(crate) fn said(&self) -> String {
        let is_answer = |event: &&Value| event["type"] == "message" && event["role"] == "assistant";
        self.events.iter().filter(is_answer).filter_map(|event| event["content"].as_str()).collect()
    }

    /// Returns the final status that the CLI reports: `success` or `error`.
    pub(crate) fn status(&self) -> &str {
        let last = self.events.iter().rev().find(|event| event["type"] == "result");
        last.and_then(|event| event["status"].as_str()).unwrap_or_default()
    }
}

/// A home directory, a working directory, and a directory for temporary files.
struct GeminiDirectories(Scratch);

impl GeminiDirectories {
    fn new(name: &str) -> Self {
        let directories = Self(Scratch::new(&format!("gemini-{name}")));
        for folder in ["home", "tmp", "work"] {
            std::fs::create_dir_all(directories.0.0.join(folder)).unwrap();
        }
        Gemini::furnish(&directories.home());
        directories
    }

    fn home(&self) -> PathBuf {
        self.0.0.join("home")
    }

    fn folder(&self) -> PathBuf {
        self.0.0.join("work")
    }

    /// Returns the path of a file with trusted certificate authorities. The file may be missing.
    fn authorities(&self) -> PathBuf {
        self.0.0.join("authorities.pem")
    }
}

fn key(request: &Request) -> Option<&str> {
    request.header("x-goog-api-key")
}

#[test]
fn gemini_without_guard_uses_tools_of_the_scripted_api() {
    let Some(gemini) = Gemini::installed() else { return };
    let directories = GeminiDirectories::new("tools");
    let file = directories.folder().join("written");
    let api = Api::plain(vec![
        Turn::shell("n=42; echo from-the-${n}-shell | tee made"),
        Turn::write(file.to_str().unwrap(), "by the tool\n"),
        Turn::text("All done."),
    ]);
    let session = gemini.bare(&directories, &api.server.url(""), "do it");
    assert_eq!((session.code, session.status()), (0, "success"), "{session:?}");
    assert!(session.said().contains("All done."), "{session:?}");
    let made = std::fs::read_to_string(directories.folder().join("made"));
    assert_eq!(made.unwrap_or_default(), "from-the-42-shell\n", "{:?}", api.tool_results());
    assert_eq!(std::fs::read_to_string(file).unwrap(), "by the tool\n");
    let questions = api.questions();
    assert_eq!(questions.len(), 3, "{:?}", api.server.requests());
    assert!(questions.iter().all(|question| key(question) == Some("dummy")));
    let results = api.tool_results();
    assert_eq!(results.len(), 2, "{results:?}");
    assert!(results[0].1.to_string().contains("from-the-42-shell"), "{results:?}");
}

#[test]
fn gemini_without_guard_ends_on_quota_errors_and_cut_answers() {
    let Some(gemini) = Gemini::installed() else { return };
    let half = vec![Part::Text("Half".to_string())];
    for (name, turn) in [("quota", Turn::quota()), ("cut", Turn::Cut(half))] {
        let directories = GeminiDirectories::new(name);
        let api = Api::plain(vec![turn]);
        let session = gemini.bare(&directories, &api.server.url(""), "say something");
        assert_ne!((session.code, session.status()), (0, "success"), "{name}: {session:?}");
        assert!(!session.error.is_empty() && session.took < Duration::from_secs(300), "{name}: {session:?}");
        assert!(!api.questions().is_empty(), "{name}: {session:?}");
    }
}

#[test]
fn gemini_trusts_the_certificate_authority_of_the_test() {
    let Some(gemini) = Gemini::installed() else { return };
    let directories = GeminiDirectories::new("tls");
    let authority = Authority::new();
    std::fs::write(directories.authorities(), authority.pem()).unwrap();
    let words = ["Slow", "ly", " said."].map(|text| Part::Text(text.to_string())).to_vec();
    let turns = vec![Turn::Slow(Duration::from_millis(100), words)];
    let api = Api::tls(&authority, &["localhost", "127.0.0.1"], turns);
    let session = gemini.bare(&directories, &api.server.url(""), "say something");
    assert_eq!((session.code, session.status()), (0, "success"), "{session:?}");
    assert!(session.said().contains("Slowly said."), "{session:?}");
}
