//! Fits messages into a limited size: small messages stay whole, and the middle of the largest ones is left
//! out.

use std::ops::Range;

use super::message::Message;
use super::message_sizes::Sizes;
use super::prompt_text::write_message_within;
use super::tokens::Size;

/// The minimum size to which guard cuts a message, in tokens. A shorter excerpt would not help the model, so guard
/// leaves out the oldest messages instead.
const SMALLEST_CUT: usize = 64;

/// The texts of messages in a prompt, after some were cut or left out to fit.
pub(super) struct Fitted {
    /// The texts of the messages, from the oldest to the newest.
    pub(super) texts: Vec<String>,
    /// How many of the oldest messages were left out.
    pub(super) left_out: usize,
    /// For each text, whether its message was cut, that is, is without its middle.
    pub(super) is_cut: Vec<bool>,
    pub(super) size: Size,
}

impl Fitted {
    /// Returns how many messages were cut.
    pub(super) fn cut(&self) -> usize {
        self.is_cut.iter().filter(|is_cut| **is_cut).count()
    }
}

/// Writes the messages in `range` so that they fit into `room` together. If they are too large, leaves out the middle
/// of the largest messages. If fewer than `SMALLEST_CUT` tokens of each of these would remain, leaves out the oldest
/// messages first.
pub(super) fn fit_messages(messages: &[Message], sizes: &Sizes, range: Range<usize>, room: Size) -> Fitted {
    let share = |first: usize| {
        let sizes = (first..range.end).map(|index| sizes.in_prompt(index)).collect();
        largest_share(sizes, room)
    };
    let is_too_small = |first: usize| share(first).is_some_and(|share| share < Size::of_tokens(SMALLEST_CUT));
    // With fewer messages, the share of each is larger. Use a binary search for the first index from which on the
    // shares are large enough.
    let (mut first, mut enough) = (range.start, range.end);
    if !is_too_small(first) {
        enough = first;
    }
    while first < enough {
        let middle = first + (enough - first) / 2;
        if is_too_small(middle) { first = middle + 1 } else { enough = middle }
    }
    let share = share(first);
    let left_out = first - range.start;
    let mut fitted = Fitted { texts: Vec::new(), left_out, is_cut: Vec::new(), size: Size::default() };
    for (index, message) in messages.iter().enumerate().take(range.end).skip(first) {
        let size = share.map_or(sizes.in_prompt(index), |share| share.min(sizes.in_prompt(index)));
        let (text, is_cut) = write_message_within(message, size);
        fitted.texts.push(text);
        fitted.is_cut.push(is_cut);
        fitted.size = fitted.size.plus(size);
    }
    fitted
}

/// Returns the size to which larger messages must be cut so that all messages fit into `room`. Smaller messages stay
/// whole, and the larger ones get equal parts of the remaining room. `None` if no message must be cut.
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
    use crate::agents::history::Role;

    #[test]
    fn the_oldest_messages_are_left_out_when_cutting_leaves_too_little() {
        let messages: Vec<Message> =
            (0..10).map(|index| Message::new(Role::User, format!("{index}{}", "x".repeat(4_000)))).collect();
        let sizes = Sizes::of(&messages);
        let fit = |tokens| fit_messages(&messages, &sizes, 0..10, Size::of_tokens(tokens));
        let enough = fit(640);
        assert_eq!((enough.left_out, enough.cut(), enough.texts.len()), (0, 10, 10));
        let less = fit(639);
        assert_eq!((less.left_out, less.cut(), less.texts.len()), (1, 9, 9));
        assert!(less.texts[0].starts_with("User: 1x") && less.texts[8].starts_with("User: 9x"));
        let nothing = fit(10);
        assert_eq!((nothing.left_out, nothing.texts.len()), (10, 0));
        let all = fit(20_000);
        assert_eq!((all.left_out, all.cut(), all.texts.len()), (0, 0, 10));
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
