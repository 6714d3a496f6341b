//! Builds the prompt for a new message: header, summary, recent messages, current message. A prompt never
//! exceeds its budget.
//!
//! When not everything fits, the current message gets room first, then the newest messages of the history, the
//! summary, older messages that no summary covers, and the first message.

use serde::{Deserialize, Serialize};

use super::compaction::Level;
use super::fit::fit_messages;
use super::message::Message;
use super::message_sizes::Sizes;
use super::model_limits::ModelLimits;
use super::prompt_text::{
    BLANK_LINE, CURRENT, HEADER, RECENT, SUMMARY, cut, escape_within, escaped_size, heading, write_message,
};
use super::size_warning::SizeWarning;
use super::summary::Summary;
use super::tokens::Size;

/// Whether and how a prompt contains a message of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageForm {
    Verbatim,
    /// The prompt contains the beginning and the end of the message, without its middle.
    Cut,
    /// The prompt does not contain the message, but a summary that describes it.
    InSummary,
    /// The prompt contains neither the message nor a summary that describes it.
    LeftOut,
}

/// A prompt for a model, and how the conversation was shortened to fit into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptResult {
    pub prompt_text: String,
    /// The estimated size of the prompt, in tokens; at most the limit for which the prompt was built.
    pub estimated_tokens: usize,
    /// Whether any message is missing or cut, or only the summary describes it.
    pub was_compressed: bool,
    /// A warning for the user about the size of the prompt or the conversation; `None` if nothing was cut or left out
    /// and both are small enough.
    pub warning: Option<SizeWarning>,
    /// How many messages are neither in the prompt nor in its summary.
    pub left_out: usize,
    /// How many messages were cut, that is, are without their middle, including the current one.
    pub cut: usize,
    /// How the prompt contains each message of the history, oldest first.
    pub forms: Vec<MessageForm>,
}

pub(super) struct PromptInput<'a> {
    /// The messages before the current message.
    pub(super) history: &'a [Message],
    pub(super) sizes: &'a Sizes,
    pub(super) summary: Option<&'a Summary>,
    pub(super) current: &'a str,
    pub(super) recent_message_count: usize,
    pub(super) budget: usize,
    pub(super) level: Level,
    pub(super) limits: ModelLimits,
}

/// The parts of a prompt, from the oldest to the newest.
#[derive(Default)]
struct Parts {
    first: Option<String>,
    summary: String,
    messages: Vec<String>,
    current: String,
    current_is_cut: bool,
    messages_cut: usize,
    left_out: usize,
    forms: Vec<MessageForm>,
}

pub(super) fn build(input: &PromptInput<'_>) -> PromptResult {
    let budget = Size::of_tokens(input.budget);
    if input.history.is_empty() {
        let text = cut(input.current, budget);
        let current_is_cut = text.len() != input.current.len();
        return result(input, text, &Parts { current_is_cut, ..Parts::default() });
    }
    let frame = Size::of(HEADER).plus(Size::of(&heading(RECENT))).plus(Size::of(&heading(CURRENT)));
    if budget <= frame {
        // Not even the headings fit. A budget of a few tokens is a configuration mistake, but the prompt must
        // not exceed it.
        let left_out = input.history.len();
        let text = cut(input.current, budget);
        let current_is_cut = text.len() != input.current.len();
        let forms = vec![MessageForm::LeftOut; left_out];
        return result(input, text, &Parts { current_is_cut, left_out, forms, ..Parts::default() });
    }
    let parts = choose(input, budget.minus(frame));
    result(input, write(&parts), &parts)
}

/// Chooses the parts of the prompt, which together fit into `room`.
fn choose(input: &PromptInput<'_>, mut room: Size) -> Parts {
    let mut parts = Parts { forms: vec![MessageForm::LeftOut; input.history.len()], ..Parts::default() };
    let wanted = escaped_size(input.current);
    let share = if wanted <= room { wanted } else { room.minus(room.divided_by(4)) };
    (parts.current, parts.current_is_cut) = escape_within(input.current, share);
    room = room.minus(Size::of(&parts.current));

    let covered = input.summary.map_or(0, |summary| summary.covers.min(input.history.len()));
    let begin = covered.max(input.history.len().saturating_sub(input.recent_message_count));
    let wanted: Size = (begin..input.history.len()).map(|index| input.sizes.in_prompt(index)).sum();
    let for_summary = input.summary.map_or(Size::default(), |summary| {
        Size::of(&heading(SUMMARY)).plus(summary.size()).min(room.divided_by(4))
    });
    let for_recent = if wanted <= room { wanted } else { room.minus(for_summary) };
    let recent = fit_messages(input.history, input.sizes, begin..input.history.len(), for_recent);
    room = room.minus(recent.size);
    parts.messages_cut = recent.cut();
    let forms =
        recent.is_cut.iter().map(|is_cut| if *is_cut { MessageForm::Cut } else { MessageForm::Verbatim });
    parts.forms.splice(begin + recent.left_out.., forms);
    parts.messages = recent.texts;

    if let Some(summary) = input.summary {
        let inside = room.minus(Size::of(&heading(SUMMARY)));
        parts.summary = summary.body_within(inside);
        if !parts.summary.is_empty() {
            room = room.minus(Size::of(&heading(SUMMARY)).plus(Size::of(&parts.summary)));
            parts.forms[..covered.saturating_sub(summary.dropped)].fill(MessageForm::InSummary);
        }
        parts.left_out += if parts.summary.is_empty() { covered } else { summary.dropped.min(covered) };
    }
    if recent.left_out == 0 {
        room = choose_older(input, covered..begin, room, &mut parts);
    } else {
        parts.left_out += recent.left_out + begin - covered;
    }
    choose_first(input, covered, room, &mut parts);
    parts
}

/// Adds the messages in the range `older`, which no summary covers, the newest first, as long as they fit uncut. Counts
/// the others as left out. Returns the remaining room.
fn choose_older(
    input: &PromptInput<'_>,
    older: std::ops::Range<usize>,
    mut room: Size,
    parts: &mut Parts,
) -> Size {
    let mut first = older.end;
    while first > older.start && input.sizes.in_prompt(first - 1) <= room {
        first -= 1;
        room = room.minus(input.sizes.in_prompt(first));
    }
    parts.left_out += first - older.start;
    parts.forms[first..older.end].fill(MessageForm::Verbatim);
    let texts = input.history[first..older.end].iter().map(write_message);
    parts.messages.splice(..0, texts);
    room
}

/// At [`Level::Window`], adds the first message verbatim although the summary covers it, because it usually states the
/// task. Does nothing if the message does not fit or takes more than an eighth of the budget.
fn choose_first(input: &PromptInput<'_>, covered: usize, room: Size, parts: &mut Parts) {
    let Some(message) = input.history.first() else { return };
    if input.level != Level::Window || covered == 0 || parts.summary.is_empty() {
        return;
    }
    let size = input.sizes.in_prompt(0).plus(Size::of(FIRST));
    if size <= room && size <= Size::of_tokens(input.budget).divided_by(8) {
        parts.first = Some(write_message(message));
        parts.forms[0] = MessageForm::Verbatim;
    }
}

/// The line before the first message of the conversation, in the summary section of a prompt.
const FIRST: &str = "The conversation began with:\n";

fn write(parts: &Parts) -> String {
    let mut out = HEADER.to_string();
    if !parts.summary.is_empty() {
        out.push_str(&heading(SUMMARY));
        if let Some(first) = &parts.first {
            out.push_str(FIRST);
            out.push_str(first);
            out.push_str(BLANK_LINE);
        }
        out.push_str(&parts.summary);
    }
    if !parts.messages.is_empty() {
        out.push_str(&heading(RECENT));
        out.push_str(&parts.messages.join(BLANK_LINE));
    }
    if !parts.current.is_empty() {
        out.push_str(&heading(CURRENT));
        out.push_str(&parts.current);
    }
    out
}

fn result(input: &PromptInput<'_>, prompt_text: String, parts: &Parts) -> PromptResult {
    let estimated_tokens = Size::of(&prompt_text).tokens();
    let conversation = input.sizes.content(0..input.history.len()).tokens();
    let warning = if parts.current_is_cut {
        let tokens = Size::of(input.current).tokens();
        Some(SizeWarning::CurrentMessageCut { tokens, budget: input.budget })
    } else if parts.left_out > 0 {
        Some(SizeWarning::MessagesLeftOut { messages: parts.left_out })
    } else if parts.messages_cut > 0 {
        Some(SizeWarning::RecentMessagesCut { messages: parts.messages_cut })
    } else {
        SizeWarning::about(estimated_tokens, conversation, &input.limits)
    };
    let cut = parts.messages_cut + usize::from(parts.current_is_cut);
    PromptResult {
        prompt_text,
        estimated_tokens,
        was_compressed: !parts.summary.is_empty() || parts.left_out > 0 || cut > 0,
        warning,
        left_out: parts.left_out,
        cut,
        forms: parts.forms.clone(),
    }
}
