//! Converts the paths of source files in reports to paths relative to a directory.

use std::path::{Path, PathBuf};

/// The directory to which the paths of source files become relative.
pub(super) struct SourceRoot {
    directory: PathBuf,
    /// The absolute path of the directory in two forms: as the caller gave it, and canonicalized. Reports may contain
    /// either form. The root directory `/` is the empty string.
    prefixes: Vec<String>,
}

impl SourceRoot {
    pub(super) fn new(directory: &Path) -> Self {
        let named = std::path::absolute(directory).ok();
        let real = directory.canonicalize().ok();
        let prefixes = named.into_iter().chain(real);
        let prefixes =
            prefixes.filter_map(|path| Some(clean(path.to_str()?).trim_end_matches('/').to_string()));
        Self { directory: directory.to_path_buf(), prefixes: prefixes.collect() }
    }

    /// Returns the cleaned path: relative to the directory if it is below the directory, and the empty string if it is
    /// the directory itself. Other paths stay absolute or begin with `..`.
    pub(super) fn relative(&self, path: &str) -> String {
        let path = clean(path);
        let below = |prefix: &String| {
            let whole = if path.starts_with('/') { path.clone() } else { clean(&format!("{prefix}/{path}")) };
            match whole.strip_prefix(prefix.as_str())? {
                "" => Some(String::new()),
                rest => rest.strip_prefix('/').map(str::to_string),
            }
        };
        if !leads_out(&path) {
            return path;
        }
        self.prefixes.iter().find_map(below).unwrap_or(path)
    }

    /// Returns true if the path, as a report gives it, leads to an existing file below the directory.
    pub(super) fn has_file(&self, path: &str) -> bool {
        let relative = self.relative(path);
        !leads_out(&relative) && self.directory.join(relative).is_file()
    }
}

/// Returns true if a cleaned path is absolute or begins with `..`.
fn leads_out(path: &str) -> bool {
    path.starts_with('/') || path == ".." || path.starts_with("../")
}

/// Cleans a path without accessing the file system: removes empty components and `.`, and each `..` together with the
/// component before it, if there is one.
pub(super) fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut components: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." if components.last().is_some_and(|last| *last != "..") => {
                components.pop();
            }
            ".." if is_absolute => {}
            component => components.push(component),
        }
    }
    let joined = components.join("/");
    if is_absolute { format!("/{joined}") } else { joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_spelling() {
        for (path, cleaned) in [
            ("src/lib.rs", "src/lib.rs"),
            ("./src//x/../lib.rs", "src/lib.rs"),
            ("../../a", "../../a"),
            ("a/../../b", "../b"),
            ("/a/../../b/", "/b"),
            ("/", "/"),
            (".", ""),
            ("..a/..", ""),
        ] {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }

    #[test]
    fn paths_below_the_directory_become_relative() {
        let root = SourceRoot::new(Path::new("/nonexistent/project"));
        for (path, relative) in [
            ("/nonexistent/project/src/lib.rs", "src/lib.rs"),
            ("/nonexistent/project/../project/a.c", "a.c"),
            ("/nonexistent/project2/a.c", "/nonexistent/project2/a.c"),
            ("../project/a.c", "a.c"),
            ("../other/a.c", "../other/a.c"),
            ("..a/b.c", "..a/b.c"),
            ("/nonexistent/project", ""),
            ("/usr/include/c++/12/vector", "/usr/include/c++/12/vector"),
        ] {
            assert_eq!(root.relative(path), relative, "{path}");
        }
        assert_eq!(SourceRoot::new(Path::new("/")).relative("/a/b.c"), "a/b.c");
    }

    #[test]
    fn only_existing_files_below_the_directory_count() {
        let root = SourceRoot::new(Path::new(env!("CARGO_MANIFEST_DIR")));
        assert!(root.has_file("src/lib.rs"));
        assert!(root.has_file(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")));
        assert!(!root.has_file("src"));
        assert!(!root.has_file("/etc/passwd"));
        assert!(!root.has_file("../../../../../../../../etc/passwd"));
    }
}
