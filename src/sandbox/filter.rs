//! `policies/syscalls.toml` → seccomp programs.
//!
//! Enters: the list of refused system calls, which is data that people review. Leaves: one program for the calls that are
//! refused or notified whatever their arguments, and one for each errno of those whose arguments are looked at. A list that cannot be read is an error, never a filter
//! that misses something.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::Deserialize;

use super::SandboxError;
use crate::sys::calls;
use crate::sys::seccomp::{self, Treatment};

/// The list, as it stands in `policies/`.
pub const LIST: &str = include_str!("../../policies/syscalls.toml");

/// One entry of the list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Calls by name.
    pub calls: Vec<String>,
    /// Conditions that must all hold.
    #[serde(default)]
    pub when: Vec<String>,
    /// What the calls fail with.
    #[serde(default = "Entry::default_errno")]
    pub errno: String,
    /// Only without namespaces of the run's own.
    pub only: Option<String>,
    /// Why.
    pub reason: String,
}

impl Entry {
    fn default_errno() -> String {
        "EPERM".to_string()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    deny: Vec<Entry>,
}

/// Reads a list.
pub fn read(text: &str) -> Result<Vec<Entry>, SandboxError> {
    let file: File = toml::from_str(text).map_err(|error| SandboxError::Filter(error.to_string()))?;
    Ok(file.deny)
}

/// The programs of a run.
#[derive(Clone)]
pub struct Filters {
    /// Checks of arguments, one program for each errno.
    pub checks: Vec<BpfProgram>,
    /// Whole calls: refused, or notified.
    pub calls: Vec<libc::sock_filter>,
}

/// The programs for a list: `shared` when the run shares its namespaces with the machine.
pub fn compile(entries: &[Entry], shared: bool) -> Result<Filters, SandboxError> {
    let mut by_errno: BTreeMap<u32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
    let mut whole = notified(shared);
    for entry in entries {
        match entry.only.as_deref() {
            None => {}
            Some("shared") if shared => {}
            Some("shared") => continue,
            Some(other) => return Err(SandboxError::Filter(format!("unknown `only = \"{other}\"`"))),
        }
        let errno = errno(&entry.errno)?;
        let rules = alternatives(&entry.when)?;
        for name in &entry.calls {
            let Some(number) = calls::number(name) else {
                if calls::is_known(name) {
                    continue;
                }
                return Err(SandboxError::Filter(format!("unknown system call `{name}`")));
            };
            if !rules.is_empty() {
                by_errno.entry(errno).or_default().entry(number).or_default().extend(rules.iter().cloned());
            } else if whole.iter().any(|(known, _)| *known == number) {
                return Err(SandboxError::Filter(format!("`{name}` is refused or notified twice")));
            } else {
                whole.push((number, Treatment::Errno(errno as i32)));
            }
        }
    }
    let checks =
        by_errno.into_iter().map(|(errno, rules)| program(errno, rules)).collect::<Result<_, _>>()?;
    Ok(Filters { checks, calls: seccomp::program(&whole) })
}

fn program(errno: u32, rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, SandboxError> {
    let failed = |error: seccompiler::BackendError| SandboxError::Filter(error.to_string());
    let architecture = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), architecture)
        .map_err(failed)?;
    filter.try_into().map_err(failed)
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

/// The rules of an entry: its conditions joined, every choice of their values written out.
fn alternatives(when: &[String]) -> Result<Vec<SeccompRule>, SandboxError> {
    let mut sets: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for text in when {
        let choices = conditions(text)?;
        let joined = |set: &Vec<SeccompCondition>| -> Vec<Vec<SeccompCondition>> {
            choices.iter().map(|choice| [set.as_slice(), std::slice::from_ref(choice)].concat()).collect()
        };
        sets = sets.iter().flat_map(joined).collect();
    }
    if when.is_empty() {
        return Ok(Vec::new());
    }
    let rule = |set| SeccompRule::new(set).map_err(|error| SandboxError::Filter(error.to_string()));
    sets.into_iter().map(rule).collect()
}

/// One condition: any of the results must hold.
fn conditions(text: &str) -> Result<Vec<SeccompCondition>, SandboxError> {
    let bad = || SandboxError::Filter(format!("cannot read the condition `{text}`"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let (argument, mask, operator, values) = match words.as_slice() {
        [argument, "&", mask, operator, values @ ..] => {
            (*argument, Some(number(mask).ok_or_else(bad)?), *operator, values)
        }
        [argument, operator, values @ ..] => (*argument, None, *operator, values),
        _ => return Err(bad()),
    };
    let argument = argument.parse::<u8>().ok().filter(|&argument| argument < 6).ok_or_else(bad)?;
    let values = values.iter().map(|value| number(value)).collect::<Option<Vec<u64>>>().ok_or_else(bad)?;
    let operator = match (operator, mask, values.as_slice()) {
        (_, _, []) => return Err(bad()),
        ("==", None, _) => SeccompCmpOp::Eq,
        ("==", Some(mask), _) => SeccompCmpOp::MaskedEq(mask),
        ("!=", None, [_]) => SeccompCmpOp::Ne,
        _ => return Err(bad()),
    };
    values
        .into_iter()
        .map(|value| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator.clone(), value)
                .map_err(|error| SandboxError::Filter(error.to_string()))
        })
        .collect()
}

fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(octal) = text.strip_prefix("0o") {
        u64::from_str_radix(octal, 8).ok()
    } else {
        text.parse().ok()
    }
}

/// Calls the supervisor is asked about.
const STARTS_AND_SOCKETS: &[&str] = &["execve", "execveat", "connect", "bind", "listen"];

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
fn notified(shared: bool) -> Vec<(i64, Treatment)> {
    let always = |name: &&str| Some((calls::number(name)?, Treatment::Notify));
    let mut list: Vec<(i64, Treatment)> = STARTS_AND_SOCKETS.iter().filter_map(always).collect();
    if shared {
        list.extend(METADATA.iter().filter_map(always));
        list.extend(ON_PROCESSES.iter().filter_map(|&(name, argument)| {
            Some((calls::number(name)?, Treatment::NotifyUnlessZero(argument)))
        }));
    }
    list
}
