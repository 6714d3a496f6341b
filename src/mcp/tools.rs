//! The tool definitions for clients: names, descriptions, and the schemas of parameters and results.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::check::{Check, Checked};
use super::report::{Cancelled, Cancelling, Report, Reported};
use super::tool_agent::{Answer, Gemini};
use crate::agent::RULES;

/// Schemas without references, because not every client resolves them.
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

/// Rewrites a schema for clients with limited JSON Schema support: one type for each value, and only standard
/// formats. An optional value is never null here.
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

/// Lists all tools.
pub(super) fn all() -> Vec<Tool> {
    let looks = || ToolAnnotations::new().read_only(true).open_world(false);
    let works = || ToolAnnotations::new().read_only(false).destructive(false);
    vec![
        Tool::new(
            "gemini",
            format!(
                "Ask the Gemini CLI in a kernel sandbox: advice (sandbox read-only) or work (workspace-write, in a repository on a branch of its \
             own). Check `success`; on failure `error_kind` says whether to try again. Keep SESSION_ID to go on with the conversation. The \
             result can be had again with guard_report by its `call_id`, which is also in the progress messages. {RULES}"
            ),
            input::<Gemini>(),
        )
        .with_raw_output_schema(output::<Answer>())
        .with_annotations(works().open_world(true)),
        Tool::new("guard_check", "Ask a policy whether a command would be allowed, and why. Nothing is run.", input::<Check>())
            .with_raw_output_schema(output::<Checked>())
            .with_annotations(looks()),
        Tool::new(
            "guard_report",
            "How an earlier call of gemini or any run stands, by its id (call_id or run_id), and its result; without an id the newest calls.",
            input::<Report>(),
        )
        .with_raw_output_schema(output::<Reported>())
        .with_annotations(looks()),
        Tool::new("guard_cancel", "End a running call of gemini by its id (call_id), with everything it started.", input::<Cancelling>())
            .with_raw_output_schema(output::<Cancelled>())
            .with_annotations(works().open_world(false).idempotent(true)),
    ]
}
