//! Finds the toolchains in the user's home directory that a run needs to build programs. Uses the content of the home
//! directory, the environment and PATH.
//!
//! A run has a private, empty home directory, and can read only those parts of the user's home directory to which
//! guard grants access. This module finds compilers and similar programs there, and grants read-only access to parts
//! of their directories: it must never grant access to the settings, tokens and credentials beside them. Directories
//! that programs write to (`CARGO_HOME`, `GOPATH`, npm's cache …) stay at their defaults below the private home
//! directory, where the run sees the user's packages as [`Layer`]s.
//!
//! The result has paths, variables, layers and, for `--dry-run`, reasons. This module only reads files, and treats
//! files that it cannot read as missing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::protected_paths::{HomeListing, ProtectedPaths, outermost};
use super::toolchain_table::{CACHES, Cache, Export, MANAGERS, Manager, OfflineUse};
use crate::judge::policy::{Caches, TOOLCHAINS};
use crate::sys::agent_paths::AgentPaths;

/// One toolchain, such as `rust`, with the paths that guard grants and the variables that it sets so that a run can
/// use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// The toolchain's name: `rust`, `node`, `python`, `go` or `java`; `path` for directories of PATH that are part
    /// of none of these.
    pub name: &'static str,
    /// Why guard chose these paths, for users: `rustup in ~/.rustup; cargo in ~/.cargo`.
    pub why: String,
    /// The real paths that the run may read and execute. All of them exist, and none is inside another.
    pub read: Vec<PathBuf>,
    pub variables: Vec<(OsString, OsString)>,
    /// Directories of the user, such as package caches, that the run sees in its private home directory.
    pub layers: Vec<Layer>,
    /// Notes for users: to which paths guard grants no access, and why.
    pub notes: Vec<String>,
}

/// A package cache of the user that the run sees in its private home directory. The run can add files there, but
/// guard does not copy them into the user's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The real path of the user's directory. The run must also have read access to this path.
    pub lower: PathBuf,
    /// The path at which the run sees the cache, relative to its private home directory.
    pub upper: PathBuf,
    /// The number of levels of directories below `upper` that must be real directories, so that the run can add
    /// entries to them. Applies only to a run without mounts, which gets the cache as symbolic links. With 0 only
    /// `upper` itself is a real directory, and its entries are links.
    pub depth: usize,
    pub offline_additions: OfflineAdditions,
}

/// Whether a run without network access adds entries to a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfflineAdditions {
    Any,
    None,
    /// The run only adds entries that it unpacks from the archives in this directory.
    Unpacked(PathBuf),
}

impl Layer {
    /// Returns true if guard makes no symbolic link for a cache entry of this name. True for lock files and partial
    /// downloads: programs open them for writing, which would fail through a link.
    pub fn is_omitted(name: &OsStr) -> bool {
        let name = name.as_bytes();
        name == b"lock" || [&b".lock"[..], b".lck", b".part"].iter().any(|ending| name.ends_with(ending))
    }
}

/// Finds the toolchains in the home directory `home` that are in the list `wanted`, and the remaining directories of
/// PATH as the toolchain `path`. Adds the user's package caches only if `caches` is `Shared`. Leaves out a path if a
/// symbolic link that an agent may have written leads there, according to `agent_paths`. Returns nothing if `wanted` is
/// empty or `home` is not an absolute path.
pub fn detect(
    home: &Path,
    environment: &[(OsString, OsString)],
    wanted: &[String],
    caches: Caches,
    agent_paths: &AgentPaths,
) -> Vec<Toolchain> {
    if wanted.is_empty() || !home.is_absolute() {
        return Vec::new();
    }
    let listing = HomeListing::read(home);
    let search = Search {
        home,
        real_home: home.canonicalize().unwrap_or_else(|_| home.to_path_buf()),
        environment,
        protected: ProtectedPaths::with_listing(home, &listing),
        listing,
        shares_caches: caches == Caches::Shared,
        agent_paths,
    };
    let (mut found, unwanted): (Vec<Toolchain>, Vec<Toolchain>) = TOOLCHAINS
        .into_iter()
        .map(|name| search.toolchain(name))
        .partition(|toolchain| wanted.iter().any(|name| name == toolchain.name));
    let path = search.grant_path(&found, &unwanted);
    found.push(path);
    found.retain(|found| !(found.read.is_empty() && found.layers.is_empty() && found.notes.is_empty()));
    found
}

struct Search<'a> {
    home: &'a Path,
    /// The path of the home directory with symbolic links resolved.
    real_home: PathBuf,
    environment: &'a [(OsString, OsString)],
    protected: ProtectedPaths,
    listing: HomeListing,
    shares_caches: bool,
    agent_paths: &'a AgentPaths,
}

impl Search<'_> {
    fn toolchain(&self, name: &'static str) -> Toolchain {
        let mut found = Found::new(name);
        for manager in MANAGERS.iter().filter(|manager| manager.toolchain == name) {
            self.add_manager(manager, &mut found);
        }
        match name {
            "rust" => self.add_linked_toolchains(&mut found),
            "python" => self.add_user_sites(&mut found),
            _ => {}
        }
        if self.shares_caches {
            for cache in CACHES.iter().filter(|cache| cache.toolchain == name) {
                self.add_cache(cache, &mut found);
            }
            match name {
                "go" => self.add_go_modules(&mut found),
                "java" => self.add_gradle_modules(&mut found),
                _ => {}
            }
        }
        if !(found.toolchain.read.is_empty() && found.toolchain.layers.is_empty()) {
            self.note_hidden_settings(name, &mut found);
        }
        found.into_toolchain()
    }

    fn add_manager(&self, manager: &Manager, found: &mut Found) {
        let roots = self.roots(&[manager.variable], manager.defaults, found);
        let is_manager =
            |root: &PathBuf| manager.markers.iter().any(|marker| !matching(root, marker).is_empty());
        for root in roots.into_iter().filter(is_manager) {
            let mut granted = false;
            for part in manager.parts.iter().flat_map(|part| matching(&root, part)) {
                granted |= self.grant(&part, found);
            }
            if !granted {
                continue;
            }
            found.add_reason(manager.name, &self.shown(&root));
            let is_set = self.variable(manager.variable).is_some();
            if manager.export == Export::Always || (manager.export == Export::AsSet && is_set) {
                found.export(manager.variable, &root);
            }
        }
    }

    /// Grants access to toolchains outside rustup's directory to which rustup has links (`rustup toolchain link`).
    fn add_linked_toolchains(&self, found: &mut Found) {
        let links = self.roots(&["RUSTUP_HOME"], &[".rustup"], &mut Found::new("rust"));
        for link in links.iter().flat_map(|root| matching(root, "toolchains/*")) {
            if link.is_symlink() && link.join("bin/rustc").is_file() {
                self.grant(&link, found);
            }
        }
    }

    /// Adds the packages that the user installed with `pip install --user`. The run gets them as layers, so that
    /// Python finds them and pip can add more in the private home directory. If guard set `PYTHONUSERBASE` instead,
    /// pip would write to the user's directory.
    fn add_user_sites(&self, found: &mut Found) {
        if !self.listing.may_have(".local") {
            return;
        }
        for directory in matching(&self.home.join(".local/lib"), "python*") {
            let Some(name) = directory.file_name() else { continue };
            let upper = Path::new(".local/lib").join(name).join("site-packages");
            self.add_layer(&directory.join("site-packages"), upper, (0, OfflineAdditions::Any), found);
        }
    }

    fn add_cache(&self, cache: &Cache, found: &mut Found) {
        for root in self.roots(cache.variables, &[cache.default], found) {
            for lower in matching(&root, cache.part) {
                let Ok(inner) = lower.strip_prefix(&root) else { continue };
                let additions = match cache.offline_use {
                    OfflineUse::Adds => OfflineAdditions::Any,
                    OfflineUse::Reads => OfflineAdditions::None,
                    OfflineUse::Unpacks(archives) => OfflineAdditions::Unpacked(root.join(archives)),
                };
                let upper = Path::new(cache.default).join(inner);
                if self.add_layer(&lower, upper, (cache.depth, additions), found) {
                    found.add_reason(cache.name, &self.shown(&root));
                }
            }
        }
    }

    /// Adds Go's module cache: one layer for the downloads, and one for each host of modules, because the depth of
    /// module directories differs between hosts. Programs never change the directory of a module.
    fn add_go_modules(&self, found: &mut Found) {
        let named = self.roots(&["GOMODCACHE"], &[], found);
        let mut roots = self.roots(&["GOPATH"], &["go"], found);
        roots.iter_mut().for_each(|root| root.push("pkg/mod"));
        let Some(root) = named.into_iter().chain(roots).find(|root| root.join("cache/download").is_dir())
        else {
            return;
        };
        let upper = Path::new("go/pkg/mod");
        let downloads = Path::new("cache/download");
        let additions = || OfflineAdditions::Any;
        let mut any = self.add_layer(&root.join(downloads), upper.join(downloads), (4, additions()), found);
        for host in matching(&root, "*") {
            let Some(name) = host.file_name().filter(|name| *name != "cache") else { continue };
            let is_module =
                |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().contains(&b'@'));
            let depth = usize::from(!matching(&host, "*").iter().any(is_module));
            any |= self.add_layer(&host, upper.join(name), (depth, additions()), found);
        }
        if any {
            found.add_reason("Go's modules", &self.shown(&root));
        }
    }

    /// Makes Gradle use the user's modules as a second, read-only cache. A layer is not possible, because Gradle
    /// changes the indexes of its own cache in place.
    fn add_gradle_modules(&self, found: &mut Found) {
        for root in self.roots(&["GRADLE_USER_HOME"], &[".gradle"], found) {
            let caches = root.join("caches");
            if caches.join("modules-2").is_dir() && self.grant(&caches.join("modules-2"), found) {
                found.add_reason("Gradle's modules", &self.shown(&root));
                found.export("GRADLE_RO_DEP_CACHE", &caches);
            }
        }
    }

    /// Adds a note for each settings file that builds may depend on, but that the run cannot read because it can
    /// contain tokens. The note tells users why a build may fail.
    fn note_hidden_settings(&self, name: &str, found: &mut Found) {
        let settings: &[&str] = match name {
            "rust" => &[".cargo/config.toml", ".cargo/config"],
            "node" => &[".npmrc", ".yarnrc.yml"],
            "python" => &[".config/pip/pip.conf", ".pip/pip.conf"],
            "java" => &[".m2/settings.xml", ".gradle/gradle.properties"],
            _ => &[],
        };
        for file in settings.iter().filter(|file| self.home.join(file).is_file()) {
            found.note(format!(
                "the run cannot read ~/{file}, because the file may contain tokens; to give the run a copy, add the file \
                 to `[home] import` in the policy"
            ));
        }
    }

    /// Grants access to the directories of PATH that are not part of the toolchains in `found` and `unwanted`, and that
    /// `{system}` in a policy does not cover. If such a directory is the `bin` of an installation prefix, grants access
    /// to the whole prefix instead, if [`Search::may_grant`] allows that.
    fn grant_path(&self, found: &[Toolchain], unwanted: &[Toolchain]) -> Toolchain {
        let mut granted = Found::new("path");
        let path = self.value("PATH").unwrap_or_default();
        for entry in std::env::split_paths(path).filter(|entry| entry.is_absolute()) {
            let Some(real) = self.resolve(&entry, &mut granted) else { continue };
            // Inside a checkout, a link could lead to files that git ignores, such as keys.
            if self.agent_paths.resolve(&entry).is_ok_and(|resolved| resolved.has_agent_link) {
                let shown = self.shown(&entry);
                granted.note(format!(
                    "the run gets no access to {shown}: an agent could have made the links in this path; name the real \
                     directory in PATH"
                ));
                continue;
            }
            let is_known = |toolchain: &Toolchain| toolchain.read.iter().any(|path| real.starts_with(path));
            if !real.is_dir()
                || crate::run::launch::plan::system_paths::is_granted(&real)
                || found.iter().chain(unwanted).any(is_known)
            {
                continue;
            }
            let prefix = real.parent().filter(|prefix| real.ends_with("bin") && prefix.join("lib").is_dir());
            // What an agent wrote beside the directory, such as an empty `lib`, must not widen the grant.
            let prefix = prefix.filter(|_| self.agent_paths.place_of(&real).is_none());
            let has_prefix =
                prefix.is_some_and(|prefix| self.may_grant(prefix) && self.grant(prefix, &mut granted));
            if has_prefix || self.may_grant(&real) && self.grant(&real, &mut granted) {
                granted.add_reason("PATH", &self.shown(&entry));
            }
        }
        granted.into_toolchain()
    }

    /// Returns true if guard may grant access to a directory of PATH. For a directory inside the user's home directory,
    /// leaves the check of the protected paths to [`Search::grant`]. Elsewhere, refuses `/`, a directory directly below
    /// `/` such as `/opt`, and the protected paths of another home directory: CI images often have toolchains in a home
    /// directory other than `HOME`, which may also contain keys.
    fn may_grant(&self, path: &Path) -> bool {
        let other_home = path
            .ancestors()
            .find(|level| level.parent() == Some(Path::new("/home")) || *level == Path::new("/root"));
        let is_in_home = path.starts_with(&self.real_home);
        let is_system = path.parent().is_none_or(|parent| parent == Path::new("/"));
        let is_unprotected = |home: &Path| ProtectedPaths::new(home).check_grant(path).is_ok();
        is_in_home || !is_system && other_home.is_none_or(is_unprotected)
    }

    /// Returns the real paths of a manager's or a cache's directories: the directory in the first of these variables
    /// that is set or, if none is set, those default directories that exist. Leaves out protected directories. If guard
    /// ignores the variable's value, adds a note and returns nothing.
    fn roots(&self, variables: &[&str], defaults: &[&str], found: &mut Found) -> Vec<PathBuf> {
        let named = variables.iter().find_map(|name| Some((*name, self.variable(name)?)));
        let Some((name, path)) = named else {
            let paths = defaults.iter().flat_map(|default| self.default_directories(default));
            let roots = paths.filter_map(|root| self.resolve(&root, found).filter(|root| root.is_dir()));
            return roots.filter(|root| self.protected.check_parent(root).is_ok()).collect();
        };
        if !path.is_absolute() {
            found.note(format!(
                "guard ignores the variable {name}: `{}` is not an absolute path",
                path.display()
            ));
            return Vec::new();
        }
        let Some(root) = self.resolve(&path, found).filter(|root| root.is_dir()) else { return Vec::new() };
        if let Err(problem) = self.protected.check_parent(&root) {
            found.note(format!("guard ignores the variable {name}={}: {problem}", path.display()));
            return Vec::new();
        }
        vec![root]
    }

    /// Returns the existing directories that match a default path. The path is below the home directory or, if an XDG
    /// variable such as `XDG_CACHE_HOME` is set, below the directory in that variable.
    fn default_directories(&self, default: &str) -> Vec<PathBuf> {
        let xdg_bases = [
            (".local/share/", "XDG_DATA_HOME"),
            (".cache/", "XDG_CACHE_HOME"),
            (".config/", "XDG_CONFIG_HOME"),
        ];
        let moved = xdg_bases.iter().find_map(|(prefix, variable)| {
            let rest = default.strip_prefix(prefix)?;
            self.variable(variable).filter(|base| base.is_absolute()).map(|base| (base, rest))
        });
        match moved {
            Some((base, rest)) => matching(&base, rest),
            None if self.listing.may_have(default) => matching(self.home, default),
            None => Vec::new(),
        }
    }

    /// Grants access to a path and everything below it, unless the path is missing or protected. Returns true if it
    /// granted access. Adds a note about a protected path.
    fn grant(&self, path: &Path, found: &mut Found) -> bool {
        match self.allowed(path, found) {
            Some(real) => {
                found.toolchain.read.push(real);
                true
            }
            None => false,
        }
    }

    /// Adds a layer for the user's directory `lower`, unless the path is protected or not a directory. Returns true if
    /// it added the layer. Adds a note about a protected path.
    fn add_layer(
        &self,
        lower: &Path,
        upper: PathBuf,
        (depth, offline_additions): (usize, OfflineAdditions),
        found: &mut Found,
    ) -> bool {
        match self.allowed(lower, found).filter(|real| real.is_dir()) {
            Some(lower) => {
                found.toolchain.layers.push(Layer { lower, upper, depth, offline_additions });
                true
            }
            None => false,
        }
    }

    /// Returns the real path of a path to which guard may grant access. Returns `None` if the path does not exist. If
    /// the path is protected, adds a note and returns `None`.
    fn allowed(&self, path: &Path, found: &mut Found) -> Option<PathBuf> {
        let real = self.resolve(path, found)?;
        match self.protected.check_grant(&real) {
            Ok(()) => Some(real),
            Err(problem) => {
                found.note(format!("the run gets no access to {}: {problem}", self.shown(path)));
                None
            }
        }
    }

    /// Returns the real path of an existing path. Returns `None`, with a note, if it is the target of a symbolic link that
    /// an agent may have written. A link to a directory of the system needs no note, because the run may use the target.
    fn resolve(&self, path: &Path, found: &mut Found) -> Option<PathBuf> {
        let resolved = self.agent_paths.resolve(path).ok()?;
        let Some(link) = resolved.foreign else { return Some(resolved.real) };
        if !crate::run::launch::plan::system_paths::is_granted(&link.target) {
            found.note(format!("the run gets no access to {}: {link}", self.shown(path)));
        }
        None
    }

    /// Returns the value of an environment variable. An empty value counts as unset.
    fn value(&self, name: &str) -> Option<&OsStr> {
        let is_set = |(known, value): &&(OsString, OsString)| known == name && !value.is_empty();
        self.environment.iter().find(is_set).map(|(_, value)| value.as_os_str())
    }

    /// Returns the path in an environment variable; `None` if the variable is empty or not set. GOPATH may contain
    /// several directories: returns only the first, to which Go writes.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let value = self.value(name)?;
        if name == "GOPATH" { std::env::split_paths(value).next() } else { Some(PathBuf::from(value)) }
    }

    /// Formats a path for messages, with `~` in place of the home directory.
    fn shown(&self, path: &Path) -> String {
        match path.strip_prefix(self.home).or_else(|_| path.strip_prefix(&self.real_home)) {
            Ok(rest) => Path::new("~").join(rest).display().to_string(),
            Err(_) => path.display().to_string(),
        }
    }
}

/// A toolchain to which the search is still adding paths and variables.
struct Found {
    toolchain: Toolchain,
    reasons: Vec<String>,
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
        Self { toolchain, reasons: Vec::new() }
    }

    fn add_reason(&mut self, what: &str, path: &str) {
        let reason = format!("{what} in {path}");
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    fn note(&mut self, note: String) {
        if !self.toolchain.notes.contains(&note) {
            self.toolchain.notes.push(note);
        }
    }

    /// Sets an environment variable for the run, unless it is set already: guard uses the first directory that it
    /// finds.
    fn export(&mut self, name: &str, value: &Path) {
        if !self.toolchain.variables.iter().any(|(known, _)| known == name) {
            self.toolchain.variables.push((OsString::from(name), value.into()));
        }
    }

    fn into_toolchain(mut self) -> Toolchain {
        self.toolchain.why = self.reasons.join("; ");
        self.toolchain.read = outermost(self.toolchain.read);
        self.toolchain
    }
}

/// Returns the existing paths below a directory that match a pattern, sorted. A pattern is a relative path, which may
/// end in `*`, or `.` for the directory itself.
fn matching(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let Some(start) = pattern.strip_suffix('*') else {
        let path = if pattern == "." { directory.to_path_buf() } else { directory.join(pattern) };
        return if path.exists() { vec![path] } else { Vec::new() };
    };
    let (inner, start) = start.rsplit_once('/').unwrap_or((".", start));
    let Ok(entries) = std::fs::read_dir(directory.join(inner)) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
    let mut paths: Vec<PathBuf> = names
        .filter(|name| name.as_bytes().starts_with(start.as_bytes()))
        .map(|name| if inner == "." { directory.join(name) } else { directory.join(inner).join(name) })
        .filter(|path| path.exists())
        .collect();
    paths.sort();
    paths
}
