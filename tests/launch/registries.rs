//! Tests how guard finds the hosts of package registries from the settings in a home directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::run::launch::discover::registries::{Registries, Tool, find_registries, find_registries_with};

use crate::support::{Scratch, make_program, skip};

/// A home directory, an `/etc`, and a directory with programs, from which guard finds the registries.
struct RegistryFixture(Scratch);

impl RegistryFixture {
    fn new() -> Self {
        let fixture = Self(Scratch::new("registries"));
        for folder in ["home", "etc", "bin", "work/.git", "work/below"] {
            std::fs::create_dir_all(fixture.0.0.join(folder)).unwrap();
        }
        fixture
    }

    fn with(self, path: &str, text: &str) -> Self {
        let path = self.0.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// Adds a program that runs `script`, and that adds a line to the file `started` each time it starts.
    fn program(self, name: &str, script: &str) -> Self {
        let text = format!("#!/bin/sh\necho x >> {}\n{script}\n", self.0.0.join("started").display());
        make_program(&self.0.0.join("bin").join(name), text);
        self
    }

    fn starts(&self) -> usize {
        std::fs::read_to_string(self.0.0.join("started")).unwrap_or_default().lines().count()
    }

    fn of(&self, tool: Tool, variables: &[(&str, &str)]) -> Registries {
        let path = std::env::join_paths([self.0.0.join("bin"), "/usr/bin".into(), "/bin".into()]).unwrap();
        let mut environment: Vec<(OsString, OsString)> =
            variables.iter().map(|(key, value)| (key.into(), value.into())).collect();
        // If the fixture has no programs, PATH must not lead to the tools that are installed on this machine.
        let asks = self.0.0.join("bin").read_dir().unwrap().next().is_some();
        environment.push(("PATH".into(), if asks { path } else { self.0.0.join("bin").into() }));
        find_registries_with(
            tool,
            Some(&self.0.0.join("home")),
            &environment,
            &self.0.0.join("etc"),
            Some(&self.0.0.join("work")),
        )
    }
}

#[track_caller]
fn entries(found: &Registries, expected: &[&str]) {
    assert_eq!(found.entries, expected, "{found:?}");
}

#[track_caller]
fn one_note(found: &Registries, part: &str) {
    assert!(found.notes.len() == 1 && found.notes[0].contains(part), "{part}: {found:?}");
}

#[test]
fn missing_registry_settings_become_a_note_with_the_policy_key() {
    for (tool, name) in [(Tool::Cargo, "cargo"), (Tool::Npm, "npm"), (Tool::Pip, "pip"), (Tool::Apt, "apt")] {
        let found = RegistryFixture::new().of(tool, &[]);
        entries(&found, &[]);
        one_note(&found, name);
        one_note(&found, "[network] allow = [\"HOST:443\"]");
    }
    entries(&find_registries(Tool::Cargo, None, &[]), &[]);
    entries(&find_registries(Tool::Npm, Some(Path::new("relative")), &[]), &[]);
}

const INDEX: &str = "home/.cargo/registry/index";

#[test]
fn cargo_registries_come_from_its_cache() {
    // cargo's cache has an index with known settings, one without settings, and an older index that is a git
    // repository.
    let fixture = RegistryFixture::new()
        .with(
            &format!("{INDEX}/index.crates.example-0123456789abcdef/config.json"),
            r#"{"dl":"https://files.crates.example/{crate}/{version}","api":"https://crates.example"}"#,
        )
        .with(&format!("{INDEX}/index.other.example-0123456789abcdef/.cache/x"), "")
        .with(&format!("{INDEX}/git.example-0123456789abcdef/.git/HEAD"), "")
        .with(&format!("{INDEX}/nonsense/config.json"), "{}");
    let found = fixture.of(Tool::Cargo, &[]);
    let expected = [
        "index.crates.example:443",
        "files.crates.example:443",
        "index.other.example:443",
        "static.other.example:443",
    ];
    entries(&found, &expected);
    one_note(&found, "git repository");
    // With another CARGO_HOME guard must find nothing.
    entries(&fixture.of(Tool::Cargo, &[("CARGO_HOME", "/nonexistent")]), &[]);
}

/// If cargo has no cache yet, guard must run it once, and must learn the registry from its request to guard's proxy.
#[test]
fn cargo_without_a_cache_is_asked_once() {
    let script = "[ \"$1 $CARGO_NET_OFFLINE\" = 'search false' ] && [ -d \"$CARGO_HOME\" ] || exit 1
        exec curl -s -o /dev/null -x \"$CARGO_HTTP_PROXY\" https://index.crates.example/config.json";
    let fixture = RegistryFixture::new().program("cargo", script);
    for _ in 0..2 {
        let variables =
            [("HTTPS_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "*"), ("CARGO_NET_OFFLINE", "true")];
        entries(
            &fixture.of(Tool::Cargo, &variables),
            &["index.crates.example:443", "static.crates.example:443"],
        );
    }
    assert_eq!(fixture.starts(), 1);
    // If the settings replace the default registry, guard must not ask cargo. If cargo has a cache, guard must use
    // the cache.
    let mirror = "[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\nregistry = \"sparse+http://mirror.example/\"\n";
    entries(
        &RegistryFixture::new()
            .program("cargo", script)
            .with("home/.cargo/config.toml", mirror)
            .of(Tool::Cargo, &[]),
        &["mirror.example:80"],
    );
    let index = format!("{INDEX}/index.used.example-0123456789abcdef/config.json");
    let dl = r#"{"dl":"https://static.used.example/crates"}"#;
    let used = RegistryFixture::new().program("cargo", script).with(&index, dl);
    entries(&used.of(Tool::Cargo, &[]), &["index.used.example:443", "static.used.example:443"]);
    assert_eq!(used.starts(), 0);
}

/// guard allows the host that cargo requests. It must ignore other clients that connect first, a host that serves other
/// data, and a cargo that requests nothing.
#[test]
fn registry_of_cargo_is_learned_only_from_cargo_itself() {
    let stranger = "port=${CARGO_HTTP_PROXY##*:}
        curl -s -o /dev/null -x http://127.0.0.1:$port https://index.stranger.example/
        curl -s -o /dev/null -x http://guard:guessed@127.0.0.1:$port https://index.stranger.example/
        exec curl -s -o /dev/null -x $CARGO_HTTP_PROXY https://index.crates.example/";
    let found = RegistryFixture::new().program("cargo", stranger).of(Tool::Cargo, &[]);
    entries(&found, &["index.crates.example:443", "static.crates.example:443"]);
    let older = "exec curl -s -o /dev/null -x $CARGO_HTTP_PROXY https://everything.example/index.git";
    let found = RegistryFixture::new().program("cargo", older).of(Tool::Cargo, &[]);
    entries(&found, &[]);
    assert!(
        found.notes.iter().any(|note| note.contains("that host may serve more than crates")),
        "{found:?}"
    );
    for script in ["exit 0", "exec curl -s -o /dev/null -x $CARGO_HTTP_PROXY http://index.plain.example/"] {
        entries(&RegistryFixture::new().program("cargo", script).of(Tool::Cargo, &[]), &[]);
    }
}

#[test]
fn cargo_registries_come_from_its_settings() {
    let index = format!("{INDEX}/index.crates.example-0123456789abcdef/config.json");
    let dl = r#"{"dl":"https://static.crates.example/crates"}"#;
    let own = "[registries.own]\nindex = \"sparse+https://user:secret@own.example:8443/index/\"\n";
    let found =
        RegistryFixture::new().with(&index, dl).with("home/.cargo/config.toml", own).of(Tool::Cargo, &[]);
    entries(&found, &["own.example:8443", "index.crates.example:443", "static.crates.example:443"]);
    let mirror = "[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\nregistry = \"sparse+http://mirror.example/\"\n";
    let fixture = RegistryFixture::new().with(&index, dl).with("home/.cargo/config.toml", mirror);
    entries(&fixture.of(Tool::Cargo, &[]), &["mirror.example:80"]);
    // If the old file `config` exists beside `config.toml`, guard must use it, as cargo does.
    let fixture = fixture.with("home/.cargo/config", "");
    entries(&fixture.of(Tool::Cargo, &[]), &["index.crates.example:443", "static.crates.example:443"]);
    let variable = ("CARGO_REGISTRIES_TEAM_INDEX", "sparse+https://index.team.example/");
    let found = RegistryFixture::new().of(Tool::Cargo, &[variable]);
    entries(&found, &["index.team.example:443", "static.team.example:443"]);
    let vendored = "[source.crates-io]\nreplace-with = \"v\"\n[source.v]\ndirectory = \"vendor\"\n";
    entries(
        &RegistryFixture::new()
            .with(&index, dl)
            .with("home/.cargo/config.toml", vendored)
            .of(Tool::Cargo, &[]),
        &[],
    );
}

#[test]
fn invalid_registry_settings_become_notes_without_secrets() {
    let broken =
        RegistryFixture::new().with("home/.cargo/config.toml", "token = \"secret").of(Tool::Cargo, &[]);
    assert!(broken.notes[0].contains("config.toml is not valid TOML"), "{broken:?}");
    let odd = "registry=gopher://user:secret@x.example/\n";
    let odd = RegistryFixture::new().with("home/.npmrc", odd).of(Tool::Npm, &[]);
    assert!(odd.notes[0].contains("a URL that guard cannot parse"), "{odd:?}");
    let fixture = RegistryFixture::new();
    std::fs::create_dir_all(fixture.0.0.join("home/.npmrc")).unwrap();
    let folder = fixture.of(Tool::Npm, &[]);
    assert!(folder.notes[0].contains("not a regular file"), "{folder:?}");
    let fixture = RegistryFixture::new().with("home/.npmrc", &"#".repeat(2 << 20));
    let long = fixture.of(Tool::Npm, &[]);
    assert!(long.notes[0].contains("too large"), "{long:?}");
    let fixture = RegistryFixture::new();
    std::fs::write(fixture.0.0.join("etc/pip.conf"), b"[global]\nindex-url = \xff").unwrap();
    let binary = fixture.of(Tool::Pip, &[]);
    assert!(
        binary.notes[0].contains("guard does not read") && binary.notes[0].contains("pip.conf: "),
        "{binary:?}"
    );
    for found in [broken, odd, folder, long, binary] {
        assert!(found.entries.is_empty());
        assert!(!format!("{found:?}").contains("secret"), "{found:?}");
    }
}

#[test]
fn npm_registries_come_from_its_settings() {
    let npmrc = "; mine\nregistry = https://npm.example/repository/npm/\n@team:registry=https://${TEAM}/\n//npm.example/:_authToken=secret\n";
    let fixture = RegistryFixture::new().with("home/.npmrc", npmrc);
    entries(&fixture.of(Tool::Npm, &[("TEAM", "team.example")]), &["npm.example:443", "team.example:443"]);
    let found =
        fixture.of(Tool::Npm, &[("TEAM", "t.example"), ("NPM_Config_Registry", "http://env.example:4873")]);
    entries(&found, &["env.example:4873", "t.example:443"]);
    let fixture = RegistryFixture::new()
        .with("home/etc/npmrc", "registry=https://prefix.example")
        .with("home/.npmrc", "prefix=~/\n");
    entries(&fixture.of(Tool::Npm, &[]), &["prefix.example:443"]);
    let fixture = RegistryFixture::new().with("other", "registry=https://other.example");
    let other = fixture.0.0.join("other");
    let found = fixture.of(Tool::Npm, &[("npm_config_userconfig", other.to_str().unwrap())]);
    entries(&found, &["other.example:443"]);
}

#[test]
fn package_tool_is_asked_for_its_registry_once() {
    let npm = "[ \"$*\" = 'config get registry' ] && echo https://default.example/";
    let fixture =
        RegistryFixture::new().program("npm", npm).with("home/.npmrc", "@s:registry=https://scope.example\n");
    for _ in 0..2 {
        entries(&fixture.of(Tool::Npm, &[]), &["scope.example:443", "default.example:443"]);
    }
    assert_eq!(fixture.starts(), 1);
    assert!(fixture.0.0.join("home/.local/state/guard/registry-hosts").is_dir());
    // guard must ask npm again if the program has changed, or if nothing is stored in guard's state directory.
    let fixture = fixture.program("npm", "echo https://newer.default.example/");
    entries(&fixture.of(Tool::Npm, &[]), &["scope.example:443", "newer.default.example:443"]);
    let state = fixture.0.0.join("state");
    fixture.of(Tool::Npm, &[("XDG_STATE_HOME", state.to_str().unwrap())]);
    assert_eq!((fixture.starts(), state.join("guard/registry-hosts").read_dir().unwrap().count()), (3, 1));
}

#[test]
fn registry_settings_in_the_working_tree_are_ignored() {
    let fixture = RegistryFixture::new()
        .program("npm", "echo https://agent.example/")
        .with("work/venv/pip.conf", "[global]\nindex-url = https://agent.example/\n")
        .with("work/cargo/config.toml", "[registries.x]\nindex = \"sparse+https://agent.example/\"\n")
        .with("work/cargo/registry/index/agent.example-0123456789abcdef/config.json", "{}");
    let work = fixture.0.0.join("work");
    std::fs::rename(fixture.0.0.join("bin"), work.join("bin")).unwrap();
    // These two links are outside the working tree, and lead to files in it.
    std::os::unix::fs::symlink(work.join("bin"), fixture.0.0.join("bin")).unwrap();
    std::os::unix::fs::symlink(work.join("venv/pip.conf"), fixture.0.0.join("etc/pip.conf")).unwrap();
    let path = std::env::join_paths([fixture.0.0.join("bin"), work.join("bin"), "bin".into()]).unwrap();
    let environment = [
        ("PATH".into(), path),
        ("VIRTUAL_ENV".into(), work.join("venv").into()),
        ("CARGO_HOME".into(), work.join("cargo").into()),
    ];
    let (home, etc) = (fixture.0.0.join("home"), fixture.0.0.join("etc"));
    // guard must ignore these settings in the working tree and in a subdirectory of it.
    for folder in [work.clone(), work.join("below")] {
        for tool in [Tool::Npm, Tool::Pip, Tool::Cargo] {
            entries(&find_registries_with(tool, Some(&home), &environment, &etc, Some(&folder)), &[]);
        }
    }
    assert_eq!(fixture.starts(), 0);
    // An earlier run may have written them, so guard must ignore them for a run in another directory too, and must not
    // start a program of any working tree.
    for tool in [Tool::Npm, Tool::Pip, Tool::Cargo] {
        entries(&find_registries_with(tool, Some(&home), &environment, &etc, Some(&home)), &[]);
    }
    assert_eq!(fixture.starts(), 0);
}

#[test]
fn asked_package_tool_runs_nothing_from_the_working_tree() {
    let script = "command -v node && exit 1; [ -z \"$NODE_OPTIONS$PYTHONPATH\" ] && echo https://own.example";
    let fixture = RegistryFixture::new().program("npm", script);
    let work = fixture.0.0.join("work");
    make_program(&work.join("bin/node"), "");
    let path = std::env::join_paths([work.join("bin"), fixture.0.0.join("bin")]).unwrap();
    let environment = [
        ("PATH".into(), path),
        ("NODE_OPTIONS".into(), "--x".into()),
        ("PYTHONPATH".into(), work.clone().into()),
    ];
    let found = find_registries_with(
        Tool::Npm,
        Some(&fixture.0.0.join("home")),
        &environment,
        &fixture.0.0.join("etc"),
        Some(&work),
    );
    entries(&found, &["own.example:443"]);
}

#[test]
fn failing_or_hanging_package_tool_adds_no_registry() {
    for script in ["exit 1", "echo https://a.example; exit 1", "yes", "echo 'not an address'", ":"] {
        let found = RegistryFixture::new().program("npm", script).of(Tool::Npm, &[]);
        entries(&found, &[]);
        assert!(found.notes.iter().any(|note| note.contains("[network]")), "{found:?}");
    }
    let started = Instant::now();
    let fixture = RegistryFixture::new().program("npm", "sleep 1000 & sleep 1000");
    entries(&fixture.of(Tool::Npm, &[]), &[]);
    assert!(started.elapsed() < Duration::from_secs(60));
}

const PYTHON: &str = "[ \"$1\" = -c ] && echo https://default.example files.default.example";

#[test]
fn pip_registries_come_from_its_settings() {
    let conf = "[global]\nindex-url = https://u:secret@pip.example/simple\nextra-index-url =\n    https://extra.example/simple\n    https://more.example/simple\n[install]\nfind-links = /opt/wheels\n";
    let fixture = RegistryFixture::new().with("home/.config/pip/pip.conf", conf);
    entries(&fixture.of(Tool::Pip, &[]), &["pip.example:443", "extra.example:443", "more.example:443"]);
    let variables = [
        ("PIP_INDEX_URL", "https://env.example/"),
        ("PIP_EXTRA_INDEX_URL", "http://a.example http://b.example:81"),
    ];
    let expected =
        ["env.example:443", "a.example:80", "b.example:81", "extra.example:443", "more.example:443"];
    entries(&fixture.of(Tool::Pip, &variables), &expected);
    entries(&fixture.of(Tool::Pip, &[("PIP_CONFIG_FILE", "/dev/null")]), &[]);
    for file in ["home/.pip/pip.conf", "etc/pip.conf", "etc/xdg/pip/pip.conf"] {
        let fixture = RegistryFixture::new().with(file, "[global]\nindex_url=https://file.example/");
        entries(&fixture.of(Tool::Pip, &[]), &["file.example:443"]);
    }
}

#[test]
fn default_index_of_pip_is_asked_once() {
    let fixture = RegistryFixture::new().program("python3", PYTHON);
    for _ in 0..2 {
        entries(&fixture.of(Tool::Pip, &[]), &["default.example:443", "files.default.example:443"]);
    }
    assert_eq!(fixture.starts(), 1);
    // Extra indexes are used in addition to the default, another index replaces it, and with `no-index` there is
    // none.
    let found = fixture.of(Tool::Pip, &[("PIP_EXTRA_INDEX_URL", "https://x.example")]);
    entries(&found, &["x.example:443", "default.example:443", "files.default.example:443"]);
    entries(&fixture.of(Tool::Pip, &[("PIP_INDEX_URL", "https://x.example")]), &["x.example:443"]);
    entries(&fixture.of(Tool::Pip, &[("PIP_NO_INDEX", "1")]), &[]);
    // If the settings name the default index explicitly, guard must also allow the host of its files.
    let found = fixture.of(Tool::Pip, &[("PIP_INDEX_URL", "https://default.example/simple")]);
    entries(&found, &["default.example:443", "files.default.example:443"]);
}

#[test]
fn apt_registries_come_from_its_sources() {
    let found = RegistryFixture::new()
        .with("etc/apt/sources.list", "# deb http://no.example x\ndeb [arch=amd64 signed-by=/x] http://deb.example/debian stable main # y\ndeb-src https://src.example/d x\ndeb cdrom:[x]/ y\ndeb mirror+https://m.example/l x\n")
        .with("etc/apt/sources.list.d/b.sources", "Types: deb\nURIs: http://one.example/debian\n https://two.example\nSuites: x\n y\n\n# c\nEnabled: no\nURIs: http://no.example/\n\nuris: https://three.example\n")
        .with("etc/apt/sources.list.d/a.list", "deb https://a.example x\n")
        .with("etc/apt/sources.list.d/c.list.disabled", "deb https://no.example x\n")
        .of(Tool::Apt, &[]);
    let expected = [
        "deb.example:80",
        "src.example:443",
        "m.example:443",
        "a.example:443",
        "one.example:80",
        "two.example:443",
        "three.example:443",
    ];
    entries(&found, &expected);
    assert!(found.notes.is_empty(), "{found:?}");
}

/// guard must find registries with the tools installed on this machine, whatever their settings are.
#[test]
fn registries_of_the_installed_tools_are_found() {
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let fixture = RegistryFixture::new();
    let mut isolated = environment.clone();
    isolated.push(("XDG_CACHE_HOME".into(), fixture.0.0.join("cache").into()));
    for (tool, program) in [(Tool::Npm, "npm"), (Tool::Pip, "python3")] {
        let is_there = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|folder| folder.join(program).is_file());
        if !is_there {
            skip(program, "it is not installed; scripts/setup installs it");
            continue;
        }
        // On a busy machine the tool may not answer within guard's time limit.
        let find = || find_registries(tool, home.as_deref(), &isolated);
        let found = (0..5).map(|_| find()).find(|found| !found.entries.is_empty());
        assert!(found.is_some(), "{program}: {:?}", find());
    }
    // This cargo has an empty home, and so no cache yet. rustup keeps its own directory.
    let rustup = home.map(|home| home.join(".rustup")).filter(|rustup| rustup.is_dir());
    isolated.push(("CARGO_HOME".into(), fixture.0.0.join("empty").into()));
    isolated.extend(rustup.map(|rustup| ("RUSTUP_HOME".into(), rustup.into())));
    let found = find_registries(Tool::Cargo, Some(&fixture.0.0.join("home")), &isolated);
    let [index, files] = found.entries.as_slice() else { panic!("cargo: {found:?}") };
    assert_eq!(index.strip_prefix("index."), files.strip_prefix("static."), "{found:?}");
    assert!(index.ends_with(":443") && !fixture.0.0.join("empty").exists(), "{found:?}");
}
