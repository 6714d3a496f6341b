// slow
//! The tests kill guard, whose supervisor thread judges the run, or another process of a run, at any moment. Every
//! process of the run must end, and the transcript must be readable.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use guard::run::transcript::{Outcome, check};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Random, TestEnvironment, agent_process, expect_no_process_left, guard_children,
    in_every_environment_at_once, init_process, marked_processes, unique_mark, wait_until,
};

/// The number of kills in the four environments together.
const KILLS: usize = 200;

/// A script that starts programs all the time, and leaves a daemon.
const BUSY: &str = "(setsid sleep 600 &)
nohup setsid bash -c 'trap \"\" TERM HUP INT; while :; do /bin/true; sleep 0.01; done' > /dev/null 2>&1 &
python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(600)
time.sleep(600)' &
while :; do /bin/echo line; git log --oneline > /dev/null; done";

#[test]
fn supervisor_killed_at_any_moment_leaves_no_process() {
    in_every_environment_at_once(|environment| {
        let mut random = Random(
            0x9e37_79b9_7f4a_7c15
                ^ (u64::from(environment.namespaces) << 7)
                ^ u64::from(environment.user.name.as_bytes()[0]),
        );
        let (mut began, mut slowest) = (0, Duration::ZERO);
        // A launch takes longer on a busy machine, so the test measures it first and spreads the moments of the kills
        // over its duration.
        let launch = (0..3).map(|_| environment.run(&["--no-toolchains"], &["true"]).took).min().unwrap();
        let launch = u64::try_from(launch.as_micros()).unwrap().max(20_000);
        is_readable(environment);
        for turn in 0..KILLS / 4 {
            // The moments range from guard's first instruction to well into the agent's work.
            let waits_for_transcript = turn % 3 == 0;
            let delay = random.below(if waits_for_transcript { 300_000 } else { 2 * launch });
            let mark = unique_mark();
            let toolchains: &[&str] = if turn % 10 == 5 { &[] } else { &["--no-toolchains"] };
            let options = [&["-q", "--env", &mark], toolchains].concat();
            let mut command = environment.guard_run(&options, &["bash", "-c", BUSY]);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            if waits_for_transcript {
                wait_until("a transcript", || has_transcript(environment));
            }
            std::thread::sleep(Duration::from_micros(delay));
            child.kill().unwrap();
            child.wait().unwrap();
            let killed = Instant::now();
            expect_no_process_left(&mark, Duration::from_secs(30));
            slowest = slowest.max(killed.elapsed());
            began += usize::from(is_readable(environment));
        }
        // If fewer runs had begun, the delays would be too short to hit a running agent.
        assert!(began > KILLS / 16, "{}: only {began} runs had begun", environment.name());
        eprintln!(
            "{}: {began} of {} had begun; gone after {slowest:?} at most",
            environment.name(),
            KILLS / 4
        );
        tidy(environment);
    });
}

fn has_transcript(environment: &TestEnvironment) -> bool {
    let runs = std::fs::read_dir(environment.runs_directory()).into_iter().flatten().flatten();
    runs.into_iter().any(|run| run.path().join("transcript.jsonl").exists())
}

/// Checks the transcripts that the killed runs left, and removes their directories. Returns true if there was a
/// transcript.
fn is_readable(environment: &TestEnvironment) -> bool {
    let Ok(entries) = std::fs::read_dir(environment.runs_directory()) else { return false };
    let mut any = false;
    for run in entries.map(|entry| entry.unwrap().path()) {
        let transcript = run.join("transcript.jsonl");
        if transcript.exists() {
            let checked = check(&transcript).unwrap();
            let is_intact = matches!(checked.outcome, Outcome::Unfinished { .. } | Outcome::Complete);
            assert!(is_intact, "{}: {checked:?}", environment.name());
            any = true;
        }
        let id = run.file_name().unwrap().to_string_lossy().into_owned();
        remove_group(&id);
        // The directory may contain only files that guard itself made, which the test can remove.
        std::fs::remove_dir_all(&run).unwrap();
    }
    any
}

/// Removes the cgroup of a run whose guard process was killed.
fn remove_group(id: &str) {
    for folder in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
        let _ = std::fs::remove_dir(Path::new(folder).join(format!("guard-{id}")));
    }
}

/// Fails unless guard can still run a command in this environment, after the test has killed a process of an earlier
/// run.
fn tidy(environment: &TestEnvironment) {
    assert_eq!(
        environment.expect_success("echo fine; git log --oneline | wc -l"),
        "fine\n1\n",
        "{}",
        environment.name()
    );
}

/// The agent's process is killed while it starts. init must report that to guard.
#[test]
fn agent_killed_during_its_start_is_reported() {
    in_every_environment_at_once(|environment| {
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ u64::from(environment.namespaces));
        for _ in 0..40 {
            let mark = unique_mark();
            let mut command =
                environment.guard_run(&["--json", "--no-toolchains", "--env", &mark], &["sleep", "600"]);
            let started = Instant::now();
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let agent = agent_process(child.id() as i32, started);
            let moment = Instant::now() + Duration::from_micros(random.below(1_500));
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
            kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
            let outcome = environment.collect_outcome(child, started);
            expect_no_process_left(&mark, Duration::ZERO);
            assert_eq!(outcome.result["success"], false, "{}: {outcome:?}", environment.name());
            let error = outcome.result["error"].as_str().unwrap_or_default();
            assert!(!error.is_empty(), "{}: {outcome:?}", environment.name());
            assert!(outcome.took < Duration::from_secs(20), "{}: {:?}", environment.name(), outcome.took);
        }
        tidy(environment);
    });
}

#[test]
fn killed_init_ends_the_run() {
    in_every_environment_at_once(|environment| {
        for wait in [0, 3, 30, 300] {
            let mark = unique_mark();
            let mut command = environment.guard_run(&["--json", "--env", &mark], &["bash", "-c", BUSY]);
            let started = Instant::now();
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let first = init_process(child.id() as i32, started);
            std::thread::sleep(Duration::from_millis(wait));
            let is_at_work = || marked_processes(&mark).iter().any(|(_, words)| !words.contains("guard run"));
            while wait == 300 && !is_at_work() && started.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = kill(Pid::from_raw(first), Signal::SIGKILL);
            // On a busy machine the killed process may have been a git that guard had just forked. Then init starts
            // later, and the test must kill it too.
            let killed = Instant::now();
            wait_until("the end of guard", || {
                if killed.elapsed() > Duration::from_secs(10) {
                    for init in guard_children(child.id() as i32) {
                        let _ = kill(Pid::from_raw(init), Signal::SIGKILL);
                    }
                }
                child.try_wait().unwrap().is_some()
            });
            let outcome = environment.collect_outcome(child, started);
            expect_no_process_left(&mark, Duration::ZERO);
            assert_ne!(outcome.code, 0, "{outcome}");
            assert_eq!(outcome.result["success"], false, "{}: {outcome:?}", environment.name());
            assert!(
                !outcome.result["error"].as_str().unwrap_or_default().is_empty(),
                "{}: {outcome:?}",
                environment.name()
            );
            assert!(
                outcome.took < Duration::from_secs(20),
                "{} after {wait} ms: {:?}",
                environment.name(),
                outcome.took
            );
            let transcript = outcome.transcript();
            if wait == 300 {
                // The agent was already working, so guard must return a result and record the end of the run.
                outcome.expect_code_and_kind(125, "internal");
                assert_eq!(check(&transcript).unwrap().outcome, Outcome::Complete, "{}", environment.name());
            }
        }
        tidy(environment);
    });
}

/// If the supervisor's thread panics while guard lives on, guard must end the run, and the result must say so.
#[test]
fn panicking_supervisor_ends_the_run_and_is_reported() {
    in_every_environment_at_once(|environment| {
        let mark = unique_mark();
        let program = "/usr/bin/id";
        let script = format!("{program}; while :; do sleep 0.1; done");
        let mut command = environment.guard_run(&["--json", "--env", &mark], &["bash", "-c", &script]);
        command.env("GUARD_TEST_PANIC_AT", program);
        let outcome = environment.run_to_end(command, b"");
        expect_no_process_left(&mark, Duration::ZERO);
        outcome.expect_code_and_kind(125, "internal");
        let error = outcome.result["error"].as_str().unwrap_or_default();
        assert!(error.contains("supervisor failed"), "{}: {outcome:?}", environment.name());
        assert!(outcome.took < Duration::from_secs(20), "{}: {:?}", environment.name(), outcome.took);
        tidy(environment);
    });
}

/// If guard and init are killed at once, as `killall -9 guard` does, no process of the run may be left.
#[test]
fn killing_guard_and_init_together_leaves_no_process() {
    in_every_environment_at_once(|environment| {
        if !environment.namespaces {
            // Without a PID namespace the kernel kills only the command itself when init dies, and not its
            // descendants.
            return;
        }
        for wait in [20, 60, 200] {
            let mark = unique_mark();
            let mut command = environment.guard_run(&["-q", "--env", &mark], &["bash", "-c", BUSY]);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(wait));
            for (pid, words) in marked_processes(&mark) {
                if words.contains("guard run") {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            child.wait().unwrap();
            expect_no_process_left(&mark, Duration::from_secs(30));
        }
    });
}

/// Returns the entries of guard's directory for temporary files.
fn temporary(environment: &TestEnvironment) -> Vec<String> {
    let entries = std::fs::read_dir(environment.temporary_directory()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Starts a run that writes a temporary file, and kills its guard process. Returns the id of the run.
fn killed_at_work(environment: &TestEnvironment) -> String {
    let mark = unique_mark();
    let script = "mkdir -p \"$TMPDIR/deep/er\"; echo x > \"$TMPDIR/deep/er/file\"; echo begun; sleep 600";
    let mut command =
        environment.guard_run(&["-q", "--no-toolchains", "--env", &mark], &["bash", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = [0u8; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    expect_no_process_left(&mark, Duration::from_secs(30));
    let mut runs = std::fs::read_dir(environment.runs_directory()).unwrap();
    let id = runs.next().unwrap().unwrap().file_name().to_string_lossy().into_owned();
    assert!(runs.next().is_none());
    remove_group(&id);
    id
}

#[test]
fn remains_of_killed_runs_are_removed_and_nothing_else() {
    in_every_environment_at_once(|environment| {
        let prune = |options: &str| {
            let guard = crate::support::guard_program().display();
            environment.run_outside(&format!("{guard} runs prune {options}"))
        };
        let id = killed_at_work(environment);
        let left = format!("guard-{}", &id[id.len() - 12..]);
        assert_eq!(temporary(environment), std::slice::from_ref(&left), "{}", environment.name());
        // A changed path in a transcript, or a link in place of the transcript, must not make guard delete other
        // directories.
        let transcript = environment.runs_directory().join(&id).join("transcript.jsonl");
        let text = std::fs::read_to_string(&transcript).unwrap();
        let says_where = text.contains(&left);
        let precious = environment.temporary_directory().with_file_name("precious");
        environment.run_outside("mkdir precious && echo x > precious/file");
        let places = [precious.join("tmp"), environment.temporary_directory().join("guard-").join("tmp")];
        // guard may have been killed before it recorded the path of the directory.
        for place in places.iter().filter(|_| says_where) {
            let own = environment.temporary_directory().join(&left).join("tmp");
            let forged = text.replace(own.to_str().unwrap(), place.to_str().unwrap());
            assert_ne!(forged, text);
            std::fs::write(&transcript, forged).unwrap();
            assert!(!prune("").contains("left by"), "{}", environment.name());
        }
        std::fs::write(&transcript, &text).unwrap();
        environment.run_outside(&format!("mv tmp/{left} aside && ln -s ../precious tmp/{left}"));
        assert!(!prune("").contains("left by"), "{}", environment.name());
        environment.run_outside(&format!("rm tmp/{left} && mv aside tmp/{left}"));
        assert!(prune("--dry-run").contains(&format!("{left}, left by {id}")), "{}", environment.name());
        assert_eq!(temporary(environment), [left]);
        let said = prune("");
        assert!(said.contains(&format!("left by {id}")) && said.contains("unfinished runs: 1"), "{said}");
        assert_eq!(temporary(environment), Vec::<String>::new());
        assert!(precious.join("file").exists() && transcript.exists(), "{}", environment.name());
        // Three directories: a run that never began, one that is just beginning, and one that contains a file. guard
        // may remove only the first.
        let (old, new, full) = ("0-old-123456789abc", "0-new-223456789abc", "0-full-323456789abc");
        environment.run_outside(&format!(
            "cd state/guard/runs && mkdir -p {old}/home {new}/home {full}/home && touch {full}/home/work \\
             && touch -d '2 days ago' {old} {full} && mkdir -p ../../../tmp/guard-123456789abc/tmp"
        ));
        let said = prune("");
        assert!(said.contains(&format!("removed {old}")), "{}: {said}", environment.name());
        let is_there = |name: &str| environment.runs_directory().join(name).join("home").exists();
        assert_eq!([old, new, full].map(is_there), [false, true, true], "{}: {said}", environment.name());
        assert_eq!(temporary(environment), Vec::<String>::new());
    });
}
