//! The `guard` program. All code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    guard::cli::run(std::env::args_os()).into()
}
