//! guard pushes the task's branch to a real repository. Nothing else there may change.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use guard::git::Repository;
use guard::work::forge::{ForgeError, Push, Remote, push};

use super::is_silent;
use crate::support::{TestRepository, git, git_in, isolated_command, make_program};

/// A user's repository with a task branch, and the bare repository to which guard pushes it.
struct PushFixture {
    source: TestRepository,
    bare: PathBuf,
}

impl PushFixture {
    fn new() -> Self {
        let source = TestRepository::new();
        let bare = source.scratch.0.join("bare.git");
        git(&source.scratch.0, &["init", "--quiet", "--bare", "bare.git"]);
        source.git(&["remote", "add", "origin", bare.to_str().unwrap()]);
        source.git(&["push", "--quiet", "origin", "main"]);
        source.git(&["branch", "task/x"]);
        let fixture = Self { source, bare };
        fixture.commit("task/x", "work");
        fixture
    }

    /// Adds a commit to a branch that is not checked out. Returns the commit.
    fn commit(&self, branch: &str, words: &str) -> String {
        let name = format!("refs/heads/{branch}");
        let commit = self.source.git(&["commit-tree", &format!("{name}^{{tree}}"), "-p", &name, "-m", words]);
        self.source.git(&["update-ref", &name, &commit]);
        commit
    }

    fn tip(&self, branch: &str) -> String {
        self.source.git(&["rev-parse", &format!("refs/heads/{branch}")])
    }

    /// Returns the repository, whose configuration the user trusts.
    fn repository(&self) -> Repository {
        self.source.find_trusted()
    }

    fn remote(&self) -> Remote {
        Remote::with(&self.repository(), "origin", |_| None).unwrap().unwrap()
    }

    fn push(&self, branch: &str) -> Result<Push, ForgeError> {
        let pushed = push(&self.repository(), &self.remote(), branch, "main");
        is_silent(&pushed);
        pushed
    }

    /// Returns all refs of the bare repository.
    fn refs(&self) -> Vec<String> {
        let list = git(&self.bare, &["for-each-ref", "--format=%(refname) %(objectname)"]);
        list.lines().map(str::to_string).collect()
    }

    fn script(&self, path: &Path, text: &str) {
        make_program(path, format!("#!/bin/sh\n{text}\n"));
    }

    /// Creates a program that writes a marker file when it is executed, which no push may cause. Returns the marker's
    /// path.
    fn trap(&self, path: &Path) -> PathBuf {
        let mark = self.source.scratch.0.join("it-ran");
        self.script(path, &format!("touch {}", mark.display()));
        mark
    }
}

#[test]
fn branch_is_pushed_once_and_then_fast_forwarded() {
    let fixture = PushFixture::new();
    let (main, tip) = (fixture.tip("main"), fixture.tip("task/x"));
    let pushed = fixture.push("refs/heads/task/x").unwrap();
    assert_eq!(pushed, Push { branch: "task/x".to_string(), tip: tip.clone(), already: false });
    let both = |tip: &str| vec![format!("refs/heads/main {main}"), format!("refs/heads/task/x {tip}")];
    assert_eq!(fixture.refs(), both(&tip));
    // The branch was pushed already, as after a crash. guard must report that.
    assert_eq!(fixture.push("task/x").unwrap(), Push { already: true, ..pushed });
    let next = fixture.commit("task/x", "more");
    assert_eq!(fixture.push("task/x").unwrap().tip, next);
    assert_eq!(fixture.refs(), both(&next));
}

#[test]
fn push_that_is_not_a_fast_forward_is_refused() {
    let fixture = PushFixture::new();
    fixture.push("task/x").unwrap();
    let there = fixture.tip("task/x");
    for rewritten in [true, false] {
        fixture.source.git(&["update-ref", "refs/heads/task/x", "main"]);
        if rewritten {
            fixture.commit("task/x", "rewritten");
        }
        let error = fixture.push("task/x").unwrap_err();
        assert!(matches!(error, ForgeError::NotForward { .. }), "{error:?}");
        assert!(error.to_string().contains("guard pushed nothing") && error.hint().is_some());
        assert!(fixture.refs().contains(&format!("refs/heads/task/x {there}")));
    }
    // guard must refuse even if the user's configuration would force the push.
    fixture.source.git(&["config", "remote.origin.push", "+refs/heads/*:refs/heads/*"]);
    fixture.source.git(&["config", "push.default", "matching"]);
    assert!(matches!(fixture.push("task/x"), Err(ForgeError::NotForward { .. })));
    // The remote branch has commits of somebody else that the local repository does not have.
    git(&fixture.source.scratch.0, &["clone", "--quiet", "bare.git", "elsewhere", "--branch", "task/x"]);
    let elsewhere = fixture.source.scratch.0.join("elsewhere");
    git(&elsewhere, &["commit", "--quiet", "--allow-empty", "-m", "theirs"]);
    git(&elsewhere, &["push", "--quiet"]);
    assert!(matches!(fixture.push("task/x"), Err(ForgeError::NotForward { .. })));
}

#[test]
fn push_to_a_base_branch_is_refused() {
    let fixture = PushFixture::new();
    let before = fixture.refs();
    fixture.commit("main", "work");
    for branch in ["develop", "trunk", "master"] {
        fixture.source.git(&["branch", branch, "main"]);
        fixture.commit(branch, "work");
    }
    fixture.source.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk"]);
    for (branch, base) in [
        ("main", "main"),
        ("refs/heads/main", "task/x"),
        ("master", "develop"),
        ("develop", "develop"),
        ("develop", "refs/heads/develop"),
        ("refs/heads/develop", "origin/develop"),
        ("develop", "refs/remotes/origin/develop"),
        ("develop", "heads/develop"),
        ("trunk", "main"),
    ] {
        let error = push(&fixture.repository(), &fixture.remote(), branch, base).unwrap_err();
        assert!(error.to_string().contains("it is a base or default branch"), "{branch} {base}: {error}");
        assert!(error.hint().is_some());
    }
    assert_eq!(fixture.refs(), before);
}

#[test]
fn push_accepts_only_one_existing_branch() {
    let fixture = PushFixture::new();
    let before = fixture.refs();
    fixture.source.git(&["tag", "v1", "task/x"]);
    for odd in [
        "refs/tags/v1",
        "v1",
        "nothing",
        "+task/x",
        "task/x:main",
        "task/x:refs/heads/main",
        "--all",
        "--mirror",
        "*",
        "task/*",
        "task/x^",
        "@{-1}",
        "",
        "task/x main",
        "task/x\nmain",
        "HEAD",
    ] {
        let error = fixture.push(odd).unwrap_err();
        assert!(matches!(error, ForgeError::Workspace(_)) && error.hint().is_some(), "{odd:?}: {error:?}");
    }
    // guard must also refuse an address or an option in place of a remote's name.
    let repository = fixture.repository();
    for odd in [fixture.bare.to_str().unwrap(), "--receive-pack=touch it", "ext::touch it"] {
        let error = repository.push(odd, "refs/heads/task/x", Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("there is no remote"), "{odd}: {error}");
    }
    assert_eq!(fixture.refs(), before);
}

#[test]
fn push_sends_no_tags_or_refs_added_by_configuration() {
    let fixture = PushFixture::new();
    fixture.source.git(&["tag", "-a", "v1", "-m", "v1", "task/x"]);
    for (key, value) in [
        ("push.followTags", "true"),
        ("remote.origin.mirror", "true"),
        ("remote.origin.push", "refs/heads/*:refs/heads/*"),
        ("push.recurseSubmodules", "check"),
        ("push.gpgSign", "true"),
    ] {
        fixture.source.git(&["config", key, value]);
    }
    fixture.push("task/x").unwrap();
    let names: Vec<String> =
        fixture.refs().iter().map(|line| line.split(' ').next().unwrap().to_string()).collect();
    assert_eq!(names, ["refs/heads/main", "refs/heads/task/x"]);
}

/// A push must not run the repository's hooks, because they can execute files from a worktree that an agent has
/// changed.
#[test]
fn push_runs_no_hooks() {
    for (setting, file) in [
        (None, "project/.git/hooks/pre-push"),
        (None, "project/.git/hooks/reference-transaction"),
        (Some(".husky"), "project/.husky/pre-push"),
        (Some("TREE/.husky"), "tree/.husky/pre-push"),
    ] {
        let fixture = PushFixture::new();
        let scratch = &fixture.source.scratch.0;
        fixture.source.git(&["worktree", "add", "--quiet", "../tree", "task/x"]);
        let mark = fixture.trap(&scratch.join(file));
        if let Some(folder) = setting {
            let folder = folder.replace("TREE", scratch.join("tree").to_str().unwrap());
            fixture.source.git(&["config", "core.hooksPath", &folder]);
        }
        let from = Repository::find(&scratch.join("tree")).unwrap().unwrap();
        let from = Repository { trusted: true, ..from };
        push(&from, &fixture.remote(), "task/x", "main").unwrap();
        assert!(!mark.exists(), "{file} ran");
        // The same push by the user's own git must run the hook, which proves that the test detects it.
        fixture.commit("task/x", "more");
        let folder = file.split('/').next().unwrap();
        git(&scratch.join(folder), &["push", "--quiet", "origin", "task/x"]);
        assert!(mark.exists(), "{file} is no trap");
    }
}

#[test]
fn push_follows_push_urls_and_abbreviations_of_the_user() {
    // The user has configured a separate address for pushing, an abbreviation, or an address relative to the main
    // worktree.
    for settings in [
        &[("remote.origin.url", "https://github.com/acme/widget.git"), ("remote.origin.pushurl", "BARE")][..],
        &[("remote.origin.url", "gh:bare.git"), ("url.FOLDER/.insteadOf", "gh:")],
        &[
            ("remote.origin.url", "https://github.com/bare.git"),
            ("url.FOLDER/.pushInsteadOf", "https://github.com/"),
        ],
        &[("remote.origin.url", "../bare.git")],
    ] {
        let fixture = PushFixture::new();
        let folder = fixture.source.scratch.0.to_str().unwrap().to_string();
        for (key, value) in settings {
            let filled =
                |text: &str| text.replace("BARE", fixture.bare.to_str().unwrap()).replace("FOLDER", &folder);
            fixture.source.git(&["config", &filled(key), &filled(value)]);
        }
        let pushed = fixture.push("task/x").unwrap();
        assert!(fixture.refs().contains(&format!("refs/heads/task/x {}", pushed.tip)), "{settings:?}");
    }
}

/// A git daemon that serves the bare repository on a loopback port.
struct Daemon(Child, u16);

impl Daemon {
    fn start(folder: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = isolated_command("git", Path::new("/nonexistent"))
            .args(["daemon", "--enable=receive-pack", "--export-all", "--listen=127.0.0.1", "--reuseaddr"])
            .args([&format!("--port={port}"), &format!("--base-path={}", folder.display())])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Self(child, port);
        let url = daemon.url();
        let began = Instant::now();
        while !git_in(folder, &["ls-remote", &url]).status.success() {
            assert!(began.elapsed() < Duration::from_secs(30), "git daemon does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    fn url(&self) -> String {
        format!("git://127.0.0.1:{}/bare.git", self.1)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGTERM lets the daemon end its own child processes.
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// An agent may have changed the configuration of a repository that the user does not trust. A push may use the
/// remote's address from this configuration. It must not execute any program that the configuration names, and must
/// not send the user's credentials to another host.
#[test]
fn push_from_a_hostile_repository_runs_nothing() {
    let fixture = PushFixture::new();
    let daemon = Daemon::start(&fixture.source.scratch.0);
    fixture.source.git(&["config", "remote.origin.url", &daemon.url()]);
    let push = |branch: &str| push(&fixture.source.find(), &fixture.remote(), branch, "main");
    push("task/x").unwrap();
    let tip = fixture.commit("task/x", "more");
    let script = fixture.source.scratch.0.join("trap.sh");
    let mark = fixture.trap(&script);
    let script = script.to_str().unwrap();
    let settings = [
        ("core.sshCommand", script),
        ("core.askPass", script),
        ("core.gitProxy", script),
        ("credential.helper", script),
        ("credential.https://github.com.helper", script),
        ("remote.origin.receivepack", script),
        ("remote.origin.vcs", "evil"),
        ("remote.origin.proxy", "http://192.0.2.1:1"),
        ("http.proxy", "http://192.0.2.1:1"),
        ("http.sslVerify", "false"),
        ("http.https://github.com/.sslCAInfo", "/tmp/ca.pem"),
        ("include.path", "/tmp/other"),
    ];
    for (key, value) in settings {
        fixture.source.git(&["config", key, value]);
        let error = push("task/x").unwrap_err();
        assert!(error.to_string().contains("an agent could have planted"), "{key}: {error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--trust-repository")), "{key}");
        fixture.source.git(&["config", "--unset", key]);
    }
    // A remote that is a local directory has hooks of its own, which git would run as the user, so guard must refuse
    // it.
    fixture.source.git(&["config", "remote.origin.url", fixture.bare.to_str().unwrap()]);
    fixture.trap(&fixture.bare.join("hooks/post-receive"));
    let error = push("task/x").unwrap_err();
    assert!(error.to_string().contains("is a directory on this machine"), "{error}");
    assert!(!mark.exists() && !fixture.refs().concat().contains(&tip));
    // guard must refuse an address that runs a program (`ext::`), even in a trusted repository.
    fixture.source.git(&["config", "remote.origin.url", &format!("ext::{script} %S")]);
    fixture.source.git(&["config", "protocol.ext.allow", "always"]);
    assert!(push("task/x").is_err());
    let error = fixture.push("task/x").unwrap_err().to_string();
    assert!(error.contains("transport 'ext' not allowed"), "{error}");
    assert!(!mark.exists(), "it ran");
    // git itself, without guard's options, must run the planted program, which proves that the test detects it.
    git_in(&fixture.source.repository, &["push", "origin", "task/x"]);
    assert!(mark.exists(), "the trap is none");
}

/// Programs that a push starts must have no terminal to ask the user, and must end when the push times out.
#[test]
fn push_has_no_terminal_and_a_time_limit() {
    let fixture = PushFixture::new();
    let (script, log) = (fixture.source.scratch.0.join("ssh.sh"), fixture.source.scratch.0.join("log"));
    fixture.script(
        &script,
        &format!("{{ ps -o sid= -p $$; echo $$; }} > {0}.new; mv {0}.new {0}; exec sleep 300", log.display()),
    );
    fixture.source.git(&["config", "core.sshCommand", script.to_str().unwrap()]);
    fixture.source.git(&["config", "remote.origin.url", "git@ssh.invalid:acme/widget.git"]);
    let began = Instant::now();
    let error = fixture.repository().push("origin", "refs/heads/task/x", Duration::from_secs(5)).unwrap_err();
    assert!(error.to_string().contains("took longer than 5 s"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
    let told = std::fs::read_to_string(&log).unwrap();
    let (session, process) = told.trim().split_once('\n').unwrap();
    let own = nix::unistd::getsid(None).unwrap().as_raw();
    assert_ne!(session.trim().parse::<i32>().unwrap(), own, "it has the terminal of whoever runs guard");
    // The processes that the push started must have ended as well.
    let is_there = || Path::new("/proc").join(process.trim()).join("cwd").read_link().is_ok();
    let began = Instant::now();
    while is_there() {
        assert!(began.elapsed() < Duration::from_secs(20), "{process} is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn push_error_shows_the_remote_message_without_credentials() {
    let fixture = PushFixture::new();
    fixture.script(&fixture.bare.join("hooks/pre-receive"), "printf 'not\\033[31m today' >&2; exit 1");
    let error = fixture.push("task/x").unwrap_err().to_string();
    assert!(error.contains("pre-receive hook declined") && error.contains("today"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
    // Nobody listens on this port, and git's own error message repeats the address.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [
        format!("http://me:hunter2@127.0.0.1:{port}/acme/widget.git"),
        format!("http://hunter2@127.0.0.1:{port}/acme/widget.git"),
        format!("http://hunter2hunter2@127.0.0.1:{port}/acme/widget.git"),
        format!("git://me:hunter2@127.0.0.1:{port}/acme/widget.git"),
    ] {
        fixture.source.git(&["config", "remote.origin.url", &url]);
        let error = fixture.push("task/x").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        assert!(matches!(error, ForgeError::Service { .. }), "{error:?}");
    }
    // git needs a password and has no terminal to ask for it, so the push must fail.
    let server = crate::support::http_server::Server::plain(|_| {
        crate::support::http_server::Response::new(401, "text/plain", "no")
            .with("www-authenticate", "Basic realm=\"x\"")
    });
    fixture.source.git(&["config", "remote.origin.url", &server.url("/acme/widget.git")]);
    let error = fixture.push("task/x").unwrap_err().to_string();
    assert!(error.contains("terminal prompts disabled") || error.contains("could not read"), "{error}");
}
