//! A request to run a command, and the values that guard derives from the request alone: limits and private
//! directories.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;

use super::checkout::Checkout;
use crate::judge::policy::{Budget, Config, Namespaces, Policy};
use crate::run::launch::lifecycle::home_state::HomeState;

/// A request to run a command in the sandbox.
#[derive(Debug, Clone)]
pub struct RunRequest {
    pub command: Vec<OsString>,
    /// The absolute path of the working directory.
    pub folder: PathBuf,
    /// The policy to apply, already validated and merged with the policies that it extends.
    pub policy: Policy,
    /// The caller's environment. The agent gets the variables that the policy passes.
    pub environment: Vec<(OsString, OsString)>,
    /// The caller's home directory.
    pub home: Option<PathBuf>,
    /// The directory that contains the directories of all runs.
    pub runs: PathBuf,
    /// The directory in which guard creates the temporary directories of runs.
    pub scratch: PathBuf,
    /// The effective user id of the caller.
    pub uid: u32,
    pub options: Options,
    pub checkout: Option<Checkout>,
    /// The user's `config.toml`.
    pub config: Config,
    /// The directory that contains the user's configuration and policies.
    pub config_dir: Option<PathBuf>,
    /// The names of the variables with API keys, which guard has removed from `environment`.
    pub key_variables: Vec<String>,
}

impl RunRequest {
    /// Returns the run's limits: those of the policy, changed by the caller's options. The memory limit is at most
    /// three quarters of the machine's memory.
    pub(crate) fn limits(&self) -> Limits {
        let get = |key: &str| self.policy.limits.get(key).and_then(|value| u64::try_from(value).ok());
        // If a user is at the terminal, the policy's time limits do not apply. 0 means no limit.
        let time = |requested: Option<u64>, key: &str| {
            let of_policy = if self.options.is_attended { None } else { get(key) };
            requested.or(of_policy).filter(|&seconds| seconds > 0)
        };
        Limits {
            idle_seconds: time(self.options.idle_seconds, "idle_seconds"),
            total_seconds: time(self.options.total_seconds, "total_seconds"),
            processes: get("processes"),
            open_files: get("open_files"),
            memory_mib: get("memory_mib").map(|mib| mib.min(max_memory_mib())),
            file_mib: get("file_mib"),
            output_mib: get("output_mib"),
        }
    }

    /// Returns the paths of the private directories of the run with this id. Does not create them.
    pub(crate) fn run_paths(&self, run_id: &str) -> RunPaths {
        let run_folder = self.runs.join(run_id);
        let home = run_folder.join("home");
        let tmp = self.scratch.join(format!("guard-{}", short_id(run_id))).join("tmp");
        RunPaths { run_folder, home, tmp }
    }

    /// Returns whether to use namespaces. The caller's option overrides the policy.
    pub(crate) fn wanted_namespaces(&self) -> Namespaces {
        self.options.namespaces.unwrap_or(self.policy.sandbox.namespaces)
    }
}

/// Returns the maximum memory of any run: three quarters of the machine's memory, so that the machine stays usable. If
/// guard cannot find out how much memory the machine has, there is no maximum.
fn max_memory_mib() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};
    let get = |variable| sysconf(variable).ok().flatten().and_then(|value| u64::try_from(value).ok());
    match (get(SysconfVar::_PHYS_PAGES), get(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(size)) => (pages.saturating_mul(size) >> 20) / 4 * 3,
        _ => u64::MAX,
    }
}

/// The paths of a run's private directories.
#[derive(Debug, Clone)]
pub(crate) struct RunPaths {
    /// The run's directory, which contains the transcript and the private home directory.
    pub(crate) run_folder: PathBuf,
    pub(crate) home: PathBuf,
    /// The private directory for temporary files. Its parent directory is only for this run, and other users cannot
    /// enter it.
    pub(crate) tmp: PathBuf,
}

impl RunPaths {
    /// Returns the directory that guard mounts at `/var/tmp` if the run has a mount namespace.
    pub(crate) fn var_tmp(&self) -> PathBuf {
        self.tmp.with_file_name("var")
    }
}

/// The changes that a caller makes to the policy for one run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether the run uses namespaces; `None` to follow the policy.
    pub namespaces: Option<Namespaces>,
    /// Paths that the run may read, in addition to those of the policy.
    pub read: Vec<PathBuf>,
    /// Paths that the run may write, in addition to those of the policy.
    pub write: Vec<PathBuf>,
    /// Environment variables to set for the agent: (name, value).
    pub set: Vec<(OsString, OsString)>,
    /// True to ignore the toolchains in the user's home directory.
    pub no_toolchains: bool,
    pub no_shims: bool,
    /// Overrides the policy's idle limit, in seconds; 0 means no limit.
    pub idle_seconds: Option<u64>,
    /// Overrides the policy's total limit, in seconds; 0 means no limit.
    pub total_seconds: Option<u64>,
    /// True if a person at the terminal can end the run. The policy's time limits then do not apply.
    pub is_attended: bool,
    /// Hosts that the run may reach, in addition to those of the policy.
    pub hosts: Vec<String>,
    /// Loopback ports on which the run's servers may listen, in addition to those of the policy.
    pub listen: Vec<u16>,
    /// Network presets that apply in addition to those of the policy.
    pub presets: Vec<String>,
    pub home_state: HomeState,
    /// Files that guard writes into the private home directory, replacing existing ones: (path relative to the home
    /// directory, content). In the content, guard replaces `{NAME-port}` by the port of the gateway NAME, and
    /// `{directory}` by the path of the working tree, escaped as inside a double-quoted string.
    pub home_files: Vec<(PathBuf, String)>,
    /// A budget for model requests. For each of its limits, guard applies the smaller of this limit and the policy's.
    pub budget: Budget,
    /// True to start the run even if guard cannot protect the git repositories that the run may write. guard then
    /// only reports changes to these repositories.
    pub allow_unprotected_repositories: bool,
    /// True if the run works in a worktree that the user made, and not guard.
    pub is_users_worktree: bool,
    /// True to skip the verification of programs after the kernel has loaded them, whatever the policy says. For
    /// benchmarks.
    pub no_verify: bool,
}

/// The limits of a run. `None` means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The maximum number of seconds without output, a new program, network traffic or CPU use.
    pub idle_seconds: Option<u64>,
    /// The maximum number of seconds from the start of the run to its end.
    pub total_seconds: Option<u64>,
    /// The maximum number of processes and threads that the run may have at the same time.
    pub processes: Option<u64>,
    /// The maximum number of files that one process may have open.
    pub open_files: Option<u64>,
    /// The maximum memory of all processes of the run together, in MiB.
    pub memory_mib: Option<u64>,
    /// The largest file that the run may write, in MiB.
    pub file_mib: Option<u64>,
    /// The maximum amount of output that the transcript keeps, in MiB.
    pub output_mib: Option<u64>,
}

/// Returns the last 12 characters of a run's id. They differ even between runs that start at the same time.
fn short_id(run_id: &str) -> &str {
    run_id.get(run_id.len().saturating_sub(12)..).unwrap_or(run_id)
}
