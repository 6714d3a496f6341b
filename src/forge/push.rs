//! The task's branch to the user's remote.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::remote::Remote;
use super::{ForgeError, short};
use crate::workspace::{Pushed, Repository};

/// How long a push may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Where finished work is, by the names everybody uses: never a task's.
const NEVER: [&str; 2] = ["main", "master"];

/// What was pushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// The branch, by its short name.
    pub branch: String,
    /// The commit that the remote has now.
    pub tip: String,
    /// It had it before.
    pub already: bool,
}

/// Pushes a branch to the branch of the same name, forward only. `base` is what the work is to be merged into: that is
/// never pushed to, nor the remote's default branch, nor `main` or `master`.
pub fn push(repository: &Repository, remote: &Remote, branch: &str, base: &str) -> Result<Push, ForgeError> {
    let branch = short(branch);
    if is_base(repository, remote, branch, base)? {
        return Err(ForgeError::refused(
            format!(
                "{branch} is where finished work goes; guard pushes a task's own branch and nothing else"
            ),
            "give the task a branch of its own, and merge it by a pull request",
        ));
    }
    match repository.push(&remote.name, &format!("refs/heads/{branch}"), PATIENCE)? {
        Pushed::Done { tip, already } => Ok(Push { branch: branch.to_string(), tip, already }),
        Pushed::NotForward => {
            Err(ForgeError::NotForward { branch: branch.to_string(), remote: remote.name.clone() })
        }
        Pushed::Refused(why) => {
            let what = format!("{branch} was not pushed to {} ({})", remote.name, remote.shown);
            Err(ForgeError::Service { what, why })
        }
    }
}

/// `base` may be said in every way that git takes a branch.
fn is_base(repository: &Repository, remote: &Remote, branch: &str, base: &str) -> Result<bool, ForgeError> {
    let tracking = format!("{}/", remote.name);
    let local = base.strip_prefix("refs/").unwrap_or(base);
    let local = local.strip_prefix("heads/").or(local.strip_prefix("remotes/")).unwrap_or(local);
    let named = [base, local, local.strip_prefix(&tracking).unwrap_or(local)];
    let default = repository.default_branch(&remote.name)?;
    Ok(named.contains(&branch) || NEVER.contains(&branch) || default.as_deref() == Some(branch))
}
