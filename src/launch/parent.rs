//! The supervisor's side of a run: makes what the plan says, starts it, watches over it, ends it, tells what it was.
//!
//! Stays outside the sandbox. Until the first process of the run has its orders this process has one thread, so that a fork
//! is a clean copy, also of a second one where the first cannot have namespaces; afterwards there is one thread each for notifications, the transcript, shims and every output stream,
//! and this one, which only waits: for the end, for signals, for a limit.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::{Instant, SystemTime};

use super::first::{First, Known};
use super::folder::working_folder;
use super::group::Group;
use super::keys::Secrets;
use super::links::{self, Links};
use super::network::{self, Network};
use super::plan::{LaunchPlan, RunRequest};
use super::prepare::Folders;
use super::protocol::StartError;
use super::repositories::{MOUNTS_FIX, RepositoryWatch};
use super::signals::hold_signals;
use super::task::Task;
use super::{prepare, watch};
use crate::intercept;
use crate::outcome::RunResult;
use crate::policy::{Namespaces, Policy};
use crate::sandbox::{self, Need};
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

pub(super) fn machine(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
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

/// A run that has begun before it is planned: its first process does meanwhile what no plan decides.
#[derive(Debug)]
pub struct Beginning {
    /// Whether there can be a run.
    possible: Result<(), Failure>,
    first: Option<Result<First, StartError>>,
    /// What the first process makes, until there is a plan for it.
    folders: Option<Folders>,
}

impl Drop for Beginning {
    fn drop(&mut self) {
        if let Some(Ok(first)) = self.first.take() {
            let group = first.has_made();
            first.end();
            group.iter().for_each(Group::remove);
        }
        if let Some(folders) = &self.folders {
            folders.remove();
        }
    }
}

/// Begins what a request asks for. Must be called while this process has one thread. What goes wrong is said by [`run`]:
/// a request that cannot be planned is the clearer problem.
pub fn begin(request: &RunRequest, run_id: &str, streams: &Streams) -> Beginning {
    let namespaces = request.wanted_namespaces();
    let possible = make_ready(&request.policy, namespaces);
    let mut beginning = Beginning { possible, first: None, folders: None };
    // Without a folder there is no plan either.
    if let (Ok(()), Ok(folder)) = (&beginning.possible, working_folder(request)) {
        let (own, has_view) = (request.own_places(run_id), namespaces != Namespaces::Off);
        let folders = Folders::of(&own, request.checkout.is_some(), has_view);
        let (run_id, run_folder, limits) = (run_id.to_string(), own.run_folder, request.limits());
        let known = Known { run_id, folder, run_folder, limits, is_root: request.uid == 0 };
        let first = First::start(&known, (Some(&folders), None), streams, has_view);
        beginning.folders = Some(folders).filter(|_| first.is_ok());
        beginning.first = Some(first);
    }
    beginning
}

/// What must be so before there is another process.
fn make_ready(policy: &Policy, namespaces: Namespaces) -> Result<(), Failure> {
    check_kernel(policy, namespaces)?;
    hold_signals().map_err(machine("block signals"))?;
    process::set_dumpable(false).map_err(machine("protect the supervisor's memory"))
}

/// Runs the plan of a run that has begun to its end. This process must still have one thread.
pub fn run(
    mut beginning: Beginning,
    mut plan: LaunchPlan,
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    mut task: Option<Task>,
    secrets: Secrets,
) -> Result<Finished, Failure> {
    let possible = std::mem::replace(&mut beginning.possible, Ok(()));
    let finished = possible
        // Not before: what was asked for keys and settings may have started something that is to live on.
        .and_then(|()| process::become_subreaper().map_err(machine("become subreaper")))
        .and_then(|()| network::open(&mut plan, secrets).map_err(machine("open the doors to the network")))
        .and_then(|network| {
            prepare_and_run(&mut beginning, plan, policy, streams, observer, &mut task, network)
        });
    // It was not concluded: there was no run.
    if let Some(task) = task {
        task.abandon();
    }
    finished
}

fn prepare_and_run(
    beginning: &mut Beginning,
    plan: LaunchPlan,
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    task: &mut Option<Task>,
    network: Network,
) -> Result<Finished, Failure> {
    let cleaner = Cleaner(Some(prepare::Belongs::to(&plan)));
    beginning.folders = None;
    let first = beginning.first.take();
    let known = Known {
        run_id: plan.run_id.clone(),
        folder: plan.folder.clone(),
        run_folder: plan.run_folder.clone(),
        limits: plan.limits.clone(),
        is_root: nix::unistd::geteuid().is_root(),
    };
    let mut around = Surroundings { known, streams: &streams, group: None, first, places: None };
    let repositories = RepositoryWatch::begin(&plan.folder, &plan.searched);
    let launch = tracing::info_span!("launch", run = %plan.run_id);
    let mut started = launch.in_scope(|| around.begin(plan, &policy, task.as_ref()));
    if let Ok((started, _)) = &mut started {
        started.launch = launch;
        started.repositories = repositories;
        // For the transcript.
        started.credentials = task.as_ref().map(Task::credentials).unwrap_or_default();
    }
    if let Some(Ok(unused)) = around.first.take() {
        unused.end();
    }
    let group = around.group.unwrap_or_default();
    let finished =
        started.and_then(|started| watch::oversee(started, policy, streams, observer, &group, task, network));
    group.remove();
    // `conclude` has removed the directories of a run that took place.
    if finished.is_ok() {
        cleaner.disarm();
    }
    finished
}

/// Removes the run's own directories when it is dropped, unless it was disarmed.
struct Cleaner(Option<prepare::Belongs>);

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

/// A run whose first process exists.
pub(super) struct Started {
    pub(super) plan: LaunchPlan,
    pub(super) has_view: bool,
    pub(super) first_process: i32,
    pub(super) control: OwnedFd,
    /// Where the agent speaks before it is one. Closed, it waits for nobody here.
    pub(super) setup: Option<OwnedFd>,
    /// (our end, the stream it carries).
    pub(super) pipes: Vec<(OwnedFd, Stream)>,
    /// Where guard writes the agent's standard input to, if it gets any.
    pub(super) feeder: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
    pub(super) canary: std::net::TcpListener,
    pub(super) began: Instant,
    pub(super) began_at: SystemTime,
    pub(super) notes: Vec<String>,
    /// The git repositories where it may write, as they were.
    pub(super) repositories: RepositoryWatch,
    /// Passwords and tokens of the user's git settings.
    pub(super) credentials: Vec<Vec<u8>>,
    /// For the log: lasts until the agent's program has begun.
    pub(super) launch: tracing::Span,
}

/// What guard itself writes and listens at, made beside the first process.
pub(super) struct Places {
    pub(super) transcript: Box<dyn Sink>,
    /// Where the shims ask.
    pub(super) shims: UnixListener,
    /// Caches that are made when they are needed.
    pub(super) links: Option<Links>,
}

impl Places {
    fn make(plan: &LaunchPlan) -> io::Result<Self> {
        let shims = intercept::bind(&plan.control)?;
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

/// How far the things around the first process are, which is started anew when namespaces cannot be had.
struct Surroundings<'s> {
    known: Known,
    streams: &'s Streams,
    /// The run's control group, once a first process has made it.
    group: Option<Group>,
    /// One that was started before there was a plan.
    first: Option<Result<First, StartError>>,
    places: Option<Places>,
}

impl Surroundings<'_> {
    /// Gives a first process its orders, with namespaces where they are wanted and can be had.
    fn begin(
        &mut self,
        plan: LaunchPlan,
        policy: &Policy,
        task: Option<&Task>,
    ) -> Result<(Started, Places), Failure> {
        let wanted = plan.namespaces;
        let machine =
            |error: StartError| Failure::Machine { step: "start the run", problem: error.to_string() };
        let mut mode = if wanted == Namespaces::Off { Mode::WithoutNamespaces } else { Mode::Full };
        let mut notes = Vec::new();
        self.folders(&plan).map_err(machine)?;
        loop {
            if mode == Mode::WithoutNamespaces {
                check_without_namespaces(&plan, policy, &notes)?;
                if let Some(task) = task {
                    task.point_at_quarantine().map_err(|error| Failure::Machine {
                        step: "prepare the worktree",
                        problem: error.to_string(),
                    })?;
                }
            }
            match (mode, self.begin_with(plan.clone(), mode)) {
                (_, Ok((mut started, places))) => {
                    started.notes.extend(notes);
                    return Ok((started, places));
                }
                (Mode::WithoutNamespaces, Err(error)) | (_, Err(error @ StartError::NoAnswer)) => {
                    return Err(machine(error));
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

    fn begin_with(&mut self, mut plan: LaunchPlan, mode: Mode) -> Result<(Started, Places), StartError> {
        let has_view = mode != Mode::WithoutNamespaces;
        if mode == Mode::WithoutOverlays {
            plan.view.layers.clear();
        }
        let plan = plan.settle(has_view);
        let mut first = self.first_process(has_view)?;
        let terminal = view_folders(&plan, has_view).and_then(|()| {
            first.order(&plan)?;
            // What nobody waits for yet is made while orders are carried out.
            self.places(&plan, has_view)?;
            first.await_ready()
        });
        let (terminal, places) = match (terminal, self.places.take()) {
            (Ok(terminal), Some(places)) => (terminal, places),
            (problem, places) => {
                self.places = places;
                first.end();
                return Err(problem.err().unwrap_or_else(|| StartError::Other("no transcript".to_string())));
            }
        };
        let First { pid, control, setup, pipes, feeder, note, canary, .. } = first;
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
        Ok((started, places))
    }

    /// The one that waits, if it is of the kind that is wanted; otherwise a new one.
    fn first_process(&mut self, has_view: bool) -> Result<First, StartError> {
        match self.first.take() {
            Some(Ok(first)) if first.has_view == has_view => return Ok(first),
            Some(Err(problem)) if has_view => return Err(problem),
            Some(Ok(other)) => other.end(),
            _ => {}
        }
        let first = First::start(&self.known, (None, self.group.as_ref()), self.streams, has_view)?;
        match first.has_made() {
            Ok(group) => self.group = Some(group),
            Err(problem) => {
                first.end();
                return Err(problem);
            }
        }
        Ok(first)
    }

    /// The run's folders with all that is to be in them. The first process has made them by now, if there is one.
    fn folders(&mut self, plan: &LaunchPlan) -> Result<(), StartError> {
        let problem = StartError::at::<io::Error>;
        let step = "prepare the run's folders";
        if let Some(Ok(early)) = &self.first {
            self.group = Some(early.has_made()?);
        } else {
            Folders::of(&plan.own_places(), plan.checkout.is_some(), false).make().map_err(problem(step))?;
        }
        prepare::furnish(plan).map_err(problem(step))
    }

    /// What guard itself writes and listens at, as far as it is not there yet.
    fn places(&mut self, plan: &LaunchPlan, has_view: bool) -> Result<(), StartError> {
        if self.places.is_none() {
            let made = Places::make(plan).map_err(StartError::at("begin the transcript"))?;
            self.places = Some(made);
        }
        if let Some(places) = self.places.as_mut().filter(|_| !has_view && !plan.linked_caches.is_empty()) {
            places.links = Some(Links::open(plan)?);
        }
        Ok(())
    }
}

/// The folders that a view of the run's own needs.
fn view_folders(plan: &LaunchPlan, has_view: bool) -> Result<(), StartError> {
    if !has_view {
        return Ok(links::link_dependencies(plan)?);
    }
    prepare::view_folders(plan)?;
    if plan.view.layers.is_empty() {
        links::link_dependencies(plan)?;
        links::make_all(plan)?;
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
