//! The words of an exec lie in memory that others can change, and its path in directories that others can change: whoever is
//! judged as one program must not become another.

use super::exec::{marker, marker_policy};
use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, copy_program, make_directory, probe_directory,
    sandbox_configurations, skip_unsupported, system_python,
};

/// How often the refused program ran, in so many tries. The safe path and the refused one, made for a place.
fn wins(
    configuration: SandboxConfiguration,
    options: &[&str],
    probe: &[&str],
    paths: impl Fn(&SandboxFixture) -> (String, String),
) -> (usize, String) {
    let fixture = SandboxFixture::new(configuration.user);
    let policy = marker_policy(&fixture);
    let (safe, refused) = paths(&fixture);
    let out = fixture.work.join("out");
    make_directory(&out, Some(fixture.id), 0o755);
    let mut options = options.to_vec();
    options.extend(["--policy", policy.to_str().unwrap()]);
    let mut command = fixture.guard(configuration, &options);
    command
        .args([system_python().unwrap(), "-B"])
        .arg(probe_directory().join("race.py"))
        .args(probe)
        .args([&safe, &refused]);
    let output = command.arg("innocent").arg(out.join("won-{n}")).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{configuration:?}: {words}");
    (std::fs::read_dir(&out).unwrap().count(), words)
}

/// The file that is refused by its name.
fn named(fixture: &SandboxFixture) -> (String, String) {
    ("/usr/bin/true".to_string(), marker(fixture).display().to_string())
}

/// A copy in the working directory, of a program that is refused by its name.
fn copied(fixture: &SandboxFixture) -> (String, String) {
    let path = fixture.work.join("innocent");
    copy_program("/usr/bin/touch".as_ref(), &path);
    ("/usr/bin/true".to_string(), path.display().to_string())
}

/// The shim, which is let through because it asks by itself.
fn shim(fixture: &SandboxFixture) -> (String, String) {
    (fixture.shim().display().to_string(), marker(fixture).display().to_string())
}

pub(super) fn lost(how: &str, tries: &str, paths: impl Fn(&SandboxFixture) -> (String, String) + Sync) {
    if system_python().is_none() {
        return;
    }
    for configuration in sandbox_configurations() {
        let (won, words) = wins(configuration, &[], &[how, tries], &paths);
        assert_eq!(won, 0, "{configuration:?}: {how} won {won} of {tries}");
        assert!(
            words.contains("test.marker") || how == "content",
            "{configuration:?}: the refused one never came up"
        );
    }
}

#[test]
fn another_process_does_not_win() {
    lost("process", "250", named);
}

#[test]
fn another_thread_does_not_win() {
    lost("thread", "250", named);
}

#[test]
fn a_copy_does_not_win() {
    lost("process", "250", copied);
}

#[test]
fn a_path_that_was_the_shims_does_not_win() {
    lost("process", "250", shim);
}

/// One link, turned from one program to the other all the time.
#[test]
fn a_link_that_turns_does_not_win() {
    lost("link", "250", copied);
}

/// One file, whose content becomes the refused program's between the look and the start.
#[test]
fn a_file_that_changes_does_not_win() {
    lost("content", "60", copied);
}

/// Without the second look the race is won: these tests are about something.
#[test]
fn without_verification_the_race_is_real() {
    if system_python().is_none() {
        return;
    }
    for (how, namespaces) in [("process", true), ("thread", false)] {
        let configuration = SandboxConfiguration { user: SandboxUser::Ordinary, namespaces };
        if !sandbox_configurations().contains(&configuration) {
            continue;
        }
        let mut tried = 0;
        while tried < 3000 {
            tried += 150;
            if wins(configuration, &["--no-verify"], &[how, "150"], named).0 > 0 {
                break;
            }
        }
        if tried >= 3000 {
            skip_unsupported(&format!("that the race by a {how} is real"), "it was not won in 3,000 tries");
        }
    }
}
