//! The queue in one SQLite file, for the processes of one machine.
//!
//! A *lane* is the list of queued tasks of one batch that have the same priority and repository. To take a task, a
//! claim chooses the lane of the highest priority from which workers have claimed no task for the longest time, and
//! takes its first task. So batches take turns, and a claim takes the same time however many tasks are queued.

mod claim;
mod ending;
mod rows;
mod submit;
mod tables;

use std::collections::HashMap;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use claim::{claim_one, next_lane, settle};
use ending::{Terminal, cancel_open, end_task, enqueue};
use rows::{TASK_COLUMNS, batch_row, task_row};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde_json::Value;
use submit::insert_tasks;
use tables::{TABLES, add_columns, forget_times_of_last_boot};

use super::stored::{digest, millis};
use super::{
    BatchChange, BatchRow, Changed, Claim, ClaimLimits, EndedTask, Ending, Lease, NewBatch, Queue,
    QueueError, TaskRow,
};

/// How long a process waits for SQLite's write lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How often `wait` checks whether another process has changed the database.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) struct SqliteQueue {
    path: String,
    connection: Connection,
    seen_version: i64,
}

type Sql<T> = rusqlite::Result<T>;

/// Why an operation failed: SQLite reported an error, or the queue refused the operation.
enum Failed {
    Sql(rusqlite::Error),
    Queue(QueueError),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// Returns the wall-clock time in milliseconds since 1970, for times that guard shows to users and for the expiry of
/// tasks.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the time since the machine started, in milliseconds, without the time in which it was suspended. Leases and
/// the waits before retries use this clock, because it does not change when somebody sets the wall clock, and because
/// leases then do not expire while the machine is suspended.
fn machine_clock_ms() -> i64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    time.map_or(0, |time| millis(Duration::from(time)))
}

impl SqliteQueue {
    /// Opens the queue. Creates the file if it is missing, and upgrades the tables of an earlier version.
    pub(super) fn open(path: &Path) -> Result<Self, QueueError> {
        let name = path.display().to_string();
        let failed = |source| QueueError::Io { path: name.clone(), source };
        if let Some(directory) = path.parent() {
            DirBuilder::new().mode(0o700).recursive(true).create(directory).map_err(failed)?;
        }
        // The queue contains prompts and answers, so only its owner may read it.
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(failed)?;
        let open = || -> Sql<Connection> {
            let connection = Connection::open(path)?;
            connection.busy_timeout(LOCK_TIMEOUT)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            connection.execute_batch(TABLES)?;
            Ok(connection)
        };
        let connection =
            retry_while_busy(open).map_err(|source| QueueError::Sqlite { path: name.clone(), source })?;
        let mut queue = Self { path: name, connection, seen_version: 0 };
        queue.write(|sql| {
            add_columns(sql)?;
            Ok(forget_times_of_last_boot(sql)?)
        })?;
        Ok(queue)
    }

    /// Runs one read-write transaction.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Failed>,
    ) -> Result<T, QueueError> {
        let path = self.path.clone();
        let run = || -> Result<T, Failed> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|failed| match failed {
            Failed::Sql(source) => QueueError::Sqlite { path, source },
            Failed::Queue(error) => error,
        })
    }

    fn read<T>(&self, work: impl FnOnce(&Connection) -> Sql<T>) -> Result<T, QueueError> {
        work(&self.connection).map_err(|source| QueueError::Sqlite { path: self.path.clone(), source })
    }
}

/// Repeats `work` while another process locks the database, for at most `LOCK_TIMEOUT`. SQLite's own busy timeout does
/// not cover the lock that the creation of tables takes.
fn retry_while_busy<T>(mut work: impl FnMut() -> Sql<T>) -> Sql<T> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match work() {
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == rusqlite::ErrorCode::DatabaseBusy && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Applies a change to a batch. Returns the number of tasks that ended because of the change, which is 0 unless the
/// change is a cancellation.
fn make_change(sql: &Transaction<'_>, batch: &str, change: BatchChange) -> Sql<u64> {
    match change {
        BatchChange::Cancel => return cancel_open(sql, batch, None),
        BatchChange::Pause => sql.execute("update lane set paused = 1 where batch = ?1", [batch])?,
        BatchChange::Resume => sql.execute("update lane set paused = 0 where batch = ?1", [batch])?,
        BatchChange::Priority(rank) => {
            sql.execute("update lane set rank = ?2 where batch = ?1", params![batch, rank])?
        }
    };
    Ok(0)
}

impl Queue for SqliteQueue {
    fn submit(&mut self, batch: &NewBatch) -> Result<String, QueueError> {
        let digest = digest(batch.tasks.iter());
        self.write(|sql| {
            if let Some(key) = &batch.idempotency_key {
                let known: Option<(String, String)> = sql
                    .query_row("select id, digest from batch where idempotency_key = ?1", [key], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })
                    .optional()?;
                match known {
                    Some((id, known)) if known == digest => return Ok(id),
                    Some(_) => return Err(Failed::Queue(QueueError::KeyReused(key.clone()))),
                    None => {}
                }
            }
            sql.execute(
                "insert into batch (id, created_ms, idempotency_key, digest) values (?1, ?2, ?3, ?4)",
                params![batch.id, now_ms(), batch.idempotency_key, digest],
            )?;
            insert_tasks(sql, batch)?;
            Ok(batch.id.clone())
        })
    }

    fn claim(&mut self, worker: &str, limits: ClaimLimits) -> Result<Vec<Claim>, QueueError> {
        self.write(|sql| {
            settle(sql)?;
            let mut running: HashMap<String, usize> = HashMap::new();
            let mut statement = sql.prepare_cached(
                "select lane.repository from task join lane on lane.id = task.lane where task.state = 'running'",
            )?;
            for repository in statement.query_map([], |row| row.get::<_, String>(0))? {
                *running.entry(repository?).or_default() += 1;
            }
            let mut total: usize = running.values().sum();
            let mut claims = Vec::new();
            while claims.len() < limits.most && total < limits.global {
                let Some((lane, repository)) = next_lane(sql, &running, limits.per_repository)? else { break };
                let Some(claim) = claim_one(sql, lane, worker, limits.lease)? else { continue };
                claims.push(claim);
                *running.entry(repository).or_default() += 1;
                total += 1;
            }
            Ok(claims)
        })
    }

    fn heartbeat(&mut self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, QueueError> {
        self.write(|sql| {
            let until = machine_clock_ms() + millis(lease);
            let mut lost = Vec::new();
            let mut update = sql.prepare_cached(
                "update task set lease_until = ?4
                 where batch = ?1 and position = ?2 and token = ?3 and state = 'running'",
            )?;
            for lease in leases {
                if update.execute(params![lease.batch, lease.position, lease.token, until])? == 0 {
                    lost.push(lease.clone());
                }
            }
            Ok(lost)
        })
    }

    fn finish(&mut self, endings: &[(Lease, Ending)]) -> Result<Vec<bool>, QueueError> {
        self.write(|sql| {
            let mut counted = Vec::with_capacity(endings.len());
            for (lease, ending) in endings {
                let Lease { batch, position, token } = lease;
                let started: Option<i64> = sql
                    .prepare_cached(
                        "select started_ms from task
                         where batch = ?1 and position = ?2 and token = ?3 and state = 'running'",
                    )?
                    .query_row(params![batch, position, token], |row| row.get(0))
                    .optional()?;
                counted.push(started.is_some());
                let Some(started) = started else { continue };
                let spent = (now_ms() - started).max(0);
                sql.prepare_cached(
                    "update batch set attempts_ended = attempts_ended + 1, spent_ms = spent_ms + ?2 where id = ?1",
                )?
                .execute(params![batch, spent])?;
                match ending {
                    Ending::Completed(output) => {
                        let output = Value::Object(output.clone()).to_string();
                        end_task(sql, batch, *position, &Terminal::Completed(&output))?;
                    }
                    Ending::Failed(failure, None) => {
                        end_task(sql, batch, *position, &Terminal::Failed(failure))?;
                    }
                    Ending::Failed(_, Some(delay)) => {
                        sql.prepare_cached(
                            "update task set state = 'waiting', due_ms = ?3, worker = ''
                             where batch = ?1 and position = ?2",
                        )?
                        .execute(params![batch, position, machine_clock_ms().saturating_add(millis(*delay))])?;
                    }
                }
            }
            Ok(counted)
        })
    }

    fn cancel(&mut self, batch: &str, task: Option<&str>) -> Result<u64, QueueError> {
        self.write(|sql| Ok(cancel_open(sql, batch, task)?))
    }

    fn change(
        &mut self,
        batch: &str,
        command_id: &str,
        change: BatchChange,
    ) -> Result<Option<Changed>, QueueError> {
        self.write(|sql| {
            let exists: bool =
                sql.query_row("select exists (select 1 from batch where id = ?1)", [batch], |row| {
                    row.get(0)
                })?;
            if !exists {
                return Ok(None);
            }
            let known = sql
                .query_row(
                    "select cancelled from command where batch = ?1 and command_id = ?2",
                    [batch, command_id],
                    |row| row.get::<_, i64>(0),
                )
                .optional()?;
            if let Some(cancelled) = known {
                return Ok(Some(Changed { cancelled: cancelled.unsigned_abs(), is_repeated: true }));
            }
            let cancelled = make_change(sql, batch, change)?;
            sql.execute(
                "insert into command values (?1, ?2, ?3)",
                params![batch, command_id, i64::try_from(cancelled).unwrap_or(i64::MAX)],
            )?;
            Ok(Some(Changed { cancelled, is_repeated: false }))
        })
    }

    fn retry_failed(&mut self, batch: &str) -> Result<u64, QueueError> {
        self.write(|sql| {
            let mut select =
                sql.prepare_cached("select position from task where batch = ?1 and state = 'failed'")?;
            let failed: Vec<i64> = select.query_map([batch], |row| row.get(0))?.collect::<Sql<_>>()?;
            for position in &failed {
                sql.prepare_cached(
                    "update task set state = 'blocked', attempts = 0, takeovers = 0, error = null, error_kind = null,
                         error_detail = null, ending = null, ended_ms = null, expires_ms = null
                     where batch = ?1 and position = ?2",
                )?
                .execute(params![batch, position])?;
                // A task that is retried no longer waits for the result of an earlier task with the same key, but runs
                // itself.
                sql.prepare_cached("delete from dependency where batch = ?1 and position = ?2 and is_same = 1")?
                    .execute(params![batch, position])?;
            }
            for position in &failed {
                let unmet: i64 = sql
                    .prepare_cached(
                        "select count(*) from dependency join task
                             on task.batch = dependency.needed_batch and task.position = dependency.needed
                         where dependency.batch = ?1 and dependency.position = ?2 and task.state != 'completed'",
                    )?
                    .query_row(params![batch, position], |row| row.get(0))?;
                sql.prepare_cached("update task set unmet = ?3 where batch = ?1 and position = ?2")?
                    .execute(params![batch, position, unmet])?;
                if unmet == 0 {
                    enqueue(sql, batch, *position)?;
                }
            }
            Ok(failed.len() as u64)
        })
    }

    fn batch(&mut self, id: &str) -> Result<Option<BatchRow>, QueueError> {
        self.read(|sql| batch_row(sql, id))
    }

    fn batches(&mut self, most: usize) -> Result<Vec<BatchRow>, QueueError> {
        self.read(|sql| {
            let mut statement =
                sql.prepare_cached("select id from batch order by created_ms desc, id desc limit ?1")?;
            let ids: Vec<String> =
                statement.query_map([most as i64], |row| row.get(0))?.collect::<Sql<_>>()?;
            let rows = ids.iter().map(|id| batch_row(sql, id)).collect::<Sql<Vec<_>>>()?;
            Ok(rows.into_iter().flatten().collect())
        })
    }

    fn tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<TaskRow>, QueueError> {
        self.read(|sql| {
            let select = format!(
                "select {TASK_COLUMNS} from task where batch = ?1 and position > ?2 order by position limit ?3"
            );
            sql.prepare_cached(&select)?.query_map(params![batch, after, most as i64], task_row)?.collect()
        })
    }

    fn ended_tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<EndedTask>, QueueError> {
        self.read(|sql| {
            let select = format!(
                "select {TASK_COLUMNS}, ending, ended_ms from task where batch = ?1 and ending > ?2
                 order by ending limit ?3"
            );
            let ended_task = |row: &Row<'_>| {
                Ok(EndedTask { ending: row.get(8)?, ended_ms: row.get(9)?, row: task_row(row)? })
            };
            sql.prepare_cached(&select)?.query_map(params![batch, after, most as i64], ended_task)?.collect()
        })
    }

    fn task(&mut self, batch: &str, task_id: &str) -> Result<Option<TaskRow>, QueueError> {
        self.read(|sql| {
            let select = format!("select {TASK_COLUMNS} from task where batch = ?1 and task_id = ?2");
            sql.prepare_cached(&select)?.query_row(params![batch, task_id], task_row).optional()
        })
    }

    fn wait(&mut self, most: Duration) -> Result<(), QueueError> {
        let deadline = Instant::now() + most;
        loop {
            let version: i64 = self.read(|sql| sql.query_row("pragma data_version", [], |row| row.get(0)))?;
            let rest = deadline.saturating_duration_since(Instant::now());
            if std::mem::replace(&mut self.seen_version, version) != version || rest.is_zero() {
                return Ok(());
            }
            std::thread::sleep(rest.min(LOOK_EVERY));
        }
    }

    fn has_open_tasks(&mut self) -> Result<bool, QueueError> {
        self.read(|sql| {
            sql.query_row(
                "select exists (select 1 from lane where queued > 0 and paused = 0)
                     or exists (select 1 from task where state = 'running')
                     or exists (select 1 from task where state = 'waiting')
                     or exists (select 1 from task join lane on lane.id = task.lane
                         where state = 'blocked' and paused = 0)",
                [],
                |row| row.get(0),
            )
        })
    }

    fn remove_ended(&mut self, age: Duration) -> Result<u64, QueueError> {
        self.write(|sql| {
            let mut select = sql.prepare_cached(
                "select id from batch where coalesce(changed_ms, created_ms) <= ?1 and not exists
                     (select 1 from task where task.batch = batch.id and state not in ('completed', 'failed'))",
            )?;
            let ended: Vec<String> = select
                .query_map([now_ms().saturating_sub(millis(age))], |row| row.get(0))?
                .collect::<Sql<_>>()?;
            for id in &ended {
                for delete in [
                    "delete from dependency where batch = ?1 or needed_batch = ?1",
                    "delete from task_key where batch = ?1",
                    "delete from payload where batch = ?1",
                    "delete from task where batch = ?1",
                    "delete from lane where batch = ?1",
                    "delete from command where batch = ?1",
                    "delete from batch where id = ?1",
                ] {
                    sql.prepare_cached(delete)?.execute([id])?;
                }
            }
            Ok(ended.len() as u64)
        })
    }
}
