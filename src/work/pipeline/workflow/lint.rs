//! Checks a parsed workflow as a whole: every reference resolves, every verdict has a next step, every prompt
//! uses only known values.

use std::collections::BTreeSet;

use super::model::{BACK, Bounds, END, Field, FieldType, Step, StepExecutor, Triage, Work, Workflow};
use super::parse::ParsedWorkflow;
use crate::judge::policy::{Diagnostic, PolicyDirs, Severity, Source, find};
use crate::text::template::Template;

/// The names of the values that the prompt of a step can use, in addition to the names of the workflow's documents.
pub(crate) const VALUES: [&str; 13] = [
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
    "answer_format",
];

/// Returns the problems that only become visible when the parts of the workflow are compared with each other. If the
/// parser found problems, returns none, because they could cause further, misleading ones.
pub(crate) fn lint(source: &Source, read: &ParsedWorkflow, dirs: &PolicyDirs) -> Vec<Diagnostic> {
    let mut linter = Linter { source, read, dirs, found: Vec::new() };
    if read.problems.is_empty() {
        linter.all();
    }
    linter.found
}

struct Linter<'l> {
    source: &'l Source,
    read: &'l ParsedWorkflow,
    dirs: &'l PolicyDirs,
    found: Vec<Diagnostic>,
}

impl Linter<'_> {
    fn report(&mut self, severity: Severity, path: &str, message: String) {
        self.found.push(Diagnostic {
            severity,
            message,
            source: self.source.clone(),
            span: self.read.positions.of(path),
            label: "here".to_string(),
            help: None,
        });
    }

    fn wrong(&mut self, path: &str, message: String) {
        self.report(Severity::Error, path, message);
    }

    fn all(&mut self) {
        let workflow = &self.read.workflow;
        for (mode, step) in &workflow.modes {
            self.check_target(&format!("modes.{mode}"), step, false);
        }
        if !workflow.modes.contains_key(&workflow.mode) {
            let known: Vec<&str> = workflow.modes.keys().map(String::as_str).collect();
            let message = format!("the mode `{}` is not one of {}", workflow.mode, known.join(", "));
            self.wrong("mode", message);
        }
        for (name, role) in &workflow.roles {
            if let Err(error) = find(&role.policy, self.dirs, None) {
                self.wrong(&format!("roles.{name}.policy"), error.to_string());
            }
            let decides = |triage: &Triage| triage.role == *name;
            let writes = |triage: &Triage| triage.docs.as_ref().is_some_and(|docs| docs.role == *name);
            if !workflow.steps.iter().any(|step| step.role() == Some(name))
                && !workflow.triage.as_ref().is_some_and(|triage| decides(triage) || writes(triage))
            {
                self.report(
                    Severity::Warning,
                    &format!("roles.{name}"),
                    format!("no step uses the role `{name}`"),
                );
            }
            let agent = workflow.agent_of(role);
            if crate::agents::adapter::named(&agent.name).is_none() {
                self.wrong(&format!("roles.{name}"), format!("unknown agent `{}`", agent.name));
            }
        }
        for step in &workflow.steps {
            self.step(step);
        }
        if let Some(triage) = &workflow.triage {
            self.role("triage.role", &triage.role);
            self.fields("triage", &triage.answer);
            self.prompt("triage.prompt", &triage.prompt);
            self.answer_format("triage.prompt", &triage.prompt);
            self.docs(triage);
        }
        self.check_reachability();
    }

    fn docs(&mut self, triage: &Triage) {
        let Some(docs) = &triage.docs else { return };
        self.role("triage.docs.role", &docs.role);
        self.fields("triage.docs", &docs.answer);
        self.prompt("triage.docs.prompt", &docs.prompt);
        self.answer_format("triage.docs.prompt", &docs.prompt);
        if self.read.workflow.roles.get(&docs.role).is_some_and(|role| role.work == Work::Commit) {
            let message =
                "the role that writes documentation must have `work: read`: guard itself commits the files";
            self.wrong("triage.docs.role", message.to_string());
        }
        if !docs.files.iter().any(|pattern| !pattern.starts_with('!')) {
            self.wrong(
                "triage.docs.files",
                "`files` needs a pattern that includes files, not only patterns with `!`".to_string(),
            );
        }
        for pattern in &docs.files {
            if let Err(error) = globset::Glob::new(pattern.trim_start_matches('!')) {
                self.wrong("triage.docs.files", format!("`{pattern}` is not a valid glob: {}", error.kind()));
            }
        }
        let decides = triage.answer.get("decision").is_some_and(
            |field| matches!(&field.is, FieldType::OneOf(words) if words.iter().any(|word| word == "DOCS")),
        );
        if !decides {
            let message = "`docs` has no effect, because the answer's `decision` cannot be `DOCS`; add `DOCS` to its `one_of`";
            self.wrong("triage.docs", message.to_string());
        }
    }

    fn role(&mut self, path: &str, role: &str) {
        if !self.read.workflow.roles.contains_key(role) {
            self.wrong(path, format!("the workflow has no role `{role}`"));
        }
    }

    fn check_target(&mut self, path: &str, to: &str, may_be_word: bool) {
        let is_word = may_be_word && (to == BACK || to == END);
        if !is_word && self.read.workflow.step(to).is_none() {
            self.wrong(path, format!("the workflow has no step `{to}`"));
        }
    }

    fn step(&mut self, step: &Step) {
        let path = format!("steps.{}", step.id);
        if [BACK, END].contains(&step.id.as_str()) || !is_name(&step.id) {
            let message = format!(
                "`{}` is not a valid step name; use ASCII letters, digits, `-` and `_`, but not `{BACK}` or `{END}`",
                step.id
            );
            self.wrong(&path, message);
        }
        if let StepExecutor::BuiltinStep(_) = &step.doer
            && step.limits != Bounds::default()
        {
            self.wrong(
                &format!("{path}.limits"),
                "limits have no effect here: guard performs this step without an agent".to_string(),
            );
        }
        self.bounds(&path, step);
        if let StepExecutor::Role(role) = &step.doer {
            self.role(&format!("{path}.role"), role);
            self.agents_step(step, role, &path);
        }
        for (word, to) in step.leads_to() {
            let place = word.map_or_else(|| format!("{path}.next"), |word| format!("{path}.verdicts.{word}"));
            self.check_target(&place, to, true);
        }
        let (words, has_next) = (step.verdict_words(), step.next.is_some());
        match (words.is_empty(), has_next) {
            (true, false) => self.wrong(&path, "the step has no next step; add `next`".to_string()),
            (false, true) => self.wrong(
                &format!("{path}.next"),
                "a step with `verdicts` must not have `next`: each verdict names the next step".to_string(),
            ),
            _ => {}
        }
        for word in &words {
            if !step.verdicts.contains_key(*word) {
                self.wrong(&format!("{path}.verdicts"), format!("the verdict `{word}` has no next step"));
            }
        }
        for word in step.verdicts.keys().filter(|word| !words.contains(&word.as_str())) {
            self.wrong(&format!("{path}.verdicts.{word}"), format!("`{word}` is not a verdict of this step"));
        }
        if step.gate.is_some() && words.is_empty() {
            self.wrong(
                &format!("{path}.gate"),
                "a step with a `gate` needs verdicts, from which the user chooses".to_string(),
            );
        }
    }

    /// Warns if a step's limit is higher than the task's limit: the task's limit is always reached earlier.
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
                let message =
                    format!("the step's limit for {name} ({own}) exceeds the task's limit ({task})");
                self.report(Severity::Warning, &format!("{path}.limits.{name}"), message);
            }
        }
    }

    fn agents_step(&mut self, step: &Step, role: &str, path: &str) {
        self.prompt(&format!("{path}.prompt"), &step.prompt);
        match step.deep_research {
            Some(_) => self.research_step(step, role, path),
            None => self.answer_format(&format!("{path}.prompt"), &step.prompt),
        }
        self.fields(path, &step.answer);
        let work = self.read.workflow.roles.get(role).map(|role| role.work);
        let asks_for = |is: &FieldType| step.answer.values().any(|field| field.is == *is);
        if asks_for(&FieldType::Document) && step.document.is_none() {
            self.wrong(
                &format!("{path}.answer"),
                "the answer has a field with `is: document`, but the step has no `document`".to_string(),
            );
        }
        if asks_for(&FieldType::Commit) && work == Some(Work::Read) {
            let message = format!("the role `{role}` has `work: read` and cannot commit");
            self.wrong(&format!("{path}.answer"), message);
        }
        if work == Some(Work::Commit) && !asks_for(&FieldType::Commit) {
            self.wrong(
                &format!("{path}.answer"),
                "the role commits, so the answer needs a field with `is: commit`".to_string(),
            );
        }
        if !step.updates.is_empty() && work == Some(Work::Read) {
            let message = format!("the role `{role}` has `work: read` and cannot update files");
            self.wrong(&format!("{path}.updates"), message);
        }
        if work == Some(Work::Read) && step.document.is_none() {
            self.wrong(path, "a step whose role has `work: read` needs a `document`".to_string());
        }
        if step.must_merge && work != Some(Work::Commit) {
            let message = "`must_merge` needs a role with `work: commit`";
            self.wrong(&format!("{path}.must_merge"), message.to_string());
        }
    }

    fn fields(&mut self, path: &str, answer: &std::collections::BTreeMap<String, Field>) {
        if answer.is_empty() {
            self.wrong(path, "the answer has no fields".to_string());
        }
        for (name, field) in answer {
            let place = format!("{path}.answer.{name}");
            if matches!(&field.is, FieldType::OneOf(words) if words.is_empty()) {
                self.wrong(&place, "`one_of` needs at least one value".to_string());
            }
            let Some((other, value)) = &field.when else { continue };
            match answer.get(other).map(|field| &field.is) {
                None => {
                    self.wrong(&place, format!("`when` names `{other}`, but the answer has no such field"));
                }
                Some(FieldType::OneOf(words)) if !words.contains(value) => {
                    let message =
                        format!("`when` is never true: `{value}` is not one of the values of `{other}`");
                    self.wrong(&place, message);
                }
                Some(_) => {}
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
        // Only the prompts about remarks get the patterns of the documentation's files.
        let files = path.starts_with("triage.").then_some("files");
        let known: Vec<&str> =
            VALUES.into_iter().chain(files).chain(documents(&self.read.workflow)).collect();
        for name in template.names().iter().filter(|name| !known.contains(name)) {
            self.wrong(
                path,
                format!(
                    "the prompt uses an unknown placeholder `{name}`; the known placeholders are {}",
                    known.join(", ")
                ),
            );
        }
    }

    /// Checks that a prompt for an agent explains the format of the answer.
    fn answer_format(&mut self, path: &str, prompt: &str) {
        // The function `prompt` already reports a template that cannot be parsed.
        let Ok(template) = Template::read(prompt) else { return };
        if !template.names().contains(&"answer_format") {
            self.wrong(
                path,
                "the prompt does not explain the answer format; add `{{answer_format}}`".to_string(),
            );
        }
    }

    /// Checks a step that deep research performs. guard itself writes the report and the answer of such a step, so
    /// nothing may depend on what an agent answers.
    fn research_step(&mut self, step: &Step, role: &str, path: &str) {
        if step.answer.values().any(|field| field.is != FieldType::Document) {
            let message = "a step with `deep_research` can only answer with its document (`is: document`)";
            self.wrong(&format!("{path}.answer"), message.to_string());
        }
        if step.document.as_ref().is_some_and(|one| one.checklist || !one.sections.is_empty()) {
            let message = "guard writes the document of a step with `deep_research`, so the document cannot have `sections` or `checklist`";
            self.wrong(&format!("{path}.document"), message.to_string());
        }
        if self.read.workflow.roles.get(role).is_some_and(|role| role.work == Work::Commit) {
            let message = "deep research only reads: its role must have `work: read`";
            self.wrong(&format!("{path}.role"), message.to_string());
        }
    }

    /// Reports steps that a task can never reach, and a workflow that cannot end.
    fn check_reachability(&mut self) {
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
            let message = format!("no task can reach the step `{id}`, because no reachable step leads to it");
            self.report(Severity::Warning, &format!("steps.{id}"), message);
        }
        if !ends {
            self.wrong("steps", "no reachable step leads to `end`, so no task could end".to_string());
        }
    }
}

/// Returns the names of all documents that the workflow's steps write.
pub(crate) fn documents(workflow: &Workflow) -> BTreeSet<&str> {
    workflow.steps.iter().filter_map(|step| step.document.as_ref()).map(|one| one.name.as_str()).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
