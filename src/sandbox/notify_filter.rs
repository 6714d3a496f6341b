//! Calls that the supervisor is asked about → the notification filter; and the few BPF instructions that both filters need.

use std::collections::BTreeMap;

use libc::sock_filter;

use super::SandboxError;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Numbers from here on belong to x32.
const X32_BIT: u32 = 0x4000_0000;

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

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn answer(value: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt, jf, k }
}

/// Skips so many instructions.
pub(super) fn skip(count: usize) -> sock_filter {
    // A program has at most 4096.
    statement(libc::BPF_JMP | libc::BPF_JA, count as u32)
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
pub(super) const ALLOW: sock_filter = answer(libc::SECCOMP_RET_ALLOW);
const KILL: sock_filter = answer(libc::SECCOMP_RET_KILL_PROCESS);
const NOTIFY: sock_filter = answer(libc::SECCOMP_RET_USER_NOTIF);

/// The beginning of a filter: calls of another architecture kill the process; otherwise the number of the call is loaded.
pub(super) fn foreign_calls_kill() -> Vec<sock_filter> {
    vec![
        statement(LOAD, 4),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        KILL,
        statement(LOAD, 0),
        jump(libc::BPF_JGE, X32_BIT, 0, 1),
        KILL,
    ]
}

/// The filter that asks about these calls: where all conditions of one of the groups hold, or always where there is no
/// group.
pub(super) fn program(calls: &BTreeMap<u32, Vec<Vec<Condition>>>) -> Result<Vec<sock_filter>, SandboxError> {
    let mut program = foreign_calls_kill();
    for (&number, groups) in calls {
        let mut block = Vec::new();
        for conditions in groups {
            block.extend(ask_when(conditions)?);
        }
        block.push(if groups.is_empty() { NOTIFY } else { ALLOW });
        program.push(jump(libc::BPF_JEQ, number, 0, distance(block.len())?));
        program.extend(block);
    }
    program.push(ALLOW);
    Ok(program)
}

/// A distance that a comparison can jump.
fn distance(to: usize) -> Result<u8, SandboxError> {
    u8::try_from(to).map_err(|_| SandboxError::Filter("a check is too long".to_string()))
}

/// Asks where all conditions hold; otherwise leads to the step behind its end.
fn ask_when(conditions: &[Condition]) -> Result<Vec<sock_filter>, SandboxError> {
    // Made from behind, so that the distance to the end is known.
    let mut parts: Vec<Vec<sock_filter>> = vec![vec![NOTIFY]];
    let mut length = 1;
    for condition in conditions.iter().rev() {
        let mut part = vec![statement(LOAD, 16 + 8 * u32::from(condition.argument))];
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
