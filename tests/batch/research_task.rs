// slow
//! A program submits questions as tasks of the type `research`. The agent is a shell script.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::command_line::{poll_to_the_end, result};
use crate::research::{PLAN, Researcher};
use crate::support::{holds_within, wait_until};

/// Submits the tasks with the scripted agent on PATH, which the worker inherits.
fn submit(researcher: &Researcher, tasks: &Value) -> Value {
    std::fs::write(researcher.user.home().join("tasks.json"), tasks.to_string()).unwrap();
    let (printed, code) = researcher.ends("guard batch submit ~/tasks.json");
    assert_eq!(code, 0, "{printed}");
    serde_json::from_str(&printed).unwrap()
}

/// Returns how many directories of research sessions are left in the directory of the queue.
fn sessions(researcher: &Researcher) -> usize {
    let queue = researcher.user.home().join(".local/state/guard/batch");
    let entries = std::fs::read_dir(queue).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("research-")).count()
}

/// A program submits two questions. The first must get an answer from the sub-queries that succeeded. The second
/// exceeds the time limit of its task, and its hanging agents must end.
#[test]
fn research_task_is_answered_and_a_slow_one_ends_at_its_time_limit() {
    let plan = format!(r#"case "$prompt" in *'Who waits?'*) say '"[\"the waiting\"]"' ;; esac; {PLAN}"#);
    let answers = r#"case "$question" in
        markets) fail 'no market data' ;;
        *waiting*) sleep 1000 ;;
        esac
        say "\"All about $question.\""
    "#;
    let synthesis = r#"say '"Qubits improve [1](https://a.org/x)."'"#;
    let researcher = Researcher::new("batch-research", &plan, answers, synthesis);
    let first = submit(
        &researcher,
        &json!([
            {"task_id": "quantum", "type": "research", "parameters": {"query": "State of quantum computing?", "max_queries": 5}},
            {"task_id": "slow", "type": "research", "parameters": {"query": "Who waits?"}, "timeout": 8},
        ]),
    );
    let last = poll_to_the_end(&researcher.user, &first);
    let output = &result(&last, "quantum")["output"];
    assert!(output["answer"].as_str().unwrap_or_default().contains("Qubits improve"), "{last:#}");
    // No sub-query retrieved the page, so it must not be listed as a source.
    assert_eq!(output["sources"], json!([]), "{last:#}");
    assert!(output["unconfirmed"].to_string().contains("https://a.org/x"), "{last:#}");
    assert!(output["unconfirmed"].to_string().contains("no market data"), "{last:#}");
    let metadata = &output["metadata"];
    assert_eq!((&metadata["sub_queries_succeeded"], &metadata["sub_queries_failed"]), (&json!(4), &json!(1)));
    let slow = result(&last, "slow");
    assert_eq!((&slow["status"], &slow["error_kind"]), (&json!("failed"), &json!("timed_out")), "{last:#}");
    assert_eq!(slow["error"], "the research took longer than 8 s");
    researcher.user.sees("guard ps", &["no runs"]);
    assert_eq!(sessions(&researcher), 0);
}

/// The user cancels a batch while the agents work on sub-queries. The worker must end all of them.
#[test]
fn cancelled_research_task_ends_its_agents() {
    let researcher = Researcher::new("batch-research-cancel", PLAN, "sleep 1000", "fail x");
    let first =
        submit(&researcher, &json!([{"task_id": "q", "type": "research", "parameters": {"query": "q"}}]));
    // The plan and the five sub-queries have a run each.
    wait_until("six runs", || researcher.user.kept_runs().len() == 6);
    let id = first["response_id"].as_str().unwrap();
    assert_eq!(researcher.user.types(&format!("guard batch cancel {id}")), "cancelled 1 task\n");
    let is_quiet = holds_within(Duration::from_secs(30), || {
        researcher.user.ends("guard ps").0.contains("no runs") && sessions(&researcher) == 0
    });
    assert!(is_quiet, "{}", researcher.user.ends("guard ps").0);
    let last = poll_to_the_end(&researcher.user, &first);
    assert_eq!(result(&last, "q")["error_kind"], "cancelled", "{last:#}");
}

/// The worker is killed after three of five sub-queries have an answer. The next attempt must run only the other two
/// and the synthesis.
#[test]
fn killed_worker_repeats_no_finished_sub_query() {
    the_next_attempt_continues("batch-research-killed", Signal::SIGKILL);
}

/// A worker that is told to stop gives its tasks back to the queue. The next attempt must not ask again, and pay again,
/// for answers that the stopped worker has received.
#[test]
fn stopped_worker_repeats_no_finished_sub_query() {
    the_next_attempt_continues("batch-research-stopped", Signal::SIGTERM);
}

fn the_next_attempt_continues(name: &str, signal: Signal) {
    let answers =
        r#"case "$question" in vendors | markets) sleep 300 ;; esac; say "\"All about $question.\"""#;
    let researcher = Researcher::new(name, PLAN, answers, r#"say '"Done."'"#);
    let tasks = json!([{"task_id": "q", "type": "research", "parameters": {"query": "q"}}]);
    std::fs::write(researcher.user.home().join("tasks.json"), tasks.to_string()).unwrap();
    let (printed, code) = researcher.ends("guard batch submit --no-worker ~/tasks.json");
    assert_eq!(code, 0, "{printed}");
    let first: Value = serde_json::from_str(&printed).unwrap();
    let script = format!("{}exec guard worker", Researcher::preamble());
    let mut command = researcher.user.command("bash");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut worker = command.spawn().unwrap();
    let answers = || {
        let (found, _) = researcher.ends("cat ~/.local/state/guard/batch/research/*/journal.jsonl");
        found.matches("{\"finished\":").count()
    };
    wait_until("three answers", || answers() == 3);
    kill(Pid::from_raw(i32::try_from(worker.id()).unwrap()), signal).unwrap();
    worker.wait().unwrap();
    assert_eq!(answers(), 3);
    wait_until("the end of all runs", || researcher.ends("guard ps").0.contains("no runs"));
    let before = researcher.user.kept_runs().len();
    let agent = researcher.user.home().join("bin/gemini");
    let text = std::fs::read_to_string(&agent).unwrap().replace("sleep 300", "sleep 0");
    std::fs::write(&agent, text).unwrap();
    let (printed, code) = researcher.ends("guard worker --until-idle");
    assert_eq!(code, 0, "{printed}");
    let last = poll_to_the_end(&researcher.user, &first);
    assert_eq!(result(&last, "q")["output"]["answer"], "Done.", "{last:#}");
    assert_eq!(researcher.user.kept_runs().len() - before, 3);
    assert_eq!(sessions(&researcher), 0);
    researcher.user.types("test -z \"$(ls ~/.local/state/guard/batch/research)\"");
}
