//! A task: what it is from its beginning, how far it has come, and what it says on the way.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::pipeline::workflow::model::{Agent, Bounds, Workflow};
use crate::transcript::EventType;
use crate::workspace::TaskTree;

/// What does not change while a task goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSettings {
    /// The workflow, as it was when the task began.
    pub workflow: Workflow,
    /// The mode.
    pub mode: String,
    /// The task's name in file names.
    pub feat: String,
    /// Worktree and branch.
    pub tree: TaskTree,
    /// A directory of the repository that is the user's own.
    pub repository: PathBuf,
    /// The user said that the repository's configuration is theirs.
    #[serde(default)]
    pub trusted: bool,
    /// Name and address in the runner's own commits.
    pub who: (String, String),
    /// Gates at which a person decides.
    #[serde(default)]
    pub gates: Vec<String>,
    /// What is different from the workflow's agent.
    #[serde(default)]
    pub agent: Agent,
    /// The command that must succeed after work on the code: the project's own unless one is named; with no words, none.
    #[serde(default)]
    pub tests: Option<Vec<String>>,
    /// The remote that the branch is pushed to; none leaves it here.
    #[serde(default)]
    pub remote: Option<String>,
    /// What was found out about the base there, before anything was made.
    #[serde(default)]
    pub safety: String,
}

/// How far a task has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The step it is at.
    pub step: String,
    /// The visit: how many steps have been begun.
    pub visit: u32,
    /// The step that led to this one.
    #[serde(default)]
    pub from: Option<String>,
    /// How often each step was visited, this time included.
    #[serde(default)]
    pub rounds: BTreeMap<String, u32>,
    /// The same, since a person last let it go on.
    #[serde(default)]
    pub since: BTreeMap<String, u32>,
    /// Documents by name: where they are.
    #[serde(default)]
    pub documents: BTreeMap<String, String>,
    /// What was said when the task was sent back.
    #[serde(default)]
    pub feedback: String,
    /// What git said of conflicts.
    #[serde(default)]
    pub conflicts: String,
    /// The files it was about.
    #[serde(default)]
    pub conflict_files: Vec<String>,
    /// The step that reviews merges, while a merge waits for its approval.
    #[serde(default)]
    pub merge_review: Option<String>,
    /// The person who has merged by hand what the agent of this step could not: name and address.
    #[serde(default)]
    pub merged_by: Option<(String, String)>,
    /// What each gate said last, and about what: to see when nothing changes.
    #[serde(default)]
    pub said: BTreeMap<String, (String, String)>,
    /// What was used.
    #[serde(default)]
    pub used: Used,
    /// The same by step: what its own calls used, and those about what it said.
    #[serde(default)]
    pub used_by: BTreeMap<String, Used>,
    /// Bounds that were warned of.
    #[serde(default)]
    pub warned: Vec<String>,
    /// Where it was delivered.
    #[serde(default)]
    pub delivered: Option<String>,
    /// Another command for the tests, named since the task began.
    #[serde(default)]
    pub tests: Option<Vec<String>>,
    /// Bounds that somebody has raised since the task began.
    #[serde(default)]
    pub raised: LimitOverrides,
}

/// Bounds instead of the workflow's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitOverrides {
    /// The task's.
    #[serde(default)]
    pub task: Bounds,
    /// Those of steps, by name.
    #[serde(default)]
    pub steps: BTreeMap<String, Bounds>,
}

/// What a task has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Tokens of models.
    pub tokens: u64,
    /// Money.
    pub cost: f64,
    /// Milliseconds of agents at work.
    pub agent_ms: u64,
    /// Calls of agents.
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

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// Somebody works on it, or was interrupted.
    Running,
    /// The branch is ready.
    Succeeded,
    /// A step failed; `resume` tries it again.
    Failed,
    /// A person must decide, or let it go on.
    NeedsHuman,
    /// A bound was reached; `resume` with a larger one goes on.
    BudgetExhausted,
    /// Ended by a signal; `resume` goes on.
    Interrupted,
    /// Given up.
    Cancelled,
}

impl Status {
    /// As it is written.
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

    /// As it is read.
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(Value::from(name)).ok()
    }
}

/// What a task says: for people, and for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskEvent {
    /// `task.said`, `task.step`, `task.step_ended`, `task.agent`, `task.commit`, `task.ended`, …
    pub event_type: EventType,
    /// One line for people.
    pub message: String,
    /// More.
    pub data: Value,
}

impl TaskEvent {
    pub(crate) fn new(event_type: EventType, message: impl Into<String>, data: Value) -> Self {
        Self { event_type, message: message.into(), data }
    }

    /// Somebody says something.
    pub(crate) fn said(who: &str, message: impl Into<String>) -> Self {
        Self::new(EventType::TaskSaid, message, json!({ "who": who }))
    }
}

/// The runner's own name.
pub const RUNNER: &str = "ORCHESTRATOR";

/// A name for files and branches from what was asked: its telling words.
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
