// slow
//! A user kills or interrupts `guard research`. It must leave no process behind, and must continue where it was when
//! it is resumed.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::{PLAN, Researcher};
use crate::support::{holds_within, wait_until};

fn runs(researcher: &Researcher) -> usize {
    researcher.user.kept_runs().len()
}

/// Starts `guard research` in the background, with its events in `~/events`.
fn start(researcher: &Researcher) -> std::process::Child {
    let events = std::fs::File::create(researcher.user.home().join("events")).unwrap();
    let path = format!(
        "{}:{}:/usr/local/bin:/usr/bin:/bin",
        researcher.user.home().join("bin").display(),
        std::path::Path::new(env!("CARGO_BIN_EXE_guard")).parent().unwrap().display()
    );
    researcher
        .user
        .command("env")
        .args([
            "--default-signal=HUP,INT,QUIT",
            "guard",
            "research",
            "q",
            "--stream-json",
            "--max-retries",
            "0",
        ])
        .env("PATH", path)
        .env("GEMINI_API_KEY", "key")
        .stdin(Stdio::null())
        .stdout(events)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn count(researcher: &Researcher, event_type: &str) -> usize {
    let text = std::fs::read_to_string(researcher.user.home().join("events")).unwrap_or_default();
    text.matches(&format!("\"event_type\":\"{event_type}\"")).count()
}

fn resume(researcher: &Researcher) -> Value {
    let id = researcher.ids().pop().unwrap();
    let (printed, code) = researcher.ends(&format!("guard research --resume {id} --json 2> /dev/null"));
    assert_eq!(code, 0, "{printed}");
    serde_json::from_str(&printed).unwrap()
}

fn expect_no_runs(researcher: &Researcher) {
    let is_quiet =
        holds_within(Duration::from_secs(120), || researcher.ends("guard ps").0.contains("no runs"));
    assert!(is_quiet, "{}", researcher.ends("guard ps").0);
}

/// Returns the script for sub-queries: it answers at once, except for `vendors` and `markets`, which take this many
/// seconds.
fn two_slow(seconds: u32) -> String {
    format!(
        r#"case "$question" in vendors | markets) sleep {seconds} ;; esac; say "\"All about $question.\"""#
    )
}

#[test]
fn killed_research_repeats_no_finished_sub_query() {
    let researcher = Researcher::new("research-killed", PLAN, &two_slow(300), r#"say '"Done."'"#);
    let mut child = start(&researcher);
    wait_until("three answers", || count(&researcher, "sub_query_completed") == 3);
    child.kill().unwrap();
    child.wait().unwrap();
    expect_no_runs(&researcher);
    let before = runs(&researcher);
    assert_eq!(before, 6);
    let agent = researcher.user.home().join("bin/gemini");
    let text = std::fs::read_to_string(&agent).unwrap().replace("sleep 300", "sleep 0");
    std::fs::write(&agent, text).unwrap();
    let result = resume(&researcher);
    // The resumed run must start agents only for the two unfinished sub-queries and the synthesis. The plan and three
    // answers come from the journal.
    assert_eq!(runs(&researcher) - before, 3);
    assert_eq!(result["metadata"]["sub_queries_succeeded"], 5);
    assert_eq!(result["sub_queries"][0]["result"], "All about hardware.");
    assert_eq!(result["answer"], "Done.");
}

#[test]
fn ctrl_c_in_every_phase_ends_all_processes_and_can_be_resumed() {
    let slow_plan = format!("sleep 2; {PLAN}");
    for (name, plan, sub_query, synthesis, event) in [
        ("plan", slow_plan.as_str(), two_slow(0), r#"say '"Done."'"#, "decomposition_started"),
        ("sub-queries", PLAN, two_slow(4), r#"say '"Done."'"#, "sub_query_completed"),
        ("synthesis", PLAN, two_slow(0), r#"sleep 2; say '"Done."'"#, "synthesis_started"),
    ] {
        let researcher = Researcher::new(&format!("research-int-{name}"), plan, &sub_query, synthesis);
        let mut child = start(&researcher);
        wait_until(event, || count(&researcher, event) > 0);
        // Waits until the agent of this phase works.
        std::thread::sleep(Duration::from_millis(600));
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()),
            nix::sys::signal::Signal::SIGINT,
        )
        .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{name}");
        assert!(researcher.ends("guard ps").0.contains("no runs"), "{name}");
        assert_eq!(count(&researcher, "research_failed"), 1, "{name}");
        let result = resume(&researcher);
        assert_eq!((result["answer"].as_str(), name), (Some("Done."), name));
    }
}

/// While research is in progress, another program sends valid and invalid commands to it. guard must obey the valid
/// ones, and reject the others.
#[test]
fn running_research_obeys_valid_commands() {
    let researcher = Researcher::new("research-control", PLAN, "sleep 60", r#"say '"Done."'"#);
    let mut child = start(&researcher);
    wait_until("a sub-query", || count(&researcher, "sub_query_started") > 0);
    let id = researcher.ids().pop().unwrap();
    let send = |command: &str| {
        let (printed, _) = researcher.ends(&format!("guard control {id} {command} --json"));
        let answer: Value = serde_json::from_str(printed.trim()).unwrap_or_else(|_| panic!("{printed}"));
        answer["status"].as_str().unwrap().to_string()
    };
    assert_eq!(send("pause"), "completed");
    assert_eq!(send("resume"), "completed");
    assert_eq!(send("adjust_config --data '{\"max_tokens\": 90000}'"), "completed");
    assert_eq!(send("adjust_config --data '{\"max_tokens\": \"many\"}'"), "rejected");
    assert_eq!(send("adjust_config --data '{\"depth\": 3}'"), "rejected");
    assert_eq!(send("fly"), "rejected");
    assert_eq!(send("cancel"), "completed");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    expect_no_runs(&researcher);
}
