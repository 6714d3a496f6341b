//! The words of an exec lie in memory that others can change, and its path in directories that others can change: whoever is
//! judged as one program must not become another.

use super::exec::{marker, marker_policy};
use super::{Configuration, Place, User, configurations, python, tools};
use crate::support::copy_program;

/// How often the refused program ran, in so many tries. The safe path and the refused one, made for a place.
fn wins(
    configuration: Configuration,
    options: &[&str],
    probe: &[&str],
    paths: impl Fn(&Place) -> (String, String),
) -> (usize, String) {
    let place = Place::new(configuration.user);
    let policy = marker_policy(&place);
    let (safe, refused) = paths(&place);
    let out = place.work.join("out");
    super::folder(&out, Some(place.id), 0o755);
    let mut options = options.to_vec();
    options.extend(["--policy", policy.to_str().unwrap()]);
    let mut command = place.guard(configuration, &options);
    command.args([python().unwrap(), "-B"]).arg(tools().join("race.py")).args(probe).args([&safe, &refused]);
    let output = command.arg("innocent").arg(out.join("won-{n}")).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{configuration:?}: {words}");
    (std::fs::read_dir(&out).unwrap().count(), words)
}

/// The file that is refused by its name.
fn named(place: &Place) -> (String, String) {
    ("/usr/bin/true".to_string(), marker(place).display().to_string())
}

/// A copy in the working directory, of a program that is refused by its name.
fn copied(place: &Place) -> (String, String) {
    let path = place.work.join("innocent");
    copy_program("/usr/bin/touch".as_ref(), &path);
    ("/usr/bin/true".to_string(), path.display().to_string())
}

/// The shim, which is let through because it asks by itself.
fn shim(place: &Place) -> (String, String) {
    (place.shim().display().to_string(), marker(place).display().to_string())
}

pub(super) fn lost(how: &str, tries: &str, paths: impl Fn(&Place) -> (String, String) + Sync) {
    if python().is_none() {
        return;
    }
    for configuration in configurations() {
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
    if python().is_none() {
        return;
    }
    for (how, namespaces) in [("process", true), ("thread", false)] {
        let configuration = Configuration { user: User::Ordinary, namespaces };
        if !configurations().contains(&configuration) {
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
            super::skip(&format!("that the race by a {how} is real"), "it was not won in 3,000 tries");
        }
    }
}
