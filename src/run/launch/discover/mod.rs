//! Finds the files and hosts that a run needs on the user's machine: toolchains, package registries, and the files of a
//! program. These modules change nothing, except that `registries` may run a package tool and caches its answer.
//! `protected_paths` and `guard_directories` check that guard does not give a run access to certain paths.
pub(crate) mod guard_directories;
pub mod program_files;
pub(crate) mod protected_paths;
pub mod registries;
pub(crate) mod toolchain_table;
pub mod toolchains;
