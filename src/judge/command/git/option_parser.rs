//! Parses a verb's arguments as git's own option parser does, including clusters (`-abc`), joined values (`-n5`) and
//! abbreviations (`--amen`).
//!
//! If an abbreviation is ambiguous, the parser reports every option that it could mean, so that the analysis misses
//! no effect.

use std::collections::HashSet;

use super::super::arg::Arg;
use super::options::{Known, ValueKind, table};

/// The parsed arguments of a verb.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// The given options and their values. The name has no dashes; it is the long name, or the letter if there is no
    /// long name. An option without a value occurs only once, because repeating it changes no effect, and a command may
    /// repeat it millions of times.
    pub(super) options: Vec<(Name, Option<Arg>)>,
    /// The names in `options` of the options without a value.
    without_value: HashSet<Name>,
    /// The arguments that are not options.
    pub(super) operands: Vec<Arg>,
}

/// The canonical name of an option.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Name {
    Long(&'static str),
    /// The negated option `--no-NAME`.
    No(&'static str),
    Letter(u8),
    /// An option that is not in the table, as written.
    Unknown(Vec<u8>),
}

impl Name {
    /// Returns the option with its dashes, as policies write it.
    pub(super) fn flag(&self) -> String {
        match self {
            Self::Long(name) => format!("--{name}"),
            Self::No(name) => format!("--no-{name}"),
            Self::Letter(letter) => format!("-{}", *letter as char),
            Self::Unknown(text) => String::from_utf8_lossy(text).into_owned(),
        }
    }
}

impl From<&Known> for Name {
    fn from(known: &Known) -> Self {
        if known.long.is_empty() { Self::Letter(known.short) } else { Self::Long(known.long) }
    }
}

impl Parsed {
    /// Parses the arguments of a verb. `verb` includes the subcommand if there is one (`stash push`).
    pub(super) fn new(verb: &str, args: &[Arg]) -> Self {
        let spec = table().options_of(verb);
        let mut parsed = Self::default();
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            at += 1;
            let word = arg.prefix();
            if matches!(word, b"--" | b"--end-of-options") && arg.is_exact() {
                parsed.operands.extend_from_slice(&args[at..]);
                break;
            }
            // `git config` parses no options after its first operand.
            let only_operands = verb.starts_with("config") && !parsed.operands.is_empty();
            if only_operands || word.len() < 2 || word[0] != b'-' {
                parsed.operands.push(arg.clone());
            } else if word[1] == b'-' {
                at += parsed.long(spec, arg, args.get(at));
            } else {
                at += parsed.cluster(spec, arg, args.get(at));
            }
        }
        parsed
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(known, _)| match known {
            Name::Long(long) => *long == name,
            Name::Letter(letter) => name.as_bytes() == [*letter],
            Name::No(_) => false,
            Name::Unknown(text) => text.iter().skip_while(|&&byte| byte == b'-').eq(name.as_bytes()),
        })
    }

    /// Returns true if the option is given and no other option, before or after it, negates it. Callers use this for
    /// options that make a command harmless.
    pub(super) fn surely_has(&self, name: &str) -> bool {
        let taken_back = |known: &Name| match known {
            Name::No(long) => *long == name || long.strip_prefix("no-") == Some(name),
            Name::Long(long) => long.strip_prefix("no-") == Some(name),
            _ => false,
        };
        self.has(name) && !self.options.iter().any(|(known, _)| taken_back(known))
    }

    pub(super) fn surely_has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.surely_has(name))
    }

    pub(super) fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    /// Returns the values that are given for an option, in order.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Arg> {
        self.options
            .iter()
            .filter(move |(known, _)| match known {
                Name::Long(long) => *long == name,
                Name::Letter(letter) => name.as_bytes() == [*letter],
                _ => false,
            })
            .filter_map(|(_, value)| value.as_ref())
    }

    fn add(&mut self, name: Name, value: Option<Arg>) {
        if value.is_some() || self.without_value.insert(name.clone()) {
            self.options.push((name, value));
        }
    }

    /// Parses a long option. Returns how many of the following arguments it consumed as its value.
    fn long(&mut self, spec: &'static [Known], arg: &Arg, next: Option<&Arg>) -> usize {
        let word = arg.prefix();
        let end = word.iter().position(|&byte| byte == b'=').unwrap_or(word.len());
        let name = &word[2..end];
        let joined = (end < word.len()).then(|| arg.skip(end + 1));
        let mut exact = None;
        let mut implied = None;
        let mut candidates: Vec<(Name, ValueKind)> = Vec::new();
        for known in spec {
            let long = known.long.as_bytes();
            if long.is_empty() {
                continue;
            }
            if long == name {
                exact.get_or_insert((Name::from(known), known.value));
            } else if long.starts_with(name) && !name.is_empty() {
                candidates.push((Name::from(known), known.value));
            }
            // Also match `--no-x`, even abbreviated, and `--x` if the table contains only the option `no-x`.
            if let Some(rest) = name.strip_prefix(b"no-") {
                if long == rest {
                    implied.get_or_insert((Name::No(known.long), ValueKind::None));
                } else if !rest.is_empty() && long.starts_with(rest) {
                    candidates.push((Name::No(known.long), ValueKind::None));
                }
            } else if let Some(positive) = known.long.strip_prefix("no-")
                && positive.as_bytes() == name
            {
                implied.get_or_insert((Name::No(known.long), ValueKind::None));
            }
        }
        // An option with exactly this name takes precedence over the negation of another option.
        let found = match exact.or(implied) {
            Some(exact) => vec![exact],
            None if candidates.is_empty() || !arg.is_exact() && joined.is_none() => {
                self.add(Name::Unknown(word[..end].to_vec()), joined);
                return 0;
            }
            // git rejects an ambiguous abbreviation. The safe interpretation is to report every candidate.
            None => candidates,
        };
        let mut taken = 0;
        for (name, kind) in found {
            let value = match (&joined, kind) {
                (Some(value), _) => Some(value.clone()),
                (None, ValueKind::Mandatory) => {
                    taken = usize::from(next.is_some());
                    next.cloned()
                }
                (None, _) => None,
            };
            self.add(name, value);
        }
        taken
    }

    /// Parses `-abc`: a cluster of short options, of which the last may take a value. Returns 1 if it consumed the next
    /// argument as this value, otherwise 0.
    fn cluster(&mut self, spec: &'static [Known], arg: &Arg, next: Option<&Arg>) -> usize {
        let word = arg.prefix();
        for (index, &letter) in word.iter().enumerate().skip(1) {
            let Some(known) = spec.iter().find(|known| known.short == letter) else {
                if !letter.is_ascii_digit() {
                    self.add(Name::Unknown(vec![b'-', letter]), None);
                }
                // The following letters may be the value of this unknown option or further options, so consider both.
                continue;
            };
            let rest = index + 1 < word.len();
            match known.value {
                ValueKind::None => self.add(Name::from(known), None),
                ValueKind::Optional => {
                    self.add(Name::from(known), rest.then(|| arg.skip(index + 1)));
                    return 0;
                }
                ValueKind::Mandatory if rest => {
                    self.add(Name::from(known), Some(arg.skip(index + 1)));
                    return 0;
                }
                ValueKind::Mandatory => {
                    self.add(Name::from(known), next.cloned());
                    return usize::from(next.is_some());
                }
            }
        }
        0
    }
}
