//! `guard man`: manual pages, made from the same definitions as `--help`.

use std::io::{self, Write};

use clap::CommandFactory;

use crate::cli::args::shell::Man;
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, args};
use crate::sys::agent_paths::AgentPaths;

/// Prints guard's manual page, or writes the pages of all commands to a directory.
pub(in crate::cli) fn run(man: &Man, out: &mut dyn Write) -> Result<Exit, Failure> {
    let command = args::Cli::command();
    let Some(directory) = &man.out else {
        clap_mangen::Man::new(command).render(&mut { out })?;
        return Ok(Exit::Success);
    };
    let written = || -> io::Result<()> {
        let real = AgentPaths::from_environment()?.own_path(&std::path::absolute(directory)?)?;
        std::fs::create_dir_all(&real)?;
        clap_mangen::generate_to(command, &real)
    };
    written().map_err(|error| {
        Failure::usage(
            format!("cannot write manual pages to {}: {error}", directory.display()),
            "give a directory that you can write to",
        )
    })?;
    writeln!(out, "wrote the manual pages to {}", directory.display())?;
    Ok(Exit::Success)
}
