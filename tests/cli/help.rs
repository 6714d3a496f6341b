//! Tests help, colours, completions, manual pages, and options with times.

use crate::support::UserShell;

// slow
#[test]
fn time_options_accept_units() {
    let user = UserShell::new("help-times");
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
fn help_has_headings_and_lists_run_first() {
    let user = UserShell::new("help-help");
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
fn color_option_and_environment_choose_colours() {
    let user = UserShell::new("help-colours");
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
fn completions_offer_commands_runs_and_policies() {
    let user = UserShell::new("help-completions");
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
fn man_command_writes_manual_pages() {
    let user = UserShell::new("help-man");
    user.sees("guard man", &[".TH guard 1", "guard\\-run(1)"]);
    user.sees("guard man --out pages/man1", &["wrote the manual pages to pages/man1"]);
    user.sees("cat pages/man1/guard-run.1", &["\\-\\-allow\\-host", "Examples:"]);
    user.types("test -f pages/man1/guard-worktree-path.1 && ! ls pages/man1 | grep -q __complete");
    user.sees("guard man --out /proc/nowhere; echo $?", &["cannot write manual pages to /proc/nowhere", "2"]);
}
