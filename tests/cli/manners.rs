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
        "guard exec --max-duration 1s -- sleep 60 < /dev/null; echo ended with $?",
        &["ended with 124"],
    );
    user.sees("guard runs prune --older-than 1h", &["0 of 2 runs"]);
    // A number without a unit would be seconds, and would delete nearly everything.
    user.sees("guard runs prune --older-than 30; test $? = 2 && echo usage", &["such as 30d", "usage"]);
    user.sees("guard runs prune --older-than 0s", &["2 of 2 runs"]);
    user.sees("guard task --max-duration plan=never x; test $? = 2 && echo usage", &["such as 90s", "usage"]);
}
