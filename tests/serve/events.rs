//! Server-sent events must report the end of every task exactly once and in order, also to a client that reconnects.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Served, echo, echoes, expect_error, work};
use crate::support::http_client::Event;
use crate::support::one_environment;

#[test]
fn event_stream_reports_each_ended_task_and_then_the_batch() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server
        .submit(&json!([echo("a"), { "task_id": "b", "type": "nothing", "parameters": {} }, echo("c")]));
    let mut reader = server.events(&format!("/v1/batches/{id}/events"));
    work(&environment);
    let mut seen = Vec::new();
    while let Some(message) = reader.message() {
        seen.push(message);
    }
    let ids: Vec<&str> = seen.iter().map(|(id, _, _)| id.as_str()).collect();
    assert_eq!(ids, ["1", "2", "3", "3-end"]);
    let mut types: Vec<&str> = seen.iter().map(|(_, event, _)| event.as_str()).collect();
    assert_eq!(types.pop(), Some("batch.completed"));
    types.sort_unstable();
    assert_eq!(types, ["task.completed", "task.completed", "task.failed"]);
    for (_, event, data) in &seen {
        assert_eq!(&data["event_type"], event);
        assert!(
            data["message"].is_string() && data["timestamp"].as_str().is_some_and(|time| time.ends_with('Z'))
        );
    }
    let failed = seen.iter().find(|(_, event, _)| event == "task.failed").unwrap();
    assert_eq!(
        (&failed.2["data"]["task_id"], &failed.2["data"]["error_kind"]),
        (&json!("b"), &json!("unknown_type"))
    );
    assert_eq!(seen[3].2["data"]["counts"]["failed"], 1);
    // A second reader must get all events again, and the same ones.
    let again: Vec<_> = {
        let mut reader = server.events(&format!("/v1/batches/{id}/events"));
        std::iter::from_fn(|| reader.message()).collect()
    };
    assert_eq!(again, seen);
}

#[test]
fn event_stream_continues_for_a_returning_client() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let target = format!("/v1/batches/{}/events", server.submit(&echoes(100)));
    let mut reader = server.events(&target);
    work(&environment);
    let first: Vec<_> = std::iter::from_fn(|| reader.message()).take(40).collect();
    drop(reader);
    let (last, _, _) = first.last().unwrap();
    let mut reader = server.with("Last-Event-ID", last).events(&target);
    let rest: Vec<_> = std::iter::from_fn(|| reader.message()).collect();
    let numbers: Vec<String> = first.iter().chain(&rest).map(|(id, _, _)| id.clone()).collect();
    let mut expected: Vec<String> = (1..=100).map(|number| number.to_string()).collect();
    expected.push("100-end".to_string());
    assert_eq!(numbers, expected);
    let mut tasks: Vec<&Value> =
        first.iter().chain(&rest).map(|(_, _, event)| &event["data"]["task_id"]).collect();
    tasks.pop();
    tasks.sort_by_key(|id| id.as_str());
    tasks.dedup();
    assert_eq!(tasks.len(), 100);
    let seen_all = server.with("Last-Event-ID", "100-end");
    assert_eq!(seen_all.get(&target).status, 204);
    for wrong in ["x", "-1", "1.5"] {
        expect_error(&server.with("Last-Event-ID", wrong).get(&target), 400, "bad_request");
    }
}

#[test]
fn retried_tasks_end_in_new_events() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server.submit(&echoes(2));
    server.request("DELETE", &format!("/v1/batches/{id}"), b"");
    let target = format!("/v1/batches/{id}/events");
    let mut reader = server.events(&target);
    let failed: Vec<_> = std::iter::from_fn(|| reader.message()).map(|(id, event, _)| (id, event)).collect();
    assert_eq!(failed[2], ("2-end".to_string(), "batch.failed".to_string()));
    server.request("POST", &format!("/v1/batches/{id}/retry-failed"), b"");
    let mut reader = server.with("Last-Event-ID", "2-end").events(&target);
    work(&environment);
    let ended: Vec<_> = std::iter::from_fn(|| reader.message()).map(|(id, event, _)| (id, event)).collect();
    let expected = [("3", "task.completed"), ("4", "task.completed"), ("4-end", "batch.completed")];
    assert_eq!(ended, expected.map(|(id, event)| (id.to_string(), event.to_string())));
}

// slow
#[test]
fn quiet_event_stream_is_kept_alive() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server.submit(&echoes(1));
    let mut reader = server.events(&format!("/v1/batches/{id}/events"));
    let started = Instant::now();
    assert_eq!(reader.next(), Some(Event::Comment("heartbeat".to_string())));
    let took = started.elapsed();
    assert!(took > Duration::from_secs(10) && took < Duration::from_secs(40), "{took:?}");
}
