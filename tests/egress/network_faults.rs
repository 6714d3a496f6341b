// slow
//! Tests network failures: misbehaving clients, servers that are down, silent or impersonated, exhausted limits, and
//! invalid settings.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::run_options::{Options, events, probe, row};
use crate::support::http_server::{Authority, Response, Server};
use crate::support::scripted_api::{Api, Part, Turn, USED};
use crate::support::{
    RunOutcome, TestEnvironment, expect_no_process_left, guard_program, in_every_environment,
    in_two_environments, one_environment, unique_mark, wait_for_file,
};

const KEY: &str = "AIzaOnlyForTheApi-27182818284590";
const NAMES: [&str; 1] = ["good.test"];

/// Runs a misbehaving client with these options and these variables of the caller. Returns what the client reports.
fn tried(
    environment: &TestEnvironment,
    options: Options,
    variables: &[(&str, &str)],
    words: &[&str],
) -> (RunOutcome, Value) {
    let script = probe("faults.py");
    let options = options.and(&["--json"]).probing();
    let mut all = vec!["python3", script.to_str().unwrap()];
    all.extend(words);
    let mut command = environment.guard_run(&options.words(), &all);
    command.envs(variables.iter().copied());
    let outcome = environment.run_to_end(command, b"");
    let said = serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| {
        panic!("{}: {words:?}\n{:#}\n{}", environment.name(), outcome.result, outcome.error)
    });
    (outcome, said)
}

/// A server that echoes what it receives, and counts its connections.
struct Echo {
    port: u16,
    open: Arc<AtomicUsize>,
    ever: Arc<AtomicUsize>,
}

impl Echo {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let echo =
            Self { port: listener.local_addr().unwrap().port(), open: Arc::default(), ever: Arc::default() };
        let (open, ever) = (Arc::clone(&echo.open), Arc::clone(&echo.ever));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let open = Arc::clone(&open);
                open.fetch_add(1, Ordering::SeqCst);
                ever.fetch_add(1, Ordering::SeqCst);
                let echo = move || {
                    let _ = std::io::copy(&mut &stream, &mut &stream);
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    open.fetch_sub(1, Ordering::SeqCst);
                };
                std::thread::Builder::new().stack_size(64 << 10).spawn(echo).unwrap();
            }
        });
        echo
    }

    fn place(&self) -> String {
        format!("good.test:{}", self.port)
    }
}

fn echoing() -> Server {
    Server::plain(|request| Response::text(request.body.clone()))
}

fn place(server: &Server) -> String {
    format!("good.test:{}", server.port())
}

#[test]
fn endless_and_too_large_headers_are_refused() {
    let environment = one_environment();
    let server = echoing();
    let api = Server::plain(|_| Response::json(200, &json!({})));
    let options = || Options::hosts(&environment, &[&place(&server)], &NAMES).and(&["--preset", "gemini"]);
    let (key, url) = (("GEMINI_API_KEY", KEY), api.url(""));
    let variables = [key, ("GOOGLE_GEMINI_BASE_URL", &url)];
    let (_, said) = tried(&environment, options(), &variables, &["headers", &place(&server), "1048576"]);
    assert_eq!(said["after"], "HTTP/1.1 200 Test", "{said}");
    for line in said["lines"].as_array().unwrap() {
        assert!(line.as_str().unwrap().starts_with("HTTP/1.1 431"), "{said}");
    }
    // If a client has not sent all headers after half a minute, guard must close the connection, and must serve other
    // clients meanwhile.
    let (_, said) = tried(&environment, options(), &variables, &["slow", &place(&server)]);
    assert_eq!(said["served"], json!(["HTTP/1.1 200 Test"]), "{said}");
    assert!(said["seconds"].as_f64().unwrap() < 45.0, "{said}");
    assert_eq!(server.requests().len(), 2, "{:?}", server.requests());
    assert_eq!(api.requests().len(), 0);
}

#[test]
fn unreachable_servers_are_reported_as_unreachable() {
    in_two_environments(|environment| {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let down = format!("good.test:{nobody}");
        let (outcome, said) =
            tried(environment, Options::hosts(environment, &[&down], &NAMES), &[], &["ask", &down]);
        assert!(said["line"].as_str().unwrap().starts_with("HTTP/1.1 502 guard: good.test"), "{said}");
        assert_eq!(events(&outcome, "network.error").len(), 1);
        assert_eq!(row(&outcome, "good.test"), Value::Null, "{outcome}");
        let (outcome, said) =
            tried(environment, Options::hosts(environment, &[&down], &NAMES), &[], &["get", &down]);
        assert!(said.as_str().unwrap().starts_with("HTTP/1.1 502"), "{said}");
        assert_eq!(events(&outcome, "network.error").len(), 1);

        let url = format!("http://127.0.0.1:{nobody}");
        let variables = [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", url.as_str())];
        let (outcome, said) =
            tried(environment, Options::default().and(&["--policy", "strict"]), &variables, &["turn"]);
        assert!(said["line"].as_str().unwrap().starts_with("HTTP/1.1 503"), "{said}");
        assert!(said["text"].as_str().unwrap().contains("UNAVAILABLE"), "{said}");
        assert_eq!(events(&outcome, "gateway.error").len(), 1);
    });
}

/// guard must not send the API key to a server whose certificate is untrusted or belongs to another name.
#[test]
fn key_is_not_sent_to_a_server_with_a_wrong_certificate() {
    in_two_environments(|environment| {
        let (known, stranger) = (Authority::new(), Authority::new());
        let file = environment.temporary_directory().join("believed.pem");
        std::fs::write(&file, known.pem()).unwrap();
        let file = file.to_str().unwrap();
        let apis = [
            (true, Api::tls(&known, &["127.0.0.1"], vec![Turn::text("well")])),
            (false, Api::tls(&stranger, &["127.0.0.1"], vec![Turn::text("stolen")])),
            (false, Api::tls(&known, &["127.0.0.2", "elsewhere.test"], vec![Turn::text("stolen")])),
        ];
        for (is_right, api) in apis {
            let url = api.server.url("");
            let variables =
                [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", url.as_str()), ("SSL_CERT_FILE", file)];
            let options = Options::default().and(&["--policy", "strict"]);
            let (outcome, said) = tried(environment, options, &variables, &["turn"]);
            let line = said["line"].as_str().unwrap();
            assert!(api.server.connections() > 0);
            if is_right {
                assert!(line.starts_with("HTTP/1.1 200"), "{said}");
                assert_eq!(api.server.requests()[0].header("x-goog-api-key"), Some(KEY));
            } else {
                assert!(line.starts_with("HTTP/1.1 503"), "{said}");
                assert!(api.server.requests().is_empty(), "{:?}", api.server.requests());
                let errors = events(&outcome, "gateway.error");
                assert!(errors[0]["message"].as_str().unwrap().contains("certificate"), "{errors:?}");
            }
        }
    });
}

#[test]
fn tunnel_stays_open_after_one_side_is_done() {
    in_two_environments(|environment| {
        let echo = Echo::new();
        let options = Options::hosts(environment, &[&echo.place()], &NAMES);
        let (outcome, said) = tried(environment, options, &[], &["half", &echo.place()]);
        assert_eq!((&said["end"], said["length"].as_u64() > Some(50)), (&json!("end"), true), "{said}");
        assert_eq!(row(&outcome, "good.test")["bytes_up"], said["length"], "{outcome}");
        assert_eq!(row(&outcome, "good.test")["bytes_down"], said["length"], "{outcome}");
    });
}

/// Returns the resident memory of a process, in KiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// guard must handle five hundred connections with the usual limit of 1,024 file descriptors.
#[test]
fn proxy_handles_five_hundred_connections_at_once() {
    in_two_environments(|environment| {
        let echo = Echo::new();
        let script = probe("faults.py");
        let options = Options::hosts(environment, &[&echo.place()], &NAMES).and(&["--json"]).probing();
        let words = ["python3", script.to_str().unwrap(), "many", &echo.place(), "500", "stop"];
        let mut command = environment.command("bash");
        command.args(["-c", "ulimit -S -n 1024; exec \"$@\"", "bash"]).arg(guard_program());
        command.args(environment.guard_run_arguments(&options.words(), &words));
        let started = Instant::now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let outcome = std::thread::scope(|scope| {
            let run = scope.spawn(move || environment.collect_outcome(child, started));
            wait_for_file(&environment.directory.join("open"));
            let used = memory(pid);
            assert!(used < 100 << 10, "{}: {used} KiB for 500 connections", environment.name());
            std::fs::write(environment.directory.join("stop"), "").unwrap();
            run.join().unwrap()
        });
        let said: Value = serde_json::from_str(&outcome.printed())
            .unwrap_or_else(|_| panic!("{:#}\n{}", outcome.result, outcome.error));
        assert_eq!(said["answered"], 500, "{}: {said}", environment.name());
        assert_eq!(said["lines"], json!({ "HTTP/1.1 200 OK": 500 }), "{}", environment.name());
        // The result must also count the connections that were open when the run ended.
        let row = row(&outcome, "good.test");
        assert_eq!(row["connections"], 500, "{row}");
        assert_eq!(row["bytes_up"], row["bytes_down"], "{row}");
        assert!(row["bytes_up"].as_u64() >= Some(500 * 50), "{row}");
        assert_eq!(events(&outcome, "network.close").len(), 500, "{}", environment.name());
    });
}

fn limited(environment: &TestEnvironment, place: &str, limits: &str) -> Options {
    Options::policy(environment, &[place], &NAMES, &format!("[limits]\noverride = true\n{limits}\n"))
}

#[test]
fn connections_over_the_limit_are_refused() {
    in_two_environments(|environment| {
        let echo = Echo::new();
        let options = limited(environment, &echo.place(), "connections = 10");
        let (outcome, said) = tried(environment, options, &[], &["many", &echo.place(), "15"]);
        let expected =
            json!({ "HTTP/1.1 200 OK": 10, "HTTP/1.1 503 guard: too many connections at once": 5 });
        assert_eq!(said["lines"], expected, "{}", environment.name());
        assert_eq!((&said["answered"], echo.ever.load(Ordering::SeqCst)), (&json!(10), 10));
        let refusals = events(&outcome, "deny.network");
        assert_eq!(refusals.len(), 5);
        assert!(refusals.iter().all(|event| event["data"]["rule"] == "network.limit"), "{refusals:?}");
    });
}

#[test]
fn hundred_megabytes_pass_in_both_directions() {
    let environment = one_environment();
    let (echo, server) = (Echo::new(), echoing());
    let (tunnel, plain) = (echo.place(), place(&server));
    let options = Options::hosts(&environment, &[&tunnel, &plain], &NAMES);
    let size = 100_000_000;
    let (outcome, said) = tried(&environment, options.clone(), &[], &["big", &tunnel, &size.to_string()]);
    assert_eq!((&said["count"], &said["same"]), (&json!(size), &json!(true)), "{said}");
    assert_eq!(row(&outcome, "good.test")["bytes_down"], size, "{outcome}");
    let (outcome, said) = tried(&environment, options, &[], &["big_http", &plain, &size.to_string()]);
    assert_eq!((&said["count"], &said["same"]), (&json!(size), &json!(true)), "{said}");
    assert_eq!(row(&outcome, "good.test")["bytes_up"], size, "{outcome}");
}

#[test]
fn transfers_over_the_byte_limits_are_cut() {
    in_two_environments(|environment| {
        let (echo, server) = (Echo::new(), echoing());
        let mib = 1 << 20;
        for limit in ["upload_mib = 1", "download_mib = 1"] {
            for (what, place) in [("big", echo.place()), ("big_http", place(&server))] {
                let (outcome, said) =
                    tried(environment, limited(environment, &place, limit), &[], &[what, &place, "3000000"]);
                let problem =
                    || format!("{}: {limit} {what}: {said}\n{:#}", environment.name(), outcome.result);
                assert_eq!(said["same"], false, "{}", problem());
                let row = row(&outcome, "good.test");
                let counted = if limit.starts_with("upload") { "bytes_up" } else { "bytes_down" };
                assert!(
                    row[counted].as_u64() <= Some(mib) && row[counted].as_u64() > Some(mib / 2),
                    "{}",
                    problem()
                );
                assert!(said["count"].as_u64() <= Some(mib), "{}", problem());
                let refusals = events(&outcome, "deny.network");
                assert_eq!(refusals.len(), 1, "{}", problem());
                assert_eq!(refusals[0]["data"]["rule"], "network.limit", "{}", problem());
                assert!(events(&outcome, "network.error").is_empty(), "{}", problem());
                if (limit, what) == ("upload_mib = 1", "big_http") {
                    assert!(
                        said["line"].as_str().unwrap().contains("403 guard: Permission denied"),
                        "{}",
                        problem()
                    );
                }
            }
        }
    });
}

#[test]
fn gateway_request_over_the_upload_limit_is_refused() {
    in_two_environments(|environment| {
        let api = Api::plain(vec![Turn::text("not asked")]);
        let url = api.server.url("");
        let variables = [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", url.as_str())];
        let options = limited(environment, "good.test:443", "upload_mib = 1");
        let (outcome, said) = tried(environment, options, &variables, &["bulk", "1", "2", "0"]);
        let problem = || format!("{}: {said}\n{:#}", environment.name(), outcome.result);
        assert_eq!(said["lines"], json!({ "HTTP/1.1 403 Forbidden": 1 }), "{}", problem());
        assert!(said["texts"].to_string().contains("(rule network.limit)"), "{}", problem());
        // guard refuses this request because it is larger than the rest of the budget. Only a budget that is used up
        // ends the run.
        assert_eq!(outcome.code, 0, "{}", problem());
        let refusals = events(&outcome, "deny.network");
        assert_eq!(refusals.len(), 1, "{}", problem());
        assert_eq!(refusals[0]["data"]["rule"], "network.limit", "{}", problem());
        assert!(api.server.requests().is_empty(), "{}", problem());
    });
}

#[test]
fn killed_guard_leaves_no_process_with_open_tunnels() {
    in_two_environments(|environment| {
        let echo = Echo::new();
        let (script, mark) = (probe("faults.py"), unique_mark());
        let options = Options::hosts(environment, &[&echo.place()], &NAMES).and(&["--env", &mark]).probing();
        let words = ["python3", script.to_str().unwrap(), "many", &echo.place(), "20", "stop"];
        let mut command = environment.guard_run(&options.words(), &words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_file(&environment.directory.join("open"));
        assert_eq!(echo.open.load(Ordering::SeqCst), 20);
        child.kill().unwrap();
        child.wait().unwrap();
        expect_no_process_left(&mark, Duration::from_secs(5));
        let deadline = Instant::now() + Duration::from_secs(5);
        while echo.open.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < deadline, "{} tunnels are left", echo.open.load(Ordering::SeqCst));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn broken_off_and_abandoned_answers_are_handled() {
    in_two_environments(|environment| {
        let half = || vec![Part::Text("Half".to_string())];
        let strict = || Options::default().and(&["--policy", "strict"]);
        let api = Api::plain(vec![Turn::Cut(half())]);
        let url = api.server.url("");
        let variables = [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", url.as_str())];
        let (outcome, said) = tried(environment, strict(), &variables, &["turn"]);
        let problem = || format!("{}: {said}\n{:#}", environment.name(), outcome.result);
        // guard must forward the incomplete response, and the client must be able to see that it is incomplete.
        assert!(said["text"].as_str().unwrap().contains("Half"), "{}", problem());
        assert!(!said["text"].as_str().unwrap().ends_with("0\r\n\r\n"), "{}", problem());
        let asked = events(&outcome, "gateway.request");
        assert_eq!((asked.len(), &asked[0]["data"]["whole"]), (1, &json!(false)), "{asked:?}");
        assert_eq!(outcome.result["usage"]["model"]["input_tokens"], USED[0], "{}", problem());

        // A client disconnects before the response begins. The transcript must record its request all the same.
        let server = Server::plain(|_| {
            std::thread::sleep(Duration::from_secs(6));
            Response::json(200, &json!({}))
        });
        let url = server.url("");
        let variables = [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", url.as_str())];
        let body = json!({ "contents": "x".repeat(4000) }).to_string();
        let (outcome, _) = tried(environment, strict(), &variables, &["turn", &body, "3"]);
        let model = &outcome.result["usage"]["model"];
        assert_eq!((&model["requests"], server.requests().len()), (&json!(1), 1), "{outcome}");
        assert!(model["input_tokens"].as_u64() >= Some(1000), "{outcome}");
    });
}

/// A run that waits for a silent API must count as idle, and its idle limit must end it.
#[test]
fn silent_api_leaves_the_run_idle() {
    let environment = one_environment();
    let api = Api::plain(vec![Turn::Silent(vec![Part::Text("Well".to_string())])]);
    let url = api.server.url("");
    let options = limited(&environment, "good.test:443", "idle_seconds = 3").and(&["--json"]).probing();
    let script = probe("faults.py");
    let mut command = environment.guard_run(&options.words(), &["python3", script.to_str().unwrap(), "turn"]);
    command.env("GEMINI_API_KEY", KEY).env("GOOGLE_GEMINI_BASE_URL", &url);
    let outcome = environment.run_to_end(command, b"");
    assert_eq!(outcome.kind(), "idle_timeout", "{outcome}");
    assert!(outcome.took < Duration::from_secs(20), "{:?}", outcome.took);
    let asked = events(&outcome, "gateway.request");
    assert_eq!((asked.len(), &asked[0]["data"]["whole"]), (1, &json!(false)), "{asked:?}");
}

/// Starts a corporate proxy that records every request and sends a line into every tunnel.
fn company() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let all = Arc::clone(&all);
            std::thread::spawn(move || answer_as_company(stream, &all));
        }
    });
    (port, asked)
}

fn answer_as_company(mut stream: TcpStream, asked: &Mutex<Vec<String>>) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let is_known = head.contains("Basic dXNlcjpwQHNzLXdvcmQ=");
    asked.lock().unwrap().push(head);
    let answer = if is_known {
        "HTTP/1.1 200 Fine\r\n\r\n"
    } else {
        "HTTP/1.1 407 Who are you?\r\nContent-Length: 0\r\n\r\n"
    };
    let _ = stream.write_all(answer.as_bytes());
    let _ = stream.read(&mut [0; 1024]);
    let _ = stream.write_all(b"from far away");
}

#[test]
fn upstream_proxy_is_used_and_its_password_stays_outside() {
    in_two_environments(|environment| {
        let (port, asked) = company();
        let far = "far.example.org:443";
        for (word, is_known) in [("p%40ss-word", true), ("wrong-p%40ss", false)] {
            let url = format!("http://user:{word}@127.0.0.1:{port}");
            let options = Options::hosts(environment, &[far], &NAMES);
            let (outcome, said) = tried(environment, options, &[("HTTPS_PROXY", &url)], &["ask", far]);
            let problem = || format!("{}: {said}\n{:#}", environment.name(), outcome.result);
            let line = said["line"].as_str().unwrap();
            if is_known {
                assert_eq!(said["data"], "from far away", "{}", problem());
            } else {
                assert!(
                    line.starts_with("HTTP/1.1 502 guard: the upstream proxy 127.0.0.1"),
                    "{}",
                    problem()
                );
                assert!(line.contains("407"), "{}", problem());
                assert_eq!(events(&outcome, "network.error").len(), 1, "{}", problem());
            }
            let head = asked.lock().unwrap().pop().unwrap();
            assert!(head.starts_with(&format!("CONNECT {far} HTTP/1.1\r\n")), "{head}");
            assert!(head.contains("Proxy-Authorization: Basic "), "{head}");
            let transcript = std::fs::read_to_string(outcome.transcript()).unwrap();
            for text in [said.to_string(), transcript, outcome.result.to_string()] {
                for secret in [word, "p@ss", "dXNlcj", "user:"] {
                    assert!(!text.contains(secret), "{secret}: {}", problem());
                }
            }
        }
    });
}

/// The text of config.toml, the variables of the caller, guard's exit code, and a part of the error message.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], i32, &'a str);

/// guard must refuse to start a run if `config.toml`, the source of a key, or a variable with a URL of the API or the
/// proxy is invalid. The error must say what is wrong, and must not contain the key.
#[test]
fn invalid_network_settings_prevent_the_start_without_showing_the_key() {
    in_two_environments(|environment| {
        let config = environment.temporary_directory().join("config");
        std::fs::create_dir_all(config.join("guard")).unwrap();
        let key = environment.temporary_directory().join("key");
        std::fs::write(&key, KEY).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let file = format!("[gateway.gemini]\nkey_file = {key:?}\n");
        let key_variable = ("GEMINI_API_KEY", KEY);
        let plain_url = ("GOOGLE_GEMINI_BASE_URL", "http://api.example.org");
        let user_url = ("GOOGLE_GEMINI_BASE_URL", "https://me:word@api.example.org");
        let socks = ("HTTPS_PROXY", "socks5://proxy.example.org:1080");
        let cases: [Case<'_>; 10] = [
            ("nonsense = 1", &[], 2, "unknown field `nonsense`"),
            ("[gateway.gemini", &[], 2, "config.toml"),
            ("[prices.m]\ninput = -1.0\noutput = 1.0", &[], 2, "config.toml"),
            (&file, &[], 125, "`chmod 600`"),
            ("[gateway.gemini]\nkey_file = \"/nonexistent/key\"", &[], 125, "No such file"),
            (
                "[gateway.gemini]\nkey_command = [\"false\"]",
                &[],
                125,
                "the command that prints the secret failed with exit status: 1",
            ),
            ("[gateway.gemini]\nkey_command = [\"true\"]", &[], 125, "the secret is empty"),
            ("", &[key_variable, plain_url], 125, "without TLS, others on the network could read the key"),
            ("", &[key_variable, user_url], 125, "not have a user name"),
            ("", &[key_variable, socks], 125, "`socks5://` proxies are not supported"),
        ];
        for (text, variables, code, words) in cases {
            std::fs::write(config.join("guard/config.toml"), text).unwrap();
            let mut command = environment.guard_run(&["--policy", "strict"], &["touch", "made"]);
            command.env("XDG_CONFIG_HOME", &config).envs(variables.iter().copied());
            let outcome = environment.run_to_end(command, b"");
            assert_eq!(outcome.code, code, "{text} {variables:?}: {outcome}");
            assert!(outcome.error.contains(words), "{text} {variables:?}: {outcome}");
            assert!(!outcome.error.contains(KEY), "{outcome}");
            assert!(!environment.directory.join("made").exists(), "{text} {variables:?}");
        }
    });
}

/// The command that prints the API key may start a daemon (a key agent, for example), and may wait for the user to
/// unlock a key. Until it ends, guard must not have started a process or opened a port for the run.
#[test]
fn nothing_of_the_run_exists_while_the_key_is_fetched() {
    const SCRIPT: &str = "import os, socket, subprocess, sys, time
quiet = subprocess.DEVNULL
lives_on = subprocess.Popen(['sleep', '600'], start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
open(sys.argv[1] + '/lives-on', 'w').write(str(lives_on.pid))
guard = f'/proc/{os.getppid()}/fd'
try:
    sockets = [os.readlink(f'{guard}/{number}') for number in os.listdir(guard)]
except PermissionError:
    sockets = []
rows = [line.split() for line in open('/proc/net/tcp').readlines()[1:]]
ports = [int(row[1].split(':')[1], 16) for row in rows if f'socket:[{row[9]}]' in sockets and row[3] == '0A']
def below(pid):
    children = open(f'/proc/{pid}/task/{pid}/children').read().split()
    return children + [deeper for child in children for deeper in below(child)]
own = [str(os.getpid()), str(lives_on.pid)]
waiting = [pid for pid in below(os.getppid()) if pid not in own]
open(sys.argv[1] + '/waiting', 'w').write(str(len(waiting)))
open(sys.argv[1] + '/ports', 'w').write(str(len(ports)))
print('AIza-not-a-real-key')";
    in_every_environment(|environment| {
        let folder = environment.temporary_directory();
        let config = folder.join("config");
        std::fs::create_dir_all(config.join("guard")).unwrap();
        let command = json!(["python3", "-c", SCRIPT, folder.to_str().unwrap()]);
        let text = format!("[gateway.gemini]\nkey_command = {command}\n");
        std::fs::write(config.join("guard/config.toml"), text).unwrap();
        let mut command = environment.guard_run(&["--json", "--policy", "strict"], &["true"]);
        command.env("XDG_CONFIG_HOME", &config);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.result["success"], true, "{outcome}");
        let number =
            |name: &str| -> i32 { std::fs::read_to_string(folder.join(name)).unwrap().parse().unwrap() };
        assert_eq!(number("waiting"), 0, "{}", environment.name());
        // Only root can see which process owns a port, so for other users this number is always 0.
        assert_eq!(number("ports"), 0, "{}", environment.name());
        let lives_on = nix::unistd::Pid::from_raw(number("lives-on"));
        let is_there = nix::sys::signal::kill(lives_on, nix::sys::signal::Signal::SIGKILL).is_ok();
        assert!(is_there, "{}: it was ended with the run", environment.name());
    });
}
