//! Pauses, resumes and cancels a running agent from elsewhere, such as a control channel.

use tokio::sync::watch;

use super::error::AgentError;

/// Whether an agent may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// The agent works.
    Running,
    /// The agent starts nothing new. What runs already goes on.
    Paused,
    /// The agent ends everything it started.
    Cancelled,
}

/// A handle to a running agent. All clones control the same run. Every method may be called again without effect.
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
    /// The state now.
    pub fn state(&self) -> RunState {
        *self.state.borrow()
    }

    /// Starts nothing new until [`Self::resume`].
    pub fn pause(&self) {
        self.change(RunState::Running, RunState::Paused);
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&self) {
        self.change(RunState::Paused, RunState::Running);
    }

    /// Ends the run, for good.
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

    /// Waits until the agent may start something: at once, or after a pause. An error if the run is cancelled.
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
