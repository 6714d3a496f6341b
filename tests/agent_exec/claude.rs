// slow
//! Runs the real Claude Code with a scripted Anthropic API.

use super::agents::{Api, Cli, KEY};
use crate::support::http_server::Request;
use crate::support::scripted_api::anthropic::{self, Anthropic, fails};
use crate::support::scripted_api::{Part, Turn};

impl Api for Anthropic {
    fn url(&self) -> String {
        self.server.url("")
    }

    fn questions(&self) -> Vec<Request> {
        self.questions()
    }

    fn tool_results(&self) -> Vec<String> {
        self.tool_results()
    }
}

pub(crate) const CLAUDE: Cli = Cli {
    agent: "claude",
    variables: ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"],
    api: |turns| Box::new(Anthropic::new(turns)),
    shell: anthropic::shell,
    write: anthropic::write,
    key_header: ("x-api-key", KEY),
};

#[test]
fn claude_edits_tests_and_commits_and_continues_after_refusals() {
    CLAUDE.edits_tests_commits_and_is_refused();
}

#[test]
fn claude_session_continues_in_the_next_request() {
    CLAUDE.a_session_goes_on();
}

#[test]
fn claude_api_errors_have_their_error_kind() {
    CLAUDE.failures_have_their_kind(&[
        (fails(400, "invalid_request_error", "Bad request"), "invalid_input"),
        (fails(401, "authentication_error", "invalid x-api-key"), "auth_error"),
        (fails(403, "permission_error", "No access"), "auth_error"),
        (fails(404, "not_found_error", "model: x"), "invalid_input"),
        (fails(429, "rate_limit_error", "Number of tokens per minute exceeded"), "rate_limited"),
        (fails(500, "api_error", "Internal server error"), "upstream_error"),
        (fails(529, "overloaded_error", "Overloaded"), "upstream_error"),
        (Turn::Cut(vec![Part::Text("Half".to_string())]), "upstream_error"),
    ]);
}

#[test]
fn claude_is_ended_by_idle_limit_and_token_budget() {
    CLAUDE.silence_and_budget_end_it();
}

#[test]
fn claude_receives_long_and_option_like_prompts_unchanged() {
    CLAUDE.odd_prompts_arrive();
}
