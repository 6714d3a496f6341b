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
        // Outside quotes `\_` is a blank of env's own.
        let plain =
            text.known().and_then(|text| std::str::from_utf8(text).ok()).map(|text| text.replace("\\_", " "));
        match plain.as_deref().map(shell_words::split) {
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
    // To env any word with `=` is an assignment.
    let assignments = words.iter().take_while(|word| word.prefix().contains(&b'=')).count();
    let mut functions = Vec::new();
    for word in &words[..assignments] {
        let equals = word.prefix().iter().position(|&byte| byte == b'=').unwrap_or(0);
        let (name, value) = (&word.prefix()[..equals], word.skip(equals + 1));
        if name.starts_with(b"BASH_FUNC_") {
            // A function for the shells below: its body is judged as if it were called.
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

/// `command [-p] cmd`; with `-v` or `-V` it only tells.
pub(super) fn command(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut asks = false;
    let inner = leading(&args[1..], &Valued { short: b"", long: &[], joined: b"" }, &mut |met| {
        asks |= matches!(met.short, b'v' | b'V');
    });
    let inner = if asks { args.len() } else { inner + 1 };
    wrap(analyzer, args, inner, Effects::NONE, start);
}

/// `exec [-a NAME] command…`: the program may be called by another name.
pub(super) fn exec(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut name = None;
    let inner = 1 + leading(&args[1..], &Valued { short: b"a", long: &[], joined: b"" }, &mut |met| {
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
        joined: b"eil",
    };
    let mut replace: Option<Vec<u8>> = None;
    let mut plain_input = true;
    let mut one_by_one = false;
    let inner = leading(&args[1..], &VALUED, &mut |met| match (met.short, met.long) {
        (b'I', _) | (0, b"replace") => {
            replace = Some(met.value.as_ref().map_or(b"{}".to_vec(), |value| value.prefix().to_vec()));
        }
        (b'i', _) => {
            replace = Some(met.value.as_ref().map_or(b"{}".to_vec(), |value| value.prefix().to_vec()))
        }
        (b'n' | b'L' | b'l', _) | (0, b"max-args" | b"max-lines") => one_by_one = true,
        (b'a' | b'd' | b'0', _) | (0, b"arg-file" | b"delimiter" | b"null") => plain_input = false,
        _ => {}
    }) + 1;
    let mut command = args.get(inner..).unwrap_or_default().to_vec();
    if command.is_empty() {
        analyzer.finish(Intent::default(), args, start);
        return;
    }
    let input = match &start.stdin {
        Stdin::Text(text) if plain_input => xargs_items(text, replace.is_some()),
        _ => None,
    };
    let parent = analyzer.finish(Intent::default(), args, start);
    let mut inside = start.inside(parent, Origin::Wrapped);
    inside.stdin = Stdin::Unknown;
    match (replace, input) {
        (Some(mark), Some(lines)) => {
            for line in lines {
                let with = command.iter().map(|arg| fill(arg, &mark, Some(&line))).collect();
                analyzer.command(with, inside.clone());
            }
        }
        (Some(mark), None) => {
            let with = command.iter().map(|arg| fill(arg, &mark, None)).collect();
            analyzer.command(with, inside);
        }
        (None, Some(words)) => {
            // How many words go to each start of the command is not followed: each alone, and all together.
            if one_by_one {
                for word in &words {
                    let with = [command.clone(), vec![Arg::exact(word.clone())]].concat();
                    analyzer.command(with, inside.clone());
                }
            }
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
    let Some(value) = value else { return Arg::template(&text[..at], text) };
    let mut out = text[..at].to_vec();
    let mut rest = &text[at..];
    while let Some(at) = rest.windows(mark.len()).position(|window| window == mark) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(value);
        rest = &rest[at + mark.len()..];
        if out.len() > LONGEST_FILLED {
            return Arg::partial(out, text, false);
        }
    }
    out.extend_from_slice(rest);
    Arg::exact(out)
}

/// A word that placeholders make longer than this is not followed.
const LONGEST_FILLED: usize = 64 * 1024;

/// Words of xargs' input, or its lines with `-I`: quotes and backslashes are taken off, nothing else is special.
fn xargs_items(text: &[u8], lines: bool) -> Option<Vec<Vec<u8>>> {
    let mut items = Vec::new();
    let mut item: Option<Vec<u8>> = None;
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b'\n' => items.extend(item.take()),
            b' ' | b'\t' if !lines => items.extend(item.take()),
            b' ' | b'\t' if item.is_none() => {}
            b'\'' | b'"' => {
                let word = item.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some(end) if end == byte => break,
                        Some(b'\n') | None => return None,
                        Some(inside) => word.push(inside),
                    }
                }
            }
            b'\\' => item.get_or_insert_default().push(rest.next()?),
            _ => item.get_or_insert_default().push(byte),
        }
    }
    items.extend(item);
    (items.len() <= MOST_ITEMS).then_some(items)
}

/// More items than this are left to the moment they run.
const MOST_ITEMS: usize = 1024;

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
            option if takes_argument(option) => at += 1,
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
            action @ (b"-fprint" | b"-fprint0" | b"-fprintf" | b"-fls") => {
                at += usize::from(action == b"-fprintf") + 1;
                if let Some(file) = args.get(at - 1 - usize::from(action == b"-fprintf")) {
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

/// Tests of find whose argument could look like an action.
fn takes_argument(option: &[u8]) -> bool {
    option.starts_with(b"-newer")
        || matches!(
            option,
            b"-name"
                | b"-iname"
                | b"-path"
                | b"-ipath"
                | b"-wholename"
                | b"-iwholename"
                | b"-regex"
                | b"-iregex"
                | b"-lname"
                | b"-ilname"
                | b"-type"
                | b"-xtype"
                | b"-size"
                | b"-anewer"
                | b"-cnewer"
                | b"-mtime"
                | b"-ctime"
                | b"-atime"
                | b"-mmin"
                | b"-amin"
                | b"-cmin"
                | b"-perm"
                | b"-user"
                | b"-group"
                | b"-uid"
                | b"-gid"
                | b"-maxdepth"
                | b"-mindepth"
                | b"-links"
                | b"-inum"
                | b"-samefile"
                | b"-used"
                | b"-fstype"
                | b"-printf"
                | b"-context"
                | b"-regextype"
        )
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

/// `watch [options] words…`: the words, joined, are text for a shell; with `-x` they are a command.
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
        joined: b"",
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
        if out.len() > LONGEST_FILLED {
            return b"\"$1\"".to_vec();
        }
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

/// `ssh [options] host words…`: the words, joined, are text for the other machine's shell.
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

/// `npm exec …` is npx.
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

/// `npx [-p package] [-c TEXT] [command…]`
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

/// `tmux new-session [options] 'text'` and the other verbs that start a shell.
pub(super) fn tmux(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const GLOBAL: Valued = Valued { short: b"cfLST", long: &[], joined: b"" };
    const VALUED: Valued = Valued { short: b"cefFlnpstxy", long: &[], joined: b"" };
    // `tmux a \\; b`: several commands in one.
    if let Some(at) = args.iter().position(|arg| matches!(arg.known(), Some(b";" | b"\\;"))) {
        let rest = [vec![args[0].clone()], args[at + 1..].to_vec()].concat();
        tmux(analyzer, args[..at].to_vec(), start);
        analyzer.command(rest, start.clone());
        return;
    }
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
    let scripted = args[1..inner].iter().any(|arg| {
        matches!(arg.prefix(), b"-ex" | b"-iex" | b"-x" | b"-ix")
            || arg.prefix().starts_with(b"--eval-command")
            || arg.prefix().starts_with(b"--command")
    });
    let index = analyzer.intents.len();
    wrap(analyzer, args, inner, Effects::NONE, start);
    if scripted {
        analyzer.defer(index, Deferred::Code);
    }
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
    let mut intent = Intent::default();
    files::describe(&name, &args, &start.folder, analyzer.context, &mut intent);
    let parent = analyzer.finish(intent, args, start);
    for text in texts.iter().filter_map(Arg::known).filter(|text| !text.is_empty()) {
        // `--checkpoint-action` takes other actions than `exec=`.
        let text = text.strip_prefix(b"exec=").unwrap_or(text);
        analyzer.shell_text_if_readable(text, &start.inside(parent, Origin::Wrapped));
    }
}

/// `setarch [ARCH] [options] command…`
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
