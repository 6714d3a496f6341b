//! Uses the executor as a library: it must send events while the agent runs, return one result, and end all
//! processes of the run when the caller drops the stream.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use guard::agents::adapter::AgentEvent;
use guard::agents::exec::{DROPPED, ExecRequest, ExecResult, Executor, RESULT, Running};
use guard::run::outcome::ErrorKind;
use serde_json::json;

use super::{is_event, is_result, scripted};
use crate::support::{
    TestEnvironment, expect_no_process_left, guard_program, in_every_environment, is_root, make_program,
    marked_processes, one_environment, unique_mark, wait_until,
};

/// Returns an executor that starts guard as the user of this environment, with the environment's state directory.
fn executor(environment: &TestEnvironment) -> Executor {
    let folder = environment.directory.with_file_name("library");
    std::fs::create_dir_all(&folder).unwrap();
    let variables = [
        ("PATH", environment.user.path.clone()),
        ("HOME", environment.user.home.display().to_string()),
        ("XDG_STATE_HOME", environment.runs_directory().ancestors().nth(2).unwrap().display().to_string()),
        ("TMPDIR", environment.temporary_directory().display().to_string()),
        ("LANG", "C.UTF-8".to_string()),
        ("GEMINI_API_KEY", "the-key-of-the-tests".to_string()),
    ];
    let variables: String = variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    let script = format!("#!/bin/sh\nexec env -i {variables} '{}' \"$@\"\n", guard_program().display());
    let guard = folder.join("guard");
    make_program(&guard, script);
    Executor { guard, sessions: folder.join("sessions"), log: Vec::new() }
}

fn request(environment: &TestEnvironment, prompt: &str) -> ExecRequest {
    let asked = scripted::request(environment, prompt, &json!({ "in_place": true }));
    ExecRequest::from_json(&asked.to_string()).unwrap()
}

/// Returns a request whose agent is this script; the script prints lines as the CLI does.
fn printing(environment: &TestEnvironment, script: &str) -> ExecRequest {
    let script = format!("#!/bin/sh\n{script}\necho '{{\"type\":\"result\",\"status\":\"success\"}}'\n");
    let program: PathBuf = scripted::agent(environment, "printing", &script);
    ExecRequest { command: vec![program.display().to_string()], ..request(environment, "x") }
}

fn check(event: &AgentEvent) {
    is_event(&serde_json::to_value(event).unwrap());
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

#[test]
fn events_arrive_during_the_run_and_the_result_last() {
    let environment = one_environment();
    let message = r#"echo '{"type":"message","role":"assistant","content":"early"}'"#;
    let asked = printing(&environment, &format!("{message}\nuntil test -e go; do sleep 0.05; done"));
    let go = environment.directory.join("go");
    // The caller reads events without an async runtime.
    let mut running = executor(&environment).start(asked.clone());
    let mut events = running.events();
    let early = events.by_ref().inspect(check).find(|event| event.event_type == "agent.message").unwrap();
    assert_eq!((early.message.as_str(), go.exists()), ("early", false));
    assert!(early.timestamp.elapsed().is_ok_and(|age| age < Duration::from_secs(60)), "{early:?}");
    std::fs::write(&go, "").unwrap();
    assert!(events.inspect(check).any(|event| event.event_type == "agent.result"));
    let result = running.wait();
    assert_eq!((result.run.success, result.run.result.as_str()), (true, "early"), "{result:?}");
    assert!(result.events.told >= 3 && result.events.dropped == 0, "{:?}", result.events);
    is_result(&serde_json::to_value(&result).unwrap());
    // The caller reads the events as an async stream, and then as a boxed stream that ends with the result.
    let result: ExecResult = block_on(async {
        let mut running = executor(&environment).start(asked.clone());
        let mut kinds = Vec::new();
        while let Some(event) = running.next().await {
            kinds.push(event.event_type);
        }
        assert_eq!(kinds.last().map(String::as_str), Some("agent.result"), "{kinds:?}");
        running.finish().await
    });
    assert!(result.run.success);
    let last = block_on(async {
        let mut stream = executor(&environment).start(asked).boxed();
        let mut last = None;
        while let Some(event) = stream.next().await {
            last = Some(event);
        }
        last.unwrap()
    });
    assert_eq!(last.event_type, RESULT);
    check(&last);
    is_result(&last.data);
}

/// Returns a script that starts a daemon, a process that ignores signals, and a grandchild that ignores them too.
fn stubborn(mark: &str) -> String {
    format!(
        "(setsid env {mark} sleep 600 &); nohup setsid env {mark} bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' > /dev/null 2>&1 & \
         trap '' TERM; touch begun; env {mark} bash -c 'trap \"\" TERM; sleep 600; sleep 600'"
    )
}

// slow
#[test]
fn dropping_the_handle_ends_all_processes() {
    in_every_environment(|environment| {
        // The library starts guard as the current user, so only the environments of that user apply.
        if is_root() && environment.user.name != "root" {
            return;
        }
        let mark = unique_mark();
        let running = executor(environment).start(request(environment, &stubborn(&mark)));
        let begun = environment.directory.join("begun");
        wait_until("the agent works", || begun.exists() && marked_processes(&mark).len() >= 3);
        let own = environment.directory.with_file_name("library");
        assert!(is_anybody_there(&own));
        drop(running);
        expect_no_process_left(&mark, Duration::from_secs(30));
        // No guard process may be left either.
        wait_until("guard has ended", || !is_anybody_there(&own));
    });
}

/// Returns true if any process has a path below the directory in its arguments, or has a file there open. A guard
/// process of the library has the lock of its session open.
fn is_anybody_there(folder: &Path) -> bool {
    let needle = folder.to_string_lossy().into_owned();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let files = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let mut open = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        String::from_utf8_lossy(&words).contains(&needle) || open.any(|path| path.starts_with(folder))
    })
}

#[test]
fn run_dropped_or_cancelled_at_once_leaves_no_worktree_or_branch() {
    let environment = one_environment();
    environment.run_outside("cd repository && git config user.name n && git config user.email e");
    let before = environment.run_outside("git -C repository worktree list; git -C repository branch");
    for pause in [0, 3, 10, 30, 100] {
        let mark = unique_mark();
        let prompt = stubborn(&mark);
        let asked = ExecRequest {
            cd: environment.directory.with_file_name("repository"),
            in_place: false,
            ..request(&environment, &prompt)
        };
        let running = executor(&environment).start(asked);
        std::thread::sleep(Duration::from_millis(pause));
        running.cancel();
        let result = running.wait();
        assert_eq!(result.run.error_kind, Some(ErrorKind::Cancelled), "{pause}: {result:?}");
        is_result(&serde_json::to_value(&result).unwrap());
        expect_no_process_left(&mark, Duration::from_secs(10));
        if result.run.worktree.as_ref().is_some_and(|worktree| worktree.kept) {
            environment.run_outside(&format!(
                "git -C repository worktree remove --force --force {} && git -C repository branch -D {}",
                result.run.worktree.as_ref().unwrap().path,
                result.run.worktree.as_ref().unwrap().branch
            ));
        }
        assert_eq!(
            before,
            environment.run_outside("git -C repository worktree list; git -C repository branch"),
            "{pause}"
        );
    }
}

/// If the caller does not read events, the agent must not wait, guard must count the events it drops, and the result
/// must be complete.
#[test]
fn slow_event_reader_does_not_delay_the_agent() {
    const LINES: u64 = 20_000;
    let environment = one_environment();
    let line = r#"{"type":"message","role":"assistant","content":"word "}"#;
    let asked = printing(&environment, &format!("yes '{line}' | head -n {LINES}; touch printed"));
    let printed = environment.directory.join("printed");
    let mut running = executor(&environment).start(asked);
    // The agent must be able to finish although the caller has not read a single event.
    wait_until("the agent has printed everything", || printed.exists());
    let mut kept = 0;
    let mut missing = 0;
    for event in running.events() {
        check(&event);
        if event.event_type == DROPPED {
            missing += event.data["count"].as_u64().unwrap();
        } else {
            kept += 1;
        }
        // The caller reads more slowly than any agent prints.
        if kept < 50 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let result = running.wait();
    assert!(result.run.success, "{result:?}");
    assert_eq!(result.run.result, "word ".repeat(LINES as usize));
    assert!(result.events.told > LINES && result.events.dropped > 0, "{:?}", result.events);
    assert_eq!(kept + missing, result.events.told, "{:?}", result.events);
    assert_eq!(missing, result.events.dropped);
    assert!(kept >= Running::MOST_EVENTS as u64);
}
