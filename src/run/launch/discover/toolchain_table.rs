//! A table of the directories in which version managers store toolchains and package managers store caches. Changes
//! need review, because runs get access to these directories.
//!
//! guard grants access only to parts of a manager's directory, because the same directory contains settings and
//! tokens.

/// When guard sets the environment variable that contains the path of a manager's directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    /// guard never sets the variable: the manager uses its default directory in the run's private home directory.
    Never,
    /// guard sets the variable only if the user has set it.
    AsSet,
    /// guard always sets the variable: the manager would otherwise look in the run's private home directory.
    Always,
}

/// A program, such as rustup or nvm, that stores toolchains in the user's home directory.
pub(crate) struct Manager {
    pub(crate) toolchain: &'static str,
    /// The manager's name in messages to users.
    pub(crate) name: &'static str,
    /// The environment variable that contains the path of the manager's directory; empty if there is none.
    pub(crate) variable: &'static str,
    /// The manager's default directories, relative to the home directory. A name may end in `*`.
    pub(crate) defaults: &'static [&'static str],
    /// guard accepts a directory as the manager's only if it contains one of these files or directories.
    pub(crate) markers: &'static [&'static str],
    /// The parts of the manager's directory to which guard grants access. A name may end in `*`; `.` is the directory
    /// itself.
    pub(crate) parts: &'static [&'static str],
    pub(crate) export: Export,
}

const fn manager(
    toolchain: &'static str,
    name: &'static str,
    (variable, export): (&'static str, Export),
    defaults: &'static [&'static str],
    markers: &'static [&'static str],
    parts: &'static [&'static str],
) -> Manager {
    Manager { toolchain, name, variable, defaults, markers, parts, export }
}

use Export::{Always, AsSet, Never};

#[rustfmt::skip]
pub(crate) static MANAGERS: &[Manager] = &[
    // Only rustup itself uses `downloads` and `tmp`. The proxies that it installs need the settings and the
    // toolchains.
    manager("rust", "rustup", ("RUSTUP_HOME", Always), &[".rustup"], &["toolchains"], &["toolchains", "settings.toml", "update-hashes"]),
    manager("rust", "cargo", ("CARGO_HOME", Never), &[".cargo"], &["bin", "registry"], &["bin", "env"]),
    manager("rust", "asdf", ("ASDF_DATA_DIR", Always), &[".asdf"], &["installs/rust"], &["installs/rust", "plugins/rust", "bin", "lib", "libexec", "shims"]),
    manager("rust", "mise", ("MISE_DATA_DIR", Always), &[".local/share/mise"], &["installs/rust"], &["installs/rust", "shims"]),

    manager("node", "nvm", ("NVM_DIR", Always), &[".nvm", ".config/nvm"], &["versions"], &["versions", "alias", "nvm.sh", "nvm-exec"]),
    manager("node", "fnm", ("FNM_DIR", Always), &[".local/share/fnm", ".fnm"], &["node-versions"], &["node-versions", "aliases", "fnm"]),
    // Without `layout.v4` Volta would try to migrate its directory.
    manager("node", "Volta", ("VOLTA_HOME", Always), &[".volta"], &["tools"], &["tools", "bin", "layout.v*"]),
    manager("node", "n", ("N_PREFIX", Never), &["n", ".n"], &["n/versions"], &["n/versions", "bin", "lib", "include"]),
    manager("node", "npm's global directory", ("NPM_CONFIG_PREFIX", Never), &[".npm-global", ".npm-packages"], &["lib/node_modules"], &["bin", "lib/node_modules"]),
    manager("node", "pnpm", ("PNPM_HOME", Never), &[".local/share/pnpm"], &["global", "nodejs", "pnpm"], &["global", "nodejs", "bin", "pnpm", "pnpx"]),
    manager("node", "Bun", ("BUN_INSTALL", Never), &[".bun"], &["bin/bun"], &["bin", "install/global"]),
    manager("node", "Deno", ("DENO_INSTALL", Never), &[".deno"], &["bin/deno"], &["bin"]),
    manager("node", "asdf", ("ASDF_DATA_DIR", Always), &[".asdf"], &["installs/nodejs"], &["installs/nodejs", "plugins/nodejs", "bin", "lib", "libexec", "shims"]),
    manager("node", "mise", ("MISE_DATA_DIR", Always), &[".local/share/mise"], &["installs/node"], &["installs/node", "shims"]),

    manager("python", "pyenv", ("PYENV_ROOT", Always), &[".pyenv"], &["versions", "libexec"], &["versions", "shims", "bin", "libexec", "plugins", "pyenv.d", "completions", "version"]),
    manager("python", "uv", ("UV_PYTHON_INSTALL_DIR", Always), &[".local/share/uv/python"], &["cpython-*", "pypy-*"], &["cpython-*", "pypy-*"]),
    manager("python", "uv's tools", ("UV_TOOL_DIR", Never), &[".local/share/uv/tools"], &[".lock"], &["."]),
    manager("python", "pipx", ("PIPX_HOME", Never), &[".local/share/pipx", ".local/pipx"], &["venvs"], &["venvs", "shared", "py"]),
    manager("python", "conda", ("", Never), &["miniconda3", "anaconda3", "miniforge3", "mambaforge"], &["conda-meta"],
        &["bin", "condabin", "conda-meta", "envs", "etc", "include", "lib", "libexec", "share", "shell", "ssl"]),
    manager("python", "asdf", ("ASDF_DATA_DIR", Always), &[".asdf"], &["installs/python"], &["installs/python", "plugins/python", "bin", "lib", "libexec", "shims"]),
    manager("python", "mise", ("MISE_DATA_DIR", Always), &[".local/share/mise"], &["installs/python"], &["installs/python", "shims"]),

    manager("go", "Go", ("GOROOT", AsSet), &["sdk/go*", ".local/go", "go/go*"], &["bin/go"], &["bin", "src", "pkg", "lib", "misc", "api", "go.env", "VERSION"]),
    manager("go", "Go's programs", ("GOPATH", Never), &["go"], &["bin"], &["bin"]),
    manager("go", "asdf", ("ASDF_DATA_DIR", Always), &[".asdf"], &["installs/golang"], &["installs/golang", "plugins/golang", "bin", "lib", "libexec", "shims"]),
    manager("go", "mise", ("MISE_DATA_DIR", Always), &[".local/share/mise"], &["installs/go"], &["installs/go", "shims"]),

    manager("java", "SDKMAN", ("SDKMAN_DIR", Always), &[".sdkman"], &["candidates"], &["candidates", "bin", "src", "libexec", "contrib"]),
    manager("java", "the JDK", ("JAVA_HOME", AsSet), &[".jdks/*", ".gradle/jdks/*"], &["bin/java"], &["bin", "lib", "conf", "jmods", "jre", "include", "legal", "release"]),
    manager("java", "asdf", ("ASDF_DATA_DIR", Always), &[".asdf"], &["installs/java"], &["installs/java", "plugins/java", "bin", "lib", "libexec", "shims"]),
    manager("java", "mise", ("MISE_DATA_DIR", Always), &[".local/share/mise"], &["installs/java"], &["installs/java", "shims"]),
];

/// For each toolchain, the names (or prefixes of the names) of the programs that use its package caches. If a run
/// gets its caches as directories of symbolic links, guard creates the links of a toolchain when the first of these
/// programs starts, and delays the program until then.
pub(crate) static CACHE_USERS: &[(&str, &[&str])] = &[
    ("rust", &["cargo", "clippy", "maturin", "mise", "rust"]),
    ("node", &["bun", "corepack", "deno", "mise", "npm", "npx", "pnpm", "yarn"]),
    (
        "python",
        &[
            "conda", "hatch", "maturin", "mise", "nox", "pdm", "pip", "poetry", "pytest", "python", "tox",
            "uv",
        ],
    ),
    ("go", &["go", "mise"]),
    ("java", &["gradle", "java", "mise", "mvn", "sbt"]),
];

/// A package cache in the user's home directory.
pub(crate) struct Cache {
    pub(crate) toolchain: &'static str,
    /// The cache's name in messages to users.
    pub(crate) name: &'static str,
    /// Environment variables that contain the path of the cache's root directory. guard uses the first one that is
    /// set.
    pub(crate) variables: &'static [&'static str],
    /// The cache's default root directory, relative to the user's home directory. The run finds the cache at the same
    /// path in its private home directory.
    pub(crate) default: &'static str,
    /// The path of the cache below its root directory. A `*` at the end stands for the rest of a file name.
    pub(crate) part: &'static str,
    /// For a run that gets the cache as symbolic links: how many levels of directories below the top directory of the
    /// cache are real directories, to which the run can add entries. Everything below them is a link.
    pub(crate) depth: usize,
    pub(crate) offline_use: OfflineUse,
}

/// How programs use a cache in a run without network access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfflineUse {
    Adds,
    Reads,
    /// Programs only add entries that they unpack from archives in this subdirectory of the cache's root directory.
    Unpacks(&'static str),
}

const fn cache(
    toolchain: &'static str,
    name: &'static str,
    variables: &'static [&'static str],
    default: &'static str,
    part: &'static str,
    (depth, offline_use): (usize, OfflineUse),
) -> Cache {
    Cache { toolchain, name, variables, default, part, depth, offline_use }
}

use OfflineUse::{Adds, Reads, Unpacks};

#[rustfmt::skip]
pub(crate) static CACHES: &[Cache] = &[
    // Without network access, cargo needs no new index entries: it continues if it cannot write one. It never changes
    // the directory of an unpacked crate.
    cache("rust", "cargo's packages", &["CARGO_HOME"], ".cargo", "registry/index", (2, Reads)),
    cache("rust", "cargo's packages", &["CARGO_HOME"], ".cargo", "registry/cache", (1, Reads)),
    cache("rust", "cargo's packages", &["CARGO_HOME"], ".cargo", "registry/src", (1, Unpacks("registry/cache"))),
    cache("rust", "cargo's repositories", &["CARGO_HOME"], ".cargo", "git/db", (0, Adds)),
    cache("rust", "cargo's repositories", &["CARGO_HOME"], ".cargo", "git/checkouts", (1, Adds)),

    // npm stores contents in a directory for each type of hash, below which are two levels of directories that are
    // named after the first digits of the hash.
    cache("node", "npm's cache", &["npm_config_cache", "NPM_CONFIG_CACHE"], ".npm", "_cacache/content-v2", (3, Adds)),
    cache("node", "npm's cache", &["npm_config_cache", "NPM_CONFIG_CACHE"], ".npm", "_cacache/index-v5", (2, Adds)),
    cache("node", "Yarn's cache", &["YARN_CACHE_FOLDER"], ".cache/yarn", "v6", (0, Adds)),
    cache("node", "Yarn's cache", &["YARN_GLOBAL_FOLDER"], ".yarn/berry", "cache", (0, Adds)),

    // pip does not need to write its HTTP cache, but it must be able to add wheels.
    cache("python", "pip's cache", &["PIP_CACHE_DIR"], ".cache/pip", "http*", (0, Adds)),
    cache("python", "pip's cache", &["PIP_CACHE_DIR"], ".cache/pip", "wheels", (3, Adds)),
    cache("python", "uv's cache", &["UV_CACHE_DIR"], ".cache/uv", "archive-v*", (0, Adds)),
    cache("python", "uv's cache", &["UV_CACHE_DIR"], ".cache/uv", "wheels-v*", (2, Adds)),
    cache("python", "uv's cache", &["UV_CACHE_DIR"], ".cache/uv", "simple-v*", (1, Adds)),

    // The depth of an artifact depends on the number of parts in the name of its group.
    cache("java", "Maven's repository", &[], ".m2", "repository", (8, Adds)),
    cache("java", "Gradle's wrappers", &["GRADLE_USER_HOME"], ".gradle", "wrapper/dists", (2, Adds)),
];
