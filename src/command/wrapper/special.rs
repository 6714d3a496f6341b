//! Wrappers that need code of their own: the command is an option's value, a shell text, or hidden in an expression.

use super::super::analyze::{Analyzer, Start, Stdin};
use super::super::arg::Arg;
use super::super::effect::Effects;
use super::super::files;
use super::super::intent::{Deferred, Intent, Origin};
use super::options::{Valued, is_assignment, leading};
use super::{joined, run_as, wrap, wrap_as, wrap_text};

/// `env [-i] [-u NAME] [-C DIR] [-S TEXT] [NAME=VALUE…] command…`
pub(super) fn env(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"uCSa", long: &["unset", "chdir", "split-string", "argv0"] };
    let mut inside = start.clone();
    let mut split = None;
    let mut name = None;
    let mut at = 1;
    // A lone `-` means `-i` and may be followed by further options.
    loop {
        let before = at;
        at += leading(&args[at..], &VALUED, &mut |met| match (met.short, met.long) {
            (b'i', _) | (0, b"ignore-environment") => inside.env.clear(),
            (b'u', _) | (0, b"unset") => {
                if let Some(name) = met.value.as_ref().and_then(Arg::known) {
                    inside.env.unset(name);
                }
            }
            (b'C', _) | (0, b"chdir") => {
                let path = met.value.as_ref().and_then(Arg::known);
                inside.folder = path.map_or_else(Default::default, |path| start.folder.enter(path));
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
        match text.known().and_then(|text| std::str::from_utf8(text).ok()).map(shell_words::split) {
            // A `$` in it is a variable that env itself puts in.
            Some(Ok(parts)) => words.extend(parts.into_iter().map(|part| match part.find('$') {
                Some(hole) => Arg::partial(&part.as_bytes()[..hole], part.as_bytes(), false),
                None => Arg::exact(part),
            })),
            _ => deferred = Some(Deferred::Arguments),
        }
    }
    words.extend_from_slice(&args[at.min(args.len())..]);
    // `-S '-i git x'`: what was split is read like env's own arguments.
    if deferred.is_none() && words.first().is_some_and(|word| word.prefix().starts_with(b"-")) {
        let parent = analyzer.finish(Intent::default(), args, start);
        let again = [vec![Arg::from("env")], words].concat();
        analyzer.command(again, Start { resolved: None, ..inside.inside(parent, Origin::Wrapped) });
        return;
    }
    let assignments = words.iter().take_while(|word| is_assignment(word.prefix())).count();
    for word in &words[..assignments] {
        let equals = word.prefix().iter().position(|&byte| byte == b'=').unwrap_or(0);
        inside.env.set(&word.prefix()[..equals], word.skip(equals + 1));
    }
    let command = words.split_off(assignments);
    let parent = analyzer.finish(Intent { deferred, ..Intent::default() }, args, start);
    run_as(analyzer, command, name, inside.inside(parent, Origin::Wrapped));
}

/// `command [-p] cmd`; with `-v` or `-V` it only tells.
pub(super) fn command(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut asks = false;
    let inner = leading(&args[1..], &Valued { short: b"", long: &[] }, &mut |met| {
        asks |= matches!(met.short, b'v' | b'V');
    });
    let inner = if asks { args.len() } else { inner + 1 };
    wrap(analyzer, args, inner, Effects::NONE, start);
}

/// `exec [-a NAME] command…`: the program may be called by another name.
pub(super) fn exec(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut name = None;
    let inner = 1 + leading(&args[1..], &Valued { short: b"a", long: &[] }, &mut |met| {
        name = met.value.clone().or(name.take())
    });
    wrap_as(analyzer, args, inner, name, Effects::NONE, start);
}

/// The `eval` of an argv (only a shell has it; harmless, but its text is judged all the same).
pub(super) fn eval(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let text = joined(&args[1..]);
    wrap_text(analyzer, args, &text, Effects::NONE, start);
}

/// `xargs [options] command…`: standard input becomes further arguments.
pub(super) fn xargs(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"adEILnPs",
        long: &["arg-file", "delimiter", "max-args", "max-procs", "max-chars", "process-slot-var"],
    };
    let mut replace: Option<Vec<u8>> = None;
    let mut plain_input = true;
    let inner = leading(&args[1..], &VALUED, &mut |met| match (met.short, met.long) {
        (b'I', _) | (0, b"replace") => {
            replace = Some(met.value.as_ref().map_or(b"{}".to_vec(), |value| value.prefix().to_vec()));
        }
        (b'i', _) => replace = Some(b"{}".to_vec()),
        (b'a' | b'd' | b'0', _) | (0, b"arg-file" | b"delimiter" | b"null") => plain_input = false,
        _ => {}
    }) + 1;
    let mut command = args.get(inner..).unwrap_or_default().to_vec();
    if command.is_empty() {
        analyzer.finish(Intent::default(), args, start);
        return;
    }
    let input = match &start.stdin {
        Stdin::Text(text) if plain_input => std::str::from_utf8(text).ok().and_then(|text| match &replace {
            Some(_) => Some(text.lines().map(str::to_string).collect::<Vec<_>>()),
            None => shell_words::split(text).ok(),
        }),
        _ => None,
    };
    let parent = analyzer.finish(Intent::default(), args, start);
    let mut inside = start.inside(parent, Origin::Wrapped);
    inside.stdin = Stdin::Unknown;
    match (replace, input) {
        (Some(mark), Some(lines)) => {
            for line in lines.into_iter().take(64) {
                let with = command.iter().map(|arg| fill(arg, &mark, Some(line.as_bytes()))).collect();
                analyzer.command(with, inside.clone());
            }
        }
        (Some(mark), None) => {
            let with = command.iter().map(|arg| fill(arg, &mark, None)).collect();
            analyzer.command(with, inside);
        }
        (None, Some(words)) => {
            command.extend(words.into_iter().map(Arg::exact));
            analyzer.command(command, inside);
        }
        (None, None) => {
            command.push(Arg::partial(Vec::new(), "…".as_bytes(), true));
            analyzer.command(command, inside);
        }
    }
}

/// An argument with a placeholder filled in, or cut at it when the value is not known.
fn fill(arg: &Arg, mark: &[u8], value: Option<&[u8]>) -> Arg {
    let Some(text) = arg.known().filter(|_| !mark.is_empty()) else { return arg.clone() };
    let Some(at) = text.windows(mark.len()).position(|window| window == mark) else { return arg.clone() };
    match value {
        None => Arg::template(&text[..at], text),
        Some(value) => Arg::exact([&text[..at], value, &text[at + mark.len()..]].concat()),
    }
}

/// `find … -exec command {} ;` and its relatives; `-delete` and `-fprint` write.
pub(super) fn find(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut commands: Vec<(Vec<Arg>, bool)> = Vec::new();
    let mut intent = Intent::default();
    let roots =
        args[1..].iter().take_while(|arg| !matches!(arg.prefix().first(), Some(b'-' | b'(' | b'!'))).count();
    let mut at = 1;
    while let Some(arg) = args.get(at) {
        at += 1;
        match arg.prefix() {
            b"-exec" | b"-execdir" | b"-ok" | b"-okdir" => {
                let rest = &args[at..];
                let length = rest
                    .iter()
                    .enumerate()
                    .position(|(index, word)| {
                        word.known() == Some(b";")
                            || (word.known() == Some(b"+")
                                && index > 0
                                && rest[index - 1].known() == Some(b"{}"))
                    })
                    .unwrap_or(rest.len());
                let command = rest[..length].iter().map(|word| fill(word, b"{}", None)).collect();
                commands.push((command, matches!(arg.prefix(), b"-execdir" | b"-okdir")));
                at += length + 1;
            }
            b"-delete" => {
                for root in &args[1..=roots] {
                    files::use_path(
                        root,
                        super::super::intent::Access::Write,
                        &start.folder,
                        analyzer.context,
                        &mut intent.paths,
                    );
                }
                intent.effects.add(Effects::FS_WRITES);
            }
            b"-fprint" | b"-fprint0" | b"-fprintf" | b"-fls" => {
                if let Some(file) = args.get(at) {
                    files::use_path(
                        file,
                        super::super::intent::Access::Write,
                        &start.folder,
                        analyzer.context,
                        &mut intent.paths,
                    );
                }
            }
            _ => {}
        }
    }
    files::note_paths(&mut intent);
    let parent = analyzer.finish(intent, args, start);
    for (command, in_its_folder) in commands {
        let mut inside = start.inside(parent, Origin::Wrapped);
        if in_its_folder {
            inside.folder = super::super::place::Folder::Unknown;
        }
        if !command.is_empty() {
            analyzer.command(command, inside);
        }
    }
}

/// `fd pattern -x command…`, `-X command…`.
pub(super) fn fd(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let starts = |arg: &Arg| matches!(arg.known(), Some(b"-x" | b"-X" | b"--exec" | b"--exec-batch"));
    let inner = args.iter().position(starts).map_or(args.len(), |at| at + 1);
    let command: Vec<Arg> = args[inner..].iter().map(|arg| fill(arg, b"{}", None)).collect();
    let parent = analyzer.finish(Intent::default(), args, start);
    if !command.is_empty() {
        analyzer.command(command, start.inside(parent, Origin::Wrapped));
    }
}

/// `sudo [options] [VAR=value] command…`; `-s` and `-i` hand it to a shell, `-e` edits files.
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

/// `su [user] -c TEXT`, `runuser -u user -- command…`.
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

/// `script [-q] [-c TEXT] [file] [-- command…]`
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

/// `watch [options] words…`: the words, joined, are text for a shell; with `-x` they are a command.
pub(super) fn watch(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"nqs", long: &["interval", "equexit", "shotsdir"] };
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

/// `parallel [options] command… ::: values`: a shell runs the command once a value; without one the values are commands.
pub(super) fn parallel(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"aCdEIjLnNPsS",
        long: &[
            "jobs",
            "delay",
            "joblog",
            "arg-file",
            "max-args",
            "colsep",
            "sshlogin",
            "timeout",
            "retries",
            "results",
            "tmpdir",
            "load",
            "delimiter",
            "max-procs",
        ],
    };
    let inner = 1 + leading(&args[1..], &VALUED, &mut |_| {});
    let is_separator = |arg: &Arg| arg.prefix().starts_with(b":::");
    let end = args.iter().position(is_separator).unwrap_or(args.len());
    let template = args.get(inner..end).unwrap_or_default().to_vec();
    let values: Vec<Arg> = args[end..].iter().filter(|arg| !is_separator(arg)).cloned().collect();
    let parent = analyzer.finish(Intent { effects: Effects::RUN_SHELL, ..Intent::default() }, args, start);
    let mut inside = start.inside(parent, Origin::Wrapped);
    inside.stdin = Stdin::Unknown;
    if template.is_empty() {
        let from_input: Vec<Arg> = match &start.stdin {
            Stdin::Text(text) => text.split(|&byte| byte == b'\n').map(Arg::exact).collect(),
            _ => Vec::new(),
        };
        if values.is_empty() && from_input.is_empty() {
            analyzer.defer(parent, Deferred::Text);
        }
        for value in
            values.iter().chain(&from_input).filter_map(Arg::known).filter(|text| !text.is_empty()).take(256)
        {
            analyzer.shell_text(value, &inside);
        }
        return;
    }
    let Some(text) = joined(&template).known().map(<[u8]>::to_vec) else {
        analyzer.defer(parent, Deferred::Text);
        return;
    };
    if let [only] = values.as_slice()
        && let Some(value) = only.known()
    {
        let word = shell_words::quote(&String::from_utf8_lossy(value)).into_owned();
        analyzer.shell_text(&substituted(&text, word.as_bytes()), &inside);
    } else {
        analyzer.shell_text(&substituted(&text, b"\"$1\""), &inside);
    }
}

/// `{}` replaced by a word, or the word at the end when there is no `{}`.
fn substituted(text: &[u8], word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + word.len());
    let mut rest = text;
    let mut found = false;
    while let Some(at) = rest.windows(2).position(|window| window == b"{}") {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(word);
        rest = &rest[at + 2..];
        found = true;
    }
    out.extend_from_slice(rest);
    if !found {
        out.push(b' ');
        out.extend_from_slice(word);
    }
    out
}

/// `flock [options] FILE command…` and `flock FILE -c TEXT`.
pub(super) fn flock(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"wE", long: &["timeout", "wait", "conflict-exit-code"] };
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

/// `ssh [options] host words…`: the words, joined, are text for the other machine's shell.
pub(super) fn ssh(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"BbcDEeFIiJLlmOopPQRSWw", long: &[] };
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

/// `hyperfine [options] 'text'…`: each operand is text for a shell.
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

/// `npm exec …` is npx.
pub(super) fn npm(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let verb = 1 + leading(&args[1..], &Valued { short: b"", long: &["prefix", "workspace"] }, &mut |_| {});
    if !matches!(args.get(verb).and_then(Arg::known), Some(b"exec" | b"x")) {
        analyzer.finish(Intent::default(), args, start);
        return;
    }
    let rest = args[verb..].to_vec();
    let parent = analyzer.finish(Intent::default(), args, start);
    npx(analyzer, rest, &start.inside(parent, Origin::Wrapped));
}

/// `npx [-p package] [-c TEXT] [command…]`
pub(super) fn npx(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued { short: b"pcw", long: &["package", "call", "workspace"] };
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

/// `tmux new-session [options] 'text'` and the other verbs that start a shell.
pub(super) fn tmux(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const GLOBAL: Valued = Valued { short: b"cfLST", long: &[] };
    const VALUED: Valued = Valued { short: b"cefFlnpstxy", long: &[] };
    let verb = 1 + leading(&args[1..], &GLOBAL, &mut |_| {});
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

/// `gdb --args command…`
pub(super) fn gdb(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let inner = args
        .iter()
        .position(|arg| matches!(arg.known(), Some(b"--args" | b"-args")))
        .map_or(args.len(), |at| at + 1);
    wrap(analyzer, args, inner, Effects::NONE, start);
}

/// `busybox applet…`
pub(super) fn multi_call(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let is_option = args.get(1).is_some_and(|arg| arg.prefix().starts_with(b"--"));
    let inner = if is_option { args.len() } else { 1 };
    wrap(analyzer, args, inner, Effects::NONE, start);
}

/// Tools with one option whose value is a command (`tar --to-command=…`).
pub(super) fn option_command(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let name = args[0].known().map(super::super::place::base_name).unwrap_or_default().to_vec();
    let options: &[&[u8]] = match name.as_slice() {
        b"tar" => &[
            b"--to-command",
            b"--checkpoint-action=exec",
            b"--use-compress-program",
            b"-I",
            b"--rsh-command",
            b"-F",
            b"--info-script",
            b"--new-volume-script",
        ],
        b"rsync" => &[b"-e", b"--rsh", b"--rsync-path"],
        b"split" => &[b"--filter"],
        b"sort" => &[b"--compress-program"],
        b"man" => &[b"-P", b"--pager", b"-H", b"--html"],
        _ => &[b"--exec", b"-x"],
    };
    let mut texts = Vec::new();
    for (index, arg) in args.iter().enumerate().skip(1) {
        for option in options {
            let Some(rest) = arg.prefix().strip_prefix(*option) else { continue };
            match rest.first() {
                None => texts.extend(args.get(index + 1).cloned()),
                Some(b'=') => texts.push(arg.skip(option.len() + 1)),
                Some(_) if option.len() == 2 => texts.push(arg.skip(2)),
                Some(_) => {}
            }
        }
    }
    let mut intent = Intent::default();
    files::describe(&name, &args, &start.folder, analyzer.context, &mut intent);
    let parent = analyzer.finish(intent, args, start);
    for text in texts.iter().filter_map(Arg::known).filter(|text| !text.is_empty()) {
        analyzer.shell_text(text, &start.inside(parent, Origin::Wrapped));
    }
}
