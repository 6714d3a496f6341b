//! Intents: what a command would do. They are the output of the analysis and the input of the decision.

use super::arg::Arg;
use super::effects::Effects;

/// One program start that a command would cause, directly or through something it contains.
#[derive(Debug, Clone, Default)]
pub struct Intent {
    /// The program that would run.
    pub program: Program,
    /// The program's arguments, without its name.
    pub args: Vec<Arg>,
    /// What git would do, if the program is git.
    pub git: Option<GitIntent>,
    /// The effect classes of the program start.
    pub effects: Effects,
    /// Files that the program is known to read or write.
    pub paths: Vec<PathUse>,
    /// How many of the last entries of `paths` are redirections.
    pub redirected: usize,
    /// The names of variables set only for this program (`A=1 cmd`, `env A=1 cmd`).
    pub variables: Vec<Vec<u8>>,
    /// The index of the intent that contains this one, such as the `bash -c` around it.
    pub parent: Option<usize>,
    /// How the analysis found this intent.
    pub origin: Origin,
    /// Why part of this program start can only be judged at run time; `None` if nothing is left to judge.
    pub deferred: Option<Deferred>,
}

/// The program of an intent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// The last component of the path, or of the resolved file if the caller knows it. Empty if unknown.
    pub name: Vec<u8>,
    /// The word by which the program was called.
    pub called: Arg,
    /// The absolute path of the program, if it was called by one or the caller resolved it.
    pub path: Option<Vec<u8>>,
}

/// What a git command would do.
#[derive(Debug, Clone, Default)]
pub struct GitIntent {
    /// The verb after alias expansion; empty if it is not known.
    pub verb: Vec<u8>,
    /// The subcommand of verbs that have them (`stash pop`, `remote add`).
    pub subcommand: Option<Vec<u8>>,
    /// Options by their full names (`--amend`, also for `--amen`; `-x` if there is no long name).
    pub flags: Vec<String>,
    /// The refs that the command would create, move or delete, as far as they are named.
    pub refs: Vec<Vec<u8>>,
    /// Whether the verb is an alias. Its expansion follows as a separate intent.
    pub is_alias: bool,
    /// The directory whose repository the command operates on, or in which it creates one. `None` if that is
    /// not known here.
    pub place: Option<Vec<u8>>,
    /// `place` as git passes it to the kernel: `..` is kept, because the kernel follows links before it goes up.
    pub unresolved_place: Option<Vec<u8>>,
    /// Whether `place` is itself a git directory (`GIT_DIR`, `--git-dir`), so that git does not search for one from
    /// there.
    pub names_git_dir: bool,
    /// Whether the command creates a repository at `place`.
    pub makes_repository: bool,
}

impl GitIntent {
    /// Returns the verb with its subcommand.
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
    /// The path, absolute and normalised if possible; `~/…` if the home directory is not known.
    pub path: Vec<u8>,
    /// If the path lies below the home directory, the offset of the part after the home directory.
    pub below_home: Option<usize>,
    /// How the file is accessed.
    pub access: Access,
    /// Whether the path lies outside of everything that the command may write.
    pub is_outside: bool,
}

/// How a file is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The content is read.
    Read,
    /// The file is written, moved or deleted, or its metadata is changed.
    Write,
}

/// How an intent was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// The intent is the command that was asked about.
    #[default]
    Asked,
    /// The intent is a simple command in shell text.
    Shell,
    /// The intent is the command that a wrapper runs (`env`, `xargs`, `sudo`…).
    Wrapped,
    /// The intent is the expansion of a git alias.
    Alias,
    /// The intent is a program that an option, a variable or configuration makes git run.
    Git,
}

impl Origin {
    /// Returns the name of the origin in JSON output.
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

/// Why a command is judged again at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// The program's name comes from an expansion.
    Program,
    /// The git verb comes from an expansion.
    Verb,
    /// Arguments that may change the meaning come from an expansion or from standard input.
    Arguments,
    /// Shell text comes from an expansion, a file or standard input.
    Text,
    /// The code is in a language other than shell, which is not analysed.
    Code,
    /// Configuration comes from a file or an unknown variable.
    Configuration,
    /// The directory, and with it the repository, comes from an expansion or from a branch that may not run.
    Cwd,
}

impl Deferred {
    /// Returns an explanation for users, phrased as part of a sentence.
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
