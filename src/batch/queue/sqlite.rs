//! The queue in one SQLite file, for the processes of one machine.
//!
//! A *lane* is the list of queued tasks of one batch that have the same priority and repository. A claim chooses
//! among the lanes of the highest priority the one whose last claim is the longest ago, and takes its first task. So
//! batches take turns, and a claim takes the same time however many tasks are queued.

use std::collections::{HashMap, VecDeque};
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde_json::Value;

use super::stored::{self, digest, millis};
use super::{
    BatchChange, BatchRow, Changed, Claim, ClaimLimits, EndedTask, Ending, Lease, MOST_TAKEOVERS, NewBatch,
    Queue, QueueError, TaskRow,
};
use crate::batch::model::{NewTask, TaskFailure, TaskState};

/// How long a process waits for SQLite's write lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How often `wait` checks whether another process has changed the database.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Large values are in `payload`, which is never updated: SQLite writes a whole row again when one column changes.
const TABLES: &str = "
create table if not exists meta (name text primary key, value text not null) strict;
create table if not exists batch (
    id text primary key, created_ms integer not null, idempotency_key text unique, digest text not null,
    attempts_ended integer not null default 0, spent_ms integer not null default 0, changed_ms integer,
    endings integer not null default 0
) strict;
create table if not exists lane (
    id integer primary key, batch text not null, priority integer not null, repository text not null,
    queued integer not null, turn integer not null, unique (batch, priority, repository)
) strict;
create table if not exists command (
    batch text not null, command_id text not null, cancelled integer not null, primary key (batch, command_id)
) strict, without rowid;
create table if not exists task (
    batch text not null, position integer not null, task_id text not null, type text not null, lane integer not null,
    state text not null, unmet integer not null, attempts integer not null, takeovers integer not null,
    token integer not null, worker text not null, lease_until integer not null, due_ms integer not null,
    expires_ms integer, started_ms integer not null, error_kind text, error text, error_detail text, output text,
    ending integer, ended_ms integer, primary key (batch, position)
) strict, without rowid;
create table if not exists payload (
    batch text not null, position integer not null, parameters text not null, options text not null,
    primary key (batch, position)
) strict, without rowid;
create table if not exists dependency (
    needed_batch text not null, needed integer not null, batch text not null, position integer not null,
    is_same integer not null, primary key (needed_batch, needed, batch, position)
) strict, without rowid;
create table if not exists task_key (
    idempotency_key text primary key, digest text not null, batch text not null, position integer not null
) strict;
create unique index if not exists task_by_id on task (batch, task_id);
create index if not exists task_by_state on task (batch, state);
create index if not exists task_by_ending on task (batch, ending) where ending is not null;
create index if not exists dependency_of on dependency (batch, position);
create index if not exists task_queued on task (lane, position) where state = 'queued';
create index if not exists task_running on task (lease_until) where state = 'running';
create index if not exists task_waiting on task (due_ms) where state = 'waiting';
create index if not exists task_blocked on task (state) where state = 'blocked';
create index if not exists task_expiring on task (expires_ms)
    where expires_ms is not null and state in ('queued', 'waiting', 'blocked');
";

/// What was added to the queue after its first version. `rank` is the priority that counts for claims; `priority` is the
/// one that the batch was submitted with.
const ADDED_COLUMNS: &str = "
alter table lane add column paused integer not null default 0;
alter table lane add column rank integer not null default 0;
update lane set rank = priority;
drop index if exists lane_by_turn;
create index lane_by_rank on lane (rank desc, turn) where queued > 0 and paused = 0;
";

/// A queue in a SQLite file.
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
/// the waits before retries use this clock, because it does not change when somebody sets the wall clock, and leases do
/// not expire while the worker is suspended.
fn machine_clock_ms() -> i64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    time.map_or(0, |time| millis(Duration::from(time)))
}

impl SqliteQueue {
    /// Opens the queue, and creates the file if it is missing.
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

/// Repeats `work` while another process locks the database. SQLite's own busy timeout does not cover the lock that
/// the creation of tables takes.
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

fn add_columns(sql: &Transaction<'_>) -> Sql<()> {
    let has_columns: bool = sql.query_row(
        "select exists (select 1 from pragma_table_info('lane') where name = 'rank')",
        [],
        |row| row.get(0),
    )?;
    if has_columns { Ok(()) } else { sql.execute_batch(ADDED_COLUMNS) }
}

/// The machine's clock starts at zero when the machine starts, so the leases and waits of the time before mean nothing.
fn forget_times_of_last_boot(sql: &Transaction<'_>) -> Sql<()> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let known: Option<String> =
        sql.query_row("select value from meta where name = 'boot'", [], |row| row.get(0)).optional()?;
    if known.as_deref() != Some(boot.as_str()) {
        sql.execute("update task set lease_until = 0 where state = 'running'", [])?;
        sql.execute("update task set due_ms = 0 where state = 'waiting'", [])?;
        sql.execute("insert or replace into meta values ('boot', ?1)", [boot])?;
    }
    Ok(())
}

/// A number that is higher with every call, for fencing tokens and turns.
fn next_number(sql: &Transaction<'_>) -> Sql<i64> {
    let known: Option<String> =
        sql.query_row("select value from meta where name = 'number'", [], |row| row.get(0)).optional()?;
    let next = known.and_then(|text| text.parse::<i64>().ok()).unwrap_or(0) + 1;
    sql.execute("insert or replace into meta values ('number', ?1)", [next.to_string()])?;
    Ok(next)
}

fn lane(sql: &Transaction<'_>, batch: &str, task: &NewTask) -> Sql<i64> {
    sql.prepare_cached(
        "insert into lane (batch, priority, rank, repository, queued, turn) values (?1, ?2, ?2, ?3, 0, 0)
         on conflict (batch, priority, repository) do update set queued = queued returning id",
    )?
    .query_row(params![batch, task.priority, task.repository], |row| row.get(0))
}

/// Makes a task available to workers.
fn enqueue(sql: &Transaction<'_>, batch: &str, position: i64) -> Sql<()> {
    let lane: i64 = sql
        .prepare_cached(
            "update task set state = 'queued', worker = '' where batch = ?1 and position = ?2 returning lane",
        )?
        .query_row(params![batch, position], |row| row.get(0))?;
    sql.prepare_cached("update lane set queued = queued + 1 where id = ?1")?.execute([lane])?;
    Ok(())
}

/// The outcome of a task that does not change any more.
enum Terminal<'o> {
    Completed(&'o str),
    Failed(&'o TaskFailure),
}

fn end_task(sql: &Transaction<'_>, batch: &str, position: i64, outcome: &Terminal<'_>) -> Sql<u64> {
    end_tasks(sql, batch, &[position], outcome)
}

/// Ends tasks and everything that depends on them: dependent tasks become available or fail, repeated tasks get the
/// same result.
fn end_tasks(sql: &Transaction<'_>, batch: &str, positions: &[i64], outcome: &Terminal<'_>) -> Sql<u64> {
    let dependency_failed;
    // First in, first out: a task that ends by itself and depends on another one of these gets its own outcome.
    let mut open: VecDeque<(String, i64, bool)> =
        positions.iter().map(|position| (batch.to_string(), *position, false)).collect();
    let mut ended = 0;
    let failed = match outcome {
        Terminal::Completed(_) => None,
        Terminal::Failed(failure) => {
            dependency_failed = stored::dependency_failed();
            Some((*failure, &dependency_failed))
        }
    };
    while let Some((batch, position, is_dependent)) = open.pop_front() {
        let before: Option<(String, i64)> = sql
            .prepare_cached("select state, lane from task where batch = ?1 and position = ?2")?
            .query_row(params![batch, position], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((state, lane)) = before.filter(|(state, _)| !is_terminal(state)) else { continue };
        if state == TaskState::Queued.as_str() {
            sql.prepare_cached("update lane set queued = queued - 1 where id = ?1")?.execute([lane])?;
        }
        let now = now_ms();
        let ending: i64 = sql
            .prepare_cached(
                "update batch set changed_ms = ?2, endings = endings + 1 where id = ?1 returning endings",
            )?
            .query_row(params![batch, now], |row| row.get(0))?;
        let mut update = sql.prepare_cached(
            "update task set state = ?3, output = ?4, error = ?5, error_kind = ?6, error_detail = ?7, ending = ?8,
                 ended_ms = ?9, worker = ''
             where batch = ?1 and position = ?2",
        )?;
        let none = None::<&str>;
        match (outcome, failed) {
            (Terminal::Completed(output), _) => update.execute(params![
                batch,
                position,
                "completed",
                output,
                none,
                none,
                none,
                ending,
                now
            ])?,
            (_, Some((first, dependent))) => {
                let failure = if is_dependent { dependent } else { first };
                let detail = (!failure.detail.is_null()).then(|| failure.detail.to_string());
                let kind = failure.kind.as_str();
                update.execute(params![
                    batch,
                    position,
                    "failed",
                    none,
                    failure.message,
                    kind,
                    detail,
                    ending,
                    now
                ])?
            }
            (Terminal::Failed(_), None) => 0,
        };
        ended += 1;
        let mut select = sql.prepare_cached(
            "select batch, position, is_same from dependency where needed_batch = ?1 and needed = ?2",
        )?;
        let dependents: Vec<(String, i64, bool)> = select
            .query_map(params![batch, position], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<Sql<_>>()?;
        for (batch, position, is_same) in dependents {
            if is_same {
                open.push_back((batch, position, is_dependent));
            } else if failed.is_some() {
                open.push_back((batch, position, true));
            } else {
                let unmet: i64 = sql
                    .prepare_cached(
                        "update task set unmet = unmet - 1 where batch = ?1 and position = ?2 returning unmet",
                    )?
                    .query_row(params![batch, position], |row| row.get(0))?;
                if unmet == 0 && state_of(sql, &batch, position)? == TaskState::Blocked.as_str() {
                    enqueue(sql, &batch, position)?;
                }
            }
        }
    }
    Ok(ended)
}

fn state_of(sql: &Transaction<'_>, batch: &str, position: i64) -> Sql<String> {
    sql.prepare_cached("select state from task where batch = ?1 and position = ?2")?
        .query_row(params![batch, position], |row| row.get(0))
}

fn is_terminal(state: &str) -> bool {
    state.parse().is_ok_and(TaskState::is_terminal)
}

/// Makes available what has become due, and fails what has expired.
fn settle(sql: &Transaction<'_>) -> Sql<()> {
    let keys = |select: &str, limit: i64| -> Sql<Vec<(String, i64, i64)>> {
        let mut statement = sql.prepare_cached(select)?;
        statement.query_map([limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
    };
    let lost = "select batch, position, takeovers from task where state = 'running' and lease_until < ?1";
    for (batch, position, takeovers) in keys(lost, machine_clock_ms())? {
        if takeovers >= MOST_TAKEOVERS {
            end_task(sql, &batch, position, &Terminal::Failed(&stored::worker_lost(takeovers)))?;
        } else {
            sql.prepare_cached(
                "update task set takeovers = takeovers + 1 where batch = ?1 and position = ?2",
            )?
            .execute(params![batch, position])?;
            enqueue(sql, &batch, position)?;
        }
    }
    let due = "select batch, position, 0 from task where state = 'waiting' and due_ms <= ?1";
    for (batch, position, _) in keys(due, machine_clock_ms())? {
        enqueue(sql, &batch, position)?;
    }
    let expired = "select batch, position, 0 from task
        where expires_ms is not null and state in ('queued', 'waiting', 'blocked') and expires_ms <= ?1";
    for (batch, position, _) in keys(expired, now_ms())? {
        end_task(sql, &batch, position, &Terminal::Failed(&stored::expired()))?;
    }
    Ok(())
}

/// Picks the next lane: the highest priority, then the lane whose last claim is the longest ago.
fn next_lane(
    sql: &Transaction<'_>,
    running: &HashMap<String, usize>,
    per_repository: usize,
) -> Sql<Option<(i64, String)>> {
    let mut statement = sql.prepare_cached(
        "select id, repository from lane where queued > 0 and paused = 0 order by rank desc, turn",
    )?;
    let mut lanes = statement.query([])?;
    while let Some(row) = lanes.next()? {
        let repository: String = row.get(1)?;
        if running.get(&repository).is_none_or(|count| *count < per_repository) {
            return Ok(Some((row.get(0)?, repository)));
        }
    }
    Ok(None)
}

/// Claims the first task of a lane. A task that cannot be read fails: it must not keep the others in the queue.
fn claim_one(sql: &Transaction<'_>, lane: i64, worker: &str, lease: Duration) -> Sql<Option<Claim>> {
    let token = next_number(sql)?;
    sql.prepare_cached("update lane set queued = queued - 1, turn = ?2 where id = ?1")?
        .execute(params![lane, token])?;
    let (batch, position): (String, i64) = sql
        .prepare_cached(
            "select batch, position from task where lane = ?1 and state = 'queued' order by position limit 1",
        )?
        .query_row([lane], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (task_id, task_type, attempt) = sql
        .prepare_cached(
            "update task set state = 'running', token = ?3, worker = ?4, lease_until = ?5, started_ms = ?6,
                 attempts = attempts + 1
             where batch = ?1 and position = ?2 returning task_id, type, attempts",
        )?
        .query_row(
            params![batch, position, token, worker, machine_clock_ms() + millis(lease), now_ms()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
    let (parameters, options): (String, String) = sql
        .prepare_cached("select parameters, options from payload where batch = ?1 and position = ?2")?
        .query_row(params![batch, position], |row| Ok((row.get(0)?, row.get(1)?)))?;
    match stored::parse_payload(&parameters, &options) {
        Ok((parameters, options)) => {
            let lease = Lease { batch, position, token };
            Ok(Some(Claim { lease, task_id, task_type, parameters, options, attempt }))
        }
        Err(failure) => {
            end_task(sql, &batch, position, &Terminal::Failed(&failure))?;
            Ok(None)
        }
    }
}

fn task_row(row: &Row<'_>) -> Sql<TaskRow> {
    let state: String = row.get(2)?;
    let output: Option<String> = row.get(3)?;
    let detail: Option<String> = row.get(6)?;
    Ok(TaskRow {
        position: row.get(0)?,
        task_id: row.get(1)?,
        state: state.parse().unwrap_or(TaskState::Failed),
        output: output.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        error: row.get(4)?,
        error_kind: row.get(5)?,
        error_detail: detail.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null),
        attempts: row.get(7)?,
    })
}

const TASK_COLUMNS: &str = "position, task_id, state, output, error, error_kind, error_detail, attempts";

fn batch_row(sql: &Connection, id: &str) -> Sql<Option<BatchRow>> {
    let found = sql
        .prepare_cached("select created_ms, attempts_ended, spent_ms, changed_ms from batch where id = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get(3)?)))
        .optional()?;
    let Some((created_ms, ended, spent, changed_ms)) = found else { return Ok(None) };
    let mut counts = [0; 6];
    let mut statement =
        sql.prepare_cached("select state, count(*) from task where batch = ?1 group by state")?;
    let mut rows = statement.query([id])?;
    while let Some(row) = rows.next()? {
        let state: String = row.get(0)?;
        if let Some(at) = TaskState::ALL.iter().position(|one| one.as_str() == state) {
            counts[at] = row.get::<_, i64>(1)?.unsigned_abs();
        }
    }
    let mean_ms = (ended > 0).then(|| (spent / ended).unsigned_abs());
    Ok(Some(BatchRow { id: id.to_string(), created_ms, counts, mean_ms, changed_ms }))
}

/// The state and, if it has ended, the result of a task that was submitted before with the same key.
fn find_by_key(sql: &Transaction<'_>, task: &NewTask) -> Result<Option<(String, i64)>, Failed> {
    let Some(key) = &task.idempotency_key else { return Ok(None) };
    let found: Option<(String, String, i64)> = sql
        .prepare_cached("select digest, batch, position from task_key where idempotency_key = ?1")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match found {
        Some((known, _, _)) if known != digest(std::iter::once(task)) => {
            Err(Failed::Queue(QueueError::KeyReused(key.clone())))
        }
        // The first one failed, so this one is a new attempt.
        Some((_, batch, position)) if state_of(sql, &batch, position)? == TaskState::Failed.as_str() => {
            Ok(None)
        }
        Some((_, batch, position)) => Ok(Some((batch, position))),
        None => Ok(None),
    }
}

fn insert_tasks(sql: &Transaction<'_>, batch: &NewBatch) -> Result<(), Failed> {
    let positions: HashMap<&str, i64> =
        batch.tasks.iter().zip(0..).map(|(task, position)| (task.task_id.as_str(), position)).collect();
    let now = now_ms();
    let mut repeated = Vec::new();
    for (task, position) in batch.tasks.iter().zip(0i64..) {
        let same = find_by_key(sql, task)?;
        let lane = lane(sql, &batch.id, task)?;
        let unmet = i64::try_from(task.depends_on.len()).unwrap_or(i64::MAX) + i64::from(same.is_some());
        let expires_ms = task.expires_after.map(|time| now.saturating_add(millis(time)));
        sql.prepare_cached(
            "insert into task (batch, position, task_id, type, lane, state, unmet, attempts, takeovers, token, worker,
                 lease_until, due_ms, expires_ms, started_ms)
             values (?1, ?2, ?3, ?4, ?5, 'blocked', ?6, 0, 0, 0, '', 0, 0, ?7, 0)",
        )?
        .execute(params![batch.id, position, task.task_id, task.task_type, lane, unmet, expires_ms])?;
        let (parameters, options) = stored::payload(task).map_err(Failed::Queue)?;
        sql.prepare_cached("insert into payload values (?1, ?2, ?3, ?4)")?
            .execute(params![batch.id, position, parameters, options])?;
        for needed in &task.depends_on {
            let Some(needed) = positions.get(needed.as_str()) else { continue };
            sql.prepare_cached("insert or ignore into dependency values (?1, ?2, ?1, ?3, 0)")?
                .execute(params![batch.id, needed, position])?;
        }
        match (&same, &task.idempotency_key) {
            (Some((first, at)), _) => {
                sql.prepare_cached("insert into dependency values (?1, ?2, ?3, ?4, 1)")?
                    .execute(params![first, at, batch.id, position])?;
                repeated.push((first.clone(), *at, position));
            }
            (None, Some(key)) => {
                sql.prepare_cached("insert or replace into task_key values (?1, ?2, ?3, ?4)")?
                    .execute(params![key, digest(std::iter::once(task)), batch.id, position])?;
            }
            (None, None) => {}
        }
        if unmet == 0 {
            enqueue(sql, &batch.id, position)?;
        }
    }
    // A repeated task whose first one has completed gets the output at once.
    for (first, at, position) in repeated {
        let output: Option<String> = sql
            .prepare_cached(
                "select output from task where batch = ?1 and position = ?2 and state = 'completed'",
            )?
            .query_row(params![first, at], |row| row.get(0))
            .optional()?;
        if let Some(output) = output {
            end_task(sql, &batch.id, position, &Terminal::Completed(&output))?;
        }
    }
    Ok(())
}

/// Cancels the open tasks of a batch, or one of them. Returns their number.
fn cancel_open(sql: &Transaction<'_>, batch: &str, task: Option<&str>) -> Sql<u64> {
    let mut select = sql.prepare_cached(
        "select position from task where batch = ?1 and (?2 is null or task_id = ?2)
             and state not in ('completed', 'failed') order by position",
    )?;
    let open: Vec<i64> = select.query_map(params![batch, task], |row| row.get(0))?.collect::<Sql<_>>()?;
    end_tasks(sql, batch, &open, &Terminal::Failed(&stored::cancelled()))
}

/// Changes a batch. Returns the number of tasks that were cancelled.
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
                // The task no longer waits for the result of an earlier task with the same key, but runs itself.
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
