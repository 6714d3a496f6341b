//! The `guard` program: everything is in the library.
#![no_main]

guard::start!(guard::cli::run);
