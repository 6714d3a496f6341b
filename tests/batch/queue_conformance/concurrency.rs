//! Several connections use the queue at the same time.

use super::*;

pub(super) fn concurrent_workers_claim_each_task_once(store: &Store) {
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

pub(super) fn concurrent_submissions_with_one_key_are_one_batch(store: &Store) {
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
    // While one task ends, another task with the same key is submitted. The second task must end too.
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

pub(super) fn concurrent_completions_of_one_diamond_release_it_once(store: &Store) {
    let queue = &mut *store.open();
    let mut tasks = numbered(8);
    let all: Vec<String> = tasks.iter().map(|task| task.task_id.clone()).collect();
    // Four connections finish the dependencies at the same time. Each task that depends on all of them must become
    // claimable exactly once.
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

pub(super) fn wait_ends_when_another_connection_changes_the_queue(store: &Store) {
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
    let third = &mut *store.open();
    submit(third, "expiring", vec![NewTask { expires_after: Some(Duration::ZERO), ..task("late") }]);
    expect_change(&mut |other| assert!(claim(other, 1).iter().all(|claim| claim.task_id != "late")));
    // `wait` must also return for a change that was made before the call.
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

pub(super) fn concurrent_operations_lose_no_task(store: &Store) {
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
    // All remaining tasks must be executable, and in the end no task may be left.
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

/// `left` has failed because `x` was cancelled. While one connection cancels `y`, on which `left` also depends, another
/// one retries the failed tasks. Whichever is first, `left` must not wait for a task that has failed.
pub(super) fn retry_during_a_cancellation_leaves_no_task_blocked(store: &Store) {
    let (queue, other) = (&mut *store.open(), &mut *store.open());
    for number in 0..40 {
        let batch = number.to_string();
        submit(queue, &batch, vec![task("x"), task("y"), after("left", &["x", "y"])]);
        assert_eq!(queue.cancel(&batch, Some("x")).unwrap(), 2);
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                other.cancel(&batch, Some("y")).unwrap();
            });
            barrier.wait();
            queue.retry_failed(&batch).unwrap();
        });
        wait_until("all tasks end", || {
            let claims = claim(queue, 10);
            queue.finish(&claims.iter().map(completed).collect::<Vec<_>>()).unwrap();
            !queue.has_open_tasks().unwrap()
        });
    }
}
