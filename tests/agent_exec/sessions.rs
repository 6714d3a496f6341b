//! Tests conversations: several requests that share a session id.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answered, exec, request, scripted};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{
    TestEnvironment, expect_no_process_left, guard_program, in_two_environments, one_environment, wait_until,
};

// slow
#[test]
fn second_turn_of_gemini_knows_the_first() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_environments(|environment| {
        let repository = environment.directory.with_file_name("repository");
        // Where guard keeps a session does not depend on namespaces, so one sandbox mode is enough without them.
        let sandboxes = ["workspace-write", "read-only"];
        for sandbox in &sandboxes[..if environment.namespaces { 2 } else { 1 }] {
            let api = Api::plain(vec![Turn::text("The word is plum."), Turn::text("It was plum.")]);
            let mut first = request(&gemini, environment, "say a word", &json!({ "sandbox": sandbox }));
            first["cd"] = json!(repository);
            let one = exec(environment, &api.server.url(""), &first);
            assert_eq!(one.result["success"], true, "{}", one.shown());
            let session = one.result["SESSION_ID"].as_str().unwrap().to_string();
            first["prompt"] = json!("which word?");
            first["SESSION_ID"] = json!(session);
            let two = exec(environment, &api.server.url(""), &first);
            assert_eq!(two.result["success"], true, "{sandbox}: {}", two.shown());
            assert_eq!(two.result["SESSION_ID"], json!(session), "{}", two.shown());
            let last = api.questions().pop().unwrap();
            let body = last.json().to_string();
            assert!(body.contains("say a word") && body.contains("The word is plum."), "{body}");
        }
    });
}

// slow
#[test]
fn unknown_session_id_is_session_lost() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(Vec::new());
    for id in ["0197f0a0-0000-7000-8000-000000000000", "../../etc", ""] {
        let asked = request(&gemini, &environment, "go on", &json!({ "SESSION_ID": id }));
        let answered = exec(&environment, &api.server.url(""), &asked);
        assert_eq!((answered.code, answered.kind()), (2, "session_lost"), "{}", answered.shown());
    }
    assert!(api.server.requests().is_empty());
}

/// A repository with the directory `a/b`, the user's other worktree with the same directory, and a conversation in
/// `a/b`.
struct SessionFixture<'w> {
    environment: &'w TestEnvironment,
    cd: String,
    session: String,
}

/// A script that prints what a session must not change: the tips of the user's branches, and the files in the user's
/// worktrees.
const WITNESS: &str = "git -C repository for-each-ref --format='%(refname) %(objectname)' refs/heads/main refs/heads/task/work refs/heads/mine; \
    for place in repository project; do (cd $place && git symbolic-ref HEAD && git status --porcelain && find . -path ./.git -prune -o -print | LC_ALL=C sort); done";

const PREPARE: &str = "cd repository && git config user.name n && git config user.email e \
    && mkdir -p a/b && echo one > a/b/file && git add a && git commit -qm folder && cd ../project && git merge -q --ff-only main";

impl<'w> SessionFixture<'w> {
    /// Starts a conversation. In its first turn the agent runs this command in `a/b` of its worktree.
    fn after(environment: &'w TestEnvironment, first: &str) -> Self {
        let cd = format!("{}/a/b", environment.directory.with_file_name("repository").display());
        let prompt = format!("echo work > made; {{ {first}; }} && echo done");
        let begun = scripted::tell(environment, &prompt, &json!({ "cd": cd }));
        // The agent's command must have succeeded.
        assert_eq!(begun.result["result"], "done", "{first}: {}", begun.shown());
        assert_eq!(begun.result["worktree"]["kept"], true, "{first}: {}", begun.shown());
        let session = begun.result["SESSION_ID"].as_str().unwrap().to_string();
        Self { environment, cd, session }
    }

    fn next(&self, prompt: &str) -> Answered {
        scripted::tell(self.environment, prompt, &json!({ "cd": self.cd, "SESSION_ID": self.session }))
    }

    /// Returns the worktree of the conversation.
    fn worktree(&self) -> String {
        let name = format!("repository-session-{}", &self.session[self.session.len() - 12..]);
        self.environment.directory.with_file_name(".worktrees").join(name).to_string_lossy().into_owned()
    }
}

/// An agent replaces a directory in its worktree by a link. The next turn must not work in another worktree, in the
/// user's own worktree, or on the user's branches.
// slow
#[test]
fn directory_replaced_by_a_link_does_not_redirect_the_next_turn() {
    in_two_environments(|environment| {
        environment.run_outside(PREPARE);
        let before = environment.run_outside(WITNESS);
        let at = |name: &str| environment.directory.with_file_name(name).display().to_string();
        let (repository, project) = (at("repository"), at("project"));
        let attacks = [
            ("the folder itself", format!("cd ..; mv b c; ln -s {project}/a/b b")),
            ("the user's own worktree", format!("cd ..; mv b c; ln -s {repository}/a/b b")),
            ("a folder above", format!("cd ../..; mv a c; ln -s {project}/a a")),
            ("a relative link", "cd ..; mv b c; ln -s ../../../project/a/b b".to_string()),
            ("a link to a link", format!("cd ..; mv b c; ln -s {project} d; ln -s d/a/b b")),
            ("the top of another worktree", format!("cd ..; mv b c; ln -s {project} b")),
            ("a git file in it", format!("echo gitdir: {repository}/.git/worktrees/project > .git")),
            ("a git file above", format!("echo gitdir: {repository}/.git/worktrees/project > ../.git")),
            ("a git file to the main one", format!("echo gitdir: {repository}/.git > .git")),
            ("a link for git", format!("perl -e 'symlink(\"{repository}/.git\", \".git\") or die'")),
            (
                "the top's own git file",
                format!(
                    "cd ../..; echo gitdir: {repository}/.git/worktrees/project > new; perl -e 'rename(\"new\", \".git\")'"
                ),
            ),
        ];
        for (name, attack) in attacks {
            let fixture = SessionFixture::after(environment, &attack);
            let next = fixture.next("pwd -P; echo planted > planted; git add -A; git commit -qm planted");
            let what = || format!("{}: {name}: {}", environment.name(), next.shown());
            assert_eq!(before, environment.run_outside(WITNESS), "{}", what());
            // guard must either refuse the turn, or run it in the worktree of the conversation.
            let worked_in = next.result["result"].as_str().unwrap_or_default().to_string();
            let is_home = worked_in.starts_with(&fixture.worktree());
            assert!(is_home || ["session_lost", "invalid_input"].contains(&next.kind()), "{}", what());
            if name.contains("folder") || name.contains("link") && !name.contains("git") {
                assert_eq!((next.code, next.kind()), (2, "session_lost"), "{}", what());
            }
        }
    });
}

/// A function that returns a script, which changes the conversation's worktree as a user outside the run would.
type Change = fn(&SessionFixture<'_>) -> String;

/// If the user removes, moves or replaces the worktree of a conversation, the next turn must fail with `session_lost`,
/// and must not continue elsewhere.
// slow
#[test]
fn removed_or_replaced_worktree_is_session_lost() {
    in_two_environments(|environment| {
        environment.run_outside(PREPARE);
        let changes: [(&str, Change); 7] = [
            ("removed", |fixture| {
                format!("git -C repository worktree remove --force --force {}", fixture.worktree())
            }),
            ("deleted", |fixture| format!("rm -rf {}", fixture.worktree())),
            ("moved", |fixture| {
                format!("git -C repository worktree move {} ../moved-$RANDOM", fixture.worktree())
            }),
            ("a file", |fixture| format!("rm -rf {0}; echo file > {0}", fixture.worktree())),
            ("on another branch", |fixture| format!("git -C {} switch -q -C mine", fixture.worktree())),
            ("a link", |fixture| format!("mv {0} {0}-away; ln -s $PWD/project {0}", fixture.worktree())),
            ("another repository", |fixture| {
                format!(
                    "rm -rf {0}; git init -q -b mine {0}; git -C {0} -c user.name=n -c user.email=e commit -q --allow-empty -m theirs",
                    fixture.worktree()
                )
            }),
        ];
        for (name, change) in changes {
            let fixture = SessionFixture::after(environment, "git add -A; git commit -qm first");
            environment.run_outside(&change(&fixture));
            let before = environment.run_outside(WITNESS);
            let next = fixture.next("echo planted > planted; git add -A; git commit -qm planted");
            assert_eq!((next.code, next.kind()), (2, "session_lost"), "{name}: {}", next.shown());
            assert_eq!(before, environment.run_outside(WITNESS), "{name}");
        }
    });
}

/// If another repository or a link takes the place of the conversation's directory, the next turn must fail with
/// `session_lost`.
#[test]
fn replaced_working_directory_is_session_lost() {
    let environment = one_environment();
    environment.run_outside(PREPARE);
    for change in [
        "mv repository away && git init -q -b main repository && mkdir -p repository/a/b && cd repository \
         && git -c user.name=n -c user.email=e commit -q --allow-empty -m other",
        "rm -rf repository && mkdir -p elsewhere/a/b && ln -s elsewhere repository",
    ] {
        let fixture = SessionFixture::after(&environment, "true");
        environment.run_outside(change);
        let next = fixture.next("pwd");
        assert_eq!((next.code, next.kind()), (2, "session_lost"), "{change}: {}", next.shown());
        environment.run_outside("if test -d away; then rm -rf repository && mv away repository; fi");
    }
}

/// The next turn must find the agent's files, the kept part of its home and its branch. If the last turn left no
/// changes, guard makes a new worktree.
// slow
#[test]
fn next_turn_finds_files_home_and_branch_of_the_last_one() {
    in_two_environments(|environment| {
        environment.run_outside(PREPARE);
        let fixture = SessionFixture::after(
            environment,
            "cd ~; mkdir -p .gemini/tmp/p/chats .gemini/tmp/p/memory; echo kept > .gemini/tmp/p/chats/one.json; \
             echo gone | tee .gemini/tmp/p/memory/MEMORY.md other > /dev/null",
        );
        let next = fixture.next("cat made ~/.gemini/tmp/p/chats/one.json; ls ~/.gemini/tmp/p/memory; ls ~/other; git add -A; git commit -qm two; git branch --show-current");
        let said = next.result["result"].as_str().unwrap_or_default();
        assert!(said.starts_with("work kept ls: cannot access"), "{}: {}", environment.name(), next.shown());
        assert!(
            said.ends_with(&format!("task/session-{}", &fixture.session[fixture.session.len() - 12..])),
            "{said}"
        );
        assert_eq!(next.result["commits"].as_array().map(Vec::len), Some(1), "{}", next.shown());
        let third = fixture.next("git log --format=%s -1; cat made");
        assert_eq!(third.result["result"], "two work", "{}", third.shown());
        // guard keeps no worktree for a conversation that changed nothing. Its next turn must get a new worktree at
        // the same path.
        let more = json!({ "cd": fixture.cd });
        let talk = scripted::tell(environment, "pwd -P", &more);
        assert_eq!(talk.result["worktree"]["kept"], false, "{}", talk.shown());
        let again = scripted::tell(
            environment,
            "pwd -P",
            &json!({ "cd": fixture.cd, "SESSION_ID": talk.result["SESSION_ID"] }),
        );
        assert_eq!(again.result["success"], true, "{}", again.shown());
        assert_eq!(again.result["result"], talk.result["result"]);
    });
}

/// An agent reports a session id of its own. The result must have guard's id, and the next turn must fail with
/// `session_lost`, because guard has no session of the agent to continue.
#[test]
fn result_has_the_session_id_of_guard_and_not_of_the_agent() {
    let environment = one_environment();
    let lines = "#!/bin/sh\necho '{\"type\":\"init\",\"session_id\":\"its-own\"}'\necho '{\"type\":\"result\",\"status\":\"success\"}'\n";
    let asked = json!({ "agent": "gemini", "command": [scripted::agent(&environment, "other", lines)], "prompt": "x", "cd": environment.directory, "in_place": true });
    let one = exec(&environment, "http://127.0.0.1:1", &asked);
    let id = one.result["SESSION_ID"].as_str().unwrap();
    assert!(one.result["success"] == true && id.len() == 36, "{}", one.shown());
    let mut next = asked.clone();
    next["SESSION_ID"] = json!(id);
    let two = exec(&environment, "http://127.0.0.1:1", &next);
    assert_eq!(
        (two.code, two.kind(), &two.result["SESSION_ID"]),
        (2, "session_lost", &json!(id)),
        "{}",
        two.shown()
    );
}

fn started(environment: &TestEnvironment, asked: &Value) -> std::process::Child {
    let mut command = environment.command(guard_program());
    command.args(["exec", "--request"]).arg(environment.directory.with_file_name("request.json"));
    std::fs::write(environment.directory.with_file_name("request.json"), asked.to_string()).unwrap();
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// A session accepts one request at a time: guard must reject a second one. When guard is killed during a request,
/// the next request must continue the conversation.
#[test]
fn busy_session_is_refused_and_continues_after_guard_is_killed() {
    let environment = one_environment();
    environment.run_outside(PREPARE);
    let fixture = SessionFixture::after(&environment, "true");
    let mark = crate::support::unique_mark();
    let prompt = format!("echo here > ../../here; env {mark} sleep 600");
    let asked =
        scripted::request(&environment, &prompt, &json!({ "cd": fixture.cd, "SESSION_ID": fixture.session }));
    let mut child = started(&environment, &asked);
    let here = Path::new(&fixture.worktree()).join("here");
    wait_until("the agent works", || here.exists());
    let busy = fixture.next("true");
    assert_eq!((busy.code, busy.kind()), (2, "session_busy"), "{}", busy.shown());
    child.kill().unwrap();
    child.wait().unwrap();
    expect_no_process_left(&mark, Duration::from_secs(20));
    let mut next = fixture.next("cat ../../here made");
    // After guard was killed, the run's init process may still hold the worktree for a moment.
    wait_until("the worktree is free", || {
        if next.kind() == "session_busy" {
            next = fixture.next("cat ../../here made");
        }
        next.kind() != "session_busy"
    });
    assert_eq!(next.result["result"], "here work", "{}", next.shown());
}
