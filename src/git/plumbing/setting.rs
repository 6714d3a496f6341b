//! One git setting, and settings as the text of a configuration file.

/// A git setting. The key has the form that git prints: section and name in lower case, the subsection unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// `None` for a key without `=`, which git treats as true.
    pub(crate) value: Option<Vec<u8>>,
    /// True if the setting comes from a file of the repository, and not from a file of the user or the system.
    pub(crate) is_from_repository: bool,
    /// True if a run may have written the file of the user or the system from which the setting comes.
    pub(crate) is_from_run: bool,
}

/// Formats settings as the text of a git configuration file.
pub(crate) fn render(settings: &[Setting]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut current: Option<&str> = None;
    for Setting { key, value, .. } in settings {
        let (Some(first), Some(last)) = (key.find('.'), key.rfind('.')) else { continue };
        let (section, name) = (&key[..last], &key[last + 1..]);
        if current != Some(section) {
            current = Some(section);
            text.push(b'[');
            text.extend_from_slice(&key.as_bytes()[..first]);
            if first < last {
                text.extend_from_slice(b" \"");
                let part = key[first + 1..last].replace('\\', "\\\\").replace('"', "\\\"");
                text.extend_from_slice(part.as_bytes());
                text.push(b'"');
            }
            text.extend_from_slice(b"]\n");
        }
        text.push(b'\t');
        text.extend_from_slice(name.as_bytes());
        if let Some(value) = value {
            text.extend_from_slice(b" = \"");
            for byte in value {
                match byte {
                    b'\n' => text.extend_from_slice(b"\\n"),
                    b'\t' => text.extend_from_slice(b"\\t"),
                    8 => text.extend_from_slice(b"\\b"),
                    b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
                    byte => text.push(*byte),
                }
            }
            text.push(b'"');
        }
        text.push(b'\n');
    }
    text
}
