//! Tests the command line of `guard exec`: the arguments it accepts, the requests it reads, and its exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{answered, scripted};
use crate::support::{
    TestEnvironment, expect_no_process_left, guard_program, in_every_environment, in_two_environments,
    marked_processes, one_environment, unique_mark,
};

fn typed(environment: &TestEnvironment, words: &[&str], input: &[u8]) -> super::Answered {
    let mut command = environment.command(guard_program());
    command.arg("exec").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writing.join();
    answered(&output)
}

#[test]
fn command_line_options_equal_a_json_request() {
    let environment = one_environment();
    let agent = scripted::agent(
        &environment,
        "typed",
        "#!/bin/sh\necho '{\"type\":\"init\",\"session_id\":\"s\",\"words\":\"'\"$*\"'\"}'\npwd\necho '{\"type\":\"result\",\"status\":\"success\"}'\n",
    );
    let agent = agent.display().to_string();
    let folder = environment.directory.display().to_string();
    let words = [
        "-x asks",
        "--agent",
        "gemini",
        "--cd",
        ".",
        "--sandbox",
        "read-only",
        "--model",
        "m1",
        "--timeout",
        "20",
    ];
    let words = [
        &words[..],
        &[
            "--max-duration",
            "40",
            "--max-retries",
            "0",
            "--no-yolo",
            "--all-messages",
            "--metrics",
            "--",
            &agent,
        ],
    ]
    .concat();
    // In this form a prompt that begins with a dash must follow `--`, where guard would take it for a command. So this
    // call has a prompt without a dash.
    let by_words = typed(&environment, &[&["asks"], &words[1..]].concat(), b"");
    let asked = json!({
        "prompt": "asks", "agent": "gemini", "cd": folder, "sandbox": "read-only", "model": "m1", "timeout": 20, "max_duration": 40,
        "max_retries": 0, "yolo": false, "return_all_messages": true, "return_metrics": true, "command": [agent],
    });
    let by_json = typed(&environment, &["--json"], asked.to_string().as_bytes());
    for answered in [&by_words, &by_json] {
        assert_eq!((answered.code, &answered.result["success"]), (0, &json!(true)), "{}", answered.shown());
        assert!(answered.events.is_empty());
        assert_eq!(answered.result["policy"], "readonly");
        let told = answered.result["all_messages"][0]["words"].as_str().unwrap();
        assert!(
            told.contains("--approval-mode default")
                && told.contains("--model m1")
                && told.contains("--prompt=asks"),
            "{told}"
        );
        assert!(answered.result["metrics"].is_object());
    }
    // Without a prompt `guard exec` runs a plain command, and it prints events if asked to.
    let made = typed(&environment, &["--in-place", "--stream-json", "--", "sh", "-c", "echo out; pwd"], b"");
    assert_eq!(made.result["result"], json!(format!("out\n{folder}\n")), "{}", made.shown());
    assert!(made.events.iter().any(|event| event["event_type"] == "output"), "{:?}", made.events);
}

#[test]
fn invalid_requests_are_reported_with_the_reason() {
    let environment = one_environment();
    let cd = environment.directory.display().to_string();
    let large = format!("{{\"cd\": \"{cd}\", \"prompt\": \"{}\"}}", "x".repeat(20 << 20));
    let unknown = format!("{{\"cd\": \"{cd}\", \"promt\": \"x\"}}");
    let cases: [(&[u8], &str); 9] = [
        (b"", "the request is empty"),
        (b"  \n", "the request is empty"),
        (b"hello", "the request is not valid JSON"),
        (b"{\"prompt\": \"x\"", "the request is not valid JSON"),
        (b"[{\"prompt\": \"x\"}]", "the request must be a JSON object, but is an array"),
        (b"{\"prompt\": \"\xff\xfe\"}", "the text is not UTF-8"),
        (large.as_bytes(), "is larger than 16 MiB"),
        (unknown.as_bytes(), "unknown field `promt`; did you mean `prompt`?"),
        (b"{\"prompt\": \"x\"}", "missing field `cd`"),
    ];
    for (input, words) in cases {
        let said = typed(&environment, &[], input);
        let error = said.result["error"].as_str().unwrap_or_default();
        assert_eq!((said.code, said.kind()), (2, "invalid_input"), "{}", said.shown());
        assert!(error.contains("standard input") && error.contains(words), "{error}");
        assert!(said.error.contains("guard: ") && said.error.contains("hint: "), "{}", said.error);
    }
    let missing = typed(&environment, &["--request", "/no/such/request.json"], b"");
    assert_eq!((missing.code, missing.kind()), (2, "invalid_input"), "{}", missing.shown());
    assert!(missing.error.contains("/no/such/request.json"), "{}", missing.error);
    let stray = typed(&environment, &["--model", "m"], b"{}");
    assert!(stray.code == 2 && stray.error.contains("--model needs a PROMPT"), "{}", stray.shown());
    // The argument parser reports typing mistakes before there is a request, so guard prints no result.
    for words in [
        &["asks", "--request", "x"][..],
        &["a", "b"],
        &["a", "--sandbox", "none"],
        &["a", "--timeout", "soon"],
        &["a", "--here", "--in-place"],
    ] {
        let output = environment.command(guard_program()).arg("exec").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
}

/// Starts `guard exec` with an agent that prints one line, starts a daemon, ignores signals, and waits.
fn endless(environment: &TestEnvironment, mark: &str, more: &Value) -> Child {
    let script = format!(
        "#!/bin/bash\ntrap '' TERM INT HUP\n(setsid env {mark} sleep 600 &)\necho '{{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"begun\"}}'\nenv {mark} sleep 600\nenv {mark} sleep 600\n"
    );
    let agent = scripted::agent(environment, "endless", &script);
    let mut asked = scripted::request(environment, "x", &json!({ "command": [agent], "in_place": true }));
    for (name, value) in more.as_object().into_iter().flatten() {
        asked[name] = value.clone();
    }
    let file = environment.directory.with_file_name("endless.json");
    std::fs::write(&file, asked.to_string()).unwrap();
    let mut command = environment.guard_ignoring_signals("");
    command.args(["exec", "--stream-json", "--request"]).arg(file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Reads the output of a `guard exec` that `endless` started, up to the line that the agent prints, and waits until the
/// agent and its daemon run.
fn begun(child: &mut Child, mark: &str) -> BufReader<std::process::ChildStdout> {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("begun") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended");
    }
    let started = std::time::Instant::now();
    while marked_processes(mark).len() < 2 {
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", marked_processes(mark));
        std::thread::sleep(Duration::from_millis(5));
    }
    out
}

// slow
#[test]
fn signal_cancels_exec_and_the_result_is_printed() {
    in_two_environments(|environment| {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let mark = unique_mark();
            let mut child = endless(environment, &mark, &json!({ "max_retries": 3 }));
            let mut out = begun(&mut child, &mark);
            let process = Pid::from_raw(child.id() as i32);
            kill(process, signal).unwrap();
            // The second signal must end the run without a grace period.
            std::thread::sleep(Duration::from_millis(200));
            kill(process, signal).unwrap();
            let mut rest = String::new();
            out.read_to_string(&mut rest).unwrap();
            let status = child.wait().unwrap();
            let result: Value = serde_json::from_str(rest.trim_end().rsplit('\n').next().unwrap()).unwrap();
            super::is_result(&result);
            assert_eq!(
                (status.code(), &result["error_kind"]),
                (Some(1), &json!("cancelled")),
                "{signal}: {result:#}"
            );
            assert_eq!(result["attempts"].as_array().map(Vec::len), Some(1), "{result:#}");
            expect_no_process_left(&mark, Duration::from_secs(5));
        }
    });
}

/// When `guard exec` is killed, every process and every temporary file of its run must be removed.
// slow
#[test]
fn killed_exec_leaves_no_process_and_no_temporary_file() {
    in_every_environment(|environment| {
        let mark = unique_mark();
        let mut child = endless(environment, &mark, &json!({}));
        let out = begun(&mut child, &mark);
        child.kill().unwrap();
        child.wait().unwrap();
        expect_no_process_left(&mark, Duration::from_secs(20));
        drop(out);
        // guard's own temporary files must be gone too.
        let left: Vec<_> = std::fs::read_dir(environment.temporary_directory())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("guard-exec-")), "{left:?}");
    });
}

/// When the reader of `guard exec` closes the pipe while the agent is silent, guard must end the run with code 141.
#[test]
fn closed_output_pipe_ends_exec_with_code_141() {
    let environment = one_environment();
    let mark = unique_mark();
    let mut child = endless(&environment, &mark, &json!({}));
    drop(begun(&mut child, &mark));
    expect_no_process_left(&mark, Duration::from_secs(20));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn template_option_prints_the_prompt_template() {
    let environment = one_environment();
    for (arguments, wanted) in [
        (vec!["--template"], "**Task type**: [advice / review / execute]"),
        (vec!["--template", "zh"], "**任务类型**：[咨询 / 审核 / 执行]"),
    ] {
        let mut command = environment.command(guard_program());
        let output = command.arg("exec").args(&arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(wanted) && text.contains("Assumption"), "{text}");
    }
    let mut command = environment.command(guard_program());
    let output = command.args(["exec", "--template", "en", "--cd", "/tmp"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
