//! Evaluates a rule's conditions against an intent (one program start of a command).
//!
//! If a command can be interpreted as several programs or subcommands, a `deny` or `ask` rule matches if any
//! interpretation matches, and an `allow` rule only if all of them do.

use crate::judge::command::{Access, Arg, Intent, PathUse};
use crate::judge::policy::{Action, Conditions, PathAccess, PathPattern, Pattern};

/// Returns true if an intent meets all conditions `when` of a rule with the action `action`.
pub(super) fn matches(when: &Conditions, action: Action, intent: &Intent) -> bool {
    program(when, action, intent)
        && verb(when, intent)
        && (when.effects.is_none_or(|effects| intent.effects.intersects(effects)))
        && (when.only_effects.is_none_or(|effects| intent.effects.is_within(effects)))
        && (when.flags.is_empty() || when.flags.iter().any(|flag| has_flag(intent, flag)))
        && !when.unless_flags.iter().any(|flag| has_flag(intent, flag))
        && (when.subcommands.is_empty() || subcommand(&when.subcommands, action, intent))
        && (when.args.is_empty() || any_arg(&when.args, intent))
        && (when.unless_args.is_empty() || !any_arg(&when.unless_args, intent))
        && (when.paths.is_empty() || uses(when, intent).any(|used| any_path(&when.paths, used)))
        && (when.unless_paths.is_empty() || !only_excepted_paths(when, intent))
        && (when.variables.is_empty() || any_of(&when.variables, &intent.variables))
        && (when.refs.is_empty() || refs(&when.refs, action, intent))
}

fn any_of(patterns: &[Pattern], words: &[Vec<u8>]) -> bool {
    words.iter().any(|word| patterns.iter().any(|pattern| pattern.matches(word)))
}

/// Matches the program by the name of its file, or by its path if the pattern contains a slash. A `deny` or `ask` rule
/// also matches the name or path by which the program was called. An `allow` rule does not: otherwise it would allow
/// any program that is called as `ls`.
fn program(when: &Conditions, action: Action, intent: &Intent) -> bool {
    if when.programs.is_empty() {
        return true;
    }
    let name = &intent.program.name;
    if name.is_empty() {
        return false;
    }
    let called = intent.program.called.known().unwrap_or_default();
    let called_name = called.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    when.programs.iter().any(|pattern| {
        if pattern.as_str().contains('/') {
            let by_path = intent.program.path.as_ref().is_some_and(|path| pattern.matches(path));
            return by_path || (action != Action::Allow && pattern.matches(called));
        }
        // A rule for `git` also matches git's programs for single verbs, such as `git-reset`.
        pattern.matches(name)
            || (action != Action::Allow && called_name != name.as_slice() && pattern.matches(called_name))
            || (intent.git.is_some() && pattern.as_str() == "git")
    })
}

fn verb(when: &Conditions, intent: &Intent) -> bool {
    if when.verbs.is_empty() {
        return true;
    }
    let Some(git) = &intent.git else { return false };
    if git.verb.is_empty() || git.is_alias {
        return false;
    }
    when.verbs.iter().any(|pattern| {
        if !pattern.as_str().contains(' ') {
            return pattern.matches(&git.verb);
        }
        let subcommand = git.subcommand.as_deref().unwrap_or_default();
        pattern.matches(&[git.verb.as_slice(), subcommand].join(&b' '))
    })
}

/// Matches the refs that a git command changes. A `deny` or `ask` rule matches if any of them matches, or if the command
/// may change refs that it does not name. An `allow` rule matches only if the command names all of them and all match.
fn refs(patterns: &[Pattern], action: Action, intent: &Intent) -> bool {
    let Some(git) = &intent.git else { return false };
    let matches = |name: &Vec<u8>| patterns.iter().any(|pattern| pattern.matches(name));
    if action == Action::Allow {
        !git.refs.is_empty() && !git.has_unnamed_refs && git.refs.iter().all(matches)
    } else {
        git.has_unnamed_refs || git.refs.iter().any(matches)
    }
}

/// Returns true if the intent has the option `flag`, in any spelling. For git, compares full names of options. For
/// other programs, the option may also be joined with its value or be part of a cluster of letters.
fn has_flag(intent: &Intent, flag: &str) -> bool {
    if let Some(git) = &intent.git {
        return git.flags.iter().any(|known| known == flag);
    }
    let wanted = flag.as_bytes();
    let words = intent.args.iter().take_while(|arg| arg.known() != Some(b"--"));
    words.filter(|arg| arg.is_exact()).map(Arg::prefix).any(|word| {
        if word == wanted {
            return true;
        }
        if flag.starts_with("--") {
            return word.strip_prefix(wanted).is_some_and(|rest| rest.first() == Some(&b'='));
        }
        wanted.len() == 2
            && word.len() > 2
            && word[0] == b'-'
            && word[1] != b'-'
            && word[1..].iter().all(u8::is_ascii_alphabetic)
            && word[1..].contains(&wanted[1])
    })
}

/// Returns true if the subcommand matches, which is the first argument that is not an option. An argument after an
/// option may be the option's value, so the next argument is a candidate as well. A `deny` or `ask` rule matches if
/// any candidate matches; an `allow` rule only if all candidates match.
fn subcommand(patterns: &[Pattern], action: Action, intent: &Intent) -> bool {
    let mut candidates = Vec::new();
    let mut behind_option = false;
    for arg in &intent.args {
        let word = arg.prefix();
        if word.starts_with(b"-") || word.starts_with(b"+") {
            behind_option = word.starts_with(b"-") && !word.contains(&b'=') && word != b"--";
            continue;
        }
        candidates.extend(arg.known());
        if !behind_option {
            break;
        }
        behind_option = false;
    }
    let matches = |word: &&[u8]| patterns.iter().any(|pattern| pattern.matches(word));
    if action == Action::Allow {
        !candidates.is_empty() && candidates.iter().all(matches)
    } else {
        candidates.iter().any(matches)
    }
}

fn any_arg(patterns: &[Pattern], intent: &Intent) -> bool {
    intent.args.iter().filter_map(Arg::known).any(|word| patterns.iter().any(|pattern| pattern.matches(word)))
}

/// Returns the files that the intent uses with the kind of access (read or write) that the rule's `access` selects.
fn uses<'i>(when: &Conditions, intent: &'i Intent) -> impl Iterator<Item = &'i PathUse> {
    let access = when.access;
    intent.paths.iter().filter(move |used| match access {
        PathAccess::Any => true,
        PathAccess::Read => used.access == Access::Read,
        PathAccess::Write => used.access == Access::Write,
    })
}

/// Returns the files that the intent uses and that match the rule's `paths`.
pub(super) fn matched_paths<'i>(when: &Conditions, intent: &'i Intent) -> impl Iterator<Item = &'i PathUse> {
    uses(when, intent).filter(move |used| any_path(&when.paths, used))
}

fn any_path(patterns: &[PathPattern], used: &PathUse) -> bool {
    patterns.iter().any(|pattern| {
        if pattern.means_outside() { used.is_outside } else { pattern.matches(&used.path, used.below_home) }
    })
}

/// Returns true if guard knows files that the command uses, and all of them match the rule's `unless_paths`. Ignores
/// devices such as `/dev/null` and `/dev/tty`.
fn only_excepted_paths(when: &Conditions, intent: &Intent) -> bool {
    let mut known = uses(when, intent).filter(|used| !used.is_sink()).peekable();
    known.peek().is_some() && known.all(|used| any_path(&when.unless_paths, used))
}
