//! Checks all files in the agent's worktree. Opens each directory relative to its open parent, never through a
//! symbolic link. Opens only regular files, and only those that tools may execute or obey, according to their names.

use std::ffi::CStr;
use std::io;
use std::time::Instant;

use super::deceptive_names;
use super::deceptive_names::check_names;
use super::model::{DangerKind, Findings, Inspection, unseen};
use super::objects::{Blob, Commits, MAX_CONTENT_BYTES, Objects};
use super::{auto_executed, file_rules};
use crate::git::snapshot::{Entry, Name, OpenDirectory, Stat, join, read_whole};

/// Maximum depth of directories to visit. The walk keeps one directory open per level.
const MAX_DEPTH: usize = 128;
/// Maximum number of entries of a directory of hooks to check.
const MAX_HOOKS: usize = 1_000;
/// Names of directories with installed or built files. In these, guard looks only for repositories: thousands of
/// reports about other files would be correct but useless.
pub(crate) const GENERATED_DIRS: [&[u8]; 14] = [
    b"node_modules",
    b"target",
    b".venv",
    b"venv",
    b"__pycache__",
    b".tox",
    b".nox",
    b".pytest_cache",
    b".mypy_cache",
    b".ruff_cache",
    b".hypothesis",
    b".pixi",
    b".pdm-build",
    b"htmlcov",
];

struct Walk<'a, 'b> {
    commits: &'a Commits,
    objects: &'a mut Objects<'b>,
    hooks: &'a [Name],
    repository: Name,
    worktree: Name,
    left: usize,
    deadline: Instant,
    findings: &'a mut Findings,
}

/// Checks all files in the worktree, and reports the dangerous ones. If the number of entries or the time exceeds its
/// limit, reports that guard did not check the rest.
pub(crate) fn walk(
    inspection: &Inspection,
    commits: &Commits,
    objects: &mut Objects<'_>,
    hooks: &[Name],
    deadline: Instant,
    findings: &mut Findings,
) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let real = |path: &std::path::Path| {
        Name::from(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()).as_os_str().as_bytes())
    };
    let root = OpenDirectory::open(&inspection.worktree)?;
    let mut walk = Walk {
        commits,
        objects,
        hooks,
        repository: real(&inspection.repository),
        worktree: real(&inspection.worktree),
        left: inspection.most_entries,
        deadline,
        findings,
    };
    // First check the repositories that git itself would enter, so that a large number of other files cannot hide
    // them.
    for (path, _) in commits.tip.iter().filter(|(_, blob)| blob.mode == Blob::GITLINK) {
        match walk.descend(&root, path) {
            Ok(Some(dir)) => walk.repository_at(&dir, path)?,
            Ok(None) => {}
            Err(_) => unseen(path, "a submodule that guard cannot open", walk.findings),
        }
    }
    walk.walk_dir(&root, &Name::default(), 0, false)
}

/// Reports the repositories at the paths `places` below the inspected directory.
pub(crate) fn repositories(
    inspection: &Inspection,
    places: &[Name],
    objects: &mut Objects<'_>,
    findings: &mut Findings,
) -> io::Result<()> {
    let root = OpenDirectory::open(&inspection.worktree)?;
    let commits = Commits::default();
    let mut walk = Walk {
        commits: &commits,
        objects,
        hooks: &[],
        repository: Name::from(inspection.repository.as_os_str().as_encoded_bytes()),
        worktree: Name::from(inspection.worktree.as_os_str().as_encoded_bytes()),
        left: inspection.most_entries,
        deadline: Instant::now() + inspection.time,
        findings,
    };
    for place in places {
        if place.bytes().is_empty() {
            if root.stat_of(c".git")?.is_some_and(|stat| stat.is_file()) {
                let why = "git reads configuration and hooks from the directory that the file names";
                walk.findings.add(DangerKind::Repository, place, "a new `.git` file", why);
            }
            walk.repository_at(&root, place)?;
        } else if let Ok(Some(dir)) = walk.descend(&root, place) {
            walk.repository_at(&dir, place)?;
        } else {
            unseen(place, "a repository that guard cannot open", walk.findings);
        }
    }
    Ok(())
}

impl Walk<'_, '_> {
    /// Opens the directory at `path` below `root`; `None` if it does not exist.
    fn descend(&self, root: &OpenDirectory, path: &Name) -> io::Result<Option<OpenDirectory>> {
        let mut at: Option<OpenDirectory> = None;
        for part in path.bytes().split(|byte| *byte == b'/') {
            let Ok(part) = std::ffi::CString::new(part) else { return Ok(None) };
            let Some(next) = at.as_ref().unwrap_or(root).open_subdir(&part)? else {
                return Ok(None);
            };
            at = Some(next);
        }
        Ok(at)
    }

    fn walk_dir(
        &mut self,
        dir: &OpenDirectory,
        path: &Name,
        depth: usize,
        is_generated: bool,
    ) -> io::Result<()> {
        let Ok(mut entries) = dir.entries_up_to(self.left) else {
            unseen(path, "a directory that guard cannot read", self.findings);
            return Ok(());
        };
        // Sort the entries, so that the limits always leave out the same ones.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        // Every directory with a repository has an entry of one of these names. Most directories have neither, and
        // need no further system calls.
        if entries.iter().any(|entry| matches!(entry.name.to_bytes(), b".git" | b"HEAD"))
            || entries.len() > self.left
        {
            self.repository_at(dir, path)?;
        }
        let mut dirs = Vec::new();
        for entry in entries {
            if self.left == 0 || Instant::now() > self.deadline {
                let what = "the worktree has more entries than guard checks, or checking them takes too long";
                let why = "guard did not check the remaining entries";
                self.findings.add(DangerKind::Unseen, &Name::default(), what, why);
                return Ok(());
            }
            self.left -= 1;
            self.entry(dir, path, entry, is_generated, &mut dirs)?;
        }
        // Check the files of a directory before its subdirectories, and the directories in which tools run files before
        // others, so that a large subdirectory cannot use up the limits first.
        dirs.sort_by_cached_key(|(entry, is_generated)| {
            *is_generated || !auto_executed::is_directory(&join(path.bytes(), &entry.name))
        });
        for (entry, is_generated) in dirs {
            let below = Name::own(join(path.bytes(), &entry.name));
            if depth >= MAX_DEPTH {
                unseen(&below, "directories that are nested too deeply", self.findings);
                continue;
            }
            match dir.open_subdir(&entry.name) {
                Ok(Some(inner)) => self.walk_dir(&inner, &below, depth + 1, is_generated)?,
                Ok(None) => {}
                Err(_) => unseen(&below, "a directory that guard cannot open", self.findings),
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        dir: &OpenDirectory,
        path: &Name,
        entry: Entry,
        is_generated: bool,
        dirs: &mut Vec<(Entry, bool)>,
    ) -> io::Result<()> {
        let name = entry.name.to_bytes();
        let below = Name::own(join(path.bytes(), &entry.name));
        if name == b".git" {
            // `repository_at` has already checked `.git`, and the files in it are not part of the project.
            return Ok(());
        }
        // Check only the last component of the path: the walk has already checked the others.
        if !is_generated
            && deceptive_names::name_problem(name).is_some()
            && self.commits.base(&below).is_none()
        {
            check_names(&below, self.findings);
        }
        // Most entries are regular files that need no check of their content, and therefore no system call.
        if entry.is_dir == Some(false)
            && (is_generated || !file_rules::is_of_interest(below.bytes(), self.hooks))
        {
            return Ok(());
        }
        let stat = match entry.is_dir {
            Some(true) => None,
            _ => stat_of(dir, path, &entry.name, self.findings),
        };
        if entry.is_dir == Some(true) || stat.is_some_and(|stat| stat.is_dir()) {
            // A directory with a name in `GENERATED_DIRS` but with committed files contains source code.
            let is_generated = is_generated || GENERATED_DIRS.contains(&name) && !self.is_tracked(&below);
            dirs.push((entry, is_generated));
            return Ok(());
        }
        let Some(stat) = stat else { return Ok(()) };
        if is_generated {
            return Ok(());
        }
        let tip = self.commits.tip.get(&below);
        if stat.is_link() {
            let target = dir.link(&entry.name).unwrap_or_default();
            let unchanged = self.commits.base(&below).cloned().is_some_and(|old| {
                old.mode == Blob::LINK && self.objects.content(&old.object).as_deref() == Some(target.bytes())
            });
            let committed = tip.is_some_and(|tip| tip.mode == Blob::LINK);
            if !unchanged {
                file_rules::link(&below, target.bytes(), committed, self.findings);
                file_rules::link_in_place_of_file(&below, self.hooks, self.findings);
            }
        } else if stat.is_file() && file_rules::is_of_interest(below.bytes(), self.hooks) {
            match read(dir, &entry.name) {
                Some(new) => self.file(&below, &new, stat.mode & 0o111 != 0),
                None => unseen(&below, "a file that is too large or unreadable", self.findings),
            }
        }
        Ok(())
    }

    /// Compares a file with its version in the run's base commit, and reports which programs tools would run because
    /// of it. `Findings` drops a report that repeats one about the commits.
    fn file(&mut self, path: &Name, new: &[u8], executable: bool) {
        let base = self.commits.base(path).filter(|blob| blob.is_file()).cloned();
        let old = base.as_ref().and_then(|blob| self.objects.content(&blob.object));
        let made_executable = executable && !base.as_ref().is_some_and(Blob::is_executable);
        file_rules::file(path, old.as_deref(), new, made_executable, self.hooks, self.findings);
    }

    fn is_tracked(&self, dir: &Name) -> bool {
        let start = Name::own([dir.bytes(), b"/"].concat());
        self.commits
            .tip
            .range(start.clone()..)
            .next()
            .is_some_and(|(path, _)| path.bytes().starts_with(start.bytes()))
    }

    /// Reports a directory that is a git directory or contains a `.git`, and the programs that git would run because
    /// of it.
    fn repository_at(&mut self, dir: &OpenDirectory, path: &Name) -> io::Result<()> {
        let is_top = path.bytes().is_empty();
        match stat_of(dir, path, c".git", self.findings) {
            Some(stat) if stat.is_dir() => {
                let what = if is_top {
                    "the `.git` of the worktree itself is a repository"
                } else {
                    "a repository inside the worktree"
                };
                match dir.open_subdir(c".git") {
                    Ok(Some(inner)) => describe_repository(&inner, path, what, self.findings),
                    Ok(None) => {}
                    Err(_) => {
                        file_rules::repository(path, None, what, self.findings);
                        unseen(path, "a git directory that guard cannot open", self.findings);
                    }
                }
            }
            Some(stat) if stat.is_link() => {
                let target = dir.link(c".git").unwrap_or_default();
                let what = format!("`.git` is a symbolic link to `{target}`");
                self.findings.add(
                    DangerKind::Repository,
                    path,
                    what,
                    "git reads configuration and hooks from there",
                );
            }
            Some(stat) if stat.is_file() && !is_top => {
                let text = read(dir, c".git").unwrap_or_default();
                let target = text.strip_prefix(b"gitdir:").map(<[u8]>::trim_ascii);
                // A submodule of the user has its git directory in the user's repository, which the agent cannot
                // write.
                let own = target.is_some_and(|target| self.is_in_repository(path, target));
                if let Some(target) = target
                    && !own
                {
                    let what = format!("`.git` names the git directory `{}`", Name::from(target));
                    self.findings.add(
                        DangerKind::Repository,
                        path,
                        what,
                        "git reads configuration and hooks from there",
                    );
                }
            }
            Some(stat) if !stat.is_file() => {
                let why = "programs that read it may wait for ever";
                self.findings.add(DangerKind::Repository, path, "a special file named `.git`", why);
            }
            _ => {}
        }
        // A bare repository needs no `.git`: the entries `HEAD`, `objects` and `refs` are enough, or `HEAD` and
        // `commondir`.
        let mut is = |name: &CStr| stat_of(dir, path, name, self.findings);
        let has_head = is(c"HEAD").is_some_and(|stat| !stat.is_dir());
        if has_head && (is(c"commondir").is_some() || is(c"objects").is_some() && is(c"refs").is_some()) {
            describe_repository(dir, path, "a bare repository", self.findings);
        }
        Ok(())
    }

    fn is_in_repository(&self, path: &Name, target: &[u8]) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let below = std::ffi::OsStr::from_bytes(target);
        let place = self.worktree.path().join(path.path()).join(below);
        place.canonicalize().is_ok_and(|place| place.starts_with(self.repository.path()))
    }
}

/// Reports a git directory with its dangerous settings and its hooks.
fn describe_repository(dir: &OpenDirectory, path: &Name, what: &str, findings: &mut Findings) {
    let mut text = Vec::new();
    for name in [c"config", c"config.worktree"] {
        match stat_of(dir, path, name, findings) {
            None => {}
            Some(stat) if stat.is_file() => match read(dir, name) {
                Some(read) => text.extend([read, b"\n".to_vec()].concat()),
                None => unseen(path, "a configuration file that is too large or unreadable", findings),
            },
            Some(stat) if !stat.is_link() => {
                unseen(path, "a configuration that is not a regular file", findings)
            }
            Some(_) => {
                let target = dir.link(name).unwrap_or_default();
                let what = format!("the configuration of the repository is in another place: `{target}`");
                findings.add(DangerKind::Repository, path, what, "git obeys the settings there");
            }
        }
    }
    file_rules::repository(path, Some(&text), what, findings);
    if stat_of(dir, path, c"commondir", findings).is_some() {
        let place = read(dir, c"commondir").unwrap_or_default();
        let what = format!(
            "the configuration of the repository is in another place: `{}`",
            Name::from(place.trim_ascii())
        );
        findings.add(DangerKind::Repository, path, what, "git obeys the settings there");
    }
    match stat_of(dir, path, c"hooks", findings) {
        Some(stat) if stat.is_link() => {
            let target = dir.link(c"hooks").unwrap_or_default();
            let what = format!("the hooks of the repository are in another place: `{target}`");
            findings.add(DangerKind::Repository, path, what, "git runs the hooks there");
        }
        Some(stat) if stat.is_dir() => {
            let Ok(Some(hooks)) = dir.open_subdir(c"hooks") else {
                unseen(path, "a directory of hooks that guard cannot open", findings);
                return;
            };
            let entries = hooks.entries_up_to(MAX_HOOKS).unwrap_or_default();
            if entries.len() > MAX_HOOKS {
                unseen(path, "a directory of hooks with too many entries", findings);
            }
            for hook in entries {
                let runs = stat_of(&hooks, path, &hook.name, findings)
                    .is_some_and(|stat| stat.is_link() || stat.is_file() && stat.mode & 0o111 != 0);
                if runs && !hook.name.to_bytes().ends_with(b".sample") {
                    let what = format!("the repository has the hook `{}`", Name::from(hook.name.to_bytes()));
                    let why = "git runs the hook during commands in that repository";
                    findings.add(DangerKind::Repository, path, what, why);
                }
            }
        }
        _ => {}
    }
}

/// Returns the metadata of an entry of the directory `dir`, whose path is `path`; `None` if the entry does not exist.
/// Reports the directory if guard cannot determine that, for example because the agent has removed the owner's
/// permission to open files in it.
fn stat_of(dir: &OpenDirectory, path: &Name, name: &CStr, findings: &mut Findings) -> Option<Stat> {
    dir.stat_of(name).unwrap_or_else(|_| {
        unseen(path, "a directory in which guard cannot open files", findings);
        None
    })
}

/// Reads a file; `None` if it is missing, unreadable, too large, or not a regular file.
fn read(dir: &OpenDirectory, name: &CStr) -> Option<Vec<u8>> {
    let (mut file, stat) = dir.file(name, false).ok()??;
    if !stat.is_file() {
        return None;
    }
    read_whole(&mut file, stat.size, MAX_CONTENT_BYTES).ok()?
}
