// slow
//! An earlier run has planted files for a later run, or is still running. The later run must not be affected by it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::{TestEnvironment, in_every_environment, in_two_environments};

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Runs guard in a directory of the environment. Returns its exit code and everything it printed.
fn guard_in(environment: &TestEnvironment, folder: &str, options: &[&str], script: &str) -> (i32, String) {
    let mut command = environment.command(crate::support::guard_program());
    let namespaces = if environment.namespaces { "require" } else { "off" };
    command.args(["run", "-q", "--namespaces", namespaces]).args(options).args(["--", "bash", "-c", script]);
    let users = root(environment).join("gitconfig");
    if users.exists() {
        command.env("GIT_CONFIG_GLOBAL", users);
    }
    let outcome = environment.run_to_end(
        {
            command.current_dir(root(environment).join(folder));
            command
        },
        b"",
    );
    (outcome.code, format!("{}{}", String::from_utf8_lossy(&outcome.output), outcome.error))
}

/// A script that makes a repository whose filters create a marker file, and stores its git directory as the ordinary
/// directory `template`.
const TEMPLATE: &str = "git init -q -b main t && cd t && git config user.name a && git config user.email a@b
echo x > x.bin && echo '*.bin filter=evil' > .gitattributes && git add . && git commit -qm x
for way in smudge clean; do git config filter.evil.$way \"touch '$CANARY'; cat\"; done
rm -r .git/hooks .git/logs && mv .git template && cd ..
git init -q -b main p && cd p && git config user.name U && git config user.email u@e && cp -r ../t sub && git add . && git commit -qm first
cd .. && cp -r t plain && mv plain/template/HEAD plain/template/head";

/// One run plants a repository whose configuration names programs. The next run starts in that directory and must not
/// execute them.
#[test]
fn repository_planted_by_an_earlier_run_executes_nothing() {
    in_every_environment(|environment| {
        let (name, canary) = (environment.name(), root(environment).join("CANARY"));
        environment.run_outside(&format!("CANARY='{}'\n{TEMPLATE}", canary.display()));
        // The run plants the repository by a rename, without git.
        let plant = "python3 -c 'import os; os.rename(\"template\", \".git\")'; ls -d .git";
        let (code, said) = guard_in(environment, "p/sub", &["--name", "one", "--keep"], plant);
        assert!(code == 0 && said.ends_with(".git\n"), "{name}: {said}");
        // guard would protect a repository that exists before the run. `plain/template` becomes one only when the run
        // renames its file `head` to `HEAD`.
        let plant = "python3 -c 'import os; os.rename(\"template\", \".git\"); os.rename(\".git/head\", \".git/HEAD\")'; ls -d .git";
        let (code, said) = guard_in(environment, "plain", &["--in-place"], plant);
        assert!(code == 0 && said.ends_with(".git\n"), "{name}: {said}");
        for folder in [".worktrees/p-one/sub", "plain"] {
            let before =
                environment.run_outside(&format!("cd {folder} && find . -type f | sort | xargs sha256sum"));
            let listing = environment.run_outside("find .worktrees plain state/guard -maxdepth 2 | sort");
            let (code, said) = guard_in(environment, folder, &["--name", "two"], "true");
            assert_eq!(code, 125, "{name}: {said}");
            for wanted in ["filter.evil.smudge = touch", "filter.evil.clean = touch", "--trust-repository"] {
                assert!(said.contains(wanted), "{name}: {wanted:?} in {said}");
            }
            assert!(!canary.exists(), "{name}: {folder}");
            let after =
                environment.run_outside(&format!("cd {folder} && find . -type f | sort | xargs sha256sum"));
            assert_eq!(before, after, "{name}");
            let left = environment.run_outside("find .worktrees plain state/guard -maxdepth 2 | sort");
            assert_eq!(listing, left, "{name}: {folder}");
            let (code, said) =
                guard_in(environment, folder, &["--name", "two", "--trust-repository"], "true");
            assert!(code == 0 && canary.exists(), "{name}: it is real: {said}");
            std::fs::remove_file(&canary).unwrap();
        }
    });
}

/// guard must run a filter from the user's global configuration even if the user does not trust the repository. guard
/// must refuse a repository that changes what this filter runs.
#[test]
fn global_filter_runs_unless_the_repository_changes_its_command() {
    in_two_environments(|environment| {
        let name = environment.name();
        environment.run_outside(
            "git init -q -b main p && cd p && git config user.name U && git config user.email u@e && mkdir -p a/b \
             && echo x > a/b/x.bin && echo '*.bin filter=up' > .gitattributes && git add . && git commit -qm first
             for file in ../gitconfig .git/config; do git config -f $file filter.up.smudge 'tr a-z A-Z' \
             && git config -f $file filter.up.clean 'tr A-Z a-z'; done",
        );
        let (code, said) = guard_in(environment, "p", &["--name", "same"], "cat a/b/x.bin");
        assert_eq!((code, &*said), (0, "X\n"), "{name}");
        environment.run_outside("git config -f p/.git/config filter.up.smudge 'tr x y'");
        let (code, said) = guard_in(environment, "p", &["--name", "other"], "cat a/b/x.bin");
        assert!(code == 125 && said.contains("filter.up.smudge = tr x y"), "{name}: {said}");
        environment.run_outside("git config -f p/.git/config --unset filter.up.smudge");
        for (key, value) in [
            ("lfs.customtransfer.evil.path", "evil"),
            ("lfs.extension.evil.smudge", "evil"),
            ("lfs.standalonetransferagent", "evil"),
            ("core.sshCommand", "evil"),
            ("credential.helper", "!evil"),
        ] {
            environment.run_outside(&format!("git config -f p/.git/config {key} '{value}'"));
            let (code, said) = guard_in(environment, "p", &["--name", "told"], "true");
            assert!(code == 125 && said.contains(&key.to_lowercase()), "{name}: {key}: {said}");
            environment.run_outside(&format!("git config -f p/.git/config --unset {key}"));
        }
        // If the user's configuration has no such filter, guard must accept a repository that sets `core.sshCommand`.
        environment.run_outside(
            "rm gitconfig; git -C p config --unset filter.up.clean; git -C p config core.sshCommand x",
        );
        let (code, said) = guard_in(environment, "p", &["--name", "plain"], "true");
        assert_eq!((code, &*said), (0, ""), "{name}");
        // guard must not resolve a relative path in the configuration from the directory in which it is started.
        environment.run_outside("echo SECRET > p/secret; git -C p config core.excludesFile ../../secret");
        let script = "cat $(git rev-parse --git-dir)/info/user-excludes";
        let (_, said) = guard_in(environment, "p/a/b", &["--name", "relative"], script);
        assert!(!said.contains("SECRET"), "{name}: {said}");
    });
}

/// guard must refuse a second run in the same worktree, and must receive the commits of the first one.
#[test]
fn first_run_is_received_while_a_second_in_its_worktree_is_refused() {
    in_every_environment(|environment| {
        let name = environment.name();
        let first = "touch started; while [ ! -e go ]; do sleep 0.02; done; rm started go
                     echo w > w; git add w; git -c user.name=n -c user.email=e commit -qm work";
        let mut command = environment.guard_run(&["-q", "--here"], &["bash", "-c", first]);
        let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
        let began = Instant::now();
        while !environment.directory.join("started").exists() {
            assert!(began.elapsed() < Duration::from_secs(120), "{name}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (code, said) = guard_in(environment, "project", &["--here"], "echo second");
        assert_eq!(code, 125, "{name}: {said}");
        // Without namespaces, `.git` of the worktree leads to the private repository of the first run, and guard
        // refuses it for that reason.
        let wanted =
            if environment.namespaces { "in use by another guard" } else { "do not point to each other" };
        assert!(said.contains(wanted) && !said.contains("second"), "{name}: {said}");
        environment.run_outside("touch project/go");
        let outcome = environment.collect_outcome(child.unwrap(), began);
        assert_eq!(outcome.code, 0, "{name}: {outcome}");
        let log = environment
            .run_outside("git -C project log --format=%s && git -C project status -s && ls project");
        assert_eq!(log, "work\nfirst\ntracked\nw\n", "{name}");
        let (code, said) = guard_in(environment, "project", &["--here"], "echo third");
        assert_eq!((code, &*said), (0, "third\n"), "{name}");
    });
}
