//! In a run that may reach no host, every client must be refused at once, with or without proxy support, and guard must
//! report every refusal.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::run_options::{events, row};
use crate::support::{
    RunOutcome, TestEnvironment, guard_program, in_every_environment, one_environment, skip,
};

/// Runs a command under `strict` without an API key, so that nothing is reachable.
fn run(environment: &TestEnvironment, command: &[&str]) -> RunOutcome {
    let mut guard = environment.guard_run(&["--json"], command);
    guard.env_remove("GEMINI_API_KEY");
    environment.run_to_end(guard, b"")
}

/// A program that tries each client once, and prints the result and the time in milliseconds.
const CLIENTS: &str = r#"
import json, socket, subprocess, time, urllib.error, urllib.request

def urllib_client():
    try:
        urllib.request.urlopen("http://urllib.test/")
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"

def lookup():
    try:
        return str(socket.getaddrinfo("lookup.test", 80))
    except socket.gaierror as error:
        return f"EAI {error.errno}"

def address():
    try:
        socket.create_connection(("192.0.2.1", 443), timeout=30)
    except OSError as error:
        return f"errno {error.errno}"

def stands_for_no_name():
    try:
        socket.create_connection(("198.18.0.1", 443), timeout=30)
    except OSError as error:
        return f"errno {error.errno}"

def guard_program(*words):
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{ran.returncode} {ran.stdout}"

NODE = "require('http').get('http://node.test/', () => console.log('answered')).on('error', (error) => console.log(error.code))"
ways = {
    "urllib": urllib_client, "lookup": lookup, "address": address, "198.18": stands_for_no_name,
    "curl": lambda: guard_program("curl", "-sS", "https://curl.test/"),
    "curl without proxy": lambda: guard_program("curl", "-sS", "--noproxy", "*", "http://direct.test/"),
    "node": lambda: guard_program("node", "-e", NODE),
}
told = {}
for name, way in ways.items():
    began = time.monotonic()
    answer = way()
    told[name] = [answer, round((time.monotonic() - began) * 1000, 2)]
print(json.dumps(told))
"#;

// slow
#[test]
fn every_client_is_refused_at_once_and_every_refusal_recorded() {
    in_every_environment(|environment| {
        let outcome = run(environment, &["python3", "-c", CLIENTS]);
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        let told: Value =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        eprintln!("{}: {told}", environment.name());
        let answer = |name: &str| told[name][0].as_str().unwrap_or_default().to_string();
        assert!(
            answer("urllib")
                .starts_with("403 guard: Permission denied: GET to urllib.test:80 (rule network.default)")
        );
        assert!(answer("curl").contains("403") && !answer("curl").starts_with('0'), "{}", problem());
        // The error is EAI_NONAME, which no client takes for a temporary failure.
        assert_eq!(answer("lookup"), "EAI -2", "{}", problem());
        assert_eq!(answer("address"), format!("errno {}", libc::EACCES), "{}", problem());
        assert_eq!(answer("198.18"), format!("errno {}", libc::EACCES), "{}", problem());
        assert!(answer("curl without proxy").starts_with("6 "), "{}", problem());
        assert!(answer("node").contains("ENOTFOUND"), "{}", problem());
        for (name, told) in told.as_object().unwrap() {
            // The time includes the start of the program. A client whose name lookups get no answer would take ten
            // seconds: two attempts of five seconds.
            assert!(told[1].as_f64() < Some(9000.0), "{name}: {}", problem());
        }

        let refused = events(&outcome, "deny.network");
        let log = environment.command(guard_program()).args(["log", "--network"]).output().unwrap();
        let log = String::from_utf8_lossy(&log.stdout).into_owned();
        let denials = outcome.result["denials"].to_string();
        for host in ["urllib.test", "lookup.test", "curl.test", "direct.test", "node.test"] {
            let of_host: Vec<&Value> = refused.iter().filter(|event| event["data"]["host"] == host).collect();
            assert_eq!(of_host.len(), 1, "{host}: {}", problem());
            assert_eq!(of_host[0]["data"]["rule"], "network.default", "{host}: {}", problem());
            assert!(log.contains(host) && denials.contains(host), "{host}: {log}\n{}", problem());
            assert_eq!(row(&outcome, host)["refused"], 1, "{host}: {}", problem());
        }
        assert!(log.contains("192.0.2.1:443") && denials.contains("192.0.2.1:443"), "{log}\n{}", problem());
        assert_eq!(row(&outcome, "192.0.2.1")["refused"], 1, "{}", problem());
    });
}

/// The summary must name the refused hosts, and must say how many it leaves out.
#[test]
fn the_summary_names_refused_hosts() {
    let environment = one_environment();
    let script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do curl -s http://host-$n.test/ > /dev/null; done";
    let outcome = environment.run_to_end(environment.guard_run(&[], &["bash", "-c", script]), b"");
    assert!(outcome.error.contains("refused: GET to host-1.test:80: The policy does not allow"), "{outcome}");
    assert!(outcome.error.contains("  refused hosts: host-1.test:80, host-10.test:80, "), "{outcome}");
    assert!(outcome.error.contains(" and 2 more; `guard log --network` shows all hosts"), "{outcome}");
}

/// npm must give up at once when guard refuses its connection. If the name lookup failed instead, npm would retry for
/// more than a minute.
#[test]
fn npm_gives_up_at_once_when_refused() {
    let environment = one_environment();
    if Command::new("npm").arg("--version").output().is_err() {
        skip("npm", "it is not installed; scripts/setup installs it");
        return;
    }
    let script = "echo '{}' > package.json; npm install --no-audit --no-fund left-pad-of-nobody 2>&1";
    let outcome = run(&environment, &["bash", "-c", script]);
    let problem = || format!("{:?}\n{:#}\n{}", outcome.took, outcome.result, outcome.error);
    assert!(outcome.printed().contains("403"), "{}", problem());
    assert!(outcome.took < Duration::from_secs(60), "{}", problem());
    assert!(!events(&outcome, "deny.network").is_empty(), "{}", problem());
}

/// guard starts the proxy thread with the first connection. A run that connects to nothing must not have that thread.
#[test]
fn run_without_connections_has_no_proxy_thread() {
    let environment = one_environment();
    let threads = "cat /proc/$PPID/task/*/comm";
    let count = |script: &str| {
        // The test reads guard's threads from outside, because the sandbox does not show guard's processes.
        let mut guard =
            environment.guard_run(&["--quiet"], &["bash", "-c", &format!("{script}; touch ready; sleep 20")]);
        guard.env_remove("GEMINI_API_KEY");
        let mut child = guard.spawn().unwrap();
        let ready = environment.directory.join("ready");
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while !ready.exists() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let names = Command::new("bash")
            .args(["-c", &threads.replace("$PPID", &child.id().to_string())])
            .output()
            .unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::SIGTERM)
            .unwrap();
        let _ = child.wait();
        std::fs::remove_file(ready).unwrap();
        String::from_utf8_lossy(&names.stdout).lines().filter(|name| *name == "network").count()
    };
    assert_eq!(count("true"), 0);
    assert_eq!(count("curl -s http://elsewhere.test/ > /dev/null"), 1);
}
