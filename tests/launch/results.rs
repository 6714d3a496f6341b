// slow
//! Tests what a run returns and records: exit codes, JSON, refusals, the environment of the command, and two runs at the
//! same time.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{in_every_environment, in_two_environments, one_environment, system_python};

/// The fields that every result has.
const FIELDS: &[&str] = &[
    "SESSION_ID",
    "commits",
    "denials",
    "duration",
    "duration_ms",
    "enforcement",
    "exit_code",
    "files_changed",
    "findings",
    "network",
    "policy",
    "result",
    "run_id",
    "snapshot",
    "success",
    "tool",
    "transcript",
    "usage",
];

#[test]
fn exit_code_of_the_command_is_returned() {
    in_two_environments(|environment| {
        for code in [0, 1, 2, 42, 124, 125, 126, 127, 128, 255] {
            let outcome = environment.run_bash(&format!("exit {code}"));
            assert_eq!((outcome.code, &outcome.result["exit_code"]), (code, &json!(code)), "{outcome}");
            assert_eq!(outcome.result["success"], code == 0);
            outcome.expect_complete_transcript();
        }
        for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("INT", 130), ("PIPE", 141)] {
            let outcome = environment.run_bash(&format!("kill -{signal} $$"));
            assert_eq!((outcome.code, outcome.kind()), (code, "upstream_error"), "{signal}: {outcome}");
            outcome.expect_complete_transcript();
        }
    });
}

#[test]
fn json_result_and_events_have_the_documented_shape() {
    in_every_environment(|environment| {
        // The script is in a file. It contains a push, so guard would refuse the whole script as an argument of `bash
        // -c`.
        let script = "echo out; echo err >&2; git push; exit 3";
        std::fs::write(environment.directory.join("work.sh"), script).unwrap();
        let fields = |result: &Value| result.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let outcome = environment.run(&[], &["bash", "-c", "echo x > made; bash work.sh"]);
        assert_eq!(outcome.output.iter().filter(|&&byte| byte == b'\n').count(), 1, "one line");
        let mut expected: Vec<&str> = FIELDS.to_vec();
        expected.extend(["error", "error_detail", "error_kind"]);
        expected.sort_unstable();
        assert_eq!(fields(&outcome.result), expected, "{}", environment.name());
        assert_eq!((&outcome.result["tool"], &outcome.result["policy"]), (&json!("bash"), &json!("strict")));
        assert_eq!(outcome.result["denials"][0]["rule"], "git.remote", "{outcome}");
        assert_eq!(outcome.result["usage"]["refusals"], 1);
        assert!(outcome.created_file("made"), "{outcome}");

        let outcome = environment.run_to_end(
            environment.guard_run(&["--stream-json"], &["bash", "-c", "echo out; echo err >&2"]),
            b"",
        );
        assert_eq!(fields(&outcome.result), FIELDS, "{}", environment.name());
        let text = String::from_utf8(outcome.output.clone()).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.pop();
        let written = std::fs::read_to_string(outcome.transcript()).unwrap();
        assert_eq!(lines, written.lines().collect::<Vec<_>>(), "the stream is the transcript");
        for (number, line) in lines.iter().enumerate() {
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                fields(&event),
                ["data", "event_type", "message", "prev", "run_id", "seq", "timestamp"]
            );
            assert_eq!(event["seq"], number as u64 + 1);
            assert_eq!(event["run_id"], outcome.result["run_id"]);
        }
        let types: Vec<Value> = lines
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["event_type"].clone())
            .collect();
        assert_eq!((&types[0], types.last().unwrap()), (&json!("run.started"), &json!("run.finished")));
        outcome.expect_complete_transcript();
        // The reader of guard's output goes away. The run must continue.
        let mut command =
            environment.guard_run(&["--stream-json"], &["bash", "-c", "seq 20000; touch finished"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        environment.collect_outcome(child, Instant::now());
        assert!(environment.directory.join("finished").exists(), "{}", environment.name());
    });
}

#[test]
fn environment_of_a_run_is_an_allow_list() {
    in_every_environment(|environment| {
        let mut command = environment.guard_run(&["--json", "--env", "GIVEN=yes"], &["env", "-0"]);
        command
            .env("API_TOKEN", "not-for-the-agent")
            .env("SSH_AUTH_SOCK", "/run/agent")
            .env("LD_PRELOAD_NOT", "x")
            .env("RANDOM_NAME", "x")
            .env("LC_TIME", "C")
            .env("BASH_ENV", "/etc/passwd");
        let outcome = environment.run_to_end(command, b"");
        let printed = outcome.printed();
        let variables: std::collections::BTreeMap<&str, &str> =
            printed.split_terminator('\0').map(|pair| pair.split_once('=').unwrap()).collect();
        for name in
            ["API_TOKEN", "SSH_AUTH_SOCK", "LD_PRELOAD_NOT", "RANDOM_NAME", "BASH_ENV", "XDG_STATE_HOME"]
        {
            assert!(!variables.contains_key(name), "{}: {name}", environment.name());
        }
        assert!(!std::fs::read_to_string(outcome.transcript()).unwrap().contains("not-for-the-agent"));
        assert_eq!((variables["GIVEN"], variables["LC_TIME"], variables["LANG"]), ("yes", "C", "C.UTF-8"));
        let run = outcome.transcript().parent().unwrap().to_path_buf();
        let path: Vec<&str> = variables["PATH"].split(':').collect();
        let shims = run.parent().unwrap().with_file_name("shims");
        assert_eq!(Path::new(path[0]).parent(), Some(shims.as_path()), "{}", environment.name());
        assert_eq!(variables["HOME"], run.join("home").to_str().unwrap());
        if environment.namespaces {
            assert_eq!(variables["TMPDIR"], "/tmp");
        } else {
            assert!(
                Path::new(variables["TMPDIR"]).starts_with(environment.temporary_directory()),
                "{}",
                variables["TMPDIR"]
            );
        }
        let left: Vec<_> = std::fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["transcript.jsonl"], "{}: only the transcript stays", environment.name());
        assert_eq!(
            std::fs::read_dir(environment.temporary_directory()).unwrap().count(),
            0,
            "{}",
            environment.name()
        );
        assert_eq!(run.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    });
}

#[test]
fn two_runs_work_at_once_in_one_directory() {
    in_every_environment(|environment| {
        // Each run waits for a file of the other one, so both must be running at the same time.
        let script = |own: &str, other: &str| {
            format!(
                "touch {own}; echo {own} > $TMPDIR/f; i=0; while [ ! -e {other} ]; do sleep 0.05; i=$((i+1)); [ $i -lt 200 ] || exit 1; done; cat $TMPDIR/f"
            )
        };
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| environment.run_bash(&script("one", "two")));
            let two = scope.spawn(|| environment.run_bash(&script("two", "one")));
            (one.join().unwrap(), two.join().unwrap())
        });
        for (outcome, printed) in [(&one, "one\n"), (&two, "two\n")] {
            assert_eq!((outcome.code, outcome.printed()), (0, printed.to_string()), "{outcome}");
            outcome.expect_complete_transcript();
        }
        assert_ne!(one.result["run_id"], two.result["run_id"]);
    });
}

/// guard must report each refusal exactly once: through the shim if the program has one, and otherwise through the
/// supervisor.
#[test]
fn each_refusal_is_recorded_exactly_once() {
    if system_python().is_none() {
        return;
    }
    let probe = r#"import json, subprocess, sys
for argv in json.loads(sys.argv[1]):
    try:
        ran = subprocess.run(argv, stderr=subprocess.PIPE, text=True)
        print(json.dumps([ran.returncode, ran.stderr]))
    except PermissionError as error:
        print(json.dumps([error.errno, ""]))
"#;
    in_every_environment(|environment| {
        let name = environment.name();
        std::fs::write(environment.directory.join("probe.py"), probe).unwrap();
        let commands = r#"[["git", "checkout", "-q", "-b", "x"], ["sh", "-c", "git push; touch made"]]"#;
        let outcome = environment.run(&[], &["python3", "probe.py", commands]);
        for line in outcome.printed().lines() {
            let said: (i32, String) = serde_json::from_str(line).unwrap();
            let times = said.1.matches("guard: Permission denied").count();
            assert_eq!((said.0, times, said.1.lines().count()), (126, 1, 1), "{name}: {line}");
        }
        assert_eq!(outcome.printed().lines().count(), 2, "{name}: {outcome}");
        let denials = outcome.result["denials"].as_array().unwrap();
        assert_eq!(
            (denials.len(), &outcome.result["usage"]["refusals"]),
            (2, &json!(2)),
            "{name}: {denials:?}"
        );
        assert!(!environment.directory.join("made").exists(), "{name}: nothing of the text ran");
        if !environment.namespaces {
            // A refusal that only the supervisor can explain must be explained by the supervisor, even for a program
            // that has a shim.
            let outcome =
                environment.run(&[], &["python3", "probe.py", r#"[["sh", "-c", "echo x > /tmp/x"]]"#]);
            let said: (i32, String) = serde_json::from_str(outcome.printed().trim()).unwrap();
            assert_eq!((said.0, said.1.matches("TMPDIR").count()), (126, 1), "{name}: {said:?}");
        }
    });
}

/// The API keys in the caller's environment must not appear in the transcript.
#[test]
fn api_keys_of_the_caller_are_not_in_the_transcript() {
    for variable in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "FOO_TOKEN"] {
        let environment = one_environment();
        let mut guard = environment.guard_run(&["--json"], &["echo", "hunter2", "is", "Zupersekret99"]);
        guard.env(variable, "Zupersekret99");
        let outcome = environment.run_to_end(guard, b"");
        assert_eq!(outcome.code, 0, "{variable}: {outcome}");
        let written = std::fs::read_to_string(outcome.transcript()).unwrap();
        assert!(written.contains("hunter2") && !written.contains("Zupersekret99"), "{variable}: {written}");
    }
}
