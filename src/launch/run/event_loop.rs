//! A run from the moment its init process exists to its end: its threads, its limits, its signals. What comes before the
//! command runs is in `release.rs`, what comes after it in `conclude.rs`.

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

/// After a polite signal, before the end.
const GRACE: Duration = Duration::from_secs(5);
/// How long init may take to end everything before it is ended itself.
const LONGEST_END: Duration = Duration::from_secs(10);
/// How often limits and the transcript are looked at.
const TICK: Duration = Duration::from_millis(250);
/// How often the end of the output is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a pump may take to notice that output was given up.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// Room for everything but output in a transcript: as much as for output, within these bounds.
const ROOM_BESIDE_OUTPUT: std::ops::RangeInclusive<u64> = (8 << 20)..=(64 << 20);
/// Room for what is under way when a transcript is full: more than its recorder and its writer hold in memory.
const RESERVE: u64 = 64 << 20;

/// What ended a run early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Idle,
    Total,
    Signal(Signal),
    Transcript,
    /// The transcript has reached its bound.
    Record,
    /// A model was asked for more than there is a budget for.
    Budget,
    /// The kernel killed it for memory it may not have.
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

/// The program could not be executed.
#[derive(Debug)]
pub(crate) struct ExecFailure {
    pub(crate) errno: i32,
    /// The supervisor's refusal, if that was the reason.
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
    /// Becomes readable when everything in the run is dead.
    pub(crate) everything_dead: Arc<EventFd>,
    /// For every pump; and where it shows that none is left.
    pub(crate) pump_done: Option<Sender<()>>,
    pub(crate) pumps_done: Receiver<()>,
    /// Understands what the program prints.
    pub(crate) reader: Option<SharedReader>,
    /// The thread that carries the caller's standard input.
    pub(crate) feeder: Option<StdinFeeder>,
    /// What has had nothing to do yet.
    pub(crate) sleepers: Vec<LazyThread>,
    /// Caches that are made when they are needed.
    pub(crate) links: Option<Arc<Links>>,
    /// What the run used, as its init process has said: nothing else is left of it.
    pub(crate) used: Option<Used>,
    /// Every process of the run was seen dead, the first one too.
    pub(crate) all_dead: bool,
    /// Ends the thread that reads keys.
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) raw: Option<Raw>,
    pub(crate) user_terminal: Option<OwnedFd>,
}

/// Work that gets a thread when there is some: many runs print nothing and ask nothing, and a thread for everybody who
/// might is a good part of their launch.
pub(crate) enum LazyThread {
    /// Something was printed, or nobody can print any more.
    Output(Pump),
    /// A shim asks.
    Shims(UnixListener, Box<ShimService>),
    /// Somebody connects to the proxy.
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

/// Why a run does not go on.
pub(crate) enum StartFailure {
    /// The sandbox could not be made, or does not hold.
    Failed(Failure),
    NotStarted(ExecFailure),
}

/// Sees a started run through to its result.
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
            // The agent's program has begun, and nobody waits for what the writer's thread is in the way of.
            running.writer.hasten();
            let mut end = running.wait();
            // 137 is how a shell tells that what it waited for was killed.
            let was_killed = !matches!(end.ended, Some(Ended::Code(code)) if code != 137);
            if end.cut.is_none() && was_killed && group.ran_out_of_memory() {
                end.cut = Some(StopReason::Memory);
            }
            watch_for_second_signal(end.cut.is_some());
            let counts = supervisor.finish();
            running.conclude(&end, enforcement, counts, task)
        }
        Err(StartFailure::Failed(failure)) => {
            // The agent may be waiting for an answer: with this goes, unread, what questions arrive on, and the kernel tells it
            // that nobody listens.
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

/// Begins the transcript, and connects what carries output.
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

/// How the transcript is written, put together by whoever writes it.
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

/// Values of variables whose names the policy wants hidden: the agent's, and the caller's own.
fn secrets(names: &[String], given: Vec<(OsString, OsString)>) -> impl Iterator<Item = Vec<u8>> {
    let patterns: Vec<Pattern> = names.iter().filter_map(|text| Pattern::new(text).ok()).collect();
    let is_secret = move |name: &OsStr| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
    // What the agent has instead of a key is no secret, and hiding it would hide that it is not the key.
    let given = given.into_iter().filter(|(_, value)| value != network::PLACEHOLDER);
    let own = std::env::vars_os();
    own.chain(given).filter(move |(name, _)| is_secret(name)).map(|(_, value)| value.into_vec())
}

impl Running {
    /// Connects every stream; a terminal gets its threads at once.
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

    /// Gives one that has something to do a thread. Who gets none is closed: the agent sees nobody listen.
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

    /// What the user types goes to the run's terminal, or answers a question.
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
                    // As if the terminal had sent it: the main thread ends the run.
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGINT);
                }
            }
        };
        std::thread::Builder::new().name("keys".to_string()).spawn(work).map(drop)
    }

    /// Waits for the end: the agent's own, a limit's, a signal's.
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
                // Asked twice: no more grace.
                Event::Signal(_) if kill_at.is_some() => break,
                Event::Signal(signal) => {
                    end.cut = Some(StopReason::Signal(signal));
                    // Whoever has a terminal of its own was interrupted there by the key, and did not end.
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
                // What is not recorded does not run.
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
        // Nothing starts any more once it is full: an agent that ends by itself then did not do all it wanted.
        if end.cut.is_none() && self.recorder.full_at().is_some() {
            end.cut = Some(StopReason::Record);
        }
        if self.used.is_none() {
            end.ended = self.end_everything(end.ended);
        }
        end
    }

    /// The limit that ends the run now, if one does.
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

    /// Sends the agent a signal; the time at which politeness ends. Recorded aside: a transcript that waits for its
    /// reader must not keep the run from being ended.
    fn ask_to_end(&self, signal: Signal, event_type: EventType, message: String) -> Instant {
        self.send_signal(signal);
        let recorder = self.recorder.clone();
        let work = move || recorder.record(event_type, &message, &json!({ "signal": signal.as_str() }));
        let _ = std::thread::Builder::new().name("note".to_string()).spawn(work);
        Instant::now() + GRACE
    }

    /// Kills whatever is left of the run and sees it dead. How the agent ended, if that was not known yet.
    pub(crate) fn end_everything(&mut self, known: Option<Ended>) -> Option<Ended> {
        let mut ended = known;
        let _ = nix::unistd::write(&self.started.control, &InitRequest::Kill.encode());
        let patience = Instant::now() + LONGEST_END;
        loop {
            if Instant::now() >= patience {
                // With it goes everything in its namespace; without one, what is left is seen to below.
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

    /// Takes init, which has seen everything else dead, and whatever is left if it was killed itself.
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
        // From behind, because who is done with leaves. When the run speaks too it may be over, and `close` sees what is left.
        for at in (others..came.len()).rev().filter(|&at| came[at] && !came[0]) {
            if has_work[at - others] {
                self.wake(at - others);
            } else {
                // Closed, and nothing was ever printed there.
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

    /// Ends the threads that carry input and output. Everything in the run must be dead. What is left of its output is
    /// delivered first, unless the caller wants guard to end.
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
        // Nobody sends anything: the channel closes with the last pump.
        while matches!(self.pumps_done.recv_timeout(LOOK_AGAIN), Err(RecvTimeoutError::Timeout)) {
            // One that waits for a stopped terminal cannot be told. It ends with the process.
            if is_output_given_up() && given_up.get_or_insert_with(Instant::now).elapsed() > LAST_OUTPUT {
                break;
            }
        }
        self.raw = None;
    }
}

/// When the agent last did something.
struct Clock {
    /// What was printed, asked, started and sent, counted.
    seen: u64,
    last_active: Instant,
    /// What works without any of that.
    work: CpuActivity,
}

/// What the main thread waits for.
enum Event {
    Ended(Ended),
    /// Init says that nothing of the run is left but itself.
    Empty(Used),
    /// It is gone.
    Gone,
    Signal(Signal),
    Nothing,
}

/// Takes init of a run and, if it was killed from outside, what it had started, which is ours then.
pub(crate) fn take_all_dead(first_process: i32) {
    let own = std::process::id() as i32;
    let mut first = process::thread_fd(first_process).ok();
    for _ in 0..1000 {
        match process::reap() {
            Ok(Some(_)) => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
            _ => match first.take() {
                // It has said its last word or is dead already; waiting for it is shorter than looking again and again.
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
