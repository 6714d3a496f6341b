//! A committed audit against today's: which commands changed their fate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One line of difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The list of policies.
    Policies {
        /// In the snapshot.
        was: String,
        /// Today.
        is: String,
    },
    /// A command's answer.
    Answer {
        /// The corpus it is from.
        corpus: String,
        /// The command.
        text: String,
        /// In the snapshot.
        was: String,
        /// Today.
        is: String,
    },
    /// A command that is new.
    Added {
        /// The corpus it is from.
        corpus: String,
        /// The command.
        text: String,
        /// Its answer.
        is: String,
    },
    /// A command that is gone.
    Removed {
        /// The corpus it was in.
        corpus: String,
        /// The command.
        text: String,
    },
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

/// What differs between a snapshot's text and today's table.
pub fn compare(snapshot: &str, today: &str) -> Vec<Change> {
    let (old_policies, old) = parse(snapshot);
    let (new_policies, new) = parse(today);
    let mut changes = Vec::new();
    if old_policies != new_policies {
        changes.push(Change::Policies { was: old_policies.to_string(), is: new_policies.to_string() });
    }
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for key @ (corpus, text) in keys {
        let (corpus, text) = (corpus.to_string(), text.to_string());
        match (old.get(key), new.get(key)) {
            (Some(was), Some(is)) if was == is => {}
            (Some(was), Some(is)) => {
                changes.push(Change::Answer { corpus, text, was: was.to_string(), is: is.to_string() });
            }
            (None, Some(is)) => changes.push(Change::Added { corpus, text, is: is.to_string() }),
            (Some(_), None) => changes.push(Change::Removed { corpus, text }),
            (None, None) => {}
        }
    }
    changes
}

/// A table's policies, and its answers by corpus and command.
fn parse(table: &str) -> (&str, BTreeMap<(&str, &str), &str>) {
    let mut policies = "";
    let mut corpus = "";
    let mut answers = BTreeMap::new();
    for line in table.lines() {
        if let Some(rest) = line.strip_prefix("policies: ") {
            policies = rest;
        } else if let Some((answer, text)) = split(line) {
            answers.insert((corpus, text), answer);
        } else if !line.is_empty() {
            corpus = line;
        }
    }
    (policies, answers)
}

/// A table line: the answers (`deny rule [policies: answer]…`) padded to a column, then the command.
fn split(line: &str) -> Option<(&str, &str)> {
    let is_answer = ["allow ", "ask ", "deny "].iter().any(|action| line.starts_with(action));
    if !is_answer {
        return None;
    }
    let mut at = line.find(' ')? + 1;
    at += line[at..].find(' ')?;
    while line[at..].starts_with(" [") {
        at += line[at..].find(']')? + 1;
    }
    let text = line[at..].trim_start_matches(' ');
    Some((&line[..at], text))
}
