//! The budget of a client: the usage of all its requests, and the limits on tokens and cost.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::backend::LlmUsage;
use crate::work::research::config::LlmConfig;
use crate::work::research::error::LlmError;

/// The budget that all requests of one client share.
#[derive(Debug)]
pub struct Budget {
    warn_at: f64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    max_tokens: Option<u64>,
    max_cost: Option<f64>,
    used: LlmUsage,
    has_warned: bool,
}

impl Budget {
    pub fn new(config: &LlmConfig) -> Self {
        let (max_tokens, max_cost) = (config.max_tokens, config.max_cost);
        let state = State { max_tokens, max_cost, ..State::default() };
        Self { warn_at: config.warn_at, state: Mutex::new(state) }
    }

    /// Replaces each limit whose new value is `Some`. The usage so far still counts, and [`Self::warning`] can return
    /// one more warning.
    pub fn set_limits(&self, max_tokens: Option<u64>, max_cost: Option<f64>) {
        let mut state = self.lock();
        state.max_tokens = max_tokens.or(state.max_tokens);
        state.max_cost = max_cost.or(state.max_cost);
        state.has_warned = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn used(&self) -> LlmUsage {
        self.lock().used
    }

    /// Returns the number of tokens that are left; `None` if there is no limit.
    pub fn tokens_left(&self) -> Option<u64> {
        let state = self.lock();
        state.max_tokens.map(|limit| limit.saturating_sub(state.used.tokens))
    }

    /// Returns the cost that is left; `None` if there is no limit.
    pub fn cost_left(&self) -> Option<f64> {
        let state = self.lock();
        state.max_cost.map(|limit| (limit - state.used.cost).max(0.0))
    }

    pub fn spend(&self, usage: LlmUsage) {
        let mut state = self.lock();
        state.used = state.used.plus(usage);
    }

    /// Fails if the tokens or the cost are used up.
    pub fn check(&self) -> Result<(), LlmError> {
        if self.tokens_left() == Some(0) || self.cost_left().is_some_and(|left| left <= 0.0) {
            return Err(LlmError::BudgetExhausted { spent: self.describe() });
        }
        Ok(())
    }

    /// Returns a warning if the usage has reached the fraction `warn_at` of a limit. Returns `None` otherwise, and
    /// after the first warning until [`Self::set_limits`] is called.
    pub fn warning(&self) -> Option<String> {
        let mut state = self.lock();
        let share = |used: f64, limit: Option<f64>| limit.is_some_and(|limit| used >= limit * self.warn_at);
        let used = state.used;
        let is_near = share(used.tokens as f64, state.max_tokens.map(|limit| limit as f64))
            || share(used.cost, state.max_cost);
        if !is_near || std::mem::replace(&mut state.has_warned, true) {
            return None;
        }
        drop(state);
        Some(format!("the budget is nearly used up: {}", self.describe()))
    }

    fn describe(&self) -> String {
        let state = self.lock();
        let used = state.used;
        let mut parts = Vec::new();
        if let Some(limit) = state.max_tokens {
            parts.push(format!("{} of {limit} tokens", used.tokens));
        }
        if let Some(limit) = state.max_cost {
            parts.push(format!("cost {:.4} of {limit:.4}", used.cost));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_limits_count_what_was_used() {
        let budget = Budget::new(&LlmConfig { max_tokens: Some(100), ..LlmConfig::default() });
        budget.spend(LlmUsage::tokens(100));
        assert!(budget.check().is_err());
        budget.set_limits(Some(150), None);
        assert_eq!((budget.check(), budget.tokens_left()), (Ok(()), Some(50)));
    }

    #[test]
    fn the_limit_is_over_all_requests_and_warned_about_once() {
        let budget = Budget::new(&LlmConfig { max_tokens: Some(100), ..LlmConfig::default() });
        assert_eq!((budget.check(), budget.warning(), budget.tokens_left()), (Ok(()), None, Some(100)));
        budget.spend(LlmUsage::tokens(79));
        assert_eq!(budget.warning(), None);
        budget.spend(LlmUsage::tokens(1));
        assert!(budget.warning().is_some_and(|warning| warning.contains("80 of 100 tokens")));
        assert_eq!((budget.warning(), budget.check()), (None, Ok(())));
        budget.spend(LlmUsage::tokens(50));
        assert_eq!(budget.tokens_left(), Some(0));
        assert!(matches!(budget.check(), Err(LlmError::BudgetExhausted { .. })));
    }

    #[test]
    fn money_is_limited_too_and_without_limits_nothing_is() {
        let budget = Budget::new(&LlmConfig { max_cost: Some(0.5), ..LlmConfig::default() });
        budget.spend(LlmUsage { tokens: 9, cost: 0.6 });
        assert!(budget.check().is_err());
        let free = Budget::new(&LlmConfig::default());
        free.spend(LlmUsage { tokens: u64::MAX, cost: 1e9 });
        free.spend(LlmUsage::tokens(1));
        assert_eq!((free.check(), free.warning(), free.tokens_left()), (Ok(()), None, None));
    }
}
