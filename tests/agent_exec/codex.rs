// slow
//! Runs the real Codex CLI with a scripted OpenAI API.

use super::agents::{Api, Cli};
use crate::support::http_server::Request;
use crate::support::scripted_api::openai::{self, OpenAi, fails};
use crate::support::scripted_api::{Part, Turn};

impl Api for OpenAi {
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

pub(crate) const CODEX: Cli = Cli {
    agent: "codex",
    variables: ["CODEX_API_KEY", "OPENAI_BASE_URL"],
    api: |turns| Box::new(OpenAi::new(turns)),
    shell: openai::shell,
    write: openai::write,
    key_header: ("authorization", "Bearer sk-real-4711"),
};

#[test]
fn codex_edits_tests_and_commits_and_continues_after_refusals() {
    CODEX.edits_tests_commits_and_is_refused();
}

#[test]
fn codex_session_continues_in_the_next_request() {
    CODEX.a_session_goes_on();
}

#[test]
fn codex_api_errors_have_their_error_kind() {
    CODEX.failures_have_their_kind(&[
        (fails(400, "invalid_request_error", "invalid", "Bad request"), "invalid_input"),
        (fails(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided"), "auth_error"),
        (fails(403, "permission_error", "forbidden", "No access"), "auth_error"),
        (
            fails(404, "invalid_request_error", "model_not_found", "The model x does not exist"),
            "invalid_input",
        ),
        (fails(429, "tokens", "rate_limit_exceeded", "Rate limit reached"), "rate_limited"),
        (fails(429, "insufficient_quota", "insufficient_quota", "You exceeded your quota"), "rate_limited"),
        (fails(500, "server_error", "none", "Internal server error"), "upstream_error"),
        (Turn::Cut(vec![Part::Text("Half".to_string())]), "upstream_error"),
    ]);
}

#[test]
fn codex_is_ended_by_idle_limit_and_token_budget() {
    CODEX.silence_and_budget_end_it();
}

#[test]
fn codex_receives_long_and_option_like_prompts_unchanged() {
    CODEX.odd_prompts_arrive();
}
