//! Shells (`sh`, `bash`, `dash`, `zsh`, …): every form of `-c`, script files, and text on standard input.

use super::super::analyze::{Analyzer, Refusal, Start, Stdin};
use super::super::arg::Arg;
use super::super::intent::{Deferred, Intent, Origin};
use crate::judge::command::cwd::normalise;
use crate::judge::command::effects::Effects;

/// Returns true if a program is a shell whose grammar guard parses. guard treats others (`fish`, `csh`) as
/// interpreters of another language.
pub(crate) fn is_shell(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"-").unwrap_or(name);
    let stem = name.iter().position(|byte| byte.is_ascii_digit()).map_or(name, |at| &name[..at]);
    let stem = stem.strip_suffix(b"-static").or_else(|| stem.strip_suffix(b"-")).unwrap_or(stem);
    matches!(
        stem,
        b"sh"
            | b"bash"
            | b"dash"
            | b"zsh"
            | b"ksh"
            | b"mksh"
            | b"ash"
            | b"rbash"
            | b"lksh"
            | b"posh"
            | b"yash"
            | b"oksh"
    )
}

/// Where a shell reads its commands from.
enum Source {
    /// The text after `-c`, and the arguments after the text, which the shell uses as `$0`, `$1` and so on.
    Text(Arg, Vec<Arg>),
    Script,
    Stdin,
    /// The shell reads no commands, because of `--version` or a similar option.
    Nothing,
}

pub(super) fn analyze(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let leading = args[1..].iter().map(Arg::prefix).take_while(|word| word.starts_with(b"-"));
    if leading.filter(|word| !word.starts_with(b"--")).any(|word| word.contains(&b'k')) {
        analyzer.refuse(Refusal::KeywordOption);
        return;
    }
    let source = source(&args[1..]);
    let mut intent = Intent { effects: Effects::RUN_SHELL, ..Intent::default() };
    match source {
        Source::Text(text, parameters) => {
            let Some(bytes) = text.as_text() else {
                intent.deferred = Some(Deferred::Text);
                analyzer.finish(intent, args, start);
                return;
            };
            let parent = analyzer.finish(intent, args, start);
            let mut inside = start.inside(parent, Origin::Shell);
            // In `bash -c '"$0" checkout main' git`, the positional parameters are known too. If there are more than
            // ten, treat all of them as unknown.
            let too_many = parameters.len() > 10;
            for (index, parameter) in parameters.into_iter().take(10).enumerate() {
                let parameter = if too_many { Arg::partial(Vec::new(), b"$@", true) } else { parameter };
                inside.env.set(index.to_string().as_bytes(), parameter);
            }
            analyzer.shell_text(bytes, &inside);
        }
        Source::Stdin => match &start.stdin {
            Stdin::Text(text) => {
                let parent = analyzer.finish(intent, args, start);
                let mut inside = start.inside(parent, Origin::Shell);
                inside.stdin = Stdin::Inherited;
                analyzer.shell_text(text, &inside);
            }
            Stdin::Unknown | Stdin::Inherited => {
                intent.deferred = Some(Deferred::Text);
                analyzer.finish(intent, args, start);
            }
        },
        Source::Script => {
            intent.effects = Effects::RUN_SCRIPT;
            // A descriptor (`/dev/fd/3`) or an argument that is not fully known, such as a process substitution, may
            // contain a script that nobody could have reviewed. The supervisor must judge its commands when they start.
            if args[1..].iter().any(|arg| {
                !arg.is_exact() || arg.prefix().starts_with(b"/dev/") || arg.prefix().starts_with(b"/proc/")
            }) {
                intent.deferred = Some(Deferred::Text);
            }
            analyzer.finish(intent, args, start);
        }
        Source::Nothing => {
            intent.effects = Effects::NONE;
            analyzer.finish(intent, args, start);
        }
    }
}

/// Returns true if a path refers to standard input, such as `/dev/stdin`.
pub(crate) fn is_stdin(file: &Arg) -> bool {
    let path = file.known().map(normalise);
    matches!(
        path.as_deref(),
        Some(b"/dev/stdin" | b"/dev/fd/0" | b"/proc/self/fd/0" | b"/proc/thread-self/fd/0")
    )
}

fn source(args: &[Arg]) -> Source {
    let mut at = 0;
    let (mut has_text, mut from_stdin) = (false, false);
    while let Some(arg) = args.get(at) {
        let word = arg.prefix();
        let is_option = word.len() > 1 && matches!(word[0], b'-' | b'+');
        if !arg.is_exact() && !is_option {
            break;
        }
        match word {
            b"--" | b"-" => {
                at += 1;
                break;
            }
            b"--version" | b"--help" => return Source::Nothing,
            b"--rcfile" | b"--init-file" | b"--emulate" | b"-rcfile" | b"-init-file" => at += 2,
            b"-norc" | b"-noprofile" | b"-posix" | b"-login" | b"-restricted" | b"-verbose"
            | b"-noediting" => at += 1,
            _ if word.starts_with(b"--") => at += 1,
            _ if is_option => {
                at += 1;
                for &letter in &word[1..] {
                    match letter {
                        b'c' if word[0] == b'-' => has_text = true,
                        b's' if word[0] == b'-' => from_stdin = true,
                        // `-o pipefail` and `-O extglob`, also as a letter in a cluster of options: the value is the
                        // next argument.
                        b'o' | b'O' => at += 1,
                        _ => {}
                    }
                }
            }
            _ => break,
        }
    }
    match args.get(at) {
        Some(text) if has_text => Source::Text(text.clone(), args[at + 1..].to_vec()),
        _ if has_text => Source::Nothing,
        Some(file) if !from_stdin && !is_stdin(file) => Source::Script,
        _ => Source::Stdin,
    }
}
