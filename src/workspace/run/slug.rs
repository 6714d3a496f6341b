//! Names for branches and directories, made from whatever a user or an orchestrator calls a task.

/// The longest slug: branch names become files, with a prefix and a suffix around them.
const LONGEST: usize = 64;

/// A name that is safe as a part of a branch name and of a path: lower-case letters, digits, dashes and dots.
///
/// `None` when nothing is left of it.
pub(crate) fn slug(name: &str) -> Option<String> {
    let mut slug = String::new();
    for character in name.chars() {
        let next = match character {
            'a'..='z' | '0'..='9' => character,
            'A'..='Z' => character.to_ascii_lowercase(),
            // A letter of another script stays one: agents are given tasks in every language.
            letter if letter.is_alphanumeric() => letter,
            '.' if slug.chars().next_back().is_some_and(|last| last.is_ascii_digit()) => '.',
            _ => '-',
        };
        if next == '-' && (slug.is_empty() || slug.ends_with('-') || slug.ends_with('.')) {
            continue;
        }
        if slug.len() + next.len_utf8() > LONGEST {
            break;
        }
        slug.push(next);
    }
    let trimmed = slug.trim_matches(|c| c == '-' || c == '.');
    // git refuses names that end so, and reads them as lock files.
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
