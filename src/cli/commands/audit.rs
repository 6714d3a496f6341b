//! `guard policy audit`: judges lists of commands by policies. Prints the table of verdicts, or compares it with a
//! snapshot file.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::args::{Audit as Args, Format};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::{Failure, note};
use crate::judge::audit;
use crate::judge::audit::{Audit, Change, Corpus};
use crate::judge::decide::load;
use crate::judge::policy::PolicyDirs;
use crate::session::checkout::split;
use crate::sys::agent_paths::open_named_file;
use crate::sys::directory::Directory;
use crate::sys::fs::Durability;

pub(in crate::cli) fn run(args: &Args, dirs: &PolicyDirs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let policies = args.policy.iter().map(|name| load(name, dirs, false)).collect::<Result<Vec<_>, _>>()?;
    let mut corpora = Vec::new();
    for path in &args.corpora {
        let text = open_named_file(path).and_then(io::read_to_string).map_err(|error| {
            Failure::usage(
                format!("cannot read {}: {error}", path.display()),
                "give readable files with one command per line",
            )
        })?;
        let corpus = Corpus::parse(&path.display().to_string(), &text).map_err(|error| {
            Failure::usage(error.to_string(), "write each line as `LABEL<TAB>COMMAND` or `COMMAND`")
        })?;
        corpora.push(corpus);
    }
    let audit = audit::run(&policies, &corpora);
    if let Some((corpus, policy)) = audit.unused_labels.first() {
        let (message, hint) = match policy {
            Some(policy) => (
                format!("the labels in {corpus} are for the policy {policy}, which --policy does not name"),
                format!("add --policy {policy}"),
            ),
            None => (
                format!("the file {corpus} does not say which policy its labels are for"),
                "name the policy in the file: `#! policy: NAME`".to_string(),
            ),
        };
        note(&format!("guard: note: {message}, so guard did not check the labels; {hint}"));
    }
    let changed = match &args.snapshot {
        Some(path) => snapshot(args, path, &audit, out)?,
        None => {
            print(args.format, &audit, &[], out)?;
            false
        }
    };
    let contradictions = contradictions(&audit);
    if args.format == Format::Text {
        for line in &contradictions {
            writeln!(out, "{line}")?;
        }
    }
    Ok(if changed || !contradictions.is_empty() { Exit::Problem } else { Exit::Success })
}

fn print(format: Format, audit: &Audit, changes: &[Change], out: &mut dyn Write) -> Result<(), Failure> {
    match format {
        Format::Text => out.write_all(audit::text(audit).as_bytes())?,
        Format::Json => print_json(&rows_json(audit, changes), out)?,
        Format::Sarif => print_json(&audit::sarif(audit, changes), out)?,
        Format::Junit => {
            let xml = audit::junit(audit, changes).map_err(|error| {
                Failure::usage(format!("cannot write the JUnit report: {error}"), "use another --format")
            })?;
            out.write_all(xml.as_bytes())?;
        }
    }
    Ok(())
}

/// With `--update`, writes the table of verdicts to the snapshot file and returns false. Otherwise compares the table
/// with that file, prints the differences, and returns true if there are any.
fn snapshot(
    args: &Args,
    path: &std::path::Path,
    audit: &Audit,
    out: &mut dyn Write,
) -> Result<bool, Failure> {
    let today = audit::text(audit);
    let failed = |error: io::Error, what: &str, hint: &str| {
        Failure::usage(format!("cannot {what} the snapshot {}: {error}", path.display()), hint)
    };
    if args.update {
        let hint = "check the owner and mode of the file and of its directory";
        // An agent may have committed a link in place of the snapshot, or of a directory above it.
        let written = split(path).ok_or_else(|| io::Error::other("the path names a directory, not a file"));
        let written = written.and_then(|(parent, name)| {
            Directory::open_named(&parent)?.replace(name, today.as_bytes(), Durability::Unsynced)
        });
        written.map_err(|error| failed(error, "write", hint))?;
        writeln!(out, "wrote the decisions (commands: {}) to {}", audit.rows.len(), path.display())?;
        return Ok(false);
    }
    let hint = "create the snapshot with --snapshot FILE --update";
    let committed = open_named_file(path).and_then(io::read_to_string);
    let committed = committed.map_err(|error| failed(error, "read", hint))?;
    let changes = audit::compare(&committed, &today).map_err(|error| {
        Failure::usage(
            error.to_string(),
            "rewrite the snapshot with --snapshot FILE --update, and review the difference",
        )
    })?;
    if args.format != Format::Text {
        print(args.format, audit, &changes, out)?;
        // The report on standard output is for programs. The changes go to standard error, for users.
        for change in &changes {
            note(&change.to_string());
        }
        return Ok(!changes.is_empty());
    }
    for change in &changes {
        writeln!(out, "{change}")?;
    }
    if changes.is_empty() {
        writeln!(
            out,
            "commands judged: {}, all with the same decision as in {}",
            audit.rows.len(),
            path.display()
        )?;
    } else {
        let what = if changes.len() == 1 { "difference" } else { "differences" };
        writeln!(
            out,
            "\n{} {what} (commands: {}); use --update to accept the new decisions",
            changes.len(),
            audit.rows.len()
        )?;
    }
    Ok(!changes.is_empty())
}

fn contradictions(audit: &Audit) -> Vec<String> {
    let found = audit.rows.iter().filter_map(|row| row.contradiction().map(|found| (row, found)));
    found
        .map(|(row, (policy, label, answer))| {
            format!(
                "{}:{}: labelled {}, but {} {} it (rule {}): {}",
                row.corpus,
                row.line,
                label.name(),
                audit.policies[policy],
                match answer.action {
                    crate::judge::policy::Action::Allow => "allows",
                    crate::judge::policy::Action::Ask => "asks about",
                    crate::judge::policy::Action::Deny => "denies",
                },
                answer.rule,
                row.text
            )
        })
        .collect()
}

fn rows_json(audit: &Audit, changes: &[Change]) -> Value {
    let rows: Vec<Value> = audit
        .rows
        .iter()
        .map(|row| {
            let verdicts: serde_json::Map<String, Value> = audit
                .policies
                .iter()
                .zip(&row.verdicts)
                .map(|(policy, answer)| {
                    (policy.clone(), json!({ "decision": answer.action, "rule": answer.rule }))
                })
                .collect();
            json!({
                "corpus": row.corpus, "line": row.line, "command": row.text,
                "expected": row.expected.map(|(_, label)| label), "verdicts": verdicts,
            })
        })
        .collect();
    let changes: Vec<Value> = changes
        .iter()
        .map(|change| {
            json!({ "corpus": change.corpus(), "command": change.command(), "difference": change.difference() })
        })
        .collect();
    json!({ "policies": audit.policies, "commands": rows, "changes": changes })
}
