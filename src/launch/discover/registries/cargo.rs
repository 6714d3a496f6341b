//! Finds Cargo's registries: those of its settings, else the indexes it has fetched before, else its built-in default.

use std::path::{Path, PathBuf};

use super::url::{self, Host, Place};
use super::{Search, query_tool};

/// An index in Cargo's cache: `registry/index/HOST-HASH/`.
struct Index {
    folder: PathBuf,
    host: String,
}

pub(crate) fn search(search: &mut Search<'_>) {
    let home = search.base("CARGO_HOME", ".cargo").filter(|home| !search.is_agents(home));
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
        // If both files exist, the one without an extension wins.
        let file =
            ["config", "config.toml"].map(|name| home.join(name)).into_iter().find(|file| file.exists());
        if let Some(file) = file
            && let Some(text) = search.text(&file)
        {
            match text.parse::<toml::Table>() {
                Ok(settings) => {
                    is_replaced = read(&settings, &file, &mut addresses);
                }
                Err(_) => search.note(&format!("{} is not TOML", file.display())),
            }
        }
    }
    for (address, from) in addresses {
        if let Some(host) = search.address(&address, &from) {
            downloads(search, &host, &indexes);
        }
    }
    if !is_replaced {
        used(search, &indexes);
        if indexes.is_empty() {
            unused(search);
        }
    }
}

/// The default registry of a Cargo that has fetched nothing yet.
fn unused(search: &mut Search<'_>) {
    // The cheapest command that reads the index, with empty settings and an empty cache.
    let proxied = |proxy: &str, folder: &Path| {
        let fixed = [
            ("CARGO_NET_RETRY", "0"),
            ("CARGO_NET_OFFLINE", "false"),
            ("CARGO_REGISTRY_DEFAULT", "crates-io"),
        ];
        let own = [("CARGO_HTTP_PROXY".into(), proxy.into()), ("CARGO_HOME".into(), folder.into())];
        own.into_iter().chain(fixed.map(|(name, value)| (name.into(), value.into()))).collect()
    };
    let Some(place) = query_tool::first_host(search, &["cargo"], &["search", "--limit", "1", "x"], proxied)
    else {
        return;
    };
    match url::host(&format!("https://{place}")) {
        // As in `used`: older Cargos fetch a git repository from a host that serves everything else, too.
        Place::Host(host) if host.name.starts_with("index.") => {
            search.entry(host.entry());
            downloads(search, &host, &[]);
        }
        _ => search.note("its default registry is not on a host of its own; that host is not allowed"),
    }
}

/// Adds the addresses in Cargo's settings. Returns whether they replace the default registry.
fn read(settings: &toml::Table, file: &Path, addresses: &mut Vec<(String, String)>) -> bool {
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
        let goes_elsewhere = source.get("replace-with").is_some();
        is_replaced |= name == "crates-io" && goes_elsewhere;
        // Cargo fetches nothing from a source that is replaced.
        if !goes_elsewhere {
            add(source.get("registry"));
        }
    }
    is_replaced
}

/// Adds the indexes that were fetched before, whatever settings Cargo used.
fn used(search: &mut Search<'_>, indexes: &[Index]) {
    for index in indexes {
        // Older Cargos use a git repository as index, on a host that serves everything else, too.
        if index.folder.join(".git").exists() || index.folder.join("HEAD").exists() {
            search.note(&format!("{} is a git repository; its host is not allowed", index.folder.display()));
        } else if let Some(host) = Host::named(&index.host) {
            search.entry(host.entry());
            downloads(search, &host, indexes);
        }
    }
}

/// Adds the host of an index's crates: the one in the index's own settings, else the usual one.
fn downloads(search: &mut Search<'_>, host: &Host, indexes: &[Index]) {
    let mut is_known = false;
    for index in indexes.iter().filter(|index| index.host == host.name) {
        let file = index.folder.join("config.json");
        let Some(text) = search.text(&file) else { continue };
        let settings: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        match settings.as_ref().and_then(|settings| settings["dl"].as_str()) {
            Some(address) => is_known |= search.address(address, &file.display().to_string()).is_some(),
            None => search.note(&format!("{} does not say where crates lie", file.display())),
        }
    }
    if !is_known && let Some(rest) = host.name.strip_prefix("index.") {
        search.entry(Host { name: format!("static.{rest}"), port: host.port }.entry());
    }
}

/// The indexes below a Cargo home, sorted by name.
fn indexes(home: &Path) -> Vec<Index> {
    let Ok(entries) = std::fs::read_dir(home.join("registry/index")) else { return Vec::new() };
    let index = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let (host, hash) = name.rsplit_once('-')?;
        let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_hash && entry.path().is_dir())
            .then(|| Index { folder: entry.path(), host: host.to_ascii_lowercase() })
    };
    let mut found: Vec<Index> = entries.filter_map(Result::ok).filter_map(index).collect();
    found.sort_by(|a, b| a.folder.cmp(&b.folder));
    found
}
