// slow
//! A scripted API reports an exhausted quota to the real Gemini CLI. The tests check whether guard waits and retries,
//! and what the result says.

use serde_json::{Value, json};

use super::{Answered, exec, request};
use crate::egress::gemini::Gemini;
use crate::support::one_environment;
use crate::support::scripted_api::{Api, Turn};

fn quota(message: &str, details: &Value) -> Turn {
    let error =
        json!({ "code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details });
    Turn::Fails(429, json!({ "error": error }))
}

fn retry_info(delay: &str) -> Value {
    json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay })
}

fn violated(id: &str) -> Value {
    json!({ "@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{ "quotaId": id }] })
}

/// Sends a request to an API whose first answer is this quota error and whose second answer is a success.
fn ask(turn: Turn, more: &Value) -> Option<Answered> {
    let gemini = Gemini::installed()?;
    let environment = one_environment();
    let api = Api::plain(vec![turn, Turn::text("Here I am.")]);
    let mut asked = request(&gemini, &environment, "hello", &json!({ "in_place": true }));
    for (name, value) in more.as_object().into_iter().flatten() {
        asked[name] = value.clone();
    }
    Some(exec(&environment, &api.server.url(""), &asked))
}

/// guard must wait and retry if the API names no waiting time, or a short waiting time.
#[test]
fn short_waiting_time_is_waited_before_the_retry() {
    const WORDS: &str = "You exceeded your current quota.";
    for (turn, waited) in
        [(quota(WORDS, &json!([])), 500), (quota(WORDS, &json!([retry_info("1.2s")])), 1200)]
    {
        let Some(answered) = ask(turn, &json!({})) else { return };
        assert_eq!(answered.result["result"], "Here I am.", "{}", answered.shown());
        let attempts = answered.result["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 2, "{}", answered.shown());
        assert_eq!(attempts[0]["error_kind"], "rate_limited");
        let retry = answered.events.iter().find(|event| event["event_type"] == "exec.retry").unwrap();
        assert_eq!(retry["data"]["wait_ms"], waited, "{retry}");
    }
}

/// If the API names a longer waiting time than any retry waits, guard must report that time and must not retry.
#[test]
fn long_waiting_time_is_reported_and_not_retried() {
    const WORDS: &str = "You exceeded your current quota, please check your plan and billing details.";
    let cases = [
        (quota(WORDS, &json!([retry_info("39s")])), "stream-json", 39),
        (quota(WORDS, &json!([retry_info("39s")])), "text", 39),
        (quota(WORDS, &json!([violated("GenerateRequestsPerMinutePerProjectPerModel")])), "stream-json", 60),
        (
            quota("Quota exceeded for metric: x, limit: 20\nPlease retry in 12.345s.", &json!([])),
            "stream-json",
            13,
        ),
        (
            quota(
                "You have exhausted your capacity on this model. Your quota will reset after 3h12m5s.",
                &json!([]),
            ),
            "stream-json",
            11_525,
        ),
    ];
    for (turn, format, seconds) in cases {
        let Some(answered) = ask(turn, &json!({ "output_format": format })) else { return };
        not_tried_again(&answered, seconds..=seconds);
        let why = answered.result["error_detail"]["not_retried"].as_str().unwrap_or_default();
        assert!(why.contains(&format!("asks for a wait of {seconds} seconds")), "{}", answered.shown());
    }
}

/// guard must not retry after an exhausted daily quota, whatever waiting time the API names.
#[test]
fn exhausted_daily_quota_is_reported_and_not_retried() {
    let details = json!([violated("GenerateRequestsPerDayPerProjectPerModel-FreeTier"), retry_info("1s")]);
    let Some(answered) = ask(quota("You exceeded your current quota.", &details), &json!({})) else { return };
    not_tried_again(&answered, 1..=25 * 3600);
    let why = answered.result["error_detail"]["not_retried"].as_str().unwrap_or_default();
    assert!(why.contains("the daily quota") && why.contains("America/Los_Angeles"), "{}", answered.shown());
}

fn not_tried_again(answered: &Answered, seconds: std::ops::RangeInclusive<u64>) {
    assert_eq!((answered.code, answered.kind()), (1, "rate_limited"), "{}", answered.shown());
    assert_eq!(answered.result["attempts"].as_array().map(Vec::len), Some(1), "{}", answered.shown());
    let detail = &answered.result["error_detail"];
    assert!(
        detail["retry_after_s"].as_u64().is_some_and(|after| seconds.contains(&after)),
        "{}",
        answered.shown()
    );
    let at: jiff::Timestamp = detail["retry_at"].as_str().unwrap_or_default().parse().unwrap();
    let left = at.duration_since(jiff::Timestamp::now()).as_secs();
    assert!(left <= i64::try_from(*seconds.end()).unwrap() && left > -60, "{}", answered.shown());
}
