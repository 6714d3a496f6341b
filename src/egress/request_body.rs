//! Inspects the JSON body of a gateway request: which model it names, and whether it would make the API fetch
//! something.
//!
//! In go the body and the gateway's rules, out come the model and the reason for a refusal. A body that is not valid
//! JSON is an error, and JSON that servers could read in different ways is refused.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::policy::{Forbid, ToolRules};

/// How many characters of a tool's type a refusal repeats.
const LONGEST_KIND: usize = 80;
/// Size limit of a model's name.
const LONGEST_MODEL: usize = 256;

/// The result of an inspection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The model, if the body names one.
    pub(super) model: Option<String>,
    /// Why the request is refused.
    pub(super) forbidden: Option<String>,
}

/// What to check a body for.
#[derive(Clone, Copy)]
pub(super) struct Rules<'r> {
    /// The key that names the model.
    pub(super) model_key: Option<&'r str>,
    /// Forbidden keys and values.
    pub(super) forbid: &'r [Forbid],
    /// The allowed tools.
    pub(super) tools: Option<&'r ToolRules>,
}

/// Inspects a body. A body that is not valid JSON is an error, and the request is refused.
pub(super) fn inspect(body: &[u8], rules: Rules<'_>) -> Result<Found, String> {
    let mut found = Found::default();
    let look = Look { rules, found: &mut found, rule: None, key: None, place: Place::Top };
    let mut reader = serde_json::Deserializer::from_slice(body);
    look.deserialize(&mut reader).and_then(|()| reader.end()).map_err(|error| error.to_string())?;
    Ok(found)
}

/// Whether some server could treat two keys as equal: ignoring case, including two Unicode letters that fold to
/// ASCII.
fn is_alike(key: &str, known: &str) -> bool {
    let plain = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(plain).eq(known.chars().map(plain))
}

/// The role of a value in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The whole body.
    Top,
    /// A tool or a list of tools.
    Tools,
    /// A list whose items can contain tools, or such an item.
    Items,
    /// The type of a tool.
    Kind,
    Other,
}

struct Look<'l> {
    rules: Rules<'l>,
    found: &'l mut Found,
    /// The rule that forbids URLs in this value, and the value's key.
    rule: Option<&'l Forbid>,
    key: Option<String>,
    place: Place,
}

impl Look<'_> {
    fn forbidden(&mut self, rule: &Forbid, key: &str) {
        self.found
            .forbidden
            .get_or_insert_with(|| format!("`{key}` is not allowed in a request. {}", rule.reason));
    }

    /// Checks a tool of this type.
    fn tool(&mut self, kind: Option<&str>) {
        let Some(rules) = self.rules.tools else { return };
        let passes = kind.map_or(rules.without_kind, |kind| rules.allows(kind));
        if !passes {
            let kind: String = kind.unwrap_or("without a kind").chars().take(LONGEST_KIND).collect();
            let told = || format!("The tool `{kind}` is not allowed in a request. {}", rules.reason);
            self.found.forbidden.get_or_insert_with(told);
        }
    }

    fn text(&mut self, text: &str) {
        match self.place {
            Place::Kind => self.tool(Some(text)),
            // A string in place of a tool: its meaning depends on the API, so treat it as a tool type.
            Place::Tools => self.tool(Some(text)),
            Place::Top | Place::Items | Place::Other => {}
        }
        let is_address = text.contains("://") || text.starts_with("//");
        if let Some(rule) = self.rule.filter(|_| is_address && !text.starts_with("data:")) {
            let key = self.key.clone().unwrap_or_default();
            self.forbidden(rule, &key);
        }
    }

    /// Handles a number or boolean.
    fn plain(&mut self) {
        if matches!(self.place, Place::Kind | Place::Tools) {
            self.tool(Some("that is no object"));
        }
    }
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.plain();
        Ok(())
    }

    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.plain();
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.plain();
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.plain();
        Ok(())
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        // `null` tools are fine; a `null` type is not.
        if self.place == Place::Kind {
            self.plain();
        }
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.text(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        if self.place == Place::Kind {
            self.plain();
        }
        let Look { rules, found, rule, key, place } = self;
        let place = if matches!(place, Place::Tools | Place::Items) { place } else { Place::Other };
        loop {
            let look = Look { rules, found: &mut *found, rule, key: key.clone(), place };
            if items.next_element_seed(look)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        if self.place == Place::Kind {
            self.plain();
        }
        let (rules, rule, outer, place) = (self.rules, self.rule, self.key.take(), self.place);
        let mut has_kind = false;
        while let Some(key) = entries.next_key::<String>()? {
            if place == Place::Top && Some(key.as_str()) == rules.model_key {
                // Deserialize as a string only: a list of millions of items would take far more memory than its text.
                let model: String = entries.next_value()?;
                if model.len() > LONGEST_MODEL {
                    return Err(A::Error::custom("the model's name is too long"));
                }
                // If the key occurs twice, servers disagree on which one counts.
                if self.found.model.replace(model).is_some() {
                    return Err(A::Error::custom("the model is named twice"));
                }
                continue;
            }
            let next = match (place, rules.tools) {
                (Place::Top | Place::Items, Some(tools)) if is_alike(&key, &tools.key) => Place::Tools,
                (Place::Top, Some(tools)) if tools.item_lists.iter().any(|list| is_alike(&key, list)) => {
                    Place::Items
                }
                (Place::Tools, Some(tools)) => match &tools.kind_key {
                    // Tools nested in a namespace.
                    Some(_) if is_alike(&key, &tools.key) => Place::Tools,
                    Some(kind_key) if is_alike(&key, kind_key) => {
                        has_kind = true;
                        Place::Kind
                    }
                    Some(_) => Place::Other,
                    None => {
                        has_kind = true;
                        self.tool(Some(&key));
                        Place::Other
                    }
                },
                _ => Place::Other,
            };
            let is_named = |rule: &&Forbid| rule.keys.iter().any(|known| is_alike(&key, known));
            let named = rules.forbid.iter().find(is_named);
            let mut look = Look { rules, found: &mut *self.found, rule, key: outer.clone(), place: next };
            if let Some(named) = named {
                if named.only_addresses {
                    look.rule = Some(named);
                    look.key = Some(key);
                } else {
                    look.forbidden(named, &key);
                }
            }
            entries.next_value_seed(look)?;
        }
        let says_kind = rules.tools.is_some_and(|tools| tools.kind_key.is_some());
        if place == Place::Tools && says_kind && !has_kind {
            self.tool(None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(body: &str) -> Result<Found, String> {
        let gateway = crate::policy::gateway("openai").ok_or("no gateway")?;
        let mut forbid = gateway.forbid;
        forbid.extend(crate::policy::gateway("gemini").ok_or("no gateway")?.forbid);
        let rules = Rules { model_key: Some("model"), forbid: &forbid, tools: None };
        inspect(body.as_bytes(), rules)
    }

    #[test]
    fn what_the_api_would_fetch() {
        for body in [
            r#"{"tools":[{"urlContext":{}}]}"#,
            r#"{"tools":[{"\u0075rlContext":{}}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"https://evil.example/x"}}]}]}"#,
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://evil.example/x"}}]}]}"#,
            r#"{"messages":[{"content":[{"image_url":["HTTPS://evil.example/x"]}]}]}"#,
            r#"{"tools":[{"type":"mcp","server_url":"x"}]}"#,
        ] {
            assert!(look(body).is_ok_and(|found| found.forbidden.is_some()), "{body}");
        }
        for body in [
            r#"{"model":"m","messages":[{"content":"see https://example.org"},{"image_url":{"url":"data:image/png;base64,AA"}}]}"#,
            r#"{"contents":[{"parts":[{"text":"urlContext"}]}],"tools":[{"googleSearch":{}}],"n":[1,-2,3.5,true,null]}"#,
        ] {
            assert!(look(body).is_ok_and(|found| found.forbidden.is_none()), "{body}: {:?}", look(body));
        }
        assert_eq!(look(r#"{"model":"m-1"}"#).map(|found| found.model), Ok(Some("m-1".to_string())));
        for body in ["", "{", r#"{"model":1}"#, r#"{"model":"a","model":"b"}"#, "{}{}", r#"{"a":1"#] {
            assert!(look(body).is_err(), "{body}");
        }
    }
}
