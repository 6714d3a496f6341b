//! Shell builtins that change the shell's state or run text: `cd`, `export`, `alias`, `eval`, `trap`, …

use super::super::analyze::{Analyzer, Refusal, Start, Stdin};
use super::super::arg::Arg;
use super::super::intent::{Deferred, Intent, Origin};
use super::super::wrapper::is_stdin;
use super::lex::{is_name_byte, is_name_start};
use super::scope::{Scope, Value};
use crate::judge::command::cwd::Cwd;
use crate::judge::command::effects::Effects;

/// Handles a command that is a builtin of the shell: adds its intent, analyses the texts that it runs, and updates the
/// scope. Returns false for any other command, which the caller then analyses as a program.
pub(super) fn run(analyzer: &mut Analyzer<'_>, scope: &mut Scope, args: &[Arg], start: &Start) -> bool {
    let Some(name) = args[0].known() else { return false };
    if EVALUATES_NAMES.contains(&name) {
        evaluated_names(analyzer, &args[1..], start);
    }
    match name {
        b"cd" | b"pushd" => {
            change_directory(analyzer, scope, &args[1..]);
            let names = start.env.assigned();
            let searched = |arg: &Arg| !matches!(arg.prefix().first(), Some(b'.' | b'/' | b'-'));
            let by_path = names.iter().any(|name| name == b"CDPATH") && args[1..].iter().any(searched);
            if by_path || args[1..].iter().any(|arg| arg.known() == Some(b"-n")) {
                scope.set_cwd(Cwd::Unknown);
            }
        }
        b"popd" => scope.set_cwd(Cwd::Unknown),
        b"export" | b"declare" | b"typeset" | b"local" | b"readonly" => {
            for text in args[1..]
                .iter()
                .filter_map(Arg::known)
                .filter(|text| text.starts_with(b"PS") || text.starts_with(b"PROMPT"))
            {
                evaluated(analyzer, text, start);
            }
            declare(scope, &args[1..]);
            if name == b"readonly" {
                freeze(scope, &args[1..]);
            }
        }
        b"unset" => unset(scope, &args[1..]),
        b"read" | b"getopts" | b"let" => {
            if let Stdin::Text(text) = &start.stdin {
                evaluated_subscript(analyzer, text, start);
            }
            forget(scope, &args[1..]);
        }
        b"mapfile" | b"readarray" => {
            forget(scope, &args[1..]);
            callback(analyzer, &args[1..], start);
        }
        b"printf" if args.get(1).is_some_and(|arg| arg.prefix().starts_with(b"-v")) => {
            args[2..].iter().filter_map(Arg::known).for_each(|text| evaluated(analyzer, text, start));
            forget(scope, &[args[1].skip(2)]);
            forget(scope, &args[2..]);
        }
        b"shift" | b"set" => {
            if args.get(1).is_some_and(|arg| arg.prefix().starts_with(b"-") && arg.prefix().contains(&b'k')) {
                analyzer.refuse(Refusal::KeywordOption);
            }
            args[1..]
                .iter()
                .filter_map(Arg::known)
                .for_each(|text| evaluated_subscript(analyzer, text, start));
            for parameter in b'0'..=b'9' {
                scope.set_variable(&[parameter], Value::Unknown);
            }
        }
        b"hash" => remember(scope, &args[1..]),
        b"compgen" | b"complete" => {
            args[1..].iter().filter_map(Arg::known).for_each(|text| evaluated(analyzer, text, start));
            callback(analyzer, &args[1..], start);
        }
        b"shopt" if args[1..].iter().any(|arg| arg.known() == Some(b"lastpipe")) => scope.distrust(),
        b"alias" => alias(analyzer, scope, &args[1..], start),
        b"eval" => {
            eval(analyzer, scope, args, &args[1..], start);
            return true;
        }
        b"trap" => trap(analyzer, scope, &args[1..], start),
        b"source" | b"." => {
            if let (Some(file), Stdin::Text(text)) = (args.get(1), &start.stdin)
                && is_stdin(file)
            {
                analyzer.shell_text_in(text, start, scope);
            }
            source(scope);
        }
        b"builtin" if args.len() > 1 => return run(analyzer, scope, &args[1..], start),
        b"command" if args.len() > 1 => {
            let skip =
                args.iter().skip(1).take_while(|arg| matches!(arg.known(), Some(b"-p" | b"--"))).count() + 1;
            return skip < args.len() && run(analyzer, scope, &args[skip..], start);
        }
        _ => return false,
    }
    let mut intent = Intent::default();
    if args.iter().any(|arg| !arg.is_exact()) {
        intent.deferred = Some(Deferred::Arguments);
    }
    if matches!(name, b"source" | b".") {
        intent.effects = Effects::RUN_SCRIPT;
        intent.deferred = Some(Deferred::Text);
    }
    analyzer.finish(intent, args.to_vec(), start);
    true
}

/// The builtins that take variable names as arguments, and evaluate the subscripts in these names.
const EVALUATES_NAMES: [&[u8]; 14] = [
    b"let",
    b"test",
    b"[",
    b"printf",
    b"read",
    b"unset",
    b"declare",
    b"typeset",
    b"local",
    b"export",
    b"readonly",
    b"mapfile",
    b"readarray",
    b"compgen",
];

fn change_directory(analyzer: &Analyzer<'_>, scope: &mut Scope, args: &[Arg]) {
    let is_option = |word: &[u8]| {
        word == b"--"
            || word.len() > 1 && word[0] == b'-' && word[1..].iter().all(|letter| b"LPe@n".contains(letter))
    };
    let target = args.iter().find(|arg| !arg.known().is_some_and(is_option));
    let cwd = match target {
        None => analyzer.context.home.clone().map_or(Cwd::Unknown, Cwd::Known),
        Some(arg) => match arg.known() {
            Some(b"-") | Some(b"") | None => Cwd::Unknown,
            Some(path) if path[0] == b'~' || path[0] == b'+' => Cwd::Unknown,
            // With CDPATH, a relative name can lead to any directory.
            Some(path) if path[0] != b'/' && path[0] != b'.' && scope.variable(b"CDPATH").is_some() => {
                Cwd::Unknown
            }
            Some(path) => scope.cwd().enter(path),
        },
    };
    scope.set_cwd(cwd);
}

/// Marks variables as read-only. Later assignments to them fail in the shell, so the scope treats the variables as
/// unknown after such an assignment.
fn freeze(scope: &mut Scope, args: &[Arg]) {
    for arg in args {
        let name: Vec<u8> = arg.prefix().iter().copied().take_while(|&byte| is_name_byte(byte)).collect();
        scope.freeze(name);
    }
}

fn declare(scope: &mut Scope, args: &[Arg]) {
    for arg in args {
        // After `declare -l`, `-i` or `-n`, later values differ from what the text assigns.
        let word = arg.prefix();
        let transforms = |letter: &u8| b"lucinr".contains(letter);
        if word.len() > 1 && matches!(word[0], b'-' | b'+') && word.iter().any(transforms)
            || word.is_empty() && !arg.is_exact()
        {
            scope.distrust();
        }
        let prefix = arg.prefix();
        let length = prefix.iter().take_while(|&&byte| is_name_byte(byte)).count();
        if length == 0 || !is_name_start(prefix[0]) {
            continue;
        }
        let name = &prefix[..length];
        match prefix.get(length) {
            Some(b'=') => {
                let value =
                    arg.known().map_or(Value::Unknown, |text| Value::Known(text[length + 1..].to_vec()));
                scope.set_variable(name, value);
            }
            Some(_) => scope.set_variable(name, Value::Unknown),
            None => {}
        }
    }
}

fn unset(scope: &mut Scope, args: &[Arg]) {
    for name in args.iter().filter_map(Arg::known).filter(|name| !name.starts_with(b"-")) {
        scope.set_variable(name, Value::Unset);
    }
}

/// Handles the option `-C TEXT` of `mapfile`, `complete` and `compgen`: the shell runs the text as a callback.
fn callback(analyzer: &mut Analyzer<'_>, args: &[Arg], start: &Start) {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg.known() == Some(b"-C")
            && let Some(text) = rest.next().and_then(Arg::known)
        {
            analyzer.shell_text(text, start);
        }
    }
}

/// Handles `hash -p FILE NAME`: from here on the command name refers to the file.
fn remember(scope: &mut Scope, args: &[Arg]) {
    if let [option, file, names @ ..] = args
        && option.known() == Some(b"-p")
        && let Some(file) = file.known()
    {
        for name in names.iter().filter_map(Arg::known) {
            scope.set_alias(name, Value::Known(file.to_vec()));
        }
    }
}

/// Judges the substitutions in a text that the shell will later expand like a double-quoted string.
pub(super) fn evaluated(analyzer: &mut Analyzer<'_>, text: &[u8], start: &Start) {
    if text.contains(&b'`') || text.windows(2).any(|window| window == b"$(") {
        let quoted = [b": \"".as_slice(), text, b"\""].concat();
        analyzer.shell_text_if_readable(&quoted, start);
    }
}

/// Handles `a[$(…)]` passed to a builtin as a variable name: the shell evaluates the subscript.
fn evaluated_names(analyzer: &mut Analyzer<'_>, args: &[Arg], start: &Start) {
    for text in args.iter().filter_map(Arg::known) {
        evaluated_subscript(analyzer, text, start);
    }
}

pub(super) fn evaluated_subscript(analyzer: &mut Analyzer<'_>, text: &[u8], start: &Start) {
    if text.contains(&b'[') {
        evaluated(analyzer, text, start);
    }
}

fn forget(scope: &mut Scope, args: &[Arg]) {
    for arg in args {
        // An unknown argument could be any variable name.
        if arg.prefix().is_empty() && !arg.is_exact() {
            scope.distrust();
        }
        let name: Vec<u8> = arg.prefix().iter().copied().take_while(|&byte| is_name_byte(byte)).collect();
        if name.first().copied().is_some_and(is_name_start) {
            scope.set_variable(&name, Value::Unknown);
        }
    }
}

/// Handles `alias g='git checkout'`: judges the value as shell text, and stores it for the commands that follow.
/// Refuses the command if the alias could change how a shell parses the text after it.
fn alias(analyzer: &mut Analyzer<'_>, scope: &mut Scope, args: &[Arg], start: &Start) {
    for arg in args {
        let Some(text) = arg.known() else { continue };
        let Some(at) = text.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (&text[..at], &text[at + 1..]);
        let reserved = matches!(
            name,
            b"if"
                | b"while"
                | b"until"
                | b"for"
                | b"case"
                | b"time"
                | b"coproc"
                | b"function"
                | b"select"
                | b"!"
                | b"{"
                | b"[["
        );
        if reserved || value.contains(&b'#') {
            // Such an alias could change the meaning of what follows: make the rest of a line a comment, or turn a
            // loop into a command.
            analyzer.refuse(Refusal::Alias);
            return;
        }
        let start = Start { origin: Origin::Shell, ..start.clone() };
        let parsed = super::parse(value, 0, analyzer.context.limits.depth);
        if parsed.is_err() || value.windows(2).any(|pair| pair == b"<<") {
            analyzer.refuse(Refusal::Alias);
            return;
        }
        // A value that ends in a blank, such as `sudo `, is incomplete: the analysis judges it later, together with the
        // words after the alias.
        if !value.ends_with(b" ") {
            analyzer.shell_text(value, &start);
        }
        scope.set_alias(name, Value::Known(value.to_vec()));
    }
}

/// Handles `eval`: its arguments, joined by blanks, are text that the same shell runs.
fn eval(analyzer: &mut Analyzer<'_>, scope: &mut Scope, all: &[Arg], args: &[Arg], start: &Start) {
    let args = if args.first().and_then(Arg::known) == Some(b"--") { &args[1..] } else { args };
    let mut text = Vec::new();
    for (index, arg) in args.iter().enumerate() {
        if index > 0 {
            text.push(b' ');
        }
        let Some(known) = arg.known() else {
            let intent =
                Intent { effects: Effects::RUN_SHELL, deferred: Some(Deferred::Text), ..Intent::default() };
            analyzer.finish(intent, all.to_vec(), start);
            return;
        };
        text.extend_from_slice(known);
    }
    let intent = Intent { effects: Effects::RUN_SHELL, ..Intent::default() };
    let parent = analyzer.finish(intent, all.to_vec(), start);
    analyzer.shell_text_in(&text, &start.inside(parent, Origin::Shell), scope);
}

/// Handles `trap 'text' SIGNAL…`: the shell may run the text later.
fn trap(analyzer: &mut Analyzer<'_>, scope: &mut Scope, args: &[Arg], start: &Start) {
    let args = if args.first().and_then(Arg::known) == Some(b"--") { &args[1..] } else { args };
    let [action, _, ..] = args else { return };
    // The action runs later, when variables may have other values.
    scope.distrust();
    if let Some(text) = action.known()
        && !matches!(text, b"-" | b"-l" | b"-p")
    {
        let mark = scope.mark();
        analyzer.shell_text_in(text, start, scope);
        // The action can run at any time, so the variables that it sets can change at any time.
        if scope.has_changed_since(mark) {
            scope.distrust();
        }
        scope.undo_to(mark);
    }
}

/// Handles `source FILE`. The file may change any state of the shell, so from then on the scope trusts no value, and
/// the directory is unknown.
fn source(scope: &mut Scope) {
    scope.distrust();
    scope.set_cwd(Cwd::Unknown);
}

/// Returns the output of `echo`, `printf`, `cat` or `tee`, without the newline that `echo` adds; `Stdin::Unknown` if
/// not all of it is known.
pub(super) fn output(args: &[Arg], input: &Stdin) -> Stdin {
    let mut words = Vec::with_capacity(args.len());
    for arg in args {
        let Some(word) = arg.known() else { return Stdin::Unknown };
        words.push(word);
    }
    match words.as_slice() {
        [b"echo", rest @ ..] => {
            let options = rest.iter().take_while(|word| is_echo_option(word)).count();
            let text = rest[options..].join(&b' ');
            let interprets = rest[..options].iter().any(|option| option.contains(&b'e'));
            match text.contains(&b'\\') {
                false => Stdin::Text(text.into()),
                true if interprets => {
                    unescape(&text, 4).map_or(Stdin::Unknown, |text| Stdin::Text(text.into()))
                }
                // Some shells interpret backslashes in `echo` without `-e`.
                true => Stdin::Unknown,
            }
        }
        [b"printf", b"--", format, rest @ ..] | [b"printf", format, rest @ ..] => printf(format, rest),
        [b"cat"] | [b"cat", b"-"] | [b"tee", ..] => input.clone(),
        _ => Stdin::Unknown,
    }
}

fn is_echo_option(word: &[u8]) -> bool {
    word.len() > 1 && word[0] == b'-' && word[1..].iter().all(|byte| matches!(byte, b'n' | b'e' | b'E'))
}

/// The maximum length of an output that the analysis tracks, in bytes. The analysis treats longer output as unknown.
const LONGEST_OUTPUT: usize = 64 * 1024;

/// Returns the output of `printf`: replaces each `%s` and `%b` in the format, and repeats the format while arguments
/// are left. The output is unknown if the format contains other conversions or unsupported escapes, or if the output
/// becomes too long.
fn printf(format: &[u8], args: &[&[u8]]) -> Stdin {
    let Some(format) = unescape(format, 3) else { return Stdin::Unknown };
    let mut text = Vec::new();
    let mut rest = args.iter();
    loop {
        let mut used = false;
        let mut at = 0;
        while let Some(&byte) = format.get(at) {
            if byte != b'%' {
                text.push(byte);
                at += 1;
                continue;
            }
            match format.get(at + 1) {
                Some(b'%') => text.push(b'%'),
                Some(b's') => {
                    used = true;
                    text.extend_from_slice(rest.next().copied().unwrap_or_default());
                }
                Some(b'b') => {
                    used = true;
                    let Some(word) = unescape(rest.next().copied().unwrap_or_default(), 4) else {
                        return Stdin::Unknown;
                    };
                    text.extend_from_slice(&word);
                }
                _ => return Stdin::Unknown,
            }
            at += 2;
        }
        if !used || rest.len() == 0 {
            return Stdin::Text(text.into());
        }
        if text.len() > LONGEST_OUTPUT {
            return Stdin::Unknown;
        }
    }
}

/// Interprets the backslash escapes of `printf` and `echo -e`, which differ in the maximum number of octal digits
/// (`octal`). Returns `None` for an unsupported escape.
fn unescape(text: &[u8], octal: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    let digits = |from: usize, radix: u32, most: usize| {
        let run = text[from.min(text.len())..].iter().take(most);
        let digits: Vec<u32> = run.map_while(|&byte| (byte as char).to_digit(radix)).collect();
        (digits.iter().fold(0u32, |value, digit| value * radix + digit), digits.len())
    };
    while let Some(&byte) = text.get(at) {
        if byte != b'\\' {
            out.push(byte);
            at += 1;
            continue;
        }
        let Some(&next) = text.get(at + 1) else {
            out.push(b'\\');
            break;
        };
        at += 2;
        match next {
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'r' => out.push(b'\r'),
            b'\\' => out.push(next),
            b'"' | b'\'' if octal == 3 => out.push(next),
            b'0'..=b'7' => {
                let (value, used) = digits(at - 1, 8, octal);
                out.push((value & 0xff) as u8);
                at += used - 1;
            }
            b'x' => {
                let (value, used) = digits(at, 16, 2);
                if used > 0 {
                    out.push((value & 0xff) as u8);
                    at += used;
                } else {
                    out.extend_from_slice(b"\\x");
                }
            }
            _ => return None,
        }
    }
    Some(out)
}
