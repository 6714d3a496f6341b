//! Interpreters of languages other than shell. The analysis does not examine inline code. When the code starts a
//! program, the supervisor judges that program.

use super::super::analyze::{Analyzer, Start, Stdin};
use super::super::arg::Arg;
use super::super::intent::{Deferred, Intent, Origin};
use crate::judge::command::effects::Effects;

/// Which options and operands of an interpreter contain code.
struct Language {
    /// Short options whose value is code.
    short: &'static [u8],
    /// Long options and subcommands whose value is code.
    long: &'static [&'static str],
    /// Short options with a value that is not code.
    valued: &'static [u8],
    /// Whether the first operand is code, not a file.
    operand_is_code: bool,
}

const fn language(short: &'static [u8], long: &'static [&'static str], valued: &'static [u8]) -> Language {
    Language { short, long, valued, operand_is_code: false }
}

fn known(name: &[u8]) -> Option<Language> {
    // Strip version numbers: python3.11, perl5.36.0, node20, lua5.4.
    let end = name.iter().position(|byte| byte.is_ascii_digit()).unwrap_or(name.len());
    let stem = name[..end].strip_suffix(b"-").unwrap_or(&name[..end]);
    Some(match stem {
        b"python" | b"pypy" | b"ipython" => language(b"c", &[], b"mWX"),
        b"perl" => language(b"eE", &[], b"IMmx"),
        b"ruby" => language(b"e", &[], b"ICErx"),
        b"node" | b"nodejs" | b"bun" => language(b"ep", &["--eval", "--print"], b"rC"),
        b"deno" => language(b"", &["eval"], b""),
        b"php" => language(b"rBRE", &[], b"cdfFz"),
        b"lua" | b"luajit" | b"texlua" => language(b"e", &[], b"l"),
        b"Rscript" | b"R" | b"julia" | b"ghc" | b"scala" | b"elixir" | b"crystal" | b"guile" => {
            language(b"eE", &["--eval"], b"")
        }
        b"fish" | b"csh" | b"tcsh" | b"nu" | b"xonsh" | b"elvish" | b"pwsh" | b"ion" => {
            language(b"c", &["--command", "-Command", "-c"], b"")
        }
        b"awk" | b"gawk" | b"mawk" | b"nawk" => {
            Language { operand_is_code: true, ..language(b"e", &["--source"], b"vfF") }
        }
        b"tclsh" | b"expect" | b"wish" | b"osascript" => language(b"ce", &[], b""),
        _ => return None,
    })
}

/// Returns true if a program is a shell whose grammar differs from sh, such as fish. Simple commands look the same in
/// these shells, so the analysis judges their text if it parses as sh.
fn is_foreign_shell(name: &[u8]) -> bool {
    matches!(name, b"fish" | b"csh" | b"tcsh" | b"nu" | b"xonsh" | b"elvish" | b"ion")
}

pub(super) fn is_interpreter(name: &[u8]) -> bool {
    known(name).is_some()
}

pub(super) fn analyze(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let name = args[0].known().map(crate::judge::command::cwd::base_name).unwrap_or_default().to_vec();
    let mut intent = Intent::default();
    let language = known(&name).or_else(|| {
        let resolved = start.resolved.as_deref().map(crate::judge::command::cwd::base_name)?;
        known(resolved)
    });
    if let Some(language) = language {
        match code(&args[1..], &language) {
            Code::Inline if is_foreign_shell(&name) => {
                inline(&mut intent);
                let text =
                    args.iter().skip(1).skip_while(|arg| arg.prefix().starts_with(b"-")).find_map(Arg::known);
                let text = text.map(<[u8]>::to_vec);
                let parent = analyzer.finish(intent, args, start);
                if let Some(text) = text {
                    analyzer.shell_text_if_readable(&text, &start.inside(parent, Origin::Wrapped));
                }
                return;
            }
            Code::Inline => inline(&mut intent),
            Code::Operand if language.operand_is_code => {
                inline(&mut intent);
                crate::judge::command::file_operands::describe(
                    &name,
                    &args,
                    &start.cwd,
                    analyzer.context,
                    &mut intent,
                );
            }
            Code::Operand => intent.effects.add(Effects::RUN_SCRIPT),
            Code::None if matches!(start.stdin, Stdin::Inherited) => {}
            Code::None => inline(&mut intent),
        }
    }
    analyzer.finish(intent, args, start);
}

fn inline(intent: &mut Intent) {
    intent.effects.add(Effects::RUN_INLINE_CODE);
    intent.deferred = Some(Deferred::Code);
}

enum Code {
    Inline,
    Operand,
    None,
}

fn code(args: &[Arg], language: &Language) -> Code {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let word = arg.prefix();
        if language.long.iter().any(|long| word.starts_with(long.as_bytes())) {
            return Code::Inline;
        }
        if word == b"-" {
            return Code::None;
        }
        if word.len() < 2 || word[0] != b'-' {
            return Code::Operand;
        }
        if word.starts_with(b"--") {
            continue;
        }
        for (index, letter) in word.iter().enumerate().skip(1) {
            if language.short.contains(letter) {
                return Code::Inline;
            }
            if language.valued.contains(letter) {
                // `python -m module` runs a module, so the module name counts as an operand.
                if index + 1 == word.len() {
                    rest.next();
                }
                if *letter == b'm' {
                    return Code::Operand;
                }
                break;
            }
        }
    }
    Code::None
}
