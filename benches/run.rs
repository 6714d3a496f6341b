//! Compares commands under guard with bare commands and with the other sandboxes on PATH: `cargo bench --bench run`.
//!
//! All variants take turns, and every figure is a median of one run, so that a change of the machine's speed affects
//! all of them. Only ratios are compared with the targets. This program, started with `inside`, measures from inside
//! the run, so that the launch does not count. If root starts the benchmark, it measures everything except the build as
//! an ordinary user. A row that exceeds its target is marked as missed; no benchmark fails, because a loaded machine is
//! not a bug.
//!
//! `-- --quick` takes fewer rounds. `-- launch spawn` measures only the rows whose names contain one of these words.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guard::sandbox::{Grant, Rights};

/// If root starts the benchmark, the measurements run as the user with this id.
const USER: u32 = 1000;
/// The environment variable that tells the measuring processes where the scratch directory is.
const SCRATCH: &str = "GUARD_BENCH_SCRATCH";
const FILES: usize = 5000;
/// The number of modules in the crate that the benchmark builds.
const PARTS: usize = 40;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if arguments.first().is_some_and(|word| word == "inside") {
        return inside(&arguments[1..]);
    }
    if let Some(scratch) = std::env::var_os(SCRATCH) {
        return Bench::new(PathBuf::from(scratch), &arguments).run();
    }
    let scratch = Scratch::make();
    let bench = Bench::new(scratch.0.clone(), &arguments);
    bench.build();
    bench.memory();
    // Everything written so far must be on disk first. Otherwise measurements that wait for the disk would wait for
    // these writes too.
    nix::unistd::sync();
    let mut again = Command::new(scratch.0.join("bin/run"));
    again.args(&arguments).env(SCRATCH, &scratch.0).current_dir(&scratch.0);
    again.env("HOME", scratch.0.join("home")).env("XDG_STATE_HOME", scratch.0.join("home/.local/state"));
    if nix::unistd::geteuid().is_root() {
        again.uid(USER).gid(USER);
        // The ordinary user cannot enter directories that only root can read, so PATH must not contain them.
        again.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
    again.status().expect("the measuring process starts");
}

/// A directory for all files of the benchmark, which the user [`USER`] can read. Dropping the value removes the
/// directory.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Self {
        // In every sandbox, private directories take the place of the machine's directories for temporary files. So the
        // benchmark keeps its files in the build directory, and uses a temporary directory only if the ordinary user
        // cannot reach the build directory.
        let reachable = |path: &Path| {
            let is_open =
                |path: &Path| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
            !nix::unistd::geteuid().is_root() || path.ancestors().all(is_open)
        };
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let base = if reachable(built) { built.to_path_buf() } else { std::env::temp_dir() };
        let folder = base.join(format!("guard-bench-run-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let make = |path: &Path, is_own: bool| {
            std::fs::create_dir_all(path).expect("a folder for the benchmark");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its rights");
            if is_own && nix::unistd::geteuid().is_root() {
                chown(path, Some(USER), Some(USER)).expect("its owner");
            }
        };
        make(&folder, false);
        make(&folder.join("bin"), false);
        for own in ["home", "home/.local", "home/.local/state", "home/project", "home/sources", "files"] {
            make(&folder.join(own), true);
        }
        let copy = |from: &Path, name: &str| {
            std::fs::copy(from, folder.join("bin").join(name)).expect("a program that was built");
        };
        copy(Path::new(env!("CARGO_BIN_EXE_guard")), "guard");
        copy(&std::env::current_exe().expect("this program"), "run");
        let places = ["files", "home/sources"].map(|place| folder.join(place));
        for (index, place) in (0..FILES).flat_map(|index| places.iter().map(move |place| (index, place))) {
            let part = place.join(format!("part-{}", index % 50));
            std::fs::create_dir_all(&part).expect("a folder of files");
            std::fs::write(part.join(format!("file-{index}.txt")), "some text\n".repeat(100))
                .expect("a file");
        }
        let policy = "version = 1\nname = \"loopback\"\nextends = \"strict\"\n[network]\noverride = true\nloopback = true\n";
        std::fs::write(folder.join("loopback.toml"), policy).expect("a policy");
        let many = "version = 1\nname = \"many\"\nextends = \"strict\"\n[limits]\noverride = true\nprocesses = 4096\n";
        std::fs::write(folder.join("many.toml"), many).expect("a policy");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A way to run a command: bare, under guard, or under another sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Bare,
    /// `guard run` with these options.
    Guard(Vec<String>),
    Bubblewrap,
    Minijail,
    Firejail,
}

impl Way {
    fn guard(options: &[&str]) -> Self {
        Self::Guard(options.iter().map(|option| (*option).to_string()).collect())
    }

    fn name(&self) -> String {
        match self {
            Self::Bare => "bare".to_string(),
            Self::Guard(options) if options.is_empty() => "guard".to_string(),
            Self::Guard(options) => options.join(" "),
            Self::Bubblewrap => "bwrap".to_string(),
            Self::Minijail => "minijail0".to_string(),
            Self::Firejail => "firejail".to_string(),
        }
    }
}

struct Bench {
    scratch: PathBuf,
    quick: bool,
    only: Vec<String>,
    /// The other sandboxes that work on this machine.
    peers: Vec<Way>,
}

/// The policy and the working directory of a measurement.
#[derive(Clone, Copy)]
struct Where<'a> {
    policy: &'a str,
    folder: &'a Path,
}

impl Bench {
    fn new(scratch: PathBuf, arguments: &[String]) -> Self {
        let quick = arguments.iter().any(|word| word == "--quick");
        let only = arguments.iter().filter(|word| !word.starts_with('-')).cloned().collect();
        Self { scratch, quick, only, peers: Vec::new() }
    }

    fn rounds(&self, rounds: usize) -> usize {
        if self.quick { (rounds / 4).max(3) } else { rounds }
    }

    fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| row.contains(word.as_str()))
    }

    fn command(&self, way: &Way, place: Where<'_>, words: &[&str]) -> Command {
        let bin = self.scratch.join("bin");
        let (bin, folder) = (bin.to_string_lossy(), place.folder.to_string_lossy());
        let files = self.scratch.join("files");
        let files = files.to_string_lossy();
        let guard = format!("{bin}/guard");
        let mut argv: Vec<&str> = Vec::new();
        match way {
            Way::Bare => {}
            Way::Guard(options) => {
                argv.extend([&*guard, "run", "-q", "--in-place", "--policy", place.policy, "--dir", &folder]);
                argv.extend(["--read", &bin, "--read", &files]);
                argv.extend(options.iter().map(String::as_str));
                argv.push("--");
            }
            Way::Bubblewrap => {
                argv.extend([
                    "bwrap",
                    "--unshare-user",
                    "--unshare-pid",
                    "--unshare-ipc",
                    "--ro-bind",
                    "/",
                    "/",
                ]);
                argv.extend([
                    "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", &folder, &folder,
                ]);
                argv.extend(["--ro-bind", &bin, &bin, "--ro-bind", &files, &files, "--die-with-parent"]);
                argv.extend(["--chdir", &folder]);
            }
            Way::Minijail => argv.extend(["minijail0", "-U", "-p", "-l", "-n", "--"]),
            Way::Firejail => argv.extend(["firejail", "--quiet", "--noprofile", "--private-dev", "--"]),
        }
        argv.extend(words);
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]).current_dir(place.folder).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts this program in the given sandbox with a measurement to make. Returns the nanoseconds that it printed.
    fn inside(&self, way: &Way, place: Where<'_>, words: &[&str]) -> Option<f64> {
        let program = self.scratch.join("bin/run");
        let program = program.to_string_lossy();
        let words: Vec<&str> = [&*program, "inside"].into_iter().chain(words.iter().copied()).collect();
        let output = self.command(way, place, &words).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }

    /// Returns the median of each variant. Each round has another order, because a variant that is slow to clean up
    /// (the kernel removes namespaces in the background) delays the variant after it.
    fn medians(
        &self,
        ways: &[Way],
        rounds: usize,
        mut measure: impl FnMut(&Way) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let mut all: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        let mut order: Vec<usize> = (0..ways.len()).collect();
        for round in 0..rounds + 1 {
            shuffle(&mut order, round);
            for &at in &order {
                // The first round fills the page cache.
                if let Some(time) = measure(&ways[at]).filter(|_| round > 0) {
                    all[at].push(time);
                }
            }
        }
        all.into_iter().map(median).collect()
    }

    fn ways(&self) -> Vec<Way> {
        let mut ways = vec![Way::Bare, Way::guard(&[]), Way::guard(&["--namespaces", "off"])];
        ways.extend(self.peers.iter().cloned());
        ways
    }

    fn run(mut self) {
        let work = self.scratch.join("home/project");
        let place = Where { policy: "strict", folder: &work };
        for peer in [Way::Bubblewrap, Way::Minijail, Way::Firejail] {
            if self.command(&peer, place, &["/bin/true"]).status().is_ok_and(|status| status.success()) {
                self.peers.push(peer);
            }
        }
        let loopback = self.scratch.join("loopback.toml").to_string_lossy().into_owned();
        let many = self.scratch.join("many.toml").to_string_lossy().into_owned();
        let files = self.scratch.join("files").to_string_lossy().into_owned();
        self.header();
        self.launch(place);
        self.row("spawn: one program, judged and verified", place, &["spawn", "300"], 31, 1.25);
        self.row("loop: sh starting 200 programs", place, &["loop", "200"], 31, 1.3);
        let network = Where { policy: &loopback, folder: &work };
        self.row("connect: TCP, own server", network, &["tcp", "300"], 31, 4.0);
        self.row("connect: unix socket, own server", network, &["unix", "300"], 31, 4.0);
        let sources = self.scratch.join("home/sources");
        let own = Where { policy: "strict", folder: &sources };
        self.row("read: 5,000 files it works on", own, &["read", "."], 31, 1.25);
        self.row("read: 5,000 files it may only read", place, &["read", &files], 31, 1.25);
        self.row_of_landlock(place, &files);
        self.crowd(Where { policy: &many, folder: &work });
        self.layers(place);
    }

    fn header(&self) {
        let peers: String = self.peers.iter().map(|peer| format!(" {:>10}", peer.name())).collect();
        println!(
            "{:<42} {:>10} {:>10} {:>10}{peers}   with, without namespaces: ratio ≤ bar",
            "what", "bare", "guard", "no-ns"
        );
    }

    fn launch(&self, place: Where<'_>) {
        let name = "launch: /bin/true";
        if !self.wants(name) {
            return;
        }
        let ways = self.ways();
        let medians = self.medians(&ways, self.rounds(101), |way| {
            let mut command = self.command(way, place, &["/bin/true"]);
            command.stdout(Stdio::null());
            let start = Instant::now();
            command.status().ok().filter(|status| status.success())?;
            Some(start.elapsed().as_nanos() as f64)
        });
        let peer = ways.iter().position(|way| *way == Way::Bubblewrap).and_then(|at| medians[at]);
        print_row(name, &medians, peer, [2.0; 2], "bwrap");
    }

    fn row(&self, name: &str, place: Where<'_>, words: &[&str], rounds: usize, bar: f64) {
        if self.wants(name) {
            let medians =
                self.medians(&self.ways(), self.rounds(rounds), |way| self.inside(way, place, words));
            print_row(name, &medians, medians[0], [bar; 2], "bare");
        }
    }

    /// Measures file reads under a Landlock domain without guard. No sandbox that uses Landlock can be faster.
    fn row_of_landlock(&self, place: Where<'_>, files: &str) {
        let name = "read: the same under Landlock alone";
        if !self.wants(name) {
            return;
        }
        let rounds = self.rounds(31);
        let of = |words: &[&str]| self.inside(&Way::Bare, place, words);
        let mut all = [Vec::new(), Vec::new()];
        for _ in 0..=rounds {
            all[0].extend(of(&["read", files]));
            all[1].extend(of(&["landlocked", "read", files]));
        }
        let [bare, landlocked] = all.map(median);
        let ratio = landlocked.unwrap_or(0.0) / bare.unwrap_or(1.0);
        println!(
            "{name:<42} {:>10} {:>10}   {ratio:.2} (of bare)",
            bare.map_or("-".to_string(), show),
            landlocked.map_or("-".to_string(), show)
        );
    }

    /// Measures what a program start costs while a thousand other processes are alive.
    fn crowd(&self, place: Where<'_>) {
        let name = "crowd: one program beside 1,000 alive";
        if !self.wants(name) {
            return;
        }
        let ways = self.ways();
        let rounds = self.rounds(9);
        let mut alone = vec![Vec::new(); ways.len()];
        let crowded = self.medians(&ways, rounds, |way| {
            let at = ways.iter().position(|known| known == way)?;
            alone[at].extend(self.inside(way, place, &["spawn", "200"]));
            self.inside(way, place, &["crowd", "1000", "200"])
        });
        let alone: Vec<Option<f64>> = alone.into_iter().map(median).collect();
        print_row("crowd: one program, nothing else alive", &alone, None, [0.0; 2], "");
        print_row(name, &crowded, None, [0.0; 2], "");
        let growth: Vec<f64> =
            crowded.iter().zip(&alone).map(|(a, b)| a.unwrap_or(0.0) / b.unwrap_or(1.0)).collect();
        println!("{:<42} {}", "crowd: growth by the crowd", verdicts(&growth[1..3], [1.5, 1.5], "alone"));
    }

    /// Measures the memory of guard's processes while the agent sleeps. Only root can do this: guard is not dumpable,
    /// so the kernel does not let its user read these numbers.
    fn memory(&self) {
        let name = "memory: guard's processes, idle run";
        if !self.wants(name) {
            return;
        }
        let folder = self.scratch.join("home/project");
        let place = Where { policy: "strict", folder: &folder };
        let mut line = format!("{name:<42} {:>10}", "");
        let mut most: f64 = 0.0;
        for way in &self.ways()[1..3] {
            let mut command = self.command(way, place, &["/bin/sleep", "60"]);
            command.env("HOME", self.scratch.join("home"));
            command.env("XDG_STATE_HOME", self.scratch.join("home/.local/state"));
            if nix::unistd::geteuid().is_root() {
                command.uid(USER).gid(USER).env("PATH", "/usr/local/bin:/usr/bin:/bin");
            }
            let mut child = command.spawn().expect("guard starts");
            std::thread::sleep(Duration::from_millis(700));
            let (rss, pss) = memory_of(child.id(), "guard");
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.id() as i32),
                nix::sys::signal::SIGTERM,
            );
            let _ = child.wait();
            most = most.max(rss);
            line += &format!(" {:>10}", format!("{rss:.1}/{pss:.1}"));
        }
        let ok = if most <= 12.0 { "ok" } else { "OVER" };
        println!("{line}   MiB resident/proportional ≤ 12 {ok}");
    }

    /// Measures what each layer of the sandbox costs: with all layers on, with each of four layers switched off in
    /// turn, and with these four switched off together.
    fn layers(&self, place: Where<'_>) {
        if !self.wants("layers") {
            return;
        }
        let ways = [
            Way::Bare,
            Way::guard(&[]),
            Way::guard(&["--namespaces", "off"]),
            Way::guard(&["--no-verify"]),
            Way::guard(&["--no-shims"]),
            Way::guard(&["--no-toolchains"]),
            Way::guard(&["--namespaces", "off", "--no-verify", "--no-shims", "--no-toolchains"]),
        ];
        let launch = self.medians(&ways, self.rounds(51), |way| {
            let mut command = self.command(way, place, &["/bin/true"]);
            command.stdout(Stdio::null());
            let start = Instant::now();
            command.status().ok()?;
            Some(start.elapsed().as_nanos() as f64)
        });
        let spawn = self.medians(&ways, self.rounds(15), |way| self.inside(way, place, &["spawn", "200"]));
        println!("\n{:<70} {:>10} {:>10} {:>10} {:>10}", "layers", "launch", "saves", "spawn", "saves");
        for (index, way) in ways.iter().enumerate() {
            let saves = |all: &[Option<f64>]| match (index, all[1], all[index]) {
                (2.., Some(on), Some(off)) => show(on - off),
                _ => String::new(),
            };
            println!(
                "{:<70} {:>10} {:>10} {:>10} {:>10}",
                way.name(),
                launch[index].map_or("-".to_string(), show),
                saves(&launch),
                spawn[index].map_or("-".to_string(), show),
                saves(&spawn)
            );
        }
    }

    /// Measures `cargo build` of a small crate, as the user who started the benchmark, because toolchains are often
    /// in that user's home.
    fn build(&self) {
        let name = "build: cargo build of a small crate";
        if !self.wants(name) {
            return;
        }
        let folder = self.scratch.join("crate");
        std::fs::create_dir_all(folder.join("src")).expect("a folder for a crate");
        let manifest =
            "[package]\nname = \"fixture\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
        std::fs::write(folder.join("Cargo.toml"), manifest).expect("a manifest");
        let mut source = String::from("fn main() {\n    println!(\"{}\", part_0::work(3));\n}\n");
        for part in 0..PARTS {
            let next =
                if part < PARTS - 1 { format!("super::part_{}::work(x)", part + 1) } else { "x".to_string() };
            source += &format!(
                "mod part_{part} {{\n    pub fn work(x: u64) -> u64 {{\n        let all: Vec<String> = (0..x).map(|n| format!(\"{{n}}-{part}\")).collect();\n        let m: std::collections::BTreeMap<String, usize> = all.iter().map(|s| (s.clone(), s.len())).collect();\n        m.values().sum::<usize>() as u64 + {next}\n    }}\n}}\n"
            );
        }
        std::fs::write(folder.join("src/main.rs"), source).expect("a source file");
        let script = "rm -rf target; exec cargo build --offline -q";
        let ways = [Way::Bare, Way::guard(&[]), Way::guard(&["--namespaces", "off"])];
        let place = Where { policy: "strict", folder: &folder };
        // This row includes the launch, because a user waits for it too. The launch also has a row of its own.
        let medians = self.medians(&ways, self.rounds(15), |way| {
            let mut command = self.command(way, place, &["/bin/sh", "-c", script]);
            command.env("XDG_STATE_HOME", self.scratch.join("state-build")).stdout(Stdio::null());
            // Variables that configure `cargo bench` must not configure this build.
            for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "RUSTFLAGS", "RUSTC_WRAPPER"] {
                command.env_remove(name);
            }
            let start = Instant::now();
            command.status().ok().filter(|status| status.success())?;
            Some(start.elapsed().as_nanos() as f64)
        });
        self.header();
        print_row(name, &medians, medians[0], [1.03; 2], "bare");
        let _ = std::fs::remove_dir_all(folder);
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn show(nanoseconds: f64) -> String {
    if nanoseconds.abs() < 1e6 {
        format!("{:.1} µs", nanoseconds / 1e3)
    } else {
        format!("{:.2} ms", nanoseconds / 1e6)
    }
}

/// Prints one row: the median of every variant, and whether guard's two variants (with and without namespaces) are
/// within their targets.
fn print_row(name: &str, medians: &[Option<f64>], against: Option<f64>, bars: [f64; 2], whom: &str) {
    let mut line = format!("{name:<42}");
    for time in medians {
        line += &format!(" {:>10}", time.map_or("-".to_string(), show));
    }
    if let Some(against) = against {
        let ratios: Vec<f64> =
            medians[1..3].iter().map(|time| time.map_or(f64::NAN, |time| time / against)).collect();
        line += &format!("   {}", verdicts(&ratios, bars, whom));
    }
    println!("{line}");
}

fn verdicts(ratios: &[f64], bars: [f64; 2], whom: &str) -> String {
    let words: Vec<String> = ratios
        .iter()
        .zip(bars)
        .map(|(ratio, bar)| format!("{ratio:.2} ≤ {bar} {}", if *ratio <= bar { "ok" } else { "OVER" }))
        .collect();
    format!("{} (of {whom})", words.join(", "))
}

/// Adds up the memory of all processes with this name among `root` and its descendants. Returns the resident and the
/// proportional set size, in MiB.
fn memory_of(root: u32, name: &str) -> (f64, f64) {
    let mut sum = (0.0, 0.0);
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if read("comm").trim() == name {
            let of = |text: &str, key: &str| -> f64 {
                let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
                line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
            };
            sum.0 += of(&read("status"), "VmRSS:");
            sum.1 += of(&read("smaps_rollup"), "Pss:");
        }
        let children = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in children {
            let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            open.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    sum
}

/// Shuffles the variants. The order depends only on the number of the round, so it is the same each time the
/// benchmark runs.
fn shuffle(order: &mut [usize], round: usize) {
    let mut state = (round as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

/// The main function of this program when it measures inside a run. Each measurement prints its time in nanoseconds.
fn inside(words: &[String]) {
    if let Some((first, rest)) = words.split_first()
        && first == "landlocked"
    {
        let grant = |path: &str| Grant { path: path.into(), rights: Rights::Read, why: String::new() };
        guard::sys::process::set_no_new_privileges().expect("no new rights");
        let ruleset = guard::sandbox::prepare_ruleset(&["/usr", "/etc", &rest[1]].map(grant));
        guard::sandbox::restrict(&ruleset.expect("a ruleset")).expect("a Landlock domain");
        return inside(rest);
    }
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(100);
    let time = match words.first().map(String::as_str) {
        Some("spawn") => spawns(number(1)),
        Some("loop") => {
            let script = format!("i=0; while [ $i -lt {} ]; do /bin/true; i=$((i+1)); done", number(1));
            once(|| assert!(Command::new("sh").args(["-c", &script]).status().is_ok_and(|s| s.success())))
        }
        Some("tcp") => {
            let server = TcpListener::bind("127.0.0.1:0").expect("a server");
            let address = server.local_addr().expect("its address");
            std::thread::spawn(move || server.incoming().for_each(drop));
            each(number(1), || drop(TcpStream::connect(address).expect("a connection")))
        }
        Some("unix") => {
            let path = PathBuf::from(format!("socket-{}", std::process::id()));
            let server = UnixListener::bind(&path).expect("a server");
            std::thread::spawn(move || server.incoming().for_each(drop));
            let time = each(number(1), || drop(UnixStream::connect(&path).expect("a connection")));
            let _ = std::fs::remove_file(&path);
            time
        }
        Some("read") => once(|| read_all(Path::new(&words[1]))),
        Some("crowd") => {
            let mut crowd: Vec<Child> = (0..number(1))
                .map(|_| Command::new("/bin/sleep").arg("600").spawn().expect("one of a crowd"))
                .collect();
            let time = spawns(number(2));
            for child in &mut crowd {
                let _ = child.kill();
                let _ = child.wait();
            }
            time
        }
        _ => return,
    };
    let _ = writeln!(std::io::stdout(), "{time}");
}

fn spawns(count: usize) -> f64 {
    each(count, || assert!(Command::new("/bin/true").status().is_ok_and(|status| status.success())))
}

fn once(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}

fn each(count: usize, mut work: impl FnMut()) -> f64 {
    median((0..count).map(|_| once(&mut work)).collect()).unwrap_or_default()
}

fn read_all(folder: &Path) {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            read_all(&entry.path());
        } else {
            bytes.clear();
            std::fs::File::open(entry.path())
                .and_then(|mut file| file.read_to_end(&mut bytes))
                .expect("a file");
        }
    }
}
