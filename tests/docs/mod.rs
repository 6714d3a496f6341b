//! Tests the documents: generated pages must be current, links must have a target, and command lines must work as
//! written.

mod commands;
mod generated;
mod links;
mod meanings;

use std::path::{Path, PathBuf};

pub(crate) use commands::output_fits;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the pages of `docs/`, sorted.
fn pages() -> Vec<PathBuf> {
    fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&root().join("docs"), &mut found);
    found.sort();
    found
}

/// Returns the README and the pages of `docs/`.
pub(crate) fn readme_and_pages() -> Vec<PathBuf> {
    let mut all = vec![root().join("README.md")];
    all.extend(pages());
    all
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// A fenced code block of a Markdown file.
pub(crate) struct Block {
    /// The line number of the opening fence, counted from 1.
    pub(crate) line: usize,
    pub(crate) language: String,
    /// The rest of the info string: `not-run="…"`, `tested-by="…"`, `exit=N`, `file="…"`.
    pub(crate) attributes: String,
    pub(crate) text: String,
}

impl Block {
    /// Returns the value of an attribute, with or without quotes.
    fn attribute(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.attributes.split_once(&format!("{name}="))?;
        match rest.strip_prefix('"') {
            Some(quoted) => Some(quoted.split_once('"').expect("the quote of an attribute is closed").0),
            None => rest.split_whitespace().next(),
        }
    }
}

/// Returns the fenced code blocks of a Markdown text.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, Some(info)) => {
                let (language, attributes) = info.split_once(' ').unwrap_or((info, ""));
                open = Some(Block {
                    line: index + 1,
                    language: language.to_string(),
                    attributes: attributes.to_string(),
                    text: String::new(),
                });
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "the last code block is not closed");
    found
}
