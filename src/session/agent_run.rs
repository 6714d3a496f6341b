//! `guard run` with a known agent: recognises the agent, prepares the request for it, and converts its output to the
//! result.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::agents::adapter::{AGENTS, Adapter, OutputParser, Profile, named, of_program};
use crate::agents::exec::{OutdatedAgent, apply_conclusion, check_version, ending};
use crate::judge::policy::Config;
use crate::run::launch::{CopiedLogin, LoginError, OutputReader, RunRequest, SavedHistory};
use crate::run::outcome::RunResult;
use crate::session::Failure;

/// Returns the agent that a command line starts: the agent `wanted`, which the user named, or else the agent whose
/// program the command runs. Returns `None` if `wanted` is `none`, if there is no command, or if no agent has this
/// program. Fails if guard knows no agent with the name `wanted`.
pub(super) fn detect(
    wanted: Option<&str>,
    command: &[OsString],
    has_terminal: bool,
    config: &Config,
) -> Result<Option<Profile>, Failure> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let adapter = match wanted {
        Some("none") => None,
        Some(name) => Some(named(name).ok_or_else(|| {
            let known: Vec<&str> = AGENTS.iter().map(|(name, _)| *name).collect();
            Failure::usage(
                format!("--agent {name}: unknown agent"),
                format!(
                    "known agents: {}; `--agent none` runs the command without treating it as an agent",
                    known.join(", ")
                ),
            )
        })?),
        None => of_program(Path::new(program)),
    };
    Ok(adapter.map(|adapter: Adapter| adapter.configured(config).profile(arguments, has_terminal)))
}

/// Returns the agent login that guard copies into a run: the login of the agent that the settings name
/// (`wanted`), or else of the agent that the run starts. Returns `None` if there is no such agent or login, or if the user's
/// configuration does not allow guard to copy it. Fails if guard cannot read the login, or if the command's program is in the
/// working tree.
pub(super) fn login(
    wanted: Option<&str>,
    profile: Option<&Profile>,
    request: &RunRequest,
) -> Result<Option<CopiedLogin>, NoLogin> {
    let own = profile.filter(|profile| profile.asks_model).map(|profile| profile.adapter.clone());
    let adapter = wanted.and_then(named).map(|adapter| adapter.configured(&request.config)).or(own);
    let Some(adapter) = adapter.filter(|adapter| adapter.uses_login) else { return Ok(None) };
    let (Some(login), Some(home)) = (&adapter.login, &request.home) else { return Ok(None) };
    let problem =
        |problem: LoginProblem| NoLogin { agent: adapter.name.clone(), how: login.how.clone(), problem };
    if let Some(program) = program_in_working_tree(&request.command, &request.folder) {
        return Err(problem(LoginProblem::UntrustedProgram(program)));
    }
    let copied = CopiedLogin::read(home, Path::new(&login.file), &login.refreshed);
    copied.map(Some).map_err(|error| problem(error.into()))
}

/// Returns the path of a command's program if this path, or the file to which it links, is in the working tree of the
/// run. An earlier agent, or an author of the repository, may have put a program with the name of an agent there.
/// Outside a repository, the run's directory counts as its working tree.
fn program_in_working_tree(command: &[OsString], directory: &Path) -> Option<PathBuf> {
    let program = find_program(command)?;
    let directory = std::fs::canonicalize(directory).ok()?;
    let tree = directory.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&directory);
    let parent = program.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    let link = parent.into_iter().zip(program.file_name()).map(|(parent, name)| parent.join(name)).next();
    let places = [link, std::fs::canonicalize(&program).ok()];
    places.into_iter().flatten().any(|place| place.starts_with(tree)).then_some(program)
}

/// Why guard cannot copy an agent's login into a run.
#[derive(Debug, thiserror::Error)]
#[error("cannot copy the login of {agent}: {problem}")]
pub(crate) struct NoLogin {
    agent: String,
    how: String,
    problem: LoginProblem,
}

#[derive(Debug, thiserror::Error)]
enum LoginProblem {
    #[error("the program {} is in the working tree, so an agent may have written it", .0.display())]
    UntrustedProgram(PathBuf),
    #[error(transparent)]
    Login(#[from] LoginError),
}

impl NoLogin {
    pub(super) fn hint(&self) -> String {
        let Self { agent, how, problem } = self;
        let way = match problem {
            LoginProblem::UntrustedProgram(_) => format!("install {agent} outside the repository"),
            LoginProblem::Login(_) => how.clone(),
        };
        format!("{way}; or remove `login` from [agent.{agent}] in guard's config.toml and use an API key")
    }
}

/// Returns notes about the installed version of the agent. Fails if guard cannot use this version.
pub(super) fn check_agent_version(
    profile: &Profile,
    request: &RunRequest,
) -> Result<Vec<String>, OutdatedAgent> {
    let program: Vec<String> =
        request.command.iter().take(1).map(|word| word.to_string_lossy().into_owned()).collect();
    check_version(&profile.adapter, &program)
}

/// Returns true if the program of a command exists: as a path if its name contains a slash, otherwise on PATH.
pub(crate) fn is_installed(command: &[OsString]) -> bool {
    find_program(command).is_some()
}

/// Returns the program file that a command starts: the given path if it contains a slash, otherwise the first file of
/// that name on PATH. Returns `None` if there is no such file.
fn find_program(command: &[OsString]) -> Option<PathBuf> {
    let program = command.first().map(PathBuf::from)?;
    if program.as_os_str().as_bytes().contains(&b'/') {
        return program.exists().then_some(program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(&program)).find(|file| file.exists())
}

/// Adds to a request what the agent needs: arguments, variables, files in the private home, and the place where guard
/// stores the agent's conversations. The request must already have its final working directory. Keeps the variables
/// that the request sets. Adds no place for conversations if the request copies paths out of the private home
/// (`--home-to`).
pub(super) fn prepare(profile: &Profile, request: &mut RunRequest) {
    request.command.splice(1..1, profile.added.iter().map(OsString::from));
    let options = &mut request.options;
    let given: Vec<OsString> = options.set.iter().map(|(name, _)| name.clone()).collect();
    let own = profile.environment().filter(|(name, _)| !given.iter().any(|known| known == name));
    let own: Vec<(OsString, OsString)> = own.map(|(name, value)| (name.into(), value.into())).collect();
    options.set.extend(own);
    let directory = std::fs::canonicalize(&request.folder).unwrap_or_else(|_| request.folder.clone());
    let files = profile.home_files(&directory);
    options.home_files.extend(files.into_iter().map(|(path, text)| (PathBuf::from(path), text)));
    if options.home_state.to.is_none() && !profile.adapter.history.keep.is_empty() {
        let paths = profile.kept(&directory).into_iter().map(|(kept, at)| (kept.into(), at.into())).collect();
        let place = history_place(&profile.adapter.name, request);
        let conversations = profile.conversations(&directory);
        request.options.home_state.history = Some(SavedHistory { place, paths, conversations });
    }
}

/// Returns the directory in which guard stores an agent's conversations about a repository, or about a directory
/// outside of any repository.
fn history_place(agent: &str, request: &RunRequest) -> PathBuf {
    let directory = request.checkout.as_ref().map_or(&request.folder, |checkout| &checkout.common_dir);
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.clone());
    let digest = Sha256::digest(directory.as_os_str().as_bytes());
    let id = crate::text::hex::encode(&digest[..8]);
    let named_after = match directory.file_name() {
        Some(name) if name == ".git" => directory.parent().and_then(Path::file_name),
        name => name,
    };
    let name = named_after.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    request.runs.with_file_name("history").join(agent).join(format!("{name}-{id}"))
}

/// Parses the output of a known agent that `guard run` runs, and adds the session id, and the answer or the error, to
/// the run's result. If the command does not contact a model, only adds the agent's name.
pub(super) struct AgentOutput {
    agent: String,
    /// Whether the agent uses the terminal. Its output is then for a person, so exit code 0 counts as success, whatever
    /// the output says.
    is_interactive: bool,
    reading: Option<OutputParser>,
    printed_text: bool,
}

impl AgentOutput {
    pub(super) fn new(profile: &Profile, has_terminal: bool) -> Self {
        Self {
            agent: profile.adapter.name.clone(),
            is_interactive: has_terminal,
            reading: profile.asks_model.then(|| OutputParser::new(profile.adapter.clone(), profile.format)),
            printed_text: profile.format == crate::agents::adapter::OutputFormat::Text,
        }
    }
}

impl OutputReader for AgentOutput {
    fn read(&mut self, bytes: &[u8]) {
        if let Some(reading) = &mut self.reading {
            reading.feed(bytes, |_| {});
        }
    }

    fn conclude(&mut self, result: &mut RunResult, stderr: &str) {
        result.tool.clone_from(&self.agent);
        let Some(mut reading) = self.reading.take() else { return };
        reading.finish(|_| {});
        let conclusion = reading.conclude(ending(result), None, stderr);
        if let Some(session) = &conclusion.session {
            result.session_id.clone_from(session);
        }
        if self.is_interactive && result.exit_code == Some(0) {
            return;
        }
        let printed = std::mem::take(&mut result.result);
        apply_conclusion(result, &conclusion, stderr);
        if self.printed_text {
            result.result = printed;
        }
    }
}
