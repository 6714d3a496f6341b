//! Tests every request that a client can send, and its response.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Served, echo, echoes, expect_error, shell, work};
use crate::support::{guard_program, one_environment, wait_until};

#[test]
fn batch_is_submitted_polled_and_read() {
    let environment = one_environment();
    let server = Served::start(&environment, &[]);
    let tasks = json!([echo("a"), { "task_id": "b", "type": "nothing", "parameters": {} }, echo("c/ä b")]);
    let answer = server.post("/v1/batches", &tasks);
    assert_eq!(answer.status, 202, "{}", answer.text());
    let first = answer.json();
    let id = first["response_id"].as_str().unwrap();
    assert_eq!(first["results"].as_array().map(Vec::len), Some(3), "{first:#}");
    assert!(first["next_poll_interval_seconds"].is_u64());

    let last = server.ended(id);
    assert_eq!((&last["status"], &last["next_poll_interval_seconds"]), (&json!("completed"), &json!(0)));
    assert_eq!(
        last["counts"],
        json!({ "total": 3, "pending": 0, "running": 0, "completed": 2, "failed": 1 })
    );
    assert_eq!(last["results"][0]["output"], json!({ "text": "a" }));
    assert_eq!(last["results"][1]["error_kind"], "unknown_type");
    let _: guard::work::batch::BatchResponse = serde_json::from_value(last.clone()).unwrap();

    let one = server.get(&format!("/v1/batches/{id}/tasks/c%2F%C3%A4%20b?wait=5")).json();
    assert_eq!(one, last["results"][2]);
    let lines = server.get(&format!("/v1/batches/{id}/results"));
    assert_eq!(lines.header("content-type").as_deref(), Some("application/x-ndjson"));
    assert_eq!(json!(lines.json_lines()), last["results"]);
    let listed = server.get("/v1/batches").json();
    assert_eq!(listed["batches"][0]["response_id"], id);
    assert_eq!(listed["batches"][0]["counts"], last["counts"]);
    let head = server.request("HEAD", &format!("/v1/batches/{id}"), b"");
    assert!(head.status == 200 && head.body.is_empty());
}

#[test]
fn json_lines_are_accepted_as_a_submission() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let lines = format!("{}\n{}\n", echo("a"), echo("b"));
    for kind in ["application/x-ndjson", "application/jsonl", "application/json; charset=utf-8"] {
        let answer = server.with("Content-Type", kind).request("POST", "/v1/batches", lines.as_bytes());
        assert_eq!((answer.status, &answer.json()["counts"]["total"]), (202, &json!(2)), "{kind}");
    }
}

#[test]
fn results_are_returned_in_pages_or_all_at_once() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let submitted = server.post("/v1/batches", &echoes(3000));
    assert!(submitted.is_whole);
    let submitted = submitted.json();
    assert_eq!(submitted["results"].as_array().map(Vec::len), Some(3000));
    let id = submitted["response_id"].as_str().unwrap();
    let poll = |query: &str| server.get(&format!("/v1/batches/{id}{query}")).json();
    let ids = |response: &Value| -> Vec<String> {
        let results = response["results"].as_array().unwrap();
        results.iter().map(|one| one["task_id"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(ids(&poll("")), (0..3000).map(|number| format!("t{number}")).collect::<Vec<_>>());
    let page = poll("?limit=3");
    assert_eq!((ids(&page), &page["next_after"]), (vec!["t0".into(), "t1".into(), "t2".into()], &json!(2)));
    let page = poll("?limit=2&after=2997");
    assert_eq!((ids(&page), page.get("next_after")), (vec!["t2998".into(), "t2999".into()], None));
    let page = poll("?limit=100&after=2999");
    assert_eq!((ids(&page), page.get("next_after")), (vec![], None));
    let summary = poll("?summary=true");
    assert_eq!((ids(&summary), &summary["counts"]["pending"]), (vec![], &json!(3000)));
    assert_eq!(summary.get("next_after"), None);
    assert_eq!(server.get(&format!("/v1/batches/{id}/results")).json_lines().len(), 3000);
}

// slow
#[test]
fn long_poll_ends_with_the_batch_or_its_time_limit() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server.submit(&echoes(5));
    for target in [format!("/v1/batches/{id}?wait=1"), format!("/v1/batches/{id}/tasks/t1?wait=1")] {
        let started = Instant::now();
        let response = server.get(&target).json();
        assert_eq!(response["status"], "pending", "{response:#}");
        let took = started.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
    }
    let client = server.client.clone();
    let target = format!("/v1/batches/{id}?wait=60&summary=true");
    let waiting = std::thread::spawn(move || (client.get(&target).json(), Instant::now()));
    std::thread::sleep(Duration::from_millis(300));
    work(&environment);
    let (response, answered) = waiting.join().unwrap();
    assert_eq!(response["counts"]["completed"], 5, "{response:#}");
    // The worker ends two seconds after the last task, so an answer before that came from the end of the batch.
    assert!(answered < Instant::now(), "the poll ended before the worker");
}

#[test]
fn cancelled_tasks_fail_and_can_be_retried() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let mut dependent = echo("after");
    dependent["depends_on"] = json!(["one"]);
    let id = server.submit(&json!([echo("one"), echo("two"), dependent]));
    let cancel = server.request("DELETE", &format!("/v1/batches/{id}/tasks/one"), b"").json();
    assert_eq!(cancel, json!({ "response_id": id, "cancelled": 2 }));
    let response = server.get(&format!("/v1/batches/{id}")).json();
    assert_eq!(response["results"][0]["error_kind"], "cancelled");
    assert_eq!(response["results"][1]["status"], "pending");
    assert_eq!(response["results"][2]["error_kind"], "dependency_failed");
    assert_eq!(server.request("DELETE", &format!("/v1/batches/{id}"), b"").json()["cancelled"], 1);
    assert_eq!(server.request("DELETE", &format!("/v1/batches/{id}"), b"").json()["cancelled"], 0);
    assert_eq!(server.get(&format!("/v1/batches/{id}")).json()["status"], "failed");
    let retried = server.request("POST", &format!("/v1/batches/{id}/retry-failed"), b"").json();
    assert_eq!(retried, json!({ "response_id": id, "queued": 3 }));
    work(&environment);
    let response = server.ended(&id);
    assert_eq!((&response["status"], &response["counts"]["completed"]), (&json!("completed"), &json!(3)));
}

#[test]
fn cancelled_batch_ends_its_running_command() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--concurrency", "1"]);
    let id = server.submit(&json!([shell("slow", "sleep 300")]));
    wait_until("the task runs", || {
        server.get(&format!("/v1/batches/{id}?summary=true")).json()["counts"]["running"] == 1
    });
    server.request("DELETE", &format!("/v1/batches/{id}"), b"");
    // The cancelled task must have freed the only worker.
    let next = server.submit(&json!([echo("next")]));
    assert_eq!(server.ended(&next)["status"], "completed");
}

#[test]
fn invalid_submission_lists_all_problems_and_queues_nothing() {
    let environment = one_environment();
    let server = Served::start(&environment, &[]);
    let tasks = json!([
        echo("a"),
        echo("a"),
        { "task_id": "b", "type": 7, "parameters": [], "colour": 1 },
        { "task_id": "c", "type": "echo", "parameters": {}, "policy": "./own.toml" },
    ]);
    let answer = server.post("/v1/batches", &tasks);
    expect_error(&answer, 422, "invalid_submission");
    let problems =
        answer.json()["problems"].as_array().unwrap().iter().map(Value::to_string).collect::<String>();
    for expected in ["task 2", "already", "`type`", "`parameters`", "colour", "task 4", "not a file"] {
        assert!(problems.contains(expected), "{expected}: {problems}");
    }
    for (body, problem) in [
        (&b"[1,"[..], "not valid JSON"),
        (b"", "empty"),
        (b"\xff", "not valid JSON"),
        (b"{}", "an object"),
        (b"7", "a number"),
    ] {
        let answer = server.with("Content-Type", "application/json").request("POST", "/v1/batches", body);
        expect_error(&answer, 422, "invalid_submission");
        assert!(
            answer.json()["problems"][0].as_str().is_some_and(|text| text.contains(problem)),
            "{}",
            answer.text()
        );
    }
    let circle = json!([{ "task_id": "a", "type": "echo", "parameters": {}, "depends_on": ["a"] }]);
    expect_error(&server.post("/v1/batches", &circle), 422, "invalid_submission");
    assert_eq!(server.get("/v1/batches").json(), json!({ "batches": [] }));
}

#[test]
fn idempotency_key_queues_tasks_once() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let with_key = server.with("Idempotency-Key", "the first one");
    let first = with_key.post("/v1/batches", &echoes(2));
    let second = with_key.post("/v1/batches", &echoes(2));
    assert_eq!((first.status, second.status), (202, 202));
    assert_eq!(first.json()["response_id"], second.json()["response_id"]);
    expect_error(&with_key.post("/v1/batches", &echoes(3)), 409, "key_reused");
    assert_eq!(server.get("/v1/batches").json()["batches"].as_array().map(Vec::len), Some(1));
    expect_error(&server.with("Idempotency-Key", "").post("/v1/batches", &echoes(1)), 400, "bad_request");
    let long = server.with("Idempotency-Key", &"k".repeat(257));
    expect_error(&long.post("/v1/batches", &echoes(1)), 400, "bad_request");
}

#[test]
fn errors_are_json_with_the_fitting_status() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let id = server.submit(&echoes(1));
    for target in ["/", "/v1", "/v2/batches", "/v1/batches/", "/v1/batches/none/extra", "/v1/batches//events"]
    {
        expect_error(&server.get(target), 404, "not_found");
    }
    for target in [
        "/v1/batches/none",
        "/v1/batches/none?wait=60",
        "/v1/batches/%00",
        "/v1/batches/none/results",
        "/v1/batches/none/events",
        "/v1/batches/none/tasks/t0",
        &format!("/v1/batches/{id}/tasks/none?wait=60"),
        &format!("/v1/batches/{}", "x".repeat(300)),
    ] {
        expect_error(&server.get(target), 404, "not_found");
    }
    expect_error(&server.request("DELETE", "/v1/batches/none", b""), 404, "not_found");
    expect_error(&server.request("DELETE", &format!("/v1/batches/{id}/tasks/none"), b""), 404, "not_found");
    expect_error(&server.request("POST", "/v1/batches/none/retry-failed", b""), 404, "not_found");
    for query in [
        "wait=61",
        "wait=-1",
        "wait=x",
        "wait=",
        "limit=0",
        "limit=100001",
        "after=-2",
        "summary=1",
        "colour=1",
        "wait=1&wait=2",
    ] {
        expect_error(&server.get(&format!("/v1/batches/{id}?{query}")), 400, "bad_request");
    }
    expect_error(&server.get("/v1/batches?limit=1001"), 400, "bad_request");
    expect_error(&server.get("/v1/batches/%ff"), 400, "bad_request");
    expect_error(&server.get("/v1/task-types?x"), 400, "bad_request");
    for (method, target) in [
        ("PUT", "/v1/batches"),
        ("POST", "/healthz"),
        ("GET", "/v1/batches/x/retry-failed"),
        ("TRACE", "/healthz"),
    ] {
        let answer = server.request(method, target, b"");
        expect_error(&answer, 405, "method_not_allowed");
        assert!(answer.header("allow").is_some(), "{method} {target}");
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let answer = server.with("Content-Type", kind).request("POST", "/v1/batches", b"[]");
        expect_error(&answer, 415, "unsupported_media_type");
    }
}

#[test]
fn server_lists_task_types_and_its_openapi_document() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--type", "echo", "--type", "query_coverage"]);
    let types = server.get("/v1/task-types").json();
    let names: Vec<&str> =
        types["types"].as_array().unwrap().iter().map(|one| one["type"].as_str().unwrap()).collect();
    assert_eq!(names, ["echo", "query_coverage"]);
    assert!(types["types"][1]["parameters"]["properties"]["scope"].is_object());
    let refused = server.post("/v1/batches", &json!([echo("a"), shell("b", "ls")]));
    expect_error(&refused, 422, "invalid_submission");
    assert!(refused.json()["problems"][0].as_str().is_some_and(|text| text.contains("task 2")));
    // The health check and the OpenAPI document must work without a token.
    let stranger = server.without("Authorization");
    assert_eq!(stranger.get("/healthz").json(), json!({ "status": "ok" }));
    let document = stranger.get("/v1/openapi.json").json();
    assert_eq!(document, guard::servers::serve::document());
    assert!(document["paths"]["/v1/batches/{id}/events"]["get"]["responses"]["204"].is_object());
}

#[test]
fn unusable_queue_is_service_unavailable() {
    let environment = one_environment();
    let server = Served::start(&environment, &["--no-worker"]);
    let directory = environment.runs_directory().with_file_name("batch");
    let directory = directory.display();
    // The server opens the queue only at the first request, so the test can still replace its file by a directory.
    environment.run_outside(&format!("rm -f {directory}/queue.sqlite* && mkdir {directory}/queue.sqlite"));
    for target in ["/healthz", "/v1/batches", "/v1/batches/x?wait=60", "/v1/batches/x/events"] {
        expect_error(&server.get(target), 503, "unavailable");
    }
    expect_error(&server.post("/v1/batches", &echoes(1)), 503, "unavailable");
    let mut command = environment.command(guard_program());
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    let outcome = environment.run_to_end(command, b"");
    assert!(outcome.code == 2 && outcome.error.contains("cannot open the queue"), "{outcome}");
    environment.run_outside(&format!("rm -rf {directory}/queue.sqlite"));
    assert_eq!(server.get("/healthz").status, 200);
}
