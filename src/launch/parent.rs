//! The supervisor's side of a run: makes what the plan says, starts it, watches over it, ends it, tells what it was.
//!
//! Stays outside the sandbox. Until the first process of the run exists this process has one thread, so that a fork is a
//! clean copy; afterwards there is one thread each for notifications, the transcript, shims and every output stream,
//! and this one, which only waits: for the end, for signals, for a limit.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::child::{self, Equipment};
use super::group::{Group, threads_on_machine};
use super::init::{self, Setting as InitSetting};
use super::keys::Secrets;
use super::links::{self, Links};
use super::network::{self, Network};
use super::plan::LaunchPlan;
use super::signals::hold_signals;
use super::task::Task;
use super::{prepare, watch};
use crate::intercept;
use crate::outcome::RunResult;
use crate::policy::{Namespaces, Policy};
use crate::sandbox::{self, Need};
use crate::sys::process::{self, Ended};
use crate::sys::socket;
use crate::transcript::{self, Observer, Sink, Stream};

/// What the run's standard streams are connected to.
#[derive(Debug)]
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

/// Runs a plan to its end. Must be called while this process has one thread.
pub fn run(
    mut plan: LaunchPlan,
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    mut task: Option<Task>,
    secrets: Secrets,
) -> Result<Finished, Failure> {
    process::keep_memory_small();
    let opened = network::open(&mut plan, secrets);
    let finished = opened
        .map_err(machine("open the doors to the network"))
        .and_then(|network| prepare_and_run(plan, policy, streams, observer, &mut task, network));
    // It was not concluded: there was no run.
    if let Some(task) = task {
        task.abandon();
    }
    finished
}

fn prepare_and_run(
    plan: LaunchPlan,
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    task: &mut Option<Task>,
    network: Network,
) -> Result<Finished, Failure> {
    check_kernel(&plan, &policy)?;
    hold_signals().map_err(machine("block signals"))?;
    process::set_dumpable(false).map_err(machine("protect the supervisor's memory"))?;
    process::become_subreaper().map_err(machine("become subreaper"))?;
    let cleaner = Cleaner(prepare::Belongs::to(&plan));
    let group = Group::make(&plan);
    let started = begin(plan, &policy, &streams, &group, task.as_ref());
    let finished =
        started.and_then(|started| watch::oversee(started, policy, streams, observer, &group, task, network));
    group.remove();
    // A run that was concluded has been cleaned up after.
    if finished.is_ok() {
        std::mem::forget(cleaner);
    }
    finished
}

/// Removes the run's own folders, however it ends.
struct Cleaner(prepare::Belongs);

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.0.clean();
    }
}

fn check_kernel(plan: &LaunchPlan, policy: &Policy) -> Result<(), Failure> {
    // Whether namespaces can be had shows when they are made.
    let needs = sandbox::quick_probe().missing_for(policy, plan.namespaces);
    if needs.is_empty() { Ok(()) } else { Err(Failure::Unavailable { policy: plan.policy.clone(), needs }) }
}

/// A run whose first process exists.
pub(super) struct Started {
    pub(super) plan: LaunchPlan,
    pub(super) has_view: bool,
    pub(super) first_process: i32,
    pub(super) control: OwnedFd,
    /// Where the agent speaks before it is one. Closed, it waits for nobody here.
    pub(super) setup: Option<OwnedFd>,
    /// Where the first process says how far it is.
    pub(super) ready: Option<EventFd>,
    /// (our end, the stream it carries).
    pub(super) pipes: Vec<(OwnedFd, Stream)>,
    /// Where standard input is written to, when it has a name.
    pub(super) feeder: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
    pub(super) canary: std::net::TcpListener,
    pub(super) began: Instant,
    pub(super) began_at: SystemTime,
    pub(super) notes: Vec<String>,
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

/// How far the things around the first process are, which is started anew when namespaces cannot be had.
#[derive(Default)]
struct Surroundings {
    has_folders: bool,
    places: Option<Places>,
}

impl Surroundings {
    fn folders(&mut self, plan: &LaunchPlan) -> Result<(), String> {
        if !std::mem::replace(&mut self.has_folders, true) {
            prepare::prepare(plan).map_err(|error| format!("prepare the run's folders: {error}"))?;
        }
        Ok(())
    }

    /// Everything that is not there yet. A run in the machine's own view is told when its folders are.
    fn complete(&mut self, plan: &LaunchPlan, has_view: bool, setup: &OwnedFd) -> Result<(), String> {
        self.folders(plan)?;
        if !has_view {
            // Who is not there to hear it has said why, or is seen to be gone.
            let _ = nix::unistd::write(setup, &[child::message::FOLDERS]);
        }
        if self.places.is_none() {
            let made = Places::make(plan).map_err(|error| format!("begin the transcript: {error}"))?;
            self.places = Some(made);
        }
        if let Some(places) = self.places.as_mut().filter(|_| !has_view && !plan.linked_caches.is_empty()) {
            places.links = Some(Links::open(plan).map_err(|error| error.to_string())?);
        }
        Ok(())
    }
}

/// Starts the first process, with namespaces where they are wanted and can be had.
fn begin(
    plan: LaunchPlan,
    policy: &Policy,
    streams: &Streams,
    group: &Group,
    task: Option<&Task>,
) -> Result<(Started, Places), Failure> {
    let wanted = plan.namespaces;
    let mut notes = Vec::new();
    let mut around = Surroundings::default();
    if wanted != Namespaces::Off {
        let failed = |problem| Failure::Machine { step: "start the run", problem };
        around.folders(&plan).map_err(failed)?;
        match begin_with(plan.clone(), streams, group, true, &mut around) {
            Ok(started) => return Ok(started),
            Err(problem) if wanted == Namespaces::Require => {
                let needs = vec![Need {
                    missing: format!("namespaces: {problem}"),
                    fix: "allow unprivileged user namespaces, or use `--namespaces auto`".to_string(),
                }];
                return Err(Failure::Unavailable { policy: policy.name.clone(), needs });
            }
            // A file system that cannot be layered is no reason to do without the rest.
            Err(problem) if problem.contains("layer over") => {
                notes.push(problem);
                let mut linked = plan.clone();
                linked.view.layers.clear();
                match begin_with(linked, streams, group, true, &mut around) {
                    Ok((mut started, places)) => {
                        started.notes.extend(notes);
                        return Ok((started, places));
                    }
                    Err(problem) => notes.push(format!("no namespaces: {problem}")),
                }
            }
            Err(problem) => notes.push(format!("no namespaces: {problem}")),
        }
    }
    if let Some(reason) = &plan.needs_view {
        let needs = vec![Need {
            missing: format!(
                "{reason}{}",
                notes.first().map(|note| format!(" ({note})")).unwrap_or_default()
            ),
            fix: "work in a linked worktree (`git worktree add`), or allow user namespaces".to_string(),
        }];
        return Err(Failure::Unavailable { policy: policy.name.clone(), needs });
    }
    if sandbox::landlock_version() < 6 {
        let needs = vec![Need {
            missing: "a way to keep signals inside".to_string(),
            fix: "use Linux 6.12 or newer, or allow user namespaces".to_string(),
        }];
        return Err(Failure::Unavailable { policy: policy.name.clone(), needs });
    }
    if let Some(task) = task {
        let pointed = task.point_at_quarantine();
        pointed
            .map_err(|error| Failure::Machine { step: "prepare the worktree", problem: error.to_string() })?;
    }
    let (mut started, places) = begin_with(plan, streams, group, false, &mut around)
        .map_err(|problem| Failure::Machine { step: "start the run", problem })?;
    started.notes.extend(notes);
    Ok((started, places))
}

fn begin_with(
    plan: LaunchPlan,
    streams: &Streams,
    group: &Group,
    has_view: bool,
    around: &mut Surroundings,
) -> Result<(Started, Places), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut plan = plan.settle(has_view);
    if has_view {
        prepare::view_folders(&plan).map_err(|error| text(&error))?;
    }
    if has_view && plan.view.layers.is_empty() {
        links::make_all(&plan).map_err(|error| text(&error))?;
    }
    if !has_view && !group.bounds_processes {
        // Without a namespace the limit counts everything of the user on the machine.
        plan.limits.processes = plan.limits.processes.map(|limit| limit + threads_on_machine());
    }
    let (flags, user) = if has_view { sandbox::namespace_flags() } else { (0, None) };
    plan.view.user = user;
    let filter = sandbox::filter(!has_view).map_err(|error| text(&error))?;
    let canary = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(|error| text(&error))?;
    let canary_port = canary.local_addr().map_err(|error| text(&error))?.port();
    let Connected { stdio, pipes, feeder, null_input } =
        connect_streams(streams).map_err(|error| text(&error))?;
    let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (control, their_control) = pair().map_err(|error| text(&error))?;
    let (setup, their_setup) = pair().map_err(|error| text(&error))?;
    let ready =
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(|error| text(&error))?;
    let (began, began_at) = (Instant::now(), SystemTime::now());
    let pid = process::fork(flags).map_err(|error| format!("clone: {error}"))?;
    if pid == 0 {
        // The result says which bounds are in force: without them there is no run.
        if let Err(error) = group.join() {
            let problem = format!("join the control group: {error}");
            let _ =
                nix::unistd::write(&their_control, &[&[init::message::FAILED], problem.as_bytes()].concat());
            process::exit_now(125);
        }
        drop((control, setup, pipes, feeder));
        let equipment = Equipment { filter, stdio, null_input, canary_port, has_view };
        let setting = InitSetting { view: has_view.then_some(&plan.view), terminal: streams.is_terminal };
        init::live(&plan, equipment, &setting, &their_control, &ready, &their_setup);
    }
    drop((stdio, their_control, their_setup));
    // It starts the agent, which takes longest: where both have one processor, it goes first.
    std::thread::yield_now();
    // What the first process does not wait for is made while it comes to life.
    if let Err(problem) = around.complete(&plan, has_view, &setup) {
        // It ends when nobody can talk to it any more.
        drop((control, setup));
        let _ = process::reap(true);
        return Err(problem);
    }
    wait_until_ready(&ready, &control);
    // Nothing to read is a first process that has ended, as its last message says.
    let _ = ready.read();
    let mut message = [0u8; 4096];
    let (got, descriptor) =
        socket::receive_with(control.as_fd(), &mut message).map_err(|error| text(&error))?;
    let (Some((&init::message::READY, _)), Some(places)) =
        (message[..got].split_first(), around.places.take_if(|_| message[0] == init::message::READY))
    else {
        let _ = process::reap(true);
        let said = message[..got].split_first().map(|(_, said)| String::from_utf8_lossy(said).into_owned());
        return Err(said.unwrap_or_else(|| "the first process ended at once".to_string()));
    };
    let started = Started {
        plan,
        has_view,
        first_process: pid,
        control,
        setup: Some(setup),
        ready: Some(ready),
        pipes,
        feeder,
        terminal: descriptor,
        canary,
        began,
        began_at,
        notes: Vec::new(),
    };
    Ok((started, places))
}

/// Waits for the event, or until nobody is there any more who could have something to say.
fn wait_until_ready(ready: &EventFd, control: &OwnedFd) {
    let mut fds =
        [PollFd::new(ready.as_fd(), PollFlags::POLLIN), PollFd::new(control.as_fd(), PollFlags::empty())];
    while matches!(poll(&mut fds, PollTimeout::NONE), Err(nix::errno::Errno::EINTR)) {}
}

/// What a stream of output holds before it is read.
const PIPE: i32 = 1 << 20;

/// The run's standard streams and our ends of them.
struct Connected {
    stdio: [OwnedFd; 3],
    pipes: Vec<(OwnedFd, Stream)>,
    /// Where standard input is written to, when it has a name.
    feeder: Option<OwnedFd>,
    /// Standard input is `/dev/null`: the run opens its own.
    null_input: bool,
}

fn is_null(fd: &OwnedFd) -> io::Result<bool> {
    let found = nix::sys::stat::fstat(fd)?;
    let is_device = found.st_mode & libc::S_IFMT == libc::S_IFCHR;
    Ok(is_device && found.st_rdev == nix::sys::stat::makedev(1, 3))
}

/// A pipe or a socket that no path leads to.
fn is_nameless(fd: &OwnedFd) -> io::Result<bool> {
    const PIPEFS: i64 = 0x5049_5045;
    const SOCKFS: i64 = 0x534F_434B;
    let kind = nix::sys::statfs::fstatfs(fd)?.filesystem_type().0 as i64;
    Ok(kind == PIPEFS || kind == SOCKFS)
}

fn connect_streams(streams: &Streams) -> io::Result<Connected> {
    let mut pipes = Vec::new();
    let mut feeder = None;
    let mut null_input = false;
    let mut output = |is_terminal: bool, stream: Stream| -> io::Result<OwnedFd> {
        // Replaced by the run's own terminal before the agent sees it.
        if is_terminal {
            return null();
        }
        let (ours, theirs) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // As much as a user may have: some agents end without waiting for what they print to be read.
        let _ = nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE));
        pipes.push((ours, stream));
        Ok(theirs)
    };
    let stdout = output(streams.is_terminal[1], Stream::Stdout)?;
    let stderr = output(streams.is_terminal[2], Stream::Stderr)?;
    let stdin = if streams.is_terminal[0] {
        null()?
    } else if is_null(&streams.input)? {
        null_input = true;
        null()?
    } else if is_nameless(&streams.input)? {
        streams.input.try_clone()?
    } else {
        // The descriptor of something with a name carries the right to change its metadata: the agent gets its bytes only.
        let (theirs, ours) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        feeder = Some(ours);
        theirs
    };
    Ok(Connected { stdio: [stdin, stdout, stderr], pipes, feeder, null_input })
}

fn null() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}
