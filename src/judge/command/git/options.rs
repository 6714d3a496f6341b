//! The options of git's verbs, parsed once from `options.txt`, whose header explains the notation.

use std::sync::{LazyLock, OnceLock};

static TEXT: &str = include_str!("options.txt");

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::parse(TEXT));

pub(super) fn table() -> &'static Table {
    &TABLE
}

pub(super) struct Table {
    /// The options of each verb, sorted by verb for binary search.
    verbs: Vec<VerbOptions>,
    /// Options of the revision walk, shared by log, show, diff and their plumbing.
    pub(super) rev: &'static str,
    /// Options of diff output, shared by the verbs that print differences.
    pub(super) diff: &'static str,
}

struct VerbOptions {
    verb: &'static str,
    /// The verb's options, in the notation of `options.txt`.
    list: &'static str,
    /// The options parsed from `list`, created when a command first needs them.
    options: OnceLock<Box<[Known]>>,
}

impl Table {
    fn parse(text: &'static str) -> Self {
        let mut table = Self { verbs: Vec::with_capacity(400), rev: "", diff: "" };
        let mut same_as = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (verb, list) = match line.split_once(':') {
                Some((verb, list)) => (verb, list.trim_start()),
                None => match line.split_once(" = ") {
                    Some((verb, other)) => {
                        same_as.push((table.verbs.len(), other));
                        (verb, "")
                    }
                    None => (line, ""),
                },
            };
            match verb {
                "@rev" => table.rev = list,
                "@diff" => table.diff = list,
                _ => table.verbs.push(VerbOptions { verb, list, options: OnceLock::new() }),
            }
        }
        for (index, other) in same_as {
            table.verbs[index].list = table.find(other).map(|entry| entry.list).unwrap_or_default();
        }
        table
    }

    fn find(&self, verb: &str) -> Option<&VerbOptions> {
        self.verbs.binary_search_by(|entry| entry.verb.cmp(verb)).ok().map(|index| &self.verbs[index])
    }

    pub(super) fn contains(&self, verb: &str) -> bool {
        self.find(verb).is_some()
    }

    pub(super) fn verbs(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.verbs.iter().map(|entry| entry.verb)
    }

    /// Returns the options of a verb; empty for an unknown verb.
    pub(super) fn options_of(&self, verb: &str) -> &[Known] {
        self.find(verb).map_or(&[], |entry| {
            entry.options.get_or_init(|| {
                let mut options = Vec::with_capacity(64);
                read_list(self, entry.list, &mut options);
                options.into_boxed_slice()
            })
        })
    }
}

/// An option in the table of git's options.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// The letter of the short form; 0 if there is none.
    pub(super) short: u8,
    /// The long name; empty if there is none.
    pub(super) long: &'static str,
    pub(super) value: ValueKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    None,
    Mandatory,
    /// The option may have a value, which must then be joined to it (`--name=value`).
    Optional,
}

/// Parses a list of options in the notation of the table, including references to shared lists.
fn read_list(table: &Table, list: &'static str, options: &mut Vec<Known>) {
    for item in list.split(' ') {
        match item {
            "" | "#" => continue,
            "@rev" => {
                read_list(table, table.rev, options);
                continue;
            }
            "@diff" => {
                read_list(table, table.diff, options);
                continue;
            }
            _ => {}
        }
        let (item, value) = match item.as_bytes().last() {
            Some(b'=') => (&item[..item.len() - 1], ValueKind::Mandatory),
            Some(b'?') => (&item[..item.len() - 1], ValueKind::Optional),
            _ => (item, ValueKind::None),
        };
        let (short, long) = match item.split_once(',') {
            Some((short, long)) => (short.as_bytes()[0], long),
            None if item.len() == 1 => (item.as_bytes()[0], ""),
            None => (0, item),
        };
        options.push(Known { short, long, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_complete() {
        let table = table();
        assert_eq!(table.verbs.len(), 352);
        assert!(table.verbs.is_sorted_by(|a, b| a.verb < b.verb));
        assert!(!table.rev.is_empty() && !table.diff.is_empty());
        let same_as =
            TEXT.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
        for (verb, other) in same_as {
            let list = |verb| table.find(verb).map(|entry| entry.list).unwrap_or_default();
            assert!(!list(other).is_empty() && list(verb) == list(other), "{verb} = {other}");
        }
    }

    #[test]
    fn well_known_verbs_have_their_options() {
        let has = |verb: &str, name: &str| table().options_of(verb).iter().any(|known| known.long == name);
        assert!(has("commit", "amend") && has("stage", "dry-run") && has("stash push", "keep-index"));
        assert!(has("log", "max-count") && has("log", "patch"));
        assert!(table().contains("worktree") && table().options_of("worktree").is_empty());
        assert!(!table().contains("no-such-verb") && table().options_of("no-such-verb").is_empty());
    }
}
