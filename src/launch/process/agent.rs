//! The process that becomes the agent: takes its own rights away, proves that they are gone, and executes.
//!
//! Runs between fork and exec, as a child of init, which has one thread: so it may allocate. It talks to the
//! supervisor only over `setup`, and never comes back: every failure is reported and ends the process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use super::cgroup::threads_on_machine;
use super::protocol::{AgentMessage, Breach, StartError};
use crate::launch::plan::LaunchPlan;
use crate::sandbox;
use crate::supervisor::CANARY_PROGRAM;
use crate::sys::{process, seccomp, socket, terminal};

/// What the child needs besides the plan, made before the fork.
pub(crate) struct ChildResources {
    /// The system call filters.
    pub(crate) filters: sandbox::Filters,
    /// Standard input, output and error.
    pub(crate) stdio: [OwnedFd; 3],
    /// Standard input is `/dev/null`, to be opened where the run's own mounts are.
    pub(crate) null_input: bool,
    /// Where the canary tries to connect.
    pub(crate) canary_port: u16,
    /// The run has a mount namespace of its own.
    pub(crate) has_view: bool,
    /// The limit of processes counts everything of the user on the machine.
    pub(crate) counts_all: bool,
}

/// Becomes the agent.
pub(crate) fn become_agent(
    plan: &LaunchPlan,
    equipment: &ChildResources,
    setup: &OwnedFd,
    terminal: Option<&OwnedFd>,
    entered: &io::Result<()>,
) -> ! {
    let error = match restrict(plan, equipment, setup, terminal, entered) {
        Ok(()) => execute(plan, setup),
        Err(error) => error,
    };
    let _ = nix::unistd::write(setup, &AgentMessage::Failed(error).encode());
    process::exit_now(125)
}

fn step<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Result<T, StartError> {
    result.map_err(StartError::at(what))
}

/// Takes every right away that the plan does not give, and proves that they are gone.
fn restrict(
    plan: &LaunchPlan,
    equipment: &ChildResources,
    setup: &OwnedFd,
    own_terminal: Option<&OwnedFd>,
    entered: &io::Result<()>,
) -> Result<(), StartError> {
    step("setsid", nix::unistd::setsid())?;
    if let Some(own) = own_terminal {
        step("take the terminal", terminal::take_control(own.as_fd()))?;
    }
    connect_stdio(&equipment.stdio)?;
    process::leave_session_keyring();
    step("enter the working directory", entered.as_ref())?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    limit(plan, equipment)?;
    step("close descriptors", process::close_on_exec_from(3))?;
    reset_signals()?;
    step("drop capabilities", process::drop_capabilities())?;
    step("no_new_privs", process::set_no_new_privileges())?;
    // First, because it takes the longest and waits for nobody. What is asked from here on is answered later: nothing that
    // comes before the canary is.
    step("seccomp", seccomp::install(&equipment.filters.deny))?;
    let listener = seccomp::install_listener(&equipment.filters.notify)
        .map_err(|error| StartError::Listener(format!("seccomp notification: {error}")))?;
    step(
        "hand over the listener",
        socket::send_with(setup.as_fd(), &AgentMessage::Listener.encode(), listener.as_raw_fd()),
    )?;
    // The supervisor reads this process's memory. Until here nobody may: it is a copy of guard's.
    step("dumpable", process::set_dumpable(true))?;
    step("Landlock", sandbox::restrict(&plan.grants))?;
    canary(plan, equipment, setup)
}

fn connect_stdio(stdio: &[OwnedFd; 3]) -> Result<(), StartError> {
    // First out of the way, so that none is overwritten before it has been put in place.
    let mut moved = Vec::new();
    for fd in stdio {
        moved
            .push(step("standard streams", nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(3)))?);
    }
    step("standard input", process::replace_descriptor(moved[0], 0))?;
    step("standard output", process::replace_descriptor(moved[1], 1))?;
    step("standard error", process::replace_descriptor(moved[2], 2))
}

fn limit(plan: &LaunchPlan, equipment: &ChildResources) -> Result<(), StartError> {
    let limits = &plan.limits;
    let others = if equipment.counts_all { threads_on_machine() } else { 0 };
    let mib = |value: u64| value.saturating_mul(1 << 20);
    let wanted = [
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_NPROC, limits.processes.map(|limit| limit.saturating_add(others))),
        (Resource::RLIMIT_FSIZE, limits.file_mib.map(mib)),
        (Resource::RLIMIT_CORE, Some(0)),
    ];
    for (resource, value) in wanted {
        let Some(value) = value else { continue };
        // Only ever less than what is allowed already.
        let (soft, hard) = step("limits", nix::sys::resource::getrlimit(resource))?;
        let value = value.min(hard);
        let soft = if resource == Resource::RLIMIT_NOFILE { soft.min(value) } else { value };
        step("limits", setrlimit(resource, soft, value))?;
    }
    Ok(())
}

fn reset_signals() -> Result<(), StartError> {
    for number in Signal::iterator() {
        if !matches!(number, Signal::SIGKILL | Signal::SIGSTOP) {
            step("signals", process::default_signal(number))?;
        }
    }
    step("signals", sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None))
}

/// Tries what must not be possible any more. What was possible is told, and is the end; otherwise the supervisor looks
/// for itself when the program is about to start.
fn canary(plan: &LaunchPlan, equipment: &ChildResources, setup: &OwnedFd) -> Result<(), StartError> {
    let mut breaches = Vec::new();
    let forbidden = canary_file(&plan.run_folder);
    let refused = [libc::EACCES, libc::EPERM, libc::EROFS];
    let untried = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::ENOSYS];
    let is_untried = |error: &io::Error| error.raw_os_error().is_some_and(|errno| untried.contains(&errno));
    let is_refused = |error: &io::Error| error.raw_os_error().is_some_and(|errno| refused.contains(&errno));
    match std::fs::File::create(&forbidden) {
        Err(error) if is_refused(&error) => {}
        // In a mount namespace of its own the path may lie in the private /tmp; the supervisor looks whether it is there outside.
        _ if equipment.has_view => {}
        _ => breaches.push(Breach::Write),
    }
    match knock(equipment.canary_port, plan.run_id.as_bytes()) {
        Err(error) if is_refused(&error) => {}
        // Not even tried: that proves nothing, and says nothing of the sandbox.
        Err(error) if is_untried(&error) => return Err(StartError::at("canary")(error)),
        _ => breaches.push(Breach::Connect),
    }
    let name = step("canary", CString::new(CANARY_PROGRAM))?;
    let error = process::execute(&name, std::slice::from_ref(&name), &[]);
    if is_untried(&error) {
        return Err(StartError::at("canary")(error));
    }
    if error.raw_os_error() != Some(libc::EACCES) {
        breaches.push(Breach::Exec);
    }
    if breaches.is_empty() {
        return Ok(());
    }
    step("canary", nix::unistd::write(setup, &AgentMessage::CanaryBroken(breaches).encode()))?;
    process::exit_now(125)
}

/// Connects to a port of this machine and says a word there, whatever the kernel says of the connection: outside, others
/// that come by are told from this one by it.
fn knock(port: u16, word: &[u8]) -> io::Result<()> {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, connect, send, socket};
    let own = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let connected = loop {
        match connect(own.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)) {
            Err(nix::errno::Errno::EINTR) => {}
            connected => break connected,
        }
    };
    let _ = send(own.as_raw_fd(), word, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
    Ok(connected?)
}

fn execute(plan: &LaunchPlan, setup: &OwnedFd) -> ! {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let program = text(plan.program.as_os_str().as_bytes());
    let argv: Vec<CString> = plan.argv.iter().map(|word| text(word.as_bytes())).collect();
    let environment: Vec<CString> = plan
        .environment
        .iter()
        .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let error = process::execute(&program, &argv, &environment);
    let errno = error.raw_os_error().unwrap_or(0);
    let _ = nix::unistd::write(setup, &AgentMessage::ExecFailed(errno).encode());
    process::exit_now(if errno == libc::ENOENT { 127 } else { 126 })
}

/// Where the canary would have written: seen from outside, it must not be there.
pub(crate) fn canary_file(run_folder: &Path) -> std::path::PathBuf {
    run_folder.join("canary")
}
