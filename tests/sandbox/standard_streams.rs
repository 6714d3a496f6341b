// slow
//! The agent must get the caller's standard streams through guard's pipes, never the caller's open files.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, in_every_configuration, probe_directory, system_python,
};

/// Returns a shell command line that starts this command.
fn shell_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    shell_words::join(words.map(|word| word.to_str().unwrap()))
}

/// Returns a command line that starts the probe in the sandbox or without a sandbox.
fn probe(
    fixture: &SandboxFixture,
    configuration: Option<SandboxConfiguration>,
    arguments: &[&str],
) -> String {
    let mut command = match configuration {
        Some(configuration) => {
            let mut guard = fixture.guard(configuration, &[]);
            guard.arg(system_python().unwrap());
            guard
        }
        None => fixture.command(system_python().unwrap()),
    };
    command.arg("-B").arg(probe_directory().join("standard_input.py")).args(arguments);
    shell_line(&command)
}

/// Feeds a script to a shell through a pipe, as `ssh host bash -s` does. Returns the output.
fn shell_fed_by_pipe(fixture: &SandboxFixture, shell: &[&str], script: &str) -> String {
    let mut command = fixture.command("bash");
    command.args(["-c", "printf %s \"$1\" | \"${@:2}\"", "bash", script]).args(shell);
    let output = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn script(fixture: &SandboxFixture, probe: &str) -> String {
    format!("{probe}\necho after >> {}\n", fixture.outside.join("after").display())
}

/// Returns the lines of a file; none if it does not exist.
fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_string).collect()
}

/// A shell reads its script from a pipe, and starts guard with the same pipe as standard input. If the agent writes to
/// its standard input, the shell must not execute that as a command.
#[test]
fn agent_cannot_write_the_script_that_started_guard() {
    if system_python().is_none() {
        return;
    }
    let escapes = |fixture: &SandboxFixture, configuration: Option<SandboxConfiguration>, shell: &[&str]| {
        let target = fixture.outside.join("escaped");
        let _ = std::fs::remove_file(&target);
        let _ = std::fs::remove_file(fixture.outside.join("after"));
        let order = format!("touch {}", target.display());
        let script = script(fixture, &probe(fixture, configuration, &["write", &order]));
        let said = shell_fed_by_pipe(fixture, shell, &script);
        assert_eq!(lines(&fixture.outside.join("after")), ["after"], "{configuration:?} {shell:?}: {said}");
        target.exists()
    };
    let shells: [&[&str]; 4] = [
        &["bash", "-s"],
        &["sh"],
        &["timeout", "60", "bash", "-s", "--", "x"],
        &["bash", "-c", ". /dev/stdin"],
    ];
    for user in SandboxUser::available() {
        let fixture = SandboxFixture::new(user);
        assert!(escapes(&fixture, None, shells[0]), "without guard the attack works");
    }
    in_every_configuration(|configuration, fixture| {
        for shell in shells {
            assert!(!escapes(fixture, Some(configuration), shell), "{configuration:?} {shell:?}");
        }
    });
}

/// A shell reads its script from a pipe or a file, and starts guard with the same standard input. The agent must not be
/// able to read the rest of the script, because the shell would then continue at another position.
#[test]
fn agent_cannot_consume_the_script_that_started_guard() {
    if system_python().is_none() {
        return;
    }
    in_every_configuration(|configuration, fixture| {
        let after = fixture.outside.join("after");
        for (kind, shell) in [("pipe", ["bash", "-s"]), ("file", ["bash", "-s"]), ("pipe", ["sh", "-x"])] {
            let _ = std::fs::remove_file(&after);
            // If the agent could read six bytes of the script, the shell would continue in the middle of the next
            // line, at ` ; echo`.
            let probe = probe(fixture, Some(configuration), &["read", "6"]);
            let script = format!("{probe}\n: '23' ; echo after >> {}\n", after.display());
            let said = if kind == "pipe" {
                shell_fed_by_pipe(fixture, &shell, &script)
            } else {
                let file = fixture.file(&fixture.home.join("script"), &script);
                let mut command = fixture.command(shell[0]);
                let output =
                    command.arg(shell[1]).stdin(std::fs::File::open(file).unwrap()).output().unwrap();
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            assert_eq!(lines(&after), ["after"], "{configuration:?} {kind} {shell:?}: {said}");
            assert!(said.contains("\"value\": \"\""), "{configuration:?} {kind} {shell:?}: {said}");
        }
    });
}

/// If standard input is a socket, the agent must receive what arrives, and must not be able to send anything back.
#[test]
fn agent_cannot_write_to_a_socket_on_standard_input() {
    if system_python().is_none() {
        return;
    }
    let received = |mut command: Command| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"question").unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        command.arg("-B").arg(probe_directory().join("standard_input.py")).args(["write", "answer"]);
        let output = command.stdin(Stdio::from(OwnedFd::from(theirs))).output().unwrap();
        drop(command);
        assert!(output.status.success(), "{output:?}");
        let mut received = Vec::new();
        // If the other side did not read all data, the connection ends with a reset.
        let _ = ours.read_to_end(&mut received);
        String::from_utf8(received).unwrap()
    };
    for user in SandboxUser::available() {
        let fixture = SandboxFixture::new(user);
        assert_eq!(received(fixture.command(system_python().unwrap())), "answer\n", "without guard it works");
    }
    in_every_configuration(|configuration, fixture| {
        let mut guard = fixture.guard(configuration, &[]);
        guard.arg(system_python().unwrap());
        assert_eq!(received(guard), "", "{configuration:?}");
        // Data that the caller sends must still arrive.
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"question").unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        let mut guard = fixture.guard(configuration, &[]);
        let output = guard.arg("cat").stdin(Stdio::from(OwnedFd::from(theirs))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "question", "{configuration:?}: {output:?}");
    });
}

/// The options of runs whose standard input is a pipe, and of runs whose standard input is a sealed stream.
const KINDS: [&[&str]; 2] = [&[], &["--seal-stdio"]];

/// guard must not read more of its caller's input than the agent does, so that the next reader finds the rest.
#[test]
fn input_the_agent_does_not_read_stays_for_the_caller() {
    in_every_configuration(|configuration, fixture| {
        let text = "one\ntwo\nthree\n";
        let file = fixture.file(&fixture.home.join("list"), text);
        for options in KINDS {
            let reader = |command: &str| {
                let mut guard = fixture.guard(configuration, options);
                guard.args(["sh", "-c", command]);
                shell_line(&guard)
            };
            let loop_over = format!("while read -r line; do {}; echo \"$line\" >&2; done", reader("true"));
            let part = format!("{}; cat >&2", reader("dd bs=1 count=4 2>&-"));
            for (script, expected) in [(&loop_over, text), (&part, "two\nthree\n")] {
                let mut bash = fixture.command("bash");
                let from_file =
                    bash.args(["-c", script]).stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
                assert_eq!(
                    String::from_utf8_lossy(&from_file.stderr),
                    expected,
                    "{configuration:?} {script}"
                );
                let piped = format!("printf '{}' | {{ {script}; }}", text.escape_default());
                let from_pipe = fixture.command("bash").args(["-c", &piped]).output().unwrap();
                assert_eq!(
                    String::from_utf8_lossy(&from_pipe.stderr),
                    expected,
                    "{configuration:?} {script}"
                );
            }
        }
    });
}

/// A large input must arrive complete through a pipe.
#[test]
fn large_standard_input_arrives_whole() {
    in_every_configuration(|configuration, fixture| {
        for options in KINDS {
            let mut guard = fixture.guard(configuration, options);
            guard.args(["sha256sum"]);
            let script = format!("head -c 33000001 /dev/zero | timeout 60 {}", shell_line(&guard));
            let began = Instant::now();
            let output = fixture.command("bash").args(["-c", &script]).output().unwrap();
            let outside =
                fixture.command("bash").args(["-c", "head -c 33000001 /dev/zero | sha256sum"]).output();
            assert_eq!(output.stdout, outside.unwrap().stdout, "{configuration:?} {options:?}: {output:?}");
            assert!(began.elapsed() < Duration::from_secs(20), "{configuration:?}: {:?}", began.elapsed());
        }
    });
}

/// The agent sends the descriptors of its output as messages over connections to guard. The queues of these connections
/// keep the descriptors open after the agent has ended. guard must end nevertheless.
#[test]
fn output_descriptors_held_open_do_not_delay_guard() {
    let Some(python) = system_python() else { return };
    in_every_configuration(|configuration, fixture| {
        let mut guard = fixture.guard(configuration, &[]);
        guard.arg(python).arg("-B").arg(probe_directory().join("hold_output.py"));
        let began = Instant::now();
        let output = guard.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("held 256"), "{configuration:?}: the attack was not tried: {output:?}");
        assert!(output.status.success(), "{configuration:?}: {output:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{configuration:?}: {:?}", began.elapsed());
    });
}
