//! Parses the parameters of a tool call one at a time, so that an error names the wrong parameter.

use rmcp::model::JsonObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The parameters of a tool call that have not been parsed yet, and the names of those that the tool knows.
pub(super) struct Parameters {
    given: JsonObject,
    known: Vec<&'static str>,
}

impl Parameters {
    pub(super) fn new(given: JsonObject) -> Self {
        Self { given, known: Vec::new() }
    }

    /// Parses a required parameter and removes it from the remaining ones.
    pub(super) fn required<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<T, String> {
        self.take(name)?.ok_or_else(|| format!("the parameter `{name}` is missing"))
    }

    /// Parses an optional parameter and removes it from the remaining ones. Null counts as missing, because many
    /// clients send it.
    pub(super) fn optional<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, String> {
        self.take(name)
    }

    /// Fails if parameters remain that the tool does not know.
    pub(super) fn reject_unknown(self) -> Result<(), String> {
        match self.given.keys().next() {
            None => Ok(()),
            Some(name) => {
                let name: String = name.chars().take(80).collect();
                Err(format!("unknown parameter `{name}`; known parameters are {}", self.known.join(", ")))
            }
        }
    }

    fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, String> {
        self.known.push(name);
        let value = match self.given.remove(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => whole(value),
        };
        let value = serde_json::from_value(value)
            .map_err(|error| format!("the parameter `{name}` is invalid: {error}"))?;
        Ok(Some(value))
    }
}

/// Converts a number such as `300.0` to an integer: JSON Schema counts it as an integer, and some clients send it.
fn whole(value: Value) -> Value {
    match value.as_f64().filter(|_| !value.is_u64() && !value.is_i64()) {
        Some(number) if number.fract() == 0.0 && (0.0..9e15).contains(&number) => Value::from(number as u64),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameters(value: &Value) -> Parameters {
        Parameters::new(value.as_object().cloned().unwrap_or_default())
    }

    #[test]
    fn whoever_gets_one_wrong_is_told_which() {
        let mut read = parameters(&json!({ "a": 300.0, "b": null, "c": "x", "d": 1.5, "e": 1 }));
        assert_eq!(read.required::<u64>("a"), Ok(300));
        assert_eq!(read.optional::<bool>("b"), Ok(None));
        assert!(read.optional::<u64>("c").is_err_and(|problem| problem.contains("`c`")));
        assert!(read.optional::<u64>("d").is_err_and(|problem| problem.contains("`d`")));
        assert!(read.required::<u64>("f").is_err_and(|problem| problem.contains("`f` is missing")));
        assert!(
            read.reject_unknown()
                .is_err_and(|problem| problem.contains("`e`") && problem.contains("a, b, c, d, f"))
        );
    }
}
