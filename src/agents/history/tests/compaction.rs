//! Tests when a summary replaces older messages, and what the summary keeps.

use super::*;

#[test]
fn compaction_starts_above_eight_thousand_tokens() {
    assert!(exchanges(&[800; 10]).plan_compaction().is_none(), "exactly 8,000 tokens");
    let mut history = exchanges(&[800; 10]);
    history.add_user("one more");
    assert!(history.plan_compaction().is_some());
}

#[test]
fn the_size_chooses_the_level_and_the_threshold_can_be_lower() {
    let level = |sizes: &[usize], threshold| {
        let config = HistoryConfig { summary_threshold: threshold, ..HistoryConfig::default() };
        let messages = exchanges(sizes).messages().to_vec();
        GeminiHistoryManager::from_parts(config, messages, None).plan_compaction().map(|plan| plan.level)
    };
    assert_eq!(level(&[400; 12], 1_000), None, "below 5,000 tokens everything stays verbatim");
    assert_eq!(level(&[500; 12], 1_000), Some(Level::Window));
    assert_eq!(level(&[1_000; 15], 8_000), Some(Level::Window));
    assert_eq!(level(&[1_000; 16], 8_000), Some(Level::AllButRecent));
}

#[test]
fn the_middle_level_keeps_the_first_message_and_the_last_level_does_not() {
    for (count, is_kept) in [(12, true), (20, false)] {
        let mut history = exchanges(&vec![1_000; count]);
        let plan = plan(&mut history);
        accept(&mut history, &plan, "A summary.");
        let prompt = history.build_prompt("next").prompt_text;
        let first = &history.messages()[0].content;
        assert_eq!(
            prompt.contains(&format!("The conversation began with:\nUser: {first}")),
            is_kept,
            "{count}"
        );
        assert!(!prompt.contains(&history.messages()[2].content));
        assert!(
            prompt.contains("A summary.\n\nStated in these messages") || prompt.contains("A summary.\n\n##")
        );
    }
}

#[test]
fn a_later_compaction_summarises_the_earlier_summary_and_the_newer_messages() {
    let mut history = exchanges(&[1_000; 12]);
    let first = plan(&mut history);
    accept(&mut history, &first, "They chose SQLite.");
    for turn in 0..10 {
        history.add_user(text_of(&format!("later question {turn}"), 100));
        history.add_assistant(text_of(&format!("later answer {turn}"), 900));
    }
    let second = plan(&mut history);
    assert_eq!(second.range, 16..36);
    assert!(
        second.request.prompt.contains("## Earlier Summary\nThey chose SQLite."),
        "{}",
        second.request.prompt
    );
    let shows = |text: &str| second.request.prompt.contains(text);
    assert!(shows("Assistant: answer 9 ") && shows("Assistant: later answer 5 "));
    assert!(!shows("Assistant: answer 8 ") && !shows("later answer 6 "));
    let summary = accept(&mut history, &second, "They chose SQLite and wrote it.");
    assert_eq!(summary.covers, 36);
    assert_eq!(history.build_prompt("next").left_out, 0);
}

#[test]
fn constraints_paths_names_and_numbers_survive_compaction() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    history
        .add_user("Write the queue in src/queue/mod.rs for Alice. Never push to main. 不要修改 README.md。");
    history.add_assistant("Done, `QueueConfig` listens on port 8080.");
    for turn in 0..12 {
        history.add_user(format!("turn {turn}"));
        history.add_assistant(text_of("answer", 900));
    }
    let plan = plan(&mut history);
    let summary = accept(&mut history, &plan, "A queue was written.");
    assert_eq!(summary.pinned[..2], ["Never push to main.", "不要修改 README.md。"]);
    let prompt = history.build_prompt("next").prompt_text;
    for fact in [
        "Never push to main.",
        "不要修改 README.md。",
        "src/queue/mod.rs",
        "QueueConfig",
        "Alice",
        "port 8080",
    ] {
        assert!(prompt.contains(fact), "{fact}");
    }
}

#[test]
fn pinned_facts_are_bounded() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    for turn in 0..100 {
        history.add_user(format!(
            "Never do thing number {turn} in src/file{turn}.rs, it would break the release."
        ));
        history.add_assistant(text_of("answer", 100));
    }
    let plan = plan(&mut history);
    let summary = accept(&mut history, &plan, "Many rules.");
    assert!(summary.estimated_tokens() <= 620, "{}", summary.estimated_tokens());
    assert!(summary.pinned[0].starts_with("Never do thing number 0 "), "{:?}", summary.pinned);
    let dropped = history.dropped().map(|dropped| dropped.lost_facts).unwrap_or_default();
    assert!(dropped.iter().any(|fact| fact.starts_with("Never do thing number 80 ")), "{dropped:?}");
}

#[test]
fn what_was_dropped_can_be_shown() {
    let mut history = exchanges(&[1_000; 12]);
    assert_eq!(history.dropped(), None);
    let plan = plan(&mut history);
    accept(&mut history, &plan, "A summary.");
    let dropped = history.dropped().unwrap_or_else(|| panic!("nothing dropped"));
    assert_eq!((dropped.messages.len(), dropped.tokens), (16, 8_000));
    assert_eq!(dropped.summary.text, "A summary.");
    assert!(dropped.summary_tokens < 100);
}

#[test]
fn the_compacted_conversation_is_one_system_message_and_the_recent_ones() {
    let mut history = exchanges(&[1_000; 12]);
    let plan = plan(&mut history);
    accept(&mut history, &plan, "A summary.");
    let compacted = history.compacted_messages();
    assert_eq!(compacted.len(), 9);
    assert_eq!(compacted[0].role, Role::System);
    assert!(compacted[0].content.starts_with("A summary."));
    assert_eq!(compacted[1..], history.messages()[16..]);
}

/// Until the background task has returned the model's answer, the next turns must not ask the model again.
#[test]
fn a_plan_is_returned_once_until_it_is_applied() {
    let mut history = exchanges(&[1_000; 12]);
    let first = plan(&mut history);
    assert!(history.maybe_compress().is_none());
    history.add_user("another question");
    history.add_assistant("another answer");
    assert!(history.maybe_compress().is_none());
    let summary = accept(&mut history, &first, "A summary.");
    assert_eq!(summary.covers, 16, "messages added meanwhile are not covered");
    assert!(history.build_prompt("next").prompt_text.contains("another answer"));
}

#[test]
fn the_same_messages_are_summarised_once() {
    let messages = exchanges(&[1_000; 12]).messages().to_vec();
    let mut history = exchanges(&[1_000; 12]);
    let plan = plan(&mut history);
    let summary = accept(&mut history, &plan, "A summary.");
    history.clear_history();
    for message in &messages {
        history.add_message(message.role, message.content.as_str());
    }
    assert!(history.maybe_compress().is_none(), "the summary is cached");
    assert_eq!(history.summary(), Some(&summary));

    let stored = serde_json::to_string(history.cache()).unwrap_or_else(|error| panic!("{error}"));
    let cache = serde_json::from_str(&stored).unwrap_or_else(|error| panic!("{error}"));
    let mut other = GeminiHistoryManager::from_parts(HistoryConfig::default(), messages, None)
        .with_state(cache, CircuitBreaker::default());
    assert!(other.maybe_compress().is_none());
    assert_eq!(other.summary(), Some(&summary));
}

#[test]
fn a_stored_summary_is_used_only_for_its_own_messages() {
    let mut history = exchanges(&[1_000; 12]);
    let plan = plan(&mut history);
    let summary = accept(&mut history, &plan, "A summary.");
    let restored = |messages: Vec<Message>| {
        let history =
            GeminiHistoryManager::from_parts(HistoryConfig::default(), messages, Some(summary.clone()));
        history.summary().is_some()
    };
    let messages = history.messages().to_vec();
    assert!(restored(messages.clone()));
    assert!(!restored(messages[1..].to_vec()), "another conversation");
    assert!(!restored(messages[..10].to_vec()), "fewer messages than it covers");
    let mut changed = messages;
    changed[3].content.push('!');
    assert!(!restored(changed));
}

/// If the last eight messages have 40,000 tokens, fewer than eight must stay verbatim, and the plan must summarise
/// the others.
#[test]
fn recent_messages_that_alone_exceed_the_budget_are_summarised_too() {
    let mut history = exchanges(&[10_000; 6]);
    let plan = plan(&mut history);
    assert_eq!(plan.range, 0..10, "the last exchange stays");
    accept(&mut history, &plan, "A summary.");
    let prompt = history.build_prompt("next");
    assert!(prompt.estimated_tokens <= 16_000);
    assert_eq!((prompt.left_out, prompt.cut), (0, 0));
    assert!(prompt.prompt_text.contains(&history.messages()[11].content));
}

/// The recent messages alone exceed the threshold. A few new words must not start another compaction.
#[test]
fn a_small_gain_does_not_start_a_compaction() {
    let mut history = exchanges(&[2_500; 4]);
    assert!(history.maybe_compress().is_none(), "all eight messages are recent");
    history.add_user("ok");
    history.add_assistant("fine");
    assert!(history.maybe_compress().is_some(), "a question of 312 tokens is worth it");
    let mut history = exchanges(&[40, 2_500, 2_500, 2_500, 2_500]);
    assert!(history.maybe_compress().is_none(), "40 tokens are not");
}

#[test]
fn the_prompt_for_the_summary_model_is_bounded() {
    let mut history = exchanges(&[200; 2_000]);
    let plan = plan(&mut history);
    assert!(estimate_tokens(&plan.request.prompt) < 41_000, "{}", estimate_tokens(&plan.request.prompt));
    assert!(plan.request.prompt.contains("[earlier messages that are not shown: "));
    assert!(plan.request.prompt.contains("answer 1996 "), "the newest ones are shown");
}

/// The user asks for a summary of a short conversation. If the model fails, nothing may be dropped from prompts,
/// because they have room for all messages.
#[test]
fn a_requested_compaction_needs_no_long_conversation() {
    let mut history = exchanges(&[100; 6]);
    assert_eq!(history.maybe_compress(), None);
    let plan = history.plan_requested_compaction().unwrap_or_else(|| panic!("no plan"));
    assert_eq!((plan.range.clone(), plan.is_due), (0..4, false));
    for _ in 0..3 {
        let failed = history.apply_summary(&plan, Err(SummaryError::Timeout { seconds: 1 }));
        assert!(matches!(failed, Applied::Rejected(SummaryError::Timeout { .. })), "{failed:?}");
    }
    assert_eq!((history.summary(), history.breaker()), (None, &CircuitBreaker::default()));
    accept(&mut history, &plan, "A summary.");
    assert_eq!(history.plan_requested_compaction(), None);
}

/// guard has dropped messages without a summary. The user asks for a summary, which must describe them.
#[test]
fn a_requested_compaction_summarises_dropped_messages() {
    let mut history = exchanges(&[1_000; 12]);
    let dropped = history.truncate_history().map(|summary| summary.dropped);
    assert_eq!((dropped, history.maybe_compress()), (Some(16), None));
    let plan = history.plan_requested_compaction().unwrap_or_else(|| panic!("no plan"));
    assert_eq!(plan.range, 0..16);
    let summary = accept(&mut history, &plan, "A summary.");
    assert_eq!((summary.covers, summary.dropped), (16, 0));
    assert_eq!(history.build_prompt("next").left_out, 0);
    assert_eq!(history.plan_requested_compaction(), None);
}
