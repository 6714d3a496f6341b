//! guard lists runs by the first and last line of their transcripts, ignores other files beside them, and finds a run
//! by a part of its id.

use guard::run::transcript::{EventType, FindError, RunState, Store};
use serde_json::json;

use super::{settings, short_run, start};
use crate::support::Scratch;

fn made(scratch: &Scratch, name: &str) -> Scratch {
    // Makes a directory inside `scratch`. Dropping either `scratch` or the returned value removes the directory.
    let folder = scratch.0.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    Scratch(folder)
}

fn finished(scratch: &Scratch, name: &str) {
    let folder = made(scratch, name);
    short_run(&folder);
    std::mem::forget(folder);
}

fn unfinished(scratch: &Scratch, name: &str) {
    let folder = made(scratch, name);
    let (recorder, writer) = start(&folder);
    recorder.record(EventType::RunStarted, "", &json!({ "command": ["sleep", "1"] }));
    drop(writer);
    std::mem::forget(folder);
}

#[test]
fn garbage_beside_runs_is_reported_and_hides_no_run() {
    let scratch = Scratch::new("store");
    finished(&scratch, "0197-a");
    unfinished(&scratch, "0197-b");
    finished(&scratch, "0197-c");
    scratch.write("a-file", "x");
    scratch.write(".hidden/transcript.jsonl", "x");
    scratch.write("garbage/transcript.jsonl", [0xff; 5000]);
    scratch.write("lines/transcript.jsonl", "nonsense\n");
    scratch.write("empty/transcript.jsonl", "");
    std::fs::create_dir(scratch.0.join("nothing")).unwrap();
    std::fs::create_dir_all(scratch.0.join("folder/transcript.jsonl")).unwrap();
    nix::unistd::mkfifo(&made_path(&scratch, "pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let runs = Store::new(scratch.0.clone()).list().unwrap();
    let found: Vec<(&str, RunState)> = runs.iter().map(|run| (run.id.as_str(), run.state)).collect();
    use RunState::{Finished, Unfinished, Unreadable};
    assert_eq!(
        found,
        [
            ("0197-c", Finished),
            ("0197-b", Unfinished),
            ("0197-a", Finished),
            ("pipe", Unreadable),
            ("nothing", Unreadable),
            ("lines", Unreadable),
            ("garbage", Unfinished),
            ("folder", Unreadable),
            ("empty", Unfinished),
        ]
    );
    assert_eq!(
        (runs[0].exit_code(), runs[0].denials(), runs[0].policy()),
        (Some(0), Some(0), Some("strict"))
    );
    assert!(runs.iter().filter(|run| run.state == Unreadable).all(|run| run.problem.is_some()));
}

fn made_path(scratch: &Scratch, name: &str) -> std::path::PathBuf {
    let folder = scratch.0.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("transcript.jsonl")
}

#[test]
fn run_is_found_by_id_prefix_or_path() {
    let scratch = Scratch::new("find");
    for name in ["0197-aa-1", "0197-ab-2", "0197-ab-22"] {
        finished(&scratch, name);
    }
    let store = Store::new(scratch.0.clone());
    let found = |name: &str| store.find(Some(name)).map(|run| run.id);
    assert_eq!(found("0197-ab-2").unwrap(), "0197-ab-2", "an exact name wins over a beginning");
    assert_eq!(found("0197-aa").unwrap(), "0197-aa-1");
    assert_eq!(found("-22").unwrap(), "0197-ab-22");
    assert!(matches!(found("0197-a"), Err(FindError::Ambiguous { candidates, .. }) if candidates.len() == 3));
    assert!(matches!(found("nothing"), Err(FindError::Unknown(_))));
    assert!(matches!(found(""), Err(FindError::Unknown(_))));
    assert_eq!(store.find(None).unwrap().id, "0197-ab-22", "the newest");
    let path = scratch.0.join("0197-aa-1");
    assert_eq!(found(path.to_str().unwrap()).unwrap(), "0197-aa-1");
    assert_eq!(found(path.join("transcript.jsonl").to_str().unwrap()).unwrap(), "0197-aa-1");
    let empty = Store::new(scratch.0.join("not-there"));
    assert!(empty.list().unwrap().is_empty());
    assert!(matches!(empty.find(None), Err(FindError::Empty(_))));
}

#[test]
fn unfinished_run_cannot_be_deleted() {
    let scratch = Scratch::new("delete");
    finished(&scratch, "done");
    unfinished(&scratch, "cut");
    scratch.write("done/tree/file", "x");
    scratch.write(".leaving-half/transcript.jsonl", "x");
    let store = Store::new(scratch.0.clone());
    store.delete(&store.find(Some("done")).unwrap()).unwrap();
    assert!(store.delete(&store.find(Some("cut")).unwrap()).is_err());
    store.tidy().unwrap();
    let left: Vec<_> =
        std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["cut"]);
}

#[test]
fn long_last_line_of_a_run_is_found() {
    let scratch = Scratch::new("long-last");
    let (recorder, writer) = start(&scratch);
    recorder.record(EventType::RunStarted, "", &json!({}));
    let commits: Vec<String> = (0..50_000).map(|index| format!("{index:040}")).collect();
    recorder.record(EventType::RunFinished, "", &json!({ "exit_code": 3, "commits": commits }));
    writer.finish().unwrap();
    let run = guard::run::transcript::Run::read(&settings(&scratch).folder);
    assert_eq!((run.state, run.exit_code()), (RunState::Finished, Some(3)));
}
