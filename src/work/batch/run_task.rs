//! Does the work of one claimed task, as its type specifies: a built-in function, a command in the sandbox, or an
//! agent.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::coverage;
use super::coverage::{CoverageError, Format, Scope};
use super::memory;
use super::model::{TaskFailure, TaskKind, object};
use super::queue::Claim;
use super::research_task;
use super::task_type::{Builtin, CommandOutput, TaskType, TaskTypes, Work};
use crate::agents::adapter::{AgentEvent, json_objects};
use crate::agents::exec::{Cancel, ExecRequest, ExecResult, Executor};
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;
use crate::text::template::Template;

/// How many bytes of a long standard error the output of a task keeps. Whenever the text is more than twice as long,
/// guard removes the beginning and keeps only this many bytes at the end.
const LARGEST_STDERR: usize = 1 << 20;

/// What a worker needs to work on tasks: an executor, the task types and the directory of runs.
#[derive(Debug)]
pub struct TaskContext {
    pub executor: Executor,
    /// The available task types, built-in and the user's.
    pub types: TaskTypes,
    /// The directory with the records of runs.
    pub runs: PathBuf,
}

impl TaskContext {
    /// Works on a task until it has an output or has failed. Setting `cancel` ends its command or agent.
    pub(super) fn run(&self, claim: &Claim, cancel: &Cancel) -> Result<Map<String, Value>, TaskFailure> {
        let task_type = self.types.get(&claim.task_type)?;
        task_type.check_parameters(&claim.parameters)?;
        check_directory(&claim.options.directory)?;
        let output = match &task_type.work {
            Work::Builtin(builtin) => self.run_builtin(*builtin, claim, cancel)?,
            Work::Command(command, output) => self.run_command(task_type, command, *output, claim, cancel)?,
            Work::Prompt(prompt) => return self.ask_agent(task_type, prompt, claim, cancel),
        };
        let problems = task_type.output_problems(&output);
        if problems.is_empty() {
            return Ok(output);
        }
        let message =
            format!("the output of the task does not match the schema of its type: {}", problems.join("; "));
        Err(TaskFailure::permanent(TaskKind::InvalidAnswer, message))
    }

    fn run_builtin(
        &self,
        builtin: Builtin,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<Map<String, Value>, TaskFailure> {
        let text = |name: &str| claim.parameters.get(name).and_then(Value::as_str);
        let directory = &claim.options.directory;
        match builtin {
            Builtin::Echo => Ok(claim.parameters.clone()),
            Builtin::Coverage => {
                let report = text("report").map(PathBuf::from);
                let scope = text("scope").and_then(|name| name.parse::<Scope>().ok()).unwrap_or(Scope::All);
                let format =
                    text("format").and_then(|name| name.parse::<Format>().ok()).unwrap_or(Format::Json);
                let found = coverage::read_coverage(directory, report.as_deref());
                let rendered = found
                    .and_then(|found| found.render(scope, format))
                    .map_err(|error| missing_coverage(&error))?;
                Ok(object(json!({ "coverage_data": rendered })))
            }
            Builtin::Memory => {
                let keywords = claim.parameters.get("keywords").and_then(Value::as_array);
                let keywords: Vec<String> =
                    keywords.into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect();
                let summary = memory::summarise(directory, &self.runs, &keywords)?;
                Ok(object(json!({ "memory_summary": summary })))
            }
            Builtin::Research => {
                let queue = self.runs.with_file_name("batch");
                research_task::research(&self.executor, &queue, claim, cancel)
            }
        }
    }

    fn run_command(
        &self,
        task_type: &TaskType,
        command: &[String],
        wanted: CommandOutput,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<Map<String, Value>, TaskFailure> {
        let values = template_values(task_type, claim)?;
        let mut request = request(task_type, claim);
        request.command = command.iter().map(|word| fill(word, &values)).collect::<Result<_, _>>()?;
        let mut stderr = String::new();
        let result = self.executor.execute(&request, cancel, &mut |event| append_stderr(&mut stderr, &event));
        let exit_code = match result.run.exit_code {
            // guard killed the command, or never started it.
            None => return Err(run_failure(&result)),
            Some(_) if is_ended_by_guard(&result) => return Err(run_failure(&result)),
            Some(code) => code,
        };
        match wanted {
            CommandOutput::Process => {
                let mut output = object(json!({
                    "stdout": result.run.result,
                    "stderr": stderr,
                    "exit_code": exit_code,
                }));
                // The command left changes on a branch: report the branch to the caller.
                if let Some(worktree) = result.run.worktree.as_ref().filter(|worktree| worktree.kept) {
                    output.insert("branch".to_string(), json!(worktree.branch));
                }
                Ok(output)
            }
            CommandOutput::Json if exit_code != 0 => Err(run_failure(&result)),
            CommandOutput::Json => match serde_json::from_str(result.run.result.trim()) {
                Ok(Value::Object(output)) => Ok(output),
                _ => {
                    let message =
                        "the command of the task must print one JSON object, but printed something else";
                    Err(TaskFailure::permanent(TaskKind::InvalidAnswer, message))
                }
            },
        }
    }

    fn ask_agent(
        &self,
        task_type: &TaskType,
        prompt: &str,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<Map<String, Value>, TaskFailure> {
        let mut request = request(task_type, claim);
        request.prompt = fill(prompt, &template_values(task_type, claim)?)?;
        let result = self.executor.execute(&request, cancel, &mut |_| {});
        if !result.run.success {
            return Err(run_failure(&result));
        }
        let mut problems = vec!["it has no JSON object".to_string()];
        for (_, object) in json_objects(&result.run.result).into_iter().rev() {
            let found = task_type.output_problems(&object);
            if found.is_empty() {
                return Ok(object);
            }
            problems = found;
        }
        let message = format!("guard cannot use the agent's answer: {}", problems.join("; "));
        let detail = json!({ "run_id": result.run.run_id });
        Err(TaskFailure { kind: TaskKind::InvalidAnswer, message, detail, is_temporary: true })
    }
}

/// Checks that the task's directory still is the one that was submitted. An agent with write access to a parent
/// directory could have replaced it by a symbolic link, so that the task would work elsewhere.
fn check_directory(directory: &Path) -> Result<(), TaskFailure> {
    let problem = match directory.canonicalize() {
        Ok(real) if real == directory && real.is_dir() => return Ok(()),
        Ok(real) if real != directory => {
            format!("has been replaced since the submission, and now leads to {}", real.display())
        }
        Ok(_) => "is not a directory".to_string(),
        Err(error) => format!("cannot be used: {error}"),
    };
    let message = format!("the directory {} {problem}", directory.display());
    Err(TaskFailure::permanent(TaskKind::MissingInput, message))
}

fn request(task_type: &TaskType, claim: &Claim) -> ExecRequest {
    let mut request = ExecRequest::new("", &claim.options.directory);
    request.sandbox = task_type.sandbox;
    request.policy.clone_from(&claim.options.policy);
    request.agent = claim.options.agent.clone().filter(|_| matches!(task_type.work, Work::Prompt(_)));
    if let Some(timeout) = claim.options.timeout {
        request.max_duration = timeout.as_secs().max(1);
        request.timeout = request.timeout.min(request.max_duration);
    }
    // The queue schedules retries, so that they happen even if this worker dies.
    request.max_retries = 0;
    request
}

/// Returns the values for the templates of a task type: the task's parameters, and as `uncovered_lines` the uncovered
/// lines of the source file that the type's `coverage_of` parameter names. If the coverage of that file is unknown,
/// `uncovered_lines` is empty; but if any parameter has the value `uncovered`, the function fails instead.
fn template_values(task_type: &TaskType, claim: &Claim) -> Result<BTreeMap<String, String>, TaskFailure> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let mut values: BTreeMap<String, String> =
        claim.parameters.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    if let Some(file) = task_type.coverage_of.as_ref().and_then(|name| values.get(name)) {
        let wants_uncovered = claim.parameters.values().any(|value| value == "uncovered");
        let lines = coverage::read_coverage(&claim.options.directory, None)
            .map(|found| found.uncovered_ranges(file).map(|ranges| describe_ranges(&ranges)));
        let lines = match lines {
            Ok(Some(lines)) => lines,
            Ok(None) if wants_uncovered => {
                let message = format!("the coverage report does not mention {file}");
                return Err(TaskFailure::permanent(TaskKind::MissingInput, message));
            }
            Err(error) if wants_uncovered => return Err(missing_coverage(&error)),
            Ok(None) | Err(_) => String::new(),
        };
        values.insert("uncovered_lines".to_string(), lines);
    }
    Ok(values)
}

/// Formats line ranges as a text such as `3-4, 7`.
fn describe_ranges(ranges: &[RangeInclusive<u32>]) -> String {
    let text = |range: &RangeInclusive<u32>| match (range.start(), range.end()) {
        (start, end) if start == end => start.to_string(),
        (start, end) => format!("{start}-{end}"),
    };
    ranges.iter().map(text).collect::<Vec<String>>().join(", ")
}

fn fill(template: &str, values: &BTreeMap<String, String>) -> Result<String, TaskFailure> {
    let template = Template::read(template)
        .map_err(|error| TaskFailure::permanent(TaskKind::Internal, error.message))?;
    Ok(template.fill(values))
}

fn missing_coverage(error: &CoverageError) -> TaskFailure {
    TaskFailure::permanent(TaskKind::MissingInput, error.to_string())
}

fn append_stderr(stderr: &mut String, event: &AgentEvent) {
    if event.event_type != EventType::Output || event.data["stream"] != "stderr" {
        return;
    }
    stderr.push_str(&event.message);
    if stderr.len() > 2 * LARGEST_STDERR {
        let from = stderr.len() - LARGEST_STDERR;
        let from = (from..stderr.len()).find(|at| stderr.is_char_boundary(*at)).unwrap_or(0);
        stderr.drain(..from);
    }
}

/// True if guard ended the run, or if the run failed for a reason that has nothing to do with the command.
fn is_ended_by_guard(result: &ExecResult) -> bool {
    matches!(
        result.run.error_kind,
        Some(
            ErrorKind::Timeout
                | ErrorKind::IdleTimeout
                | ErrorKind::Cancelled
                | ErrorKind::BudgetExhausted
                | ErrorKind::MemoryExhausted
                | ErrorKind::RecordFull
                | ErrorKind::ReceiveRefused
                | ErrorKind::BoundaryBroken
                | ErrorKind::SandboxUnavailable
                | ErrorKind::ConfigError
                | ErrorKind::InvalidInput
                | ErrorKind::Internal
        )
    )
}

/// Converts a failed run to a failure of the task, with the run's error kind and id as details.
fn run_failure(result: &ExecResult) -> TaskFailure {
    let message = result.run.error.clone().unwrap_or_else(|| "the run failed without a message".to_string());
    let detail = json!({
        "error_kind": result.run.error_kind,
        "run_id": result.run.run_id,
        "exit_code": result.run.exit_code,
    });
    TaskFailure::of_run(result.run.error_kind, message, detail)
}
