//! Finds dangers for the person who reviews the result of a run: nested repositories, files that tools execute
//! automatically, deceptive names. Only reports them, and never removes anything.
//!
//! Checks the files that the received commits changed since the run's base commit, and all files in the agent's
//! worktree. Opens files relative to open directories, follows no symbolic link, and starts nothing from the
//! worktree. The agent controls every byte, so every read is limited in size, number and time. The result says which
//! parts were not checked.

mod auto_executed;
mod deceptive_names;
mod file_rules;
mod git_config;
mod objects;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use git_config::{Setting, effect, settings};

use super::dispose::uncommitted::Changed;
use super::git::gitfile::read_following_links;
use super::snapshot::Name;
use deceptive_names::NameProblem;
use objects::{Blob, Commits, Objects};

/// Which repository and worktree to inspect after a run, and within which limits.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The common directory of the user's repository, which contains the run's commits.
    pub repository: PathBuf,
    /// Object directories that the repository uses besides the one in its common directory.
    pub objects: Vec<PathBuf>,
    /// The directory in which the agent worked. All processes of the run must have ended before the inspection.
    pub worktree: PathBuf,
    /// The commit that the run started from; `None` if the run's branch had no commit then.
    pub base: Option<String>,
    /// The tip of the branch that guard received from the run; `None` if the branch still has no commit.
    pub tip: Option<String>,
    /// Hook directories relative to the worktree, from `core.hooksPath` in the user's configuration. The inspection
    /// itself adds those in the repository's configuration.
    pub hooks: Vec<Name>,
    /// Timeout for the whole inspection.
    pub time: Duration,
    /// Maximum number of files and directories to visit.
    pub most_entries: usize,
    /// Maximum number of dangers of each kind to list.
    pub most_of_a_kind: usize,
}

impl Inspection {
    /// Creates an inspection of the commits from `base` to `tip` and of the worktree, with the default limits.
    pub fn new(repository: &Path, worktree: &Path, base: Option<&str>, tip: Option<&str>) -> Self {
        Self {
            repository: repository.to_path_buf(),
            objects: Vec::new(),
            worktree: worktree.to_path_buf(),
            base: base.map(str::to_string),
            tip: tip.map(str::to_string),
            hooks: Vec::new(),
            time: Duration::from_secs(10),
            most_entries: 500_000,
            most_of_a_kind: 50,
        }
    }
}

/// Why a file or directory in the result of a run is dangerous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DangerKind {
    /// A git repository inside the worktree, or a directory that git treats as one.
    Repository,
    /// A new or moved gitlink (the commit of a submodule): `git status` enters the repository at that path.
    Gitlink,
    /// A new or changed `.gitmodules` entry that names a URL or a path outside the worktree, runs a program, or hides
    /// changes in a submodule.
    Submodule,
    /// A `.gitattributes` that chooses filters, diff drivers or merge drivers.
    Attributes,
    /// A symbolic link that may point out of the worktree, or that points into a git directory.
    Link,
    /// A file name that means a different file on some file systems.
    Clash,
    /// A file name that looks like a different name, or contains control characters.
    Deceptive,
    /// A file that a tool executes or obeys without an explicit command.
    Automatic,
    /// A file or directory whose content guard could not check, or findings that guard does not list.
    Unseen,
}

impl DangerKind {
    /// Returns the kind as a single word, as guard stores and prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Repository => "repository",
            Self::Gitlink => "gitlink",
            Self::Submodule => "submodule",
            Self::Attributes => "attributes",
            Self::Link => "link",
            Self::Clash => "clash",
            Self::Deceptive => "deceptive",
            Self::Automatic => "automatic",
            Self::Unseen => "unseen",
        }
    }
}

/// A danger in the result of a run, which the reviewer should know before using the result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Danger {
    /// Why the file or directory is dangerous, as a category.
    pub kind: DangerKind,
    /// The path of the dangerous file or directory, relative to the worktree.
    pub path: Name,
    /// What guard found at this path.
    pub what: String,
    /// Why the file or directory is dangerous, as a sentence for the reviewer.
    pub why: String,
    /// What the reviewer should do about the danger.
    pub instead: String,
}

impl std::fmt::Display for Danger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The path is empty if the danger concerns the whole worktree.
        if !self.path.bytes().is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}; {}", self.what, self.why)
    }
}

/// The inspection of a run's result failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot inspect {}: {source}", path.display())]
pub struct DangersError {
    /// The repository or the worktree that guard could not inspect.
    pub path: PathBuf,
    /// The underlying I/O error.
    pub source: io::Error,
}

struct Findings {
    list: BTreeSet<Danger>,
    left_out: BTreeMap<DangerKind, usize>,
    most_of_a_kind: usize,
    count: BTreeMap<DangerKind, usize>,
}

impl Findings {
    fn add(&mut self, kind: DangerKind, path: &Name, what: impl Into<String>, why: impl Into<String>) {
        let danger = Danger {
            kind,
            path: path.clone(),
            what: truncated(&what.into()),
            why: why.into(),
            instead: advice(kind).to_string(),
        };
        if self.list.contains(&danger) {
            return;
        }
        let count = self.count.entry(kind).or_default();
        if *count < self.most_of_a_kind {
            *count += 1;
            self.list.insert(danger);
        } else {
            *self.left_out.entry(kind).or_default() += 1;
        }
    }

    fn into_list(mut self) -> Vec<Danger> {
        for (kind, count) in std::mem::take(&mut self.left_out) {
            let (findings, are) = if count == 1 { ("finding", "is") } else { ("findings", "are") };
            self.list.insert(Danger {
                kind: DangerKind::Unseen,
                path: Name::default(),
                what: format!("{count} more {findings} of the kind {} {are} not listed", kind.name()),
                why: "guard lists only the first findings of each kind".to_string(),
                instead: advice(DangerKind::Unseen).to_string(),
            });
        }
        self.list.into_iter().collect()
    }
}

fn advice(kind: DangerKind) -> &'static str {
    match kind {
        DangerKind::Repository => {
            "remove its `.git`, or the whole directory, before you run git or open an editor in that directory"
        }
        DangerKind::Gitlink => {
            "remove the repository at that path before you run git in the worktree; remove the gitlink from the commit unless it is a submodule you know"
        }
        DangerKind::Submodule => {
            "read the file before `git submodule update` or `git clone --recurse-submodules`"
        }
        DangerKind::Attributes => {
            "check that the named drivers are safe with untrusted content, or remove the lines"
        }
        DangerKind::Link => {
            "do not write through the link, and do not follow links when you copy or archive the worktree"
        }
        DangerKind::Clash => "rename the file or directory before you check the branch out on another system",
        DangerKind::Deceptive => {
            "rename the file or directory; `git -c core.quotePath=true ls-files` shows the real name"
        }
        DangerKind::Automatic => {
            "read the change before you open the directory in an editor, install, commit or push"
        }
        DangerKind::Unseen => "check yourself what guard could not check, or discard the worktree",
    }
}

/// Shortens a text of more than 400 characters, and appends `…`.
fn truncated(text: &str) -> String {
    const MAX: usize = 400;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// The result of inspecting the commits and the worktree of a run.
#[derive(Debug, Default)]
pub struct Inspected {
    /// The dangers that the inspection found, but no more than [`Inspection::most_of_a_kind`] of each kind.
    pub dangers: Vec<Danger>,
    /// The files that the run's commits changed, and how.
    pub changed: Vec<(Name, Changed)>,
    /// True if `changed` lists all changed files.
    pub is_all: bool,
}

/// Inspects the commits and the worktree of a run, and returns the dangers in them.
pub fn inspect(inspection: &Inspection) -> Result<Vec<Danger>, DangersError> {
    inspect_with_changes(inspection).map(|inspected| inspected.dangers)
}

/// Inspects the commits and the worktree of a run. Returns the dangers in them, and which files the run's commits
/// changed.
pub fn inspect_with_changes(inspection: &Inspection) -> Result<Inspected, DangersError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DangersError { path, source }
    };
    let deadline = Instant::now() + inspection.time;
    let mut findings = Findings {
        list: BTreeSet::new(),
        left_out: BTreeMap::new(),
        most_of_a_kind: inspection.most_of_a_kind,
        count: BTreeMap::new(),
    };
    let mut objects = Objects::new(inspection, deadline);
    let commits = match &inspection.tip {
        Some(tip) => {
            objects.commits(inspection.base.as_deref(), tip).map_err(failed(&inspection.repository))?
        }
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
    let hooks = hook_dirs(inspection);
    check_commits(&commits, &mut objects, &hooks, &mut findings);
    check_case_clashes(&commits, &mut findings);
    walk::walk(inspection, &commits, &mut objects, &hooks, deadline, &mut findings)
        .map_err(failed(&inspection.worktree))?;
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

/// Returns a danger for each git repository at one of the paths `places`, which are at or below `root`, and for each of
/// its hooks and settings that make git run a program.
pub fn repositories(root: &Path, places: &[PathBuf]) -> Vec<Danger> {
    use std::os::unix::ffi::OsStrExt;
    // The inspection uses the path of the user's repository to recognise submodules of that repository. None of the
    // repositories in `places` is such a submodule, so pass a path that does not exist.
    let inspection = Inspection::new(Path::new("/nonexistent"), root, None, None);
    let mut findings = Findings {
        list: BTreeSet::new(),
        left_out: BTreeMap::new(),
        most_of_a_kind: inspection.most_of_a_kind,
        count: BTreeMap::new(),
    };
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

/// Checks the files that the run's commits changed.
fn check_commits(commits: &Commits, objects: &mut Objects<'_>, hooks: &[Name], findings: &mut Findings) {
    for (path, old) in &commits.changed {
        let Some(new) = commits.tip.get(path) else { continue };
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

fn unseen(path: &Name, what: &str, findings: &mut Findings) {
    findings.add(DangerKind::Unseen, path, what, "guard could not check the content");
}

fn check_names(path: &Name, findings: &mut Findings) {
    for part in path.bytes().split(|byte| *byte == b'/') {
        if let Some((wrong, why)) = deceptive_names::name_problem(part) {
            let kind = match wrong {
                NameProblem::Clash => DangerKind::Clash,
                NameProblem::Deceptive => DangerKind::Deceptive,
            };
            findings.add(kind, path, format!("the name `{}`", Name::from(part)), why);
        }
    }
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
