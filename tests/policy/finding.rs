//! guard must find policies by name, by path, and in the user's configuration.

use crate::support::{Scratch, guard, text};

#[test]
fn user_policy_precedes_and_may_extend_the_built_in_one() {
    let scratch = Scratch::new("own");
    scratch.write(
        "guard/policies/strict.toml",
        "version = 1\nname = \"strict\"\ndescription = \"ours\"\nextends = \"strict\"\n[[command]]\nid = \"no-ls\"\nprogram = \"ls\"\naction = \"deny\"\nreason = \"No.\"\n",
    );
    let check = |config: bool, command: &[&str]| {
        let mut guard = guard();
        if config {
            guard.env("XDG_CONFIG_HOME", &scratch.0);
        }
        guard.args(["check", "--"]).args(command).output().unwrap().status.code()
    };
    assert_eq!(check(false, &["ls"]), Some(0));
    assert_eq!(check(true, &["ls"]), Some(1));
    assert_eq!(check(true, &["git", "push"]), Some(1));
    assert_eq!(check(true, &["cat", "x"]), Some(0));
    let list = guard().env("XDG_CONFIG_HOME", &scratch.0).args(["policy", "list"]).output().unwrap();
    assert!(text(&list).contains("ours (yours)"), "{}", text(&list));
    assert!(text(&list).contains("auditor"));
}

#[test]
fn unknown_policy_name_suggests_a_similar_one() {
    let output = guard().args(["check", "--policy", "strikt", "--", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(shown.contains("did you mean `strict`?") && shown.contains("guard policy list"), "{shown}");
}
