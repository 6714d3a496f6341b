//! Finds dangers for the person who reviews the result of a run: nested repositories, files that tools execute
//! automatically, deceptive names. Only reports them, and never removes anything.
//!
//! After a run, checks the files that differ between the tip of the run's branch and the commit where the branch left
//! the user's history, and all files in the agent's worktree. Before guard applies the work of a run, checks the files
//! that would change in the user's working tree. Opens files relative to open directories, follows no symbolic link, and starts nothing from the
//! worktree. The agent controls every byte, so every read is limited in size, number and time. The result says which
//! parts were not checked.

mod auto_executed;
mod deceptive_names;
mod file_rules;
mod git_config;
mod model;
mod objects;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub use auto_executed::{AUTOMATIC_FILES, AutomaticFiles, parse_automatic_files};
pub use git_config::{Setting, effect, settings};
pub use model::{Danger, DangerKind, DangersError, Inspected, Inspection};

use crate::git::dispose::uncommitted::Changed;
use crate::git::plumbing::gitfile::read_following_links;
use crate::git::snapshot::Name;
use crate::sys::fs::{Links, read_regular_file};
use deceptive_names::check_names;
use model::{Findings, unseen};
use objects::{Blob, Commits, MAX_CONTENT_BYTES, Objects};
pub(crate) use walk::GENERATED_DIRS;

/// Inspects the commits and the worktree of a run, and returns the dangers in them.
pub fn inspect(inspection: &Inspection) -> Result<Vec<Danger>, DangersError> {
    inspect_with_changes(inspection, None).map(|inspected| inspected.dangers)
}

/// Inspects the commits and the worktree of a run. Returns the dangers in them, and which files the commits since
/// `began` changed. `began` is the commit where the run itself began, if that is not the base of the inspection.
pub fn inspect_with_changes(inspection: &Inspection, began: Option<&str>) -> Result<Inspected, DangersError> {
    let deadline = Instant::now() + inspection.time;
    let mut findings = Findings::new(inspection.most_of_a_kind);
    let mut objects = Objects::new(inspection, deadline);
    let hooks = hook_dirs(inspection);
    let commits = inspect_tip(inspection, &mut objects, &hooks, &mut findings)?;
    walk::walk(inspection, &commits, &mut objects, &hooks, deadline, &mut findings)
        .map_err(|source| DangersError { path: inspection.worktree.clone(), source })?;
    let own = match (began, &inspection.tip) {
        (Some(began), Some(tip)) => Some(
            objects
                .commits(Some(began), tip)
                .map_err(|source| DangersError { path: inspection.repository.clone(), source })?,
        ),
        _ => None,
    };
    let commits = own.unwrap_or(commits);
    let changed = commits.changed.iter().map(|(path, old)| {
        let change = match (old, commits.tip.contains_key(path)) {
            (_, false) => Changed::Deleted,
            (None, true) => Changed::Created,
            (Some(_), true) => Changed::Modified,
        };
        (path.clone(), change)
    });
    Ok(Inspected { changed: changed.collect(), is_all: !commits.is_truncated, dangers: findings.into_list() })
}

/// Inspects the files that differ between the base and the tip of the inspection. Does not read the worktree.
pub(crate) fn inspect_difference(inspection: &Inspection) -> Result<Vec<Danger>, DangersError> {
    let mut findings = Findings::new(inspection.most_of_a_kind);
    let mut objects = Objects::new(inspection, Instant::now() + inspection.time);
    inspect_tip(inspection, &mut objects, &hook_dirs(inspection), &mut findings)?;
    Ok(findings.into_list())
}

/// Inspects files that a run has created or changed in a directory of the user, without a branch of its own. `files` are
/// relative to `directory`, and `repository` is the git directory, if there is one.
pub fn inspect_changed_files<'p>(
    directory: &Path,
    repository: Option<&Path>,
    files: impl IntoIterator<Item = (&'p Path, Changed)>,
) -> Vec<Danger> {
    use std::os::unix::ffi::OsStrExt;
    let repository = repository.unwrap_or(Path::new("/nonexistent"));
    let inspection = Inspection::new(repository, directory, None, None);
    let mut findings = Findings::new(inspection.most_of_a_kind);
    let hooks = hook_dirs(&inspection);
    let deadline = Instant::now() + inspection.time;
    for (path, change) in files {
        let name = Name::from(path.as_os_str().as_bytes());
        if Instant::now() > deadline {
            let what = "checking the changed files takes too long";
            findings.add(DangerKind::Unseen, &name, what, "guard did not check this file and those after it");
            break;
        }
        if change == Changed::Deleted {
            file_rules::deleted(&name, &hooks, &mut findings);
            continue;
        }
        let place = directory.join(path);
        match place.read_link() {
            Ok(target) => {
                file_rules::link(&name, target.as_os_str().as_bytes(), false, &mut findings);
                file_rules::link_in_place_of_file(&name, &hooks, &mut findings);
            }
            Err(_) if file_rules::is_of_interest(name.bytes(), &hooks) => {
                match read_regular_file(&place, MAX_CONTENT_BYTES, Links::Refuse) {
                    // The content before the run does not matter: a changed file can run other programs than before.
                    Ok(text) => {
                        let before = (change == Changed::Modified).then_some(&b""[..]);
                        file_rules::file(&name, before, &text, false, &hooks, &mut findings);
                    }
                    Err(_) => unseen(&name, "a file that is too large or unreadable", &mut findings),
                }
            }
            Err(_) => {}
        }
    }
    findings.into_list()
}

/// Checks the files that differ between the base and the tip of the inspection, and returns them.
fn inspect_tip(
    inspection: &Inspection,
    objects: &mut Objects<'_>,
    hooks: &[Name],
    findings: &mut Findings,
) -> Result<Commits, DangersError> {
    let commits = match &inspection.tip {
        Some(tip) => objects
            .commits(inspection.base.as_deref(), tip)
            .map_err(|source| DangersError { path: inspection.repository.clone(), source })?,
        None => Commits::default(),
    };
    if commits.is_truncated {
        let what = "the commits have more files than guard can list";
        findings.add(
            DangerKind::Unseen,
            &Name::default(),
            what,
            "guard did not check the files that are not listed",
        );
    }
    check_commits(&commits, objects, hooks, findings);
    check_case_clashes(&commits, findings);
    Ok(commits)
}

/// Returns a danger for each git repository at one of the paths `places`, which are at or below `root`, and for each of
/// its hooks and settings that make git run a program.
pub fn repositories(root: &Path, places: &[PathBuf]) -> Vec<Danger> {
    use std::os::unix::ffi::OsStrExt;
    // The inspection uses the path of the user's repository to recognise submodules of that repository. None of the
    // repositories in `places` is such a submodule, so pass a path that does not exist.
    let inspection = Inspection::new(Path::new("/nonexistent"), root, None, None);
    let mut findings = Findings::new(inspection.most_of_a_kind);
    let below =
        |place: &PathBuf| Name::from(place.strip_prefix(root).unwrap_or(place).as_os_str().as_bytes());
    let names: Vec<Name> = places.iter().map(below).collect();
    let mut objects = Objects::new(&inspection, Instant::now());
    if walk::repositories(&inspection, &names, &mut objects, &mut findings).is_err() {
        unseen(&Name::default(), "new repositories that guard cannot read", &mut findings);
    }
    findings.into_list()
}

/// Maximum size of the configuration file of the user's repository, in bytes.
const MAX_CONFIG: usize = 16 << 20;

/// Returns the directories inside the worktree from which git runs hooks, relative to the worktree.
fn hook_dirs(inspection: &Inspection) -> Vec<Name> {
    let mut dirs = inspection.hooks.clone();
    let text = read_following_links(&inspection.repository.join("config"), MAX_CONFIG).unwrap_or_default();
    for setting in settings(&text) {
        if setting.section == b"core"
            && setting.name == b"hookspath"
            && let Some(path) = setting.value
            && !path.starts_with(b"/")
            && !path.starts_with(b"~")
        {
            let path = path.strip_prefix(b"./").unwrap_or(&path);
            dirs.push(Name::from(path.strip_suffix(b"/").unwrap_or(path)));
        }
    }
    dirs.retain(|dir| !dir.bytes().is_empty());
    dirs
}

fn check_commits(commits: &Commits, objects: &mut Objects<'_>, hooks: &[Name], findings: &mut Findings) {
    for (path, old) in &commits.changed {
        let Some(new) = commits.tip.get(path) else {
            file_rules::deleted(path, hooks, findings);
            continue;
        };
        check_names(path, findings);
        match new.mode {
            Blob::GITLINK => {
                let what = match old {
                    Some(old) if old.mode == Blob::GITLINK => {
                        format!("a gitlink, moved from {} to {}", old.object, new.object)
                    }
                    _ => format!("a new gitlink to commit {}", new.object),
                };
                let why = "if there is a repository at this path, `git status` in the worktree enters it and obeys its configuration";
                findings.add(DangerKind::Gitlink, path, what, why);
            }
            Blob::LINK => match objects.content(&new.object) {
                Some(target) => {
                    file_rules::link(path, &target, true, findings);
                    file_rules::link_in_place_of_file(path, hooks, findings);
                }
                None => unseen(path, "a symbolic link that is too long or unreadable", findings),
            },
            _ if file_rules::is_of_interest(path.bytes(), hooks) => {
                let before =
                    old.as_ref().filter(|old| old.is_file()).and_then(|old| objects.content(&old.object));
                match objects.content(&new.object) {
                    Some(after) => {
                        let was_executable = old.as_ref().is_some_and(Blob::is_executable);
                        let made_executable = new.is_executable() && !was_executable;
                        file_rules::file(path, before.as_deref(), &after, made_executable, hooks, findings);
                    }
                    None => unseen(path, "a file that is too large or unreadable", findings),
                }
            }
            _ => {}
        }
    }
    // Look for a bare repository among the committed files: git treats such a directory as a repository as soon as a
    // git command runs in it.
    let changed_heads = commits.changed.keys().filter_map(|path| {
        let dir = match path.bytes() {
            b"HEAD" => Some(&b""[..]),
            other => other.strip_suffix(b"/HEAD"),
        };
        dir.or_else(|| repository_of(path.bytes()))
    });
    let dirs: BTreeSet<Name> = changed_heads.map(Name::from).collect();
    for dir in dirs {
        let inside = |name: &str| {
            let slash: &[u8] = if dir.bytes().is_empty() { b"" } else { b"/" };
            Name::own([dir.bytes(), slash, name.as_bytes()].concat())
        };
        let has_dir = |name: &str| {
            let start = inside(&format!("{name}/"));
            let is_inside = |(path, _): (&Name, &Blob)| path.bytes().starts_with(start.bytes());
            // git follows a symbolic link in place of the directory.
            let link = commits.tip.get(&inside(name));
            link.is_some_and(|blob| matches!(blob.mode, Blob::LINK | Blob::GITLINK))
                || commits.tip.range(start.clone()..).next().is_some_and(is_inside)
        };
        let is_repository = commits.tip.contains_key(&inside("HEAD"))
            && (commits.tip.contains_key(&inside("commondir")) || has_dir("objects") && has_dir("refs"));
        if is_repository {
            let text = commits.tip.get(&inside("config")).and_then(|blob| objects.content(&blob.object));
            file_rules::repository(
                &dir,
                text.as_deref(),
                "a bare repository among the committed files",
                findings,
            );
        }
    }
}

/// If `path` looks like a file in a git directory, returns that directory; otherwise `None`.
fn repository_of(path: &[u8]) -> Option<&[u8]> {
    for end in ["/config", "/commondir"] {
        if let Some(dir) = path.strip_suffix(end.as_bytes()) {
            return Some(dir);
        }
    }
    ["/objects/", "/refs/", "/hooks/"].iter().find_map(|part| {
        path.windows(part.len()).rposition(|window| window == part.as_bytes()).map(|at| &path[..at])
    })
}

/// Reports pairs of paths that differ only in case, if the commits changed at least one of them.
fn check_case_clashes(commits: &Commits, findings: &mut Findings) {
    // Maps the case-folded path of every changed file and its directories to the original path.
    let mut known: BTreeMap<Vec<u8>, &[u8]> = BTreeMap::new();
    for path in commits.changed.keys().filter(|path| commits.tip.contains_key(*path)) {
        for part in prefixes(path.bytes()) {
            known.entry(deceptive_names::folded(part)).or_insert(part);
        }
    }
    if known.is_empty() {
        return;
    }
    let mut last: &[u8] = b"";
    for path in commits.tip.keys() {
        // The paths are sorted: the loop has already checked the prefix shared with the previous path.
        let common = path.bytes().iter().zip(last).take_while(|(a, b)| a == b).count();
        last = path.bytes();
        for part in prefixes(path.bytes()).filter(|part| part.len() >= common) {
            if let Some(other) = known.get(&deceptive_names::folded(part))
                && *other != part
            {
                findings.add(
                    DangerKind::Clash,
                    &Name::from(*other),
                    format!("the name differs only in case from `{}`", Name::from(part)),
                    "on a case-insensitive file system, one replaces the other when git checks them out",
                );
            }
        }
    }
}

/// Returns all parent directories of a path, and the path itself.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| &path[..at])
        .chain(std::iter::once(path))
}
