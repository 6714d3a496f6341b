//! The `guard` program. It only calls the library, which contains all code.

use std::process::ExitCode;

fn main() -> ExitCode {
    guard::cli::run(std::env::args_os()).into()
}
