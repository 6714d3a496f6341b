//! Runs an agent to its end on the current thread, for callers without a tokio runtime.

use std::time::Duration;

use super::agent::{Agent, AgentContext, next_update};
use super::error::AgentError;
use super::update::{AgentUpdate, FinalResult};

/// The maximum time that [`run_blocking`] waits for an update before it calls `check` again.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Runs an agent until its final result, and passes every update to `on_update`. Calls `check` several times a second.
/// An error of `check` ends the run and all requests that belong to it. Also fails if the agent fails, or if its stream
/// ends without a final result. The caller must not be inside a tokio runtime.
pub fn run_blocking<E: From<AgentError>>(
    agent: &dyn Agent,
    query: &str,
    context: AgentContext,
    check: impl Fn() -> Result<(), E>,
    mut on_update: impl FnMut(&AgentUpdate),
) -> Result<FinalResult, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| AgentError::Runtime { problem: error.to_string() })?;
    runtime.block_on(async {
        let mut stream = agent.execute(query, context);
        loop {
            check()?;
            let Ok(item) = tokio::time::timeout(CHECK_EVERY, next_update(&mut stream)).await else {
                continue;
            };
            let update = item.unwrap_or(Err(AgentError::NoFinalResult))?;
            on_update(&update);
            if let Some(result) = update.as_final_result() {
                return Ok(result);
            }
        }
    })
}
