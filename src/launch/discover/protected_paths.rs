//! The paths in the user's home that must never be granted, whoever asks for them.
//!
//! Environment variables and symbolic links name toolchain directories, and anything may have set them. So this module
//! alone refuses the home itself, its ancestors, and every path that holds keys or passwords.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files and directories below a home that hold keys, passwords, tokens or typed input. Neither they, nor what is in
/// them, nor their ancestors are granted.
const SECRETS: &[&str] = &[
    ".anthropic",
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/config",
    ".cargo/config.toml",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude.json",
    ".claude/.credentials.json",
    ".claude/history.jsonl",
    ".claude/projects",
    ".codex/auth.json",
    ".composer/auth.json",
    ".config/chromium",
    ".config/composer",
    ".config/containers",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/hub",
    ".config/op",
    ".config/pip",
    ".config/rclone",
    ".config/sops",
    ".databrickscfg",
    ".docker",
    ".fly",
    ".gem/credentials",
    ".gemini/oauth_creds.json",
    ".git-credentials",
    ".gitconfig",
    ".gnupg",
    ".gradle/gradle.properties",
    ".gradle/init.d",
    ".kube",
    ".local/share/fish",
    ".local/share/gem/credentials",
    ".local/share/keyrings",
    ".m2/settings-security.xml",
    ".m2/settings.xml",
    ".mozilla",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".oci",
    ".password-store",
    ".pgpass",
    ".pip",
    ".pki",
    ".pypirc",
    ".python_history",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    ".yarnrc",
    ".yarnrc.yml",
    ".zsh_history",
];

/// A home with more entries than this is not listed.
const MOST_NAMES: usize = 2000;

/// The names at the top of a home, read once. Nearly all candidates do not exist, and a `stat` for each would take
/// longer than the rest of the search.
pub(crate) struct HomeListing(Option<Vec<OsString>>);

impl HomeListing {
    pub(crate) fn of(home: &Path) -> Self {
        let entries = std::fs::read_dir(home).map(|entries| entries.take(MOST_NAMES + 1));
        let names =
            entries.and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect());
        Self(names.ok().filter(|names: &Vec<OsString>| names.len() <= MOST_NAMES))
    }

    /// Whether a path below the home can exist. Always true if the home could not be listed. Ignores case, because some
    /// file systems do.
    pub(crate) fn may_have(&self, place: &str) -> bool {
        let first = place.split('/').next().unwrap_or(place);
        let is_it = |name: &OsString| match first.strip_suffix('*') {
            Some(start) => {
                let name = name.as_encoded_bytes();
                name.len() >= start.len() && name[..start.len()].eq_ignore_ascii_case(start.as_bytes())
            }
            None => name.eq_ignore_ascii_case(first),
        };
        self.0.as_ref().is_none_or(|names| names.iter().any(is_it))
    }
}

/// The protected paths of one home.
pub(crate) struct Bounds {
    /// The home as named, and with symbolic links resolved.
    homes: Vec<PathBuf>,
    /// The real paths of protected files that are symbolic links.
    elsewhere: Vec<PathBuf>,
}

impl Bounds {
    /// Resolves a home and its protected files.
    pub(crate) fn new(home: &Path) -> Self {
        Self::with_names(home, &HomeListing::of(home))
    }

    /// The same, with a listing of the home that exists already.
    pub(crate) fn with_names(home: &Path, names: &HomeListing) -> Self {
        let homes: Vec<PathBuf> = std::iter::once(home.to_path_buf()).chain(target(home)).collect();
        let there = SECRETS.iter().filter(|secret| names.may_have(secret));
        let places = there.flat_map(|secret| homes.iter().map(move |home| home.join(secret)));
        let elsewhere = places.filter_map(|place| target(&place)).collect();
        Self { homes, elsewhere }
    }

    /// Whether parts of a directory may be granted. The path must not contain symbolic links.
    pub(crate) fn root(&self, path: &Path) -> Result<(), &'static str> {
        if self.homes.iter().any(|home| home.starts_with(path)) {
            return Err("it is the home directory, or above it");
        }
        if self.any_secret(path, |path, secret| path.starts_with(secret)) {
            return Err("it is among keys and passwords");
        }
        Ok(())
    }

    /// Whether a path may be granted with everything below it. The path must not contain symbolic links.
    pub(crate) fn grant(&self, path: &Path) -> Result<(), &'static str> {
        self.root(path)?;
        if self.any_secret(path, |path, secret| secret.starts_with(path)) {
            return Err("keys or passwords can be in it");
        }
        Ok(())
    }

    /// Whether `concerns` holds for the path and any protected file, existing or not. The path is not an ancestor of
    /// the home.
    fn any_secret(&self, path: &Path, concerns: impl Fn(&Path, &Path) -> bool) -> bool {
        let below_homes = self.homes.iter().filter_map(|home| path.strip_prefix(home).ok());
        let is_named = |below: &Path| SECRETS.iter().any(|secret| concerns(below, Path::new(secret)));
        below_homes.into_iter().any(is_named) || self.elsewhere.iter().any(|secret| concerns(path, secret))
    }
}

/// The target of a path that contains symbolic links, or `None` if it contains none.
fn target(path: &Path) -> Option<PathBuf> {
    // One `exists` rules most paths out. `canonicalize` takes many system calls to find that a path does not exist.
    path.exists().then(|| path.canonicalize().ok())?.filter(|target| target != path)
}

/// Removes duplicates and paths that lie in another one.
pub(crate) fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    // A directory sorts before everything in it.
    paths.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !kept.last().is_some_and(|folder| path.starts_with(folder)) {
            kept.push(path);
        }
    }
    kept
}
