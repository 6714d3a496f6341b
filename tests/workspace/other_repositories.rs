// slow
//! The task's rules do not apply to repositories that an agent makes, but must always apply to the task's own
//! repository.
//!
//! Each attempt makes git find the task's repository from a directory that looks like another repository. guard must
//! record each attempt as a denial, must not create a branch, and must not receive a commit that skipped the hooks.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{RunOutcome, TestEnvironment, in_every_environment};

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Creates the repository `hooked` in the environment, whose `pre-commit` hook refuses every commit.
fn repository(environment: &TestEnvironment) {
    environment.run_outside(
        "rm -rf hooked .worktrees && git init -q -b main hooked && cd hooked && git config user.name U && git config user.email u@u \
         && echo a > a && git add . && git commit -qm first \
         && printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit",
    );
}

/// Runs a script in a task of the repository. The script is a file, so that guard judges each program when it starts.
fn run(environment: &TestEnvironment, name: &str, language: &str, script: &str) -> RunOutcome {
    let folder = root(environment).join("hooked");
    std::fs::write(folder.join("script"), script).unwrap();
    environment.give_to_user(&folder.join("script"));
    environment.run_outside("cd hooked && git add script && git commit -q --no-verify --amend --no-edit");
    let options = ["--json", "--keep", "--name", name, "--policy", "strict"];
    let mut command = environment.guard_run(&options, &[language, "script"]);
    command.current_dir(folder);
    environment.run_to_end(command, b"")
}

/// Python functions with which the attempts write files without starting programs, because guard could refuse those by
/// their arguments. `G` is the task's git directory, `W` its working tree, `T` a directory outside of it.
const PREPARE: &str = r#"
import os, shutil, subprocess, tempfile
run = lambda *argv, **rest: subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **rest)
G = run("/usr/bin/git", "rev-parse", "--absolute-git-dir").stdout.strip()
T, W = tempfile.mkdtemp(), os.getcwd()
def git(*argv, **env):
    try:
        return run("/usr/bin/git", *argv, env=dict(os.environ, **env)).returncode
    except PermissionError:
        return 126
def write(path, text):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
def other(path):
    git("init", "-q", "-b", "main", path)
    assert git("-C", path, "-c", "user.name=o", "-c", "user.email=o@o", "commit", "-q", "--allow-empty", "-m", "other") == 0
def parts(path, names):
    for name in names:
        os.makedirs(path + "/" + name)
    write(path + "/HEAD", "ref: refs/heads/main\n")
HEAD = "ref: refs/heads/main\n"
"#;

/// Attempts to make git find the task's repository: a name, a script, and the directory in which git runs after the
/// script.
const ATTEMPTS: [(&str, &str, &str); 22] = [
    ("empty directory", "os.makedirs('e/.git')", "e"),
    ("no objects", "parts('o/.git', ['refs'])", "o"),
    ("no refs", "parts('r/.git', ['objects'])", "r"),
    ("no HEAD", "parts('h/.git', ['objects', 'refs']); os.remove('h/.git/HEAD')", "h"),
    ("HEAD says nothing", "other('n'); write('n/.git/HEAD', 'nonsense')", "n"),
    ("HEAD says nothing, bare", "parts('nb', ['objects', 'refs']); write('nb/HEAD', 'nonsense')", "nb"),
    ("HEAD is closed", "other('c'); os.chmod('c/.git/HEAD', 0)", "c"),
    ("refs is closed", "other('cr'); os.chmod('cr/.git/refs', 0)", "cr"),
    ("objects is closed", "other('co'); os.chmod('co/.git/objects', 0)", "co"),
    ("HEAD in a link", "other('l'); os.remove('l/.git/HEAD'); os.symlink('nowhere', 'l/.git/HEAD')", "l"),
    ("common directory", "other('d'); write('d/.git/commondir', G)", "d"),
    ("common directory elsewhere", "other(T + '/d'); write(T + '/d/.git/commondir', G)", "{T}/d"),
    (
        "common directory of a pointer",
        "other('p'); write('q/.git', 'gitdir: ../p/.git'); write('p/.git/commondir', G)",
        "q",
    ),
    (
        "common directory through a link",
        "other('k'); os.symlink(G, 'k/link'); write('k/.git/commondir', '../link')",
        "k",
    ),
    ("bare, common directory", "write('b/HEAD', HEAD); write('b/commondir', G)", "b"),
    (
        "pointer that begins with blanks",
        "other(T + '/x'); write('y/  ' + T + '/x/HEAD', HEAD); write('y/  ' + T + '/x/commondir', G); write('y/.git', 'gitdir:   ' + T + '/x')",
        "y",
    ),
    ("named common directory", "other('v'); env = {'GIT_COMMON_DIR': G}", "v"),
    (
        "named git directory and common directory",
        "other('z'); env = {'GIT_DIR': W + '/z/.git', 'GIT_COMMON_DIR': G}",
        ".",
    ),
    (
        "named git directory with a common directory",
        "other('zc'); write('zc/.git/commondir', G); env = {'GIT_DIR': W + '/zc/.git'}",
        ".",
    ),
    (
        "refs in a link",
        "other('f'); shutil.rmtree('f/.git/refs'); os.symlink(G + '/refs', 'f/.git/refs')",
        "f",
    ),
    (
        "heads in a link",
        "other('g'); shutil.rmtree('g/.git/refs/heads'); os.symlink(G + '/refs/heads', 'g/.git/refs/heads')",
        "g",
    ),
    (
        "a branch's directory in a link",
        "other('i'); os.symlink(G + '/refs/heads', 'i/.git/refs/heads/x')",
        "i",
    ),
];

/// guard must refuse and record each attempt, and none may change the task's repository.
#[test]
fn disguised_repository_of_the_task_is_protected() {
    in_every_environment(|environment| {
        repository(environment);
        let mut script = PREPARE.to_string();
        for (index, (_, attempt, fixture)) in ATTEMPTS.iter().enumerate() {
            script.push_str(&format!(
                "env = {{}}; {attempt}; os.chdir('{fixture}'.replace('{{T}}', T))\n\
                 git('checkout', '-q', '-b', 'won{index}', **env); git('reset', '-q', '--hard', 'won{index}', **env)\n\
                 git('commit', '-q', '--no-verify', '--allow-empty', '-m', 'won{index}', **env); os.chdir(W)\n"
            ));
        }
        script.push_str(
            "print(run('git', 'for-each-ref').stdout, run('git', 'log', '--format=%s').stdout, 'done')\n",
        );
        let outcome = run(environment, "looks", "python3", &script);
        let (name, said) = (environment.name(), outcome.printed());
        assert!(said.ends_with("done\n"), "{name}: {outcome}");
        assert!(!said.contains("won"), "{name} {said}: {outcome}");
        let log = environment.run_outside("cd hooked && git log --format=%s task/looks");
        assert_eq!(log, "first\n", "{name}: a commit that skipped the hooks was received");
        let denials = outcome.result["denials"].as_array().unwrap();
        for (index, (what, _, _)) in ATTEMPTS.iter().enumerate() {
            for command in ["checkout -q -b", "reset -q --hard", "--allow-empty -m"] {
                let words = format!("{command} won{index} ");
                let has = |denial: &&Value| denial["message"].as_str().unwrap_or_default().contains(&words);
                let found: Vec<_> = denials.iter().filter(has).collect();
                assert_eq!(found.len(), 1, "{name}: {what}: {words}: {denials:#?}");
            }
        }
    });
}

/// `git -C link/..` goes to the parent of the link's target, as in the kernel. guard must resolve it in the same way.
#[test]
fn parent_of_a_link_is_the_parent_of_its_target() {
    in_every_environment(|environment| {
        repository(environment);
        let script = format!(
            "{PREPARE}
other(T + '/o'); os.mkdir('deep'); os.symlink(W + '/deep', T + '/o/link')
git('-C', T + '/o/link/..', 'checkout', '-q', '-b', 'won')
git('-C', T + '/o/link', '-C', '..', 'checkout', '-q', '-b', 'won')
git('--git-dir=' + T + '/o/link/../.git', 'checkout', '-q', '-b', 'won')
for _ in range(25):
    os.mkdir('d' * 200); os.chdir('d' * 200)
os.chdir(W)
git(*(['-C', 'd' * 200] * 25), 'checkout', '-q', '-b', 'won')
print(run('git', 'for-each-ref').stdout)
"
        );
        let outcome = run(environment, "link", "python3", &script);
        assert!(!outcome.printed().contains("won"), "{outcome}");
        assert_eq!(outcome.result["usage"]["refusals"], 4, "{outcome}");
    });
}

/// If a variable is in the environment twice, git uses the first one. guard must judge both.
#[test]
fn git_variable_given_twice_is_judged_both_ways() {
    in_every_environment(|environment| {
        repository(environment);
        let script = format!(
            "{PREPARE}
import ctypes
other(T + '/o')
libc = ctypes.CDLL(None, use_errno=True)
def start(argv, environment):
    array = lambda words: (ctypes.c_char_p * (len(words) + 1))(*[word.encode() for word in words], None)
    if os.fork() == 0:
        libc.execve(b'/usr/bin/git', array(argv), array(environment))
        os._exit(126)
    return os.waitstatus_to_exitcode(os.wait()[1])
checkout = ['git', 'checkout', '-q', '-b', 'won']
print(start(checkout, ['GIT_DIR=' + G, 'GIT_DIR=' + T + '/o/.git', 'GIT_WORK_TREE=' + W]))
print(start(checkout, ['GIT_DIR=' + T + '/o/.git', 'GIT_DIR=' + G, 'GIT_WORK_TREE=' + W]))
skip = \"'core.hooksPath=/dev/null'\"
print(start(['git', 'commit', '-q', '--allow-empty', '-m', 'won'], ['GIT_CONFIG_PARAMETERS=' + skip, 'GIT_CONFIG_PARAMETERS=']))
print(run('git', 'for-each-ref').stdout, run('git', 'log', '--format=%s').stdout)
"
        );
        let outcome = run(environment, "twice", "python3", &script);
        let (name, printed) = (environment.name(), outcome.printed());
        assert!(printed.starts_with("126\n126\n126\n"), "{name}: {outcome}");
        assert!(!printed.contains("won"), "{name}: {outcome}");
        assert_eq!(outcome.result["usage"]["refusals"], 3, "{name}: {outcome}");
    });
}

/// A repository is deleted between two identical git commands. guard must judge the second one anew, because git then
/// finds the task's repository.
#[test]
fn deleted_repository_is_judged_anew() {
    in_every_environment(|environment| {
        repository(environment);
        let script = format!(
            "{PREPARE}
other('s'); os.chdir('s')
print(git('checkout', '-q', '-B', 'won')); shutil.rmtree('.git'); print(git('checkout', '-q', '-B', 'won'))
other(T + '/t'); os.chdir(T + '/t')
print(git('checkout', '-q', '-B', 'won')); shutil.rmtree('.git'); write('.git', 'gitdir: ' + G); print(git('checkout', '-q', '-B', 'won'))
os.chdir(W); print(run('git', 'for-each-ref').stdout)
"
        );
        let outcome = run(environment, "gone", "python3", &script);
        let (name, printed) = (environment.name(), outcome.printed());
        assert!(printed.starts_with("0\n126\n0\n126\n"), "{name}: {outcome}");
        assert!(!printed.contains("won"), "{name}: {outcome}");
        assert_eq!(outcome.result["usage"]["refusals"], 2, "{name}: {outcome}");
    });
}

/// Shell functions for the tests: `$T` is a directory outside the working tree, and `other DIR` makes a repository.
const SHELL: &str = r#"
    T=$(mktemp -d); W=$PWD; git=/usr/bin/git
    other() { $git init -q -b main "$1" && $git -C "$1" -c user.name=o -c user.email=o@o commit -q --allow-empty -m other; }
"#;

/// A run creates its own repositories, as test suites do: with a linked worktree, bare, or inside its worktree. guard
/// must not apply the rules for the task's repository to them.
#[test]
fn rules_do_not_apply_to_repositories_a_run_creates() {
    in_every_environment(|environment| {
        repository(environment);
        let script = format!(
            "{SHELL} other $T/o; $git -C $T/o worktree add -q ../w; $git -C $T/w checkout -q -b free; $git -C $T/w branch --show-current; \
             cd $T; $git clone -q --bare o b.git; cd $W; $git -C $T/b.git update-ref refs/heads/free HEAD; $git -C $T/b.git branch --list free; \
             mkdir -p $T/o/sub/deep; $git -C $T/o/sub/deep reset -q --hard && echo reset; \
             GIT_DIR=$T/o/.git GIT_WORK_TREE=$T/o $git checkout -q -b named; $git -C $T/o branch --show-current; \
             other n; $git -C n -c user.name=x -c user.email=x commit -q --no-verify --allow-empty -m more && echo nested"
        );
        let outcome = run(environment, "free", "bash", &script);
        assert_eq!(outcome.result["denials"], serde_json::json!([]), "{outcome}");
        assert_eq!(outcome.printed(), "free\n  free\nreset\nnamed\nnested\n", "{outcome}");
    });
}
