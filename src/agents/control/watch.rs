//! Receives commands on a separate thread while the work that they control is in progress.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::{AgentCommand, CommandReader, Rejection};

/// How often the thread checks for new commands. A check that finds none costs one system call.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A thread that reads commands and passes them to a function. Dropping this value stops the thread and waits for its
/// end.
#[derive(Debug)]
pub struct CommandWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CommandWatch {
    /// Starts the thread. `handle` executes a command and returns data about the result, or the reason for a
    /// rejection.
    pub fn start(
        mut reader: CommandReader,
        mut handle: impl FnMut(&AgentCommand) -> Result<Value, Rejection> + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = stop.clone();
        let work = move || {
            while !is_stopped.load(Ordering::Acquire) {
                match reader.next_command() {
                    Ok(Some(command)) => {
                        let answered = match handle(&command) {
                            Ok(data) => reader.complete(&command, data),
                            Err(reason) => reader.reject(&command, &reason),
                        };
                        if let Err(error) = answered {
                            tracing::warn!(%error, "guard cannot write the acknowledgement of a command");
                        }
                    }
                    Ok(None) => std::thread::park_timeout(LOOK_EVERY),
                    Err(error) => {
                        tracing::warn!(%error, "guard cannot read the commands that were sent to it");
                        std::thread::park_timeout(10 * LOOK_EVERY);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".to_string()).spawn(work)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for CommandWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Blocks the thread that runs a task, between two steps of the task, while the task is paused.
#[derive(Debug, Clone, Default)]
pub struct PauseGate(Arc<(Mutex<bool>, Condvar)>);

impl PauseGate {
    /// Pauses or resumes the work. Returns true if this changed the state.
    pub fn set_paused(&self, is_paused: bool) -> bool {
        let (state, changed) = &*self.0;
        let before = std::mem::replace(&mut *state.lock().unwrap_or_else(PoisonError::into_inner), is_paused);
        changed.notify_all();
        before != is_paused
    }

    pub fn is_paused(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while the work is paused, until it is resumed or `is_cancelled` returns true. Calls
    /// `is_cancelled` ten times a second.
    pub fn wait(&self, is_cancelled: impl Fn() -> bool) {
        let (state, changed) = &*self.0;
        let mut paused = state.lock().unwrap_or_else(PoisonError::into_inner);
        while *paused && !is_cancelled() {
            paused = changed.wait_timeout(paused, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AckStatus, ControlChannel};
    use super::*;
    use serde_json::json;

    #[test]
    fn a_watch_answers_every_command_and_ends_with_its_owner() {
        let directory = std::env::temp_dir().join(format!("guard-watch-{}", uuid::Uuid::now_v7().simple()));
        let reader = CommandReader::open(&directory).unwrap_or_else(|error| panic!("{error}"));
        let gate = PauseGate::default();
        let in_thread = gate.clone();
        let watch = CommandWatch::start(reader, move |command| match command.command_type.as_str() {
            "pause" => Ok(json!({ "changed": in_thread.set_paused(true) })),
            "resume" => Ok(json!({ "changed": in_thread.set_paused(false) })),
            other => Err(Rejection::UnknownType(other.to_string())),
        });
        let watch = watch.unwrap_or_else(|error| panic!("{error}"));
        let channel = ControlChannel::new(&directory);
        let send = |command_type: &str, id: &str| {
            let command = AgentCommand {
                command_type: command_type.to_string(),
                command_id: id.to_string(),
                data: Value::Null,
            };
            channel.send(&command).unwrap_or_else(|error| panic!("{error}"));
            let ack = channel.wait_for(id, Duration::from_secs(20)).unwrap_or_else(|error| panic!("{error}"));
            ack.map(|ack| (ack.status, ack.data))
        };
        assert_eq!(send("pause", "1"), Some((AckStatus::Completed, json!({ "changed": true }))));
        assert!(gate.is_paused());
        gate.wait(|| true);
        let waiting = gate.clone();
        let waiter = std::thread::spawn(move || waiting.wait(|| false));
        assert_eq!(send("resume", "2"), Some((AckStatus::Completed, json!({ "changed": true }))));
        assert!(waiter.join().is_ok());
        assert!(send("fly", "3").is_some_and(|(status, _)| status == AckStatus::Rejected));
        drop(watch);
        let _ = std::fs::remove_dir_all(&directory);
    }
}
