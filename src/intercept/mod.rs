//! Requests from inside the sandbox → [`Intent`](crate::command::Intent)s → a decision → the answer.
//!
//! Two ways lead here: the kernel's notifications of every program start, connect, bind and (where needed) change of
//! metadata ([`supervise`]), and the questions of shims ([`wire`], [`serve`]). Anything that goes wrong on the way becomes
//! a denial; nothing here answers anything but *deny* on error.
#![forbid(unsafe_code)]

mod control;
mod exec;
mod explain;
mod identity;
mod metadata;
mod network;
mod remote;
mod repository;
mod supervisor;
mod verify;
pub mod wire;

pub use control::{Answering, bind, serve};
pub use repository::Repositories;
pub use supervisor::{Ask, Belated, CANARY_PROGRAM, Choice, Counts, Handle, Setting, supervise};

use std::borrow::Cow;

use crate::command::{Context, Folder, Request};
use crate::decide::judge;
use crate::policy::{Action, Policy};
use wire::{Answer, Question};

/// Bytes of a command's words that a record keeps.
const RECORDED: usize = 64 << 10;

/// A command's words for a record: whole where that is reasonable, cut where somebody wants to fill the disk.
fn recorded_words(argv: &[Vec<u8>]) -> Vec<Cow<'_, str>> {
    let mut left = RECORDED;
    let mut words = Vec::with_capacity(argv.len().min(256));
    for (index, word) in argv.iter().enumerate() {
        if word.len() >= left {
            words.push(Cow::Owned(format!("{}…", String::from_utf8_lossy(&word[..left]))));
            words.push(Cow::Owned(format!(
                "… {} words and {} bytes are not recorded",
                argv.len() - index - 1,
                word.len() - left
            )));
            break;
        }
        left -= word.len() + 1;
        words.push(String::from_utf8_lossy(word));
    }
    words
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
        folder: Folder::from_absolute(&question.folder),
        environment: question.environment.clone(),
        resolved: None,
        ..context.clone()
    };
    let request = Request::Argv(question.argv.clone());
    let (verdict, _) = match repositories {
        Some(repositories) => repositories.judge(policy, &request, &context),
        None => judge(policy, &request, &context),
    };
    match verdict.action() {
        Action::Allow => Answer::Go,
        Action::Ask | Action::Deny => Answer::Deny(verdict.refusal_line()),
    }
}
