//! Tests `guard learn`: the policy it writes must allow the observed command and nothing else.

use guard::policy::{Action, PolicyDirs};

use crate::policy_audit::corpora::corpora;
use crate::support::{UserShell, skip};

#[test]
fn a_learned_policy_lets_the_command_pass_and_refuses_the_rest() {
    let user = UserShell::new("learn");
    user.types("printf 'test:\\n\\tsh -c \"git tag -l && git stash list && date +%%s\"\\n\\tgit tag built\\n' > Makefile && git add . && git commit -qm make");
    // Under `strict` alone guard must refuse the tag.
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
    // `guard learn` reads the transcript of the refused run.
    user.sees("guard run -q -- make test; guard learn --from @ --out again.toml", &["wrote again.toml"]);
    user.types("guard run -q --policy ./again.toml -- make test");
    // Of all commands that `strict` refuses, the learned policy must allow only git tags.
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

/// `guard learn` observes a real build and a real test run, which start compilers, interpreters and shells. Both must
/// pass under the policies it writes.
#[test]
fn a_build_and_a_test_run_pass_with_what_was_learned_from_them() {
    let user = UserShell::new("learn-builds");
    user.types(
        "mkdir -p src && printf '[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2024\"\n' > Cargo.toml &&
         echo 'fn main() {}' > src/main.rs && printf '{\"scripts\": {\"test\": \"node test.js\"}}' > package.json &&
         echo 'console.log(\"passed\")' > test.js && git add . && git commit -qm code",
    );
    let (cargo_home, rustup_home) = (toolchain("CARGO_HOME", ".cargo"), toolchain("RUSTUP_HOME", ".rustup"));
    let with_cargo = format!(
        "export CARGO_HOME={cargo_home} RUSTUP_HOME={rustup_home} PATH={cargo_home}/bin:$PATH CARGO_NET_OFFLINE=true;"
    );
    for (name, command) in [("cargo", "cargo build"), ("npm", "npm test")] {
        if user.ends(&format!("{with_cargo} {command}; git clean -qfdx")).1 != 0 {
            skip(command, "it does not work without guard here");
            continue;
        }
        user.types(&format!("{with_cargo} guard learn --out ~/{name}.toml -- {command}"));
        user.types(&format!("{with_cargo} guard run --policy ~/{name}.toml -- {command}"));
        for refused in ["git push origin main", "rm -rf /", "curl https://example.org", "git reset --hard"] {
            user.sees_with_code(&format!("guard check --policy ~/{name}.toml -- {refused}"), 1, &["denied"]);
        }
    }
}

/// Returns a toolchain directory of the user who runs the tests.
fn toolchain(variable: &str, below_home: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| format!("{}/{below_home}", std::env::var("HOME").unwrap()))
}
