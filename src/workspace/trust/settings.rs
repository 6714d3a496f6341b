//! Finds settings in a repository's own configuration that name programs, or files outside the repository.

use std::path::Path;

use super::{inside, shown};
use crate::workspace::git::config::{Setting, Settings};
use crate::workspace::git::repository::Repository;
use crate::workspace::run::quarantine::settings_path;

pub(crate) fn all(repository: &Repository, settings: &Settings, doubts: &mut Vec<String>) {
    let filtered = settings.has_filters_of_users();
    for setting in settings.of_repository() {
        // A setting that the user also has for every repository is the user's own.
        if is_doubtful(repository, filtered, setting) && !settings.is_users(setting) {
            let value = setting.value.as_deref().unwrap_or_default();
            doubts.push(format!("{} = {}", shown(setting.key.as_bytes()), shown(value)));
        }
    }
}

/// Finds settings that affect a push: what it would start, and who would receive the user's credentials.
/// Reports only keys, because values may be credentials themselves.
pub(crate) fn of_push(settings: &Settings, doubts: &mut Vec<String>) {
    let own = settings.of_repository().filter(|setting| is_doubtful_for_push(setting));
    doubts.extend(
        own.filter(|setting| !settings.is_users(setting)).map(|setting| shown(setting.key.as_bytes())),
    );
}

fn is_doubtful_for_push(setting: &Setting) -> bool {
    let Some((section, rest)) = setting.key.split_once('.') else { return false };
    let name = rest.rsplit('.').next().unwrap_or(rest);
    match section {
        "core" => matches!(name, "sshcommand" | "askpass" | "gitproxy" | "alternaterefscommand"),
        "remote" => matches!(name, "receivepack" | "uploadpack" | "vcs" | "proxy"),
        "hook" => name == "command",
        // These decide which certificates are trusted, which proxy is used, and which credentials are sent.
        "http" | "credential" | "include" | "includeif" | "ssh" => true,
        _ => false,
    }
}

fn is_doubtful(repository: &Repository, filtered: bool, setting: &Setting) -> bool {
    let Some(value) = setting.value.as_deref().filter(|value| !value.is_empty()) else { return false };
    let Some((section, rest)) = setting.key.split_once('.') else { return false };
    let (part, name) = rest.rsplit_once('.').unwrap_or(("", rest));
    let leads_out = || {
        let path = settings_path(repository, value);
        path.symlink_metadata().is_ok() && !inside(Path::new(&path), repository)
    };
    match (section, name) {
        ("filter", "clean" | "smudge" | "process") => true,
        // Hooks defined by settings: overriding the hooks directory does not disable them.
        ("hook", "command") => true,
        ("include" | "includeif", "path") => true,
        ("core", "hookspath" | "excludesfile" | "attributesfile") => leads_out(),
        // A path for refs, which newer versions of git accept after the format's name.
        ("extensions", "refstorage") => value.contains(&b':'),
        // git-lfs starts these, and the user's own filter starts git-lfs.
        ("core", "sshcommand" | "askpass" | "gitproxy") | ("credential", "helper") => filtered,
        ("lfs", "standalonetransferagent") => filtered,
        ("lfs", "path") => filtered && part.starts_with("customtransfer."),
        ("lfs", "clean" | "smudge") => filtered && part.starts_with("extension."),
        ("lfs", "storage") => filtered && leads_out(),
        _ => false,
    }
}
