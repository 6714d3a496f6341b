//! The task pipeline (`guard task`): from a request to a reviewed branch.
//!
//! ```text
//!   workflow ─► step ─► prompt ─► agent_exec: fresh sandboxed agent ─► answer, checked ─► commit ─► next step
//!              ▲        │ a journal entry before and after each effect, synced to disk                  │
//!              └────────┴──────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each agent call starts with a new agent, which knows only its prompt and the files of the worktree. The kernel
//! enforces what a role may change, and the runner verifies what an agent claims. Only the runner decides which step
//! follows a verdict. It moves the branch with git plumbing, so a crash at any point loses no finished work and repeats
//! none. The runner repeats an interrupted agent call from the state in which the call began.
#![forbid(unsafe_code)]

mod context;
mod documents;
mod error;
mod resume;
mod runner;
pub(crate) mod steps;
pub mod task;
pub(crate) mod workflow;

pub use error::PipelineError;
pub use runner::{Ending, Runner};
pub use steps::publish::{Safety, safety};
pub use task::clean::{Cleaned, clean};
pub use task::state::{LimitOverrides, RUNNER, State, Status, TaskEvent, TaskSettings, Used, name_of};
pub use task::task_control::control_directory;
pub use task::task_lock::{TaskStore, Worker};
pub use workflow::load::{BUILT_IN, PROMPTS, WorkflowError, examine, load, names, source};
pub use workflow::model::{
    Agent, BACK, Bounds, BuiltinStep, DocsConfig, Document, END, Field, FieldType, Limits, Memory, Role,
    Step, StepExecutor, Triage, Verdict, Work, Workflow,
};
pub use workflow::render::{doer, mermaid, text};
