//! Runs the agent of `examples/reflect_and_revise.rs`, which uses the public traits with event types of its own.

#[path = "../../examples/reflect_and_revise.rs"]
mod reflect_and_revise;

use guard::work::research::{Agent, EventRegistry, UnknownEvents, ValidationMode, Validity};
use serde_json::json;

#[test]
fn custom_research_agent_emits_its_own_events() {
    let updates = reflect_and_revise::run().unwrap();
    let types: Vec<&str> = updates.iter().map(|update| update.event_type.as_str()).collect();
    assert_eq!(types, ["draft_completed", "critique_completed", "critique_completed", "final_result"]);
    let result = updates.last().unwrap().as_final_result().unwrap();
    assert_eq!(result.answer, "Water boils at 100 °C at sea level.");
    assert_eq!(result.metadata.total_tokens, 40);
    // A reader that knows only the events of deep research must ignore the others.
    let mut registry = EventRegistry::of_research(ValidationMode::Strict, UnknownEvents::Drop).unwrap();
    let validity: Vec<Validity> = updates.iter().map(|update| registry.validate(update).unwrap()).collect();
    assert_eq!(validity, [Validity::Unknown, Validity::Unknown, Validity::Unknown, Validity::Valid]);
    assert_eq!(registry.ignored(), 3);
    registry.register("draft_completed", &json!({"type": "object", "required": ["draft"]})).unwrap();
    assert_eq!(registry.validate(&updates[0]), Ok(Validity::Valid));
    let agent = reflect_and_revise::ReflectAndRevise { max_revisions: 1 };
    assert_eq!(agent.name(), "reflect_and_revise");
    assert!(!agent.description().is_empty());
}
