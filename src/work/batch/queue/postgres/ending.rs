//! Ends tasks in PostgreSQL: records their outcomes, updates dependent and repeated tasks, and schedules retries.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use super::super::Lease;
use super::super::stored;
use super::super::stored::millis;
use super::connection::Session;
use super::{Sql, TaskKey, columns, storable, task_key};
use crate::work::batch::model::{TaskFailure, TaskState};

pub(super) fn enqueue(sql: &mut Session, tasks: &[TaskKey]) -> Sql<()> {
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
    // The lock on the lane keeps a concurrent claim from finding the lane empty and deactivating it before this
    // transaction ends.
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

/// The final outcome of a task.
pub(super) enum Outcome {
    Completed(String),
    Failed(TaskFailure),
}

pub(super) struct EndingTask {
    pub(super) key: TaskKey,
    /// The fencing token of the attempt that ended the task; `None` if the task ended for another reason, such as a
    /// cancellation.
    pub(super) token: Option<i64>,
    pub(super) outcome: Rc<Outcome>,
}

/// Records the outcomes of tasks that have not ended yet, and then updates the tasks that depend on them: dependent
/// tasks are queued or fail, and tasks with the same idempotency key get the same outcome. Returns all tasks that
/// ended, with their fencing tokens.
pub(super) fn end_tasks(sql: &mut Session, first: Vec<EndingTask>) -> Sql<HashMap<TaskKey, i64>> {
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

/// Records the outcomes of those tasks that have not ended yet. Skips a task whose `token` is not that of the task's
/// valid lease. Returns the recorded tasks with their fencing tokens.
///
/// Each ending gets a number whose higher bits are the id of the transaction. `ended_tasks` can therefore leave out
/// endings as long as a transaction with a lower id is still running and may record endings with lower numbers.
/// `before` is the number of tasks that this transaction has already ended.
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

/// Counts the completed dependencies of tasks, and queues the tasks that now wait for no other task.
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

/// Records that attempts failed, and after which delay each task is due again. Skips attempts whose lease is no longer
/// valid. Returns the recorded tasks, each with the token of its lease.
pub(super) fn write_retries(sql: &mut Session, retries: &[(&Lease, Duration)]) -> Sql<HashMap<TaskKey, i64>> {
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
