//! Effect classes: what a command does, in terms that policies can name.

use std::fmt;

/// A set of effect classes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Effects(u32);

macro_rules! effects {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal,)+) => {
        effects!(@constants 0u32; $($(#[doc = $doc])+ $constant,)+);

        /// All classes: the name in policies, the description, and the value.
        pub const CLASSES: &[(&str, &str, Effects)] = &[
            $(($name, concat!($($doc),+), Effects::$constant),)+
        ];
    };
    (@constants $bit:expr; $(#[doc = $doc:literal])+ $constant:ident, $($rest:tt)*) => {
        impl Effects {
            $(#[doc = $doc])+
            pub const $constant: Effects = Effects(1 << ($bit));
        }
        effects!(@constants $bit + 1; $($rest)*);
    };
    (@constants $bit:expr;) => {};
}

effects! {
    /// Reads the repository.
    GIT_READS = "git.reads",
    /// Changes the index.
    GIT_INDEX = "git.index",
    /// Changes files of the working tree.
    GIT_WORKTREE = "git.worktree",
    /// Adds a commit to the current branch.
    GIT_COMMITS = "git.commits",
    /// Replaces the last commit (`commit --amend`).
    GIT_AMENDS = "git.amends",
    /// Moves the current branch to a commit that may not contain its present commits: reset, rebase, pull.
    GIT_REWRITES = "git.rewrites",
    /// Moves HEAD to another branch or commit.
    GIT_SWITCHES = "git.switches",
    /// Creates, moves or deletes refs other than the current branch.
    GIT_REFS = "git.refs",
    /// Changes the stash.
    GIT_STASH = "git.stash",
    /// Changes git configuration.
    GIT_CONFIG = "git.config",
    /// Communicates with another repository or host.
    GIT_REMOTE = "git.remote",
    /// Writes, packs or removes objects.
    GIT_OBJECTS = "git.objects",
    /// Creates or removes a repository, worktree or submodule.
    GIT_REPOSITORY = "git.repository",
    /// Changes a repository other than the task's, or one that guard cannot determine.
    GIT_ELSEWHERE = "git.elsewhere",
    /// Works in a repository that the run created in its private directories, not in the task's repository.
    GIT_OTHER = "git.other",
    /// Keeps the repository's hooks from running, or makes git run other hooks.
    GIT_SKIPS_HOOKS = "git.skips-hooks",
    /// Makes git run a program named by an option, a variable or configuration.
    GIT_RUNS_PROGRAM = "git.runs-program",
    /// Reads configuration whose content guard does not know.
    GIT_FOREIGN_CONFIG = "git.foreign-config",
    /// Uses a verb that guard does not know, or that is known only when the command runs.
    GIT_UNKNOWN = "git.unknown",
    /// Reads a file named on the command line.
    FS_READS = "fs.reads",
    /// Writes, moves or deletes a file named on the command line.
    FS_WRITES = "fs.writes",
    /// Runs shell text.
    RUN_SHELL = "run.shell",
    /// Makes an interpreter run code from its command line or standard input; guard judges only the programs that the
    /// code starts.
    RUN_INLINE_CODE = "run.inline-code",
    /// Runs a script file; guard judges the script's commands when they start.
    RUN_SCRIPT = "run.script",
    /// Runs a program that is only known when the command runs.
    RUN_DYNAMIC = "run.dynamic",
    /// Runs a program through the dynamic loader.
    RUN_LOADER = "run.loader",
    /// Runs a command on another machine, in a container or with another identity.
    RUN_ELSEWHERE = "run.elsewhere",
}

impl Effects {
    /// The empty set of classes: no known effect.
    pub const NONE: Self = Self(0);

    /// All classes of git effects. They are defined before `FS_READS`, the first class that is not about git.
    pub const ALL_OF_GIT: Self = Self(Self::FS_READS.0 - 1);

    /// Returns the class with this name in policies; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        CLASSES.iter().find(|(known, ..)| *known == name).map(|&(.., effect)| effect)
    }

    /// Returns the union of this set and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if every class of this set is in `other`.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        CLASSES.iter().filter(move |(.., effect)| self.intersects(*effect)).map(|&(name, ..)| name)
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.names()).finish()
    }
}
