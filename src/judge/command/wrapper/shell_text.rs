//! Wrappers that run shell text, which is the value of an option, or their arguments joined with blanks.

use super::super::analyze::{Analyzer, Start};
use super::super::arg::Arg;
use super::super::intent::{Intent, Origin};
use super::options::{Valued, leading};
use super::{joined, wrap, wrap_text};
use crate::judge::command::effects::Effects;
use crate::judge::command::file_operands;

/// Analyses `eval` as the program of an argv. Only shells have `eval`, so the exec would fail, but the analysis
/// judges the text anyway.
pub(super) fn eval(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let text = joined(&args[1..]);
    wrap_text(analyzer, args, &text, Effects::NONE, start);
}

/// Analyses `su [user] -c TEXT` and `runuser -u user -- command…`.
pub(super) fn su(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut text = None;
    let mut user_given = false;
    let mut rest = args.iter().enumerate().skip(1);
    let mut inner = args.len();
    while let Some((index, arg)) = rest.next() {
        let word = arg.prefix();
        if word == b"-c" || word == b"--command" || word == b"--session-command" {
            text = rest.next().map(|(_, value)| value.clone());
        } else if word.starts_with(b"--command=") || word.starts_with(b"--session-command=") {
            let equals = word.iter().position(|&byte| byte == b'=').unwrap_or(0);
            text = Some(arg.skip(equals + 1));
        } else if word.len() > 2 && word[0] == b'-' && word[1] != b'-' && word.ends_with(b"c") {
            text = rest.next().map(|(_, value)| value.clone());
        } else if word == b"-u" || word == b"--user" {
            user_given = true;
            rest.next();
        } else if matches!(word, b"-s" | b"--shell" | b"-g" | b"--group" | b"-G" | b"--supp-group" | b"-w") {
            rest.next();
        } else if word == b"--" && user_given {
            inner = index + 1;
            break;
        } else if user_given && !word.starts_with(b"-") {
            inner = index;
            break;
        }
    }
    match text {
        Some(text) => wrap_text(analyzer, args, &text, Effects::RUN_ELSEWHERE, start),
        None => wrap(analyzer, args, inner, Effects::RUN_ELSEWHERE, start),
    }
}

/// Analyses `script [-q] [-c TEXT] [file] [-- command…]`.
pub(super) fn script(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"cEIOBTmo",
        long: &[
            "command",
            "echo",
            "log-in",
            "log-out",
            "log-io",
            "log-timing",
            "logging-format",
            "output-limit",
        ],
        joined: b"",
    };
    let mut text = None;
    let mut at = 1;
    while at < args.len() {
        at += leading(&args[at..], &VALUED, &mut |met| {
            if met.short == b'c' || met.long == b"command" {
                text = met.value.clone();
            }
        });
        if args.get(at - 1).is_some_and(|arg| arg.known() == Some(b"--")) {
            break;
        }
        at += usize::from(at < args.len());
    }
    match text {
        Some(text) => wrap_text(analyzer, args, &text, Effects::NONE, start),
        None => wrap(analyzer, args, at, Effects::NONE, start),
    }
}

/// Analyses `watch [options] words…`: the joined arguments are text for a shell; with `-x` they are a command.
pub(super) fn watch(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"nqs", long: &["interval", "equexit", "shotsdir"], joined: b"" };
    let mut direct = false;
    let inner =
        1 + leading(&args[1..], &VALUED, &mut |met| direct |= met.short == b'x' || met.long == b"exec");
    if direct || inner >= args.len() {
        wrap(analyzer, args, inner, Effects::NONE, start);
    } else {
        let text = joined(&args[inner..]);
        wrap_text(analyzer, args, &text, Effects::NONE, start);
    }
}

/// Analyses `flock [options] FILE command…` and `flock FILE -c TEXT`.
pub(super) fn flock(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued =
        Valued { short: b"wE", long: &["timeout", "wait", "conflict-exit-code"], joined: b"" };
    let mut at = 1 + leading(&args[1..], &VALUED, &mut |_| {});
    at += 1;
    match args.get(at).map(Arg::prefix) {
        Some(b"-c" | b"--command") => match args.get(at + 1).cloned() {
            Some(text) => wrap_text(analyzer, args, &text, Effects::NONE, start),
            None => wrap(analyzer, args, usize::MAX, Effects::NONE, start),
        },
        _ => wrap(analyzer, args, at, Effects::NONE, start),
    }
}

/// Analyses `ssh [options] host words…`: the joined arguments are text for the shell of the remote machine.
pub(super) fn ssh(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"BbcDEeFIiJLlmOopPQRSWw", long: &[], joined: b"" };
    let host = 1 + leading(&args[1..], &VALUED, &mut |_| {});
    // Options may also follow the host.
    let inner = host + 1 + leading(args.get(host + 1..).unwrap_or_default(), &VALUED, &mut |_| {});
    if inner < args.len() {
        let text = joined(&args[inner..]);
        wrap_text(analyzer, args, &text, Effects::RUN_ELSEWHERE, start);
    } else {
        wrap(analyzer, args, inner, Effects::RUN_ELSEWHERE, start);
    }
}

/// Analyses `hyperfine [options] 'text'…`: each operand is text for a shell.
pub(super) fn hyperfine(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"wmMrpcPDLsSnu",
        long: &[
            "warmup",
            "min-runs",
            "max-runs",
            "runs",
            "prepare",
            "cleanup",
            "setup",
            "conclude",
            "parameter-scan",
            "shell",
            "style",
            "export-json",
            "export-markdown",
            "export-csv",
            "command-name",
            "time-unit",
        ],
        joined: b"",
    };
    let mut texts = Vec::new();
    let inner = 1 + leading(&args[1..], &VALUED, &mut |met| {
        if matches!(met.short, b'p' | b'c' | b's')
            || matches!(met.long, b"prepare" | b"cleanup" | b"setup" | b"conclude")
        {
            texts.extend(met.value.clone());
        }
    });
    texts.extend_from_slice(args.get(inner..).unwrap_or_default());
    let parent = analyzer.finish(Intent { effects: Effects::RUN_SHELL, ..Intent::default() }, args, start);
    for text in texts.iter().filter_map(Arg::known) {
        analyzer.shell_text(text, &start.inside(parent, Origin::Wrapped));
    }
}

/// Analyses `npm`. `npm exec …` is equivalent to npx.
pub(super) fn npm(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"wC",
        long: &[
            "prefix",
            "workspace",
            "loglevel",
            "registry",
            "cache",
            "userconfig",
            "globalconfig",
            "script-shell",
            "location",
        ],
        joined: b"",
    };
    let verb = 1 + leading(&args[1..], &VALUED, &mut |_| {});
    if !matches!(args.get(verb).and_then(Arg::known), Some(b"exec" | b"x")) {
        analyzer.finish(Intent::default(), args, start);
        return;
    }
    let rest = args[verb..].to_vec();
    let parent = analyzer.finish(Intent::default(), args, start);
    npx(analyzer, rest, &start.inside(parent, Origin::Wrapped));
}

/// Analyses `npx [-p package] [-c TEXT] [command…]`.
pub(super) fn npx(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"pcw", long: &["package", "call", "workspace"], joined: b"" };
    let mut text = None;
    let inner = 1 + leading(&args[1..], &VALUED, &mut |met| {
        if met.short == b'c' || met.long == b"call" {
            text = met.value.clone();
        }
    });
    match text {
        Some(text) => wrap_text(analyzer, args, &text, Effects::NONE, start),
        None => wrap(analyzer, args, inner, Effects::NONE, start),
    }
}

/// Analyses `tmux new-session [options] 'text'` and the other subcommands that start a shell.
pub(super) fn tmux(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const GLOBAL: Valued = Valued { short: b"cfLST", long: &[], joined: b"" };
    const VALUED: Valued = Valued { short: b"cefFlnpstxy", long: &[], joined: b"" };
    // `tmux a \; b` runs several tmux commands.
    if let Some(at) = args.iter().position(|arg| matches!(arg.known(), Some(b";" | b"\\;"))) {
        let rest = [vec![args[0].clone()], args[at + 1..].to_vec()].concat();
        tmux(analyzer, args[..at].to_vec(), start);
        analyzer.command(rest, start.clone());
        return;
    }
    let mut shell_command = None;
    let verb = 1 + leading(&args[1..], &GLOBAL, &mut |met| {
        if met.short == b'c' {
            shell_command = met.value.clone();
        }
    });
    if let Some(text) = shell_command {
        wrap_text(analyzer, args, &text, Effects::NONE, start);
        return;
    }
    let runs = [
        b"new-session".as_slice(),
        b"new",
        b"new-window",
        b"neww",
        b"split-window",
        b"splitw",
        b"respawn-pane",
        b"respawn-window",
        b"run-shell",
        b"run",
        b"if-shell",
        b"popup",
        b"display-popup",
    ];
    let starts = args.get(verb).and_then(Arg::known).is_some_and(|name| runs.contains(&name));
    let inner = verb + 1 + leading(args.get(verb + 1..).unwrap_or_default(), &VALUED, &mut |_| {});
    if starts && inner < args.len() {
        let text = joined(&args[inner..]);
        wrap_text(analyzer, args, &text, Effects::NONE, start);
    } else {
        analyzer.finish(Intent::default(), args, start);
    }
}

/// Analyses tools that have an option whose value is a command (`tar --to-command=…`).
pub(super) fn option_command(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let name = args[0].known().map(crate::judge::command::cwd::base_name).unwrap_or_default().to_vec();
    let options: &[&[u8]] = match name.as_slice() {
        b"tar" => &[
            b"--to-command",
            b"--checkpoint-action",
            b"--use-compress-program",
            b"-I",
            b"--rsh-command",
            b"-F",
            b"--info-script",
            b"--new-volume-script",
        ],
        b"rsync" => &[b"-e", b"--rsh", b"--rsync-path"],
        b"split" => &[b"--filter"],
        b"zip" => &[b"-TT", b"--unzip-command"],
        b"sort" => &[b"--compress-program"],
        b"man" => &[b"-P", b"--pager", b"-H", b"--html"],
        _ => &[b"--exec", b"-x"],
    };
    let mut texts = Vec::new();
    for (index, arg) in args.iter().enumerate().skip(1) {
        let word = arg.prefix();
        let name = &word[..word.iter().position(|&byte| byte == b'=').unwrap_or(word.len())];
        for option in options {
            // Long options may be abbreviated.
            let long = option.starts_with(b"--") && name.len() > 4 && option.starts_with(name);
            if (long || name == *option) && name.len() < word.len() {
                texts.push(arg.skip(name.len() + 1));
            } else if long || word == *option {
                texts.extend(args.get(index + 1).cloned());
            } else if option.len() == 2 && word.starts_with(option) {
                texts.push(arg.skip(2));
            }
        }
    }
    // `tar cIf PROGRAM FILE`: option letters without a dash, followed by their values.
    if name == b"tar"
        && args.get(1).is_some_and(|arg| {
            !arg.prefix().starts_with(b"--") && arg.prefix().iter().any(|letter| b"IF".contains(letter))
        })
    {
        texts.extend(args.iter().skip(2).take(3).cloned());
    }
    let mut intent = Intent::default();
    file_operands::describe(&name, &args, &start.cwd, analyzer.context, &mut intent);
    let parent = analyzer.finish(intent, args, start);
    for text in texts.iter().filter_map(Arg::known).filter(|text| !text.is_empty()) {
        // The value of tar's `--checkpoint-action` is a command only after `exec=`.
        let text = text.strip_prefix(b"exec=").unwrap_or(text);
        analyzer.shell_text_if_readable(text, &start.inside(parent, Origin::Wrapped));
    }
}
