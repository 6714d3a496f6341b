//! Wrappers that run the command in their arguments with another environment, user or program name.

use super::super::analyze::{Analyzer, Start};
use super::super::arg::Arg;
use super::super::intent::{Deferred, Intent, Origin};
use super::options::{Valued, is_assignment, leading};
use super::{joined, run_as, wrap, wrap_as, wrap_text};
use crate::judge::command::effects::Effects;

/// Analyses `env [-i] [-u NAME] [-C DIR] [-S TEXT] [NAME=VALUE…] command…`.
pub(super) fn env(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued =
        Valued { short: b"uCSa", long: &["unset", "chdir", "split-string", "argv0"], joined: b"" };
    let mut inside = start.clone();
    let mut split = None;
    let mut name = None;
    let mut at = 1;
    // A lone `-` means `-i` and may be followed by further options.
    loop {
        let before = at;
        at += leading(&args[at..], &VALUED, &mut |met| match (met.short, met.long) {
            (b'i', _) => inside.env.clear(),
            (0, long) if !long.is_empty() && b"ignore-environment".starts_with(long) => inside.env.clear(),
            (b'u', _) | (0, b"unset") => {
                if let Some(name) = met.value.as_ref().and_then(Arg::known) {
                    inside.env.unset(name);
                }
            }
            (b'C', _) | (0, b"chdir") => {
                let path = met.value.as_ref().and_then(Arg::known);
                inside.cwd = path.map_or_else(Default::default, |path| start.cwd.enter(path));
            }
            (b'S', _) | (0, b"split-string") => split = met.value.clone(),
            (b'a', _) | (0, b"argv0") => name = met.value.clone(),
            _ => {}
        });
        if args.get(at).is_some_and(|arg| arg.known() == Some(b"-")) {
            inside.env.clear();
            at += 1;
        }
        if at == before {
            break;
        }
    }
    let mut words = Vec::new();
    let mut deferred = None;
    if let Some(text) = split {
        // In the text of `env -S`, an unquoted `\_` means a blank. `\c` ends the text, so such a text is not analysed
        // in advance.
        let stops = text.known().is_some_and(|text| text.windows(2).any(|pair| pair == b"\\c"));
        let plain = text
            .known()
            .filter(|_| !stops)
            .and_then(|text| std::str::from_utf8(text).ok())
            .map(|text| text.replace("\\_", " "));
        match plain.as_deref().map(shell_words::split) {
            // In the text of `env -S`, `$` begins a variable, which env itself substitutes.
            Some(Ok(parts)) => words.extend(parts.into_iter().map(|part| match part.find('$') {
                Some(hole) => Arg::partial(&part.as_bytes()[..hole], part.as_bytes(), false),
                None => Arg::exact(part),
            })),
            _ => deferred = Some(Deferred::Arguments),
        }
    }
    words.extend_from_slice(&args[at.min(args.len())..]);
    // `-S '-i git x'`: env parses the words of the split text like its own arguments.
    if deferred.is_none() && words.first().is_some_and(|word| word.prefix().starts_with(b"-")) {
        let parent = analyzer.finish(Intent::default(), args, start);
        let again = [vec![Arg::from("env")], words].concat();
        analyzer.command(again, Start { resolved: None, ..inside.inside(parent, Origin::Wrapped) });
        return;
    }
    // env takes every leading argument with `=` for an assignment.
    let assignments = words.iter().take_while(|word| word.prefix().contains(&b'=')).count();
    let mut functions = Vec::new();
    for word in &words[..assignments] {
        let equals = word.prefix().iter().position(|&byte| byte == b'=').unwrap_or(0);
        let (name, value) = (&word.prefix()[..equals], word.skip(equals + 1));
        if name.starts_with(b"BASH_FUNC_") {
            // The variable defines a function for child shells. Judge the function's body as if it were called.
            functions.extend(value.known().map(|body| [b"f ".as_slice(), body].concat()));
        } else if !name.is_empty() {
            inside.env.set(name, value);
        }
    }
    let command = words.split_off(assignments);
    let parent = analyzer.finish(Intent { deferred, ..Intent::default() }, args, start);
    for function in functions {
        analyzer.shell_text(&function, &inside.inside(parent, Origin::Wrapped));
    }
    run_as(analyzer, command, name, inside.inside(parent, Origin::Wrapped));
}

/// Analyses `command [-p] cmd`. With `-v` or `-V`, `command` only prints and runs nothing.
pub(super) fn command(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut asks = false;
    let inner = leading(&args[1..], &Valued { short: b"", long: &[], joined: b"" }, &mut |met| {
        asks |= matches!(met.short, b'v' | b'V');
    });
    let inner = if asks { args.len() } else { inner + 1 };
    wrap(analyzer, args, inner, Effects::NONE, start);
}

/// Analyses `exec [-a NAME] command…`: with `-a`, the program is called by a different name.
pub(super) fn exec(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut name = None;
    let inner = 1 + leading(&args[1..], &Valued { short: b"a", long: &[], joined: b"" }, &mut |met| {
        name = met.value.clone().or(name.take())
    });
    wrap_as(analyzer, args, inner, name, Effects::NONE, start);
}

/// Analyses `sudo [options] [VAR=value] command…`. With `-s` and `-i`, a shell runs the command. With `-e`, sudo edits
/// files; the analysis then treats the first file as a command.
pub(super) fn sudo(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"aCDghpRrTtUu",
        long: &[
            "auth-type",
            "close-from",
            "chdir",
            "group",
            "host",
            "prompt",
            "chroot",
            "role",
            "type",
            "command-timeout",
            "other-user",
            "user",
        ],
        joined: b"",
    };
    let mut shell = false;
    let mut inner = 1 + leading(&args[1..], &VALUED, &mut |met| {
        shell |= matches!(met.short, b's' | b'i') || matches!(met.long, b"shell" | b"login");
    });
    while args.get(inner).is_some_and(|arg| is_assignment(arg.prefix())) {
        inner += 1;
    }
    if shell && inner < args.len() {
        let text = joined(&args[inner..]);
        wrap_text(analyzer, args, &text, Effects::RUN_ELSEWHERE, start);
    } else {
        wrap(analyzer, args, inner, Effects::RUN_ELSEWHERE, start);
    }
}

/// Analyses `gdb --args command…`. If an option such as `-ex` contains gdb commands, marks gdb's intent as deferred.
pub(super) fn gdb(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let inner = args
        .iter()
        .position(|arg| matches!(arg.known(), Some(b"--args" | b"-args")))
        .map_or(args.len(), |at| at + 1);
    let scripted = args[1..inner].iter().any(|arg| {
        [b"-ex".as_slice(), b"-iex", b"-x", b"-ix", b"-eval", b"-command", b"-init"]
            .iter()
            .any(|option| arg.prefix().starts_with(option))
            || arg.prefix().starts_with(b"--eval-command")
            || arg.prefix().starts_with(b"--command")
    });
    let index = analyzer.intents.len();
    wrap(analyzer, args, inner, Effects::NONE, start);
    if scripted {
        analyzer.defer(index, Deferred::Code);
    }
}

/// Analyses `busybox applet…`. With an option such as `--list`, busybox runs no applet.
pub(super) fn multi_call(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let is_option = args.get(1).is_some_and(|arg| arg.prefix().starts_with(b"--"));
    let inner = if is_option { args.len() } else { 1 };
    wrap(analyzer, args, inner, Effects::NONE, start);
}

/// Analyses `setarch [ARCH] [options] command…`.
pub(super) fn setarch(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"", long: &["pid"], joined: b"" };
    let mut inner = 1 + leading(&args[1..], &VALUED, &mut |_| {});
    let is_arch = |arg: &Arg| {
        let known = [
            b"x86_64".as_slice(),
            b"i386",
            b"i486",
            b"i586",
            b"i686",
            b"linux32",
            b"linux64",
            b"uname26",
            b"aarch64",
            b"arm",
            b"athlon",
        ];
        arg.known().is_some_and(|word| known.contains(&word))
    };
    if args.get(inner).is_some_and(is_arch) {
        inner += 1;
        inner += leading(args.get(inner..).unwrap_or_default(), &VALUED, &mut |_| {});
    }
    wrap(analyzer, args, inner, Effects::NONE, start);
}
