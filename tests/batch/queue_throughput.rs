//! Measures the queue: `cargo test --release --test guard queue_throughput -- --ignored --nocapture --test-threads 1`.
//! It prints figures and never fails, because a loaded machine is not a bug.

use std::time::{Duration, Instant};

use guard::batch::NewTask;
use guard::batch::queue::Queue;

use super::queue_conformance::{Store, completed, limits, submit, task};

const TASKS: usize = 20_000;

fn fill(queue: &mut dyn Queue, batch: &str, count: usize) -> Duration {
    let tasks: Vec<NewTask> = (0..count).map(|number| task(&number.to_string())).collect();
    let start = Instant::now();
    submit(queue, batch, tasks);
    start.elapsed()
}

/// Claims and finishes up to `most` tasks at a time until the queue is empty. Returns the number of tasks.
fn drain(store: &Store, most: usize) -> usize {
    let queue = &mut *store.open();
    let mut count = 0;
    loop {
        let claims = queue.claim("worker", limits(most)).unwrap();
        if claims.is_empty() {
            return count;
        }
        count += claims.len();
        queue.finish(&claims.iter().map(completed).collect::<Vec<_>>()).unwrap();
    }
}

fn measure_throughput(name: &str, store: &Store, workers: usize, most: usize) {
    let submitted = fill(&mut *store.open(), &format!("{workers} {most}"), TASKS);
    let start = Instant::now();
    let done: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| drain(store, most))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let elapsed = start.elapsed();
    assert_eq!(done, TASKS);
    let rate = TASKS as f64 / elapsed.as_secs_f64();
    println!("{name}, {workers} workers, claims of {most}: {rate:.0} tasks/s (submitted in {submitted:.1?})");
}

fn measure_claims(name: &str, store: &Store) {
    let queue = &mut *store.open();
    let mut queued = 0;
    for (batch, wanted) in [("small", 100), ("large", 100_000)] {
        fill(queue, batch, wanted - queued);
        for most in [1, 8] {
            let mut times = Vec::new();
            for _ in 0..50 {
                let start = Instant::now();
                let claims = queue.claim("worker", limits(most)).unwrap();
                times.push(start.elapsed());
                let again = |(lease, _)| {
                    let failure =
                        guard::batch::TaskFailure::permanent(guard::batch::TaskKind::Internal, "again");
                    (lease, guard::batch::queue::Ending::Failed(failure, Some(Duration::ZERO)))
                };
                queue.finish(&claims.iter().map(completed).map(again).collect::<Vec<_>>()).unwrap();
            }
            times.sort_unstable();
            println!("{name}, {wanted} queued, claims of {most}: median {:.2?}", times[times.len() / 2]);
        }
        queued = wanted;
    }
}

#[test]
#[ignore = "a measurement"]
fn sqlite() {
    let store = Store::sqlite().unwrap();
    measure_throughput("SQLite", &store, 1, 8);
    measure_throughput("SQLite", &store, 1, 1);
    measure_throughput("SQLite", &store, 4, 8);
    measure_claims("SQLite", &Store::sqlite().unwrap());
}

#[test]
#[ignore = "a measurement"]
fn postgres() {
    let Some(store) = Store::postgres() else { return };
    measure_throughput("PostgreSQL", &store, 4, 8);
    measure_throughput("PostgreSQL", &store, 4, 2);
    measure_throughput("PostgreSQL", &store, 4, 1);
    measure_throughput("PostgreSQL", &store, 1, 8);
    measure_claims("PostgreSQL", &Store::postgres().unwrap());
}
