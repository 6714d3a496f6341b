//! What was refused, counted while the transcript is written.

use std::sync::{Arc, Mutex, PoisonError};

use super::result::Denial;
use crate::transcript::Line;

/// Different refusals that a result lists.
const MOST_DENIALS: usize = 1000;

/// Sees every line of a transcript and keeps what the result needs.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    denials: Arc<Mutex<Vec<Denial>>>,
}

impl Tally {
    /// Takes notice of a line.
    pub fn see(&self, line: &Line<'_>) {
        if !line.event_type.starts_with("deny.") {
            return;
        }
        let data: serde_json::Value = serde_json::from_str(line.data).unwrap_or_default();
        let text =
            |key: &str| data.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_string();
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) =
            denials.iter_mut().find(|known| known.kind == line.event_type && known.message == line.message)
        {
            known.count += 1;
        } else if denials.len() < MOST_DENIALS {
            denials.push(Denial {
                kind: line.event_type.to_string(),
                message: line.message.to_string(),
                rule: text("rule"),
                reason: text("reason"),
                count: 1,
            });
        }
    }

    /// What was seen so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
