//! Inserts the tasks of a new batch into SQLite.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, Transaction, params};

use super::ending::{Terminal, end_task, enqueue, state_of};
use super::{Failed, Sql, now_ms};
use crate::work::batch::model::{NewTask, TaskState};
use crate::work::batch::queue::stored;
use crate::work::batch::queue::stored::{digest, millis};
use crate::work::batch::queue::{NewBatch, QueueError};

pub(super) fn lane(sql: &Transaction<'_>, batch: &str, task: &NewTask) -> Sql<i64> {
    sql.prepare_cached(
        "insert into lane (batch, priority, rank, repository, queued, turn) values (?1, ?2, ?2, ?3, 0, 0)
         on conflict (batch, priority, repository) do update set queued = queued returning id",
    )?
    .query_row(params![batch, task.priority, task.repository], |row| row.get(0))
}

/// Returns the batch and position of the task that was submitted before with the same idempotency key; `None` if there
/// is no such task or it failed. Fails if the earlier task differs from `task`.
pub(super) fn find_by_key(sql: &Transaction<'_>, task: &NewTask) -> Result<Option<(String, i64)>, Failed> {
    let Some(key) = &task.idempotency_key else { return Ok(None) };
    let found: Option<(String, String, i64)> = sql
        .prepare_cached("select digest, batch, position from task_key where idempotency_key = ?1")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match found {
        Some((known, _, _)) if known != digest(std::iter::once(task)) => {
            Err(Failed::Queue(QueueError::KeyReused(key.clone())))
        }
        // The earlier task failed, so the new task runs as if it were the first with this key.
        Some((_, batch, position)) if state_of(sql, &batch, position)? == TaskState::Failed.as_str() => {
            Ok(None)
        }
        Some((_, batch, position)) => Ok(Some((batch, position))),
        None => Ok(None),
    }
}

pub(super) fn insert_tasks(sql: &Transaction<'_>, batch: &NewBatch) -> Result<(), Failed> {
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
    // If the earlier task with the same key has completed, the new task gets its output at once.
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
