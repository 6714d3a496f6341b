//! Runs git. Every git process that guard itself needs is built here.
//!
//! A call names its repository explicitly (`GIT_DIR`, and `GIT_WORK_TREE` if needed), so that git never
//! discovers one from a directory that an agent wrote. Guard removes the user's `GIT_*` variables. It passes
//! overrides for every setting that makes git run programs as environment variables, so that the child
//! processes of git inherit them. Every call has a timeout and a maximum output size.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::jail::Jail;
use super::stderr_messages::GitMessage;
use crate::sys::pre_exec::GIT_END_SIGNAL;
use crate::sys::process::wait_until;
use crate::sys::programs::{ProgramNotFound, ProgramSearch};
use crate::sys::signals;

/// How often a wait for git checks whether guard must end the call.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Whose git configuration applies to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// All of the user's configuration files. Only for calls that read nothing an agent wrote.
    User,
    /// Only the configuration of the repository, with [`NEUTRAL_OVERRIDES`] on top.
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
    // Hooks defined by settings (git 2.54) have no directory to disable. These are all events that a call of
    // guard's can trigger.
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

/// Further overrides of calls with [`Trust::Neutral`], which may read what an agent wrote.
const NEUTRAL_OVERRIDES: &[(&str, &str)] = &[
    // The user's git checked the owner when guard found the repository. From then on guard names the
    // repository explicitly.
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

/// The `GIT_*` variables of the user that guard keeps: how to reach remotes, and where the configuration is.
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
/// How long a call that is not interruptible may still run after guard received a termination signal.
const GRACE: Duration = Duration::from_secs(10);
/// The minimum time that a call gets which starts after the signal.
const LATE_CALL_GRACE: Duration = Duration::from_secs(2);

/// Default timeout of a call.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of bytes read from git's standard error.
const MAX_STDERR_BYTES: u64 = 8 << 10;

/// Why a git call failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// `PATH` has no usable git: none at all, only guard's shim, or only one that an agent could have
    /// written.
    #[error("cannot find a git program to run: {0}")]
    NotFound(ProgramNotFound),
    /// Starting git, or reading from or writing to it, failed.
    #[error("cannot run git {verb}: {source}")]
    Io {
        /// The git subcommand.
        verb: String,
        /// The cause.
        source: io::Error,
    },
    /// git exited with an error.
    #[error("git {verb} failed{}", failure_detail(.message, *.code))]
    Failed {
        /// The git subcommand.
        verb: String,
        /// The exit code, or 128 plus the signal number.
        code: i32,
        /// What git printed to standard error, without control characters.
        message: String,
    },
    /// git exceeded its timeout.
    #[error("git {verb} took longer than {} s, and guard ended it", limit.as_secs())]
    TimedOut {
        /// The git subcommand.
        verb: String,
        /// The timeout.
        limit: Duration,
    },
    /// Guard received a termination signal and therefore ended the call.
    #[error("guard ended git {verb} because it received {signal}")]
    Interrupted {
        /// The git subcommand.
        verb: String,
        /// The signal.
        signal: Signal,
    },
    /// git's output exceeded its limit.
    #[error("git {verb} printed more than the limit of {limit} bytes")]
    TooMuch {
        /// The git subcommand.
        verb: String,
        /// The limit, in bytes.
        limit: usize,
    },
}

fn failure_detail(message: &str, code: i32) -> String {
    if message.is_empty() { format!(" (exit code {code})") } else { format!(": {message}") }
}

/// Finds the git program in a directory that no agent can write, and the `PATH` for its child processes.
fn find_git() -> Result<&'static (PathBuf, OsString), GitError> {
    static FOUND: OnceLock<Result<(PathBuf, OsString), ProgramNotFound>> = OnceLock::new();
    let search = || {
        let search = ProgramSearch::from_environment();
        Ok((search.find_if("git", is_real_git)?, search.path()))
    };
    FOUND.get_or_init(search).as_ref().map_err(|error| GitError::NotFound(error.clone()))
}

/// The path of the git program, which is never guard's shim.
pub(crate) fn program() -> Result<&'static Path, GitError> {
    find_git().map(|(program, _)| program.as_path())
}

/// True if the file is executable and is not guard's shim.
fn is_real_git(file: &Path) -> bool {
    let Ok(resolved) = file.canonicalize() else { return false };
    let is_shim = resolved.file_name().is_some_and(|name| name == "guard-shim" || name == "guard");
    !is_shim && nix::unistd::access(&resolved, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// Builder of one git call.
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

/// The exit status and output of a finished call.
pub(crate) struct GitOutput {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) message: String,
}

impl GitOutput {
    /// The exit code as a shell reports it: 128 plus the signal number if a signal ended git.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

impl Git {
    /// Builds a call of the git subcommand `verb`. The caller adds its arguments.
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
                // For hooks, filters, credential helpers and ssh.
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

    /// Sets the working tree (`GIT_WORK_TREE`), and starts git in it.
    pub(crate) fn worktree(self, dir: &Path) -> Self {
        let mut this = self.env("GIT_WORK_TREE", dir);
        this.command.current_dir(dir);
        this
    }

    /// Sets the working directory of the git process.
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

    /// Adds a setting that overrides configuration files.
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

    /// Sets the maximum size of the standard output, in bytes.
    pub(crate) fn max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    /// Runs the call in a jail.
    pub(crate) fn jailed(mut self, jail: Jail) -> Self {
        jail.confine(&mut self.command);
        self
    }

    /// Runs git without a terminal, in its own session, so that guard can end it with all of its children.
    pub(crate) fn in_own_session(mut self) -> Self {
        crate::sys::pre_exec::start_in_new_session(&mut self.command);
        self.is_session_leader = true;
        self
    }

    /// Makes guard end the call as soon as a termination signal is pending. (Guard blocks signals meanwhile.)
    pub(crate) fn interruptible(mut self) -> Self {
        self.is_interruptible = true;
        self
    }

    fn failed(&self, source: io::Error) -> GitError {
        GitError::Io { verb: self.verb.clone(), source }
    }

    /// Starts git with its standard output piped.
    pub(crate) fn start(mut self) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.spawn_with_input()
    }

    /// Starts git with its standard output piped, and its standard input read from `from`.
    pub(crate) fn start_with_stdin(mut self, from: impl Into<Stdio>) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.command.stdin(from);
        self.spawn()
    }

    /// Starts git with its standard output sent to `to`.
    pub(crate) fn start_with_stdout(mut self, to: OwnedFd) -> Result<Running, GitError> {
        self.command.stdout(to);
        self.spawn_with_input()
    }

    fn spawn_with_input(mut self) -> Result<Running, GitError> {
        self.command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut running = self.spawn()?;
        // Input that fits into the pipe's buffer needs no thread. If git ends early, its exit code says so.
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
        // If guard holds signals back until an operation is complete, Ctrl-C on the terminal must not
        // interrupt git either.
        if !self.is_session_leader && !self.is_interruptible && signals::are_blocked() {
            self.command.process_group(0);
        }
        // A memory file instead of a pipe, so that guard need not drain it while git runs.
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

    /// Runs git to its end, and returns the result whatever the exit code.
    pub(crate) fn output(self) -> Result<GitOutput, GitError> {
        self.start()?.finish()
    }

    /// Runs git; an exit code other than 0 is an error.
    pub(crate) fn run(self) -> Result<Vec<u8>, GitError> {
        self.start()?.expect_success()
    }
}

/// Retries a call that fails because another git process is creating or removing a worktree: git reads the
/// admin directories of all worktrees, and fails if a `commondir` file is still empty or already gone.
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

/// How often an interruptible call checks for pending signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

fn memory_file() -> io::Result<File> {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    Ok(nix::sys::memfd::memfd_create(c"git", flags)?.into())
}

/// A call that has been started.
pub(crate) struct Running {
    pub(crate) child: Child,
    errors: File,
    pub(crate) verb: String,
    input: Vec<u8>,
    started: Instant,
    deadline: Instant,
    limit: Duration,
    max_output: usize,
    is_session_leader: bool,
    is_interruptible: bool,
}

/// The first termination signal that guard noticed, and when.
fn first_termination_signal() -> Option<(Instant, Signal)> {
    static SINCE: OnceLock<(Instant, Signal)> = OnceLock::new();
    if SINCE.get().is_none()
        && signals::are_blocked()
        && let Some(signal) = signals::pending_end_signal()
    {
        let _ = SINCE.set((Instant::now(), signal));
    }
    SINCE.get().copied()
}

impl Running {
    /// Writes git's input, reads its output, and waits until it exits.
    pub(crate) fn finish(mut self) -> Result<GitOutput, GitError> {
        let input = std::mem::take(&mut self.input);
        let feed =
            |mut pipe: std::process::ChildStdin| std::thread::spawn(move || drop(pipe.write_all(&input)));
        let feeder = self.child.stdin.take().map(feed);
        let mut output = Vec::new();
        if let Err(error) = self.read(&mut output) {
            self.terminate();
            return Err(error);
        }
        let status = self.wait()?;
        if let Some(feeder) = feeder {
            let _ = feeder.join();
        }
        Ok(GitOutput { status, output, message: self.message() })
    }

    /// True if git writes anything to standard output within its timeout. The rest of the output is not read.
    pub(crate) fn has_output(mut self) -> bool {
        let said = self.child.stdout.take().is_some_and(|mut pipe| {
            loop {
                let Ok(timeout) = self.poll_timeout() else { return false };
                match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
                    Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                    Ok(_) => return pipe.read(&mut [0u8; 1]).is_ok_and(|count| count > 0),
                    Err(_) => return false,
                }
            }
        });
        let _ = self.child.kill();
        let _ = self.child.wait();
        said
    }

    /// Like `finish`; an exit code other than 0 is an error.
    pub(crate) fn expect_success(self) -> Result<Vec<u8>, GitError> {
        let verb = self.verb.clone();
        let answer = self.finish()?;
        if answer.status.success() {
            return Ok(answer.output);
        }
        Err(GitError::Failed { verb, code: answer.code(), message: answer.message })
    }

    fn timed_out(&self) -> GitError {
        GitError::TimedOut { verb: self.verb.clone(), limit: self.limit }
    }

    fn failed(&self, source: io::Error) -> GitError {
        GitError::Io { verb: self.verb.clone(), source }
    }

    fn check_interrupted(&self) -> Result<(), GitError> {
        let signal = if self.is_interruptible {
            signals::pending_end_signal()
        } else {
            let is_over =
                |since: Instant| Instant::now() > (since + GRACE).max(self.started + LATE_CALL_GRACE);
            first_termination_signal().filter(|(since, _)| is_over(*since)).map(|(_, signal)| signal)
        };
        match signal {
            Some(signal) => Err(GitError::Interrupted { verb: self.verb.clone(), signal }),
            None => Ok(()),
        }
    }

    /// How long to wait in the next `poll`. Fails if the deadline has passed or guard must end the call.
    pub(crate) fn poll_timeout(&self) -> Result<PollTimeout, GitError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        self.check_interrupted()?;
        let look = if self.is_interruptible { SIGNAL_POLL_INTERVAL } else { SIGNAL_POLL_INTERVAL * 10 };
        let left = left.min(look);
        let milliseconds = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        Ok(PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX))
    }

    /// Reads as much output as the size limit and the timeout allow. Returns it, and whether it is complete.
    /// Fails if git printed everything and then exited with an error.
    pub(crate) fn read_partial(mut self) -> Result<(Vec<u8>, bool), GitError> {
        let mut output = Vec::new();
        match self.read(&mut output) {
            Ok(()) => {}
            Err(GitError::TimedOut { .. } | GitError::TooMuch { .. }) => {
                self.terminate();
                return Ok((output, false));
            }
            Err(error) => {
                self.terminate();
                return Err(error);
            }
        }
        let status = self.wait()?;
        if status.success() {
            return Ok((output, true));
        }
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Err(GitError::Failed { verb: self.verb.clone(), code, message: self.message() })
    }

    fn read(&mut self, output: &mut Vec<u8>) -> Result<(), GitError> {
        let Some(mut pipe) = self.child.stdout.take() else { return Ok(()) };
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            let timeout = self.poll_timeout()?;
            let mut wanted = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wanted, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(self.failed(error.into())),
            }
            match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) if output.len() + count > self.max_output => {
                    return Err(GitError::TooMuch { verb: self.verb.clone(), limit: self.max_output });
                }
                Ok(count) => output.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Waits until git exits; ends it if the deadline passes or guard must end the call.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, GitError> {
        loop {
            let next_check = self.deadline.min(Instant::now() + INTERRUPT_CHECK_INTERVAL);
            let status = wait_until(&mut self.child, next_check).map_err(|error| self.failed(error))?;
            if let Some(status) = status {
                return Ok(status);
            }
            if Instant::now() >= self.deadline {
                self.terminate();
                return Err(self.timed_out());
            }
            if let Err(interrupted) = self.check_interrupted() {
                self.terminate();
                return Err(interrupted);
            }
        }
    }

    /// Ends git. Sends a signal that git can handle first, so that git removes its temporary files.
    pub(crate) fn terminate(&mut self) {
        let pid = self.child.id() as i32;
        // Signal the process group if git leads one, because its children would keep the pipe open.
        let pid = nix::unistd::Pid::from_raw(if self.is_session_leader { -pid } else { pid });
        let _ = nix::sys::signal::kill(pid, GIT_END_SIGNAL);
        let deadline = Instant::now() + Duration::from_secs(2);
        if matches!(wait_until(&mut self.child, deadline), Ok(Some(_))) {
            return;
        }
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// What git printed on standard error: truncated, without control characters.
    pub(crate) fn message(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.errors.seek(SeekFrom::Start(0));
        let _ = (&mut self.errors).take(MAX_STDERR_BYTES).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let plain = |line: &str| -> String {
            line.chars().filter(|c| !crate::terminal_text::is_unsafe(*c)).collect()
        };
        let lines: Vec<String> =
            text.lines().map(|line| plain(line.trim())).filter(|line| !line.is_empty()).collect();
        lines.join("; ")
    }
}

impl Drop for Running {
    /// Ends git if the caller abandoned the call because of another failure.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
        }
    }
}
