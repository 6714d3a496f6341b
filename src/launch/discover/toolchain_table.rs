//! Where programs that keep toolchains and package caches put them, as reviewed data.
//!
//! Only parts of a manager's directory are ever granted: settings and tokens lie beside compilers.

/// When the variable that names a manager's directory is set for the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    /// The run has a directory of its own in its private home.
    Never,
    /// The user has set it.
    AsSet,
    /// Always: the manager would look in the private home otherwise.
    Always,
}

/// A program that keeps a toolchain in the user's home.
pub(crate) struct Manager {
    pub(crate) toolchain: &'static str,
    /// For people.
    pub(crate) name: &'static str,
    /// The variable that says where its directory is; empty when there is none.
    pub(crate) variable: &'static str,
    /// Where the directory is otherwise, below the home. A name may end in `*`.
    pub(crate) usual: &'static [&'static str],
    /// One of these is in such a directory.
    pub(crate) marks: &'static [&'static str],
    /// What of it is granted. A name may end in `*`; `.` is the directory itself.
    pub(crate) parts: &'static [&'static str],
    pub(crate) export: Export,
}

const fn manager(
    toolchain: &'static str,
    name: &'static str,
    (variable, export): (&'static str, Export),
    usual: &'static [&'static str],
    marks: &'static [&'static str],
    parts: &'static [&'static str],
) -> Manager {
    Manager { toolchain, name, variable, usual, marks, parts, export }
}

use Export::{Always, AsSet, Never};

#[rustfmt::skip]
pub(crate) static MANAGERS: &[Manager] = &[
    // `downloads` and `tmp` are rustup's own; a proxy needs the settings and the toolchains.
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

/// What programs that use the package caches of a toolchain are called, or how their names begin: where a cache takes time
/// to be made, it is made for the first of them, and they wait for it. A run without any finds it empty.
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

/// A package cache in the user's home.
pub(crate) struct Cache {
    pub(crate) toolchain: &'static str,
    /// For people.
    pub(crate) name: &'static str,
    /// Variables that say where its directory is, the first that is set.
    pub(crate) variables: &'static [&'static str],
    /// Where the directory is otherwise, below the home; and where it is in the private home.
    pub(crate) usual: &'static str,
    /// The cache in that directory. A name may end in `*`.
    pub(crate) part: &'static str,
    pub(crate) depth: usize,
    pub(crate) unfetched: Unfetched,
}

/// What becomes of a cache when the run can fetch nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfetched {
    /// Programs may add to it all the same.
    Grows,
    /// Nothing is added.
    Stays,
    /// Nothing is added but what is unpacked from this part of the manager's directory.
    Unpacks(&'static str),
}

const fn cache(
    toolchain: &'static str,
    name: &'static str,
    variables: &'static [&'static str],
    usual: &'static str,
    part: &'static str,
    (depth, unfetched): (usize, Unfetched),
) -> Cache {
    Cache { toolchain, name, variables, usual, part, depth, unfetched }
}

use Unfetched::{Grows, Stays, Unpacks};

#[rustfmt::skip]
pub(crate) static CACHES: &[Cache] = &[
    // cargo writes an index entry when it can and goes on when it cannot; directories of single crates are never changed.
    cache("rust", "cargo's packages", &["CARGO_HOME"], ".cargo", "registry/index", (2, Stays)),
    cache("rust", "cargo's packages", &["CARGO_HOME"], ".cargo", "registry/cache", (1, Stays)),
    cache("rust", "cargo's packages", &["CARGO_HOME"], ".cargo", "registry/src", (1, Unpacks("registry/cache"))),
    cache("rust", "cargo's repositories", &["CARGO_HOME"], ".cargo", "git/db", (0, Grows)),
    cache("rust", "cargo's repositories", &["CARGO_HOME"], ".cargo", "git/checkouts", (1, Grows)),

    // Contents are filed by the first four digits of their hash, in two levels of directories below the kind of hash.
    cache("node", "npm's cache", &["npm_config_cache", "NPM_CONFIG_CACHE"], ".npm", "_cacache/content-v2", (3, Grows)),
    cache("node", "npm's cache", &["npm_config_cache", "NPM_CONFIG_CACHE"], ".npm", "_cacache/index-v5", (2, Grows)),
    cache("node", "Yarn's cache", &["YARN_CACHE_FOLDER"], ".cache/yarn", "v6", (0, Grows)),
    cache("node", "Yarn's cache", &["YARN_GLOBAL_FOLDER"], ".yarn/berry", "cache", (0, Grows)),

    // pip does without what it cannot write of its HTTP cache; wheels it must be able to add.
    cache("python", "pip's cache", &["PIP_CACHE_DIR"], ".cache/pip", "http*", (0, Grows)),
    cache("python", "pip's cache", &["PIP_CACHE_DIR"], ".cache/pip", "wheels", (3, Grows)),
    cache("python", "uv's cache", &["UV_CACHE_DIR"], ".cache/uv", "archive-v*", (0, Grows)),
    cache("python", "uv's cache", &["UV_CACHE_DIR"], ".cache/uv", "wheels-v*", (2, Grows)),
    cache("python", "uv's cache", &["UV_CACHE_DIR"], ".cache/uv", "simple-v*", (1, Grows)),

    // Artifacts lie as deep as their group's name has parts.
    cache("java", "Maven's repository", &[], ".m2", "repository", (8, Grows)),
    cache("java", "Gradle's wrappers", &["GRADLE_USER_HOME"], ".gradle", "wrapper/dists", (2, Grows)),
];
