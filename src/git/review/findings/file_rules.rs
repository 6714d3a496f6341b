//! Checks the content of single files for anything that makes git, editors, package managers or other tools run
//! programs.

use std::collections::BTreeSet;

use super::auto_executed::{JsonEntry, Only};
use super::git_config::{effect, runs_transport, settings};
use super::model::{DangerKind, Findings, Urgency, unseen};
use super::{auto_executed, deceptive_names};
use crate::git::snapshot::Name;

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// True if guard must check the content of the file at this path. `hooks` are the directories from which git runs
/// hooks.
pub(crate) fn is_of_interest(path: &[u8], hooks: &[Name]) -> bool {
    let name = last(path);
    name.eq_ignore_ascii_case(b".gitattributes")
        || auto_executed::json_entry(name).is_some()
        || path.eq_ignore_ascii_case(b".gitmodules")
        || auto_executed::entry(path).is_some()
        || is_hook(path, hooks)
}

/// Reports a new or changed symbolic link at a path at which tools run or obey a file, or the files in a directory or in
/// its subdirectories: the name of the link's target says nothing about that.
pub(crate) fn link_in_place_of_file(path: &Name, hooks: &[Name], findings: &mut Findings) {
    let contains_hooks = || {
        hooks
            .iter()
            .any(|dir| dir.bytes().strip_prefix(path.bytes()).is_some_and(|rest| rest.starts_with(b"/")))
    };
    if is_of_interest(path.bytes(), hooks)
        || hooks.contains(path)
        || auto_executed::is_directory(path.bytes())
        || contains_hooks()
    {
        let what = "a symbolic link in place of a file or directory that tools run or obey";
        let why = "read the target of the link as such a file";
        findings.add_with(Urgency::High, DangerKind::Automatic, path, what, why);
    }
}

/// Files and directories that restrict or check what programs and agents do. Without such a file, nothing refuses.
const CHECKS: [&[u8]; 14] = [
    b".guard/",
    b".husky/",
    b".githooks/",
    b".pre-commit-config.yaml",
    b".pre-commit-config.yml",
    b"lefthook.yml",
    b"lefthook.yaml",
    b".github/workflows/",
    b".github/CODEOWNERS",
    b"CODEOWNERS",
    b".gitlab-ci.yml",
    b".circleci/",
    b".buildkite/",
    b".claude/settings.json",
];

/// Reports a deleted file that restricted or checked what runs.
pub(crate) fn deleted(path: &Name, hooks: &[Name], findings: &mut Findings) {
    let is_check = |check: &&[u8]| match check.ends_with(b"/") {
        true => path.bytes().starts_with(check),
        false => path.bytes() == *check,
    };
    if is_hook(path.bytes(), hooks) || CHECKS.iter().any(is_check) {
        let why = "the file restricted or checked what runs; from now on nothing does that";
        findings.add_with(Urgency::High, DangerKind::Automatic, path, "deleted", why);
    }
}

fn is_hook(path: &[u8], hooks: &[Name]) -> bool {
    let is_below = |rest: &[u8]| rest.is_empty() || rest.starts_with(b"/");
    hooks.iter().any(|hook| path.strip_prefix(hook.bytes()).is_some_and(is_below))
}

/// Reports which programs tools would run because of a new or changed file. `old` is the file's content at the run's
/// base commit; `None` if the file did not exist there. Reports nothing if the content is unchanged, unless the run has
/// made the file executable (`made_executable`).
pub(crate) fn file(
    path: &Name,
    old: Option<&[u8]>,
    new: &[u8],
    made_executable: bool,
    hooks: &[Name],
    findings: &mut Findings,
) {
    if old == Some(new) && !made_executable {
        return;
    }
    let name = last(path.bytes());
    let change = if old.is_some() { "changed" } else { "new" };
    if is_hook(path.bytes(), hooks) {
        let what =
            format!("a {change} file of your git hooks (`core.hooksPath`, or a link in the hooks directory)");
        let why = "git runs it at the next commit, merge or checkout in this worktree";
        findings.add_with(Urgency::High, DangerKind::Automatic, path, what, why);
    } else if let Some(entry) = auto_executed::entry(path.bytes())
        && (old.is_none() || entry.only != Some(Only::New))
    {
        let urgency = if entry.urgent { Urgency::High } else { Urgency::Usual };
        findings.add_with(urgency, DangerKind::Automatic, path, format!("a {change} file"), &entry.happens);
    }
    if name.eq_ignore_ascii_case(b".gitattributes") {
        attributes(path, old.unwrap_or_default(), new, findings);
    } else if let Some(entry) = auto_executed::json_entry(name) {
        json_keys(path, entry, change, old, new, findings);
    } else if path.bytes().eq_ignore_ascii_case(b".gitmodules") {
        submodules(path, old.unwrap_or_default(), new, findings);
    }
}

/// Reports the new and changed keys of a JSON file that tools run or obey.
fn json_keys(
    path: &Name,
    entry: &JsonEntry,
    change: &str,
    old: Option<&[u8]>,
    new: &[u8],
    findings: &mut Findings,
) {
    if new.trim_ascii().is_empty() {
        return;
    }
    let Ok(keys) = auto_executed::changed_keys(entry, old, new) else {
        return unseen(path, "a package file that guard cannot parse", findings);
    };
    for (key, text) in keys {
        let text = Name::from(text.as_bytes());
        let what = format!("a {change} package file with a new or changed `{key}`: {text}");
        findings.add(DangerKind::Automatic, path, what, &entry.happens);
    }
}

/// The names of git's built-in diff and merge drivers, which run no program.
const BUILT_IN: [&str; 32] = [
    "ada", "bash", "bibtex", "cpp", "csharp", "css", "default", "dts", "elixir", "fortran", "fountain",
    "golang", "html", "ini", "java", "kotlin", "markdown", "matlab", "objc", "pascal", "perl", "php",
    "python", "ruby", "rust", "scheme", "tex", "text", "binary", "union", "astro", "unset",
];

fn attributes(path: &Name, old: &[u8], new: &[u8], findings: &mut Findings) {
    let lines = |text: &[u8]| -> BTreeSet<Vec<u8>> {
        text.split(|byte| *byte == b'\n').map(|line| line.trim_ascii().to_vec()).collect()
    };
    let before = lines(old);
    for line in lines(new).difference(&before) {
        if line.starts_with(b"#") {
            continue;
        }
        for word in line.split(u8::is_ascii_whitespace) {
            let Some(equals) = word.iter().position(|byte| *byte == b'=') else { continue };
            let (attribute, driver) = (&word[..equals], &word[equals + 1..]);
            if attribute == b"working-tree-encoding" {
                let what = format!("the line `{}`", Name::from(line));
                let why = "git writes other bytes to your files than those that the review shows";
                findings.add_with(Urgency::High, DangerKind::Attributes, path, what, why);
                continue;
            }
            let kind = match attribute {
                b"filter" => "every `git status`, `add` or `checkout`",
                b"diff" => "every `git diff`, `log -p` or `show`",
                b"merge" => "every merge",
                _ => continue,
            };
            if attribute != b"filter" && BUILT_IN.iter().any(|known| known.as_bytes() == driver) {
                continue;
            }
            let what = format!("the line `{}`", Name::from(line));
            let why = format!(
                "if your configuration has a driver `{}`, {kind} runs it on the agent's files",
                Name::from(driver)
            );
            findings.add(DangerKind::Attributes, path, what, why);
        }
    }
}

fn submodules(path: &Name, old: &[u8], new: &[u8], findings: &mut Findings) {
    let before = settings(old);
    for setting in settings(new) {
        if setting.section != b"submodule" || before.contains(&setting) {
            continue;
        }
        let module = setting.subsection.clone().unwrap_or_default();
        let value = setting.value.clone().unwrap_or_default();
        let what = format!("{} = {}", Name::from(setting.key()), Name::from(&value));
        let outside = |path: &[u8]| {
            path.starts_with(b"/")
                || path.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| part == b"..")
        };
        if outside(&module) {
            let why = "git uses the submodule's name as a path below `.git/modules`, and this name points outside it";
            findings.add(DangerKind::Submodule, path, what.clone(), why);
        } else if module.starts_with(b"-") {
            let why = "a program may take the submodule's name for an option, because it begins with `-`";
            findings.add(DangerKind::Submodule, path, what.clone(), why);
        }
        let why = match setting.name.as_slice() {
            b"update" if value.starts_with(b"!") => "`git submodule update` runs the command after `!`",
            b"path" if outside(&value) => "git checks out the submodule outside the worktree",
            b"path" if value.starts_with(b"-") => {
                "a program may take the path for an option, because it begins with `-`"
            }
            b"url" if runs_transport(&value) => {
                "the URL makes git run a program, or a program takes it for an option"
            }
            b"url" if value.starts_with(b"file:") || value.starts_with(b"/") || value.starts_with(b".") => {
                "git copies the submodule from files on this machine"
            }
            b"url" => "git downloads the submodule, with everything in it, from this URL",
            b"ignore" => "`git status` and `git diff` do not show changes in the submodule",
            _ => continue,
        };
        findings.add(DangerKind::Submodule, path, what, why);
    }
}

/// Reports a symbolic link that may point out of the worktree, or that points into a git directory. `tracked` is true
/// for a link in a commit.
pub(crate) fn link(path: &Name, target: &[u8], tracked: bool, findings: &mut Findings) {
    if let Some(why) = deceptive_names::escape_reason(path.bytes(), target) {
        let tracked = if tracked { "a committed symbolic link" } else { "a symbolic link" };
        findings.add(DangerKind::Link, path, format!("{tracked} to `{}`", Name::from(target)), why);
    }
}

/// Reports a repository inside the worktree, and the settings in its configuration that make git run programs.
pub(crate) fn repository(dir: &Name, config: Option<&[u8]>, what: &str, findings: &mut Findings) {
    let why = "git, and editors that use git, treat it as a separate repository and obey its configuration";
    findings.add(DangerKind::Repository, dir, what, why);
    for setting in settings(config.unwrap_or_default()) {
        if let Some(effect) = effect(&setting) {
            let value = setting.value.clone().unwrap_or_default();
            let what = format!(
                "the configuration of the repository has {} = {}",
                Name::from(setting.key()),
                Name::from(&value)
            );
            findings.add(DangerKind::Repository, dir, what, format!("this setting makes git use {effect}"));
        }
    }
}
