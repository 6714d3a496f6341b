//! Tests the conventions of the command line: durations, help, colours, completions, manual pages and help topics.

use crate::support::UserShell;

#[test]
fn times_are_typed_with_units() {
    let user = UserShell::new("manners-times");
    let limits = "guard run --dry-run --json --timeout 5m --max-duration 2h -- true";
    user.sees(limits, &["\"idle_seconds\": 300", "\"total_seconds\": 7200"]);
    user.sees("guard run --dry-run --json --timeout 90 -- true", &["\"idle_seconds\": 90"]);
    user.sees(
        "guard run --timeout soon -- true; test $? = 2 && echo usage",
        &["'soon' for '--timeout <TIME>'", "such as 90s, 5m, 2h or 1d", "usage"],
    );
    user.sees("guard run --max-duration 1s -- sleep 60; echo ended with $?", &["ended with 124"]);
    user.sees(
        "guard exec --max-duration 1s --max-retries 0 -- sleep 60 < /dev/null; echo ended with $?",
        &["ended with 124"],
    );
    user.sees("guard runs prune --older-than 1h", &["0 of 2 runs"]);
    // guard must reject a number without a unit. If it took the number for seconds, it would delete nearly all runs.
    user.sees("guard runs prune --older-than 30; test $? = 2 && echo usage", &["such as 30d", "usage"]);
    user.sees("guard runs prune --older-than 0s", &["2 of 2 runs"]);
    user.sees("guard task --max-duration plan=never x; test $? = 2 && echo usage", &["such as 90s", "usage"]);
}

#[test]
fn help_has_headings_and_run_comes_first() {
    let user = UserShell::new("manners-help");
    let help = user.types("guard --help");
    let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text:?} is missing:\n{help}"));
    let order = [
        "Run:\n  run ",
        "\nInspect:\n",
        "\nPolicies:\n",
        "\nAgents and tasks:\n",
        "\nSet up:\n",
        "\nOptions:\n",
    ];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{help}");
    assert!(!help.contains("__complete"), "{help}");
    let narrow = user.types("COLUMNS=60 guard -h");
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    let run = user.types("guard run --help");
    for heading in ["Access", "Git", "Limits", "Agents and the private home", "Sandbox", "Global options"] {
        assert!(run.contains(&format!("\n{heading}:\n")), "{heading} is missing:\n{run}");
    }
    assert!(run.find("--policy") < run.find("Access:"), "{run}");
    user.sees("guard exec --help", &["\nLimits:\n", "\nGit:\n", "\nResult:\n"]);
    user.sees("guard help", &["Run:\n  run "]);
    user.sees("guard help worktree path", &["Usage: guard worktree path"]);
    user.sees("guard help run", &["Usage: guard run [OPTIONS]", "Access:"]);
    for topic in ["policies", "network", "keys", "agents", "git", "exit-codes"] {
        user.sees(&format!("guard help {topic}"), &["guard "]);
    }
    user.sees(
        "guard help nonsense; echo $?",
        &["no command and no topic `nonsense`", "topics: policies", "2"],
    );
    user.sees("guard rnu; echo $?", &["similar subcommand", "run", "2"]);
}

#[test]
fn colours_are_chosen() {
    let user = UserShell::new("manners-colours");
    let denied = |setting: &str, option: &str| {
        user.ends(&format!("{setting} guard check {option} -- git push")).0.contains("\x1b[")
    };
    assert!(!denied("", ""));
    assert!(denied("", "--color always"));
    assert!(denied("CLICOLOR_FORCE=1", ""));
    assert!(!denied("CLICOLOR_FORCE=1", "--color=never"));
    assert!(!denied("CLICOLOR_FORCE=1 NO_COLOR=1", ""));
    assert!(denied("NO_COLOR=1", "--color always"));
    assert!(user.types("guard --color always --help").contains("\x1b["));
    assert!(user.types("guard --color always help run").contains("\x1b["));
    assert!(!user.types("CLICOLOR_FORCE=1 guard --color never --help").contains("\x1b["));
    user.sees("guard --color sometimes runs; echo $?", &["sometimes", "auto, always, never", "2"]);
}

#[test]
fn shells_complete_commands_runs_and_policies() {
    let user = UserShell::new("manners-completions");
    user.types("guard run -q -- true && guard run -q -- true");
    let ids = user.types("guard __complete runs");
    let ids: Vec<&str> = ids.lines().collect();
    let [newest, older, newest_id, older_id] = ids.as_slice() else { panic!("{ids:?}") };
    assert!(newest_id > older_id, "{ids:?}");
    // guard must offer both the short ids that tables print and the whole ids.
    assert!(newest_id.ends_with(newest) && older_id.ends_with(older) && newest.len() < 36, "{ids:?}");
    user.sees("guard runs", &[newest, older]);
    // guard must not offer a directory name that is not a run id to the shell.
    user.types("mkdir -p ~/.local/state/guard/runs/'$(touch x)'");
    assert_eq!(user.types("guard __complete runs").lines().count(), 4);
    user.types("mkdir -p ~/.config/guard/policies && printf 'version = 1\\nname = \"team\"\\nextends = \"strict\"\\n' > ~/.config/guard/policies/team.toml");
    user.sees("guard __complete policies", &["team\n", "strict\n"]);
    let offered = |words: &str| {
        let count = words.split(' ').count();
        user.types(&format!(
            "source <(guard completions bash)\nCOMP_WORDS=({words} ''); COMP_CWORD={count}\n_guard_with_values guard '' ''\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        ))
    };
    assert!(offered("guard").contains("doctor"));
    assert_eq!(offered("guard log").lines().collect::<Vec<_>>(), ids);
    assert_eq!(offered("guard worktree path").lines().collect::<Vec<_>>(), ids);
    assert!(offered("guard run --policy").contains("team"));
    assert!(!offered("guard policy").contains(newest));
    user.sees("guard completions fish", &["-l policy -r -a '(guard __complete policies", "__complete runs"]);
    user.sees(
        "guard completions zsh",
        &["#compdef guard", ":POLICY:_guard_policies'", "_guard_runs'", "_guard_runs() {"],
    );
    for (shell, check) in [("zsh", "zsh -n"), ("fish", "fish --no-execute")] {
        user.types(&format!(
            "guard completions {shell} > script && {{ ! command -v {shell} || {check} script; }}"
        ));
    }
}

#[test]
fn manual_pages_are_written() {
    let user = UserShell::new("manners-man");
    user.sees("guard man", &[".TH guard 1", "guard\\-run(1)"]);
    user.sees("guard man --out pages/man1", &["wrote the manual pages to pages/man1"]);
    user.sees("cat pages/man1/guard-run.1", &["\\-\\-allow\\-host", "Examples:"]);
    user.types("test -f pages/man1/guard-worktree-path.1 && ! ls pages/man1 | grep -q __complete");
    user.sees("guard man --out /proc/nowhere; echo $?", &["cannot write manual pages to /proc/nowhere", "2"]);
}

#[test]
fn the_doctor_looks_at_the_machine() {
    let user = UserShell::new("manners-doctor");
    user.types(
        "mkdir -p ~/bin ~/open && chmod 777 ~/open && printf '#!/bin/sh\\necho 9.8.7 \\033[31mgem\\n' > ~/bin/gemini &&
         printf '#!/bin/sh\\necho reached > /tmp/manners-doctor-reached\\n' > ~/open/claude && printf '#!/bin/sh\\nsleep 60\\n' > ~/bin/codex &&
         chmod +x ~/bin/* ~/open/*",
    );
    let doctor = "PATH=~/bin:~/open:relative:$PATH OPENAI_API_KEY=sk-secret guard doctor";
    let seen = user.types(doctor);
    for text in [
        "git version 2.",
        "9.8.7",
        "codex did not print its version within 5 seconds",
        "openai                 OPENAI_API_KEY is set",
        "GEMINI_API_KEY or GOOGLE_API_KEY is not set",
        "all users can write to",
        "relative               a relative path",
        "fix: remove the directory from PATH",
        "state directory",
        " free",
    ] {
        assert!(seen.contains(text), "{text:?} is missing:\n{seen}");
    }
    assert!(!seen.contains("sk-secret") && !seen.contains('\u{1b}'), "{seen}");
    // `guard doctor` must not have started a program that other users can replace.
    user.types("test ! -e /tmp/manners-doctor-reached");
    let json = user.types(&format!("{doctor} --json"));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let of = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(of("git")["state"], "ok");
    assert_eq!(of("claude")["state"], "warning", "{json}");
    assert_eq!(of("anthropic")["state"], "absent");
    assert!(of("anthropic")["fix"].as_str().unwrap().contains("ANTHROPIC_API_KEY"));
    // `guard doctor` must report an old git, and a state directory that it cannot write.
    user.types("printf '#!/bin/sh\\necho git version 2.30.1\\n' > ~/bin/git && chmod +x ~/bin/git");
    user.sees(&format!("{doctor}; echo code $?"), &["no   git", "install git 2.38 or newer", "code 1"]);
    user.types("rm ~/bin/git");
    user.sees(
        "touch file; XDG_STATE_HOME=$PWD/file guard doctor; echo code $?",
        &["you cannot write to", "XDG_STATE_HOME to another directory", "code 1"],
    );
}
