//! What an inspection looks at, and the dangers that it finds.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::git::dispose::uncommitted::Changed;
use crate::git::snapshot::Name;

/// Which repository and worktree to inspect after a run, and within which limits.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The common directory of the user's repository, which contains the run's commits.
    pub repository: PathBuf,
    /// Object directories that the repository uses besides the one in its common directory.
    pub objects: Vec<PathBuf>,
    /// An object directory that the repository itself does not use, with objects of `tip`; `None` if there is none.
    pub new_objects: Option<PathBuf>,
    /// The directory in which the agent worked. All processes of the run must have ended before the inspection.
    pub worktree: PathBuf,
    /// The commit or tree with which `tip` and the worktree are compared; `None` for an empty tree.
    pub base: Option<String>,
    /// The tip of the branch that guard received from the run, or another commit or tree to inspect; `None` if the branch
    /// still has no commit.
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
            new_objects: None,
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Danger {
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

#[derive(Debug, thiserror::Error)]
#[error("cannot inspect {}: {source}", path.display())]
pub struct DangersError {
    /// The repository or the worktree that guard could not inspect.
    pub path: PathBuf,
    pub source: io::Error,
}

/// How much a finding needs a person's attention. guard lists the first findings first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Something runs without being asked, decides what may run, or leads out of the worktree.
    High,
    Usual,
}

/// The findings of an inspection. The agent decides how many there are, so the list is limited; many harmless findings
/// must not hide a dangerous one.
pub(super) struct Findings {
    /// The findings by urgency and sort, in the order in which guard found them. A sort is a kind of danger with the same
    /// reason. No sort has more than `most_of_a_kind`.
    sorts: BTreeMap<(Urgency, DangerKind, String), Vec<Danger>>,
    /// The hashes of all findings, because the commits and the worktree contain the same files.
    seen: HashSet<u64>,
    hasher: RandomState,
    count: BTreeMap<DangerKind, usize>,
    most_of_a_kind: usize,
}

impl Findings {
    /// Creates an empty list that takes at most `most_of_a_kind` findings of each kind.
    pub(super) fn new(most_of_a_kind: usize) -> Self {
        Self {
            sorts: BTreeMap::new(),
            seen: HashSet::new(),
            hasher: RandomState::new(),
            count: BTreeMap::new(),
            most_of_a_kind,
        }
    }

    pub(super) fn add(
        &mut self,
        kind: DangerKind,
        path: &Name,
        what: impl Into<String>,
        why: impl Into<String>,
    ) {
        let urgency = match kind {
            DangerKind::Repository | DangerKind::Gitlink | DangerKind::Submodule | DangerKind::Link => {
                Urgency::High
            }
            DangerKind::Attributes
            | DangerKind::Clash
            | DangerKind::Deceptive
            | DangerKind::Automatic
            | DangerKind::Unseen => Urgency::Usual,
        };
        self.add_with(urgency, kind, path, what, why);
    }

    pub(super) fn add_with(
        &mut self,
        urgency: Urgency,
        kind: DangerKind,
        path: &Name,
        what: impl Into<String>,
        why: impl Into<String>,
    ) {
        let danger = Danger {
            kind,
            path: path.clone(),
            what: truncated(&what.into()),
            why: why.into(),
            instead: advice(kind).to_string(),
        };
        if !self.seen.insert(self.hasher.hash_one(&danger)) {
            return;
        }
        *self.count.entry(kind).or_default() += 1;
        // These reasons contain a text of the agent, and would make any number of sorts.
        let reason = if kind == DangerKind::Attributes { String::new() } else { danger.why.clone() };
        let sort = self.sorts.entry((urgency, kind, reason)).or_default();
        if sort.len() < self.most_of_a_kind {
            sort.push(danger);
        }
    }

    /// Returns the findings, the urgent ones first, and of each urgency one of each sort before a second of any. Keeps the
    /// first of each kind, and says how many others there are.
    pub(super) fn into_list(self) -> Vec<Danger> {
        let mut list: Vec<(Urgency, usize, Danger)> = Vec::new();
        for ((urgency, ..), sort) in self.sorts {
            list.extend(sort.into_iter().enumerate().map(|(index, danger)| (urgency, index, danger)));
        }
        list.sort();
        let mut kept: BTreeMap<DangerKind, usize> = BTreeMap::new();
        list.retain(|(.., danger)| {
            let kept = kept.entry(danger.kind).or_default();
            *kept += 1;
            *kept <= self.most_of_a_kind
        });
        let mut list: Vec<Danger> = list.into_iter().map(|(.., danger)| danger).collect();
        for (kind, count) in self.count {
            let left_out = count.saturating_sub(self.most_of_a_kind);
            if left_out == 0 {
                continue;
            }
            let (findings, are) = if left_out == 1 { ("finding", "is") } else { ("findings", "are") };
            list.push(Danger {
                kind: DangerKind::Unseen,
                path: Name::default(),
                what: format!("{left_out} more {findings} of the kind {} {are} not listed", kind.name()),
                why: "guard lists the most dangerous findings of each kind".to_string(),
                instead: advice(DangerKind::Unseen).to_string(),
            });
        }
        list
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

#[derive(Debug, Default)]
pub struct Inspected {
    /// The dangers that the inspection found, but no more than [`Inspection::most_of_a_kind`] of each kind.
    pub dangers: Vec<Danger>,
    /// The files that the run's commits changed, and how.
    pub changed: Vec<(Name, Changed)>,
    /// True if `changed` lists all changed files.
    pub is_all: bool,
}

pub(super) fn unseen(path: &Name, what: &str, findings: &mut Findings) {
    findings.add(DangerKind::Unseen, path, what, "guard could not check the content");
}
