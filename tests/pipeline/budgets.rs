// slow
//! Tests the limits for one step of a task, which count all its calls: when guard ends the task, what it reports, and
//! how the user raises them.

use super::bad_input::acts;
use crate::support::scripted_api::Api;
use crate::support::{RunOutcome, TaskFixture, describe_task, task_messages};

/// A command that sends one request to the model. The response reports 115 tokens.
const ASKS: &str = "curl -sS -o /dev/null -H 'content-type: application/json' -d '{\"contents\": []}' \
    \"$GOOGLE_GEMINI_BASE_URL/v1beta/models/gemini-2.5-flash:generateContent\" || exit 1";

/// Prices at which each request costs 1.
const PRICES: &str = "[prices.\"gemini-2.5-flash\"]\ninput = 10000.0\noutput = 0.0\n";

struct Bounded {
    fixture: TaskFixture,
    api: Api,
}

impl Bounded {
    /// Creates a repository and a scripted agent that runs this command first whenever it has this role, and starts a
    /// scripted API.
    fn new(role: &str, first: &str) -> Self {
        let fixture = TaskFixture::new();
        acts(&fixture, role, first);
        let config = fixture.repository.with_file_name("config/guard");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("config.toml"), PRICES).unwrap();
        fixture.environment.give_to_user(&config);
        Self { fixture, api: Api::plain(Vec::new()) }
    }

    fn run(&self, arguments: &[&str]) -> RunOutcome {
        let mut command = self.fixture.command(arguments);
        if arguments.first() != Some(&"resume") {
            command.arg("--agent-command").arg(self.fixture.agent());
        }
        command
            .arg("--stream-json")
            .env("GEMINI_API_KEY", "the-key")
            .env("GOOGLE_GEMINI_BASE_URL", self.api.server.url(""))
            .env("XDG_CONFIG_HOME", self.fixture.repository.with_file_name("config"));
        self.fixture.environment.run_to_end(command, b"")
    }

    /// Runs a task with the limit `bound`: the task must end at the limit, must end again when it is resumed with the
    /// same limit, and must finish when `more` raises the limit.
    fn ends_and_goes_on(&self, bound: &[&str], wanted: &str, more: &[&str]) -> RunOutcome {
        let request = ["--name", "x", "Do it. @plan_review=REJECT,REJECT,APPROVE"];
        let outcome = self.run(&[&request[..], bound].concat());
        assert_eq!(
            (outcome.code, &outcome.result["status"]),
            (124, &"budget_exhausted".into()),
            "{}",
            describe_task(&outcome)
        );
        let reason = outcome.result["reason"].as_str().unwrap();
        assert!(reason.contains(wanted), "{reason}");
        let next = format!("`guard task resume {} {}", outcome.result["task_id"].as_str().unwrap(), more[0]);
        assert!(reason.contains(&next), "{reason}");
        let same = self.run(&["resume"]);
        assert_eq!(
            (same.code, &same.result["status"]),
            (124, &"budget_exhausted".into()),
            "{}",
            describe_task(&same)
        );
        let rest = self.run(&[&["resume"], more].concat());
        assert_eq!((rest.code, &rest.result["status"]), (0, &"succeeded".into()), "{}", describe_task(&rest));
        outcome
    }
}

fn warnings(outcome: &RunOutcome) -> Vec<String> {
    task_messages(outcome).into_iter().filter(|line| line.contains("Warning:")).collect()
}

#[test]
fn token_budget_of_a_step_stops_the_task() {
    let bounded = Bounded::new("Architect.", ASKS);
    let outcome = bounded.ends_and_goes_on(
        &["--max-tokens", "plan=130"],
        "the step plan has used 230 of 130 tokens",
        &["--max-tokens", "plan=100000"],
    );
    let wanted = ["ORCHESTRATOR: Warning: the step plan has used 88 % of its limit for tokens."];
    assert_eq!(warnings(&outcome), wanted, "{}", describe_task(&outcome));
    // The limit is for one step: the step `plan` has used it, and other steps have used nothing.
    let task = bounded.fixture.about(&["show", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&task.output).unwrap();
    assert_eq!(task["used_by"]["plan"]["tokens"], 345, "{}", task["used_by"]);
    assert_eq!(task["used_by"]["plan_review"]["tokens"], 0, "{}", task["used_by"]);
    assert_eq!(task["used"]["tokens"], 345, "{}", task["used"]);
}

#[test]
fn cost_budget_of_a_step_stops_the_task() {
    let bounded = Bounded::new("Architect.", ASKS);
    let outcome = bounded.ends_and_goes_on(
        &["--max-cost", "plan=1.2"],
        "the step plan has cost 2.00, and its limit is 1.20",
        &["--max-cost", "plan=10"],
    );
    let wanted = ["ORCHESTRATOR: Warning: the step plan has used 83 % of its limit for cost."];
    assert_eq!(warnings(&outcome), wanted, "{}", describe_task(&outcome));
}

/// guard must end an agent that still works when the time of its step is over.
#[test]
fn time_budget_of_a_step_ends_a_running_agent() {
    let bounded = Bounded::new("Architect.", "[[ -s $(document) ]] || sleep 4");
    let outcome = bounded.ends_and_goes_on(
        &["--max-minutes", "plan=0.05"],
        "of 0.05 minutes; `guard task resume",
        &["--max-minutes", "plan=10"],
    );
    assert_eq!(warnings(&outcome).len(), 1, "{}", describe_task(&outcome));
    assert_eq!(bounded.fixture.subjects("task/x").iter().filter(|subject| *subject == "Plan: x").count(), 3);
}

/// If a step's budget is used up, guard must not ask the agent to correct an unusable answer. Failed attempts, and the
/// triage of remarks, must count as calls of the step.
#[test]
fn every_agent_call_counts_for_its_step() {
    let unusable = format!(
        "{ASKS}\nsay 'I approve.'; printf '{{\"type\":\"result\",\"status\":\"success\"}}\\n'; exit 0"
    );
    let bounded = Bounded::new("Lead Architect", &unusable);
    let outcome = bounded.run(&["--name", "x", "Do it.", "--max-tokens", "plan_review=100"]);
    assert_eq!(outcome.result["status"], "budget_exhausted", "{}", describe_task(&outcome));
    assert!(
        outcome.result["reason"].as_str().unwrap().contains("plan_review has used 115 of 100"),
        "{}",
        describe_task(&outcome)
    );
    assert_eq!(bounded.api.server.requests().len(), 1, "asked once");
    // A failed attempt must count as a call too.
    let bounded = Bounded::new("Architect.", &format!("{ASKS}\nexit 1"));
    let outcome = bounded.run(&["--name", "x", "Do it."]);
    assert_eq!(outcome.result["status"], "failed", "{}", describe_task(&outcome));
    assert_eq!(
        (bounded.api.server.requests().len(), &outcome.result["used"]["tokens"]),
        (2, &230.into()),
        "{}",
        describe_task(&outcome)
    );
    let bounded = Bounded::new("Architect.", "");
    acts(
        &bounded.fixture,
        "Lead Architect",
        "finish '{\"verdict\": \"APPROVE\", \"feedback\": {\"message\": \"a word\"}}'",
    );
    let outcome = bounded.run(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    // The four steps make one call each, and the triage of the remark is the fifth.
    assert_eq!(outcome.result["used"]["calls"], 5, "{}", describe_task(&outcome));
    let task = bounded.fixture.about(&["show", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&task.output).unwrap();
    assert_eq!(task["used_by"]["plan_review"]["calls"], 2, "{}", task["used_by"]);
}

/// guard must limit the rounds of one step, and must reject a limit for an unknown step.
#[test]
fn rounds_of_a_step_are_limited_and_unknown_steps_rejected() {
    let bounded = Bounded::new("Architect.", "");
    let outcome = bounded.run(&["--name", "x", "Do it. @plan_review=REJECT", "--rounds", "plan=1"]);
    assert_eq!(
        (outcome.code, &outcome.result["status"]),
        (3, &"needs_human".into()),
        "{}",
        describe_task(&outcome)
    );
    assert!(
        outcome.result["reason"].as_str().unwrap().contains("the step plan has run once"),
        "{}",
        describe_task(&outcome)
    );
    for (bound, wanted) in [
        (["--max-tokens", "pln=5"], "no step `pln`"),
        (["--max-tokens", "plan=x"], "STEP=NUMBER"),
        (["--max-cost", "plan=-1"], "not negative"),
        (["--max-minutes", "nan"], "not negative"),
    ] {
        let outcome = bounded.run(&[&["--name", "y", "Do it."][..], &bound].concat());
        outcome.expect_code(2);
        assert!(outcome.error.contains(wanted), "{bound:?}: {outcome}");
    }
    let outcome = bounded.run(&["resume", "--rounds", "pln=2"]);
    outcome.expect_code(2);
    assert!(outcome.error.contains("no step `pln`"), "{outcome}");
}

/// A signal ends a task in the middle of a step. After a resume, guard must count the calls from before the signal, and
/// each of them only once.
#[test]
fn calls_before_an_interruption_count_once() {
    let bounded = Bounded::new(
        "Lead Architect",
        "if [[ $prompt == *'You have done this already'* ]]; then sleep 30; else \
         say 'I approve.'; printf '{\"type\":\"result\",\"status\":\"success\"}\\n'; exit 0; fi",
    );
    let fixture = &bounded.fixture;
    let mut command = fixture.command(&["--json", "--name", "x", "Do it.", "--agent-command"]);
    let mut child = command.arg(fixture.agent()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    let is_asked_again = || {
        let shown = fixture.about(&["show", "--json"]);
        String::from_utf8_lossy(&shown.output).contains("\"effect\": \"repair\"")
    };
    while !is_asked_again() {
        assert!(began.elapsed().as_secs() < 180, "it was not asked again");
    }
    fixture.environment.run_outside(&format!("kill -TERM {}", child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let text = std::fs::read_to_string(fixture.agent()).unwrap();
    std::fs::write(fixture.agent(), text.replace("sleep 30", "true")).unwrap();
    let outcome = bounded.run(&["resume"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(outcome.result["used"]["calls"], 5, "{}", describe_task(&outcome));
}
