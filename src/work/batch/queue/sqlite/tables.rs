//! Creates the tables of the queue, and changes those of an earlier version.

use rusqlite::{OptionalExtension, Transaction};

use super::Sql;

/// The tables of the queue. Large values are in `payload`, whose rows never change, because SQLite rewrites a whole
/// row when one column changes. `task` and `payload` have a rowid: without one, SQLite would store every value of more
/// than about 1 KB in a page of its own, which made the queue of 3,000 such tasks 29 MB large instead of 9 MB.
pub(super) const TABLES: &str = "
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
) strict;
create table if not exists payload (
    batch text not null, position integer not null, parameters text not null, options text not null,
    primary key (batch, position)
) strict;
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

/// Adds the columns that the first version of the queue did not have. A lane is the queued tasks of one batch,
/// priority and repository. `rank` is the current priority, by which workers choose a lane; `priority` is that of the
/// submission.
pub(super) const ADDED_COLUMNS: &str = "
alter table lane add column paused integer not null default 0;
alter table lane add column rank integer not null default 0;
update lane set rank = priority;
drop index if exists lane_by_turn;
create index lane_by_rank on lane (rank desc, turn) where queued > 0 and paused = 0;
";

pub(super) fn add_columns(sql: &Transaction<'_>) -> Sql<()> {
    let has_columns: bool = sql.query_row(
        "select exists (select 1 from pragma_table_info('lane') where name = 'rank')",
        [],
        |row| row.get(0),
    )?;
    if has_columns { Ok(()) } else { sql.execute_batch(ADDED_COLUMNS) }
}

/// Resets the times of leases and retries that were stored before the machine last started. They are useless, because
/// they refer to a clock that starts at zero whenever the machine starts.
pub(super) fn forget_times_of_last_boot(sql: &Transaction<'_>) -> Sql<()> {
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
