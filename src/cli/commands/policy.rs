//! `guard policy list | show | lint | diff | presets | schema | audit`: shows, checks and compares policies.

use std::io::Write;

use serde_json::{Value, json};

use crate::cli::args;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::{Failure, stdout_colour, write_diagnostics};
use crate::judge::decide::{load, load_text};
use crate::judge::policy;
use crate::judge::policy::{Diagnostic, Policy, PolicyDirs, PolicyError, Severity, diff, find};

pub(in crate::cli) fn run(args: args::Policy, out: &mut dyn Write) -> Result<Exit, Failure> {
    let dirs = PolicyDirs::from_environment();
    match args {
        args::Policy::List { json } => list(&dirs, json, out),
        args::Policy::Show { policy, effective, json } => show(&policy, effective, json, &dirs, out),
        args::Policy::Lint { policies, json } => lint(&policies, json, &dirs, out),
        args::Policy::Diff { a, b } => {
            let (left, right) = (load(&a, &dirs, false)?, load(&b, &dirs, false)?);
            let lines = diff(&left, &right);
            for line in &lines {
                writeln!(out, "{line}")?;
            }
            Ok(if lines.is_empty() { Exit::Success } else { Exit::Problem })
        }
        args::Policy::Schema => {
            print_json(&policy::schema(), out)?;
            Ok(Exit::Success)
        }
        args::Policy::Presets { json } => crate::cli::commands::check_connect::presets(json, out),
        args::Policy::Audit(args) => crate::cli::commands::audit::run(&args, &dirs, out),
    }
}

fn list(dirs: &PolicyDirs, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut entries = Vec::new();
    for (name, built_in) in dirs.names() {
        // One invalid policy file of the user must not keep guard from listing the other policies.
        let (description, extends, problem) = match load(&name, dirs, false) {
            Ok(policy) => (policy.description, policy.extends, None),
            Err(error) => (String::new(), Vec::new(), Some(error.to_string())),
        };
        entries.push((name, built_in, description, extends, problem));
    }
    if json {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(name, built_in, description, extends, problem)| {
                json!({ "name": name, "built_in": built_in, "description": description, "extends": extends, "problem": problem })
            })
            .collect();
        print_json(&json!(entries), out)?;
        return Ok(Exit::Success);
    }
    for (name, built_in, description, _, problem) in &entries {
        let text = problem.as_ref().unwrap_or(description);
        let mark = if *built_in { "" } else { " (yours)" };
        writeln!(out, "{name:<14}{text}{mark}")?;
    }
    Ok(Exit::Success)
}

fn show(
    reference: &str,
    effective: bool,
    json: bool,
    dirs: &PolicyDirs,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    if !effective && !json {
        let source = find(reference, dirs, None)?;
        out.write_all(source.text.as_bytes())?;
        return Ok(Exit::Success);
    }
    let policy = load(reference, dirs, false)?;
    if json {
        print_json(&policy_json(&policy), out)?;
        return Ok(Exit::Success);
    }
    writeln!(out, "{}: {}", policy.name, policy.description)?;
    if !policy.extends.is_empty() {
        writeln!(out, "extends {}", policy.extends.join(", "))?;
    }
    writeln!(out, "programs that no rule matches: {}", policy.default_action.action.name())?;
    writeln!(out, "git commands that no rule matches: {}", policy.git_default_action.action.name())?;
    writeln!(out, "git in repositories that the run creates: {}", policy.git_other_action.action.name())?;
    let listed = |items: &[String]| if items.is_empty() { "none".to_string() } else { items.join(" ") };
    writeln!(out, "read: {}", listed(&policy.filesystem.read))?;
    writeln!(out, "write: {}", listed(&policy.filesystem.write))?;
    writeln!(out, "execute: {}", policy::execute(&policy))?;
    writeln!(out, "hosts: {}", listed(&policy.network.allow))?;
    if !policy.network.deny.is_empty() {
        writeln!(out, "hosts denied: {}", policy.network.deny.join(" "))?;
    }
    if !policy.network.listen.is_empty() {
        let ports: Vec<String> = policy.network.listen.iter().map(u16::to_string).collect();
        writeln!(out, "ports to listen on: {}", ports.join(" "))?;
    }
    writeln!(out, "network presets: {}", listed(&policy.network.presets))?;
    writeln!(out, "variables: {}", listed(&policy.environment.pass))?;
    let sandbox = &policy.sandbox;
    writeln!(out, "sandbox: namespaces {}, verify_exec {}", sandbox.namespaces.name(), sandbox.verify_exec)?;
    writeln!(out, "files copied into the run's home directory: {}", listed(&policy.home.import))?;
    let worktree = &policy.worktree;
    writeln!(out, "worktree: copies {}, links {}", listed(&worktree.copy), listed(&worktree.link_readonly))?;
    let toolchains = &policy.toolchains;
    writeln!(out, "toolchains: {}, caches {}", listed(&toolchains.detect), toolchains.caches.name())?;
    let limits: Vec<String> =
        policy.limits.values.iter().map(|(key, value)| format!("{key} {value}")).collect();
    writeln!(out, "limits: {}", limits.join(", "))?;
    writeln!(out)?;
    for rule in &policy.rules {
        let mark = if rule.is_override { " (override)" } else { "" };
        writeln!(out, "{:<6}{:<24}{}{mark}", rule.action.name(), rule.id, policy.locate(&rule.place))?;
        writeln!(out, "      {}", rule.reason)?;
        writeln!(out, "      when {}", policy::described(rule))?;
    }
    Ok(Exit::Success)
}

fn policy_json(policy: &Policy) -> Value {
    let rules: Vec<Value> = policy
        .rules
        .iter()
        .map(|rule| {
            let place = policy.locate(&rule.place);
            json!({
                "id": rule.id, "action": rule.action, "reason": rule.reason, "instead": rule.instead,
                "override": rule.is_override, "when": policy::described(rule),
                "source": { "file": place.file, "line": place.line, "column": place.column },
            })
        })
        .collect();
    let limits: serde_json::Map<String, Value> =
        policy.limits.values.iter().map(|(key, value)| ((*key).to_string(), json!(value))).collect();
    json!({
        "name": policy.name, "description": policy.description, "extends": policy.extends,
        "default_action": policy.default_action.action, "git_default_action": policy.git_default_action.action,
        "git_other_action": policy.git_other_action.action,
        "filesystem": policy.filesystem, "network": policy.network, "environment": policy.environment,
        "limits": limits, "budget": policy.budget, "sandbox": policy.sandbox, "home": policy.home, "toolchains": policy.toolchains, "worktree": policy.worktree, "git": policy.git, "rules": rules,
    })
}

fn lint(references: &[String], json: bool, dirs: &PolicyDirs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut all: Vec<Diagnostic> = Vec::new();
    let mut summaries = Vec::new();
    for reference in references {
        let source = find(reference, dirs, None)?;
        let problems = match load_text(source, dirs) {
            Ok(policy) => {
                let own = policy.rules.iter().filter(|rule| rule.place.source == policy.own_source());
                let examples: usize = own.map(|rule| rule.examples.len()).sum();
                summaries.push(format!(
                    "{reference}: rules {}, including those of the policies it extends; examples in this file: {examples}",
                    policy.rules.len()
                ));
                policy.remarks
            }
            Err(PolicyError::Invalid(problems)) => {
                let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
                summaries.push(format!("{reference}: {errors} error{}", if errors == 1 { "" } else { "s" }));
                problems
            }
            Err(other) => return Err(other.into()),
        };
        all.extend(problems);
    }
    let failed = all.iter().any(|problem| problem.severity == Severity::Error);
    if json {
        let problems: Vec<Value> = all.iter().map(problem_json).collect();
        print_json(&json!({ "ok": !failed, "problems": problems }), out)?;
    } else {
        write_diagnostics(out, &all, stdout_colour())?;
        for summary in summaries {
            writeln!(out, "{summary}")?;
        }
    }
    Ok(if failed { Exit::Problem } else { Exit::Success })
}

fn problem_json(problem: &Diagnostic) -> Value {
    let place = problem.location();
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    json!({
        "severity": severity, "message": problem.message, "label": problem.label, "help": problem.help,
        "source": { "file": place.file, "line": place.line, "column": place.column },
    })
}
