//! Corpora × policies → what each command gets, as a table, as reports for CI, and compared with a committed snapshot.
//!
//! So that a change of policy is reviewed like code: run it over the commands that matter, and look at the difference.
#![forbid(unsafe_code)]

mod corpus;
mod report;
mod snapshot;

pub use corpus::{Case, Corpus, CorpusError};
pub use report::{junit, sarif, text};
pub use snapshot::{Change, SnapshotError, compare};

use crate::command::{Context, Cwd};
use crate::decide::judge;
use crate::policy::{Action, Policy};

/// The outcome of an audit.
#[derive(Debug, Clone)]
pub struct Audit {
    /// The policies asked, in order.
    pub policies: Vec<String>,
    /// Corpora with labels that none of these policies is meant by, and the policy they name.
    pub unused_labels: Vec<(String, Option<String>)>,
    /// One row a case.
    pub rows: Vec<Row>,
}

/// What every policy says of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The corpus it is from.
    pub corpus: String,
    /// Its line there.
    pub line: usize,
    /// The command as written.
    pub text: String,
    /// The label, and the index of the policy it is about.
    pub expected: Option<(usize, Action)>,
    /// A verdict for each policy.
    pub verdicts: Vec<Answer>,
}

/// One policy's answer, shortened to what a snapshot keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The decision.
    pub action: Action,
    /// The rule behind it.
    pub rule: String,
    /// The reason, for reports.
    pub reason: String,
}

impl Row {
    /// The answer that contradicts the label, if one does.
    pub fn contradiction(&self) -> Option<(usize, Action, &Answer)> {
        let (policy, label) = self.expected?;
        let answer = self.verdicts.get(policy)?;
        (answer.action != label).then_some((policy, label, answer))
    }
}

/// Runs every case through every policy. Cases are judged as if they were run in a working tree, by a user whose home and
/// environment are not known, so that the result is the same on every machine.
pub fn run(policies: &[Policy], corpora: &[Corpus]) -> Audit {
    let context = Context { folder: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() };
    let mut rows = Vec::new();
    let mut unused_labels = Vec::new();
    for corpus in corpora {
        let labelled = match &corpus.policy {
            Some(name) => policies.iter().position(|policy| policy.name == *name),
            None => (policies.len() == 1).then_some(0),
        };
        if labelled.is_none() && corpus.cases.iter().any(|case| case.label.is_some()) {
            unused_labels.push((corpus.name.clone(), corpus.policy.clone()));
        }
        for case in &corpus.cases {
            let verdicts = policies.iter().map(|policy| answer(policy, case, &context)).collect();
            rows.push(Row {
                corpus: corpus.name.clone(),
                line: case.line,
                text: case.text.clone(),
                expected: labelled.zip(case.label),
                verdicts,
            });
        }
    }
    Audit { policies: policies.iter().map(|policy| policy.name.clone()).collect(), unused_labels, rows }
}

fn answer(policy: &Policy, case: &Case, context: &Context) -> Answer {
    let (verdict, _) = judge(policy, &case.request, context);
    Answer { action: verdict.action(), rule: verdict.cause.rule, reason: verdict.cause.reason }
}
