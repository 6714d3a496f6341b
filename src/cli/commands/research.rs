//! `guard research`: runs deep research, shows its progress, and prints the answer.

use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::agents::adapter;
use crate::agents::control::{CommandReader, CommandWatch};
use crate::agents::exec::Executor;
use crate::cli::args::research::{Research, llm_config};
use crate::cli::commands::executor::{AFTER_INTERRUPT, executor, print_event};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::research_display::{Lines, LiveDisplay, StreamDisplay};
use crate::cli::{Failure, note};
use crate::judge::policy::PolicyDirs;
use crate::run::launch;
use crate::run::outcome::ErrorKind;
use crate::run::transcript::runs_dir;
use crate::session::checkout::split;
use crate::session::user_config;
use crate::sys::directory::Directory;
use crate::sys::fs::{Durability, replace_file};
use crate::text::terminal_text;
use crate::work::research::{
    Agent, AgentContext, AgentError, DeepResearchAgent, EventRegistry, ExecutorBackend, Journal,
    JournalError, LlmClient, Report, ResearchFailed, RunControl, Started, UnknownEvents, ValidationMode,
    next_update,
};

/// The name of the directory in the state directory that contains the journals of all research runs.
pub(in crate::cli) const RESEARCH: &str = "research";
/// How long guard waits at the end for the agents' runs that have not ended yet.
const PATIENCE: Duration = Duration::from_secs(20);
/// The maximum length of a query in the list of research runs, in characters.
const LONGEST_QUERY: usize = 60;

pub(in crate::cli) fn run(args: &Research, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.list {
        return list(args.json, out);
    }
    let control = RunControl::default();
    // Handle signals before any thread starts, because threads inherit which signals are blocked.
    let is_interrupted = cancel_on_signals(&control)?;
    if let Some(path) = &args.output {
        check_output(path)?;
    }
    let journal = Arc::new(open_journal(args)?);
    let Some(started) = journal.progress().started.clone() else {
        let message = format!("the journal of the research run {} contains no query", journal.id());
        return Err(Failure::usage(message, "start a new run, without --resume"));
    };
    let policy = policy_of(&started, &journal).inspect_err(|_| {
        if args.resume.is_none() {
            // The research has not begun, so its journal is of no use.
            let _ = std::fs::remove_dir_all(journal.directory());
        }
    })?;
    if !args.json {
        note(&format!("guard: the id of this research run is {}", journal.id()));
    }
    let directory = WorkDirectory::new(started.directory.clone(), journal.id())?;
    // Nothing uses the sessions of sub-queries later, so guard stores them apart from those of `guard exec` and removes
    // them at the end.
    let sessions = journal.directory().join("sessions");
    let executor = Executor { sessions: sessions.clone(), ..executor()? };
    let backend =
        ExecutorBackend::new(executor, &directory.path).with_agent(started.agent.clone()).with_policy(policy);
    let client = LlmClient::new(
        Arc::new(backend.clone()),
        llm_config(&started.model, args.limits().or(started.limits)),
    );
    let client = Arc::new(client);
    let _commands = receive_commands(&journal, &control, &client)?;
    let agent =
        DeepResearchAgent::new(started.config.clone()).with_journal(journal.clone()).with_control(control);
    let mut report = Report::new(journal.id(), &started.query);
    let mut display = display(args);
    let followed = follow(&agent, client, args.stream_json, &mut report, &mut display, out);
    display.end();
    if is_interrupted.load(Ordering::SeqCst) && io::stderr().is_terminal() {
        note(&format!("guard: {AFTER_INTERRUPT}"));
    }
    // `follow` has dropped the stream of updates, which cancels the runs of the agents. Wait for these runs, so that
    // none outlives this process.
    if !backend.wait_for_runs(PATIENCE) {
        note("guard: a run of this research has not ended yet; `guard ps` lists it");
    }
    let _ = std::fs::remove_dir_all(&sessions);
    match followed? {
        Ok(()) => finish(args, &report, out),
        Err(error) => fail(args, &report, &error, out),
    }
}

/// The directory that the agents can read: the user's, or an empty one that guard removes at the end.
struct WorkDirectory {
    path: PathBuf,
    is_temporary: bool,
}

impl WorkDirectory {
    /// Uses the user's directory, or creates an empty one. `id` is the id of the research: if guard is killed, the
    /// directory stays, and resuming the research reuses and then removes it. Fails if another user owns the directory.
    fn new(of_user: Option<PathBuf>, id: &str) -> io::Result<Self> {
        if let Some(path) = of_user {
            return Ok(Self { path, is_temporary: false });
        }
        let path = std::env::temp_dir().join(format!("guard-research-{id}"));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = std::fs::symlink_metadata(&path)?;
                let is_own = found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw();
                is_own.then_some(()).ok_or(error)?;
            }
            created => created?,
        }
        Ok(Self { path, is_temporary: true })
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Cancels the research at the first signal, and exits with code 130 at the second. Returns a flag that is true after the
/// first signal.
fn cancel_on_signals(control: &RunControl) -> io::Result<Arc<AtomicBool>> {
    let control = control.clone();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let is_second = is_interrupted.clone();
    launch::on_signals(move || {
        if is_second.swap(true, Ordering::SeqCst) {
            // The agents' runs end with this process.
            std::process::exit(130);
        }
        control.cancel();
    })?;
    Ok(is_interrupted)
}

/// Receives the commands that `guard control` sends to this research, until the returned value is dropped.
fn receive_commands(
    journal: &Journal,
    control: &RunControl,
    client: &Arc<LlmClient>,
) -> Result<CommandWatch, Failure> {
    let reader = CommandReader::open(journal.directory().join("control"))?;
    let (control, client) = (control.clone(), client.clone());
    Ok(CommandWatch::start(reader, move |command| control.act_on(command, client.budget()))?)
}

fn display(args: &Research) -> StreamDisplay {
    if args.json || args.stream_json {
        return StreamDisplay::Silent;
    }
    // Log lines on the same terminal would damage the progress bars.
    if io::stderr().is_terminal() && !crate::cli::output::logging::is_verbose() {
        return StreamDisplay::Live(LiveDisplay::start());
    }
    StreamDisplay::Plain(Lines::default())
}

/// Reads the updates until the research ends: adds them to the report, shows them, and prints them if `prints_events`
/// is true. The outer error is about the output, the inner one about the research.
fn follow(
    agent: &DeepResearchAgent,
    client: Arc<LlmClient>,
    prints_events: bool,
    report: &mut Report,
    display: &mut StreamDisplay,
    out: &mut dyn Write,
) -> Result<Result<(), AgentError>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut registry = match EventRegistry::of_research(ValidationMode::WarnOnly, UnknownEvents::Drop) {
        Ok(registry) => registry,
        Err(error) => return Ok(Err(error.into())),
    };
    runtime.block_on(async {
        let query = report.query.clone();
        let mut stream = agent.execute(&query, AgentContext::new(client));
        while let Some(item) = next_update(&mut stream).await {
            let update = match item {
                Ok(update) => update,
                Err(error) => return Ok(Err(error)),
            };
            if let Err(error) = registry.validate(&update) {
                return Ok(Err(error.into()));
            }
            report.observe(&update);
            display.show(&update);
            if prints_events {
                print_event(&update, out)?;
            }
        }
        if registry.ignored() > 0 {
            tracing::debug!(count = registry.ignored(), "ignored events of unknown types");
        }
        Ok(if report.is_complete() { Ok(()) } else { Err(AgentError::NoFinalResult) })
    })
}

fn list(as_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let runs = Journal::list(&research_directory()?);
    if as_json {
        crate::cli::output::json::to_writer(&mut *out, &serde_json::json!(runs)).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    for run in &runs {
        let query: String = terminal_text::one_line(&run.query).chars().take(LONGEST_QUERY).collect();
        writeln!(out, "{}  {:<11}  {:>9} tokens  {query}", run.id, run.state.as_str(), run.tokens)?;
    }
    if runs.is_empty() {
        note("guard: there are no research runs yet; start one: guard research 'QUESTION'");
    }
    Ok(Exit::Success)
}

fn research_directory() -> Result<PathBuf, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(runs.with_file_name(RESEARCH))
}

/// Creates a journal, or opens the journal of the research to resume.
fn open_journal(args: &Research) -> Result<Journal, Failure> {
    let directory = research_directory()?;
    let opened = match &args.resume {
        Some(id) => Journal::open(&directory, id),
        None => Journal::create(&directory, started(args)?),
    };
    opened.map_err(|error| {
        let hint = match &error {
            JournalError::Unknown { .. } => {
                "`guard research --list` lists the ids; the last six or more characters are enough if only one id ends with them"
            }
            JournalError::Ambiguous { .. } => "give more characters of the id; `guard research --list` lists the ids",
            JournalError::Busy { .. } => "wait until that process has ended, or stop it",
            _ => "start the research again",
        };
        Failure::usage(error.to_string(), hint)
    })
}

/// Returns the settings with which new research starts, from the options and the user's configuration. Fails if the
/// query is empty, or if the directory, the agent or the policy does not exist.
fn started(args: &Research) -> Result<Started, Failure> {
    let query = args.query.clone().unwrap_or_default();
    if query.trim().is_empty() {
        return Err(Failure::usage("the query is empty", "run guard research 'QUESTION'"));
    }
    let directory = args.cd.as_ref().map(std::path::absolute).transpose()?;
    if let Some(directory) = directory.as_ref().filter(|directory| !directory.is_dir()) {
        let message = format!("{} is not a directory", directory.display());
        return Err(Failure::usage(message, "give an existing directory with --cd DIR"));
    }
    if let Some(name) = args.agent.as_ref().filter(|name| adapter::named(name).is_none()) {
        let names: Vec<&str> = adapter::AGENTS.iter().map(|(name, _)| *name).collect();
        let hint = format!("give one of these with --agent NAME: {}", names.join(", "));
        return Err(Failure::usage(format!("unknown agent {name:?}"), hint));
    }
    if let Some(name) = &args.policy {
        crate::judge::policy::load(name, &PolicyDirs::from_environment())?;
    }
    Ok(Started {
        query,
        config: args.research_config(),
        model: args.model(user_config()?.research.model.as_deref()),
        agent: args.agent.clone(),
        directory,
        policy: args.policy.clone(),
        allow_hosts: args.allow_host.clone(),
        limits: args.limits(),
    })
}

/// Returns the policy of the agents' runs; `None` if the user chose none. For `--allow-host`, writes a policy to the
/// journal's directory that extends `readonly` and allows these hosts, and returns its path.
fn policy_of(started: &Started, journal: &Journal) -> Result<Option<String>, Failure> {
    if started.allow_hosts.is_empty() {
        return Ok(started.policy.clone());
    }
    let hosts: Vec<toml::Value> = started.allow_hosts.iter().cloned().map(toml::Value::String).collect();
    let text = format!(
        "version = 1\nname = \"research\"\ndescription = \"Reads files, and connects to the hosts of this research.\"\n\
         extends = \"readonly\"\n\n[network]\noverride = true\nallow = {}\n",
        toml::Value::Array(hosts)
    );
    let path = journal.directory().join("policy.toml");
    replace_file(&path, text.as_bytes(), 0o600, Durability::Unsynced)?;
    // Check the policy now: a bad host is a mistake on the command line, which should not first appear in a
    // sub-query.
    crate::judge::policy::load(&path.to_string_lossy(), &PolicyDirs::from_environment())?;
    Ok(Some(path.to_string_lossy().into_owned()))
}

fn check_output(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = match Directory::open_named(parent) {
        Ok(_) if !path.is_dir() => return Ok(()),
        Ok(_) => "the path names a directory, not a file".to_string(),
        Err(error) => error.to_string(),
    };
    let message = format!("cannot write the report {}: {problem}", path.display());
    Err(Failure::usage(message, "name a file in an existing directory"))
}

fn finish(args: &Research, report: &Report, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.json {
        crate::cli::output::json::to_writer(&mut *out, report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if !args.stream_json {
        write!(out, "{}", report.final_block())?;
    }
    out.flush()?;
    if let Some(path) = &args.output {
        let written = split(path).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
        let written = written.and_then(|(parent, name)| {
            let file = Directory::open_named(&parent)?;
            replace_file(&file.path_of(name), report.markdown().as_bytes(), 0o666, Durability::Unsynced)
        });
        written.map_err(|error| {
            Failure::usage(
                format!("cannot write the report {}: {error}", path.display()),
                format!(
                    "`guard research --resume {} -o FILE` writes the report to another file",
                    report.research_id
                ),
            )
        })?;
    }
    Ok(Exit::Success)
}

fn fail(args: &Research, report: &Report, error: &AgentError, out: &mut dyn Write) -> Result<Exit, Failure> {
    let message = terminal_text::one_line(&error.to_string());
    let hint = error.hint();
    let hint = if hint.is_empty() { String::new() } else { format!("\n  hint: {hint}") };
    note(&format!("guard: {message}{hint}\n  continue: guard research --resume {}", report.research_id));
    let failed = ResearchFailed {
        error: error.to_string(),
        error_kind: error.kind().as_str().to_string(),
        research_id: report.research_id.clone(),
    };
    if args.stream_json {
        print_event(&crate::work::research::AgentUpdate::research_failed(&failed), out)?;
    } else if args.json {
        crate::cli::output::json::to_writer(&mut *out, &failed).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(exit(error))
}

fn exit(error: &AgentError) -> Exit {
    match error.kind() {
        ErrorKind::Cancelled => Exit::Code(130),
        ErrorKind::InvalidInput => Exit::Usage,
        ErrorKind::Timeout | ErrorKind::IdleTimeout | ErrorKind::BudgetExhausted | ErrorKind::RecordFull => {
            Exit::TimedOut
        }
        ErrorKind::CommandNotFound => Exit::CommandNotFound,
        ErrorKind::Internal | ErrorKind::SandboxUnavailable | ErrorKind::ConfigError => Exit::OwnFailure,
        _ => Exit::Problem,
    }
}
