//! Retries, leases, expiry, and how endings are counted and reported.

use super::*;

pub(super) fn retried_task_waits_until_it_is_due(store: &Store) {
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

pub(super) fn expired_lease_passes_to_another_worker(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(1));
    let old = queue.claim("old", ClaimLimits { lease: SHORT, ..limits(1) }).unwrap().remove(0);
    assert!(queue.claim("new", limits(1)).unwrap().is_empty());
    std::thread::sleep(SHORT + SHORT / 2);
    let new = queue.claim("new", limits(1)).unwrap().remove(0);
    assert!(new.lease.token > old.lease.token);
    assert_eq!((&new.task_id, new.attempt), (&old.task_id, 2));
    // The old worker returns after its lease expired. Neither its heartbeat nor its result may count.
    assert_eq!(
        queue.heartbeat(std::slice::from_ref(&old.lease), LONG).unwrap(),
        std::slice::from_ref(&old.lease)
    );
    assert_eq!(queue.finish(&[failed(&old, None), completed(&new)]).unwrap(), [false, true]);
    expect_state(queue, "a", "0", TaskState::Completed);
    assert_eq!(queue.finish(&[failed(&old, None), completed(&new)]).unwrap(), [false, false]);
}

pub(super) fn heartbeat_extends_leases_and_reports_lost_ones(store: &Store) {
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

pub(super) fn task_that_kills_its_workers_fails_after_some_attempts(store: &Store) {
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
    // After a user retries the task, the count of attempts must begin again.
    assert_eq!(queue.retry_failed("a").unwrap(), 2);
    assert_eq!(claim_one(queue).attempt, 1);
}

pub(super) fn tasks_past_their_deadline_expire(store: &Store) {
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
    // A task that a user retries must not expire again.
    assert_eq!(queue.retry_failed("a").unwrap(), 2);
    assert_eq!(names(&claim(queue, 10)), ["a.late"]);
}

pub(super) fn removal_deletes_ended_batches(store: &Store) {
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
    // The batch id and the task key of a removed batch must be usable again.
    submit(queue, "ended", vec![keyed("x", "key")]);
    assert_eq!(names(&claim(queue, 10)), ["ended.x"]);
}

pub(super) fn the_summary_counts_states_and_times(store: &Store) {
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

pub(super) fn task_completed_twice_counts_once(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(1));
    let first = claim_one(queue);
    assert_eq!(
        queue.finish(&[completed(&first), completed(&first), failed(&first, None)]).unwrap(),
        [true, false, false]
    );
    expect_state(queue, "a", "0", TaskState::Completed);
}

pub(super) fn ended_tasks_are_listed_in_order_of_their_end(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "batch", vec![task("a"), task("b"), after("c", &["b"])]);
    assert_eq!(queue.ended_tasks("batch", 0, 10).unwrap(), []);
    let claims = claim(queue, 2);
    finish(queue, failed(&claims[1], None));
    finish(queue, failed(&claims[0], None));
    // In PostgreSQL an ended task may be listed a moment later, if another transaction is in progress, such as that
    // of another test.
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
    // When b fails, c fails with it, because it depends on b.
    let (names, last) = told(queue, 0, 3);
    assert_eq!(names, ["b", "c", "a"]);
    let (first, cursor) = told(queue, 0, 2);
    assert_eq!(first, ["b", "c"]);
    assert_eq!(told(queue, cursor.unwrap(), 1).0, ["a"]);
    assert_eq!(told(queue, last.unwrap(), 0).0, Vec::<String>::new());
    // A retried task has not ended. When it ends again, it must be listed after the others.
    queue.retry_failed("batch").unwrap();
    assert_eq!(told(queue, 0, 0).0, Vec::<String>::new());
    let again = claim_one(queue);
    finish(queue, failed(&again, None));
    assert_eq!(told(queue, last.unwrap(), 1).0, [again.task_id]);
}
