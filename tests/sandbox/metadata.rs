// slow
//! A run must not change the mode, owner, times, extended attributes or flags of files outside: by path or by
//! descriptor, with any variant of the calls. Every successful change would show in the change time of the file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Boundary, Report};
use crate::support::{
    SandboxFixture, SandboxUser, probe_directory, sandbox_configurations, skip, system_python,
};

type State = (u32, u32, u32, i64, i64, i64, i64);

fn state(path: &Path) -> State {
    let found = std::fs::metadata(path).unwrap();
    (
        found.mode(),
        found.uid(),
        found.gid(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    )
}

/// Creates a file with an extended attribute. Returns the file's path and its state (mode, owner, group and times).
fn file(fixture: &SandboxFixture, path: &Path) -> (PathBuf, State) {
    let path = fixture.file(path, "original");
    let set = "import os,sys;os.setxattr(sys.argv[1],'user.note',b'original')";
    let made = Command::new(system_python().unwrap()).args(["-c", set]).arg(&path).status().unwrap();
    assert!(made.success(), "no extended attributes in {}", path.display());
    // Change times have a coarse resolution. A change within the same step would not be visible, so the test waits.
    std::thread::sleep(std::time::Duration::from_millis(12));
    let state = state(&path);
    (path, state)
}

fn changed(_: &SandboxFixture, (path, before): &mut (PathBuf, State), _: &Report) -> bool {
    state(path) != *before
}

fn holds(attacks: &[(&str, &[&str])]) {
    for (call, ways) in attacks {
        for way in *ways {
            if cfg!(not(target_arch = "x86_64"))
                && ["chmod", "chown", "lchown", "utime", "utimes", "futimesat"].contains(call)
            {
                continue;
            }
            Boundary::new("metadata.py", &[call, way, "{outside}/file"])
                .check(|fixture| file(fixture, &fixture.outside.join("file")), changed);
        }
    }
}

#[test]
fn modes_outside_cannot_be_changed() {
    holds(&[
        ("chmod", &["path", "link", "root", "cwd", "look", "reading", "linkcwd"]),
        ("fchmod", &["reading"]),
        ("fchmodat", &["path", "folder"]),
        ("fchmodat2", &["path", "folder"]),
        ("fchmodat2-empty", &["reading", "look"]),
    ]);
}

#[test]
fn owners_outside_cannot_be_changed() {
    holds(&[
        ("chown", &["path", "link"]),
        ("lchown", &["path"]),
        ("fchown", &["reading"]),
        ("fchownat", &["path", "folder"]),
        ("fchownat-empty", &["look"]),
    ]);
}

#[test]
fn times_outside_cannot_be_changed() {
    holds(&[
        ("utime", &["path"]),
        ("utimes", &["path"]),
        ("futimesat", &["path"]),
        ("utimensat", &["path", "link", "folder"]),
        ("utimensat-now", &["path"]),
        ("futimens", &["reading"]),
    ]);
}

#[test]
fn extended_attributes_outside_cannot_be_changed() {
    holds(&[
        ("setxattr", &["path", "reading"]),
        ("lsetxattr", &["path"]),
        ("fsetxattr", &["reading"]),
        ("removexattr", &["path"]),
        ("lremovexattr", &["path"]),
        ("fremovexattr", &["reading"]),
    ]);
    if Boundary::is_known("metadata.py", &["setxattrat", "path", "{outside}/file"]) {
        holds(&[("setxattrat", &["path"]), ("removexattrat", &["path", "folder"])]);
    }
}

#[test]
fn inode_flags_outside_cannot_be_changed() {
    holds(&[("setflags", &["reading"]), ("fssetxattr", &["reading"])]);
    if Boundary::is_known("metadata.py", &["file_setattr", "path", "{outside}/file"]) {
        holds(&[("file_setattr", &["path"])]);
    }
}

/// A run must not change metadata in places that are neither granted nor hidden.
#[test]
fn modes_in_places_not_granted_cannot_be_changed() {
    let setup = |fixture: &SandboxFixture| file(fixture, &fixture.base.join("elsewhere"));
    for (call, way) in [("chmod", "path"), ("utimensat", "path"), ("setxattr", "path"), ("chmod", "link")] {
        Boundary::new("metadata.py", &[call, way, "{base}/elsewhere"]).check(setup, changed);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let is_reachable = target.ancestors().all(|level| std::fs::metadata(level).unwrap().mode() & 0o001 != 0);
    if !is_reachable {
        return skip("a place that is neither granted nor hidden", "cargo's folder cannot be reached");
    }
    let name = format!("{}/guard-elsewhere-{}", target.display(), std::process::id());
    let own = |fixture: &SandboxFixture| {
        PathBuf::from(format!("{name}-{}", fixture.base.file_name().unwrap().display()))
    };
    let setup = |fixture: &SandboxFixture| {
        let target = file(fixture, &own(fixture));
        std::os::unix::fs::symlink(&target.0, fixture.outside.join("there")).unwrap();
        target
    };
    Boundary::new("metadata.py", &["chmod", "path", "{outside}/there"]).check(
        setup,
        |fixture, target, report| {
            let changed = changed(fixture, target, report);
            std::fs::remove_file(&target.0).unwrap();
            changed
        },
    );
}

/// Standard input is the only descriptor that a run gets from outside. The run must not change the mode of its file
/// and, if it is a directory, must not reach what is in it.
#[test]
fn file_behind_standard_input_cannot_be_changed() {
    let Some(python) = system_python() else { return };
    // Python fails if its standard input is a directory, so the probe gets it as descriptor 5.
    let moved =
        "probe=$1; call=$2; way=$3; path=$4; exec PYTHON \"$probe\" $call $way \"$path\" 5<&0 </dev/null";
    let moved = moved.replace("PYTHON", python);
    let attacks = [
        ("fchmod", "file", "file", "five"),
        ("fsetxattr", "file", "file", "five"),
        ("futimens", "file", "file", "five"),
        ("chmod", "file", "file", "five"),
        ("fchmod", "", "", "five"),
        ("fchmodat", "", "file", "five"),
        ("utimensat", "", "../home/file", "five"),
    ];
    for (call, input, path, way) in attacks {
        let run = |mut command: Command, fixture: &SandboxFixture| {
            let input = std::fs::File::open(fixture.home.join(input)).unwrap();
            command
                .args(["/bin/sh", "-c", &moved, "sh"])
                .arg(probe_directory().join("metadata.py"))
                .args([call, way, path]);
            Report::of(&command.stdin(Stdio::from(input)).output().unwrap())
        };
        let setup = |fixture: &SandboxFixture| {
            let target = file(fixture, &fixture.home.join("file"));
            if path.is_empty() { (fixture.home.clone(), state(&fixture.home)) } else { target }
        };
        for user in SandboxUser::available() {
            let fixture = SandboxFixture::new(user);
            let mut target = setup(&fixture);
            let report = run(fixture.command("/usr/bin/env"), &fixture);
            assert!(changed(&fixture, &mut target, &report), "bare {call} {path}: {report:?}");
        }
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let mut target = setup(&fixture);
            let report = run(fixture.guard(configuration, &[]), &fixture);
            assert!(!changed(&fixture, &mut target, &report), "{configuration:?} {call} {path}: {report:?}");
            assert!(report.errno().is_some(), "{configuration:?} {call} {path}: {report:?}");
        }
    }
}

/// A run must be able to change metadata in its own directories. Otherwise the other tests would pass because their
/// calls fail everywhere.
#[test]
fn metadata_inside_can_be_changed() {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let (own, _) = file(&fixture, &fixture.work.join("file"));
        let calls: [(&str, &str); 8] = [
            ("chmod", "path"),
            ("fchmod", "reading"),
            ("fchmodat2", "folder"),
            ("chown", "path"),
            ("utimensat", "path"),
            ("futimens", "reading"),
            ("setxattr", "link"),
            ("fremovexattr", "reading"),
        ];
        for (call, way) in calls {
            let fixture = &fixture;
            let before = state(&own);
            std::thread::sleep(std::time::Duration::from_millis(12));
            let mut command = fixture.guard(configuration, &[]);
            command.arg(python).arg(probe_directory().join("metadata.py")).args([call, way]).arg(&own);
            let report = Report::of(&command.output().unwrap());
            assert!(report.succeeded(), "{configuration:?} {call} {way}: {report:?}");
            assert_ne!(state(&own), before, "{configuration:?} {call} {way}");
        }
    }
}
