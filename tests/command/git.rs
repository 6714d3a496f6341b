//! Tests details of the analysis of git commands that the verdict does not show.

use guard::judge::command::{Context, Cwd, Effects, Intent, Request, analyze};

fn first(text: &str) -> Intent {
    let context = Context { cwd: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() };
    analyze(&Request::Shell(text.as_bytes().to_vec()), &context).intents.remove(0)
}

#[test]
fn git_refs_are_resolved_to_full_names() {
    let refs = |text: &str| -> Vec<String> {
        let git = first(text).git.unwrap();
        git.refs.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    };
    assert_eq!(refs("git branch -D main dev"), ["refs/heads/main", "refs/heads/dev"]);
    assert_eq!(refs("git tag -f v1"), ["refs/tags/v1"]);
    assert_eq!(refs("git update-ref refs/heads/main HEAD"), ["refs/heads/main"]);
    assert_eq!(refs("git switch -c topic"), ["refs/heads/topic"]);
    assert!(refs("git branch --list main").is_empty());
}

#[test]
fn abbreviated_git_flags_get_their_full_names() {
    let flags = |text: &str| first(text).git.unwrap().flags;
    assert_eq!(flags("git commit --amen -qam x"), ["--amend", "--quiet", "--all", "--message"]);
    assert_eq!(flags("git commit -nm x"), ["--no-verify", "--message"]);
    assert_eq!(flags("git commit -m -n"), ["--message"]);
    assert_eq!(flags("git log -n 3"), ["--max-count"]);
}

#[test]
fn repository_options_and_variables_mark_another_repository() {
    let elsewhere = |text: &str| {
        let context = Context { cwd: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() };
        let analysis = analyze(&Request::Shell(text.as_bytes().to_vec()), &context);
        analysis.intents.iter().any(|intent| intent.effects.intersects(Effects::GIT_ELSEWHERE))
    };
    for text in [
        "git -C .. add .",
        "cd /srv && git commit -m x",
        "git --git-dir=/x/.git add .",
        "GIT_DIR=/x git add .",
        "git -C sub/../.. add .",
    ] {
        assert!(elsewhere(text), "{text}");
    }
    for text in [
        "git -C sub add .",
        "cd sub && git commit -m x",
        "(cd /srv); git add .",
        "git -C .. log",
        "cd $X && git add .",
    ] {
        assert!(!elsewhere(text), "{text}");
    }
}

#[test]
fn renamed_program_is_judged_by_its_resolved_file() {
    let context = Context {
        cwd: Cwd::Known(b"/work/tree".to_vec()),
        resolved: Some(b"/usr/bin/git".to_vec()),
        ..Context::default()
    };
    let argv = |words: &[&str]| Request::Argv(words.iter().map(|word| word.as_bytes().to_vec()).collect());
    let intent = analyze(&argv(&["./harmless", "checkout", "main"]), &context).intents.remove(0);
    assert_eq!(intent.git.unwrap().verb, b"checkout");
    let intent = analyze(&argv(&["git-reset", "--hard"]), &context).intents.remove(0);
    assert_eq!(intent.git.unwrap().verb, b"reset");
    let context = Context { resolved: Some(b"/usr/bin/busybox".to_vec()), ..context };
    let analysis = analyze(&argv(&["sh", "-c", "git push"]), &context);
    assert!(analysis.intents.iter().any(|intent| intent.git.as_ref().is_some_and(|git| git.verb == b"push")));
}

#[test]
fn programs_started_by_git_run_in_the_directory_of_its_options() {
    let context = Context { cwd: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() };
    for (text, place) in [
        ("git -C /srv/other -c alias.x='!git commit -m m' x", Some("/srv/other")),
        ("git -C sub -c alias.x='!git commit -m m' x", Some("/work/tree/sub")),
        ("git -C /srv/other -c core.editor='git commit -m m;:' commit", Some("/srv/other")),
        ("git -C \"$DIR\" -c alias.x='!git commit -m m' x", None),
        ("git -C \"$DIR\" -c alias.x='commit -m m' x", None),
    ] {
        let analysis = analyze(&Request::Shell(text.as_bytes().to_vec()), &context);
        let git = |intent: &&Intent| intent.git.as_ref().is_some_and(|git| git.verb == b"commit");
        let inner = analysis.intents.iter().rfind(git).unwrap();
        assert!(inner.parent.is_some(), "{text}");
        let found = inner.git.as_ref().unwrap().place.clone();
        assert_eq!(found, place.map(|place| place.as_bytes().to_vec()), "{text}");
    }
}
