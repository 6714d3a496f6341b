// slow
//! Tests the servers of a run: where they may listen, and which clients reach them.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{TestEnvironment, in_every_environment, one_environment, skip_unsupported};

/// Returns ports that no program uses.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A program that listens at each of these places and reports each result. If all succeed, it waits for a client.
const SERVER: &str = r#"
import json, os, socket, sys

def listen(place):
    family, host, port = place.split(",")
    server = socket.socket(socket.AF_INET6 if family == "6" else socket.AF_INET)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()
    except OSError as error:
        return None, f"errno {error.errno}"
    return server, server.getsockname()[0]

def visit(host, port):
    try:
        socket.create_connection((host, port), timeout=30).close()
        return "reached"
    except OSError as error:
        return f"errno {error.errno}"

told, servers = {}, []
for place in sys.argv[2:]:
    server, told[place] = listen(place)
    if server:
        port = server.getsockname()[1]
        told[place + " by four"], told[place + " by six"] = visit("127.0.0.1", port), visit("::1", port)
        servers.append(server)
if "outside" in os.environ:
    told["outside"] = visit("127.0.0.1", int(os.environ["outside"]))
print(json.dumps(told))
sys.stdout.flush()
if sys.argv[1] == "wait" and servers:
    open("ready", "w").close()
    servers[0].settimeout(60)
    # What it has visited itself.
    while servers[0].accept()[0].recv(1) != b"x":
        pass
    # The visitor sees that it was accepted.
    open("seen", "w").close()
"#;

/// Runs the server, and calls `visit` outside while it listens.
fn serve(
    environment: &TestEnvironment,
    options: &[&str],
    places: &[&str],
    visit: impl FnOnce(),
) -> (Value, String) {
    let mut all = vec!["--json"];
    all.extend(options);
    let words = [&["python3", "-c", SERVER, "wait"], places].concat();
    let command = environment.guard_run(&all, &words);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| environment.run_to_end(command, b""));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !environment.directory.join("ready").exists() && !run.is_finished() && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        visit();
        run.join().unwrap()
    });
    let _ = std::fs::remove_file(environment.directory.join("ready"));
    let told = serde_json::from_str(&outcome.printed());
    let problem = format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
    (told.unwrap_or_else(|_| panic!("{problem}")), problem)
}

fn visit(host: &str, port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((host, port)) else { return false };
    std::io::Write::write_all(&mut stream, b"x").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Waits for an answer, or for the end of the run, which closes the connection.
    let _ = stream.read(&mut [0]);
    true
}

#[test]
fn allowed_port_is_listened_on_at_loopback_only() {
    in_every_environment(|environment| {
        let [port, other, _] = free_ports();
        let (allowed, refused) = (format!("4,0.0.0.0,{port}"), format!("4,0.0.0.0,{other}"));
        let (any, elsewhere) = ("4,0.0.0.0,0".to_string(), format!("4,192.0.2.1,{port}"));
        let places = [allowed.as_str(), &refused, &any, &elsewhere];
        let mut reached = (false, false);
        let (told, problem) = serve(environment, &["--listen", &port.to_string()], &places, || {
            // A server that listens on all addresses would be reachable at this one.
            reached.1 = TcpStream::connect(("127.0.0.2", port)).is_ok();
            reached.0 = visit("127.0.0.1", port);
        });
        assert_eq!(reached, (true, false), "{problem}");
        assert_eq!(told[&allowed], "127.0.0.1", "{problem}");
        assert_eq!(told[format!("{allowed} by four")], "reached", "{problem}");
        for fixture in &places[1..] {
            assert_eq!(told[*fixture], format!("errno {}", libc::EACCES), "{fixture}: {problem}");
        }
        assert!(
            problem.contains(&format!("`--listen {other}` or `[network] listen = [{other}]`")),
            "{problem}"
        );
        assert!(problem.contains("listen on loopback only"), "{problem}");
    });
}

#[test]
fn dual_stack_server_is_reached_by_both_families_inside() {
    if TcpListener::bind("[::]:0").is_err() {
        skip_unsupported("a server for both families", "there is no IPv6 here");
        return;
    }
    in_every_environment(|environment| {
        let [port, ..] = free_ports();
        let fixture = format!("6,::,{port}");
        let mut reached = false;
        let (told, problem) = serve(environment, &["--listen", &port.to_string()], &[&fixture], || {
            reached = visit("127.0.0.1", port);
        });
        assert!(reached, "{problem}");
        assert_eq!(told[&fixture], "::ffff:127.0.0.1", "{problem}");
        assert_eq!(told[format!("{fixture} by four")], "reached", "{problem}");
        assert_eq!(told[format!("{fixture} by six")], "reached", "{problem}");
    });
}

/// A run must not be able to listen on a port that another program uses, and must not reach that program through it.
#[test]
fn port_of_another_program_is_neither_shared_nor_reached() {
    in_every_environment(|environment| {
        let server = TcpListener::bind("0.0.0.0:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let taken = server.local_addr().unwrap().port();
        let places =
            [format!("4,0.0.0.0,{taken}"), format!("4,127.0.0.1,{taken}"), format!("4,127.0.0.2,{taken}")];
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let (listen, outside) = (taken.to_string(), format!("outside={taken}"));
        let options = ["--listen", listen.as_str(), "--env", &outside];
        let (told, problem) = serve(environment, &options, &places, || {});
        for fixture in places {
            assert_eq!(told[fixture], format!("errno {}", libc::EADDRINUSE), "{fixture}: {problem}");
        }
        assert_eq!(told["outside"], format!("errno {}", libc::EACCES), "{problem}");
        assert!(server.accept().is_err(), "{problem}");
    });
}

/// A socket that disconnects from the proxy keeps its port, for every address of the machine. The run must not be able
/// to listen on it.
#[test]
fn disconnected_socket_cannot_listen() {
    let script = r#"
import ctypes, os, socket
server = socket.socket()
server.connect(("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1])))
dissolved = ctypes.CDLL(None).connect(server.fileno(), bytes(16), 16)
try:
    server.listen()
    print(dissolved, "listens at", server.getsockname())
except OSError as error:
    print(dissolved, "errno", error.errno)
"#;
    in_every_environment(|environment| {
        for options in [&[][..], &["--policy", "standard"], &["--listen", "3000"]] {
            let outcome = environment.run(options, &["python3", "-c", script]);
            assert_eq!(outcome.printed(), "0 errno 13\n", "{options:?}: {outcome}");
        }
    });
}

/// A policy can allow some ports or, with `loopback = true`, all of them. In both cases the server must be reachable
/// only on loopback.
#[test]
fn policy_allows_single_ports_or_all_on_loopback() {
    let environment = one_environment();
    let [port, other, _] = free_ports();
    let places = [format!("4,0.0.0.0,{port}"), format!("4,0.0.0.0,{other}"), "4,0.0.0.0,0".to_string()];
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let policy = environment.temporary_directory().join("policy.toml");
    for (section, expected) in [
        (format!("listen = [{port}]"), ["127.0.0.1", "errno 13", "errno 13"]),
        ("loopback = true".to_string(), ["127.0.0.1"; 3]),
    ] {
        let text = format!(
            "version = 1\nname = \"p\"\nextends = \"strict\"\n[network]\noverride = true\n{section}\n"
        );
        std::fs::write(&policy, text).unwrap();
        let options = ["--json", "--policy", policy.to_str().unwrap()];
        let words = [&["python3", "-c", SERVER, "go"], places.as_slice()].concat();
        let outcome = environment.run_to_end(environment.guard_run(&options, &words), b"");
        let told: Value =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{:#}", outcome.result));
        let ended: Vec<&str> =
            places.iter().map(|fixture| told[*fixture].as_str().unwrap_or_default()).collect();
        assert_eq!(ended, expected, "{section}: {outcome}");
    }
}

/// The kernel gives a unix socket that connects with `SO_PASSCRED` an abstract name, which every process of the machine
/// can connect to. The run must not be able to listen on it.
#[test]
fn autobound_unix_socket_cannot_listen() {
    let script = r#"
import os, socket
SO_PASSCRED = 16
socket.socket(socket.AF_UNIX).bind("dead")
server = socket.socket(socket.AF_UNIX)
server.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
refused = server.connect_ex("dead")
for listener in server, socket.socket(socket.AF_UNIX):
    try:
        listener.listen()
        print("listens at", listener.getsockname())
    except OSError as error:
        print(refused, listener.getsockname()[:1], "errno", error.errno)
"#;
    in_every_environment(|environment| {
        let _ = std::fs::remove_file(environment.directory.join("dead"));
        let outcome = environment.run(&[], &["python3", "-c", script]);
        assert_eq!(outcome.printed(), "111 b'\\x00' errno 13\n111  errno 22\n", "{outcome}");
    });
}
