//! Detects file names that mean a different file on some file systems (case-insensitive ones, Windows), or that look
//! like a different name on a terminal.

use super::model::{DangerKind, Findings};
use crate::git::snapshot::{Name, is_deceptive};

/// Checks the name of one path component. Returns the problem and why it matters; `None` for a harmless name.
pub(crate) fn name_problem(part: &[u8]) -> Option<(NameProblem, &'static str)> {
    if is_plain(part) {
        return is_device(part).then_some((NameProblem::Clash, WINDOWS));
    }
    if looks_like(part, b".git", b"git~1") {
        return Some((
            NameProblem::Clash,
            "on some systems this is `.git`, and its files become the repository's configuration and hooks",
        ));
    }
    for (name, short) in SPECIAL {
        if part != name && looks_like(part, name, short) {
            return Some((
                NameProblem::Clash,
                "on some systems this is a file that git obeys, such as `.gitmodules` or `.gitattributes`",
            ));
        }
    }
    if part.iter().any(u8::is_ascii_control) {
        return Some((
            NameProblem::Deceptive,
            "control characters can make a terminal show another name or execute commands",
        ));
    }
    if let Ok(text) = std::str::from_utf8(part)
        && text.chars().any(is_deceptive)
    {
        return Some((
            NameProblem::Deceptive,
            "invisible characters, or characters that change the text direction, hide the real name",
        ));
    }
    if part.contains(&b'\\') || part.contains(&b':') {
        return Some((
            NameProblem::Clash,
            "on Windows this is a path with directories, a drive, or an alternate stream of a file",
        ));
    }
    if part.ends_with(b".") && part != b"." && part != b".." || part.ends_with(b" ") || is_device(part) {
        return Some((NameProblem::Clash, WINDOWS));
    }
    None
}

const WINDOWS: &str = "on Windows this is another file, or a device";

/// True if the name has only harmless ASCII characters, and neither begins nor ends with a dot. Most names are of this
/// kind, and need no other check than that for device names.
fn is_plain(part: &[u8]) -> bool {
    part.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !part.starts_with(b".")
        && !part.ends_with(b".")
}

/// How a file name can mislead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameProblem {
    /// On some file systems the name means a different file.
    Clash,
    /// The name looks like a different name, or contains control characters.
    Deceptive,
}

/// Names of files that git obeys, each with the short name that Windows gives it.
const SPECIAL: [(&[u8], &[u8]); 4] = [
    (b".gitmodules", b"gitmod~1"),
    (b".gitattributes", b"gitatt~1"),
    (b".gitignore", b"gitign~1"),
    (b".mailmap", b"mailma~1"),
];

/// True if some file system treats the path component `part` as equal to `name`: HFS+ (case-insensitive, ignores
/// invisible characters), NTFS (case-insensitive, ignores trailing dots and spaces and streams after a colon, has
/// short names such as `short`), or another case-insensitive file system.
pub(crate) fn looks_like(part: &[u8], name: &[u8], short: &[u8]) -> bool {
    let visible: Vec<u8> = match std::str::from_utf8(part) {
        Ok(text) => {
            text.chars().filter(|character| !is_deceptive(*character)).collect::<String>().into_bytes()
        }
        Err(_) => part.to_vec(),
    };
    // Windows treats a backslash as a slash.
    [part, &visible].into_iter().flat_map(|whole| whole.split(|byte| *byte == b'\\')).any(|part| {
        let stream = part.split(|byte| *byte == b':').next().unwrap_or(part);
        let end = stream.iter().rposition(|byte| !matches!(byte, b' ' | b'.')).map_or(0, |at| at + 1);
        let part = &stream[..end];
        part.eq_ignore_ascii_case(name) || part.eq_ignore_ascii_case(short)
    })
}

fn is_device(part: &[u8]) -> bool {
    let stem = part.split(|byte| *byte == b'.').next().unwrap_or(part);
    if !matches!(stem.len(), 3..=7) {
        return false;
    }
    match stem.to_ascii_lowercase().as_slice() {
        b"con" | b"prn" | b"aux" | b"nul" | b"conin$" | b"conout$" => true,
        [b'c', b'o', b'm', digit] | [b'l', b'p', b't', digit] => digit.is_ascii_digit(),
        _ => false,
    }
}

/// Converts a path to the form in which case-insensitive file systems compare it: lower case, without invisible
/// characters. Changes only the ASCII letters of a path that is not UTF-8.
pub(crate) fn folded(path: &[u8]) -> Vec<u8> {
    if path.is_ascii() {
        return path.to_ascii_lowercase();
    }
    match std::str::from_utf8(path) {
        Ok(text) => text
            .chars()
            .filter(|one| !is_deceptive(*one))
            .flat_map(char::to_lowercase)
            .collect::<String>()
            .into_bytes(),
        Err(_) => path.to_ascii_lowercase(),
    }
}

/// Returns why the symbolic link at `path` may point out of the worktree or into a git directory; `None` if it cannot.
///
/// Compares only names, because a link in a commit need not exist on disk. That is enough, because guard checks every
/// link: a target that starts with at most as many `..` as the link has parent directories, and continues without
/// `..`, stays inside as long as every link on its path does. guard reports a `..` after a name, because that name
/// may be a link to a directory higher up.
pub(crate) fn escape_reason(path: &[u8], target: &[u8]) -> Option<&'static str> {
    if target.starts_with(b"/") {
        return Some("its target is an absolute path");
    }
    let mut left = path.iter().filter(|byte| **byte == b'/').count();
    let mut named = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => {
                return Some("its target has `..` after a name, which may be a link to any directory");
            }
            b".." if left == 0 => return Some("its target is outside the worktree"),
            b".." => left -= 1,
            _ if looks_like(part, b".git", b"git~1") => {
                return Some("its target is inside the git directory of a repository");
            }
            _ => named = true,
        }
    }
    None
}

/// Reports a path of which a component has a name with a problem.
pub(super) fn check_names(path: &Name, findings: &mut Findings) {
    for part in path.bytes().split(|byte| *byte == b'/') {
        if let Some((wrong, why)) = name_problem(part) {
            let kind = match wrong {
                NameProblem::Clash => DangerKind::Clash,
                NameProblem::Deceptive => DangerKind::Deceptive,
            };
            findings.add(kind, path, format!("the name `{}`", Name::from(part)), why);
        }
    }
}
