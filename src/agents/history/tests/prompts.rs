//! Tests of the format and the content of prompts.

use super::*;

fn conversation(messages: usize) -> GeminiHistoryManager {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    for index in 0..messages {
        let role = if index % 2 == 0 { Role::User } else { Role::Assistant };
        history.add_message(role, format!("message {index}"));
    }
    history
}

#[test]
fn without_history_the_prompt_is_the_message_alone() {
    let history = conversation(0);
    for text in ["hello", "", "## Current Message\nUser: hi", "你好 🦀"] {
        let prompt = history.build_prompt(text);
        assert_eq!(prompt.prompt_text, text);
        assert_eq!(prompt.estimated_tokens, estimate_tokens(text));
        assert!(!prompt.was_compressed && prompt.warning.is_none());
    }
}

#[test]
fn one_message() {
    let prompt = conversation(1).build_prompt("next");
    assert_eq!(
        prompt.prompt_text,
        "You are an AI coding assistant helping with a software project.\n\n\
         ## Recent Messages\nUser: message 0\n\n## Current Message\nnext"
    );
}

#[test]
fn five_messages_and_twenty_messages_stay_verbatim_while_they_are_small() {
    for count in [5, 20] {
        let history = conversation(count);
        let prompt = history.build_prompt("next");
        let expected: Vec<String> = history
            .messages()
            .iter()
            .map(|message| format!("{}: {}", message.role.label(), message.content))
            .collect();
        assert_eq!(
            sections(&prompt.prompt_text),
            [
                ("Recent Messages".to_string(), expected.join("\n\n")),
                ("Current Message".to_string(), "next".to_string())
            ]
        );
        assert_eq!(prompt.estimated_tokens, estimate_tokens(&prompt.prompt_text));
        assert!(!prompt.was_compressed);
    }
}

#[test]
fn an_empty_section_is_omitted() {
    let prompt = conversation(2).build_prompt("");
    assert!(!prompt.prompt_text.contains("## Current Message"), "{}", prompt.prompt_text);
    assert!(!prompt.prompt_text.contains("## Conversation Summary"));
    assert!(prompt.prompt_text.ends_with("Assistant: message 1"));
}

#[test]
fn a_new_message_that_is_already_in_the_history_is_not_repeated() {
    let mut history = conversation(2);
    history.add_user("next");
    let prompt = history.build_prompt("next");
    assert_eq!(prompt.prompt_text.matches("next").count(), 1, "{}", prompt.prompt_text);
    assert_eq!(prompt.prompt_text, conversation(2).build_prompt("next").prompt_text);
    let other = history.build_prompt("something else").prompt_text;
    assert!(
        other.contains("User: next\n\n## Current Message\nsomething else"),
        "an unanswered question stays"
    );
}

#[test]
fn chinese_and_emoji_messages_stay_as_they_are() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    history.add_user("请修复解析器 🦀👨‍👩‍👧‍👦");
    history.add_assistant("好的。\n完成 ✅");
    let prompt = history.build_prompt("谢谢").prompt_text;
    assert!(prompt.contains("User: 请修复解析器 🦀👨‍👩‍👧‍👦\n\nAssistant: 好的。\n完成 ✅\n\n"), "{prompt}");
    assert_eq!(history.estimated_total_tokens(), 31);
}

#[test]
fn a_message_of_a_mebibyte_is_cut_in_the_middle_and_the_user_is_told() {
    let huge = format!("BEGIN {} END", "x".repeat(1 << 20));
    let alone = conversation(0).build_prompt(&huge);
    let with_history = conversation(4).build_prompt(&huge);
    for prompt in [&alone, &with_history] {
        assert!(prompt.estimated_tokens <= 16_000, "{}", prompt.estimated_tokens);
        assert!(prompt.estimated_tokens > 11_000, "most of the room is used: {}", prompt.estimated_tokens);
        assert!(prompt.prompt_text.contains("BEGIN ") && prompt.prompt_text.ends_with(" END"));
        assert!(prompt.prompt_text.contains(" characters left out ...]"));
        assert!(prompt.was_compressed);
        assert_eq!(prompt.cut, 1);
        let warning = prompt.warning.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(warning.contains("about 262147 tokens") && warning.contains("at most 16000"), "{warning}");
    }
    assert!(with_history.prompt_text.contains("User: message 0"), "the history keeps its share");
}

#[test]
fn a_huge_message_in_the_history_is_cut_and_the_small_ones_around_it_stay() {
    let mut history = conversation(4);
    history.add_user(format!("BEGIN {} END", "x".repeat(1 << 20)));
    history.add_assistant("a short answer");
    let prompt = history.build_prompt("next");
    assert!(prompt.estimated_tokens <= 16_000);
    for text in ["User: message 0", "User: BEGIN", "END\n\nAssistant: a short answer", "\nnext"] {
        assert!(prompt.prompt_text.contains(text), "{text}");
    }
    assert_eq!((prompt.cut, prompt.left_out), (1, 0));
    assert_eq!(prompt.warning, Some(SizeWarning::RecentMessagesCut { messages: 1 }));
    let mut forms = vec![MessageForm::Verbatim; 6];
    forms[4] = MessageForm::Cut;
    assert_eq!(prompt.forms, forms);
}

#[test]
fn the_last_eight_messages_stay_verbatim_when_older_ones_do_not_fit() {
    let history = exchanges(&[3_000; 10]);
    let prompt = history.build_prompt("next");
    assert!(prompt.estimated_tokens <= 16_000, "{}", prompt.estimated_tokens);
    for message in &history.messages()[12..] {
        assert!(prompt.prompt_text.contains(&message.content));
    }
    // The prompt has room for five exchanges of 3,000 tokens, which are ten messages. The answer of the sixth does
    // not fit.
    assert_eq!(prompt.left_out, 10);
    assert_eq!(prompt.warning, Some(SizeWarning::MessagesLeftOut { messages: 10 }));
}

/// Recent messages of 40,000 tokens must be cut, so that the prompt still contains the summary with the user's
/// constraints.
#[test]
fn the_summary_keeps_its_share_when_the_recent_messages_are_too_large() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    history.add_user("Never push to main.");
    history.add_assistant("Understood.");
    for turn in 0..12 {
        history.add_user(format!("turn {turn}"));
        history.add_assistant(text_of("answer", 900));
    }
    let plan = plan(&mut history);
    accept(&mut history, &plan, "They wrote a queue.");
    for turn in 0..4 {
        history.add_user(text_of(&format!("huge question {turn}"), 5_000));
        history.add_assistant(text_of(&format!("huge answer {turn}"), 5_000));
    }
    let prompt = history.build_prompt("next");
    assert!(
        prompt.estimated_tokens <= 16_000 && prompt.cut == 8,
        "{} {}",
        prompt.estimated_tokens,
        prompt.cut
    );
    assert!(
        prompt.prompt_text.contains("They wrote a queue.")
            && prompt.prompt_text.contains("- Never push to main.")
    );
    assert!(
        prompt.prompt_text.contains("User: huge question 0 ")
            && prompt.prompt_text.contains("Assistant: huge answer 3 ")
    );
}

#[test]
fn prompts_have_no_timestamps_and_no_frames() {
    let prompt = conversation(6).build_prompt("next").prompt_text;
    assert!(!prompt.contains("---") && !prompt.contains("Previous Conversation") && !prompt.contains("202"));
}

#[test]
fn without_compression_old_messages_are_left_out_and_the_user_is_told() {
    let config = HistoryConfig { enable_compression: false, ..HistoryConfig::default() };
    let mut history =
        GeminiHistoryManager::from_parts(config, exchanges(&[1_000; 40]).messages().to_vec(), None);
    assert!(history.maybe_compress().is_none());
    let prompt = history.build_prompt("next");
    assert!(prompt.estimated_tokens <= 16_000 && prompt.left_out > 40, "{}", prompt.left_out);
    assert!(matches!(prompt.warning, Some(SizeWarning::MessagesLeftOut { .. })));
}

#[test]
fn clearing_forgets_everything() {
    let mut history = exchanges(&[1_000; 20]);
    let plan = plan(&mut history);
    accept(&mut history, &plan, "short");
    history.clear_history();
    assert_eq!((history.message_count(), history.estimated_total_tokens()), (0, 0));
    assert_eq!((history.summary(), history.dropped()), (None, None));
    assert_eq!(history.build_prompt("hello").prompt_text, "hello");
}
