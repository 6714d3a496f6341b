//! The verdict on a command: allow, ask or deny, with the rule that caused it and its location.

use std::borrow::Cow;

use crate::judge::command::{Analysis, Deferred, Effects, Refusal};
use crate::judge::policy::{Action, DefaultAction, Location, Place, Policy, Rule};
use crate::text::terminal_text;

#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow(Conditions),
    /// guard asks the user. If there is no terminal for the question, guard denies the command.
    Ask,
    Deny,
}

impl Decision {
    /// Returns the action of this decision, without its conditions.
    pub fn action(&self) -> Action {
        match self {
            Self::Allow(_) => Action::Allow,
            Self::Ask => Action::Ask,
            Self::Deny => Action::Deny,
        }
    }
}

/// The conditions under which a command is allowed.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default)]
pub struct Conditions {
    /// Parts of the command that guard can judge only when they run: the text of each part, and why. At most 16 parts.
    pub deferred: Vec<(String, Deferred)>,
}

/// A decision about a command, with its explanation.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    pub cause: Cause,
    /// The part of a compound command that caused the decision, as one line; `None` if guard could not analyse the
    /// command or if it starts no program.
    pub part: Option<String>,
    /// The index of the intent (program start) that caused the decision, in the intents of the analysis; `None` in the
    /// same cases as for `part`.
    pub intent: Option<usize>,
    /// The options of `guard run` that would allow the denied part, as a user would type them; `None` if guard did not
    /// search for any or found none. guard shows them to users, not to the agent.
    pub allow_with: Option<String>,
}

/// The rule that caused a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The rule's id; `default`, `git.default` or `git.other` for a default; `deferred` for a command that guard judges
    /// when it runs; `sandbox.tmp` for a write to a shared temporary directory; `input.…` for a command that guard
    /// could not analyse.
    pub rule: String,
    /// The reason for the decision, which guard shows to the agent.
    pub reason: String,
    /// What the agent should do instead; may be empty.
    pub instead: String,
    /// Where a policy file defines the rule or the default; `None` if guard's own code does.
    pub source: Option<Location>,
}

impl Verdict {
    pub fn action(&self) -> Action {
        self.decision.action()
    }

    /// Returns the denial of a request that guard could not parse. guard denies everything that it cannot parse.
    pub fn invalid_request(problem: &str) -> Self {
        let cause = Cause {
            rule: "input.question".to_string(),
            reason: format!("guard cannot parse the request: {problem}."),
            instead: "Send shell text, {\"argv\": […]} or {\"shell\": \"…\"}.".to_string(),
            source: None,
        };
        Self { decision: Decision::Deny, cause, part: None, intent: None, allow_with: None }
    }

    /// Returns the denial of a write to a shared temporary directory for which the run has no private replacement.
    pub fn denied_shared_tmp_write(analysis: &Analysis, index: usize, path: &str) -> Self {
        let cause = Cause {
            rule: "sandbox.tmp".to_string(),
            reason: format!(
                "{path} is shared with the rest of the machine, and this run has no private directory in its place."
            ),
            instead: "Write below $TMPDIR.".to_string(),
            source: None,
        };
        let part = analysis.intents.get(index).map(|intent| intent.line());
        Self { decision: Decision::Deny, cause, part, intent: Some(index), allow_with: None }
    }

    /// Returns the part of the command that caused the decision, shortened for use in a message; `the command` if the
    /// verdict names no part.
    pub fn shown_part(&self) -> Cow<'_, str> {
        const LONGEST_PART: usize = 600;
        terminal_text::shorten(self.part.as_deref().unwrap_or("the command"), LONGEST_PART)
    }

    /// Returns the denial as one line of text for the agent.
    pub fn refusal_line(&self) -> String {
        let cause = &self.cause;
        refusal_line(&self.shown_part(), &cause.rule, &cause.reason, &cause.instead)
    }
}

/// Returns a denial as one line of text for the agent. `what` describes what the agent tried.
pub fn refusal_line(what: &str, rule: &str, reason: &str, instead: &str) -> String {
    let instead = if instead.is_empty() { String::new() } else { format!(" Instead: {instead}") };
    format!("guard: Permission denied: {what} (rule {rule}): {reason}{instead} Do not retry.")
}

/// The decision about one intent, and the rule or default on which it is based.
pub(super) struct Ruling<'p> {
    pub(super) action: Action,
    pub(super) by: By<'p>,
}

pub(super) enum By<'p> {
    Rule(&'p Rule),
    Default(&'p DefaultAction, bool),
    /// No rule or default: guard will judge the intent when its program starts.
    Deferred,
}

impl<'p> Ruling<'p> {
    pub(super) fn by_rule(rule: &'p Rule) -> Self {
        Self { action: rule.action, by: By::Rule(rule) }
    }

    pub(super) fn by_default(default: &'p DefaultAction, git: bool) -> Self {
        Self { action: default.action, by: By::Default(default, git) }
    }

    pub(super) fn deferred() -> Self {
        Self { action: Action::Allow, by: By::Deferred }
    }

    pub(super) fn into_verdict(self, policy: &Policy, analysis: &Analysis, index: usize) -> Verdict {
        let located = |place: &Place| Some(policy.locate(place));
        let cause = match self.by {
            By::Rule(rule) => Cause {
                rule: rule.id.clone(),
                reason: rule.reason.clone(),
                instead: rule.instead.clone(),
                source: located(&rule.place),
            },
            By::Default(default, git) => default_cause(default, git, policy, analysis, index),
            By::Deferred => Cause {
                rule: "deferred".to_string(),
                reason: "The whole command is known only when it runs, so guard judges it then.".to_string(),
                instead: String::new(),
                source: None,
            },
        };
        let decision = match self.action {
            Action::Allow => Decision::Allow(Conditions { deferred: deferred(analysis) }),
            Action::Ask => Decision::Ask,
            Action::Deny => Decision::Deny,
        };
        let intent = &analysis.intents[index];
        // The user who decides must see the complete command, so do not shorten it, unless it is extremely long.
        let part = if self.action == Action::Ask { intent.whole_line() } else { intent.line() };
        Verdict { decision, cause, part: Some(part), intent: Some(index), allow_with: None }
    }
}

fn default_cause(
    default: &DefaultAction,
    git: bool,
    policy: &Policy,
    analysis: &Analysis,
    index: usize,
) -> Cause {
    let source = default.place.as_ref().map(|place| policy.locate(place));
    let rule = if git { "git.default" } else { "default" }.to_string();
    if default.action == Action::Allow {
        let reason = "No rule of the policy denies the command.".to_string();
        return Cause { rule, reason, instead: String::new(), source };
    }
    let intent = &analysis.intents[index];
    if intent.effects.intersects(Effects::GIT_OTHER) {
        return Cause {
            rule: "git.other".to_string(),
            reason: format!("The policy {} allows git only in the repository of this run.", policy.name),
            instead: "Run git in your own working tree.".to_string(),
            source,
        };
    }
    let (reason, instead) = match &intent.git {
        Some(git) => (
            format!(
                "git {} is not among the git commands the policy {} allows.",
                String::from_utf8_lossy(&git.verb),
                policy.name
            ),
            "Work on the current branch with git status, diff, log, add, commit and restore.".to_string(),
        ),
        None => (
            format!(
                "{} is not among the programs the policy {} allows.",
                intent.program.called.display(),
                policy.name
            ),
            format!("`guard policy show {} --effective` lists what the policy allows.", policy.name),
        ),
    };
    Cause { rule, reason, instead, source }
}

fn deferred(analysis: &Analysis) -> Vec<(String, Deferred)> {
    let found = analysis.intents.iter().filter_map(|intent| Some((intent.line(), intent.deferred?)));
    found.take(16).collect()
}

/// Returns the denial of a command that guard could not analyse.
pub(super) fn refused(refusal: &Refusal) -> Verdict {
    let mut reason = refusal.to_string();
    if let Some(first) = reason.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let instead = match refusal {
        Refusal::Empty => "Give a command to run.",
        Refusal::Nul(_) => "Remove the NUL byte.",
        Refusal::Shell { .. } => {
            "Check the quotes and brackets of the text, or put the text in a script file."
        }
        Refusal::KeywordOption => "Run the shell without the option -k.",
        Refusal::Alias | Refusal::TooManyAliasValues(_) => {
            "Write out the command instead of defining an alias for it."
        }
        _ => "Split the command into smaller ones, or put it in a script file.",
    };
    let cause = Cause {
        rule: super::refusal_rule(refusal).to_string(),
        reason: format!("{reason}."),
        instead: instead.to_string(),
        source: None,
    };
    Verdict { decision: Decision::Deny, cause, part: None, intent: None, allow_with: None }
}

/// Returns the verdict on a shell text that starts no program.
pub(super) fn nothing_runs() -> Verdict {
    let cause = Cause {
        rule: "default".to_string(),
        reason: "The command starts no program.".to_string(),
        instead: String::new(),
        source: None,
    };
    Verdict {
        decision: Decision::Allow(Conditions::default()),
        cause,
        part: None,
        intent: None,
        allow_with: None,
    }
}
