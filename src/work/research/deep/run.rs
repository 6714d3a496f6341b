//! One run of deep research: the order of its phases, and the requests of its sub-queries.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::{Finding, prompts, sub_queries};
use crate::run::outcome::ErrorKind;
use crate::work::research::agent::{CHANNEL_CAPACITY, UpdateSender};
use crate::work::research::config::ResearchConfig;
use crate::work::research::control::RunControl;
use crate::work::research::error::{AgentError, LlmError};
use crate::work::research::hostile::order_in;
use crate::work::research::journal::{Finished, Journal, Planned, Progress};
use crate::work::research::llm::{LlmClient, LlmRequest, LlmResponse, LlmUsage};
use crate::work::research::sources::{Ledger, check_citations};
use crate::work::research::update::{AgentUpdate, FinalResult, ResultMetadata, RoundPlanned};

/// The maximum number of bytes of an answer that are recorded and reported.
const LONGEST_ANSWER: usize = 1 << 20;

/// The data that all phases and tasks of a run share.
pub(super) struct Shared {
    pub(super) query: String,
    pub(super) config: ResearchConfig,
    pub(super) llm: Arc<LlmClient>,
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) control: RunControl,
    pub(super) began: Instant,
}

/// Runs all phases until there is an answer, an error occurs, or the run is cancelled.
pub(super) async fn run(shared: Arc<Shared>, updates: UpdateSender) -> Result<(), AgentError> {
    let control = shared.control.clone();
    tokio::select! {
        biased;
        () = control.cancelled() => Err(AgentError::Cancelled),
        result = Run { shared, updates }.phases() => result,
    }
}

struct Run {
    shared: Arc<Shared>,
    updates: UpdateSender,
}

impl Run {
    async fn phases(self) -> Result<(), AgentError> {
        let shared = &self.shared;
        shared.config.check()?;
        if shared.query.trim().is_empty() {
            return Err(AgentError::InvalidInput { problem: "the query is empty".to_string() });
        }
        let used_before = shared.llm.budget().used();
        // If an earlier process began this run, the tokens and the cost that it used count towards the same budget.
        shared.llm.budget().spend(shared.progress().used);
        self.updates.send(AgentUpdate::decomposition_started()).await;
        let first = self.plan_first().await?;
        self.updates.send(AgentUpdate::decomposition_complete(first.sub_queries.clone())).await;
        self.send_notes(&first.notes).await;
        let mut findings = self.run_round(&first).await?;
        require_one_success(&findings)?;
        for round in 2..=shared.config.depth {
            let Some(planned) = self.plan_round(round, &findings).await? else { break };
            let (first_id, sub_queries) = (planned.first_id, planned.sub_queries.clone());
            self.updates
                .send(AgentUpdate::round_planned(RoundPlanned { round, first_id, sub_queries }))
                .await;
            self.send_notes(&planned.notes).await;
            let new = self.run_round(&planned).await?;
            let adds_something = adds_something(&findings, &new);
            findings.extend(new);
            if !adds_something {
                self.note(format!("round {round} found nothing new, so guard starts no further round")).await;
                break;
            }
        }
        self.synthesize(&findings, used_before).await
    }

    async fn note(&self, note: impl Into<String>) {
        self.updates.send(AgentUpdate::research_note(note)).await;
    }

    async fn send_notes(&self, notes: &[String]) {
        for note in notes {
            self.note(note).await;
        }
    }

    /// Returns the sub-queries of the first round, from the journal or from the model. Asks the model a second time if
    /// its answer contains no list of sub-queries.
    async fn plan_first(&self) -> Result<Planned, AgentError> {
        let shared = &self.shared;
        if let Some(known) = shared.progress().rounds.first() {
            return Ok(known.clone());
        }
        let most = shared.config.max_queries;
        let instruction = prompts::decompose_instruction(most);
        let request = LlmRequest::new(shared.query.clone()).with_system_instruction(&instruction);
        let answer = self.ask("decomposition", request).await?;
        let queries = match sub_queries::parse(&answer.text) {
            Ok(queries) => queries,
            Err(problem) => {
                tracing::info!(
                    problem,
                    "guard cannot parse the model's list of sub-queries, and asks for a repair"
                );
                let prompt = format!("{}\n\n{}", shared.query, prompts::repair(&answer.text, &problem));
                let request = LlmRequest::new(prompt).with_system_instruction(&instruction);
                let answer = self.ask("decomposition", request).await?;
                sub_queries::parse(&answer.text).map_err(|problem| AgentError::Decomposition { problem })?
            }
        };
        let mut prepared = sub_queries::prepare(queries, &[], most);
        if prepared.queries.is_empty() {
            prepared.queries.push(shared.query.clone());
            prepared
                .notes
                .push("the model proposed no sub-queries; guard runs the query as one sub-query".to_string());
        }
        self.record_plan(Planned {
            round: 1,
            first_id: 0,
            sub_queries: prepared.queries,
            notes: prepared.notes,
        })
    }

    /// Returns the sub-queries of a further round, from the journal or from the model; `None` if there are none. If the
    /// request to the model fails or its answer contains no list, sends a note and returns `None`, so that the run
    /// continues with its findings instead of losing them.
    async fn plan_round(&self, round: usize, findings: &[Finding]) -> Result<Option<Planned>, AgentError> {
        let shared = &self.shared;
        if let Some(known) = shared.progress().rounds.iter().find(|known| known.round == round) {
            return Ok(Some(known.clone()).filter(|known| !known.sub_queries.is_empty()));
        }
        if shared.progress().answer.is_some() {
            return Ok(None);
        }
        let most = shared.config.max_queries;
        let prompt = prompts::findings_text(&shared.query, findings, shared.config.max_finding_bytes);
        let request = LlmRequest::new(prompt).with_system_instruction(prompts::follow_up_instruction(most));
        let proposed = match self.ask("follow-up", request).await {
            Ok(answer) => sub_queries::parse(&answer.text),
            Err(AgentError::Llm { source, .. }) => Err(source.to_string()),
            Err(error) => return Err(error),
        };
        let proposed = match proposed {
            Ok(proposed) => proposed,
            Err(problem) => {
                self.note(format!("guard did not start round {round}: {problem}")).await;
                return Ok(None);
            }
        };
        let known: Vec<String> = findings.iter().map(|finding| finding.query.clone()).collect();
        let prepared = sub_queries::prepare(proposed, &known, most);
        let planned = self.record_plan(Planned {
            round,
            first_id: findings.len(),
            sub_queries: prepared.queries,
            notes: prepared.notes,
        })?;
        if planned.sub_queries.is_empty() {
            self.note(format!("the model proposed no new sub-query after round {}", round - 1)).await;
            return Ok(None);
        }
        Ok(Some(planned))
    }

    fn record_plan(&self, planned: Planned) -> Result<Planned, AgentError> {
        if let Some(journal) = &self.shared.journal {
            journal.planned(planned.clone())?;
        }
        Ok(planned)
    }

    /// Sends a request whose answer the phase `phase` needs. Waits while the run is paused, and fails if it is
    /// cancelled. Records the usage in the journal, and warns the user if the budget is nearly used up.
    async fn ask(&self, phase: &'static str, request: LlmRequest) -> Result<LlmResponse, AgentError> {
        let control = &self.shared.control;
        control.permit().await?;
        let (answer, usage) = self.shared.llm.generate_with_usage(request, control).await;
        if let Some(journal) = &self.shared.journal {
            journal.spent(usage)?;
        }
        if let Some(warning) = self.shared.llm.budget().warning() {
            self.note(warning).await;
        }
        answer.map_err(|source| AgentError::Llm { phase, source })
    }

    /// Runs the sub-queries of a round in parallel, and reports each as soon as it ends. Does not run sub-queries whose
    /// answers the journal already contains. Returns the findings in the order of their ids.
    async fn run_round(&self, planned: &Planned) -> Result<Vec<Finding>, AgentError> {
        let shared = &self.shared;
        let mut waiting: Vec<(usize, String)> = Vec::new();
        for (index, query) in planned.sub_queries.iter().enumerate() {
            let id = planned.first_id + index;
            self.updates.send(AgentUpdate::sub_query_started(id, query)).await;
            waiting.push((id, query.clone()));
        }
        let mut findings: Vec<Finding> = Vec::new();
        // Follow the order of the journal, so that the answers are reported in the order in which the sub-queries
        // ended.
        for known in &shared.progress().finished {
            if let Some(at) = waiting.iter().position(|(id, _)| *id == known.id) {
                let (id, query) = waiting.remove(at);
                findings.push(Finding { id, query, outcome: Ok(known.clone()) });
            }
        }
        // If the journal already contains the final answer, sub-queries without an answer are not run again. They count
        // as failed.
        if shared.progress().answer.is_some() {
            let unanswered = waiting.drain(..);
            findings.extend(unanswered.map(|(id, query)| Finding { id, query, outcome: Err(no_answer()) }));
        }
        for finding in &findings {
            self.report(finding).await;
        }
        // Reserve one share of the tokens for the synthesis.
        let share = shared.llm.budget().tokens_left().map(|left| left / (waiting.len() as u64 + 1));
        let permits = Arc::new(Semaphore::new(shared.config.max_parallel));
        let (sender, mut outcomes) = mpsc::channel(CHANNEL_CAPACITY);
        // Dropping the set ends all tasks, and with them the processes that they started.
        let mut tasks = JoinSet::new();
        for (id, query) in &waiting {
            let (shared, sender, permits) = (shared.clone(), sender.clone(), permits.clone());
            let (id, query) = (*id, query.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire().await;
                let finding = shared.sub_query(id, query, share).await;
                // The receiver is gone only if the run is over.
                let _ = sender.send(finding).await;
            });
        }
        drop(sender);
        while let Some(finding) = outcomes.recv().await {
            let finding = finding?;
            self.report(&finding).await;
            findings.push(finding);
        }
        for (id, query) in waiting {
            if !findings.iter().any(|finding| finding.id == id) {
                let finding = Finding { id, query, outcome: Err(task_lost()) };
                self.report(&finding).await;
                findings.push(finding);
            }
        }
        findings.sort_by_key(|finding| finding.id);
        Ok(findings)
    }

    /// Reports that a sub-query has ended, with notes about instructions in its answer, and with a warning if the
    /// budget is nearly used up.
    async fn report(&self, finding: &Finding) {
        let id = finding.id;
        match &finding.outcome {
            Err(error) => self.updates.send(AgentUpdate::sub_query_failed(id, error.to_string())).await,
            Ok(answer) => {
                let longest = self.shared.config.max_finding_bytes;
                let tokens = u32::try_from(answer.usage.tokens).unwrap_or(u32::MAX);
                self.updates.send(AgentUpdate::sub_query_completed(id, &answer.result, tokens)).await;
                self.send_notes(&order_notes(id, answer, longest)).await;
            }
        }
        if let Some(warning) = self.shared.llm.budget().warning() {
            self.note(warning).await;
        }
    }

    /// Asks the model for the final answer, checks the answer's citations, records the result and reports it. If the
    /// journal already contains a result, only reports that.
    async fn synthesize(&self, findings: &[Finding], used_before: LlmUsage) -> Result<(), AgentError> {
        let shared = &self.shared;
        if let Some(result) = &shared.progress().answer {
            self.updates.send(AgentUpdate::synthesis_started()).await;
            self.updates.send(AgentUpdate::final_result(result)).await;
            return Ok(());
        }
        shared.control.permit().await?;
        self.updates.send(AgentUpdate::synthesis_started()).await;
        let mut ledger = Ledger::default();
        for finding in findings {
            if let Ok(answer) = &finding.outcome {
                ledger.add(finding.id, &answer.retrievals);
            }
        }
        let sources = ledger.sources();
        let prompt = prompts::synthesis(&shared.query, findings, &sources, shared.config.max_finding_bytes);
        let request = LlmRequest::new(prompt).with_system_instruction(prompts::synthesis_instruction());
        let answer = self.ask("synthesis", request).await?;
        let checked = check_citations(prompts::beginning(answer.text.trim(), LONGEST_ANSWER), &sources);
        let succeeded = findings.iter().filter(|finding| finding.outcome.is_ok()).count();
        let total = shared.llm.budget().used().tokens.saturating_sub(used_before.tokens);
        let metadata = ResultMetadata {
            total_tokens: u32::try_from(total).unwrap_or(u32::MAX),
            duration_ms: u64::try_from(shared.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            sub_queries_succeeded: succeeded,
            sub_queries_failed: findings.len() - succeeded,
        };
        let mut result = FinalResult::new(checked.answer, metadata);
        result.sources = checked.sources;
        result.unconfirmed = unconfirmed(findings, &checked.dropped, shared.config.max_finding_bytes);
        if let Some(journal) = &shared.journal {
            journal.answered(result.clone())?;
        }
        self.updates.send(AgentUpdate::final_result(&result)).await;
        Ok(())
    }
}

impl Shared {
    fn progress(&self) -> &Progress {
        static NOTHING: Progress = Progress::NOTHING;
        self.journal.as_ref().map_or(&NOTHING, |journal| journal.progress())
    }

    /// Runs one sub-query, with at most `max_tokens` tokens. Writes its answer and its usage to the journal. If the
    /// request fails, returns a finding with the error. Fails only if the run was cancelled or the journal cannot be
    /// written.
    async fn sub_query(
        &self,
        id: usize,
        query: String,
        max_tokens: Option<u64>,
    ) -> Result<Finding, AgentError> {
        self.control.permit().await?;
        let mut request =
            LlmRequest::new(query.clone()).with_system_instruction(prompts::SUB_QUERY_INSTRUCTION);
        // The share is 0 if the budget has fewer tokens left than there are requests, and `guard run --max-tokens` does
        // not accept 0.
        request.max_tokens = max_tokens.map(|share| share.max(1));
        let (answer, usage) = self.llm.generate_with_usage(request, &self.control).await;
        let outcome = match answer {
            Ok(response) => {
                let LlmResponse { text, interaction_id, retrievals, orders, .. } = response;
                let finished = Finished {
                    id,
                    result: prompts::beginning(&text, LONGEST_ANSWER).to_string(),
                    usage,
                    retrievals,
                    orders,
                    run_id: interaction_id,
                };
                if let Some(journal) = &self.journal {
                    journal.finished(finished.clone())?;
                }
                Ok(finished)
            }
            Err(error) => {
                if let Some(journal) = &self.journal {
                    journal.spent(usage)?;
                }
                Err(error)
            }
        };
        Ok(Finding { id, query, outcome })
    }
}

fn no_answer() -> LlmError {
    LlmError::Backend {
        kind: ErrorKind::Internal,
        message: "the sub-query had no answer when the research ended".to_string(),
        retry_after: None,
    }
}

fn task_lost() -> LlmError {
    LlmError::Backend {
        kind: ErrorKind::Internal,
        message: "guard's task for this sub-query ended without a result".to_string(),
        retry_after: None,
    }
}

/// Fails if no sub-query has an answer.
fn require_one_success(findings: &[Finding]) -> Result<(), AgentError> {
    let failed: Vec<&LlmError> =
        findings.iter().filter_map(|finding| finding.outcome.as_ref().err()).collect();
    match failed.first() {
        Some(first) if failed.len() == findings.len() => Err(AgentError::AllSubQueriesFailed {
            kind: first.kind(),
            errors: failed.iter().map(ToString::to_string).collect(),
        }),
        _ => Ok(()),
    }
}

/// An answer counts as new if, in a comparison with every earlier answer, more than this fraction of all significant
/// words occurs in only one of the two answers.
const NEW_WORDS: f64 = 0.1;

/// True if a round retrieved a new source, or has an answer that differs from all answers of earlier rounds.
fn adds_something(old: &[Finding], new: &[Finding]) -> bool {
    let answers = |findings: &[Finding]| -> Vec<Finished> {
        findings.iter().filter_map(|finding| finding.outcome.as_ref().ok().cloned()).collect()
    };
    let (old, new) = (answers(old), answers(new));
    let sources = |all: &[Finished]| {
        let mut ledger = Ledger::default();
        all.iter().for_each(|one| ledger.add(one.id, &one.retrievals));
        ledger.sources().into_iter().map(|source| source.url).collect::<Vec<_>>()
    };
    let known = sources(&old);
    let has_new_source = sources(&new).iter().any(|url| !known.contains(url));
    let is_new = |answer: &Finished| {
        old.iter().all(|known| sub_queries::similarity(&known.result, &answer.result) < 1.0 - NEW_WORDS)
    };
    has_new_source || new.iter().any(is_new)
}

/// Returns notes about phrases that give orders to a model: one in the first `longest` bytes of the answer to the
/// sub-query, and those that guard found in the texts that the agent retrieved for it.
fn order_notes(id: usize, answer: &Finished, longest: usize) -> Vec<String> {
    let number = id + 1;
    let in_answer = order_in(prompts::beginning(&answer.result, longest)).map(|phrase| {
        format!("the answer to sub-query {number} contains instructions to its reader (“{phrase}”); guard treats them as data")
    });
    let in_sources = answer.orders.iter().map(|phrase| {
        format!("a text that sub-query {number} retrieved contains instructions to its reader (“{phrase}”)")
    });
    in_answer.into_iter().chain(in_sources).collect()
}

/// Returns warnings for the user: removed citations, sub-queries without an answer or without a source, cut
/// answers, and texts that give orders to the model.
fn unconfirmed(findings: &[Finding], dropped: &[String], longest: usize) -> Vec<String> {
    let mut all: Vec<String> = dropped
        .iter()
        .map(|citation| {
            format!("guard removed the citation of a source that no sub-query retrieved: {citation}")
        })
        .collect();
    for finding in findings {
        let number = finding.id + 1;
        match &finding.outcome {
            Err(error) => all.push(format!("sub-query {number} ({}) has no answer: {error}", finding.query)),
            Ok(answer) => {
                all.extend(order_notes(finding.id, answer, longest));
                if answer.result.len() > longest {
                    all.push(format!(
                        "the final answer uses only the first {longest} bytes of the answer to sub-query {number}"
                    ));
                }
                let mut ledger = Ledger::default();
                ledger.add(finding.id, &answer.retrievals);
                if ledger.sources().is_empty() {
                    all.push(format!("sub-query {number} ({}) retrieved no source", finding.query));
                }
            }
        }
    }
    all
}
