// slow
//! A run without mounts must get its package caches when a program uses them, and not before.

use std::path::PathBuf;

use crate::support::{RunOutcome, TestEnvironment, in_every_environment};

/// Creates a home directory with one entry in npm's cache, and a program `npm` that reads this entry and adds a
/// second entry.
fn furnish(environment: &TestEnvironment) -> PathBuf {
    environment.run_outside(
        "mkdir -p own/.npm/_cacache/content-v2/sha512/ab/cd && echo kept > own/.npm/_cacache/content-v2/sha512/ab/cd/ef \
         && printf '#!/bin/bash\\ncd \"${1-$HOME}\"/.npm/_cacache/content-v2/sha512/ab/cd && cat ef && echo new > gh && cat gh\\n' \
         > project/npm && chmod +x project/npm",
    );
    environment.temporary_directory().with_file_name("own")
}

fn run(environment: &TestEnvironment, home: &PathBuf, command: &[&str]) -> RunOutcome {
    let mut guard = environment.guard_run(&["--json"], command);
    guard.env("HOME", home);
    let outcome = environment.run_to_end(guard, b"");
    outcome.expect_code(0);
    let folder = outcome.transcript();
    for left in ["links", "home", "layers"] {
        assert!(!folder.with_file_name(left).exists(), "{}: {left} is left", environment.name());
    }
    outcome
}

#[test]
fn program_finds_its_cache_and_can_add_to_it() {
    in_every_environment(|environment| {
        let home = furnish(environment);
        let added = home.join(".npm/_cacache/content-v2/sha512/ab/cd/gh");
        // The run starts the program directly, or through another program.
        for command in [&["./npm"][..], &["bash", "-c", "./npm; true"], &["perl", "-e", "system('./npm')"]] {
            let outcome = run(environment, &home, command);
            assert_eq!(outcome.printed(), "kept\nnew\n", "{}: {command:?}", environment.name());
            assert!(!added.exists(), "{}: the user's own cache was changed", environment.name());
        }
    });
}

#[test]
fn run_without_cache_programs_creates_no_cache_links() {
    in_every_environment(|environment| {
        let home = furnish(environment);
        // `echo *` is part of the shell, so the run starts no further program, and guard must not have created the
        // links yet.
        let outcome = run(environment, &home, &["bash", "-c", "cd ~/.npm/_cacache && echo *"]);
        let found = if environment.namespaces { "content-v2\n" } else { "*\n" };
        assert_eq!(outcome.printed(), found, "{}", environment.name());
    });
}

/// guard creates the cache links while the run works. guard must not follow a link that the run put in the place of a
/// directory.
#[test]
fn cache_links_are_not_created_through_links_of_the_run() {
    in_every_environment(|environment| {
        if environment.namespaces {
            return;
        }
        let home = furnish(environment);
        environment.run_outside("mkdir -p victim/_cacache");
        let victim = home.with_file_name("victim");
        let script = "rename \"$ENV{HOME}/.npm\", \"$ENV{HOME}/moved\" or die; symlink $ARGV[0], \"$ENV{HOME}/.npm\" or die; \
                      rename \"$ENV{HOME}/moved\", \"$ENV{HOME}/m\" or die; mkdir \"$ENV{HOME}/x\"; \
                      rename \"$ENV{HOME}/m\", \"$ENV{HOME}/x/.npm\" or die; system('./npm', \"$ENV{HOME}/x\") and die; exit 0";
        let outcome = run(environment, &home, &["perl", "-e", script, "--", &victim.to_string_lossy()]);
        // guard must have created the links in the directory that existed before the run began.
        assert_eq!(outcome.printed(), "kept\nnew\n", "{}", environment.name());
        let reached: Vec<_> = std::fs::read_dir(victim.join("_cacache")).unwrap().collect();
        assert!(reached.is_empty(), "{}: {reached:?}", environment.name());
    });
}

/// Creates a home directory with cargo's registry directories, which contain one archive and its unpacked crate, and
/// a program `cargo` that inspects them.
fn furnish_cargo(environment: &TestEnvironment) -> PathBuf {
    environment.run_outside(
        "mkdir -p own/.cargo/registry/cache/reg own/.cargo/registry/src/reg/a-1.0 own/.cargo/registry/index/reg \
         && cd own/.cargo/registry && touch cache/reg/a-1.0.crate src/reg/a-1.0/.cargo-ok && cd ../../.. \
         && printf '#!/bin/bash\\ncd ~/.cargo/registry && cat */reg/*/.cargo-ok && for f in cache src; do test -L $f/reg && \
         echo link || echo folder; done; mkdir src/reg/b-1.0 2> /dev/null && echo unpacked; true\\n' \
         > project/cargo && chmod +x project/cargo",
    );
    environment.temporary_directory().with_file_name("own")
}

#[test]
fn unchanged_cache_directories_are_one_link() {
    in_every_environment(|environment| {
        let home = furnish_cargo(environment);
        let printed = |options: &[&str]| {
            let mut guard = environment.guard_run(&[&["--json"], options].concat(), &["./cargo"]);
            guard.env("HOME", &home);
            let outcome = environment.run_to_end(guard, b"");
            outcome.expect_code(0);
            outcome.printed()
        };
        let layered = "folder\nfolder\nunpacked\n";
        let is_as = |expected: &str, options: &[&str]| {
            let expected = if environment.namespaces { layered } else { expected };
            assert_eq!(printed(options), expected, "{}: {options:?}", environment.name());
        };
        is_as("link\nlink\n", &[]);
        // If a host for packages is allowed, or an archive is not unpacked yet, cargo must be able to add files.
        is_as(layered, &["--allow-host", "registry.example:443"]);
        environment.run_outside("touch own/.cargo/registry/cache/reg/b-1.0.crate");
        is_as("link\nfolder\nunpacked\n", &[]);
        assert!(!home.join(".cargo/registry/src/reg/b-1.0").exists(), "{}", environment.name());
    });
}

#[test]
fn cache_links_of_other_toolchains_are_not_created() {
    in_every_environment(|environment| {
        let home = furnish(environment);
        furnish_cargo(environment);
        let script = "./cargo > /dev/null; cd ~/.npm/_cacache && echo * && cd ~/.cargo/registry && echo *";
        let outcome = run(environment, &home, &["bash", "-c", script]);
        let of_node = if environment.namespaces { "content-v2" } else { "*" };
        assert_eq!(outcome.printed(), format!("{of_node}\ncache index src\n"), "{}", environment.name());
    });
}
