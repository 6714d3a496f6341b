-- The queue in PostgreSQL, version 2. `connection.rs` runs this in one transaction if there is no queue yet, after it
-- has made the schema `guard`.
-- JSON is stored as text: jsonb cannot hold U+0000, and would change numbers and the order of keys.

create table guard.meta (name text primary key, value text not null);
insert into guard.meta values ('version', '2');

-- Fencing tokens, turns and the ids of lanes.
create sequence guard.number;

-- The only clock of the queue, in milliseconds since 1970.
create function guard.now_ms() returns bigint language sql volatile
    as 'select (extract(epoch from clock_timestamp()) * 1000)::bigint';

create table guard.batch (
    id text collate "C" primary key, created_ms bigint not null, key_digest text collate "C" unique, digest text not null
);
create index batch_by_age on guard.batch (created_ms, id);

-- When a lease ends. Workers cannot extend their leases while the server is down, so every lease lasts for at least its
-- full duration after the start of the server.
create function guard.lease_end(lease_until bigint, lease_ms bigint) returns bigint language sql stable
    as 'select greatest(lease_until, (extract(epoch from pg_postmaster_start_time()) * 1000)::bigint + lease_ms)';

-- The queued tasks of one batch, priority and repository. `is_active` is true at least as long as a task is queued.
create table guard.lane (
    id bigint primary key, batch text collate "C" not null, priority integer not null, repository text not null,
    is_active boolean not null, turn bigint not null, is_paused boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.02);
create index lane_by_turn on guard.lane (priority desc, turn, id) where is_active and not is_paused;
create index lane_by_batch on guard.lane (batch);

-- No index contains `lease_until`, so that heartbeats are cheap (heap-only updates). Only the primary key begins with the
-- batch: without statistics the planner cannot tell a whole batch from one task.
create table guard.task (
    batch text collate "C" not null, position bigint not null, task_id text collate "C" not null, type text not null,
    lane bigint not null, state text collate "C" not null, unmet bigint not null, attempts bigint not null default 0,
    takeovers bigint not null default 0, token bigint not null default 0, worker text not null default '',
    lease_until bigint not null default 0, lease_ms bigint not null default 0, due_ms bigint not null default 0,
    expires_ms bigint, started_ms bigint not null default 0, attempts_ended bigint not null default 0,
    spent_ms bigint not null default 0, ended_ms bigint, ending bigint, error_kind text, error text, error_detail text, output text,
    primary key (batch, position)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create unique index task_by_id on guard.task (task_id, batch);
create index task_by_ending on guard.task (ending, batch) where ending is not null;
create index task_queued on guard.task (lane, position) where state = 'queued';
create index task_running on guard.task (lane) where state = 'running';
create index task_waiting on guard.task (due_ms) where state = 'waiting';
create index task_expiring on guard.task (expires_ms)
    where expires_ms is not null and state in ('queued', 'waiting', 'blocked');
create index task_blocked on guard.task (position) where state = 'blocked';

-- Large values that never change, so that an update of `task` does not copy them.
create table guard.payload (
    batch text collate "C" not null, position bigint not null, parameters text not null, options text not null,
    primary key (batch, position)
);

create table guard.dependency (
    needed_batch text collate "C" not null, needed bigint not null, batch text collate "C" not null,
    position bigint not null, is_same boolean not null,
    primary key (needed_batch, needed, batch, position)
);
create index dependency_of on guard.dependency (batch, position);

-- Keys are stored as digests: a key may be longer than PostgreSQL can index.
create table guard.task_key (
    key_digest text collate "C" primary key, digest text not null, batch text collate "C" not null,
    position bigint not null
);
create index task_key_by_batch on guard.task_key (batch);

-- The commands that guard has carried out. A batch ignores a second command with the same id.
create table guard.command (
    batch text collate "C" not null, command_id text collate "C" not null, cancelled bigint not null,
    primary key (batch, command_id)
);
