// slow
//! A workflow step that deep research performs, with the workflow of the documentation.

use std::process::{Child, Stdio};

use crate::research::{PLAN, Researcher};
use crate::support::wait_until;

/// Returns the workflow `researched.yaml` from the documentation.
fn documented_workflow() -> String {
    let page = include_str!("../../docs/tasks/workflow-format.md");
    let (_, rest) =
        page.split_once("```yaml file=\"researched.yaml\"\n").expect("the block in the documentation");
    rest.split_once("```").expect("the end of the block").0.to_string()
}

/// Creates a home directory with a repository, the workflow `researched.yaml`, and a scripted agent that runs
/// `sub_query` to answer a sub-query.
fn researcher(name: &str, sub_query: &str) -> Researcher {
    let researcher = Researcher::new(name, PLAN, sub_query, r#"say '"Use the queue that you have."'"#);
    std::fs::write(researcher.user.home().join("researched.yaml"), documented_workflow()).unwrap();
    researcher
}

const TASK: &str = "guard task --workflow ~/researched.yaml --mode research --name q 'Which queue fits us?'";

/// The user runs a task in the mode `research`. The report on the branch must have the question as its title, the
/// answer and the sub-queries. The plan has five sub-queries; the last one must be left out, because the limit is
/// four.
#[test]
fn research_report_is_committed() {
    let researcher = researcher("task-research", r#"say "\"All about $question.\"""#);
    let (printed, code) = researcher.ends(TASK);
    assert_eq!(code, 0, "{printed}");
    for line in ["RESEARCHER: Decomposed into 4 sub-queries", "Committing Research Report... OK."] {
        assert!(printed.contains(line), "{line:?} is missing:\n{printed}");
    }
    let report = researcher.user.types("git show task/q:docs/dev_docs/research/research_report_q.md");
    for text in
        ["# Which queue fits us?\n\nUse the queue that you have.\n", "## Sub-queries\n\n1. hardware ("]
    {
        assert!(report.contains(text), "{text:?} is missing:\n{report}");
    }
    assert!(!report.contains("markets"), "{report}");
    assert_eq!(researcher.user.types("git log --format=%s main..task/q"), "Research Report: q\n");
    // The plan, each of the four sub-queries, and the synthesis must have one run.
    assert_eq!(researcher.user.kept_runs().len(), 6);
    assert_eq!(researcher.user.types("git status --porcelain; git branch --show-current"), "main\n");
}

fn start(researcher: &Researcher) -> Child {
    let script = format!("{}exec {TASK}", Researcher::preamble());
    let mut command = researcher.user.command("bash");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// guard is killed while one sub-query has no answer yet. `guard task resume` must run only this sub-query and the
/// synthesis.
#[test]
fn killed_task_repeats_no_finished_sub_query() {
    let slow = r#"[ "$question" = vendors ] && sleep 300; say "\"All about $question.\"""#;
    let researcher = researcher("task-research-killed", slow);
    let mut child = start(&researcher);
    let journal = || {
        let found = researcher.ends("cat ~/.local/state/guard/tasks/*/research/*/journal.jsonl").0;
        found.matches("{\"finished\":").count()
    };
    wait_until("three answers", || journal() == 3);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the end of all runs", || researcher.ends("guard ps").0.contains("no runs"));
    let before = researcher.user.kept_runs().len();
    let agent = researcher.user.home().join("bin/gemini");
    let text = std::fs::read_to_string(&agent).unwrap().replace("sleep 300", "sleep 0");
    std::fs::write(&agent, text).unwrap();
    let (printed, code) = researcher.ends("guard task resume");
    assert_eq!(code, 0, "{printed}");
    assert_eq!(researcher.user.kept_runs().len() - before, 2, "{printed}");
    let report = researcher.user.types("git show task/q:docs/dev_docs/research/research_report_q.md");
    assert!(report.contains("4. vendors ("), "{report}");
}

/// All sub-queries fail: the task must fail and say why. After the agent is repaired, `guard task retry` must run
/// them again and succeed.
#[test]
fn failed_research_fails_the_task_and_can_be_retried() {
    let researcher = researcher("task-research-failed", r#"[ -e ~/fixed ] || fail broken; say '"Fine."'"#);
    let (printed, code) = researcher.ends(TASK);
    assert_ne!(code, 0, "{printed}");
    assert!(printed.contains("all sub-queries (4) failed"), "{printed}");
    assert_eq!(researcher.user.types("git log --format=%s main..task/q"), "");
    let agent = researcher.user.home().join("bin/gemini");
    let text = std::fs::read_to_string(&agent).unwrap().replace("[ -e ~/fixed ] || fail broken;", "");
    std::fs::write(&agent, text).unwrap();
    let (printed, code) = researcher
        .ends("id=$(guard task list --json | jq -r '.[0].task_id'); guard task retry $id --from research");
    assert_eq!(code, 0, "{printed}");
    assert_eq!(researcher.user.types("git log --format=%s main..task/q"), "Research Report: q\n");
}

/// A research step writes a document and nothing else. `guard workflow lint` must reject settings that need an
/// agent's answer, and invalid limits.
#[test]
fn research_step_accepts_only_a_document() {
    let researcher = researcher("task-research-lint", "say '\"\"'");
    let file = researcher.user.home().join("researched.yaml");
    for (good, bad, wanted) in [
        ("is: document", "is: text", "can only answer with its document"),
        ("_{feat}.md\" }", "_{feat}.md\", checklist: true }", "cannot have `sections` or `checklist`"),
        ("policy: researcher,", "policy: researcher, work: commit,", "must have `work: read`"),
        ("max_queries: 4", "max_queries: 0", "`max_queries` is 0; it must be from 1 to 64"),
        ("depth: 1", "deep: 1", "did you mean `depth`?"),
    ] {
        let workflow = documented_workflow();
        assert!(workflow.contains(good), "{good}");
        std::fs::write(&file, workflow.replacen(good, bad, 1)).unwrap();
        let (printed, _) = researcher.ends("guard workflow lint ~/researched.yaml");
        assert!(printed.contains(wanted), "{bad}: {printed}");
    }
}

/// The workflow gives the researcher a policy that may write, and an agent plants a file and a link in the place of the
/// report. The task must fail, and nothing may be written through the link or committed.
#[test]
fn research_agent_that_writes_files_fails_the_task() {
    let plant =
        "echo x > planted; ln -sf ~/target docs/dev_docs/research/research_report_q.md; say '\"Done.\"'";
    let researcher = researcher("task-research-writes", plant);
    let workflow = documented_workflow().replace("policy: researcher", "policy: standard");
    std::fs::write(researcher.user.home().join("researched.yaml"), workflow).unwrap();
    let (printed, code) = researcher.ends(TASK);
    assert_ne!(code, 0, "{printed}");
    assert!(printed.contains("changed `planted`"), "{printed}");
    assert!(!researcher.user.home().join("target").exists(), "{printed}");
    assert_eq!(researcher.user.types("git log --format=%s main..task/q"), "");
}
