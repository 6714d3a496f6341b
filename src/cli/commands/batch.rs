//! `guard batch`: submits tasks, polls for their results, and shows them to programs and people.

use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;

use crate::cli::args::batch::{Batch, BatchAction, StoreOption};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::table;
use crate::cli::output::table::Column;
use crate::cli::{Failure, note};
use crate::run::transcript::runs_dir;
use crate::sys::agent_paths::{open_named_file, own_real_path};
use crate::text::terminal_text;
use crate::work::batch::queue::{BatchRow, NewBatch};
use crate::work::batch::{
    BatchResponse, BatchStatus, LARGEST_INPUT, Page, Queue, QueueError, TaskResult, TaskStatus, TaskTypes,
    WorkerLock, open_queue, parse_tasks, respond, start_local_worker,
};

/// The number of results that guard reads from the queue at once. With `--json` and `--jsonl`, guard prints these
/// results before it reads the next ones, so the memory that it needs does not grow with the batch.
const PAGE: usize = 500;
/// The width of the progress bar, in columns.
const BAR_WIDTH: usize = 30;

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let hint = match &error {
            QueueError::Postgres { .. } => {
                "correct what the message says; if there is no answer, check the address, and that the database is running"
            }
            QueueError::KeyReused(_) => "a key belongs to one submission; use a new key for other tasks",
            QueueError::Unstorable { .. } => "change or remove the task that the message names",
            _ => "`guard doctor` checks the state directory and its disk",
        };
        Self::usage(error.to_string(), hint)
    }
}

/// Where the queue is: the address of a database, or the file in the state directory.
pub(in crate::cli) struct QueuePlace {
    pub(in crate::cli) address: Option<String>,
    pub(in crate::cli) directory: PathBuf,
}

impl QueuePlace {
    /// Finds the queue: the database that `--store`, `GUARD_STORE` or the user's configuration names, in this order, or
    /// else the file in the state directory. Fails if the address is not one of a PostgreSQL database.
    pub(in crate::cli) fn find(option: &StoreOption) -> Result<Self, Failure> {
        let runs = runs_dir().map_err(|error| {
            Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
        })?;
        let given = option.store.clone().or_else(|| std::env::var("GUARD_STORE").ok());
        let address = match given.filter(|text| !text.is_empty()) {
            Some(address) => Some(address),
            None => crate::session::user_config()?.batch.store,
        };
        if let Some(address) = &address
            && !address.starts_with("postgres://")
            && !address.starts_with("postgresql://")
        {
            return Err(Failure::usage(
                "the store must be an address that begins with postgres:// or postgresql://",
                "correct --store, GUARD_STORE, or `store` below [batch] in config.toml; without any, guard uses a file in its state directory",
            ));
        }
        Ok(Self { address, directory: runs.with_file_name("batch") })
    }

    pub(in crate::cli) fn open(&self) -> Result<Box<dyn Queue>, QueueError> {
        open_queue(self.address.as_deref(), &self.directory.join("queue.sqlite"))
    }

    /// Takes the lock of the queue's worker; `None` if another process holds it.
    pub(in crate::cli) fn lock_worker(&self) -> io::Result<Option<WorkerLock>> {
        WorkerLock::take(&self.directory, self.address.as_deref())
    }

    /// Starts a worker in the background if none is running.
    pub(in crate::cli) fn start_worker(&self) -> io::Result<()> {
        start_local_worker(&std::env::current_exe()?, &self.directory, self.address.as_deref())
    }
}

pub(in crate::cli) fn run(args: &Batch, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let BatchAction::Types { json } = &args.action {
        return list_types(*json, out);
    }
    let place = QueuePlace::find(&args.store)?;
    let mut queue = place.open()?;
    match &args.action {
        BatchAction::Types { .. } => {}
        BatchAction::Submit { file, dir, idempotency_key, no_worker } => {
            let tasks = read_tasks(file, dir.as_deref())?;
            let id = queue.submit(&NewBatch::new(tasks, idempotency_key.clone()))?;
            if !no_worker {
                place.start_worker()?;
            }
            let response = respond(&mut *queue, &id, Page::ALL)?.ok_or_else(|| unknown(&id))?;
            print_response(&response, out)?;
        }
        BatchAction::Poll { response_id, wait, task, summary, limit, after } => {
            let page = match limit {
                _ if *summary => Page::SUMMARY,
                Some(limit) => Page { after: *after, limit: *limit },
                None => Page::ALL,
            };
            let deadline = Instant::now() + Duration::from_secs(wait.unwrap_or(0));
            match task {
                Some(task) => print_response(&await_task(&mut *queue, response_id, task, deadline)?, out)?,
                None => {
                    await_batch(&mut *queue, response_id, deadline)?;
                    let response = respond(&mut *queue, response_id, page)?;
                    print_response(&response.ok_or_else(|| unknown(response_id))?, out)?;
                }
            }
        }
        BatchAction::Results { response_id, jsonl, json } => {
            return print_results(&mut *queue, response_id, *jsonl, *json, out);
        }
        BatchAction::Watch { response_id } => return watch(&mut *queue, response_id, out),
        BatchAction::Cancel { response_id, task } => {
            known(&mut *queue, response_id)?;
            if let Some(task) = task {
                queue.task(response_id, task)?.ok_or_else(|| unknown_task(response_id, task))?;
            }
            let cancelled = queue.cancel(response_id, task.as_deref())?;
            writeln!(out, "cancelled {}", count(cancelled, "task"))?;
        }
        BatchAction::RetryFailed { response_id, no_worker } => {
            known(&mut *queue, response_id)?;
            let queued = queue.retry_failed(response_id)?;
            if queued > 0 && !no_worker {
                place.start_worker()?;
            }
            writeln!(out, "queued {} again", count(queued, "task"))?;
        }
        BatchAction::List { number, json } => list(&queue.batches(*number)?, *json, out)?,
        BatchAction::Clean { older_than } => {
            let removed = queue.remove_ended(Duration::from_secs(*older_than))?;
            let batches = if removed == 1 { "1 batch".to_string() } else { format!("{removed} batches") };
            writeln!(out, "deleted {batches}")?;
        }
    }
    Ok(Exit::Success)
}

fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

fn unknown(id: &str) -> Failure {
    let id = terminal_text::one_line(id);
    Failure::usage(format!("there is no batch {id}"), "`guard batch list` shows the response ids")
}

fn unknown_task(id: &str, task: &str) -> Failure {
    let (id, task) = (terminal_text::one_line(id), terminal_text::one_line(task));
    let hint = format!("`guard batch results {id}` shows the task ids");
    Failure::usage(format!("the batch {id} has no task {task}"), hint)
}

fn known(queue: &mut dyn Queue, id: &str) -> Result<BatchRow, Failure> {
    queue.batch(id)?.ok_or_else(|| unknown(id))
}

/// Reads and checks a submission from a file, or from standard input if `file` is `-`. `directory` is the value of
/// `--dir`; the default is the current directory.
fn read_tasks(file: &Path, directory: Option<&Path>) -> Result<Vec<crate::work::batch::NewTask>, Failure> {
    let name = if file == Path::new("-") { "standard input".to_string() } else { file.display().to_string() };
    let bad = |problem: String| {
        let hint = "a submission is a JSON array such as [{\"task_id\": \"1\", \"type\": \"echo\", \"parameters\": {}}]; nothing was queued";
        Failure::usage(format!("{name}: {problem}"), hint)
    };
    let unreadable = |error: io::Error| {
        Failure::usage(
            format!("cannot read {name}: {error}"),
            "give a readable file, or `-` for standard input; nothing was queued",
        )
    };
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(open_named_file(file).map_err(unreadable)?)
    };
    let mut bytes = Vec::new();
    source.take(LARGEST_INPUT as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > LARGEST_INPUT {
        return Err(bad(format!("the submission is larger than {} MiB", LARGEST_INPUT >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("the submission is not UTF-8".to_string()))?;
    let directory = match directory {
        Some(directory) => own_real_path(directory).map_err(|error| {
            Failure::usage(
                format!("--dir {}: {error}", directory.display()),
                "give the real path of a directory that exists",
            )
        })?,
        None => std::env::current_dir()?.canonicalize()?,
    };
    parse_tasks(&text, &directory, &load_types()?).map_err(|error| bad(error.to_string()))
}

fn print_response(response: &BatchResponse, out: &mut dyn Write) -> Result<(), Failure> {
    crate::cli::output::json::to_writer(&mut *out, response).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Waits until a batch has ended or the deadline has passed, and returns the batch. Fails if there is no such batch.
fn await_batch(queue: &mut dyn Queue, id: &str, deadline: Instant) -> Result<BatchRow, Failure> {
    loop {
        let row = known(queue, id)?;
        let rest = deadline.saturating_duration_since(Instant::now());
        if row.open() == 0 || rest.is_zero() {
            return Ok(row);
        }
        queue.wait(rest)?;
    }
}

/// Waits until a task has ended or the deadline has passed, and returns a response that contains only this task. Fails
/// if there is no such batch or task.
fn await_task(
    queue: &mut dyn Queue,
    id: &str,
    task: &str,
    deadline: Instant,
) -> Result<BatchResponse, Failure> {
    loop {
        let mut response = respond(queue, id, Page::SUMMARY)?.ok_or_else(|| unknown(id))?;
        let row = queue.task(id, task)?.ok_or_else(|| unknown_task(id, task))?;
        let rest = deadline.saturating_duration_since(Instant::now());
        if row.state.is_terminal() || rest.is_zero() {
            response.results = vec![TaskResult::from(row)];
            return Ok(response);
        }
        queue.wait(rest)?;
    }
}

/// Calls `each` with the result of each task of a batch, including tasks that have not ended. Reads the results in
/// pages of `PAGE`. Fails if there is no such batch.
fn for_each_result(
    queue: &mut dyn Queue,
    id: &str,
    mut each: impl FnMut(TaskResult) -> Result<(), Failure>,
) -> Result<(), Failure> {
    known(queue, id)?;
    let mut after = -1;
    loop {
        let rows = queue.tasks(id, after, PAGE)?;
        let Some(last) = rows.last().map(|row| row.position) else { return Ok(()) };
        after = last;
        for row in rows {
            each(TaskResult::from(row))?;
        }
    }
}

fn print_results(
    queue: &mut dyn Queue,
    id: &str,
    jsonl: bool,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let mut is_first = true;
    let mut rows = Vec::new();
    for_each_result(queue, id, |result| {
        if jsonl || json {
            if json {
                write!(out, "{}", if is_first { "[" } else { ",\n" })?;
            }
            is_first = false;
            crate::cli::output::json::to_writer(&mut *out, &result).map_err(io::Error::from)?;
            if jsonl {
                writeln!(out)?;
            }
        } else {
            rows.push(result);
        }
        Ok(())
    })?;
    if json {
        writeln!(out, "{}", if is_first { "[]" } else { "]" })?;
    } else if !jsonl {
        write_results_table(&rows, out)?;
    }
    Ok(Exit::Success)
}

fn status_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Pending => "pending",
        TaskStatus::Completed => "completed",
        TaskStatus::Failed => "failed",
    }
}

fn write_results_table(results: &[TaskResult], out: &mut dyn Write) -> Result<(), Failure> {
    let column = |title, leave_out, cells: Vec<String>| Column {
        title,
        cells,
        is_number: false,
        widest: 60,
        shrinks: leave_out > 0,
        leave_out,
    };
    let summary = |result: &TaskResult| match &result.error {
        Some(error) => terminal_text::one_line(error),
        None if result.output.is_empty() => String::new(),
        None => terminal_text::one_line(&serde_json::Value::Object(result.output.clone()).to_string()),
    };
    let columns = vec![
        column("TASK", 0, results.iter().map(|result| terminal_text::one_line(&result.task_id)).collect()),
        column("STATUS", 0, results.iter().map(|result| status_name(result.status).to_string()).collect()),
        column("RESULT", 0, results.iter().map(summary).collect()),
    ];
    table::write(columns, table::width(), out)?;
    Ok(())
}

fn list(batches: &[BatchRow], json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let time = |row: &BatchRow| {
        Timestamp::from_millisecond(row.created_ms).map(|time| time.to_string()).unwrap_or_default()
    };
    if json {
        let rows = batches.iter().map(|row| {
            json!({
                "response_id": row.id,
                "created": time(row),
                "status": BatchStatus::of(row),
                "counts": crate::work::batch::Counts::from(row),
            })
        });
        print_json(&rows.collect(), out)?;
        return Ok(());
    }
    if batches.is_empty() {
        writeln!(out, "no batches; `guard batch submit FILE` creates one")?;
        return Ok(());
    }
    let column = |title, is_number, leave_out, cells: Vec<String>| Column {
        title,
        cells,
        is_number,
        widest: 60,
        shrinks: false,
        leave_out,
    };
    let cells = |cell: &dyn Fn(&BatchRow) -> String| batches.iter().map(cell).collect::<Vec<String>>();
    let columns = vec![
        column("RESPONSE ID", false, 0, cells(&|row| row.id.clone())),
        column("SUBMITTED", false, 2, cells(&|row| time(row).chars().take(19).collect())),
        column("TASKS", true, 0, cells(&|row| row.total().to_string())),
        column("PENDING", true, 0, cells(&|row| row.open().to_string())),
        column("FAILED", true, 1, cells(&|row| row.count(crate::work::batch::TaskState::Failed).to_string())),
    ];
    table::write(columns, table::width(), out)?;
    Ok(())
}

/// Shows the progress of a batch on standard error until it ends, and then prints the error of each failed task.
/// Returns `Exit::Problem` if a task failed.
fn watch(queue: &mut dyn Queue, id: &str, out: &mut dyn Write) -> Result<Exit, Failure> {
    let is_terminal = io::stderr().is_terminal();
    let mut shown = String::new();
    let row = loop {
        let row = known(queue, id)?;
        let line = progress(&row);
        if is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
        } else if line != shown {
            note(&line);
        }
        shown = line;
        if row.open() == 0 {
            break row;
        }
        queue.wait(Duration::from_secs(1))?;
        // Update the display at most ten times a second: a batch of small tasks changes more often than a person can
        // read.
        std::thread::sleep(Duration::from_millis(100));
    };
    if is_terminal {
        let _ = writeln!(io::stderr());
    }
    let failed = row.count(crate::work::batch::TaskState::Failed);
    for_each_result(queue, id, |result| {
        if let Some(error) = result.error {
            writeln!(
                out,
                "{}: {}",
                terminal_text::one_line(&result.task_id),
                terminal_text::one_line(&error)
            )?;
        }
        Ok(())
    })?;
    Ok(if failed == 0 { Exit::Success } else { Exit::Problem })
}

fn progress(row: &BatchRow) -> String {
    let (total, open) = (row.total(), row.open());
    let done = total - open;
    let filled = usize::try_from(done * BAR_WIDTH as u64 / total.max(1)).unwrap_or(0);
    let bar: String = (0..BAR_WIDTH).map(|at| if at < filled { '█' } else { '░' }).collect();
    let failed = match row.count(crate::work::batch::TaskState::Failed) {
        0 => String::new(),
        failed => format!(" · {failed} failed"),
    };
    let running = row.count(crate::work::batch::TaskState::Running);
    format!("{bar} {done} of {} ended · {running} running{failed}", count(total, "task"))
}

fn list_types(json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let types = load_types()?;
    if json {
        let all = types.iter().map(|one| {
            json!({
                "type": one.name,
                "description": one.description,
                "parameters": one.parameters,
                "output": one.output,
            })
        });
        print_json(&all.collect(), out)?;
        return Ok(Exit::Success);
    }
    for one in types.iter() {
        writeln!(out, "{}\n  {}", one.name, terminal_text::one_line(&one.description))?;
        let required: Vec<&str> = one.parameters["required"]
            .as_array()
            .map(|names| names.iter().filter_map(serde_json::Value::as_str).collect())
            .unwrap_or_default();
        for (name, schema) in one.parameters["properties"].as_object().into_iter().flatten() {
            let optional = if required.contains(&name.as_str()) { "" } else { " (optional)" };
            let meaning = schema["description"].as_str().unwrap_or_default();
            writeln!(
                out,
                "    {}{optional}: {}",
                terminal_text::one_line(name),
                terminal_text::one_line(meaning)
            )?;
        }
    }
    Ok(Exit::Success)
}

pub(in crate::cli) fn load_types() -> Result<TaskTypes, Failure> {
    TaskTypes::load(crate::session::user_directories::config_dir().as_deref())
        .map_err(|error| Failure::usage(error.to_string(), "correct the file of the task type, or remove it"))
}
