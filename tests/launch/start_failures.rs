// slow
//! If a run cannot start, guard must report why and leave nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    expect_no_process_left, guard_program, in_every_environment, in_two_environments, make_program,
    unique_mark,
};

/// Returns the number of threads that the kernel counts against a user's limit.
fn threads_of(user: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    let threads = |status: String| {
        let number =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
        (number("Uid:")? == user.to_string()).then(|| number("Threads:")?.parse::<usize>().ok())?
    };
    statuses.filter_map(threads).sum()
}

#[test]
fn unstartable_programs_have_their_error_kind_and_code() {
    in_every_environment(|environment| {
        std::fs::write(environment.directory.join("plain"), "#!/bin/sh\n").unwrap();
        make_program(&environment.directory.join("alien"), "\x7fELF nothing");
        make_program(&environment.directory.join("orphan"), "#!/no/such/interpreter\n");
        let cases = [
            ("no-such-program", "command_not_found", 127),
            ("./no-such-program", "command_not_found", 127),
            ("/no/such/program", "command_not_found", 127),
            ("./plain", "invalid_input", 126),
            ("/etc", "invalid_input", 126),
            ("./alien", "upstream_error", 126),
            ("./orphan", "command_not_found", 127),
        ];
        for (program, kind, code) in cases {
            let outcome = environment.run(&[], &[program]);
            assert_eq!((outcome.kind(), outcome.code), (kind, code), "{program}: {outcome}");
            assert_eq!(outcome.result["success"], false);
            assert_eq!(outcome.result["exit_code"], Value::Null, "{program}: {outcome}");
            assert!(!outcome.result["error"].as_str().unwrap().is_empty());
        }
    });
}

#[test]
fn failed_plan_leaves_no_run_directory() {
    in_every_environment(|environment| {
        environment.run_outside("mkdir -p state/guard/runs");
        let cases: [(&[&str], &str); 4] = [
            (&[], "no-such-program"),
            (&[], "/etc"),
            (&["--read", "/no/such/folder"], "true"),
            (&["--home-to", "kept", "--home-keep", "../elsewhere"], "true"),
        ];
        for (options, program) in cases {
            let mark = unique_mark();
            let outcome = environment.run(&[&["--env", &mark], options].concat(), &[program]);
            assert!(
                !outcome.kind().is_empty() && outcome.code > 100,
                "{} {options:?}: {outcome:?}",
                environment.name()
            );
            expect_no_process_left(&mark, Duration::from_secs(2));
            for folder in [environment.runs_directory(), environment.temporary_directory()] {
                let left: Vec<_> =
                    std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
                assert!(left.is_empty(), "{} {options:?} {program}: {left:?}", environment.name());
            }
        }
    });
}

#[test]
fn unusable_working_directories_are_refused() {
    in_every_environment(|environment| {
        let home = environment.user.home.to_str().unwrap().to_string();
        let closed = environment.directory.join("closed");
        environment.run_outside("mkdir project/closed && chmod 000 project/closed");
        std::fs::write(environment.directory.join("file"), "").unwrap();
        let file = environment.directory.join("file");
        let state = environment.runs_directory();
        environment.run_outside("mkdir -p state/guard/runs");
        let mut cases = vec![
            ("/no/such/folder", "No such file"),
            (file.to_str().unwrap(), "Not a directory"),
            ("/", "home directory"),
            (&home, "home directory"),
            (state.to_str().unwrap(), "records"),
        ];
        if environment.user.name != "root" {
            cases.push((closed.to_str().unwrap(), "Permission denied"));
        }
        for (folder, problem) in cases {
            let outcome = environment.run(&["--dir", folder], &["true"]);
            assert_eq!(
                (outcome.kind(), outcome.code),
                ("invalid_input", 125),
                "{} {folder}: {outcome:?}",
                environment.name()
            );
            let error = outcome.result["error"].as_str().unwrap();
            assert!(error.contains(folder) && error.contains(problem), "{}: {error}", environment.name());
        }
        // The working directory is removed while guard's caller is in it.
        let mut command = environment.command("sh");
        command
            .args(["-c", "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" run -- true"])
            .arg(guard_program());
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 2, "{}: {outcome:?}", environment.name());
        assert!(outcome.error.contains("current directory") && outcome.error.contains("--dir"), "{outcome}");
    });
}

/// guard must pass arguments and accept directories with any byte that a name can contain.
#[test]
fn arguments_and_directories_with_any_bytes_are_passed() {
    in_two_environments(|environment| {
        let words =
            ["", " ", "a b", "'", "\"", "\\", "$HOME", "*", "-n", "--json", "é", "\n", "\x01", "a\tb"];
        let mut command = vec!["printf", "<%s>"];
        command.extend(words);
        let outcome = environment.run(&[], &command);
        assert_eq!(
            outcome.printed(),
            words.map(|word| format!("<{word}>")).concat(),
            "{}",
            environment.name()
        );
        let strange = environment.directory.join("a b'\"\\$x\n,é:=");
        std::fs::create_dir(&strange).unwrap();
        std::fs::set_permissions(&strange, std::fs::Permissions::from_mode(0o777)).unwrap();
        let outcome = environment
            .run(&["--dir", strange.to_str().unwrap()], &["sh", "-c", "echo x > f && cat f && pwd"]);
        assert_eq!(outcome.printed(), format!("x\n{}\n", strange.display()), "{outcome}");
        let long = "x".repeat(120_000);
        let outcome = environment.run(&[], &["bash", "-c", "echo ${#1}", "bash", &long]);
        assert_eq!(outcome.printed(), "120000\n", "{}: {}", environment.name(), outcome.kind());
    });
}

/// If the process limit prevents guard from starting a part of itself, guard must end with an error and must not wait
/// forever.
#[test]
fn process_limit_too_low_for_guard_is_an_error() {
    in_every_environment(|environment| {
        let Some((user, _)) = environment.user.ids else { return };
        let mark = unique_mark();
        let mut kinds = std::collections::BTreeSet::new();
        for room in 1..=9 {
            let limit = threads_of(user) + room;
            let words = environment.guard_run_arguments(&["--json", "--env", &mark], &["/bin/true"]);
            let mut limited = environment.command("bash");
            limited.args(["-c", &format!("ulimit -u {limit}; exec \"$@\""), "bash"]);
            limited.arg(guard_program()).args(words);
            let outcome = environment.run_to_end(limited, b"");
            // Other processes of the user start and end meanwhile, so the result can vary. guard must end in time and
            // report how.
            assert!(
                outcome.took < Duration::from_secs(60),
                "{}, {room}: {:?}",
                environment.name(),
                outcome.took
            );
            assert!(outcome.code == 0 || outcome.result["error"].is_string(), "{room}: {outcome}");
            kinds.insert(outcome.code);
            expect_no_process_left(&mark, Duration::from_secs(5));
        }
        assert!(kinds.len() > 1, "{}: nothing was ever missing: {kinds:?}", environment.name());
    });
}
