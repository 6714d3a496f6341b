//! Tests `guard learn`: the policy it writes must allow the observed command and nothing else.

use guard::judge::policy::{Action, PolicyDirs};

use crate::policy_audit::corpora::corpora;
use crate::support::{UserShell, guard_program, in_every_environment, skip};

#[test]
fn learned_policy_allows_the_command_and_refuses_the_rest() {
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
    let learned =
        guard::judge::decide::load(learned.to_str().unwrap(), &PolicyDirs::default(), true).unwrap();
    let strict = crate::support::policy("strict");
    let audit = guard::judge::audit::run(&[strict, learned], &corpora());
    let mut refused = 0;
    for row in audit.rows.iter().filter(|row| row.verdicts[0].action == Action::Deny) {
        let is_refused = row.verdicts[1].action == Action::Deny;
        assert!(is_refused || row.text.contains("tag"), "{} is allowed", row.text);
        refused += usize::from(is_refused);
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn learn_records_hosts_and_refuses_them() {
    let user = UserShell::new("learn-hosts");
    user.sees(
        "guard learn -- curl -sS --max-time 20 https://registry.example/ ; cat learned.toml",
        &["registry.example", "\"curl\""],
    );
}

/// `guard learn` observes a real build and a real test run, which start compilers, interpreters and shells. Both must
/// pass under the policies it writes.
// slow
#[test]
fn build_and_tests_pass_under_the_policies_learned_from_them() {
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

/// In a directory outside a repository, the traced command can write beside the policy. It chooses the names of programs,
/// and so a part of the policy's text, which must not reach a file of the user.
// slow
#[test]
fn learned_policy_is_not_written_to_a_link_put_in_its_place() {
    in_every_environment(|environment| {
        // The kit's own directory may be in a repository, where the run would get a worktree.
        let parent = environment.run_outside("mktemp -d /tmp/guard-test-learn-XXXXXX");
        let place = std::path::Path::new(parent.trim()).join("plain");
        let namespaces = if environment.namespaces { "require" } else { "off" };
        environment.run_outside(&format!(
            "mkdir {0} && echo mine > {0}-target && mkdir {0}-elsewhere &&
             printf 'version = 1\nname = \"own\"\nextends = \"strict\"\n[sandbox]\noverride = true\nnamespaces = \"{namespaces}\"\n' > {0}.toml",
            place.display()
        ));
        let policy = format!("{}.toml", place.display());
        let target = format!("{}-target", place.display());
        let learn = |options: &[&str], script: &str| {
            let mut command = environment.command(guard_program());
            command.current_dir(&place).args(["learn", "--policy", &policy]).args(options);
            let output = command.args(["--", "bash", "-c", script]).output().unwrap();
            let printed = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
        };
        let name = environment.name();
        let kept = |printed: &str| {
            let path = printed.split_once("the policy is in ").and_then(|(_, rest)| rest.split_once(';'));
            let path = path.unwrap_or_else(|| panic!("{name}: {printed}")).0;
            assert!(std::fs::read_to_string(path).unwrap().contains("extends = \"strict\""), "{name}");
        };
        let link = format!("ln -s {target} learned.toml");
        let scripts: [(&[&str], &str); 4] = [
            (&[], &link),
            (&[], "echo own > learned.toml"),
            (&[], "ln -s nowhere learned.toml"),
            (&["--force"], "rm learned.toml && ln -s ../plain-target learned.toml"),
        ];
        for (options, script) in scripts {
            if !options.is_empty() {
                environment.run_outside(&format!("echo old > {}/learned.toml", place.display()));
            }
            let (code, printed) = learn(options, script);
            assert_eq!(code, Some(2), "{name}: {script}: {printed}");
            assert!(printed.contains("meanwhile, perhaps by the command"), "{name}: {script}: {printed}");
            kept(&printed);
            environment.run_outside(&format!("rm {}/learned.toml", place.display()));
        }
        // The command replaces the directory itself.
        environment.run_outside(&format!("mkdir {}/sub", place.display()));
        let (code, printed) =
            learn(&["--out", "sub/out.toml"], "mv sub moved && ln -s ../plain-elsewhere sub && ls");
        assert_eq!(code, Some(2), "{name}: {printed}");
        assert!(printed.contains("moved or replaced meanwhile"), "{name}: {printed}");
        kept(&printed);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine\n", "{name}");
        assert!(!place.join("nowhere").exists(), "{name}");
        assert_eq!(std::fs::read_dir(format!("{}-elsewhere", place.display())).unwrap().count(), 0, "{name}");
        let (code, printed) = learn(&[], "true");
        assert_eq!(code, Some(0), "{name}: {printed}");
        environment.run_outside(&format!("rm -r {}", parent.trim()));
    });
}

/// An earlier run may have put a link below the top of a checkout.
#[test]
fn learned_policy_is_not_written_through_links_of_the_checkout() {
    let user = UserShell::new("learn-links");
    user.types("mkdir ~/elsewhere && ln -s ~/elsewhere sub && mkdir real");
    user.sees_with_code("guard learn --out sub/x.toml -- true", 2, &["sub is a symbolic link"]);
    user.sees_with_code("guard learn --out real/x.toml -- true", 0, &["wrote real/x.toml"]);
    user.types(
        "test ! -e ~/elsewhere/x.toml && cd real && guard learn --out y.toml -- true && test -s y.toml",
    );
}
