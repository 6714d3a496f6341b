//! The MCP prompt `gemini_request`: a template for a good request to the tool `gemini`, filled with the
//! client's values.

use rmcp::ErrorData;
use rmcp::model::{GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Role};

use super::parameters::Parameters;
use crate::agents::adapter::{Language, RULES, RequestText};

pub(super) const NAME: &str = "gemini_request";

pub(super) fn all() -> Vec<Prompt> {
    let argument = |name: &str, description: &str, is_required: bool| {
        PromptArgument::new(name).with_description(description).with_required(is_required)
    };
    let arguments = vec![
        argument("task_type", "advice, review or execute", true),
        argument("tasks", "The questions or tasks, numbered", true),
        argument("background", "Background information for the agent", false),
        argument("context", "Engineering context: contract, principles, project context, as text", false),
        argument("expected_output", "The expected form of the answer", false),
        argument("language", "en (the default) or zh", false),
    ];
    vec![Prompt::new(
        NAME,
        Some(format!("A well-formed PROMPT for the tool gemini. {RULES}")),
        Some(arguments),
    )]
}

/// Fills the template of the prompt `name` with the client's values.
pub(super) fn get(name: &str, given: JsonObject) -> Result<GetPromptResult, ErrorData> {
    if name != NAME {
        let name: String = name.chars().take(80).collect();
        let problem = format!("unknown prompt `{name}`; the only prompt is `{NAME}`");
        return Err(ErrorData::invalid_params(problem, None));
    }
    let text = read(given).map_err(|problem| ErrorData::invalid_params(problem, None))?;
    let message = PromptMessage::new_text(Role::User, text);
    Ok(GetPromptResult::new(vec![message]).with_description("A PROMPT for the tool gemini"))
}

fn read(given: JsonObject) -> Result<String, String> {
    let mut given = Parameters::new(given);
    let text = RequestText {
        task_type: given.required("task_type")?,
        tasks: given.required("tasks")?,
        background: given.optional("background")?.unwrap_or_default(),
        context: given.optional("context")?.unwrap_or_default(),
        expected_output: given.optional("expected_output")?.unwrap_or_default(),
    };
    let language = match given.optional::<String>("language")?.as_deref() {
        None | Some("en") => Language::English,
        Some("zh") => Language::Chinese,
        Some(_) => return Err("the parameter `language` must be `en` or `zh`".to_string()),
    };
    given.reject_unknown()?;
    Ok(text.render(language))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_given_is_filled_in_and_what_is_wrong_is_named() {
        let of = |value: serde_json::Value| read(value.as_object().cloned().unwrap_or_default());
        let text = of(
            json!({ "task_type": "review", "tasks": "1. Is it safe?", "context": "The contract: no network." }),
        );
        assert!(
            text.is_ok_and(|text| text.contains("**Task type**: review") && text.contains("no network."))
        );
        let chinese = of(json!({ "task_type": "审核", "tasks": "1. 安全吗？", "language": "zh" }));
        assert!(chinese.is_ok_and(|text| text.contains("**任务类型**：审核")));
        for (wrong, name) in [
            (json!({}), "`task_type`"),
            (json!({ "task_type": "review", "tasks": "x", "language": "fr" }), "`language`"),
            (json!({ "task_type": "review", "tasks": "x", "odd": 1 }), "`odd`"),
        ] {
            assert!(of(wrong.clone()).is_err_and(|problem| problem.contains(name)), "{wrong}");
        }
    }
}
