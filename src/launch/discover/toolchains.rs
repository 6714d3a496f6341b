//! Finds what a run needs of the user's home to build programs, from the home, the environment and PATH.
//!
//! A run has a private, empty home and cannot read the user's, except for what is granted. This module finds the
//! compilers there and grants them read-only and in parts: it must never grant the settings, tokens and credentials
//! beside them. Directories that programs write to (`CARGO_HOME`, `GOPATH`, npm's cache …) stay at their defaults below
//! the private home, where the user's packages appear as [`Layer`]s.
//!
//! Returns paths, variables, layers and, for `--dry-run`, reasons. It only reads, and treats what it cannot read as
//! missing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::protected_paths::{Bounds, HomeListing, outermost};
use super::toolchain_table::{CACHES, Cache, Export, MANAGERS, Manager, Unfetched};
use crate::policy::{Caches, TOOLCHAINS};

/// What was found of one toolchain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// `rust`, `node`, `python`, `go`, `java`; or `path` for directories of PATH that belong to none of them.
    pub name: &'static str,
    /// The reason shown to users: `rustup in ~/.rustup; cargo in ~/.cargo`.
    pub why: String,
    /// Paths to grant for reading and executing: real, existing, none inside another.
    pub read: Vec<PathBuf>,
    /// Variables to set for the run.
    pub variables: Vec<(OsString, OsString)>,
    /// Directories of the user that appear in the private home.
    pub layers: Vec<Layer>,
    /// Notes for users: what was not granted, and why.
    pub notes: Vec<String>,
}

/// A directory of the user that the run sees in its private home, with a writable layer of its own on top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The user's directory, a real path. It must be granted for reading as well.
    pub lower: PathBuf,
    /// Its path relative to the private home.
    pub upper: PathBuf,
    /// For a layer of symbolic links: how many levels of directories below it must be real directories, so that the run
    /// can add to them. With 0 only the directory itself is real, and its entries are links.
    pub depth: usize,
    /// Whether a run without network access adds entries.
    pub growth: Growth,
}

/// Whether a run without network access adds entries to a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Growth {
    /// It may add entries.
    Any,
    /// It never adds entries.
    None,
    /// It only unpacks archives of this directory that are not unpacked yet.
    Unpacking(PathBuf),
}

impl Layer {
    /// Whether an entry is a lock or an index that programs open for writing. That would fail through a link, so a
    /// layer of links omits it.
    pub fn leaves_out(name: &OsStr) -> bool {
        let name = name.as_bytes();
        name == b"lock" || [&b".lock"[..], b".lck", b".part"].iter().any(|ending| name.ends_with(ending))
    }
}

/// Finds the wanted toolchains of a home. If none is wanted, the directories of PATH are not granted either.
pub fn detect(
    home: &Path,
    environment: &[(OsString, OsString)],
    wanted: &[String],
    caches: Caches,
) -> Vec<Toolchain> {
    if wanted.is_empty() || !home.is_absolute() {
        return Vec::new();
    }
    let names = HomeListing::of(home);
    let search = Search {
        home,
        real_home: home.canonicalize().unwrap_or_else(|_| home.to_path_buf()),
        environment,
        bounds: Bounds::with_names(home, &names),
        names,
        shares: caches == Caches::Shared,
    };
    let (mut found, unwanted): (Vec<Toolchain>, Vec<Toolchain>) = TOOLCHAINS
        .into_iter()
        .map(|name| search.toolchain(name))
        .partition(|toolchain| wanted.iter().any(|name| name == toolchain.name));
    let path = search.path(&found, &unwanted);
    found.push(path);
    found.retain(|found| !(found.read.is_empty() && found.layers.is_empty() && found.notes.is_empty()));
    found
}

struct Search<'a> {
    home: &'a Path,
    /// The home with symbolic links resolved.
    real_home: PathBuf,
    environment: &'a [(OsString, OsString)],
    bounds: Bounds,
    names: HomeListing,
    /// Whether the run sees the user's package caches.
    shares: bool,
}

impl Search<'_> {
    fn toolchain(&self, name: &'static str) -> Toolchain {
        let mut found = Found::new(name);
        for manager in MANAGERS.iter().filter(|manager| manager.toolchain == name) {
            self.manager(manager, &mut found);
        }
        match name {
            "rust" => self.linked_toolchains(&mut found),
            "python" => self.user_sites(&mut found),
            _ => {}
        }
        if self.shares {
            for cache in CACHES.iter().filter(|cache| cache.toolchain == name) {
                self.cache(cache, &mut found);
            }
            match name {
                "go" => self.go_modules(&mut found),
                "java" => self.gradle_modules(&mut found),
                _ => {}
            }
        }
        if !(found.toolchain.read.is_empty() && found.toolchain.layers.is_empty()) {
            self.settings_left_behind(name, &mut found);
        }
        found.into_toolchain()
    }

    fn manager(&self, manager: &Manager, found: &mut Found) {
        let roots = self.roots(&[manager.variable], manager.usual, found);
        let is_one = |root: &PathBuf| manager.marks.iter().any(|mark| !matching(root, mark).is_empty());
        for root in roots.into_iter().filter(is_one) {
            let mut granted = false;
            for part in manager.parts.iter().flat_map(|part| matching(&root, part)) {
                granted |= self.grant(&part, found);
            }
            if !granted {
                continue;
            }
            found.why(manager.name, &self.shown(&root));
            let is_set = self.variable(manager.variable).is_some();
            if manager.export == Export::Always || (manager.export == Export::AsSet && is_set) {
                found.export(manager.variable, &root);
            }
        }
    }

    /// Grants toolchains that rustup only links to: built by the user in another directory.
    fn linked_toolchains(&self, found: &mut Found) {
        let links = self.roots(&["RUSTUP_HOME"], &[".rustup"], &mut Found::new("rust"));
        for link in links.iter().flat_map(|root| matching(root, "toolchains/*")) {
            if link.is_symlink() && link.join("bin/rustc").is_file() {
                self.grant(&link, found);
            }
        }
    }

    /// Finds the packages that pip installed for the user. The run gets them as layers, so that Python finds them and
    /// pip can add more in the private home. `PYTHONUSERBASE` would make pip write to the user's directory.
    fn user_sites(&self, found: &mut Found) {
        if !self.names.may_have(".local") {
            return;
        }
        for folder in matching(&self.home.join(".local/lib"), "python*") {
            let Some(name) = folder.file_name() else { continue };
            let upper = Path::new(".local/lib").join(name).join("site-packages");
            self.layer(&folder.join("site-packages"), upper, (0, Growth::Any), found);
        }
    }

    fn cache(&self, cache: &Cache, found: &mut Found) {
        for root in self.roots(cache.variables, &[cache.usual], found) {
            for lower in matching(&root, cache.part) {
                let Ok(inner) = lower.strip_prefix(&root) else { continue };
                let growth = match cache.unfetched {
                    Unfetched::Grows => Growth::Any,
                    Unfetched::Stays => Growth::None,
                    Unfetched::Unpacks(archives) => Growth::Unpacking(root.join(archives)),
                };
                if self.layer(&lower, Path::new(cache.usual).join(inner), (cache.depth, growth), found) {
                    found.why(cache.name, &self.shown(&root));
                }
            }
        }
    }

    /// Finds Go's module cache: one layer for the downloads and one for each host. The depth of module directories,
    /// which are never changed, is known only per host.
    fn go_modules(&self, found: &mut Found) {
        let named = self.roots(&["GOMODCACHE"], &[], found);
        let mut roots = self.roots(&["GOPATH"], &["go"], found);
        roots.iter_mut().for_each(|root| root.push("pkg/mod"));
        let Some(root) = named.into_iter().chain(roots).find(|root| root.join("cache/download").is_dir())
        else {
            return;
        };
        let upper = Path::new("go/pkg/mod");
        let downloads = Path::new("cache/download");
        let mut any = self.layer(&root.join(downloads), upper.join(downloads), (4, Growth::Any), found);
        for host in matching(&root, "*") {
            let Some(name) = host.file_name().filter(|name| *name != "cache") else { continue };
            let is_module =
                |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().contains(&b'@'));
            let depth = usize::from(!matching(&host, "*").iter().any(is_module));
            any |= self.layer(&host, upper.join(name), (depth, Growth::Any), found);
        }
        if any {
            found.why("Go's modules", &self.shown(&root));
        }
    }

    /// Finds Gradle's modules. Gradle can read a second, read-only cache; in its own it changes indexes in place.
    fn gradle_modules(&self, found: &mut Found) {
        for root in self.roots(&["GRADLE_USER_HOME"], &[".gradle"], found) {
            let caches = root.join("caches");
            if caches.join("modules-2").is_dir() && self.grant(&caches.join("modules-2"), found) {
                found.why("Gradle's modules", &self.shown(&root));
                found.export("GRADLE_RO_DEP_CACHE", &caches);
            }
        }
    }

    /// Notes settings files that builds may depend on but that can hold tokens, so that users need not search for the
    /// cause.
    fn settings_left_behind(&self, name: &str, found: &mut Found) {
        let settings: &[&str] = match name {
            "rust" => &[".cargo/config.toml", ".cargo/config"],
            "node" => &[".npmrc", ".yarnrc.yml"],
            "python" => &[".config/pip/pip.conf", ".pip/pip.conf"],
            "java" => &[".m2/settings.xml", ".gradle/gradle.properties"],
            _ => &[],
        };
        for file in settings.iter().filter(|file| self.home.join(file).is_file()) {
            found.note(format!(
                "~/{file} is not shown to the run: it can hold tokens; `[home] import` copies it"
            ));
        }
    }

    /// Grants directories of PATH that belong to no toolchain and that `{system}` does not cover, with the installation
    /// around a `bin`. What belongs to a toolchain that is not wanted is not granted.
    fn path(&self, found: &[Toolchain], unwanted: &[Toolchain]) -> Toolchain {
        let mut granted = Found::new("path");
        let path = self.set("PATH").unwrap_or_default();
        for entry in std::env::split_paths(path).filter(|entry| entry.is_absolute()) {
            let Ok(real) = entry.canonicalize() else { continue };
            let is_known = |toolchain: &Toolchain| toolchain.read.iter().any(|path| real.starts_with(path));
            if !real.is_dir()
                || crate::launch::plan::system_paths::is_granted(&real)
                || found.iter().chain(unwanted).any(is_known)
            {
                continue;
            }
            let prefix = real.parent().filter(|prefix| real.ends_with("bin") && prefix.join("lib").is_dir());
            let has_prefix =
                prefix.is_some_and(|prefix| self.may_grant(prefix) && self.grant(prefix, &mut granted));
            if has_prefix || self.may_grant(&real) && self.grant(&real, &mut granted) {
                granted.why("PATH", &self.shown(&entry));
            }
        }
        granted.into_toolchain()
    }

    /// Whether a directory of PATH may be granted. If it lies in a home other than `HOME`, the protected paths of that
    /// home count, because it holds keys, too. CI images often keep their toolchains in another home than `HOME`.
    fn may_grant(&self, path: &Path) -> bool {
        let other_home = path
            .ancestors()
            .find(|level| level.parent() == Some(Path::new("/home")) || *level == Path::new("/root"));
        let is_in_home = path.starts_with(&self.real_home);
        let is_system = path.parent().is_none_or(|parent| parent == Path::new("/"));
        is_in_home || !is_system && other_home.is_none_or(|home| Bounds::new(home).grant(path).is_ok())
    }

    /// The directory named by the first variable that is set or, if none is set, the default ones. Real paths.
    fn roots(&self, variables: &[&str], usual: &[&str], found: &mut Found) -> Vec<PathBuf> {
        let named = variables.iter().find_map(|name| Some((*name, self.variable(name)?)));
        let Some((name, path)) = named else {
            let roots =
                usual.iter().flat_map(|usual| self.usual(usual)).filter_map(|root| real_folder(&root));
            return roots.filter(|root| self.bounds.root(root).is_ok()).collect();
        };
        if !path.is_absolute() {
            found.note(format!("{name} is ignored: `{}` is no absolute path", path.display()));
            return Vec::new();
        }
        let Some(root) = real_folder(&path) else { return Vec::new() };
        if let Err(problem) = self.bounds.root(&root) {
            found.note(format!("{name}={} is ignored: {problem}", path.display()));
            return Vec::new();
        }
        vec![root]
    }

    /// A default place in the home, or where XDG variables have moved it.
    fn usual(&self, place: &str) -> Vec<PathBuf> {
        let moved = [
            (".local/share/", "XDG_DATA_HOME"),
            (".cache/", "XDG_CACHE_HOME"),
            (".config/", "XDG_CONFIG_HOME"),
        ];
        let elsewhere = moved.iter().find_map(|(prefix, variable)| {
            let rest = place.strip_prefix(prefix)?;
            self.variable(variable).filter(|base| base.is_absolute()).map(|base| (base, rest))
        });
        match elsewhere {
            Some((base, rest)) => matching(&base, rest),
            None if self.names.may_have(place) => matching(self.home, place),
            None => Vec::new(),
        }
    }

    /// Grants a path with everything below it, if that is allowed.
    fn grant(&self, path: &Path, found: &mut Found) -> bool {
        match self.allowed(path, found) {
            Some(real) => {
                found.toolchain.read.push(real);
                true
            }
            None => false,
        }
    }

    fn layer(
        &self,
        lower: &Path,
        upper: PathBuf,
        (depth, growth): (usize, Growth),
        found: &mut Found,
    ) -> bool {
        match self.allowed(lower, found).filter(|real| real.is_dir()) {
            Some(lower) => {
                found.toolchain.layers.push(Layer { lower, upper, depth, growth });
                true
            }
            None => false,
        }
    }

    fn allowed(&self, path: &Path, found: &mut Found) -> Option<PathBuf> {
        let real = path.canonicalize().ok()?;
        match self.bounds.grant(&real) {
            Ok(()) => Some(real),
            Err(problem) => {
                found.note(format!("{} is not granted: {problem}", self.shown(path)));
                None
            }
        }
    }

    /// The value of a variable. An empty one counts as unset.
    fn set(&self, name: &str) -> Option<&OsStr> {
        let is_it = |(known, value): &&(OsString, OsString)| known == name && !value.is_empty();
        self.environment.iter().find(is_it).map(|(_, value)| value.as_os_str())
    }

    /// A variable that names a directory. Only GOPATH may name several, of which Go writes to the first.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let value = self.set(name)?;
        if name == "GOPATH" { std::env::split_paths(value).next() } else { Some(PathBuf::from(value)) }
    }

    /// A path with `~` for the home, for messages.
    fn shown(&self, path: &Path) -> String {
        match path.strip_prefix(self.home).or_else(|_| path.strip_prefix(&self.real_home)) {
            Ok(rest) => Path::new("~").join(rest).display().to_string(),
            Err(_) => path.display().to_string(),
        }
    }
}

/// A toolchain during the search.
struct Found {
    toolchain: Toolchain,
    why: Vec<String>,
}

impl Found {
    fn new(name: &'static str) -> Self {
        let toolchain = Toolchain {
            name,
            why: String::new(),
            read: Vec::new(),
            variables: Vec::new(),
            layers: Vec::new(),
            notes: Vec::new(),
        };
        Self { toolchain, why: Vec::new() }
    }

    fn why(&mut self, what: &str, place: &str) {
        let why = format!("{what} in {place}");
        if !self.why.contains(&why) {
            self.why.push(why);
        }
    }

    fn note(&mut self, note: String) {
        if !self.toolchain.notes.contains(&note) {
            self.toolchain.notes.push(note);
        }
    }

    /// Sets a variable to the first directory found. Later ones are ignored.
    fn export(&mut self, name: &str, value: &Path) {
        if !self.toolchain.variables.iter().any(|(known, _)| known == name) {
            self.toolchain.variables.push((OsString::from(name), value.into()));
        }
    }

    fn into_toolchain(mut self) -> Toolchain {
        self.toolchain.why = self.why.join("; ");
        self.toolchain.read = outermost(self.toolchain.read);
        self.toolchain
    }
}

fn real_folder(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_dir())
}

/// The existing paths that match a place below a directory: at most one, or with a final `*` all with that beginning.
fn matching(folder: &Path, place: &str) -> Vec<PathBuf> {
    let Some(start) = place.strip_suffix('*') else {
        let path = if place == "." { folder.to_path_buf() } else { folder.join(place) };
        return if path.exists() { vec![path] } else { Vec::new() };
    };
    let (inner, start) = start.rsplit_once('/').unwrap_or((".", start));
    let Ok(entries) = std::fs::read_dir(folder.join(inner)) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
    let mut paths: Vec<PathBuf> = names
        .filter(|name| name.as_bytes().starts_with(start.as_bytes()))
        .map(|name| if inner == "." { folder.join(name) } else { folder.join(inner).join(name) })
        .filter(|path| path.exists())
        .collect();
    paths.sort();
    paths
}
