//! Programs without proxy support must reach the hosts that the policy allows by their names, and no other host.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;

use super::run_options::{Options, events, row};
use crate::support::http_server::{Authority, Response, Server};
use crate::support::{in_every_environment, in_two_environments, one_environment, skip};

const PROGRAMS: &str = r#"
[[command]]
id = "remote-shell"
override = true
program = ["ssh"]
action = "allow"
reason = "These tests try it."
"#;

const CLIENT: &str = r#"
import json, socket, subprocess, sys
plain, tls, raw = map(int, sys.argv[1:4])

def said(connection, request):
    connection.sendall(request)
    answer = b""
    while piece := connection.recv(4096):
        answer += piece
    return answer.decode(errors="replace")

def attempt(way):
    try:
        return way()
    except Exception as error:
        return f"{type(error).__name__} {getattr(error, 'errno', '')} {error}"

def get(host, port, named=None, path="/"):
    with socket.create_connection((host, port), timeout=30) as connection:
        words = f"GET {path} HTTP/1.1\r\nHost: {named or host}\r\nConnection: close\r\n\r\n"
        return said(connection, words.encode())

def secured(host, port, named):
    leads_to = f"{named}:{port}:{host}:{port}"
    words = ["curl", "-sS", "--noproxy", "*", "--connect-to", leads_to, f"https://{named}:{port}/"]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

def banner(host, port):
    with socket.create_connection((host, port), timeout=30) as connection:
        return connection.recv(100).decode()

def over_six():
    address = socket.gethostbyname("plain.test")
    with socket.socket(socket.AF_INET6) as connection:
        connection.connect((f"::ffff:{address}", plain))
        return said(connection, b"GET /six HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

print(json.dumps({
    "plain": attempt(lambda: get("plain.test", plain)),
    "other host named": attempt(lambda: get("plain.test", plain, "elsewhere.test")),
    "whole address": attempt(lambda: get("plain.test", plain, "plain.test", f"http://elsewhere.test:{plain}/")),
    "over six": attempt(over_six),
    "only some requests": attempt(lambda: get("some.test", plain, path="/public/x")),
    "another request": attempt(lambda: get("some.test", plain, path="/private")),
    "tls": attempt(lambda: secured("secure.test", tls, "secure.test")),
    "tls for another": attempt(lambda: secured("secure.test", tls, "other.test")),
    "raw": attempt(lambda: banner("raw.test", raw)),
    "raw by address": attempt(lambda: banner("127.0.0.1", raw)),
    "other port": attempt(lambda: banner("plain.test", raw)),
    "refused": attempt(lambda: banner("elsewhere.test", plain)),
    "mine": attempt(lambda: socket.gethostbyname("x.localhost")),
}))
"#;

/// Starts a server that sends data before the client does.
fn speaks_first() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = serving.accept() {
            let _ = stream.write_all(b"SSH-2.0-first\r\n");
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.read(&mut [0; 100]);
        }
    });
    (listener, port)
}

// slow
#[test]
fn allowed_names_are_reached_without_a_proxy_setting() {
    in_every_environment(|environment| {
        let authority = Authority::new();
        let plain = Server::plain(|_| Response::text("plain-says"));
        let secure = Server::tls(&authority, &["secure.test", "other.test"], |_| Response::text("tls-says"));
        let (_listener, raw) = speaks_first();
        let allow = [
            format!("plain.test:{}", plain.port()),
            format!("GET some.test:{}/public/", plain.port()),
            format!("secure.test:{}", secure.port()),
            format!("raw raw.test:{raw}"),
            format!("raw 127.0.0.1:{raw}"),
        ];
        let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
        let names = ["plain.test", "some.test", "secure.test", "other.test", "raw.test", "elsewhere.test"];
        let options = Options::hosts(environment, &allow, &names).believing(environment, &authority);
        let ports = [plain.port(), secure.port(), raw].map(|port| port.to_string());
        let words = ["python3", "-c", CLIENT, &ports[0], &ports[1], &ports[2]];
        let outcome = environment.run(&options.words(), &words);
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        let told: Value =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        let told = |name: &str| told[name].as_str().unwrap_or_default().to_string();
        for way in ["plain", "other host named", "whole address", "over six", "only some requests"] {
            assert!(told(way).contains("200") && told(way).contains("plain-says"), "{way}: {}", problem());
        }
        assert!(
            told("another request").contains("403") && told("another request").contains("network.request")
        );
        assert!(told("tls").contains("tls-says"), "{}", problem());
        // guard's notice precedes the message of curl.
        let explained = told("tls for another");
        assert!(explained.starts_with("guard: Permission denied: connect to secure.test:"), "{}", problem());
        assert!(explained.contains("(rule network.tls)") && explained.contains("\ncurl: ("), "{}", problem());
        assert_eq!(told("raw"), "SSH-2.0-first\r\n", "{}", problem());
        assert_eq!(told("raw by address"), "SSH-2.0-first\r\n", "{}", problem());
        assert!(
            told("other port").starts_with(&format!("PermissionError {}", libc::EACCES)),
            "{}",
            problem()
        );
        assert!(told("refused").starts_with("gaierror -2"), "{}", problem());
        assert_eq!(told("mine"), "127.0.0.1", "{}", problem());

        // The proxy must send each request to the host that it judged, whatever host the request itself names.
        let expected = [format!("plain.test:{}", plain.port()), format!("some.test:{}", plain.port())];
        assert_eq!(plain.requests().len(), 5, "{:?}", plain.requests());
        for request in plain.requests() {
            assert!(expected.iter().any(|host| request.header("host") == Some(host)), "{request:?}");
        }
        assert!(
            secure.requests().iter().all(|request| request.server_name.as_deref() == Some("secure.test"))
        );
        let rules: Vec<String> = events(&outcome, "deny.network")
            .iter()
            .map(|event| format!("{} {}", event["data"]["host"], event["data"]["rule"]))
            .collect();
        for refusal in [
            "\"some.test\" \"network.request\"",
            "\"secure.test\" \"network.tls\"",
            "\"plain.test\" \"network.default\"",
            "\"elsewhere.test\" \"network.default\"",
        ] {
            assert!(rules.iter().any(|rule| rule == refusal), "{refusal}: {rules:?}\n{}", problem());
        }
        assert!(row(&outcome, "raw.test")["connections"].as_u64() > Some(0), "{}", problem());
    });
}

/// ssh and node's `http` must reach allowed hosts without any option for a proxy.
// slow
#[test]
fn ssh_and_node_reach_allowed_hosts_without_a_proxy_setting() {
    in_two_environments(|environment| {
        let (_listener, raw) = speaks_first();
        let plain = Server::plain(|_| Response::text("plain-says"));
        let allow = [format!("raw git.test:{raw}"), format!("plain.test:{}", plain.port())];
        let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
        let options =
            Options::policy(environment, &allow, &["git.test", "plain.test", "elsewhere.test"], PROGRAMS);
        let script = format!(
            "ssh -v -o BatchMode=yes -p {raw} git.test true 2>&1 | grep 'remote software version'
             ssh -o BatchMode=yes elsewhere.test true; echo \"refused: $?\"
             node -e 'require(\"http\").get(process.argv[1], (answer) => answer.pipe(process.stdout))' {}",
            plain.url_as("plain.test", "/")
        );
        let outcome = environment.run(&options.words(), &["bash", "-c", &script]);
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        if environment.run_outside("command -v ssh >/dev/null && echo yes || echo no").trim() == "yes" {
            assert!(outcome.printed().contains("remote software version first"), "{}", problem());
            assert!(outcome.printed().contains("refused: 255"), "{}", problem());
            assert_eq!(row(&outcome, "elsewhere.test")["refused"], 1, "{}", problem());
        } else {
            skip("ssh without a proxy", "ssh is not installed; scripts/setup installs it");
        }
        assert!(outcome.printed().contains("plain-says"), "{}", problem());
        assert!(outcome.took < Duration::from_secs(60), "{:?}", outcome.took);
    });
}

/// After any malformed query the run's name server must answer the next one, and its answers must lead only to hosts
/// that the policy allows.
#[test]
fn name_server_survives_malformed_queries() {
    let environment = one_environment();
    let script = r#"
import socket, struct
servers = [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver ")] or ["127.0.0.1"]

def ask(message, frame=None):
    with socket.create_connection((servers[0].split("%")[0], 53), timeout=30) as connection:
        answer = b""
        # A server that closes without having read everything resets the connection, at any of these steps.
        try:
            connection.sendall(struct.pack(">H", frame or len(message)) + message)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(4096):
                answer += piece
        except OSError:
            pass
        return answer[2:]

question = b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04good\x04test\x00\x00%c\x00\x01"
print("ok", ask(question % 1)[-4:].hex())
print("text", ask(question % 16)[3] & 15)
print("short", ask(b"\x01\x02")[:4].hex())
print("half", ask(question % 1, 500).hex())
print("long", ask(b"x" * 2000).hex())
print("answer", ask(b"\x01\x02\x81" + (question % 1)[3:])[3] & 15)
held = [socket.create_connection((servers[0].split("%")[0], 53), timeout=30) for _ in range(100)]
print("again", ask(question % 1)[-4:].hex())
try:
    socket.create_connection(("8.8.8.8", 53), timeout=30)
except PermissionError:
    print("other name servers are refused")
print("not raw", socket.create_connection(("good.test", 22), timeout=30).recv(10))
"#;
    let options = Options::hosts(&environment, &["good.test:443,22"], &["good.test"]);
    let outcome = environment.run(&options.words(), &["python3", "-c", script]);
    let expected = "ok c6120001\ntext 3\nshort 01028181\nhalf \nlong \nanswer 1\nagain c6120001\nother name servers are refused\n\
                    not raw b''\n";
    assert_eq!(outcome.printed(), expected, "{outcome}");
    let refused = events(&outcome, "deny.network");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0]["data"]["rule"], "network.tls", "{refused:?}");
}
