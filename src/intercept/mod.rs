//! Requests from inside the sandbox → [`Intent`](crate::command::Intent)s → a decision → the answer.
//!
//! Today: the protocol between a shim and whoever answers it ([`wire`]), and the answer itself ([`answer`]). Anything that
//! goes wrong on the way becomes a denial; nothing here answers anything but *deny* on error.
#![forbid(unsafe_code)]

pub mod wire;

use crate::command::{Context, Folder, Request};
use crate::decide::judge;
use crate::policy::{Action, Policy};
use wire::{Answer, Question};

/// Answers a shim's question by the same judgement as `guard check`. `context` carries what the answering side knows: the
/// task's working tree, git's configuration, limits. An `ask` is a denial here: nobody is at a shim's terminal.
pub fn answer(policy: &Policy, context: &Context, question: &Question) -> Answer {
    let context = Context {
        folder: Folder::from_absolute(&question.folder),
        environment: question.environment.clone(),
        resolved: None,
        ..context.clone()
    };
    let (verdict, _) = judge(policy, &Request::Argv(question.argv.clone()), &context);
    match verdict.action() {
        Action::Allow => Answer::Go,
        Action::Ask | Action::Deny => Answer::Deny(verdict.refusal_line()),
    }
}
