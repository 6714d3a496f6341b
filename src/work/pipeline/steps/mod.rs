//! The steps of a task: ask an agent, validate its answer, commit its work, or perform a built-in step.
//!
//! Each step is a function that takes the task's [`TaskContext`](super::context::TaskContext). Functions that
//! only check something take the [`Task`](super::context::Task).

pub(crate) mod agent_call;
pub(crate) mod agent_step;
pub(crate) mod answer;
pub(crate) mod builtin_steps;
pub(crate) mod document_commit;
pub(crate) mod feedback;
pub(crate) mod feedback_triage;
pub(crate) mod finish_step;
pub(crate) mod manual_merge;
pub(crate) mod project_tests;
pub(crate) mod publish;
pub(crate) mod research_step;
pub(crate) mod validate_answer;

use super::error::PipelineError;
use super::task::state::Status;
use super::workflow::model::Step;

/// What the runner does after a step.
pub(crate) enum Next {
    /// Continue with the step `to`, and give its agent this feedback.
    Go { to: String, feedback: String },
    /// Stop the task for now, with this status and reason.
    Stop(Status, String),
}

/// Returns the step that the workflow defines for the verdict `word`, or the step's only successor if `word` is `None`.
/// Fails if the workflow defines no such step.
pub(crate) fn next_step(step: &Step, word: Option<&str>) -> Result<String, PipelineError> {
    let way =
        word.map_or_else(|| step.next.as_ref(), |word| step.verdicts.get(word).map(|verdict| &verdict.next));
    let strange = || {
        let after = word.map_or_else(String::new, |word| format!(" after the verdict {word}"));
        PipelineError::Strange(format!("the step {} has no next step{after}", step.id))
    };
    way.cloned().ok_or_else(strange)
}
