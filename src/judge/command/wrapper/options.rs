//! Finds where a wrapper's own options end and its command begins.

use super::super::arg::Arg;
use super::table::Plain;

/// An option that [`leading`] found among the arguments.
pub(super) struct Met<'a> {
    /// The letter of a short option; 0 for a long one.
    pub(super) short: u8,
    /// The name of a long option, without dashes.
    pub(super) long: &'a [u8],
    pub(super) value: Option<Arg>,
}

/// The options of a wrapper that take a value.
pub(super) struct Valued {
    pub(super) short: &'static [u8],
    pub(super) long: &'static [&'static str],
    /// Short options with an optional value, which must be joined to the option.
    pub(super) joined: &'static [u8],
}

/// Parses leading options up to `--` or the first argument that is not an option. Returns the index of the argument
/// after the options and after `--`. Calls `met` for each option. Values may be joined (`-n5`, `--x=5`) or separate.
pub(super) fn leading<'a>(args: &'a [Arg], valued: &Valued, met: &mut dyn FnMut(&Met<'a>)) -> usize {
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        let word = arg.prefix();
        if word == b"--" && arg.is_exact() {
            return at + 1;
        }
        if word.len() < 2 || word[0] != b'-' {
            return at;
        }
        at += 1;
        if let Some(long) = word.strip_prefix(b"--") {
            let (name, joined) = match long.iter().position(|&byte| byte == b'=') {
                Some(equals) => (&long[..equals], Some(arg.skip(equals + 3))),
                None => (long, None),
            };
            // Long options may be abbreviated; report the full name to the caller.
            let full = valued.long.iter().find(|known| known.as_bytes() == name);
            let full = full.or_else(|| {
                valued.long.iter().find(|known| !name.is_empty() && known.as_bytes().starts_with(name))
            });
            let takes = full.is_some();
            let name = full.map_or(name, |full| full.as_bytes());
            let value =
                joined.or_else(|| takes.then(|| args.get(at).cloned()).flatten().inspect(|_| at += 1));
            met(&Met { short: 0, long: name, value });
            continue;
        }
        for (index, &letter) in word.iter().enumerate().skip(1) {
            if valued.joined.contains(&letter) {
                let value = (index + 1 < word.len()).then(|| arg.skip(index + 1));
                met(&Met { short: letter, long: b"", value });
                break;
            }
            if !valued.short.contains(&letter) {
                met(&Met { short: letter, long: b"", value: None });
                continue;
            }
            let value = if index + 1 < word.len() {
                Some(arg.skip(index + 1))
            } else {
                args.get(at).cloned().inspect(|_| at += 1)
            };
            met(&Met { short: letter, long: b"", value });
            break;
        }
    }
    at
}

/// Returns the index in `args` at which the command of a plain wrapper begins; `args.len()` or more if there is no
/// command.
pub(super) fn command_after(args: &[Arg], plain: &Plain) -> usize {
    let mut queries = false;
    let valued = Valued { short: plain.short, long: plain.long, joined: b"" };
    let mut at = leading(args, &valued, &mut |met| {
        queries |= met.short != 0 && plain.no_command.contains(&met.short);
    });
    if queries {
        return args.len();
    }
    at += plain.operands;
    // Skip `--` and assignments, as in `timeout 5 -- cmd` and `VAR=value cmd`.
    if args.get(at).is_some_and(|arg| arg.known() == Some(b"--")) {
        at += 1;
    }
    if plain.assignments {
        while args.get(at).is_some_and(|arg| is_assignment(arg.prefix())) {
            at += 1;
        }
    }
    at
}

/// Returns true if a word has the form `NAME=value`.
pub(super) fn is_assignment(word: &[u8]) -> bool {
    let length = word.iter().take_while(|&&byte| byte.is_ascii_alphanumeric() || byte == b'_').count();
    length > 0 && !word[0].is_ascii_digit() && word.get(length) == Some(&b'=')
}
