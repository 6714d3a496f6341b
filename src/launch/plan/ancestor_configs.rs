//! Finds configuration files in the directories above the working directory. Build tools look for them up to the root,
//! and some fail if they may not read one that exists. So the run may read such a file, unless it seems to hold a
//! secret.
//!
//! An agent that worked in such a directory before may have created the file. So symbolic and hard links are never
//! granted: they would expose whatever they lead to.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, faccessat};

use super::LaunchPlan;
use crate::sandbox::{Grant, Rights};

/// Files that are known to make cargo, rustup, rustfmt and pytest fail. Other tools (node, npm, git, clippy) continue.
const NAMES: [&str; 14] = [
    ".cargo/config.toml",
    ".cargo/config",
    "Cargo.toml",
    "rust-toolchain.toml",
    "rust-toolchain",
    "rustfmt.toml",
    ".rustfmt.toml",
    "pytest.toml",
    ".pytest.toml",
    "pytest.ini",
    ".pytest.ini",
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
];

/// A directory of at most this size has hardly more than a hundred files, on file systems where the size grows with
/// them.
const SHORT: u64 = 4096;
/// The most entries of a directory that are listed.
const MOST_ENTRIES: usize = 200;
/// A longer file is not granted.
const MOST_BYTES: u64 = 64 << 10;

/// Words that suggest a secret nearby, in lower case.
const WORDS: [&str; 9] =
    ["token", "passw", "secret", "credential", "api_key", "apikey", "api-key", "_auth", "private key"];

/// Configuration files above a working directory.
#[derive(Debug, Default)]
pub(crate) struct AncestorConfigs {
    /// Files that the run may read.
    pub(crate) grants: Vec<Grant>,
    /// Files that are not granted: (path, reason).
    pub(crate) withheld: Vec<(PathBuf, &'static str)>,
}

/// The configuration files above a directory that `grants` do not cover already.
pub(crate) fn settings_above(folder: &Path, grants: &[Grant]) -> AncestorConfigs {
    let mut above = AncestorConfigs::default();
    let is_granted = |path: &Path| grants.iter().any(|grant| path.starts_with(&grant.path));
    for folder in folder.ancestors().skip(1) {
        for name in names_in(folder) {
            let path = folder.join(name);
            let Ok(real) = path.canonicalize() else { continue };
            if is_granted(&real) {
                continue;
            }
            let is_link = folder.canonicalize().map_or(true, |folder| folder.join(name) != real);
            match if is_link { Some("is a link") } else { why_not(&real) } {
                None => above.grants.push(Grant {
                    path: real,
                    rights: Rights::Read,
                    why: "settings above the working directory".to_string(),
                }),
                Some(why) => above.withheld.push((path, why)),
            }
        }
    }
    above
}

/// The configuration files that exist in a directory. There are many names and rarely a match, so a small directory is
/// listed once instead of one `stat` for each name.
fn names_in(folder: &Path) -> Vec<&'static str> {
    let is_short = folder.metadata().is_ok_and(|found| found.len() <= SHORT);
    let entries = if is_short { std::fs::read_dir(folder).ok() } else { None };
    let names = |entries: std::fs::ReadDir| -> Vec<_> {
        entries.take(MOST_ENTRIES + 1).flatten().map(|entry| entry.file_name()).collect()
    };
    let listed = entries.map(names).filter(|listed| listed.len() <= MOST_ENTRIES);
    let mut opened = None;
    let mut is_there = |name: &str| {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let folder = opened.get_or_insert_with(|| open(folder, flags, Mode::empty()));
        folder
            .as_ref()
            .is_ok_and(|folder| faccessat(folder, name, AccessFlags::F_OK, AtFlags::empty()).is_ok())
    };
    let may_be_there = |name: &str| {
        let first = name.split('/').next();
        listed.as_ref().is_none_or(|listed| listed.iter().any(|entry| entry.to_str() == first))
    };
    NAMES.into_iter().filter(|name| may_be_there(name) && is_there(name)).collect()
}

/// Why a file is not granted, if so.
fn why_not(path: &Path) -> Option<&'static str> {
    let mut text = Vec::new();
    // Opening a pipe of this name would block.
    if !path.symlink_metadata().is_ok_and(|found| found.is_file() && found.nlink() == 1) {
        return Some("is no plain file");
    }
    let read = std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut text));
    match read {
        Err(_) => Some("cannot be read"),
        Ok(count) if count as u64 > MOST_BYTES => Some("is too long for settings"),
        Ok(_) if may_hold_secret(&text) => Some("may hold a secret"),
        Ok(_) => None,
    }
}

/// Whether a text may hold a secret: it has a word that suggests one, or an address with user name and password.
fn may_hold_secret(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_lowercase();
    let has_user = |rest: &str| {
        rest.split(|c: char| c == '/' || c.is_whitespace()).next().is_some_and(|host| host.contains('@'))
    };
    WORDS.iter().any(|word| text.contains(word)) || text.split("://").skip(1).any(has_user)
}

impl LaunchPlan {
    /// Whether the run's mounts hide or replace a path.
    pub(crate) fn view_covers(&self, path: &Path) -> bool {
        self.view.own().chain(&self.view.hidden).any(|folder| path.starts_with(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::may_hold_secret;

    #[test]
    fn words_and_addresses_that_may_hold_a_secret() {
        for text in [
            "[registry]\ntoken = \"x\"",
            "[http]\nproxy = \"http://me:pw@proxy:8080\"",
            "[env]\nAPI_KEY = \"1\"",
            "index = \"sparse+https://x@host/index\"",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "PASSWORD=1",
        ] {
            assert!(may_hold_secret(text.as_bytes()), "{text}");
        }
        for text in [
            "[build]\njobs = 2\n# ask me@example.com",
            "[source.x]\nregistry = \"https://host/a@b\"",
            "[target.x]\nlinker = \"clang\"",
            "",
        ] {
            assert!(!may_hold_secret(text.as_bytes()), "{text}");
        }
        assert!(!may_hold_secret(b"\xff\xfe://"));
    }
}
