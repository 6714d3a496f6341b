//! The shape of a result.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changes::Change;
use super::error_kind::ErrorKind;

/// `guard run --json`, the last line of `--stream-json`, and the data of a transcript's last event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// The command ended by itself with code 0.
    pub success: bool,
    /// The program that ran, by its name.
    pub tool: String,
    /// The session to go on with; the run's id where the tool has no sessions of its own.
    #[serde(rename = "SESSION_ID")]
    pub session_id: String,
    /// What it printed on standard output (or on its terminal): the last MiB of it.
    pub result: String,
    /// The beginning of `result` is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    /// How long it took: `1m30s`.
    pub duration: String,
    /// The same in milliseconds.
    pub duration_ms: u64,
    /// What went wrong, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What went wrong, in a word: `idle_timeout`, `timeout`, `command_not_found`, `upstream_error`, `invalid_input`,
    /// `config_error`, `sandbox_unavailable`, `policy_denied`, `cancelled`, `receive_refused`, `boundary_broken`,
    /// `budget_exhausted`, `memory_exhausted`, `record_full`, `internal`. More may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// What is known about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_detail: Option<ErrorDetail>,
    /// The run; opaque.
    pub run_id: String,
    /// The policy's name.
    pub policy: String,
    /// What held the run.
    pub enforcement: Enforcement,
    /// The command's own code; 128 and the signal's number when one ended it; null when it never ran.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Commits that were received, the oldest first.
    pub commits: Vec<Commit>,
    /// The worktree the run had, in a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Worktree>,
    /// Files in the working folder that the run made or changed, relative to it. In a repository: files that are not as in
    /// the commit the run began at, committed or not, and not ignored; those that are gone among them.
    pub files_changed: Vec<Change>,
    /// There are more changed files than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_changed_truncated: bool,
    /// What was refused: the first thousand.
    pub denials: Vec<Denial>,
    /// What a reviewer should look at.
    pub findings: Vec<Finding>,
    /// Who was talked to, and who was not, through guard.
    #[serde(default)]
    pub network: Vec<HostTraffic>,
    /// What it used.
    pub usage: Usage,
    /// Where everything is written down.
    pub transcript: TranscriptPlace,
}

/// A commit of the run's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commit {
    /// Its name.
    pub id: String,
    /// Who it says made it.
    pub author: String,
    /// The first line of its message.
    pub subject: String,
}

/// The worktree of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worktree {
    /// Where it is, or was.
    pub path: String,
    /// Its branch.
    pub branch: String,
    /// The commit the run began at.
    pub base: String,
    /// The commit the branch is at now.
    pub tip: String,
    /// Worktree and branch are there; otherwise there was nothing new in them, or they were to be discarded.
    pub kept: bool,
    /// Paths with work that is not committed.
    pub uncommitted: Vec<String>,
    /// Refs that the run made or changed in its private repository: told, not taken.
    pub other_refs: Vec<OtherRef>,
    /// How many more there are than are listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_refs_left_out: usize,
    /// Refs that keep what was removed.
    pub saved: Vec<String>,
    /// Commits or refs are still in the run's private repository: `guard worktree receive` tries again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreceived: bool,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A ref of the run's private repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherRef {
    /// Its name.
    pub name: String,
    /// What it names; null when it is gone, or no plain ref.
    pub id: Option<String>,
}

/// Something a reviewer should look at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What kind of thing: `danger.…` waits in the work, `repository.changed` was done by others meanwhile,
    /// `worktree.foreign` lay where it does not belong.
    pub kind: String,
    /// One line for people.
    pub message: String,
    /// The file, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What to do about it.
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

/// What is known about a failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The whole message.
    pub message: String,
    /// The command's code, if it had one.
    pub exit_code: Option<i32>,
    /// The last lines it printed, at most 20.
    pub last_lines: Vec<String>,
    /// The idle limit in force.
    pub idle_timeout_s: Option<u64>,
    /// The total limit in force.
    pub max_duration_s: Option<u64>,
    /// Retries made.
    pub retries: u32,
    /// After so many seconds it is worth another try, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The same as a point in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    /// Why a failure that may pass was not tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_retried: Option<String>,
}

/// What held the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enforcement {
    /// The version of Landlock that was applied; 0 when the run never started.
    pub landlock_abi: i32,
    /// System calls were filtered and notified.
    pub seccomp: bool,
    /// Programs were looked at again when they had started.
    pub verify_exec: bool,
    /// The run had user, mount, PID and IPC namespaces of its own.
    pub namespaces: bool,
    /// Memory was bounded by a control group.
    pub memory_bound: bool,
    /// The number of processes was bounded.
    pub process_bound: bool,
    /// What bounded it: `cgroup`, `rlimit` (which without namespaces counts everything of the user on the machine), or
    /// `supervisor` (for root without a cgroup).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bound_by: Option<String>,
    /// Limits of the policy that were not in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_in_force: Vec<LimitNotInForce>,
    /// `git` and the shells on the run's PATH were guard's shims, which say why something is refused. Without them it is
    /// refused all the same, and the supervisor says why on the program's standard error.
    #[serde(default)]
    pub shims: bool,
    /// What was tried before the start and refused, as it must be.
    pub canary: Vec<String>,
}

/// A limit of the policy that nothing could hold the run to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitNotInForce {
    /// Its name in `[limits]`.
    pub limit: String,
    /// Why not.
    pub reason: String,
}

/// Something that was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// The kind of event: `deny.exec`, `deny.connect`, …
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
    /// How often the same was refused.
    pub count: u64,
}

/// What a run used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Programs started.
    pub programs: u64,
    /// Refusals, all of them.
    pub refusals: u64,
    /// Processor time of everything that ran, in milliseconds.
    pub cpu_ms: u64,
    /// The largest memory of one process, in KiB.
    pub max_rss_kib: u64,
    /// What was used of models, through a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelUsage>,
}

/// What was used of models.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelUsage {
    /// Requests that use tokens.
    pub requests: u64,
    /// Requests that were refused because a budget was used up.
    pub refused: u64,
    /// Tokens of the questions.
    pub input_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// Tokens of the questions that were cached.
    pub cached_tokens: u64,
    /// Answers that did not say what they took; theirs is a guess by their length.
    pub estimated: u64,
    /// By the prices in the user's configuration; 0 without any.
    pub cost: f64,
}

/// What went to and from one host and port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostTraffic {
    /// As it was asked for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Connections that were made.
    pub connections: u64,
    /// Requests that could be seen.
    pub requests: u64,
    /// Refusals.
    pub refused: u64,
    /// Sent.
    pub bytes_up: u64,
    /// Received.
    pub bytes_down: u64,
}

/// Where everything is written down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptPlace {
    /// The file.
    pub path: String,
    /// The hash of its last line, to compare with later; null inside the transcript itself.
    pub head: Option<String>,
}

/// `1m30s`; always with minutes.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}m{}s", seconds / 60, seconds % 60)
}
