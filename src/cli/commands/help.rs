//! `guard --help`, which lists the commands under headings, and `guard help` for commands and topics.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;

use clap::{Command, CommandFactory};

use crate::cli::args::shell::Help;
use crate::cli::output::exit_code::{EXIT_CODES, Exit};
use crate::cli::{Failure, args, stdout_colour};

/// The headings of `guard --help`, and the commands below each, the most used first.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run", &["run", "ps", "attach", "stop", "demo"]),
    ("Inspect", &["log", "why", "runs", "replay", "verify"]),
    ("Take over the work", &["diff", "apply", "worktree", "restore", "undo"]),
    ("Policies", &["check", "allow", "learn", "policy"]),
    (
        "Agents and tasks",
        &[
            "chat", "history", "exec", "task", "research", "batch", "worker", "serve", "control", "workflow",
            "mcp",
        ],
    ),
    ("Set up", &["init", "config", "doctor", "completions", "man", "help"]),
];
/// The heading for commands that are in no group.
const UNGROUPED: &str = "Other";
/// The maximum width of the help text, the same as in the help of each command.
const WIDEST: usize = 110;
/// The width of the help text if neither `COLUMNS` nor the terminal gives one, the same as in clap.
const DEFAULT_WIDTH: usize = 100;
/// The minimum width of the column that contains the descriptions of commands or the meanings of exit codes.
const NARROWEST: usize = 20;

/// The topics of `guard help TOPIC`, except `exit-codes`, whose text is generated from the table of exit codes.
const TOPICS: &[(&str, &str)] = &[
    ("policies", include_str!("help_topics/policies.md")),
    ("network", include_str!("help_topics/network.md")),
    ("keys", include_str!("help_topics/keys.md")),
    ("agents", include_str!("help_topics/agents.md")),
    ("git", include_str!("help_topics/git.md")),
];
const EXIT_CODES_TOPIC: &str = "exit-codes";

/// Returns guard's command line for clap, with a help text that lists the commands under headings.
pub(in crate::cli) fn command() -> Command {
    let command = args::Cli::command();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{}\n{{options}}{{after-help}}",
        grouped_commands(&command, width()),
        heading(&command, "Options"),
    );
    command.help_template(template)
}

/// Prints the text of a topic, the help of a command or, without an argument, the help of `guard`. If a topic and a
/// command have the same name, prints the topic.
pub(in crate::cli) fn run(help: &Help, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let [topic] = help.words.as_slice()
        && let Some(text) = topic_text(topic)
    {
        out.write_all(text.as_bytes())?;
        return Ok(Exit::Success);
    }
    let mut command = command();
    command.build();
    for word in &help.words {
        let Some(found) = command.find_subcommand(word) else {
            return Err(Failure::usage(
                format!("there is no command and no topic `{}`", help.words.join(" ").escape_debug()),
                format!("`guard help` lists the commands; topics: {}", topic_names().join(", ")),
            ));
        };
        command = found.clone();
    }
    let text = command.render_long_help();
    if stdout_colour() {
        write!(out, "{}", text.ansi())?;
    } else {
        write!(out, "{text}")?;
    }
    Ok(Exit::Success)
}

fn topic_names() -> Vec<&'static str> {
    TOPICS.iter().map(|(name, _)| *name).chain([EXIT_CODES_TOPIC]).collect()
}

fn topic_text(topic: &str) -> Option<String> {
    if topic == EXIT_CODES_TOPIC {
        return Some(exit_codes());
    }
    TOPICS.iter().find(|(name, _)| *name == topic).map(|(_, text)| (*text).to_string())
}

fn exit_codes() -> String {
    let mut text = "Exit codes\n".to_string();
    for (commands, codes) in EXIT_CODES {
        let _ = writeln!(text, "\n{commands}");
        for (code, meaning) in *codes {
            let lines = wrap(meaning, width().saturating_sub(7).max(NARROWEST));
            if code.len() > 3 {
                let _ = writeln!(text, "  {code}");
            } else {
                let _ = write!(text, "  {code:<5}");
            }
            let first_indent = if code.len() > 3 { "       " } else { "" };
            let _ = writeln!(text, "{first_indent}{}", lines.join("\n       "));
        }
    }
    text
}

fn width() -> usize {
    let from_variable = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let from_terminal = || crate::sys::terminal::columns(io::stdout().as_fd());
    from_variable.or_else(from_terminal).filter(|&columns| columns > 0).unwrap_or(DEFAULT_WIDTH).min(WIDEST)
}

fn heading(command: &Command, title: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{title}:{style:#}")
}

/// Returns the text that lists every visible command with its description, under the heading of its group.
fn grouped_commands(command: &Command, width: usize) -> String {
    let visible: Vec<&Command> = command.get_subcommands().filter(|found| !found.is_hide_set()).collect();
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let ungrouped: Vec<&str> =
        visible.iter().map(|found| found.get_name()).filter(|name| !is_grouped(name)).collect();
    let longest = visible.iter().map(|found| found.get_name().len()).max().unwrap_or(0);
    let name_style = command.get_styles().get_literal();
    let mut text = String::new();
    for (title, names) in GROUPS.iter().copied().chain([(UNGROUPED, ungrouped.as_slice())]) {
        let found: Vec<&&Command> =
            names.iter().filter_map(|name| visible.iter().find(|found| found.get_name() == *name)).collect();
        if found.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", heading(command, title));
        for one in found {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let lines = wrap(&about, width.saturating_sub(longest + 4).max(NARROWEST));
            let indent = format!("\n{:1$}", "", longest + 4);
            let name = one.get_name();
            let padding = longest - name.len();
            let _ = writeln!(
                text,
                "  {name_style}{name}{name_style:#}{:padding$}  {}",
                "",
                lines.join(indent.as_str())
            );
        }
        text.push('\n');
    }
    text
}

/// Breaks a text into lines of at most `width` characters. A word that is longer than `width` gets a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_heading() {
        let text = grouped_commands(&args::Cli::command(), 80);
        assert!(
            !text.contains(UNGROUPED),
            "add these commands to a group in src/cli/commands/help.rs:\n{text}"
        );
        for (_, names) in GROUPS {
            for name in *names {
                assert!(args::Cli::command().find_subcommand(name).is_some(), "there is no command {name}");
            }
        }
    }

    #[test]
    fn help_fits_narrow_terminals() {
        let plain = args::Cli::command().styles(clap::builder::Styles::plain());
        let text = grouped_commands(&plain, 60);
        assert!(text.starts_with("Run:\n  run "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        // A width that is too small for any text must not cause a panic.
        assert!(grouped_commands(&plain, 0).contains("run"));
    }

    #[test]
    fn examples_of_topics_are_valid_command_lines() {
        let mut examples = 0;
        for name in topic_names() {
            let text = topic_text(name).unwrap_or_default();
            let is_narrow = text.lines().all(|line| line.chars().count() <= 80);
            assert!(is_narrow || name == EXIT_CODES_TOPIC, "{name} is wider than 80 columns");
            for line in text.lines().filter(|line| line.starts_with("    guard ")) {
                let line = line.split(" # ").next().unwrap_or_default();
                let words = shell_words::split(line).unwrap_or_default();
                let parsed = command().try_get_matches_from(words);
                assert!(
                    parsed.is_ok(),
                    "{name}: {line}: {}",
                    parsed.err().map(|e| e.to_string()).unwrap_or_default()
                );
                examples += 1;
            }
        }
        assert!(examples > 15, "only {examples} examples");
    }
}
