//! A run can change policies: a policy file in its directory, or the project's policy on its branch. The next run must
//! not obey the changed policy before the user has confirmed or merged it.

use crate::agent_exec::scripted;
use crate::support::{
    RunOutcome, TestEnvironment, UserShell, guard_program, in_every_environment, one_environment,
};

const STRICT: &str = "version = 1\nname = \"mine\"\nextends = \"strict\"\n";
const CHANGED: &str = "has changed since guard last used it";

/// Adds a rule that refuses `true`, or removes it.
fn script(rule: &str) -> String {
    format!("printf '{}{rule}' > policy.toml", STRICT.replace('\n', "\\n"))
}

const RULE: &str =
    "[[command]]\\nid = \"no-true\"\\nprogram = \"true\"\\naction = \"deny\"\\nreason = \"for a test\"\\n";

fn trust(environment: &TestEnvironment, path: &str) -> i32 {
    let mut command = environment.command(guard_program());
    command.args(["config", "trust", "--policy", path]);
    environment.run_to_end(command, b"").code
}

// slow
#[test]
fn policy_changed_by_a_run_needs_a_confirmation() {
    in_every_environment(|environment| {
        environment.run_outside(&format!("cd project && {}", script(RULE)));
        let path = environment.directory.join("policy.toml").display().to_string();
        let with_policy = |command: &[&str]| environment.run(&["--policy", &path], command);
        with_policy(&["sh", "-c", &script("")]).expect_code(0);
        let outcome = with_policy(&["/usr/bin/true"]);
        assert!(outcome.code == 125 && outcome.result.to_string().contains(CHANGED), "{outcome}");
        let run = environment.guard_run(&["--policy", &path], &["/usr/bin/true"]);
        let text = environment.run_to_end(run, b"");
        assert!(text.error.contains("guard config trust --policy"), "{text}");
        let other_spelling = environment.directory.join("../project/policy.toml").display().to_string();
        let outcome = environment.run(&["--policy", &other_spelling], &["/usr/bin/true"]);
        assert!(outcome.result.to_string().contains(CHANGED), "another spelling of the path: {outcome}");
        // The user puts the old content back: nothing to confirm, and the rule holds.
        environment.run_outside(&format!("cd project && {}", script(RULE)));
        let outcome = with_policy(&["/usr/bin/true"]);
        assert!(!outcome.result.to_string().contains(CHANGED) && outcome.code != 0, "{outcome}");
        environment.run_outside(&format!("cd project && {}", script("")));
        assert_eq!(trust(environment, &path), 0);
        with_policy(&["/usr/bin/true"]).expect_code(0);
    });
}

#[test]
fn policy_that_no_run_could_write_needs_no_confirmation() {
    let environment = one_environment();
    environment.run_outside(&format!("cd repository && {}", script(RULE)));
    let policy = environment.directory.parent().unwrap().join("repository/policy.toml").display().to_string();
    let options = ["--policy", &policy, "--name", "next", "--discard"];
    let outcome = environment.run(&options, &["/usr/bin/true"]);
    assert!(outcome.code != 0 && !outcome.result.to_string().contains(CHANGED), "{outcome}");
    environment.run_outside(&format!("cd repository && {}", script("")));
    environment.run(&options, &["/usr/bin/true"]).expect_code(0);
}

/// A run removes the project's policy on its branch. Runs that go on in its worktree, or start from its branch, still obey
/// the policy in the user's checkout.
// slow
#[test]
fn project_policy_removed_on_a_branch_still_holds() {
    in_every_environment(|environment| {
        environment.run_outside(&format!(
            "cd repository && mkdir .guard && {} && mv policy.toml .guard/ && git add . && \
             git -c user.name=n -c user.email=e commit -qm policy",
            script(RULE)
        ));
        let root = environment.directory.parent().unwrap();
        let namespaces = if environment.namespaces { "require" } else { "off" };
        let run = |directory: &str, options: &[&str], command: &str| {
            let mut guard = environment.command(guard_program());
            guard.args(["run", "--json", "--namespaces", namespaces]).args(options);
            guard.args(["--", "sh", "-c", command]).current_dir(root.join(directory));
            environment.run_to_end(guard, b"")
        };
        let removed =
            run("repository", &["--name", "one", "--keep"], "git rm -qr .guard && git commit -qm gone");
        removed.expect_code(0);
        let worktree = removed.result["worktree"]["path"].as_str().unwrap().to_string();
        for (directory, options) in [
            (worktree.as_str(), &["--here"][..]),
            (worktree.as_str(), &["--in-place"]),
            ("repository", &["--base", "task/one", "--name", "two", "--discard"]),
        ] {
            let outcome = run(directory, options, "/usr/bin/true");
            let denials = outcome.result["denials"].to_string();
            assert!(denials.contains("no-true"), "{directory} {options:?}: {outcome}");
        }
    });
}

/// guard remembers that a commit has no settings. That must not hold for other commits.
#[test]
fn settings_follow_the_commit_that_is_checked_out() {
    let user = UserShell::new("settings-follow");
    let is_refused = || {
        let (printed, code) = user.ends("guard run -q --in-place -- true");
        assert!(code == 0 || printed.contains("no-true"), "{code}: {printed}");
        code != 0
    };
    user.types("git commit -q --allow-empty -m without");
    assert!(!is_refused() && !is_refused());
    user.types(&format!("mkdir .guard && {} && mv policy.toml .guard/", script(RULE)));
    assert!(!is_refused(), "the file is not committed");
    user.types("git add . && git commit -qm with");
    assert!(is_refused() && is_refused());
    user.types("git pack-refs --all");
    assert!(is_refused());
    user.types("git checkout -q --detach HEAD^");
    assert!(!is_refused());
    user.types("git checkout -q -");
    assert!(is_refused());
    // An older commit of the same branch.
    user.types("git reset -q --hard HEAD^");
    assert!(!is_refused());
    user.types("git reset -q --hard ORIG_HEAD");
    assert!(is_refused());
}

/// A conversation obeys the same policy as a run: that of the project. What the project asks for beyond what the user allows
/// needs a confirmation first.
#[test]
fn conversation_obeys_the_policy_of_the_project() {
    let environment = one_environment();
    environment.run_outside(&format!(
        "cd project && mkdir .guard && {} && mv policy.toml .guard/ && git add . && \
         git -c user.name=n -c user.email=e commit -qm policy",
        script(RULE)
    ));
    let agent = scripted::agent(&environment, "project-policy", scripted::SCRIPT);
    let turn = |message: &str, options: &[&str]| {
        let mut command = environment.command(guard_program());
        command.args(["chat", "--once", message, "--json"]).args(options);
        command.arg("--").arg(&agent);
        environment.run_to_end(command, b"")
    };
    let ask = "/usr/bin/true && echo it-ran";
    let refused = turn(ask, &[]);
    refused.expect_code(0);
    let answer = |outcome: &RunOutcome| outcome.result["result"].as_str().unwrap_or_default().to_string();
    assert!(answer(&refused).contains("(rule no-true)") && !answer(&refused).contains("it-ran"), "{refused}");
    let other = turn(ask, &["--policy", "strict"]);
    assert_eq!(answer(&other), "it-ran", "{other}");
    environment.run_outside(
        "cd project && printf '[network]\\noverride = true\\nallow = [\"elsewhere.test\"]\\n' >> .guard/policy.toml && \
         git -c user.name=n -c user.email=e commit -qam more",
    );
    let unconfirmed = turn(ask, &[]);
    unconfirmed.expect_code(2);
    assert!(unconfirmed.error.contains("guard config trust"), "{unconfirmed}");
}

/// What the user has confirmed in one repository, or before a later version, must not hold elsewhere or again: an agent
/// could commit that version.
#[test]
fn confirmation_holds_only_in_one_repository_and_for_the_last_content() {
    let user = UserShell::new("confirmations");
    let limits = |directory: &str, timeout: &str| {
        user.types(&format!(
            "mkdir -p {directory}/.guard && cd {directory} && printf '[run]\\ntimeout = \"{timeout}\"\\n' > .guard/config.toml && \
             git add . && git commit -qm {timeout}"
        ));
    };
    let runs = |directory: &str| user.types(&format!("cd {directory} && guard run -q -- true"));
    let is_asked = |directory: &str| {
        let (printed, code) = user.ends(&format!("cd {directory} && guard run -q -- true"));
        assert!(code == 2 && printed.contains("asks for more than you allow"), "{code}: {printed}");
        printed
    };
    user.types(
        "mkdir -p ~/.config/guard && printf '[run]\\ntimeout = \"20s\"\\n' > ~/.config/guard/config.toml",
    );
    limits(".", "21s");
    is_asked(".");
    user.types("guard config trust && git worktree add -q ../tree HEAD && git clone -q . ../clone");
    runs(".");
    runs("../tree");
    is_asked("../clone");
    user.types("cd ../clone && guard config trust");
    runs("../clone");
    runs(".");

    limits(".", "22s");
    is_asked(".");
    user.types("guard config trust");
    runs(".");
    limits(".", "21s");
    is_asked(".");
    user.types("guard config trust");
    // This version asks for nothing, so nobody has to confirm it. The one before it does not come back by itself.
    limits(".", "19s");
    runs(".");
    limits(".", "21s");
    assert!(!is_asked(".").contains("older guard"));
    // An older guard wrote confirmations for every repository.
    user.types(
        "printf '%s %s\\n' $( (cat .guard/config.toml; printf '\\0') | sha256sum | cut -d ' ' -f 1) /project \
         > ~/.local/state/guard/confirmed-projects",
    );
    assert!(is_asked(".").contains("older guard"));
    user.types("guard config trust");
    runs(".");
}
