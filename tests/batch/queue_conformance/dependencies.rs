//! Tasks that depend on others, and what a cancellation or a retry means for them.

use super::*;

pub(super) fn chain_of_dependencies_runs_in_order(store: &Store) {
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

pub(super) fn task_with_two_dependencies_waits_for_both(store: &Store) {
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
    // Both dependencies end in one call.
    submit(queue, "b", vec![task("left"), task("right"), after("end", &["left", "right"])]);
    let sides = claim(queue, 10);
    assert_eq!(queue.finish(&[completed(&sides[0]), completed(&sides[1])]).unwrap(), [true, true]);
    assert_eq!(names(&claim(queue, 10)), ["b.end"]);
}

pub(super) fn task_may_depend_on_a_later_task(store: &Store) {
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

pub(super) fn failed_task_fails_all_dependents(store: &Store) {
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

pub(super) fn cancelled_batch_fails_its_waiting_tasks(store: &Store) {
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

pub(super) fn one_task_can_be_cancelled(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "a", vec![task("x"), task("y"), after("z", &["x"])]);
    assert_eq!(queue.cancel("a", Some("x")).unwrap(), 2);
    expect_failure(queue, "a", "x", TaskKind::Cancelled);
    expect_failure(queue, "a", "z", TaskKind::DependencyFailed);
    assert_eq!(names(&claim(queue, 10)), ["a.y"]);
}

pub(super) fn failed_tasks_can_be_retried(store: &Store) {
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

pub(super) fn retried_tasks_wait_for_their_dependencies(store: &Store) {
    let queue = &mut *store.open();
    submit(queue, "first", vec![keyed("x", "key")]);
    let tasks = vec![keyed("x", "key"), after("y", &["x"]), task("done"), after("z", &["y", "done"])];
    submit(queue, "a", tasks);
    let claims = claim(queue, 10);
    assert_eq!(names(&claims), ["first.x", "a.done"]);
    assert_eq!(queue.finish(&[failed(&claims[0], None), completed(&claims[1])]).unwrap(), [true, true]);
    expect_failure(queue, "a", "x", TaskKind::RunFailed);
    expect_failure(queue, "a", "z", TaskKind::DependencyFailed);
    // `a.x` failed because `first.x`, which has the same key, had failed. After the retry the queue must give out `a.x`
    // itself, and then the tasks that depend on it.
    assert_eq!(queue.retry_failed("a").unwrap(), 3);
    for expected in ["a.x", "a.y", "a.z"] {
        let next = claim(queue, 10);
        assert_eq!(names(&next), [expected]);
        finish(queue, completed(&next[0]));
    }
    expect_failure(queue, "first", "x", TaskKind::RunFailed);
}
