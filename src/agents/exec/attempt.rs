//! Runs one attempt: starts guard itself as a child process and reads its events line by line.
//!
//! Input is a prepared request; output is an [`AttemptOutcome`]. The module `retry`, not this one, decides whether to
//! try again.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::attempt_outcome::AttemptOutcome;
use super::event_reader::{EventReader, append_bounded};
use super::result::{ending, ignored_events};
use super::session::Session;
use super::{Cancel, ExecRequest, Executor, Prepared, Sandbox};
use crate::agents::adapter::{AgentEvent, Invocation, OutputParser};
use crate::judge::policy::Budget;
use crate::run::outcome::{ErrorKind, RunResult};
use crate::run::settings;
use crate::run::settings::{HomeSettings, RunSettings, WorktreeSettings};
use crate::run::transcript::EventType;
use crate::sys::pre_exec::{inherit, terminate_with_parent};

/// Returns where the agent works: in the given directory, or in a worktree. All turns of a session use the same
/// worktree.
fn worktree_settings(request: &ExecRequest, session: Option<&Session>) -> WorktreeSettings {
    let nothing = WorktreeSettings::default();
    let is_in_repository = request.cd.ancestors().any(|directory| directory.join(".git").exists());
    if request.here {
        return WorktreeSettings { here: true, ..nothing };
    }
    if request.in_place || request.sandbox == Sandbox::ReadOnly || !is_in_repository {
        return WorktreeSettings { in_place: true, ..nothing };
    }
    let Some(session) = session else { return nothing };
    // Identify the worktree by its branch in the user's own repository. The agent can write the files of the worktree,
    // so what they say about the repository cannot be trusted.
    let known = session.worktree();
    WorktreeSettings {
        branch: known.map(|worktree| worktree.branch.clone()),
        path: known.map(|worktree| worktree.folder.clone()),
        // If guard was killed during the session's first run, the worktree may exist without being recorded in the
        // session.
        continues: known.is_none(),
        name: (!known.is_some_and(|worktree| worktree.is_kept)).then(|| session.task()),
        ..nothing
    }
}

/// Returns what the agent's home directory contains: the files that guard creates or restores there, and those that it
/// saves for the next turn of the session.
fn home_settings(prepared: &Prepared, invocation: &Invocation) -> HomeSettings {
    let session = prepared.session.as_ref();
    // The agent's saved files come first, so that guard's files replace them.
    let saved = session.filter(|_| prepared.resumes).map(Session::home).filter(|home| home.exists());
    let kept = session.filter(|_| !invocation.keep.is_empty());
    let file = |(path, text): &(String, String)| (PathBuf::from(path), text.clone());
    HomeSettings {
        from: saved.into_iter().collect(),
        to: kept.map(Session::home),
        keep: kept.iter().flat_map(|_| invocation.keep.iter().map(PathBuf::from)).collect(),
        files: invocation.home_files.iter().map(file).collect(),
        login_of: prepared
            .adapter
            .as_ref()
            .filter(|adapter| adapter.uses_login)
            .map(|agent| agent.name.clone()),
    }
}

/// Returns the settings of the attempt's run, and what the command reads from its standard input.
fn run_settings(request: &ExecRequest, prepared: &Prepared) -> (RunSettings, Option<String>) {
    let mut settings = RunSettings {
        command: prepared.program.iter().map(OsString::from).collect(),
        dir: Some(request.cd.clone()),
        policy: request.policy().map(str::to_string),
        // This process passes the adapter's settings and parses the output, so the child must not use an adapter
        // itself.
        agent: Some("none".to_string()),
        read: request.read.clone(),
        write: request.write.clone(),
        worktree: worktree_settings(request, prepared.session.as_ref()),
        idle_seconds: Some(request.timeout),
        total_seconds: Some(request.max_duration),
        budget: Budget {
            max_tokens: request.max_tokens,
            max_requests: request.max_requests,
            max_cost_micros: None,
        },
        ..RunSettings::default()
    };
    let mut environment = Vec::new();
    let input = if let Some(adapter) = &prepared.adapter {
        let invocation = adapter.invocation(&prepared.spec);
        settings.require_keys = true;
        // What the agent prints decides about the result, so no other program of the run may print in its name.
        settings.seal_stdio = true;
        settings.home = home_settings(prepared, &invocation);
        settings.presets = invocation.presets;
        settings.hosts = invocation.hosts;
        settings.command.extend(invocation.arguments.into_iter().map(OsString::from));
        environment = invocation.environment;
        invocation.input
    } else {
        Some(request.prompt.clone()).filter(|prompt| !prompt.is_empty())
    };
    // Variables of the request come last, so that they override the others.
    let variables = environment.into_iter().chain(request.environment.clone());
    settings.environment = variables.map(|(name, value)| (name.into(), Some(value.into()))).collect();
    (settings, input)
}

/// Starts `guard run` for an attempt as a child process, and writes the prompt to its standard input if the prompt is
/// passed there.
fn start(executor: &Executor, request: &ExecRequest, prepared: &Prepared) -> Result<Child, String> {
    let (settings, input) = run_settings(request, prepared);
    let sent = settings::send(&settings).map_err(|error| format!("cannot pass on the request: {error}"))?;
    let mut command = Command::new(&executor.guard);
    command.args(["run", "--request-fd", &sent.as_raw_fd().to_string()]);
    inherit(&mut command, sent);
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The child must not log to its standard error, because this process quotes that text in an error message.
    command.env_remove("GUARD_LOG").env_remove("GUARD_LOG_FILE").envs(executor.log.iter().cloned());
    // Start the child in its own process group, so that Ctrl-C at the terminal does not reach it directly: this process
    // cancels it instead. The child also ends when this process dies.
    command.process_group(0);
    terminate_with_parent(&mut command);
    if let Some(session) = &prepared.session {
        let lock = session.lock_for_child();
        inherit(&mut command, lock.map_err(|error| format!("cannot copy the session's lock: {error}"))?);
    }
    let started = command.spawn();
    let mut child = started.map_err(|error| format!("cannot start {}: {error}", executor.guard.display()))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // If the agent does not read all of its input, the write fails when the run has ended, which ends this thread.
        std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    Ok(child)
}

/// Runs one attempt and blocks until it ends.
pub(super) fn run(
    executor: &Executor,
    request: &ExecRequest,
    prepared: &mut Prepared,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(AgentEvent),
) -> AttemptOutcome {
    let began = Instant::now();
    let mut child = match start(executor, request, prepared) {
        Ok(started) => started,
        Err(problem) => {
            return AttemptOutcome::without_result(ErrorKind::Internal, problem, began.elapsed());
        }
    };
    cancel.set_process(&child);
    let errors = child.stderr.take().map(|stderr| {
        std::thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                append_bounded(&mut text, &format!("{line}\n"));
            }
            text
        })
    });
    let resumed = prepared.spec.session.as_ref().filter(|(_, resumes)| *resumes).map(|(id, _)| id.clone());
    let parser = prepared.adapter.clone().map(|adapter| OutputParser::new(adapter, prepared.spec.format));
    let session = prepared.session.as_mut();
    let mut reader = EventReader::new(request, parser, session, cancel, on_event);
    if let Some(stdout) = child.stdout.take() {
        reader.read(BufReader::with_capacity(256 << 10, stdout));
    }
    let EventReader { parser, result, messages, stderr, notes, .. } = reader;
    cancel.clear_process();
    let status = child.wait();
    let guard_stderr = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let Some(mut result) = result else {
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let (kind, problem) = if cancel.is_set() {
            (ErrorKind::Cancelled, format!("the request was cancelled before the run began ({how})"))
        } else {
            let problem = format!("`guard run` exited without a result ({how}): {}", guard_stderr.trim());
            (ErrorKind::Internal, problem)
        };
        return AttemptOutcome::without_result(kind, problem, began.elapsed());
    };
    if prepared.session.is_some() {
        translate_worktree_error(&mut result);
    }
    let ending = ending(&result);
    let conclusion = parser.map(|parser| parser.conclude(ending, resumed.as_deref(), &stderr));
    if let Some(note) = conclusion.as_ref().and_then(|end| ignored_events(&end.unknown_kinds)) {
        on_event(AgentEvent::new(EventType::ExecNote, note, serde_json::json!({})));
    }
    AttemptOutcome { result, conclusion, messages, stderr, notes }
}

/// Turns a worktree error into a session error: the caller knows the session, not its worktree.
fn translate_worktree_error(result: &mut RunResult) {
    let (kind, advice) = match result.error_kind {
        Some(ErrorKind::WorktreeLost) => {
            (ErrorKind::SessionLost, "; start a new session and repeat the context in its prompt")
        }
        Some(ErrorKind::WorktreeBusy) => (ErrorKind::SessionBusy, "; wait until the other run has ended"),
        _ => return,
    };
    result.error_kind = Some(kind);
    let texts = result.error.iter_mut().chain(result.error_detail.as_mut().map(|detail| &mut detail.message));
    texts.for_each(|text| text.push_str(advice));
}
