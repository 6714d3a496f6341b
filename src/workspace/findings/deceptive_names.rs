//! Detects file names that mean something else elsewhere: on a case-insensitive file system, or on a
//! terminal.

use crate::workspace::snapshot::is_deceptive;

/// What is wrong with one component of a path, and why it matters.
pub(crate) fn wrong(part: &[u8]) -> Option<(Wrong, &'static str)> {
    if is_plain(part) {
        return is_device(part).then_some((Wrong::Clash, WINDOWS));
    }
    if looks_like(part, b".git", b"git~1") {
        return Some((
            Wrong::Clash,
            "on some systems this is `.git`, and what is in it is a repository's own configuration and hooks",
        ));
    }
    for (name, short) in SPECIAL {
        if part != name && looks_like(part, name, short) {
            return Some((
                Wrong::Clash,
                "on some systems this is a file that git obeys (`.gitmodules`, `.gitattributes`, `.gitignore`)",
            ));
        }
    }
    if part.iter().any(u8::is_ascii_control) {
        return Some((
            Wrong::Deceptive,
            "control characters make a terminal show another name, or do something",
        ));
    }
    if let Ok(text) = std::str::from_utf8(part)
        && text.chars().any(is_deceptive)
    {
        return Some((
            Wrong::Deceptive,
            "characters that cannot be seen, or that turn the direction of text, make it look like another name",
        ));
    }
    if part.contains(&b'\\') || part.contains(&b':') {
        return Some((
            Wrong::Clash,
            "on Windows this is a path of several directories, another drive, or a hidden stream of a file",
        ));
    }
    if part.ends_with(b".") && part != b"." && part != b".." || part.ends_with(b" ") || is_device(part) {
        return Some((Wrong::Clash, WINDOWS));
    }
    None
}

const WINDOWS: &str = "on Windows this is another file, or a device";

/// The fast path for most names: only characters that mean the same everywhere.
fn is_plain(part: &[u8]) -> bool {
    part.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !part.starts_with(b".")
        && !part.ends_with(b".")
}

/// The two ways a name can mislead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It is the same as another name on some file system.
    Clash,
    /// It looks like another name.
    Deceptive,
}

/// Files that git obeys, and the short names that Windows gives them.
const SPECIAL: [(&[u8], &[u8]); 4] = [
    (b".gitmodules", b"gitmod~1"),
    (b".gitattributes", b"gitatt~1"),
    (b".gitignore", b"gitign~1"),
    (b".mailmap", b"mailma~1"),
];

/// True if a path component equals a name on HFS+ (case-insensitive, ignores invisible characters), NTFS
/// (case-insensitive, ignores trailing dots and spaces, streams after a colon, short names), or any other
/// case-insensitive file system.
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

/// Folds a path as a case-insensitive file system does.
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

/// Why a symbolic link points out of the tree; `None` if it cannot.
///
/// Works on names alone, because the links of a commit need not exist on disk. That is enough, because all
/// links are checked: a target that starts with no more `..` than there are directories above the link, and
/// continues with names only, stays inside as long as every link on its path does. A `..` after a name is
/// reported, because that name may be a link to anywhere higher up.
pub(crate) fn leaves(path: &[u8], target: &[u8]) -> Option<&'static str> {
    if target.starts_with(b"/") {
        return Some("it is absolute");
    }
    let mut left = path.iter().filter(|byte| **byte == b'/').count();
    let mut named = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => return Some("`..` behind a name leads wherever that name leads"),
            b".." if left == 0 => return Some("it leads out of the tree"),
            b".." => left -= 1,
            _ if looks_like(part, b".git", b"git~1") => {
                return Some("it leads into a repository's own directory");
            }
            _ => named = true,
        }
    }
    None
}
