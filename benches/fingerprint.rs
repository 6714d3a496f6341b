//! Compares two checks of a repository with plain git: `cargo bench --bench fingerprint`. In one run, each check takes
//! turns with its git command.
//!
//! The first table shows how long two snapshots of a repository and their comparison take, beside `git for-each-ref`.
//! A row is marked as missed if the three together exceed the project's target. The second table shows how long the
//! search for planted files takes, beside `git status`. It has no target.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard::git::review::findings::{Inspection, inspect};
use guard::git::snapshot::{ExpectedChanges, Fingerprint};

/// The longest time that two snapshots of a repository and their comparison should take together.
const BAR: Duration = Duration::from_millis(50);
const ROUNDS: usize = 21;

fn main() {
    println!(
        "{:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}  bar {BAR:?}",
        "repository", "for-each", "first", "again", "compare", "all", "ratio"
    );
    let folder = std::env::temp_dir().join(format!("guard-bench-fingerprint-{}", std::process::id()));
    let kinds = [("files", &["--ref-format=files"]), ("reftable", &["--ref-format=reftable"])];
    for (format, option) in kinds {
        for refs in [10, 10_000] {
            for packed in [false, true] {
                for logs in [false, true] {
                    if format == "reftable" && packed {
                        continue;
                    }
                    let repository = make(&folder, option, refs, packed, logs);
                    let stored = if packed { "packed" } else { "loose" };
                    let logs = if logs { ", reflogs" } else { "" };
                    measure(&format!("{refs} refs, {format} {stored}{logs}"), &repository);
                    let _ = std::fs::remove_dir_all(&folder);
                }
            }
        }
    }
    println!("\n{:<34} {:>9} {:>9} {:>7}", "worktree", "status", "inspect", "ratio");
    for files in [2_000, 50_000] {
        dangers(&folder, files);
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// Measures how long guard takes to search a run's work for dangerous files, in a tree of `files` files after a
/// commit that changed a tenth of them.
fn dangers(folder: &Path, files: usize) {
    std::fs::create_dir_all(folder).expect("a folder");
    let run = |words: &[&str]| assert!(git(folder, words).status().expect("git runs").success());
    let write = |index: usize, text: &str| {
        let place = folder.join(format!("src/part{}/module{}", index / 1_000, index / 50));
        std::fs::create_dir_all(&place).expect("a folder");
        std::fs::write(place.join(format!("file{index}.rs")), text).expect("a file");
    };
    run(&["init", "--quiet", "--initial-branch=main"]);
    (0..files).for_each(|index| write(index, "one\n"));
    run(&["add", "."]);
    run(&["commit", "--quiet", "-m", "one"]);
    run(&["branch", "base"]);
    (0..files).step_by(10).for_each(|index| write(index, "two\n"));
    run(&["commit", "--quiet", "-a", "-m", "two"]);
    let inspection = Inspection::new(&folder.join(".git"), folder, Some("base"), Some("main"));
    let mut times: [Vec<Duration>; 2] = Default::default();
    for _ in 0..ROUNDS {
        let mut bare = git(folder, &["status"]);
        timed(&mut times[0], || assert!(bare.status().expect("git runs").success()));
        let found = timed(&mut times[1], || inspect(&inspection).expect("a look"));
        // A finding with an empty path is about the repository itself: the inspected repository is the `.git` of a
        // main worktree, and not a linked worktree as in a run.
        assert!(found.iter().all(|one| one.path.bytes().is_empty()), "{found:?}");
    }
    let [bare, look] = times.map(middle);
    println!(
        "{:<34} {:>9} {:>9} {:>6.2}x",
        format!("{files} files, a tenth changed"),
        show(bare),
        show(look),
        look.as_secs_f64() / bare.as_secs_f64()
    );
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn show(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn git(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .args(words)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        .stdout(Stdio::null());
    command
}

fn make(folder: &Path, options: &[&str], refs: usize, packed: bool, logs: bool) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder");
    let run = |words: &[&str]| assert!(git(folder, words).status().expect("git runs").success());
    run(&[&["init", "--quiet"], options].concat());
    run(&["commit", "--quiet", "--allow-empty", "-m", "one"]);
    let setting = format!("core.logAllRefUpdates={}", if logs { "always" } else { "false" });
    let mut update = git(folder, &["-c", &setting, "update-ref", "--stdin"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("git runs");
    let lines: String = (0..refs).map(|index| format!("create refs/heads/topic/{index} HEAD\n")).collect();
    std::io::Write::write_all(&mut update.stdin.take().expect("a pipe"), lines.as_bytes()).expect("written");
    assert!(update.wait().expect("git ends").success());
    if packed {
        run(&["pack-refs", "--all"]);
    }
    // The snapshot reads files again if they changed within the last tick of a coarse file system clock. A user's
    // repository is older than that, so the benchmark waits.
    std::thread::sleep(Duration::from_millis(2_100));
    folder.join(".git")
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    times.push(start.elapsed());
    result
}

fn measure(what: &str, common: &Path) {
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut bare = git(common, &["for-each-ref"]);
        timed(&mut times[0], || assert!(bare.status().expect("git runs").success()));
        let before = timed(&mut times[1], || Fingerprint::take(common).expect("a look"));
        let after = timed(&mut times[2], || before.retake().expect("a look"));
        let found = timed(&mut times[3], || before.compare(&after, &ExpectedChanges::default()));
        assert!(found.is_empty(), "{found:?}");
    }
    let [bare, first, again, compare] = times.map(middle);
    let all = first + again + compare;
    println!(
        "{what:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6.2}x{}",
        show(bare),
        show(first),
        show(again),
        show(compare),
        show(all),
        all.as_secs_f64() / bare.as_secs_f64(),
        if all <= BAR { "" } else { "  MISSED" }
    );
}
