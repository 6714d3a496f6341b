//! Shows the findings about the work of runs before guard brings it to the user, and asks whether to go on.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::cli::{Failure, note};
use crate::run::outcome::Finding;
use crate::text::terminal_text;

/// The maximum number of findings that guard prints.
const MOST_FINDINGS: usize = 20;

pub(in crate::cli) fn write_findings(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    for finding in findings.iter().take(MOST_FINDINGS) {
        writeln!(out, "review: {}", terminal_text::replace(&finding.message))?;
        if let Some(instead) = &finding.instead {
            writeln!(out, "  {}", terminal_text::replace(instead))?;
        }
    }
    if findings.len() > MOST_FINDINGS {
        writeln!(out, "review: and {} more; `--json` lists all findings", findings.len() - MOST_FINDINGS)?;
    }
    Ok(())
}

/// Asks on the terminal whether to go on with work that has findings. If standard input is not a terminal, prints a hint
/// and returns false. `show` says how to see the work, and `action` what guard would do, such as `apply it`.
pub(in crate::cli) fn is_confirmed(question: &str, show: &str, action: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        note(&format!(
            "guard: the work has findings that a person should review, and guard cannot ask for confirmation without a terminal\n  \
             hint: {show}; use --yes to {action} without asking"
        ));
        return Ok(false);
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
