//! Audits policies: runs lists of commands (corpora) through them and reports the decisions as a table, as CI reports,
//! or as a difference from a committed snapshot.
//!
//! With an audit, people can review a policy change like code: they audit the commands that matter, and read which
//! decisions changed. The result must not depend on the machine on which the audit runs.
#![forbid(unsafe_code)]

mod corpus;
mod report;
mod snapshot;

pub use corpus::{Case, Corpus, CorpusError};
pub use report::{junit, sarif, text};
pub use snapshot::{Change, SnapshotError, compare};

use crate::judge::command::{Context, Cwd};
use crate::judge::decide::judge;
use crate::judge::policy::{Action, Policy};

/// The result of an audit: the decision of every policy about every command.
#[derive(Debug, Clone)]
pub struct Audit {
    /// The names of the audited policies, in order.
    pub policies: Vec<String>,
    /// Corpora whose labels were not checked, because the policy that they refer to was not audited or is not stated:
    /// the name of the corpus, and the name of the policy if it is stated.
    pub unused_labels: Vec<(String, Option<String>)>,
    /// The decisions, one row for each case of the corpora.
    pub rows: Vec<Row>,
}

/// The decisions of all policies about one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub corpus: String,
    /// The line number of the case in the corpus, from 1.
    pub line: usize,
    /// The command as written in the corpus.
    pub text: String,
    /// The decision that the case's label expects, with the index of the policy that the label refers to.
    pub expected: Option<(usize, Action)>,
    /// The decision of each policy, in the order of [`Audit::policies`].
    pub verdicts: Vec<Answer>,
}

/// One policy's decision about a command, reduced to what tables and reports need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub action: Action,
    /// The id of the rule that caused the decision.
    pub rule: String,
    pub reason: String,
}

impl Row {
    /// Returns the policy's decision if it contradicts the case's label, with the index of the policy and the expected
    /// decision. `None` if it agrees, or if there is no label to check.
    pub fn contradiction(&self) -> Option<(usize, Action, &Answer)> {
        let (policy, label) = self.expected?;
        let answer = self.verdicts.get(policy)?;
        (answer.action != label).then_some((policy, label, answer))
    }
}

/// Runs every case through every policy. guard judges each command as if it ran in a worktree, with an empty
/// environment and an unknown home directory, so that the result is the same on every machine.
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
