// slow
//! Most users have agents in `/usr/local/bin`. The tests of what guard does without an agent must pass there too.

use std::process::{Command, Stdio};

use crate::support::{Scratch, is_root, make_program, skip, skip_unsupported};

/// Tests of what guard does without an agent.
const TESTS: [&str; 3] = [
    "agent_exec::api_failures::invalid_requests_and_missing_agents_are_rejected_without_retry",
    "cli::doctor::doctor_reports_agents_and_unsafe_directories_on_path",
    "research::command_line::exit_code_tells_which_part_of_research_failed",
];

/// Covers `/usr/local/bin` with the decoys of the directory `$1`, in the mount namespace of this shell only.
const WITH_DECOYS: &str = r#"
mount -t overlay -o "lowerdir=$1:/usr/local/bin" overlay /usr/local/bin || exit 77
shift
exec "$@""#;

/// Repeats these tests with other programs named gemini, claude and codex in `/usr/local/bin`.
#[test]
fn tests_without_an_agent_pass_on_a_machine_that_has_agents() {
    if !is_root() {
        return skip("agents in /usr/local/bin", "only root can mount them there");
    }
    let decoys = Scratch::new("decoys");
    for name in ["gemini", "claude", "codex"] {
        make_program(&decoys.0.join(name), "#!/bin/sh\necho 'this is a decoy'\nexit 99\n");
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", WITH_DECOYS, "bash"]).arg(&decoys.0);
    command.arg(std::env::current_exe().unwrap()).arg("--exact").args(TESTS);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || errors.starts_with("unshare: ") {
        return skip_unsupported("agents in /usr/local/bin", "this machine allows no overlay mounts");
    }
    assert!(printed.contains(&format!("{} passed; 0 failed", TESTS.len())), "{printed}{errors}");
}
