//! The data model of a workflow: steps, roles, policies, expected answers, and the step that each verdict
//! leads to. Data only, no behaviour.
//!
//! A task stores its workflow as it was when the task began, prompts included, so that editing a workflow
//! file does not affect running tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The special next step "the step that led here".
pub const BACK: &str = "back";
/// The special next step "end of the task".
pub const END: &str = "end";

/// A complete workflow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// The workflow's name.
    pub name: String,
    /// What the workflow is for.
    pub description: String,
    /// The directory of all documents, relative to the repository's top.
    pub documents: String,
    /// The branch that tasks start from and are merged with.
    pub base: String,
    /// The prefix of tasks' branches; the policy's if not given.
    #[serde(default)]
    pub branch_prefix: Option<String>,
    /// Mode → the first step of a task.
    pub modes: BTreeMap<String, String>,
    /// The default mode.
    pub mode: String,
    /// The limits of a task.
    pub limits: Limits,
    /// The agent that performs the roles, unless a role overrides it.
    pub agent: Agent,
    /// The roles by name.
    pub roles: BTreeMap<String, Role>,
    /// The steps, in the file's order.
    pub steps: Vec<Step>,
    /// How agents' feedback is triaged.
    #[serde(default)]
    pub triage: Option<Triage>,
    /// Words in the feedback that contradict a claimed success.
    #[serde(default)]
    pub honesty: Vec<String>,
    /// Lessons of earlier tasks.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// The file with the user's notes, below the documents directory.
    #[serde(default)]
    pub notes: Option<String>,
    /// The file that collects ideas, below the documents directory.
    #[serde(default)]
    pub backlog: Option<String>,
}

/// The limits of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of visits of one step.
    pub rounds: u32,
    /// Maximum number of steps in all.
    pub visits: u32,
    /// The largest number of model tokens; `None` for no limit.
    pub tokens: Option<u64>,
    /// Cost, in the currency of the user's prices.
    pub cost: Option<f64>,
    /// Minutes that agents run.
    pub minutes: Option<f64>,
    /// The percentage of a limit at which to warn.
    pub warn_percent: u32,
    /// The limits of each step, unless it has its own.
    #[serde(default)]
    pub step: Bounds,
}

/// Limits of a task, or of all calls of one step. `None` means unlimited here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Model tokens.
    pub tokens: Option<u64>,
    /// Cost, in the currency of the user's prices.
    pub cost: Option<f64>,
    /// Minutes that agents run.
    pub minutes: Option<f64>,
    /// Maximum number of visits of one step.
    pub rounds: Option<u32>,
}

impl Bounds {
    /// These limits, with `others` for those that are not set.
    pub fn or(self, others: Self) -> Self {
        Self {
            tokens: self.tokens.or(others.tokens),
            cost: self.cost.or(others.cost),
            minutes: self.minutes.or(others.minutes),
            rounds: self.rounds.or(others.rounds),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rounds: 3,
            visits: 40,
            tokens: Some(10_000_000),
            cost: Some(100.0),
            minutes: Some(720.0),
            warn_percent: 80,
            step: Bounds { tokens: Some(2_000_000), cost: Some(20.0), minutes: Some(180.0), rounds: None },
        }
    }
}

/// Which agent to call, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// The name of the adapter.
    pub name: String,
    /// The agent's program, if it is not on the PATH.
    pub command: Option<String>,
    /// The model to ask for.
    pub model: Option<String>,
    /// Seconds without activity before the call is ended.
    pub timeout: Option<u64>,
    /// Maximum seconds of a call.
    pub max_duration: Option<u64>,
    /// How often to retry after a transient failure.
    pub retries: Option<u32>,
    /// Maximum model tokens of one call.
    #[serde(default)]
    pub max_tokens: Option<u64>,
}

/// What a role may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Only its document.
    #[default]
    Read,
    /// The working tree, and commits on the task's branch.
    Commit,
}

/// A role that performs steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// The title shown to the user.
    pub title: String,
    /// The policy of its sandbox.
    pub policy: String,
    /// What it may change.
    pub work: Work,
    /// Settings that override the workflow's agent.
    pub agent: Agent,
}

/// A step that the runner performs itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuiltinStep {
    /// Merges the base into the branch.
    Merge,
    /// Moves the task's documents to the archive.
    Archive,
    /// Pushes the branch and opens a pull request, or reports that the branch is ready.
    Deliver,
}

impl BuiltinStep {
    /// The verdicts the step can end with; empty if it has only one outcome.
    pub fn verdicts(self) -> &'static [&'static str] {
        match self {
            Self::Merge => &["UP_TO_DATE", "MERGED", "CONFLICT"],
            Self::Archive => &[],
            Self::Deliver => &["DELIVERED", "BEHIND"],
        }
    }
}

/// Who performs a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepExecutor {
    /// An agent in this role.
    Role(String),
    /// The runner itself.
    BuiltinStep(BuiltinStep),
}

/// One step of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step's unique name.
    pub id: String,
    /// The name shown to the user, for example `PLANNING`.
    pub status: String,
    /// Who performs the step.
    pub doer: StepExecutor,
    /// The name of the gate, if the user can decide instead of the agent.
    pub gate: Option<String>,
    /// The template of the agent's prompt.
    pub prompt: String,
    /// The document that the step writes.
    pub document: Option<Document>,
    /// The fields of the answer.
    pub answer: BTreeMap<String, Field>,
    /// The branch must contain the base afterwards.
    pub must_merge: bool,
    /// Files at the top of the repository that the agent must change, if they exist, or report as unchanged.
    #[serde(default)]
    pub updates: Vec<String>,
    /// The message when the step is done.
    pub says: Option<String>,
    /// The subject of the step's commit.
    pub commit: Option<String>,
    /// The next step, if there is no verdict.
    pub next: Option<String>,
    /// The next step for each verdict.
    pub verdicts: BTreeMap<String, Verdict>,
    /// The limits of all calls of this step together.
    #[serde(default)]
    pub limits: Bounds,
}

/// A document that a step writes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The name by which later steps refer to it.
    pub name: String,
    /// The path below the documents directory; `{feat}` and `{n}` are replaced.
    pub path: String,
    /// The runner writes it if the agent does not.
    pub optional: bool,
    /// Required headings, each with its alternatives.
    pub sections: Vec<Vec<String>>,
    /// It must be a list of ticked items: `- [x] …`.
    #[serde(default)]
    pub checklist: bool,
}

/// A field of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Field {
    /// The type of its value.
    pub is: FieldType,
    /// It may be missing.
    pub optional: bool,
    /// It is required only if another field has this value.
    pub when: Option<(String, String)>,
}

impl Field {
    /// True if this answer must have the field.
    pub fn is_required(&self, answer: &serde_json::Map<String, serde_json::Value>) -> bool {
        match &self.when {
            Some((other, value)) => answer.get(other).and_then(serde_json::Value::as_str) == Some(value),
            None => !self.optional,
        }
    }
}

/// The type of an answer's field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldType {
    /// Any text that is not empty.
    #[default]
    Text,
    /// The path of the step's document.
    Document,
    /// A commit that the step made on the task's branch.
    Commit,
    /// One of these words.
    OneOf(Vec<String>),
    /// A number.
    Number,
    /// A list of texts.
    List,
}

/// What follows a verdict.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The next step.
    pub next: String,
    /// The message for this verdict.
    pub says: Option<String>,
    /// The runner's message when it commits the step's document, instead of the usual one.
    #[serde(default)]
    pub committed: Option<String>,
}

/// How agents' feedback is triaged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Triage {
    /// The role that decides.
    pub role: String,
    /// The template of its prompt.
    pub prompt: String,
    /// The fields of its answer.
    pub answer: BTreeMap<String, Field>,
    /// How accepted remarks are written into the documentation.
    #[serde(default)]
    pub docs: Option<DocsConfig>,
}

/// How the documentation is updated, and which files it consists of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DocsConfig {
    /// The role that writes.
    pub role: String,
    /// The template of its prompt.
    pub prompt: String,
    /// Glob patterns of the documentation's files; `!` excludes. A pattern without a slash matches file
    /// names.
    pub files: Vec<String>,
    /// Directories in which the agent may create files.
    pub folders: Vec<String>,
    /// The fields of its answer.
    pub answer: BTreeMap<String, Field>,
    /// The subject of its commit.
    pub commit: String,
}

impl DocsConfig {
    /// True if a path of the repository belongs to the documentation.
    pub fn is_documentation(&self, path: &str) -> bool {
        let matches = |pattern: &str| {
            let whole = if pattern.contains('/') { pattern.to_string() } else { format!("**/{pattern}") };
            let glob = globset::GlobBuilder::new(&whole).literal_separator(true).build();
            glob.is_ok_and(|glob| glob.compile_matcher().is_match(path))
        };
        let (not, yes): (Vec<&String>, Vec<&String>) =
            self.files.iter().partition(|pattern| pattern.starts_with('!'));
        yes.iter().any(|pattern| matches(pattern)) && !not.iter().any(|pattern| matches(&pattern[1..]))
    }
}

/// Lessons of earlier tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The file, below the documents directory.
    pub file: String,
    /// The maximum number of its tokens in a prompt.
    pub tokens: u64,
}

impl Workflow {
    /// The step of this name.
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.id == id)
    }

    /// The agent for this role: the workflow's, with the role's overrides.
    pub fn agent_of(&self, role: &Role) -> Agent {
        let (own, all) = (&role.agent, &self.agent);
        let text = |own: &Option<String>, all: &Option<String>| own.clone().or_else(|| all.clone());
        Agent {
            name: if own.name.is_empty() { all.name.clone() } else { own.name.clone() },
            command: text(&own.command, &all.command),
            model: text(&own.model, &all.model),
            timeout: own.timeout.or(all.timeout),
            max_duration: own.max_duration.or(all.max_duration),
            retries: own.retries.or(all.retries),
            max_tokens: own.max_tokens.or(all.max_tokens),
        }
    }

    /// All directories in which documents are stored, those of the archive included.
    pub fn document_directories(&self) -> Vec<String> {
        let mut ways = std::collections::BTreeSet::new();
        for document in self.steps.iter().filter_map(|step| step.document.as_ref()) {
            for path in [document.path.clone(), format!("archived/{}", document.path)] {
                let path = format!("{}/{path}", self.documents);
                ways.extend(path.match_indices('/').map(|(at, _)| path[..at].to_string()));
            }
        }
        ways.into_iter().collect()
    }

    /// The path of a document, with `{feat}` and `{n}` replaced.
    pub fn document_path(&self, path: &str, feat: &str, n: u32) -> String {
        format!("{}/{}", self.documents, path.replace("{feat}", feat).replace("{n}", &n.to_string()))
    }
}

impl Step {
    /// The role, if an agent performs the step.
    pub fn role(&self) -> Option<&str> {
        match &self.doer {
            StepExecutor::Role(role) => Some(role),
            StepExecutor::BuiltinStep(_) => None,
        }
    }

    /// Every next step, with the verdict that leads there.
    pub fn leads_to(&self) -> Vec<(Option<&str>, &str)> {
        let verdicts =
            self.verdicts.iter().map(|(word, verdict)| (Some(word.as_str()), verdict.next.as_str()));
        self.next.iter().map(|next| (None, next.as_str())).chain(verdicts).collect()
    }

    /// The verdicts of the step.
    pub fn verdict_words(&self) -> Vec<&str> {
        match &self.doer {
            StepExecutor::BuiltinStep(own) => own.verdicts().to_vec(),
            StepExecutor::Role(_) => match self.answer.get("verdict").map(|field| &field.is) {
                Some(FieldType::OneOf(words)) => words.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            },
        }
    }
}
