//! Saves files of a conversation between its runs. Every run has a new private home directory: guard copies the files
//! into it before the run, and out of it afterwards.
//!
//! An agent has written these files. So guard copies them only when all processes of the run have ended, copies only
//! regular files and directories, and only within size limits. It must never follow a symbolic link. A saved file is never
//! executable, and of an agent that guard knows only conversations are saved: nothing that the agent obeys in a later run,
//! such as its memory or its settings.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Serialize;

use super::login::CopiedLogin;
use crate::run::outcome::KeptFiles;
use crate::sys::agent_paths::{AgentPaths, state_directory};
use crate::sys::fs::{Links, open_regular_file};

/// The maximum number of bytes that guard copies into or out of a private home directory.
const MAX_BYTES: u64 = 512 << 20;
/// The maximum number of files and directories that guard copies into or out of a private home directory.
const MAX_FILES: usize = 20_000;
const MAX_DEPTH: usize = 32;

/// The initial content of a run's private home directory, and which of its files guard saves for the next run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HomeState {
    /// Directories whose contents guard copies into the private home directory before the run. Files from a later
    /// directory overwrite those from an earlier one.
    pub from: Vec<PathBuf>,
    /// The directory to which guard saves the paths in `keep` after the run.
    pub to: Option<PathBuf>,
    /// The paths that guard saves after the run, relative to the private home directory. A path with `*` is a pattern for
    /// files: `*` stands for any part of one name.
    pub keep: Vec<PathBuf>,
    /// The agent's own history of conversations; `None` if guard does not save it.
    pub history: Option<SavedHistory>,
    /// A login of the user, such as a token file, of which the agent gets a copy; `None` if it gets none.
    pub login: Option<CopiedLogin>,
}

/// The agent's own history of conversations in one repository, which guard saves between runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SavedHistory {
    /// The directory in which guard saves the history between runs.
    pub place: PathBuf,
    /// The directories of the history: (path below `place`, path below the private home directory).
    pub paths: Vec<(PathBuf, PathBuf)>,
    /// Patterns for the files that are conversations, relative to the private home directory. guard saves no others.
    pub conversations: Vec<String>,
}

impl SavedHistory {
    /// Copies the saved history into a private home directory. Removes first what guard would not save today: earlier
    /// versions saved everything in these directories, also executable files.
    fn copy_into(&self, home: &Path, copier: &mut Copier) -> io::Result<()> {
        if self.place.symlink_metadata().is_err() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let selected = Selection::of(self.conversations.iter().map(String::as_str))?;
        if !self.is_clean(&selected) {
            replace(&self.place, |new| self.copy_old(new, &selected, &mut Copier::new(FileMode::Private)))?;
        }
        for (saved, at) in &self.paths {
            copier.copy(&self.place.join(saved), &home.join(at), at, &selected)?;
        }
        Ok(())
    }

    /// Adds the history in a private home directory to the saved history. A file of the run replaces a saved file with
    /// the same path. If both together are too large, guard keeps only the history of this run. A lock serializes runs
    /// that end at the same time.
    fn save_from(&self, home: &Path, kept: &mut KeptFiles) -> io::Result<()> {
        let _lock = self.lock()?;
        let selected = Selection::of(self.conversations.iter().map(String::as_str))?;
        let mut save = |with_old: bool| {
            replace(&self.place, |new| {
                // One budget for both: the next run must be able to copy all of it.
                let mut copier = Copier::new(FileMode::Private);
                if with_old && self.place.exists() {
                    self.copy_old(new, &selected, &mut copier)?;
                    copier.copied.clear();
                }
                for (saved, at) in &self.paths {
                    copier.unchanged_in = Some((self.place.join(saved), at.clone()));
                    copier.copy_out(home, at, &new.join(saved), &selected)?;
                }
                name_files(&mut kept.for_later, &mut kept.left_out, copier.copied);
                Ok(())
            })
        };
        // If old and new history together exceed the size limit, save only the new one.
        save(true).or_else(|_| save(false))
    }

    fn lock(&self) -> io::Result<fs::File> {
        make_parent(&self.place)?;
        let path = self.place.with_extension("lock");
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        lock.lock()?;
        Ok(lock)
    }

    /// Copies the saved history to `new`, without the files that are no conversations.
    fn copy_old(&self, new: &Path, selected: &Selection, copier: &mut Copier) -> io::Result<()> {
        self.paths
            .iter()
            .try_for_each(|(saved, at)| copier.copy(&self.place.join(saved), &new.join(saved), at, selected))
    }

    /// Returns true if the saved history contains only conversations, and no file of it is executable or accessible for
    /// other users.
    fn is_clean(&self, selected: &Selection) -> bool {
        let is_expected = |relative: &Path| {
            self.paths.iter().any(|(saved, at)| {
                relative.strip_prefix(saved).is_ok_and(|rest| selected.contains(&at.join(rest)))
            })
        };
        is_clean(&self.place, Path::new(""), &is_expected, 0)
    }
}

/// Checks a directory of saved files as [`SavedHistory::is_clean`] describes. `is_expected` says whether a file may have
/// this path, which is relative to `place`.
fn is_clean(place: &Path, relative: &Path, is_expected: &dyn Fn(&Path) -> bool, depth: usize) -> bool {
    let at = place.join(relative);
    let Ok(found) = at.symlink_metadata() else { return false };
    let mode = found.permissions().mode();
    if found.is_file() {
        return is_expected(relative) && mode & 0o177 == 0;
    }
    if !found.is_dir() || mode & 0o077 != 0 || depth > MAX_DEPTH {
        return false;
    }
    let Ok(entries) = fs::read_dir(&at) else { return false };
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.all(|name| is_clean(place, &relative.join(name), is_expected, depth + 1))
}

/// The maximum number of files that a result names in each list of [`KeptFiles`].
const MOST_NAMED: usize = 100;

fn name_files(names: &mut Vec<String>, left_out: &mut usize, copied: Vec<PathBuf>) {
    for path in copied {
        let name = path.to_string_lossy().into_owned();
        if names.contains(&name) {
            continue;
        }
        if names.len() < MOST_NAMED {
            names.push(name);
        } else {
            *left_out += 1;
        }
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| DirBuilder::new().mode(0o700).recursive(true).create(parent))
}

/// Replaces a directory with a new one whose content `fill` writes. If `fill` fails, the old directory stays.
fn replace(place: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let new = place.with_extension(format!("new-{}", std::process::id()));
    let made = DirBuilder::new().mode(0o700).recursive(true).create(&new).and_then(|()| fill(&new));
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&new);
        return Err(error);
    }
    let old = place.with_extension(format!("old-{}", std::process::id()));
    match fs::rename(place, &old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(&new, place)?;
    let _ = fs::remove_dir_all(&old);
    Ok(())
}

enum Selection {
    All,
    Patterns(GlobSet),
}

impl Selection {
    fn of<'p>(patterns: impl Iterator<Item = &'p str>) -> io::Result<Self> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            set.add(GlobBuilder::new(pattern).literal_separator(true).build().map_err(io::Error::other)?);
        }
        set.build().map(Self::Patterns).map_err(io::Error::other)
    }

    fn contains(&self, path: &Path) -> bool {
        match self {
            Self::All => true,
            Self::Patterns(set) => set.is_match(path),
        }
    }
}

/// Returns the part of a path to keep that has no pattern, and which files below it guard keeps.
fn selection_of(keep: &Path) -> io::Result<(PathBuf, Selection)> {
    let is_pattern = |part: &Component<'_>| part.as_os_str().as_encoded_bytes().contains(&b'*');
    if !keep.components().any(|part| is_pattern(&part)) {
        return Ok((keep.to_path_buf(), Selection::All));
    }
    let fixed = keep.components().take_while(|part| !is_pattern(part)).collect();
    Ok((fixed, Selection::of([keep.to_string_lossy().as_ref()].into_iter())?))
}

impl HomeState {
    /// Returns the first path in `keep` that is empty, absolute or contains `..`, and so could lead out of the
    /// private home directory.
    pub fn invalid_path(&self) -> Option<&Path> {
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        self.keep.iter().map(PathBuf::as_path).find(|path| path.as_os_str().is_empty() || !is_plain(path))
    }

    /// Copies the history, the saved files and the login into a new private home directory. Fails if the history and
    /// the files exceed the size limits. Returns the paths of the files that an earlier run has left.
    pub(crate) fn copy_into(&self, home: &Path) -> io::Result<KeptFiles> {
        let mut carried = KeptFiles::default();
        let mut copier = Copier::new(FileMode::Private);
        self.history.iter().try_for_each(|history| history.copy_into(home, &mut copier))?;
        let state = state_directory();
        for from in &self.from {
            let is_saved = state.as_ref().is_some_and(|state| from.starts_with(state));
            if is_saved {
                restrict(from, 0)?;
            }
            let is_own = self.to.as_ref() == Some(from);
            let from = &AgentPaths::from_environment()?.own_path(from)?;
            // An earlier run has left the files in the directory to which guard saves them.
            if is_own {
                self.copy_kept(from, home, &mut copier)?;
            } else {
                let mode = if is_saved { FileMode::Private } else { FileMode::Same };
                let mut users = Copier { budget: copier.budget, ..Copier::new(mode) };
                users.copy(from, home, Path::new(""), &Selection::All)?;
                copier.budget = users.budget;
            }
        }
        name_files(&mut carried.from_earlier, &mut carried.left_out, copier.copied);
        self.login.iter().try_for_each(|login| login.copy_into(home))?;
        Ok(carried)
    }

    /// Copies the files in `keep` from the directory to which guard saves them.
    fn copy_kept(&self, from: &Path, to: &Path, copier: &mut Copier) -> io::Result<()> {
        for keep in &self.keep {
            let (fixed, selected) = selection_of(keep)?;
            copier.copy_out(from, &fixed, &to.join(&fixed), &selected)?;
        }
        Ok(())
    }

    /// Saves the history and, if `to` is set, the paths in `keep` from a private home directory before guard removes
    /// it. Replaces the old copy only when the new one is complete. Adds the paths of new and changed files to `kept`.
    pub(crate) fn save_from(&self, home: &Path, kept: &mut KeptFiles) -> io::Result<()> {
        self.history.iter().try_for_each(|history| history.save_from(home, kept))?;
        let Some(to) = &self.to else { return Ok(()) };
        // The run may have put a link in place of a directory above. `replace` follows no link at the path itself.
        let to = match (to.parent(), to.file_name()) {
            (Some(parent), Some(name)) => &AgentPaths::from_environment()?.own_path(parent)?.join(name),
            _ => to,
        };
        let mut copier = Copier::new(FileMode::Private);
        replace(to, |new| {
            copier.unchanged_in = Some((to.clone(), PathBuf::new()));
            self.copy_kept(home, new, &mut copier)
        })?;
        name_files(&mut kept.for_later, &mut kept.left_out, copier.copied);
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileMode {
    /// Only the user may read and write the file, and nobody execute it.
    Private,
    /// The mode of the original.
    Same,
}

/// Copies files and directories, within limits.
struct Copier {
    budget: CopyBudget,
    mode: FileMode,
    /// The paths of the copied files, relative to the private home directory.
    copied: Vec<PathBuf>,
    /// A directory, and its path relative to the private home directory. `copied` gets no file that this directory already
    /// has with the same content.
    unchanged_in: Option<(PathBuf, PathBuf)>,
}

/// How many bytes and files guard may still copy.
#[derive(Clone, Copy)]
struct CopyBudget {
    bytes: u64,
    files: usize,
}

impl CopyBudget {
    fn new() -> Self {
        Self { bytes: MAX_BYTES, files: MAX_FILES }
    }

    /// Subtracts one file of this size from the budget. Fails if the budget is used up.
    fn spend(&mut self, bytes: u64) -> io::Result<()> {
        self.files = self.files.checked_sub(1).ok_or_else(too_large)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }
}

fn too_large() -> io::Error {
    io::Error::other(format!(
        "the files to keep between runs exceed the limit of {} MiB, {MAX_FILES} files or {MAX_DEPTH} levels of directories",
        MAX_BYTES >> 20
    ))
}

impl Copier {
    fn new(mode: FileMode) -> Self {
        Self { budget: CopyBudget::new(), mode, copied: Vec::new(), unchanged_in: None }
    }

    /// Copies one path out of a directory that an agent could write. Skips the path if it does not exist or if a component
    /// is a symbolic link, because the agent could make the link point anywhere.
    fn copy_out(&mut self, home: &Path, path: &Path, to: &Path, selected: &Selection) -> io::Result<()> {
        let mut at = home.to_path_buf();
        let has_no_link = path.components().all(|part| {
            at.push(part);
            at.symlink_metadata().is_ok_and(|data| !data.is_symlink())
        });
        if has_no_link { self.copy(&at, to, path, selected) } else { Ok(()) }
    }

    /// Copies the selected files of a directory, or one file. `path` is the path relative to the private home directory.
    /// Does nothing if there is nothing at `from`.
    fn copy(&mut self, from: &Path, to: &Path, path: &Path, selected: &Selection) -> io::Result<()> {
        self.copy_level(from, to, path, selected, 0)
    }

    fn copy_level(
        &mut self,
        from: &Path,
        to: &Path,
        path: &Path,
        selected: &Selection,
        depth: usize,
    ) -> io::Result<()> {
        let data = match from.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            data => data?,
        };
        if data.is_file() {
            if !selected.contains(path) {
                return Ok(());
            }
            self.budget.spend(data.len())?;
            make_parent(to)?;
            copy_file(from, to, data.len(), self.mode)?;
            if !self.is_unchanged(to, path) {
                self.copied.push(path.to_path_buf());
            }
        } else if data.is_dir() {
            if depth > MAX_DEPTH {
                return Err(too_large());
            }
            self.budget.spend(0)?;
            if matches!(selected, Selection::All) {
                DirBuilder::new().mode(0o700).recursive(true).create(to)?;
            }
            for entry in fs::read_dir(from)? {
                let name = entry?.file_name();
                self.copy_level(&from.join(&name), &to.join(&name), &path.join(&name), selected, depth + 1)?;
            }
        }
        Ok(())
    }

    fn is_unchanged(&self, copy: &Path, path: &Path) -> bool {
        let Some((place, at)) = &self.unchanged_in else { return false };
        let Ok(rest) = path.strip_prefix(at) else { return false };
        let read = |path: &Path| {
            let file = open_regular_file(path, MAX_BYTES, Links::Refuse).ok()?;
            Some((file.metadata().ok()?.len(), file))
        };
        let (Some((old_size, old)), Some((size, new))) = (read(&place.join(rest)), read(copy)) else {
            return false;
        };
        old_size == size && has_same_content(old, new).unwrap_or(false)
    }
}

fn has_same_content(first: fs::File, second: fs::File) -> io::Result<bool> {
    let (mut first, mut second) = (io::BufReader::new(first), io::BufReader::new(second));
    let (mut ours, mut theirs) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = first.read(&mut ours)?;
        if count == 0 {
            return Ok(true);
        }
        second.read_exact(&mut theirs[..count])?;
        if ours[..count] != theirs[..count] {
            return Ok(false);
        }
    }
}

/// Copies a regular file of `size` bytes. Follows no link at either path.
fn copy_file(from: &Path, to: &Path, size: u64, mode: FileMode) -> io::Result<()> {
    let source = open_regular_file(from, size, Links::Refuse)?;
    let permissions = match mode {
        FileMode::Private => fs::Permissions::from_mode(0o600),
        FileMode::Same => source.metadata()?.permissions(),
    };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut target = options.open(to)?;
    io::copy(&mut source.take(size), &mut target)?;
    target.set_permissions(permissions)
}

/// Removes the executable bits of saved files, which earlier versions of guard saved with their modes.
fn restrict(saved: &Path, depth: usize) -> io::Result<()> {
    let data = match saved.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        data => data?,
    };
    let mode = data.permissions().mode();
    if data.is_file() && mode & 0o7177 != 0 {
        return fs::set_permissions(saved, fs::Permissions::from_mode(0o600));
    }
    if !data.is_dir() || depth > MAX_DEPTH {
        return Ok(());
    }
    if mode & 0o7077 != 0 {
        fs::set_permissions(saved, fs::Permissions::from_mode(0o700))?;
    }
    fs::read_dir(saved)?.try_for_each(|entry| restrict(&entry?.path(), depth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_of_several_runs_are_added_up() {
        let root = std::env::temp_dir().join(format!("guard-history-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let history = |directory: &str| SavedHistory {
            place: root.join("kept/one"),
            paths: vec![("chats".into(), format!("projects/{directory}").into())],
            conversations: vec![
                format!("projects/{directory}/*.jsonl"),
                format!("projects/{directory}/*/tools/*"),
            ],
        };
        for (directory, file) in [("first", "a.jsonl"), ("second", "b.jsonl")] {
            let home = root.join(directory);
            let project = home.join("projects").join(directory);
            ok(fs::create_dir_all(project.join("session/tools")));
            ok(fs::create_dir_all(project.join("memory")));
            ok(fs::write(project.join(file), file));
            ok(fs::set_permissions(project.join(file), fs::Permissions::from_mode(0o777)));
            ok(fs::write(project.join("session/tools").join(file), file));
            for other in ["memory/MEMORY.md", "settings.json", "session/tools.sh"] {
                ok(fs::write(project.join(other), "obey"));
            }
            let mut kept = KeptFiles::default();
            ok(history(directory).save_from(&home, &mut kept));
            assert_eq!(kept.for_later.len(), 2, "{kept:?}");
            assert!(kept.for_later.contains(&format!("projects/{directory}/{file}")), "{kept:?}");
        }
        let saved = root.join("kept/one/chats");
        assert_eq!(ok(saved.join("a.jsonl").metadata()).permissions().mode() & 0o777, 0o600);
        assert_eq!(ok(saved.join("session").metadata()).permissions().mode() & 0o777, 0o700);
        // An earlier version of guard has saved these files.
        ok(fs::create_dir(saved.join("memory")));
        ok(fs::write(saved.join("memory/MEMORY.md"), "obey"));
        ok(fs::set_permissions(saved.join("b.jsonl"), fs::Permissions::from_mode(0o755)));
        ok(std::os::unix::fs::symlink("/etc/passwd", saved.join("c.jsonl")));
        let home = root.join("third");
        let mut copier = Copier::new(FileMode::Private);
        ok(history("third").copy_into(&home, &mut copier));
        assert_eq!(copier.copied.len(), 4, "{:?}", copier.copied);
        for place in [home.join("projects/third"), saved] {
            for file in ["a.jsonl", "b.jsonl", "session/tools/a.jsonl"] {
                let file = place.join(file);
                assert!(!ok(fs::read_to_string(&file)).is_empty());
                assert_eq!(ok(file.metadata()).permissions().mode() & 0o777, 0o600, "{}", file.display());
            }
            for other in ["memory", "settings.json", "session/tools.sh", "c.jsonl"] {
                assert!(place.join(other).symlink_metadata().is_err(), "{other}");
            }
        }
        // A file that the run has not changed is not new.
        let mut kept = KeptFiles::default();
        ok(fs::write(home.join("projects/third/a.jsonl"), "changed"));
        ok(history("third").save_from(&home, &mut kept));
        assert_eq!(kept.for_later, ["projects/third/a.jsonl"]);
        let _ = fs::remove_dir_all(&root);
    }

    fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn only_plain_files_are_kept() {
        let root = std::env::temp_dir().join(format!("guard-belongings-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (home, store) = (root.join("home"), root.join("store"));
        fs::create_dir_all(home.join("a/b")).unwrap_or_else(|error| panic!("{error}"));
        fs::write(home.join("a/b/file"), "kept").unwrap_or_else(|error| panic!("{error}"));
        fs::write(home.join("other"), "not kept").unwrap_or_else(|error| panic!("{error}"));
        for (target, link) in [("/etc", "a/etc"), ("/etc/passwd", "a/passwd"), ("/etc", "linked")] {
            std::os::unix::fs::symlink(target, home.join(link)).unwrap_or_else(|error| panic!("{error}"));
        }
        let home_state = HomeState {
            from: vec![store.clone()],
            to: Some(store.clone()),
            keep: ["a", "linked/passwd", "missing"].map(PathBuf::from).to_vec(),
            ..HomeState::default()
        };
        ok(home_state.save_from(&home, &mut KeptFiles::default()));
        assert_eq!(fs::read_to_string(store.join("a/b/file")).unwrap_or_default(), "kept");
        for gone in ["a/etc", "a/passwd", "linked", "other", "missing"] {
            assert!(store.join(gone).symlink_metadata().is_err(), "{gone}");
        }
        let next = root.join("next");
        fs::create_dir(&next).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(ok(home_state.copy_into(&next)).from_earlier, ["a/b/file"]);
        assert_eq!(fs::read_to_string(next.join("a/b/file")).unwrap_or_default(), "kept");
        // A pattern keeps only the files that it matches.
        let by_pattern = HomeState { keep: vec![PathBuf::from("a/*/f*")], ..home_state };
        ok(fs::write(home.join("a/b/other"), "not kept"));
        ok(fs::set_permissions(home.join("a/b/file"), fs::Permissions::from_mode(0o755)));
        let mut kept = KeptFiles::default();
        ok(by_pattern.save_from(&home, &mut kept));
        assert!(store.join("a/b/file").exists() && !store.join("a/b/other").exists());
        assert_eq!(ok(store.join("a/b/file").metadata()).permissions().mode() & 0o777, 0o600);
        assert!(kept.for_later.is_empty(), "{kept:?}");
        for bad in ["", "..", "a/../..", "/etc"] {
            let home_state = HomeState { keep: vec![PathBuf::from(bad)], ..HomeState::default() };
            assert!(home_state.invalid_path().is_some(), "{bad}");
        }
        let _ = fs::remove_dir_all(&root);
    }
}
