// slow
//! `files_changed` of a run in a repository must list every changed file, including deleted ones, and nothing else.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{TestEnvironment, in_two_environments};

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Runs a script in a directory of the environment. Returns `KIND PATH` of every changed file in the result, and
/// whether the result says that it leaves out others.
fn changed(
    environment: &TestEnvironment,
    folder: &str,
    options: &[&str],
    script: &str,
) -> (Vec<String>, bool) {
    let mut command = environment.guard_run(&[&["--json"], options].concat(), &["bash", "-euc", script]);
    let outcome = environment.run_to_end(
        {
            command.current_dir(root(environment).join(folder));
            command
        },
        b"",
    );
    assert_eq!(outcome.result["success"], true, "{outcome}");
    let line = |change: &Value| {
        format!("{} {}", change["change"].as_str().unwrap(), change["path"].as_str().unwrap())
    };
    let list = outcome.result["files_changed"].as_array().unwrap().iter().map(line).collect();
    (list, outcome.result["files_changed_truncated"] == true)
}

const REPOSITORY: &str = "git init -q -b main p && cd p && git config user.name U && git config user.email u@e
mkdir -p dir deep/er && for f in kept gone gone-later changed changed-later back dir/inner deep/er/one; do echo $f > $f; done
echo 'ignored/' > .gitignore && git add . && git commit -qm first && mkdir ignored && echo i > ignored/i";

#[test]
fn changed_files_include_committed_uncommitted_and_deleted() {
    in_two_environments(|environment| {
        environment.run_outside(REPOSITORY);
        let script = "echo x >> changed; git rm -q gone back; mkdir new; echo n > new/committed; echo t > then-gone
            git add -A; git commit -qm work
            rm gone-later then-gone; echo y >> changed-later; rm -r deep; echo b > back; touch kept
            mkdir -p more/below ignored; echo m > more/below/file; echo i > ignored/j; echo u > $'odd \\n name'
            echo 'hidden' > more/.gitignore; echo h > more/hidden";
        let expected = [
            "modified back",
            "modified changed",
            "modified changed-later",
            "deleted deep/er/one",
            "deleted gone",
            "deleted gone-later",
            "created more/.gitignore",
            "created more/below/file",
            "created more/hidden",
            "created new/committed",
            "created odd \n name",
            "created then-gone",
        ];
        for (name, way) in [("one", "--keep"), ("two", "--discard")] {
            let (list, cut) = changed(environment, "p", &["--name", name, way], script);
            assert_eq!((list, cut), (expected.map(str::to_string).to_vec(), false), "{}", environment.name());
        }
        let (list, cut) = changed(environment, "p", &["--name", "nothing"], "cat kept > /dev/null");
        assert_eq!((list, cut), (Vec::new(), false), "{}", environment.name());
    });
}

/// In a worktree that existed before the run, the list must not contain the user's earlier changes.
#[test]
fn changes_from_before_the_run_are_not_listed() {
    in_two_environments(|environment| {
        environment.run_outside(REPOSITORY);
        environment.run_outside(
            "cd p && git worktree add -q -b mine ../mine && cd ../mine && echo u >> changed && rm dir/inner && echo u > users",
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (list, _) = changed(environment, "mine", &["--here"], "rm gone; echo x >> kept; echo n > new");
        let mut expected = vec!["created new", "deleted gone", "modified kept"];
        expected.sort_by_key(|line| line.split(' ').nth(1));
        assert_eq!(list, expected, "{}", environment.name());
    });
}

/// A list of many files must be cut, and the result must say so.
#[test]
fn long_list_of_changed_files_is_cut() {
    in_two_environments(|environment| {
        environment.run_outside(REPOSITORY);
        let script = "mkdir many; for n in $(seq 1500); do : > many/$n; done; rm gone";
        let (list, cut) = changed(environment, "p", &["--name", "many"], script);
        assert!(list.len() == 1000 && cut, "{}: {}", environment.name(), list.len());
        assert!(list.contains(&"deleted gone".to_string()), "{}", environment.name());
        let (list, cut) = changed(
            environment,
            "p",
            &["--name", "committed"],
            &format!("{script}; git add -A; git commit -qm x"),
        );
        assert!(list.len() == 1000 && cut, "{}: {}", environment.name(), list.len());
    });
}
