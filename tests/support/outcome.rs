//! The outcome of a run: exit code, output, result and transcript.

use std::fmt::{self, Display};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use guard::run::transcript::{Outcome, check};
use serde_json::{Value, json};

/// The time limit for a run.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The output and exit code of a program, which is guard unless a test says otherwise. `Display` formats them for
/// assertion messages.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    /// The name of the [`TestEnvironment`](super::TestEnvironment) in which the program ran, for messages.
    pub(crate) environment: String,
    /// The exit code of guard; 128 plus the signal number if a signal ended it.
    pub(crate) code: i32,
    pub(crate) output: Vec<u8>,
    pub(crate) error: String,
    /// The last line of the output, if it is JSON.
    pub(crate) result: Value,
    pub(crate) took: Duration,
}

impl RunOutcome {
    /// Fails unless guard ended with this exit code.
    #[track_caller]
    pub(crate) fn expect_code(&self, code: i32) {
        assert_eq!(self.code, code, "{self}");
    }

    /// Fails unless guard ended with this exit code and this kind of error, which is empty for a success.
    #[track_caller]
    pub(crate) fn expect_code_and_kind(&self, code: i32, kind: &str) {
        assert_eq!((self.code, self.kind()), (code, kind), "{self}");
    }

    /// Returns what the command printed, according to the result.
    pub(crate) fn printed(&self) -> String {
        self.result["result"].as_str().unwrap_or_default().to_string()
    }

    /// Returns the error kind of the result.
    pub(crate) fn kind(&self) -> &str {
        self.result["error_kind"].as_str().unwrap_or_default()
    }

    /// Returns true if the result lists this file as created by the run.
    pub(crate) fn created_file(&self, path: &str) -> bool {
        let changes = self.result["files_changed"].as_array().unwrap();
        changes.contains(&json!({ "path": path, "change": "created" }))
    }

    /// Fails unless the transcript is complete, including its last event.
    #[track_caller]
    pub(crate) fn expect_complete_transcript(&self) {
        let checked = check(&self.transcript()).unwrap_or_else(|error| panic!("{error}: {self}"));
        assert_eq!(checked.outcome, Outcome::Complete, "{self}");
    }

    /// Returns the events of the transcript.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.transcript()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the path of the run's transcript.
    pub(crate) fn transcript(&self) -> PathBuf {
        PathBuf::from(self.result["transcript"]["path"].as_str().unwrap_or_default())
    }
}

impl Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: exit code {}\n{:#}\n{}", self.environment, self.code, self.result, self.error)
    }
}

/// Reads a child's output to its end and waits for the child, with a time limit.
pub(crate) fn collect_outcome(mut child: Child, input: &[u8], started: Instant) -> RunOutcome {
    let all = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                let _ = from.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let output = all(child.stdout.take().map(|from| Box::new(from) as Box<dyn Read + Send>));
    let error = all(child.stderr.take().map(|from| Box::new(from) as Box<dyn Read + Send>));
    let typed = child.stdin.take().map(|mut to| {
        let input = input.to_vec();
        std::thread::spawn(move || to.write_all(&input))
    });
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("not done after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = started.elapsed();
    if let Some(typed) = typed {
        let _ = typed.join();
    }
    let output = output.join().unwrap();
    let last = output.strip_suffix(b"\n").unwrap_or(&output).rsplit(|&byte| byte == b'\n').next();
    let result = last.and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    RunOutcome {
        environment: String::new(),
        code,
        output,
        error: String::from_utf8_lossy(&error.join().unwrap()).into_owned(),
        result,
        took,
    }
}
