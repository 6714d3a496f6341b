//! Agent CLIs: how guard starts them, reads their output, and interprets their exit codes.
//!
//! Input is a request and the CLI's output; output is an invocation, events and a conclusion. Everything specific to
//! one CLI is data in `policies/agents/`: arguments, settings for unattended runs, event kinds, exit codes. This module
//! interprets that data. It does no I/O, except that [`Adapter::configured_by_user`] reads the user's configuration
//! file. No other module may know details of a particular CLI.
#![forbid(unsafe_code)]

mod event;
mod invocation;
mod json_objects;
mod known;
mod output_parser;
mod profile;
mod retry_after;
mod template;

pub use event::AgentEvent;
pub use invocation::{Invocation, InvocationSpec};
pub use json_objects::json_objects;
pub use known::{
    AGENTS, Adapter, AddedArguments, Approval, CommandLine, EventRule, History, HomeFile, MessageRule,
    MinimumVersion, OutputFormat, Quota, named, of_program,
};
pub use output_parser::{Conclusion, Ending, OutputParser};
pub use profile::{MissingKey, Profile, missing_key};
pub use retry_after::Wait;
pub use template::{Language, RULES, RequestText};

pub use crate::judge::policy::is_model_name;
