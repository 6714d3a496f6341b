//! Answers requests from inside the sandbox.
//!
//! The kernel sends a seccomp notification for every exec, connect, bind and (where needed) metadata change
//! ([`supervise`]). Shims ask why an exec was denied ([`shim`]). The supervisor judges each request by the policy,
//! replies to the caller and records the decision in the transcript. Every error is a denial: nothing here may allow a
//! request that it could not read or judge.
#![forbid(unsafe_code)]

mod event_loop;
mod exec;
#[doc(hidden)]
pub mod fuzzing;
mod inotify;
mod metadata;
mod process_limit;
mod repo_scope;
pub mod shim;
mod sockets;

pub use event_loop::{
    Ask, CANARY_PROGRAM, Choice, Counts, Handle, LazyResource, SupervisorConfig, supervise,
};
pub use repo_scope::{Judged, Repositories};
pub use shim::server::{ShimService, bind, serve};

use std::borrow::Cow;

use crate::command::{Context, Cwd, Request};
use crate::decide::judge;
use crate::policy::{Action, Policy};
use shim::protocol::{Answer, Question};

/// How many bytes of a command's arguments are recorded in an event.
const RECORDED: usize = 64 << 10;

/// Length of a command line, counting a separator after each argument.
fn length_of(argv: &[Vec<u8>]) -> usize {
    argv.iter().map(|word| word.len() + 1).sum()
}

/// The arguments to record in an event: all of them if they fit in `most` bytes, otherwise the first and the last part
/// with a note about what is missing. The last part is included so that an agent cannot hide an argument behind many
/// others.
fn recorded_argv(argv: &[Vec<u8>], most: usize) -> Vec<Cow<'_, str>> {
    let total = length_of(argv);
    if total <= most {
        return argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    }
    let (mut head_room, mut tail_room) = (most / 2, most - most / 2);
    let mut head = Vec::new();
    let mut rest = argv;
    while let Some((word, others)) = rest.split_first()
        && word.len() < head_room
    {
        head_room -= word.len() + 1;
        head.push(String::from_utf8_lossy(word));
        rest = others;
    }
    let mut tail = Vec::new();
    while let Some((word, others)) = rest.split_last()
        && word.len() < tail_room
    {
        tail_room -= word.len() + 1;
        tail.push(String::from_utf8_lossy(word));
        rest = others;
    }
    // Cut the arguments at both ends of the gap. They may be one and the same, if it is longer than both parts.
    if let Some(first) = rest.first() {
        let part = String::from_utf8_lossy(&first[..head_room.min(first.len())]);
        head.push(Cow::Owned(format!("{part}…")));
    }
    let left_out = length_of(rest).saturating_sub(head_room + tail_room);
    let hidden = rest.len().saturating_sub(2);
    head.push(Cow::Owned(format!("… {hidden} arguments and {left_out} bytes are not recorded …")));
    if let Some(last) = rest.last() {
        let part = String::from_utf8_lossy(&last[last.len() - tail_room.min(last.len())..]);
        head.push(Cow::Owned(format!("…{part}")));
    }
    head.extend(tail.into_iter().rev());
    head
}

/// Answers a shim's question with the same judgement as `guard check`. `context` holds what only the supervisor
/// knows: the task's working tree, git's configuration, limits. An `ask` verdict is a denial here, because the shim
/// asks only after its exec was denied.
pub fn answer(
    policy: &Policy,
    context: &Context,
    repositories: Option<&Repositories>,
    question: &Question,
) -> Answer {
    let context = Context {
        cwd: Cwd::from_absolute(&question.directory),
        environment: question.environment.clone(),
        resolved: None,
        ..context.clone()
    };
    let request = Request::Argv(question.argv.clone());
    let verdict = match repositories {
        Some(repositories) => repositories.judge(policy, &request, &context).verdict,
        None => judge(policy, &request, &context).0,
    };
    match verdict.action() {
        Action::Allow => Answer::Allow,
        Action::Ask | Action::Deny => Answer::Deny(verdict.refusal_line()),
    }
}
