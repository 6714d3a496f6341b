//! Tests the ordinary course of a run: a worktree, commits and a branch.

use std::os::unix::fs::PermissionsExt;

use guard::git::{KeepPolicy, Limits, Record, Repository, State, Workspace};

use crate::support::{TestRepository, agent_commit, agent_git, git};

#[test]
fn commit_of_the_agent_arrives_on_its_branch() {
    let fixture = TestRepository::new();
    fixture.git(&["branch", "other"]);
    fixture.git(&["tag", "-a", "v1", "-m", "v1"]);
    let base = fixture.git(&["rev-parse", "HEAD"]);
    let mut workspace = fixture.open("Add a Toggle");
    assert_eq!(workspace.branch(), "task/add-a-toggle");
    assert_eq!(workspace.worktree(), fixture.scratch.0.join(".worktrees/project-add-a-toggle"));
    assert!(!workspace.has_uncommitted_changes());

    assert_eq!(agent_git(&workspace, &["status", "--porcelain"]), "");
    assert_eq!(agent_git(&workspace, &["branch", "--show-current"]), "task/add-a-toggle");
    assert_eq!(
        agent_git(&workspace, &["rev-parse", "main", "other", "v1^{}"]),
        [&*base, &*base, &*base].join("\n")
    );
    let one = agent_commit(&workspace, "c.txt", "three\n", "add c");
    let two = agent_commit(&workspace, "a.txt", "changed\n", "change a");
    std::fs::write(workspace.worktree().join("b.txt"), "not committed\n").unwrap();
    std::fs::write(workspace.worktree().join("new.txt"), "new\n").unwrap();
    agent_git(&workspace, &["add", "b.txt"]);
    assert_eq!(fixture.git(&["rev-parse", "task/add-a-toggle"]), base, "nothing has been received yet");

    let received = workspace.receive(&Limits::default()).unwrap();
    assert_eq!((received.old.as_str(), received.new.as_str()), (base.as_str(), two.as_str()));
    let told: Vec<(&str, &str)> =
        received.commits.iter().map(|commit| (commit.id.as_str(), commit.subject.as_str())).collect();
    assert_eq!(told, [(one.as_str(), "add c"), (two.as_str(), "change a")]);
    assert_eq!(received.commits[0].author, "User <user@example.org>");
    assert!(received.other_refs.is_empty(), "{:?}", received.other_refs);
    assert_eq!(fixture.git(&["rev-parse", "task/add-a-toggle"]), two);

    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert!(settled.kept && settled.has_commits && !settled.unreceived, "{settled:?}");
    let worktree = workspace.worktree().to_path_buf();
    assert_eq!(
        git(&worktree, &["status", "--porcelain"]),
        " M b.txt
?? new.txt"
    );
    assert_eq!(git(&worktree, &["rev-parse", "HEAD"]), two);
    assert_eq!(git(&worktree, &["log", "--oneline", "--format=%s"]), "change a\nadd c\nfirst");
    assert!(!workspace.quarantine().exists(), "nothing is in it that is nowhere else");
    fixture.fsck();
}

/// A dry run must name the worktree path that the run then uses. If other users can write to `.worktrees`, the run uses
/// another directory, and the dry run must name that one.
#[test]
fn dry_run_names_the_worktree_of_the_run() {
    let fixture = TestRepository::new();
    let root = fixture.scratch.0.join(".worktrees");
    let planned = |name: &str| Workspace::planned(&fixture.find(), &fixture.request(name)).unwrap().2;
    let one = planned("one");
    assert!(one.starts_with(&root) && !root.exists(), "{}", one.display());
    assert_eq!(fixture.open("one").worktree(), one);
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let two = planned("two");
    assert!(!two.starts_with(&root), "{}", two.display());
    assert_eq!(fixture.open("two").worktree(), two);
}

/// guard must find a file that changed in the same second in which it was checked out. git takes a file for unchanged
/// if its size and time stamps match the index and the index is newer, so guard's copy of the index must not be newer
/// than the original.
#[test]
fn change_in_the_second_of_the_checkout_is_work() {
    let fixture = TestRepository::new();
    let until_next_second = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        std::thread::sleep(std::time::Duration::from_nanos(1_000_000_000 - u64::from(now.subsec_nanos())));
    };
    until_next_second();
    let mut workspace = fixture.open("quick");
    let file = workspace.worktree().join("a.txt");
    let changed = std::fs::read_to_string(&file).unwrap().to_uppercase();
    std::fs::write(&file, changed).unwrap();
    until_next_second();
    assert_eq!(agent_git(&workspace, &["diff", "--name-only"]), "a.txt");
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert!(settled.kept, "{settled:?}");
    assert_eq!(settled.uncommitted, [std::path::Path::new("a.txt")]);
}

#[test]
fn run_without_work_removes_its_worktree_and_branch() {
    let fixture = TestRepository::new();
    let before = fixture.git(&["for-each-ref"]);
    let mut workspace = fixture.open("nothing");
    std::fs::create_dir_all(workspace.worktree().join("node_modules/x")).unwrap();
    std::fs::write(workspace.worktree().join("node_modules/x/y"), "ignored").unwrap();
    workspace.receive(&Limits::default()).unwrap();
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert!(!settled.kept, "{settled:?}");
    assert_eq!(fixture.git(&["for-each-ref"]), before);
    assert_eq!(fixture.git(&["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
    assert!(!workspace.worktree().exists() && !fixture.scratch.0.join(".worktrees").exists());
    assert_eq!(workspace.record().state, State::Removed);
    fixture.fsck();
}

#[test]
fn discarded_work_is_saved_under_a_ref() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("wrong");
    let tip = agent_commit(&workspace, "c.txt", "three\n", "add c");
    std::fs::write(workspace.worktree().join("d.txt"), "loose\n").unwrap();
    workspace.receive(&Limits::default()).unwrap();
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert_eq!(settled.saved, ["refs/guard/run-wrong/work", "refs/guard/run-wrong/tip"]);
    assert_eq!(fixture.git(&["rev-parse", "refs/guard/run-wrong/tip"]), tip);
    assert_eq!(fixture.git(&["show", "refs/guard/run-wrong/work:d.txt"]), "loose");
    assert_eq!(fixture.git(&["branch", "--list", "task/*"]), "");
    assert!(!workspace.worktree().exists());
    fixture.fsck();
}

#[test]
fn commits_of_the_run_can_be_amended_between_receives() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("steps");
    agent_commit(&workspace, "c.txt", "1\n", "step one");
    workspace.receive(&Limits::default()).unwrap();
    std::fs::write(workspace.worktree().join("c.txt"), "2\n").unwrap();
    agent_git(&workspace, &["commit", "--quiet", "-a", "--amend", "-m", "step one, better"]);
    let received = workspace.receive(&Limits::default()).unwrap();
    assert_eq!(received.commits.len(), 1, "{received:?}");
    assert_eq!(fixture.git(&["log", "--format=%s", "task/steps"]), "step one, better\nfirst");
    assert_eq!(fixture.git(&["for-each-ref", "refs/guard"]), "");
    workspace.dispose(KeepPolicy::Keep).unwrap();
    assert_eq!(git(workspace.worktree(), &["status", "--porcelain"]), "");
}

#[test]
fn uncommitted_changes_of_the_user_are_reported_and_kept() {
    let fixture = TestRepository::new();
    std::fs::write(fixture.repository.join("a.txt"), "mine\n").unwrap();
    let workspace = fixture.open("told");
    assert!(workspace.has_uncommitted_changes());
    assert_eq!(std::fs::read_to_string(workspace.worktree().join("a.txt")).unwrap(), "one\n");
    assert_eq!(fixture.git(&["diff", "--name-only"]), "a.txt");
}

#[test]
fn directory_without_a_repository_is_not_found() {
    let scratch = crate::support::Scratch::new("no-repository");
    assert!(Repository::find(&scratch.0).unwrap().is_none());
}

#[test]
fn concurrent_runs_receive_only_their_own_commits() {
    let fixture = TestRepository::new();
    let mut one = fixture.open("one");
    let mut two = fixture.open("two");
    let first = agent_commit(&one, "c.txt", "1\n", "one");
    let second = agent_commit(&two, "c.txt", "2\n", "two");
    std::thread::scope(|scope| {
        scope.spawn(|| one.receive(&Limits::default()).unwrap());
        scope.spawn(|| two.receive(&Limits::default()).unwrap());
    });
    one.dispose(KeepPolicy::Keep).unwrap();
    two.dispose(KeepPolicy::Keep).unwrap();
    assert_eq!(fixture.git(&["rev-parse", "task/one", "task/two"]), format!("{first}\n{second}"));
    assert_eq!(Record::read(&fixture.request("one").run_folder).unwrap().state, State::Kept);
    fixture.fsck();
}
