//! Compares the dependencies between modules with the table in `lib.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Reads the table in `lib.rs`: for each module, the modules that it may use.
fn map() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let lines = text
        .lines()
        .skip_while(|line| !line.contains("```text"))
        .skip(1)
        .take_while(|line| !line.contains("```"));
    let mut map = BTreeMap::new();
    for line in lines {
        let line = line.trim_start_matches("//!").trim();
        let (module, rest) = line.split_once('─').unwrap();
        let uses = rest.split("  ").next().unwrap();
        map.insert(module.trim().to_string(), uses.split_whitespace().map(str::to_string).collect());
    }
    map
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Returns the module of the map to which a path without `crate::` leads.
fn module_of<'a>(map: &'a BTreeMap<String, BTreeSet<String>>, path: &str) -> Option<&'a String> {
    let path: String = path.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
    let mut names = path.split("::");
    let wing = names.next().unwrap_or_default();
    let module = format!("{wing}::{}", names.next().unwrap_or_default());
    map.get_key_value(&module).or_else(|| map.get_key_value(wing)).map(|(name, _)| name)
}

#[test]
fn modules_use_only_those_the_map_allows() {
    let map = map();
    assert!(map.len() >= 5, "the map in lib.rs was not found");
    let mut wrong = Vec::new();
    for (module, allowed) in &map {
        let mut files = Vec::new();
        let place = root().join("src").join(module.replace("::", "/"));
        if place.is_dir() {
            sources(&place, &mut files);
        } else {
            files.push(place.with_extension("rs"));
        }
        assert!(!files.is_empty(), "the module {module} has no files");
        for file in files {
            for (number, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
                for used in line.split("crate::").skip(1) {
                    let Some(used) = module_of(&map, used) else { continue };
                    if used != module && !allowed.contains(used) {
                        wrong.push(format!(
                            "{}:{}: {module} must not use {used}",
                            file.display(),
                            number + 1
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_directory_is_a_module_of_the_map() {
    let map = map();
    let source = root().join("src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    for file in files {
        let path = file.strip_prefix(&source).unwrap().to_string_lossy().replace('/', "::");
        let is_list_of_modules = ["lib.rs", "main.rs"].contains(&&*path) || path.ends_with("::mod.rs");
        let is_known = module_of(&map, &path).is_some() || path.starts_with("text::");
        assert!(is_known || is_list_of_modules, "{} is in no module of the map in lib.rs", file.display());
    }
}

/// The test searches for the calls that print, read or write files, start processes or open connections.
#[test]
fn only_cli_prints_and_pure_modules_do_no_input_or_output() {
    let print = ["println!", "eprintln!", "io::stdout", "io::stderr"];
    let files_and_processes = [
        "std::fs",
        "process::Command",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "ToSocketAddrs",
        "std::env::var",
    ];
    let pure = [
        "agents::adapter",
        "agents::history",
        "judge::audit",
        "judge::command",
        "judge::decide",
        "text",
        "work::commands",
    ];
    let source = root().join("src");
    let mut found = Vec::new();
    sources(&source, &mut found);
    for file in found {
        let module = file.strip_prefix(&source).unwrap().to_string_lossy().replace('/', "::");
        let is_in = |parent: &str| module.starts_with(&format!("{parent}::"));
        let text = std::fs::read_to_string(&file).unwrap();
        let uses = |words: &[&str]| {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.flat_map(|line| words.iter().filter(move |word| line.contains(**word))).next().is_some()
        };
        assert!(is_in("cli") || !uses(&print), "{} prints", file.display());
        assert!(is_in("cli") || !uses(&["clap::"]), "{} sees the command line", file.display());
        let is_pure = pure.iter().any(|parent| is_in(parent));
        assert!(!is_pure || !uses(&files_and_processes), "{} does input or output", file.display());
    }
}

#[test]
fn every_test_file_is_in_the_integration_binary() {
    let mut files = Vec::new();
    sources(&root().join("tests"), &mut files);
    let all: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    for file in &files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if name != "main" && name != "mod" {
            assert!(all.contains(&format!("mod {name};")), "{} is in no module", file.display());
        }
    }
}

/// Only the modules in tests/support may start git and skip tests: they isolate git from the caller's variables, and
/// report every skip.
#[test]
fn only_the_test_kit_starts_git_and_skips_tests() {
    let mut files = Vec::new();
    sources(&root().join("tests"), &mut files);
    let kit = root().join("tests/support");
    for file in files.iter().filter(|file| !file.starts_with(&kit) && !file.ends_with("map.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        for (forbidden, instead) in [
            ("Command::new(\"git\")", "support::isolated_command"),
            ("println!(\"SKIP", "support::skip"),
            ("var_os(\"CI\")", "support::skip"),
        ] {
            assert!(!text.contains(forbidden), "{}: use {instead}, not {forbidden}", file.display());
        }
    }
}
