//! The known state of a shell while the analysis traverses its text: variables, aliases, the current directory.
//!
//! The scope logs changes. At the end of a subshell it undoes them, and at the end of a conditional branch it marks
//! the changed values as unknown. Both take time proportional to the number of changes, not to the size of the state.

use std::collections::HashMap;

use super::super::arg::Arg;
use crate::judge::command::cwd::Cwd;

/// The maximum length of a known value, in bytes. The scope treats longer values as unknown, because `a=$a$a` could
/// double a value without end.
const LONGEST_VALUE: usize = 1024;
/// The maximum number of variables whose values the scope tracks, apart from those that programs inherit. The values of
/// all further variables are unknown. Shell texts that people write stay far below this limit.
const MOST_NAMES: usize = 4096;
const MOST_INHERITED: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Known(Vec<u8>),
    Unknown,
    /// The text has unset the variable, so programs do not inherit it either.
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

/// A position in the scope's log of changes, to which the scope can return; see [`Scope::undo_to`] and
/// [`Scope::blur_since`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(usize);

#[derive(Debug, Default)]
pub(crate) struct Scope {
    variables: HashMap<Vec<u8>, Value>,
    /// Whether the text has set variables that are not in `variables`.
    has_untracked: bool,
    aliases: HashMap<Vec<u8>, Value>,
    cwd: Cwd,
    log: Vec<Change>,
    /// The names of the variables set so far that programs inherit. There are few, so searching all of them for each
    /// command is fast.
    inherited: Vec<Vec<u8>>,
    /// Whether the text has set more inherited variables than the scope tracks.
    pub(crate) overflowed: bool,
    /// Whether values may change in ways that the text does not show, for example by namerefs, `declare -l` or traps.
    /// From then on, the scope treats every value as unknown.
    untrusted: bool,
    /// The names of read-only variables, whose values cannot change.
    frozen: Vec<Vec<u8>>,
}

/// Returns true if a variable changes the behaviour of programs that start later. Such variables count even without
/// `export`, because the analysis does not always know whether they are exported.
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
    pub(crate) fn new(cwd: Cwd) -> Self {
        Self { cwd, ..Self::default() }
    }

    pub(crate) fn cwd(&self) -> &Cwd {
        &self.cwd
    }

    pub(crate) fn set_cwd(&mut self, cwd: Cwd) {
        let old = std::mem::replace(&mut self.cwd, cwd);
        self.log.push(Change::Cwd(old));
    }

    /// Returns the value that the text has given to a variable; `None` if the text has not set it. If the text has set
    /// variables that the scope does not track, returns `Value::Unknown` instead of `None`.
    pub(crate) fn variable(&self, name: &[u8]) -> Option<&Value> {
        match self.variables.get(name) {
            None if self.has_untracked => Some(&Value::Unknown),
            value => value,
        }
    }

    /// Returns the value to substitute for a variable; `None` if the text has not set it. The value is unknown if the
    /// shell itself changes the variable, or if the scope no longer trusts values.
    pub(crate) fn trusted(&self, name: &[u8]) -> Option<&Value> {
        match self.variable(name) {
            Some(_) if self.untrusted || is_set_by_the_shell(name) => Some(&Value::Unknown),
            value => value,
        }
    }

    pub(crate) fn freeze(&mut self, name: Vec<u8>) {
        // Every assignment searches this list, so its length is limited.
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

    /// Returns a scope for analysing the expansion of the alias `name`. The scope contains at most 64 of the other
    /// aliases. It does not contain `name`, so that an alias cannot expand itself.
    pub(crate) fn aliases_for(&self, name: &[u8], cwd: Cwd) -> Self {
        let mut scope = Self::new(cwd);
        let others = self.aliases.iter().filter(|(known, _)| *known != name).take(64);
        scope.aliases = others.map(|(name, value)| (name.clone(), value.clone())).collect();
        scope
    }

    /// Returns the variables set by the text that affect programs started at this point, with their values.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = (&[u8], &Value)> {
        self.inherited.iter().filter_map(|name| Some((name.as_slice(), self.variables.get(name)?)))
    }

    pub(crate) fn set_variable(&mut self, name: &[u8], value: Value) {
        let value =
            if self.frozen.iter().any(|known| known == name) { Value::Unknown } else { bounded(value) };
        if self.variables.len() >= MOST_NAMES && !self.variables.contains_key(name) && !is_inherited(name) {
            self.has_untracked = true;
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
        // The scope does not track which of two different definitions applies.
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

    /// Undoes every change that was logged after `mark`, for example at the end of a subshell, whose changes do not
    /// affect the outer shell. Does not undo `freeze` and `distrust`, which are not logged.
    pub(crate) fn undo_to(&mut self, mark: Mark) {
        while self.log.len() > mark.0 {
            match self.log.pop() {
                Some(Change::Variable(name, old)) => restore(&mut self.variables, name, old),
                Some(Change::Alias(name, old)) => restore(&mut self.aliases, name, old),
                Some(Change::Cwd(old)) => self.cwd = old,
                None => return,
            }
        }
    }

    /// Makes the values of the variables that changed after `mark` unknown. Called at the end of a function call.
    pub(crate) fn blur_variables_since(&mut self, mark: Mark) {
        for change in &self.log[mark.0.min(self.log.len())..] {
            if let Change::Variable(name, _) = change {
                self.variables.insert(name.clone(), Value::Unknown);
            }
        }
    }

    /// Makes the variables and the directory that changed after `mark` unknown. Called at the end of a branch that
    /// may not have run.
    pub(crate) fn blur_since(&mut self, mark: Mark) {
        for change in &self.log[mark.0.min(self.log.len())..] {
            match change {
                Change::Variable(name, _) => {
                    self.variables.insert(name.clone(), Value::Unknown);
                }
                // Keep an alias that may be set, so that the analysis judges its expansion too.
                Change::Alias(..) => {}
                Change::Cwd(_) => self.cwd = Cwd::Unknown,
            }
        }
    }
}

/// Returns true if the shell itself changes this variable, as it does with `RANDOM`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_beyond_the_limit_are_unknown() {
        let known = |text: &[u8]| Value::Known(text.to_vec());
        let mut scope = Scope::new(Cwd::Unknown);
        for number in 0..MOST_NAMES {
            scope.set_variable(format!("v{number}").as_bytes(), known(b"x"));
        }
        assert_eq!(scope.variable(b"IFS"), None);
        scope.set_variable(b"IFS", known(b":"));
        for name in [b"IFS".as_slice(), b"PWD", b"CDPATH", b"1"] {
            assert_eq!(scope.variable(name), Some(&Value::Unknown));
            assert_eq!(scope.trusted(name), Some(&Value::Unknown));
        }
        assert_eq!(scope.variable(b"v1"), Some(&known(b"x")));
        scope.set_variable(b"GIT_DIR", known(b"/elsewhere"));
        let inherited: Vec<(&[u8], &Value)> = scope.inherited().collect();
        assert_eq!(inherited, [(b"GIT_DIR".as_slice(), &known(b"/elsewhere"))]);
    }
}
