//! `ask`: a person at the terminal decides; without one it is a no.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Scratch, guard, text};

const POLICY: &str = r#"
version = 1
name = "asking"
extends = "strict"

[[command]]
id = "ask.date"
program = "date"
action = "ask"
reason = "The time is a secret."
"#;

fn scene(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.write("asking.toml", POLICY);
    scratch
        .write("work/script.sh", "date +first=%s; echo code=$?; date +second=%s; echo code=$?; echo end\n");
    scratch
}

fn command(scratch: &Scratch) -> Command {
    let mut command = guard();
    command
        .args(["run", "--in-place", "--quiet", "--policy"])
        .arg(scratch.0.join("asking.toml"))
        .args(["--", "sh", "script.sh"])
        .env("HOME", &scratch.0)
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .current_dir(scratch.0.join("work"));
    command
}

/// Runs on a terminal, answers each question with the next key, and gives back what the terminal showed.
fn at_a_terminal(scratch: &Scratch, keys: &[&str]) -> String {
    let pty = nix::pty::openpty(None, None).unwrap();
    let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    let mut child = command(scratch)
        .stdin(end(&pty.slave))
        .stdout(end(&pty.slave))
        .stderr(end(&pty.slave))
        .spawn()
        .unwrap();
    drop(pty.slave);
    let mut master = std::fs::File::from(pty.master);
    let mut keys = keys.iter();
    let (mut shown, mut answered) = (String::new(), 0);
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut buffer = [0u8; 4096];
    while let Ok(got @ 1..) = master.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..got]));
        if shown.matches("[n] no: ").count() > answered {
            answered += 1;
            master.write_all(keys.next().unwrap_or(&"n").as_bytes()).unwrap();
        }
        assert!(Instant::now() < deadline, "no end: {shown}");
    }
    assert!(child.wait().unwrap().success(), "{shown}");
    shown
}

#[test]
fn yes_is_for_once() {
    let scratch = scene("ask-once");
    let shown = at_a_terminal(&scratch, &["y", "n"]);
    assert_eq!(shown.matches("the agent wants to run").count(), 2, "{shown}");
    assert!(shown.contains("first=1") && !shown.contains("second=1"), "{shown}");
    assert!(shown.contains("The time is a secret.") && shown.contains("ask.date"), "{shown}");
}

#[test]
fn always_is_for_the_run() {
    let scratch = scene("ask-always");
    let shown = at_a_terminal(&scratch, &["a"]);
    assert_eq!(shown.matches("the agent wants to run").count(), 1, "{shown}");
    assert!(shown.contains("first=1") && shown.contains("second=1"), "{shown}");
}

#[test]
fn enter_and_escape_are_a_no() {
    let scratch = scene("ask-no");
    let shown = at_a_terminal(&scratch, &["\r", "\u{1b}"]);
    assert!(!shown.contains("first=1") && !shown.contains("second=1") && shown.contains("end"), "{shown}");
}

#[test]
fn nobody_there_is_a_no() {
    let scratch = scene("ask-nobody");
    let output = command(&scratch).stdin(Stdio::null()).output().unwrap();
    let shown = text(&output);
    assert!(!shown.contains("first=1") && shown.contains("code=126") && shown.contains("end"), "{shown}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ask.date"));
}
