//! A supervisor that is killed at any moment must leave a transcript that can be read up to its last complete line.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard::run::transcript::{self, EventType, Outcome, Run, RunState, Settings, Stream, check};
use serde_json::json;

use super::path;
use crate::support::Scratch;

const FOLDER: &str = "GUARD_TEST_TRANSCRIPT_FOLDER";

/// The main function of a process that writes a transcript. The test below starts the process and kills it.
#[test]
#[ignore = "started by the test beside it"]
fn writes_until_killed() {
    let folder = std::env::var_os(FOLDER).expect("the folder to write in").into();
    let settings = Settings {
        folder,
        run_id: "killed".to_string(),
        limit_bytes: u64::MAX,
        reserve_bytes: 0,
        redact_values: vec![b"hunter2-hunter2".to_vec()],
    };
    let (recorder, _writer) = transcript::start(&settings, None).unwrap();
    recorder.record(EventType::RunStarted, "", &json!({ "command": ["x"], "pid": std::process::id() }));
    for index in 0u64.. {
        recorder.record(EventType::Exec, &"m".repeat(index as usize % 3_000), &json!({ "index": index }));
        recorder.output(Stream::Stdout, &vec![b'o'; index as usize * 7 % 20_000]);
    }
}

// slow
#[test]
fn transcript_of_a_killed_process_is_read_to_its_last_complete_line() {
    let mut lengths = Vec::new();
    for round in 0..12u64 {
        let scratch = Scratch::new("killed");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "transcript::killed::writes_until_killed", "--ignored", "--nocapture"])
            .env(FOLDER, &scratch.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while !path(&scratch).metadata().is_ok_and(|file| file.len() > round * 300_000) {
            assert!(start.elapsed() < Duration::from_secs(60), "the child does not write");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Run::read(&scratch.0).state, RunState::Running);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = check(&path(&scratch)).unwrap();
        assert!(matches!(found.outcome, Outcome::Unfinished { .. }), "{:?}", found.outcome);
        assert!(found.head.seq >= 1);
        lengths.push(found.head.seq);
        let run = Run::read(&scratch.0);
        assert_eq!((run.state, run.command()), (RunState::Unfinished, vec!["x".to_string()]));
    }
    assert!(
        lengths.iter().max() > lengths.iter().min(),
        "every round was killed at the same place: {lengths:?}"
    );
}
