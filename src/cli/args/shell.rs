//! The arguments of `guard help`, `guard completions`, `guard man`, and of the values that completion scripts ask for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(in crate::cli) const HELP_EXAMPLES: &str = "\
Examples:
  guard help                  # the commands
  guard help run              # one command
  guard help network          # a topic

Topics: policies, network, keys, agents, git, exit-codes.";

#[derive(Debug, Args)]
pub(crate) struct Help {
    /// A command with its subcommands, or a topic
    #[arg(value_name = "COMMAND|TOPIC")]
    pub(crate) words: Vec<String>,
}

pub(in crate::cli) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  guard completions bash > ~/.local/share/bash-completion/completions/guard
  guard completions zsh > ~/.zfunc/_guard              # a directory of fpath
  guard completions fish > ~/.config/fish/completions/guard.fish

The scripts also complete the ids of runs and the names of policies: they ask guard for them.";

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(in crate::cli) const MAN_EXAMPLES: &str = "\
Examples:
  guard man | man -l -
  guard man --out ~/.local/share/man/man1      # a page for each command: man guard-run";

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write the manual pages of guard and of each command to this directory; guard creates it if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Complete {
    /// What to list
    #[arg(value_enum)]
    pub(crate) values: CompletedValues,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedValues {
    Runs,
    Policies,
}
