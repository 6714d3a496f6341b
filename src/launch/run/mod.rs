//! The supervisor's side of a run: makes what the plan says, starts it, watches over it, ends it, tells what it was.
//!
//! Stays outside the sandbox. This process has one thread until init is ready, so that a fork is a clean copy, also a second one
//! where the first could not have namespaces. Afterwards there is one thread each for notifications, the transcript, shims and
//! every output stream, and this one, which only waits: for the end, for signals, for a limit.
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

/// Understands what the program prints on standard output, and puts its own terms into the run's result.
pub trait OutputReader: Send {
    /// Gets the next bytes, cut anywhere.
    fn read(&mut self, bytes: &[u8]);
    /// Everything was printed; `stderr` is the end of what came on standard error. The result is not recorded yet.
    fn conclude(&mut self, result: &mut RunResult, stderr: &str);
}

/// What the run's standard streams are connected to.
pub struct Streams {
    /// Standard input.
    pub input: OwnedFd,
    /// Where standard output goes; `None` keeps it in the transcript and the result.
    pub output: Option<OwnedFd>,
    /// Where standard error goes.
    pub error: Option<OwnedFd>,
    /// The user's terminal, where these streams are it: [input, output, error].
    pub is_terminal: [bool; 3],
    /// The user's terminal for questions, if there is one.
    pub questions: Option<OwnedFd>,
    /// Reads along, where the program is known.
    pub reader: Option<Box<dyn OutputReader>>,
}

/// Why a run could not take place, or had to be broken off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The kernel does not give what the policy needs.
    #[error("the policy {policy} cannot be enforced here: {}", needs.iter().map(|need| need.missing.as_str()).collect::<Vec<_>>().join("; "))]
    Unavailable {
        /// The policy.
        policy: String,
        /// What is missing.
        needs: Vec<Need>,
    },
    /// A forbidden thing was possible inside the sandbox.
    #[error("the sandbox does not hold: inside it could still {0}")]
    Canary(String),
    /// Something of the machine failed.
    #[error("{step}: {problem}")]
    Machine {
        /// What was being done.
        step: &'static str,
        /// What went wrong.
        problem: String,
    },
}

pub(crate) fn machine(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Machine { step, problem: error.to_string() }
}

/// A run that is over.
#[derive(Debug)]
pub struct Finished {
    /// What it did.
    pub result: RunResult,
    /// How the agent ended; `None` when it never ran.
    pub ended: Option<Ended>,
}

/// One run, from its request to its result. Whatever was made for it is undone when it is dropped before it took place.
///
/// This process must have one thread until [`Launch::run`] has forked.
pub struct Launch {
    /// What is asked for. It can be changed until there is a plan.
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
    /// Signals wait from here on: what is being made for the run is finished or undone, and the run is the one to hear of them.
    pub fn new(request: RunRequest, run_id: String) -> io::Result<Self> {
        hold_signals()?;
        Ok(Self { request, run_id, task: None })
    }

    /// The run's id.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The run works in this worktree.
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
        // Nobody may read this process's memory, nor that of the processes it forks.
        process::set_dumpable(false)
            .map_err(|error| LaunchError::Input(format!("cannot protect guard's memory: {error}")))?;
        let plan = plan(&self.request, self.run_id.clone())?;
        let tokens = plan.home_state.login.as_ref().map(CopiedLogin::tokens).unwrap_or_default();
        let secrets = plan.network.keys(keys)?.and_others(&tokens);
        Ok(Planned { plan, secrets })
    }

    /// Runs what was planned to its end.
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
        // Not before: what was asked for keys and settings may have started something that is to live on.
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
            // For the transcript.
            started.credentials = task.as_ref().map(GitSession::credentials).unwrap_or_default();
        }
        let finished = started.and_then(|started| {
            event_loop::oversee(started, policy, streams, observer, &group, &mut task, network)
        });
        group.remove();
        // `conclude` has removed the directories of a run that took place.
        if finished.is_ok() {
            cleaner.disarm();
        }
        finished
    }
}

/// Removes the run's own directories when it is dropped, unless it was disarmed.
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
    // Whether namespaces can be had shows when they are made.
    let needs = sandbox::quick_probe().missing_for(policy, namespaces);
    if needs.is_empty() { Ok(()) } else { Err(Failure::Unavailable { policy: policy.name.clone(), needs }) }
}

/// A run whose init process exists.
pub(crate) struct Started {
    pub(crate) plan: LaunchPlan,
    pub(crate) has_view: bool,
    pub(crate) first_process: i32,
    pub(crate) control: OwnedFd,
    /// Where the agent speaks before it is one. Closed, it waits for nobody here.
    pub(crate) setup: Option<OwnedFd>,
    /// (our end, the stream it carries).
    pub(crate) pipes: Vec<(OwnedFd, Stream)>,
    /// Where guard writes the agent's standard input to, if it gets any.
    pub(crate) feeder: Option<OwnedFd>,
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) canary: std::net::TcpListener,
    pub(crate) began: Instant,
    pub(crate) began_at: SystemTime,
    pub(crate) notes: Vec<String>,
    /// The git repositories where it may write, as they were.
    pub(crate) repositories: RepositoryWatch,
    /// Passwords and tokens of the user's git settings.
    pub(crate) credentials: Vec<Vec<u8>>,
    /// For the log: lasts until the agent's program has begun.
    pub(crate) launch: tracing::Span,
}

/// What guard itself writes and listens at, made beside init.
pub(crate) struct RunFiles {
    pub(crate) transcript: Box<dyn Sink>,
    /// Where the shims ask.
    pub(crate) shims: UnixListener,
    /// Caches that are made when they are needed.
    pub(crate) links: Option<Links>,
}

impl RunFiles {
    fn make(plan: &LaunchPlan) -> io::Result<Self> {
        let shims = supervisor::bind(&plan.control)?;
        Ok(Self { transcript: transcript::create(&plan.run_folder)?, shims, links: None })
    }
}

/// How a run is started; tried in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Full,
    /// In namespaces, but package caches are linked instead of layered.
    WithoutOverlays,
    WithoutNamespaces,
}

/// Starts the run's processes in the first mode that this machine can do.
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
            // A file system that cannot be layered is no reason to do without the rest.
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

/// Starts the run's processes in one mode. `places` is what an earlier try has made.
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
    // The transcript of a run that has no init would be the record of nothing.
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

/// The directories that a view of the run's own needs.
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

/// Whether the plan can be carried out without namespaces; `notes` say why there are none.
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
