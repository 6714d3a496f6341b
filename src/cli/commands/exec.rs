//! `guard exec`: reads one request for an agent, from another program or a user, and prints one result. A program gets
//! a result even for an invalid request.

use std::io::{self, IsTerminal, Read, Write};

use crate::agents::adapter::{AgentEvent, RequestText};
use crate::agents::conversation::GivenOptions;
use crate::agents::exec::{Cancel, ExecRequest, ExecResult};
use crate::cli::args::Exec;
use crate::cli::args::exec::RequestOptions;
use crate::cli::commands::conversation_store::{SUMMARY_WAIT, conversations};
use crate::cli::commands::executor::{
    cancel_both_on_signals, cancel_without_reader, executor, exit, print_event,
};
use crate::cli::output::exec_progress::ExecProgress;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::terminal_summary;
use crate::cli::{Failure, note};
use crate::run::outcome::ErrorKind;
use crate::sys::agent_paths::open_named_file;
use crate::text::terminal_text;

/// The maximum size of a request, in bytes. guard rejects a larger request.
const LARGEST: u64 = 16 << 20;

pub(in crate::cli) fn run(args: &Exec, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let Some(language) = args.template {
        write!(out, "{}", RequestText::default().render(language.into()))?;
        return Ok(Exit::Success);
    }
    // If standard output is a terminal, a person reads it, and gets text. Otherwise, a program gets JSON.
    let is_text = !args.json && !args.stream_json && io::stdout().is_terminal();
    let (request, given) = match request(args) {
        Ok(request) => request,
        Err((problem, hint)) => {
            note(&format!("guard: {problem}\n  hint: {hint}"));
            if is_text {
                return Ok(Exit::Usage);
            }
            // Programs get a result even for an invalid request.
            return finish(&ExecResult::refused(ErrorKind::InvalidInput, &problem), out);
        }
    };
    let (executor, conversations) = (executor()?, conversations()?);
    let (cancel, has_signal) = (Cancel::default(), Cancel::default());
    cancel_both_on_signals(&cancel, &has_signal)?;
    cancel_without_reader(&cancel)?;
    let progress = (is_text && io::stderr().is_terminal()).then(ExecProgress::start);
    let mut broken = None;
    let on_event = &mut |event: AgentEvent| {
        if let Some(progress) = &progress {
            progress.show(&event);
        }
        if args.stream_json && broken.is_none() {
            broken = print_event(&event, out).err();
        }
        // If the reader has closed standard output, nobody needs the rest of the run.
        if broken.is_some() && !cancel.is_set() {
            cancel.set();
        }
    };
    let (result, conversation) = conversations.execute(&request, &given, &executor, &cancel, on_event);
    drop(progress);
    let exit = match broken {
        Some(error) => Err(error.into()),
        None if is_text => finish_text(&result, !request.prompt.is_empty(), out),
        None => finish(&result, out),
    };
    if let Some(mut conversation) = conversation {
        out.flush()?;
        conversation.wait_for_compaction(SUMMARY_WAIT, &has_signal);
    }
    exit
}

fn finish(result: &ExecResult, out: &mut dyn Write) -> Result<Exit, Failure> {
    crate::cli::output::json::to_writer(&mut *out, result).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(exit(result))
}

/// Prints the agent's answer as text for a person, and notes and a line about the run to standard error. If the request
/// had a prompt and succeeded, also prints how to continue the conversation.
fn finish_text(result: &ExecResult, has_prompt: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    for line in result.run.result.lines() {
        writeln!(out, "{}", terminal_text::escape(line))?;
    }
    out.flush()?;
    for remark in &result.notes {
        note(&terminal_text::one_line(&format!("guard: note: {remark}")));
    }
    note(&terminal_summary::ending(&result.run));
    if has_prompt && result.run.success && !result.run.session_id.is_empty() {
        let session = terminal_text::one_line(&result.run.session_id);
        note(&format!("  continue: guard exec --session {session} 'PROMPT'"));
    }
    Ok(exit(result))
}

/// The error for a bad request: what is wrong with it, and a hint.
type BadRequest = (String, &'static str);

const FORMAT_HINT: &str = "a request is a JSON object such as {\"prompt\": \"…\", \"cd\": \"/absolute/path\"}; see schemas/exec-request.schema.json in guard's source repository";
const USAGE_HINT: &str =
    "run guard exec 'PROMPT', or send a JSON request on standard input; see `guard exec --help`";

/// Reads the request from options, a file or standard input. Also returns those of its settings that the caller has
/// given and that replace a conversation's own settings, such as the model.
fn request(args: &Exec) -> Result<(ExecRequest, GivenOptions), BadRequest> {
    if args.options.has_request() {
        return request_from_options(&args.options);
    }
    if let Some(option) = args.options.first_unused() {
        return Err((
            format!("{option} needs a PROMPT or a COMMAND; in a JSON request, set the corresponding field"),
            USAGE_HINT,
        ));
    }
    let path = args.request.as_ref().filter(|path| path.as_os_str() != "-");
    if path.is_none() && io::stdin().is_terminal() {
        return Err(("guard exec got neither a PROMPT nor a request".to_string(), USAGE_HINT));
    }
    let name = path.map_or_else(|| "standard input".to_string(), |path| path.display().to_string());
    let mut bytes = Vec::new();
    let read = match path {
        Some(path) => open_named_file(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)),
        None => io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes),
    };
    let bad = |problem: String| (format!("the request from {name} is invalid: {problem}"), FORMAT_HINT);
    read.map_err(|error| (format!("cannot read the request from {name}: {error}"), USAGE_HINT))?;
    if bytes.len() as u64 > LARGEST {
        let problem = format!("the request from {name} is larger than {} MiB", LARGEST >> 20);
        return Err((problem, "put long text into a file, and name the file in the prompt"));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("the text is not UTF-8".to_string()))?;
    let request = ExecRequest::from_json(&text).map_err(|error| bad(error.to_string()))?;
    Ok((request, GivenOptions::of_json(&text)))
}

fn request_from_options(options: &RequestOptions) -> Result<(ExecRequest, GivenOptions), BadRequest> {
    let cd = match &options.cd {
        Some(cd) => std::path::absolute(cd),
        None => std::env::current_dir(),
    };
    let cd = cd.map_err(|error| {
        (
            format!("cannot determine the working directory: {error}"),
            "give an existing directory with --cd DIR",
        )
    })?;
    let given = GivenOptions {
        sandbox: options.sandbox.map(Into::into),
        model: options.model.clone(),
        timeout: options.timeout,
    };
    let defaults = ExecRequest::new(options.prompt.clone().unwrap_or_default(), cd);
    let request = ExecRequest {
        command: options.command.clone(),
        agent: options.agent.clone(),
        sandbox: given.sandbox.unwrap_or_default(),
        policy: options.policy.clone(),
        yolo: !options.no_yolo,
        session_id: options.session.clone(),
        model: options.model.clone(),
        timeout: options.timeout.unwrap_or(defaults.timeout),
        max_duration: options.max_duration.unwrap_or(defaults.max_duration),
        max_retries: options.max_retries.unwrap_or(defaults.max_retries),
        in_place: options.in_place,
        here: options.here,
        max_tokens: options.max_tokens,
        max_requests: options.max_requests,
        return_all_messages: options.all_messages,
        return_metrics: options.metrics,
        ..defaults
    };
    Ok((request, given))
}
