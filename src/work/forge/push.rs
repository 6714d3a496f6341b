//! Pushes a task's branch to the user's remote, only as a fast-forward, and never to the base branch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::remote::Remote;
use super::{ForgeError, short};
use crate::git::{Pushed, Repository};

/// Maximum duration of a push.
const PATIENCE: Duration = Duration::from_secs(600);
/// Branches that guard never pushes, whatever the configuration says.
const NEVER: [&str; 2] = ["main", "master"];

/// The result of pushing a task's branch to a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// The short name of the branch.
    pub branch: String,
    /// The commit that the remote's branch points to now.
    pub tip: String,
    /// True if the remote already had this commit, so that git sent nothing.
    pub already: bool,
}

/// Pushes a branch to the remote branch of the same name, only as a fast-forward. Refuses `base` (the branch into
/// which the work will be merged), the remote's default branch, `main` and `master`.
pub fn push(repository: &Repository, remote: &Remote, branch: &str, base: &str) -> Result<Push, ForgeError> {
    let branch = short(branch);
    if is_base(repository, remote, branch, base)? {
        return Err(ForgeError::refused(
            format!("guard does not push {branch}: it is a base or default branch, not the branch of a task"),
            "use a separate branch for the task, and merge it with a pull request",
        ));
    }
    match repository.push(&remote.name, &format!("refs/heads/{branch}"), PATIENCE)? {
        Pushed::Done { tip, already } => Ok(Push { branch: branch.to_string(), tip, already }),
        Pushed::NotForward => {
            Err(ForgeError::NotForward { branch: branch.to_string(), remote: remote.name.clone() })
        }
        Pushed::Refused(why) => {
            let what = format!("cannot push {branch} to {} ({})", remote.name, remote.shown);
            Err(ForgeError::Service { what, why })
        }
    }
}

/// True for a branch that guard never pushes: the base branch, in every form that git accepts (`main`,
/// `refs/heads/main`, `origin/main`), the remote's default branch, `main` and `master`.
fn is_base(repository: &Repository, remote: &Remote, branch: &str, base: &str) -> Result<bool, ForgeError> {
    let tracking = format!("{}/", remote.name);
    let local = base.strip_prefix("refs/").unwrap_or(base);
    let local = local.strip_prefix("heads/").or(local.strip_prefix("remotes/")).unwrap_or(local);
    let named = [base, local, local.strip_prefix(&tracking).unwrap_or(local)];
    let default = repository.default_branch(&remote.name)?;
    Ok(named.contains(&branch) || NEVER.contains(&branch) || default.as_deref() == Some(branch))
}
