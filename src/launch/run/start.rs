//! The start of a run: receives the agent's seccomp listener, starts the supervisor, checks the canary from outside,
//! and lets the agent execute its program. The program must not start before the canary was checked and recorded.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use serde_json::json;

use super::event_loop::{ExecFailure, LazyThread, Running, StartFailure};
use super::{Failure, machine};
use crate::command::Context;
use crate::egress;
use crate::launch::discover::toolchain_table::CACHE_USERS;
use crate::launch::plan::shims::Shims;
use crate::launch::process::agent::canary_file;
use crate::launch::process::cgroup::{Group, ProcessBound};
use crate::launch::process::protocol::{AgentMessage, Breach, StartError};
use crate::outcome::{Denial, Enforcement, LimitNotInForce};
use crate::policy::Policy;
use crate::sandbox::Need;
use crate::supervisor;
use crate::supervisor::{Ask, Counts, Handle, LazyResource, Repositories, ShimService, SupervisorConfig};
use crate::sys::socket;
use crate::transcript::EventType;

/// What the canary tries, for the record.
const TRIED: [&str; 3] = ["write outside", "connect to the machine", "start a forbidden program"];

/// Checks from outside whether the sandbox holds.
type Proof = Box<dyn FnOnce() -> bool + Send>;

impl Running {
    /// Follows the child through its restrictions and the canary, and lets it execute the program.
    pub(crate) fn release(
        &mut self,
        policy: &Arc<Policy>,
        shims: UnixListener,
        asker: Option<Box<dyn Ask>>,
        group: &Group,
    ) -> Result<(Enforcement, Handle), StartFailure> {
        // Prepared while the child restricts itself.
        let writable = self.writable();
        let context = self.context(policy, &writable);
        let repositories = self.repositories(&writable);
        let answering = ShimService {
            policy: policy.clone(),
            context: context.clone(),
            repositories: repositories.clone(),
            recorder: self.recorder.clone(),
        };
        self.sleepers.push(LazyThread::Shims(shims, Box::new(answering)));
        self.serve_network()?;
        let enforcement = self.enforcement(group);
        let (begun, is_begun) = mpsc::sync_channel(1);
        let (proof, proven) = self.proof(&enforcement, is_begun)?;
        let setting = self.setting(policy, context, (repositories, writable), asker, proof);
        let counts_forks = group.process_bound == ProcessBound::Supervisor;
        let process_limit = self.started.plan.limits.processes.filter(|_| counts_forks);
        let setting = SupervisorConfig { process_limit, ..setting };
        let supervisor = self.supervise(setting, policy, &begun)?;
        // The socket is closed by the exec.
        let mut message = [0u8; 4096];
        let got = match &self.started.setup {
            Some(setup) => nix::unistd::read(setup, &mut message),
            None => Err(nix::errno::Errno::EBADF),
        };
        let got = got.map_err(|error| StartFailure::Failed(machine("start the agent")(error.into())))?;
        let seen: Option<Vec<Breach>> = proven.try_recv().ok();
        // Zero bytes: the socket was closed.
        let message = (got > 0).then(|| AgentMessage::decode(&message[..got]));
        match message {
            Some(Some(AgentMessage::CanaryBroken(breaches))) => {
                Err(not_held(breaches.into_iter().chain(seen.unwrap_or_default())))
            }
            _ if seen.as_ref().is_some_and(|possible| !possible.is_empty()) => {
                Err(not_held(seen.unwrap_or_default()))
            }
            Some(Some(AgentMessage::ExecFailed(errno))) => {
                let counts = supervisor.finish();
                let mut denials = self.denials(counts).into_iter();
                let refusal =
                    denials.find(|denial| denial.kind == EventType::DenyExec && !denial.rule.is_empty());
                Err(StartFailure::NotStarted(ExecFailure {
                    errno,
                    denial: refusal.map(|denial| denial.message),
                }))
            }
            Some(Some(AgentMessage::Failed(error))) => Err(broken("restrict the agent", error)),
            Some(Some(AgentMessage::Listener) | None) => {
                Err(broken("hold the canary", "unexpected message of the agent"))
            }
            None if seen.is_none() => Err(broken("hold the canary", "it ended")),
            None => {
                let Enforcement { landlock_abi, namespaces, shims, .. } = enforcement;
                tracing::info!(
                    landlock_abi,
                    namespaces,
                    shims,
                    "the sandbox holds, and the program has begun"
                );
                Ok((enforcement, supervisor))
            }
        }
    }

    /// Starts the proxy's thread: at once if the run will use a gateway, otherwise when the first client connects.
    fn serve_network(&mut self) -> Result<(), StartFailure> {
        let plan = &self.started.plan.network;
        let (activity, exhausted) = (self.activity.clone(), self.exhausted.clone());
        let setting = self.network.setting(plan, self.recorder.clone(), activity, exhausted);
        if plan.gateways.is_empty() {
            self.sleepers.push(LazyThread::Network(Box::new(setting)));
            return Ok(());
        }
        let carrier = egress::start(setting);
        self.carrier =
            Some(carrier.map_err(|error| StartFailure::Failed(machine("serve the network")(error)))?);
        Ok(())
    }

    /// Starts the supervisor's thread before the child needs it. Returns when the thread has the child's listener.
    fn supervise(
        &mut self,
        setting: SupervisorConfig,
        policy: &Policy,
        begun: &mpsc::SyncSender<()>,
    ) -> Result<Handle, StartFailure> {
        let failed = |error: io::Error| StartFailure::Failed(machine("start the supervisor")(error));
        let setup = self.started.setup.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?;
        let Some(setup) = setup else { return Err(broken("start the supervisor", "the agent is gone")) };
        let (told, heard) = mpsc::sync_channel(1);
        let name = policy.name.clone();
        let listener = move || {
            let received = receive_listener(&setup, name);
            let (listener, said) = match received {
                Ok(listener) => (Some(listener), Ok(())),
                Err(stopped) => (None, Err(stopped)),
            };
            let _ = told.send(said);
            listener
        };
        let supervisor = supervisor::supervise(setting, listener).map_err(failed)?;
        // Only now: the child waits for the supervisor, and nothing waits for the transcript's thread.
        self.writer.begin().map_err(|error| StartFailure::Failed(machine("begin the transcript")(error)))?;
        let _ = begun.send(());
        heard.recv().unwrap_or_else(|_| Err(broken("start the supervisor", "its thread is gone")))?;
        Ok(supervisor)
    }

    /// The limits in force. A note with the reason names those that are not.
    fn enforcement(&self, group: &Group) -> Enforcement {
        let limits = &self.started.plan.limits;
        let why = if group.problem.is_empty() { "no cgroup can be made" } else { &group.problem };
        let mut not_in_force = Vec::new();
        if let Some(mib) = limits.memory_mib.filter(|_| !group.bounds_memory) {
            let reason = format!("memory is bounded by a cgroup only, and none can be made: {why}");
            let note = format!("the memory limit of {mib} MiB is not in force: {reason}");
            self.recorder.record(EventType::Note, &note, &json!({ "limit": "memory_mib" }));
            not_in_force.push(LimitNotInForce { limit: "memory_mib".to_string(), reason });
        }
        if let (ProcessBound::Supervisor, Some(limit)) = (group.process_bound, limits.processes) {
            let note = format!(
                "the supervisor holds the run to {limit} processes: the kernel does not count those of root, \
                 and no cgroup can be made: {why}"
            );
            self.recorder.record(EventType::Note, &note, &json!({ "limit": "processes" }));
        }
        let shims = self.started.plan.shims.as_ref().is_some_and(Shims::are_there);
        if !shims && self.started.plan.shims.is_some() {
            let note = "no shims for git and the shells: they cannot be written to the state directory";
            self.recorder.record(EventType::Note, note, &json!({}));
        }
        Enforcement {
            landlock_abi: crate::sandbox::landlock_version(),
            seccomp: true,
            verify_exec: self.started.plan.verify_exec,
            namespaces: self.started.has_view,
            canary: TRIED.map(str::to_string).to_vec(),
            memory_bound: group.bounds_memory,
            process_bound: group.process_bound != ProcessBound::None,
            process_bound_by: group.process_bound.name().map(str::to_string),
            not_in_force,
            shims,
        }
    }

    /// The check of the canary from outside, made before the program starts: the child's own report is only half the
    /// proof. The receiver gets what was possible.
    fn proof(
        &self,
        enforcement: &Enforcement,
        is_begun: mpsc::Receiver<()>,
    ) -> Result<(Proof, mpsc::Receiver<Vec<Breach>>), StartFailure> {
        let failed = |error: io::Error| StartFailure::Failed(machine("hold the canary")(error));
        let listener = self.started.canary.try_clone().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let file = canary_file(&self.started.plan.run_folder);
        let word = self.started.plan.run_id.clone();
        let (recorder, enforcement) = (self.recorder.clone(), enforcement.clone());
        let (told, proven) = mpsc::sync_channel(1);
        let proof = move || {
            let mut possible = Vec::new();
            if file.symlink_metadata().is_ok() {
                possible.push(Breach::Write);
            }
            if has_knocked(&listener, word.as_bytes()) {
                possible.push(Breach::Connect);
            }
            // Nothing may run unrecorded. This rarely has to wait.
            let holds = possible.is_empty() && is_begun.recv().is_ok();
            if holds {
                recorder.record(
                    EventType::Canary,
                    "nothing forbidden was possible",
                    &json!({ "tried": TRIED }),
                );
                recorder.record(EventType::SandboxApplied, "the sandbox holds", &enforcement);
            }
            // The channel has room for one message, so this never blocks.
            let _ = told.send(possible);
            holds
        };
        Ok((Box::new(proof), proven))
    }

    /// What was denied. The writer's thread collects denials and may be behind, so it is waited for if there are any.
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
            git_folder: plan
                .checkout
                .as_ref()
                .map(|checkout| checkout.git_folder.as_os_str().as_bytes().to_vec()),
            home: Some(plan.home.as_os_str().as_bytes().to_vec()),
            writable: Some(writable.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect()),
            limits: policy.command_limits(),
            ..Context::default()
        }
    }

    /// What tells the task's repository from others.
    fn repositories(&self, writable: &[PathBuf]) -> Arc<Repositories> {
        let plan = &self.started.plan;
        let git_folder = match &plan.checkout {
            Some(checkout) => checkout.git_folder.clone(),
            None => plan.folder.join(".git"),
        };
        let worktree = self.worktree().to_path_buf();
        Arc::new(Repositories::new(self.started.has_view, worktree, Some(git_folder), writable.to_vec()))
    }

    /// The root of the task's working tree.
    pub(crate) fn worktree(&self) -> &Path {
        let plan = &self.started.plan;
        plan.checkout.as_ref().map_or(&plan.folder, |checkout| &checkout.worktree)
    }

    /// The paths the run may write, with symbolic links resolved.
    fn writable(&self) -> Vec<PathBuf> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        self.started.plan.writable().map(real).collect()
    }

    /// The package caches to link when a program of their toolchain starts.
    fn belated(&self) -> Vec<LazyResource> {
        let Some(links) = &self.links else { return Vec::new() };
        let there = links.toolchains();
        let wanted = CACHE_USERS.iter().filter(|(toolchain, _)| there.contains(toolchain));
        let belated = |&(toolchain, users): &(&'static str, &'static [&'static str])| {
            let links = links.clone();
            LazyResource { users, make: Some(Box::new(move || links.make(toolchain))) }
        };
        wanted.map(belated).collect()
    }

    fn setting(
        &self,
        policy: &Arc<Policy>,
        context: Context,
        (repositories, writable): (Arc<Repositories>, Vec<PathBuf>),
        asker: Option<Box<dyn Ask>>,
        proof: Proof,
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
            has_view: self.started.has_view,
            verify: plan.verify_exec,
            loopback: plan.network.loopback,
            listen: plan.network.listen.clone(),
            doors: self.network.doors.clone(),
            rules: plan.network.rules.clone(),
            control: plan.control.clone(),
            shim: plan.shims.as_ref().map(Shims::program),
            first_process: self.started.first_process,
            canary_port: self.started.canary.local_addr().map(|address| address.port()).unwrap_or(0),
            asker,
            activity: self.activity.clone(),
            belated: self.belated(),
            proof: Some(proof),
            process_limit: None,
        }
    }
}

/// Receives the seccomp listener, which the child sends after it has installed its filters.
fn receive_listener(setup: &OwnedFd, policy: String) -> Result<OwnedFd, StartFailure> {
    let mut message = [0u8; 4096];
    let (got, listener) = socket::receive_with(setup.as_fd(), &mut message)
        .map_err(|error| StartFailure::Failed(machine("start the agent")(error)))?;
    if got == 0 {
        return Err(broken("restrict the agent", "it ended before it was restricted"));
    }
    match (AgentMessage::decode(&message[..got]), listener) {
        (Some(AgentMessage::Listener), Some(listener)) => Ok(listener),
        (Some(AgentMessage::Failed(StartError::Listener(problem))), _) => {
            Err(StartFailure::Failed(Failure::Unavailable {
                policy,
                needs: vec![Need {
                    missing: format!("its own notifications ({problem})"),
                    fix: "start guard outside other sandboxes: a tree of processes has one listener"
                        .to_string(),
                }],
            }))
        }
        (Some(AgentMessage::Failed(error)), _) => Err(broken("restrict the agent", error)),
        _ => Err(broken("restrict the agent", "unexpected message of the agent")),
    }
}

fn not_held(possible: impl IntoIterator<Item = Breach>) -> StartFailure {
    let mut possible: Vec<&str> = possible.into_iter().map(Breach::describe).collect();
    possible.dedup();
    StartFailure::Failed(Failure::Canary(possible.join(", ")))
}

fn broken(step: &'static str, problem: impl std::fmt::Display) -> StartFailure {
    StartFailure::Failed(Failure::Machine { step, problem: problem.to_string() })
}

/// Whether the canary has connected to this non-blocking listener. Unrelated clients may connect, too, because loopback
/// ports are shared by the whole machine.
fn has_knocked(listener: &TcpListener, word: &[u8]) -> bool {
    // More than the backlog can hold: a client beyond that came after the canary.
    const MOST: usize = 4096;
    let visitors = (0..MOST).map_while(|_| match listener.accept() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        visitor => Some(visitor),
    });
    visitors.flatten().any(|(mut visitor, _)| {
        let mut said = [0; 64];
        let heard = visitor.set_nonblocking(true).and_then(|()| visitor.read(&mut said));
        heard.is_ok_and(|length| said[..length] == *word)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;

    /// Loopback ports are shared by the whole machine: only a client that sends the run's id is the canary.
    #[test]
    fn strangers_at_the_canary_port_are_not_the_canary() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap_or_else(|error| panic!("{error}"));
        let connect = |word: &[u8]| {
            let address = listener.local_addr().unwrap_or_else(|error| panic!("{error}"));
            let mut client = TcpStream::connect(address).unwrap_or_else(|error| panic!("{error}"));
            client.write_all(word).unwrap_or_else(|error| panic!("{error}"));
            client
        };
        listener.set_nonblocking(true).unwrap_or_else(|error| panic!("{error}"));
        let _strangers = [connect(b""), connect(b"GET / HTTP/1.1"), connect(b"run-1")];
        assert!(!has_knocked(&listener, b"run-12"));
        let _canary = connect(b"run-12");
        assert!(has_knocked(&listener, b"run-12"));
    }
}
