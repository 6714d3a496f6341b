//! Probes which features this kernel supports, and compares them with those that a policy needs.
//!
//! The probe asks the kernel for each feature or tries to use it, instead of comparing kernel release numbers. It
//! changes nothing in this process: it tries namespaces in a child process.

use serde::Serialize;

use super::boundaries::{LANDLOCK_RENAMES, LANDLOCK_SCOPES, held_boundaries};
use super::mounts::{MountPlan, apply_mount_plan, prepare_mounts};
use crate::judge::policy::{Namespaces, Policy};
use crate::sys::{process, seccomp};

/// A kernel feature that guard has probed, in a form for users.
#[derive(Debug, Clone, Serialize)]
pub struct Ability {
    /// The feature's name in messages to users.
    pub name: &'static str,
    pub present: bool,
    /// What the probe found, such as a version or an error.
    pub found: String,
    pub purpose: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<&'static str>,
}

/// The results of probing this kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Kernel {
    /// The kernel release, as `uname -r` prints it.
    pub release: String,
    /// The Landlock ABI version; 0 if Landlock is missing or disabled.
    pub landlock: i32,
    /// True if the kernel supports seccomp notifications with `WAIT_KILLABLE_RECV`. Without that flag, a signal to a
    /// waiting process makes its system call start again, with a second notification.
    pub listener: bool,
    /// True if guard may trace its descendants, to stop a program at its exec. Yama's ptrace_scope 3 prevents that, and
    /// ptrace_scope 2 prevents it if guard lacks CAP_SYS_ADMIN.
    pub tracing: bool,
    /// `Ok` if user, mount, PID and IPC namespaces work, including mounts inside them; otherwise the error.
    pub namespaces: Result<(), String>,
}

/// A feature that a policy needs but this kernel lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The missing feature, as a part of an error message.
    pub missing: String,
    /// What the user can do to get the feature.
    pub fix: String,
}

const LANDLOCK_FIX: &str = "use Linux 5.19 or newer with `landlock` in the `lsm=` boot parameter";

/// Probes every kernel feature that guard uses. Tries namespaces in a child process.
pub fn probe() -> Kernel {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Kernel { release: release.trim().to_string(), namespaces: try_namespaces(), ..quick_probe() }
}

/// Probes the kernel features that can be probed without a child process. Assumes that namespaces work, and leaves
/// the kernel release empty.
pub fn quick_probe() -> Kernel {
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let yama = yama.and_then(|text| text.trim().parse::<i32>().ok()).unwrap_or(0);
    Kernel {
        release: String::new(),
        landlock: super::landlock_version(),
        listener: seccomp::listener_is_supported(),
        tracing: yama < 2 || process::has_cap_sys_admin() && yama < 3,
        namespaces: Ok(()),
    }
}

/// Returns the `CLONE_NEW*` flags for the namespaces of a run. If the flags include a user namespace, also returns
/// the user and group id to map.
pub fn namespace_flags() -> (i32, Option<(u32, u32)>) {
    let plain = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    if process::has_cap_sys_admin() {
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
            let problem = prepare_mounts(user)
                .and_then(|prepared| apply_mount_plan(prepared, &MountPlan::default()))
                .err();
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
    /// Returns every probed feature, for `guard doctor`.
    pub fn abilities(&self) -> Vec<Ability> {
        let landlock = |least: i32| self.landlock >= least;
        vec![
            Ability {
                name: "landlock",
                present: landlock(LANDLOCK_RENAMES),
                found: format!("ABI {}", self.landlock),
                purpose: "restricts the run to granted files",
                fix: (!landlock(LANDLOCK_RENAMES)).then_some(LANDLOCK_FIX),
            },
            Ability {
                name: "landlock-scopes",
                present: landlock(LANDLOCK_SCOPES),
                found: if landlock(LANDLOCK_SCOPES) { "signals, abstract sockets" } else { "none" }.to_string(),
                purpose: "keeps the run from signalling processes outside; required if namespaces are unavailable",
                fix: (!landlock(LANDLOCK_SCOPES)).then_some("use Linux 6.12 or newer, or allow user namespaces"),
            },
            Ability {
                name: "seccomp-notification",
                present: self.listener,
                found: if self.listener { "with WAIT_KILLABLE_RECV" } else { "none" }.to_string(),
                purpose: "sends every program start, connect and bind to the supervisor",
                fix: (!self.listener).then_some("use Linux 5.19 or newer, and start guard outside other sandboxes"),
            },
            Ability {
                name: "exec-verification",
                present: self.tracing,
                found: if self.tracing { "ptrace of own descendants" } else { "ptrace forbidden" }.to_string(),
                purpose: "checks every program a second time after its exec",
                fix: (!self.tracing).then_some("set kernel.yama.ptrace_scope to 1 or 0"),
            },
            Ability {
                name: "namespaces",
                present: self.namespaces.is_ok(),
                found: match &self.namespaces {
                    Ok(()) => "user, mount, PID, IPC".to_string(),
                    Err(problem) => problem.clone(),
                },
                purpose: if landlock(LANDLOCK_SCOPES) {
                    "private /tmp, read-only system, hidden home directory, no view of other processes; optional"
                } else {
                    "private /tmp, read-only system, hidden home directory, no view of other processes; required before Linux 6.12"
                },
                fix: self.namespaces.is_err().then_some(if landlock(LANDLOCK_SCOPES) {
                    "allow unprivileged user namespaces (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); runs also work without namespaces"
                } else {
                    "allow unprivileged user namespaces (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
                }),
            },
        ]
    }

    /// Returns the features that this kernel lacks to enforce a policy; empty if it has all of them.
    pub fn missing_for(&self, policy: &Policy, namespaces: Namespaces) -> Vec<Need> {
        let mut missing = Vec::new();
        let mut need = |is_present: bool, missing_thing: &str, fix: &str| {
            if !is_present {
                missing.push(Need { missing: missing_thing.to_string(), fix: fix.to_string() });
            }
        };
        need(self.landlock >= LANDLOCK_RENAMES, "Landlock (ABI 2)", LANDLOCK_FIX);
        need(
            self.listener,
            "seccomp user notification with WAIT_KILLABLE_RECV",
            "use Linux 5.19 or newer, and start guard outside other sandboxes",
        );
        let has_namespaces = self.namespaces.is_ok() && namespaces != Namespaces::Off;
        if let Some(unheld) = unheld_boundaries(self.landlock, has_namespaces) {
            need(false, &unheld, NAMESPACES_FIX);
        }
        need(
            self.tracing || !policy.sandbox.verify_exec,
            "verification of program starts (ptrace of guard's descendants)",
            "set kernel.yama.ptrace_scope to 1 or 0, or set `verify_exec = false` in your own policy",
        );
        need(
            self.namespaces.is_ok() || namespaces != Namespaces::Require,
            "user, mount, PID and IPC namespaces",
            "allow unprivileged user namespaces, or use `namespaces = \"auto\"`",
        );
        missing
    }
}

/// The hint to users whose Landlock version is too old to enforce every boundary of a run.
pub const NAMESPACES_FIX: &str = "use Linux 6.12 or newer, or allow user namespaces";

/// Describes the kernel features that are missing to enforce every boundary of a run; `None` if some layer of the
/// sandbox enforces each boundary.
pub fn unheld_boundaries(landlock: i32, has_namespaces: bool) -> Option<String> {
    let boundaries = held_boundaries(landlock, has_namespaces);
    let unheld = boundaries.iter().filter(|boundary| boundary.held_by.is_empty());
    let unheld: Vec<&str> = unheld.map(|boundary| boundary.name).collect();
    (!unheld.is_empty()).then(|| {
        format!(
            "Landlock ABI {LANDLOCK_SCOPES}, or namespaces, to restrict {} (this kernel has Landlock ABI {landlock})",
            unheld.join(" and ").replace('-', " ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::policy::{PolicyDirs, load};

    fn missing(landlock: i32, namespaces: Result<(), String>, wanted: Namespaces) -> String {
        let kernel = Kernel { release: String::new(), landlock, listener: true, tracing: true, namespaces };
        let policy = load("strict", &PolicyDirs::default()).expect("a built-in policy");
        let missing = kernel.missing_for(&policy, wanted);
        missing.iter().map(|need| format!("{}\n", need.missing)).collect()
    }

    #[test]
    fn an_older_landlock_is_sufficient_with_namespaces() {
        for landlock in [2, 3, 4, 5] {
            assert_eq!(missing(landlock, Ok(()), Namespaces::Auto), "", "ABI {landlock}");
            let without = missing(landlock, Err("forbidden".to_string()), Namespaces::Auto);
            assert!(without.contains("namespaces") && without.contains("signals"), "{without}");
            assert_eq!(missing(landlock, Ok(()), Namespaces::Off), without);
        }
        assert!(missing(2, Ok(()), Namespaces::Off).contains("file truncation and signals"));
        assert_eq!(missing(6, Err("forbidden".to_string()), Namespaces::Auto), "");
    }

    #[test]
    fn a_kernel_without_landlock_or_with_its_first_version_is_not() {
        for landlock in [0, 1] {
            assert!(missing(landlock, Ok(()), Namespaces::Auto).contains("Landlock (ABI 2)"));
        }
    }
}
