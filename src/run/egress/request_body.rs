//! Inspects the JSON body of a gateway request: which model it names, and whether it uses a forbidden key, URL or tool.
//!
//! Input is the body and the gateway's rules, output is the model and the reason for a refusal. A body that is not
//! valid JSON is an error. So is JSON that servers could read in different ways.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::judge::policy::{Forbid, ToolRules};

/// How many characters of a tool's type are quoted in the reason for a refusal.
const MAX_SHOWN_KIND: usize = 80;
/// Size limit of a model's name, in bytes.
const MAX_MODEL_NAME: usize = 256;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Inspection {
    pub(super) model: Option<String>,
    /// Why the request must be refused; `None` if the rules allow it.
    pub(super) forbidden: Option<String>,
}

/// The rules of a gateway about request bodies.
#[derive(Clone, Copy)]
pub(super) struct Rules<'r> {
    /// The top-level key of the body whose value is the model's name.
    pub(super) model_key: Option<&'r str>,
    /// Keys and values that must not occur in the body.
    pub(super) forbid: &'r [Forbid],
    /// The tools that a request may use; `None` if tools are not restricted.
    pub(super) tools: Option<&'r ToolRules>,
}

/// Inspects a request body. Returns an error if the body is not valid JSON, or if it names the model twice, or by a
/// value that is too long or not a string. The gateway then refuses the request.
pub(super) fn inspect(body: &[u8], rules: Rules<'_>) -> Result<Inspection, String> {
    let mut found = Inspection::default();
    let visitor = BodyVisitor { rules, found: &mut found, rule: None, key: None, role: ValueRole::Top };
    let mut reader = serde_json::Deserializer::from_slice(body);
    visitor.deserialize(&mut reader).and_then(|()| reader.end()).map_err(|error| error.to_string())?;
    Ok(found)
}

/// Returns true if an API could take a text for the address of something to fetch. Parsers of URLs ignore tabs and line
/// ends, and some accept one slash, backslashes or none after the scheme.
fn is_address(text: &str) -> bool {
    let plain: String = text
        .trim_start_matches(|letter: char| letter <= ' ')
        .chars()
        .filter(|one| !"\t\n\r".contains(*one))
        .collect();
    let scheme = plain.find(':').map(|colon| &plain[..colon]).filter(|scheme| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "+.-".contains(letter);
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.chars().all(is_part)
    });
    match scheme {
        Some(scheme) => !scheme.eq_ignore_ascii_case("data"),
        None => {
            plain.contains("://") || ["//", "\\\\", "/\\", "\\/"].iter().any(|start| plain.starts_with(start))
        }
    }
}

/// Returns true if some server could treat the two keys as equal. A server may ignore case, which also makes two
/// non-ASCII Unicode letters equal to ASCII letters.
fn may_be_same_key(key: &str, known: &str) -> bool {
    let plain = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(plain).eq(known.chars().map(plain))
}

/// The meaning of a JSON value in the body, which depends on its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueRole {
    /// The value is the whole body.
    Top,
    /// The value is a tool, or a list of tools.
    Tools,
    /// The value is a list whose items can contain tools, or an item of such a list.
    Items,
    /// The value is the type of a tool.
    Kind,
    Other,
}

struct BodyVisitor<'l> {
    rules: Rules<'l>,
    found: &'l mut Inspection,
    /// The rule that forbids URLs in the visited value; `None` if URLs are allowed. `key` is the JSON key of this value
    /// or of an enclosing one to which the rule applies.
    rule: Option<&'l Forbid>,
    key: Option<String>,
    role: ValueRole,
}

impl BodyVisitor<'_> {
    fn forbid(&mut self, rule: &Forbid, key: &str) {
        let what = if rule.only_addresses { "A URL below the key" } else { "The key" };
        self.found.forbidden.get_or_insert_with(|| {
            format!("{what} `{key}` is not allowed in a request body. {}", rule.reason)
        });
    }

    /// Checks whether a tool of this type is allowed; `kind` is `None` if the tool has no type.
    fn check_tool(&mut self, kind: Option<&str>) {
        let Some(rules) = self.rules.tools else { return };
        let passes = kind.map_or(rules.without_kind, |kind| rules.allows(kind));
        if !passes {
            let kind: String = kind.unwrap_or("(no type)").chars().take(MAX_SHOWN_KIND).collect();
            let reason = || format!("A tool of type `{kind}` is not allowed in a request. {}", rules.reason);
            self.found.forbidden.get_or_insert_with(reason);
        }
    }

    fn check_string(&mut self, text: &str) {
        match self.role {
            ValueRole::Kind => self.check_tool(Some(text)),
            // A string in place of a tool: its meaning depends on the API, so treat it as a tool type.
            ValueRole::Tools => self.check_tool(Some(text)),
            ValueRole::Top | ValueRole::Items | ValueRole::Other => {}
        }
        if let Some(rule) = self.rule.filter(|_| is_address(text)) {
            let key = self.key.clone().unwrap_or_default();
            self.forbid(rule, &key);
        }
    }

    /// Handles a value whose JSON type is wrong for a tool or for the type of a tool, such as a number. Does nothing at
    /// other positions in the body.
    fn check_scalar(&mut self) {
        if matches!(self.role, ValueRole::Kind | ValueRole::Tools) {
            self.check_tool(Some("(not valid)"));
        }
    }
}

impl<'de> DeserializeSeed<'de> for BodyVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BodyVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.check_scalar();
        Ok(())
    }

    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.check_scalar();
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.check_scalar();
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.check_scalar();
        Ok(())
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        // `null` tools are fine; a `null` type is not.
        if self.role == ValueRole::Kind {
            self.check_scalar();
        }
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.check_string(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        if self.role == ValueRole::Kind {
            self.check_scalar();
        }
        let BodyVisitor { rules, found, rule, key, role } = self;
        let role = if matches!(role, ValueRole::Tools | ValueRole::Items) { role } else { ValueRole::Other };
        loop {
            let visitor = BodyVisitor { rules, found: &mut *found, rule, key: key.clone(), role };
            if items.next_element_seed(visitor)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        if self.role == ValueRole::Kind {
            self.check_scalar();
        }
        let (rules, rule, outer, role) = (self.rules, self.rule, self.key.take(), self.role);
        let mut has_kind = false;
        while let Some(key) = entries.next_key::<String>()? {
            // Some servers ignore case in keys.
            if role == ValueRole::Top && rules.model_key.is_some_and(|known| may_be_same_key(&key, known)) {
                // Deserialize as a string only: a list of millions of items would take far more memory than its text.
                let model: String = entries.next_value()?;
                if model.len() > MAX_MODEL_NAME {
                    return Err(A::Error::custom("the model name is longer than 256 bytes"));
                }
                // If the key occurs twice, servers disagree on which one counts.
                if self.found.model.replace(model).is_some() {
                    return Err(A::Error::custom("the body names the model twice"));
                }
                continue;
            }
            let next = match (role, rules.tools) {
                (ValueRole::Top | ValueRole::Items, Some(tools)) if may_be_same_key(&key, &tools.key) => {
                    ValueRole::Tools
                }
                (ValueRole::Top, Some(tools))
                    if tools.item_lists.iter().any(|list| may_be_same_key(&key, list)) =>
                {
                    ValueRole::Items
                }
                (ValueRole::Tools, Some(tools)) => match &tools.kind_key {
                    // An item, such as a namespace of tools, may contain tools itself.
                    Some(_) if may_be_same_key(&key, &tools.key) => ValueRole::Tools,
                    Some(kind_key) if may_be_same_key(&key, kind_key) => {
                        has_kind = true;
                        ValueRole::Kind
                    }
                    Some(_) => ValueRole::Other,
                    None => {
                        has_kind = true;
                        self.check_tool(Some(&key));
                        ValueRole::Other
                    }
                },
                _ => ValueRole::Other,
            };
            let is_named = |rule: &&Forbid| rule.keys.iter().any(|known| may_be_same_key(&key, known));
            let named = rules.forbid.iter().find(is_named);
            let mut visitor =
                BodyVisitor { rules, found: &mut *self.found, rule, key: outer.clone(), role: next };
            if let Some(named) = named {
                if named.only_addresses {
                    visitor.rule = Some(named);
                    visitor.key = Some(key);
                } else {
                    visitor.forbid(named, &key);
                }
            }
            entries.next_value_seed(visitor)?;
        }
        let tools_have_kind = rules.tools.is_some_and(|tools| tools.kind_key.is_some());
        if role == ValueRole::Tools && tools_have_kind && !has_kind {
            self.check_tool(None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect_body(body: &str) -> Result<Inspection, String> {
        let gateway = crate::judge::policy::gateway("openai").ok_or("no gateway")?;
        let mut forbid = gateway.forbid;
        forbid.extend(crate::judge::policy::gateway("gemini").ok_or("no gateway")?.forbid);
        let rules = Rules { model_key: Some("model"), forbid: &forbid, tools: None };
        inspect(body.as_bytes(), rules)
    }

    #[test]
    fn what_the_api_would_fetch() {
        for body in [
            r#"{"tools":[{"urlContext":{}}]}"#,
            r#"{"tools":[{"\u0075rlContext":{}}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"https://evil.example/x"}}]}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"https:/\n/evil.example/x"}}]}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":" https:/evil.example/x"}}]}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"https:evil.example/x"}}]}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"\\\\evil.example/x"}}]}]}"#,
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://evil.example/x"}}]}]}"#,
            r#"{"messages":[{"content":[{"image_url":["HTTPS://evil.example/x"]}]}]}"#,
            r#"{"tools":[{"type":"mcp","server_url":"x"}]}"#,
        ] {
            assert!(inspect_body(body).is_ok_and(|found| found.forbidden.is_some()), "{body}");
        }
        for body in [
            r#"{"model":"m","messages":[{"content":"see https://example.org"},{"image_url":{"url":"data:image/png;base64,AA"}}]}"#,
            r#"{"contents":[{"parts":[{"text":"urlContext"}]}],"tools":[{"googleSearch":{}}],"n":[1,-2,3.5,true,null]}"#,
        ] {
            assert!(
                inspect_body(body).is_ok_and(|found| found.forbidden.is_none()),
                "{body}: {:?}",
                inspect_body(body)
            );
        }
        assert_eq!(inspect_body(r#"{"model":"m-1"}"#).map(|found| found.model), Ok(Some("m-1".to_string())));
        for body in [
            "",
            "{",
            r#"{"model":1}"#,
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a","Model":"b"}"#,
            "{}{}",
            r#"{"a":1"#,
        ] {
            assert!(inspect_body(body).is_err(), "{body}");
        }
    }
}
