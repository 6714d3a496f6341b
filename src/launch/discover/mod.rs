//! Finds what a run needs of the user's machine: toolchains, package registries, and the files of a program. These
//! modules only read; what must never be granted is listed in `protected_paths` and `guard_directories`.
pub(crate) mod guard_directories;
pub mod program_files;
pub(crate) mod protected_paths;
pub mod registries;
pub(crate) mod toolchain_table;
pub mod toolchains;
