// slow
//! guard is killed at any moment. Another process must be able to finish or undo what it began, and nothing may be
//! lost.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard::git::{KeepPolicy, Limits, Record, Repository, Request, State, Workspace, list};

use crate::support::{TestRepository, agent_commit, git, git_in};

const FOLDER: &str = "GUARD_TEST_KILLED";

fn request(base: &Path, name: &str) -> Request {
    Request {
        run_id: format!("run-{name}"),
        run_folder: base.join("state/runs").join(name),
        name: Some(name.to_string()),
        prefix: "task/".to_string(),
        fallback_root: base.join("state/worktrees"),
        ..Request::default()
    }
}

/// The main function of a process that opens a workspace, commits in it, receives the commit, and discards or keeps
/// the workspace, again and again, until the test below kills it. As an ordinary test it does nothing.
#[test]
fn works_until_killed() {
    let Some(base) = std::env::var_os(FOLDER).map(std::path::PathBuf::from) else { return };
    for round in 0.. {
        let repository = Repository::find(&base.join("project")).unwrap().unwrap();
        let mut workspace = Workspace::open(&repository, &request(&base, &format!("round{round}"))).unwrap();
        workspace.point_at_quarantine().unwrap();
        agent_commit(&workspace, "c.txt", &format!("{round}"), "work");
        std::fs::write(workspace.worktree().join("d.txt"), "loose").unwrap();
        workspace.receive(&Limits::default()).unwrap();
        let disposal = if round % 2 == 0 { KeepPolicy::Discard } else { KeepPolicy::Keep };
        workspace.dispose(disposal).unwrap();
    }
}

#[test]
fn workspace_killed_at_any_moment_can_be_finished_or_undone() {
    let mut seen = std::collections::BTreeSet::new();
    // The test kills guard alone, or together with every git that guard has started.
    for (number, with_children) in [(0, false), (1, true), (2, true), (3, true), (4, false), (5, true)] {
        let fixture = TestRepository::new();
        let main = fixture.git(&["rev-parse", "main"]);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "workspace::interrupted::works_until_killed", "--nocapture"])
            .env(FOLDER, &fixture.scratch.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(120 + 37 * number));
        if with_children {
            let group = nix::unistd::Pid::from_raw(-(child.id() as i32));
            nix::sys::signal::kill(group, nix::sys::signal::Signal::SIGKILL).unwrap();
        } else {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        // A git process that survives ends by itself after a moment.
        std::thread::sleep(Duration::from_millis(300));

        let runs = fixture.scratch.0.join("state/runs");
        let entries = list(&runs).unwrap();
        for entry in &entries {
            let record = entry.record.as_ref().unwrap();
            seen.insert(record.state.name());
            assert!(!entry.is_busy);
            let begun = Instant::now();
            let mut workspace = Workspace::load(&entry.run_folder).unwrap();
            let is_over = matches!(record.state, State::Opening | State::Removing | State::Removed);
            if !is_over && workspace.quarantine().exists() {
                workspace.receive(&Limits::default()).unwrap();
            }
            workspace.dispose(KeepPolicy::Discard).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(30));
            let record = Record::read(&entry.run_folder).unwrap();
            assert_eq!(record.state, State::Removed);
            if record.tip != record.base {
                let kept = fixture.git(&["rev-parse", &format!("refs/guard/{}/tip", record.run_id)]);
                assert_eq!(kept, record.tip, "what was committed can be had back");
            }
            assert!(!record.worktree.exists());
        }
        assert_eq!(fixture.git(&["rev-parse", "main"]), main);
        assert_eq!(fixture.git(&["branch", "--list", "task/*"]), "");
        assert_eq!(fixture.git(&["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
        let locks: Vec<_> =
            fixture.snapshot().into_keys().filter(|path| path.extension() == Some("lock".as_ref())).collect();
        assert!(locks.is_empty(), "{locks:?}");
        fixture.fsck();
    }
    println!("killed in: {seen:?}");
}

#[test]
fn workspace_is_opened_by_one_process_at_a_time() {
    let fixture = TestRepository::new();
    let workspace = fixture.open("held");
    let folder = fixture.request("held").run_folder;
    assert!(matches!(Workspace::load(&folder), Err(guard::git::WorkspaceError::Busy(_))));
    assert!(list(folder.parent().unwrap()).unwrap()[0].is_busy);
    drop(workspace);
    Workspace::load(&folder).unwrap();
}

#[test]
fn receive_interrupted_after_its_last_step_counts_as_done() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("cut");
    let tip = agent_commit(&workspace, "c.txt", "c", "work");
    let folder = fixture.request("cut").run_folder;
    let before = std::fs::read(folder.join("workspace.json")).unwrap();
    workspace.receive(&Limits::default()).unwrap();
    drop(workspace);
    // Restores the record that guard would have left if it had died after it moved the branch and before it updated
    // the record.
    std::fs::write(folder.join("workspace.json"), before).unwrap();
    let mut again = Workspace::load(&folder).unwrap();
    assert_eq!(again.receive(&Limits::default()).unwrap().new, tip);
    again.dispose(KeepPolicy::Auto).unwrap();
    assert_eq!(git(again.worktree(), &["status", "--porcelain"]), "");
}

#[test]
fn failed_checkout_leaves_no_worktree_or_branch() {
    let fixture = TestRepository::new();
    // The filter fails, so git cannot check out the files.
    std::fs::write(fixture.repository.join(".gitattributes"), "*.txt filter=broken\n").unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "attributes"]);
    fixture.git(&["config", "filter.broken.smudge", "false"]);
    fixture.git(&["config", "filter.broken.required", "true"]);
    let refs = fixture.git(&["for-each-ref"]);
    let error = Workspace::open(&fixture.find_trusted(), &fixture.request("broken")).unwrap_err();
    assert!(error.to_string().contains("worktree"), "{error}");
    assert_eq!(fixture.git(&["for-each-ref"]), refs);
    assert_eq!(fixture.git(&["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
    assert!(!fixture.scratch.0.join(".worktrees/project-broken").exists());
    assert!(!fixture.request("broken").run_folder.exists());
}

#[test]
fn locked_index_is_reported_and_no_commit_is_lost() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("locked");
    agent_commit(&workspace, "c.txt", "c", "work");
    let lock = fixture.repository.join(".git/worktrees/project-locked/index.lock");
    std::fs::write(&lock, "").unwrap();
    workspace.receive(&Limits::default()).unwrap();
    let error = workspace.dispose(KeepPolicy::Auto).unwrap_err();
    assert!(error.to_string().contains("locked") && error.hint().is_some(), "{error}");
    std::fs::remove_file(&lock).unwrap();
    assert!(workspace.dispose(KeepPolicy::Auto).unwrap().kept);
    assert!(git_in(workspace.worktree(), &["status", "--porcelain"]).stdout.is_empty());
}

/// git was killed after it created a worktree's directory and git directory, and before it wrote the worktree's path
/// into the git directory. guard must remove both directories.
#[test]
fn half_created_worktree_is_removed() {
    let fixture = TestRepository::new();
    let workspace = fixture.open("begun");
    let (folder, worktree) = (fixture.request("begun").run_folder, workspace.worktree().to_path_buf());
    drop(workspace);
    let admin = fixture.repository.join(".git/worktrees/project-begun");
    std::fs::remove_file(admin.join("gitdir")).unwrap();
    std::fs::remove_dir_all(&worktree).unwrap();
    std::fs::create_dir(&worktree).unwrap();
    let record = std::fs::read_to_string(folder.join("workspace.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["state"] = "opening".into();
    record["admin_dir"] = "".into();
    std::fs::write(folder.join("workspace.json"), record.to_string()).unwrap();
    Workspace::load(&folder).unwrap().dispose(KeepPolicy::Auto).unwrap();
    assert!(!worktree.exists() && !admin.exists());
    assert_eq!(fixture.git(&["branch", "--list", "task/*"]), "");
}
