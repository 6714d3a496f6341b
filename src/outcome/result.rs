//! The shape of a result.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changed_files::Change;
use super::error_kind::ErrorKind;

/// `guard run --json`, the last line of `--stream-json`, and the data of a transcript's last event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// The command ended by itself with exit code 0; of an agent, its output also reports success.
    pub success: bool,
    /// The name of the program, or of the agent.
    pub tool: String,
    /// The session that a later request can continue; the run's id if the tool has no sessions.
    #[serde(rename = "SESSION_ID")]
    pub session_id: String,
    /// The last MiB of standard output (or of the terminal); of an agent, its answer.
    pub result: String,
    /// The beginning of `result` is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    /// The duration: `1m30s`.
    pub duration: String,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The error, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What went wrong, in a word: `idle_timeout`, `timeout`, `command_not_found`, `upstream_error`, `invalid_input`,
    /// `config_error`, `sandbox_unavailable`, `policy_denied`, `cancelled`, `receive_refused`, `boundary_broken`,
    /// `budget_exhausted`, `memory_exhausted`, `record_full`, `internal`. More may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// Details of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_detail: Option<ErrorDetail>,
    /// The run's id; opaque.
    pub run_id: String,
    /// The policy's name.
    pub policy: String,
    /// What enforced the policy.
    pub enforcement: Enforcement,
    /// The command's exit code; 128 plus the signal's number if a signal ended it; null if it never ran.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Commits that guard received into the repository, oldest first.
    pub commits: Vec<Commit>,
    /// The run's worktree, in a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Worktree>,
    /// Files that the run created or changed, relative to the working directory. In a repository: files that differ from the
    /// commit where the run began, committed or not, deleted ones included; ignored files are not listed.
    pub files_changed: Vec<Change>,
    /// Not all changed files are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_changed_truncated: bool,
    /// What guard refused: at most 1,000 entries.
    pub denials: Vec<Denial>,
    /// What a reviewer should look at.
    pub findings: Vec<Finding>,
    /// Traffic and refusals by host.
    #[serde(default)]
    pub network: Vec<HostTraffic>,
    /// Resources used.
    pub usage: Usage,
    /// The transcript of the run.
    pub transcript: TranscriptPlace,
}

/// A commit of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commit {
    /// The commit's hash.
    pub id: String,
    /// The author, as the commit states it.
    pub author: String,
    /// The first line of its message.
    pub subject: String,
}

/// The worktree of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worktree {
    /// Its path, also after it was removed.
    pub path: String,
    /// Its branch.
    pub branch: String,
    /// The commit where the run began.
    pub base: String,
    /// The commit the branch points to now.
    pub tip: String,
    /// Worktree and branch still exist. Otherwise they held nothing new, or were discarded on request.
    pub kept: bool,
    /// Paths with uncommitted work.
    pub uncommitted: Vec<String>,
    /// Other refs that the run created or changed in its private repository. They are reported, not received.
    pub other_refs: Vec<OtherRef>,
    /// The number of other refs that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_refs_left_out: usize,
    /// Refs under which guard saved what it removed.
    pub saved: Vec<String>,
    /// Commits are still in the run's private repository; `guard worktree receive` tries again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreceived: bool,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A ref in the run's private repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherRef {
    /// Its name.
    pub name: String,
    /// The object it points to; null if it was deleted or is not a plain ref.
    pub id: Option<String>,
}

/// Something a reviewer should look at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The kind: `danger.…` is in the run's work, `repository.…` is a change of the repository during the run,
    /// `worktree.…` is about the worktree itself.
    pub kind: String,
    /// One line for people.
    pub message: String,
    /// The file concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Advice for the reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
}

impl Finding {
    /// A finding without advice.
    pub fn new(kind: &str, message: String, path: Option<&Path>) -> Self {
        let path = path.map(|path| path.to_string_lossy().into_owned());
        Self { kind: kind.to_string(), message, path, instead: None }
    }
}

/// Details of an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The whole message.
    pub message: String,
    /// The command's exit code.
    pub exit_code: Option<i32>,
    /// The last lines of standard error, at most 20.
    pub last_lines: Vec<String>,
    /// The idle limit in seconds.
    pub idle_timeout_s: Option<u64>,
    /// The total time limit in seconds.
    pub max_duration_s: Option<u64>,
    /// The number of retries.
    pub retries: u32,
    /// Seconds until a retry makes sense, if the API said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The time from which a retry makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    /// Why guard did not retry a temporary error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_retried: Option<String>,
}

/// What enforced the policy of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enforcement {
    /// The Landlock ABI version in use; 0 if the run never started.
    pub landlock_abi: i32,
    /// seccomp filtered system calls and notified the supervisor.
    pub seccomp: bool,
    /// The supervisor verified every program at its exec stop.
    pub verify_exec: bool,
    /// The run had its own mount, PID and IPC namespaces.
    pub namespaces: bool,
    /// A cgroup limited memory.
    pub memory_bound: bool,
    /// The number of processes was limited.
    pub process_bound: bool,
    /// What limited processes: `cgroup`, `rlimit` (without namespaces it counts all processes of the user), or `supervisor`
    /// (for root without a cgroup).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bound_by: Option<String>,
    /// Limits of the policy that could not be enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_in_force: Vec<LimitNotInForce>,
    /// `git` and the shells on the run's PATH were guard's shims, which explain refusals. Without them the same is refused,
    /// and the supervisor explains it on the program's standard error.
    #[serde(default)]
    pub shims: bool,
    /// Forbidden actions that guard tried before the start, and that failed as they must.
    pub canary: Vec<String>,
}

/// A limit of the policy that could not be enforced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitNotInForce {
    /// Its name in `[limits]`.
    pub limit: String,
    /// Why not.
    pub reason: String,
}

/// A refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// The event type: `deny.exec`, `deny.connect`, …
    pub kind: String,
    /// One line for people.
    pub message: String,
    /// What was refused: a command, a connection, a call. Empty where the refusals of a rule are only counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// The rule.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// How often this was refused.
    pub count: u64,
}

/// What a run used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// The number of programs started.
    pub programs: u64,
    /// The number of refusals.
    pub refusals: u64,
    /// CPU time of all processes, in milliseconds.
    pub cpu_ms: u64,
    /// The largest resident set of one process, in KiB.
    pub max_rss_kib: u64,
    /// Model usage through a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelUsage>,
}

/// Model usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelUsage {
    /// The number of requests that use tokens.
    pub requests: u64,
    /// The number of requests refused because a budget was used up.
    pub refused: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens that the API had cached.
    pub cached_tokens: u64,
    /// The number of answers without a token count; guard estimated theirs by length.
    pub estimated: u64,
    /// The cost by the prices in config.toml; 0 without prices.
    pub cost: f64,
}

/// Traffic of one host and port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostTraffic {
    /// The host as the program named it.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The number of connections.
    pub connections: u64,
    /// The number of visible requests: plain HTTP and gateways.
    pub requests: u64,
    /// The number of refusals.
    pub refused: u64,
    /// Bytes sent.
    pub bytes_up: u64,
    /// Bytes received.
    pub bytes_down: u64,
}

/// Where a transcript is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptPlace {
    /// The file.
    pub path: String,
    /// The hash of its last line, for `guard verify --head`; null inside the transcript itself.
    pub head: Option<String>,
}

/// `1m30s`; always with minutes.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}m{}s", seconds / 60, seconds % 60)
}
