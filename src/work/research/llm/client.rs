//! The client for a model. It adds time limits, retries with backoff, and a budget to any backend.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tokio::time::Sleep;

use super::backend::{BackendEvent, BackendStream, LlmBackend, LlmCall, LlmUsage};
use super::budget::Budget;
use crate::work::research::config::LlmConfig;
use crate::work::research::control::RunControl;
use crate::work::research::error::LlmError;
use crate::work::research::sources::{MOST_URLS, Retrieval};

/// The maximum number of phrases in [`LlmResponse::orders`].
const MOST_ORDERS: usize = 8;

/// A request to a model, without any history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LlmRequest {
    pub prompt: String,
    pub system_instruction: Option<String>,
    /// The maximum number of tokens that this request may use; `None` means that only the client's budget applies.
    pub max_tokens: Option<u64>,
}

impl LlmRequest {
    pub fn new(prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), ..Self::default() }
    }

    #[must_use]
    pub fn with_system_instruction(mut self, instruction: impl Into<String>) -> Self {
        self.system_instruction = Some(instruction.into());
        self
    }
}

/// The whole answer to a request.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct LlmResponse {
    pub text: String,
    /// The tokens that the request used, including failed attempts; 0 if the API reported none.
    pub tokens_used: u32,
    /// The backend's id of the request, for example a run id; `None` if the backend has none.
    pub interaction_id: Option<String>,
    /// The pages and hosts that guard observed the model retrieve: the first 1000.
    pub retrievals: Vec<Retrieval>,
    /// Phrases in the retrieved texts that give orders to their reader: the first 8.
    pub orders: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct LlmStreamChunk {
    /// The text of this piece. The last piece contains the rest of the answer. It is empty if the answer does not begin
    /// with the text of the earlier pieces.
    pub text: String,
    pub is_final: bool,
    /// The usage of the request; `None` except in the last piece.
    pub usage: Option<LlmUsage>,
}

/// The pieces of an answer. Dropping the stream cancels the request.
pub type ChunkStream = Pin<Box<dyn Stream<Item = Result<LlmStreamChunk, LlmError>> + Send>>;

/// Returns the next piece of an answer; `None` if the stream has ended.
pub async fn next_chunk(stream: &mut ChunkStream) -> Option<Result<LlmStreamChunk, LlmError>> {
    stream.next().await
}

/// Sends requests to a model. All requests that count towards one budget must use the same client.
pub struct LlmClient {
    client: Arc<dyn LlmBackend>,
    config: LlmConfig,
    budget: Arc<Budget>,
}

impl LlmClient {
    pub fn new(client: Arc<dyn LlmBackend>, config: LlmConfig) -> Self {
        let budget = Arc::new(Budget::new(&config));
        Self { client, config, budget }
    }

    pub fn config(&self) -> &LlmConfig {
        &self.config
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Sends a request and waits for the whole answer. Retries after a failure that may be temporary. Sends nothing if
    /// the budget is used up.
    pub async fn generate(&self, request: LlmRequest) -> Result<LlmResponse, LlmError> {
        self.generate_with_usage(request, &RunControl::default()).await.0
    }

    /// Sends a request and waits for the whole answer. Retries after a failure that may be temporary, but not while
    /// `control` is paused or after it is cancelled. Also returns the usage of the request, even if it failed.
    pub async fn generate_with_usage(
        &self,
        request: LlmRequest,
        control: &RunControl,
    ) -> (Result<LlmResponse, LlmError>, LlmUsage) {
        let mut usage = LlmUsage::NOTHING;
        let answer = self.attempts(&request, control, &mut usage).await;
        (answer, usage)
    }

    async fn attempts(
        &self,
        request: &LlmRequest,
        control: &RunControl,
        usage: &mut LlmUsage,
    ) -> Result<LlmResponse, LlmError> {
        let mut attempt = 0;
        loop {
            self.budget.check()?;
            let answer = self.attempt(request, usage).await;
            let error = match answer {
                Ok(response) => {
                    if usage.tokens == 0 {
                        tracing::warn!("the agent reported no token count, so guard counts 0 tokens");
                    }
                    let tokens_used = u32::try_from(usage.tokens).unwrap_or(u32::MAX);
                    return Ok(LlmResponse { tokens_used, ..response });
                }
                Err(error) => error,
            };
            let Some(delay) = self.delay(&error, attempt) else {
                tracing::info!(kind = error.kind().as_str(), attempt, "a request to the model failed");
                return Err(error);
            };
            tracing::info!(
                kind = error.kind().as_str(),
                attempt,
                ?delay,
                "a request to the model failed; retrying"
            );
            tokio::time::sleep(delay).await;
            if control.permit().await.is_err() {
                return Err(error);
            }
            attempt += 1;
        }
    }

    async fn attempt(&self, request: &LlmRequest, usage: &mut LlmUsage) -> Result<LlmResponse, LlmError> {
        let mut call = self.call(request.clone());
        let mut response = LlmResponse::default();
        loop {
            match call.next().await {
                None => {
                    *usage = usage.plus(call.usage);
                    return Err(ended_early());
                }
                Some(Err(error)) => {
                    *usage = usage.plus(call.usage);
                    return Err(error);
                }
                Some(Ok(BackendEvent::Retrieved(retrieval))) => {
                    if response.retrievals.len() < MOST_URLS && !response.retrievals.contains(&retrieval) {
                        response.retrievals.push(retrieval);
                    }
                }
                Some(Ok(BackendEvent::Order(phrase))) => {
                    if response.orders.len() < MOST_ORDERS && !response.orders.contains(&phrase) {
                        response.orders.push(phrase);
                    }
                }
                Some(Ok(BackendEvent::Completed { text, interaction_id })) => {
                    *usage = usage.plus(call.usage);
                    tracing::info!(bytes = text.len(), tokens = call.usage.tokens, "the model answered");
                    if text.trim().is_empty() {
                        return Err(LlmError::EmptyAnswer);
                    }
                    return Ok(LlmResponse { text, interaction_id, ..response });
                }
                Some(Ok(BackendEvent::Text(_) | BackendEvent::Used(_))) => {}
            }
        }
    }

    /// Sends a request and streams the answer. Does not retry, because the reader may have received a part of
    /// the answer.
    pub fn generate_stream(&self, request: LlmRequest) -> ChunkStream {
        if let Err(error) = self.budget.check() {
            return Box::pin(stream::iter([Err(error)]));
        }
        let answer = StreamedAnswer { call: self.call(request), streamed: String::new() };
        let next = |answer: Option<StreamedAnswer>| async { Some(answer?.next().await) };
        Box::pin(stream::unfold(Some(answer), next).fuse())
    }

    fn call(&self, request: LlmRequest) -> CallStream {
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let call = LlmCall {
            prompt: request.prompt,
            system_instruction: request.system_instruction,
            model: self.config.model.clone(),
            temperature: self.config.temperature,
            timeout: self.config.timeout,
            max_tokens: least(request.max_tokens, self.budget.tokens_left()),
            max_cost: self.budget.cost_left(),
        };
        tracing::info!(bytes = call.prompt.len(), model = call.model, "asking the model");
        let timeout = self.config.timeout;
        CallStream {
            events: self.client.start(call),
            deadline: Box::pin(tokio::time::sleep(timeout.saturating_add(self.client.grace()))),
            timeout,
            usage: LlmUsage::default(),
            budget: self.budget.clone(),
            is_over: false,
        }
    }

    /// Returns how long to wait before a retry; `None` if the client must not retry. `attempt` is the number of retries
    /// so far.
    fn delay(&self, error: &LlmError, attempt: u32) -> Option<Duration> {
        if attempt >= self.config.max_retries || !error.is_retryable() {
            return None;
        }
        let backoff =
            self.config.first_delay.saturating_mul(1 << attempt.min(16)).min(self.config.longest_delay);
        match error {
            // Do not retry: the API would refuse a request before this time.
            LlmError::Backend { retry_after: Some(wait), .. } if *wait > self.config.longest_delay => None,
            LlmError::Backend { retry_after: Some(wait), .. } => Some(backoff.max(*wait)),
            _ => Some(backoff),
        }
    }
}

fn ended_early() -> LlmError {
    LlmError::Backend {
        kind: crate::run::outcome::ErrorKind::Internal,
        message: "the agent ended without an answer".to_string(),
        retry_after: None,
    }
}

/// One request to a backend, with the time limit and the budget.
struct CallStream {
    events: BackendStream,
    deadline: Pin<Box<Sleep>>,
    timeout: Duration,
    usage: LlmUsage,
    budget: Arc<Budget>,
    is_over: bool,
}

impl CallStream {
    async fn next(&mut self) -> Option<Result<BackendEvent, LlmError>> {
        if self.is_over {
            return None;
        }
        let event = tokio::select! {
            biased;
            event = self.events.next() => event,
            () = &mut self.deadline => {
                // Drop the backend's stream, so that the backend ends everything that it started.
                self.events = Box::pin(stream::empty());
                Some(Err(LlmError::Timeout { after: self.timeout }))
            }
        };
        match &event {
            Some(Ok(BackendEvent::Used(usage))) => {
                self.usage = self.usage.plus(*usage);
                self.budget.spend(*usage);
            }
            Some(Ok(BackendEvent::Completed { .. }) | Err(_)) | None => self.is_over = true,
            Some(Ok(_)) => {}
        }
        event
    }
}

/// A streamed answer: the request, and the text of its pieces so far.
struct StreamedAnswer {
    call: CallStream,
    streamed: String,
}

impl StreamedAnswer {
    /// Returns the next piece, and the rest of the answer unless the piece is the last one.
    async fn next(mut self) -> (Result<LlmStreamChunk, LlmError>, Option<Self>) {
        loop {
            return match self.call.next().await {
                Some(Ok(BackendEvent::Retrieved(_) | BackendEvent::Order(_) | BackendEvent::Used(_))) => {
                    continue;
                }
                Some(Ok(BackendEvent::Text(text))) => {
                    self.streamed.push_str(&text);
                    (Ok(LlmStreamChunk { text, ..LlmStreamChunk::default() }), Some(self))
                }
                Some(Ok(BackendEvent::Completed { text, .. })) => {
                    let text = text.strip_prefix(&self.streamed).unwrap_or_default().to_string();
                    (Ok(LlmStreamChunk { text, is_final: true, usage: Some(self.call.usage) }), None)
                }
                Some(Err(error)) => (Err(error), None),
                None => (Err(ended_early()), None),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripted::{Answer, block_on, scripted};
    use super::*;
    use crate::run::outcome::ErrorKind;

    fn config() -> LlmConfig {
        LlmConfig { first_delay: Duration::from_millis(1), max_retries: 2, ..LlmConfig::default() }
    }

    fn failure(kind: ErrorKind) -> LlmError {
        LlmError::Backend { kind, message: "no".to_string(), retry_after: None }
    }

    #[test]
    fn a_temporary_failure_is_retried_and_its_tokens_count() {
        let (backend, calls) = scripted(|_, number| match number {
            0 | 1 => Answer::failing(failure(ErrorKind::UpstreamError)).using(10),
            _ => Answer::text("yes").using(100),
        });
        let client = LlmClient::new(backend, config());
        let response = block_on(client.generate(LlmRequest::new("q").with_system_instruction("s")));
        let response = response.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((response.text.as_str(), response.tokens_used), ("yes", 120));
        assert_eq!(client.budget().used().tokens, 120);
        let calls = calls.lock().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(calls.len(), 3);
        assert_eq!(calls[0].system_instruction.as_deref(), Some("s"));
        assert_eq!(calls[0].model, "gemini-3-flash-preview");
    }

    #[test]
    fn the_usage_of_an_answer_that_ends_early_counts() {
        let (backend, _) = scripted(|_, _| Answer::cut_off().using(10));
        let client = LlmClient::new(backend, LlmConfig { max_retries: 0, ..config() });
        let control = RunControl::default();
        let (answer, usage) = block_on(client.generate_with_usage(LlmRequest::new("q"), &control));
        assert_eq!(answer, Err(ended_early()));
        assert_eq!(usage.tokens, 10);
    }

    #[test]
    fn what_cannot_pass_is_not_retried() {
        for (error, expected) in [
            (failure(ErrorKind::AuthError), 1),
            (failure(ErrorKind::CommandNotFound), 1),
            (failure(ErrorKind::PolicyDenied), 1),
            (failure(ErrorKind::RateLimited), 3),
            (
                LlmError::Backend {
                    kind: ErrorKind::RateLimited,
                    message: String::new(),
                    retry_after: Some(Duration::from_secs(40)),
                },
                1,
            ),
        ] {
            let wanted = error.clone();
            let (backend, calls) = scripted(move |_, _| Answer::failing(error.clone()));
            let client = LlmClient::new(backend, config());
            assert_eq!(block_on(client.generate(LlmRequest::new("q"))), Err(wanted.clone()));
            assert_eq!(calls.lock().map(|calls| calls.len()).unwrap_or_default(), expected, "{wanted:?}");
        }
    }

    #[test]
    fn the_delay_doubles_up_to_two_seconds() {
        let (backend, _) = scripted(|_, _| Answer::text("x"));
        let client = LlmClient::new(backend, LlmConfig { max_retries: 5, ..LlmConfig::default() });
        let delays: Vec<u128> = (0..6)
            .filter_map(|attempt| client.delay(&failure(ErrorKind::UpstreamError), attempt))
            .map(|delay| delay.as_millis())
            .collect();
        assert_eq!(delays, [500, 1000, 2000, 2000, 2000]);
    }

    #[test]
    fn a_silent_model_is_a_timeout_of_its_own_kind() {
        let (backend, calls) = scripted(|_, _| Answer::silent());
        let timeout = Duration::from_millis(20);
        let client = LlmClient::new(backend, LlmConfig { timeout, max_retries: 0, ..config() });
        let error = block_on(client.generate(LlmRequest::new("q")));
        assert_eq!(error, Err(LlmError::Timeout { after: timeout }));
        assert_eq!(calls.lock().map(|calls| calls.len()).unwrap_or_default(), 1);
    }

    #[test]
    fn nothing_is_asked_when_the_budget_is_used_up() {
        let (backend, calls) = scripted(|_, _| Answer::text("x").using(60));
        let client = LlmClient::new(backend, LlmConfig { max_tokens: Some(100), ..config() });
        assert!(block_on(client.generate(LlmRequest::new("1"))).is_ok());
        assert!(block_on(client.generate(LlmRequest::new("2"))).is_ok());
        let third = block_on(client.generate(LlmRequest::new("3")));
        assert!(matches!(third, Err(LlmError::BudgetExhausted { .. })), "{third:?}");
        let calls = calls.lock().unwrap_or_else(|error| panic!("{error}"));
        let limits: Vec<Option<u64>> = calls.iter().map(|call| call.max_tokens).collect();
        assert_eq!(limits, [Some(100), Some(40)]);
    }

    #[test]
    fn a_stream_has_its_usage_in_the_last_chunk_only() {
        let (backend, _) = scripted(|_, _| Answer::text("yes").streaming(&["y", "e"]).using(7));
        let client = LlmClient::new(backend, config());
        block_on(async {
            let mut stream = client.generate_stream(LlmRequest::new("q"));
            let mut chunks = Vec::new();
            while let Some(chunk) = next_chunk(&mut stream).await {
                chunks.push(chunk.unwrap_or_else(|error| panic!("{error}")));
            }
            let text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
            assert_eq!(text, "yes");
            let (last, others) = chunks.split_last().unwrap_or_else(|| panic!("no chunk"));
            assert!(others.iter().all(|chunk| !chunk.is_final && chunk.usage.is_none()));
            assert_eq!((last.is_final, last.usage), (true, Some(LlmUsage::tokens(7))));
        });
    }
}
