//! Checks a parsed workflow as a whole: every reference resolves, every verdict has a next step, every prompt
//! uses only known values.

use std::collections::BTreeSet;

use super::model::{BACK, Bounds, END, Field, FieldType, Step, StepExecutor, Triage, Work, Workflow};
use super::parse::Read;
use super::template::Template;
use crate::policy::{Diagnostic, PolicyDirs, Severity, Source, find};

/// Values available to every prompt.
pub(crate) const VALUES: [&str; 14] = [
    "request",
    "feat",
    "branch",
    "base",
    "role",
    "document",
    "feedback",
    "diff",
    "conflicts",
    "notes",
    "memory",
    "tests",
    "files",
    "answer_format",
];

/// All problems that the parser cannot find.
pub(crate) fn lint(source: &Source, read: &Read, folders: &PolicyDirs) -> Vec<Diagnostic> {
    let mut linter = Linter { source, read, folders, found: Vec::new() };
    if read.problems.is_empty() {
        linter.all();
    }
    linter.found
}

struct Linter<'l> {
    source: &'l Source,
    read: &'l Read,
    folders: &'l PolicyDirs,
    found: Vec<Diagnostic>,
}

impl Linter<'_> {
    fn say(&mut self, severity: Severity, path: &str, message: String) {
        self.found.push(Diagnostic {
            severity,
            message,
            source: self.source.clone(),
            span: self.read.places.of(path),
            label: "here".to_string(),
            help: None,
        });
    }

    fn wrong(&mut self, path: &str, message: String) {
        self.say(Severity::Error, path, message);
    }

    fn all(&mut self) {
        let workflow = &self.read.workflow;
        for (mode, step) in &workflow.modes {
            self.leads(&format!("modes.{mode}"), step, false);
        }
        if !workflow.modes.contains_key(&workflow.mode) {
            let known: Vec<&str> = workflow.modes.keys().map(String::as_str).collect();
            let message = format!("the mode `{}` is none of {}", workflow.mode, known.join(", "));
            self.wrong("mode", message);
        }
        for (name, role) in &workflow.roles {
            if let Err(error) = find(&role.policy, self.folders, None) {
                self.wrong(&format!("roles.{name}.policy"), error.to_string());
            }
            let decides = |triage: &Triage| triage.role == *name;
            let writes = |triage: &Triage| triage.docs.as_ref().is_some_and(|upkeep| upkeep.role == *name);
            if !workflow.steps.iter().any(|step| step.role() == Some(name))
                && !workflow.triage.as_ref().is_some_and(|triage| decides(triage) || writes(triage))
            {
                self.say(
                    Severity::Warning,
                    &format!("roles.{name}"),
                    format!("nobody needs the role `{name}`"),
                );
            }
            let agent = workflow.agent_of(role);
            if crate::agent::named(&agent.name).is_none() {
                self.wrong(&format!("roles.{name}"), format!("there is no agent `{}`", agent.name));
            }
        }
        for step in &workflow.steps {
            self.step(step);
        }
        if let Some(triage) = &workflow.triage {
            self.role("triage.role", &triage.role);
            self.fields("triage", &triage.answer);
            self.prompt("triage.prompt", &triage.prompt);
            self.upkeep(triage);
        }
        self.reach();
    }

    fn upkeep(&mut self, triage: &Triage) {
        let Some(upkeep) = &triage.docs else { return };
        self.role("triage.docs.role", &upkeep.role);
        self.fields("triage.docs", &upkeep.answer);
        self.prompt("triage.docs.prompt", &upkeep.prompt);
        if self.read.workflow.roles.get(&upkeep.role).is_some_and(|role| role.work == Work::Commit) {
            let message =
                "who writes documentation has `work: read`: guard opens the files, and commits them";
            self.wrong("triage.docs.role", message.to_string());
        }
        if !upkeep.files.iter().any(|pattern| !pattern.starts_with('!')) {
            self.wrong("triage.docs.files", "no file is documentation".to_string());
        }
        for pattern in &upkeep.files {
            if let Err(error) = globset::Glob::new(pattern.trim_start_matches('!')) {
                self.wrong("triage.docs.files", format!("`{pattern}` is no pattern: {}", error.kind()));
            }
        }
        let decides = triage.answer.get("decision").is_some_and(
            |field| matches!(&field.is, FieldType::OneOf(words) if words.iter().any(|word| word == "DOCS")),
        );
        if !decides {
            self.wrong("triage.docs", "the triage never decides `DOCS`".to_string());
        }
    }

    fn role(&mut self, path: &str, role: &str) {
        if !self.read.workflow.roles.contains_key(role) {
            self.wrong(path, format!("there is no role `{role}`"));
        }
    }

    fn leads(&mut self, path: &str, to: &str, may_be_word: bool) {
        let is_word = may_be_word && (to == BACK || to == END);
        if !is_word && self.read.workflow.step(to).is_none() {
            self.wrong(path, format!("there is no step `{to}`"));
        }
    }

    fn step(&mut self, step: &Step) {
        let path = format!("steps.{}", step.id);
        if [BACK, END].contains(&step.id.as_str()) || !is_name(&step.id) {
            self.wrong(&path, format!("`{}` cannot be the name of a step", step.id));
        }
        if let StepExecutor::BuiltinStep(_) = &step.doer
            && step.limits != Bounds::default()
        {
            self.wrong(
                &format!("{path}.limits"),
                "guard does this step itself, and uses nothing up".to_string(),
            );
        }
        self.bounds(&path, step);
        if let StepExecutor::Role(role) = &step.doer {
            self.role(&format!("{path}.role"), role);
            self.agents_step(step, role, &path);
        }
        for (word, to) in step.leads_to() {
            let place = word.map_or_else(|| format!("{path}.next"), |word| format!("{path}.verdicts.{word}"));
            self.leads(&place, to, true);
        }
        let (words, has_next) = (step.words(), step.next.is_some());
        match (words.is_empty(), has_next) {
            (true, false) => self.wrong(&path, "the step leads nowhere: it has no `next`".to_string()),
            (false, true) => self.wrong(
                &format!("{path}.next"),
                "a step with a verdict leads where its verdicts say, and has no `next`".to_string(),
            ),
            _ => {}
        }
        for word in &words {
            if !step.verdicts.contains_key(*word) {
                self.wrong(&format!("{path}.verdicts"), format!("the verdict `{word}` leads nowhere"));
            }
        }
        for word in step.verdicts.keys().filter(|word| !words.contains(&word.as_str())) {
            self.wrong(&format!("{path}.verdicts.{word}"), format!("`{word}` is no verdict of this step"));
        }
        if step.gate.is_some() && words.is_empty() {
            self.wrong(&format!("{path}.gate"), "a gate needs a verdict".to_string());
        }
    }

    /// Warns about a step's limit above the task's limit, which is always reached first.
    fn bounds(&mut self, path: &str, step: &Step) {
        let (own, task) = (step.limits, &self.read.workflow.limits);
        let pairs = [
            ("tokens", own.tokens.map(|bound| bound as f64), task.tokens.map(|bound| bound as f64)),
            ("cost", own.cost, task.cost),
            ("minutes", own.minutes, task.minutes),
        ];
        for (name, own, task) in pairs {
            if let (Some(own), Some(task)) = (own, task)
                && own > task
            {
                let message = format!("{own} {name} for one step, and {task} for the whole task");
                self.say(Severity::Warning, &format!("{path}.limits.{name}"), message);
            }
        }
    }

    fn agents_step(&mut self, step: &Step, role: &str, path: &str) {
        self.prompt(&format!("{path}.prompt"), &step.prompt);
        self.fields(path, &step.answer);
        let work = self.read.workflow.roles.get(role).map(|role| role.work);
        let asks_for = |is: &FieldType| step.answer.values().any(|field| field.is == *is);
        if asks_for(&FieldType::Document) && step.document.is_none() {
            self.wrong(
                &format!("{path}.answer"),
                "the answer names a document, and the step has none".to_string(),
            );
        }
        if asks_for(&FieldType::Commit) && work == Some(Work::Read) {
            let message = format!("the role `{role}` only reads, and can commit nothing");
            self.wrong(&format!("{path}.answer"), message);
        }
        if work == Some(Work::Commit) && !asks_for(&FieldType::Commit) {
            self.wrong(
                &format!("{path}.answer"),
                "somebody who commits must say which commit: a field with `is: commit`".to_string(),
            );
        }
        if !step.updates.is_empty() && work == Some(Work::Read) {
            let message = format!("the role `{role}` only reads, and can update nothing");
            self.wrong(&format!("{path}.updates"), message);
        }
        if work == Some(Work::Read) && step.document.is_none() {
            self.wrong(
                path,
                "who only reads needs a `document`, so that the step leaves something".to_string(),
            );
        }
        if step.must_merge && work != Some(Work::Commit) {
            self.wrong(&format!("{path}.must_merge"), "only who commits can merge".to_string());
        }
    }

    fn fields(&mut self, path: &str, answer: &std::collections::BTreeMap<String, Field>) {
        if answer.is_empty() {
            self.wrong(path, "the answer has no fields".to_string());
        }
        for (name, field) in answer {
            let place = format!("{path}.answer.{name}");
            if matches!(&field.is, FieldType::OneOf(words) if words.is_empty()) {
                self.wrong(&place, "a field needs at least one word".to_string());
            }
            let Some((other, value)) = &field.when else { continue };
            let has = answer.get(other).is_some_and(|field| match &field.is {
                FieldType::OneOf(words) => words.contains(value),
                _ => true,
            });
            if !has {
                self.wrong(&place, format!("`{other}` is never `{value}`"));
            }
        }
    }

    fn prompt(&mut self, path: &str, prompt: &str) {
        let template = match Template::read(prompt) {
            Ok(template) => template,
            Err(wrong) => {
                let line = prompt[..wrong.at.start].matches('\n').count() + 1;
                return self.wrong(path, format!("line {line} of the prompt: {}", wrong.message));
            }
        };
        let documents: BTreeSet<&str> = documents(&self.read.workflow);
        let names = template.names();
        for name in names.iter().filter(|name| !VALUES.contains(name) && !documents.contains(*name)) {
            let known: Vec<&str> = VALUES.iter().copied().chain(documents.iter().copied()).collect();
            self.wrong(path, format!("the prompt asks for `{name}`; there are {}", known.join(", ")));
        }
        if !names.contains(&"answer_format") {
            self.wrong(
                path,
                "the prompt does not say how to answer: put `{{answer_format}}` in it".to_string(),
            );
        }
    }

    /// Reports unreachable steps, and a workflow that cannot end.
    fn reach(&mut self) {
        let workflow = &self.read.workflow;
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let mut next: Vec<&str> = workflow.modes.values().map(String::as_str).collect();
        let mut ends = false;
        while let Some(id) = next.pop() {
            let Some(step) = workflow.step(id) else { continue };
            if !reached.insert(id) {
                continue;
            }
            for (_, to) in step.leads_to() {
                ends |= to == END;
                next.push(to);
            }
        }
        let lost: Vec<String> = workflow
            .steps
            .iter()
            .map(|step| step.id.clone())
            .filter(|id| !reached.contains(id.as_str()))
            .collect();
        for id in lost {
            self.say(Severity::Warning, &format!("steps.{id}"), format!("nothing leads to the step `{id}`"));
        }
        if !ends {
            self.wrong("steps", "no step leads to `end`".to_string());
        }
    }
}

/// The names of all documents.
pub(crate) fn documents(workflow: &Workflow) -> BTreeSet<&str> {
    workflow.steps.iter().filter_map(|step| step.document.as_ref()).map(|one| one.name.as_str()).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
