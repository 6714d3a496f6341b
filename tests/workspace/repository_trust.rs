//! An agent may have planted the repository in which a user starts a run. If the repository's settings or files could
//! run programs or reveal other files, guard must refuse the run before it changes anything. The tests prove that
//! these attacks work if the user trusts the repository.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::git::{KeepPolicy, Limits, Record, Repository, Request, Workspace, WorkspaceError};

use crate::support::{TestRepository, agent_commit, agent_git, git, git_in};

const SECRET: &str = "the secret's content";

/// Creates a repository, and beside it a file and another repository that contain a secret. No run may read the
/// secret.
fn fixture() -> TestRepository {
    let fixture = TestRepository::new();
    std::fs::write(fixture.scratch.0.join("secret.txt"), SECRET).unwrap();
    let other = fixture.scratch.0.join("secret");
    std::fs::create_dir(&other).unwrap();
    git(&other, &["init", "--quiet"]);
    std::fs::write(other.join("secret.txt"), SECRET).unwrap();
    git(&other, &["add", "."]);
    git(&other, &["commit", "--quiet", "-m", "secret"]);
    fixture
}

/// Returns every file, directory and link of the fixture with its bytes.
fn everything(fixture: &TestRepository) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![fixture.scratch.0.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let bytes = if kind.is_symlink() {
                std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if kind.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            if kind.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, bytes);
        }
    }
    found
}

/// Returns true if the agent could read a file with the secret.
fn is_given_away(workspace: &Workspace) -> bool {
    let mut folders = vec![
        workspace.quarantine(),
        workspace.worktree().to_path_buf(),
        workspace.quarantine().with_file_name("hooks"),
    ];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if std::fs::read(entry.path())
                .is_ok_and(|bytes| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()))
            {
                return true;
            }
        }
    }
    false
}

/// Fails unless guard refuses the repository for this reason, names `--trust-repository`, and has changed nothing.
fn refused(fixture: &TestRepository, folder: &Path, request: &Request, words: &str) {
    let before = everything(fixture);
    let repository = Repository::find(folder).unwrap().unwrap();
    match Workspace::open(&repository, request) {
        Err(WorkspaceError::Refused { problem, hint }) => {
            assert!(problem.contains(words), "{problem:?} does not say {words:?}");
            assert!(hint.contains("--trust-repository"), "{hint}");
        }
        other => panic!("not refused for {words:?}: {other:?}"),
    }
    assert!(Workspace::planned(&repository, request).is_err(), "a dry run says so too");
    let after = everything(fixture);
    let changed: Vec<_> = before.iter().filter(|(path, bytes)| after.get(*path) != Some(bytes)).collect();
    let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    assert!(changed.is_empty() && new.is_empty(), "{words}: {changed:?} {new:?}");
}

/// Opens a workspace of a repository that the user trusts.
fn trusted(folder: &Path, request: &Request) -> Result<Workspace, WorkspaceError> {
    let repository = Repository::find(folder).unwrap().unwrap();
    Workspace::open(&Repository { trusted: true, ..repository }, request)
}

fn canary(fixture: &TestRepository) -> PathBuf {
    fixture.scratch.0.join("CANARY")
}

/// Adds settings to a configuration file. The word `PROGRAM` stands for a program that creates a marker file.
fn configure(fixture: &TestRepository, file: &str, text: &[u8]) {
    let program = format!("touch '{}' && cat", canary(fixture).display());
    let text = String::from_utf8(text.iter().map(|byte| if *byte == 0xff { 1 } else { *byte }).collect());
    let text = text.unwrap().replace("PROGRAM", &format!("\"{program}\""));
    let text = text.replace("SECRET", fixture.scratch.0.join("secret.txt").to_str().unwrap());
    let bytes: Vec<u8> = text.bytes().map(|byte| if byte == 1 { 0xff } else { byte }).collect();
    let path = fixture.repository.join(file);
    let old = std::fs::read(&path).unwrap_or_default();
    std::fs::write(path, [old, bytes].concat()).unwrap();
}

fn attributes(fixture: &TestRepository, text: &[u8]) {
    std::fs::write(fixture.repository.join(".gitattributes"), text).unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "attributes"]);
}

/// One attempt: its name, how it is planted, and a part of the refusal.
type Attempt = (&'static str, fn(&TestRepository), &'static str);

#[test]
fn programs_in_untrusted_configuration_are_refused() {
    let attempts: &[Attempt] = &[
        (
            "smudge",
            |fixture| {
                attributes(fixture, b"*.txt filter=evil\n");
                configure(fixture, ".git/config", b"[filter \"evil\"]\nsmudge = PROGRAM\n");
            },
            "filter.evil.smudge = touch",
        ),
        (
            "process",
            |fixture| {
                attributes(fixture, b"*.txt filter=evil\n");
                configure(fixture, ".git/config", b"[filter \"evil\"]\nprocess = PROGRAM\n");
            },
            "filter.evil.process",
        ),
        (
            // git accepts a filter name that is not UTF-8.
            "bytes",
            |fixture| {
                attributes(fixture, b"*.txt filter=e\xff\n");
                configure(fixture, ".git/config", b"[filter \"e\xff\"]\nsmudge = PROGRAM\n");
            },
            "filter.e\u{fffd}.smudge",
        ),
        (
            "included",
            |fixture| {
                attributes(fixture, b"*.txt filter=evil\n");
                configure(fixture, "more", b"[filter \"evil\"]\nsmudge = PROGRAM\n");
                configure(fixture, ".git/config", b"[include]\npath = ../more\n");
            },
            "include.path = ../more",
        ),
        (
            "included-if",
            |fixture| {
                attributes(fixture, b"*.txt filter=evil\n");
                configure(fixture, "more", b"[filter \"evil\"]\nsmudge = PROGRAM\n");
                configure(fixture, ".git/config", b"[includeIf \"gitdir:**\"]\npath = ../more\n");
            },
            "filter.evil.smudge",
        ),
        (
            "worktree",
            |fixture| {
                attributes(fixture, b"*.txt filter=evil\n");
                fixture.git(&["config", "extensions.worktreeConfig", "true"]);
                configure(fixture, ".git/config.worktree", b"[filter \"evil\"]\nsmudge = PROGRAM\n");
            },
            "filter.evil.smudge",
        ),
    ];
    for (name, plant, words) in attempts {
        let fixture = fixture();
        plant(&fixture);
        refused(&fixture, &fixture.repository, &fixture.request(name), words);
        assert!(!canary(&fixture).exists(), "{name}");
        let _ = trusted(&fixture.repository, &fixture.request(name));
        assert!(canary(&fixture).exists(), "{name}: it is real");
    }
    let fixture = fixture();
    configure(&fixture, ".git/config", b"[hook \"evil\"]\nevent = post-checkout\ncommand = PROGRAM\n");
    refused(&fixture, &fixture.repository, &fixture.request("hook"), "hook.evil.command");
}

/// A run in a linked worktree must be refused for settings that apply only in the main worktree.
#[test]
fn settings_of_the_main_worktree_are_checked_too() {
    let fixture = fixture();
    fixture.git(&["worktree", "add", "--quiet", "../linked", "-b", "linked"]);
    fixture.git(&["config", "extensions.worktreeConfig", "true"]);
    configure(&fixture, ".git/config.worktree", b"[filter \"evil\"]\nclean = PROGRAM\n");
    let linked = fixture.scratch.0.join("linked");
    refused(&fixture, &linked, &fixture.request("x"), "filter.evil.clean");
    let here = Request { here: true, ..fixture.request("x") };
    refused(&fixture, &linked, &here, "filter.evil.clean");
}

/// A partial clone fetches missing files with a program from its configuration. guard must not start that fetch without
/// the user's trust.
#[test]
fn untrusted_partial_clone_does_not_fetch() {
    let mut fixture = fixture();
    std::fs::write(fixture.repository.join("later.txt"), "later\n").unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "later"]);
    fixture.git(&["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", fixture.repository.display());
    git(&fixture.scratch.0, &["clone", "--quiet", "--no-checkout", "--filter=blob:none", &url, "part"]);
    fixture.repository = fixture.scratch.0.join("part");
    let program = format!("touch '{}'; git-upload-pack", canary(&fixture).display());
    fixture.git(&["config", "remote.origin.uploadpack", &program]);
    let refs = fixture.git(&["for-each-ref"]);
    match Workspace::open(&fixture.find(), &fixture.request("part")) {
        Err(WorkspaceError::Refused { problem, hint }) => {
            assert!(problem.contains("partial clone") && hint.contains("--trust-repository"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!canary(&fixture).exists());
    assert_eq!(fixture.git(&["for-each-ref"]), refs);
    assert!(!fixture.scratch.0.join(".worktrees").exists());
    let workspace = trusted(&fixture.repository, &fixture.request("again")).unwrap();
    assert!(canary(&fixture).exists() && workspace.worktree().join("later.txt").exists(), "it is real");
}

/// guard must refuse a git directory with links to files outside, or with settings that name files outside.
#[test]
fn git_directory_with_links_or_settings_to_files_outside_is_refused() {
    fn link(fixture: &TestRepository, name: &str) {
        let path = fixture.repository.join(name);
        let _ = std::fs::remove_file(&path);
        symlink(fixture.scratch.0.join("secret.txt"), path).unwrap();
    }
    let attempts: &[Attempt] = &[
        (
            "exclude",
            |fixture| link(fixture, ".git/info/exclude"),
            "exclude is a symbolic link to a file outside",
        ),
        ("attributes", |fixture| link(fixture, ".git/info/attributes"), "info/attributes is a symbolic link"),
        ("hook", |fixture| link(fixture, ".git/hooks/pre-commit"), "hooks/pre-commit is a symbolic link"),
        (
            "hooks",
            |fixture| {
                std::fs::remove_dir_all(fixture.repository.join(".git/hooks")).unwrap();
                symlink(fixture.scratch.0.join("secret"), fixture.repository.join(".git/hooks")).unwrap();
            },
            "/.git/hooks is a symbolic link",
        ),
        (
            "hooks-path",
            |fixture| {
                let folder = fixture.scratch.0.join("secret");
                fixture.git(&["config", "core.hooksPath", folder.to_str().unwrap()]);
            },
            "core.hookspath = ",
        ),
        (
            "excludes-file",
            |fixture| configure(fixture, ".git/config", b"[core]\nexcludesFile = SECRET\n"),
            "core.excludesfile = ",
        ),
        (
            "excludes-file-up",
            |fixture| configure(fixture, ".git/config", b"[core]\nexcludesFile = ../secret.txt\n"),
            "core.excludesfile = ../secret.txt",
        ),
        (
            "excludes-file-link",
            |fixture| {
                link(fixture, "list");
                configure(fixture, ".git/config", b"[core]\nexcludesFile = list\n");
            },
            "core.excludesfile = list",
        ),
        (
            "attributes-file",
            |fixture| configure(fixture, ".git/config", b"[core]\nattributesFile = SECRET\n"),
            "core.attributesfile = ",
        ),
    ];
    for (name, plant, words) in attempts {
        let fixture = fixture();
        plant(&fixture);
        refused(&fixture, &fixture.repository, &fixture.request(name), words);
        // git itself may fail on some of these links, but guard has already copied the file.
        let workspace = trusted(&fixture.repository, &fixture.request(name)).unwrap();
        assert!(is_given_away(&workspace), "{name}: it is real");
    }
}

/// guard copies the files of a hooks directory in the working tree. It must leave out links to files elsewhere.
#[test]
fn hooks_that_are_links_to_files_elsewhere_are_left_out() {
    let attempts: &[(&str, &str, &str)] = &[
        ("hook", "hooks/pre-commit", "hooks"),
        ("husky", ".husky/pre-commit", ".husky/_"),
        ("in-husky", ".husky/_/pre-commit", ".husky/_"),
    ];
    for (name, link, path) in attempts {
        let fixture = fixture();
        std::fs::create_dir_all(fixture.repository.join(path)).unwrap();
        symlink(fixture.scratch.0.join("secret.txt"), fixture.repository.join(link)).unwrap();
        fixture.git(&["config", "core.hooksPath", path]);
        let workspace = fixture.open(name);
        assert!(!is_given_away(&workspace), "{name}");
        let [note] = workspace.notes() else { panic!("{name}: {:?}", workspace.notes()) };
        assert!(note.contains("pre-commit is a symbolic link to") && note.contains("secret.txt"), "{note}");
        let workspace = trusted(&fixture.repository, &fixture.request("trusted")).unwrap();
        assert!(is_given_away(&workspace) && workspace.notes().is_empty(), "{name}: it is real");
    }
}

/// guard must refuse a directory in which the agent planted a `.git` that leads to another repository.
#[test]
fn directory_that_leads_to_another_repository_is_refused() {
    fn folder(fixture: &TestRepository) -> PathBuf {
        fixture.scratch.0.join("plain")
    }
    fn init(fixture: &TestRepository) -> PathBuf {
        git(&folder(fixture), &["init", "--quiet"]);
        folder(fixture).join(".git")
    }
    fn link(fixture: &TestRepository, parts: &[&str]) {
        let git = init(fixture);
        for part in parts {
            std::fs::remove_dir_all(git.join(part)).unwrap();
            symlink(fixture.scratch.0.join("secret/.git").join(part), git.join(part)).unwrap();
        }
    }
    let attempts: &[Attempt] = &[
        (
            "file",
            |fixture| std::fs::write(folder(fixture).join(".git"), "gitdir: ../secret/.git\n").unwrap(),
            "do not point to each other",
        ),
        ("link", |fixture| symlink("../secret/.git", folder(fixture).join(".git")).unwrap(), "do not point"),
        (
            "common",
            |fixture| std::fs::write(init(fixture).join("commondir"), "../../secret/.git\n").unwrap(),
            "is not a worktree of that repository",
        ),
        (
            "bare",
            |fixture| {
                git(&folder(fixture), &["init", "--quiet", "--bare"]);
                std::fs::write(folder(fixture).join("commondir"), "../secret/.git\n").unwrap();
            },
            "is not a worktree of that repository",
        ),
        ("objects", |fixture| link(fixture, &["objects", "refs"]), ".git/objects is a symbolic link"),
        (
            "borrowed",
            |fixture| {
                link(fixture, &["refs"]);
                let objects = fixture.scratch.0.join("secret/.git/objects");
                let file = folder(fixture).join(".git/objects/info/alternates");
                std::fs::write(file, format!("{}\n", objects.display())).unwrap();
            },
            "the repository borrows objects from",
        ),
        (
            // git takes a broken quote for a part of the file name.
            "quoted",
            |fixture| {
                link(fixture, &["refs"]);
                let objects = folder(fixture).join(".git/objects");
                std::fs::create_dir(objects.join("\"")).unwrap();
                std::fs::write(objects.join("info/alternates"), "\"/../../../../secret/.git/objects\n")
                    .unwrap();
            },
            "the repository borrows objects from",
        ),
    ];
    for (name, plant, words) in attempts {
        let fixture = fixture();
        std::fs::create_dir(folder(&fixture)).unwrap();
        plant(&fixture);
        refused(&fixture, &folder(&fixture), &fixture.request(name), words);
        match trusted(&folder(&fixture), &fixture.request(name)) {
            Ok(workspace) => assert!(is_given_away(&workspace), "{name}: it is real"),
            // guard parses this list differently from git, so the private repository is unusable and opening it
            // fails.
            Err(error) => assert_eq!(*name, "quoted", "{error}"),
        }
    }
}

/// A repository claims the worktree of another repository. guard must refuse it, because it would copy untracked files
/// from there.
#[test]
fn repository_that_claims_another_worktree_is_refused() {
    let fixture = fixture();
    fixture.git(&["worktree", "add", "--quiet", "../users", "-b", "users"]);
    let (users, planted) = (fixture.scratch.0.join("users"), fixture.scratch.0.join("planted"));
    std::fs::write(users.join(".env"), SECRET).unwrap();
    std::fs::create_dir(&planted).unwrap();
    git(&planted, &["init", "--quiet"]);
    git(&planted, &["commit", "--quiet", "--allow-empty", "-m", "planted"]);
    git(&planted, &["worktree", "add", "--quiet", "../second", "-b", "second"]);
    let request = |name: &str| Request { copy: vec![".env".into()], ..fixture.request(name) };
    git(&planted, &["config", "core.worktree", users.to_str().unwrap()]);
    refused(&fixture, &planted, &request("main"), "do not point to each other");
    assert!(is_given_away(&trusted(&planted, &request("main")).unwrap()), "it is real");

    // This time the attack uses a linked worktree of the planted repository: the configuration of that worktree names
    // the user's worktree.
    git(&planted, &["config", "--unset", "core.worktree"]);
    git(&planted, &["config", "extensions.worktreeConfig", "true"]);
    let admin = planted.join(".git/worktrees/second");
    std::fs::write(admin.join("config.worktree"), format!("[core]\nworktree = {}\n", users.display()))
        .unwrap();
    std::fs::write(admin.join("gitdir"), format!("{}\n", users.join(".git").display())).unwrap();
    refused(&fixture, &fixture.scratch.0.join("second"), &request("linked"), "do not point to each other");
}

/// guard must refuse a repository with links in places where git writes, because git would write to their targets.
#[test]
fn repository_with_links_where_git_writes_is_refused() {
    let fixture = fixture();
    let folder = fixture.repository.join(".git/logs/refs/heads/task");
    std::fs::create_dir_all(&folder).unwrap();
    symlink(canary(&fixture), folder.join("log")).unwrap();
    refused(&fixture, &fixture.repository, &fixture.request("log"), "is a symbolic link to a missing file");
    trusted(&fixture.repository, &fixture.request("log")).unwrap();
    assert!(canary(&fixture).exists(), "it is real");

    // The commit has a link in the place of a directory into which guard would copy an untracked file.
    let fixture = self::fixture();
    let (outside, request) = (fixture.scratch.0.join("secret"), fixture.request("through"));
    symlink(&outside, fixture.repository.join("conf")).unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "a link"]);
    let base = fixture.git(&["rev-parse", "HEAD"]);
    fixture.git(&["reset", "--quiet", "--hard", "HEAD^"]);
    std::fs::create_dir(fixture.repository.join("conf")).unwrap();
    std::fs::write(fixture.repository.join("conf/local"), "local\n").unwrap();
    let request = Request { copy: vec!["conf/local".into()], base: Some(base), ..request };
    let workspace = fixture.open_with(&request);
    assert!(workspace.worktree().join("conf").is_symlink() && !outside.join("local").exists());
}

#[test]
fn untracked_files_linked_to_elsewhere_are_not_copied() {
    let fixture = fixture();
    symlink(fixture.scratch.0.join("secret.txt"), fixture.repository.join(".env")).unwrap();
    symlink(fixture.scratch.0.join("secret"), fixture.repository.join("node_modules")).unwrap();
    symlink("a.txt", fixture.repository.join("inside")).unwrap();
    let request = |name: &str| Request {
        copy: vec![".env".into(), "inside".into()],
        link_readonly: vec!["node_modules".into()],
        ..fixture.request(name)
    };
    let workspace = fixture.open_with(&request("bring"));
    let brought: Vec<_> = workspace.record().brought.iter().map(|one| one.path.clone()).collect();
    assert_eq!(brought, [Path::new("inside")]);
    assert!(!is_given_away(&workspace));
    assert!(!workspace.readable().iter().any(|path| path.ends_with("secret")), "{:?}", workspace.readable());
    let workspace = trusted(&fixture.repository, &request("trusted")).unwrap();
    assert!(is_given_away(&workspace) && workspace.record().brought.len() == 3, "it is real");
}

/// Named pipes block their readers. guard must not wait for a pipe, and must soon end a git process that does.
#[test]
fn named_pipes_in_a_repository_do_not_block_guard() {
    fn pipe(path: &Path) {
        let _ = std::fs::remove_file(path);
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    for file in ["info/exclude", "refs/heads/other", "hooks/pre-commit", "worktrees/x/HEAD"] {
        let fixture = fixture();
        let path = fixture.repository.join(".git").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        pipe(&path);
        refused(&fixture, &fixture.repository, &fixture.request("pipe"), "is not a regular file");
    }
    // The pipe is behind a link that stays inside the repository.
    let linked = fixture();
    pipe(&linked.repository.join("pipe"));
    std::fs::remove_file(linked.repository.join(".git/info/exclude")).unwrap();
    symlink("../../pipe", linked.repository.join(".git/info/exclude")).unwrap();
    refused(&linked, &linked.repository, &linked.request("pipe"), "info/exclude is not a regular file");
    // guard itself copies the file that `core.excludesFile` names, in this case from the working tree.
    let listed = fixture();
    pipe(&listed.repository.join("list"));
    listed.git(&["config", "core.excludesFile", "list"]);
    let error = Workspace::open(&listed.find(), &listed.request("list")).unwrap_err();
    assert!(error.to_string().contains("list is not a regular file"), "{error}");
    assert!(!Record::exists(&listed.request("list").run_folder));
    // git reads these files before guard knows the repository, or reads them as the user's own configuration, or in the
    // user's worktree.
    let started = Instant::now();
    std::thread::scope(|scope| {
        for file in [".git/HEAD", ".git/config", ".git/objects/info/alternates", ".gitattributes"] {
            scope.spawn(move || {
                let fixture = fixture();
                pipe(&fixture.repository.join(file));
                let found = Repository::find(&fixture.repository);
                let opened =
                    found.and_then(|found| Workspace::open(&found.unwrap(), &fixture.request("pipe")));
                assert!(opened.unwrap_err().hint().is_some(), "{file}");
            });
        }
    });
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

/// guard must accept ordinary repositories of the user without `--trust-repository`.
#[test]
fn ordinary_repositories_of_the_user_need_no_trust_option() {
    let works = |fixture: &TestRepository, folder: &Path, name: &str| {
        let repository = Repository::find(folder).unwrap().unwrap();
        let mut workspace = Workspace::open(&repository, &fixture.request(name)).unwrap();
        workspace.point_at_quarantine().unwrap();
        agent_commit(&workspace, "new.txt", "new\n", "work");
        assert_eq!(workspace.receive(&Limits::default()).unwrap().commits.len(), 1, "{name}");
        workspace.dispose(KeepPolicy::Discard).unwrap();
    };
    let fixture = fixture();
    let root = &fixture.scratch.0;
    fixture.git(&["worktree", "add", "--quiet", "../linked", "-b", "linked"]);
    works(&fixture, &root.join("linked"), "linked");
    symlink("project", root.join("by-a-link")).unwrap();
    works(&fixture, &root.join("by-a-link"), "by-a-link");
    git(root, &["clone", "--quiet", "project", "library"]);
    fixture.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../library", "lib"]);
    fixture.git(&["commit", "--quiet", "-m", "with a submodule"]);
    works(&fixture, &fixture.repository.join("lib"), "submodule");
    works(&fixture, &fixture.repository, "outer");
    // Hooks are links to the project's own scripts, also seen from a linked worktree, and one link leads nowhere.
    std::fs::write(fixture.repository.join("check"), "#!/bin/sh\n").unwrap();
    symlink("../../check", fixture.repository.join(".git/hooks/pre-commit")).unwrap();
    symlink("../../gone", fixture.repository.join(".git/hooks/post-commit")).unwrap();
    works(&fixture, &fixture.repository, "hooks");
    works(&fixture, &root.join("linked"), "hooks-linked");

    // A separate git directory does not name its working tree, so guard must refuse it. The setting `core.worktree`
    // names the working tree, and guard must then accept the repository.
    git(root, &["init", "--quiet", "--separate-git-dir", "apart.git", "apart"]);
    let apart = root.join("apart");
    git(&apart, &["commit", "--quiet", "--allow-empty", "-m", "first"]);
    refused(&fixture, &apart, &fixture.request("apart"), "do not point to each other");
    git(&apart, &["config", "core.worktree", apart.to_str().unwrap()]);
    works(&fixture, &apart, "apart");
}

/// guard must refuse a second run in a worktree while the first run uses it, whether guard or the user made the worktree.
#[test]
fn second_run_in_a_worktree_is_refused() {
    let mut fixture = fixture();
    let busy = |result: Result<Workspace, WorkspaceError>, what: &str| match result {
        Err(error @ WorkspaceError::Busy(_)) => assert!(error.hint().is_some(), "{error}"),
        other => panic!("{what}: {other:?}"),
    };
    let here = |fixture: &TestRepository, name: &str| Request { here: true, ..fixture.request(name) };
    let mut first = Workspace::open(&fixture.find(), &fixture.request("first")).unwrap();
    fixture.repository = first.worktree().to_path_buf();
    busy(Workspace::open(&fixture.find(), &here(&fixture, "second")), "in the worktree of a run");
    first.dispose(KeepPolicy::Keep).unwrap();
    let kept = first.run_folder().to_path_buf();
    drop(first);

    let mut second = fixture.open_with(&here(&fixture, "second"));
    // During a run with namespaces, the worktree's `.git` file points to the user's repository, as after this call.
    // Without namespaces it would point to the run's private repository.
    second.point_at_repository().unwrap();
    busy(Workspace::open(&fixture.find(), &here(&fixture, "third")), "two at once");
    busy(Workspace::load(&kept), "cleaning up under somebody's feet");
    second.point_at_quarantine().unwrap();
    let tip = agent_commit(&second, "c.txt", "c", "work");
    second.receive(&Limits::default()).unwrap();
    second.dispose(KeepPolicy::Auto).unwrap();
    drop(second);
    assert_eq!(fixture.git(&["rev-parse", "HEAD"]), tip);
    Workspace::load(&kept).unwrap().dispose(KeepPolicy::Discard).unwrap();
    assert!(!fixture.repository.exists());
}

/// A merge runs drivers from the repository's configuration. `guard worktree merge-preview` must confine them.
#[test]
fn merge_preview_runs_nothing_outside_its_jail() {
    let fixture = fixture();
    let program = format!("touch '{}'; cp %B %A", canary(&fixture).display());
    fixture.git(&["config", "merge.evil.driver", &program]);
    std::fs::write(fixture.repository.join(".git/info/attributes"), "* merge=evil\n").unwrap();
    let mut workspace = fixture.open("merge");
    agent_commit(&workspace, "a.txt", "theirs\n", "theirs");
    workspace.receive(&Limits::default()).unwrap();
    workspace.dispose(KeepPolicy::Keep).unwrap();
    std::fs::write(fixture.repository.join("a.txt"), "ours\n").unwrap();
    fixture.git(&["commit", "--quiet", "-am", "ours"]);
    let preview = guard::git::preview(workspace.run_folder(), None).unwrap();
    assert_eq!(preview.files, [Path::new("a.txt")]);
    assert!(!canary(&fixture).exists());
    git_in(&fixture.repository, &["merge", "task/merge"]);
    assert!(canary(&fixture).exists(), "it is real");
}

/// A diff must show a changed submodule commit, even if the repository's configuration hides it.
#[test]
fn diff_shows_changed_submodules() {
    let fixture = fixture();
    let id = fixture.git(&["rev-parse", "HEAD"]);
    fixture.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{id},lib")]);
    fixture.git(&["commit", "--quiet", "-m", "with a submodule"]);
    let mut workspace = fixture.open("sub");
    fixture.git(&["config", "diff.ignoreSubmodules", "all"]);
    let new = agent_git(&workspace, &["rev-parse", "HEAD"]);
    agent_git(&workspace, &["update-index", "--cacheinfo", &format!("160000,{new},lib")]);
    agent_git(&workspace, &["commit", "--quiet", "-m", "another one"]);
    workspace.receive(&Limits::default()).unwrap();
    let diff = String::from_utf8(guard::git::diff(workspace.run_folder(), false, None).unwrap()).unwrap();
    assert!(diff.contains(&format!("+Subproject commit {new}")), "{diff}");
    let preview = guard::git::preview(workspace.run_folder(), None).unwrap();
    assert_eq!(preview.files, [Path::new(OsStr::from_bytes(b"lib"))]);
}
