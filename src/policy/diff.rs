//! What one policy says differently from another.

use super::model::{PathAccess, Policy, Rule};

fn identity(policy: &Policy) -> String {
    policy.git.identity.as_ref().map_or("the user".to_string(), |(name, mail)| format!("{name} <{mail}>"))
}

fn root(policy: &Policy) -> String {
    policy.worktree.root.clone().unwrap_or_else(|| "../.worktrees".to_string())
}

fn pins(policy: &Policy) -> String {
    let pins: Vec<String> =
        policy.network.resolve.iter().map(|(name, address)| format!("{name} = {address}")).collect();
    if pins.is_empty() { "none".to_string() } else { pins.join(", ") }
}

fn ports(policy: &Policy) -> String {
    let ports: Vec<String> = policy.network.listen.iter().map(u16::to_string).collect();
    if ports.is_empty() { "none".to_string() } else { ports.join(", ") }
}

/// Lines of difference from `a` to `b`: `-` only in a, `+` only in b, `~` in both and changed. Empty when they agree.
pub fn diff(a: &Policy, b: &Policy) -> Vec<String> {
    let mut lines = Vec::new();
    let mut changed = |what: &str, left: String, right: String| {
        if left != right {
            lines.push(format!("~ {what}: {left} → {right}"));
        }
    };
    changed("default_action", a.default_action.action.name().into(), b.default_action.action.name().into());
    changed(
        "git.default_action",
        a.git_default_action.action.name().into(),
        b.git_default_action.action.name().into(),
    );
    changed(
        "git.other_action",
        a.git_other_action.action.name().into(),
        b.git_other_action.action.name().into(),
    );
    changed("git.branch_prefix", a.git.branch_prefix.clone(), b.git.branch_prefix.clone());
    changed("git.sign", a.git.sign.to_string(), b.git.sign.to_string());
    changed("git.hooks", a.git.hooks.to_string(), b.git.hooks.to_string());
    changed("git.receive_mib", a.git.receive_mib.to_string(), b.git.receive_mib.to_string());
    changed("git.identity", identity(a), identity(b));
    changed("worktree.root", root(a), root(b));
    changed("sandbox.namespaces", a.sandbox.namespaces.name().into(), b.sandbox.namespaces.name().into());
    changed("sandbox.verify_exec", a.sandbox.verify_exec.to_string(), b.sandbox.verify_exec.to_string());
    changed("toolchains.caches", a.toolchains.caches.name().into(), b.toolchains.caches.name().into());
    for (what, left, right) in [
        ("budget.max_tokens", a.budget.max_tokens, b.budget.max_tokens),
        ("budget.max_requests", a.budget.max_requests, b.budget.max_requests),
        ("budget.max_cost (millionths)", a.budget.max_cost_micros, b.budget.max_cost_micros),
    ] {
        let words = |value: Option<u64>| value.map_or("none".to_string(), |value| value.to_string());
        changed(what, words(left), words(right));
    }
    changed("network.resolve", pins(a), pins(b));
    changed("network.listen", ports(a), ports(b));
    changed("network.loopback", a.network.loopback.to_string(), b.network.loopback.to_string());
    let (a_execute, b_execute) = (&a.filesystem.execute, &b.filesystem.execute);
    if a_execute.is_some() != b_execute.is_some() {
        changed("filesystem.execute", execute(a), execute(b));
    }
    let both = a_execute.as_ref().zip(b_execute.as_ref());
    let (a_execute, b_execute) = both.unwrap_or((NO_LIST, NO_LIST));
    let lists = [
        ("filesystem.read", &a.filesystem.read, &b.filesystem.read),
        ("filesystem.write", &a.filesystem.write, &b.filesystem.write),
        ("filesystem.execute", a_execute, b_execute),
        ("home.import", &a.home.import, &b.home.import),
        ("toolchains.detect", &a.toolchains.detect, &b.toolchains.detect),
        ("network.allow", &a.network.allow, &b.network.allow),
        ("network.deny", &a.network.deny, &b.network.deny),
        ("network.presets", &a.network.presets, &b.network.presets),
        ("environment.pass", &a.environment.pass, &b.environment.pass),
        ("environment.redact", &a.environment.redact, &b.environment.redact),
        ("git.trailers", &a.git.trailers, &b.git.trailers),
        ("worktree.copy", &a.worktree.copy, &b.worktree.copy),
        ("worktree.link_readonly", &a.worktree.link_readonly, &b.worktree.link_readonly),
    ];
    for (what, left, right) in lists {
        lines
            .extend(left.iter().filter(|item| !right.contains(item)).map(|item| format!("- {what}: {item}")));
        lines
            .extend(right.iter().filter(|item| !left.contains(item)).map(|item| format!("+ {what}: {item}")));
    }
    for (name, value) in &a.environment.set {
        match b.environment.set.iter().find(|(other, _)| other == name) {
            Some((_, other)) if other == value => {}
            Some((_, other)) => lines.push(format!("~ environment.set {name}: {value} → {other}")),
            None => lines.push(format!("- environment.set {name}: {value}")),
        }
    }
    let is_new = |name: &String| !a.environment.set.iter().any(|(known, _)| known == name);
    for (name, value) in b.environment.set.iter().filter(|(name, _)| is_new(name)) {
        lines.push(format!("+ environment.set {name}: {value}"));
    }
    for (key, value) in &a.limits.values {
        match b.limits.get(key) {
            Some(other) if other == *value => {}
            Some(other) => lines.push(format!("~ limits.{key}: {value} → {other}")),
            None => lines.push(format!("- limits.{key}: {value}")),
        }
    }
    for (key, value) in b.limits.values.iter().filter(|(key, _)| a.limits.get(key).is_none()) {
        lines.push(format!("+ limits.{key}: {value}"));
    }
    for rule in &a.rules {
        match b.rules.iter().find(|other| other.id == rule.id) {
            None => lines.push(format!("- rule {} ({})", rule.id, rule.action.name())),
            Some(other) => {
                let (old, new) = (described(rule), described(other));
                let told = [(&old, &new), (&rule.reason, &other.reason), (&rule.instead, &other.instead)];
                if other.action != rule.action {
                    lines.push(format!(
                        "~ rule {}: {} → {}",
                        rule.id,
                        rule.action.name(),
                        other.action.name()
                    ));
                } else if told.iter().any(|(left, right)| left != right) {
                    lines.push(format!("~ rule {} ({})", rule.id, rule.action.name()));
                }
                for (left, right) in told.iter().filter(|(left, right)| left != right) {
                    lines.push(format!("    - {left}"));
                    lines.push(format!("    + {right}"));
                }
            }
        }
    }
    for rule in b.rules.iter().filter(|rule| !a.rules.iter().any(|other| other.id == rule.id)) {
        lines.push(format!("+ rule {} ({}): {}", rule.id, rule.action.name(), described(rule)));
    }
    lines
}

/// One policy names what may be started and the other does not: there are no items to compare.
const NO_LIST: &Vec<String> = &Vec::new();

/// Where programs may be started from, in words.
pub fn execute(policy: &Policy) -> String {
    match &policy.filesystem.execute {
        None => "everything readable or writable".to_string(),
        Some(items) if items.is_empty() => "none".to_string(),
        Some(items) => items.join(" "),
    }
}

/// A rule's conditions on one line.
pub fn described(rule: &Rule) -> String {
    let when = &rule.when;
    let mut parts = Vec::new();
    let mut part = |name: &str, items: Vec<&str>| {
        if !items.is_empty() {
            parts.push(format!("{name} {}", items.join(" ")));
        }
    };
    part("program", when.programs.iter().map(|pattern| pattern.as_str()).collect());
    part("verb", when.verbs.iter().map(|pattern| pattern.as_str()).collect());
    part("subcommand", when.subcommands.iter().map(|pattern| pattern.as_str()).collect());
    part("flags", when.flags.iter().map(String::as_str).collect());
    part("unless_flags", when.unless_flags.iter().map(String::as_str).collect());
    part("args", when.args.iter().map(|pattern| pattern.as_str()).collect());
    part("unless_args", when.unless_args.iter().map(|pattern| pattern.as_str()).collect());
    part("paths", when.paths.iter().map(|pattern| pattern.as_str()).collect());
    part("unless_paths", when.unless_paths.iter().map(|pattern| pattern.as_str()).collect());
    match when.access {
        PathAccess::Any => {}
        PathAccess::Read => part("access", vec!["read"]),
        PathAccess::Write => part("access", vec!["write"]),
    }
    part("effects", when.effects.iter().flat_map(|effects| effects.names()).collect());
    part("only_effects", when.only_effects.iter().flat_map(|effects| effects.names()).collect());
    part("variables", when.variables.iter().map(|pattern| pattern.as_str()).collect());
    part("refs", when.refs.iter().map(|pattern| pattern.as_str()).collect());
    parts.join("; ")
}
