//! Tests commands that change a batch in progress, in both stores. The queue must execute each command id once.

use guard::work::batch::queue::Queue;
use guard::work::batch::{BatchChange, Changed};

use super::queue_conformance::{Store, limits, submit, task};

const ALL: &[fn() -> Option<Store>] = &[Store::sqlite, Store::postgres];

fn change(queue: &mut dyn Queue, id: &str, change: BatchChange) -> Option<Changed> {
    queue.change("b", id, change).unwrap()
}

fn claimed(queue: &mut dyn Queue, most: usize) -> Vec<String> {
    queue.claim("w", limits(most)).unwrap().into_iter().map(|claim| claim.lease.batch).collect()
}

/// The queue must give workers no task of a paused batch, and a worker that exits when the queue is idle must not
/// wait for the paused batch. After `resume` the queue must give out the batch's tasks again.
#[test]
fn paused_batch_gives_workers_no_tasks() {
    for store in ALL {
        let Some(store) = store() else { return };
        let mut queue = store.open();
        submit(&mut *queue, "b", vec![task("1"), task("2")]);
        assert!(change(&mut *queue, "c1", BatchChange::Pause).is_some_and(|done| !done.is_repeated));
        assert_eq!((claimed(&mut *queue, 5), queue.has_open_tasks().unwrap()), (vec![], false));
        // The same command id again must do nothing, even for another change.
        assert!(change(&mut *queue, "c1", BatchChange::Resume).is_some_and(|done| done.is_repeated));
        assert_eq!(claimed(&mut *queue, 5), Vec::<String>::new());
        assert!(change(&mut *queue, "c2", BatchChange::Resume).is_some());
        assert!(queue.has_open_tasks().unwrap());
        assert_eq!(claimed(&mut *queue, 5).len(), 2);
    }
}

/// A command raises the priority of a batch. Workers must get its tasks before those of other batches.
#[test]
fn raised_priority_moves_a_batch_ahead() {
    for store in ALL {
        let Some(store) = store() else { return };
        let mut queue = store.open();
        let urgent = |id: &str| guard::work::batch::NewTask { priority: 5, ..task(id) };
        submit(&mut *queue, "a", vec![urgent("1"), urgent("2")]);
        submit(&mut *queue, "b", vec![task("1"), urgent("2")]);
        change(&mut *queue, "c1", BatchChange::Priority(9));
        assert_eq!(claimed(&mut *queue, 2), ["b", "b"]);
        assert_eq!(claimed(&mut *queue, 2), ["a", "a"]);
    }
}

/// A batch is cancelled twice with the same command id. The second command must report the same as the first, and
/// cancel nothing that was queued in between.
#[test]
fn repeated_cancel_command_cancels_nothing_more() {
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
