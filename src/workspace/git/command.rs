//! Every call of git that guard makes for itself.
//!
//! A call names its repository (`GIT_DIR`, and `GIT_WORK_TREE` where one is needed): nothing is ever discovered from a
//! directory an agent has written. The caller's `GIT_*` variables are gone, and what configuration could make git run is
//! switched off by variables, so that the processes git starts inherit it.

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

/// Whose configuration is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The user's, from all files: only before an agent's files are looked at.
    User,
    /// None but the repository's own.
    Neutral,
}

/// Configuration that no call of guard's leaves to chance.
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
    // Hooks that are settings (git 2.54) are in no directory: every event that a call of guard's could be.
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

/// The same for calls that look at what an agent has written.
const NEUTRAL: &[(&str, &str)] = &[
    // The user's git has looked at the owner when the repository was found; from then on it is named.
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

/// Variables of the user's that say how to reach other machines and where their configuration is.
const USERS: &[&str] = &[
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
];

/// Memory of one process of a call that reads what an agent has written.
const MOST_MEMORY: u64 = 4 << 30;
/// The same with the user's configuration, whose filters may need more.
const MOST_MEMORY_OF_USERS: u64 = 8 << 30;
/// When this program is to end, a call that would rather not be broken off has so long to finish.
const GRACE: Duration = Duration::from_secs(10);
/// Calls that begin after that have so long.
const GRACE_OF_LATER: Duration = Duration::from_secs(2);

/// No call takes longer unless it says so.
const LONGEST: Duration = Duration::from_secs(600);
/// What a call may say on its standard error and be heard.
const MOST_SAID: u64 = 8 << 10;

/// Why a call of git did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git, or only the shim, or only where an agent could have put it.
    #[error("git cannot be started: {0}")]
    NotFound(ProgramNotFound),
    /// It could not be started, or talked to.
    #[error("git {verb}: {source}")]
    Io {
        /// What it was to do.
        verb: String,
        /// Why.
        source: io::Error,
    },
    /// It ended with an error.
    #[error("git {verb} failed{}", said(.message, *.code))]
    Failed {
        /// What it was to do.
        verb: String,
        /// Its exit code, or 128 and the signal's number.
        code: i32,
        /// What it said, without control characters.
        message: String,
    },
    /// It took too long.
    #[error("git {verb} took longer than {} s and was ended", limit.as_secs())]
    TimedOut {
        /// What it was to do.
        verb: String,
        /// How long it had.
        limit: Duration,
    },
    /// This program is to end, and did not wait for it.
    #[error("git {verb} was ended by {signal}")]
    Interrupted {
        /// What it was to do.
        verb: String,
        /// What came.
        signal: Signal,
    },
    /// It said more than can be an honest answer.
    #[error("git {verb} answered more than {limit} bytes")]
    TooMuch {
        /// What it was to do.
        verb: String,
        /// How much it could.
        limit: usize,
    },
}

fn said(message: &str, code: i32) -> String {
    if message.is_empty() { format!(" (exit code {code})") } else { format!(": {message}") }
}

/// The real git, where no agent can have put it, and the PATH for what it starts.
fn found() -> Result<&'static (PathBuf, OsString), GitError> {
    static FOUND: OnceLock<Result<(PathBuf, OsString), ProgramNotFound>> = OnceLock::new();
    let search = || {
        let search = ProgramSearch::from_environment();
        Ok((search.find_if("git", is_real)?, search.path()))
    };
    FOUND.get_or_init(search).as_ref().map_err(|error| GitError::NotFound(error.clone()))
}

/// The real git.
pub(crate) fn program() -> Result<&'static Path, GitError> {
    found().map(|(program, _)| program.as_path())
}

/// Not guard's shim, and executable.
fn is_real(file: &Path) -> bool {
    let Ok(resolved) = file.canonicalize() else { return false };
    let is_shim = resolved.file_name().is_some_and(|name| name == "guard-shim" || name == "guard");
    !is_shim && nix::unistd::access(&resolved, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// One call in the making.
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

/// What a call answered.
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) message: String,
}

impl Answer {
    /// The exit code as shells say it.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

impl Git {
    /// A call of this verb; what follows are its arguments.
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

    /// The repository.
    pub(crate) fn dir(self, folder: &Path) -> Self {
        self.env("GIT_DIR", folder)
    }

    /// The working tree.
    pub(crate) fn worktree(self, folder: &Path) -> Self {
        let mut this = self.env("GIT_WORK_TREE", folder);
        this.command.current_dir(folder);
        this
    }

    /// The directory git is started in.
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

    /// A setting that beats those of files.
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

    /// The largest answer that is taken.
    pub(crate) fn most(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Runs in a jail.
    pub(crate) fn jailed(mut self, jail: Jail) -> Self {
        jail.confine(&mut self.command);
        self
    }

    /// Has no terminal, and ends with everything it has started.
    pub(crate) fn alone(mut self) -> Self {
        crate::sys::pre_exec::alone_in_session(&mut self.command);
        self.is_alone = true;
        self
    }

    /// Ends when this program is to end: a signal for that has come, and is blocked.
    pub(crate) fn interruptible(mut self) -> Self {
        self.is_interruptible = true;
        self
    }

    fn failed(&self, source: io::Error) -> GitError {
        GitError::Io { verb: self.verb.clone(), source }
    }

    /// Starts it with its standard output piped.
    pub(crate) fn start(mut self) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.launch()
    }

    /// Starts it with its standard output piped, and its input coming from there.
    pub(crate) fn start_from(mut self, from: impl Into<Stdio>) -> Result<Running, GitError> {
        self.command.stdout(Stdio::piped());
        self.command.stdin(from);
        self.begin()
    }

    /// Starts it with its standard output going there.
    pub(crate) fn start_into(mut self, to: OwnedFd) -> Result<Running, GitError> {
        self.command.stdout(to);
        self.launch()
    }

    fn launch(mut self) -> Result<Running, GitError> {
        self.command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut running = self.begin()?;
        // What fits into a pipe does not have to wait for a reader. A git that ends early says so by its exit code.
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
        // Whoever holds signals back until something is done does not have it broken off by a key either.
        if !self.is_alone && !self.is_interruptible && signals::are_held() {
            self.command.process_group(0);
        }
        // A file, not a pipe: nobody has to read it while the program runs.
        let errors = memory_file().map_err(|error| self.failed(error))?;
        let for_child = errors.try_clone().map_err(|error| self.failed(error))?;
        self.command.stderr(for_child);
        let child = self.command.spawn().map_err(|error| self.failed(error))?;
        let Self { verb, input, limit, most, is_alone, is_interruptible, .. } = self;
        let deadline = Instant::now() + limit;
        let began = Instant::now();
        Ok(Running { child, errors, verb, input, began, deadline, limit, most, is_alone, is_interruptible })
    }

    /// Runs it to its end, however it ends.
    pub(crate) fn answer(self) -> Result<Answer, GitError> {
        self.start()?.finish()
    }

    /// Runs it; an exit code other than 0 is an error.
    pub(crate) fn run(self) -> Result<Vec<u8>, GitError> {
        self.start()?.succeed()
    }
}

/// Does something again that failed because another git was just making a worktree: git reads the directories of all worktrees,
/// and ends when the file that says where the repository is has no words in it yet, or not any more.
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

/// How often a call that can be interrupted looks whether it is.
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

/// Since when this program is to end, if that was noticed.
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
    /// Feeds it, reads it to its end, and waits.
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

    /// Whether it says anything at all on standard output within its time; it is not heard to its end.
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

    /// The same; an exit code other than 0 is an error.
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

    /// Time left; none is an error.
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

    /// As much of its answer as there is room and time for, and whether that is all of it. An end with an error is one only
    /// where it came to its end.
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

    /// Waits for the end; past the deadline it is made.
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

    /// Ends it: asked first, so that it takes its temporary files away.
    pub(crate) fn end(&mut self) {
        let pid = self.child.id() as i32;
        // Its process group, where it leads one: what it has started would hold on to the other side.
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

    /// What it said on standard error: bounded, on lines, without control characters.
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
    /// Nobody waits for it any more, because something else has failed.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}
