//! The complete description of a run, which the code in `run/` executes without decisions of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::checkout::Checkout;
use super::linked_caches::LinkedCache;
use super::network::NetworkPlan;
use super::request::Limits;
use super::shims::Shims;
use crate::judge::policy::Namespaces;
use crate::run::launch::lifecycle::home_state::HomeState;
use crate::run::launch::lifecycle::nested_repositories::SearchedDirectory;
use crate::sandbox::{Grant, MountPlan, Rights};

/// A complete description of a run: everything that guard will create and start, and all access that it will grant.
#[derive(Debug, Clone, Serialize)]
pub struct LaunchPlan {
    pub run_id: String,
    pub policy: String,
    /// The names of the policies that this policy extends, nearest first.
    pub policy_extends: Vec<String>,
    /// The path of the policy's file, as guard read it; `None` for a built-in policy.
    pub policy_file: Option<String>,
    pub program: PathBuf,
    #[serde(serialize_with = "serialize_strings")]
    pub argv: Vec<OsString>,
    /// The run's working directory.
    pub folder: PathBuf,
    pub checkout: Option<Checkout>,
    /// The run's directory, which contains the transcript and the run's private home directory.
    pub run_folder: PathBuf,
    /// The run's private home directory.
    pub home: PathBuf,
    /// The run's private directory for temporary files. In a run with a mount namespace, the run sees it as `/tmp`.
    pub tmp: PathBuf,
    /// The agent's complete environment.
    #[serde(serialize_with = "serialize_pairs")]
    pub environment: Vec<(OsString, OsString)>,
    /// Patterns (with `*`) for the names of variables. guard redacts the values of these variables in its records.
    pub redact: Vec<String>,
    /// Every path that the run may use, with the rights to read, write or execute it.
    pub grants: Vec<Grant>,
    /// Configuration files above the working directory. The run may read them, unless its mounts hide them.
    pub settings_above: Vec<Grant>,
    pub network: NetworkPlan,
    pub limits: Limits,
    pub namespaces: Namespaces,
    /// The mounts of the run. guard makes them only if the run has namespaces.
    pub view: MountPlan,
    /// Package caches that a run without namespaces gets as directories of symbolic links.
    pub linked_caches: Vec<LinkedCache>,
    pub home_state: HomeState,
    /// Files that guard writes into the private home directory: (path, content).
    pub home_files: Vec<(PathBuf, String)>,
    /// Files that guard copies into the private home directory: (from, to).
    pub imports: Vec<(PathBuf, PathBuf)>,
    /// The shims that replace git and the shells on the agent's PATH; `None` if the run has none.
    pub shims: Option<Shims>,
    /// The path of the socket through which the shims reach the supervisor.
    pub control: PathBuf,
    /// True if the supervisor verifies programs after the kernel has loaded them.
    pub verify_exec: bool,
    /// Why this run is unsafe without namespaces. The text lists the git repositories that only a mount namespace can
    /// protect. `None` if the run is safe, or if the caller accepts unprotected repositories.
    pub needs_view: Option<String>,
    #[serde(skip)]
    pub(crate) searched: Vec<SearchedDirectory>,
    /// The snapshot that guard takes before the run, so that `guard undo` can undo its changes; `None` if the run has a
    /// worktree of its own, may write nothing in its directory, or if the user wants no snapshots.
    pub snapshot: Option<SnapshotPlan>,
    /// Git repositories to which a run with a mount namespace cannot write.
    pub protected_repositories: Vec<PathBuf>,
    /// Notes for the user: what guard found, left out or could not do while it planned the run.
    pub notes: Vec<String>,
}

/// What a snapshot before a run contains.
#[derive(Debug, Clone, Serialize)]
pub struct SnapshotPlan {
    pub directory: PathBuf,
    /// The maximum number of bytes to copy of files that git does not ignore.
    pub max_bytes: u64,
    /// The maximum number of bytes to copy of files that git ignores.
    pub max_ignored_bytes: u64,
    /// True if the run cannot change the repository, so that guard need not copy what its objects contain.
    pub trusts_objects: bool,
}

fn serialize_strings<S: serde::Serializer>(items: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(|item| item.to_string_lossy()))
}

fn serialize_pairs<S: serde::Serializer>(
    items: &[(OsString, OsString)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer
        .collect_map(items.iter().map(|(name, value)| (name.to_string_lossy(), value.to_string_lossy())))
}

impl LaunchPlan {
    /// Adapts the grants and the environment once guard knows whether the run has a mount namespace. Adds grants for
    /// the configuration files above the working directory, except those that the mounts hide. With a mount namespace,
    /// also replaces the path of the temporary directory by `/tmp`, where the run sees it, and grants the run access to
    /// its own terminals.
    pub fn adapt_to_namespaces(mut self, has_mount_namespace: bool) -> Self {
        let mut above = std::mem::take(&mut self.settings_above);
        above.retain(|grant| !(has_mount_namespace && self.view_covers(&grant.path)));
        self.grants.extend(above);
        if !has_mount_namespace {
            return self;
        }
        for (name, value) in &mut self.environment {
            if name == "TMPDIR" || name == "TMP" || name == "TEMP" {
                *value = "/tmp".into();
            }
        }
        let of_tmp = self.grants.iter().filter(|grant| grant.path == self.tmp).map(|grant| grant.rights);
        let rights = of_tmp.max_by_key(|rights| rights.is_write());
        self.grants.retain(|grant| !grant.path.starts_with(&self.tmp));
        // If the policy does not grant access to `{tmp}`, the run gets no `/tmp` either.
        if let Some(rights) = rights {
            let grant = |path: &PathBuf| {
                let why = "private temporary files".to_string();
                Grant { path: path.clone(), rights, why }
            };
            self.grants.extend(self.view.own().map(grant));
        }
        for path in ["/dev/ptmx", "/dev/pts"] {
            let why = "terminals of the run".to_string();
            self.grants.push(Grant { path: path.into(), rights: Rights::Device, why });
        }
        self
    }

    /// Returns the parent of the run's directory for temporary files. Other users cannot enter this parent, whatever
    /// file modes the run sets below it.
    pub(crate) fn tmp_parent(&self) -> &Path {
        self.tmp.parent().unwrap_or(&self.tmp)
    }

    /// Returns the paths that the run may write. For a directory, the run may also write everything in it.
    pub fn writable(&self) -> impl Iterator<Item = &Path> {
        self.grants.iter().filter(|grant| grant.rights.is_write()).map(|grant| grant.path.as_path())
    }
}
