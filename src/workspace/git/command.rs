//! Runs git: every git process that guard starts for itself is built here.
//!
//! A call names its repository explicitly (`GIT_DIR`, and `GIT_WORK_TREE` if needed), so that git never
//! discovers one from a directory that an agent wrote. The caller's `GIT_*` variables are removed.
//! Environment variables switch off everything that configuration could make git run, so that the processes
//! git starts inherit that. Every call has a timeout and a maximum output size.

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
use crate::sys::pre_exec::END_OF_GIT;
use crate::sys::programs::{ProgramNotFound, ProgramSearch};
use crate::sys::signals;

/// Whose configuration applies to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The user's, from all files: only for calls that read nothing an agent wrote.
    User,
    /// Only the repository's own.
    Neutral,
}

/// Settings that every call overrides.
const ALWAYS: &[(&str, &str)] = &[
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

/// Further overrides for calls that read what an agent wrote.
const NEUTRAL: &[(&str, &str)] = &[
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

/// The user's variables that say how to reach other machines, and where their configuration is.
const USERS: &[&str] = &[
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
];

/// Memory limit of one process that reads what an agent wrote.
const MOST_MEMORY: u64 = 4 << 30;
/// Memory limit with the user's configuration, whose filters may need more.
const MOST_MEMORY_OF_USERS: u64 = 8 << 30;
/// After a termination signal, calls that must not be interrupted have this long to finish.
const GRACE: Duration = Duration::from_secs(10);
/// Timeout of calls that start after the signal.
const GRACE_OF_LATER: Duration = Duration::from_secs(2);

/// Default timeout.
const LONGEST: Duration = Duration::from_secs(600);
/// Maximum number of bytes read from git's standard error.
const MOST_SAID: u64 = 8 << 10;

/// Why a git call failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git, or only guard's shim, or only in a place where an agent could have put it.
    #[error("git cannot be started: {0}")]
    NotFound(ProgramNotFound),
    /// git could not be started, or its pipes failed.
    #[error("git {verb}: {source}")]
    Io {
        /// The git subcommand.
        verb: String,
        /// The cause.
        source: io::Error,
    },
    /// git exited with an error.
    #[error("git {verb} failed{}", said(.message, *.code))]
    Failed {
        /// The git subcommand.
        verb: String,
        /// The exit code, or 128 plus the signal number.
        code: i32,
        /// What git printed, without control characters.
        message: String,
    },
    /// git exceeded its timeout.
    #[error("git {verb} took longer than {} s and was ended", limit.as_secs())]
    TimedOut {
        /// The git subcommand.
        verb: String,
        /// The timeout.
        limit: Duration,
    },
    /// Guard received a termination signal and ended the call.
    #[error("git {verb} was ended by {signal}")]
    Interrupted {
        /// The git subcommand.
        verb: String,
        /// The signal.
        signal: Signal,
    },
    /// git's output exceeded its limit.
    #[error("git {verb} answered more than {limit} bytes")]
    TooMuch {
        /// The git subcommand.
        verb: String,
        /// The limit, in bytes.
        limit: usize,
    },
}

fn said(message: &str, code: i32) -> String {
    if message.is_empty() { format!(" (exit code {code})") } else { format!(": {message}") }
}

/// Finds the real git, outside any place that an agent can write, and the PATH for its children.
fn found() -> Result<&'static (PathBuf, OsString), GitError> {
    static FOUND: OnceLock<Result<(PathBuf, OsString), ProgramNotFound>> = OnceLock::new();
    let search = || {
        let search = ProgramSearch::from_environment();
        Ok((search.find_if("git", is_real)?, search.path()))
    };
    FOUND.get_or_init(search).as_ref().map_err(|error| GitError::NotFound(error.clone()))
}

/// The path of the real git.
pub(crate) fn program() -> Result<&'static Path, GitError> {
    found().map(|(program, _)| program.as_path())
}

/// True if the file is executable and is not guard's shim.
fn is_real(file: &Path) -> bool {
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
    most: usize,
    is_alone: bool,
    is_interruptible: bool,
}

/// The result of a call.
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) message: String,
}

impl Answer {
    /// The exit code as a shell reports it.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

impl Git {
    /// A call of this subcommand; its arguments follow.
    pub(crate) fn new(trust: Trust, verb: &str) -> Result<Self, GitError> {
        let (program, path) = found()?;
        let mut command = Command::new(program);
        let memory = match trust {
            Trust::User => MOST_MEMORY_OF_USERS,
            Trust::Neutral => MOST_MEMORY,
        };
        crate::sys::pre_exec::bound_git(&mut command, memory);
        let mut config: Vec<(String, OsString)> = Vec::new();
        let mut add = |list: &[(&str, &str)]| {
            config.extend(list.iter().map(|(key, value)| ((*key).to_string(), OsString::from(value))));
        };
        add(ALWAYS);
        match trust {
            Trust::User => {
                for (name, _) in std::env::vars_os() {
                    let is_git = name.as_bytes().starts_with(b"GIT_");
                    if is_git && !USERS.iter().any(|kept| name == *kept) {
                        command.env_remove(name);
                    }
                }
                // For hooks, filters, credential helpers and ssh.
                command.env("PATH", path);
            }
            Trust::Neutral => {
                add(NEUTRAL);
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
            limit: LONGEST,
            most: 1 << 30,
            is_alone: false,
            is_interruptible: false,
        })
    }

    /// Sets the git directory.
    pub(crate) fn dir(self, folder: &Path) -> Self {
        self.env("GIT_DIR", folder)
    }

    /// Sets the working tree, and starts git in it.
    pub(crate) fn worktree(self, folder: &Path) -> Self {
        let mut this = self.env("GIT_WORK_TREE", folder);
        this.command.current_dir(folder);
        this
    }

    /// Sets git's working directory.
    pub(crate) fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
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

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the maximum size of the output.
    pub(crate) fn most(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Runs the call in a jail.
    pub(crate) fn jailed(mut self, jail: Jail) -> Self {
        jail.confine(&mut self.command);
        self
    }

    /// Runs git without a terminal, in its own session, so that guard can end it with all of its children.
    pub(crate) fn alone(mut self) -> Self {
        crate::sys::pre_exec::alone_in_session(&mut self.command);
        self.is_alone = true;
        self
    }

    /// Ends the call when a termination signal is pending (signals are blocked at that time).
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
        self.launch()
    }

    /// Starts git with its standard output piped, and its standard input read from `from`.
    pub(crate) fn start_from(mut self, from: impl Into<Stdio>) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.command.stdin(from);
        self.begin()
    }

    /// Starts git with its standard output sent to `to`.
    pub(crate) fn start_into(mut self, to: OwnedFd) -> Result<Running, GitError> {
        self.command.stdout(to);
        self.launch()
    }

    fn launch(mut self) -> Result<Running, GitError> {
        self.command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut running = self.begin()?;
        // Input that fits into the pipe's buffer needs no thread. If git ends early, its exit code says so.
        if running.input.len() <= 4096
            && let Some(mut pipe) = running.child.stdin.take()
        {
            let _ = pipe.write_all(&std::mem::take(&mut running.input));
        }
        Ok(running)
    }

    fn begin(mut self) -> Result<Running, GitError> {
        self.command.env("GIT_CONFIG_COUNT", self.config.len().to_string());
        for (index, (key, value)) in self.config.iter().enumerate() {
            self.command.env(format!("GIT_CONFIG_KEY_{index}"), key);
            self.command.env(format!("GIT_CONFIG_VALUE_{index}"), value);
        }
        // If guard holds signals back until an operation is complete, Ctrl-C on the terminal must not
        // interrupt git either.
        if !self.is_alone && !self.is_interruptible && signals::are_held() {
            self.command.process_group(0);
        }
        // A memory file instead of a pipe: nobody has to drain it while git runs.
        let errors = memory_file().map_err(|error| self.failed(error))?;
        let for_child = errors.try_clone().map_err(|error| self.failed(error))?;
        self.command.stderr(for_child);
        let child = self.command.spawn().map_err(|error| self.failed(error))?;
        let Self { verb, input, limit, most, is_alone, is_interruptible, .. } = self;
        let deadline = Instant::now() + limit;
        let began = Instant::now();
        Ok(Running { child, errors, verb, input, began, deadline, limit, most, is_alone, is_interruptible })
    }

    /// Runs git to its end, and returns the result whatever the exit code.
    pub(crate) fn answer(self) -> Result<Answer, GitError> {
        self.start()?.finish()
    }

    /// Runs git; an exit code other than 0 is an error.
    pub(crate) fn run(self) -> Result<Vec<u8>, GitError> {
        self.start()?.succeed()
    }
}

/// Retries a call that failed because another git was creating or removing a worktree: git reads the
/// directories of all worktrees, and fails if a `commondir` file is still empty, or already gone.
pub(crate) fn again_when_interfered<T, E: std::fmt::Display>(
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
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

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
    began: Instant,
    deadline: Instant,
    limit: Duration,
    most: usize,
    is_alone: bool,
    is_interruptible: bool,
}

/// The first termination signal that was noticed, and when.
fn asked_to_end() -> Option<(Instant, Signal)> {
    static SINCE: OnceLock<(Instant, Signal)> = OnceLock::new();
    if SINCE.get().is_none()
        && signals::are_held()
        && let Some(signal) = signals::waiting()
    {
        let _ = SINCE.set((Instant::now(), signal));
    }
    SINCE.get().copied()
}

impl Running {
    /// Writes the input, reads the output to its end, and waits.
    pub(crate) fn finish(mut self) -> Result<Answer, GitError> {
        let input = std::mem::take(&mut self.input);
        let feed =
            |mut pipe: std::process::ChildStdin| std::thread::spawn(move || drop(pipe.write_all(&input)));
        let feeder = self.child.stdin.take().map(feed);
        let mut output = Vec::new();
        if let Err(error) = self.read(&mut output) {
            self.end();
            return Err(error);
        }
        let status = self.wait()?;
        if let Some(feeder) = feeder {
            let _ = feeder.join();
        }
        Ok(Answer { status, output, message: self.message() })
    }

    /// True if git writes anything to standard output within its timeout. The rest of the output is not read.
    pub(crate) fn says_anything(mut self) -> bool {
        let said = self.child.stdout.take().is_some_and(|mut pipe| {
            loop {
                let Ok(timeout) = self.left() else { return false };
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
    pub(crate) fn succeed(self) -> Result<Vec<u8>, GitError> {
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

    fn interrupted(&self) -> Result<(), GitError> {
        let signal = if self.is_interruptible {
            signals::waiting()
        } else {
            let is_over = |since: Instant| Instant::now() > (since + GRACE).max(self.began + GRACE_OF_LATER);
            asked_to_end().filter(|(since, _)| is_over(*since)).map(|(_, signal)| signal)
        };
        match signal {
            Some(signal) => Err(GitError::Interrupted { verb: self.verb.clone(), signal }),
            None => Ok(()),
        }
    }

    /// The time left until the deadline; an error if there is none.
    pub(crate) fn left(&self) -> Result<PollTimeout, GitError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        self.interrupted()?;
        let look = if self.is_interruptible { LOOK_FOR_SIGNALS } else { LOOK_FOR_SIGNALS * 10 };
        let left = left.min(look);
        let milliseconds = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        Ok(PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX))
    }

    /// As much output as the size limit and the timeout allow, and whether it is complete. git's exit code
    /// counts only if the output is complete.
    pub(crate) fn part(mut self) -> Result<(Vec<u8>, bool), GitError> {
        let mut output = Vec::new();
        match self.read(&mut output) {
            Ok(()) => {}
            Err(GitError::TimedOut { .. } | GitError::TooMuch { .. }) => {
                self.end();
                return Ok((output, false));
            }
            Err(error) => {
                self.end();
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
            let timeout = self.left()?;
            let mut wanted = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wanted, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(self.failed(error.into())),
            }
            match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) if output.len() + count > self.most => {
                    return Err(GitError::TooMuch { verb: self.verb.clone(), limit: self.most });
                }
                Ok(count) => output.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Waits for git to end; kills it after the deadline.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, GitError> {
        let mut pause = Duration::from_micros(50);
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| self.failed(error))? {
                return Ok(status);
            }
            if Instant::now() >= self.deadline {
                self.end();
                return Err(self.timed_out());
            }
            if let Err(interrupted) = self.interrupted() {
                self.end();
                return Err(interrupted);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// Ends git with a signal that it can handle first, so that it removes its temporary files.
    pub(crate) fn end(&mut self) {
        let pid = self.child.id() as i32;
        // Signal the process group if git leads one: its children would keep the pipe open.
        let pid = nix::unistd::Pid::from_raw(if self.is_alone { -pid } else { pid });
        let _ = nix::sys::signal::kill(pid, END_OF_GIT);
        let patience = Instant::now() + Duration::from_secs(2);
        while Instant::now() < patience {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// What git printed on standard error: truncated, without control characters.
    pub(crate) fn message(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.errors.seek(SeekFrom::Start(0));
        let _ = (&mut self.errors).take(MOST_SAID).read_to_end(&mut bytes);
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
    /// The call was abandoned because something else failed.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}
