//! The built-in policies as they were read, kept in the program: reading their text takes a run longer than everything
//! else it does before its first process.
//!
//! Only what the reader makes of one file is kept; merging is done every time. Bytes that were made from another text than
//! this program's, or that cannot be taken apart to the last one, are not used: then the text is read, as for every file.
//! `GUARD_UPDATE_POLICIES=1 cargo test --lib kept` makes them anew when a policy, a preset or the reader has changed.

use std::ops::Range;

use super::builtin::BUILT_IN;
use super::diagnostic::Source;
use super::fields::{self, Kind};
use super::model::{Action, Conditions, Example, ExampleCommand, Examples, PathAccess, Stored};
use super::pattern::{PathPattern, Pattern};
use super::preset::{PRESETS, Preset, PresetHost, PresetName};
use super::reader::{At, File, FileRule, Section};
use crate::command::Effects;

/// For every built-in policy, then for every preset: the stamp of its text, the length of what was read, and that.
/// Text, numbers included, so that nothing has to be looked at again to be text.
const KEPT: &str = include_str!("../../policies/read.bin");

const STAMPS: [u64; BUILT_IN.len() + PRESETS.len()] = {
    let mut stamps = [0; BUILT_IN.len() + PRESETS.len()];
    let mut at = 0;
    while at < stamps.len() {
        let policies = BUILT_IN.len();
        stamps[at] = stamp(if at < policies { BUILT_IN[at].1 } else { PRESETS[at - policies].1 }.as_bytes());
        at += 1;
    }
    stamps
};

/// What a text comes down to. No protection, only a date stamp.
const fn stamp(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

/// What the reader made of a built-in policy, if it is kept. Texts with problems are not.
pub(super) fn policy(source: &Source) -> Option<File> {
    let name = source.name.strip_prefix("builtin:")?.strip_suffix(".toml")?;
    let index = BUILT_IN.iter().position(|(known, _)| *known == name)?;
    let is_this_text = source.built_in && *source.text == *BUILT_IN[index].1;
    is_this_text.then(|| taken(index)).flatten()
}

/// A preset, if it is kept.
pub(super) fn preset(name: &str) -> Option<Preset> {
    let index = PRESETS.iter().position(|(known, _)| *known == name)?;
    taken(BUILT_IN.len() + index)
}

fn taken<T: Keep>(index: usize) -> Option<T> {
    let mut rest = KEPT;
    for (at, stamp) in STAMPS.iter().enumerate().take(index + 1) {
        let (found, length) = (u64::take(&mut rest)?, u64::take(&mut rest)?);
        let (mut text, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        rest = behind;
        if at == index {
            let value = T::take(&mut text)?;
            return (found == *stamp && text.is_empty()).then_some(value);
        }
    }
    None
}

/// Something that can be written down and taken back.
trait Keep: Sized {
    #[cfg_attr(not(test), allow(dead_code, reason = "the test below writes; the program only reads"))]
    fn keep(&self, out: &mut Vec<u8>);
    fn take(from: &mut &'static str) -> Option<Self>;
}

/// A number in so many bytes of seven bits.
#[cfg_attr(not(test), allow(dead_code, reason = "as above"))]
fn keep_number<const BYTES: usize>(number: u64, out: &mut Vec<u8>) {
    out.extend((0..BYTES).map(|at| (number >> (7 * at)) as u8 & 0x7f));
}

fn take_number<const BYTES: usize>(from: &mut &'static str) -> Option<u64> {
    let (bytes, rest) = from.split_at_checked(BYTES)?;
    *from = rest;
    Some(bytes.bytes().rev().fold(0, |number, byte| number << 7 | u64::from(byte)))
}

impl Keep for u64 {
    fn keep(&self, out: &mut Vec<u8>) {
        keep_number::<10>(*self, out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        take_number::<10>(from)
    }
}

impl Keep for i64 {
    fn keep(&self, out: &mut Vec<u8>) {
        self.cast_unsigned().keep(out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        u64::take(from).map(u64::cast_signed)
    }
}

/// Lengths and places: a policy is smaller than two MiB.
impl Keep for usize {
    fn keep(&self, out: &mut Vec<u8>) {
        keep_number::<3>(*self as u64, out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        usize::try_from(take_number::<3>(from)?).ok()
    }
}

impl Keep for u8 {
    fn keep(&self, out: &mut Vec<u8>) {
        keep_number::<1>((*self).into(), out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        take_number::<1>(from)?.try_into().ok()
    }
}

#[cfg_attr(not(test), allow(dead_code, reason = "as above"))]
fn keep_text(text: &str, out: &mut Vec<u8>) {
    text.len().keep(out);
    out.extend_from_slice(text.as_bytes());
}

fn take_text(from: &mut &'static str) -> Option<&'static str> {
    let length = usize::take(from)?;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(text)
}

impl<T: Keep> Keep for Vec<T> {
    fn keep(&self, out: &mut Vec<u8>) {
        self.len().keep(out);
        self.iter().for_each(|item| item.keep(out));
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        let length = usize::take(from)?;
        // Every item takes a byte at least: what says more cannot be right, and would only take memory.
        (length <= from.len()).then_some(())?;
        let mut items = Self::with_capacity(length);
        for _ in 0..length {
            items.push(T::take(from)?);
        }
        Some(items)
    }
}

impl<T: Keep> Keep for Option<T> {
    fn keep(&self, out: &mut Vec<u8>) {
        self.is_some().keep(out);
        self.iter().for_each(|item| item.keep(out));
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<A: Keep, B: Keep> Keep for (A, B) {
    fn keep(&self, out: &mut Vec<u8>) {
        self.0.keep(out);
        self.1.keep(out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

/// The name of a section's key, as the table of the format has it.
impl Keep for &'static str {
    fn keep(&self, out: &mut Vec<u8>) {
        keep_text(self, out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        let name = take_text(from)?;
        let sections = fields::POLICY.iter().filter_map(|field| match field.kind {
            Kind::Table(section) => Some(section),
            _ => None,
        });
        sections.flatten().map(|field| field.name).find(|known| *known == name)
    }
}

/// What is kept by its text: how that is written, and what is made of it.
macro_rules! by_text {
    ($($kind:ty: $write:expr, $read:expr;)+) => {
        $(impl Keep for $kind {
            fn keep(&self, out: &mut Vec<u8>) {
                let write: fn(&Self) -> &str = $write;
                keep_text(write(self), out);
            }

            fn take(from: &mut &'static str) -> Option<Self> {
                let read: fn(&'static str) -> Option<Self> = $read;
                read(take_text(from)?)
            }
        })+
    };
}

by_text! {
    String: |text| text, |text| Some(text.to_string());
    Pattern: Pattern::as_str, |text| Pattern::of_program(text).ok();
    PathPattern: PathPattern::as_str, |text| PathPattern::new(text).ok();
    Action: |action| action.name(), Action::named;
}

impl Keep for Effects {
    fn keep(&self, out: &mut Vec<u8>) {
        let names: Vec<String> = self.names().map(str::to_string).collect();
        names.keep(out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        let mut effects = Self::NONE;
        for _ in 0..usize::take(from)? {
            effects.add(Self::named(take_text(from)?)?);
        }
        Some(effects)
    }
}

/// What is one of a few: kept by its number.
macro_rules! by_number {
    ($($kind:ty: $($number:literal = $value:expr),+;)+) => {
        $(impl Keep for $kind {
            fn keep(&self, out: &mut Vec<u8>) {
                let numbers = [$(($number, $value)),+];
                numbers.into_iter().find(|(_, value)| value == self).map_or(0x7f, |(number, _)| number).keep(out);
            }

            fn take(from: &mut &'static str) -> Option<Self> {
                match u8::take(from)? {
                    $($number => Some($value),)+
                    _ => None,
                }
            }
        })+
    };
}

by_number! {
    bool: 0u8 = false, 1u8 = true;
    PathAccess: 0u8 = PathAccess::Read, 1u8 = PathAccess::Write, 2u8 = PathAccess::Any;
}

impl Keep for ExampleCommand {
    fn keep(&self, out: &mut Vec<u8>) {
        match self {
            Self::Shell(text) => {
                true.keep(out);
                text.keep(out);
            }
            Self::Argv(words) => {
                false.keep(out);
                words.keep(out);
            }
        }
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        Some(if bool::take(from)? { Self::Shell(Keep::take(from)?) } else { Self::Argv(Keep::take(from)?) })
    }
}

/// With their length before them, and taken apart later.
impl Keep for Examples {
    fn keep(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        self.all().to_vec().keep(&mut bytes);
        bytes.len().keep(out);
        out.extend(bytes);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        take_text(from).map(|text| Self(Stored::Kept(text)))
    }
}

/// The examples of a rule, as they are kept.
pub(super) fn examples(mut text: &'static str) -> Vec<Example> {
    Keep::take(&mut text).unwrap_or_default()
}

/// Structures, field by field. One that is forgotten here does not compile.
macro_rules! by_fields {
    ($($kind:ident $(<$of:ident>)? { $($field:ident),+ })+) => {
        $(impl $(<$of: Keep>)? Keep for $kind $(<$of>)? {
            fn keep(&self, out: &mut Vec<u8>) {
                let Self { $($field),+ } = self;
                $($field.keep(out);)+
            }

            fn take(from: &mut &'static str) -> Option<Self> {
                Some(Self { $($field: Keep::take(from)?),+ })
            }
        })+
    };
}

impl Keep for Range<usize> {
    fn keep(&self, out: &mut Vec<u8>) {
        (self.start, self.end).keep(out);
    }

    fn take(from: &mut &'static str) -> Option<Self> {
        Keep::take(from).map(|(start, end)| start..end)
    }
}

by_fields! {
    At<T> { value, span }
    File {
        name, description, extends, default_action, filesystem, network, environment, limits, budget, sandbox, home,
        toolchains, worktree, git, rules, has_broken_rules, is_damaged
    }
    Section { span, lists, numbers, flags, texts, map, default_action, overrides }
    FileRule { id, action, reason, instead, when, examples, overrides }
    Conditions {
        programs, verbs, subcommands, flags, unless_flags, args, unless_args, paths, unless_paths, access, effects,
        only_effects, variables, refs
    }
    Example { action, command, span }
    Preset { description, allow, tool, gateway }
    PresetHost { entry, reason }
    PresetName { name, reason }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::policy::builtin;
    use crate::policy::reader;

    /// What the reader makes of every text, written down.
    fn made() -> Vec<u8> {
        let policies = BUILT_IN.iter().map(|(name, _)| {
            let (file, problems) = reader::read(&builtin::source(name).unwrap());
            assert!(problems.is_empty(), "{name}: {problems:?}");
            let mut bytes = Vec::new();
            file.keep(&mut bytes);
            bytes
        });
        let presets = PRESETS.iter().map(|(_, text)| {
            let mut bytes = Vec::new();
            toml::from_str::<Preset>(text).unwrap().keep(&mut bytes);
            bytes
        });
        let mut out = Vec::new();
        for (stamp, bytes) in STAMPS.iter().zip(policies.chain(presets)) {
            stamp.keep(&mut out);
            (bytes.len() as u64).keep(&mut out);
            out.extend(bytes);
        }
        out
    }

    #[test]
    fn what_is_kept_is_what_the_reader_makes_of_the_texts() {
        let made = made();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/read.bin");
        if std::env::var_os("GUARD_UPDATE_POLICIES").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let kept = std::fs::read(path).unwrap();
        assert!(
            kept == made,
            "policies/read.bin is stale: GUARD_UPDATE_POLICIES=1 cargo test --lib kept, and build again"
        );
        for (name, _) in BUILT_IN {
            let source = builtin::source(name).unwrap();
            let (read, _) = reader::read(&source);
            let taken = policy(&source).unwrap_or_else(|| panic!("{name} is not kept"));
            assert_eq!(format!("{taken:?}"), format!("{read:?}"), "{name}");
        }
        for (name, text) in PRESETS {
            assert_eq!(preset(name), toml::from_str(text).ok(), "{name}");
        }
    }

    #[test]
    fn another_text_under_a_built_in_name_is_read_and_not_taken_from_what_is_kept() {
        let source = builtin::source("strict").unwrap();
        let text = format!("{}\n# changed", source.text);
        assert!(policy(&Source { text: text.into(), ..source.clone() }).is_none());
        assert!(policy(&Source { built_in: false, ..source }).is_none());
    }

    #[test]
    fn damaged_texts_are_nothing_and_no_panic() {
        let mut whole = Vec::new();
        reader::read(&builtin::source("strict").unwrap()).0.keep(&mut whole);
        let text = |bytes: Vec<u8>| -> &'static str { String::from_utf8(bytes).unwrap().leak() };
        let all = text(whole.clone());
        for cut in (0..whole.len()).step_by(101).filter(|cut| whole[*cut].is_ascii()) {
            assert!(File::take(&mut &all[..cut]).is_none());
            for change in [0x01, 0x40] {
                let mut damaged = whole.clone();
                damaged[cut] ^= change;
                // Whatever it is now: it was taken apart without a panic.
                let taken = File::take(&mut text(damaged));
                let _ = taken.map(|file| format!("{file:?}"));
            }
        }
    }
}
