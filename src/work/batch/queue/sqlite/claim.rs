//! Queues tasks, and lets workers claim them.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction, params};

use super::ending::{Terminal, end_task, enqueue};
use super::{Sql, machine_clock_ms, now_ms};
use crate::work::batch::queue::stored;
use crate::work::batch::queue::stored::millis;
use crate::work::batch::queue::{Claim, Lease, MOST_TAKEOVERS};

/// Returns a number that is higher with every call. It serves as a fencing token, and as the time at which a worker
/// last claimed a task of a lane (the queued tasks of one batch, priority and repository).
pub(super) fn next_number(sql: &Transaction<'_>) -> Sql<i64> {
    let known: Option<String> =
        sql.query_row("select value from meta where name = 'number'", [], |row| row.get(0)).optional()?;
    let next = known.and_then(|text| text.parse::<i64>().ok()).unwrap_or(0) + 1;
    sql.execute("insert or replace into meta values ('number', ?1)", [next.to_string()])?;
    Ok(next)
}

/// Queues tasks whose lease has expired or whose retry is due, and fails tasks that have expired or whose workers died
/// too often.
pub(super) fn settle(sql: &Transaction<'_>) -> Sql<()> {
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

/// Returns the next lane (the queued tasks of one batch, priority and repository) whose repository has not reached
/// its limit: of the lanes with the highest priority, the one from which no worker has claimed a task for the longest
/// time. The result is the lane's id and repository; `None` if there is no such lane.
pub(super) fn next_lane(
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

/// Claims the first task of a lane (the queued tasks of one batch, priority and repository). If the task's stored data
/// cannot be parsed, the task fails and the function returns `None`, so that the task does not block the others.
pub(super) fn claim_one(
    sql: &Transaction<'_>,
    lane: i64,
    worker: &str,
    lease: Duration,
) -> Sql<Option<Claim>> {
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
