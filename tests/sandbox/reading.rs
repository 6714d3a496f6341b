//! What the run may not read: keys, other users' files, password hashes, guard's own records.

use std::path::PathBuf;

use super::{Boundary, Place, User, configurations, python, tools};

const SECRET: &str = "a secret that must not be read";

fn leaked(report: &super::Report) -> bool {
    report.output.contains(SECRET)
}

#[test]
fn the_users_keys_are_not_read() {
    let setup = |place: &Place| {
        let folder = place.home.join(".ssh");
        super::folder(&folder, Some(place.id), 0o700);
        place.file(&folder.join("id_ed25519"), SECRET)
    };
    for attack in ["read", "read-through-root", "read-through-link"] {
        Boundary::new("files.py", &[attack, "{home}/.ssh/id_ed25519"])
            .check(setup, |_, _: &mut PathBuf, report| leaked(report));
    }
    let listed = |_: &Place, _: &mut PathBuf, report: &super::Report| report.output.contains("id_ed25519");
    Boundary::new("files.py", &["list", "{home}/.ssh"]).check(setup, listed);
}

/// Root without capabilities is still root: the files of others stay theirs.
#[test]
fn another_users_files_are_not_read_by_root() {
    let setup = |place: &Place| {
        let path = place.outside.join("theirs");
        std::fs::write(&path, SECRET).unwrap();
        super::set_mode(&path, 0o600);
        std::os::unix::fs::chown(&path, Some(super::ORDINARY), Some(super::ORDINARY)).unwrap();
    };
    Boundary::new("files.py", &["read", "{outside}/theirs"])
        .only(User::Root)
        .check(setup, |_, (), report| leaked(report));
}

#[test]
fn password_hashes_are_not_read_by_root() {
    let Ok(shadow) = std::fs::read_to_string("/etc/shadow") else {
        return super::skip("/etc/shadow", "it cannot be read here");
    };
    let first = shadow.lines().next().unwrap_or_default().to_string();
    for attack in ["read", "read-through-root"] {
        Boundary::new("files.py", &[attack, "/etc/shadow"])
            .only(User::Root)
            .check(|_| (), |_, (), report| !first.is_empty() && report.output.contains(&first));
    }
}

/// The run's own transcript, as long as it is written: neither read nor changed.
#[test]
fn the_transcript_is_neither_read_nor_written() {
    let Some(python) = python() else { return };
    for configuration in configurations() {
        for attack in ["read", "append", "unlink", "truncate"] {
            let place = Place::new(configuration.user);
            // The private home lies beside the transcript: that is how the run knows where it is.
            let code = format!(
                "import os,sys;sys.path.insert(0,{tools:?});\
                 path=os.path.join(os.path.dirname(os.environ['HOME']),'transcript.jsonl');\
                 sys.argv=['files.py',{attack:?},path];print('TRIED',path);import files",
                tools = tools().to_str().unwrap(),
            );
            let output = place.guard(configuration, &[]).args([python, "-B", "-c", &code]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let events = place.events();
            let path = text
                .lines()
                .find_map(|line| line.strip_prefix("TRIED "))
                .unwrap_or_else(|| panic!("{output:?}"));
            assert!(path.starts_with(place.state.to_str().unwrap()), "{path}");
            assert!(!text.contains("event_type"), "{configuration:?}: the transcript was read: {text}");
            assert!(
                text.contains("\"errno\": 13") || text.contains("\"errno\": 2"),
                "{configuration:?}: {text}"
            );
            let first = events.first().and_then(|event| event["event_type"].as_str()).unwrap();
            let last = events.last().and_then(|event| event["event_type"].as_str()).unwrap();
            assert_eq!((first, last), ("run.started", "run.finished"), "{configuration:?}: after {attack}");
        }
    }
}
