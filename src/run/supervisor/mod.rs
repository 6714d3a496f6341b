//! Answers requests from inside the sandbox.
//!
//! The kernel sends a seccomp notification for every exec, connect, bind, listen and inotify watch and, where needed,
//! for changes of metadata or of other processes and for forks ([`supervise`]). Shims ask why an exec was denied
//! ([`shim`]). The supervisor judges each request by the policy, replies to the caller and records the decision in the
//! transcript. Every error is a denial: nothing here may allow a request that it could not read or judge.
#![forbid(unsafe_code)]

mod background;
mod call_context;
mod config;
mod event_loop;
mod exec;
#[doc(hidden)]
pub mod fuzzing;
mod inotify;
mod lazy_resources;
mod metadata;
mod process_info;
mod process_limit;
mod processes;
mod prompt;
mod question;
mod repo_scope;
pub mod shim;
mod sockets;

pub use call_context::Counts;
pub use config::SupervisorConfig;
pub use event_loop::{Handle, supervise};
pub use exec::CANARY_PROGRAM;
pub use lazy_resources::LazyResource;
pub use question::{Ask, Choice};
pub use repo_scope::{Judged, Repositories};
pub use shim::server::{ShimService, bind, serve};

use crate::judge::command::{Context, Cwd, Request};
use crate::judge::decide::judge;
use crate::judge::policy::{Action, Policy};
use shim::protocol::{Answer, Question};

/// Answers a shim's question with the same judgement as `guard check`. `context` holds what only the supervisor knows:
/// the run's worktree, git's configuration, limits. If `repositories` is given, the policy's rules for other
/// repositories apply to a command that uses a repository other than the run's. An `ask` verdict is a denial here,
/// because the shim asks only after the supervisor has denied its exec.
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
