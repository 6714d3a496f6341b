//! Executes requests of `guard exec` and of MCP clients whose session is a conversation, so that other programs can
//! continue conversations.

use serde::Deserialize;

use super::record::{Record, Settings};
use super::store::{Conversation, Conversations};
use super::turn::TurnOptions;
use crate::agents::adapter::{AgentEvent, OutputFormat};
use crate::agents::exec::{Cancel, ExecRequest, ExecResult, Executor, Sandbox};
use crate::run::outcome::ErrorKind;

/// The options of a request that the caller has set. An [`ExecRequest`] has defaults for the others, which must not
/// replace the settings of a conversation: a default could make a read-only conversation writable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GivenOptions {
    /// Which files the agent may write; `None` means the conversation's setting.
    pub sandbox: Option<Sandbox>,
    /// The model; `None` means the conversation's model.
    pub model: Option<String>,
    /// The idle limit in seconds; `None` means the default of turns.
    pub timeout: Option<u64>,
}

impl GivenOptions {
    /// Returns the options that the JSON text of a request contains; no options if the text is not a valid request.
    pub fn of_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

impl Conversations {
    /// Executes a request. If its session is a conversation, the request becomes the conversation's next turn, with the
    /// options that the caller has set; otherwise the executor receives the request unchanged. Also returns the
    /// conversation, or `None` if the request continued none. The conversation may be summarising its older messages in
    /// the background: the caller must wait for that or call [`Conversation::detach_compaction`], because dropping the
    /// conversation ends it.
    pub fn execute(
        &self,
        request: &ExecRequest,
        given: &GivenOptions,
        executor: &Executor,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(AgentEvent),
    ) -> (ExecResult, Option<Conversation>) {
        let Some(id) = request.session_id.as_ref().filter(|id| self.contains(id)) else {
            return (executor.execute(request, cancel, on_event), None);
        };
        let mut conversation = match self.open_for(id, request) {
            Ok(conversation) => conversation,
            Err((kind, message)) => {
                let mut result = ExecResult::refused(kind, &message);
                result.run.tool = request.agent.clone().unwrap_or_else(|| "gemini".to_string());
                return (result, None);
            }
        };
        let options = turn_options(request, given);
        let turn = conversation.run_turn(&request.prompt, &options, executor, cancel, &mut |event| {
            on_event(event.clone());
        });
        (turn.exec, Some(conversation))
    }

    /// Opens the conversation that a request continues, or returns why the request is refused.
    fn open_for(&self, id: &str, request: &ExecRequest) -> Result<Conversation, (ErrorKind, String)> {
        // The caller may continue only conversations in the directory `cd` of its request, and only with their own
        // agent. The refusal does not reveal whether the conversation exists in another directory.
        let place = request.cd.canonicalize().ok();
        let is_allowed = |record: &Record| {
            place.as_ref() == Some(&record.settings.cd)
                && request.agent.as_ref().is_none_or(|agent| *agent == record.settings.agent)
        };
        let Some(record) = self.read(id).ok().filter(is_allowed) else {
            let message = format!(
                "there is no conversation {id} with this agent in this directory; start a new session and repeat the \
                 context in its prompt"
            );
            return Err((ErrorKind::SessionLost, message));
        };
        if let Some(field) = unsupported_field(request, &record.settings) {
            let message = format!(
                "a request that continues the conversation {id} cannot set `{field}`, because the conversation has its \
                 own program and its own worktree; leave out `{field}`, or start a new session"
            );
            return Err((ErrorKind::InvalidInput, message));
        }
        self.open(id).map_err(|error| (error.kind(), format!("{error}; {}", error.hint())))
    }
}

/// Returns a field of the request that a turn of a conversation would ignore; `None` if there is none.
fn unsupported_field(request: &ExecRequest, settings: &Settings) -> Option<&'static str> {
    let fields = [
        ("command", !request.command.is_empty() && request.command != settings.command),
        ("in_place", request.in_place),
        ("here", request.here),
        ("fresh_agent", request.fresh_agent),
        ("output_format", request.output_format != OutputFormat::default()),
        ("retry_timeouts", !request.retry_timeouts),
    ];
    fields.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name)
}

fn turn_options(request: &ExecRequest, given: &GivenOptions) -> TurnOptions {
    let defaults = TurnOptions::default();
    TurnOptions {
        model: given.model.clone(),
        sandbox: given.sandbox,
        policy: request.policy.clone(),
        uses_default_policy: request.uses_default_policy,
        yolo: request.yolo,
        timeout: given.timeout.unwrap_or(defaults.timeout),
        max_duration: request.max_duration,
        max_retries: request.max_retries,
        max_tokens: request.max_tokens,
        max_requests: request.max_requests,
        read: request.read.clone(),
        write: request.write.clone(),
        environment: request.environment.clone(),
        return_all_messages: request.return_all_messages,
        return_metrics: request.return_metrics,
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_a_request_do_not_become_options_of_a_turn() {
        let text = r#"{ "prompt": "go on", "cd": "/", "max_duration": 60 }"#;
        let request = ExecRequest::from_json(text).unwrap_or_else(|error| panic!("{error}"));
        let options = turn_options(&request, &GivenOptions::of_json(text));
        assert_eq!((options.sandbox, options.model, options.timeout), (None, None, 120));
        assert_eq!(options.max_duration, 60);
    }

    #[test]
    fn options_that_the_caller_has_set_become_options_of_the_turn() {
        let text = r#"{ "PROMPT": "go on", "cd": "/", "sandbox": "read-only", "model": "m", "timeout": 300, "max_tokens": 5 }"#;
        let request = ExecRequest::from_json(text).unwrap_or_else(|error| panic!("{error}"));
        let options = turn_options(&request, &GivenOptions::of_json(text));
        assert_eq!(options.sandbox, Some(Sandbox::ReadOnly));
        assert_eq!((options.model.as_deref(), options.timeout), (Some("m"), 300));
        assert_eq!(options.max_tokens, Some(5));
    }
}
