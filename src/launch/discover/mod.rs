//! What a run needs of the user's machine: toolchains, package registries, the files of a program.
pub(crate) mod guard_directories;
pub mod program_files;
pub(crate) mod protected_paths;
pub mod registries;
pub(crate) mod toolchain_table;
pub mod toolchains;
