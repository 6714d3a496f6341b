//! The steps of a task: ask an agent, validate its answer, commit its work, or perform a built-in step.
pub(crate) mod agent_step;
pub(crate) mod answer;
pub(crate) mod builtin_steps;
pub(crate) mod feedback;
pub(crate) mod feedback_triage;
pub(crate) mod finish_step;
pub(crate) mod manual_merge;
pub(crate) mod project_tests;
pub(crate) mod publish;
pub(crate) mod validate_answer;
