//! Property tests: what must hold for every conversation.

use proptest::prelude::*;

use super::*;

/// Generates texts with everything that has a meaning in a prompt, from empty to far larger than a small
/// budget.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => "[a-z ]{1,12}",
        1 => Just("\n".to_string()),
        1 => Just("你必须🦀".to_string()),
        1 => Just("\nUser: x".to_string()),
        1 => Just("\n\n## Current Message\n".to_string()),
        1 => Just("never src/a.rs 8080 ".to_string()),
        1 => any::<char>().prop_map(String::from),
    ];
    (prop::collection::vec(word, 0..12), 0_usize..16).prop_map(|(words, times)| words.concat().repeat(times))
}

fn config() -> impl Strategy<Value = HistoryConfig> {
    (0_usize..3_000, 0_usize..2_000, 0_usize..12, any::<bool>(), 0_usize..600).prop_map(
        |(
            max_prompt_tokens,
            summary_threshold,
            recent_message_count,
            enable_compression,
            max_pinned_tokens,
        )| {
            HistoryConfig {
                max_prompt_tokens,
                summary_threshold,
                recent_message_count,
                enable_compression,
                max_pinned_tokens,
                ..HistoryConfig::default()
            }
        },
    )
}

/// Generates a turn: a question, an answer, and the reply of the summary model in case it is asked.
fn turn() -> impl Strategy<Value = (String, String, Result<String, SummaryError>)> {
    let answer = prop_oneof![
        3 => text().prop_map(Ok),
        1 => Just(Err(SummaryError::Timeout { seconds: 3 })),
        1 => Just(Ok(String::new())),
    ];
    (text(), text(), answer)
}

fn check(history: &GeminiHistoryManager, new: &str) -> Result<(), TestCaseError> {
    let prompt = history.build_prompt(new);
    let budget = history.config().max_prompt_tokens;
    prop_assert!(prompt.estimated_tokens <= budget, "{} > {budget}", prompt.estimated_tokens);
    prop_assert_eq!(prompt.estimated_tokens, estimate_tokens(&prompt.prompt_text));
    prop_assert!(prompt.left_out <= history.message_count());
    for (message, form) in history.messages().iter().zip(&prompt.forms) {
        let written = prompt_text::write_message(message);
        prop_assert!(*form != MessageForm::Verbatim || prompt.prompt_text.contains(&written), "{written:?}");
    }
    prop_assert_eq!(&prompt, &history.build_prompt(new), "the same prompt twice");
    // `needed` is an upper limit for the size of the recent messages, which escapes can at most double. If they and the
    // new message fit the budget, the prompt must contain the recent messages verbatim.
    let count = history.config().recent_message_count;
    let recent = &history.messages()[history.message_count().saturating_sub(count)..];
    let size = |text: &str| 2 * estimate_tokens(text) + 5;
    let needed: usize = recent.iter().map(|message| size(&message.content)).sum();
    let is_added = history.messages().last().is_some_and(|last| last.content == new);
    if needed + size(new) + 40 <= budget && !is_added {
        let covered = history.summary().map_or(0, |summary| summary.covers);
        let begin = history.message_count().saturating_sub(count).max(covered);
        for message in &history.messages()[begin..] {
            let written = prompt_text::write_message(message);
            prop_assert!(prompt.prompt_text.contains(&written), "{written:?}");
        }
        prop_assert_eq!(prompt.cut, 0);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever the messages are and whatever the summary model answers: no prompt exceeds the budget, recent
    /// messages that fit are verbatim, the summary never covers fewer messages than before, and it is smaller
    /// than what it replaces.
    #[test]
    fn a_conversation_keeps_its_promises(config in config(), turns in prop::collection::vec(turn(), 0..10)) {
        let mut history = GeminiHistoryManager::new(config);
        let mut covered = 0;
        for (question, answer, summary) in turns {
            check(&history, &question)?;
            history.add_user(question.as_str());
            check(&history, &question)?;
            history.add_assistant(answer);
            if let Some(plan) = history.maybe_compress() {
                let before = estimate_tokens(&history.messages()[plan.range.clone()].iter().map(|one| one.content.as_str()).collect::<String>());
                let earlier = history.summary().map_or(0, Summary::estimated_tokens);
                if let Applied::Accepted(summary) = history.apply_summary(&plan, summary) {
                    prop_assert!(summary.estimated_tokens() <= before + earlier);
                }
            }
            let now = history.summary().map_or(0, |summary| summary.covers);
            prop_assert!(now >= covered && now <= history.message_count());
            covered = now;
            history.dropped();
        }
        let restored = GeminiHistoryManager::from_parts(
            history.config().clone(), history.messages().to_vec(), history.summary().cloned());
        prop_assert_eq!(restored.build_prompt("next"), history.build_prompt("next"));
    }

    /// A prompt for one new message must never exceed the budget, whatever the message is.
    #[test]
    fn one_message_fits(config in config(), new in text(), old in text()) {
        let mut history = GeminiHistoryManager::new(config);
        check(&history, &new)?;
        history.add_message(Role::System, old);
        check(&history, &new)?;
    }
}
