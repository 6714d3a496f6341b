//! The phase runner: from a sentence to a reviewed branch.
//!
//! ```text
//!   workflow (data) ─► step ─► prompt ─► executor: a fresh sandboxed agent ─► answer, read and checked ─► commit ─► next step
//!                       ▲        │ written down before and after, each on the disk first                          │
//!                       └────────┴───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! State passes between steps by files only. What a role may change is held by the kernel; what it claims is looked at. The
//! runner alone decides where a verdict leads, and moves the branch by plumbing, so that a crash at any moment loses and
//! doubles nothing: an agent that was interrupted is asked again, from where it began.
#![forbid(unsafe_code)]

mod answer;
mod ask;
mod budget;
mod by_hand;
mod clean;
mod conclude;
mod feedback;
mod find;
mod graph;
mod judge;
mod lint;
mod office;
mod own;
mod papers;
mod project_tests;
mod reader;
mod resume;
mod runner;
mod safety;
mod step_reader;
mod task;
mod template;
mod triage;
mod workflow;
mod yaml;

pub use clean::{Cleaned, clean};
pub use find::{BUILT_IN, PROMPTS, WorkflowError, examine, load, names, source};
pub use graph::{doer, mermaid, text};
pub use office::{Office, Worker};
pub use runner::{Ending, PhaseError, Runner};
pub use safety::{Safety, safety};
pub use task::{RUNNER, Raised, Setting, State, Status, TaskEvent, Used, name_of};
pub use workflow::{
    Agent, BACK, Bounds, Document, Doer, END, Field, Is, Limits, Memory, Own, Role, Step, Triage, Upkeep,
    Verdict, Work, Workflow,
};
