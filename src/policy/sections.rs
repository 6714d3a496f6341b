//! The sections of a policy file, merged into what the file extends: what each key means when it is said again.
//!
//! Grants can be left out, not added; bounds and switches can be tightened, not loosened. What a section does otherwise
//! is an error, or a note when it says `override`.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::diagnostic::Severity;
use super::host::{Host, HostEntry};
use super::merge::Merger;
use super::model::{Action, Caches, Default, Limits, Namespaces, Place};
use super::reader::{At, File, Section};
use crate::command::Limits as CommandLimits;

impl Merger {
    /// All sections of a file.
    pub(super) fn sections(&mut self, file: &File) {
        self.filesystem(&file.filesystem);
        self.network(&file.network);
        self.environment(&file.environment);
        self.limits(&file.limits);
        self.budget(&file.budget);
        self.sandbox(&file.sandbox);
        self.home(&file.home);
        self.toolchains(&file.toolchains);
        self.worktree(&file.worktree);
        self.git(&file.git);
    }

    fn filesystem(&mut self, section: &Section) {
        let mut files = std::mem::take(&mut self.policy.filesystem);
        // What programs could be started from so far, also where that was not said.
        let mut execute: Vec<String> = files.executable().into_iter().map(str::to_string).collect();
        self.grants(section, "read", &mut files.read);
        self.grants(section, "write", &mut files.write);
        if self.grants(section, "execute", &mut execute) {
            files.execute = Some(execute);
        }
        self.policy.filesystem = files;
    }

    fn network(&mut self, section: &Section) {
        let mut network = std::mem::take(&mut self.policy.network);
        self.host_grants(section, &mut network.allow);
        self.grants(section, "presets", &mut network.presets);
        let mut listen: Vec<String> = network.listen.iter().map(u16::to_string).collect();
        if self.grants(section, "listen", &mut listen) {
            network.listen = listen.iter().filter_map(|port| port.parse().ok()).collect();
        }
        for (_, list) in section.lists.iter().filter(|(key, _)| *key == "deny") {
            // What is closed stays closed.
            let more = list.value.iter().map(|item| item.value.clone());
            network.deny.extend(more.filter(|item| !network.deny.contains(item)).collect::<Vec<_>>());
        }
        for (name, value) in &section.map {
            self.pin(section, name, value, &mut network.resolve);
        }
        for (key, flag) in &section.flags {
            self.only_tighter(section, key, flag, !network.loopback, !flag.value);
            network.loopback = flag.value;
        }
        self.policy.network = network;
    }

    fn environment(&mut self, section: &Section) {
        let mut environment = std::mem::take(&mut self.policy.environment);
        self.grants(section, "pass", &mut environment.pass);
        for (_, list) in section.lists.iter().filter(|(key, _)| *key == "redact") {
            // What is hidden stays hidden.
            environment.redact.extend(list.value.iter().map(|item| item.value.clone()));
        }
        for (name, value) in &section.map {
            let known = environment.set.iter().find(|(known, _)| *known == name.value);
            if self.level > 0 && known.map(|(_, value)| value) != Some(value) {
                let what = format!("the variable `{}`", name.value);
                self.loosened(name.span.clone(), &what, section.overrides);
            }
            environment.set.retain(|(known, _)| *known != name.value);
            environment.set.push((name.value.clone(), value.clone()));
        }
        self.policy.environment = environment;
    }

    fn limits(&mut self, section: &Section) {
        let mut limits = std::mem::take(&mut self.policy.limits);
        for (key, number) in &section.numbers {
            if let Some(current) = limits.get(key).or(unset_limit(key)) {
                // A lower bound is the tighter one; 0 is none.
                let bound = |value: i64| Reverse(if value == 0 { i64::MAX } else { value });
                self.only_tighter(section, key, number, bound(current), bound(number.value));
            }
            set_limit(&mut limits, key, number.value);
        }
        self.policy.limits = limits;
    }

    fn budget(&mut self, section: &Section) {
        let mut budget = self.policy.budget;
        for (key, number) in &section.numbers {
            let place = match *key {
                "max_tokens" => &mut budget.max_tokens,
                "max_requests" => &mut budget.max_requests,
                _ => &mut budget.max_cost_micros,
            };
            let said = u64::try_from(number.value).unwrap_or_default();
            if let Some(current) = place.replace(said) {
                self.only_tighter(section, key, number, Reverse(current), Reverse(said));
            }
        }
        self.policy.budget = budget;
    }

    fn sandbox(&mut self, section: &Section) {
        let mut sandbox = self.policy.sandbox.clone();
        for (key, text) in &section.texts {
            if let Some(said) = Namespaces::named(&text.value) {
                self.only_tighter(section, key, text, sandbox.namespaces, said);
                sandbox.namespaces = said;
            }
        }
        for (key, flag) in &section.flags {
            self.only_tighter(section, key, flag, sandbox.verify_exec, flag.value);
            sandbox.verify_exec = flag.value;
        }
        self.policy.sandbox = sandbox;
    }

    fn home(&mut self, section: &Section) {
        let mut import = std::mem::take(&mut self.policy.home.import);
        self.grants(section, "import", &mut import);
        self.policy.home.import = import;
    }

    fn toolchains(&mut self, section: &Section) {
        let mut toolchains = self.policy.toolchains.clone();
        self.grants(section, "detect", &mut toolchains.detect);
        for (key, text) in &section.texts {
            if let Some(said) = Caches::named(&text.value) {
                self.only_tighter(section, key, text, toolchains.caches, said);
                toolchains.caches = said;
            }
        }
        self.policy.toolchains = toolchains;
    }

    fn worktree(&mut self, section: &Section) {
        let mut worktree = std::mem::take(&mut self.policy.worktree);
        self.grants(section, "copy", &mut worktree.copy);
        self.grants(section, "link_readonly", &mut worktree.link_readonly);
        // Where a worktree lies grants nothing.
        for (_, text) in &section.texts {
            worktree.root = Some(text.value.clone());
        }
        self.policy.worktree = worktree;
    }

    fn git(&mut self, section: &Section) {
        for (key, text) in &section.texts {
            match *key {
                "branch_prefix" => self.branch_prefix(section, text),
                "identity" => self.identity(section, text),
                _ => self.other_action(section, key, text),
            }
        }
        let mut git = std::mem::take(&mut self.policy.git);
        for (_, list) in &section.lists {
            let trailers: Vec<String> = list.value.iter().map(|item| item.value.clone()).collect();
            if git.trailers.iter().any(|known| !trailers.contains(known)) {
                self.loosened(list.span.clone(), "`trailers`", section.overrides);
            }
            git.trailers = trailers;
        }
        for (key, flag) in &section.flags {
            let current = if *key == "sign" { &mut git.sign } else { &mut git.hooks };
            let before = std::mem::replace(current, flag.value);
            self.only_tighter(section, key, flag, before, flag.value);
        }
        for (key, number) in &section.numbers {
            self.only_tighter(section, key, number, Reverse(git.receive_mib), Reverse(number.value));
            git.receive_mib = number.value;
        }
        self.policy.git = git;
    }

    fn other_action(&mut self, section: &Section, key: &str, text: &At<String>) {
        let Some(said) = Action::named(&text.value) else { return };
        self.only_tighter(section, key, text, self.policy.git_other_action.action, said);
        let place = Place { source: self.level, span: text.span.clone() };
        self.policy.git_other_action = Default { action: said, place: Some(place) };
    }

    fn identity(&mut self, section: &Section, text: &At<String>) {
        let parts = text.value.strip_suffix('>').and_then(|rest| rest.split_once(" <"));
        let is_plain = |part: &str| !part.trim().is_empty() && !part.contains(['<', '>', '\n', '\0']);
        let Some((name, mail)) = parts.filter(|(name, mail)| is_plain(name) && is_plain(mail)) else {
            let message = "an identity is `Name <mail>`".to_string();
            self.problem(
                Severity::Error,
                text.span.clone(),
                message,
                "such as `Agent <agent@example.org>`",
                None,
            );
            return;
        };
        let identity = Some((name.to_string(), mail.to_string()));
        if self.level > 0 && self.policy.git.identity.is_some() && self.policy.git.identity != identity {
            self.loosened(text.span.clone(), "`identity`", section.overrides);
        }
        self.policy.git.identity = identity;
    }

    fn branch_prefix(&mut self, section: &Section, text: &At<String>) {
        let prefix = text.value.as_str();
        if !is_branch_prefix(prefix) {
            let message = "a branch prefix ends in `/`".to_string();
            self.problem(Severity::Error, text.span.clone(), message, "such as `task/`", None);
        }
        if self.level > 0 && self.policy.git.branch_prefix != prefix {
            self.loosened(text.span.clone(), "`branch_prefix`", section.overrides);
        }
        self.policy.git.branch_prefix = prefix.to_string();
    }

    /// Reports a value that is looser than the one in force so far, by an order from loose to tight.
    fn only_tighter<V, T: Ord + Copy>(
        &mut self,
        section: &Section,
        key: &str,
        at: &At<V>,
        current: T,
        said: T,
    ) {
        if self.level > 0 && said < current {
            self.loosened(at.span.clone(), &format!("`{key}`"), section.overrides);
        }
    }

    /// The hosts that may be reached: an extending policy may leave some out or name a part of one.
    fn host_grants(&mut self, section: &Section, current: &mut Vec<String>) {
        let Some((_, list)) = section.lists.iter().find(|(known, _)| *known == "allow") else { return };
        let known: Vec<HostEntry> = current.iter().filter_map(|text| HostEntry::parse(text).ok()).collect();
        for item in &list.value {
            // One that means nothing was told by the reader.
            let Ok(entry) = HostEntry::parse(&item.value) else { continue };
            if self.level > 0 && !known.iter().any(|wide| wide.covers(&entry)) {
                self.loosened(item.span.clone(), &format!("`{}` in `allow`", item.value), section.overrides);
            }
        }
        *current = list.value.iter().map(|item| item.value.clone()).collect();
    }

    /// A name with its address: where a name leads decides who is reached.
    fn pin(&mut self, section: &Section, name: &At<String>, value: &str, pins: &mut Vec<(String, IpAddr)>) {
        let host = Host::parse(&name.value);
        let (Ok(Host::Name(host)), Ok(address)) = (host, value.parse::<IpAddr>()) else {
            let message = format!("`{}` is resolved to an address: `\"name\" = \"10.1.2.3\"`", name.value);
            self.problem(Severity::Error, name.span.clone(), message, "not a name with its address", None);
            return;
        };
        let known = pins.iter().find(|(known, _)| *known == host).map(|(_, address)| *address);
        if self.level > 0 && known != Some(address) {
            self.loosened(name.span.clone(), &format!("the address of `{host}`"), section.overrides);
        }
        pins.retain(|(known, _)| *known != host);
        pins.push((host, address));
    }

    /// A list of grants: an extending policy may leave some out, not add any. Says whether the section has the list.
    fn grants(&mut self, section: &Section, key: &str, current: &mut Vec<String>) -> bool {
        let Some((_, list)) = section.lists.iter().find(|(known, _)| *known == key) else { return false };
        for item in &list.value {
            if self.level > 0 && !current.iter().any(|known| covers(known, &item.value)) {
                let what = format!("`{}` in `{key}`", item.value);
                self.loosened(item.span.clone(), &what, section.overrides);
            }
        }
        *current = list.value.iter().map(|item| item.value.clone()).collect();
        true
    }
}

/// What a limit that nobody set means: the program's own bounds.
fn unset_limit(key: &str) -> Option<i64> {
    let defaults = CommandLimits::default();
    match key {
        "command_bytes" => i64::try_from(defaults.bytes).ok(),
        "command_depth" => i64::try_from(defaults.depth).ok(),
        _ => None,
    }
}

fn set_limit(limits: &mut Limits, key: &'static str, value: i64) {
    match limits.values.iter_mut().find(|(known, _)| *known == key) {
        Some((_, current)) => *current = value,
        None => limits.values.push((key, value)),
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
    wide.strip_suffix('*').is_some_and(|prefix| narrow.starts_with(prefix))
}

/// Whether branch names can begin with this: `task/`.
pub fn is_branch_prefix(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.ends_with(".lock")
            && part.chars().all(is_plain)
    };
    let parts = text.strip_suffix('/').unwrap_or_default();
    parts.split('/').all(is_part) && !text.contains("..")
}
