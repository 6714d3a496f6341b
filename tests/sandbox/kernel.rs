// slow
//! The kernel must refuse namespaces, mounts, keys, io_uring and other ABIs to a run. These calls have no effect
//! outside that a test could check, so it checks the errno; without guard the kernel gives a different answer.

use super::{Boundary, Report, was_killed};
use crate::support::{SandboxFixture, SandboxUser};

const REFUSED: &[i32] = &[libc::EPERM, libc::ENOSYS];

fn given(_: &SandboxFixture, (): &mut (), report: &Report) -> bool {
    report.succeeded()
}

/// Checks that the sandbox refuses the call that `kernel.py` makes with these arguments. Without guard the call must
/// succeed (as the user `bare`, if given), unless this kernel grants it to nobody.
fn holds(arguments: &[&str], bare: Option<SandboxUser>) {
    let boundary = Boundary::new("kernel.py", arguments).refused_with(REFUSED);
    let boundary = match bare {
        Some(user) => boundary.bare_only(user),
        None => boundary,
    };
    let boundary = match (bare, Boundary::is_known_as("kernel.py", arguments, bare)) {
        (_, true) => boundary,
        (_, false) => boundary.no_bare("this kernel gives it to nobody"),
    };
    boundary.check(|_| (), given);
}

#[test]
fn namespaces_cannot_be_created_or_joined() {
    // NEWUSER, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET, NEWTIME
    let flags =
        ["0x10000000", "0x20000", "0x2000000", "0x4000000", "0x8000000", "0x20000000", "0x40000000", "0x80"];
    for flag in flags {
        holds(&["unshare", flag], Some(SandboxUser::Root));
        // For `clone`, the value of NEWTIME is part of the signal number.
        if flag != "0x80" {
            holds(&["clone", flag], Some(SandboxUser::Root));
            holds(&["clone3", flag], Some(SandboxUser::Root));
        }
    }
    for kind in ["net", "uts", "ipc", "mnt", "cgroup"] {
        holds(&["setns", kind], Some(SandboxUser::Root));
    }
}

/// Two processes that share their working directory (CLONE_FS) keep sharing it after an exec. One of them could change
/// the directory of a program that the supervisor has judged by its directory, such as git.
#[test]
fn clone_fs_is_denied() {
    holds(&["clone", "0x200"], None);
}

#[test]
fn mount_calls_are_denied() {
    for arguments in [&["open-tree"][..], &["open-tree-attributes"], &["fsopen"], &["chroot"]] {
        holds(arguments, Some(SandboxUser::Root));
    }
    // Without guard these calls would change this machine, so the test only checks that the sandbox refuses them.
    for attack in ["mount", "bind-mount", "umount", "mount-attributes", "pivot-root"] {
        Boundary::new("kernel.py", &[attack])
            .no_bare("it would change this machine")
            .refused_with(REFUSED)
            .check(|_| (), given);
    }
}

#[test]
fn io_uring_bpf_perf_userfaultfd_and_fanotify_are_denied() {
    holds(&["ring"], None);
    holds(&["bpf"], Some(SandboxUser::Root));
    holds(&["perf"], Some(SandboxUser::Root));
    holds(&["userfault"], Some(SandboxUser::Root));
    holds(&["fanotify"], Some(SandboxUser::Root));
}

#[test]
fn keyring_calls_are_denied() {
    for attack in ["join-session", "describe-keys", "add-key"] {
        holds(&[attack], None);
    }
    // No such key exists. Without guard the kernel searches for it and returns ENOKEY.
    Boundary::new("kernel.py", &["request-key"])
        .refused_with(REFUSED)
        .check(|_| (), |_, (), report| report.errno() == Some(i64::from(libc::ENOKEY)));
}

/// A run must not open a file with access mode 3, which is neither reading nor writing. Landlock does not check such an
/// open, and before ABI 5 the descriptor allows every ioctl of the device.
#[test]
fn open_with_access_mode_3_is_refused() {
    holds(&["open-for-ioctls", "/dev/null"], None);
}

#[test]
fn open_by_handle_at_is_denied() {
    holds(&["handle", "/etc/passwd"], None);
    holds(&["by-handle", "/etc/passwd"], Some(SandboxUser::Root));
    Boundary::new("kernel.py", &["forged-handle"])
        .no_bare("only some file systems have that number")
        .refused_with(REFUSED)
        .check(|_| (), given);
}

#[test]
fn other_personalities_are_denied() {
    // READ_IMPLIES_EXEC, ADDR_COMPAT_LAYOUT, and PER_LINUX32 with MMAP_PAGE_ZERO
    for value in ["0x400000", "0x200000", "0x100008"] {
        holds(&["personality", value], None);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn system_calls_of_other_architectures_end_the_process() {
    let has_i386 = Boundary::is_known_as("kernel.py", &["i386"], Some(SandboxUser::Ordinary));
    let i386 = Boundary::new("kernel.py", &["i386"]).may_be_killed();
    let i386 = if has_i386 { i386 } else { i386.no_bare("this kernel does not run i386 calls") };
    // The boundary is broken if the probe survived or could report anything.
    i386.check(|_| (), |_, (), report| report.said.is_some() || !was_killed(report));
    Boundary::new("kernel.py", &["x32"])
        .may_be_killed()
        .check(|_| (), |_, (), report| report.said.is_some() || !was_killed(report));
}

#[test]
fn tiocsti_is_denied() {
    let legacy =
        std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").unwrap_or_else(|_| "1".to_string());
    let boundary = Boundary::new("kernel.py", &["type-in", "-"]);
    let boundary = if legacy.trim() == "1" { boundary } else { boundary.bare_only(SandboxUser::Root) };
    boundary.check(|_| (), given);
    // TIOCLINUX, TIOCCONS, TIOCSETD: the filter refuses them by their number, before the terminal driver sees them.
    for request in ["0x541c", "0x541d", "0x5423"] {
        Boundary::new("kernel.py", &["terminal", request])
            .no_bare("a pseudo terminal does not have it")
            .check(|_| (), given);
    }
}
