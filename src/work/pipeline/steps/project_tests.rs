//! Detects the command that runs a project's tests, from files such as `Cargo.toml` and `package.json`.
//!
//! guard runs the command itself, in the sandbox. If there is no command, guard reports the tests as not run, even if
//! an agent claims that they pass.

use std::path::Path;

use crate::work::pipeline::context::Task;
use crate::work::pipeline::error::PipelineError;

/// Returns the test command of a project whose top directory contains `files`; `None` if guard does not know how to
/// test such a project. `read` returns the text of one of these files.
pub(crate) fn detect(files: &[String], read: impl Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let has = |name: &str| files.iter().any(|file| file == name);
    let text = |name: &str| if has(name) { read(name).unwrap_or_default() } else { String::new() };
    let command = |line: &str| Some(line.split(' ').map(str::to_string).collect());
    for (file, tool) in [
        ("Makefile", "make"),
        ("makefile", "make"),
        ("GNUmakefile", "make"),
        ("justfile", "just"),
        ("Justfile", "just"),
    ] {
        if has_target(&text(file)) {
            return command(&format!("{tool} test"));
        }
    }
    if has("Cargo.toml") {
        return command("cargo test");
    }
    if has_test_script(&text("package.json")) {
        let tool =
            [("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn")].into_iter().find(|(lock, _)| has(lock));
        return command(&format!("{} test", tool.map_or("npm", |(_, tool)| tool)));
    }
    if has("go.mod") {
        return command("go test ./...");
    }
    let pytest = [
        ("pytest.ini", "[pytest]"),
        ("pyproject.toml", "[tool.pytest"),
        ("setup.cfg", "[tool:pytest]"),
        ("tox.ini", "[pytest]"),
    ];
    if pytest.iter().any(|(file, section)| text(file).contains(section)) {
        return command("python3 -m pytest");
    }
    let others = [("gradlew", "./gradlew test"), ("pom.xml", "mvn -q test"), ("mix.exs", "mix test")];
    others.iter().find(|(file, _)| has(file)).and_then(|(_, line)| command(line))
}

/// True if a makefile or justfile has the target `test`.
fn has_target(text: &str) -> bool {
    text.lines().any(|line| {
        let rest = line.strip_prefix("test").map(str::trim_start);
        rest.and_then(|rest| rest.strip_prefix(':')).is_some_and(|rest| !rest.starts_with('='))
    })
}

/// True if a `package.json` has a `test` script other than the one that `npm init` writes.
fn has_test_script(text: &str) -> bool {
    let package: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let script = package["scripts"]["test"].as_str().unwrap_or_default();
    !script.trim().is_empty() && !script.contains("no test specified")
}

/// True if the program is on the PATH. A program given as a path is assumed to be installed.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    program.contains('/') || std::env::split_paths(&path).any(|at| Path::new(&at).join(program).is_file())
}

/// Returns the test command that guard runs: the one that the user set, or the one detected in the project. `None` if
/// guard detects no command, if the program of the detected command is not installed, or if the user wants no tests.
pub(crate) fn test_command(task: &Task) -> Result<Option<Vec<String>>, PipelineError> {
    if let Some(words) = task.state.tests.as_ref().or(task.setting.tests.as_ref()) {
        return Ok(Some(words.clone()).filter(|words| !words.is_empty()));
    }
    let tree = &task.setting.tree;
    // The base commit takes precedence: an agent must not choose the tests that judge its own work.
    for commit in [Some(tree.base.clone()), tree.tip()?].into_iter().flatten() {
        let read = |name: &str| {
            let content = tree.file_at(&commit, name).ok().flatten()?;
            Some(String::from_utf8_lossy(&content).into_owned())
        };
        if let Some(words) = detect(&tree.top_files(&commit)?, read) {
            return Ok(Some(words).filter(|words| words.first().is_some_and(|program| is_installed(program))));
        }
    }
    Ok(None)
}

/// True if the user set a test command or chose to run no tests, so that guard detects no command.
pub(crate) fn has_named_tests(task: &Task) -> bool {
    task.state.tests.is_some() || task.setting.tests.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_say_how_they_are_tested() {
        let npm = r#"{"scripts":{"test":"jest"}}"#;
        let empty = r#"{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}"#;
        for (files, wanted) in [
            (vec![("Cargo.toml", "[package]")], Some("cargo test")),
            (vec![("Cargo.toml", ""), ("Makefile", "all:\n\ntest: all\n\tcargo test\n")], Some("make test")),
            (vec![("Makefile", "test := x\ntests:\n\ttrue\n")], None),
            (vec![("justfile", "test:\n  cargo test\n")], Some("just test")),
            (vec![("package.json", npm)], Some("npm test")),
            (vec![("package.json", npm), ("yarn.lock", "")], Some("yarn test")),
            (vec![("package.json", empty)], None),
            (vec![("package.json", "{")], None),
            (vec![("go.mod", "module x")], Some("go test ./...")),
            (vec![("pyproject.toml", "[tool.pytest.ini_options]\n")], Some("python3 -m pytest")),
            (vec![("pyproject.toml", "[project]\n")], None),
            (vec![("gradlew", "")], Some("./gradlew test")),
            (vec![("README.md", "make test")], None),
            (vec![], None),
        ] {
            let names: Vec<String> = files.iter().map(|(name, _)| (*name).to_string()).collect();
            let read = |wanted: &str| {
                files.iter().find(|(name, _)| *name == wanted).map(|(_, text)| (*text).to_string())
            };
            assert_eq!(detect(&names, read).map(|words| words.join(" ")).as_deref(), wanted, "{names:?}");
        }
    }
}
