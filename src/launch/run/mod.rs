//! The supervisor's side of a run: creates what the plan says, starts the processes, watches over them, ends them, and
//! returns the result.
//!
//! This code stays outside the sandbox. guard must have one thread until init is ready, so that a fork is a clean copy;
//! there may be a second fork if the first init could not get namespaces. Afterwards notifications, the transcript,
//! shims and every output stream have a thread each. The main thread only waits: for the end, a signal or a limit.
pub(crate) mod cache_links;
pub(crate) mod caller_output;
pub(crate) mod directories;
pub(crate) mod event_loop;
pub(crate) mod finish;
pub(crate) mod git_session;
pub(crate) mod home_state;
pub(crate) mod idle;
pub(crate) mod login;
pub(crate) mod nested_repositories;
pub(crate) mod output_pump;
pub(crate) mod signals;
pub(crate) mod start;
pub(crate) mod terminal;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::{Instant, SystemTime};

use super::network;
use super::plan::api_keys::{Keys, Secrets};
use super::plan::{LaunchError, LaunchPlan, RunRequest, plan};
use super::process::cgroup::Group;
use super::process::init_handle::InitProcess;
use super::process::protocol::StartError;
use cache_links::Links;
use git_session::GitSession;
use login::CopiedLogin;
use nested_repositories::{MOUNTS_FIX, RepositoryWatch};
use signals::hold_signals;

use crate::outcome::RunResult;
use crate::policy::{Namespaces, Policy};
use crate::sandbox::{self, Need};
use crate::supervisor;
use crate::sys::process::{self, Ended};
use crate::transcript::{self, Observer, Sink, Stream};

/// Interprets the program's standard output and adds what it found to the run's result.
pub trait OutputReader: Send {
    /// Receives the next bytes of output, which may be cut anywhere.
    fn read(&mut self, bytes: &[u8]);
    /// Called at the end of the output, before the result is recorded. `stderr` is the end of standard error.
    fn conclude(&mut self, result: &mut RunResult, stderr: &str);
}

/// What the run's standard streams are connected to.
pub struct Streams {
    /// Standard input.
    pub input: OwnedFd,
    /// Where standard output goes; with `None` only to the transcript and the result.
    pub output: Option<OwnedFd>,
    /// Where standard error goes; with `None` only to the transcript and the result.
    pub error: Option<OwnedFd>,
    /// Which of [input, output, error] are the user's terminal.
    pub is_terminal: [bool; 3],
    /// The user's terminal for questions, if there is one.
    pub questions: Option<OwnedFd>,
    /// Interprets the output, if guard knows the program.
    pub reader: Option<Box<dyn OutputReader>>,
}

/// Why a run could not take place, or had to be aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The kernel lacks something the policy needs.
    #[error("the policy {policy} cannot be enforced here: {}", needs.iter().map(|need| need.missing.as_str()).collect::<Vec<_>>().join("; "))]
    Unavailable {
        /// The policy's name.
        policy: String,
        /// What is missing.
        needs: Vec<Need>,
    },
    /// The canary did something forbidden inside the sandbox.
    #[error("the sandbox does not hold: inside it could still {0}")]
    Canary(String),
    /// A system call or another operation of the machine failed.
    #[error("{step}: {problem}")]
    Machine {
        /// The step that failed.
        step: &'static str,
        /// The error's text.
        problem: String,
    },
}

pub(crate) fn machine(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Machine { step, problem: error.to_string() }
}

/// A run that is over.
#[derive(Debug)]
pub struct Finished {
    /// The run's result.
    pub result: RunResult,
    /// How the agent ended; `None` if it never ran.
    pub ended: Option<Ended>,
}

/// One run, from its request to its result. Dropping it before the run took place undoes everything made for it.
///
/// guard must have one thread until [`Launch::run`] has forked.
pub struct Launch {
    /// The request. It can be changed until the run is planned.
    pub request: RunRequest,
    run_id: String,
    task: Option<GitSession>,
}

/// A plan, and the keys it needs.
pub struct Planned {
    /// The plan.
    pub plan: LaunchPlan,
    secrets: Secrets,
}

impl Launch {
    /// Blocks signals from here on, so that guard finishes or undoes what it is creating. The run receives them later.
    pub fn new(request: RunRequest, run_id: String) -> io::Result<Self> {
        hold_signals()?;
        Ok(Self { request, run_id, task: None })
    }

    /// The run's id.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Makes the run work in this worktree.
    pub fn use_worktree(&mut self, task: GitSession) {
        self.request.checkout = Some(task.checkout());
        self.task = Some(task);
    }

    /// Plans the run and fetches its keys.
    pub fn plan(&mut self, keys: Keys) -> Result<Planned, LaunchError> {
        let planned = self.try_plan(keys);
        if planned.is_err() {
            self.task = None;
        }
        planned
    }

    fn try_plan(&self, keys: Keys) -> Result<Planned, LaunchError> {
        // No other process may read the memory of guard or of the processes it forks.
        process::set_dumpable(false)
            .map_err(|error| LaunchError::Input(format!("cannot protect guard's memory: {error}")))?;
        let plan = plan(&self.request, self.run_id.clone())?;
        let tokens = plan.home_state.login.as_ref().map(CopiedLogin::tokens).unwrap_or_default();
        let secrets = plan.network.keys(keys)?.and_others(&tokens);
        Ok(Planned { plan, secrets })
    }

    /// Carries out the plan and waits for the end of the run.
    pub fn run(
        &mut self,
        planned: Planned,
        streams: Streams,
        observer: Option<Observer>,
    ) -> Result<Finished, Failure> {
        let mut task = self.task.take();
        let Planned { mut plan, secrets } = planned;
        let policy = self.request.policy.clone();
        check_kernel(&policy, plan.namespaces)?;
        process::bound_freed_memory();
        // Not earlier: the commands that print keys and settings may have started daemons that must survive guard.
        process::become_subreaper().map_err(machine("become subreaper"))?;
        let network = network::open(&mut plan, secrets).map_err(machine("open the doors to the network"))?;
        let cleaner = Cleaner(Some(directories::RunCleanup::to(&plan)));
        let repositories = RepositoryWatch::begin(&plan.folder, &plan.searched);
        let launch = tracing::info_span!("launch", run = %plan.run_id);
        let group = Group::make(&plan.run_id, &plan.limits, self.request.uid == 0);
        let mut started = launch.in_scope(|| start(&plan, &policy, &streams, &group, task.as_ref()));
        if let Ok((started, _)) = &mut started {
            started.launch = launch;
            started.repositories = repositories;
            // The transcript redacts them.
            started.credentials = task.as_ref().map(GitSession::credentials).unwrap_or_default();
        }
        let finished = started.and_then(|started| {
            event_loop::oversee(started, policy, streams, observer, &group, &mut task, network)
        });
        group.remove();
        // `conclude` has already removed the directories of a run that took place.
        if finished.is_ok() {
            cleaner.disarm();
        }
        finished
    }
}

/// Removes the run's own directories on drop, unless it was disarmed.
struct Cleaner(Option<directories::RunCleanup>);

impl Cleaner {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if let Some(belongs) = &self.0 {
            belongs.clean();
            belongs.forget_run();
        }
    }
}

fn check_kernel(policy: &Policy, namespaces: Namespaces) -> Result<(), Failure> {
    // Whether namespaces are available shows only when they are created.
    let needs = sandbox::quick_probe().missing_for(policy, namespaces);
    if needs.is_empty() { Ok(()) } else { Err(Failure::Unavailable { policy: policy.name.clone(), needs }) }
}

/// A run whose init process exists.
pub(crate) struct Started {
    pub(crate) plan: LaunchPlan,
    pub(crate) has_view: bool,
    pub(crate) first_process: i32,
    pub(crate) control: OwnedFd,
    /// The agent's process reports here until it executes the program. guard closes it if the start fails, so that the
    /// agent does not wait for an answer.
    pub(crate) setup: Option<OwnedFd>,
    /// (guard's end, the stream it carries).
    pub(crate) pipes: Vec<(OwnedFd, Stream)>,
    /// The pipe to which guard writes the agent's standard input, if the agent gets any.
    pub(crate) feeder: Option<OwnedFd>,
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) canary: std::net::TcpListener,
    pub(crate) began: Instant,
    pub(crate) began_at: SystemTime,
    pub(crate) notes: Vec<String>,
    /// The state of the git repositories in writable directories before the run.
    pub(crate) repositories: RepositoryWatch,
    /// Passwords and tokens from the user's git configuration, for redaction.
    pub(crate) credentials: Vec<Vec<u8>>,
    /// A log span that lasts until the agent's program has started.
    pub(crate) launch: tracing::Span,
}

/// The transcript and the sockets of guard's own, created while init starts.
pub(crate) struct RunFiles {
    pub(crate) transcript: Box<dyn Sink>,
    /// The listener for the shims.
    pub(crate) shims: UnixListener,
    /// Package caches that are linked on first use.
    pub(crate) links: Option<Links>,
}

impl RunFiles {
    fn make(plan: &LaunchPlan) -> io::Result<Self> {
        let shims = supervisor::bind(&plan.control)?;
        Ok(Self { transcript: transcript::create(&plan.run_folder)?, shims, links: None })
    }
}

/// How a run is started, in the order of the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Full,
    /// With namespaces, but package caches are linked instead of mounted as overlays.
    WithoutOverlays,
    WithoutNamespaces,
}

/// Starts the run's processes in the first mode that this machine supports.
fn start(
    plan: &LaunchPlan,
    policy: &Policy,
    streams: &Streams,
    group: &Group,
    task: Option<&GitSession>,
) -> Result<(Started, RunFiles), Failure> {
    let wanted = plan.namespaces;
    let failed = |error: StartError| Failure::Machine { step: "start the run", problem: error.to_string() };
    let prepared = directories::make_directories(plan).and_then(|()| directories::furnish(plan));
    prepared.map_err(StartError::at("prepare the run's directories")).map_err(failed)?;
    let mut mode = if wanted == Namespaces::Off { Mode::WithoutNamespaces } else { Mode::Full };
    let mut places = None;
    let mut notes = Vec::new();
    loop {
        if mode == Mode::WithoutNamespaces {
            check_without_namespaces(plan, policy, &notes)?;
            if let Some(task) = task {
                task.point_at_quarantine().map_err(|error| Failure::Machine {
                    step: "prepare the worktree",
                    problem: error.to_string(),
                })?;
            }
        }
        match (mode, try_start(plan.clone(), mode, streams, group, &mut places)) {
            (_, Ok((mut started, places))) => {
                started.notes.extend(notes);
                return Ok((started, places));
            }
            (Mode::WithoutNamespaces, Err(error)) | (_, Err(error @ StartError::NoAnswer)) => {
                return Err(failed(error));
            }
            (_, Err(error)) if wanted == Namespaces::Require => {
                let missing = format!("namespaces: {error}");
                let fix = "allow unprivileged user namespaces, or use `--namespaces auto`";
                return Err(unavailable(policy, missing, fix));
            }
            // A file system that does not support overlays is no reason to give up namespaces.
            (Mode::Full, Err(error @ StartError::Overlay(_))) => {
                notes.push(error.to_string());
                mode = Mode::WithoutOverlays;
            }
            (_, Err(error)) => {
                notes.push(format!("no namespaces: {error}"));
                mode = Mode::WithoutNamespaces;
            }
        }
    }
}

/// Starts the run's processes in one mode. `places` holds what an earlier attempt has created.
fn try_start(
    mut plan: LaunchPlan,
    mode: Mode,
    streams: &Streams,
    group: &Group,
    places: &mut Option<RunFiles>,
) -> Result<(Started, RunFiles), StartError> {
    let has_view = mode != Mode::WithoutNamespaces;
    if mode == Mode::WithoutOverlays {
        plan.view.layers.clear();
    }
    let plan = plan.settle(has_view);
    view_folders(&plan, has_view)?;
    let init = InitProcess::start(&plan, group, streams, has_view)?;
    let killer = init.kill_on_drop();
    // Only now: a transcript without an init process would record nothing.
    let mut made = match places.take() {
        Some(places) => places,
        None => RunFiles::make(&plan).map_err(StartError::at("begin the transcript"))?,
    };
    if !has_view && !plan.linked_caches.is_empty() {
        made.links = Some(Links::open(&plan)?);
    }
    let terminal = match init.await_ready() {
        Ok(terminal) => terminal,
        Err(error) => {
            *places = Some(made);
            return Err(error);
        }
    };
    killer.disarm();
    let InitProcess { pid, control, setup, pipes, feeder, note, canary } = init;
    let started = Started {
        plan,
        has_view,
        first_process: pid,
        control,
        setup: Some(setup),
        pipes,
        feeder,
        terminal,
        canary,
        began: Instant::now(),
        began_at: SystemTime::now(),
        notes: note.into_iter().collect(),
        repositories: RepositoryWatch::default(),
        credentials: Vec::new(),
        launch: tracing::Span::none(),
    };
    Ok((started, made))
}

/// Creates the directories that the run's mounts need.
fn view_folders(plan: &LaunchPlan, has_view: bool) -> Result<(), StartError> {
    if !has_view {
        return Ok(cache_links::link_dependencies(plan)?);
    }
    directories::view_folders(plan)?;
    if plan.view.layers.is_empty() {
        cache_links::link_dependencies(plan)?;
        cache_links::make_all(plan)?;
    }
    Ok(())
}

/// Checks whether the plan can be carried out without namespaces. `notes` say why there are none.
fn check_without_namespaces(plan: &LaunchPlan, policy: &Policy, notes: &[String]) -> Result<(), Failure> {
    if let Some(reason) = &plan.needs_view {
        let note = notes.first().map(|note| format!(" ({note})")).unwrap_or_default();
        return Err(unavailable(policy, format!("{reason}{note}"), MOUNTS_FIX));
    }
    if sandbox::landlock_version() < 6 {
        let missing = "a way to keep signals inside".to_string();
        return Err(unavailable(policy, missing, "use Linux 6.12 or newer, or allow user namespaces"));
    }
    Ok(())
}

fn unavailable(policy: &Policy, missing: String, fix: &str) -> Failure {
    Failure::Unavailable { policy: policy.name.clone(), needs: vec![Need { missing, fix: fix.to_string() }] }
}
