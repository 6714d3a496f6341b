//! Checks the examples in a policy's rules: commands, each with the decision that the policy must make.

use super::judge;
use crate::judge::command::{Context, Cwd, Request};
use crate::judge::policy::{
    Action, Diagnostic, Example, ExampleCommand, Policy, PolicyDirs, PolicyError, Rule, Severity,
    load_source, load_with_problems,
};
use crate::judge::policy::{Source, find};

/// An example for which the policy makes a different decision than the example states.
#[derive(Debug, Clone)]
pub struct ExampleFailure {
    /// The id of the rule that contains the example.
    pub rule: String,
    /// A description of the problem, with the location of the example in the policy file.
    pub diagnostic: Diagnostic,
}

/// Loads a policy by name or path and checks its examples. If the policy is built in, checks the examples only if
/// `always` is true, because guard's own tests have checked them.
pub fn load(reference: &str, dirs: &PolicyDirs, always: bool) -> Result<Policy, PolicyError> {
    let source = find(reference, dirs, None)?;
    if source.built_in && !always {
        // A built-in policy extends only built-in ones, so there are no other examples to check.
        return load_source(source, dirs);
    }
    load_text(source, dirs)
}

/// Loads a policy from its text and checks its examples. If there is an error, returns all problems of the file and its
/// examples at once.
pub fn load_text(source: Source, dirs: &PolicyDirs) -> Result<Policy, PolicyError> {
    // The files that this policy extends have examples too. Check them against the policy that such a file itself
    // defines, because this policy may be stricter.
    let mut failures_of_parents = Vec::new();
    let (policy, mut problems) = load_with_problems(source, dirs, &mut |parent| {
        if !parent.sources[parent.own_source()].built_in {
            failures_of_parents.extend(check_examples(parent));
        }
    })?;
    if let Some(policy) = &policy {
        let failures = check_examples(policy).into_iter();
        problems.extend(failures.map(|failure| failure.diagnostic));
        problems.extend(rules_without_effect(policy));
        problems.extend(failures_of_parents.into_iter().map(|failure| failure.diagnostic));
    }
    match policy {
        Some(mut policy) if problems.iter().all(|problem| problem.severity != Severity::Error) => {
            policy.remarks.extend(problems);
            Ok(policy)
        }
        _ => Err(PolicyError::Invalid(problems)),
    }
}

/// Checks the examples in the policy's own text. Skips the examples of the policies that it extends: they need not
/// hold for this policy, which may be stricter.
pub fn check_examples(policy: &Policy) -> Vec<ExampleFailure> {
    let own = policy.own_source();
    let context = example_context();
    let mut failures = Vec::new();
    for rule in policy.rules.iter().filter(|rule| rule.place.source == own) {
        for example in &rule.examples {
            if let Some(message) = check(policy, rule, example, &context) {
                failures.push(ExampleFailure {
                    rule: rule.id.clone(),
                    diagnostic: diagnostic(policy, rule, example, &message),
                });
            }
        }
    }
    failures
}

/// If the policy extends another, returns a warning for each `allow` rule in the policy's own file that allows
/// nothing, because another rule or a default action still applies to the commands. Tries only the simplest command of
/// each rule.
fn rules_without_effect(policy: &Policy) -> Vec<Diagnostic> {
    let own = policy.own_source();
    let is_own = |rule: &&Rule| rule.place.source == own && own > 0 && rule.action == Action::Allow;
    let mut warnings = Vec::new();
    for rule in policy.rules.iter().filter(is_own) {
        let Some(command) = simplest_command(rule) else { continue };
        let (verdict, analysis) =
            judge(policy, &Request::Shell(command.clone().into_bytes()), &example_context());
        let is_matched =
            analysis.intents.iter().any(|intent| super::matching::matches(&rule.when, rule.action, intent));
        if verdict.action() == Action::Allow || !is_matched || verdict.cause.rule == rule.id {
            continue;
        }
        let by = &verdict.cause.rule;
        let help = if policy.rules.iter().any(|known| known.id == *by) {
            format!("add `lifts = [\"{by}\"]` to this rule")
        } else {
            "add `override = true` to this rule".to_string()
        };
        warnings.push(Diagnostic {
            severity: Severity::Warning,
            message: format!(
                "the rule `{}` has no effect: the rule `{by}` still denies `{command}`",
                rule.id
            ),
            source: policy.sources[rule.place.source].clone(),
            span: rule.place.span.clone(),
            label: "this rule allows nothing".to_string(),
            help: Some(help),
        });
    }
    warnings
}

/// Returns the simplest command that a rule probably matches: its first verb or program, subcommand and option without
/// wildcards. `None` if the rule names no verb and no program without wildcards.
fn simplest_command(rule: &Rule) -> Option<String> {
    let plain = |patterns: &[crate::judge::policy::Pattern]| {
        let found =
            patterns.iter().map(|pattern| pattern.as_str()).find(|text| !text.contains(['*', '?', '[', '{']));
        found.map(str::to_string)
    };
    let mut words = match plain(&rule.when.verbs) {
        Some(verb) => vec![format!("git {verb}")],
        None => vec![plain(&rule.when.programs)?],
    };
    words.extend(plain(&rule.when.subcommands));
    words.extend(rule.when.flags.first().cloned());
    Some(words.join(" "))
}

/// Returns the context in which guard judges examples: commands of an agent in its working tree.
fn example_context() -> Context {
    Context { cwd: Cwd::Known(b"/work".to_vec()), ..Context::default() }
}

fn check(policy: &Policy, rule: &Rule, example: &Example, context: &Context) -> Option<String> {
    let request = match &example.command {
        ExampleCommand::Shell(text) => Request::Shell(text.clone().into_bytes()),
        ExampleCommand::Argv(words) => {
            Request::Argv(words.iter().map(|word| word.clone().into_bytes()).collect())
        }
    };
    let (verdict, analysis) = judge(policy, &request, context);
    let got = verdict.action();
    if verdict.cause.rule.starts_with("input.") {
        return Some(format!("guard cannot analyse the example: {}", verdict.cause.reason));
    }
    if analysis.intents.is_empty() {
        return Some("the example starts no program".to_string());
    }
    if got != example.action {
        let by = &verdict.cause.rule;
        return Some(format!(
            "the example must be {}, but it is {} (rule `{by}`)",
            participle(example.action),
            participle(got)
        ));
    }
    // If a `deny` or `ask` example has the same action as its rule, the rule must at least match the example. Otherwise
    // the example says nothing about the rule.
    if example.action == rule.action && example.action != Action::Allow && verdict.cause.rule != rule.id {
        let reached =
            analysis.intents.iter().any(|intent| super::matching::matches(&rule.when, rule.action, intent));
        if !reached {
            return Some(format!(
                "the rule does not match its example; the example is {} by the rule `{}`",
                participle(got),
                verdict.cause.rule
            ));
        }
    }
    None
}

fn participle(action: Action) -> &'static str {
    match action {
        Action::Allow => "allowed",
        Action::Ask => "asked about",
        Action::Deny => "denied",
    }
}

fn diagnostic(policy: &Policy, rule: &Rule, example: &Example, message: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        message: format!("rule `{}`: {message}", rule.id),
        source: policy.sources[rule.place.source].clone(),
        span: example.span.clone(),
        label: format!("expected {}", example.action.name()),
        help: None,
    }
}
