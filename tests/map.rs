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

#[test]
fn modules_use_only_those_the_map_allows() {
    let map = map();
    assert!(map.len() >= 5, "the map in lib.rs was not found");
    let mut wrong = Vec::new();
    for (module, allowed) in &map {
        let mut files = Vec::new();
        sources(&root().join("src").join(module), &mut files);
        assert!(!files.is_empty(), "the module {module} has no files");
        for file in files {
            for (number, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
                for used in line.split("crate::").skip(1) {
                    let used: String =
                        used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if map.contains_key(&used) && used != *module && !allowed.contains(&used) {
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
    for entry in std::fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(map.contains_key(&name), "src/{name} is not in the map of lib.rs");
        }
    }
}

/// Only the modules listed here may print, read or write files, or start processes. The test searches for the calls
/// that do so.
#[test]
fn only_some_modules_print_and_do_input_and_output() {
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
    let rules: [(&[&str], &[&str]); 2] = [
        (&print, &["cli"]),
        (
            &files_and_processes,
            &[
                "cli",
                "egress",
                "agent_exec",
                "batch",
                "client_access",
                "control",
                "conversation",
                "forge",
                "supervisor",
                "launch",
                "mcp",
                "outcome",
                "pipeline",
                "policy",
                "research",
                "sandbox",
                "serve",
                "sys",
                "transcript",
                "workspace",
            ],
        ),
    ];
    let mut found = Vec::new();
    sources(&root().join("src"), &mut found);
    for file in found {
        let relative = file.strip_prefix(root().join("src")).unwrap().to_path_buf();
        let module = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        for (words, modules) in rules {
            for word in words {
                let used =
                    text.lines().any(|line| line.contains(word) && !line.trim_start().starts_with("//"));
                assert!(!used || modules.contains(&module.as_str()), "{} uses {word}", file.display());
            }
        }
    }
}

#[test]
fn the_tests_are_all_in_the_integration_binary() {
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
fn the_test_kit_starts_git_and_skips_tests() {
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
