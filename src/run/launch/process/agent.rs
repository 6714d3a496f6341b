//! The process that becomes the agent: it gives up its privileges, tests with the canary (actions that must fail)
//! that it has none left, and executes the program.
//!
//! This code runs between fork and exec, in a child of init. Init has only one thread, so the child may allocate
//! memory. The child communicates with guard only over the `setup` socket. It must never return to its caller: it
//! reports every failure and exits.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use super::cgroup::threads_on_machine;
use super::protocol::{AgentMessage, Breach, StartError};
use crate::run::launch::plan::launch_plan::LaunchPlan;
use crate::run::supervisor::CANARY_PROGRAM;
use crate::sandbox;
use crate::sys::{process, seccomp, socket, terminal};

/// What the agent process needs in addition to the plan. guard creates these resources before the fork.
pub(crate) struct ChildResources {
    pub(crate) filters: sandbox::Filters,
    pub(crate) stdio: [OwnedFd; 3],
    /// True if standard input is `/dev/null`. Init then opens `/dev/null` again after it has made the run's mounts, if
    /// there are any.
    pub(crate) null_input: bool,
    /// The port on loopback at which guard listens, and to which the canary (the self-test of the sandbox) tries to
    /// connect.
    pub(crate) canary_port: u16,
    pub(crate) has_mount_namespace: bool,
    /// True if `RLIMIT_NPROC` counts every process of the user on the machine, and not only those of the run.
    pub(crate) rlimit_counts_all: bool,
}

/// The name, for error messages, of the step in which the canary (the self-test of the sandbox) runs.
const TEST_SANDBOX: &str = "test the sandbox";

/// Restricts this process and executes the agent's program. Does not return: if something fails, reports that to guard
/// and exits.
pub(crate) fn become_agent(
    plan: &LaunchPlan,
    resources: &ChildResources,
    setup: &OwnedFd,
    terminal: Option<&OwnedFd>,
    entered: &io::Result<()>,
) -> ! {
    let error = match restrict(plan, resources, setup, terminal, entered) {
        Ok(()) => execute(plan, setup),
        Err(error) => error,
    };
    let _ = nix::unistd::write(setup, &AgentMessage::Failed(error).encode());
    process::exit_now(125)
}

/// Adds the name of the failed step to an error. `step` is a verb with its object.
fn step<T, E: std::fmt::Display>(step: &str, result: Result<T, E>) -> Result<T, StartError> {
    result.map_err(StartError::at(step))
}

/// Prepares this process for the program (session, standard streams, working directory, limits), gives up every right
/// that the plan does not grant, and tests with the canary (actions that must fail) that these rights are gone.
fn restrict(
    plan: &LaunchPlan,
    resources: &ChildResources,
    setup: &OwnedFd,
    own_terminal: Option<&OwnedFd>,
    entered: &io::Result<()>,
) -> Result<(), StartError> {
    step("create a session", nix::unistd::setsid())?;
    if let Some(own) = own_terminal {
        step("take control of the terminal", terminal::take_control(own.as_fd()))?;
    }
    connect_stdio(&resources.stdio)?;
    process::leave_session_keyring();
    step("enter the working directory", entered.as_ref())?;
    set_limits(plan, resources)?;
    step("mark descriptors close-on-exec", process::close_on_exec_from(3))?;
    reset_signals()?;
    step("drop capabilities", process::drop_capabilities())?;
    step("set no_new_privs", process::set_no_new_privileges())?;
    // The deny filter refuses `openat2`, by which guard opens the granted paths.
    let ruleset = step("prepare Landlock", sandbox::prepare_ruleset(&plan.grants))?;
    // Install the filters before Landlock: this step takes the longest and needs no answer from guard, which starts the
    // supervisor meanwhile. Afterwards, each system call of which the filter notifies the supervisor blocks until the
    // supervisor answers. The canary makes the first such call.
    step("install the seccomp filter", seccomp::install(&resources.filters.deny))?;
    let listener = seccomp::install_listener(&resources.filters.notify)
        .map_err(|error| StartError::Listener(error.to_string()))?;
    step(
        "send the seccomp listener to guard",
        socket::send_with(setup.as_fd(), &AgentMessage::Listener.encode(), listener.as_raw_fd()),
    )?;
    // From here on the supervisor must be able to read this process's memory. Do not make the process dumpable earlier
    // than that, because its memory is a copy of guard's memory.
    step("make the agent process dumpable", process::set_dumpable(true))?;
    step("apply Landlock", sandbox::restrict(&ruleset))?;
    run_canary(plan, resources, setup)
}

fn connect_stdio(stdio: &[OwnedFd; 3]) -> Result<(), StartError> {
    // Duplicate all three descriptors to higher numbers first, so that no `dup2` overwrites one that is still needed.
    let mut moved = Vec::new();
    for fd in stdio {
        let copy = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(3));
        moved.push(step("duplicate the standard streams", copy)?);
    }
    step("connect standard input", process::replace_descriptor(moved[0], 0))?;
    step("connect standard output", process::replace_descriptor(moved[1], 1))?;
    step("connect standard error", process::replace_descriptor(moved[2], 2))
}

fn set_limits(plan: &LaunchPlan, resources: &ChildResources) -> Result<(), StartError> {
    let limits = &plan.limits;
    let others = if resources.rlimit_counts_all { threads_on_machine() } else { 0 };
    let mib = |value: u64| value.saturating_mul(1 << 20);
    let wanted = [
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_NPROC, limits.processes.map(|limit| limit.saturating_add(others))),
        (Resource::RLIMIT_FSIZE, limits.file_mib.map(mib)),
        (Resource::RLIMIT_CORE, Some(0)),
    ];
    for (resource, value) in wanted {
        let Some(value) = value else { continue };
        // guard never raises a hard limit. For open files it does not raise the soft limit either.
        let (soft, hard) = step("read the resource limits", nix::sys::resource::getrlimit(resource))?;
        let value = value.min(hard);
        let soft = if resource == Resource::RLIMIT_NOFILE { soft.min(value) } else { value };
        step("set the resource limits", setrlimit(resource, soft, value))?;
    }
    Ok(())
}

fn reset_signals() -> Result<(), StartError> {
    for number in Signal::iterator() {
        if !matches!(number, Signal::SIGKILL | Signal::SIGSTOP) {
            step("reset the signal handlers", process::default_signal(number))?;
        }
    }
    step("unblock signals", sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None))
}

/// Runs the canary, the self-test of the sandbox: tries a write, a connect and an exec that the sandbox must refuse. If
/// the sandbox does not refuse one of them, reports that to guard and exits. Fails if the kernel lacks the resources
/// for an attempt. In a run with a mount namespace, ignores the result of the write. In any case guard checks from
/// outside, just before the program starts, that neither the write nor the connect had an effect.
fn run_canary(plan: &LaunchPlan, resources: &ChildResources, setup: &OwnedFd) -> Result<(), StartError> {
    let mut breaches = Vec::new();
    let forbidden = canary_file(&plan.run_folder);
    let refused = [libc::EACCES, libc::EPERM, libc::EROFS];
    let untried = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::ENOSYS];
    let is_untried = |error: &io::Error| error.raw_os_error().is_some_and(|errno| untried.contains(&errno));
    let is_refused = |error: &io::Error| error.raw_os_error().is_some_and(|errno| refused.contains(&errno));
    match std::fs::File::create(&forbidden) {
        Err(error) if is_refused(&error) => {}
        // In a mount namespace the path may be in the private /tmp, to which the agent may write. guard checks
        // whether the file exists outside the namespace.
        _ if resources.has_mount_namespace => {}
        _ => breaches.push(Breach::Write),
    }
    match connect_and_send(resources.canary_port, plan.run_id.as_bytes()) {
        Err(error) if is_refused(&error) => {}
        // The kernel lacked a resource and did not even try to connect, which shows nothing about the sandbox.
        Err(error) if is_untried(&error) => return Err(StartError::at(TEST_SANDBOX)(error)),
        _ => breaches.push(Breach::Connect),
    }
    let name = step(TEST_SANDBOX, CString::new(CANARY_PROGRAM))?;
    let error = process::execute(&name, std::slice::from_ref(&name), &[]);
    if is_untried(&error) {
        return Err(StartError::at(TEST_SANDBOX)(error));
    }
    if error.raw_os_error() != Some(libc::EACCES) {
        breaches.push(Breach::Exec);
    }
    if breaches.is_empty() {
        return Ok(());
    }
    step(TEST_SANDBOX, nix::unistd::write(setup, &AgentMessage::CanaryBroken(breaches).encode()))?;
    process::exit_now(125)
}

/// Connects to a loopback port and sends the run's id, whatever the connect returned. guard recognises the canary by
/// the id, because other clients may connect to the same port.
fn connect_and_send(port: u16, run_id: &[u8]) -> io::Result<()> {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, connect, send, socket};
    let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let connected = loop {
        match connect(client.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)) {
            Err(nix::errno::Errno::EINTR) => {}
            connected => break connected,
        }
    };
    let _ = send(client.as_raw_fd(), run_id, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
    Ok(connected?)
}

fn execute(plan: &LaunchPlan, setup: &OwnedFd) -> ! {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let program = text(plan.program.as_os_str().as_bytes());
    let argv: Vec<CString> = plan.argv.iter().map(|argument| text(argument.as_bytes())).collect();
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

/// Returns the path of the file that the canary (the self-test of the sandbox) tries to create. guard checks from
/// outside that the file does not exist.
pub(crate) fn canary_file(run_folder: &Path) -> std::path::PathBuf {
    run_folder.join("canary")
}
