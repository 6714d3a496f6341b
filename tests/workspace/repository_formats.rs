//! guard must support each kind of repository, or refuse it with the reason before it creates anything.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use guard::git::{
    Head, KeepPolicy, Limits, Repository, Workspace, WorkspaceError, head_without_git, lacks_entry,
};

use crate::support::{TestRepository, agent_commit, agent_git, git, git_in, skip};

/// Makes one commit as the agent in a new workspace and receives it. Fails unless `git status` of the user then finds
/// the worktree clean and on that commit.
fn works(fixture: &TestRepository, name: &str) -> Workspace {
    let mut workspace = fixture.open(name);
    assert_eq!(agent_git(&workspace, &["status", "--porcelain"]), "", "the index is the worktree's");
    let tip = agent_commit(&workspace, "made here.txt", "three\n", "a commit");
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
fn sha256_repository_works() {
    let fixture = TestRepository::with(&["--object-format=sha256"]);
    works(&fixture, "long");
    assert_eq!(fixture.git(&["rev-parse", "task/long"]).len(), 64);
    fixture.fsck();
}

#[test]
fn reftable_repository_works() {
    if git_in(Path::new("/"), &["init", "--ref-format=reftable", "--help"])
        .stderr
        .starts_with(b"error: unknown")
    {
        skip("reftable", "this git does not have it");
        return;
    }
    let fixture = TestRepository::with(&["--ref-format=reftable"]);
    assert_eq!(fixture.find().ref_format, "reftable");
    let mut workspace = works(&fixture, "table");
    assert_eq!(fixture.git(&["log", "--format=%s", "task/table"]), "a commit\nfirst");
    workspace.dispose(KeepPolicy::Discard).unwrap();
    assert_eq!(fixture.git(&["branch", "--list", "task/*"]), "");
    fixture.fsck();
}

#[test]
fn the_head_is_found_without_git_only_where_git_finds_the_same() {
    let fixture = TestRepository::new();
    let project = fixture.repository.clone();
    let head = |directory: &Path| head_without_git(directory).map(|(_, commit)| commit);
    let first = git(&project, &["rev-parse", "HEAD"]);
    std::fs::create_dir_all(project.join("src/deep")).unwrap();
    assert_eq!(head(&project.join("src/deep")).as_ref(), Some(&first));
    assert!(lacks_entry(&project, &first, ".guard").unwrap());
    git(&project, &["pack-refs", "--all"]);
    assert_eq!(head(&project).as_ref(), Some(&first));
    git(&project, &["checkout", "--quiet", "--detach"]);
    assert_eq!(head(&project).as_ref(), Some(&first));
    std::fs::create_dir(project.join(".guard")).unwrap();
    std::fs::write(project.join(".guard/config.toml"), "").unwrap();
    git(&project, &["add", "."]);
    git(&project, &["commit", "--quiet", "-m", "settings"]);
    let second = head(&project).unwrap();
    assert_eq!(second, git(&project, &["rev-parse", "HEAD"]));
    assert!(!lacks_entry(&project, &second, ".guard").unwrap());
    assert!(!lacks_entry(&project, &"0".repeat(40), ".guard").unwrap(), "there is no such commit");
    // git finds these repositories before the one around them.
    git(&project, &["clone", "--quiet", "--bare", ".", "inner.git"]);
    assert_eq!(head(&project.join("inner.git/refs")), None);
    git(&project, &["worktree", "add", "--quiet", "linked"]);
    assert_eq!(head(&project.join("linked")), None);
    git(&project, &["switch", "--quiet", "--orphan", "empty"]);
    assert_eq!(head(&project), None);
    assert_eq!(fixture.find().head, Head::Unborn("refs/heads/empty".to_string()));
    std::fs::write(project.join(".git/HEAD"), "ref: refs/heads/../../outside\n").unwrap();
    std::fs::write(project.join(".git/outside"), &first).unwrap();
    assert_eq!(head(&project), None);
    assert_eq!(head(Path::new("/")), None);
    let sha256 = TestRepository::with(&["--object-format=sha256"]);
    assert_eq!(head(&sha256.repository), Some(git(&sha256.repository, &["rev-parse", "HEAD"])));
}

#[test]
fn bare_repository_with_worktrees_works() {
    let mut fixture = TestRepository::new();
    let bare = fixture.scratch.0.join("store.git");
    git(&fixture.scratch.0, &["clone", "--quiet", "--bare", "project", "store.git"]);
    git(&bare, &["worktree", "add", "--quiet", "../work", "-b", "work"]);
    fixture.repository = bare;
    assert!(fixture.find().bare);
    let workspace = works(&fixture, "from-bare");
    assert_eq!(workspace.worktree(), fixture.scratch.0.join(".worktrees/store-from-bare"));
    fixture.repository = fixture.scratch.0.join("work");
    works(&fixture, "from-worktree-of-bare");
    fixture.fsck();
}

#[test]
fn ten_thousand_packed_refs_work() {
    let fixture = TestRepository::new();
    let id = fixture.git(&["rev-parse", "HEAD"]);
    let lines: String =
        (0..10_000).map(|number| format!("{id} refs/remotes/origin/b{number:05}\n")).collect();
    let packed = format!("# pack-refs with: peeled fully-peeled sorted \n{lines}");
    std::fs::write(fixture.repository.join(".git/packed-refs"), packed).unwrap();
    fixture.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/b00007"]);
    let workspace = fixture.open("many");
    assert_eq!(agent_git(&workspace, &["for-each-ref", "refs/remotes"]).lines().count(), 10_001);
    assert_eq!(
        agent_git(&workspace, &["symbolic-ref", "refs/remotes/origin/HEAD"]),
        "refs/remotes/origin/b00007"
    );
    let loose = std::fs::read_dir(workspace.quarantine().join("refs/remotes/origin")).unwrap().count();
    assert_eq!(loose, 1, "one file for all but the symbolic one");
    drop(workspace);
    works(&fixture, "again");
}

#[test]
fn run_in_a_linked_worktree_works() {
    let mut fixture = TestRepository::new();
    fixture.git(&["worktree", "add", "--quiet", "../second", "-b", "second"]);
    fixture.repository = fixture.scratch.0.join("second");
    commit_as_user(&fixture, "d.txt");
    let workspace = works(&fixture, "deeper");
    assert_eq!(workspace.worktree(), fixture.scratch.0.join(".worktrees/project-deeper"));
    assert!(workspace.worktree().join("d.txt").exists(), "it begins at the worktree's own HEAD");
}

fn commit_as_user(fixture: &TestRepository, file: &str) {
    std::fs::write(fixture.repository.join(file), "user\n").unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "by the user"]);
}

#[test]
fn detached_head_works() {
    let fixture = TestRepository::new();
    commit_as_user(&fixture, "later.txt");
    fixture.git(&["checkout", "--quiet", "--detach", "HEAD^"]);
    let workspace = works(&fixture, "detached");
    assert!(!workspace.worktree().join("later.txt").exists());
    refused(
        Workspace::open(
            &fixture.find(),
            &guard::git::Request { base: Some("nowhere".into()), ..fixture.request("x") },
        ),
        "is not a commit",
    );
}

#[test]
fn unborn_branch_is_refused() {
    let scratch = crate::support::Scratch::new("unborn");
    let repository = scratch.0.join("project");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "--quiet"]);
    let fixture = TestRepository { scratch, repository };
    let before = fixture.snapshot();
    refused(Workspace::open(&fixture.find(), &fixture.request("x")), "no commit to start from");
    assert_eq!(fixture.snapshot(), before);
    assert!(!fixture.request("x").run_folder.exists() && !fixture.scratch.0.join(".worktrees").exists());
}

#[test]
fn paths_with_spaces_and_invalid_utf8_work() {
    let mut fixture = TestRepository::new();
    for name in [&b"with a space"[..], b"quo\"te's", b"caf\xe9-latin1", b"back\\slash", b"-dash"] {
        let to = fixture.scratch.0.join(OsStr::from_bytes(name));
        std::fs::create_dir(&to).unwrap();
        git(
            &fixture.scratch.0,
            &[OsStr::new("clone"), OsStr::new("--quiet"), OsStr::new("project"), to.join("r").as_os_str()],
        );
        let kept = std::mem::replace(&mut fixture.repository, to.join("r"));
        fixture.git(&["config", "user.name", "User"]);
        fixture.git(&["config", "user.email", "user@example.org"]);
        let file = OsStr::from_bytes(b"f\xfc-\n.txt");
        std::fs::write(fixture.repository.join(file), "odd\n").unwrap();
        fixture.git(&["add", "-A"]);
        fixture.git(&["commit", "--quiet", "-m", "odd"]);
        let name = format!("odd{}", name.len());
        let workspace = works(&fixture, &name);
        assert!(workspace.worktree().join(file).exists());
        let read = guard::git::Record::read(&fixture.request(&name).run_folder).unwrap();
        assert_eq!(read.worktree, workspace.worktree(), "the record keeps every byte");
        fixture.repository = kept;
    }
    std::fs::create_dir(fixture.scratch.0.join("line\nbreak")).unwrap();
    git(&fixture.scratch.0, &["clone", "--quiet", "project", "line\nbreak/r"]);
    let error = Repository::find(&fixture.scratch.0.join("line\nbreak/r")).unwrap_err();
    assert!(error.hint().unwrap().contains("line breaks"), "{error}");
}

#[test]
fn shallow_clone_works() {
    let mut fixture = TestRepository::new();
    commit_as_user(&fixture, "later.txt");
    let url = format!("file://{}", fixture.repository.display());
    git(&fixture.scratch.0, &["clone", "--quiet", "--depth=1", &url, "cut"]);
    fixture.repository = fixture.scratch.0.join("cut");
    assert!(fixture.find().shallow);
    let workspace = works(&fixture, "cut");
    assert_eq!(git(workspace.worktree(), &["log", "--format=%s"]), "a commit\nby the user");
    fixture.fsck();
}

#[test]
fn partial_clone_works() {
    let mut fixture = TestRepository::new();
    commit_as_user(&fixture, "later.txt");
    fixture.git(&["rm", "--quiet", "later.txt"]);
    fixture.git(&["commit", "--quiet", "-m", "gone again"]);
    fixture.git(&["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", fixture.repository.display());
    git(&fixture.scratch.0, &["clone", "--quiet", "--filter=blob:none", &url, "part"]);
    fixture.repository = fixture.scratch.0.join("part");
    let missing = fixture.git(&["rev-list", "--objects", "--missing=print", "HEAD"]);
    assert!(missing.contains('?'), "something is not there: {missing}");
    works(&fixture, "part");
}

#[test]
fn worktree_configuration_and_sparse_checkout_are_respected() {
    let fixture = TestRepository::new();
    std::fs::create_dir_all(fixture.repository.join("in/deep")).unwrap();
    std::fs::create_dir_all(fixture.repository.join("out")).unwrap();
    std::fs::write(fixture.repository.join("in/deep/x"), "x").unwrap();
    std::fs::write(fixture.repository.join("out/y"), "y").unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "folders"]);
    fixture.git(&["config", "extensions.worktreeConfig", "true"]);
    fixture.git(&["sparse-checkout", "set", "--cone", "in"]);
    assert!(!fixture.repository.join("out").exists());
    let mut workspace = fixture.open("sparse");
    assert!(workspace.worktree().join("in/deep/x").exists() && !workspace.worktree().join("out").exists());
    assert_eq!(agent_git(&workspace, &["status", "--porcelain"]), "");
    let tip = agent_commit(&workspace, "in/new", "n", "a commit");
    workspace.receive(&Limits::default()).unwrap();
    workspace.dispose(KeepPolicy::Auto).unwrap();
    assert_eq!(git(workspace.worktree(), &["status", "--porcelain"]), "");
    assert_eq!(
        fixture.git(&["ls-tree", "-r", "--name-only", &tip, "out"]),
        "out/y",
        "what is not checked out stays"
    );
}

#[test]
fn submodules_stay_empty_and_recorded() {
    let fixture = TestRepository::new();
    git(&fixture.scratch.0, &["clone", "--quiet", "project", "library"]);
    fixture.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../library", "lib"]);
    fixture.git(&["commit", "--quiet", "-m", "with a submodule"]);
    fixture.git(&["config", "submodule.recurse", "true"]);
    let workspace = works(&fixture, "sub");
    assert_eq!(std::fs::read_dir(workspace.worktree().join("lib")).unwrap().count(), 0);
    assert!(fixture.git(&["ls-tree", "task/sub", "lib"]).starts_with("160000 commit"));
}

#[test]
fn here_is_accepted_only_in_a_linked_worktree() {
    let mut fixture = TestRepository::new();
    let here =
        |fixture: &TestRepository, name: &str| guard::git::Request { here: true, ..fixture.request(name) };
    refused(Workspace::open(&fixture.find(), &here(&fixture, "main")), "main worktree");
    fixture.git(&["worktree", "add", "--quiet", "../mine", "-b", "feature"]);
    fixture.repository = fixture.scratch.0.join("mine");
    std::fs::write(fixture.repository.join("a.txt"), "half done\n").unwrap();
    std::fs::write(fixture.repository.join("b.txt"), "staged\n").unwrap();
    fixture.git(&["add", "b.txt"]);
    let mut workspace = fixture.open_with(&here(&fixture, "mine"));
    assert_eq!(workspace.branch(), "feature");
    assert_eq!(
        agent_git(&workspace, &["status", "--porcelain"]),
        " M a.txt
M  b.txt"
    );
    agent_git(&workspace, &["commit", "--quiet", "-m", "b", "b.txt"]);
    workspace.receive(&Limits::default()).unwrap();
    let settled = workspace.dispose(KeepPolicy::Discard).unwrap();
    assert!(settled.kept, "somebody else's worktree is never removed");
    assert_eq!(git_in(&fixture.repository, &["status", "--porcelain"]).stdout, b" M a.txt\n");
    assert_eq!(fixture.git(&["log", "--format=%s", "feature"]), "b\nfirst");
    fixture.git(&["checkout", "--quiet", "--detach"]);
    refused(Workspace::open(&fixture.find(), &here(&fixture, "detached")), "no branch checked out");
}

#[test]
fn taken_names_are_refused_and_change_nothing() {
    let fixture = TestRepository::new();
    fixture.git(&["branch", "task/taken"]);
    std::fs::create_dir_all(fixture.scratch.0.join(".worktrees/project-there")).unwrap();
    let before = fixture.snapshot();
    refused(
        Workspace::open(&fixture.find(), &fixture.request("taken")),
        "the branch task/taken already exists",
    );
    refused(Workspace::open(&fixture.find(), &fixture.request("there")), "already exists");
    refused(Workspace::open(&fixture.find(), &fixture.request("///")), "no letters");
    assert_eq!(fixture.snapshot(), before);
    // The branch `main` exists, so git cannot create a branch below `main/`.
    let in_the_way = guard::git::Request { prefix: "main/".into(), ..fixture.request("x") };
    let error = Workspace::open(&fixture.find(), &in_the_way).unwrap_err();
    assert!(error.to_string().contains("main"), "{error}");
    assert_eq!(fixture.snapshot(), before);
    assert!(!fixture.scratch.0.join(".worktrees/project-x").exists());
}

#[test]
fn worktrees_are_placed_elsewhere_if_the_parent_is_unsafe() {
    let fixture = TestRepository::new();
    std::os::unix::fs::symlink("/tmp", fixture.scratch.0.join(".worktrees")).unwrap();
    let workspace = fixture.open("away");
    assert!(
        workspace.worktree().starts_with(fixture.scratch.0.join("state/worktrees")),
        "{:?}",
        workspace.worktree()
    );
    let root = fixture.scratch.0.join("elsewhere");
    let asked = guard::git::Request { root: Some(root.clone()), ..fixture.request("asked") };
    assert!(fixture.open_with(&asked).worktree().starts_with(root));
}

#[test]
fn repository_of_another_user_needs_safe_directory() {
    if !nix::unistd::geteuid().is_root() {
        skip("another user's repository", "the tests were not started by root");
        return;
    }
    let fixture = TestRepository::new();
    for entry in [fixture.repository.clone(), fixture.repository.join(".git")] {
        std::os::unix::fs::chown(entry, Some(64_017), Some(64_017)).unwrap();
    }
    let said = git_in(&fixture.repository, &["status"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("dubious"), "git itself refuses it");
    match Repository::find(&fixture.repository) {
        Err(WorkspaceError::Refused { problem, .. }) => {
            assert!(problem.contains("does not belong to the user"), "{problem}")
        }
        other => panic!("{other:?}"),
    }
}
