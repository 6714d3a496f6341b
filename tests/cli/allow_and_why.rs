//! After a run, a user asks why guard refused a command, and allows it for one run, for a project or for all runs.

use crate::support::UserShell;

#[test]
fn git_verb_is_allowed_for_one_run_and_for_the_team() {
    let user = UserShell::new("allow-verb");
    let tag = "guard run -- git tag v1";
    user.sees(tag, &["refused: git tag v1 (rule git.refs)", "to allow this: guard run --allow 'git tag v1'"]);
    user.sees(tag, &["/git: the policy refuses git tag v1 (rule git.refs)\n"]);
    user.sees(
        "guard why",
        &["denied: git tag v1", "rule:    git.refs (builtin:strict.toml:", "supervisor", "guard allow"],
    );
    user.sees(
        "guard why -- git tag v1",
        &["allow:   guard run --allow 'git tag v1'", "verb = \"tag\"", "lifts = [\"git.refs\"]"],
    );
    user.sees("guard log --denied", &["deny.exec", "--allow 'git tag v1'"]);
    user.sees("guard run -q --allow 'git tag v1' -- bash -c 'git tag v1 && git tag -l'", &["v1"]);
    user.types("guard run -q -- git tag v2; test $? = 126");
    user.sees("guard allow @ --dry-run", &[".guard/policy.toml (new)", "+ lifts = [\"git.refs\"]"]);
    assert!(!user.project.join(".guard").exists());
    // Without a terminal the user cannot confirm, so guard must write nothing.
    user.sees("guard allow @ < /dev/null", &["use --yes to write the change without asking"]);
    user.sees("guard allow @ --yes", &["wrote ", "commit this file"]);
    // The project's policy file is not committed yet, so it must have no effect.
    user.types("guard run -q -- git tag v3; test $? = 126");
    user.types("git add .guard && git commit -qm 'Allow tags'");
    // The file allows more than the user's policy, so it must have no effect until the user confirms this content.
    user.sees("guard run -- git tag v4", &["asks for more than you allow", "git.refs", "guard config trust"]);
    user.types("guard config trust");
    user.types("guard run -q -- git tag v5");
    // A script with `--allow` must work as before, although the option is not needed any more.
    user.sees_with_code(
        "guard run -q --allow 'git tag v1' -- git tag v5",
        0,
        &["guard: --allow has no effect: the policy `project` already allows `git tag v1`"],
    );
    user.types("guard run -q -- git branch x; test $? = 126");
    user.types("guard run -q --policy strict -- git tag v6; test $? = 126");
    user.sees("guard check -- git tag v7", &["allowed", ".guard/policy.toml"]);
    // The last run has no refusal with this number, so there is nothing to allow.
    user.sees("guard allow @ 9999", &["is not a refusal"]);
    // After the file changes, the user must confirm it again.
    user.types(
        "sed -i 's/verb = \"tag\"/verb = [\"tag\", \"branch\"]/' .guard/policy.toml && git commit -qam more",
    );
    user.sees("guard run -- git branch x", &["asks for more than you allow"]);
}

/// For some verbs git starts other git commands, which the supervisor judges too. The option for the verb must be enough.
#[test]
fn allowing_a_git_verb_allows_the_commands_git_starts_for_it() {
    let user = UserShell::new("allow-helpers");
    let create = "git init -q --bare -b main \"$TMPDIR/remote\"";
    let push = "git push -q \"$TMPDIR/remote\" HEAD:refs/heads/main";
    user.types(&format!(
        "printf '%s\\n' 'set -e' '{create}' '{push}' 'git -C \"$TMPDIR/remote\" log --oneline main' > push.sh &&
         printf '%s\\n' 'git fetch -q \"$TMPDIR/remote\" main' 'git pull -q --no-rebase \"$TMPDIR/remote\" main' > pull.sh &&
         git add . && git commit -qm scripts"
    ));
    user.types("guard run -q -- bash push.sh; test $? != 0");
    user.sees_with_code("guard run -q --allow 'git push' -- bash push.sh", 0, &["scripts"]);
    user.types(
        "guard run -q --allow 'git push' --allow 'git fetch' --allow 'git pull' -- bash -ec '. ./push.sh; . ./pull.sh'",
    );
    user.types("guard run -q --allow 'git gc' -- git gc --quiet");
    // A pull of a branch that has diverged makes git save the state of the worktree (`git stash create`).
    user.types(
        "git switch -qc side && echo side > side && git add side && git commit -qm side && git switch -q main &&
         echo main > main && git add main && git commit -qm main",
    );
    user.types("guard run -q --allow 'git pull' -- git pull -q --no-rebase --no-edit . side");
}

/// The configuration that `guard init` writes must not prevent the rules that `guard allow --project` saves.
#[test]
fn project_rule_is_saved_after_init() {
    let user = UserShell::new("allow-init-allow");
    user.sees("guard init", &["# policy = \"strict\""]);
    user.types("git add .guard && git commit -qm 'Set up guard' && guard config trust");
    user.types("guard run -q -- git tag v1; test $? = 126");
    user.sees_with_code("guard allow @ --project --yes", 0, &["wrote ", "commit this file"]);
    user.types("git add .guard && git commit -qm 'Allow tags'");
    user.sees(
        "guard run -- git tag v1",
        &["this project's .guard/config.toml and .guard/policy.toml ask for more than you allow"],
    );
    user.sees_with_code(
        "guard config trust",
        0,
        &["you have confirmed this content of .guard/config.toml and .guard/policy.toml"],
    );
    user.types("guard run -q -- git tag v1");
}

/// If the project's configuration names another policy, a rule in the project's own policy has no effect. guard must
/// say so, and say which line to change.
#[test]
fn rule_that_the_project_configuration_ignores_is_reported() {
    let user = UserShell::new("allow-other-policy");
    user.types(
        "mkdir .guard && printf '[run]\\n# Why.\\npolicy = \"standard\"\\n' > .guard/config.toml &&
         git add .guard && git commit -qm config && guard config trust",
    );
    user.types("guard run -q -- git tag v1; test $? = 126");
    let reported =
        ["runs do not use .guard/policy.toml yet: line 3 of ", "names another policy, \"standard\""];
    user.sees_with_code("guard allow @ --project --dry-run", 0, &reported);
    let printed = user.sees_with_code("guard allow @ --project --yes", 0, &reported);
    assert!(printed.contains("change line 3 of ") && printed.contains("commit both files"), "{printed}");
    user.sees_with_code("guard allow @ --project --yes", 0, &["already allows", reported[0]]);
    user.types("git add .guard && git commit -qm 'Allow tags'");
    let printed = user.sees_with_code(
        "guard config trust",
        0,
        &["confirmed this content of .guard/config.toml\n", "runs do not use .guard/policy.toml"],
    );
    assert!(!printed.contains(".guard/config.toml and"), "{printed}");
    user.types("guard run -q -- git tag v1; test $? = 126");
    user.types("sed -i 3d .guard/config.toml && git commit -qam 'Use the policy' && guard config trust");
    user.types("guard run -q -- git tag v1");
}

/// The project's policy extends the user's policy. Both contain a rule about the same command, so the rules must have
/// different ids.
#[test]
fn user_rule_and_project_rule_about_one_command_get_different_ids() {
    let user = UserShell::new("allow-both");
    user.types("guard run -q -- git tag v1; test $? = 126");
    user.sees_with_code("guard allow @ --project --yes", 0, &["id = \"project.git-tag\""]);
    user.types("git add .guard && git commit -qm 'Allow tags' && guard config trust");
    user.types("guard run -q --policy strict -- git tag v1; test $? = 126");
    user.sees_with_code("guard allow @ --user --yes", 0, &["id = \"user.strict.git-tag\""]);
    user.types("guard run -q -- git tag v1 && guard run -q --policy strict -- git tag v1");
}

/// A run's policy can be a file: the project's, or one that the user named by its path. No other policy can extend such
/// a file by name. guard must save rules in the policy that the file itself extends.
#[test]
fn rule_is_saved_after_a_run_with_a_policy_file() {
    let user = UserShell::new("allow-policy-file");
    let file = |name: &str| format!("printf 'version = 1\\nname = \"{name}\"\\nextends = \"strict\"\\n'");
    user.types(&format!(
        "mkdir .guard && {} > .guard/policy.toml && {} > team.toml && git add . && git commit -qm policies",
        file("project"),
        file("team")
    ));
    for (options, command) in [("", "git tag v1"), ("--policy ./team.toml", "git branch topic")] {
        user.types(&format!("guard run -q {options} -- {command}; test $? = 126"));
        user.sees_with_code("guard allow @ --user --yes", 0, &["policies/strict.toml"]);
        user.types(&format!("guard run -q {options} -- {command}"));
    }
    // `guard learn` must write a policy that extends the same policy as the file.
    user.sees("guard learn --policy ./team.toml -- git tag v2", &["cannot extend ./team.toml by its name"]);
    user.types("grep -q 'extends = \"strict\"' learned.toml");
    user.types("guard run -q --policy ./learned.toml -- git tag v3");
    user.types("guard learn --out again.toml -- true && guard run -q --policy ./again.toml -- true");
    // This policy file extends no other policy, so there is none that a new policy could extend. guard must say so, and
    // `guard learn` must say it before it runs the command.
    let strict = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/strict.toml");
    user.types(&format!("sed 's/^name = .*/name = \"own\"/' {strict} > own.toml"));
    user.types("guard run -q --policy ./own.toml -- git stash; test $? = 126");
    let refused =
        ["a new policy cannot extend `own`: guard finds no policy of this name", "policies/own.toml"];
    user.sees_with_code("guard allow @ --user --yes", 2, &refused);
    let runs = user.kept_runs().len();
    user.sees_with_code("guard learn --policy ./own.toml --out own-learned.toml -- true", 2, &refused);
    assert_eq!(user.kept_runs().len(), runs);
}

#[test]
fn refused_host_is_allowed_and_saved() {
    let user = UserShell::new("allow-host");
    let fetch = "guard run -- curl -sS --max-time 20 https://registry.example/";
    user.sees(fetch, &["--allow-host registry.example"]);
    user.sees("guard why", &["registry.example", "layer:   the proxy", "always:  guard allow"]);
    user.sees("guard why --host registry.example:443", &["denied", "--allow-host registry.example:443"]);
    user.types("guard why --host registry.example:443; test $? = 1");
    user.sees_with_code("guard why --host 'ex ample'", 2, &["guard: --host ex ample: "]);
    user.sees("guard allow @ --user --yes", &["policies/strict.toml (new)", "wrote"]);
    user.types("guard why --host registry.example:443");
    user.sees("guard run --dry-run -- true", &["registry.example"]);
    user.sees("guard policy lint strict", &["loosens the policy that this one extends"]);
}

#[test]
fn why_path_explains_access_to_a_path() {
    let user = UserShell::new("allow-path");
    user.types("mkdir -p ~/.ssh ~/data && echo x > ~/.ssh/id");
    user.sees("guard why --path ~/.ssh/id", &["denied: read", "Landlock", "--read "]);
    user.types("guard why --path ~/.ssh/id; test $? = 1");
    user.types("guard why --path /usr/bin/git");
    user.sees("guard why --path /usr/bin/git --write", &["denied: write", "--write "]);
    user.sees("guard why --path ~/data --write --json", &["\"decision\": \"denied\"", "\"policy_rule\""]);
}

/// The name that a project gives its policy must not decide which of the user's policies `guard allow --user` changes.
#[test]
fn name_of_a_project_policy_selects_no_user_policy() {
    let user = UserShell::new("allow-name");
    user.types(
        "mkdir .guard && printf 'version = 1\\nname = \"integrator\"\\ndescription = \"d\"\\nextends = \"strict\"\\n' \
         > .guard/policy.toml && git add .guard && git commit -qm policy && guard config trust",
    );
    user.types("guard run -q -- git tag v1; test $? = 126");
    user.sees_with_code(
        "guard allow @ --user --yes",
        0,
        &["policies/strict.toml", "the run used the policy `integrator`, a file that extends `strict`"],
    );
    user.types("test ! -e ~/.config/guard/policies/integrator.toml");
}

/// An agent may have committed `.guard` as a link. guard must not write the project's policy to where the link leads.
#[test]
fn project_rule_is_not_written_through_links() {
    let user = UserShell::new("allow-links");
    user.types("guard run -q -- git tag v1; test $? = 126");
    user.types("mkdir ~/elsewhere && ln -s ~/elsewhere .guard");
    user.sees_with_code("guard allow @ --project --yes", 2, &[".guard is a symbolic link"]);
    user.types(
        "rm .guard && mkdir .guard && touch ~/elsewhere/file && ln -s ~/elsewhere/file .guard/policy.toml",
    );
    user.sees_with_code("guard allow @ --project --yes", 2, &["the policy must be a regular file"]);
    user.types("rm .guard/policy.toml && mkfifo .guard/policy.toml");
    user.sees_with_code("guard allow @ --project --yes", 2, &["the policy must be a regular file"]);
    user.types("test ! -s ~/elsewhere/file && test \"$(ls ~/elsewhere)\" = file");
}

/// The kernel gives access only to files that exist. guard must say how to let a run write a new one, and must not
/// suggest to grant the whole home directory instead.
#[test]
fn granting_a_missing_path_explains_how_to_write_a_new_file() {
    let user = UserShell::new("allow-missing path");
    let printed = user.sees_with_code(
        "guard run --write ~/new -- true",
        125,
        &[
            "/new: the path does not exist",
            "hint: create the file or directory first; --write can only grant",
        ],
    );
    assert!(!printed.contains("--write /"), "{printed}");
    user.types(
        "touch ~/new && guard run -q --write ~/new -- bash -c \"echo text > '$HOME/new'\" && grep -q text ~/new",
    );
}

/// A run has its own worktree, so an answer about a path in the repository must be about that worktree. guard must
/// never suggest to give a run write access to the user's checkout.
#[test]
fn why_path_answers_for_the_worktree_of_the_run() {
    let user = UserShell::new("allow-path-copy");
    let copy = "this answer is about the copy of the path there";
    for path in ["README.md", "$PWD/new/file", "."] {
        user.sees_with_code(&format!("guard why --path {path} --write"), 0, &["allowed: write ", copy]);
        user.sees_with_code(&format!("guard why --path {path}"), 0, &["allowed: read ", copy]);
    }
    // A policy can forbid a run to write its own worktree.
    let readonly = "guard why --policy readonly --path README.md --write";
    let printed = user.sees_with_code(readonly, 1, &["denied: write ", copy, "write = [\"{worktree}\"]"]);
    assert!(!printed.contains("--write"), "{printed}");
    // The run has no copy of the user's git directory, or of another checkout of the repository.
    user.types("git worktree add -q ../linked -b linked");
    for command in [
        "guard why --path .git/config --write",
        "cd ../linked && guard why --path ../project/README.md --write",
    ] {
        let printed = user.sees_with_code(command, 1, &["denied: write ", "instead: let the run change"]);
        assert!(!printed.contains("--write") && !printed.contains(copy), "{printed}");
    }
}

#[test]
fn init_sets_up_a_repository() {
    let user = UserShell::new("allow-init");
    user.types("printf '[package]\\nname = \"x\"\\n' > Cargo.toml && echo '{}' > package.json && git add . && git commit -qm files");
    user.sees("guard config show --origin", &["policy", "strict", "built in"]);
    user.sees("guard init --dry-run", &["presets = [\"rust\", \"node\"]"]);
    assert!(!user.project.join(".guard").exists());
    user.sees("guard init", &["presets = [\"rust\", \"node\"]", "wrote", "git add .guard/config.toml"]);
    user.sees("guard init", &["already exists"]);
    user.types("git add .guard && git commit -qm 'Set up guard'");
    user.sees("guard config show --origin", &["rust, node", "at the commit", "asks for more"]);
    user.types("mkdir -p ~/.config/guard && printf '[run]\\npresets = [\"node\", \"python\"]\\n' > ~/.config/guard/config.toml");
    user.sees("guard config show --origin", &["rust, node, python", "at the commit the run starts at, and "]);
    user.types("rm ~/.config/guard/config.toml");
    user.sees("guard run -q -- true", &["asks for more than you allow", "the network preset `rust`"]);
    user.sees(
        "guard run --json -- true",
        &["\"error_kind\":\"config_error\"", "asks for more than you allow"],
    );
    user.types("guard config trust && guard run -q -- true");
    // guard must ignore the version of the file that the agent commits on its branch.
    user.types("guard run -q --name t -- bash -c 'echo nonsense > .guard/config.toml && git commit -qam t' && guard run -q -- true");
    // guard must read the project's files at the base commit, however the user names that commit.
    user.types(
        "printf '[run]\\npolicy = \"readonly\"\\n' > .guard/config.toml && git commit -qam 'Policy: only read'",
    );
    for base in ["HEAD", "main", "HEAD^{/only read}", "HEAD^{/Policy: only}"] {
        user.sees(&format!("guard run --dry-run --base '{base}' -- true"), &["policy       readonly"]);
    }
    // The user's own defaults must apply, and guard must report a mistake in them.
    user.types("mkdir -p ~/.config/guard && printf '[run]\\npolicy = \"readonly\"\\ntimeout = \"2m\"\\n' > ~/.config/guard/config.toml");
    user.types("cd ~ && mkdir plain && cd plain && guard config show --origin | grep -q 'readonly.*config.toml' && guard config show | grep -q '120 s'");
    user.types("printf '[run]\\ntimeout = \"soon\"\\n' > ~/.config/guard/config.toml");
    user.sees("guard run -- true", &["such as \"5m\""]);
    user.types("rm ~/.config/guard/config.toml");
    // guard must report a mistake in the project's file.
    user.types(
        "printf '[run]\\npolicy = \"../../evil.toml\"\\n' > .guard/config.toml && git commit -qam bad",
    );
    user.sees("guard run -- true", &["a project can only name a built-in policy"]);
}

/// An agent may have committed links below `.guard`. guard must neither create the project's configuration where they lead,
/// nor quote a file of the user in an error message.
#[test]
fn links_below_the_project_configuration_are_not_followed() {
    let user = UserShell::new("allow-init-links");
    user.types("mkdir -p ~/.config/guard ~/elsewhere && ln -s ~/.config/guard .guard && git add . && git commit -qm link");
    user.sees_with_code("guard init", 2, &[".guard is a symbolic link", "replace it with a directory"]);
    user.types("mkdir inner && cd inner && guard init; test $? = 2 && test -z \"$(ls ~/.config/guard)\"");
    user.types("rm .guard && mkdir .guard && ln -s ~/elsewhere/new .guard/config.toml");
    user.sees_with_code("guard init", 2, &["config.toml already exists"]);
    user.types("test ! -e ~/elsewhere/new");
    // An error about a policy quotes the text of its file.
    user.types("echo 'the-secret = [' > ~/elsewhere/key && ln -s ~/elsewhere/key .guard/policy.toml");
    for command in [
        "guard policy lint .guard/policy.toml",
        "guard check --policy .guard/policy.toml -- true",
        "guard run --policy \"$PWD/.guard/policy.toml\" -- true",
        "guard workflow lint .guard/policy.toml",
    ] {
        let (printed, code) = user.ends(command);
        assert!(code != 0 && printed.contains("is a symbolic link to"), "{command}\n{printed}");
        assert!(!printed.contains("the-secret"), "{command}\n{printed}");
    }
    // A project's policy could also name the file as the policy that it extends.
    user.types("rm .guard/*");
    for extends in ["../../elsewhere/key.toml", "/proc/self/environ", "./other.toml"] {
        user.types(&format!(
            "cp ~/elsewhere/key ~/elsewhere/key.toml && cp ~/elsewhere/key .guard/other.toml &&
             printf 'version = 1\nname = \"p\"\nextends = \"{extends}\"\n' > .guard/policy.toml && git add . && git commit -qm policy"
        ));
        let (printed, code) = user.ends("guard run -- true");
        assert!(code != 0 && printed.contains("must not extend the file"), "{printed}");
        assert!(!printed.contains("the-secret") && !printed.contains("HOME="), "{printed}");
    }
}

/// A prompt of a workflow reaches the model of an agent.
#[test]
fn workflow_prompts_are_not_read_through_links() {
    let user = UserShell::new("allow-prompt-links");
    user.types("guard workflow show default > flow.yaml && mkdir prompts && echo the-secret > ~/key");
    user.types("sed -i 's,prompts/architect.md,prompts/mine.md,' flow.yaml && ln -s ~/key prompts/mine.md");
    user.sees(
        "guard workflow lint ./flow.yaml",
        &["prompts/mine.md", "the workflow is in the git working tree", "and the file is not"],
    );
    user.types("sed -i \"s,prompts/mine.md,$HOME/key,\" flow.yaml");
    user.sees("guard workflow lint ./flow.yaml", &["the path must be relative"]);
    let (printed, _) = user.ends("guard workflow show --prompts ./flow.yaml");
    assert!(!printed.contains("the-secret"), "{printed}");
}

/// After `guard allow`, the same action is refused until the policy is committed and confirmed. guard must say so, and say
/// which commands do that.
#[test]
fn refusal_mentions_the_uncommitted_project_policy() {
    let user = UserShell::new("allow-uncommitted");
    user.types("guard run -q -- git tag v1; test $? = 126");
    let (printed, _) = user.ends("guard run -- git tag v1");
    assert!(!printed.contains("not committed"), "{printed}");
    let next = "git add .guard/policy.toml && git commit -m 'Change the policy of guard' -- .guard/policy.toml && guard config trust";
    user.sees_with_code("guard allow @ --yes", 0, &["has no effect before", &format!("next: {next}")]);
    let said = [".guard/policy.toml has changes that are not committed", &format!("hint: {next}")];
    user.sees("guard run -- git tag v2", &said);
    user.sees("guard why", &said);
    user.sees_with_code("guard allow @ --yes", 0, &["already allows", said[0]]);
    user.sees("guard config show", &["policy"]);
    user.types(next);
    user.types("guard run -- git tag v3");
    // The settings in force are confirmed now.
    let (printed, _) = user.ends("guard config show");
    assert!(printed.contains("you have confirmed what the project asks for"), "{printed}");
    assert!(!printed.contains("asks for more than you allow"), "{printed}");
    user.types("sed -i 's/\"tag\"/[\"tag\", \"branch\"]/' .guard/policy.toml && git commit -qam more");
    user.sees("guard config show", &["the project asks for more than you allow"]);
}

/// A project may shorten the user's time limits, but not lengthen them.
#[test]
fn project_lengthens_time_limits_only_after_a_confirmation() {
    let user = UserShell::new("allow-limits");
    user.types("mkdir -p ~/.config/guard .guard && printf '[run]\ntimeout = \"20s\"\nmax_duration = \"30s\"\n' > ~/.config/guard/config.toml");
    let commit = |timeout: &str, total: &str| {
        user.types(&format!(
            "printf '[run]\ntimeout = \"{timeout}\"\nmax_duration = \"{total}\"\n' > .guard/config.toml && git add . && git commit -qm limits"
        ));
    };
    commit("10s", "30s");
    user.types("guard run -q -- true");
    user.sees("guard run --dry-run --json -- true", &["\"idle_seconds\": 10", "\"total_seconds\": 30"]);
    for (timeout, total, said) in [
        ("21s", "30s", "an idle time limit of 21 seconds"),
        ("20s", "31s", "a total time limit of 31 seconds"),
        ("0s", "30s", "no idle time limit"),
        ("20s", "0s", "no total time limit"),
    ] {
        commit(timeout, total);
        user.sees("guard run -q -- true; test $? != 0 || echo ran", &["asks for more than you allow", said]);
    }
    user.types("guard config trust && guard run -q -- true");
}

/// A policy may have a thousand rules and a million lines.
#[test]
fn rule_is_added_to_a_large_policy_in_little_memory() {
    let user = UserShell::new("allow-large");
    let mut text = "version = 1\nname = \"strict\"\nextends = \"strict\"\n".to_string();
    for number in 0..990 {
        text.push_str(&format!(
            "[[command]]\nid = \"{number:x}\"\nprogram = \"x\"\naction = \"deny\"\nreason = \"r\"\n"
        ));
    }
    text.push_str(&"#\n".repeat(((1 << 20) - 1024 - text.len()) / 2));
    std::fs::create_dir_all(user.home().join(".config/guard/policies")).unwrap();
    let file = user.home().join(".config/guard/policies/strict.toml");
    std::fs::write(&file, text).unwrap();
    user.types("guard run -q -- git tag v1; test $? = 126");
    let limited = |command: &str| format!("ulimit -v 1500000 && {command}");
    user.sees_with_code(&limited("guard allow @ --user --yes"), 0, &["+ verb = \"tag\"", "wrote "]);
    assert!(std::fs::read_to_string(&file).unwrap().contains("verb = \"tag\""));
    user.types("guard run -q -- git tag v2");
    // Each of many problems is shown with its line.
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace("program = \"x\"", "program = 1"))
        .unwrap();
    user.sees_with_code(
        &limited("timeout 60 guard policy lint strict"),
        1,
        &["strict.toml:6:", "990 errors"],
    );
}
