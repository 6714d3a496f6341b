//! The process that becomes the agent: drops its privileges, proves that they are gone, and executes the program.
//!
//! This code runs between fork and exec, in a child of init. Init has one thread, so the child may allocate. The child
//! talks to the supervisor only over the `setup` socket. It must never return to its caller: it reports every failure
//! and exits.

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

/// What the child needs besides the plan, created before the fork.
pub(crate) struct ChildResources {
    pub(crate) filters: sandbox::Filters,
    /// Standard input, output and error.
    pub(crate) stdio: [OwnedFd; 3],
    /// Standard input is `/dev/null`, which init opens again inside the run's own mounts.
    pub(crate) null_input: bool,
    /// The port the canary tries to connect to.
    pub(crate) canary_port: u16,
    /// The run has a mount namespace of its own.
    pub(crate) has_view: bool,
    /// `RLIMIT_NPROC` counts every process of the user on the machine, not only those of the run.
    pub(crate) counts_all: bool,
}

/// Restricts this process and executes the agent's program.
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

/// Drops every right that the plan does not grant, and proves with the canary that they are gone.
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
    // The filters come first: installing them takes the longest and waits for nobody. From here on, a notified system
    // call blocks until the supervisor answers; the canary makes the first one.
    step("seccomp", seccomp::install(&equipment.filters.deny))?;
    let listener = seccomp::install_listener(&equipment.filters.notify)
        .map_err(|error| StartError::Listener(format!("seccomp notification: {error}")))?;
    step(
        "hand over the listener",
        socket::send_with(setup.as_fd(), &AgentMessage::Listener.encode(), listener.as_raw_fd()),
    )?;
    // From here on the supervisor must be able to read this process's memory. Before, nobody may: it is a copy of
    // guard's memory.
    step("dumpable", process::set_dumpable(true))?;
    step("Landlock", sandbox::restrict(&plan.grants))?;
    canary(plan, equipment, setup)
}

fn connect_stdio(stdio: &[OwnedFd; 3]) -> Result<(), StartError> {
    // Move all three out of the way first, so that none is overwritten before it is in place.
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
        // Limits are only ever lowered.
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

/// Tries a write, a connect and an exec that must all be refused. If one succeeds, reports it and exits. Otherwise the
/// supervisor checks from outside, when the program is about to start, that none has had an effect.
fn canary(plan: &LaunchPlan, equipment: &ChildResources, setup: &OwnedFd) -> Result<(), StartError> {
    let mut breaches = Vec::new();
    let forbidden = canary_file(&plan.run_folder);
    let refused = [libc::EACCES, libc::EPERM, libc::EROFS];
    let untried = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::ENOSYS];
    let is_untried = |error: &io::Error| error.raw_os_error().is_some_and(|errno| untried.contains(&errno));
    let is_refused = |error: &io::Error| error.raw_os_error().is_some_and(|errno| refused.contains(&errno));
    match std::fs::File::create(&forbidden) {
        Err(error) if is_refused(&error) => {}
        // In a mount namespace the path may lie in the private /tmp. The supervisor checks whether the file exists
        // outside.
        _ if equipment.has_view => {}
        _ => breaches.push(Breach::Write),
    }
    match knock(equipment.canary_port, plan.run_id.as_bytes()) {
        Err(error) if is_refused(&error) => {}
        // The connect was not even attempted for lack of a resource, which proves nothing about the sandbox.
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

/// Connects to a loopback port and sends `word`, whatever the connect returned. The supervisor recognizes the canary by
/// this word, because unrelated clients may connect to the same port.
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

/// The file the canary tries to create. The supervisor checks from outside that it does not exist.
pub(crate) fn canary_file(run_folder: &Path) -> std::path::PathBuf {
    run_folder.join("canary")
}
