//! Finds the commit from which the review of a run's branch starts.
//!
//! Several runs may work on one branch, and the user may commit between them. The record of a run says where that run
//! began, so it hides the work of the runs before it. What `guard apply` brings is everything on the branch that is not
//! in the history of the commit that the user has checked out. Therefore guard asks git for the fork point of the two
//! at the moment of the review. An agent cannot move it: all commits that both have are in the user's history.

use crate::git::WorkspaceError;
use crate::git::plumbing::command::Git;
use crate::git::plumbing::outcome::GitError;
use crate::git::task_branch::line;
use crate::git::workspace::run_record::Record;

/// What a run's branch is compared with in a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReviewBase {
    /// The commit whose tree is compared with the run's work: the commit where the branch left the user's history.
    pub(crate) commit: String,
    /// The commit whose history is not part of the run's work: the commit that the user has checked out or, if there is
    /// none, the commit where the run began.
    pub(crate) known: String,
}

impl ReviewBase {
    /// Finds the base for the review of the commit `tip` on the branch of a run. `git` builds calls on the user's
    /// repository. `target` is the commit that the user has checked out; without it, guard takes the `HEAD` of the
    /// repository's main working tree. If that is the run's own branch or has no commit, returns the commit where the
    /// run began.
    pub(crate) fn find(
        git: &dyn Fn(&str) -> Result<Git, WorkspaceError>,
        record: &Record,
        target: Option<&str>,
        tip: &str,
    ) -> Result<Self, WorkspaceError> {
        // A usual run begins at the commit that the user has checked out, and its branch descends from that commit.
        if target == Some(&record.base) {
            return Ok(Self::at(&record.base));
        }
        let target = match target {
            Some(target) => Some(target.to_string()),
            None => main_head(git, &record.branch)?,
        };
        let Some(target) = target else { return Ok(Self::at(&record.base)) };
        Ok(Self { commit: fork_point(git, &target, tip)?, known: target })
    }

    fn at(commit: &str) -> Self {
        Self { commit: commit.to_string(), known: commit.to_string() }
    }
}

/// Returns the commit where `tip` left the history of the user's commit `target`. With several such commits, or without
/// any, no single one shows everything that a merge would bring, so returns `target`: the difference to it does.
pub(crate) fn fork_point(
    git: &dyn Fn(&str) -> Result<Git, WorkspaceError>,
    target: &str,
    tip: &str,
) -> Result<String, WorkspaceError> {
    let answer = git("merge-base")?.args(["--all", target, tip]).output()?;
    if answer.code() > 1 {
        let (verb, code) = ("merge-base".to_string(), answer.code());
        return Err(GitError::Failed { verb, code, message: answer.message }.into());
    }
    let found = line(&answer.output);
    let mut commits = found.lines();
    Ok(match (commits.next(), commits.next()) {
        (Some(only), None) => only.to_string(),
        _ => target.to_string(),
    })
}

/// Returns the commit that is checked out in the repository's main working tree; `None` if there is none, or if it is
/// that of the branch `own`.
fn main_head(
    git: &dyn Fn(&str) -> Result<Git, WorkspaceError>,
    own: &str,
) -> Result<Option<String>, WorkspaceError> {
    let call = git("rev-parse")?.args(["--verify", "--quiet", "HEAD^{commit}"]);
    let answer = call.output()?;
    if !answer.status.success() {
        return Ok(None);
    }
    let name = git("rev-parse")?.args(["--symbolic-full-name", "HEAD"]).run()?;
    Ok((line(&name) != own).then(|| line(&answer.output)))
}
