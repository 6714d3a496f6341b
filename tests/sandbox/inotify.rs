// slow
//! An inotify watch reports the names of new files. A run must not be able to watch a directory that it may not list.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Report;
use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, make_directory, probe_directory,
    sandbox_configurations, skip, system_python,
};

const NAME: &str = "a-name-that-must-not-be-told";

/// Lets the probe watch a directory, and creates a file there from outside. Returns whether the probe was told the
/// file's name, and the probe's output.
fn is_told(mut command: Command, directory: &Path, way: &str) -> (bool, String) {
    command.arg(probe_directory().join("watches.py")).arg("watch").arg(directory).arg(way);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    std::fs::write(directory.join(NAME), "").unwrap();
    drop(child.stdin.take());
    output.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    (said.contains(NAME), said)
}

/// Creates directories of the user that the run may not list: one beside the run's own directories, and one that the
/// mount namespace does not hide.
fn unlisted(fixture: &SandboxFixture) -> Vec<PathBuf> {
    let beside = fixture.base.join("unlisted");
    make_directory(&beside, Some(fixture.id), 0o755);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let is_reachable = target.ancestors().all(|level| std::fs::metadata(level).unwrap().mode() & 0o001 != 0);
    if !is_reachable {
        skip("a place that is neither granted nor hidden", "cargo's folder cannot be reached");
        return vec![beside];
    }
    let name = fixture.base.file_name().unwrap().display();
    let elsewhere = target.join(format!("guard-unlisted-{}-{name}", std::process::id()));
    make_directory(&elsewhere, Some(fixture.id), 0o755);
    vec![beside, elsewhere]
}

/// Tries every way to watch a directory. Returns the ways whose result is wrong.
fn attacked(user: SandboxUser, configuration: Option<SandboxConfiguration>, python: &str) -> Vec<String> {
    let mut failures = Vec::new();
    for way in ["path", "relative", "link", "descriptor"] {
        let fixture = SandboxFixture::new(user);
        for directory in unlisted(&fixture) {
            let _ = std::fs::remove_file(fixture.work.join("link"));
            let command = match configuration {
                Some(configuration) => {
                    let mut command = fixture.guard(configuration, &[]);
                    command.arg(python);
                    command
                }
                None => fixture.command(python),
            };
            let (told, said) = is_told(command, &directory, way);
            std::fs::remove_dir_all(&directory).unwrap();
            if told != configuration.is_none() || !said.contains("errno") {
                failures.push(format!("{user:?} {configuration:?} {way} {}: {said}", directory.display()));
            }
        }
    }
    failures
}

#[test]
fn inotify_reveals_no_names_in_unlistable_directories() {
    let Some(python) = system_python() else { return };
    let bare = SandboxUser::available().into_iter().map(|user| (user, None));
    let guarded = sandbox_configurations().into_iter().map(|one| (one.user, Some(one)));
    let failures: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = bare
            .chain(guarded)
            .map(|(user, configuration)| scope.spawn(move || attacked(user, configuration, python)))
            .collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A run must be able to watch every directory that it may read.
#[test]
fn inotify_works_in_readable_directories() {
    let Some(python) = system_python() else { return };
    let mut failures = Vec::new();
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = fixture.guard(configuration, &[]);
        command.arg(python).arg(probe_directory().join("watches.py")).arg("everyday");
        let report = Report::of(&command.output().unwrap());
        if !report.succeeded() {
            failures.push(format!("{configuration:?}: {report:?}"));
        }
        let mut command = fixture.guard(configuration, &[]);
        command.arg(python);
        let (told, said) = is_told(command, &fixture.outside, "path");
        if !told {
            failures.push(format!("{configuration:?}: what may be read may be watched: {said}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
