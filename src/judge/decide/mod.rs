//! Decides whether a command may run: takes a policy and intents (program starts), and returns a [`Verdict`].
//!
//! guard judges every intent of a command separately, and applies the strictest decision to the whole command. This
//! module must never do I/O or depend on time or randomness. The same policy and command always give the same
//! verdict, with the rule that caused it and the rule's location.
#![forbid(unsafe_code)]

mod allow_with;
mod examples;
mod learn;
mod matching;
mod network;
mod verdict;

pub use allow_with::{ALLOW_IDS, AllowRule, CannotAllow, rules_to_allow};
pub use examples::{ExampleFailure, check_examples, load, load_text};
pub use learn::{Learned, Seen, SeenCommand, learn};
pub use network::{Allowed, INSTEAD_OF_HOST, NetworkRefusal, NetworkRefusalData, NetworkRules};
pub use verdict::{Cause, Conditions, Decision, Verdict, refusal_line};

use crate::judge::command::{Analysis, Context, Deferred, Effects, Intent, Refusal, Request, analyze};
use crate::judge::policy::{Action, Policy, Rule};
use verdict::Ruling;

/// Analyses a command under the policy's limits and judges it. This is the entry point for all callers.
pub fn judge(policy: &Policy, request: &Request, context: &Context) -> (Verdict, Analysis) {
    let limits = policy.command_limits();
    let analysis = if limits.bytes == context.limits.bytes && limits.depth == context.limits.depth {
        analyze(request, context)
    } else {
        analyze(request, &Context { limits, ..context.clone() })
    };
    (decide(policy, &analysis), analysis)
}

/// Analyses a command, judges it as [`judge`] does, and finds the options of `guard run` that would allow a command
/// that guard denies or asks about. The search for the options takes several times as long as the judgement, so it is
/// only for results that a person will read.
pub fn judge_and_explain(policy: &Policy, request: &Request, context: &Context) -> (Verdict, Analysis) {
    let (mut verdict, analysis) = judge(policy, request, context);
    explain(policy, &mut verdict, &analysis, context);
    (verdict, analysis)
}

/// If the verdict denies the command or asks the user about it, adds the options of `guard run` that would allow it.
/// Adds none if no option would.
pub fn explain(policy: &Policy, verdict: &mut Verdict, analysis: &Analysis, context: &Context) {
    if let (Action::Ask | Action::Deny, Some(index)) = (verdict.action(), verdict.intent) {
        verdict.allow_with = allow_with::option(policy, analysis, index, context);
    }
}

/// Judges a command that guard has already analysed: returns the strictest decision about any of its intents. Denies a
/// command that the analysis refused, and allows one that starts no program.
pub fn decide(policy: &Policy, analysis: &Analysis) -> Verdict {
    if let Some(refusal) = &analysis.refusal {
        return verdict::refused(refusal);
    }
    let mut worst: Option<(Ruling<'_>, usize)> = None;
    for (index, intent) in analysis.intents.iter().enumerate() {
        let ruling = rule_on(policy, None, intent);
        if worst.as_ref().is_none_or(|(known, _)| ruling.action > known.action) {
            let is_final = ruling.action == Action::Deny;
            worst = Some((ruling, index));
            if is_final {
                break;
            }
        }
    }
    match worst {
        Some((ruling, index)) => ruling.into_verdict(policy, analysis, index),
        // The text contains only comments or assignments, and runs no program.
        None => verdict::nothing_runs(),
    }
}

/// Judges one intent by the strictest rule that matches and that no other matching rule lifts. If the policy's default
/// is stricter and no matching rule may loosen it, judges by the default. Treats `extra` as the policy's last rule.
fn rule_on<'p>(policy: &'p Policy, extra: Option<&'p Rule>, intent: &Intent) -> Ruling<'p> {
    let is_other = intent.effects.intersects(Effects::GIT_OTHER);
    let is_alias = intent.git.as_ref().is_some_and(|git| git.is_alias);
    let applies = |rule: &Rule| {
        !(is_other && rule.is_about_the_task()) && matching::matches(&rule.when, rule.action, intent)
    };
    let rules = || policy.rules.iter().chain(extra);
    let lifting: Vec<&Rule> = rules().filter(|rule| !rule.lifts.is_empty() && applies(rule)).collect();
    let mut best: Option<&'p Rule> = None;
    let mut lifted = false;
    for rule in rules() {
        let better = best.is_none_or(|known| rule.action > known.action);
        if !better && (lifted || !rule.lifts_default) {
            continue;
        }
        if lifting.iter().any(|other| other.lifts.contains(&rule.id)) || !applies(rule) {
            continue;
        }
        lifted |= rule.lifts_default;
        if better {
            best = Some(rule);
        }
        if rule.action == Action::Deny {
            break;
        }
    }
    let default = match (&intent.git, is_other) {
        (None, _) => &policy.default_action,
        (Some(_), false) => &policy.git_default_action,
        (Some(_), true) => &policy.git_other_action,
    };
    // If the program or the verb is not known yet, the default does not apply: guard judges the intent again when its
    // program starts. The default does not apply to an alias either: its expansion is a separate intent.
    let undecided = is_alias || matches!(intent.deferred, Some(Deferred::Program | Deferred::Verb));
    let default_holds = !lifted && !undecided;
    match best {
        Some(rule) if !default_holds || rule.action >= default.action => Ruling::by_rule(rule),
        Some(_) | None if default_holds => Ruling::by_default(default, intent.git.is_some()),
        _ => Ruling::deferred(),
    }
}

/// Returns the rule id that a verdict contains if guard could not analyse the command.
pub(crate) fn refusal_rule(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Empty => "input.empty",
        Refusal::Nul(_) => "input.nul",
        Refusal::TooLarge(_) => "input.size",
        Refusal::TooDeep(_) => "input.depth",
        Refusal::TooMany(_) | Refusal::TooManyVariables | Refusal::TooManyAliasValues(_) => "input.count",
        Refusal::Shell { .. } | Refusal::Alias | Refusal::KeywordOption => "input.syntax",
    }
}
