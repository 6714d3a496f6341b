//! A conversation: all of its messages, the summary of the older ones, and the prompts made of them.

use std::sync::Arc;
use std::time::Duration;

use super::circuit_breaker::CircuitBreaker;
use super::compaction::{Applied, CompactionPlan, PlanInput};
use super::config::HistoryConfig;
use super::message::{Message, Role};
use super::message_sizes::Sizes;
use super::model_limits::limits_of;
use super::pins::Facts;
use super::prompt::{PromptInput, PromptResult, build};
use super::prompt_text::{BLANK_LINE, cut, escaped_size};
use super::summary::{
    PINNED, Summarizer, Summary, SummaryCache, SummaryError, SummarySource, digest_of, note,
};
use super::tokens::Size;

/// Manages the history of a conversation with a model that stores no history, such as the Gemini CLI without
/// sessions.
///
/// The manager stores every message. A summary replaces the oldest messages only in prompts. The manager does
/// no I/O and reads no clock.
#[derive(Clone)]
pub struct GeminiHistoryManager {
    messages: Vec<Message>,
    config: HistoryConfig,
    sizes: Sizes,
    summary: Option<Summary>,
    cache: SummaryCache,
    breaker: CircuitBreaker,
    now: Duration,
    /// The digest of the plan that `maybe_compress` returned and that the caller has not applied yet.
    pending: Option<String>,
    summarizer: Option<Arc<dyn Summarizer>>,
}

/// The messages that compaction removed from prompts, and the summary that replaces them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped<'a> {
    pub messages: &'a [Message],
    /// The estimated number of tokens of these messages.
    pub tokens: usize,
    pub summary: &'a Summary,
    /// The estimated number of tokens of the summary, including the facts that guard copied word for word from the
    /// messages.
    pub summary_tokens: usize,
    /// Constraints, paths, names and numbers in the messages that are neither in the summary's text nor among the
    /// facts that guard copied from the messages.
    pub lost_facts: Vec<String>,
}

/// What the caller should do after the model did not answer a prompt in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutAdvice {
    /// The prompt was small, so its size did not cause the time-out.
    SizeIsNotTheReason,
    /// Compact the history, and try once more with a prompt of at most this many tokens
    /// ([`GeminiHistoryManager::build_prompt_within`]).
    RetryWithin(usize),
    /// The second attempt failed as well. Offer the user to clear the history.
    OfferToClear,
}

impl GeminiHistoryManager {
    pub fn new(config: HistoryConfig) -> Self {
        Self::from_parts(config, Vec::new(), None)
    }

    /// Continues a stored conversation. Ignores the summary if its digest shows that it was not made from these
    /// messages.
    pub fn from_parts(config: HistoryConfig, messages: Vec<Message>, summary: Option<Summary>) -> Self {
        let fits = |summary: &Summary| {
            messages.get(..summary.covers).is_some_and(|covered| digest_of(covered) == summary.digest)
        };
        let summary = summary.filter(fits);
        let sizes = Sizes::of(&messages);
        Self {
            messages,
            config,
            sizes,
            summary,
            cache: SummaryCache::default(),
            breaker: CircuitBreaker::default(),
            now: Duration::ZERO,
            pending: None,
            summarizer: None,
        }
    }

    /// Sets the summarizer that [`Self::summarize_history`] asks for summaries.
    #[must_use]
    pub fn with_summarizer(mut self, summarizer: Arc<dyn Summarizer>) -> Self {
        self.summarizer = Some(summarizer);
        self
    }

    /// Continues with the cached summaries and the circuit breaker that an earlier process stored.
    #[must_use]
    pub fn with_state(mut self, cache: SummaryCache, breaker: CircuitBreaker) -> Self {
        self.cache = cache;
        self.breaker = breaker;
        self
    }

    /// Sets the current time, as a duration since a fixed point such as the Unix epoch. The time decides when guard may
    /// again ask a summary model that has failed repeatedly. If the caller never sets the time, guard never asks such a
    /// model again.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    pub fn add_message(&mut self, role: Role, content: impl Into<String>) {
        let message = Message::new(role, content);
        self.sizes.push(&message);
        self.messages.push(message);
    }

    pub fn add_user(&mut self, content: impl Into<String>) {
        self.add_message(Role::User, content);
    }

    pub fn add_assistant(&mut self, content: impl Into<String>) {
        self.add_message(Role::Assistant, content);
    }

    /// Deletes all messages and their summary. Keeps the cached summaries and the count of the model's
    /// failures.
    pub fn clear_history(&mut self) {
        self.messages.clear();
        self.sizes = Sizes::default();
        self.summary = None;
        self.pending = None;
    }

    /// Returns the number of messages in the conversation, including summarised ones.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// Returns the estimated number of tokens of all messages, including summarised ones.
    pub fn estimated_total_tokens(&self) -> usize {
        self.sizes.content(0..self.messages.len()).tokens()
    }

    /// Returns all messages of the conversation, oldest first, including summarised ones.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn config(&self) -> &HistoryConfig {
        &self.config
    }

    /// Returns the summary that replaces the oldest messages in prompts; `None` if there is none.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Returns the summaries of earlier states of the conversation. A caller that stores them can pass them to
    /// [`Self::with_state`] later.
    pub fn cache(&self) -> &SummaryCache {
        &self.cache
    }

    /// Returns the circuit breaker with the failures of the summary model. A caller that stores it can pass it to
    /// [`Self::with_state`] later.
    pub fn breaker(&self) -> &CircuitBreaker {
        &self.breaker
    }

    /// Returns the conversation as prompts contain it: one system message with the summary, then the messages
    /// that the summary does not cover.
    pub fn compacted_messages(&self) -> Vec<Message> {
        let covered = self.summary.as_ref().map_or(0, |summary| summary.covers);
        let summary = self.summary.iter().map(Summary::as_message);
        summary.chain(self.messages[covered..].iter().cloned()).collect()
    }

    /// Builds the prompt for a new message. The result is never larger than the configured maximum.
    ///
    /// The new message may already be the last one of the history; the prompt does not repeat it then. If there
    /// are no other messages, the prompt is the new message alone.
    pub fn build_prompt(&self, new_user_message: &str) -> PromptResult {
        self.build_prompt_within(new_user_message, self.config.max_prompt_tokens)
    }

    /// Builds a prompt of at most `max_tokens`, for example a smaller one after a time-out. The result is never larger
    /// than the configured maximum.
    pub fn build_prompt_within(&self, new_user_message: &str, max_tokens: usize) -> PromptResult {
        let is_added = self
            .messages
            .last()
            .is_some_and(|last| last.role == Role::User && last.content == new_user_message);
        let history = &self.messages[..self.messages.len() - usize::from(is_added)];
        build(&PromptInput {
            history,
            sizes: &self.sizes,
            summary: self.summary.as_ref(),
            current: new_user_message,
            recent_message_count: self.config.recent_message_count,
            budget: max_tokens.min(self.config.prompt_budget()),
            level: self.plan_input().level(),
            limits: limits_of(&self.config.model),
        })
    }

    fn plan_input(&self) -> PlanInput<'_> {
        PlanInput {
            messages: &self.messages,
            sizes: &self.sizes,
            summary: self.summary.as_ref(),
            config: &self.config,
        }
    }

    /// Returns the plan for the compaction that is due now; `None` if none is due. Changes nothing, unlike
    /// [`Self::maybe_compress`].
    pub fn plan_compaction(&self) -> Option<CompactionPlan> {
        self.plan_input().plan()
    }

    /// Returns the plan for a compaction that the user asks for; `None` if there is nothing to summarise. The history
    /// need not be too large, and the circuit breaker does not matter. The caller asks the model and passes its answer
    /// to [`Self::apply_summary`].
    pub fn plan_requested_compaction(&self) -> Option<CompactionPlan> {
        self.plan_input().plan_on_request()
    }

    /// Compacts the history if it is too large. Uses a cached summary if there is one; if there is none and the model
    /// has failed repeatedly, drops the oldest messages from prompts. In both cases, changes [`Self::summary`] at once
    /// and returns `None`. Otherwise returns a plan: the caller asks the model and passes its answer to
    /// [`Self::apply_summary`]. Until then, further calls return `None`.
    pub fn maybe_compress(&mut self) -> Option<CompactionPlan> {
        if self.pending.is_some() {
            return None;
        }
        let plan = self.plan_compaction()?;
        if let Some(cached) = self.cache.get(&plan.request.digest) {
            self.summary = Some(cached.clone());
            return None;
        }
        if !self.breaker.allows(self.now) {
            self.truncate(&plan);
            return None;
        }
        self.pending = Some(plan.request.digest.clone());
        Some(plan)
    }

    /// Uses the answer of the summary model, or rejects it if the plan no longer fits the conversation. An answer that
    /// is empty, or not smaller than what it replaces, counts as a failure of the model. After two failures in a row,
    /// or without a summarizer, drops the messages from prompts instead, unless the prompts have room for them
    /// ([`CompactionPlan::is_due`]).
    pub fn apply_summary(&mut self, plan: &CompactionPlan, answer: Result<String, SummaryError>) -> Applied {
        if self.pending.as_ref() == Some(&plan.request.digest) {
            self.pending = None;
        }
        if let Err(error) = self.check_plan(plan) {
            return Applied::Rejected(error);
        }
        match answer.and_then(|text| self.new_summary(plan, &text)) {
            Ok(summary) => {
                self.breaker.succeeded();
                self.cache.insert(summary.clone());
                self.summary = Some(summary.clone());
                Applied::Accepted(summary)
            }
            Err(error) if !plan.is_due => Applied::Rejected(error),
            Err(error) => {
                let is_last_straw = error.is_failure_of_model() && self.breaker.failed(self.now);
                if is_last_straw || error == SummaryError::NoSummarizer {
                    Applied::Truncated(self.truncate(plan))
                } else {
                    Applied::Rejected(error)
                }
            }
        }
    }

    /// Fails if the plan no longer fits the conversation, because messages were deleted or a newer summary
    /// covers them.
    fn check_plan(&self, plan: &CompactionPlan) -> Result<(), SummaryError> {
        let covered = self.messages.get(..plan.request.covers).ok_or(SummaryError::Stale)?;
        let is_consistent = plan.range.start <= plan.range.end && plan.range.end == plan.request.covers;
        if !is_consistent || digest_of(covered) != plan.request.digest {
            return Err(SummaryError::Stale);
        }
        let is_newer = |summary: &Summary| {
            summary.covers > covered.len() || (summary.covers == covered.len() && summary.dropped == 0)
        };
        if self.summary.as_ref().is_some_and(is_newer) { Err(SummaryError::Superseded) } else { Ok(()) }
    }

    /// Checks the text that the model wrote. Returns a summary with this text and the pinned facts, which guard
    /// copies word for word from the messages.
    fn new_summary(&self, plan: &CompactionPlan, text: &str) -> Result<Summary, SummaryError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SummaryError::Empty);
        }
        let replaced = self.replaced_by(plan);
        let size = escaped_size(text);
        if size >= replaced {
            return Err(SummaryError::TooLarge { summary: size.tokens(), replaced: replaced.tokens() });
        }
        let text = cut(text, Size::of_tokens(self.config.max_summary_tokens));
        let made_by = SummarySource::Model(plan.request.model.clone());
        Ok(self.with_facts(plan, text, made_by, 0))
    }

    /// Returns the size of what a plan removes from prompts: its messages and, if it does not begin at the
    /// first message, the earlier summary.
    fn replaced_by(&self, plan: &CompactionPlan) -> Size {
        let earlier = self.summary.as_ref().filter(|_| plan.range.start > 0);
        self.sizes.content(plan.range.clone()).plus(earlier.map_or(Size::default(), Summary::size))
    }

    fn with_facts(
        &self,
        plan: &CompactionPlan,
        text: String,
        made_by: SummarySource,
        dropped: usize,
    ) -> Summary {
        // The summary with its facts must not be larger than the messages that it replaces.
        let room = self.replaced_by(plan).minus(Size::of(&text)).divided_by(2);
        let room = room.min(Size::of_tokens(self.config.max_pinned_tokens)).minus(Size::of(PINNED));
        let covers = plan.request.covers;
        let pinned = Facts::of(&self.messages[..covers]).chosen(&text, room);
        Summary { covers, text, pinned, digest: plan.request.digest.clone(), made_by, dropped }
    }

    /// Drops the messages of a plan from prompts. The new summary consists of the earlier summary, a note about the
    /// dropped messages, and the pinned facts (constraints, paths, names and numbers of these messages).
    fn truncate(&mut self, plan: &CompactionPlan) -> Summary {
        let described = self.summary.as_ref().map_or(0, Summary::described);
        let earlier = self.summary.as_ref().map_or("", Summary::description);
        let dropped = plan.request.covers.saturating_sub(described);
        let text = format!("{earlier}{BLANK_LINE}{}", note(dropped)).trim_start().to_string();
        let summary = self.with_facts(plan, text, SummarySource::Truncation, dropped);
        self.summary = Some(summary.clone());
        summary
    }

    /// Drops everything but the recent messages from prompts at once, without asking a model. Returns the new
    /// summary; `None` if there is nothing to drop.
    pub fn truncate_history(&mut self) -> Option<Summary> {
        let plan = self.plan_input().plan_all()?;
        Some(self.truncate(&plan))
    }

    /// Summarises everything but the recent messages now, whatever their size, and returns the text of the
    /// summary. If the model fails for the second time in a row, drops the messages from prompts instead: the text is
    /// then the earlier summary, if there is one, and a note that says how many messages were dropped, and
    /// [`Summary::made_by`] is [`SummarySource::Truncation`].
    pub async fn summarize_history(&mut self) -> Result<String, SummaryError> {
        let plan = self.plan_input().plan_all().ok_or(SummaryError::NothingToSummarize)?;
        let summarizer = self.summarizer.clone().ok_or(SummaryError::NoSummarizer)?;
        let answer = summarizer.summarize(&plan.request).await;
        match self.apply_summary(&plan, answer) {
            Applied::Accepted(summary) | Applied::Truncated(summary) => Ok(summary.text),
            Applied::Rejected(error) => Err(error),
        }
    }

    /// Returns the messages that compaction removed from prompts; `None` if there is no summary.
    pub fn dropped(&self) -> Option<Dropped<'_>> {
        let summary = self.summary.as_ref()?;
        let messages = self.messages.get(..summary.covers)?;
        let body = summary.body();
        Some(Dropped {
            messages,
            tokens: self.sizes.content(0..messages.len()).tokens(),
            summary,
            summary_tokens: summary.estimated_tokens(),
            lost_facts: Facts::of(messages).missing_in(&[&body]),
        })
    }

    /// Returns what to do after this prompt timed out. `attempts` is how often the model was asked, including
    /// this time.
    pub fn after_timeout(&self, prompt: &PromptResult, attempts: u32) -> TimeoutAdvice {
        let small = self.config.summary_threshold.min(self.config.prompt_budget());
        if attempts > 1 {
            TimeoutAdvice::OfferToClear
        } else if prompt.estimated_tokens > small {
            TimeoutAdvice::RetryWithin(small)
        } else {
            TimeoutAdvice::SizeIsNotTheReason
        }
    }
}
