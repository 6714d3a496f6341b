//! The beginning of a run: the child is seen through its restrictions and the canary, and let go.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::child::{self, canary_file};
use super::group::Group;
use super::managers::CACHE_USERS;
use super::parent::{Failure, machine};
use super::watch::{Running, Sleeper, Stopped};
use crate::command::Context;
use crate::intercept::{self, Answering, Ask, Belated, Counts, Handle, Repositories, Setting};
use crate::outcome::Enforcement;
use crate::policy::Policy;
use crate::sandbox::Need;
use crate::sys::socket;

impl Running {
    /// Sees the child through its restrictions and the canary, and lets it execute.
    pub(super) fn release(
        &mut self,
        policy: &Arc<Policy>,
        shims: UnixListener,
        asker: Option<Box<dyn Ask>>,
        group: &Group,
    ) -> Result<(Enforcement, Handle), Stopped> {
        // While the child takes its own rights away.
        let context = self.context(policy);
        let repositories = self.repositories();
        let answering = Answering {
            policy: policy.clone(),
            context: context.clone(),
            repositories: repositories.clone(),
            recorder: self.recorder.clone(),
            refusals: self.shim_refusals.clone(),
        };
        self.sleepers.push(Sleeper::Shims(shims, Box::new(answering)));
        let plan = &self.started.plan.network;
        let (activity, exhausted) = (self.activity.clone(), self.exhausted.clone());
        let carrier = self.network.serve(plan, self.recorder.clone(), activity, exhausted);
        self.carrier = carrier.map_err(|error| Stopped::Failed(machine("serve the network")(error)))?;
        let setting = self.setting(policy, context, repositories, asker);
        let mut message = [0u8; 4096];
        let (got, listener) = socket::receive_with(self.started.setup.as_fd(), &mut message)
            .map_err(|error| Stopped::Failed(machine("start the agent")(error)))?;
        let listener = match (message[..got].split_first(), listener) {
            (Some((&child::message::LISTENER, _)), Some(listener)) => listener,
            (Some((_, said)), _) if said.starts_with(b"seccomp notification") => {
                return Err(Stopped::Failed(Failure::Unavailable {
                    policy: policy.name.clone(),
                    needs: vec![Need {
                        missing: format!("its own notifications ({})", String::from_utf8_lossy(said)),
                        fix: "start guard outside other sandboxes: a tree of processes has one listener"
                            .to_string(),
                    }],
                }));
            }
            (Some((_, said)), _) => return Err(broken("restrict the agent", said)),
            (None, _) => return Err(broken("restrict the agent", b"it ended before it was restricted")),
        };
        let failed = |error: io::Error| Stopped::Failed(machine("start the supervisor")(error));
        let supervisor = intercept::supervise(setting, listener).map_err(failed)?;
        let mut enforcement = self.await_canary(&mut message)?;
        enforcement.memory_bound = group.bounds_memory;
        enforcement.process_bound = group.bounds_processes;
        if self.started.plan.limits.memory_mib.is_some() && !group.bounds_memory {
            self.recorder.record(
                "note",
                "the memory limit is not in force: no control group can be made",
                &json!({}),
            );
        }
        self.recorder.record("sandbox.applied", "the sandbox holds", &enforcement);
        let sent = nix::unistd::write(&self.started.setup, &[child::message::GO]);
        sent.map_err(|error| Stopped::Failed(machine("start the agent")(error.into())))?;
        // The socket closes with the exec.
        match nix::unistd::read(&self.started.setup, &mut message) {
            Ok(5) if message[0] == child::message::EXEC_FAILED => {
                let errno = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
                let counts = supervisor.finish();
                let refusal = self.recorder_flushed_denial(counts);
                let problem = refusal.unwrap_or_else(|| io::Error::from_raw_os_error(errno).to_string());
                Err(Stopped::NotStarted(errno, problem))
            }
            _ => Ok((enforcement, supervisor)),
        }
    }

    /// The refusal that kept the command from running, once the transcript has it.
    fn recorder_flushed_denial(&self, counts: Counts) -> Option<String> {
        if counts.refusals == 0 {
            return None;
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline {
            if let Some(denial) = self
                .tally
                .denials()
                .into_iter()
                .find(|denial| denial.kind == "deny.exec" && !denial.rule.is_empty())
            {
                return Some(denial.message);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    fn context(&self, policy: &Policy) -> Context {
        use std::os::unix::ffi::OsStrExt;
        let plan = &self.started.plan;
        Context {
            worktree: Some(self.worktree().as_os_str().as_bytes().to_vec()),
            git_folder: plan
                .checkout
                .as_ref()
                .map(|checkout| checkout.git_folder.as_os_str().as_bytes().to_vec()),
            home: Some(plan.home.as_os_str().as_bytes().to_vec()),
            limits: policy.command_limits(),
            ..Context::default()
        }
    }

    /// What tells the task's repository from others.
    fn repositories(&self) -> Arc<Repositories> {
        let plan = &self.started.plan;
        let git_folder = match &plan.checkout {
            Some(checkout) => checkout.git_folder.clone(),
            None => plan.folder.join(".git"),
        };
        let worktree = self.worktree().to_path_buf();
        Arc::new(Repositories::new(self.started.has_view, worktree, Some(git_folder), self.writable()))
    }

    /// The top of the task's own working tree.
    pub(super) fn worktree(&self) -> &Path {
        let plan = &self.started.plan;
        plan.checkout.as_ref().map_or(&plan.folder, |checkout| &checkout.worktree)
    }

    /// Where the run may write, links resolved.
    fn writable(&self) -> Vec<PathBuf> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        self.started.plan.writable().map(real).collect()
    }

    fn setting(
        &self,
        policy: &Arc<Policy>,
        context: Context,
        repositories: Arc<Repositories>,
        asker: Option<Box<dyn Ask>>,
    ) -> Setting {
        let plan = &self.started.plan;
        Setting {
            policy: policy.clone(),
            context,
            recorder: self.recorder.clone(),
            writable: self.writable(),
            objects: plan.checkout.iter().flat_map(|checkout| checkout.readable.clone()).collect(),
            repositories,
            has_view: self.started.has_view,
            verify: plan.verify_exec,
            loopback: plan.network.loopback,
            doors: self.network.doors.clone(),
            control: plan.control.clone(),
            shim: plan.shims.as_ref().map(|(_, shim, _)| shim.clone()),
            first_process: self.started.first_process,
            canary_port: self.started.canary.local_addr().map(|address| address.port()).unwrap_or(0),
            asker,
            activity: self.activity.clone(),
            belated: self
                .links
                .clone()
                .map(|links| Belated { users: CACHE_USERS, make: Box::new(move || links.make()) }),
        }
    }

    fn await_canary(&mut self, message: &mut [u8]) -> Result<Enforcement, Stopped> {
        let got = nix::unistd::read(&self.started.setup, message)
            .map_err(|error| Stopped::Failed(machine("hold the canary")(error.into())))?;
        let mut possible: Vec<&str> = match message[..got].split_first() {
            Some((&child::message::CANARY, still)) => {
                still.iter().map(|letter| canary_word(*letter)).collect()
            }
            Some((_, said)) => return Err(broken("hold the canary", said)),
            None => return Err(broken("hold the canary", b"it ended")),
        };
        // Seen from outside as well: what the child says is only half the proof.
        if canary_file(&self.started.plan.run_folder).exists() {
            possible.push(canary_word(b'w'));
        }
        let _ = self.started.canary.set_nonblocking(true);
        if self.started.canary.accept().is_ok() {
            possible.push(canary_word(b'c'));
        }
        if !possible.is_empty() {
            possible.dedup();
            return Err(Stopped::Failed(Failure::Canary(possible.join(", "))));
        }
        let tried = ["write outside", "connect to the machine", "start a forbidden program"];
        self.recorder.record("canary", "nothing forbidden was possible", &json!({ "tried": tried }));
        Ok(Enforcement {
            landlock_abi: crate::sandbox::landlock_version(),
            seccomp: true,
            verify_exec: self.started.plan.verify_exec,
            namespaces: self.started.has_view,
            canary: tried.map(str::to_string).to_vec(),
            ..Enforcement::default()
        })
    }
}

fn broken(step: &'static str, said: &[u8]) -> Stopped {
    Stopped::Failed(Failure::Machine { step, problem: String::from_utf8_lossy(said).into_owned() })
}

fn canary_word(letter: u8) -> &'static str {
    match letter {
        b'w' => "write outside",
        b'c' => "connect to the machine",
        _ => "start a program unseen",
    }
}
