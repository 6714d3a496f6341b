//! The manners of the command line, as a user types it: times, help, colours, completions, manuals and topics.

use super::everyday::UserShell;

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
    // A number without a unit would be seconds, and would delete nearly everything.
    user.sees("guard runs prune --older-than 30; test $? = 2 && echo usage", &["such as 30d", "usage"]);
    user.sees("guard runs prune --older-than 0s", &["2 of 2 runs"]);
    user.sees("guard task --max-duration plan=never x; test $? = 2 && echo usage", &["such as 90s", "usage"]);
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
    assert!(!user.types("CLICOLOR_FORCE=1 guard --color never --help").contains("\x1b["));
    user.sees("guard --color sometimes runs; echo $?", &["sometimes", "auto, always, never", "2"]);
}
