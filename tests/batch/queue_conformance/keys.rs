//! Idempotency keys of batches and tasks.

use super::*;

pub(super) fn repeated_batch_key_queues_nothing(store: &Store) {
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

pub(super) fn repeated_task_key_gets_the_first_result(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![keyed("x", "completed"), keyed("y", "pending"), keyed("z", "fails later")]);
    let first = claim(queue, 3);
    finish(queue, completed(&first[0]));
    submit(queue, "b", vec![keyed("x", "completed"), keyed("y", "pending"), keyed("z", "fails later")]);
    // The first task of batch `a` has completed, so the task with the same key in batch `b` must have its output at
    // once. The tasks with the other two keys must not run twice.
    assert_eq!(row(queue, "b", "x").output, object(json!({"done": "x"})));
    expect_state(queue, "b", "y", TaskState::Blocked);
    assert!(claim(queue, 10).is_empty());
    assert_eq!(queue.finish(&[completed(&first[1]), failed(&first[2], None)]).unwrap(), [true, true]);
    assert_eq!(row(queue, "b", "y").output, object(json!({"done": "y"})));
    expect_failure(queue, "b", "z", TaskKind::RunFailed);
    assert!(!queue.has_open_tasks().unwrap());
}

pub(super) fn task_key_of_a_failed_task_runs_again(store: &Store) {
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

pub(super) fn task_key_with_different_parameters_is_refused(store: &Store) {
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

pub(super) fn task_with_a_repeated_key_releases_its_dependents(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![keyed("x", "key")]);
    submit(queue, "b", vec![keyed("x", "key"), after("y", &["x"])]);
    let first = claim_one(queue);
    finish(queue, completed(&first));
    submit(queue, "c", vec![after("y", &["x"]), keyed("x", "key")]);
    let next = claim(queue, 10);
    assert_eq!(names(&next).into_iter().collect::<HashSet<_>>(), HashSet::from(["b.y".into(), "c.y".into()]));
}
