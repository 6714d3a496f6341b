//! Compares git under guard with bare git: `cargo bench --bench git`.
//!
//! All variants take turns, every figure is a median of one run, and only ratios and differences within that run are
//! compared with the targets. This program, started with `inside`, measures the commands from inside the run, so that
//! the launch does not count. If root starts the benchmark, it measures as an ordinary user. A row that exceeds its
//! target is marked as missed; no benchmark fails, because a loaded machine is not a bug. `-- --quick` takes fewer
//! rounds.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// If root starts the benchmark, the measurements run as the user with this id.
const USER: u32 = 1000;
/// The environment variable that tells the measuring process where the scratch directory is.
const SCRATCH: &str = "GUARD_BENCH_SCRATCH";
const FILES: usize = 2000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if arguments.first().is_some_and(|word| word == "inside") {
        return inside(&arguments[1..]);
    }
    if let Some(scratch) = std::env::var_os(SCRATCH) {
        return Bench {
            scratch: PathBuf::from(scratch),
            quick: arguments.iter().any(|word| word == "--quick"),
        }
        .run();
    }
    let scratch = Scratch::make();
    let mut again = Command::new(scratch.0.join("bin/git-bench"));
    again
        .args(&arguments)
        .env(SCRATCH, &scratch.0)
        .current_dir(&scratch.0)
        .env("HOME", scratch.0.join("home"));
    again.env("XDG_STATE_HOME", scratch.0.join("home/state")).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    if nix::unistd::geteuid().is_root() {
        again.uid(USER).gid(USER);
    }
    again.status().unwrap();
}

/// A directory for all files of the benchmark, which the user [`USER`] can read. Dropping the value removes the
/// directory.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Self {
        let is_root = nix::unistd::geteuid().is_root();
        let is_open =
            |path: &Path| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let base = if !is_root || built.ancestors().all(is_open) {
            built.to_path_buf()
        } else {
            std::env::temp_dir()
        };
        let folder = base.join(format!("guard-bench-git-{}", std::process::id()));
        for (name, own) in [("", false), ("bin", false), ("home", true), ("home/state", true)] {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            if own && is_root {
                chown(&path, Some(USER), Some(USER)).unwrap();
            }
        }
        let copy = |from: &Path, name: &str| std::fs::copy(from, folder.join("bin").join(name)).unwrap();
        copy(Path::new(env!("CARGO_BIN_EXE_guard")), "guard");
        copy(&std::env::current_exe().unwrap(), "git-bench");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Bare,
    Guard,
    WithoutNamespaces,
}

const WAYS: [Way; 3] = [Way::Bare, Way::Guard, Way::WithoutNamespaces];

struct Bench {
    scratch: PathBuf,
    quick: bool,
}

impl Bench {
    fn run(&self) {
        self.repository();
        println!("{:<44} {:>10} {:>10} {:>10}   bar", "what", "bare", "guard", "no-ns");
        self.added("read: git rev-parse HEAD", &["calls", "100", "rev-parse", "HEAD"], 21, 1.5);
        self.added("read: git status, 2,000 files", &["calls", "40", "status", "--porcelain"], 21, 1.5);
        self.added("read: git log -1", &["calls", "100", "log", "-1", "--format=%H"], 21, 1.5);
        self.ratio("commit: git commit of one file, 2,000 files", &["commits", "20"], 21, 1.3);
        self.parallel();
        self.whole();
    }

    fn repository(&self) {
        let folder = self.scratch.join("home/project");
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..FILES {
            let file = folder.join(format!("d{}/f{number}.txt", number / 100));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("file {number}\n").repeat(20)).unwrap();
        }
        let git = |args: &[&str]| {
            let done =
                Command::new("git").args(args).current_dir(&folder).stdout(Stdio::null()).status().unwrap();
            assert!(done.success(), "git {args:?}");
        };
        git(&["init", "-q", "-b", "main"]);
        git(&["config", "user.name", "A"]);
        git(&["config", "user.email", "a@example.org"]);
        git(&["config", "gc.auto", "0"]);
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "first"]);
        git(&["gc", "-q"]);
        git(&["worktree", "add", "-q", "-b", "bare", "../bare"]);
    }

    fn rounds(&self, rounds: usize) -> usize {
        if self.quick { rounds / 4 + 1 } else { rounds }
    }

    /// Returns a command that runs either bare in a linked worktree, or under guard in the worktree that guard makes.
    fn command(&self, way: Way, words: &[&str]) -> Command {
        let bin = self.scratch.join("bin");
        let home = self.scratch.join("home");
        if way == Way::Bare {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(home.join("bare"));
            return command;
        }
        let mut command = Command::new(bin.join("guard"));
        command.args(["run", "-q", "--policy", "strict", "--discard", "--read"]).arg(&bin);
        if way == Way::WithoutNamespaces {
            command.args(["--namespaces", "off"]);
        }
        command.arg("--").args(words).current_dir(home.join("project"));
        command
    }

    /// Starts this program in the sandbox, or bare for comparison, to time a git command. Returns the nanoseconds it
    /// printed.
    fn inside(&self, way: Way, words: &[&str]) -> f64 {
        let program = self.scratch.join("bin/git-bench");
        let words: Vec<&str> =
            [program.to_str().unwrap(), "inside"].into_iter().chain(words.iter().copied()).collect();
        let output = self.command(way, &words).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
        text.parse()
            .unwrap_or_else(|_| panic!("{words:?}: {text} {}", String::from_utf8_lossy(&output.stderr)))
    }

    fn medians(&self, rounds: usize, mut measure: impl FnMut(Way) -> f64) -> [f64; 3] {
        let mut all = WAYS.map(|_| Vec::new());
        for round in 0..=self.rounds(rounds) {
            for (way, times) in WAYS.iter().zip(&mut all) {
                let time = measure(*way);
                // The first round fills the page cache.
                if round > 0 {
                    times.push(time);
                }
            }
        }
        all.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2] / 1e6
        })
    }

    /// Prints by how many milliseconds guard is slower than bare git.
    fn added(&self, name: &str, words: &[&str], rounds: usize, bar: f64) {
        let [bare, guard, without] = self.medians(rounds, |way| self.inside(way, words));
        let missed = if (guard - bare).max(without - bare) > bar { "  MISSED" } else { "" };
        println!(
            "{name:<44} {bare:>7.2} ms {guard:>7.2} ms {without:>7.2} ms   +{:.2}, +{:.2} ≤ +{bar} ms{missed}",
            guard - bare,
            without - bare
        );
    }

    fn ratio(&self, name: &str, words: &[&str], rounds: usize, bar: f64) {
        let [bare, guard, without] = self.medians(rounds, |way| self.inside(way, words));
        let missed = if (guard / bare).max(without / bare) > bar { "  MISSED" } else { "" };
        println!(
            "{name:<44} {bare:>7.2} ms {guard:>7.2} ms {without:>7.2} ms   {:.2}×, {:.2}× ≤ {bar}×{missed}",
            guard / bare,
            without / bare
        );
    }

    /// Measures git calls while 64 of them run at once. If a call fails, the benchmark ends.
    fn parallel(&self) {
        let [bare, guard, without] = self.medians(9, |way| self.inside(way, &["parallel", "64", "10"]));
        println!(
            "{:<44} {bare:>7.2} ms {guard:>7.2} ms {without:>7.2} ms   no failures; {:.2}×, {:.2}×",
            "parallel: a call, 64 at once",
            guard / bare,
            without / bare
        );
    }

    fn whole(&self) {
        let script = "echo $$ > d0/f0.txt && git commit -qam work";
        // The baseline: git itself does the same work. It spends most of the time on writing and removing the files.
        let bare = format!(
            "git worktree add -q -b whole ../whole && cd ../whole && {script} && cd ../bare \
             && git worktree remove --force ../whole && git branch -q -D whole"
        );
        let [bare, guard, without] = self.medians(21, |way| {
            let script = if way == Way::Bare { &*bare } else { script };
            let mut command = self.command(way, &["sh", "-c", script]);
            let begun = Instant::now();
            let done = command.stdin(Stdio::null()).status().unwrap();
            assert!(done.success());
            begun.elapsed().as_nanos() as f64
        });
        println!(
            "{:<44} {bare:>7.2} ms {guard:>7.2} ms {without:>7.2} ms   {:.2}×, {:.2}×: worktree, commit, removal",
            "whole: guard run of one commit, 2,000 files",
            guard / bare,
            without / bare
        );
    }
}

/// The main function of this program when it measures inside a run. Prints the nanoseconds that one git call takes.
fn inside(words: &[String]) {
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let call = |args: &[String]| {
        let done = Command::new("git").args(args).stdin(Stdio::null()).stdout(Stdio::null()).status();
        assert!(done.is_ok_and(|status| status.success()), "git {args:?}");
    };
    // git reads the content of files again if they were written in the same second as its index. The bare worktree is
    // older than that; the worktree of the run is new, so the measurement waits.
    std::thread::sleep(Duration::from_millis(1100));
    call(&["status", "--porcelain"].map(str::to_string));
    let mut spent = Duration::ZERO;
    let count;
    match words[0].as_str() {
        "calls" => {
            count = number(1);
            call(&words[2..]);
            let begun = Instant::now();
            (0..count).for_each(|_| call(&words[2..]));
            spent = begun.elapsed();
        }
        "commits" => {
            count = number(1);
            let commit = ["commit", "-q", "-a", "-m", "work"].map(str::to_string);
            for turn in 0..count {
                std::fs::write("d0/f0.txt", format!("{} {turn}\n", std::process::id())).unwrap();
                let begun = Instant::now();
                call(&commit);
                spent += begun.elapsed();
            }
        }
        "parallel" => {
            count = number(1) * number(2);
            let head = ["rev-parse", "HEAD"].map(str::to_string);
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..number(1) {
                    scope.spawn(|| (0..number(2)).for_each(|_| call(&head)));
                }
            });
            spent = begun.elapsed();
        }
        other => panic!("{other}"),
    }
    println!("{}", spent.as_nanos() as f64 / count as f64);
}
