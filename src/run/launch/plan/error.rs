//! Why guard cannot plan a run.

use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command's first word is not the name or path of an existing program.
    #[error("command not found: {0}")]
    CommandNotFound(String),
    #[error("cannot run {program}: {problem}")]
    NotExecutable {
        /// The program as the caller wrote it.
        program: String,
        problem: String,
    },
    /// The run may not use a directory as its working directory, or may not write to it.
    #[error("cannot run in {}: {problem}", directory.display())]
    Directory { directory: PathBuf, problem: String },
    /// A path of the option `--read` or `--write` does not exist, so the kernel cannot give the run access to it.
    #[error("cannot grant {}: the path does not exist", path.display())]
    GrantedPathMissing {
        /// The option, such as `--write`.
        option: &'static str,
        /// The absolute path.
        path: PathBuf,
    },
    /// guard cannot use an option, a variable or a path of the policy. Contains the complete message.
    #[error("{0}")]
    Input(String),
}
