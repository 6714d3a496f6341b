//! A program must find the files of its own installation in a run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use guard::run::launch::discover::program_files::{Scope, installation};
use guard::sys::agent_paths::AgentPaths;

use crate::support::{Scratch, skip};

fn files_of(program: &Path, home: &Path, path: &OsStr) -> Vec<PathBuf> {
    let agent_paths = AgentPaths::read(Some(home), None).unwrap();
    let scope = Scope { home, path, writable: &[], agent_paths: &agent_paths, is_granted: &|_| false };
    installation(program, &scope).paths
}

fn needs(program: &Path, home: &Path, path: &[PathBuf]) -> Vec<PathBuf> {
    let path =
        if path.is_empty() { OsString::from("/usr/bin:/bin") } else { std::env::join_paths(path).unwrap() };
    let found = files_of(program, home, &path);
    for (index, one) in found.iter().enumerate() {
        assert_eq!(*one, one.canonicalize().unwrap());
        let others = found.iter().enumerate().filter(|(other, _)| *other != index);
        assert!(!others.map(|(_, other)| other).any(|other| one.starts_with(other)), "{found:?}");
    }
    found
}

fn covers(found: &[PathBuf], path: &Path) -> bool {
    found.iter().any(|granted| path.starts_with(granted))
}

fn link(target: impl AsRef<Path>, at: PathBuf) -> PathBuf {
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    symlink(target, &at).unwrap();
    at
}

#[test]
fn plain_program_needs_only_itself() {
    let home = Scratch::new("plain");
    let tool = home.write("bin/tool", b"\x7fELF");
    assert_eq!(needs(&tool, &home.0, &[]).as_slice(), std::slice::from_ref(&tool));
    let at = link("bin/tool", home.0.join("alias"));
    assert_eq!(needs(&at, &home.0, &[]), [tool]);
}

#[test]
fn nvm_program_needs_the_prefix_of_its_node() {
    let home = Scratch::new("nvm");
    let node = home.write(".nvm/versions/node/v20/bin/node", b"\x7fELF");
    home.write(".nvm/versions/node/v20/lib/node_modules/@x/agent/cli.js", "#!/usr/bin/env node\n");
    let bin = node.parent().unwrap().to_path_buf();
    let at = link("../lib/node_modules/@x/agent/cli.js", bin.join("agent"));
    let found = needs(&at, &home.0, &[bin]);
    assert!(found.contains(&home.0.join(".nvm/versions/node/v20")), "{found:?}");
    assert!(!covers(&found, &home.0.join(".nvm/nvm.sh")), "{found:?}");
}

#[test]
fn global_npm_program_needs_all_modules_and_node_on_path() {
    let home = Scratch::new("global");
    let node = home.write("node/bin/node", b"\x7fELF");
    home.write(".npm-global/lib/node_modules/agent/bin/agent.js", "#!/usr/bin/env -S node --no-warnings\n");
    home.write(".npm-global/lib/node_modules/agent/node_modules/dep/node_modules/deep/x.js", "");
    let at = link("../lib/node_modules/agent/bin/agent.js", home.0.join(".npm-global/bin/agent"));
    let found = needs(&at, &home.0, &[home.0.join("node/bin"), PathBuf::from("/usr/bin")]);
    assert!(covers(&found, &home.0.join(".npm-global/lib/node_modules")), "{found:?}");
    assert!(covers(&found, &node), "{found:?}");
    assert!(!covers(&found, &home.0.join("node")), "no `lib` beside `bin`, so no prefix: {found:?}");
}

#[test]
fn program_in_dot_local_does_not_grant_dot_local() {
    let home = Scratch::new("local");
    home.write(".local/lib/python3.11/site-packages/x.py", "");
    home.write(".local/share/keyrings/login", "x");
    let tool = home.write(".local/bin/tool", "#!/usr/bin/env python3\n");
    let found = needs(&tool, &home.0, &[]);
    assert!(
        found.contains(&tool) && !covers(&found, &home.0.join(".local/share/keyrings/login")),
        "{found:?}"
    );
    home.write("lib/x", "");
    let own = home.write("bin/own", b"\x7fELF");
    assert_eq!(needs(&own, &home.0, &[]), [own], "the home is nobody's prefix");
}

#[test]
fn venv_script_needs_the_venv_and_its_base_interpreter() {
    let home = Scratch::new("venv");
    let base = home.write("pythons/3.12/bin/python3.12", b"\x7fELF");
    home.write("pythons/3.12/lib/python3.12/os.py", "");
    let venv = home.0.join("work/project/.venv");
    let cfg = format!("home = {}\nversion = 3.12\n", base.parent().unwrap().display());
    home.write("work/project/.venv/pyvenv.cfg", cfg);
    let python = link(&base, venv.join("bin/python"));
    let tool = home.write("work/project/.venv/bin/tool", format!("#!{}\nimport x\n", python.display()));
    for program in [&tool, &python] {
        let found = needs(program, &home.0, &[]);
        assert!(found.contains(&venv) && found.contains(&home.0.join("pythons/3.12")), "{found:?}");
        assert!(!covers(&found, &home.0.join("work/project/secret")), "{found:?}");
    }
    // pipx and uv link programs of such environments into a directory of PATH.
    let at = link(&tool, home.0.join(".local/bin/tool"));
    assert!(needs(&at, &home.0, &[]).contains(&venv));
}

#[test]
fn interpreters_are_found_for_every_form_of_shebang() {
    let home = Scratch::new("lines");
    let inner = home.write("a/inner", "#! /bin/sh -e\n");
    for (line, wanted) in [
        (format!("#!{}\n", inner.display()), Some(&inner)),
        (format!("#! \t{}  \t-x y\n", inner.display()), Some(&inner)),
        (format!("#!{}", inner.display()), Some(&inner)),
        (format!("#!/usr/bin/env {}\n", inner.display()), Some(&inner)),
        ("#!/usr/bin/env inner\n".to_string(), Some(&inner)),
        ("#!/usr/bin/env -S A=1 -u B inner -x\n".to_string(), Some(&inner)),
        ("#!/usr/bin/env -Sinner\n".to_string(), Some(&inner)),
        ("#!/usr/bin/env --split-string=inner -v\n".to_string(), Some(&inner)),
        (format!("#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''\n", inner.display()), Some(&inner)),
        (format!("#!/bin/sh\n'''exec' {} \"$0\" \"$@\"\n' '''\n", inner.display()), Some(&inner)),
        // The kernel passes `inner -x` as one argument, and no program has that name.
        ("#!/usr/bin/env inner -x\n".to_string(), None),
        ("#!/usr/bin/env -i\n".to_string(), None),
        ("#!/usr/bin/env\n".to_string(), None),
        ("#!\n".to_string(), None),
        ("#!inner\n".to_string(), None),
        (format!("#!{}{}\n", " ".repeat(300), inner.display()), None),
        (format!("#{}\n", inner.display()), None),
    ] {
        let script = home.write("b/script", &line);
        let found = needs(&script, &home.0, &[home.0.join("a"), PathBuf::from("/usr/bin")]);
        assert!(found.contains(&script), "{line:?}: {found:?}");
        assert_eq!(
            wanted.is_some_and(|inner| found.contains(inner)),
            wanted.is_some(),
            "{line:?}: {found:?}"
        );
        assert_eq!(found.contains(&inner), wanted.is_some(), "{line:?}: {found:?}");
    }
}

#[test]
fn cycles_of_links_and_interpreters_end() {
    let home = Scratch::new("rings");
    let a = link("b", home.0.join("a"));
    link("a", home.0.join("b"));
    assert!(needs(&a, &home.0, &[]).is_empty());
    let dangling = link("/nonexistent/tool", home.0.join("dangling"));
    assert!(needs(&dangling, &home.0, &[]).is_empty());
    assert!(needs(&home.0.join("missing/x"), &home.0, &[]).is_empty());
    assert!(needs(Path::new("/"), &home.0, &[]).is_empty());
    let own = home.write("own", format!("#!{}\n", home.0.join("own").display()));
    assert_eq!(needs(&own, &home.0, &[]), [own]);
    let names = ["s0", "s1", "s2", "s3", "s4", "s5", "s6"];
    for pair in names.windows(2) {
        home.write(pair[0], format!("#!{}\n", home.0.join(pair[1]).display()));
    }
    home.write("s6", b"\x7fELF");
    let found = needs(&home.0.join("s0"), &home.0, &[]);
    assert!(found.contains(&home.0.join("s4")) && !found.contains(&home.0.join("s6")), "{found:?}");
}

#[test]
fn pipes_in_place_of_programs_do_not_block() {
    let home = Scratch::new("odd-files");
    let pipe = home.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(needs(&pipe, &home.0, &[]).is_empty());
    let script = home.write("script", format!("#!{}\n", pipe.display()));
    assert_eq!(needs(&script, &home.0, &[]), [script]);
    let odd = home.0.join(OsStr::from_bytes(b"t\xffol"));
    std::fs::write(&odd, b"#!/bin/\xff\xfe\n").unwrap();
    assert_eq!(needs(&odd, &home.0, &[]), [odd]);
    let empty = home.write("empty", "");
    assert_eq!(needs(&empty, &home.0, &[]), [empty]);
}

#[test]
fn secrets_are_not_part_of_any_installation() {
    let home = Scratch::new("secrets");
    let key = home.write(".ssh/id", "x");
    let script = home.write("tool", format!("#!{}\n", key.display()));
    assert_eq!(needs(&script, &home.0, &[]), [script]);
    home.write(".ssh/pyvenv.cfg", "home = /usr/bin\n");
    let tool = home.write(".ssh/bin/tool", "x");
    assert!(needs(&tool, &home.0, &[]).is_empty());
    // guard must not take the whole home for a package because it contains a `package.json` or a `pyvenv.cfg`.
    home.write("package.json", "{}");
    home.write("pyvenv.cfg", "home = /\n");
    let cli = home.write("cli.js", "x");
    assert_eq!(needs(&cli, &home.0, &[]), [cli]);
}

#[test]
fn pnpm_package_needs_its_neighbours() {
    let home = Scratch::new("pnpm");
    let global = ".local/share/pnpm/global/5";
    home.write(&format!("{global}/.pnpm/agent@1/node_modules/agent/cli.js"), "");
    home.write(&format!("{global}/.pnpm/dep@1/node_modules/dep/x.js"), "");
    let at =
        link(home.0.join(global).join(".pnpm/agent@1/node_modules/agent/cli.js"), home.0.join("bin/agent"));
    assert_eq!(needs(&at, &home.0, &[]), [home.0.join(global).join(".pnpm")]);
}

#[test]
fn linked_package_is_granted_and_a_repository_only_in_bin_and_lib() {
    let home = Scratch::new("linked");
    home.write("work/agent/package.json", "{}");
    home.write("work/agent/dist/cli.js", "");
    let at = link(home.0.join("work/agent/dist/cli.js"), home.0.join(".npm-global/bin/agent"));
    assert_eq!(needs(&at, &home.0, &[]), [home.0.join("work/agent")]);
    home.write("work/repo/.git/config", "token");
    home.write("work/repo/lib/x.rb", "");
    let tool = home.write("work/repo/bin/tool", "");
    assert_eq!(needs(&tool, &home.0, &[]), [home.0.join("work/repo/bin"), home.0.join("work/repo/lib")]);
}

#[test]
fn real_virtual_environment_is_recognised() {
    let home = Scratch::new("real-venv");
    let made =
        Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(home.0.join("venv")).output();
    if !made.is_ok_and(|output| output.status.success()) {
        skip("a virtual environment", "python3 -m venv does not work here");
        return;
    }
    let python = home.0.join("venv/bin/python");
    let output = Command::new(&python).args(["-c", "import os; print(os.__file__)"]).output().unwrap();
    let library = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()).canonicalize().unwrap();
    let found = needs(&python, Path::new("/root"), &[]);
    assert!(found.contains(&home.0.join("venv")), "{found:?}");
    assert!(covers(&found, &library) || library.starts_with("/usr"), "{}: {found:?}", library.display());
}

#[test]
fn installations_of_real_programs_are_found() {
    let home = std::env::home_dir().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in ["cargo", "python3", "node", "npm", "git", "sh"] {
        let Some(program) =
            std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
        else {
            skip(name, "it is not installed; scripts/setup installs it");
            continue;
        };
        let found = files_of(&program, &home, &path);
        let real = program.canonicalize().unwrap();
        assert!(covers(&found, &real), "{name}: {found:?}");
        assert!(found.iter().all(|path| !home.starts_with(path)), "{name}: {found:?}");
        assert!(!covers(&found, &home.join(".cargo/credentials.toml")), "{name}: {found:?}");
    }
}
