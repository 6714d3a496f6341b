//! `--snapshot` must show every changed decision, and nothing else.

use crate::support::{Scratch, guard, text};

const STRICTER: &str = r#"
version = 1
name = "team"
extends = "strict"
[[command]]
id = "team.no-curl"
program = "curl"
action = "deny"
reason = "No downloads."
"#;

#[test]
fn changed_policy_fails_the_audit_with_a_readable_difference() {
    let scratch = Scratch::new("snapshot");
    let policy = scratch.write("team.toml", "version = 1\nname = \"team\"\nextends = \"strict\"\n");
    let corpus = scratch.write("commands.txt", "allow\tcurl -O x\nallow\tls [a]  [b]\ndeny\tgit push\n");
    let snapshot = scratch.0.join("team.audit");
    let audit = |update: bool| {
        let mut command = guard();
        command
            .args(["policy", "audit", "--policy"])
            .arg(&policy)
            .arg("--snapshot")
            .arg(&snapshot)
            .arg(&corpus);
        if update {
            command.arg("--update");
        }
        command.output().unwrap()
    };
    assert_eq!(audit(false).status.code(), Some(2), "no snapshot yet");
    assert_eq!(audit(true).status.code(), Some(0));
    assert_eq!(audit(false).status.code(), Some(0));
    std::fs::write(&policy, STRICTER).unwrap();
    let output = audit(false);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output).replace(&corpus.display().to_string(), "commands.txt");
    insta::assert_snapshot!("changed_policy", shown);
    assert_eq!(audit(true).status.code(), Some(1), "a label is still contradicted");
    std::fs::write(&corpus, "deny\tcurl -O x\nallow\tls [a]  [b]\ndeny\tgit push\n").unwrap();
    assert_eq!(audit(false).status.code(), Some(0));
    std::fs::write(&corpus, "deny\tcurl -O x\nallow\tls [c]\ndeny\tgit push\n").unwrap();
    let output = audit(false);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output).replace(&corpus.display().to_string(), "commands.txt");
    insta::assert_snapshot!("changed_corpus", shown);
}

/// guard must find a changed decision even if the command looks like a part of the snapshot's table, or occurs
/// several times. It must reject a file that is not a snapshot.
#[test]
fn changed_verdict_is_found_for_commands_that_look_like_table_lines() {
    let scratch = Scratch::new("hidden");
    let rule = |args: &str| {
        format!(
            "version = 1\nname = \"p\"\n[[command]]\nid = \"brackets\"\nprogram = \"[[]\"\nargs = {args}\naction = \"deny\"\nreason = \"r\"\n"
        )
    };
    let policy = scratch.write("p.toml", rule("[\"a\", \"b\"]"));
    let corpus = scratch.write("c.txt", "[ -f a ] && ls\n[ -f b ] && ls\nls\nls\n ls\n# comment\n");
    let snapshot = scratch.0.join("s.audit");
    let audit = |extra: &[&str]| {
        let mut command = guard();
        command
            .args(["policy", "audit", "-p", "strict", "-p"])
            .arg(&policy)
            .arg("--snapshot")
            .arg(&snapshot)
            .args(extra)
            .arg(&corpus);
        command.output().unwrap()
    };
    assert_eq!(audit(&["--update"]).status.code(), Some(0));
    assert_eq!(audit(&[]).status.code(), Some(0), "{}", text(&audit(&[])));
    std::fs::write(&policy, rule("\"b\"")).unwrap();
    let output = audit(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("~ ") && text(&output).contains("[ -f a ] && ls"), "{}", text(&output));
    std::fs::write(&policy, rule("[\"a\", \"b\"]")).unwrap();
    std::fs::write(&corpus, "[ -f a ] && ls\n[ -f b ] && ls\nls\n ls\n").unwrap();
    assert_eq!(audit(&[]).status.code(), Some(1), "one of two equal commands is gone");
    std::fs::write(&snapshot, "not a snapshot\n").unwrap();
    assert_eq!(audit(&[]).status.code(), Some(2));
}

#[test]
fn unchecked_labels_are_reported() {
    let scratch = Scratch::new("labels");
    let corpus = scratch.write("c.txt", "#! policy: nowhere\ndeny\tls\n");
    let output = guard().args(["policy", "audit"]).arg(&corpus).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("add --policy nowhere"));
    let corpus = scratch.write("d.txt", "DENY\tls\n");
    assert_eq!(guard().args(["policy", "audit"]).arg(&corpus).output().unwrap().status.code(), Some(1));
    let corpus = scratch.write("e.txt", "denied\tls\n");
    let output = guard().args(["policy", "audit"]).arg(&corpus).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("e.txt:1: unknown label `denied`"));
}
