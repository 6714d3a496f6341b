//! A user undoes the last turn of a conversation. The turn's changes to files must be undone as well.

use super::Talk;

/// The user undoes a turn in which the agent committed, changed and deleted files. Branch and files must be as before
/// the turn, later prompts must not contain the turn, and the user must be able to restore the undone work.
#[test]
fn undo_restores_files_and_history_of_a_turn() {
    let talk = Talk::new("conversation-undo");
    talk.says("echo one > committed; git add committed; git commit -qm one; echo loose > loose; echo ok");
    let worktree = talk.worktree();
    let state = || {
        let git = |arguments: &str| talk.user.types(&format!("cd {} && {arguments}", worktree.display()));
        (
            git("git rev-parse HEAD"),
            git("cat committed; cat loose 2>/dev/null; ls"),
            git("git status --porcelain | grep -v prompt | cut -c4-; true"),
        )
    };
    let before = state();
    talk.says("echo two > committed; git commit -qam two; rm loose; echo new > new; echo ok");
    assert_ne!(state(), before);
    let undone = talk.history(&["undo", "@"]);
    assert_eq!((&undone["turn"], &undone["files"]["name"]), (&2.into(), &"moved_back".into()), "{undone:#}");
    assert_eq!(state(), before);
    let saved = undone["files"]["saved"].as_str().unwrap();
    let files = talk.user.types(&format!("git show {saved}:new; git log -1 --format=%s {saved}^"));
    assert_eq!(files, "new\ntwo\n");
    assert_eq!(talk.says("cat committed"), "one");
    assert!(!talk.prompt().contains("echo two"), "{}", talk.prompt());
    // The number of an undone turn must not be used again.
    let numbers: Vec<u64> = talk.history(&["show"])["turns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| turn["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 3]);
}

/// The user undoes the first turn. The branch must be at the commit where it began.
#[test]
fn undo_of_the_first_turn_restores_the_first_commit() {
    let talk = Talk::new("conversation-undo-first");
    talk.says("echo x > file; git add file; git commit -qm x; echo ok");
    let worktree = talk.worktree();
    talk.guard(&["history", "undo", "@"]);
    let shown = talk.user.types(&format!("cd {} && ls && git log --format=%s", worktree.display()));
    assert!(!shown.contains("file\n") && shown.contains("agent\nfirst\n"), "{shown}");
    let (_, error, code) = talk.guard(&["history", "undo", "@"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("no turn to undo"), "{error}");
    assert_eq!(talk.says("cat file || echo none"), "none");
}

/// A turn leaves a file that git cannot read. The undo must save that file too.
#[test]
fn undo_saves_a_file_without_permissions() {
    let talk = Talk::new("conversation-undo-unreadable");
    talk.says("echo one > one; echo ok");
    talk.says("echo precious > hard; mkdir dir; echo deep > dir/file; chmod 000 hard dir; echo ok");
    let undone = talk.history(&["undo", "@"]);
    let saved = undone["files"]["saved"].as_str().unwrap_or_else(|| panic!("{undone:#}"));
    assert_eq!(talk.user.types(&format!("git show {saved}:hard {saved}:dir/file")), "precious\ndeep\n");
}

/// guard is killed after it moved the files back and before it recorded the undo. The second undo must not overwrite
/// the work that the first one saved.
#[test]
fn repeated_undo_keeps_the_saved_work() {
    let talk = Talk::new("conversation-undo-twice");
    talk.says("echo one > one; echo ok");
    talk.says("echo two > two; echo ok");
    let first = talk.history(&["undo", "@"])["files"]["saved"].as_str().unwrap().to_string();
    let log = talk.conversations()[0].join("messages.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    let end = text.trim_end().rfind('\n').unwrap() + 1;
    std::fs::write(&log, &text[..end]).unwrap();
    let second = talk.history(&["undo", "@"])["files"]["saved"].as_str().unwrap().to_string();
    assert_ne!(first, second);
    assert_eq!(talk.user.types(&format!("git show {first}:two")), "two\n");
    assert_eq!(talk.says("ls two || echo gone"), "gone");
}

/// Another run has planted a filter in the repository since the turn. The undo must not execute it when it checks files
/// out.
#[test]
fn undo_runs_no_program_of_an_untrusted_repository() {
    let talk = Talk::new("conversation-undo-untrusted");
    talk.says("echo one > file; echo ok");
    talk.says("echo two > file; echo ok");
    let marker = talk.user.types("echo -n $HOME/executed");
    talk.user.types(
        "git config filter.planted.smudge 'touch ~/executed; cat' && echo '* filter=planted' >> .git/info/attributes",
    );
    let (printed, error, code) = talk.guard(&["history", "undo", "@"]);
    assert!(!std::path::Path::new(&marker).exists(), "{printed}{error}");
    assert_ne!(code, 0, "{printed}{error}");
    assert!(error.contains("filter"), "{error}");
}
