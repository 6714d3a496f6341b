// slow
//! Tests gates at which a user decides, and tasks that a user resumes.

use super::bad_input::acts;
use crate::support::{TaskFixture, describe_task, task_messages};

#[test]
fn human_gate_waits_for_approval_or_rejection() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "plan=human", "Do it."]);
    assert_eq!(
        (outcome.code, &outcome.result["status"]),
        (3, &"needs_human".into()),
        "{}",
        describe_task(&outcome)
    );
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    // Without a decision `resume` must do nothing.
    let again = fixture.about(&["resume", &id, "--json"]);
    assert_eq!(again.code, 3, "{}", again.error);
    // A rejection must have a reason. Then the planner must plan again, and guard must ask the user again.
    assert_eq!(fixture.about(&["reject", &id, "--feedback", " "]).code, 2);
    assert_eq!(fixture.about(&["reject", &id, "--feedback", "too long"]).code, 0);
    assert_eq!(fixture.about(&["approve", &id]).code, 2, "the first decision counts");
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    assert!(
        task_messages(&outcome).contains(&"Person: Plan rejected: too long".to_string()),
        "{}",
        describe_task(&outcome)
    );
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("plan")[1];
    assert!(prompt.contains("too long"), "{prompt}");
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let review = fixture.git("show task/x:docs/dev_docs/archived/reviews/plan_review_x_v1.md");
    assert!(review.contains("too long") && review.contains("Person <person@example.org>"), "{review}");
    // There must be nothing more to decide or to resume.
    assert_eq!(fixture.about(&["approve", &id]).code, 2);
    assert_eq!(fixture.about(&["resume", &id]).code, 2);
}

/// A user's decision must be attributed to the user in the messages, in the document, and as the author of its commit.
#[test]
fn decision_is_attributed_to_the_user() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "plan=human", "Do it."]);
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    fixture.git("config user.name Reviewer");
    fixture.git("config user.email reviewer@example.org");
    assert_eq!(fixture.about(&["approve", &id, "--feedback", "fine"]).code, 0);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(
        task_messages(&outcome).contains(&"Reviewer: Plan approved.".to_string()),
        "{}",
        describe_task(&outcome)
    );
    let authors = fixture.git("log --reverse --format='%an <%ae> %s' main..task/x");
    assert!(authors.contains("Reviewer <reviewer@example.org> Plan Review: x: APPROVE"), "{authors}");
    assert!(authors.contains("Person <person@example.org> Plan: x"), "{authors}");
    let review = fixture.git("show task/x:docs/dev_docs/archived/reviews/plan_review_x_v1.md");
    assert!(review.contains("Reviewer <reviewer@example.org>") && review.contains("fine"), "{review}");
}

#[test]
fn finished_task_is_shown_and_cleaned() {
    let fixture = TaskFixture::new();
    let waiting = fixture.task(&["--name", "w", "--gate", "plan=human", "Do it."]);
    let waiting = waiting.result["task_id"].as_str().unwrap().to_string();
    let refused = fixture.about(&["clean", &waiting]);
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("not finished"), "{}", refused.error);
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let (id, worktree) =
        (outcome.result["task_id"].as_str().unwrap(), outcome.result["worktree"].as_str().unwrap());
    let text = String::from_utf8(fixture.about(&["show", id]).output).unwrap();
    let commit = fixture.git("log --format='%h %s' -1 --grep '^Archive: x' task/x");
    let summary = outcome.result["delivered"].as_str().unwrap();
    for wanted in [
        format!("commit    {commit}"),
        "document  plan: docs/dev_docs/archived/plans/plan_x.md".to_string(),
        format!("summary   {summary}"),
    ] {
        assert!(text.lines().any(|line| line == wanted), "{wanted}:\n{text}");
    }
    let shown: serde_json::Value =
        serde_json::from_slice(&fixture.about(&["show", id, "--json"]).output).unwrap();
    assert_eq!(shown["summary"], summary);
    assert_eq!(shown["commits"].as_array().map(Vec::len), Some(6), "{shown:#}");
    // `guard task clean` must save uncommitted work, and must keep a branch that is not merged.
    fixture.environment.run_outside(&format!("echo mine > {worktree}/mine"));
    let cleaned = fixture.about(&["clean", id]);
    let told = String::from_utf8_lossy(&cleaned.output).into_owned();
    assert_eq!(cleaned.code, 0, "{}", cleaned.error);
    assert!(told.contains("because it is not merged") && told.contains("saved at refs/guard/"), "{told}");
    assert!(!std::path::Path::new(worktree).exists() && !std::path::Path::new(summary).exists());
    let kept = fixture.git("for-each-ref --format='%(refname)' refs/guard/");
    assert_eq!(fixture.git(&format!("show {kept}:mine")), "mine");
    assert_eq!(fixture.subjects("task/x").len(), 6);
    assert_eq!(fixture.about(&["show", id]).code, 2);
    // `guard task clean` must delete a branch that is merged.
    let outcome = fixture.task(&["--name", "y", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    fixture.git("merge -q --no-edit task/y");
    assert_eq!(fixture.about(&["clean", "--all"]).code, 0);
    assert_eq!(fixture.git("branch --format='%(refname:short)' --list 'task/*'"), "task/w\ntask/x");
    let left = fixture.about(&["list", "--json"]);
    assert_eq!(left.result.as_array().map(Vec::len), Some(1), "{}", left.result);
    fixture.git("fsck --strict");
}

/// Runs a task in a new repository until it waits for the user, because its branch conflicts with the base and its
/// agent did not resolve the conflict. Returns the fixture, the task's id and its worktree.
fn at_a_conflict() -> (TaskFixture, String, std::path::PathBuf) {
    let fixture = TaskFixture::new();
    let working = std::fs::read_to_string(fixture.agent()).unwrap();
    let lie = "finish '{\"status\": \"success\", \"commit_hash\": \"0123456789\"}'";
    acts(
        &fixture,
        "Integration Specialist",
        &format!("git merge main; git add -A; git commit -qm half; {lie}"),
    );
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    fixture.environment.run_outside(
        "cd repository && echo 'line of main' > toggle.txt && git add -A && git commit -qm theirs",
    );
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(
        (outcome.code, &outcome.result["status"]),
        (3, &"needs_human".into()),
        "{}",
        describe_task(&outcome)
    );
    let worktree = outcome.result["worktree"].as_str().unwrap();
    let reason = outcome.result["reason"].as_str().unwrap();
    assert!(reason.contains("did not resolve the conflict") && reason.contains(worktree), "{reason}");
    // guard must have removed the agent's failed attempt from the worktree and the branch.
    assert_eq!(fixture.environment.run_outside(&format!("git -C {worktree} status --porcelain")), "");
    assert!(!fixture.subjects("task/x").iter().any(|subject| subject == "half"));
    std::fs::write(fixture.agent(), working).unwrap();
    (fixture, id, worktree.into())
}

#[test]
fn user_resolves_a_merge_conflict_by_hand() {
    let (fixture, id, worktree) = at_a_conflict();
    let worktree = worktree.display();
    let calls = fixture.about(&["list", "--json"]).result[0]["used"]["calls"].clone();
    fixture.environment.run_outside(&format!("cd {worktree} && ! git merge -q main"));
    let early = fixture.about(&["resume", &id]);
    assert_eq!(early.code, 2, "{}", early.error);
    assert!(early.error.contains("uncommitted changes (toggle.txt)"), "{}", early.error);
    // guard must not accept a file with conflict markers as resolved.
    fixture.environment.run_outside(&format!("cd {worktree} && git add -A && git commit -q --no-edit"));
    let bad = fixture.about(&["resume", &id]);
    assert_eq!(bad.code, 2, "{}", bad.error);
    assert!(bad.error.contains("still has conflict markers"), "{}", bad.error);
    fixture.environment.run_outside(&format!(
        "cd {worktree} && printf 'line of main\nline of mine\n' > toggle.txt && git commit -qam 'no markers'"
    ));
    // guard must run the tests on the user's resolution, as on an agent's.
    let failing = fixture.about(&["resume", &id, "--json", "--tests", "grep -q nobody toggle.txt"]);
    assert_eq!((failing.code, &failing.result["status"]), (3, &"needs_human".into()), "{}", failing.error);
    assert!(failing.result["reason"].as_str().unwrap().contains("the tests fail"), "{}", failing.result);
    let outcome = fixture.about(&["resume", &id, "--stream-json", "--no-tests"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let lines = task_messages(&outcome).join("\n");
    assert!(lines.contains("Person: Conflicts resolved. Tests not run. Commit: "), "{lines}");
    assert!(!lines.contains("Spawning INTEGRATION SPECIALIST"), "{lines}");
    assert_eq!(fixture.git("show task/x:toggle.txt"), "line of main\nline of mine");
    // The only further call must be the one to the agent that reviews the merge.
    assert_eq!(
        outcome.result["used"]["calls"].as_u64(),
        calls.as_u64().map(|calls| calls + 1),
        "{}",
        describe_task(&outcome)
    );
}

#[test]
fn unresolved_conflict_is_given_to_the_agent_again_on_resume() {
    let (fixture, id, _) = at_a_conflict();
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let lines = task_messages(&outcome).join("\n");
    assert!(lines.contains("INTEGRATION SPECIALIST: Conflicts resolved."), "{lines}");
}

#[test]
fn notes_lessons_and_backlog_reach_the_agents() {
    let fixture = TaskFixture::new();
    let lessons = "# Agent Memory\n\n- The toggle needs a label\n";
    fixture.environment.run_outside(&format!(
        "cd repository && mkdir -p docs/dev_docs && printf '{lessons}' > docs/dev_docs/AGENT_MEMORY.md \
         && printf -- '# Backlog\\n\\n- Think about colours\\n' > docs/dev_docs/backlog.md && git add -A && git commit -qm docs \
         && echo 'Mind the blind.' > docs/dev_docs/HUMAN_REVIEW.md"
    ));
    let outcome = fixture.task(&["--name", "x", "Add a toggle."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("plan")[0];
    assert!(prompt.contains("Mind the blind.") && prompt.contains("The toggle needs a label"), "{prompt}");
    // An idea that is already in the backlog must not be added twice. A new lesson must be added to the old ones.
    assert_eq!(fixture.git("show task/x:docs/dev_docs/backlog.md").matches("Think about colours").count(), 1);
    let memory = fixture.git("show task/x:docs/dev_docs/AGENT_MEMORY.md");
    assert!(memory.contains("needs a label") && memory.contains("toggles are lines"), "{memory}");
    // The user's uncommitted file must stay uncommitted.
    assert_eq!(fixture.git("status --porcelain"), "?? docs/dev_docs/HUMAN_REVIEW.md");
}

#[test]
fn retry_goes_back_to_a_named_step() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    let first = fixture.git("rev-parse task/x");
    let unknown = fixture.about(&["retry", &id, "--from", "nowhere"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.error.contains("plan_review"), "{}", unknown.error);
    let outcome = fixture.about(&["retry", &id, "--from", "develop", "--stream-json"]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    let subjects = fixture.subjects("task/x");
    assert_eq!(subjects.iter().filter(|subject| *subject == "Add the toggle").count(), 1, "{subjects:?}");
    // guard must keep the earlier work under refs/guard.
    assert!(
        fixture
            .git("for-each-ref --format='%(objectname) %(refname)' refs/guard/")
            .contains("refs/guard/task-")
    );
    fixture.git(&format!("merge-base --is-ancestor {first} $(git -C repository for-each-ref --format='%(objectname)' refs/guard/)"));
}

#[test]
fn task_runs_once_at_a_time_and_can_be_aborted() {
    let fixture = TaskFixture::new();
    let mut command = fixture.command(&["--json", "--name", "x", "Do it. @wait=20", "--agent-command"]);
    let mut child = command.arg(fixture.agent()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    let id = loop {
        let list = fixture.about(&["list", "--json"]);
        if let Some(task) = list.result.as_array().and_then(|all| all.first()) {
            break task["task_id"].as_str().unwrap().to_string();
        }
        assert!(began.elapsed().as_secs() < 120);
    };
    let second = fixture.about(&["resume", &id]);
    assert_eq!(second.code, 2);
    assert!(second.error.contains("is working on the task"), "{}", second.error);
    let cancelled = fixture.about(&["cancel", &id]);
    assert_eq!(cancelled.code, 0, "{}", cancelled.error);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fixture.about(&["list", "--json"]).result[0]["status"], "cancelled");
    assert_eq!(fixture.about(&["resume", &id]).code, 2);
}

#[test]
fn exhausted_time_budget_stops_the_task_until_it_is_raised() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--max-minutes", "0", "Do it."]);
    assert_eq!(
        (outcome.code, &outcome.result["status"]),
        (124, &"budget_exhausted".into()),
        "{}",
        describe_task(&outcome)
    );
    let same = fixture.about(&["resume", "--json"]);
    assert_eq!((same.code, &same.result["status"]), (124, &"budget_exhausted".into()), "{}", same.error);
    let more = fixture.about(&["resume", "--json", "--max-minutes", "60"]);
    assert_eq!((more.code, &more.result["status"]), (0, &"succeeded".into()), "{}", more.error);
}
