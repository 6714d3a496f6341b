//! How large the messages of a conversation are.

use super::message::Message;
use super::prompt_text::message_size;
use super::tokens::Size;

/// The sizes of all messages of a conversation. They are updated whenever a message is added, so that building
/// a prompt reads only the messages that become part of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// At index `i`: the size of the contents of messages `0..=i`.
    content_until: Vec<Size>,
    /// The size of each message as a prompt contains it, with its label and escapes.
    in_prompt: Vec<Size>,
}

impl Sizes {
    pub(super) fn of(messages: &[Message]) -> Self {
        let mut sizes = Self::default();
        for message in messages {
            sizes.push(message);
        }
        sizes
    }

    pub(super) fn push(&mut self, message: &Message) {
        self.content_until.push(self.content_before(self.in_prompt.len()).plus(Size::of(&message.content)));
        self.in_prompt.push(message_size(message));
    }

    fn content_before(&self, index: usize) -> Size {
        index.checked_sub(1).and_then(|last| self.content_until.get(last)).copied().unwrap_or_default()
    }

    pub(super) fn content(&self, range: std::ops::Range<usize>) -> Size {
        self.content_before(range.end).minus(self.content_before(range.start))
    }

    /// Returns the size of one message as a prompt contains it; zero if there is no message with this index.
    pub(super) fn in_prompt(&self, index: usize) -> Size {
        self.in_prompt.get(index).copied().unwrap_or_default()
    }
}
