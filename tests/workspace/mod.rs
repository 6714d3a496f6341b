//! Tests with real git and real files what a run gets, what guard receives from it, and what guard refuses.

mod attempts;
mod bombs;
mod commands;
mod conflicts;
mod credentials;
mod differential;
mod earlier_links;
mod earlier_runs;
mod files_changed;
mod fingerprint;
mod full_disk;
mod git_load;
mod hidden_by_permissions;
mod hooks;
mod hostile_agent;
mod interrupted;
mod life_cycle;
mod many_refs;
mod named_runs;
mod objects;
mod other_repositories;
mod repository_formats;
mod repository_trust;
mod review_findings;
mod supervisor_killed;
mod tree_shapes;
mod undo;
mod undo_formats;
mod unseen_by_git;
mod user_hooks;

use std::process::Command;

use crate::support::{Scratch, copy_program};

/// Parts of the names of tests and test modules that are not repeated as an ordinary user. These tests start other
/// built programs, which that user may not reach, or switch to another user themselves; or, like `review_findings`,
/// they do not depend on the user.
const NOT_AGAIN: [&str; 22] = [
    "attempts::",
    "bombs::",
    "commands::",
    "conflicts::",
    "credentials::",
    "differential::",
    "earlier_links::",
    "earlier_runs::",
    "files_changed::",
    "full_disk::",
    "git_load::",
    "hidden_by_permissions::",
    "interrupted::works_until_killed",
    "interrupted::workspace_killed",
    "many_refs::",
    "other_repositories::",
    "review_findings::",
    "run_ends_with_any_tree",
    "supervisor_killed::",
    "undo",
    "unseen_by_git::",
    "user_hooks::",
];

/// If root runs the tests, this test repeats the others as an ordinary user.
// slow
#[test]
fn workspace_tests_pass_as_an_ordinary_user() {
    const AGAIN: &str = "GUARD_TEST_ORDINARY";
    if !nix::unistd::geteuid().is_root() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    let user = 64_018;
    let scratch = Scratch::new("ordinary");
    std::os::unix::fs::chown(&scratch.0, Some(user), Some(user)).unwrap();
    let program = scratch.0.join("tests");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let output = Command::new("setpriv")
        .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
        .arg(&program)
        .arg("workspace::")
        .args(NOT_AGAIN.iter().flat_map(|name| ["--skip", name]))
        .env(AGAIN, "1")
        // Without `CI`, tests that need root are skipped here. They have already run as root.
        .env_remove("CI")
        .env("HOME", "/nonexistent")
        .env("TMPDIR", &scratch.0)
        .current_dir(&scratch.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
