//! The data model of a workflow: steps, roles, policies, expected answers, and the step that each verdict
//! leads to.
//!
//! A task stores its workflow as it was when the task began, prompts included, so that editing a workflow
//! file does not affect running tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::work::research::ResearchConfig;

/// The word that a workflow writes in place of a next step's name to return to the step that led to the current one.
pub const BACK: &str = "back";
/// The word that a workflow writes in place of a next step's name to end the task.
pub const END: &str = "end";

/// A complete workflow: the steps of a task, the roles that perform them, and the limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    pub name: String,
    pub description: String,
    /// The directory for the documents that the steps write, such as plans and reviews, relative to the top of the
    /// repository.
    pub documents: String,
    /// The branch that tasks start from and are merged with, for example `main`.
    pub base: String,
    /// The prefix of the names of tasks' branches. `None` means the policy's prefix.
    #[serde(default)]
    pub branch_prefix: Option<String>,
    /// The first step of a task, for each mode.
    pub modes: BTreeMap<String, String>,
    /// The mode that a task uses if the user names none.
    pub mode: String,
    pub limits: Limits,
    /// The agent that performs all roles, unless a role overrides it.
    pub agent: Agent,
    pub roles: BTreeMap<String, Role>,
    /// The steps, in the order of the file.
    pub steps: Vec<Step>,
    /// How agents' feedback is triaged. `None` means that it is not triaged.
    #[serde(default)]
    pub triage: Option<Triage>,
    /// Words, or beginnings of words, that contradict a claimed success if they occur in the agent's feedback and are
    /// not negated there.
    #[serde(default)]
    pub honesty: Vec<String>,
    /// Where lessons of earlier tasks are stored. `None` means that no lessons are kept.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// The file with the user's notes for agents, relative to the documents directory.
    #[serde(default)]
    pub notes: Option<String>,
    /// The file that collects ideas for later work, relative to the documents directory.
    #[serde(default)]
    pub backlog: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of times that the runner executes any one step before the task stops and waits for the user.
    pub rounds: u32,
    /// Maximum number of times that the runner executes steps, all together, before the task stops and waits for the
    /// user.
    pub visits: u32,
    /// Maximum number of model tokens; `None` for no limit.
    pub tokens: Option<u64>,
    /// Maximum cost, in the currency of the user's prices; `None` for no limit.
    pub cost: Option<f64>,
    /// Maximum number of minutes that agents run; `None` for no limit.
    pub minutes: Option<f64>,
    /// The percentage of a limit at which the user is warned.
    pub warn_percent: u32,
    /// The limits on each step. A step can replace each of them by its own.
    #[serde(default)]
    pub step: Bounds,
}

/// Limits on a task, or on all agent calls of one step together. A field is `None` if it sets no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    pub tokens: Option<u64>,
    /// Maximum cost, in the currency of the user's prices.
    pub cost: Option<f64>,
    /// Maximum number of minutes that agents run.
    pub minutes: Option<f64>,
    /// Maximum number of times that the runner executes one step before the task stops and waits for the user.
    pub rounds: Option<u32>,
}

impl Bounds {
    /// Returns these limits, with each missing one taken from `others`.
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

/// Which agent CLI to call, and with which settings. `None` means the default or, in an override, no change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// The name of the agent's adapter, for example `gemini`.
    pub name: String,
    /// The agent's program, if it is not the one on the PATH.
    pub command: Option<String>,
    pub model: Option<String>,
    /// Number of seconds without activity after which guard ends the call.
    pub timeout: Option<u64>,
    /// Maximum duration of a call, in seconds.
    pub max_duration: Option<u64>,
    /// How many times guard retries a call after a temporary failure.
    pub retries: Option<u32>,
    /// Maximum number of model tokens that one call may use.
    #[serde(default)]
    pub max_tokens: Option<u64>,
}

/// What an agent in a role may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// The agent may write only its step's document. The agent that updates the documentation may write the files of
    /// the documentation instead.
    #[default]
    Read,
    /// The agent may change the worktree and make commits on the task's branch.
    Commit,
}

/// A role in which agents perform steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// The title of the role, which guard shows to the user.
    pub title: String,
    pub policy: String,
    pub work: Work,
    /// Settings that override those of the workflow's agent.
    pub agent: Agent,
}

/// The kinds of steps that the runner performs itself, without an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuiltinStep {
    /// Merges the base branch into the task's branch.
    Merge,
    /// Moves the task's documents to the archive.
    Archive,
    /// Pushes the branch and opens a pull request, or reports that the branch is ready.
    Deliver,
}

impl BuiltinStep {
    /// Returns the verdicts that the built-in step can end with; empty if it has only one outcome.
    pub fn verdicts(self) -> &'static [&'static str] {
        match self {
            Self::Merge => &["UP_TO_DATE", "MERGED", "CONFLICT"],
            Self::Archive => &[],
            Self::Deliver => &["DELIVERED", "BEHIND"],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepExecutor {
    /// An agent performs the step in the role of this name.
    Role(String),
    BuiltinStep(BuiltinStep),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step's unique name.
    pub id: String,
    /// The name of the step as shown to the user, for example `PLANNING`.
    pub status: String,
    pub doer: StepExecutor,
    /// The name of the step's gate; `None` if the user cannot decide in place of the agent.
    pub gate: Option<String>,
    /// The template of the prompt for the step's agent.
    pub prompt: String,
    pub document: Option<Document>,
    /// The fields that the agent's answer must or may have.
    pub answer: BTreeMap<String, Field>,
    /// Whether the agent must merge the base branch into the task's branch in this step.
    pub must_merge: bool,
    /// Files at the top of the repository that the agent must change or explicitly report as unchanged, if they exist.
    #[serde(default)]
    pub updates: Vec<String>,
    /// The template of the message that the runner shows when a step without verdicts is done.
    pub says: Option<String>,
    /// The beginning of the subject line of the commit that the step makes; `None` means `Notes`.
    pub commit: Option<String>,
    /// The name of the next step, [`BACK`] or [`END`], if this step has no verdicts.
    pub next: Option<String>,
    /// The next step for each verdict.
    pub verdicts: BTreeMap<String, Verdict>,
    /// The limits on all agent calls of this step together.
    #[serde(default)]
    pub limits: Bounds,
    /// The settings of the deep research that performs the step, in place of one call of the role's agent. `None` means
    /// one call.
    #[serde(default)]
    pub deep_research: Option<ResearchConfig>,
}

/// A document that a step writes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The name by which later steps refer to the document.
    pub name: String,
    /// The path of the document relative to the documents directory. `{feat}` stands for the task's short name, `{n}`
    /// for the number of the step's round, from 1.
    pub path: String,
    /// Whether the agent may leave the document out; the runner then writes it.
    pub optional: bool,
    /// The headings that the document must have. Each inner list contains alternatives, one of which must occur.
    pub sections: Vec<Vec<String>>,
    /// Whether the document must be a list of ticked items: `- [x] …`.
    #[serde(default)]
    pub checklist: bool,
}

/// A field of an agent's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Field {
    pub is: FieldType,
    /// Whether the field may be missing. Has no effect if `when` is set.
    pub optional: bool,
    /// The name of another field, and a value. This field is required if the other field has this value, and optional
    /// otherwise. `None` means that only `optional` decides.
    pub when: Option<(String, String)>,
}

impl Field {
    pub fn is_required(&self, answer: &serde_json::Map<String, serde_json::Value>) -> bool {
        match &self.when {
            Some((other, value)) => answer.get(other).and_then(serde_json::Value::as_str) == Some(value),
            None => !self.optional,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldType {
    /// A JSON string that is not empty.
    #[default]
    Text,
    /// The path of the step's document.
    Document,
    /// A commit that the step made on the task's branch.
    Commit,
    /// One of these words, for example `APPROVE` or `REJECT`.
    OneOf(Vec<String>),
    Number,
    /// A JSON list of strings.
    List,
}

/// What follows if a step ends with a certain verdict.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The name of the step that follows, [`BACK`] or [`END`].
    pub next: String,
    /// The template of the message that the runner shows for this verdict.
    pub says: Option<String>,
    /// The line that the runner shows to the user after it has committed the step's document with this verdict. `None`
    /// means the usual line.
    #[serde(default)]
    pub committed: Option<String>,
}

/// How agents' feedback is triaged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Triage {
    /// The role that decides what to do with a remark.
    pub role: String,
    /// The template of the prompt for the deciding role.
    pub prompt: String,
    /// The fields of the deciding role's answer.
    pub answer: BTreeMap<String, Field>,
    /// How accepted remarks are written into the documentation. `None` means that they are not.
    #[serde(default)]
    pub docs: Option<DocsConfig>,
}

/// How the documentation is updated, and which files it consists of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DocsConfig {
    /// The role that writes the documentation.
    pub role: String,
    /// The template of the prompt for the writing role.
    pub prompt: String,
    /// Glob patterns of the files that belong to the documentation. A pattern that begins with `!` excludes files. A
    /// pattern without a slash matches file names.
    pub files: Vec<String>,
    /// Directories in which the writing role may create files.
    pub folders: Vec<String>,
    /// The fields of the writing role's answer.
    pub answer: BTreeMap<String, Field>,
    /// The beginning of the subject line of the commit with the changed documentation.
    pub commit: String,
}

impl DocsConfig {
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

/// Where lessons of earlier tasks are stored, and how much of them a prompt contains.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The file with the lessons, relative to the documents directory.
    pub file: String,
    /// Maximum number of tokens of lessons in a prompt.
    pub tokens: u64,
}

impl Workflow {
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.id == id)
    }

    /// Returns the agent settings for this role: the workflow's settings with the role's overrides.
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

    /// Returns every directory on the path of a document or of an archived document, relative to the top of the
    /// repository.
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

    /// Returns the path of a document relative to the top of the repository. Replaces `{feat}` with the task's short
    /// name and `{n}` with the number of the round.
    pub fn document_path(&self, path: &str, feat: &str, n: u32) -> String {
        format!("{}/{}", self.documents, path.replace("{feat}", feat).replace("{n}", &n.to_string()))
    }
}

impl Step {
    /// Returns the role of the agent that performs the step; `None` for a built-in step.
    pub fn role(&self) -> Option<&str> {
        match &self.doer {
            StepExecutor::Role(role) => Some(role),
            StepExecutor::BuiltinStep(_) => None,
        }
    }

    /// Returns every possible next step, each with the verdict that leads to it (`None` if no verdict is needed).
    pub fn leads_to(&self) -> Vec<(Option<&str>, &str)> {
        let verdicts =
            self.verdicts.iter().map(|(word, verdict)| (Some(word.as_str()), verdict.next.as_str()));
        self.next.iter().map(|next| (None, next.as_str())).chain(verdicts).collect()
    }

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
