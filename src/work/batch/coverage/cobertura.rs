//! Parses Cobertura XML, which gcovr, coverage.py, grcov, tarpaulin and many other tools write.
//!
//! A `class` element names a source file and contains `line` elements, directly or inside `method` elements. A
//! relative file name refers to a file below one of the `source` directories. This module ignores elements without
//! information about lines.

use std::borrow::Cow;

use quick_xml::encoding::EncodingError;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use super::builder::{CoverageBuilder, Damage, MAX_PATH_BYTES, SourceFile, parse_hits, parse_line};

/// The maximum nesting depth of elements. Real reports have a depth of 9.
const MAX_DEPTH: usize = 64;
/// The maximum number of `source` directories of a report.
const MAX_SOURCES: usize = 64;
/// The maximum number of paths of source files that guard may have to look up in the file system for one report.
const MAX_LOOKUPS: usize = 1_000_000;

/// Returns true if the document is a Cobertura report. Clover reports have the same root element, `coverage`, but
/// without the attribute `line-rate`.
pub(super) fn is_cobertura(text: &str) -> Result<bool, Damage> {
    let mut elements = Elements::new(text);
    loop {
        match elements.next()? {
            Event::Start(root) | Event::Empty(root) => {
                let is_coverage = root.name().as_ref() == b"coverage";
                return Ok(is_coverage && elements.attribute(&root, "line-rate")?.is_some());
            }
            Event::Eof => return Ok(false),
            _ => {}
        }
    }
}

/// Parses a report, and adds its lines to the builder.
pub(super) fn read(text: &str, builder: &mut CoverageBuilder) -> Result<(), Damage> {
    let mut elements = Elements::new(text);
    let mut sources = Sources { directories: Vec::new(), lookups: 0 };
    loop {
        let event = elements.next()?;
        let (element, is_empty) = match &event {
            Event::Start(element) => (element, false),
            Event::Empty(element) => (element, true),
            Event::Eof => return Ok(()),
            _ => continue,
        };
        match element.name().as_ref() {
            b"class" => {
                let name = elements.required_attribute(element, "filename")?;
                let path = sources.resolve(&name, builder).map_err(|problem| elements.damage(problem))?;
                let file = builder.source_file(&path).map_err(|problem| elements.damage(problem))?;
                if !is_empty {
                    read_class(&mut elements, file)?;
                }
            }
            b"source" if !is_empty => {
                let directory = read_text(&mut elements)?;
                if sources.directories.len() == MAX_SOURCES {
                    return Err(
                        elements.damage(format!("there are more than {MAX_SOURCES} `source` elements"))
                    );
                }
                sources.directories.push(directory);
            }
            _ => {}
        }
    }
}

/// Records the lines up to the end of a `class` element.
fn read_class(elements: &mut Elements<'_>, mut file: SourceFile<'_>) -> Result<(), Damage> {
    let depth = elements.depth;
    while elements.depth >= depth {
        let (Event::Start(element) | Event::Empty(element)) = elements.next()? else { continue };
        match element.name().as_ref() {
            b"line" => {
                let line = elements.required_attribute(&element, "number")?;
                let hits = elements.required_attribute(&element, "hits")?;
                let recorded = parse_line(&line).and_then(|line| file.record(line, parse_hits(&hits)?));
                recorded.map_err(|problem| elements.damage(problem))?;
            }
            b"class" => return Err(elements.damage("a `class` element is inside another one".to_string())),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the text up to the end of a `source` element.
fn read_text(elements: &mut Elements<'_>) -> Result<String, Damage> {
    let depth = elements.depth;
    let mut text = String::new();
    while elements.depth >= depth {
        match elements.next()? {
            Event::Text(part) => text.push_str(&elements.decoded(part.decode())?),
            Event::CData(part) => text.push_str(&elements.decoded(part.decode())?),
            Event::GeneralRef(reference) => text.push_str(&elements.resolve(&reference)?),
            _ => {}
        }
        if text.len() > MAX_PATH_BYTES {
            return Err(elements.damage(format!("a `source` element has more than {MAX_PATH_BYTES} bytes")));
        }
    }
    Ok(text.trim().to_string())
}

/// The `source` directories of a report, below which guard looks for files with relative names.
struct Sources {
    directories: Vec<String>,
    lookups: usize,
}

impl Sources {
    /// Returns the path of the source file that a report calls `name`. For a relative name, guard looks for an existing
    /// file below each `source` directory, and then below the directory of the reports. The latter finds the files of
    /// reports from containers, whose `source` directories do not exist on this machine. If there is no such file, the
    /// path is below the first `source` directory. An absolute name, or a name in a report without `source`
    /// directories, stays unchanged.
    fn resolve(&mut self, name: &str, builder: &CoverageBuilder) -> Result<String, String> {
        let Some(first) = self.directories.first().filter(|_| !name.starts_with('/')) else {
            return Ok(name.to_string());
        };
        if name.len() > MAX_PATH_BYTES {
            return Err(format!("a file name has more than {MAX_PATH_BYTES} bytes"));
        }
        self.lookups += self.directories.len() + 1;
        if self.lookups > MAX_LOOKUPS {
            return Err(format!(
                "there are so many `class` and `source` elements that guard would look up more than {MAX_LOOKUPS} paths"
            ));
        }
        let joined = self.directories.iter().map(|directory| format!("{directory}/{name}"));
        let mut candidates = joined.chain([name.to_string()]);
        let found = candidates.find(|path| builder.has_source(path));
        Ok(found.unwrap_or_else(|| format!("{first}/{name}")))
    }
}

/// Reads an XML document event by event, and tracks the nesting depth and the position.
struct Elements<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// The number of elements that are currently open.
    depth: usize,
}

impl<'a> Elements<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, reader: Reader::from_str(text), depth: 0 }
    }

    fn next(&mut self) -> Result<Event<'a>, Damage> {
        let event = self.reader.read_event().map_err(|error| {
            Damage::at_offset(self.text.as_bytes(), offset(self.reader.error_position()), error.to_string())
        })?;
        match event {
            Event::Start(_) if self.depth == MAX_DEPTH => {
                return Err(self.damage(format!("elements are nested more than {MAX_DEPTH} levels deep")));
            }
            Event::Start(_) => self.depth += 1,
            Event::End(_) => self.depth = self.depth.saturating_sub(1),
            Event::Eof if self.depth > 0 => {
                return Err(self.damage("the report ends inside an element".to_string()));
            }
            _ => {}
        }
        Ok(event)
    }

    /// Returns an error at the current position of the document.
    fn damage(&self, problem: String) -> Damage {
        Damage::at_offset(self.text.as_bytes(), offset(self.reader.buffer_position()), problem)
    }

    fn attribute<'e>(&self, element: &'e BytesStart<'_>, name: &str) -> Result<Option<Cow<'e, str>>, Damage> {
        let damage = |error: quick_xml::Error| self.damage(error.to_string());
        let Some(found) = element.try_get_attribute(name).map_err(|error| damage(error.into()))? else {
            return Ok(None);
        };
        found.normalized_value(XmlVersion::Implicit1_0).map(Some).map_err(damage)
    }

    fn required_attribute<'e>(
        &self,
        element: &'e BytesStart<'_>,
        name: &str,
    ) -> Result<Cow<'e, str>, Damage> {
        self.attribute(element, name)?.ok_or_else(|| {
            let element = String::from_utf8_lossy(element.name().into_inner()).into_owned();
            self.damage(format!("a `{element}` element has no attribute `{name}`"))
        })
    }

    fn decoded<T>(&self, decoded: Result<T, EncodingError>) -> Result<T, Damage> {
        decoded.map_err(|error| self.damage(error.to_string()))
    }

    /// Returns the character that an entity such as `&amp;` or `&#38;` stands for. Fails for entities that the
    /// document itself defines.
    fn resolve(&self, reference: &BytesRef<'_>) -> Result<String, Damage> {
        let character = reference.resolve_char_ref().map_err(|error| self.damage(error.to_string()))?;
        if let Some(character) = character {
            return Ok(character.to_string());
        }
        let name = self.decoded(reference.decode())?;
        let known = resolve_predefined_entity(&name).map(str::to_string);
        known.ok_or_else(|| self.damage(format!("the entity `&{name};` is unknown")))
    }
}

fn offset(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}
