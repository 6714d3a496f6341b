//! What of the user's home may never be granted, whoever asks for it.
//!
//! A toolchain's directory is named by variables and links that anything may have set. Whatever they say, the home itself,
//! what lies above it, and what holds keys or passwords is refused here, in one place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files and directories below a home that hold keys, passwords, tokens or what people typed. Neither they, nor what is in
/// them, nor what they are in is granted.
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

/// A home with more names is not listed.
const MOST_NAMES: usize = 2000;

/// The names at the top of a home, seen in one look: nearly everything that could be there is not, and asking for each
/// takes longer than all the rest.
pub(crate) struct HomeListing(Option<Vec<OsString>>);

impl HomeListing {
    pub(crate) fn of(home: &Path) -> Self {
        let entries = std::fs::read_dir(home).map(|entries| entries.take(MOST_NAMES + 1));
        let names =
            entries.and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect());
        Self(names.ok().filter(|names: &Vec<OsString>| names.len() <= MOST_NAMES))
    }

    /// Whether there can be something at a place below the home. What could not be listed can be anywhere. Some file
    /// systems do not tell upper from lower case.
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

/// The places of one home that stay closed.
pub(crate) struct Bounds {
    /// The home as it was named, and as it is.
    homes: Vec<PathBuf>,
    /// Where secrets of it really are that lie elsewhere.
    elsewhere: Vec<PathBuf>,
}

impl Bounds {
    /// Looks where a home and its secrets really are.
    pub(crate) fn new(home: &Path) -> Self {
        Self::with_names(home, &HomeListing::of(home))
    }

    /// The same, with the names that were seen there already.
    pub(crate) fn with_names(home: &Path, names: &HomeListing) -> Self {
        let homes: Vec<PathBuf> = std::iter::once(home.to_path_buf()).chain(target(home)).collect();
        let there = SECRETS.iter().filter(|secret| names.may_have(secret));
        let places = there.flat_map(|secret| homes.iter().map(move |home| home.join(secret)));
        let elsewhere = places.filter_map(|place| target(&place)).collect();
        Self { homes, elsewhere }
    }

    /// Whether parts of a directory may be granted at all. The path is one without links.
    pub(crate) fn root(&self, path: &Path) -> Result<(), &'static str> {
        if self.homes.iter().any(|home| home.starts_with(path)) {
            return Err("it is the home directory, or above it");
        }
        if self.any_secret(path, |path, secret| path.starts_with(secret)) {
            return Err("it is among keys and passwords");
        }
        Ok(())
    }

    /// Whether a path may be granted with everything below it. The path is one without links.
    pub(crate) fn grant(&self, path: &Path) -> Result<(), &'static str> {
        self.root(path)?;
        if self.any_secret(path, |path, secret| secret.starts_with(path)) {
            return Err("keys or passwords can be in it");
        }
        Ok(())
    }

    /// Whether a path that is not above the home has to do with any secret, whether that is there or not.
    fn any_secret(&self, path: &Path, concerns: impl Fn(&Path, &Path) -> bool) -> bool {
        let below_homes = self.homes.iter().filter_map(|home| path.strip_prefix(home).ok());
        let is_named = |below: &Path| SECRETS.iter().any(|secret| concerns(below, Path::new(secret)));
        below_homes.into_iter().any(is_named) || self.elsewhere.iter().any(|secret| concerns(path, secret))
    }
}

/// Where a path leads when that is somewhere else.
fn target(path: &Path) -> Option<PathBuf> {
    // One look tells most of them apart: what leads nowhere has no target, and finding that out by steps takes many.
    path.exists().then(|| path.canonicalize().ok())?.filter(|target| target != path)
}

/// Each path once, and none that lies in another.
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
