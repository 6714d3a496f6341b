//! A run from the moment its first process exists to its result.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use super::child::{self, canary_file};
use super::descendants;
use super::group::Group;
use super::init;
use super::network::{self, Network};
use super::parent::{Failure, Finished, Started, Streams, machine, own_signals};
use super::prepare;
use super::pump::{Pump, Tail};
use super::task::Task;
use super::terminal::{Keys, Raw, asker};
use crate::command::Context;
use crate::egress;
use crate::intercept::{self, Answering, Ask, Counts, Handle, Repositories, Setting};
use crate::outcome::{
    Enforcement, ErrorDetail, HostTraffic, ModelUsage, RunResult, Tally, TranscriptPlace, Usage, changes,
    duration,
};
use crate::policy::{Pattern, Policy};
use crate::sandbox::Need;
use crate::sys::process::{self, Ended};
use crate::sys::{socket, terminal};
use crate::transcript::{self, Line, Observer, Recorder, Stream, Writer};

/// After a polite signal, before the end.
const GRACE: Duration = Duration::from_secs(5);
/// How often limits and the transcript are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Room for everything but output in a transcript.
const ROOM_BESIDE_OUTPUT: u64 = 64 << 20;

/// What ended a run early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Idle,
    Total,
    Signal(Signal),
    Transcript,
    /// A model was asked for more than there is a budget for.
    Budget,
}

/// How a run ended.
#[derive(Debug, Default)]
struct End {
    ended: Option<Ended>,
    cut: Option<Cut>,
    /// Why the command never ran: (errno, words).
    not_started: Option<(i32, String)>,
}

/// A run with all its threads.
struct Running {
    started: Started,
    recorder: Recorder,
    writer: Writer,
    tally: Tally,
    /// What was refused to shims, which the supervisor does not count.
    shim_refusals: Arc<AtomicU64>,
    activity: Arc<AtomicU64>,
    network: Network,
    carrier: Option<egress::Handle>,
    /// A budget is used up.
    exhausted: Arc<AtomicBool>,
    tails: Vec<(Stream, Tail)>,
    pumps: Vec<JoinHandle<()>>,
    /// Ends the thread that reads keys.
    over: Arc<AtomicBool>,
    raw: Option<Raw>,
    user_terminal: Option<OwnedFd>,
}

/// Why a run does not go on.
enum Stopped {
    /// The sandbox could not be made, or does not hold.
    Failed(Failure),
    /// The command could not be executed.
    NotStarted(i32, String),
}

/// Sees a started run through to its result.
pub(super) fn oversee(
    started: Started,
    policy: Policy,
    streams: Streams,
    observer: Option<Observer>,
    group: &Group,
    task: &mut Option<Task>,
    network: Network,
) -> Result<Finished, Failure> {
    let (mut running, asker) = attach(started, streams, observer, network)?;
    let policy = Arc::new(policy);
    match running.release(&policy, asker, group) {
        Ok((enforcement, supervisor)) => {
            let end = running.wait();
            let counts = supervisor.finish();
            running.conclude(&end, enforcement, counts, task)
        }
        Err(Stopped::Failed(failure)) => {
            running.end_everything(None);
            running.recorder.record("note", &failure.to_string(), &json!({}));
            running.close();
            Err(failure)
        }
        Err(Stopped::NotStarted(errno, problem)) => {
            let ended = running.end_everything(None);
            let end = End { ended, cut: None, not_started: Some((errno, problem)) };
            running.conclude(&end, Enforcement::default(), Counts::default(), task)
        }
    }
}

/// Begins the transcript and the threads that carry output.
fn attach(
    mut started: Started,
    streams: Streams,
    observer: Option<Observer>,
    network: Network,
) -> Result<(Running, Option<Box<dyn Ask>>), Failure> {
    let tally = Tally::default();
    let plan = &started.plan;
    let output_bytes = plan.limits.output_mib.map_or(u64::MAX / 4, |mib| mib << 20);
    let settings = transcript::Settings {
        folder: plan.run_folder.clone(),
        run_id: plan.run_id.clone(),
        limit_bytes: output_bytes.saturating_add(ROOM_BESIDE_OUTPUT),
        redact_values: secrets(plan).chain(network.secrets()).collect(),
    };
    let (seen, mut others) = (tally.clone(), observer);
    let observe = move |line: &Line<'_>| {
        seen.see(line);
        if let Some(observer) = &mut others {
            observer(line);
        }
    };
    let (recorder, writer) =
        transcript::start(&settings, Some(Box::new(observe))).map_err(machine("begin the transcript"))?;
    recorder.record(
        transcript::STARTED,
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
            "base": plan.checkout.as_ref().map(|checkout| &checkout.base),
        }),
    );
    for note in plan.notes.iter().chain(&started.notes) {
        recorder.record("note", note, &json!({}));
    }
    let mut running = Running {
        recorder,
        writer,
        tally,
        shim_refusals: Arc::default(),
        activity: Arc::new(AtomicU64::new(0)),
        network,
        carrier: None,
        exhausted: Arc::default(),
        tails: Vec::new(),
        pumps: Vec::new(),
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

/// Copies a file to the run's standard input. Ends with the file, or when nobody reads any more.
fn feed(from: OwnedFd, to: OwnedFd) -> io::Result<()> {
    let work = move || {
        let _ = io::copy(&mut std::fs::File::from(from), &mut std::fs::File::from(to));
    };
    std::thread::Builder::new().name("input".to_string()).spawn(work).map(drop)
}

/// Values of variables whose names the policy wants hidden: the agent's, and the caller's own.
fn secrets(plan: &super::LaunchPlan) -> impl Iterator<Item = Vec<u8>> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let patterns: Vec<Pattern> = plan.redact.iter().filter_map(|text| Pattern::new(text).ok()).collect();
    let is_secret =
        move |name: &std::ffi::OsStr| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
    // What the agent has instead of a key is no secret, and hiding it would hide that it is not the key.
    let given = plan.environment.iter().filter(|(_, value)| value != network::PLACEHOLDER).cloned();
    let own = std::env::vars_os();
    own.chain(given).filter(move |(name, _)| is_secret(name)).map(|(_, value)| value.into_vec())
}

impl Running {
    /// Starts a thread for every stream.
    fn connect(&mut self, streams: Streams) -> io::Result<Option<Box<dyn Ask>>> {
        let Streams { input, output, error, is_terminal, questions } = streams;
        let mut ends = [(Stream::Stdout, output), (Stream::Stderr, error)];
        while let Some((from, stream)) = self.started.pipes.pop() {
            let to = ends.iter_mut().find(|(known, _)| *known == stream).and_then(|(_, to)| to.take());
            self.pump(from, to, stream)?;
        }
        if let Some(to) = self.started.feeder.take() {
            feed(input.try_clone()?, to)?;
        }
        let mut ask: Option<Box<dyn Ask>> = None;
        if let Some(master) = self.started.terminal.take() {
            let to = ends.into_iter().find_map(|(_, to)| to).map_or_else(|| input.try_clone(), Ok)?;
            let _ = terminal::copy_size(input.as_fd(), master.as_fd());
            self.pump(master.try_clone()?, Some(to), Stream::Terminal)?;
            if is_terminal[0] {
                self.raw = Raw::new(input.try_clone()?).ok();
                let keys = questions.map(|questions| {
                    let (asker, keys) = asker(questions);
                    ask = Some(Box::new(asker));
                    keys
                });
                self.type_through(input.try_clone()?, master.try_clone()?, keys)?;
            }
            self.started.terminal = Some(master);
            self.user_terminal = Some(input);
        }
        Ok(ask)
    }

    fn pump(&mut self, from: OwnedFd, to: Option<OwnedFd>, stream: Stream) -> io::Result<()> {
        let tail = Tail::default();
        self.tails.push((stream, tail.clone()));
        let (recorder, activity) = (self.recorder.clone(), self.activity.clone());
        self.pumps.push(Pump { from, to, stream, recorder, tail, activity }.start()?);
        Ok(())
    }

    /// What the user types goes to the run's terminal, or answers a question.
    fn type_through(&self, from: OwnedFd, to: OwnedFd, keys: Option<Keys>) -> io::Result<()> {
        let over = self.over.clone();
        let work = move || {
            let mut buffer = [0u8; 4096];
            while !over.load(Ordering::Acquire) {
                let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
                if !matches!(poll(&mut fds, 100u16), Ok(1)) {
                    continue;
                }
                let got = match nix::unistd::read(&from, &mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(got) => &buffer[..got],
                };
                if !keys.as_ref().is_some_and(|keys| keys.take(got)) && nix::unistd::write(&to, got).is_err()
                {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("keys".to_string()).spawn(work).map(drop)
    }

    /// Sees the child through its restrictions and the canary, and lets it execute.
    fn release(
        &mut self,
        policy: &Arc<Policy>,
        asker: Option<Box<dyn Ask>>,
        group: &Group,
    ) -> Result<(Enforcement, Handle), Stopped> {
        let mut message = [0u8; 4096];
        let (got, listener) = socket::receive_with(self.started.setup.as_fd(), &mut message)
            .map_err(|error| Stopped::Failed(machine("start the agent")(error)))?;
        let listener = match (message[..got].split_first(), listener) {
            (Some((&child::message::LISTENER, _)), Some(listener)) => listener,
            (Some((_, said)), _) if said.starts_with(b"seccomp notification") => {
                return Err(Stopped::Failed(Failure::Unavailable {
                    policy: policy.name.clone(),
                    needs: vec![Need {
                        missing: format!("its own notifications ({})", String::from_utf8_lossy(said)),
                        fix: "start guard outside other sandboxes: a tree of processes has one listener"
                            .to_string(),
                    }],
                }));
            }
            (Some((_, said)), _) => return Err(broken("restrict the agent", said)),
            (None, _) => return Err(broken("restrict the agent", b"it ended before it was restricted")),
        };
        let failed = |error: io::Error| Stopped::Failed(machine("start the supervisor")(error));
        let context = self.context(policy);
        let repositories = self.repositories();
        let answering = Answering {
            policy: policy.clone(),
            context: context.clone(),
            repositories: repositories.clone(),
            recorder: self.recorder.clone(),
            refusals: self.shim_refusals.clone(),
        };
        intercept::serve(&self.started.plan.control, answering).map_err(failed)?;
        let plan = &self.started.plan.network;
        let (activity, exhausted) = (self.activity.clone(), self.exhausted.clone());
        let carrier = self.network.serve(plan, self.recorder.clone(), activity, exhausted);
        self.carrier = carrier.map_err(|error| Stopped::Failed(machine("serve the network")(error)))?;
        let supervisor = intercept::supervise(self.setting(policy, context, repositories, asker), listener)
            .map_err(failed)?;
        let mut enforcement = self.await_canary(&mut message)?;
        enforcement.memory_bound = group.bounds_memory;
        enforcement.process_bound = group.bounds_processes;
        if self.started.plan.limits.memory_mib.is_some() && !group.bounds_memory {
            self.recorder.record(
                "note",
                "the memory limit is not in force: no control group can be made",
                &json!({}),
            );
        }
        self.recorder.record("sandbox.applied", "the sandbox holds", &enforcement);
        let sent = nix::unistd::write(&self.started.setup, &[child::message::GO]);
        sent.map_err(|error| Stopped::Failed(machine("start the agent")(error.into())))?;
        // The socket closes with the exec.
        match nix::unistd::read(&self.started.setup, &mut message) {
            Ok(5) if message[0] == child::message::EXEC_FAILED => {
                let errno = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
                let counts = supervisor.finish();
                let refusal = self.recorder_flushed_denial(counts);
                let problem = refusal.unwrap_or_else(|| io::Error::from_raw_os_error(errno).to_string());
                Err(Stopped::NotStarted(errno, problem))
            }
            _ => Ok((enforcement, supervisor)),
        }
    }

    /// The refusal that kept the command from running, once the transcript has it.
    fn recorder_flushed_denial(&self, counts: Counts) -> Option<String> {
        if counts.refusals == 0 {
            return None;
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline {
            if let Some(denial) = self
                .tally
                .denials()
                .into_iter()
                .find(|denial| denial.kind == "deny.exec" && !denial.rule.is_empty())
            {
                return Some(denial.message);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    fn context(&self, policy: &Policy) -> Context {
        use std::os::unix::ffi::OsStrExt;
        let plan = &self.started.plan;
        Context {
            worktree: Some(self.worktree().as_os_str().as_bytes().to_vec()),
            git_folder: plan
                .checkout
                .as_ref()
                .map(|checkout| checkout.git_folder.as_os_str().as_bytes().to_vec()),
            home: Some(plan.home.as_os_str().as_bytes().to_vec()),
            limits: policy.command_limits(),
            ..Context::default()
        }
    }

    /// What tells the task's repository from others.
    fn repositories(&self) -> Arc<Repositories> {
        let plan = &self.started.plan;
        let git_folder = match &plan.checkout {
            Some(checkout) => checkout.git_folder.clone(),
            None => plan.folder.join(".git"),
        };
        let worktree = self.worktree().to_path_buf();
        Arc::new(Repositories::new(self.started.has_view, worktree, Some(git_folder), self.writable()))
    }

    /// The top of the task's own working tree.
    fn worktree(&self) -> &Path {
        let plan = &self.started.plan;
        plan.checkout.as_ref().map_or(&plan.folder, |checkout| &checkout.worktree)
    }

    /// Where the run may write, links resolved.
    fn writable(&self) -> Vec<PathBuf> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        self.started.plan.writable().map(real).collect()
    }

    fn setting(
        &self,
        policy: &Arc<Policy>,
        context: Context,
        repositories: Arc<Repositories>,
        asker: Option<Box<dyn Ask>>,
    ) -> Setting {
        let plan = &self.started.plan;
        Setting {
            policy: policy.clone(),
            context,
            recorder: self.recorder.clone(),
            writable: self.writable(),
            objects: plan.checkout.iter().flat_map(|checkout| checkout.readable.clone()).collect(),
            repositories,
            has_view: self.started.has_view,
            verify: plan.verify_exec,
            loopback: plan.network.loopback,
            doors: self.network.doors.clone(),
            control: plan.control.clone(),
            shim: plan.shims.as_ref().map(|(_, shim, _)| shim.clone()),
            first_process: self.started.first_process,
            canary_port: self.started.canary.local_addr().map(|address| address.port()).unwrap_or(0),
            asker,
            activity: self.activity.clone(),
        }
    }

    fn await_canary(&mut self, message: &mut [u8]) -> Result<Enforcement, Stopped> {
        let got = nix::unistd::read(&self.started.setup, message)
            .map_err(|error| Stopped::Failed(machine("hold the canary")(error.into())))?;
        let mut possible: Vec<&str> = match message[..got].split_first() {
            Some((&child::message::CANARY, still)) => {
                still.iter().map(|letter| canary_word(*letter)).collect()
            }
            Some((_, said)) => return Err(broken("hold the canary", said)),
            None => return Err(broken("hold the canary", b"it ended")),
        };
        // Seen from outside as well: what the child says is only half the proof.
        if canary_file(&self.started.plan.run_folder).exists() {
            possible.push(canary_word(b'w'));
        }
        let _ = self.started.canary.set_nonblocking(true);
        if self.started.canary.accept().is_ok() {
            possible.push(canary_word(b'c'));
        }
        if !possible.is_empty() {
            possible.dedup();
            return Err(Stopped::Failed(Failure::Canary(possible.join(", "))));
        }
        let tried = ["write outside", "connect to the machine", "start a forbidden program"];
        self.recorder.record("canary", "nothing forbidden was possible", &json!({ "tried": tried }));
        Ok(Enforcement {
            landlock_abi: crate::sandbox::landlock_version(),
            seccomp: true,
            verify_exec: self.started.plan.verify_exec,
            namespaces: self.started.has_view,
            canary: tried.map(str::to_string).to_vec(),
            ..Enforcement::default()
        })
    }

    /// Waits for the end: the agent's own, a limit's, a signal's.
    fn wait(&mut self) -> End {
        let signals =
            SignalFd::with_flags(&own_signals(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).ok();
        let mut end = End::default();
        let mut kill_at: Option<Instant> = None;
        let mut clock = Clock { seen: 0, last_active: Instant::now() };
        loop {
            match self.next_message(signals.as_ref(), TICK) {
                Event::Ended(ended) => {
                    end.ended = Some(ended);
                    break;
                }
                Event::Gone => break,
                Event::Signal(Signal::SIGWINCH) => self.follow_size(),
                // Asked twice: no more grace.
                Event::Signal(_) if kill_at.is_some() => break,
                Event::Signal(signal) => {
                    end.cut = Some(Cut::Signal(signal));
                    kill_at = Some(self.ask_to_end(signal, "signal", format!("{signal} forwarded")));
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
                Some(Cut::Transcript) => break,
                Some(cut) => {
                    kill_at =
                        Some(self.ask_to_end(Signal::SIGTERM, "timeout", format!("{} reached", cut.kind())));
                }
            }
        }
        if end.cut.is_none() && self.exhausted.load(Ordering::Acquire) {
            end.cut = Some(Cut::Budget);
        }
        end.ended = self.end_everything(end.ended);
        end
    }

    /// The limit that ends the run now, if one does.
    fn limit_reached(&self, clock: &mut Clock) -> Option<Cut> {
        let now = Instant::now();
        let activity = self.activity.load(Ordering::Relaxed);
        if activity != clock.seen {
            *clock = Clock { seen: activity, last_active: now };
        }
        let limits = &self.started.plan.limits;
        let over = |limit: Option<u64>, since: Instant| {
            limit.is_some_and(|limit| now.duration_since(since) >= Duration::from_secs(limit))
        };
        if self.recorder.failure().is_some() {
            Some(Cut::Transcript)
        } else if over(limits.total_seconds, self.started.began) {
            Some(Cut::Total)
        } else if over(limits.idle_seconds, clock.last_active) {
            Some(Cut::Idle)
        } else if self.exhausted.load(Ordering::Acquire) {
            Some(Cut::Budget)
        } else {
            None
        }
    }

    /// Sends the agent a signal; the time at which politeness ends. Recorded aside: a transcript that waits for its
    /// reader must not keep the run from being ended.
    fn ask_to_end(&self, signal: Signal, event_type: &'static str, message: String) -> Instant {
        self.send_signal(signal);
        let recorder = self.recorder.clone();
        let work = move || recorder.record(event_type, &message, &json!({ "signal": signal.as_str() }));
        let _ = std::thread::Builder::new().name("note".to_string()).spawn(work);
        Instant::now() + GRACE
    }

    /// Kills whatever is left of the run and sees it dead. How the agent ended, if that was not known yet.
    fn end_everything(&mut self, known: Option<Ended>) -> Option<Ended> {
        let mut ended = known;
        let _ = nix::unistd::write(&self.started.control, &[init::message::KILL]);
        loop {
            match self.next_message(None, Duration::from_secs(60)) {
                Event::Ended(now) => ended = ended.or(Some(now)),
                Event::Gone => break,
                Event::Signal(_) | Event::Nothing => {}
            }
        }
        // It has said its last word or is dead already; waiting for it is shorter than looking again and again.
        if let Ok(first) = process::thread_fd(self.started.first_process) {
            let mut fds = [PollFd::new(first.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, 1000u16);
        }
        // If the first process was killed from outside, what it had started is ours now.
        let own = std::process::id() as i32;
        for _ in 0..1000 {
            match process::reap(false) {
                Ok(Some(_)) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                _ => {
                    descendants::kill_all(own);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        ended
    }

    fn next_message(&self, signals: Option<&SignalFd>, patience: Duration) -> Event {
        let mut fds = vec![PollFd::new(self.started.control.as_fd(), PollFlags::POLLIN)];
        fds.extend(signals.map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)));
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
        if !matches!(poll(&mut fds, patience), Ok(ready) if ready > 0) {
            return Event::Nothing;
        }
        if let Some(signals) = signals
            && fds[1].any() == Some(true)
            && let Ok(Some(info)) = signals.read_signal()
            && let Ok(signal) = Signal::try_from(info.ssi_signo as i32)
        {
            return Event::Signal(signal);
        }
        if fds[0].any() != Some(true) {
            return Event::Nothing;
        }
        let mut message = [0u8; 16];
        match nix::unistd::read(&self.started.control, &mut message) {
            Ok(5) if message[0] == init::message::ENDED => {
                let status = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
                Event::Ended(Ended::from_status(status))
            }
            Ok(0) | Err(_) => Event::Gone,
            Ok(1) if message[0] == init::message::EMPTY => Event::Gone,
            Ok(_) => Event::Nothing,
        }
    }

    fn send_signal(&self, signal: Signal) {
        let order = [&[init::message::SIGNAL][..], &(signal as i32).to_le_bytes()].concat();
        let _ = nix::unistd::write(&self.started.control, &order);
    }

    fn follow_size(&self) {
        if let (Some(from), Some(to)) = (&self.user_terminal, &self.started.terminal) {
            let _ = terminal::copy_size(from.as_fd(), to.as_fd());
        }
    }

    /// Ends the threads that carry output.
    fn close(&mut self) {
        self.over.store(true, Ordering::Release);
        // Our own end of the run's terminal must go, or its reader waits for ever.
        self.started.terminal = None;
        for pump in self.pumps.drain(..) {
            let _ = pump.join();
        }
        self.raw = None;
    }

    /// The result, recorded and handed out.
    fn conclude(
        mut self,
        end: &End,
        enforcement: Enforcement,
        counts: Counts,
        task: &mut Option<Task>,
    ) -> Result<Finished, Failure> {
        self.close();
        let traffic = self.carrier.take().map(egress::Handle::finish).unwrap_or_default();
        let counts = Counts { refusals: counts.refusals + traffic.refusals, ..counts };
        let plan = &self.started.plan;
        let took = self.started.began.elapsed();
        let ending = task.take().map(|task| task.end(&self.recorder, self.started.began_at));
        let ending = ending.unwrap_or_default();
        let (files, complete) = ending
            .files
            .unwrap_or_else(|| changes(self.worktree(), self.started.began_at, plan.checkout.is_some()));
        if let Err(error) = plan.belongings.take(&plan.home) {
            self.recorder.record(
                "note",
                &format!("what the home should keep was not kept: {error}"),
                &json!({}),
            );
        }
        let (text, cut) = self.printed();
        let mut result = RunResult {
            success: end.cut.is_none() && end.not_started.is_none() && end.ended == Some(Ended::Code(0)),
            tool: plan
                .program
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            session_id: plan.run_id.clone(),
            result: text,
            result_truncated: cut,
            duration: duration(took),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            run_id: plan.run_id.clone(),
            policy: plan.policy.clone(),
            enforcement,
            exit_code: end.ended.filter(|_| end.not_started.is_none()).map(Ended::shell_code),
            commits: ending.commits,
            worktree: ending.worktree,
            findings: ending.findings,
            files_changed: files,
            files_changed_truncated: !complete,
            usage: Usage { model: model_usage(&traffic.spent), ..usage(self.with_shims(counts)) },
            network: traffic.rows.into_iter().map(host_traffic).collect(),
            transcript: TranscriptPlace {
                path: plan.run_folder.join(transcript::FILE).to_string_lossy().into_owned(),
                head: None,
            },
            ..RunResult::default()
        };
        self.explain(end, &mut result);
        if let Some((kind, words)) = ending.failure {
            fail(&mut result, kind, words);
        }
        self.settle_denials(counts, &mut result);
        let message = match &result.error {
            None => "ended by itself".to_string(),
            Some(error) => error.clone(),
        };
        self.recorder.record(transcript::FINISHED, &message, &result);
        // Nobody needs the run's own folders any more, and the disk is waited for anyway.
        let (plan, writer) = (&self.started.plan, self.writer);
        let finished = std::thread::scope(|scope| {
            scope.spawn(|| prepare::clean(plan));
            writer.finish()
        });
        match finished {
            Ok(head) => result.transcript.head = Some(head.hash),
            Err(error) => {
                result.success = false;
                result.error = Some(format!("the transcript cannot be written: {error}"));
                result.error_kind = Some("internal".to_string());
            }
        }
        Ok(Finished { result, ended: end.ended })
    }

    /// The counts of the supervisor, and what was refused to shims.
    fn with_shims(&self, counts: Counts) -> Counts {
        Counts { refusals: counts.refusals + self.shim_refusals.load(Ordering::Acquire), ..counts }
    }

    /// Refusals are seen by the writer's thread, which may be a moment behind.
    fn settle_denials(&self, counts: Counts, result: &mut RunResult) {
        let deadline = Instant::now() + Duration::from_millis(500);
        loop {
            result.denials = self.tally.denials();
            let seen: u64 = result.denials.iter().map(|denial| denial.count).sum();
            if seen >= self.with_shims(counts).refusals
                || Instant::now() > deadline
                || self.recorder.failure().is_some()
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What the agent said, for the result.
    fn printed(&self) -> (String, bool) {
        let wanted = [Stream::Stdout, Stream::Terminal];
        let tail = self.tails.iter().find(|(stream, _)| wanted.contains(stream));
        tail.map(|(_, tail)| tail.text()).unwrap_or_default()
    }

    fn explain(&self, end: &End, result: &mut RunResult) {
        let plan = &self.started.plan;
        let (kind, error) = match (end, end.ended) {
            (End { not_started: Some((libc::ENOENT, problem)), .. }, _) => {
                ("command_not_found", format!("cannot start {}: {problem}", plan.program.display()))
            }
            (End { not_started: Some((_, problem)), .. }, _) => {
                let kind = if problem.starts_with("guard:") { "policy_denied" } else { "upstream_error" };
                (kind, format!("cannot start {}: {problem}", plan.program.display()))
            }
            (End { cut: Some(cut), .. }, _) => (cut.kind(), cut.words(plan, self.recorder.failure())),
            (_, Some(Ended::Code(0))) => return,
            (_, Some(Ended::Code(code))) => {
                ("upstream_error", format!("{} ended with code {code}", result.tool))
            }
            (_, Some(Ended::Signal(signal))) => {
                ("upstream_error", format!("{} was ended by signal {signal}", result.tool))
            }
            (_, None) => ("internal", "the run was ended from outside".to_string()),
        };
        let printed: Vec<String> = self.tails.iter().map(|(_, tail)| tail.text().0).collect();
        let mut last_lines: Vec<String> =
            printed.iter().rev().flat_map(|text| text.lines()).map(str::to_string).collect();
        if last_lines.len() > 20 {
            last_lines = last_lines.split_off(last_lines.len() - 20);
        }
        result.error_detail = Some(ErrorDetail {
            message: error.clone(),
            exit_code: result.exit_code,
            last_lines,
            idle_timeout_s: plan.limits.idle_seconds,
            max_duration_s: plan.limits.total_seconds,
            retries: 0,
        });
        result.error = Some(error);
        result.error_kind = Some(kind.to_string());
    }
}

/// Makes a result a failure of guard's own side; what the command itself said stays in the details.
fn fail(result: &mut RunResult, kind: &str, words: String) {
    result.success = false;
    let detail = result.error_detail.get_or_insert_with(ErrorDetail::default);
    if let Some(error) = result.error.take() {
        detail.last_lines.push(error);
    }
    detail.message.clone_from(&words);
    detail.exit_code = result.exit_code;
    result.error = Some(words);
    result.error_kind = Some(kind.to_string());
}

/// When the agent last did something.
struct Clock {
    seen: u64,
    last_active: Instant,
}

/// What the main thread waits for.
enum Event {
    Ended(Ended),
    /// Nothing of the run is left, or its first process is gone.
    Gone,
    Signal(Signal),
    Nothing,
}

impl Cut {
    fn kind(self) -> &'static str {
        match self {
            Self::Idle => "idle_timeout",
            Self::Total => "timeout",
            Self::Signal(_) => "cancelled",
            Self::Transcript => "internal",
            Self::Budget => "budget_exhausted",
        }
    }

    fn words(self, plan: &super::LaunchPlan, failure: Option<String>) -> String {
        match self {
            Self::Idle => {
                format!(
                    "no output and no new program for {} seconds",
                    plan.limits.idle_seconds.unwrap_or_default()
                )
            }
            Self::Total => {
                format!("not done after {} seconds", plan.limits.total_seconds.unwrap_or_default())
            }
            Self::Signal(signal) => format!("cancelled by {signal}"),
            Self::Budget => "the budget for the model is used up".to_string(),
            Self::Transcript => format!("the transcript cannot be written: {}", failure.unwrap_or_default()),
        }
    }
}

fn broken(step: &'static str, said: &[u8]) -> Stopped {
    Stopped::Failed(Failure::Machine { step, problem: String::from_utf8_lossy(said).into_owned() })
}

fn canary_word(letter: u8) -> &'static str {
    match letter {
        b'w' => "write outside",
        b'c' => "connect to the machine",
        _ => "start a program unseen",
    }
}

/// What of models was used, if anything was.
fn model_usage(spent: &egress::Spent) -> Option<ModelUsage> {
    (*spent != egress::Spent::default()).then(|| ModelUsage {
        requests: spent.requests,
        refused: spent.refused,
        input_tokens: spent.tokens.input,
        output_tokens: spent.tokens.output,
        cached_tokens: spent.tokens.cached,
        estimated: spent.estimated,
        cost: spent.cost_micros as f64 / 1e6,
    })
}

fn host_traffic(row: egress::Row) -> HostTraffic {
    let egress::Row { host, port, connections, requests, refused, bytes_up, bytes_down } = row;
    HostTraffic { host, port, connections, requests, refused, bytes_up, bytes_down }
}

/// What everything that has ended used. The first process has waited for its children, and we for it.
fn usage(counts: Counts) -> Usage {
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN);
    let milliseconds =
        |time: nix::sys::time::TimeVal| (time.tv_sec() * 1000 + time.tv_usec() / 1000).max(0) as u64;
    let (cpu_ms, max_rss_kib) = used.map_or((0, 0), |used| {
        (milliseconds(used.user_time()) + milliseconds(used.system_time()), used.max_rss().max(0) as u64)
    });
    Usage { programs: counts.starts, refusals: counts.refusals, cpu_ms, max_rss_kib, model: None }
}
