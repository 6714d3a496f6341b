//! A repository whose dependencies git ignores: a task's builds and tests find them, and change nothing of the user's.

use std::path::Path;

use super::world::{Ran, World, in_every_world, in_two_worlds, one_world, program};

/// A project with dependencies of three kinds, and other things that git ignores.
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

fn run(world: &World, options: &[&str], command: &[&str]) -> Ran {
    let namespaces = if world.namespaces { "require" } else { "off" };
    let mut guard = world.command(program());
    guard.args(["run", "--json", "--namespaces", namespaces]).args(options).arg("--").args(command);
    guard.current_dir(world.folder.with_file_name("app"));
    world.finish(guard, b"")
}

#[test]
fn dependencies_come_along() {
    in_every_world(|world| {
        world.outside(PROJECT);
        let listing = "cd app && find node_modules packages .venv target -printf '%p %y %s %T@\\n' | sort";
        let before = world.outside(listing);
        let ran = run(world, &["--keep"], &["bash", "test.sh"]);
        let shown = || format!("{}: {:#}\n{}", world.name(), ran.result, ran.error);
        let mut expected = "dep\ninner-dep\nmine\na tool of mine\nbuilt\n".to_string();
        if world.namespaces {
            expected.push_str("the cache is written\n");
        }
        assert_eq!(ran.printed(), expected, "{}", shown());
        assert_eq!(before, world.outside(listing), "{}", shown());
        // What was committed is the work, and no link; nothing of it is left in the worktree.
        let files = world.outside(
            "cd app && git show --name-only --format= $(git branch --list 'task/*' --format='%(refname)')",
        );
        assert_eq!(files, "package.json\n", "{}", shown());
        let worktree = Path::new(ran.result["worktree"]["path"].as_str().unwrap());
        assert_eq!(ran.result["worktree"]["uncommitted"], serde_json::json!([]), "{}", shown());
        for carried in ["node_modules", "packages/inner/node_modules", ".venv", "target"] {
            assert!(worktree.join(carried).symlink_metadata().is_err(), "{carried}: {}", shown());
        }
        // It is said what came along and what did not.
        let said = "gets the dependencies of your checkout: .venv, node_modules, packages/inner/node_modules, target";
        assert!(ran.error.contains(said), "{}", shown());
        assert!(
            ran.error.contains("does not get files that git ignores: .env, dist (--copy PATH"),
            "{}",
            shown()
        );
    });
}

#[test]
fn the_user_chooses_what_comes_along() {
    let world = one_world();
    world.outside(PROJECT);
    let look = ["bash", "-c", "ls -d node_modules; cat .env; echo more >> .env && ls dist; touch dist/new"];
    let none = run(&world, &["--no-deps"], &look);
    assert_eq!(none.printed(), "", "{:#}\n{}", none.result, none.error);
    let chosen = run(&world, &["--copy", ".env", "--link", "dist"], &look);
    assert_eq!(chosen.printed(), "node_modules\nSECRET=1\nout\n", "{:#}\n{}", chosen.result, chosen.error);
    assert_eq!(world.outside("cd app && cat .env && ls dist"), "SECRET=1\nout\n");
    for (option, path) in
        [("--copy", "../outside"), ("--link", "/etc"), ("--link", ".git/hooks"), ("--copy", "missing")]
    {
        let refused = run(&world, &[option, path], &["true"]);
        assert_eq!(
            (refused.code, refused.kind()),
            (125, "invalid_input"),
            "{option} {path}: {:#}",
            refused.result
        );
        assert!(refused.result["error"].as_str().unwrap().contains(path), "{:#}", refused.result);
    }
}

/// Directories that only look like dependencies lead nowhere.
#[test]
fn links_to_other_places_do_not_come_along() {
    let world = one_world();
    world.outside(PROJECT);
    world.outside("mkdir secret && echo secret > secret/key && cd app && rm -r node_modules && ln -s ../secret node_modules");
    let ran =
        run(&world, &[], &["bash", "-c", "cat node_modules/key ../secret/key ../app/node_modules/key; true"]);
    assert_eq!(ran.printed(), "", "{:#}", ran.result);
}

/// A large `node_modules` costs next to nothing: it is not copied, and git does not look into it.
#[test]
fn a_large_directory_is_not_looked_at() {
    let world = one_world();
    world.outside(PROJECT);
    world.outside("cd app/node_modules && for i in $(seq 500); do mkdir -p many/$i && (cd many/$i && touch $(seq 100)); done");
    let began = std::time::Instant::now();
    let with = run(&world, &[], &["bash", "-c", "ls node_modules/many | wc -l"]);
    let took = began.elapsed();
    assert_eq!(with.printed(), "500\n", "{:#}", with.result);
    eprintln!("a run with 50,000 files in node_modules: {took:?}");
    let began = std::time::Instant::now();
    run(&world, &["--no-deps"], &["true"]);
    eprintln!("without: {:?}", began.elapsed());
}

/// Uncommitted work comes along when that is asked for: changed, deleted, new, staged and binary files, and no others.
#[test]
fn uncommitted_changes_come_along_when_asked_for() {
    let world = one_world();
    world.outside(PROJECT);
    world.outside(
        "cd app && echo changed >> package.json && git rm -q Cargo.toml && head -c 100 /dev/urandom > 'new file' && mkdir -p a/b && \
         echo staged > a/b/staged && git add a && chmod +x test.sh && ln -s package.json link && git init -q nested",
    );
    let before = world.outside("cd app && git status --short && sha1sum 'new file' package.json");
    let look = "sha1sum 'new file' package.json; ls Cargo.toml nested .env; cat a/b/staged; readlink link; test -x test.sh && echo executable";
    let ran = run(&world, &["--with-changes"], &["bash", "-c", look]);
    let sums = world.outside("cd app && sha1sum 'new file' package.json");
    let expected = format!("{sums}staged\npackage.json\nexecutable\n");
    assert_eq!(ran.printed(), expected, "{:#}\n{}", ran.result, ran.error);
    assert!(ran.error.contains("gets your uncommitted changes: 6 paths"), "{}", ran.error);
    assert_eq!(before, world.outside("cd app && git status --short && sha1sum 'new file' package.json"));
    let without = run(&world, &[], &["ls", "a", "Cargo.toml"]);
    assert_eq!(without.printed(), "Cargo.toml\n", "{:#}", without.result);
    assert!(without.error.contains("--with-changes includes them"), "{}", without.error);
}

/// The files of initialised submodules are there, and git sees nothing in them.
#[test]
fn submodules_come_along() {
    in_two_worlds(|world| {
        world.outside(PROJECT);
        world.outside(
            "git init -q -b main library && cd library && git config user.name n && git config user.email e && mkdir deep && \
             echo library > deep/file && git add . && git commit -qm library && cd ../app && \
             git -c protocol.file.allow=always submodule --quiet add ../library library && git commit -qm library",
        );
        let script = [
            "bash",
            "-c",
            "cat library/deep/file; git status --short; echo x > work; git add -A; git commit -qm work",
        ];
        let ran = run(world, &["--keep"], &script);
        let shown = || format!("{}: {:#}\n{}", world.name(), ran.result, ran.error);
        assert_eq!(ran.printed(), "library\n", "{}", shown());
        let files = world.outside(
            "cd app && git show --name-only --format= $(git branch --list 'task/*' --format='%(refname)')",
        );
        assert_eq!(files, "work\n", "{}", shown());
        assert_eq!(world.outside("cd app && git status --short"), "");
    });
}

/// Receiving waits for nothing: a git that guard has no more questions for ends at once, although guard blocks SIGTERM then.
#[test]
fn a_commit_is_received_without_delay() {
    let world = one_world();
    world.outside(PROJECT);
    let commit = ["bash", "-c", "echo x >> package.json && git commit -qam x"];
    let fastest = (0..4).map(|_| run(&world, &[], &commit)).map(|ran| {
        assert_eq!(ran.result["commits"].as_array().map(Vec::len), Some(1), "{:#}", ran.result);
        ran.took
    });
    let fastest = fastest.min().unwrap();
    // It is a tenth of that; a git that must be killed takes two seconds, and there are two of them.
    assert!(fastest < std::time::Duration::from_secs(4), "{fastest:?}");
}
