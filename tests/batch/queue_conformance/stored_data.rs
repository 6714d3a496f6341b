//! Parameters, outputs and texts are stored unchanged.

use super::*;

pub(super) fn large_parameters_and_outputs_are_kept(store: &Store) {
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

pub(super) fn unusual_text_is_stored_unchanged(store: &Store) {
    let queue = &mut *store.open();
    for (at, strange) in ["'; drop table task; --", "\"\\\\\n\t\r", "\u{1f980}\u{202e}\u{feff}é", "$1 %s {}"]
        .into_iter()
        .enumerate()
    {
        let id = format!("b{at}");
        // JSON can hold what text columns of a database cannot: U+0000, and every number unchanged.
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
    // An agent can put any character into an error message. The queue must record the failure nevertheless.
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

pub(super) fn task_that_cannot_be_stored_is_refused(store: &Store) {
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
