//! Inserts the tasks of a batch into PostgreSQL.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::super::stored;
use super::super::stored::{digest, millis};
use super::super::{NewBatch, QueueError};
use super::connection::Session;
use super::ending::{EndingTask, Outcome, end_tasks};
use super::{Failed, Sql, TaskKey, columns, key_digest, most_rows, storable, task_key};
use crate::work::batch::model::{NewTask, TaskState};

/// The maximum number of tasks that one statement inserts.
const CHUNK_TASKS: usize = 2_000;
const CHUNK_BYTES: usize = 16 << 20;

/// Tasks that were submitted before with the same idempotency keys and have not failed. Maps the digest of the key to
/// the earlier task and, if that task has completed, its output.
type Repeated = HashMap<String, (TaskKey, Option<String>)>;

/// Finds the tasks that were submitted before with the same idempotency keys. Fails if such a task differs from the new
/// one, or if two of the new tasks have the same key. The caller holds `Lock::Keys`.
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
    // The row lock keeps the earlier task from ending before this transaction has stored that the new task depends on
    // it.
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
        // If the earlier task failed, the new task runs as if it were the first with this key.
        if state != TaskState::Failed.as_str()
            && let Some(key) = known.remove(&task_key(&row))
        {
            repeated.insert(key, (task_key(&row), row.get(3)));
        }
    }
    Ok(repeated)
}

/// The rows to insert into the tables `task` and `payload`, one vector per column.
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

/// The rows to insert into the table `dependency`, one vector per column.
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

/// Creates the lanes of a new batch: one for each priority and repository of its tasks. Returns the id of each task's
/// lane.
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

pub(super) fn insert_tasks(sql: &mut Session, batch: &NewBatch) -> Result<(), Failed> {
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
    // If the earlier task with the same key has completed, the new task gets its output at once.
    let task = |(position, output)| EndingTask {
        key: (batch.id.clone(), position),
        token: None,
        outcome: Rc::new(Outcome::Completed(output)),
    };
    end_tasks(sql, completed.into_iter().map(task).collect())?;
    Ok(())
}
