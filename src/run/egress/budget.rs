//! The model budget of a run: requests, tokens and cost.
//!
//! Tokens are known only after a response, so an exhausted budget refuses the next request and lets the current ones
//! finish. If cost is limited, a model without a known price is refused.

use std::cell::Cell;

use super::token_usage::Tokens;
use crate::judge::policy::{Budget as Bounds, Config, Price};

/// The model usage of a run so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Model requests that the budget allowed, including those that the gateway then failed to forward.
    pub requests: u64,
    /// Tokens that the requests used, as the API reported or guard estimated them.
    pub tokens: Tokens,
    /// Cost in millionths of the currency in which the prices are given.
    pub cost_micros: u64,
    /// Requests without complete usage data from the API. guard estimates their tokens from the lengths of the request
    /// and of the response.
    pub estimated: u64,
    /// Requests refused because a limit was reached, or because the model has no price although the cost is limited.
    pub refused: u64,
}

/// The model limits of a run, the prices of models, and the usage so far.
#[derive(Debug, Default)]
pub struct Budget {
    bounds: Bounds,
    prices: Config,
    spent: Cell<Spent>,
}

impl Budget {
    pub fn new(bounds: Bounds, prices: Config) -> Self {
        Self { bounds, prices, spent: Cell::default() }
    }

    pub fn spent(&self) -> Spent {
        self.spent.get()
    }

    /// Counts a request if no limit is reached. Otherwise counts a refusal and returns its reason, as a sentence. If
    /// the cost is limited, also refuses a model without a known price.
    pub(super) fn admit(&self, model: Option<&str>) -> Result<(), String> {
        let mut spent = self.spent.get();
        let over = |limit: Option<u64>, used: u64| limit.filter(|limit| used >= *limit);
        let tokens = spent.tokens.input.saturating_add(spent.tokens.output);
        let problem = if let Some(limit) = over(self.bounds.max_requests, spent.requests) {
            Some(format!("The budget of {limit} model requests is used up."))
        } else if let Some(limit) = over(self.bounds.max_tokens, tokens) {
            Some(format!("The budget of {limit} tokens is used up ({tokens} were used)."))
        } else if let Some(limit) = over(self.bounds.max_cost_micros, spent.cost_micros) {
            Some(format!("The cost budget of {} is used up.", money(limit)))
        } else if self.bounds.max_cost_micros.is_some() && self.price(model).is_none() {
            let model = model.unwrap_or("this model");
            Some(format!(
                "The cost of this run is limited, but [prices] in config.toml has no price for {model}."
            ))
        } else {
            None
        };
        match &problem {
            Some(_) => spent.refused += 1,
            None => spent.requests += 1,
        }
        self.spent.set(spent);
        problem.map_or(Ok(()), Err)
    }

    /// Adds the tokens that one request used, and their cost if the model has a known price.
    pub(super) fn add_usage(&self, model: Option<&str>, tokens: Tokens, is_estimate: bool) {
        let mut spent = self.spent.get();
        spent.tokens.input = spent.tokens.input.saturating_add(tokens.input);
        spent.tokens.output = spent.tokens.output.saturating_add(tokens.output);
        spent.tokens.cached = spent.tokens.cached.saturating_add(tokens.cached);
        spent.estimated += u64::from(is_estimate);
        if let Some(price) = self.price(model) {
            spent.cost_micros = spent.cost_micros.saturating_add(cost_micros(price, tokens));
        }
        self.spent.set(spent);
    }

    fn price(&self, model: Option<&str>) -> Option<Price> {
        self.prices.price(model?)
    }
}

/// Returns the cost of the tokens, in millionths of the currency, rounded up. Prices are per million tokens, so the
/// number of tokens times the price is the cost in millionths.
fn cost_micros(price: Price, tokens: Tokens) -> u64 {
    let cached = tokens.cached.min(tokens.input);
    let cost = (tokens.input - cached) as f64 * price.input
        + cached as f64 * price.cached.unwrap_or(price.input)
        + tokens.output as f64 * price.output;
    cost.ceil() as u64
}

fn money(micros: u64) -> String {
    format!("{}.{:02}", micros / 1_000_000, micros % 1_000_000 / 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input: u64, output: u64, cached: u64) -> Tokens {
        Tokens { input, output, cached }
    }

    #[test]
    fn reached_limits_refuse_requests() {
        let bounds = Bounds { max_tokens: Some(100), max_requests: Some(3), max_cost_micros: None };
        let budget = Budget::new(bounds, Config::default());
        assert_eq!(budget.admit(None), Ok(()));
        budget.add_usage(None, tokens(60, 39, 0), false);
        assert_eq!(budget.admit(None), Ok(()));
        budget.add_usage(None, tokens(1, 0, 0), false);
        assert!(budget.admit(None).is_err_and(|why| why.contains("100 tokens")));
        assert_eq!((budget.spent().requests, budget.spent().refused), (2, 1));
    }

    #[test]
    fn money_needs_a_price() {
        let config =
            Config::parse("[prices.m]\ninput = 1.0\noutput = 10.0\ncached = 0.1\n").unwrap_or_default();
        let budget = Budget::new(Bounds { max_cost_micros: Some(2_000_000), ..Bounds::default() }, config);
        assert!(budget.admit(Some("other")).is_err_and(|why| why.contains("no price for other")));
        assert_eq!(budget.admit(Some("m-1")), Ok(()));
        budget.add_usage(Some("m-1"), tokens(1_000_000, 90_000, 500_000), false);
        assert_eq!(budget.spent().cost_micros, 500_000 + 50_000 + 900_000);
        assert_eq!(budget.admit(Some("m-1")), Ok(()));
        budget.add_usage(Some("m-1"), tokens(0, 60_000, 0), false);
        assert!(budget.admit(Some("m-1")).is_err_and(|why| why.contains("2.00")));
    }
}
