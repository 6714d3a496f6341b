//! Maps the names of system calls that the seccomp filters use to their numbers on this architecture.

use libc::c_long;

/// The number of `setxattrat`, which the libc crate does not define yet. It is the same on every architecture.
pub const SETXATTRAT: c_long = 463;
/// The number of `removexattrat`, which the libc crate does not define yet. It is the same on every architecture.
pub const REMOVEXATTRAT: c_long = 466;
const OPEN_TREE_ATTR: c_long = 467;
const FILE_SETATTR: c_long = 469;
const LSM_SET_SELF_ATTR: c_long = 460;

/// Returns the number of a system call; `None` if this architecture does not have the call, or the name is unknown.
pub fn number(name: &str) -> Option<c_long> {
    TABLE.iter().find(|(known, _)| *known == name).map(|&(_, number)| number)
}

/// Returns true if a system call of this name exists on a supported architecture. guard uses this to find misspelt
/// names in `policies/syscalls.toml`.
pub fn is_known(name: &str) -> bool {
    number(name).is_some() || ELSEWHERE.contains(&name)
}

macro_rules! table {
    ($($name:literal $constant:ident),* $(,)?) => { &[$(($name, libc::$constant)),*] };
}

#[cfg(target_arch = "x86_64")]
const LEGACY: &[(&str, c_long)] = table![
    "chmod" SYS_chmod, "chown" SYS_chown, "lchown" SYS_lchown, "utime" SYS_utime, "utimes" SYS_utimes,
    "futimesat" SYS_futimesat, "iopl" SYS_iopl, "ioperm" SYS_ioperm, "modify_ldt" SYS_modify_ldt,
    "open" SYS_open, "creat" SYS_creat, "mknod" SYS_mknod, "uselib" SYS_uselib, "ustat" SYS_ustat, "sysfs" SYS_sysfs, "_sysctl" SYS__sysctl, "nfsservctl" SYS_nfsservctl,
    "fork" SYS_fork, "vfork" SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[(&str, c_long)] = &[];

/// The names of system calls that exist only on some of the supported architectures.
const ELSEWHERE: &[&str] = &[
    "chmod",
    "chown",
    "lchown",
    "utime",
    "utimes",
    "futimesat",
    "iopl",
    "ioperm",
    "modify_ldt",
    "open",
    "creat",
    "mknod",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
    "nfsservctl",
    "fork",
    "vfork",
];

const COMMON: &[(&str, c_long)] = table![
    "execve" SYS_execve, "execveat" SYS_execveat, "connect" SYS_connect, "bind" SYS_bind, "listen" SYS_listen,
    "fchmod" SYS_fchmod, "fchmodat" SYS_fchmodat, "fchmodat2" SYS_fchmodat2, "fchown" SYS_fchown,
    "fchownat" SYS_fchownat, "utimensat" SYS_utimensat, "setxattr" SYS_setxattr, "lsetxattr" SYS_lsetxattr,
    "fsetxattr" SYS_fsetxattr, "removexattr" SYS_removexattr, "lremovexattr" SYS_lremovexattr,
    "fremovexattr" SYS_fremovexattr, "ptrace" SYS_ptrace, "process_vm_readv" SYS_process_vm_readv,
    "process_vm_writev" SYS_process_vm_writev, "process_madvise" SYS_process_madvise, "kcmp" SYS_kcmp,
    "pidfd_getfd" SYS_pidfd_getfd, "mount" SYS_mount, "umount2" SYS_umount2, "pivot_root" SYS_pivot_root,
    "chroot" SYS_chroot, "move_mount" SYS_move_mount, "open_tree" SYS_open_tree, "fsopen" SYS_fsopen,
    "fsconfig" SYS_fsconfig, "fsmount" SYS_fsmount, "fspick" SYS_fspick, "mount_setattr" SYS_mount_setattr,
    "swapon" SYS_swapon, "swapoff" SYS_swapoff, "quotactl" SYS_quotactl, "quotactl_fd" SYS_quotactl_fd,
    "unshare" SYS_unshare, "setns" SYS_setns, "clone" SYS_clone, "clone3" SYS_clone3, "bpf" SYS_bpf,
    "perf_event_open" SYS_perf_event_open, "userfaultfd" SYS_userfaultfd, "io_uring_setup" SYS_io_uring_setup,
    "io_uring_enter" SYS_io_uring_enter, "io_uring_register" SYS_io_uring_register, "keyctl" SYS_keyctl,
    "add_key" SYS_add_key, "request_key" SYS_request_key, "init_module" SYS_init_module,
    "finit_module" SYS_finit_module, "delete_module" SYS_delete_module, "kexec_load" SYS_kexec_load,
    "kexec_file_load" SYS_kexec_file_load, "reboot" SYS_reboot, "settimeofday" SYS_settimeofday,
    "clock_settime" SYS_clock_settime, "clock_adjtime" SYS_clock_adjtime, "adjtimex" SYS_adjtimex,
    "acct" SYS_acct, "syslog" SYS_syslog, "vhangup" SYS_vhangup, "sethostname" SYS_sethostname,
    "setdomainname" SYS_setdomainname, "open_by_handle_at" SYS_open_by_handle_at,
    "name_to_handle_at" SYS_name_to_handle_at, "fanotify_init" SYS_fanotify_init, "move_pages" SYS_move_pages,
    "migrate_pages" SYS_migrate_pages, "personality" SYS_personality, "prctl" SYS_prctl, "ioctl" SYS_ioctl,
    "socket" SYS_socket, "socketpair" SYS_socketpair, "sendto" SYS_sendto, "sendmsg" SYS_sendmsg,
    "sendmmsg" SYS_sendmmsg, "prlimit64" SYS_prlimit64, "setpriority" SYS_setpriority,
    "sched_setaffinity" SYS_sched_setaffinity, "sched_setscheduler" SYS_sched_setscheduler,
    "sched_setparam" SYS_sched_setparam, "sched_setattr" SYS_sched_setattr, "ioprio_set" SYS_ioprio_set,
    "shmget" SYS_shmget, "shmat" SYS_shmat, "shmctl" SYS_shmctl, "semget" SYS_semget, "semop" SYS_semop,
    "semctl" SYS_semctl, "semtimedop" SYS_semtimedop, "msgget" SYS_msgget, "msgsnd" SYS_msgsnd,
    "msgrcv" SYS_msgrcv, "msgctl" SYS_msgctl, "mq_open" SYS_mq_open, "mq_unlink" SYS_mq_unlink,
    "setsockopt" SYS_setsockopt, "openat" SYS_openat, "openat2" SYS_openat2, "mknodat" SYS_mknodat, "lookup_dcookie" SYS_lookup_dcookie,
    "fcntl" SYS_fcntl, "inotify_add_watch" SYS_inotify_add_watch, "truncate" SYS_truncate,
];

const NEWER: &[(&str, c_long)] = &[
    ("setxattrat", SETXATTRAT),
    ("removexattrat", REMOVEXATTRAT),
    ("open_tree_attr", OPEN_TREE_ATTR),
    ("file_setattr", FILE_SETATTR),
    ("lsm_set_self_attr", LSM_SET_SELF_ATTR),
];

static TABLE: std::sync::LazyLock<Vec<(&'static str, c_long)>> =
    std::sync::LazyLock::new(|| [COMMON, LEGACY, NEWER].concat());
