//! Tests of every boundary: the same probe runs without guard, where it must succeed, and in the sandbox, as root and
//! as an ordinary user, with and without namespaces, where nothing outside may have changed.
//!
//! The tests check the effect from outside. The probe's own report only shows that it ran, and which errno it got.

mod daemons;
mod descriptors;
mod escapes;
mod exec;
mod files;
mod filter;
mod inotify;
mod kernel;
mod leases;
mod limits;
mod listening;
mod metadata;
mod privileges;
mod processes;
mod race;
mod reading;
mod sealed_streams;
mod shim_socket;
mod sockets;
mod standard_streams;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use serde_json::Value;

use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, holds_within, probe_directory, sandbox_configurations,
    skip_unsupported, system_python,
};

/// The output of a probe (a script that tries one forbidden call), and its exit status.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) said: Option<Value>,
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
    #[allow(dead_code, reason = "it is shown when a test fails")]
    pub(crate) words: String,
}

impl Report {
    pub(crate) fn errno(&self) -> Option<i64> {
        self.said.as_ref()?.get("errno")?.as_i64()
    }

    pub(crate) fn value(&self) -> &Value {
        static NONE: Value = Value::Null;
        self.said.as_ref().and_then(|said| said.get("value")).unwrap_or(&NONE)
    }

    /// Returns true if the call that the probe tried has succeeded.
    pub(crate) fn succeeded(&self) -> bool {
        self.errno() == Some(0)
    }

    fn of(output: &std::process::Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        Self {
            said: said.filter(|said| said.get("errno").is_some()),
            status: output.status,
            output: text,
            words: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A process of the same user outside the sandbox, which the attacks target. It holds a secret, listens on sockets,
/// and reports signals and other effects of an attack.
pub(crate) struct Victim {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) facts: Value,
}

impl Victim {
    pub(crate) fn new(fixture: &SandboxFixture) -> Self {
        let mut child = fixture
            .command(system_python().unwrap())
            .arg(probe_directory().join("victim.py"))
            .arg(&fixture.outside)
            .env("SECRET", "the victim's secret")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let facts = serde_json::from_str(&line).unwrap_or_else(|_| panic!("the victim said {line:?}"));
        Self { child, input, output, facts }
    }

    pub(crate) fn fact(&self, name: &str) -> String {
        let value = self.facts.get(name).unwrap_or_else(|| panic!("no fact {name}"));
        value.as_str().map_or_else(|| value.to_string(), str::to_string)
    }

    /// Returns true if the process runs: it has not ended and is not stopped.
    pub(crate) fn is_well(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X' | 'T' | 't'))
    }

    /// Asks the process what has happened to it, and returns its report; `None` if the process no longer answers.
    pub(crate) fn tell(&mut self) -> Option<Value> {
        self.ask("tell")
    }

    /// Makes the process create a System V message queue with one message. Returns the process's report.
    pub(crate) fn make_queue(&mut self) -> Option<Value> {
        self.ask("queue")
    }

    fn ask(&mut self, what: &str) -> Option<Value> {
        if !self.is_well() {
            return None;
        }
        let input = self.input.as_mut()?;
        writeln!(input, "{what}").ok()?;
        input.flush().ok()?;
        // A signal can stop the process after the check above. It never answers then.
        while !self.has_answered() {
            if !self.is_well() {
                return None;
            }
        }
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Victim {
    /// Waits a moment for output of the process, or for its end. Returns false if there is neither.
    fn has_answered(&self) -> bool {
        let mut waiting = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
        poll(&mut waiting, 100_u8).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.input.take());
        // The victim removes its message queue when its input ends. A stopped process cannot do that, so the test
        // kills it after a moment.
        let child = &mut self.child;
        holds_within(Duration::from_millis(500), || child.try_wait().is_ok_and(|ended| ended.is_some()));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An attack on one boundary of the sandbox: a probe, its arguments, and what must happen.
pub(crate) struct Boundary {
    name: String,
    probe: &'static str,
    arguments: Vec<String>,
    users: Vec<SandboxUser>,
    bare_users: Vec<SandboxUser>,
    errnos: Vec<i32>,
    must_report: bool,
    alone: bool,
}

/// Replaces placeholders such as `{work}` in an argument.
fn fill(fixture: &SandboxFixture, text: &str, facts: &BTreeMap<String, String>) -> String {
    let path = |path: &Path| path.to_str().unwrap().to_string();
    let mut text = text
        .replace("{work}", &path(&fixture.work))
        .replace("{outside}", &path(&fixture.outside))
        .replace("{home}", &path(&fixture.home))
        .replace("{state}", &path(&fixture.state))
        .replace("{base}", &path(&fixture.base))
        .replace("{uid}", &fixture.id.to_string());
    for (name, value) in facts {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

impl Boundary {
    /// Returns an attack by this probe with these arguments.
    pub(crate) fn new(probe: &'static str, arguments: &[&str]) -> Self {
        Self {
            name: arguments.join(" "),
            probe,
            arguments: arguments.iter().map(|&word| word.to_string()).collect(),
            users: vec![SandboxUser::Root, SandboxUser::Ordinary],
            bare_users: vec![SandboxUser::Root, SandboxUser::Ordinary],
            errnos: Vec::new(),
            must_report: true,
            alone: false,
        }
    }

    /// Returns true if this kernel has the system call. The probe runs without guard to find out.
    pub(crate) fn is_known(probe: &'static str, arguments: &[&str]) -> bool {
        const ENOSYS: i64 = 38;
        let Some(python) = system_python() else { return false };
        let fixture = SandboxFixture::new(SandboxUser::Ordinary);
        let boundary = Self::new(probe, arguments);
        let report = boundary.run(fixture.command(python), &fixture, &BTreeMap::new());
        if report.errno() == Some(ENOSYS) {
            skip_unsupported(&boundary.name, "this kernel does not have the call");
        }
        report.errno() != Some(ENOSYS)
    }

    /// Returns true if this kernel grants the call to this user. The probe runs without guard to find out.
    pub(crate) fn is_known_as(probe: &'static str, arguments: &[&str], user: Option<SandboxUser>) -> bool {
        let Some(python) = system_python() else { return false };
        let user = user.unwrap_or(SandboxUser::Ordinary);
        if !SandboxUser::available().contains(&user) {
            return false;
        }
        let fixture = SandboxFixture::new(user);
        Self::new(probe, arguments).run(fixture.command(python), &fixture, &BTreeMap::new()).succeeded()
    }

    /// Declares that without guard only this user can make the call.
    pub(crate) fn bare_only(mut self, user: SandboxUser) -> Self {
        self.bare_users = vec![user];
        self
    }

    /// Declares that without guard the call has no effect on this machine, for the reason `why`. The probe then runs
    /// only in the sandbox.
    pub(crate) fn no_bare(mut self, why: &str) -> Self {
        skip_unsupported(&format!("{} without guard", self.name), why);
        self.bare_users = Vec::new();
        self
    }

    /// Tests the attack only as this user.
    pub(crate) fn only(mut self, user: SandboxUser) -> Self {
        self.users = vec![user];
        self.bare_users = vec![user];
        self
    }

    /// Runs the probe without guard as a user that nothing else uses, because the attack affects all processes of its
    /// user.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Declares with which errnos the sandbox may refuse the call.
    pub(crate) fn refused_with(mut self, errnos: &[i32]) -> Self {
        self.errnos = errnos.to_vec();
        self
    }

    /// Declares that the sandbox may kill the probe before it can report.
    pub(crate) fn may_be_killed(mut self) -> Self {
        self.must_report = false;
        self
    }

    /// Runs the attack in every configuration. `setup` creates the target of the attack outside the sandbox; `broken`
    /// checks from outside whether the attack succeeded.
    pub(crate) fn check<S>(
        &self,
        setup: impl Fn(&SandboxFixture) -> S + Sync,
        broken: impl Fn(&SandboxFixture, &mut S, &Report) -> bool + Sync,
    ) {
        self.check_with(|fixture| (setup(fixture), BTreeMap::new()), broken);
    }

    /// Runs the attack on a [`Victim`], a process outside the sandbox. Fails if `broken` finds that the attack
    /// changed the process.
    pub(crate) fn check_victim(&self, broken: impl Fn(&SandboxFixture, &mut Victim, &Report) -> bool + Sync) {
        self.check_with(Self::victim, broken);
    }

    /// Runs the attack against a process outside the sandbox that has a System V message queue, and fails if `broken` finds
    /// that the attack changed the process or its queue.
    pub(crate) fn check_queue(&self, broken: impl Fn(&SandboxFixture, &mut Victim, &Report) -> bool + Sync) {
        let setup = |fixture: &SandboxFixture| {
            let (mut victim, facts) = Self::victim(fixture);
            assert_eq!(victim.make_queue().unwrap()["queued"], 1, "no message queue can be made");
            (victim, facts)
        };
        self.check_with(setup, broken);
    }

    fn victim(fixture: &SandboxFixture) -> (Victim, BTreeMap<String, String>) {
        let victim = Victim::new(fixture);
        let names = victim.facts.as_object().unwrap().keys();
        let facts = names.map(|name| (name.clone(), victim.fact(name))).collect();
        (victim, facts)
    }

    fn check_with<S>(
        &self,
        setup: impl Fn(&SandboxFixture) -> (S, BTreeMap<String, String>) + Sync,
        broken: impl Fn(&SandboxFixture, &mut S, &Report) -> bool + Sync,
    ) {
        let Some(python) = system_python() else { return };
        let bare = |user: SandboxUser| {
            let fixture =
                if self.alone { SandboxFixture::of_unused_user() } else { SandboxFixture::new(user) };
            let (mut state, facts) = setup(&fixture);
            let report = self.run(fixture.command(python), &fixture, &facts);
            let works = broken(&fixture, &mut state, &report);
            if works {
                Vec::new()
            } else {
                vec![format!("without guard as {user:?} it should work: {report:?}")]
            }
        };
        let sandboxed = |configuration: SandboxConfiguration| {
            let fixture = SandboxFixture::new(configuration.user);
            let (mut state, facts) = setup(&fixture);
            let mut command = fixture.guard(configuration, &[]);
            command.arg(python);
            let report = self.run(command, &fixture, &facts);
            let mut failures = Vec::new();
            if broken(&fixture, &mut state, &report) {
                failures.push(format!("{configuration:?} does not hold: {report:?}"));
            }
            if self.must_report && report.errno().is_none() {
                failures.push(format!("{configuration:?}: the probe did not run to its end: {report:?}"));
            }
            let refused = report.errno().unwrap_or(0) as i32;
            if !self.errnos.is_empty() && self.must_report && !self.errnos.contains(&refused) {
                failures.push(format!("{configuration:?}: refused with {refused}: {report:?}"));
            }
            failures
        };
        let (bare, sandboxed) = (&bare, &sandboxed);
        let failures: Vec<String> = std::thread::scope(|scope| {
            let users = SandboxUser::available().into_iter().filter(|user| self.bare_users.contains(user));
            let ways = sandbox_configurations().into_iter().filter(|one| self.users.contains(&one.user));
            let mut running: Vec<_> = users.map(|user| scope.spawn(move || bare(user))).collect();
            running.extend(ways.map(|one| scope.spawn(move || sandboxed(one))));
            running.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        assert!(failures.is_empty(), "{} {}\n  {}", self.probe, self.name, failures.join("\n  "));
    }

    fn run(
        &self,
        mut command: Command,
        fixture: &SandboxFixture,
        facts: &BTreeMap<String, String>,
    ) -> Report {
        command.arg(probe_directory().join(self.probe));
        command.args(self.arguments.iter().map(|text| fill(fixture, text, facts)));
        Report::of(&command.output().unwrap())
    }
}

/// Returns true if a signal ended the probe, directly or according to the exit code of `guard run`.
pub(crate) fn was_killed(report: &Report) -> bool {
    report.status.signal().is_some() || report.status.code().is_some_and(|code| code > 128)
}

/// Returns true if the kernel supports this kind of socket.
fn can_be_made(arguments: &[&str]) -> bool {
    let Some(python) = system_python() else { return false };
    let user = SandboxUser::available()[0];
    let fixture = SandboxFixture::new(user);
    let report =
        Boundary::new("sockets.py", arguments).run(fixture.command(python), &fixture, &BTreeMap::new());
    report.succeeded()
}
