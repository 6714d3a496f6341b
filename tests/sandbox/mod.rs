//! Outcome tests of every boundary: the same probe runs without guard, where it must succeed, and in the sandbox, as root
//! and as an ordinary user, with and without namespaces, where nothing outside may have changed.
//!
//! What happened is judged from outside. What the probe says of itself only shows that it ran, and with which errno it
//! was refused.

mod control;
mod daemons;
mod descriptors;
mod escapes;
mod exec;
mod files;
mod filter;
mod kernel;
mod leases;
mod limits;
mod listening;
mod metadata;
mod privileges;
mod processes;
mod race;
mod reading;
mod sockets;
mod standard_streams;
mod watches;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::copy_program;

/// The user that stands for an ordinary one: nobody else's, so that what is done to all its processes hits only ours.
const ORDINARY: u32 = 64_017;

/// Who starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    Root,
    Ordinary,
}

impl User {
    fn id(self) -> u32 {
        match (self, own_id()) {
            (Self::Root, _) => 0,
            (Self::Ordinary, 0) => ORDINARY,
            (Self::Ordinary, own) => own,
        }
    }

    /// Those the tests can become.
    fn available() -> Vec<Self> {
        if own_id() == 0 {
            return vec![Self::Root, Self::Ordinary];
        }
        skip("as root", "the tests were not started by root");
        vec![Self::Ordinary]
    }
}

/// One way of running the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Configuration {
    pub(crate) user: User,
    pub(crate) namespaces: bool,
}

impl Configuration {
    fn choice(self) -> &'static str {
        if self.namespaces { "require" } else { "off" }
    }
}

fn own_id() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// Tells once that something is not tested here, and why.
pub(crate) fn skip(what: &str, why: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let line = format!("skipped: {what}: {why}");
    let mut told = TOLD.lock().unwrap();
    if !told.contains(&line) {
        // Past the capture of the test runner: a skip that nobody sees is none.
        let _ = writeln!(std::io::stderr(), "{line}");
        told.push(line);
    }
}

/// Every way that can be had here.
pub(crate) fn configurations() -> Vec<Configuration> {
    static FOUND: LazyLock<Vec<Configuration>> = LazyLock::new(|| {
        let mut found = Vec::new();
        for user in User::available() {
            for namespaces in [true, false] {
                let configuration = Configuration { user, namespaces };
                let place = Place::new(user);
                let ran = place.guard(configuration, &[]).arg("/bin/true").output().unwrap();
                let words = String::from_utf8_lossy(&ran.stderr).into_owned();
                if ran.status.success() {
                    found.push(configuration);
                } else {
                    assert!(namespaces, "{configuration:?} cannot be run at all: {words}");
                    skip(&format!("{configuration:?}"), &words);
                }
            }
        }
        found
    });
    FOUND.clone()
}

/// Checks every configuration in a place of its own. A failure does not keep the others from being checked: an attack that
/// works is known with everything it works in.
pub(crate) fn in_every_configuration(check: impl Fn(Configuration, &Place)) {
    let fails = |configuration: &Configuration| {
        let place = Place::new(configuration.user);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(*configuration, &place))).is_err()
    };
    let failed: Vec<Configuration> = configurations().into_iter().filter(fails).collect();
    assert!(failed.is_empty(), "it fails in {failed:?}");
}

/// The directory of this test run that every user can reach: programs and probes, and the places of the single runs.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let parent = Path::new("/var/tmp");
    for entry in std::fs::read_dir(parent).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let of = name.strip_prefix("guard-boundary-").and_then(|pid| pid.parse::<u32>().ok());
        if of.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let root = parent.join(format!("guard-boundary-{}", std::process::id()));
    folder(&root, None, 0o755);
    let tools = root.join("tools");
    folder(&tools, None, 0o755);
    copy_program(Path::new(env!("CARGO_BIN_EXE_guard")), &tools.join("guard"));
    let probes = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/probes");
    for probe in std::fs::read_dir(probes).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let to = tools.join(probe.file_name());
        std::fs::copy(probe.path(), &to).unwrap();
        set_mode(&to, 0o644);
    }
    root
});

pub(crate) fn tools() -> PathBuf {
    ROOT.join("tools")
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn folder(path: &Path, owner: Option<u32>, mode: u32) {
    std::fs::create_dir(path).unwrap();
    set_mode(path, mode);
    if let Some(owner) = owner {
        chown(path, Some(owner), Some(owner)).unwrap();
    }
}

/// The interpreter of the probes, one that every user can reach.
pub(crate) fn python() -> Option<&'static str> {
    let found =
        ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        skip("every boundary", "there is no python3 in /usr/bin or /usr/local/bin");
    }
    found
}

/// The surroundings of one run: what is the run's own, and what is outside.
pub(crate) struct Place {
    /// The user's number.
    pub(crate) id: u32,
    pub(crate) base: PathBuf,
    /// The working directory.
    pub(crate) work: PathBuf,
    /// Outside; readable for the run (`--read`), so that descriptors on its files can be had.
    pub(crate) outside: PathBuf,
    /// The user's home; not readable for the run.
    pub(crate) home: PathBuf,
    pub(crate) state: PathBuf,
}

impl Place {
    pub(crate) fn new(user: User) -> Self {
        Self::of(user.id())
    }

    fn of(id: u32) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let base = ROOT.join(format!("place-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let owner = Some(id);
        folder(&base, owner, 0o755);
        let make = |name: &str| {
            let path = base.join(name);
            folder(&path, owner, 0o755);
            path
        };
        let (work, outside, home, state) = (make("work"), make("outside"), make("home"), make("state"));
        Self { id, work, outside, home, state, base }
    }

    /// A file of the user's.
    pub(crate) fn file(&self, path: &Path, text: &str) -> PathBuf {
        std::fs::write(path, text).unwrap();
        set_mode(path, 0o644);
        chown(path, Some(self.id), Some(self.id)).unwrap();
        path.to_path_buf()
    }

    /// A program as the user of the place, with nothing of ours around it.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", &self.home)
            .env("XDG_STATE_HOME", &self.state)
            .current_dir(&self.work)
            .stdin(Stdio::null());
        if own_id() != self.id {
            command.uid(self.id).gid(self.id);
        }
        command
    }

    /// `guard run` up to its `--`.
    pub(crate) fn guard(&self, configuration: Configuration, options: &[&str]) -> Command {
        let mut command = self.command(tools().join("guard"));
        command
            .args([
                "run",
                "--in-place",
                "--quiet",
                "--timeout",
                "60",
                "--namespaces",
                configuration.choice(),
                "--dir",
            ])
            .arg(&self.work)
            .arg("--read")
            .arg(&self.outside)
            .arg("--read")
            .arg(tools())
            .args(options)
            .arg("--");
        command
    }

    /// The shim of the runs that are made here, after a first one.
    pub(crate) fn shim(&self) -> PathBuf {
        let mut command = self.command(tools().join("guard"));
        command.args(["run", "--in-place", "--quiet", "--namespaces", "off", "--", "/bin/true"]);
        assert!(command.status().unwrap().success());
        let mut shims = std::fs::read_dir(self.state.join("guard/shims")).unwrap().flatten();
        shims.next().unwrap().path().join("guard-shim")
    }

    /// The events of the only run that was made here.
    pub(crate) fn events(&self) -> Vec<Value> {
        let runs: Vec<_> = std::fs::read_dir(self.state.join("guard/runs")).unwrap().flatten().collect();
        assert_eq!(runs.len(), 1, "one run was made in {}", self.base.display());
        let text = std::fs::read_to_string(runs[0].path().join("transcript.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// What a probe said, and how it ended.
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

    /// The call was made and did what it was to do.
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

/// A process outside, of the same user: holds a secret, listens on sockets, and tells what happened to it.
pub(crate) struct Victim {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) facts: Value,
}

impl Victim {
    pub(crate) fn new(place: &Place) -> Self {
        let mut child = place
            .command(python().unwrap())
            .arg(tools().join("victim.py"))
            .arg(&place.outside)
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

    /// Whether it runs: neither ended nor stopped.
    pub(crate) fn is_well(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X' | 'T' | 't'))
    }

    /// What happened to it so far; `None` when it cannot tell any more.
    pub(crate) fn tell(&mut self) -> Option<Value> {
        self.ask("tell")
    }

    /// Makes a message queue with one message, and tells.
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
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.input.take());
        // It tidies up when nobody listens any more; one that was stopped cannot.
        let child = &mut self.child;
        eventually(|| child.try_wait().is_ok_and(|ended| ended.is_some()), Duration::from_millis(500));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An attack on one boundary.
pub(crate) struct Boundary {
    name: String,
    probe: &'static str,
    arguments: Vec<String>,
    users: Vec<User>,
    bare_users: Vec<User>,
    errnos: Vec<i32>,
    must_report: bool,
    alone: bool,
}

/// `{work}` and the like in an argument.
fn fill(place: &Place, text: &str, facts: &BTreeMap<String, String>) -> String {
    let path = |path: &Path| path.to_str().unwrap().to_string();
    let mut text = text
        .replace("{work}", &path(&place.work))
        .replace("{outside}", &path(&place.outside))
        .replace("{home}", &path(&place.home))
        .replace("{state}", &path(&place.state))
        .replace("{base}", &path(&place.base))
        .replace("{uid}", &place.id.to_string());
    for (name, value) in facts {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

impl Boundary {
    /// An attack: the probe's file, and the arguments it gets.
    pub(crate) fn new(probe: &'static str, arguments: &[&str]) -> Self {
        Self {
            name: arguments.join(" "),
            probe,
            arguments: arguments.iter().map(|&word| word.to_string()).collect(),
            users: vec![User::Root, User::Ordinary],
            bare_users: vec![User::Root, User::Ordinary],
            errnos: Vec::new(),
            must_report: true,
            alone: false,
        }
    }

    /// Whether this kernel has the call at all: asked without guard.
    pub(crate) fn is_known(probe: &'static str, arguments: &[&str]) -> bool {
        const ENOSYS: i64 = 38;
        let Some(python) = python() else { return false };
        let place = Place::new(User::Ordinary);
        let boundary = Self::new(probe, arguments);
        let report = boundary.run(place.command(python), &place, &BTreeMap::new());
        if report.errno() == Some(ENOSYS) {
            skip(&boundary.name, "this kernel does not have the call");
        }
        report.errno() != Some(ENOSYS)
    }

    /// Whether this kernel gives it to somebody: asked without guard.
    pub(crate) fn is_known_as(probe: &'static str, arguments: &[&str], user: Option<User>) -> bool {
        let Some(python) = python() else { return false };
        let user = user.unwrap_or(User::Ordinary);
        if !User::available().contains(&user) {
            return false;
        }
        let place = Place::new(user);
        Self::new(probe, arguments).run(place.command(python), &place, &BTreeMap::new()).succeeded()
    }

    /// Only one kind of user can do this without guard.
    pub(crate) fn bare_only(mut self, user: User) -> Self {
        self.bare_users = vec![user];
        self
    }

    /// Without guard it does nothing here, for this reason: only the sandbox is tested.
    pub(crate) fn no_bare(mut self, why: &str) -> Self {
        skip(&format!("{} without guard", self.name), why);
        self.bare_users = Vec::new();
        self
    }

    /// It only makes sense for one kind of user.
    pub(crate) fn only(mut self, user: User) -> Self {
        self.users = vec![user];
        self.bare_users = vec![user];
        self
    }

    /// Without guard it hits everything of a user: then it is one that nothing else runs as.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// The errnos it may be refused with: a contract.
    pub(crate) fn refused_with(mut self, errnos: &[i32]) -> Self {
        self.errnos = errnos.to_vec();
        self
    }

    /// The sandbox may end the probe before it can report.
    pub(crate) fn may_be_killed(mut self) -> Self {
        self.must_report = false;
        self
    }

    /// Runs it everywhere. `setup` makes what lies outside; `broken` looks from outside whether the attack has had its
    /// effect.
    pub(crate) fn check<S>(
        &self,
        setup: impl Fn(&Place) -> S + Sync,
        broken: impl Fn(&Place, &mut S, &Report) -> bool + Sync,
    ) {
        self.check_with(|place| (setup(place), BTreeMap::new()), broken);
    }

    /// Attacks a process outside.
    pub(crate) fn check_victim(&self, broken: impl Fn(&Place, &mut Victim, &Report) -> bool + Sync) {
        self.check_with(Self::victim, broken);
    }

    /// The same, when the victim has a message queue.
    pub(crate) fn check_queue(&self, broken: impl Fn(&Place, &mut Victim, &Report) -> bool + Sync) {
        let setup = |place: &Place| {
            let (mut victim, facts) = Self::victim(place);
            assert_eq!(victim.make_queue().unwrap()["queued"], 1, "no message queue can be made");
            (victim, facts)
        };
        self.check_with(setup, broken);
    }

    fn victim(place: &Place) -> (Victim, BTreeMap<String, String>) {
        let victim = Victim::new(place);
        let names = victim.facts.as_object().unwrap().keys();
        let facts = names.map(|name| (name.clone(), victim.fact(name))).collect();
        (victim, facts)
    }

    fn check_with<S>(
        &self,
        setup: impl Fn(&Place) -> (S, BTreeMap<String, String>) + Sync,
        broken: impl Fn(&Place, &mut S, &Report) -> bool + Sync,
    ) {
        let Some(python) = python() else { return };
        let bare = |user: User| {
            let place = if self.alone { Place::of(ORDINARY + 1) } else { Place::new(user) };
            let (mut state, facts) = setup(&place);
            let report = self.run(place.command(python), &place, &facts);
            let works = broken(&place, &mut state, &report);
            if works {
                Vec::new()
            } else {
                vec![format!("without guard as {user:?} it should work: {report:?}")]
            }
        };
        let sandboxed = |configuration: Configuration| {
            let place = Place::new(configuration.user);
            let (mut state, facts) = setup(&place);
            let mut command = place.guard(configuration, &[]);
            command.arg(python);
            let report = self.run(command, &place, &facts);
            let mut failures = Vec::new();
            if broken(&place, &mut state, &report) {
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
            let users = User::available().into_iter().filter(|user| self.bare_users.contains(user));
            let ways = configurations().into_iter().filter(|one| self.users.contains(&one.user));
            let mut running: Vec<_> = users.map(|user| scope.spawn(move || bare(user))).collect();
            running.extend(ways.map(|one| scope.spawn(move || sandboxed(one))));
            running.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        assert!(failures.is_empty(), "{} {}\n  {}", self.probe, self.name, failures.join("\n  "));
    }

    fn run(&self, mut command: Command, place: &Place, facts: &BTreeMap<String, String>) -> Report {
        command.arg(tools().join(self.probe));
        command.args(self.arguments.iter().map(|text| fill(place, text, facts)));
        Report::of(&command.output().unwrap())
    }
}

/// Waits for something to become true.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool, patience: Duration) -> bool {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Ended by a signal, directly or as `guard run` tells it.
pub(crate) fn was_killed(report: &Report) -> bool {
    report.status.signal().is_some() || report.status.code().is_some_and(|code| code > 128)
}

/// Whether the kernel knows a kind of socket at all.
fn can_be_made(arguments: &[&str]) -> bool {
    let Some(python) = python() else { return false };
    let user = User::available()[0];
    let place = Place::new(user);
    let report = Boundary::new("sockets.py", arguments).run(place.command(python), &place, &BTreeMap::new());
    report.succeeded()
}
