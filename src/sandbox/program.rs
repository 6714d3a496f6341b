//! Calls and what becomes of them → one seccomp program.
//!
//! One program for everything: the kernel walks every program once for every call there is when it is installed, and
//! every one of them for each call that is not plainly allowed. So it is a search tree as well: a list of two hundred
//! comparisons would cost more than all the rest.

use std::collections::BTreeMap;

use libc::sock_filter;

use super::SandboxError;
use super::shorten::shorten;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Numbers from here on belong to x32.
const X32_BIT: u32 = 0x4000_0000;

/// What becomes of one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Treatment {
    /// Looked at in this order; the first whose conditions all hold decides.
    pub checks: Vec<Check>,
    /// What happens when none does.
    pub otherwise: Otherwise,
}

/// Conditions on the arguments of a call, and what becomes of it when all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// All of these.
    pub conditions: Vec<Condition>,
    /// What becomes of the call.
    pub action: Action,
}

/// What becomes of a call whose arguments a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It fails with this errno.
    Errno(u32),
    /// The supervisor is asked.
    Notify,
}

impl Action {
    /// The value that the filter program returns to the kernel.
    pub fn filter_value(self) -> u32 {
        match self {
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno,
            Self::Notify => libc::SECCOMP_RET_USER_NOTIF,
        }
    }
}

/// A look at the lower half of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which argument.
    pub argument: u8,
    /// The bits that are looked at.
    pub mask: u32,
    /// It holds when they are any of these…
    pub values: Vec<u32>,
    /// …or, with this, none of them.
    pub negated: bool,
}

/// What becomes of a call that no check refuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Otherwise {
    /// It is made.
    #[default]
    Allow,
    /// It fails with this errno.
    Errno(u32),
    /// The supervisor is asked.
    Notify,
    /// The supervisor is asked when this argument's lower half is not zero.
    NotifyUnlessZero(u8),
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | code | libc::BPF_K) as u16, jt, jf, k }
}

pub(super) const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
pub(super) const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// The lower half of an argument in the kernel's `seccomp_data`.
fn load_argument(argument: u8) -> sock_filter {
    statement(LOAD, 16 + 8 * u32::from(argument))
}

/// The program: foreign architectures are killed, the calls in the list are treated as it says, everything else passes.
pub(super) fn program(calls: &BTreeMap<u32, Treatment>) -> Result<Vec<sock_filter>, SandboxError> {
    let mut program = vec![
        statement(LOAD, 4),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        statement(LOAD, 0),
        jump(libc::BPF_JGE, X32_BIT, 0, 1),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    program.extend(branch(&grouped(calls))?);
    Ok(shorten(&program))
}

/// Calls that are compared one after the other.
const LEAF: usize = 6;

/// Neighbouring calls that all end the same way, or one call.
struct Group<'c> {
    first: u32,
    last: u32,
    treatment: &'c Treatment,
}

/// Where the arguments do not matter, neighbours are one comparison.
fn grouped(calls: &BTreeMap<u32, Treatment>) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (&number, treatment) in calls {
        match groups.last_mut() {
            Some(group)
                if group.last + 1 == number
                    && group.treatment == treatment
                    && treatment.plain().is_some() =>
            {
                group.last = number;
            }
            _ => groups.push(Group { first: number, last: number, treatment }),
        }
    }
    groups
}

impl Treatment {
    /// What the kernel is told, where the arguments do not matter.
    fn plain(&self) -> Option<u32> {
        match self.otherwise {
            _ if !self.checks.is_empty() => None,
            Otherwise::Allow => Some(libc::SECCOMP_RET_ALLOW),
            Otherwise::Errno(errno) => Some(libc::SECCOMP_RET_ERRNO | errno),
            Otherwise::Notify => Some(libc::SECCOMP_RET_USER_NOTIF),
            Otherwise::NotifyUnlessZero(_) => None,
        }
    }
}

/// A distance that a comparison can jump.
fn distance(to: usize) -> Result<u8, SandboxError> {
    u8::try_from(to).map_err(|_| SandboxError::Filter("a check is too long".to_string()))
}

fn branch(groups: &[Group<'_>]) -> Result<Vec<sock_filter>, SandboxError> {
    if groups.len() <= LEAF {
        return leaf(groups);
    }
    let (left, right) = groups.split_at(groups.len() / 2);
    let below = branch(left)?;
    let mut block = Vec::new();
    match u8::try_from(below.len()) {
        Ok(length) => block.push(jump(libc::BPF_JGE, right[0].first, length, 0)),
        Err(_) => {
            // The jump over the lower half has 32 bits; those of a comparison have eight.
            block.push(jump(libc::BPF_JGE, right[0].first, 0, 1));
            block.push(statement(libc::BPF_JMP | libc::BPF_JA, below.len() as u32));
        }
    }
    block.extend(below);
    block.extend(branch(right)?);
    Ok(block)
}

/// Comparisons first, then what they jump to: answers that several share stand there once.
fn leaf(groups: &[Group<'_>]) -> Result<Vec<sock_filter>, SandboxError> {
    let mut ends = vec![statement(RETURN, libc::SECCOMP_RET_ALLOW)];
    let mut targets = Vec::new();
    for group in groups {
        let known = group.treatment.plain().and_then(|answer| {
            ends.iter().position(|step| u32::from(step.code) == RETURN && step.k == answer)
        });
        targets.push(known.unwrap_or(ends.len()));
        if known.is_none() {
            ends.extend(treat(group.treatment)?);
        }
    }
    let lengths: Vec<usize> =
        groups.iter().map(|group| if group.first == group.last { 1 } else { 2 }).collect();
    let mut left: usize = lengths.iter().sum();
    let mut block = Vec::new();
    for ((group, length), target) in groups.iter().zip(lengths).zip(targets) {
        left -= length;
        let to = distance(left + target)?;
        if length == 1 {
            block.push(jump(libc::BPF_JEQ, group.first, to, 0));
        } else {
            block.push(jump(libc::BPF_JGE, group.first, 0, 1));
            block.push(jump(libc::BPF_JGE, group.last + 1, 0, to));
        }
    }
    block.extend(ends);
    Ok(block)
}

fn treat(treatment: &Treatment) -> Result<Vec<sock_filter>, SandboxError> {
    let mut block = Vec::new();
    for check in &treatment.checks {
        block.extend(code_of(check)?);
    }
    match treatment.otherwise {
        Otherwise::Allow => block.push(statement(RETURN, libc::SECCOMP_RET_ALLOW)),
        Otherwise::Errno(errno) => block.push(statement(RETURN, libc::SECCOMP_RET_ERRNO | errno)),
        Otherwise::Notify => block.push(statement(RETURN, libc::SECCOMP_RET_USER_NOTIF)),
        Otherwise::NotifyUnlessZero(argument) => block.extend([
            load_argument(argument),
            jump(libc::BPF_JEQ, 0, 0, 1),
            statement(RETURN, libc::SECCOMP_RET_ALLOW),
            statement(RETURN, libc::SECCOMP_RET_USER_NOTIF),
        ]),
    }
    Ok(block)
}

/// The code of one check: falls off its end when a condition does not hold.
fn code_of(check: &Check) -> Result<Vec<sock_filter>, SandboxError> {
    // Made from behind, so that the distance to the end is known.
    let mut parts: Vec<Vec<sock_filter>> = vec![vec![statement(RETURN, check.action.filter_value())]];
    let mut length = 1;
    for condition in check.conditions.iter().rev() {
        let mut part = vec![load_argument(condition.argument)];
        if condition.mask != u32::MAX {
            part.push(statement(AND, condition.mask));
        }
        let count = condition.values.len();
        for (index, &value) in condition.values.iter().enumerate() {
            let left = count - 1 - index;
            part.push(match (condition.negated, left) {
                (true, _) => jump(libc::BPF_JEQ, value, distance(left + length)?, 0),
                (false, 0) => jump(libc::BPF_JEQ, value, 0, distance(length)?),
                (false, _) => jump(libc::BPF_JEQ, value, distance(left)?, 0),
            });
        }
        length += part.len();
        parts.push(part);
    }
    Ok(parts.into_iter().rev().flatten().collect())
}
