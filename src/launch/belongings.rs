//! What a conversation keeps of its private homes: brought into the next one, taken out of the last.
//!
//! The files were written by an agent. They are taken when nothing of it runs any more, as plain files and folders only,
//! within bounds; whatever else lies there stays there.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

/// What is kept of one home at most.
const MOST_BYTES: u64 = 512 << 20;
const MOST_FILES: usize = 20_000;
const DEEPEST: usize = 32;

/// Where a run's home comes from, and what of it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Belongings {
    /// Folders whose content is in the home from the beginning; what a later one has replaces an earlier one's.
    pub from: Vec<PathBuf>,
    /// A folder that gets what is kept.
    pub to: Option<PathBuf>,
    /// What of the home that is.
    pub keep: Vec<PathBuf>,
}

impl Belongings {
    /// A path that could lead out of the home.
    pub fn bad_path(&self) -> Option<&Path> {
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        self.keep.iter().map(PathBuf::as_path).find(|path| path.as_os_str().is_empty() || !is_plain(path))
    }

    /// Puts them into a new home.
    pub(super) fn bring(&self, home: &Path) -> io::Result<()> {
        let mut bounds = Bounds::new();
        self.from.iter().try_for_each(|from| copy(from, home, &mut bounds, 0))
    }

    /// Takes them out of a home that is about to go. What was kept before is replaced when all is there.
    pub(super) fn take(&self, home: &Path) -> io::Result<()> {
        let Some(to) = &self.to else { return Ok(()) };
        let new = to.with_extension(format!("new-{}", std::process::id()));
        let made = self.gather(home, &new);
        if let Err(error) = made {
            let _ = fs::remove_dir_all(&new);
            return Err(error);
        }
        let old = to.with_extension(format!("old-{}", std::process::id()));
        match fs::rename(to, &old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&new, to)?;
        let _ = fs::remove_dir_all(&old);
        Ok(())
    }

    fn gather(&self, home: &Path, new: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).recursive(true).create(new)?;
        let mut bounds = Bounds::new();
        for path in &self.keep {
            // Every step on the way: a link that the agent made in between leads elsewhere.
            let mut at = home.to_path_buf();
            let is_real = path.components().all(|part| {
                at.push(part);
                at.symlink_metadata().is_ok_and(|data| !data.is_symlink())
            });
            if is_real {
                let parent = path.parent().unwrap_or(Path::new(""));
                DirBuilder::new().mode(0o700).recursive(true).create(new.join(parent))?;
                copy(&home.join(path), &new.join(path), &mut bounds, 0)?;
            }
        }
        Ok(())
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
        let belongings = Belongings {
            from: vec![store.clone()],
            to: Some(store.clone()),
            keep: ["a", "linked/passwd", "missing"].map(PathBuf::from).to_vec(),
        };
        belongings.take(&home).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(store.join("a/b/file")).unwrap_or_default(), "kept");
        for gone in ["a/etc", "a/passwd", "linked", "other", "missing"] {
            assert!(store.join(gone).symlink_metadata().is_err(), "{gone}");
        }
        let next = root.join("next");
        fs::create_dir(&next).unwrap_or_else(|error| panic!("{error}"));
        belongings.bring(&next).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(next.join("a/b/file")).unwrap_or_default(), "kept");
        for bad in ["", "..", "a/../..", "/etc"] {
            let belongings = Belongings { keep: vec![PathBuf::from(bad)], ..Belongings::default() };
            assert!(belongings.bad_path().is_some(), "{bad}");
        }
        let _ = fs::remove_dir_all(&root);
    }
}
