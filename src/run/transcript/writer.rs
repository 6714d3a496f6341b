//! The consumer side of a transcript: one thread redacts, chains and writes the events that the recorders
//! buffered, and passes each finished line to the [`Observer`], a callback.
//!
//! Lines reach the file within about ten milliseconds, many in one `write`. If the process is killed at any
//! moment, the file is readable up to its last complete line. The file is synced twice: at the beginning,
//! while no other thread waits for it, and in [`Writer::finish`], which then has little left to sync.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::chain;
use super::chain::Chain;
use super::event::{Stream, now};
use super::event_type::EventType;
use super::output::Output;
use super::recorder::{Batch, Entry, Kind, Recorder, Shared, Waited};
use super::redact::Redactor;
use super::size_limit::{Admission, Class, SizeLimit};
use super::store::{FILE, lock};

/// How long the writer waits for more events before it writes a batch.
const TICK: Duration = Duration::from_millis(5);
/// After this many ticks (one second) without an event, the writer sleeps until a caller wakes it. Waking it costs
/// the caller more than recording an event, so the writer stays awake while the agent is busy.
const QUIET_TICKS: u32 = 200;
/// How long output that may be the beginning of a secret is held back, in microseconds.
const HELD: i64 = 50_000;
/// The writer writes finished lines to the file as soon as they have this many bytes together.
const READY: usize = 256 << 10;
/// Maximum length of a message, in bytes. Longer messages are truncated.
const LONGEST_MESSAGE: usize = 64 << 10;
/// Maximum size of an event's data, in bytes. Only the first part of larger data is kept.
const LONGEST_DATA: usize = 4 << 20;
const KEPT_OF_DATA: usize = 16 << 10;
/// Maximum nesting depth of an event's data: readers could not parse deeper JSON.
const DEEPEST: usize = 100;
/// The size to which larger buffers are shrunk after use, in bytes.
const KEPT_BUFFER: usize = 1 << 20;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The run's directory. It must exist, and only the user may have access to it.
    pub folder: PathBuf,
    pub run_id: String,
    /// The transcript size from which on output is dropped, in bytes. At twice this size the transcript is full
    /// ([`Recorder::full_at`]), and the caller must end the run.
    pub limit_bytes: u64,
    /// Additional room, in bytes, for events that are in progress when the transcript is full, and the same amount
    /// again for denials, findings and git events.
    pub reserve_bytes: u64,
    /// Values to redact wherever they appear. Values shorter than six bytes are not redacted.
    pub redact_values: Vec<Vec<u8>>,
}

/// A finished line of the transcript, as the observer receives it.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub event_type: EventType,
    /// The message of the event, redacted.
    pub message: &'a str,
    /// The data of the event as JSON, redacted.
    pub data: &'a str,
    /// The whole line without its newline.
    pub json: &'a [u8],
}

/// Receives every redacted line in order, in the writer's thread. A slow observer slows the agent down.
pub type Observer = Box<dyn FnMut(&Line<'_>) + Send>;

/// The last line of a transcript, whose hash protects all lines before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    /// The hash of the last line, in hexadecimal.
    pub hash: String,
    /// The size of the transcript, in bytes.
    pub bytes: u64,
}

/// The destination to which the writer writes the lines of a transcript, usually a file.
pub trait Sink: Write + Send {
    /// Makes everything written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The transcript file of a run. `folder` is the run's directory; `None` after the first sync, which syncs the
/// directory too, so that a crash cannot lose the directory's entry for the file.
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

/// Creates the transcript file of a run, which must not exist yet, and starts its writer.
pub fn start(settings: &Settings, observer: Option<Observer>) -> io::Result<(Recorder, Writer)> {
    start_on(create(&settings.folder)?, settings, observer)
}

/// Creates and locks the transcript file, which must not exist yet. Does not start a writer.
pub fn create(folder: &Path) -> io::Result<Box<dyn Sink>> {
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(folder.join(FILE))?;
    lock(&file)?;
    Ok(Box::new(RunFile { file, folder: Some(folder.to_path_buf()) }))
}

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

/// Prepares a transcript that writes nothing before [`Writer::begin`]. The writer's thread computes the
/// settings, so that they do not delay the start of the run.
pub fn prepare(
    sink: Box<dyn Sink>,
    settings: Box<dyn FnOnce() -> Settings + Send>,
    observer: Option<Observer>,
) -> (Recorder, Writer) {
    let shared = Arc::new(Shared::default());
    let writer_shared = shared.clone();
    let work = move || {
        let _end = EndsWithThread(writer_shared.clone());
        // Wait a little, so that the writer does not compete with the start of the run.
        writer_shared.pause(TICK);
        let settings = settings();
        let writer = TranscriptWriter {
            shared: writer_shared,
            sink,
            observer,
            chain: Chain::new(&settings.run_id),
            redactor: Redactor::new(&settings.redact_values),
            outputs: Stream::ALL.map(Output::new),
            size_limit: SizeLimit::new(settings.limit_bytes, settings.reserve_bytes),
            ready: Vec::new(),
            message: Vec::new(),
            data: Vec::new(),
            finished: false,
        };
        writer.run()
    };
    (Recorder { shared: shared.clone() }, Writer { shared, work: Some(Box::new(work)), thread: None })
}

/// A transcript being written. Dropping it writes everything pending without making it durable.
pub struct Writer {
    shared: Arc<Shared>,
    /// What the writer's thread will execute; `None` after the thread was started.
    work: Option<Box<dyn FnOnce() -> io::Result<Head> + Send>>,
    thread: Option<JoinHandle<io::Result<Head>>>,
}

impl Writer {
    /// Starts the writer's thread, unless it was started before.
    pub fn begin(&mut self) -> io::Result<()> {
        if let Some(work) = self.work.take() {
            self.thread = Some(std::thread::Builder::new().name("transcript".to_string()).spawn(work)?);
        }
        Ok(())
    }

    /// Wakes the writer thread, so that it writes the pending events immediately instead of waiting for more.
    pub fn write_now(&self) {
        self.shared.write_now();
    }

    /// Blocks until everything recorded so far is written and the observer has received it.
    pub fn catch_up(&self) {
        if self.thread.is_some() {
            self.shared.catch_up();
        }
    }

    /// Asks the writer to write everything and to end, without waiting for it as [`finish`](Self::finish) does.
    pub fn close(&self) {
        self.shared.close(true);
    }

    /// Writes everything recorded so far and makes it durable. Events that are recorded later are rejected. Fails if
    /// this write or an earlier one failed.
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
    io::Error::other("the thread that writes the transcript has died")
}

/// Rejects further events when the writer's thread ends. So even a panic in the thread, for example in the
/// observer, does not leave callers waiting for room.
struct EndsWithThread(Arc<Shared>);

impl Drop for EndsWithThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(gone().to_string());
        }
        self.0.end();
    }
}

struct TranscriptWriter {
    shared: Arc<Shared>,
    sink: Box<dyn Sink>,
    observer: Option<Observer>,
    chain: Chain,
    redactor: Redactor,
    outputs: [Output; 3],
    size_limit: SizeLimit,
    /// Finished lines that are not yet written to the file.
    ready: Vec<u8>,
    message: Vec<u8>,
    data: Vec<u8>,
    /// True if the last event, `run.finished`, was recorded. Later events are ignored.
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
            let waited = self.shared.take_batch(TICK, &mut batch);
            quiet = if waited == Waited::Work { 0 } else { quiet + 1 };
            self.take(&mut batch);
            self.write_held_output();
            self.flush();
            if waited == Waited::Closing {
                return self.close();
            }
            // Sync now, while the first program starts: less is left to sync at the end.
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
            self.write_pending(entry.time);
        }
        let (message, data) = (&bytes[entry.start..entry.split], &bytes[entry.split..entry.end]);
        self.clean(message, data);
        self.write(Class::of(event_type), event_type, entry.time);
        self.finished |= event_type == EventType::RunFinished;
    }

    /// Redacts a message and its data into `self.message` and `self.data`, and then truncates them. Truncating
    /// before redacting could cut a secret in half, which would then not be recognised.
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
        if self.size_limit.output_is_cut() {
            if !piece.is_empty() {
                self.size_limit.admit(Class::Output, piece.len(), piece.len());
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

    /// Records output that is held back as the possible beginning of a secret, if no more output has followed for
    /// `HELD` microseconds.
    fn write_held_output(&mut self) {
        for stream in Stream::ALL {
            let output = &mut self.outputs[stream as usize];
            if !output.waits() || self.size_limit.output_is_cut() {
                continue;
            }
            let time = now();
            if time - output.since >= HELD && output.show(&mut self.data) {
                self.message.clear();
                self.write(Class::Output, EventType::Output, time);
            }
        }
    }

    /// Records the output that is still held back and the number of dropped events. Called before the last event.
    fn write_pending(&mut self, time: i64) {
        if self.finished {
            return;
        }
        for stream in Stream::ALL {
            self.output(stream, time, b"", true);
        }
        let uncounted = &self.shared.uncounted;
        self.size_limit.dropped.output_events += uncounted.events.swap(0, Ordering::Relaxed);
        self.size_limit.dropped.output_bytes += uncounted.bytes.swap(0, Ordering::Relaxed);
        let dropped = self.size_limit.dropped;
        if dropped != Default::default() {
            let message = format!(
                "missing from this transcript: output ({} bytes) and other events ({})",
                dropped.output_bytes, dropped.events
            );
            self.write_meta(EventType::TranscriptDropped, &message, time, &json!(dropped));
        }
    }

    /// Records an event about the transcript itself, such as `transcript.cut`.
    fn write_meta(&mut self, event_type: EventType, message: &str, time: i64, data: &serde_json::Value) {
        self.message = message.as_bytes().to_vec();
        self.data = data.to_string().into_bytes();
        self.write(Class::Always, event_type, time);
    }

    /// Appends `self.message` and `self.data` as an event to the chain if the size limit allows it.
    fn write(&mut self, class: Class, event_type: EventType, time: i64) {
        if self.finished {
            return;
        }
        let message = String::from_utf8_lossy(&self.message);
        let length = self.chain.length_of(event_type.as_str(), &message, &self.data);
        if self.size_limit.becomes_full(class, length) {
            self.full(time);
        }
        let message = String::from_utf8_lossy(&self.message);
        match self.size_limit.admit(class, length, self.message.len() + self.data.len()) {
            Admission::Drop => return,
            Admission::Cut => return self.cut(class, time),
            Admission::Write => {}
        }
        let line = self.chain.append(event_type.as_str(), &message, time, &self.data, &mut self.ready);
        self.size_limit.written += line.len() as u64 + 1;
        if let Some(observer) = &mut self.observer {
            let data = String::from_utf8_lossy(&self.data);
            observer(&Line { event_type, message: &message, data: &data, json: &self.ready[line] });
        }
    }

    /// Records that the transcript is full and the run must end. Called before recording the event that exceeds the
    /// limit.
    fn full(&mut self, time: i64) {
        let limit = self.size_limit.full_at();
        self.shared.full_at.store(limit, Ordering::Release);
        let (message, data) = (std::mem::take(&mut self.message), std::mem::take(&mut self.data));
        let text = format!("the transcript reached its limit of {limit} bytes; guard ends the run");
        self.write_meta(EventType::TranscriptFull, &text, time, &json!({ "limit_bytes": limit }));
        (self.message, self.data) = (message, data);
    }

    fn cut(&mut self, class: Class, time: i64) {
        let limit = self.size_limit.limit_of(class);
        let what = match class {
            Class::Output => "output",
            Class::Important => "refusals, findings and git events",
            Class::Event | Class::Always => {
                "events other than refusals, findings, git events and the end of the run"
            }
        };
        if class == Class::Output {
            self.shared.output_cut.store(true, Ordering::Relaxed);
        }
        let message = format!("the transcript reached {limit} bytes; from here on, it contains no {what}");
        self.write_meta(
            EventType::TranscriptCut,
            &message,
            time,
            &json!({ "dropped": what, "limit_bytes": limit }),
        );
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
        self.write_pending(now());
        self.flush();
        if let Some(why) = self.shared.failure() {
            return Err(io::Error::other(why));
        }
        if self.shared.syncs_at_end() {
            self.sink.sync()?;
        }
        Ok(Head { seq: self.chain.seq, hash: chain::text(&self.chain.last), bytes: self.size_limit.written })
    }
}
