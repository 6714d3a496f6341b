//! Builds and runs all git processes that guard itself needs.
//!
//! Every call names its repository explicitly (`GIT_DIR`, and `GIT_WORK_TREE` if needed), so that git never
//! discovers one from a directory that an agent wrote. The exceptions are the calls that look for the repository of a
//! directory that the user named. guard removes the user's `GIT_*` variables except `KEPT_VARIABLES`, and with
//! [`Trust::Neutral`] the whole environment. It overrides settings that make git run programs (`OVERRIDES`,
//! `NEUTRAL_OVERRIDES`) by environment variables, so that the child processes of git inherit the overrides. Every call
//! has a timeout and a maximum output size.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::jail::Jail;
use super::outcome::{GitError, GitOutput};
pub(crate) use super::running::Running;
use super::running::memory_file;
use super::stderr_messages::GitMessage;
use crate::sys::programs::{ProgramNotFound, ProgramSearch};
use crate::sys::signals;

/// Which configuration files apply to a git call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// All configuration files of the user, the system and the repository apply, but [`OVERRIDES`] override them. For
    /// calls on the user's own repository, and for checkouts, which need the user's filters.
    User,
    /// Only the repository's configuration applies, but [`OVERRIDES`] and [`NEUTRAL_OVERRIDES`] override it. For calls
    /// that may read files or objects that an agent wrote.
    Neutral,
}

/// Settings that guard overrides in every call, because they make git run programs or do extra work.
const OVERRIDES: &[(&str, &str)] = &[
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.splitIndex", "false"),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("sequence.editor", "false"),
    // git 2.54 also knows hooks that are defined by settings, which `core.hooksPath` does not disable. These are all
    // events that a git call of guard can trigger.
    ("hook.post-checkout.enabled", "false"),
    ("hook.post-index-change.enabled", "false"),
    ("hook.reference-transaction.enabled", "false"),
    ("hook.pre-receive.enabled", "false"),
    ("hook.update.enabled", "false"),
    ("hook.proc-receive.enabled", "false"),
    ("hook.post-receive.enabled", "false"),
    ("hook.post-update.enabled", "false"),
    ("hook.push-to-checkout.enabled", "false"),
];

/// Settings that guard also overrides in calls with [`Trust::Neutral`], because such calls may read files that an
/// agent wrote.
const NEUTRAL_OVERRIDES: &[(&str, &str)] = &[
    // git checked who owns the repository when guard looked for it. Since then guard has named the repository
    // explicitly.
    ("safe.directory", "*"),
    ("protocol.allow", "never"),
    ("core.attributesFile", "/dev/null"),
    ("core.sshCommand", "false"),
    ("core.askPass", ""),
    ("credential.helper", ""),
    ("commit.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("diff.ignoreSubmodules", "all"),
    ("status.submoduleSummary", "false"),
    ("core.untrackedCache", "false"),
    ("core.alternateRefsCommand", "true"),
    ("diff.orderFile", "/dev/null"),
];

/// The user's `GIT_*` variables that guard keeps in calls with [`Trust::User`]: they tell git how to reach remotes, and
/// where the configuration is.
const KEPT_VARIABLES: &[&str] = &[
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
];

/// Memory limit of a git process with [`Trust::Neutral`], in bytes.
const MAX_MEMORY: u64 = 4 << 30;
/// Memory limit of a git process with [`Trust::User`], in bytes: the user's filters may need more.
const MAX_MEMORY_USER: u64 = 8 << 30;

/// Timeout for a git call that sets no other timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Finds a git program in a directory that no agent can write. Returns its path, and the value of `PATH` for its
/// child processes. Searches only once, and then returns the same result, also if it is an error.
fn find_git() -> Result<&'static (PathBuf, OsString), GitError> {
    static FOUND: OnceLock<Result<(PathBuf, OsString), ProgramNotFound>> = OnceLock::new();
    let search = || {
        let search = ProgramSearch::from_environment();
        Ok((search.find_if("git", is_real_git)?, search.path()))
    };
    FOUND.get_or_init(search).as_ref().map_err(|error| GitError::NotFound(error.clone()))
}

/// Returns the path of the real git program, never that of guard's shim.
pub(crate) fn program() -> Result<&'static Path, GitError> {
    find_git().map(|(program, _)| program.as_path())
}

/// True if the file is executable and is not guard's shim for git.
fn is_real_git(file: &Path) -> bool {
    let Ok(resolved) = file.canonicalize() else { return false };
    let is_shim = resolved.file_name().is_some_and(|name| name == "guard-shim" || name == "guard");
    !is_shim && nix::unistd::access(&resolved, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// A git call that is being built.
pub(crate) struct Git {
    command: Command,
    verb: String,
    config: Vec<(String, OsString)>,
    input: Vec<u8>,
    limit: Duration,
    max_output: usize,
    is_session_leader: bool,
    is_interruptible: bool,
}

impl Git {
    /// Starts to build a call of the git subcommand `verb`. The call has no arguments yet.
    pub(crate) fn new(trust: Trust, verb: &str) -> Result<Self, GitError> {
        let (program, path) = find_git()?;
        let mut command = Command::new(program);
        let memory = match trust {
            Trust::User => MAX_MEMORY_USER,
            Trust::Neutral => MAX_MEMORY,
        };
        crate::sys::pre_exec::limit_git_memory(&mut command, memory);
        let mut config: Vec<(String, OsString)> = Vec::new();
        let mut add = |list: &[(&str, &str)]| {
            config.extend(list.iter().map(|(key, value)| ((*key).to_string(), OsString::from(value))));
        };
        add(OVERRIDES);
        match trust {
            Trust::User => {
                for (name, _) in std::env::vars_os() {
                    let is_git = name.as_bytes().starts_with(b"GIT_");
                    if is_git && !KEPT_VARIABLES.iter().any(|kept| name == *kept) {
                        command.env_remove(name);
                    }
                }
                // git needs `PATH` to start filters, credential helpers and ssh.
                command.env("PATH", path);
            }
            Trust::Neutral => {
                add(NEUTRAL_OVERRIDES);
                command
                    .env_clear()
                    .env("PATH", "/usr/local/bin:/usr/bin:/bin")
                    .env("HOME", "/nonexistent")
                    .env("GIT_CONFIG_NOSYSTEM", "1")
                    .env("GIT_CONFIG_GLOBAL", "/dev/null")
                    .env("GIT_ATTR_NOSYSTEM", "1")
                    .env("GIT_ALLOW_PROTOCOL", "none")
                    .env("GIT_NO_LAZY_FETCH", "1")
                    .env("GIT_ASKPASS", "/bin/false")
                    .env("SSH_ASKPASS", "/bin/false");
            }
        }
        command
            .env("LC_ALL", "C")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_PAGER", "cat")
            .env("GIT_EDITOR", "false")
            .env("GIT_ADVICE", "0")
            .current_dir("/")
            .arg(verb);
        let verb = verb.to_string();
        let input = Vec::new();
        Ok(Self {
            command,
            verb,
            config,
            input,
            limit: DEFAULT_TIMEOUT,
            max_output: 1 << 30,
            is_session_leader: false,
            is_interruptible: false,
        })
    }

    /// Sets the git directory (`GIT_DIR`).
    pub(crate) fn git_dir(self, dir: &Path) -> Self {
        self.env("GIT_DIR", dir)
    }

    /// Sets the working tree (`GIT_WORK_TREE`), and makes it the working directory of the git process.
    pub(crate) fn worktree(self, dir: &Path) -> Self {
        let mut this = self.env("GIT_WORK_TREE", dir);
        this.command.current_dir(dir);
        this
    }

    pub(crate) fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Adds a git setting that overrides the same setting in configuration files.
    pub(crate) fn config(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.config.push((key.to_string(), value.into()));
        self
    }

    pub(crate) fn input(mut self, bytes: Vec<u8>) -> Self {
        self.input = bytes;
        self
    }

    pub(crate) fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the maximum size of git's standard output, in bytes.
    pub(crate) fn max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    pub(crate) fn jailed(mut self, jail: Jail) -> Self {
        jail.confine(&mut self.command);
        self
    }

    /// Makes git run without a terminal and as the leader of its own session, so that guard can end git and its
    /// children together.
    pub(crate) fn in_own_session(mut self) -> Self {
        crate::sys::pre_exec::start_in_new_session(&mut self.command);
        self.is_session_leader = true;
        self
    }

    /// Makes guard end the git process as soon as guard has a pending termination signal. (Guard blocks signals
    /// during a call.)
    pub(crate) fn interruptible(mut self) -> Self {
        self.is_interruptible = true;
        self
    }

    fn failed(&self, source: io::Error) -> GitError {
        GitError::Io { verb: self.verb.clone(), source }
    }

    /// Starts git with a pipe as its standard output.
    pub(crate) fn start(mut self) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.spawn_with_input()
    }

    /// Starts git with a pipe as its standard output, and with `from` as its standard input.
    pub(crate) fn start_with_stdin(mut self, from: impl Into<Stdio>) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.command.stdin(from);
        self.spawn()
    }

    pub(crate) fn start_with_stdout(mut self, to: OwnedFd) -> Result<Running, GitError> {
        self.command.stdout(to);
        self.spawn_with_input()
    }

    fn spawn_with_input(mut self) -> Result<Running, GitError> {
        self.command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut running = self.spawn()?;
        // Input that fits into the pipe's buffer needs no thread. Ignore a write error: if git ends early, its exit
        // code shows why.
        if running.input.len() <= 4096
            && let Some(mut pipe) = running.child.stdin.take()
        {
            let _ = pipe.write_all(&std::mem::take(&mut running.input));
        }
        Ok(running)
    }

    fn spawn(mut self) -> Result<Running, GitError> {
        self.command.env("GIT_CONFIG_COUNT", self.config.len().to_string());
        for (index, (key, value)) in self.config.iter().enumerate() {
            self.command.env(format!("GIT_CONFIG_KEY_{index}"), key);
            self.command.env(format!("GIT_CONFIG_VALUE_{index}"), value);
        }
        // If guard blocks signals until an operation is complete, Ctrl-C on the terminal must not interrupt git
        // either: give git its own process group.
        if !self.is_session_leader && !self.is_interruptible && signals::are_blocked() {
            self.command.process_group(0);
        }
        // git writes its error messages to a memory file instead of a pipe, so that guard need not read them while
        // git runs.
        let errors = memory_file().map_err(|error| self.failed(error))?;
        let for_child = errors.try_clone().map_err(|error| self.failed(error))?;
        self.command.stderr(for_child);
        let child = self.command.spawn().map_err(|error| self.failed(error))?;
        let Self { verb, input, limit, max_output, is_session_leader, is_interruptible, .. } = self;
        let deadline = Instant::now() + limit;
        let started = Instant::now();
        Ok(Running {
            child,
            errors,
            verb,
            input,
            started,
            deadline,
            limit,
            max_output,
            is_session_leader,
            is_interruptible,
        })
    }

    /// Runs git until it exits, and returns the result even if the exit code is not 0.
    pub(crate) fn output(self) -> Result<GitOutput, GitError> {
        self.start()?.finish()
    }

    /// Runs git until it exits, and returns its standard output. An exit code other than 0 is an error.
    pub(crate) fn run(self) -> Result<Vec<u8>, GitError> {
        self.start()?.expect_success()
    }
}

/// Repeats `call` with growing pauses while it fails because another git process is creating or removing a worktree:
/// git reads the admin directories of all worktrees, and fails if a `commondir` file is still empty or already
/// removed. After about a second of pauses, returns the error.
pub(crate) fn retry_during_worktree_changes<T, E: std::fmt::Display>(
    mut call: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut pause = Duration::from_millis(5);
    loop {
        match call() {
            Err(error)
                if GitMessage::UnfinishedWorktree.is_in(&error.to_string())
                    && pause < Duration::from_secs(1) =>
            {
                std::thread::sleep(pause);
                pause *= 2;
            }
            done => return done,
        }
    }
}
