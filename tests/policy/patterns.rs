//! guard does not use regular expressions to match patterns with several stars. The result must be the same as in a
//! shell.

use guard::judge::policy::Pattern;
use proptest::prelude::*;

/// The reference implementation of a pattern match.
fn means(pattern: &[u8], word: &[u8]) -> bool {
    match pattern.split_first() {
        None => word.is_empty(),
        Some((b'*', rest)) => (0..=word.len()).any(|at| means(rest, &word[at..])),
        Some((byte, rest)) => {
            word.split_first().is_some_and(|(first, word)| first == byte && means(rest, word))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn star_matches_any_text(pattern in "[ab*]{0,8}", word in "[ab]{0,10}") {
        let read = Pattern::new(&pattern).unwrap();
        prop_assert_eq!(read.matches(word.as_bytes()), means(pattern.as_bytes(), word.as_bytes()));
    }
}
