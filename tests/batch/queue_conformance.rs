//! Runs the same cases against both stores of the queue, SQLite and PostgreSQL. Both must behave alike.

mod attempts;
mod claims;
mod concurrency;
mod dependencies;
mod keys;
mod stored_data;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use guard::work::batch::queue::{
    BatchRow, Claim, ClaimLimits, Ending, Lease, MOST_TAKEOVERS, NewBatch, Queue, QueueError, TaskRow,
    open_queue,
};
use guard::work::batch::{BatchOptions, NewTask, TaskFailure, TaskKind, TaskState};
use serde_json::{Map, Value, json};

use crate::support::{Random, Scratch, shared_postgres, wait_until};

/// A lease that does not expire during a test.
const LONG: Duration = Duration::from_secs(600);
/// A lease that expires soon, but not between two calls.
const SHORT: Duration = Duration::from_secs(2);

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
    ($($group:ident { $($case:ident)* })*) => {
        mod sqlite {
            $($(#[test] fn $case() { super::run(super::Store::sqlite(), super::$group::$case); })*)*
        }
        mod postgres {
            $($(#[test] fn $case() { super::run(super::Store::postgres(), super::$group::$case); })*)*
        }
    };
}

fn run(store: Option<Store>, case: fn(&Store)) {
    if let Some(store) = store {
        case(&store);
    }
}

conformance! {
    claims {
        tasks_are_claimed_and_polled_in_order
        unknown_batch_and_task_ids_return_none
        empty_batch_is_accepted
        batches_are_listed_newest_first
        tasks_of_higher_priority_are_claimed_first
        batches_of_equal_priority_take_turns
        one_claim_takes_tasks_from_batches_in_turn
        tasks_per_repository_are_limited
        repository_at_its_limit_does_not_delay_others
        global_limit_holds_across_repositories
        concurrent_claims_respect_the_limits
    }
    keys {
        repeated_batch_key_queues_nothing
        repeated_task_key_gets_the_first_result
        task_key_of_a_failed_task_runs_again
        task_key_with_different_parameters_is_refused
        task_with_a_repeated_key_releases_its_dependents
    }
    dependencies {
        chain_of_dependencies_runs_in_order
        task_with_two_dependencies_waits_for_both
        task_may_depend_on_a_later_task
        failed_task_fails_all_dependents
        cancelled_batch_fails_its_waiting_tasks
        one_task_can_be_cancelled
        failed_tasks_can_be_retried
        retried_tasks_wait_for_their_dependencies
    }
    attempts {
        retried_task_waits_until_it_is_due
        expired_lease_passes_to_another_worker
        heartbeat_extends_leases_and_reports_lost_ones
        task_that_kills_its_workers_fails_after_some_attempts
        tasks_past_their_deadline_expire
        removal_deletes_ended_batches
        the_summary_counts_states_and_times
        task_completed_twice_counts_once
        ended_tasks_are_listed_in_order_of_their_end
    }
    stored_data {
        large_parameters_and_outputs_are_kept
        unusual_text_is_stored_unchanged
        task_that_cannot_be_stored_is_refused
    }
    concurrency {
        concurrent_workers_claim_each_task_once
        concurrent_submissions_with_one_key_are_one_batch
        concurrent_completions_of_one_diamond_release_it_once
        wait_ends_when_another_connection_changes_the_queue
        retry_during_a_cancellation_leaves_no_task_blocked
        concurrent_operations_lose_no_task
    }
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
