// slow
//! A run must not signal, inspect or reschedule processes outside that belong to the same user. The supervisor and the
//! init process of the run are such processes, too.

use std::process::Stdio;

use super::{Boundary, Report, Victim};
use crate::support::{
    SandboxFixture, SandboxUser, holds_within, own_id, probe_directory, sandbox_configurations, skip,
    skip_unsupported, system_python,
};

fn was_signalled(victim: &mut Victim) -> bool {
    match victim.tell() {
        None => true,
        Some(told) => !told["signals"].as_array().unwrap().is_empty(),
    }
}

#[test]
fn run_cannot_signal_outside_processes() {
    let (user, kill, stop) = ("10", "9", "19");
    let attacks: [&[&str]; 10] = [
        &["kill", "{pid}", user],
        &["kill", "{pid}", kill],
        &["kill", "{pid}", stop],
        &["tkill", "{pid}", user],
        &["tgkill", "{pid}", user],
        &["tgkill", "{pid}", kill],
        &["pidfd", "{pid}", user],
        &["queue", "{pid}", user],
        &["owner", "{pid}", "F_SETOWN"],
        &["owner", "{pid}", "F_SETOWN_EX"],
    ];
    for attack in attacks {
        Boundary::new("processes.py", attack).check_victim(|_, victim, _| was_signalled(victim));
    }
}

#[test]
fn run_cannot_read_memory_of_outside_processes() {
    let secret = "the victim's secret";
    let attacks: [&[&str]; 4] = [
        &["read-memory", "{pid}", "{address}"],
        &["vm-read", "{pid}", "{address}"],
        &["read", "{pid}", "environ"],
        &["read", "{pid}", "maps"],
    ];
    for attack in attacks {
        let maps = attack.contains(&"maps");
        Boundary::new("processes.py", attack)
            .check_victim(|_, _, report| report.output.contains(if maps { "[stack]" } else { secret }));
    }
    for attack in [&["list-descriptors", "{pid}"], &["executable", "{pid}"], &["take-descriptor", "{pid}"]] {
        Boundary::new("processes.py", attack).check_victim(|_, _, report| report.succeeded());
    }
    for attack in [&["write-memory", "{pid}", "{address}"], &["vm-write", "{pid}", "{address}"]] {
        Boundary::new("processes.py", attack)
            .check_victim(|_, victim, _| victim.tell().is_none_or(|told| told["secret"] != secret));
    }
    // PTRACE_ATTACH, PTRACE_SEIZE
    for request in ["16", "0x4206"] {
        Boundary::new("processes.py", &["trace", "{pid}", request])
            .check_victim(|_, _, report| report.succeeded());
    }
}

#[test]
fn run_cannot_change_limits_or_priorities_of_outside_processes() {
    for (attack, fact) in [
        ("limit", "files"),
        ("priority", "nice"),
        ("affinity", "affinity"),
        ("scheduler", "scheduler"),
        ("attributes", "scheduler"),
        ("io-priority", "ioprio"),
    ] {
        if attack == "affinity" && std::thread::available_parallelism().is_ok_and(|count| count.get() == 1) {
            skip_unsupported("the affinity of other processes", "there is only one processor");
            continue;
        }
        check_fact(&Boundary::new("processes.py", &[attack, "{pid}"]), fact);
    }
    if own_id() != 0 {
        return skip("priorities of everything of a user", "only root can be another one");
    }
    let everything: [(&[&str], &str); 3] = [
        (&["priority-user", "0"], "nice"),
        (&["priority-user", "{uid}"], "nice"),
        // For `ioprio_set` the user id 0 means root, not the caller as for `setpriority`, so the attack names the
        // caller's id.
        (&["io-priority-user", "{uid}"], "ioprio"),
    ];
    for (attack, fact) in everything {
        check_fact(&Boundary::new("processes.py", attack).only(SandboxUser::Ordinary).alone(), fact);
    }
}

fn check_fact(boundary: &Boundary, fact: &str) {
    // A victim that nobody has attacked shows the usual value.
    let fixture = SandboxFixture::new(SandboxUser::Ordinary);
    let usual = Victim::new(&fixture).tell().unwrap()[fact].clone();
    boundary.check_victim(|_, victim, _| victim.tell().is_none_or(|told| told[fact] != usual));
}

/// A run attacks guard itself. The run must continue, its result must be right, and nothing of guard's memory may be
/// visible.
#[test]
fn run_cannot_affect_the_supervisor() {
    let Some(python) = system_python() else { return };
    let attacks: [&[&str]; 14] = [
        &["kill", "@pid", "9"],
        &["kill", "@pid", "19"],
        &["kill", "@pid", "15"],
        &["tgkill", "@pid", "9"],
        &["pidfd", "@pid", "9"],
        &["owner", "@pid", "F_SETOWN"],
        &["read", "@pid", "environ"],
        &["read", "@pid", "maps"],
        &["read-memory", "@pid", "4198400"],
        &["list-descriptors", "@pid"],
        &["trace", "@pid", "16"],
        &["limit", "@pid"],
        &["priority", "@pid"],
        &["take-descriptor", "@pid"],
    ];
    for attack in attacks {
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let mut command = fixture.guard(configuration, &["--json"]);
            command.args([python, "-B"]).arg(probe_directory().join("processes.py")).args(attack);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let pid = child.id();
            let nice = || nice_of(pid);
            let before = nice();
            std::fs::write(fixture.work.join("pid.new"), pid.to_string()).unwrap();
            std::fs::rename(fixture.work.join("pid.new"), fixture.work.join("pid")).unwrap();
            let (finished, after) = finish(child, nice);
            let result: serde_json::Value = serde_json::from_slice(&finished.stdout)
                .unwrap_or_else(|_| panic!("{configuration:?} {attack:?}: no result: {finished:?}"));
            assert_eq!(result["exit_code"], 0, "{configuration:?} {attack:?}: {result}");
            let said = result["result"].as_str().unwrap_or_default();
            let report: serde_json::Value = serde_json::from_str(said.trim())
                .unwrap_or_else(|_| panic!("{configuration:?} {attack:?}: no report in {result}"));
            if attack[0] != "owner" {
                assert_ne!(report["errno"], 0, "{configuration:?} {attack:?}: {report}");
            }
            assert!(
                after.is_none_or(|after| Some(after) == before),
                "{configuration:?} {attack:?}: its priority"
            );
        }
    }
}

fn nice_of(pid: u32) -> Option<i64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
}

/// Waits for guard, with a time limit, because a stopped supervisor would never end.
fn finish(
    mut child: std::process::Child,
    watch: impl Fn() -> Option<i64>,
) -> (std::process::Output, Option<i64>) {
    let mut last = None;
    let ended = holds_within(std::time::Duration::from_secs(20), || {
        last = watch().or(last);
        child.try_wait().unwrap().is_some()
    });
    if !ended {
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    assert!(ended, "guard did not come to its end: {output:?}");
    (output, last)
}

/// A run attacks its init process, which ends everything that the run started, and init's parent, guard. The attack must
/// fail, or the whole run must end.
#[test]
fn run_cannot_kill_or_limit_init() {
    let Some(python) = system_python() else { return };
    for attack in [
        &["kill-above", "1", "9"][..],
        &["kill-above", "1", "19"],
        &["kill-above", "2", "9"],
        &["limit-above", "1"],
        &["scheduler-above", "1"],
        &["limit-above", "2"],
    ] {
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let mut command = fixture.guard(configuration, &[]);
            command.args([python, "-B"]).arg(probe_directory().join("processes.py")).args(attack);
            let report = Report::of(&command.output().unwrap());
            // With namespaces init is process 1. The kernel drops signals to it without an error, and if a resource
            // limit kills it, the whole run ends with code 125.
            let vanishes = configuration.namespaces;
            let ended_all = vanishes && attack[0] == "limit-above" && report.status.code() == Some(125);
            assert!(report.status.success() || ended_all, "{configuration:?} {attack:?}: {report:?}");
            assert!(report.errno().is_some(), "{configuration:?} {attack:?}: {report:?}");
            assert!(vanishes || !report.succeeded(), "{configuration:?} {attack:?}: {report:?}");
        }
    }
}

/// A run must not reach shared memory or message queues of the user's other programs.
#[test]
fn run_cannot_reach_outside_shared_memory_or_message_queues() {
    let secret = "the victim's secret";
    Boundary::new("kernel.py", &["shm-read", "{shm}"])
        .check_victim(|_, _, report| report.output.contains(secret));
    Boundary::new("kernel.py", &["shm-write", "{shm}"]).check_victim(|_, victim, _| {
        victim.tell().is_none_or(|told| !told["memory"].as_str().unwrap().starts_with(secret))
    });
    Boundary::new("kernel.py", &["queue-receive", "{queue}"])
        .check_queue(|_, victim, _| victim.tell().is_none_or(|told| told["queued"] != 1));
}

/// Process 1 ends the run and forwards signals to it. If the agent could change the limits or the scheduling of process
/// 1, process 1 could no longer do so. Each of these calls must fail.
#[test]
fn run_cannot_change_limits_of_process_1() {
    let script = r#"
import os, resource
for name, call in [
    ("limit", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))),
    ("priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 10)),
    ("affinity", lambda: os.sched_setaffinity(1, {0})),
]:
    try:
        call()
        print(name, "changed")
    except OSError as error:
        print(name, error.errno)
"#;
    crate::support::in_every_environment(|environment| {
        let outcome = environment.run(&[], &["python3", "-c", script]);
        assert_eq!(outcome.printed(), "limit 1\npriority 1\naffinity 1\n", "{outcome}");
    });
}
