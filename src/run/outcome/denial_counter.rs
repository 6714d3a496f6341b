//! Collects and counts denials while guard writes the transcript, for the list of denials in the result.
//!
//! The list has a maximum length, but many denials by one rule must never hide a denial by another.

use std::sync::{Arc, Mutex, PoisonError};

use super::result::Denial;
use crate::run::transcript::Line;

/// The maximum number of distinct denials that a result lists.
const MOST_DENIALS: usize = 1000;
/// The maximum number of distinct denials by a single rule in the list, so that many denials by one rule do not hide
/// those by another.
const MOST_OF_RULE: usize = 200;
/// The maximum number of entries that guard adds to a full list to count further denials, one for each rule and event
/// type.
const MOST_RULES: usize = 200;

/// Observes every line that guard writes to a transcript, and collects the denials for the result.
#[derive(Debug, Clone, Default)]
pub struct DenialCounter {
    denials: Arc<Mutex<Vec<Denial>>>,
}

impl DenialCounter {
    /// Processes a line of the transcript. If it is a denial, adds it to the list, or counts it with an equal one. When
    /// the list is full, or contains `MOST_OF_RULE` denials by the same rule, only counts the denial together with
    /// others by that rule.
    pub fn see(&self, line: &Line<'_>) {
        if !line.event_type.is_denial() {
            return;
        }
        let data: serde_json::Value = serde_json::from_str(line.data).unwrap_or_default();
        let text =
            |key: &str| data.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_string();
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let mut denial = Denial {
            kind: line.event_type.to_string(),
            message: line.message.to_string(),
            what: text("what"),
            rule: text("rule"),
            reason: text("reason"),
            count: 1,
            allow_with: data.get("allow_with").and_then(serde_json::Value::as_str).map(str::to_string),
        };
        if count_known(&mut denials, &denial) {
            return;
        }
        let of_rule = denials.iter().filter(|known| known.rule == denial.rule).count();
        if of_rule >= MOST_OF_RULE || denials.len() >= MOST_DENIALS {
            denial.message =
                format!("further denials by the rule {}; `guard log --denied` lists them", denial.rule);
            denial.what.clear();
            denial.allow_with = None;
            if count_known(&mut denials, &denial) {
                return;
            }
        }
        if denials.len() < MOST_DENIALS + MOST_RULES {
            denials.push(denial);
        }
    }

    pub fn denials(&self) -> Vec<Denial> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Increments the count of a denial that is already in the list. Returns false if it is not in the list.
fn count_known(denials: &mut [Denial], denial: &Denial) -> bool {
    let known = denials.iter_mut().find(|known| known.kind == denial.kind && known.message == denial.message);
    known.map(|known| known.count += 1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::transcript::EventType;

    fn see(tally: &DenialCounter, rule: &str, message: &str) {
        let data = serde_json::json!({ "rule": rule, "reason": "why" }).to_string();
        tally.see(&Line { event_type: EventType::DenyExec, message, data: &data, json: b"" });
    }

    /// Many denials by some rules must not hide the denials by another rule, and the counter must count every denial.
    #[test]
    fn a_flood_of_refusals_hides_no_rule() {
        let tally = DenialCounter::default();
        for number in 0..20_000 {
            see(&tally, &format!("rule.{}", number % 10), &format!("refused {number}"));
        }
        see(&tally, "rule.last", "the one that matters");
        let denials = tally.denials();
        assert!(denials.iter().any(|denial| denial.rule == "rule.last"));
        assert_eq!(denials.iter().map(|denial| denial.count).sum::<u64>(), 20_001);
        assert!(denials.len() <= MOST_DENIALS + MOST_RULES, "{}", denials.len());
    }
}
