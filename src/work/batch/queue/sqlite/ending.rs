//! Records how tasks ended, and updates the tasks that depend on them.

use std::collections::VecDeque;

use rusqlite::{OptionalExtension, Transaction, params};

use super::{Sql, now_ms};
use crate::work::batch::model::{TaskFailure, TaskState};
use crate::work::batch::queue::stored;

/// The final outcome of a task.
pub(super) enum Terminal<'o> {
    Completed(&'o str),
    Failed(&'o TaskFailure),
}

pub(super) fn end_task(
    sql: &Transaction<'_>,
    batch: &str,
    position: i64,
    outcome: &Terminal<'_>,
) -> Sql<u64> {
    end_tasks(sql, batch, &[position], outcome)
}

/// Records the outcome of tasks that have not ended yet, and then updates the tasks that depend on them: dependent
/// tasks are queued or fail, and tasks with the same idempotency key get the same outcome. Returns the number of tasks
/// that ended.
pub(super) fn end_tasks(
    sql: &Transaction<'_>,
    batch: &str,
    positions: &[i64],
    outcome: &Terminal<'_>,
) -> Sql<u64> {
    let dependency_failed;
    // The list is first in, first out, so that a given task that depends on another given task gets `outcome`, and not
    // the failure of its dependency.
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

pub(super) fn state_of(sql: &Transaction<'_>, batch: &str, position: i64) -> Sql<String> {
    sql.prepare_cached("select state from task where batch = ?1 and position = ?2")?
        .query_row(params![batch, position], |row| row.get(0))
}

pub(super) fn is_terminal(state: &str) -> bool {
    state.parse().is_ok_and(TaskState::is_terminal)
}

/// Cancels the task with the id `task`, or all tasks of the batch if `task` is `None`. Skips tasks that have ended.
/// Returns the number of tasks that ended because of the cancellation, including the tasks that depend on a cancelled
/// task.
pub(super) fn cancel_open(sql: &Transaction<'_>, batch: &str, task: Option<&str>) -> Sql<u64> {
    let mut select = sql.prepare_cached(
        "select position from task where batch = ?1 and (?2 is null or task_id = ?2)
             and state not in ('completed', 'failed') order by position",
    )?;
    let open: Vec<i64> = select.query_map(params![batch, task], |row| row.get(0))?.collect::<Sql<_>>()?;
    end_tasks(sql, batch, &open, &Terminal::Failed(&stored::cancelled()))
}

pub(super) fn enqueue(sql: &Transaction<'_>, batch: &str, position: i64) -> Sql<()> {
    let lane: i64 = sql
        .prepare_cached(
            "update task set state = 'queued', worker = '' where batch = ?1 and position = ?2 returning lane",
        )?
        .query_row(params![batch, position], |row| row.get(0))?;
    sql.prepare_cached("update lane set queued = queued + 1 where id = ?1")?.execute([lane])?;
    Ok(())
}
