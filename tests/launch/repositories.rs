// slow
//! A run may write to a directory with repositories. It must not be able to choose what the user's next git command
//! there executes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::support::{TestEnvironment, in_every_environment};

/// Python functions for the attacks: file operations that ignore refusals.
const TOOLS: &str = "
import os, shutil
def attempt(function):
    def tried(*words):
        try: return function(*words)
        except (OSError, shutil.Error): pass
    return tried
@attempt
def append(path, text): open(path, 'a').write(text)
@attempt
def write(path, text, mode=0o644): open(path, 'w').write(text); os.chmod(path, mode)
@attempt
def copy(old, new): shutil.copytree(old, new, symlinks=True)
@attempt
def remove(path): shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
move, makedirs, chmod = attempt(os.rename), attempt(os.makedirs), attempt(os.chmod)
link, pipe = attempt(os.symlink), attempt(os.mkfifo)
";

/// A directory with repositories of every kind, and the marker file of the program that the attack tries to make git
/// start.
struct Projects {
    directory: PathBuf,
    marker: PathBuf,
}

impl Projects {
    fn new(environment: &TestEnvironment) -> Self {
        environment.run_outside(
            "mkdir projects && cd projects && git init -q -b main one && cd one && echo a > a && git add a \
             && git -c user.name=n -c user.email=e commit -qm first && git worktree add -q -b side ../linked && cd .. \
             && mkdir -p deep/group && git clone -q one deep/group/two && git clone -q --bare one three.git \
             && git init -q --separate-git-dir=store four && mkdir plain && echo text > plain/file",
        );
        let root = environment.runs_directory().ancestors().nth(3).unwrap().to_path_buf();
        Self { directory: root.join("projects"), marker: root.join("marker") }
    }

    /// Runs git in every repository as the user would. Returns true if git executed a planted program.
    fn is_executed_by_git(&self, environment: &TestEnvironment) -> bool {
        for place in ["one", "linked", "deep/group/two", "three.git", "four"] {
            let mut git = environment.command("git");
            let status = git.args(["status", "--short"]).current_dir(self.directory.join(place)).output();
            drop(status);
        }
        self.marker.exists()
    }

    /// Returns a program that tries to make git execute something in every repository. It uses only file operations, so
    /// the rules about commands do not apply.
    fn attack(&self) -> String {
        let marker = self.marker.display();
        format!(
            "{TOOLS}
def plant(path): append(path, '[core]\\n\\tfsmonitor = touch {marker}; false\\n')
for at in ['one/.git', 'deep/group/two/.git', 'three.git', 'store']: plant(at + '/config')
write('one/.git/hooks/post-index-change', '#!/bin/sh\\ntouch {marker}\\n', 0o755)
copy('one/.git', 'evil'); plant('evil/config')
for at in ['linked/.git', 'four/.git']:
    write(at, 'gitdir: ' + os.getcwd() + '/evil\\n'); remove(at); write(at, 'gitdir: ' + os.getcwd() + '/evil\\n')
remove('one/.git/config'); move('evil/config', 'one/.git/config'); move('one/.git', 'one/x'); move('evil', 'one/.git')
move('one', 'one.bak'); copy('one.bak', 'one'); plant('one/.git/config')
move('deep/group', 'deep/moved'); copy('deep/moved', 'deep/group'); plant('deep/group/two/.git/config')
move('deep', 'deeper'); copy('deeper', 'deep'); plant('deep/group/two/.git/config')
move('three.git', '3.git'); copy('3.git', 'three.git'); plant('three.git/config')
write('plain/file', 'changed\\n'); write('one/a', 'changed\\n')"
        )
    }
}

/// Returns each `.git` and bare repository with its inode and its configuration.
fn identities(directory: &Path) -> Vec<(String, u64, Option<Vec<u8>>)> {
    let places = ["one/.git", "linked/.git", "deep/group/two/.git", "three.git", "four/.git", "store"];
    let of = |place: &&str| {
        let path = directory.join(place);
        let inode = path.symlink_metadata().map_or(0, |found| found.ino());
        let text = std::fs::read(if path.is_dir() { path.join("config") } else { path }).ok();
        ((*place).to_string(), inode, text)
    };
    places.iter().map(of).collect()
}

fn kinds(result: &serde_json::Value) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let findings = result["findings"].as_array().cloned().unwrap_or_default();
    findings.iter().map(|finding| (text(&finding["kind"]), text(&finding["path"]))).collect()
}

#[test]
fn repositories_below_the_working_directory_are_protected() {
    in_every_environment(|environment| {
        let projects = Projects::new(environment);
        let before = identities(&projects.directory);
        let directory = projects.directory.to_str().unwrap();
        let outcome = environment.run(&["--dir", directory], &["python3", "-c", &projects.attack()]);
        let problem = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert!(!projects.is_executed_by_git(environment), "{}", problem());
        assert_eq!(identities(&projects.directory), before, "{}", problem());
        let text = std::fs::read_to_string(projects.directory.join("plain/file")).unwrap();
        if environment.namespaces {
            assert_eq!(outcome.code, 0, "{}", problem());
            assert_eq!(text, "changed\n", "the rest stays writable: {}", problem());
            assert_eq!(std::fs::read(projects.directory.join("one/a")).unwrap(), b"changed\n");
        } else {
            assert_eq!((outcome.code, outcome.kind()), (125, "sandbox_unavailable"), "{}", problem());
            assert_eq!(text, "text\n", "nothing ran: {}", problem());
            let error = outcome.result["error"].as_str().unwrap_or_default();
            assert!(
                error.contains("projects/deep/group/two/.git") && error.contains("3 more"),
                "{}",
                problem()
            );
            let mut plain = environment.guard_run(&["--dir", directory], &["true"]);
            let words = String::from_utf8_lossy(&plain.output().unwrap().stderr).into_owned();
            assert!(words.contains("--allow-unprotected-repositories"), "{words}");
        }
    });
}

#[test]
fn changes_to_unprotected_repositories_are_reported() {
    in_every_environment(|environment| {
        let projects = Projects::new(environment);
        let directory = projects.directory.to_str().unwrap();
        let script = format!(
            "{TOOLS}
append('one/.git/config', '[core]\\nfsmonitor = evil\\n')
move('deep/group/two', 'deep/two'); remove('three.git')
copy('store', 'store.new'); remove('store'); move('store.new', 'store')
write('linked/.git', 'gitdir: /nowhere\\n')
for at in ['fresh/.git', 'fresh/bare']:
    makedirs(at + '/objects'); makedirs(at + '/refs'); write(at + '/HEAD', 'ref: refs/heads/x\\n')
write('fresh/.git/config', '[core]\\nfsmonitor = evil\\n')"
        );
        let options = ["--dir", directory, "--allow-unprotected-repositories"];
        let outcome = environment.run(&options, &["python3", "-c", &script]);
        let problem = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(outcome.code, 0, "{}", problem());
        let found = kinds(&outcome.result);
        let has = |kind: &str, path: &str| found.iter().any(|(k, p)| k == kind && p == path);
        assert!(has("danger.repository", "fresh"), "{}", problem());
        assert!(has("danger.repository", "fresh/bare"), "{}", problem());
        let changed = [
            ("repository.changed", "one/.git"),
            ("repository.moved", "deep/group/two/.git"),
            ("repository.removed", "three.git"),
            ("repository.replaced", "store"),
            ("repository.changed", "linked/.git"),
        ];
        for (kind, path) in changed {
            // With namespaces guard protects these files, so they must be unchanged.
            assert_eq!(has(kind, path), !environment.namespaces, "{kind} {path}: {}", problem());
        }
        let settings = outcome.result["findings"].to_string();
        assert!(settings.contains("core.fsmonitor"), "{}", problem());
    });
}

#[test]
fn directories_that_cannot_be_searched_or_protected_are_refused() {
    in_every_environment(|environment| {
        let projects = Projects::new(environment);
        environment.run_outside("ln -s one/.git projects/plain/.git");
        let directory = projects.directory.to_str().unwrap();
        let outcome = environment.run(&["--dir", directory], &["touch", "ran"]);
        let problem = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(outcome.code, 125, "{}", problem());
        assert!(!projects.directory.join("ran").exists());
        assert!(outcome.result["error"].to_string().contains("plain/.git"), "{}", problem());
        // The working directory itself is a bare repository.
        let bare = projects.directory.join("three.git");
        let outcome = environment.run(&["--dir", bare.to_str().unwrap()], &["touch", "ran"]);
        outcome.expect_code(125);
        assert!(!bare.join("ran").exists());
        // A repository is nested deeper than guard searches.
        environment.run_outside(
            "mkdir empty && cd empty && for i in $(seq 140); do mkdir d; cd d; done; git init -q .",
        );
        let empty = projects.directory.with_file_name("empty");
        let outcome = environment.run(&["--dir", empty.to_str().unwrap()], &["touch", "ran"]);
        outcome.expect_code(125);
        let error = outcome.result["error"].as_str().unwrap_or_default();
        assert!(error.contains("levels deep"), "{error}");
        let options = ["--dir", empty.to_str().unwrap(), "--allow-unprotected-repositories"];
        let outcome = environment.run(&options, &["touch", "ran"]);
        outcome.expect_code(0);
        assert!(kinds(&outcome.result).iter().any(|(kind, _)| kind == "repository.unseen"), "{outcome}");
    });
}

#[test]
fn repositories_in_other_writable_directories_are_protected() {
    in_every_environment(|environment| {
        let projects = Projects::new(environment);
        let before = identities(&projects.directory);
        let directory = projects.directory.to_str().unwrap();
        let script = format!("import os; os.chdir('{directory}')\n{}", projects.attack());
        let outcome = environment.run(&["--write", directory], &["python3", "-c", &script]);
        let problem = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(outcome.code, if environment.namespaces { 0 } else { 125 }, "{}", problem());
        assert!(!projects.is_executed_by_git(environment), "{}", problem());
        assert_eq!(identities(&projects.directory), before, "{}", problem());
    });
}

/// With `--in-place` in a linked worktree or a submodule, the run must not be able to replace the `.git` file.
#[test]
fn git_file_of_the_working_directory_cannot_be_replaced() {
    let exchanges = [
        "write('.git', 'gitdir: ' + os.getcwd() + '/evil')",
        "remove('.git'); write('.git', 'gitdir: ' + os.getcwd() + '/evil')",
        "remove('.git'); move('evil', '.git')",
        "remove('.git'); link('evil', '.git')",
        "move('.git', 'other'); pipe('.git')",
        "remove('.git')",
        "remove('.git'); move('evil', '.git'); chmod('.git', 0)",
    ];
    in_every_environment(|environment| {
        let before = std::fs::read(environment.directory.join(".git")).unwrap();
        let marker = environment.directory.with_file_name("marker");
        for exchange in exchanges {
            let script = format!(
                "{TOOLS}
makedirs('evil/objects'); makedirs('evil/refs/heads'); write('evil/HEAD', 'ref: refs/heads/x\\n')
write('evil/config', '[core]\\nrepositoryformatversion = 0\\nfsmonitor = touch {}; false\\n')
{exchange}",
                marker.display()
            );
            let outcome = environment.run(&[], &["python3", "-c", &script]);
            let problem =
                || format!("{}: {exchange}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
            assert_eq!(outcome.code, 0, "{}", problem());
            let found = environment.directory.join(".git").symlink_metadata().unwrap();
            assert!(found.is_file(), "{}", problem());
            assert_eq!(std::fs::read(environment.directory.join(".git")).unwrap(), before, "{}", problem());
            environment.run_outside("cd project && git status --short && rm -rf evil other");
            assert!(!marker.exists(), "{}", problem());
            let reported = kinds(&outcome.result)
                .iter()
                .any(|(kind, path)| kind == "worktree.foreign" && path == ".git");
            assert_eq!(reported, !environment.namespaces, "{}", problem());
        }
    });
}
