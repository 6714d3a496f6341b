//! The journal entries of one task.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::journal::{Decision, EffectState, Entry, Journal, StoreError};
use super::state::{State, Status};
use crate::work::pipeline::error::PipelineError;

pub(crate) struct TaskJournal {
    journal: Journal,
    id: String,
}

impl TaskJournal {
    pub(crate) fn new(journal: Journal, id: &str) -> Self {
        Self { journal, id: id.to_string() }
    }

    /// Returns the state of an effect (an action of a step, such as a commit) of this task; `None` if the effect was
    /// never begun.
    pub(crate) fn effect_state(&self, visit: u32, name: &str) -> Result<Option<EffectState>, StoreError> {
        self.journal.effect_state(&self.id, visit, name)
    }

    /// Records the intent (the parameters) of an effect of this task before the effect runs, unless an intent is
    /// recorded already. Returns what the journal recorded about the effect before.
    pub(crate) fn begin(
        &mut self,
        at: (u32, &str),
        name: &str,
        intent: &Value,
    ) -> Result<EffectState, StoreError> {
        self.journal.begin(&self.id, at, name, intent)
    }

    /// Records the outcome of an effect of this task after the effect ran.
    pub(crate) fn finish(&mut self, visit: u32, name: &str, outcome: &Value) -> Result<(), StoreError> {
        self.journal.finish(&self.id, visit, name, outcome)
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        self.journal.entries(&self.id)
    }

    /// Deletes the user's decisions at the gates from the visit (execution of a step) with the number `visit` on.
    pub(crate) fn delete_decisions_from(&mut self, visit: u32) -> Result<(), StoreError> {
        self.journal.delete_decisions_from(&self.id, visit)
    }

    /// Deletes the entries of all effects of this task from the visit (execution of a step) with the number `visit` on,
    /// so that the runner performs them again. Deletes the user's decisions at the gates of later visits too, and the
    /// decision at the gate of this visit only if `with_decision` is set.
    pub(crate) fn delete_entries_from(&mut self, visit: u32, with_decision: bool) -> Result<(), StoreError> {
        self.journal.delete_entries_from(&self.id, visit, with_decision)
    }

    /// Returns the user's decision at the gate of a visit (execution of a step); `None` if the user has not
    /// decided.
    pub(crate) fn decision(&self, visit: u32) -> Result<Option<Decision>, StoreError> {
        self.journal.decision(&self.id, visit)
    }

    pub(crate) fn save_progress(
        &mut self,
        status: Status,
        reason: &str,
        state: &State,
    ) -> Result<(), StoreError> {
        let state = serde_json::to_value(state).unwrap_or_default();
        self.journal.advance(&self.id, status.name(), reason, &state)
    }
}

pub(crate) fn parse_stored<T: DeserializeOwned>(value: Value) -> Result<T, PipelineError> {
    serde_json::from_value(value)
        .map_err(|error| PipelineError::Strange(format!("a journal entry cannot be parsed: {error}")))
}
