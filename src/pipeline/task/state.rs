//! The data of a task: its fixed settings, its progress, its status, and the events it reports.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::pipeline::workflow::model::{Agent, Bounds, Workflow};
use crate::transcript::EventType;
use crate::workspace::TaskTree;

/// The part of a task that never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSettings {
    /// The workflow as it was when the task began.
    pub workflow: Workflow,
    /// The name of the workflow's mode.
    pub mode: String,
    /// The task's short name, used in file and branch names.
    pub feat: String,
    /// The task's worktree and branch.
    pub tree: TaskTree,
    /// A directory in the user's own checkout of the repository.
    pub repository: PathBuf,
    /// The user declared the repository's configuration trustworthy.
    #[serde(default)]
    pub trusted: bool,
    /// The name and e-mail address for commits that the runner makes.
    pub who: (String, String),
    /// The gates at which the user decides.
    #[serde(default)]
    pub gates: Vec<String>,
    /// Settings that override the workflow's agent.
    #[serde(default)]
    pub agent: Agent,
    /// The command that must succeed after work on the code. `None` means the project's own; an empty one
    /// runs no tests.
    #[serde(default)]
    pub tests: Option<Vec<String>>,
    /// The remote to push the branch to; `None` keeps the branch local.
    #[serde(default)]
    pub remote: Option<String>,
    /// What was known about the base branch's protection at the remote when the task was created.
    #[serde(default)]
    pub safety: String,
}

/// The progress of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The current step.
    pub step: String,
    /// The number of the visit: how many steps have been begun.
    pub visit: u32,
    /// The step that led to the current one.
    #[serde(default)]
    pub from: Option<String>,
    /// How often each step was visited, including the current visit.
    #[serde(default)]
    pub rounds: BTreeMap<String, u32>,
    /// Like `rounds`, since the user last resumed the task.
    #[serde(default)]
    pub since: BTreeMap<String, u32>,
    /// The documents: name → path.
    #[serde(default)]
    pub documents: BTreeMap<String, String>,
    /// The feedback of the gate that sent the task back.
    #[serde(default)]
    pub feedback: String,
    /// git's report about merge conflicts.
    #[serde(default)]
    pub conflicts: String,
    /// The files with conflicts.
    #[serde(default)]
    pub conflict_files: Vec<String>,
    /// The step that reviews merges, while a merge waits for approval.
    #[serde(default)]
    pub merge_review: Option<String>,
    /// The name and address of the user who merged by hand what the agent of this step could not.
    #[serde(default)]
    pub merged_by: Option<(String, String)>,
    /// Digests of each gate's last feedback and of the work it was about, to detect rounds without progress.
    #[serde(default)]
    pub said: BTreeMap<String, (String, String)>,
    /// What the task has used so far.
    #[serde(default)]
    pub used: Used,
    /// The usage by step: its own calls, and those to triage its feedback.
    #[serde(default)]
    pub used_by: BTreeMap<String, Used>,
    /// The limits that a warning was given for.
    #[serde(default)]
    pub warned: Vec<String>,
    /// Where the branch was delivered.
    #[serde(default)]
    pub delivered: Option<String>,
    /// A test command set since the task began.
    #[serde(default)]
    pub tests: Option<Vec<String>>,
    /// Limits raised since the task began.
    #[serde(default)]
    pub raised: LimitOverrides,
}

/// Limits that override the workflow's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitOverrides {
    /// Overrides for the whole task.
    #[serde(default)]
    pub task: Bounds,
    /// Overrides for single steps, by name.
    #[serde(default)]
    pub steps: BTreeMap<String, Bounds>,
}

/// The resources that a task has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Model tokens.
    pub tokens: u64,
    /// Cost, in the currency of the user's prices.
    pub cost: f64,
    /// Milliseconds that agents were running.
    pub agent_ms: u64,
    /// The number of agent calls.
    pub calls: u64,
}

impl std::ops::AddAssign for Used {
    fn add_assign(&mut self, more: Self) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.cost += more.cost;
        self.agent_ms = self.agent_ms.saturating_add(more.agent_ms);
        self.calls += more.calls;
    }
}

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// A process works on it, or died while doing so.
    Running,
    /// The branch is ready.
    Succeeded,
    /// A step failed; `resume` tries it again.
    Failed,
    /// The user must decide or resume.
    NeedsHuman,
    /// A limit was reached; `resume` with a higher one continues.
    BudgetExhausted,
    /// Stopped by a signal; `resume` continues.
    Interrupted,
    /// The user gave the task up.
    Cancelled,
}

impl Status {
    /// The status as written in the journal and in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::NeedsHuman => "needs_human",
            Self::BudgetExhausted => "budget_exhausted",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses what [`Status::name`] returns.
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(Value::from(name)).ok()
    }
}

/// An event of a task, as the task reports it to its caller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskEvent {
    /// `task.said`, `task.step`, `task.step_ended`, `task.agent`, `task.commit`, `task.ended`, …
    pub event_type: EventType,
    /// One line for the user.
    pub message: String,
    /// Structured data for programs.
    pub data: Value,
}

impl TaskEvent {
    pub(crate) fn new(event_type: EventType, message: impl Into<String>, data: Value) -> Self {
        Self { event_type, message: message.into(), data }
    }

    /// A message by a role or the runner.
    pub(crate) fn said(who: &str, message: impl Into<String>) -> Self {
        Self::new(EventType::TaskSaid, message, json!({ "who": who }))
    }
}

/// The name under which the runner reports events.
pub const RUNNER: &str = "ORCHESTRATOR";

/// Derives a name for files and branches from a request: its significant words.
pub fn name_of(request: &str) -> String {
    const FILLERS: [&str; 44] = [
        "a",
        "an",
        "the",
        "to",
        "of",
        "in",
        "on",
        "for",
        "and",
        "or",
        "with",
        "add",
        "make",
        "please",
        "simple",
        "new",
        "implement",
        "create",
        "write",
        "use",
        "using",
        "that",
        "this",
        "it",
        "is",
        "be",
        "so",
        "we",
        "our",
        "my",
        "your",
        "into",
        "from",
        "by",
        "as",
        "at",
        "should",
        "want",
        "need",
        "some",
        "all",
        "when",
        "if",
        "i",
    ];
    let says_something = |part: &&str| part.contains(char::is_alphanumeric);
    let sentence = request.split(['.', '\n', '!', '?', ';']).find(says_something).unwrap_or(request);
    let words = sentence.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let telling: Vec<String> =
        words.map(str::to_lowercase).filter(|word| !FILLERS.contains(&word.as_str())).take(4).collect();
    if telling.is_empty() { "task".to_string() } else { telling.join("-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_telling() {
        for (request, wanted) in [
            (
                "Add a simple Dark Mode toggle to the main settings page. Use a checkbox.",
                "dark-mode-toggle-main",
            ),
            ("Fix crash!", "fix-crash"),
            ("the of a", "task"),
            ("", "task"),
            ("../../etc", "etc"),
            ("Größe ändern", "größe-ändern"),
        ] {
            assert_eq!(name_of(request), wanted, "{request}");
        }
    }

    #[test]
    fn a_status_is_read_as_it_is_written() {
        for status in [
            Status::Running,
            Status::Succeeded,
            Status::NeedsHuman,
            Status::BudgetExhausted,
            Status::Interrupted,
        ] {
            assert_eq!(Status::parse(status.name()), Some(status));
        }
        assert_eq!(Status::parse("odd"), None);
    }
}
