//! `guard completions`: scripts that complete guard's command line in a shell.
//!
//! clap generates the script for commands and options. guard adds the ids of runs and the names of policies: the
//! script calls the hidden command `guard __complete`. The user waits for the answer of this command, so the command
//! reads only the names of directories and policy files, never a transcript.

use std::io::Write;

use clap::{Command, CommandFactory};

use crate::cli::args::shell::{Complete, CompletedValues, Completions, Shell};
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, args};
use crate::judge::policy::PolicyDirs;
use crate::run::transcript::runs_dir;
use crate::session::run_reference::short_ids;

/// The maximum number of runs that guard prints for a completion script. It prints the newest ones.
const MOST_RUNS: usize = 100;

const BASH: &str = include_str!("completions/runs-and-policies.bash");
const ZSH: &str = include_str!("completions/runs-and-policies.zsh");
const FISH: &str = include_str!("completions/runs-and-policies.fish");

pub(in crate::cli) fn run(arguments: &Completions, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut command = args::Cli::command();
    let with_runs = commands_with_runs(&command);
    let script = |generator: clap_complete::Shell, command: &mut Command| {
        let mut script = Vec::new();
        clap_complete::generate(generator, command, "guard", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    };
    let text = match arguments.shell {
        Shell::Bash => {
            let patterns: Vec<String> = with_runs.iter().map(|path| format!("'{path}'")).collect();
            let own = BASH.replace("{commands}", &patterns.join("|"));
            format!("{}\n{own}", script(clap_complete::Shell::Bash, &mut command))
        }
        Shell::Fish => {
            let lines: String = with_runs.iter().map(|path| fish_runs(path)).collect();
            format!("{}\n{FISH}{lines}", script(clap_complete::Shell::Fish, &mut command))
        }
        Shell::Zsh => zsh(&script(clap_complete::Shell::Zsh, &mut command)),
    };
    out.write_all(text.as_bytes())?;
    Ok(Exit::Success)
}

/// Prints values for a completion script, one on each line.
pub(in crate::cli) fn values(arguments: &Complete, out: &mut dyn Write) -> Result<Exit, Failure> {
    let values = match arguments.values {
        CompletedValues::Runs => run_ids(),
        CompletedValues::Policies => {
            PolicyDirs::from_environment().names().into_iter().map(|(name, _)| name).collect()
        }
    };
    for value in values {
        writeln!(out, "{value}")?;
    }
    Ok(Exit::Success)
}

/// Returns the short ids of the newest runs, as tables print them, and then their whole ids. An id begins with the time
/// of the run's start, so sorting the ids sorts the runs by time.
fn run_ids() -> Vec<String> {
    let entries = runs_dir().ok().and_then(|runs| std::fs::read_dir(runs).ok());
    let names = entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_id = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let mut ids: Vec<String> = names.filter(is_id).collect();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    let all: Vec<&str> = ids.iter().map(String::as_str).collect();
    let short = short_ids(&all);
    let newest = || all.iter().take(MOST_RUNS);
    let abbreviated = newest().map(|id| short[id]).filter(|short| !all.contains(short));
    abbreviated.chain(newest().copied()).map(str::to_string).collect()
}

/// Returns the commands that take a run as an argument, as the user types them: `log`, `worktree path`.
fn commands_with_runs(command: &Command) -> Vec<String> {
    let takes_run = |command: &Command| {
        command.get_positionals().any(|argument| matches!(argument.get_id().as_str(), "run" | "runs"))
    };
    let mut found = Vec::new();
    for first in command.get_subcommands() {
        if takes_run(first) {
            found.push(first.get_name().to_string());
        }
        let nested = first.get_subcommands().filter(|second| takes_run(second));
        found.extend(nested.map(|second| format!("{} {}", first.get_name(), second.get_name())));
    }
    found
}

fn fish_runs(path: &str) -> String {
    let seen: Vec<String> =
        path.split(' ').map(|word| format!("__fish_seen_subcommand_from {word}")).collect();
    format!("complete -c guard -n '{}' -f -k -a '(guard __complete runs 2>/dev/null)'\n", seen.join("; and "))
}

/// Changes clap's script for zsh, so that it completes arguments for runs and policies with guard's own functions.
/// Without the change, it would complete these arguments with file names.
fn zsh(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let is_run = ["':run -- ", "'::run -- ", "'*::runs -- "].iter().any(|start| line.starts_with(start));
        let line = match (is_run, line.contains(":POLICY:_default")) {
            (true, _) => line.replace(":_default'", ":_guard_runs'"),
            (_, true) => line.replace(":POLICY:_default", ":POLICY:_guard_policies"),
            _ => line.to_string(),
        };
        // Insert the functions before the end of the script, which calls the completion function if zsh autoloads the
        // file.
        if line.starts_with("if [ \"$funcstack[1]\"") {
            text.push_str(ZSH);
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}
