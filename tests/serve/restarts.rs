// slow
//! The server ends by a signal or by a crash. The queue must keep every task.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Served, echoes, shell};
use crate::support::{expect_no_process_left, one_environment, unique_mark, wait_until};

#[test]
fn killed_server_loses_no_task() {
    let environment = one_environment();
    let mut server = Served::start(&environment, &["--concurrency", "2"]);
    let mut tasks: Vec<Value> =
        (0..6).map(|number| shell(&format!("s{number}"), "sleep 1; echo done")).collect();
    tasks.extend(echoes(200).as_array().unwrap().iter().cloned());
    let keyed = server.with("Idempotency-Key", "once");
    let id = keyed.post("/v1/batches", &json!(tasks)).json()["response_id"].as_str().unwrap().to_string();
    wait_until("some tasks have ended and some have not", || {
        let counts = server.get(&format!("/v1/batches/{id}?summary=true")).json()["counts"].clone();
        counts["completed"].as_u64() > Some(0) && counts["pending"].as_u64() > Some(0)
    });
    let seen = server.get(&format!("/v1/batches/{id}")).json();
    server.signal(Signal::SIGKILL);
    let _ = server.child.wait();
    let server = Served::start(&environment, &["--concurrency", "2"]);
    // The client does not know whether its submission arrived, and sends it again. It must get the same batch.
    let again = server.with("Idempotency-Key", "once").post("/v1/batches", &json!(tasks));
    assert_eq!(again.json()["response_id"], id.as_str());
    let response = server.ended(&id);
    assert_eq!(response["counts"]["completed"], 206, "{}", response["counts"]);
    for (before, after) in
        seen["results"].as_array().unwrap().iter().zip(response["results"].as_array().unwrap())
    {
        assert!(before["status"] == "pending" || before == after, "{before:#} {after:#}");
    }
    let mut reader = server.events(&format!("/v1/batches/{id}/events"));
    assert_eq!(std::iter::from_fn(|| reader.message()).count(), 207);
}

#[test]
fn stopped_server_ends_requests_and_gives_tasks_back() {
    let environment = one_environment();
    let mark = unique_mark();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = Served::start(&environment, &["--concurrency", "1"]);
        let id = server.submit(&json!([shell("slow", &format!("{mark} sleep 300"))]));
        let (client, target) = (server.client.clone(), format!("/v1/batches/{id}?wait=60"));
        let waiting = std::thread::spawn(move || client.get(&target));
        let mut reader = server.events(&format!("/v1/batches/{id}/events"));
        wait_until("the task runs", || {
            server.get(&format!("/v1/batches/{id}?summary=true")).json()["counts"]["running"] == 1
        });
        std::thread::sleep(Duration::from_millis(500));
        let started = Instant::now();
        server.signal(signal);
        let answer = waiting.join().unwrap();
        assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("pending")), "{}", answer.text());
        assert_eq!(reader.message(), None);
        assert_eq!(server.exit_code(Duration::from_secs(40)), Some(0));
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        expect_no_process_left(&mark, Duration::from_secs(5));
        let server = Served::start(&environment, &["--no-worker"]);
        let response = server.get(&format!("/v1/batches/{id}")).json();
        assert_eq!(
            (&response["status"], &response["counts"]["running"]),
            (&json!("pending"), &json!(0)),
            "{response:#}"
        );
        server.request("DELETE", &format!("/v1/batches/{id}"), b"");
    }
}

#[test]
fn second_signal_ends_the_server_at_once() {
    let environment = one_environment();
    let mut server = Served::start(&environment, &["--concurrency", "1"]);
    let id = server.submit(&json!([shell("slow", "trap '' TERM INT; sleep 300")]));
    wait_until("the task runs", || {
        server.get(&format!("/v1/batches/{id}?summary=true")).json()["counts"]["running"] == 1
    });
    std::thread::sleep(Duration::from_millis(500));
    server.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    server.signal(Signal::SIGTERM);
    let code = server.exit_code(Duration::from_secs(20));
    // The server may have ended by itself before the second signal.
    assert!(code == Some(130) || code == Some(0), "{code:?}");
    assert!(code == Some(0) || started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn two_servers_share_a_queue() {
    let environment = one_environment();
    let one = Served::start(&environment, &["--no-worker"]);
    let other = Served::start(&environment, &["--concurrency", "2"]);
    let id = one.submit(&echoes(300));
    assert_eq!(one.ended(&id)["counts"]["completed"], 300);
    assert_eq!(other.get(&format!("/v1/batches/{id}?summary=true")).json()["status"], "completed");
}
