//! Tests which parts of a home directory guard grants to a run as toolchains, and which parts it never grants.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use guard::judge::policy::{Caches, TOOLCHAINS};
use guard::run::launch::discover::toolchains::{Layer, Toolchain, detect};
use guard::sys::agent_paths::AgentPaths;

use crate::support::{Scratch, skip, skip_unsupported};

fn all() -> Vec<String> {
    TOOLCHAINS.map(str::to_string).to_vec()
}

fn environment(variables: &[(&str, &Path)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| (OsString::from(name), value.as_os_str().to_owned())).collect()
}

fn agent_paths(home: &Path) -> AgentPaths {
    AgentPaths::read(Some(home), None).expect("there is no record")
}

fn found(home: &Path, variables: &[(&str, &Path)]) -> Vec<Toolchain> {
    detect(home, &environment(variables), &all(), Caches::Shared, &agent_paths(home))
}

/// Returns all paths that these toolchains make readable.
fn readable(found: &[Toolchain]) -> Vec<PathBuf> {
    let layers = found.iter().flat_map(|toolchain| toolchain.layers.iter().map(|layer| layer.lower.clone()));
    found.iter().flat_map(|toolchain| toolchain.read.clone()).chain(layers).collect()
}

fn reaches(found: &[Toolchain], path: &Path) -> bool {
    readable(found).iter().any(|granted| path.starts_with(granted))
}

fn named<'t>(found: &'t [Toolchain], name: &str) -> &'t Toolchain {
    found.iter().find(|toolchain| toolchain.name == name).unwrap_or_else(|| panic!("no {name} in {found:#?}"))
}

fn notes(found: &[Toolchain]) -> String {
    found.iter().flat_map(|toolchain| toolchain.notes.clone()).collect::<Vec<_>>().join("\n")
}

/// Creates a home directory with files of every toolchain, and with files that guard must hide from runs.
fn full_home() -> Scratch {
    let home = Scratch::new("home");
    for file in WANTED.iter().chain(SECRET) {
        home.write(file, "x");
    }
    home
}

const WANTED: &[&str] = &[
    ".rustup/settings.toml",
    ".rustup/toolchains/stable/bin/rustc",
    ".cargo/bin/cargo",
    ".cargo/registry/index/example-1/.cache/se/rd/serde",
    ".cargo/registry/cache/example-1/serde-1.0.0.crate",
    ".cargo/registry/src/example-1/serde-1.0.0/lib.rs",
    ".cargo/git/db/x/HEAD",
    ".nvm/versions/node/v20.1.0/bin/node",
    ".nvm/nvm.sh",
    ".volta/tools/image/node/20/bin/node",
    ".volta/bin/volta",
    ".local/share/fnm/node-versions/v20/installation/bin/node",
    ".local/share/mise/installs/node/20/bin/node",
    ".npm/_cacache/content-v2/sha512/ab/cd/ef",
    ".pyenv/versions/3.12/bin/python",
    ".pyenv/shims/python",
    ".local/share/uv/python/cpython-3.12/bin/python",
    ".local/share/pipx/venvs/black/bin/black",
    ".local/lib/python3.11/site-packages/six.py",
    ".cache/uv/archive-v0/abc/six.py",
    ".cache/pip/http-v2/a/b",
    ".cache/pip/wheels/ab/cd/ef/0123/x.whl",
    "sdk/go1.22/bin/go",
    "go/bin/gopls",
    "go/pkg/mod/cache/download/github.com/a/b/@v/list",
    "go/pkg/mod/github.com/a/b@v1/b.go",
    "go/pkg/mod/gopkg.in/yaml.v3@v3/y.go",
    ".sdkman/candidates/java/17/bin/java",
    ".m2/repository/org/a/1/a.jar",
    ".gradle/caches/modules-2/files-2.1/a",
    ".gradle/wrapper/dists/gradle-8/abc/gradle-8/bin/gradle",
];

const SECRET: &[&str] = &[
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".gnupg/x",
    ".config/gh/hosts.yml",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".config/pip/pip.conf",
    ".gitconfig",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".cargo/config.toml",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".gradle/daemon/log",
    ".npm/_logs/today.log",
    ".local/share/keyrings/login.keyring",
    ".local/share/mise/other",
    ".bash_history",
    "work/customer/notes.txt",
    "go/src/private/main.go",
    ".sdkman/etc/config",
    ".rustup/downloads/x",
];

#[test]
fn toolchains_of_a_full_home_are_granted_and_its_secrets_are_not() {
    let home = full_home();
    let found = found(&home.0, &[("PATH", &home.0.join(".cargo/bin"))]);
    for file in WANTED {
        assert!(reaches(&found, &home.0.join(file)), "{file} is not granted: {found:#?}");
    }
    for file in SECRET {
        assert!(!reaches(&found, &home.0.join(file)), "{file} is granted: {found:#?}");
    }
    for path in readable(&found) {
        assert_eq!(path, path.canonicalize().unwrap());
    }
    let shown = notes(&found);
    assert!(shown.contains("~/.cargo/config.toml") && shown.contains("~/.npmrc"), "{shown}");
}

#[test]
fn rust_toolchain_has_proxies_settings_and_cache_layers() {
    let home = full_home();
    let found = found(&home.0, &[]);
    let rust = named(&found, "rust");
    assert!(rust.why.contains("rustup in ~/.rustup"), "{}", rust.why);
    assert_eq!(rust.variables, environment(&[("RUSTUP_HOME", &home.0.join(".rustup"))]));
    let uppers: Vec<(&Path, usize)> =
        rust.layers.iter().map(|layer| (layer.upper.as_path(), layer.depth)).collect();
    assert_eq!(
        uppers,
        [
            (Path::new(".cargo/registry/index"), 2),
            (Path::new(".cargo/registry/cache"), 1),
            (Path::new(".cargo/registry/src"), 1),
            (Path::new(".cargo/git/db"), 0),
        ]
    );
}

#[test]
fn go_module_cache_is_layered_at_module_depth() {
    let home = full_home();
    let found = found(&home.0, &[]);
    let go = named(&found, "go");
    let depth = |upper: &str| go.layers.iter().find(|layer| layer.upper == Path::new(upper)).map(|l| l.depth);
    assert_eq!(depth("go/pkg/mod/cache/download"), Some(4));
    assert_eq!(depth("go/pkg/mod/github.com"), Some(1));
    assert_eq!(depth("go/pkg/mod/gopkg.in"), Some(0));
    assert!(
        go.variables.is_empty(),
        "GOPATH, GOMODCACHE and GOCACHE are the private home's: {:?}",
        go.variables
    );
}

#[test]
fn private_caches_contain_nothing_of_the_user() {
    let home = full_home();
    let found = detect(&home.0, &[], &all(), Caches::Private, &agent_paths(&home.0));
    for file in [
        ".cargo/registry/cache/example-1/serde-1.0.0.crate",
        ".m2/repository/org/a/1/a.jar",
        ".cache/pip/http-v2/a/b",
    ] {
        assert!(!reaches(&found, &home.0.join(file)), "{file}");
    }
    assert!(reaches(&found, &home.0.join(".rustup/toolchains/stable/bin/rustc")));
    // Installed packages are not a cache: without them the user's programs would not start.
    assert!(reaches(&found, &home.0.join(".local/lib/python3.11/site-packages/six.py")));
    assert!(
        !found
            .iter()
            .any(|toolchain| toolchain.variables.iter().any(|(name, _)| name == "GRADLE_RO_DEP_CACHE"))
    );
}

#[test]
fn toolchains_not_in_the_policy_are_not_granted_through_path() {
    let home = full_home();
    home.write("bin/tool", "x");
    let bin = home.0.join(".nvm/versions/node/v20.1.0/bin");
    let path = std::env::join_paths([bin.clone(), home.0.join("bin"), home.0.join(".cargo/bin")]).unwrap();
    let environment = [(OsString::from("PATH"), path)];
    let found = detect(&home.0, &environment, &["rust".to_string()], Caches::Shared, &agent_paths(&home.0));
    assert!(!reaches(&found, &bin.join("node")));
    assert_eq!(named(&found, "path").read, [home.0.join("bin")]);
    assert_eq!(found.iter().map(|toolchain| toolchain.name).collect::<Vec<_>>(), ["rust", "path"]);
    assert!(detect(&home.0, &environment, &[], Caches::Shared, &agent_paths(&home.0)).is_empty());
}

#[test]
fn toolchain_variables_cannot_grant_the_home_or_its_parents() {
    let home = full_home();
    // The home itself looks like a toolchain, so that only the rule about home directories can refuse it.
    for folder in
        ["toolchains", "bin", "registry", "versions", "cache/download", "candidates", "conda-meta", "tools"]
    {
        std::fs::create_dir_all(home.0.join(folder)).unwrap();
    }
    home.write("bin/go", "x");
    home.write("bin/java", "x");
    let variables = [
        "RUSTUP_HOME",
        "CARGO_HOME",
        "NVM_DIR",
        "FNM_DIR",
        "VOLTA_HOME",
        "N_PREFIX",
        "NPM_CONFIG_PREFIX",
        "PNPM_HOME",
        "BUN_INSTALL",
        "DENO_INSTALL",
        "ASDF_DATA_DIR",
        "MISE_DATA_DIR",
        "PYENV_ROOT",
        "UV_PYTHON_INSTALL_DIR",
        "UV_TOOL_DIR",
        "PIPX_HOME",
        "GOROOT",
        "GOPATH",
        "GOMODCACHE",
        "SDKMAN_DIR",
        "JAVA_HOME",
        "GRADLE_USER_HOME",
        "PIP_CACHE_DIR",
        "UV_CACHE_DIR",
        "npm_config_cache",
        "XDG_DATA_HOME",
        "XDG_CACHE_HOME",
        "PATH",
    ];
    let above = home.0.parent().unwrap().to_path_buf();
    let around = home.0.join("sdk/../../").join(home.0.file_name().unwrap());
    let link = home.0.join("sdk/link");
    symlink(&home.0, &link).unwrap();
    let places = [
        home.0.clone(),
        above,
        around,
        link,
        PathBuf::from("/"),
        home.0.join(".ssh"),
        home.0.join(".config"),
    ];
    for place in places {
        for variable in variables {
            let found = found(&home.0, &[(variable, &place)]);
            for path in readable(&found) {
                assert!(!home.0.starts_with(&path), "{variable}={}: {path:?}", place.display());
            }
            for file in SECRET {
                assert!(!reaches(&found, &home.0.join(file)), "{variable}={} grants {file}", place.display());
            }
        }
    }
    let shown = notes(&found(
        &home.0,
        &[("RUSTUP_HOME", &home.0), ("CARGO_HOME", Path::new("/")), ("GOPATH", Path::new("go"))],
    ));
    assert!(
        shown.contains("RUSTUP_HOME=") && shown.contains("guard ignores the variable CARGO_HOME=/:"),
        "{shown}"
    );
    assert!(shown.contains("guard ignores the variable GOPATH: `go` is not an absolute path"), "{shown}");
}

#[test]
fn links_out_of_a_toolchain_grant_no_secret() {
    let home = Scratch::new("links");
    home.write(".ssh/id", "x");
    home.write(".rustup/settings.toml", "x");
    symlink(home.0.join(".ssh"), home.0.join(".rustup/toolchains")).unwrap();
    std::fs::create_dir_all(home.0.join(".volta")).unwrap();
    symlink(&home.0, home.0.join(".volta/tools")).unwrap();
    std::fs::create_dir_all(home.0.join(".m2")).unwrap();
    symlink("/", home.0.join(".m2/repository")).unwrap();
    let found = found(&home.0, &[]);
    assert!(!reaches(&found, &home.0.join(".ssh/id")), "{found:#?}");
    assert!(notes(&found).contains("the run gets no access to ~/.rustup/toolchains"), "{found:#?}");
    assert!(readable(&found).iter().all(|path| !home.0.starts_with(path)), "{found:#?}");
}

#[test]
fn secret_directory_behind_a_link_is_not_granted() {
    let home = Scratch::new("moved");
    home.write("vault/keys/id", "x");
    home.write("vault/bin/tool", "x");
    symlink(home.0.join("vault"), home.0.join(".ssh")).unwrap();
    let found = found(&home.0, &[("PATH", &home.0.join("vault/bin"))]);
    assert!(readable(&found).is_empty(), "{found:#?}");
}

#[test]
fn toolchains_behind_links_are_granted_at_their_real_paths() {
    let home = full_home();
    let place = Scratch::new("place");
    std::fs::rename(home.0.join(".rustup"), place.0.join("rustup")).unwrap();
    symlink(place.0.join("rustup"), home.0.join(".rustup")).unwrap();
    place.write("built/bin/rustc", "x");
    symlink(place.0.join("built"), place.0.join("rustup/toolchains/mine")).unwrap();
    let link = place.0.join("home");
    symlink(&home.0, &link).unwrap();
    let found = found(&link, &[]);
    assert!(reaches(&found, &place.0.join("rustup/toolchains/stable/bin/rustc")), "{found:#?}");
    assert!(reaches(&found, &place.0.join("built/bin/rustc")), "a linked toolchain: {found:#?}");
    assert!(!reaches(&found, &home.0.join(".cargo/credentials")));
}

#[test]
fn unusual_home_directories_are_searched_without_failure() {
    let home = Scratch::new("odd-home");
    symlink("loop", home.0.join("loop")).unwrap();
    symlink(home.0.join("loop"), home.0.join(".rustup")).unwrap();
    symlink("/nonexistent", home.0.join(".cargo")).unwrap();
    home.write(".nvm", "a file where a folder should be");
    home.write(".pyenv/versions", "a file");
    let odd = OsStr::from_bytes(b"v20-\xff\xfe");
    std::fs::create_dir_all(home.0.join("sdk").join("go\u{fffd}")).unwrap();
    std::fs::create_dir_all(home.0.join(".volta/tools").join(odd)).unwrap();
    let bad = home.0.join(OsString::from_vec(b"bin-\xff".to_vec()));
    std::fs::create_dir_all(&bad).unwrap();
    let found = found(&home.0, &[("PATH", &bad)]);
    assert_eq!(named(&found, "path").read, [bad]);
    assert!(reaches(&found, &home.0.join(".volta/tools").join(odd)));
    assert!(!found.iter().any(|toolchain| toolchain.name == "rust"), "{found:#?}");
    assert!(
        detect(Path::new("/nonexistent/home"), &[], &all(), Caches::Shared, &AgentPaths::default())
            .is_empty()
    );
    assert!(detect(Path::new("relative"), &[], &all(), Caches::Shared, &AgentPaths::default()).is_empty());
}

#[test]
fn unreadable_toolchain_directories_are_skipped() {
    use std::os::unix::fs::PermissionsExt;
    let home = full_home();
    std::fs::set_permissions(home.0.join("sdk"), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read_dir(home.0.join("sdk")).is_ok() {
        skip_unsupported("a directory that cannot be read", "this user can read everything");
    } else {
        assert!(!reaches(&found(&home.0, &[]), &home.0.join("sdk/go1.22/bin/go")));
    }
    std::fs::set_permissions(home.0.join("sdk"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn lock_files_are_not_linked_into_caches() {
    for name in [".lock", "lock", "modules-2.lock", "gradle-8.zip.lck", "gradle-8.zip.part"] {
        assert!(Layer::is_omitted(OsStr::new(name)), "{name}");
    }
    for name in ["Cargo.lock.crate", "lock.js", "block", "serde-1.0.0.crate"] {
        assert!(!Layer::is_omitted(OsStr::new(name)), "{name}");
    }
}

/// rustc of the installed rustup must run with a home that has only what guard found. Skipped if rustup is not
/// installed.
#[test]
fn real_rustup_works_from_a_private_home() {
    let home = std::env::home_dir().unwrap();
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let found = detect(&home, &environment, &all(), Caches::Shared, &agent_paths(&home));
    let rustc = home.join(".cargo/bin/rustc");
    let Some(rust) = found.iter().find(|toolchain| toolchain.name == "rust").filter(|_| rustc.is_file())
    else {
        skip("rustup from a private home", "there is no rustup in this home");
        return;
    };
    let private = Scratch::new("private");
    let output = std::process::Command::new(&rustc)
        .arg("--version")
        .env_clear()
        .env("HOME", &private.0)
        .env("PATH", "/usr/bin:/bin")
        .envs(rust.variables.iter().map(|(name, value)| (name, value)))
        .current_dir(&private.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(rust.read.iter().any(|path| rustc.canonicalize().unwrap().starts_with(path)), "{:?}", rust.read);
    assert!(!reaches(&found, &home.join(".cargo/credentials.toml")));
}
