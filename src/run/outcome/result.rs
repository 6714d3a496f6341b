//! The result of a run, as `guard run --json` prints it. The doc comments here become the descriptions in the
//! published JSON schema.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changed_files::Change;
use super::error_kind::ErrorKind;

/// The result of a run: the output of `guard run --json`, the last line of `--stream-json`, and the data of the
/// transcript's last event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// Whether the command exited by itself with code 0. For an agent, its output must also report success.
    pub success: bool,
    /// The name of the program or agent that ran.
    pub tool: String,
    /// The id of the session, with which a later request can continue it; the run's id if the tool has no sessions.
    #[serde(rename = "SESSION_ID")]
    pub session_id: String,
    /// For an agent, its answer. For any other command, the last MiB of its standard output or terminal output.
    pub result: String,
    /// Whether the beginning of the output was cut off from `result`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    /// The duration as text, for example `1m30s`.
    pub duration: String,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// A short error message; absent if the run succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The kind of error: `idle_timeout`, `timeout`, `command_not_found`, `upstream_error`, `invalid_input`,
    /// `config_error`, `auth_error`, `rate_limited`, `turn_limit`, `sandbox_unavailable`, `policy_denied`, `cancelled`,
    /// `receive_refused`, `boundary_broken`, `budget_exhausted`, `memory_exhausted`, `record_full`, `session_lost`,
    /// `session_busy`, `worktree_lost`, `worktree_busy`, `busy`, `internal`. Later versions may add kinds. Absent if
    /// the run succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// The complete error message, and the circumstances of the error; absent if the run succeeded, or if guard could
    /// not write the transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_detail: Option<ErrorDetail>,
    /// The id of the run, an opaque text. `guard log` accepts it.
    pub run_id: String,
    /// The name of the policy in force.
    pub policy: String,
    /// The kernel mechanisms that enforced the policy.
    pub enforcement: Enforcement,
    /// The command's exit code; 128 plus the signal number if a signal ended the command; null if it never ran.
    pub exit_code: Option<i32>,
    /// The number of the signal that ended the command; absent if no signal did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Commits of the run that guard transferred into the repository, oldest first.
    pub commits: Vec<Commit>,
    /// The worktree that the run worked in; absent if the run had none, for example outside of a git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Worktree>,
    /// Files that the run created, changed or deleted. In a worktree that guard created: all files that differ from the
    /// commit where the run began, committed or not, but not ignored files.
    pub files_changed: Vec<Change>,
    /// Whether `files_changed` is incomplete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_changed_truncated: bool,
    /// The snapshot of the directory from before the run, with which `guard undo` brings back what the run changed; absent
    /// if the run worked in a worktree that guard created, if it could write nothing, or if snapshots are switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotReport>,
    /// Actions that the policy denied. After 1,000 entries, further denials are only counted by rule.
    pub denials: Vec<Denial>,
    /// Suspicious changes that a reviewer should check.
    pub findings: Vec<Finding>,
    /// Network traffic and denied connections, by host.
    #[serde(default)]
    pub network: Vec<HostTraffic>,
    /// Files of the agent's private home that an earlier run left for this one, and that this run leaves for later ones,
    /// such as conversations; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_files: Option<KeptFiles>,
    /// Resources that the run used.
    pub usage: Usage,
    /// Where the transcript of the run is stored.
    pub transcript: TranscriptPlace,
}

/// The snapshot that guard took of a directory before a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotReport {
    /// Whether `guard undo` can undo changes of the run.
    pub taken: bool,
    /// The number of files in the snapshot.
    pub files: usize,
    /// The number of bytes that guard copied for it. Files that the last snapshot or the repository's objects contain
    /// are not copied.
    pub copied_bytes: u64,
    /// The number of files that the snapshot does not contain, because they are too large or unreadable.
    pub not_covered: usize,
    /// What the snapshot does not contain, and how to change that; or why guard could not take one.
    pub notes: Vec<String>,
}

/// Files that runs hand on to later runs. An agent has written them, and a later agent reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptFiles {
    /// Files of earlier runs that guard copied into the private home before this run, relative to the home.
    pub from_earlier: Vec<String>,
    /// New and changed files of this run that guard saved for later runs, relative to the home.
    pub for_later: Vec<String>,
    /// The number of further files that the lists, with at most 100 files each, leave out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

/// A commit that the run made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commit {
    /// The commit's hash.
    pub id: String,
    /// The author, as the commit states it.
    pub author: String,
    /// The first line of the commit message.
    pub subject: String,
}

/// The worktree of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worktree {
    /// The path of the worktree, even if guard has removed the worktree.
    pub path: String,
    /// The branch checked out in the worktree.
    pub branch: String,
    /// The commit where the run began.
    pub base: String,
    /// The commit the branch points to now.
    pub tip: String,
    /// Whether the worktree and the branch still exist. guard removes them if they contain nothing new, or on request.
    pub kept: bool,
    /// Paths with uncommitted changes.
    pub uncommitted: Vec<String>,
    /// Other refs that the run created, changed or deleted in its private repository. guard does not transfer them.
    pub other_refs: Vec<OtherRef>,
    /// The number of further refs that `other_refs` does not list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_refs_left_out: usize,
    /// Refs under which guard saved commits and uncommitted work before it removed the worktree.
    pub saved: Vec<String>,
    /// Whether commits, other refs, a stash or git-lfs objects exist only in the run's private repository. The command
    /// `guard worktree receive` transfers the commits of the branch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreceived: bool,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A ref that the run created, changed or deleted in its private repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherRef {
    /// The full name of the ref.
    pub name: String,
    /// The object that the ref points to; null if the ref was deleted or contains no object id.
    pub id: Option<String>,
}

/// A suspicious change that a reviewer should check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The kind of finding: `danger.…` is in the files or commits of the run, `repository.…` is a change of the user's
    /// repository during the run, `worktree.…` concerns the worktree itself.
    pub kind: String,
    /// A one-line description of the finding.
    pub message: String,
    /// The path of the file or directory that the finding is about; absent if it is about no single file or directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What the reviewer should do about the finding; absent if guard has no advice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
}

impl Finding {
    /// Creates a finding about the file or directory `path`, if there is one, without advice.
    pub fn new(kind: &str, message: String, path: Option<&Path>) -> Self {
        let path = path.map(|path| path.to_string_lossy().into_owned());
        Self { kind: kind.to_string(), message, path, instead: None }
    }
}

/// The complete error message, and the circumstances of the error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The complete error message.
    pub message: String,
    /// The command's exit code; null if there is none.
    pub exit_code: Option<i32>,
    /// The last lines of standard error, at most 20.
    pub last_lines: Vec<String>,
    /// The limit in force on time without activity, in seconds; null if there is none.
    pub idle_timeout_s: Option<u64>,
    /// The limit in force on the total duration, in seconds; null if there is none.
    pub max_duration_s: Option<u64>,
    /// How often guard retried the request.
    pub retries: u32,
    /// The number of seconds to wait before another attempt, if the model API reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The time from which another attempt can succeed (RFC 3339, UTC), if the model API reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    /// Why guard did not retry an error that may be temporary; absent for any other error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_retried: Option<String>,
}

/// The kernel mechanisms that enforced the policy of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enforcement {
    /// The Landlock ABI version in use; 0 if the run never started.
    pub landlock_abi: i32,
    /// Whether seccomp filtered system calls and notified the supervisor.
    pub seccomp: bool,
    /// Whether the supervisor verified with ptrace that the program in memory is the one that the policy allowed.
    pub verify_exec: bool,
    /// Whether the run had its own mount, PID and IPC namespaces.
    pub namespaces: bool,
    /// For each boundary of the run, the layers of the sandbox that enforced it. Each layer is sufficient on its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held_by: BTreeMap<String, Vec<String>>,
    /// Whether a cgroup limited memory.
    pub memory_bound: bool,
    /// Whether the number of processes was limited.
    pub process_bound: bool,
    /// What limited the number of processes: `cgroup`, `rlimit` (without namespaces it counts all processes of the
    /// user), or `supervisor` (for root without a cgroup). Absent if the number was not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bound_by: Option<String>,
    /// Limits of the policy that this machine could not enforce.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_in_force: Vec<LimitNotInForce>,
    /// Whether `git` and the shells on the run's PATH were guard's shims, which explain denials to the agent. Without
    /// shims the same actions are denied, and the supervisor writes the explanation to the program's standard error.
    #[serde(default)]
    pub shims: bool,
    /// Forbidden actions that guard tried inside the sandbox before it started the command. All of them failed, as
    /// required.
    pub canary: Vec<String>,
}

/// A limit of the policy that this machine could not enforce.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitNotInForce {
    /// The key of the limit in the policy's `[limits]` section.
    pub limit: String,
    /// Why the limit could not be enforced.
    pub reason: String,
}

/// An action that the policy denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// The event type: `deny.exec`, `deny.connect`, …
    pub kind: String,
    /// A one-line description of the denial.
    pub message: String,
    /// The denied command, connection or system call. Empty if the entry only counts further denials by a rule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// The id of the policy rule that denied the action.
    pub rule: String,
    /// The reason that the rule gives.
    pub reason: String,
    /// How often the action was denied.
    pub count: u64,
    /// The options of `guard run` that would have allowed the action; absent if no option can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_with: Option<String>,
}

/// The resources that a run used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// The number of programs that the run started.
    pub programs: u64,
    /// The number of actions that the policy denied.
    pub refusals: u64,
    /// CPU time of all processes, in milliseconds.
    pub cpu_ms: u64,
    /// The largest resident set of one process, in KiB.
    pub max_rss_kib: u64,
    /// Use of model APIs, measured by guard's gateway; absent if the run used no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelUsage>,
}

/// Use of model APIs, measured by guard's gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelUsage {
    /// The number of requests that use tokens.
    pub requests: u64,
    /// The number of requests that guard rejected because a budget was used up.
    pub refused: u64,
    /// The number of input tokens.
    pub input_tokens: u64,
    /// The number of output tokens.
    pub output_tokens: u64,
    /// The number of input tokens that the API read from its cache.
    pub cached_tokens: u64,
    /// The number of responses that reported no token count. guard estimated their tokens from their length.
    pub estimated: u64,
    /// The cost according to the prices in `config.toml`; 0 if it has no prices.
    pub cost: f64,
}

/// Network traffic with one host and port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostTraffic {
    /// The host as the program named it.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The number of connections.
    pub connections: u64,
    /// The number of HTTP requests that guard could see: those over plain HTTP and through gateways.
    pub requests: u64,
    /// The number of connections and requests that guard denied.
    pub refused: u64,
    /// The number of bytes sent to the host.
    pub bytes_up: u64,
    /// The number of bytes received from the host.
    pub bytes_down: u64,
}

/// Where the transcript of a run is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptPlace {
    /// The path of the transcript file.
    pub path: String,
    /// The hash of the transcript's last line, for `guard verify --head`; null in the copy inside the transcript.
    pub head: Option<String>,
}

/// Formats a duration as minutes and seconds, for example `1m30s` or `0m5s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}m{}s", seconds / 60, seconds % 60)
}
