//! guard compares a repository before and after a run. It must find every change, report nothing else, and say who can
//! have made the change.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use guard::git::snapshot::{Actor, Difference, ExpectedChanges, Fingerprint, Kind, Name};
use proptest::prelude::*;

use crate::support::{Scratch, isolated_command};

/// Returns a git command as the user would run it, without the user's configuration.
pub(crate) fn git(folder: &Path) -> Command {
    let mut command = isolated_command("git", Path::new("/nonexistent"));
    command
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example.org");
    command
}

/// Runs git, which must succeed. Returns its output.
pub(crate) fn run(folder: &Path, words: &[&str]) -> String {
    let output = git(folder).args(words).output().unwrap();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_string()
}

/// A repository with two commits, branches and tags, a linked worktree `other`, and the worktree `task-x` of a run.
struct Repository {
    scratch: Scratch,
}

const FORMATS: [&[&str]; 4] = [
    &[],
    &["--ref-format=reftable"],
    &["--object-format=sha256"],
    &["--object-format=sha256", "--ref-format=reftable"],
];

impl Repository {
    fn new(options: &[&str]) -> Self {
        let scratch = Scratch::new("fingerprint");
        let repository = Self { scratch };
        let main = repository.main();
        std::fs::create_dir(&main).unwrap();
        run(&main, &[&["init", "--quiet", "--initial-branch=main"], options].concat());
        std::fs::write(main.join("file"), "one\n").unwrap();
        run(&main, &["add", "."]);
        run(&main, &["commit", "--quiet", "-m", "one"]);
        for name in ["a", "b/c", "ünï", "packed"] {
            run(&main, &["branch", name]);
        }
        run(&main, &["tag", "-a", "v1", "-m", "v1"]);
        run(&main, &["tag", "light"]);
        run(&main, &["pack-refs", "--all"]);
        run(&main, &["commit", "--quiet", "--allow-empty", "-m", "two"]);
        run(&main, &["branch", "late"]);
        run(&main, &["update-ref", "refs/remotes/origin/main", "main"]);
        run(&main, &["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main"]);
        run(&main, &["worktree", "add", "--quiet", "-b", "other", "../other"]);
        run(&main, &["worktree", "add", "--quiet", "-b", "task/x", "../task-x"]);
        repository
    }

    fn main(&self) -> PathBuf {
        self.scratch.0.join("main")
    }

    fn common(&self) -> PathBuf {
        self.main().join(".git")
    }

    fn take(&self) -> Fingerprint {
        Fingerprint::take(&self.common()).unwrap()
    }
}

fn ours(repository: &Repository) -> ExpectedChanges {
    ExpectedChanges {
        run: "run1".to_string(),
        branch: Some("refs/heads/task/x".into()),
        tip: None,
        worktree: Some("task-x".into()),
        wrote: BTreeSet::from(["index".into(), "ORIG_HEAD".into()]),
        grants: vec![repository.scratch.0.join("task-x")],
    }
}

/// Returns the changes since `before`. Fails unless the changes are the same with `retake`, with `take`, and with a
/// `before` that was written to JSON and read back.
fn compare(repository: &Repository, before: &Fingerprint) -> Vec<Difference> {
    let ours = ours(repository);
    let found = before.compare(&before.retake().unwrap(), &ours);
    assert_eq!(found, before.compare(&repository.take(), &ours));
    let stored: Fingerprint = serde_json::from_str(&serde_json::to_string(before).unwrap()).unwrap();
    assert_eq!(&stored, before);
    assert_eq!(found, stored.compare(&stored.retake().unwrap(), &ours));
    found
}

fn one(found: &[Difference]) -> &Difference {
    assert_eq!(found.len(), 1, "{found:#?}");
    &found[0]
}

#[test]
fn fingerprint_has_the_refs_that_git_lists() {
    for format in FORMATS {
        let repository = Repository::new(format);
        let taken = repository.take();
        let mut expected = BTreeMap::new();
        let said = run(
            &repository.main(),
            &["for-each-ref", "--format=%(refname) %(objectname) %(symref)", "--include-root-refs"],
        );
        for line in said.lines() {
            let mut words = line.split(' ');
            let (name, object, symbolic) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            let value = if symbolic.is_empty() { object.to_string() } else { format!("ref: {symbolic}") };
            expected.insert(name.to_string(), value);
        }
        for (id, branch) in [("other", "other"), ("task-x", "task/x")] {
            expected.insert(format!("worktrees/{id}/HEAD"), format!("ref: refs/heads/{branch}"));
        }
        // git's reftable format has a placeholder file at `refs/heads`, which stops old versions of git. It is not a
        // ref.
        let found: BTreeMap<String, String> = taken
            .values()
            .filter(|(name, _)| {
                !name.bytes().ends_with(b"refs/heads") && !name.bytes().ends_with(b"/ORIG_HEAD")
            })
            .map(|(name, value)| (String::from_utf8(name.bytes().to_vec()).unwrap(), value))
            .collect();
        assert_eq!(found, expected, "{format:?}");
        assert!(!taken.is_incomplete());
    }
}

#[test]
fn unchanged_repository_has_no_difference() {
    for format in FORMATS {
        let repository = Repository::new(format);
        let before = repository.take();
        let works: [&[&str]; 9] = [
            &["pack-refs", "--all"],
            &["status"],
            &["log"],
            &["for-each-ref"],
            &["fsck"],
            &["reflog", "expire", "--all", "--expire=never"],
            &["gc", "--quiet", "--prune=now"],
            &["worktree", "prune"],
            &["update-server-info"],
        ];
        for words in works {
            run(&repository.main(), words);
            assert_eq!(compare(&repository, &before), [], "{format:?} {words:?}");
        }
        // The same content is written again.
        let config = repository.common().join("config");
        std::fs::write(&config, std::fs::read(&config).unwrap()).unwrap();
        assert_eq!(compare(&repository, &before), []);
    }
}

/// guard must report each change that others make as one difference, and must not attribute it to the run, in every
/// repository format.
#[test]
fn changes_of_others_are_not_attributed_to_the_run() {
    type Case<'a> = (&'a str, &'a [&'a str], Kind, &'a str);
    let cases: [Case<'_>; 9] = [
        ("main", &["update-ref", "refs/heads/a", "main"], Kind::Ref, "refs/heads/a"),
        ("main", &["branch", "-D", "packed"], Kind::Ref, "refs/heads/packed"),
        ("main", &["branch", "new/one", "main"], Kind::Ref, "refs/heads/new/one"),
        ("main", &["tag", "-f", "light", "main"], Kind::Ref, "refs/tags/light"),
        ("main", &["update-ref", "refs/guard/run2/tip", "main"], Kind::Ref, "refs/guard/run2/tip"),
        ("main", &["symbolic-ref", "HEAD", "refs/heads/late"], Kind::Head, "HEAD"),
        ("other", &["symbolic-ref", "HEAD", "refs/heads/a"], Kind::Head, "worktrees/other/HEAD"),
        ("other", &["update-ref", "refs/worktree/x", "main"], Kind::Ref, "worktrees/other/refs/worktree/x"),
        ("main", &["config", "user.name", "B"], Kind::Config, "config"),
    ];
    for format in FORMATS {
        for (folder, words, kind, name) in cases {
            let repository = Repository::new(format);
            let before = repository.take();
            run(&repository.scratch.0.join(folder), words);
            let mut found = compare(&repository, &before);
            // git also adds a line to the reflog when HEAD moves. The test ignores that difference.
            found.retain(|difference| difference.kind != Kind::Reflog);
            let difference = one(&found);
            assert_eq!(
                (difference.kind, difference.name.bytes(), difference.by),
                (kind, name.as_bytes(), Actor::Others)
            );
        }
    }
}

#[test]
fn moved_ref_is_reported_with_old_and_new_value() {
    for format in FORMATS {
        let repository = Repository::new(format);
        let before = repository.take();
        let (old, new) =
            (run(&repository.main(), &["rev-parse", "a"]), run(&repository.main(), &["rev-parse", "main"]));
        run(&repository.main(), &["update-ref", "refs/heads/a", "main"]);
        let found = compare(&repository, &before);
        assert_eq!((one(&found).old.as_deref(), one(&found).new.as_deref()), (Some(&*old), Some(&*new)));
        assert_eq!(
            found[0].to_string(),
            format!("refs/heads/a changed from {old} to {new}, by the user or another process")
        );
    }
}

/// guard must detect a change to any file that controls git, even if a program other than git wrote the file.
#[test]
fn change_to_any_file_git_obeys_is_detected() {
    let cases = [
        ("config.worktree", Kind::Config),
        ("hooks/pre-commit", Kind::Hook),
        ("info/attributes", Kind::Attributes),
        ("info/exclude", Kind::Exclude),
        ("info/grafts", Kind::Grafts),
        ("shallow", Kind::Shallow),
        ("objects/info/alternates", Kind::Alternates),
        ("index", Kind::Index),
        ("commondir", Kind::Other),
        ("worktrees/other/index", Kind::Index),
        ("worktrees/other/gitdir", Kind::Worktree),
        ("worktrees/other/config.worktree", Kind::Config),
        ("modules/sub/hooks/post-checkout", Kind::Module),
        ("logs/refs/heads/a", Kind::Reflog),
        ("refs/heads/a", Kind::Ref),
        ("packed-refs", Kind::Ref),
    ];
    for (path, kind) in cases {
        let repository = Repository::new(&[]);
        let file = repository.common().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let before = repository.take();
        let mut content = std::fs::read(&file).unwrap_or_default();
        content.extend_from_slice(b"changed\n");
        std::fs::write(&file, content).unwrap();
        let found = compare(&repository, &before);
        let difference = one(&found);
        assert_eq!(
            (difference.kind, difference.name.bytes(), difference.by),
            (kind, path.as_bytes(), Actor::Others)
        );
    }
    // A hook becomes executable.
    let repository = Repository::new(&[]);
    let before = repository.take();
    let hook = repository.common().join("hooks/pre-commit.sample");
    let mode = if hook.metadata().unwrap().permissions().mode() & 0o111 == 0 { 0o755 } else { 0o644 };
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(mode)).unwrap();
    assert_eq!(one(&compare(&repository, &before)).kind, Kind::Hook);
    std::fs::remove_dir_all(repository.common().join("hooks")).unwrap();
    symlink("/nonexistent", repository.common().join("hooks")).unwrap();
    let found = compare(&repository, &before);
    assert!(found.iter().any(|one| one.name.bytes() == b"hooks" && one.kind == Kind::Hook), "{found:#?}");
}

// slow
#[test]
fn changes_made_by_guard_are_attributed_to_guard() {
    for format in FORMATS {
        let repository = Repository::new(format);
        let before = repository.take();
        let task = repository.scratch.0.join("task-x");
        run(&repository.main(), &["update-ref", "refs/heads/task/x", "refs/heads/a"]);
        run(&repository.main(), &["update-ref", "--create-reflog", "refs/guard/run1/tip", "main"]);
        run(&task, &["reset", "--quiet"]);
        let mut found = compare(&repository, &before);
        // The branch moved, so git also added a line to the HEAD log of the worktree. The test ignores that
        // difference.
        found.retain(|one| !one.name.bytes().ends_with(b"logs/HEAD"));
        assert!(found.len() >= 2, "{found:#?}");
        assert!(found.iter().all(|one| one.by == Actor::Guard), "{found:#?}");
        // If the branch is not where guard left it, guard must attribute the move to others.
        let elsewhere = ExpectedChanges { tip: Some("0".repeat(40)), ..ours(&repository) };
        let found = before.compare(&repository.take(), &elsewhere);
        let branch = found.iter().find(|one| one.name.bytes() == b"refs/heads/task/x").unwrap();
        assert_eq!(branch.by, Actor::Others);
    }
}

/// guard must attribute two kinds of changes to the agent: those in the git directory of the run's worktree that guard
/// did not make, and those in a directory that the agent can write.
#[test]
fn changes_only_the_agent_could_make_are_attributed_to_it() {
    let attacks: [(&str, &[u8]); 6] = [
        ("worktrees/task-x/HEAD", b"ref: refs/heads/main\n"),
        ("worktrees/task-x/config.worktree", b"[core]\n\tfsmonitor = x\n"),
        ("worktrees/task-x/commondir", b"/tmp\n"),
        ("worktrees/task-x/gitdir", b"/tmp/.git\n"),
        ("worktrees/task-x/refs/bisect/bad", b"0000000000000000000000000000000000000001\n"),
        ("worktrees/task-x/logs/HEAD", b"x\n"),
    ];
    for (path, content) in attacks {
        let repository = Repository::new(&[]);
        let before = repository.take();
        let file = repository.common().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
        let found = compare(&repository, &before);
        assert_eq!((one(&found).name.bytes(), found[0].by), (path.as_bytes(), Actor::Agent));
    }
    // The hooks directory is a link into the agent's worktree.
    let repository = Repository::new(&[]);
    let hooks = repository.scratch.0.join("task-x/.hooks");
    std::fs::create_dir(&hooks).unwrap();
    std::fs::remove_dir_all(repository.common().join("hooks")).unwrap();
    symlink(&hooks, repository.common().join("hooks")).unwrap();
    let before = repository.take();
    std::fs::write(hooks.join("pre-commit"), "#!/bin/sh\n").unwrap();
    let found = compare(&repository, &before);
    assert_eq!((one(&found).name.bytes(), found[0].by), (&b"hooks/pre-commit"[..], Actor::Agent));
    // The policy lets the agent write to the repository itself.
    let repository = Repository::new(&[]);
    let before = repository.take();
    run(&repository.main(), &["update-ref", "refs/heads/a", "main"]);
    let everything = ExpectedChanges { grants: vec![repository.scratch.0.clone()], ..ours(&repository) };
    assert!(before.compare(&repository.take(), &everything).iter().all(|one| one.by == Actor::Agent));
}

#[test]
fn added_or_removed_worktree_is_one_difference() {
    for format in FORMATS {
        let repository = Repository::new(format);
        let before = repository.take();
        run(&repository.main(), &["worktree", "remove", "--force", "../other"]);
        run(&repository.main(), &["worktree", "add", "--quiet", "--detach", "../third"]);
        let found = compare(&repository, &before);
        let names: Vec<_> = found.iter().map(|one| (one.name.to_string(), one.kind, one.by)).collect();
        assert_eq!(
            names,
            [
                ("worktrees/other".to_string(), Kind::Worktree, Actor::Others),
                ("worktrees/third".to_string(), Kind::Worktree, Actor::Others)
            ]
        );
    }
}

/// A file that changed just before the snapshot can change again in the same tick of the clock, with the same inode,
/// size and times. guard must read such a file again. The test changes the stored snapshot instead, because newer
/// kernels have finer clocks.
#[test]
fn file_changed_just_before_the_snapshot_is_read_again() {
    let repository = Repository::new(&[]);
    let before = repository.take();
    let mut stored = serde_json::to_value(&before).unwrap();
    let other = "1".repeat(40);
    stored["refs"]["refs/heads/late"]["value"]["object"] = other.clone().into();
    stored["files"]["config"]["content"]["hash"] = "2".into();
    stored["logs"]["logs/HEAD"]["content"]["hash"] = "3".into();
    let names = |stored: &serde_json::Value| -> Vec<String> {
        let stored: Fingerprint = serde_json::from_value(stored.clone()).unwrap();
        let found = stored.compare(&stored.retake().unwrap(), &ours(&repository));
        found.iter().map(|one| one.name.to_string()).collect()
    };
    // Sets the time of the snapshot to the moment of the changes, however long the test took.
    let changed = ["refs/heads/late", "config", "logs/HEAD"].map(|name| {
        let data = repository.common().join(name).metadata().unwrap();
        data.ctime() * 1_000_000_000 + data.ctime_nsec()
    });
    let first = changed.into_iter().min().unwrap();
    stored["looked"] = first.into();
    assert_eq!(names(&stored), ["refs/heads/late", "config", "logs/HEAD"]);
    // If the snapshot is an hour newer than the files, guard must not read a file with the same inode, size and times
    // again.
    stored["looked"] = (first + 3_600_000_000_000).into();
    assert_eq!(names(&stored), <[&str; 0]>::default());
}

/// While guard reads the refs, git may move a ref from its own file to `packed-refs`. guard must not miss that ref.
#[test]
fn ref_packed_during_the_snapshot_is_not_missed() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let scratch = Scratch::new("packing");
    scratch.write("HEAD", "ref: refs/heads/main\n");
    std::fs::create_dir_all(scratch.0.join("refs/heads")).unwrap();
    let made = AtomicUsize::new(0);
    const LAST: usize = 1_500;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut packed = String::from("# pack-refs with: peeled fully-peeled sorted \n");
            for index in 0..LAST {
                let line = format!("{index:040x}");
                scratch.write("refs/heads/x.lock", format!("{line}\n"));
                let file = scratch.0.join(format!("refs/heads/{index}"));
                std::fs::rename(scratch.0.join("refs/heads/x.lock"), &file).unwrap();
                made.store(index + 1, Ordering::SeqCst);
                packed.push_str(&format!("{line} refs/heads/{index}\n"));
                scratch.write("packed-refs.new", &packed);
                std::fs::rename(scratch.0.join("packed-refs.new"), scratch.0.join("packed-refs")).unwrap();
                std::fs::remove_file(file).unwrap();
            }
        });
        let mut before = Fingerprint::take(&scratch.0).unwrap();
        while made.load(Ordering::SeqCst) < LAST {
            let expected = made.load(Ordering::SeqCst);
            let after = before.retake().unwrap();
            for index in 0..expected {
                let value = after.value(format!("refs/heads/{index}").as_bytes());
                assert_eq!(value, Some(format!("{index:040x}")), "{index} of {expected}");
            }
            before = after;
        }
    });
}

/// Another git moves, deletes and packs refs all the time. Every snapshot must succeed, and must show a difference only
/// in `moving`, the one branch whose value changes.
// slow
#[test]
fn concurrent_git_causes_no_error_and_no_false_difference() {
    for format in [FORMATS[0], FORMATS[1]] {
        let repository = Repository::new(format);
        let main = repository.main();
        for index in 0..50 {
            run(&main, &["branch", &format!("still/{index}")]);
        }
        let before = repository.take();
        let done = std::sync::atomic::AtomicBool::new(false);
        let looks = std::thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..40 {
                    run(&main, &["branch", "-f", "moving", if index % 2 == 0 { "late" } else { "a" }]);
                    run(&main, &["update-ref", &format!("refs/heads/still/{}", index % 50), "late"]);
                    run(&main, &["pack-refs", "--all", "--prune"]);
                    run(&main, &["branch", "-D", "moving"]);
                }
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            let mut looks = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                for after in [before.retake().unwrap(), repository.take()] {
                    looks += 1;
                    let found = before.compare(&after, &ours(&repository));
                    let wrong: Vec<_> = found
                        .iter()
                        .filter(|one| {
                            !one.name.to_string().contains("refs/heads/moving") || one.by != Actor::Others
                        })
                        .collect();
                    assert!(wrong.is_empty(), "{wrong:#?}");
                }
            }
            looks
        });
        assert!(looks > 20, "only {looks} looks");
    }
}

#[test]
fn ref_names_may_contain_any_bytes() {
    let repository = Repository::new(&[]);
    let name = b"refs/heads/caf\xe9\xff";
    let file = repository.common().join(std::ffi::OsStr::from_bytes(name));
    std::fs::write(file, "1".repeat(40) + "\n").unwrap();
    let before = repository.take();
    assert_eq!(before.value(name), Some("1".repeat(40)));
    assert_eq!(compare(&repository, &before), []);
}

#[test]
fn strange_files_in_a_repository_are_no_error() {
    let repository = Repository::new(&[]);
    let common = repository.common();
    let pipe = common.join("refs/heads/pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    symlink(".", common.join("refs/heads/round")).unwrap();
    symlink("nowhere", common.join("refs/heads/nowhere")).unwrap();
    symlink("refs/heads/a", common.join("refs/heads/old-style")).unwrap();
    std::fs::write(common.join("refs/heads/empty"), "").unwrap();
    std::fs::write(common.join("refs/heads/long"), vec![b'x'; 1 << 20]).unwrap();
    std::fs::create_dir(common.join("worktrees/empty")).unwrap();
    std::fs::write(common.join("worktrees/file"), "").unwrap();
    let before = repository.take();
    assert_eq!(before.value(b"refs/heads/old-style").as_deref(), Some("ref: refs/heads/a"));
    assert_eq!(compare(&repository, &before), []);
    std::fs::remove_file(pipe).unwrap();
    let names: Vec<_> = compare(&repository, &before).iter().map(|one| one.name.to_string()).collect();
    assert_eq!(names, ["refs/heads/pipe", "refs/heads/round/pipe"]);
    assert!(Fingerprint::take(Path::new("/nonexistent")).is_err());
}

proptest! {
    #[test]
    fn ref_names_are_parsed_back_from_text(bytes in prop::collection::vec(any::<u8>(), 0..40), text in "\\PC{0,20}") {
        for name in [Name::from(&bytes), Name::from(text.as_bytes())] {
            let shown = name.to_string();
            prop_assert!(shown.chars().all(|character| !character.is_control()));
            prop_assert_eq!(Name::parse(&shown), Some(name.clone()));
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<Name>(&json).unwrap(), name);
        }
    }

    /// guard must read files of refs that contain any bytes, without a panic or an error. The same bytes must give
    /// the same refs.
    #[test]
    fn ref_files_with_any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200), flip in any::<prop::sample::Index>()) {
        let scratch = Scratch::new("bytes");
        let table = scratch.write("reftable/x.ref", [&b"REFT\x01\x00\x10\x00"[..], &bytes].concat());
        scratch.write("reftable/tables.list", "x.ref\n");
        scratch.write("packed-refs", &bytes);
        scratch.write("HEAD", &bytes);
        scratch.write("refs/heads/x", &bytes);
        let before = Fingerprint::take(&scratch.0).unwrap();
        prop_assert_eq!(before.compare(&before.retake().unwrap(), &ExpectedChanges::default()), []);
        let mut damaged = std::fs::read(&table).unwrap();
        let at = flip.index(damaged.len());
        damaged[at] ^= 1;
        std::fs::write(&table, damaged).unwrap();
        before.retake().unwrap();
    }
}
