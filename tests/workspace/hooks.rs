//! The user's hooks, identity, trailers and filters must apply when the agent runs git.

use std::path::Path;

use guard::git::{Request, Workspace};

use crate::support::{TestRepository, agent_commit, agent_git, git, git_in, make_program};

fn script(path: &Path, text: &str) {
    make_program(path, format!("#!/bin/sh\n{text}\n"));
}

#[test]
fn hooks_of_the_repository_run_from_a_copy() {
    let fixture = TestRepository::new();
    let hooks = fixture.repository.join(".git/hooks");
    script(&hooks.join("pre-commit"), ". \"$(dirname \"$0\")/helper\"; echo pre >> hooks.log");
    std::fs::write(hooks.join("helper"), "echo helped >> hooks.log\n").unwrap();
    script(&hooks.join("commit-msg"), "echo \"$(cat \"$1\") (checked)\" > \"$1\"");
    script(&hooks.join("post-commit"), "echo post >> hooks.log");
    script(&hooks.join("post-checkout"), "touch /tmp/guard-must-not-run-$$; exit 1");
    let workspace = fixture.open("hooked");
    agent_commit(&workspace, "c.txt", "c", "work");
    let log = std::fs::read_to_string(workspace.worktree().join("hooks.log")).unwrap();
    assert_eq!(log, "helped\npre\npost\n");
    assert_eq!(agent_git(&workspace, &["log", "-1", "--format=%s"]), "work (checked)");
    let path = agent_git(&workspace, &["config", "core.hooksPath"]);
    assert!(!Path::new(&path).starts_with(workspace.quarantine()), "the agent cannot write there: {path}");
    let without = Request { skip_hooks: true, ..fixture.request("free") };
    let free = fixture.open_with(&without);
    agent_commit(&free, "c.txt", "c", "work");
    assert_eq!(agent_git(&free, &["log", "-1", "--format=%s"]), "work");
}

#[test]
fn husky_style_hooks_run() {
    let fixture = TestRepository::new();
    // The files are as husky 9 makes them: git ignores the generated directory `_`, and the scripts beside it are
    // committed.
    let husky = fixture.repository.join(".husky");
    script(
        &husky.join("_/h"),
        "n=$(basename \"$0\"); s=$(dirname \"$(dirname \"$0\")\")/$n; [ ! -f \"$s\" ] && exit 0; sh -e \"$s\" \"$@\"",
    );
    script(&husky.join("_/pre-commit"), ". \"$(dirname \"$0\")/h\"");
    std::fs::write(husky.join("_/.gitignore"), "*\n").unwrap();
    std::fs::write(husky.join("pre-commit"), "echo husky >> husky.log; test ! -e forbidden\n").unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "husky"]);
    fixture.git(&["config", "core.hooksPath", ".husky/_"]);
    let workspace = fixture.open("husky");
    assert!(!workspace.worktree().join(".husky/_").exists(), "what is ignored does not come along");
    agent_commit(&workspace, "c.txt", "c", "work");
    assert!(workspace.worktree().join("husky.log").exists());
    // The agent changes the script in the worktree. guard's copy of the hook must still run.
    std::fs::write(workspace.worktree().join(".husky/pre-commit"), "exit 0\n").unwrap();
    std::fs::write(workspace.worktree().join("forbidden"), "").unwrap();
    agent_git(&workspace, &["add", "-A"]);
    let refused = git_in(workspace.worktree(), &["commit", "-m", "x"]);
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn commits_carry_the_identity_and_the_trailers() {
    let fixture = TestRepository::new();
    script(&fixture.repository.join(".git/hooks/prepare-commit-msg"), "echo 'Reviewed-by: nobody' >> \"$1\"");
    let request = Request {
        identity: Some(("An Agent".into(), "agent@example.org".into())),
        trailers: vec!["Agent: it's gemini".into()],
        ..fixture.request("signed-off")
    };
    fixture.git(&["config", "commit.gpgSign", "true"]);
    let workspace = fixture.open_with(&request);
    agent_commit(&workspace, "c.txt", "c", "work");
    assert_eq!(
        agent_git(&workspace, &["log", "-1", "--format=%an <%ae> %cn"]),
        "An Agent <agent@example.org> An Agent"
    );
    let message = agent_git(&workspace, &["log", "-1", "--format=%B"]);
    assert!(message.contains("Agent: it's gemini") && message.contains("Reviewed-by: nobody"), "{message}");
    assert!(!agent_git(&workspace, &["cat-file", "commit", "HEAD"]).contains("gpgsig"));
}

#[test]
fn filters_and_ignore_lists_of_the_user_work_inside() {
    let fixture = TestRepository::new();
    std::fs::write(fixture.repository.join(".gitattributes"), "*.up filter=up\n").unwrap();
    std::fs::write(fixture.repository.join("x.up"), "committed\n").unwrap();
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "--quiet", "-m", "attributes"]);
    fixture.git(&["config", "filter.up.clean", "tr A-Z a-z"]);
    fixture.git(&["config", "filter.up.smudge", "tr a-z A-Z"]);
    std::fs::write(fixture.scratch.0.join("excludes"), "*.swp\n").unwrap();
    fixture.git(&["config", "core.excludesFile", fixture.scratch.0.join("excludes").to_str().unwrap()]);
    std::fs::write(fixture.repository.join(".git/info/exclude"), "local-only\n").unwrap();
    let mut workspace = Workspace::open(&fixture.find_trusted(), &fixture.request("filtered")).unwrap();
    workspace.point_at_quarantine().unwrap();
    assert_eq!(std::fs::read_to_string(workspace.worktree().join("x.up")).unwrap(), "COMMITTED\n");
    for name in ["y.swp", "local-only"] {
        std::fs::write(workspace.worktree().join(name), "").unwrap();
    }
    assert_eq!(agent_git(&workspace, &["status", "--porcelain"]), "");
    agent_commit(&workspace, "x.up", "CHANGED\n", "change");
    assert_eq!(agent_git(&workspace, &["cat-file", "blob", "HEAD:x.up"]), "changed");
    workspace.receive(&guard::git::Limits::default()).unwrap();
    workspace.dispose(guard::git::KeepPolicy::Auto).unwrap();
    assert_eq!(git(workspace.worktree(), &["status", "--porcelain"]), "");
}

#[test]
fn untracked_files_are_copied_and_linked_as_requested() {
    let fixture = TestRepository::new();
    std::fs::create_dir_all(fixture.repository.join("node_modules/left")).unwrap();
    std::fs::write(fixture.repository.join("node_modules/left/index.js"), "js").unwrap();
    std::fs::write(fixture.repository.join(".env.test"), "KEY=1\n").unwrap();
    std::fs::write(fixture.repository.join("notes"), "mine\n").unwrap();
    let request = Request {
        copy: vec![".env.test".into(), "notes".into(), "missing".into(), "a.txt".into()],
        link_readonly: vec!["node_modules".into()],
        ..fixture.request("brought")
    };
    let mut workspace = fixture.open_with(&request);
    let at = workspace.worktree().to_path_buf();
    assert_eq!(std::fs::read_to_string(at.join("node_modules/left/index.js")).unwrap(), "js");
    assert!(workspace.readable().contains(&fixture.repository.join("node_modules")));
    assert_eq!(
        std::fs::read_to_string(at.join("a.txt")).unwrap(),
        "one\n",
        "what is tracked stays as committed"
    );
    std::fs::write(at.join("notes"), "the agent's\n").unwrap();
    workspace.receive(&guard::git::Limits::default()).unwrap();
    let settled = workspace.dispose(guard::git::KeepPolicy::Auto).unwrap();
    assert!(settled.kept);
    assert_eq!(git(&at, &["status", "--porcelain"]), "?? notes", "only what the agent changed is left");
    assert!(fixture.repository.join("node_modules/left/index.js").exists(), "a link is not followed");
}
