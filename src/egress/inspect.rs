//! A look into the JSON of a request: which model it names, and whether it would have the API fetch something.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::policy::Forbid;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The model, where the body names it.
    pub(super) model: Option<String>,
    /// Why the request is not handed on.
    pub(super) forbidden: Option<String>,
}

/// Looks into a body. One that is not JSON is an error: what cannot be read is not handed on.
pub(super) fn inspect(body: &[u8], model_key: Option<&str>, forbid: &[Forbid]) -> Result<Found, String> {
    let mut found = Found::default();
    let look = Look { model_key, forbid, found: &mut found, rule: None, key: None, is_top: true };
    let mut reader = serde_json::Deserializer::from_slice(body);
    look.deserialize(&mut reader).and_then(|()| reader.end()).map_err(|error| error.to_string())?;
    Ok(found)
}

struct Look<'l> {
    model_key: Option<&'l str>,
    forbid: &'l [Forbid],
    found: &'l mut Found,
    /// The rule that watches this value for addresses, and the key it stands under.
    rule: Option<&'l Forbid>,
    key: Option<String>,
    is_top: bool,
}

impl Look<'_> {
    fn forbidden(&mut self, rule: &Forbid, key: &str) {
        self.found
            .forbidden
            .get_or_insert_with(|| format!("`{key}` is not allowed in a request. {}", rule.reason));
    }

    fn text(&mut self, text: &str) {
        let is_address = text.contains("://") || text.starts_with("//");
        if let Some(rule) = self.rule.filter(|_| is_address && !text.starts_with("data:")) {
            let key = self.key.clone().unwrap_or_default();
            self.forbidden(rule, &key);
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

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.text(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Look { model_key, forbid, found, rule, key, .. } = self;
        while items
            .next_element_seed(Look {
                model_key,
                forbid,
                found: &mut *found,
                rule,
                key: key.clone(),
                is_top: false,
            })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Look { model_key, forbid, found, rule, key: outer, is_top } = self;
        while let Some(key) = entries.next_key::<String>()? {
            if is_top && Some(key.as_str()) == model_key {
                let value: serde_json::Value = entries.next_value()?;
                let Some(model) = value.as_str() else {
                    return Err(A::Error::custom("the model has no name"));
                };
                // Said twice, servers disagree on which counts.
                if found.model.replace(model.to_string()).is_some() {
                    return Err(A::Error::custom("the model is named twice"));
                }
                continue;
            }
            let named = forbid.iter().find(|rule| rule.keys.contains(&key));
            let mut look =
                Look { model_key, forbid, found: &mut *found, rule, key: outer.clone(), is_top: false };
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
        inspect(body.as_bytes(), Some("model"), &forbid)
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
