//! Compares a workspace of guard with plain git: `cargo bench --bench workspace`. It compares making the workspace with
//! `git worktree add`, and receiving its commits with `git fetch`. The two take turns. `-- --large` adds a repository
//! of 50,000 files.
//!
//! A row that exceeds the project's target is marked as missed. No benchmark fails, because a loaded machine is not a
//! bug.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use guard::git::{KeepPolicy, Limits, Repository, Request, Workspace};

/// Runs the installed git without the user's and the system's configuration.
fn git(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=A", "-c", "user.email=a@b", "-c", "gc.auto=0"])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}

struct Place(PathBuf);

impl Place {
    fn new(name: &str, files: usize, refs: usize) -> Self {
        let base = std::env::temp_dir().join(format!("guard-bench-{}-{name}", std::process::id()));
        let place = Self(base);
        let folder = place.repository();
        std::fs::create_dir_all(&folder).unwrap();
        git(&folder, &["init", "-q"]);
        for number in 0..files {
            let file = folder.join(format!("d{}/f{number}.txt", number / 100));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("file {number}\n").repeat(20)).unwrap();
        }
        git(&folder, &["add", "."]);
        git(&folder, &["commit", "-q", "--allow-empty", "-m", "first"]);
        if refs > 0 {
            let id = git(&folder, &["rev-parse", "HEAD"]);
            let lines: String = (0..refs).map(|number| format!("{id} refs/tags/t{number:06}\n")).collect();
            let text = format!("# pack-refs with: peeled fully-peeled sorted \n{lines}");
            std::fs::write(folder.join(".git/packed-refs"), text).unwrap();
        }
        git(&folder, &["gc", "-q"]);
        place
    }

    fn repository(&self) -> PathBuf {
        self.0.join("project")
    }

    fn open(&self, name: &str) -> Workspace {
        let repository = Repository::find(&self.repository()).unwrap().unwrap();
        let request = Request {
            run_id: name.to_string(),
            run_folder: self.0.join("runs").join(name),
            prefix: "task/".to_string(),
            fallback_root: self.0.join("worktrees"),
            ..Request::default()
        };
        Workspace::open(&repository, &request).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn row(what: &str, ours: Duration, bare: Option<Duration>, bar: f64) {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let (value, unit) = match bare {
        Some(bare) => (milliseconds(ours) / milliseconds(bare), "×"),
        None => (milliseconds(ours), " ms"),
    };
    let bare = bare.map_or(String::from("-"), |bare| format!("{:.1} ms", milliseconds(bare)));
    let missed = if value > bar { "  MISSED" } else { "" };
    println!(
        "{what:<40} {:>10.1} ms {bare:>12} {value:>8.2}{unit} {bar:>6.2}{unit}{missed}",
        milliseconds(ours)
    );
}

fn set_up(files: usize, refs: usize, rounds: usize) {
    let place = Place::new(&format!("setup-{files}-{refs}"), files, refs);
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let name = format!("ours{round}");
        let begun = Instant::now();
        let mut workspace = place.open(&name);
        ours.push(begun.elapsed());
        workspace.dispose(KeepPolicy::Auto).unwrap();
        let to = place.0.join(format!("bare{round}"));
        let begun = Instant::now();
        git(
            &place.repository(),
            &["worktree", "add", "-q", "-b", &format!("bare{round}"), to.to_str().unwrap()],
        );
        bare.push(begun.elapsed());
        git(&place.repository(), &["worktree", "remove", "--force", to.to_str().unwrap()]);
        git(&place.repository(), &["branch", "-D", &format!("bare{round}")]);
    }
    row(&format!("set-up, {files} files, {refs} refs"), median(ours), Some(median(bare)), 1.15);
}

fn receive(commits: usize, rounds: usize) {
    let place = Place::new(&format!("receive-{commits}"), 2_000, 0);
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut workspace = place.open(&format!("run{round}"));
        workspace.point_at_quarantine().unwrap();
        for number in 0..commits {
            std::fs::write(workspace.worktree().join("d0/f0.txt"), format!("{round} {number}\n")).unwrap();
            git(workspace.worktree(), &["commit", "-q", "-am", "work"]);
        }
        let clone = place.0.join(format!("clone{round}"));
        git(&place.0, &["clone", "-q", "--no-local", "project", clone.to_str().unwrap()]);
        let from = workspace.quarantine();
        let branch = format!("refs/heads/{0}:refs/heads/{0}", workspace.branch());
        let begun = Instant::now();
        git(&clone, &["-c", "fetch.fsckObjects=true", "fetch", "-q", from.to_str().unwrap(), &branch]);
        bare.push(begun.elapsed());
        let begun = Instant::now();
        workspace.receive(&Limits::default()).unwrap();
        ours.push(begun.elapsed());
        workspace.dispose(KeepPolicy::Discard).unwrap();
        std::fs::remove_dir_all(clone).unwrap();
    }
    if commits == 1 {
        row("receive, 1 commit", median(ours), None, 25.0);
    } else {
        row(&format!("receive, {commits} commits"), median(ours), Some(median(bare)), 1.2);
    }
}

fn main() {
    println!("{:<40} {:>13} {:>12} {:>9} {:>7}", "what", "guard", "bare git", "", "bar");
    set_up(10, 0, 15);
    set_up(2_000, 0, 11);
    set_up(2_000, 10_000, 11);
    receive(1, 15);
    receive(1_000, 3);
    if std::env::args().any(|arg| arg == "--large") {
        set_up(50_000, 0, 3);
    }
}
