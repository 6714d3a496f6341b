//! Compares an agent that `guard exec` starts with the same agent started directly: `cargo bench --bench exec`.
//!
//! All variants take turns, and every figure is a median of one run. The agent is this program itself, started with
//! `inside`; it prints what the Gemini CLI would print. If the real CLI is installed (`scripts/setup` installs it), one
//! of its turns is measured too, with an API that answers at once. If root starts the benchmark, it measures as an
//! ordinary user. A row that exceeds its target is marked as missed; no benchmark fails, because a loaded machine is
//! not a bug.
//!
//! `-- --quick` takes fewer rounds. `-- reader latency` measures only the rows whose names contain one of these
//! words.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use guard::agents::adapter::{OutputFormat, OutputParser, named};
use guard::agents::exec::{ExecRequest, Executor, Running};

/// If root starts the benchmark, the measurements run as the user with this id.
const USER: u32 = 1000;
/// The environment variable that tells the measuring process where the scratch directory is.
const SCRATCH: &str = "GUARD_BENCH_SCRATCH";
/// The number of bytes of agent output in the measurements `reader` and `pipeline`.
const BULK: usize = 100 << 20;
/// The number of simultaneous requests.
const MANY: usize = 50;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if arguments.first().is_some_and(|word| word == "inside") {
        return inside(&arguments[1..]);
    }
    if let Some(scratch) = std::env::var_os(SCRATCH) {
        return Bench::new(PathBuf::from(scratch), &arguments).run();
    }
    let scratch = Scratch::make();
    let mut again = Command::new(scratch.0.join("bin/exec"));
    again.args(&arguments).env(SCRATCH, &scratch.0).current_dir(&scratch.0);
    again.env("HOME", scratch.0.join("home")).env("XDG_STATE_HOME", scratch.0.join("home/.local/state"));
    if nix::unistd::geteuid().is_root() {
        again.uid(USER).gid(USER);
    }
    let mut child =
        again.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the measuring process");
    let mut told = child.stdin.take().expect("its input");
    // The measuring process runs as an ordinary user and cannot read the memory use of guard, which is not dumpable.
    // It prints a line to ask this process, which may be root, for the figure.
    for line in BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok) {
        match line.strip_prefix("memory of ") {
            Some(pid) => writeln!(told, "{}", memory_below(pid.parse().unwrap_or(0))).expect("an answer"),
            None => println!("{line}"),
        }
    }
    let _ = child.wait();
}

/// A directory for all files of the benchmark, which the user [`USER`] can read. Dropping the value removes the
/// directory.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Self {
        let is_open =
            |path: &Path| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let is_reachable = !nix::unistd::geteuid().is_root() || built.ancestors().all(is_open);
        let base = if is_reachable { built.to_path_buf() } else { std::env::temp_dir() };
        let folder = base.join(format!("guard-bench-exec-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        for (name, is_own) in
            [("", false), ("bin", false), ("home", true), ("home/project", true), ("tmp", true)]
        {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).expect("a folder for the benchmark");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its rights");
            if is_own && nix::unistd::geteuid().is_root() {
                chown(&path, Some(USER), Some(USER)).expect("its owner");
            }
        }
        let copy = |from: &Path, name: &str| {
            std::fs::copy(from, folder.join("bin").join(name)).expect("a program that was built");
        };
        copy(Path::new(env!("CARGO_BIN_EXE_guard")), "guard");
        copy(&std::env::current_exe().expect("this program"), "exec");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Bench {
    scratch: PathBuf,
    quick: bool,
    only: Vec<String>,
}

impl Bench {
    fn new(scratch: PathBuf, arguments: &[String]) -> Self {
        let quick = arguments.iter().any(|word| word == "--quick");
        let only = arguments.iter().filter(|word| !word.starts_with('-')).cloned().collect();
        Self { scratch, quick, only }
    }

    fn rounds(&self, rounds: usize) -> usize {
        if self.quick { (rounds / 4).max(3) } else { rounds }
    }

    fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| row.contains(word.as_str()))
    }

    fn run(self) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!("load of the machine before: {}", load.split(' ').next().unwrap_or_default());
        self.reader();
        self.overhead();
        self.over_run();
        self.latency();
        self.pipeline();
        self.many();
        self.real();
    }

    fn program(&self, name: &str) -> PathBuf {
        self.scratch.join("bin").join(name)
    }

    fn folder(&self) -> PathBuf {
        self.scratch.join("home/project")
    }

    fn executor(&self) -> Executor {
        Executor {
            guard: self.program("guard"),
            sessions: self.scratch.join("home/.local/state/guard/sessions"),
            log: Vec::new(),
        }
    }

    /// Returns a request that starts this program as the agent. The agent does what the prompt says.
    fn asked(&self, prompt: &str) -> ExecRequest {
        let agent = self.scratch.join("home/gemini");
        if !agent.exists() {
            // The adapter appends its own arguments, and the prompt is the last of them.
            let script = format!(
                "#!/bin/sh\nfor last; do :; done\nexec {} inside \"${{last#--prompt=}}\"\n",
                self.program("exec").display()
            );
            std::fs::write(&agent, script).expect("a script");
            std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).expect("its rights");
        }
        ExecRequest {
            agent: Some("gemini".to_string()),
            command: vec![agent.display().to_string()],
            read: vec![self.scratch.join("bin")],
            in_place: true,
            max_retries: 0,
            ..ExecRequest::new(prompt, self.folder())
        }
    }

    fn start(&self, prompt: &str) -> Running {
        self.executor().start(self.asked(prompt))
    }

    /// Returns the median of each variant. The variants take turns, and the first round only fills the caches.
    fn medians<const N: usize>(&self, rounds: usize, ways: [&dyn Fn() -> f64; N]) -> [f64; N] {
        let mut all = [const { Vec::new() }; N];
        for round in 0..=self.rounds(rounds) {
            for (way, times) in ways.iter().zip(&mut all) {
                let time = way();
                if round > 0 {
                    times.push(time);
                }
            }
        }
        all.map(median)
    }

    /// Measures the output parser alone, which turns the bytes of a CLI's stream into events.
    fn reader(&self) {
        let name = "reader: 100 MB of stream-json to events";
        if !self.wants(name) {
            return;
        }
        let stream = stream(BULK);
        let [seconds] = self.medians(
            8,
            [&|| {
                let mut reading =
                    OutputParser::new(named("gemini").expect("an adapter"), OutputFormat::default());
                let (mut events, began) = (0usize, Instant::now());
                for piece in stream.chunks(64 << 10) {
                    reading.feed(piece, |event| events += usize::from(!event.message.is_empty()));
                }
                assert!(events > 10_000, "{events}");
                began.elapsed().as_secs_f64()
            }],
        );
        let speed = stream.len() as f64 / seconds / 1e6;
        println!("{name:<52} {speed:>10.0} MB/s   ≥ 200 {}", verdict(speed >= 200.0));
    }

    fn once(&self, words: &[&str]) -> f64 {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.folder()).stdin(Stdio::null()).stdout(Stdio::null());
        let began = Instant::now();
        let status = command.status().expect("a program");
        assert!(status.success(), "{words:?}");
        began.elapsed().as_secs_f64()
    }

    fn overhead(&self) {
        let name = "overhead: an agent that takes 1 s";
        if !self.wants(name) {
            return;
        }
        let program = self.program("exec").display().to_string();
        let [bare, through] = self.medians(
            9,
            [&|| self.once(&[&program, "inside", "second"]), &|| {
                let began = Instant::now();
                assert!(self.start("second").wait().run.success);
                began.elapsed().as_secs_f64()
            }],
        );
        let (more, part) = ((through - bare) * 1e3, (through - bare) / bare * 100.0);
        println!(
            "{name:<52} {:>7.1} ms {:>7.1} ms   +{more:.1} ms ≤ 15 {}, +{part:.2} % ≤ 2 {}",
            bare * 1e3,
            through * 1e3,
            verdict(more <= 15.0),
            verdict(part <= 2.0)
        );
    }

    fn over_run(&self) {
        let name = "guard exec over guard run: /bin/true";
        if !self.wants(name) {
            return;
        }
        let (guard, folder) =
            (self.program("guard").display().to_string(), self.folder().display().to_string());
        let [run, exec] = self.medians(
            41,
            [
                &|| {
                    self.once(&[
                        &guard,
                        "run",
                        "--in-place",
                        "--stream-json",
                        "--dir",
                        &folder,
                        "--",
                        "/bin/true",
                    ])
                },
                &|| {
                    self.once(&[
                        &guard,
                        "exec",
                        "--in-place",
                        "--stream-json",
                        "--cd",
                        &folder,
                        "--",
                        "/bin/true",
                    ])
                },
            ],
        );
        println!("{name:<52} {:>7.2} ms {:>7.2} ms   +{:.2} ms", run * 1e3, exec * 1e3, (exec - run) * 1e3);
    }

    /// Measures the time from when the agent prints a line until the caller receives its event.
    fn latency(&self) {
        let name = "latency: printed to seen";
        if !self.wants(name) {
            return;
        }
        let (mut firsts, mut others) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds(21) {
            let mut running = self.start("lines");
            let mut seen: Vec<f64> = Vec::new();
            for event in running.events() {
                let now = nanoseconds();
                let printed = event.data["content"].as_str().and_then(|text| text.parse::<u128>().ok());
                seen.extend(printed.map(|printed| now.saturating_sub(printed) as f64 / 1e6));
            }
            assert!(running.wait().run.success && seen.len() == LINES);
            firsts.push(seen[0]);
            others.extend(&seen[1..]);
        }
        others.sort_by(f64::total_cmp);
        let (first, worst) = (median(firsts), others[others.len() * 99 / 100]);
        println!(
            "{name:<52} {first:>7.2} ms {:>7.2} ms   the first ≤ 5 ms {}; the others, their p99 {worst:.2} ms",
            median(others),
            verdict(first <= 5.0),
        );
    }

    /// Measures the whole path of an agent's output: pipe, transcript, redaction, splitting into lines, parsing,
    /// events.
    fn pipeline(&self) {
        let name = "pipeline: 100 MB printed by an agent";
        if !self.wants(name) {
            return;
        }
        let [seconds] = self.medians(
            3,
            [&|| {
                let began = Instant::now();
                let result = self.start("bulk").wait();
                assert!(result.run.success && result.events.told > 10_000, "{:?}", result.run.error);
                began.elapsed().as_secs_f64()
            }],
        );
        println!("{name:<52} {:>10.0} MB/s", BULK as f64 / seconds / 1e6);
    }

    /// Measures how long many simultaneous requests take to start, and how much memory they use while their agents
    /// wait.
    fn many(&self) {
        let name = "many: 50 requests at once";
        if !self.wants(name) {
            return;
        }
        let began = Instant::now();
        let running: Vec<Running> = (0..MANY).map(|_| self.start("wait")).collect();
        let go = self.folder().join("go");
        let _ = std::fs::remove_file(&go);
        let all_wait = || {
            std::fs::read_dir(self.folder()).map_or(0, |all| {
                all.flatten()
                    .filter(|entry| entry.file_name().to_string_lossy().starts_with("waits-"))
                    .count()
            })
        };
        while all_wait() < MANY && began.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let started = began.elapsed();
        std::thread::sleep(Duration::from_secs(2));
        println!("memory of {}", std::process::id());
        let mut answer = String::new();
        let _ = std::io::stdin().read_line(&mut answer);
        let each = answer.trim().parse::<f64>().unwrap_or(f64::NAN) / MANY as f64;
        std::fs::write(&go, "").expect("a file");
        let failed = running.into_iter().map(Running::wait).filter(|result| !result.run.success).count();
        println!(
            "{name:<52} {:>7.1} s, {failed} failed {}, {each:.1} MiB proportional each ≤ 8 {}",
            started.as_secs_f64(),
            verdict(failed == 0),
            verdict(each <= 8.0)
        );
    }

    /// Measures one turn of the real Gemini CLI.
    fn real(&self) {
        let name = "gemini: one turn of the real CLI";
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/gemini/node_modules/.bin/gemini");
        if !self.wants(name) || !program.exists() {
            return;
        }
        let url = format!("http://{}", serve());
        let adapter = named("gemini").expect("an adapter");
        let ask = guard::agents::adapter::InvocationSpec {
            format: OutputFormat::default(),
            prompt: "say something".to_string(),
            model: Some("gemini-2.5-flash".to_string()),
            yolo: true,
            session: None,
        };
        let invocation = adapter.invocation(&ask);
        let bare = || {
            let home = self.scratch.join(format!("tmp/home-{}", nanoseconds()));
            for (path, text) in &invocation.home_files {
                std::fs::create_dir_all(home.join(path).parent().expect("a folder")).expect("a home");
                std::fs::write(home.join(path), text).expect("settings");
            }
            let mut command = Command::new(&program);
            command
                .args(&invocation.arguments)
                .envs(invocation.environment.iter().cloned())
                .env("HOME", &home);
            command
                .env("GOOGLE_GEMINI_BASE_URL", &url)
                .env("GEMINI_API_KEY", "dummy")
                .env("NO_PROXY", "127.0.0.1");
            command
                .current_dir(self.folder())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let began = Instant::now();
            assert!(command.status().expect("the CLI").success());
            let time = began.elapsed().as_secs_f64();
            let _ = std::fs::remove_dir_all(home);
            time
        };
        let through = || {
            let mut command = Command::new(self.program("guard"));
            command.args([
                "exec",
                "say something",
                "--in-place",
                "--model",
                "gemini-2.5-flash",
                "--agent",
                "gemini",
                "--max-retries",
                "0",
            ]);
            command.arg("--cd").arg(self.folder()).arg("--").arg(&program);
            command.env("GOOGLE_GEMINI_BASE_URL", &url).env("GEMINI_API_KEY", "the-key");
            let began = Instant::now();
            let output = command.stdin(Stdio::null()).output().expect("guard");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            began.elapsed().as_secs_f64()
        };
        let [bare, through] = self.medians(9, [&bare, &through]);
        println!(
            "{name:<52} {:>7.0} ms {:>7.0} ms   +{:.0} ms, {:.3}x",
            bare * 1e3,
            through * 1e3,
            (through - bare) * 1e3,
            through / bare
        );
    }
}

fn verdict(holds: bool) -> &'static str {
    if holds { "ok" } else { "OVER" }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// Returns the memory of a process and of the guard processes below it, in MiB. It adds up their proportional set
/// sizes.
fn memory_below(root: u32) -> f64 {
    let mut sum = 0.0;
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        // The root process is this program itself. It counts, because the executor runs inside it.
        if read("comm").trim() == "guard" || pid == root {
            let text = read("smaps_rollup");
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
            sum += line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0;
        }
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            open.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    sum
}

/// Returns this many bytes of typical agent output: text of an answer, tool calls and tool results.
fn stream(bytes: usize) -> Vec<u8> {
    let time = "2026-01-02T03:04:05.678Z";
    let words =
        "The toggle keeps its state in \\\"localStorage\\\" and follows the system unless it was set. "
            .repeat(3);
    let source = "    let value = map.get(\\\"key\\\").cloned().unwrap_or_default();\\n".repeat(60);
    let lines = [
        format!(
            "{{\"type\":\"message\",\"timestamp\":\"{time}\",\"role\":\"assistant\",\"content\":\"{words}\",\"delta\":true}}\n"
        ),
        format!(
            "{{\"type\":\"message\",\"timestamp\":\"{time}\",\"role\":\"assistant\",\"content\":\"And so on.\",\"delta\":true}}\n"
        ),
        format!(
            "{{\"type\":\"tool_use\",\"timestamp\":\"{time}\",\"tool_name\":\"run_shell_command\",\"tool_id\":\"run-1\",\"parameters\":{{\"command\":\"cargo test --workspace\"}}}}\n"
        ),
        format!(
            "{{\"type\":\"tool_result\",\"timestamp\":\"{time}\",\"tool_id\":\"run-1\",\"status\":\"success\",\"output\":\"{source}\"}}\n"
        ),
    ];
    let mut stream = Vec::with_capacity(bytes + (8 << 10));
    for line in lines.iter().cycle() {
        if stream.len() >= bytes {
            break;
        }
        stream.extend_from_slice(line.as_bytes());
    }
    stream
}

/// The number of lines that the agent prints in one latency measurement.
const LINES: usize = 20;

/// The main function of this program when guard starts it as the agent. The first argument says what the agent does.
fn inside(words: &[String]) {
    let mut out = std::io::stdout();
    let mut say = |text: &str| {
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    };
    say("{\"type\":\"init\",\"session_id\":\"s\"}\n");
    match words.first().map(String::as_str) {
        Some("second") => std::thread::sleep(Duration::from_secs(1)),
        Some("lines") => {
            // The pause is long enough for every process and thread that handles the output to go to sleep.
            std::thread::sleep(Duration::from_millis(1300));
            for _ in 0..LINES {
                say(&format!(
                    "{{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"{}\"}}\n",
                    nanoseconds()
                ));
                std::thread::sleep(Duration::from_millis(23));
            }
        }
        Some("bulk") => {
            let stream = stream(1 << 20);
            for _ in 0..BULK >> 20 {
                let _ = std::io::stdout().write_all(&stream);
            }
        }
        Some("wait") => {
            std::fs::write(format!("waits-{}-{}", std::process::id(), nanoseconds()), "").expect("a file");
            while !Path::new("go").exists() {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        _ => {}
    }
    say("{\"type\":\"result\",\"status\":\"success\",\"stats\":{}}\n");
}

/// Starts an API that answers every request at once.
fn serve() -> SocketAddr {
    let server = TcpListener::bind("127.0.0.1:0").expect("a server");
    let address = server.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(stream: TcpStream) {
    const SAID: &str = "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"Something.\"}]},\"index\":0,\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":2,\"totalTokenCount\":7}}\r\n\r\n";
    let mut input = BufReader::new(stream.try_clone().expect("a stream"));
    let mut output = stream;
    loop {
        let (mut length, mut line) = (0usize, String::new());
        loop {
            line.clear();
            if !matches!(input.read_line(&mut line), Ok(1..)) {
                return;
            }
            let header = line.trim().to_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if header.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if input.read_exact(&mut body).is_err() {
            return;
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
            SAID.len()
        );
        if output.write_all(head.as_bytes()).and_then(|()| output.write_all(SAID.as_bytes())).is_err() {
            return;
        }
    }
}
