// slow
//! Tests how much of the server's resources one client, or many, can use.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Served, echo, echoes, expect_error};
use crate::support::http_client::{HttpAddress, HttpAnswer};
use crate::support::{one_environment, peak_memory, wait_until};

fn address(server: &Served) -> &str {
    match &server.address {
        HttpAddress::Loopback(address) => address,
        HttpAddress::Socket(_) => "",
    }
}

#[test]
fn large_bodies_are_refused_before_they_are_read() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    // The announced length alone must be enough to refuse the request.
    let mut stream = server.connect();
    let mut head =
        "POST /v1/batches HTTP/1.1\r\nContent-Length: 67108865\r\nContent-Type: application/json\r\n"
            .to_string();
    for (name, value) in &server.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    expect_error(&HttpAnswer::read(stream), 413, "too_large");
    // A chunked body does not announce its length, so the server must stop reading at the limit.
    let mut stream = server.connect();
    let head = head.replace("Content-Length: 67108865", "Transfer-Encoding: chunked");
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let chunk = vec![b' '; 1 << 20];
    for _ in 0..66 {
        let sent = write!(stream, "{:x}\r\n", chunk.len())
            .and_then(|()| stream.write_all(&chunk))
            .and_then(|()| stream.write_all(b"\r\n"));
        if sent.is_err() {
            break;
        }
    }
    let answer = HttpAnswer::read(stream);
    assert!([413, 0].contains(&answer.status), "{}", answer.text());
    assert_eq!(server.get("/healthz").status, 200);
}

/// Each number takes two bytes of the body, and 32 bytes of memory when it is parsed.
#[test]
fn memory_does_not_grow_with_the_number_of_json_values() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let before = peak_memory(server.child.id());
    let numbers = "0,".repeat(30 << 20);
    let task =
        |numbers: &str| format!(r#"{{"task_id":"a","type":"echo","parameters":{{"x":[{numbers}0]}}}}"#);
    for body in [format!("[{numbers}0]"), numbers.clone(), format!("[{}]", task(&numbers)), task(&numbers)] {
        let answer = HttpAnswer::read(server.send("POST", "/v1/batches", body.as_bytes()));
        expect_error(&answer, 413, "too_large");
        assert!(answer.text().contains("more than 2000000 JSON values"), "{}", answer.text());
    }
    let body = format!("[{}]", task(&numbers[..1_000_000]));
    let accepted = HttpAnswer::read(server.send("POST", "/v1/batches", body.as_bytes()));
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let grown = peak_memory(server.child.id()).saturating_sub(before);
    assert!(grown < 256 << 10, "{grown} KiB more after bodies of 60 MiB");
}

#[test]
fn request_headers_are_limited() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    assert_eq!(server.with("X-Long", &"x".repeat(40_000)).get("/v1/batches").status, 431);
    let mut many = server.client.clone();
    many.headers.extend((0..100).map(|number| (format!("X-{number}"), "x".to_string())));
    assert_eq!(many.get("/v1/batches").status, 431);
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn clients_without_a_token_are_disconnected_in_time() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let mut silent = TcpStream::connect(address(&server)).unwrap();
    let mut chatty = TcpStream::connect(address(&server)).unwrap();
    let started = Instant::now();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let host = address(&server).to_string();
    let chat = std::thread::spawn(move || {
        while started.elapsed() < Duration::from_secs(60) {
            if write!(chatty, "GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").is_err() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        false
    });
    assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0);
    let took = started.elapsed();
    assert!(took > Duration::from_secs(8) && took < Duration::from_secs(30), "{took:?}");
    assert!(chat.join().unwrap(), "asking for what needs no token keeps no connection");
}

#[test]
fn connections_and_waiting_requests_are_limited() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server.submit(&echoes(1));
    let mut waiting: Vec<_> =
        (0..64).map(|_| server.send("GET", &format!("/v1/batches/{id}?wait=60"), b"")).collect();
    wait_until("all wait", || {
        // The request with `wait=1` in the previous iteration may have taken the place of one of the waiting requests,
        // which the server then refused. So send one more waiting request.
        waiting.push(server.send("GET", &format!("/v1/batches/{id}?wait=60"), b""));
        server.get(&format!("/v1/batches/{id}?wait=1")).status == 503
    });
    for target in ["?wait=60", "/events", "/results", "/tasks/t0?wait=60"] {
        let answer = server.get(&format!("/v1/batches/{id}{target}"));
        expect_error(&answer, 503, "overloaded");
        assert_eq!(answer.header("retry-after").as_deref(), Some("1"));
    }
    assert_eq!(server.get(&format!("/v1/batches/{id}")).status, 200, "a poll that does not wait is answered");
    // When clients disconnect, the server must accept others.
    waiting.truncate(10);
    wait_until("there is room", || server.get(&format!("/v1/batches/{id}?wait=1")).status == 200);
    let idle: Vec<TcpStream> = (0..256).map(|_| TcpStream::connect(address(&server)).unwrap()).collect();
    wait_until("the server is full", || server.get("/healthz").status == 0);
    drop((idle, waiting));
    wait_until("the server has room", || server.get("/healthz").status == 200);
}

#[test]
fn memory_does_not_grow_with_the_size_of_results() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let text = "x".repeat(1 << 20);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let tasks: serde_json::Value = (0..48)
            .map(|number| {
                let mut task = echo(&format!("t{number}"));
                task["parameters"]["text"] = text.clone().into();
                task
            })
            .collect();
        ids.push(server.submit(&tasks));
    }
    super::work(&environment);
    let server_memory = || peak_memory(server.child.id());
    let before = server_memory();
    for id in &ids {
        let lines = server.get(&format!("/v1/batches/{id}/results"));
        assert!(lines.is_whole && lines.body.len() > 48 << 20);
        let response = server.get(&format!("/v1/batches/{id}"));
        assert!(response.is_whole && response.json()["results"].as_array().map(Vec::len) == Some(48));
        let mut reader = server.events(&format!("/v1/batches/{id}/events"));
        assert_eq!(std::iter::from_fn(|| reader.message()).count(), 49);
    }
    let grown = server_memory().saturating_sub(before);
    assert!(grown < 60 << 10, "{grown} KiB more after reading 288 MiB of results");
}

#[test]
fn disconnected_clients_leave_no_connection_or_memory() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server.submit(&echoes(2000));
    for _ in 0..3 {
        let gone: Vec<_> = (0..60)
            .map(|number| match number % 3 {
                0 => server.send("GET", &format!("/v1/batches/{id}/events"), b""),
                1 => server.send("GET", &format!("/v1/batches/{id}?wait=60"), b""),
                _ => server.send("GET", &format!("/v1/batches/{id}/results"), b""),
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        drop(gone);
    }
    wait_until("all permits are back", || {
        let all: Vec<_> =
            (0..64).map(|_| server.send("GET", &format!("/v1/batches/{id}?wait=2"), b"")).collect();
        all.into_iter().all(|stream| HttpAnswer::read(stream).status == 200)
    });
}
