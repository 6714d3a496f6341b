//! Saves files of a conversation between its runs. Every run has a new private home directory: guard copies the files
//! into it before the run, and out of it afterwards.
//!
//! An agent has written these files. So guard copies them only when all processes of the run have ended, copies only
//! regular files and directories, and only within size limits. It must never follow a symbolic link.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::login::CopiedLogin;

/// The maximum number of bytes that guard copies into or out of a private home directory.
const MAX_BYTES: u64 = 512 << 20;
/// The maximum number of files and directories that guard copies into or out of a private home directory.
const MAX_FILES: usize = 20_000;
/// The maximum depth of directories that guard copies into or out of a private home directory.
const MAX_DEPTH: usize = 32;

/// The initial content of a run's private home directory, and which of its files guard saves for the next run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HomeState {
    /// Directories whose contents guard copies into the private home directory before the run. Files from a later
    /// directory overwrite those from an earlier one.
    pub from: Vec<PathBuf>,
    /// The directory to which guard saves the paths in `keep` after the run.
    pub to: Option<PathBuf>,
    /// The paths that guard saves after the run, relative to the private home directory.
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
    /// The files and directories of the history: (path below `place`, path below the private home directory).
    pub paths: Vec<(PathBuf, PathBuf)>,
}

impl SavedHistory {
    fn copy_into(&self, home: &Path, budget: &mut CopyBudget) -> io::Result<()> {
        for (saved, at) in &self.paths {
            let (from, to) = (self.place.join(saved), home.join(at));
            if from.symlink_metadata().is_ok() {
                make_parent(&to)?;
                copy(&from, &to, budget, 0)?;
            }
        }
        Ok(())
    }

    /// Adds the history in a private home directory to the saved history. A file of the run replaces a saved file with
    /// the same path. If both together are too large, guard keeps only the history of this run. A lock serializes runs
    /// that end at the same time.
    fn save_from(&self, home: &Path) -> io::Result<()> {
        make_parent(&self.place)?;
        let lock = fs::File::options().create(true).append(true).open(self.place.with_extension("lock"))?;
        lock.lock()?;
        let save = |with_old: bool| {
            replace(&self.place, |new| {
                let mut budget = CopyBudget::new();
                if with_old && self.place.exists() {
                    copy(&self.place, new, &mut budget, 0)?;
                }
                for (saved, at) in &self.paths {
                    copy_out(home, at, &new.join(saved), &mut budget)?;
                }
                Ok(())
            })
        };
        // If old and new history together exceed the size limit, save only the new one.
        save(true).or_else(|_| save(false))
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

/// Copies one path out of a private home directory. Skips the path if it does not exist or if a component is a symbolic
/// link, because the agent could make the link point anywhere.
fn copy_out(home: &Path, path: &Path, to: &Path, budget: &mut CopyBudget) -> io::Result<()> {
    let mut at = home.to_path_buf();
    let has_no_link = path.components().all(|part| {
        at.push(part);
        at.symlink_metadata().is_ok_and(|data| !data.is_symlink())
    });
    if !has_no_link {
        return Ok(());
    }
    make_parent(to)?;
    copy(&at, to, budget, 0)
}

impl HomeState {
    /// Returns the first path in `keep` that is empty, absolute or contains `..`, and so could lead out of the
    /// private home directory.
    pub fn invalid_path(&self) -> Option<&Path> {
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        self.keep.iter().map(PathBuf::as_path).find(|path| path.as_os_str().is_empty() || !is_plain(path))
    }

    /// Copies the history, the saved files and the login into a new private home directory. Fails if the history and
    /// the files exceed the size limits.
    pub(crate) fn copy_into(&self, home: &Path) -> io::Result<()> {
        let mut budget = CopyBudget::new();
        self.history.iter().try_for_each(|history| history.copy_into(home, &mut budget))?;
        self.from.iter().try_for_each(|from| copy(from, home, &mut budget, 0))?;
        self.login.iter().try_for_each(|login| login.copy_into(home))
    }

    /// Saves the history and, if `to` is set, the paths in `keep` from a private home directory before guard removes
    /// it. Replaces the old copy only when the new one is complete.
    pub(crate) fn save_from(&self, home: &Path) -> io::Result<()> {
        self.history.iter().try_for_each(|history| history.save_from(home))?;
        let Some(to) = &self.to else { return Ok(()) };
        let mut budget = CopyBudget::new();
        replace(to, |new| {
            self.keep.iter().try_for_each(|path| copy_out(home, path, &new.join(path), &mut budget))
        })
    }
}

/// How many bytes and files guard may still copy.
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

fn copy(from: &Path, to: &Path, budget: &mut CopyBudget, depth: usize) -> io::Result<()> {
    let data = from.symlink_metadata()?;
    if data.is_file() {
        budget.spend(data.len())?;
        fs::copy(from, to)?;
    } else if data.is_dir() {
        if depth > MAX_DEPTH {
            return Err(too_large());
        }
        budget.spend(0)?;
        match DirBuilder::new().mode(0o700).create(to) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), budget, depth + 1)?;
        }
    }
    Ok(())
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
        };
        for (directory, file) in [("first", "a"), ("second", "b")] {
            let home = root.join(directory);
            fs::create_dir_all(home.join("projects").join(directory))
                .unwrap_or_else(|error| panic!("{error}"));
            fs::write(home.join("projects").join(directory).join(file), file)
                .unwrap_or_else(|error| panic!("{error}"));
            history(directory).save_from(&home).unwrap_or_else(|error| panic!("{error}"));
        }
        let home = root.join("third");
        history("third").copy_into(&home, &mut CopyBudget::new()).unwrap_or_else(|error| panic!("{error}"));
        for file in ["a", "b"] {
            assert_eq!(fs::read_to_string(home.join("projects/third").join(file)).unwrap_or_default(), file);
        }
        let _ = fs::remove_dir_all(&root);
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
        home_state.save_from(&home).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(store.join("a/b/file")).unwrap_or_default(), "kept");
        for gone in ["a/etc", "a/passwd", "linked", "other", "missing"] {
            assert!(store.join(gone).symlink_metadata().is_err(), "{gone}");
        }
        let next = root.join("next");
        fs::create_dir(&next).unwrap_or_else(|error| panic!("{error}"));
        home_state.copy_into(&next).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(next.join("a/b/file")).unwrap_or_default(), "kept");
        for bad in ["", "..", "a/../..", "/etc"] {
            let home_state = HomeState { keep: vec![PathBuf::from(bad)], ..HomeState::default() };
            assert!(home_state.invalid_path().is_some(), "{bad}");
        }
        let _ = fs::remove_dir_all(&root);
    }
}
