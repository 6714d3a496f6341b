//! The data of a task: its fixed settings, its progress, its status, and the events it reports.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::git::TaskTree;
use crate::run::transcript::EventType;
use crate::work::pipeline::workflow::model::{Agent, Bounds, Workflow};

/// The settings of a task, which do not change after the task has been created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSettings {
    /// The workflow as it was when the task began.
    pub workflow: Workflow,
    pub mode: String,
    /// The task's short name, used in file and branch names.
    pub feat: String,
    pub tree: TaskTree,
    /// The top directory of the user's own checkout of the repository, or the git directory of a bare repository; never
    /// the task's worktree.
    pub repository: PathBuf,
    /// Whether the user declared the repository's configuration trustworthy.
    #[serde(default)]
    pub trusted: bool,
    /// The name and e-mail address for commits that the runner makes.
    pub who: (String, String),
    /// The names of the gates at which the user decides instead of an agent.
    #[serde(default)]
    pub gates: Vec<String>,
    /// The agent settings from the command line, which override those of the roles and of the workflow.
    #[serde(default)]
    pub agent: Agent,
    /// The command that must succeed after an agent worked on the code. `None` means that guard detects the project's
    /// own command; an empty command means that no tests are run.
    #[serde(default)]
    pub tests: Option<Vec<String>>,
    /// The remote to push the branch to; `None` keeps the branch local.
    #[serde(default)]
    pub remote: Option<String>,
    /// What guard knew about the base branch's protection at the remote when the task was created, as text for the
    /// user.
    #[serde(default)]
    pub safety: String,
}

/// The progress of a task, stored in the journal after each step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The id of the current step.
    pub step: String,
    /// The number of the current visit (execution of a step), counted from 1 across all steps of the task.
    pub visit: u32,
    /// The id of the step that led to the current step; `None` for the first step.
    #[serde(default)]
    pub from: Option<String>,
    /// How many times the runner has executed each step, including the current visit.
    #[serde(default)]
    pub rounds: BTreeMap<String, u32>,
    /// The number of executions of each step that count towards the limits on rounds and visits. The numbers start
    /// again when the user resumes a task that waited for the user, continues after a merge by hand, or uses `guard
    /// task retry`.
    #[serde(default)]
    pub since: BTreeMap<String, u32>,
    /// The path of each document written so far, by the document's name.
    #[serde(default)]
    pub documents: BTreeMap<String, String>,
    /// The feedback of the reviewing step that sent the task back to the current step.
    #[serde(default)]
    pub feedback: String,
    /// git's report about the conflicts of the last merge.
    #[serde(default)]
    pub conflicts: String,
    /// The files with conflicts in the last merge.
    #[serde(default)]
    pub conflict_files: Vec<String>,
    /// The step that must approve the last merge; `None` if no merge waits for approval.
    #[serde(default)]
    pub merge_review: Option<String>,
    /// The name and address of the user who merged by hand because the agent of the current step could not.
    #[serde(default)]
    pub merged_by: Option<(String, String)>,
    /// For each reviewing step, digests of its last feedback and of the reviewed work, used to detect rounds
    /// without progress.
    #[serde(default)]
    pub said: BTreeMap<String, (String, String)>,
    #[serde(default)]
    pub used: Used,
    /// The resources used by each step: by its own agent calls, and by the calls that triaged its feedback.
    #[serde(default)]
    pub used_by: BTreeMap<String, Used>,
    /// The limits about which the user has already been warned.
    #[serde(default)]
    pub warned: Vec<String>,
    /// The URL of the branch's pull request or, if the branch stays local, the path of the task's summary; `None` if
    /// the task has not delivered the branch yet.
    #[serde(default)]
    pub delivered: Option<String>,
    /// The test command that the user set after the task began; it replaces the one in the task's settings.
    #[serde(default)]
    pub tests: Option<Vec<String>>,
    /// The limits that the user raised after the task began.
    #[serde(default)]
    pub raised: LimitOverrides,
}

/// Limits that override those of the workflow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitOverrides {
    #[serde(default)]
    pub task: Bounds,
    /// Overrides for single steps, by name.
    #[serde(default)]
    pub steps: BTreeMap<String, Bounds>,
}

/// The resources that a task has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    pub tokens: u64,
    /// The cost, in the currency of the user's prices.
    pub cost: f64,
    /// How long agents were running, in milliseconds.
    pub agent_ms: u64,
    /// The number of agent calls made.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// A process is working on the task, or a process that worked on it died before it could record another status.
    Running,
    /// The task is complete: its branch is ready.
    Succeeded,
    /// A step failed; `guard task resume` tries it again.
    Failed,
    /// The task waits for the user to decide or to resume it.
    NeedsHuman,
    /// A limit was reached; `guard task resume` with a higher limit continues the task.
    BudgetExhausted,
    /// A signal stopped the task; `guard task resume` continues it.
    Interrupted,
    Cancelled,
}

impl Status {
    /// Returns the name of the status in the journal and in guard's output.
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

    /// Parses a name that [`Status::name`] returned; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(Value::from(name)).ok()
    }
}

/// An event that a task reports to its caller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskEvent {
    /// The type of the event: `task.said`, `task.step`, `task.step_ended`, `task.agent`, `task.commit`, `task.ended`, …
    pub event_type: EventType,
    /// The event as one line of text for the user.
    pub message: String,
    /// The event as structured data for programs.
    pub data: Value,
}

impl TaskEvent {
    pub(crate) fn new(event_type: EventType, message: impl Into<String>, data: Value) -> Self {
        Self { event_type, message: message.into(), data }
    }

    /// Creates the event for a message by a role or the runner.
    pub(crate) fn said(who: &str, message: impl Into<String>) -> Self {
        Self::new(EventType::TaskSaid, message, json!({ "who": who }))
    }
}

/// The name under which guard shows the messages of the runner itself.
pub const RUNNER: &str = "ORCHESTRATOR";

/// Derives a task's short name, used for files and branches, from the first four significant words of the request's
/// first sentence. A request without such words gets the name `task`.
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
