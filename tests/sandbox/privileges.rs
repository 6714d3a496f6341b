// slow
//! A run has no privileges, and must not be able to gain any: by capabilities, set-user-ID programs, or set-user-ID
//! files.

use std::os::unix::fs::{MetadataExt, chown};

use super::{Boundary, Report};
use crate::support::{
    SandboxFixture, SandboxUser, copy_program, own_id, probe_directory, sandbox_configurations, set_mode,
    skip, system_python,
};

#[test]
fn run_has_no_capabilities() {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = fixture.guard(configuration, &[]);
        command.arg(python).arg(probe_directory().join("kernel.py")).arg("status");
        let report = Report::of(&command.output().unwrap());
        let status = report.value();
        let none = "0000000000000000";
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status[set], none, "{configuration:?}: {report:?}");
        }
        // An ordinary user without a user namespace cannot change the bounding set. With no_new_privs the
        // bounding set gives no privileges.
        if configuration.user == SandboxUser::Root || configuration.namespaces {
            assert_eq!(status["CapBnd"], none, "{configuration:?}: {report:?}");
        }
        assert_eq!(
            (&status["NoNewPrivs"], &status["Seccomp"]),
            (&"1".into(), &"2".into()),
            "{configuration:?}"
        );
    }
}

/// A run must not gain privileges by a set-user-ID copy of the interpreter that belongs to root.
#[test]
fn set_user_id_program_gives_no_privileges() {
    if own_id() != 0 {
        return skip("set-user-ID programs", "only root can make one");
    }
    let setup = |fixture: &SandboxFixture| {
        let real = std::fs::canonicalize(system_python().unwrap()).unwrap();
        let path = fixture.outside.join("program");
        copy_program(&real, &path);
        chown(&path, Some(0), Some(0)).unwrap();
        set_mode(&path, 0o6755);
    };
    if system_python().is_none() {
        return;
    }
    // The program prints its real, effective and saved ids. Without guard the last two change.
    Boundary::new("kernel.py", &["become-root", "{outside}/program"]).only(SandboxUser::Ordinary).check(
        setup,
        |_, (), report| {
            let said = report.value().as_str().unwrap_or_default().to_string();
            assert!(said.starts_with('('), "the program did not run: {report:?}");
            said.contains(", 0")
        },
    );
}

/// System calls with which the probe tries to set the set-user-ID or set-group-ID bit.
const WAYS: [&str; 9] =
    ["chmod", "fchmod", "fchmodat", "fchmodat2", "open", "creat", "mknod", "tmpfile", "openat2"];
/// Indirect ways in which the probe tries to set the set-group-ID bit.
const DETOURS: [&str; 6] =
    ["chmod-high", "fchmodat2-empty", "through-proc", "open-in-shared-folder", "mknodat", "tmpfile-changed"];

fn is_not_made(bit: u32, ways: &[&str]) {
    let made = |fixture: &SandboxFixture, (): &mut (), _: &Report| {
        std::fs::metadata(fixture.work.join("made")).is_ok_and(|found| found.mode() & bit != 0)
    };
    for how in ways {
        Boundary::new("kernel.py", &["set-id", how, &format!("{bit:o}")])
            .refused_with(&[libc::EPERM, libc::ENOSYS])
            .check(|_| (), made);
    }
}

#[test]
fn set_user_id_file_cannot_be_created() {
    is_not_made(0o4000, &WAYS);
}

#[test]
fn set_group_id_file_cannot_be_created() {
    is_not_made(0o2000, &WAYS);
    is_not_made(0o2000, &DETOURS);
    if cfg!(target_arch = "x86_64") {
        is_not_made(0o2000, &["open-legacy"]);
    }
}

/// A run must be able to make a directory set-group-ID, as shared repositories need it. New files get the directory's
/// group, which gives no privileges.
#[test]
fn directories_may_be_set_group_id() {
    let Some(python) = system_python() else { return };
    let mut failures = Vec::new();
    for configuration in sandbox_configurations() {
        for how in ["chmod", "fchmod", "fchmodat", "fchmodat2"] {
            let fixture = SandboxFixture::new(configuration.user);
            let mut command = fixture.guard(configuration, &[]);
            command.arg(python).arg(probe_directory().join("kernel.py")).args(["shared-folder", how]);
            let report = Report::of(&command.output().unwrap());
            let is_shared = |path: &str| {
                std::fs::metadata(fixture.work.join(path)).is_ok_and(|found| found.mode() & 0o2000 != 0)
            };
            if !report.succeeded() || !is_shared("shared") || !is_shared("shared/below") {
                failures.push(format!("{configuration:?} {how}: {report:?}"));
            }
        }
        let fixture = SandboxFixture::new(configuration.user);
        let script = "set -e; umask 002; mkdir -m 2775 a; touch a/f; chmod 755 a; cp -a a b; tar cf t b; \
                      mkdir c; tar xpf t -C c; chmod 6755 a/f 2>/dev/null && exit 3; exit 0";
        let output = fixture.guard(configuration, &[]).args(["/bin/sh", "-c", script]).output().unwrap();
        let mode =
            |path: &str| std::fs::metadata(fixture.work.join(path)).map_or(0, |found| found.mode() & 0o7777);
        if !output.status.success() || (mode("c/b"), mode("b/f")) != (0o2755, 0o664) {
            failures.push(format!("{configuration:?}: {:o} {:o} {output:?}", mode("c/b"), mode("b/f")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
