//! Turns the name of a task, which can be any text, into a name for branches and directories.

/// Maximum length of a slug, in bytes. File names contain the slug with a prefix and a suffix, and must not become
/// too long.
const MAX_LENGTH: usize = 64;

/// Reduces a name to at most 64 bytes of letters, digits, dashes and dots, which are safe in a branch name and in a
/// path. ASCII letters become lower case. `None` if no letters or digits remain.
pub(crate) fn slug(name: &str) -> Option<String> {
    let mut slug = String::new();
    for character in name.chars() {
        let next = match character {
            'a'..='z' | '0'..='9' => character,
            'A'..='Z' => character.to_ascii_lowercase(),
            // Keep letters of other scripts: users name tasks in every language.
            letter if letter.is_alphanumeric() => letter,
            '.' if slug.chars().next_back().is_some_and(|last| last.is_ascii_digit()) => '.',
            _ => '-',
        };
        if next == '-' && (slug.is_empty() || slug.ends_with('-') || slug.ends_with('.')) {
            continue;
        }
        if slug.len() + next.len_utf8() > MAX_LENGTH {
            break;
        }
        slug.push(next);
    }
    let trimmed = slug.trim_matches(|c| c == '-' || c == '.');
    // git refuses names with the suffix `.lock`, because its lock files have that suffix.
    let trimmed = trimmed.strip_suffix(".lock").unwrap_or(trimmed);
    (!trimmed.is_empty()).then(|| trimmed.to_string())
}

#[cfg(test)]
mod tests {
    use super::slug;

    #[test]
    fn names_become_safe() {
        for (name, wanted) in [
            ("Add a dark-mode toggle!", "add-a-dark-mode-toggle"),
            ("../../etc/passwd", "etc-passwd"),
            ("v1.2.3", "v1.2.3"),
            ("a..b", "a-b"),
            ("1..2", "1.2"),
            ("--force", "force"),
            ("x.lock", "x-lock"),
            ("1.lock", "1"),
            ("refs/heads/main", "refs-heads-main"),
            ("@{-1}", "1"),
            ("a\u{0}b\nc", "a-b-c"),
            ("Größe ändern", "größe-ändern"),
        ] {
            assert_eq!(slug(name).as_deref(), Some(wanted), "{name:?}");
        }
        assert_eq!(slug("../.."), None);
        assert_eq!(slug(""), None);
        assert!(slug(&"x".repeat(500)).is_some_and(|slug| slug.len() == 64));
    }
}
