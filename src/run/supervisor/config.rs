//! The configuration of the supervisor.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::lazy_resources::LazyResource;
use super::question::Ask;
use super::repo_scope::Repositories;
use crate::judge::command::Context;
use crate::judge::decide::NetworkRules;
use crate::judge::policy::Policy;
use crate::run::egress::PeerRegistry;
use crate::run::transcript::Recorder;

pub struct SupervisorConfig {
    pub policy: Arc<Policy>,
    /// Facts about the run that the supervisor needs to judge a command, such as the working tree and the home
    /// directory.
    pub context: Context,
    /// Receives an event for every decision.
    pub recorder: Recorder,
    /// Files and directories that the run may write, with symbolic links resolved.
    pub writable: Vec<PathBuf>,
    /// The paths of all grants of the run. The supervisor allows inotify watches only at and below them.
    pub readable: Vec<PathBuf>,
    /// Paths outside the worktree that the run may read but not write, among them the git object directories of the
    /// user's repository.
    pub objects: Vec<PathBuf>,
    /// Finds out whether a git command uses the repository that the run works on, or a different one.
    pub repositories: Arc<Repositories>,
    pub has_mount_namespace: bool,
    /// Whether to check every program a second time at its ptrace exec stop.
    pub verify: bool,
    /// Whether programs of the run may listen on any loopback port and connect to each other there.
    pub loopback: bool,
    /// Loopback ports that programs of the run may listen on even without `loopback`.
    pub listen: Vec<u16>,
    /// The ports of guard's proxy and gateways. The supervisor registers here which connections to them come from the
    /// run.
    pub peer_registry: Arc<PeerRegistry>,
    /// The network rules by which the supervisor judges the connections of programs that do not use the proxy.
    pub rules: Arc<NetworkRules>,
    /// Path of the control socket that shims connect to.
    pub control: PathBuf,
    /// The shim executable; `None` if the run has no shims.
    pub shim: Option<PathBuf>,
    pub init_pid: i32,
    /// Loopback port to which guard's self-test (the canary) tries to connect before the agent starts. The supervisor
    /// must deny this connect.
    pub canary_port: u16,
    /// Asks the user about commands with an `ask` verdict. If it is `None`, the supervisor denies such commands.
    pub asker: Option<Box<dyn Ask>>,
    /// A counter that the supervisor increments at every exec, so that guard does not end a run as idle while it starts
    /// programs.
    pub activity: Arc<AtomicU64>,
    pub lazy_resources: Vec<LazyResource>,
    /// Checks from outside the sandbox that the sandbox works. The supervisor calls this at the first exec. If the
    /// result is false, the supervisor denies every exec.
    pub proof: Option<Box<dyn FnOnce() -> bool + Send>>,
    /// The maximum number of processes and threads, if the supervisor enforces it; `None` if a cgroup or an rlimit does
    /// that, or if there is no limit.
    pub process_limit: Option<u64>,
}
