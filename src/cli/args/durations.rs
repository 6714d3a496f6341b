//! Parsers for times on the command line: `90s`, `5m`, `2h`, `1d`, `2w`, or a plain number of seconds.

use std::time::Duration;

use crate::judge::policy::TimeLimit;

/// Parses a time in whole seconds.
pub(in crate::cli) fn parse_seconds(text: &str) -> Result<u64, String> {
    TimeLimit::parse(text)
        .map(|limit| limit.0)
        .ok_or_else(|| "expected seconds, or a time such as 90s, 5m, 2h or 1d".to_string())
}

/// Parses a pause: a time with a unit, or a number of seconds that may have a fraction.
pub(in crate::cli) fn parse_pause(text: &str) -> Result<Duration, String> {
    if let Some(limit) = TimeLimit::parse(text) {
        return Ok(Duration::from_secs(limit.0));
    }
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "expected seconds such as 2 or 0.5, or a time such as 5m".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        for (text, seconds) in [
            ("0", 0),
            ("60", 60),
            ("90s", 90),
            ("5m", 300),
            (" 2 h ", 7_200),
            ("1d", 86_400),
            ("2w", 1_209_600),
        ] {
            assert_eq!(parse_seconds(text), Ok(seconds), "{text}");
        }
        for text in
            ["", "m", "soon", "-1", "1.5h", "5é", "5 m s", "99999999999999999999", "9999999999999999w"]
        {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pauses_may_be_fractions() {
        assert_eq!(parse_pause("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_pause("2m"), Ok(Duration::from_secs(120)));
        for text in ["nan", "-1", "inf", "1e400", "later"] {
            assert!(parse_pause(text).is_err(), "{text}");
        }
    }
}
