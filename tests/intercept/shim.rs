//! The real shim under the names of real programs, asked and answered over a real socket.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use guard::command::Context;
use guard::intercept::answer;
use guard::intercept::wire::{Answer, Question, SOCKET_VARIABLE};

use crate::support::{Scratch, policy};

/// A folder with shims under these names, and a PATH that begins with it.
fn shims(scratch: &Scratch, names: &[&str]) -> String {
    let folder = scratch.0.join("shims");
    std::fs::create_dir_all(&folder).unwrap();
    for name in names {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_guard-shim"), folder.join(name)).unwrap();
    }
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// Runs a command with shims on its PATH; `reply` plays the supervisor.
fn run(
    scratch: &Scratch,
    argv: &[&str],
    reply: impl Fn(&Question) -> Option<Answer> + Send + 'static,
) -> Output {
    let socket = scratch.0.join("control");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            if let Ok(question) = Question::read(&mut stream)
                && let Some(answer) = reply(&question)
            {
                let _ = answer.write(&mut stream);
            }
        }
    });
    let path = shims(scratch, &["git", "sh", "bash"]);
    Command::new(scratch.0.join("shims").join(argv[0]))
        .args(&argv[1..])
        .env("PATH", path)
        .env(SOCKET_VARIABLE, &socket)
        .current_dir(&scratch.0)
        .output()
        .unwrap()
}

fn judged(question: &Question) -> Option<Answer> {
    Some(answer(&policy("strict"), &Context::default(), None, question))
}

#[test]
fn what_is_allowed_runs_as_it_would_without() {
    let scratch = Scratch::new("shim-go");
    let output = run(&scratch, &["git", "--version"], judged);
    let plain = Command::new("git").arg("--version").output().unwrap();
    assert_eq!((output.status.code(), &output.stdout), (plain.status.code(), &plain.stdout));
    let scratch = Scratch::new("shim-shell");
    let output =
        run(&scratch, &["bash", "-c", "printf '%s|' \"$0\" \"$@\"; exit 7", "a b", "\u{e9}"], judged);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), "a b|\u{e9}|".as_bytes()));
}

#[test]
fn what_is_denied_does_not_run() {
    let scratch = Scratch::new("shim-deny");
    let repository = |args: &[&str]| Command::new("git").args(args).current_dir(&scratch.0).output().unwrap();
    repository(&["init", "-q", "-b", "main"]);
    let output = run(&scratch, &["git", "checkout", "-b", "other"], judged);
    assert_eq!(output.status.code(), Some(126));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.starts_with("guard: Permission denied: ")
            && message.contains("git.switch")
            && message.contains("Instead: "),
        "{message}"
    );
    assert_eq!(
        std::fs::read_to_string(scratch.0.join(".git/HEAD")).unwrap(),
        "ref: refs/heads/main\n",
        "seen from outside"
    );
}

#[test]
fn a_shell_is_judged_by_its_text() {
    let scratch = Scratch::new("shim-text");
    let output = run(&scratch, &["sh", "-c", "touch before; git push; touch after"], judged);
    assert_eq!(output.status.code(), Some(126));
    assert!(!Path::new(&scratch.0.join("before")).exists(), "nothing of the text ran");
}

#[test]
fn it_fails_closed() {
    // Nobody listens, nobody is named, the answer is no answer, the connection is cut.
    for reply in [None, Some(Answer::Deny(String::new()))] {
        let scratch = Scratch::new("shim-closed");
        let output = run(&scratch, &["git", "init", "made"], move |_| reply.clone());
        assert_eq!(output.status.code(), Some(126));
        assert!(!scratch.0.join("made").exists());
    }
    let scratch = Scratch::new("shim-alone");
    let path = shims(&scratch, &["git"]);
    for socket in [None, Some("/nonexistent/socket")] {
        let mut command = Command::new(scratch.0.join("shims/git"));
        command.args(["init", "made"]).env("PATH", &path).env_remove(SOCKET_VARIABLE).current_dir(&scratch.0);
        if let Some(socket) = socket {
            command.env(SOCKET_VARIABLE, socket);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(126));
        assert!(String::from_utf8(output.stderr).unwrap().contains("Permission denied"));
        assert!(!scratch.0.join("made").exists());
    }
}

#[test]
fn a_program_that_is_not_there_is_not_found() {
    let scratch = Scratch::new("shim-missing");
    let socket = scratch.0.join("control");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        Question::read(&mut stream).unwrap();
        Answer::Go.write(&mut stream).unwrap();
    });
    shims(&scratch, &["git"]);
    let output = Command::new(scratch.0.join("shims/git"))
        .env("PATH", scratch.0.join("shims"))
        .env(SOCKET_VARIABLE, &socket)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127), "its own folder must not lead back to it");
}
