//! `policies/syscalls.toml` → a seccomp program.
//!
//! Enters: the list of refused system calls, which is data that people review. Leaves: one program that refuses them and
//! asks the supervisor about others. A list that cannot be read is an error, never a filter that misses something.
//!
//! For x86_64 the program is made ahead of time and lies beside the list: reading the list takes longer than everything
//! else a run does before its first process. A program made from another list than this one is never used.

use std::collections::BTreeMap;

use libc::sock_filter;
use serde::Deserialize;

use super::SandboxError;
use super::program::{Action, Check, Condition, Otherwise, Treatment, program};
use crate::sys::calls;

/// The list, as it stands in `policies/`.
pub const LIST: &str = include_str!("../../policies/syscalls.toml");

/// The programs made from it ahead of time, as [`encode`] writes them; empty where there are none.
#[cfg(target_arch = "x86_64")]
const MADE: &[u8] = include_bytes!("../../policies/syscalls.x86_64.bin");
#[cfg(not(target_arch = "x86_64"))]
const MADE: &[u8] = &[];

/// What the list's text comes down to: says whether [`MADE`] was made from it. No protection, only a date stamp.
const LIST_STAMP: u64 = stamp(LIST.as_bytes());

const fn stamp(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The program of a run: `shared` when it shares its namespaces with the machine.
pub fn filter(shared: bool) -> Result<Vec<sock_filter>, SandboxError> {
    match made(shared) {
        Some(program) => Ok(program),
        None => compile(&read(LIST)?, shared),
    }
}

/// The same, asking the supervisor about every new process and thread too. Rarely needed, so it is not made ahead of time.
pub fn filter_with_forks(shared: bool) -> Result<Vec<sock_filter>, SandboxError> {
    let mut calls = notified(shared);
    for number in FORKS.iter().filter_map(|name| number_of(name)) {
        calls.entry(number).or_default().otherwise = Otherwise::Notify;
    }
    program(&treatments_of(&read(LIST)?, shared, calls)?)
}

/// Both programs as they are kept: the list's stamp, then each with its length in front, little-endian.
pub fn encode(own: &[sock_filter], shared: &[sock_filter]) -> Vec<u8> {
    let mut bytes = LIST_STAMP.to_le_bytes().to_vec();
    for program in [own, shared] {
        bytes.extend((program.len() as u64).to_le_bytes());
        for step in program {
            bytes.extend(step.code.to_le_bytes());
            bytes.extend([step.jt, step.jf]);
            bytes.extend(step.k.to_le_bytes());
        }
    }
    bytes
}

/// A program made ahead of time, if it was made from this list.
fn made(shared: bool) -> Option<Vec<sock_filter>> {
    let (stamp, mut rest) = MADE.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*stamp) != LIST_STAMP {
        return None;
    }
    let mut take = || {
        let (length, steps) = rest.split_first_chunk::<8>()?;
        let (steps, behind) =
            steps.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()? * 8)?;
        rest = behind;
        Some(steps)
    };
    let own = take()?;
    let steps = if shared { take()? } else { own };
    let step = |bytes: &[u8]| sock_filter {
        code: u16::from_le_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    Some(steps.chunks_exact(8).map(step).collect())
}

/// One entry of the list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Calls by name.
    pub calls: Vec<String>,
    /// Conditions that must all hold.
    #[serde(default)]
    pub when: Vec<String>,
    /// What the calls fail with; EPERM unless given.
    pub errno: Option<String>,
    /// Only without namespaces of the run's own.
    pub only: Option<String>,
    /// Why.
    pub reason: String,
    /// The supervisor decides about these calls, by what they are about to change.
    #[serde(skip)]
    pub asks_supervisor: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    deny: Vec<Entry>,
    #[serde(default)]
    ask: Vec<Entry>,
}

/// Reads a list.
pub fn read(text: &str) -> Result<Vec<Entry>, SandboxError> {
    let File { mut deny, ask } =
        toml::from_str(text).map_err(|error| SandboxError::Filter(error.to_string()))?;
    for entry in ask {
        if entry.errno.is_some() || entry.when.is_empty() {
            let calls = entry.calls.join("`, `");
            return Err(SandboxError::Filter(format!("`{calls}`: `ask` needs `when` and takes no `errno`")));
        }
        // Behind everything that is refused: what is refused in any case needs no decision.
        deny.push(Entry { asks_supervisor: true, ..entry });
    }
    Ok(deny)
}

/// The program for a list: `shared` when the run shares its namespaces with the machine.
pub fn compile(entries: &[Entry], shared: bool) -> Result<Vec<sock_filter>, SandboxError> {
    program(&treatments(entries, shared)?)
}

/// What becomes of each call of a list, and of those the supervisor is asked about.
pub fn treatments(entries: &[Entry], shared: bool) -> Result<BTreeMap<u32, Treatment>, SandboxError> {
    treatments_of(entries, shared, notified(shared))
}

/// What a list adds to what is known of calls already.
fn treatments_of(
    entries: &[Entry],
    shared: bool,
    mut calls: BTreeMap<u32, Treatment>,
) -> Result<BTreeMap<u32, Treatment>, SandboxError> {
    for entry in entries {
        match entry.only.as_deref() {
            None => {}
            Some("shared") if shared => {}
            Some("shared") => continue,
            Some(other) => return Err(SandboxError::Filter(format!("unknown `only = \"{other}\"`"))),
        }
        let errno = errno(entry.errno.as_deref().unwrap_or("EPERM"))?;
        let action = if entry.asks_supervisor { Action::Notify } else { Action::Errno(errno) };
        let conditions = entry.when.iter().map(|text| condition(text)).collect::<Result<Vec<_>, _>>()?;
        for name in &entry.calls {
            let Some(number) = number_of(name) else {
                if calls::is_known(name) {
                    continue;
                }
                return Err(SandboxError::Filter(format!("unknown system call `{name}`")));
            };
            let treatment = calls.entry(number).or_default();
            if action == Action::Notify && treatment.otherwise == Otherwise::Notify {
                // Where the supervisor is asked about every call, a condition adds nothing.
            } else if !conditions.is_empty() {
                treatment.checks.push(Check { conditions: conditions.clone(), action });
            } else if treatment.otherwise == Otherwise::Allow {
                treatment.otherwise = Otherwise::Errno(errno);
            } else {
                return Err(SandboxError::Filter(format!("`{name}` is refused or notified twice")));
            }
        }
    }
    Ok(calls)
}

fn number_of(name: &str) -> Option<u32> {
    calls::number(name).and_then(|number| u32::try_from(number).ok())
}

fn errno(name: &str) -> Result<u32, SandboxError> {
    Ok(match name {
        "EPERM" => libc::EPERM,
        "ENOSYS" => libc::ENOSYS,
        "EAFNOSUPPORT" => libc::EAFNOSUPPORT,
        "EPROTONOSUPPORT" => libc::EPROTONOSUPPORT,
        "EOPNOTSUPP" => libc::EOPNOTSUPP,
        other => return Err(SandboxError::Filter(format!("unknown errno `{other}`"))),
    } as u32)
}

/// One condition: `ARGUMENT [& MASK] == VALUE…` or `ARGUMENT != VALUE`.
fn condition(text: &str) -> Result<Condition, SandboxError> {
    let bad = || SandboxError::Filter(format!("cannot read the condition `{text}`"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let (argument, mask, operator, values) = match words.as_slice() {
        [argument, "&", mask, operator, values @ ..] => {
            (*argument, number(mask).ok_or_else(bad)?, *operator, values)
        }
        [argument, operator, values @ ..] => (*argument, u32::MAX, *operator, values),
        _ => return Err(bad()),
    };
    let argument = argument.parse::<u8>().ok().filter(|&argument| argument < 6).ok_or_else(bad)?;
    let values = values.iter().map(|value| number(value)).collect::<Option<Vec<u32>>>().ok_or_else(bad)?;
    let negated = match (operator, values.as_slice()) {
        (_, []) => return Err(bad()),
        ("==", _) => false,
        ("!=", [_]) if mask == u32::MAX => true,
        _ => return Err(bad()),
    };
    Ok(Condition { argument, mask, values, negated })
}

fn number(text: &str) -> Option<u32> {
    if let Some(hex) = text.strip_prefix("0x") {
        u32::from_str_radix(hex, 16).ok()
    } else if let Some(octal) = text.strip_prefix("0o") {
        u32::from_str_radix(octal, 8).ok()
    } else {
        text.parse().ok()
    }
}

/// Calls that a helper which only reads and computes has no use for.
const SOCKETS: &[&str] =
    &["socket", "socketpair", "connect", "bind", "listen", "sendto", "sendmsg", "sendmmsg"];
const PROCESSES: &[&str] = &["fork", "vfork"];

/// The program for a helper without a supervisor, which has no sockets. `alone` when it may not start processes (threads are
/// its own matter), nor change the metadata of files, either: then what the list refuses in some case is refused in every
/// case.
pub fn offline(alone: bool) -> Result<Vec<sock_filter>, SandboxError> {
    // Refused for some arguments only, and no C library starts a program without them.
    let needed =
        ["prctl", "ioctl", "fcntl", "prlimit64", "openat", "open", "openat2", "creat", "personality"];
    let mut calls = treatments_of(&read(LIST)?, false, BTreeMap::new())?;
    let refused = Otherwise::Errno(libc::EPERM as u32);
    // Nobody is there to decide.
    for check in calls.values_mut().flat_map(|treatment| &mut treatment.checks) {
        if check.action == Action::Notify {
            check.action = Action::Errno(libc::EPERM as u32);
        }
    }
    if alone {
        let needed: Vec<u32> = needed.iter().filter_map(|name| number_of(name)).collect();
        for (_, treatment) in calls.iter_mut().filter(|(number, _)| !needed.contains(number)) {
            if treatment.otherwise == Otherwise::Allow {
                treatment.otherwise = refused;
            }
        }
    }
    if alone && let Some(number) = number_of("clone") {
        // What is no thread. `clone3` is refused by the list: its arguments cannot be looked at.
        let values = vec![0];
        let condition = Condition { argument: 0, mask: libc::CLONE_THREAD as u32, values, negated: false };
        let action = Action::Errno(libc::EPERM as u32);
        let check = Check { conditions: vec![condition], action };
        let treatment = calls.entry(number).or_default();
        treatment.checks.insert(0, check);
        treatment.otherwise = Otherwise::Allow;
    }
    let metadata = METADATA.iter().chain(PROCESSES).filter(|_| alone);
    for number in SOCKETS.iter().chain(metadata).filter_map(|name| number_of(name)) {
        let treatment = calls.entry(number).or_default();
        if treatment.otherwise == Otherwise::Allow {
            treatment.otherwise = refused;
        }
    }
    program(&calls)
}

/// Calls the supervisor is asked about.
const ALWAYS_ASKED: &[&str] = &["execve", "execveat", "connect", "bind", "listen", "inotify_add_watch"];

/// Calls that make a process or a thread. (`clone3` is refused.)
pub const FORKS: &[&str] = &["clone", "fork", "vfork"];

/// Calls that change what Landlock does not cover; without a mount namespace the supervisor makes them itself.
pub const METADATA: &[&str] = &[
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
];

/// Calls on a process by its number: its own (0) is free, others are asked about.
pub const ON_PROCESSES: &[(&str, u8)] = &[
    ("prlimit64", 0),
    ("setpriority", 1),
    ("sched_setaffinity", 0),
    ("sched_setscheduler", 0),
    ("sched_setparam", 0),
    ("sched_setattr", 0),
    ("ioprio_set", 1),
];

/// The calls to be notified of: `shared` when the run shares its namespaces with the machine.
fn notified(shared: bool) -> BTreeMap<u32, Treatment> {
    let treatment = |otherwise| Treatment { checks: Vec::new(), otherwise };
    let always = |name: &&str| Some((number_of(name)?, treatment(Otherwise::Notify)));
    let mut calls: BTreeMap<u32, Treatment> = ALWAYS_ASKED.iter().filter_map(always).collect();
    if shared {
        calls.extend(METADATA.iter().filter_map(always));
        calls.extend(ON_PROCESSES.iter().filter_map(|&(name, argument)| {
            Some((number_of(name)?, treatment(Otherwise::NotifyUnlessZero(argument))))
        }));
    }
    calls
}
