//! Provides the built `guard`, and other programs that tests install.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use super::isolated_command;
use super::user::kit_directory;

/// Returns a command that starts the built `guard` with a home directory that does not exist.
pub(crate) fn guard() -> Command {
    let mut command = isolated_command(env!("CARGO_BIN_EXE_guard"), Path::new("/nonexistent"));
    command.env("NO_COLOR", "1").current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Returns the peak memory of a guard process in KiB. Returns 0 before the process has executed guard, because until
/// then it has the memory of the tests.
pub(crate) fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    most.filter(|_| status.starts_with("Name:\tguard\n")).and_then(|most| most.parse().ok()).unwrap_or(0)
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Copies a program so that it can be started at once, and makes the directories above it.
///
/// Another process writes the file: if the tests wrote it, a process that another test forks at the same moment would
/// inherit the open file, and a program that is open for writing cannot be started (`ETXTBSY`).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    install(from, to, b"");
}

/// Creates an executable file with this text, which can be started at once: another process writes the file, so that no
/// process forked by the tests inherits it open for writing (`ETXTBSY`).
pub(crate) fn make_program(to: &Path, text: impl AsRef<[u8]>) {
    install(Path::new("/dev/stdin"), to, text.as_ref());
}

fn install(from: &Path, to: &Path, input: &[u8]) {
    let mut command = Command::new("install");
    command.args(["-D", "-m", "755", "--"]).arg(from).arg(to).stdin(Stdio::piped());
    let mut installing = command.spawn().unwrap();
    installing.stdin.take().unwrap().write_all(input).unwrap();
    assert!(installing.wait().unwrap().success(), "{} was not made", to.display());
}

/// Returns the path of a `guard` that every user can start.
pub(crate) fn guard_program() -> &'static Path {
    static COPY: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = kit_directory().join("bin");
        std::fs::create_dir_all(&directory).unwrap();
        // The copy is renamed into place, because an older one may be running and cannot be overwritten.
        let copy = directory.join(format!("guard-{}", std::process::id()));
        copy_program(Path::new(env!("CARGO_BIN_EXE_guard")), &copy);
        std::fs::rename(&copy, directory.join("guard")).unwrap();
        directory.join("guard")
    });
    &COPY
}
