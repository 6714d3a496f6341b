//! Publishes a task's branch: checks whether the base branch is protected at the remote, pushes, and opens a
//! pull request.

use serde_json::json;

use crate::git::Repository;
use crate::run::transcript::EventType;
use crate::work::forge;
use crate::work::forge::{Proposal, Protection, PullRequest, Push, Remote, Token};
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::task::state::{RUNNER, TaskEvent};

/// What is known about the protection of the base branch at the remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Safety {
    /// What is known about the protection, as one line of text for the user.
    pub line: String,
    /// Whether the remote is known to require a pull request and to block force pushes.
    pub is_protected: bool,
}

/// Determines whether the base branch is protected at the remote. If that cannot be determined, the result is a
/// warning, never "protected".
pub fn safety(repository: &Repository, remote: Option<&str>, base: &str) -> Safety {
    let unsure = |line: String| Safety { line, is_protected: false };
    let Some(name) = remote else { return unsure("The branch stays in this repository.".to_string()) };
    let found = match Remote::of(repository, name) {
        Ok(Some(found)) if found.github().is_some() => found,
        Ok(_) => {
            return unsure(
                "The repository has no GitHub remote, so the branch stays in this repository.".to_string(),
            );
        }
        Err(error) => return unsure(format!("Warning: the remote {name} cannot be used: {error}")),
    };
    let token = match Token::find(&found) {
        Ok(token) => token,
        Err(error) => return unsure(format!("Warning: cannot tell whether '{base}' is protected: {error}")),
    };
    match forge::protection(&found, token.as_ref(), base) {
        Protection::Protected => {
            Safety { line: format!("Remote safety check: '{base}' is protected... OK."), is_protected: true }
        }
        Protection::Unprotected { missing } => {
            unsure(format!("Warning: '{base}' of {} is not protected: {}.", found.shown, missing.join(", ")))
        }
        Protection::Unknown { why } => {
            unsure(format!("Warning: cannot tell whether '{base}' is protected: {why}"))
        }
    }
}

/// Pushes the branch and opens a pull request, if the remote is on GitHub and there is a token. If the branch already
/// has a pull request, opens no second one. Returns the pull request's URL or an error message; `None` if there is no
/// such remote or token.
pub(crate) fn push_and_open_pull_request(
    context: &mut TaskContext<'_>,
    step: &str,
    summary: &str,
) -> Result<Option<Result<String, String>>, PipelineError> {
    let Some(name) = context.task.setting.remote.clone() else { return Ok(None) };
    let remote = match Remote::of(&context.repository, &name) {
        Ok(Some(remote)) if remote.github().is_some() => remote,
        Ok(_) => return Ok(None),
        Err(error) => return Ok(Some(Err(error.to_string()))),
    };
    let token = match Token::find(&remote) {
        Ok(Some(token)) => token,
        Ok(None) => {
            context.announce(RUNNER, "guard found no token for GitHub (GH_TOKEN, GITHUB_TOKEN, `gh auth login`), so the branch stays in this repository.");
            return Ok(None);
        }
        Err(error) => return Ok(Some(Err(error.to_string()))),
    };
    let (branch, base) =
        (context.task.setting.tree.short_branch().to_string(), context.task.setting.workflow.base.clone());
    let pushed: Result<Push, String> = context.effect(
        step,
        "push",
        |_| Ok(json!({ "branch": branch })),
        |context, _, _| {
            Ok(forge::push(&context.repository, &remote, &branch, &base).map_err(|error| error.to_string()))
        },
    )?;
    if let Err(problem) = pushed {
        return Ok(Some(Err(problem)));
    }
    context.announce(RUNNER, format!("Pushing '{branch}' to {name}... OK."));
    let title: String = context.task.request.lines().next().unwrap_or(&branch).chars().take(200).collect();
    let made: Result<PullRequest, String> = context.effect(
        step,
        "pull_request",
        |_| Ok(json!({ "head": branch, "base": base })),
        |_, _, _| {
            let proposal = Proposal { head: &branch, base: &base, title: &title, body: summary };
            Ok(forge::pull_request(&remote, &token, &proposal).map_err(|error| error.to_string()))
        },
    )?;
    Ok(Some(made.map(|request| {
        let how = if request.existed { "found" } else { "opened" };
        let data = json!({ "number": request.number, "url": request.url, "existed": request.existed });
        context.events.send(TaskEvent::new(EventType::TaskPullRequest, request.url.clone(), data));
        context.announce(RUNNER, format!("Pull request {how}: {}", request.url));
        request.url
    })))
}
