//! What one step may use in a task, all its calls together: what is used up, said, and given more of.

use super::bad_input::acts;
use super::{Yard, said, shown};
use crate::egress::api::Api;
use crate::launch::world::Ran;

/// Asks the model once, whose answer says that it used 115 tokens.
const ASKS: &str = "curl -sS -o /dev/null -H 'content-type: application/json' -d '{\"contents\": []}' \
    \"$GOOGLE_GEMINI_BASE_URL/v1beta/models/gemini-2.5-flash:generateContent\" || exit 1";

/// A model that costs 1 for each question.
const PRICES: &str = "[prices.\"gemini-2.5-flash\"]\ninput = 10000.0\noutput = 0.0\n";

struct Bounded {
    yard: Yard,
    api: Api,
}

impl Bounded {
    /// Everybody in this role does something first.
    fn new(role: &str, first: &str) -> Self {
        let yard = Yard::new();
        acts(&yard, role, first);
        let config = yard.repository.with_file_name("config/guard");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("config.toml"), PRICES).unwrap();
        yard.world.give(&config);
        Self { yard, api: Api::plain(Vec::new()) }
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.yard.command(arguments);
        if arguments.first() != Some(&"resume") {
            command.arg("--agent-command").arg(self.yard.agent());
        }
        command
            .arg("--stream-json")
            .env("GEMINI_API_KEY", "the-key")
            .env("GOOGLE_GEMINI_BASE_URL", self.api.server.url(""))
            .env("XDG_CONFIG_HOME", self.yard.repository.with_file_name("config"));
        self.yard.world.finish(command, b"")
    }

    /// The task ends at the step's bound, goes no further without more, and finishes with it.
    fn ends_and_goes_on(&self, bound: &[&str], wanted: &str, more: &[&str]) -> Ran {
        let request = ["--name", "x", "Do it. @plan_review=REJECT,REJECT,APPROVE"];
        let ran = self.run(&[&request[..], bound].concat());
        assert_eq!((ran.code, &ran.result["status"]), (124, &"budget_exhausted".into()), "{}", shown(&ran));
        let reason = ran.result["reason"].as_str().unwrap();
        assert!(reason.contains(wanted), "{reason}");
        let next = format!("`guard task resume {} {}", ran.result["task_id"].as_str().unwrap(), more[0]);
        assert!(reason.contains(&next), "{reason}");
        let same = self.run(&["resume"]);
        assert_eq!(
            (same.code, &same.result["status"]),
            (124, &"budget_exhausted".into()),
            "{}",
            shown(&same)
        );
        let rest = self.run(&[&["resume"], more].concat());
        assert_eq!((rest.code, &rest.result["status"]), (0, &"succeeded".into()), "{}", shown(&rest));
        ran
    }
}

fn warnings(ran: &Ran) -> Vec<String> {
    said(ran).into_iter().filter(|line| line.contains("Warning:")).collect()
}

#[test]
fn tokens_of_a_step() {
    let bounded = Bounded::new("Architect.", ASKS);
    let ran = bounded.ends_and_goes_on(
        &["--max-tokens", "plan=130"],
        "the step plan has used 230 of 130 tokens",
        &["--max-tokens", "plan=100000"],
    );
    let wanted = ["ORCHESTRATOR: Warning: 88 % of the tokens of the step plan are used."];
    assert_eq!(warnings(&ran), wanted, "{}", shown(&ran));
    // The whole task may use far more, and others have used nothing.
    let task = bounded.yard.about(&["show", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&task.output).unwrap();
    assert_eq!(task["used_by"]["plan"]["tokens"], 345, "{}", task["used_by"]);
    assert_eq!(task["used_by"]["plan_review"]["tokens"], 0, "{}", task["used_by"]);
    assert_eq!(task["used"]["tokens"], 345, "{}", task["used"]);
}

#[test]
fn money_of_a_step() {
    let bounded = Bounded::new("Architect.", ASKS);
    let ran = bounded.ends_and_goes_on(
        &["--max-cost", "plan=1.2"],
        "the step plan has used 2.00 of 1.20 cost",
        &["--max-cost", "plan=10"],
    );
    let wanted = ["ORCHESTRATOR: Warning: 83 % of the cost of the step plan are used."];
    assert_eq!(warnings(&ran), wanted, "{}", shown(&ran));
}

/// An agent that is still at work when its step's time is up is ended then.
#[test]
fn minutes_of_a_step() {
    let bounded = Bounded::new("Architect.", "[[ -s $(document) ]] || sleep 4");
    let ran = bounded.ends_and_goes_on(
        &["--max-minutes", "plan=0.05"],
        "of 0.05 minutes; `guard task resume",
        &["--max-minutes", "plan=10"],
    );
    assert_eq!(warnings(&ran).len(), 1, "{}", shown(&ran));
    assert_eq!(bounded.yard.subjects("task/x").iter().filter(|subject| *subject == "Plan: x").count(), 3);
}

/// An answer that cannot be used is not asked for again when nothing is left, and what is said beside a result counts too.
#[test]
fn every_call_of_a_step_counts() {
    let unusable = format!(
        "{ASKS}\nsay 'I approve.'; printf '{{\"type\":\"result\",\"status\":\"success\"}}\\n'; exit 0"
    );
    let bounded = Bounded::new("Lead Architect", &unusable);
    let ran = bounded.run(&["--name", "x", "Do it.", "--max-tokens", "plan_review=100"]);
    assert_eq!(ran.result["status"], "budget_exhausted", "{}", shown(&ran));
    assert!(
        ran.result["reason"].as_str().unwrap().contains("plan_review has used 115 of 100"),
        "{}",
        shown(&ran)
    );
    assert_eq!(bounded.api.server.requests().len(), 1, "asked once");
    // A try that failed was a call too.
    let bounded = Bounded::new("Architect.", &format!("{ASKS}\nexit 1"));
    let ran = bounded.run(&["--name", "x", "Do it."]);
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    assert_eq!(
        (bounded.api.server.requests().len(), &ran.result["used"]["tokens"]),
        (2, &230.into()),
        "{}",
        shown(&ran)
    );
    let bounded = Bounded::new("Architect.", "");
    acts(
        &bounded.yard,
        "Lead Architect",
        "finish '{\"verdict\": \"APPROVE\", \"feedback\": {\"message\": \"a word\"}}'",
    );
    let ran = bounded.run(&["--name", "x", "Do it."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    // Four steps, and whoever decides about the word.
    assert_eq!(ran.result["used"]["calls"], 5, "{}", shown(&ran));
    let task = bounded.yard.about(&["show", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&task.output).unwrap();
    assert_eq!(task["used_by"]["plan_review"]["calls"], 2, "{}", task["used_by"]);
}

/// Rounds of one step, and steps that there are not.
#[test]
fn rounds_of_a_step_and_bad_bounds() {
    let bounded = Bounded::new("Architect.", "");
    let ran = bounded.run(&["--name", "x", "Do it. @plan_review=REJECT", "--rounds", "plan=1"]);
    assert_eq!((ran.code, &ran.result["status"]), (3, &"needs_human".into()), "{}", shown(&ran));
    assert!(ran.result["reason"].as_str().unwrap().contains("plan was asked 1 times"), "{}", shown(&ran));
    for (bound, wanted) in [
        (["--max-tokens", "pln=5"], "no step `pln`"),
        (["--max-tokens", "plan=x"], "STEP=NUMBER"),
        (["--max-cost", "plan=-1"], "not negative"),
        (["--max-minutes", "nan"], "not negative"),
    ] {
        let ran = bounded.run(&[&["--name", "y", "Do it."][..], &bound].concat());
        assert_eq!(ran.code, 2, "{}", ran.error);
        assert!(ran.error.contains(wanted), "{bound:?}: {}", ran.error);
    }
    let ran = bounded.run(&["resume", "--rounds", "pln=2"]);
    assert_eq!(ran.code, 2, "{}", ran.error);
    assert!(ran.error.contains("no step `pln`"), "{}", ran.error);
}

/// Ended by a signal in the middle of a step: what was used before it counts once.
#[test]
fn an_interruption_counts_nothing_twice() {
    let bounded = Bounded::new(
        "Lead Architect",
        "if [[ $prompt == *'You have done this already'* ]]; then sleep 30; else \
         say 'I approve.'; printf '{\"type\":\"result\",\"status\":\"success\"}\\n'; exit 0; fi",
    );
    let yard = &bounded.yard;
    let mut command = yard.command(&["--json", "--name", "x", "Do it.", "--agent-command"]);
    let mut child = command.arg(yard.agent()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    let is_asked_again = || {
        let shown = yard.about(&["show", "--json"]);
        String::from_utf8_lossy(&shown.output).contains("\"effect\": \"repair\"")
    };
    while !is_asked_again() {
        assert!(began.elapsed().as_secs() < 60, "it was not asked again");
    }
    yard.world.outside(&format!("kill -TERM {}", child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let text = std::fs::read_to_string(yard.agent()).unwrap();
    std::fs::write(yard.agent(), text.replace("sleep 30", "true")).unwrap();
    let ran = bounded.run(&["resume"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(ran.result["used"]["calls"], 5, "{}", shown(&ran));
}
