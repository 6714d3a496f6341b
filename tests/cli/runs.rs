// slow
//! Tests the commands about runs: list, refer by name, stop, follow and clean up.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::log::transcript;
use crate::support::{Scratch, UserShell, guard, text};

#[test]
fn run_is_found_by_id_name_position_and_path() {
    let user = UserShell::new("runs-names");
    user.types("guard run -q --name first -- bash -c 'echo one; echo 1 > a; git add a; git commit -qm a'");
    user.types("guard run -q --name second -- bash -c 'echo two; echo 2 > b; git add b; git commit -qm b'");
    let replay = |name: &str| user.types(&format!("guard replay {name} --speed max"));
    assert_eq!(replay("task/first"), "one\n");
    assert_eq!(replay("first"), "one\n");
    assert_eq!(replay("@"), "two\n");
    assert_eq!(replay("@2"), "one\n");
    // The first column of both tables must also work as a name of a run.
    assert_eq!(replay("$(guard runs | awk '/task.first/ { print $1 }')"), "one\n");
    assert_eq!(replay("$(guard worktree list | awk '/task.second/ { print $1 }')"), "two\n");
    user.types("cp -r $(dirname $(guard runs --json | jq -r '.[0].transcript')) copy");
    assert_eq!(replay("./copy"), "two\n");
    assert_eq!(replay("copy/transcript.jsonl"), "two\n");
    // The other commands must accept the same names.
    user.types("guard verify first && guard log second > /dev/null && guard why first");
    user.sees("guard worktree diff first --stat", &["a | 1 +"]);
    user.sees("guard worktree diff @ --stat", &["b | 1 +"]);
    user.sees("cat $(guard worktree path second)/b", &["2"]);
    user.sees("guard log frist", &["no run matches \"frist\"; similar runs:", "task/first  started 20"]);
    user.sees(
        "guard log 0; guard log @9",
        &["matches 2 runs:", "task/second  started 20", "guard has recorded fewer runs"],
    );
    user.types("guard log nothing-like-that; test $? = 2");
    // Another repository has a branch of the same name. In each repository, the name must mean the run of that
    // repository.
    user.types(
        "git clone -q . ../other && cd ../other && git config user.name U && git config user.email u@example.org &&
         guard run -q --name first -- bash -c 'echo other; echo 3 > c; git add c; git commit -qm c' &&
         test $(guard replay first --speed max) = other && cd ../project &&
         test $(guard replay first --speed max) = one",
    );
    user.sees("cd / && guard replay first", &["\"first\" matches 2 runs"]);
}

#[test]
fn runs_are_listed_and_filtered_by_options() {
    let user = UserShell::new("runs-list");
    user.types("guard run -q --name good -- bash -c 'echo x > x'");
    user.types("guard run -q --name bad -- bash -c 'echo y > y; exit 3'; test $? = 3");
    user.types("mkdir ../plain && cd ../plain && guard run -q -- true");
    user.sees("guard runs", &["3 runs, ", "home/.local/state/guard/runs", "failed (3)", "task/bad", "ok"]);
    user.sees("guard runs --failed", &["task/bad"]);
    let listed = |options: &str| -> Value {
        serde_json::from_str(&user.types(&format!("guard runs --json {options}"))).unwrap()
    };
    let count = |options: &str| listed(options).as_array().unwrap().len();
    assert_eq!((count(""), count("--failed"), count("--repo"), count("-n 1")), (3, 1, 2, 1));
    assert_eq!((count("--repo ../project"), count("--running")), (2, 0));
    let bad = listed("--failed")[0].clone();
    assert_eq!(bad["outcome"], "failed");
    assert_eq!(bad["branch"], "task/bad");
    assert_eq!(bad["repository"], user.project.to_str().unwrap());
    assert_eq!(bad["tool"], "bash");
    assert!(bad["duration_ms"].as_i64().is_some_and(|duration| duration > 0), "{bad}");
    user.sees("guard ps", &["no runs are running"]);
    user.sees("guard runs --repo ../plain", &["plain is not in a git repository", "hint:"]);
    // The table must fit into narrow and wide terminals.
    for columns in [60, 80, 120] {
        let table = user.types(&format!("COLUMNS={columns} guard runs | grep -v ' runs, '"));
        assert!(table.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{table}");
        assert!(table.contains("task/bad") && table.contains("failed (3)"), "{columns}:\n{table}");
    }
    user.sees("COLUMNS=120 guard runs", &["REPOSITORY", "REFUSED", "SIZE", "project"]);
    // On a terminal the times must be relative.
    user.sees("script -qec 'stty cols 60; guard runs -n 1' /dev/null", &["s ago", "-n 0 shows all"]);
}

#[test]
fn runs_escapes_hostile_names() {
    let state = Scratch::new("runs-hostile");
    let data = json!({
        "command": ["a\u{1b}[31m\nb"], "policy": "p", "program": "/x/a\u{202e}b", "branch": "task/\u{1b}]0;x\u{7}",
        "repository": "/r/\u{9b}1m", "folder": "/r",
    });
    transcript(&state, "0197f0a0-0000-7000-8000-00000000cccc", &[(0, "run.started", "", data)]);
    let output =
        guard().env("XDG_STATE_HOME", &state.0).env("COLUMNS", "200").args(["runs"]).output().unwrap();
    let shown = text(&output);
    let is_unsafe = |one: char| one.is_control() && one != '\n' || one == '\u{202e}';
    assert!(shown.contains("cut off") && !shown.contains(is_unsafe), "{shown:?}");
    assert_eq!(shown.lines().count(), 3, "{shown:?}");
}

#[test]
fn detached_run_is_followed_and_stopped() {
    let user = UserShell::new("runs-background");
    let id = user.types(
        "guard run --detach --name slow -- bash -c 'echo begin; until test -e go; do sleep 0.1; done; echo end; exit 7' 2> /dev/null",
    );
    assert_eq!(id.trim().len(), 36, "{id}");
    user.sees("guard ps", &["task/slow", "running"]);
    user.sees("guard ps --json", &[id.trim(), "\"pid\": "]);
    let (printed, code) =
        user.ends("(sleep 1; touch \"$(guard worktree path task/slow)\"/go) & guard attach slow");
    assert_eq!((printed.as_str(), code), ("begin\nend\n", 7));
    // The user must be able to attach to a run that has ended.
    let (printed, code) = user.ends("guard attach @");
    assert_eq!((printed.as_str(), code), ("begin\nend\n", 7));
    user.sees("guard stop slow", &["had already ended, failed (7)"]);

    user.sees(
        "guard run --detach --name endless -- bash -c 'echo 1 > a; git add a; git commit -qm a; echo ready; sleep 600'",
        &["guard: started the run in the background", "next: guard attach ", ", or to end the run: guard stop "],
    );
    user.types("until guard log endless | grep -q ready; do sleep 0.1; done");
    // Ctrl-C must detach from the run, and must not stop it.
    user.types("timeout --preserve-status -s INT 3 guard attach endless; test $? = 130");
    user.sees("guard ps", &["task/endless"]);
    user.sees("guard stop endless", &["(task/endless): ended, stopped, 1 commit received"]);
    user.sees("guard ps", &["no runs are running"]);
    user.sees("git log --format=%s task/endless", &["a"]);
    user.sees("guard runs", &["stopped"]);

    // A command ignores the signal. With `--now` guard must kill it without the usual grace period of five seconds.
    let began = Instant::now();
    user.types("guard run --detach -- bash -c 'trap \"\" TERM; while :; do sleep 0.1; done' 2> /dev/null");
    user.sees("guard stop --all --now", &["ended, stopped"]);
    assert!(began.elapsed() < Duration::from_secs(60));
    user.sees("guard stop --all", &["no runs are running"]);
    user.types("guard stop; test $? = 2; guard stop nothing-like-that; test $? = 2");
    user.sees_with_code("guard stop ../no-run", 1, &["guard: ../no-run: guard cannot tell whether"]);
}

#[test]
fn detached_run_that_cannot_start_reports_why() {
    let user = UserShell::new("runs-not-started");
    user.sees("guard run --detach -- no-such-program", &["command not found: no-such-program", "hint:"]);
    user.types("guard run --detach -- no-such-program > /dev/null; test $? = 127");
    user.types("guard run --detach --base nonsense -- true; test $? = 125");
    user.sees("guard run --detach -- git push; echo $?", &["refused: git push", "\n126\n"]);
    user.types("guard run --detach --json -- no-such-program | jq -e '.error_kind == \"command_not_found\"'");
    user.types("guard run --detach --json -- true | jq -e .run_id");
    user.types("guard run --detach --dry-run -- true; test $? = 2");
}

#[test]
fn runs_shows_a_killed_run_as_killed() {
    let user = UserShell::new("runs-killed");
    user.types("guard run --detach --name x -- bash -c 'echo out; sleep 600' 2> /dev/null");
    user.types("until guard log x | grep -q out; do sleep 0.1; done");
    user.types("kill -9 $(guard ps --json | jq .[0].pid)");
    user.sees("guard attach x; echo $?", &["out", "was killed or crashed before the run ended", "125"]);
    user.sees("guard runs", &["cut off"]);
    user.sees("guard stop x", &["had already ended, cut off"]);
    user.sees("guard worktree clean --dry-run", &["would be removed: task/x"]);
    user.sees("guard worktree clean", &["removed: task/x"]);
}

#[test]
fn run_that_never_started_leaves_no_record() {
    let user = UserShell::new("runs-nothing");
    user.types("guard run -- no-such-program; test $? = 127");
    user.types("guard run --base nonsense -- true; test $? = 125");
    user.types("git branch task/taken; guard run --name taken -- true; test $? = 125");
    user.types(
        "git worktree add -q ../linked && cd ../linked && guard run --here -- no-such-program; test $? = 127",
    );
    // None of these runs may leave a directory, whatever kept it from starting.
    assert_eq!(user.kept_runs(), Vec::<PathBuf>::new());
    user.types("guard run -q -- true");
    assert_eq!(user.kept_runs().len(), 1);
}

#[test]
fn clean_removes_worktrees_of_this_repository_only() {
    let user = UserShell::new("runs-clean");
    let work = "bash -c 'echo 1 > a; git add a; git commit -qm a'";
    user.types(&format!("guard run -q --name work -- {work} && guard run -q --keep --name empty -- true"));
    user.types(
        "git clone -q . ../other && cd ../other && git config user.name U && git config user.email u@example.org &&
         guard run -q --keep --name other -- true"
    );
    user.sees("cd / && guard worktree clean", &["/ is not in a git repository", "--all-repositories"]);
    user.types("cd / && guard worktree clean; test $? = 2");
    let planned = user.types("guard worktree clean --dry-run");
    assert!(
        planned.contains("would be removed: task/empty in ") && planned.contains("would be kept: task/work")
    );
    assert!(!planned.contains("task/other"), "{planned}");
    assert_eq!(user.types("guard worktree list --json | jq length"), "3\n", "nothing was removed");
    user.sees("guard worktree clean", &["removed: task/empty in ", "kept: task/work"]);
    user.sees("guard worktree list", &["task/work", "task/other"]);
    user.sees("cd / && guard worktree clean --all-repositories", &["removed: task/other"]);
    user.sees("guard worktree clean --all", &["removed: task/work", "saved under refs/guard/"]);
    assert_eq!(user.types("guard worktree list"), "there are no worktrees of runs\n");
}

#[test]
fn old_runs_are_deleted_as_configured() {
    let user = UserShell::new("runs-keep");
    let configure = |text: &str| {
        user.types(&format!(
            "mkdir -p ~/.config/guard && printf '{text}' > ~/.config/guard/config.toml && rm -f ~/.local/state/guard/runs/.last-cleanup"
        ));
    };
    user.types("guard run -q --name work -- bash -c 'echo 1 > a' && cd .. && mkdir plain && cd plain && guard run -q -- true && guard run -q -- true");
    assert_eq!(user.kept_runs().len(), 3);
    configure("[state]\\nkeep = \"30d\"\\nkeep_mib = 1024\\n");
    user.types("guard run -q -- true");
    assert_eq!(user.kept_runs().len(), 4, "none is old");
    configure("[state]\\nkeep = 0\\nkeep_mib = 0\\n");
    user.types("cd ../plain && guard run -q -- true");
    assert_eq!(user.kept_runs().len(), 5, "no limit");
    configure("[state]\\nkeep = \"1s\"\\n");
    user.types("sleep 1.1; cd ../plain && guard run -q -- true");
    // Two runs remain: the one that has just ended, and the one that holds work.
    assert_eq!(user.kept_runs().len(), 2);
    user.sees("guard runs", &["task/work"]);
    user.types("cd ../plain && guard run -q -- true");
    assert_eq!(user.kept_runs().len(), 3, "at most once an hour");
    configure("[state]\\nkeep_mib = 1\\n");
    user.types("cd ../plain && guard run -q -- bash -c 'printf %0400000d 1' > /dev/null");
    assert_eq!(user.kept_runs().len(), 4, "there is room");
    configure("[state]\\nkeep_mib = 1\\n");
    user.types("cd ../plain && guard run -q -- bash -c 'printf %0400000d 1' > /dev/null");
    // The size limit leaves room for the last run only, and the run that holds work stays in any case.
    assert_eq!(user.kept_runs().len(), 2);
    configure("[state]\\nkeep = \"for ever\"\\n");
    user.sees("guard run -- true", &["such as \"5m\""]);
}

/// `guard runs` must list 1,000 runs quickly. The goal is 30 ms in a release build; the limit here allows a debug build
/// on a busy machine, but no process per run and no reading of whole transcripts.
#[test]
fn thousand_runs_are_listed_quickly() {
    let state = Scratch::new("runs-thousand");
    for number in 0..1_000 {
        let id = format!("0197f0a0-{number:04x}-7000-8000-{:012x}", number * 7_919);
        let start = json!({
            "command": ["make", "all"], "policy": "strict", "pid": 1, "program": "/usr/bin/make",
            "branch": format!("task/t{number}"), "repository": "/home/u/project", "folder": "/home/u/project",
        });
        let result = json!({
            "success": true, "tool": "make", "exit_code": 0, "denials": [], "result": "x".repeat(2_000), "commits": [],
        });
        let events = [(number, "run.started", "", start), (number + 9, "run.finished", "", result)];
        transcript(&state, &id, &events);
    }
    for arguments in
        [&["runs"][..], &["runs", "-n", "20"], &["ps"], &["log", "t17"], &["log", "@"], &["runs", "--json"]]
    {
        let began = Instant::now();
        let output = guard().env("XDG_STATE_HOME", &state.0).args(arguments).output().unwrap();
        let took = began.elapsed();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        assert!(took < Duration::from_secs(5), "{arguments:?} took {took:?}");
        eprintln!("guard {}: {took:?}", arguments.join(" "));
    }
}

/// guard was killed while it removed the worktree of a run. The user removed the rest, and another run got the same
/// name. `guard worktree clean` must not remove the work of the other run.
#[test]
fn clean_after_a_killed_removal_keeps_the_work_of_a_later_run() {
    let user = UserShell::new("runs-clean-later");
    user.types(
        "guard run -q --keep --name z -- true && git worktree remove -f -f $(guard worktree path task/z) && git branch -qD task/z &&
         sed -i 's/\"state\": *\"[a-z]*\"/\"state\":\"removing\"/' ~/.local/state/guard/runs/*/workspace.json &&
         grep -q '\"removing\"' ~/.local/state/guard/runs/*/workspace.json &&
         guard run -q --name z -- bash -c 'echo work > work.txt'",
    );
    user.types("guard worktree clean && cat $(guard worktree path task/z)/work.txt && test $(guard worktree list --json | jq length) = 1");
}

/// The user commits on a detached `HEAD` in the worktree of a run. `guard worktree clean` must keep the worktree, and
/// with `--all` it must save the commit.
#[test]
fn clean_keeps_commits_of_a_detached_head() {
    let user = UserShell::new("runs-clean-detached");
    user.types(
        "guard run -q --keep --name det -- true && cd $(guard worktree path task/det) && git checkout -q --detach &&
         echo x > x && git add x && git commit -qm 'on no branch'",
    );
    user.sees("guard worktree clean", &["kept: task/det"]);
    user.sees("guard worktree clean --all", &["removed: task/det", "refs/guard/"]);
    assert_eq!(
        user.types("git log -1 --format=%s $(git for-each-ref --format='%(refname)' refs/guard)"),
        "on no branch\n"
    );
}

/// guard moved the files of a run away, because one is too large for a commit. `guard runs prune` must keep them.
#[test]
fn prune_keeps_files_that_were_set_aside() {
    let user = UserShell::new("runs-prune-moved");
    let said =
        user.types("guard run --discard --name big -- sh -c 'truncate -s 1100M big; echo x > notes' 2>&1");
    assert!(
        said.contains("moved files of its worktree away") && !said.contains("left nothing new"),
        "{said}"
    );
    user.sees("guard runs prune --older-than 0s", &["kept ", "guard moved files of its worktree to "]);
    user.types("test \"$(cat ~/.local/state/guard/runs/*/foreign/*/notes)\" = x");
}

/// The user fetches in the worktree of a run while the agent works. That must not count as an escape of the agent.
#[test]
fn fetch_of_the_user_in_a_run_worktree_is_not_an_escape() {
    let user = UserShell::new("runs-fetch");
    let result = user.types(
        "guard run --json --keep --name fetch -- sleep 6 > ../result.json &
         for _ in $(seq 600); do test -e .git/worktrees/*/HEAD && break; sleep 0.1; done; sleep 1
         git --git-dir=$(ls -d .git/worktrees/*) fetch -q . HEAD && test -e .git/worktrees/*/FETCH_HEAD && wait $! &&
         jq -c '[.success, .error_kind]' ../result.json",
    );
    assert_eq!(result, "[true,null]\n");
}
