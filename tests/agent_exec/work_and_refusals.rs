// slow
//! An agent does what it is asked to do. guard refuses what the policy does not allow, and the agent continues.

use serde_json::json;

use super::{exec, request};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{in_two_environments, one_environment};

/// The agent edits, tests and commits in its own worktree. Its branch must exist after the run.
#[test]
fn gemini_edits_tests_and_commits_on_its_branch() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_environments(|environment| {
        let repository = environment.directory.with_file_name("repository");
        environment.run_outside(
            "cd repository && git config user.name Person && git config user.email person@example.org",
        );
        let api = Api::plain(vec![
            Turn::shell("echo second >> tracked && grep -c . tracked"),
            Turn::shell("git add -A && git commit -m 'Add a second line'"),
            Turn::text("I added a line."),
        ]);
        let mut asked = request(
            &gemini,
            environment,
            "add a line",
            &json!({ "return_metrics": true, "return_all_messages": true }),
        );
        asked["cd"] = json!(repository);
        super::fits(&super::schema("exec-request.schema.json"), &asked);
        let answered = exec(environment, &api.server.url(""), &asked);
        let result = &answered.result;
        assert_eq!(
            (answered.code, &result["success"]),
            (0, &json!(true)),
            "{}: {}",
            environment.name(),
            answered.shown()
        );
        assert_eq!(result["tool"], "gemini");
        assert_eq!(result["result"], "I added a line.");
        assert!(result["SESSION_ID"].as_str().is_some_and(|id| id.len() == 36), "{}", answered.shown());
        assert_eq!(result["commits"][0]["subject"], "Add a second line", "{}", answered.shown());
        let branch = result["worktree"]["branch"].as_str().unwrap();
        let log = environment.run_outside(&format!("git -C repository log --format='%s by %an' {branch} -1"));
        assert_eq!(log.trim(), "Add a second line by Person");
        assert_eq!(environment.run_outside("cat repository/tracked"), "first\n");
        let kinds: Vec<&str> =
            answered.events.iter().filter_map(|event| event["event_type"].as_str()).collect();
        for kind in [
            "run.started",
            "agent.init",
            "agent.tool_use",
            "agent.tool_result",
            "agent.message",
            "agent.result",
            "exec",
        ] {
            assert!(kinds.contains(&kind), "{kind} is missing: {kinds:?}");
        }
        assert!(result["metrics"]["agent"]["total_tokens"].as_u64() > Some(0), "{}", answered.shown());
        assert!(result["all_messages"].as_array().is_some_and(|all| all.len() >= 6), "{}", answered.shown());
    });
}

/// A prompt that is too long for a command line, and prompts that look like options or shell syntax, must reach the
/// model unchanged.
#[test]
fn gemini_receives_long_and_option_like_prompts_unchanged() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let long = format!("begin {} end of it", "long ".repeat(90_000));
    for prompt in [long, "--version -x".to_string(), "$(id) `id` 'q' \"d\"".to_string()] {
        let api = Api::plain(vec![Turn::text("Yes.")]);
        let asked = request(&gemini, &environment, &prompt, &json!({ "sandbox": "read-only" }));
        let answered = exec(&environment, &api.server.url(""), &asked);
        assert_eq!(answered.result["result"], "Yes.", "{}", answered.shown());
        let told = api.questions().pop().unwrap().json()["contents"].to_string();
        let end = json!(&prompt[prompt.len().saturating_sub(12)..]).to_string();
        assert!(told.contains(end.trim_matches('"')), "{}", &told[told.len().saturating_sub(500)..]);
    }
}

/// The model calls forbidden commands. guard must refuse each, the model must get the reason, and the run must
/// complete.
#[test]
fn gemini_gets_the_reason_of_a_refusal_and_continues() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_environments(|environment| {
        let repository = environment.directory.with_file_name("repository");
        let api = Api::plain(vec![
            Turn::shell("git checkout main"),
            Turn::shell("git push origin main"),
            Turn::shell("cat /root/.ssh/id_rsa ~/../.ssh/id_rsa"),
            Turn::shell("curl -sS https://elsewhere.example/"),
            Turn::shell("/usr/bin/git reset --hard HEAD~1"),
            Turn::text("I could not."),
        ]);
        let mut asked = request(&gemini, environment, "break out", &json!({}));
        asked["cd"] = json!(repository);
        let before = environment.run_outside("git -C repository for-each-ref; cat repository/.git/HEAD");
        let answered = exec(environment, &api.server.url(""), &asked);
        assert_eq!(answered.result["success"], true, "{}", answered.shown());
        assert_eq!(answered.result["result"], "I could not.");
        let told: Vec<String> = api.tool_results().iter().map(|(_, response)| response.to_string()).collect();
        assert!(told[0].contains("git.switch") && told[0].contains("git restore"), "{}", told[0]);
        assert!(told[1].contains("git.remote"), "{}", told[1]);
        assert!(told[2].contains("Permission denied") || told[2].contains("No such file"), "{}", told[2]);
        assert!(told[3].contains("curl:"), "{}", told[3]);
        assert!(told[4].contains("git.rewrite"), "{}", told[4]);
        assert_eq!(
            before,
            environment.run_outside("git -C repository for-each-ref; cat repository/.git/HEAD")
        );
        assert!(
            answered.result["denials"].as_array().is_some_and(|all| all.len() >= 4),
            "{}",
            answered.shown()
        );
    });
}
