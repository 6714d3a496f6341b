//! Renders an audit as text, JUnit XML or SARIF.

use std::collections::BTreeMap;
use std::fmt::Write;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde_json::{Value, json};

use super::{Answer, Audit, Change, Row};
use crate::judge::policy::Action;
use crate::text::terminal_text;

/// Renders the audit table: one line for each case, grouped by corpus. A line consists of the first policy's answer,
/// the answers of the policies that decide differently, a tab, and the command.
pub fn text(audit: &Audit) -> String {
    let mut out = format!("policies: {}\n", audit.policies.join(" "));
    let mut corpus = "";
    for row in &audit.rows {
        if row.corpus != corpus {
            corpus = &row.corpus;
            let _ = write!(out, "\n# {corpus}\n");
        }
        let _ = writeln!(out, "{:<28}\t{}", answers(audit, row), row.text);
    }
    out
}

/// Formats the answers about one case: first the first policy's answer, for example `deny git.switch`. Then, for each
/// different answer, appends the policies that give it and the answer, for example `[readonly: deny readonly.git]`.
pub(super) fn answers(audit: &Audit, row: &Row) -> String {
    let show = |answer: &Answer| format!("{} {}", answer.action.name(), answer.rule);
    let Some(first) = row.verdicts.first() else { return String::new() };
    let base = show(first);
    let mut others: Vec<(String, Vec<&str>)> = Vec::new();
    for (policy, answer) in audit.policies.iter().zip(&row.verdicts).skip(1) {
        let shown = show(answer);
        if shown == base {
            continue;
        }
        match others.iter_mut().find(|(known, _)| *known == shown) {
            Some((_, policies)) => policies.push(policy),
            None => others.push((shown, vec![policy])),
        }
    }
    others.iter().fold(base, |line, (shown, policies)| format!("{line} [{}: {shown}]", policies.join(" ")))
}

/// Renders JUnit XML: one suite for each corpus and policy, one test for each case. A case that contradicts its label
/// is a failure. Every difference from the snapshot is also a failure, in a separate suite.
pub fn junit(audit: &Audit, changes: &[Change]) -> Result<String, quick_junit::SerializeError> {
    let mut suites: BTreeMap<(usize, &str), TestSuite> = BTreeMap::new();
    for row in &audit.rows {
        for (index, answer) in row.verdicts.iter().enumerate() {
            let suite = suites
                .entry((index, row.corpus.as_str()))
                .or_insert_with(|| TestSuite::new(format!("{} {}", audit.policies[index], row.corpus)));
            let mut status = TestCaseStatus::success();
            if let Some((policy, label, _)) = row.contradiction()
                && policy == index
            {
                status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(format!(
                    "expected {}, got {} by rule {}",
                    label.name(),
                    answer.action.name(),
                    answer.rule
                ));
            }
            let mut case =
                TestCase::new(format!("{}: {}", row.line, terminal_text::replace(&row.text)), status);
            case.set_classname(format!("{}.{}", audit.policies[index], answer.rule));
            suite.add_test_case(case);
        }
    }
    let mut report = Report::new("guard policy audit");
    report.add_test_suites(suites.into_values());
    if !changes.is_empty() {
        let mut suite = TestSuite::new("snapshot");
        for change in changes {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(terminal_text::replace(&change.difference()));
            let mut case = TestCase::new(terminal_text::replace(change.command()), status);
            case.set_classname(format!("snapshot.{}", change.corpus().unwrap_or("policies")));
            suite.add_test_case(case);
        }
        report.add_test_suite(suite);
    }
    report.to_string()
}

/// Renders SARIF 2.1.0. For each policy, every case that it does not allow is a note, and every case that contradicts
/// its label is an error instead. Every difference from the snapshot is also an error.
pub fn sarif(audit: &Audit, changes: &[Change]) -> Value {
    let mut rules: BTreeMap<&str, &str> = BTreeMap::new();
    let mut results = Vec::new();
    for row in &audit.rows {
        for (index, answer) in row.verdicts.iter().enumerate() {
            let contradicted = row.contradiction().filter(|(policy, ..)| *policy == index);
            if answer.action == Action::Allow && contradicted.is_none() {
                continue;
            }
            rules.entry(&answer.rule).or_insert(&answer.reason);
            let (level, message) = match contradicted {
                Some((_, label, _)) => (
                    "error",
                    format!("expected {}, got {}: {}", label.name(), answer.action.name(), row.text),
                ),
                None => ("note", format!("{}: {}", answer.action.name(), row.text)),
            };
            results.push(json!({
                "ruleId": answer.rule,
                "level": level,
                "message": { "text": message },
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": { "uri": uri(&row.corpus) },
                        "region": { "startLine": row.line },
                    }
                }],
                "properties": { "policy": audit.policies[index], "decision": answer.action.name() },
            }));
        }
    }
    if !changes.is_empty() {
        rules.insert(SNAPSHOT_RULE, "The decision differs from the committed snapshot.");
    }
    results.extend(changes.iter().map(|change| changed(audit, change)));
    let rules: Vec<Value> = rules
        .into_iter()
        .map(|(id, reason)| json!({ "id": id, "shortDescription": { "text": reason } }))
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "guard", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "results": results,
        }],
    })
}

/// The rule id of SARIF results that report a difference from the snapshot.
const SNAPSHOT_RULE: &str = "audit.snapshot";

fn changed(audit: &Audit, change: &Change) -> Value {
    let message = format!("{}: {}", change.command(), change.difference());
    let mut result = json!({ "ruleId": SNAPSHOT_RULE, "level": "error", "message": { "text": message } });
    if let Some(corpus) = change.corpus() {
        let mut place = json!({ "artifactLocation": { "uri": uri(corpus) } });
        let row = audit.rows.iter().find(|row| row.corpus == corpus && row.text == change.command());
        if let Some(row) = row {
            place["region"] = json!({ "startLine": row.line });
        }
        result["locations"] = json!([{ "physicalLocation": place }]);
    }
    result
}

/// Encodes a file name as a relative URI reference.
fn uri(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_' | b'~') {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
