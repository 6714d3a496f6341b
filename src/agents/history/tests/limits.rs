//! Tests with budgets of all sizes, all models, and very long conversations.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn every_model_gets_a_prompt_within_its_limits() {
    for model in ["gemini-3-pro-preview", "gemini-2.5-pro", "gemini-2.5-flash", "gemini-3-pro", "some-model"]
    {
        let config = HistoryConfig {
            model: model.to_string(),
            max_prompt_tokens: 2_000_000,
            enable_compression: false,
            ..HistoryConfig::default()
        };
        let mut history = GeminiHistoryManager::new(config);
        (0..5).for_each(|_| history.add_user("你".repeat(150_000)));
        let prompt = history.build_prompt("next");
        let limits = limits_of(model);
        assert!(prompt.estimated_tokens <= limits.safe_limit - 8_000, "{model}: {}", prompt.estimated_tokens);
        assert!(prompt.estimated_tokens > limits.warning, "{model}");
    }
}

#[test]
fn a_prompt_above_the_target_gets_a_warning() {
    let warning = |tokens: usize| {
        let config = HistoryConfig { max_prompt_tokens: 100_000, ..HistoryConfig::default() };
        let history = GeminiHistoryManager::new(config);
        history.build_prompt(&text_of("text", tokens)).warning
    };
    assert_eq!(warning(16_000), None);
    assert!(matches!(warning(16_001), Some(SizeWarning::PromptLarge { .. })));
    assert!(matches!(warning(40_001), Some(SizeWarning::PromptSlow { .. })));
    assert!(matches!(warning(60_001), Some(SizeWarning::PromptTooLarge { .. })));
}

#[test]
fn a_long_conversation_gets_a_warning_although_its_prompts_are_small() {
    let mut history = exchanges(&[1_000; 61]);
    let plan = plan(&mut history);
    accept(&mut history, &plan, "A summary.");
    let prompt = history.build_prompt("next");
    assert!(prompt.estimated_tokens < 8_000);
    assert_eq!(prompt.warning, Some(SizeWarning::ConversationLong { tokens: 61_000 }));
}

#[test]
fn a_budget_of_a_few_tokens_is_kept() {
    for budget in 0..60 {
        let config = HistoryConfig { max_prompt_tokens: budget, ..HistoryConfig::default() };
        let messages = exchanges(&[100; 4]).messages().to_vec();
        let history = GeminiHistoryManager::from_parts(config, messages, None);
        let prompt = history.build_prompt("What about the tests?");
        assert!(prompt.estimated_tokens <= budget, "{budget}: {}", prompt.estimated_tokens);
        assert!(prompt.was_compressed);
    }
}

/// Building a prompt in a conversation of 10,000 messages must read only the messages that become part of the
/// prompt. The target in a release build is 10 ms, which `cargo bench --bench history` measures. The test
/// allows ten times as long, which no build exceeds unless it reads all messages again.
#[test]
fn a_prompt_of_ten_thousand_messages_is_built_quickly() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    for index in 0..10_000 {
        let role = if index % 2 == 0 { Role::User } else { Role::Assistant };
        history.add_message(role, text_of(&format!("message {index}"), 60));
    }
    let is_fast = (0..50).any(|_| {
        let start = Instant::now();
        let prompt = history.build_prompt("next");
        assert!(prompt.estimated_tokens <= 16_000 && prompt.left_out > 9_700);
        start.elapsed() < Duration::from_millis(100)
    });
    assert!(is_fast);
}
