//! Wrappers that add arguments to the command they run: words from standard input, file names or listed values.

use super::super::analyze::{Analyzer, Start, Stdin};
use super::super::arg::Arg;
use super::super::intent::{Deferred, Intent, Origin};
use super::joined;
use super::options::{Valued, leading};
use crate::judge::command::effects::Effects;
use crate::judge::command::file_operands;

/// Analyses `xargs [options] command…`: words from standard input become further arguments of the command.
pub(super) fn xargs(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    const VALUED: Valued = Valued {
        short: b"adEILnPs",
        long: &["arg-file", "delimiter", "max-args", "max-procs", "max-chars", "process-slot-var"],
        joined: b"eil",
    };
    let mut replace: Option<Vec<u8>> = None;
    let mut plain_input = true;
    let mut group: Option<usize> = None;
    let mut by_line = false;
    let inner = leading(&args[1..], &VALUED, &mut |met| match (met.short, met.long) {
        (b'I', _) | (0, b"replace") => {
            replace = Some(met.value.as_ref().map_or(b"{}".to_vec(), |value| value.prefix().to_vec()));
        }
        (b'i', _) => {
            replace = Some(met.value.as_ref().map_or(b"{}".to_vec(), |value| value.prefix().to_vec()))
        }
        (b'n', _) | (0, b"max-args") => {
            let count = met
                .value
                .as_ref()
                .and_then(Arg::known)
                .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            group = Some(count.unwrap_or(1).max(1));
        }
        (b's', _) | (0, b"max-chars") => plain_input = false,
        (0, long) if long.len() > 2 && b"replace".starts_with(long) => replace = Some(b"{}".to_vec()),
        (0, long) if long.len() > 2 && b"null".starts_with(long) => plain_input = false,
        (b'L' | b'l', _) | (0, b"max-lines") => by_line = true,
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
            if by_line && let Stdin::Text(text) = &start.stdin {
                for line in text.split(|&byte| byte == b'\n').take(MOST_ITEMS) {
                    let words = xargs_items(line, false).unwrap_or_default();
                    let with = [command.clone(), words.into_iter().map(Arg::exact).collect()].concat();
                    analyzer.command(with, inside.clone());
                }
            }
            if let Some(group) = group {
                for words in words.chunks(group) {
                    let with = [command.clone(), words.iter().cloned().map(Arg::exact).collect()].concat();
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

/// Returns the argument with the placeholder `mark` replaced by `value`. If `value` is `None`, only the part before the
/// placeholder is known. An argument without the placeholder stays as it is, and so does one that is not fully known.
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

/// The maximum length of a word after placeholders are replaced. The analysis treats a longer word as unknown.
const LONGEST_FILLED: usize = 64 * 1024;

/// Splits the input of xargs into words, or into lines if `-I` is given. Only quotes and backslashes are special.
/// Returns `None` if a quote is not closed, or if there are more than `MOST_ITEMS` words or lines.
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

/// The maximum number of input items that the analysis judges in advance. With more items, the supervisor judges each
/// command when it starts.
const MOST_ITEMS: usize = 1024;

/// Analyses `find … -exec command {} ;` and similar actions. `-delete` and `-fprint` write files.
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
                    file_operands::use_path(
                        root,
                        super::super::intent::Access::Write,
                        &start.cwd,
                        analyzer.context,
                        &mut intent.paths,
                    );
                }
                intent.effects.add(Effects::FS_WRITES);
            }
            action @ (b"-fprint" | b"-fprint0" | b"-fprintf" | b"-fls") => {
                at += usize::from(action == b"-fprintf") + 1;
                if let Some(file) = args.get(at - 1 - usize::from(action == b"-fprintf")) {
                    file_operands::use_path(
                        file,
                        super::super::intent::Access::Write,
                        &start.cwd,
                        analyzer.context,
                        &mut intent.paths,
                    );
                }
            }
            _ => {}
        }
    }
    file_operands::note_paths(&mut intent);
    let parent = analyzer.finish(intent, args, start);
    for (command, in_its_directory) in commands {
        let mut inside = start.inside(parent, Origin::Wrapped);
        if in_its_directory {
            inside.cwd = crate::judge::command::cwd::Cwd::Unknown;
        }
        if !command.is_empty() {
            analyzer.command(command, inside);
        }
    }
}

/// Returns true if this test or action of `find` takes an argument, which could otherwise be mistaken for an action.
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
                | b"-D"
                | b"-files0-from"
        )
}

/// Analyses `fd pattern -x command…` and `fd pattern -X command…`.
pub(super) fn fd(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let starts = |arg: &Arg| matches!(arg.known(), Some(b"-x" | b"-X" | b"--exec" | b"--exec-batch"));
    let inner = args.iter().position(starts).map_or(args.len(), |at| at + 1);
    let command: Vec<Arg> = args[inner..].iter().map(|arg| fill(arg, b"{}", None)).collect();
    let parent = analyzer.finish(Intent::default(), args, start);
    if !command.is_empty() {
        analyzer.command(command, start.inside(parent, Origin::Wrapped));
    }
}

/// Analyses `parallel [options] command… ::: values`: a shell runs the command once for each value. If there are
/// several values, the analysis treats the value as unknown. If there is no command, the values and the lines of
/// standard input are themselves commands.
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

/// Replaces `{}` in a text by a word, or appends the word if the text contains no `{}`. Returns `"$1"`, a command that
/// is unknown, if the result would be longer than `LONGEST_FILLED`.
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
