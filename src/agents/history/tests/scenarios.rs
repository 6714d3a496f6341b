//! Tests of three whole conversations: two short turns, fifteen long turns, and sixty turns.

use super::*;

/// The user asks for 2+2 in turn 1 and for 3+3 in turn 2: the second prompt must contain the first exchange.
#[test]
fn two_short_turns() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    history.add_user("What's 2+2?");
    assert_eq!(history.message_count(), 1);
    assert!((1..=10).contains(&history.estimated_total_tokens()), "{}", history.estimated_total_tokens());
    let first = history.build_prompt("What's 2+2?");
    assert_eq!(first.prompt_text, "What's 2+2?");
    assert!((1..=10).contains(&first.estimated_tokens));
    assert!(!first.was_compressed);

    history.add_assistant("4");
    history.add_user("What about 3+3?");
    assert_eq!(history.message_count(), 3);
    assert!((1..=30).contains(&history.estimated_total_tokens()), "{}", history.estimated_total_tokens());
    let second = history.build_prompt("What about 3+3?");
    assert_eq!(
        second.prompt_text,
        "You are an AI coding assistant helping with a software project.\n\n\
         ## Recent Messages\nUser: What's 2+2?\n\nAssistant: 4\n\n\
         ## Current Message\nWhat about 3+3?"
    );
    assert!(second.estimated_tokens < 50, "{}", second.estimated_tokens);
    assert_eq!((second.was_compressed, second.warning, second.left_out), (false, None, 0));
    assert!(history.maybe_compress().is_none());
}

/// Turn 15, after 14 exchanges with about 12,000 tokens: the first ten exchanges (8,000 tokens) must become a summary
/// of about 50 tokens, and the last four must stay verbatim.
#[test]
fn the_fifteenth_turn_compacts_the_first_ten_exchanges() {
    let sizes = [vec![800; 10], vec![1_000; 4]].concat();
    let mut history = exchanges(&sizes);
    let new = "And what about the tests?";
    history.add_user(new);
    assert_eq!(history.message_count(), 29);
    assert!((11_900..=12_100).contains(&history.estimated_total_tokens()));

    let plan = plan(&mut history);
    assert_eq!((plan.level, plan.range.clone(), plan.request.covers), (Level::Window, 0..20, 20));
    assert_eq!(plan.request.model, "gemini-2.5-flash");
    assert!(plan.request.prompt.contains("User: question 1 lorem"), "the first message is summarised");
    assert!(plan.request.prompt.contains("Assistant: answer 10 lorem"));
    assert!(!plan.request.prompt.contains("question 11"));

    let text = text_of("The user builds a parser; ten exchanges discussed its grammar.", 50);
    let summary = accept(&mut history, &plan, &text);
    assert_eq!(
        (summary.covers, summary.made_by.clone()),
        (20, SummarySource::Model(plan.request.model.clone()))
    );
    let prompt = history.build_prompt(new);
    assert!(prompt.was_compressed);
    assert_eq!((prompt.left_out, prompt.warning.clone(), prompt.cut), (0, None, 0));
    assert!(prompt.estimated_tokens < 5_000, "{}", prompt.estimated_tokens);
    for message in &history.messages()[20..28] {
        assert!(prompt.prompt_text.contains(&message.content), "{}", &message.content[..12]);
    }
    for message in &history.messages()[1..20] {
        assert!(!prompt.prompt_text.contains(&message.content), "{}", &message.content[..12]);
    }
    let titles: Vec<String> = sections(&prompt.prompt_text).into_iter().map(|(title, _)| title).collect();
    assert_eq!(titles, ["Conversation Summary", "Recent Messages", "Current Message"]);
    assert_eq!(history.message_count(), 29, "the full history is kept");
}

/// A user talks for 60 turns, with answers of 700 tokens. A compaction must be due every few turns, not at
/// every turn, and every prompt must contain the last four exchanges and leave out nothing.
#[test]
fn sixty_turns() {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    let mut compactions = Vec::new();
    for turn in 1..=60 {
        let question = text_of(&format!("question {turn}"), 100);
        history.add_user(question.as_str());
        if let Some(plan) = history.maybe_compress() {
            let summary = accept(&mut history, &plan, &format!("Summary of turn {turn}."));
            compactions.push((turn, summary.covers));
        }
        let prompt = history.build_prompt(&question);
        assert!(prompt.estimated_tokens <= 9_500, "turn {turn}: {}", prompt.estimated_tokens);
        assert_eq!(prompt.left_out, 0, "turn {turn}");
        assert!(prompt.prompt_text.ends_with(&question), "turn {turn}");
        let begin = history.message_count().saturating_sub(9);
        for message in &history.messages()[begin..] {
            assert!(prompt.prompt_text.contains(&message.content), "turn {turn}: {}", message.content);
        }
        history.add_assistant(text_of(&format!("answer {turn}"), 700));
    }
    assert!(compactions.iter().map(|(_, covers)| covers).is_sorted());
    assert!((6..=12).contains(&compactions.len()), "{compactions:?}");
    assert_eq!(compactions[0], (11, 12), "8,000 tokens are exceeded in turn 11");
}
