//! Estimates how many tokens a text has, without the tokenizer of any model.
//!
//! An ASCII character counts as a quarter of a token and any other character as one and a half: tokenizers need one to
//! three tokens for most Chinese characters and emoji. `docs/internals/conversation-history.md` compares the
//! estimates with real tokenizers.

/// The size of a text, in quarters of a token. The sizes of a text's parts add up exactly to the size of the
/// text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(u64);

/// The size of an ASCII character, in quarters of a token.
const ASCII: u64 = 1;
/// The size of any other character, in quarters of a token.
const OTHER: u64 = 6;

impl Size {
    pub(super) fn of(text: &str) -> Self {
        // Count every character once: at its only byte that is not a continuation byte (0b10xx_xxxx).
        let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
        let other = text.bytes().filter(|byte| *byte >= 0xC0).count() as u64;
        Self(ascii * ASCII + other * OTHER)
    }

    pub(super) fn of_char(character: char) -> Self {
        Self(if character.is_ascii() { ASCII } else { OTHER })
    }

    pub(super) fn of_tokens(tokens: usize) -> Self {
        Self((tokens as u64).saturating_mul(4))
    }

    /// Returns the size in whole tokens, rounded up, so that a text that is not empty has at least one.
    pub(super) fn tokens(self) -> usize {
        usize::try_from(self.0.div_ceil(4)).unwrap_or(usize::MAX)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference of the sizes; zero if `other` is larger.
    pub(super) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    pub(super) fn divided_by(self, parts: usize) -> Self {
        Self(self.0 / (parts.max(1) as u64))
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), Self::plus)
    }
}

/// Estimates the number of tokens of a text: its ASCII characters divided by four, plus one and a half for every other
/// character, rounded up.
pub fn estimate_tokens(text: &str) -> usize {
    Size::of(text).tokens()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_characters_are_quarters_and_others_one_and_a_half() {
        for (text, tokens) in [
            ("", 0),
            ("a", 1),
            ("abcd", 1),
            ("abcde", 2),
            ("What's 2+2?", 3),
            ("你好", 3),
            ("你好吗", 5),
            ("é", 2),
            ("🦀", 2),
            ("🦀🦀", 3),
            ("\n\n\n\n", 1),
            ("ab你", 2),
        ] {
            assert_eq!(estimate_tokens(text), tokens, "{text:?}");
        }
    }

    #[test]
    fn a_mebibyte_is_a_quarter_of_it_in_tokens() {
        assert_eq!(estimate_tokens(&"x".repeat(1 << 20)), 1 << 18);
    }

    /// Compares the estimate with counts of the Gemini, GPT and Claude tokenizers, from
    /// `scripts/token-estimates`, for a short conversation of prose, JSON and code. The estimate of each text
    /// alone is less exact: it is too high for prose, and too low for JSON and code.
    #[test]
    fn the_estimate_of_a_mixed_conversation_is_near_real_counts() {
        let prose = "The supervisor reads the request, resolves the file through links and scripts, and asks the policy \
                     for a verdict. A denial is a value and never an error, so an agent that is refused learns the \
                     reason and can continue with something else. When the run ends, nothing of it is left on the \
                     machine except the branch with its commits and a transcript that anyone can verify.";
        let json = r#"{"name": "guard", "version": "0.1.0", "limits": {"hard_limit": 1000000, "safe_limit": 900000, "target": 16000}, "models": ["gemini-2.5-pro", "gemini-2.5-flash"], "tested": true}"#;
        let rust = "pub fn estimate_tokens(text: &str) -> usize {\n    let ascii = text.bytes().filter(u8::is_ascii).count();\n    \
                    let other = text.chars().count() - ascii;\n    (ascii + other * 6).div_ceil(4)\n}\n";
        let estimate = estimate_tokens(prose) + estimate_tokens(json) + estimate_tokens(rust);
        for counted in [75 + 82 + 67, 75 + 70 + 57, 76 + 68 + 64] {
            assert!(estimate * 100 > counted * 80 && estimate * 100 < counted * 120, "{estimate}, {counted}");
        }
        let chinese =
            "版本控制系统记录文件的每一次修改。开发者先创建一个分支，在分支上完成工作，然后请同事审查代码。";
        for counted in [25, 31, 35] {
            assert!(estimate_tokens(chinese) > counted, "the estimate of Chinese is on the safe side");
        }
    }

    proptest::proptest! {
        /// The size of a text equals the sum of the sizes of its characters, so that running totals stay exact.
        #[test]
        fn sizes_add_up(left in ".{0,60}", right in "[a-z你🦀\\n]{0,60}") {
            let whole = Size::of(&format!("{left}{right}"));
            proptest::prop_assert_eq!(whole, Size::of(&left).plus(Size::of(&right)));
            let characters: Size = left.chars().chain(right.chars()).map(Size::of_char).sum();
            proptest::prop_assert_eq!(whole, characters);
        }
    }
}
