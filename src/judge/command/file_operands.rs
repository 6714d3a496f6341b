//! Determines which operands of common programs are files that they read or write.
//!
//! This is a convenience, not a security boundary: it lets guard explain a denial that the kernel would enforce
//! anyway. Therefore the table lists only programs with simple rules, and an argument counts as a path only where the
//! program would use it as one.

use super::analyze::Context;
use super::arg::Arg;
use super::cwd::Cwd;
use super::effects::Effects;
use super::intent::{Access, Deferred, Intent, PathUse};

/// Which operands of a program are files, and how the program accesses them.
#[derive(Clone, Copy)]
enum Operands {
    Read,
    Write,
    /// The first operand is not a file but a mode or an owner; the program writes the others.
    WriteAfterFirst,
    /// The first operand is a pattern or a script, unless an option already gave one; the program reads the others.
    ReadAfterPattern,
    /// The program writes the last operand and reads the others.
    Copy,
    /// The program writes all operands, because it removes the sources.
    Move,
    /// The program writes only the last operand.
    Link,
}

fn operands(name: &[u8]) -> Option<Operands> {
    Some(match name {
        b"cat" | b"head" | b"tail" | b"less" | b"more" | b"nl" | b"tac" | b"wc" | b"cut" | b"paste"
        | b"base64" | b"base32" | b"xxd" | b"od" | b"hexdump" | b"strings" | b"md5sum" | b"sha1sum"
        | b"sha256sum" | b"sha512sum" | b"cksum" | b"diff" | b"cmp" | b"comm" | b"file" | b"bat"
        | b"batcat" => Operands::Read,
        b"rm" | b"rmdir" | b"unlink" | b"touch" | b"mkdir" | b"mkfifo" | b"tee" | b"truncate" | b"shred"
        | b"nano" | b"vi" | b"vim" | b"nvim" | b"emacs" | b"ed" | b"ex" => Operands::Write,
        b"chmod" | b"chown" | b"chgrp" | b"chattr" => Operands::WriteAfterFirst,
        b"grep" | b"egrep" | b"fgrep" | b"rg" | b"awk" | b"gawk" | b"mawk" | b"jq" | b"yq" => {
            Operands::ReadAfterPattern
        }
        b"cp" | b"install" | b"rsync" => Operands::Copy,
        b"mv" | b"rename" => Operands::Move,
        b"ln" | b"link" => Operands::Link,
        _ => return None,
    })
}

/// Adds the files that a program would read or write, and the effects that follow from them, to its intent. Marks the
/// intent as deferred if the arguments may make the program run commands that the analysis does not find.
pub(crate) fn describe(name: &[u8], args: &[Arg], cwd: &Cwd, context: &Context, intent: &mut Intent) {
    let mut paths = Vec::new();
    let mut note = |arg: &Arg, access| use_path(arg, access, cwd, context, &mut paths);
    match name {
        b"dd" => {
            for arg in &args[1..] {
                if arg.prefix().starts_with(b"of=") {
                    note(&arg.skip(3), Access::Write);
                } else if arg.prefix().starts_with(b"if=") {
                    note(&arg.skip(3), Access::Read);
                }
            }
        }
        b"sed" => sed(&args[1..], &mut note),
        b"uniq" => {
            for (index, arg) in plain_operands(&args[1..]).into_iter().enumerate() {
                note(arg, if index == 0 { Access::Read } else { Access::Write });
            }
        }
        b"sort" => {
            plain_operands(&args[1..]).iter().for_each(|arg| note(arg, Access::Read));
            valued(&args[1..], b'o', b"--output", &mut |arg| note(arg, Access::Write));
        }
        b"curl" => valued(&args[1..], b'o', b"--output", &mut |arg| note(arg, Access::Write)),
        b"wget" => valued(&args[1..], b'O', b"--output-document", &mut |arg| note(arg, Access::Write)),
        _ => {
            let Some(kind) = operands(name) else {
                if runs_inline_commands(name, args) {
                    intent.deferred.get_or_insert(Deferred::Code);
                }
                return;
            };
            let list = plain_operands(&args[1..]);
            match kind {
                Operands::Read => list.iter().for_each(|arg| note(arg, Access::Read)),
                Operands::Write | Operands::Move => list.iter().for_each(|arg| note(arg, Access::Write)),
                Operands::WriteAfterFirst => list.iter().skip(1).for_each(|arg| note(arg, Access::Write)),
                Operands::ReadAfterPattern => {
                    let given = args[1..].iter().any(|arg| gives_pattern(arg.prefix()));
                    list.iter().skip(usize::from(!given)).for_each(|arg| note(arg, Access::Read));
                }
                Operands::Copy | Operands::Link => {
                    if let Some((last, sources)) = list.split_last() {
                        if matches!(kind, Operands::Copy) {
                            sources.iter().for_each(|arg| note(arg, Access::Read));
                        }
                        note(last, Access::Write);
                    }
                    valued(&args[1..], b't', b"--target-directory", &mut |arg| note(arg, Access::Write));
                    if matches!(kind, Operands::Copy)
                        && args[1..].iter().any(|arg| {
                            arg.prefix().starts_with(b"-t") || arg.prefix().starts_with(b"--target")
                        })
                    {
                        list.iter().for_each(|arg| note(arg, Access::Read));
                    }
                }
            }
        }
    }
    intent.paths.append(&mut paths);
    note_paths(intent);
    if runs_inline_commands(name, args) {
        intent.deferred.get_or_insert(Deferred::Code);
    }
}

/// Returns true if the arguments may make a tool such as sed, vim or make run commands or write files that the
/// analysis does not find.
fn runs_inline_commands(name: &[u8], args: &[Arg]) -> bool {
    let any = |wanted: &dyn Fn(&[u8]) -> bool| args[1..].iter().any(|arg| wanted(arg.prefix()));
    match name {
        // In sed, `e` runs a command and `w` writes a file, as a command or as a flag of `s`. They follow an address,
        // a delimiter or a separator, or begin the script.
        b"sed" => any(&|word| {
            let runs = |pair: &[u8]| {
                let (before, letter) = (pair[0], pair[1]);
                b"ew".contains(&letter) && (!before.is_ascii_alphabetic() || b"gpIim".contains(&before))
            };
            let from_file = word.starts_with(b"-f") || word.starts_with(b"--file");
            from_file || matches!(word.first(), Some(b'e' | b'w')) || word.windows(2).any(runs)
        }),
        b"vi" | b"view" | b"nvim" | b"ex" | b"emacs" => {
            any(&|word| matches!(word, b"-c" | b"-e" | b"-es" | b"-S" | b"--eval") || word.starts_with(b"+"))
        }
        _ if name.starts_with(b"vim") || name.starts_with(b"rv") => any(&|word| {
            word.starts_with(b"-c") || word.starts_with(b"-e") || word.starts_with(b"+") || word == b"-S"
        }),
        b"make" | b"gmake" => any(&|word| {
            word.starts_with(b"--ev")
                || word == b"-"
                || word.starts_with(b"/dev/")
                || word.starts_with(b"SHELL=")
        }),
        b"ed" | b"run-parts" | b"dpkg-architecture" | b"sqlite3" | b"m4" => true,
        _ => false,
    }
}

fn gives_pattern(arg: &[u8]) -> bool {
    arg.starts_with(b"--regexp")
        || arg.starts_with(b"--file")
        || (arg.len() == 2 && matches!(arg, b"-e" | b"-f"))
}

/// Returns the arguments that do not look like options: those without a dash at the beginning, `-` itself, and
/// everything after `--`. The value of an option counts too if it is a separate argument.
fn plain_operands(args: &[Arg]) -> Vec<&Arg> {
    let mut only_operands = false;
    args.iter()
        .filter(|arg| match arg.prefix() {
            b"--" if arg.is_exact() && !only_operands => {
                only_operands = true;
                false
            }
            prefix => only_operands || prefix == b"-" || !prefix.starts_with(b"-"),
        })
        .collect()
}

/// Calls `found` for each value of one option: `-o X`, `-oX`, `--output X`, `--output=X`.
fn valued(args: &[Arg], short: u8, long: &[u8], found: &mut dyn FnMut(&Arg)) {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let prefix = arg.prefix();
        if prefix == b"--" {
            return;
        }
        if prefix == long || prefix == [b'-', short] {
            if let Some(value) = rest.next() {
                found(value);
            }
        } else if prefix.starts_with(long) && prefix.get(long.len()) == Some(&b'=') {
            found(&arg.skip(long.len() + 1));
        } else if prefix.len() > 2 && prefix[0] == b'-' && prefix[1] != b'-' {
            // In a cluster, the value is the text after the letter, or the next argument.
            match prefix.iter().position(|&letter| letter == short) {
                Some(at) if at + 1 < prefix.len() => found(&arg.skip(at + 1)),
                Some(_) => rest.next().into_iter().for_each(&mut *found),
                None => {}
            }
        }
    }
}

/// Reports the files of `sed`: `sed -i script file…` writes them, `sed script file…` reads them.
fn sed(args: &[Arg], note: &mut dyn FnMut(&Arg, Access)) {
    let mut in_place = false;
    let mut has_script = false;
    let mut list = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.prefix() {
            b"-e" | b"-f" | b"--expression" | b"--file" => {
                has_script = true;
                rest.next();
            }
            b"--" => list.extend(rest.by_ref()),
            option if option.starts_with(b"--") => {
                in_place |= option.starts_with(b"--in-place");
                has_script |= option.starts_with(b"--expression=") || option.starts_with(b"--file=");
            }
            option if option.len() > 1 && option[0] == b'-' => {
                let letters = &option[1..];
                let end = letters
                    .iter()
                    .position(|letter| matches!(letter, b'i' | b'e' | b'f'))
                    .unwrap_or(letters.len());
                match letters.get(end) {
                    Some(b'i') => in_place = true,
                    Some(_) => {
                        has_script = true;
                        if end + 1 == letters.len() {
                            rest.next();
                        }
                    }
                    None => {}
                }
            }
            _ => list.push(arg),
        }
    }
    let access = if in_place { Access::Write } else { Access::Read };
    list.into_iter().skip(usize::from(!has_script)).for_each(|arg| note(arg, access));
}

/// Adds the path that an argument names to `out`, made absolute if possible. If only the beginning of the argument is
/// known, adds a path in the last known directory: `.git/…` for `.git/$X`. Adds nothing for `-`, for an empty argument,
/// and for a partly known argument whose known beginning contains no slash.
pub(crate) fn use_path(arg: &Arg, access: Access, cwd: &Cwd, context: &Context, out: &mut Vec<PathUse>) {
    let mut path = arg.prefix().to_vec();
    if !arg.is_exact() {
        let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else { return };
        path.truncate(slash + 1);
        path.extend_from_slice("…".as_bytes());
    }
    if path.is_empty() || path == b"-" {
        return;
    }
    let resolved = match (path.strip_prefix(b"~".as_slice()), &context.home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest[0] == b'/' => {
            Some(super::cwd::normalise(&[home.as_slice(), rest].concat()))
        }
        (Some(rest), None) if rest.is_empty() || rest[0] == b'/' => {
            // Keep the form `~/…`, normalised, so that rules written with `~` match.
            let below = super::cwd::normalise(rest);
            Some(if below == b"/" { b"~".to_vec() } else { [b"~".as_slice(), below.as_slice()].concat() })
        }
        _ => cwd.resolve(&path),
    };
    let path = resolved.unwrap_or(path);
    let below_home = match &context.home {
        Some(home) if super::cwd::is_within(&path, home) => Some(home.len()),
        _ if path.first() == Some(&b'~') => Some(1),
        _ => None,
    };
    let mut used = PathUse { path, below_home, access, is_outside: false };
    used.is_outside = access == Access::Write && !used.is_sink() && lies_outside(&used.path, context);
    out.push(used);
}

/// The directories for temporary files, in which programs expect to be able to write.
const TEMPORARY: [&[u8]; 3] = [b"/tmp", b"/var/tmp", b"/dev/shm"];

/// Returns true if an absolute path is outside of everything that the command may write. Returns false for relative
/// paths, and for paths in the working tree, in temporary directories or among the process's own devices.
fn lies_outside(path: &[u8], context: &Context) -> bool {
    let is_within = |root: &[u8]| super::cwd::is_within(path, root);
    // These paths are not ordinary files: the process's own entries in `/proc`, terminals, and bash's notation for
    // network connections.
    let is_own = [&b"/proc/self/"[..], b"/dev/pts/", b"/dev/ptmx", b"/dev/tcp/", b"/dev/udp/"]
        .iter()
        .any(|start| path.starts_with(start));
    if path.first() != Some(&b'/') || is_own || TEMPORARY.iter().any(|root| is_within(root)) {
        return false;
    }
    // A path in the working tree never counts as outside, whether it is writable or not.
    match (&context.worktree, &context.cwd) {
        (Some(tree), _) | (None, Cwd::Known(tree)) if is_within(tree) => return false,
        (None, Cwd::Unknown) if context.writable.is_none() => return false,
        _ => {}
    }
    let roots = context.writable.as_deref().unwrap_or(context.home.as_slice());
    !roots.iter().any(|root| is_within(root))
}

/// Adds the effect classes that follow from the intent's paths.
pub(crate) fn note_paths(intent: &mut Intent) {
    for used in &intent.paths {
        match used.access {
            Access::Read => intent.effects.add(Effects::FS_READS),
            Access::Write if used.is_sink() => {}
            Access::Write => intent.effects.add(Effects::FS_WRITES),
        }
    }
}

impl PathUse {
    /// Returns true if writing to the path does not count as writing a file: the path is a device such as `/dev/null`
    /// or `/dev/tty`, or a descriptor that the process already has.
    pub fn is_sink(&self) -> bool {
        let path = self.path.as_slice();
        matches!(
            path,
            b"/dev/null" | b"/dev/stdout" | b"/dev/stderr" | b"/dev/tty" | b"/dev/zero" | b"/dev/full"
        ) || path.starts_with(b"/dev/fd/")
            || path.starts_with(b"/proc/self/fd/")
    }
}
