//! `guard workflow`: lists, shows, checks and draws the workflows that tasks follow.

use std::io::Write;

use serde_json::json;

use crate::cli::args::task::Workflow;
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, stdout_colour, write_diagnostics};
use crate::judge::policy::{PolicyDirs, Severity};
use crate::work::pipeline;
use crate::work::pipeline::WorkflowError;

pub(in crate::cli) fn run(command: &Workflow, out: &mut dyn Write) -> Result<Exit, Failure> {
    let dirs = PolicyDirs::from_environment();
    match command {
        Workflow::List { json } => list(&dirs, *json, out),
        Workflow::Show { workflow, prompts, json } => show(workflow, &dirs, *prompts, *json, out),
        Workflow::Lint { workflow, json } => lint(workflow, &dirs, *json, out),
        Workflow::Graph { workflow, mermaid } => {
            let found = pipeline::load(workflow, &dirs).map_err(failure)?;
            let picture = if *mermaid { pipeline::mermaid(&found) } else { pipeline::text(&found) };
            write!(out, "{picture}")?;
            Ok(Exit::Success)
        }
    }
}

/// Turns an error about a workflow into a message for the user, with at most 50 of the problems in the workflow.
pub(in crate::cli) fn failure(error: WorkflowError) -> Failure {
    match error {
        WorkflowError::Invalid(problems) => {
            let shown: Vec<String> = problems
                .iter()
                .take(50)
                .map(|problem| problem.render(crate::cli::output::colour::stderr_colour()))
                .collect();
            let message = format!("the workflow has errors\n{}", shown.join("\n\n"));
            Failure::usage(message, "`guard workflow lint WORKFLOW --json` lists all errors")
        }
        error => Failure::usage(
            error.to_string(),
            "`guard workflow list` shows the names; a path must contain a slash or a file extension",
        ),
    }
}

fn list(dirs: &PolicyDirs, as_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let names = pipeline::names(dirs);
    let described = |name: &str| pipeline::load(name, dirs).map(|workflow| workflow.description);
    if as_json {
        let rows: Vec<_> = names
            .iter()
            .map(|(name, built_in)| json!({ "name": name, "built_in": built_in, "description": described(name).ok() }))
            .collect();
        crate::cli::output::json::to_writer(&mut *out, &json!(rows)).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    for (name, built_in) in names {
        let origin = if built_in { "built in" } else { "yours" };
        let words = described(&name).unwrap_or_else(|error| format!("({error})"));
        writeln!(out, "{name:<16} {origin:<9} {words}")?;
    }
    Ok(Exit::Success)
}

fn show(
    name: &str,
    dirs: &PolicyDirs,
    prompts: bool,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    if as_json {
        let found = pipeline::load(name, dirs).map_err(failure)?;
        crate::cli::output::json::to_writer_pretty(&mut *out, &found).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let (source, _) = pipeline::source(name, dirs).map_err(failure)?;
    write!(out, "{}", source.text)?;
    if prompts {
        let found = pipeline::load(name, dirs).map_err(failure)?;
        for step in found.steps.iter().filter(|step| !step.prompt.is_empty()) {
            writeln!(out, "\n# ---- the prompt of {} ----\n{}", step.id, step.prompt)?;
        }
    }
    Ok(Exit::Success)
}

fn lint(name: &str, dirs: &PolicyDirs, as_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (workflow, _, problems) = pipeline::examine(name, dirs).map_err(failure)?;
    let is_wrong = problems.iter().any(|problem| problem.severity == Severity::Error);
    if as_json {
        let rows: Vec<_> = problems
            .iter()
            .map(|problem| {
                let place = problem.location();
                json!({ "severity": format!("{:?}", problem.severity).to_lowercase(), "message": problem.message, "file": place.file, "line": place.line, "column": place.column })
            })
            .collect();
        crate::cli::output::json::to_writer(&mut *out, &json!(rows)).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write_diagnostics(out, &problems, stdout_colour())?;
        if !is_wrong {
            writeln!(
                out,
                "{}: {} steps, {} roles, no errors",
                workflow.name,
                workflow.steps.len(),
                workflow.roles.len()
            )?;
        }
    }
    Ok(if is_wrong { Exit::Problem } else { Exit::Success })
}
