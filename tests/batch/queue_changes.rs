//! Commands that change a batch in progress, in both stores: each command id is carried out once.

use guard::batch::queue::Queue;
use guard::batch::{BatchChange, Changed};

use super::queue_conformance::{Store, limits, submit, task};

const ALL: &[fn() -> Option<Store>] = &[Store::sqlite, Store::postgres];

fn change(queue: &mut dyn Queue, id: &str, change: BatchChange) -> Option<Changed> {
    queue.change("b", id, change).unwrap()
}

fn claimed(queue: &mut dyn Queue, most: usize) -> Vec<String> {
    queue.claim("w", limits(most)).unwrap().into_iter().map(|claim| claim.lease.batch).collect()
}

/// A paused batch gives workers no task, and does not keep a worker that ends when the queue is empty. A resumed batch
/// gives them again.
#[test]
fn a_paused_batch_gives_no_tasks() {
    for store in ALL {
        let Some(store) = store() else { return };
        let mut queue = store.open();
        submit(&mut *queue, "b", vec![task("1"), task("2")]);
        assert!(change(&mut *queue, "c1", BatchChange::Pause).is_some_and(|done| !done.is_repeated));
        assert_eq!((claimed(&mut *queue, 5), queue.has_open_tasks().unwrap()), (vec![], false));
        // The same id again, even for another change, does nothing.
        assert!(change(&mut *queue, "c1", BatchChange::Resume).is_some_and(|done| done.is_repeated));
        assert_eq!(claimed(&mut *queue, 5), Vec::<String>::new());
        assert!(change(&mut *queue, "c2", BatchChange::Resume).is_some());
        assert!(queue.has_open_tasks().unwrap());
        assert_eq!(claimed(&mut *queue, 5).len(), 2);
    }
}

/// The batch with the changed priority comes first.
#[test]
fn a_batch_gets_another_priority() {
    for store in ALL {
        let Some(store) = store() else { return };
        let mut queue = store.open();
        let urgent = |id: &str| guard::batch::NewTask { priority: 5, ..task(id) };
        submit(&mut *queue, "a", vec![urgent("1"), urgent("2")]);
        submit(&mut *queue, "b", vec![task("1"), urgent("2")]);
        change(&mut *queue, "c1", BatchChange::Priority(9));
        assert_eq!(claimed(&mut *queue, 2), ["b", "b"]);
        assert_eq!(claimed(&mut *queue, 2), ["a", "a"]);
    }
}

/// A batch is cancelled once. A repeated command reports what the first one did, and cancels nothing that was queued since.
#[test]
fn a_repeated_cancel_cancels_nothing() {
    for store in ALL {
        let Some(store) = store() else { return };
        let mut queue = store.open();
        submit(&mut *queue, "b", vec![task("1"), task("2")]);
        let first = change(&mut *queue, "c1", BatchChange::Cancel);
        assert_eq!(first, Some(Changed { cancelled: 2, is_repeated: false }));
        assert_eq!(queue.retry_failed("b").unwrap(), 2);
        let again = change(&mut *queue, "c1", BatchChange::Cancel);
        assert_eq!(again, Some(Changed { cancelled: 2, is_repeated: true }));
        assert_eq!(claimed(&mut *queue, 5).len(), 2);
        assert_eq!(queue.change("unknown", "c1", BatchChange::Cancel).unwrap(), None);
    }
}
