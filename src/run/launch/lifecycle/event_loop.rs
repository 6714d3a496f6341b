//! The main loop of a run, from the start of its init process to its end. It manages guard's threads for the run,
//! checks the limits and handles signals.
//!
//! `start.rs` has the steps before the agent's program runs, `finish.rs` those after its end. Until the run has ended,
//! the main loop must never wait for a slow reader of the output or of the transcript.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde_json::json;

use super::attach::attach;
use super::caller_output::{is_output_given_up, write_to_caller};
use super::git_session::GitSession;
use super::idle::CpuActivity;
use super::network::Network;
use super::running::{LazyThread, Running};
use super::signals::{awaited_signals, watch_for_second_signal};
use super::{Failure, Finished, RunFiles, Started};
use crate::judge::policy::Policy;
use crate::run::egress;
use crate::run::launch::process::cgroup::Group;
use crate::run::launch::process::descendants;
use crate::run::launch::process::protocol::{InitMessage, InitRequest, Used};
use crate::run::launch::streams::Streams;
use crate::run::outcome::Enforcement;
use crate::run::supervisor;
use crate::run::supervisor::Counts;
use crate::run::transcript::{EventType, Observer};
use crate::sys::process;
use crate::sys::process::{Ended, ThreadFd};
use crate::sys::signals::SignalWaiter;
use crate::sys::terminal;

/// How long guard waits for the agent to end after a termination signal, before it sends SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long the agent may run on after a termination signal before guard tells the user what happens next.
const NOTE_DELAY: Duration = Duration::from_secs(1);
/// How long guard waits for init to kill every process of the run, before it kills init.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the main thread checks the limits, and whether guard can still write the transcript.
const TICK: Duration = Duration::from_millis(250);
/// How often [`Running::close`] checks whether guard should stop waiting for readers of the output.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long guard waits for the threads that copy output to end, after it has stopped waiting for readers of the
/// output.
const PUMP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why guard ended a run early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Idle,
    Total,
    Signal(Signal),
    /// guard cannot write the transcript.
    Transcript,
    /// The transcript has reached its size limit.
    Record,
    Budget,
    /// The kernel killed a process because the run reached its memory limit.
    Memory,
    /// The supervisor's thread has ended early, by a panic or an error.
    Supervisor,
}

#[derive(Debug, Default)]
pub(crate) struct RunEnd {
    pub(crate) ended: Option<Ended>,
    pub(crate) stop_reason: Option<StopReason>,
    /// Why the agent process could not execute the program; `None` unless that ended the run.
    pub(crate) not_started: Option<ExecFailure>,
}

#[derive(Debug)]
pub(crate) struct ExecFailure {
    pub(crate) errno: i32,
    /// The denied command and the rule that denied it, if the supervisor denied the exec.
    pub(crate) denial: Option<String>,
}

pub(crate) enum StartFailure {
    /// guard could not set up the sandbox, or found that the sandbox does not work.
    Failed(Failure),
    /// The sandbox works, but the agent process could not execute the program.
    NotStarted(ExecFailure),
}

/// Starts the agent's program in a run whose init process exists, waits for its end, and returns the result. If the
/// agent process could not execute the program, the result says why. Fails if guard could not set up the sandbox, or
/// found that the sandbox does not work.
pub(crate) fn run_to_end(
    (started, files): (Started, RunFiles),
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    group: &Group,
    git_session: &mut Option<GitSession>,
    network: Network,
) -> Result<Finished, Failure> {
    let RunFiles { transcript, shims, links } = files;
    let (mut running, asker) = attach(started, transcript, streams, observer, network)?;
    running.links = links.map(Arc::new);
    let policy = Arc::new(policy);
    let launch = std::mem::replace(&mut running.started.launch, tracing::Span::none());
    let program = launch.in_scope(|| running.start_program(&policy, shims, asker, group));
    drop(launch);
    match program {
        Ok((enforcement, supervisor)) => {
            // The agent's program is running, so the transcript's thread can no longer delay the launch.
            running.writer.write_now();
            let mut end = running.wait(&supervisor);
            // Exit code 137 may also mean that the kernel killed a process: a shell exits with it when its child was
            // killed.
            let was_killed = !matches!(end.ended, Some(Ended::Code(code)) if code != 137);
            if end.stop_reason.is_none() && was_killed && group.ran_out_of_memory() {
                end.stop_reason = Some(StopReason::Memory);
            }
            watch_for_second_signal(end.stop_reason.is_some());
            let counts = supervisor.finish();
            running.finish(&end, enforcement, counts, git_session)
        }
        Err(StartFailure::Failed(failure)) => {
            // The agent process may be waiting for an answer of the supervisor. Closing the socket also closes a
            // seccomp listener in it that guard has not received, and the kernel then fails the waiting system call.
            running.started.setup = None;
            running.end_everything(None);
            running.reap_all();
            running.recorder.record(EventType::Note, &failure.to_string(), &json!({}));
            running.close();
            Err(failure)
        }
        Err(StartFailure::NotStarted(failure)) => {
            let ended = running.end_everything(None);
            let end = RunEnd { ended, stop_reason: None, not_started: Some(failure) };
            running.finish(&end, Enforcement::default(), Counts::default(), git_session)
        }
    }
}

impl Running {
    /// Starts the thread of a service that has work. If that fails, drops the service, which closes its descriptor.
    /// The agent then gets an error or end of file, instead of waiting forever.
    fn start_lazy_thread(&mut self, index: usize) {
        let started = match self.lazy_threads.swap_remove(index) {
            LazyThread::Output(pump) => pump.start(self.pump_done.clone()),
            LazyThread::Shims(listener, service) => supervisor::serve(listener, *service),
            LazyThread::Network(config) => egress::start(*config).map(|proxy| self.proxy = Some(proxy)),
        };
        if let Err(error) = started {
            self.recorder.record(
                EventType::Note,
                &format!("cannot start a thread for the run's output, shims or network: {error}"),
                &json!({}),
            );
        }
    }

    /// Waits until the agent ends by itself, until init is gone, or until guard must end the run because of a limit, a
    /// signal, or a failed supervisor or transcript. Then kills every process of the run that is left.
    fn wait(&mut self, supervisor: &supervisor::Handle) -> RunEnd {
        let signals = SignalWaiter::new(&awaited_signals()).ok();
        let mut end = RunEnd::default();
        let mut kill_at: Option<Instant> = None;
        let mut note: Option<(Instant, Signal)> = None;
        let mut clock = Clock { seen: 0, last_active: Instant::now(), cpu: CpuActivity::default() };
        loop {
            match self.next_event(signals.as_ref(), TICK) {
                Event::Ended(ended) => {
                    end.ended = Some(ended);
                    break;
                }
                Event::AllDead(used) => {
                    self.used = Some(used);
                    break;
                }
                Event::InitGone => break,
                Event::Signal(Signal::SIGWINCH) => self.copy_terminal_size(),
                // A second signal ends the grace period.
                Event::Signal(_) if kill_at.is_some() => break,
                Event::Signal(signal) => {
                    end.stop_reason = Some(StopReason::Signal(signal));
                    // If the run has a terminal, the agent has already received the user's Ctrl-C and has not ended. So
                    // send SIGTERM.
                    let was_interrupted = self.raw.is_some() && signal == Signal::SIGINT;
                    let forwarded = if was_interrupted { Signal::SIGTERM } else { signal };
                    kill_at = Some(self.ask_to_end(
                        forwarded,
                        EventType::Signal,
                        format!("guard sent {forwarded} to the agent"),
                    ));
                    note = Some((Instant::now() + NOTE_DELAY, forwarded));
                }
                Event::Nothing => {}
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) {
                break;
            }
            if note.is_some_and(|(at, signal)| Instant::now() >= at && self.say_what_follows(signal)) {
                note = None;
            }
            if end.stop_reason.is_some() {
                continue;
            }
            end.stop_reason = if supervisor.has_failed() {
                Some(StopReason::Supervisor)
            } else {
                self.limit_reached(&mut clock)
            };
            match end.stop_reason {
                None => {}
                // Kill the run at once: no program may run without records and supervision.
                Some(StopReason::Transcript | StopReason::Record | StopReason::Supervisor) => break,
                Some(reason) => {
                    kill_at = Some(self.ask_to_end(
                        Signal::SIGTERM,
                        EventType::Timeout,
                        format!("guard ends the run: {}", reason.kind()),
                    ));
                }
            }
        }
        // The agent can end before the next check of these conditions.
        if end.stop_reason.is_none() && supervisor.has_failed() {
            end.stop_reason = Some(StopReason::Supervisor);
        }
        if end.stop_reason.is_none() && self.exhausted.load(Ordering::Acquire) {
            end.stop_reason = Some(StopReason::Budget);
        }
        // No program can start once the transcript is full. So guard treats the run as ended early, even if the agent
        // ended by itself.
        if end.stop_reason.is_none() && self.recorder.full_at().is_some() {
            end.stop_reason = Some(StopReason::Record);
        }
        if self.used.is_none() {
            end.ended = self.end_everything(end.ended);
        }
        end
    }

    /// Says on the user's terminal that the command has got a signal, has not ended, and what ends it. Returns false if
    /// guard cannot print that now.
    fn say_what_follows(&self, signal: Signal) -> bool {
        let left = GRACE.saturating_sub(NOTE_DELAY).as_secs();
        self.notes.print(&format!(
            "guard: the command got {signal} and has {left} more seconds to end; Ctrl-C ends it at once"
        ))
    }

    /// Returns the limit that the run has reached, or [`StopReason::Transcript`] if guard cannot write the transcript;
    /// `None` if the run may continue.
    fn limit_reached(&self, clock: &mut Clock) -> Option<StopReason> {
        let now = Instant::now();
        let activity = self.activity.load(Ordering::Relaxed);
        let limits = &self.started.plan.limits;
        if activity != clock.seen || self.asking.load(Ordering::Relaxed) {
            (clock.seen, clock.last_active) = (activity, now);
            clock.cpu.reset(now);
        } else if limits.idle_seconds.is_some() && clock.cpu.has_worked(self.started.init_pid, now) {
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

    /// Sends the agent a termination signal, and returns the time at which its grace period is over. A separate
    /// thread records the signal, because a transcript that waits for a slow reader must not delay the end of the
    /// run.
    fn ask_to_end(&self, signal: Signal, event_type: EventType, message: String) -> Instant {
        self.send_signal(signal);
        let recorder = self.recorder.clone();
        let work = move || recorder.record(event_type, &message, &json!({ "signal": signal.as_str() }));
        let _ = std::thread::Builder::new().name("note".to_string()).spawn(work);
        Instant::now() + GRACE
    }

    /// Kills every process of the run and waits until all are dead. If init does not do that within [`KILL_TIMEOUT`],
    /// kills init too. Returns how the agent ended: `known` or, if that is `None`, the status that init reports, if it
    /// reports one.
    pub(crate) fn end_everything(&mut self, known: Option<Ended>) -> Option<Ended> {
        let mut ended = known;
        let _ = nix::unistd::write(&self.started.control, &InitRequest::Kill.encode());
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            if Instant::now() >= deadline {
                // With a PID namespace, this kills everything in it. Without one, `reap_all` kills the remaining
                // processes.
                let init = nix::unistd::Pid::from_raw(self.started.init_pid);
                let _ = nix::sys::signal::kill(init, Signal::SIGKILL);
                break;
            }
            match self.next_event(None, Duration::from_secs(1)) {
                Event::Ended(now) => ended = ended.or(Some(now)),
                Event::AllDead(used) => {
                    self.used = Some(used);
                    return ended;
                }
                Event::InitGone => break,
                Event::Signal(_) | Event::Nothing => {}
            }
        }
        self.reap_all();
        ended
    }

    /// Reaps init. If init was killed, also kills and reaps the processes that it left behind.
    pub(crate) fn reap_all(&mut self) {
        if !std::mem::replace(&mut self.all_dead, true) {
            reap_all_descendants(self.started.init_pid);
        }
    }

    /// Waits up to `timeout` for a signal or a message from init. Meanwhile starts the thread of every service that
    /// gets work.
    fn next_event(&mut self, signals: Option<&SignalWaiter>, timeout: Duration) -> Event {
        let wanted = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![wanted(self.started.control.as_fd())];
        let others = fds.len();
        fds.extend(self.lazy_threads.iter().map(|service| wanted(service.descriptor())));
        let ready = match signals {
            Some(signals) => signals.poll(&mut fds, timeout),
            None => poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO)),
        };
        if let Some(signal) = signals.and_then(SignalWaiter::take) {
            return Event::Signal(signal);
        }
        if !matches!(ready, Ok(ready) if ready > 0) {
            return Event::Nothing;
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        let found = |at: usize| fds[at].revents().unwrap_or(PollFlags::empty());
        let has_work: Vec<bool> =
            (others..fds.len()).map(|at| found(at).contains(PollFlags::POLLIN)).collect();
        // Go through the services in reverse order, because `swap_remove` invalidates later indices. Start none if
        // init has sent a message as well: the run may be over, and `close` delivers the rest of the output.
        for at in (others..is_ready.len()).rev().filter(|&at| is_ready[at] && !is_ready[0]) {
            if has_work[at - others] {
                self.start_lazy_thread(at - others);
            } else {
                // Every process at the other end has closed the descriptor without sending any data.
                self.lazy_threads.swap_remove(at - others);
            }
        }
        if !is_ready[0] {
            return Event::Nothing;
        }
        let mut message = [0u8; 64];
        let length = match nix::unistd::read(&self.started.control, &mut message) {
            Ok(0) | Err(_) => return Event::InitGone,
            Ok(length) => length,
        };
        match InitMessage::decode(&message[..length]) {
            Some(InitMessage::AgentEnded(status)) => Event::Ended(Ended::from_status(status)),
            Some(InitMessage::AllDead(used)) => Event::AllDead(used),
            _ => Event::Nothing,
        }
    }

    fn send_signal(&self, signal: Signal) {
        let _ = nix::unistd::write(&self.started.control, &InitRequest::Signal(signal as i32).encode());
    }

    /// Sets the size of the run's terminal to that of the user's terminal.
    fn copy_terminal_size(&self) {
        if let (Some(from), Some(to)) = (&self.user_terminal, &self.started.terminal) {
            let _ = terminal::copy_size(from.as_fd(), to.as_fd());
        }
    }

    /// Delivers the rest of the output, unless guard has stopped waiting for readers, and ends the threads that copy
    /// input and output. Every process of the run must be dead.
    pub(crate) fn close(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(feeder) = self.feeder.take() {
            feeder.stop();
        }
        let _ = self.everything_dead.write(1);
        self.started.terminal = None;
        while let Some(service) = self.lazy_threads.pop() {
            let mut fds = [PollFd::new(service.descriptor(), PollFlags::POLLIN)];
            let has_more = poll(&mut fds, PollTimeout::ZERO).is_ok()
                && fds[0].revents().is_some_and(|found| found.contains(PollFlags::POLLIN));
            if let LazyThread::Output(pump) = service
                && has_more
            {
                let _ = pump.start(self.pump_done.clone());
            }
        }
        self.pump_done = None;
        let mut given_up: Option<Instant> = None;
        // The threads send nothing: the channel is disconnected when the last of them ends.
        while matches!(self.pumps_done.recv_timeout(POLL_INTERVAL), Err(RecvTimeoutError::Timeout)) {
            // guard cannot wake a thread that is blocked by a terminal whose output is stopped (Ctrl-S). Such a
            // thread ends with guard.
            if is_output_given_up() && given_up.get_or_insert_with(Instant::now).elapsed() > PUMP_TIMEOUT {
                break;
            }
        }
        self.restore_terminal();
        self.raw = None;
    }

    /// Undoes what the agent's output has left behind in the user's terminal, so that the user sees the lines that
    /// follow.
    fn restore_terminal(&self) {
        // A thread that is blocked by the terminal still holds the lock. guard could not write there, either.
        if let (Some(terminal), Some(mut state)) = (&self.user_terminal, self.screen.try_lock()) {
            let _ = write_to_caller(terminal, state.restore().as_bytes());
        }
    }
}

/// Keeps track of when the agent was last active.
struct Clock {
    /// The value of [`Running::activity`] when the main loop last checked it.
    seen: u64,
    last_active: Instant,
    /// Detects work by CPU use, which [`Running::activity`] does not count.
    cpu: CpuActivity,
}

/// What the main thread received while it waited.
enum Event {
    /// The agent has ended.
    Ended(Ended),
    /// Init reports that every other process of the run is dead.
    AllDead(Used),
    /// Init has closed its socket, so it is dead.
    InitGone,
    Signal(Signal),
    /// The main thread has nothing to do: the timeout has expired, or only services got work, and their threads do it.
    Nothing,
}

/// Reaps init. If init was killed, also kills and reaps the processes that it left behind: guard is their subreaper.
/// Gives up after 1000 attempts, that is, a few seconds.
pub(crate) fn reap_all_descendants(init_pid: i32) {
    let own = std::process::id() as i32;
    let mut first = process::thread_fd(init_pid).map(ThreadFd::into_fd).ok();
    for _ in 0..1000 {
        match process::reap() {
            Ok(Some(_)) => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
            _ => match first.take() {
                // Init has sent its last message or is dead. Waiting for its end takes less time than sleeping in a
                // loop.
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
