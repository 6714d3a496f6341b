//! Fits messages into limited room: small ones stay whole, the largest ones lose their middle.

use std::ops::Range;

use super::message::{Message, Sizes};
use super::prompt_text::write_message_within;
use super::tokens::Size;

/// A cut message with less than this says too little to be worth its room.
const SMALLEST_CUT: usize = 64;

/// Messages as they appear in a prompt.
pub(super) struct Fitted {
    /// The texts, from the oldest to the newest.
    pub(super) texts: Vec<String>,
    /// How many of the oldest messages were left out.
    pub(super) left_out: usize,
    /// How many of the texts lost their middle.
    pub(super) cut: usize,
    /// The room that the texts need.
    pub(super) size: Size,
}

/// Writes these messages so that they fit into `room` together. If they are too large, the largest ones lose their
/// middle. If that leaves too little of them, the oldest ones are left out.
pub(super) fn fit_messages(messages: &[Message], sizes: &Sizes, range: Range<usize>, room: Size) -> Fitted {
    let share = |first: usize| {
        let sizes = (first..range.end).map(|index| sizes.in_prompt(index)).collect();
        largest_share(sizes, room)
    };
    let is_too_small = |first: usize| share(first).is_some_and(|share| share < Size::of_tokens(SMALLEST_CUT));
    // The fewer messages there are, the larger is the share of each: search for the first index that leaves enough.
    let (mut first, mut enough) = (range.start, range.end);
    if !is_too_small(first) {
        enough = first;
    }
    while first < enough {
        let middle = first + (enough - first) / 2;
        if is_too_small(middle) { first = middle + 1 } else { enough = middle }
    }
    let share = share(first);
    let mut fitted =
        Fitted { texts: Vec::new(), left_out: first - range.start, cut: 0, size: Size::default() };
    for (index, message) in messages.iter().enumerate().take(range.end).skip(first) {
        let size = share.map_or(sizes.in_prompt(index), |share| share.min(sizes.in_prompt(index)));
        let (text, is_cut) = write_message_within(message, size);
        fitted.texts.push(text);
        fitted.cut += usize::from(is_cut);
        fitted.size = fitted.size.plus(size);
    }
    fitted
}

/// The size above which messages must be cut so that all of them fit into `room`: small ones stay whole, and the large
/// ones share the rest equally. `None` if nothing must be cut.
fn largest_share(mut sizes: Vec<Size>, mut room: Size) -> Option<Size> {
    sizes.sort_unstable();
    let count = sizes.len();
    for (index, size) in sizes.into_iter().enumerate() {
        let share = room.divided_by(count - index);
        if size > share {
            return Some(share);
        }
        room = room.minus(size);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Role;

    #[test]
    fn the_oldest_messages_are_left_out_when_cutting_leaves_too_little() {
        let messages: Vec<Message> =
            (0..10).map(|index| Message::new(Role::User, format!("{index}{}", "x".repeat(4_000)))).collect();
        let sizes = Sizes::of(&messages);
        let fit = |tokens| fit_messages(&messages, &sizes, 0..10, Size::of_tokens(tokens));
        let enough = fit(640);
        assert_eq!((enough.left_out, enough.cut, enough.texts.len()), (0, 10, 10));
        let less = fit(639);
        assert_eq!((less.left_out, less.cut, less.texts.len()), (1, 9, 9));
        assert!(less.texts[0].starts_with("User: 1x") && less.texts[8].starts_with("User: 9x"));
        let nothing = fit(10);
        assert_eq!((nothing.left_out, nothing.texts.len()), (10, 0));
        let all = fit(20_000);
        assert_eq!((all.left_out, all.cut, all.texts.len()), (0, 0, 10));
    }

    #[test]
    fn small_messages_stay_whole_and_large_ones_share_the_rest() {
        let sizes = |tokens: &[usize]| tokens.iter().map(|one| Size::of_tokens(*one)).collect::<Vec<_>>();
        let share = |tokens: &[usize], room| largest_share(sizes(tokens), Size::of_tokens(room));
        assert_eq!(share(&[], 0), None);
        assert_eq!(share(&[10, 20, 30], 60), None);
        assert_eq!(share(&[100, 10, 100], 110), Some(Size::of_tokens(50)));
        assert_eq!(share(&[100, 100], 100), Some(Size::of_tokens(50)));
        assert_eq!(share(&[100], 0), Some(Size::default()));
    }
}
