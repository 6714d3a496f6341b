//! `guard learn`: what it writes lets the same command pass, and nothing else.

use guard::policy::{Action, PolicyDirs};

use crate::policy_audit::corpora::corpora;
use crate::support::UserShell;

#[test]
fn a_learned_policy_lets_the_command_pass_and_refuses_the_rest() {
    let user = UserShell::new("learn");
    user.types("printf 'test:\\n\\tsh -c \"git tag -l && git stash list && date +%%s\"\\n\\tgit tag built\\n' > Makefile && git add . && git commit -qm make");
    // `strict` alone refuses the tag.
    let (_, code) = user.ends("guard run -q -- make test");
    assert_ne!(code, 0);
    user.sees("guard learn -- make test", &["wrote learned.toml", "guard run --policy ./learned.toml"]);
    user.sees(
        "cat learned.toml",
        &["extends = \"strict\"", "\"make\"", "\"date\"", "verb = \"tag\"", "lifts = [\"git.refs\"]"],
    );
    user.types("guard run -q --policy ./learned.toml -- make test");
    user.types("guard run -q --policy ./learned.toml -- uname; test $? = 126");
    user.types("guard run -q --policy ./learned.toml -- git reset --hard; test $? = 126");
    user.sees("guard learn -- make test", &["already exists", "--force"]);
    // From the transcript of the run that was refused.
    user.sees("guard run -q -- make test; guard learn --from @ --out again.toml", &["wrote again.toml"]);
    user.types("guard run -q --policy ./again.toml -- make test");
    // Of everything that `strict` refuses only git's tags are allowed.
    let learned = user.project.join("learned.toml");
    let learned = guard::decide::load(learned.to_str().unwrap(), &PolicyDirs::default(), true).unwrap();
    let strict = crate::support::policy("strict");
    let audit = guard::policy_audit::run(&[strict, learned], &corpora());
    let mut refused = 0;
    for row in audit.rows.iter().filter(|row| row.verdicts[0].action == Action::Deny) {
        let is_refused = row.verdicts[1].action == Action::Deny;
        assert!(is_refused || row.text.contains("tag"), "{} is allowed", row.text);
        refused += usize::from(is_refused);
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn hosts_are_recorded_and_refused() {
    let user = UserShell::new("learn-hosts");
    user.sees(
        "guard learn -- curl -sS --max-time 20 https://registry.example/ ; cat learned.toml",
        &["registry.example", "\"curl\""],
    );
}
