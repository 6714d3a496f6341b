//! Converts rows of the SQLite tables to batches and tasks.

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::Value;

use super::Sql;
use crate::work::batch::model::TaskState;
use crate::work::batch::queue::{BatchRow, TaskRow};

pub(super) const TASK_COLUMNS: &str =
    "position, task_id, state, output, error, error_kind, error_detail, attempts";

pub(super) fn task_row(row: &Row<'_>) -> Sql<TaskRow> {
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

pub(super) fn batch_row(sql: &Connection, id: &str) -> Sql<Option<BatchRow>> {
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
