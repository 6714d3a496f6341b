//! A chain of policy files → one policy. A file can only tighten what it extends, unless it says `override`.

use super::diagnostic::{Diagnostic, Severity, Source};
use super::diff::described;
use super::fields::nearest;
use super::model::{Action, Default, Place, Policy, Rule};
use super::reader::{At, File, FileRule, Section};
use crate::command::Limits as CommandLimits;

/// Merges files, the root of the chain first. Problems come back beside what could be merged.
pub(super) fn merge(chain: Vec<(Source, File)>) -> (Policy, Vec<Diagnostic>) {
    let sources: Vec<Source> = chain.iter().map(|(source, _)| source.clone()).collect();
    let mut merger = Merger {
        policy: Policy {
            name: String::new(),
            description: String::new(),
            extends: Vec::new(),
            sources,
            default_action: Default { action: Action::Allow, place: None },
            git_default_action: Default { action: Action::Deny, place: None },
            rules: Vec::new(),
            filesystem: std::default::Default::default(),
            network: std::default::Default::default(),
            environment: std::default::Default::default(),
            limits: std::default::Default::default(),
            git: std::default::Default::default(),
            remarks: Vec::new(),
        },
        problems: Vec::new(),
        level: 0,
    };
    for (level, (_, file)) in chain.into_iter().enumerate() {
        merger.level = level;
        merger.file(file);
    }
    (merger.policy, merger.problems)
}

/// The one thing that no section's `override` can loosen.
const TOP_DEFAULT: &str = "the default action";

struct Merger {
    policy: Policy,
    problems: Vec<Diagnostic>,
    /// 0 for the root of the chain.
    level: usize,
}

impl Merger {
    fn problem(
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

    fn file(&mut self, file: File) {
        if self.level > 0 {
            let parent = std::mem::take(&mut self.policy.name);
            self.policy.extends.insert(0, parent);
        }
        self.policy.name = file.name.map(|name| name.value).unwrap_or_default();
        self.policy.description = file.description;
        self.default_action(file.default_action, false, false);
        let overrides = file.git.overrides;
        self.default_action(file.git.default_action.clone(), true, overrides);
        self.sections(&file.filesystem, &file.network, &file.environment, &file.limits, &file.git);
        self.rules(file.rules);
    }

    fn default_action(&mut self, set: Option<At<Action>>, git: bool, overrides: bool) {
        let Some(set) = set else { return };
        let level = self.level;
        let current = if git { &mut self.policy.git_default_action } else { &mut self.policy.default_action };
        let loosens = level > 0 && set.value < current.action;
        if !loosens || overrides {
            *current =
                Default { action: set.value, place: Some(Place { source: level, span: set.span.clone() }) };
        }
        if loosens {
            self.loosened(set.span, if git { "git's default action" } else { TOP_DEFAULT }, overrides);
        }
    }

    /// Reports something that grants more than the policy extended: an error, or a note when it is meant.
    fn loosened(&mut self, span: std::ops::Range<usize>, what: &str, overrides: bool) {
        let next_step = if what == TOP_DEFAULT {
            "an extending policy can only tighten; allow single programs by rules with `override = true`"
        } else {
            "an extending policy can only tighten; add `override = true` to the section if this is meant"
        };
        if overrides {
            self.problem(Severity::Note, span, format!("{what} is loosened by override"), "in force", None);
        } else {
            self.problem(
                Severity::Error,
                span,
                format!("{what} is looser than in the policy this one extends"),
                "grants more",
                Some(next_step),
            );
        }
    }

    fn sections(
        &mut self,
        filesystem: &Section,
        network: &Section,
        environment: &Section,
        limits: &Section,
        git: &Section,
    ) {
        let mut policy = std::mem::take(&mut self.policy.filesystem);
        self.grants(filesystem, "read", &mut policy.read);
        self.grants(filesystem, "write", &mut policy.write);
        self.policy.filesystem = policy;

        let mut policy = std::mem::take(&mut self.policy.network);
        self.grants(network, "allow", &mut policy.allow);
        for (_, flag) in &network.flags {
            if self.level > 0 && flag.value && !policy.loopback {
                self.loosened(flag.span.clone(), "`loopback`", network.overrides);
            }
            policy.loopback = flag.value;
        }
        self.policy.network = policy;

        let mut policy = std::mem::take(&mut self.policy.environment);
        self.grants(environment, "pass", &mut policy.pass);
        for (_, list) in environment.lists.iter().filter(|(key, _)| *key == "redact") {
            // What is hidden stays hidden.
            policy.redact.extend(list.value.iter().map(|item| item.value.clone()));
        }
        for (name, value) in &environment.map {
            let known = policy.set.iter().find(|(known, _)| *known == name.value).map(|(_, value)| value);
            if self.level > 0 && known != Some(value) {
                self.loosened(
                    name.span.clone(),
                    &format!("the variable `{}`", name.value),
                    environment.overrides,
                );
            }
            policy.set.retain(|(known, _)| *known != name.value);
            policy.set.push((name.value.clone(), value.clone()));
        }
        self.policy.environment = policy;

        let mut values = std::mem::take(&mut self.policy.limits.values);
        for (key, number) in &limits.numbers {
            let current = values.iter_mut().find(|(known, _)| known == key);
            match current {
                Some((_, value)) => {
                    let loosens = number.value > *value;
                    if !loosens || limits.overrides {
                        *value = number.value;
                    }
                    if loosens {
                        self.loosened(number.span.clone(), &format!("`{key}`"), limits.overrides);
                    }
                }
                None => {
                    // The program's own bounds are what an unset one means.
                    let defaults = CommandLimits::default();
                    let unset = match *key {
                        "command_bytes" => i64::try_from(defaults.bytes).ok(),
                        "command_depth" => i64::try_from(defaults.depth).ok(),
                        _ => None,
                    };
                    if self.level > 0 && unset.is_some_and(|unset| number.value > unset) {
                        self.loosened(number.span.clone(), &format!("`{key}`"), limits.overrides);
                    }
                    values.push((key, number.value));
                }
            }
        }
        self.policy.limits.values = values;

        for (key, text) in &git.texts {
            if *key == "branch_prefix" {
                if text.value.is_empty()
                    || !text.value.ends_with('/')
                    || text.value.starts_with('/')
                    || text.value.contains("..")
                {
                    self.problem(
                        Severity::Error,
                        text.span.clone(),
                        "a branch prefix ends in `/`".into(),
                        "such as `task/`",
                        None,
                    );
                }
                if self.level > 0 && self.policy.git.branch_prefix != text.value {
                    self.loosened(text.span.clone(), "`branch_prefix`", git.overrides);
                }
                self.policy.git.branch_prefix = text.value.clone();
            }
        }
        for (_, list) in &git.lists {
            let trailers: Vec<String> = list.value.iter().map(|item| item.value.clone()).collect();
            if self.policy.git.trailers.iter().any(|known| !trailers.contains(known)) {
                self.loosened(list.span.clone(), "`trailers`", git.overrides);
            }
            self.policy.git.trailers = trailers;
        }
        for (_, flag) in &git.flags {
            if self.policy.git.sign && !flag.value {
                self.loosened(flag.span.clone(), "`sign`", git.overrides);
            }
            self.policy.git.sign = flag.value;
        }
    }

    /// A list of grants: an extending policy may leave some out, not add any.
    fn grants(&mut self, section: &Section, key: &str, current: &mut Vec<String>) {
        for (_, list) in section.lists.iter().filter(|(known, _)| *known == key) {
            if self.level > 0 {
                for item in &list.value {
                    if !current.iter().any(|known| covers(known, &item.value)) {
                        self.loosened(
                            item.span.clone(),
                            &format!("`{}` in `{key}`", item.value),
                            section.overrides,
                        );
                    }
                }
            }
            *current = list.value.iter().map(|item| item.value.clone()).collect();
        }
    }

    fn rules(&mut self, rules: Vec<FileRule>) {
        let inherited = self.policy.rules.len();
        for rule in rules {
            let existing = self.policy.rules[..inherited].iter().position(|known| known.id == rule.id.value);
            match (existing, rule.overrides) {
                (Some(index), true) => {
                    let old = &self.policy.rules[index];
                    let message = format!(
                        "`{}` replaces the rule of the policy extended ({} → {})",
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
                    format!("the id `{}` belongs to a rule of the policy this one extends", rule.id.value),
                    "already used",
                    Some("give this rule another id, or say `override = true` to replace that one"),
                ),
                (None, overrides) => {
                    if self.level > 0 && overrides {
                        let message =
                            format!("`{}` can lift a default action of the policy extended", rule.id.value);
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
                            format!("the rule `{}` changes nothing", rule.id.value),
                            "an extending policy can only tighten",
                            Some("to allow what the policy extended does not, say `override = true`"),
                        );
                    } else if self.level == 0 && overrides {
                        let ids: Vec<String> = self.policy.rules.iter().map(|rule| rule.id.clone()).collect();
                        let near = nearest(&rule.id.value, ids.iter().map(String::as_str))
                            .unwrap_or_default()
                            .to_string();
                        let help = if near.is_empty() {
                            None
                        } else {
                            Some(format!("the nearest rule is `{near}`"))
                        };
                        let message =
                            "`override` has nothing to override: this policy extends none".to_string();
                        self.problem(
                            Severity::Warning,
                            rule.id.span.clone(),
                            message,
                            "not needed",
                            help.as_deref(),
                        );
                    }
                    let rule = self.built(rule);
                    self.policy.rules.push(rule);
                }
            }
        }
    }

    /// A rule that loosens nothing and tightens nothing: an `allow`, or an `ask` where every default already denies.
    fn changes_nothing(&self, rule: &FileRule) -> bool {
        let defaults = [&self.policy.default_action, &self.policy.git_default_action];
        match rule.action {
            Action::Allow => true,
            Action::Ask => defaults.iter().all(|default| default.action == Action::Deny),
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
            lifts_default: self.level == 0 || rule.overrides,
            is_override: rule.overrides,
            examples: rule.examples,
        }
    }
}

/// Whether one grant includes another: the same, a folder above it, a wider name.
fn covers(wide: &str, narrow: &str) -> bool {
    if wide == narrow {
        return true;
    }
    let climbs = narrow.split('/').any(|part| part == "..");
    if wide.starts_with('/') || wide.starts_with('{') {
        let folder = wide.trim_end_matches('/');
        return !climbs && narrow.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    }
    if let Some(suffix) = wide.strip_prefix("*.") {
        return narrow.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
    }
    wide.strip_suffix('*').is_some_and(|prefix| narrow.starts_with(prefix))
}
