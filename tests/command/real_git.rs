//! Compares the analysis of git commands with the real git. A command that is analysed as reading must change nothing,
//! one that is analysed as changing refs must change them, and an abbreviated option must mean what git takes it for.

use std::path::Path;
use std::process::{Command, Stdio};

use guard::judge::command::{Analysis, Context, Cwd, Effects, Request, analyze};

use crate::support::{Scratch, isolated_command};

/// Returns a git command in a repository, with a user name and without any configuration.
fn git_command(folder: &Path, args: &[&str]) -> Command {
    let mut command = isolated_command("git", folder);
    command
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_PAGER", "cat")
        .env("GIT_AUTHOR_NAME", "a")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        .stdin(Stdio::null());
    command
}

fn git(folder: &Path, args: &[&str]) -> bool {
    git_command(folder, args).env("GIT_EDITOR", "true").output().unwrap().status.success()
}

fn repository(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    assert!(git(&scratch.0, &["init", "-q", "-b", "main"]));
    scratch.write("a.txt", "one\n");
    assert!(git(&scratch.0, &["add", "."]) && git(&scratch.0, &["commit", "-q", "-m", "one"]));
    assert!(git(&scratch.0, &["tag", "v1"]) && git(&scratch.0, &["branch", "other"]));
    scratch.write("a.txt", "two\n");
    assert!(git(&scratch.0, &["commit", "-qam", "two"]));
    scratch.write("a.txt", "three\n");
    scratch.write("new.txt", "new\n");
    scratch
}

/// Returns everything in the repository that a command could change: refs, HEAD, configuration, index entries and
/// working tree.
fn state(folder: &Path) -> String {
    let run = |args: &[&str]| {
        let output = git_command(folder, args).env("GIT_OPTIONAL_LOCKS", "0").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let config = std::fs::read_to_string(folder.join(".git/config")).unwrap();
    let head = std::fs::read_to_string(folder.join(".git/HEAD")).unwrap();
    let refs = run(&["for-each-ref"]);
    [
        head,
        refs,
        config,
        run(&["ls-files", "-s"]),
        run(&["status", "--porcelain=v1", "-uall"]),
        run(&["diff"]),
    ]
    .concat()
}

fn understood(args: &[&str]) -> Analysis {
    let words =
        std::iter::once("git").chain(args.iter().copied()).map(|word| word.as_bytes().to_vec()).collect();
    analyze(&Request::Argv(words), &Context { cwd: Cwd::Known(b"/work".to_vec()), ..Context::default() })
}

#[test]
fn commands_with_read_effect_change_nothing() {
    let reads: &[&[&str]] = &[
        &["status"],
        &["diff"],
        &["diff", "main", "other"],
        &["log", "--oneline", "-n", "2"],
        &["show", "HEAD:a.txt"],
        &["blame", "a.txt"],
        &["grep", "one"],
        &["ls-files"],
        &["ls-tree", "HEAD"],
        &["rev-parse", "HEAD"],
        &["rev-list", "--all"],
        &["cat-file", "-p", "HEAD"],
        &["describe", "--tags"],
        &["shortlog", "-s", "HEAD"],
        &["name-rev", "HEAD"],
        &["merge-base", "main", "other"],
        &["show-ref"],
        &["for-each-ref"],
        &["show-branch"],
        &["branch"],
        &["branch", "-a"],
        &["branch", "--list", "x*"],
        &["branch", "--contains", "HEAD"],
        &["branch", "--merged", "main"],
        &["branch", "--no-merged", "main"],
        &["branch", "--show-current"],
        &["tag"],
        &["tag", "-l", "v*"],
        &["tag", "-n", "v1"],
        &["tag", "--contains", "HEAD~1"],
        &["remote"],
        &["remote", "-v"],
        &["stash", "list"],
        &["worktree", "list"],
        &["notes", "list"],
        &["config", "--list"],
        &["config", "--get", "core.bare"],
        &["config", "core.bare"],
        &["reflog"],
        &["reflog", "show", "main"],
        &["symbolic-ref", "HEAD"],
        &["hash-object", "a.txt"],
        &["count-objects"],
        &["fsck"],
        &["var", "GIT_EDITOR"],
        &["check-ignore", "x"],
        &["cherry", "other"],
        &["archive", "HEAD"],
        &["diff-tree", "HEAD"],
        &["diff-index", "HEAD"],
        &["diff-files"],
        &["submodule", "status"],
        &["apply", "--stat", "/dev/null"],
        &["commit", "--dry-run"],
        &["replace", "-l"],
        &["range-diff", "main~1", "main", "other"],
    ];
    let scratch = repository("reads");
    let before = state(&scratch.0);
    for args in reads {
        let analysis = understood(args);
        let effects = analysis.intents[0].effects;
        assert!(effects.is_within(Effects::GIT_READS.with(Effects::FS_READS)), "{args:?}: {effects:?}");
        git(&scratch.0, args);
        assert_eq!(state(&scratch.0), before, "git {args:?} changed something");
    }
}

/// Each of these commands must change a fresh repository, and the analysis must report the matching effect.
#[test]
fn commands_that_change_a_repository_have_the_matching_effect() {
    let changes: &[(&[&str], Effects)] = &[
        (&["checkout", "-f", "other"], Effects::GIT_SWITCHES),
        (&["switch", "-f", "other"], Effects::GIT_SWITCHES),
        (&["checkout", "-b", "x"], Effects::GIT_REFS),
        (&["reset", "--hard"], Effects::GIT_WORKTREE),
        (&["reset", "--h", "HEAD~1"], Effects::GIT_REWRITES),
        (&["branch", "x"], Effects::GIT_REFS),
        (&["branch", "-v", "x"], Effects::GIT_REFS),
        (&["branch", "--sort=refname", "x"], Effects::GIT_REFS),
        (&["branch", "-f", "other", "main"], Effects::GIT_REFS),
        (&["branch", "--delet", "other"], Effects::GIT_REFS),
        (&["branch", "-m", "other", "x"], Effects::GIT_REFS),
        (&["tag", "x"], Effects::GIT_REFS),
        (&["tag", "--format=x", "y"], Effects::GIT_REFS),
        (&["tag", "-d", "v1"], Effects::GIT_REFS),
        (&["update-ref", "refs/heads/x", "HEAD"], Effects::GIT_REFS),
        (&["symbolic-ref", "HEAD", "refs/heads/other"], Effects::GIT_SWITCHES),
        (&["commit", "-qam", "x"], Effects::GIT_COMMITS),
        (&["commit", "-q", "--amen", "-m", "x"], Effects::GIT_AMENDS),
        (&["add", "-A"], Effects::GIT_INDEX),
        (&["rm", "-f", "a.txt"], Effects::GIT_INDEX),
        (&["mv", "a.txt", "b.txt"], Effects::GIT_WORKTREE),
        (&["restore", "a.txt"], Effects::GIT_WORKTREE),
        (&["stash"], Effects::GIT_STASH),
        (&["stash", "-u"], Effects::GIT_STASH),
        (&["config", "a.b", "c"], Effects::GIT_CONFIG),
        (&["config", "set", "a.b", "c"], Effects::GIT_CONFIG),
        (&["remote", "add", "x", "/nowhere"], Effects::GIT_CONFIG),
        (&["notes", "add", "-m", "x"], Effects::GIT_REFS),
        (&["clean", "-fd"], Effects::GIT_WORKTREE),
        (&["replace", "HEAD", "HEAD~1"], Effects::GIT_REFS),
        (&["bisect", "start", "main", "other"], Effects::GIT_REFS),
        (&["worktree", "add", "-b", "w", "sub"], Effects::GIT_REFS),
        (&["update-index", "--add", "new.txt"], Effects::GIT_INDEX),
        (&["read-tree", "other"], Effects::GIT_INDEX),
    ];
    for (args, effect) in changes {
        let scratch = repository("changes");
        let before = state(&scratch.0);
        git(&scratch.0, args);
        assert_ne!(state(&scratch.0), before, "git {args:?} changed nothing here; the case shows nothing");
        let effects = understood(args).intents[0].effects;
        assert!(effects.intersects(*effect), "git {args:?}: {effects:?}");
    }
}

/// If git executes the value of a configuration key, the analysis must report that value as a command.
#[test]
fn programs_named_by_configuration_are_run_by_git_and_reported() {
    let cases: &[&[&str]] = &[
        &["-c", "alias.x=!touch ran", "x"],
        &["-c", "alias.X=!touch ran", "x"],
        &["-c", "core.editor=touch ran;true", "commit", "-a"],
        &["-c", "core.fsmonitor=touch ran;false", "status"],
        &["-c", "diff.external=touch ran;true", "diff"],
        &["grep", "-Otouch ran;true", "three"],
        &["-c", "trailer.x.cmd=touch ran", "interpret-trailers", "--trailer", "x=1", "a.txt"],
        &["-c", "alias.a=b", "-c", "alias.b=!touch ran", "a"],
    ];
    for args in cases {
        let scratch = repository("programs");
        git_command(&scratch.0, args).output().unwrap();
        assert!(scratch.0.join("ran").exists(), "git {args:?} did not run it; the case shows nothing");
        let analysis = understood(args);
        let found = analysis.intents.iter().any(|intent| intent.program.name == b"touch");
        assert!(
            found,
            "git {args:?}: {:?}",
            analysis.intents.iter().map(|intent| intent.line()).collect::<Vec<_>>()
        );
    }
}

/// The analysis must know every subcommand that the installed git lists, so that no alias can take the name of one.
#[test]
fn every_verb_of_the_installed_git_is_known() {
    let output =
        isolated_command("git", Path::new("/nonexistent")).args(["--list-cmds=builtins"]).output().unwrap();
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    let unknown: Vec<&str> =
        list.lines().filter(|verb| !guard::judge::command::is_known_verb(verb)).collect();
    // A newer git may have verbs that the table does not contain; guard denies them as unknown, which is safe. For
    // the git version that the table was made from, none may be missing.
    let version = isolated_command("git", Path::new("/nonexistent")).arg("--version").output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains("2.47") {
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
