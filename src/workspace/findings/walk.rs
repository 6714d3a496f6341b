//! Walks the agent's directory. Opens directories one below the other, never through a symbolic link, and
//! opens no files except regular files with known names.

use std::ffi::CStr;
use std::io;
use std::time::Instant;

use super::deceptive_names;
use super::objects::{Blob, Commits, LARGEST, Objects};
use super::{DangerKind, Findings, Inspection, check_names, file_rules, unseen};
use crate::workspace::snapshot::{DirectoryState, Entry, Name, join, whole};

/// Maximum depth. Each level holds one open descriptor.
const DEEPEST: usize = 128;
/// Directories of installed or built files. Reporting thousands of files in them would be correct and
/// useless, so guard only looks for repositories there.
const OF_MACHINES: [&[u8]; 6] = [b"node_modules", b"target", b".venv", b"venv", b"__pycache__", b".tox"];

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

/// Walks the directory.
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
    let root = DirectoryState::open(&inspection.worktree)?;
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
    // Check first what git itself would enter, so that no number of other files can hide it.
    for (path, _) in commits.tip.iter().filter(|(_, blob)| blob.mode == Blob::GITLINK) {
        if let Some(folder) = walk.descend(&root, path)? {
            walk.repository_at(&folder, path)?;
        }
    }
    walk.folder(&root, &Name::default(), 0, false)
}

/// Reports the repositories at these paths below the inspected directory.
pub(crate) fn repositories(
    inspection: &Inspection,
    places: &[Name],
    objects: &mut Objects<'_>,
    findings: &mut Findings,
) -> io::Result<()> {
    let root = DirectoryState::open(&inspection.worktree)?;
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
                let why = "git takes its configuration and hooks from where the file leads";
                walk.findings.add(DangerKind::Repository, place, "a new `.git` file", why);
            }
            walk.repository_at(&root, place)?;
        } else if let Some(folder) = walk.descend(&root, place)? {
            walk.repository_at(&folder, place)?;
        } else {
            unseen(place, "a repository that cannot be opened", walk.findings);
        }
    }
    Ok(())
}

impl Walk<'_, '_> {
    fn descend(&self, root: &DirectoryState, path: &Name) -> io::Result<Option<DirectoryState>> {
        let mut at: Option<DirectoryState> = None;
        for part in path.bytes().split(|byte| *byte == b'/') {
            let Ok(part) = std::ffi::CString::new(part) else { return Ok(None) };
            let Some(next) = at.as_ref().unwrap_or(root).inside(&part).unwrap_or(None) else {
                return Ok(None);
            };
            at = Some(next);
        }
        Ok(at)
    }

    fn folder(
        &mut self,
        folder: &DirectoryState,
        path: &Name,
        depth: usize,
        of_machines: bool,
    ) -> io::Result<()> {
        let Ok(mut entries) = folder.entries_up_to(self.left) else {
            unseen(path, "a directory that cannot be read", self.findings);
            return Ok(());
        };
        // Sort, so that the limits always leave out the same entries.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        // Every repository has one of these names. Most directories have neither, and need no further system
        // calls.
        if entries.iter().any(|entry| matches!(entry.name.to_bytes(), b".git" | b"HEAD"))
            || entries.len() > self.left
        {
            self.repository_at(folder, path)?;
        }
        let mut folders = Vec::new();
        for entry in entries {
            if self.left == 0 || Instant::now() > self.deadline {
                let what = "the worktree has more in it than can be looked at";
                self.findings.add(DangerKind::Unseen, &Name::default(), what, "anything may be in the rest");
                return Ok(());
            }
            self.left -= 1;
            self.entry(folder, path, entry, of_machines, &mut folders)?;
        }
        // Files before directories: what is near the top is checked, whatever lies below.
        for (entry, of_machines) in folders {
            let below = Name::own(join(path.bytes(), &entry.name));
            if depth >= DEEPEST {
                unseen(&below, "directories below directories below directories", self.findings);
            } else if let Ok(Some(inner)) = folder.inside(&entry.name) {
                self.folder(&inner, &below, depth + 1, of_machines)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        folder: &DirectoryState,
        path: &Name,
        entry: Entry,
        of_machines: bool,
        folders: &mut Vec<(Entry, bool)>,
    ) -> io::Result<()> {
        let name = entry.name.to_bytes();
        let below = Name::own(join(path.bytes(), &entry.name));
        if name == b".git" {
            // The repository was already checked with its directory, and its contents are no project files.
            return Ok(());
        }
        // Only the last component: the others were checked on the way here.
        if !of_machines && deceptive_names::wrong(name).is_some() && self.commits.base(&below).is_none() {
            check_names(&below, self.findings);
        }
        // Most entries are regular files of no interest, and need no system call of their own.
        if entry.is_folder == Some(false)
            && (of_machines || !file_rules::is_of_interest(below.bytes(), self.hooks))
        {
            return Ok(());
        }
        let stat = match entry.is_folder {
            Some(true) => None,
            _ => folder.stat_of(&entry.name).unwrap_or(None),
        };
        if entry.is_folder == Some(true) || stat.is_some_and(|stat| stat.is_folder()) {
            // A committed directory of that name is source code.
            let of_machines = of_machines || OF_MACHINES.contains(&name) && !self.is_tracked(&below);
            folders.push((entry, of_machines));
            return Ok(());
        }
        let Some(stat) = stat else { return Ok(()) };
        if of_machines {
            return Ok(());
        }
        let tip = self.commits.tip.get(&below);
        if stat.is_link() {
            let target = folder.link(&entry.name).unwrap_or_default();
            let unchanged = self.commits.base(&below).cloned().is_some_and(|old| {
                old.mode == Blob::LINK && self.objects.content(&old.object).as_deref() == Some(target.bytes())
            });
            let committed = tip.is_some_and(|tip| tip.mode == Blob::LINK);
            if !unchanged {
                file_rules::link(&below, target.bytes(), committed, self.findings);
            }
        } else if stat.is_file() && file_rules::is_of_interest(below.bytes(), self.hooks) {
            match read(folder, &entry.name) {
                Some(new) => self.file(&below, &new, stat.mode & 0o111 != 0),
                None => unseen(&below, "a file that is too large, or could not be read", self.findings),
            }
        }
        Ok(())
    }

    /// Compares a file of interest with its version in the base. Committed changes were already reported in
    /// the same words, and are not repeated.
    fn file(&mut self, path: &Name, new: &[u8], executable: bool) {
        let base = self.commits.base(path).filter(|blob| blob.is_file()).cloned();
        let old = base.as_ref().and_then(|blob| self.objects.content(&blob.object));
        let made_executable = executable && !base.as_ref().is_some_and(Blob::is_executable);
        file_rules::file(path, old.as_deref(), new, made_executable, self.hooks, self.findings);
    }

    fn is_tracked(&self, folder: &Name) -> bool {
        let start = Name::own([folder.bytes(), b"/"].concat());
        self.commits
            .tip
            .range(start.clone()..)
            .next()
            .is_some_and(|(path, _)| path.bytes().starts_with(start.bytes()))
    }

    /// Reports a directory that is a repository or has one in `.git`, and what it would make git do.
    fn repository_at(&mut self, folder: &DirectoryState, path: &Name) -> io::Result<()> {
        let is_top = path.bytes().is_empty();
        match folder.stat_of(c".git").unwrap_or(None) {
            Some(stat) if stat.is_folder() => {
                if let Ok(Some(inner)) = folder.inside(c".git") {
                    let what = if is_top {
                        "the worktree's own `.git` is a repository"
                    } else {
                        "a repository in the tree"
                    };
                    describe_repository(&inner, path, what, self.findings);
                }
            }
            Some(stat) if stat.is_link() => {
                let target = folder.link(c".git").unwrap_or_default();
                let what = format!("`.git` is a link to `{target}`");
                self.findings.add(
                    DangerKind::Repository,
                    path,
                    what,
                    "git takes its configuration and hooks from there",
                );
            }
            Some(stat) if stat.is_file() && !is_top => {
                let text = read(folder, c".git").unwrap_or_default();
                let target = text.strip_prefix(b"gitdir:").map(<[u8]>::trim_ascii);
                // The user's submodules have their git directory in the real repository, which the agent
                // cannot write.
                let own = target.is_some_and(|target| self.is_in_repository(path, target));
                if let Some(target) = target
                    && !own
                {
                    let what = format!("`.git` leads to `{}`", Name::from(target));
                    self.findings.add(
                        DangerKind::Repository,
                        path,
                        what,
                        "git takes its configuration and hooks from there",
                    );
                }
            }
            _ => {}
        }
        // A bare repository needs no `.git`: HEAD with objects and refs is enough, or HEAD with `commondir`.
        let is = |name: &CStr| folder.stat_of(name).unwrap_or(None);
        let has_head = is(c"HEAD").is_some_and(|stat| !stat.is_folder());
        if has_head && (is(c"commondir").is_some() || is(c"objects").is_some() && is(c"refs").is_some()) {
            describe_repository(folder, path, "a bare repository", self.findings);
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

/// Reports a git directory with the dangerous settings of its configuration.
fn describe_repository(folder: &DirectoryState, path: &Name, what: &str, findings: &mut Findings) {
    let mut text = Vec::new();
    for name in [c"config", c"config.worktree"] {
        match folder.stat_of(name).unwrap_or(None) {
            None => {}
            Some(stat) if stat.is_file() => match read(folder, name) {
                Some(read) => text.extend([read, b"\n".to_vec()].concat()),
                None => unseen(path, "configuration that is too large, or could not be read", findings),
            },
            Some(_) => {
                let target = folder.link(name).unwrap_or_default();
                let what = format!("its configuration is elsewhere: `{target}`");
                findings.add(DangerKind::Repository, path, what, "git obeys what is there");
            }
        }
    }
    file_rules::repository(path, Some(&text), what, findings);
    if folder.stat_of(c"commondir").unwrap_or(None).is_some() {
        let place = read(folder, c"commondir").unwrap_or_default();
        let what = format!("its configuration is elsewhere: `{}`", Name::from(place.trim_ascii()));
        findings.add(DangerKind::Repository, path, what, "git obeys what is there");
    }
    match folder.stat_of(c"hooks").unwrap_or(None) {
        Some(stat) if stat.is_link() => {
            let what = format!("its hooks are elsewhere: `{}`", folder.link(c"hooks").unwrap_or_default());
            findings.add(DangerKind::Repository, path, what, "git runs what is there");
        }
        Some(stat) if stat.is_folder() => {
            let Ok(Some(hooks)) = folder.inside(c"hooks") else { return };
            for hook in hooks.entries_up_to(1_000).unwrap_or_default() {
                let runs = hooks
                    .stat_of(&hook.name)
                    .unwrap_or(None)
                    .is_some_and(|stat| stat.is_link() || stat.is_file() && stat.mode & 0o111 != 0);
                if runs && !hook.name.to_bytes().ends_with(b".sample") {
                    let what = format!("its hook `{}`", Name::from(hook.name.to_bytes()));
                    findings.add(DangerKind::Repository, path, what, "git runs it when it works there");
                }
            }
        }
        _ => {}
    }
}

/// The content of a regular file that is not too large.
fn read(folder: &DirectoryState, name: &CStr) -> Option<Vec<u8>> {
    let (mut file, stat) = folder.file(name, false).ok()??;
    if !stat.is_file() {
        return None;
    }
    whole(&mut file, stat.size, LARGEST).ok()?
}
