//! Opens directories of the checkout around the current directory without following links below its top: an agent may
//! have written or committed them, and they may lead to any file of the user.

use std::path::{Path, PathBuf};

use crate::session::Failure;
use crate::sys::directory::{Directory, DirectoryError};

/// The git checkout that contains the current directory.
pub(crate) struct Checkout {
    top: Directory,
}

impl Checkout {
    /// Finds the checkout around the current directory; `None` if there is none.
    pub(crate) fn here() -> Result<Option<Self>, Failure> {
        let current = std::env::current_dir().unwrap_or_default();
        let found = current.ancestors().enumerate().find(|(_, level)| level.join(".git").exists());
        let Some((levels, root)) = found else { return Ok(None) };
        match Directory::above_current(levels, root) {
            Ok(top) => Ok(Some(Self { top })),
            Err(error) => Err(Failure::usage(
                format!("cannot open {}: {error}", root.display()),
                "check the owner and mode of the directory",
            )),
        }
    }

    /// Returns the path of the checkout's top directory.
    pub(crate) fn root(&self) -> &Path {
        self.top.path()
    }

    /// Returns the open top directory.
    pub(crate) fn top(&self) -> &Directory {
        &self.top
    }

    /// Opens a directory of the checkout, given by its path below the top; `None` if it does not exist. With `creates`,
    /// creates it. Fails if a part of the path is a link.
    pub(crate) fn directory(&self, path: &Path, creates: bool) -> Result<Option<Directory>, Failure> {
        match self.top.below(path, creates) {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(unusable(&self.root().join(path), &error)),
        }
    }
}

/// Returns the error for a directory that guard does not use.
pub(crate) fn unusable(path: &Path, error: &DirectoryError) -> Failure {
    match error {
        DirectoryError::Link(link) => Failure::usage(
            format!("{} is a symbolic link, so guard reads and writes nothing through it", link.display()),
            "an agent may have made the link; replace it with a directory",
        ),
        error => Failure::usage(
            format!("cannot use {}: {error}", path.display()),
            "check the owner and mode of the directory",
        ),
    }
}

/// Returns the directory and the name of a file, which are the parts of a path that guard opens separately.
pub(crate) fn split(path: &Path) -> Option<(PathBuf, &std::ffi::OsStr)> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some((parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf), path.file_name()?))
}
