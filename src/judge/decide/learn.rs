//! Writes the smallest policy that allows the actions observed in a run. Does no I/O: takes observations and returns
//! text.
//!
//! The new policy extends another policy and tightens it to an allow-list: it denies every program that it does not
//! name. If the extended policy denies a command that the run needed, one rule for that command lifts the denial.
//! Everything else that the extended policy denies stays denied.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::allow_with::{ALLOW_IDS, AllowRule, CannotAllow, rule_for};
use super::{analyze, rule_on};
use crate::judge::command::{Context, Request};
use crate::judge::policy::{Action, Policy};

/// If the run used at least this many hosts directly below the same domain, on the same port, the policy allows all
/// names below that domain on that port.
const HOSTS_TO_GENERALIZE: usize = 3;

/// A program start that guard recorded during a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenCommand {
    /// The program's arguments, starting with its name.
    pub argv: Vec<Vec<u8>>,
    /// The path of the file that was executed.
    pub program: Vec<u8>,
    pub cwd: Vec<u8>,
}

/// The actions that guard recorded during one or more runs.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub commands: Vec<SeenCommand>,
    /// Hosts and ports to which a run connected or tried to connect; port 0 if the run only looked up the name.
    pub hosts: BTreeSet<(String, u16)>,
    /// Loopback ports on which programs of the run listened.
    pub ports: BTreeSet<u16>,
}

/// A policy that guard derived from recorded actions.
#[derive(Debug, Clone)]
pub struct Learned {
    /// The text of the policy file.
    pub text: String,
    /// Messages about commands that no rule can allow, each with the reason; at most 100. Commands that write outside
    /// the directories of a run are not among them.
    pub left_out: Vec<String>,
}

/// The file name of the shim program. The shims are links to this file.
const SHIM: &[u8] = b"guard-shim";

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Returns the text of the policy `name`, which extends `base` and allows the actions in `seen`. guard judges every
/// command in `context`, but with the command's own working directory.
pub fn learn(base: &Policy, name: &str, seen: &Seen, context: &Context) -> Learned {
    let mut programs: BTreeMap<String, String> = BTreeMap::new();
    let mut rules: Vec<AllowRule> = Vec::new();
    let mut left_out: Vec<String> = Vec::new();
    for command in &seen.commands {
        // A shim is guard's own file. Ignore its path, because `argv` contains the name of the program that the shim
        // replaces.
        let resolved = Some(command.program.clone()).filter(|path| file_name(path) != SHIM);
        // A command may start a program by a link, such as python3, to a file with another name, such as python3.11.
        // Allow both names.
        if let (Some(typed), Some(program)) = (command.argv.first(), &resolved)
            && file_name(typed) != file_name(program)
        {
            let name = String::from_utf8_lossy(file_name(typed)).into_owned();
            programs.entry(name.clone()).or_insert(name);
        }
        let context = Context {
            cwd: crate::judge::command::Cwd::Known(command.cwd.clone()),
            resolved,
            limits: base.command_limits(),
            ..context.clone()
        };
        let analysis = analyze(&Request::Argv(command.argv.clone()), &context);
        for intent in &analysis.intents {
            let example = intent.line();
            if intent.git.is_some() {
                // Also allow `cat`: agents set it as git's pager in an environment variable, which the record of a
                // program start does not contain.
                programs.entry("cat".to_string()).or_insert_with(|| "the pager of git".to_string());
            } else if !intent.program.name.is_empty() {
                let name = String::from_utf8_lossy(&intent.program.name).into_owned();
                programs.entry(name).or_insert_with(|| example.clone());
            }
            // `learned.programs` lifts the learned policy's default. Add another rule only for what the base policy
            // itself does not allow.
            if rule_on(base, None, intent).action == Action::Allow {
                continue;
            }
            match rule_for(base, intent, &example) {
                Ok(rule) => merge(&mut rules, rule),
                Err(CannotAllow::Outside(_)) => {}
                Err(error) if left_out.len() < 100 => left_out.push(error.to_string()),
                Err(_) => {}
            }
        }
    }
    left_out.sort();
    left_out.dedup();
    Learned { text: render(base, name, &programs, &rules, seen), left_out }
}

/// Adds a rule to the list. If the list has a rule with the same id, extends that rule instead.
fn merge(rules: &mut Vec<AllowRule>, rule: AllowRule) {
    match rules.iter_mut().find(|known| known.id() == rule.id()) {
        Some(known) => known.absorb(&rule),
        None => rules.push(rule),
    }
}

fn render(
    base: &Policy,
    name: &str,
    programs: &BTreeMap<String, String>,
    rules: &[AllowRule],
    seen: &Seen,
) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_string()).to_string();
    let mut text = crate::judge::policy::new_file(
        name,
        &base.name,
        "Learned from runs: allows what they did and no more.",
    );
    text.push_str("# Every program that no rule names is denied.\ndefault_action = \"deny\"\n");
    let (hosts, ports) = (generalize(&seen.hosts), &seen.ports);
    if !hosts.is_empty() || !ports.is_empty() {
        text.push_str("\n[network]\noverride = true\n");
        if !hosts.is_empty() {
            let _ = writeln!(text, "# Observed pairs of host and port: {}.", seen.hosts.len());
            let hosts: Vec<String> = hosts.iter().map(|host| quoted(host)).collect();
            let _ = writeln!(text, "allow = [{}]", hosts.join(", "));
        }
        if !ports.is_empty() {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "listen = [{}]", ports.join(", "));
        }
    }
    if !programs.is_empty() {
        text.push_str("\n[[command]]\nid = \"learned.programs\"\nprogram = [\n");
        for (program, example) in programs {
            let shown = crate::text::terminal_text::shorten(example, 80);
            let _ =
                writeln!(text, "    {}, # {}", quoted(&super::allow_with::escaped(program)), comment(&shown));
        }
        text.push_str("]\naction = \"allow\"\noverride = true\n");
        text.push_str("reason = \"guard saw these programs in a learning run.\"\n");
    }
    let is_taken = |id: &str| base.rules.iter().any(|rule| rule.id == id);
    for rule in rules {
        text.push('\n');
        text.push_str(&rule.to_toml(ALLOW_IDS, "guard saw this command in a learning run.", is_taken));
    }
    text
}

/// Makes a text safe for use in a TOML comment: replaces line breaks and control characters.
fn comment(text: &str) -> String {
    crate::text::terminal_text::replace(text).replace(['\n', '\r'], " ")
}

/// Converts hosts to entries of a policy. Replaces [`HOSTS_TO_GENERALIZE`] or more names below one domain, on the same
/// port, by one entry for all names below it.
fn generalize(hosts: &BTreeSet<(String, u16)>) -> Vec<String> {
    let parent = |host: &str| {
        let (_, parent) = host.split_once('.')?;
        // Skip top-level domains and IP addresses.
        (parent.contains('.') && host.parse::<std::net::IpAddr>().is_err()).then(|| parent.to_string())
    };
    let mut below: BTreeMap<(String, u16), usize> = BTreeMap::new();
    for (host, port) in hosts {
        if let Some(parent) = parent(host) {
            *below.entry((parent, *port)).or_default() += 1;
        }
    }
    let mut entries = BTreeSet::new();
    for (host, port) in hosts {
        let shared = parent(host).filter(|parent| below[&(parent.clone(), *port)] >= HOSTS_TO_GENERALIZE);
        entries.insert(match (shared, port) {
            (Some(parent), 22) => format!("raw *.{parent}:22"),
            (Some(parent), 0) => format!("*.{parent}"),
            (Some(parent), port) => format!("*.{parent}:{port}"),
            (None, 22) => format!("raw {host}:22"),
            (None, 0) => host.clone(),
            (None, port) => format!("{host}:{port}"),
        });
    }
    entries.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_for_several_names_is_valid_on_every_port() {
        for port in [0, 22, 443] {
            let names = ["a", "b", "c"].map(|name| (format!("{name}.x.example"), port));
            let entries = generalize(&BTreeSet::from(names));
            assert_eq!(entries.len(), 1, "{entries:?}");
            assert!(crate::judge::policy::HostEntry::parse(&entries[0]).is_ok(), "{entries:?}");
        }
    }

    #[test]
    fn several_names_of_a_domain_become_one_entry() {
        let hosts =
            |names: &[(&str, u16)]| names.iter().map(|(name, port)| (name.to_string(), *port)).collect();
        assert_eq!(
            generalize(&hosts(&[
                ("a.x.example", 443),
                ("b.x.example", 443),
                ("c.x.example", 443),
                ("y.example", 443)
            ])),
            ["*.x.example:443", "y.example:443"]
        );
        assert_eq!(
            generalize(&hosts(&[("a.example", 443), ("b.example", 443), ("c.example", 443)])).len(),
            3
        );
        assert_eq!(generalize(&hosts(&[("10.0.0.1", 22)])), ["raw 10.0.0.1:22"]);
    }
}
