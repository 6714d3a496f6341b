//! Where a command would act: the current directory, and paths made absolute without asking the file system.

/// Longer paths the kernel refuses.
pub(crate) const LONGEST_PATH: usize = 4096;

/// The directory a command runs in, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cwd {
    /// An absolute, normalised path.
    Known(Vec<u8>),
    /// Somewhere: a `cd` whose target is not known statically.
    #[default]
    Unknown,
}

impl Cwd {
    /// The directory at an absolute path; a relative one is not known.
    pub fn from_absolute(path: &[u8]) -> Self {
        if path.first() == Some(&b'/') { Self::Known(normalise(path)) } else { Self::Unknown }
    }

    /// The directory a relative or absolute path leads to from here.
    pub(crate) fn enter(&self, path: &[u8]) -> Self {
        // Longer paths the kernel refuses, and following them would cost their square.
        match self.resolve(path).filter(|path| path.len() <= LONGEST_PATH) {
            Some(path) => Self::Known(path),
            None => Self::Unknown,
        }
    }

    /// The absolute, normalised form of `path` seen from here; `None` when this directory is unknown and the path relative.
    pub(crate) fn resolve(&self, path: &[u8]) -> Option<Vec<u8>> {
        if path.first() == Some(&b'/') {
            return Some(normalise(path));
        }
        let Self::Known(folder) = self else { return None };
        let mut joined = Vec::with_capacity(folder.len() + path.len() + 1);
        joined.extend_from_slice(folder);
        joined.push(b'/');
        joined.extend_from_slice(path);
        Some(normalise(&joined))
    }

    /// Whether this directory is known and lies neither at nor below `root`.
    pub(crate) fn is_outside(&self, root: &[u8]) -> bool {
        match self {
            Self::Known(path) => !is_within(path, root),
            Self::Unknown => false,
        }
    }
}

/// Appends a path to a directory without normalising: an absolute one takes its place.
pub(crate) fn join(directory: &[u8], path: &[u8]) -> Vec<u8> {
    match path {
        [b'/', ..] => path.to_vec(),
        _ => [directory, b"/", path].concat(),
    }
}

/// Whether a normalised path is `root` or lies below it.
pub(crate) fn is_within(path: &[u8], root: &[u8]) -> bool {
    root == b"/" || path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Takes `.`, `..` and doubled slashes out of an absolute path, by text alone: symbolic links are the kernel's business.
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

/// The last component of a path.
pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => &path[at + 1..],
        None => path,
    }
}
