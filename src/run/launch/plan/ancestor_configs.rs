//! Finds configuration files in the directories above the working directory. Build tools look for such files up to
//! the root directory, and some tools fail if they may not read one that exists. So guard grants the run read access
//! to such a file, unless the file seems to contain a secret.
//!
//! An agent that worked in such a directory earlier may have created the file. So guard never grants access to
//! symbolic or hard links, because the agent could then read the files to which they lead.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, faccessat};

use super::launch_plan::LaunchPlan;
use crate::sandbox::{Grant, Rights};

/// Files that make cargo, rustup, rustfmt or pytest fail if they exist but cannot be read. Other tools (node, npm, git,
/// clippy) ignore such files.
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

/// The maximum size of a directory for which guard lists the entries instead of checking each name, in bytes. On file
/// systems where the size grows with the number of files, such a directory hardly has more than a hundred files.
const SMALL_DIRECTORY_BYTES: u64 = 4096;
/// The maximum number of entries that guard lists in a directory. In a larger directory it checks each name.
const MAX_ENTRIES: usize = 200;
/// The maximum size of a configuration file that guard lets the run read, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Words, in lower case, that suggest that a file contains a secret.
const SECRET_WORDS: [&str; 9] =
    ["token", "passw", "secret", "credential", "api_key", "apikey", "api-key", "_auth", "private key"];

/// The configuration files above a working directory that the run could not read without a further grant.
#[derive(Debug, Default)]
pub(crate) struct AncestorConfigs {
    /// Read access to the files that do not seem to contain a secret.
    pub(crate) grants: Vec<Grant>,
    /// Files that guard does not let the run read: (path, reason). The reason completes "the file, which …".
    pub(crate) withheld: Vec<(PathBuf, &'static str)>,
}

/// Finds the configuration files in the directories above `directory` that the run may not read yet, according to
/// `grants`.
pub(crate) fn find_ancestor_configs(directory: &Path, grants: &[Grant]) -> AncestorConfigs {
    let mut above = AncestorConfigs::default();
    let is_granted = |path: &Path| grants.iter().any(|grant| path.starts_with(&grant.path));
    for directory in directory.ancestors().skip(1) {
        for name in configs_in(directory) {
            let path = directory.join(name);
            let Ok(real) = path.canonicalize() else { continue };
            if is_granted(&real) {
                continue;
            }
            let is_link = directory.canonicalize().map_or(true, |directory| directory.join(name) != real);
            match if is_link { Some("is a symbolic link") } else { reason_to_withhold(&real) } {
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

/// Returns the names of the configuration files that exist in a directory. There are many names and rarely a match,
/// so guard lists a small directory once instead of checking every name with a system call.
fn configs_in(directory: &Path) -> Vec<&'static str> {
    let is_small = directory.metadata().is_ok_and(|found| found.len() <= SMALL_DIRECTORY_BYTES);
    let entries = if is_small { std::fs::read_dir(directory).ok() } else { None };
    let names = |entries: std::fs::ReadDir| -> Vec<_> {
        entries.take(MAX_ENTRIES + 1).flatten().map(|entry| entry.file_name()).collect()
    };
    let listed = entries.map(names).filter(|listed| listed.len() <= MAX_ENTRIES);
    let mut opened = None;
    let mut exists = |name: &str| {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let opened = opened.get_or_insert_with(|| open(directory, flags, Mode::empty()));
        opened
            .as_ref()
            .is_ok_and(|opened| faccessat(opened, name, AccessFlags::F_OK, AtFlags::empty()).is_ok())
    };
    let may_exist = |name: &str| {
        let first = name.split('/').next();
        listed.as_ref().is_none_or(|listed| listed.iter().any(|entry| entry.to_str() == first))
    };
    NAMES.into_iter().filter(|name| may_exist(name) && exists(name)).collect()
}

/// Returns why guard does not let the run read a configuration file; `None` if the run may read it.
fn reason_to_withhold(path: &Path) -> Option<&'static str> {
    let mut text = Vec::new();
    // Check the file's type before opening it, because opening a named pipe would block.
    if !path.symlink_metadata().is_ok_and(|found| found.is_file() && found.nlink() == 1) {
        return Some("is not a regular file or has hard links");
    }
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text));
    match read {
        Err(_) => Some("your user cannot read"),
        Ok(count) if count as u64 > MAX_BYTES => Some("is too large for a configuration file"),
        Ok(_) if may_hold_secret(&text) => Some("may hold a secret"),
        Ok(_) => None,
    }
}

/// Returns true if a text may contain a secret: it has a word that suggests one, or a URL with a user name or
/// password.
fn may_hold_secret(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_lowercase();
    let has_user = |rest: &str| {
        rest.split(|c: char| c == '/' || c.is_whitespace()).next().is_some_and(|host| host.contains('@'))
    };
    SECRET_WORDS.iter().any(|word| text.contains(word)) || text.split("://").skip(1).any(has_user)
}

impl LaunchPlan {
    /// Returns true if the run's mounts hide or replace a path.
    pub(crate) fn view_covers(&self, path: &Path) -> bool {
        self.view.own().chain(&self.view.hidden).any(|directory| path.starts_with(directory))
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
