//! A person or a script uses `guard batch`, which starts a worker itself.

use serde_json::{Value, json};

use crate::support::UserShell;

/// The example batch of the documentation, unchanged.
pub(super) const EXAMPLE: &str = r#"[
  {"task_id": "task_123", "type": "query_coverage", "parameters": {"scope": "all", "format": "minizinc_dzn"}},
  {"task_id": "task_124", "type": "propose_test", "parameters": {"target_cpp_file": "lib/parser.cpp",
    "target_line_range": "100-150", "semantic_context": "parsing of MiniZinc variables"}},
  {"task_id": "task_125", "type": "get_memory_summary", "parameters": {"keywords": ["OODA", "oxidation"]}},
  {"task_id": "task_126", "type": "execute_shell_command",
    "parameters": {"command": "ls -la", "description": "List files in current directory"}}
]"#;

const LCOV: &str =
    "SF:lib/parser.cpp\nDA:1,4\nDA:2,0\nDA:3,0\nend_of_record\nSF:src/lib.rs\nDA:1,1\nend_of_record\n";

fn parse(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Submits a batch. Returns the first response.
pub(super) fn submit(user: &UserShell, tasks: &str, options: &str) -> Value {
    std::fs::write(user.home().join("tasks.json"), tasks).unwrap();
    parse(&user.types(&format!("guard batch submit {options} ~/tasks.json")))
}

/// Polls until the batch has ended. Returns the last response.
pub(super) fn poll_to_the_end(user: &UserShell, first: &Value) -> Value {
    let id = first["response_id"].as_str().unwrap();
    for _ in 0..10 {
        let response = parse(&user.types(&format!("guard batch poll {id} --wait 60")));
        if response["status"] != "pending" {
            return response;
        }
    }
    let response = parse(&user.types(&format!("guard batch poll {id}")));
    panic!("the batch {id} does not end: {}", response["counts"]);
}

pub(super) fn result<'r>(response: &'r Value, task: &str) -> &'r Value {
    let results = response["results"].as_array().unwrap();
    results.iter().find(|result| result["task_id"] == task).unwrap_or_else(|| panic!("{task}: {response}"))
}

#[test]
fn example_batch_is_accepted_and_outputs_have_the_documented_shape() {
    let user = UserShell::new("batch-example");
    user.types("mkdir -p lib && echo 'int x;' > lib/parser.cpp && git add . && git commit -qm code");
    std::fs::write(user.project.join("lcov.info"), LCOV).unwrap();
    std::fs::write(user.project.join("AGENT_MEMORY.md"), "# Loop\nThe OODA loop.\n# Other\nnothing\n")
        .unwrap();
    let first = submit(&user, EXAMPLE, "--no-worker");
    assert_eq!(first["status"], "pending");
    assert_eq!(first["next_poll_interval_seconds"], 5);
    assert_eq!(first["results"].as_array().unwrap().len(), 4);
    for task in first["results"].as_array().unwrap() {
        assert_eq!(
            (&task["status"], &task["output"], &task["error"]),
            (&json!("pending"), &json!({}), &Value::Null)
        );
    }
    // No agent is installed here, so the task that needs one fails; the other tasks must complete.
    user.types("guard worker --until-idle");
    let last = poll_to_the_end(&user, &first);
    assert_eq!(last["status"], "completed", "{last}");
    assert_eq!(last["response_id"], first["response_id"]);
    assert_eq!(last["next_poll_interval_seconds"], 0);
    let coverage = result(&last, "task_123")["output"]["coverage_data"].as_str().unwrap();
    assert!(coverage.contains("lib/parser.cpp") && coverage.contains("src/lib.rs"), "{coverage}");
    let memory = result(&last, "task_125")["output"]["memory_summary"].as_str().unwrap();
    assert!(memory.contains("The OODA loop.") && !memory.contains("Other"), "{memory}");
    let listing = &result(&last, "task_126")["output"];
    assert!(listing["stdout"].as_str().unwrap().contains("README.md"), "{listing}");
    assert_eq!((&listing["stderr"], &listing["exit_code"]), (&json!(""), &json!(0)));
    let agent = result(&last, "task_124");
    assert_eq!((&agent["status"], &agent["error_kind"]), (&json!("failed"), &json!("run_failed")), "{agent}");
    assert!(agent["error"].as_str().unwrap().contains("gemini"), "{agent}");
}

#[test]
fn submit_starts_a_worker_that_exits_when_the_queue_is_empty() {
    let user = UserShell::new("batch-worker");
    let tasks: Vec<Value> = (0..20)
        .map(|n| json!({"task_id": format!("t{n}"), "type": "echo", "parameters": {"number": n}}))
        .collect();
    let first = submit(&user, &json!(tasks).to_string(), "");
    let last = poll_to_the_end(&user, &first);
    assert_eq!(
        last["counts"],
        json!({"total": 20, "pending": 0, "running": 0, "completed": 20, "failed": 0})
    );
    assert_eq!(result(&last, "t7")["output"], json!({"number": 7}));
    let id = first["response_id"].as_str().unwrap();
    // guard must print the same results in other output formats.
    assert_eq!(user.types(&format!("guard batch results {id} --jsonl")).lines().count(), 20);
    assert_eq!(parse(&user.types(&format!("guard batch results {id} --json"))).as_array().unwrap().len(), 20);
    user.sees(&format!("guard batch results {id}"), &["TASK", "STATUS", "t19", "completed"]);
    user.sees_with_code(&format!("guard batch watch {id}"), 0, &["20 of 20 tasks ended"]);
    let one = parse(&user.types(&format!("guard batch poll {id} --task t3")));
    assert_eq!(
        one["results"],
        json!([{"task_id": "t3", "status": "completed", "output": {"number": 3}, "error": null, "attempts": 1}])
    );
    let page = parse(&user.types(&format!("guard batch poll {id} --limit 5 --after 9")));
    assert_eq!((page["results"].as_array().unwrap().len(), &page["next_after"]), (5, &json!(14)));
    assert_eq!(parse(&user.types(&format!("guard batch poll {id} --summary")))["results"], json!([]));
    user.sees("guard batch list", &["RESPONSE ID", id, "20"]);
    let list = parse(&user.types("guard batch list --json"));
    assert_eq!((&list[0]["response_id"], &list[0]["status"]), (&json!(id), &json!("completed")));
    // The worker must have ended after the last task.
    user.types("for i in $(seq 100); do flock -n ~/.local/state/guard/batch/worker.lock true && exit 0; sleep 0.1; done; exit 1");
    user.sees("guard batch clean --older-than 0", &["deleted 1 batch"]);
    user.sees_with_code(&format!("guard batch poll {id}"), 2, &["there is no batch", "guard batch list"]);
}

#[test]
fn bad_submissions_queue_nothing_and_name_every_problem() {
    let user = UserShell::new("batch-bad");
    for (text, expected) in [
        ("", "empty"),
        ("no JSON", "not valid JSON"),
        ("{\"tasks\": []}", "must be a JSON array"),
        (
            r#"[{"task_id": "a", "type": "echo", "parameters": {}}, {"task_id": "a", "type": "echo", "parameters": {}}]"#,
            "already the id of task 1",
        ),
        (r#"[{"type": "echo", "parameters": {}}]"#, "`task_id` is missing"),
        (r#"[{"task_id": "a", "type": "echo"}]"#, "`parameters` is missing"),
        (
            r#"[{"task_id": "a", "type": "echo", "parameters": {}, "directory": "no/such"}]"#,
            "is not a directory",
        ),
        (
            r#"[{"task_id": "a", "type": "query_coverage", "parameters": {"scope": 7}}, {"task_id": "b", "type": "echo", "parameters": []}]"#,
            "`parameters` must be an object",
        ),
    ] {
        std::fs::write(user.home().join("bad.json"), text).unwrap();
        let printed = user.sees_with_code(
            "guard batch submit ~/bad.json",
            2,
            &["bad.json", expected, "nothing was queued"],
        );
        assert!(!printed.contains("panicked"), "{printed}");
    }
    // guard must reject wrong parameters of a known task type before it queues anything. A task of an unknown type
    // fails alone.
    user.sees_with_code(
        r#"echo '[{"task_id": "a", "type": "query_coverage", "parameters": {"scope": "java"}},
                  {"task_id": "b", "type": "get_memory_summary", "parameters": {"keywords": "x"}}]' | guard batch submit -"#,
        2,
        &["task \"a\"", "\"java\"", "\"format\" is a required property", "task \"b\""],
    );
    assert_eq!(user.types("guard batch list"), "no batches; `guard batch submit FILE` creates one\n");
    user.sees_with_code("guard batch submit ~/none.json", 2, &["none.json", "No such file"]);
    user.sees_with_code("guard batch poll batch_x", 2, &["there is no batch batch_x"]);
    user.sees_with_code("guard batch list --store mysql://x", 2, &["postgres://"]);
    let first = submit(
        &user,
        r#"[{"task_id": "a", "type": "no_such_type", "parameters": {}}, {"task_id": "b", "type": "echo", "parameters": {}}]"#,
        "",
    );
    let last = poll_to_the_end(&user, &first);
    assert_eq!(result(&last, "a")["error_kind"], "unknown_type");
    assert!(result(&last, "a")["error"].as_str().unwrap().contains("execute_shell_command"), "{last}");
    assert_eq!((&last["status"], &result(&last, "b")["status"]), (&json!("completed"), &json!("completed")));
}

// slow
#[test]
fn commands_run_in_the_sandbox_under_the_policy_of_their_task() {
    let user = UserShell::new("batch-sandbox");
    let command = |id: &str, command: &str| json!({"task_id": id, "type": "execute_shell_command", "parameters": {"command": command}});
    let mut slow = command("slow", "sleep 60");
    slow["timeout"] = json!(1);
    let mut read_only = command("read-only", "echo x > file");
    read_only["policy"] = json!("readonly");
    let tasks = json!([
        command("outside", "echo x > ~/../outside; echo done"),
        command("checkout", "git checkout -b other"),
        command("fails", "echo out; echo err >&2; exit 7"),
        command("works", "echo new > new && git add new && git commit -qm new"),
        slow,
        read_only,
    ]);
    let last = poll_to_the_end(&user, &submit(&user, &tasks.to_string(), ""));
    assert!(!user.home().join("../outside").exists());
    assert_eq!(
        result(&last, "fails")["output"],
        json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 7})
    );
    let branch = result(&last, "works")["output"]["branch"].as_str().unwrap();
    assert_eq!(user.types(&format!("git show {branch}:new")), "new\n");
    assert_ne!(result(&last, "checkout")["output"]["exit_code"], 0, "{last}");
    assert_eq!(user.types("git branch --list other"), "");
    assert_eq!(result(&last, "slow")["error_kind"], "timed_out", "{last}");
    assert_ne!(result(&last, "read-only")["output"]["exit_code"], 0, "{last}");
}

#[test]
fn tasks_with_dependencies_repeats_and_cancellation() {
    let user = UserShell::new("batch-order");
    let echo = |id: &str| json!({"task_id": id, "type": "echo", "parameters": {"id": id}});
    let mut second = echo("second");
    second["depends_on"] = json!(["first"]);
    let mut after_failure = echo("after-failure");
    after_failure["depends_on"] = json!(["unknown"]);
    let unknown = json!({"task_id": "unknown", "type": "no_such_type", "parameters": {}});
    let tasks = json!([second, echo("first"), after_failure, unknown]).to_string();
    let first = submit(&user, &tasks, "--idempotency-key k1");
    let last = poll_to_the_end(&user, &first);
    assert_eq!(result(&last, "second")["status"], "completed");
    assert_eq!(result(&last, "after-failure")["error_kind"], "dependency_failed");
    // The same submission with the same key must return the same batch, and other tasks with this key must be
    // refused.
    assert_eq!(submit(&user, &tasks, "--idempotency-key k1")["response_id"], first["response_id"]);
    user.sees_with_code(
        "echo '[]' | guard batch submit --idempotency-key k1 -",
        2,
        &["belongs to other tasks"],
    );
    let id = first["response_id"].as_str().unwrap();
    assert_eq!(user.types(&format!("guard batch retry-failed {id}")), "queued 2 tasks again\n");
    poll_to_the_end(&user, &first);
    // The user cancels a batch while its task runs. The run and its processes must end.
    let sleep =
        json!([{"task_id": "long", "type": "execute_shell_command", "parameters": {"command": "sleep 300"}}]);
    let first = submit(&user, &sleep.to_string(), "");
    let id = first["response_id"].as_str().unwrap();
    user.types(&format!(
        "until guard batch poll {id} --summary | grep -q '\"running\":1'; do sleep 0.1; done"
    ));
    user.types("for i in $(seq 200); do guard ps | grep -q sleep && exit 0; sleep 0.1; done; exit 1");
    assert_eq!(user.types(&format!("guard batch cancel {id}")), "cancelled 1 task\n");
    let last = poll_to_the_end(&user, &first);
    assert_eq!(
        (&last["status"], &result(&last, "long")["error_kind"]),
        (&json!("failed"), &json!("cancelled"))
    );
    user.types("for i in $(seq 200); do guard ps | grep -q 'no runs' && exit 0; sleep 0.1; done; exit 1");
}

#[test]
fn user_defines_a_task_type_by_a_file() {
    let user = UserShell::new("batch-type");
    user.types("mkdir -p ~/.config/guard/task-types");
    let file = user.home().join(".config/guard/task-types/count_lines.toml");
    std::fs::write(
        &file,
        r#"description = "Counts the lines of a file."
[work]
command = ["sh", "-c", 'lines=$(wc -l < "$1") && printf "{\"lines\": %d}" "$lines"', "-", "{{file}}"]
command_output = "json"
[parameters]
type = "object"
required = ["file"]
[parameters.properties.file]
description = "The path of the file."
type = "string"
[output]
type = "object"
required = ["lines"]
[output.properties.lines]
type = "integer"
"#,
    )
    .unwrap();
    user.sees("guard batch types", &["count_lines", "Counts the lines of a file.", "query_coverage"]);
    let tasks = json!([
        {"task_id": "a", "type": "count_lines", "parameters": {"file": "README.md"}},
        // guard must never parse a parameter's value as part of the command.
        {"task_id": "b", "type": "count_lines", "parameters": {"file": "$(touch /tmp/never); README.md"}},
    ]);
    let last = poll_to_the_end(&user, &submit(&user, &tasks.to_string(), ""));
    assert_eq!(result(&last, "a")["output"], json!({"lines": 1}));
    assert_eq!(result(&last, "b")["status"], "failed");
    std::fs::write(&file, "description = 1").unwrap();
    user.sees_with_code("guard batch types", 2, &["count_lines.toml", "correct the file"]);
}

/// An agent replaces a task's directory by a link between submission and start. The task must fail, and must not work
/// at the target of the link.
#[test]
fn task_fails_if_its_directory_was_replaced_by_a_link() {
    let user = UserShell::new("batch-link");
    user.types("mkdir ~/plain ~/plain/inner ~/private && echo secret > ~/private/file && cp ~/private/file ~/private/AGENT_MEMORY.md");
    let list = |id: &str, directory: &str| json!({"task_id": id, "type": "execute_shell_command", "directory": directory, "parameters": {"command": "cat file"}});
    let home = user.home();
    let inner = home.join("plain/inner").display().to_string();
    // For this task guard reads files itself, without a run.
    let memory = json!({"task_id": "memory", "type": "get_memory_summary", "directory": inner, "parameters": {"keywords": ["secret"]}});
    let first = submit(&user, &json!([list("inner", &inner), memory]).to_string(), "--no-worker");
    user.types("rmdir ~/plain/inner && ln -s ~/private ~/plain/inner && guard worker --until-idle");
    let last = poll_to_the_end(&user, &first);
    for id in ["inner", "memory"] {
        let task = result(&last, id);
        assert_eq!(
            (&task["status"], &task["error_kind"]),
            (&json!("failed"), &json!("missing_input")),
            "{task}"
        );
        assert!(task["error"].as_str().unwrap().contains("since the submission"), "{task}");
    }
    assert!(!last.to_string().contains("secret"), "{last}");
}

/// A user pauses a batch, and a worker finds nothing to do. After `resume` a worker must start by itself and finish
/// the batch. A cancel with a command id that was used before must change nothing.
#[test]
fn batch_is_paused_resumed_and_cancelled_by_commands() {
    let user = UserShell::new("batch-control");
    let tasks = r#"[{"task_id": "1", "type": "echo", "parameters": {}}, {"task_id": "2", "type": "echo", "parameters": {}}]"#;
    let first = submit(&user, tasks, "--no-worker");
    let id = first["response_id"].as_str().unwrap();
    assert_eq!(user.types(&format!("guard control {id} pause")).trim(), "completed");
    user.types("timeout 60 guard worker --until-idle 2> /dev/null");
    user.sees(&format!("guard batch poll {id} --summary"), &["\"pending\":2"]);
    user.sees_with_code(&format!("guard control {id} fly"), 1, &["rejected: unknown command type `fly`"]);
    user.sees_with_code(
        &format!("guard control {id} adjust_config"),
        1,
        &["rejected: the data of `adjust_config` must be {\"priority\": N}"],
    );
    user.types(&format!("guard control {id} adjust_config --data '{{\"priority\": 5}}'"));
    user.types(&format!("guard control {id} resume --command-id r1"));
    let last = poll_to_the_end(&user, &first);
    assert_eq!(last["counts"]["completed"], 2, "{last}");
    let ack = parse(&user.types(&format!("guard control {id} resume --command-id r1 --json")));
    assert_eq!((&ack["status"], &ack["data"]["repeated"]), (&json!("completed"), &json!(true)), "{ack}");
    user.sees_with_code(
        "guard control batch_0 cancel",
        2,
        &["no batch, task, research run or conversation has the id batch_0", "guard batch list"],
    );
    user.sees_with_code(&format!("guard control {id} pause --data '{{'"), 2, &["--data is not JSON"]);
}

/// A server's client may name only directories below its roots. A run above them must not show in the memory of such a
/// directory.
#[test]
fn memory_task_shows_no_runs_outside_its_directory() {
    let user = UserShell::new("batch-memory");
    let marked = |place: &str, mark: &str| {
        user.types(&format!("mkdir -p {place} && cd {place} && guard run -q -- echo {mark}-of-this-run"));
    };
    marked("~/top/work/inner", "inner");
    marked("~/top/work", "work");
    marked("~/top/work-not", "beside");
    marked("~/top", "above");
    let root = user.home().join("top/work").display().to_string();
    let task = json!([{"task_id": "1", "type": "get_memory_summary", "directory": root, "parameters": {"keywords": ["of-this-run"]}}]);
    let last = poll_to_the_end(&user, &submit(&user, &task.to_string(), ""));
    let memory = result(&last, "1")["output"]["memory_summary"].as_str().unwrap().to_string();
    assert!(memory.contains("inner-of") && memory.contains("work-of"), "{memory}");
    assert!(!memory.contains("above-of") && !memory.contains("beside-of"), "{memory}");
    // In a repository, the runs in the whole repository count.
    user.types("guard run -q -- echo repository-of-this-run && mkdir sub");
    let sub = user.project.join("sub").display().to_string();
    let task = json!([{"task_id": "1", "type": "get_memory_summary", "directory": sub, "parameters": {"keywords": ["of-this-run"]}}]);
    let last = poll_to_the_end(&user, &submit(&user, &task.to_string(), ""));
    let memory = result(&last, "1")["output"]["memory_summary"].as_str().unwrap().to_string();
    assert!(memory.contains("repository-of") && !memory.contains("work-of"), "{memory}");
}
