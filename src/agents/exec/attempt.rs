//! Runs one attempt: starts guard itself as a child process and reads its events line by line.
//!
//! Input is a prepared request; output is an [`AttemptOutcome`]. The module `retry`, not this one, decides whether to
//! try again.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::attempt_outcome::AttemptOutcome;
use super::event_reader::{EventReader, append_bounded};
use super::result::{ending, ignored_events};
use super::session::Session;
use super::{Cancel, ExecRequest, Executor, Prepared, Sandbox};
use crate::agents::adapter::{AgentEvent, Invocation, OutputParser};
use crate::run::outcome::{ErrorKind, RunResult};
use crate::run::transcript::EventType;
use crate::sys::pre_exec::{inherit, terminate_with_parent};

/// Adds the options that select where the agent works: in the given directory, or in a worktree. All turns of a
/// session use the same worktree.
fn add_workdir_options(command: &mut Command, request: &ExecRequest, session: Option<&Session>) {
    command.arg("--dir").arg(&request.cd);
    let is_in_repository = request.cd.ancestors().any(|directory| directory.join(".git").exists());
    if request.here {
        command.arg("--here");
    } else if request.in_place || request.sandbox == Sandbox::ReadOnly || !is_in_repository {
        command.arg("--in-place");
    } else if let Some(session) = session {
        // Identify the worktree by its branch in the user's own repository. The agent can write the files of the
        // worktree, so what they say about the repository cannot be trusted.
        let work = session.worktree();
        if let Some(work) = work {
            command.args(["--branch", &work.branch]).arg("--worktree").arg(&work.folder);
        } else {
            // If guard was killed during the session's first run, the worktree may exist without being recorded in the
            // session.
            command.arg("--continue");
        }
        if !work.is_some_and(|work| work.is_kept) {
            command.args(["--name", &session.task()]);
        }
    }
}

/// Adds the options for the agent's home directory: which files guard creates or restores there, and which it saves
/// for the next turn of the session.
fn add_home_options(command: &mut Command, prepared: &Prepared, invocation: &Invocation) {
    let session = prepared.session.as_ref();
    // The agent's saved files come first, so that guard's files replace them.
    let saved = session.filter(|_| prepared.resumes).map(Session::home).filter(|home| home.exists());
    if let Some(home) = saved {
        command.arg("--home-from").arg(home);
    }
    for (path, text) in &invocation.home_files {
        command.arg("--home-file").arg(format!("{path}={text}"));
    }
    if let Some(session) = session.filter(|_| !invocation.keep.is_empty()) {
        command.arg("--home-to").arg(session.home());
        for path in &invocation.keep {
            command.arg("--home-keep").arg(path);
        }
    }
}

/// Starts `guard run` for an attempt as a child process, and writes the prompt to its standard input if the prompt is
/// passed there.
fn start(executor: &Executor, request: &ExecRequest, prepared: &Prepared) -> Result<Child, String> {
    let mut command = Command::new(&executor.guard);
    // This process passes the adapter's settings and parses the output, so the child must not use an adapter
    // itself.
    command.args(["run", "--agent", "none", "--stream-json"]);
    if let Some(policy) = request.policy() {
        command.args(["--policy", policy]);
    }
    if prepared.adapter.is_some() {
        command.arg("--require-keys");
        // What the agent prints decides about the result, so no other program of the run may print in its name.
        command.arg("--seal-stdio");
    }
    command.args(["--timeout", &request.timeout.to_string()]);
    command.args(["--max-duration", &request.max_duration.to_string()]);
    for (option, bound) in [("--max-tokens", request.max_tokens), ("--max-requests", request.max_requests)] {
        if let Some(bound) = bound {
            command.args([option, &bound.to_string()]);
        }
    }
    for (option, paths) in [("--read", &request.read), ("--write", &request.write)] {
        for path in paths {
            command.arg(option).arg(path);
        }
    }
    add_workdir_options(&mut command, request, prepared.session.as_ref());
    let mut input = None;
    let mut argv = prepared.program.clone();
    let mut environment: Vec<(String, String)> = Vec::new();
    if let Some(adapter) = &prepared.adapter {
        let invocation = adapter.invocation(&prepared.spec);
        for preset in &invocation.presets {
            command.args(["--preset", preset]);
        }
        for host in &invocation.hosts {
            command.args(["--allow-host", host]);
        }
        if adapter.uses_login {
            command.args(["--agent-login", &adapter.name]);
        }
        add_home_options(&mut command, prepared, &invocation);
        argv.extend(invocation.arguments);
        environment.extend(invocation.environment);
        input = invocation.input;
    } else if !request.prompt.is_empty() {
        input = Some(request.prompt.clone());
    }
    // Variables of the request come last, so that they override the others.
    environment.extend(request.environment.clone());
    for (name, value) in environment {
        command.arg("--env").arg(format!("{name}={value}"));
    }
    command.arg("--").args(argv);
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
