//! Probes what this kernel supports, and compares it with what a policy needs.
//!
//! The probe asks the kernel for each feature instead of comparing release numbers. It changes nothing in this
//! process: namespaces are tried in a child.

use serde::Serialize;

use super::mounts::{MountPlan, enter, part};
use crate::policy::{Namespaces, Policy};
use crate::sys::{process, seccomp};

/// One probed kernel feature.
#[derive(Debug, Clone, Serialize)]
pub struct Ability {
    /// The feature's name.
    pub name: &'static str,
    /// Whether the kernel has it.
    pub present: bool,
    /// What the probe found.
    pub found: String,
    /// What guard uses it for.
    pub purpose: &'static str,
    /// How to enable it, if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<&'static str>,
}

/// The features of this kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Kernel {
    /// The kernel release.
    pub release: String,
    /// The Landlock ABI version; 0 if there is none.
    pub landlock: i32,
    /// Whether a supervisor can answer system calls, without the repeated notifications that signals cause.
    pub listener: bool,
    /// Whether programs can be stopped at their exec (Yama's ptrace_scope 2 and 3 prevent it).
    pub tracing: bool,
    /// Whether user, mount, PID and IPC namespaces and the mounts in them work; otherwise the reason.
    pub namespaces: Result<(), String>,
}

/// Something a policy needs that this kernel lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Need {
    /// What is missing.
    pub missing: String,
    /// How to fix it.
    pub fix: String,
}

/// First Landlock ABI with TCP rules. Before it, programs could open connections that the supervisor never sees.
const LANDLOCK_TCP: i32 = 4;
/// First Landlock ABI with signal scopes.
const LANDLOCK_SCOPES: i32 = 6;

/// Probes the kernel. Tries namespaces in a child process.
pub fn probe() -> Kernel {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Kernel { release: release.trim().to_string(), namespaces: try_namespaces(), ..quick_probe() }
}

/// Probes only what needs no child process; namespaces are assumed to work.
pub fn quick_probe() -> Kernel {
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let yama = yama.and_then(|text| text.trim().parse::<i32>().ok()).unwrap_or(0);
    Kernel {
        release: String::new(),
        landlock: super::landlock_version(),
        listener: seccomp::listener_is_supported(),
        tracing: yama < 2 || process::may_administrate() && yama < 3,
        namespaces: Ok(()),
    }
}

/// The namespace flags for a run, and the user and group ids to map if they include a user namespace.
pub fn namespace_flags() -> (i32, Option<(u32, u32)>) {
    let plain = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    if process::may_administrate() {
        return (plain, None);
    }
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    (plain | libc::CLONE_NEWUSER, Some((uid, gid)))
}

fn try_namespaces() -> Result<(), String> {
    let (flags, user) = namespace_flags();
    let (reader, writer) = nix::unistd::pipe().map_err(|error| error.to_string())?;
    let pid = process::fork(flags).map_err(|error| format!("clone: {error}"))?;
    if pid == 0 {
        process::run_child(|| {
            let problem = part(user).and_then(|apart| enter(apart, &MountPlan::default())).err();
            let problem = problem.map(|error| error.to_string()).unwrap_or_default();
            let _ = nix::unistd::write(&writer, problem.as_bytes());
            process::exit_now(0)
        });
    }
    drop(writer);
    let mut problem = String::new();
    let _ = std::io::Read::read_to_string(&mut std::fs::File::from(reader), &mut problem);
    let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
    if problem.is_empty() { Ok(()) } else { Err(problem) }
}

impl Kernel {
    /// Every probed feature, for display.
    pub fn abilities(&self) -> Vec<Ability> {
        let landlock = |least: i32| self.landlock >= least;
        vec![
            Ability {
                name: "landlock",
                present: landlock(LANDLOCK_TCP),
                found: format!("ABI {}", self.landlock),
                purpose: "the boundary: files by path, TCP",
                fix: (!landlock(LANDLOCK_TCP))
                    .then_some("use Linux 6.7 or newer with `landlock` in the `lsm=` boot parameter"),
            },
            Ability {
                name: "landlock-scopes",
                present: landlock(LANDLOCK_SCOPES),
                found: if landlock(LANDLOCK_SCOPES) { "signals, abstract sockets" } else { "none" }.to_string(),
                purpose: "no signals to processes outside; needed where namespaces are unavailable",
                fix: (!landlock(LANDLOCK_SCOPES)).then_some("use Linux 6.12 or newer, or allow user namespaces"),
            },
            Ability {
                name: "seccomp-notification",
                present: self.listener,
                found: if self.listener { "with WAIT_KILLABLE_RECV" } else { "none" }.to_string(),
                purpose: "every program start, connect and bind reaches the supervisor",
                fix: (!self.listener).then_some("use Linux 5.19 or newer; leave another sandbox that has a listener"),
            },
            Ability {
                name: "exec-verification",
                present: self.tracing,
                found: if self.tracing { "ptrace of own descendants" } else { "ptrace forbidden" }.to_string(),
                purpose: "a program is looked at again when it has started",
                fix: (!self.tracing).then_some("set kernel.yama.ptrace_scope to 1 or 0"),
            },
            Ability {
                name: "namespaces",
                present: self.namespaces.is_ok(),
                found: match &self.namespaces {
                    Ok(()) => "user, mount, PID, IPC".to_string(),
                    Err(problem) => problem.clone(),
                },
                purpose: "private /tmp, read-only rest, hidden home, no foreign processes; optional",
                fix: self.namespaces.is_err().then_some(
                    "allow unprivileged user namespaces (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); runs work without",
                ),
            },
        ]
    }

    /// What prevents a policy from being enforced here; empty if nothing does.
    pub fn missing_for(&self, policy: &Policy, namespaces: Namespaces) -> Vec<Need> {
        let mut missing = Vec::new();
        let mut need = |is_there: bool, missing_thing: &str, fix: &str| {
            if !is_there {
                missing.push(Need { missing: missing_thing.to_string(), fix: fix.to_string() });
            }
        };
        need(
            self.landlock >= LANDLOCK_TCP,
            "Landlock with TCP rules (ABI 4)",
            "use Linux 6.7 or newer with `landlock` in the `lsm=` boot parameter",
        );
        need(
            self.listener,
            "seccomp user notification with WAIT_KILLABLE_RECV",
            "use Linux 5.19 or newer, and start guard outside other sandboxes",
        );
        let own_processes = self.namespaces.is_ok() && namespaces != Namespaces::Off;
        need(
            self.landlock >= LANDLOCK_SCOPES || own_processes,
            "a way to keep signals inside (Landlock ABI 6, or a PID namespace)",
            "use Linux 6.12 or newer, or allow user namespaces",
        );
        need(
            self.tracing || !policy.sandbox.verify_exec,
            "verification of program starts (ptrace of own descendants)",
            "set kernel.yama.ptrace_scope to 1, or `verify_exec = false` in a policy of your own",
        );
        need(
            self.namespaces.is_ok() || namespaces != Namespaces::Require,
            "user, mount, PID and IPC namespaces",
            "allow unprivileged user namespaces, or use `namespaces = \"auto\"`",
        );
        missing
    }
}
