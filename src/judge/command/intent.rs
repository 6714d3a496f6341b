//! Intents: the program starts that a command would cause. `command` produces them, and `decide` judges them.

use super::arg::Arg;
use super::effects::Effects;

/// One program start that a command would cause, directly or through shell text or a wrapper that it contains.
#[derive(Debug, Clone, Default)]
pub struct Intent {
    pub program: Program,
    /// The program's arguments, without its name.
    pub args: Vec<Arg>,
    /// What git would do, if the program is git.
    pub git: Option<GitIntent>,
    pub effects: Effects,
    /// Files that the program is known to read or write.
    pub paths: Vec<PathUse>,
    /// How many entries at the end of `paths` come from redirections.
    pub redirected: usize,
    /// The names of the variables that the command itself sets for this program: `A=1 cmd`, `env A=1 cmd`. An earlier
    /// assignment in the same shell text counts for variables such as `GIT_DIR`, which change what programs do.
    pub variables: Vec<Vec<u8>>,
    /// The index of the intent that contains this one, such as the surrounding `bash -c`; `None` for the outermost.
    pub parent: Option<usize>,
    pub origin: Origin,
    /// Why guard must judge a part of this program start at run time; `None` if everything is known already.
    pub deferred: Option<Deferred>,
}

/// The program that an intent starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// The file name of the program, or of the file to which it resolves if the caller knows that. Empty if unknown.
    pub name: Vec<u8>,
    /// The word with which the command calls the program.
    pub called: Arg,
    /// The absolute path of the program, if the command calls the program by a path or the caller resolved its name.
    pub path: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Default)]
pub struct GitIntent {
    /// The verb after alias expansion; empty if it is not known.
    pub verb: Vec<u8>,
    /// The subcommand of verbs that have them (`stash pop`, `remote add`).
    pub subcommand: Option<Vec<u8>>,
    /// Options by their full names (`--amend`, also for `--amen`; `-x` if there is no long name).
    pub flags: Vec<String>,
    /// The refs that the command would create, move or delete, as far as the command names them.
    pub refs: Vec<Vec<u8>>,
    /// Whether the command may also change refs that it does not name, because it reads their names from its input or
    /// changes all of them.
    pub has_unnamed_refs: bool,
    /// Whether the verb is an alias. The expansion of the alias follows as a separate intent.
    pub is_alias: bool,
    /// The directory whose repository the command operates on, or in which it creates one; `None` if the directory is
    /// unknown.
    pub place: Option<Vec<u8>>,
    /// The path in `place` as git passes it to the kernel. The path keeps every `..`, because the kernel follows
    /// symbolic links before it resolves `..`.
    pub unresolved_place: Option<Vec<u8>>,
    /// Whether `place` is itself a git directory (`GIT_DIR`, `--git-dir`). If so, git does not search for one from
    /// `place`.
    pub names_git_dir: bool,
    /// Whether the command creates a repository at `place`.
    pub makes_repository: bool,
}

impl GitIntent {
    /// Returns the verb, with its subcommand if it has one.
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
    /// The offset in `path` of the part below the home directory, if the path is below it.
    pub below_home: Option<usize>,
    pub access: Access,
    /// Whether the command writes the file, although the path is outside of everything that the command may write.
    pub is_outside: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// The program writes, moves or deletes the file, or changes its metadata.
    Write,
}

/// How the analysis found an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// The intent is the command that the caller asked about.
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
    /// Returns the name that JSON output uses for the origin.
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

/// Why guard judges a command again at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// The program's name comes from an expansion, whose value is unknown.
    Program,
    /// The git verb comes from an expansion, whose value is unknown.
    Verb,
    /// Arguments that may change the effects of the command come from an expansion or from standard input.
    Arguments,
    /// Shell text comes from an expansion, a file or standard input.
    Text,
    /// The code is in a language other than shell, which guard does not analyse.
    Code,
    /// Configuration comes from a file or an unknown variable.
    Configuration,
    /// The working directory, and with it the git repository, is unknown. For example, a `cd` has an expansion as its
    /// argument, or stands in an `if` branch that may not run.
    Cwd,
}

impl Deferred {
    /// Returns an explanation for users, as a part of a sentence.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Program => "the program is only known when the command runs",
            Self::Verb => "the git verb is only known when the command runs",
            Self::Arguments => "some arguments are only known when the command runs",
            Self::Text => "the shell text is only known when the command runs",
            Self::Code => "the code is not shell text; guard judges each program that the code starts",
            Self::Configuration => "some configuration is only known when the command runs",
            Self::Cwd => "the working directory is only known when the command runs",
        }
    }
}
