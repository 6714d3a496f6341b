// slow
//! An agent sends false requests to the socket on which shims ask. They must give it no rights, and must not stop
//! guard.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::Report;
use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, probe_directory, sandbox_configurations, skip,
    system_python,
};

/// Returns the path of the real git, which the tests start without a shim.
pub(super) fn git() -> Option<&'static str> {
    let found = ["/usr/bin/git", "/usr/local/bin/git"].into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        skip("refused git commands", "there is no git in /usr/bin or /usr/local/bin");
    }
    found
}

/// Creates a repository with one commit in the working directory of the fixture.
pub(super) fn repository(fixture: &SandboxFixture) -> std::path::PathBuf {
    let folder = fixture.work.join("repository");
    let run = |words: &[&str]| {
        let mut command = fixture.command(git().unwrap());
        command.args(["-c", "user.name=a", "-c", "user.email=a@b.c"]).args(words);
        assert!(command.status().unwrap().success(), "git {words:?}");
    };
    run(&["init", "-q", "-b", "main", folder.to_str().unwrap()]);
    run(&["-C", folder.to_str().unwrap(), "commit", "-q", "--allow-empty", "-m", "first"]);
    folder
}

/// Writes a policy that extends `strict`. Under this policy guard judges git commands in every repository by the rules
/// for the run's own repository.
pub(super) fn policy(fixture: &SandboxFixture) -> String {
    let path = fixture.outside.join("tasks-only.toml");
    let text = "version = 1\nname = \"tasks-only\"\ndescription = \"No other repositories.\"\nextends = \"strict\"\n\n[git]\nother_action = \"deny\"\n";
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// Returns true if `git checkout -b won`, which the policy forbids, has created the branch `won`.
pub(super) fn was_won(repository: &Path) -> bool {
    repository.join(".git/refs/heads/won").exists()
}

fn lie(how: &str, configuration: SandboxConfiguration) {
    let (Some(python), Some(git)) = (system_python(), git()) else { return };
    let fixture = SandboxFixture::new(configuration.user);
    let repository = repository(&fixture);
    let began = Instant::now();
    let mut command = fixture
        .guard(configuration, &["--json", "--allow-unprotected-repositories", "--policy", &policy(&fixture)]);
    let script =
        format!("cd repository && exec {python} -B {}/control.py {how} {git}", probe_directory().display());
    let output = command.args(["/bin/sh", "-c", &script]).output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{configuration:?} {how}: no result: {output:?}"));
    assert_eq!(result["exit_code"], 0, "{configuration:?} {how}: {result}");
    let said: serde_json::Value = serde_json::from_str(result["result"].as_str().unwrap().trim()).unwrap();
    assert!(!was_won(&repository), "{configuration:?} {how}: {result}");
    let denials = result["denials"].as_array().unwrap();
    assert!(
        denials.iter().any(|denial| denial["rule"] == "git.switch"),
        "{configuration:?} {how}: the refusal is in the result: {result}"
    );
    match how {
        "forge" => assert_eq!(said["value"]["said"], "00", "an allowed command is told to go: {said}"),
        "many" => assert_eq!(said["value"]["held"], 500, "{said}"),
        _ => {}
    }
    assert!(began.elapsed() < Duration::from_secs(45), "{configuration:?} {how}: {:?}", began.elapsed());
}

#[test]
fn forged_control_socket_requests_change_no_decision() {
    for how in ["forge", "garbage", "endless"] {
        for configuration in sandbox_configurations() {
            lie(how, configuration);
        }
    }
    let Some((python, git)) = system_python().zip(git()) else { return };
    let fixture = SandboxFixture::new(SandboxUser::Ordinary);
    let repository = repository(&fixture);
    let mut command: Command = fixture.command(python);
    command.current_dir(&repository).arg(probe_directory().join("control.py")).args(["forge", git]);
    let report = Report::of(&command.output().unwrap());
    assert!(was_won(&repository), "without guard the same is done: {report:?}");
}

#[test]
fn five_hundred_control_connections_do_not_block_guard() {
    for configuration in sandbox_configurations() {
        lie("many", configuration);
    }
}
