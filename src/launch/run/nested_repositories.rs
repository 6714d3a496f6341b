//! Git repositories inside directories that a run may write, for runs without a worktree of their own.
//!
//! In a mount namespace they are mounted read-only, and every directory on the path to them becomes a mount point, so
//! that none can be renamed or replaced. Without a mount namespace, guard refuses the run, or, if the caller allows it,
//! reports every change afterwards. In that case it also restores a `.git` file of the working directory.

use std::path::{Path, PathBuf};

use crate::launch::plan::LaunchError;
use crate::outcome::Finding;
use crate::sandbox::Grant;
use crate::workspace::nested_repositories;
use crate::workspace::nested_repositories::{
    NestedRepository, RepositoryKind, RestoredGitFile, SearchBounds, SearchResult, Snapshot,
};

/// The option by which the caller accepts unprotected repositories.
const OPTION: &str = "--allow-unprotected-repositories";
/// The most repositories that a message names.
const MOST_NAMED: usize = 3;

/// A writable directory and the repositories in it.
#[derive(Debug, Clone)]
pub(crate) struct SearchedDirectory {
    root: PathBuf,
    found: SearchResult,
}

/// Searches every writable directory that is not private to the run.
pub(crate) fn search(grants: &[Grant], working: &Path, private: &[&Path]) -> Vec<SearchedDirectory> {
    let mut roots: Vec<PathBuf> = grants
        .iter()
        .filter(|grant| grant.rights.is_write())
        .filter_map(|grant| std::fs::canonicalize(&grant.path).ok())
        .filter(|path| path.is_dir() && !private.iter().any(|own| path.starts_with(own)))
        .collect();
    roots.sort();
    // After the sort, a directory comes directly before those inside it.
    roots.dedup_by(|path, outer| path.starts_with(outer.as_path()));
    let searched = roots.into_iter().map(|root| {
        let mut found = nested_repositories::search(&root, SearchBounds::default());
        // If the caller grants a repository's own directory, guard takes it as intended.
        if root != working {
            found.repositories.retain(|repository| repository.path != root);
        }
        SearchedDirectory { root, found }
    });
    searched.collect()
}

impl SearchedDirectory {
    /// The repositories that mounts can protect.
    pub(crate) fn protected(&self) -> impl Iterator<Item = &Path> {
        let can_be = |one: &&NestedRepository| one.kind != RepositoryKind::GitLink && one.path != self.root;
        self.found.repositories.iter().filter(can_be).map(|one| one.path.as_path())
    }

    /// The directories between the root and a repository. A mount on `a/b/.git` moves along when `a` is renamed, and
    /// the agent could create another `a`. A directory that is a mount point cannot be renamed.
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

    fn is_restored(&self, one: &NestedRepository) -> bool {
        one.kind == RepositoryKind::GitFile && one.path.parent() == Some(&self.root)
    }
}

/// Refuses a run with repositories that not even mounts can protect.
pub(crate) fn check(searched: &[SearchedDirectory]) -> Result<(), LaunchError> {
    for SearchedDirectory { root, found } in searched {
        let place = root.display();
        let problem = if let Some(why) = &found.unseen {
            format!(
                "{place} cannot be searched for git repositories, which the command could change: {why}. Run in a \
                 smaller directory"
            )
        } else if let Some(link) = found.repositories.iter().find(|one| one.kind == RepositoryKind::GitLink) {
            format!(
                "{} is a link or a special file, and cannot be kept from being replaced. Make it a directory or a \
                 `gitdir:` file",
                link.path.display()
            )
        } else if found.repositories.iter().any(|one| one.path == *root) {
            format!("{place} is itself the directory of a git repository. Run in a worktree of it")
        } else {
            continue;
        };
        return Err(LaunchError::Input(format!(
            "{problem}; or give {OPTION} to have changes of repositories reported only"
        )));
    }
    Ok(())
}

/// Why the run needs a mount namespace, if it does.
pub(crate) fn needs_mounts(searched: &[SearchedDirectory]) -> Option<String> {
    let open = |one: &SearchedDirectory| -> Vec<PathBuf> {
        let repositories = one.found.repositories.iter();
        repositories.filter(|found| !one.is_restored(found)).map(|found| found.path.clone()).collect()
    };
    let all: Vec<PathBuf> = searched.iter().flat_map(open).collect();
    let named: Vec<String> = all.iter().take(MOST_NAMED).map(|path| path.display().to_string()).collect();
    let more = all.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!all.is_empty()).then(|| {
        format!(
            "git repositories lie where the command may write ({}{more}), and without namespaces it could change \
             what your next git command there executes",
            named.join(", ")
        )
    })
}

/// The hint to the user for [`needs_mounts`].
pub(crate) const MOUNTS_FIX: &str = "run inside one repository without `--in-place`, where the command gets a worktree \
    of its own; or allow user namespaces; or give `--allow-unprotected-repositories` to have changes reported only";

/// The state of the repositories before the run.
#[derive(Debug, Default)]
pub(crate) struct RepositoryWatch {
    working: PathBuf,
    snapshots: Vec<(PathBuf, Snapshot)>,
    /// The content of the working directory's own `.git` file.
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

    /// Restores the `.git` file if needed, and returns what has changed. Every process of the run must be dead.
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
                let instead = "look at the repository's configuration and hooks before you run git there";
                Finding {
                    instead: Some(instead.to_string()),
                    ..Finding::new(&kind, change.message, Some(&shown(&change.path)))
                }
            }));
            findings.extend(compared.new.into_iter().map(|danger| {
                let kind = format!("danger.{}", danger.kind.name());
                let message = format!("{}: {} {}", danger.path, danger.what, danger.why);
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
                let now = moved.map_or("gone".to_string(), |place| format!("moved to {}", place.display()));
                let message = format!(
                    ".git was not the repository's any more: what was there is {now}, and the file was put back"
                );
                Some(Finding::new("worktree.foreign", message, Some(file)))
            }
            Err(error) => {
                let message = format!(".git was replaced by the run and cannot be put back: {error}");
                Some(Finding {
                    instead: Some("do not run git there before you have removed it".to_string()),
                    ..Finding::new("worktree.unsettled", message, Some(file))
                })
            }
        }
    }
}
