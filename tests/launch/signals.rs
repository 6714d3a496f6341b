// slow
//! guard must pass signals to the agent, and must clean up if a signal arrives while it prepares the run. Signals must
//! not reach other processes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use guard::git::{State, list};
use guard::run::transcript::{Outcome, check};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    RunOutcome, TestEnvironment, expect_no_process_left, in_every_environment, in_every_environment_at_once,
    make_program, unique_mark,
};

/// A run whose script has printed `ready`.
struct Ready<'e> {
    environment: &'e TestEnvironment,
    child: std::process::Child,
    mark: String,
    started: Instant,
    rest: BufReader<std::process::ChildStdout>,
}

impl<'e> Ready<'e> {
    /// Starts a script and waits until it prints `ready`.
    fn new(environment: &'e TestEnvironment, script: &str) -> Self {
        Self::ignoring(environment, "", script)
    }

    /// Starts a script under a guard whose parent process ignores these signals, and waits until the script prints
    /// `ready`.
    fn ignoring(environment: &'e TestEnvironment, signals: &str, script: &str) -> Self {
        let mark = unique_mark();
        let mut command = environment.guard_ignoring_signals(signals);
        command.args(
            environment.guard_run_arguments(&["--stream-json", "--env", &mark], &["bash", "-c", script]),
        );
        let started = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut rest = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !(line.contains("\"output\"") && line.contains("ready")) {
            line.clear();
            assert!(
                rest.read_line(&mut line).unwrap() > 0,
                "{}: ended before it was ready",
                environment.name()
            );
        }
        Self { environment, child, mark, started, rest }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end of the run. Fails if a process of it is left.
    fn end(mut self) -> RunOutcome {
        let mut output = Vec::new();
        self.rest.read_to_end(&mut output).unwrap();
        let mut outcome = self.environment.collect_outcome(self.child, self.started);
        let last = output.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap();
        outcome.result = serde_json::from_slice(last).unwrap_or_default();
        expect_no_process_left(&self.mark, Duration::ZERO);
        outcome
    }
}

#[test]
fn signals_reach_the_agent() {
    in_every_environment(|environment| {
        for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
            // The signal reaches a program without a handler, and one that cleans up first.
            let run = Ready::new(environment, "echo ready; exec sleep 60");
            run.signal(signal);
            let outcome = run.end();
            assert_eq!((outcome.code, outcome.kind()), (code, "cancelled"), "{signal}: {outcome}");
            assert!(
                outcome.took < Duration::from_secs(20),
                "{} {signal}: {:?}",
                environment.name(),
                outcome.took
            );
            outcome.expect_complete_transcript();
            let name = &signal.as_str()[3..];
            let tidy = format!("trap 'echo tidied; exit 9' {name}; echo ready; while :; do sleep 0.02; done");
            let run = Ready::new(environment, &tidy);
            run.signal(signal);
            let outcome = run.end();
            assert_eq!((outcome.code, outcome.kind()), (9, "cancelled"), "{signal}: {outcome}");
            assert_eq!(outcome.printed(), "ready\ntidied\n", "{} {signal}", environment.name());
            assert_eq!(outcome.result["success"], false);
            outcome.expect_complete_transcript();
        }
    });
}

#[test]
fn second_signal_ends_the_run_at_once() {
    in_every_environment_at_once(|environment| {
        let end_by_two_signals = || {
            let run = Ready::new(
                environment,
                "trap '' INT TERM HUP; (setsid sleep 60 &); echo ready; while :; do sleep 0.05; done",
            );
            run.signal(Signal::SIGINT);
            std::thread::sleep(Duration::from_millis(700));
            let asked = Instant::now();
            run.signal(Signal::SIGINT);
            let outcome = run.end();
            outcome.expect_code_and_kind(137, "cancelled");
            outcome.expect_complete_transcript();
            asked.elapsed()
        };
        // Without the second signal, guard would wait 5 seconds before it kills the agent. On a busy machine the two
        // signals can become one, so the test tries again.
        let is_fast = (0..4).any(|_| end_by_two_signals() < Duration::from_secs(4));
        assert!(is_fast, "{}", environment.name());
    });
}

#[test]
fn ignored_signals_stay_ignored_in_a_run() {
    in_every_environment_at_once(|environment| {
        let run = Ready::ignoring(environment, "HUP,INT,QUIT", "echo ready; sleep 1; echo done");
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
            run.signal(signal);
        }
        let outcome = run.end();
        outcome.expect_code_and_kind(0, "");
        assert_eq!(outcome.printed(), "ready\ndone\n", "{}", environment.name());
        // SIGTERM must end the run, although guard inherited it as ignored.
        let run = Ready::ignoring(environment, "HUP,TERM", "echo ready; exec sleep 60");
        run.signal(Signal::SIGTERM);
        let outcome = run.end();
        outcome.expect_code_and_kind(143, "cancelled");
    });
}

#[test]
fn signal_during_worktree_creation_undoes_it() {
    in_every_environment_at_once(|environment| {
        let real = environment.run_outside("command -v git").trim().to_string();
        let bin = environment.directory.with_file_name("bin");
        let begun = environment.temporary_directory().join("begun");
        let state = "git -C repository for-each-ref; git -C repository worktree list --porcelain; ls -A .worktrees || true";
        // A script takes the place of the user's git. It waits for a long time before or after git makes the worktree.
        for first in ["true".to_string(), format!("'{real}' \"$@\"")] {
            let slow = format!("{first} && : > '{}' && exec sleep 600", begun.display());
            let script = format!(
                "#!/bin/sh\n[ \"$1 $2\" != 'worktree add' ] || {{ {slow}; }}\nexec '{real}' \"$@\"\n"
            );
            make_program(&bin.join("git"), script);
            let before = environment.run_outside(state);
            for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
                let _ = std::fs::remove_file(&begun);
                let mark = unique_mark();
                let (name, value) = mark.split_once('=').unwrap();
                let mut command = environment.guard_ignoring_signals("");
                command.args(environment.guard_run_arguments(&["--json", "--name", "cut"], &["true"]));
                // The test's git is inside guard's own checkout. guard runs programs of a checkout only if the
                // checkout also contains the home directory, so the test sets HOME.
                command.env("HOME", bin.parent().unwrap());
                command.env("PATH", format!("{}:{}", bin.display(), environment.user.path)).env(name, value);
                let started = Instant::now();
                let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
                while !begun.exists() {
                    assert!(
                        started.elapsed() < Duration::from_secs(20),
                        "{}: it does not start",
                        environment.name()
                    );
                    std::thread::sleep(Duration::from_millis(5));
                }
                kill(Pid::from_raw(child.id() as i32), signal).unwrap();
                let outcome = environment.collect_outcome(child, started);
                assert_eq!(
                    (outcome.code, outcome.kind()),
                    (code, "cancelled"),
                    "{} {signal}: {outcome:?}",
                    environment.name()
                );
                expect_no_process_left(&mark, Duration::ZERO);
                assert_eq!(environment.run_outside(state), before, "{} {signal}", environment.name());
                for entry in list(&environment.runs_directory()).unwrap() {
                    assert_eq!(
                        entry.record.unwrap().state,
                        State::Removed,
                        "{} {signal}",
                        environment.name()
                    );
                }
            }
        }
    });
}

/// A Ctrl-C reaches the whole foreground process group, also the git with which guard receives commits. No commit may
/// be lost.
#[test]
fn ctrl_c_during_receive_loses_no_commit() {
    in_every_environment_at_once(|environment| {
        let real = environment.run_outside("command -v git").trim().to_string();
        let bin = environment.directory.with_file_name("bin");
        let (ended, begun) =
            (environment.directory.join("ended"), environment.temporary_directory().join("begun"));
        // This git command lists the received commits. The earlier git commands, which read the agent's objects, run
        // in a jail and could not start this script.
        let slow = format!("[ ! -e '{}' ] || {{ : > '{}'; sleep 1; }}", ended.display(), begun.display());
        make_program(
            &bin.join("git"),
            format!(
                "#!/bin/sh\n[ \"$1 $2\" != 'rev-list --no-commit-header' ] || {{ {slow}; }}\nexec '{real}' \"$@\"\n"
            ),
        );
        let work = format!(
            "PATH={}:$PATH; echo more > more; git add more; git -c user.name=n -c user.email=e commit -qm more && : > ended",
            real.strip_suffix("/git").unwrap()
        );
        let mut command = environment.guard_ignoring_signals("");
        command.args(environment.guard_run_arguments(&["--json", "--here"], &["bash", "-c", &work]));
        // The test's git is inside guard's own checkout. guard runs programs of a checkout only if the checkout also
        // contains the home directory, so the test sets HOME.
        command.env("HOME", bin.parent().unwrap());
        command.env("PATH", format!("{}:{}", bin.display(), environment.user.path)).process_group(0);
        let started = Instant::now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !begun.exists() {
            if started.elapsed() > Duration::from_secs(120) {
                panic!(
                    "{}: nothing is received: {:#}",
                    environment.name(),
                    environment.collect_outcome(child, started).result
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(-(child.id() as i32)), Signal::SIGINT).unwrap();
        let outcome = environment.collect_outcome(child, started);
        outcome.expect_code_and_kind(0, "");
        assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
        let subjects = environment.run_outside("git -C repository log --format=%s task/work");
        assert_eq!(subjects, "more\nfirst\n", "{}", environment.name());
    });
}

/// If the reader of guard's output stops reading, a signal must still end guard, and the transcript must be complete.
#[test]
fn stopped_output_reader_does_not_block_guard() {
    in_every_environment_at_once(|environment| {
        // Three cases: the agent prints without end, the agent has ended and its output waits, and guard prints every
        // event.
        for (options, script, signals) in [
            (&["--quiet"][..], "echo ready; yes", 2),
            (&["--quiet"][..], "head -c 300000 /dev/zero", 1),
            (&["--stream-json"][..], "echo ready; yes", 2),
        ] {
            let mark = unique_mark();
            let options: Vec<&str> = options.iter().copied().chain(["--env", &mark]).collect();
            let mut command = environment.guard_run(&options, &["bash", "-c", script]);
            let (reader, writer) = std::io::pipe().unwrap();
            let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
            drop(command);
            std::thread::sleep(Duration::from_millis(1500));
            assert!(child.try_wait().unwrap().is_none(), "{} {script}: it does not wait", environment.name());
            let asked = Instant::now();
            for _ in 0..signals {
                let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
                std::thread::sleep(Duration::from_secs(2));
            }
            while child.try_wait().unwrap().is_none() {
                assert!(
                    asked.elapsed() < Duration::from_secs(60),
                    "{} {options:?} {script}: guard does not end",
                    environment.name()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(reader);
            expect_no_process_left(&mark, Duration::from_secs(2));
            let newest = environment
                .run_outside("ls -t \"$XDG_STATE_HOME\"/guard/runs/*/transcript.jsonl | head -n 1");
            let checked = check(Path::new(newest.trim())).unwrap();
            assert_eq!(checked.outcome, Outcome::Complete, "{} {options:?} {script}", environment.name());
        }
    });
}
