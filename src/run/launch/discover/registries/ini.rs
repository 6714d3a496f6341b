//! Parses settings of the form `key = value`, as in the settings files of npm and pip.

/// One `key = value` line, with the section that contains it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The section's name in lower case; empty before the first section.
    pub(crate) section: String,
    pub(crate) key: String,
    /// The setting's value. The parser appends indented continuation lines, each after a line feed.
    pub(crate) value: String,
}

/// Parses all settings in a file. Skips invalid lines, because the tool itself reports them.
pub(crate) fn parse(text: &str) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    let mut section = String::new();
    let mut may_continue = false;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t'])
            && may_continue
            && let Some(last) = settings.last_mut()
        {
            last.value.push('\n');
            last.value.push_str(trimmed);
            continue;
        }
        may_continue = false;
        if let Some(name) = trimmed.strip_prefix('[') {
            section = name.trim_end_matches(']').trim().to_ascii_lowercase();
        } else if let Some((key, value)) = trimmed.split_once('=') {
            let value = unquoted(value.trim()).to_string();
            settings.push(Setting { section: section.clone(), key: key.trim().to_string(), value });
            may_continue = true;
        }
    }
    settings
}

fn unquoted(value: &str) -> &str {
    ['"', '\''].iter().find_map(|&quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    #[test]
    fn settings() {
        let text =
            "a=1\n# x\n; y\n[Global]\r\nb = \"2\"\n  more\n\tmost\nnonsense\n  c = 3\n[d\n@s:r = ' =4'";
        let read = super::parse(text);
        let all: Vec<_> =
            read.iter().map(|s| (s.section.as_str(), s.key.as_str(), s.value.as_str())).collect();
        let expected =
            [("", "a", "1"), ("global", "b", "2\nmore\nmost"), ("global", "c", "3"), ("d", "@s:r", " =4")];
        assert_eq!(all, expected);
    }
}
