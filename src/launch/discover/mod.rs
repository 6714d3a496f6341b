//! Finds the files and hosts that a run needs on the user's machine: toolchains, package registries, and the files of
//! a program. These modules only read files. `protected_paths` and `guard_directories` list the paths to which guard
//! must never give a run access.
pub(crate) mod guard_directories;
pub mod program_files;
pub(crate) mod protected_paths;
pub mod registries;
pub(crate) mod toolchain_table;
pub mod toolchains;
