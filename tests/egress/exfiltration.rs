// slow
//! A probe tries forty ways to send data out of a run. A receiver outside must get the data without guard, and must not
//! get it under guard.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::receivers::Receivers;
use super::run_options::{Options, events, probe, row};
use crate::support::http_server::{Request, Response, Server};
use crate::support::{
    TestEnvironment, guard_program, in_every_environment, in_two_environments, wait_for_file,
};

/// Policy rules that allow the programs that the probe starts (git and ssh), so that only the network layer can
/// refuse the connections.
const PROGRAMS: &str = r#"
[[command]]
id = "git.remote"
override = true
verb = ["clone", "ls-remote"]
action = "allow"
reason = "These tests ask remotes."

[[command]]
id = "remote-shell"
override = true
program = ["ssh"]
action = "allow"
reason = "These tests try it."
"#;

/// Attempts of the probe that a receiver outside cannot observe. For these the test relies on what the probe reports.
const ONLY_FROM_INSIDE: [&str; 11] = [
    "tcp-sendto",
    "raw",
    "packet",
    "ping",
    "udp-lite",
    "sctp",
    "vsock",
    "netlink-generic",
    "netlink-netfilter",
    "io-uring",
    "lookup",
];

/// Attempts of the probe that work only with certain kernels or installed programs.
const NOT_EVERYWHERE: [&str; 8] =
    ["mptcp", "tcp6", "tcp6-any", "udp6", "tcp-fastopen", "tcp-fastopen-sendmsg", "wget", "ssh"];

type Told = BTreeMap<String, String>;

/// Writes a file that tells the probe where the receivers listen.
fn plan(environment: &TestEnvironment, receivers: &Receivers) -> PathBuf {
    let path = environment.directory.join("plan.json");
    std::fs::write(&path, receivers.plan().to_string()).unwrap();
    path
}

/// A shell command that opens a connection to the outside and then executes its arguments.
const WITH_CONNECTION: &str = "exec 9<>/dev/tcp/127.0.0.1/$0; exec \"$@\"";

#[test]
fn forty_ways_of_exfiltration_reach_no_receiver() {
    in_every_environment(|environment| {
        let script = probe("ways_out.py");
        let (script, name) = (script.to_str().unwrap(), environment.name());
        let bare = Receivers::new();
        let mut command = environment.command("bash");
        command.args(["-c", WITH_CONNECTION, &bare.port().to_string(), "python3", script]);
        command.arg(plan(environment, &bare));
        let outcome = environment.run_to_end(command, b"");
        let told: Told = serde_json::from_value(outcome.result).unwrap();
        let expected: Vec<&str> = told
            .keys()
            .map(String::as_str)
            .filter(|way| !ONLY_FROM_INSIDE.contains(way) && !NOT_EVERYWHERE.contains(way))
            .collect();
        bare.wait_for(&expected);
        let arrived = bare.arrived();
        for way in &expected {
            assert!(arrived.iter().any(|known| known == way), "{name}: {way} without guard: {}", told[*way]);
        }
        assert!(arrived.len() >= 40, "{name}: {arrived:?}");
        drop(bare);

        let options = Options::policy(environment, &["good.test:443"], &["good.test"], PROGRAMS).probing();
        let mut all = vec!["--json"];
        all.extend(options.words());
        // Another program may use the UDP port with the number of the proxy's port. The next run has another port.
        let run = || {
            let receivers = Receivers::new();
            let plan = plan(environment, &receivers);
            let words = environment.guard_run_arguments(&all, &["python3", script, plan.to_str().unwrap()]);
            let mut command = environment.command("bash");
            command
                .args(["-c", WITH_CONNECTION, &receivers.port().to_string()])
                .arg(guard_program())
                .args(words);
            let (outcome, is_listening) = std::thread::scope(|scope| {
                let listener = scope.spawn(|| at_the_proxys_port(environment, &receivers));
                (environment.run_to_end(command, b""), listener.join().unwrap())
            });
            is_listening.then_some((outcome, receivers))
        };
        let (outcome, receivers) =
            (0..5).find_map(|_| run()).expect("a UDP port with the number of the proxy's port");
        let problem = || format!("{name}\n{:#}\n{}", outcome.result, outcome.error);
        let tried: Told =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(receivers.arrived(), Vec::<String>::new(), "{}", problem());
        assert!(!receivers.text().contains("way-"), "{}", receivers.text());
        assert_eq!(tried.keys().collect::<Vec<_>>(), told.keys().collect::<Vec<_>>(), "{}", problem());
        let done: Vec<&String> =
            tried.iter().filter(|(_, said)| *said == "done").map(|(way, _)| way).collect();
        // The probe reports `detached` as done, because the shell does not see that its background process failed.
        assert_eq!(done, ["detached"], "{}", problem());
        let refused = events(&outcome, "deny.connect");
        for to in ["127.0.0.1", "127.0.0.2", "0.0.0.0", "[::ffff:127.0.0.1]"] {
            let to = format!("connect to {to}:{}", receivers.port());
            let is_told =
                refused.iter().any(|event| event["message"].as_str().unwrap_or_default().contains(&to));
            assert!(is_told, "{to}: {}", problem());
        }
    });
}

/// Starts a UDP listener on the port of the run's proxy, once the probe has reported that port. Returns false if
/// another program uses the port.
fn at_the_proxys_port(environment: &TestEnvironment, receivers: &Receivers) -> bool {
    let (port, ready) =
        (environment.directory.join("proxy-port"), environment.directory.join("listener-ready"));
    let _ = std::fs::remove_file(&ready);
    wait_for_file(&port);
    let is_listening = receivers.at_udp(std::fs::read_to_string(&port).unwrap().parse().unwrap());
    std::fs::remove_file(&port).unwrap();
    std::fs::write(ready, "").unwrap();
    is_listening
}

/// A child process that is killed when the value is dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a file exists. Returns its text.
fn said(path: &Path) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Ok(text) = std::fs::read_to_string(path) {
            return text;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} never came", path.display());
}

/// Returns the requests that the probe smuggled through the proxy inside other requests, as far as they reached the
/// server. The probe writes `way-smuggle` into their paths.
fn smuggled(server: &Server) -> Vec<String> {
    let targets = server.requests().into_iter().map(|request| request.target);
    targets.filter(|target| target.contains("way-smuggle")).collect()
}

#[test]
fn no_request_to_the_proxy_reaches_a_host_that_is_not_allowed() {
    in_every_environment(|environment| {
        let script = probe("through_proxy.py");
        let (script, name) = (script.to_str().unwrap(), environment.name());
        let lay_out = |receivers: &Receivers, plain: &Server, raw: &Receivers| {
            let plan = json!({ "tcp": receivers.port(), "tcp6": receivers.port6(), "plain": plain.port(), "raw": raw.port() });
            let path = environment.directory.join("plan.json");
            std::fs::write(&path, plan.to_string()).unwrap();
            path
        };
        let serve = || Server::plain(|_| Response::text("fine"));

        // Through a proxy without checks, every attempt must reach its receiver.
        let (receivers, raw, plain) = (Receivers::new(), Receivers::new(), serve());
        let port = environment.directory.join("open-port");
        let open = environment.command("python3").arg(script).arg("open").arg(&port).spawn().unwrap();
        let _open = Ending(open);
        let mut command = environment.command("python3");
        command.env("https_proxy", format!("http://127.0.0.1:{}", said(&port)));
        command.arg(script).arg(lay_out(&receivers, &plain, &raw));
        let outcome = environment.run_to_end(command, b"");
        let told: Told =
            serde_json::from_value(outcome.result).unwrap_or_else(|_| panic!("{}", outcome.error));
        let mut arrived = receivers.arrived();
        arrived.extend(raw.arrived());
        let hidden = smuggled(&plain);
        let only_told = ["metadata", "metadata-six", "metadata-http", "own-door", "own-door-by-name"];
        for way in told.keys().filter(|way| !only_told.contains(&way.as_str()) && !way.starts_with("fine")) {
            let came = arrived.contains(way) || hidden.iter().any(|target| target.contains(way.as_str()));
            assert!(came, "{name}: {way} through an open proxy: {}", told[way]);
        }

        let (receivers, raw, plain) = (Receivers::new(), Receivers::new(), serve());
        let allow = [
            format!("good.test:{}", raw.port()),
            format!("plain.test:{}", plain.port()),
            "localhost:*".to_string(),
            "loop.test:*".to_string(),
        ];
        let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
        let names = ["good.test", "plain.test", "loop.test", "evil.test", "x.good.test", "notgood.test"];
        let options = Options::hosts(environment, &allow, &names).probing();
        let plan = lay_out(&receivers, &plain, &raw);
        let outcome = environment.run(&options.words(), &["python3", script, plan.to_str().unwrap()]);
        let problem = || format!("{name}\n{}\n{:#}\n{}", outcome.printed(), outcome.result, outcome.error);
        let tried: Told =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(receivers.arrived(), Vec::<String>::new(), "{}", problem());
        assert_eq!(raw.arrived(), Vec::<String>::new(), "{}", problem());
        assert_eq!(smuggled(&plain), Vec::<String>::new(), "{}", problem());
        assert_eq!(tried.keys().collect::<Vec<_>>(), told.keys().collect::<Vec<_>>(), "{}", problem());
        // At the same time allowed requests must work.
        assert!(tried["fine-http"].contains(" 200 "), "{}", problem());
        assert!(tried["fine-tls"].contains("200") && tried["fine-tls"].contains("Fine"), "{}", problem());
        assert!(tried["fine-socks"].contains("Fine"), "{}", problem());
        assert_eq!(raw.text().matches("good.test").count(), 2, "{}", raw.text());
        // Every request that reached the plain server must name that server as its host, and have exactly one length.
        for request in plain.requests() {
            let place = format!("plain.test:{}", plain.port());
            assert_eq!(request.header("host"), Some(place.as_str()), "{request:?}");
            assert_eq!(request.headers.iter().filter(|(name, _)| name == "host").count(), 1, "{request:?}");
            let lengths = ["content-length", "transfer-encoding"];
            let count = request.headers.iter().filter(|(name, _)| lengths.contains(&name.as_str())).count();
            assert!(count <= 1, "{request:?}");
        }
        let refusals = events(&outcome, "deny.network");
        let rules = |rule: &str| refusals.iter().filter(|event| event["data"]["rule"] == rule).count();
        for rule in ["network.default", "network.host", "network.private", "network.tls"] {
            assert!(rules(rule) > 0, "{rule}: {}", problem());
        }
        assert!(row(&outcome, "evil.test")["refused"].as_u64() > Some(0), "{}", problem());
        assert!(tried["own-door-by-name"].contains("403"), "{}", problem());
    });
}

const KEY: &str = "AIzaOfTheUserAndNobodyElse0123456789";

fn is_known_call(request: &Request) -> bool {
    matches!(
        (request.method.as_str(), request.path()),
        ("POST", "/v1beta/models/m:generateContent") | ("GET", "/v1beta/models")
    )
}

#[test]
fn no_request_to_a_gateway_uses_the_key_for_another_purpose() {
    in_every_environment(|environment| {
        let (script, name) = (probe("through_gateway.py"), environment.name());
        let receivers = Receivers::new();
        let plan = environment.directory.join("plan.json");
        std::fs::write(&plan, json!({ "tcp": receivers.port() }).to_string()).unwrap();
        let serve = || {
            let cookie = "of=the-api";
            Server::plain(move |_| {
                Response::json(200, &json!({})).with("set-cookie", cookie).with("alt-svc", "h3=\":1\"")
            })
        };
        let calls =
            |server: &Server| server.requests().iter().filter(|request| !is_known_call(request)).count();

        // Without guard, the API receives all of these requests.
        let api = serve();
        let mut command = environment.command("python3");
        command.env("GOOGLE_GEMINI_BASE_URL", api.url("")).arg(&script).arg(&plan);
        let outcome = environment.run_to_end(command, b"");
        assert!(calls(&api) > 15, "{name}: {outcome}");
        let told = outcome.result["told"].as_object().unwrap().len();

        let api = serve();
        let script = script.to_str().unwrap();
        let options = Options::default().and(&["--json", "--policy", "strict"]).probing();
        let mut command =
            environment.guard_run(&options.words(), &["python3", script, plan.to_str().unwrap()]);
        command.env("GEMINI_API_KEY", KEY).env("GOOGLE_GEMINI_BASE_URL", api.url(""));
        let outcome = environment.run_to_end(command, b"");
        let problem = || format!("{name}\n{:#}\n{}", outcome.result, outcome.error);
        let said: Value =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        assert_eq!(said["told"].as_object().unwrap().len(), told, "{}", problem());
        assert_eq!(calls(&api), 0, "{:?}", api.requests());
        for request in api.requests() {
            let keys: Vec<&str> = request
                .headers
                .iter()
                .filter(|(name, _)| name == "x-goog-api-key")
                .map(|(_, value)| value.as_str())
                .collect();
            assert_eq!(keys, [KEY], "{request:?}");
            let place = format!("127.0.0.1:{}", api.port());
            assert_eq!(request.header("host"), Some(place.as_str()), "{request:?}");
            let known = ["host", "x-goog-api-key", "content-length", "content-type", "accept", "user-agent"];
            assert!(request.headers.iter().all(|(name, _)| known.contains(&name.as_str())), "{request:?}");
            assert!(["", "alt=sse"].contains(&request.query()), "{request:?}");
            let text = String::from_utf8_lossy(&request.body).into_owned();
            assert!(["", "{}"].contains(&text.as_str()), "{request:?}");
            assert!(!format!("{request:?}").contains("of-the-agent"), "{request:?}");
        }
        let answers = said["everything"].as_str().unwrap_or_default().to_ascii_lowercase();
        assert!(!answers.contains(&KEY.to_ascii_lowercase()), "{}", problem());
        assert!(!answers.contains("set-cookie") && !answers.contains("alt-svc"), "{answers}");
        assert!(receivers.text().is_empty(), "{}", receivers.text());
        let handed_on =
            ["fine", "fine-list", "own-key", "own-keys", "query-key", "query-key-escaped", "query-system"];
        let handed_on = handed_on.iter().chain(&[
            "override",
            "host",
            "absolute",
            "connection-words",
            "chunked",
            "smuggled",
        ]);
        let handed_on: Vec<&str> = handed_on.copied().collect();
        for (way, line) in said["told"].as_object().unwrap() {
            let line = line.as_str().unwrap_or_default();
            let is_fine = line.starts_with("HTTP/1.1 200");
            // The attempt `host` sends two Host headers. hyper may reject such a request before guard judges it.
            assert!(is_fine == handed_on.contains(&way.as_str()) || way == "host", "{way}: {line}");
        }
        assert!(!events(&outcome, "deny.network").is_empty(), "{}", problem());
        assert!(!std::fs::read_to_string(outcome.transcript()).unwrap().contains(KEY), "{}", problem());
    });
}

/// A Python client in the run. It writes the ports of its proxy to a file, fetches through the proxy until the file
/// `stop` exists, and prints how many requests succeeded.
const BUSY: &str = r#"
import json, os, socket, sys, time
port = lambda name: int(os.environ[name].rsplit(":", 1)[1])
with open("ports.new", "w") as file:
    json.dump({"proxy": port("https_proxy"), "gateway": port("GOOGLE_GEMINI_BASE_URL")}, file)
os.rename("ports.new", "ports")
worked = 0
while not os.path.exists("stop"):
    with socket.create_connection(("127.0.0.1", port("https_proxy")), 5) as peer:
        peer.sendall(f"GET http://{sys.argv[1]}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        worked += peer.recv(4096).startswith(b"HTTP/1.1 200")
    time.sleep(0.01)
others = []
for path in sys.argv[2:]:
    for name, number in json.load(open(path)).items():
        try:
            socket.create_connection(("127.0.0.1", number), 2).close()
            others.append(f"{name} of another run was reached")
        except OSError as error:
            others.append(type(error).__name__)
print(json.dumps([worked, others]))
"#;

/// Connects to a port as a process that does not belong to the run, and sends these bytes. Returns what it receives,
/// which must be empty.
fn hears(port: u16, words: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = stream.write_all(words.as_bytes());
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

fn ports(environment: &TestEnvironment) -> (u16, u16) {
    let ports: Value = serde_json::from_str(&said(&environment.directory.join("ports"))).unwrap();
    let port = |name: &str| u16::try_from(ports[name].as_u64().unwrap()).unwrap();
    (port("proxy"), port("gateway"))
}

#[test]
fn other_processes_cannot_use_the_proxy_of_a_run() {
    in_every_environment(|environment| {
        let plain = Server::plain(|_| Response::text("fine"));
        let api = Server::plain(|_| Response::json(200, &json!({})));
        let place = format!("plain.test:{}", plain.port());
        let options =
            Options::hosts(environment, &[&place], &["plain.test"]).and(&["--json", "--preset", "gemini"]);
        std::fs::write(environment.directory.join("busy.py"), BUSY).unwrap();
        let mut command = environment.guard_run(&options.words(), &["python3", "busy.py", &place]);
        command.env("GEMINI_API_KEY", KEY).env("GOOGLE_GEMINI_BASE_URL", api.url(""));
        let outcome = std::thread::scope(|scope| {
            let run = scope.spawn(|| environment.run_to_end(command, b""));
            let (proxy, gateway) = ports(environment);
            for _ in 0..6 {
                let asked =
                    format!("GET http://{place}/outsider HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                assert_eq!(hears(proxy, &asked), b"", "{}", environment.name());
                let asked = "GET /v1beta/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                assert_eq!(hears(gateway, asked), b"", "{}", environment.name());
            }
            std::fs::write(environment.directory.join("stop"), "").unwrap();
            run.join().unwrap()
        });
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        let said: Value =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        assert!(said[0].as_u64() > Some(0), "{}", problem());
        assert!(plain.requests().iter().all(|request| request.target == "/"), "{:?}", plain.requests());
        assert_eq!(plain.requests().len() as u64, said[0].as_u64().unwrap(), "{}", problem());
        assert_eq!(api.requests().len(), 0);
        // Many processes outside the run connected to the proxy. The transcript must record only the first ten.
        assert_eq!(events(&outcome, "network.outsider").len(), 10, "{}", problem());
    });
}

/// A Python client in the run. It uses the proxy, calls `connect` twice more on the same socket, closes the socket,
/// and writes its source port to a file.
const KNOCKS_TWICE: &str = r#"
import os, socket, struct, time
peer = socket.create_connection(("127.0.0.1", int(os.environ["https_proxy"].rsplit(":", 1)[1])), 5)
peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
peer.recv(4096)
# The kernel says of a connect that went on without its caller: done. Only then: it is connected.
print("knocked:", peer.connect_ex(peer.getpeername()), peer.connect_ex(peer.getpeername()))
mine, door = peer.getsockname()[1], peer.getpeername()[1]
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
peer.close()
with open("knocked.new", "w") as file:
    file.write(f"{mine} {door}")
os.rename("knocked.new", "knocked")
while not os.path.exists("stop"):
    time.sleep(0.02)
"#;

/// A Python client outside the run. It connects to the proxy from the source port that the run has used, and prints
/// what it receives.
const FOLLOWS: &str = "
import socket, sys, time
peer = socket.socket()
peer.settimeout(10)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
for _ in range(100):
    try:
        peer.bind(('127.0.0.1', int(sys.argv[1])))
        break
    except OSError:
        # The other end has not noticed yet.
        time.sleep(0.05)
else:
    sys.exit('somebody else has that port by now')
peer.connect(('127.0.0.1', int(sys.argv[2])))
try:
    peer.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
    print(peer.recv(100))
except ConnectionError:
    print(b'')
";

/// The proxy recognizes a client by its source port. After the run has closed that port, another process must not be
/// able to use the proxy from it.
#[test]
fn proxy_refuses_a_source_port_that_the_run_has_closed() {
    in_two_environments(|environment| {
        // Ports belong to the whole machine, so an unrelated process may connect to the proxy or take the source
        // port. The test therefore tries up to five times.
        let undisturbed = (0..5).any(|_| follows_through_a_port(environment));
        assert!(undisturbed, "{}: always somebody else", environment.name());
    });
}

/// Connects to the proxy, from outside the run, with a source port that the run used and closed. Returns false if an
/// unrelated process used one of the ports, so that the attempt proves nothing.
fn follows_through_a_port(environment: &TestEnvironment) -> bool {
    for made in ["knocked", "stop"] {
        let _ = std::fs::remove_file(environment.directory.join(made));
    }
    let options = Options::hosts(environment, &["good.test:443"], &["good.test"]).and(&["--json"]);
    std::fs::write(environment.directory.join("knocks.py"), KNOCKS_TWICE).unwrap();
    let command = environment.guard_run(&options.words(), &["python3", "knocks.py"]);
    let (outcome, port, heard) = std::thread::scope(|scope| {
        let run = scope.spawn(|| environment.run_to_end(command, b""));
        let ports = said(&environment.directory.join("knocked"));
        let follower =
            environment.command("python3").args(["-c", FOLLOWS]).args(ports.split(' ')).output().unwrap();
        std::fs::write(environment.directory.join("stop"), "").unwrap();
        let port = ports.split(' ').next().unwrap_or_default().to_string();
        (run.join().unwrap(), port, follower)
    });
    let knocked = format!("knocked: 0 {}", libc::EISCONN);
    assert!(outcome.printed().contains(&knocked), "{outcome}");
    let outsiders = events(&outcome, "network.outsider");
    let from_there = format!("127.0.0.1:{port}");
    if !heard.status.success() || outsiders.iter().any(|outsider| outsider["data"]["from"] != from_there) {
        eprintln!("not alone at {port}: {heard:?} {outsiders:?}");
        return false;
    }
    assert_eq!(String::from_utf8_lossy(&heard.stdout).trim(), "b''", "{}: {heard:?}", environment.name());
    assert_eq!(outsiders.len(), 1, "{outcome}");
    true
}

#[test]
fn runs_cannot_use_the_proxy_of_each_other() {
    in_two_environments(|first| {
        in_two_environments(|second| {
            if second.name() == first.name() {
                return;
            }
            let plain = Server::plain(|_| Response::text("fine"));
            let place = format!("plain.test:{}", plain.port());
            let start = |environment: &TestEnvironment, other: &TestEnvironment| {
                let ports = other.directory.join("ports");
                let options = Options::hosts(environment, &[&place], &["plain.test"])
                    .and(&["--json", "--preset", "gemini"]);
                let options = options.and(&["--read", other.directory.to_str().unwrap()]);
                std::fs::write(environment.directory.join("busy.py"), BUSY).unwrap();
                let mut command = environment
                    .guard_run(&options.words(), &["python3", "busy.py", &place, ports.to_str().unwrap()]);
                command.env("GEMINI_API_KEY", KEY);
                command
            };
            let (one, two) = (start(first, second), start(second, first));
            let (one, two) = std::thread::scope(|scope| {
                let runs =
                    [scope.spawn(|| first.run_to_end(one, b"")), scope.spawn(|| second.run_to_end(two, b""))];
                for environment in [first, second] {
                    let _ = ports(environment);
                }
                for environment in [first, second] {
                    std::fs::write(environment.directory.join("stop"), "").unwrap();
                }
                let mut outcome = runs.map(|run| run.join().unwrap()).into_iter();
                (outcome.next().unwrap(), outcome.next().unwrap())
            });
            for outcome in [one, two] {
                let said: Value = serde_json::from_str(&outcome.printed())
                    .unwrap_or_else(|_| panic!("{:#}\n{}", outcome.result, outcome.error));
                assert!(said[0].as_u64() > Some(0), "{outcome}");
                assert_eq!(said[1], json!(["PermissionError", "PermissionError"]), "{outcome}");
            }
        });
    });
}
