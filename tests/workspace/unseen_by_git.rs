// slow
//! git does not see some files in a worktree: files in directories without permissions, below gitlinks, and in
//! repositories without commits. guard must neither delete such work nor overlook a repository there that the user's
//! next `git status` would enter.

use crate::support::{RunOutcome, TestEnvironment, guard_program, in_every_environment};

/// Python functions for the agents of these tests. `plant` creates a git directory without commits whose configuration
/// makes git execute a program.
const TOOLS: &str = "
import os, subprocess
def write(path, text):
    if os.path.dirname(path): os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, 'w').write(text)
def plant(path, marker):
    os.makedirs(path + '/.git/objects'); os.makedirs(path + '/.git/refs/heads')
    write(path + '/.git/HEAD', 'ref: refs/heads/main\\n')
    write(path + '/.git/config', '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = touch ' + marker + '\\n')
def git(*words): subprocess.check_call(['git', '-c', 'user.name=n', '-c', 'user.email=e', *words])
def gitlink(path):
    tip = subprocess.check_output(['git', 'rev-parse', 'HEAD'], text=True).strip()
    git('update-index', '--add', '--cacheinfo', '160000,' + tip + ',' + path)
    git('commit', '-qm', 'gitlink')
";

/// Runs guard with these words in the directory `at`, which is beside the working directory of the environment.
fn guard(environment: &TestEnvironment, at: &str, words: &[&str]) -> RunOutcome {
    let mut command = environment.command(guard_program());
    command.args(words).current_dir(environment.directory.with_file_name(at));
    environment.run_to_end(command, b"")
}

/// Runs a Python script as the agent of a run in the repository. Any git command is allowed.
fn run(environment: &TestEnvironment, at: &str, options: &[&str], script: &str) -> RunOutcome {
    let script = format!("{TOOLS}\n{script}");
    let namespaces = if environment.namespaces { "require" } else { "off" };
    let allowed = ["--allow", "git update-index", "--allow", "git commit", "--allow", "git rev-parse"];
    let words = [
        &["run", "--json", "--namespaces", namespaces][..],
        &allowed,
        options,
        &["--", "python3", "-c", &script],
    ];
    guard(environment, at, &words.concat())
}

/// Returns the path of the worktree whose name ends in `name`.
fn worktree(environment: &TestEnvironment, name: &str) -> String {
    let list = environment.run_outside("git -C repository worktree list --porcelain");
    let mut paths = list.lines().filter_map(|line| line.strip_prefix("worktree "));
    paths.find(|path| path.ends_with(name)).unwrap_or_default().to_string()
}

/// Returns the output of `grep -rl TEXT` in the runs' directories, that is, the files there that contain the text.
fn saved(environment: &TestEnvironment, text: &str) -> String {
    environment.run_outside(&format!("grep -rl '{text}' state/guard/runs/*/foreign || true"))
}

/// An agent edits committed files and removes the search permission of their directory. git then reports no change.
#[test]
fn changes_in_a_directory_without_search_permission_are_kept() {
    in_every_environment(|environment| {
        environment.run_outside(
            "cd repository && mkdir src && echo one > src/a && git add . \
             && git -c user.name=n -c user.email=e commit -qm src",
        );
        let script = "write('src/a', 'edited'); os.chmod('src', 0o644)";
        let outcome = run(environment, "repository", &["--name", "edits"], script);
        outcome.expect_code(0);
        let path = worktree(environment, "edits");
        assert!(!path.is_empty(), "{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        let text = environment.run_outside(&format!("cat '{path}/src/a'"));
        assert_eq!(text, "edited", "{}", environment.name());
    });
}

/// An agent commits a directory with its own repository, which git records as a gitlink. guard moves that repository's
/// git directory away, and then git does not see the files in the directory.
#[test]
fn files_below_a_gitlink_are_not_deleted() {
    in_every_environment(|environment| {
        let script = "plant('app', 'marker'); write('app/file', 'work below a gitlink'); gitlink('app')";
        let outcome = run(environment, "repository", &["--name", "link"], script);
        outcome.expect_code(0);
        let path = worktree(environment, "link");
        assert!(!path.is_empty(), "{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        let applied = guard(environment, "repository", &["apply", "--yes", "--json", "task/link"]);
        assert_ne!(applied.code, 0, "{}: {}", environment.name(), applied.error);
        let cleaned = guard(environment, "repository", &["worktree", "clean", "task/link"]);
        cleaned.expect_code(0);
        assert!(saved(environment, "work below a gitlink").contains("file"), "{}", environment.name());
    });
}

/// git cannot add a repository without commits, so guard must move it out of a worktree that it removes.
#[test]
fn nested_repository_without_commits_is_not_deleted() {
    in_every_environment(|environment| {
        let script = "plant('sub', 'marker'); write('sub/file', 'work in a repository'); write('new', 'x')";
        let outcome = run(environment, "repository", &["--name", "nested", "--discard"], script);
        outcome.expect_code(0);
        assert_eq!(worktree(environment, "nested"), "", "{}", environment.name());
        assert!(saved(environment, "work in a repository").contains("file"), "{}", environment.name());
    });
}

/// The path of a gitlink is so long that its `.git` has no valid absolute path. git reaches it in several steps.
#[test]
fn repository_at_a_too_long_path_is_found() {
    in_every_environment(|environment| {
        let marker = environment.temporary_directory().with_file_name("marker");
        let script = format!(
            "top = os.getcwd()
left = 4093 - len(top) - 1
parts = []
while left > 0:
    part = min(left, 250)
    if left - part == 1: part -= 1
    parts.append('d' * part); left -= part + 1
for part in parts: os.mkdir(part); os.chdir(part)
plant('.', '{}')
os.chdir(top)
gitlink('/'.join(parts))",
            marker.display()
        );
        // Plain git executes the planted program.
        environment.run_outside("git clone -q repository plain");
        let mut python = environment.command("python3");
        python.args(["-c", &format!("{TOOLS}\n{script}")]);
        let planted = python.current_dir(environment.directory.with_file_name("plain")).status().unwrap();
        assert!(planted.success());
        environment.run_outside("git -C plain status --short || true");
        let is_executed = std::fs::remove_file(&marker).is_ok();
        assert!(is_executed, "{}: git should execute the planted program", environment.name());

        let outcome = run(environment, "repository", &["--name", "long", "--keep"], &script);
        let path = worktree(environment, "long");
        assert!(!path.is_empty(), "{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        environment.run_outside(&format!("git -C '{path}' status --short || true"));
        assert!(!marker.exists(), "{}: {:#}", environment.name(), outcome.result);
    });
}

/// A run works in the user's own worktree, which has a submodule with a submodule in it. git enters both.
#[test]
fn repository_in_a_nested_submodule_is_found() {
    in_every_environment(|environment| {
        environment.run_outside(
            "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always
             id='-c user.name=n -c user.email=e'
             git init -q -b main lib && cd lib && git $id commit -q --allow-empty -m lib
             git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),inner && git $id commit -qm inner
             cd ../project && git submodule --quiet add ../lib lib && git $id commit -qm lib",
        );
        let marker = environment.temporary_directory().with_file_name("marker");
        let script = format!("plant('lib/inner', '{}')", marker.display());
        let outcome = run(environment, "project", &["--here"], &script);
        outcome.expect_code(0);
        environment.run_outside("git -C project status --short");
        assert!(!marker.exists(), "{}: {:#}", environment.name(), outcome.result);
        // The submodule itself must still work.
        environment.run_outside("git -C project/lib log -1");
    });
}

/// A FIFO named `.git` blocks every program that reads it.
#[test]
fn fifo_named_git_does_not_block_guard() {
    in_every_environment(|environment| {
        environment.run_outside("mkdir -p plain/below && mkfifo plain/.git");
        let directory = environment.directory.with_file_name("plain/below");
        let mut command = environment.command("timeout");
        command.args(["--signal=KILL", "60"]).arg(guard_program());
        command.args(["run", "--json", "--dir"]).arg(&directory).args(["--", "true"]);
        let output = command.output().unwrap();
        assert_ne!(output.status.code(), None, "{}: {output:?}", environment.name());
        assert_ne!(output.status.code(), Some(137), "{}: {output:?}", environment.name());
    });
}
