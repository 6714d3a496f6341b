//! The writer's end: one thread that redacts, chains, shows and writes what the recorders left in the buffer.
//!
//! Lines reach the file within about ten milliseconds, many to a `write`; a process killed at any moment leaves a file
//! that can be read up to its last complete line. Twice it is made durable: when it begins, while nobody waits for that,
//! and by [`Writer::finish`], which then has little left to wait for.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::chain::{self, Chain};
use super::event::{Stream, now};
use super::event_type::EventType;
use super::output::Output;
use super::recorder::{Batch, Entry, Kind, Recorder, Shared, Waited};
use super::redact::Redactor;
use super::size_limit::{Admission, Bound, Class};
use super::store::{FILE, lock};

/// How long events may wait for company.
const TICK: Duration = Duration::from_millis(5);
/// After so many ticks (a second) without an event the thread sleeps until it is woken; waking it costs the caller more
/// than recording does, so a working agent should not have to.
const QUIET_TICKS: u32 = 200;
/// Output that may be the beginning of a secret is held back this long (microseconds).
const HELD: i64 = 50_000;
/// Written when so much is ready.
const READY: usize = 256 << 10;
/// Longer messages are cut.
const LONGEST_MESSAGE: usize = 64 << 10;
/// Longer data is replaced by its beginning.
const LONGEST_DATA: usize = 4 << 20;
const KEPT_OF_DATA: usize = 16 << 10;
/// Data that nests deeper could not be read back.
const DEEPEST: usize = 100;
/// Buffers that grew beyond this are given back.
const KEPT_BUFFER: usize = 1 << 20;

/// What a transcript is made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run's own directory; it exists, and only the user can enter it.
    pub folder: PathBuf,
    /// The run.
    pub run_id: String,
    /// From this size on output is left out; at twice this size the transcript is full ([`Recorder::full_at`]), and the run
    /// is to be ended.
    pub limit_bytes: u64,
    /// Room beyond that for events that were under way, and as much again for refusals, findings and what happens in git.
    pub reserve_bytes: u64,
    /// Values to hide wherever they appear; those shorter than six bytes are not hidden.
    pub redact_values: Vec<Vec<u8>>,
}

/// A finished line, as an observer sees it.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The event's type.
    pub event_type: EventType,
    /// The event's message.
    pub message: &'a str,
    /// The event's data, as JSON.
    pub data: &'a str,
    /// The whole line without its newline.
    pub json: &'a [u8],
}

/// Sees every line in order, redacted, in the writer's thread. Being slow here slows the agent down.
pub type Observer = Box<dyn FnMut(&Line<'_>) + Send>;

/// The end of a finished transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The number of the last line.
    pub seq: u64,
    /// The hash of the last line.
    pub hash: String,
    /// The size of the file.
    pub bytes: u64,
}

/// Where lines go.
pub trait Sink: Write + Send {
    /// Makes everything written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file of a run, and the directory whose entry must be durable too, until it is.
struct RunFile {
    file: File,
    folder: Option<PathBuf>,
}

impl Write for RunFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for RunFile {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(folder) = &self.folder {
            File::open(folder)?.sync_all()?;
            self.folder = None;
        }
        Ok(())
    }
}

/// Begins the transcript of a run: a new file, which must not exist.
pub fn start(settings: &Settings, observer: Option<Observer>) -> io::Result<(Recorder, Writer)> {
    start_on(create(&settings.folder)?, settings, observer)
}

/// The file of a run's transcript, which must not exist yet, with nobody writing.
pub fn create(folder: &Path) -> io::Result<Box<dyn Sink>> {
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(folder.join(FILE))?;
    lock(&file)?;
    Ok(Box::new(RunFile { file, folder: Some(folder.to_path_buf()) }))
}

/// The same, with another place for the lines.
pub fn start_on(
    sink: Box<dyn Sink>,
    settings: &Settings,
    observer: Option<Observer>,
) -> io::Result<(Recorder, Writer)> {
    let settings = settings.clone();
    let (recorder, mut writer) = prepare(sink, Box::new(move || settings), observer);
    writer.begin()?;
    Ok((recorder, writer))
}

/// The same, with nobody writing before [`Writer::begin`], and settings that are made by whoever writes then: who begins a
/// run has other things to do first.
pub fn prepare(
    sink: Box<dyn Sink>,
    settings: Box<dyn FnOnce() -> Settings + Send>,
    observer: Option<Observer>,
) -> (Recorder, Writer) {
    let shared = Arc::new(Shared::default());
    let theirs = shared.clone();
    let work = move || {
        let _end = EndsWithThread(theirs.clone());
        // Nothing that would be in the way of others who begin.
        theirs.pause(TICK);
        let settings = settings();
        let pen = TranscriptWriter {
            shared: theirs,
            sink,
            observer,
            chain: Chain::new(&settings.run_id),
            redactor: Redactor::new(&settings.redact_values),
            outputs: Stream::ALL.map(Output::new),
            bound: Bound::new(settings.limit_bytes, settings.reserve_bytes),
            ready: Vec::new(),
            message: Vec::new(),
            data: Vec::new(),
            finished: false,
        };
        pen.run()
    };
    (Recorder { shared: shared.clone() }, Writer { shared, work: Some(Box::new(work)), thread: None })
}

/// The transcript being written. Dropping it writes what there is without making it durable.
pub struct Writer {
    shared: Arc<Shared>,
    /// What the thread will do.
    work: Option<Box<dyn FnOnce() -> io::Result<Head> + Send>>,
    thread: Option<JoinHandle<io::Result<Head>>>,
}

impl Writer {
    /// Begins to write.
    pub fn begin(&mut self) -> io::Result<()> {
        if let Some(work) = self.work.take() {
            self.thread = Some(std::thread::Builder::new().name("transcript".to_string()).spawn(work)?);
        }
        Ok(())
    }

    /// Writes what there is without waiting for company.
    pub fn hasten(&self) {
        self.shared.hasten();
    }

    /// Waits until everything that was recorded is written and was seen by the observer.
    pub fn catch_up(&self) {
        if self.thread.is_some() {
            self.shared.catch_up();
        }
    }

    /// Begins to do what [`finish`](Self::finish) waits for.
    pub fn close(&self) {
        self.shared.close(true);
    }

    /// Writes everything recorded so far and makes it durable. Recorders record nothing from here on.
    pub fn finish(mut self) -> io::Result<Head> {
        self.join(true)
    }

    fn join(&mut self, durable: bool) -> io::Result<Head> {
        self.begin()?;
        let Some(thread) = self.thread.take() else { return Err(gone()) };
        self.shared.close(durable);
        thread.join().unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.join(false);
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that writes the transcript is gone")
}

/// A panic in the thread (an observer's, say) must not leave callers waiting for room.
struct EndsWithThread(Arc<Shared>);

impl Drop for EndsWithThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(gone().to_string());
        }
        self.0.end();
    }
}

/// The thread's own state.
struct TranscriptWriter {
    shared: Arc<Shared>,
    sink: Box<dyn Sink>,
    observer: Option<Observer>,
    chain: Chain,
    redactor: Redactor,
    outputs: [Output; 3],
    bound: Bound,
    /// Lines not yet written.
    ready: Vec<u8>,
    message: Vec<u8>,
    data: Vec<u8>,
    /// The last event was seen; what comes now comes too late.
    finished: bool,
}

impl TranscriptWriter {
    fn run(mut self) -> io::Result<Head> {
        let mut batch = Batch::default();
        let mut quiet = 0;
        let mut has_begun = false;
        loop {
            if quiet >= QUIET_TICKS && !self.outputs.iter().any(Output::waits) {
                self.shared.sleep();
            }
            let waited = self.shared.linger(TICK, &mut batch);
            quiet = if waited == Waited::Work { 0 } else { quiet + 1 };
            self.take(&mut batch);
            self.show_held();
            self.flush();
            if waited == Waited::Closing {
                return self.close();
            }
            // While the first program begins: that leaves less to be waited for in the end.
            if !std::mem::replace(&mut has_begun, true)
                && let Err(error) = self.sink.sync()
            {
                self.shared.fail_for(&error);
            }
        }
    }

    fn take(&mut self, batch: &mut Batch) {
        for entry in &batch.entries {
            match entry.kind {
                Kind::Event(event_type) => self.event(event_type, entry, &batch.bytes),
                Kind::Output(stream) => {
                    self.output(stream, entry.time, &batch.bytes[entry.start..entry.end], false)
                }
            }
            if self.ready.len() >= READY {
                self.flush();
            }
        }
        batch.entries.clear();
        batch.bytes.clear();
        batch.bytes.shrink_to(KEPT_BUFFER);
    }

    fn event(&mut self, event_type: EventType, entry: &Entry, bytes: &[u8]) {
        if event_type == EventType::RunFinished {
            self.last_words(entry.time);
        }
        let (message, data) = (&bytes[entry.start..entry.split], &bytes[entry.split..entry.end]);
        self.clean(message, data);
        self.write(Class::of(event_type), event_type, entry.time);
        self.finished |= event_type == EventType::RunFinished;
    }

    /// Redacts into `self.message` and `self.data`, and cuts what is too long. Cut last: half a secret is no match.
    fn clean(&mut self, message: &[u8], data: &[u8]) {
        self.message.clear();
        if !self.redactor.text(message, &mut self.message) {
            self.message.extend_from_slice(message);
        }
        if self.message.len() > LONGEST_MESSAGE {
            self.message.truncate(LONGEST_MESSAGE);
            self.message.extend_from_slice("…".as_bytes());
        }
        self.data.clear();
        if !self.redactor.json(data, DEEPEST, &mut self.data) {
            self.data.clear();
            self.data.extend_from_slice(b"{\"data_lost\":\"nested too deep\"}");
        }
        if self.data.len() > LONGEST_DATA {
            let beginning = String::from_utf8_lossy(&self.data[..KEPT_OF_DATA]);
            let kept = json!({ "data_bytes": self.data.len(), "data_beginning": beginning }).to_string();
            self.data = kept.into_bytes();
        }
    }

    fn output(&mut self, stream: Stream, time: i64, piece: &[u8], last: bool) {
        if self.bound.output_is_cut() {
            if !piece.is_empty() {
                self.bound.admit(Class::Output, piece.len(), piece.len());
            }
            return;
        }
        let output = &mut self.outputs[stream as usize];
        output.since = time;
        let event = output.push(&self.redactor, piece, last, &mut self.data);
        if event {
            self.message.clear();
            self.write(Class::Output, EventType::Output, time);
        }
    }

    /// Shows what was held back as the possible beginning of a secret, when nothing followed.
    fn show_held(&mut self) {
        for stream in Stream::ALL {
            let output = &mut self.outputs[stream as usize];
            if !output.waits() || self.bound.output_is_cut() {
                continue;
            }
            let time = now();
            if time - output.since >= HELD && output.show(&mut self.data) {
                self.message.clear();
                self.write(Class::Output, EventType::Output, time);
            }
        }
    }

    /// Before the last event: what is still held, and the count of what was left out.
    fn last_words(&mut self, time: i64) {
        if self.finished {
            return;
        }
        for stream in Stream::ALL {
            self.output(stream, time, b"", true);
        }
        let uncounted = &self.shared.uncounted;
        self.bound.dropped.output_events += uncounted.events.swap(0, Ordering::Relaxed);
        self.bound.dropped.output_bytes += uncounted.bytes.swap(0, Ordering::Relaxed);
        let dropped = self.bound.dropped;
        if dropped != Default::default() {
            let message = format!(
                "left out: {} bytes of output, {} other events",
                dropped.output_bytes, dropped.events
            );
            self.own(EventType::TranscriptDropped, &message, time, &json!(dropped));
        }
    }

    /// An event of the transcript itself.
    fn own(&mut self, event_type: EventType, message: &str, time: i64, data: &serde_json::Value) {
        self.message = message.as_bytes().to_vec();
        self.data = data.to_string().into_bytes();
        self.write(Class::Always, event_type, time);
    }

    /// Puts `self.message` and `self.data` into the chain, if the bound allows it.
    fn write(&mut self, class: Class, event_type: EventType, time: i64) {
        if self.finished {
            return;
        }
        let message = String::from_utf8_lossy(&self.message);
        let length = self.chain.length_of(event_type.as_str(), &message, &self.data);
        if self.bound.becomes_full(class, length) {
            self.full(time);
        }
        let message = String::from_utf8_lossy(&self.message);
        match self.bound.admit(class, length, self.message.len() + self.data.len()) {
            Admission::Drop => return,
            Admission::Cut => return self.cut(class, time),
            Admission::Write => {}
        }
        let line = self.chain.append(event_type.as_str(), &message, time, &self.data, &mut self.ready);
        self.bound.written += line.len() as u64 + 1;
        if let Some(observer) = &mut self.observer {
            let data = String::from_utf8_lossy(&self.data);
            observer(&Line { event_type, message: &message, data: &data, json: &self.ready[line] });
        }
    }

    /// Says that the run is to be ended, before the event that has come.
    fn full(&mut self, time: i64) {
        let limit = self.bound.full_at();
        self.shared.full_at.store(limit, Ordering::Release);
        let (message, data) = (std::mem::take(&mut self.message), std::mem::take(&mut self.data));
        let words = format!("the transcript reached {limit} bytes; the run is ended");
        self.own(EventType::TranscriptFull, &words, time, &json!({ "limit_bytes": limit }));
        (self.message, self.data) = (message, data);
    }

    fn cut(&mut self, class: Class, time: i64) {
        let limit = self.bound.limit_of(class);
        let what = match class {
            Class::Output => "output",
            Class::Important => "refusals, findings and git events",
            Class::Event | Class::Always => "events",
        };
        if class == Class::Output {
            self.shared.output_cut.store(true, Ordering::Relaxed);
        }
        let message = format!("the transcript reached {limit} bytes; from here on it has no more {what}");
        self.own(EventType::TranscriptCut, &message, time, &json!({ "dropped": what, "limit_bytes": limit }));
    }

    fn flush(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        if self.shared.failure().is_none()
            && let Err(error) = self.sink.write_all(&self.ready)
        {
            self.shared.fail_for(&error);
        }
        self.ready.clear();
        self.ready.shrink_to(KEPT_BUFFER);
    }

    fn close(mut self) -> io::Result<Head> {
        self.last_words(now());
        self.flush();
        if let Some(why) = self.shared.failure() {
            return Err(io::Error::other(why));
        }
        if self.shared.closes_durably() {
            self.sink.sync()?;
        }
        Ok(Head { seq: self.chain.seq, hash: chain::text(&self.chain.last), bytes: self.bound.written })
    }
}
