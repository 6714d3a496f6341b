// slow
//! guard must limit the number of processes of a run, and must end a run that takes too long.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    expect_no_process_left, in_every_environment, in_every_environment_at_once, in_two_environments,
    unique_mark,
};

#[test]
fn thousands_of_short_processes_run_in_little_memory() {
    in_two_environments(|environment| {
        // Each start costs the same with and without namespaces, so fewer are enough without them.
        let many = if environment.namespaces { 3_000 } else { 1_000 };
        let script = format!("i=0\nwhile [ $i -lt {many} ]; do /bin/true; i=$((i+1)); done\necho $i\n");
        std::fs::write(environment.directory.join("many.sh"), script).unwrap();
        let outcome = environment.run(&[], &["sh", "many.sh"]);
        assert_eq!((outcome.code, outcome.printed()), (0, format!("{many}\n")), "{outcome}");
        assert!(outcome.result["usage"]["programs"].as_u64().unwrap() >= many, "{outcome}");
        assert_eq!(outcome.result["denials"], json!([]));
        outcome.expect_complete_transcript();
        eprintln!("{}: {many} programs in {:?}", environment.name(), outcome.took);
    });
}

#[test]
fn fork_storm_is_bounded_and_ends() {
    in_every_environment(|environment| {
        let policy = environment.directory.join("few.toml");
        std::fs::write(
            &policy,
            "version = 1\nname = \"few\"\nextends = \"strict\"\n[limits]\nprocesses = 150\n",
        )
        .unwrap();
        // Every process forks without end, and each child starts a session of its own.
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
                // Watches for the highest number of processes, because a busy machine starts them slowly.
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
        outcome.expect_complete_transcript();
        // Without a cgroup or a user namespace, the kernel's limit also counts the user's other processes on the
        // machine.
        let threads = std::fs::read_to_string("/proc/loadavg").unwrap();
        let machine: usize = threads.split(['/', ' ']).nth(4).unwrap().parse().unwrap();
        assert!(most > 100 && most <= 150 + 10 + machine * 2, "{}: {most} processes", environment.name());
        eprintln!("{}: {most} processes, gone after {:?}", environment.name(), outcome.took);
    });
}

#[test]
fn time_limits_end_a_run_with_their_error_kind() {
    in_every_environment_at_once(|environment| {
        let mark = unique_mark();
        let outcome = environment.run(&["--env", &mark, "--timeout", "1"], &["sleep", "60"]);
        outcome.expect_code_and_kind(124, "idle_timeout");
        assert_eq!(outcome.result["error_detail"]["idle_timeout_s"], 1);
        assert!(
            outcome.took > Duration::from_secs(1) && outcome.took < Duration::from_secs(30),
            "{:?}",
            outcome.took
        );
        outcome.expect_complete_transcript();
        expect_no_process_left(&mark, Duration::ZERO);
        // A run that prints or starts programs is not idle, but the limit for the whole run must still end it.
        let busy = "while :; do echo busy; sleep 0.2; done";
        let outcome = environment
            .run(&["--env", &mark, "--timeout", "4", "--max-duration", "8"], &["bash", "-c", busy]);
        outcome.expect_code_and_kind(124, "timeout");
        assert!(
            outcome.took > Duration::from_secs(8) && outcome.took < Duration::from_secs(30),
            "{:?}",
            outcome.took
        );
        assert_eq!(outcome.result["error_detail"]["last_lines"][0], "busy");
        outcome.expect_complete_transcript();
        expect_no_process_left(&mark, Duration::ZERO);
    });
}
