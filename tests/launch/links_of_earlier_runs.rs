// slow
//! An earlier run has put symbolic links, `#!` lines and other pointers to private files into the user's checkout. They
//! must not give a later run access to these files.

use std::path::{Path, PathBuf};

use crate::support::{RunOutcome, TestEnvironment, in_every_environment};

/// Files of the user outside every repository and outside the home directory. No run of these tests may read or change
/// them.
struct PrivateFiles {
    root: PathBuf,
    directory: PathBuf,
    letter: PathBuf,
}

const SECRET: &str = "the text of a private letter";

impl PrivateFiles {
    fn new(environment: &TestEnvironment) -> Self {
        environment.run_outside(&format!(
            "mkdir -p private/bin private/lib && echo '{SECRET}' > private/letter && \
             printf '#!/bin/sh\\ncat \"$(dirname \"$0\")/../letter\"\\n' > private/bin/show && chmod +x private/bin/show"
        ));
        let root = environment.directory.parent().unwrap().to_path_buf();
        let directory = root.join("private");
        Self { root, letter: directory.join("letter"), directory }
    }

    /// Fails if the outcome of a run contains the private text, or if the private files have changed.
    #[track_caller]
    fn expect_untouched(&self, outcome: &RunOutcome, what: &str) {
        let printed =
            format!("{}{}{}", String::from_utf8_lossy(&outcome.output), outcome.result, outcome.error);
        assert!(!printed.contains(SECRET), "{what}: {outcome}");
        assert_eq!(
            std::fs::read_to_string(&self.letter).unwrap(),
            format!("{SECRET}\n"),
            "{what}: {outcome}"
        );
    }
}

/// Runs a script in place in the environment's working directory, as the earlier run.
#[track_caller]
fn plant(environment: &TestEnvironment, script: &str) {
    let outcome = environment.run_bash(script);
    assert_eq!(outcome.result["success"], true, "{script}\n{outcome}");
}

/// Runs a command in the environment with these directories at the start of PATH.
fn run_with_path(
    environment: &TestEnvironment,
    path: &Path,
    options: &[&str],
    command: &[&str],
) -> RunOutcome {
    let mut all = vec!["--json"];
    all.extend(options);
    let mut guard = environment.guard_run(&all, command);
    guard.env("PATH", format!("{}:{}", path.display(), environment.user.path));
    environment.run_to_end(guard, b"")
}

fn notes(outcome: &RunOutcome) -> String {
    let events = outcome.events().into_iter().filter(|event| event["event_type"] == "note");
    events.map(|event| format!("{}\n", event["message"].as_str().unwrap_or_default())).collect()
}

#[test]
fn path_directory_replaced_by_a_link_is_not_granted() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        let bin = environment.directory.join("bin");
        environment.run_outside("mkdir project/bin");
        plant(environment, &format!("rmdir bin && ln -s {} bin", private.directory.display()));
        let read = format!("cat {}", private.letter.display());
        for options in [&[][..], &["--name", "next", "--discard"]] {
            let outcome = run_with_path(environment, &bin, options, &["sh", "-c", &read]);
            private.expect_untouched(&outcome, "PATH");
            let notes = notes(&outcome);
            assert!(notes.contains(&format!("{} is a symbolic link", bin.display())), "{notes}\n{outcome}");
        }
    });
}

#[test]
fn link_in_a_plain_directory_of_an_earlier_run_is_not_followed() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        let plain = private.root.join("plain");
        environment.run_outside("mkdir -p plain/bin");
        let plain_text = plain.display().to_string();
        let script = format!("rmdir bin && ln -s {} bin", private.directory.display());
        let outcome = environment.run(&["--dir", &plain_text], &["bash", "-c", &script]);
        assert_eq!(outcome.result["success"], true, "{outcome}");
        let read = format!("cat {}", private.letter.display());
        let outcome = run_with_path(environment, &plain.join("bin"), &[], &["sh", "-c", &read]);
        private.expect_untouched(&outcome, "PATH");
        assert!(notes(&outcome).contains("is a symbolic link"), "{outcome}");
    });
}

/// The user moves a directory in which a run worked, and removes the `.git` of a checkout on which a run worked.
#[test]
fn directory_of_an_earlier_run_is_recognised_after_a_move() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        environment.run_outside("mkdir -p plain/bin next");
        let path = |name: &str| private.root.join(name).display().to_string();
        let script = format!("rmdir bin && ln -s {} bin", private.directory.display());
        let outcome = environment.run(&["--dir", &path("plain")], &["bash", "-c", &script]);
        assert_eq!(outcome.result["success"], true, "{outcome}");
        let options = ["--dir", &path("repository"), "--name", "one", "--discard"];
        environment.run(&options, &["true"]).expect_code(0);
        environment.run_outside(&format!(
            "mv plain moved && cd repository && mv .git ../git && ln -s {} bin",
            private.directory.display()
        ));
        let read = format!("cat {}", private.letter.display());
        for directory in ["moved/bin", "repository/bin"] {
            let options = ["--dir", &path("next")];
            let directory = private.root.join(directory);
            let outcome = run_with_path(environment, &directory, &options, &["sh", "-c", &read]);
            private.expect_untouched(&outcome, &directory.display().to_string());
            assert!(notes(&outcome).contains("is a symbolic link"), "{outcome}");
        }
    });
}

/// guard takes a clone in a hidden directory of the home directory for installed tools, until a run works on it.
#[test]
fn dotfiles_repository_is_not_trusted_after_a_run_on_it() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        environment.run_outside(&format!(
            "mkdir -p home next && git clone -q repository home/.dotfiles && ln -s {} home/.dotfiles/bin",
            private.directory.display()
        ));
        let path = |name: &str| private.root.join(name).display().to_string();
        let dotfiles = path("home/.dotfiles");
        let run = |options: &[&str], command: &[&str]| {
            let mut all = vec!["--json"];
            all.extend(options);
            let mut guard = environment.guard_run(&all, command);
            guard.env("HOME", path("home")).env("PATH", format!("{dotfiles}/bin:{}", environment.user.path));
            environment.run_to_end(guard, b"")
        };
        let letter = private.letter.display().to_string();
        let outcome = run(&["--dir", &path("next")], &["cat", &letter]);
        assert_eq!(outcome.printed(), format!("{SECRET}\n"), "the user's own link: {outcome}");
        run(&["--dir", &dotfiles, "--name", "one", "--discard"], &["true"]).expect_code(0);
        let outcome = run(&["--dir", &path("next")], &["cat", &letter]);
        private.expect_untouched(&outcome, "the dotfiles");
        assert!(notes(&outcome).contains("is a symbolic link"), "{outcome}");
    });
}

/// The program on the command line is a link to a private program, a script that names a private interpreter, or part of
/// a virtual environment that names a private installation.
#[test]
fn program_of_an_earlier_run_grants_nothing_outside_its_checkout() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        let outside = private.directory.display();
        let letter = private.letter.display();
        plant(
            environment,
            &format!(
                "mkdir -p tools env/bin && ln -s {outside}/bin/show tools/link && \
                 printf '#!{outside}/bin/show\\n' > tools/script && \
                 printf 'home = {outside}/bin\\n' > env/pyvenv.cfg && \
                 printf '#!/bin/sh\\ncat {letter}\\n' > env/bin/program && chmod +x tools/script env/bin/program && \
                 ln -s {outside} tools/private"
            ),
        );
        for program in ["tools/link", "tools/script", "env/bin/program", "tools/private/bin/show"] {
            let program = environment.directory.join(program).display().to_string();
            // The run does not write to the checkout that contains the program.
            let outcome = environment.run(&["--name", "next", "--discard"], &[&program]);
            private.expect_untouched(&outcome, &program);
        }
        environment.run_outside("ln -s /usr/bin/env project/env/bin/python");
        let python = environment.directory.join("env/bin/python").display().to_string();
        let outcome = environment.run(&["--name", "next", "--discard"], &[&python, "echo", "works"]);
        assert_eq!(outcome.printed(), "works\n", "a link to a program of the system works: {outcome}");
    });
}

/// What an earlier run adds beside a directory of PATH or a program must not give a run the files of the checkout that git
/// ignores, such as keys.
#[test]
fn files_of_an_earlier_run_do_not_widen_a_grant() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        let project = environment.directory.display().to_string();
        environment.run_outside(&format!(
            "cd project && mkdir -p bin lib tools/bin tools/lib && echo '{SECRET}' > .env && cp .env tools/key && \
             printf '#!/bin/sh\\ncat {project}/.env {project}/tools/key\\n' | tee bin/tool > tools/bin/tool && \
             chmod +x bin/tool tools/bin/tool && ln -s . all"
        ));
        let next = ["--name", "next", "--discard"];
        for planted in ["true", "echo '{}' > package.json", "echo 'home = /usr/bin' > pyvenv.cfg"] {
            plant(environment, planted);
            for directory in ["bin", "tools/bin"] {
                let directory = environment.directory.join(directory);
                let outcome = run_with_path(environment, &directory, &next, &["tool"]);
                private.expect_untouched(&outcome, planted);
                let tool = directory.join("tool").display().to_string();
                private.expect_untouched(&environment.run(&next, &[&tool]), planted);
            }
        }
        let outcome = run_with_path(environment, &environment.directory.join("all"), &next, &["bin/tool"]);
        private.expect_untouched(&outcome, "a link to the checkout");
    });
}

#[test]
fn granted_path_replaced_by_a_link_is_refused() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        plant(
            environment,
            &format!(
                "ln -s {} out && mkdir real && ln -s real inside && ln -s /usr/share system",
                private.directory.display()
            ),
        );
        let path = |name: &str| environment.directory.join(name).display().to_string();
        let script = format!("cat {0}; echo changed > {0}", private.letter.display());
        for option in ["--read", "--write"] {
            for name in ["out", "out/letter"] {
                let outcome = environment.run(&[option, &path(name)], &["sh", "-c", &script]);
                private.expect_untouched(&outcome, option);
                let wanted = format!("{option} {}: {} is a symbolic link to", path(name), path("out"));
                assert!(
                    outcome.code == 125 && outcome.result.to_string().contains(&wanted),
                    "{wanted}: {outcome}"
                );
            }
        }
        for name in ["inside", "system"] {
            let outcome = environment.run(&["--read", &path(name)], &["true"]);
            assert_eq!(outcome.code, 0, "a link that adds no grant is accepted: {outcome}");
        }
    });
}

#[test]
fn policy_path_replaced_by_a_link_is_left_out() {
    in_every_environment(|environment| {
        let private = PrivateFiles::new(environment);
        plant(environment, &format!("ln -s {} out", private.directory.display()));
        environment.run_outside(
            "mkdir policies && printf 'version = 1\nname = \"mine\"\\nextends = \"strict\"\\n[filesystem]\\nread = [\"{system}\", \"{home}\", \"{tmp}\", \"{worktree}/out\"]\\n\
             write = [\"{home}\", \"{tmp}\", \"{worktree}/out\"]\\n' > policies/mine.toml",
        );
        let policy = private.root.join("policies/mine.toml").display().to_string();
        let script = format!("cat {0}; echo changed > {0}", private.letter.display());
        let outcome = environment.run(&["--policy", &policy], &["sh", "-c", &script]);
        private.expect_untouched(&outcome, "policy");
        assert!(notes(&outcome).contains("is a symbolic link to"), "{}{outcome}", notes(&outcome));
    });
}

/// guard itself starts git. It must not start one that an earlier run left where links lead to it: in saved histories, or
/// in a worktree that guard kept.
#[test]
fn git_program_left_by_an_earlier_run_is_not_started() {
    in_every_environment(|environment| {
        let root = environment.directory.parent().unwrap();
        let marker = root.join("marker");
        environment.run_outside(&format!(
            "mkdir -p state/guard/saved/x kept/.worktrees/one/bin plain/bin project/.venv
             printf '#!/bin/sh\\necho \"$0\" >> {}\\nexit 1\\n' > state/guard/saved/x/git
             chmod +x state/guard/saved/x/git
             cp state/guard/saved/x/git kept/.worktrees/one/bin/git
             ln -s ../../state/guard/saved/x project/.venv/bin",
            marker.display()
        ));
        let plain = root.join("plain").display().to_string();
        let copy = format!("cp {}/state/guard/saved/x/git bin/git", root.display());
        let outcome = environment.run(
            &["--dir", &plain],
            &["bash", "-c", "printf '#!/bin/sh\\nexit 1' > bin/git; chmod +x bin/git"],
        );
        assert_eq!(outcome.result["success"], true, "{outcome}");
        environment.run_outside(&format!("cd plain && {copy}"));
        for place in ["project/.venv/bin", "state/guard/saved/x", "kept/.worktrees/one/bin", "plain/bin"] {
            let options = ["--name", "next", "--discard"];
            let outcome = run_with_path(environment, &root.join(place), &options, &["true"]);
            let ran = std::fs::read_to_string(&marker).unwrap_or_default();
            assert_eq!((outcome.code, &*ran), (0, ""), "{place}: {outcome}");
        }
    });
}
