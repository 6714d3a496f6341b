//! The environments in which most tests run guard: as one user, with or without namespaces, in a linked worktree.

use std::ffi::OsStr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::user::{kit_directory, test_users};
use super::{RunOutcome, TestUser, collect_outcome, guard_program, isolated_command, run_tool};

/// The user, the repository and the sandbox settings of a test: guard runs as this user, with or without namespaces,
/// in a linked worktree of the repository.
#[derive(Debug)]
pub(crate) struct TestEnvironment {
    pub(crate) user: TestUser,
    pub(crate) namespaces: bool,
    /// The directory with all files of this environment. Dropping the environment removes it.
    root: PathBuf,
    /// The working directory, which is a linked worktree.
    pub(crate) directory: PathBuf,
}

impl Drop for TestEnvironment {
    fn drop(&mut self) {
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(&self.root).stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl TestEnvironment {
    fn new(user: &TestUser, namespaces: bool) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // `scripts/test` mounts a file system in memory at this directory.
        let root = kit_directory().join("environments").join(format!("{}-{count}", std::process::id()));
        let directory = root.join("project");
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        let environment = Self { user: user.clone(), namespaces, directory, root };
        for path in [environment.root.clone(), environment.temporary_directory()] {
            if let Some((user, group)) = user.ids {
                chown(path, Some(user), Some(group)).unwrap();
            }
        }
        environment.run_outside(
            "git init -q -b main repository && cd repository && printf 'first\\n' > tracked \
             && git add tracked && git -c user.name=n -c user.email=e commit -qm first \
             && git worktree add -q -b task/work ../project",
        );
        environment
    }

    /// Returns a name for messages, such as `user, without namespaces`.
    pub(crate) fn name(&self) -> String {
        format!("{}, {} namespaces", self.user.name, if self.namespaces { "with" } else { "without" })
    }

    /// Runs a script as this user, outside the sandbox, in the parent of the working directory. The script must
    /// succeed. Returns its output.
    pub(crate) fn run_outside(&self, script: &str) -> String {
        let mut command = self.command("bash");
        let output = command.args(["-euc", script]).current_dir(&self.root).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Copies a project of `fixtures/projects` into the working directory.
    pub(crate) fn copy_fixture_project(&self, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/projects").join(name);
        run_tool("cp", &["-R".as_ref(), from.join(".").as_ref(), self.directory.as_ref()]);
        self.give_to_user(&self.directory);
    }

    /// Makes this user the owner of a directory and all that is in it.
    pub(crate) fn give_to_user(&self, directory: &Path) {
        if let Some((user, group)) = self.user.ids {
            let owner = format!("{user}:{group}");
            run_tool("chown", &["-R".as_ref(), owner.as_ref(), directory.as_ref()]);
        }
    }

    /// Returns the directory in which guard stores the runs of this environment.
    pub(crate) fn runs_directory(&self) -> PathBuf {
        self.root.join("state/guard/runs")
    }

    /// Returns the directory in which guard puts temporary files.
    pub(crate) fn temporary_directory(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(crate) fn user_home(&self) -> &Path {
        &self.user.home
    }

    /// Returns a command that starts a program as this user.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = isolated_command(program, &self.user.home);
        command
            .env("PATH", &self.user.path)
            .env("XDG_STATE_HOME", self.root.join("state"))
            .env("TMPDIR", self.temporary_directory())
            // Every user of an agent has an API key. Tests without one remove this variable.
            .env("GEMINI_API_KEY", "the-key-of-the-tests")
            .stdin(Stdio::null())
            .current_dir(if self.directory.exists() { &self.directory } else { &self.root });
        if let Some((user, group)) = self.user.ids {
            command.gid(group).uid(user);
        }
        command
    }

    /// Returns a command that starts guard with exactly these signals ignored. The tests may have inherited other
    /// ignored signals (by `nohup`, or `&` in a script).
    pub(crate) fn guard_ignoring_signals(&self, signals: &str) -> Command {
        let mut command = self.command("env");
        command.arg("--default-signal=HUP,INT,QUIT");
        command
            .args((!signals.is_empty()).then(|| format!("--ignore-signal={signals}")))
            .arg(guard_program());
        command
    }

    /// Returns a `guard run` command in the working directory with these options.
    pub(crate) fn guard_run(&self, options: &[&str], command: &[&str]) -> Command {
        let mut guard = self.command(guard_program());
        guard.args(self.guard_run_arguments(options, command));
        guard
    }

    /// Returns the arguments of [`guard_run`](Self::guard_run).
    pub(crate) fn guard_run_arguments(&self, options: &[&str], command: &[&str]) -> Vec<String> {
        let namespaces = if self.namespaces { "require" } else { "off" };
        let mut arguments = vec!["run", "--namespaces", namespaces];
        // The working directory is in a repository, so `guard run` would make a worktree. Without an option about
        // repositories, the tests' runs work in place.
        let in_repository = ["--name", "--base", "--here", "--auto", "--keep", "--discard"];
        if !options.iter().any(|option| in_repository.contains(option)) {
            arguments.push("--in-place");
        }
        arguments
            .iter()
            .chain(options)
            .chain(&["--"])
            .chain(command)
            .map(|word| (*word).to_string())
            .collect()
    }

    /// Runs a command with `guard run` and these options, until it ends. Returns its outcome.
    pub(crate) fn run(&self, options: &[&str], command: &[&str]) -> RunOutcome {
        let mut all = vec!["--json"];
        all.extend(options);
        self.run_to_end(self.guard_run(&all, command), b"")
    }

    /// Runs a bash script with `guard run`, until it ends. Returns its outcome.
    pub(crate) fn run_bash(&self, script: &str) -> RunOutcome {
        self.run(&[], &["bash", "-c", script])
    }

    /// Runs a script in the sandbox. The script must succeed without a refusal. Returns its output.
    pub(crate) fn expect_success(&self, script: &str) -> String {
        let outcome = self.run_bash(script);
        let result = &outcome.result;
        assert_eq!(result["success"], true, "{script}\n{outcome}");
        assert_eq!(result["denials"], serde_json::json!([]), "{script}\n{outcome}");
        assert_eq!(result["enforcement"]["namespaces"], self.namespaces, "{script}\n{outcome}");
        assert_eq!((outcome.code, &result["exit_code"]), (0, &Value::from(0)), "{script}\n{outcome}");
        outcome.printed()
    }

    /// Runs a command until it ends, with this standard input. Returns its outcome.
    pub(crate) fn run_to_end(&self, mut command: Command, input: &[u8]) -> RunOutcome {
        let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
        let started = Instant::now();
        let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        RunOutcome { environment: self.name(), ..collect_outcome(child, input, started) }
    }

    /// Waits for a command of this environment that is already running. Returns its outcome.
    pub(crate) fn collect_outcome(&self, child: Child, started: Instant) -> RunOutcome {
        RunOutcome { environment: self.name(), ..collect_outcome(child, b"", started) }
    }
}

/// Runs a test as every available user, with and without namespaces, one after the other. Each call gets a new
/// environment.
pub(crate) fn in_every_environment(test: impl Fn(&TestEnvironment)) {
    for user in test_users() {
        for namespaces in [true, false] {
            test(&TestEnvironment::new(user, namespaces));
        }
    }
}

/// Runs a test as every available user, with and without namespaces, and gives it the environment as a value, so that
/// the test can store it in a fixture. Otherwise equal to [`in_every_environment`].
pub(crate) fn in_every_owned_environment(test: impl Fn(TestEnvironment)) {
    for user in test_users() {
        for namespaces in [true, false] {
            test(TestEnvironment::new(user, namespaces));
        }
    }
}

/// Runs a test as every available user, with and without namespaces, at the same time in one thread each. For tests
/// that mostly wait.
pub(crate) fn in_every_environment_at_once(test: impl Fn(&TestEnvironment) + Sync) {
    std::thread::scope(|scope| {
        for user in test_users() {
            for namespaces in [true, false] {
                let test = &test;
                scope.spawn(move || test(&TestEnvironment::new(user, namespaces)));
            }
        }
    });
}

/// Runs a test without namespaces as the first available user, and with namespaces as the last one (the same user if
/// there is only one).
pub(crate) fn in_two_environments(test: impl Fn(&TestEnvironment)) {
    let users = test_users();
    test(&TestEnvironment::new(&users[0], false));
    test(&TestEnvironment::new(&users[users.len() - 1], true));
}

/// Returns an environment of the first user, with namespaces. For tests that depend neither on the user nor on
/// namespaces.
pub(crate) fn one_environment() -> TestEnvironment {
    TestEnvironment::new(&test_users()[0], true)
}
