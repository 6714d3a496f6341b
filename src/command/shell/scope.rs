//! What is known of a shell's state while its text is walked: variables, aliases, the current directory.
//!
//! Changes are logged, so that a subshell's are undone at its end and a conditional branch's become "unknown": both in
//! time proportional to the changes made, never to the state.

use std::collections::HashMap;

use super::super::arg::Arg;
use crate::command::cwd::Cwd;

/// Longer values are not followed: `a=$a$a` would double for ever.
const LONGEST_VALUE: usize = 1024;
/// More variables than people write; past it values are simply unknown.
const MOST_NAMES: usize = 4096;
const MOST_INHERITED: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Known(Vec<u8>),
    Unknown,
    /// `unset`: not even inherited.
    Unset,
}

impl Value {
    pub(crate) fn into_arg(self) -> Arg {
        match self {
            Self::Known(bytes) => Arg::exact(bytes),
            Self::Unknown | Self::Unset => Arg::partial(Vec::new(), b"?", false),
        }
    }
}

#[derive(Debug)]
enum Change {
    Variable(Vec<u8>, Option<Value>),
    Alias(Vec<u8>, Option<Value>),
    Cwd(Cwd),
}

/// A position in the log; see [`Scope::undo_to`] and [`Scope::blur_since`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(usize);

#[derive(Debug, Default)]
pub(crate) struct Scope {
    variables: HashMap<Vec<u8>, Value>,
    aliases: HashMap<Vec<u8>, Value>,
    folder: Cwd,
    log: Vec<Change>,
    /// Names set so far that programs inherit; few, so that each command can look them all up.
    inherited: Vec<Vec<u8>>,
    /// More of them were set than are followed.
    pub(crate) overflowed: bool,
    /// Values may change behind the text's back: namerefs, `declare -l`, traps. No value is believed any more.
    untrusted: bool,
    /// Names that cannot be assigned to any more.
    frozen: Vec<Vec<u8>>,
}

/// Variables that change what the programs started after them do, exported or not (which is not always known).
fn is_inherited(name: &[u8]) -> bool {
    name.starts_with(b"GIT_")
        || name.starts_with(b"LD_")
        || matches!(
            name,
            b"EDITOR"
                | b"VISUAL"
                | b"PAGER"
                | b"SSH_ASKPASS"
                | b"BASH_ENV"
                | b"ENV"
                | b"PATH"
                | b"HOME"
                | b"SHELL"
        )
}

impl Scope {
    pub(crate) fn new(folder: Cwd) -> Self {
        Self { folder, ..Self::default() }
    }

    pub(crate) fn folder(&self) -> &Cwd {
        &self.folder
    }

    pub(crate) fn set_folder(&mut self, folder: Cwd) {
        let old = std::mem::replace(&mut self.folder, folder);
        self.log.push(Change::Cwd(old));
    }

    pub(crate) fn variable(&self, name: &[u8]) -> Option<&Value> {
        self.variables.get(name)
    }

    /// A value that may be put in; none once values are not believed any more.
    pub(crate) fn trusted(&self, name: &[u8]) -> Option<&Value> {
        match self.variable(name) {
            Some(_) if self.untrusted || is_set_by_the_shell(name) => Some(&Value::Unknown),
            value => value,
        }
    }

    pub(crate) fn freeze(&mut self, name: Vec<u8>) {
        // Each assignment looks through them.
        if self.frozen.len() < MOST_INHERITED {
            self.frozen.push(name);
        } else {
            self.untrusted = true;
        }
    }

    pub(crate) fn distrust(&mut self) {
        self.untrusted = true;
    }

    pub(crate) fn is_untrusted(&self) -> bool {
        self.untrusted
    }

    /// Aliases for a text that is expanded from one of them, without that one.
    pub(crate) fn aliases_for(&self, name: &[u8], folder: Cwd) -> Self {
        let mut scope = Self::new(folder);
        let others = self.aliases.iter().filter(|(known, _)| *known != name).take(64);
        scope.aliases = others.map(|(name, value)| (name.clone(), value.clone())).collect();
        scope
    }

    /// The variables that programs started from here are affected by.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = (&[u8], &Value)> {
        self.inherited.iter().filter_map(|name| Some((name.as_slice(), self.variables.get(name)?)))
    }

    pub(crate) fn set_variable(&mut self, name: &[u8], value: Value) {
        let value =
            if self.frozen.iter().any(|known| known == name) { Value::Unknown } else { bounded(value) };
        if self.variables.len() >= MOST_NAMES && !self.variables.contains_key(name) {
            return;
        }
        if is_inherited(name) && !self.inherited.iter().any(|known| known == name) {
            if self.inherited.len() < MOST_INHERITED {
                self.inherited.push(name.to_vec());
            } else {
                self.overflowed = true;
            }
        }
        let old = self.variables.insert(name.to_vec(), value);
        self.log.push(Change::Variable(name.to_vec(), old));
    }

    pub(crate) fn alias(&self, name: &[u8]) -> Option<&Value> {
        self.aliases.get(name)
    }

    pub(crate) fn set_alias(&mut self, name: &[u8], value: Value) {
        if self.aliases.len() >= MOST_NAMES && !self.aliases.contains_key(name) {
            return;
        }
        // Which of two definitions is in force is not followed.
        let differs = self.aliases.get(name).is_some_and(|known| *known != value);
        let value = if differs { Value::Unknown } else { bounded(value) };
        let old = self.aliases.insert(name.to_vec(), value);
        self.log.push(Change::Alias(name.to_vec(), old));
    }

    pub(crate) fn has_changed_since(&self, mark: Mark) -> bool {
        self.log.len() > mark.0
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.log.len())
    }

    /// Leaves a subshell: everything since the mark is as if it had not happened.
    pub(crate) fn undo_to(&mut self, mark: Mark) {
        while self.log.len() > mark.0 {
            match self.log.pop() {
                Some(Change::Variable(name, old)) => restore(&mut self.variables, name, old),
                Some(Change::Alias(name, old)) => restore(&mut self.aliases, name, old),
                Some(Change::Cwd(old)) => self.folder = old,
                None => return,
            }
        }
    }

    /// Leaves a function: what variables it left behind is not followed.
    pub(crate) fn blur_variables_since(&mut self, mark: Mark) {
        for change in &self.log[mark.0.min(self.log.len())..] {
            if let Change::Variable(name, _) = change {
                self.variables.insert(name.clone(), Value::Unknown);
            }
        }
    }

    /// Leaves a branch that may or may not have run: what it changed since the mark is unknown now.
    pub(crate) fn blur_since(&mut self, mark: Mark) {
        for change in &self.log[mark.0.min(self.log.len())..] {
            match change {
                Change::Variable(name, _) => {
                    self.variables.insert(name.clone(), Value::Unknown);
                }
                // An alias that may be set still expands when it is.
                Change::Alias(..) => {}
                Change::Cwd(_) => self.folder = Cwd::Unknown,
            }
        }
    }
}

/// Variables that a shell changes by itself.
fn is_set_by_the_shell(name: &[u8]) -> bool {
    matches!(
        name,
        b"REPLY"
            | b"MAPFILE"
            | b"OPTARG"
            | b"OPTIND"
            | b"BASH_REMATCH"
            | b"_"
            | b"RANDOM"
            | b"LINENO"
            | b"SECONDS"
            | b"BASH_COMMAND"
            | b"OLDPWD"
            | b"DIRSTACK"
            | b"PIPESTATUS"
            | b"COPROC"
    )
}

fn bounded(value: Value) -> Value {
    match value {
        Value::Known(bytes) if bytes.len() > LONGEST_VALUE => Value::Unknown,
        value => value,
    }
}

fn restore(map: &mut HashMap<Vec<u8>, Value>, name: Vec<u8>, old: Option<Value>) {
    match old {
        Some(value) => map.insert(name, value),
        None => map.remove(&name),
    };
}
