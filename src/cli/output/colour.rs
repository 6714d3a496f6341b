//! Decides whether guard prints colours, by `--color`, by the variables `NO_COLOR`, `CLICOLOR_FORCE`, `CLICOLOR` and
//! `TERM`, and by whether the output is a terminal.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use clap::{Args, ColorChoice, ValueEnum};

/// The option `--color`, which every command has.
#[derive(Debug, Clone, Args)]
pub(crate) struct ColourOptions {
    /// When to print colours
    ///
    /// `auto` prints them on a terminal. NO_COLOR and CLICOLOR=0 switch them off, CLICOLOR_FORCE=1 switches them on.
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global options"
    )]
    color: When,
}

/// When to print colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

static CHOSEN: OnceLock<When> = OnceLock::new();

/// Stores the choice of `--color` for the rest of the process.
pub(in crate::cli) fn start(options: &ColourOptions) {
    let _ = CHOSEN.set(options.color);
}

pub(in crate::cli) fn stdout_colour() -> bool {
    has_colour(io::stdout().is_terminal())
}

pub(in crate::cli) fn stderr_colour() -> bool {
    has_colour(io::stderr().is_terminal())
}

fn has_colour(is_terminal: bool) -> bool {
    let chosen = CHOSEN.get().copied().unwrap_or(When::Auto);
    decide(chosen, is_terminal, |name| std::env::var_os(name))
}

/// Decides whether to print colours. Applies the option and the variables in the same order as clap, which prints
/// help and usage errors.
fn decide(when: When, is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|set| set == value);
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto if is_set("NO_COLOR") => false,
        When::Auto if is_set("CLICOLOR_FORCE") && !is("CLICOLOR_FORCE", "0") => true,
        When::Auto if is("CLICOLOR", "0") || is("TERM", "dumb") => false,
        When::Auto => is_terminal,
    }
}

/// Returns the colour choice for help and usage errors, which clap prints while it parses the arguments. Ignores
/// words after `--`, because they are the command of a run.
pub(in crate::cli) fn choice_in(arguments: &[OsString]) -> ColorChoice {
    let own = || arguments.iter().take_while(|word| *word != "--");
    let joined = own().find_map(|word| word.to_str()?.strip_prefix("--color=").map(OsStr::new));
    let next = || own().skip_while(|word| *word != "--color").nth(1).map(OsString::as_os_str);
    match joined.or_else(next).and_then(OsStr::to_str) {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_beats_the_variables_and_they_beat_the_terminal() {
        let with = |set: &'static [(&str, &str)]| {
            move |name: &str| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            }
        };
        let auto = |is_terminal, set| decide(When::Auto, is_terminal, with(set));
        assert!(auto(true, &[]) && !auto(false, &[]));
        assert!(!auto(true, &[("NO_COLOR", "1")]) && auto(true, &[("NO_COLOR", "")]));
        assert!(auto(false, &[("CLICOLOR_FORCE", "1")]) && !auto(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!auto(true, &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]));
        assert!(!auto(true, &[("CLICOLOR", "0")]) && !auto(true, &[("TERM", "dumb")]));
        assert!(decide(When::Always, false, with(&[("NO_COLOR", "1")])));
        assert!(!decide(When::Never, true, with(&[("CLICOLOR_FORCE", "1")])));
    }

    #[test]
    fn the_option_is_found_before_the_command_of_a_run() {
        let choice = |line: &str| choice_in(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(choice("guard --color never --help"), ColorChoice::Never);
        assert_eq!(choice("guard run --color=always --help"), ColorChoice::Always);
        assert_eq!(choice("guard run -- ls --color=never"), ColorChoice::Auto);
        assert_eq!(choice("guard --color"), ColorChoice::Auto);
    }
}
