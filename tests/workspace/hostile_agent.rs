//! An agent leaves hostile files. Nothing outside its branch may change, and none of them may be executed.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use guard::git::{KeepPolicy, Limits, ReceiveError, RefError, Workspace};

use crate::support::{TestRepository, agent_commit, agent_git, git, git_in, isolated_command, make_program};

/// Creates a program that writes a marker file when it is executed. guard must never execute it. Returns the paths of
/// the program and of the marker file.
fn trap(fixture: &TestRepository) -> (PathBuf, PathBuf) {
    let (program, mark) = (fixture.scratch.0.join("trap.sh"), fixture.scratch.0.join("MARK"));
    make_program(&program, format!("#!/bin/sh\necho ran >> '{}'\nexit 1\n", mark.display()));
    (program, mark)
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

fn receive(workspace: &mut Workspace) -> Result<guard::git::Received, ReceiveError> {
    workspace.receive(&Limits { time: Duration::from_secs(20), ..Limits::default() })
}

/// Fails if anything in the git directory of the user's repository changed, except for new objects.
fn nothing_but_objects_changed(
    fixture: &TestRepository,
    before: &std::collections::BTreeMap<PathBuf, Vec<u8>>,
) {
    let objects = fixture.repository.join(".git/objects");
    let after = fixture.snapshot();
    for (path, bytes) in before {
        assert_eq!(after.get(path), Some(bytes), "{} changed", path.display());
    }
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        assert!(path.starts_with(&objects), "{} is new", path.display());
    }
}

fn not_plain(error: &RefError, wanted: &str) -> bool {
    matches!(error, RefError::NotPlain { found, .. } if found.starts_with(wanted))
}

#[test]
fn refs_that_are_not_plain_files_are_not_followed() {
    let fixture = TestRepository::new();
    fixture.git(&["branch", "secret"]);
    type Spoil = (&'static str, fn(&Path), fn(&RefError) -> bool);
    let spoils: &[Spoil] = &[
        (
            "symref",
            |file| std::fs::write(file, "ref: refs/heads/secret\n").unwrap(),
            |error| *error == RefError::Symbolic("refs/heads/secret".into()),
        ),
        ("link", |file| symlink("../secret", file).unwrap(), |error| not_plain(error, "a symbolic link")),
        ("pipe", fifo, |error| not_plain(error, "not a regular file")),
        ("text", |file| std::fs::write(file, "HEAD\n").unwrap(), |error| *error == RefError::NotAnId),
        ("short", |file| std::fs::write(file, "abc\n").unwrap(), |error| *error == RefError::NotAnId),
        (
            "large",
            |file| std::fs::write(file, vec![b'a'; 1 << 20]).unwrap(),
            |error| *error == RefError::NotAnId,
        ),
        ("gone", |_| {}, |error| *error == RefError::Missing),
    ];
    for (name, spoil, is_expected) in spoils {
        let mut workspace = fixture.open(name);
        agent_commit(&workspace, "c.txt", "c", "work");
        let before = fixture.snapshot();
        let file = workspace.quarantine().join("refs/heads/task").join(name);
        std::fs::remove_file(&file).unwrap();
        spoil(&file);
        match receive(&mut workspace) {
            Err(ReceiveError::Ref { source, .. }) => assert!(is_expected(&source), "{name}: {source:?}"),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(fixture.snapshot(), before, "{name}");
        let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
        assert!(
            settled.kept && settled.unreceived && workspace.quarantine().exists(),
            "{name}: the work stays"
        );
    }
}

#[test]
fn linked_ref_directories_and_packed_refs_are_not_followed() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("folder");
    let folder = workspace.quarantine().join("refs/heads/task");
    std::fs::remove_dir_all(&folder).unwrap();
    symlink(fixture.repository.join(".git/refs/heads/task"), &folder).unwrap();
    assert!(matches!(
        receive(&mut workspace),
        Err(ReceiveError::Ref { source: RefError::NotPlain { .. }, .. })
    ));
    for (name, make) in
        [("plink", (|file: &Path| symlink("/etc/passwd", file).unwrap()) as fn(&Path)), ("ppipe", fifo)]
    {
        let mut workspace = fixture.open(name);
        let packed = workspace.quarantine().join("packed-refs");
        std::fs::remove_file(&packed).unwrap();
        std::fs::remove_file(workspace.quarantine().join("refs/heads/task").join(name)).unwrap();
        make(&packed);
        assert!(matches!(
            receive(&mut workspace),
            Err(ReceiveError::Ref { source: RefError::NotPlain { .. }, .. })
        ));
    }
    let mut workspace = fixture.open("table");
    std::fs::create_dir(workspace.quarantine().join("reftable")).unwrap();
    assert!(matches!(receive(&mut workspace), Err(ReceiveError::Ref { source: RefError::Reftable, .. })));
}

#[test]
fn packed_branch_is_received_and_other_refs_are_reported() {
    let fixture = TestRepository::new();
    fixture.git(&["branch", "kept"]);
    fixture.git(&["branch", "doomed"]);
    let mut workspace = fixture.open("packed");
    let tip = agent_commit(&workspace, "c.txt", "c", "work");
    agent_git(&workspace, &["branch", "side"]);
    agent_git(&workspace, &["branch", "--force", "kept", "HEAD"]);
    agent_git(&workspace, &["branch", "-D", "doomed"]);
    std::fs::write(workspace.worktree().join("a.txt"), "stashed").unwrap();
    agent_git(&workspace, &["stash"]);
    agent_git(&workspace, &["pack-refs", "--all"]);
    let kept = fixture.git(&["rev-parse", "kept", "doomed"]);
    let received = receive(&mut workspace).unwrap();
    assert_eq!(received.new, tip);
    let told: Vec<(&str, bool, bool)> =
        received.other_refs.iter().map(|one| (one.name.as_str(), one.is_new, one.id.is_some())).collect();
    assert_eq!(
        told,
        [
            ("refs/heads/doomed", false, false),
            ("refs/heads/kept", false, true),
            ("refs/heads/side", true, true),
            ("refs/stash", true, true)
        ]
    );
    assert_eq!(fixture.git(&["rev-parse", "kept", "doomed"]), kept);
    assert_eq!(fixture.git(&["branch", "--list", "side"]), "");
    assert!(workspace.dispose(KeepPolicy::Auto).unwrap().unreceived, "the stash is nowhere else");
}

#[test]
fn git_configuration_written_by_an_agent_runs_nothing() {
    let fixture = TestRepository::new();
    let (program, mark) = trap(&fixture);
    let trap = program.display().to_string();
    let mut workspace = fixture.open("config");
    let tip = agent_commit(&workspace, "c.txt", "c", "work");
    for key in [
        "core.fsmonitor",
        "core.hooksPath",
        "core.sshCommand",
        "core.alternateRefsCommand",
        "core.pager",
        "core.editor",
        "diff.external",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
        "uploadpack.packObjectsHook",
        "gpg.program",
        "credential.helper",
        "merge.evil.driver",
        "diff.evil.textconv",
    ] {
        agent_git(&workspace, &["config", key, &trap]);
    }
    std::fs::write(workspace.worktree().join(".gitattributes"), "* filter=evil diff=evil merge=evil\n")
        .unwrap();
    std::fs::write(workspace.worktree().join("a.txt"), "changed").unwrap();
    // git in the agent's own repository does run the program, which proves that the test detects it.
    let _ = isolated_command("git", Path::new("/nonexistent"))
        .args(["status"])
        .current_dir(workspace.worktree())
        .output()
        .unwrap();
    assert!(mark.exists(), "the trap works");
    std::fs::remove_file(&mark).unwrap();

    assert_eq!(receive(&mut workspace).unwrap().new, tip);
    let settled = workspace.dispose(KeepPolicy::Keep).unwrap();
    assert!(settled.uncommitted.len() == 2, "{settled:?}");
    for args in [&["status"][..], &["diff"], &["log", "-p"], &["stash"], &["stash", "pop"], &["gc", "-q"]] {
        git(workspace.worktree(), args);
    }
    fixture.git(&["merge", "--quiet", "task/config"]);
    assert!(!mark.exists(), "{}", std::fs::read_to_string(&mark).unwrap_or_default());
    workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(!mark.exists());
}

#[test]
fn anything_in_place_of_the_git_file_is_removed() {
    let fixture = TestRepository::new();
    let (program, mark) = trap(&fixture);
    type Spoil = (&'static str, fn(&Path, &Path));
    let spoils: &[Spoil] = &[
        ("folder", |file, program| {
            git(file.parent().unwrap(), &["init", "--quiet", "."]);
            git(file.parent().unwrap(), &["config", "core.fsmonitor", program.to_str().unwrap()]);
        }),
        ("other", |file, program| {
            let other = file.parent().unwrap().join("other");
            git(file.parent().unwrap().parent().unwrap(), &["init", "--quiet", other.to_str().unwrap()]);
            git(&other, &["config", "core.fsmonitor", program.to_str().unwrap()]);
            std::fs::write(file, format!("gitdir: {}\n", other.join(".git").display())).unwrap();
        }),
        ("link", |file, _| symlink("/etc/passwd", file).unwrap()),
        ("loop", |file, _| symlink(".git", file).unwrap()),
        ("pipe", |file, _| fifo(file)),
        ("large", |file, _| std::fs::write(file, vec![b'x'; 1 << 20]).unwrap()),
        ("gone", |_, _| {}),
    ];
    let passwords = std::fs::read("/etc/passwd").unwrap();
    for (name, spoil) in spoils {
        let mut workspace = fixture.open(&format!("pointer-{name}"));
        let tip = agent_commit(&workspace, "c.txt", "c", "work");
        let file = workspace.worktree().join(".git");
        std::fs::remove_file(&file).unwrap();
        spoil(&file, &program);
        assert_eq!(receive(&mut workspace).unwrap().new, tip);
        let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
        assert_eq!(settled.moved.len(), usize::from(*name != "gone"), "{name}: {settled:?}");
        assert_eq!(git(workspace.worktree(), &["rev-parse", "HEAD"]), tip, "{name}");
        git(workspace.worktree(), &["status"]);
        assert!(workspace.point_at_repository().unwrap().is_none(), "{name}: doing it again changes nothing");
        assert!(!mark.exists(), "{name}");
    }
    assert_eq!(std::fs::read("/etc/passwd").unwrap(), passwords);
}

#[test]
fn nested_repository_runs_nothing_at_git_status_of_the_user() {
    let fixture = TestRepository::new();
    let (program, mark) = trap(&fixture);
    let mut workspace = fixture.open("nested");
    let inner = workspace.worktree().join("deep/inner");
    std::fs::create_dir_all(&inner).unwrap();
    git(&inner, &["init", "--quiet", "."]);
    git(&inner, &["commit", "--quiet", "--allow-empty", "-m", "inner"]);
    agent_git(&workspace, &["add", "-A"]);
    agent_git(&workspace, &["commit", "--quiet", "-m", "with a gitlink"]);
    git(&inner, &["config", "core.fsmonitor", program.to_str().unwrap()]);
    git_in(workspace.worktree(), &["status"]);
    assert!(mark.exists(), "it is real: git of the outer repository runs it");
    std::fs::remove_file(&mark).unwrap();

    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert_eq!(settled.moved.len(), 1);
    assert_eq!(settled.moved[0].0, inner.join(".git"));
    assert!(settled.moved[0].1.join("config").exists(), "it is kept in the run's folder");
    git(workspace.worktree(), &["status"]);
    git(workspace.worktree(), &["diff"]);
    assert!(!mark.exists());
}

#[test]
fn pipes_and_missing_permissions_do_not_block_the_end_of_a_run() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("doors");
    let at = workspace.worktree().to_path_buf();
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    std::fs::create_dir(at.join("closed")).unwrap();
    std::fs::write(at.join("closed/work"), "work").unwrap();
    std::fs::write(at.join("unreadable"), "work").unwrap();
    std::fs::remove_file(at.join("a.txt")).unwrap();
    fifo(&at.join("a.txt"));
    std::fs::create_dir(at.join("deep")).unwrap();
    fifo(&at.join("deep/.gitignore"));
    std::fs::remove_file(at.join(".git")).unwrap();
    std::fs::create_dir(at.join(".git")).unwrap();
    mode(&at.join(".git"), 0);
    mode(&at.join("closed"), 0);
    mode(&at.join("unreadable"), 0);
    mode(&at, 0o500);
    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(!settled.kept && !at.exists(), "{settled:?}");
    for file in ["closed/work", "unreadable"] {
        assert_eq!(fixture.git(&["show", &format!("refs/guard/run-doors/work:{file}")]), "work");
    }
    fixture.fsck();
}

#[test]
fn history_before_the_run_cannot_be_rewritten() {
    let fixture = TestRepository::new();
    std::fs::write(fixture.repository.join("b.txt"), "more\n").unwrap();
    fixture.git(&["commit", "--quiet", "-am", "second"]);
    let attacks: &[(&str, &[&[&str]])] = &[
        ("amend", &[&["commit", "--quiet", "--allow-empty", "--amend", "-m", "forged"]]),
        (
            "drop",
            &[&["reset", "--quiet", "--hard", "HEAD^"], &["commit", "--quiet", "--allow-empty", "-m", "x"]],
        ),
        ("back", &[&["reset", "--quiet", "--hard", "HEAD^"]]),
        (
            "orphan",
            &[
                &["update-ref", "-d", "HEAD"],
                &["commit", "--quiet", "--allow-empty", "-m", "a new beginning"],
            ],
        ),
        (
            "graft",
            &[&["replace", "--graft", "HEAD"], &["commit", "--quiet", "--allow-empty", "--amend", "-m", "x"]],
        ),
    ];
    for (name, commands) in attacks {
        let mut workspace = fixture.open(name);
        for command in *commands {
            agent_git(&workspace, command);
        }
        let before = fixture.snapshot();
        let result = receive(&mut workspace);
        assert!(matches!(result, Err(ReceiveError::NotDescending { .. })), "{name}: {result:?}");
        nothing_but_objects_changed(&fixture, &before);
    }
    // guard must also refuse such a history after it has received a first commit.
    let mut workspace = fixture.open("later");
    agent_commit(&workspace, "c.txt", "c", "work");
    receive(&mut workspace).unwrap();
    agent_git(&workspace, &["reset", "--quiet", "--hard", "HEAD~2"]);
    agent_commit(&workspace, "c.txt", "d", "work again");
    let before = fixture.snapshot();
    assert!(matches!(receive(&mut workspace), Err(ReceiveError::NotDescending { .. })));
    nothing_but_objects_changed(&fixture, &before);
    fixture.fsck();
}

#[test]
fn newer_commits_of_the_user_are_not_overwritten() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("moved");
    agent_commit(&workspace, "c.txt", "c", "work");
    fixture.git(&["commit", "--quiet", "--allow-empty", "-m", "the user's"]);
    let users = fixture.git(&["rev-parse", "HEAD"]);
    fixture.git(&["update-ref", "refs/heads/task/moved", &users]);
    match receive(&mut workspace) {
        Err(ReceiveError::Moved { found, .. }) => assert_eq!(found, users),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.git(&["rev-parse", "task/moved"]), users);
    assert!(workspace.dispose(KeepPolicy::Auto).unwrap().kept);

    let mut workspace = fixture.open("elsewhere");
    agent_commit(&workspace, "c.txt", "c", "work");
    fixture.git(&["checkout", "--quiet", "--ignore-other-worktrees", "task/elsewhere"]);
    match receive(&mut workspace) {
        Err(error @ ReceiveError::CheckedOut { .. }) => assert!(error.is_retryable(), "{error}"),
        other => panic!("{other:?}"),
    }
    fixture.git(&["checkout", "--quiet", "main"]);
    receive(&mut workspace).unwrap();

    let mut workspace = fixture.open("deleted");
    agent_commit(&workspace, "c.txt", "c", "work");
    fixture.git(&["update-ref", "-d", "refs/heads/task/deleted"]);
    assert!(matches!(receive(&mut workspace), Err(ReceiveError::Moved { found, .. }) if found.is_empty()));
}
