// slow
//! An earlier run has replaced files and directories of the user's checkout by links, or has written files that name
//! other directories. guard must not copy or link what they lead to into the next run.

use std::path::PathBuf;
use std::process::Stdio;

use crate::support::{TestEnvironment, guard_program, in_every_environment, in_two_environments};

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Runs guard in a directory of the environment. Returns its exit code and everything it printed. If the environment
/// has a file `gitconfig` or a directory `home`, guard uses it as the user's.
fn guard_in(environment: &TestEnvironment, folder: &str, options: &[&str], script: &str) -> (i32, String) {
    let mut command = environment.command(guard_program());
    let namespaces = if environment.namespaces { "require" } else { "off" };
    command.args(["run", "--namespaces", namespaces]).args(options).args(["--", "bash", "-c", script]);
    let root = root(environment);
    if root.join("gitconfig").exists() {
        command.env("GIT_CONFIG_GLOBAL", root.join("gitconfig"));
    }
    if root.join("home").exists() {
        command.env("HOME", root.join("home"));
    }
    command.current_dir(root.join(folder));
    let outcome = environment.run_to_end(command, b"");
    (outcome.code, format!("{}{}", String::from_utf8_lossy(&outcome.output), outcome.error))
}

/// A script that makes the repository `p`, a private directory and a private repository beside it, and a configuration
/// of the user with relative paths.
const SETUP: &str = r#"
mkdir -p private/_ && echo THE-SECRET > private/key && cp private/key private/_/key
git init -q -b main secret && git -C secret config user.name U && git -C secret config user.email u@e
echo THE-SECRET > secret/key && git -C secret add . && git -C secret commit -qm secret
git init -q -b main p && cd p && git config user.name U && git config user.email u@e
mkdir -p .githooks .husky/_ && echo '*.ignored' > .personal && echo '* text=auto' > .attributes && echo .env > .gitignore
printf '#!/bin/sh\necho the hook ran\n' > .githooks/pre-commit && chmod +x .githooks/pre-commit
cp .githooks/pre-commit .husky/pre-commit && cp .githooks/pre-commit .husky/_/pre-commit
git add . && git commit -qm first && echo THE-SECRET > .env && cd ..
git config -f gitconfig core.excludesFile .personal && git config -f gitconfig core.attributesFile .attributes
git config -f gitconfig core.hooksPath .githooks
"#;

/// Prints the names and contents of all files that guard copied for git.
const LOOK: &str = r#"
git_dir=$(git rev-parse --absolute-git-dir); hooks=$(git config core.hooksPath)
find "$git_dir/info" "${hooks%/_}" -type f 2>/dev/null | while read -r file; do echo "copied ${file##*/}"; cat "$file"; done
"#;

#[test]
fn hooks_and_ignore_files_replaced_by_links_are_left_out() {
    in_every_environment(|environment| {
        let (name, root) = (environment.name(), root(environment));
        environment.run_outside(SETUP);
        let private = root.join("private");
        let private = private.display();
        for (index, (hooks, plant, link)) in [
            (".githooks", "rm -r .githooks && ln -s PRIVATE .githooks", ".githooks"),
            (".githooks", "ln -s PRIVATE/key .githooks/commit-msg", ".githooks/commit-msg"),
            (".githooks", "ln -s PRIVATE .githooks/more", ".githooks/more"),
            (".husky/_", "rm -r .husky && ln -s PRIVATE .husky", ".husky"),
            (".husky/_", "rm -r .husky/_ && ln -s PRIVATE .husky/_", ".husky/_"),
            (".githooks", "rm .personal && ln -s PRIVATE/key .personal", ".personal"),
            (".githooks", "rm .attributes && ln -s PRIVATE/key .attributes", ".attributes"),
        ]
        .into_iter()
        .enumerate()
        {
            environment.run_outside(&format!("git config -f gitconfig core.hooksPath {hooks}"));
            let task = format!("n{index}");
            let plant = plant.replace("PRIVATE", &private.to_string());
            let (code, said) = guard_in(environment, "p", &["--name", &task, "--keep"], &plant);
            assert_eq!(code, 0, "{name}: {plant}: {said}");
            let worktree = format!(".worktrees/p-{task}");
            for (folder, options) in
                [(&*worktree, vec!["--here", "--keep"]), ("p", vec!["--name", &task, "--continue", "--keep"])]
            {
                let (code, said) = guard_in(environment, folder, &options, LOOK);
                assert_eq!(code, 0, "{name}: {plant}: {said}");
                assert!(!said.contains("THE-SECRET"), "{name}: {options:?}: {plant}: {said}");
                let note = format!("{worktree}/{link} is a symbolic link to {private}");
                assert!(said.contains("the run does not get") && said.contains(&note), "{name}: {said}");
            }
            let log = environment.run_outside(
                "cat state/guard/runs/*/transcript.jsonl | grep -c 'an agent could have created' || true",
            );
            assert_ne!(log.trim(), "0", "{name}: the transcript has the note");
        }
    });
}

/// A link may lead to another file of the checkout, but not to one that the run does not get anyway.
#[test]
fn hook_replaced_by_a_link_to_an_ignored_file_is_left_out() {
    in_every_environment(|environment| {
        let name = environment.name();
        environment.run_outside(SETUP);
        environment.run_outside(
            "cd p && echo '#!/bin/sh' > check && ln -s ../check .githooks/post-commit && git add . && git commit -qm check",
        );
        let plant = "ln -s ../.env .githooks/commit-msg && ln -s ../.git/config .githooks/post-merge && rm .personal && ln -s .env .personal \
                     && ln -s .. .githooks/round && git add . && git commit -qm links";
        let (code, said) = guard_in(environment, "p", &["--name", "one"], plant);
        assert_eq!(code, 0, "{name}: {said}");
        environment.run_outside("cd p && rm -f .personal && git merge -q task/one");
        let (code, said) = guard_in(environment, "p", &["--name", "two"], LOOK);
        assert_eq!(code, 0, "{name}: {said}");
        assert!(!said.contains("THE-SECRET") && !said.contains("[core]"), "{name}: {said}");
        assert!(said.contains("copied pre-commit") && said.contains("copied post-commit"), "{name}: {said}");
        for left_out in ["p/.env, which is not in the run's worktree", "p/.git/config, which is not in"] {
            assert!(said.contains(left_out), "{name}: {left_out}: {said}");
        }
    });
}

/// A hooks directory that contains the repository would give the run everything in it.
#[test]
fn hooks_directory_that_contains_the_repository_is_left_out() {
    in_two_environments(|environment| {
        let name = environment.name();
        environment.run_outside(SETUP);
        for path in [".", ".git", "_", "../p/.githooks/.."] {
            environment.run_outside(&format!(
                "mkdir -p p/_ && rm -f gitconfig; git -C p config core.hooksPath {path}; \
                 echo THE-SECRET > p/.git/description"
            ));
            let (code, said) = guard_in(environment, "p", &["--name", "two", "--discard"], LOOK);
            assert_eq!(code, 0, "{name}: {path}: {said}");
            assert!(!said.contains("THE-SECRET"), "{name}: {path}: {said}");
            assert!(said.contains("contains the repository"), "{name}: {path}: {said}");
        }
    });
}

#[test]
fn hooks_directory_with_links_of_the_user_works() {
    in_every_environment(|environment| {
        let name = environment.name();
        environment.run_outside(SETUP);
        environment.run_outside(
            "mkdir hooks scripts && printf '#!/bin/sh\\necho my own hook\\n' > scripts/check && chmod +x scripts/check \
             && ln -s ../scripts/check hooks/pre-commit && ln -s hooks linked && git config -f gitconfig core.hooksPath \"$PWD/linked\" \
             && ln -s p/.personal excludes && git config -f gitconfig core.excludesFile \"$PWD/excludes\"",
        );
        let script = "touch a.ignored b; git add b && git commit -qm b; git status --short";
        let (code, said) = guard_in(environment, "p", &["-q", "--name", "one"], script);
        assert!(code == 0 && said.ends_with("\nmy own hook\n") && !said.contains(" link"), "{name}: {said}");
    });
}

/// `.gitmodules` is a file of the commit. The directories that it names may be something else in the user's checkout.
#[test]
fn directory_that_is_not_the_submodule_any_more_is_not_copied() {
    in_every_environment(|environment| {
        let (name, root) = (environment.name(), root(environment));
        environment.run_outside(SETUP);
        environment.run_outside(
            "git init -q -b main library && cd library && git config user.name n && git config user.email e && echo library > file \
             && git add . && git commit -qm library && cd ../p && rm -rf ../gitconfig \
             && for at in lib own deps/lib; do git -c protocol.file.allow=always submodule --quiet add ../library $at; done \
             && git commit -qm modules && git submodule --quiet deinit -f lib deps/lib \
             && git clone -q ../secret nested && mkdir -p ../outer && cp -r ../secret ../outer/lib",
        );
        // Runs that work in the checkout itself, or whose work the user has merged, leave these links.
        let plant = format!(
            "rmdir lib deps/lib deps && ln -s '{0}/secret' lib && ln -s '{0}/outer' deps",
            root.display()
        );
        environment.run_outside(&format!("cd p && {plant}"));
        // A branch names the private repository in the user's checkout, and a directory above it, as submodules.
        let branch = "id=$(git rev-parse HEAD:own); for at in nested ../secret; do printf '[submodule \"%s\"]\\npath = %s\\nurl = https://localhost/x\\n' ${at#../} $at; \
                      done >> .gitmodules; git add .gitmodules; \
                      git update-index --add --cacheinfo 160000,$id,nested; git commit -qm modules";
        let (code, said) = guard_in(environment, "p", &["--name", "one"], branch);
        assert_eq!(code, 0, "{name}: {said}");
        let look = "cat own/file; find . -not -path './.git/*' -type f; cat lib/key deps/lib/key nested/key ../secret/key; true";
        let (code, said) = guard_in(environment, "p", &["--name", "two", "--base", "task/one"], look);
        assert_eq!(code, 0, "{name}: {said}");
        assert!(!said.contains("THE-SECRET") && said.contains("library\n"), "{name}: {said}");
        for note in [
            "the run does not get the submodule lib: a symbolic link is in the path",
            "the run does not get the submodule deps/lib: a symbolic link is in the path",
            "the run does not get the submodule nested: ",
        ] {
            assert!(said.contains(note), "{name}: {note}: {said}");
        }
    });
}

#[test]
fn untracked_files_replaced_by_links_are_refused_or_left_out() {
    in_every_environment(|environment| {
        let (name, root) = (environment.name(), root(environment));
        environment.run_outside(SETUP);
        environment.run_outside("rm gitconfig; cd p && mkdir conf && echo 1 > conf/local && echo 2 > plain");
        let plant = "rm -r conf .env && ln -s ../private conf && ln -s ../private/key .env && mkdir tree && ln -s ../../private tree/out";
        environment.run_outside(&format!("cd p && {plant}"));
        let private = root.join("private");
        for (option, path, link) in [
            ("--copy", ".env", ".env"),
            ("--copy", "conf/key", "conf"),
            ("--link", "conf", "conf"),
            ("--link", "conf/_", "conf"),
        ] {
            let (code, said) = guard_in(environment, "p", &["--name", "no", option, path], "true");
            let problem = format!("{option} {path}: {}/p/{link} is a symbolic link to", root.display());
            assert!(code == 125 && said.contains(&problem), "{name}: {said}");
            assert!(said.contains("--trust-repository"), "{name}: {said}");
        }
        std::fs::write(
            root.join("policy.toml"),
            "version = 1\nname = \"mine\"\nextends = \"standard\"\n[worktree]\noverride = true\ncopy = [\".env\", \"plain\", \"conf/key\"]\nlink_readonly = [\"conf\"]\n",
        )
        .unwrap();
        environment.give_to_user(&root.join("policy.toml"));
        let look = format!("cat plain; cat .env conf/key tree/out/key '{}/key'; true", private.display());
        let policy = root.join("policy.toml").display().to_string();
        let options = ["--name", "one", "--policy", &policy, "--copy", "tree"];
        let (code, said) = guard_in(environment, "p", &options, &look);
        assert!(code == 0 && said.contains("2\n") && !said.contains("THE-SECRET"), "{name}: {said}");
        for path in [".env", "conf", "conf/key"] {
            assert!(said.contains(&format!("the run does not get {path}: ")), "{name}: {path}: {said}");
        }
        // The copy of a directory contains its links, but the run may not read what they lead to.
        let (code, said) = guard_in(
            environment,
            "p",
            &["--name", "two", "--copy", "tree"],
            "readlink tree/out; cat tree/out/key",
        );
        assert!(
            code != 0 && said.contains("../../private\n") && !said.contains("THE-SECRET"),
            "{name}: {said}"
        );
        let (code, said) = guard_in(
            environment,
            "p",
            &["--name", "three", "--trust-repository", "--copy", ".env"],
            "cat .env",
        );
        assert!(code == 0 && said.contains("THE-SECRET"), "{name}: the user trusts the link: {said}");
    });
}

/// Another run may work in the user's checkout itself, and replace dependencies at any moment.
#[test]
fn dependencies_replaced_by_links_during_the_copy_lead_nowhere_else() {
    in_two_environments(|environment| {
        let name = environment.name();
        environment.run_outside(SETUP);
        environment.run_outside("rm gitconfig; cd p && mkdir node_modules && echo own > node_modules/key && echo node_modules >> .git/info/exclude");
        let swap = "cd p; for i in $(seq 20000); do [ ! -e ../stop ] || exit 0; \
                    mv node_modules ../away; ln -s ../private node_modules; rm node_modules; mv ../away node_modules; done";
        let mut swapper = environment.command("bash");
        swapper.args(["-c", swap]).current_dir(root(environment)).stderr(Stdio::null());
        let mut swapper = swapper.spawn().unwrap();
        let mut own = 0;
        let mut foreign = None;
        for round in 0..8 {
            let task = format!("n{round}");
            let (_, said) = guard_in(environment, "p", &["-q", "--name", &task], "cat node_modules/key");
            own += usize::from(said.contains("own"));
            foreign = foreign.or(said.contains("THE-SECRET").then_some(said));
        }
        environment.run_outside("touch stop");
        swapper.wait().unwrap();
        assert!(!environment.namespaces || foreign.is_none(), "{name}: {foreign:?}");
        eprintln!("{name}: {own} of 8 runs got the dependencies");
    });
}

/// A repository with the user's dotfiles is a place in which agents work.
#[test]
fn imported_file_replaced_by_a_link_is_left_out() {
    in_every_environment(|environment| {
        let (name, root) = (environment.name(), root(environment));
        environment.run_outside(SETUP);
        environment.run_outside(
            "rm gitconfig; mkdir home && git init -q -b main dotfiles && echo registry=x > dotfiles/toolrc && echo set nu > dotfiles/vimrc \
             && ln -s ../dotfiles/toolrc home/.toolrc && ln -s ../dotfiles/vimrc home/.vimrc",
        );
        environment.run_outside("cd dotfiles && rm toolrc && ln -s ../private/key toolrc");
        std::fs::write(
            root.join("policy.toml"),
            "version = 1\nname = \"mine\"\nextends = \"standard\"\n[home]\noverride = true\nimport = [\"~/.toolrc\", \"~/.vimrc\"]\n",
        )
        .unwrap();
        environment.give_to_user(&root.join("policy.toml"));
        let policy = root.join("policy.toml").display().to_string();
        let options = ["--name", "one", "--policy", &policy];
        let (code, said) = guard_in(environment, "p", &options, "cat ~/.vimrc ~/.toolrc; true");
        assert!(code == 0 && said.contains("set nu\n") && !said.contains("THE-SECRET"), "{name}: {said}");
        let log = environment.run_outside("cat state/guard/runs/*/transcript.jsonl");
        assert!(log.contains("the run does not get ~/.toolrc: "), "{name}: {log}");
    });
}

/// guard saves files of agents between runs. They must not become programs.
#[test]
fn saved_files_lose_their_executable_bits() {
    in_every_environment(|environment| {
        let (name, root) = (environment.name(), root(environment));
        environment.run_outside(SETUP);
        let saved = root.join("state/guard/saved");
        let place = saved.display().to_string();
        let options = ["--name", "one", "--home-keep", "bin", "--home-to", &place];
        let script = "mkdir ~/bin && printf '#!/bin/sh\\n' > ~/bin/git && chmod 755 ~/bin/git && mkfifo ~/bin/pipe && ln -s /etc ~/bin/etc";
        let (code, said) = guard_in(environment, "p", &options, script);
        assert_eq!(code, 0, "{name}: {said}");
        let modes = || environment.run_outside("cd state/guard/saved && find bin -printf '%m %p\\n' | sort");
        assert_eq!(modes(), "600 bin/git\n700 bin\n", "{name}");
        // An earlier version of guard saved the files with their modes.
        environment.run_outside("chmod 755 state/guard/saved/bin/git state/guard/saved/bin");
        let options = ["--name", "two", "--home-from", &place];
        let (code, said) = guard_in(environment, "p", &options, "test -f ~/bin/git && ! test -x ~/bin/git");
        assert_eq!(code, 0, "{name}: {said}");
        assert_eq!(modes(), "600 bin/git\n700 bin\n", "{name}");
    });
}
