// slow
//! A run must not change files outside its directories, in any way.

use std::path::{Path, PathBuf};

use super::Boundary;
use crate::support::{SandboxFixture, make_directory, sandbox_configurations};

/// Returns everything in a directory, with its type and content.
fn content(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(content(&path));
        }
        let text = if kind.is_file() { std::fs::read_to_string(&path).unwrap() } else { format!("{kind:?}") };
        found.push((path, text));
    }
    found.sort();
    found
}

type Before = Vec<(PathBuf, String)>;

fn setup(fixture: &SandboxFixture) -> Before {
    fixture.file(&fixture.outside.join("file"), "original");
    let folder = fixture.outside.join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(fixture.id), Some(fixture.id)).unwrap();
    content(&fixture.outside)
}

fn changed(fixture: &SandboxFixture, before: &Before) -> bool {
    content(&fixture.outside) != *before
}

fn holds(attacks: &[(&str, &str)]) {
    for (attack, path) in attacks {
        Boundary::new("files.py", &[attack, path])
            .check(setup, |fixture, before, _| changed(fixture, before));
    }
}

#[test]
fn files_outside_cannot_be_opened_for_writing() {
    holds(&[
        ("create", "{outside}/new"),
        ("exclusive", "{outside}/new"),
        ("create-only", "{outside}/new"),
        ("write", "{outside}/file"),
        ("read-write", "{outside}/file"),
        ("append", "{outside}/file"),
    ]);
}

#[test]
fn files_outside_cannot_be_truncated() {
    holds(&[("empty", "{outside}/file"), ("empty-write", "{outside}/file"), ("truncate", "{outside}/file")]);
}

#[test]
fn files_outside_cannot_be_created_or_removed() {
    holds(&[
        ("unlink", "{outside}/file"),
        ("rmdir", "{outside}/folder"),
        ("mkdir", "{outside}/new"),
        ("fifo", "{outside}/new"),
        ("mknod", "{outside}/new"),
        ("symlink", "{outside}/new"),
        ("nameless", "{outside}"),
        ("bind", "{outside}/new"),
    ]);
}

#[test]
fn files_cannot_be_moved_or_linked_across_the_boundary() {
    holds(&[
        ("rename-out", "{outside}/new"),
        ("rename-out", "{outside}/file"),
        ("rename-in", "{outside}/file"),
        ("rename-there", "{outside}/file"),
        ("exchange", "{outside}/file"),
        ("moved-folder", "{outside}"),
        ("link-out", "{outside}/new"),
        ("link-in", "{outside}/file"),
    ]);
}

#[test]
fn detours_to_files_outside_are_refused() {
    holds(&[
        ("through-symlink", "{outside}/file"),
        ("through-linked-folder", "{outside}"),
        ("through-dotdot", ""),
        ("through-root", "{outside}/file"),
        ("through-thread-root", "{outside}/file"),
        ("through-cwd", ""),
        ("through-folder-descriptor", "{outside}"),
        ("through-path-descriptor", "{outside}/file"),
        ("through-reading-descriptor", "{outside}/file"),
    ]);
    Boundary::new("files.py", &["through-root-of", "{pid}", "{outside}/new"])
        .check_victim(|fixture, _, _| fixture.outside.join("new").exists());
}

/// A run has its own `/tmp`. The supervisor, which binds sockets on behalf of the run, must bind them in the run's
/// `/tmp` and never in the machine's.
#[test]
fn socket_is_not_bound_in_the_tmp_of_the_machine_through_a_link() {
    for folder in ["/tmp", "/var/tmp"] {
        let named = |fixture: &SandboxFixture| {
            let name = fixture.base.file_name().unwrap().to_str().unwrap();
            Path::new(folder).join(format!("guard-bound-{}-{name}", std::process::id()))
        };
        let setup = |fixture: &SandboxFixture| {
            let path = named(fixture);
            std::fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(fixture.id), Some(fixture.id)).unwrap();
            // Inside the run, the link leads to the same name in the run's own /tmp.
            std::os::unix::fs::symlink(&path, fixture.work.join("link")).unwrap();
            path
        };
        let broken = |_: &SandboxFixture, path: &mut PathBuf, _: &super::Report| {
            let made = std::fs::read_dir(&*path).unwrap().count() > 0;
            std::fs::remove_dir_all(&*path).unwrap();
            made
        };
        Boundary::new("files.py", &["bind-behind-link", folder]).check(setup, broken);
    }
}

/// guard's records and configuration determine what the next run may do. No run may write them, by any path.
#[test]
fn directories_of_guard_cannot_be_written() {
    for configuration in sandbox_configurations() {
        for (variable, what) in [("XDG_STATE_HOME", "records"), ("XDG_CONFIG_HOME", "configuration")] {
            let fixture = SandboxFixture::new(configuration.user);
            let refused = |own: &Path, file: &Path, options: &[&str]| {
                let script = format!("echo changed >> {}", file.display());
                let mut guard = fixture.guard(configuration, options);
                let output = guard.args(["sh", "-c", &script]).env(variable, own).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(
                    std::fs::read_to_string(file).unwrap(),
                    "",
                    "{configuration:?} {variable} {own:?}"
                );
                assert_eq!(output.status.code(), Some(125), "{configuration:?} {variable} {own:?}: {said}");
                assert!(said.contains(what), "{configuration:?} {variable} {own:?}: {said}");
            };
            let (inside, outside, link) =
                (fixture.work.join("own"), fixture.outside.join("own"), fixture.home.join("link"));
            for directory in [&inside, &inside.join("guard"), &outside, &outside.join("guard")] {
                make_directory(directory, Some(fixture.id), 0o755);
            }
            std::os::unix::fs::symlink(&inside, &link).unwrap();
            let name = "guard/config.toml";
            let (first, second) =
                (fixture.file(&inside.join(name), ""), fixture.file(&outside.join(name), ""));
            refused(&inside, &first, &[]);
            refused(&link, &first, &[]);
            refused(&outside, &second, &["--write", outside.join("guard").to_str().unwrap()]);
        }
    }
}
