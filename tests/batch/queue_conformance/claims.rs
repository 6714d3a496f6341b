//! Which tasks a claim takes, in which order, and within which limits.

use super::*;

pub(super) fn tasks_are_claimed_and_polled_in_order(store: &Store) {
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

pub(super) fn unknown_batch_and_task_ids_return_none(store: &Store) {
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

pub(super) fn empty_batch_is_accepted(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "b", Vec::new());
    assert_eq!(summary(queue, "b").total(), 0);
    assert!(!queue.has_open_tasks().unwrap());
    assert!(claim(queue, 5).is_empty());
    assert_eq!(queue.remove_ended(Duration::ZERO).unwrap(), 1);
}

pub(super) fn batches_are_listed_newest_first(store: &Store) {
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

pub(super) fn tasks_of_higher_priority_are_claimed_first(store: &Store) {
    let queue = &mut *store.open();
    let with = |id: &str, priority| NewTask { priority, ..task(id) };
    submit(queue, "a", vec![with("low", -5), with("middle", 0), with("high", 7), with("high2", 7)]);
    submit(queue, "b", vec![with("top", 8), with("low", -6)]);
    assert_eq!(names(&claim(queue, 1)), ["b.top"]);
    assert_eq!(names(&claim(queue, 3)), ["a.high", "a.high2", "a.middle"]);
    submit(queue, "c", vec![with("late", 1)]);
    assert_eq!(names(&claim(queue, 10)), ["c.late", "a.low", "b.low"]);
}

pub(super) fn batches_of_equal_priority_take_turns(store: &Store) {
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

pub(super) fn one_claim_takes_tasks_from_batches_in_turn(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", numbered(50));
    submit(queue, "b", numbered(2));
    submit(queue, "c", numbered(50));
    let order: Vec<String> = claim(queue, 9).into_iter().map(|claim| claim.lease.batch).collect();
    assert_eq!(order, ["a", "b", "c", "a", "b", "c", "a", "c", "a"]);
}

pub(super) fn tasks_per_repository_are_limited(store: &Store) {
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

pub(super) fn repository_at_its_limit_does_not_delay_others(store: &Store) {
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

pub(super) fn global_limit_holds_across_repositories(store: &Store) {
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

pub(super) fn concurrent_claims_respect_the_limits(store: &Store) {
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
