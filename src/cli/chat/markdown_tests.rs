use proptest::prelude::*;

use super::*;
use crate::text::terminal_text::is_unsafe;

fn rendered(text: &str) -> String {
    let mut markdown = Markdown::new(true);
    let mut out = markdown.push(text);
    out.push_str(&markdown.finish());
    out
}

/// Renders a text that arrives in pieces. `cuts` are the byte offsets at which a new piece begins, modulo the length.
fn rendered_in_pieces(text: &str, cuts: &[usize], has_styles: bool) -> String {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.retain(|cut| text.is_char_boundary(*cut));
    cuts.sort_unstable();
    let mut markdown = Markdown::new(has_styles);
    let (mut out, mut from) = (String::new(), 0);
    for cut in cuts.into_iter().chain([text.len()]) {
        out.push_str(&markdown.push(&text[from..cut]));
        from = cut;
    }
    out.push_str(&markdown.finish());
    out
}

fn without_styles(output: &str) -> String {
    [RESET, BOLD, DIM, ITALIC, CODE].iter().fold(output.to_string(), |text, style| text.replace(style, ""))
}

#[test]
fn what_models_write_is_rendered() {
    for (text, wanted) in [
        ("plain", "plain\n"),
        ("# Title\ntext\n", "\x1b[1mTitle\x1b[m\ntext\n"),
        ("#hashtag", "#hashtag\n"),
        ("a **b** c", "a \x1b[1mb\x1b[m c\n"),
        ("*i* and _i_", "\x1b[3mi\x1b[m and \x1b[3mi\x1b[m\n"),
        ("***both***", "\x1b[1m\x1b[3mboth\x1b[m\x1b[1m\x1b[m\n"),
        ("use `a*b` and ``x`y``", "use \x1b[36ma*b\x1b[m and \x1b[36mx`y\x1b[m\n"),
        ("**use `*args*` now**", "\x1b[1muse \x1b[36m*args*\x1b[m\x1b[1m now\x1b[m\n"),
        ("- one\n  * two\n3. three\n", "• one\n  • two\n3. three\n"),
        ("> said\n", "\x1b[2m│ \x1b[msaid\n"),
        (
            "```rust\nfn **a**() {}\n\n```\nend",
            "\x1b[2m```rust\x1b[m\n\x1b[36mfn **a**() {}\x1b[m\n\x1b[36m\x1b[m\n\x1b[2m```\x1b[m\nend\n",
        ),
        ("a\r\nb", "a\nb\n"),
        (r"\*not\* C:\x", "*not* C:\\x\n"),
    ] {
        assert_eq!(rendered(text), wanted, "{text:?}");
    }
}

#[test]
fn what_only_looks_like_markdown_stays() {
    for text in [
        "2 * 3 * 4",
        "snake_case_name",
        "a ** b",
        "**not closed",
        "`not closed",
        "----",
        "| a | b |",
        "~/.config",
        "``",
        "f(*args, **kwargs)",
        "***",
        "_",
        "[text](https://example.org/a_b_c)",
        "+1",
        "#",
        "* ",
        "1*2",
    ] {
        let shown = rendered(text);
        let bullet = text.replace("* ", "• ");
        let wanted = if text.starts_with("* ") { &bullet } else { text };
        assert_eq!(shown, format!("{wanted}\n"), "{text:?}");
    }
}

/// The renderer must print text as soon as later text can no longer change its meaning.
#[test]
fn text_is_printed_as_it_arrives() {
    let mut markdown = Markdown::new(true);
    assert_eq!(markdown.push("The"), "The");
    assert_eq!(markdown.push(" answer is **4"), " answer is ");
    assert_eq!(markdown.push("2** o"), "\x1b[1m42\x1b[m o");
    assert_eq!(markdown.push("r so.\n"), "r so.\n");
    assert_eq!(markdown.push("`"), "");
    assert_eq!(markdown.finish(), "`\n");
    assert_eq!(markdown.finish(), "");
}

/// If nothing closes a mark, the renderer must print the text after it once `WINDOW` characters have arrived.
#[test]
fn the_text_after_an_open_mark_is_printed_at_last() {
    let mut markdown = Markdown::new(true);
    let long = "x".repeat(WINDOW);
    assert_eq!(markdown.push(&format!("**{long}")), format!("**{long}"));
    assert_eq!(markdown.push("**\n"), "**\n");
}

#[test]
fn hostile_text_is_escaped() {
    let shown = rendered("\x1b[2J\x1b]52;c;aGk=\x07 `\u{202e}x` \u{9b}31m **\u{200b}** a\rb");
    assert_eq!(without_styles(&shown).matches("\\u{1b}").count(), 2, "{shown:?}");
    assert!(
        shown.contains("\\u{202e}x") && shown.contains("\\u{9b}31m") && shown.contains("a\\rb"),
        "{shown:?}"
    );
    assert!(!without_styles(&shown).chars().any(|one| one != '\n' && is_unsafe(one)), "{shown:?}");
}

/// Generates text with many Markdown marks, which random text seldom contains.
fn marked_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => "[a-c ]{1,4}",
        2 => Just("*".to_string()),
        2 => Just("`".to_string()),
        2 => Just("\n".to_string()),
        1 => "[*_`~#>+-]{1,4}",
        1 => "[ \t]{1,30}",
        1 => "\\PC{0,3}",
        1 => "[\\\\\r\u{1b}\u{202e}\u{9b}é漢]{1,3}",
        1 => "x{100,300}",
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

fn bytes() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<u8>(), 0..400).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

proptest! {
    /// The output must not depend on how the text is split into pieces, and must contain no unsafe characters.
    #[test]
    fn pieces_do_not_matter_and_nothing_unsafe_is_printed(
        text in prop_oneof![marked_text(), bytes()],
        cuts in prop::collection::vec(any::<usize>(), 0..30),
        has_styles in any::<bool>(),
    ) {
        let whole = rendered_in_pieces(&text, &[], has_styles);
        prop_assert_eq!(&rendered_in_pieces(&text, &cuts, has_styles), &whole);
        let every: Vec<usize> = (0..text.len()).collect();
        prop_assert_eq!(&rendered_in_pieces(&text, &every, has_styles), &whole);
        let shown = without_styles(&whole);
        prop_assert!(!shown.chars().any(|one| !matches!(one, '\n' | '\t') && is_unsafe(one)), "{:?}", shown);
        // Each line must reset the styles that it sets.
        for line in whole.split('\n') {
            prop_assert_eq!(line.rfind('\x1b'), line.rfind(RESET), "{:?}", line);
        }
    }

    /// Without styles, the renderer must not change the text, except for unsafe characters and line ends.
    #[test]
    fn without_styles_the_text_stays(text in prop_oneof![marked_text(), bytes()]) {
        let shown = rendered_in_pieces(&text, &[], false);
        let lines = text.replace("\r\n", "\n");
        let mut wanted: String = lines.split('\n').map(|line| format!("{}\n", terminal_text::escape(line))).collect();
        if lines.is_empty() || lines.ends_with('\n') {
            wanted.pop();
        }
        prop_assert_eq!(shown, wanted);
    }
}
