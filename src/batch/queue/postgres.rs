//! The queue in a PostgreSQL database, for the processes of several machines.
//!
//! Tables and lanes are those of the SQLite queue; `postgres/schema.sql` has them. All times are the server's. Claims
//! come one after the other, under a lock, so that the limits hold exactly and batches take turns; everything else runs
//! at the same time, and what conflicts is repeated. A claim never waits for a task that another transaction changes.
//!
//! Use a queue only outside asynchronous code: it blocks its thread.

mod connection;
mod tls;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use postgres::Row;
use serde_json::Value;
use sha2::{Digest, Sha256};

use self::connection::{Address, Lock, Session, is_conflict, is_connection_lost};
use super::stored::{self, digest, millis};
use super::{
    BatchRow, Claim, ClaimLimits, EndedTask, Ending, Lease, MOST_TAKEOVERS, NewBatch, Queue, QueueError,
    TaskRow,
};
use crate::batch::model::{NewTask, TaskFailure, TaskState};

/// How often a transaction is repeated after a conflict with another one.
const MOST_CONFLICTS: u32 = 20;
/// The number of tasks, and of bytes, that one statement inserts.
const CHUNK_TASKS: usize = 2_000;
const CHUNK_BYTES: usize = 16 << 20;

/// A queue in a PostgreSQL database.
pub(super) struct PostgresQueue {
    address: Address,
    session: Option<Session>,
    /// Another session has changed the queue since the last `wait`.
    has_changed: bool,
}

type Sql<T> = Result<T, postgres::Error>;

/// The batch and the position of a task.
type TaskKey = (String, i64);

/// An operation on the queue: PostgreSQL failed, or the queue says no.
enum Failed {
    Sql(postgres::Error),
    Queue(QueueError),
}

impl From<postgres::Error> for Failed {
    fn from(error: postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// What a transaction does besides its work.
#[derive(Clone, Copy, Default)]
struct Transaction {
    lock: Option<Lock>,
    /// Wake everyone who waits for changes.
    notify: bool,
}

impl PostgresQueue {
    /// Connects to the database, and creates the queue if it is missing.
    pub(super) fn connect(address: &str) -> Result<Self, QueueError> {
        let address = Address::parse(address)?;
        let session = Some(address.open()?);
        Ok(Self { address, session, has_changed: true })
    }

    /// Takes the session, or opens a new one if there is none that works. Returns whether it is new.
    fn take_session(&mut self) -> Result<(Session, bool), QueueError> {
        if let Some(mut session) = self.session.take() {
            // Notifications are taken often, because the connection keeps all that are not.
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

    /// Keeps a session for the next operation, which connects again if this one has lost the connection.
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

    /// Runs one transaction. If it conflicts with another one, or the connection turns out to be closed before it has
    /// begun, runs it again.
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
            // A session that cannot roll back is not used again.
            Err(_) => drop(session.roll_back()),
        }
        result
    }
}

/// A text as PostgreSQL can store it: its texts cannot contain U+0000.
fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// What stands for an idempotency key, which may be of any length.
fn key_digest(key: &str) -> String {
    crate::hex::encode(Sha256::digest(key))
}

/// A limit as a number for PostgreSQL.
fn most_rows(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

fn task_key(row: &Row) -> TaskKey {
    (row.get(0), row.get(1))
}

/// Splits keys into the columns that `unnest` takes.
fn columns<'k>(keys: impl Iterator<Item = &'k TaskKey>) -> (Vec<&'k str>, Vec<i64>) {
    keys.map(|(batch, position)| (batch.as_str(), *position)).unzip()
}

/// Makes tasks available to workers.
fn enqueue(sql: &mut Session, tasks: &[TaskKey]) -> Sql<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    let (batches, positions) = columns(tasks.iter());
    let rows = sql.query(
        "update guard.task set state = 'queued', worker = ''
         from unnest($1::text[], $2::bigint[]) as ready (batch, position)
         where task.batch = ready.batch and task.position = ready.position
         returning task.lane",
        &[&batches, &positions],
    )?;
    let lanes: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    let lanes: Vec<i64> = lanes.into_iter().collect();
    // The lock keeps claims from finding the lane empty, and deactivating it, before this transaction ends.
    let rows = sql.query(
        "select id, is_active from guard.lane where id = any($1) order by id for key share",
        &[&lanes],
    )?;
    let inactive: Vec<i64> = rows.iter().filter(|row| !row.get::<_, bool>(1)).map(|row| row.get(0)).collect();
    if !inactive.is_empty() {
        sql.query("update guard.lane set is_active = true where id = any($1)", &[&inactive])?;
    }
    Ok(())
}

/// The outcome of a task that does not change any more.
enum Outcome {
    Completed(String),
    Failed(TaskFailure),
}

/// A task that is to end now.
struct EndingTask {
    key: TaskKey,
    /// The token of the attempt that ended the task; `None` if the task did not end by an attempt.
    token: Option<i64>,
    outcome: Rc<Outcome>,
}

/// Ends tasks and everything that depends on them: dependent tasks become available or fail, repeated tasks get the
/// same result. Returns all tasks that ended, with their tokens.
fn end_tasks(sql: &mut Session, first: Vec<EndingTask>) -> Sql<HashMap<TaskKey, i64>> {
    let dependency_failed = Rc::new(Outcome::Failed(stored::dependency_failed()));
    let mut all = HashMap::new();
    let mut level = first;
    while !level.is_empty() {
        let ended = write_outcomes(sql, &level, i64::try_from(all.len()).unwrap_or(i64::MAX))?;
        let outcomes: HashMap<TaskKey, Rc<Outcome>> = level
            .into_iter()
            .filter(|task| {
                ended.get(&task.key).is_some_and(|token| task.token.is_none_or(|own| own == *token))
            })
            .map(|task| (task.key, task.outcome))
            .collect();
        all.extend(ended);
        let (batches, positions) = columns(outcomes.keys());
        let dependents = sql.query(
            "select dependency.batch, dependency.position, dependency.needed_batch, dependency.needed, is_same
             from unnest($1::text[], $2::bigint[]) as ended (batch, position)
             join guard.dependency on needed_batch = ended.batch and needed = ended.position",
            &[&batches, &positions],
        )?;
        let mut next: HashMap<TaskKey, Rc<Outcome>> = HashMap::new();
        let mut met: HashMap<TaskKey, i64> = HashMap::new();
        for row in dependents {
            let Some(outcome) = outcomes.get(&(row.get(2), row.get(3))) else { continue };
            let is_same: bool = row.get(4);
            match **outcome {
                _ if is_same => drop(next.insert(task_key(&row), outcome.clone())),
                Outcome::Failed(_) => drop(next.insert(task_key(&row), dependency_failed.clone())),
                Outcome::Completed(_) => *met.entry(task_key(&row)).or_default() += 1,
            }
        }
        meet_dependencies(sql, &met)?;
        level = next.into_iter().map(|(key, outcome)| EndingTask { key, token: None, outcome }).collect();
    }
    Ok(all)
}

/// Writes the outcomes of tasks that have not ended yet, and whose lease is still valid. Returns these tasks, with their
/// tokens.
///
/// The number of an ending begins with the id of its transaction, so that `ended_tasks` can leave out those that a running
/// transaction may still precede. `before` is the number of tasks that this transaction has ended already.
fn write_outcomes(sql: &mut Session, tasks: &[EndingTask], before: i64) -> Sql<HashMap<TaskKey, i64>> {
    let (batches, positions) = columns(tasks.iter().map(|task| &task.key));
    let tokens: Vec<Option<i64>> = tasks.iter().map(|task| task.token).collect();
    let mut states = Vec::with_capacity(tasks.len());
    let mut outputs: Vec<Option<&str>> = Vec::with_capacity(tasks.len());
    let mut errors: Vec<Option<Cow<'_, str>>> = Vec::with_capacity(tasks.len());
    let mut kinds: Vec<Option<&str>> = Vec::with_capacity(tasks.len());
    let mut details: Vec<Option<String>> = Vec::with_capacity(tasks.len());
    for task in tasks {
        let (state, output, failure) = match &*task.outcome {
            Outcome::Completed(output) => (TaskState::Completed, Some(output.as_str()), None),
            Outcome::Failed(failure) => (TaskState::Failed, None, Some(failure)),
        };
        states.push(state.as_str());
        outputs.push(output);
        errors.push(failure.map(|failure| storable(&failure.message)));
        kinds.push(failure.map(|failure| failure.kind.as_str()));
        details.push(
            failure.filter(|failure| !failure.detail.is_null()).map(|failure| failure.detail.to_string()),
        );
    }
    let rows = sql.query(
        "update guard.task set
             state = ended.state, output = ended.output, error = ended.error, error_kind = ended.error_kind,
             error_detail = ended.error_detail, worker = '', ended_ms = clock.now,
             ending = pg_current_xact_id()::text::bigint * 1048576 + $9::bigint + ended.number,
             attempts_ended = attempts_ended + case when ended.token is null then 0 else 1 end,
             spent_ms = spent_ms + case when ended.token is null then 0 else greatest(0, clock.now - started_ms) end
         from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[],
                 $8::text[]) with ordinality
                 as ended (batch, position, token, state, output, error, error_kind, error_detail, number),
             (select guard.now_ms() as now) as clock
         where task.batch = ended.batch and task.position = ended.position
             and task.state in ('blocked', 'queued', 'waiting', 'running')
             and (ended.token is null or (task.token = ended.token and task.state = 'running'))
         returning task.batch, task.position, task.token",
        &[&batches, &positions, &tokens, &states, &outputs, &errors, &kinds, &details, &before],
    )?;
    Ok(rows.iter().map(|row| (task_key(row), row.get(2))).collect())
}

/// Counts completed dependencies, and makes available the tasks that wait for no other one.
fn meet_dependencies(sql: &mut Session, met: &HashMap<TaskKey, i64>) -> Sql<()> {
    if met.is_empty() {
        return Ok(());
    }
    let (batches, positions) = columns(met.keys());
    let counts: Vec<i64> = met.values().copied().collect();
    let rows = sql.query(
        "update guard.task set unmet = unmet - met.number
         from unnest($1::text[], $2::bigint[], $3::bigint[]) as met (batch, position, number)
         where task.batch = met.batch and task.position = met.position
         returning task.batch, task.position, unmet = 0 and state = 'blocked'",
        &[&batches, &positions, &counts],
    )?;
    let ready: Vec<TaskKey> = rows.iter().filter(|row| row.get(2)).map(task_key).collect();
    enqueue(sql, &ready)
}

/// What a claim must know before it begins.
struct Situation {
    has_lost: bool,
    has_due: bool,
    has_expired: bool,
    /// The number of running tasks in each repository.
    running: HashMap<String, usize>,
}

fn look(sql: &mut Session) -> Sql<Situation> {
    let rows = sql.query(
        "select
             exists (select from guard.task where state = 'running'
                 and guard.lease_end(lease_until, lease_ms) < clock.now),
             exists (select from guard.task where state = 'waiting' and due_ms <= clock.now),
             exists (select from guard.task where expires_ms is not null
                 and state in ('queued', 'waiting', 'blocked') and expires_ms <= clock.now),
             array(select lane.repository from guard.task join guard.lane on lane.id = task.lane
                 where task.state = 'running')
         from (select guard.now_ms() as now) as clock",
        &[],
    )?;
    let mut situation =
        Situation { has_lost: false, has_due: false, has_expired: false, running: HashMap::new() };
    for row in &rows {
        (situation.has_lost, situation.has_due, situation.has_expired) = (row.get(0), row.get(1), row.get(2));
        for repository in row.get::<_, Vec<String>>(3) {
            *situation.running.entry(repository).or_default() += 1;
        }
    }
    Ok(situation)
}

/// Makes available what has become due, and fails what has expired. Returns the situation after that.
fn settle(sql: &mut Session) -> Sql<Situation> {
    let situation = look(sql)?;
    if !situation.has_lost && !situation.has_due && !situation.has_expired {
        return Ok(situation);
    }
    if situation.has_lost {
        settle_lost(sql)?;
    }
    if situation.has_due {
        let rows = sql.query(
            "select batch, position from guard.task where state = 'waiting' and due_ms <= (select guard.now_ms())
             for update skip locked",
            &[],
        )?;
        enqueue(sql, &rows.iter().map(task_key).collect::<Vec<_>>())?;
    }
    if situation.has_expired {
        let rows = sql.query(
            "select batch, position from guard.task where expires_ms is not null
                 and state in ('queued', 'waiting', 'blocked') and expires_ms <= (select guard.now_ms())
             for update skip locked",
            &[],
        )?;
        let expired = Rc::new(Outcome::Failed(stored::expired()));
        let task = |row| EndingTask { key: task_key(row), token: None, outcome: expired.clone() };
        end_tasks(sql, rows.iter().map(task).collect())?;
    }
    look(sql)
}

/// Makes the tasks of dead workers available again, or fails those that may be what kills workers.
fn settle_lost(sql: &mut Session) -> Sql<()> {
    let rows = sql.query(
        "select batch, position, takeovers from guard.task
         where state = 'running' and guard.lease_end(lease_until, lease_ms) < (select guard.now_ms())
         for update skip locked",
        &[],
    )?;
    let (mut again, mut failed) = (Vec::new(), Vec::new());
    for row in &rows {
        let takeovers: i64 = row.get(2);
        if takeovers >= MOST_TAKEOVERS {
            let outcome = Rc::new(Outcome::Failed(stored::worker_lost(takeovers)));
            failed.push(EndingTask { key: task_key(row), token: None, outcome });
        } else {
            again.push(task_key(row));
        }
    }
    let (batches, positions) = columns(again.iter());
    sql.query(
        "update guard.task set takeovers = takeovers + 1
         from unnest($1::text[], $2::bigint[]) as lost (batch, position)
         where task.batch = lost.batch and task.position = lost.position",
        &[&batches, &positions],
    )?;
    enqueue(sql, &again)?;
    end_tasks(sql, failed)?;
    Ok(())
}

/// The queued tasks of one batch, priority and repository.
struct Lane {
    id: i64,
    priority: i32,
    repository: String,
}

/// Claims tasks, under the lock for claims.
struct Claimer<'c> {
    worker: &'c str,
    limits: ClaimLimits,
    /// The number of running tasks in each repository.
    running: HashMap<String, usize>,
    /// Lanes in which this claim found too few tasks.
    exhausted: Vec<i64>,
    claims: Vec<Claim>,
}

impl Claimer<'_> {
    /// How many more tasks may be claimed.
    fn free(&self) -> usize {
        let running: usize = self.running.values().sum();
        let of_claim = self.limits.most.saturating_sub(self.claims.len());
        of_claim.min(self.limits.global.saturating_sub(running))
    }

    fn has_room(&self, repository: &str) -> bool {
        self.running.get(repository).is_none_or(|count| *count < self.limits.per_repository)
    }

    /// The lanes of the highest priority, the one whose last claim is the longest ago first.
    fn next_lanes(&self, sql: &mut Session) -> Sql<Vec<Lane>> {
        if self.limits.per_repository == 0 {
            return Ok(Vec::new());
        }
        let full: Vec<&str> =
            self.running.keys().map(String::as_str).filter(|name| !self.has_room(name)).collect();
        let rows = sql.query(
            "select id, priority, repository from guard.lane
             where is_active and repository <> all($1) and id <> all($2)
             order by priority desc, turn, id limit $3",
            &[&full, &self.exhausted, &most_rows(self.free())],
        )?;
        let lane = |row: &Row| Lane { id: row.get(0), priority: row.get(1), repository: row.get(2) };
        let mut lanes: Vec<Lane> = rows.iter().map(lane).collect();
        if let Some(highest) = lanes.first().map(|lane| lane.priority) {
            lanes.retain(|lane| lane.priority == highest);
        }
        Ok(lanes)
    }

    /// How many tasks each lane may give if the lanes take turns. Counts them as running.
    fn share(&mut self, lanes: &[Lane]) -> Vec<i64> {
        let mut shares = vec![0; lanes.len()];
        let mut free = self.free();
        let mut has_progress = true;
        while free > 0 && has_progress {
            has_progress = false;
            for (lane, share) in lanes.iter().zip(&mut shares) {
                if free > 0 && self.has_room(&lane.repository) {
                    *self.running.entry(lane.repository.clone()).or_default() += 1;
                    *share += 1;
                    free -= 1;
                    has_progress = true;
                }
            }
        }
        shares
    }

    /// Claims from the lanes of the highest priority. Returns false if there is nothing to claim.
    fn claim_some(&mut self, sql: &mut Session) -> Sql<bool> {
        let lanes = self.next_lanes(sql)?;
        if lanes.is_empty() {
            return Ok(false);
        }
        let shares = self.share(&lanes);
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.id).collect();
        let rows = sql.query(
            "select wanted.lane, task.batch, task.position, nextval('guard.number')
             from unnest($1::bigint[], $2::bigint[]) as wanted (lane, number)
             cross join lateral (
                 select batch, position from guard.task where task.lane = wanted.lane and state = 'queued'
                 order by position limit wanted.number + 1 for update skip locked
             ) as task",
            &[&ids, &shares],
        )?;
        let mut found: HashMap<i64, Vec<TaskKey>> = HashMap::new();
        for row in &rows {
            found.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
        }
        let mut tokens: Vec<i64> = rows.iter().map(|row| row.get(3)).collect();
        tokens.sort_unstable();
        // One more task than the share shows whether tasks are left in the lane.
        let mut emptied = Vec::new();
        for (lane, share) in lanes.iter().zip(shares) {
            let share = share.unsigned_abs() as usize;
            let tasks = found.entry(lane.id).or_default();
            if tasks.len() <= share {
                emptied.push(lane.id);
            }
            if tasks.len() < share {
                self.exhausted.push(lane.id);
            }
            tasks.sort_by_key(|(_, position)| *position);
            tasks.truncate(share);
            if let Some(count) = self.running.get_mut(&lane.repository) {
                *count -= share - tasks.len();
            }
        }
        let turns = take_turns(&lanes, found, &tokens);
        self.take(sql, &turns)?;
        move_lanes(sql, &lanes, &turns)?;
        deactivate_lanes(sql, &emptied)?;
        Ok(true)
    }

    /// Gives tasks to the worker. A task that cannot be read fails: it must not keep the others in the queue.
    fn take(&mut self, sql: &mut Session, turns: &[Turn]) -> Sql<()> {
        let (batches, positions) = columns(turns.iter().map(|turn| &turn.task));
        let tokens: Vec<i64> = turns.iter().map(|turn| turn.token).collect();
        let mut rows = sql.query(
            "update guard.task set
                 state = 'running', token = taken.token, worker = $4, lease_until = clock.now + $5, lease_ms = $5,
                 started_ms = clock.now, attempts = attempts + 1
             from unnest($1::text[], $2::bigint[], $3::bigint[]) as taken (batch, position, token)
                 join guard.payload on payload.batch = taken.batch and payload.position = taken.position,
                 (select guard.now_ms() as now) as clock
             where task.batch = taken.batch and task.position = taken.position
             returning task.batch, task.position, task.token, task_id, type, attempts, parameters, options",
            &[&batches, &positions, &tokens, &storable(self.worker), &millis(self.limits.lease)],
        )?;
        rows.sort_by_key(|row| row.get::<_, i64>(2));
        let mut unreadable = Vec::new();
        for row in &rows {
            let (batch, position) = task_key(row);
            match stored::parse_payload(row.get(6), row.get(7)) {
                Ok((parameters, options)) => self.claims.push(Claim {
                    lease: Lease { batch, position, token: row.get(2) },
                    task_id: row.get(3),
                    task_type: row.get(4),
                    parameters,
                    options,
                    attempt: u32::try_from(row.get::<_, i64>(5)).unwrap_or(u32::MAX),
                }),
                Err(failure) => {
                    let outcome = Rc::new(Outcome::Failed(failure));
                    unreadable.push(EndingTask { key: (batch, position), token: None, outcome });
                }
            }
        }
        end_tasks(sql, unreadable)?;
        Ok(())
    }
}

/// One task that a lane gives.
struct Turn {
    lane: i64,
    task: TaskKey,
    token: i64,
}

/// Lets the lanes take turns until all tasks are given. `tokens` has at least one number for each task, in order.
fn take_turns(lanes: &[Lane], mut found: HashMap<i64, Vec<TaskKey>>, tokens: &[i64]) -> Vec<Turn> {
    found.values_mut().for_each(|tasks| tasks.reverse());
    let mut tokens = tokens.iter();
    let mut turns = Vec::new();
    loop {
        let before = turns.len();
        for lane in lanes {
            if let Some(task) = found.get_mut(&lane.id).and_then(Vec::pop)
                && let Some(token) = tokens.next()
            {
                turns.push(Turn { lane: lane.id, task, token: *token });
            }
        }
        if turns.len() == before {
            return turns;
        }
    }
}

/// Writes the last turn of each lane that gave tasks.
fn move_lanes(sql: &mut Session, lanes: &[Lane], turns: &[Turn]) -> Sql<()> {
    let last_turn = |lane: &Lane| {
        let turn = turns.iter().rfind(|turn| turn.lane == lane.id)?;
        Some((lane.id, turn.token))
    };
    let (ids, last): (Vec<i64>, Vec<i64>) = lanes.iter().filter_map(last_turn).unzip();
    if !ids.is_empty() {
        sql.query(
            "update guard.lane set turn = moved.turn
             from unnest($1::bigint[], $2::bigint[]) as moved (id, turn) where lane.id = moved.id",
            &[&ids, &last],
        )?;
    }
    Ok(())
}

/// Deactivates lanes that have no queued task left. Whoever makes a task available holds a lock on its lane: such a lane
/// stays active. A lane that this transaction can lock has no tasks but those that the next statement sees.
fn deactivate_lanes(sql: &mut Session, emptied: &[i64]) -> Sql<()> {
    if emptied.is_empty() {
        return Ok(());
    }
    let rows =
        sql.query("select id from guard.lane where id = any($1) for update skip locked", &[&emptied])?;
    let locked: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    sql.query(
        "update guard.lane set is_active = false
         where id = any($1) and (
             select true from guard.task where task.lane = lane.id and task.state = 'queued' limit 1
         ) is null",
        &[&locked],
    )?;
    Ok(())
}

/// The tasks that were submitted before with the same keys, and have not failed: by key digest, with the output of those
/// that have completed.
type Repeated = HashMap<String, (TaskKey, Option<String>)>;

/// Finds the tasks that were submitted before with the same keys, under the lock for keys.
fn find_by_keys(sql: &mut Session, tasks: &[NewTask]) -> Result<Repeated, Failed> {
    let mut by_key: HashMap<String, &NewTask> = HashMap::new();
    for task in tasks {
        let Some(key) = &task.idempotency_key else { continue };
        if by_key.insert(key_digest(key), task).is_some() {
            return Err(Failed::Queue(QueueError::KeyReused(key.clone())));
        }
    }
    if by_key.is_empty() {
        return Ok(Repeated::new());
    }
    let keys: Vec<&str> = by_key.keys().map(String::as_str).collect();
    let rows = sql.query(
        "select key_digest, digest, batch, position from guard.task_key where key_digest = any($1)",
        &[&keys],
    )?;
    let mut known: HashMap<TaskKey, String> = HashMap::new();
    for row in rows {
        let (key, known_digest): (String, String) = (row.get(0), row.get(1));
        let Some(task) = by_key.get(&key) else { continue };
        if known_digest != digest(std::iter::once(*task)) {
            return Err(Failed::Queue(QueueError::KeyReused(
                task.idempotency_key.clone().unwrap_or_default(),
            )));
        }
        known.insert((row.get(2), row.get(3)), key);
    }
    let (batches, positions) = columns(known.keys());
    // The lock keeps the task from ending before the new task is known to depend on it.
    let rows = sql.query(
        "select task.batch, task.position, state, output
         from unnest($1::text[], $2::bigint[]) as known (batch, position)
         join guard.task on task.batch = known.batch and task.position = known.position
         for share of task",
        &[&batches, &positions],
    )?;
    let mut repeated = Repeated::new();
    for row in rows {
        let state: &str = row.get(2);
        // A task whose first one failed is a new attempt.
        if state != TaskState::Failed.as_str()
            && let Some(key) = known.remove(&task_key(&row))
        {
            repeated.insert(key, (task_key(&row), row.get(3)));
        }
    }
    Ok(repeated)
}

/// Rows to insert, by column.
#[derive(Default)]
struct TaskColumns<'t> {
    positions: Vec<i64>,
    task_ids: Vec<Cow<'t, str>>,
    types: Vec<Cow<'t, str>>,
    lanes: Vec<i64>,
    unmet: Vec<i64>,
    expires_after: Vec<Option<i64>>,
    parameters: Vec<String>,
    options: Vec<String>,
    bytes: usize,
}

impl TaskColumns<'_> {
    fn insert(&mut self, sql: &mut Session, batch: &str) -> Sql<()> {
        sql.query(
            "insert into guard.task (batch, position, task_id, type, lane, unmet, state, expires_ms)
             select $1::text, position, task_id, type, lane, unmet, case unmet when 0 then 'queued' else 'blocked' end,
                 clock.now + expires_after
             from unnest($2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
                     as new (position, task_id, type, lane, unmet, expires_after),
                 (select guard.now_ms() as now) as clock",
            &[&batch, &self.positions, &self.task_ids, &self.types, &self.lanes, &self.unmet, &self.expires_after],
        )?;
        sql.query(
            "insert into guard.payload (batch, position, parameters, options)
             select $1::text, position, parameters, options
             from unnest($2::bigint[], $3::text[], $4::text[]) as new (position, parameters, options)",
            &[&batch, &self.positions, &self.parameters, &self.options],
        )?;
        *self = Self::default();
        Ok(())
    }
}

/// Dependencies to insert, by column.
#[derive(Default)]
struct DependencyColumns {
    needed_batches: Vec<String>,
    needed: Vec<i64>,
    positions: Vec<i64>,
    is_same: Vec<bool>,
}

impl DependencyColumns {
    fn push(&mut self, (needed_batch, needed): TaskKey, position: i64, is_same: bool) {
        self.needed_batches.push(needed_batch);
        self.needed.push(needed);
        self.positions.push(position);
        self.is_same.push(is_same);
    }

    fn insert(&self, sql: &mut Session, batch: &str) -> Sql<()> {
        if self.positions.is_empty() {
            return Ok(());
        }
        sql.query(
            "insert into guard.dependency (needed_batch, needed, batch, position, is_same)
             select needed_batch, needed, $1::text, position, is_same
             from unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[])
                 as new (needed_batch, needed, position, is_same)",
            &[&batch, &self.needed_batches, &self.needed, &self.positions, &self.is_same],
        )?;
        Ok(())
    }
}

/// Creates the lanes of a new batch. Returns the lane of each task.
fn insert_lanes(sql: &mut Session, batch: &NewBatch) -> Sql<Vec<i64>> {
    let mut lanes: HashMap<(i32, &str), usize> = HashMap::new();
    let mut lane_of_task = Vec::with_capacity(batch.tasks.len());
    let (mut priorities, mut repositories) = (Vec::new(), Vec::new());
    for task in &batch.tasks {
        let next = lanes.len();
        let lane = *lanes.entry((task.priority, &task.repository)).or_insert(next);
        if lane == next {
            priorities.push(task.priority);
            repositories.push(storable(&task.repository));
        }
        lane_of_task.push(lane);
    }
    let rows = sql.query(
        "select nextval('guard.number') from generate_series(1, $1::bigint)",
        &[&most_rows(lanes.len())],
    )?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    sql.query(
        "insert into guard.lane (id, batch, priority, repository, is_active, turn)
         select id, $1::text, priority, repository, true, 0
         from unnest($2::bigint[], $3::integer[], $4::text[]) as new (id, priority, repository)",
        &[&batch.id, &ids, &priorities, &repositories],
    )?;
    Ok(lane_of_task.into_iter().filter_map(|lane| ids.get(lane).copied()).collect())
}

fn insert_tasks(sql: &mut Session, batch: &NewBatch) -> Result<(), Failed> {
    let places: HashMap<&str, i64> =
        batch.tasks.iter().zip(0..).map(|(task, position)| (task.task_id.as_str(), position)).collect();
    let mut repeated = find_by_keys(sql, &batch.tasks)?;
    let lanes = insert_lanes(sql, batch)?;
    let mut rows = TaskColumns::default();
    let mut dependencies = DependencyColumns::default();
    let mut new_keys: (Vec<String>, Vec<String>, Vec<i64>) = Default::default();
    let mut completed = Vec::new();
    for ((task, lane), position) in batch.tasks.iter().zip(lanes).zip(0i64..) {
        let needed: HashSet<i64> =
            task.depends_on.iter().filter_map(|id| places.get(id.as_str()).copied()).collect();
        let mut unmet = most_rows(needed.len());
        for needed in needed {
            dependencies.push((batch.id.clone(), needed), position, false);
        }
        if let Some(key) = &task.idempotency_key {
            let key = key_digest(key);
            if let Some((first, output)) = repeated.remove(&key) {
                unmet += 1;
                dependencies.push(first, position, true);
                completed.extend(output.map(|output| (position, output)));
            } else {
                new_keys.0.push(key);
                new_keys.1.push(digest(std::iter::once(task)));
                new_keys.2.push(position);
            }
        }
        let (parameters, options) = stored::payload(task).map_err(Failed::Queue)?;
        rows.bytes += parameters.len() + options.len();
        rows.positions.push(position);
        rows.task_ids.push(storable(&task.task_id));
        rows.types.push(storable(&task.task_type));
        rows.lanes.push(lane);
        rows.unmet.push(unmet);
        rows.expires_after.push(task.expires_after.map(millis));
        rows.parameters.push(parameters);
        rows.options.push(options);
        if rows.positions.len() >= CHUNK_TASKS || rows.bytes >= CHUNK_BYTES {
            rows.insert(sql, &batch.id)?;
        }
    }
    rows.insert(sql, &batch.id)?;
    dependencies.insert(sql, &batch.id)?;
    if !new_keys.0.is_empty() {
        sql.query(
            "insert into guard.task_key (key_digest, digest, batch, position)
             select key_digest, digest, $1::text, position
             from unnest($2::text[], $3::text[], $4::bigint[]) as new (key_digest, digest, position)
             on conflict (key_digest) do update set batch = excluded.batch, position = excluded.position",
            &[&batch.id, &new_keys.0, &new_keys.1, &new_keys.2],
        )?;
    }
    // A repeated task whose first one has completed gets the output at once.
    let task = |(position, output)| EndingTask {
        key: (batch.id.clone(), position),
        token: None,
        outcome: Rc::new(Outcome::Completed(output)),
    };
    end_tasks(sql, completed.into_iter().map(task).collect())?;
    Ok(())
}

/// Records attempts that failed and are repeated after the given times. Returns those whose lease was still valid.
fn write_retries(sql: &mut Session, retries: &[(&Lease, Duration)]) -> Sql<HashMap<TaskKey, i64>> {
    if retries.is_empty() {
        return Ok(HashMap::new());
    }
    let batches: Vec<&str> = retries.iter().map(|(lease, _)| lease.batch.as_str()).collect();
    let positions: Vec<i64> = retries.iter().map(|(lease, _)| lease.position).collect();
    let tokens: Vec<i64> = retries.iter().map(|(lease, _)| lease.token).collect();
    let delays: Vec<i64> = retries.iter().map(|(_, delay)| millis(*delay)).collect();
    let rows = sql.query(
        "update guard.task set
             state = 'waiting', due_ms = clock.now + failed.delay, worker = '', attempts_ended = attempts_ended + 1,
             spent_ms = spent_ms + greatest(0, clock.now - started_ms)
         from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
                 as failed (batch, position, token, delay),
             (select guard.now_ms() as now) as clock
         where task.batch = failed.batch and task.position = failed.position and task.token = failed.token
             and task.state = 'running'
         returning task.batch, task.position, task.token",
        &[&batches, &positions, &tokens, &delays],
    )?;
    Ok(rows.iter().map(|row| (task_key(row), row.get(2))).collect())
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

/// Reads a row of `SUMMARY`: id, time of creation, the number of tasks in each state, of ended attempts, ….
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

/// The columns that `batch_row` reads. The states are in the order of `TaskState::ALL`.
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

/// The columns that `task_row` reads, of the tasks that the condition selects.
macro_rules! tasks {
    ($condition:literal) => {
        concat!(
            "select position, task_id, state, output, error, error_kind, error_detail, attempts from guard.task where ",
            $condition
        )
    };
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
            let running = settle(sql)?.running;
            let mut claimer = Claimer { worker, limits, running, exhausted: Vec::new(), claims: Vec::new() };
            while claimer.free() > 0 && claimer.claim_some(sql)? {}
            Ok(claimer.claims)
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
        })
    }

    fn retry_failed(&mut self, batch: &str) -> Result<u64, QueueError> {
        let batch = storable(batch);
        self.write(Transaction { lock: Some(Lock::Keys), notify: true }, |sql| {
            let rows = sql.query(
                "update guard.task set state = 'blocked', attempts = 0, takeovers = 0, error = null,
                     error_kind = null, error_detail = null, expires_ms = null, ending = null, ended_ms = null
                 where batch = $1 and state = 'failed' returning position",
                &[&batch],
            )?;
            let failed: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            // A task that repeated another one runs by itself now.
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
            // Not yet those that a transaction in progress may still precede: the caller never looks back.
            let select = "select position, task_id, state, output, error, error_kind, error_detail, attempts, ending, ended_ms
                 from guard.task
                 where batch = $1 and ending > $2
                     and ending / 1048576 < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
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
                "select exists (select from guard.task where state = 'queued')
                     or exists (select from guard.task where state = 'running')
                     or exists (select from guard.task where state = 'waiting')
                     or exists (select from guard.task where state = 'blocked')",
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
                "delete from guard.batch where id = any($1)",
            ] {
                sql.query(delete, &[&ended])?;
            }
            Ok(ended.len() as u64)
        })
    }
}
