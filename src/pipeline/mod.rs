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

mod documents;
mod resume;
mod runner;
pub(crate) mod steps;
pub mod task;
pub(crate) mod workflow;

pub use runner::{Ending, PipelineError, Runner};
pub use steps::publish::{Safety, safety};
pub use task::clean::{Cleaned, clean};
pub use task::state::{LimitOverrides, RUNNER, State, Status, TaskEvent, TaskSettings, Used, name_of};
pub use task::task_lock::{TaskStore, Worker};
pub use workflow::load::{BUILT_IN, PROMPTS, WorkflowError, examine, load, names, source};
pub use workflow::model::{
    Agent, BACK, Bounds, BuiltinStep, DocsConfig, Document, END, Field, FieldType, Limits, Memory, Role,
    Step, StepExecutor, Triage, Verdict, Work, Workflow,
};
pub use workflow::render::{doer, mermaid, text};
