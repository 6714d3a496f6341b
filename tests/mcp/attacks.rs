// slow
//! Clients without a token attack the HTTP listener, and clients with a token send too many or too large requests.
//! The tests check what the attackers get, and that other clients are still served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::{Answer, Served, hello};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{is_root, one_environment, peak_memory, skip, wait_until};

/// Returns valid headers with these changes.
fn headers(server: &Served, changes: &[(&str, Option<&str>)]) -> Vec<(String, String)> {
    let mut all = server.headers();
    for (name, value) in changes {
        all.retain(|(other, _)| other != name);
        all.extend(value.map(|value| ((*name).to_string(), value.to_string())));
    }
    all
}

/// Fails unless the server serves a client with a token.
fn serves(server: &Served) {
    let checked = server.uses(&server.session(), "guard_check", &json!({ "command": ["ls"] }));
    assert_eq!(checked["decision"], "allow", "{checked:#}");
}

#[test]
fn requests_without_token_or_from_web_pages_are_refused() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let server = Served::start(&environment, "", &gemini, &[]);
    let port = server.address.rsplit_once(':').unwrap().1.to_string();
    let hello = hello().to_string();
    let status = |target: &str, changes: &[(&str, Option<&str>)]| {
        let answer = server.request("POST", target, &headers(&server, changes), hello.as_bytes());
        assert!(
            !answer.text.contains(&server.token)
                && (answer.status == 200 || !answer.text.contains("serverInfo")),
            "{}",
            answer.text
        );
        answer.status
    };
    let bearer = |word: &str| format!("Bearer {word}");
    assert_eq!(status("/mcp", &[]), 200);
    assert_eq!(status("/mcp", &[("Authorization", Some(&format!("bEaReR {}", server.token)))]), 200);
    assert_eq!(status("/mcp", &[("Host", Some(&format!("LOCALHOST:{port}")))]), 200);
    assert_eq!(status("/mcp", &[("Origin", Some(&format!("http://127.0.0.1:{port}")))]), 200);

    // The request has no token, or one that is almost right.
    let almost = format!("{}{}", &server.token[..63], if server.token.ends_with('0') { "1" } else { "0" });
    let longer = format!("{}0", server.token);
    for word in
        [&almost, &server.token[..63], &longer, "", " ", &server.token.to_uppercase(), "null", "undefined"]
    {
        if word != server.token {
            assert_eq!(status("/mcp", &[("Authorization", Some(&bearer(word)))]), 401, "{word}");
        }
    }
    for value in [
        server.token.clone(),
        format!("Basic {}", server.token),
        format!("Bearer  {}", server.token),
        "Bearer".to_string(),
    ] {
        assert_eq!(status("/mcp", &[("Authorization", Some(&value))]), 401, "{value}");
    }
    assert_eq!(status("/mcp", &[("Authorization", None)]), 401);
    assert_eq!(
        status(
            "/mcp",
            &[
                ("Authorization", None),
                ("X-Authorization", Some(&bearer(&server.token))),
                ("Cookie", Some(&server.token))
            ]
        ),
        401
    );
    // The request has two tokens. The server must not choose one of them.
    let mut twice = server.headers();
    twice.push(("Authorization".to_string(), bearer("wrong")));
    assert_eq!(server.request("POST", "/mcp", &twice, hello.as_bytes()).status, 401);
    // The token is in the URL, which servers write into logs. The server must not accept it there.
    for query in ["access_token", "token", "authorization"] {
        let target = format!("/mcp?{query}={}", server.token);
        assert_eq!(status(&target, &[("Authorization", None)]), 401);
        assert_eq!(status(&target, &[]), 404);
    }
    assert_eq!(status("/", &[]), 404);
    assert_eq!(status("/mcp/../mcp", &[]), 404);
    assert_eq!(status("/.well-known/oauth-protected-resource", &[("Authorization", None)]), 401);

    // Requests as a web page would send them: a host name that resolves to loopback, another port, another scheme.
    // The server must refuse them before it looks at the token.
    for token in [None, Some(bearer(&server.token))] {
        let with = |name: &str, value: Option<&str>| {
            status("/mcp", &[("Authorization", token.as_deref()), (name, value)])
        };
        let other_port = format!("127.0.0.1:{}", port.parse::<u16>().unwrap() ^ 1);
        for host in [
            "evil.example",
            "evil.example:80",
            &other_port,
            "127.0.0.1",
            "",
            "0.0.0.0",
            &format!("127.0.0.1.evil.example:{port}"),
            &format!("evil@127.0.0.1:{port}"),
            &format!("[::1]:{port}"),
        ] {
            assert_eq!(with("Host", Some(host)), 403, "{host}");
        }
        for origin in [
            "http://evil.example",
            "null",
            "",
            "https://localhost",
            &format!("https://127.0.0.1:{port}"),
            "http://127.0.0.1",
            &format!("http://{other_port}"),
            "vscode-webview://x",
            &format!("http://evil.example, http://127.0.0.1:{port}"),
        ] {
            assert_eq!(with("Origin", Some(origin)), 403, "{origin}");
        }
    }
    let mut two_hosts = server.headers();
    two_hosts.push(("Host".to_string(), "evil.example".to_string()));
    assert_eq!(server.request("POST", "/mcp", &two_hosts, hello.as_bytes()).status, 403);
    assert_eq!(status(&format!("http://evil.example:{port}/mcp"), &[]), 403);
    assert_eq!(server.request("GET", "/mcp", &headers(&server, &[("Authorization", None)]), b"").status, 401);
    assert_eq!(
        server.request("DELETE", "/mcp", &headers(&server, &[("Authorization", None)]), b"").status,
        401
    );
    // A session id must not replace the token.
    let session = server.session();
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }).to_string();
    let stolen = headers(&server, &[("Authorization", None), ("Mcp-Session-Id", Some(&session))]);
    let answer = server.request("POST", "/mcp", &stolen, list.as_bytes());
    assert!(answer.status == 401 && !answer.text.contains("guard_check"), "{}", answer.text);
}

#[test]
fn http_token_is_readable_only_by_its_owner() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![
        Turn::shell(
            "cat guard-token-file; cat ../state/guard/mcp-token; read port < port; (exec 3<>/dev/tcp/127.0.0.1/$port && echo let-me-in) 2>&1",
        ),
        Turn::text("Tried."),
    ]);
    let server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    assert_eq!(server.token_file.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(server.token.len() >= 64);
    // The next server must have the same token, so that clients need no new configuration.
    assert_eq!(Served::start(&environment, "", &gemini, &[]).token, server.token);
    if is_root() {
        // The test opens the directories on the path, so that only the mode of the file itself can refuse the other
        // user.
        for folder in server.token_file.ancestors().skip(1).take(2) {
            std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let read = Command::new("cat").arg(&server.token_file).uid(65534).gid(65534).output().unwrap();
        let said = String::from_utf8_lossy(&read.stderr).into_owned();
        assert!(!read.status.success() && read.stdout.is_empty() && said.contains("denied"), "{said}");
    } else {
        skip("another user reads the token", "the tests were not started by root");
    }
    // The agent that the server starts must not be able to read the token either.
    symlink(&server.token_file, environment.directory.join("guard-token-file")).unwrap();
    let port = server.address.rsplit_once(':').unwrap().1;
    std::fs::write(environment.directory.join("port"), format!("{port}\n")).unwrap();
    let ask = json!({ "PROMPT": "hello", "cd": environment.directory, "sandbox": "read-only", "model": "gemini-2.5-flash" });
    let answer = server.uses(&server.session(), "gemini", &ask);
    assert_eq!(answer["result"], "Tried.", "{answer:#}");
    let told = format!("{:?}", api.tool_results());
    assert!(
        !told.contains(&server.token) && !told.contains("let-me-in\\n") && told.contains("denied"),
        "{told}"
    );
}

/// Writes until the server closes the connection. Returns the number of bytes sent, and the answer.
fn endless(mut stream: TcpStream, head: &str, piece: &[u8], most: usize) -> (usize, Answer) {
    let mut sent = stream.write(head.as_bytes()).unwrap();
    while sent < most {
        match stream.write(piece) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    (sent, Answer::read(stream))
}

#[test]
fn too_large_requests_are_refused_early() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let mut server = Served::start(&environment, "", &gemini, &[]);
    let head: String = server.headers().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    // The request announces a huge body. The server must refuse it without waiting for the body.
    let mut stream = server.connect();
    write!(stream, "POST /mcp HTTP/1.1\r\n{head}Content-Length: 1073741824\r\n\r\n").unwrap();
    assert_eq!(Answer::read(stream).status, 413);
    // The request does not announce its size.
    let chunk = [b"10000\r\n".as_slice(), &b" ".repeat(0x10000), b"\r\n"].concat();
    let start = format!("POST /mcp HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n");
    let (sent, answer) = endless(server.connect(), &start, &chunk, 256 << 20);
    assert!(sent < 40 << 20, "{sent} bytes were taken");
    assert!(answer.status == 413 || answer.status == 0, "{}", answer.text);
    // The chunked body is invalid. The server must answer 400, and not that the body is too large.
    let mut stream = server.connect();
    write!(stream, "{start}not a chunk\r\n\r\n").unwrap();
    let answer = Answer::read(stream);
    assert_eq!(answer.status, 400, "{}", answer.text);
    // The server must not read the body of a client without a token.
    let stranger =
        format!("POST /mcp HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", server.address);
    let (sent, answer) = endless(server.connect(), &stranger, &chunk, 256 << 20);
    assert!(
        sent < 16 << 20 && (answer.status == 401 || answer.status == 0),
        "{sent} bytes were taken: {}",
        answer.text
    );
    // The headers do not end: one long header, or many short ones.
    for piece in [b"x".repeat(4096), b"a: b\r\n".repeat(100)] {
        let (sent, answer) =
            endless(server.connect(), &format!("POST /mcp HTTP/1.1\r\n{head}X-Long: "), &piece, 256 << 20);
        assert!(sent < 16 << 20, "{sent} bytes were taken");
        assert!(answer.status == 431 || answer.status == 0, "{}", answer.text);
    }
    let many: String = (0..80).map(|number| format!("X-{number}: 1\r\n")).collect();
    let mut stream = server.connect();
    write!(stream, "POST /mcp HTTP/1.1\r\n{head}{many}Content-Length: 0\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert_eq!(Answer::read(stream).status, 431);
    assert!(server.is_there());
    let peak = peak_memory(server.id());
    assert!(peak > 1000 && peak < 160 << 10, "{peak} KiB");
    serves(&server);
}

#[test]
fn garbage_does_not_end_the_http_server() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let mut server = Served::start(&environment, "", &gemini, &[]);
    let noise: Vec<u8> =
        (0..5000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let pieces: [&[u8]; 7] = [
        &noise,
        b"\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
    ];
    for bytes in pieces {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = Answer::read(stream);
        assert!(answer.status == 0 || (400..500).contains(&answer.status), "{bytes:?}: {}", answer.text);
    }
    // The request has two lengths or an invalid one, and another request in place of its body.
    let head: String = server.headers().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    for lengths in [
        "Content-Length: 5\r\nContent-Length: 50",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: -1",
    ] {
        let mut stream = server.connect();
        write!(stream, "POST /mcp HTTP/1.1\r\n{head}{lengths}\r\nConnection: close\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n").unwrap();
        let answer = Answer::read(stream);
        assert!(answer.status != 200 && !answer.text.contains("serverInfo"), "{lengths}: {}", answer.text);
    }
    let session = server.session();
    let deep = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{}1{}}}",
        "[".repeat(50_000),
        "]".repeat(50_000)
    );
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\u{0}",
        "{\"jsonrpc\": \"2.0\"}",
        "[[[[",
        &deep,
        "{\"jsonrpc\":\"1.0\",\"id\":{},\"method\":7}",
    ] {
        for id in [None, Some(session.as_str()), Some("nobody"), Some("../../etc")] {
            let changed = headers(&server, &[("Mcp-Session-Id", id)]);
            let answer = server.request("POST", "/mcp", &changed, body.as_bytes());
            assert!((400..500).contains(&answer.status), "{body:.40}: {}", answer.text);
        }
    }
    for method in ["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECTION"] {
        assert!(
            (400..500).contains(&server.request(method, "/mcp", &server.headers(), b"").status),
            "{method}"
        );
    }
    assert!(server.is_there());
    serves(&server);
}

#[test]
fn number_of_http_sessions_is_limited() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let server = Served::start(&environment, "", &gemini, &[]);
    let first = server.session();
    let statuses: Vec<u16> = (0..1000).map(|_| server.post(None, &hello()).status).collect();
    let opened = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(opened, 63, "{statuses:?}");
    assert!(statuses[opened..].iter().all(|status| *status == 503), "{statuses:?}");
    let answer = server.post(None, &hello());
    assert!(answer.text.contains("sessions") && answer.header("retry-after").is_some(), "{}", answer.text);
    // A client that has a session must be served, and a client that ends its session must make room for another one.
    assert_eq!(server.uses(&first, "guard_check", &json!({ "command": ["ls"] }))["decision"], "allow");
    let mut goodbye = server.headers();
    goodbye.push(("Mcp-Session-Id".to_string(), first));
    assert_eq!(server.request("DELETE", "/mcp", &goodbye, b"").status, 202);
    serves(&server);
}

/// Returns true if the server closes the connection within this time.
fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
            }
        }
    }
}

#[test]
fn slow_clients_do_not_block_others() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let server = Served::start(&environment, "", &gemini, &[]);
    let head: String = server.headers().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let session = server.session();
    // These two clients connect first, because the many slow ones below take all connections that the server accepts.
    let (mut half, mut deaf) = (server.connect(), server.connect());
    write!(half, "POST /mcp HTTP/1.1\r\n{head}Content-Length: 100\r\n\r\n{{").unwrap();
    let list = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list" }).to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\n{head}Mcp-Session-Id: {session}\r\nContent-Length: {}\r\n\r\n{list}",
        list.len()
    );
    deaf.write_all(request.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    std::thread::scope(|scope| {
        // A client with a token never sends the rest of its body.
        scope.spawn(|| {
            let answer = Answer::read(half);
            assert!(answer.status == 408 && began.elapsed() < Duration::from_secs(50), "{}", answer.text);
        });
        // A client with a token sends requests without end, and never reads a response.
        scope.spawn(|| {
            deaf.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            loop {
                let wrote = deaf.write(request.as_bytes());
                let is_full = wrote.as_ref().is_err_and(|error| {
                    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
                });
                if wrote.is_err() && !is_full {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(120), "it is never closed");
                if is_full {
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
        });
        // Many clients without a token send one byte at a time. They open more connections than the server accepts.
        scope.spawn(|| {
            let mut slow: Vec<TcpStream> = (0..140).map(|_| server.connect()).collect();
            let line = format!("POST /mcp HTTP/1.1\r\nHost: {}\r\nX-Slow: ", server.address);
            let mut bytes = line.bytes().chain(std::iter::repeat(b'x'));
            let mut is_served = false;
            while began.elapsed() < Duration::from_secs(14) {
                let byte = [bytes.next().unwrap()];
                for stream in &mut slow {
                    let _ = stream.write(&byte);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            for stream in &mut slow {
                assert!(
                    is_closed(stream, Duration::from_secs(3)),
                    "a stranger is still there after {:?}",
                    began.elapsed()
                );
            }
            while !is_served && began.elapsed() < Duration::from_secs(40) {
                is_served = server.post(None, &hello()).status == 200;
            }
            assert!(is_served, "nobody else is served");
        });
    });
    serves(&server);
}

#[test]
fn directories_outside_the_roots_are_refused() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::shell("cat marker"), Turn::text("Done.")]);
    environment.run_outside("mkdir -p outside/inner project/inside project/later && echo inside-marker > project/inside/marker && echo outside-marker > outside/marker");
    let root = environment.directory.parent().unwrap().to_path_buf();
    symlink(root.join("outside"), environment.directory.join("out")).unwrap();
    symlink("inside", environment.directory.join("in")).unwrap();
    symlink(&environment.directory, root.join("door")).unwrap();
    // The user gives the allowed root directory as a link.
    let link = root.join("door");
    let server =
        Served::start(&environment, &api.server.url(""), &gemini, &["--root", link.to_str().unwrap()]);
    let session = server.session();
    let ask = |cd: &str| {
        let ask = json!({ "PROMPT": "hello", "cd": cd, "sandbox": "read-only", "model": "gemini-2.5-flash", "max_retries": 0 });
        server.uses(&session, "gemini", &ask)
    };
    let refused = |path: &str| {
        let answer = ask(path);
        assert_eq!(
            (&answer["success"], &answer["error_kind"]),
            (&json!(false), &json!("invalid_input")),
            "{path}: {answer:#}"
        );
        assert!(answer["error"].as_str().is_some_and(|error| error.contains("`cd`")), "{path}: {answer:#}");
        assert_eq!(answer["run_id"], "", "nothing was run: {answer:#}");
    };
    let folder = environment.directory.to_str().unwrap();
    for path in ["/", "/etc", "/proc/self/root", "/dev/fd/0", "..", "", "~", "inside", "file:///etc"] {
        refused(path);
    }
    for path in [
        "out",
        "out/inner",
        "..",
        "../outside",
        "inside/../../outside",
        "in/../../../..",
        "tracked",
        "nothing",
        "inside/\u{0}",
        "\u{fffd}",
    ] {
        refused(&format!("{folder}/{path}"));
    }
    refused(&format!("{folder}-not"));
    refused(&format!("{folder}/{}", "x/".repeat(5000)));
    // A link inside the root leads to another directory inside it. guard must resolve the link once and work in the
    // target: a run refuses a link as its directory, and the link could be changed later.
    let answer = ask(&format!("{folder}/in"));
    assert_eq!(answer["result"], "Done.", "{answer:#}");
    assert!(format!("{:?}", api.tool_results()).contains("inside-marker"), "{:?}", api.tool_results());
    // A conversation must not continue in a directory that has been replaced by a link.
    std::fs::rename(environment.directory.join("inside"), environment.directory.join("moved")).unwrap();
    symlink(root.join("outside"), environment.directory.join("inside")).unwrap();
    refused(&format!("{folder}/inside"));
    let next = json!({ "PROMPT": "go on", "cd": format!("{folder}/moved"), "sandbox": "read-only", "SESSION_ID": answer["SESSION_ID"] });
    assert_eq!(server.uses(&session, "gemini", &next)["error_kind"], "session_lost");
    // The test makes the link to the root lead elsewhere, then renames the root, and then puts a link in its place.
    // guard must refuse the directory each time.
    std::fs::remove_file(&link).unwrap();
    symlink("/etc", &link).unwrap();
    refused(link.to_str().unwrap());
    std::fs::rename(&environment.directory, root.join("elsewhere")).unwrap();
    refused(folder);
    symlink("/etc", &environment.directory).unwrap();
    refused(folder);
    refused(&format!("{folder}/ssl"));
    std::fs::remove_file(&environment.directory).unwrap();
    assert!(!format!("{:?}", api.server.requests()).contains("outside-marker"));
    let listed: Value = server.uses(&session, "guard_report", &json!({}));
    assert_eq!(listed["calls"].as_array().map(Vec::len), Some(2), "refused ones are no calls: {listed:#}");
    wait_until("the server is there", || server.post(None, &hello()).status == 200);
}
