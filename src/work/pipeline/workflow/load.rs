//! Loads workflows by name or path: those of the user, and the built-in ones.

use std::path::{Path, PathBuf};

use super::lint::lint;
use super::model::Workflow;
use super::parse;
use super::yaml::LARGEST;
use crate::judge::policy::{Diagnostic, PolicyDirs, Severity, Source};
use crate::sys::agent_paths::{AgentPaths, read_text_file};

/// The name and YAML text of each built-in workflow.
pub const BUILT_IN: [(&str, &str); 1] =
    [("default", include_str!("../../../../policies/workflows/default.yaml"))];

/// The prompts of the built-in workflows: the path by which a workflow names the prompt, and the prompt's text.
pub const PROMPTS: [(&str, &str); 12] = [
    ("prompts/investigator.md", include_str!("../../../../policies/workflows/prompts/investigator.md")),
    ("prompts/researcher.md", include_str!("../../../../policies/workflows/prompts/researcher.md")),
    ("prompts/deep_researcher.md", include_str!("../../../../policies/workflows/prompts/deep_researcher.md")),
    ("prompts/analyst.md", include_str!("../../../../policies/workflows/prompts/analyst.md")),
    ("prompts/architect.md", include_str!("../../../../policies/workflows/prompts/architect.md")),
    ("prompts/reviewer.md", include_str!("../../../../policies/workflows/prompts/reviewer.md")),
    ("prompts/developer.md", include_str!("../../../../policies/workflows/prompts/developer.md")),
    ("prompts/auditor.md", include_str!("../../../../policies/workflows/prompts/auditor.md")),
    ("prompts/integrator.md", include_str!("../../../../policies/workflows/prompts/integrator.md")),
    ("prompts/merge_auditor.md", include_str!("../../../../policies/workflows/prompts/merge_auditor.md")),
    ("prompts/writer.md", include_str!("../../../../policies/workflows/prompts/writer.md")),
    ("prompts/triage.md", include_str!("../../../../policies/workflows/prompts/triage.md")),
];

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkflowError {
    #[error("no workflow named `{0}`")]
    NotFound(String),
    #[error("cannot read the workflow {}: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: String },
    #[error("the workflow is invalid: {}", count_errors(.0))]
    Invalid(Vec<Diagnostic>),
}

fn count_errors(problems: &[Diagnostic]) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    format!("{errors} error{}", if errors == 1 { "" } else { "s" })
}

/// Returns the directory that contains the user's workflows, beside the directory of the user's policies; `None` if the
/// user has no directory of policies.
fn user_workflows_dir(dirs: &PolicyDirs) -> Option<PathBuf> {
    dirs.user.as_ref().map(|policies| policies.with_file_name("workflows"))
}

/// Returns the names of all workflows, and whether each is built in. The user's own workflows come first, and replace
/// built-in workflows with the same name.
pub fn names(dirs: &PolicyDirs) -> Vec<(String, bool)> {
    let entries = user_workflows_dir(dirs).and_then(|directory| std::fs::read_dir(directory).ok());
    let name = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let ending = path.extension()?.to_str()?;
        ["yaml", "yml", "json"].contains(&ending).then(|| path.file_stem()?.to_str().map(str::to_string))?
    };
    let mut found: Vec<(String, bool)> =
        entries.into_iter().flatten().flatten().filter_map(name).map(|name| (name, false)).collect();
    found.sort();
    for (name, _) in BUILT_IN {
        if !found.iter().any(|(known, _)| known == name) {
            found.push((name.to_string(), true));
        }
    }
    found
}

/// Returns the text of a workflow, and the directory that contains its prompts (`None` for a built-in workflow).
/// `reference` is a path if it contains a slash or has an extension, and otherwise the name of a workflow.
pub fn source(reference: &str, dirs: &PolicyDirs) -> Result<(Source, Option<PathBuf>), WorkflowError> {
    let is_path = reference.contains('/') || Path::new(reference).extension().is_some();
    if is_path {
        return from_file(Path::new(reference));
    }
    if let Some(directory) = user_workflows_dir(dirs) {
        let files = ["yaml", "yml", "json"].map(|ending| directory.join(format!("{reference}.{ending}")));
        if let Some(file) = files.iter().find(|file| file.exists()) {
            return from_file(file);
        }
    }
    let built_in = BUILT_IN.iter().find(|(name, _)| *name == reference);
    let (name, text) = built_in.ok_or_else(|| WorkflowError::NotFound(reference.to_string()))?;
    Ok((Source { name: format!("builtin:{name}.yaml"), text: (*text).into(), built_in: true }, None))
}

fn from_file(path: &Path) -> Result<(Source, Option<PathBuf>), WorkflowError> {
    let text = read_text_file(path, LARGEST)
        .map_err(|problem| WorkflowError::Unreadable { path: path.to_path_buf(), problem })?;
    let source = Source { name: path.display().to_string(), text: text.into(), built_in: false };
    Ok((source, Some(path.parent().unwrap_or(Path::new("")).to_path_buf())))
}

/// Reads a prompt file that a workflow file names. An agent may have written the workflow file, so a workflow in a
/// directory where agents work cannot name a file elsewhere: the prompt is sent to an agent.
fn read_prompt(workflow: &Path, named: &Path) -> Result<String, String> {
    let fails = |error: std::io::Error| error.to_string();
    let (workflow, named) = (std::path::absolute(workflow), std::path::absolute(named));
    let (workflow, named) = (workflow.map_err(fails)?, named.map_err(fails)?);
    let paths = AgentPaths::from_environment().map_err(fails)?;
    if let Some(place) = paths.first_place(&workflow).map_err(fails)? {
        let real = paths.resolve(&named).map_err(fails)?.real;
        if !real.starts_with(&place.root) {
            return Err(format!("the workflow is in {place}, and the file is not"));
        }
    }
    read_text_file(&named, LARGEST)
}

/// Parses a workflow and returns it with all its problems. The workflow is usable if no problem has the severity
/// `Error`. Fails only if there is no such workflow or its file cannot be read.
pub fn examine(
    reference: &str,
    dirs: &PolicyDirs,
) -> Result<(Workflow, Source, Vec<Diagnostic>), WorkflowError> {
    let (source, directory) = source(reference, dirs)?;
    // Look for prompts beside the file first, then among the built-in ones.
    let prompt = |path: &str| -> Result<String, String> {
        let own = directory.as_ref().map(|directory| directory.join(path)).filter(|file| file.exists());
        if let Some(file) = own {
            if Path::new(path).is_absolute() {
                return Err("the path must be relative to the directory of the workflow".to_string());
            }
            return read_prompt(Path::new(&source.name), &file);
        }
        let built_in = PROMPTS.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_string());
        built_in.ok_or_else(|| "it is neither beside the workflow nor among the built-in prompts".to_string())
    };
    let mut read = parse::read(&source, &prompt);
    let more = lint(&source, &read, dirs);
    let mut problems = std::mem::take(&mut read.problems);
    problems.extend(more);
    problems.sort_by_key(|problem| (problem.severity, problem.span.start));
    Ok((read.workflow, source, problems))
}

/// Loads a workflow; fails if it has errors.
pub fn load(reference: &str, dirs: &PolicyDirs) -> Result<Workflow, WorkflowError> {
    let (workflow, _, problems) = examine(reference, dirs)?;
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(WorkflowError::Invalid(problems));
    }
    Ok(workflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_counts_errors_only() {
        let problem = |severity| Diagnostic {
            severity,
            message: String::new(),
            source: Source { name: String::new(), text: "".into(), built_in: false },
            span: 0..0,
            label: String::new(),
            help: None,
        };
        let error = WorkflowError::Invalid(vec![problem(Severity::Error), problem(Severity::Warning)]);
        assert_eq!(error.to_string(), "the workflow is invalid: 1 error");
    }
}
