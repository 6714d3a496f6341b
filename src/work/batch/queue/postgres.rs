//! The queue in a PostgreSQL database, for the processes of several machines.
//!
//! `postgres/schema.sql` has the tables. All times come from the server's clock. A *lane* is the list of queued tasks
//! of one batch that have the same priority and repository; a claim takes tasks from the lanes of the highest
//! priority in turn. Claims run one at a time under a lock, so that limits are exact and batches take turns.
//! Transactions that look up idempotency keys, carry out commands, or retry or remove batches run one at a time under
//! another lock. All other transactions run concurrently, and guard repeats those that conflict. A claim skips tasks
//! that another transaction has locked.
//!
//! A queue blocks its thread, so asynchronous code must not use it directly.

mod claim;
mod connection;
mod ending;
mod submit;
mod tls;

use std::borrow::Cow;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use postgres::Row;
use serde_json::Value;
use sha2::{Digest, Sha256};

use self::claim::claim_tasks;
use self::connection::{Address, Lock, Session, is_conflict, is_connection_lost};
use self::ending::{EndingTask, Outcome, end_tasks, enqueue, write_retries};
use self::submit::insert_tasks;
use super::stored;
use super::stored::{digest, millis};
use super::{
    BatchChange, BatchRow, Changed, Claim, ClaimLimits, EndedTask, Ending, Lease, NewBatch, Queue,
    QueueError, TaskRow,
};
use crate::work::batch::model::TaskState;

/// The maximum number of times that guard repeats a transaction that conflicts with another one.
const MOST_CONFLICTS: u32 = 20;

pub(super) struct PostgresQueue {
    address: Address,
    session: Option<Session>,
    /// True if another session may have changed the queue since the last `wait`.
    has_changed: bool,
}

type Sql<T> = Result<T, postgres::Error>;

/// The batch and the position of a task.
type TaskKey = (String, i64);

/// Why an operation failed: PostgreSQL reported an error, or the queue refused the operation.
enum Failed {
    Sql(postgres::Error),
    Queue(QueueError),
}

impl From<postgres::Error> for Failed {
    fn from(error: postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// The lock that a transaction takes when it begins, and whether it notifies other sessions when it commits.
#[derive(Clone, Copy, Default)]
struct Transaction {
    lock: Option<Lock>,
    /// Whether to notify the sessions that wait for changes.
    notify: bool,
}

impl PostgresQueue {
    /// Connects to the database, and creates the queue's schema if it is missing.
    pub(super) fn connect(address: &str) -> Result<Self, QueueError> {
        let address = Address::parse(address)?;
        let session = Some(address.open()?);
        Ok(Self { address, session, has_changed: true })
    }

    /// Takes the open session, or opens a new one if there is none or it no longer works. Returns true if the session
    /// is new.
    fn take_session(&mut self) -> Result<(Session, bool), QueueError> {
        if let Some(mut session) = self.session.take() {
            // The connection stores notifications until guard reads them, so guard reads them before every operation.
            let notified = session.await_notification(Duration::ZERO);
            self.has_changed |= !matches!(notified, Ok(false));
            if notified.is_ok() && session.is_usable() && session.renew_plans().is_ok() {
                return Ok((session, false));
            }
        }
        let session = self.address.open()?;
        self.has_changed = true;
        Ok((session, true))
    }

    /// Keeps a session for the next operation, unless the connection is lost. In that case the next operation opens a
    /// new one.
    fn put_back<T>(&mut self, session: Session, result: &Result<T, Failed>) {
        let is_lost = matches!(result, Err(Failed::Sql(error)) if is_connection_lost(error));
        if !is_lost && session.is_usable() {
            self.session = Some(session);
        }
    }

    fn error(&self, failed: Failed) -> QueueError {
        match failed {
            Failed::Sql(error) => self.address.error(&error),
            Failed::Queue(error) => error,
        }
    }

    /// Runs one transaction. Runs it again if it conflicts with another one, at most `MOST_CONFLICTS` times, or if the
    /// connection turns out to be closed before the transaction has begun.
    fn write<T>(
        &mut self,
        transaction: Transaction,
        mut work: impl FnMut(&mut Session) -> Result<T, Failed>,
    ) -> Result<T, QueueError> {
        let mut conflicts = 0;
        loop {
            let (mut session, is_new) = self.take_session()?;
            let mut has_begun = false;
            let result = transaction.run(&mut session, |session| {
                has_begun = true;
                work(session)
            });
            self.put_back(session, &result);
            match result {
                Ok(value) => return Ok(value),
                Err(Failed::Sql(error)) if !has_begun && !is_new && is_connection_lost(&error) => {}
                Err(Failed::Sql(error)) if is_conflict(&error) && conflicts < MOST_CONFLICTS => {
                    conflicts += 1
                }
                Err(failed) => return Err(self.error(failed)),
            }
        }
    }

    /// Runs statements that only read. If the connection turns out to be closed, runs them again.
    fn read<T>(&mut self, work: impl Fn(&mut Session) -> Sql<T>) -> Result<T, QueueError> {
        loop {
            let (mut session, is_new) = self.take_session()?;
            let result = work(&mut session).map_err(Failed::Sql);
            self.put_back(session, &result);
            match result {
                Ok(value) => return Ok(value),
                Err(Failed::Sql(error)) if !is_new && is_connection_lost(&error) => {}
                Err(failed) => return Err(self.error(failed)),
            }
        }
    }
}

impl Transaction {
    fn run<T>(
        self,
        session: &mut Session,
        work: impl FnOnce(&mut Session) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        session.begin(self.lock)?;
        let result = work(session);
        match &result {
            Ok(_) => session.commit(self.notify)?,
            // If the rollback fails, `put_back` drops the session.
            Err(_) => drop(session.roll_back()),
        }
        result
    }
}

/// Replaces each U+0000, which PostgreSQL cannot store in texts, by U+FFFD.
fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Returns the digest that the tables store instead of an idempotency key, which may have any length.
fn key_digest(key: &str) -> String {
    crate::text::hex::encode(Sha256::digest(key))
}

/// Converts a limit to PostgreSQL's `bigint`.
fn most_rows(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

fn task_key(row: &Row) -> TaskKey {
    (row.get(0), row.get(1))
}

/// Splits keys into two columns, which statements pass to `unnest`.
fn columns<'k>(keys: impl Iterator<Item = &'k TaskKey>) -> (Vec<&'k str>, Vec<i64>) {
    keys.map(|(batch, position)| (batch.as_str(), *position)).unzip()
}

fn task_row(row: &Row) -> TaskRow {
    let output: Option<&str> = row.get(3);
    let detail: Option<&str> = row.get(6);
    TaskRow {
        position: row.get(0),
        task_id: row.get(1),
        state: row.get::<_, &str>(2).parse().unwrap_or(TaskState::Failed),
        output: output.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        error: row.get(4),
        error_kind: row.get(5),
        error_detail: detail.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null),
        attempts: u32::try_from(row.get::<_, i64>(7)).unwrap_or(u32::MAX),
    }
}

/// Converts a row that the macro `summary!` selects.
fn batch_row(row: &Row) -> BatchRow {
    let mut counts = [0; 6];
    for (at, count) in counts.iter_mut().enumerate() {
        *count = row.get::<_, i64>(at + 2).unsigned_abs();
    }
    let (ended, spent): (i64, i64) = (row.get(8), row.get(9));
    BatchRow {
        id: row.get(0),
        created_ms: row.get(1),
        counts,
        mean_ms: (ended > 0).then(|| (spent / ended).unsigned_abs()),
        changed_ms: row.get(10),
    }
}

/// Builds a query for the columns that `batch_row` reads. The states are in the order of `TaskState::ALL`.
macro_rules! summary {
    ($of:literal) => {
        concat!(
            "select batch.id, batch.created_ms,
                 count(*) filter (where state = 'blocked'), count(*) filter (where state = 'queued'),
                 count(*) filter (where state = 'waiting'), count(*) filter (where state = 'running'),
                 count(*) filter (where state = 'completed'), count(*) filter (where state = 'failed'),
                 coalesce(sum(attempts_ended), 0)::bigint, coalesce(sum(spent_ms), 0)::bigint, max(ended_ms)
             from guard.batch left join guard.task on task.batch = batch.id
             where batch.id ",
            $of,
            " group by batch.id order by batch.created_ms desc, batch.id desc"
        )
    };
}

/// Builds a query for the columns that `task_row` reads, for the tasks that the condition selects.
macro_rules! tasks {
    ($condition:literal) => {
        concat!(
            "select position, task_id, state, output, error, error_kind, error_detail, attempts from guard.task where ",
            $condition
        )
    };
}

/// Cancels the task with the id `task`, or all tasks of the batch if `task` is `None`. Skips tasks that have ended.
/// Returns the number of tasks that ended because of the cancellation, including the tasks that depend on a cancelled
/// task.
fn cancel_open(sql: &mut Session, batch: &str, task: Option<&str>) -> Sql<u64> {
    let rows = sql.query(
        "select batch, position from guard.task
         where batch = $1 and ($2::text is null or task_id = $2)
             and state in ('blocked', 'queued', 'waiting', 'running')
         order by position for update",
        &[&batch, &task],
    )?;
    let cancelled = Rc::new(Outcome::Failed(stored::cancelled()));
    let ending = |row| EndingTask { key: task_key(row), token: None, outcome: cancelled.clone() };
    Ok(end_tasks(sql, rows.iter().map(ending).collect())?.len() as u64)
}

/// Applies a change to a batch. Returns the number of tasks that ended because of the change, which is 0 unless the
/// change is a cancellation.
fn make_change(sql: &mut Session, batch: &str, change: BatchChange) -> Sql<u64> {
    match change {
        BatchChange::Cancel => return cancel_open(sql, batch, None),
        BatchChange::Pause => {
            sql.query("update guard.lane set is_paused = true where batch = $1", &[&batch])?;
        }
        BatchChange::Resume => {
            sql.query("update guard.lane set is_paused = false where batch = $1", &[&batch])?;
        }
        BatchChange::Priority(priority) => {
            sql.query("update guard.lane set priority = $2 where batch = $1", &[&batch, &priority])?;
        }
    }
    Ok(0)
}

impl Queue for PostgresQueue {
    fn submit(&mut self, batch: &NewBatch) -> Result<String, QueueError> {
        let digest = digest(batch.tasks.iter());
        let key = batch.idempotency_key.as_deref().map(key_digest);
        let has_keys = key.is_some() || batch.tasks.iter().any(|task| task.idempotency_key.is_some());
        let transaction = Transaction { lock: has_keys.then_some(Lock::Keys), notify: true };
        self.write(transaction, |sql| {
            if let (Some(key), Some(digest_of)) = (&batch.idempotency_key, &key) {
                let known = sql.query("select id, digest from guard.batch where key_digest = $1", &[digest_of])?;
                match known.first() {
                    Some(row) if row.get::<_, &str>(1) == digest => return Ok(row.get(0)),
                    Some(_) => return Err(Failed::Queue(QueueError::KeyReused(key.clone()))),
                    None => {}
                }
            }
            sql.query(
                "insert into guard.batch (id, created_ms, key_digest, digest) values ($1, guard.now_ms(), $2, $3)",
                &[&batch.id, &key, &digest],
            )?;
            insert_tasks(sql, batch)?;
            Ok(batch.id.clone())
        })
    }

    fn claim(&mut self, worker: &str, limits: ClaimLimits) -> Result<Vec<Claim>, QueueError> {
        self.write(Transaction { lock: Some(Lock::Claims), notify: false }, |sql| {
            Ok(claim_tasks(sql, worker, limits)?)
        })
    }

    fn heartbeat(&mut self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, QueueError> {
        self.write(Transaction::default(), |sql| {
            let batches: Vec<&str> = leases.iter().map(|lease| lease.batch.as_str()).collect();
            let positions: Vec<i64> = leases.iter().map(|lease| lease.position).collect();
            let tokens: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
            let rows = sql.query(
                "update guard.task set lease_until = clock.now + $4, lease_ms = $4
                 from unnest($1::text[], $2::bigint[], $3::bigint[]) as held (batch, position, token),
                     (select guard.now_ms() as now) as clock
                 where task.batch = held.batch and task.position = held.position and task.token = held.token
                     and task.state = 'running'
                 returning task.token",
                &[&batches, &positions, &tokens, &millis(lease)],
            )?;
            let valid: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
            Ok(leases.iter().filter(|lease| !valid.contains(&lease.token)).cloned().collect())
        })
    }

    fn finish(&mut self, endings: &[(Lease, Ending)]) -> Result<Vec<bool>, QueueError> {
        self.write(Transaction { lock: None, notify: true }, |sql| {
            let mut seen = HashSet::new();
            let is_first: Vec<bool> = endings.iter().map(|(lease, _)| seen.insert(lease)).collect();
            let (mut ended, mut retries) = (Vec::new(), Vec::new());
            for ((lease, ending), _) in endings.iter().zip(&is_first).filter(|(_, is_first)| **is_first) {
                let outcome = match ending {
                    Ending::Completed(output) => {
                        Outcome::Completed(Value::Object(output.clone()).to_string())
                    }
                    Ending::Failed(failure, None) => Outcome::Failed(failure.clone()),
                    Ending::Failed(_, Some(delay)) => {
                        retries.push((lease, *delay));
                        continue;
                    }
                };
                let key = (lease.batch.clone(), lease.position);
                ended.push(EndingTask { key, token: Some(lease.token), outcome: Rc::new(outcome) });
            }
            let mut counted = write_retries(sql, &retries)?;
            counted.extend(end_tasks(sql, ended)?);
            let counts = |((lease, _), is_first): (&(Lease, Ending), bool)| {
                is_first && counted.get(&(lease.batch.clone(), lease.position)) == Some(&lease.token)
            };
            Ok(endings.iter().zip(is_first).map(counts).collect())
        })
    }

    fn cancel(&mut self, batch: &str, task: Option<&str>) -> Result<u64, QueueError> {
        let (batch, task) = (storable(batch), task.map(storable));
        self.write(Transaction { lock: None, notify: true }, |sql| {
            Ok(cancel_open(sql, &batch, task.as_deref())?)
        })
    }

    fn change(
        &mut self,
        batch: &str,
        command_id: &str,
        change: BatchChange,
    ) -> Result<Option<Changed>, QueueError> {
        let (batch, command_id) = (storable(batch), storable(command_id));
        self.write(Transaction { lock: Some(Lock::Keys), notify: true }, |sql| {
            if sql.query("select from guard.batch where id = $1", &[&batch])?.is_empty() {
                return Ok(None);
            }
            let known = sql.query(
                "select cancelled from guard.command where batch = $1 and command_id = $2",
                &[&batch, &command_id],
            )?;
            if let Some(row) = known.first() {
                let cancelled = row.get::<_, i64>(0).unsigned_abs();
                return Ok(Some(Changed { cancelled, is_repeated: true }));
            }
            let cancelled = make_change(sql, &batch, change)?;
            sql.query(
                "insert into guard.command values ($1, $2, $3)",
                &[&batch, &command_id, &i64::try_from(cancelled).unwrap_or(i64::MAX)],
            )?;
            Ok(Some(Changed { cancelled, is_repeated: false }))
        })
    }

    fn retry_failed(&mut self, batch: &str) -> Result<u64, QueueError> {
        let batch = storable(batch);
        self.write(Transaction { lock: Some(Lock::Keys), notify: true }, |sql| {
            // A concurrent transaction may be about to fail a task on which a failed task depends. The concurrent
            // transaction would not see that this one blocks the failed task again, and the task would wait for ever.
            // The row locks make this transaction wait until the concurrent one has ended.
            sql.query("select from guard.task where batch = $1 order by position for update", &[&batch])?;
            let rows = sql.query(
                "update guard.task set state = 'blocked', attempts = 0, takeovers = 0, error = null,
                     error_kind = null, error_detail = null, expires_ms = null, ending = null, ended_ms = null
                 where batch = $1 and state = 'failed' returning position",
                &[&batch],
            )?;
            let failed: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            // A task that is retried no longer waits for the result of an earlier task with the same key, but runs
            // itself.
            sql.query(
                "delete from guard.dependency using unnest($2::bigint[]) as failed (position)
                 where dependency.batch = $1 and dependency.position = failed.position and is_same",
                &[&batch, &failed],
            )?;
            let rows = sql.query(
                "update guard.task set unmet = (
                     select count(*) from guard.dependency
                     join guard.task as needed
                         on needed.batch = dependency.needed_batch and needed.position = dependency.needed
                     where dependency.batch = task.batch and dependency.position = task.position
                         and needed.state <> 'completed'
                 )
                 from unnest($2::bigint[]) as failed (position)
                 where task.batch = $1 and task.position = failed.position
                 returning task.batch, task.position, unmet = 0",
                &[&batch, &failed],
            )?;
            let ready: Vec<TaskKey> = rows.iter().filter(|row| row.get(2)).map(task_key).collect();
            enqueue(sql, &ready)?;
            Ok(failed.len() as u64)
        })
    }

    fn batch(&mut self, id: &str) -> Result<Option<BatchRow>, QueueError> {
        self.read(|sql| Ok(sql.query(summary!("= $1"), &[&storable(id)])?.first().map(batch_row)))
    }

    fn batches(&mut self, most: usize) -> Result<Vec<BatchRow>, QueueError> {
        self.read(|sql| {
            let newest =
                summary!("in (select id from guard.batch order by created_ms desc, id desc limit $1)");
            Ok(sql.query(newest, &[&most_rows(most)])?.iter().map(batch_row).collect())
        })
    }

    fn tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<TaskRow>, QueueError> {
        self.read(|sql| {
            let select = tasks!("batch = $1 and position > $2 order by position limit $3");
            Ok(sql
                .query(select, &[&storable(batch), &after, &most_rows(most)])?
                .iter()
                .map(task_row)
                .collect())
        })
    }

    fn ended_tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<EndedTask>, QueueError> {
        self.read(|sql| {
            // A running transaction may still record endings with lower numbers than some committed ones. The query
            // leaves out such committed endings for now: a caller that received them would never ask for lower numbers
            // again. If all tasks of the batch have ended, there are no such transactions.
            let select = "select position, task_id, state, output, error, error_kind, error_detail, attempts, ending, ended_ms
                 from guard.task
                 where batch = $1 and ending > $2
                     and (ending / 1048576 < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
                         or not exists (select from guard.task as other where other.batch = $1
                             and other.state in ('blocked', 'queued', 'waiting', 'running')))
                 order by ending limit $3";
            let rows = sql.query(select, &[&storable(batch), &after, &most_rows(most)])?;
            let ended =
                |row: &Row| EndedTask { ending: row.get(8), ended_ms: row.get(9), row: task_row(row) };
            Ok(rows.iter().map(ended).collect())
        })
    }

    fn task(&mut self, batch: &str, task_id: &str) -> Result<Option<TaskRow>, QueueError> {
        self.read(|sql| {
            let select = tasks!("batch = $1 and task_id = $2");
            Ok(sql.query(select, &[&storable(batch), &storable(task_id)])?.first().map(task_row))
        })
    }

    fn wait(&mut self, most: Duration) -> Result<(), QueueError> {
        let (mut session, _) = self.take_session()?;
        let result = match std::mem::take(&mut self.has_changed) {
            true => Ok(true),
            false => session.await_notification(most).map_err(Failed::Sql),
        };
        self.put_back(session, &result);
        result.map(drop).map_err(|failed| self.error(failed))
    }

    fn has_open_tasks(&mut self) -> Result<bool, QueueError> {
        self.read(|sql| {
            let rows = sql.query(
                "select exists (select from guard.task join guard.lane on lane.id = task.lane
                         where state = 'queued' and not is_paused)
                     or exists (select from guard.task where state = 'running')
                     or exists (select from guard.task where state = 'waiting')
                     or exists (select from guard.task join guard.lane on lane.id = task.lane
                         where state = 'blocked' and not is_paused)",
                &[],
            )?;
            Ok(rows.first().is_some_and(|row| row.get(0)))
        })
    }

    fn remove_ended(&mut self, age: Duration) -> Result<u64, QueueError> {
        self.write(Transaction { lock: Some(Lock::Keys), notify: false }, |sql| {
            let rows = sql.query(
                "select id from guard.batch, (select guard.now_ms() - $1 as latest) as clock
                 where created_ms <= clock.latest and not exists (
                     select from guard.task where task.batch = batch.id
                         and state in ('blocked', 'queued', 'waiting', 'running')
                 ) and not exists (
                     select from guard.task where task.batch = batch.id and ended_ms > clock.latest
                 )",
                &[&millis(age)],
            )?;
            let ended: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
            if ended.is_empty() {
                return Ok(0);
            }
            for delete in [
                "delete from guard.dependency where batch = any($1)",
                "delete from guard.dependency where needed_batch = any($1)",
                "delete from guard.task_key where batch = any($1)",
                "delete from guard.payload where batch = any($1)",
                "delete from guard.task where batch = any($1)",
                "delete from guard.lane where batch = any($1)",
                "delete from guard.command where batch = any($1)",
                "delete from guard.batch where id = any($1)",
            ] {
                sql.query(delete, &[&ended])?;
            }
            Ok(ended.len() as u64)
        })
    }
}
