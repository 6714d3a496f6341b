//! Finds the open pull request of a branch, or opens a new one.
//!
//! guard can repeat the call: after a crash, a second call finds the pull request that the first one opened.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api::{Answer, Api, ApiError, escaped};
use super::remote::{GitHub, Remote};
use super::token::Token;
use super::{ForgeError, short};

/// GitHub's limits for the title and the body of a pull request, in characters.
const LONGEST_TITLE: usize = 256;
const LONGEST_BODY: usize = 65_536;
/// The text that guard appends to a truncated body.
const CUT: &str = "\n\n… (cut here: the text was too long)";

/// The contents of the pull request to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal<'a> {
    /// The branch that contains the work. The remote must already have it.
    pub head: &'a str,
    /// The branch into which the work should be merged.
    pub base: &'a str,
    /// The title, a single line. guard truncates it to GitHub's limit. If it is empty, guard uses the name of `head`.
    pub title: &'a str,
    /// The description, in Markdown. guard truncates it to GitHub's limit.
    pub body: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    pub number: u64,
    /// The URL of the pull request's web page.
    pub url: String,
    /// True if the pull request was already open. guard then did not change its title and body.
    pub existed: bool,
}

/// Finds the open pull request from `proposal.head` into `proposal.base`, or opens one. Calling this function again
/// after a crash is safe. Fails if the remote is not on GitHub, or if the two branches are the same.
pub fn pull_request(
    remote: &Remote,
    token: &Token,
    proposal: &Proposal<'_>,
) -> Result<PullRequest, ForgeError> {
    let Some(github) = remote.github() else {
        return Err(ForgeError::refused(
            format!("{} is not on GitHub, and guard opens pull requests only on GitHub", remote.shown),
            "push the branch, and open the pull request or merge request yourself",
        ));
    };
    let (head, base) = (short(proposal.head), short(proposal.base));
    if head == base || head.is_empty() || base.is_empty() {
        let problem = format!("a pull request needs two different branches; these are {head:?} and {base:?}");
        return Err(ForgeError::refused(problem, "use a separate branch for the task"));
    }
    let GitHub { owner, repo, .. } = github;
    let failed = |error: ApiError| ForgeError::Service {
        what: format!("cannot open a pull request from {head} to {base} in {owner}/{repo}"),
        why: error.to_string(),
    };
    let api = Api::new(github, Some(token)).map_err(failed)?;
    if let Some(found) = find(&api, github, head, base).map_err(failed)? {
        return Ok(found);
    }
    let answer = api.post("/pulls", &content(github, head, base, proposal)).map_err(failed)?;
    match (answer.status, parse_pull_request(&answer.body, github, false)) {
        (201, Some(made)) => Ok(made),
        // Another user or process opened the pull request first, or the response to an earlier request was lost.
        (422, _) if answer.error_text().contains("already exists") => {
            find(&api, github, head, base).map_err(failed)?.ok_or_else(|| {
                let why = format!("{}, but guard cannot find that pull request", api.explain(&answer));
                failed(ApiError::Unexpected(why))
            })
        }
        _ => Err(failed(unexpected(&api, &answer))),
    }
}

fn unexpected(api: &Api<'_>, answer: &Answer) -> ApiError {
    let why = api.explain(answer);
    ApiError::Unexpected(match answer.status {
        403 | 404 => format!("{why}; the token needs write permission for pull requests"),
        _ => why,
    })
}

/// Finds the open pull request from `head` into `base`; `None` if there is none. Compares the fields of each result,
/// because a service may ignore query filters that it does not know.
fn find(api: &Api<'_>, github: &GitHub, head: &str, base: &str) -> Result<Option<PullRequest>, ApiError> {
    let whose = &github.pushes_to;
    let label = escaped(&format!("{whose}:{head}"));
    let answer = api.get(&format!("/pulls?head={label}&base={}&state=open&per_page=100", escaped(base)))?;
    let list = answer.body.as_array().filter(|_| answer.status == 200);
    let list = list.ok_or_else(|| unexpected(api, &answer))?;
    let is_it = |pull: &&Value| {
        let owner = pull["head"]["repo"]["owner"]["login"].as_str().unwrap_or_default();
        pull["state"] == "open"
            && pull["head"]["ref"] == head
            && pull["base"]["ref"] == base
            && owner.eq_ignore_ascii_case(whose)
    };
    match list.iter().find(is_it) {
        None => Ok(None),
        Some(pull) => parse_pull_request(pull, github, true)
            .map(Some)
            .ok_or_else(|| ApiError::Unexpected(api.explain(&answer))),
    }
}

/// Parses a pull request from the API's JSON; `None` if its number or URL is missing or not plausible.
fn parse_pull_request(pull: &Value, github: &GitHub, existed: bool) -> Option<PullRequest> {
    let number = pull["number"].as_u64().filter(|number| *number > 0)?;
    let url = pull["html_url"].as_str()?;
    // guard prints the URL and users open it, so it must be the page of this pull request and have no unusual
    // characters.
    let GitHub { owner, repo, .. } = github;
    let end = format!("/{owner}/{repo}/pull/{number}").to_ascii_lowercase();
    let is_fine = url.len() <= 2048
        && url.bytes().all(|byte| byte.is_ascii_graphic())
        && (url.starts_with("https://") || url.starts_with("http://"))
        && url.to_ascii_lowercase().ends_with(&end);
    is_fine.then(|| PullRequest { number, url: url.to_string(), existed })
}

fn content(github: &GitHub, head: &str, base: &str, proposal: &Proposal<'_>) -> Value {
    let line = |c: char| if crate::text::terminal_text::is_unsafe(c) { ' ' } else { c };
    let title: String = proposal.title.trim().chars().map(line).take(LONGEST_TITLE).collect();
    let title = if title.trim().is_empty() { head.to_string() } else { title };
    let mut body = proposal.body.to_string();
    if body.chars().count() > LONGEST_BODY {
        body = body.chars().take(LONGEST_BODY - CUT.chars().count()).collect();
        body.push_str(CUT);
    }
    // GitHub expects `owner:branch` for a branch of a fork.
    let head = if github.pushes_to == github.owner {
        head.to_string()
    } else {
        format!("{}:{head}", github.pushes_to)
    };
    json!({ "title": title, "head": head, "base": base, "body": body })
}
