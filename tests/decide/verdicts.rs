//! Snapshots of complete verdicts.

use crate::support::{policy, shell};

#[test]
fn denial_messages_for_the_agent() {
    let strict = policy("strict");
    let lines: Vec<String> = [
        "git checkout main",
        "make && env -i bash -xc 'g\"\"it switch main'",
        "sudo ls",
        "git lfs pull",
        "echo x > .git/HEAD",
        "cat ~/.ssh/id_rsa",
        "echo 'unterminated",
        "",
    ]
    .iter()
    .map(|text| shell(&strict, text).refusal_line())
    .collect();
    insta::assert_snapshot!("refusal_lines", lines.join("\n"));
}

#[test]
fn verdict_names_the_part_of_the_command_that_caused_it() {
    let strict = policy("strict");
    let part = |text: &str| shell(&strict, text).part.unwrap_or_default();
    assert_eq!(part("ls && (cd x; make | xargs -n1 git reset --hard) && echo done"), "git reset --hard …");
    assert_eq!(part("find . -name '*.c' -exec sudo rm {} +"), "sudo rm {}");
    assert_eq!(part("git log; git push"), "git push");
}

#[test]
fn deny_beats_ask_beats_allow_and_the_first_rule_is_named() {
    let text = r#"
version = 1
name = "t"
[[command]]
id = "a"
program = "tool"
action = "allow"
reason = "r"
[[command]]
id = "b"
program = "tool"
args = "ask*"
action = "ask"
reason = "r"
[[command]]
id = "c"
program = "tool"
args = "*deny"
action = "deny"
reason = "r"
[[command]]
id = "d"
program = "tool"
args = "*deny"
action = "deny"
reason = "r"
"#;
    let policy = guard::judge::decide::load_text(crate::support::source(text), &Default::default()).unwrap();
    let rule = |text: &str| shell(&policy, text).cause.rule;
    assert_eq!(rule("tool"), "a");
    assert_eq!(rule("tool ask"), "b");
    assert_eq!(rule("tool ask deny"), "c");
    assert_eq!(rule("tool askdeny"), "c");
    assert_eq!(rule("tool ask; tool x deny"), "c");
}

#[test]
fn rule_about_refs_matches_each_operand() {
    let text = r#"
version = 1
name = "t"
[[command]]
id = "release"
verb = "branch"
refs = "refs/heads/release/*"
action = "deny"
reason = "r"
[[command]]
id = "branch"
verb = "branch"
action = "allow"
reason = "r"
"#;
    let policy = guard::judge::decide::load_text(crate::support::source(text), &Default::default()).unwrap();
    let rule = |text: &str| shell(&policy, text).cause.rule;
    let others: String = (0..1000).map(|number| format!(" old{number}")).collect();
    assert_eq!(rule(&format!("git branch -D{others}")), "branch");
    assert_eq!(rule(&format!("git branch -D{others} release/1")), "release");
}

#[test]
fn rule_about_refs_matches_implied_refs() {
    let text = r#"
version = 1
name = "t"
default_action = "allow"
[[command]]
id = "release"
refs = "refs/heads/release/*"
action = "deny"
reason = "r"
[[command]]
id = "scratch"
verb = ["branch", "update-ref", "switch", "push", "fetch"]
refs = "refs/heads/scratch/*"
action = "allow"
reason = "r"
"#;
    let policy = guard::judge::decide::load_text(crate::support::source(text), &Default::default()).unwrap();
    let rule = |text: &str| shell(&policy, text).cause.rule;
    for text in [
        "git branch scratch/1",
        "git branch scratch/1 main",
        "git branch -D scratch/1 scratch/2",
        "git switch -c scratch/1 release/1",
        "git push origin HEAD:scratch/1",
        "git fetch origin main:scratch/1",
    ] {
        assert_eq!(rule(text), "scratch", "{text}");
    }
    let many = "--quiet ".repeat(5000);
    for text in [
        "git branch release/1",
        "git branch -m scratch/1 release/1",
        "git update-ref --stdin",
        "git fetch --stdin origin",
        "git -c remote.o.fetch=+refs/heads/*:refs/heads/* fetch o",
        "git push --mirror origin",
        "git push",
        "git fast-import",
        "git branch $NAME",
        &format!("git switch --create=scratch/1 {many} --create=release/1"),
    ] {
        assert_eq!(rule(text), "release", "{}", &text[..text.len().min(80)]);
    }
    // A rule that allows some refs must not allow others in the same command.
    assert_ne!(rule("git branch -D scratch/1 main"), "scratch");
}

#[test]
fn hundred_thousand_options_are_judged_quickly() {
    let strict = policy("strict");
    let began = std::time::Instant::now();
    let letters = "-q ".repeat(100_000);
    let words = "--all ".repeat(100_000);
    let verdict = shell(&strict, format!("git log {letters}{words}"));
    assert_eq!(verdict.action(), guard::judge::policy::Action::Allow, "{verdict:?}");
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn verdict_marks_commands_known_only_at_run_time() {
    use guard::judge::decide::Decision;
    let strict = policy("strict");
    for text in [
        "git $VERB main",
        "$TOOL x",
        "eval \"$X\"",
        "bash -c \"$X\"",
        "curl x | sh",
        "python3 -c 'print(1)'",
        "/usr/bin/gi? push",
    ] {
        match shell(&strict, text).decision {
            Decision::Allow(conditions) => assert!(!conditions.deferred.is_empty(), "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    match shell(&strict, "ls -l && git status").decision {
        Decision::Allow(conditions) => assert!(conditions.deferred.is_empty()),
        other => panic!("{other:?}"),
    }
}
