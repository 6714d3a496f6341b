//! Programs that run other programs: finds the wrapped command and analyses it.
//!
//! The analysis adds an intent for the wrapper itself, because a policy may deny `sudo` whatever it runs. This intent
//! is the parent of the intents of the wrapped command.

mod exec_style;
mod interpreters;
mod loader;
mod options;
mod shell_text;
mod shells;
mod table;
mod xargs_style;

use super::analyze::{Analyzer, Start};
use super::arg::Arg;
use super::effects::Effects;
use super::intent::{Intent, Origin};

type Special = fn(&mut Analyzer<'_>, Vec<Arg>, &Start);

pub(crate) use shells::{is_shell, is_stdin};

/// How to find the command inside a wrapper.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The arguments are options, a fixed number of operands, then the command.
    Plain(&'static table::Plain),
    /// The program is a wrapper only with certain subcommands (`uv run`, `npm exec`).
    Subcommand(&'static [table::Subcommand]),
    /// A function for this wrapper parses the arguments.
    Special(Special),
}

/// Returns the kind of wrapper that a program is; `None` if it is not a wrapper.
pub(crate) fn find(name: &[u8]) -> Option<Kind> {
    if let Some(special) = special(name) {
        return Some(Kind::Special(special));
    }
    table::find(name)
}

fn special(name: &[u8]) -> Option<Special> {
    Some(match name {
        b"env" => exec_style::env,
        b"xargs" => xargs_style::xargs,
        b"find" | b"gfind" => xargs_style::find,
        b"fd" | b"fdfind" => xargs_style::fd,
        b"command" => exec_style::command,
        b"exec" => exec_style::exec,
        b"npm" => shell_text::npm,
        b"sudo" | b"sudo-rs" => exec_style::sudo,
        b"su" | b"runuser" => shell_text::su,
        b"script" => shell_text::script,
        b"watch" => shell_text::watch,
        b"parallel" => xargs_style::parallel,
        b"flock" => shell_text::flock,
        b"ssh" => shell_text::ssh,
        b"hyperfine" => shell_text::hyperfine,
        b"npx" | b"bunx" | b"pnpx" => shell_text::npx,
        b"tmux" => shell_text::tmux,
        b"gdb" => exec_style::gdb,
        b"setarch" => exec_style::setarch,
        b"eval" => shell_text::eval,
        b"tar" | b"rsync" | b"split" | b"sort" | b"man" | b"nodemon" | b"zip" => shell_text::option_command,
        _ if is_multi_call(name) => exec_style::multi_call,
        _ if is_shell(name) => shells::analyze,
        _ if interpreters::is_interpreter(name) => interpreters::analyze,
        _ if loader::is_loader(name) => loader::analyze,
        _ => return None,
    })
}

/// Returns true if a program file implements several programs, and runs the one whose name it is called by (busybox).
pub(crate) fn is_multi_call(file: &[u8]) -> bool {
    file.starts_with(b"busybox") || file.starts_with(b"toybox")
}

pub(crate) fn analyze(analyzer: &mut Analyzer<'_>, kind: Kind, args: Vec<Arg>, start: &Start) {
    match kind {
        Kind::Special(special) => special(analyzer, args, start),
        Kind::Plain(plain) => {
            let inner = options::command_after(&args[1..], plain) + 1;
            wrap(analyzer, args, inner, plain.effects, start);
        }
        Kind::Subcommand(table) => {
            // Options with values may precede the subcommand, so check every argument.
            let entry = args.iter().enumerate().skip(1).find_map(|(at, arg)| {
                let name = arg.known()?;
                table.iter().find(|entry| entry.name.as_bytes() == name).map(|entry| (at, entry))
            });
            match entry {
                Some((at, entry)) => {
                    let inner = options::command_after(&args[at + 1..], &entry.then) + at + 1;
                    wrap(analyzer, args, inner, entry.then.effects, start);
                }
                None => {
                    analyzer.finish(Intent::default(), args, start);
                }
            }
        }
    }
}

/// Adds the wrapper's intent, and analyses the command that begins at the index `inner` of `args`, if there is one.
fn wrap(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, inner: usize, effects: Effects, start: &Start) {
    let command = args.get(inner..).unwrap_or_default().to_vec();
    let parent = analyzer.finish(Intent { effects, ..Intent::default() }, args, start);
    if !command.is_empty() {
        analyzer.command(command, start.inside(parent, Origin::Wrapped));
    }
}

/// Adds the wrapper's intent, and analyses the command that begins at the index `inner` of `args`. `name` is the name
/// by which the wrapper calls the program, if it is not that of the file (`exec -a`, the loader's `--argv0`).
fn wrap_as(
    analyzer: &mut Analyzer<'_>,
    args: Vec<Arg>,
    inner: usize,
    name: Option<Arg>,
    effects: Effects,
    start: &Start,
) {
    let command = args.get(inner..).unwrap_or_default().to_vec();
    let parent = analyzer.finish(Intent { effects, ..Intent::default() }, args, start);
    run_as(analyzer, command, name, start.inside(parent, Origin::Wrapped));
}

/// Analyses a command whose first argument is the program's file. If `name` is given, the program is called by that
/// name. Does nothing if the command is empty.
fn run_as(analyzer: &mut Analyzer<'_>, mut command: Vec<Arg>, name: Option<Arg>, mut start: Start) {
    let Some(first) = command.first_mut() else { return };
    if let (Some(file), Some(name)) = (first.known(), name) {
        start.resolved = Some(file.to_vec());
        *first = name;
    }
    analyzer.command(command, start);
}

/// Adds the wrapper's intent, and analyses the shell text that the wrapper runs. If a part of the text is unknown,
/// marks the intent as deferred instead.
fn wrap_text(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, text: &Arg, effects: Effects, start: &Start) {
    let intent = Intent { effects: effects.with(Effects::RUN_SHELL), ..Intent::default() };
    let parent = analyzer.finish(intent, args, start);
    match text.as_text() {
        Some(bytes) => analyzer.shell_text(bytes, &start.inside(parent, Origin::Wrapped)),
        None => analyzer.defer(parent, super::intent::Deferred::Text),
    }
}

/// Joins arguments with blanks, like a wrapper that passes its arguments to a shell as one text. The text is known only
/// up to the first argument that is not fully known.
fn joined(args: &[Arg]) -> Arg {
    let mut text = Vec::new();
    for (index, arg) in args.iter().enumerate() {
        if index > 0 {
            text.push(b' ');
        }
        let Some(known) = arg.known() else {
            return Arg::partial(text, "…".as_bytes(), true);
        };
        text.extend_from_slice(known);
    }
    Arg::exact(text)
}

#[cfg(test)]
mod tests {
    use crate::judge::command::{Context, Cwd, Request, analyze};

    #[test]
    fn the_path_of_a_program_called_by_another_name_is_absolute() {
        let context = Context { cwd: Cwd::Known(b"/work".to_vec()), ..Context::default() };
        for (text, path) in [
            ("exec -a other git status", None),
            ("exec -a other ./git status", Some("/work/git")),
            ("exec -a other /usr/bin/git status", Some("/usr/bin/git")),
            ("env -C /opt -a other bin/git status", Some("/opt/bin/git")),
        ] {
            let analysis = analyze(&Request::Shell(text.as_bytes().to_vec()), &context);
            let paths: Vec<Option<&[u8]>> = analysis
                .intents
                .iter()
                .filter(|intent| intent.program.name == b"git")
                .map(|intent| intent.program.path.as_deref())
                .collect();
            assert_eq!(paths, [path.map(str::as_bytes)], "{text}");
        }
    }
}
