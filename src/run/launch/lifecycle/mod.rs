//! The part of a run that guard itself executes: it creates the files and directories in the plan, starts the
//! processes, supervises and ends them, and returns the result.
//!
//! This code runs outside the sandbox. guard must have only one thread until init is ready, because `fork` copies
//! only the calling thread, and guard forks again if the first init could not create its namespaces. Afterwards
//! seccomp notifications, the transcript, the shims and every output stream have a thread each. The main thread only
//! waits for the end of the run, a signal or a limit.
mod attach;
pub(crate) mod cache_links;
pub(crate) mod caller_output;
pub(crate) mod directories;
pub(crate) mod event_loop;
pub(crate) mod finish;
pub(crate) mod git_session;
pub(crate) mod home_state;
pub(crate) mod idle;
mod interrupt_keys;
pub(crate) mod login;
pub(crate) mod nested_repositories;
pub(crate) mod network;
pub(crate) mod output_pump;
mod running;
pub(crate) mod signals;
pub(crate) mod snapshot;
pub(crate) mod start;
pub(crate) mod terminal;
mod terminal_state;
mod user_notes;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Instant, SystemTime};

use super::plan::api_keys::{Keys, Secrets};
use super::plan::error::LaunchError;
use super::plan::launch_plan::LaunchPlan;
use super::plan::plan;
use super::plan::request::RunRequest;
use super::process::agent_input::AgentInput;
use super::process::cgroup::Group;
use super::process::init_handle::InitProcess;
use super::process::protocol::StartError;
use super::streams::Streams;
use cache_links::Links;
use git_session::GitSession;
use login::CopiedLogin;
use nested_repositories::{MOUNTS_FIX, RepositoryWatch};
use signals::block_signals;
use snapshot::RunSnapshot;

use crate::git::WorkspaceError;
use crate::judge::policy::{Namespaces, Policy};
use crate::run::outcome::{KeptFiles, RunResult};
use crate::run::supervisor;
use crate::run::transcript;
use crate::run::transcript::{Observer, Sink, Stream};
use crate::sandbox;
use crate::sandbox::Need;
use crate::sys::process;
use crate::sys::process::Ended;

/// Why guard could not start a run, or had to abort it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The machine lacks a feature that the policy or this run needs.
    #[error("this machine cannot enforce the policy {policy}; it lacks {}", needs.iter().map(|need| need.missing.as_str()).collect::<Vec<_>>().join("; "))]
    Unavailable {
        policy: String,
        /// The missing features, each with a way to get it.
        needs: Vec<Need>,
    },
    /// The canary, which tries forbidden operations inside the sandbox before the agent starts, was able to perform
    /// one of them.
    #[error(
        "the sandbox does not work on this machine: a test inside it was able to {0}; guard did not start the agent"
    )]
    Canary(String),
    /// A system call failed, or a process of the run did not behave as expected.
    #[error("cannot {step}: {problem}")]
    Step {
        /// The step that failed, as a verb with its object: `start the supervisor`.
        step: &'static str,
        problem: String,
    },
}

/// Returns a function for `map_err` that turns an I/O error into a failure of the step `step`.
pub(crate) fn step_failed(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Step { step, problem: error.to_string() }
}

/// The outcome of a run that is over, as [`Launch::run`] returns it.
#[derive(Debug)]
pub struct Finished {
    /// The run's result, as guard recorded it in the transcript.
    pub result: RunResult,
    /// How the agent process ended, even if it could not execute the program; `None` if guard does not know, because
    /// init was killed.
    pub ended: Option<Ended>,
}

/// One run, from its request to its result. Dropping this value before the run has started removes everything that
/// guard created for the run.
///
/// guard must have only one thread until [`Launch::run`] has forked init.
pub struct Launch {
    /// The request for the run. The caller can change it until it calls [`Launch::plan`].
    pub request: RunRequest,
    run_id: String,
    git_session: Option<GitSession>,
    snapshot: RunSnapshot,
}

/// A plan with the API keys that its gateways need.
pub struct Planned {
    pub plan: LaunchPlan,
    secrets: Secrets,
}

impl Launch {
    /// Prepares a run. Blocks signals, so that none interrupts guard while it creates or removes files.
    /// [`Launch::run`] handles the signals that arrive meanwhile.
    pub fn new(request: RunRequest, run_id: String) -> io::Result<Self> {
        block_signals()?;
        Ok(Self { request, run_id, git_session: None, snapshot: RunSnapshot::default() })
    }

    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Makes the agent work in the worktree of this git session.
    pub fn use_worktree(&mut self, git_session: GitSession) {
        self.request.checkout = Some(git_session.checkout());
        self.git_session = Some(git_session);
    }

    /// Plans the run and fetches the API keys that it needs. If that fails, drops the [`GitSession`], which removes
    /// the run's worktree unless it contains new work.
    pub fn plan(&mut self, keys: Keys) -> Result<Planned, LaunchError> {
        let planned = self.try_plan(keys);
        if planned.is_err() {
            self.git_session = None;
        }
        planned
    }

    fn try_plan(&self, keys: Keys) -> Result<Planned, LaunchError> {
        // Prevent other processes of this user from reading the keys in the memory of guard and of the processes that
        // it forks.
        process::set_dumpable(false).map_err(|error| {
            LaunchError::Input(format!("cannot protect guard's memory from other processes: {error}"))
        })?;
        let plan = plan(&self.request, self.run_id.clone())?;
        let tokens = plan.home_state.login.as_ref().map(CopiedLogin::tokens).unwrap_or_default();
        let secrets = plan.network.keys(keys)?.and_others(&tokens);
        Ok(Planned { plan, secrets })
    }

    /// Takes the planned snapshot of the directory in which the run works. Returns notes for the user: what the snapshot
    /// does not contain, or why guard could not take one. Fails only if a signal interrupts guard.
    pub fn take_snapshot(&mut self, planned: &Planned) -> Result<Vec<String>, WorkspaceError> {
        self.snapshot = RunSnapshot::take(&planned.plan, &self.request.runs)?;
        Ok(self.snapshot.report.iter().flat_map(|report| report.notes.iter().cloned()).collect())
    }

    /// Executes the plan and waits for the end of the run. `observer` receives every line of the transcript.
    pub fn run(
        &mut self,
        planned: Planned,
        streams: Streams,
        observer: Option<Observer>,
    ) -> Result<Finished, Failure> {
        let mut git_session = self.git_session.take();
        let Planned { mut plan, secrets } = planned;
        let policy = self.request.policy.clone();
        check_kernel(&policy, plan.namespaces)?;
        process::limit_freed_memory();
        // Do not do this earlier: a command that printed a key may have left a daemon behind, and guard must not kill
        // that daemon.
        process::become_subreaper().map_err(step_failed("become a child subreaper"))?;
        let network = network::open(&mut plan, secrets)
            .map_err(step_failed("open the listeners of the network proxy"))?;
        let cleaner = Cleaner(Some(directories::RunCleanup::for_plan(&plan)));
        let repositories = RepositoryWatch::begin(&plan.folder, &plan.searched);
        let launch = tracing::info_span!("launch", run = %plan.run_id);
        let group = Group::make(&plan.run_id, &plan.limits, self.request.uid == 0);
        let owner = (&policy, self.request.home.as_deref());
        let mut started = launch.in_scope(|| start(&plan, owner, &streams, &group, git_session.as_ref()));
        if let Ok((started, _)) = &mut started {
            started.launch = launch;
            started.repositories = repositories;
            started.snapshot = std::mem::take(&mut self.snapshot);
            started.snapshot.is_in_use = true;
            // The transcript redacts these credentials.
            started.credentials = git_session.as_ref().map(GitSession::credentials).unwrap_or_default();
        }
        let finished = started.and_then(|started| {
            event_loop::run_to_end(started, policy, streams, observer, &group, &mut git_session, network)
        });
        group.remove();
        // `Running::finish` has already removed the directories if the run took place.
        if finished.is_ok() {
            cleaner.disarm();
        }
        finished
    }
}

/// Removes the run's private directories when it is dropped, unless it was disarmed.
struct Cleaner(Option<directories::RunCleanup>);

impl Cleaner {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if let Some(cleanup) = &self.0 {
            cleanup.clean();
            cleanup.remove_empty_run_directory();
        }
    }
}

fn check_kernel(policy: &Policy, namespaces: Namespaces) -> Result<(), Failure> {
    // The probe does not test whether namespaces are available: guard finds that out when it creates them.
    let needs = sandbox::quick_probe().missing_for(policy, namespaces);
    if needs.is_empty() { Ok(()) } else { Err(Failure::Unavailable { policy: policy.name.clone(), needs }) }
}

/// A run whose init process exists.
pub(crate) struct Started {
    pub(crate) plan: LaunchPlan,
    pub(crate) has_mount_namespace: bool,
    pub(crate) init_pid: i32,
    pub(crate) control: OwnedFd,
    /// The socket on which the agent process reports to guard until it executes the program. If the start fails,
    /// guard closes the socket, so that the agent process does not wait for an answer.
    pub(crate) setup: Option<OwnedFd>,
    /// guard's ends of the agent's standard output and error: (descriptor, stream).
    pub(crate) pipes: Vec<(OwnedFd, Stream)>,
    /// guard's end of the agent's standard input; `None` if that is `/dev/null` or a terminal.
    pub(crate) feeder: Option<AgentInput>,
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) canary: std::net::TcpListener,
    pub(crate) began: Instant,
    pub(crate) began_at: SystemTime,
    pub(crate) notes: Vec<String>,
    /// The files of earlier runs in the private home directory.
    pub(crate) carried: KeptFiles,
    /// The state before the run of the git repositories in directories that the run may write to.
    pub(crate) repositories: RepositoryWatch,
    /// The state before the run of the directory in which it works.
    pub(crate) snapshot: RunSnapshot,
    /// Passwords and tokens in the user's git configuration, which the transcript redacts.
    pub(crate) credentials: Vec<Vec<u8>>,
    /// The tracing span of the launch, which ends when the agent's program has started.
    pub(crate) launch: tracing::Span,
}

/// Files and sockets outside the sandbox that guard creates while init starts.
pub(crate) struct RunFiles {
    pub(crate) transcript: Box<dyn Sink>,
    /// The socket on which guard listens for connections of the shims.
    pub(crate) shims: UnixListener,
    /// The user's package caches, to which guard makes links in the private home directory when a program first uses
    /// them.
    pub(crate) links: Option<Links>,
}

impl RunFiles {
    fn make(plan: &LaunchPlan) -> io::Result<Self> {
        let shims = supervisor::bind(&plan.control)?;
        Ok(Self { transcript: transcript::create(&plan.run_folder)?, shims, links: None })
    }
}

/// The modes in which guard tries to start a run, in the order of the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Full,
    /// The run has namespaces, but symbolic links to the package caches instead of overlay mounts.
    WithoutOverlays,
    WithoutNamespaces,
}

/// Creates the run's private directories, and starts its processes in the first mode that works on this machine and
/// that the plan allows.
fn start(
    plan: &LaunchPlan,
    (policy, home): (&Policy, Option<&Path>),
    streams: &Streams,
    group: &Group,
    git_session: Option<&GitSession>,
) -> Result<(Started, RunFiles), Failure> {
    let wanted = plan.namespaces;
    let failed = |error: StartError| Failure::Step { step: "start the run", problem: error.to_string() };
    let prepared = directories::make_directories(plan).and_then(|()| directories::write_files(plan));
    let carried = prepared.map_err(step_failed("create the run's private directories"))?;
    directories::record_agent_directories(plan, home)
        .map_err(step_failed("record where the run can write"))?;
    let mut mode = if wanted == Namespaces::Off { Mode::WithoutNamespaces } else { Mode::Full };
    let mut files = None;
    let mut notes = Vec::new();
    loop {
        if mode == Mode::WithoutNamespaces {
            check_without_namespaces(plan, policy, &notes)?;
            if let Some(git_session) = git_session {
                git_session.point_at_quarantine().map_err(|error| Failure::Step {
                    step: "prepare the worktree",
                    problem: error.to_string(),
                })?;
            }
        }
        match (mode, try_start(plan.clone(), mode, streams, group, &mut files)) {
            (_, Ok((mut started, files))) => {
                started.notes.extend(notes);
                started.carried = carried;
                return Ok((started, files));
            }
            (Mode::WithoutNamespaces, Err(error)) | (_, Err(error @ StartError::NoAnswer)) => {
                return Err(failed(error));
            }
            (_, Err(error)) if wanted == Namespaces::Require => {
                let missing = format!("namespaces ({error})");
                let fix = "allow unprivileged user namespaces, or use `--namespaces auto`";
                return Err(unavailable(policy, missing, fix));
            }
            // If the file system of a cache cannot be part of an overlay, the run can still have namespaces.
            (Mode::Full, Err(error @ StartError::Overlay(_))) => {
                notes.push(format!("the run has no overlays over package caches: {error}"));
                mode = Mode::WithoutOverlays;
            }
            (_, Err(error)) => {
                notes.push(format!("the run has no namespaces: {error}"));
                mode = Mode::WithoutNamespaces;
            }
        }
    }
}

/// Starts the run's processes in one mode. `files` hands the files that a failed attempt has created to the next
/// attempt.
fn try_start(
    mut plan: LaunchPlan,
    mode: Mode,
    streams: &Streams,
    group: &Group,
    files: &mut Option<RunFiles>,
) -> Result<(Started, RunFiles), StartError> {
    let has_mount_namespace = mode != Mode::WithoutNamespaces;
    if mode == Mode::WithoutOverlays {
        plan.view.layers.clear();
    }
    let plan = plan.adapt_to_namespaces(has_mount_namespace);
    prepare_mounts_or_links(&plan, has_mount_namespace)?;
    let init = InitProcess::start(&plan, group, streams, has_mount_namespace)?;
    let killer = init.kill_on_drop();
    // Create the transcript after the fork, so that a run that cannot even fork leaves no empty transcript behind.
    let mut made = match files.take() {
        Some(files) => files,
        None => RunFiles::make(&plan).map_err(StartError::at("create the transcript"))?,
    };
    if !has_mount_namespace && !plan.linked_caches.is_empty() {
        made.links = Some(Links::open(&plan)?);
    }
    let terminal = match init.await_ready() {
        Ok(terminal) => terminal,
        Err(error) => {
            *files = Some(made);
            return Err(error);
        }
    };
    killer.disarm();
    let InitProcess { pid, control, setup, pipes, feeder, note, canary } = init;
    let started = Started {
        plan,
        has_mount_namespace,
        init_pid: pid,
        control,
        setup: Some(setup),
        pipes,
        feeder,
        terminal,
        canary,
        began: Instant::now(),
        began_at: SystemTime::now(),
        carried: KeptFiles::default(),
        notes: note.into_iter().collect(),
        repositories: RepositoryWatch::default(),
        snapshot: RunSnapshot::default(),
        credentials: Vec::new(),
        launch: tracing::Span::none(),
    };
    Ok((started, made))
}

/// Creates the directories that the run's mounts need, or the symbolic links that replace overlays. A run without a
/// mount namespace gets only the links to dependencies here; the links to package caches follow when a program first
/// uses a cache.
fn prepare_mounts_or_links(plan: &LaunchPlan, has_mount_namespace: bool) -> Result<(), StartError> {
    if !has_mount_namespace {
        return Ok(cache_links::link_dependencies(plan)?);
    }
    directories::make_mount_directories(plan)?;
    if plan.view.layers.is_empty() {
        cache_links::link_dependencies(plan)?;
        cache_links::link_all(plan)?;
    }
    Ok(())
}

/// Fails if the run is not safe without namespaces. `notes` say why the run has no namespaces.
fn check_without_namespaces(plan: &LaunchPlan, policy: &Policy, notes: &[String]) -> Result<(), Failure> {
    if let Some(reason) = &plan.needs_view {
        let note = notes.first().map(|note| format!(" ({note})")).unwrap_or_default();
        return Err(unavailable(policy, format!("namespaces for this run: {reason}{note}"), MOUNTS_FIX));
    }
    if let Some(missing) = sandbox::unheld_boundaries(sandbox::landlock_version(), false) {
        let note = notes.last().map(|note| format!("; {note}")).unwrap_or_default();
        return Err(unavailable(policy, format!("{missing}{note}"), sandbox::NAMESPACES_FIX));
    }
    Ok(())
}

fn unavailable(policy: &Policy, missing: String, fix: &str) -> Failure {
    Failure::Unavailable { policy: policy.name.clone(), needs: vec![Need { missing, fix: fix.to_string() }] }
}
