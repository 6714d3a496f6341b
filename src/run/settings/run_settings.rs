//! The settings of one run, as data.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::git::KeepPolicy;
use crate::judge::policy::{Budget, Namespaces};

/// The settings of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSettings {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The directory that the run works in; `None` for the current directory.
    pub dir: Option<PathBuf>,
    /// The name or path of the policy; `None` for that of the project or the user.
    pub policy: Option<String>,
    /// Which agent the command is, or `none`; `None` to detect the agent by the program's name.
    pub agent: Option<String>,
    /// Commands that this run may use although the policy denies them.
    pub allow: Vec<String>,
    /// Further paths that the run may read.
    pub read: Vec<PathBuf>,
    /// Further paths that the run may write.
    pub write: Vec<PathBuf>,
    /// Further hosts that the run may reach.
    pub hosts: Vec<String>,
    /// Further loopback ports on which the run may listen.
    pub listen: Vec<u16>,
    /// Further network presets.
    pub presets: Vec<String>,
    /// Environment variables to set. `None` as the value stands for the value in guard's own environment.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// In which worktree of a repository the run works, and what it gets of the user's checkout.
    pub worktree: WorktreeSettings,
    /// The idle limit in seconds; 0 means no limit.
    pub idle_seconds: Option<u64>,
    /// The total limit in seconds; 0 means no limit.
    pub total_seconds: Option<u64>,
    /// The budget for requests to models.
    pub budget: Budget,
    /// The content of the private home directory.
    pub home: HomeSettings,
    /// Whether the run must not start if an API key that a preset needs is missing.
    pub require_keys: bool,
    /// Whether only programs that inherit the command's standard input and output can use them.
    pub seal_stdio: bool,
    /// Whether the run gets private namespaces; `None` to follow the policy.
    pub namespaces: Option<Namespaces>,
    /// Whether the run gets no toolchains of the user's home directory.
    pub no_toolchains: bool,
    /// Whether the run gets no shims.
    pub no_shims: bool,
    /// Whether guard skips the second check of programs after they have started.
    pub no_verify: bool,
    /// Whether the run starts even if guard cannot protect the repositories that it may write.
    pub allow_unprotected_repositories: bool,
}

/// The worktree of a run in a repository.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorktreeSettings {
    /// Whether the run works in the directory itself, without a worktree.
    pub in_place: bool,
    /// Whether the run works in the linked worktree that contains the directory.
    pub here: bool,
    /// The name for the branch and the worktree; `None` for the run's id.
    pub name: Option<String>,
    /// Whether to continue on the branch of that name, if it exists.
    pub continues: bool,
    /// The existing branch to continue on.
    pub branch: Option<String>,
    /// The path of the worktree in which `branch` is checked out.
    pub path: Option<PathBuf>,
    /// The commit to start a new branch at; `None` for HEAD.
    pub base: Option<String>,
    /// Whether to trust the git configuration of the repository.
    pub trust_repository: bool,
    /// Whether the worktree gets no dependencies of the user's checkout.
    pub no_deps: bool,
    /// Whether the worktree starts with the uncommitted changes of the user's checkout.
    pub with_changes: bool,
    /// Untracked paths of the user's checkout to link into the worktree.
    pub link: Vec<String>,
    /// Untracked paths of the user's checkout to copy into the worktree.
    pub copy: Vec<String>,
    /// What guard does with the worktree at the end; `None` if the caller did not say.
    pub disposal: Option<KeepPolicy>,
}

/// The private home directory of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HomeSettings {
    /// Directories whose content guard copies into the home before the run. Later ones replace files of earlier ones.
    pub from: Vec<PathBuf>,
    /// The directory to which guard copies the paths in `keep` after the run.
    pub to: Option<PathBuf>,
    /// Paths of the home to keep.
    pub keep: Vec<PathBuf>,
    /// Files that guard creates in the home: (relative path, text with placeholders).
    pub files: Vec<(PathBuf, String)>,
    /// The agent whose login guard copies into the home; `None` for the agent that the run starts.
    pub login_of: Option<String>,
}
