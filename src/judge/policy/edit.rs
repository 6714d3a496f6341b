//! Edits the text of a policy file: adds a rule, or an item to a list of a section. Everything else in the file,
//! comments included, stays unchanged.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    #[error("the file is not valid TOML: {0}")]
    Toml(String),
    #[error(
        "the file has no [{section}] header to edit, only an inline table or dotted keys; add `{key} = [{item}]` to {section} by hand"
    )]
    Form {
        section: &'static str,
        /// The key of the list to which the user must add the item.
        key: &'static str,
        /// The item to add, as TOML.
        item: String,
    },
}

pub fn new_file(name: &str, extends: &str, description: &str) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_string());
    format!(
        "version = 1\nname = {}\nextends = {}\ndescription = {}\n",
        quoted(name),
        quoted(extends),
        quoted(description)
    )
}

/// Adds a rule, given as TOML, at the end of the text of a policy file.
pub fn add_rule(text: &str, rule: &str) -> String {
    format!("{}\n\n{rule}", text.trim_end())
}

/// Adds an item, given as TOML, to a list of a section, unless the list already contains it. Creates the section and
/// the list if the file does not have them. Sets `override = true` in the section.
pub fn add_to_list(
    text: &str,
    section: &'static str,
    key: &'static str,
    item: &str,
) -> Result<String, EditError> {
    let table = DeTable::parse(text).map_err(|error| EditError::Toml(error.message().to_string()))?;
    let found = table.get_ref().iter().find(|(name, _)| name.get_ref() == section);
    let Some((_, value)) = found else {
        return Ok(format!("{}\n\n[{section}]\noverride = true\n{key} = [{item}]\n", text.trim_end()));
    };
    let header = format!("[{section}]");
    let other_form = || EditError::Form { section, key, item: item.to_string() };
    let DeValue::Table(entries) = value.get_ref() else { return Err(other_form()) };
    let start = text.find(&header).filter(|&at| at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n'));
    let start = start.ok_or_else(other_form)?;
    let after_header = text[start..].find('\n').map_or(text.len(), |end| start + end + 1);
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    let mut insert = |at: usize, text: String| changes.push((at..at, text));
    match entries.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value) {
        None => insert(after_header, format!("{key} = [{item}]\n")),
        Some(list) => {
            let DeValue::Array(items) = list.get_ref() else { return Err(other_form()) };
            let is_there = items.iter().any(|known| text.get(known.span()) == Some(item));
            match items.last() {
                _ if is_there => {}
                Some(last) => insert(last.span().end, format!(", {item}")),
                None => insert(list.span().start + 1, item.to_string()),
            }
        }
    }
    match entries.iter().find(|(name, _)| name.get_ref() == "override").map(|(_, value)| value) {
        None => insert(after_header, "override = true\n".to_string()),
        Some(value) if matches!(value.get_ref(), DeValue::Boolean(false)) => {
            changes.push((value.span(), "true".to_string()));
        }
        Some(_) => {}
    }
    let mut edited = text.to_string();
    if after_header == text.len() && !text.ends_with('\n') {
        edited.push('\n');
        changes.iter_mut().for_each(|(range, _)| *range = edited.len()..edited.len());
    }
    // Change the highest offset first, so that the lower offsets stay valid.
    changes.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    for (range, replacement) in changes {
        edited.replace_range(range, &replacement);
    }
    Ok(edited)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str, section: &str, key: &str) -> Vec<String> {
        let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
        let items = table[section][key].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item.as_str().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn an_item_is_added_to_every_form_of_a_list() {
        for (text, expected) in [
            ("version = 1\n", vec!["new"]),
            ("[network]\n", vec!["new"]),
            ("[network]", vec!["new"]),
            ("[network]\nloopback = true\n[git]\nsign = true\n", vec!["new"]),
            ("[network]\nallow = []\n", vec!["new"]),
            ("[network]\nallow = [\"a\"] # why\n", vec!["a", "new"]),
            ("[network]\nallow = [\n  \"a\", # why\n  \"b\",\n]\noverride = true\n", vec!["a", "b", "new"]),
            ("[network]\noverride = true\nallow = [\"new\"]\n", vec!["new"]),
            ("[network]\nallow = [\"a\"]\noverride=false# allow no more\n", vec!["a", "new"]),
            ("[network]\noverride = false # allow no more\nallow = []", vec!["new"]),
        ] {
            let edited =
                add_to_list(text, "network", "allow", "\"new\"").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(listed(&edited, "network", "allow"), expected, "{edited}");
            let table: toml::Table = edited.parse().unwrap_or_default();
            assert_eq!(table["network"]["override"].as_bool(), Some(true), "{edited}");
            assert!(text.lines().all(|line| line.contains("allow") || edited.contains(line)), "{edited}");
        }
    }

    #[test]
    fn other_forms_of_a_section_are_left_to_the_user() {
        for text in ["network = { loopback = true }\n", "network.loopback = true\n", "network = 1\n"] {
            let edited = add_to_list(text, "network", "allow", "\"new\"");
            assert!(matches!(edited, Err(EditError::Form { .. })), "{edited:?}");
        }
        assert!(matches!(add_to_list("[[[", "network", "allow", "\"new\""), Err(EditError::Toml(_))));
    }
}
