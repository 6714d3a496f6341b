//! The paths in the user's home directory to which guard must never give a run access on its own, even if a toolchain
//! or a program seems to need them. Only a policy or an option such as `--read` can grant them.
//!
//! guard finds toolchains by environment variables and symbolic links, which any program may have set. So guard
//! checks every path that it finds, and refuses the home directory itself, its ancestors, and every path that
//! contains keys or passwords.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files and directories below a home directory that contain keys, passwords, tokens or shell history. On its own,
/// guard grants access neither to them, nor to paths inside them, nor to their ancestors.
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

/// The maximum number of entries that guard lists in a home directory. guard makes no listing of a larger directory.
const MAX_NAMES: usize = 2000;

/// The names of the entries of a home directory, read once; `None` if there are too many or guard cannot read them.
/// guard looks for many paths in the home directory, and nearly all of them do not exist. The listing saves a `stat`
/// call for each of these.
pub(crate) struct HomeListing(Option<Vec<OsString>>);

impl HomeListing {
    pub(crate) fn read(home: &Path) -> Self {
        let entries = std::fs::read_dir(home).map(|entries| entries.take(MAX_NAMES + 1));
        let names =
            entries.and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect());
        Self(names.ok().filter(|names: &Vec<OsString>| names.len() <= MAX_NAMES))
    }

    /// Returns true if a path below the home directory can exist, because the listing contains its first component,
    /// which may end in `*`. Always true if there is no listing. Ignores case, because some file systems do.
    pub(crate) fn may_have(&self, path: &str) -> bool {
        let first = path.split('/').next().unwrap_or(path);
        let matches = |name: &OsString| match first.strip_suffix('*') {
            Some(start) => {
                let name = name.as_encoded_bytes();
                name.len() >= start.len() && name[..start.len()].eq_ignore_ascii_case(start.as_bytes())
            }
            None => name.eq_ignore_ascii_case(first),
        };
        self.0.as_ref().is_none_or(|names| names.iter().any(matches))
    }
}

/// The paths in one home directory to which guard must never give a run access on its own.
pub(crate) struct ProtectedPaths {
    /// The path of the home directory as the caller gave it, and its real path if that is different.
    homes: Vec<PathBuf>,
    /// The real paths of protected files and directories whose path contains a symbolic link.
    link_targets: Vec<PathBuf>,
}

impl ProtectedPaths {
    pub(crate) fn new(home: &Path) -> Self {
        Self::with_listing(home, &HomeListing::read(home))
    }

    pub(crate) fn with_listing(home: &Path, listing: &HomeListing) -> Self {
        let homes: Vec<PathBuf> = std::iter::once(home.to_path_buf()).chain(target(home)).collect();
        let existing = SECRETS.iter().filter(|secret| listing.may_have(secret));
        let paths = existing.flat_map(|secret| homes.iter().map(move |home| home.join(secret)));
        let link_targets = paths.filter_map(|path| target(&path)).collect();
        Self { homes, link_targets }
    }

    /// Checks whether guard may grant access to parts of this directory; if not, returns the reason. The path must
    /// not contain symbolic links.
    pub(crate) fn check_parent(&self, path: &Path) -> Result<(), &'static str> {
        if self.homes.iter().any(|home| home.starts_with(path)) {
            return Err("the path is the home directory or contains it");
        }
        if self.any_secret(path, |path, secret| path.starts_with(secret)) {
            return Err("the path holds keys or passwords");
        }
        Ok(())
    }

    /// Checks whether guard may grant access to a path and everything below it; if not, returns the reason. The path
    /// must not contain symbolic links.
    pub(crate) fn check_grant(&self, path: &Path) -> Result<(), &'static str> {
        self.check_parent(path)?;
        if self.any_secret(path, |path, secret| secret.starts_with(path)) {
            return Err("the path may contain keys or passwords");
        }
        Ok(())
    }

    /// Returns true if `matches(path, secret)` is true for any protected path, even one that does not exist. The path
    /// must not be an ancestor of the home directory.
    fn any_secret(&self, path: &Path, matches: impl Fn(&Path, &Path) -> bool) -> bool {
        let below_homes = self.homes.iter().filter_map(|home| path.strip_prefix(home).ok());
        let is_named = |below: &Path| SECRETS.iter().any(|secret| matches(below, Path::new(secret)));
        below_homes.into_iter().any(is_named) || self.link_targets.iter().any(|secret| matches(path, secret))
    }
}

/// Returns the real path of a path that contains symbolic links; `None` if it contains none or does not exist.
fn target(path: &Path) -> Option<PathBuf> {
    // Most paths do not exist. `canonicalize` would take many system calls to find that out, `exists` takes one.
    path.exists().then(|| path.canonicalize().ok())?.filter(|target| target != path)
}

/// Sorts a list of paths, and removes duplicates and paths that are inside other paths of the list.
pub(crate) fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    // A directory sorts before everything in it.
    paths.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !kept.last().is_some_and(|directory| path.starts_with(directory)) {
            kept.push(path);
        }
    }
    kept
}
