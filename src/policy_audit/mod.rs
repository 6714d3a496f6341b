//! Audits policies: runs lists of commands (corpora) through them and reports the decisions as a table, as CI
//! reports, or as a difference from a committed snapshot.
//!
//! This lets a policy change be reviewed like code: run it over the commands that matter and read the
//! difference. The result must not depend on the machine it runs on.
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

/// The result of an audit.
#[derive(Debug, Clone)]
pub struct Audit {
    /// The names of the audited policies, in order.
    pub policies: Vec<String>,
    /// Corpora whose labels were not checked because their policy is not among the audited ones, with the
    /// policy they name.
    pub unused_labels: Vec<(String, Option<String>)>,
    /// One row for each case.
    pub rows: Vec<Row>,
}

/// The decisions of all policies about one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The corpus that contains the case.
    pub corpus: String,
    /// The line number in the corpus.
    pub line: usize,
    /// The command as written.
    pub text: String,
    /// The label, and the index of the policy it refers to.
    pub expected: Option<(usize, Action)>,
    /// One answer for each policy.
    pub verdicts: Vec<Answer>,
}

/// One policy's verdict, reduced to what a snapshot keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The decision.
    pub action: Action,
    /// The rule that caused the decision.
    pub rule: String,
    /// The reason, for reports.
    pub reason: String,
}

impl Row {
    /// Returns the answer that contradicts the label, if there is one.
    pub fn contradiction(&self) -> Option<(usize, Action, &Answer)> {
        let (policy, label) = self.expected?;
        let answer = self.verdicts.get(policy)?;
        (answer.action != label).then_some((policy, label, answer))
    }
}

/// Runs every case through every policy. Cases are judged as if run in a working tree by a user with unknown
/// home directory and environment, so that the result is the same on every machine.
pub fn run(policies: &[Policy], corpora: &[Corpus]) -> Audit {
    let context = Context { cwd: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() };
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
