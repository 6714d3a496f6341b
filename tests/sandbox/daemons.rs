// slow
//! Every process that a run started must end with it, also one that left its session, closed its streams, or keeps
//! forking.

use std::time::Duration;

use super::Report;
use crate::support::{
    SandboxFixture, SandboxUser, holds_within, probe_directory, sandbox_configurations, system_python,
};

/// Returns the processes with this marker in their command line.
fn marked(marker: &str) -> Vec<i32> {
    let of = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| String::from_utf8_lossy(&of(pid)).contains(marker)).collect()
}

#[test]
fn no_process_outlives_a_run() {
    let Some(python) = system_python() else { return };
    for how in ["double-fork", "hangup", "closed", "restless", "many"] {
        let run = |fixture: &SandboxFixture, mut command: std::process::Command, marker: &str| {
            command.arg(python).arg(probe_directory().join("daemons.py")).args([how, marker]);
            Report::of(&command.arg(fixture.work.join("alive")).output_without_waiting_for_daemons())
        };
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let marker = format!(
                "guard-marker-{}-{}",
                std::process::id(),
                fixture.base.file_name().unwrap().display()
            );
            let report = run(&fixture, fixture.guard(configuration, &[]), &marker);
            let left = marked(&marker);
            let size = || std::fs::metadata(fixture.work.join("alive")).map_or(0, |found| found.len());
            let before = size();
            std::thread::sleep(Duration::from_millis(60));
            assert!(
                left.is_empty() && marked(&marker).is_empty(),
                "{configuration:?} {how}: {left:?} {report:?}"
            );
            assert!(before > 0, "{configuration:?} {how}: no daemon ever lived: {report:?}");
            assert_eq!(size(), before, "{configuration:?} {how}: something still writes");
            assert!(report.status.success(), "{configuration:?} {how}: {report:?}");
        }
        let fixture = SandboxFixture::new(SandboxUser::Ordinary);
        let marker = format!("guard-marker-{}-bare-{how}", std::process::id());
        run(&fixture, fixture.command("/usr/bin/env"), &marker);
        let outlives = holds_within(Duration::from_secs(30), || !marked(&marker).is_empty());
        // A single search can miss a daemon that keeps forking. So the test kills until several searches in a row have
        // found none.
        let ended = holds_within(Duration::from_secs(30), || {
            for pid in marked(&marker) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            (0..20).all(|_| marked(&marker).is_empty())
        });
        assert!(outlives && ended, "without guard {how} should outlive its parent, and then be killed here");
    }
}

trait WithoutWaiting {
    fn output_without_waiting_for_daemons(&mut self) -> std::process::Output;
}

impl WithoutWaiting for std::process::Command {
    /// Runs a command without pipes, because a daemon that outlives it would keep the pipes open.
    fn output_without_waiting_for_daemons(&mut self) -> std::process::Output {
        let status =
            self.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status().unwrap();
        std::process::Output { status, stdout: Vec::new(), stderr: Vec::new() }
    }
}
