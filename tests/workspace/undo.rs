// slow
//! Before a run that works in the user's directory itself, guard takes a snapshot. `guard undo` brings back what the run
//! changed, and nothing that the user changed since.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    RunOutcome, TestEnvironment, guard_program, in_every_environment, in_two_environments, one_environment,
    wait_for_file,
};

/// Files of every kind: tracked and changed, untracked, ignored, empty, large, executable, unreadable for others; links,
/// a sparse file, a FIFO, a directory without write permission, and a name that is not UTF-8.
const FILES: &str = r#"
printf 'changed\n' >> tracked
mkdir -p src/deep empty build && chmod 700 empty
for i in 1 2 3; do echo "file $i" > src/deep/$i; done
chmod 755 src/deep/1; chmod 400 src/deep/2; chmod 640 src/deep/3
echo 'build/' > .gitignore; echo secret > build/out; chmod 600 build/out
head -c 300000 /dev/urandom > big; : > nothing
truncate -s 4G sparse; printf end >> sparse; printf start | dd of=sparse conv=notrunc status=none
ln -s src/deep/1 link; ln -s /etc/passwd outside; ln -s nowhere dangling
mkfifo fifo; echo x > "$(printf 'odd\377\nname')"
mkdir locked; echo y > locked/file; chmod 500 locked
"#;

/// Prints type, mode, link target and size of everything, and the hashes of the content.
const LIST: &str = r#"find . -name .git -prune -o -printf '%P %y %m %l' \( -type f -printf ' %s\n' -o -printf '\n' \) | sort
find . -name .git -prune -o -type f ! -name sparse -print0 | sort -z | xargs -0 sha256sum; head -c 5 sparse; tail -c 3 sparse"#;

const DELETE: &str =
    "chmod -R u+w . 2>/dev/null; python3 -c 'import shutil; shutil.rmtree(\".\", ignore_errors=True)'; ls -A";

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// The directories in which a run works itself, relative to the root: a linked worktree, and one outside a repository.
const PLACES: [&str; 2] = ["project", "plain"];

fn shell_in(environment: &TestEnvironment, place: &str, script: &str) -> String {
    environment.run_outside(&format!("mkdir -p {place} && cd {place} && {{ {script}\n}}"))
}

/// Runs a script in a place with `guard run --in-place`.
fn run_in(environment: &TestEnvironment, place: &str, script: &str) -> RunOutcome {
    let mut command = environment.guard_run(&["--json"], &["bash", "-c", script]);
    command
        .current_dir(root(environment).join(place))
        .env("XDG_CONFIG_HOME", root(environment).join("config"));
    environment.run_to_end(command, b"")
}

fn undo(environment: &TestEnvironment, place: &str, words: &[&str]) -> RunOutcome {
    let mut command = environment.command(guard_program());
    command.arg("undo").args(words).current_dir(root(environment).join(place));
    command.env("XDG_CONFIG_HOME", root(environment).join("config"));
    environment.run_to_end(command, b"")
}

/// Returns everything that guard printed.
fn said(outcome: &RunOutcome) -> String {
    format!("{}{}", String::from_utf8_lossy(&outcome.output), outcome.error)
}

fn changes(result: &Value, kind: &str) -> Vec<String> {
    let all = result["files_changed"].as_array().unwrap().iter();
    let of_kind = all.filter(|one| one["change"] == kind);
    of_kind.map(|one| one["path"].as_str().unwrap().to_string()).collect()
}

fn snapshots(environment: &TestEnvironment) -> PathBuf {
    root(environment).join("state/guard/snapshots")
}

#[test]
fn undo_restores_everything_a_run_deleted() {
    in_every_environment(|environment| {
        for place in PLACES {
            let name = format!("{}, {place}", environment.name());
            shell_in(environment, place, FILES);
            let before = shell_in(environment, place, LIST);
            let outcome = run_in(environment, place, DELETE);
            assert_eq!(outcome.result["success"], true, "{name}: {outcome}");
            assert_eq!(outcome.printed().replace(".git\n", ""), "", "{name}: everything is gone: {outcome}");
            let deleted = changes(&outcome.result, "deleted");
            for wanted in ["src/deep/1", "build/out", "big", "link", "fifo", ".gitignore", "locked/file"] {
                assert!(deleted.iter().any(|path| path == wanted), "{name}: {wanted}: {outcome}");
            }
            assert_eq!(outcome.result["snapshot"]["taken"], true, "{name}: {outcome}");
            let shown = undo(environment, place, &["--dry-run"]);
            assert_eq!(shown.code, 0, "{name}: {shown}");
            assert!(said(&shown).contains("bring back, because the run deleted it"), "{name}: {shown}");
            let refused = undo(environment, place, &[]);
            assert!(refused.code == 1 && said(&refused).contains("nobody confirmed"), "{name}: {refused}");
            let done = undo(environment, place, &["--yes"]);
            assert_eq!(done.code, 0, "{name}: {}", said(&done));
            assert_eq!(shell_in(environment, place, LIST), before, "{name}: {done}");
            let copies = shell_in(environment, place, "stat -c %b sparse");
            assert!(
                copies.trim().parse::<u64>().unwrap() < 4096,
                "{name}: the sparse file is full: {copies}"
            );
            let again = undo(environment, place, &["--yes"]);
            assert!(again.code == 0 && said(&again).contains("nothing to undo"), "{name}: {}", said(&again));
        }
    });
}

/// Plays `scripts/show undo` with a tenth of the files and without its comparison with git.
#[test]
fn show_undo_scenario_succeeds() {
    in_two_environments(|environment| {
        let name = environment.name();
        for file in ["show", "show.d/undo"] {
            let copy = root(environment).join("scripts").join(file);
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(file), copy).unwrap();
        }
        environment.give_to_user(&root(environment).join("scripts"));
        let mut command = environment.command("bash");
        command.args(["scripts/show", "undo", "0", "200"]).current_dir(root(environment));
        command.env("GUARD", guard_program());
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 0, "{name}: {}", said(&outcome));
        let printed = said(&outcome);
        assert_eq!(printed.matches("left after the run: 0 files").count(), 2, "{name}: {printed}");
        for title in ["repository", "plain directory"] {
            let times = printed.split(&format!("{title}: identical, with modes; run ")).nth(1);
            let words = times.unwrap_or_else(|| panic!("{name}: {title}: {printed}")).split_whitespace();
            let milliseconds: Vec<f64> = words.filter_map(|word| word.parse().ok()).take(2).collect();
            // On an idle machine 0.5 s each, most of it for the start of guard and python.
            assert!(
                milliseconds.len() == 2 && milliseconds.iter().all(|one| *one < 20_000.0),
                "{name}: {printed}"
            );
        }
    });
}

#[test]
fn undo_keeps_changes_the_user_made_since_the_run() {
    in_every_environment(|environment| {
        let name = environment.name();
        shell_in(environment, "project", "for i in a b c d e f; do echo before > $i; done; chmod 644 f");
        let script = "rm a b; echo run > c; echo run > d; rm e; echo run > new; echo run > new2; chmod 755 f";
        run_in(environment, "project", script).expect_code(0);
        shell_in(
            environment,
            "project",
            "echo user > a; echo user > c; echo user > new; rm d; echo before > e",
        );
        let done = undo(environment, "project", &["--yes"]);
        assert_eq!(done.code, 1, "{name}: {done}");
        for words in ["changed since the run", "deleted since the run", "created again since the run"] {
            assert!(said(&done).contains(words), "{name}: {words}: {done}");
        }
        let now = "for i in a b c d e f new new2; do echo $i $(cat $i 2>/dev/null); done; stat -c %a f";
        let wanted = "a user\nb before\nc user\nd\ne before\nf before\nnew user\nnew2\n644\n";
        assert_eq!(shell_in(environment, "project", now), wanted, "{name}: {done}");
        let forced = undo(environment, "project", &["@", "a", "./d", "--yes", "--force"]);
        assert_eq!(forced.code, 0, "{name}: {forced}");
        let wanted = wanted.replace("a user", "a before").replace("d\n", "d before\n");
        assert_eq!(shell_in(environment, "project", now), wanted, "{name}: {forced}");
        // An undo can be undone.
        let id = said(&forced).rsplit("guard undo ").next().unwrap().trim().to_string();
        undo(environment, "project", &[&id, "--yes"]).expect_code(0);
        let wanted = wanted.replace("a before", "a user").replace("d before\n", "d\n");
        assert_eq!(shell_in(environment, "project", now), wanted, "{name}");
    });
}

/// The run replaces files and directories by links to a directory outside, by FIFOs, by directories and by files, and
/// takes all permissions away.
#[test]
fn undo_does_not_follow_links_left_by_the_run() {
    in_every_environment(|environment| {
        for place in PLACES {
            let name = format!("{}, {place}", environment.name());
            environment.run_outside(
                "rm -rf victim; mkdir victim; for i in 1 2 file; do echo victim > victim/$i; done",
            );
            shell_in(
                environment,
                place,
                "mkdir -p a/b c d; for i in a/b/1 a/b/2 c/file d/file e f g; do echo before > $i; done",
            );
            let before = shell_in(environment, place, LIST.split("; head").next().unwrap());
            let victim = root(environment).join("victim").display().to_string();
            let script = format!(
                "rm -r a/b; ln -s {victim} a/b; mv c old; ln -s {victim} c; rm e; ln -s {victim}/file e; \
                 rm f; mkfifo f; rm g; mkdir -p g/h; echo run > g/h/i; rm -r d; echo run > d; chmod 0 a; chmod 500 . || true"
            );
            run_in(environment, place, &script).expect_code(0);
            let done = undo(environment, place, &["--yes"]);
            assert_eq!(done.code, 0, "{name}: {}", said(&done));
            let now = shell_in(environment, place, LIST.split("; head").next().unwrap());
            assert_eq!(now, before, "{name}: {}", said(&done));
            let left = environment.run_outside("cat victim/*; ls victim");
            assert_eq!(left, "victim\nvictim\nvictim\n1\n2\nfile\n", "{name}: {done}");
        }
    });
}

#[test]
fn killed_undo_can_be_repeated() {
    in_two_environments(|environment| {
        let name = environment.name();
        let many = "mkdir -p many; for i in $(seq 1500); do echo \"file $i\" > many/$i; done";
        shell_in(environment, "plain", many);
        let list = "find . -printf '%P %y %m\\n' | sort; cat $(find . -type f | sort) | sha256sum";
        let before = shell_in(environment, "plain", list);
        run_in(environment, "plain", "rm -r many; mkdir new; touch new/file").expect_code(0);
        for milliseconds in [5, 10, 20, 40, 60, 80, 100, 120] {
            let mut command = environment.command(guard_program());
            command.args(["undo", "--yes"]).current_dir(root(environment).join("plain"));
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            let _ = child.kill();
            child.wait().unwrap();
        }
        let done = undo(environment, "plain", &["--yes"]);
        assert_eq!(done.code, 0, "{name}: {}", said(&done));
        assert_eq!(shell_in(environment, "plain", list), before, "{name}: {done}");
    });
}

#[test]
fn killed_guard_leaves_a_usable_snapshot_or_none() {
    in_two_environments(|environment| {
        let name = environment.name();
        let many =
            "mkdir -p many; for i in $(seq 1500); do echo \"file $i\" > many/$i; done; echo keep > changed";
        shell_in(environment, "plain", many);
        for milliseconds in [5, 15, 30, 50, 80] {
            let mut command = environment.guard_run(&["-q"], &["true"]);
            command.current_dir(root(environment).join("plain"));
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            let _ = child.kill();
            child.wait().unwrap();
        }
        // guard is killed during the run, when the snapshot is complete and the run has begun to delete.
        let mut command = environment
            .guard_run(&["-q"], &["bash", "-c", "rm -r many; echo run > changed; touch ready; sleep 600"]);
        command.current_dir(root(environment).join("plain"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_file(&root(environment).join("plain/ready"));
        let _ = child.kill();
        child.wait().unwrap();
        shell_in(environment, "plain", "echo mine > mine");
        let done = undo(environment, "plain", &["--yes"]);
        assert_eq!(done.code, 1, "{name}: {done}");
        assert!(said(&done).contains("guard was killed during this run"), "{name}: {done}");
        // The deleted files come back. guard cannot know who changed the others.
        let now = shell_in(environment, "plain", "cat many/* | wc -l; cat changed mine");
        assert_eq!(now, "1500\nrun\nmine\n", "{name}: {done}");
        let incomplete = environment.run_outside(
            "XDG_STATE_HOME=$PWD/state; for i in state/guard/snapshots/*/*/; do [ -e $i/info ] || echo $i; done",
        );
        undo(environment, "plain", &["--expire", "1w"]).expect_code(0);
        let left = environment
            .run_outside("for i in state/guard/snapshots/*/*/; do [ -e $i/info ] || echo $i; done");
        assert_eq!(left, "", "{name}: what killed processes left is removed: {incomplete}");
    });
}

#[test]
fn files_over_the_snapshot_limit_are_named_before_and_after_the_run() {
    in_two_environments(|environment| {
        let name = environment.name();
        environment.run_outside("mkdir -p config/guard; printf '[state]\\nsnapshot_mib = 1\\nsnapshot_ignored_mib = 1\\n' > config/guard/config.toml");
        let files = "head -c 3000000 /dev/urandom > large; echo small > small; mkdir -p out; echo out/ > .gitignore; \
                     head -c 2000000 /dev/urandom > out/ignored";
        shell_in(environment, "project", files);
        let mut command =
            environment.guard_run(&["-q"], &["bash", "-c", "echo begun >&2; rm -r large small out"]);
        command.env("XDG_CONFIG_HOME", root(environment).join("config"));
        let outcome = environment.run_to_end(command, b"");
        let notes = outcome.error.split("begun").next().unwrap().to_string();
        assert!(outcome.error.contains("begun"), "{name}: {outcome}");
        for wanted in ["large", "snapshot_mib", "1 ignored file", "out/ignored", "snapshot_ignored_mib"] {
            assert!(notes.contains(wanted), "{name}: {wanted}: {outcome}");
        }
        let done = undo(environment, "project", &["--yes"]);
        assert_eq!(done.code, 1, "{name}: {done}");
        assert!(said(&done).contains("too large for the snapshot"), "{name}: {done}");
        assert_eq!(
            shell_in(environment, "project", "cat small; ls"),
            "small\nout\nsmall\ntracked\n",
            "{name}"
        );
        shell_in(environment, "project", files);
        let result = run_in(environment, "project", "true").result;
        assert_eq!(result["snapshot"]["not_covered"], 2, "{name}: {result:#}");
        assert!(
            result["snapshot"]["notes"][0].as_str().unwrap().contains("snapshot_mib"),
            "{name}: {result:#}"
        );
        environment.run_outside("printf '[state]\\nsnapshot_mib = 0\\n' > config/guard/config.toml");
        let result = run_in(environment, "project", "rm small").result;
        assert_eq!(
            (&result["snapshot"], &result["success"]),
            (&Value::Null, &Value::Bool(true)),
            "{name}: {result:#}"
        );
    });
}

#[test]
fn runs_cannot_read_snapshots() {
    in_every_environment(|environment| {
        let name = environment.name();
        shell_in(environment, "plain", "echo the-secret-of-another-directory > secret");
        run_in(environment, "plain", "true").expect_code(0);
        let state = root(environment).join("state/guard");
        let found = environment.run_outside("grep -rl the-secret-of-another state/guard/snapshots | wc -l");
        assert_eq!(found, "1\n", "{name}: the copy is there");
        let script = format!("grep -r the-secret-of-another {0}; ls {0}/snapshots; true", state.display());
        let outcome = run_in(environment, "project", &script);
        assert!(!outcome.printed().contains("the-secret"), "{name}: {outcome}");
        for granted in [state.join("snapshots"), state.clone(), root(environment)] {
            let granted = granted.display().to_string();
            let outcome = environment.run(&["--read", &granted], &["true"]);
            assert!(
                outcome.code == 125 && outcome.to_string().contains("no run may read"),
                "{name}: {outcome}"
            );
        }
        assert_eq!(snapshots(environment).metadata().unwrap().permissions().mode() & 0o777, 0o700, "{name}");
        let modes =
            environment.run_outside("find state/guard/snapshots -type f -perm /0177 -o -type d -perm /077");
        assert_eq!(modes, "", "{name}: copies have no executable bits, and nobody else reads them");
    });
}

#[test]
fn second_snapshot_copies_only_changed_files() {
    in_two_environments(|environment| {
        for place in PLACES {
            let name = format!("{}, {place}", environment.name());
            shell_in(
                environment,
                place,
                "for i in 1 2 3; do head -c 200000 /dev/urandom > large$i; echo $i > small$i; done",
            );
            // A file that changed within two seconds before a snapshot is copied again.
            std::thread::sleep(Duration::from_millis(2_200));
            let copied = |outcome: &RunOutcome| outcome.result["snapshot"]["copied_bytes"].as_u64().unwrap();
            let first = run_in(environment, place, "true");
            assert!(copied(&first) >= 600_006, "{name}: {first}");
            assert_eq!(copied(&run_in(environment, place, "true")), 0, "{name}");
            shell_in(environment, place, "printf changed > small2; chmod 600 small2");
            assert_eq!(copied(&run_in(environment, place, "true")), 7, "{name}");
            // The third snapshot needs the copies of the first.
            undo(environment, place, &["--expire", "0s", "--dry-run"]).expect_code(0);
            let list = "sha256sum large* small*; stat -c %a small2";
            let before = shell_in(environment, place, list);
            run_in(environment, place, "rm large* small*").expect_code(0);
            environment.run_outside(
                "cd state/guard/snapshots; for i in */; do ls -t $i | grep - | tail -n +2 | while read j; do rm -f $i/$j/info; done; done",
            );
            undo(environment, place, &["--expire", "1w"]).expect_code(0);
            undo(environment, place, &["--yes"]).expect_code(0);
            assert_eq!(shell_in(environment, place, list), before, "{name}");
        }
    });
}

#[test]
fn snapshot_does_not_copy_committed_files() {
    let environment = one_environment();
    let name = environment.name();
    environment.run_outside(
        "cd project && mkdir -p sub && for i in $(seq 200); do echo \"tracked $i\" > sub/$i; done && git add . && \
         printf 'crlf\\r\\n' > windows && echo '* text=auto' > .gitattributes && git -c core.safecrlf=false add . && \
         git -c user.name=n -c user.email=e commit -qm files && sleep 0.1 && git update-index --refresh -q; \
         touch -d '1 hour ago' .gitattributes; sleep 0.1; git update-index -q --refresh; git status --short",
    );
    let list = "sha256sum sub/* windows tracked .gitattributes | sort";
    let before = shell_in(&environment, "project", list);
    let outcome = run_in(&environment, "project", "rm -r sub windows tracked .gitattributes");
    let copied = outcome.result["snapshot"]["copied_bytes"].as_u64().unwrap();
    // git stores the file with other line ends.
    assert!((6..200).contains(&copied), "{name}: {outcome}");
    undo(&environment, "project", &["--yes"]).expect_code(0);
    assert_eq!(shell_in(&environment, "project", list), before, "{name}");
}

/// In a plain directory a run can make a repository, with an index that names other blobs for the user's files.
#[test]
fn repository_a_run_may_have_made_is_not_trusted() {
    in_two_environments(|environment| {
        let name = environment.name();
        shell_in(environment, "plain", "echo original > file; sleep 0.1");
        run_in(environment, "plain", "true").expect_code(0);
        shell_in(
            environment,
            "plain",
            "git init -q . && git add file && forged=$(echo malicious | tr -d m | git hash-object -w --stdin) && \
             real=$(git hash-object file) && python3 - $real $forged <<'END'
import hashlib, sys
data = open('.git/index', 'rb').read()[:-20].replace(bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]))
open('.git/index', 'wb').write(data + hashlib.sha1(data).digest())
END
sleep 0.1; touch .git/index",
        );
        let size = shell_in(environment, "plain", "git cat-file -s :file; git status --short");
        assert_eq!(size.lines().next(), Some("9"), "{name}: the forged blob has the same size: {size}");
        let mut options = vec!["--json"];
        if !environment.namespaces {
            options.push("--allow-unprotected-repositories");
        }
        let mut command = environment.guard_run(&options, &["bash", "-c", "rm file"]);
        command.current_dir(root(environment).join("plain"));
        environment.run_to_end(command, b"").expect_code(0);
        undo(environment, "plain", &["--yes"]).expect_code(0);
        assert_eq!(shell_in(environment, "plain", "cat file"), "original\n", "{name}");
    });
}

#[test]
fn old_snapshots_are_deleted_except_the_last() {
    let environment = one_environment();
    environment.run_outside(
        "mkdir -p config/guard; printf '[state]\\nkeep_snapshots_mib = 3\\n' > config/guard/config.toml",
    );
    for _ in 0..5 {
        shell_in(&environment, "plain", "head -c 2000000 /dev/urandom > file");
        run_in(&environment, "plain", "true").expect_code(0);
    }
    let list = |words: &[&str]| undo(&environment, "plain", words);
    let kept = list(&["--list", "--json"]);
    let kept: Value = serde_json::from_slice(&kept.output).unwrap();
    assert_eq!(kept.as_array().map(Vec::len), Some(1), "{kept:#}");
    let hash = shell_in(&environment, "plain", "sha256sum file");
    run_in(&environment, "plain", "rm file").expect_code(0);
    list(&["--yes"]).expect_code(0);
    assert_eq!(shell_in(&environment, "plain", "sha256sum file"), hash);
    let used = environment.run_outside("du -sm state/guard/snapshots | cut -f1");
    assert!(used.trim().parse::<u64>().unwrap() <= 8, "{used}");
    let mut clean = environment.command(guard_program());
    clean.args(["worktree", "clean"]).env("XDG_CONFIG_HOME", root(&environment).join("config"));
    let cleaned = environment.run_to_end(clean, b"");
    assert!(said(&cleaned).contains("for `guard undo`"), "{cleaned}");
    let expired = list(&["--expire", "0s"]);
    assert!(expired.code == 0 && said(&expired).starts_with("deleted "), "{expired}");
    let nothing = list(&["--yes"]);
    assert!(nothing.code == 2 && said(&nothing).contains("guard has no snapshot of"), "{nothing}");
    assert_eq!(environment.run_outside("find state/guard/snapshots -name pack -o -name files"), "");
}

#[test]
fn undo_and_restore_point_to_each_other() {
    let environment = one_environment();
    let outcome = run_in(&environment, "project", "echo x > new");
    let in_place = outcome.result["run_id"].as_str().unwrap().to_string();
    let mut restore = environment.command(guard_program());
    restore.args(["restore", &in_place]);
    let refused = environment.run_to_end(restore, b"");
    assert!(refused.code == 2 && said(&refused).contains(&format!("guard undo {in_place}")), "{refused}");
    let outcome = environment.run(&["--name", "one", "--keep"], &["touch", "new"]);
    let in_worktree = outcome.result["run_id"].as_str().unwrap();
    let refused = undo(&environment, "project", &[in_worktree]);
    assert!(refused.code == 2 && said(&refused).contains("guard restore"), "{refused}");
    let refused = undo(&environment, "project", &["new"]);
    assert!(refused.code == 2 && said(&refused).contains("guard undo @ new"), "{refused}");
    let refused = undo(&environment, "repository", &[&in_place]);
    assert!(refused.code == 2 && said(&refused).contains("--dir"), "{refused}");
}

/// The removal of one hard link changes the ctime of the others.
#[test]
fn hard_links_made_by_the_run_do_not_stop_an_undo() {
    in_two_environments(|environment| {
        let name = environment.name();
        shell_in(environment, "plain", "echo a > a; echo b > b; ln b c; echo d > d");
        let list = "stat -c '%n %h %a' *; cat a b c d";
        let before = shell_in(environment, "plain", list);
        let script = "ln a x; ln a y; ln a z; echo new > n1; ln n1 n2; ln n1 n3; chmod 600 b; echo run > d; rm -f e; ln d e";
        run_in(environment, "plain", script).expect_code(0);
        let done = undo(environment, "plain", &["--yes"]);
        assert_eq!(done.code, 0, "{name}: {}", said(&done));
        assert_eq!(shell_in(environment, "plain", list), before, "{name}: {}", said(&done));
    });
}

/// A run could hide a change behind a new hard link and an old modification time.
#[test]
fn change_behind_a_new_hard_link_is_found() {
    in_two_environments(|environment| {
        let name = environment.name();
        shell_in(environment, "plain", "echo before > a; sleep 0.1");
        let script = "touch -r a time; printf 'hidden\\n' > a; ln a b; touch -r time a; rm time";
        let outcome = run_in(environment, "plain", script);
        assert_eq!(changes(&outcome.result, "modified"), ["a"], "{name}: {outcome}");
        undo(environment, "plain", &["--yes"]).expect_code(0);
        assert_eq!(shell_in(environment, "plain", "cat a; ls"), "before\na\n", "{name}");
    });
}

#[test]
fn undo_removes_directories_without_permissions() {
    in_two_environments(|environment| {
        let name = environment.name();
        shell_in(environment, "plain", "mkdir kept; echo a > kept/a");
        run_in(
            environment,
            "plain",
            "mkdir -p m/k kept/new; touch m/k/f m/f kept/new/f; chmod 0 m/k/f m/k m kept/new kept",
        )
        .expect_code(0);
        let done = undo(environment, "plain", &["--yes"]);
        assert_eq!(done.code, 0, "{name}: {}", said(&done));
        let now = shell_in(environment, "plain", "find . -printf '%P %m\\n' | sort");
        assert_eq!(now, " 755\nkept 755\nkept/a 644\n", "{name}: {}", said(&done));
    });
}

/// Makes a repository without git, because a policy may forbid `git init`.
const PLANT: &str = r#"python3 - <<'END'
import os
for top in (".git", "sub/.git"):
    os.makedirs(top + "/refs/heads")
    os.makedirs(top + "/objects")
    open(top + "/HEAD", "w").write("ref: refs/heads/main\n")
    open(top + "/config", "w").write("[core]\n\trepositoryformatversion = 0\n")
    os.symlink(os.path.abspath("../victim"), top + "/link")
END"#;

#[test]
fn undo_lists_and_removes_a_repository_made_by_the_run() {
    in_every_environment(|environment| {
        let name = environment.name();
        environment.run_outside("rm -rf victim; mkdir victim; echo victim > victim/file");
        shell_in(environment, "plain", "echo a > a");
        let outcome = run_in(environment, "plain", PLANT);
        assert_eq!(changes(&outcome.result, "created"), [".git", "sub/.git"], "{name}: {outcome}");
        let shown = undo(environment, "plain", &["--dry-run"]);
        assert!(said(&shown).contains("  .git/\n  sub/\n  sub/.git/\n"), "{name}: {}", said(&shown));
        let done = undo(environment, "plain", &["--yes"]);
        assert_eq!(done.code, 0, "{name}: {}", said(&done));
        assert_eq!(shell_in(environment, "plain", "ls -A; cat ../victim/file"), "a\nvictim\n", "{name}");
        // The undo can be undone.
        let id = said(&done).rsplit("guard undo ").next().unwrap().trim().to_string();
        undo(environment, "plain", &[&id, "--yes"]).expect_code(0);
        let now = shell_in(environment, "plain", "cat .git/HEAD; readlink sub/.git/link | xargs basename");
        assert_eq!(now, "ref: refs/heads/main\nvictim\n", "{name}");
    });
}

#[test]
fn undo_never_removes_a_repository_of_the_user() {
    in_two_environments(|environment| {
        let name = environment.name();
        // The user makes one after the run.
        shell_in(environment, "plain", "echo a > a");
        run_in(environment, "plain", "rm a").expect_code(0);
        shell_in(environment, "plain", "git init -q . && git init -q sub");
        undo(environment, "plain", &["--yes", "--force"]).expect_code(0);
        assert_eq!(
            shell_in(environment, "plain", "ls -A . sub; git status --short"),
            ".:\n.git\na\nsub\n\nsub:\n.git\n?? a\n?? sub/\n",
            "{name}"
        );
        shell_in(environment, "plain", "rm -rf .git sub");
        // The user works on in one that the run made.
        run_in(environment, "plain", PLANT).expect_code(0);
        shell_in(environment, "plain", "git add a && git -c user.name=n -c user.email=e commit -qm mine");
        let done = undo(environment, "plain", &["--yes"]);
        assert!(
            done.code == 1 && said(&done).contains("it changed since the run"),
            "{name}: {}",
            said(&done)
        );
        assert_eq!(shell_in(environment, "plain", "git log --format=%s; ls -A"), "mine\n.git\na\n", "{name}");
    });
}

/// Without namespaces the user can let a run have a directory whose `.git` nothing protects.
#[test]
fn deleted_or_moved_git_directory_is_reported() {
    let environment = one_environment();
    let run_unprotected = |script: &str| {
        let mut command = environment.command(guard_program());
        command.args(["run", "--in-place", "--json", "--namespaces", "off"]);
        command.args(["--allow-unprotected-repositories", "--", "python3", "-c", script]);
        command.current_dir(root(&environment).join("own"));
        environment.run_to_end(command, b"")
    };
    environment.run_outside("mkdir own");
    for script in [
        "import shutil; shutil.rmtree('.git')",
        "import os; os.mkdir('new'); os.rename('.git', 'new/x')",
        "import os; os.mkdir('new'); os.rename('.git', 'new/.git')",
        "import os; os.rename('sub', 'other')",
    ] {
        let make = "rm -rf .git new sub other; for i in . sub; do git init -q $i && echo a > $i/a && git -C $i add a \
                    && git -C $i -c user.name=n -c user.email=e commit -qm first; done";
        shell_in(&environment, "own", make);
        let outcome = run_unprotected(script);
        let lost = if script.contains("sub") { "sub/.git" } else { ".git" };
        assert!(changes(&outcome.result, "deleted").contains(&lost.to_string()), "{script}: {outcome}");
        let findings = outcome.result["findings"].as_array().unwrap().iter();
        let named: Vec<&str> = findings
            .filter(|one| one["kind"] == "repository.lost" && one["instead"].to_string().contains("clone"))
            .map(|one| one["path"].as_str().unwrap())
            .collect();
        assert_eq!(named, [lost], "{script}: {outcome}");
        let done = undo(&environment, "own", &["--yes"]);
        assert!(
            done.code == 1 && said(&done).contains("clone the repository again"),
            "{script}: {}",
            said(&done)
        );
        if !script.contains("rmtree") {
            assert!(said(&done).contains("move it back"), "{script}: {}", said(&done));
            let moved = "find . -name HEAD -path '*/logs/HEAD' | wc -l";
            assert_eq!(shell_in(&environment, "own", moved), "2\n", "{script}: both repositories are whole");
        }
    }
}

/// `--here` gives the run a worktree that the user made, with the user's uncommitted changes.
#[test]
fn undo_reverts_a_run_in_a_worktree_of_the_user() {
    in_two_environments(|environment| {
        let name = environment.name();
        shell_in(environment, "project", "echo uncommitted >> tracked; echo mine > untracked");
        let outcome =
            environment.run(&["--here"], &["bash", "-c", "rm -f tracked untracked; echo run > new"]);
        assert_eq!(outcome.result["snapshot"]["taken"], true, "{name}: {outcome}");
        undo(environment, "project", &["--yes"]).expect_code(0);
        let now = shell_in(environment, "project", "cat tracked untracked; ls");
        assert_eq!(now, "first\nuncommitted\nmine\ntracked\nuntracked\n", "{name}");
    });
}

/// A FIFO or a socket must not block the snapshot, and a process that writes to the directory must not either.
#[test]
fn special_files_do_not_block_a_snapshot() {
    in_two_environments(|environment| {
        let name = environment.name();
        shell_in(
            environment,
            "plain",
            "for i in 1 2 3; do mkfifo fifo$i; done; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
        );
        let outcome = run_in(environment, "plain", "rm fifo1 socket");
        assert_eq!(outcome.result["success"], true, "{name}: {outcome}");
        let done = undo(environment, "plain", &["--yes"]);
        assert!(done.code == 1 && said(&done).contains("socket or a device"), "{name}: {done}");
        assert_eq!(shell_in(environment, "plain", "stat -c %F fifo1"), "fifo\n", "{name}");
    });
}
