//! For the action `ask`, guard asks the user at the terminal. Without a terminal it must refuse.

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

/// Runs guard on a terminal and answers each question with the next key. Returns what the terminal showed.
fn at_a_terminal(scratch: &Scratch, keys: &[&str]) -> String {
    answers(command(scratch), keys, Duration::ZERO)
}

/// Like [`at_a_terminal`], for any command of guard. Thinks for the time `thinks` before each answer.
fn answers(mut command: Command, keys: &[&str], thinks: Duration) -> String {
    let pty = nix::pty::openpty(None, None).unwrap();
    let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    let mut child =
        command.stdin(end(&pty.slave)).stdout(end(&pty.slave)).stderr(end(&pty.slave)).spawn().unwrap();
    drop((pty.slave, command));
    let mut master = std::fs::File::from(pty.master);
    let mut keys = keys.iter();
    let (mut shown, mut answered) = (String::new(), 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut buffer = [0u8; 4096];
    while let Ok(got @ 1..) = master.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..got]));
        if shown.matches("[n] no: ").count() > answered {
            answered += 1;
            std::thread::sleep(thinks);
            master.write_all(keys.next().unwrap_or(&"n").as_bytes()).unwrap();
        }
        assert!(Instant::now() < deadline, "no end: {shown}");
    }
    assert!(child.wait().unwrap().success(), "{shown}");
    shown
}

#[test]
fn answer_yes_holds_once() {
    let scratch = scene("ask-once");
    let shown = at_a_terminal(&scratch, &["y", "n"]);
    assert_eq!(shown.matches("the agent wants to run").count(), 2, "{shown}");
    assert!(shown.contains("first=1") && !shown.contains("second=1"), "{shown}");
    assert!(shown.contains("The time is a secret.") && shown.contains("ask.date"), "{shown}");
}

/// A user who thinks longer than the idle limit about a question must not lose the run: the agent waits for the user.
#[test]
fn run_with_an_open_question_is_not_idle() {
    let scratch = scene("ask-idle");
    let mut command = guard();
    command.args(["run", "--in-place", "--quiet", "--timeout", "1", "--policy"]);
    command.arg(scratch.0.join("asking.toml")).args(["--", "sh", "script.sh"]);
    command.env("HOME", &scratch.0).env("XDG_STATE_HOME", scratch.0.join("state"));
    command.current_dir(scratch.0.join("work"));
    let shown = answers(command, &["y", "y"], Duration::from_secs(3));
    assert!(shown.contains("first=1") && shown.contains("second=1"), "{shown}");
}

#[test]
fn answer_always_holds_for_the_run() {
    let scratch = scene("ask-always");
    let shown = at_a_terminal(&scratch, &["a"]);
    assert_eq!(shown.matches("the agent wants to run").count(), 1, "{shown}");
    assert!(shown.contains("first=1") && shown.contains("second=1"), "{shown}");
}

/// The run's policy is a file, so no other policy can extend it by name. The file extends the user's policy `mine`, and
/// guard must save the rule there.
#[test]
fn answer_is_saved_in_the_policy_a_policy_file_extends() {
    let scratch = scene("ask-save");
    scratch.write(".config/guard/policies/asking.toml", POLICY);
    let empty = |name: &str, extends: &str| format!("version = 1\nname = {name:?}\nextends = {extends:?}\n");
    scratch.write(".config/guard/policies/mine.toml", empty("mine", "asking"));
    scratch.write("asking.toml", empty("team", "mine"));
    let shown = at_a_terminal(&scratch, &["s"]);
    assert!(shown.contains("first=1") && shown.contains("guard: saved your answer in "), "{shown}");
    assert!(shown.contains(".config/guard/policies/mine.toml"), "{shown}");
    let shown = at_a_terminal(&scratch, &[]);
    assert!(!shown.contains("the agent wants to run") && shown.contains("first=1"), "{shown}");
}

/// The rule that asks is in the policy file itself, so a rule in the user's policy would have no effect. guard must
/// save none, and say so.
#[test]
fn answer_to_a_rule_of_a_policy_file_is_not_saved() {
    let scratch = scene("ask-save-file");
    let shown = at_a_terminal(&scratch, &["s"]);
    assert!(shown.contains("first=1") && shown.contains("guard: cannot save your answer: "), "{shown}");
    assert!(shown.contains("the policy `asking`, a file that extends `strict`"), "{shown}");
    assert!(!scratch.0.join(".config").exists());
}

#[test]
fn enter_and_escape_refuse_the_command() {
    let scratch = scene("ask-no");
    let shown = at_a_terminal(&scratch, &["\r", "\u{1b}"]);
    assert!(!shown.contains("first=1") && !shown.contains("second=1") && shown.contains("end"), "{shown}");
}

#[test]
fn question_without_a_terminal_refuses_the_command() {
    let scratch = scene("ask-nobody");
    let output = command(&scratch).stdin(Stdio::null()).output().unwrap();
    let shown = text(&output);
    assert!(!shown.contains("first=1") && shown.contains("code=126") && shown.contains("end"), "{shown}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ask.date"));
}

/// A pseudo-terminal: the test reads every byte that guard writes, and can send what a terminal emulator would send.
struct Emulator {
    master: std::fs::File,
    shown: String,
    child: std::process::Child,
}

impl Emulator {
    fn start(scratch: &Scratch) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let mut command = command(scratch);
        command.stdin(end(&pty.slave)).stdout(end(&pty.slave)).stderr(end(&pty.slave));
        let child = command.spawn().unwrap();
        drop(pty.slave);
        Self { master: std::fs::File::from(pty.master), shown: String::new(), child }
    }

    /// Reads until the text was shown this many times.
    fn wait_for(&mut self, text: &str, times: usize) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.shown.matches(text).count() < times {
            assert!(Instant::now() < deadline, "{text:?} is not shown: {:?}", self.shown);
            self.read_for(Duration::from_millis(50));
        }
    }

    fn read_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let mut buffer = [0u8; 4096];
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let left = u16::try_from(left.as_millis()).unwrap_or(u16::MAX).max(1);
            let mut fds = [nix::poll::PollFd::new(
                std::os::fd::AsFd::as_fd(&self.master),
                nix::poll::PollFlags::POLLIN,
            )];
            if !matches!(nix::poll::poll(&mut fds, left), Ok(1)) {
                continue;
            }
            match self.master.read(&mut buffer) {
                Ok(got @ 1..) => self.shown.push_str(&String::from_utf8_lossy(&buffer[..got])),
                _ => return,
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// While guard asks the user, the agent's output must not appear: it could overwrite the question or forge one.
#[test]
fn output_of_the_agent_waits_while_guard_asks() {
    let scratch = scene("ask-painted");
    // The agent leaves a title sequence open, which would hide the question, and its background job keeps drawing a
    // false question.
    scratch.write(
        "work/script.sh",
        "(while :; do printf '\\033[2J\\033[Hforged: wants to run: ls [n] no: '; sleep 0.02; done) &\n\
         sleep 0.2; printf '\\033]0;'; date +first=%s; kill $!; echo end\n",
    );
    let mut emulator = Emulator::start(&scratch);
    emulator.wait_for("the agent wants to run", 1);
    emulator.wait_for("save it as a rule  [n] no: ", 1);
    let question = emulator.shown.find("guard: the agent wants to run").unwrap();
    // Before the question guard must have ended open control sequences and cleared the screen.
    let before = &emulator.shown[..question];
    assert!(before.contains("\u{18}\u{1b}\\"), "{before:?}");
    let cleaned = before.rfind("\u{18}\u{1b}\\").unwrap();
    assert!(!before[cleaned..].contains("forged"), "{:?}", &before[cleaned..]);
    emulator.read_for(Duration::from_secs(1));
    let after = &emulator.shown[question..];
    assert!(!after.contains("forged"), "the agent wrote while a person was asked: {after:?}");
    emulator.press("n");
    // After the answer the agent continues, and its output must appear again.
    emulator.wait_for("end", 1);
    assert!(!emulator.shown.contains("first=1"), "{:?}", emulator.shown);
}

/// Neither a terminal response that the agent provokes nor a key pressed before the question may count as an answer.
#[test]
fn terminal_responses_and_earlier_keys_are_no_answer() {
    // On a busy machine guard may ask the user before it shows the agent's request to the terminal. The pauses between
    // the keys can also become so long that guard takes a key for an answer. Such an attempt proves nothing.
    let is_done = (0..20).any(|attempt| presses_keys_before_the_question(&format!("ask-report-{attempt}")));
    assert!(is_done, "the machine is too busy to press keys at short intervals");
}

/// Presses keys before the question, and answers the question with `n`. Returns false if the question came
/// before the first key, or if the pauses between the keys were too long.
fn presses_keys_before_the_question(name: &str) -> bool {
    let scratch = scene(name);
    // A terminal answers the character ENQ with a text that its user has configured, and other requests with text
    // that the agent can choose.
    scratch.write("work/script.sh", "printf 'request\\005'; date +first=%s; echo code=$?; echo end\n");
    let mut emulator = Emulator::start(&scratch);
    let began = Instant::now();
    while !emulator.shown.contains("request\u{5}") {
        // guard holds back the agent's output while it asks, and may ask before it has shown the request.
        if emulator.shown.contains("the agent wants to run") {
            return false;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "no request: {:?}", emulator.shown);
        emulator.read_for(Duration::from_millis(1));
    }
    for _ in 0..4 {
        let pressed = Instant::now();
        emulator.press("y");
        emulator.read_for(Duration::from_millis(25));
        if pressed.elapsed() > Duration::from_millis(75) {
            return false;
        }
    }
    emulator.wait_for("save it as a rule  [n] no: ", 1);
    emulator.read_for(Duration::from_millis(300));
    assert!(!emulator.shown.contains("first=1"), "{:?}", emulator.shown);
    emulator.press("n");
    emulator.wait_for("end", 1);
    assert!(!emulator.shown.contains("first=1"), "{:?}", emulator.shown);
    true
}

/// The question must show every argument, and must escape characters that are invisible or change the direction of the
/// text.
#[test]
fn question_shows_the_whole_command_escaped() {
    let scratch = scene("ask-whole");
    let filler = "f".repeat(300);
    let script = format!(
        "date +{filler} +{filler} +at-the-end\n\
         date \"$(printf '+\\342\\200\\213\\342\\200\\256zero\\342\\200\\250width\\357\\270\\217')\"\n\
         date $(head -c 90000 /dev/zero | tr '\\0' z) +too-much\n"
    );
    scratch.write("work/script.sh", format!("{script} true\n"));
    let shown = at_a_terminal(&scratch, &["n", "n", "n"]);
    // Cuts the text at the list of keys, because guard's refusal follows it.
    let question = |part: &str| part.split("[y] yes, once").next().unwrap_or_default().to_string();
    let questions: Vec<String> = shown.split("the agent wants to run: ").skip(1).map(question).collect();
    assert_eq!(questions.len(), 3, "{shown}");
    assert!(questions[0].contains("+at-the-end") && questions[0].matches(&filler).count() == 2, "{shown}");
    assert!(questions[1].contains("zero") && questions[1].contains("width"), "{shown}");
    assert!(!shown.contains(['\u{200b}', '\u{202e}', '\u{2028}', '\u{fe0f}']), "{shown:?}");
    assert!(questions[2].contains("bytes not shown, so answer no"), "{:.300}", questions[2]);
    assert!(questions[2].contains("+too-much"), "the end is shown too");
}
