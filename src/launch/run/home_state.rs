//! The files that a conversation keeps between the private homes of its runs: copied into a new home before a run, and
//! out of it afterwards.
//!
//! An agent has written these files. They are copied only when no process of the run is alive, only regular files and
//! directories, and only within size limits. Symbolic links must never be followed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::login::CopiedLogin;

/// The most bytes kept of one home.
const MOST_BYTES: u64 = 512 << 20;
const MOST_FILES: usize = 20_000;
const DEEPEST: usize = 32;

/// The initial content of a run's home, and what is kept of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HomeState {
    /// Directories to copy into the home at the start. A later one overwrites files of an earlier one.
    pub from: Vec<PathBuf>,
    /// The directory that receives what is kept.
    pub to: Option<PathBuf>,
    /// The paths in the home to keep.
    pub keep: Vec<PathBuf>,
    /// The program's own history of conversations.
    pub history: Option<SavedHistory>,
    /// The login that the program gets a copy of.
    pub login: Option<CopiedLogin>,
}

/// What a program keeps of its conversations between runs in one repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SavedHistory {
    /// The directory it is kept in.
    pub place: PathBuf,
    /// Files and directories: (path below that directory, path below the home).
    pub paths: Vec<(PathBuf, PathBuf)>,
}

impl SavedHistory {
    fn bring(&self, home: &Path, bounds: &mut Bounds) -> io::Result<()> {
        for (kept, at) in &self.paths {
            let (from, to) = (self.place.join(kept), home.join(at));
            if from.symlink_metadata().is_ok() {
                make_parent(&to)?;
                copy(&from, &to, bounds, 0)?;
            }
        }
        Ok(())
    }

    /// Adds the home's history to what was kept before. A lock serializes runs that end at the same time.
    fn take(&self, home: &Path) -> io::Result<()> {
        make_parent(&self.place)?;
        let lock = fs::File::options().create(true).append(true).open(self.place.with_extension("lock"))?;
        lock.lock()?;
        let gather = |with_old: bool| {
            replace(&self.place, |new| {
                let mut bounds = Bounds::new();
                if with_old && self.place.exists() {
                    copy(&self.place, new, &mut bounds, 0)?;
                }
                self.paths.iter().try_for_each(|(kept, at)| take_one(home, at, &new.join(kept), &mut bounds))
            })
        };
        // Over the size limit with the older history: keep only the new one.
        gather(true).or_else(|_| gather(false))
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| DirBuilder::new().mode(0o700).recursive(true).create(parent))
}

/// Replaces a directory by a new one that `fill` has filled.
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

/// Copies one path out of a home, unless a component is a symbolic link: the agent could point it anywhere.
fn take_one(home: &Path, path: &Path, to: &Path, bounds: &mut Bounds) -> io::Result<()> {
    let mut at = home.to_path_buf();
    let is_real = path.components().all(|part| {
        at.push(part);
        at.symlink_metadata().is_ok_and(|data| !data.is_symlink())
    });
    if !is_real {
        return Ok(());
    }
    make_parent(to)?;
    copy(&at, to, bounds, 0)
}

impl HomeState {
    /// The first path in `keep` that could lead out of the home.
    pub fn bad_path(&self) -> Option<&Path> {
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        self.keep.iter().map(PathBuf::as_path).find(|path| path.as_os_str().is_empty() || !is_plain(path))
    }

    /// Copies history, kept files and login into a new home.
    pub(crate) fn bring(&self, home: &Path) -> io::Result<()> {
        let mut bounds = Bounds::new();
        self.history.iter().try_for_each(|history| history.bring(home, &mut bounds))?;
        self.from.iter().try_for_each(|from| copy(from, home, &mut bounds, 0))?;
        self.login.iter().try_for_each(|login| login.bring(home))
    }

    /// Copies what is kept out of a home that is about to be removed. Replaces the old copy only when the new one is
    /// complete.
    pub(crate) fn take(&self, home: &Path) -> io::Result<()> {
        self.history.iter().try_for_each(|history| history.take(home))?;
        let Some(to) = &self.to else { return Ok(()) };
        let mut bounds = Bounds::new();
        replace(to, |new| {
            self.keep.iter().try_for_each(|path| take_one(home, path, &new.join(path), &mut bounds))
        })
    }
}

struct Bounds {
    bytes: u64,
    files: usize,
}

impl Bounds {
    fn new() -> Self {
        Self { bytes: MOST_BYTES, files: MOST_FILES }
    }

    fn take(&mut self, bytes: u64) -> io::Result<()> {
        self.files = self.files.checked_sub(1).ok_or_else(too_much)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(too_much)?;
        Ok(())
    }
}

fn too_much() -> io::Error {
    io::Error::other("more than a conversation may keep of its home")
}

fn copy(from: &Path, to: &Path, bounds: &mut Bounds, depth: usize) -> io::Result<()> {
    let data = from.symlink_metadata()?;
    if data.is_file() {
        bounds.take(data.len())?;
        fs::copy(from, to)?;
    } else if data.is_dir() {
        if depth > DEEPEST {
            return Err(too_much());
        }
        bounds.take(0)?;
        match DirBuilder::new().mode(0o700).create(to) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), bounds, depth + 1)?;
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
            history(directory).take(&home).unwrap_or_else(|error| panic!("{error}"));
        }
        let home = root.join("third");
        history("third").bring(&home, &mut Bounds::new()).unwrap_or_else(|error| panic!("{error}"));
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
        home_state.take(&home).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(store.join("a/b/file")).unwrap_or_default(), "kept");
        for gone in ["a/etc", "a/passwd", "linked", "other", "missing"] {
            assert!(store.join(gone).symlink_metadata().is_err(), "{gone}");
        }
        let next = root.join("next");
        fs::create_dir(&next).unwrap_or_else(|error| panic!("{error}"));
        home_state.bring(&next).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(next.join("a/b/file")).unwrap_or_default(), "kept");
        for bad in ["", "..", "a/../..", "/etc"] {
            let home_state = HomeState { keep: vec![PathBuf::from(bad)], ..HomeState::default() };
            assert!(home_state.bad_path().is_some(), "{bad}");
        }
        let _ = fs::remove_dir_all(&root);
    }
}
