//! Runs `guard log`, `replay`, `verify` and `runs` on transcripts whose every byte is fixed.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use guard::run::transcript::{self, EventType, Settings};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{Scratch, guard, text, wait_until};

pub(super) const FIRST: &str = "0197f0a0-0000-7000-8000-00000000aaaa";
const SECOND: &str = "0197f0a0-0000-7000-8000-00000000bbbb";

/// Writes a transcript with these events: (microseconds since 12:00, type, message, data).
pub(super) fn transcript(
    state: &Scratch,
    run: &str,
    events: &[(i64, &str, &str, Value)],
) -> std::path::PathBuf {
    let noon = "2026-03-01T12:00:00Z".parse::<jiff::Timestamp>().unwrap();
    let mut prev = "0".repeat(64);
    let mut file = String::new();
    for (seq, (micros, kind, message, data)) in (1..).zip(events) {
        let time = noon + jiff::SignedDuration::from_micros(*micros);
        let line = json!({
            "event_type": kind, "message": message, "timestamp": format!("{time:.6}"), "data": data, "run_id": run,
            "seq": seq, "prev": prev,
        })
        .to_string();
        prev = Sha256::digest(line.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        file += &line;
        file.push('\n');
    }
    state.write(&format!("guard/runs/{run}/transcript.jsonl"), file)
}

fn state() -> Scratch {
    let state = Scratch::new("state");
    let out = |text: &str| json!({ "stream": "stdout", "text": text });
    transcript(
        &state,
        FIRST,
        &[
            (
                0,
                "run.started",
                "make all",
                json!({ "command": ["make", "all"], "policy": "strict", "pid": 1 }),
            ),
            (1_500, "exec", "cc -c main.c", json!({ "path": "/usr/bin/cc" })),
            (20_000, "output", "", out("compiling\n\u{1b}[31mred\u{1b}[0m\n")),
            (25_000, "output", "", json!({ "stream": "stderr", "base64": "Yf8K" })),
            (
                40_000,
                "deny.exec",
                "git push (rule git.push)\u{202e}",
                json!({ "rule": "git.push", "reason": "no" }),
            ),
            (60_000, "from.the.future", "something new", json!({ "x": [1] })),
            (99_000, "output", "", json!({ "stream": "terminal", "text": "done\r\n" })),
            (
                123_456,
                "run.finished",
                "exit 2",
                json!({ "exit_code": 2, "denials": [{ "rule": "git.push" }] }),
            ),
        ],
    );
    transcript(
        &state,
        SECOND,
        &[
            (9_000_000, "run.started", "sleep 1", json!({ "command": ["sleep", "1"], "policy": "standard" })),
            (9_500_000, "exec", "sleep 1", json!({})),
        ],
    );
    state
}

fn run(state: &Scratch, args: &[&str]) -> Output {
    guard().env("XDG_STATE_HOME", &state.0).args(args).output().unwrap()
}

/// Returns everything that a user at the terminal would see: the command, its output and its exit code.
pub(super) fn shown(state: &Scratch, args: &[&str]) -> String {
    let output = run(state, args);
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    let whole = format!(
        "$ guard {}\n{}{}{}[exit {}]\n",
        args.join(" "),
        output.stdout.escape_ascii().to_string().replace("\\n", "\n").replace("\\\"", "\""),
        if errors.is_empty() { "" } else { "stderr:\n" },
        errors,
        output.status.code().unwrap()
    );
    whole.replace(state.0.to_str().unwrap(), "STATE")
}

#[test]
fn log_commands_print_text() {
    let state = state();
    let head = sha256_of_last_line(&state, FIRST);
    let mut all = String::new();
    for args in [
        vec!["runs"],
        vec!["runs", "--json"],
        vec!["log"],
        vec!["log", "aaaa"],
        vec!["log", "aaaa", "--denied"],
        vec!["log", "aaaa", "--denied", "--json"],
        vec!["log", "0197"],
        vec!["log", "no-such-run"],
        vec!["replay", "aaaa", "--speed", "max"],
        vec!["replay", "aaaa", "--speed", "fast"],
        vec!["verify", "aaaa"],
        vec!["verify", "aaaa", "--head", &head],
        vec!["verify", "aaaa", "--head", &"0".repeat(64)],
        vec!["verify", "aaaa", "--head", "12"],
        vec!["verify", "bbbb"],
        vec!["verify", "bbbb", "--json"],
        vec!["runs", "prune", "--older-than", "soon"],
        vec!["runs", "prune", "--keep", "1", "--dry-run"],
        vec!["runs", "prune", "--keep", "0", "--dry-run"],
    ] {
        all += &shown(&state, &args);
        all.push('\n');
    }
    insta::assert_snapshot!("log_texts", all);
}

fn sha256_of_last_line(state: &Scratch, run: &str) -> String {
    let file = std::fs::read_to_string(state.0.join(format!("guard/runs/{run}/transcript.jsonl"))).unwrap();
    Sha256::digest(file.lines().last().unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn log_commands_have_examples_in_their_help() {
    for command in ["log", "replay", "verify", "runs"] {
        let help = text(&guard().args([command, "--help"]).output().unwrap());
        assert!(help.contains("Examples:") && help.contains(&format!("guard {command}")), "{help}");
    }
}

#[test]
fn log_json_equals_the_file_and_raw_keeps_control_characters() {
    let state = state();
    let file = std::fs::read(state.0.join(format!("guard/runs/{FIRST}/transcript.jsonl"))).unwrap();
    assert_eq!(run(&state, &["log", FIRST, "--json"]).stdout, file);
    assert!(text(&run(&state, &["log", FIRST, "--raw"])).contains("\u{1b}[31mred"));
    assert!(!text(&run(&state, &["log", FIRST])).contains('\u{1b}'));
}

/// On a terminal, the recorded text must not control the terminal, also as JSON. The values stay the same.
#[test]
fn log_json_is_escaped_on_a_terminal() {
    let state = Scratch::new("terminal-json");
    let text = "a\u{202e}b\u{9b}31mc\u{90}d\u{e0041}e\u{1b}]0;x\u{7}f";
    transcript(&state, FIRST, &[(0, "output", text, json!({ "stream": "stdout", "text": text }))]);
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut command = guard();
    command.env("XDG_STATE_HOME", &state.0).args(["log", FIRST, "--json"]).stdout(Stdio::from(pty.slave));
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    // Reading fails when guard has closed the terminal.
    let _ = std::fs::File::from(pty.master).read_to_end(&mut shown);
    child.wait().unwrap();
    let shown = String::from_utf8(shown).unwrap();
    let line = shown.trim_end();
    assert!(line.is_ascii() && !line.contains(|one: char| one.is_control()), "{line:?}");
    let event: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&event["message"], &event["data"]["text"]), (&json!(text), &json!(text)));
}

#[test]
fn verify_reports_the_changed_line_of_a_transcript() {
    let state = state();
    let path = state.0.join(format!("guard/runs/{FIRST}/transcript.jsonl"));
    let file = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, file.replace("cc -c main.c", "cc -c evil.c")).unwrap();
    let output = run(&state, &["verify", "aaaa"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).starts_with("the transcript is broken at line 3: the hash chain is broken"),
        "{}",
        text(&output)
    );
    let output = run(&state, &["verify", "aaaa", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found["outcome"], &found["line"], output.status.code()),
        (&json!("broken"), &json!(3), Some(1))
    );
}

#[test]
fn replay_keeps_the_recorded_pace_unless_an_option_changes_it() {
    let state = Scratch::new("pace");
    let out = |text: &str| json!({ "stream": "stdout", "text": text });
    let events = [
        (0, "run.started", "", json!({})),
        (0, "output", "", out("a")),
        (400_000, "output", "", out("b")),
        (300_000, "output", "", out("c")),
        (600_300_000, "output", "", out("d")),
    ];
    transcript(&state, FIRST, &events);
    let timed = |args: &[&str]| {
        let start = Instant::now();
        let output = run(&state, args);
        assert_eq!(text(&output), "abcd");
        start.elapsed()
    };
    let slow = timed(&["replay", FIRST, "--max-pause", "0.8"]);
    assert!(slow >= Duration::from_millis(1_200), "{slow:?}");
    let fastest = |args: &[&str]| (0..5).map(|_| timed(args)).min().unwrap();
    let fast = fastest(&["replay", FIRST, "--speed", "1000", "--max-pause", "0.1"]);
    let at_once = fastest(&["replay", FIRST, "--speed", "0"]);
    assert!(fast < slow && at_once < slow, "{slow:?} {fast:?} {at_once:?}");
    assert!(at_once < Duration::from_secs(5));
}

fn follow(state: &Scratch, run: &str) -> std::process::Child {
    let mut command: Command = guard();
    command.env("XDG_STATE_HOME", &state.0).args(["log", run, "--follow"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn log_follow_ends_with_the_run() {
    let state = Scratch::new("follow");
    let folder = state.0.join("guard/runs/live");
    std::fs::create_dir_all(&folder).unwrap();
    let settings = Settings {
        folder,
        run_id: "live".to_string(),
        limit_bytes: u64::MAX,
        reserve_bytes: 0,
        redact_values: Vec::new(),
    };
    let (recorder, writer) = transcript::start(&settings, None).unwrap();
    recorder.record(EventType::RunStarted, "begin", &json!({}));
    wait_until("the run is listed", || text(&run(&state, &["runs"])).contains("running"));
    let child = follow(&state, "live");
    std::thread::sleep(Duration::from_millis(200));
    recorder.record(EventType::Exec, "in the middle", &json!({}));
    std::thread::sleep(Duration::from_millis(200));
    recorder.record(EventType::RunFinished, "the end", &json!({}));
    let output = child.wait_with_output().unwrap();
    let lines: Vec<String> = text(&output).lines().map(|line| line[12..].to_string()).collect();
    assert_eq!(
        lines,
        ["run.started      begin", "exec             in the middle", "run.finished     the end"]
    );
    assert_eq!(output.stderr, b"");
    writer.finish().unwrap();
}

#[test]
fn log_follow_ends_if_the_supervisor_was_killed() {
    let state = state();
    let output = follow(&state, "bbbb").wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("guard was killed or crashed before the run ended"), "{said}");
    assert_eq!(text(&Output { stderr: Vec::new(), ..output }).lines().count(), 2);
}

#[test]
fn prune_deletes_only_finished_runs() {
    let state = state();
    std::fs::create_dir(state.0.join("guard/runs/nothing")).unwrap();
    let output = run(&state, &["runs", "prune", "--older-than", "0s"]);
    assert!(text(&output).contains("1 of 3 runs"), "{}", text(&output));
    let mut left: Vec<_> = std::fs::read_dir(state.0.join("guard/runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, [SECOND, "nothing"]);
}

#[test]
fn missing_home_suggests_setting_the_state_directory() {
    let output = guard().env_remove("HOME").env_remove("XDG_STATE_HOME").args(["runs"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("XDG_STATE_HOME") && said.contains("hint:"), "{said}");
}

#[test]
fn log_prints_no_error_when_its_reader_goes_away() {
    let state = Scratch::new("pipe");
    let line = "x".repeat(1000);
    let events: Vec<(i64, &str, &str, Value)> =
        (0..2_000).map(|index| (index, "exec", line.as_str(), json!({}))).collect();
    transcript(&state, FIRST, &events);
    let mut command = guard();
    command.env("XDG_STATE_HOME", &state.0).args(["log", FIRST]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), b"".as_slice()));
}
