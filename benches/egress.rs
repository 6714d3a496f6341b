//! Compares network access through guard's proxy with direct access: `cargo bench --bench egress`.
//!
//! Two clients, one bare and one in the sandbox, take turns at the same work, so that a change of the machine's speed
//! affects both. Each reads its next order as a line on standard input. The servers are threads of this program, on
//! loopback. A row that exceeds the project's target is marked as missed; no benchmark fails.
//!
//! `-- --quick` takes fewer rounds.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// The number of bytes in one bulk transfer.
const BULK: usize = 512 << 20;
const CHUNKS: usize = 50;
const TUNNELS: usize = 500;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if arguments.first().is_some_and(|word| word == "inside") {
        return inside(&arguments[1..]);
    }
    let rounds = if arguments.iter().any(|word| word == "--quick") { 31 } else { 301 };
    let scratch = Scratch::make();
    let http = serve(answer_http);
    let bulk = serve(answer_bulk);
    let api = serve(answer_events);
    let policy = format!(
        "version = 1\nname = \"bench\"\nextends = \"strict\"\n[network]\noverride = true\nallow = [\"ok.test:{}\", \"raw ok.test:{}\"]\nresolve = {{ \"ok.test\" = \"127.0.0.1\" }}\n[limits]\noverride = true\nconnections = 2048\n",
        http.port(),
        bulk.port()
    );
    std::fs::write(scratch.0.join("policy.toml"), policy).expect("a policy");
    let ports = [http, bulk, api].map(|address| address.port().to_string());
    let mut bare =
        Client::start(Command::new(std::env::current_exe().expect("this program")), &ports, &scratch);
    let mut guard = Command::new(env!("CARGO_BIN_EXE_guard"));
    guard.args(["run", "--quiet", "--in-place", "--policy"]).arg(scratch.0.join("policy.toml"));
    guard.arg("--read").arg(std::env::current_exe().expect("this program")).arg("--");
    guard.arg(std::env::current_exe().expect("this program"));
    guard.env("GEMINI_API_KEY", "the-key").env("GOOGLE_GEMINI_BASE_URL", format!("http://{api}"));
    let mut guarded = Client::start(guard, &ports, &scratch);

    println!("{:<44} {:>10} {:>10} {:>10}  bar", "median", "direct", "guard", "");
    for (name, row) in [
        ("request, a new connection each (http)", "fresh"),
        ("request, a tunnel each (CONNECT)", "tunnel"),
        ("request, one connection (http)", "kept"),
    ] {
        let (direct, through) = in_turns(&mut bare, &mut guarded, row, rounds);
        let more = through - direct;
        line(name, direct, through, &format!("+{:.3} ms", more * 1e3), "+0.3 ms", more <= 0.3e-3);
    }
    let (direct, through) = in_turns(&mut bare, &mut guarded, "first", rounds);
    line(
        "first event through a gateway",
        direct,
        through,
        &format!("+{:.3} ms", (through - direct) * 1e3),
        "+1 ms",
        through - direct <= 1e-3,
    );
    let (direct, through) = in_turns(&mut bare, &mut guarded, "chunks", rounds.min(21));
    line(
        "every further event, from sent to seen",
        direct,
        through,
        &format!("+{:.3} ms", (through - direct) * 1e3),
        "+0.1 ms",
        through - direct <= 0.1e-3,
    );
    let (direct, through) = in_turns(&mut bare, &mut guarded, "refused", rounds);
    line(
        "a connection that is refused",
        direct,
        through,
        &format!("{:.2}x", through / direct),
        "4x",
        through / direct <= 4.0,
    );
    let (direct, through) = in_turns(&mut bare, &mut guarded, "bulk", if rounds > 100 { 11 } else { 5 });
    let speed = |seconds: f64| BULK as f64 / seconds / 1e6;
    let ratio = direct / through;
    println!(
        "{:<44} {:>7.0} MB/s {:>5.0} MB/s {:>7.2}x  >= 0.8x{}",
        "bulk through a tunnel",
        speed(direct),
        speed(through),
        ratio,
        if ratio >= 0.8 { "" } else { "  MISSED" }
    );
    let before = memory(guarded.child.id());
    guarded.ask("open");
    let after = memory(guarded.child.id());
    println!(
        "{:<44} {:>7.1} MiB {:>6.1} MiB {:>6.1} MiB  <= 30 MiB{}",
        "500 tunnels open: memory before, after, more",
        before,
        after,
        after - before,
        if after - before <= 30.0 { "" } else { "  MISSED" }
    );
}

fn line(name: &str, direct: f64, through: f64, more: &str, bar: &str, holds: bool) {
    println!(
        "{name:<44} {:>7.3} ms {:>7.3} ms {more:>10}  <= {bar}{}",
        direct * 1e3,
        through * 1e3,
        if holds { "" } else { "  MISSED" }
    );
}

/// Returns the resident memory of a process, in MiB.
fn memory(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or_default();
    kib / 1024.0
}

fn in_turns(bare: &mut Client, guarded: &mut Client, what: &str, rounds: usize) -> (f64, f64) {
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        direct.push(bare.ask(what));
        through.push(guarded.ask(what));
    }
    (median(direct), median(through))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guard-bench-egress-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("work")).expect("a folder");
        std::fs::create_dir_all(folder.join("home")).expect("a folder");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A client process. It reads the names of measurements from standard input, and prints the seconds that each one
/// took.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(mut command: Command, ports: &[String], scratch: &Scratch) -> Self {
        command.arg("inside").args(ports);
        command.env("HOME", scratch.0.join("home")).env("XDG_STATE_HOME", scratch.0.join("home/state"));
        command.current_dir(scratch.0.join("work")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a client");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut client = Self { child, input, output };
        client.ask("fresh");
        client
    }

    fn ask(&mut self, what: &str) -> f64 {
        writeln!(self.input, "{what}").expect("a client that listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a client that answers");
        line.trim().parse().unwrap_or_else(|_| panic!("{what}: {line:?}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "end");
        let _ = self.child.wait();
    }
}

/// Starts a server on loopback that handles each connection in a thread.
fn serve(answer: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            let _ = std::thread::Builder::new().stack_size(256 << 10).spawn(move || answer(stream));
        }
    });
    address
}

/// Reads the head and the body of one request. Returns `None` at the end of the connection.
fn request(reader: &mut BufReader<TcpStream>) -> Option<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()
}

fn answer_http(stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut stream = stream;
    while request(&mut reader).is_some() {
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_err() {
            return;
        }
    }
}

/// Serves a connection: for the byte `e` it sends the byte back, for any other byte it sends the bulk data.
fn answer_bulk(mut stream: TcpStream) {
    let block = vec![7u8; 256 << 10];
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() {
        if byte[0] == b'e' {
            if stream.write_all(&byte).is_err() {
                return;
            }
            continue;
        }
        for _ in 0..BULK / block.len() {
            if stream.write_all(&block).is_err() {
                return;
            }
        }
    }
}

fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map(|time| time.as_nanos()).unwrap_or_default()
}

fn answer_events(stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut stream = stream;
    while request(&mut reader).is_some() {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        for index in 0..CHUNKS {
            if index > 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
            let event =
                format!("data: {{\"sent\":{},\"usageMetadata\":{{\"promptTokenCount\":1}}}}\r\n\r\n", now());
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            if stream.write_all(chunk.as_bytes()).is_err() {
                return;
            }
        }
        let _ = stream.write_all(b"0\r\n\r\n");
    }
}

/// The main function of a [`Client`] process. For each measurement name on standard input, makes the network requests
/// and prints the seconds they took.
fn inside(ports: &[String]) {
    let port = |index: usize| ports[index].parse::<u16>().expect("a port");
    let from = |name: &str| -> Option<SocketAddr> {
        std::env::var(name).ok()?.strip_prefix("http://")?.parse().ok()
    };
    let proxy = from("http_proxy");
    let direct = |index: usize| SocketAddr::from(([127, 0, 0, 1], port(index)));
    let api = if proxy.is_some() { from("GOOGLE_GEMINI_BASE_URL").expect("a gateway") } else { direct(2) };
    let mut kept: Option<TcpStream> = None;
    let mut open = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let began = Instant::now();
        let seconds = match line.as_str() {
            "fresh" => {
                let mut stream = TcpStream::connect(proxy.unwrap_or(direct(0))).expect("a connection");
                get(&mut stream, proxy.is_some(), port(0));
                began.elapsed().as_secs_f64()
            }
            "kept" => {
                let stream = kept.get_or_insert_with(|| {
                    TcpStream::connect(proxy.unwrap_or(direct(0))).expect("a connection")
                });
                let began = Instant::now();
                get(stream, proxy.is_some(), port(0));
                began.elapsed().as_secs_f64()
            }
            "tunnel" => {
                let mut stream = tunnel(proxy, direct(1));
                stream.write_all(b"e").expect("a stream");
                stream.read_exact(&mut [0]).expect("an echo");
                began.elapsed().as_secs_f64()
            }
            "bulk" => {
                let mut stream = tunnel(proxy, direct(1));
                let began = Instant::now();
                stream.write_all(b"b").expect("a stream");
                let (mut left, mut buffer) = (BULK, vec![0; 256 << 10]);
                while left > 0 {
                    left -= stream.read(&mut buffer).expect("bytes");
                }
                began.elapsed().as_secs_f64()
            }
            "refused" => {
                // Nobody listens on port 1. Without guard the kernel refuses the connection; in a run guard refuses
                // it.
                let _ = TcpStream::connect(("127.0.0.1", 1));
                began.elapsed().as_secs_f64()
            }
            "first" => events(api).0,
            "chunks" => events(api).1,
            "open" => {
                for _ in 0..TUNNELS {
                    let mut stream = tunnel(proxy, direct(1));
                    stream.write_all(b"e").expect("a stream");
                    stream.read_exact(&mut [0]).expect("an echo");
                    open.push(stream);
                }
                0.0
            }
            _ => return,
        };
        println!("{seconds}");
    }
}

fn get(stream: &mut TcpStream, is_proxied: bool, port: u16) {
    let _ = stream.set_nodelay(true);
    let target = if is_proxied { format!("http://ok.test:{port}/") } else { "/".to_string() };
    stream
        .write_all(format!("GET {target} HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n").as_bytes())
        .expect("a stream");
    head(stream);
    stream.read_exact(&mut [0; 5]).expect("a body");
}

/// Reads the head of an HTTP response.
fn head(stream: &mut TcpStream) -> String {
    let (mut text, mut byte) = (Vec::new(), [0; 1]);
    // Reading single bytes is slow, but the bare client and the sandboxed client both do it.
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn tunnel(proxy: Option<SocketAddr>, direct: SocketAddr) -> TcpStream {
    let Some(proxy) = proxy else { return TcpStream::connect(direct).expect("a connection") };
    let mut stream = TcpStream::connect(proxy).expect("a connection");
    let _ = stream.set_nodelay(true);
    let port = direct.port();
    stream
        .write_all(format!("CONNECT ok.test:{port} HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n").as_bytes())
        .expect("a stream");
    let answer = head(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stream
}

/// Returns the time until the first event arrived, and the median time from sending to receiving one of the later
/// events.
fn events(api: SocketAddr) -> (f64, f64) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(api).expect("a connection");
    let _ = stream.set_nodelay(true);
    let body = "{\"contents\":[]}";
    let ask = format!(
        "POST /v1beta/models/m:streamGenerateContent?alt=sse HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(ask.as_bytes()).expect("a stream");
    let mut reader = BufReader::new(stream);
    let (mut first, mut times) = (0.0, Vec::new());
    let mut line = String::new();
    while times.len() < CHUNKS {
        line.clear();
        reader.read_line(&mut line).expect("a line");
        let Some(sent) = line.strip_prefix("data: {\"sent\":") else { continue };
        let seen = now();
        if times.is_empty() {
            first = began.elapsed().as_secs_f64();
        }
        let sent: u128 = sent.split(',').next().and_then(|text| text.parse().ok()).expect("a time");
        times.push(seen.saturating_sub(sent) as f64 / 1e9);
    }
    (first, median(times.split_off(1)))
}
