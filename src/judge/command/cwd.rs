//! The current directory of a command, and lexical resolution of paths. This module never accesses the file
//! system.

/// The maximum length of a path that the kernel accepts, in bytes.
pub(crate) const LONGEST_PATH: usize = 4096;

/// The directory in which a command runs, if it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cwd {
    /// The directory, as an absolute, normalised path.
    Known(Vec<u8>),
    /// The directory is unknown, for example after a `cd` whose target is not known statically.
    #[default]
    Unknown,
}

impl Cwd {
    /// Returns the directory at an absolute path; [`Cwd::Unknown`] if the path is relative.
    pub fn from_absolute(path: &[u8]) -> Self {
        if path.first() == Some(&b'/') { Self::Known(normalise(path)) } else { Self::Unknown }
    }

    /// Returns the directory after a change from this directory to `path`. [`Cwd::Unknown`] if the path is relative and
    /// this directory is unknown, or if the result is longer than `LONGEST_PATH`.
    pub(crate) fn enter(&self, path: &[u8]) -> Self {
        // The kernel rejects longer paths. Without this limit, a text with many `cd` commands would take quadratic
        // time, because each `cd` could make the path longer.
        match self.resolve(path).filter(|path| path.len() <= LONGEST_PATH) {
            Some(path) => Self::Known(path),
            None => Self::Unknown,
        }
    }

    /// Returns the absolute, normalised form of `path` relative to this directory. `None` if this directory is unknown
    /// and the path is relative.
    pub(crate) fn resolve(&self, path: &[u8]) -> Option<Vec<u8>> {
        if path.first() == Some(&b'/') {
            return Some(normalise(path));
        }
        let Self::Known(cwd) = self else { return None };
        let mut joined = Vec::with_capacity(cwd.len() + path.len() + 1);
        joined.extend_from_slice(cwd);
        joined.push(b'/');
        joined.extend_from_slice(path);
        Some(normalise(&joined))
    }

    /// Returns true if this directory is known, and is neither `root` nor below it.
    pub(crate) fn is_outside(&self, root: &[u8]) -> bool {
        match self {
            Self::Known(path) => !is_within(path, root),
            Self::Unknown => false,
        }
    }
}

/// Appends a path to a directory without normalising. An absolute path replaces the directory.
pub(crate) fn join(directory: &[u8], path: &[u8]) -> Vec<u8> {
    match path {
        [b'/', ..] => path.to_vec(),
        _ => [directory, b"/", path].concat(),
    }
}

/// Returns true if a normalised path is `root` or lies below it.
pub(crate) fn is_within(path: &[u8], root: &[u8]) -> bool {
    root == b"/" || path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Removes `.`, `..` and doubled slashes from an absolute path, lexically: it does not follow symbolic links.
pub(crate) fn normalise(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let cut = out.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                out.truncate(cut);
            }
            name => {
                out.push(b'/');
                out.extend_from_slice(name);
            }
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => &path[at + 1..],
        None => path,
    }
}
