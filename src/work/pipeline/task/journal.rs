//! The journal: tasks and their effects, in one SQLite file that must survive a crash.
//!
//! The runner writes the entry of an effect in two parts: the intent before the effect, and the outcome after it. Each
//! part is on disk before the next action (write-ahead log, full synchronisation). After a crash, the runner finds no
//! entry, only an intent (the effect may or may not have happened: the runner repeats it with exactly the same intent),
//! or an outcome. Commits are in the repository; the journal is never the only copy of one.
#![forbid(unsafe_code)]

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

/// How long a process waits until it may write, because several tasks write to the same file.
const PATIENCE: Duration = Duration::from_secs(60);

const TABLES: &str = "
create table if not exists task (
    id text primary key, created text not null, updated text not null, status text not null, reason text not null,
    request text not null, repository text not null, branch text not null, setting text not null, state text not null
) strict;
create table if not exists entry (
    task text not null references task(id), visit integer not null, effect text not null, step text not null,
    intent text not null, outcome text, begun text not null, ended text,
    primary key (task, visit, effect)
) strict;
create table if not exists decision (
    task text not null references task(id), visit integer not null, verdict text not null, feedback text not null, made text not null,
    name text not null default '', address text not null default '',
    primary key (task, visit)
) strict;
";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The journal's file or its directory cannot be created or opened.
    #[error("cannot open the task journal {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// SQLite failed to read or write the journal.
    #[error("cannot read or write the task journal {}: {source}", path.display())]
    Database { path: PathBuf, source: rusqlite::Error },
    /// A stored value cannot be parsed. Holds a description of the problem.
    #[error("the task journal contains a value that guard cannot parse: {0}")]
    Strange(String),
}

/// A task as stored in the journal. The journal does not interpret `setting` and `state`.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub id: String,
    /// When the task was created, in RFC 3339 format.
    pub created: String,
    /// When the task's row was last written, in RFC 3339 format.
    pub updated: String,
    pub status: String,
    /// Why the task has this status; may be empty.
    pub reason: String,
    pub request: String,
    /// The top directory of the user's own checkout of the repository, or the git directory of a bare repository.
    pub repository: String,
    pub branch: String,
    /// The part of the task that never changes: `TaskSettings` as JSON.
    pub setting: Value,
    /// The part of the task that changes with every step: `State` as JSON.
    pub state: Value,
}

/// An effect (an action of a step, such as an agent call or a commit) as stored in the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The number of the visit (execution of a step) in which the effect ran. Visits are numbered across all
    /// steps of the task.
    pub visit: u32,
    /// The name of the effect, unique within its visit.
    pub effect: String,
    /// The step that ran the effect.
    pub step: String,
    /// The parameters of the effect, recorded before it happens.
    pub intent: Value,
    /// The result of the effect; `None` if it has not been recorded.
    pub outcome: Option<Value>,
    /// When the intent was recorded, in RFC 3339 format.
    pub begun: String,
    /// When the outcome was recorded, in RFC 3339 format; `None` if it has not been.
    pub ended: Option<String>,
}

/// What the journal records about an effect that is about to run.
#[derive(Debug, Clone, PartialEq)]
pub enum EffectState {
    /// No earlier attempt began the effect. Its intent (its parameters) has been recorded now.
    New,
    /// An earlier attempt recorded this intent (the parameters of the effect), but no outcome. Whether the effect
    /// happened is unknown.
    Again(Value),
    /// The effect happened and had this outcome.
    Done(Value),
}

/// A user's decision at a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub verdict: String,
    pub feedback: String,
    /// The user's name and e-mail address.
    pub who: (String, String),
}

/// A callback that is called after every write, with the number of writes so far.
#[cfg(debug_assertions)]
type Watcher = Box<dyn FnMut(u64) + Send>;

/// The journal of all of a user's tasks.
pub struct Journal {
    path: PathBuf,
    connection: Connection,
    #[cfg(debug_assertions)]
    writes: u64,
    #[cfg(debug_assertions)]
    watcher: Option<Watcher>,
}

/// Adds the columns that a journal of an earlier version lacks.
fn add_missing_columns(connection: &Connection) -> rusqlite::Result<()> {
    for column in ["name", "address"] {
        let known = "select count(*) from pragma_table_info('decision') where name = ?1";
        let is_there = || connection.query_row(known, [column], |row| row.get::<_, u32>(0));
        if is_there()? > 0 {
            continue;
        }
        let added = connection
            .execute(&format!("alter table decision add column {column} text not null default ''"), []);
        // Another process may have added the column meanwhile.
        if added.is_err() && is_there()? == 0 {
            added?;
        }
    }
    Ok(())
}

impl Journal {
    /// Opens the journal, and creates it if it is missing.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Io { path: path.to_path_buf(), source };
        if let Some(directory) = path.parent() {
            DirBuilder::new().mode(0o700).recursive(true).create(directory).map_err(failed)?;
        }
        // The journal holds prompts and answers: only the user may read it.
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(failed)?;
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(path)?;
            connection.busy_timeout(PATIENCE)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.execute_batch(TABLES)?;
            add_missing_columns(&connection)?;
            Ok(connection)
        };
        let connection =
            patiently(open).map_err(|source| StoreError::Database { path: path.to_path_buf(), source })?;
        Ok(Self {
            path: path.to_path_buf(),
            connection,
            #[cfg(debug_assertions)]
            writes: 0,
            #[cfg(debug_assertions)]
            watcher: None,
        })
    }

    /// Calls `watcher` after every write, so that tests can end the process after each of them.
    #[cfg(debug_assertions)]
    pub fn watch(&mut self, watcher: impl FnMut(u64) + Send + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    fn failed(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Database { path: self.path.clone(), source }
    }

    fn wrote(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.writes += 1;
            if let Some(watcher) = &mut self.watcher {
                watcher(self.writes);
            }
        }
    }

    pub fn create(&mut self, task: &TaskRow) -> Result<(), StoreError> {
        let done = self.connection.execute(
            "insert into task values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                task.id,
                task.created,
                task.updated,
                task.status,
                task.reason,
                task.request,
                task.repository,
                task.branch,
                task.setting.to_string(),
                task.state.to_string(),
            ],
        );
        done.map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(())
    }

    /// Updates a task's status and state in one write.
    pub fn advance(&mut self, id: &str, status: &str, reason: &str, state: &Value) -> Result<(), StoreError> {
        let done = self.connection.execute(
            "update task set status = ?2, reason = ?3, state = ?4, updated = ?5 where id = ?1",
            params![id, status, reason, state.to_string(), now()],
        );
        done.map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(())
    }

    /// Finds a task by its id, or by a unique prefix or suffix of it. Returns `None` if no task or more than one
    /// matches.
    pub fn task(&self, id: &str) -> Result<Option<TaskRow>, StoreError> {
        let select = "select * from task where id = ?1 or id like ?1 || '%' escape '\\' or id like '%' || ?1 escape '\\' limit 2";
        let plain = id.replace(['%', '_', '\\'], "");
        let mut found = self.rows(select, [plain.as_str()])?;
        if let Some(at) = found.iter().position(|task| task.id == id) {
            return Ok(Some(found.swap_remove(at)));
        }
        Ok(if found.len() == 1 && !plain.is_empty() { found.pop() } else { None })
    }

    /// Returns all tasks, the newest first.
    pub fn tasks(&self) -> Result<Vec<TaskRow>, StoreError> {
        self.rows("select * from task order by id desc", [])
    }

    fn rows<P: rusqlite::Params>(&self, select: &str, with: P) -> Result<Vec<TaskRow>, StoreError> {
        let read = || -> rusqlite::Result<Vec<TaskRow>> {
            let mut statement = self.connection.prepare(select)?;
            statement.query_map(with, task_row)?.collect()
        };
        read().map_err(|error| self.failed(error))
    }

    /// Returns the state of an effect (an action of a step, such as a commit); `None` if the effect was never
    /// begun.
    pub fn effect_state(
        &self,
        task: &str,
        visit: u32,
        effect: &str,
    ) -> Result<Option<EffectState>, StoreError> {
        let known: Option<(String, Option<String>)> = self
            .connection
            .query_row(
                "select intent, outcome from entry where task = ?1 and visit = ?2 and effect = ?3",
                params![task, visit, effect],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .map_err(|error| self.failed(error))?;
        Ok(match known {
            None => None,
            Some((_, Some(outcome))) => Some(EffectState::Done(parsed(&outcome)?)),
            Some((intent, None)) => Some(EffectState::Again(parsed(&intent)?)),
        })
    }

    /// Records the intent (the parameters) of an effect before it runs, unless an intent is recorded already. Returns
    /// what the journal recorded about the effect before.
    pub fn begin(
        &mut self,
        task: &str,
        (visit, step): (u32, &str),
        effect: &str,
        intent: &Value,
    ) -> Result<EffectState, StoreError> {
        if let Some(known) = self.effect_state(task, visit, effect)? {
            return Ok(known);
        }
        let done = self.connection.execute(
            "insert into entry values (?1, ?2, ?3, ?4, ?5, null, ?6, null)",
            params![task, visit, effect, step, intent.to_string(), now()],
        );
        done.map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(EffectState::New)
    }

    /// Records the outcome of an effect after it ran.
    pub fn finish(
        &mut self,
        task: &str,
        visit: u32,
        effect: &str,
        outcome: &Value,
    ) -> Result<(), StoreError> {
        let done = self.connection.execute(
            "update entry set outcome = ?4, ended = ?5 where task = ?1 and visit = ?2 and effect = ?3",
            params![task, visit, effect, outcome.to_string(), now()],
        );
        done.map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(())
    }

    /// Deletes a task with its effects and decisions.
    pub fn remove(&mut self, task: &str) -> Result<(), StoreError> {
        let remove = || -> rusqlite::Result<()> {
            let all = self.connection.unchecked_transaction()?;
            for table in ["decision", "entry"] {
                all.execute(&format!("delete from {table} where task = ?1"), params![task])?;
            }
            all.execute("delete from task where id = ?1", params![task])?;
            all.commit()
        };
        remove().map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(())
    }

    /// Deletes the user's decisions at the gates from the visit (execution of a step) with the number `visit` on.
    pub fn delete_decisions_from(&mut self, task: &str, visit: u32) -> Result<(), StoreError> {
        let delete = "delete from decision where task = ?1 and visit >= ?2";
        self.connection.execute(delete, params![task, visit]).map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(())
    }

    /// Deletes the entries of all effects from the visit (execution of a step) with the number `visit` on, so
    /// that the runner performs them again. Deletes the user's decisions at the gates of later visits too, and the
    /// decision at the gate of this visit only if `with_decision` is set.
    pub fn delete_entries_from(
        &mut self,
        task: &str,
        visit: u32,
        with_decision: bool,
    ) -> Result<(), StoreError> {
        let first = if with_decision { visit } else { visit + 1 };
        let forget = || -> rusqlite::Result<()> {
            let all = self.connection.unchecked_transaction()?;
            all.execute("delete from entry where task = ?1 and visit >= ?2", params![task, visit])?;
            all.execute("delete from decision where task = ?1 and visit >= ?2", params![task, first])?;
            all.commit()
        };
        forget().map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(())
    }

    /// Returns the entries of all effects (actions such as commits) of a task, in the order in which they were
    /// begun.
    pub fn entries(&self, task: &str) -> Result<Vec<Entry>, StoreError> {
        let select = "select visit, effect, step, intent, outcome, begun, ended from entry where task = ?1 order by visit, begun, rowid";
        let read = || -> rusqlite::Result<Vec<Entry>> {
            let mut statement = self.connection.prepare(select)?;
            statement.query_map([task], entry)?.collect()
        };
        read().map_err(|error| self.failed(error))
    }

    /// Records the user's decision at the gate of a visit (execution of a step). Returns false if a decision
    /// was already recorded; that decision stays in force.
    pub fn decide(&mut self, task: &str, visit: u32, decision: &Decision) -> Result<bool, StoreError> {
        let done = self.connection.execute(
            "insert or ignore into decision values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![task, visit, decision.verdict, decision.feedback, now(), decision.who.0, decision.who.1],
        );
        let count = done.map_err(|error| self.failed(error))?;
        self.wrote();
        Ok(count == 1)
    }

    /// Returns the user's decision at the gate of a visit (execution of a step); `None` if the user has not
    /// decided.
    pub fn decision(&self, task: &str, visit: u32) -> Result<Option<Decision>, StoreError> {
        let read = self.connection.query_row(
            "select verdict, feedback, name, address from decision where task = ?1 and visit = ?2",
            params![task, visit],
            |row| {
                let who = (row.get(2)?, row.get(3)?);
                Ok(Decision { verdict: row.get(0)?, feedback: row.get(1)?, who })
            },
        );
        read.optional().map_err(|error| self.failed(error))
    }
}

/// Retries `work` while the database is busy, at most for `PATIENCE`. SQLite's own timeout does not cover two processes
/// that switch to the write-ahead log at the same time.
fn patiently<T>(work: impl Fn() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match work() {
            Err(rusqlite::Error::SqliteFailure(failure, _))
                if failure.code == rusqlite::ErrorCode::DatabaseBusy
                    && std::time::Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

fn task_row(row: &Row<'_>) -> rusqlite::Result<TaskRow> {
    let value = |at: usize| -> rusqlite::Result<Value> {
        let text: String = row.get(at)?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    };
    Ok(TaskRow {
        id: row.get(0)?,
        created: row.get(1)?,
        updated: row.get(2)?,
        status: row.get(3)?,
        reason: row.get(4)?,
        request: row.get(5)?,
        repository: row.get(6)?,
        branch: row.get(7)?,
        setting: value(8)?,
        state: value(9)?,
    })
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_default();
    let (intent, outcome): (String, Option<String>) = (row.get(3)?, row.get(4)?);
    Ok(Entry {
        visit: row.get(0)?,
        effect: row.get(1)?,
        step: row.get(2)?,
        intent: value(&intent),
        outcome: outcome.as_deref().map(value),
        begun: row.get(5)?,
        ended: row.get(6)?,
    })
}

fn parsed(text: &str) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Strange(error.to_string()))
}

/// Returns the current time in RFC 3339 format, as the journal stores it.
pub fn now() -> String {
    jiff::Timestamp::now().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn journal(name: &str) -> (Journal, PathBuf) {
        let directory = std::env::temp_dir().join(format!("guard-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let journal = Journal::open(&directory.join("journal.db")).unwrap_or_else(|error| panic!("{error}"));
        (journal, directory)
    }

    fn task(id: &str) -> TaskRow {
        TaskRow {
            id: id.to_string(),
            created: now(),
            updated: now(),
            status: "running".to_string(),
            reason: String::new(),
            request: "x".to_string(),
            repository: "/r".to_string(),
            branch: "task/x".to_string(),
            setting: json!({ "a": 1 }),
            state: json!({ "b": 2 }),
        }
    }

    #[test]
    fn an_effect_is_new_then_again_then_done() {
        let (mut journal, directory) = journal("effects");
        assert!(journal.create(&task("t-1")).is_ok());
        let intent = json!({ "parent": "abc" });
        let begin = |journal: &mut Journal, intent: &Value| {
            journal.begin("t-1", (1, "plan"), "commit", intent).unwrap_or_else(|error| panic!("{error}"))
        };
        assert_eq!(begin(&mut journal, &intent), EffectState::New);
        // The first intent counts, even if a later attempt passes a different one.
        assert_eq!(begin(&mut journal, &json!({ "parent": "other" })), EffectState::Again(intent));
        assert!(journal.finish("t-1", 1, "commit", &json!("id")).is_ok());
        assert_eq!(begin(&mut journal, &json!(null)), EffectState::Done(json!("id")));
        assert_eq!(journal.entries("t-1").map(|all| all.len()).ok(), Some(1));
        assert!(journal.delete_entries_from("t-1", 1, true).is_ok());
        assert_eq!(begin(&mut journal, &json!(null)), EffectState::New);
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn tasks_are_found_by_a_part_of_their_id() {
        let (mut journal, directory) = journal("tasks");
        for id in ["0197-aaaa", "0197-bbbb"] {
            assert!(journal.create(&task(id)).is_ok());
        }
        let found = |id: &str| journal.task(id).ok().flatten().map(|task| task.id);
        assert_eq!(found("bbbb").as_deref(), Some("0197-bbbb"));
        assert_eq!(found("0197-a").as_deref(), Some("0197-aaaa"));
        assert_eq!(found("0197"), None);
        assert_eq!(found("%"), None);
        assert_eq!(found(""), None);
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn many_begin_at_once() {
        let directory = std::env::temp_dir().join(format!("guard-store-many-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let path = directory.join("journal.db");
        std::thread::scope(|scope| {
            for n in 0..16 {
                let path = &path;
                scope.spawn(move || {
                    let mut journal = Journal::open(path).unwrap_or_else(|error| panic!("{error}"));
                    assert!(journal.create(&task(&format!("t-{n}"))).is_ok());
                });
            }
        });
        let all = Journal::open(&path).ok().and_then(|journal| journal.tasks().ok());
        assert_eq!(all.map(|all| all.len()), Some(16));
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn a_journal_of_an_earlier_guard_is_brought_up_to_date() {
        let (journal, directory) = journal("earlier");
        let path = journal.path.clone();
        drop(journal);
        let old = Connection::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let without = "alter table decision drop column name; alter table decision drop column address";
        old.execute_batch(without).unwrap_or_else(|error| panic!("{error}"));
        drop(old);
        let mut journal = Journal::open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(journal.create(&task("t")).is_ok());
        let who = ("Ann".to_string(), "ann@example.org".to_string());
        let decision = Decision { verdict: "APPROVE".to_string(), feedback: String::new(), who: who.clone() };
        assert_eq!(journal.decide("t", 1, &decision).ok(), Some(true));
        assert_eq!(journal.decision("t", 1).ok().flatten().map(|one| one.who), Some(who));
        assert!(journal.remove("t").is_ok());
        assert_eq!(journal.tasks().ok().map(|all| all.len()), Some(0));
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn the_first_decision_counts() {
        let (mut journal, directory) = journal("decisions");
        assert!(journal.create(&task("t")).is_ok());
        let decision = |verdict: &str| Decision {
            verdict: verdict.to_string(),
            feedback: String::new(),
            who: ("Ann".to_string(), "ann@example.org".to_string()),
        };
        assert_eq!(journal.decide("t", 3, &decision("APPROVE")).ok(), Some(true));
        assert_eq!(journal.decide("t", 3, &decision("REJECT")).ok(), Some(false));
        assert_eq!(
            journal.decision("t", 3).ok().flatten().map(|one| one.verdict).as_deref(),
            Some("APPROVE")
        );
        let _ = std::fs::remove_dir_all(directory);
    }
}
