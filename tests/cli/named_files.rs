// slow
//! Files that the user names on the command line, in a directory in which an earlier run may have put a pipe or a link in
//! their place.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::support::{UserShell, guard_program, in_every_environment, is_root};

/// A program that opens a pipe waits until another one writes to it.
#[test]
fn pipe_left_by_a_run_is_refused_at_once() {
    let user = UserShell::new("named-pipes");
    user.types("mkfifo pipe && echo ls > list && guard policy audit list --snapshot snapshot --update");
    for command in [
        "guard batch submit --no-worker pipe",
        "guard policy audit pipe",
        "guard policy audit list --snapshot pipe",
        "guard exec --request pipe",
    ] {
        let (printed, code) = user.ends(&format!("timeout 30 {command}"));
        assert!(code != 0 && code != 124, "{command}: {code}: {printed}");
        assert!(printed.contains("not a regular file"), "{command}: {printed}");
    }
    // Pipes of the user.
    user.types("guard policy audit <(echo ls) && guard policy audit list --snapshot <(cat snapshot)");
    user.types("echo ls | guard policy audit /dev/stdin && guard policy audit /dev/stdin < list");
    user.types("mkfifo ~/own && { echo ls > ~/own & } && timeout 30 guard policy audit ~/own");
    let tasks = r#"[{"task_id": "1", "type": "echo", "parameters": {}}]"#;
    user.sees_with_code(&format!("guard batch submit --no-worker <(echo '{tasks}')"), 0, &["response_id"]);
}

#[test]
fn files_named_by_options_are_not_reached_through_links_of_a_run() {
    in_every_environment(|environment| {
        let root = environment.directory.parent().unwrap();
        let private = root.join("private");
        environment.run_outside(&format!(
            "mkdir private own && echo ls > private/list && ln -s {} own/link",
            private.display()
        ));
        let task = r#"[{"task_id": "1", "type": "echo", "parameters": {}, "directory": "link"}]"#;
        environment.run_outside(&format!("echo '{task}' > project/tasks.json"));
        let planted = environment.run_bash(&format!("ln -s {} link", private.display()));
        assert_eq!(planted.result["success"], true, "{planted}");
        for arguments in [
            "-v --log-file link/log policy list",
            "policy audit link/list",
            "policy audit tracked --snapshot link/snapshot --update",
            "research --output link/report question",
            "learn --out link/policy.toml -- true",
            "man --out link/man",
            "batch submit --no-worker --dir link tasks.json",
            "batch submit --no-worker tasks.json",
            "chat --once hi --cd link --agent generic -- true",
        ] {
            let mut command = environment.command(guard_program());
            command.args(arguments.split(' '));
            let outcome = environment.run_to_end(command, b"");
            assert!(outcome.code != 0, "{arguments}: {outcome}");
            assert!(outcome.error.contains("is a symbolic link"), "{arguments}: {outcome}");
        }
        assert_eq!(environment.run_outside("ls private"), "list\n", "{}", environment.name());
        // A link of the user, in a directory in which no run has worked.
        let mut command = environment.command(guard_program());
        command.arg("-v").arg("--log-file").arg(root.join("own/link/log")).args(["policy", "list"]);
        environment.run_to_end(command, b"").expect_code(0);
        assert_eq!(environment.run_outside("ls private"), "list\nlog\n", "{}", environment.name());
    });
}

/// git waits for a writer of a FIFO in place of a file that it reads.
#[test]
fn fifo_in_place_of_a_git_file_is_reported_at_once() {
    in_every_environment(|environment| {
        for name in [".gitattributes", ".gitignore", ".gitmodules"] {
            let planted = environment.run_bash(&format!("mkfifo {name}"));
            assert_eq!(planted.result["success"], true, "{planted}");
            let started = Instant::now();
            let outcome = environment.run(&["--name", "next", "--discard"], &["true"]);
            assert!(outcome.code == 125 && outcome.result.to_string().contains(name), "{outcome}");
            assert!(
                outcome.error.contains(" is a FIFO") || outcome.result.to_string().contains(" is a FIFO")
            );
            environment.run(&[], &["true"]).expect_code(0);
            assert!(started.elapsed() < Duration::from_secs(9), "{name}: {:?}", started.elapsed());
            environment.run_outside(&format!("rm project/{name}"));
        }
        environment.run(&["--name", "next", "--discard"], &["true"]).expect_code(0);
    });
}

#[test]
fn umask_of_the_user_holds_in_a_run() {
    in_every_environment(|environment| {
        for (umask, mode) in [("0077", 0o600), ("0002", 0o664), ("0022", 0o644)] {
            let script = "umask; rm -f made; echo text > made";
            let mut command = environment.command("bash");
            command.args(["-c", &format!("umask {umask}; exec \"$@\""), "bash"]).arg(guard_program());
            command.args(environment.guard_run_arguments(&["--json"], &["sh", "-c", script]));
            let outcome = environment.run_to_end(command, b"");
            assert_eq!(outcome.printed(), format!("{umask}\n"), "{outcome}");
            let made = environment.directory.join("made").metadata().unwrap();
            assert_eq!(made.mode() & 0o777, mode, "{outcome}");
        }
    });
}

#[test]
fn unusable_directory_is_reported_with_the_next_step() {
    let user = UserShell::new("named-directories");
    for path in ["..", "../..", ".", "/"] {
        user.sees_with_code(
            &format!("guard learn --out {path} -- true"),
            2,
            &["the path names a directory, not a file", "with --out FILE"],
        );
    }
    in_every_environment(|environment| {
        // Root may open every directory.
        if environment.user.ids.is_none() && is_root() {
            return;
        }
        environment.run_outside("mkdir -p closed/below && chmod 0 closed");
        let closed = environment.directory.parent().unwrap().join("closed");
        for directory in [closed.clone(), closed.join("below")] {
            let outcome = environment.run(&["--dir", &directory.display().to_string()], &["true"]);
            let said = outcome.result.to_string();
            assert!(outcome.code == 125 && said.contains("change the mode or the owner"), "{outcome}");
        }
        let mut learn = environment.command(guard_program());
        learn.arg("learn").arg("--out").arg(closed.join("policy.toml")).args(["--", "true"]);
        let outcome = environment.run_to_end(learn, b"");
        assert!(outcome.error.contains("hint: change the mode or the owner"), "{outcome}");
    });
}

/// guard copies files into the private home directory before a run, and out of it afterwards.
#[test]
fn saved_home_is_not_reached_through_links_of_a_run() {
    in_every_environment(|environment| {
        environment.run_outside("mkdir -p private/home project/saved && echo letter > private/home/letter");
        let private = environment.directory.parent().unwrap().join("private");
        let saved = environment.directory.join("saved/home").display().to_string();
        let options = ["--home-from", &saved, "--home-to", &saved, "--home-keep", "letter"];
        let link = format!("rm -r saved && ln -s {} saved", private.display());
        environment.run(&options, &["sh", "-c", "echo first > ~/letter"]).expect_code(0);
        let outcome =
            environment.run(&options, &["sh", "-c", &format!("cat ~/letter; echo x > ~/letter; {link}")]);
        assert_eq!(outcome.printed(), "first\n", "{outcome}");
        assert_eq!(environment.run_outside("cat private/home/letter"), "letter\n", "{outcome}");
        for options in [&options[..], &["--home-from", &saved]] {
            let outcome = environment.run(options, &["sh", "-c", "cat ~/letter"]);
            assert!(outcome.code != 0 && !outcome.printed().contains("letter\n"), "{outcome}");
            assert!(outcome.result.to_string().contains("is a symbolic link to"), "{outcome}");
        }
    });
}
