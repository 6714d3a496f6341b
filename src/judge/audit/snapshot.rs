//! Compares a committed audit table (the snapshot) with the current table, and lists the commands about which the
//! decision of a policy changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One difference between the snapshot and the current table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The list of audited policies changed.
    Policies {
        /// The list of policies in the snapshot.
        was: String,
        /// The current list of policies.
        is: String,
    },
    Answer {
        corpus: String,
        text: String,
        /// The answer in the snapshot.
        was: String,
        is: String,
    },
    /// The corpus contains a command that is not in the snapshot.
    Added { corpus: String, text: String, is: String },
    /// The snapshot contains a command that is no longer in the corpus.
    Removed { corpus: String, text: String },
}

impl Change {
    /// Returns the corpus that contains the command; `None` for a change in the list of policies.
    pub fn corpus(&self) -> Option<&str> {
        match self {
            Self::Policies { .. } => None,
            Self::Answer { corpus, .. } | Self::Added { corpus, .. } | Self::Removed { corpus, .. } => {
                Some(corpus)
            }
        }
    }

    /// Returns the command as written in the corpus, or `policies` for a change in the list of policies.
    pub fn command(&self) -> &str {
        match self {
            Self::Policies { .. } => "policies",
            Self::Answer { text, .. } | Self::Added { text, .. } | Self::Removed { text, .. } => text,
        }
    }

    /// Describes what differs from the snapshot, in one line.
    pub fn difference(&self) -> String {
        match self {
            Self::Policies { was, is } | Self::Answer { was, is, .. } => {
                format!("the snapshot has `{was}`, and the audit now has `{is}`")
            }
            Self::Added { is, .. } => format!("not in the snapshot; the audit has `{is}`"),
            Self::Removed { .. } => "in the snapshot, but not in the list of commands".to_string(),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policies { was, is } => write!(out, "~ policies\n    - {was}\n    + {is}"),
            Self::Answer { corpus, text, was, is } => {
                write!(out, "~ {corpus}: {text}\n    - {was}\n    + {is}")
            }
            Self::Added { corpus, text, is } => write!(out, "+ {corpus}: {text}\n    + {is}"),
            Self::Removed { corpus, text } => write!(out, "- {corpus}: {text}"),
        }
    }
}

/// The error for an invalid line of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid snapshot: line {line} is neither a heading nor `ANSWER<TAB>COMMAND`")]
pub struct SnapshotError {
    /// The number of the invalid line, from 1.
    pub line: usize,
}

/// Compares the text of a snapshot with the current table. Lists the changes sorted by corpus and command.
pub fn compare(snapshot: &str, today: &str) -> Result<Vec<Change>, SnapshotError> {
    let (old, new) = (Table::parse(snapshot)?, Table::parse(today)?);
    let mut changes = Vec::new();
    if old.policies != new.policies {
        changes.push(Change::Policies { was: old.policies.to_string(), is: new.policies.to_string() });
    }
    let keys: BTreeSet<_> = old.answers.keys().chain(new.answers.keys()).collect();
    for key @ (corpus, text) in keys {
        let nothing = Vec::new();
        let was = old.answers.get(key).unwrap_or(&nothing);
        let is = new.answers.get(key).unwrap_or(&nothing);
        // A command may occur more than once in a corpus.
        for index in 0..was.len().max(is.len()) {
            let (corpus, text) = (corpus.to_string(), text.to_string());
            match (was.get(index), is.get(index)) {
                (Some(was), Some(is)) if was == is => {}
                (Some(was), Some(is)) => {
                    changes.push(Change::Answer { corpus, text, was: was.to_string(), is: is.to_string() });
                }
                (None, Some(is)) => changes.push(Change::Added { corpus, text, is: is.to_string() }),
                (Some(_), None) => changes.push(Change::Removed { corpus, text }),
                (None, None) => {}
            }
        }
    }
    Ok(changes)
}

/// A parsed audit table: the list of policies, and the answers by corpus and command.
#[derive(Default)]
struct Table<'t> {
    policies: &'t str,
    answers: BTreeMap<(&'t str, &'t str), Vec<&'t str>>,
}

impl<'t> Table<'t> {
    fn parse(text: &'t str) -> Result<Self, SnapshotError> {
        let mut table = Self::default();
        let mut corpus = "";
        for (index, line) in text.lines().enumerate() {
            if let Some((answer, command)) = line.split_once('\t') {
                table.answers.entry((corpus, command)).or_default().push(answer.trim_end());
            } else if let Some(name) = line.strip_prefix("# ") {
                corpus = name;
            } else if let Some(policies) = line.strip_prefix("policies: ") {
                table.policies = policies;
            } else if !line.is_empty() {
                return Err(SnapshotError { line: index + 1 });
            }
        }
        Ok(table)
    }
}
