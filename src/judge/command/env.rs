//! The environment of a command: the caller's environment, overridden by the assignments that precede the command.

use std::collections::HashSet;

use super::arg::Arg;

/// Variables that are set before a command starts (`A=1 cmd`, `env`, `export`), which override the caller's
/// environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Env {
    /// Whether `env -i` has cleared the caller's environment.
    cleared: bool,
    /// Assignments in order; the last one for a name applies. `None` means that the variable was unset.
    overlay: Vec<(Vec<u8>, Option<Arg>)>,
}

impl Env {
    /// Sets a variable. Positional parameters of a shell text are stored here too, under their numbers.
    pub(crate) fn set(&mut self, name: &[u8], value: Arg) {
        debug_assert!(!name.is_empty());
        self.overlay.push((name.to_vec(), Some(value)));
    }

    pub(crate) fn unset(&mut self, name: &[u8]) {
        self.overlay.push((name.to_vec(), None));
    }

    pub(crate) fn clear(&mut self) {
        self.cleared = true;
        self.overlay.clear();
    }

    /// Returns the approximate number of bytes that cloning this value copies.
    pub(crate) fn weight(&self) -> usize {
        self.overlay.len() * 64
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.overlay.is_empty() && !self.cleared
    }

    /// Returns the names of the variables that are set before the command starts. Leaves out variables that are unset
    /// again, and positional parameters. Policy rules about variables use these names.
    pub(crate) fn assigned(&self) -> Vec<Vec<u8>> {
        let mut seen = HashSet::new();
        let set = self.overlay.iter().rev().filter(|(name, _)| seen.insert(name.as_slice()));
        let set = set.filter(|(name, value)| value.is_some() && !name[0].is_ascii_digit());
        set.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the value of a variable: from the overlay, otherwise from `base` unless the environment was cleared.
    /// `None` if the variable is not set, or is unset in the overlay.
    pub(crate) fn get(&self, base: &[(Vec<u8>, Vec<u8>)], name: &[u8]) -> Option<Arg> {
        if let Some((_, value)) = self.overlay.iter().rev().find(|(known, _)| known == name) {
            return value.clone();
        }
        if self.cleared {
            return None;
        }
        base.iter().rev().find(|(known, _)| known == name).map(|(_, value)| Arg::exact(value.clone()))
    }

    /// Returns every variable whose name `wanted` accepts, with the value that the command would get.
    pub(crate) fn select(
        &self,
        base: &[(Vec<u8>, Vec<u8>)],
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Vec<(Vec<u8>, Arg)> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for (name, value) in self.overlay.iter().rev().filter(|(name, _)| wanted(name)) {
            if seen.insert(name.as_slice())
                && let Some(value) = value
            {
                found.push((name.clone(), value.clone()));
            }
        }
        if !self.cleared {
            for (name, value) in base.iter().rev().filter(|(name, _)| wanted(name)) {
                if seen.insert(name.as_slice()) {
                    found.push((name.clone(), Arg::exact(value.clone())));
                }
            }
        }
        found
    }
}
