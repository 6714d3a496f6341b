//! Extracts from a CLI's error text when an exhausted quota is available again. CLIs state this only in prose.

use std::time::Duration;

use crate::agents::adapter::known::Quota;

/// How long to wait before a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    For(Duration),
    /// Wait until the next day begins, in this time zone if the adapter names one.
    NextDay(Option<String>),
}

/// The longest plausible wait, in seconds (one year). guard ignores a longer one, which is a mistake or hostile output.
const LONGEST: f64 = 366.0 * 24.0 * 3600.0;

impl Quota {
    /// Returns how long to wait according to an error text of the CLI; `None` if the text does not say so.
    pub fn wait(&self, words: &str) -> Option<Wait> {
        let lower = words.to_lowercase();
        if self.daily.iter().any(|part| lower.contains(&part.to_lowercase())) {
            return Some(Wait::NextDay(self.day_begins_in.clone()));
        }
        // If the text states several waiting times, use the last one, which is the most recent.
        let said = self.wait_after.iter().filter_map(|before| {
            let before = before.to_lowercase();
            let (at, _) =
                lower.rmatch_indices(&before).find(|(at, _)| time(&lower[at + before.len()..]).is_some())?;
            Some((at, time(&lower[at + before.len()..])?))
        });
        said.max_by_key(|(at, _)| *at).map(|(_, time)| Wait::For(time))
    }
}

/// Parses a duration such as `12.3s`, `850ms`, `3h12m5s` or `2 minutes` at the beginning of a text; `None` if there is
/// none, or if it is longer than `LONGEST`.
fn time(text: &str) -> Option<Duration> {
    let mut rest = text.trim_start();
    let mut seconds = None;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let Ok(number) = rest[..digits].parse::<f64>() else { break };
        let after = rest[digits..].trim_start_matches(' ');
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let Some(unit) = unit(&after[..letters]) else { break };
        seconds = Some(seconds.unwrap_or(0.0) + number * unit);
        rest = after[letters..].trim_start_matches(' ');
    }
    seconds.filter(|seconds| (0.0..=LONGEST).contains(seconds)).map(Duration::from_secs_f64)
}

/// Returns the length of a unit of time, in seconds; `None` for an unknown unit.
fn unit(name: &str) -> Option<f64> {
    match name {
        "ms" => Some(0.001),
        "s" | "sec" | "secs" | "second" | "seconds" => Some(1.0),
        "m" | "min" | "mins" | "minute" | "minutes" => Some(60.0),
        "h" | "hour" | "hours" => Some(3600.0),
        "d" | "day" | "days" => Some(86_400.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gemini() -> Quota {
        super::super::named("gemini").map(|adapter| adapter.quota).unwrap_or_default()
    }

    fn seconds(words: &str) -> Option<f64> {
        match gemini().wait(words) {
            Some(Wait::For(time)) => Some(time.as_secs_f64()),
            _ => None,
        }
    }

    #[test]
    fn words_of_the_cli_and_the_api() {
        for (words, wait) in [
            (
                "[API Error: You exceeded your current quota.\nSuggested retry after 39s.]\nPlease wait",
                Some(39.0),
            ),
            ("Quota exceeded for metric: x, limit: 20\nPlease retry in 12.345s.", Some(12.345)),
            ("Please retry in 850ms.", Some(0.85)),
            ("Your quota will reset after 3h12m5s.", Some(11_525.0)),
            ("Your quota will reset after 3h12m.", Some(11_520.0)),
            ("your quota will reset after 2 hours 5 minutes", Some(7500.0)),
            ("Please retry in 5s. Attempt 2: Please retry in 7s.", Some(7.0)),
            ("You exceeded your current quota.", None),
            ("Please retry in a while.", None),
            ("Please retry in 99999999999h", None),
            ("Please retry in 1.2.3s", None),
            ("Please retry in ", None),
        ] {
            assert_eq!(seconds(words), wait, "{words}");
        }
    }

    #[test]
    fn a_days_quota_beats_a_time() {
        let words = "You have exhausted your daily quota on this model.\nSuggested retry after 39s.";
        let zone = Some("America/Los_Angeles".to_string());
        assert_eq!(gemini().wait(words), Some(Wait::NextDay(zone)));
    }

    proptest::proptest! {
        #[test]
        fn no_words_are_too_odd(words in "(Please retry in |Suggested retry after |[0-9a-zßİ.\n ]){0,20}") {
            if let Some(Wait::For(time)) = gemini().wait(&words) {
                assert!(time.as_secs_f64() <= LONGEST);
            }
        }
    }
}
