//! Finds the hosts from which apt fetches packages, in the machine's `sources.list` and `sources.list.d`. Reads both
//! formats: one line per source, and stanzas.

use std::path::{Path, PathBuf};

use super::search::Search;

pub(crate) fn search(search: &mut Search<'_>) {
    let directory = search.etc.join("apt");
    let mut files = vec![directory.join("sources.list")];
    if let Ok(entries) = std::fs::read_dir(directory.join("sources.list.d")) {
        let mut more: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        more.sort();
        files.extend(more);
    }
    for file in files {
        let ending = file.extension().and_then(|ending| ending.to_str());
        // Skip all other files, as apt does.
        let read = match ending {
            Some("list") => read_lines,
            Some("sources") => read_stanzas,
            _ => continue,
        };
        if let Some(text) = search.text(&file) {
            read(search, &text, &file);
        }
    }
}

/// Adds the hosts of a file in the one-line format, `deb [options] URL suite component…`.
fn read_lines(search: &mut Search<'_>, text: &str, file: &Path) {
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        let Some((kind, rest)) = line.split_once(char::is_whitespace) else { continue };
        if kind != "deb" && kind != "deb-src" {
            continue;
        }
        let rest = rest.trim_start();
        let rest =
            if rest.starts_with('[') { rest.split_once(']').map_or("", |(_, rest)| rest) } else { rest };
        search.add_url(rest.split_whitespace().next().unwrap_or_default(), &file.display().to_string());
    }
}

/// Adds the hosts of a file in the stanza format: `Key: value` with indented continuation lines. Empty lines separate
/// the stanzas. Skips stanzas with `Enabled: no`.
fn read_stanzas(search: &mut Search<'_>, text: &str, file: &Path) {
    let (mut addresses, mut is_enabled, mut is_address) = (Vec::new(), true, false);
    // Append an empty line, because only an empty line ends a stanza.
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            for address in addresses.drain(..).filter(|_| is_enabled) {
                search.add_url(address, &file.display().to_string());
            }
            (is_enabled, is_address) = (true, false);
        } else if line.starts_with([' ', '\t']) {
            addresses.extend(line.split_whitespace().filter(|_| is_address));
        } else if let Some((key, value)) = line.split_once(':') {
            is_address = key.eq_ignore_ascii_case("uris");
            addresses.extend(value.split_whitespace().filter(|_| is_address));
            if key.eq_ignore_ascii_case("enabled") {
                is_enabled =
                    !["no", "false", "0", "off"].contains(&value.trim().to_ascii_lowercase().as_str());
            }
        }
    }
}
