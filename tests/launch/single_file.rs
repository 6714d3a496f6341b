//! guard is a single executable. It must provide its shims for git and the shells in any directory and under any
//! name.

use std::path::PathBuf;

use crate::support::{
    RunOutcome, TestEnvironment, guard_program, in_two_environments, one_environment, skip_unsupported,
};

/// Copies guard into a directory that contains no other file. Returns the path of the copy.
fn lone_copy(environment: &TestEnvironment) -> PathBuf {
    environment.run_outside(&format!("mkdir alone && cp '{}' alone/tool", guard_program().display()));
    environment.directory.with_file_name("alone").join("tool")
}

/// A script that prints the path of git, and runs an allowed and a forbidden git command. The tests write it to a
/// file: as an argument, guard would refuse the whole script because of the forbidden command.
const SCRIPT: &str =
    "readlink -f \"$(command -v git)\"; git --version | cut -c1-11; git checkout -q -b x 2>&1";

fn lines(outcome: &RunOutcome) -> Vec<String> {
    outcome.printed().lines().map(str::to_string).collect()
}

// slow
#[test]
fn lone_copy_of_the_program_has_its_shims() {
    in_two_environments(|environment| {
        let copy = lone_copy(environment);
        std::fs::write(environment.directory.join("script"), SCRIPT).unwrap();
        let mut guard = environment.command(&copy);
        guard.args(environment.guard_run_arguments(&["--json"], &["bash", "script"]));
        let outcome = environment.run_to_end(guard, b"");
        let in_directory = std::fs::read_dir(copy.parent().unwrap()).unwrap().count();
        assert_eq!(in_directory, 1, "nothing is written beside guard");
        let lines = lines(&outcome);
        let context = format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(lines.len(), 3, "{context}");
        assert_eq!(
            (lines[0].ends_with("/guard-shim"), lines[1].as_str()),
            (true, "git version"),
            "{context}"
        );
        // The shim must print the reason, once, and the shell itself must not be refused.
        assert!(lines[2].starts_with("guard: Permission denied: git checkout"), "{context}");
        assert_eq!((outcome.code, &outcome.result["enforcement"]["shims"]), (126, &true.into()), "{context}");
        assert_eq!(outcome.result["usage"]["refusals"], 1, "{context}");
    });
}

/// guard must repair shims that a crash damaged.
#[test]
fn damaged_shims_are_repaired() {
    let environment = one_environment();
    assert_eq!(environment.expect_success("true"), "");
    let shims = environment.runs_directory().with_file_name("shims");
    let directory = std::fs::read_dir(&shims).unwrap().next().unwrap().unwrap().path();
    environment.run_outside(&format!(
        "cd '{}' && : > guard-shim && rm git && ln -sf /bin/false sh",
        directory.display()
    ));
    assert_eq!(
        environment.expect_success("git --version | cut -c1-11; sh -c 'echo reached'"),
        "git version\nreached\n"
    );
    let left: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("new-")), "{left:?}");
}

#[test]
fn missing_shims_are_reported_and_refusals_still_hold() {
    let environment = one_environment();
    std::fs::write(environment.directory.join("script"), SCRIPT).unwrap();
    let without = |outcome: &RunOutcome| {
        assert_eq!(
            (outcome.code, &outcome.result["enforcement"]["shims"]),
            (126, &false.into()),
            "{outcome}"
        );
        assert!(lines(outcome)[0].ends_with("/git"), "{outcome}");
    };
    without(&environment.run(&["--no-shims"], &["bash", "script"]));
    // Without `--json`, guard must report the missing shims on standard error.
    let told = environment.run_to_end(environment.guard_run(&["--no-shims"], &["true"]), b"").error;
    assert!(
        told.lines().any(|line| line.starts_with("guard: ") && line.ends_with(", without shims")),
        "{told}"
    );
    // guard cannot write the shims here: the limit for files is 256 KiB, and a shim is larger.
    let mut guard = environment.command("bash");
    guard.args(["-c", "rm -rf \"$XDG_STATE_HOME\"; ulimit -f 256; exec \"$@\"", "bash"]).arg(guard_program());
    guard.args(environment.guard_run_arguments(&["--json"], &["bash", "script"]));
    without(&environment.run_to_end(guard, b""));
    // The state directory is on a file system that is mounted `noexec`, so the shims cannot be executed.
    let script = "mount -t tmpfs -o noexec tmpfs \"$XDG_STATE_HOME\" && exec \"$@\"";
    let mut guard = environment.command("unshare");
    guard.args(["-rm", "bash", "-c", script, "bash"]).arg(guard_program());
    guard.args(environment.guard_run_arguments(&["--json"], &["bash", "script"]));
    std::fs::create_dir_all(environment.runs_directory().ancestors().nth(2).unwrap()).unwrap();
    let outcome = environment.run_to_end(guard, b"");
    if outcome.error.contains("unshare") || outcome.error.contains("mount:") {
        skip_unsupported("a state directory that is mounted noexec", &outcome.error);
        return;
    }
    without(&outcome);
}
