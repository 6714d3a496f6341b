//! Tests `guard check` as a program: exit codes, text, JSON and streams.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{guard, text};

fn code(args: &[&str]) -> Option<i32> {
    guard().arg("check").args(args).output().unwrap().status.code()
}

#[test]
fn check_exit_codes_match_the_verdict() {
    assert_eq!(code(&["--", "ls"]), Some(0));
    assert_eq!(code(&["--", "git", "checkout", "main"]), Some(1));
    assert_eq!(code(&["--policy", "standard", "--", "git", "clean", "-fd"]), Some(3));
    assert_eq!(code(&["--policy", "nowhere", "--", "ls"]), Some(2));
    assert_eq!(code(&["--nonsense"]), Some(2));
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&["--shell", "ls", "--", "ls"]), Some(2));
    assert_eq!(code(&["--help"]), Some(0));
    assert_eq!(code(&["--env", "novalue", "--", "ls"]), Some(2));
}

#[test]
fn check_prints_verdicts_as_text() {
    let show = |args: &[&str]| {
        let output = guard().args(["check", "--cwd", "/work/tree"]).args(args).output().unwrap();
        format!("$ guard check {}\n{}", shell_words::join(args), text(&output))
    };
    let shown = [
        show(&["--policy", "strict", "--", "git", "checkout", "main"]),
        show(&["--", "git", "-C", ".", "-c", "alias.x=reset", "x", "--hard"]),
        show(&["--shell", "true && env -i bash -xc \"g\\\"\\\"it switch main\""]),
        show(&["--", "git", "commit", "-m", "git checkout main"]),
        show(&["--shell", "grep -rn \"git reset --hard\" docs/"]),
        show(&["--shell", "git $VERB main; python3 -c 'x'"]),
        show(&["--policy", "standard", "--", "git", "clean", "-fd"]),
        show(&["--policy", "auditor", "--shell", "sed -i s/a/b/ src/lib.rs"]),
    ];
    insta::assert_snapshot!("texts", shown.join("\n"));
}

#[test]
fn check_uses_given_git_config_environment_and_files() {
    assert_eq!(code(&["--", "git", "co", "main"]), Some(1), "an unknown verb");
    assert_eq!(code(&["--git-config", "alias.st=status", "--", "git", "st"]), Some(0));
    assert_eq!(code(&["--git-config", "alias.st=!git push", "--", "git", "st"]), Some(1));
    assert_eq!(code(&["--env", "GIT_EDITOR=git reset --hard", "--", "git", "commit"]), Some(1));
    assert_eq!(code(&["--env", "GIT_EDITOR=true", "--", "git", "commit"]), Some(0));
    assert_eq!(code(&["--resolved", "/usr/bin/git", "--", "./tool", "push"]), Some(1));
    assert_eq!(code(&["--cwd", "/srv", "--worktree", "/work", "--", "git", "commit", "-m", "x"]), Some(1));
}

#[test]
fn check_judges_arguments_that_are_not_utf8() {
    let odd = std::ffi::OsString::from_vec(b"\xff\xfe".to_vec());
    let output = guard().args(["check", "--json", "--", "git", "checkout"]).arg(&odd).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(json["rule"], "git.switch");
    assert_eq!(guard().args(["check", "--shell"]).arg(&odd).output().unwrap().status.code(), Some(0));
}

#[test]
fn check_stdin_answers_each_line_at_once() {
    let mut child =
        guard().args(["check", "--stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ask = |line: &str| -> Value {
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    let answer = ask("git push && ls");
    assert_eq!(
        (&answer["line"], &answer["decision"], &answer["rule"]),
        (&1.into(), &"deny".into(), &"git.remote".into())
    );
    let answer = ask(r#"{"id": {"my": 7}, "argv": ["git", "x"], "git_config": {"alias.x": "status"}}"#);
    assert_eq!((&answer["id"]["my"], &answer["decision"]), (&7.into(), &"allow".into()));
    let answer = ask(r#"{"shell": "git commit -m x", "cwd": "/srv/other"}"#);
    assert_eq!(answer["decision"], "allow", "the folder given is the task's unless a worktree is named");
    let answer = ask(r#"{"argv": ["tool", "push"], "resolved": "/usr/bin/git", "env": {"A": "b"}}"#);
    assert_eq!(answer["rule"], "git.remote");
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn check_stdin_refuses_an_invalid_line_and_continues() {
    for (line, words) in [
        ("{\"argv\": 3}", "invalid type"),
        ("{\"shell\": \"a\", \"argv\": []}", "either"),
        ("{\"cwd\": \"x\", \"shell\": \"a\"}", "absolute"),
    ] {
        let mut child = guard()
            .args(["check", "--stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(format!("ls\n{line}\ngit status\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        let answers: Vec<Value> =
            text(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let decisions: Vec<&str> =
            answers.iter().map(|answer| answer["decision"].as_str().unwrap()).collect();
        assert_eq!(decisions, ["allow", "deny", "allow"]);
        assert_eq!(answers[1]["rule"], "input.question");
        assert!(answers[1]["reason"].as_str().unwrap().contains(words), "{}", answers[1]);
    }
}

#[test]
fn check_stdin_ends_quietly_when_its_reader_goes_away() {
    let mut child = guard()
        .args(["check", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut input = child.stdin.take().unwrap();
    let _ = input.write_all("ls\n".repeat(100_000).as_bytes());
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
