//! The tool definitions for clients: names, descriptions, and the schemas of parameters and results.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::batches;
use super::batches::BatchAnswer;
use super::check::{Check, Checked};
use super::control::{Control, Controlled};
use super::report::{Cancelled, Cancelling, Report, Reported};
use super::tool_agent::{Answer, Gemini};
use crate::agents::adapter::RULES;

/// Settings for generating schemas without references, because not every client resolves references.
fn settings() -> SchemaSettings {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings
}

fn input<T: JsonSchema>() -> Arc<JsonObject> {
    object(settings().into_generator().into_root_schema_for::<T>())
}

fn output<T: JsonSchema>() -> Arc<JsonObject> {
    object(settings().for_serialize().into_generator().into_root_schema_for::<T>())
}

fn object(schema: Schema) -> Arc<JsonObject> {
    let mut schema = schema.to_value();
    make_portable(&mut schema, true);
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

/// Rewrites a schema for clients with limited JSON Schema support: it has one `type` or an `anyOf`, never a list of
/// types, and no `format`. The schema does not allow null for an optional value, which a program leaves out instead.
fn make_portable(schema: &mut Value, is_required: bool) {
    if schema.as_bool() == Some(true) {
        *schema = json!({ "type": "object", "additionalProperties": true });
    }
    let Some(parts) = schema.as_object_mut() else { return };
    if !["type", "anyOf", "oneOf", "allOf", "enum", "const"].iter().any(|word| parts.contains_key(*word)) {
        parts.insert("type".to_string(), json!("object"));
    }
    parts.remove("format");
    if parts.get("default").is_some_and(Value::is_null) {
        parts.remove("default");
    }
    let required: Vec<Value> = parts.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(properties) = parts.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            make_portable(property, required.iter().any(|required| required == name));
        }
    }
    if let Some(items) = parts.get_mut("items") {
        make_portable(items, true);
    }
    if let Some(choices) = parts.get_mut("anyOf").and_then(Value::as_array_mut) {
        choices.iter_mut().for_each(|choice| make_portable(choice, true));
        if !is_required && choices.len() == 2 {
            choices.retain(|choice| choice["type"] != "null");
        }
    }
    let types = parts.get("type").and_then(Value::as_array).cloned().unwrap_or_default();
    let known: Vec<Value> = types.iter().filter(|name| *name != "null").cloned().collect();
    match known.as_slice() {
        [] => {}
        [one] if !is_required => {
            parts.insert("type".to_string(), one.clone());
        }
        _ => {
            parts.remove("type");
            let choices: Vec<Value> = types.iter().map(|name| json!({ "type": name })).collect();
            parts.insert("anyOf".to_string(), Value::Array(choices));
        }
    }
}

pub(super) fn all() -> Vec<Tool> {
    let read_only = || ToolAnnotations::new().read_only(true).open_world(false);
    let changing = || ToolAnnotations::new().read_only(false).destructive(false);
    vec![
        Tool::new(
            "gemini",
            format!(
                "Ask the Gemini CLI in a kernel sandbox for advice (sandbox read-only) or for work (workspace-write; in a git repository the agent works \
             on a new branch). Check `success`; on failure, `error_kind` tells whether another attempt can succeed. Keep SESSION_ID to continue the \
             conversation. guard_report returns the result again by its `call_id`, which the progress messages also contain. {RULES}"
            ),
            input::<Gemini>(),
        )
        .with_raw_output_schema(output::<Answer>())
        .with_annotations(changing().open_world(true)),
        Tool::new("guard_check", "Ask a policy whether it allows a command, and why. The command does not run.", input::<Check>())
            .with_raw_output_schema(output::<Checked>())
            .with_annotations(read_only()),
        Tool::new(
            "guard_report",
            "Report the state and the result of an earlier call of gemini, or of any run, by its id (call_id or run_id). Without an id, list the newest calls.",
            input::<Report>(),
        )
        .with_raw_output_schema(output::<Reported>())
        .with_annotations(read_only()),
        Tool::new("guard_cancel", "Cancel a running call of gemini by its id (call_id). All processes of the call are ended.", input::<Cancelling>())
            .with_raw_output_schema(output::<Cancelled>())
            .with_annotations(changing().open_world(false).idempotent(true)),
        Tool::new(
            "guard_batch_submit",
            "Queue tasks, which workers do in the background, several at once: shell commands in the sandbox (execute_shell_command), coverage reports \
             (query_coverage), prompts to an agent (propose_test, refine_test, propose_strategy), deep research (research), echo, and the task types that the user added. Returns at once; keep \
             response_id and call guard_batch_poll.",
            input::<batches::Submit>(),
        )
        .with_raw_output_schema(output::<BatchAnswer>())
        .with_annotations(changing().open_world(true)),
        Tool::new(
            "guard_batch_poll",
            "Return the status of a batch and the results so far, by its response_id. With `wait`, returns when the batch, or the task, has ended or the time has passed.",
            input::<batches::Poll>(),
        )
        .with_raw_output_schema(output::<BatchAnswer>())
        .with_annotations(read_only()),
        Tool::new("guard_batch_cancel", "Cancel the tasks of a batch that have not ended, or one of its tasks.", input::<batches::Cancel>())
            .with_raw_output_schema(output::<BatchAnswer>())
            .with_annotations(changing().open_world(false).idempotent(true)),
        Tool::new(
            "guard_control",
            "Send a command to a batch, a task, a research run or a conversation: pause, resume, cancel, or adjust_config with the settings in `data`. \
             Each command_id is carried out once.",
            input::<Control>(),
        )
        .with_raw_output_schema(output::<Controlled>())
        .with_annotations(changing().open_world(false)),
    ]
}
