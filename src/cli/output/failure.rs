//! How guard prints failures, notes and the problems of policies.

use std::io::{self, Write};
use std::path::Path;

use crate::cli::output::colour::stderr_colour;
use crate::judge::policy::{Diagnostic, PolicyError, Severity};
use crate::session::Failure;
use crate::text::terminal_text;

/// The maximum number of problems that guard prints in one report about a policy or a workflow.
const MOST_SHOWN: usize = 50;

impl Failure {
    /// Returns the message for the user.
    pub(in crate::cli) fn render(&self) -> String {
        match self {
            Self::Output(error) => format!("guard: an input or output operation failed: {error}"),
            Self::Usage { message, hint } => format!("guard: {message}\n  hint: {hint}"),
            Self::Policy(error) => match &**error {
                PolicyError::Invalid(problems) => {
                    let shown =
                        problems.iter().take(MOST_SHOWN).map(|problem| problem.render(stderr_colour()));
                    let shown: Vec<String> = shown.collect();
                    format!("{}\nguard: {error}\n  hint: {}", shown.join("\n\n"), lint_hint(problems))
                }
                PolicyError::NotFound { .. } => {
                    format!(
                        "guard: {error}\n  hint: `guard policy list` shows the names; a path must contain a slash or end in .toml"
                    )
                }
                other => format!(
                    "guard: {other}\n  hint: give a policy's name (`guard policy list`) or a readable TOML file"
                ),
            },
        }
    }
}

/// Returns a hint with the command that checks the file that contains the first error. If the first error is not in a
/// file, the hint refers to the messages that guard prints above the hint.
fn lint_hint(problems: &[Diagnostic]) -> String {
    let first = problems.iter().find(|problem| problem.severity == Severity::Error);
    // A policy text may be in no file: the rules of `--allow` come from the command line, and `guard allow` checks a
    // text before it writes the file.
    let file = first.map(|problem| &problem.source).filter(|source| Path::new(&source.name).is_file());
    match file {
        Some(source) => format!("`{} --json` lists all errors", lint_command(Path::new(&source.name))),
        None => "the messages above show what is wrong, and where".to_string(),
    }
}

/// Returns the command that checks a policy file, as a user would type it.
pub(in crate::cli) fn lint_command(path: &Path) -> String {
    let path = terminal_text::escape(&path.to_string_lossy()).into_owned();
    format!("guard policy lint {}", shell_words::quote(&path))
}

/// Prints a line to standard error. Ignores errors, such as a closed pipe.
pub(in crate::cli) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints at most `MOST_SHOWN` diagnostics with their source excerpts, and the number of the others. A blank line
/// follows each of them.
pub(in crate::cli) fn write_diagnostics(
    out: &mut dyn Write,
    problems: &[Diagnostic],
    colour: bool,
) -> io::Result<()> {
    for problem in problems.iter().take(MOST_SHOWN) {
        writeln!(out, "{}\n", problem.render(colour))?;
    }
    if problems.len() > MOST_SHOWN {
        writeln!(out, "… and {} more\n", problems.len() - MOST_SHOWN)?;
    }
    Ok(())
}
