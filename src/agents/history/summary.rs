//! Summaries, which replace older messages in prompts, and the requests for them to a model.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::message::{Message, Role};
use super::prompt_text::{BLANK_LINE, cut, escape};
use super::tokens::Size;

/// A summary that replaces the oldest messages of a conversation in prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// How many of the oldest messages the summary replaces.
    pub covers: usize,
    /// The text of the summary, without the facts in `pinned`.
    pub text: String,
    /// Facts that are copied word for word from the replaced messages, the most important first: the user's
    /// constraints, then paths, names and numbers.
    pub pinned: Vec<String>,
    /// The digest of the replaced messages, see [`digest_of`]. It is the key in the [`SummaryCache`], and it
    /// shows whether a stored summary belongs to the stored messages.
    pub digest: String,
    /// Who made the text: a model, or guard because no model could.
    pub made_by: SummarySource,
    /// How many of the replaced messages the text does not describe, because no model could summarise them.
    #[serde(default)]
    pub dropped: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SummarySource {
    /// The model of this name wrote the summary.
    Model(String),
    /// No model could write a summary: guard dropped the messages from prompts and kept only the facts in
    /// [`Summary::pinned`].
    Truncation,
}

impl Summary {
    /// Returns the summary as the one system message that replaces the older messages.
    pub fn as_message(&self) -> Message {
        Message::new(Role::System, self.body())
    }

    pub fn estimated_tokens(&self) -> usize {
        self.size().tokens()
    }

    /// Returns how many of the oldest messages the text describes. The messages that were dropped without a
    /// description follow them.
    pub(super) fn described(&self) -> usize {
        self.covers.saturating_sub(self.dropped)
    }

    /// Returns the text without the note about dropped messages.
    pub(super) fn description(&self) -> &str {
        self.text.strip_suffix(&note(self.dropped)).unwrap_or(&self.text).trim_end()
    }

    /// Returns the text and, below it, the facts in `pinned`. Both are escaped, because they come from messages or
    /// from a model.
    pub(super) fn body(&self) -> String {
        body(&self.text, &self.pinned)
    }

    pub(super) fn size(&self) -> Size {
        Size::of(&self.body())
    }

    /// Returns the body, shortened to fit into `room`: the most important facts get at most half of the room,
    /// and the text is cut to the rest. Returns an empty text if nothing useful fits.
    pub(super) fn body_within(&self, room: Size) -> String {
        if self.size() <= room {
            return self.body();
        }
        let mut pinned = self.pinned.as_slice();
        while let Some((_, kept)) = pinned.split_last()
            && Size::of(&body("", pinned)) > room.divided_by(2)
        {
            pinned = kept;
        }
        let facts = Size::of(&body("", pinned)).plus(Size::of(BLANK_LINE));
        let mut aim = room.minus(facts);
        loop {
            let text = cut(&self.text, aim);
            let whole = body(&text, pinned);
            let size = Size::of(&whole);
            if size <= room {
                return whole;
            }
            if text.is_empty() {
                return String::new();
            }
            aim = aim.minus(size.minus(room));
        }
    }
}

/// Returns the note at the end of a summary about messages that no model summarised.
pub(super) fn note(dropped: usize) -> String {
    format!("[Messages left out without a summary: {dropped}.]")
}

fn body(text: &str, pinned: &[String]) -> String {
    let mut out = escape(text.trim()).into_owned();
    if pinned.is_empty() {
        return out;
    }
    if !out.is_empty() {
        out.push_str(BLANK_LINE);
    }
    out.push_str(PINNED);
    for fact in pinned {
        out.push_str("\n- ");
        out.push_str(&escape(fact));
    }
    out
}

/// The line in a summary before the list of facts that guard copied from the messages.
pub(super) const PINNED: &str = "Stated in these messages, word for word:";

/// Returns a digest of messages: SHA-256 over the role and the content of each, in hexadecimal.
pub fn digest_of(messages: &[Message]) -> String {
    let mut hash = Sha256::new();
    for message in messages {
        // The length before each content prevents two different lists of messages from giving the hash function the
        // same bytes.
        hash.update(message.role.label());
        hash.update((message.content.len() as u64).to_le_bytes());
        hash.update(&message.content);
    }
    crate::text::hex::encode(hash.finalize())
}

/// A request for a summary. The caller sends `prompt` to `model` and passes the answer to
/// [`super::GeminiHistoryManager::apply_summary`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRequest {
    pub prompt: String,
    pub model: String,
    /// How many of the oldest messages the summary will replace.
    pub covers: usize,
    /// The digest of the messages that the summary will replace.
    pub digest: String,
}

pub type SummaryFuture<'a> = Pin<Box<dyn Future<Output = Result<String, SummaryError>> + Send + 'a>>;

/// Writes summaries: a model behind a CLI, or a test double.
pub trait Summarizer: Send + Sync {
    /// Asks the model for a summary and returns its text. Fails if the model does not write one.
    fn summarize<'a>(&'a self, request: &'a SummaryRequest) -> SummaryFuture<'a>;
}

/// Why there is no new summary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SummaryError {
    #[error(
        "this conversation has no model that writes summaries, so guard drops older messages from prompts instead"
    )]
    NoSummarizer,
    #[error("the conversation has no messages old enough to summarise")]
    NothingToSummarize,
    #[error("the summary model did not answer within {seconds} s")]
    Timeout {
        /// How long the caller waited for the answer.
        seconds: u64,
    },
    /// The model failed, or the CLI through which guard asks it.
    #[error("the summary model failed: {reason}")]
    Failed { reason: String },
    #[error("the summary model returned an empty summary")]
    Empty,
    #[error(
        "the summary has about {summary} tokens, but the messages that it should replace have only {replaced}"
    )]
    TooLarge {
        /// Estimated tokens of the summary.
        summary: usize,
        /// Estimated tokens of the messages that the summary should replace.
        replaced: usize,
    },
    /// The conversation no longer begins with the messages that the request was made for.
    #[error("the conversation changed while the model wrote the summary, so guard discarded the summary")]
    Stale,
    /// The history already has a summary of at least as many messages.
    #[error("a newer summary already covers these messages")]
    Superseded,
}

impl SummaryError {
    /// True if the summary model caused the error, so that the circuit breaker counts it as a failure.
    pub(super) fn is_failure_of_model(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Failed { .. } | Self::Empty | Self::TooLarge { .. } => true,
            Self::NoSummarizer | Self::NothingToSummarize | Self::Stale | Self::Superseded => false,
        }
    }
}

/// The last summaries, by the digest of the messages that they replace. A conversation that returns to an
/// earlier state, by an undo or in a branch, gets its summary from here instead of from the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SummaryCache {
    summaries: VecDeque<Summary>,
}

/// Maximum number of cached summaries. Each has at most a few kilobytes.
const CACHED: usize = 32;

impl SummaryCache {
    /// Returns the summary of the messages with this digest; `None` if it is not in the cache.
    pub fn get(&self, digest: &str) -> Option<&Summary> {
        self.summaries.iter().find(|summary| summary.digest == digest)
    }

    /// Adds a summary that a model wrote, or replaces the one of the same messages. Removes the oldest summary if there
    /// are too many.
    pub fn insert(&mut self, summary: Summary) {
        self.summaries.retain(|other| other.digest != summary.digest);
        self.summaries.push_back(summary);
        while self.summaries.len() > CACHED {
            self.summaries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(text: &str, pinned: &[&str]) -> Summary {
        Summary {
            covers: 1,
            text: text.to_string(),
            pinned: pinned.iter().map(ToString::to_string).collect(),
            digest: digest_of(&[]),
            made_by: SummarySource::Model("m".to_string()),
            dropped: 0,
        }
    }

    #[test]
    fn the_digest_depends_on_role_content_and_borders() {
        let user = |text: &str| Message::new(Role::User, text);
        let texts = [
            vec![user("ab")],
            vec![user("a"), user("b")],
            vec![Message::new(Role::Assistant, "ab")],
            vec![user("aUserb")],
            vec![],
        ];
        let digests: std::collections::BTreeSet<_> = texts.iter().map(|one| digest_of(one)).collect();
        assert_eq!(digests.len(), texts.len());
        assert_eq!(digest_of(&texts[0]), digest_of(&[user("ab")]));
    }

    #[test]
    fn the_body_lists_pinned_facts_below_the_text() {
        let full = summary("They chose SQLite.\n", &["never push to main", "src/db.rs"]);
        let body = "They chose SQLite.\n\nStated in these messages, word for word:\n- never push to main\n- src/db.rs";
        assert_eq!(full.body(), body);
        assert_eq!(full.as_message(), Message::new(Role::System, body));
        assert_eq!(summary("text", &[]).body(), "text");
    }

    #[test]
    fn a_body_with_little_room_keeps_the_most_important_fact() {
        let long = "word ".repeat(400);
        let full = summary(&long, &["never push to main", "src/db.rs", "SQLite", "port 8080"]);
        let room = Size::of_tokens(32);
        let short = full.body_within(room);
        assert!(Size::of(&short) <= room, "{short}");
        assert!(short.ends_with("\n- never push to main"), "the facts get half of the room: {short}");
        assert!(short.starts_with("word") && short.contains("characters left out"), "{short}");
        assert_eq!(full.body_within(Size::of_tokens(1)), "");
        assert_eq!(full.body_within(full.size()), full.body());
    }

    #[test]
    fn the_cache_forgets_the_oldest_summary() {
        let mut cache = SummaryCache::default();
        for index in 0..CACHED + 1 {
            cache.insert(Summary { digest: index.to_string(), ..summary("text", &[]) });
        }
        assert_eq!(cache.get("0"), None);
        assert_eq!(cache.get("1").map(|found| found.digest.as_str()), Some("1"));
        cache.insert(Summary { digest: "1".to_string(), ..summary("newer", &[]) });
        assert_eq!(cache.get("1").map(|found| found.text.as_str()), Some("newer"));
        assert_eq!(cache.summaries.len(), CACHED);
    }

    #[test]
    fn a_stored_summary_keeps_its_fields() {
        let stored = serde_json::to_value(summary("text", &["a"])).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(stored["made_by"], serde_json::json!({ "model": "m" }));
        assert_eq!(serde_json::from_value::<Summary>(stored).ok(), Some(summary("text", &["a"])));
    }
}
