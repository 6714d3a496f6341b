//! Describes a failed turn for the user: the kind of the error, its message, and what to do next.

use crate::run::outcome::{ErrorKind, RunResult};
use crate::text::terminal_text;

/// The maximum length of an error message that guard shows, in bytes.
const LONGEST: usize = 2_000;

/// Describes the error of a turn as lines without styles. Empty if the turn succeeded or the user cancelled it.
/// `session` is the id that identifies the conversation for `guard chat --session`.
pub(super) fn describe(run: &RunResult, session: &str) -> Vec<String> {
    let Some(kind) = run.error_kind.filter(|kind| *kind != ErrorKind::Cancelled) else { return Vec::new() };
    let message = run.error.as_deref().unwrap_or("the turn failed");
    let message = terminal_text::shorten(message, LONGEST);
    let mut lines = vec![format!("{kind}: {message}"), format!("  next: {}", next_step(kind, run, session))];
    // An error of the kind `PolicyDenied` already says what was refused, so it needs no second line.
    if kind != ErrorKind::PolicyDenied && !run.denials.is_empty() {
        lines.push("  refused: /why explains what the policy refused in this turn".to_string());
    }
    lines
}

fn next_step(kind: ErrorKind, run: &RunResult, session: &str) -> String {
    let log = || match run.run_id.as_str() {
        "" => "guard doctor".to_string(),
        id => format!("guard log {id}"),
    };
    match kind {
        ErrorKind::IdleTimeout | ErrorKind::Timeout => {
            "send the message again (↑ brings it back) or ask for less; /compact makes the history shorter"
                .to_string()
        }
        ErrorKind::CommandNotFound => {
            format!("install {}, or leave and choose another agent: guard chat --agent NAME", run.tool)
        }
        ErrorKind::UpstreamError | ErrorKind::TurnLimit => {
            "send the message again: ↑ brings it back".to_string()
        }
        ErrorKind::InvalidInput => "change the message, or the model: /model NAME".to_string(),
        ErrorKind::ConfigError | ErrorKind::SandboxUnavailable => {
            "`guard doctor` shows what is missing; the conversation is stored".to_string()
        }
        ErrorKind::AuthError => {
            format!("leave, set the API key, and come back: guard chat --session {session}")
        }
        ErrorKind::RateLimited => {
            "wait a while and send the message again, or use another model: /model NAME".to_string()
        }
        ErrorKind::PolicyDenied => "/why explains the refusal, and what would allow the command".to_string(),
        ErrorKind::ReceiveRefused => {
            format!(
                "correct the problem that `{}` shows, then run: guard worktree receive {}",
                log(),
                run.run_id
            )
        }
        ErrorKind::BoundaryBroken => format!("apply nothing; look at what happened: {}", log()),
        ErrorKind::BudgetExhausted | ErrorKind::MemoryExhausted | ErrorKind::RecordFull => {
            "ask for less in one turn".to_string()
        }
        ErrorKind::SessionLost | ErrorKind::WorktreeLost => {
            "send the message again; if the error comes back, start a new conversation: guard chat"
                .to_string()
        }
        ErrorKind::SessionBusy | ErrorKind::WorktreeBusy | ErrorKind::Busy => {
            "wait until the other run has ended (guard ps), and send the message again".to_string()
        }
        ErrorKind::Cancelled => String::new(),
        ErrorKind::Internal | ErrorKind::Unrecognized => format!("look at what happened: {}", log()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_next_step() {
        let run = RunResult { run_id: "r1".to_string(), tool: "gemini".to_string(), ..RunResult::default() };
        for kind in ErrorKind::ALL {
            let run =
                RunResult { error_kind: Some(*kind), error: Some("it broke".to_string()), ..run.clone() };
            let lines = describe(&run, "1a2b3c4d");
            if *kind == ErrorKind::Cancelled {
                assert!(lines.is_empty());
                continue;
            }
            assert_eq!(lines[0], format!("{kind}: it broke"));
            assert!(lines[1].starts_with("  next: ") && lines[1].len() > 20, "{lines:?}");
        }
        assert!(describe(&run, "1a2b3c4d").is_empty());
    }
}
