//! Recognises the files that hook managers, editors, package managers, shells and similar tools run or obey without an
//! explicit command of the user. `policies/automatic_files.toml` lists them.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::Deserialize;

pub const AUTOMATIC_FILES: &str = include_str!("../../../../policies/automatic_files.toml");

/// The parsed content of `policies/automatic_files.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutomaticFiles {
    /// Files that tools run or obey as a whole.
    pub file: Vec<FileEntry>,
    /// JSON files of which tools run or obey single keys.
    pub json: Vec<JsonEntry>,
}

/// Files that tools run or obey.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Patterns of the files' paths; the head of the list explains them.
    pub files: Vec<String>,
    /// What a tool does with the files.
    pub happens: String,
    /// Where the tool's documentation says so.
    pub source: String,
    pub examples: Vec<String>,
    /// The changes that are reported, if not all.
    pub only: Option<Only>,
    /// True if guard lists the files before others: they run without being asked, or decide what may run.
    #[serde(default)]
    pub urgent: bool,
}

/// The changes of a file that are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Only {
    New,
}

/// Keys of a JSON file that tools run or obey.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonEntry {
    /// The name of the file.
    pub file: String,
    /// The keys: a key of the top level, or two keys joined by a dot.
    pub keys: Vec<String>,
    /// What a tool does with the values.
    pub happens: String,
    /// Where the tool's documentation says so.
    pub source: String,
    /// A file that has one of the keys.
    pub example: String,
}

/// Parses a list in the format of `policies/automatic_files.toml`. Fails if an entry is incomplete or a pattern has a form
/// that guard does not match.
pub fn parse_automatic_files(text: &str) -> Result<AutomaticFiles, String> {
    let list: AutomaticFiles = toml::from_str(text).map_err(|error| error.to_string())?;
    for entry in &list.file {
        if entry.files.is_empty() || entry.examples.is_empty() {
            return Err(format!("the entry of {:?} has no files or no examples", entry.source));
        }
        if let Some(pattern) = entry.files.iter().find(|pattern| !is_pattern(pattern)) {
            return Err(format!("{pattern:?} is not a pattern that guard can match"));
        }
    }
    let texts = list.file.iter().map(|entry| (&entry.happens, &entry.source));
    let mut texts = texts.chain(list.json.iter().map(|entry| (&entry.happens, &entry.source)));
    if texts.any(|(happens, source)| happens.is_empty() || source.is_empty()) {
        return Err("an entry does not say what happens, or has no source".to_string());
    }
    if list.json.iter().any(|entry| entry.file.contains('/') || entry.keys.is_empty()) {
        return Err("an entry of a JSON file names a directory, or has no keys".to_string());
    }
    Ok(list)
}

/// True for `NAME`, `DIR/NAME`, `DIR/` and names with one `*` in the last component.
fn is_pattern(pattern: &str) -> bool {
    let (dirs, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    let is_dir = |part: &str| !part.is_empty() && !part.contains('*');
    (!name.is_empty() || pattern.ends_with('/'))
        && name.matches('*').count() <= 1
        && name != "*"
        && (!pattern.contains('/') || dirs.split('/').all(is_dir))
}

/// The patterns of the list in a form that needs only a few look-ups for each path. All texts are in lower case.
struct Matcher {
    list: AutomaticFiles,
    /// Files by their name: the directories above the file that the pattern names, and the index of the entry.
    names: HashMap<String, Vec<(String, usize)>>,
    /// Files whose name begins and ends with these texts: (directories, beginning, end, index of the entry).
    globs: Vec<(String, String, String, usize)>,
    /// Directories by their name: the directories above it that the pattern names, and the index of the entry.
    dirs: HashMap<String, Vec<(String, usize)>>,
    /// Directories by their name in which a pattern names a file or directory, with the directories above them.
    above: HashMap<String, Vec<String>>,
}

impl Matcher {
    fn new(list: AutomaticFiles) -> Self {
        let mut matcher = Self {
            names: HashMap::new(),
            globs: Vec::new(),
            dirs: HashMap::new(),
            above: HashMap::new(),
            list,
        };
        let mut patterns: Vec<(String, usize)> = Vec::new();
        for (index, entry) in matcher.list.file.iter().enumerate() {
            patterns.extend(entry.files.iter().map(|pattern| (pattern.to_ascii_lowercase(), index)));
        }
        for (pattern, index) in patterns {
            let is_dir = pattern.ends_with('/');
            let path = pattern.trim_end_matches('/');
            let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
            let mut dir = if is_dir { path } else { dirs };
            while !dir.is_empty() {
                let (outer, name) = dir.rsplit_once('/').unwrap_or(("", dir));
                matcher.above.entry(name.to_string()).or_default().push(outer.to_string());
                dir = outer;
            }
            if is_dir {
                matcher.dirs.entry(name.to_string()).or_default().push((dirs.to_string(), index));
            } else if let Some((start, end)) = name.split_once('*') {
                matcher.globs.push((dirs.to_string(), start.to_string(), end.to_string(), index));
            } else {
                matcher.names.entry(name.to_string()).or_default().push((dirs.to_string(), index));
            }
        }
        matcher
    }

    /// Returns the entry of a path in lower case.
    fn entry(&self, path: &str) -> Option<&FileEntry> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let named = self.names.get(name).into_iter().flatten();
        let globs = self.globs.iter().filter(|(_, start, end, _)| {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        });
        let mut files = named
            .map(|(dirs, index)| (dirs, index))
            .chain(globs.map(|(dirs, _, _, index)| (dirs, index)))
            .filter(|(dirs, _)| ends_with_directories(dir, dirs));
        if let Some((_, index)) = files.next() {
            return self.list.file.get(*index);
        }
        let mut end = 0;
        for part in dir.split('/') {
            let outer = dir[..end].trim_end_matches('/');
            end += part.len() + 1;
            let found = self.dirs.get(part).into_iter().flatten();
            if let Some((_, index)) = found.into_iter().find(|(dirs, _)| ends_with_directories(outer, dirs)) {
                return self.list.file.get(*index);
            }
        }
        None
    }
}

/// True if the last components of `path` are those of `dirs`.
fn ends_with_directories(path: &str, dirs: &str) -> bool {
    dirs.is_empty()
        || path.strip_suffix(dirs).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

fn matcher() -> &'static Matcher {
    static MATCHER: OnceLock<Matcher> = OnceLock::new();
    // A test parses the list that is built into the program.
    MATCHER.get_or_init(|| {
        let empty = AutomaticFiles { file: Vec::new(), json: Vec::new() };
        Matcher::new(parse_automatic_files(AUTOMATIC_FILES).unwrap_or(empty))
    })
}

/// Returns the entry about the file at this path; `None` for a file that tools use only on request, such as a Makefile or
/// a test.
pub(crate) fn entry(path: &[u8]) -> Option<&'static FileEntry> {
    // The patterns are ASCII, so the bytes of other names do not matter.
    matcher().entry(&String::from_utf8_lossy(path).to_ascii_lowercase())
}

/// True if a link at this path would take the place of a directory in which tools run or obey files, or of a directory
/// above one.
pub(crate) fn is_directory(path: &[u8]) -> bool {
    let path = String::from_utf8_lossy(path).to_ascii_lowercase();
    let (outer, name) = path.rsplit_once('/').unwrap_or(("", &path));
    let mut above = matcher().above.get(name).into_iter().flatten();
    above.any(|dirs| ends_with_directories(outer, dirs)) || matcher().entry(&format!("{path}/x")).is_some()
}

/// Returns the entry about keys of the JSON file with this name.
pub(crate) fn json_entry(name: &[u8]) -> Option<&'static JsonEntry> {
    matcher().list.json.iter().find(|entry| entry.file.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the keys of the entry whose values are new or changed in a JSON file: (name, value). Returns all keys if `old`
/// is missing or not JSON. Fails if guard cannot parse `new`: a tool may accept more than guard does, such as deeper
/// nesting.
pub(crate) fn changed_keys(
    entry: &JsonEntry,
    old: Option<&[u8]>,
    new: &[u8],
) -> Result<Vec<(String, String)>, serde_json::Error> {
    let values = |text: &[u8]| -> Result<Vec<(String, String)>, serde_json::Error> {
        let json = serde_json::from_slice::<serde_json::Value>(text)?;
        let value = |key: &str| match key.split_once('.') {
            Some((section, name)) => json.get(section)?.get(name),
            None => json.get(key),
        };
        let name = |key: &str| key.split_once('.').map_or(key, |(_, name)| name).to_string();
        let text =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        Ok(entry.keys.iter().filter_map(|key| Some((name(key), text(value(key)?)))).collect())
    };
    let before = old.and_then(|old| values(old).ok()).unwrap_or_default();
    Ok(values(new)?.into_iter().filter(|one| !before.contains(one)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in ".{0,200}") {
            let _ = parse_automatic_files(&text);
        }

        #[test]
        fn any_bytes_are_a_path(path in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(entry(&path).is_none() || is_directory(&path) || !path.is_empty());
            // Below a directory whose files run, every file is reported.
            let below = [b".vscode/", path.as_slice(), b"x"].concat();
            prop_assert!(entry(&below).is_some());
        }
    }

    #[test]
    fn the_list_is_well_formed_and_its_examples_match() {
        let list = parse_automatic_files(AUTOMATIC_FILES).expect("the list is valid");
        let matcher = Matcher::new(parse_automatic_files(AUTOMATIC_FILES).expect("the list is valid"));
        for file in &list.file {
            for example in &file.examples {
                let found = matcher.entry(&example.to_ascii_lowercase()).map(|found| &found.happens);
                assert_eq!(found, Some(&file.happens), "{example}");
            }
            for pattern in &file.files {
                // Every pattern matches a path of its own form, in any directory.
                let path = pattern.replace('*', "x");
                let path = if path.ends_with('/') { format!("{path}x") } else { path };
                assert!(entry(path.as_bytes()).is_some(), "{path}");
                assert!(entry(format!("a/b/{path}").as_bytes()).is_some(), "a/b/{path}");
                assert!(entry(path.to_ascii_uppercase().as_bytes()).is_some(), "{path}");
                // The name must be the whole name.
                let may_match = pattern.starts_with('*') || pattern.contains('/');
                assert!(may_match || entry(format!("x{path}").as_bytes()).is_none(), "x{path}");
            }
        }
        for json in &list.json {
            let changed = changed_keys(json, None, json.example.as_bytes()).expect("the example is JSON");
            assert_eq!(changed.len(), 1, "{}", json.file);
            let again = changed_keys(json, Some(json.example.as_bytes()), json.example.as_bytes());
            assert_eq!(again.ok(), Some(Vec::new()), "{}", json.file);
        }
    }

    #[test]
    fn other_forms_of_patterns_are_refused() {
        for pattern in ["*", "a*b*", "*/a", "/a", "a//b", "", "a*/", "/"] {
            assert!(!is_pattern(pattern), "{pattern}");
        }
        for pattern in ["a", "a/", "a/b", "a/b/", "*.b", "a.*", "a/b.*"] {
            assert!(is_pattern(pattern), "{pattern}");
        }
        let entry = |files: &str, source: &str| {
            format!(
                "json = []\n[[file]]\nfiles = [{files}]\nhappens = \"x\"\nsource = \"{source}\"\nexamples = [\"a\"]\n"
            )
        };
        assert!(parse_automatic_files(&entry("\"a\"", "s")).is_ok());
        for bad in [entry("\"*\"", "s"), entry("", "s"), entry("\"a\"", "")] {
            assert!(parse_automatic_files(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn usual_files_are_not_in_the_list() {
        for path in [
            "Makefile",
            "src/main.rs",
            "build.sh",
            "package.json",
            "husky/pre-commit",
            "vscode/tasks.json",
            "docs/README.md",
            "tools/other",
            "bazel",
            ".config/other.toml",
            "x.mise.toml",
            "workflows/ci.yml",
            ".github/CODEOWNERS",
            "",
            "eslint.config",
            "AGENTS.md.txt",
            "src/github/workflows/x.yml",
        ] {
            assert!(entry(path.as_bytes()).is_none(), "{path}");
        }
    }

    #[test]
    fn directories_above_such_files() {
        for path in [
            ".github",
            ".github/workflows",
            ".github/workflows/a",
            ".yarn",
            "x/.config",
            "tools",
            ".vscode/sub",
        ] {
            assert!(is_directory(path.as_bytes()), "{path}");
        }
        for path in ["src", "docs/tools.d", "github", "workflows", ""] {
            assert!(!is_directory(path.as_bytes()), "{path}");
        }
    }
}
