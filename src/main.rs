//! The `guard` program: everything is in the library.
#![no_main]

use std::ffi::OsString;

guard::start!(run);

fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    // What even the shortest command uses.
    guard::sys::process::take_memory_at_once(128);
    guard::cli::run(args)
}
