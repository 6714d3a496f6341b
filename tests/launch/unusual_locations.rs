// slow
//! Tests repositories and programs in unusual directories: below `/opt`, and anywhere on PATH.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::{TestEnvironment, in_every_environment, is_root, make_program, skip};

/// A directory below a system directory. Dropping the value removes it.
struct Below(PathBuf);

impl Below {
    fn new(system: &str, environment: &TestEnvironment) -> Self {
        let name = environment.directory.parent().and_then(Path::file_name).unwrap();
        let directory = Path::new(system).join(format!("guard-test-{}", name.to_string_lossy()));
        std::fs::create_dir_all(&directory).unwrap();
        environment.give_to_user(&directory);
        Self(directory)
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const WORK: &str = r#"
sed -i s/first/second/ tracked
mkdir -p a/b
echo x | tee a/b/c
touch "$(pwd)/by-its-whole-name"
git add -A
git commit -qm work
git diff --output=../beside
echo x | tee ../beside
"#;

/// CI runners keep repositories below `/opt` and `/var/lib`. A run must be able to write to its repository there, and
/// to nothing beside it.
#[test]
fn repository_below_a_system_directory_is_writable() {
    if !is_root() {
        skip("a repository below /opt", "only root can make one");
        return;
    }
    in_every_environment(|environment| {
        for system in ["/opt", "/var/lib"] {
            let below = Below::new(system, environment);
            let at = below.0.display();
            // The script is in a file, so that guard judges every command when it starts, and not the whole script as
            // an argument.
            std::fs::create_dir(below.0.join("app")).unwrap();
            std::fs::write(below.0.join("app/work.sh"), WORK).unwrap();
            environment.give_to_user(&below.0);
            environment.run_outside(&format!(
                "cd {at}/app && git init -q -b main && git config user.name n && git config user.email e \
                 && echo first > tracked && git add . && git commit -qm first"
            ));
            let mut guard = environment.command(crate::support::guard_program());
            let namespaces = if environment.namespaces { "require" } else { "off" };
            guard.args(["run", "--json", "--namespaces", namespaces, "--dir"]).arg(below.0.join("app"));
            guard.args(["--", "bash", "work.sh"]);
            let outcome = environment.run_to_end(guard, b"");
            let shown =
                || format!("{}: {system}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
            assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{}", shown());
            let rules: Vec<_> = outcome.result["denials"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|denial| &denial["rule"])
                .collect();
            assert!(!rules.is_empty() && rules.iter().all(|rule| **rule == json!("outside")), "{}", shown());
            let beside = outcome.result["worktree"]["path"]
                .as_str()
                .map(|path| Path::new(path).with_file_name("beside"));
            assert!(!beside.unwrap().exists() && !below.0.join("beside").exists(), "{}", shown());
        }
    });
}

/// A program on PATH must find the files that are installed with it, even if they are outside a home, or if PATH leads
/// through a symbolic link such as `current` to the directory of a version.
#[test]
fn programs_on_path_run_from_unusual_locations() {
    in_every_environment(|environment| {
        let root = environment.directory.parent().unwrap();
        let elsewhere = root.join("tools/one");
        let versions =
            environment.user_home().join(format!("versions-{}", root.file_name().unwrap().to_string_lossy()));
        for (prefix, name) in [(&elsewhere, "tool-one"), (&versions.join("v2"), "tool-two")] {
            std::fs::create_dir_all(prefix.join("bin")).unwrap();
            std::fs::create_dir_all(prefix.join("lib")).unwrap();
            std::fs::write(prefix.join("lib/data"), format!("data of {name}\n")).unwrap();
            make_program(
                &prefix.join("bin").join(name),
                b"#!/bin/sh\nread -r line < \"${0%/bin/*}/lib/data\" && echo \"$line\"\n",
            );
        }
        std::os::unix::fs::symlink("v2", versions.join("current")).unwrap();
        std::fs::write(root.join("tools/beside"), "not on PATH\n").unwrap();
        environment.give_to_user(&root.join("tools"));
        environment.give_to_user(&versions);
        let mut guard =
            environment.guard_run(&["--json"], &["bash", "-c", "tool-one; tool-two; cat ../tools/beside"]);
        let path = [elsewhere.join("bin"), versions.join("current/bin"), "/usr/bin".into(), "/bin".into()];
        guard.env("PATH", std::env::join_paths(path).unwrap());
        let outcome = environment.run_to_end(guard, b"");
        std::fs::remove_dir_all(&versions).unwrap();
        assert_eq!(outcome.printed(), "data of tool-one\ndata of tool-two\n", "{outcome}");
    });
}

#[test]
fn run_works_if_state_and_temporary_directories_are_links() {
    in_every_environment(|environment| {
        environment.run_outside(
            "mkdir other-disk other-tmp && ln -s other-disk linked-state && ln -s other-tmp linked-tmp",
        );
        let root = environment.directory.parent().unwrap();
        for options in [&["--json"][..], &["--json", "--name", "next", "--discard"]] {
            let script = "touch ~/file $TMPDIR/file && echo text > made && cat made";
            let mut guard = environment.guard_run(options, &["bash", "-c", script]);
            guard.env("XDG_STATE_HOME", root.join("linked-state")).env("TMPDIR", root.join("linked-tmp"));
            let outcome = environment.run_to_end(guard, b"");
            assert_eq!((outcome.code, outcome.printed().as_str()), (0, "text\n"), "{outcome}");
        }
    });
}
