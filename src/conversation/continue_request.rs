//! Executes requests of `guard exec` whose session is a conversation, so that other programs can continue
//! conversations.

use super::record::Record;
use super::store::Conversations;
use super::turn::TurnOptions;
use crate::agent::AgentEvent;
use crate::agent_exec::{Cancel, ExecRequest, ExecResult, Executor};
use crate::outcome::ErrorKind;

impl Conversations {
    /// Executes a request. If its session is a conversation, the request becomes the conversation's next turn;
    /// otherwise the executor receives the request unchanged.
    pub fn execute(
        &self,
        request: &ExecRequest,
        executor: &Executor,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(AgentEvent),
    ) -> ExecResult {
        match &request.session_id {
            Some(id) if self.contains(id) => self.continue_with(id, request, executor, cancel, on_event),
            _ => executor.execute(request, cancel, on_event),
        }
    }

    fn continue_with(
        &self,
        id: &str,
        request: &ExecRequest,
        executor: &Executor,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(AgentEvent),
    ) -> ExecResult {
        let refused = |kind, message: &str| {
            let mut result = ExecResult::refused(kind, message);
            result.run.tool = request.agent.clone().unwrap_or_else(|| "gemini".to_string());
            result
        };
        // The caller may continue only conversations in the directory that its request contains. The refusal
        // does not reveal whether the conversation exists in another directory.
        let place = request.cd.canonicalize().ok();
        let is_allowed = |record: &Record| {
            place.as_ref() == Some(&record.settings.cd)
                && request.agent.as_ref().is_none_or(|agent| *agent == record.settings.agent)
        };
        if !self.read(id).is_ok_and(|record| is_allowed(&record)) {
            let message = format!(
                "there is no conversation {id} with this agent in this directory; start a new session and repeat the \
                 context in its prompt"
            );
            return refused(ErrorKind::SessionLost, &message);
        }
        let mut conversation = match self.open(id) {
            Ok(conversation) => conversation,
            Err(error) => return refused(error.kind(), &format!("{error}; {}", error.hint())),
        };
        let options = TurnOptions {
            model: request.model.clone(),
            sandbox: Some(request.sandbox),
            policy: request.policy.clone(),
            yolo: request.yolo,
            timeout: request.timeout,
            max_duration: request.max_duration,
            max_retries: request.max_retries,
            read: request.read.clone(),
            write: request.write.clone(),
            environment: request.environment.clone(),
            return_all_messages: request.return_all_messages,
            return_metrics: request.return_metrics,
            ..TurnOptions::default()
        };
        let turn = conversation.run_turn(&request.prompt, &options, executor, cancel, &mut |event| {
            on_event(event.clone());
        });
        conversation.detach_compaction();
        turn.exec
    }
}
