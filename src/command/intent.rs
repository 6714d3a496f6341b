//! What a command would do: the output of the analysis and the input of the decision.

use super::arg::Arg;
use super::effects::Effects;

/// One program start that a command asks for, directly or through something it contains.
#[derive(Debug, Clone, Default)]
pub struct Intent {
    /// What would run.
    pub program: Program,
    /// Its arguments, without the program itself.
    pub args: Vec<Arg>,
    /// What git would do, if the program is git.
    pub git: Option<GitIntent>,
    /// The classes of what it does.
    pub effects: Effects,
    /// Files it is known to read or write.
    pub paths: Vec<PathUse>,
    /// How many of these, the last ones, are its redirections.
    pub redirected: usize,
    /// Names of variables set just for it (`A=1 cmd`, `env A=1 cmd`).
    pub variables: Vec<Vec<u8>>,
    /// The intent that contains this one (an index into the analysis), such as the `bash -c` around it.
    pub parent: Option<usize>,
    /// How it was found.
    pub origin: Origin,
    /// Why part of it can only be judged when it runs.
    pub deferred: Option<Deferred>,
}

/// The program of an intent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// Its name: the last component of the path, or of the resolved file where the caller knows it. Empty if unknown.
    pub name: Vec<u8>,
    /// The word it was called by.
    pub called: Arg,
    /// The absolute path, when it was called by one or the caller resolved it.
    pub path: Option<Vec<u8>>,
}

/// What a git command would do.
#[derive(Debug, Clone, Default)]
pub struct GitIntent {
    /// The verb after aliases; empty when it is not known.
    pub verb: Vec<u8>,
    /// The subcommand of verbs that have them (`stash pop`, `remote add`).
    pub subcommand: Option<Vec<u8>>,
    /// Options by their full names (`--amend`, also for `--amen`; `-x` where no long name exists).
    pub flags: Vec<String>,
    /// Refs it would create, move or delete, as far as they are named.
    pub refs: Vec<Vec<u8>>,
    /// The verb is an alias: what it stands for follows as an intent of its own.
    pub is_alias: bool,
    /// The directory whose repository it works in, or that it makes one in; none when that is not known here.
    pub place: Option<Vec<u8>>,
    /// The same path as git hands it to the kernel: `..` is not taken out of it, because the kernel follows links first.
    pub unresolved_place: Option<Vec<u8>>,
    /// The place is a git directory (`GIT_DIR`, `--git-dir`): git looks for none from there.
    pub names_git_dir: bool,
    /// It makes a repository at its place.
    pub makes_repository: bool,
}

impl GitIntent {
    /// The verb with its subcommand.
    pub fn name(&self) -> String {
        let verb = String::from_utf8_lossy(&self.verb);
        match &self.subcommand {
            Some(subcommand) => format!("{verb} {}", String::from_utf8_lossy(subcommand)),
            None => verb.into_owned(),
        }
    }
}

/// A file that a command is known to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathUse {
    /// Absolute and normalised where that is possible; `~/…` when the home directory is not known.
    pub path: Vec<u8>,
    /// Where in it the part below the home directory begins, if it lies there.
    pub below_home: Option<usize>,
    /// What is done to it.
    pub access: Access,
    /// It lies below nothing that the command may write.
    pub is_outside: bool,
}

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Its content is read.
    Read,
    /// It is written, moved, deleted, or its metadata changed.
    Write,
}

/// How an intent came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// The command that was asked about.
    #[default]
    Asked,
    /// A simple command in shell text.
    Shell,
    /// The command behind a wrapper (`env`, `xargs`, `sudo`…).
    Wrapped,
    /// A git alias's expansion.
    Alias,
    /// A program that git is made to run by an option, a variable or configuration.
    Git,
}

impl Origin {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Shell => "shell",
            Self::Wrapped => "wrapped",
            Self::Alias => "alias",
            Self::Git => "git",
        }
    }
}

/// Why a command is judged again when it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// The program's name comes from an expansion.
    Program,
    /// git's verb comes from an expansion.
    Verb,
    /// Arguments that may change its meaning come from an expansion or from standard input.
    Arguments,
    /// Shell text that comes from an expansion, a file or standard input.
    Text,
    /// Code in another language.
    Code,
    /// Configuration that is read from a file or an unknown variable.
    Configuration,
    /// The directory, and so the repository, comes from an expansion or a branch that may not run.
    Cwd,
}

impl Deferred {
    /// One sentence for people.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Program => "the program is only known when it runs",
            Self::Verb => "the git verb is only known when it runs",
            Self::Arguments => "some arguments are only known when it runs",
            Self::Text => "the shell text is only known when it runs",
            Self::Code => "code of another language; the programs it starts are judged when they start",
            Self::Configuration => "configuration that is only known when it runs",
            Self::Cwd => "the directory it runs in is only known when it runs",
        }
    }
}
