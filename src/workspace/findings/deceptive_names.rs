//! Names of files that are something else elsewhere: on a file system without upper and lower case, on a terminal.

use crate::workspace::snapshot::is_deceptive;

/// What is wrong with one part of a path, and why that matters.
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

/// Most names: nothing in them can be anything but itself.
fn is_plain(part: &[u8]) -> bool {
    part.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !part.starts_with(b".")
        && !part.ends_with(b".")
}

/// The two ways a name can mislead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It is another one elsewhere.
    Clash,
    /// It looks like another one.
    Deceptive,
}

/// Files that git obeys, and the short name that Windows makes for them.
const SPECIAL: [(&[u8], &[u8]); 4] = [
    (b".gitmodules", b"gitmod~1"),
    (b".gitattributes", b"gitatt~1"),
    (b".gitignore", b"gitign~1"),
    (b".mailmap", b"mailma~1"),
];

/// Whether a part of a path is a name on HFS+ (no case, invisible characters left out), NTFS (no case, dots and spaces at
/// the end left out, streams after a colon, short names) or any other system without case.
pub(crate) fn looks_like(part: &[u8], name: &[u8], short: &[u8]) -> bool {
    let visible: Vec<u8> = match std::str::from_utf8(part) {
        Ok(text) => {
            text.chars().filter(|character| !is_deceptive(*character)).collect::<String>().into_bytes()
        }
        Err(_) => part.to_vec(),
    };
    // On Windows a backslash is a slash.
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

/// A path as a system without upper and lower case knows it.
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

/// Why a link leads out of the tree; `None` when it cannot.
///
/// Only names, no file system: the links of a commit need not be anywhere. It is enough, because all links are looked
/// at. One that begins with no more `..` than it has directories above it, and goes on with names alone, stays inside as
/// long as every link on its way does. A `..` behind a name is reported: that name may be a link to anywhere higher.
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
