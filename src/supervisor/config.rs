//! What the supervisor must know about a run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::lazy_resources::LazyResource;
use super::prompt::Ask;
use super::repo_scope::Repositories;
use crate::command::Context;
use crate::decide::NetworkRules;
use crate::egress::PeerRegistry;
use crate::policy::Policy;
use crate::transcript::Recorder;

/// Configuration of the supervisor for one run.
pub struct SupervisorConfig {
    /// The policy that judges every request.
    pub policy: Arc<Policy>,
    /// What the judgement of every command needs to know about the run: working tree, home directory.
    pub context: Context,
    /// Receives an event for every decision.
    pub recorder: Recorder,
    /// Directories the run may write below.
    pub writable: Vec<PathBuf>,
    /// Paths the run was granted read access to.
    pub readable: Vec<PathBuf>,
    /// Object directories of the user's repository, which the run can only read.
    pub objects: Vec<PathBuf>,
    /// Finds out whether a git command uses the task's repository or another one.
    pub repositories: Arc<Repositories>,
    /// Whether the run has its own mount namespace.
    pub has_mount_namespace: bool,
    /// Whether to check every program a second time at its ptrace exec stop.
    pub verify: bool,
    /// Whether programs of the run may listen on any loopback port and connect to each other there.
    pub loopback: bool,
    /// Loopback ports that programs of the run may listen on even without `loopback`.
    pub listen: Vec<u16>,
    /// The egress listeners, and the connections that the supervisor has announced to them.
    pub peer_registry: Arc<PeerRegistry>,
    /// Network rules for programs without proxy support.
    pub rules: Arc<NetworkRules>,
    /// Path of the control socket that shims connect to.
    pub control: PathBuf,
    /// The shim executable; `None` if the run has no shims.
    pub shim: Option<PathBuf>,
    /// Process id of the run's init process.
    pub init_pid: i32,
    /// Loopback port to which the canary tries to connect before the agent starts. The connect must be denied.
    pub canary_port: u16,
    /// Asks the user about `ask` verdicts; without it they are denials.
    pub asker: Option<Box<dyn Ask>>,
    /// Incremented at every exec, so that guard does not end a busy run as idle.
    pub activity: Arc<AtomicU64>,
    /// Resources that are created when a program first needs them.
    pub lazy_resources: Vec<LazyResource>,
    /// Checks from outside, at the first exec, that the sandbox works. If it returns false, every exec is denied.
    pub proof: Option<Box<dyn FnOnce() -> bool + Send>>,
    /// Limit on processes and threads, if neither a cgroup nor an rlimit enforces it.
    pub process_limit: Option<u64>,
}
