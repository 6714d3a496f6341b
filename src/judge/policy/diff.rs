//! Compares two policies and lists the differences.

use std::net::IpAddr;

use super::model::{
    Budget, Conditions, Environment, Filesystem, Git, Home, Limits, Network, PathAccess, Policy, Rule,
    Sandbox, Toolchains, Worktree,
};

/// Lists the differences between the policies `a` and `b`. A line begins with `-` if its item is only in `a`, with `+`
/// if it is only in `b`, and with `~` if its value changed. Does not compare the names and descriptions of the policies
/// and of the policies that they extend, nor the order and the examples of the rules. The list is empty if there is no
/// difference.
///
/// The code destructures the policy and its sections without `..`, so that it does not compile if a new field is not
/// compared here.
pub fn diff(a: &Policy, b: &Policy) -> Vec<String> {
    let Policy {
        name: _,
        description: _,
        extends: _,
        sources: _,
        remarks: _,
        default_action,
        git_default_action,
        git_other_action,
        rules: _,
        filesystem,
        network,
        environment,
        limits,
        budget,
        sandbox,
        home,
        toolchains,
        worktree,
        git,
    } = a;
    let mut actions = Differences::default();
    actions.changed("default_action", default_action.action.name(), b.default_action.action.name());
    actions.changed(
        "git.default_action",
        git_default_action.action.name(),
        b.git_default_action.action.name(),
    );
    actions.changed("git.other_action", git_other_action.action.name(), b.git_other_action.action.name());
    let sections = [
        actions,
        git.diff(&b.git),
        worktree.diff(&b.worktree),
        sandbox.diff(&b.sandbox),
        home.diff(&b.home),
        toolchains.diff(&b.toolchains),
        budget.diff(&b.budget),
        network.diff(&b.network),
        filesystem.diff(&b.filesystem),
        environment.diff(&b.environment),
        limits.diff(&b.limits),
    ];
    let mut lines: Vec<String> = sections.iter().flat_map(|section| section.values.clone()).collect();
    lines.extend(sections.iter().flat_map(|section| section.items.clone()));
    lines.extend(sections.iter().flat_map(|section| section.named.clone()));
    diff_rules(a, b, &mut lines);
    lines
}

/// The differences between two versions of one section, as lines to print.
#[derive(Default)]
struct Differences {
    /// Lines about changed settings that have a single value.
    values: Vec<String>,
    /// Lines about items that were added to or removed from lists.
    items: Vec<String>,
    /// Lines about named values that were added, changed or removed.
    named: Vec<String>,
}

impl Differences {
    fn changed<T: PartialEq + std::fmt::Display + ?Sized>(&mut self, what: &str, left: &T, right: &T) {
        if left != right {
            self.values.push(format!("~ {what}: {left} → {right}"));
        }
    }

    fn list(&mut self, what: &str, left: &[String], right: &[String]) {
        let only_in = |list: &[String], other: &[String], sign: char| {
            let items = list.iter().filter(|item| !other.contains(item));
            items.map(|item| format!("{sign} {what}: {item}")).collect::<Vec<_>>()
        };
        self.items.extend(only_in(left, right, '-'));
        self.items.extend(only_in(right, left, '+'));
    }

    /// Compares named values. Each name in the output begins with `prefix`.
    fn named<V: PartialEq + std::fmt::Display>(
        &mut self,
        prefix: &str,
        left: &[(impl AsRef<str>, V)],
        right: &[(impl AsRef<str>, V)],
    ) {
        for (name, value) in left {
            let name = name.as_ref();
            match right.iter().find(|(other, _)| other.as_ref() == name) {
                Some((_, other)) if other == value => {}
                Some((_, other)) => self.named.push(format!("~ {prefix}{name}: {value} → {other}")),
                None => self.named.push(format!("- {prefix}{name}: {value}")),
            }
        }
        for (name, value) in right {
            let name = name.as_ref();
            if !left.iter().any(|(known, _)| known.as_ref() == name) {
                self.named.push(format!("+ {prefix}{name}: {value}"));
            }
        }
    }
}

fn joined(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".to_string() } else { items.join(", ") }
}

impl Git {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { branch_prefix, trailers, sign, identity, hooks, receive_mib } = self;
        let person = |identity: &Option<(String, String)>| {
            identity.as_ref().map_or("the user".to_string(), |(name, mail)| format!("{name} <{mail}>"))
        };
        found.changed("git.branch_prefix", branch_prefix, &other.branch_prefix);
        found.changed("git.sign", sign, &other.sign);
        found.changed("git.hooks", hooks, &other.hooks);
        found.changed("git.receive_mib", receive_mib, &other.receive_mib);
        found.changed("git.identity", &person(identity), &person(&other.identity));
        found.list("git.trailers", trailers, &other.trailers);
        found
    }
}

impl Worktree {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { root, copy, link_readonly } = self;
        let place = |root: &Option<String>| root.clone().unwrap_or_else(|| "../.worktrees".to_string());
        found.changed("worktree.root", &place(root), &place(&other.root));
        found.list("worktree.copy", copy, &other.copy);
        found.list("worktree.link_readonly", link_readonly, &other.link_readonly);
        found
    }
}

impl Sandbox {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { namespaces, verify_exec } = self;
        found.changed("sandbox.namespaces", namespaces.name(), other.namespaces.name());
        found.changed("sandbox.verify_exec", verify_exec, &other.verify_exec);
        found
    }
}

impl Toolchains {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { detect, caches } = self;
        found.changed("toolchains.caches", caches.name(), other.caches.name());
        found.list("toolchains.detect", detect, &other.detect);
        found
    }
}

impl Budget {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { max_tokens, max_requests, max_cost_micros } = self;
        let bound = |value: &Option<u64>| value.map_or("none".to_string(), |value| value.to_string());
        found.changed("budget.max_tokens", &bound(max_tokens), &bound(&other.max_tokens));
        found.changed("budget.max_requests", &bound(max_requests), &bound(&other.max_requests));
        let (left, right) = (bound(max_cost_micros), bound(&other.max_cost_micros));
        found.changed("budget.max_cost (millionths)", &left, &right);
        found
    }
}

impl Network {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { allow, deny, presets, resolve, loopback, listen } = self;
        let pins = |pins: &[(String, IpAddr)]| {
            joined(pins.iter().map(|(name, address)| format!("{name} = {address}")))
        };
        let ports = |ports: &[u16]| joined(ports.iter().map(u16::to_string));
        found.changed("network.resolve", &pins(resolve), &pins(&other.resolve));
        found.changed("network.listen", &ports(listen), &ports(&other.listen));
        found.changed("network.loopback", loopback, &other.loopback);
        found.list("network.allow", allow, &other.allow);
        found.list("network.deny", deny, &other.deny);
        found.list("network.presets", presets, &other.presets);
        found
    }
}

impl Filesystem {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { read, write, execute } = self;
        found.list("filesystem.read", read, &other.read);
        found.list("filesystem.write", write, &other.write);
        match (execute, &other.execute) {
            (Some(left), Some(right)) => found.list("filesystem.execute", left, right),
            // At most one of the policies restricts `execute`, so there are no two lists to compare.
            _ => found.changed("filesystem.execute", &self.describe_execute(), &other.describe_execute()),
        }
        found
    }

    /// Describes the paths from which programs may be executed.
    fn describe_execute(&self) -> String {
        match &self.execute {
            None => "everything readable or writable".to_string(),
            Some(items) if items.is_empty() => "none".to_string(),
            Some(items) => items.join(" "),
        }
    }
}

impl Home {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { import } = self;
        found.list("home.import", import, &other.import);
        found
    }
}

impl Environment {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { pass, set, redact } = self;
        found.list("environment.pass", pass, &other.pass);
        found.list("environment.redact", redact, &other.redact);
        found.named("environment.set ", set, &other.set);
        found
    }
}

impl Limits {
    fn diff(&self, other: &Self) -> Differences {
        let mut found = Differences::default();
        let Self { values } = self;
        found.named("limits.", values, &other.values);
        found
    }
}

fn diff_rules(a: &Policy, b: &Policy, lines: &mut Vec<String>) {
    for rule in &a.rules {
        match b.rules.iter().find(|other| other.id == rule.id) {
            None => lines.push(format!("- rule {} ({})", rule.id, rule.action.name())),
            Some(other) => {
                let (old, new) = (described(rule), described(other));
                let texts = [(&old, &new), (&rule.reason, &other.reason), (&rule.instead, &other.instead)];
                if other.action != rule.action {
                    lines.push(format!(
                        "~ rule {}: {} → {}",
                        rule.id,
                        rule.action.name(),
                        other.action.name()
                    ));
                } else if texts.iter().any(|(left, right)| left != right) {
                    lines.push(format!("~ rule {} ({})", rule.id, rule.action.name()));
                }
                for (left, right) in texts.iter().filter(|(left, right)| left != right) {
                    lines.push(format!("    - {left}"));
                    lines.push(format!("    + {right}"));
                }
            }
        }
    }
    for rule in b.rules.iter().filter(|rule| !a.rules.iter().any(|other| other.id == rule.id)) {
        lines.push(format!("+ rule {} ({}): {}", rule.id, rule.action.name(), described(rule)));
    }
}

/// Describes the paths from which the policy allows programs to be executed.
pub fn execute(policy: &Policy) -> String {
    policy.filesystem.describe_execute()
}

/// Describes a rule's conditions and the rules that it lifts, on one line.
pub fn described(rule: &Rule) -> String {
    let Conditions {
        programs,
        verbs,
        subcommands,
        flags,
        unless_flags,
        args,
        unless_args,
        paths,
        unless_paths,
        access,
        effects,
        only_effects,
        variables,
        refs,
    } = &rule.when;
    let mut parts = Vec::new();
    let mut part = |name: &str, items: Vec<&str>| {
        if !items.is_empty() {
            parts.push(format!("{name} {}", items.join(" ")));
        }
    };
    part("program", programs.iter().map(|pattern| pattern.as_str()).collect());
    part("verb", verbs.iter().map(|pattern| pattern.as_str()).collect());
    part("subcommand", subcommands.iter().map(|pattern| pattern.as_str()).collect());
    part("flags", flags.iter().map(String::as_str).collect());
    part("unless_flags", unless_flags.iter().map(String::as_str).collect());
    part("args", args.iter().map(|pattern| pattern.as_str()).collect());
    part("unless_args", unless_args.iter().map(|pattern| pattern.as_str()).collect());
    part("paths", paths.iter().map(|pattern| pattern.as_str()).collect());
    part("unless_paths", unless_paths.iter().map(|pattern| pattern.as_str()).collect());
    match access {
        PathAccess::Any => {}
        PathAccess::Read => part("access", vec!["read"]),
        PathAccess::Write => part("access", vec!["write"]),
    }
    part("effects", effects.iter().flat_map(|effects| effects.names()).collect());
    part("only_effects", only_effects.iter().flat_map(|effects| effects.names()).collect());
    part("variables", variables.iter().map(|pattern| pattern.as_str()).collect());
    part("refs", refs.iter().map(|pattern| pattern.as_str()).collect());
    part("lifts", rule.lifts.iter().map(String::as_str).collect());
    parts.join("; ")
}
