//! Finds dangers that a run left for the reviewer, and reports them. Never removes anything.
//!
//! Checks two places: the received commits, only what changed since the base, and the agent's directory with
//! everything uncommitted. The directory is read through descriptors, without following any symbolic link and
//! without starting anything in it. The agent controls every byte of both, so every read is bounded in size,
//! number and time; the result says what was left out.

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
use super::git::gitfile::read_linked;
use super::snapshot::Name;
use deceptive_names::Wrong;
use objects::{Blob, Commits, Objects};

/// The inputs of an inspection.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The real repository's common directory, which has the commits.
    pub repository: PathBuf,
    /// Object directories of the repository, if they are elsewhere.
    pub objects: Vec<PathBuf>,
    /// The directory in which the agent worked. All of the run's processes must have ended.
    pub worktree: PathBuf,
    /// The commit that the run started from; `None` if the branch had none.
    pub base: Option<String>,
    /// The commit that was received; `None` if the branch still has none.
    pub tip: Option<String>,
    /// Hook directories relative to the worktree, from `core.hooksPath` in the user's configuration. The
    /// repository's own configuration is read in any case.
    pub hooks: Vec<Name>,
    /// Timeout of the whole inspection.
    pub time: Duration,
    /// Maximum number of files and directories to visit.
    pub most_entries: usize,
    /// Maximum number of dangers to list per kind.
    pub most_of_a_kind: usize,
}

impl Inspection {
    /// An inspection with the default limits.
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

/// The kind of a danger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DangerKind {
    /// A repository inside the tree, or something git takes for one.
    Repository,
    /// A new or moved gitlink (the commit of a submodule): `git status` enters the repository at that path.
    Gitlink,
    /// A `.gitmodules` that names unexpected places, or runs something.
    Submodule,
    /// A `.gitattributes` that chooses filters, diff drivers or merge drivers.
    Attributes,
    /// A symbolic link that points out of the tree.
    Link,
    /// A name that equals another name on other file systems.
    Clash,
    /// A name that looks like another name.
    Deceptive,
    /// A file that runs without an explicit command.
    Automatic,
    /// Something could not be checked.
    Unseen,
}

impl DangerKind {
    /// The kind as a single word.
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

/// One danger that the reviewer should know about first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Danger {
    /// The kind of the danger.
    pub kind: DangerKind,
    /// The path below the worktree.
    pub path: Name,
    /// What is there.
    pub what: String,
    /// What can happen because of it.
    pub why: String,
    /// What to do about it.
    pub instead: String,
}

/// An inspection that failed.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be inspected: {source}", path.display())]
pub struct DangersError {
    /// The repository or the worktree.
    pub path: PathBuf,
    /// The cause.
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
            what: shortened(&what.into()),
            why: why.into(),
            instead: instead(kind).to_string(),
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

    fn done(mut self) -> Vec<Danger> {
        for (kind, count) in std::mem::take(&mut self.left_out) {
            self.list.insert(Danger {
                kind: DangerKind::Unseen,
                path: Name::default(),
                what: format!("{count} more of the kind {kind:?} are not listed").to_lowercase(),
                why: "a long list can hide what matters".to_string(),
                instead: instead(DangerKind::Unseen).to_string(),
            });
        }
        self.list.into_iter().collect()
    }
}

fn instead(kind: DangerKind) -> &'static str {
    match kind {
        DangerKind::Repository => {
            "do not run git or open an editor in that directory; remove its `.git`, or the whole directory, first"
        }
        DangerKind::Gitlink => {
            "do not run git in the worktree before the repository at that path is removed; take the gitlink out of the commit unless it is a submodule you know"
        }
        DangerKind::Submodule => {
            "read the file before `git submodule update` or `git clone --recurse-submodules`"
        }
        DangerKind::Attributes => {
            "check that the drivers named are harmless with content you do not trust, or take the lines out"
        }
        DangerKind::Link => {
            "do not write through it, and do not copy or archive the tree with links followed"
        }
        DangerKind::Clash => "rename it before the branch is checked out on another system",
        DangerKind::Deceptive => "rename it; `git -c core.quotePath=true ls-files` shows the real name",
        DangerKind::Automatic => "read the change before you open, install, commit or push anything with it",
        DangerKind::Unseen => "look through the rest yourself, or throw the worktree away",
    }
}

/// Truncates a long text and marks the cut.
fn shortened(text: &str) -> String {
    const MOST: usize = 400;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// The result of an inspection.
#[derive(Debug, Default)]
pub struct Inspected {
    /// The dangers to report.
    pub dangers: Vec<Danger>,
    /// The files that the commits changed.
    pub changed: Vec<(Name, Changed)>,
    /// `changed` is complete.
    pub is_all: bool,
}

/// Finds planted dangers in what a run left.
pub fn inspect(inspection: &Inspection) -> Result<Vec<Danger>, DangersError> {
    look(inspection).map(|inspected| inspected.dangers)
}

/// Like [`inspect`], and also returns what the commits changed.
pub fn look(inspection: &Inspection) -> Result<Inspected, DangersError> {
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
    if commits.cut {
        let what = "the commits have more files than can be listed";
        findings.add(
            DangerKind::Unseen,
            &Name::default(),
            what,
            "what is behind the last file was not looked at",
        );
    }
    let hooks = hook_folders(inspection);
    committed(&commits, &mut objects, &hooks, &mut findings);
    clashes(&commits, &mut findings);
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
    Ok(Inspected { changed: changed.collect(), is_all: !commits.cut, dangers: findings.done() })
}

/// Describes the repositories found at these paths, at or below `root`.
pub fn repositories(root: &Path, places: &[PathBuf]) -> Vec<Danger> {
    use std::os::unix::ffi::OsStrExt;
    // No real repository exists here that these could legitimately belong to.
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
        unseen(&Name::default(), "new repositories that cannot be read", &mut findings);
    }
    findings.done()
}

/// Maximum size of the repository's own configuration.
const MOST_CONFIG: usize = 16 << 20;

/// Hook directories outside the repository's own; relative paths start at the worktree.
fn hook_folders(inspection: &Inspection) -> Vec<Name> {
    let mut folders = inspection.hooks.clone();
    let text = read_linked(&inspection.repository.join("config"), MOST_CONFIG).unwrap_or_default();
    for setting in settings(&text) {
        if setting.section == b"core"
            && setting.name == b"hookspath"
            && let Some(path) = setting.value
            && !path.starts_with(b"/")
            && !path.starts_with(b"~")
        {
            let path = path.strip_prefix(b"./").unwrap_or(&path);
            folders.push(Name::from(path.strip_suffix(b"/").unwrap_or(path)));
        }
    }
    folders.retain(|folder| !folder.bytes().is_empty());
    folders
}

/// Checks the files that the commits changed.
fn committed(commits: &Commits, objects: &mut Objects<'_>, hooks: &[Name], findings: &mut Findings) {
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
                let why = "`git status` of the tree around it looks into the repository there, with that repository's configuration";
                findings.add(DangerKind::Gitlink, path, what, why);
            }
            Blob::LINK => match objects.content(&new.object) {
                Some(target) => file_rules::link(path, &target, true, findings),
                None => unseen(path, "a link that is too long, or could not be read", findings),
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
                    None => unseen(path, "a file that is too large, or could not be read", findings),
                }
            }
            _ => {}
        }
    }
    // A bare repository among the files: git uses the directory as a repository as soon as somebody enters
    // it.
    let changed_heads = commits.changed.keys().filter_map(|path| {
        let folder = match path.bytes() {
            b"HEAD" => Some(&b""[..]),
            other => other.strip_suffix(b"/HEAD"),
        };
        folder.or_else(|| repository_of(path.bytes()))
    });
    let folders: BTreeSet<Name> = changed_heads.map(Name::from).collect();
    for folder in folders {
        let inside = |name: &str| {
            let slash: &[u8] = if folder.bytes().is_empty() { b"" } else { b"/" };
            Name::own([folder.bytes(), slash, name.as_bytes()].concat())
        };
        let has_folder = |name: &str| {
            let start = inside(name);
            commits
                .tip
                .range(start.clone()..)
                .next()
                .is_some_and(|(path, _)| path.bytes().starts_with(start.bytes()))
        };
        let is_repository = commits.tip.contains_key(&inside("HEAD"))
            && (commits.tip.contains_key(&inside("commondir"))
                || has_folder("objects/") && has_folder("refs/"));
        if is_repository {
            let text = commits.tip.get(&inside("config")).and_then(|blob| objects.content(&blob.object));
            file_rules::repository(
                &folder,
                text.as_deref(),
                "a bare repository among the committed files",
                findings,
            );
        }
    }
}

/// The directory that would be a repository if this path is one of its files.
fn repository_of(path: &[u8]) -> Option<&[u8]> {
    for end in ["/config", "/commondir"] {
        if let Some(folder) = path.strip_suffix(end.as_bytes()) {
            return Some(folder);
        }
    }
    ["/objects/", "/refs/", "/hooks/"].iter().find_map(|part| {
        path.windows(part.len()).rposition(|window| window == part.as_bytes()).map(|at| &path[..at])
    })
}

fn unseen(path: &Name, what: &str, findings: &mut Findings) {
    findings.add(DangerKind::Unseen, path, what, "nobody has looked into it");
}

fn check_names(path: &Name, findings: &mut Findings) {
    for part in path.bytes().split(|byte| *byte == b'/') {
        if let Some((wrong, why)) = deceptive_names::wrong(part) {
            let kind = match wrong {
                Wrong::Clash => DangerKind::Clash,
                Wrong::Deceptive => DangerKind::Deceptive,
            };
            findings.add(kind, path, format!("the name `{}`", Name::from(part)), why);
        }
    }
}

/// Reports paths that differ only in case, where at least one of them is new.
fn clashes(commits: &Commits, findings: &mut Findings) {
    // Every changed file and its directories, case-folded.
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
        // Paths are sorted: the prefix shared with the previous path was already checked.
        let common = path.bytes().iter().zip(last).take_while(|(a, b)| a == b).count();
        last = path.bytes();
        for part in prefixes(path.bytes()).filter(|part| part.len() >= common) {
            if let Some(other) = known.get(&deceptive_names::folded(part))
                && *other != part
            {
                findings.add(
                    DangerKind::Clash,
                    &Name::from(*other),
                    format!("differs only in case from `{}`", Name::from(part)),
                    "where case does not count, one takes the place of the other, a link that of a directory",
                );
            }
        }
    }
}

/// The directories of a path, and the path itself.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| &path[..at])
        .chain(std::iter::once(path))
}
