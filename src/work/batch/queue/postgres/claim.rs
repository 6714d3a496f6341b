//! Claims tasks for a worker in PostgreSQL: the highest priority first, and batches of the same priority take turns.

use std::collections::HashMap;
use std::rc::Rc;

use postgres::Row;

use super::super::stored;
use super::super::stored::millis;
use super::super::{Claim, ClaimLimits, Lease, MOST_TAKEOVERS};
use super::connection::Session;
use super::ending::{EndingTask, Outcome, end_tasks, enqueue};
use super::{Sql, TaskKey, columns, most_rows, storable, task_key};

/// Claims tasks for a worker. First queues tasks whose lease has expired or whose retry is due, and fails tasks that
/// have expired or whose workers died too often. The caller holds `Lock::Claims`.
pub(super) fn claim_tasks(sql: &mut Session, worker: &str, limits: ClaimLimits) -> Sql<Vec<Claim>> {
    let running = settle(sql)?.running;
    let mut claimer = Claimer { worker, limits, running, exhausted: Vec::new(), claims: Vec::new() };
    while claimer.free() > 0 && claimer.claim_some(sql)? {}
    Ok(claimer.claims)
}

/// The state of the queue that `claim_tasks` needs before it takes tasks.
struct Situation {
    /// True if the lease of a running task has expired.
    has_lost: bool,
    /// True if the time of a retry has come.
    has_due: bool,
    /// True if a task has not started within its `expires_after`.
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

/// Queues tasks whose lease has expired or whose retry is due, and fails tasks that have expired or whose workers died
/// too often. Returns the state of the queue after these changes.
fn settle(sql: &mut Session) -> Sql<Situation> {
    let situation = look(sql)?;
    if !situation.has_lost && !situation.has_due && !situation.has_expired {
        return Ok(situation);
    }
    let mut ended = 0;
    if situation.has_lost {
        ended += settle_lost(sql)?;
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
        ended += end_tasks(sql, rows.iter().map(task).collect())?.len();
    }
    if ended > 0 {
        // Other sessions may wait for the end of these tasks.
        sql.query("select pg_notify('guard_queue', '')", &[])?;
    }
    look(sql)
}

/// Queues the tasks of dead workers again. Fails a task that the queue has already given to another worker
/// `MOST_TAKEOVERS` times, because the task itself may crash the workers. Returns how many tasks ended.
fn settle_lost(sql: &mut Session) -> Sql<usize> {
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
    Ok(end_tasks(sql, failed)?.len())
}

/// A lane: the queued tasks of one batch that have the same priority and repository.
struct Lane {
    id: i64,
    priority: i32,
    repository: String,
}

/// Claims tasks within the limits. The caller holds `Lock::Claims`.
struct Claimer<'c> {
    worker: &'c str,
    limits: ClaimLimits,
    /// The number of running tasks in each repository.
    running: HashMap<String, usize>,
    /// The ids of lanes (see [`Lane`]) from which this claim wanted more tasks than they had. The claim does not try
    /// them again.
    exhausted: Vec<i64>,
    claims: Vec<Claim>,
}

impl Claimer<'_> {
    /// Returns how many more tasks the limits allow this claim to take.
    fn free(&self) -> usize {
        let running: usize = self.running.values().sum();
        let of_claim = self.limits.most.saturating_sub(self.claims.len());
        of_claim.min(self.limits.global.saturating_sub(running))
    }

    fn has_room(&self, repository: &str) -> bool {
        self.running.get(repository).is_none_or(|count| *count < self.limits.per_repository)
    }

    /// Returns the lanes (see [`Lane`]) of the highest priority from which the limits allow a claim, but no more lanes
    /// than the claim may still take tasks. The lane whose last task was claimed longest ago comes first.
    fn next_lanes(&self, sql: &mut Session) -> Sql<Vec<Lane>> {
        if self.limits.per_repository == 0 {
            return Ok(Vec::new());
        }
        let full: Vec<&str> =
            self.running.keys().map(String::as_str).filter(|name| !self.has_room(name)).collect();
        let rows = sql.query(
            "select id, priority, repository from guard.lane
             where is_active and not is_paused and repository <> all($1) and id <> all($2)
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

    /// Returns how many tasks to take from each lane (see [`Lane`]) if the claim takes one task from each in turn until
    /// it reaches the limits. Adds these tasks to `running`.
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

    /// Claims tasks from the lanes (see [`Lane`]) of the highest priority. Returns false if there is no such lane. May
    /// return true without having claimed a task, if other transactions have locked the tasks or the lanes are empty.
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
        // The query asks for one task more than the lane's share. If it returns no such task, the lane is empty after
        // this claim.
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

    /// Records the tasks as claimed by the worker. A task whose stored data cannot be parsed fails, so that it does
    /// not block the others.
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

/// A task that a claim takes from a lane (see [`Lane`]), and the fencing token that the task gets.
struct Turn {
    lane: i64,
    task: TaskKey,
    token: i64,
}

/// Takes one task from each lane (see [`Lane`]) in turn until no tasks are left. `tokens` are the fencing tokens for
/// the tasks, in ascending order; there are at least as many tokens as tasks.
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

/// Stores for each lane (see [`Lane`]) the token of the last task that the claim took from it, so that the next claim
/// begins with the lanes that have waited longest.
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

/// Marks lanes (see [`Lane`]) without queued tasks as inactive. A transaction that queues a task locks the task's lane,
/// so this function skips lanes that are locked. In the other lanes, the last statement of this function sees all
/// queued tasks.
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
