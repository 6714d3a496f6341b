//! Merges a chain of policy files into one policy.
//!
//! A file can only tighten the policy that it extends. Loosening is an error unless the file marks it with `override`
//! or `lifts`.

use std::collections::HashMap;

use super::diagnostic::{Diagnostic, Severity, Source};
use super::diff::described;
use super::keys::nearest;
use super::model::{Action, DefaultAction, Place, Policy, Rule};
use super::parse::{File, FileRule, Located};

/// Merges a chain of policy files, which begins with the policy that extends no other. Returns the merged policy and
/// the problems in the files. Calls `on_parent` with each policy that the last file extends, from the first of the chain,
/// as that policy's own file defines it.
pub(super) fn merge(
    chain: Vec<(Source, File)>,
    on_parent: &mut dyn FnMut(&Policy),
) -> (Policy, Vec<Diagnostic>) {
    let mut merger = Merger {
        policy: Policy {
            name: String::new(),
            description: String::new(),
            extends: Vec::new(),
            sources: Vec::new(),
            default_action: DefaultAction { action: Action::Allow, place: None },
            git_default_action: DefaultAction { action: Action::Deny, place: None },
            git_other_action: DefaultAction { action: Action::Deny, place: None },
            rules: Vec::new(),
            filesystem: Default::default(),
            network: Default::default(),
            environment: Default::default(),
            limits: Default::default(),
            budget: Default::default(),
            sandbox: Default::default(),
            home: Default::default(),
            toolchains: Default::default(),
            worktree: Default::default(),
            git: Default::default(),
            remarks: Vec::new(),
        },
        positions: HashMap::new(),
        problems: Vec::new(),
        level: 0,
    };
    for (source, file) in chain {
        if !merger.policy.sources.is_empty() {
            on_parent(&merger.policy);
        }
        merger.file(source, file);
    }
    (merger.policy, merger.problems)
}

/// Adds a file to a policy that is already merged, as if the file extended it. The name of the policy stays the same.
pub(super) fn extend(policy: Policy, source: Source, file: File) -> (Policy, Vec<Diagnostic>) {
    let (name, description, extends) =
        (policy.name.clone(), policy.description.clone(), policy.extends.clone());
    let rules = policy.rules.iter().enumerate();
    let positions = rules.map(|(index, rule)| (rule.id.clone(), index)).collect();
    let mut merger = Merger { policy, positions, problems: Vec::new(), level: 0 };
    merger.file(source, file);
    let policy = Policy { name, description, extends, ..merger.policy };
    (policy, merger.problems)
}

/// The name of the policy's default action in messages. The default action is in no section, so no `override` can
/// loosen it.
const TOP_DEFAULT: &str = "the default action";

pub(super) struct Merger {
    pub(super) policy: Policy,
    /// The index of each rule in the policy, by the rule's id.
    positions: HashMap<String, usize>,
    problems: Vec<Diagnostic>,
    /// The position of the current file in the chain; 0 is the file that extends no other.
    pub(super) level: usize,
}

impl Merger {
    pub(super) fn problem(
        &mut self,
        severity: Severity,
        span: std::ops::Range<usize>,
        message: String,
        label: &str,
        help: Option<&str>,
    ) {
        self.problems.push(Diagnostic {
            severity,
            message,
            source: self.policy.sources[self.level].clone(),
            span,
            label: label.to_string(),
            help: help.map(str::to_string),
        });
    }

    fn file(&mut self, source: Source, file: File) {
        self.level = self.policy.sources.len();
        self.policy.sources.push(source);
        if self.level > 0 {
            let parent = std::mem::take(&mut self.policy.name);
            self.policy.extends.insert(0, parent);
        }
        self.policy.name = file.name.as_ref().map(|name| name.value.clone()).unwrap_or_default();
        self.policy.description.clone_from(&file.description);
        self.default_action(file.default_action.clone(), false, false);
        let overrides = file.git.overrides;
        self.default_action(file.git.default_action.clone(), true, overrides);
        self.sections(&file);
        self.rules(file.rules);
    }

    fn default_action(&mut self, set: Option<Located<Action>>, git: bool, overrides: bool) {
        let Some(set) = set else { return };
        let level = self.level;
        let current = if git { &mut self.policy.git_default_action } else { &mut self.policy.default_action };
        let loosens = level > 0 && set.value < current.action;
        if !loosens || overrides {
            *current = DefaultAction {
                action: set.value,
                place: Some(Place { source: level, span: set.span.clone() }),
            };
        }
        if loosens {
            self.loosened(set.span, if git { "git's default action" } else { TOP_DEFAULT }, overrides);
        }
    }

    /// Reports a setting that grants more than the extended policy: as an error, or as a note if the file marks it as
    /// an override.
    pub(super) fn loosened(&mut self, span: std::ops::Range<usize>, what: &str, overrides: bool) {
        let next_step = if what == TOP_DEFAULT {
            "a policy can only tighten the one that it extends; allow single programs by rules with `override = true`"
        } else {
            "a policy can only tighten the one that it extends; to loosen it on purpose, add `override = true` to the section"
        };
        if overrides {
            self.problem(
                Severity::Note,
                span,
                format!("{what} loosens the policy that this one extends; `override` permits it"),
                "in force",
                None,
            );
        } else {
            self.problem(
                Severity::Error,
                span,
                format!("{what} loosens the policy that this one extends"),
                "grants more",
                Some(next_step),
            );
        }
    }

    fn rules(&mut self, rules: Vec<FileRule>) {
        let inherited = self.policy.rules.len();
        for rule in rules {
            self.check_lifts(&rule, inherited);
            let existing = self.inherited_rule(&rule.id.value, inherited);
            match (existing, rule.overrides) {
                (Some(index), true) => {
                    let old = &self.policy.rules[index];
                    let message = format!(
                        "`{}` replaces the rule of the extended policy ({} → {})",
                        rule.id.value,
                        old.action.name(),
                        rule.action.name()
                    );
                    let old = described(old);
                    let span = rule.id.span.clone();
                    self.policy.rules[index] = self.built(rule);
                    let new = described(&self.policy.rules[index]);
                    let help =
                        (old != new).then(|| format!("it applied to: {old}\nnow it applies to: {new}"));
                    self.problem(Severity::Note, span, message, "override in force", help.as_deref());
                }
                (Some(_), false) => self.problem(
                    Severity::Error,
                    rule.id.span.clone(),
                    format!("the extended policy already has a rule `{}`", rule.id.value),
                    "already used",
                    Some("give this rule another id, or add `override = true` to replace the extended rule"),
                ),
                (None, overrides) => {
                    if !rule.lifts.is_empty() {
                        // `check_lifts` has already reported this rule.
                    } else if self.level > 0 && overrides {
                        let message =
                            format!("`{}` can loosen a default action of the extended policy", rule.id.value);
                        self.problem(
                            Severity::Note,
                            rule.id.span.clone(),
                            message,
                            "override in force",
                            None,
                        );
                    } else if self.level > 0 && self.changes_nothing(&rule) {
                        self.problem(
                            Severity::Warning,
                            rule.id.span.clone(),
                            format!("the rule `{}` has no effect", rule.id.value),
                            "a policy can only tighten the one that it extends",
                            Some(
                                "to allow what a default of the extended policy refuses, add `override = true`; to allow what a rule refuses, name that rule in `lifts`",
                            ),
                        );
                    } else if self.level == 0 && overrides {
                        let message =
                            "`override` has no effect: this policy does not extend another".to_string();
                        self.problem(
                            Severity::Warning,
                            rule.id.span.clone(),
                            message,
                            "not needed",
                            Some("remove `override`, or name the policy to extend with `extends`"),
                        );
                    }
                    let rule = self.built(rule);
                    self.positions.insert(rule.id.clone(), self.policy.rules.len());
                    self.policy.rules.push(rule);
                }
            }
        }
    }

    /// Returns the index of the rule with this id among the first `inherited` rules.
    fn inherited_rule(&self, id: &str, inherited: usize) -> Option<usize> {
        self.positions.get(id).copied().filter(|&index| index < inherited)
    }

    /// Checks that every rule id in `lifts` names a rule of the extended policy, and adds a note for each rule that is
    /// lifted. Reports an error if the rule denies, because such a rule cannot lift another.
    fn check_lifts(&mut self, rule: &FileRule, inherited: usize) {
        if let (Action::Deny, Some(first)) = (rule.action, rule.lifts.first()) {
            self.problem(
                Severity::Error,
                first.span.clone(),
                format!("`{}` denies, so it cannot lift another rule", rule.id.value),
                "`lifts` is only for rules with `allow` or `ask`",
                None,
            );
            return;
        }
        for lifted in &rule.lifts {
            if self.inherited_rule(&lifted.value, inherited).is_some() {
                let message = format!(
                    "`{0}` lifts `{1}` for the commands that `{0}` matches",
                    rule.id.value, lifted.value
                );
                self.problem(Severity::Note, lifted.span.clone(), message, "override in force", None);
                continue;
            }
            let ids = self.policy.rules[..inherited].iter().map(|known| known.id.as_str());
            let near = nearest(&lifted.value, ids);
            let help = near.map(|near| format!("did you mean `{near}`?"));
            self.problem(
                Severity::Error,
                lifted.span.clone(),
                format!("the policy this one extends has no rule `{}`", lifted.value),
                "nothing to lift",
                help.as_deref(),
            );
        }
    }

    /// Returns true if a rule without `override` cannot tighten the extended policy: an `allow`, or an `ask` where
    /// every default denies and no rule allows anything.
    fn changes_nothing(&self, rule: &FileRule) -> bool {
        let defaults = [&self.policy.default_action, &self.policy.git_default_action];
        match rule.action {
            Action::Allow => true,
            Action::Ask => {
                defaults.iter().all(|default| default.action == Action::Deny)
                    && self.policy.rules.iter().all(|known| known.action != Action::Allow)
            }
            Action::Deny => false,
        }
    }

    fn built(&self, rule: FileRule) -> Rule {
        Rule {
            id: rule.id.value,
            action: rule.action,
            reason: rule.reason,
            instead: rule.instead,
            when: rule.when,
            place: Place { source: self.level, span: rule.id.span },
            lifts_default: self.level == 0 || rule.overrides || !rule.lifts.is_empty(),
            is_override: rule.overrides || !rule.lifts.is_empty(),
            lifts: rule.lifts.into_iter().map(|id| id.value).collect(),
            examples: rule.examples,
        }
    }
}
