//! `--snapshot`: a changed answer is shown, and nothing else.

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
fn a_changed_policy_fails_with_a_readable_difference() {
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
