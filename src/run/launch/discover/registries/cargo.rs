//! Finds Cargo's registries: those in its settings and, unless the settings replace the default one, those whose indexes
//! Cargo has fetched before. If Cargo has fetched none, finds its default registry.

use std::path::{Path, PathBuf};

use super::query_tool;
use super::search::Search;
use super::url;
use super::url::{Host, Target};

/// An index in Cargo's cache: the directory `registry/index/HOST-HASH/`.
struct Index {
    directory: PathBuf,
    host: String,
}

pub(crate) fn search(search: &mut Search<'_>) {
    let home = search.base("CARGO_HOME", ".cargo").filter(|home| !search.is_agent_writable(home));
    let indexes = home.as_deref().map(indexes).unwrap_or_default();
    let mut addresses: Vec<(String, String)> = Vec::new();
    for (key, value) in search.environment {
        if let (Some(key), Some(value)) = (key.to_str(), value.to_str())
            && key.strip_prefix("CARGO_REGISTRIES_").is_some_and(|name| name.ends_with("_INDEX"))
            && !value.is_empty()
        {
            addresses.push((value.to_string(), key.to_string()));
        }
    }
    let mut is_replaced = false;
    if let Some(home) = &home {
        // If both files exist, Cargo uses the one without an extension.
        let file =
            ["config", "config.toml"].map(|name| home.join(name)).into_iter().find(|file| file.exists());
        if let Some(file) = file
            && let Some(text) = search.text(&file)
        {
            match text.parse::<toml::Table>() {
                Ok(settings) => {
                    is_replaced = read_settings(&settings, &file, &mut addresses);
                }
                Err(_) => search.note(&format!("{} is not valid TOML, so guard ignores it", file.display())),
            }
        }
    }
    for (address, from) in addresses {
        if let Some(host) = search.add_url(&address, &from) {
            add_download_host(search, &host, &indexes);
        }
    }
    if !is_replaced {
        add_fetched_indexes(search, &indexes);
        if indexes.is_empty() {
            add_default_registry(search);
        }
    }
}

/// Adds the default registry, for a Cargo that has fetched nothing yet: runs Cargo and reads the host that it requests.
/// If the name of that host does not begin with `index.`, adds a note instead of the host.
fn add_default_registry(search: &mut Search<'_>) {
    // `cargo search` is the cheapest command that reads the index. Run it with empty settings and an empty cache.
    let proxied = |proxy: &str, directory: &Path| {
        let fixed = [
            ("CARGO_NET_RETRY", "0"),
            ("CARGO_NET_OFFLINE", "false"),
            ("CARGO_REGISTRY_DEFAULT", "crates-io"),
        ];
        let own = [("CARGO_HTTP_PROXY".into(), proxy.into()), ("CARGO_HOME".into(), directory.into())];
        own.into_iter().chain(fixed.map(|(name, value)| (name.into(), value.into()))).collect()
    };
    let arguments = ["search", "--limit", "1", "x"];
    let Some(host) = query_tool::first_requested_host(search, &["cargo"], &arguments, proxied) else {
        return;
    };
    match url::parse(&format!("https://{host}")) {
        // Do not allow other hosts: older versions of Cargo fetch their index as a git repository from a host such as
        // github.com, which serves much more than crates.
        Target::Host(host) if host.name.starts_with("index.") => {
            search.add_entry(host.entry());
            add_download_host(search, &host, &[]);
        }
        _ => search.note(
            "guard does not allow the host of cargo's default registry, because that host may serve more than crates; to \
             allow the host, add it to `[network] allow` in the policy",
        ),
    }
}

/// Adds the URLs in Cargo's settings to `addresses`. Returns whether the settings replace the default registry.
fn read_settings(settings: &toml::Table, file: &Path, addresses: &mut Vec<(String, String)>) -> bool {
    let tables = |name: &str| settings.get(name).and_then(toml::Value::as_table).into_iter().flatten();
    let mut add = |entry: Option<&toml::Value>| {
        if let Some(address) = entry.and_then(toml::Value::as_str) {
            addresses.push((address.to_string(), file.display().to_string()));
        }
    };
    add(settings.get("registry").and_then(|registry| registry.get("index")));
    for (_, registry) in tables("registries") {
        add(registry.get("index"));
    }
    let mut is_replaced = false;
    for (name, source) in tables("source") {
        let source_is_replaced = source.get("replace-with").is_some();
        is_replaced |= name == "crates-io" && source_is_replaced;
        // Cargo fetches nothing from a source that is replaced.
        if !source_is_replaced {
            add(source.get("registry"));
        }
    }
    is_replaced
}

/// Adds the hosts of the indexes that Cargo has fetched before, whatever settings Cargo had then. For an index that is
/// a git repository, adds a note instead of its host.
fn add_fetched_indexes(search: &mut Search<'_>, indexes: &[Index]) {
    for index in indexes {
        // Older versions of Cargo fetch their index as a git repository from a host such as github.com, which serves
        // much more than crates.
        if index.directory.join(".git").exists() || index.directory.join("HEAD").exists() {
            let path = index.directory.display();
            search.note(&format!(
                "the registry index {path} is a git repository, whose host may serve more than crates, so guard does not \
                 allow the host; if cargo needs it, add it to `[network] allow` in the policy"
            ));
        } else if let Some(host) = Host::parse(&index.host) {
            search.add_entry(host.entry());
            add_download_host(search, &host, indexes);
        }
    }
}

/// Adds the host from which Cargo downloads the crates of an index. That is the host in the index's own settings or, if
/// there is none, `static.NAME` for an index on `index.NAME`. Adds a note if the settings of an index in the cache name
/// no host.
fn add_download_host(search: &mut Search<'_>, host: &Host, indexes: &[Index]) {
    let mut is_known = false;
    for index in indexes.iter().filter(|index| index.host == host.name) {
        let file = index.directory.join("config.json");
        let Some(text) = search.text(&file) else { continue };
        let settings: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        match settings.as_ref().and_then(|settings| settings["dl"].as_str()) {
            Some(address) => is_known |= search.add_url(address, &file.display().to_string()).is_some(),
            None => search.note(&format!(
                "{} does not say from which host Cargo downloads crates; allow that host in the policy",
                file.display()
            )),
        }
    }
    if !is_known && let Some(rest) = host.name.strip_prefix("index.") {
        search.add_entry(Host { name: format!("static.{rest}"), port: host.port }.entry());
    }
}

/// Returns the indexes in the cache of a Cargo home, sorted by name.
fn indexes(home: &Path) -> Vec<Index> {
    let Ok(entries) = std::fs::read_dir(home.join("registry/index")) else { return Vec::new() };
    let index = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let (host, hash) = name.rsplit_once('-')?;
        let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_hash && entry.path().is_dir())
            .then(|| Index { directory: entry.path(), host: host.to_ascii_lowercase() })
    };
    let mut found: Vec<Index> = entries.filter_map(Result::ok).filter_map(index).collect();
    found.sort_by(|a, b| a.directory.cmp(&b.directory));
    found
}
