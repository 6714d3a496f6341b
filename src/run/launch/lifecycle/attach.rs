//! Begins the transcript of a run whose init process exists, and connects the run's standard streams.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::Signal;
use serde_json::json;

use super::interrupt_keys::InterruptKeys;
use super::network::Network;
use super::output_pump::{Pump, Tail};
use super::running::{LazyThread, Running};
use super::terminal::{Keys, Raw, Screen, asker};
use super::user_notes::UserNotes;
use super::{Failure, Started, step_failed};
use crate::judge::policy::Pattern;
use crate::run::launch::plan::network::PLACEHOLDER;
use crate::run::launch::process::stdin_feeder::StdinFeeder;
use crate::run::launch::streams::Streams;
use crate::run::outcome::DenialCounter;
use crate::run::supervisor::Ask;
use crate::run::transcript;
use crate::run::transcript::{EventType, Line, Observer, Sink, Stream};
use crate::sys::process_stderr::file_id;
use crate::sys::terminal;

/// The minimum and maximum, in bytes, of the space that guard adds to the output limit for other events. Between these
/// bounds, guard adds as much as the output limit. When the transcript reaches the sum, guard drops further output, and
/// at twice the sum it ends the run.
const EVENT_BYTES: std::ops::RangeInclusive<u64> = (8 << 20)..=(64 << 20);
/// Bytes that the transcript may use beyond the size at which guard ends the run, for events that are then still in
/// memory. The recorder and the writer together never have more in memory.
const RESERVE_BYTES: u64 = 64 << 20;

/// Begins the transcript and connects the standard streams. If the run has a terminal on which guard may ask the user
/// for approval, also returns the object that asks there.
pub(super) fn attach(
    mut started: Started,
    file: Box<dyn Sink>,
    streams: Streams,
    observer: Option<Observer>,
    network: Network,
) -> Result<(Running, Option<Box<dyn Ask>>), Failure> {
    let tally = DenialCounter::default();
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
        recorder.write_output_immediately();
    }
    recorder.record(
        EventType::RunStarted,
        &format!("policy {}", plan.policy),
        &json!({
            "command": plan.argv.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>(),
            "policy": plan.policy,
            "policy_extends": plan.policy_extends,
            "policy_file": plan.policy_file,
            "directory": plan.folder.to_string_lossy(),
            // The former name of the field, for programs that read it.
            "folder": plan.folder.to_string_lossy(),
            "pid": std::process::id(),
            "program": plan.program.to_string_lossy(),
            "namespaces": started.has_mount_namespace,
            "tmp": plan.tmp.to_string_lossy(),
            "branch": plan.checkout.as_ref().map(|checkout| &checkout.branch),
            "worktree": plan.checkout.as_ref().map(|checkout| checkout.worktree.to_string_lossy()),
            "base": plan.checkout.as_ref().map(|checkout| &checkout.base),
            "repository": plan.checkout.as_ref().map(|checkout| {
                crate::git::main_directory(&checkout.common_dir).to_string_lossy()
            }),
            "leaves_changes_behind": plan.checkout.as_ref().map(|checkout| checkout.leaves_changes_behind),
        }),
    );
    let of_snapshot = started.snapshot.report.iter().flat_map(|report| &report.notes);
    for note in plan.notes.iter().chain(&started.notes).chain(of_snapshot) {
        recorder.record(EventType::Note, note, &json!({}));
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let everything_dead =
        EventFd::from_flags(flags).map_err(|error| step_failed("create an eventfd")(error.into()))?;
    let (pump_done, pumps_done) = channel();
    let mut running = Running {
        recorder,
        writer,
        tally,
        activity: Arc::new(AtomicU64::new(0)),
        asking: Arc::default(),
        network,
        proxy: None,
        exhausted: Arc::default(),
        tails: Vec::new(),
        everything_dead: Arc::new(everything_dead),
        pump_done: Some(pump_done),
        pumps_done,
        reader: None,
        feeder: None,
        lazy_threads: Vec::new(),
        links: None,
        used: None,
        all_dead: false,
        over: Arc::new(AtomicBool::new(false)),
        raw: None,
        user_terminal: None,
        screen: Screen::default(),
        notes: UserNotes::new(None, Screen::default()),
        started: {
            started.pipes.reverse();
            started
        },
    };
    let asker = running.connect(streams).map_err(step_failed("connect the agent's standard streams"))?;
    Ok((running, asker))
}

/// Returns a closure that computes the transcript's settings. The transcript's thread calls it, so that the launch
/// need not wait for the result.
fn transcript_settings(
    plan: &crate::run::launch::LaunchPlan,
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
            .saturating_add(output_bytes.clamp(*EVENT_BYTES.start(), *EVENT_BYTES.end())),
        reserve_bytes: RESERVE_BYTES,
        redact_values: secrets(&names, given).chain(others).collect(),
    }
}

/// Returns the values of variables whose names match the policy's `redact` patterns, from the agent's environment and
/// the caller's.
fn secrets(names: &[String], given: Vec<(OsString, OsString)>) -> impl Iterator<Item = Vec<u8>> {
    let patterns: Vec<Pattern> = names.iter().filter_map(|text| Pattern::new(text).ok()).collect();
    let is_secret = move |name: &OsStr| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
    // The placeholder that the agent gets instead of a key is not a secret. If the transcript redacted it, a reader
    // would think that the agent had the key.
    let given = given.into_iter().filter(|(_, value)| value != PLACEHOLDER);
    let own = std::env::vars_os();
    own.chain(given).filter(move |(name, _)| is_secret(name)).map(|(_, value)| value.into_vec())
}

impl Running {
    /// Connects the run's standard streams to the caller's. The thread of an output pipe starts only with the first
    /// output. If the run has a terminal on which guard may ask, returns the object that asks the user about execs.
    fn connect(&mut self, streams: Streams) -> io::Result<Option<Box<dyn Ask>>> {
        let Streams { input, output, error, is_terminal, is_sealed: _, questions, notes, reader } = streams;
        self.reader = reader.map(|reader| Arc::new(Mutex::new(reader)));
        let mut ends = [(Stream::Stdout, output), (Stream::Stderr, error)];
        let screen = self.screen.clone();
        self.notes = UserNotes::new(notes, screen.clone());
        while let Some((from, stream)) = self.started.pipes.pop() {
            // guard takes the error messages of an agent that it knows from this pipe. Notices for the agent's programs
            // must not get between them.
            if let (Stream::Stderr, Some(_), Some(file)) = (stream, &self.reader, file_id(from.as_fd())) {
                self.network.peer_registry.notices().set_agent_stderr(file);
            }
            let to = ends.iter_mut().find(|(known, _)| *known == stream).and_then(|(_, to)| to.take());
            let pump = self.pump(from, to, stream, &screen);
            self.lazy_threads.push(LazyThread::Output(pump));
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
                    let (asker, typed) = asker(questions, master.try_clone()?, screen, self.asking.clone());
                    ask = Some(Box::new(asker));
                    keys = Some(typed);
                }
                self.forward_keys(input.try_clone()?, master.try_clone()?, keys)?;
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

    /// Starts the thread that forwards the user's keys to the run's terminal. While guard asks the user a question, the
    /// thread forwards the keys to that question instead. After a press of Ctrl-C it says what the next one does, and if
    /// the user wants to end the whole run, it sends guard a SIGINT.
    fn forward_keys(&self, from: OwnedFd, to: OwnedFd, keys: Option<Keys>) -> io::Result<()> {
        let over = self.over.clone();
        let notes = self.notes.try_clone()?;
        let work = move || {
            let mut buffer = [0u8; 4096];
            let mut interrupts = InterruptKeys::default();
            while !over.load(Ordering::Acquire) {
                if interrupts.due_note(to.as_fd()).is_some_and(|note| notes.print(note)) {
                    interrupts.has_printed_note();
                    let _ = terminal::ask_to_redraw(to.as_fd());
                }
                let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
                if !matches!(poll(&mut fds, 100u16), Ok(1)) {
                    continue;
                }
                let got = match nix::unistd::read(&from, &mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(got) => &buffer[..got],
                };
                if keys.as_ref().is_some_and(|keys| keys.send_to_question(got)) {
                    continue;
                }
                if nix::unistd::write(&to, got).is_err() {
                    return;
                }
                if interrupts.are_to_end_run(got, to.as_fd()) {
                    // Act as if the terminal had sent the signal: the main thread then ends the run.
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGINT);
                }
            }
        };
        std::thread::Builder::new().name("keys".to_string()).spawn(work).map(drop)
    }
}
