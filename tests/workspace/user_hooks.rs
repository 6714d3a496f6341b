// slow
//! The user's hooks must run inside a run, and must be able to refuse a commit. The agent must not be able to change
//! them or escape through them.
//!
//! Also tests other programs that a repository needs: filters (git-lfs) and signatures (gpg).

use std::path::PathBuf;

use crate::support::{RunOutcome, TestEnvironment, in_every_environment, in_two_environments};

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Creates the repository `hooked` in the environment, and runs this script in it.
fn repository(environment: &TestEnvironment, script: &str) {
    environment.run_outside(&format!(
        "rm -rf hooked .worktrees && git init -q -b main hooked && cd hooked && git config user.name U && git config user.email u@u \
         && mkdir sub && echo a > a && echo s > sub/s && git add . && git commit -qm first\n{script}"
    ));
}

/// Returns a script that adds a hook to the repository.
fn hook(name: &str, text: &str) -> String {
    format!("cat > .git/hooks/{name} <<'HOOK'\n#!/bin/sh\n{text}\nHOOK\nchmod +x .git/hooks/{name}\n")
}

/// Runs a script in a task of the repository. Returns the outcome, and the output as one text.
fn run(environment: &TestEnvironment, name: &str, options: &[&str], script: &str) -> (RunOutcome, String) {
    let policy: &[&str] = if options.contains(&"--policy") { &[] } else { &["--policy", "strict"] };
    let options = [&["-q", "--keep", "--name", name], policy, options].concat();
    let mut command = environment.guard_run(&options, &["bash", "-c", script]);
    let tools = root(environment).join("tools");
    let path = environment.run_outside("printf %s \"$PATH\"");
    command.env("PATH", format!("{}:{path}", tools.display())).current_dir(root(environment).join("hooked"));
    // The tools of these tests are inside guard's own checkout. guard runs programs of a checkout only if the
    // checkout also contains the home directory, so the test sets HOME.
    if tools.exists() {
        command.env("HOME", root(environment));
    }
    // If the test has written a global git configuration of the user, the run uses it.
    let users = root(environment).join("gitconfig");
    if users.exists() {
        command.env("GIT_CONFIG_GLOBAL", users);
    }
    let outcome = environment.run_to_end(command, b"");
    let said = format!("{}{}", String::from_utf8_lossy(&outcome.output), outcome.error);
    (outcome, said)
}

#[test]
fn hooks_run_in_the_sandbox_and_can_refuse_a_commit() {
    in_every_environment(|environment| {
        let texts = [
            (
                "pre-commit",
                "echo pre-commit in $(pwd) on $(git branch --show-current)\n\
                 [ \"$(git rev-parse --absolute-git-dir)\" = \"$GIT_DIR\" ] || echo another repository: $GIT_DIR\n\
                 case $GIT_INDEX_FILE in \"$GIT_DIR\"/*|.git/*) ;; *) echo another index: $GIT_INDEX_FILE ;; esac\n\
                 git diff --cached --name-only\n\
                 [ ! -f style ] || { sed -i 's/ugly/pretty/' style && git add style; }\n\
                 ! git grep --cached -q FORBIDDEN || { echo forbidden words >&2; exit 3; }",
            ),
            ("prepare-commit-msg", "sed -i '1s/^/[task] /' \"$1\"; echo prepared by $2"),
            ("commit-msg", "head -1 \"$1\"; grep -q ok \"$1\" || { echo the message must say ok; exit 1; }"),
            ("post-commit", "echo after \"$(git log -1 --format=%s)\""),
        ];
        repository(environment, &texts.map(|(name, text)| hook(name, text)).concat());
        let (outcome, said) = run(
            environment,
            "hooked",
            &[],
            "echo ugly > style; git add style; git commit -m bad; echo code $?; git commit -m ok; echo code $?
             echo FORBIDDEN > f; git add f; git commit -m 'ok too'; echo code $?; git rm -qf f
             echo more >> a; git commit -a -m 'ok all'; echo code $?
             echo part >> a; echo rest >> sub/s; cd sub; git commit -m 'ok part' ../a; echo code $?",
        );
        assert_eq!(outcome.code, 0, "{}: {said}", environment.name());
        let tree = root(environment).join(".worktrees/hooked-hooked");
        let codes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("code ")).collect();
        assert_eq!(codes, ["1", "0", "1", "0", "0"], "{}: {said}", environment.name());
        for wanted in [
            &*format!("pre-commit in {} on task/hooked", tree.display()),
            "prepared by message",
            "[task] bad",
            "the message must say ok",
            "after [task] ok",
            "after [task] ok all",
            "after [task] ok part",
            "forbidden words",
        ] {
            assert!(said.contains(wanted), "{}: {wanted:?} in {said}", environment.name());
        }
        assert!(
            !said.contains("another ") && !said.contains("Permission denied"),
            "{}: {said}",
            environment.name()
        );
        let log = environment.run_outside("cd hooked && git log --format=%s task/hooked && git show task/hooked:style && git -C ../.worktrees/hooked-hooked status -s");
        assert_eq!(
            log,
            "[task] ok part\n[task] ok all\n[task] ok\nfirst\npretty\n M sub/s\n",
            "{}",
            environment.name()
        );
    });
}

/// A script that adds hooks as husky 9 does.
const HUSKY: &str = r#"
mkdir -p .husky/_ && cat > .husky/_/h <<'END'
#!/usr/bin/env sh
[ "$HUSKY" = "2" ] && set -x
n=$(basename "$0")
s=$(dirname "$(dirname "$0")")/$n
[ ! -f "$s" ] && exit 0
i="${XDG_CONFIG_HOME:-$HOME/.config}/husky/init.sh"
[ -f "$i" ] && . "$i"
[ "${HUSKY-}" = "0" ] && exit 0
export PATH="node_modules/.bin:$PATH"
sh -e "$s" "$@"
c=$?
[ $c != 0 ] && echo "husky - $n script failed (code $c)"
[ $c = 127 ] && echo "husky - command not found in PATH=$PATH"
exit $c
END
for name in pre-commit commit-msg post-commit; do
    printf '#!/usr/bin/env sh\n. "$(dirname "$0")/h"' > .husky/_/$name && chmod +x .husky/_/$name
done
printf '*' > .husky/_/.gitignore
printf 'lint --staged\ngit diff --cached --stat\n' > .husky/pre-commit
printf 'grep -q ^feat: "$1"\n' > .husky/commit-msg
echo node_modules > .gitignore
git add -A && git commit -qm 'feat: hooks' && git config core.hooksPath .husky/_
"#;

#[test]
fn husky_hooks_run_and_can_fail_a_commit() {
    in_every_environment(|environment| {
        repository(environment, HUSKY);
        let script = "echo b > b; git add b; git commit -m 'feat: no linter'; echo code $?
             mkdir -p node_modules/.bin; printf '#!/bin/sh\\necho linted $*; git diff --cached --name-only\\n' > node_modules/.bin/lint; chmod +x node_modules/.bin/lint
             git commit -m wrong; echo code $?; git commit -m 'feat: right'; echo code $?";
        let (_, said) = run(environment, "husky", &[], script);
        let codes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("code ")).collect();
        assert_eq!(codes, ["1", "1", "0"], "{}: {said}", environment.name());
        for wanted in [
            "husky - pre-commit script failed (code 127)",
            "linted --staged\nb\n",
            "husky - commit-msg script failed (code 1)",
            "1 file changed, 1 insertion(+)",
        ] {
            assert!(said.contains(wanted), "{}: {wanted:?} in {said}", environment.name());
        }
        assert_eq!(
            environment.run_outside("cd hooked && git log -1 --format=%s task/husky"),
            "feat: right\n"
        );
    });
}

#[test]
fn agent_cannot_change_or_skip_hooks() {
    in_every_environment(|environment| {
        repository(environment, &(hook("pre-commit", "echo the hook ran; exit 1") + "mkdir ../tools"));
        let ways = [
            "git commit --no-verify -m x",
            "git commit -n -m x",
            "git commit -anm x",
            "git -c core.hooksPath=/dev/null commit -m x",
            "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.hooksPath GIT_CONFIG_VALUE_0=/nowhere git commit -m x",
            "HUSKY=0 git commit -m x",
            "git config core.hooksPath /nowhere; git commit -m x",
            "/usr/bin/git commit --no-verify -m x",
            "python3 -c 'import subprocess, sys; sys.exit(subprocess.call([\"git\", \"commit\", \"--no-verify\", \"-m\", \"x\"]))'",
        ];
        let mut script =
            String::from("echo b > b; git add b; hooks=$(git rev-parse --git-path hooks); ls \"$hooks\"\n");
        for change in [
            "echo 'exit 0' > \"$hooks/pre-commit\"",
            "rm -f \"$hooks/pre-commit\"",
            "mv \"$hooks/pre-commit\" \"$hooks/other\"",
            "chmod -x \"$hooks/pre-commit\"",
            "mv \"$hooks\" \"$hooks.old\"",
            "ln -sfn /tmp \"$hooks\"",
            "touch \"$hooks/new\"",
            "python3 -c 'import os, sys; os.truncate(sys.argv[1], 0)' \"$hooks/pre-commit\"",
        ] {
            script += &format!(
                "({change}) 2> /dev/null && echo CHANGED by: {}\n",
                change.replace(['\'', '"', '$', '(', ')'], " ")
            );
        }
        script += "git commit -m x; echo code $?\n";
        let (_, said) = run(environment, "fixed", &[], &script);
        assert!(
            said.contains("the hook ran\n") && said.contains("code 1\n"),
            "{}: {said}",
            environment.name()
        );
        assert!(said.contains("pre-commit\n") && !said.contains("CHANGED"), "{}: {said}", environment.name());
        for (number, way) in ways.iter().enumerate() {
            // Each attempt has a run of its own, because guard refuses the whole text of a shell if it refuses one
            // command in it.
            let (outcome, said) =
                run(environment, &format!("way{number}"), &[], &format!("echo b > b; git add b; {way}"));
            assert!(
                outcome.code != 0 && said.contains("Permission denied"),
                "{}: {way}: {said}",
                environment.name()
            );
            assert!(!said.contains("1 file changed"), "{}: {way}: {said}", environment.name());
        }
        let commits =
            environment.run_outside("cd hooked && git rev-list --all --count; cat .git/hooks/pre-commit");
        assert_eq!(commits, "1\n#!/bin/sh\necho the hook ran; exit 1\n", "{}", environment.name());
    });
}

#[test]
fn hooks_cannot_write_outside_the_sandbox() {
    in_every_environment(|environment| {
        let outside = root(environment).join("outside");
        let text = format!(
            "exec 2>&1
             echo x > {outside} || echo held
             echo x > {root}/hooked/.git/config || echo held
             rm -f {root}/hooked/a || echo held
             git -C {root}/hooked commit --allow-empty -m x || echo held
             GIT_DIR={root}/hooked/.git git update-ref refs/heads/main HEAD~0 || echo held
             git push || echo held
             git branch -f other || echo held
             sudo -n true || echo held
             echo x > \"$0\" || echo held
             exit 0",
            outside = outside.display(),
            root = root(environment).display(),
        );
        repository(environment, &hook("pre-commit", &text));
        let before = environment.run_outside("cd hooked && git for-each-ref && cat .git/config a");
        let (_, said) = run(environment, "out", &[], "echo b > b; git add b; git commit -m b; echo code $?");
        assert!(said.contains("code 0\n"), "{}: {said}", environment.name());
        assert_eq!(said.matches("held\n").count(), 9, "{}: {said}", environment.name());
        assert!(!outside.exists(), "{}", environment.name());
        let after =
            environment.run_outside("cd hooked && git for-each-ref | grep -v task/out && cat .git/config a");
        assert_eq!(before, after, "{}", environment.name());
    });
}

/// Like lint-staged, a hook stashes changes while it checks the staged files, and the policy `strict` refuses that. The
/// run's output must contain the reason.
#[test]
fn refused_command_of_a_hook_is_explained() {
    in_two_environments(|environment| {
        repository(
            environment,
            &hook(
                "pre-commit",
                "git stash push --keep-index -q || { echo cannot look at the staged files; exit 1; }",
            ),
        );
        let (_, said) =
            run(environment, "stash", &[], "echo b > b; git add b; git commit -m b; echo code $?");
        for wanted in [
            "git stash push --keep-index -q (rule git.stash)",
            "Instead: ",
            "cannot look at the staged files",
            "code 1\n",
        ] {
            assert!(said.contains(wanted), "{}: {wanted:?} in {said}", environment.name());
        }
    });
}

#[test]
fn trailers_are_added_before_the_hook_of_the_user() {
    in_two_environments(|environment| {
        repository(environment, &hook("prepare-commit-msg", "echo 'From: hook' >> \"$1\""));
        let policy = root(environment).join("trailers.toml");
        let text =
            "version = 1\nname = \"trailers\"\nextends = \"strict\"\n[git]\ntrailers = [\"Agent: test\"]\n";
        std::fs::write(&policy, text).unwrap();
        let (outcome, said) = run(
            environment,
            "trailers",
            &["--policy", policy.to_str().unwrap()],
            "echo b > b; git add b; git commit -qm b",
        );
        assert_eq!(outcome.code, 0, "{}: {said}", environment.name());
        let message = environment.run_outside("cd hooked && git log -1 --format=%B task/trailers");
        assert_eq!(message, "b\n\nAgent: test\nFrom: hook\n\n", "{}", environment.name());
    });
}

/// A script that adds git-lfs attributes, and commits one file as a pointer.
const LFS: &str = "printf '*.bin filter=lfs diff=lfs merge=lfs -text\\n' > .gitattributes
printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:aa\\n' > old.bin
git add . && git commit -qm lfs
";

/// Returns a script that adds the git-lfs filters to a settings file, as `git lfs install` does.
fn filters(file: &str) -> String {
    ["clean 'git-lfs clean -- %f'", "smudge 'git-lfs smudge -- %f'", "required true"]
        .map(|setting| format!("git config -f {file} filter.lfs.{setting}\n"))
        .concat()
}

/// git-lfs is not installed. If a checkout needs it, guard must report the failure and leave nothing behind. If no file
/// needs it, the run must start, and adding such a file must fail as it does outside. The filters are in the
/// repository's own configuration, so the user must trust the repository.
#[test]
fn missing_git_lfs_is_reported_where_it_is_needed() {
    in_two_environments(|environment| {
        repository(environment, &format!("{LFS}{}", filters(".git/config")));
        let (outcome, said) = run(environment, "lfs", &[], "true");
        assert!(outcome.code == 125 && said.contains("--trust-repository"), "{}: {said}", environment.name());
        let (outcome, said) = run(environment, "lfs", &["--trust-repository"], "true");
        assert!(
            outcome.code == 125 && said.contains("smudge filter lfs failed"),
            "{}: {said}",
            environment.name()
        );
        let left = environment.run_outside("cd hooked && git worktree list | wc -l && git branch --list 'task/*' && ls -d ../.worktrees/* || true");
        assert_eq!(left.trim(), "1", "{}", environment.name());
        environment.run_outside("cd hooked && git -c filter.lfs.required=false -c filter.lfs.clean=cat rm -q -f old.bin && git commit -qm without");
        let script = "echo n > new.bin; git add new.bin; echo code $?; git status -s";
        let (_, said) = run(environment, "lfs", &["--trust-repository"], script);
        assert!(
            said.contains("clean filter 'lfs' failed") && said.contains("code 128\n"),
            "{}: {said}",
            environment.name()
        );
    });
}

/// git-lfs is installed. The user's filters must run inside: the agent commits pointers, and guard's checkout restores
/// the files. The filters are in the user's global configuration, so they need no trust.
#[test]
fn installed_git_lfs_works_inside() {
    in_two_environments(|environment| {
        repository(
            environment,
            &format!(
                "{LFS}{}mkdir -p ../tools && cat > ../tools/git-lfs <<'END'\n#!/bin/sh\ncase $1 in\n\
                 clean) printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\n' \"$(cut -c1-2)\" ;;\n\
                 smudge) echo \"aa is the content\" ;;\nesac\nEND\nchmod +x ../tools/git-lfs\n\
                 GIT_CONFIG_GLOBAL=$(cd .. && pwd)/gitconfig PATH=$(cd ../tools && pwd):$PATH git checkout-index -f -u old.bin",
                filters("../gitconfig")
            ),
        );
        let tools = root(environment).join("tools");
        let (outcome, said) = run(
            environment,
            "lfs",
            &["--read", tools.to_str().unwrap()],
            "cat old.bin; git status -s; echo bb > new.bin; git add new.bin; git commit -qm new; git show HEAD:new.bin; cat new.bin; git diff --stat",
        );
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:bb\n";
        assert_eq!(
            (outcome.code, &*said),
            (0, &*format!("aa is the content\n{pointer}bb\n")),
            "{}",
            environment.name()
        );
        assert_eq!(environment.run_outside("cd hooked && git show task/lfs:new.bin"), pointer);
        let users = root(environment).join("gitconfig");
        let path = format!("GIT_CONFIG_GLOBAL={} PATH={}:$PATH", users.display(), tools.display());
        assert_eq!(
            environment.run_outside(&format!("cd .worktrees/hooked-lfs && {path} git status -s")),
            "",
            "{}",
            environment.name()
        );
    });
}

/// Signing needs the user's keys, which an agent does not get. guard must switch it off, whatever the repository says,
/// unless the policy enables it; then the user's signing program must run inside the sandbox.
#[test]
fn commits_are_signed_only_if_the_policy_says_so() {
    in_two_environments(|environment| {
        repository(
            environment,
            "mkdir -p ../tools && cat > ../tools/fake-gpg <<'END'\n#!/bin/sh\necho '[GNUPG:] SIG_CREATED D 1 8 00 0 X' >&2\ncat > /dev/null\n\
             printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nfake\\n-----END PGP SIGNATURE-----\\n'\nEND\nchmod +x ../tools/fake-gpg\n\
             git config commit.gpgsign true && git config user.signingkey X && git config gpg.program \"$(cd ../tools && pwd)/fake-gpg\"",
        );
        let script = "echo b > b; git add b; git commit -qm b; echo code $?";
        let tools = root(environment).join("tools");
        let (_, said) = run(environment, "unsigned", &[], script);
        assert_eq!(said, "code 0\n", "{}", environment.name());
        let policy = root(environment).join("signing.toml");
        std::fs::write(
            &policy,
            "version = 1\nname = \"signing\"\nextends = \"strict\"\n[git]\nsign = true\n",
        )
        .unwrap();
        let options = ["--policy", policy.to_str().unwrap(), "--read", tools.to_str().unwrap()];
        let (_, said) = run(environment, "signed", &options, script);
        assert_eq!(said, "code 0\n", "{}", environment.name());
        let signed = |branch: &str| {
            environment.run_outside(&format!("cd hooked && git cat-file -p {branch}")).contains("gpgsig")
        };
        assert_eq!((signed("task/unsigned"), signed("task/signed")), (false, true), "{}", environment.name());
        // The signing program fails. The commit must be refused, as without guard.
        environment.run_outside("printf '#!/bin/sh\\nexit 1\\n' > tools/fake-gpg");
        let (_, said) = run(environment, "unable", &options, script);
        assert!(
            said.contains("gpg failed to sign the data") && said.contains("code 128\n"),
            "{}: {said}",
            environment.name()
        );
    });
}
