//! Pauses, resumes and cancels a running research agent from other code, such as a control channel.

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::error::AgentError;
use super::llm::Budget;
use crate::agents::control::{AgentCommand, Rejection};

/// The data of the command `adjust_config`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLimits {
    max_tokens: Option<u64>,
    max_cost: Option<f64>,
}

/// Whether a research agent may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// The agent may start requests.
    Running,
    /// The agent starts no new requests. Requests that are already running continue.
    Paused,
    /// The agent ends everything that it started.
    Cancelled,
}

/// A handle to a running research agent. All clones control the same run.
#[derive(Debug, Clone)]
pub struct RunControl {
    state: watch::Sender<RunState>,
}

impl Default for RunControl {
    fn default() -> Self {
        Self { state: watch::Sender::new(RunState::Running) }
    }
}

impl RunControl {
    pub fn state(&self) -> RunState {
        *self.state.borrow()
    }

    /// Makes the agent start no new requests until [`Self::resume`] is called. Has no effect on a run that is already
    /// paused or cancelled.
    pub fn pause(&self) {
        self.change(RunState::Running, RunState::Paused);
    }

    /// Lets the agent continue after [`Self::pause`]. Has no effect on a run that is not paused.
    pub fn resume(&self) {
        self.change(RunState::Paused, RunState::Running);
    }

    /// Cancels the run permanently.
    pub fn cancel(&self) {
        self.state.send_replace(RunState::Cancelled);
    }

    fn change(&self, from: RunState, to: RunState) {
        self.state.send_if_modified(|state| {
            let is_change = *state == from;
            if is_change {
                *state = to;
            }
            is_change
        });
    }

    /// Executes a command of the control channel: `cancel`, `pause`, `resume`, or `adjust_config`, which changes the
    /// limits of `budget`. Returns an empty JSON object, or the reason for a rejection.
    pub fn act_on(&self, command: &AgentCommand, budget: &Budget) -> Result<Value, Rejection> {
        match command.command_type.as_str() {
            "cancel" => self.cancel(),
            "pause" => self.pause(),
            "resume" => self.resume(),
            "adjust_config" => {
                let expected =
                    "{\"max_tokens\": N, \"max_cost\": X} or only one of the two, with values above 0";
                let NewLimits { max_tokens, max_cost } = NewLimits::deserialize(&command.data)
                    .map_err(|problem| Rejection::InvalidData { expected, problem })?;
                let is_possible = max_tokens != Some(0) && max_cost.is_none_or(|cost| cost > 0.0);
                if !is_possible || (max_tokens.is_none() && max_cost.is_none()) {
                    return Err(Rejection::NoSetting(expected));
                }
                budget.set_limits(max_tokens, max_cost);
            }
            other => return Err(Rejection::UnknownType(other.to_string())),
        }
        Ok(json!({}))
    }

    /// Waits while the run is paused. Fails if the run is cancelled.
    pub async fn permit(&self) -> Result<(), AgentError> {
        let mut state = self.state.subscribe();
        // `self` holds a sender, so the channel cannot close.
        let state = state.wait_for(|state| *state != RunState::Paused).await.map(|state| *state);
        match state {
            Ok(RunState::Cancelled) | Err(_) => Err(AgentError::Cancelled),
            Ok(_) => Ok(()),
        }
    }

    /// Waits until the run is cancelled.
    pub async fn cancelled(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| *state == RunState::Cancelled).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_change_the_state_and_the_budget() {
        let (control, budget) = (RunControl::default(), Budget::new(&Default::default()));
        let act = |command_type: &str, data: Value| {
            let command =
                AgentCommand { command_type: command_type.to_string(), command_id: "1".to_string(), data };
            control.act_on(&command, &budget)
        };
        assert!(act("pause", Value::Null).is_ok());
        assert_eq!(control.state(), RunState::Paused);
        assert!(act("resume", Value::Null).is_ok());
        assert!(act("adjust_config", json!({ "max_tokens": 7 })).is_ok());
        assert_eq!(budget.tokens_left(), Some(7));
        for wrong in [
            json!({ "max_tokens": -1 }),
            json!({ "max_tokens": "x", "max_cost": 1 }),
            json!({ "max_tokens": 9, "depth": 3 }),
            Value::Null,
        ] {
            let rejected = act("adjust_config", wrong.clone());
            assert!(rejected.is_err_and(|why| matches!(why, Rejection::InvalidData { .. })), "{wrong}");
        }
        for wrong in [json!({}), json!({ "max_tokens": 0 }), json!({ "max_cost": -5 })] {
            let rejected = act("adjust_config", wrong.clone());
            assert!(rejected.is_err_and(|why| matches!(why, Rejection::NoSetting(_))), "{wrong}");
        }
        assert_eq!(budget.tokens_left(), Some(7));
        assert!(act("fly", Value::Null).is_err_and(|reason| matches!(reason, Rejection::UnknownType(_))));
        assert!(act("cancel", Value::Null).is_ok());
        assert_eq!(control.state(), RunState::Cancelled);
    }

    #[test]
    fn a_cancelled_run_stays_cancelled() {
        let control = RunControl::default();
        control.resume();
        assert_eq!(control.state(), RunState::Running);
        control.pause();
        control.pause();
        assert_eq!(control.state(), RunState::Paused);
        control.cancel();
        control.resume();
        control.pause();
        assert_eq!(control.state(), RunState::Cancelled);
    }
}
