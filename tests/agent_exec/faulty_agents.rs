// slow
//! Tests agents that crash, lie, hang or print too much. The agents are shell scripts of the tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Answered, exec};
use crate::support::{
    TestEnvironment, guard_program, make_program, one_environment, peak_memory, skip_unsupported,
};

const INIT: &str = r#"{"type":"init","session_id":"s"}"#;
const DONE: &str = r#"{"type":"result","status":"success","stats":{}}"#;
const FAILED: &str = r#"{"type":"result","status":"error","error":{"message":"no"}}"#;

/// Writes this shell script to a file and makes the file executable.
fn script(path: &Path, text: &str) {
    make_program(path, format!("#!/bin/sh\n{text}\n"));
}

/// Returns a request whose agent is this shell script.
fn request(environment: &TestEnvironment, text: &str, more: &Value) -> Value {
    let fake = environment.directory.join("gemini");
    script(&fake, text);
    let mut asked = json!({ "prompt": "x", "command": [fake], "cd": environment.directory, "in_place": true, "max_retries": 0 });
    for (name, value) in more.as_object().into_iter().flatten() {
        asked[name] = value.clone();
    }
    asked
}

fn ask(environment: &TestEnvironment, text: &str, more: &Value) -> Answered {
    exec(environment, "http://127.0.0.1:1", &request(environment, text, more))
}

#[test]
fn cli_that_breaks_off_or_claims_false_success_fails() {
    let environment = one_environment();
    for (text, kind, words) in [
        // The agent ends before it prints a line.
        ("exit 3".to_string(), "upstream_error", "exited with code 3"),
        ("kill -SEGV $$".to_string(), "upstream_error", "killed by signal 11"),
        // guard must report the signal that killed the agent. If it took 128 plus the signal's number for an exit code
        // of the CLI, signal 17 would mean an invalid key, because the CLI uses the code 145 for that.
        ("kill -KILL $$".to_string(), "upstream_error", "killed by signal 9"),
        ("exit 41".to_string(), "auth_error", "exited with code 41"),
        // The agent ends in the middle of its output, or fails after it has reported success.
        (format!("echo '{INIT}'"), "upstream_error", "without reporting a result"),
        (format!("echo '{INIT}'; echo '{FAILED}'"), "upstream_error", "reported a failure: no"),
        (format!("echo '{INIT}'; echo '{DONE}'; kill -9 $$"), "upstream_error", "signal 9"),
        (format!("echo '{INIT}'; echo '{DONE}'; exit 7"), "upstream_error", "code 7"),
        (format!("echo '{DONE}'; echo '{INIT}'"), "upstream_error", "without reporting a result"),
        // The agent prints text that is not JSON, or an error on standard error.
        ("echo nonsense; echo '{broken'; exit 0".to_string(), "upstream_error", "without reporting a result"),
        ("head -c 3000000 /dev/urandom; exit 0".to_string(), "upstream_error", "without reporting a result"),
        ("echo 'it broke' >&2; exit 1".to_string(), "upstream_error", "it broke"),
        ("echo 'API key not valid' >&2; exit 1".to_string(), "auth_error", "API key not valid"),
    ] {
        let answered = ask(&environment, &text, &json!({}));
        let shown = || format!("{text}: {}", answered.shown());
        assert_eq!((answered.code, answered.kind()), (1, kind), "{}", shown());
        assert_eq!(answered.result["success"], false, "{}", shown());
        let detail = &answered.result["error_detail"];
        assert!(detail["message"].as_str().is_some_and(|message| message.contains(words)), "{}", shown());
        assert_eq!(detail["exit_code"], answered.result["exit_code"], "{}", shown());
        assert!(detail["last_lines"].as_array().is_some_and(|lines| lines.len() <= 20), "{}", shown());
    }
}

/// The result of a failed agent must have the last twenty lines that it wrote to standard error.
#[test]
fn result_contains_last_twenty_lines_of_standard_error() {
    let environment = one_environment();
    let answered = ask(
        &environment,
        "i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo line $i >&2; done; exit 1",
        &json!({}),
    );
    let lines = answered.result["error_detail"]["last_lines"].as_array().unwrap();
    assert_eq!((lines.len(), &lines[0], &lines[19]), (20, &json!("line 31"), &json!("line 50")));
}

/// The result of every failure must say which limits were in force, and how many retries guard made.
#[test]
fn every_failure_reports_limits_and_retries() {
    let environment = one_environment();
    let limits = json!({ "timeout": 77, "max_duration": 99, "max_retries": 0 });
    let with = |more: Value| {
        let mut asked = json!({ "cd": environment.directory, "in_place": true });
        for (name, value) in limits.as_object().into_iter().chain(more.as_object()).flatten() {
            asked[name] = value.clone();
        }
        exec(&environment, "http://127.0.0.1:1", &asked)
    };
    let fake = environment.directory.join("gemini");
    script(&fake, "echo why >&2; exit 3");
    for (kind, more) in [
        ("upstream_error", json!({ "command": ["sh", "-c", "echo why >&2; exit 3"] })),
        ("upstream_error", json!({ "command": [fake], "prompt": "x" })),
        ("command_not_found", json!({ "command": ["/nonexistent/program"] })),
        ("invalid_input", json!({ "command": ["true"], "cd": "/nonexistent" })),
        ("session_lost", json!({ "command": [fake], "prompt": "x", "SESSION_ID": "odd" })),
        ("idle_timeout", json!({ "command": ["sleep", "600"], "timeout": 1 })),
    ] {
        let answered = with(more.clone());
        let detail = &answered.result["error_detail"];
        let timeout = more.get("timeout").unwrap_or(&json!(77)).clone();
        assert_eq!(answered.kind(), kind, "{}", answered.shown());
        assert_eq!(
            (&detail["idle_timeout_s"], &detail["max_duration_s"], &detail["retries"]),
            (&timeout, &json!(99), &json!(0)),
            "{}",
            answered.shown()
        );
        if kind == "upstream_error" {
            assert_eq!(detail["last_lines"], json!(["why"]), "{}", answered.shown());
        }
    }
}

/// The agent works on a branch without the user's uncommitted changes, and a note in the result must tell the caller
/// so.
#[test]
fn result_notes_uncommitted_changes_the_agent_did_not_get() {
    let environment = one_environment();
    environment.run_outside(
        "git init -q -b main app && cd app && git config user.name n && git config user.email e \
                   && echo first > file && git add file && git commit -qm first",
    );
    let app = environment.directory.with_file_name("app");
    let asked = json!({ "cd": app, "command": ["cat", "file"] });
    let answered = exec(&environment, "http://127.0.0.1:1", &asked);
    assert_eq!((answered.code, answered.result.get("notes")), (0, None), "{}", answered.shown());
    environment.run_outside("echo second >> app/file");
    let answered = exec(&environment, "http://127.0.0.1:1", &asked);
    assert_eq!((answered.code, &answered.result["result"]), (0, &json!("first\n")), "{}", answered.shown());
    let notes = answered.result["notes"].as_array().unwrap();
    assert!(notes.len() == 1 && notes[0].as_str().unwrap().contains("uncommitted"), "{}", answered.shown());
}

/// guard must count events of unknown types and lines that are not JSON, and must otherwise ignore them.
#[test]
fn unknown_events_and_invalid_lines_are_counted_and_ignored() {
    let environment = one_environment();
    let text = format!(
        "echo '{INIT}'; echo '{{\"type\":\"future\",\"x\":[1]}}'; echo '{{\"type\":\"future\"}}'; echo '[]'; echo words; echo '{DONE}'"
    );
    let answered = ask(&environment, &text, &json!({ "return_metrics": true }));
    assert_eq!((answered.code, &answered.result["success"]), (0, &json!(true)), "{}", answered.shown());
    let metrics = &answered.result["metrics"];
    assert_eq!((&metrics["unknown_events"], &metrics["unreadable_lines"]), (&json!(2), &json!(2)));
    // However many unknown events there are, guard must report them in one note.
    let note = "guard ignored events of unknown types in the agent's output: `future` (2)";
    assert_eq!(answered.result["notes"], json!([note]), "{}", answered.shown());
    let told = answered.events.iter().filter(|event| event["event_type"] == "exec.note");
    assert_eq!(told.map(|event| &event["message"]).collect::<Vec<_>>(), [note]);
    let other = answered.events.iter().find(|event| event["event_type"] == "agent.other").unwrap();
    assert_eq!(other["data"]["x"], json!([1]));
}

/// Returns the highest peak memory, in KiB, among the guard process `pid` and the guard processes that it started.
fn highest(pid: u32) -> u64 {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let children = read(format!("/proc/{pid}/task/{pid}/children"));
    let guards = children.split_whitespace().filter_map(|child| child.parse::<u32>().ok());
    let is_guard = |child: &u32| read(format!("/proc/{child}/comm")).trim() == "guard";
    guards.filter(is_guard).map(highest).max().unwrap_or_default().max(peak_memory(pid))
}

/// An agent prints 100 MB as one line, as many lines, or on standard error. guard's memory must stay small.
#[test]
fn hundred_megabytes_of_output_need_little_memory() {
    let environment = one_environment();
    let line = json!({ "type": "message", "role": "user", "content": "x".repeat(4000) });
    for flood in [
        "head -c 100000000 /dev/zero | tr '\\0' x; echo".to_string(),
        format!("yes '{line}' | head -c 100000000; echo"),
        "head -c 100000000 /dev/zero | tr '\\0' x >&2".to_string(),
    ] {
        let text = format!("echo '{INIT}'; {flood}; echo '{DONE}'");
        let asked = request(&environment, &text, &json!({ "return_all_messages": true }));
        let mut command = environment.command(guard_program());
        command.arg("exec").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (pid, started) = (child.id(), Instant::now());
        child.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
        let ends = std::thread::spawn(move || child.wait_with_output().unwrap());
        let mut most = 0;
        while !ends.is_finished() {
            most = most.max(highest(pid));
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = ends.join().unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        eprintln!("{flood:.40}: {:?}, at most {most} KiB", started.elapsed());
        assert_eq!(result["success"], true, "{flood:.40}: {}", result["error"]);
        assert!(most > 1000 && most < 128 << 10, "{flood:.40}: {most} KiB");
    }
}

#[test]
fn hanging_cli_is_ended_by_idle_and_total_time_limits() {
    let environment = one_environment();
    let began = Instant::now();
    for (text, limits, kind) in [
        (format!("echo '{INIT}'; sleep 300"), json!({ "timeout": 2, "max_duration": 60 }), "idle_timeout"),
        ("sleep 300".to_string(), json!({ "timeout": 2, "max_duration": 60 }), "idle_timeout"),
        (
            format!("while :; do echo '{INIT}'; sleep 0.1; done"),
            json!({ "timeout": 60, "max_duration": 3 }),
            "timeout",
        ),
        (
            format!("trap '' TERM; while :; do echo '{INIT}'; sleep 0.1; done"),
            json!({ "timeout": 60, "max_duration": 3 }),
            "timeout",
        ),
    ] {
        let answered = ask(&environment, &text, &limits);
        assert_eq!((answered.code, answered.kind()), (124, kind), "{text}: {}", answered.shown());
        let detail = &answered.result["error_detail"];
        assert_eq!(
            (&detail["idle_timeout_s"], &detail["max_duration_s"]),
            (&limits["timeout"], &limits["max_duration"]),
            "{text}: {}",
            answered.shown()
        );
    }
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
}

/// The cgroup kills an agent that uses more memory than the policy allows, and the result must say so. Skipped if this
/// machine cannot limit memory.
#[test]
fn cli_killed_by_the_memory_limit_is_reported_as_such() {
    let environment = one_environment();
    let policy = environment.directory.join("little.toml");
    let text = "version = 1\nname = \"little\"\nextends = \"strict\"\n[limits]\nmemory_mib = 96\n";
    std::fs::write(&policy, text).unwrap();
    let eats = "exec python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'";
    for script in [eats.to_string(), format!("echo '{INIT}'; ({eats})")] {
        let answered =
            ask(&environment, &script, &json!({ "policy": policy, "max_retries": 1, "max_duration": 60 }));
        if answered.result["enforcement"]["memory_bound"] != true {
            skip_unsupported(
                "a CLI that is killed for memory",
                "no cgroup with a memory limit can be made here",
            );
            return;
        }
        assert_eq!((answered.code, answered.kind()), (1, "memory_exhausted"), "{}", answered.shown());
        let message = answered.result["error_detail"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("96 MiB"), "{}", answered.shown());
        assert_eq!(answered.result["attempts"].as_array().map(Vec::len), Some(1), "{}", answered.shown());
    }
}

/// Creates an npm package of the Gemini CLI with this version, whose program prints a successful answer. Returns the
/// program's path.
fn package(environment: &TestEnvironment, version: &str) -> PathBuf {
    let folder = environment.directory.join(format!("package-{version}"));
    script(&folder.join("bundle/gemini"), &format!("echo '{INIT}'; echo '{DONE}'"));
    let text = json!({ "name": "@google/gemini-cli", "version": version }).to_string();
    std::fs::write(folder.join("package.json"), text).unwrap();
    folder.join("bundle/gemini")
}

/// guard reads the CLI's version from its package. It must refuse a version that is too old, and start one that is
/// newer than any tested one.
#[test]
fn too_old_cli_version_is_refused_and_newer_one_starts() {
    let environment = one_environment();
    let asked = |version: &str| {
        let fake = package(&environment, version);
        let asked =
            json!({ "prompt": "x", "command": [fake], "cd": environment.directory, "in_place": true });
        exec(&environment, "http://127.0.0.1:1", &asked)
    };
    for version in ["0.41.2", "0.9.0", "0.41.0-nightly.1"] {
        let old = asked(version);
        assert_eq!((old.code, old.kind()), (125, "config_error"), "{}", old.shown());
        let message = old.result["error"].as_str().unwrap_or_default();
        assert!(
            message.contains(version) && message.contains("0.42.0") && message.contains(".env"),
            "{message}"
        );
        assert_eq!(old.result["attempts"], json!([]));
    }
    for version in ["0.42.0", "0.61.0"] {
        let fine = asked(version);
        assert_eq!((fine.code, &fine.result["notes"]), (0, &Value::Null), "{}", fine.shown());
    }
    let new = asked("1.0.0");
    assert_eq!(new.code, 0, "{}", new.shown());
    let note = new.result["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("1.0.0") && note.contains("0.61.0"), "{}", new.shown());
    assert!(new.events.iter().any(|event| event["event_type"] == "exec.note"));
}

/// The result must list each attempt, and each pause between attempts must be longer than the one before.
#[test]
fn pauses_between_attempts_increase() {
    let environment = one_environment();
    let began = Instant::now();
    let answered = ask(&environment, "exit 1", &json!({ "max_retries": 3 }));
    assert!(began.elapsed() >= Duration::from_millis(3500));
    let attempts = answered.result["attempts"].as_array().unwrap();
    let mut runs: Vec<&str> = attempts.iter().filter_map(|attempt| attempt["run_id"].as_str()).collect();
    runs.sort_unstable();
    runs.dedup();
    assert_eq!(runs.len(), 4, "{}", answered.shown());
    assert!(attempts.iter().all(|attempt| attempt["error_kind"] == "upstream_error"));
    assert_eq!(answered.result["error_detail"]["retries"], 3);
    let retries = answered.events.iter().filter(|event| event["event_type"] == "exec.retry");
    let pauses: Vec<&Value> = retries.map(|event| &event["data"]["wait_ms"]).collect();
    assert_eq!(pauses, [500, 1000, 2000], "{}", answered.shown());
}

/// guard must not retry after an attempt that left changes, and the result must give this as the reason.
#[test]
fn attempt_that_left_changes_is_not_retried() {
    let environment = one_environment();
    let repository = environment.directory.with_file_name("repository");
    environment.run_outside("cd repository && git config user.name P && git config user.email p@example.org");
    let fake = environment.directory.join("gemini");
    for (text, in_place, left) in [
        ("echo once >> made; exit 1", true, "1 changed file"),
        ("echo once >> made; exit 1", false, "1 changed file"),
        ("echo once >> made; git add made; git commit -qm made; exit 1", false, "1 commit"),
    ] {
        script(&fake, text);
        let cd = if in_place { &environment.directory } else { &repository };
        let asked =
            json!({ "prompt": "x", "command": [fake], "cd": cd, "in_place": in_place, "max_retries": 2 });
        let answered = exec(&environment, "http://127.0.0.1:1", &asked);
        assert_eq!(answered.kind(), "upstream_error", "{text}: {}", answered.shown());
        assert_eq!(
            answered.result["attempts"].as_array().map(Vec::len),
            Some(1),
            "{text}: {}",
            answered.shown()
        );
        let why = answered.result["error_detail"]["not_retried"].as_str().unwrap_or_default();
        assert!(why.contains("left work behind") && why.contains(left), "{text}: {}", answered.shown());
        if in_place {
            assert_eq!(std::fs::read_to_string(environment.directory.join("made")).unwrap(), "once\n");
            std::fs::remove_file(environment.directory.join("made")).unwrap();
        }
    }
}
