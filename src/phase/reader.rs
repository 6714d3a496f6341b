//! A workflow file → [`Workflow`], with every mistake at its place.
//!
//! Reading goes on after a mistake, so that all are told at once. What the parts mean together (a step that leads nowhere,
//! a prompt that asks for what nobody knows) is `lint.rs`'s.

use std::collections::BTreeMap;
use std::ops::Range;

use super::workflow::{
    Agent, Document, Doer, Field, Is, Limits, Memory, Own, Role, Step, Triage, Verdict, Work, Workflow,
};
use super::yaml::{self, Node, Value};
use crate::policy::{Diagnostic, Severity, Source};

/// Where parts of a workflow stand, for those who look at it afterwards.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// `steps.plan`, `steps.plan.next`, `roles.architect.policy`, …
    known: BTreeMap<String, Range<usize>>,
}

impl Places {
    /// Where this stands; the beginning of the file if that is not known.
    pub(super) fn of(&self, path: &str) -> Range<usize> {
        self.known.get(path).cloned().unwrap_or(0..0)
    }
}

/// What a file was read as.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) workflow: Workflow,
    pub(super) places: Places,
    pub(super) problems: Vec<Diagnostic>,
}

/// Reads a workflow. `prompt` gives the text of a prompt's file, by the path in the workflow.
pub(super) fn read(source: &Source, prompt: &dyn Fn(&str) -> Result<String, String>) -> Read {
    let mut reader = Reader { source, prompt, places: Places::default(), problems: Vec::new() };
    let workflow = match yaml::parse(source) {
        Ok(root) => reader.workflow(&root),
        Err(problem) => {
            reader.problems.push(*problem);
            Workflow::default()
        }
    };
    Read { workflow, places: reader.places, problems: reader.problems }
}

struct Reader<'r> {
    source: &'r Source,
    prompt: &'r dyn Fn(&str) -> Result<String, String>,
    places: Places,
    problems: Vec<Diagnostic>,
}

/// A map whose keys are taken one by one; what is left is unknown.
struct Fields<'n> {
    path: String,
    span: Range<usize>,
    left: Vec<&'n (String, Range<usize>, Node)>,
}

impl Reader<'_> {
    fn wrong(&mut self, span: Range<usize>, message: impl Into<String>, label: &str) {
        self.problems.push(Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            source: self.source.clone(),
            span,
            label: label.to_string(),
            help: None,
        });
    }

    fn fields<'n>(&mut self, node: &'n Node, path: &str) -> Fields<'n> {
        let left = match &node.value {
            Value::Map(entries) => entries.iter().collect(),
            _ => {
                self.wrong(
                    node.span.clone(),
                    format!("`{path}` must be a map, and is {}", node.kind()),
                    "here",
                );
                Vec::new()
            }
        };
        Fields { path: path.to_string(), span: node.span.clone(), left }
    }

    fn take<'n>(&mut self, fields: &mut Fields<'n>, name: &str) -> Option<&'n Node> {
        let at = fields.left.iter().position(|(known, _, _)| known == name)?;
        let (_, place, node) = fields.left.remove(at);
        self.places.known.insert(join(&fields.path, name), place.clone());
        Some(node)
    }

    fn needed<'n>(&mut self, fields: &mut Fields<'n>, name: &str) -> Option<&'n Node> {
        let found = self.take(fields, name);
        if found.is_none() {
            let span = fields.span.start..fields.span.start;
            self.wrong(span, format!("`{}` is missing", join(&fields.path, name)), "in this");
        }
        found
    }

    fn done(&mut self, fields: &Fields<'_>, known: &[&str]) {
        for (name, place, _) in &fields.left {
            let near = known
                .iter()
                .copied()
                .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
            let near = near.filter(|near| strsim::jaro_winkler(near, name) > 0.75);
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.wrong(
                place.clone(),
                format!("`{}` is nothing known{hint}", join(&fields.path, name)),
                "this key",
            );
        }
    }

    fn text(&mut self, node: Option<&Node>, path: &str) -> Option<String> {
        let node = node?;
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            _ => {
                self.wrong(
                    node.span.clone(),
                    format!("`{path}` must be a text, and is {}", node.kind()),
                    "here",
                );
                None
            }
        }
    }

    fn number(&mut self, node: Option<&Node>, path: &str) -> Option<f64> {
        let node = node?;
        match &node.value {
            Value::Number(number) if *number >= 0.0 => Some(*number),
            _ => {
                self.wrong(
                    node.span.clone(),
                    format!("`{path}` must be a number from 0, and is not"),
                    "here",
                );
                None
            }
        }
    }

    fn flag(&mut self, node: Option<&Node>, path: &str) -> bool {
        match node.map(|node| (&node.value, node)) {
            None => false,
            Some((Value::Bool(flag), _)) => *flag,
            Some((_, node)) => {
                self.wrong(node.span.clone(), format!("`{path}` must be true or false"), "here");
                false
            }
        }
    }

    fn texts(&mut self, node: Option<&Node>, path: &str) -> Vec<String> {
        let Some(node) = node else { return Vec::new() };
        let Value::List(items) = &node.value else {
            self.wrong(node.span.clone(), format!("`{path}` must be a list of texts"), "here");
            return Vec::new();
        };
        items.iter().filter_map(|item| self.text(Some(item), path)).collect()
    }

    fn workflow(&mut self, root: &Node) -> Workflow {
        const KNOWN: [&str; 15] = [
            "version",
            "name",
            "description",
            "documents",
            "base",
            "modes",
            "mode",
            "limits",
            "agent",
            "roles",
            "steps",
            "triage",
            "honesty",
            "memory",
            "backlog",
        ];
        let mut fields = self.fields(root, "");
        let version = self.needed(&mut fields, "version");
        if let Some(node) = version.filter(|node| node.value != Value::Number(1.0)) {
            self.wrong(node.span.clone(), "this guard knows version 1 of workflows", "this is another");
        }
        let name = self.needed(&mut fields, "name");
        let mode = self.take(&mut fields, "mode");
        let documents = self.take(&mut fields, "documents");
        let (description, base) = (self.take(&mut fields, "description"), self.take(&mut fields, "base"));
        let (notes, backlog) = (self.take(&mut fields, "notes"), self.take(&mut fields, "backlog"));
        let honesty = self.take(&mut fields, "honesty");
        let limits = self.take(&mut fields, "limits");
        let agent = self.take(&mut fields, "agent");
        let workflow = Workflow {
            name: self.text(name, "name").unwrap_or_default(),
            description: self.text(description, "description").unwrap_or_default(),
            documents: self.folder(documents).unwrap_or_else(|| "docs/dev_docs".to_string()),
            base: self.text(base, "base").unwrap_or_else(|| "main".to_string()),
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

    /// A path inside the repository, and no other.
    fn folder(&mut self, node: Option<&Node>) -> Option<String> {
        self.below_documents(node, "documents").map(|path| path.trim_end_matches('/').to_string())
    }

    fn below_documents(&mut self, node: Option<&Node>, path: &str) -> Option<String> {
        let text = self.text(node, path)?;
        if !is_inside(&text) {
            let span = node.map_or(0..0, |node| node.span.clone());
            self.wrong(
                span,
                format!("`{path}` must be a path inside the repository"),
                "this leads elsewhere",
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
            self.places.known.insert(join("modes", name), place.clone());
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
            tokens: number(self, "tokens").map(|number| number as u64),
            cost: number(self, "cost"),
            minutes: number(self, "minutes").map(|number| number as u64),
            warn_percent: number(self, "warn_percent").map_or(usual.warn_percent, |number| number as u32),
        };
        self.done(&fields, &["rounds", "visits", "tokens", "cost", "minutes", "warn_percent"]);
        limits
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
            self.places.known.insert(path.clone(), place.clone());
            let mut inner = self.fields(node, &path);
            let (title, policy) = (self.take(&mut inner, "title"), self.needed(&mut inner, "policy"));
            let work = self.take(&mut inner, "work");
            let work = match self.text(work, "work").as_deref() {
                None | Some("read") => Work::Read,
                Some("commit") => Work::Commit,
                Some(_) => {
                    let span = work.map_or(0..0, |node| node.span.clone());
                    self.wrong(span, "`work` is `read` or `commit`", "here");
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

    fn steps(&mut self, fields: &mut Fields<'_>) -> Vec<Step> {
        let Some(node) = self.needed(fields, "steps") else { return Vec::new() };
        let mut steps = Vec::new();
        for (id, place, node) in self.fields(node, "steps").left {
            let path = join("steps", id);
            self.places.known.insert(path.clone(), place.clone());
            steps.push(self.step(id, &path, node));
        }
        steps
    }

    fn step(&mut self, id: &str, path: &str, node: &Node) -> Step {
        let mut fields = self.fields(node, path);
        let doer = self.doer(&mut fields, path);
        let mut text = |reader: &mut Self, name: &str| {
            let node = reader.take(&mut fields, name);
            reader.text(node, name)
        };
        let status = text(self, "status").unwrap_or_else(|| id.to_uppercase());
        let (gate, says, commit) = (text(self, "gate"), text(self, "says"), text(self, "commit"));
        let next = text(self, "next");
        let must_merge = self.take(&mut fields, "must_merge");
        let step = Step {
            id: id.to_string(),
            status,
            gate,
            says,
            commit,
            next,
            must_merge: self.flag(must_merge, "must_merge"),
            prompt: self.prompt_of(&mut fields, path, matches!(doer, Doer::Role(_))),
            document: self.document(&mut fields, path),
            answer: self.answer(&mut fields, path),
            verdicts: self.verdicts(&mut fields, path),
            doer,
        };
        self.done(
            &fields,
            &[
                "status",
                "role",
                "does",
                "gate",
                "prompt",
                "document",
                "answer",
                "must_merge",
                "says",
                "commit",
                "next",
                "verdicts",
            ],
        );
        step
    }

    fn doer(&mut self, fields: &mut Fields<'_>, path: &str) -> Doer {
        let (role, does) = (self.take(fields, "role"), self.take(fields, "does"));
        match (role, does) {
            (Some(role), None) => Doer::Role(self.text(Some(role), "role").unwrap_or_default()),
            (None, Some(does)) => match self.text(Some(does), "does").as_deref() {
                Some("merge") => Doer::Own(Own::Merge),
                Some("archive") => Doer::Own(Own::Archive),
                Some("deliver") => Doer::Own(Own::Deliver),
                _ => {
                    self.wrong(does.span.clone(), "`does` is `merge`, `archive` or `deliver`", "here");
                    Doer::Own(Own::Archive)
                }
            },
            _ => {
                let span = self.places.of(path);
                self.wrong(span, format!("`{path}` needs a `role` or a `does`, one of them"), "this step");
                Doer::Role(String::new())
            }
        }
    }

    /// The text of a prompt: that of its file, or what stands there when it has more than a line.
    fn prompt_of(&mut self, fields: &mut Fields<'_>, path: &str, is_needed: bool) -> String {
        let node = if is_needed { self.needed(fields, "prompt") } else { self.take(fields, "prompt") };
        let Some(text) = self.text(node, "prompt") else { return String::new() };
        if text.contains('\n') {
            return text;
        }
        (self.prompt)(&text).unwrap_or_else(|problem| {
            let span = node.map_or_else(|| self.places.of(path), |node| node.span.clone());
            self.wrong(span, format!("the prompt `{text}` cannot be read: {problem}"), "this file");
            String::new()
        })
    }

    fn document(&mut self, fields: &mut Fields<'_>, path: &str) -> Option<Document> {
        let node = self.take(fields, "document")?;
        let path = join(path, "document");
        let mut inner = self.fields(node, &path);
        let (name, place) = (self.needed(&mut inner, "name"), self.needed(&mut inner, "path"));
        let (optional, sections) = (self.take(&mut inner, "optional"), self.take(&mut inner, "sections"));
        let document = Document {
            name: self.text(name, "name").unwrap_or_default(),
            path: self.below_documents(place, "path").unwrap_or_default(),
            optional: self.flag(optional, "optional"),
            sections: self.sections(sections),
        };
        self.done(&inner, &["name", "path", "optional", "sections"]);
        Some(document)
    }

    fn sections(&mut self, node: Option<&Node>) -> Vec<Vec<String>> {
        let Some(Node { value: Value::List(items), .. }) = node else {
            if let Some(node) = node {
                self.wrong(node.span.clone(), "`sections` must be a list of headings", "here");
            }
            return Vec::new();
        };
        let one = |reader: &mut Self, item: &Node| match &item.value {
            Value::List(_) => reader.texts(Some(item), "sections"),
            _ => reader.text(Some(item), "sections").into_iter().collect(),
        };
        items.iter().map(|item| one(self, item)).filter(|words| !words.is_empty()).collect()
    }

    fn answer(&mut self, fields: &mut Fields<'_>, path: &str) -> BTreeMap<String, Field> {
        let Some(node) = self.take(fields, "answer") else { return BTreeMap::new() };
        let path = join(path, "answer");
        let mut answer = BTreeMap::new();
        for (name, place, node) in self.fields(node, &path).left {
            let path = join(&path, name);
            self.places.known.insert(path.clone(), place.clone());
            let mut inner = self.fields(node, &path);
            let (is, one_of) = (self.take(&mut inner, "is"), self.take(&mut inner, "one_of"));
            let (optional, when) = (self.take(&mut inner, "optional"), self.take(&mut inner, "when"));
            let kind = match (self.text(is, "is").as_deref(), one_of) {
                (None, Some(node)) => Is::OneOf(self.texts(Some(node), "one_of")),
                (None | Some("text"), None) => Is::Text,
                (Some("document"), None) => Is::Document,
                (Some("commit"), None) => Is::Commit,
                (Some("number"), None) => Is::Number,
                (Some("list"), None) => Is::List,
                _ => {
                    let message = "a field has `is` (text, document, commit, number, list) or `one_of`";
                    self.wrong(place.clone(), message, "this field");
                    Is::Text
                }
            };
            let field = Field { is: kind, optional: self.flag(optional, "optional"), when: self.when(when) };
            self.done(&inner, &["is", "one_of", "optional", "when"]);
            answer.insert(name.clone(), field);
        }
        answer
    }

    fn when(&mut self, node: Option<&Node>) -> Option<(String, String)> {
        let node = node?;
        let entries = self.fields(node, "when").left;
        let [(name, _, value)] = entries.as_slice() else {
            self.wrong(node.span.clone(), "`when` names one field and its value", "here");
            return None;
        };
        Some((name.clone(), self.text(Some(value), "when")?))
    }

    fn verdicts(&mut self, fields: &mut Fields<'_>, path: &str) -> BTreeMap<String, Verdict> {
        let Some(node) = self.take(fields, "verdicts") else { return BTreeMap::new() };
        let path = join(path, "verdicts");
        let mut verdicts = BTreeMap::new();
        for (word, place, node) in self.fields(node, &path).left {
            let path = join(&path, word);
            self.places.known.insert(path.clone(), place.clone());
            let mut inner = self.fields(node, &path);
            let (next, says) = (self.needed(&mut inner, "next"), self.take(&mut inner, "says"));
            let verdict =
                Verdict { next: self.text(next, "next").unwrap_or_default(), says: self.text(says, "says") };
            self.done(&inner, &["next", "says"]);
            verdicts.insert(word.clone(), verdict);
        }
        verdicts
    }

    fn triage(&mut self, fields: &mut Fields<'_>) -> Option<Triage> {
        let node = self.take(fields, "triage")?;
        let mut inner = self.fields(node, "triage");
        let role = self.needed(&mut inner, "role");
        let triage = Triage {
            role: self.text(role, "role").unwrap_or_default(),
            prompt: self.prompt_of(&mut inner, "triage", true),
            answer: self.answer(&mut inner, "triage"),
        };
        self.done(&inner, &["role", "prompt", "answer"]);
        Some(triage)
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

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// A path that stays below where it begins, and is none of git's.
fn is_inside(path: &str) -> bool {
    let plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.eq_ignore_ascii_case(".git");
    !path.is_empty() && path.trim_end_matches('/').split('/').all(plain) && !path.contains(['\0', '\n'])
}
