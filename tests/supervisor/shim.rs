//! Tests the real shim under the names of real programs, over a real socket; a thread of the test answers in place of
//! the supervisor. `tests/sandbox/exec.rs` checks that a refused program does not run.

use std::os::unix::net::UnixListener;
use std::process::Output;

use guard::judge::command::Context;
use guard::run::launch::SHIM_PROGRAM;
use guard::run::supervisor::answer;
use guard::run::supervisor::shim::protocol::{Answer, Question, SOCKET_VARIABLE};

use crate::support::{Scratch, isolated_command, make_program, policy};

/// Creates a directory that contains the shim under these names. Returns a PATH that begins with this directory.
fn shims(scratch: &Scratch, names: &[&str]) -> String {
    let folder = scratch.0.join("shims");
    std::fs::create_dir_all(&folder).unwrap();
    make_program(&folder.join("guard-shim"), SHIM_PROGRAM);
    for name in names {
        std::os::unix::fs::symlink("guard-shim", folder.join(name)).unwrap();
    }
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// Creates programs with these names that the kernel refuses to start, as if the supervisor had denied them. Returns
/// a PATH with the shims and then these programs.
fn refused(scratch: &Scratch, names: &[&str]) -> String {
    let folder = scratch.0.join("refused");
    std::fs::create_dir_all(&folder).unwrap();
    let interpreter = folder.join("not-executable");
    std::fs::write(&interpreter, "").unwrap();
    for name in names {
        make_program(&folder.join(name), format!("#!{}\n", interpreter.display()));
    }
    format!("{}:{}", scratch.0.join("shims").display(), folder.display())
}

/// Runs a command through its shim. `reply` takes the place of the supervisor, and `path` leads to the programs behind
/// the shims.
fn run(
    scratch: &Scratch,
    path: &str,
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
    isolated_command(scratch.0.join("shims").join(argv[0]), &scratch.0)
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
fn shim_runs_an_allowed_command_unchanged() {
    let scratch = Scratch::new("shim-go");
    let path = shims(&scratch, &["git"]);
    let output = run(&scratch, &path, &["git", "--version"], |_| panic!("nobody is asked"));
    let plain = isolated_command("git", &scratch.0).arg("--version").output().unwrap();
    assert_eq!((output.status.code(), &output.stdout), (plain.status.code(), &plain.stdout));
    let scratch = Scratch::new("shim-shell");
    let path = shims(&scratch, &["bash"]);
    let argv = ["bash", "-c", "printf '%s|' \"$0\" \"$@\"; exit 7", "a b", "\u{e9}"];
    let output = run(&scratch, &path, &argv, |_| panic!("nobody is asked"));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), "a b|\u{e9}|".as_bytes()));
}

#[test]
fn shim_explains_a_refused_command() {
    for (argv, rule) in [
        (&["git", "checkout", "-b", "other"][..], "git.switch"),
        (&["sh", "-c", "touch before; git push; touch after"], "git.remote"),
    ] {
        let scratch = Scratch::new("shim-deny");
        shims(&scratch, &["git", "sh"]);
        let path = refused(&scratch, &["git", "sh"]);
        let output = run(&scratch, &path, argv, judged);
        assert_eq!(output.status.code(), Some(126));
        let message = String::from_utf8(output.stderr).unwrap();
        let is_whole = message.starts_with("guard: Permission denied: ") && message.contains("Instead: ");
        assert!(is_whole && message.contains(rule) && message.lines().count() == 1, "{message}");
    }
}

/// If the supervisor gives no explanation, the shim must still fail with code 126.
#[test]
fn shim_fails_with_126_without_an_explanation() {
    // The supervisor closes the connection, denies without a reason, or allows the command although the kernel
    // refused it.
    for reply in [None, Some(Answer::Deny(String::new())), Some(Answer::Allow)] {
        let scratch = Scratch::new("shim-closed");
        shims(&scratch, &["git"]);
        let path = refused(&scratch, &["git"]);
        let output = run(&scratch, &path, &["git", "init", "made"], move |_| reply.clone());
        assert_eq!(output.status.code(), Some(126));
    }
    // The shim has no socket, or one that does not exist.
    let scratch = Scratch::new("shim-alone");
    shims(&scratch, &["git"]);
    let path = refused(&scratch, &["git"]);
    for socket in [None, Some("/nonexistent/socket")] {
        let mut command = isolated_command(scratch.0.join("shims/git"), &scratch.0);
        command.args(["init", "made"]).env("PATH", &path).current_dir(&scratch.0);
        if let Some(socket) = socket {
            command.env(SOCKET_VARIABLE, socket);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(126));
        assert!(String::from_utf8(output.stderr).unwrap().contains("Permission denied"));
    }
}

#[test]
fn shim_reports_a_missing_program_as_not_found() {
    let scratch = Scratch::new("shim-missing");
    shims(&scratch, &["git"]);
    let output = isolated_command(scratch.0.join("shims/git"), &scratch.0)
        .env("PATH", scratch.0.join("shims"))
        .env(SOCKET_VARIABLE, "/nonexistent/socket")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127), "its own folder must not lead back to it");
}
