//! A user inspects the work of a run, brings it into their own branch, and restores a worktree that guard removed.

use crate::support::UserShell;

const README: &str = "one\ntwo\nthree\n";

/// Starts a run that commits one file, changes a tracked file, and creates another file.
fn run_with_work(user: &UserShell, name: &str) {
    user.types(&format!(
        "guard run -q --name {name} -- bash -c 'echo x > {name}-committed && git add . && git commit -qm \"Add {name}\" &&
         sed -i s/three/3/ README.md && mkdir -p sub && echo y > sub/{name}-new'"
    ));
}

#[test]
fn summary_suggests_the_fitting_next_step() {
    let user = UserShell::with_readme("take-over-next", README);
    user.sees_with_code("guard run -- bash -c 'echo a > a'", 0, &["  next: guard diff @; guard apply @\n"]);
    user.sees_with_code(
        "guard run -- bash -c 'echo b > b && git add b && git commit -qm b'",
        0,
        &["  next: guard diff @; guard apply @\n"],
    );
    for nothing in ["guard run -- true", "guard run --keep -- true", "guard run --in-place -- true"] {
        let printed = user.sees_with_code(nothing, 0, &[]);
        assert!(!printed.contains("next:"), "{nothing}: {printed}");
    }
    // If the run is no longer the newest, the hint must name it by its branch.
    user.sees_with_code(
        "guard run --name slow -- bash -c 'echo c > c; until test -e go; do sleep 0.1; done' &
         until test -e \"$(guard worktree path task/slow 2> /dev/null)\"/c; do sleep 0.1; done
         guard run -q --name newer -- bash -c 'echo d > d'
         touch \"$(guard worktree path task/slow)\"/go; wait",
        0,
        &["  next: guard diff task/slow; guard apply task/slow\n"],
    );
    // guard refuses to receive the commits of this run, and the hint must say how to receive them.
    user.sees_with_code(
        "guard run --name bad -- bash -c 'echo c > c; echo nonsense > $(git rev-parse --git-dir)/refs/heads/task/bad'",
        125,
        &["  next: guard worktree receive 0"],
    );
    user.sees_with_code("guard diff task/bad", 0, &["b/c"]);
    user.sees_with_code(
        "guard apply task/bad",
        2,
        &["guard has not received the commits", "guard worktree receive 0"],
    );
}

#[test]
fn diff_shows_committed_and_uncommitted_work_together() {
    let user = UserShell::with_readme("take-over-diff", README);
    user.sees_with_code("guard diff", 2, &["no run has a worktree in this repository"]);
    run_with_work(&user, "a");
    let diff = user.sees_with_code(
        "guard diff",
        0,
        &["task/a: 1 commit, 2 paths not committed\n", "+++ b/a-committed", "+3\n", "+++ b/sub/a-new"],
    );
    assert!(!diff.contains('\x1b'));
    user.sees_with_code(
        "guard diff @ --stat",
        0,
        &[" README.md   | 2 +-", " sub/a-new   | 1 +", "3 files changed"],
    );
    let some = user.sees_with_code("guard diff task/a -- sub", 0, &["b/sub/a-new"]);
    assert!(!some.contains("README") && !some.contains("a-committed"), "{some}");
    user.sees_with_code(
        "mkdir -p sub && cd sub && guard diff -- a-new ../README.md",
        0,
        &["b/sub/a-new", "b/README.md"],
    );
    user.sees_with_code("guard diff -- ../outside", 2, &["outside of the repository"]);
    user.types(
        "guard diff --json > ../diff.json && python3 - <<'END'
import json
value = json.load(open('../diff.json'))
assert value['branch'] == 'task/a' and [c['subject'] for c in value['commits']] == ['Add a'], value
assert value['uncommitted'] == ['README.md', 'sub/a-new'], value
assert {'path': 'README.md', 'added': 1, 'deleted': 1} in value['files'] and '+++ b/sub/a-new' in value['patch'], value
END",
    );
    // git must be able to apply the printed patch, and `guard diff` must leave no files or objects in the repository
    // or the worktree.
    user.types("git clone -q . ../clone && guard diff | git -C ../clone apply && cat ../clone/sub/a-new");
    user.types("test \"$(git count-objects)\" = \"$(guard diff > /dev/null; git count-objects)\"");
    user.types("cd \"$(guard worktree path task/a)\" && git status --porcelain | grep -qx ' M README.md'");
    user.sees_with_code(
        "guard worktree diff task/a",
        0,
        &["omits uncommitted paths: README.md, sub/; `guard diff 0"],
    );
    user.sees_with_code("guard diff nonsense", 2, &["no run matches \"nonsense\""]);
    user.sees_with_code("cd / && guard diff", 2, &["not in a git repository"]);
    // The user commits in the run's worktree. The diff must include that work.
    user.types("cd \"$(guard worktree path task/a)\" && git add README.md && git commit -qm mine && echo z > z && git add z");
    user.sees_with_code("guard diff", 0, &["task/a: 2 commits, 2 paths not committed", "b/z", "+3"]);
    // On a terminal guard must colour the diff.
    user.sees_with_code(
        "TERM=xterm script -qec 'guard diff' /dev/null",
        0,
        &["\x1b[32m+3\x1b[m", "\x1b[36m@@"],
    );
    user.sees_with_code(
        "guard worktree clean task/a > /dev/null; guard diff task/a; guard diff",
        2,
        &["no run matches"],
    );
}

#[test]
fn apply_fast_forwards_and_removes_the_worktree() {
    let user = UserShell::with_readme("take-over-apply", README);
    run_with_work(&user, "a");
    let objects = user.types("git count-objects");
    user.sees_with_code(
        "guard apply --dry-run",
        0,
        &["would apply task/a to main as a fast-forward: 2 commits, 3 files", "would commit 2 paths"],
    );
    assert_eq!(user.types("git count-objects"), objects);
    user.types("test \"$(git log --format=%s)\" = first && guard worktree path task/a > /dev/null");
    user.sees_with_code(
        "guard apply",
        0,
        &[
            "applied task/a to main as a fast-forward: 2 commits, 3 files",
            "committed 2 paths that the run left uncommitted, with the message \"Add the work left uncommitted on task/a\"",
            "undo: git reset --keep ",
            "removed: the run's worktree and branch; the work is saved in refs/guard/",
        ],
    );
    user.types(
        "test \"$(git log --format=%s%an | tr '\\n' ,)\" = 'Add the work left uncommitted on task/aU,Add aU,firstU,'",
    );
    user.types("test -z \"$(git status --porcelain)\" && cat sub/a-new a-committed && grep -qx 3 README.md");
    user.types("test \"$(git branch)\" = '* main' && test \"$(git worktree list | wc -l)\" = 1");
    user.sees_with_code("guard apply", 2, &["no run has a worktree in this repository"]);
    user.types("git reset -q --keep ORIG_HEAD && test \"$(git log --format=%s)\" = first");
}

#[test]
fn apply_merges_with_newer_work_of_the_user() {
    let user = UserShell::with_readme("take-over-merge", README);
    run_with_work(&user, "a");
    // The user commits on main, and has changes at other paths: staged and untracked.
    user.types("sed -i s/one/1/ README.md && git commit -qam mine && echo s > staged && git add staged && echo u > untracked");
    user.sees_with_code(
        "guard apply -m 'The rest'",
        0,
        &["to main as a merge commit: 2 commits, 3 files", "\"The rest\""],
    );
    user.types(
        "test \"$(git log --first-parent --format=%s | tr '\\n' ,)\" = \"Merge branch 'task/a',mine,first,\"",
    );
    user.types("git log --format=%s | grep -qx 'The rest' && grep -qx 1 README.md && grep -qx 3 README.md");
    user.types("test \"$(git status --porcelain | tr '\\n' ,)\" = 'A  staged,?? untracked,'");
    // `guard apply` must also bring over the user's commits and changes in the run's worktree.
    user.types("git commit -qm staged && guard run -q --name b -- bash -c 'echo b > b' && cd \"$(guard worktree path task/b)\" &&
        echo mine > mine && git add mine && git commit -qm 'In the worktree' && echo later > later");
    user.sees_with_code(
        "guard apply",
        0,
        &["as a fast-forward: 2 commits, 3 files", "committed 2 paths", "removed: the run's worktree"],
    );
    user.types("cat b mine later && git log --format=%s | grep -qx 'In the worktree'");
}

#[test]
fn apply_squash_makes_one_commit_and_no_commit_makes_none() {
    let user = UserShell::with_readme("take-over-squash", README);
    run_with_work(&user, "a");
    user.sees_with_code("guard apply --squash --keep", 0, &["applied task/a to main as one commit: 3 files"]);
    user.types("test \"$(git log --format=%B -1)\" = \"$(printf 'Add the work of task/a\\n\\n* Add a\\n')\" && test $(git rev-list --count HEAD) = 2");
    // With `--keep` the run's branch and worktree must stay as they were.
    user.types("cd \"$(guard worktree path task/a)\" && test \"$(git log --format=%s -1)\" = 'Add a' && git status --porcelain | grep -q README");
    user.types("git reset -q --hard HEAD~ && guard apply @ --squash -m 'All of it' && test \"$(git log --format=%s -1)\" = 'All of it'");
    run_with_work(&user, "b");
    user.sees_with_code(
        "guard apply --uncommitted",
        0,
        &["applied task/b to main as uncommitted changes", "next: git diff --cached", "/tip", "/work"],
    );
    user.types("test \"$(git log --format=%s -1)\" = 'All of it' && git status --porcelain | grep -qx 'A  sub/b-new'");
    user.types("git reset -q --hard && guard run -q --name c -- bash -c 'echo y > c' && echo y > c && git add c && git commit -qm mine");
    user.sees_with_code(
        "guard apply --squash",
        0,
        &["nothing to apply from task/c: your branch already contains all of its work", "removed: "],
    );
    user.sees_with_code("guard apply -m ''", 2, &["a value is required"]);
    user.sees_with_code("guard apply --squash --uncommitted", 2, &["cannot be used with"]);
}

#[test]
fn worktree_kept_after_apply_is_clean() {
    let user = UserShell::with_readme("take-over-keep", README);
    run_with_work(&user, "a");
    user.types("guard apply --keep");
    user.types("cd \"$(guard worktree path task/a)\" && test -z \"$(git status --porcelain)\"");
    user.sees_with_code("guard diff", 0, &["task/a: 0 commits, no uncommitted changes"]);
    user.sees_with_code("guard diff --since-run", 0, &["task/a: 2 commits, no uncommitted changes"]);
    user.sees_with_code(
        "guard apply --dry-run",
        0,
        &["nothing to apply from task/a: your branch already contains all of its work"],
    );
    user.sees_with_code("guard apply", 0, &["nothing to apply", "removed: the run's worktree and branch"]);
}

#[test]
fn refused_apply_changes_nothing() {
    let user = UserShell::with_readme("take-over-stopped", README);
    run_with_work(&user, "a");
    let state = "git rev-parse HEAD task/a; git status --porcelain; cat README.md; git count-objects; guard worktree list";
    let refused = |prepare: &str, apply: &str, code: i32, wanted: &[&str], undo: &str| {
        user.types(prepare);
        let before = user.types(state);
        user.sees_with_code(apply, code, wanted);
        if apply.contains("--dry-run") {
            assert_eq!(user.types(state), before, "{apply}");
        } else {
            // A refused apply may leave unreachable objects.
            let plain = |text: &str| {
                text.lines().filter(|line| !line.contains("kilobytes")).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(plain(&user.types(state)), plain(&before), "{apply}");
        }
        user.types(undo);
    };
    // guard must refuse if the user has changed one of the files, tracked, untracked or ignored, or has a file in
    // place of a directory.
    let own = "that you have as untracked files: ";
    refused(
        "echo mine >> README.md",
        "guard apply",
        1,
        &[own, "README.md", "git stash"],
        "git checkout -q README.md",
    );
    refused("mkdir sub && echo mine > sub/a-new", "guard apply", 1, &[own, "sub/a-new"], "rm -r sub");
    refused("echo mine > sub", "guard apply --dry-run", 1, &[own, "sub/a-new"], "rm sub");
    refused(
        "echo a-committed >> .git/info/exclude && echo mine > a-committed",
        "guard apply --uncommitted",
        1,
        &[own, "a-committed"],
        "cat a-committed && rm a-committed",
    );
    // guard must refuse if the work conflicts with the user's branch.
    refused(
        "sed -i s/three/drei/ README.md && git commit -qam drei",
        "guard apply",
        1,
        &["task/a conflicts with your branch in: README.md", "guard changed nothing", "git merge task/a"],
        "true",
    );
    refused(
        "true",
        "guard apply --json",
        1,
        &["\"conflicts\": [\n    \"README.md\"\n  ]", "\"applied\": false"],
        "git reset -q --hard HEAD~",
    );
    // guard must refuse during an unfinished merge, in the run's own worktree, and in another repository.
    refused("touch .git/MERGE_HEAD", "guard apply", 2, &["a merge is in progress"], "rm .git/MERGE_HEAD");
    refused(
        "true",
        "cd \"$(guard worktree path task/a)\" && guard apply",
        2,
        &["the run's own branch"],
        "true",
    );
    refused(
        "git init -q ../other && git -C ../other -c user.name=U -c user.email=u commit -q --allow-empty -m other",
        "cd ../other && guard apply task/a",
        2,
        &["worked in another repository", "run `guard apply` there"],
        "true",
    );
    refused("true", "guard apply nonsense", 2, &["no run matches \"nonsense\""], "true");
    // After all refusals the work can still be applied.
    user.types("guard apply");
}

#[test]
fn apply_refuses_a_running_run() {
    let user = UserShell::with_readme("take-over-running", README);
    user.sees_with_code(
        "guard run -q --name slow -- bash -c 'echo c > c; until test -e go; do sleep 0.1; done' &
         until test -e \"$(guard worktree path task/slow 2> /dev/null)\"/c; do sleep 0.1; done
         guard diff; guard apply; echo code $?; touch \"$(guard worktree path task/slow)\"/go; wait; guard apply",
        0,
        &["task/slow: 0 commits, 1 path not committed", "b/c", "the run is still in progress", "is still running\n  hint:", "code 2", "applied task/slow"],
    );
}

#[test]
fn apply_shows_findings_before_it_applies() {
    let user = UserShell::with_readme("take-over-findings", README);
    user.types(
        "guard run -q --name f -- bash -c 'ln -s /etc/passwd link && git add . && git commit -qm link'",
    );
    user.sees_with_code(
        "guard apply",
        1,
        &["review: ", "link", "use --yes to apply it without asking", "so guard applied nothing"],
    );
    user.types("test ! -L link && test \"$(git log --format=%s)\" = first");
    user.sees_with_code("guard apply --dry-run", 0, &["review: "]);
    user.sees_with_code(
        "echo n | script -qec 'guard apply' /dev/null",
        1,
        &["apply this work? [y/N]", "so guard applied nothing"],
    );
    user.sees_with_code("guard apply --yes", 0, &["review: ", "applied task/f"]);
    user.types("test -L link");
}

#[test]
fn apply_runs_no_hooks_or_configuration_of_the_agent() {
    let user = UserShell::with_readme("take-over-hooks", README);
    user.types("mkdir hooks && printf '#!/bin/sh\\ntouch ~/ran-hook\\n' > hooks/post-merge && cp hooks/post-merge hooks/pre-commit &&
        cp hooks/post-merge hooks/post-checkout && chmod +x hooks/* && git add . && git commit -qm hooks && git config core.hooksPath hooks");
    user.types("guard run -q --name h -- bash -c 'printf \"#!/bin/sh\\ntouch ~/ran-agents-hook\\n\" | tee hooks/post-merge > hooks/pre-commit;
        echo \"* filter=evil diff=evil merge=evil\" > .gitattributes; echo x >> README.md'");
    user.sees_with_code(
        "guard apply --yes",
        0,
        &["applied task/h", "hooks: guard ran none of your git hooks"],
    );
    user.types("test ! -e ~/ran-hook && test ! -e ~/ran-agents-hook && grep -q evil .gitattributes");
}

#[test]
fn diff_and_apply_escape_hostile_names_and_messages() {
    let user = UserShell::with_readme("take-over-hostile", README);
    user.types(
        "guard run -q --name h -- bash -c 'printf x > $'\"'\"'new\\nline'\"'\"'; printf x > $'\"'\"'esc\\x1b[2J'\"'\"'; printf x > ./--force;
         printf \"\\x1b]0;title\\x07\" > content; printf x > :; git add ./--force && git commit -qm $'\"'\"'sub\\x1b[31mject'\"'\"''",
    );
    user.types("test \"$(ls -A \"$(guard worktree path task/h)\" | wc -l)\" -ge 6");
    let shown = user.sees_with_code(
        "TERM=xterm NO_COLOR=1 script -qec 'guard diff' /dev/null",
        0,
        &["\\u{1b}]0;title\\u{7}", "--force"],
    );
    assert!(!shown.contains('\x1b'), "{shown:?}");
    user.sees_with_code("guard diff -- --force", 0, &["b/--force"]);
    let json = user.types("guard diff --json");
    assert!(!json.contains('\x1b'));
    let printed = user.types("guard apply --yes --squash -m $'first\\nsecond \\x1b[2J'");
    assert!(!printed.contains('\x1b'), "{printed:?}");
    user.types("test -e $'new\\nline' && test -e $'esc\\x1b[2J' && test -e ./--force && test -e : && test -z \"$(git status --porcelain)\"");
    // guard must print the paths of conflicts without control characters.
    user.types("guard run -q --name i -- bash -c 'printf y > $'\"'\"'esc\\x1b[2J'\"'\"''");
    user.types("printf z > $'esc\\x1b[2J'");
    let printed = user.sees_with_code("guard apply --yes", 1, &["esc\\u{1b}[2J"]);
    assert!(!printed.contains('\x1b'), "{printed:?}");
    user.types("git commit -qam z");
    let printed =
        user.sees_with_code("guard apply --yes", 1, &["conflicts with your branch in: esc\\u{1b}[2J"]);
    assert!(!printed.contains('\x1b'), "{printed:?}");
    user.types("guard worktree clean task/i");
    let printed = user.sees_with_code("guard restore", 0, &["uncommitted work", "task/i"]);
    assert!(!printed.contains('\x1b'), "{printed:?}");
}

#[test]
fn apply_stops_at_files_git_cannot_commit() {
    let user = UserShell::with_readme("take-over-nested", README);
    user.types("guard run -q --name n -- bash -c 'mkdir lib empty && git init -q lib && cd lib && git config user.name A && git config user.email a@b &&
        echo x > x && git add . && git commit -qm lib; cd .. && git init -q empty; echo y > y'");
    user.sees_with_code(
        "guard diff",
        0,
        &["1 path not committed", "b/y", "nested git repositories: empty/, lib/"],
    );
    user.sees_with_code("guard apply --yes", 2, &["contains another git repository: empty/"]);
    user.types("rm -rf \"$(guard worktree path task/n)\"/{lib,empty}/.git && guard apply --yes && cat lib/x");
    // The worktree has a file that is too large, and a file that needs a git filter.
    user.types("echo '*.bin filter=custom' > .gitattributes && git add . && git commit -qm attributes");
    user.types("guard run -q --name m -- bash -c 'echo x > x.bin' && truncate -s 2T \"$(guard worktree path task/m)\"/large");
    user.sees_with_code("guard diff", 0, &["1 path not committed", "b/x.bin", "above 1 GiB: large"]);
    user.sees_with_code("guard apply --yes", 2, &["so guard cannot commit the largest of them: large"]);
    user.types("rm \"$(guard worktree path task/m)\"/large");
    user.sees_with_code(
        "guard apply --yes",
        2,
        &["guard cannot commit x.bin: it needs a filter", "commit the work yourself without hooks, "],
    );
    user.types("cd \"$(guard worktree path task/m)\" && git add . && git commit -qm bin && cd - && guard apply --yes && cat x.bin");
}

#[test]
fn restore_brings_back_discarded_work() {
    let user = UserShell::with_readme("take-over-restore", README);
    user.sees_with_code("guard restore", 0, &["guard has saved no work under refs/guard/"]);
    run_with_work(&user, "a");
    user.types("guard worktree clean task/a && guard run -q --discard --name b -- bash -c 'echo b > b'");
    user.sees_with_code(
        "guard restore --list",
        0,
        &["1 commit, uncommitted work", "task/a", "uncommitted work ", "task/b", "Add a"],
    );
    user.types(
        "guard restore --json > ../saved.json && python3 - <<'END'
import json
b, a = json.load(open('../saved.json'))
assert a['branch'] == 'task/a' and a['commits'] == 1 and a['has_uncommitted_work'] and len(a['refs']) == 2, a
assert b['branch'] == 'task/b' and b['commits'] is None and b['has_uncommitted_work'], b
END",
    );
    user.sees_with_code(
        "guard restore task/a",
        0,
        &["created the branch restored/a at ", "its last commit contains the uncommitted work"],
    );
    user.types("test \"$(git show restored/a:sub/a-new restored/a:a-committed | tr '\\n' ,)\" = y,x,");
    user.sees_with_code(
        "guard restore task/a",
        2,
        &["the branch restored/a already exists", "--branch NAME"],
    );
    user.types("ref=$(git for-each-ref --format='%(refname)' 'refs/guard/*/tip') && guard restore $ref --branch tip-only &&
        test \"$(git log --format=%s -1 tip-only)\" = 'Add a'");
    user.sees_with_code("guard restore task/a --branch 'bad name'", 2, &["is not a valid branch name"]);
    user.sees_with_code("guard restore task/a --branch=-x", 2, &["is not a valid branch name"]);
    user.sees_with_code("guard restore nonsense", 2, &["guard has saved no work as \"nonsense\""]);
    // With this age limit no saved work is old enough to be removed.
    user.sees_with_code("guard restore --expire 30d", 0, &["removed the saved work of 0 of 2 runs"]);
    user.sees_with_code("guard restore --expire soon", 2, &["--expire soon is not a valid time"]);
    user.sees_with_code(
        "guard restore --expire 0s --dry-run",
        0,
        &["task/a", "task/b", "would remove the saved work of 2 of 2 runs"],
    );
    user.types("test $(git for-each-ref refs/guard | wc -l) = 3");
    user.sees_with_code(
        "guard restore --expire 0s",
        0,
        &["task/a", "removed the saved work of 2 of 2 runs", "git branch NAME "],
    );
    user.types("test -z \"$(git for-each-ref refs/guard)\"");
    user.sees_with_code("cd / && guard restore", 2, &["not in a git repository"]);
}

/// `git merge` takes only commits, so the hint on a conflict must first commit what the run left uncommitted. The user
/// types the hint as guard prints it. Git hooks that the agent wrote into the worktree must not run, and guard must
/// show the finding about them before the hint.
#[test]
fn conflict_hint_commits_uncommitted_work_first() {
    let user = UserShell::new("take-over conflict");
    user.types("git config core.hooksPath .husky/_");
    user.types(
        "guard run -q --name c2 -- bash -c 'echo agent > README.md; echo new > added; mkdir -p .husky/_; \
         echo \"*\" > .husky/_/.gitignore; for hook in pre-commit post-commit commit-msg; do \
         printf \"#!/bin/sh\\ntouch ../../hook-ran\\n\" > .husky/_/$hook; chmod +x .husky/_/$hook; done'",
    );
    user.types("echo mine > README.md && git commit -qam mine");
    let printed = user.sees_with_code(
        "guard apply --yes",
        1,
        &["review: ", ".husky", "conflicts with your branch in: README.md", "hint: "],
    );
    let command = printed.lines().find(|line| line.contains("--commit-only")).unwrap_or_default();
    user.sees_with_code(
        command,
        1,
        &[
            "committed 2 paths to task/c2; guard ran no hooks",
            "CONFLICT (content): Merge conflict in README.md",
        ],
    );
    user.types("grep -q agent README.md && grep -q mine README.md && test \"$(cat added)\" = new");
    user.types("test -z \"$(find .. -name hook-ran)\"");
    user.sees("git merge --abort && guard apply c2 --commit-only", &["nothing to commit on task/c2"]);
}

/// `@` and `@N` must mean runs in the repository of the current directory.
#[test]
fn run_positions_count_within_one_repository() {
    let user = UserShell::new("take-over-position");
    user.types(
        "guard run -q --name a -- bash -c 'echo a > a' && guard run -q --name b -- bash -c 'echo b > b'",
    );
    user.types(
        "git clone -q . ../other && cd ../other && git config user.name U && git config user.email u@example.org &&
         guard run -q --name c -- bash -c 'echo c > c'",
    );
    for (position, file) in [("@", "b/b"), ("@1", "b/b"), ("@2", "b/a")] {
        user.sees_with_code(&format!("guard diff {position}"), 0, &[file]);
    }
    user.sees_with_code("guard diff @3", 2, &["@3 matches no run"]);
    user.sees_with_code("cd ../other && guard diff @1", 0, &["b/c"]);
    user.sees_with_code("cd ../other && guard apply @2", 2, &["@2 matches no run"]);
    // Outside of a repository, every run counts.
    user.sees_with_code("cd .. && basename \"$(guard worktree path @1)\"", 0, &["c"]);
}

/// If another run begins while a run is running, `@` is the other run, so the last line of the first run must not say
/// `@`.
#[test]
fn last_line_of_a_run_names_that_run() {
    let user = UserShell::new("take-over-last-line");
    let printed = user.types(
        "mkdir ~/gate && export TERM=xterm NO_COLOR=1
         printf 'git push\\nuntil test -e \"$1\"; do sleep 0.1; done\\n' > wait.sh && git add . && git commit -qm wait
         script -qec \"guard run --name first --read $HOME/gate -- bash wait.sh $HOME/gate/go\" /dev/null > ~/first &
         until guard ps | grep -q first; do sleep 0.1; done
         guard run -q --name second -- true
         touch ~/gate/go && wait && cat ~/first
         echo && guard why \"$(sed -n 's/.*1 action refused (guard why \\([^)]*\\)).*/\\1/p' ~/first)\"",
    );
    assert!(!printed.contains("guard why @") && printed.contains("denied: git push"), "{printed}");
}

/// guard removes the worktree of a run that left nothing. There is nothing to restore either, so guard must not suggest
/// it.
#[test]
fn restore_is_not_suggested_for_a_run_that_left_nothing() {
    let user = UserShell::new("take-over-nothing");
    user.types("guard run -q -- true");
    let run = user.types("guard __complete runs | head -n 1");
    for command in ["apply", "diff"] {
        let printed = user.sees_with_code(
            &format!("guard {command} {run}"),
            2,
            &["was removed, and no work of the run is saved", "guard log"],
        );
        assert!(!printed.contains("guard restore"), "{printed}");
    }
    user.types("guard run -q --name w -- bash -c 'echo x > x' && guard worktree clean --all");
    let run = user.types("guard __complete runs | head -n 1");
    user.sees_with_code(
        &format!("guard apply {run}"),
        2,
        &["`guard restore --list` shows what is saved of it"],
    );
}
