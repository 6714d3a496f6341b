//! What was refused, counted while the transcript is written.

use std::sync::{Arc, Mutex, PoisonError};

use super::result::Denial;
use crate::transcript::Line;

/// Different refusals that a result lists.
const MOST_DENIALS: usize = 1000;
/// The same for one rule: who fills the list with refusals by one rule hides none by another.
const MOST_OF_RULE: usize = 200;
/// Rules whose further refusals are counted.
const MOST_RULES: usize = 200;

/// Sees every line of a transcript and keeps what the result needs.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    denials: Arc<Mutex<Vec<Denial>>>,
}

impl Tally {
    /// Takes notice of a line.
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
        };
        if count_known(&mut denials, &denial) {
            return;
        }
        let of_rule = denials.iter().filter(|known| known.rule == denial.rule).count();
        if of_rule >= MOST_OF_RULE || denials.len() >= MOST_DENIALS {
            denial.message =
                format!("more refusals by the rule {}; `guard log --denied` shows them", denial.rule);
            denial.what.clear();
            if count_known(&mut denials, &denial) {
                return;
            }
        }
        if denials.len() < MOST_DENIALS + MOST_RULES {
            denials.push(denial);
        }
    }

    /// What was seen so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Counts a refusal that is in the list already: false when it is not.
fn count_known(denials: &mut [Denial], denial: &Denial) -> bool {
    let known = denials.iter_mut().find(|known| known.kind == denial.kind && known.message == denial.message);
    known.map(|known| known.count += 1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::EventType;

    fn see(tally: &Tally, rule: &str, message: &str) {
        let data = serde_json::json!({ "rule": rule, "reason": "why" }).to_string();
        tally.see(&Line { event_type: EventType::DenyExec, message, data: &data, json: b"" });
    }

    /// Who causes thousands of refusals by some rules hides none by another, and every one is counted.
    #[test]
    fn a_flood_of_refusals_hides_no_rule() {
        let tally = Tally::default();
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
