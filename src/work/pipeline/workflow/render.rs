//! Renders a workflow for people: as text, and as a mermaid flow chart.

use std::fmt::Write;

use super::model::{BACK, BuiltinStep, Step, StepExecutor, Workflow};

/// Describes who performs a step: the role and its policy, or guard itself.
pub fn doer(workflow: &Workflow, step: &Step) -> String {
    match &step.doer {
        StepExecutor::Role(role) => workflow
            .roles
            .get(role)
            .map_or_else(|| role.clone(), |known| format!("{} ({})", known.title, known.policy)),
        StepExecutor::BuiltinStep(BuiltinStep::Merge) => format!("guard: merges {}", workflow.base),
        StepExecutor::BuiltinStep(BuiltinStep::Archive) => "guard: archives the documents".to_string(),
        StepExecutor::BuiltinStep(BuiltinStep::Deliver) => "guard: delivers the branch".to_string(),
    }
}

/// Renders a workflow as text: one paragraph per step, with the possible next steps below it.
pub fn text(workflow: &Workflow) -> String {
    let mut out = String::new();
    for (mode, step) in &workflow.modes {
        let usual = if *mode == workflow.mode { " (default)" } else { "" };
        let _ = writeln!(out, "--mode {mode}{usual} ──► {step}");
    }
    for step in &workflow.steps {
        let _ = write!(out, "\n{}  [{}]", step.id, doer(workflow, step));
        if let Some(document) = &step.document {
            let _ = write!(out, "  writes {}/{}", workflow.documents, document.path);
        }
        if let Some(gate) = &step.gate {
            let _ = write!(out, "  gate {gate}");
        }
        out.push('\n');
        for (word, to) in step.leads_to() {
            let to = if to == BACK { "the step that led here" } else { to };
            let _ =
                writeln!(out, "  {} {to}", word.map_or("──►".to_string(), |word| format!("── {word} ──►")));
        }
    }
    if let Some(triage) = &workflow.triage {
        let title = |role: &str| {
            let known = workflow.roles.get(role);
            known.map_or_else(|| role.to_string(), |known| format!("{} ({})", known.title, known.policy))
        };
        let _ =
            writeln!(out, "\nfeedback that an agent adds to its result goes to  [{}]", title(&triage.role));
        if let Some(docs) = &triage.docs {
            let files = docs.files.join(" ");
            let _ = writeln!(out, "  ── DOCS ──► {}  writes {files}, then continues", title(&docs.role));
        }
    }
    out
}

pub fn mermaid(workflow: &Workflow) -> String {
    let mut out = "flowchart TD\n".to_string();
    let plain = |text: &str| text.replace('"', "'");
    for (mode, step) in &workflow.modes {
        let _ = writeln!(out, "    mode_{mode}([\"--mode {}\"]) --> {step}", plain(mode));
    }
    for step in &workflow.steps {
        let _ = writeln!(out, "    {}[\"{}<br/>{}\"]", step.id, step.id, plain(&doer(workflow, step)));
        for (word, to) in step.leads_to() {
            let label = word.map(|word| format!("|{}| ", plain(word))).unwrap_or_default();
            if to == BACK {
                for from in comes_from(workflow, &step.id) {
                    let _ = writeln!(out, "    {} -->{label}{from}", step.id);
                }
            } else {
                let _ = writeln!(out, "    {} -->{label}{to}", step.id);
            }
        }
    }
    out
}

/// Returns the ids of the steps that always continue with the step `id`, without a verdict.
fn comes_from<'w>(workflow: &'w Workflow, id: &str) -> Vec<&'w str> {
    workflow
        .steps
        .iter()
        .filter(|step| step.next.as_deref() == Some(id))
        .map(|step| step.id.as_str())
        .collect()
}
