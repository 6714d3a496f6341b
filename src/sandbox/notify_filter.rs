//! Assembles the seccomp filter that sends calls to the supervisor, and the BPF instructions that both filters share.
//!
//! The input is a map from system call numbers to conditions on their arguments. The output is a BPF program that
//! notifies the supervisor of these calls, allows all others, and kills a process that uses calls of another
//! architecture.

use std::collections::BTreeMap;

use libc::sock_filter;

use super::SandboxError;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// System call numbers from this value on are calls of the x32 ABI.
const X32_BIT: u32 = 0x4000_0000;

/// A condition on the lower 32 bits of one argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The index of the argument, from 0.
    pub argument: u8,
    /// The bits of the argument that the filter compares.
    pub mask: u32,
    /// The condition holds if the masked argument is one of these values.
    pub values: Vec<u32>,
    /// True to invert the condition: it then holds if the masked argument is none of `values`.
    pub negated: bool,
}

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn return_action(value: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt, jf, k }
}

/// Returns an unconditional jump over the next `count` instructions.
pub(super) fn skip(count: usize) -> sock_filter {
    // A BPF program has at most 4096 instructions, so the cast is safe.
    statement(libc::BPF_JMP | libc::BPF_JA, count as u32)
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
pub(super) const ALLOW: sock_filter = return_action(libc::SECCOMP_RET_ALLOW);
const KILL: sock_filter = return_action(libc::SECCOMP_RET_KILL_PROCESS);
const NOTIFY: sock_filter = return_action(libc::SECCOMP_RET_USER_NOTIF);

/// Returns the first instructions of every filter: they kill a process that makes a call of another architecture or of
/// the x32 ABI, and load the number of the system call.
pub(super) fn kill_foreign_calls() -> Vec<sock_filter> {
    vec![
        statement(LOAD, 4),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        KILL,
        statement(LOAD, 0),
        jump(libc::BPF_JGE, X32_BIT, 0, 1),
        KILL,
    ]
}

/// Assembles the filter that notifies the supervisor of these calls. Each call has groups of conditions: the filter
/// sends a notification if all conditions of one group hold, or always if the call has no group.
pub(super) fn program(calls: &BTreeMap<u32, Vec<Vec<Condition>>>) -> Result<Vec<sock_filter>, SandboxError> {
    let mut program = kill_foreign_calls();
    for (&number, groups) in calls {
        let mut block = Vec::new();
        for conditions in groups {
            block.extend(notify_if(conditions)?);
        }
        block.push(if groups.is_empty() { NOTIFY } else { ALLOW });
        program.push(jump(libc::BPF_JEQ, number, 0, distance(block.len())?));
        program.extend(block);
    }
    program.push(ALLOW);
    Ok(program)
}

/// Converts the distance of a conditional jump to a byte. Fails if it is too far for a BPF instruction.
fn distance(to: usize) -> Result<u8, SandboxError> {
    let problem = "the conditions for a system call are too long for a BPF jump";
    u8::try_from(to).map_err(|_| SandboxError::Filter(problem.to_string()))
}

/// Returns instructions that notify the supervisor if all conditions hold, and otherwise continue with the instruction
/// after the last of them.
fn notify_if(conditions: &[Condition]) -> Result<Vec<sock_filter>, SandboxError> {
    // Build the instructions from the end, so that the jump distances are known.
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
