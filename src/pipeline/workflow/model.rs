//! A workflow: who does what in which order, under which policy, and what an answer leads to. Data, and nothing else.
//!
//! A task keeps its workflow as it was when the task began, prompts included, so that a change of a file changes no task
//! that is under way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a verdict leads when it is nobody's name: the step that led here.
pub const BACK: &str = "back";
/// The end of the task.
pub const END: &str = "end";

/// A whole pipeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The directory of all documents, from the top of the repository.
    pub documents: String,
    /// The branch that tasks begin at and are merged with.
    pub base: String,
    /// What the branches of tasks begin with; the policy's unless given.
    #[serde(default)]
    pub branch_prefix: Option<String>,
    /// Mode → the step a task begins with.
    pub modes: BTreeMap<String, String>,
    /// The mode, unless one is asked for.
    pub mode: String,
    /// Bounds of a task.
    pub limits: Limits,
    /// Who is asked.
    pub agent: Agent,
    /// The roles by name.
    pub roles: BTreeMap<String, Role>,
    /// The steps, in the file's order.
    pub steps: Vec<Step>,
    /// Who decides about what an agent says beside its result.
    #[serde(default)]
    pub triage: Option<Triage>,
    /// Words beside a result that make it unbelievable.
    #[serde(default)]
    pub honesty: Vec<String>,
    /// Lessons of earlier tasks.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// Where people leave notes, below the documents.
    #[serde(default)]
    pub notes: Option<String>,
    /// Where ideas are gathered, below the documents.
    #[serde(default)]
    pub backlog: Option<String>,
}

/// Bounds of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// How often one step may be asked.
    pub rounds: u32,
    /// Steps in all.
    pub visits: u32,
    /// Tokens of models.
    pub tokens: Option<u64>,
    /// Money, in the currency of the user's prices.
    pub cost: Option<f64>,
    /// Minutes of work.
    pub minutes: Option<f64>,
    /// When to warn: percent of a bound.
    pub warn_percent: u32,
    /// What each step may use, unless it says otherwise.
    #[serde(default)]
    pub step: Bounds,
}

/// What may be used, by a task or by all calls of one step in it; what is missing is not bounded here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Tokens of models.
    pub tokens: Option<u64>,
    /// Money, in the currency of the user's prices.
    pub cost: Option<f64>,
    /// Minutes of agents at work.
    pub minutes: Option<f64>,
    /// How often one step may be asked.
    pub rounds: Option<u32>,
}

impl Bounds {
    /// These, and others where these say nothing.
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

/// Who is asked, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// The adapter.
    pub name: String,
    /// Its program, where it is not on the path.
    pub command: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// Seconds without a sign of life.
    pub timeout: Option<u64>,
    /// Seconds in all.
    pub max_duration: Option<u64>,
    /// How often a failure that may pass is tried again.
    pub retries: Option<u32>,
    /// Tokens of a model for one call.
    #[serde(default)]
    pub max_tokens: Option<u64>,
}

/// What a role may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Nothing but its document.
    #[default]
    Read,
    /// The working tree, and commits on the task's branch.
    Commit,
}

/// Somebody who does steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// What it is called in front of people.
    pub title: String,
    /// The policy that holds it.
    pub policy: String,
    /// What it may change.
    pub work: Work,
    /// What is different from the workflow's agent.
    pub agent: Agent,
}

/// What a step does that is no agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuiltinStep {
    /// Merges the base into the branch.
    Merge,
    /// Moves the task's documents to the archive.
    Archive,
    /// Pushes the branch and asks for it to be pulled, or says that it is ready.
    Deliver,
}

impl BuiltinStep {
    /// The words it ends with; none when it just ends.
    pub fn verdicts(self) -> &'static [&'static str] {
        match self {
            Self::Merge => &["UP_TO_DATE", "MERGED", "CONFLICT"],
            Self::Archive => &[],
            Self::Deliver => &["DELIVERED", "BEHIND"],
        }
    }
}

/// Who does a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepExecutor {
    /// An agent in this role.
    Role(String),
    /// The runner itself.
    BuiltinStep(BuiltinStep),
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub id: String,
    /// What people see it as: `PLANNING`.
    pub status: String,
    /// Who does it.
    pub doer: StepExecutor,
    /// The gate's name, where a person can stand in.
    pub gate: Option<String>,
    /// What the agent is asked: a template.
    pub prompt: String,
    /// The document it writes.
    pub document: Option<Document>,
    /// What its answer must hold.
    pub answer: BTreeMap<String, Field>,
    /// The branch must contain the base afterwards.
    pub must_merge: bool,
    /// Files at the top of the repository that must be changed where they exist, or be reported as unchanged.
    #[serde(default)]
    pub updates: Vec<String>,
    /// What is said when it is done.
    pub says: Option<String>,
    /// What its commit is called.
    pub commit: Option<String>,
    /// Where it leads.
    pub next: Option<String>,
    /// Where each verdict leads.
    pub verdicts: BTreeMap<String, Verdict>,
    /// What it may use, all its calls together.
    #[serde(default)]
    pub limits: Bounds,
}

/// A document that a step writes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// What later steps call it.
    pub name: String,
    /// Where it is, below the documents: `{feat}` and `{n}` are filled in.
    pub path: String,
    /// The runner writes it when the agent does not.
    pub optional: bool,
    /// Headings it must have, each with other words for it.
    pub sections: Vec<Vec<String>>,
    /// It is a list of items, each ticked: `- [x] …`.
    #[serde(default)]
    pub checklist: bool,
}

/// A field of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Field {
    /// What it is.
    pub is: FieldType,
    /// It may be missing.
    pub optional: bool,
    /// It must be there when another field has this value, and may be missing otherwise.
    pub when: Option<(String, String)>,
}

impl Field {
    /// Whether this answer must have it.
    pub fn is_wanted(&self, answer: &serde_json::Map<String, serde_json::Value>) -> bool {
        match &self.when {
            Some((other, value)) => answer.get(other).and_then(serde_json::Value::as_str) == Some(value),
            None => !self.optional,
        }
    }
}

/// What a field of an answer is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldType {
    /// Any text that is not empty.
    #[default]
    Text,
    /// The path of the step's document.
    Document,
    /// A commit of the step's on the task's branch.
    Commit,
    /// One of these words.
    OneOf(Vec<String>),
    /// A number.
    Number,
    /// Texts.
    List,
}

/// Where a verdict leads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The step.
    pub next: String,
    /// What is said.
    pub says: Option<String>,
    /// What the runner says when the step's document is committed, instead of the usual line.
    #[serde(default)]
    pub committed: Option<String>,
}

/// Who decides about what is said beside results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Triage {
    /// The role.
    pub role: String,
    /// What it is asked: a template.
    pub prompt: String,
    /// What its answer must hold.
    pub answer: BTreeMap<String, Field>,
    /// Who brings into the documentation what belongs there.
    #[serde(default)]
    pub docs: Option<DocsConfig>,
}

/// Who brings things into the documentation, and what that is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DocsConfig {
    /// The role.
    pub role: String,
    /// What it is asked: a template.
    pub prompt: String,
    /// Which files are documentation: patterns, and with `!` what is not after all. One without a slash is about names.
    pub files: Vec<String>,
    /// Directories in which new ones may be made.
    pub folders: Vec<String>,
    /// What its answer must hold.
    pub answer: BTreeMap<String, Field>,
    /// What its commit is called.
    pub commit: String,
}

impl DocsConfig {
    /// Whether a path of the repository is documentation.
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
    /// The file, below the documents.
    pub file: String,
    /// How much of it a prompt may hold.
    pub tokens: u64,
}

impl Workflow {
    /// The step of this name.
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.id == id)
    }

    /// Who is asked in this role.
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

    /// Every directory on the way to a document, or to where it is archived.
    pub fn ways(&self) -> Vec<String> {
        let mut ways = std::collections::BTreeSet::new();
        for document in self.steps.iter().filter_map(|step| step.document.as_ref()) {
            for path in [document.path.clone(), format!("archived/{}", document.path)] {
                let path = format!("{}/{path}", self.documents);
                ways.extend(path.match_indices('/').map(|(at, _)| path[..at].to_string()));
            }
        }
        ways.into_iter().collect()
    }

    /// What a document is called in front of people, and where it lies.
    pub fn place_of(&self, path: &str, feat: &str, n: u32) -> String {
        format!("{}/{}", self.documents, path.replace("{feat}", feat).replace("{n}", &n.to_string()))
    }
}

impl Step {
    /// The role, where an agent does it.
    pub fn role(&self) -> Option<&str> {
        match &self.doer {
            StepExecutor::Role(role) => Some(role),
            StepExecutor::BuiltinStep(_) => None,
        }
    }

    /// Everywhere it can lead.
    pub fn leads_to(&self) -> Vec<(Option<&str>, &str)> {
        let verdicts =
            self.verdicts.iter().map(|(word, verdict)| (Some(word.as_str()), verdict.next.as_str()));
        self.next.iter().map(|next| (None, next.as_str())).chain(verdicts).collect()
    }

    /// The words that decide where it leads.
    pub fn words(&self) -> Vec<&str> {
        match &self.doer {
            StepExecutor::BuiltinStep(own) => own.verdicts().to_vec(),
            StepExecutor::Role(_) => match self.answer.get("verdict").map(|field| &field.is) {
                Some(FieldType::OneOf(words)) => words.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            },
        }
    }
}
