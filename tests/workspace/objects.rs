//! guard must not receive objects that are not a valid history, and must be able to read hostile objects safely.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use guard::git::{KeepPolicy, Limits, ReceiveError, Workspace};

use crate::support::{TestRepository, agent_commit, agent_git, git, git_in, isolated_command};

/// Writes an object unchanged, even if git would reject it. Returns its hash.
fn object(workspace: &Workspace, kind: &str, bytes: &[u8]) -> String {
    let mut child = isolated_command("git", Path::new("/nonexistent"))
        .args(["hash-object", "-t", kind, "-w", "--stdin", "--literally"])
        .current_dir(workspace.worktree())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim_end().to_string()
}

fn hex(id: &str) -> Vec<u8> {
    (0..id.len() / 2).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn tree(workspace: &Workspace, entries: &[(&str, &str, &str)]) -> String {
    let mut bytes = Vec::new();
    for (mode, name, id) in entries {
        bytes.extend_from_slice(format!("{mode} {name}\0").as_bytes());
        bytes.extend(hex(id));
    }
    object(workspace, "tree", &bytes)
}

fn commit_of(workspace: &Workspace, tree: &str) -> String {
    let parent = &workspace.record().base;
    let text = format!(
        "tree {tree}\nparent {parent}\nauthor A <a@b> 1700000000 +0000\ncommitter A <a@b> 1700000000 +0000\n\nx\n"
    );
    object(workspace, "commit", text.as_bytes())
}

fn set(workspace: &Workspace, id: &str) {
    let file = workspace.quarantine().join("refs/heads").join(workspace.branch());
    std::fs::write(file, format!("{id}\n")).unwrap();
}

fn receive(workspace: &mut Workspace) -> Result<guard::git::Received, ReceiveError> {
    workspace.receive(&Limits { time: Duration::from_secs(30), ..Limits::default() })
}

#[test]
fn objects_that_are_not_a_valid_history_are_refused() {
    let fixture = TestRepository::new();
    type Make = (&'static str, fn(&Workspace) -> String);
    let makes: &[Make] = &[
        ("a blob", |w| object(w, "blob", b"x")),
        ("a tree", |w| tree(w, &[])),
        ("a tag", |w| {
            let text =
                format!("object {}\ntype commit\ntag t\ntagger A <a@b> 1 +0000\n\nx\n", w.record().base);
            object(w, "tag", text.as_bytes())
        }),
        ("nothing", |_| "0123456789012345678901234567890123456789".to_string()),
        ("a missing tree", |w| commit_of(w, "0123456789012345678901234567890123456789")),
        ("a missing blob", |w| {
            let id = tree(w, &[("100644", "x", "0123456789012345678901234567890123456789")]);
            commit_of(w, &id)
        }),
        ("a folder .git", |w| {
            let blob = object(w, "blob", b"[core]\n\tfsmonitor = evil\n");
            let inner = tree(w, &[("100644", "config", &blob)]);
            let id = tree(w, &[("40000", ".git", &inner)]);
            commit_of(w, &id)
        }),
        ("a folder .GIT", |w| {
            let id = tree(w, &[("40000", ".GIT", &tree(w, &[]))]);
            commit_of(w, &id)
        }),
        ("a folder ..", |w| {
            let id = tree(w, &[("40000", "..", &tree(w, &[]))]);
            commit_of(w, &id)
        }),
        ("a name with a slash", |w| {
            let id = tree(w, &[("100644", "../x", &object(w, "blob", b"x"))]);
            commit_of(w, &id)
        }),
        ("names twice", |w| {
            let blob = object(w, "blob", b"x");
            let id = tree(w, &[("100644", "x", &blob), ("120000", "x", &blob)]);
            commit_of(w, &id)
        }),
        ("a .gitmodules that runs", |w| {
            let text = b"[submodule \"x\"]\n\tpath = x\n\turl = -u./evil\n";
            let id = tree(w, &[("100644", ".gitmodules", &object(w, "blob", text))]);
            commit_of(w, &id)
        }),
        ("a .gitmodules that is a link", |w| {
            let id = tree(w, &[("120000", ".gitmodules", &object(w, "blob", b"/etc/passwd"))]);
            commit_of(w, &id)
        }),
        ("no author", |w| {
            let text = format!("tree {}\nparent {}\n\nx\n", tree(w, &[]), w.record().base);
            object(w, "commit", text.as_bytes())
        }),
    ];
    for (number, (name, make)) in makes.iter().enumerate() {
        let mut workspace = fixture.open(&format!("object{number}"));
        let id = make(&workspace);
        set(&workspace, &id);
        let refs = fixture.git(&["for-each-ref"]);
        match receive(&mut workspace) {
            Err(
                ReceiveError::NotACommit(_)
                | ReceiveError::BadObjects(_)
                | ReceiveError::Unreadable(_)
                | ReceiveError::NotDescending { .. },
            ) => {}
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(fixture.git(&["for-each-ref"]), refs, "{name}");
    }
    fixture.fsck();
}

#[test]
fn objects_of_other_repositories_are_not_received() {
    let fixture = TestRepository::new();
    let private = fixture.scratch.0.join("private");
    git(&fixture.scratch.0, &["init", "--quiet", "private"]);
    std::fs::write(private.join("key"), "secret\n").unwrap();
    git(&private, &["add", "-A"]);
    git(&private, &["commit", "--quiet", "-m", "secret"]);
    let secret = git(&private, &["rev-parse", "HEAD:key"]);
    type Borrow = (&'static str, fn(&Path, &Path));
    let borrows: &[Borrow] = &[
        ("alternates", |objects, private| {
            let file = objects.join("info/alternates");
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(file, format!("{text}{}\n", private.display())).unwrap();
        }),
        ("links", |objects, private| {
            for entry in std::fs::read_dir(private).unwrap().flatten() {
                let to = objects.join(entry.file_name());
                if !to.exists() {
                    symlink(entry.path(), to).unwrap();
                }
            }
        }),
    ];
    for (name, borrow) in borrows {
        let mut workspace = fixture.open(name);
        borrow(&workspace.quarantine().join("objects"), &private.join(".git/objects"));
        assert_eq!(agent_git(&workspace, &["cat-file", "blob", &secret]), "secret", "unjailed git reads it");
        let tree = tree(&workspace, &[("100644", "key", &secret)]);
        let tip = commit_of(&workspace, &tree);
        set(&workspace, &tip);
        let result = receive(&mut workspace);
        assert!(
            matches!(result, Err(ReceiveError::Unreadable(_) | ReceiveError::BadObjects(_))),
            "{name}: {result:?}"
        );
        let asked = git_in(&fixture.repository, &["cat-file", "-e", &secret]);
        assert!(!asked.status.success(), "{name}: the object has not come along");
    }
}

#[test]
fn pipes_in_place_of_objects_do_not_block_the_receive() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("pipe");
    let tip = agent_commit(&workspace, "c.txt", "c", "work");
    let file = workspace.quarantine().join("objects").join(&tip[..2]).join(&tip[2..]);
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let begun = Instant::now();
    let error = workspace.receive(&Limits { time: Duration::from_secs(1), ..Limits::default() }).unwrap_err();
    assert!(matches!(error, ReceiveError::TooSlow(_) | ReceiveError::Unreadable(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(fixture.git(&["rev-parse", "task/pipe"]), workspace.record().base);
    fixture.fsck();
    let left = std::fs::read_dir(fixture.repository.join(".git/objects")).unwrap().flatten();
    let left: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("tmp_")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn receive_over_the_size_limit_is_refused_and_can_be_repeated() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("large");
    let mut noise = vec![0u8; 3 << 20];
    let mut state = 1u64;
    for byte in &mut noise {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 33) as u8;
    }
    std::fs::write(workspace.worktree().join("noise"), &noise).unwrap();
    agent_git(&workspace, &["add", "-A"]);
    agent_git(&workspace, &["commit", "--quiet", "-m", "large"]);
    let error = workspace.receive(&Limits { bytes: 1 << 20, ..Limits::default() }).unwrap_err();
    assert!(matches!(error, ReceiveError::TooLarge { .. }) && error.is_retryable(), "{error}");
    assert!(workspace.quarantine().exists());
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert!(settled.kept && settled.unreceived);
    drop(workspace);
    let mut again = Workspace::load(&fixture.request("large").run_folder).unwrap();
    again.receive(&Limits::default()).unwrap();
    again.dispose(KeepPolicy::Auto).unwrap();
    assert_eq!(git(again.worktree(), &["status", "--porcelain"]), "");
    fixture.fsck();
}

#[test]
fn commit_graphs_and_indexes_of_the_agent_are_not_used() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("graph");
    let tip = agent_commit(&workspace, "c.txt", "c", "work");
    agent_git(&workspace, &["commit-graph", "write", "--reachable"]);
    agent_git(&workspace, &["repack", "-q", "-a", "-d", "-l"]);
    agent_git(&workspace, &["multi-pack-index", "write"]);
    for file in ["objects/info/commit-graph", "objects/pack/multi-pack-index"] {
        let file = workspace.quarantine().join(file);
        let mut bytes = std::fs::read(&file).unwrap();
        let length = bytes.len();
        bytes[length / 3..].fill(0xa5);
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, bytes).unwrap();
    }
    assert_eq!(receive(&mut workspace).unwrap().new, tip);
    fixture.fsck();
}

#[test]
fn damaged_objects_are_refused_and_the_repository_stays_intact() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("damaged");
    agent_commit(&workspace, "c.txt", "some text that is long enough to be damaged", "work");
    let blob = agent_git(&workspace, &["rev-parse", "HEAD:c.txt"]);
    let file = workspace.quarantine().join("objects").join(&blob[..2]).join(&blob[2..]);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, b"not an object").unwrap();
    let error = receive(&mut workspace).unwrap_err();
    assert!(matches!(error, ReceiveError::Unreadable(_)), "{error}");
    assert_eq!(fixture.git(&["rev-parse", "task/damaged"]), workspace.record().base);
    fixture.fsck();
}

#[test]
fn git_lfs_objects_are_received_only_with_the_right_digest() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("lfs");
    agent_commit(&workspace, "c.txt", "c", "work");
    let store = workspace.quarantine().join("lfs/objects");
    let digest = <sha2::Sha256 as sha2::Digest>::digest(b"large\n");
    let honest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let forged = "ab".repeat(32);
    for name in [&honest, &forged] {
        let folder = store.join(&name[..2]).join(&name[2..4]);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), "large\n").unwrap();
    }
    symlink("/etc", store.join("ff")).unwrap();
    receive(&mut workspace).unwrap();
    let real = fixture.repository.join(".git/lfs/objects");
    assert!(real.join(&honest[..2]).join(&honest[2..4]).join(&honest).is_file());
    assert!(!real.join("ab").exists() || std::fs::read_dir(real.join("ab/ab")).unwrap().count() == 0);
    assert!(workspace.dispose(KeepPolicy::Auto).unwrap().unreceived, "what was not taken stays");
}
