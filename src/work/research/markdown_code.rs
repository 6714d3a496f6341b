//! Finds the code in a Markdown text: fenced code blocks, and code spans within one line. In code, a reader sees an
//! address as text and not as a link.
//!
//! Treats as text whatever a Markdown program could treat as text:
//! - a fence or a code span that is not closed
//! - a code span over several lines or over the cells of a table
//! - code after an HTML tag
//! - a code span after a line of the same paragraph in which a backtick is not closed
//! - fenced code after a fence that is not at the beginning of its line
//! - code that contains the syntax of a link
//! - all code of a text in which a carriage return without a newline ends a line

/// A part of a Markdown text: code, or text outside code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    /// Code, with its backticks or fences.
    Code(&'t str),
}

/// Splits a Markdown text into code and the text between the code, in order.
pub(super) fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let (mut text_from, mut at) = (0, 0);
    for part in split_lines(text) {
        match part {
            Part::Text(line) => at += line.len(),
            Part::Code(code) => {
                parts.extend([Part::Text(&text[text_from..at]), part]);
                at += code.len();
                text_from = at;
            }
        }
    }
    parts.push(Part::Text(&text[text_from..]));
    parts
}

/// Splits a text into its parts, in order. No part is longer than a line, except the last one.
fn split_lines(text: &str) -> Vec<Part<'_>> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut parts = Vec::new();
    // Some Markdown programs also end a line at a carriage return alone, so treat such a text as text without code.
    if text.replace("\r\n", "").contains('\r') {
        return vec![Part::Text(text)];
    }
    let has_table = lines.iter().any(|line| is_delimiter_row(line));
    // Opening fences that no later line closes. A fence that needs at least as many marks is not closed either, so
    // there is no need to search for its end.
    let mut unclosed: Vec<Fence> = Vec::new();
    let mut has_other_fence = false;
    let mut has_open_backtick = false;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if line.trim_start().starts_with('<') {
            // The rest may be an HTML block, in which backticks do not mark code.
            parts.push(Part::Text(
                &text[text.len() - lines[at..].iter().map(|line| line.len()).sum::<usize>()..],
            ));
            return parts;
        }
        let fence = opening(line).filter(|fence| !unclosed.iter().any(|known| fence.needs_more(*known)));
        let closing = fence.filter(|_| !has_other_fence).and_then(|fence| {
            let closing = lines[at + 1..].iter().position(|line| fence.is_closed_by(line));
            if closing.is_none() {
                unclosed.push(fence);
            }
            closing
        });
        if let Some(length) = closing {
            let block = &lines[at..at + length + 2];
            parts.extend(block.iter().map(|line| code_or_text(line)));
            at += block.len();
            has_open_backtick = false;
            continue;
        }
        has_other_fence |= line.contains("```") || line.contains("~~~");
        has_open_backtick &= !line.trim().is_empty();
        if has_open_backtick {
            parts.push(Part::Text(line));
        } else {
            has_open_backtick = split_line(line, has_table, &mut parts);
        }
        at += 1;
    }
    parts
}

/// Returns [`Part::Code`], or [`Part::Text`] if the code contains a link: a Markdown program that does not recognise
/// the code would show the link.
fn code_or_text(code: &str) -> Part<'_> {
    let has_link = ["](", "]:", "<a", "<A"].iter().any(|mark| code.contains(mark)) && code.contains("//");
    if has_link { Part::Text(code) } else { Part::Code(code) }
}

/// The backticks or tildes that begin a fenced code block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    /// True if every line that closes this fence also closes the other one.
    fn needs_more(self, other: Fence) -> bool {
        self.mark == other.mark && self.length >= other.length
    }

    fn is_closed_by(self, line: &str) -> bool {
        leading_fence(line).is_some_and(|(fence, rest)| {
            fence.needs_more(self) && rest.trim_matches([' ', '\t', '\r', '\n']).is_empty()
        })
    }
}

/// Parses the first line of a fenced code block; `None` if the line begins no block.
fn opening(line: &str) -> Option<Fence> {
    let (fence, rest) = leading_fence(line)?;
    (fence.mark == '~' || !rest.contains('`')).then_some(fence)
}

/// Returns the fence at the beginning of a line, and the rest of the line; `None` if there is no fence. A fence has at
/// least three marks, and at most three spaces before them.
fn leading_fence(line: &str) -> Option<(Fence, &str)> {
    let inside = line.trim_start_matches(' ');
    let mark = inside.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = inside.trim_start_matches(mark);
    let fence = Fence { mark, length: inside.len() - rest.len() };
    (line.len() - inside.len() <= 3 && fence.length >= 3).then_some((fence, rest))
}

/// True if the line could be the second row of a table, such as `|---|:-:|`, also in a quotation or a list.
fn is_delimiter_row(line: &str) -> bool {
    let is_mark = |c: char| matches!(c, '-' | ':' | '|' | '>' | '*' | '+' | ' ' | '\t');
    line.contains('|') && line.contains('-') && line.trim().chars().all(is_mark)
}

/// Appends the text and the code spans of a line to `parts`. Returns true if the text after the last code span contains
/// a backtick, because a later line could close a code span that begins there.
fn split_line<'t>(line: &'t str, has_table: bool, parts: &mut Vec<Part<'t>>) -> bool {
    let (mut text_from, mut at) = (0, 0);
    let mut tag = line.find('<').unwrap_or(line.len());
    while let Some(open) = line[at..].find('`').map(|position| at + position).filter(|open| *open < tag) {
        let backslashes = line[..open].bytes().rev().take_while(|byte| *byte == b'\\').count();
        if backslashes % 2 == 1 {
            at = open + 1;
            continue;
        }
        let after = line[open..].trim_start_matches('`');
        let length = line.len() - open - after.len();
        at = open + length;
        let Some(code) = span(after, length).filter(|code| !has_table || !code.contains('|')) else {
            continue;
        };
        let end = at + code.len() + length;
        parts.extend([Part::Text(&line[text_from..open]), code_or_text(&line[open..end])]);
        (text_from, at) = (end, end);
        if tag < end {
            tag = line[end..].find('<').map_or(line.len(), |position| end + position);
        }
    }
    parts.push(Part::Text(&line[text_from..]));
    line[text_from..].contains('`')
}

/// Returns the text before the next run of exactly `length` backticks; `None` if there is no such run.
fn span(text: &str, length: usize) -> Option<&str> {
    let mut at = 0;
    loop {
        let begin = at + text[at..].find('`')?;
        let rest = text[begin..].trim_start_matches('`');
        let end = text.len() - rest.len();
        if end - begin == length {
            return Some(&text[..begin]);
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(text: &str) -> Vec<&str> {
        let code = |part: &Part<'_>| matches!(part, Part::Code(_));
        split(text).into_iter().filter(code).map(|(Part::Code(text) | Part::Text(text))| text).collect()
    }

    #[test]
    fn code_is_what_every_markdown_program_treats_as_code() {
        for (text, expected) in [
            ("a `b` c", vec!["`b`"]),
            ("a ``b ` c`` d", vec!["``b ` c``"]),
            ("```sh\nx\n\ny\n```\nz", vec!["```sh\n", "x\n", "\n", "y\n", "```\n"]),
            ("~~~~\n```\n~~~~\n", vec!["~~~~\n", "```\n", "~~~~\n"]),
            ("a[0] `b[1] | c` `d < e` `f`", vec!["`b[1] | c`", "`d < e`", "`f`"]),
            // Backticks and fences that are not closed.
            ("a ` b", vec![]),
            ("```\nx\n", vec![]),
            ("```\nx\n~~~\n", vec![]),
            ("a ` b\n\nc ` d", vec![]),
            ("- a ` b\n- c ` d", vec![]),
            // Backticks that are escaped, in a tag, or in different cells of a table.
            ("a \\` b ` c", vec![]),
            ("<a title=\"`\">b`</a>", vec![]),
            ("a|b\n-|-\n` | ` | `c`\n", vec!["`c`"]),
            ("> a|b\n> -|-\n> ` | ` | `c`\n", vec!["`c`"]),
            // A backtick that is not closed in the line before, fences in lists, an HTML block, a link, carriage
            // returns, and a no-break space after a fence.
            ("a ` b\nc `d` e\n\n`f`", vec!["`f`"]),
            ("- ```\n  a\n  ```\nb\n```\n", vec![]),
            ("- a\n\n    ```\n  ```\n\nb\n\n```\n", vec![]),
            ("<div>\n```\na\n```\n</div>", vec![]),
            ("`[a](//b)`", vec![]),
            ("` \r\r a \r\r `", vec![]),
            ("```\n```\u{a0}\n```\na\n```\n", vec!["```\n", "```\u{a0}\n", "```\n"]),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }

    #[test]
    fn hostile_texts_take_no_longer() {
        let began = std::time::Instant::now();
        for text in
            ["```x\n".repeat(200_000), "`".repeat(1 << 20), "` ``".repeat(200_000), "\\`<".repeat(200_000)]
        {
            split(&text);
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn the_parts_are_the_whole_text(text in "([`~<|\\\\\\n -]|[a-c好]){0,80}") {
            let parts = split(&text).into_iter().map(|(Part::Code(text) | Part::Text(text))| text);
            prop_assert_eq!(parts.collect::<String>(), text);
        }
    }
}
