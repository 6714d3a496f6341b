//! Loads a policy: finds it by name or path, reads the chain of policies it extends, and merges them.
//!
//! A user's policy takes precedence over a built-in policy of the same name. A user's policy that cannot be read is an
//! error: guard must never use the built-in policy instead.

use std::path::{Path, PathBuf};

use super::builtin;
use super::diagnostic::{Diagnostic, Severity, Source};
use super::keys::nearest;
use super::merge;
use super::model::Policy;
use super::parse;
use super::parse::{File, LARGEST_FILE};
use crate::sys::agent_paths::read_text_file;

/// The maximum number of policies in a chain of `extends`. A longer chain is an error.
const LONGEST_CHAIN: usize = 8;

/// The directories in which guard searches for a policy by name, before it uses a built-in policy.
#[derive(Debug, Clone, Default)]
pub struct PolicyDirs {
    /// The user's policies: `$XDG_CONFIG_HOME/guard/policies`.
    pub user: Option<PathBuf>,
}

impl PolicyDirs {
    /// Determines the directories of the current user from `XDG_CONFIG_HOME` or `HOME`. If neither is usable, guard
    /// finds only built-in policies by name.
    pub fn from_environment() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = set("XDG_CONFIG_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".config")));
        Self { user: base.map(|base| base.join("guard/policies")) }
    }

    /// Returns the names of the available policies, the user's own before the built-in ones. The flag is true for a
    /// built-in policy. Omits built-in policies that a user's policy replaces, and all of the user's policies if their
    /// directory cannot be read.
    pub fn names(&self) -> Vec<(String, bool)> {
        let mut names: Vec<(String, bool)> = Vec::new();
        if let Some(Ok(entries)) = self.user.as_ref().map(std::fs::read_dir) {
            let found = entries.filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                name.strip_suffix(".toml").filter(|name| parse::is_policy_name(name)).map(str::to_string)
            });
            names.extend(found.map(|name| (name, false)));
            names.sort();
        }
        for (name, _) in builtin::BUILT_IN {
            if !names.iter().any(|(known, _)| known == name) {
                names.push(((*name).to_string(), true));
            }
        }
        names
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    #[error("no policy named `{name}`{}", near.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    NotFound {
        name: String,
        /// A similar name that exists.
        near: Option<String>,
    },
    #[error("cannot read the policy {}: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: String },
    #[error("the policy is invalid: {}", count_errors(.0))]
    Invalid(Vec<Diagnostic>),
}

fn count_errors(problems: &[Diagnostic]) -> String {
    match problems.iter().filter(|problem| problem.severity == Severity::Error).count() {
        1 => "1 error".to_string(),
        errors => format!("{errors} errors"),
    }
}

/// Loads a policy by name or path, without running its examples (`decide::load` does that).
pub fn load(reference: &str, dirs: &PolicyDirs) -> Result<Policy, PolicyError> {
    load_source(find(reference, dirs, None)?, dirs)
}

/// Loads a policy from its text, and merges the policies that it extends. Fails with all problems if one of them is an
/// error; otherwise the policy's remarks contain them.
pub fn load_source(source: Source, dirs: &PolicyDirs) -> Result<Policy, PolicyError> {
    let (policy, problems) = load_with_problems(source, dirs, &mut |_| {})?;
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(PolicyError::Invalid(problems));
    }
    let mut policy = policy.ok_or_else(|| PolicyError::Invalid(problems.clone()))?;
    policy.remarks.extend(problems);
    Ok(policy)
}

/// Loads a policy and returns all problems. The policy is `None` if guard cannot use an extended policy, a file is not
/// valid TOML, or a rule has an error. Calls `on_parent` with each policy that this one extends, from the one that extends
/// no other, so that a caller can examine them without loading them again.
pub fn load_with_problems(
    source: Source,
    dirs: &PolicyDirs,
    on_parent: &mut dyn FnMut(&Policy),
) -> Result<(Option<Policy>, Vec<Diagnostic>), PolicyError> {
    let mut problems = Vec::new();
    let mut chain: Vec<(Source, File)> = Vec::new();
    let mut next = Some(source);
    while let Some(source) = next.take() {
        let (file, found) = parse::read(&source);
        problems.extend(found);
        if let Some(parent) = &file.extends {
            match extended(&parent.value, &source, &chain, dirs) {
                Ok(found) => next = Some(found),
                Err(message) => problems.push(Diagnostic {
                    severity: Severity::Error,
                    message,
                    source: source.clone(),
                    span: parent.span.clone(),
                    label: "extends this".to_string(),
                    help: None,
                }),
            }
        }
        chain.push((source, file));
    }
    // If guard cannot use an extended policy, the chain is incomplete. Merging it would report errors that the complete
    // chain does not have.
    let is_cut = chain.last().is_some_and(|(_, file)| file.extends.is_some());
    if is_cut || chain.iter().any(|(_, file)| file.is_damaged) {
        return Ok((None, problems));
    }
    let broken = chain.iter().any(|(_, file)| file.has_broken_rules);
    chain.reverse();
    let (policy, found) = merge::merge(chain, on_parent);
    problems.extend(found);
    Ok(((!broken).then_some(policy), problems))
}

/// Adds the text of a policy file to a policy that is already loaded, as if the file extended that policy. The name
/// of the policy stays the same.
pub fn extend(policy: Policy, source: Source) -> Result<Policy, PolicyError> {
    let (file, mut problems) = parse::read(&source);
    let is_broken = file.is_damaged || file.has_broken_rules;
    let (mut policy, found) = merge::extend(policy, source, file);
    problems.extend(found);
    if is_broken || problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(PolicyError::Invalid(problems));
    }
    policy.remarks.extend(problems);
    Ok(policy)
}

/// Finds the policy that a policy file names in `extends`. Returns a message for the user if the policy cannot be read,
/// extends itself, or makes the chain longer than `LONGEST_CHAIN`.
fn extended(
    name: &str,
    from: &Source,
    chain: &[(Source, File)],
    dirs: &PolicyDirs,
) -> Result<Source, String> {
    let found = find(name, dirs, Some(from)).map_err(|error| error.to_string())?;
    let is_same = |seen: &Source| {
        let files = !seen.built_in && !found.built_in;
        *seen == found || (files && is_same_file(Path::new(&seen.name), Path::new(&found.name)))
    };
    if is_same(from) || chain.iter().any(|(seen, _)| is_same(seen)) {
        return Err(format!("`{name}` extends itself, directly or through other policies"));
    }
    if chain.len() + 1 >= LONGEST_CHAIN {
        return Err(format!("the chain of `extends` is longer than {LONGEST_CHAIN} policies"));
    }
    Ok(found)
}

/// Finds the text of the policy that a reference names: a path, the name of a user's policy, or the name of a built-in
/// one. `from` is the policy file that contains the reference in `extends`, if there is one; relative paths begin at
/// its directory.
pub fn find(reference: &str, dirs: &PolicyDirs, from: Option<&Source>) -> Result<Source, PolicyError> {
    if is_path(reference) {
        let path = match from.filter(|from| !from.built_in).and_then(|from| Path::new(&from.name).parent()) {
            Some(directory) => directory.join(reference.strip_prefix("./").unwrap_or(reference)),
            None => PathBuf::from(reference),
        };
        return read_file(&path);
    }
    // A built-in policy extends only built-in policies: a user's file of the same name must not become its parent.
    if let Some(directory) = &dirs.user
        && parse::is_policy_name(reference)
        && from.is_none_or(|from| !from.built_in)
    {
        let path = directory.join(format!("{reference}.toml"));
        // The user's policy `strict` may extend the built-in `strict`.
        let is_asking = from.is_some_and(|from| is_same_file(Path::new(&from.name), &path));
        // Report any error other than "not found": guard must not use the built-in policy instead of a file that it
        // cannot read.
        let absent =
            std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if !is_asking && !absent {
            return read_file(&path);
        }
    }
    builtin::source(reference).ok_or_else(|| {
        let names = dirs.names();
        let near = nearest(reference, names.iter().map(|(name, _)| name.as_str())).map(str::to_string);
        PolicyError::NotFound { name: reference.to_string(), near }
    })
}

/// Returns the path in `extends` of a policy's text, if it is the path of a file and not a name. guard must not follow it
/// in a project's policy: an agent may have written it, and an error would quote the file.
pub fn extended_file(text: &str) -> Option<String> {
    let table = toml::de::DeTable::parse(text).ok()?;
    let extends = table.get_ref().iter().find(|(key, _)| key.get_ref() == "extends")?.1.get_ref().as_str()?;
    is_path(extends).then(|| extends.to_string())
}

/// Returns true if a reference to a policy is the path of a file, and not a name.
fn is_path(reference: &str) -> bool {
    reference.contains('/') || reference.ends_with(".toml")
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    a == b || std::fs::canonicalize(a).is_ok_and(|a| std::fs::canonicalize(b).is_ok_and(|b| a == b))
}

fn read_file(path: &Path) -> Result<Source, PolicyError> {
    let text = read_text_file(path, LARGEST_FILE)
        .map_err(|problem| PolicyError::Unreadable { path: path.to_path_buf(), problem })?;
    Ok(Source { name: path.display().to_string(), text: text.into(), built_in: false })
}
