//! Finds settings in a repository's own configuration that name programs, or that name files outside the repository.

use std::path::Path;

use super::paths::{is_inside_repository, printable};
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::repository::Repository;
use crate::git::plumbing::setting::Setting;
use crate::git::workspace::quarantine::resolve_setting_path;

/// Adds a doubt (a reason to distrust the repository) for every setting of the repository that names a program or a
/// file outside the repository.
pub(crate) fn check_all(repository: &Repository, settings: &Settings, doubts: &mut Vec<String>) {
    let filtered = settings.has_global_filters();
    for setting in settings.repository_settings() {
        // Accept a setting that the user's global configuration also has, because then the user chose it.
        if is_doubtful(repository, filtered, setting) && !settings.is_also_global(setting) {
            let value = setting.value.as_deref().unwrap_or_default();
            doubts.push(format!("{} = {}", printable(setting.key.as_bytes()), printable(value)));
        }
    }
    // guard itself starts these programs outside the sandbox, when it writes and reads files of the worktree.
    let is_program = |setting: &&Setting| {
        let name = setting.key.rsplit('.').next().unwrap_or_default();
        setting.key.starts_with("filter.") && matches!(name, "clean" | "smudge" | "process")
    };
    for setting in settings.settings_from_runs().filter(is_program) {
        if !settings.is_also_global(setting) {
            let key = printable(setting.key.as_bytes());
            doubts.push(format!("{key}, in a file of your git configuration that a run could write"));
        }
    }
}

/// Adds a doubt (a reason to distrust the repository) for every setting of the repository that chooses programs for a
/// push, or servers that receive the user's credentials. The doubt contains only the setting's key, because the value
/// may be a credential.
pub(crate) fn check_push(settings: &Settings, doubts: &mut Vec<String>) {
    let own = settings.repository_settings().filter(|setting| is_doubtful_for_push(setting));
    let own = own.filter(|setting| !settings.is_also_global(setting));
    doubts.extend(own.map(|setting| printable(setting.key.as_bytes())));
}

fn is_doubtful_for_push(setting: &Setting) -> bool {
    let Some((section, rest)) = setting.key.split_once('.') else { return false };
    let name = rest.rsplit('.').next().unwrap_or(rest);
    match section {
        "core" => matches!(name, "sshcommand" | "askpass" | "gitproxy" | "alternaterefscommand"),
        "remote" => matches!(name, "receivepack" | "uploadpack" | "vcs" | "proxy"),
        "hook" => name == "command",
        // These settings decide which certificates and proxies git uses, and which credentials it sends.
        "http" | "credential" | "include" | "includeif" | "ssh" => true,
        _ => false,
    }
}

fn is_doubtful(repository: &Repository, filtered: bool, setting: &Setting) -> bool {
    let Some(value) = setting.value.as_deref().filter(|value| !value.is_empty()) else { return false };
    let Some((section, rest)) = setting.key.split_once('.') else { return false };
    let (part, name) = rest.rsplit_once('.').unwrap_or(("", rest));
    let leads_out = || {
        let path = resolve_setting_path(repository, value);
        path.symlink_metadata().is_ok() && !is_inside_repository(Path::new(&path), repository)
    };
    match (section, name) {
        ("filter", "clean" | "smudge" | "process") => true,
        // guard disables hooks by overriding the hooks directory, which does not affect hooks that are defined by
        // settings.
        ("hook", "command") => true,
        ("include" | "includeif", "path") => true,
        ("core", "hookspath" | "excludesfile" | "attributesfile") => leads_out(),
        // Newer versions of git accept a path to the refs after the name of the format.
        ("extensions", "refstorage") => value.contains(&b':'),
        // git-lfs starts the programs in these settings, and the user's own filter starts git-lfs.
        ("core", "sshcommand" | "askpass" | "gitproxy") | ("credential", "helper") => filtered,
        ("lfs", "standalonetransferagent") => filtered,
        ("lfs", "path") => filtered && part.starts_with("customtransfer."),
        ("lfs", "clean" | "smudge") => filtered && part.starts_with("extension."),
        ("lfs", "storage") => filtered && leads_out(),
        _ => false,
    }
}
