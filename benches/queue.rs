//! Measures the queue of batches: `cargo bench --bench queue`. It measures SQLite, and also PostgreSQL if the variable
//! `QUEUE_DATABASE` has the address of an empty database.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(clippy::unwrap_used, reason = "a benchmark ends at the first error")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::work::batch::queue::{Claim, ClaimLimits, Ending, Lease, NewBatch, Queue, open_queue};
use guard::work::batch::{BatchOptions, NewTask, TaskFailure, TaskKind};

const TASKS: usize = 20_000;

fn main() {
    let directory = std::env::temp_dir().join(format!("guard-queue-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    measure("SQLite", &Store { directory: &directory, address: None });
    std::fs::remove_dir_all(&directory).unwrap();
    match std::env::var("QUEUE_DATABASE") {
        Ok(address) => measure("PostgreSQL", &Store { directory: &directory, address: Some(address) }),
        Err(_) => println!("PostgreSQL: not measured, because QUEUE_DATABASE is not set"),
    }
}

/// A queue that several connections can open.
struct Store<'d> {
    directory: &'d Path,
    address: Option<String>,
}

impl Store<'_> {
    fn open(&self) -> Box<dyn Queue> {
        open_queue(self.address.as_deref(), &self.directory.join("queue.sqlite")).unwrap()
    }
}

fn measure(name: &str, store: &Store<'_>) {
    for (workers, most) in [(1, 1), (1, 8), (4, 1), (4, 8)] {
        let submitted = submit(&mut *store.open(), &format!("{workers} {most}"), TASKS);
        let start = Instant::now();
        let done: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| drain(store, most))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        let rate = done as f64 / start.elapsed().as_secs_f64();
        println!(
            "{name}, {workers} workers, claims of {most}: {rate:.0} tasks/s (submitted in {submitted:.1?})"
        );
    }
    measure_claims(name, store);
}

/// Measures how long a claim takes if the queue has few or many tasks.
fn measure_claims(name: &str, store: &Store<'_>) {
    let queue = &mut *store.open();
    let mut queued = 0;
    for (batch, wanted) in [("small", 100), ("large", 100_000)] {
        submit(queue, batch, wanted - queued);
        queued = wanted;
        for most in [1, 8] {
            let mut times = Vec::new();
            for _ in 0..50 {
                let start = Instant::now();
                let claims = queue.claim("worker", limits(most)).unwrap();
                times.push(start.elapsed());
                let again = |claim: &Claim| {
                    let failure = TaskFailure::permanent(TaskKind::Internal, "again");
                    (claim.lease.clone(), Ending::Failed(failure, Some(Duration::ZERO)))
                };
                queue.finish(&claims.iter().map(again).collect::<Vec<_>>()).unwrap();
            }
            times.sort_unstable();
            println!("{name}, {wanted} queued, claims of {most}: median {:.2?}", times[times.len() / 2]);
        }
    }
}

/// Submits a batch. Returns how long that took.
fn submit(queue: &mut dyn Queue, batch: &str, count: usize) -> Duration {
    let tasks = (0..count).map(|number| task(&number.to_string())).collect();
    let batch = NewBatch { id: batch.to_string(), tasks, idempotency_key: None };
    let start = Instant::now();
    queue.submit(&batch).unwrap();
    start.elapsed()
}

fn task(id: &str) -> NewTask {
    NewTask {
        task_id: id.to_string(),
        task_type: "echo".to_string(),
        parameters: serde_json::Map::new(),
        priority: 0,
        depends_on: Vec::new(),
        idempotency_key: None,
        repository: "/repository".to_string(),
        expires_after: None,
        options: BatchOptions { directory: PathBuf::from("/repository"), ..BatchOptions::default() },
    }
}

fn limits(most: usize) -> ClaimLimits {
    ClaimLimits { most, global: 100_000, per_repository: 100_000, lease: Duration::from_secs(600) }
}

/// Claims and completes up to `most` tasks at a time until the queue is empty. Returns the number of tasks.
fn drain(store: &Store<'_>, most: usize) -> usize {
    let queue = &mut *store.open();
    let mut count = 0;
    loop {
        let claims = queue.claim("worker", limits(most)).unwrap();
        if claims.is_empty() {
            return count;
        }
        count += claims.len();
        let completed = |claim: &Claim| -> (Lease, Ending) {
            (claim.lease.clone(), Ending::Completed(serde_json::Map::new()))
        };
        queue.finish(&claims.iter().map(completed).collect::<Vec<_>>()).unwrap();
    }
}
