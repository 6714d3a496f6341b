//! Tests workflow files: how guard reads, checks and draws them, and one that is written from scratch.
use crate::support::{Scratch, TaskFixture, describe_task, guard, text};

/// The example workflow of the documentation: two phases with their own prompts.
const NOTES: &str = r#"
version: 1
name: notes
modes: { direct: think }
mode: direct
roles:
  thinker: { title: THINKER, policy: architect }
  critic: { title: CRITIC, policy: reviewer }
steps:
  think:
    role: thinker
    prompt: |
      You are the Architect. Think about: {{request}}
      {{#feedback}}
      {{feedback}}
      {{/feedback}}
      Write it to `{{document}}`
      {{answer_format}}
    document: { name: thought, path: "plans/thought_{feat}.md" }
    answer:
      plan_path: { is: document }
    says: "Thought about it in '{thought}'."
    commit: Thought
    next: judge
  judge:
    role: critic
    prompt: judge.md
    document: { name: judgement, path: "reviews/judgement_{feat}_v{n}.md", optional: true }
    answer:
      verdict: { one_of: [APPROVE, REJECT] }
      feedback: { is: text, when: { verdict: REJECT } }
    commit: Judgement
    verdicts:
      APPROVE: { next: end, says: "Good." }
      REJECT: { next: back, says: "Not good." }
"#;

// slow
#[test]
fn workflow_written_from_scratch_runs() {
    let fixture = TaskFixture::new();
    let folder = fixture.repository.with_file_name("flows");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("notes.yaml"), NOTES).unwrap();
    let judge = "You are the Lead Architect and judge `{{thought}}` for: {{request}}\nYou may write your reasons to `{{document}}`.\n{{answer_format}}\n";
    std::fs::write(folder.join("judge.md"), judge).unwrap();
    let file = folder.join("notes.yaml");
    let lint = fixture.environment.run_to_end(
        {
            let mut command = fixture.environment.command(crate::support::guard_program());
            command.args(["workflow", "lint"]).arg(&file);
            command
        },
        b"",
    );
    assert_eq!(lint.code, 0, "{}{}", String::from_utf8_lossy(&lint.output), lint.error);
    let outcome = fixture.task(&[
        "--workflow",
        file.to_str().unwrap(),
        "--name",
        "x",
        "Do it. @plan_review=REJECT,APPROVE",
    ]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(
        fixture.subjects("task/x"),
        ["Thought: x", "Judgement: x: REJECT", "Thought: x", "Judgement: x: APPROVE"]
    );
}

/// The prompts of a workflow are sent to an agent. A workflow in a repository, which an agent may have written, must not
/// send files from elsewhere.
#[test]
fn repository_workflow_cannot_use_prompts_outside_the_repository() {
    let scratch = Scratch::new("workflow-prompts");
    let root = scratch.0.canonicalize().unwrap();
    let judge = "Judge `{{thought}}`.\n{{answer_format}}\n";
    let private = scratch.write("private.md", judge);
    scratch.write("p/judge.md", judge);
    scratch.write("p/.git/HEAD", "");
    scratch.write("plain/judge.md", judge);
    let link = |target: &str, at: &str| std::os::unix::fs::symlink(target, root.join(at)).unwrap();
    link("../private.md", "p/linked.md");
    link("judge.md", "p/inside.md");
    link("../private.md", "plain/linked.md");
    scratch.write("elsewhere.yaml", NOTES);
    link("../elsewhere.yaml", "p/linked.yaml");
    let lint = |workflow: &str, prompt: &str| {
        let workflow = root.join(workflow);
        if !workflow.is_symlink() {
            std::fs::write(&workflow, NOTES.replace("prompt: judge.md", &format!("prompt: {prompt}")))
                .unwrap();
        }
        let output = guard().args(["workflow", "lint"]).arg(&workflow).output().unwrap();
        (output.status.success(), format!("{}{}", text(&output), String::from_utf8_lossy(&output.stderr)))
    };
    for (workflow, prompt) in [
        ("p/own.yaml", "judge.md"),
        ("p/own.yaml", "inside.md"),
        ("plain/own.yaml", "linked.md"),
        ("plain/own.yaml", "../p/judge.md"),
    ] {
        let (is_valid, said) = lint(workflow, prompt);
        assert!(is_valid, "{workflow}: {prompt}: {said}");
    }
    link("../p/own.yaml", "plain/p.yaml");
    for (workflow, prompt, why) in [
        ("p/own.yaml", "linked.md", "the file is not"),
        ("p/own.yaml", "../private.md", "the file is not"),
        ("p/own.yaml", private.to_str().unwrap(), "the path must be relative"),
        ("plain/own.yaml", "../p/linked.md", "an agent could have created the link"),
        ("p/linked.yaml", "", "an agent could have created the link"),
    ] {
        let (is_valid, said) = lint(workflow, prompt);
        assert!(!is_valid && said.contains(why), "{workflow}: {prompt}: {said}");
    }
    // The user's own link leads to the workflow in the repository, which names a private file.
    lint("p/own.yaml", "../private.md");
    let (is_valid, said) = lint("plain/p.yaml", "");
    assert!(!is_valid && said.contains("the file is not"), "{said}");
}

#[test]
fn diagnostics_point_at_the_line() {
    let scratch = Scratch::new("workflows");
    let cases = [
        ("next: judge", "next: jugde", "the workflow has no step `jugde`"),
        ("policy: reviewer", "policy: revewer", "no policy named `revewer`"),
        ("role: critic", "role: critik", "the workflow has no role `critik`"),
        ("says: \"Thought", "sayz: \"Thought", "did you mean `says`?"),
        ("mode: direct", "mode: direct\nnote: notes.md", "did you mean `notes`?"),
        ("version: 1", "version: 2", "version 1"),
        ("{{request}}", "{{reqest}}", "unknown placeholder `reqest`"),
        ("{{request}}", "{{files}}", "unknown placeholder `files`"),
        ("{{/feedback}}", "", "`feedback` is not closed"),
        ("APPROVE: { next: end", "APPROVED: { next: end", "the verdict `APPROVE` has no next step"),
        ("prompt: judge.md", "prompt: nowhere.md", "cannot read the prompt file"),
        ("path: \"plans/", "path: \"../plans/", "inside the repository"),
        ("next: end", "next: think", "no reachable step leads to `end`"),
        ("mode: direct", "mode: odd", "the mode `odd`"),
        ("is: document", "is: commit", "cannot commit"),
        ("  think:", "  think: [", "invalid YAML"),
        ("    next: judge", "    limits: { token: 5 }\n    next: judge", "did you mean `tokens`?"),
        (
            "    next: judge",
            "    limits: { cost: much }\n    next: judge",
            "`steps.think.limits.cost` must be a number",
        ),
        (
            "mode: direct",
            "mode: direct\ntriage: { role: critic, prompt: judge.md, answer: { decision: { one_of: [DOCS] } }, docs: { role: critic, prompt: judge.md, files: [], answer: { s: {} } } }",
            "`files` needs a pattern that includes files",
        ),
        (
            "mode: direct",
            "mode: direct\ntriage: { role: critic, prompt: judge.md, answer: { decision: { one_of: [IGNORE] } }, docs: { role: nobody, prompt: judge.md, files: ['*.md'], folder: [x], answer: { s: {} } } }",
            "did you mean `folders`?",
        ),
        ("mode: direct", "mode: direct\nlimits: { step: { minute: 5 } }", "did you mean `minutes`?"),
    ];
    scratch.write("judge.md", "Judge `{{thought}}`.\n{{answer_format}}\n");
    for (good, bad, wanted) in cases {
        assert!(NOTES.contains(good), "{good}");
        let file = scratch.write("notes.yaml", NOTES.replacen(good, bad, 1));
        let output = guard().args(["workflow", "lint"]).arg(&file).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{bad}: {said}");
        assert!(said.contains(wanted) && said.contains("notes.yaml:"), "{bad}: {said}");
    }
    let json =
        guard().args(["workflow", "lint", "--json"]).arg(scratch.0.join("notes.yaml")).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(rows[0]["line"].as_u64() > Some(1), "{rows}");
}

#[test]
fn built_in_workflow_is_shown_and_drawn() {
    let list = text(&guard().args(["workflow", "list"]).output().unwrap());
    assert!(list.starts_with("default") && list.contains("built in"), "{list}");
    let shown = text(&guard().args(["workflow", "show", "default"]).output().unwrap());
    assert_eq!(shown, include_str!("../../policies/workflows/default.yaml"));
    let graph = text(&guard().args(["workflow", "graph", "default"]).output().unwrap());
    assert!(graph.contains("plan_review") && graph.contains("── REJECT ──► plan"), "{graph}");
    let chart = text(&guard().args(["workflow", "graph", "default", "--mermaid"]).output().unwrap());
    assert!(
        chart.starts_with("flowchart TD") && chart.contains("analyse -->|REJECT| investigate"),
        "{chart}"
    );
    let json: serde_json::Value = serde_json::from_slice(
        &guard().args(["workflow", "show", "default", "--json"]).output().unwrap().stdout,
    )
    .unwrap();
    assert_eq!(json["steps"].as_array().map(Vec::len), Some(12));
    assert_eq!(guard().args(["workflow", "lint", "odd"]).output().unwrap().status.code(), Some(2));
}
