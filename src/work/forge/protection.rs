//! Determines whether a branch of the remote is protected: it must require pull requests and reject force pushes.
//!
//! GitHub has two mechanisms, and both apply to a branch: rulesets (of the repository and its organization), which
//! everyone who can read the repository can read, and the older branch protection, which only administrators can
//! read.

use std::ops::BitOr;

use serde::{Deserialize, Serialize};

use super::api::{Answer, Api, escaped};
use super::remote::{GitHub, Remote};
use super::short;
use super::token::Token;

/// Maximum number of pages that guard reads from GitHub's list of rules.
const MOST_PAGES: usize = 10;

/// The protection of a branch on GitHub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub enum Protection {
    /// A pull request is required, and force pushes are blocked.
    Protected,
    /// The branch lacks at least one of the required protections.
    Unprotected {
        /// The missing protections, as text for the user.
        missing: Vec<String>,
    },
    /// guard cannot determine the protection. Callers must never treat this as protected.
    Unknown { why: String },
}

/// The protections that are known to apply to a branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct InForce {
    pull_request: bool,
    no_force: bool,
}

impl BitOr for InForce {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            pull_request: self.pull_request || other.pull_request,
            no_force: self.no_force || other.no_force,
        }
    }
}

/// The protections that one of GitHub's mechanisms gives a branch. `problem` says why guard could not read all of them;
/// `None` if it could.
#[derive(Debug, Default)]
struct Found {
    in_force: InForce,
    problem: Option<String>,
}

impl Found {
    fn unreadable(problem: String) -> Self {
        Self { problem: Some(problem), ..Self::default() }
    }
}

/// Determines whether a branch is protected. Without a token, guard reads only the public rulesets, and returns
/// [`Protection::Unknown`] unless these already protect the branch.
pub fn protection(remote: &Remote, token: Option<&Token>, branch: &str) -> Protection {
    let Some(github) = remote.github() else {
        return Protection::Unknown { why: format!("{} is not on GitHub", remote.shown) };
    };
    match Api::new(github, token) {
        Ok(api) => combine(github, rules(&api, short(branch)), classic(&api, token, short(branch))),
        Err(error) => Protection::Unknown { why: error.to_string() },
    }
}

fn combine(github: &GitHub, rules: Found, classic: Found) -> Protection {
    let in_force = rules.in_force | classic.in_force;
    if in_force.pull_request && in_force.no_force {
        return Protection::Protected;
    }
    let problems: Vec<String> = [
        rules.problem.map(|problem| format!("its rulesets cannot be read: {problem}")),
        classic.problem.map(|problem| format!("its branch protection cannot be read: {problem}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !problems.is_empty() {
        let GitHub { owner, repo, .. } = github;
        return Protection::Unknown { why: format!("{owner}/{repo}: {}", problems.join("; ")) };
    }
    let missing = [
        (in_force.pull_request, "pull requests are not required"),
        (in_force.no_force, "force pushes are not blocked"),
    ];
    let missing = missing.iter().filter(|(is_there, _)| !is_there).map(|(_, words)| (*words).to_string());
    Protection::Unprotected { missing: missing.collect() }
}

/// Reads the rulesets that apply to a branch. After an error, returns what guard has read so far, and the problem.
fn rules(api: &Api<'_>, branch: &str) -> Found {
    let mut found = Found::default();
    for page in 1..=MOST_PAGES {
        let answer = match api.get(&format!("/rules/branches/{}?per_page=100&page={page}", escaped(branch))) {
            Ok(answer) => answer,
            Err(error) => return Found { problem: Some(error.to_string()), ..found },
        };
        let Some(types) = types_of(&answer) else {
            return Found { problem: Some(api.explain(&answer)), ..found };
        };
        found.in_force = found.in_force
            | InForce {
                pull_request: types.contains(&"pull_request"),
                no_force: types.contains(&"non_fast_forward"),
            };
        if !answer.has_more() {
            return found;
        }
    }
    Found { problem: Some(format!("there are more than {MOST_PAGES} pages of rules")), ..found }
}

/// Returns the value of `type` in every rule of a response; `None` if the response is not a list of rules.
fn types_of(answer: &Answer) -> Option<Vec<&str>> {
    let rules = answer.body.as_array().filter(|_| answer.status == 200)?;
    rules.iter().map(|rule| rule["type"].as_str()).collect()
}

/// Reads the older branch protection, which GitHub also calls classic. Without a token, sends no request and only
/// reports that a token is missing.
fn classic(api: &Api<'_>, token: Option<&Token>, branch: &str) -> Found {
    if token.is_none() {
        return Found::unreadable(
            "reading it needs a token; set GH_TOKEN or run `gh auth login`".to_string(),
        );
    }
    let answer = match api.get(&format!("/branches/{}/protection", escaped(branch))) {
        Ok(answer) => answer,
        Err(error) => return Found::unreadable(error.to_string()),
    };
    match answer.status {
        200 if answer.body.is_object() => {
            let pull_request = answer.body["required_pull_request_reviews"].is_object();
            let no_force = answer.body["allow_force_pushes"]["enabled"] == false;
            Found { in_force: InForce { pull_request, no_force }, problem: None }
        }
        // GitHub sends this exact message only to users who may read the protection. Others get a plain "Not Found".
        404 if answer.error_text() == "Branch not protected" => Found::default(),
        _ => Found::unreadable(api.explain(&answer)),
    }
}
