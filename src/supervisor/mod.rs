//! Requests from inside the sandbox → [`Intent`](crate::command::Intent)s → a decision → the answer.
//!
//! Two ways lead here: the kernel's notifications of every program start, connect, bind and (where needed) change of
//! metadata ([`supervise`]), and the questions of shims ([`wire`], [`serve`]). Anything that goes wrong on the way becomes
//! a denial; nothing here answers anything but *deny* on error.
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

/// Bytes of a command's words that a record keeps.
const RECORDED: usize = 64 << 10;

/// Bytes of a command line with a separator behind each argument.
fn length_of(argv: &[Vec<u8>]) -> usize {
    argv.iter().map(|word| word.len() + 1).sum()
}

/// A command's arguments for a record: whole where that is reasonable, otherwise the first and the last part of them, and
/// between these how much was left out. What an agent puts behind a great many arguments is still there.
fn recorded_words(argv: &[Vec<u8>], most: usize) -> Vec<Cow<'_, str>> {
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
    // The argument at either end of what is left out is cut; it may be the same one, which is longer than both parts.
    if let Some(first) = rest.first() {
        let part = String::from_utf8_lossy(&first[..head_room.min(first.len())]);
        head.push(Cow::Owned(format!("{part}…")));
    }
    let left_out = length_of(rest).saturating_sub(head_room + tail_room);
    let words = rest.len().saturating_sub(2);
    head.push(Cow::Owned(format!("… {words} arguments and {left_out} bytes are not recorded …")));
    if let Some(last) = rest.last() {
        let part = String::from_utf8_lossy(&last[last.len() - tail_room.min(last.len())..]);
        head.push(Cow::Owned(format!("…{part}")));
    }
    head.extend(tail.into_iter().rev());
    head
}

/// Answers a shim's question by the same judgement as `guard check`. `context` carries what the answering side knows: the
/// task's working tree, git's configuration, limits. An `ask` is a denial here: a person was
/// asked where the program was to start, and has not said yes.
pub fn answer(
    policy: &Policy,
    context: &Context,
    repositories: Option<&Repositories>,
    question: &Question,
) -> Answer {
    let context = Context {
        folder: Cwd::from_absolute(&question.folder),
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
        Action::Allow => Answer::Go,
        Action::Ask | Action::Deny => Answer::Deny(verdict.refusal_line()),
    }
}
