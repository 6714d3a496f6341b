//! Paths of a repository, and how messages show them.

use std::path::Path;

use crate::git::plumbing::repository::Repository;
use crate::text::terminal_text;

/// True if the path exists and resolves to a path inside the working tree, the main working tree, or the git
/// directory.
pub(super) fn is_inside_repository(path: &Path, repository: &Repository) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    let place = repository.place();
    let roots = repository.toplevel.iter().chain([&repository.common_dir, &place]);
    roots.filter_map(|root| root.canonicalize().ok()).any(|root| real.starts_with(root))
}

pub(super) fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Formats a value for an error message: on one line, truncated, without terminal control characters.
pub(super) fn printable(value: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(value).chars().take(120).collect();
    terminal_text::replace(&text)
}

pub(super) fn printable_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    // Keep the end of a long path, because it is more informative than the beginning.
    let bytes = path.as_os_str().as_bytes();
    let cut = bytes.len().saturating_sub(400);
    let text = terminal_text::replace(&String::from_utf8_lossy(&bytes[cut..]));
    if cut > 0 { format!("…{text}") } else { text }
}
