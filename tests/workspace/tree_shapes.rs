//! Tests trees of any shape in the worktree and in the quarantine. The run must end and report them, and guard must be
//! able to clean them up.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::git::{KeepPolicy, Limits, ReceiveError, Request, Workspace};

use crate::support::{TestRepository, agent_commit, agent_git, git, in_two_environments, skip_unsupported};

/// The time limit for a test: longer than its steps take on a busy machine, and shorter than a step that waits for
/// something or reads a terabyte.
const ENDS: Duration = Duration::from_secs(180);

/// Creates nested directories whose path is too long for any system call, with a file in the innermost one.
fn deep(top: &Path) {
    let script = "import os, sys\nos.makedirs(sys.argv[1]); os.chdir(sys.argv[1])\n\
                  for _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('leaf', 'w').write('work')";
    let made = std::process::Command::new("python3").args(["-c", script]).arg(top).status().unwrap();
    assert!(made.success());
}

/// Returns the content of the file in the innermost directory that [`deep`] created.
fn leaf(top: &Path) -> String {
    let script = "import os, sys\nos.chdir(sys.argv[1])\nwhile os.path.isdir('d'): os.chdir('d')\nprint(open('leaf').read())";
    let output = std::process::Command::new("python3").args(["-c", script]).arg(top).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}

fn receive(workspace: &mut Workspace) -> Result<guard::git::Received, ReceiveError> {
    workspace.receive(&Limits { time: Duration::from_secs(20), ..Limits::default() })
}

#[test]
fn work_below_too_long_paths_is_kept() {
    let fixture = TestRepository::new();
    let started = Instant::now();
    let mut workspace = fixture.open("deep");
    deep(&workspace.worktree().join("chain"));
    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert!(settled.kept, "what git cannot see is not nothing: {settled:?}");
    assert_eq!(settled.uncommitted, [Path::new("chain")]);
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(!settled.kept && !workspace.worktree().exists());
    assert_eq!(settled.moved.len(), 1, "{settled:?}");
    assert_eq!(leaf(&settled.moved[0].1), "work", "it is in the run's folder");
    assert!(started.elapsed() < ENDS, "{:?}", started.elapsed());
    guard::sys::remove_tree::remove_tree(workspace.run_folder()).unwrap();
}

#[test]
fn work_in_an_inaccessible_directory_is_kept() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("closed");
    let folder = workspace.worktree().join("closed");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("work"), "work").unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o000)).unwrap();
    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap();
    assert!(settled.kept && settled.uncommitted == [Path::new("closed/")], "{settled:?}");
    workspace.dispose(KeepPolicy::Discard).unwrap();
    assert_eq!(fixture.git(&["show", "refs/guard/run-closed/work:closed/work"]), "work");
}

/// The agent leaves a sparse file of a terabyte, which takes no disk space and hours to read. guard must not read it,
/// and must move the worktree to the run's directory.
#[test]
fn worktree_with_a_terabyte_sparse_file_is_set_aside() {
    let fixture = TestRepository::new();
    let started = Instant::now();
    let mut workspace = fixture.open("large");
    let worktree = workspace.worktree().to_path_buf();
    let file = std::fs::File::create(worktree.join("hole")).unwrap();
    if file.set_len(1 << 40).is_err() {
        skip_unsupported("a file with a hole", "the file system has none of this size");
        return;
    }
    std::fs::write(worktree.join("small"), "small").unwrap();
    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(!settled.kept && !worktree.exists(), "{settled:?}");
    let now = &settled.moved.iter().find(|(from, _)| *from == worktree).unwrap().1;
    assert_eq!(std::fs::read_to_string(now.join("small")).unwrap(), "small");
    assert_eq!(now.join("hole").metadata().unwrap().len(), 1 << 40);
    assert!(started.elapsed() < ENDS, "{:?}", started.elapsed());
}

/// After a run guard must delete the run's quarantine repository (its private git directory), whatever files it
/// contains, or report that it keeps the repository.
#[test]
fn quarantine_of_any_shape_is_deleted_or_reported() {
    let fixture = TestRepository::new();
    let started = Instant::now();
    for part in ["odd", "refs/heads/odd", "lfs/objects", "objects/odd", "info/odd"] {
        let mut workspace = fixture.open(&part.replace('/', "-"));
        let git = workspace.quarantine();
        let tip = agent_commit(&workspace, "c.txt", part, "work");
        deep(&git.join(part));
        match receive(&mut workspace) {
            Ok(received) => assert_eq!(received.new, tip, "{part}"),
            // guard inspects the objects before git may read them, and refuses a tree that is too deep.
            Err(error) => {
                assert!(part == "objects/odd" && matches!(error, ReceiveError::Unreadable(_)), "{error}")
            }
        }
        let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
        assert!(!settled.kept && !workspace.worktree().exists(), "{part}");
        // Below a directory that is too deep, there may be refs that guard has not read.
        let is_unread = matches!(part, "objects/odd" | "refs/heads/odd");
        assert_eq!(settled.unreceived, is_unread, "{part}: {settled:?}");
        assert_eq!(git.exists(), settled.unreceived, "{part}");
        guard::sys::remove_tree::remove_tree(workspace.run_folder()).unwrap();
    }
    let mut workspace = fixture.open("wide");
    let folder = workspace.quarantine().join("refs/heads/wide");
    std::fs::create_dir(&folder).unwrap();
    (0..5_000).for_each(|number| std::fs::write(folder.join(number.to_string()), "x").unwrap());
    for name in [&b"line\nbreak"[..], b"\xff\xfe", b"a b"] {
        std::fs::write(folder.join(std::ffi::OsStr::from_bytes(name)), &workspace.record().base).unwrap();
    }
    let received = receive(&mut workspace).unwrap();
    assert!(
        received.other_refs.iter().all(|one| !one.name.contains('\n')),
        "{:?}",
        received.other_refs.len()
    );
    assert!(workspace.dispose(KeepPolicy::Auto).unwrap().unreceived);
    assert!(started.elapsed() < ENDS, "{:?}", started.elapsed());
}

/// The agent replaced `.git` by directories that are nested too deeply to be copied, and the run's directory is on
/// another disk. guard must rename the replacement in the worktree instead of moving it to the run's directory.
#[test]
fn tree_too_deep_to_copy_is_renamed_in_place() {
    use std::os::unix::fs::MetadataExt;
    let fixture = TestRepository::new();
    let other = PathBuf::from(format!("/dev/shm/guard-shapes-{}", std::process::id()));
    let is_other = std::fs::create_dir(&other).is_ok()
        && other.metadata().unwrap().dev() != fixture.scratch.0.metadata().unwrap().dev();
    if !is_other {
        skip_unsupported("another disk", "/dev/shm is none");
        return;
    }
    let request = Request { run_folder: other.join("run"), ..fixture.request("disk") };
    let mut workspace = fixture.open_with(&request);
    let dot_git = workspace.worktree().join(".git");
    let tip = agent_commit(&workspace, "c.txt", "c", "work");
    std::fs::remove_file(&dot_git).unwrap();
    deep(&dot_git);
    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Keep).unwrap();
    let (from, now) = &settled.moved[0];
    assert!(*from == dot_git && now.parent() == dot_git.parent(), "{settled:?}");
    assert_eq!(leaf(now), "work");
    assert_eq!(git(workspace.worktree(), &["rev-parse", "HEAD"]), tip);
    workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(!workspace.worktree().exists());
    guard::sys::remove_tree::remove_tree(&other).unwrap();
}

#[test]
fn file_names_that_are_not_text_are_kept() {
    let fixture = TestRepository::new();
    let mut workspace = fixture.open("names");
    let names = [&b"line\nbreak"[..], b"\xff\xfe", b"-rf", b" ", b"a\"b", b"tab\t"];
    for name in names {
        std::fs::write(workspace.worktree().join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
    }
    let _socket = std::os::unix::net::UnixListener::bind(workspace.worktree().join("s")).unwrap();
    assert!(agent_git(&workspace, &["status", "--porcelain", "-z"]).contains("-rf"));
    receive(&mut workspace).unwrap();
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert_eq!(settled.uncommitted.len(), names.len(), "{settled:?}");
    assert!(!workspace.worktree().exists());
    let kept = fixture.git(&["ls-tree", "-r", "--name-only", "-z", "refs/guard/run-names/work"]);
    assert_eq!(kept.split('\0').filter(|name| !name.is_empty()).count(), names.len() + 3, "{kept:?}");
}

/// A whole run with the usual limit of file descriptors must end, whatever trees it leaves.
// slow
#[test]
fn run_ends_with_any_tree_left_behind() {
    in_two_environments(|environment| {
        let name = environment.name();
        let agent = "import os
def deep(top):
    here = os.getcwd(); os.makedirs(top); os.chdir(top)
    for _ in range(3000): os.mkdir('d'); os.chdir('d')
    open('leaf', 'w'); os.chdir(here)
deep('chain'); deep(os.environ.get('HOME') + '/chain'); deep(os.environ.get('TMPDIR', '/tmp') + '/chain')
deep(os.popen('git rev-parse --absolute-git-dir').read().strip() + '/chain')
os.mkdir('wide'); [os.mkdir(f'wide/{n}') for n in range(3000)]; os.mkfifo('wide/.gitignore')";
        let guard = crate::support::guard_program().display();
        let namespaces = if environment.namespaces { "require" } else { "off" };
        let started = Instant::now();
        for (task, way) in [("kept", "--auto"), ("gone", "--discard")] {
            let script = format!(
                "ulimit -n 512; cd repository; exec '{guard}' run -q --json --namespaces {namespaces} --name {task} {way} -- python3 -c \"$AGENT\""
            );
            let mut command = environment.command("bash");
            command
                .args(["-c", &script])
                .env("AGENT", agent)
                .current_dir(environment.directory.parent().unwrap());
            let outcome = environment.run_to_end(command, b"");
            assert_eq!(outcome.result["success"], true, "{name}: {outcome}");
            let worktree = &outcome.result["worktree"];
            assert_eq!(worktree["kept"], task == "kept", "{name}: {worktree:#}");
            assert_eq!(worktree["uncommitted"], serde_json::json!(["chain"]), "{name}: {worktree:#}");
            assert_eq!(outcome.result["files_changed_truncated"], true, "{name}");
        }
        let prune = format!("ulimit -n 512; '{guard}' runs prune --keep 0");
        let pruned =
            environment.run_outside(&format!("ulimit -n 512; '{guard}' worktree clean task/kept && {prune}"));
        // git could not save the deep directory, so guard moved it and keeps it until the user deletes it.
        assert_eq!(pruned.matches("guard moved files of its worktree to ").count(), 2, "{name}: {pruned}");
        environment.run_outside(&format!("rm -r state/guard/runs/*/foreign && {prune}"));
        assert_eq!(environment.run_outside("ls state/guard/runs"), "", "{name}");
        assert_eq!(
            environment.run_outside("ls -A .worktrees 2> /dev/null | grep -v gitignore || true"),
            "",
            "{name}"
        );
        assert!(started.elapsed() < 2 * ENDS, "{name}: {:?}", started.elapsed());
    });
}

#[test]
fn tree_of_any_shape_is_removed_and_nothing_else() {
    let scratch = crate::support::Scratch::new("tree");
    let folder = scratch.0.join("folder");
    std::fs::create_dir(&folder).unwrap();
    let tree = folder.join("tree");
    let kept = folder.join("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("file"), "kept").unwrap();
    for number in 0..200 {
        std::fs::create_dir_all(tree.join(format!("{number}/inner"))).unwrap();
        std::fs::write(tree.join(format!("{number}/inner/file")), "x").unwrap();
    }
    std::os::unix::fs::symlink(&kept, tree.join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("7/broken")).unwrap();
    nix::unistd::mkfifo(&tree.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, mode) in [("3/inner", 0o000), ("4", 0o500), ("5", 0o200), ("", 0o500)] {
        std::fs::set_permissions(tree.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    guard::sys::remove_tree::remove_tree(&tree).unwrap();
    assert!(tree.symlink_metadata().is_err());
    assert_eq!(std::fs::read_to_string(kept.join("file")).unwrap(), "kept");
    guard::sys::remove_tree::remove_tree(&tree).unwrap();
    std::os::unix::fs::symlink(&kept, &tree).unwrap();
    guard::sys::remove_tree::remove_tree(&tree).unwrap();
    assert!(kept.join("file").exists() && tree.symlink_metadata().is_err());
    guard::sys::remove_tree::remove_tree(&folder).unwrap();
    assert!(!folder.exists());
}
