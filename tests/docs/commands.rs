// slow
//! The test runs every `sh` and `console` block of the README and the book as written, unless its info string says
//! why not:
//!
//! - `sh`: a script that must exit with 0, or with the code of `exit=N`.
//! - `console`: lines that begin with `$ ` are commands; the lines below them are their output. `…` stands for any text, and
//!   on a line of its own for any lines.
//! - `not-run="reason"`: the test does not run the block. `tested-by="module::test"`: another test runs it.
//! - `file="NAME"` on any other block: the test writes the text to that file for the commands below.
//!
//! The commands of a page share a scratch repository and a home directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::links::is_a_test;
use super::{Block, blocks, name, read, readme_and_pages};
use crate::support::{TestEnvironment, guard_program, one_environment};

/// A repository, a home directory, and a PATH with guard.
struct DocumentShell {
    environment: TestEnvironment,
    repository: PathBuf,
    home: PathBuf,
}

impl DocumentShell {
    fn new() -> Self {
        let environment = one_environment();
        let root = environment.directory.parent().unwrap().to_path_buf();
        environment.run_outside(
            "mkdir -p home/work && git config --file home/.gitconfig user.name 'A User' \
             && git config --file home/.gitconfig user.email user@example.org \
             && git init -q -b main app && cd app && git config user.name 'A User' && git config user.email user@example.org \
             && printf '#!/bin/sh\\necho $(($1 + $2))\\n' > add.sh && printf 'test:\\n\\tsh add.sh 2 3\\n' > Makefile \
             && git add . && git commit -qm 'Add a script'",
        );
        Self { repository: root.join("app"), home: root.join("home"), environment }
    }

    /// Runs a script. Returns its output, including standard error, and its exit code.
    fn run(&self, script: &str) -> (String, i32) {
        let mut shell: Command = self.environment.command("timeout");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", guard_program().parent().unwrap().display());
        shell
            .args(["300", "bash", "-c", &format!("exec 2>&1\n{script}")])
            .current_dir(&self.repository)
            .env("PATH", path)
            .env("HOME", &self.home)
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null());
        let output = shell.output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
    }
}

/// Returns true if a printed line matches the documented one, in which `…` stands for any text.
fn line_fits(documented: &str, printed: &str) -> bool {
    let mut pieces = documented.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut last = None;
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        last = Some(piece);
    }
    rest.is_empty() || last.is_some_and(|last| last.is_empty() || printed.ends_with(last))
}

/// Returns true if the printed lines match the documented ones. A documented line that is only `…` stands for any
/// lines.
pub(crate) fn output_fits(documented: &[&str], printed: &[&str]) -> bool {
    match (documented, printed) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=printed.len()).any(|skip| output_fits(rest, &printed[skip..])),
        ([first, rest @ ..], [line, more @ ..]) => line_fits(first, line) && output_fits(rest, more),
        _ => false,
    }
}

/// Returns the commands of a `console` block, each with the output that is documented below it.
fn exchanges(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push((command, Vec::new()));
        } else {
            found.last_mut().expect("a console block begins with `$ `").1.push(line);
        }
    }
    found
}

fn run_block(document_shell: &DocumentShell, block: &Block) -> Result<(), String> {
    if block.language == "sh" {
        let wanted = block.attribute("exit").map_or(0, |code| code.parse().unwrap());
        let (printed, code) = document_shell.run(&format!("set -e -o pipefail\n{}", block.text));
        return if code == wanted {
            Ok(())
        } else {
            Err(format!("exit code {code}:\n{}{printed}", block.text))
        };
    }
    for (command, documented) in exchanges(&block.text) {
        let (printed, _) = document_shell.run(command);
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        if !output_fits(&documented, &lines) {
            return Err(format!("{command}\ndocumented:\n{}\nprinted:\n{printed}", documented.join("\n")));
        }
    }
    Ok(())
}

fn run_page(page: &Path) -> Vec<String> {
    let text = read(page);
    let mut problems = Vec::new();
    let mut document_shell = None;
    for block in blocks(&text) {
        let document_shell: &mut Option<DocumentShell> = &mut document_shell;
        let mut problem =
            |problem: String| problems.push(format!("{}:{}: {problem}", name(page), block.line));
        if block.language.is_empty() {
            problem("a code block without a language".to_string());
        }
        if let Some(file) = block.attribute("file") {
            let document_shell = document_shell.get_or_insert_with(DocumentShell::new);
            let path = document_shell.repository.join(file);
            std::fs::write(&path, &block.text).unwrap();
            document_shell.environment.give_to_user(&path);
        }
        if !matches!(block.language.as_str(), "sh" | "console") {
            continue;
        }
        if let Some(reason) = block.attribute("not-run") {
            if reason.len() < 10 {
                problem(format!("`not-run` gives no reason: {reason:?}"));
            }
            continue;
        }
        if let Some(tests) = block.attribute("tested-by") {
            for test in tests.split(", ").filter(|test| !is_a_test(test)) {
                problem(format!("`tested-by` names no test: {test}"));
            }
            continue;
        }
        let document_shell = document_shell.get_or_insert_with(DocumentShell::new);
        if let Err(failure) = run_block(document_shell, &block) {
            problem(failure);
        }
    }
    problems
}

#[test]
fn documented_commands_work_as_written() {
    let pages = readme_and_pages();
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = run_page(page);
                    problems.lock().unwrap().extend(found);
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// Commands in the documents must be in fenced code blocks, because the test above does not find indented ones.
#[test]
fn documented_commands_are_in_fenced_blocks() {
    for page in readme_and_pages() {
        let mut inside = false;
        for (index, line) in read(&page).lines().enumerate() {
            inside ^= line.trim_start().starts_with("```");
            let is_command = ["    guard ", "    $ ", "    git ", "    cargo "]
                .iter()
                .any(|start| line.starts_with(start));
            assert!(inside || !is_command, "{}:{}: fence this command: {line}", name(&page), index + 1);
        }
    }
}

#[test]
fn comparison_of_documented_output_understands_ellipses() {
    assert!(
        line_fits("a … c", "a b c")
            && line_fits("…", "")
            && line_fits("a…", "abc")
            && line_fits("same", "same")
    );
    assert!(!line_fits("a … c", "a b d") && !line_fits("same", "same more") && !line_fits("a…", "ba"));
    assert!(output_fits(&["a", "…", "d"], &["a", "b", "c", "d"]) && output_fits(&["…"], &[]));
    assert!(
        !output_fits(&["a"], &["a", "b"])
            && !output_fits(&["a", "…", "d"], &["a", "b"])
            && !output_fits(&[], &["a"])
    );
}
