//! Generates the JSON Schema of policy files for editors, from the same key table that the parser uses.

use serde_json::{Map, Value, json};

use super::keys;
use super::keys::{Field, Kind};
use crate::judge::command::CLASSES;

/// Returns the JSON Schema of policy files.
pub fn schema() -> Value {
    let mut schema = object(keys::POLICY, &["version", "name"]);
    let Value::Object(map) = &mut schema else { return schema };
    map.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    map.insert("title".into(), json!("guard policy"));
    map.insert("description".into(), json!("A policy of guard: what the commands of an agent may do."));
    schema
}

fn object(fields: &'static [Field], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_string(), property(field))).collect();
    let mut object = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn property(field: &Field) -> Value {
    let strings = json!({ "type": "array", "items": { "type": "string" } });
    let mut value = match &field.kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Texts => json!({ "oneOf": [{ "type": "string" }, strings] }),
        Kind::List => strings,
        Kind::Ports => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 65_535 } })
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Amount => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000 }),
        Kind::Action => json!({ "enum": ["allow", "ask", "deny"] }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Choices(words, _) => json!({ "type": "array", "items": { "enum": words } }),
        Kind::Effects => {
            let names: Vec<Value> = CLASSES
                .iter()
                .map(|(name, doc, _)| json!({ "const": name, "description": doc.trim() }))
                .collect();
            let one = json!({ "oneOf": names });
            json!({ "oneOf": [one, { "type": "array", "items": one }] })
        }
        Kind::Commands => json!({ "type": "array", "items": { "oneOf": [{ "type": "string" }, strings] } }),
        Kind::Map => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::Table(fields) => object(fields, &[]),
        Kind::Tables(fields) => {
            json!({ "type": "array", "items": object(fields, &["id", "action", "reason"]) })
        }
    };
    value["description"] = json!(field.doc);
    value
}
