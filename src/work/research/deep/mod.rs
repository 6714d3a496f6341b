//! Deep research: decompose a query, research the parts in parallel, and combine the findings into one answer.

mod prompts;
mod run;
mod sub_queries;

use std::sync::Arc;
use std::time::Instant;

use super::agent::{Agent, AgentContext, UpdateStream, update_stream};
use super::config::ResearchConfig;
use super::control::RunControl;
use super::journal::{Finished, Journal};

/// Decomposes a query into sub-queries, runs them in parallel, and synthesizes one answer from their answers.
#[derive(Debug, Clone, Default)]
pub struct DeepResearchAgent {
    config: ResearchConfig,
    journal: Option<Arc<Journal>>,
    control: RunControl,
}

impl DeepResearchAgent {
    /// Creates an agent with these settings, without a journal.
    pub fn new(config: ResearchConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Makes the agent record its progress in this journal, and continue where the journal ends.
    #[must_use]
    pub fn with_journal(mut self, journal: Arc<Journal>) -> Self {
        self.journal = Some(journal);
        self
    }

    #[must_use]
    pub fn with_control(mut self, control: RunControl) -> Self {
        self.control = control;
        self
    }
}

impl Agent for DeepResearchAgent {
    fn name(&self) -> &str {
        "deep_research"
    }

    fn description(&self) -> &str {
        "Decomposes a query into sub-queries, researches them in parallel, and synthesizes an answer with sources."
    }

    fn execute(&self, query: &str, context: AgentContext) -> UpdateStream {
        let shared = run::Shared {
            query: query.to_string(),
            config: self.config.clone(),
            llm: context.llm,
            journal: self.journal.clone(),
            control: self.control.clone(),
            began: Instant::now(),
        };
        update_stream(move |updates| run::run(Arc::new(shared), updates))
    }
}

/// A sub-query that has ended, with an answer or with the error of its request.
#[derive(Debug, Clone, PartialEq)]
struct Finding {
    id: usize,
    query: String,
    outcome: Result<Finished, super::error::LlmError>,
}

#[cfg(test)]
mod tests;
