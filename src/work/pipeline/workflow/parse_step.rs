//! Parses the steps of a workflow file: who performs them, prompts, documents, answers, and next steps.

use std::collections::BTreeMap;

use super::model::{BuiltinStep, Document, Field, FieldType, Step, StepExecutor, Verdict};
use super::parse::{Fields, Reader, join};
use super::yaml::{Node, Value};
use crate::work::research::ResearchConfig;

impl Reader<'_> {
    pub(crate) fn steps(&mut self, fields: &mut Fields<'_>) -> Vec<Step> {
        let Some(node) = self.needed(fields, "steps") else { return Vec::new() };
        let mut steps = Vec::new();
        for (id, place, node) in self.fields(node, "steps").left {
            let path = join("steps", id);
            self.positions.known.insert(path.clone(), place.clone());
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
        let updates = self.take(&mut fields, "updates");
        let step = Step {
            id: id.to_string(),
            status,
            gate,
            says,
            commit,
            next,
            must_merge: self.flag(must_merge, "must_merge"),
            updates: self.texts(updates, "updates"),
            prompt: self.prompt_of(&mut fields, path, matches!(doer, StepExecutor::Role(_))),
            document: self.document(&mut fields, path),
            answer: self.answer(&mut fields, path),
            verdicts: self.verdicts(&mut fields, path),
            limits: self.bounds(&mut fields, path, "limits"),
            deep_research: self.deep_research(&mut fields, path),
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
                "updates",
                "says",
                "commit",
                "next",
                "verdicts",
                "limits",
                "deep_research",
            ],
        );
        step
    }

    /// Returns the settings of a step that deep research performs; `None` for any other step. A setting that is left
    /// out has its default.
    fn deep_research(&mut self, fields: &mut Fields<'_>, path: &str) -> Option<ResearchConfig> {
        let node = self.take(fields, "deep_research")?;
        let path = join(path, "deep_research");
        let mut inner = self.fields(node, &path);
        let mut number = |reader: &mut Self, name: &str, default: usize| {
            let node = reader.take(&mut inner, name);
            reader.number(node, &join(&path, name)).map_or(default, |number| number as usize)
        };
        let mut config = ResearchConfig::default();
        config.max_queries = number(self, "max_queries", config.max_queries);
        config.max_parallel = number(self, "max_parallel", config.max_parallel);
        config.depth = number(self, "depth", config.depth);
        self.done(&inner, &["max_queries", "max_parallel", "depth"]);
        if let Err(error) = config.check() {
            self.wrong(node.span.clone(), error.to_string(), "here");
        }
        Some(config)
    }

    fn doer(&mut self, fields: &mut Fields<'_>, path: &str) -> StepExecutor {
        let (role, does) = (self.take(fields, "role"), self.take(fields, "does"));
        match (role, does) {
            (Some(role), None) => StepExecutor::Role(self.text(Some(role), "role").unwrap_or_default()),
            (None, Some(does)) => match self.text(Some(does), "does").as_deref() {
                Some("merge") => StepExecutor::BuiltinStep(BuiltinStep::Merge),
                Some("archive") => StepExecutor::BuiltinStep(BuiltinStep::Archive),
                Some("deliver") => StepExecutor::BuiltinStep(BuiltinStep::Deliver),
                _ => {
                    self.wrong(does.span.clone(), "`does` must be `merge`, `archive` or `deliver`", "here");
                    StepExecutor::BuiltinStep(BuiltinStep::Archive)
                }
            },
            _ => {
                let span = self.positions.of(path);
                self.wrong(span, format!("`{path}` needs either `role` or `does`"), "this step");
                StepExecutor::Role(String::new())
            }
        }
    }

    /// Returns the text of a prompt: the value of the key `prompt` if it has several lines, otherwise the content of
    /// the file that it names. The text is empty if the key is missing or the file cannot be read. An unreadable file
    /// is a problem; a missing key is one only if `is_needed` is set.
    pub(crate) fn prompt_of(&mut self, fields: &mut Fields<'_>, path: &str, is_needed: bool) -> String {
        let node = if is_needed { self.needed(fields, "prompt") } else { self.take(fields, "prompt") };
        let Some(text) = self.text(node, "prompt") else { return String::new() };
        if text.contains('\n') {
            return text;
        }
        (self.prompt)(&text).unwrap_or_else(|problem| {
            let span = node.map_or_else(|| self.positions.of(path), |node| node.span.clone());
            let message = format!(
                "cannot read the prompt file `{text}`: {problem}; a prompt of one line is the name of a file"
            );
            self.wrong(span, message, "this file");
            String::new()
        })
    }

    fn document(&mut self, fields: &mut Fields<'_>, path: &str) -> Option<Document> {
        let node = self.take(fields, "document")?;
        let path = join(path, "document");
        let mut inner = self.fields(node, &path);
        let (name, place) = (self.needed(&mut inner, "name"), self.needed(&mut inner, "path"));
        let (optional, sections) = (self.take(&mut inner, "optional"), self.take(&mut inner, "sections"));
        let checklist = self.take(&mut inner, "checklist");
        let document = Document {
            name: self.text(name, "name").unwrap_or_default(),
            path: self.below_documents(place, "path").unwrap_or_default(),
            optional: self.flag(optional, "optional"),
            sections: self.sections(sections),
            checklist: self.flag(checklist, "checklist"),
        };
        self.done(&inner, &["name", "path", "optional", "sections", "checklist"]);
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

    pub(crate) fn answer(&mut self, fields: &mut Fields<'_>, path: &str) -> BTreeMap<String, Field> {
        let Some(node) = self.take(fields, "answer") else { return BTreeMap::new() };
        let path = join(path, "answer");
        let mut answer = BTreeMap::new();
        for (name, place, node) in self.fields(node, &path).left {
            let path = join(&path, name);
            self.positions.known.insert(path.clone(), place.clone());
            let mut inner = self.fields(node, &path);
            let (is, one_of) = (self.take(&mut inner, "is"), self.take(&mut inner, "one_of"));
            let (optional, when) = (self.take(&mut inner, "optional"), self.take(&mut inner, "when"));
            let kind = match (self.text(is, "is").as_deref(), one_of) {
                (None, Some(node)) => FieldType::OneOf(self.texts(Some(node), "one_of")),
                (None | Some("text"), None) => FieldType::Text,
                (Some("document"), None) => FieldType::Document,
                (Some("commit"), None) => FieldType::Commit,
                (Some("number"), None) => FieldType::Number,
                (Some("list"), None) => FieldType::List,
                _ => {
                    let message = "`is` must be text, document, commit, number or list; a field with `one_of` must not have `is`";
                    self.wrong(place.clone(), message, "this field");
                    FieldType::Text
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
            self.wrong(node.span.clone(), "`when` must name one field and its value", "here");
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
            self.positions.known.insert(path.clone(), place.clone());
            let mut inner = self.fields(node, &path);
            let (next, says) = (self.needed(&mut inner, "next"), self.take(&mut inner, "says"));
            let committed = self.take(&mut inner, "committed");
            let verdict = Verdict {
                next: self.text(next, "next").unwrap_or_default(),
                says: self.text(says, "says"),
                committed: self.text(committed, "committed"),
            };
            self.done(&inner, &["next", "says", "committed"]);
            verdicts.insert(word.clone(), verdict);
        }
        verdicts
    }
}
