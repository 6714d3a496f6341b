//! `messages.jsonl`: the stored entries of a conversation, one JSON object per line. guard only appends to this
//! file.
//!
//! [`append`] returns when the entry is on disk. If the disk is full, it removes the part that it wrote.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::model::{Snapshot, TurnMode, TurnState};
use crate::run::outcome::Worktree;
use crate::sys::append_log::{self, AppendError, Writers};

/// The maximum size of the file, in bytes. A reader holds the whole file in memory.
const LARGEST: u64 = 512 << 20;

/// One line of a conversation's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Entry {
    /// The user sent a message. guard stores this entry before the agent starts.
    Sent(Sent),
    Ended(Box<Ended>),
    /// The user cleared the history.
    Cleared {
        /// When the user cleared the history (RFC 3339).
        time: String,
    },
    Undone {
        /// When the user undid the turn (RFC 3339).
        time: String,
        turn: usize,
        /// The ref under which guard saved the files as the turn left them; `None` if guard did not restore the files.
        #[serde(default)]
        saved: Option<String>,
    },
}

/// A message of the user, which begins a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) turn: usize,
    pub(super) time: String,
    pub(super) text: String,
    pub(super) mode: TurnMode,
    pub(super) estimated_tokens: u64,
    #[serde(default)]
    pub(super) session: Option<String>,
    #[serde(default)]
    pub(super) before: Option<Snapshot>,
}

/// The end of a turn: how it ended, and the agent's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) turn: usize,
    pub(super) time: String,
    pub(super) state: TurnState,
    pub(super) text: String,
    pub(super) run_id: String,
    pub(super) duration_ms: u64,
    pub(super) tokens_reported: Option<u64>,
    pub(super) estimated_tokens: u64,
    pub(super) denials: u64,
    pub(super) mode: TurnMode,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    #[serde(default)]
    pub(super) worktree: Option<Worktree>,
    #[serde(default)]
    pub(super) session: Option<String>,
    #[serde(default)]
    pub(super) is_in_native_session: bool,
}

pub(super) fn create(path: &Path) -> io::Result<()> {
    append_log::open(path).map(drop)
}

/// Appends an entry, and returns when it is on disk. After an error the file has its previous content.
pub(super) fn append(path: &Path, entry: &Entry) -> io::Result<()> {
    let line = serde_json::to_vec(entry)?;
    append_log::append(&append_log::open(path)?, line, LARGEST, Writers::One).map_err(|error| match error {
        AppendError::Full => io::Error::other("the conversation is full; start a new one, or fork this one"),
        AppendError::Io(error) => error,
    })
}

/// Reads all entries, and counts the lines that are not entries. Ignores an incomplete last line. A file that does not
/// exist has no entries.
pub(super) fn read(path: &Path) -> io::Result<(Vec<Entry>, usize)> {
    if path.metadata().is_ok_and(|file| file.len() > LARGEST) {
        return Err(io::Error::other(format!("the file is larger than {} MiB", LARGEST >> 20)));
    }
    append_log::read(path, 0, LARGEST).map(|bytes| parse(&bytes))
}

fn parse(bytes: &[u8]) -> (Vec<Entry>, usize) {
    let whole = &bytes[..append_log::complete_lines(bytes)];
    let mut damaged = 0;
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let entry = |line: &[u8]| {
        let entry = parse_line(line);
        damaged += usize::from(entry.is_none());
        entry
    };
    (lines.filter_map(entry).collect(), damaged)
}

/// Parses one line; `None` if it is not an entry. To parse the enum, serde would copy each entry into a buffer until it
/// has found the field `type`. guard writes that field first, so this function recognises the two frequent types by
/// the beginning of the line and parses them directly, which makes opening a long conversation faster.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let direct = if line.starts_with(br#"{"type":"sent","#) {
        serde_json::from_slice(line).ok().map(Entry::Sent)
    } else if line.starts_with(br#"{"type":"ended","#) {
        serde_json::from_slice(line).ok().map(Entry::Ended)
    } else {
        None
    };
    direct.or_else(|| serde_json::from_slice(line).ok())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use proptest::prelude::*;

    fn sent(turn: usize, text: &str) -> Entry {
        Entry::Sent(Sent {
            turn,
            time: "2026-11-17T20:00:00Z".to_string(),
            text: text.to_string(),
            mode: TurnMode::OwnHistory,
            estimated_tokens: 1,
            session: None,
            before: None,
        })
    }

    fn bytes(entries: &[Entry]) -> Vec<u8> {
        let line = |entry| {
            let mut line = serde_json::to_vec(entry).unwrap_or_default();
            line.push(b'\n');
            line
        };
        entries.iter().flat_map(line).collect()
    }

    proptest! {
        /// The direct parser and serde's parser must agree on every entry, and on every entry with a changed byte.
        #[test]
        fn direct_parsing_gives_the_same_entry(text in ".{0,20}", at in 0usize..200, byte in any::<u8>()) {
            let mut line = serde_json::to_vec(&sent(7, &text)).unwrap_or_default();
            prop_assert_eq!(parse_line(&line), Some(sent(7, &text)));
            let length = line.len();
            line[at % length] = byte;
            prop_assert_eq!(parse_line(&line), serde_json::from_slice(&line).ok());
        }

        /// Whatever bytes the file contains, reading it must neither panic nor return more entries than the
        /// file has lines.
        #[test]
        fn any_bytes_are_read(junk in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (entries, damaged) = parse(&junk);
            let lines = junk.iter().filter(|byte| **byte == b'\n').count();
            prop_assert!(entries.len() + damaged <= lines);
        }

        /// A file that was cut at any byte must yield the entries whose lines are complete, and no damaged
        /// lines.
        #[test]
        fn a_cut_file_has_the_first_entries(texts in proptest::collection::vec(".{0,20}", 1..6), cut in 0usize..2000) {
            let all: Vec<Entry> = texts.iter().enumerate().map(|(turn, text)| sent(turn, text)).collect();
            let whole = bytes(&all);
            let part = &whole[..cut.min(whole.len())];
            let (entries, damaged) = parse(part);
            prop_assert_eq!(damaged, 0);
            prop_assert_eq!(&entries[..], &all[..entries.len()]);
            prop_assert_eq!(entries.len(), part.iter().filter(|byte| **byte == b'\n').count());
        }
    }

    /// A process was killed while it appended an entry. The next process must remove the incomplete line, so that its
    /// own entry can be read.
    #[test]
    fn a_torn_line_is_cut() {
        let path = std::env::temp_dir().join(format!("guard-message-log-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let fails = |error: io::Error| panic!("{error}");
        append(&path, &sent(1, "one\ntwo 🎉 中文")).unwrap_or_else(fails);
        let mut file = append_log::open(&path).unwrap_or_else(|error| panic!("{error}"));
        file.write_all(b"{\"type\":\"sent\",\"tu").unwrap_or_else(fails);
        assert_eq!(read(&path).unwrap_or_else(|error| panic!("{error}")).0.len(), 1);
        append_log::cut_torn_line(&path).unwrap_or_else(fails);
        append(&path, &sent(2, "three")).unwrap_or_else(fails);
        let (entries, damaged) = read(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((entries, damaged), (vec![sent(1, "one\ntwo 🎉 中文"), sent(2, "three")], 0));
        let _ = std::fs::remove_file(&path);
    }
}
