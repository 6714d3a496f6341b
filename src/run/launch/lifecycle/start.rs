//! The start of a run: receives the agent process's seccomp listener, starts the supervisor, checks from outside that
//! all forbidden actions of the canary (a self-test of the sandbox) failed, and lets the agent process execute its
//! program. The program must not start before guard has made and recorded this check.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use serde_json::json;

use super::event_loop::{ExecFailure, StartFailure};
use super::running::{LazyThread, Running};
use super::{Failure, step_failed};
use crate::judge::command::Context;
use crate::judge::policy::Policy;
use crate::run::egress;
use crate::run::launch::discover::toolchain_table::CACHE_USERS;
use crate::run::launch::plan::shims::Shims;
use crate::run::launch::process::agent::canary_file;
use crate::run::launch::process::cgroup::{Group, ProcessBound};
use crate::run::launch::process::protocol::{AgentMessage, Breach, StartError};
use crate::run::outcome::{Denial, Enforcement, LimitNotInForce};
use crate::run::supervisor;
use crate::run::supervisor::{
    Ask, Counts, Handle, LazyResource, Repositories, ShimService, SupervisorConfig,
};
use crate::run::transcript::EventType;
use crate::sandbox::{HeldBoundary, Need, held_boundaries};
use crate::sys::socket;

/// The operations that the canary (the self-test of the sandbox) tries, as the transcript and the result list them.
const CANARY_ATTEMPTS: [&str; 3] = ["write outside", "connect to the machine", "start a forbidden program"];

const CHECK_SANDBOX: &str = "check that the sandbox works";

/// A check from outside the sandbox. Returns true if no attempt of the canary (the self-test of the sandbox) had an
/// effect.
type CanaryCheck = Box<dyn FnOnce() -> bool + Send>;

impl Running {
    /// Starts the supervisor, and waits until the agent process has restricted itself, passed the tests of the canary
    /// (the self-test of the sandbox) and executed the program.
    pub(crate) fn start_program(
        &mut self,
        policy: &Arc<Policy>,
        shims: UnixListener,
        asker: Option<Box<dyn Ask>>,
        group: &Group,
    ) -> Result<(Enforcement, Handle), StartFailure> {
        // Make the following preparations while the agent process restricts itself.
        let writable = self.writable();
        let context = self.context(policy, &writable);
        let repositories = self.repositories(&writable);
        let shim_service = ShimService {
            policy: policy.clone(),
            context: context.clone(),
            repositories: repositories.clone(),
            recorder: self.recorder.clone(),
        };
        self.lazy_threads.push(LazyThread::Shims(shims, Box::new(shim_service)));
        self.start_proxy()?;
        let enforcement = self.enforcement(group);
        let (recording, is_recording) = mpsc::sync_channel(1);
        let (check, checked) = self.canary_check(&enforcement, is_recording)?;
        let config = self.supervisor_config(policy, context, (repositories, writable), asker, check);
        let counts_forks = group.process_bound == ProcessBound::Supervisor;
        let process_limit = self.started.plan.limits.processes.filter(|_| counts_forks);
        let config = SupervisorConfig { process_limit, ..config };
        let supervisor = self.start_supervisor(config, policy, &recording)?;
        // A successful exec closes the socket, so the read returns zero bytes.
        let mut message = [0u8; 4096];
        let got = match &self.started.setup {
            Some(setup) => nix::unistd::read(setup, &mut message),
            None => Err(nix::errno::Errno::EBADF),
        };
        let got = got.map_err(|error| StartFailure::Failed(step_failed("start the agent")(error.into())))?;
        let seen: Option<Vec<Breach>> = checked.try_recv().ok();
        let message = (got > 0).then(|| AgentMessage::decode(&message[..got]));
        match message {
            Some(Some(AgentMessage::CanaryBroken(breaches))) => {
                Err(canary_failed(breaches.into_iter().chain(seen.unwrap_or_default())))
            }
            _ if seen.as_ref().is_some_and(|breaches| !breaches.is_empty()) => {
                Err(canary_failed(seen.unwrap_or_default()))
            }
            Some(Some(AgentMessage::ExecFailed(errno))) => {
                let counts = supervisor.finish();
                let mut denials = self.denials(counts).into_iter();
                let denial =
                    denials.find(|denial| denial.kind == EventType::DenyExec && !denial.rule.is_empty());
                Err(StartFailure::NotStarted(ExecFailure {
                    errno,
                    denial: denial.map(|denial| format!("{} (rule {})", denial.what, denial.rule)),
                }))
            }
            Some(Some(AgentMessage::Failed(error))) => Err(start_failed("restrict the agent", error)),
            Some(Some(AgentMessage::Listener) | None) => {
                Err(start_failed(CHECK_SANDBOX, "the agent process sent an unexpected message"))
            }
            None if seen.is_none() => Err(start_failed(CHECK_SANDBOX, "the agent process ended early")),
            None => {
                let Enforcement { landlock_abi, namespaces, shims, .. } = enforcement;
                tracing::info!(
                    landlock_abi,
                    namespaces,
                    shims,
                    "the sandbox works, and the program has started"
                );
                Ok((enforcement, supervisor))
            }
        }
    }

    /// Starts the thread of the network proxy: now if the run has a gateway, otherwise when the first client connects.
    fn start_proxy(&mut self) -> Result<(), StartFailure> {
        let plan = &self.started.plan.network;
        let (activity, exhausted) = (self.activity.clone(), self.exhausted.clone());
        let config = self.network.proxy_config(plan, self.recorder.clone(), activity, exhausted);
        if plan.gateways.is_empty() {
            self.lazy_threads.push(LazyThread::Network(Box::new(config)));
            return Ok(());
        }
        let proxy = egress::start(config);
        let failed = |error| StartFailure::Failed(step_failed("start the network proxy")(error));
        self.proxy = Some(proxy.map_err(failed)?);
        Ok(())
    }

    /// Starts the threads of the supervisor and of the transcript. Returns when the supervisor has received the
    /// seccomp listener of the agent process. Sends a message on `recording` when the transcript's thread has started
    /// to write events.
    fn start_supervisor(
        &mut self,
        config: SupervisorConfig,
        policy: &Policy,
        recording: &mpsc::SyncSender<()>,
    ) -> Result<Handle, StartFailure> {
        let failed = |error: io::Error| StartFailure::Failed(step_failed("start the supervisor")(error));
        let setup = self.started.setup.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?;
        let Some(setup) = setup else {
            return Err(start_failed("start the supervisor", "the agent process is gone"));
        };
        let (sender, receiver) = mpsc::sync_channel(1);
        let name = policy.name.clone();
        let listener = move || {
            let received = receive_listener(&setup, name);
            let (listener, outcome) = match received {
                Ok(listener) => (Some(listener), Ok(())),
                Err(failure) => (None, Err(failure)),
            };
            let _ = sender.send(outcome);
            listener
        };
        let supervisor = supervisor::supervise(config, listener).map_err(failed)?;
        // Start the transcript after the supervisor, because the agent process waits for the supervisor, and no
        // process waits for the transcript.
        self.writer
            .begin()
            .map_err(|error| StartFailure::Failed(step_failed("start writing the transcript")(error)))?;
        let _ = recording.send(());
        let ended = |_| Err(start_failed("start the supervisor", "its thread has ended"));
        receiver.recv().unwrap_or_else(ended)?;
        Ok(supervisor)
    }

    /// Returns which parts of the sandbox and which limits are in force. Records a note for a memory limit that is not
    /// in force, for a process limit that only the supervisor enforces, and for missing shims.
    fn enforcement(&self, group: &Group) -> Enforcement {
        let limits = &self.started.plan.limits;
        let why = if group.problem.is_empty() { "guard found no usable cgroup" } else { &group.problem };
        let mut not_in_force = Vec::new();
        if let Some(mib) = limits.memory_mib.filter(|_| !group.bounds_memory) {
            let reason = format!("only a cgroup can limit memory, and guard cannot create one: {why}");
            let note = format!("guard cannot enforce the memory limit of {mib} MiB: {reason}");
            self.recorder.record(EventType::Note, &note, &json!({ "limit": "memory_mib" }));
            not_in_force.push(LimitNotInForce { limit: "memory_mib".to_string(), reason });
        }
        if let (ProcessBound::Supervisor, Some(limit)) = (group.process_bound, limits.processes) {
            let note = format!(
                "the supervisor enforces the limit of {limit} processes, because the kernel does not apply RLIMIT_NPROC to \
                 root and guard cannot create a cgroup: {why}"
            );
            self.recorder.record(EventType::Note, &note, &json!({ "limit": "processes" }));
        }
        let shims = self.started.plan.shims.as_ref().is_some_and(Shims::exist);
        if !shims && self.started.plan.shims.is_some() {
            let note = "the run has no shims (guard's wrappers of git and the shells): guard cannot write them to its state directory";
            self.recorder.record(EventType::Note, note, &json!({}));
        }
        let landlock_abi = crate::sandbox::landlock_version();
        let held = held_boundaries(landlock_abi, self.started.has_mount_namespace).into_iter();
        let layers = |boundary: HeldBoundary| boundary.held_by.into_iter().map(str::to_string).collect();
        let held_by = held.map(|boundary| (boundary.name.to_string(), layers(boundary))).collect();
        Enforcement {
            landlock_abi,
            held_by,
            seccomp: true,
            verify_exec: self.started.plan.verify_exec,
            namespaces: self.started.has_mount_namespace,
            canary: CANARY_ATTEMPTS.map(str::to_string).to_vec(),
            memory_bound: group.bounds_memory,
            process_bound: group.process_bound != ProcessBound::None,
            process_bound_by: group.process_bound.name().map(str::to_string),
            not_in_force,
            shims,
        }
    }

    /// Creates the check from outside the sandbox that no forbidden action of the canary had an effect. The
    /// supervisor calls the check before the program starts, because the agent process's own report does not prove
    /// that its attempts had no effect. The check sends the attempts that succeeded to the returned receiver. It
    /// waits for `is_recording` before it succeeds.
    fn canary_check(
        &self,
        enforcement: &Enforcement,
        is_recording: mpsc::Receiver<()>,
    ) -> Result<(CanaryCheck, mpsc::Receiver<Vec<Breach>>), StartFailure> {
        let failed = |error: io::Error| StartFailure::Failed(step_failed(CHECK_SANDBOX)(error));
        let listener = self.started.canary.try_clone().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let file = canary_file(&self.started.plan.run_folder);
        let run_id = self.started.plan.run_id.clone();
        let (recorder, enforcement) = (self.recorder.clone(), enforcement.clone());
        let (sender, checked) = mpsc::sync_channel(1);
        let check = move || {
            let mut breaches = Vec::new();
            if file.symlink_metadata().is_ok() {
                breaches.push(Breach::Write);
            }
            if has_canary_connected(&listener, run_id.as_bytes()) {
                breaches.push(Breach::Connect);
            }
            // No program may run before the transcript records events. The transcript's thread has usually started by
            // now.
            let is_effective = breaches.is_empty() && is_recording.recv().is_ok();
            if is_effective {
                recorder.record(
                    EventType::Canary,
                    "the sandbox refused everything that the canary tried",
                    &json!({ "tried": CANARY_ATTEMPTS }),
                );
                recorder.record(EventType::SandboxApplied, "the sandbox works", &enforcement);
            }
            // The channel can store one message, so this never blocks.
            let _ = sender.send(breaches);
            is_effective
        };
        Ok((Box::new(check), checked))
    }

    /// Returns the denials of the run. The transcript's thread collects them and may be behind, so if there are any
    /// denials, this function waits for that thread.
    pub(crate) fn denials(&self, counts: Counts) -> Vec<Denial> {
        if counts.refusals > 0 {
            self.writer.catch_up();
        }
        self.tally.denials()
    }

    fn context(&self, policy: &Policy, writable: &[PathBuf]) -> Context {
        let plan = &self.started.plan;
        Context {
            worktree: Some(self.worktree().as_os_str().as_bytes().to_vec()),
            git_dir: plan
                .checkout
                .as_ref()
                .map(|checkout| checkout.git_folder.as_os_str().as_bytes().to_vec()),
            home: Some(plan.home.as_os_str().as_bytes().to_vec()),
            writable: Some(writable.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect()),
            limits: policy.command_limits(),
            ..Context::default()
        }
    }

    /// Returns the search with which the supervisor distinguishes the repository that the run works on from others.
    fn repositories(&self, writable: &[PathBuf]) -> Arc<Repositories> {
        let plan = &self.started.plan;
        let git_folder = match &plan.checkout {
            Some(checkout) => checkout.git_folder.clone(),
            None => plan.folder.join(".git"),
        };
        let worktree = self.worktree().to_path_buf();
        Arc::new(Repositories::new(
            self.started.has_mount_namespace,
            worktree,
            Some(git_folder),
            writable.to_vec(),
        ))
    }

    /// Returns the root of the worktree, or the working directory of a run without a worktree.
    pub(crate) fn worktree(&self) -> &Path {
        let plan = &self.started.plan;
        plan.checkout.as_ref().map_or(&plan.folder, |checkout| &checkout.worktree)
    }

    /// Returns the paths that the run may write, with symbolic links resolved.
    fn writable(&self) -> Vec<PathBuf> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        self.started.plan.writable().map(real).collect()
    }

    /// Returns the package caches for which the supervisor makes links when a program of their toolchain starts.
    /// Returns none if the run has a mount namespace, because it then gets its caches before the start.
    fn lazy_resources(&self) -> Vec<LazyResource> {
        let Some(links) = &self.links else { return Vec::new() };
        let available = links.toolchains();
        let wanted = CACHE_USERS.iter().filter(|(toolchain, _)| available.contains(toolchain));
        let resource = |&(toolchain, users): &(&'static str, &'static [&'static str])| {
            let links = links.clone();
            LazyResource { users, make: Some(Box::new(move || links.make(toolchain))) }
        };
        wanted.map(resource).collect()
    }

    fn supervisor_config(
        &self,
        policy: &Arc<Policy>,
        context: Context,
        (repositories, writable): (Arc<Repositories>, Vec<PathBuf>),
        asker: Option<Box<dyn Ask>>,
        check: CanaryCheck,
    ) -> SupervisorConfig {
        let plan = &self.started.plan;
        SupervisorConfig {
            policy: policy.clone(),
            context,
            recorder: self.recorder.clone(),
            writable,
            readable: plan.grants.iter().map(|grant| grant.path.clone()).collect(),
            objects: plan.checkout.iter().flat_map(|checkout| checkout.readable.clone()).collect(),
            repositories,
            has_mount_namespace: self.started.has_mount_namespace,
            verify: plan.verify_exec,
            loopback: plan.network.loopback,
            listen: plan.network.listen.clone(),
            peer_registry: self.network.peer_registry.clone(),
            rules: plan.network.rules.clone(),
            control: plan.control.clone(),
            shim: plan.shims.as_ref().map(Shims::program),
            init_pid: self.started.init_pid,
            canary_port: self.started.canary.local_addr().map(|address| address.port()).unwrap_or(0),
            asker,
            activity: self.activity.clone(),
            lazy_resources: self.lazy_resources(),
            proof: Some(check),
            process_limit: None,
        }
    }
}

/// Receives the seccomp listener, which the agent process sends after it has installed its filters.
fn receive_listener(setup: &OwnedFd, policy: String) -> Result<OwnedFd, StartFailure> {
    let mut message = [0u8; 4096];
    let (got, listener) = socket::receive_with(setup.as_fd(), &mut message)
        .map_err(|error| StartFailure::Failed(step_failed("start the agent")(error)))?;
    if got == 0 {
        return Err(start_failed("restrict the agent", "the agent process ended before it was restricted"));
    }
    match (AgentMessage::decode(&message[..got]), listener) {
        (Some(AgentMessage::Listener), Some(listener)) => Ok(listener),
        (Some(AgentMessage::Failed(StartError::Listener(problem))), _) => {
            Err(StartFailure::Failed(Failure::Unavailable {
                policy,
                needs: vec![Need {
                    missing: format!("a seccomp listener for the run ({problem})"),
                    fix: "start guard outside other sandboxes: the kernel allows a process only one seccomp listener"
                        .to_string(),
                }],
            }))
        }
        (Some(AgentMessage::Failed(error)), _) => Err(start_failed("restrict the agent", error)),
        _ => Err(start_failed("restrict the agent", "the agent process sent an unexpected message")),
    }
}

fn canary_failed(breaches: impl IntoIterator<Item = Breach>) -> StartFailure {
    let mut breaches: Vec<&str> = breaches.into_iter().map(Breach::describe).collect();
    breaches.dedup();
    StartFailure::Failed(Failure::Canary(breaches.join(", ")))
}

fn start_failed(step: &'static str, problem: impl std::fmt::Display) -> StartFailure {
    StartFailure::Failed(Failure::Step { step, problem: problem.to_string() })
}

/// Returns true if the canary (the self-test of the sandbox) of this run has connected to `listener`, which must be
/// non-blocking. The canary sends the run's id. Other clients may connect as well, because all processes on the
/// machine share the loopback ports.
fn has_canary_connected(listener: &TcpListener, run_id: &[u8]) -> bool {
    // This is more than the backlog of the listener, so any further client connected after the canary.
    const MAX_CLIENTS: usize = 4096;
    let clients = (0..MAX_CLIENTS).map_while(|_| match listener.accept() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        client => Some(client),
    });
    clients.flatten().any(|(mut client, _)| {
        let mut received = [0; 64];
        let read = client.set_nonblocking(true).and_then(|()| client.read(&mut received));
        read.is_ok_and(|length| received[..length] == *run_id)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;

    /// All processes on the machine share the loopback ports: guard must treat only a client that sends the run's id
    /// as the canary (the self-test of the sandbox).
    #[test]
    fn unrelated_clients_of_the_canary_port_are_not_the_canary() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap_or_else(|error| panic!("{error}"));
        let connect = |message: &[u8]| {
            let address = listener.local_addr().unwrap_or_else(|error| panic!("{error}"));
            let mut client = TcpStream::connect(address).unwrap_or_else(|error| panic!("{error}"));
            client.write_all(message).unwrap_or_else(|error| panic!("{error}"));
            client
        };
        listener.set_nonblocking(true).unwrap_or_else(|error| panic!("{error}"));
        let _others = [connect(b""), connect(b"GET / HTTP/1.1"), connect(b"run-1")];
        assert!(!has_canary_connected(&listener, b"run-12"));
        let _canary = connect(b"run-12");
        assert!(has_canary_connected(&listener, b"run-12"));
    }
}
