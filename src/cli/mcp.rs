//! `guard mcp`: tools for other programs.

use super::args::Mcp;
use super::exit::Exit;
use super::{Failure, note};
use crate::mcp::{Setting, serve};

pub(super) fn run(args: &Mcp) -> Result<Exit, Failure> {
    let roots = if args.root.is_empty() { vec![std::env::current_dir()?] } else { args.root.clone() };
    for root in &roots {
        if !root.is_dir() {
            return Err(Failure::usage(
                format!("--root {}: no such folder", root.display()),
                "name a folder that exists",
            ));
        }
    }
    serve(Setting { executor: super::exec::executor()?, roots, log: note })?;
    Ok(Exit::Success)
}
