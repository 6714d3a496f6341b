//! Measures what the task pipeline costs: `cargo bench --bench pipeline`. The scripted agent takes almost no time, so
//! the figures show what the runner does between two agents, in a repository of 50,000 files.
//!
//! `-- --quick` takes a smaller repository. A row that exceeds its target is marked as missed; no benchmark fails,
//! because a loaded machine is not a bug.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

struct Bench {
    root: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let files = if quick { 2_000 } else { 50_000 };
    let root = std::env::temp_dir().join(format!("guard-bench-phase-{}", std::process::id()));
    std::fs::create_dir_all(root.join("repository")).expect("a folder for the benchmark");
    let bench = Bench { root };
    bench.fill(files);
    println!("{:<56} {:>10}  bar", "", "median");
    bench.between_steps(files);
    bench.show();
    bench.at_once(20);
}

fn row(what: &str, found: Duration, bar: Duration) {
    let missed = if found > bar { "  MISSED" } else { "" };
    println!("{what:<56} {:>7.1} ms  <= {} ms{missed}", found.as_secs_f64() * 1e3, bar.as_millis());
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl Bench {
    fn shell(&self, script: &str) {
        let status = Command::new("bash").args(["-euc", script]).current_dir(&self.root).status();
        assert!(status.expect("bash starts").success(), "{script}");
    }

    fn fill(&self, files: usize) {
        let repository = self.root.join("repository");
        for at in 0..files {
            let folder = repository.join(format!("d{}", at / 500));
            if at % 500 == 0 {
                std::fs::create_dir_all(&folder).expect("a folder");
            }
            std::fs::write(folder.join(format!("f{at}")), format!("{at}\n")).expect("a file");
        }
        self.shell(
            "cd repository && git init -q -b main && git config user.name n && git config user.email e && git add -A && git commit -qm first",
        );
    }

    fn guard(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guard"));
        command
            .args(arguments)
            .current_dir(self.root.join("repository"))
            .env("XDG_STATE_HOME", self.root.join("state"));
        command
    }

    fn task(&self, name: &str) -> Command {
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/agents/scripted.sh");
        let mut command = self.guard(&[
            "task",
            "--json",
            "--local",
            "--name",
            name,
            "Do it. @audit=FAIL,PASS",
            "--agent-command",
        ]);
        command.arg(agent).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Measures the time from the end of one agent to the start of the next. In this time the runner reads and checks
    /// the answer, commits, and writes the journal.
    fn between_steps(&self, files: usize) {
        let ended = self.task("alone").status().expect("guard starts");
        assert!(ended.success(), "the task did not succeed");
        let shown = self.guard(&["task", "show", "--json"]).output().expect("guard starts");
        let task: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        let time =
            |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok()).expect("a time");
        let agents: Vec<&Value> = task["journal"]
            .as_array()
            .expect("a journal")
            .iter()
            .filter(|entry| entry["effect"] == "agent")
            .collect();
        let gaps: Vec<Duration> = agents
            .windows(2)
            .filter_map(|pair| {
                time(&pair[1]["begun"]).duration_since(time(&pair[0]["ended"])).try_into().ok()
            })
            .collect();
        row(&format!("between two agents, {files} files"), median(gaps), Duration::from_millis(150));
    }

    fn show(&self) {
        let times = (0..31).map(|_| {
            let began = Instant::now();
            let output = self.guard(&["task", "show"]).output().expect("guard starts");
            assert!(output.status.success());
            began.elapsed()
        });
        row("guard task show", median(times.collect()), Duration::from_millis(50));
    }

    fn at_once(&self, count: usize) {
        let began = Instant::now();
        let mut running: Vec<_> =
            (0..count).map(|n| self.task(&format!("t{n}")).spawn().expect("guard starts")).collect();
        let failed = running
            .iter_mut()
            .filter_map(|child| child.wait().ok())
            .filter(|status| !status.success())
            .count();
        println!(
            "{:<56} {:>7.1} s   none failed: {}",
            format!("{count} tasks at once"),
            began.elapsed().as_secs_f64(),
            failed == 0
        );
    }
}
