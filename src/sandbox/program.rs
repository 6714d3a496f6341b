//! Calls and what becomes of them → one seccomp program.
//!
//! One program for everything: the kernel walks every program once for every call there is when it is installed, and
//! every one of them for each call that is not plainly allowed. So it is a search tree as well: a list of two hundred
//! comparisons would cost more than all the rest.

use std::collections::BTreeMap;

use libc::sock_filter;

use super::SandboxError;

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

/// Conditions on the arguments of a call, and what it fails with when all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// All of these.
    pub conditions: Vec<Condition>,
    /// What the call fails with.
    pub errno: u32,
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

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

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
    let calls: Vec<(u32, &Treatment)> =
        calls.iter().map(|(number, treatment)| (*number, treatment)).collect();
    program.extend(branch(&calls)?);
    Ok(program)
}

/// Calls that are compared one after the other.
const LEAF: usize = 4;

fn branch(calls: &[(u32, &Treatment)]) -> Result<Vec<sock_filter>, SandboxError> {
    let mut block = Vec::new();
    if calls.len() > LEAF {
        let (left, right) = calls.split_at(calls.len() / 2);
        let below = branch(left)?;
        // The jump over the lower half has 32 bits; those of a comparison have eight.
        block.push(jump(libc::BPF_JGE, right[0].0, 0, 1));
        block.push(statement(libc::BPF_JMP | libc::BPF_JA, below.len() as u32));
        block.extend(below);
        block.extend(branch(right)?);
        return Ok(block);
    }
    for &(number, treatment) in calls {
        let treated = treat(treatment)?;
        block.push(jump(libc::BPF_JEQ, number, 1, 0));
        block.push(statement(libc::BPF_JMP | libc::BPF_JA, treated.len() as u32));
        block.extend(treated);
    }
    block.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    Ok(block)
}

fn treat(treatment: &Treatment) -> Result<Vec<sock_filter>, SandboxError> {
    let mut block = Vec::new();
    for check in &treatment.checks {
        block.extend(refuse_if(check)?);
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
fn refuse_if(check: &Check) -> Result<Vec<sock_filter>, SandboxError> {
    // Made from behind, so that the distance to the end is known.
    let mut parts: Vec<Vec<sock_filter>> =
        vec![vec![statement(RETURN, libc::SECCOMP_RET_ERRNO | check.errno)]];
    let mut length = 1;
    for condition in check.conditions.iter().rev() {
        let mut part = vec![load_argument(condition.argument)];
        if condition.mask != u32::MAX {
            part.push(statement(AND, condition.mask));
        }
        let count = condition.values.len();
        for (index, &value) in condition.values.iter().enumerate() {
            let left = count - 1 - index;
            let distance = |to: usize| {
                u8::try_from(to).map_err(|_| SandboxError::Filter("a check is too long".to_string()))
            };
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
