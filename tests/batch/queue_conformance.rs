//! Runs the same cases against both stores of the queue, SQLite and PostgreSQL. Both must behave alike.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use guard::batch::queue::{
    BatchRow, Claim, ClaimLimits, Ending, Lease, MOST_TAKEOVERS, NewBatch, Queue, QueueError, TaskRow,
    open_queue,
};
use guard::batch::{BatchOptions, NewTask, TaskFailure, TaskKind, TaskState};
use serde_json::{Map, Value, json};

use crate::support::{Random, Scratch, shared_postgres, wait_until};

/// A lease that does not expire during a test.
const LONG: Duration = Duration::from_secs(600);
/// A lease that expires soon, but not between two calls.
const SHORT: Duration = Duration::from_millis(400);

/// An empty queue that several connections can open.
pub(super) struct Store {
    scratch: Scratch,
    address: Option<String>,
}

impl Store {
    pub(super) fn sqlite() -> Option<Self> {
        Some(Self { scratch: Scratch::new("queue"), address: None })
    }

    pub(super) fn postgres() -> Option<Self> {
        let address = Some(shared_postgres()?.create_database());
        Some(Self { scratch: Scratch::new("queue"), address })
    }

    pub(super) fn open(&self) -> Box<dyn Queue> {
        let file = self.scratch.0.join("queue.sqlite");
        open_queue(self.address.as_deref(), &file).unwrap()
    }
}

/// Generates one test for each case and each store. Each group of cases is a module.
macro_rules! conformance {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[test] fn $case() { super::run(super::Store::sqlite(), super::$case); })*
        }
        mod postgres {
            $(#[test] fn $case() { super::run(super::Store::postgres(), super::$case); })*
        }
    };
}

fn run(store: Option<Store>, case: fn(&Store)) {
    if let Some(store) = store {
        case(&store);
    }
}

conformance! {
    tasks_are_claimed_and_polled_in_order
    unknown_batches_and_tasks_are_none
    an_empty_batch_is_a_batch
    batches_are_listed_newest_first
    a_repeated_batch_key_adds_nothing
    a_repeated_task_key_gets_the_first_result
    a_task_key_of_a_failed_task_runs_again
    a_task_key_of_other_work_is_refused
    repeats_release_their_dependents
    higher_priorities_come_first
    batches_take_turns
    batches_take_turns_in_one_claim
    a_repository_has_a_limit
    a_full_repository_does_not_hold_up_others
    all_repositories_have_a_limit
    concurrent_claims_respect_the_limits
    a_chain_runs_in_order
    a_diamond_joins
    dependencies_may_point_forward
    a_failure_fails_all_dependents
    a_retry_waits_until_it_is_due
    an_expired_lease_passes_to_another_worker
    a_heartbeat_extends_leases_and_reports_lost_ones
    a_task_that_kills_workers_fails
    a_batch_can_be_cancelled
    one_task_can_be_cancelled
    failed_tasks_can_be_retried
    retried_tasks_wait_for_their_dependencies
    tasks_expire
    ended_batches_are_removed
    the_summary_counts_states_and_times
    an_ending_counts_once
    endings_are_told_in_order
    large_parameters_and_outputs_are_kept
    strange_text_is_kept
    a_task_that_cannot_be_stored_is_refused
    concurrent_workers_claim_each_task_once
    concurrent_submissions_with_one_key_are_one_batch
    concurrent_completions_of_one_diamond_release_it_once
    waiting_ends_when_another_connection_changes_the_queue
    concurrent_operations_lose_no_task
}

pub(super) fn task(id: &str) -> NewTask {
    NewTask {
        task_id: id.to_string(),
        task_type: "echo".to_string(),
        parameters: object(json!({"id": id})),
        priority: 0,
        depends_on: Vec::new(),
        idempotency_key: None,
        repository: "/repository".to_string(),
        expires_after: None,
        options: BatchOptions { directory: PathBuf::from("/repository"), ..BatchOptions::default() },
    }
}

fn after(id: &str, needed: &[&str]) -> NewTask {
    NewTask { depends_on: needed.iter().map(ToString::to_string).collect(), ..task(id) }
}

fn keyed(id: &str, key: &str) -> NewTask {
    NewTask { idempotency_key: Some(key.to_string()), ..task(id) }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

pub(super) fn submit(queue: &mut dyn Queue, id: &str, tasks: Vec<NewTask>) {
    let batch = NewBatch { id: id.to_string(), tasks, idempotency_key: None };
    assert_eq!(queue.submit(&batch).unwrap(), id);
}

pub(super) fn limits(most: usize) -> ClaimLimits {
    ClaimLimits { most, global: 100_000, per_repository: 100_000, lease: LONG }
}

fn claim(queue: &mut dyn Queue, most: usize) -> Vec<Claim> {
    queue.claim("worker", limits(most)).unwrap()
}

#[track_caller]
fn claim_one(queue: &mut dyn Queue) -> Claim {
    let mut claims = claim(queue, 1);
    assert_eq!(claims.len(), 1, "nothing to claim");
    claims.remove(0)
}

fn names(claims: &[Claim]) -> Vec<String> {
    claims.iter().map(|claim| format!("{}.{}", claim.lease.batch, claim.task_id)).collect()
}

pub(super) fn completed(claim: &Claim) -> (Lease, Ending) {
    (claim.lease.clone(), Ending::Completed(object(json!({"done": claim.task_id}))))
}

fn failed(claim: &Claim, again: Option<Duration>) -> (Lease, Ending) {
    let detail = json!({"error_kind": "exit", "code": 3});
    let failure = TaskFailure { detail, ..TaskFailure::permanent(TaskKind::RunFailed, "it broke") };
    (claim.lease.clone(), Ending::Failed(failure, again))
}

#[track_caller]
fn finish(queue: &mut dyn Queue, ending: (Lease, Ending)) {
    assert_eq!(queue.finish(&[ending]).unwrap(), [true]);
}

#[track_caller]
fn row(queue: &mut dyn Queue, batch: &str, task: &str) -> TaskRow {
    queue.task(batch, task).unwrap().unwrap()
}

#[track_caller]
fn summary(queue: &mut dyn Queue, batch: &str) -> BatchRow {
    queue.batch(batch).unwrap().unwrap()
}

#[track_caller]
fn expect_state(queue: &mut dyn Queue, batch: &str, task: &str, state: TaskState) {
    assert_eq!(row(queue, batch, task).state, state, "{batch}.{task}");
}

#[track_caller]
fn expect_failure(queue: &mut dyn Queue, batch: &str, task: &str, kind: TaskKind) {
    let row = row(queue, batch, task);
    assert_eq!(
        (row.state, row.error_kind.as_deref()),
        (TaskState::Failed, Some(kind.as_str())),
        "{batch}.{task}"
    );
    assert!(row.error.is_some_and(|error| !error.is_empty()), "{batch}.{task}");
    assert!(row.output.is_empty(), "{batch}.{task}");
}

fn numbered(count: usize) -> Vec<NewTask> {
    (0..count).map(|number| task(&number.to_string())).collect()
}

fn tasks_are_claimed_and_polled_in_order(store: &Store) {
    let queue = &mut *store.open();
    assert!(!queue.has_open_tasks().unwrap());
    submit(queue, "b", numbered(25));
    assert!(queue.has_open_tasks().unwrap());
    let page = queue.tasks("b", -1, 10).unwrap();
    assert_eq!(page.iter().map(|row| row.position).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert!(page.iter().all(|row| row.state == TaskState::Queued && row.attempts == 0));
    assert_eq!(queue.tasks("b", 19, 10).unwrap().len(), 5);
    assert!(queue.tasks("b", 24, 10).unwrap().is_empty());

    let claims = claim(queue, 3);
    assert_eq!(names(&claims), ["b.0", "b.1", "b.2"]);
    let first = &claims[0];
    assert_eq!((first.task_type.as_str(), first.attempt, first.lease.position), ("echo", 1, 0));
    assert_eq!(first.parameters, object(json!({"id": "0"})));
    assert_eq!(first.options, task("0").options);
    assert!(claims.windows(2).all(|pair| pair[0].lease.token < pair[1].lease.token));
    expect_state(queue, "b", "0", TaskState::Running);

    let mut ended: Vec<_> = claims[..2].iter().map(completed).collect();
    ended.push(failed(&claims[2], None));
    assert_eq!(queue.finish(&ended).unwrap(), [true; 3]);
    let row = row(queue, "b", "1");
    assert_eq!((row.state, row.attempts), (TaskState::Completed, 1));
    assert_eq!((row.output, row.error, row.error_kind), (object(json!({"done": "1"})), None, None));
    expect_failure(queue, "b", "2", TaskKind::RunFailed);
    let failed_row = queue.tasks("b", 1, 1).unwrap().remove(0);
    assert_eq!(failed_row.error.as_deref(), Some("it broke"));
    assert_eq!(failed_row.error_detail, json!({"error_kind": "exit", "code": 3}));
    assert_eq!(claim(queue, 100).len(), 22);
    assert!(claim(queue, 100).is_empty());
    assert!(queue.has_open_tasks().unwrap());
}

fn unknown_batches_and_tasks_are_none(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "b", numbered(1));
    for strange in ["", "c", "b\0", "\u{1f980}", "b' or true --"] {
        assert_eq!(queue.batch(strange).unwrap(), None);
        assert_eq!(queue.task("b", strange).unwrap(), None);
        assert!(queue.tasks(strange, -1, 10).unwrap().is_empty());
        assert_eq!(queue.cancel(strange, None).unwrap(), 0);
        assert_eq!(queue.cancel("b", Some(strange)).unwrap(), 0);
        assert_eq!(queue.retry_failed(strange).unwrap(), 0);
    }
    let unknown = Lease { batch: "c".to_string(), position: 0, token: 1 };
    assert_eq!(
        queue.heartbeat(std::slice::from_ref(&unknown), LONG).unwrap(),
        std::slice::from_ref(&unknown)
    );
    assert_eq!(queue.finish(&[(unknown, Ending::Completed(Map::new()))]).unwrap(), [false]);
    assert!(queue.heartbeat(&[], LONG).unwrap().is_empty());
    assert!(queue.finish(&[]).unwrap().is_empty());
}

fn an_empty_batch_is_a_batch(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "b", Vec::new());
    assert_eq!(summary(queue, "b").total(), 0);
    assert!(!queue.has_open_tasks().unwrap());
    assert!(claim(queue, 5).is_empty());
    assert_eq!(queue.remove_ended(Duration::ZERO).unwrap(), 1);
}

fn batches_are_listed_newest_first(store: &Store) {
    let queue = &mut *store.open();
    for id in ["a", "b", "c"] {
        submit(queue, id, numbered(2));
        std::thread::sleep(Duration::from_millis(3));
    }
    let ids = |rows: Vec<BatchRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(queue.batches(2).unwrap()), ["c", "b"]);
    let all = queue.batches(10).unwrap();
    assert!(all.iter().all(|row| row.total() == 2 && row.open() == 2));
    assert_eq!(all[1], summary(queue, "b"));
    assert_eq!(ids(all), ["c", "b", "a"]);
}

fn a_repeated_batch_key_adds_nothing(store: &Store) {
    let queue = &mut *store.open();
    let long_key = "key ".repeat(2000);
    for (at, key) in ["key", &long_key, "k\0y"].into_iter().enumerate() {
        let batch = |id: &str, tasks| NewBatch {
            id: format!("{id}{at}"),
            tasks,
            idempotency_key: Some(key.to_string()),
        };
        let first = queue.submit(&batch("a", numbered(2))).unwrap();
        assert_eq!(queue.submit(&batch("b", numbered(2))).unwrap(), first);
        let refused = queue.submit(&batch("c", numbered(3)));
        assert!(matches!(refused, Err(QueueError::KeyReused(named)) if named == key));
        for id in ["b", "c"] {
            assert_eq!(queue.batch(&format!("{id}{at}")).unwrap(), None);
        }
    }
    assert_eq!(claim(queue, 10).len(), 6);
}

fn a_repeated_task_key_gets_the_first_result(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![keyed("x", "completed"), keyed("y", "pending"), keyed("z", "fails later")]);
    let first = claim(queue, 3);
    finish(queue, completed(&first[0]));
    submit(queue, "b", vec![keyed("x", "completed"), keyed("y", "pending"), keyed("z", "fails later")]);
    // The first has completed: its output is there at once. The others are not run twice.
    assert_eq!(row(queue, "b", "x").output, object(json!({"done": "x"})));
    expect_state(queue, "b", "y", TaskState::Blocked);
    assert!(claim(queue, 10).is_empty());
    assert_eq!(queue.finish(&[completed(&first[1]), failed(&first[2], None)]).unwrap(), [true, true]);
    assert_eq!(row(queue, "b", "y").output, object(json!({"done": "y"})));
    expect_failure(queue, "b", "z", TaskKind::RunFailed);
    assert!(!queue.has_open_tasks().unwrap());
}

fn a_task_key_of_a_failed_task_runs_again(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![keyed("x", "key")]);
    let first = claim_one(queue);
    finish(queue, failed(&first, None));
    submit(queue, "b", vec![keyed("x", "key")]);
    let second = claim_one(queue);
    assert_eq!(second.lease.batch, "b");
    submit(queue, "c", vec![keyed("x", "key")]);
    finish(queue, completed(&second));
    expect_state(queue, "c", "x", TaskState::Completed);
    expect_failure(queue, "a", "x", TaskKind::RunFailed);
}

fn a_task_key_of_other_work_is_refused(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![keyed("x", "key")]);
    let other = NewTask { parameters: object(json!({"id": "other"})), ..keyed("x", "key") };
    let twice = vec![keyed("p", "new"), keyed("q", "new")];
    for tasks in [vec![task("w"), other], twice] {
        let batch = NewBatch { id: "b".to_string(), tasks, idempotency_key: None };
        assert!(matches!(queue.submit(&batch), Err(QueueError::KeyReused(_))));
        assert_eq!(queue.batch("b").unwrap(), None);
    }
    assert_eq!(names(&claim(queue, 10)), ["a.x"]);
}

fn repeats_release_their_dependents(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![keyed("x", "key")]);
    submit(queue, "b", vec![keyed("x", "key"), after("y", &["x"])]);
    let first = claim_one(queue);
    finish(queue, completed(&first));
    submit(queue, "c", vec![after("y", &["x"]), keyed("x", "key")]);
    let next = claim(queue, 10);
    assert_eq!(names(&next).into_iter().collect::<HashSet<_>>(), HashSet::from(["b.y".into(), "c.y".into()]));
}

fn higher_priorities_come_first(store: &Store) {
    let queue = &mut *store.open();
    let with = |id: &str, priority| NewTask { priority, ..task(id) };
    submit(queue, "a", vec![with("low", -5), with("middle", 0), with("high", 7), with("high2", 7)]);
    submit(queue, "b", vec![with("top", 8), with("low", -6)]);
    assert_eq!(names(&claim(queue, 1)), ["b.top"]);
    assert_eq!(names(&claim(queue, 3)), ["a.high", "a.high2", "a.middle"]);
    submit(queue, "c", vec![with("late", 1)]);
    assert_eq!(names(&claim(queue, 10)), ["c.late", "a.low", "b.low"]);
}

fn batches_take_turns(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(50));
    assert_eq!(names(&claim(queue, 2)), ["a.0", "a.1"]);
    submit(queue, "b", numbered(3));
    let mut order = Vec::new();
    for _ in 0..8 {
        order.push(claim_one(queue).lease.batch);
    }
    assert_eq!(order, ["b", "a", "b", "a", "b", "a", "a", "a"]);
}

fn batches_take_turns_in_one_claim(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(50));
    submit(queue, "b", numbered(2));
    submit(queue, "c", numbered(50));
    let order: Vec<String> = claim(queue, 9).into_iter().map(|claim| claim.lease.batch).collect();
    assert_eq!(order, ["a", "b", "c", "a", "b", "c", "a", "c", "a"]);
}

fn a_repository_has_a_limit(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(5));
    submit(queue, "b", numbered(5));
    let two = ClaimLimits { per_repository: 2, ..limits(10) };
    let claims = queue.claim("worker", two).unwrap();
    assert_eq!(names(&claims), ["a.0", "b.0"]);
    assert!(queue.claim("other", two).unwrap().is_empty());
    finish(queue, failed(&claims[0], Some(LONG)));
    assert_eq!(queue.claim("other", two).unwrap().len(), 1);
    assert!(queue.claim("other", two).unwrap().is_empty());
    assert!(queue.claim("other", ClaimLimits { per_repository: 0, ..two }).unwrap().is_empty());
}

fn a_full_repository_does_not_hold_up_others(store: &Store) {
    let queue = &mut *store.open();
    let of = |id: &str, priority, repository: &str| NewTask {
        priority,
        repository: repository.to_string(),
        ..task(id)
    };
    let mut tasks: Vec<NewTask> = (0..5).map(|number| of(&format!("x{number}"), 9, "/x")).collect();
    tasks.extend((0..3).map(|number| of(&format!("y{number}"), 1, "/y'\u{1f980}")));
    submit(queue, "a", tasks);
    let one = ClaimLimits { per_repository: 1, ..limits(10) };
    assert_eq!(names(&queue.claim("worker", one).unwrap()), ["a.x0", "a.y0"]);
    let two = ClaimLimits { per_repository: 2, ..limits(10) };
    assert_eq!(names(&queue.claim("worker", two).unwrap()), ["a.x1", "a.y1"]);
}

fn all_repositories_have_a_limit(store: &Store) {
    let queue = &mut *store.open();
    let tasks =
        (0..9).map(|number| NewTask { repository: format!("/{number}"), ..task(&number.to_string()) });
    submit(queue, "a", tasks.collect());
    let four = ClaimLimits { global: 4, ..limits(3) };
    let first = queue.claim("worker", four).unwrap();
    assert_eq!(first.len(), 3);
    assert_eq!(queue.claim("other", four).unwrap().len(), 1);
    assert!(queue.claim("other", four).unwrap().is_empty());
    finish(queue, completed(&first[0]));
    assert_eq!(queue.claim("other", four).unwrap().len(), 1);
}

fn concurrent_claims_respect_the_limits(store: &Store) {
    let queue = &mut *store.open();
    let of = |number: usize| NewTask { repository: format!("/{}", number % 4), ..task(&number.to_string()) };
    submit(queue, "a", (0..200).map(of).collect());
    let few = ClaimLimits { global: 10, per_repository: 3, ..limits(4) };
    let most = std::thread::scope(|scope| {
        let work = || {
            let queue = &mut *store.open();
            let mut most = 0;
            for _ in 0..25 {
                let claims = queue.claim("worker", few).unwrap();
                most = most.max(summary(queue, "a").count(TaskState::Running));
                queue.finish(&claims.iter().map(completed).collect::<Vec<_>>()).unwrap();
            }
            most
        };
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap()
    });
    assert!((1..=10).contains(&most), "{most} tasks ran at once");
}

fn a_chain_runs_in_order(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![task("x"), after("y", &["x"]), after("z", &["y"])]);
    expect_state(queue, "a", "z", TaskState::Blocked);
    for expected in ["a.x", "a.y", "a.z"] {
        let claims = claim(queue, 10);
        assert_eq!(names(&claims), [expected]);
        finish(queue, completed(&claims[0]));
    }
    assert!(!queue.has_open_tasks().unwrap());
}

fn a_diamond_joins(store: &Store) {
    let queue = &mut *store.open();
    let tasks = vec![
        task("top"),
        after("left", &["top"]),
        after("right", &["top"]),
        after("end", &["left", "right"]),
    ];
    submit(queue, "a", tasks);
    let top = claim_one(queue);
    finish(queue, completed(&top));
    let sides = claim(queue, 10);
    assert_eq!(names(&sides), ["a.left", "a.right"]);
    finish(queue, completed(&sides[0]));
    assert!(claim(queue, 10).is_empty());
    finish(queue, completed(&sides[1]));
    let end = claim_one(queue);
    finish(queue, completed(&end));
    // Both sides in one call.
    submit(queue, "b", vec![task("left"), task("right"), after("end", &["left", "right"])]);
    let sides = claim(queue, 10);
    assert_eq!(queue.finish(&[completed(&sides[0]), completed(&sides[1])]).unwrap(), [true, true]);
    assert_eq!(names(&claim(queue, 10)), ["b.end"]);
}

fn dependencies_may_point_forward(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![after("x", &["z"]), after("y", &["x"]), task("z")]);
    let first = claim(queue, 10);
    assert_eq!(names(&first), ["a.z"]);
    finish(queue, completed(&first[0]));
    assert_eq!(names(&claim(queue, 10)), ["a.x"]);
    assert_eq!(queue.cancel("a", None).unwrap(), 2);
    submit(queue, "b", vec![after("x", &["z"]), after("y", &["x"]), task("z")]);
    assert_eq!(queue.cancel("b", None).unwrap(), 3);
    for (batch, task) in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("b", "z")] {
        expect_failure(queue, batch, task, TaskKind::Cancelled);
    }
}

fn a_failure_fails_all_dependents(store: &Store) {
    let queue = &mut *store.open();
    let mut tasks = vec![task("x"), task("free"), after("y", &["x"]), after("z", &["y", "free"])];
    tasks.extend((0..200).map(|number| after(&format!("leaf{number}"), &["y"])));
    submit(queue, "a", tasks);
    let first = claim_one(queue);
    finish(queue, failed(&first, None));
    expect_failure(queue, "a", "x", TaskKind::RunFailed);
    for id in ["y", "z", "leaf0", "leaf199"] {
        expect_failure(queue, "a", id, TaskKind::DependencyFailed);
        assert_eq!(row(queue, "a", id).attempts, 0);
    }
    let free = claim(queue, 10);
    assert_eq!(names(&free), ["a.free"]);
    finish(queue, completed(&free[0]));
    assert_eq!(summary(queue, "a").count(TaskState::Failed), 203);
    assert!(!queue.has_open_tasks().unwrap());
}

fn a_retry_waits_until_it_is_due(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(2));
    let first = claim(queue, 2);
    assert_eq!(
        queue.finish(&[failed(&first[0], Some(SHORT)), failed(&first[1], Some(LONG))]).unwrap(),
        [true, true]
    );
    let waiting = row(queue, "a", "0");
    assert_eq!((waiting.state, waiting.attempts, waiting.error), (TaskState::Waiting, 1, None));
    assert!(claim(queue, 10).is_empty());
    assert!(queue.has_open_tasks().unwrap());
    std::thread::sleep(SHORT);
    let again = claim(queue, 10);
    assert_eq!(names(&again), ["a.0"]);
    assert_eq!(again[0].attempt, 2);
    assert!(again[0].lease.token > first[1].lease.token);
    finish(queue, completed(&again[0]));
    assert_eq!(row(queue, "a", "0").attempts, 2);
    assert_eq!(queue.finish(&[completed(&first[0])]).unwrap(), [false]);
}

fn an_expired_lease_passes_to_another_worker(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(1));
    let old = queue.claim("old", ClaimLimits { lease: SHORT, ..limits(1) }).unwrap().remove(0);
    assert!(queue.claim("new", limits(1)).unwrap().is_empty());
    std::thread::sleep(SHORT + SHORT / 2);
    let new = queue.claim("new", limits(1)).unwrap().remove(0);
    assert!(new.lease.token > old.lease.token);
    assert_eq!((&new.task_id, new.attempt), (&old.task_id, 2));
    // The old worker comes back: neither its heartbeat nor its result counts.
    assert_eq!(
        queue.heartbeat(std::slice::from_ref(&old.lease), LONG).unwrap(),
        std::slice::from_ref(&old.lease)
    );
    assert_eq!(queue.finish(&[failed(&old, None), completed(&new)]).unwrap(), [false, true]);
    expect_state(queue, "a", "0", TaskState::Completed);
    assert_eq!(queue.finish(&[failed(&old, None), completed(&new)]).unwrap(), [false, false]);
}

fn a_heartbeat_extends_leases_and_reports_lost_ones(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(3));
    let claims = queue.claim("worker", ClaimLimits { lease: SHORT, ..limits(3) }).unwrap();
    queue.cancel("a", Some("1")).unwrap();
    finish(queue, completed(&claims[2]));
    let leases: Vec<Lease> = claims.iter().map(|claim| claim.lease.clone()).collect();
    assert_eq!(queue.heartbeat(&leases, LONG).unwrap(), leases[1..]);
    std::thread::sleep(SHORT + SHORT / 2);
    assert!(claim(queue, 10).is_empty(), "the lease was not extended");
    finish(queue, completed(&claims[0]));
}

fn a_task_that_kills_workers_fails(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![task("killer"), after("next", &["killer"])]);
    let short = ClaimLimits { lease: Duration::from_millis(20), ..limits(5) };
    let mut tokens = Vec::new();
    wait_until("the killer fails", || {
        tokens.extend(queue.claim("worker", short).unwrap().into_iter().map(|claim| claim.lease.token));
        row(queue, "a", "killer").state == TaskState::Failed
    });
    assert_eq!(tokens.len(), 1 + usize::try_from(MOST_TAKEOVERS).unwrap());
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
    expect_failure(queue, "a", "killer", TaskKind::WorkerLost);
    expect_failure(queue, "a", "next", TaskKind::DependencyFailed);
    // After a retry by hand, the workers count anew.
    assert_eq!(queue.retry_failed("a").unwrap(), 2);
    assert_eq!(claim_one(queue).attempt, 1);
}

fn a_batch_can_be_cancelled(store: &Store) {
    let queue = &mut *store.open();
    submit(
        queue,
        "a",
        vec![task("done"), task("running"), task("waits"), task("queued"), after("blocked", &["queued"])],
    );
    submit(queue, "b", numbered(1));
    let claims = claim(queue, 4);
    let of = |id: &str| claims.iter().find(|claim| claim.task_id == id).unwrap();
    assert_eq!(names(&claims), ["a.done", "b.0", "a.running", "a.waits"]);
    assert_eq!(
        queue.finish(&[completed(of("done")), failed(of("waits"), Some(LONG))]).unwrap(),
        [true, true]
    );
    assert_eq!(queue.cancel("a", None).unwrap(), 4);
    for id in ["running", "waits", "queued", "blocked"] {
        expect_failure(queue, "a", id, TaskKind::Cancelled);
    }
    expect_state(queue, "a", "done", TaskState::Completed);
    expect_state(queue, "b", "0", TaskState::Running);
    assert_eq!(queue.finish(&[completed(of("running"))]).unwrap(), [false]);
    assert_eq!(queue.cancel("a", None).unwrap(), 0);
    assert!(claim(queue, 10).is_empty());
}

fn one_task_can_be_cancelled(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![task("x"), task("y"), after("z", &["x"])]);
    assert_eq!(queue.cancel("a", Some("x")).unwrap(), 2);
    expect_failure(queue, "a", "x", TaskKind::Cancelled);
    expect_failure(queue, "a", "z", TaskKind::DependencyFailed);
    assert_eq!(names(&claim(queue, 10)), ["a.y"]);
}

fn failed_tasks_can_be_retried(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(3));
    let claims = claim(queue, 3);
    let endings = [completed(&claims[0]), failed(&claims[1], None), failed(&claims[2], Some(LONG))];
    assert_eq!(queue.finish(&endings).unwrap(), [true; 3]);
    assert_eq!(queue.retry_failed("a").unwrap(), 1);
    let again = row(queue, "a", "1");
    assert_eq!((again.state, again.attempts), (TaskState::Queued, 0));
    assert_eq!((again.error, again.error_kind, again.error_detail), (None, None, Value::Null));
    assert_eq!(queue.finish(&[completed(&claims[1])]).unwrap(), [false]);
    let second = claim(queue, 10);
    assert_eq!((names(&second), second[0].attempt), (vec!["a.1".to_string()], 1));
    finish(queue, completed(&second[0]));
    assert_eq!(queue.retry_failed("a").unwrap(), 0);
}

fn retried_tasks_wait_for_their_dependencies(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "first", vec![keyed("x", "key")]);
    let tasks = vec![keyed("x", "key"), after("y", &["x"]), task("done"), after("z", &["y", "done"])];
    submit(queue, "a", tasks);
    let claims = claim(queue, 10);
    assert_eq!(names(&claims), ["first.x", "a.done"]);
    assert_eq!(queue.finish(&[failed(&claims[0], None), completed(&claims[1])]).unwrap(), [true, true]);
    expect_failure(queue, "a", "x", TaskKind::RunFailed);
    expect_failure(queue, "a", "z", TaskKind::DependencyFailed);
    // The repeated task runs by itself now, and the rest follows it.
    assert_eq!(queue.retry_failed("a").unwrap(), 3);
    for expected in ["a.x", "a.y", "a.z"] {
        let next = claim(queue, 10);
        assert_eq!(names(&next), [expected]);
        finish(queue, completed(&next[0]));
    }
    expect_failure(queue, "first", "x", TaskKind::RunFailed);
}

fn tasks_expire(store: &Store) {
    let queue = &mut *store.open();
    let expiring = |id: &str, time| NewTask { expires_after: Some(time), ..task(id) };
    let tasks = vec![
        expiring("started", SHORT),
        expiring("late", SHORT),
        expiring("later", LONG),
        after("next", &["late"]),
    ];
    submit(queue, "a", tasks);
    let started = claim_one(queue);
    std::thread::sleep(SHORT);
    assert_eq!(names(&claim(queue, 10)), ["a.later"]);
    expect_failure(queue, "a", "late", TaskKind::Expired);
    expect_failure(queue, "a", "next", TaskKind::DependencyFailed);
    finish(queue, completed(&started));
    // A task that is retried by hand does not expire again.
    assert_eq!(queue.retry_failed("a").unwrap(), 2);
    assert_eq!(names(&claim(queue, 10)), ["a.late"]);
}

fn ended_batches_are_removed(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "open", numbered(1));
    submit(queue, "ended", vec![keyed("x", "key"), after("y", &["x"])]);
    for _ in 0..3 {
        let next = claim_one(queue);
        if next.lease.batch == "ended" {
            finish(queue, completed(&next));
        }
    }
    assert_eq!(queue.remove_ended(LONG).unwrap(), 0);
    assert_eq!(queue.remove_ended(Duration::ZERO).unwrap(), 1);
    assert_eq!(queue.batch("ended").unwrap(), None);
    assert_eq!(queue.task("ended", "x").unwrap(), None);
    assert_eq!(queue.batches(10).unwrap().len(), 1);
    // Neither the id nor the key is taken any more.
    submit(queue, "ended", vec![keyed("x", "key")]);
    assert_eq!(names(&claim(queue, 10)), ["ended.x"]);
}

fn the_summary_counts_states_and_times(store: &Store) {
    let queue = &mut *store.open();
    let mut tasks = numbered(6);
    tasks.push(after("blocked", &["5"]));
    submit(queue, "a", tasks);
    let before = summary(queue, "a");
    assert_eq!((before.total(), before.mean_ms, before.changed_ms), (7, None, None));
    let claims = claim(queue, 4);
    std::thread::sleep(Duration::from_millis(50));
    let endings = [completed(&claims[0]), failed(&claims[1], None), failed(&claims[2], Some(LONG))];
    assert_eq!(queue.finish(&endings).unwrap(), [true; 3]);
    let row = summary(queue, "a");
    for (state, count) in TaskState::ALL.iter().zip([1, 2, 1, 1, 1, 1]) {
        assert_eq!(row.count(*state), count, "{state}");
    }
    assert_eq!(row.open(), 5);
    assert!((50..10_000).contains(&row.mean_ms.unwrap()), "{row:?}");
    assert!(row.changed_ms.unwrap() >= row.created_ms + 50, "{row:?}");
    let now = jiff::Timestamp::now().as_millisecond();
    assert!((now - 60_000..=now).contains(&row.created_ms), "{row:?}");
}

fn an_ending_counts_once(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(1));
    let first = claim_one(queue);
    assert_eq!(
        queue.finish(&[completed(&first), completed(&first), failed(&first, None)]).unwrap(),
        [true, false, false]
    );
    expect_state(queue, "a", "0", TaskState::Completed);
}

fn endings_are_told_in_order(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "batch", vec![task("a"), task("b"), after("c", &["b"])]);
    assert_eq!(queue.ended_tasks("batch", 0, 10).unwrap(), []);
    let claims = claim(queue, 2);
    finish(queue, failed(&claims[1], None));
    finish(queue, failed(&claims[0], None));
    // In PostgreSQL a transaction in progress, such as one of another test, may hold an ending back for a moment.
    let told = |queue: &mut dyn Queue, after: i64, expected: usize| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let ended = queue.ended_tasks("batch", after, expected.max(1)).unwrap();
            if ended.len() >= expected || Instant::now() > deadline {
                let names: Vec<String> = ended.iter().map(|task| task.row.task_id.clone()).collect();
                return (names, ended.last().map(|task| task.ending));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // The failure of b is also that of c.
    let (names, last) = told(queue, 0, 3);
    assert_eq!(names, ["b", "c", "a"]);
    let (first, cursor) = told(queue, 0, 2);
    assert_eq!(first, ["b", "c"]);
    assert_eq!(told(queue, cursor.unwrap(), 1).0, ["a"]);
    assert_eq!(told(queue, last.unwrap(), 0).0, Vec::<String>::new());
    // What is retried has not ended, and ends again behind the others.
    queue.retry_failed("batch").unwrap();
    assert_eq!(told(queue, 0, 0).0, Vec::<String>::new());
    let again = claim_one(queue);
    finish(queue, failed(&again, None));
    assert_eq!(told(queue, last.unwrap(), 1).0, [again.task_id]);
}

fn large_parameters_and_outputs_are_kept(store: &Store) {
    let queue = &mut *store.open();
    let text = "0123456789abcdef".repeat(10 << 16);
    let large = object(json!({"text": text}));
    let tasks = ["a", "b", "c"].map(|id| NewTask { parameters: large.clone(), ..task(id) });
    submit(queue, "a", tasks.to_vec());
    let claims = claim(queue, 3);
    assert!(claims.iter().all(|claim| claim.parameters == large));
    assert_eq!(claims.len(), 3);
    finish(queue, (claims[0].lease.clone(), Ending::Completed(large.clone())));
    assert_eq!(row(queue, "a", "a").output, large);
}

fn strange_text_is_kept(store: &Store) {
    let queue = &mut *store.open();
    for (at, strange) in ["'; drop table task; --", "\"\\\\\n\t\r", "\u{1f980}\u{202e}\u{feff}é", "$1 %s {}"]
        .into_iter()
        .enumerate()
    {
        let id = format!("b{at}");
        // JSON keeps what the text columns of a database may not: U+0000, and numbers as they were written.
        let value = object(json!({"\0\u{1}key": [strange, "\0", 0.1, 1e300, i64::MIN, u64::MAX, null, {}]}));
        let task = NewTask {
            task_type: strange.to_string(),
            parameters: value.clone(),
            idempotency_key: Some(strange.to_string()),
            repository: strange.to_string(),
            options: BatchOptions { agent: Some(format!("{strange}\0")), ..BatchOptions::default() },
            ..task(strange)
        };
        submit(queue, &id, vec![task.clone()]);
        let claimed = queue.claim(strange, limits(1)).unwrap().remove(0);
        assert_eq!((&claimed.task_id, &claimed.task_type), (&task.task_id, &task.task_type));
        assert_eq!((&claimed.parameters, &claimed.options), (&task.parameters, &task.options));
        finish(queue, (claimed.lease, Ending::Completed(value.clone())));
        assert_eq!(row(queue, &id, strange).output, value);
    }
    // An agent can put anything into a message: it must not keep the ending from being recorded.
    submit(queue, "c", numbered(1));
    let claimed = claim_one(queue);
    let message = "before\0after".to_string();
    let failure =
        TaskFailure { detail: json!(["\0"]), ..TaskFailure::permanent(TaskKind::Internal, message) };
    finish(queue, (claimed.lease, Ending::Failed(failure, None)));
    let row = row(queue, "c", "0");
    let message = row.error.unwrap();
    assert!(message.starts_with("before") && message.ends_with("after"), "{message:?}");
    assert_eq!(row.error_detail, json!(["\0"]));
}

fn a_task_that_cannot_be_stored_is_refused(store: &Store) {
    use std::os::unix::ffi::OsStringExt;
    let queue = &mut *store.open();
    let directory = PathBuf::from(std::ffi::OsString::from_vec(b"/\xff".to_vec()));
    let bad = NewTask { options: BatchOptions { directory, ..BatchOptions::default() }, ..task("bad") };
    let batch = NewBatch { id: "a".to_string(), tasks: vec![task("good"), bad], idempotency_key: None };
    let refused = queue.submit(&batch);
    assert!(matches!(&refused, Err(QueueError::Unstorable { task, .. }) if task == "bad"), "{refused:?}");
    assert_eq!(queue.batch("a").unwrap(), None);
    submit(queue, "a", numbered(1));
    assert_eq!(names(&claim(queue, 10)), ["a.0"]);
}

fn concurrent_workers_claim_each_task_once(store: &Store) {
    let queue = &mut *store.open();
    for batch in ["a", "b"] {
        submit(queue, batch, numbered(1000));
    }
    let start = Barrier::new(2);
    let claims: Vec<Vec<Claim>> = std::thread::scope(|scope| {
        let work = |most: usize| {
            let queue = &mut *store.open();
            let mut all = Vec::new();
            start.wait();
            loop {
                let claims = claim(queue, most);
                if claims.is_empty() {
                    return all;
                }
                assert!(
                    queue
                        .finish(&claims.iter().map(completed).collect::<Vec<_>>())
                        .unwrap()
                        .iter()
                        .all(|ok| *ok)
                );
                all.extend(claims);
            }
        };
        let workers: Vec<_> = [5, 8].into_iter().map(|most| scope.spawn(move || work(most))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let all: Vec<&Claim> = claims.iter().flatten().collect();
    let tasks: HashSet<(&str, i64)> =
        all.iter().map(|claim| (claim.lease.batch.as_str(), claim.lease.position)).collect();
    let tokens: HashSet<i64> = all.iter().map(|claim| claim.lease.token).collect();
    assert_eq!((all.len(), tasks.len(), tokens.len()), (2000, 2000, 2000));
    assert!(all.iter().all(|claim| claim.attempt == 1));
    for batch in ["a", "b"] {
        assert_eq!(summary(queue, batch).count(TaskState::Completed), 1000);
    }
}

fn concurrent_submissions_with_one_key_are_one_batch(store: &Store) {
    let queue = &mut *store.open();
    let start = Barrier::new(4);
    let ids: HashSet<String> = std::thread::scope(|scope| {
        let work = |number: usize| {
            let queue = &mut *store.open();
            let key = Some("key".to_string());
            start.wait();
            queue
                .submit(&NewBatch { id: number.to_string(), tasks: numbered(3), idempotency_key: key })
                .unwrap()
        };
        let callers: Vec<_> = (0..4).map(|number| scope.spawn(move || work(number))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!((ids.len(), queue.batches(10).unwrap().len()), (1, 1));
    // A repeated task whose first one ends at the same moment is not forgotten.
    for round in 0..20 {
        let key = format!("key {round}");
        submit(queue, &format!("first {round}"), vec![NewTask { priority: 1, ..keyed("x", &key) }]);
        let first = claim_one(queue);
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let queue = &mut *store.open();
                start.wait();
                submit(queue, &format!("second {round}"), vec![keyed("x", &key)]);
            });
            start.wait();
            finish(queue, completed(&first));
        });
        expect_state(queue, &format!("second {round}"), "x", TaskState::Completed);
    }
}

fn concurrent_completions_of_one_diamond_release_it_once(store: &Store) {
    let queue = &mut *store.open();
    let mut tasks = numbered(8);
    let all: Vec<String> = tasks.iter().map(|task| task.task_id.clone()).collect();
    // In two orders, so that two workers meet the dependents in different orders.
    tasks.extend((0..20).map(|number| NewTask { depends_on: all.clone(), ..task(&format!("end{number}")) }));
    for round in 0..5 {
        submit(queue, &format!("b{round}"), tasks.clone());
        let claims = claim(queue, 8);
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for half in claims.chunks(2) {
                let start = &start;
                scope.spawn(move || {
                    let queue = &mut *store.open();
                    start.wait();
                    for claim in half {
                        finish(queue, completed(claim));
                    }
                });
            }
        });
        let ends = claim(queue, 100);
        assert_eq!(ends.len(), 20, "round {round}");
        queue.finish(&ends.iter().map(completed).collect::<Vec<_>>()).unwrap();
    }
    assert!(!queue.has_open_tasks().unwrap());
}

fn waiting_ends_when_another_connection_changes_the_queue(store: &Store) {
    let queue = &mut *store.open();
    let other = &mut *store.open();
    let settle = |queue: &mut dyn Queue| {
        for _ in 0..3 {
            queue.wait(Duration::from_millis(1)).unwrap();
        }
    };
    settle(queue);
    let start = Instant::now();
    queue.wait(Duration::from_millis(200)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());

    let mut expect_change = |change: &mut dyn FnMut(&mut dyn Queue)| {
        settle(queue);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| queue.wait(Duration::from_secs(30)).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            change(other);
            waiter.join().unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    };
    let mut claimed = Vec::new();
    expect_change(&mut |other| submit(other, "a", numbered(2)));
    expect_change(&mut |other| {
        claimed = claim(other, 1);
        finish(other, failed(&claimed[0], None));
    });
    expect_change(&mut |other| assert_eq!(other.cancel("a", None).unwrap(), 1));
    expect_change(&mut |other| assert_eq!(other.retry_failed("a").unwrap(), 2));
    // A change before the wait counts too.
    settle(queue);
    submit(other, "b", numbered(1));
    let start = Instant::now();
    queue.wait(Duration::from_secs(30)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

/// Executes a random operation on the queue while other connections do the same.
fn do_anything(queue: &mut dyn Queue, random: &mut Random, name: &str) {
    let some_batch = |queue: &mut dyn Queue, random: &mut Random| {
        let batches = queue.batches(30).unwrap();
        let at = random.below(batches.len().max(1) as u64) as usize;
        batches.get(at).map(|row| row.id.clone()).unwrap_or_default()
    };
    match random.below(12) {
        0 | 1 => {
            let key = format!("key {}", random.below(5));
            let tasks = vec![
                keyed("x", &key),
                task("y"),
                after("left", &["x", "y"]),
                after("right", &["y"]),
                after("end", &["left", "right"]),
            ];
            submit(queue, name, tasks);
        }
        2 => {
            let batch = some_batch(queue, random);
            queue.cancel(&batch, None).unwrap();
        }
        3 => {
            let batch = some_batch(queue, random);
            queue.cancel(&batch, Some("y")).unwrap();
        }
        4 | 5 => {
            let batch = some_batch(queue, random);
            queue.retry_failed(&batch).unwrap();
        }
        6 => {
            queue.remove_ended(Duration::from_millis(50)).unwrap();
        }
        _ => {
            let claims = claim(queue, 1 + random.below(4) as usize);
            let leases: Vec<Lease> = claims.iter().map(|claim| claim.lease.clone()).collect();
            queue.heartbeat(&leases, LONG).unwrap();
            let ending = |claim: &Claim| match random.below(5) {
                0 => failed(claim, None),
                1 => failed(claim, Some(Duration::ZERO)),
                _ => completed(claim),
            };
            queue.finish(&claims.iter().map(ending).collect::<Vec<_>>()).unwrap();
        }
    }
}

fn concurrent_operations_lose_no_task(store: &Store) {
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            scope.spawn(move || {
                let queue = &mut *store.open();
                let mut random = Random(thread * 7919);
                for number in 0..80 {
                    do_anything(queue, &mut random, &format!("{thread}.{number}"));
                }
            });
        }
    });
    // What is left can be worked on, and nothing is left behind.
    let queue = &mut *store.open();
    wait_until("all tasks end", || {
        let claims = claim(queue, 50);
        queue.finish(&claims.iter().map(completed).collect::<Vec<_>>()).unwrap();
        !queue.has_open_tasks().unwrap()
    });
    let batches = queue.batches(1000).unwrap();
    assert!(!batches.is_empty());
    assert!(batches.iter().all(|batch| batch.open() == 0 && batch.total() == 5), "{batches:?}");
}
