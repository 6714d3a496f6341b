//! Finds directories of the user who runs guard.

use std::path::PathBuf;

use crate::judge::policy::Config;

/// Returns the directory of the user's configuration and policies; `None` if the environment names no such directory.
pub(crate) fn config_dir() -> Option<PathBuf> {
    Config::place()?.parent().map(PathBuf::from)
}

/// Returns the home directory that the variable `HOME` names; `None` unless it is an absolute path.
pub(crate) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}
