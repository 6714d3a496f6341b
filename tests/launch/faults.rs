//! Bad input, broken surroundings and hostile agents: every run ends, says how, and leaves nothing running.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard::transcript::{Outcome, check};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{
    RunOutcome, expect_no_process_left, first_child, guard_program, in_every_environment,
    in_every_environment_at_once, in_two_environments, is_root, make_program, one_environment, peak_memory,
    skip, unique_mark,
};

/// Insists that the transcript of a run is whole, with its end.
pub(super) fn is_complete(outcome: &RunOutcome) {
    let checked =
        check(&outcome.transcript()).unwrap_or_else(|error| panic!("{error}: {:#}", outcome.result));
    assert_eq!(checked.outcome, Outcome::Complete, "{outcome}");
}

/// The events of a run's transcript.
fn events(outcome: &RunOutcome) -> Vec<Value> {
    let text = std::fs::read_to_string(outcome.transcript()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether the result names a file as made by the run.
fn has_changed(outcome: &RunOutcome, path: &str) -> bool {
    let changes = outcome.result["files_changed"].as_array().unwrap();
    changes.contains(&json!({ "path": path, "change": "created" }))
}

#[test]
fn programs_that_cannot_be_started() {
    in_every_environment(|environment| {
        std::fs::write(environment.directory.join("plain"), "#!/bin/sh\n").unwrap();
        make_program(&environment.directory.join("alien"), "\x7fELF nothing");
        make_program(&environment.directory.join("orphan"), "#!/no/such/interpreter\n");
        let cases = [
            ("no-such-program", "command_not_found", 127),
            ("./no-such-program", "command_not_found", 127),
            ("/no/such/program", "command_not_found", 127),
            ("./plain", "invalid_input", 126),
            ("/etc", "invalid_input", 126),
            ("./alien", "upstream_error", 126),
            ("./orphan", "command_not_found", 127),
        ];
        for (program, kind, code) in cases {
            let outcome = environment.run(&[], &[program]);
            assert_eq!((outcome.kind(), outcome.code), (kind, code), "{program}: {outcome}");
            assert_eq!(outcome.result["success"], false);
            assert_eq!(outcome.result["exit_code"], Value::Null, "{program}: {outcome}");
            assert!(!outcome.result["error"].as_str().unwrap().is_empty());
        }
    });
}

#[test]
fn what_cannot_be_planned_leaves_nothing() {
    in_every_environment(|environment| {
        environment.run_outside("mkdir -p state/guard/runs");
        let cases: [(&[&str], &str); 4] = [
            (&[], "no-such-program"),
            (&[], "/etc"),
            (&["--read", "/no/such/folder"], "true"),
            (&["--home-to", "kept", "--home-keep", "../elsewhere"], "true"),
        ];
        for (options, program) in cases {
            let mark = unique_mark();
            let outcome = environment.run(&[&["--env", &mark], options].concat(), &[program]);
            assert!(
                !outcome.kind().is_empty() && outcome.code > 100,
                "{} {options:?}: {outcome:?}",
                environment.name()
            );
            expect_no_process_left(&mark, Duration::from_secs(2));
            for folder in [environment.runs_directory(), environment.temporary_directory()] {
                let left: Vec<_> =
                    std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
                assert!(left.is_empty(), "{} {options:?} {program}: {left:?}", environment.name());
            }
        }
    });
}

#[test]
fn working_folders_that_cannot_be_used() {
    in_every_environment(|environment| {
        let home = environment.user.home.to_str().unwrap().to_string();
        let closed = environment.directory.join("closed");
        environment.run_outside("mkdir project/closed && chmod 000 project/closed");
        std::fs::write(environment.directory.join("file"), "").unwrap();
        let file = environment.directory.join("file");
        let state = environment.runs_directory();
        environment.run_outside("mkdir -p state/guard/runs");
        let mut cases = vec![
            ("/no/such/folder", "No such file"),
            (file.to_str().unwrap(), "Not a directory"),
            ("/", "home directory"),
            (&home, "home directory"),
            (state.to_str().unwrap(), "records"),
        ];
        if environment.user.name != "root" {
            cases.push((closed.to_str().unwrap(), "Permission denied"));
        }
        for (folder, problem) in cases {
            let outcome = environment.run(&["--dir", folder], &["true"]);
            assert_eq!(
                (outcome.kind(), outcome.code),
                ("invalid_input", 125),
                "{} {folder}: {outcome:?}",
                environment.name()
            );
            let error = outcome.result["error"].as_str().unwrap();
            assert!(error.contains(folder) && error.contains(problem), "{}: {error}", environment.name());
        }
        // A directory that is gone while somebody is in it.
        let mut command = environment.command("sh");
        command
            .args(["-c", "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" run -- true"])
            .arg(guard_program());
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 2, "{}: {outcome:?}", environment.name());
        assert!(outcome.error.contains("current directory") && outcome.error.contains("--dir"), "{outcome}");
    });
}

#[test]
fn exit_codes_are_the_commands_own() {
    in_two_environments(|environment| {
        for code in [0, 1, 2, 42, 124, 125, 126, 127, 128, 255] {
            let outcome = environment.run_bash(&format!("exit {code}"));
            assert_eq!((outcome.code, &outcome.result["exit_code"]), (code, &json!(code)), "{outcome}");
            assert_eq!(outcome.result["success"], code == 0);
            is_complete(&outcome);
        }
        for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("INT", 130), ("PIPE", 141)] {
            let outcome = environment.run_bash(&format!("kill -{signal} $$"));
            assert_eq!((outcome.code, outcome.kind()), (code, "upstream_error"), "{signal}: {outcome}");
            is_complete(&outcome);
        }
    });
}

#[test]
fn standard_input_and_output_are_byte_for_byte() {
    let mut bytes: Vec<u8> = (0..=255u8).cycle().take(1 << 20).collect();
    // Not a pattern of 64 KiB: pieces that are swapped or repeated would not show.
    let mut state = 1u32;
    for byte in &mut bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte ^= (state >> 24) as u8;
    }
    in_every_environment(|environment| {
        let outcome = environment.run_to_end(environment.guard_run(&["-q"], &["cat"]), &bytes);
        outcome.expect_code(0);
        assert!(
            outcome.output == bytes,
            "{}: {} of {} bytes",
            environment.name(),
            outcome.output.len(),
            bytes.len()
        );
        assert_eq!(outcome.error, "");
        let outcome = environment
            .run_to_end(environment.guard_run(&["-q"], &["sh", "-c", "wc -c; printf '\\377\\0e' >&2"]), b"");
        assert_eq!(outcome.output, b"0\n", "{}", environment.name());
        assert_eq!(outcome.error, "\u{fffd}\0e");
    });
}

#[test]
fn the_reader_of_the_output_goes_away() {
    in_every_environment(|environment| {
        let mark = unique_mark();
        let guard = environment.guard_run_arguments(&["-q", "--env", &mark], &["yes"]);
        let mut command = environment.command("bash");
        command
            .args(["-c", "\"$@\" | head -1; echo ${PIPESTATUS[0]}", "bash"])
            .arg(guard_program())
            .args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(String::from_utf8_lossy(&outcome.output), "y\n141\n", "{outcome}");
        assert!(outcome.took < Duration::from_secs(5), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

#[test]
fn a_gibibyte_of_output_in_little_memory() {
    let bytes: u64 = 1 << 30;
    in_two_environments(|environment| {
        let policy = environment.directory.join("little.toml");
        std::fs::write(
            &policy,
            "version = 1\nname = \"little\"\nextends = \"strict\"\n[limits]\noutput_mib = 2\n",
        )
        .unwrap();
        let options = ["-q", "--policy", policy.to_str().unwrap()];
        let mut command = environment.guard_run(&options, &["head", "-c", &bytes.to_string(), "/dev/zero"]);
        let started = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let counter = std::thread::spawn(move || {
            let (mut buffer, mut count) = (vec![0u8; 1 << 16], 0u64);
            while let Ok(got @ 1..) = output.read(&mut buffer) {
                assert!(buffer[..got].iter().all(|&byte| byte == 0));
                count += got as u64;
            }
            count
        });
        let mut highest = 0;
        while child.try_wait().unwrap().is_none() {
            highest = highest.max(peak_memory(child.id()));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(counter.join().unwrap(), bytes, "{}", environment.name());
        let outcome = environment.collect_outcome(child, started);
        outcome.expect_code(0);
        assert!(highest > 1000 && highest < 64 << 10, "{}: {highest} KiB", environment.name());
        eprintln!("{}: 1 GiB in {:?}, at most {highest} KiB", environment.name(), outcome.took);
        let run = std::fs::read_dir(environment.runs_directory()).unwrap().next().unwrap().unwrap().path();
        let transcript = run.join("transcript.jsonl");
        assert_eq!(check(&transcript).unwrap().outcome, Outcome::Complete);
        let size = transcript.metadata().unwrap().len();
        assert!(size < 140 << 20, "{}: a transcript of {size} bytes", environment.name());
        let text = std::fs::read_to_string(&transcript).unwrap();
        let cut = text.lines().filter(|line| line.contains("\"event_type\":\"transcript.cut\"")).count();
        assert_eq!(cut, 1, "{}: the transcript says once that output was left out", environment.name());
    });
}

#[test]
fn ten_thousand_short_processes() {
    in_two_environments(|environment| {
        // All of them once; without namespaces the same is done for each.
        let many = if environment.namespaces { 10_000 } else { 2_000 };
        let script = format!("i=0\nwhile [ $i -lt {many} ]; do /bin/true; i=$((i+1)); done\necho $i\n");
        std::fs::write(environment.directory.join("many.sh"), script).unwrap();
        let outcome = environment.run(&[], &["sh", "many.sh"]);
        assert_eq!((outcome.code, outcome.printed()), (0, format!("{many}\n")), "{outcome}");
        assert!(outcome.result["usage"]["programs"].as_u64().unwrap() >= many, "{outcome}");
        assert_eq!(outcome.result["denials"], json!([]));
        is_complete(&outcome);
        eprintln!("{}: {many} programs in {:?}", environment.name(), outcome.took);
    });
}

#[test]
fn a_fork_storm_is_bounded_and_ends() {
    in_every_environment(|environment| {
        let policy = environment.directory.join("few.toml");
        std::fs::write(
            &policy,
            "version = 1\nname = \"few\"\nextends = \"strict\"\n[limits]\nprocesses = 150\n",
        )
        .unwrap();
        // Every process forks for ever, and each child leaves for a session of its own.
        let storm = "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError:\n        time.sleep(0.05)\n";
        std::fs::write(environment.directory.join("storm.py"), storm).unwrap();
        let mark = unique_mark();
        let options = ["--json", "--env", &mark, "--policy", policy.to_str().unwrap(), "--max-duration", "6"];
        let python = environment.run_outside("command -v python3").trim().to_string();
        let mut command = environment.guard_run(&options, &[&python, "storm.py"]);
        let started = Instant::now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let watch = {
            let mark = mark.clone();
            std::thread::spawn(move || {
                // The most that were there, however slowly a busy machine lets them come.
                let until = Instant::now() + Duration::from_secs(8);
                let mut most = 0;
                while most <= 100 && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(250));
                    most = most.max(crate::support::marked_processes(&mark).len());
                }
                most
            })
        };
        let outcome = environment.collect_outcome(child, started);
        expect_no_process_left(&mark, Duration::ZERO);
        let most = watch.join().unwrap();
        outcome.expect_code_and_kind(124, "timeout");
        assert!(outcome.took < Duration::from_secs(40), "{}: {:?}", environment.name(), outcome.took);
        is_complete(&outcome);
        // Without a group or a namespace of its own the bound counts what the whole machine has beside.
        let threads = std::fs::read_to_string("/proc/loadavg").unwrap();
        let machine: usize = threads.split(['/', ' ']).nth(4).unwrap().parse().unwrap();
        assert!(most > 100 && most <= 150 + 10 + machine * 2, "{}: {most} processes", environment.name());
        eprintln!("{}: {most} processes, gone after {:?}", environment.name(), outcome.took);
    });
}

#[test]
fn limits_of_time() {
    in_every_environment_at_once(|environment| {
        let mark = unique_mark();
        let outcome = environment.run(&["--env", &mark, "--timeout", "1"], &["sleep", "60"]);
        outcome.expect_code_and_kind(124, "idle_timeout");
        assert_eq!(outcome.result["error_detail"]["idle_timeout_s"], 1);
        assert!(
            outcome.took > Duration::from_secs(1) && outcome.took < Duration::from_secs(5),
            "{:?}",
            outcome.took
        );
        is_complete(&outcome);
        expect_no_process_left(&mark, Duration::ZERO);
        // What prints or starts programs is not idle, but has an end all the same.
        let busy = "while :; do echo busy; sleep 0.2; done";
        let outcome = environment
            .run(&["--env", &mark, "--timeout", "2", "--max-duration", "3"], &["bash", "-c", busy]);
        outcome.expect_code_and_kind(124, "timeout");
        assert!(
            outcome.took > Duration::from_secs(3) && outcome.took < Duration::from_secs(9),
            "{:?}",
            outcome.took
        );
        assert_eq!(outcome.result["error_detail"]["last_lines"][0], "busy");
        is_complete(&outcome);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

#[test]
fn agents_that_do_not_want_to_end() {
    in_every_environment_at_once(|environment| {
        let stubborn = "import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.setpgid(0, 0)
time.sleep(600)";
        // Stopped: a polite signal is not even delivered.
        let stopped = "import os, signal
if os.fork() == 0:
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)";
        for program in [stubborn, stopped] {
            let mark = unique_mark();
            // Time enough for a busy machine to get as far as not wanting to.
            let outcome = environment.run(&["--env", &mark, "--timeout", "3"], &["python3", "-c", program]);
            outcome.expect_code_and_kind(124, "idle_timeout");
            assert!(outcome.took < Duration::from_secs(30), "{}: {:?}", environment.name(), outcome.took);
            assert_eq!(outcome.result["exit_code"], 137, "{outcome}");
            is_complete(&outcome);
            expect_no_process_left(&mark, Duration::ZERO);
        }
    });
}

#[test]
fn agents_that_destroy_their_surroundings() {
    in_every_environment(|environment| {
        // Everything of its own, and the shims, which are not.
        let destroy = "import os, shutil
for path in (os.environ['HOME'], os.environ['TMPDIR'], os.path.dirname(shutil.which('git'))):
    shutil.rmtree(path, ignore_errors=True)";
        std::fs::write(environment.directory.join("destroy.py"), destroy).unwrap();
        let script = "python3 destroy.py; git log --oneline | wc -l; sh -c 'echo still here'";
        let outcome = environment.run_bash(script);
        assert_eq!((outcome.code, outcome.printed()), (0, "1\nstill here\n".to_string()), "{outcome}");
        is_complete(&outcome);
        // Every process that is not itself.
        let script = "(sleep 60 &) ; git log > /dev/null & kill -9 -1 2>/dev/null; kill -9 1 2>/dev/null; kill -9 $PPID 2>/dev/null; echo alone";
        let outcome = environment.run_bash(script);
        assert_eq!((outcome.code, outcome.printed()), (0, "alone\n".to_string()), "{outcome}");
        is_complete(&outcome);
        // Its own working directory.
        let outcome =
            environment.run_bash("rm -rf .[a-z]* * ; mkdir x && cd x && rmdir ../x; /bin/echo nowhere");
        assert_eq!(outcome.printed(), "nowhere\n", "{outcome}");
        // Rights taken away from its own directories: they are removed all the same.
        let outcome = environment.run_bash("mkdir -p $HOME/a/b $TMPDIR/c/d; touch $HOME/a/b/f $TMPDIR/c/d/f; chmod -R 0 $HOME/a $TMPDIR/c; echo closed");
        assert_eq!(outcome.printed(), "closed\n", "{outcome}");
        let run = outcome.transcript().parent().unwrap().to_path_buf();
        assert!(!run.join("home").exists(), "{}: the private home is still there", environment.name());
        assert_eq!(
            std::fs::read_dir(environment.temporary_directory()).unwrap().count(),
            0,
            "{}",
            environment.name()
        );
    });
}

#[test]
fn an_agent_that_closes_its_output_goes_on() {
    in_every_environment(|environment| {
        let outcome = environment.run_bash("echo first; exec >&- 2>&- <&-; sleep 0.3; touch went-on");
        assert_eq!((outcome.code, outcome.printed()), (0, "first\n".to_string()), "{outcome}");
        assert!(environment.directory.join("went-on").exists());
        assert!(has_changed(&outcome, "went-on"), "{outcome}");
    });
}

/// What outlives the command it was started by is ended with it, and does not hold the run up.
#[test]
fn daemons_end_with_the_command() {
    in_every_environment(|environment| {
        let mark = unique_mark();
        let script = "(setsid sleep 60 &); nohup setsid bash -c 'sleep 60; :' & disown; echo done";
        let outcome = environment.run(&["--env", &mark], &["bash", "-c", script]);
        assert_eq!((outcome.code, outcome.printed()), (0, "done\n".to_string()), "{outcome}");
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

#[test]
fn garbage_on_the_control_socket() {
    let script = "import os, socket, struct
for number in range(150):
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.environ['GUARD_CONTROL'])
    garbage = [b'', os.urandom(1000), b'\\xff' * 8, struct.pack('<I', 0xffffffff) + b'x', b'GET / HTTP/1.1\\r\\n\\r\\n', b'\\0' * 100][number % 6]
    try:
        client.sendall(garbage)
        if number % 2: client.shutdown(socket.SHUT_WR)
        if number % 10 == 1: client.recv(10)
    except OSError: pass
kept = client
os.system('git status --short > /dev/null && echo answered')
import subprocess
print(subprocess.run(['git', 'push'], stderr=subprocess.PIPE).stderr.count(b'Permission denied'), flush=True)";
    in_every_environment(|environment| {
        std::fs::write(environment.directory.join("garbage.py"), script).unwrap();
        let outcome = environment.run(&["--timeout", "30"], &["python3", "garbage.py"]);
        assert_eq!((outcome.code, outcome.printed()), (0, "answered\n1\n".to_string()), "{outcome}");
        assert!(outcome.took < Duration::from_secs(20), "{}: {:?}", environment.name(), outcome.took);
        let told = events(&outcome).iter().filter(|event| event["event_type"] == "control.garbage").count();
        assert!(told >= 50, "{}: {told} of 150 are in the transcript", environment.name());
        is_complete(&outcome);
    });
}

#[test]
fn the_transcript_cannot_be_written() {
    // A limit on the size of files, which everybody can set.
    in_every_environment(|environment| {
        let mark = unique_mark();
        let script = "(setsid sleep 60 &); while :; do echo 0123456789012345678901234567890123456789; done";
        let guard = environment
            .guard_run_arguments(&["--json", "--env", &mark, "--no-toolchains"], &["bash", "-c", script]);
        let mut command = environment.command("bash");
        command.args(["-c", "ulimit -f 64; exec \"$@\"", "bash"]).arg(guard_program()).args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!((outcome.code, outcome.kind()), (125, "internal"), "{}: {outcome:?}", environment.name());
        assert!(
            outcome.result["error"].as_str().unwrap().contains("transcript cannot be written"),
            "{outcome}"
        );
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
    if !is_root() {
        skip("a full disk", "only root can mount one");
        return;
    }
    in_every_environment(|environment| {
        if environment.user.name != "root" {
            return;
        }
        let mark = unique_mark();
        let script = "(setsid sleep 60 &); while :; do echo 0123456789012345678901234567890123456789; done";
        let guard = environment
            .guard_run_arguments(&["--json", "--env", &mark, "--no-toolchains"], &["bash", "-c", script]);
        let mut command = environment.command("unshare");
        let mount =
            "mkdir -p \"$XDG_STATE_HOME\"; mount -t tmpfs -o size=256k none \"$XDG_STATE_HOME\"; exec \"$@\"";
        command.args(["-m", "bash", "-ec", mount, "bash"]).arg(guard_program()).args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!((outcome.code, outcome.kind()), (125, "internal"), "{}: {outcome:?}", environment.name());
        let error = outcome.result["error"].as_str().unwrap();
        assert!(error.contains("transcript") && error.contains("No space left"), "{error}");
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

#[test]
fn a_place_for_state_that_cannot_be_used() {
    let environment = one_environment();
    std::fs::write(environment.temporary_directory().join("file"), "").unwrap();
    for state in [environment.temporary_directory().join("file"), "/proc/nowhere".into()] {
        let mut command = environment.guard_run(&["--json"], &["true"]);
        command.env("XDG_STATE_HOME", &state);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!((outcome.code, outcome.kind()), (125, "internal"), "{}: {outcome:?}", state.display());
        assert!(!outcome.result["error"].as_str().unwrap().is_empty());
    }
}

/// What every result has.
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
    "success",
    "tool",
    "transcript",
    "usage",
];

#[test]
fn the_shapes_of_json() {
    in_every_environment(|environment| {
        // In a file: as text of `-c` the whole would be refused for the push in it.
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
        assert!(has_changed(&outcome, "made"), "{outcome}");

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
        is_complete(&outcome);
        // A reader that goes away does not end the run.
        let mut command =
            environment.guard_run(&["--stream-json"], &["bash", "-c", "seq 20000; touch finished"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        environment.collect_outcome(child, Instant::now());
        assert!(environment.directory.join("finished").exists(), "{}", environment.name());
    });
}

#[test]
fn the_environment_is_an_allow_list() {
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
fn two_runs_at_once_in_one_folder() {
    in_every_environment(|environment| {
        // Each waits for the other: they really are there at the same time.
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
            is_complete(outcome);
        }
        assert_ne!(one.result["run_id"], two.result["run_id"]);
    });
}

/// Arguments and directories with every byte that can be in a name.
#[test]
fn strange_words() {
    in_two_environments(|environment| {
        let words =
            ["", " ", "a b", "'", "\"", "\\", "$HOME", "*", "-n", "--json", "é", "\n", "\x01", "a\tb"];
        let mut command = vec!["printf", "<%s>"];
        command.extend(words);
        let outcome = environment.run(&[], &command);
        assert_eq!(
            outcome.printed(),
            words.map(|word| format!("<{word}>")).concat(),
            "{}",
            environment.name()
        );
        let strange = environment.directory.join("a b'\"\\$x\n,é:=");
        std::fs::create_dir(&strange).unwrap();
        std::fs::set_permissions(&strange, std::fs::Permissions::from_mode(0o777)).unwrap();
        let outcome = environment
            .run(&["--dir", strange.to_str().unwrap()], &["sh", "-c", "echo x > f && cat f && pwd"]);
        assert_eq!(outcome.printed(), format!("x\n{}\n", strange.display()), "{outcome}");
        let long = "x".repeat(120_000);
        let outcome = environment.run(&[], &["bash", "-c", "echo ${#1}", "bash", &long]);
        assert_eq!(outcome.printed(), "120000\n", "{}: {}", environment.name(), outcome.kind());
    });
}

/// Nobody typed anything and nobody reads: no descriptors at all.
#[test]
fn without_standard_streams() {
    in_two_environments(|environment| {
        let guard =
            environment.guard_run_arguments(&["-q"], &["bash", "-c", "echo x; echo y >&2; cat; touch ran"]);
        let mut command: Command = environment.command("bash");
        command.args(["-c", "exec \"$@\" <&- >&- 2>&-", "bash"]).arg(guard_program()).args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert!(environment.directory.join("ran").exists(), "{}: {outcome:?}", environment.name());
    });
    // Written and flushed before the process is gone.
    let environment = one_environment();
    let mut child = environment
        .guard_run(&["-q"], &["cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for word in ["one\n", "two\n"] {
        input.write_all(word.as_bytes()).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// The agent begins in its memory, and is to be looked at there; the program is not.
#[test]
fn nobody_looks_into_the_first_process_when_the_program_runs() {
    in_every_environment(|environment| {
        let user = environment.user.ids.map_or_else(|| nix::unistd::geteuid().as_raw(), |(user, _)| user);
        if user == 0 {
            // What is root's belongs to root either way.
            return;
        }
        let mut command =
            environment.guard_run(&["-q", "--no-toolchains"], &["bash", "-c", "echo started; read line"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "started\n", "{}", environment.name());
        let first = first_child(child.id() as i32, Instant::now());
        let agent = first_child(first, Instant::now());
        let owner = |pid: i32| std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
        assert_eq!((owner(first), owner(agent)), (0, user), "{}", environment.name());
        drop(child.stdin.take());
        child.wait().unwrap();
    });
}

/// Threads of a user, as the kernel counts them against the limit.
fn threads_of(user: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    let threads = |status: String| {
        let number =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
        (number("Uid:")? == user.to_string()).then(|| number("Threads:")?.parse::<usize>().ok())?
    };
    statuses.filter_map(threads).sum()
}

/// Whatever of guard cannot be started, the rest of it does not wait for that without end.
#[test]
fn too_few_processes_for_guard_itself() {
    in_every_environment(|environment| {
        let Some((user, _)) = environment.user.ids else { return };
        let mark = unique_mark();
        let mut kinds = std::collections::BTreeSet::new();
        for room in 1..=9 {
            let limit = threads_of(user) + room;
            let words = environment.guard_run_arguments(&["--json", "--env", &mark], &["/bin/true"]);
            let mut limited = environment.command("bash");
            limited.args(["-c", &format!("ulimit -u {limit}; exec \"$@\""), "bash"]);
            limited.arg(guard_program()).args(words);
            let outcome = environment.run_to_end(limited, b"");
            // Others of the user come and go meanwhile: what counts is that it ends, and says how.
            assert!(
                outcome.took < Duration::from_secs(8),
                "{}, {room}: {:?}",
                environment.name(),
                outcome.took
            );
            assert!(outcome.code == 0 || outcome.result["error"].is_string(), "{room}: {outcome}");
            kinds.insert(outcome.code);
            expect_no_process_left(&mark, Duration::from_secs(5));
        }
        assert!(kinds.len() > 1, "{}: nothing was ever missing: {kinds:?}", environment.name());
    });
}

/// Whoever is the same user can stop init from outside: guard ends the run without it.
#[test]
fn a_first_process_that_is_stopped() {
    in_every_environment_at_once(|environment| {
        let mark = unique_mark();
        let script = "setsid sleep 600 & sleep 600";
        let mut command = environment.guard_run(&["--json", "--env", &mark], &["bash", "-c", script]);
        let started = Instant::now();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let guard = child.id();
        let deadline = started + Duration::from_secs(20);
        while crate::support::marked_processes(&mark)
            .iter()
            .filter(|(_, what)| what.starts_with("sleep"))
            .count()
            < 2
        {
            assert!(Instant::now() < deadline, "{}: it does not start", environment.name());
            std::thread::sleep(Duration::from_millis(20));
        }
        let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap();
        let first: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
        kill(Pid::from_raw(first), Signal::SIGSTOP).unwrap();
        kill(Pid::from_raw(guard as i32), Signal::SIGTERM).unwrap();
        let outcome = environment.collect_outcome(child, started);
        expect_no_process_left(&mark, Duration::ZERO);
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        assert_eq!(outcome.result["success"], false, "{outcome}");
        is_complete(&outcome);
    });
}
