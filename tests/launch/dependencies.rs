//! git ignores the dependencies of a repository. The builds and tests of a run must find them, and must not change
//! the user's files.

use std::path::Path;

use crate::support::{
    RunOutcome, TestEnvironment, guard_program, in_every_environment, in_two_environments, one_environment,
};

/// A script that creates a repository with dependencies of three kinds (`node_modules`, `.venv`, `target`), and with
/// other files that git ignores.
const PROJECT: &str = r#"
git init -q -b main app && cd app && git config user.name n && git config user.email e
printf 'node_modules/\n.venv\ntarget\ndist\n.env\n' > .gitignore
echo '{}' > package.json
mkdir -p packages/inner && echo '{}' > packages/inner/package.json
printf '[package]\nname = "app"\n' > Cargo.toml
cat > test.sh <<'END'
node -e 'console.log(require("dep"))' && (cd packages/inner && node -e 'console.log(require("inner-dep"))')
bash -c '.venv/bin/python -c "import mine; print(mine.word)"' && .venv/bin/tool
cat target/debug/built
git status --short
echo cache > node_modules/.cache && echo "the cache is written"
echo change >> package.json && git add -A && git commit -qm work
END
git add -A && git commit -qm first
mkdir -p node_modules/dep packages/inner/node_modules/inner-dep target/debug dist
echo 'module.exports = "dep"' > node_modules/dep/index.js
echo 'module.exports = "inner-dep"' > packages/inner/node_modules/inner-dep/index.js
python3 -m venv --without-pip .venv
echo 'word = "mine"' > "$(echo .venv/lib/python3*/site-packages)/mine.py"
printf '#!%s/.venv/bin/python\nimport mine\nprint("a tool of", mine.word)\n' "$PWD" > .venv/bin/tool && chmod +x .venv/bin/tool
touch target/CACHEDIR.TAG && echo built > target/debug/built
echo SECRET=1 > .env && touch dist/out
"#;

fn run(environment: &TestEnvironment, options: &[&str], command: &[&str]) -> RunOutcome {
    let namespaces = if environment.namespaces { "require" } else { "off" };
    let mut guard = environment.command(guard_program());
    guard.args(["run", "--json", "--namespaces", namespaces]).args(options).arg("--").args(command);
    guard.current_dir(environment.directory.with_file_name("app"));
    environment.run_to_end(guard, b"")
}

// slow
#[test]
fn installed_dependencies_are_available_in_a_worktree_run() {
    in_every_environment(|environment| {
        environment.run_outside(PROJECT);
        let listing = "cd app && find node_modules packages .venv target -printf '%p %y %s %T@\\n' | sort";
        let before = environment.run_outside(listing);
        let outcome = run(environment, &["--keep"], &["bash", "test.sh"]);
        let shown = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        let mut expected = "dep\ninner-dep\nmine\na tool of mine\nbuilt\n".to_string();
        if environment.namespaces {
            expected.push_str("the cache is written\n");
        }
        assert_eq!(outcome.printed(), expected, "{}", shown());
        assert_eq!(before, environment.run_outside(listing), "{}", shown());
        // The commit must contain only the agent's work and no link, and the worktree must not contain the
        // dependencies after the run.
        let files = environment.run_outside(
            "cd app && git show --name-only --format= $(git branch --list 'task/*' --format='%(refname)')",
        );
        assert_eq!(files, "package.json\n", "{}", shown());
        let worktree = Path::new(outcome.result["worktree"]["path"].as_str().unwrap());
        assert_eq!(outcome.result["worktree"]["uncommitted"], serde_json::json!([]), "{}", shown());
        for carried in ["node_modules", "packages/inner/node_modules", ".venv", "target"] {
            assert!(worktree.join(carried).symlink_metadata().is_err(), "{carried}: {}", shown());
        }
        // guard must say which ignored files the run gets, and which it does not get.
        let said = "gets the dependencies of your checkout: .venv, node_modules, packages/inner/node_modules, target";
        assert!(outcome.error.contains(said), "{}", shown());
        assert!(
            outcome.error.contains("does not get files that git ignores: .env, dist (--copy PATH"),
            "{}",
            shown()
        );
    });
}

#[test]
fn options_choose_which_untracked_files_a_run_gets() {
    let environment = one_environment();
    environment.run_outside(PROJECT);
    let look = ["bash", "-c", "ls -d node_modules; cat .env; echo more >> .env && ls dist; touch dist/new"];
    let none = run(&environment, &["--no-deps"], &look);
    assert_eq!(none.printed(), "", "{:#}\n{}", none.result, none.error);
    let chosen = run(&environment, &["--copy", ".env", "--link", "dist"], &look);
    assert_eq!(chosen.printed(), "node_modules\nSECRET=1\nout\n", "{:#}\n{}", chosen.result, chosen.error);
    assert_eq!(environment.run_outside("cd app && cat .env && ls dist"), "SECRET=1\nout\n");
    for (option, path) in
        [("--copy", "../outside"), ("--link", "/etc"), ("--link", ".git/hooks"), ("--copy", "missing")]
    {
        let refused = run(&environment, &[option, path], &["true"]);
        assert_eq!(
            (refused.code, refused.kind()),
            (125, "invalid_input"),
            "{option} {path}: {:#}",
            refused.result
        );
        assert!(refused.result["error"].as_str().unwrap().contains(path), "{:#}", refused.result);
    }
}

/// guard must not make a directory available that is only a link with the name of a dependency directory.
#[test]
fn links_named_like_dependency_directories_are_left_out() {
    let environment = one_environment();
    environment.run_outside(PROJECT);
    environment.run_outside("mkdir secret && echo secret > secret/key && cd app && rm -r node_modules && ln -s ../secret node_modules");
    let outcome = run(
        &environment,
        &[],
        &["bash", "-c", "cat node_modules/key ../secret/key ../app/node_modules/key; true"],
    );
    assert_eq!(outcome.printed(), "", "{outcome}");
}

/// A large `node_modules` must not slow a run down: guard does not copy it, and git does not search it.
#[test]
fn large_dependency_directory_is_not_searched_or_copied() {
    let environment = one_environment();
    environment.run_outside(PROJECT);
    environment.run_outside("cd app/node_modules && for i in $(seq 500); do mkdir -p many/$i && (cd many/$i && touch $(seq 100)); done");
    let began = std::time::Instant::now();
    let with = run(&environment, &[], &["bash", "-c", "ls node_modules/many | wc -l"]);
    let took = began.elapsed();
    assert_eq!(with.printed(), "500\n", "{:#}", with.result);
    eprintln!("a run with 50,000 files in node_modules: {took:?}");
    let began = std::time::Instant::now();
    run(&environment, &["--no-deps"], &["true"]);
    eprintln!("without: {:?}", began.elapsed());
}

/// With `--with-changes` the run must get the user's uncommitted changes: changed, deleted, new, staged and binary
/// files, and no others.
#[test]
fn with_changes_brings_uncommitted_changes_along() {
    let environment = one_environment();
    environment.run_outside(PROJECT);
    environment.run_outside(
        "cd app && echo changed >> package.json && git rm -q Cargo.toml && head -c 100 /dev/urandom > 'new file' && mkdir -p a/b && \
         echo staged > a/b/staged && git add a && chmod +x test.sh && ln -s package.json link && git init -q nested",
    );
    let before = environment.run_outside("cd app && git status --short && sha1sum 'new file' package.json");
    let look = "sha1sum 'new file' package.json; ls Cargo.toml nested .env; cat a/b/staged; readlink link; test -x test.sh && echo executable";
    let outcome = run(&environment, &["--with-changes"], &["bash", "-c", look]);
    let sums = environment.run_outside("cd app && sha1sum 'new file' package.json");
    let expected = format!("{sums}staged\npackage.json\nexecutable\n");
    assert_eq!(outcome.printed(), expected, "{outcome}");
    assert!(outcome.error.contains("gets your uncommitted changes: 6 paths"), "{outcome}");
    assert_eq!(
        before,
        environment.run_outside("cd app && git status --short && sha1sum 'new file' package.json")
    );
    let without = run(&environment, &[], &["ls", "a", "Cargo.toml"]);
    assert_eq!(without.printed(), "Cargo.toml\n", "{:#}", without.result);
    assert!(without.error.contains("--with-changes includes them"), "{}", without.error);
}

/// The run must have the files of initialised submodules, and git must report no change in them.
// slow
#[test]
fn initialised_submodules_are_available_in_a_worktree_run() {
    in_two_environments(|environment| {
        environment.run_outside(PROJECT);
        environment.run_outside(
            "git init -q -b main library && cd library && git config user.name n && git config user.email e && mkdir deep && \
             echo library > deep/file && git add . && git commit -qm library && cd ../app && \
             git -c protocol.file.allow=always submodule --quiet add ../library library && git commit -qm library",
        );
        let script = [
            "bash",
            "-c",
            "cat library/deep/file; git status --short; echo x > work; git add -A; git commit -qm work",
        ];
        let outcome = run(environment, &["--keep"], &script);
        let shown = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(outcome.printed(), "library\n", "{}", shown());
        let files = environment.run_outside(
            "cd app && git show --name-only --format= $(git branch --list 'task/*' --format='%(refname)')",
        );
        assert_eq!(files, "work\n", "{}", shown());
        assert_eq!(environment.run_outside("cd app && git status --short"), "");
    });
}

/// guard must receive a commit without delay. The git processes that it no longer needs must end at once, although
/// guard blocks SIGTERM at that time.
#[test]
fn commit_is_received_without_delay() {
    let environment = one_environment();
    environment.run_outside(PROJECT);
    let commit = ["bash", "-c", "echo x >> package.json && git commit -qam x"];
    // The usual time is a tenth of this limit. If guard had to kill both git processes, it would take two seconds for
    // each.
    let is_fast = (0..20).any(|_| {
        let outcome = run(&environment, &[], &commit);
        assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
        outcome.took < std::time::Duration::from_secs(4)
    });
    assert!(is_fast, "every run took 4 seconds or more");
}
