//! A conversation: all of its messages, the summary of the older ones, and the prompts made of them.

use std::sync::Arc;
use std::time::Duration;

use super::circuit_breaker::CircuitBreaker;
use super::compaction::{Applied, CompactionPlan, PlanInput};
use super::config::HistoryConfig;
use super::message::{Message, Role, Sizes};
use super::model_limits::limits_of;
use super::pins::Facts;
use super::prompt::{PromptInput, PromptResult, build};
use super::prompt_text::{BLANK_LINE, cut, escaped_size};
use super::summary::{
    PINNED, Summarizer, Summary, SummaryCache, SummaryError, SummarySource, digest_of, note,
};
use super::tokens::Size;

/// Manages the history of a conversation with a model that keeps none, such as the Gemini CLI without sessions.
///
/// It keeps every message. A summary replaces the oldest ones only in prompts. It does no I/O and reads no clock.
#[derive(Clone)]
pub struct GeminiHistoryManager {
    messages: Vec<Message>,
    config: HistoryConfig,
    sizes: Sizes,
    summary: Option<Summary>,
    cache: SummaryCache,
    breaker: CircuitBreaker,
    now: Duration,
    /// The digest of the plan that `maybe_compress` returned and that is not applied yet.
    pending: Option<String>,
    summarizer: Option<Arc<dyn Summarizer>>,
}

/// What compaction took out of the prompts, and what stands there instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped<'a> {
    /// The messages that prompts no longer contain.
    pub messages: &'a [Message],
    /// Their estimated tokens.
    pub tokens: usize,
    /// What replaces them.
    pub summary: &'a Summary,
    /// Estimated tokens of the summary with its pinned facts.
    pub summary_tokens: usize,
    /// Constraints, paths, names and numbers of the messages that are neither in the summary nor pinned.
    pub lost_facts: Vec<String>,
}

/// What to do after the model did not answer a prompt in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutAdvice {
    /// The prompt was small, so its size was not the reason.
    SizeIsNotTheReason,
    /// Compact the history and try once more with [`GeminiHistoryManager::build_prompt_within`] this many tokens.
    RetryWithin(usize),
    /// A small prompt failed as well. Offer the user to clear the history.
    OfferToClear,
}

impl GeminiHistoryManager {
    /// An empty conversation.
    pub fn new(config: HistoryConfig) -> Self {
        Self::from_parts(config, Vec::new(), None)
    }

    /// Continues a stored conversation. A summary that does not belong to these messages, by its digest, is ignored.
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

    /// Sets what [`Self::summarize_history`] asks.
    #[must_use]
    pub fn with_summarizer(mut self, summarizer: Arc<dyn Summarizer>) -> Self {
        self.summarizer = Some(summarizer);
        self
    }

    /// Continues with the summaries and the failures of the model that an earlier process stored.
    #[must_use]
    pub fn with_state(mut self, cache: SummaryCache, breaker: CircuitBreaker) -> Self {
        self.cache = cache;
        self.breaker = breaker;
        self
    }

    /// Tells the time, as a duration since a fixed point such as the Unix epoch. It decides when a summary model that
    /// failed is asked again. Without it such a model is never asked again.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Adds a message.
    pub fn add_message(&mut self, role: Role, content: impl Into<String>) {
        let message = Message::new(role, content);
        self.sizes.push(&message);
        self.messages.push(message);
    }

    /// Adds a message of the user.
    pub fn add_user(&mut self, content: impl Into<String>) {
        self.add_message(Role::User, content);
    }

    /// Adds an answer of the model.
    pub fn add_assistant(&mut self, content: impl Into<String>) {
        self.add_message(Role::Assistant, content);
    }

    /// Forgets all messages and their summary. Cached summaries and failures of the model stay.
    pub fn clear_history(&mut self) {
        self.messages.clear();
        self.sizes = Sizes::default();
        self.summary = None;
        self.pending = None;
    }

    /// How many messages the conversation has, summarised ones included.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// The estimated tokens of all messages, summarised ones included.
    pub fn estimated_total_tokens(&self) -> usize {
        self.sizes.content(0..self.messages.len()).tokens()
    }

    /// All messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The settings.
    pub fn config(&self) -> &HistoryConfig {
        &self.config
    }

    /// The summary in use.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// The summaries of earlier states of the conversation, to be stored with it.
    pub fn cache(&self) -> &SummaryCache {
        &self.cache
    }

    /// The failures of the summary model, to be stored with the conversation.
    pub fn breaker(&self) -> &CircuitBreaker {
        &self.breaker
    }

    /// The conversation as prompts show it: one system message instead of all summarised ones, then the others.
    pub fn compacted_messages(&self) -> Vec<Message> {
        let covered = self.summary.as_ref().map_or(0, |summary| summary.covers);
        let summary = self.summary.iter().map(Summary::as_message);
        summary.chain(self.messages[covered..].iter().cloned()).collect()
    }

    /// Builds the prompt for a new message. The result is never larger than the configured maximum.
    ///
    /// The new message may already be the last one of the history; it is not repeated then. Without other messages the
    /// prompt is the new message alone.
    pub fn build_prompt(&self, new_user_message: &str) -> PromptResult {
        self.build_prompt_within(new_user_message, self.config.max_prompt_tokens)
    }

    /// Builds a prompt of at most this size, for example a smaller one after a time-out.
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

    /// What should be summarised now, if anything. Changes nothing; see [`Self::maybe_compress`].
    pub fn plan_compaction(&self) -> Option<CompactionPlan> {
        self.plan_input().plan()
    }

    /// Compacts the history if it is too large. What needs no model is done at once: a cached summary is used, and while
    /// the model is failing the oldest messages are dropped; [`Self::summary`] is a new one then. Otherwise returns what
    /// to ask the model. The caller asks, and hands the answer to [`Self::apply_summary`]. Until then further calls
    /// return nothing.
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

    /// Uses the answer of the summary model. An answer that is empty, or not smaller than what it replaces, is a failure
    /// of the model. After two failures in a row, or without a summarizer, the messages are dropped instead.
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

    /// Whether the plan still describes the conversation: messages may have been cleared, or summarised further.
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

    /// Checks the text of a model and adds the pinned facts.
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

    /// The size of what a plan takes out of prompts: the messages, and the earlier summary that describes those before.
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
        // The facts must not make the prompt larger than the messages would.
        let room = self.replaced_by(plan).minus(Size::of(&text)).divided_by(2);
        let room = room.min(Size::of_tokens(self.config.max_pinned_tokens)).minus(Size::of(PINNED));
        let covers = plan.request.covers;
        let pinned = Facts::of(&self.messages[..covers]).chosen(&text, room);
        Summary { covers, text, pinned, digest: plan.request.digest.clone(), made_by, dropped }
    }

    /// Drops the messages of a plan: keeps the earlier summary, a note about what is missing, and the pinned facts.
    fn truncate(&mut self, plan: &CompactionPlan) -> Summary {
        let described = self.summary.as_ref().map_or(0, Summary::described);
        let earlier = self.summary.as_ref().map_or("", Summary::description);
        let dropped = plan.request.covers.saturating_sub(described);
        let text = format!("{earlier}{BLANK_LINE}{}", note(dropped)).trim_start().to_string();
        let summary = self.with_facts(plan, text, SummarySource::Truncation, dropped);
        self.summary = Some(summary.clone());
        summary
    }

    /// Drops everything but the recent messages at once, without asking a model. Returns the new summary, or nothing if
    /// there is nothing to drop.
    pub fn truncate_history(&mut self) -> Option<Summary> {
        let plan = self.plan_input().plan_all()?;
        Some(self.truncate(&plan))
    }

    /// Summarises everything but the recent messages now, whatever their size, and returns the text of the summary. If the
    /// model fails for the second time, the text only says what was dropped; [`Summary::made_by`] tells.
    pub async fn summarize_history(&mut self) -> Result<String, SummaryError> {
        let plan = self.plan_input().plan_all().ok_or(SummaryError::NothingToSummarize)?;
        let summarizer = self.summarizer.clone().ok_or(SummaryError::NoSummarizer)?;
        let answer = summarizer.summarize(&plan.request).await;
        match self.apply_summary(&plan, answer) {
            Applied::Accepted(summary) | Applied::Truncated(summary) => Ok(summary.text),
            Applied::Rejected(error) => Err(error),
        }
    }

    /// What compaction took out of the prompts. Nothing if there is no summary.
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

    /// What to do after a time-out of this prompt. `attempts` counts how often the model was asked, this time included.
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
