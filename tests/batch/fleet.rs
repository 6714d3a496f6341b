// slow
//! Several workers share one PostgreSQL database while the test kills one of them again and again. Each task must be
//! completed exactly once.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use guard::work::batch::queue::open_queue;
use serde_json::{Value, json};

use super::command_line::submit;
use crate::support::{UserShell, shared_postgres, skip};

const TASKS: usize = 5_000;

#[test]
fn four_workers_of_which_one_is_killed_complete_every_task_once() {
    let Some(server) = shared_postgres() else {
        return skip("several workers", "PostgreSQL is not installed");
    };
    let address = server.create_database();
    let user = UserShell::new("batch-fleet");
    let tasks: Vec<Value> = (0..TASKS)
        .map(|n| json!({"task_id": format!("t{n}"), "type": "echo", "parameters": {"n": n}}))
        .collect();
    let store = format!("--store '{address}'");
    let first = submit(&user, &json!(tasks).to_string(), &format!("--no-worker {store}"));
    let id = first["response_id"].as_str().unwrap();
    // A trigger in the database records every completion, whichever worker makes it.
    let database = address.rsplit('/').next().unwrap().split('?').next().unwrap();
    server.execute(
        database,
        "create table completion (batch text, position bigint);
         create function note() returns trigger language plpgsql as $$
         begin insert into completion values (new.batch, new.position); return new; end $$;
         create trigger note after update on guard.task for each row
             when (new.state = 'completed' and old.state <> 'completed') execute function note();",
    );
    let worker = || -> Child {
        let mut command = user.command("guard");
        command.args([
            "worker",
            "--concurrency",
            "4",
            "--per-repository",
            "64",
            "--until-idle",
            "--store",
            &address,
        ]);
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut steady: Vec<Child> = (0..3).map(|_| worker()).collect();
    let (mut kills, began) = (0, Instant::now());
    let mut queue = open_queue(Some(&address), std::path::Path::new("/nonexistent")).unwrap();
    while queue.batch(id).unwrap().unwrap().open() > 0 && began.elapsed() < Duration::from_secs(100) {
        let mut victim = worker();
        std::thread::sleep(Duration::from_millis(60 + 40 * (kills % 7)));
        victim.kill().unwrap();
        victim.wait().unwrap();
        kills += 1;
    }
    for worker in &mut steady {
        assert!(worker.wait().unwrap().success());
    }
    assert!(kills >= 2, "{kills}");
    let ended = queue.tasks(id, -1, TASKS + 1).unwrap();
    assert_eq!(ended.len(), TASKS);
    for (n, task) in ended.iter().enumerate() {
        assert_eq!(task.output.get("n"), Some(&json!(n)), "{task:?}");
    }
    server.execute(
        database,
        &format!(
            "do $$ begin
                 assert (select count(*) from completion) = {TASKS}, 'completed twice';
                 assert (select count(distinct position) from completion) = {TASKS}, 'lost';
             end $$"
        ),
    );
}
