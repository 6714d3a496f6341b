//! People at gates, and people who come back.

use super::{Yard, said, shown};

#[test]
fn a_person_stands_at_a_gate() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--gate", "plan=human", "Do it."]);
    assert_eq!((ran.code, &ran.result["status"]), (3, &"needs_human".into()), "{}", shown(&ran));
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    // Nobody has decided: nothing happens.
    let again = yard.about(&["resume", &id, "--json"]);
    assert_eq!(again.code, 3, "{}", again.error);
    // A no needs a reason; then the plan is made again, and asked about again.
    assert_eq!(yard.about(&["reject", &id, "--feedback", " "]).code, 2);
    assert_eq!(yard.about(&["reject", &id, "--feedback", "too long"]).code, 0);
    assert_eq!(yard.about(&["approve", &id]).code, 2, "the first decision counts");
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    assert!(said(&ran).contains(&"PLAN REVIEWER: Plan rejected: too long".to_string()), "{}", shown(&ran));
    let prompt = &yard.about(&["show", "--json"]).result_of_show("plan")[1];
    assert!(prompt.contains("too long"), "{prompt}");
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let review = yard.git("show task/x:docs/dev_docs/archived/reviews/plan_review_x_v1.md");
    assert!(review.contains("too long") && review.contains("a person"), "{review}");
    // There is nothing more to decide, or to go on with.
    assert_eq!(yard.about(&["approve", &id]).code, 2);
    assert_eq!(yard.about(&["resume", &id]).code, 2);
}

#[test]
fn notes_lessons_and_ideas() {
    let yard = Yard::new();
    let lessons = "# Agent Memory\n\n- The toggle needs a label\n";
    yard.world.outside(&format!(
        "cd repository && mkdir -p docs/dev_docs && printf '{lessons}' > docs/dev_docs/AGENT_MEMORY.md \
         && printf -- '# Backlog\\n\\n- Think about colours\\n' > docs/dev_docs/backlog.md && git add -A && git commit -qm docs \
         && echo 'Mind the blind.' > docs/dev_docs/HUMAN_REVIEW.md"
    ));
    let ran = yard.task(&["--name", "x", "Add a toggle."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let prompt = &yard.about(&["show", "--json"]).result_of_show("plan")[0];
    assert!(prompt.contains("Mind the blind.") && prompt.contains("The toggle needs a label"), "{prompt}");
    // An idea that is there already is not there twice; a new lesson comes to the old ones.
    assert_eq!(yard.git("show task/x:docs/dev_docs/backlog.md").matches("Think about colours").count(), 1);
    let memory = yard.git("show task/x:docs/dev_docs/AGENT_MEMORY.md");
    assert!(memory.contains("needs a label") && memory.contains("toggles are lines"), "{memory}");
    // What the person has not committed stays theirs.
    assert_eq!(yard.git("status --porcelain"), "?? docs/dev_docs/HUMAN_REVIEW.md");
}

#[test]
fn back_to_a_step() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    let first = yard.git("rev-parse task/x");
    let unknown = yard.about(&["retry", &id, "--from", "nowhere"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.error.contains("plan_review"), "{}", unknown.error);
    let ran = yard.about(&["retry", &id, "--from", "develop", "--stream-json"]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    let subjects = yard.subjects("task/x");
    assert_eq!(subjects.iter().filter(|subject| *subject == "Add the toggle").count(), 1, "{subjects:?}");
    // What was there before is kept.
    assert!(
        yard.git("for-each-ref --format='%(objectname) %(refname)' refs/guard/").contains("refs/guard/task-")
    );
    yard.git(&format!("merge-base --is-ancestor {first} $(git -C repository for-each-ref --format='%(objectname)' refs/guard/)"));
}

#[test]
fn one_at_a_time_and_given_up() {
    let yard = Yard::new();
    let mut command = yard.command(&["--json", "--name", "x", "Do it. @wait=20", "--agent-command"]);
    let mut child = command.arg(yard.agent()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    let id = loop {
        let list = yard.about(&["list", "--json"]);
        if let Some(task) = list.result.as_array().and_then(|all| all.first()) {
            break task["task_id"].as_str().unwrap().to_string();
        }
        assert!(began.elapsed().as_secs() < 30);
    };
    let second = yard.about(&["resume", &id]);
    assert_eq!(second.code, 2);
    assert!(second.error.contains("another guard works on"), "{}", second.error);
    let cancelled = yard.about(&["cancel", &id]);
    assert_eq!(cancelled.code, 0, "{}", cancelled.error);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(yard.about(&["list", "--json"]).result[0]["status"], "cancelled");
    assert_eq!(yard.about(&["resume", &id]).code, 2);
}

#[test]
fn a_budget_is_used_up_and_raised() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--max-minutes", "0", "Do it."]);
    assert_eq!((ran.code, &ran.result["status"]), (124, &"budget_exhausted".into()), "{}", shown(&ran));
    let same = yard.about(&["resume", "--json"]);
    assert_eq!((same.code, &same.result["status"]), (124, &"budget_exhausted".into()), "{}", same.error);
    let more = yard.about(&["resume", "--json", "--max-minutes", "60"]);
    assert_eq!((more.code, &more.result["status"]), (0, &"succeeded".into()), "{}", more.error);
}
