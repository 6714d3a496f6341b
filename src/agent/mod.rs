//! Agents: how one CLI is started, how its stream is read, how its end is understood.
//!
//! What is special about a CLI is data (`policies/agents/`): flags, settings for a run that nobody watches, the kinds of
//! its events, the meaning of its exit codes. This module reads that data and does no I/O; nobody else knows a CLI's details.
#![forbid(unsafe_code)]

mod adapter;
mod event;
mod invocation;
mod output_parser;
mod profile;
mod retry_after;
mod template;

pub use adapter::{
    AGENTS, Adapter, AddedArguments, Approval, CommandLine, EventRule, History, HomeFile, MessageRule,
    Oldest, OutputFormat, Quota, named, of_program,
};
pub use event::AgentEvent;
pub use invocation::{Ask, Invocation};
pub use output_parser::{Conclusion, Ending, Reading};
pub use profile::{MissingKey, Profile, missing_key};
pub use retry_after::Wait;
pub use template::{Language, RULES, RequestText};
