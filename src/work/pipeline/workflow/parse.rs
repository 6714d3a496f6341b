//! Parses a workflow file into a [`Workflow`], with the position of every error.
//!
//! Parsing continues after an error, so that all errors are reported at once. `lint.rs` checks how the parts of the
//! workflow fit together (a step that leads nowhere, a prompt with an unknown value).

use std::collections::BTreeMap;
use std::ops::Range;

use super::model::{Agent, Bounds, DocsConfig, Limits, Memory, Role, Triage, Work, Workflow};
use super::yaml;
use super::yaml::{Node, Value};
use crate::judge::policy::{Diagnostic, Severity, Source, is_branch_prefix};

/// The positions of a workflow's parts in the file. `lint.rs` needs them to say where a problem is.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// The byte range of each part. Keys are paths such as `steps.plan`, `steps.plan.next` or `roles.architect.policy`.
    pub(crate) known: BTreeMap<String, Range<usize>>,
}

impl Positions {
    /// Returns the position of the part at `path`; the beginning of the file if the position is unknown.
    pub(crate) fn of(&self, path: &str) -> Range<usize> {
        self.known.get(path).cloned().unwrap_or(0..0)
    }
}

/// The result of parsing a workflow file: the workflow, the positions of its parts, and the problems found.
#[derive(Debug)]
pub(crate) struct ParsedWorkflow {
    pub(crate) workflow: Workflow,
    pub(crate) positions: Positions,
    pub(crate) problems: Vec<Diagnostic>,
}

/// Parses a workflow. `prompt` returns the text of a prompt file, given the path by which the workflow names it.
pub(crate) fn read(source: &Source, prompt: &dyn Fn(&str) -> Result<String, String>) -> ParsedWorkflow {
    let mut reader = Reader { source, prompt, positions: Positions::default(), problems: Vec::new() };
    let workflow = match yaml::parse(source) {
        Ok(root) => reader.workflow(&root),
        Err(problem) => {
            reader.problems.push(*problem);
            Workflow::default()
        }
    };
    ParsedWorkflow { workflow, positions: reader.positions, problems: reader.problems }
}

pub(crate) struct Reader<'r> {
    source: &'r Source,
    pub(crate) prompt: &'r dyn Fn(&str) -> Result<String, String>,
    pub(crate) positions: Positions,
    problems: Vec<Diagnostic>,
}

/// A map whose keys the parser takes one by one. Keys that are left at the end are unknown keys.
pub(crate) struct Fields<'n> {
    path: String,
    span: Range<usize>,
    pub(crate) left: Vec<&'n (String, Range<usize>, Node)>,
}

impl Reader<'_> {
    pub(crate) fn wrong(&mut self, span: Range<usize>, message: impl Into<String>, label: &str) {
        self.problems.push(Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            source: self.source.clone(),
            span,
            label: label.to_string(),
            help: None,
        });
    }

    pub(crate) fn fields<'n>(&mut self, node: &'n Node, path: &str) -> Fields<'n> {
        let left = match &node.value {
            Value::Map(entries) => entries.iter().collect(),
            _ => {
                self.wrong(
                    node.span.clone(),
                    format!("`{path}` must be a map, but is {}", node.kind()),
                    "here",
                );
                Vec::new()
            }
        };
        Fields { path: path.to_string(), span: node.span.clone(), left }
    }

    pub(crate) fn take<'n>(&mut self, fields: &mut Fields<'n>, name: &str) -> Option<&'n Node> {
        let at = fields.left.iter().position(|(known, _, _)| known == name)?;
        let (_, place, node) = fields.left.remove(at);
        self.positions.known.insert(join(&fields.path, name), place.clone());
        Some(node)
    }

    pub(crate) fn needed<'n>(&mut self, fields: &mut Fields<'n>, name: &str) -> Option<&'n Node> {
        let found = self.take(fields, name);
        if found.is_none() {
            let span = fields.span.start..fields.span.start;
            self.wrong(span, format!("`{}` is missing", join(&fields.path, name)), "in this map");
        }
        found
    }

    pub(crate) fn done(&mut self, fields: &Fields<'_>, known: &[&str]) {
        for (name, place, _) in &fields.left {
            let near = known
                .iter()
                .copied()
                .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
            let near = near.filter(|near| strsim::jaro_winkler(near, name) > 0.75);
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.wrong(
                place.clone(),
                format!("unknown key `{}`{hint}", join(&fields.path, name)),
                "this key",
            );
        }
    }

    pub(crate) fn text(&mut self, node: Option<&Node>, path: &str) -> Option<String> {
        let node = node?;
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            _ => {
                self.wrong(
                    node.span.clone(),
                    format!("`{path}` must be a string, but is {}", node.kind()),
                    "here",
                );
                None
            }
        }
    }

    pub(crate) fn number(&mut self, node: Option<&Node>, path: &str) -> Option<f64> {
        let node = node?;
        match &node.value {
            Value::Number(number) if *number >= 0.0 => Some(*number),
            _ => {
                self.wrong(node.span.clone(), format!("`{path}` must be a number of at least 0"), "here");
                None
            }
        }
    }

    pub(crate) fn flag(&mut self, node: Option<&Node>, path: &str) -> bool {
        match node.map(|node| (&node.value, node)) {
            None => false,
            Some((Value::Bool(flag), _)) => *flag,
            Some((_, node)) => {
                self.wrong(node.span.clone(), format!("`{path}` must be true or false"), "here");
                false
            }
        }
    }

    pub(crate) fn texts(&mut self, node: Option<&Node>, path: &str) -> Vec<String> {
        let Some(node) = node else { return Vec::new() };
        let Value::List(items) = &node.value else {
            self.wrong(node.span.clone(), format!("`{path}` must be a list of strings"), "here");
            return Vec::new();
        };
        items.iter().filter_map(|item| self.text(Some(item), path)).collect()
    }

    fn workflow(&mut self, root: &Node) -> Workflow {
        const KNOWN: [&str; 17] = [
            "version",
            "name",
            "description",
            "documents",
            "base",
            "branch_prefix",
            "modes",
            "mode",
            "limits",
            "agent",
            "roles",
            "steps",
            "triage",
            "honesty",
            "memory",
            "notes",
            "backlog",
        ];
        let mut fields = self.fields(root, "");
        let version = self.needed(&mut fields, "version");
        if let Some(node) = version.filter(|node| node.value != Value::Number(1.0)) {
            self.wrong(node.span.clone(), "guard supports only workflows with version 1", "unsupported");
        }
        let name = self.needed(&mut fields, "name");
        let mode = self.take(&mut fields, "mode");
        let documents = self.take(&mut fields, "documents");
        let (description, base) = (self.take(&mut fields, "description"), self.take(&mut fields, "base"));
        let (notes, backlog) = (self.take(&mut fields, "notes"), self.take(&mut fields, "backlog"));
        let honesty = self.take(&mut fields, "honesty");
        let limits = self.take(&mut fields, "limits");
        let agent = self.take(&mut fields, "agent");
        let prefix = self.take(&mut fields, "branch_prefix");
        let workflow = Workflow {
            name: self.text(name, "name").unwrap_or_default(),
            description: self.text(description, "description").unwrap_or_default(),
            documents: self.documents_directory(documents).unwrap_or_else(|| "docs/dev_docs".to_string()),
            base: self.text(base, "base").unwrap_or_else(|| "main".to_string()),
            branch_prefix: self.branch_prefix(prefix),
            modes: self.modes(&mut fields),
            mode: self.text(mode, "mode").unwrap_or_default(),
            limits: limits.map(|node| self.limits(node)).unwrap_or_default(),
            agent: agent.map_or_else(usual_agent, |node| {
                let mut fields = self.fields(node, "agent");
                let agent = self.agent(&mut fields, "name");
                self.done(&fields, &AGENT);
                if agent.name.is_empty() { Agent { name: usual_agent().name, ..agent } } else { agent }
            }),
            roles: self.roles(&mut fields),
            steps: self.steps(&mut fields),
            triage: self.triage(&mut fields),
            honesty: self.texts(honesty, "honesty").iter().map(|word| word.to_lowercase()).collect(),
            memory: self.memory(&mut fields),
            notes: self.below_documents(notes, "notes"),
            backlog: self.below_documents(backlog, "backlog"),
        };
        self.done(&fields, &KNOWN);
        workflow
    }

    fn branch_prefix(&mut self, node: Option<&Node>) -> Option<String> {
        let text = self.text(node, "branch_prefix")?;
        if !is_branch_prefix(&text) {
            let span = node.map_or(0..0, |node| node.span.clone());
            let message = "`branch_prefix` must be a valid beginning of a branch name and end with `/`, such as `feature/`";
            self.wrong(span, message, "not a branch prefix");
            return None;
        }
        Some(text)
    }

    /// Parses the path of the documents directory, which must be inside the repository.
    fn documents_directory(&mut self, node: Option<&Node>) -> Option<String> {
        self.below_documents(node, "documents").map(|path| path.trim_end_matches('/').to_string())
    }

    pub(crate) fn below_documents(&mut self, node: Option<&Node>, path: &str) -> Option<String> {
        let text = self.text(node, path)?;
        if !is_inside(&text) {
            let span = node.map_or(0..0, |node| node.span.clone());
            self.wrong(
                span,
                format!("`{path}` must be a path inside the repository"),
                "outside the repository",
            );
            return None;
        }
        Some(text)
    }

    fn modes(&mut self, fields: &mut Fields<'_>) -> BTreeMap<String, String> {
        let Some(node) = self.needed(fields, "modes") else { return BTreeMap::new() };
        let mut modes = BTreeMap::new();
        let inner = self.fields(node, "modes");
        for (name, place, node) in inner.left {
            self.positions.known.insert(join("modes", name), place.clone());
            if let Some(step) = self.text(Some(node), "modes") {
                modes.insert(name.clone(), step);
            }
        }
        modes
    }

    fn limits(&mut self, node: &Node) -> Limits {
        let usual = Limits::default();
        let mut fields = self.fields(node, "limits");
        let mut number = |reader: &mut Self, name: &str| {
            let node = reader.take(&mut fields, name);
            reader.number(node, name)
        };
        let limits = Limits {
            rounds: number(self, "rounds").map_or(usual.rounds, |number| number as u32),
            visits: number(self, "visits").map_or(usual.visits, |number| number as u32),
            tokens: number(self, "tokens").map(|number| number as u64).or(usual.tokens),
            cost: number(self, "cost").or(usual.cost),
            minutes: number(self, "minutes").or(usual.minutes),
            warn_percent: number(self, "warn_percent").map_or(usual.warn_percent, |number| number as u32),
            step: self.bounds(&mut fields, "limits", "step").or(usual.step),
        };
        self.done(&fields, &["rounds", "visits", "tokens", "cost", "minutes", "warn_percent", "step"]);
        limits
    }

    /// Parses the limits on a step, from the key `name`.
    pub(crate) fn bounds(&mut self, fields: &mut Fields<'_>, path: &str, name: &str) -> Bounds {
        let Some(node) = self.take(fields, name) else { return Bounds::default() };
        let path = join(path, name);
        let mut inner = self.fields(node, &path);
        let mut number = |reader: &mut Self, name: &str| {
            let node = reader.take(&mut inner, name);
            reader.number(node, &join(&path, name))
        };
        let bounds = Bounds {
            tokens: number(self, "tokens").map(|number| number as u64),
            cost: number(self, "cost"),
            minutes: number(self, "minutes"),
            rounds: number(self, "rounds").map(|number| number as u32),
        };
        self.done(&inner, &["tokens", "cost", "minutes", "rounds"]);
        bounds
    }

    fn agent(&mut self, fields: &mut Fields<'_>, name_key: &str) -> Agent {
        let mut text = |reader: &mut Self, name: &str| {
            let node = reader.take(fields, name);
            reader.text(node, name)
        };
        let (name, command, model) = (text(self, name_key), text(self, "command"), text(self, "model"));
        let mut number = |reader: &mut Self, name: &str| {
            let node = reader.take(fields, name);
            reader.number(node, name).map(|number| number as u64)
        };
        Agent {
            name: name.unwrap_or_default(),
            command,
            model,
            timeout: number(self, "timeout"),
            max_duration: number(self, "max_duration"),
            retries: number(self, "retries").map(|number| number.min(10) as u32),
            max_tokens: number(self, "max_tokens"),
        }
    }

    fn roles(&mut self, fields: &mut Fields<'_>) -> BTreeMap<String, Role> {
        let Some(node) = self.needed(fields, "roles") else { return BTreeMap::new() };
        let mut roles = BTreeMap::new();
        for (name, place, node) in self.fields(node, "roles").left {
            let path = join("roles", name);
            self.positions.known.insert(path.clone(), place.clone());
            let mut inner = self.fields(node, &path);
            let (title, policy) = (self.take(&mut inner, "title"), self.needed(&mut inner, "policy"));
            let work = self.take(&mut inner, "work");
            let work = match self.text(work, "work").as_deref() {
                None | Some("read") => Work::Read,
                Some("commit") => Work::Commit,
                Some(_) => {
                    let span = work.map_or(0..0, |node| node.span.clone());
                    self.wrong(span, "`work` must be `read` or `commit`", "here");
                    Work::Read
                }
            };
            let role = Role {
                title: self.text(title, "title").unwrap_or_else(|| name.to_uppercase()),
                policy: self.text(policy, "policy").unwrap_or_default(),
                work,
                agent: self.agent(&mut inner, "agent"),
            };
            self.done(
                &inner,
                &[
                    "title",
                    "policy",
                    "work",
                    "agent",
                    "command",
                    "model",
                    "timeout",
                    "max_duration",
                    "retries",
                    "max_tokens",
                ],
            );
            roles.insert(name.clone(), role);
        }
        roles
    }

    fn triage(&mut self, fields: &mut Fields<'_>) -> Option<Triage> {
        let node = self.take(fields, "triage")?;
        let mut inner = self.fields(node, "triage");
        let role = self.needed(&mut inner, "role");
        let triage = Triage {
            role: self.text(role, "role").unwrap_or_default(),
            prompt: self.prompt_of(&mut inner, "triage", true),
            answer: self.answer(&mut inner, "triage"),
            docs: self.docs(&mut inner),
        };
        self.done(&inner, &["role", "prompt", "answer", "docs"]);
        Some(triage)
    }

    fn docs(&mut self, fields: &mut Fields<'_>) -> Option<DocsConfig> {
        let node = self.take(fields, "docs")?;
        let path = "triage.docs";
        let mut inner = self.fields(node, path);
        let (role, files) = (self.needed(&mut inner, "role"), self.needed(&mut inner, "files"));
        let (folders, commit) = (self.take(&mut inner, "folders"), self.take(&mut inner, "commit"));
        let below = self.texts(folders, "folders");
        if let Some(odd) = below.iter().find(|directory| !is_inside(directory)) {
            let span = folders.map_or(0..0, |node| node.span.clone());
            self.wrong(
                span,
                format!("`{odd}` must be a directory inside the repository"),
                "outside the repository",
            );
        }
        let docs = DocsConfig {
            role: self.text(role, "role").unwrap_or_default(),
            prompt: self.prompt_of(&mut inner, path, true),
            files: self.texts(files, "files"),
            folders: below.iter().map(|directory| directory.trim_end_matches('/').to_string()).collect(),
            answer: self.answer(&mut inner, path),
            commit: self.text(commit, "commit").unwrap_or_else(|| "Documentation".to_string()),
        };
        self.done(&inner, &["role", "prompt", "files", "folders", "answer", "commit"]);
        Some(docs)
    }

    fn memory(&mut self, fields: &mut Fields<'_>) -> Option<Memory> {
        let node = self.take(fields, "memory")?;
        let mut inner = self.fields(node, "memory");
        let (file, tokens) = (self.needed(&mut inner, "file"), self.take(&mut inner, "tokens"));
        let memory = Memory {
            file: self.below_documents(file, "file").unwrap_or_default(),
            tokens: self.number(tokens, "tokens").map_or(2000, |number| number as u64),
        };
        self.done(&inner, &["file", "tokens"]);
        Some(memory)
    }
}

const AGENT: [&str; 7] = ["name", "command", "model", "timeout", "max_duration", "retries", "max_tokens"];

fn usual_agent() -> Agent {
    Agent { name: "gemini".to_string(), ..Agent::default() }
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// True for a relative path that does not leave the directory to which it is relative, and does not enter `.git`.
fn is_inside(path: &str) -> bool {
    let plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.eq_ignore_ascii_case(".git");
    !path.is_empty() && path.trim_end_matches('/').split('/').all(plain) && !path.contains(['\0', '\n'])
}
