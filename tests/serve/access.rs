//! Tests which clients may use the server, and which directories a task may name.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::{Served, echo, expect_error, shell};
use crate::support::{guard_program, is_root, one_environment};

#[test]
fn requests_without_the_token_are_refused() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let mode = server.token_file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(server.token_file.ends_with("guard/serve-token"));
    let (_, bearer) = server.headers.last().unwrap();
    let token = bearer.strip_prefix("Bearer ").unwrap();
    for wrong in
        ["", "Bearer", "Bearer ", "Bearer x", &format!("Basic {token}"), &format!("Bearer {token}x"), token]
    {
        let answer = server.with("Authorization", wrong).get("/v1/batches");
        expect_error(&answer, 401, "unauthorized");
        assert!(answer.header("www-authenticate").is_some());
    }
    let stranger = server.without("Authorization");
    for target in
        ["/v1/batches", "/v1/task-types", "/", "/v1/openapi.json/", "/healthz/x", "/v1/batches/x/events"]
    {
        expect_error(&stranger.get(target), 401, "unauthorized");
    }
    expect_error(&stranger.get(&format!("/v1/batches?token={token}")), 401, "unauthorized");
    expect_error(&stranger.post("/v1/batches", &json!([echo("a")])), 401, "unauthorized");
    // The server must refuse a request with two tokens.
    let mut two = server.client.clone();
    two.headers.push(two.headers.last().unwrap().clone());
    expect_error(&two.get("/v1/batches"), 401, "unauthorized");
    assert_eq!(server.with("Authorization", &format!("bearer {token}")).get("/v1/batches").status, 200);
    // The next server process must have the same token.
    let token = token.to_string();
    drop(server);
    let server = Served::start(&environment, &["--no-worker"]);
    assert_eq!(server.headers.last().unwrap().1, format!("Bearer {token}"));
}

#[test]
fn requests_of_web_pages_and_other_host_names_are_refused() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let own = server.headers[0].1.clone();
    let port = own.rsplit(':').next().unwrap();
    for host in [
        "evil.example",
        "localhost",
        "127.0.0.1",
        "",
        &format!("evil.example:{port}"),
        &format!("127.0.0.2:{port}"),
    ] {
        for target in ["/v1/batches", "/healthz", "/v1/openapi.json"] {
            expect_error(&server.with("Host", host).get(target), 403, "forbidden");
        }
    }
    assert_eq!(server.with("Host", &format!("localhost:{port}")).get("/v1/batches").status, 200);
    for origin in ["http://evil.example", "null", "", "https://127.0.0.1", &format!("https://{own}")] {
        expect_error(&server.with("Origin", origin).get("/v1/batches"), 403, "forbidden");
        expect_error(
            &server.with("Origin", origin).without("Authorization").get("/healthz"),
            403,
            "forbidden",
        );
    }
    assert_eq!(server.with("Origin", &format!("http://{own}")).get("/v1/batches").status, 200);
    let elsewhere = server.get("http://evil.example/v1/batches");
    expect_error(&elsewhere, 403, "forbidden");
    assert_eq!(server.request("OPTIONS", "/v1/batches", b"").header("access-control-allow-origin"), None);
}

#[test]
fn tasks_are_accepted_only_below_the_roots() {
    let environment = one_environment();
    let root = environment.directory.display().to_string();
    // Each directory is a repository of its own, because a command that may write works on a branch of the repository
    // that contains its directory.
    environment.run_outside(&format!(
        "mkdir -p {root}/inner && touch {root}/inner/here && ln -s /etc {root}/out && git init -q -b main other \
         && mkdir other/place && touch other/place/there && for at in {root} other; do git -C $at add . \
         && git -C $at -c user.name=n -c user.email=e commit -qm more; done"
    ));
    let other = environment.directory.parent().unwrap().join("other").display().to_string();
    let server = Served::start(&environment, &["--root", &root, "--root", &other]);
    let submit = |query: &str, directory: &str| {
        let mut task = shell("ls", "ls");
        if !directory.is_empty() {
            task["directory"] = json!(directory);
        }
        server.post(&format!("/v1/batches{query}"), &json!([task]))
    };
    for (query, directory, expected) in [
        ("", "", "tracked"),
        ("", "inner", "here"),
        ("", &format!("{other}/place"), "there"),
        (&format!("?directory={other}"), "place", "there"),
        (&format!("?directory={root}/inner/.."), "./inner", "here"),
    ] {
        let answer = submit(query, directory);
        assert_eq!(answer.status, 202, "{query} {directory}: {}", answer.text());
        let response = server.ended(answer.json()["response_id"].as_str().unwrap());
        let printed = response["results"][0]["output"]["stdout"].as_str().unwrap_or_default();
        assert!(printed.lines().any(|line| line == expected), "{query} {directory}: {response:#}");
    }
    for directory in
        ["/", "/etc", "out", "out/ssl", "..", "../..", "inner/../../other-place", "none", "tracked"]
    {
        let answer = submit("", directory);
        expect_error(&answer, 422, "invalid_submission");
        let problem = answer.json()["problems"][0].as_str().unwrap().to_string();
        assert!(problem.contains("`directory` must be a directory in"), "{problem}");
    }
    for directory in ["/etc", "inner", "", "/none", &format!("{root}/out")] {
        expect_error(&submit(&format!("?directory={directory}"), ""), 400, "bad_request");
    }
}

#[test]
fn unix_socket_needs_no_token_and_serves_only_its_user() {
    let environment = one_environment();
    let path = environment.temporary_directory().join("guard.sock");
    let mut server = Served::start(&environment, &["--socket", path.to_str().unwrap()]);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let id = server.submit(&json!([echo("a")]));
    assert_eq!(server.ended(&id)["results"][0]["output"], json!({ "text": "a" }));
    assert_eq!(server.with("Host", "anything").get("/v1/batches").status, 200);
    expect_error(&server.with("Origin", "http://localhost").get("/v1/batches"), 403, "forbidden");
    if is_root() {
        // The mode of the socket file lets another user connect. The server must refuse that user.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let mut curl = std::process::Command::new("setpriv");
        curl.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "curl",
            "-sS",
            "-m",
            "10",
            "--unix-socket",
        ]);
        let output = curl.arg(&path).arg("http://localhost/healthz").output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    let mut second = environment.command(guard_program());
    second.args(["serve", "--socket"]).arg(&path);
    let outcome = environment.run_to_end(second, b"");
    assert!(outcome.code == 2 && outcome.error.contains("another server is already listening"), "{outcome}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(Duration::from_secs(30)), Some(0));
    assert!(!path.exists());
}

#[test]
fn tasks_cannot_reach_the_server_that_runs_them() {
    let environment = one_environment();
    let path = environment.directory.join("guard.sock");
    let socket = Served::start(&environment, &["--socket", path.to_str().unwrap()]);
    let loopback = Served::start(&environment, &["--no-worker"]);
    let port = &loopback.headers[0].1;
    let (_, bearer) = loopback.headers.last().unwrap();
    let id = socket.submit(&json!([
        shell("socket", &format!("curl -sS -m 5 --unix-socket {} http://localhost/healthz", path.display())),
        shell("loopback", &format!("curl -sS -m 5 -H 'Authorization: {bearer}' http://{port}/healthz")),
        shell("token", &format!("cat {}", loopback.token_file.display())),
    ]));
    let response = socket.ended(&id);
    for result in response["results"].as_array().unwrap() {
        let output = &result["output"];
        assert!(output["exit_code"].as_i64() > Some(0) && output["stdout"] == "", "{result:#}");
    }
}

#[test]
fn server_refuses_other_addresses_and_open_token_files() {
    let environment = one_environment();
    let told = |options: &[&str]| {
        let mut command = environment.command(guard_program());
        command.arg("serve").args(options);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 2, "{options:?}: {outcome}");
        outcome.error
    };
    for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:80"] {
        assert!(told(&["--listen", address]).contains("loopback"), "{address}");
    }
    assert!(told(&["--listen", "8732"]).contains("not an address"));
    assert!(told(&["--root", "/none"]).contains("/none"));
    assert!(told(&["--type", "none"]).contains("unknown task type"));
    assert!(told(&["--socket", "s", "--listen", "127.0.0.1:0"]).contains("--listen"));
    assert!(told(&["--socket", "s", "--token-file", "t"]).contains("--token-file"));
    assert!(told(&["--no-worker", "--concurrency", "2"]).contains("--concurrency"));
    assert!(told(&["--socket", "tracked"]).contains("not a socket"));
    let file = environment.temporary_directory().join("token");
    let path = file.to_str().unwrap();
    let secret = "0123456789abcdef0123456789abcdef";
    assert!(told(&["--token-file", path]).contains("cannot read the token file"));
    environment.run_outside(&format!("umask 022; printf %s {secret} > {path}"));
    assert!(told(&["--token-file", path]).contains("other users can access"));
    environment.run_outside(&format!("chmod 600 {path}"));
    let server = Served::start(&environment, &["--token-file", path, "--no-worker"]);
    assert_eq!(server.with("Authorization", &format!("Bearer {secret}")).get("/v1/batches").status, 200);
}
