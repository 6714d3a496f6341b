//! Finds pip's index URLs in environment variables and pip.conf files or, if there are none, pip's default.

use std::path::PathBuf;

use super::search::Search;
use super::url;
use super::url::{Host, Target};
use super::{ini, query_tool};

/// A Python program that prints the URL of pip's default index, and the host that stores the index's files. pip has no
/// command for that.
const PRINT_DEFAULT: &str =
    "from pip._internal.models.index import PyPI; print(PyPI.url, PyPI.file_storage_domain)";

pub(crate) fn search(search: &mut Search<'_>) {
    let mut settings = Vec::new();
    for name in ["index-url", "extra-index-url", "find-links", "no-index"] {
        let variable = format!("PIP_{}", name.to_ascii_uppercase().replace('-', "_"));
        if let Some(value) = search.variable(&variable).and_then(|value| value.to_str()) {
            settings.push((name.to_string(), value.to_string(), variable));
        }
    }
    for file in files(search) {
        let Some(text) = search.text(&file) else { continue };
        for setting in ini::parse(&text) {
            if ["global", "install", "download", "wheel"].contains(&setting.section.as_str()) {
                let key = setting.key.trim_start_matches('-').to_ascii_lowercase().replace('_', "-");
                settings.push((key, setting.value, file.display().to_string()));
            }
        }
    }
    let mut has_index = false;
    for (key, value, from) in &settings {
        match key.as_str() {
            "index-url" if !has_index => {
                has_index = true;
                search.add_url(value, from);
            }
            "extra-index-url" => value.split_whitespace().for_each(|value| _ = search.add_url(value, from)),
            // `find-links` usually contains directories, so ignore values that are not URLs.
            "find-links" => {
                for value in value.split_whitespace() {
                    if let Target::Host(host) = url::parse(value) {
                        search.add_entry(host.entry());
                    }
                }
            }
            "no-index" => {
                has_index |= ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
            }
            _ => {}
        }
    }
    if has_index && search.found.entries.is_empty() {
        return;
    }
    let is_configured = !search.found.entries.is_empty();
    let arguments = ["-c", PRINT_DEFAULT];
    let Some(answer) = query_tool::query_output(search, &["python3", "python"], &arguments) else { return };
    let mut words = answer.split_whitespace();
    let (Some(Target::Host(index)), Some(files)) =
        (words.next().map(url::parse), words.next().and_then(Host::parse))
    else {
        search.note("guard cannot parse what Python prints as pip's default index");
        return;
    };
    // The default index stores its files on another host, so allow that host as well.
    if !has_index || search.found.entries.contains(&index.entry()) {
        search.add_entry(index.entry());
        search.add_entry(files.entry());
    }
    if is_configured && has_index {
        search.note("if a pip index keeps its files on another host, allow that host in the policy");
    }
}

/// Returns the paths of the pip.conf files that pip may read, from the highest to the lowest precedence. Returns none
/// if `PIP_CONFIG_FILE` is `/dev/null`, because pip then reads no such file.
fn files(search: &Search<'_>) -> Vec<PathBuf> {
    let named = search.variable("PIP_CONFIG_FILE").map(PathBuf::from);
    if named.as_deref() == Some("/dev/null".as_ref()) {
        return Vec::new();
    }
    let mut files = Vec::from_iter(named.filter(|path| path.is_absolute()));
    files.extend(search.directory("VIRTUAL_ENV").map(|directory| directory.join("pip.conf")));
    files.extend(search.base("XDG_CONFIG_HOME", ".config").map(|base| base.join("pip/pip.conf")));
    files.extend(search.home.map(|home| home.join(".pip/pip.conf")));
    files.push(search.etc.join("pip.conf"));
    match search.variable("XDG_CONFIG_DIRS") {
        Some(bases) => {
            let bases = std::env::split_paths(bases).filter(|base| base.is_absolute());
            files.extend(bases.map(|base| base.join("pip/pip.conf")));
        }
        None => files.push(search.etc.join("xdg/pip/pip.conf")),
    }
    files
}
