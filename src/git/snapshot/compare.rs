//! Compares two fingerprints of a repository: reports what changed between them, and who can have changed it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::refs::Ref;
use super::state::{Content, State};
use super::{Fingerprint, Name};

/// The changes in the repository that guard itself made for a run, and the directories that the agent could write to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedChanges {
    /// The id of the run. guard itself makes the changes below `refs/guard/RUN`.
    pub run: String,
    /// The full name of the run's branch, `refs/heads/task/…`; `None` for a run without a branch.
    pub branch: Option<Name>,
    /// The commit of the run's branch when guard last moved it, if known. If the branch is at another commit, the
    /// user or another process has moved it.
    pub tip: Option<String>,
    /// The name of the directory below `worktrees/` in the repository that is the git directory of the run's
    /// worktree; `None` for a run without a worktree.
    pub worktree: Option<Name>,
    /// The files that guard wrote in the directory `worktree` between the two fingerprints, as paths relative to that
    /// directory: `index`, `logs/HEAD`. guard attributes any other change there to the agent, except changes to files
    /// that ordinary git commands write, such as `FETCH_HEAD`.
    pub wrote: BTreeSet<Name>,
    /// The directories that the agent could write to.
    pub grants: Vec<PathBuf>,
}

/// Who can have made a change to a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Actor {
    /// The user or another process. The change is legitimate: guard reports it and never undoes it.
    Others,
    /// guard itself, as part of this run.
    Guard,
    /// Only the agent. The sandbox should have prevented the change, so guard treats the run as failed.
    Agent,
}

/// The part of a repository that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A branch, a tag, or any ref except a HEAD.
    Ref,
    /// A `HEAD`: the branch or commit that is checked out in a worktree.
    Head,
    Reflog,
    /// A configuration file: `config` or `config.worktree`.
    Config,
    /// A file in `hooks`.
    Hook,
    /// The file `info/attributes`.
    Attributes,
    /// The file `info/exclude`.
    Exclude,
    /// The file `info/grafts`.
    Grafts,
    /// The file `shallow`.
    Shallow,
    /// The file `alternates` or `http-alternates` in `objects/info`, which lists other object directories that git
    /// reads.
    Alternates,
    /// The index of a worktree, which lists the staged files, or a `sharedindex` file that the index refers to.
    Index,
    /// A linked worktree that was added or removed, or any other file in its git directory.
    Worktree,
    /// A file in the git directory of a submodule.
    Module,
    /// Any other file of the git directory.
    Other,
}

/// A ref or file that differs between two fingerprints of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub kind: Kind,
    /// The name of the ref, or the path of the file relative to the common directory.
    pub name: Name,
    /// The value of the ref, or a description of the file, before the change; `None` if the ref or file did not exist.
    pub old: Option<String>,
    /// The value of the ref, or a description of the file, after the change; `None` if the ref or file no longer
    /// exists.
    pub new: Option<String>,
    pub by: Actor,
}

impl Difference {
    /// True if the user's own git commands make such a change all the time (`git commit`, `fetch`, `switch`, `stash`,
    /// `worktree add`), nothing in it can make a program run, and no agent could have made it: a run cannot write to the
    /// repository, and the difference is outside every directory that this run could write to.
    pub fn is_ordinary(&self) -> bool {
        let rest = worktree_of(&self.name).map_or_else(|| self.name.clone(), |(_, rest)| rest);
        self.by == Actor::Others
            && match self.kind {
                Kind::Index | Kind::Reflog | Kind::Head => true,
                // git reads other objects in place of those that these refs replace.
                Kind::Ref => {
                    self.name.bytes().starts_with(b"refs/")
                        && !self.name.bytes().starts_with(b"refs/replace/")
                }
                // A whole worktree that was added or removed has no further path.
                Kind::Worktree => {
                    worktree_of(&self.name).is_none()
                        || rest.bytes() == b"locked"
                        || is_written_by_commands(rest.bytes())
                }
                Kind::Other => {
                    is_written_by_commands(rest.bytes())
                        || matches!(rest.bytes(), b"gc.pid" | b"gc.log" | b"info/refs")
                }
                Kind::Config
                | Kind::Hook
                | Kind::Attributes
                | Kind::Exclude
                | Kind::Grafts
                | Kind::Shallow
                | Kind::Alternates
                | Kind::Module => false,
            }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, .. } = self;
        match (&self.old, &self.new) {
            (None, Some(new)) => write!(f, "{name} was created ({new})")?,
            (Some(old), None) => write!(f, "{name} was removed (before: {old})")?,
            (old, new) => write!(
                f,
                "{name} changed from {} to {}",
                old.as_deref().unwrap_or("?"),
                new.as_deref().unwrap_or("?")
            )?,
        }
        f.write_str(match self.by {
            Actor::Others => ", by the user or another process",
            Actor::Guard => ", by guard",
            Actor::Agent => ", which only the agent can have done",
        })
    }
}

pub(crate) fn compare(
    before: &Fingerprint,
    after: &Fingerprint,
    expected: &ExpectedChanges,
) -> Vec<Difference> {
    let attribution = Attribution { root: after.common.path(), expected };
    let with_device = before.device == after.device;
    let mut found = Vec::new();
    // Report an added or removed worktree as one difference, not as one difference per file.
    let (old, new) = (worktrees(before), worktrees(after));
    let whole: BTreeSet<Name> = old.symmetric_difference(&new).cloned().collect();
    for id in &whole {
        let head = |of: &Fingerprint| of.value(&[b"worktrees/", id.bytes(), b"/HEAD"].concat());
        let text = |of: &Fingerprint| head(of).unwrap_or_else(|| "without HEAD".to_string());
        let name = Name::own([b"worktrees/", id.bytes()].concat());
        found.push(Difference {
            kind: Kind::Worktree,
            old: old.contains(id).then(|| text(before)),
            new: new.contains(id).then(|| text(after)),
            by: attribution.worktree(id, &name),
            name,
        });
    }
    let apart = |name: &Name| !worktree_of(name).is_some_and(|(id, _)| whole.contains(&id));
    let mut moved = BTreeSet::new();
    for (name, old, new) in pairs(&before.refs, &after.refs).filter(|(name, ..)| apart(name)) {
        if !same_ref(old, new) {
            moved.insert(name.clone());
            found.push(Difference {
                kind: if is_head(name) { Kind::Head } else { Kind::Ref },
                name: name.clone(),
                old: old.map(text_of_ref),
                new: new.map(text_of_ref),
                by: attribution.reference(name, new),
            });
        }
    }
    for (name, old, new) in pairs(&before.files, &after.files).filter(|(name, ..)| apart(name)) {
        if !matches!((old, new), (Some(old), Some(new)) if old.same(new, with_device)) {
            found.push(Difference {
                kind: kind_of(name),
                name: name.clone(),
                old: old.map(text_of_file),
                new: new.map(text_of_file),
                by: attribution.file(name, [old, new]),
            });
        }
    }
    for (name, old, new) in pairs(&before.logs, &after.logs).filter(|(name, ..)| apart(name)) {
        let same = matches!((old, new), (Some(old), Some(new)) if same_log(old, new));
        // When git moves, creates or deletes a ref, it appends to the ref's log, creates the log or deletes it. The
        // difference of the ref already shows that.
        let size = |state: Option<&State>| state.map_or(0, |state| state.stat.size);
        let follows = moved.contains(&ref_of_log(name)) && (size(new) > size(old) || new.is_none());
        if !same && !follows {
            found.push(Difference {
                kind: Kind::Reflog,
                name: name.clone(),
                old: old.map(text_of_file),
                new: new.map(text_of_file),
                by: attribution.log(name),
            });
        }
    }
    found
}

/// True if two reflogs are equal. `git gc` rewrites all reflogs, so for logs that guard did not hash, the same size
/// and mode are enough.
fn same_log(old: &State, new: &State) -> bool {
    match (&old.content, &new.content) {
        (Content::Unread, _) | (_, Content::Unread) => {
            old.stat.size == new.stat.size && old.stat.mode == new.stat.mode
        }
        _ => old.content == new.content && old.stat.mode == new.stat.mode,
    }
}

fn is_head(name: &Name) -> bool {
    worktree_of(name).map_or(name.bytes() == b"HEAD", |(_, rest)| rest.bytes() == b"HEAD")
}

struct Attribution<'a> {
    root: PathBuf,
    expected: &'a ExpectedChanges,
}

impl Attribution<'_> {
    /// Returns who can have added or removed a linked worktree.
    fn worktree(&self, id: &Name, name: &Name) -> Actor {
        if self.within_grants(&self.root.join(name.path())) {
            Actor::Agent
        } else if self.expected.worktree.as_ref() == Some(id) {
            Actor::Guard
        } else {
            Actor::Others
        }
    }

    fn reference(&self, name: &Name, new: Option<&Ref>) -> Actor {
        if self.within_grants(&self.root.join(name.path()))
            || self.within_grants(&self.root.join("packed-refs"))
        {
            return Actor::Agent;
        }
        if self.is_guards(name) {
            return Actor::Guard;
        }
        if self.expected.branch.as_ref() == Some(name) {
            let left =
                self.expected.tip.as_ref().is_none_or(|tip| new.is_some_and(|new| text_of_ref(new) == *tip));
            return if left { Actor::Guard } else { Actor::Others };
        }
        self.in_worktree(name)
    }

    fn file(&self, name: &Name, states: [Option<&State>; 2]) -> Actor {
        let real = states.into_iter().flatten().filter_map(|state| state.real.as_ref());
        if self.within_grants(&self.root.join(name.path()))
            || real.into_iter().any(|real| self.within_grants(&real.path()))
        {
            return Actor::Agent;
        }
        self.in_worktree(name)
    }

    fn log(&self, name: &Name) -> Actor {
        let of = ref_of_log(name);
        if self.within_grants(&self.root.join(name.path())) {
            Actor::Agent
        } else if self.is_guards(&of) || self.expected.branch.as_ref() == Some(&of) {
            Actor::Guard
        } else {
            self.in_worktree(name)
        }
    }

    /// Returns who can have changed a ref, file or reflog outside the directories that the agent could write to. In the
    /// git directory of the run's own worktree, guard writes the files in `expected.wrote`, and the git commands of a
    /// user or an editor write those of [`is_written_by_commands`]. guard attributes any other change there to the
    /// agent, and changes elsewhere to others.
    fn in_worktree(&self, name: &Name) -> Actor {
        match (worktree_of(name), &self.expected.worktree) {
            (Some((id, rest)), Some(own)) if id == *own => {
                if self.expected.wrote.contains(&rest) {
                    Actor::Guard
                } else if is_written_by_commands(rest.bytes()) {
                    Actor::Others
                } else {
                    Actor::Agent
                }
            }
            _ => Actor::Others,
        }
    }

    fn is_guards(&self, name: &Name) -> bool {
        let own = format!("refs/guard/{}", self.expected.run);
        !self.expected.run.is_empty()
            && name
                .bytes()
                .strip_prefix(own.as_bytes())
                .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    fn within_grants(&self, path: &Path) -> bool {
        self.expected.grants.iter().any(|grant| path.starts_with(grant))
    }
}

/// True if git commands such as `git fetch` or `git merge` write this file of a worktree's git directory. No such file
/// makes git run a program.
fn is_written_by_commands(rest: &[u8]) -> bool {
    const FILES: [&[u8]; 9] = [
        b"AUTO_MERGE",
        b"CHERRY_PICK_HEAD",
        b"COMMIT_EDITMSG",
        b"FETCH_HEAD",
        b"ORIG_HEAD",
        b"REBASE_HEAD",
        b"REVERT_HEAD",
        b"SQUASH_MSG",
        b"index.lock",
    ];
    FILES.contains(&rest) || rest.starts_with(b"MERGE_")
}

/// Splits a path such as `worktrees/ID/HEAD` into the id of the linked worktree and the rest; `None` for other paths.
fn worktree_of(name: &Name) -> Option<(Name, Name)> {
    let rest = name.bytes().strip_prefix(b"worktrees/")?;
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    Some((Name::from(&rest[..slash]), Name::from(&rest[slash + 1..])))
}

/// Returns the ids of the linked worktrees. Skips a directory in `worktrees/` without a `gitdir` file, because git is
/// still creating that worktree.
fn worktrees(of: &Fingerprint) -> BTreeSet<Name> {
    let mut found = BTreeSet::new();
    for (name, _) in of.files.range(Name::from("worktrees/")..) {
        let Some((id, rest)) = worktree_of(name) else { break };
        if rest.bytes() == b"gitdir" {
            found.insert(id);
        }
    }
    found
}

/// Returns the name of the ref whose reflog is at a path such as `logs/refs/heads/x` or `worktrees/ID/logs/HEAD`.
fn ref_of_log(name: &Name) -> Name {
    let of = |name: &[u8]| name.strip_prefix(b"logs/").unwrap_or(name).to_vec();
    match worktree_of(name) {
        Some((id, rest)) => {
            Name::own([b"worktrees/", id.bytes(), b"/", of(rest.bytes()).as_slice()].concat())
        }
        None => Name::from(of(name.bytes())),
    }
}

fn kind_of(name: &Name) -> Kind {
    let inside = worktree_of(name);
    let rest = inside.as_ref().map_or(name.bytes(), |(_, rest)| rest.bytes());
    match rest {
        b"config" | b"config.worktree" => Kind::Config,
        b"info/attributes" => Kind::Attributes,
        b"info/exclude" => Kind::Exclude,
        b"info/grafts" => Kind::Grafts,
        b"shallow" => Kind::Shallow,
        b"objects/info/alternates" | b"objects/info/http-alternates" => Kind::Alternates,
        b"index" => Kind::Index,
        _ if rest.starts_with(b"sharedindex.") => Kind::Index,
        _ if rest == b"hooks" || rest.starts_with(b"hooks/") => Kind::Hook,
        _ if rest.starts_with(b"modules/") => Kind::Module,
        _ if inside.is_some() => Kind::Worktree,
        _ => Kind::Other,
    }
}

fn same_ref(old: Option<&Ref>, new: Option<&Ref>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return false };
    // Only some formats store the target of an annotated tag. If both refs have a stored target, the targets must be
    // equal.
    let agree = old.peeled.is_none() || new.peeled.is_none() || old.peeled == new.peeled;
    old.value == new.value && agree
}

fn text_of_ref(found: &Ref) -> String {
    found.value.to_string()
}

fn text_of_file(state: &State) -> String {
    let short = |hash: &str| hash.get(..12).unwrap_or(hash).to_string();
    let mode = if state.stat.mode & 0o111 != 0 { ", executable" } else { "" };
    match &state.content {
        Content::Hash(hash) => format!("{} bytes, sha256 {}{mode}", state.stat.size, short(hash)),
        Content::Link(target, Some(hash)) => format!("a symbolic link to {target}, sha256 {}", short(hash)),
        Content::Link(target, None) => format!("a symbolic link to {target}"),
        Content::Unread => format!("{} bytes{mode}", state.stat.size),
    }
}

/// Joins two maps by name. Returns every name in order, with its value in `old` and its value in `new`; `None` stands
/// for a name that is missing in that map.
fn pairs<'a, T>(
    old: &'a std::collections::BTreeMap<Name, T>,
    new: &'a std::collections::BTreeMap<Name, T>,
) -> impl Iterator<Item = (&'a Name, Option<&'a T>, Option<&'a T>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let left = if order.is_le() { old.next() } else { None };
        let right = if order.is_ge() { new.next() } else { None };
        let name = left.or(right).map(|(name, _)| name)?;
        Some((name, left.map(|(_, value)| value), right.map(|(_, value)| value)))
    })
}
