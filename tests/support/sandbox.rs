//! Runs guard in every configuration of the sandbox: as root and as an ordinary user, with and without namespaces. Each
//! run gets a working directory, and directories outside of it that it must not change.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::{copy_program, isolated_command, skip, skip_unsupported};

/// The ordinary user of the tests. No other program runs as this user, so that a test may signal all processes of the
/// user.
pub(crate) const ORDINARY: u32 = 64_017;

/// The user that starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SandboxUser {
    Root,
    Ordinary,
}

impl SandboxUser {
    fn id(self) -> u32 {
        match (self, own_id()) {
            (Self::Root, _) => 0,
            (Self::Ordinary, 0) => ORDINARY,
            (Self::Ordinary, own) => own,
        }
    }

    /// Returns the users that the tests can run as.
    pub(crate) fn available() -> Vec<Self> {
        if own_id() == 0 {
            return vec![Self::Root, Self::Ordinary];
        }
        skip("as root", "the tests were not started by root");
        vec![Self::Ordinary]
    }
}

/// The user that starts a run, and whether the run has namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SandboxConfiguration {
    pub(crate) user: SandboxUser,
    pub(crate) namespaces: bool,
}

impl SandboxConfiguration {
    fn choice(self) -> &'static str {
        if self.namespaces { "require" } else { "off" }
    }
}

pub(crate) fn own_id() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// Returns the configurations that work on this machine.
pub(crate) fn sandbox_configurations() -> Vec<SandboxConfiguration> {
    static FOUND: LazyLock<Vec<SandboxConfiguration>> = LazyLock::new(|| {
        let mut found = Vec::new();
        for user in SandboxUser::available() {
            for namespaces in [true, false] {
                let configuration = SandboxConfiguration { user, namespaces };
                let fixture = SandboxFixture::new(user);
                let output = fixture.guard(configuration, &[]).arg("/bin/true").output().unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() {
                    found.push(configuration);
                } else {
                    let is_old_kernel = guard::sandbox::landlock_version() < 6;
                    assert!(namespaces || is_old_kernel, "{configuration:?} does not work at all: {stderr}");
                    skip_unsupported(&format!("{configuration:?}"), &stderr);
                }
            }
        }
        found
    });
    FOUND.clone()
}

/// Runs a check in every configuration, each with a new fixture. If the check fails in one, it still runs in the
/// others, so that the message names every configuration in which an attack works.
pub(crate) fn in_every_configuration(check: impl Fn(SandboxConfiguration, &SandboxFixture)) {
    let fails = |configuration: &SandboxConfiguration| {
        let fixture = SandboxFixture::new(configuration.user);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(*configuration, &fixture))).is_err()
    };
    let failed: Vec<SandboxConfiguration> = sandbox_configurations().into_iter().filter(fails).collect();
    assert!(failed.is_empty(), "it fails in {failed:?}");
}

/// The directory of this test run, which every user can reach. It contains guard, the probes, and the directories of
/// the fixtures.
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
    make_directory(&root, None, 0o755);
    let tools = root.join("tools");
    make_directory(&tools, None, 0o755);
    copy_program(Path::new(env!("CARGO_BIN_EXE_guard")), &tools.join("guard"));
    let probes = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/probes");
    for probe in std::fs::read_dir(probes).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let to = tools.join(probe.file_name());
        std::fs::copy(probe.path(), &to).unwrap();
        set_mode(&to, 0o644);
    }
    root
});

pub(crate) fn probe_directory() -> PathBuf {
    ROOT.join("tools")
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn make_directory(path: &Path, owner: Option<u32>, mode: u32) {
    std::fs::create_dir(path).unwrap();
    set_mode(path, mode);
    if let Some(owner) = owner {
        chown(path, Some(owner), Some(owner)).unwrap();
    }
}

/// Returns the Python interpreter for the probes, which every user can start.
pub(crate) fn system_python() -> Option<&'static str> {
    let found =
        ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        skip("every boundary", "there is no python3 in /usr/bin or /usr/local/bin");
    }
    found
}

/// The directories of one run: its working directory, and directories outside the sandbox that the run may or may not
/// read.
pub(crate) struct SandboxFixture {
    pub(crate) id: u32,
    pub(crate) base: PathBuf,
    pub(crate) work: PathBuf,
    /// A directory outside the working directory. The run may read it (`--read`), so that probes can open files in it
    /// and try to change them.
    pub(crate) outside: PathBuf,
    /// The user's home, which the run may not read.
    pub(crate) home: PathBuf,
    pub(crate) state: PathBuf,
}

impl SandboxFixture {
    pub(crate) fn new(user: SandboxUser) -> Self {
        Self::of(user.id())
    }

    /// Creates the directories for a user as whom no other test runs anything, so that a test may affect all
    /// processes of that user.
    pub(crate) fn of_unused_user() -> Self {
        Self::of(ORDINARY + 1)
    }

    fn of(id: u32) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let base = ROOT.join(format!("run-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let owner = Some(id);
        make_directory(&base, owner, 0o755);
        let make = |name: &str| {
            let path = base.join(name);
            make_directory(&path, owner, 0o755);
            path
        };
        let (work, outside, home, state) = (make("work"), make("outside"), make("home"), make("state"));
        Self { id, work, outside, home, state, base }
    }

    /// Creates a file that belongs to the user of this fixture. Returns its path.
    pub(crate) fn file(&self, path: &Path, text: &str) -> PathBuf {
        std::fs::write(path, text).unwrap();
        set_mode(path, 0o644);
        chown(path, Some(self.id), Some(self.id)).unwrap();
        path.to_path_buf()
    }

    /// Returns a command that starts a program as the user of this fixture.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = isolated_command(program, &self.home);
        command
            .env_remove("TMPDIR")
            .env("XDG_STATE_HOME", &self.state)
            .current_dir(&self.work)
            .stdin(Stdio::null());
        if own_id() != self.id {
            command.uid(self.id).gid(self.id);
        }
        command
    }

    /// Returns a `guard run` command up to its `--`.
    pub(crate) fn guard(&self, configuration: SandboxConfiguration, options: &[&str]) -> Command {
        let mut command = self.command(probe_directory().join("guard"));
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
            .arg(probe_directory())
            .args(options)
            .arg("--");
        command
    }

    /// Returns the shim that runs of this fixture use.
    pub(crate) fn shim(&self) -> PathBuf {
        let mut command = self.command(probe_directory().join("guard"));
        command.args(["run", "--in-place", "--quiet", "--namespaces", "off", "--", "/bin/true"]);
        assert!(command.status().unwrap().success());
        let mut shims = std::fs::read_dir(self.state.join("guard/shims")).unwrap().flatten();
        shims.next().unwrap().path().join("guard-shim")
    }

    /// Returns the events of the only run of this fixture.
    pub(crate) fn events(&self) -> Vec<Value> {
        let runs: Vec<_> = std::fs::read_dir(self.state.join("guard/runs")).unwrap().flatten().collect();
        assert_eq!(runs.len(), 1, "one run was made in {}", self.base.display());
        let text = std::fs::read_to_string(runs[0].path().join("transcript.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for SandboxFixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}
