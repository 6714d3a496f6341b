//! Resolves the directories that clients of a server name, and refuses every path outside the server's roots.

use std::path::{Path, PathBuf};

/// The directories (roots) below which a client's agents may work. They are canonicalized when the server starts, so
/// a symbolic link that later replaces a component of a root's path cannot redirect clients elsewhere.
#[derive(Debug, Clone)]
pub struct Roots(Vec<PathBuf>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// guard cannot find the path, or it is not a directory.
    #[error("{} does not exist or is not a directory", .0.display())]
    NotFound(PathBuf),
    /// The path is not UTF-8. Clients name directories in JSON, which cannot express such a path.
    #[error("the path {} is not valid UTF-8, so clients cannot name it", .0.display())]
    NotUtf8(PathBuf),
}

/// Why a client may not use a directory. The error does not reveal whether a path outside the roots exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DirectoryError {
    #[error("`{parameter}` must be an absolute path, and {path:?} is not")]
    Relative { parameter: String, path: String },
    /// The path is not an existing directory at or below a root.
    #[error("`{parameter}` must be a directory in {roots}, and {path:?} is not")]
    NotBelowRoot { parameter: String, path: String, roots: String },
}

impl Roots {
    /// Canonicalizes the directories. Each of them must exist.
    pub fn new(directories: &[PathBuf]) -> Result<Self, RootError> {
        let real = |directory: &PathBuf| {
            let found = directory.canonicalize().ok().filter(|found| found.is_dir());
            let found = found.ok_or_else(|| RootError::NotFound(directory.clone()))?;
            if found.to_str().is_none() {
                return Err(RootError::NotUtf8(found));
            }
            Ok(found)
        };
        directories.iter().map(real).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the first root, the working directory for a client that names no directory; `None` if there is no root.
    pub(crate) fn first(&self) -> Option<&Path> {
        self.0.first().map(PathBuf::as_path)
    }

    /// Returns true if `directory` is an existing directory at or below a root, and its path is UTF-8.
    pub(crate) fn contain(&self, directory: &Path) -> bool {
        directory.to_str().is_some_and(|path| self.find("directory", path).is_ok())
    }

    /// Resolves `path`, which a client gave in the parameter named `parameter`, to a path without symbolic links. Fails
    /// if it is not an absolute path of a directory at or below a root. Callers must use only the returned path, not
    /// the client's text.
    pub(crate) fn find(&self, parameter: &str, path: &str) -> Result<PathBuf, DirectoryError> {
        let parameter = parameter.to_string();
        if !Path::new(path).is_absolute() {
            return Err(DirectoryError::Relative { parameter, path: path.to_string() });
        }
        let real = Path::new(path).canonicalize().ok();
        let real = real.filter(|real| real.is_dir() && real.to_str().is_some());
        real.filter(|real| self.0.iter().any(|root| real.starts_with(root))).ok_or_else(|| {
            let roots: Vec<String> = self.0.iter().map(|root| root.display().to_string()).collect();
            DirectoryError::NotBelowRoot { parameter, path: path.to_string(), roots: roots.join(" or ") }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directories_are_where_they_really_are() -> std::io::Result<()> {
        let place = std::env::temp_dir().join(format!("guard-roots-{}", uuid::Uuid::now_v7()));
        fs::create_dir_all(place.join("real/inner"))?;
        fs::create_dir_all(place.join("real-not/inner"))?;
        fs::write(place.join("real/file"), "")?;
        symlink("real", place.join("link"))?;
        symlink("/etc", place.join("real/out"))?;
        symlink("inner", place.join("real/in"))?;
        let odd = place.join("real").join(OsStr::from_bytes(b"\xff"));
        fs::create_dir(&odd)?;
        symlink(&odd, place.join("real/odd"))?;
        // The root is a symbolic link. Its target at the time of this call becomes the root.
        let roots = Roots::new(&[place.join("link")]).unwrap_or_else(|problem| panic!("{problem}"));
        let find = |path: &str| roots.find("cd", &place.join(path).to_string_lossy());
        let inner = place.canonicalize()?.join("real/inner");
        for path in ["link/inner", "real/inner", "real/in", "real/inner/../inner", "real/inner/."] {
            assert_eq!(find(path).as_ref(), Ok(&inner), "{path}");
        }
        for path in [
            "real/out",
            "real/out/ssl",
            "real/..",
            "real/../../..",
            "real-not/inner",
            "real/file",
            "real/none",
            "real/odd",
            "real/inner\0",
            "",
        ] {
            let problem = find(path).expect_err(path);
            assert!(matches!(problem, DirectoryError::NotBelowRoot { .. }), "{path}: {problem}");
            assert!(problem.to_string().contains("`cd` must be a directory in"), "{path}: {problem}");
        }
        assert!(roots.find("cd", "real/inner").is_err() && roots.find("cd", "").is_err());
        assert!(Roots::new(&[odd]).is_err_and(|problem| matches!(problem, RootError::NotUtf8(_))));
        assert!(Roots::new(&[place.join("real/file")]).is_err());
        // A link to another directory now replaces the root's link. The old target must stay the root.
        fs::remove_file(place.join("link"))?;
        symlink("/etc", place.join("link"))?;
        assert!(find("link").is_err() && find("link/ssl").is_err() && find("real/inner").is_ok());
        fs::rename(place.join("real"), place.join("gone"))?;
        assert!(find("real").is_err() && find("real/inner").is_err());
        symlink("/etc", place.join("real"))?;
        assert!(find("real").is_err() && find("real/ssl").is_err());
        fs::remove_dir_all(&place)
    }
}
