//! Every kind of repository either works or is refused, with the reason, before anything is made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use guard::workspace::{KeepPolicy, Limits, Repository, Workspace, WorkspaceError};

use super::{Place, agent, commit, git, git_in};

/// One commit through the whole way; the worktree is left as the user finds it.
fn works(place: &Place, name: &str) -> Workspace {
    let mut workspace = place.open(name);
    assert_eq!(agent(&workspace, &["status", "--porcelain"]), "", "the index is the worktree's");
    let tip = commit(&workspace, "made here.txt", "three\n", "a commit");
    let received = workspace.receive(&Limits::default()).unwrap();
    assert_eq!((received.new.as_str(), received.commits.len()), (tip.as_str(), 1));
    assert!(received.other_refs.is_empty(), "{:?}", received.other_refs);
    workspace.dispose(KeepPolicy::Auto).unwrap();
    assert_eq!(git(workspace.worktree(), &["status", "--porcelain"]), "");
    assert_eq!(git(workspace.worktree(), &["rev-parse", "HEAD"]), tip);
    workspace
}

fn refused(result: Result<Workspace, WorkspaceError>, words: &str) {
    match result {
        Err(error @ (WorkspaceError::Refused { .. } | WorkspaceError::NameTaken { .. })) => {
            assert!(error.to_string().contains(words), "{error:?} does not say {words:?}");
            assert!(error.hint().is_some_and(|hint| !hint.is_empty()));
        }
        other => panic!("not refused for {words:?}: {other:?}"),
    }
}

#[test]
fn sha256_objects() {
    let place = Place::with(&["--object-format=sha256"]);
    works(&place, "long");
    assert_eq!(place.git(&["rev-parse", "task/long"]).len(), 64);
    place.fsck();
}

#[test]
fn reftable_refs() {
    if git_in(Path::new("/"), &["init", "--ref-format=reftable", "--help"])
        .stderr
        .starts_with(b"error: unknown")
    {
        crate::sandbox::skip("reftable", "this git does not have it");
        return;
    }
    let place = Place::with(&["--ref-format=reftable"]);
    assert_eq!(place.find().ref_format, "reftable");
    let mut workspace = works(&place, "table");
    assert_eq!(place.git(&["log", "--format=%s", "task/table"]), "a commit\nfirst");
    workspace.dispose(KeepPolicy::Discard).unwrap();
    assert_eq!(place.git(&["branch", "--list", "task/*"]), "");
    place.fsck();
}

#[test]
fn a_bare_repository_and_its_worktrees() {
    let mut place = Place::new();
    let bare = place.scratch.0.join("store.git");
    git(&place.scratch.0, &["clone", "--quiet", "--bare", "project", "store.git"]);
    git(&bare, &["worktree", "add", "--quiet", "../work", "-b", "work"]);
    place.repository = bare;
    assert!(place.find().bare);
    let workspace = works(&place, "from-bare");
    assert_eq!(workspace.worktree(), place.scratch.0.join(".worktrees/store-from-bare"));
    place.repository = place.scratch.0.join("work");
    works(&place, "from-worktree-of-bare");
    place.fsck();
}

#[test]
fn ten_thousand_packed_refs() {
    let place = Place::new();
    let id = place.git(&["rev-parse", "HEAD"]);
    let lines: String =
        (0..10_000).map(|number| format!("{id} refs/remotes/origin/b{number:05}\n")).collect();
    let packed = format!("# pack-refs with: peeled fully-peeled sorted \n{lines}");
    std::fs::write(place.repository.join(".git/packed-refs"), packed).unwrap();
    place.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/b00007"]);
    let workspace = place.open("many");
    assert_eq!(agent(&workspace, &["for-each-ref", "refs/remotes"]).lines().count(), 10_001);
    assert_eq!(
        agent(&workspace, &["symbolic-ref", "refs/remotes/origin/HEAD"]),
        "refs/remotes/origin/b00007"
    );
    let loose = std::fs::read_dir(workspace.quarantine().join("refs/remotes/origin")).unwrap().count();
    assert_eq!(loose, 1, "one file for all but the symbolic one");
    drop(workspace);
    works(&place, "again");
}

#[test]
fn a_worktree_of_a_worktree() {
    let mut place = Place::new();
    place.git(&["worktree", "add", "--quiet", "../second", "-b", "second"]);
    place.repository = place.scratch.0.join("second");
    commit_as_user(&place, "d.txt");
    let workspace = works(&place, "deeper");
    assert_eq!(workspace.worktree(), place.scratch.0.join(".worktrees/project-deeper"));
    assert!(workspace.worktree().join("d.txt").exists(), "it begins at the worktree's own HEAD");
}

fn commit_as_user(place: &Place, file: &str) {
    std::fs::write(place.repository.join(file), "user\n").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "--quiet", "-m", "by the user"]);
}

#[test]
fn a_detached_head() {
    let place = Place::new();
    commit_as_user(&place, "later.txt");
    place.git(&["checkout", "--quiet", "--detach", "HEAD^"]);
    let workspace = works(&place, "detached");
    assert!(!workspace.worktree().join("later.txt").exists());
    refused(
        Workspace::open(
            &place.find(),
            &guard::workspace::Request { base: Some("nowhere".into()), ..place.request("x") },
        ),
        "is not a commit",
    );
}

#[test]
fn an_unborn_branch_is_refused() {
    let scratch = crate::support::Scratch::new("unborn");
    let repository = scratch.0.join("project");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "--quiet"]);
    let place = Place { scratch, repository };
    let before = place.snapshot();
    refused(Workspace::open(&place.find(), &place.request("x")), "no commit to start from");
    assert_eq!(place.snapshot(), before);
    assert!(!place.request("x").run_folder.exists() && !place.scratch.0.join(".worktrees").exists());
}

#[test]
fn paths_with_spaces_and_bytes_that_are_no_text() {
    let mut place = Place::new();
    for name in [&b"with a space"[..], b"quo\"te's", b"caf\xe9-latin1", b"back\\slash", b"-dash"] {
        let to = place.scratch.0.join(OsStr::from_bytes(name));
        std::fs::create_dir(&to).unwrap();
        git(
            &place.scratch.0,
            &[OsStr::new("clone"), OsStr::new("--quiet"), OsStr::new("project"), to.join("r").as_os_str()],
        );
        let kept = std::mem::replace(&mut place.repository, to.join("r"));
        place.git(&["config", "user.name", "User"]);
        place.git(&["config", "user.email", "user@example.org"]);
        let file = OsStr::from_bytes(b"f\xfc-\n.txt");
        std::fs::write(place.repository.join(file), "odd\n").unwrap();
        place.git(&["add", "-A"]);
        place.git(&["commit", "--quiet", "-m", "odd"]);
        let name = format!("odd{}", name.len());
        let workspace = works(&place, &name);
        assert!(workspace.worktree().join(file).exists());
        let read = guard::workspace::Record::read(&place.request(&name).run_folder).unwrap();
        assert_eq!(read.worktree, workspace.worktree(), "the record keeps every byte");
        place.repository = kept;
    }
    std::fs::create_dir(place.scratch.0.join("line\nbreak")).unwrap();
    git(&place.scratch.0, &["clone", "--quiet", "project", "line\nbreak/r"]);
    let error = Repository::find(&place.scratch.0.join("line\nbreak/r")).unwrap_err();
    assert!(error.hint().unwrap().contains("line breaks"), "{error}");
}

#[test]
fn a_shallow_clone() {
    let mut place = Place::new();
    commit_as_user(&place, "later.txt");
    let url = format!("file://{}", place.repository.display());
    git(&place.scratch.0, &["clone", "--quiet", "--depth=1", &url, "cut"]);
    place.repository = place.scratch.0.join("cut");
    assert!(place.find().shallow);
    let workspace = works(&place, "cut");
    assert_eq!(git(workspace.worktree(), &["log", "--format=%s"]), "a commit\nby the user");
    place.fsck();
}

#[test]
fn a_partial_clone() {
    let mut place = Place::new();
    commit_as_user(&place, "later.txt");
    place.git(&["rm", "--quiet", "later.txt"]);
    place.git(&["commit", "--quiet", "-m", "gone again"]);
    place.git(&["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", place.repository.display());
    git(&place.scratch.0, &["clone", "--quiet", "--filter=blob:none", &url, "part"]);
    place.repository = place.scratch.0.join("part");
    let missing = place.git(&["rev-list", "--objects", "--missing=print", "HEAD"]);
    assert!(missing.contains('?'), "something is not there: {missing}");
    works(&place, "part");
}

#[test]
fn worktree_configuration_and_sparse_checkouts() {
    let place = Place::new();
    std::fs::create_dir_all(place.repository.join("in/deep")).unwrap();
    std::fs::create_dir_all(place.repository.join("out")).unwrap();
    std::fs::write(place.repository.join("in/deep/x"), "x").unwrap();
    std::fs::write(place.repository.join("out/y"), "y").unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "--quiet", "-m", "folders"]);
    place.git(&["config", "extensions.worktreeConfig", "true"]);
    place.git(&["sparse-checkout", "set", "--cone", "in"]);
    assert!(!place.repository.join("out").exists());
    let mut workspace = place.open("sparse");
    assert!(workspace.worktree().join("in/deep/x").exists() && !workspace.worktree().join("out").exists());
    assert_eq!(agent(&workspace, &["status", "--porcelain"]), "");
    let tip = commit(&workspace, "in/new", "n", "a commit");
    workspace.receive(&Limits::default()).unwrap();
    workspace.dispose(KeepPolicy::Auto).unwrap();
    assert_eq!(git(workspace.worktree(), &["status", "--porcelain"]), "");
    assert_eq!(
        place.git(&["ls-tree", "-r", "--name-only", &tip, "out"]),
        "out/y",
        "what is not checked out stays"
    );
}

#[test]
fn submodules_stay_empty_and_recorded() {
    let place = Place::new();
    git(&place.scratch.0, &["clone", "--quiet", "project", "library"]);
    place.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../library", "lib"]);
    place.git(&["commit", "--quiet", "-m", "with a submodule"]);
    place.git(&["config", "submodule.recurse", "true"]);
    let workspace = works(&place, "sub");
    assert_eq!(std::fs::read_dir(workspace.worktree().join("lib")).unwrap().count(), 0);
    assert!(place.git(&["ls-tree", "task/sub", "lib"]).starts_with("160000 commit"));
}

#[test]
fn here_works_in_a_linked_worktree_and_nowhere_else() {
    let mut place = Place::new();
    let here = |place: &Place, name: &str| guard::workspace::Request { here: true, ..place.request(name) };
    refused(Workspace::open(&place.find(), &here(&place, "main")), "main worktree");
    place.git(&["worktree", "add", "--quiet", "../mine", "-b", "feature"]);
    place.repository = place.scratch.0.join("mine");
    std::fs::write(place.repository.join("a.txt"), "half done\n").unwrap();
    std::fs::write(place.repository.join("b.txt"), "staged\n").unwrap();
    place.git(&["add", "b.txt"]);
    let mut workspace = place.open_with(&here(&place, "mine"));
    assert_eq!(workspace.branch(), "feature");
    assert_eq!(
        agent(&workspace, &["status", "--porcelain"]),
        " M a.txt
M  b.txt"
    );
    agent(&workspace, &["commit", "--quiet", "-m", "b", "b.txt"]);
    workspace.receive(&Limits::default()).unwrap();
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(settled.kept, "somebody else's worktree is never removed");
    assert_eq!(git_in(&place.repository, &["status", "--porcelain"]).stdout, b" M a.txt\n");
    assert_eq!(place.git(&["log", "--format=%s", "feature"]), "b\nfirst");
    place.git(&["checkout", "--quiet", "--detach"]);
    refused(Workspace::open(&place.find(), &here(&place, "detached")), "no branch with a commit");
}

#[test]
fn names_that_are_taken_are_refused_and_nothing_is_touched() {
    let place = Place::new();
    place.git(&["branch", "task/taken"]);
    std::fs::create_dir_all(place.scratch.0.join(".worktrees/project-there")).unwrap();
    let before = place.snapshot();
    refused(Workspace::open(&place.find(), &place.request("taken")), "the branch task/taken already exists");
    refused(Workspace::open(&place.find(), &place.request("there")), "already exists");
    refused(Workspace::open(&place.find(), &place.request("///")), "no letters");
    assert_eq!(place.snapshot(), before);
    // A branch that is in the way of the directory for ours.
    let in_the_way = guard::workspace::Request { prefix: "main/".into(), ..place.request("x") };
    let error = Workspace::open(&place.find(), &in_the_way).unwrap_err();
    assert!(error.to_string().contains("main"), "{error}");
    assert_eq!(place.snapshot(), before);
    assert!(!place.scratch.0.join(".worktrees/project-x").exists());
}

#[test]
fn worktrees_go_elsewhere_when_the_parent_is_not_ones_own() {
    let place = Place::new();
    std::os::unix::fs::symlink("/tmp", place.scratch.0.join(".worktrees")).unwrap();
    let workspace = place.open("away");
    assert!(
        workspace.worktree().starts_with(place.scratch.0.join("state/worktrees")),
        "{:?}",
        workspace.worktree()
    );
    let root = place.scratch.0.join("elsewhere");
    let asked = guard::workspace::Request { root: Some(root.clone()), ..place.request("asked") };
    assert!(place.open_with(&asked).worktree().starts_with(root));
}

#[test]
fn somebody_elses_repository_is_refused_unless_git_was_told() {
    if !nix::unistd::geteuid().is_root() {
        crate::sandbox::skip("another user's repository", "the tests were not started by root");
        return;
    }
    let place = Place::new();
    for entry in [place.repository.clone(), place.repository.join(".git")] {
        std::os::unix::fs::chown(entry, Some(64_017), Some(64_017)).unwrap();
    }
    let said = git_in(&place.repository, &["status"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("dubious"), "git itself refuses it");
    match Repository::find(&place.repository) {
        Err(WorkspaceError::Refused { problem, .. }) => {
            assert!(problem.contains("does not belong to the user"), "{problem}")
        }
        other => panic!("{other:?}"),
    }
}
