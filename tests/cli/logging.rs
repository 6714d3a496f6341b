//! Tests guard's own log: guard must write it only on request, and only to standard error or to the given file.

use std::path::Path;

use crate::support::{TestEnvironment, guard_program, one_environment};

/// Runs a script by `guard run --json`. Fails unless standard output is one line of JSON, whatever guard logs. Returns
/// both streams.
fn outcome(
    environment: &TestEnvironment,
    options: &[&str],
    variables: &[(&str, &str)],
    script: &str,
) -> (String, String) {
    let mut guard = environment.guard_run(&[&["--json"], options].concat(), &["bash", "-c", script]);
    guard.envs(variables.iter().copied());
    let outcome = environment.run_to_end(guard, b"");
    let printed = String::from_utf8(outcome.output.clone()).unwrap();
    assert_eq!(
        (printed.lines().count(), &outcome.result["success"]),
        (1, &true.into()),
        "{printed}: {outcome}"
    );
    (printed, outcome.error)
}

fn has_span(log: &str, name: &str) -> bool {
    log.lines().any(|line| line.contains(&format!("{name}{{run=")))
}

#[test]
fn log_is_written_only_on_request() {
    let environment = one_environment();
    let (_, quiet) = outcome(&environment, &[], &[], "true");
    assert_eq!(quiet, "");
    let (printed, verbose) = outcome(&environment, &["-v"], &[], "ls");
    assert!(has_span(&verbose, "plan") && has_span(&verbose, "launch"), "{verbose}");
    assert!(!verbose.contains("exec{") && !printed.contains("launch{"), "{verbose}");
    let (_, debug) = outcome(&environment, &["-vv"], &[], "ls");
    assert!(
        debug
            .lines()
            .any(|line| line.contains("exec{") && line.contains("/ls}") && line.ends_with("allowed")),
        "{debug}"
    );
    // The variable sets a filter, and the option `-v` must override it.
    let (_, filtered) = outcome(&environment, &[], &[("GUARD_LOG", "guard::run::supervisor=debug")], "true");
    assert!(filtered.contains("exec{") && !has_span(&filtered, "launch"), "{filtered}");
    let (_, both) = outcome(&environment, &["-v"], &[("GUARD_LOG", "guard::run::supervisor=debug")], "true");
    assert!(!both.contains("exec{") && has_span(&both, "launch"), "{both}");
}

#[test]
fn log_file_is_appended_and_standard_error_stays_empty() {
    let environment = one_environment();
    let file = environment.temporary_directory().join("guard.log");
    let path = file.to_str().unwrap();
    let (_, first) = outcome(&environment, &["-v", "--log-file", path], &[], "true");
    let (_, second) = outcome(&environment, &[], &[("GUARD_LOG", "info"), ("GUARD_LOG_FILE", path)], "true");
    assert_eq!((first.as_str(), second.as_str()), ("", ""));
    let log = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        log.lines().filter(|line| line.contains("plan{run=") && line.contains("close")).count(),
        2,
        "{log}"
    );
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "nobody else reads it");
}

#[test]
fn verbose_log_contains_the_received_branch() {
    let environment = one_environment();
    let script = "echo x > new && git add new && git -c user.name=n -c user.email=e commit -qm new";
    let mut guard = environment.guard_run(&["--json", "-v", "--name", "logged"], &["bash", "-c", script]);
    guard.current_dir(environment.directory.with_file_name("repository"));
    let outcome = environment.run_to_end(guard, b"");
    assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
    assert!(
        has_span(&outcome.error, "receive") && outcome.error.contains("branch=refs/heads/task/logged"),
        "{outcome}"
    );
}

/// guard must escape what an agent chose, and must not log a secret.
#[test]
fn log_is_escaped_and_contains_no_secrets() {
    let environment = one_environment();
    let variables = [("GUARD_LOG", "trace"), ("GEMINI_API_KEY", "Zupersekret99"), ("LANG", "hunter2lang")];
    let script = "cp /bin/true \"$TMPDIR/$(printf 'a\\033[31mb\\nc\\342\\200\\256d')\" && \"$TMPDIR\"/a* hunter2argument; \
                  env NAME=hunter2value true";
    let (_, log) = outcome(&environment, &[], &variables, script);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("[31mb")).collect();
    assert!(
        !lines.is_empty() && lines.iter().all(|line| line.contains("a\\u{1b}[31mb\\nc\\u{202e}d")),
        "{log}"
    );
    let is_plain = |one: char| one == '\n' || !one.is_control() && one != '\u{202e}';
    assert!(log.chars().all(is_plain), "{log:?}");
    for secret in ["Zupersekret99", "hunter2"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    // The log must contain only guard's own messages, because those of libraries could contain anything.
    let starts_with_time = |line: &&str| line.starts_with("20") && line.contains(" guard::");
    assert!(log.lines().all(|line| starts_with_time(&line)), "{log}");
}

/// Shims in a run must not log, even if the run's variables request a log.
#[test]
fn shims_never_log() {
    let environment = one_environment();
    let options = ["--env", "GUARD_LOG=trace"];
    let outcome =
        environment.run(&options, &["bash", "-c", "git --version 2>&1 | wc -l; sh -c true 2>&1 | wc -l"]);
    assert_eq!(outcome.printed(), "1\n0\n", "{outcome}");
}

#[test]
fn unusable_log_options_are_usage_errors() {
    let environment = one_environment();
    std::os::unix::fs::symlink("elsewhere", environment.temporary_directory().join("link")).unwrap();
    for (options, variable, told) in [
        (vec![], "guard=loud", "GUARD_LOG=guard=loud"),
        (vec!["--log-file", "/nonexistent/guard.log"], "info", "cannot log to /nonexistent/guard.log"),
        (vec!["--log-file", "link"], "info", "cannot log to link: the path is a symbolic link"),
        (vec!["--log-file", "/dev/null"], "info", "the path is not a regular file"),
    ] {
        let mut guard = environment.command(guard_program());
        guard.current_dir(environment.temporary_directory());
        guard.args(&options).args(["policy", "list"]).env("GUARD_LOG", variable);
        let outcome = environment.run_to_end(guard, b"");
        assert_eq!((outcome.code, outcome.output.len()), (2, 0), "{outcome}");
        assert!(outcome.error.contains(told) && outcome.error.contains("hint: "), "{outcome}");
    }
    assert!(!environment.temporary_directory().join("elsewhere").exists());
}

/// `guard exec` parses what its attempts print, so their log must go only to the file.
#[test]
fn exec_attempts_log_only_to_the_file() {
    let environment = one_environment();
    let file = environment.temporary_directory().join("exec.log");
    let run = |more: &[&str]| {
        let mut guard = environment.command(guard_program());
        guard.args(["exec", "-v"]).args(more).arg("--cd").arg(&environment.directory).args(["--", "true"]);
        environment.run_to_end(guard, b"")
    };
    let outcome = run(&[]);
    assert!(outcome.code == 0 && !String::from_utf8_lossy(&outcome.output).contains("launch{"), "{outcome}");
    let outcome = run(&["--log-file", file.to_str().unwrap()]);
    assert_eq!((outcome.code, Path::new(&file).exists()), (0, true), "{outcome}");
    assert!(has_span(&std::fs::read_to_string(&file).unwrap(), "launch"));
}
