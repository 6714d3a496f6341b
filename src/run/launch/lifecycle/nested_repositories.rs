//! Protects git repositories inside directories that a run may write to. This concerns only runs without a worktree.
//!
//! In a mount namespace guard mounts the repositories read-only, and makes every directory on the path to them a
//! mount point, so that the agent cannot rename or replace one. Without a mount namespace, guard refuses the run or,
//! if the caller allows unprotected repositories, reports every change after the run. It also restores the `.git`
//! file of the working directory if the run changed it.

use std::path::{Path, PathBuf};

use crate::git::nested_repositories;
use crate::git::nested_repositories::{
    NestedRepository, RepositoryKind, RestoredGitFile, SearchBounds, SearchResult, Snapshot,
};
use crate::run::launch::plan::error::LaunchError;
use crate::run::outcome::Finding;
use crate::sandbox::Grant;

/// The option by which the caller accepts unprotected repositories.
const OPTION: &str = "--allow-unprotected-repositories";
/// The maximum number of repositories that guard lists in a message to the user.
const MAX_NAMED: usize = 3;

/// A directory that the run may write to, and the git repositories that guard found in it.
#[derive(Debug, Clone)]
pub(crate) struct SearchedDirectory {
    root: PathBuf,
    found: SearchResult,
}

/// Searches for git repositories in every directory that the run may write to, except the directories in `private`.
/// `working` is the run's working directory. If a directory other than `working` is itself a git directory, does not
/// report it as a repository.
pub(crate) fn search(grants: &[Grant], working: &Path, private: &[&Path]) -> Vec<SearchedDirectory> {
    let mut roots: Vec<PathBuf> = grants
        .iter()
        .filter(|grant| grant.rights.is_write())
        .filter_map(|grant| std::fs::canonicalize(&grant.path).ok())
        .filter(|path| path.is_dir() && !private.iter().any(|own| path.starts_with(own)))
        .collect();
    roots.sort();
    // After the sort, a directory comes directly before the directories inside it.
    roots.dedup_by(|path, outer| path.starts_with(outer.as_path()));
    let searched = roots.into_iter().map(|root| {
        let mut found = nested_repositories::search(&root, SearchBounds::default());
        // If the caller grants write access to exactly the git directory of a repository, guard assumes that this is
        // intended.
        if root != working {
            found.repositories.retain(|repository| repository.path != root);
        }
        SearchedDirectory { root, found }
    });
    searched.collect()
}

impl SearchedDirectory {
    /// Returns the repositories that a read-only mount can protect: all except a `.git` that is a symbolic link or a
    /// special file, and except the searched directory itself.
    pub(crate) fn protected(&self) -> impl Iterator<Item = &Path> {
        let can_be = |one: &&NestedRepository| one.kind != RepositoryKind::GitLink && one.path != self.root;
        self.found.repositories.iter().filter(can_be).map(|one| one.path.as_path())
    }

    /// Returns the directories between the searched directory and a repository, which must become mount points.
    /// Otherwise the agent could rename `a`, including the read-only mount on `a/b/.git`, and create a new `a`. The
    /// kernel does not rename a mount point.
    pub(crate) fn pinned(&self) -> Vec<PathBuf> {
        let between = |path: &Path| -> Vec<PathBuf> {
            let above = path.ancestors().skip(1).take_while(|level| *level != self.root);
            above.map(Path::to_path_buf).collect()
        };
        let mut pinned: Vec<PathBuf> = self.protected().flat_map(between).collect();
        pinned.sort();
        pinned.dedup();
        pinned
    }

    /// Returns true if a repository is the `.git` file of the searched directory itself, which guard restores after a
    /// run without mounts.
    fn is_restored(&self, one: &NestedRepository) -> bool {
        one.kind == RepositoryKind::GitFile && one.path.parent() == Some(&self.root)
    }
}

/// Fails if not even a mount namespace can protect the repositories that the run may write to, or if guard could not
/// find all of them.
pub(crate) fn check(searched: &[SearchedDirectory]) -> Result<(), LaunchError> {
    for SearchedDirectory { root, found } in searched {
        let place = root.display();
        let problem = if let Some(why) = &found.unseen {
            format!(
                "guard cannot find all git repositories in {place} that the command could change: {why}. Run in a \
                 directory with fewer files"
            )
        } else if let Some(link) = found.repositories.iter().find(|one| one.kind == RepositoryKind::GitLink) {
            format!(
                "{} is a symbolic link or a special file, and guard cannot keep the command from replacing it. Make it \
                 a directory or a `gitdir:` file",
                link.path.display()
            )
        } else if found.repositories.iter().any(|one| one.path == *root) {
            format!("{place} is the git directory of a repository. Run in one of that repository's worktrees")
        } else {
            continue;
        };
        return Err(LaunchError::Input(format!(
            "{problem}; or use {OPTION}: guard then only reports changes to repositories after the run"
        )));
    }
    Ok(())
}

/// Returns why the run is safe only with a mount namespace; `None` if it needs none. Ignores a `.git` file that guard
/// restores after the run.
pub(crate) fn needs_mounts(searched: &[SearchedDirectory]) -> Option<String> {
    let unprotected = |one: &SearchedDirectory| -> Vec<PathBuf> {
        let repositories = one.found.repositories.iter();
        repositories.filter(|found| !one.is_restored(found)).map(|found| found.path.clone()).collect()
    };
    let all: Vec<PathBuf> = searched.iter().flat_map(unprotected).collect();
    let named: Vec<String> = all.iter().take(MAX_NAMED).map(|path| path.display().to_string()).collect();
    let more = all.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!all.is_empty()).then(|| {
        format!(
            "the command may write to git repositories ({}{more}), and without namespaces it could change what your \
             next git command there executes",
            named.join(", ")
        )
    })
}

/// The hint that guard shows to the user together with the reason from [`needs_mounts`].
pub(crate) const MOUNTS_FIX: &str = "run inside one repository without `--in-place`, so that the command gets its own \
    worktree; or allow unprivileged user namespaces; or use `--allow-unprotected-repositories`: guard then only \
    reports changes after the run";

/// The state of the git repositories before the run, which guard compares with their state after the run.
#[derive(Debug, Default)]
pub(crate) struct RepositoryWatch {
    working: PathBuf,
    snapshots: Vec<(PathBuf, Snapshot)>,
    /// The content of the working directory's `.git` file; `None` if there is no such file that guard must restore.
    git_file: Option<Vec<u8>>,
}

impl RepositoryWatch {
    pub(crate) fn begin(working: &Path, searched: &[SearchedDirectory]) -> Self {
        let snapshot = |one: &SearchedDirectory| (one.root.clone(), Snapshot::take(&one.root, &one.found));
        let has_file = |one: &SearchedDirectory| {
            one.root == working && one.found.repositories.iter().any(|found| one.is_restored(found))
        };
        Self {
            working: working.to_path_buf(),
            snapshots: searched.iter().map(snapshot).collect(),
            git_file: searched
                .iter()
                .any(has_file)
                .then(|| nested_repositories::read_git_file(working))
                .flatten(),
        }
    }

    /// Restores the working directory's `.git` file if the run has changed it, and returns a finding for every change
    /// to a repository. In a run with mounts, the agent could not change the `.git` file, so guard does not restore it.
    /// guard moves whatever replaced the file into `run_folder`. Every process of the run must be dead.
    pub(crate) fn end(&self, has_mounts: bool, run_folder: &Path) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(saved) = self.git_file.as_ref().filter(|_| !has_mounts) {
            findings.extend(self.restore(saved, run_folder));
        }
        for (root, snapshot) in &self.snapshots {
            let shown =
                |path: &Path| if *root == self.working { path.to_path_buf() } else { root.join(path) };
            let compared = snapshot.compare(SearchBounds {
                time: std::time::Duration::from_secs(10),
                ..SearchBounds::default()
            });
            findings.extend(compared.changes.into_iter().map(|change| {
                let kind = format!("repository.{}", change.kind.name());
                let instead = "check the repository's configuration and hooks before you run git there";
                Finding {
                    instead: Some(instead.to_string()),
                    ..Finding::new(&kind, change.message, Some(&shown(&change.path)))
                }
            }));
            findings.extend(compared.new.into_iter().map(|danger| {
                let kind = format!("danger.{}", danger.kind.name());
                let message = danger.to_string();
                let path = shown(&danger.path.path());
                Finding { instead: Some(danger.instead), ..Finding::new(&kind, message, Some(&path)) }
            }));
        }
        findings
    }

    fn restore(&self, saved: &[u8], run_folder: &Path) -> Option<Finding> {
        let file = Path::new(".git");
        match nested_repositories::restore_git_file(&self.working, saved, run_folder) {
            Ok(RestoredGitFile::Unchanged) => None,
            Ok(RestoredGitFile::Restored(moved)) => {
                let moved =
                    moved.map(|place| format!(", and moved what had replaced it to {}", place.display()));
                let message = format!(
                    "the run removed or replaced the file .git: guard restored it{}",
                    moved.unwrap_or_default()
                );
                Some(Finding::new("worktree.foreign", message, Some(file)))
            }
            Err(error) => {
                let message =
                    format!("the run removed or replaced the file .git; guard cannot restore it: {error}");
                Some(Finding {
                    instead: Some("restore or remove .git before you run git there".to_string()),
                    ..Finding::new("worktree.unsettled", message, Some(file))
                })
            }
        }
    }
}
