//! Compiles `policies/syscalls.toml` into two seccomp filters.
//!
//! `seccompiler` compiles the deny filter, which makes listed calls fail. It cannot express notifications, so
//! `notify_filter.rs` assembles the filter that sends calls to the supervisor. The kernel runs both filters for every
//! call and applies the stricter result: a denial by one filter overrides a notification by the other. If the list
//! cannot be parsed, this module fails; it must never produce a filter that lacks an entry.
//!
//! This file and `notify_filter.rs` are also part of `build.rs`, which compiles the filters that `filters.rs` embeds.

use std::collections::BTreeMap;

use libc::sock_filter;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde::Deserialize;

use super::SandboxError;
use super::notify_filter;
use super::notify_filter::Condition;
use crate::sys::syscall_numbers;

pub const LIST: &str = include_str!("../../policies/syscalls.toml");

#[derive(Clone)]
pub struct Filters {
    /// The filter that makes the calls in `deny` of the list of system calls fail. It also kills a process that makes
    /// a call of another architecture.
    pub deny: Vec<sock_filter>,
    /// The filter that sends the calls in `ask` of the list, and some others, to the supervisor. It also kills a
    /// process that makes a call of another architecture.
    pub notify: Vec<sock_filter>,
}

/// Compiles the filters of a run from a list of system calls. `shared` is true if the run shares its namespaces with
/// the host; `forks` is true if the supervisor decides about every new process and thread.
pub fn compile(list: &List, shared: bool, forks: bool) -> Result<Filters, SandboxError> {
    let mut denied = Denied::default();
    for entry in list.deny.iter().filter(|entry| shared || entry.only.is_none()) {
        denied.add(entry)?;
    }
    let mut notified = always_notified(shared);
    if forks {
        notified.extend(numbers(FORKS).map(|number| (number, Vec::new())));
    }
    for entry in list.ask.iter().filter(|entry| shared || entry.only.is_none()) {
        let conditions = entry.conditions()?;
        for number in entry.numbers()? {
            // If the filter sends every such call to the supervisor anyway, a condition adds nothing.
            if !notified.get(&number).is_some_and(Vec::is_empty) {
                notified.entry(number).or_default().push(conditions.clone());
            }
        }
    }
    Ok(Filters { deny: denied.program()?, notify: notify_filter::program(&notified)? })
}

/// The parsed content of `policies/syscalls.toml`: the system calls that a filter denies or sends to the supervisor.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Calls that fail with an errno.
    pub deny: Vec<Entry>,
    /// Calls that the filter sends to the supervisor, which decides about them.
    #[serde(default)]
    pub ask: Vec<Entry>,
}

/// One entry of `policies/syscalls.toml`: system calls that the filters treat in the same way, and the reason.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub calls: Vec<String>,
    /// Conditions on the arguments of the call; the entry applies if all of them hold.
    #[serde(default)]
    pub when: Vec<String>,
    /// The errno with which denied calls fail; EPERM by default.
    pub errno: Option<Errno>,
    /// The runs to which the entry applies; `None` means all runs.
    pub only: Option<Only>,
    pub reason: String,
}

/// The runs to which an entry applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Only {
    /// Runs that share their namespaces with the host.
    Shared,
}

/// The errno of a denied call. If several entries deny the same call, the filter uses the variant that comes first
/// here; entries with conditions precede those without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Errno {
    #[default]
    Eperm,
    Enosys,
    Eafnosupport,
    Eprotonosupport,
    Eopnotsupp,
}

impl Errno {
    pub fn number(self) -> u32 {
        let number = match self {
            Self::Eperm => libc::EPERM,
            Self::Enosys => libc::ENOSYS,
            Self::Eafnosupport => libc::EAFNOSUPPORT,
            Self::Eprotonosupport => libc::EPROTONOSUPPORT,
            Self::Eopnotsupp => libc::EOPNOTSUPP,
        };
        number.unsigned_abs()
    }
}

impl Entry {
    /// Returns the parsed conditions of `when`. The entry applies if all of them hold. Fails if one is not valid.
    pub fn conditions(&self) -> Result<Vec<Condition>, SandboxError> {
        self.when.iter().map(|text| condition(text)).collect()
    }

    /// Returns the numbers of the system calls in `calls` that exist on this architecture. Fails if a name is not a
    /// system call of any architecture.
    pub fn numbers(&self) -> Result<Vec<u32>, SandboxError> {
        let unknown = self.calls.iter().find(|name| !syscall_numbers::is_known(name));
        match unknown {
            Some(name) => {
                Err(SandboxError::Filter(format!("the list names an unknown system call: `{name}`")))
            }
            None => Ok(self.calls.iter().filter_map(|name| number_of(name)).collect()),
        }
    }
}

/// Parses a list of system calls in the format of `policies/syscalls.toml`. Fails if an `ask` entry has an errno or has
/// no condition.
pub fn parse_list(text: &str) -> Result<List, SandboxError> {
    let list: List = toml::from_str(text).map_err(|error| SandboxError::Filter(error.to_string()))?;
    match list.ask.iter().find(|entry| entry.errno.is_some() || entry.when.is_empty()) {
        Some(entry) => Err(SandboxError::Filter(format!(
            "the `ask` entry for `{}` must have `when` and must not have `errno`",
            entry.calls.join("`, `")
        ))),
        None => Ok(list),
    }
}

/// Denied calls grouped by errno, because a `seccompiler` program has a single action. The groups for calls that are
/// denied only for some arguments come first: programs make these calls often (`openat`, `fcntl`), and a filter
/// compares call numbers one by one. If these groups came last, an allowed `openat` would take 0.1 µs longer, a tenth
/// of its time.
#[derive(Default)]
struct Denied(BTreeMap<(When, Errno), BTreeMap<i64, Vec<SeccompRule>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    SomeArguments,
    Always,
}

impl Denied {
    fn add(&mut self, entry: &Entry) -> Result<(), SandboxError> {
        let rules = rules(&entry.conditions()?)?;
        for number in entry.numbers()? {
            self.deny(number, entry.errno.unwrap_or_default(), &rules);
        }
        Ok(())
    }

    /// Denies a call if one of these rules matches. Without rules, always denies the call.
    fn deny(&mut self, number: u32, errno: Errno, rules: &[SeccompRule]) {
        let when = if rules.is_empty() { When::Always } else { When::SomeArguments };
        let calls = self.0.entry((when, errno)).or_default();
        calls.entry(number.into()).or_default().extend_from_slice(rules);
    }

    /// Returns the numbers of the calls for which there is a rule that denies them only for some arguments.
    fn conditional(&self) -> Vec<u32> {
        let programs = self.0.iter().filter(|((when, _), _)| *when == When::SomeArguments);
        programs
            .flat_map(|(_, calls)| calls.keys())
            .filter_map(|&number| u32::try_from(number).ok())
            .collect()
    }

    /// Joins the programs of all groups into one filter. The filter allows a call that no program denies.
    fn program(self) -> Result<Vec<sock_filter>, SandboxError> {
        let failed = |error: BackendError| SandboxError::Filter(error.to_string());
        let mut filter = notify_filter::kill_foreign_calls();
        let mut left = self.0;
        while let Some(((_, errno), calls)) = left.pop_first() {
            let is_last = |number: &i64| !left.values().any(|later| later.contains_key(number));
            let is_final: Vec<bool> = calls.keys().map(is_last).collect();
            let architecture = std::env::consts::ARCH.try_into().map_err(failed)?;
            let answer = SeccompAction::Errno(errno.number());
            let program = SeccompFilter::new(calls, SeccompAction::Allow, answer, architecture);
            let program: BpfProgram = program.and_then(TryInto::try_into).map_err(failed)?;
            filter.extend(chain_to_next(&program, &is_final)?);
        }
        filter.push(notify_filter::ALLOW);
        Ok(filter)
    }
}

/// Rewrites a program so that a call that it allows goes on to the next program, which follows its last instruction.
/// The program has one allow action for each call that it checks, and a last one for all other calls. `is_final` has
/// one value for each checked call, in the order of their allow actions. If the value is true, no later program checks
/// the call, so the allow action stays.
fn chain_to_next(program: &BpfProgram, is_final: &[bool]) -> Result<Vec<sock_filter>, SandboxError> {
    let mut allowed = 0;
    let mut steps = Vec::with_capacity(program.len());
    for (at, step) in program.iter().enumerate() {
        let step = sock_filter { code: step.code, jt: step.jt, jf: step.jf, k: step.k };
        if (step.code, step.k) != (notify_filter::ALLOW.code, notify_filter::ALLOW.k) {
            steps.push(step);
            continue;
        }
        let is_final = is_final.get(allowed).copied().unwrap_or(false);
        steps.push(if is_final { step } else { notify_filter::skip(program.len() - 1 - at) });
        allowed += 1;
    }
    if allowed == is_final.len() + 1 {
        Ok(steps)
    } else {
        Err(SandboxError::Filter("seccompiler built a program of an unexpected form".to_string()))
    }
}

/// Converts conditions that must all hold into alternative rules: one rule for every combination of their values.
/// Returns no rules if there are no conditions.
fn rules(conditions: &[Condition]) -> Result<Vec<SeccompRule>, SandboxError> {
    let failed = |error: BackendError| SandboxError::Filter(error.to_string());
    if conditions.is_empty() {
        return Ok(Vec::new());
    }
    let mut choices: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for condition in conditions {
        let operator = match condition.mask {
            _ if condition.negated => SeccompCmpOp::Ne,
            u32::MAX => SeccompCmpOp::Eq,
            mask => SeccompCmpOp::MaskedEq(mask.into()),
        };
        let one = |&value: &u32| {
            let (argument, length) = (condition.argument, SeccompCmpArgLen::Dword);
            SeccompCondition::new(argument, length, operator.clone(), value.into()).map_err(failed)
        };
        let values: Vec<SeccompCondition> = condition.values.iter().map(one).collect::<Result<_, _>>()?;
        let with = |choice: &Vec<SeccompCondition>| {
            let choice = choice.clone();
            values
                .iter()
                .map(move |value| [choice.as_slice(), std::slice::from_ref(value)].concat())
                .collect::<Vec<_>>()
        };
        choices = choices.iter().flat_map(with).collect();
    }
    choices.into_iter().map(|choice| SeccompRule::new(choice).map_err(failed)).collect()
}

fn number_of(name: &str) -> Option<u32> {
    syscall_numbers::number(name).and_then(|number| u32::try_from(number).ok())
}

/// Returns the numbers of the system calls in `names` that exist on this architecture.
fn numbers(names: &[&str]) -> impl Iterator<Item = u32> {
    names.iter().filter_map(|name| number_of(name))
}

/// Parses a condition: `ARGUMENT [& MASK] == VALUE…` or `ARGUMENT != VALUE`. `ARGUMENT` is the index of the argument,
/// from 0 to 5. Fails if the text has another form.
fn condition(text: &str) -> Result<Condition, SandboxError> {
    let expected = "`ARGUMENT [& MASK] == VALUE…` or `ARGUMENT != VALUE`";
    let bad = || SandboxError::Filter(format!("`{text}` is not a valid condition; expected {expected}"));
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

/// Socket calls, which a helper process that only reads and computes never needs.
const SOCKETS: &[&str] =
    &["socket", "socketpair", "connect", "bind", "listen", "sendto", "sendmsg", "sendmmsg"];
const PROCESSES: &[&str] = &["fork", "vfork"];
/// Calls that truncate a file by its path, which Landlock does not restrict before ABI 3.
const TRUNCATION: &[&str] = &["truncate"];
/// Calls that can open a file for reading and truncate it (`O_RDONLY | O_TRUNC`), with the index of their flags
/// argument. Before ABI 3, Landlock checks only the right to read for them.
const TRUNCATING_OPENS: &[(&str, u8)] = &[("open", 1), ("openat", 2)];

/// Compiles the filter for a helper process of guard. The filter denies sockets, truncation by path, and the calls that
/// `policies/syscalls.toml` denies in all runs or sends to the supervisor. With `no_children` the helper may also not
/// start processes (threads are allowed) or change metadata. Of the calls that the file denies only for some arguments,
/// the filter then denies most for all arguments.
pub fn compile_helper(list: &List, no_children: bool) -> Result<Vec<sock_filter>, SandboxError> {
    // Deny these calls only for some arguments: no C library can start a program without them.
    let needed = [
        "prctl",
        "ioctl",
        "fcntl",
        "prlimit64",
        "openat",
        "open",
        "openat2",
        "creat",
        "personality",
        "clone",
    ];
    let mut denied = Denied::default();
    // A helper process has no supervisor, so deny the calls of `ask` entries.
    for entry in list.deny.iter().chain(&list.ask).filter(|entry| entry.only.is_none()) {
        denied.add(entry)?;
    }
    for &(name, argument) in TRUNCATING_OPENS {
        let mask = (libc::O_ACCMODE | libc::O_TRUNC).unsigned_abs();
        let truncates =
            Condition { argument, mask, values: vec![libc::O_TRUNC.unsigned_abs()], negated: false };
        let truncates = rules(&[truncates])?;
        for number in numbers(&[name]) {
            denied.deny(number, Errno::Eperm, &truncates);
        }
    }
    let mut refused: Vec<u32> = numbers(SOCKETS).chain(numbers(TRUNCATION)).collect();
    if no_children {
        let needed: Vec<u32> = numbers(&needed).collect();
        refused.extend(denied.conditional().into_iter().filter(|number| !needed.contains(number)));
        refused.extend(numbers(METADATA).chain(numbers(PROCESSES)));
        // Deny `clone` without `CLONE_THREAD`. The list denies `clone3`, whose arguments a filter cannot read.
        let no_thread = Condition {
            argument: 0,
            mask: libc::CLONE_THREAD.unsigned_abs(),
            values: vec![0],
            negated: false,
        };
        let no_thread = rules(&[no_thread])?;
        for number in numbers(&["clone"]) {
            denied.deny(number, Errno::Eperm, &no_thread);
        }
    }
    for number in refused {
        denied.deny(number, Errno::Eperm, &[]);
    }
    denied.program()
}

/// Calls that the filter always sends to the supervisor, whatever their arguments.
const ALWAYS_NOTIFIED: &[&str] = &["execve", "execveat", "connect", "bind", "listen", "inotify_add_watch"];

/// Calls that create a process or thread. `clone3` is missing here, because `policies/syscalls.toml` denies it.
pub const FORKS: &[&str] = &["clone", "fork", "vfork"];

/// Calls that change the metadata of files, which Landlock does not restrict. In a run without a mount namespace, the
/// supervisor judges these calls and performs them for the process.
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

/// Calls that act on a process by its id, with the index of the id argument. In a run that shares its namespaces with
/// the host, the filter allows id 0 (the caller itself), and sends calls with another id to the supervisor.
pub const ON_PROCESSES: &[(&str, u8)] = &[
    ("prlimit64", 0),
    ("setpriority", 1),
    ("sched_setaffinity", 0),
    ("sched_setscheduler", 0),
    ("sched_setparam", 0),
    ("sched_setattr", 0),
    ("ioprio_set", 1),
];

/// Returns the calls that the filter sends to the supervisor in addition to the `ask` entries of the list, with groups
/// of conditions on their arguments. The filter always sends a call without conditions. `shared` is true if the run
/// shares its namespaces with the host.
fn always_notified(shared: bool) -> BTreeMap<u32, Vec<Vec<Condition>>> {
    let mut notified: BTreeMap<u32, Vec<Vec<Condition>>> =
        numbers(ALWAYS_NOTIFIED).map(|number| (number, Vec::new())).collect();
    if shared {
        notified.extend(numbers(METADATA).map(|number| (number, Vec::new())));
        for &(name, argument) in ON_PROCESSES {
            let another = Condition { argument, mask: u32::MAX, values: vec![0], negated: true };
            notified.extend(number_of(name).map(|number| (number, vec![vec![another]])));
        }
    }
    notified
}
