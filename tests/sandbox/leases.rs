// slow
//! A run must not take a lease on a file that it may only read. Each process that opens the file outside would wait up
//! to 45 seconds for the lease.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Boundary, Report};
use crate::support::{SandboxFixture, SandboxUser, probe_directory, sandbox_configurations, system_python};

/// Returns true if opening the file from outside would have to wait for a lease.
fn is_held(file: &Path, kind: &str) -> bool {
    let mut options = std::fs::OpenOptions::new();
    options.read(kind == "write").write(kind == "read").custom_flags(libc::O_NONBLOCK);
    options.open(file).is_err_and(|error| error.raw_os_error() == Some(libc::EWOULDBLOCK))
}

/// Starts the probe, and opens the file from outside while the probe runs. Returns whether a lease was held, and the
/// probe's errno.
fn attack(mut command: Command, fixture: &SandboxFixture, kind: &str, high: &str) -> (bool, String) {
    let file = fixture.file(&fixture.outside.join("file"), "original");
    command.arg(probe_directory().join("leases.py")).args(["hold", kind]).arg(&file).arg(high);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let held = is_held(&file, kind);
    drop(child.stdin.take());
    child.wait().unwrap();
    (held, line.trim().to_string())
}

#[test]
fn leases_on_files_outside_are_denied() {
    let Some(python) = system_python() else { return };
    for (kind, high) in [("write", "0"), ("read", "0"), ("write", "high")] {
        for user in SandboxUser::available() {
            let fixture = SandboxFixture::new(user);
            let (held, said) = attack(fixture.command(python), &fixture, kind, high);
            assert!(held, "without guard a {kind} lease should be held: {said}");
        }
        let mut failures = Vec::new();
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let mut command = fixture.guard(configuration, &[]);
            command.arg(python);
            let (held, said) = attack(command, &fixture, kind, high);
            if held || said != format!("lease {}", libc::EPERM) {
                failures
                    .push(format!("{configuration:?}: open outside waits: {held}, the probe said {said:?}"));
            }
        }
        assert!(failures.is_empty(), "{kind} lease:\n  {}", failures.join("\n  "));
    }
}

#[test]
fn fcntl_notify_on_directories_outside_is_denied() {
    for high in ["0", "high"] {
        let arguments = ["notify", "{outside}", high];
        let boundary = Boundary::new("leases.py", &arguments).refused_with(&[libc::EPERM]);
        let boundary = match Boundary::is_known_as("leases.py", &arguments, None) {
            true => boundary,
            false => boundary.no_bare("this kernel does not have F_NOTIFY"),
        };
        boundary.check(|_| (), |_, (), report| report.succeeded());
    }
    // Few kernels have this call yet, so the test only checks that the sandbox refuses it.
    Boundary::new("leases.py", &["delegation", "{outside}/file"])
        .no_bare("few kernels have F_SETDELEG")
        .refused_with(&[libc::EPERM])
        .check(|fixture| fixture.file(&fixture.outside.join("file"), ""), |_, _, report| report.succeeded());
}

/// A run must be able to use locks, seals and file flags, because databases and package managers need them.
#[test]
fn other_fcntl_commands_work() {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = fixture.guard(configuration, &[]);
        command.arg(python).arg(probe_directory().join("leases.py")).arg("everyday");
        let report = Report::of(&command.output().unwrap());
        assert!(report.succeeded(), "{configuration:?}: {report:?}");
    }
}
