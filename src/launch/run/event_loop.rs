//! The main loop of a run, from the moment its init process exists to its end: its threads, limits and signals.
//!
//! `start.rs` does what comes before the command runs, `finish.rs` what comes after it. The loop must never wait for a
//! reader of the output or of the transcript before it has ended the run.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::Signal;
use serde_json::json;

use super::cache_links::Links;
use super::caller_output::is_output_given_up;
use super::git_session::GitSession;
use super::idle::CpuActivity;
use super::output_pump::{Pump, SharedReader, Tail};
use super::signals::{own_signals, watch_for_second_signal};
use super::terminal::{InterruptKeys, Keys, Raw, Screen, asker};
use super::{Failure, Finished, RunFiles, Started, Streams, machine};
use crate::egress;
use crate::launch::network;
use crate::launch::network::Network;
use crate::launch::process::cgroup::Group;
use crate::launch::process::descendants;
use crate::launch::process::protocol::{InitMessage, InitRequest, Used};
use crate::launch::process::stdin_feeder::StdinFeeder;
use crate::outcome::{Enforcement, Tally};
use crate::policy::{Pattern, Policy};
use crate::supervisor;
use crate::supervisor::{Ask, Counts, ShimService};
use crate::sys::process::{self, Ended};
use crate::sys::signals::SignalWaiter;
use crate::sys::terminal;
use crate::transcript::{self, EventType, Line, Observer, Recorder, Sink, Stream, Writer};

/// The time between a signal that asks the agent to end and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long init may take to kill everything before guard kills init.
const LONGEST_END: Duration = Duration::from_secs(10);
/// How often the main thread checks limits and the transcript.
const TICK: Duration = Duration::from_millis(250);
/// How often `close` checks whether to give the output up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a pump may take to notice that output was given up.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// The bounds on the transcript's room for everything but output. Within them it gets as much as output does.
const ROOM_BESIDE_OUTPUT: std::ops::RangeInclusive<u64> = (8 << 20)..=(64 << 20);
/// Bytes beyond the transcript's limit for events that are still in memory when it is reached. Recorder and writer hold
/// less.
const RESERVE: u64 = 64 << 20;

/// What ended a run early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Idle,
    Total,
    Signal(Signal),
    Transcript,
    /// The transcript has reached its size limit.
    Record,
    /// The budget for model requests is used up.
    Budget,
    /// The kernel killed a process because the memory limit was reached.
    Memory,
}

/// How a run ended.
#[derive(Debug, Default)]
pub(crate) struct RunEnd {
    pub(crate) ended: Option<Ended>,
    pub(crate) cut: Option<StopReason>,
    /// Why the program was never executed.
    pub(crate) not_started: Option<ExecFailure>,
}

/// Why the program could not be executed.
#[derive(Debug)]
pub(crate) struct ExecFailure {
    pub(crate) errno: i32,
    /// The supervisor's denial, if that was the reason.
    pub(crate) denial: Option<String>,
}

/// A run with all its threads.
pub(crate) struct Running {
    pub(crate) started: Started,
    pub(crate) recorder: Recorder,
    pub(crate) writer: Writer,
    pub(crate) tally: Tally,
    pub(crate) activity: Arc<AtomicU64>,
    pub(crate) network: Network,
    pub(crate) carrier: Option<egress::Handle>,
    /// A budget is used up.
    pub(crate) exhausted: Arc<AtomicBool>,
    pub(crate) tails: Vec<(Stream, Tail)>,
    /// Becomes readable when every process of the run is dead.
    pub(crate) everything_dead: Arc<EventFd>,
    /// Every pump holds a clone. `pumps_done` is disconnected when the last pump has ended.
    pub(crate) pump_done: Option<Sender<()>>,
    pub(crate) pumps_done: Receiver<()>,
    /// Interprets the program's output.
    pub(crate) reader: Option<SharedReader>,
    /// The thread that copies the caller's standard input.
    pub(crate) feeder: Option<StdinFeeder>,
    /// Services that have had no work yet, and so have no thread.
    pub(crate) sleepers: Vec<LazyThread>,
    /// Package caches that are linked on first use.
    pub(crate) links: Option<Arc<Links>>,
    /// The resources the run used, as reported by init. Set once every process but init is dead.
    pub(crate) used: Option<Used>,
    /// Every process of the run, init included, was reaped.
    pub(crate) all_dead: bool,
    /// Ends the thread that reads keys.
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) raw: Option<Raw>,
    pub(crate) user_terminal: Option<OwnedFd>,
}

/// A service that gets a thread when it first has work. Many runs print nothing and ask nothing, and starting every
/// thread in advance would be a good part of their launch time.
pub(crate) enum LazyThread {
    /// Wakes when there is output, or when no process can print any more.
    Output(Pump),
    /// Wakes when a shim connects.
    Shims(UnixListener, Box<ShimService>),
    /// Wakes when a client connects to the proxy.
    Network(Box<egress::ProxyConfig>),
}

impl LazyThread {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Output(pump) => pump.from.as_fd(),
            Self::Shims(listener, _) => listener.as_fd(),
            Self::Network(setting) => setting.proxy_listener(),
        }
    }
}

/// Why the agent's program was not started.
pub(crate) enum StartFailure {
    /// The sandbox could not be set up, or does not hold.
    Failed(Failure),
    NotStarted(ExecFailure),
}

/// Takes a started run to its result.
pub(crate) fn oversee(
    (started, places): (Started, RunFiles),
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    group: &Group,
    task: &mut Option<GitSession>,
    network: Network,
) -> Result<Finished, Failure> {
    let RunFiles { transcript, shims, links } = places;
    let (mut running, asker) = attach(started, transcript, streams, observer, network)?;
    running.links = links.map(Arc::new);
    let policy = Arc::new(policy);
    let launch = std::mem::replace(&mut running.started.launch, tracing::Span::none());
    let released = launch.in_scope(|| running.release(&policy, shims, asker, group));
    drop(launch);
    match released {
        Ok((enforcement, supervisor)) => {
            // The agent's program runs, so the writer's thread no longer delays the launch.
            running.writer.hasten();
            let mut end = running.wait();
            // A shell exits with 137 when its child was killed.
            let was_killed = !matches!(end.ended, Some(Ended::Code(code)) if code != 137);
            if end.cut.is_none() && was_killed && group.ran_out_of_memory() {
                end.cut = Some(StopReason::Memory);
            }
            watch_for_second_signal(end.cut.is_some());
            let counts = supervisor.finish();
            running.conclude(&end, enforcement, counts, task)
        }
        Err(StartFailure::Failed(failure)) => {
            // The agent may be waiting for an answer. Closing the socket also closes an unread notification descriptor
            // in it, and the kernel then fails the agent's system call.
            running.started.setup = None;
            running.end_everything(None);
            running.reap_all();
            running.recorder.record(EventType::Note, &failure.to_string(), &json!({}));
            running.close();
            Err(failure)
        }
        Err(StartFailure::NotStarted(failure)) => {
            let ended = running.end_everything(None);
            let end = RunEnd { ended, cut: None, not_started: Some(failure) };
            running.conclude(&end, Enforcement::default(), Counts::default(), task)
        }
    }
}

/// Begins the transcript and connects the output streams.
fn attach(
    mut started: Started,
    file: Box<dyn Sink>,
    streams: Streams,
    observer: Option<Observer>,
    network: Network,
) -> Result<(Running, Option<Box<dyn Ask>>), Failure> {
    let tally = Tally::default();
    let plan = &started.plan;
    let (seen, mut others) = (tally.clone(), observer);
    let is_watched = others.is_some();
    let observe = move |line: &Line<'_>| {
        seen.see(line);
        if let Some(observer) = &mut others {
            observer(line);
        }
    };
    let settings = Box::new(transcript_settings(plan, &network, &started.credentials));
    let (recorder, writer) = transcript::prepare(file, settings, Some(Box::new(observe)));
    if is_watched {
        recorder.hurry();
    }
    recorder.record(
        EventType::RunStarted,
        &format!("policy {}", plan.policy),
        &json!({
            "command": plan.argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "policy": plan.policy,
            "folder": plan.folder.to_string_lossy(),
            "pid": std::process::id(),
            "program": plan.program.to_string_lossy(),
            "namespaces": started.has_view,
            "tmp": plan.tmp.to_string_lossy(),
            "branch": plan.checkout.as_ref().map(|checkout| &checkout.branch),
            "worktree": plan.checkout.as_ref().map(|checkout| checkout.worktree.to_string_lossy()),
            "base": plan.checkout.as_ref().map(|checkout| &checkout.base),
            "leaves_changes_behind": plan.checkout.as_ref().map(|checkout| checkout.leaves_changes_behind),
        }),
    );
    for note in plan.notes.iter().chain(&started.notes) {
        recorder.record(EventType::Note, note, &json!({}));
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let everything_dead =
        EventFd::from_flags(flags).map_err(|error| machine("make an event")(error.into()))?;
    let (pump_done, pumps_done) = channel();
    let mut running = Running {
        recorder,
        writer,
        tally,
        activity: Arc::new(AtomicU64::new(0)),
        network,
        carrier: None,
        exhausted: Arc::default(),
        tails: Vec::new(),
        everything_dead: Arc::new(everything_dead),
        pump_done: Some(pump_done),
        pumps_done,
        reader: None,
        feeder: None,
        sleepers: Vec::new(),
        links: None,
        used: None,
        all_dead: false,
        over: Arc::new(AtomicBool::new(false)),
        raw: None,
        user_terminal: None,
        started: {
            started.pipes.reverse();
            started
        },
    };
    let asker = running.connect(streams).map_err(machine("connect the streams"))?;
    Ok((running, asker))
}

/// The settings of the transcript, as a closure that the writer's thread evaluates.
fn transcript_settings(
    plan: &crate::launch::LaunchPlan,
    network: &Network,
    credentials: &[Vec<u8>],
) -> impl FnOnce() -> transcript::Settings + Send + 'static {
    let output_bytes = plan.limits.output_mib.map_or(u64::MAX / 4, |mib| mib << 20);
    let (folder, run_id) = (plan.run_folder.clone(), plan.run_id.clone());
    let (names, given) = (plan.redact.clone(), plan.environment.clone());
    let others: Vec<Vec<u8>> = network.secrets().chain(credentials.iter().cloned()).collect();
    move || transcript::Settings {
        folder,
        run_id,
        limit_bytes: output_bytes
            .saturating_add(output_bytes.clamp(*ROOM_BESIDE_OUTPUT.start(), *ROOM_BESIDE_OUTPUT.end())),
        reserve_bytes: RESERVE,
        redact_values: secrets(&names, given).chain(others).collect(),
    }
}

/// The values of variables whose names the policy wants redacted, from the agent's environment and the caller's.
fn secrets(names: &[String], given: Vec<(OsString, OsString)>) -> impl Iterator<Item = Vec<u8>> {
    let patterns: Vec<Pattern> = names.iter().filter_map(|text| Pattern::new(text).ok()).collect();
    let is_secret = move |name: &OsStr| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
    // The placeholder that the agent gets instead of a key is no secret. Redacting it would hide that it is not the
    // key.
    let given = given.into_iter().filter(|(_, value)| value != network::PLACEHOLDER);
    let own = std::env::vars_os();
    own.chain(given).filter(move |(name, _)| is_secret(name)).map(|(_, value)| value.into_vec())
}

impl Running {
    /// Connects every stream. Only a terminal gets its threads at once.
    fn connect(&mut self, streams: Streams) -> io::Result<Option<Box<dyn Ask>>> {
        let Streams { input, output, error, is_terminal, questions, reader } = streams;
        self.reader = reader.map(|reader| Arc::new(Mutex::new(reader)));
        let mut ends = [(Stream::Stdout, output), (Stream::Stderr, error)];
        let screen = Screen::default();
        while let Some((from, stream)) = self.started.pipes.pop() {
            let to = ends.iter_mut().find(|(known, _)| *known == stream).and_then(|(_, to)| to.take());
            let pump = self.pump(from, to, stream, &screen);
            self.sleepers.push(LazyThread::Output(pump));
        }
        if let Some(to) = self.started.feeder.take() {
            self.feeder = Some(StdinFeeder::start(input.try_clone()?, to)?);
        }
        let mut ask: Option<Box<dyn Ask>> = None;
        if let Some(master) = self.started.terminal.take() {
            let to = ends.into_iter().find_map(|(_, to)| to).map_or_else(|| input.try_clone(), Ok)?;
            let users = to.try_clone()?;
            let _ = terminal::copy_size(users.as_fd(), master.as_fd());
            let pump = self.pump(master.try_clone()?, Some(to), Stream::Terminal, &screen);
            pump.start(self.pump_done.clone())?;
            if is_terminal[0] {
                self.raw = Raw::new(input.try_clone()?).ok();
                let mut keys = None;
                if let Some(questions) = questions {
                    let (asker, typed) = asker(questions, master.try_clone()?, screen);
                    ask = Some(Box::new(asker));
                    keys = Some(typed);
                }
                self.type_through(input.try_clone()?, master.try_clone()?, keys)?;
            }
            self.started.terminal = Some(master);
            self.user_terminal = Some(users);
        }
        Ok(ask)
    }

    fn pump(&mut self, from: OwnedFd, to: Option<OwnedFd>, stream: Stream, screen: &Screen) -> Pump {
        let tail = Tail::default();
        self.tails.push((stream, tail.clone()));
        let (recorder, activity) = (self.recorder.clone(), self.activity.clone());
        let screen = to.as_ref().filter(|to| to.is_terminal()).map(|_| screen.clone());
        let all_dead = self.everything_dead.clone();
        let reader = self.reader.clone().filter(|_| stream == Stream::Stdout);
        Pump { from, to, screen, stream, recorder, tail, activity, all_dead, reader }
    }

    /// Starts the thread of a service that has work. If that fails, the service is dropped and its descriptor closed,
    /// so that the agent sees a closed peer.
    fn wake(&mut self, index: usize) {
        let started = match self.sleepers.swap_remove(index) {
            LazyThread::Output(pump) => pump.start(self.pump_done.clone()),
            LazyThread::Shims(listener, answering) => supervisor::serve(listener, *answering),
            LazyThread::Network(setting) => {
                egress::start(*setting).map(|carrier| self.carrier = Some(carrier))
            }
        };
        if let Err(error) = started {
            self.recorder.record(
                EventType::Note,
                &format!("there is no thread for what the run says: {error}"),
                &json!({}),
            );
        }
    }

    /// Starts the thread that forwards the user's keys to the run's terminal, or to an open question.
    fn type_through(&self, from: OwnedFd, to: OwnedFd, keys: Option<Keys>) -> io::Result<()> {
        let over = self.over.clone();
        let work = move || {
            let mut buffer = [0u8; 4096];
            let mut interrupts = InterruptKeys::default();
            while !over.load(Ordering::Acquire) {
                let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
                if !matches!(poll(&mut fds, 100u16), Ok(1)) {
                    continue;
                }
                let got = match nix::unistd::read(&from, &mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(got) => &buffer[..got],
                };
                if keys.as_ref().is_some_and(|keys| keys.take(got)) {
                    continue;
                }
                if nix::unistd::write(&to, got).is_err() {
                    return;
                }
                if interrupts.are_to_end_run(got, to.as_fd()) {
                    // As if the terminal had sent the signal: the main thread ends the run.
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGINT);
                }
            }
        };
        std::thread::Builder::new().name("keys".to_string()).spawn(work).map(drop)
    }

    /// Waits until the agent ends, a limit is reached or a signal arrives.
    fn wait(&mut self) -> RunEnd {
        let signals = SignalWaiter::new(&own_signals()).ok();
        let mut end = RunEnd::default();
        let mut kill_at: Option<Instant> = None;
        let mut clock = Clock { seen: 0, last_active: Instant::now(), work: CpuActivity::default() };
        loop {
            match self.next_message(signals.as_ref(), TICK) {
                Event::Ended(ended) => {
                    end.ended = Some(ended);
                    break;
                }
                Event::Empty(used) => {
                    self.used = Some(used);
                    break;
                }
                Event::Gone => break,
                Event::Signal(Signal::SIGWINCH) => self.follow_size(),
                // The second signal ends the grace period.
                Event::Signal(_) if kill_at.is_some() => break,
                Event::Signal(signal) => {
                    end.cut = Some(StopReason::Signal(signal));
                    // In a terminal of its own the agent already got Ctrl-C and did not end.
                    let was_interrupted = self.raw.is_some() && signal == Signal::SIGINT;
                    let forwarded = if was_interrupted { Signal::SIGTERM } else { signal };
                    kill_at =
                        Some(self.ask_to_end(forwarded, EventType::Signal, format!("{forwarded} forwarded")));
                }
                Event::Nothing => {}
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) {
                break;
            }
            if end.cut.is_some() {
                continue;
            }
            end.cut = self.limit_reached(&mut clock);
            match end.cut {
                None => {}
                // Nothing may run unrecorded.
                Some(StopReason::Transcript | StopReason::Record) => break,
                Some(cut) => {
                    kill_at = Some(self.ask_to_end(
                        Signal::SIGTERM,
                        EventType::Timeout,
                        format!("{} reached", cut.kind()),
                    ));
                }
            }
        }
        if end.cut.is_none() && self.exhausted.load(Ordering::Acquire) {
            end.cut = Some(StopReason::Budget);
        }
        // Nothing can start once the transcript is full, so an agent that then exits by itself was cut short too.
        if end.cut.is_none() && self.recorder.full_at().is_some() {
            end.cut = Some(StopReason::Record);
        }
        if self.used.is_none() {
            end.ended = self.end_everything(end.ended);
        }
        end
    }

    /// The limit that is reached now, if any.
    fn limit_reached(&self, clock: &mut Clock) -> Option<StopReason> {
        let now = Instant::now();
        let activity = self.activity.load(Ordering::Relaxed);
        let limits = &self.started.plan.limits;
        if activity != clock.seen {
            (clock.seen, clock.last_active) = (activity, now);
            clock.work.reset(now);
        } else if limits.idle_seconds.is_some() && clock.work.goes_on(self.started.first_process, now) {
            clock.last_active = now;
        }
        let over = |limit: Option<u64>, since: Instant| {
            limit.is_some_and(|limit| now.duration_since(since) >= Duration::from_secs(limit))
        };
        if self.recorder.failure().is_some() {
            Some(StopReason::Transcript)
        } else if self.recorder.full_at().is_some() {
            Some(StopReason::Record)
        } else if over(limits.total_seconds, self.started.began) {
            Some(StopReason::Total)
        } else if over(limits.idle_seconds, clock.last_active) {
            Some(StopReason::Idle)
        } else if self.exhausted.load(Ordering::Acquire) {
            Some(StopReason::Budget)
        } else {
            None
        }
    }

    /// Sends the agent a signal and returns when its grace period ends. A separate thread records it, because a
    /// transcript that waits for its reader must not delay the end of the run.
    fn ask_to_end(&self, signal: Signal, event_type: EventType, message: String) -> Instant {
        self.send_signal(signal);
        let recorder = self.recorder.clone();
        let work = move || recorder.record(event_type, &message, &json!({ "signal": signal.as_str() }));
        let _ = std::thread::Builder::new().name("note".to_string()).spawn(work);
        Instant::now() + GRACE
    }

    /// Kills every process of the run and waits until they are dead. Returns how the agent ended, if that was not
    /// `known`.
    pub(crate) fn end_everything(&mut self, known: Option<Ended>) -> Option<Ended> {
        let mut ended = known;
        let _ = nix::unistd::write(&self.started.control, &InitRequest::Kill.encode());
        let patience = Instant::now() + LONGEST_END;
        loop {
            if Instant::now() >= patience {
                // This kills everything in init's namespace. Without a namespace, `reap_all` kills what is left.
                let first = nix::unistd::Pid::from_raw(self.started.first_process);
                let _ = nix::sys::signal::kill(first, Signal::SIGKILL);
                break;
            }
            match self.next_message(None, Duration::from_secs(1)) {
                Event::Ended(now) => ended = ended.or(Some(now)),
                Event::Empty(used) => {
                    self.used = Some(used);
                    return ended;
                }
                Event::Gone => break,
                Event::Signal(_) | Event::Nothing => {}
            }
        }
        self.reap_all();
        ended
    }

    /// Reaps init and, if init was killed itself, the processes it has left.
    pub(crate) fn reap_all(&mut self) {
        if !std::mem::replace(&mut self.all_dead, true) {
            take_all_dead(self.started.first_process);
        }
    }

    fn next_message(&mut self, signals: Option<&SignalWaiter>, patience: Duration) -> Event {
        let wanted = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![wanted(self.started.control.as_fd())];
        let others = fds.len();
        fds.extend(self.sleepers.iter().map(|sleeper| wanted(sleeper.descriptor())));
        let ready = match signals {
            Some(signals) => signals.poll(&mut fds, patience),
            None => poll(&mut fds, PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO)),
        };
        if let Some(signal) = signals.and_then(SignalWaiter::take) {
            return Event::Signal(signal);
        }
        if !matches!(ready, Ok(ready) if ready > 0) {
            return Event::Nothing;
        }
        let came: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        let found = |at: usize| fds[at].revents().unwrap_or(PollFlags::empty());
        let has_work: Vec<bool> =
            (others..fds.len()).map(|at| found(at).contains(PollFlags::POLLIN)).collect();
        // In reverse order, because `swap_remove` invalidates later indices. Not when init has sent a message too: the
        // run may be over, and `close` drains the rest.
        for at in (others..came.len()).rev().filter(|&at| came[at] && !came[0]) {
            if has_work[at - others] {
                self.wake(at - others);
            } else {
                // Closed without any output.
                self.sleepers.swap_remove(at - others);
            }
        }
        if !came[0] {
            return Event::Nothing;
        }
        let mut message = [0u8; 64];
        let length = match nix::unistd::read(&self.started.control, &mut message) {
            Ok(0) | Err(_) => return Event::Gone,
            Ok(length) => length,
        };
        match InitMessage::decode(&message[..length]) {
            Some(InitMessage::AgentEnded(status)) => Event::Ended(Ended::from_status(status)),
            Some(InitMessage::AllDead(used)) => Event::Empty(used),
            _ => Event::Nothing,
        }
    }

    fn send_signal(&self, signal: Signal) {
        let _ = nix::unistd::write(&self.started.control, &InitRequest::Signal(signal as i32).encode());
    }

    fn follow_size(&self) {
        if let (Some(from), Some(to)) = (&self.user_terminal, &self.started.terminal) {
            let _ = terminal::copy_size(from.as_fd(), to.as_fd());
        }
    }

    /// Ends the threads that copy input and output. Every process of the run must be dead. Delivers the rest of the
    /// output first, unless the caller wants guard to end.
    pub(crate) fn close(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(feeder) = self.feeder.take() {
            feeder.stop();
        }
        let _ = self.everything_dead.write(1);
        self.started.terminal = None;
        while let Some(sleeper) = self.sleepers.pop() {
            let mut fds = [PollFd::new(sleeper.descriptor(), PollFlags::POLLIN)];
            let has_more = poll(&mut fds, PollTimeout::ZERO).is_ok()
                && fds[0].revents().is_some_and(|found| found.contains(PollFlags::POLLIN));
            if let LazyThread::Output(pump) = sleeper
                && has_more
            {
                let _ = pump.start(self.pump_done.clone());
            }
        }
        self.pump_done = None;
        let mut given_up: Option<Instant> = None;
        // Pumps send nothing: the channel is disconnected when the last one ends.
        while matches!(self.pumps_done.recv_timeout(LOOK_AGAIN), Err(RecvTimeoutError::Timeout)) {
            // A pump that is blocked on a stopped terminal cannot be woken. It ends with the process.
            if is_output_given_up() && given_up.get_or_insert_with(Instant::now).elapsed() > LAST_OUTPUT {
                break;
            }
        }
        self.raw = None;
    }
}

/// When the agent was last active.
struct Clock {
    /// The last value of the counter of output, questions, program starts and requests.
    seen: u64,
    last_active: Instant,
    /// Detects activity that shows in none of these.
    work: CpuActivity,
}

/// What the main thread waits for.
enum Event {
    Ended(Ended),
    /// Init reports that every other process of the run is dead.
    Empty(Used),
    /// Init is gone.
    Gone,
    Signal(Signal),
    Nothing,
}

/// Reaps init and, if it was killed from outside, the processes it had started. guard is their subreaper then.
pub(crate) fn take_all_dead(first_process: i32) {
    let own = std::process::id() as i32;
    let mut first = process::thread_fd(first_process).ok();
    for _ in 0..1000 {
        match process::reap() {
            Ok(Some(_)) => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
            _ => match first.take() {
                // Init has sent its last message or is dead. Waiting for its end is shorter than polling.
                Some(first) => {
                    let mut fds = [PollFd::new(first.as_fd(), PollFlags::POLLIN)];
                    let _ = poll(&mut fds, 1000u16);
                }
                None => {
                    descendants::kill_all(own);
                    std::thread::sleep(Duration::from_millis(2));
                }
            },
        }
    }
}
