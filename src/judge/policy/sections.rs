//! Merges the sections of a policy file into the policy it extends.
//!
//! A policy file can remove grants but not add them, and can tighten limits and switches but not loosen them. A
//! violation is an error, or a note if the section contains `override`. Every `tighten` destructures its section
//! without `..`, so that the code does not compile if a key of the format is not merged here.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::diagnostic::Severity;
use super::host::{Host, HostEntry};
use super::keys::{
    BudgetSection, EnvironmentSection, FilesystemSection, GitSection, HomeSection, LimitsSection,
    NetworkSection, SandboxSection, ToolchainsSection, WorktreeSection,
};
use super::merge::Merger;
use super::model::{Action, Caches, DefaultAction, Limits, Namespaces, Place};
use super::parse::{File, Located};
use crate::judge::command::Limits as CommandLimits;

impl Merger {
    pub(super) fn sections(&mut self, file: &File) {
        file.filesystem.tighten(self);
        file.network.tighten(self);
        file.environment.tighten(self);
        file.limits.tighten(self);
        file.budget.tighten(self);
        file.sandbox.tighten(self);
        file.home.tighten(self);
        file.toolchains.tighten(self);
        file.worktree.tighten(self);
        file.git.tighten(self);
    }
}

impl FilesystemSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { read, write, execute, overrides } = self;
        let mut files = std::mem::take(&mut merger.policy.filesystem);
        // The paths from which the extended policy allows execution, even if no file lists them under `execute`.
        let mut executable: Vec<String> = files.executable().into_iter().map(str::to_string).collect();
        merger.grants("read", read.as_ref(), &mut files.read, *overrides);
        merger.grants("write", write.as_ref(), &mut files.write, *overrides);
        if merger.grants("execute", execute.as_ref(), &mut executable, *overrides) {
            files.execute = Some(executable);
        }
        merger.policy.filesystem = files;
    }
}

impl NetworkSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { allow, deny, presets, resolve, loopback, listen, overrides } = self;
        let mut network = std::mem::take(&mut merger.policy.network);
        merger.host_grants(allow.as_ref(), &mut network.allow, *overrides);
        merger.grants("presets", presets.as_ref(), &mut network.presets, *overrides);
        let mut ports: Vec<String> = network.listen.iter().map(u16::to_string).collect();
        if merger.grants("listen", listen.as_ref(), &mut ports, *overrides) {
            network.listen = ports.iter().filter_map(|port| port.parse().ok()).collect();
        }
        if let Some(list) = deny {
            // Denied hosts accumulate: an extending policy cannot remove one.
            let more = list.value.iter().map(|item| item.value.clone());
            network.deny.extend(more.filter(|item| !network.deny.contains(item)).collect::<Vec<_>>());
        }
        for (name, value) in resolve.iter().flatten() {
            merger.pin(name, value, &mut network.resolve, *overrides);
        }
        if let Some(flag) = loopback {
            merger.only_tighter("loopback", flag, !network.loopback, !flag.value, *overrides);
            network.loopback = flag.value;
        }
        merger.policy.network = network;
    }
}

impl EnvironmentSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { pass, set, redact, overrides } = self;
        let mut environment = std::mem::take(&mut merger.policy.environment);
        merger.grants("pass", pass.as_ref(), &mut environment.pass, *overrides);
        if let Some(list) = redact {
            // Redacted variables accumulate: an extending policy cannot remove one.
            environment.redact.extend(list.value.iter().map(|item| item.value.clone()));
        }
        for (name, value) in set.iter().flatten() {
            let known = environment.set.iter().find(|(known, _)| *known == name.value);
            if merger.level > 0 && known.map(|(_, value)| value) != Some(value) {
                let what = format!("the variable `{}`", name.value);
                merger.loosened(name.span.clone(), &what, *overrides);
            }
            environment.set.retain(|(known, _)| *known != name.value);
            environment.set.push((name.value.clone(), value.clone()));
        }
        merger.policy.environment = environment;
    }
}

impl LimitsSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self {
            idle_seconds,
            total_seconds,
            processes,
            open_files,
            memory_mib,
            file_mib,
            output_mib,
            connections,
            upload_mib,
            download_mib,
            network_kib_per_second,
            command_bytes,
            command_depth,
            overrides,
        } = self;
        let defaults = CommandLimits::default();
        let size = |size: usize| i64::try_from(size).ok();
        // Each key, its value in this file, and the limit that guard itself applies if no policy sets the key.
        let keys = [
            ("idle_seconds", idle_seconds, None),
            ("total_seconds", total_seconds, None),
            ("processes", processes, None),
            ("open_files", open_files, None),
            ("memory_mib", memory_mib, None),
            ("file_mib", file_mib, None),
            ("output_mib", output_mib, None),
            ("connections", connections, None),
            ("upload_mib", upload_mib, None),
            ("download_mib", download_mib, None),
            ("network_kib_per_second", network_kib_per_second, None),
            ("command_bytes", command_bytes, size(defaults.bytes)),
            ("command_depth", command_depth, size(defaults.depth)),
        ];
        let mut limits = std::mem::take(&mut merger.policy.limits);
        for (key, number, unset) in keys {
            let Some(number) = number else { continue };
            if let Some(current) = limits.get(key).or(unset) {
                // A lower limit is tighter; 0 means unlimited.
                let bound = |value: i64| Reverse(if value == 0 { i64::MAX } else { value });
                merger.only_tighter(key, number, bound(current), bound(number.value), *overrides);
            }
            set_limit(&mut limits, key, number.value);
        }
        merger.policy.limits = limits;
    }
}

impl BudgetSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { max_tokens, max_requests, max_cost, overrides } = self;
        let mut budget = merger.policy.budget;
        for (key, number, current) in [
            ("max_tokens", max_tokens, &mut budget.max_tokens),
            ("max_requests", max_requests, &mut budget.max_requests),
            ("max_cost", max_cost, &mut budget.max_cost_micros),
        ] {
            let Some(number) = number else { continue };
            let new_value = u64::try_from(number.value).unwrap_or_default();
            if let Some(current) = current.replace(new_value) {
                merger.only_tighter(key, number, Reverse(current), Reverse(new_value), *overrides);
            }
        }
        merger.policy.budget = budget;
    }
}

impl SandboxSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { namespaces, verify_exec, overrides } = self;
        let mut sandbox = merger.policy.sandbox.clone();
        if let Some(text) = namespaces
            && let Some(new_value) = Namespaces::named(&text.value)
        {
            merger.only_tighter("namespaces", text, sandbox.namespaces, new_value, *overrides);
            sandbox.namespaces = new_value;
        }
        if let Some(flag) = verify_exec {
            merger.only_tighter("verify_exec", flag, sandbox.verify_exec, flag.value, *overrides);
            sandbox.verify_exec = flag.value;
        }
        merger.policy.sandbox = sandbox;
    }
}

impl HomeSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { import, overrides } = self;
        let mut home = std::mem::take(&mut merger.policy.home);
        merger.grants("import", import.as_ref(), &mut home.import, *overrides);
        merger.policy.home = home;
    }
}

impl ToolchainsSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { detect, caches, overrides } = self;
        let mut toolchains = merger.policy.toolchains.clone();
        merger.grants("detect", detect.as_ref(), &mut toolchains.detect, *overrides);
        if let Some(text) = caches
            && let Some(new_value) = Caches::named(&text.value)
        {
            merger.only_tighter("caches", text, toolchains.caches, new_value, *overrides);
            toolchains.caches = new_value;
        }
        merger.policy.toolchains = toolchains;
    }
}

impl WorktreeSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self { root, copy, link_readonly, overrides } = self;
        let mut worktree = std::mem::take(&mut merger.policy.worktree);
        merger.grants("copy", copy.as_ref(), &mut worktree.copy, *overrides);
        merger.grants("link_readonly", link_readonly.as_ref(), &mut worktree.link_readonly, *overrides);
        // The root directory of worktrees grants nothing, so any file may change it.
        if let Some(text) = root {
            worktree.root = Some(text.value.clone());
        }
        merger.policy.worktree = worktree;
    }
}

impl GitSection {
    fn tighten(&self, merger: &mut Merger) {
        let Self {
            // The default action is merged together with the default action of the whole policy.
            default_action: _,
            other_action,
            branch_prefix,
            trailers,
            sign,
            identity,
            hooks,
            receive_mib,
            overrides,
        } = self;
        if let Some(text) = other_action {
            merger.git_other_action(text, *overrides);
        }
        if let Some(text) = branch_prefix {
            merger.branch_prefix(text, *overrides);
        }
        if let Some(text) = identity {
            merger.identity(text, *overrides);
        }
        let mut git = std::mem::take(&mut merger.policy.git);
        if let Some(list) = trailers {
            let trailers: Vec<String> = list.value.iter().map(|item| item.value.clone()).collect();
            if git.trailers.iter().any(|known| !trailers.contains(known)) {
                merger.loosened(list.span.clone(), "`trailers`", *overrides);
            }
            git.trailers = trailers;
        }
        for (key, flag, current) in [("sign", sign, &mut git.sign), ("hooks", hooks, &mut git.hooks)] {
            let Some(flag) = flag else { continue };
            let before = std::mem::replace(current, flag.value);
            merger.only_tighter(key, flag, before, flag.value, *overrides);
        }
        if let Some(number) = receive_mib {
            let (before, new_value) = (Reverse(git.receive_mib), Reverse(number.value));
            merger.only_tighter("receive_mib", number, before, new_value, *overrides);
            git.receive_mib = number.value;
        }
        merger.policy.git = git;
    }
}

impl Merger {
    fn git_other_action(&mut self, text: &Located<String>, overrides: bool) {
        let Some(new_value) = Action::named(&text.value) else { return };
        self.only_tighter("other_action", text, self.policy.git_other_action.action, new_value, overrides);
        let place = Place { source: self.level, span: text.span.clone() };
        self.policy.git_other_action = DefaultAction { action: new_value, place: Some(place) };
    }

    fn identity(&mut self, text: &Located<String>, overrides: bool) {
        let parts = text.value.strip_suffix('>').and_then(|rest| rest.split_once(" <"));
        let is_plain = |part: &str| !part.trim().is_empty() && !part.contains(['<', '>', '\n', '\0']);
        let Some((name, mail)) = parts.filter(|(name, mail)| is_plain(name) && is_plain(mail)) else {
            let message = "write an identity as `Name <mail>`".to_string();
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
            self.loosened(text.span.clone(), "`identity`", overrides);
        }
        self.policy.git.identity = identity;
    }

    fn branch_prefix(&mut self, text: &Located<String>, overrides: bool) {
        let prefix = text.value.as_str();
        if !is_branch_prefix(prefix) {
            let message = "a branch prefix must be part of a valid branch name and end in `/`".to_string();
            self.problem(Severity::Error, text.span.clone(), message, "such as `task/`", None);
        }
        if self.level > 0 && self.policy.git.branch_prefix != prefix {
            self.loosened(text.span.clone(), "`branch_prefix`", overrides);
        }
        self.policy.git.branch_prefix = prefix.to_string();
    }

    /// If this file extends another, reports a value that is looser than the current one. `T` is ordered from loose to
    /// tight.
    fn only_tighter<V, T: Ord + Copy>(
        &mut self,
        key: &str,
        at: &Located<V>,
        current: T,
        new_value: T,
        overrides: bool,
    ) {
        if self.level > 0 && new_value < current {
            self.loosened(at.span.clone(), &format!("`{key}`"), overrides);
        }
    }

    /// Merges the allowed hosts: an extending policy may remove entries or narrow them.
    fn host_grants(
        &mut self,
        list: Option<&Located<Vec<Located<String>>>>,
        current: &mut Vec<String>,
        overrides: bool,
    ) {
        let Some(list) = list else { return };
        let known: Vec<HostEntry> = current.iter().filter_map(|text| HostEntry::parse(text).ok()).collect();
        for item in &list.value {
            // The parser has already reported an invalid entry.
            let Ok(entry) = HostEntry::parse(&item.value) else { continue };
            if self.level > 0 && !known.iter().any(|wide| wide.covers(&entry)) {
                self.loosened(item.span.clone(), &format!("`{}` in `allow`", item.value), overrides);
            }
        }
        *current = list.value.iter().map(|item| item.value.clone()).collect();
    }

    /// Merges a fixed address for a host name. A new or different address counts as loosening, because it determines
    /// which host the run reaches.
    fn pin(
        &mut self,
        name: &Located<String>,
        value: &str,
        pins: &mut Vec<(String, IpAddr)>,
        overrides: bool,
    ) {
        let host = Host::parse(&name.value);
        let (Ok(Host::Name(host)), Ok(address)) = (host, value.parse::<IpAddr>()) else {
            let message = format!(
                "the entry `{}` needs a host name and an IP address: `\"name\" = \"10.1.2.3\"`",
                name.value
            );
            self.problem(Severity::Error, name.span.clone(), message, "invalid name or address", None);
            return;
        };
        let known = pins.iter().find(|(known, _)| *known == host).map(|(_, address)| *address);
        if self.level > 0 && known != Some(address) {
            self.loosened(name.span.clone(), &format!("the address of `{host}`"), overrides);
        }
        pins.retain(|(known, _)| *known != host);
        pins.push((host, address));
    }

    /// Merges a list of grants: an extending policy may remove some but not add any. Returns true if the section
    /// contains the list.
    fn grants(
        &mut self,
        key: &str,
        list: Option<&Located<Vec<Located<String>>>>,
        current: &mut Vec<String>,
        overrides: bool,
    ) -> bool {
        let Some(list) = list else { return false };
        for item in &list.value {
            if self.level > 0 && !current.iter().any(|known| covers(known, &item.value)) {
                let what = format!("`{}` in `{key}`", item.value);
                self.loosened(item.span.clone(), &what, overrides);
            }
        }
        *current = list.value.iter().map(|item| item.value.clone()).collect();
        true
    }
}

fn set_limit(limits: &mut Limits, key: &'static str, value: i64) {
    match limits.values.iter_mut().find(|(known, _)| *known == key) {
        Some((_, current)) => *current = value,
        None => limits.values.push((key, value)),
    }
}

/// Returns true if the grant `wide` includes the grant `narrow`: it is the same text, a parent directory, or a pattern
/// that ends in `*` and matches `narrow`.
fn covers(wide: &str, narrow: &str) -> bool {
    if wide == narrow {
        return true;
    }
    let climbs = narrow.split('/').any(|part| part == "..");
    if wide.starts_with('/') || wide.starts_with('{') {
        let directory = wide.trim_end_matches('/');
        return !climbs && narrow.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    }
    wide.strip_suffix('*').is_some_and(|prefix| narrow.starts_with(prefix))
}

/// Returns true if a text is a valid prefix for branch names, such as `task/`.
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
