//! Agents: how one CLI is started, how its stream is read, how its end is understood.
//!
//! What is special about a CLI is data (`policies/agents/`): flags, settings for a run that nobody watches, the kinds of
//! its events, the meaning of its exit codes. This room reads that data and does no I/O; nobody else knows a CLI's details.
#![forbid(unsafe_code)]

mod adapter;
mod event;
mod reading;

pub use adapter::{
    AGENTS, Adapter, Approval, Ask, EventRule, HomeFile, Invocation, MessageRule, named, of_program,
};
pub use event::AgentEvent;
pub use reading::{Conclusion, Ending, Reading};
