//! The two lines that guard prints about a run for a person at a terminal, one when the run begins and one when it
//! ends. With `-v`, `guard run` prints the whole summary instead of the second line.

use crate::run::launch::{LaunchPlan, Limits};
use crate::run::outcome::{ErrorKind, RunResult};
use crate::session::run_reference;
use crate::text::terminal_text;

/// The maximum number of hosts that the first line lists.
const MOST_HOSTS: usize = 3;

/// The maximum length of an error, in bytes, that the last line shows before the duration of the run. The line shows a
/// longer error after the duration.
const LONGEST_CLAUSE: usize = 60;

/// Returns the line that guard prints when a run begins: the policy, the branch or the directory, the network access
/// and the time limits.
pub(in crate::cli) fn beginning(plan: &LaunchPlan) -> String {
    let place = match &plan.checkout {
        Some(checkout) => format!("branch {}", checkout.branch),
        None => format!("directory {}", plan.folder.display()),
    };
    let parts = [plan.policy.clone(), place, network(plan), time_limits(&plan.limits)];
    terminal_text::one_line(&format!("guard: {}", parts.join(" · ")))
}

fn network(plan: &LaunchPlan) -> String {
    let gateways = plan.network.gateways.iter().map(|gateway| format!("{} API", gateway.name));
    let hosts = plan.network.allow.iter().map(|host| host.entry.clone());
    let ports = plan.network.listen.iter().map(|port| format!("listens on 127.0.0.1:{port}"));
    let all: Vec<String> = gateways.chain(hosts).chain(ports).collect();
    let more = match all.len().saturating_sub(MOST_HOSTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match all.is_empty() {
        true => "network: none".to_string(),
        false => format!("network: {}{more}", all[..all.len().min(MOST_HOSTS)].join(", ")),
    }
}

fn time_limits(limits: &Limits) -> String {
    match (limits.total_seconds.map(duration), limits.idle_seconds.map(duration)) {
        (None, None) => "no time limits".to_string(),
        (Some(total), None) => format!("ends after {total}"),
        (None, Some(idle)) => format!("ends when idle for {idle}"),
        (Some(total), Some(idle)) => format!("ends after {total}, or when idle for {idle}"),
    }
}

/// Formats seconds in the largest unit that needs no fraction, in the form that the time options accept.
fn duration(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    match units.iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

/// Returns true if the last line says more than that the command succeeded and left no changes.
pub(in crate::cli) fn has_news(result: &RunResult) -> bool {
    let has_left_work = result.worktree.as_ref().is_some_and(|worktree| {
        worktree.kept || worktree.unreceived || !worktree.saved.is_empty() || !result.commits.is_empty()
    });
    result.error.is_some()
        || has_left_work
        || !result.findings.is_empty()
        || !result.denials.is_empty()
        || (result.worktree.is_none() && !result.files_changed.is_empty())
}

/// Returns the line that guard prints when a run has ended: how it ended, which changes it left, and the command that
/// explains what guard refused.
pub(in crate::cli) fn ending(result: &RunResult) -> String {
    run_ending(result, &run_reference::shortest(&result.run_id))
}

/// Returns the line that guard prints when a run has ended. `run` is the text that identifies the run on guard's command
/// line.
fn run_ending(result: &RunResult, run: &str) -> String {
    format!("guard: {}", ending_of(result, &format!("guard why {run}"), &format!("guard log {run}")))
}

/// Returns the line that guard prints when a turn of a conversation has ended.
pub(in crate::cli) fn turn_ending(result: &RunResult) -> String {
    ending_of(result, "/why", "guard log")
}

/// Describes how a run ended and which changes it left. `why` is the command that explains refusals, `log` the one that
/// shows findings.
fn ending_of(result: &RunResult, why: &str, log: &str) -> String {
    let time = format!("{:.1} s", result.duration_ms as f64 / 1000.0);
    let refused = result.denials.first().filter(|_| result.error_kind == Some(ErrorKind::PolicyDenied));
    let how = match (&result.error, result.exit_code) {
        (Some(_), _) if refused.is_some() => {
            let what = refused.map(|denial| format!("{} (rule {})", denial.what, denial.rule));
            format!("refused after {time}: {}", what.unwrap_or_default())
        }
        (Some(error), _) if error.len() > LONGEST_CLAUSE => format!("ended after {time}: {error}"),
        (Some(error), _) => format!("{error} after {time}"),
        (None, None | Some(0)) => format!("ok in {time}"),
        (None, Some(code)) => format!("exit code {code} after {time}"),
    };
    let mut parts = vec![how];
    let plural = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    if let Some(worktree) = &result.worktree {
        let commits = result.commits.len();
        let uncommitted = worktree.uncommitted.len();
        if commits > 0 {
            parts.push(format!("{} on {}", plural(commits, "commit", "commits"), worktree.branch));
        }
        if uncommitted > 0 && worktree.kept {
            let place = if commits > 0 { String::new() } else { format!(" on {}", worktree.branch) };
            parts
                .push(format!("{}{place}", plural(uncommitted, "path not committed", "paths not committed")));
        }
        if !worktree.saved.is_empty() {
            parts.push(format!("work saved in {}", worktree.saved.join(", ")));
        }
        if worktree.unreceived {
            parts.push(format!("commits not received (guard worktree receive {})", result.run_id));
        }
    } else if !result.files_changed.is_empty() {
        parts.push(plural(result.files_changed.len(), "file changed", "files changed"));
    }
    if !result.findings.is_empty() {
        parts.push(format!(
            "{} ({log})",
            plural(result.findings.len(), "finding to review", "findings to review")
        ));
    }
    if !result.denials.is_empty() {
        parts.push(format!("{} ({why})", plural(result.denials.len(), "action refused", "actions refused")));
    }
    terminal_text::one_line(&parts.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::outcome::{Denial, Worktree};

    #[test]
    fn durations_are_as_short_as_they_can_be() {
        for (seconds, text) in [(0, "0s"), (90, "90s"), (300, "5m"), (7_200, "2h"), (172_800, "2d")] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn one_line_says_how_a_run_ended() {
        let ok = RunResult { exit_code: Some(0), duration_ms: 3_200, ..RunResult::default() };
        assert_eq!(run_ending(&ok, "@"), "guard: ok in 3.2 s");
        let worktree = Worktree {
            branch: "task/\u{1b}[31mx".to_string(),
            kept: true,
            uncommitted: vec!["a".to_string(), "b".to_string()],
            ..Worktree::default()
        };
        let failed = RunResult {
            exit_code: Some(3),
            worktree: Some(worktree),
            denials: vec![Denial::default(), Denial::default()],
            ..ok.clone()
        };
        assert_eq!(
            run_ending(&failed, "@"),
            "guard: exit code 3 after 3.2 s · 2 paths not committed on task/\u{fffd}[31mx · 2 actions refused (guard why @)"
        );
        assert!(run_ending(&failed, "0197f0a0").ends_with(" · 2 actions refused (guard why 0197f0a0)"));
        assert!(turn_ending(&failed).starts_with("exit code 3 after 3.2 s · "));
        assert!(turn_ending(&failed).ends_with(" · 2 actions refused (/why)"));
        let limit = RunResult { error: Some("the time limit\nwas reached".to_string()), ..ok };
        assert_eq!(run_ending(&limit, "@"), "guard: the time limit was reached after 3.2 s");
    }
}
