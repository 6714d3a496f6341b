//! The command line: turns arguments into requests for other modules, and results into text and exit codes.
//!
//! This is the only module that prints, and it decides nothing about commands itself. Results go to standard output,
//! notes and errors to standard error.

mod args;
mod chat;
mod commands;
mod demo;
mod output;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::FromArgMatches;
use clap::error::ErrorKind;

use commands::{
    allow, apply, attach, batch, check, completions, config, control, diff, doctor, exec, help, history,
    learn, log, man, mcp, policy, protect, replay, research, restore, run, runs, serve, stop, task, undo,
    verify, why, worker, workflow, worktree,
};
use output::colour::{self, stdout_colour};
use output::exit_code::Exit;
use output::failure::{lint_command, note, write_diagnostics};
use output::logging;

use crate::session::Failure;

pub use output::exit_code::{EXIT_CODES, ExitCodes};
pub use output::output_schemas::{SCHEMAS, VerdictJson};

/// Runs `guard` with these arguments and returns the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let code = answer(args);
    // Flush output that did not go through the buffered writer in `answer`. It is no error if the reader has closed
    // the pipe.
    let _ = io::stdout().flush();
    code
}

fn answer(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    if let [_, option] = args.as_slice()
        && (option == "--version" || option == "-V")
    {
        // Answer what programs ask to find out whether guard is there before anything is set up.
        let _ = writeln!(io::stdout(), "guard {}", env!("CARGO_PKG_VERSION"));
        return Exit::Success.into();
    }
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Printing help fails only if the reader has closed the pipe.
            let _ = error.print();
            let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_help { Exit::Success.into() } else { Exit::Usage.into() };
        }
    };
    colour::start(&cli.colour);
    if let Err(failure) = logging::start(&cli.log) {
        note(&failure.render());
        return Exit::Usage.into();
    }
    if let Err(failure) = protect::protect_directories() {
        note(&failure.render());
        return Exit::Usage.into();
    }
    // Do not lock standard output, because another thread prints events while a command runs.
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout());
    let result = match cli.command {
        args::Command::Check(check) => check::run(check, &mut out),
        args::Command::Policy(policy) => policy::run(policy, &mut out),
        args::Command::Run(arguments) => run::run(arguments, &mut out),
        args::Command::Exec(arguments) => exec::run(&arguments, &mut out),
        args::Command::Chat(arguments) => chat::run(&arguments, &mut out),
        args::Command::History(arguments) => history::run(&arguments, &mut out),
        args::Command::Mcp(arguments) => mcp::run(&arguments, &mut out),
        args::Command::Task(arguments) => task::run(&arguments, &mut out),
        args::Command::Research(arguments) => research::run(&arguments, &mut out),
        args::Command::Batch(arguments) => batch::run(&arguments, &mut out),
        args::Command::Control(arguments) => control::run(&arguments, &mut out),
        args::Command::Worker(arguments) => worker::run(&arguments, &mut out),
        args::Command::Serve(arguments) => serve::run(&arguments, &mut out),
        args::Command::Workflow(arguments) => workflow::run(&arguments, &mut out),
        args::Command::Demo { namespaces } => demo::run(namespaces.map(Into::into), &mut out),
        args::Command::DemoAgent { arguments } => demo::agent(&arguments),
        args::Command::Doctor { json } => doctor::run(json, &mut out),
        args::Command::Log(log) => log::run(&log, &mut out),
        args::Command::Init(arguments) => config::init(&arguments, &mut out),
        args::Command::Config(action) => config::config(&action, &mut out),
        args::Command::Learn(arguments) => learn::run(&arguments, &mut out),
        args::Command::Why(why) => why::run(&why, &mut out),
        args::Command::Allow(allow) => allow::run(&allow, &mut out),
        args::Command::Replay(replay) => replay::run(&replay, &mut out),
        args::Command::Verify(verify) => verify::run(&verify, &mut out),
        args::Command::Runs(runs) => runs::run(&runs, &mut out),
        args::Command::Diff(diff) => diff::run(&diff, &mut out),
        args::Command::Apply(apply) => apply::run(&apply, &mut out),
        args::Command::Restore(restore) => restore::run(&restore, &mut out),
        args::Command::Undo(arguments) => undo::run(&arguments, &mut out),
        args::Command::Ps(ps) => runs::ps(&ps, &mut out),
        args::Command::Stop(stop) => stop::run(&stop, &mut out),
        args::Command::Attach(attach) => attach::run(&attach, &mut out),
        args::Command::Worktree(worktree) => worktree::run(&worktree, &mut out),
        args::Command::Completions(completions) => completions::run(&completions, &mut out),
        args::Command::Man(man) => man::run(&man, &mut out),
        args::Command::Help(help) => help::run(&help, &mut out),
        args::Command::Complete(complete) => completions::values(&complete, &mut out),
    };
    // Flush what the command wrote before it failed.
    let flushed = out.flush().map_err(Failure::from);
    let result = result.and_then(|exit| flushed.map(|()| exit));
    // If the reader has closed the pipe, dropping the writer must not try to write the rest again.
    let _ = out.into_parts();
    match result {
        Ok(exit) => exit.into(),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::ClosedPipe.into(),
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{}", failure.render());
            Exit::Usage.into()
        }
    }
}

fn parse(args: Vec<OsString>) -> Result<args::Cli, clap::Error> {
    if let Some(cli) = args::parse_one_command(&args) {
        return Ok(cli);
    }
    let mut command = help::command().color(colour::choice_in(&args));
    let mut matches = command.try_get_matches_from_mut(args)?;
    args::Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}
