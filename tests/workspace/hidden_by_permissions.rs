// slow
//! An agent removes permissions from files and directories, so that guard cannot see what git would execute. An ordinary
//! user's guard must report the place or refuse the run, as root's guard does.

use crate::support::{RunOutcome, TestEnvironment, guard_program, in_every_environment};

/// Python functions that plant repositories. git executes a program in each of them when it looks for changed files.
const TOOLS: &str = "
import os
def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, 'w').write(text); os.chmod(path, mode)
def plant(path, marker):
    os.makedirs(path + '/.git/objects'); os.makedirs(path + '/.git/refs/heads')
    write(path + '/.git/HEAD', 'ref: refs/heads/main\\n')
    write(path + '/.git/config', '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = touch ' + marker + '\\n')
";

/// Runs a Python script under guard in the directory `projects`, which is not in a repository.
fn run_in_projects(environment: &TestEnvironment, options: &[&str], script: &str) -> RunOutcome {
    let projects = environment.directory.with_file_name("projects");
    let options = [&["--dir", projects.to_str().unwrap()], options].concat();
    environment.run(&options, &["python3", "-c", &format!("{TOOLS}\n{script}")])
}

/// Runs a Python script under guard in the repository `at`, which is beside the working directory of the environment.
fn run(environment: &TestEnvironment, at: &str, options: &[&str], script: &str) -> RunOutcome {
    let script = format!("{TOOLS}\n{script}");
    let namespaces = if environment.namespaces { "require" } else { "off" };
    let mut command = environment.command(guard_program());
    command.args(["run", "--json", "--namespaces", namespaces]).args(options);
    command.args(["--", "python3", "-c", &script]).current_dir(environment.directory.with_file_name(at));
    environment.run_to_end(command, b"")
}

/// Returns the kinds of the findings at a path.
fn kinds(outcome: &RunOutcome, path: &str) -> Vec<String> {
    let findings = outcome.result["findings"].as_array().cloned().unwrap_or_default();
    let at_path = findings.iter().filter(|finding| finding["path"].as_str() == Some(path));
    at_path.filter_map(|finding| finding["kind"].as_str().map(str::to_string)).collect()
}

/// An agent plants a repository in the directory of a submodule, and removes all permissions of the directory. guard
/// restores permissions in the worktree at the end of the run. It must not overlook the repository before that, because
/// the user's `git status` would execute the program that it names.
#[test]
fn repository_in_an_inaccessible_submodule_is_found() {
    in_every_environment(|environment| {
        environment.run_outside(
            "cd repository && git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub \
             && git -c user.name=n -c user.email=e commit -qm submodule",
        );
        let marker = environment.temporary_directory().with_file_name("marker");
        // The attack works on a plain clone.
        let script = format!("{TOOLS}\nplant('plain/sub', '{}')", marker.display());
        environment.run_outside("git clone -q repository plain");
        let mut python = environment.command("python3");
        let planted = python.args(["-c", &script]).current_dir(marker.parent().unwrap()).status().unwrap();
        assert!(planted.success());
        environment.run_outside("git -C plain status --short");
        assert!(marker.exists(), "git should execute the planted program");
        std::fs::remove_file(&marker).unwrap();

        let script = format!(
            "plant('sub', '{}'); os.chmod('sub', 0); write('closed/file', ''); os.chmod('closed', 0)",
            marker.display()
        );
        let outcome = run(environment, "repository", &["--name", "closed", "--keep"], &script);
        outcome.expect_code(0);
        environment.run_outside(
            "cd \"$(git -C repository worktree list --porcelain | sed -n 's/^worktree \\(.*closed\\)$/\\1/p')\" && git status --short",
        );
        assert!(!marker.exists(), "{}: {:#}", environment.name(), outcome.result);
        let moved = outcome.result["findings"].to_string();
        assert!(moved.contains("sub/.git"), "{}: {moved}", environment.name());
    });
}

#[test]
fn repositories_in_inaccessible_directories_are_reported() {
    in_every_environment(|environment| {
        let script = "plant('outer/inner', 'marker'); os.chmod('outer', 0)\n\
                      plant('listed', 'marker'); os.chmod('listed/.git', 0o311)\n\
                      plant('unsearchable', 'marker'); os.chmod('unsearchable', 0o600)\n\
                      write('hooked/.git/hooks/pre-commit', '', 0o755); write('hooked/.git/HEAD', '')\n\
                      os.chmod('hooked/.git/hooks', 0o311)";
        let outcome = run(environment, "repository", &["--name", "closed", "--keep"], script);
        outcome.expect_code(0);
        for places in [&["outer", "outer/inner"][..], &["listed"], &["unsearchable"], &["hooked"]] {
            let found: Vec<String> = places.iter().flat_map(|place| kinds(&outcome, place)).collect();
            let is_reported = |kind: &String| matches!(kind.as_str(), "danger.repository" | "danger.unseen");
            assert!(
                found.iter().any(is_reported),
                "{}, {places:?}: {:#}",
                environment.name(),
                outcome.result
            );
        }
    });
}

/// The user starts a run in a repository that an attacker has made. Its objects are those of another repository, and its
/// git directory cannot be listed, so that guard cannot see the links that lead there.
#[test]
fn git_directory_that_cannot_be_listed_is_refused() {
    in_every_environment(|environment| {
        environment.run_outside(
            "git clone -q repository secret && git clone -q repository planted && cd planted/.git \
             && rm -rf objects refs packed-refs && ln -s ../../secret/.git/objects ../../secret/.git/refs . && chmod 311 .",
        );
        let outcome = run(environment, "planted", &["--name", "planted"], "print(1)");
        let error = outcome.result["error"].to_string() + &outcome.error;
        assert!(
            error.contains("guard cannot list") || error.contains("is a symbolic link"),
            "{}: {error}",
            environment.name()
        );
        assert!(!environment.directory.with_file_name("planted").join(".worktrees").exists());
    });
}

/// A directory that can be listed but not entered may contain a repository. The run could make it accessible and plant
/// hooks in it.
#[test]
fn repository_in_a_directory_without_search_permission_is_found() {
    in_every_environment(|environment| {
        environment.run_outside("mkdir projects && git init -q projects/mine && chmod 600 projects/mine");
        let script = "os.chmod('mine', 0o700); write('mine/.git/hooks/pre-commit', '', 0o755)";
        let outcome = run_in_projects(environment, &[], script);
        environment.run_outside("chmod 700 projects/mine");
        let hook = environment.directory.with_file_name("projects").join("mine/.git/hooks/pre-commit");
        assert!(!hook.exists(), "{}: {:#}", environment.name(), outcome.result);
    });
}

/// A run that may change a repository adds a hook in a new directory that guard cannot list. guard must report the
/// change. With namespaces, the repository is mounted read-only.
#[test]
fn new_hooks_directory_that_cannot_be_listed_is_reported() {
    in_every_environment(|environment| {
        if environment.namespaces {
            return;
        }
        environment
            .run_outside("mkdir projects && git init -q projects/mine && rm -rf projects/mine/.git/hooks");
        let script = "write('mine/.git/hooks/pre-commit', '', 0o755); os.chmod('mine/.git/hooks', 0o311)";
        let outcome = run_in_projects(environment, &["--allow-unprotected-repositories"], script);
        outcome.expect_code(0);
        let findings = outcome.result["findings"].to_string();
        assert!(findings.contains("hooks"), "{}: {:#}", environment.name(), outcome.result);
    });
}
