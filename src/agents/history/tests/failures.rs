//! Tests with summary models that fail and prompts that time out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

fn failed() -> Result<String, SummaryError> {
    Err(SummaryError::Failed { reason: "no quota".to_string() })
}

#[test]
fn an_empty_summary_and_one_that_is_not_smaller_are_rejected() {
    let mut history = exchanges(&[1_000; 12]);
    let first = plan(&mut history);
    assert_eq!(history.apply_summary(&first, Ok(" \n".to_string())), Applied::Rejected(SummaryError::Empty));
    let mut history = exchanges(&[1_000; 12]);
    let first = plan(&mut history);
    let applied = history.apply_summary(&first, Ok(text_of("longer", 8_000)));
    let error = SummaryError::TooLarge { summary: 8_000, replaced: 8_000 };
    assert_eq!(applied, Applied::Rejected(error));
    assert_eq!(history.summary(), None);
    let summary = accept(&mut history, &first, &text_of("shorter", 7_999));
    assert!(summary.estimated_tokens() <= 2_700, "a long summary is cut: {}", summary.estimated_tokens());
}

#[test]
fn after_two_failures_the_oldest_messages_are_dropped() {
    let mut history = exchanges(&[1_000; 12]);
    history.set_time(Duration::from_secs(1_000));
    let first = plan(&mut history);
    assert!(matches!(
        history.apply_summary(&first, failed()),
        Applied::Rejected(SummaryError::Failed { .. })
    ));
    let second = plan(&mut history);
    let Applied::Truncated(summary) = history.apply_summary(&second, failed()) else {
        panic!("not truncated")
    };
    assert_eq!((summary.covers, summary.dropped, &summary.made_by), (16, 16, &SummarySource::Truncation));
    let prompt = history.build_prompt("next");
    assert_eq!(prompt.left_out, 16);
    assert!(prompt.prompt_text.contains("[Messages left out without a summary: 16.]"));
    assert_eq!(history.message_count(), 24, "the full history is kept");

    // The breaker is open: further compactions drop messages at once.
    for turn in 0..8 {
        history.add_user("more");
        history.add_assistant(text_of(&format!("more {turn}"), 1_000));
    }
    assert!(history.maybe_compress().is_none());
    assert_eq!(history.summary().map(|summary| (summary.covers, summary.dropped)), Some((32, 32)));

    // Five minutes later, guard asks the model again, for a summary of everything that was dropped.
    history.set_time(Duration::from_secs(1_300));
    for turn in 0..8 {
        history.add_user("more");
        history.add_assistant(text_of(&format!("even more {turn}"), 1_000));
    }
    let third = plan(&mut history);
    assert_eq!(third.range, 0..48);
    let summary = accept(&mut history, &third, "All of it.");
    assert_eq!((summary.covers, summary.dropped), (48, 0));
    assert_eq!(history.build_prompt("next").left_out, 0);
}

/// A model summarises 16 messages and fails afterwards. The history must keep the summary, and only later messages
/// may count as left out.
#[test]
fn dropping_messages_keeps_the_earlier_summary() {
    let mut history = exchanges(&[1_000; 12]);
    let first = plan(&mut history);
    accept(&mut history, &first, "They chose SQLite.");
    for turn in 0..10 {
        history.add_user("Always ask first.");
        history.add_assistant(text_of(&format!("more {turn}"), 1_000));
    }
    let summary = history.truncate_history().unwrap_or_else(|| panic!("nothing to drop"));
    assert_eq!((summary.covers, summary.dropped), (36, 20));
    assert_eq!(summary.text, "They chose SQLite.\n\n[Messages left out without a summary: 20.]");
    assert!(summary.pinned.contains(&"Always ask first.".to_string()), "{:?}", summary.pinned);
    let prompt = history.build_prompt("next");
    assert_eq!(prompt.left_out, 20);
    let expected = [(16, MessageForm::InSummary), (20, MessageForm::LeftOut), (8, MessageForm::Verbatim)];
    let expected: Vec<MessageForm> =
        expected.into_iter().flat_map(|(count, form)| std::iter::repeat_n(form, count)).collect();
    assert_eq!(prompt.forms, expected);
    assert_eq!(history.truncate_history(), None);
}

#[test]
fn a_success_forgets_a_failure() {
    let mut history = exchanges(&[1_000; 12]);
    let first = plan(&mut history);
    let _ = history.apply_summary(&first, failed());
    accept(&mut history, &first, "A summary.");
    for _ in 0..10 {
        history.add_user("more");
        history.add_assistant(text_of("more", 1_000));
    }
    let second = plan(&mut history);
    assert!(matches!(history.apply_summary(&second, failed()), Applied::Rejected(_)), "the first in a row");
}

#[test]
fn an_answer_for_another_state_of_the_conversation_is_rejected() {
    let mut history = exchanges(&[1_000; 12]);
    let old = plan(&mut history);
    history.clear_history();
    assert_eq!(history.apply_summary(&old, Ok("late".to_string())), Applied::Rejected(SummaryError::Stale));
    let mut history = exchanges(&[1_000; 20]);
    assert_eq!(
        history.apply_summary(&old, failed()),
        Applied::Rejected(SummaryError::Failed { reason: "no quota".into() })
    );
    let new = plan(&mut history);
    accept(&mut history, &new, "newer");
    assert_eq!(
        history.apply_summary(&old, Ok("older".to_string())),
        Applied::Rejected(SummaryError::Superseded)
    );
    assert_eq!(history.summary().map(|summary| summary.covers), Some(32));
    let mut forged = new;
    forged.range.end = forged.range.start;
    assert_eq!(history.apply_summary(&forged, Ok("x".to_string())), Applied::Rejected(SummaryError::Stale));
}

struct Scripted {
    answers: Vec<Result<String, SummaryError>>,
    asked: AtomicUsize,
}

impl Summarizer for Scripted {
    fn summarize<'a>(&'a self, request: &'a SummaryRequest) -> SummaryFuture<'a> {
        Box::pin(async move {
            assert!(request.prompt.contains("## Messages to Summarise\n"));
            let index = self.asked.fetch_add(1, Ordering::Relaxed);
            self.answers.get(index).cloned().unwrap_or(Err(SummaryError::Timeout { seconds: 5 }))
        })
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap_or_else(|error| panic!("{error}")).block_on(future)
}

#[test]
fn a_history_can_be_summarised_on_demand() {
    let scripted = Arc::new(Scripted { answers: vec![Ok("Short.".to_string())], asked: AtomicUsize::new(0) });
    let mut history = exchanges(&[100; 12]).with_summarizer(scripted.clone());
    assert_eq!(wait(history.summarize_history()), Ok("Short.".to_string()));
    assert_eq!(history.summary().map(|summary| summary.covers), Some(16));
    assert_eq!(
        wait(history.summarize_history()),
        Err(SummaryError::NothingToSummarize),
        "nothing is asked twice"
    );
    history.add_user("more");
    history.add_assistant("more");
    assert_eq!(wait(history.summarize_history()), Err(SummaryError::Timeout { seconds: 5 }));
    let text = wait(history.summarize_history());
    assert_eq!(text, Ok("Short.\n\n[Messages left out without a summary: 2.]".to_string()));
    assert_eq!(scripted.asked.load(Ordering::Relaxed), 3);
}

#[test]
fn without_a_summarizer_messages_are_dropped() {
    let mut history = exchanges(&[1_000; 12]);
    assert_eq!(wait(history.summarize_history()), Err(SummaryError::NoSummarizer));
    let plan = plan(&mut history);
    let applied = history.apply_summary(&plan, Err(SummaryError::NoSummarizer));
    assert!(matches!(applied, Applied::Truncated(_)), "{applied:?}");
}

/// A prompt of 12,000 tokens times out: the history must advise a retry with at most 8,000 tokens. If the retry times
/// out as well, it must advise to offer clearing the history. For a small prompt, it must say that the size was not
/// the reason.
#[test]
fn a_time_out_leads_to_a_smaller_prompt_and_then_to_an_offer() {
    let mut history = exchanges(&[1_500; 8]);
    let prompt = history.build_prompt("next");
    assert_eq!(history.after_timeout(&prompt, 1), TimeoutAdvice::RetryWithin(8_000));
    history.truncate_history();
    let retry = history.build_prompt_within("next", 8_000);
    assert!(retry.estimated_tokens <= 8_000 && retry.was_compressed, "{}", retry.estimated_tokens);
    assert_eq!(history.after_timeout(&retry, 2), TimeoutAdvice::OfferToClear);
    let small = exchanges(&[100]).build_prompt("next");
    assert_eq!(history.after_timeout(&small, 1), TimeoutAdvice::SizeIsNotTheReason);
}
