//! Checks JSON values by a JSON Schema.
//!
//! The supported keywords are the fields of [`Keywords`], with the meaning that they have in draft 2020-12. A schema
//! with another keyword is refused: to ignore the keyword would accept values that the author of the schema excluded.
//!
//! A check takes time proportional to the size of the schema times the size of the value. There are no references, so
//! a check applies each part of a schema at most once to each part of a value, and `pattern` does not backtrack.

use std::collections::BTreeMap;

use regex_automata::meta::Regex;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::terminal_text::shorten;

/// The maximum number of levels in a schema. It keeps the recursion of parsing and checking within a thread's stack.
const DEEPEST: usize = 64;
/// The maximum size of one problem, in bytes. Problems quote the checked value, which may be long.
const LONGEST_PROBLEM: usize = 400;
/// The maximum size of a value that a problem quotes, in bytes.
const LONGEST_QUOTE: usize = 120;

/// A JSON Schema that was parsed and can check values.
#[derive(Debug)]
pub(crate) enum JsonSchema {
    /// `true` or `false`: all values match, or none does.
    All(bool),
    Keywords(Box<Keywords>),
}

/// The supported keywords.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Keywords {
    r#type: Keyword<Types>,
    r#enum: Keyword<Vec<Value>>,
    r#const: Keyword<Value>,
    all_of: Vec<JsonSchema>,
    any_of: Keyword<Vec<JsonSchema>>,
    one_of: Keyword<Vec<JsonSchema>>,
    not: Keyword<JsonSchema>,
    minimum: Keyword<f64>,
    maximum: Keyword<f64>,
    exclusive_minimum: Keyword<f64>,
    exclusive_maximum: Keyword<f64>,
    min_length: Keyword<usize>,
    max_length: Keyword<usize>,
    pattern: Keyword<Pattern>,
    properties: BTreeMap<String, JsonSchema>,
    required: Vec<String>,
    additional_properties: Keyword<JsonSchema>,
    items: Keyword<JsonSchema>,
    min_items: Keyword<usize>,
    max_items: Keyword<usize>,
    // What follows describes a value and excludes none.
    #[serde(rename = "$schema")]
    _schema: Keyword<String>,
    #[serde(rename = "$id")]
    _id: Keyword<String>,
    #[serde(rename = "$comment")]
    _comment: Keyword<String>,
    #[serde(rename = "title")]
    _title: Keyword<String>,
    #[serde(rename = "description")]
    _description: Keyword<String>,
    #[serde(rename = "format")]
    _format: Keyword<String>,
    #[serde(rename = "default")]
    _default: Keyword<Value>,
    #[serde(rename = "examples")]
    _examples: Keyword<Vec<Value>>,
    #[serde(rename = "deprecated")]
    _deprecated: Keyword<bool>,
    #[serde(rename = "readOnly")]
    _read_only: Keyword<bool>,
    #[serde(rename = "writeOnly")]
    _write_only: Keyword<bool>,
}

/// The value of a keyword, if the schema has the keyword. Unlike `Option`, it does not read `null` as absent.
#[derive(Debug)]
struct Keyword<T>(Option<T>);

impl<T> Default for Keyword<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Keyword<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(|value| Self(Some(value)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }

    fn is_of(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
            }
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }
}

/// The value of `type`: one type or a list of types.
#[derive(Debug)]
struct Types(Vec<Type>);

impl<'de> Deserialize<'de> for Types {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let types = match Value::deserialize(deserializer)? {
            list @ Value::Array(_) => serde_json::from_value(list),
            one => serde_json::from_value(one).map(|one| vec![one]),
        };
        types.map(Self).map_err(|error| D::Error::custom(format!("`type`: {error}")))
    }
}

/// The value of `pattern`, a regular expression of ECMAScript.
#[derive(Debug)]
struct Pattern {
    text: String,
    regex: Regex,
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let regex = Regex::new(&translate(&text))
            .map_err(|error| D::Error::custom(format!("the pattern {text:?} is not supported: {error}")))?;
        Ok(Self { text, regex })
    }
}

/// Translates a regular expression of ECMAScript: its classes such as `\d` contain ASCII characters only, and `[`, `&`
/// and `~` in brackets stand for themselves.
fn translate(pattern: &str) -> String {
    const SPACES: &str =
        r"\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
    let mut out = String::new();
    let mut in_brackets = false;
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match (character, in_brackets) {
            ('\\', _) => match characters.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.extend(["[", SPACES, "]"]),
                Some('S') => out.extend(["[^", SPACES, "]"]),
                Some('b') if in_brackets => out.push_str(r"\x08"),
                Some('b') => out.push_str(r"(?-u:\b)"),
                Some('B') => out.push_str(r"(?-u:\B)"),
                escaped => out.extend(std::iter::once('\\').chain(escaped)),
            },
            ('[', false) => {
                in_brackets = true;
                out.push('[');
            }
            (']', true) => {
                in_brackets = false;
                out.push(']');
            }
            ('[' | '&' | '~', true) => out.extend(['\\', character]),
            ('.', false) => out.push_str(r"[^\n\r\u{2028}\u{2029}]"),
            _ => out.push(character),
        }
    }
    out
}

impl<'de> Deserialize<'de> for JsonSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(all) => Ok(Self::All(all)),
            value @ Value::Object(_) => serde_json::from_value(value)
                .map(|keywords| Self::Keywords(Box::new(keywords)))
                .map_err(D::Error::custom),
            value => Err(D::Error::custom(format!("a schema must be an object, but is {}", quote(&value)))),
        }
    }
}

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InvalidSchema(String);

impl JsonSchema {
    pub(crate) fn parse(schema: &Value) -> Result<Self, InvalidSchema> {
        if is_deeper(schema, DEEPEST) {
            return Err(InvalidSchema(format!("it has more than {DEEPEST} levels")));
        }
        Self::deserialize(schema).map_err(|error| InvalidSchema(error.to_string()))
    }

    /// Returns the first `most` problems of a value, each with the place in the value; none if the value matches.
    pub(crate) fn problems(&self, value: &Value, most: usize) -> Vec<String> {
        let mut check = Check { place: String::new(), problems: Vec::new(), most };
        check.schema(self, value);
        check.problems
    }

    fn matches(&self, value: &Value) -> bool {
        self.problems(value, 1).is_empty()
    }
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    let deeper = |value| levels == 0 || is_deeper(value, levels - 1);
    match value {
        Value::Array(items) => items.iter().any(deeper),
        Value::Object(fields) => fields.values().any(deeper),
        _ => false,
    }
}

/// The check of one value.
struct Check {
    /// The JSON pointer to the part of the value that is being checked.
    place: String,
    problems: Vec<String>,
    most: usize,
}

impl Check {
    fn problem(&mut self, text: &str) {
        if self.problems.len() < self.most {
            let place = if self.place.is_empty() { String::new() } else { format!("{}: ", self.place) };
            self.problems.push(shorten(&format!("{place}{text}"), LONGEST_PROBLEM).into_owned());
        }
    }

    /// Checks a part of the current value.
    fn part(&mut self, name: &str, schema: &JsonSchema, value: &Value) {
        let length = self.place.len();
        self.place.push('/');
        self.place.push_str(&name.replace('~', "~0").replace('/', "~1"));
        self.schema(schema, value);
        self.place.truncate(length);
    }

    fn schema(&mut self, schema: &JsonSchema, value: &Value) {
        let keywords = match schema {
            _ if self.problems.len() >= self.most => return,
            JsonSchema::All(true) => return,
            JsonSchema::All(false) => return self.problem(&format!("{} is not allowed", quote(value))),
            JsonSchema::Keywords(keywords) => keywords,
        };
        self.any_value(keywords, value);
        match value {
            Value::Number(_) => self.number(keywords, value.as_f64().unwrap_or_default()),
            Value::String(text) => self.text(keywords, text),
            Value::Array(items) => self.array(keywords, items),
            Value::Object(fields) => self.object(keywords, fields),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn any_value(&mut self, keywords: &Keywords, value: &Value) {
        if let Some(Types(types)) = &keywords.r#type.0
            && !types.iter().any(|kind| kind.is_of(value))
        {
            let names: Vec<&str> = types.iter().map(|kind| kind.name()).collect();
            self.problem(&format!("{} is not of type {}", quote(value), names.join(" or ")));
        }
        let listed = keywords.r#enum.0.as_deref();
        for allowed in listed.into_iter().chain(keywords.r#const.0.as_ref().map(std::slice::from_ref)) {
            if !allowed.iter().any(|allowed| equal(allowed, value)) {
                let names: Vec<String> = allowed.iter().map(quote).collect();
                self.problem(&format!("{} must be {}", quote(value), names.join(" or ")));
            }
        }
        for schema in &keywords.all_of {
            self.schema(schema, value);
        }
        if keywords.any_of.0.as_ref().is_some_and(|any| !any.iter().any(|schema| schema.matches(value))) {
            self.problem(&format!("{} matches no schema of `anyOf`", quote(value)));
        }
        if let Some(one_of) = &keywords.one_of.0 {
            let count = one_of.iter().filter(|schema| schema.matches(value)).count();
            if count != 1 {
                self.problem(&format!("{} matches {count} schemas of `oneOf`, not one", quote(value)));
            }
        }
        if keywords.not.0.as_ref().is_some_and(|not| not.matches(value)) {
            self.problem(&format!("{} matches the schema of `not`", quote(value)));
        }
    }

    fn number(&mut self, keywords: &Keywords, number: f64) {
        type Holds = fn(&f64, &f64) -> bool;
        let limits: [(&Keyword<f64>, &str, Holds); 4] = [
            (&keywords.minimum, "at least", f64::ge),
            (&keywords.maximum, "at most", f64::le),
            (&keywords.exclusive_minimum, "more than", f64::gt),
            (&keywords.exclusive_maximum, "less than", f64::lt),
        ];
        for (limit, relation, holds) in limits {
            if let Some(limit) = limit.0.filter(|limit| !holds(&number, limit)) {
                self.problem(&format!("{number} must be {relation} {limit}"));
            }
        }
    }

    fn text(&mut self, keywords: &Keywords, text: &str) {
        let quoted = || quote(&Value::from(text));
        let (least, most) = (keywords.min_length.0, keywords.max_length.0);
        if least.is_some() || most.is_some() {
            let length = text.chars().count();
            if let Some(least) = least.filter(|least| length < *least) {
                self.problem(&format!("{} must have at least {least} characters", quoted()));
            }
            if let Some(most) = most.filter(|most| length > *most) {
                self.problem(&format!("{} must have at most {most} characters", quoted()));
            }
        }
        if let Some(pattern) = keywords.pattern.0.as_ref().filter(|pattern| !pattern.regex.is_match(text)) {
            self.problem(&format!("{} does not match the pattern {:?}", quoted(), pattern.text));
        }
    }

    fn array(&mut self, keywords: &Keywords, items: &[Value]) {
        if let Some(least) = keywords.min_items.0.filter(|least| items.len() < *least) {
            self.problem(&format!("the list must have at least {least} items, but has {}", items.len()));
        }
        if let Some(most) = keywords.max_items.0.filter(|most| items.len() > *most) {
            self.problem(&format!("the list must have at most {most} items, but has {}", items.len()));
        }
        if let Some(schema) = &keywords.items.0 {
            for (index, item) in items.iter().enumerate() {
                self.part(&index.to_string(), schema, item);
            }
        }
    }

    fn object(&mut self, keywords: &Keywords, fields: &serde_json::Map<String, Value>) {
        for name in keywords.required.iter().filter(|name| !fields.contains_key(*name)) {
            self.problem(&format!("{} is a required property", quote(&Value::from(name.as_str()))));
        }
        for (name, value) in fields {
            match (keywords.properties.get(name), &keywords.additional_properties.0) {
                (Some(schema), _) => self.part(name, schema, value),
                (None, Some(JsonSchema::All(false))) => {
                    self.problem(&format!(
                        "the property {} is not allowed",
                        quote(&Value::from(name.as_str()))
                    ));
                }
                (None, Some(schema)) => self.part(name, schema, value),
                (None, None) => {}
            }
        }
    }
}

/// Compares two values as JSON Schema does: numbers are equal if their mathematical values are.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() != b.is_f64() => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

fn quote(value: &Value) -> String {
    shorten(&value.to_string(), LONGEST_QUOTE).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(schema: &Value) -> JsonSchema {
        JsonSchema::parse(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
    }

    fn parse_error(schema: &Value) -> String {
        JsonSchema::parse(schema).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn unsupported_schema_is_refused_with_the_name_of_the_keyword() {
        for (schema, expected) in [
            (json!({"$ref": "#/$defs/x"}), "`$ref`"),
            (json!({"properties": {"a": {"items": {"multipleOf": 2}}}}), "`multipleOf`"),
            (json!({"type": "text"}), "`text`"),
            (json!({"minLength": null}), "null"),
            (json!({"maxLength": -1}), "-1"),
            (json!({"exclusiveMinimum": true}), "boolean `true`"),
            (json!({"items": [{}]}), "must be an object"),
            (json!({"pattern": "(?=a)"}), "(?=a)"),
            (json!({"pattern": "(a{1000}){1000}{1000}"}), "(a{1000}){1000}{1000}"),
            (json!("object"), "must be an object"),
        ] {
            let error = parse_error(&schema);
            assert!(error.contains(expected), "{schema}: {error}");
        }
    }

    #[test]
    fn problems_name_the_place_and_what_is_expected() {
        let schema = parse(&json!({
            "type": "object", "required": ["a", "z"], "additionalProperties": false,
            "properties": {
                "a": {"enum": ["x", "y"]},
                "b/c": {"type": "array", "maxItems": 1, "items": {"type": ["integer", "null"], "minimum": 2}},
                "d": {"type": "string", "minLength": 1, "pattern": "^[0-9]+$"},
            },
        }));
        let value = json!({"a": 1, "b/c": [1, "n"], "d": "", "e": true});
        assert_eq!(
            schema.problems(&value, 20),
            [
                "\"z\" is a required property",
                "/a: 1 must be \"x\" or \"y\"",
                "/b~1c: the list must have at most 1 items, but has 2",
                "/b~1c/0: 1 must be at least 2",
                "/b~1c/1: \"n\" is not of type integer or null",
                "/d: \"\" must have at least 1 characters",
                "/d: \"\" does not match the pattern \"^[0-9]+$\"",
                "the property \"e\" is not allowed",
            ]
        );
        assert_eq!(schema.problems(&value, 3).len(), 3);
        let long = schema.problems(&json!({"a": "x".repeat(10_000)}), 20);
        assert!(long.len() == 2 && long[1].len() < 500, "{long:?}");
    }

    #[test]
    fn depth_and_time_are_limited() {
        let nested = |levels| (0..levels).fold(json!({}), |inner, _| json!({ "not": inner }));
        assert!(JsonSchema::parse(&nested(DEEPEST)).is_ok());
        assert!(parse_error(&nested(DEEPEST + 1)).contains("levels"));
        let backtracks = parse(&json!({"pattern": "^(a+)+$"}));
        let text = format!("{}b", "a".repeat(1 << 20));
        assert!(!backtracks.matches(&Value::from(text)));
    }

    fn value() -> impl Strategy<Value = Value> {
        let name = prop::sample::select(vec!["a", "b", "c/~", ""]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-3..4_i64).prop_map(Value::from),
            (-6..7_i32).prop_map(|half| Value::from(f64::from(half) / 2.0)),
            Just(Value::from(u64::MAX)),
            "[ab0é_.\\[&\\]\u{a0}\n-]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(name.clone(), inner, 0..4).prop_map(|fields| json!(fields)),
            ]
        })
    }

    fn keyword() -> impl Strategy<Value = (String, Value)> {
        let types =
            prop::sample::select(vec!["null", "boolean", "integer", "number", "string", "array", "object"]);
        let patterns = prop::sample::select(vec![
            "^\\w*$",
            "\\d",
            "[^\\s\\d]",
            "[[&]",
            "\\bab?",
            "^.$",
            "a|\\S\\W",
            "^(?:a+)+$",
            "[\\w\\-]",
            "\\D\\.",
            "é",
            "^$",
        ]);
        let number = || (-3..4_i64).prop_map(Value::from);
        let size = || (0..3_u64).prop_map(Value::from);
        let name = || prop::sample::select(vec!["a", "b", "c/~"]);
        prop_oneof![
            prop::collection::vec(types.clone(), 1..3).prop_map(|types| {
                let types: std::collections::BTreeSet<_> = types.into_iter().collect();
                ("type".into(), json!(types))
            }),
            types.prop_map(|kind| ("type".into(), json!(kind))),
            prop::collection::vec(value(), 1..3).prop_map(|values| ("enum".into(), json!(values))),
            value().prop_map(|value| ("const".into(), value)),
            (
                prop::sample::select(vec!["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
                number()
            )
                .prop_map(|(name, limit)| (name.into(), limit)),
            (prop::sample::select(vec!["minLength", "maxLength", "minItems", "maxItems"]), size())
                .prop_map(|(name, limit)| (name.into(), limit)),
            patterns.prop_map(|pattern| ("pattern".into(), json!(pattern))),
            name().prop_map(|name| ("required".into(), json!([name]))),
            Just(("format".into(), json!("date"))),
        ]
    }

    fn schema() -> impl Strategy<Value = Value> {
        let flat = prop::collection::vec(keyword(), 0..3)
            .prop_map(|keywords| json!(keywords.into_iter().collect::<BTreeMap<_, _>>()));
        let leaf = prop_oneof![8 => flat, 1 => any::<bool>().prop_map(Value::from)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let lists = prop::sample::select(vec!["allOf", "anyOf", "oneOf"]);
            let singles = prop::sample::select(vec!["not", "items", "additionalProperties"]);
            let name = prop::sample::select(vec!["a", "b", "c/~"]);
            let nested = prop_oneof![
                (lists, prop::collection::vec(inner.clone(), 1..3))
                    .prop_map(|(name, schemas)| (name.to_string(), json!(schemas))),
                (singles, inner.clone()).prop_map(|(name, schema)| (name.to_string(), schema)),
                prop::collection::btree_map(name, inner, 0..3)
                    .prop_map(|schemas| ("properties".to_string(), json!(schemas))),
            ];
            prop::collection::vec(prop_oneof![nested, keyword()], 1..4)
                .prop_map(|keywords| json!(keywords.into_iter().collect::<BTreeMap<_, _>>()))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn verdict_is_that_of_the_jsonschema_crate(schema in schema(), values in prop::collection::vec(value(), 1..6)) {
            let reference = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let parsed = parse(&schema);
            for value in values {
                let problems = parsed.problems(&value, 20);
                prop_assert_eq!(problems.is_empty(), reference.is_valid(&value), "{} {} {:?}", schema, value, problems);
            }
        }
    }
}
