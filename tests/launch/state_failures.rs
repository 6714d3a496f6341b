//! Tests transcripts that cannot be written, and state directories that cannot be used.

use std::time::Duration;

use crate::support::{
    expect_no_process_left, guard_program, in_every_environment, is_root, one_environment, skip, unique_mark,
};

// slow
#[test]
fn unwritable_transcript_ends_the_run() {
    // A limit on the size of files makes writing fail. Every user can set such a limit.
    in_every_environment(|environment| {
        let mark = unique_mark();
        let script = "(setsid sleep 60 &); while :; do echo 0123456789012345678901234567890123456789; done";
        let guard = environment
            .guard_run_arguments(&["--json", "--env", &mark, "--no-toolchains"], &["bash", "-c", script]);
        let mut command = environment.command("bash");
        command.args(["-c", "ulimit -f 64; exec \"$@\"", "bash"]).arg(guard_program()).args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!((outcome.code, outcome.kind()), (125, "internal"), "{}: {outcome:?}", environment.name());
        assert!(
            outcome.result["error"].as_str().unwrap().contains("guard cannot write the transcript"),
            "{outcome}"
        );
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
    if !is_root() {
        skip("a full disk", "only root can mount one");
        return;
    }
    in_every_environment(|environment| {
        if environment.user.name != "root" {
            return;
        }
        let mark = unique_mark();
        let script = "(setsid sleep 60 &); while :; do echo 0123456789012345678901234567890123456789; done";
        let guard = environment
            .guard_run_arguments(&["--json", "--env", &mark, "--no-toolchains"], &["bash", "-c", script]);
        let mut command = environment.command("unshare");
        let mount =
            "mkdir -p \"$XDG_STATE_HOME\"; mount -t tmpfs -o size=256k none \"$XDG_STATE_HOME\"; exec \"$@\"";
        command.args(["-m", "bash", "-ec", mount, "bash"]).arg(guard_program()).args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!((outcome.code, outcome.kind()), (125, "internal"), "{}: {outcome:?}", environment.name());
        let error = outcome.result["error"].as_str().unwrap();
        assert!(error.contains("transcript") && error.contains("No space left"), "{error}");
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

#[test]
fn unusable_state_directory_is_an_error() {
    let environment = one_environment();
    std::fs::write(environment.temporary_directory().join("file"), "").unwrap();
    for state in [environment.temporary_directory().join("file"), "/proc/nowhere".into()] {
        let mut command = environment.guard_run(&["--json"], &["true"]);
        command.env("XDG_STATE_HOME", &state);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!((outcome.code, outcome.kind()), (125, "internal"), "{}: {outcome:?}", state.display());
        assert!(!outcome.result["error"].as_str().unwrap().is_empty());
    }
}
